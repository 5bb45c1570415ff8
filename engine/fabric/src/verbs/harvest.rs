//! Turns the device's completions into ours, and ends queue pairs.

use std::collections::VecDeque;
use std::time::Duration;

use stag_memory::Buf;
use stag_rdma_core_sys as sys;

use super::Verbs;
use super::connection::{Phase, QueuePair};
use super::errors::{Queue, disconnect_reason, work_error};
use super::exposure::Invalidated;
use super::sends::{Done, SendQueue};
use super::work::{SHARED_SLOT, WorkId};
use crate::plain::{PLAIN_LEN, plain_credits};
use crate::slots::Numbered;
use crate::{
    Completed, Completion, DisconnectReason, Event, Handle, PlainMessage, QueuePairId, ShownMessage,
    TakeShown, Taken, WorkError,
};

/// Where completions go: to the user, while there is room, else to `Verbs::local`.
pub(super) struct Out<'a> {
    pub(super) completions: &'a mut VecDeque<Completion>,
    /// The length that it may grow to.
    pub(super) end: usize,
    /// Messages that were taken where they arrived: each takes the place of a completion.
    pub(super) taken: usize,
}

impl Out<'_> {
    /// For callers that have no user to give them to: all go to `Verbs::local`.
    pub(super) fn nowhere(nothing: &mut VecDeque<Completion>) -> Out<'_> {
        Out { completions: nothing, end: 0, taken: 0 }
    }

    /// How many completions were added to a deque that began with `start`.
    #[inline]
    pub(super) fn count_from(&self, start: usize) -> usize {
        self.completions.len() - start + self.taken
    }

    /// Notes that a message was taken, for which there was room.
    #[inline]
    fn note_taken(&mut self) {
        self.taken += 1;
        self.end -= 1;
    }

    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.completions.len() < self.end
    }
}

impl Verbs {
    /// Takes completions from the device once, and shows to `take` the messages that can be taken where they arrived. `false`:
    /// there were no more than that.
    #[inline]
    pub(super) fn harvest(&mut self, out: &mut Out<'_>, take: &mut impl TakeShown) -> bool {
        let Some(opened) = self.opened.as_ref().filter(|_| !self.is_broken) else { return false };
        let room = match out.has_room() {
            true => self.harvested.len().min(out.end - out.completions.len()),
            false => self.harvested.len(),
        };
        let with_invalidate = opened.profile.with_invalidate;
        let Some(count) = opened.queue.poll(&mut self.harvested[..room]) else {
            self.queue_failed();
            return false;
        };
        for at in 0..count {
            let completion = &self.harvested[at];
            let work = WorkId::unpack(completion.wr_id);
            let is_bare = work.is_receive && completion.wc_flags & with_invalidate == 0;
            if is_bare
                && self.local.is_empty()
                && out.has_room()
                && let Some(Some(pair)) = self.slots.get_mut(work.slot as usize)
                && pair.id.generation as u16 == work.generation
                && pair.may_show(self.polls)
                && pair.show_oldest(completion, take)
            {
                out.note_taken();
                let again = pair.post_again();
                if pair.is_waiting() {
                    pair.mark_dirty(&mut self.dirty);
                }
                if let Err(error) = again {
                    self.post_failed(work.slot, &error);
                }
            } else if work.slot == SHARED_SLOT {
                let completion = *completion;
                self.shared_receive_done(work.sequence, &completion, out, take);
            } else {
                let completion = *completion;
                self.done(work, &completion, out);
            }
        }
        count == room
    }

    /// A work request is done that is no message to be taken where it arrived.
    // Not inline: it would slow down the common completions.
    #[inline(never)]
    fn done(&mut self, work: WorkId, completion: &sys::ibv_wc, out: &mut Out<'_>) {
        let Some(Some(pair)) = self.slots.get_mut(work.slot as usize) else { return };
        // A queue pair that was destroyed may have left some behind.
        if pair.id.generation as u16 != work.generation {
            return;
        }
        if !work.is_receive {
            self.send_done(work.slot, work.sequence, completion, out);
        } else if let Some((id, buf)) = pair.receives.take_done() {
            self.received(work.slot, id, buf, completion, out);
        }
    }

