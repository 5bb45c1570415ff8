//! Receives in several buffers: a message is copied from the ring into each of them.

use stag_memory::Buf;

use super::connection::QueuePair;
use super::ring::{BadLength, Consumer, Header, Kind};
use crate::plain::PLAIN_LEN;
use crate::scatter::{RECEIVE_TARGETS_MAX, ReceiveTargets, ScatterQueue, ScatteredReceive};
use crate::{PLAIN_LEN_MAX, PostError, Refused};

impl QueuePair {
    /// Posts a Receive in several buffers.
    #[cold]
    pub(super) fn post_scattered(
        &mut self,
        request: ScatteredReceive,
    ) -> Result<(), Refused<ScatteredReceive>> {
        let receives = self.capacity.receives;
        let ScatteredReceive { id, head, targets } = request;
        let posted = self.scatter.as_ref().map_or(0, |scatter| scatter.posted());
        let is_right = posted == self.receives.len()
            && targets.bufs().len() <= RECEIVE_TARGETS_MAX
            && targets.is_aligned(head.capacity());
        let is_full = self.scatter.as_ref().is_some_and(|scatter| scatter.untaken() >= receives as usize);
        let refused =
            |head, targets, error| Err(Refused { request: ScatteredReceive { id, head, targets }, error });
        if !is_right {
            return refused(head, targets, PostError::Scatter);
        }
        if is_full {
            return refused(head, targets, PostError::Full);
        }
        if let Err(Refused { request: head, error }) = self.post_receive(id, head) {
            return refused(head, targets, error);
        }
        self.scatter.get_or_insert_with(|| Box::new(ScatterQueue::new(receives))).post(targets);
        Ok(())
    }

    /// The targets of the oldest message that was not asked about.
    pub(super) fn take_targets(&mut self) -> Option<Box<ReceiveTargets>> {
        self.scatter.as_mut()?.take()
    }
}

/// Copies the message of a record into a scattered Receive: the head, and the oldest targets. Returns the octets in the head.
#[cold]
pub(super) fn receive_scattered(
    consumer: &Consumer,
    header: Header,
    head: &mut Buf,
    scatter: &mut ScatterQueue,
) -> Result<usize, BadLength> {
    let head_room = head.capacity();
    let Some(targets) = scatter.oldest() else { return Err(BadLength) };
    let mut built = [0_u8; PLAIN_LEN + PLAIN_LEN_MAX];
    let is_plain = header.kind() == Some(Kind::Plain);
    let len = if is_plain {
        // SAFETY: `header` is what `peek` returned; `built` is as long as is said.
        unsafe { consumer.message(header, built.as_mut_ptr(), built.len()) }?
    } else {
        header.len()
    };
    if len > head_room + targets.capacity() {
        scatter.discard();
        return Err(BadLength);
    }
    let mut at = 0;
    while at < len {
        let piece = if at < head_room {
            Some((head.as_mut_ptr().wrapping_add(at), head_room - at))
        } else {
            targets.piece(at - head_room)
        };
        let Some((place, room)) = piece else { return Err(BadLength) };
        let here = room.min(len - at);
        if is_plain {
            // SAFETY: `place` is writable for `room` octets of a buffer that is ours alone, and `built` holds `len`.
            unsafe { std::ptr::copy_nonoverlapping(built.as_ptr().add(at), place, here) };
        } else {
            // SAFETY: `header` is what `peek` returned; `at + here` is within its message, and `at` a multiple of 8, as the
            // capacities are; `place` is writable for `room` octets of a buffer that is ours alone.
            unsafe { consumer.part(header, at, place, here) };
        }
        at += here;
    }
    scatter.complete(len.saturating_sub(head_room));
    Ok(len.min(head_room))
}
