//! Messages on queue pairs with scattered Receives, shown where they arrived.

use super::Sim;
use super::provider::own;
use super::queue_pair::{Phase, Receive};
use crate::{
    Completed, Completion, GATHERED_LEN_MAX, GatheredPieces, QueuePairId, ScatteredMessage, TakeShown, Taken,
};

impl Sim {
    /// Shows a message whose Receive is scattered. It is given back if it was not taken, or not even shown.
    pub(super) fn show_scattered(
        &mut self,
        mut completion: Completion,
        take: &mut impl TakeShown,
    ) -> Result<(), Completion> {
        let queue_pair = completion.queue_pair;
        if completion.result.is_err() {
            return Err(completion);
        }
        let Completed::Receive { buf, invalidated: None, .. } = &mut completion.completed else {
            return Err(completion);
        };
        let mut octets = buf.to_vec();
        let head_len = {
            let mut state = self.world.0.borrow_mut();
            let found = own(&mut state, self.device).queue_pair_mut(queue_pair);
            let found = found.filter(|found| found.phase == Phase::Established);
            let Some((targets, head_len)) = found.as_ref().and_then(|found| found.filled.front()) else {
                return Err(completion);
            };
            targets.bufs().iter().for_each(|target| octets.extend_from_slice(target));
            *head_len
        };
        let mut pieces = GatheredPieces::new();
        let has_space = self.offers_space(queue_pair);
        let space = has_space.then(|| &mut self.space[..GATHERED_LEN_MAX]);
        match take.take_scattered(ScatteredMessage {
            queue_pair,
            octets: &octets,
            space,
            pieces: &mut pieces,
        }) {
            Taken::No => return Err(completion),
            Taken::Done => {}
            Taken::AnsweredGathered { len } => {
                assert!(has_space, "an answer of {len} octets without space");
                self.send_pieces(queue_pair, len, &mut pieces);
            }
            taken => unreachable!("it is answered from several pieces of memory: {taken:?}"),
        }
        // Its Receive stands for the next message.
        let Completed::Receive { mut buf, .. } = completion.completed else {
            unreachable!("it was one above")
        };
        buf.set_len(head_len);
        let mut state = self.world.0.borrow_mut();
        state.trace.words(&[23, self.device as u64, completion.id]);
        state.taken_in_place += 1;
        let found = own(&mut state, self.device).queue_pair_mut(queue_pair).expect("it is established");
        let targets = found.filled.pop_front().map(|(targets, _)| targets);
        found.receives_used += 1;
        found.receives.push_front(Receive { id: completion.id, buf, targets });
        Ok(())
    }

    /// Posts a message that begins with `len` octets of the space, and goes on with `pieces`.
    pub(super) fn send_pieces(&mut self, queue_pair: QueuePairId, len: usize, pieces: &mut GatheredPieces) {
        let mut message = self.space[..len].to_vec();
        pieces.drain(..).for_each(|piece| message.extend_from_slice(&piece));
        self.send_built(queue_pair, None, message);
    }
}