    /// The completion queue says nothing any more: the next look opens the device anew.
    #[cold]
    fn queue_failed(&mut self) {
        tracing::error!("the completion queue of the RDMA device is broken");
        for index in 0..self.slots.len() as u32 {
            self.close(index, DisconnectReason::Work(WorkError::Device));
        }
        self.is_broken = true;
        self.look_at = Duration::ZERO;
    }

    /// A message took the shared Receive of that number.
    #[inline(never)]
    fn shared_receive_done(
        &mut self,
        number: u32,
        completion: &sys::ibv_wc,
        out: &mut Out<'_>,
        take: &mut impl TakeShown,
    ) {
        let Some(shared) = self.opened.as_ref().and_then(|opened| opened.receives.clone()) else { return };
        let Some((mut buf, arena)) = shared.take(number) else { return };
        let index = shared.user(completion.qp_num);
        let is_bare = self.local.is_empty() && out.has_room() && !self.invalidates(completion);
        let poll = self.polls;
        let pair = index.and_then(|index| self.slots.get_mut(index as usize)?.as_deref_mut());
        if let (Some(index), Some(pair)) = (index, pair)
            && is_bare
            && pair.may_show(poll)
            && pair.receives.has_reserved()
            && show(&mut pair.sends, pair.id, &mut buf, completion, take)
        {
            (pair.is_heard, pair.was_heard) = (true, true);
            if pair.sends.is_waiting() {
                pair.mark_dirty(&mut self.dirty);
            }
            out.note_taken();
            // The reservation stands for the next message.
            if let Err(error) = shared.post_again(buf, arena) {
                self.post_failed(index, &error);
            }
            return;
        }
        let pair = index.and_then(|index| self.at(index));
        match (index, pair.and_then(|pair| pair.receives.take_id())) {
            (Some(index), Some(id)) => self.received(index, id, buf, completion, out),
            // Of a queue pair that is gone, whose Receives are left over; or one that none was posted for.
            (index, _) => {
                shared.put_back(buf, arena);
                if let Some(index) = index.filter(|_| completion.status == sys::IBV_WC_SUCCESS) {
                    let what = "it sent more messages than it had Receives for";
                    self.close(index, DisconnectReason::PeerViolation(what));
                }
            }
        }
    }

    /// Whether a message invalidated one of our handles.
    #[inline]
    fn invalidates(&self, completion: &sys::ibv_wc) -> bool {
        self.opened.as_ref().is_some_and(|opened| completion.wc_flags & opened.profile.with_invalidate != 0)
    }

    /// A Receive is done.
    // `inline(always)`: it has one caller, beside that for shared Receives.
    #[inline(always)]
    fn received(&mut self, index: u32, id: u64, mut buf: Buf, completion: &sys::ibv_wc, out: &mut Out<'_>) {
        let mut result = work_error(Queue::Receive, completion.status).map_or(Ok(()), Err);
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        let mut pair = pair;
        if result.is_ok() && !pair.is_open() {
            self.first_message(index);
            let Some(Some(again)) = self.slots.get_mut(index as usize) else { return };
            pair = again;
        }
        let (mut invalidated, mut exposed) = (None, None);
        if result.is_ok() {
            (pair.is_heard, pair.was_heard) = (true, true);
            let flags = self.opened.as_ref().map_or(0, |opened| opened.profile.with_invalidate);
            if completion.wc_flags & flags != 0 {
                // SAFETY: the flag says which field of the union it is; both are numbers.
                let handle = unsafe { completion.__bindgen_anon_1.invalidated_rkey };
                match pair.exposures.invalidated(handle) {
                    Invalidated::Ended(memory) => {
                        (invalidated, exposed) = (Some(Handle(handle)), Some(memory));
                        self.counters.invalidations += 1;
                    }
                    Invalidated::Meanwhile => {}
                    Invalidated::Violation => result = Err(WorkError::PeerViolation),
                }
            }
        }
        if result.is_ok() {
            match pair.receives.split(completion.byte_len as usize, &buf) {
                Some(len) => buf.set_len(len),
                None => result = Err(WorkError::Device),
            }
        }
        if result.is_err() {
            pair.receives.discard_targets();
        }
        pair.left_in = self.polls;
        let completed = Completed::Receive { buf, invalidated, exposed };
        pair.give(&mut self.local, out, id, completed, result);
        if let Err(error) = result {
            self.failed(index, error);
        }
    }

