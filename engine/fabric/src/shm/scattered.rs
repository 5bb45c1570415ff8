//! Receives in several buffers: a message is copied from the ring into each of them.

use stag_memory::Buf;

use super::connection::{Phase, QueuePair};
use super::ring::{BadLength, Consumer, Header, Kind};
use crate::plain::PLAIN_LEN;
use crate::scatter::{ReceiveTargets, ScatterQueue, ScatteredReceive};
use crate::{PLAIN_LEN_MAX, PostError, Refused};

impl QueuePair {
    /// Posts a Receive in several buffers.
    #[cold]
    pub(super) fn post_scattered(
        &mut self,
        request: ScatteredReceive,
    ) -> Result<(), Refused<ScatteredReceive>> {
        if matches!(self.phase, Phase::Draining(_) | Phase::Closing(_)) {
            return Err(Refused { request, error: PostError::NotConnected });
        }
        ScatterQueue::post(&mut self.scatter, &mut self.receives, &self.capacity, request)
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