    #[inline]
    fn send_done(&mut self, index: u32, sequence: u32, completion: &sys::ibv_wc, out: &mut Out<'_>) {
        let error = work_error(Queue::Send, completion.status);
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        match error {
            None => pair.sends.note_done(sequence),
            // Everything before the first failure is done, whether or not it had to be reported.
            Some(error) if error != WorkError::Flushed && !pair.has_failed => {
                pair.sends.note_done(sequence.wrapping_sub(1));
            }
            Some(_) => {}
        }
        // Behind one that failed nothing succeeds: siw reports a Write before a Read in front of it.
        let result = if pair.has_failed { Err(WorkError::Flushed) } else { Ok(()) };
        while let Some(done) = pair.sends.take_done() {
            match done {
                Done::Completed { id, completed } => pair.give(&mut self.local, out, id, completed, result),
                Done::Invalidated { slot } => {
                    let handle = pair.exposures.handle(slot);
                    if let Some((id, exposed)) = pair.exposures.fenced(slot) {
                        pair.give(&mut self.local, out, id, Completed::Fence { handle, exposed }, Ok(()));
                    }
                }
            }
        }
        let Some(error) = error else {
            // There is room again.
            if pair.sends.is_waiting() {
                self.mark_dirty(index);
            }
            return;
        };
        pair.has_failed = true;
        while let Some(Done::Completed { id, completed }) = pair.sends.take_failed(sequence) {
            pair.give(&mut self.local, out, id, completed, Err(error));
        }
        self.failed(index, error);
    }

    /// A request failed: so does the queue pair. For one that was only flushed the connection manager knows why.
    pub(super) fn failed(&mut self, index: u32, error: WorkError) {
        let looks_fatal = self.opened.as_ref().is_some_and(|opened| opened.profile.loss_looks_fatal);
        let Some(pair) = self.at(index) else { return };
        match error {
            WorkError::Device if looks_fatal => self.failed(index, WorkError::Flushed),
            WorkError::Flushed if matches!(pair.phase, Phase::Closing | Phase::Gone | Phase::Failing) => {}
            WorkError::Flushed => {
                pair.phase = Phase::Failing;
                pair.deadline = None;
                self.mark_attention(index);
            }
            WorkError::PeerViolation => {
                let what = "it invalidated a handle that it must not, or sent what the device refused";
                self.close(index, DisconnectReason::PeerViolation(what));
            }
            error => self.close(index, disconnect_reason(error)),
        }
    }

    /// Destroys a queue pair that is closing, and gives back all that is left.
    pub(super) fn finish(&mut self, index: u32) {
        // What it completed is still true.
        let mut nothing = VecDeque::new();
        let out = &mut Out::nowhere(&mut nothing);
        while self.harvest(out, &mut |_: ShownMessage<'_>| Taken::No) {}
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        if pair.phase != Phase::Closing {
            return;
        }
        let domain = pair.destroy();
        pair.phase = Phase::Gone;
        let flushed = Err(WorkError::Flushed);
        while let Some((id, buf)) = pair.receives.take_left() {
            pair.receives.discard_targets();
            let completed = Completed::Receive { buf, invalidated: None, exposed: None };
            pair.give(&mut self.local, out, id, completed, flushed);
        }
        while let Some(Done::Completed { id, completed }) = pair.sends.take_left() {
            pair.give(&mut self.local, out, id, completed, flushed);
        }
        while let Some(slot) = pair.exposures.first_used() {
            let handle = pair.exposures.handle(slot);
            if let Some((id, exposed)) = pair.exposures.fenced(slot) {
                pair.give(&mut self.local, out, id, Completed::Fence { handle, exposed }, flushed);
            }
        }
        if let (Some(opened), Some(domain)) = (&mut self.opened, domain) {
            opened.recycle(domain);
        }
    }

    /// Forgets a queue pair that is gone, when all its completions were harvested and its targets taken. `true`: it is forgotten.
    pub(super) fn leave(&mut self, index: u32) -> bool {
        if !self.local.is_empty() {
            return false;
        }
        let Some(pair) = self.at(index) else { return true };
        if pair.phase != Phase::Gone || !pair.held.is_empty() || pair.receives.has_targets() {
            return false;
        }
        let (queue_pair, completions) = (pair.id, pair.completions);
        let reason = pair.reason.take().unwrap_or(DisconnectReason::Local);
        self.slots[index as usize] = None;
        self.completions_taken -= completions;
        self.events.push_back(Event::Disconnected { queue_pair, reason });
        true
    }
}

/// Shows a message in the buffer of its Receive, if it is one without chunks. `true`: it was taken; an answer to it is
/// posted, and the caller posts the Receive again.
// Not inline: a pass without messages would compute values that only messages need.
#[inline(never)]
fn show(
    sends: &mut SendQueue,
    queue_pair: QueuePairId,
    buf: &mut Buf,
    completion: &sys::ibv_wc,
    take: &mut impl TakeShown,
) -> bool {
    let len = completion.byte_len as usize;
    if completion.status != sys::IBV_WC_SUCCESS || len > buf.capacity() {
        return false;
    }
    buf.set_len(len);
    let Some(credits) = plain_credits(buf) else { return false };
    let space = sends.plain_space();
    let has_space = space.is_some();
    match take.take_plain(PlainMessage { queue_pair, credits, stream: &buf[PLAIN_LEN..], space }) {
        Taken::No => return false,
        Taken::Done => {}
        Taken::Answered { credits, len } => {
            assert!(has_space, "an answer of {len} octets without space");
            sends.push_plain(credits, len);
        }
        Taken::AnsweredWhole { .. } | Taken::AnsweredGathered { .. } => {
            unreachable!("its Payload stream alone was shown")
        }
    }
    true
}

impl QueuePair {
    /// Shows the message of the oldest Receive. `true`: it was taken, and the caller posts the Receive again.
    #[inline(always)]
    fn show_oldest(&mut self, completion: &sys::ibv_wc, take: &mut impl TakeShown) -> bool {
        let Some(buf) = self.receives.oldest() else { return false };
        if !show(&mut self.sends, self.id, buf, completion, take) {
            return false;
        }
        (self.is_heard, self.was_heard) = (true, true);
        true
    }

    /// Gives the user a completion, or queues it: behind those before it, and behind the word of `Established`.
    // `inline(always)`: a completion is large; inlined, it is built in its place.
    #[inline(always)]
    fn give(
        &mut self,
        local: &mut VecDeque<Completion>,
        out: &mut Out<'_>,
        id: u64,
        completed: Completed,
        result: Result<(), WorkError>,
    ) {
        let completion = Completion { queue_pair: self.id, id, completed, result };
        if self.is_established && !self.is_announced {
            self.held.push_back(completion);
        } else if local.is_empty() && out.has_room() {
            self.harvested(&completion.completed);
            out.completions.push_back(completion);
        } else {
            local.push_back(completion);
        }
    }

    /// The user sees a completion: there is room for another request.
    #[inline]
    pub(super) fn harvested(&mut self, completed: &Completed) {
        match completed {
            Completed::Receive { .. } => self.receives.harvested(),
            Completed::Fence { .. } => {}
            _ => self.sends.harvested(),
        }
    }
}
