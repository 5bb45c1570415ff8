//! Receives in several buffers: a message is copied from the ring into each of them.

use stag_memory::Buf;

use super::connection::{Phase, QueuePair};
use super::ring::{BadLength, Consumer, Header, Kind, plain_header};
use crate::plain::PLAIN_LEN;
use crate::scatter::{ReceiveTargets, ScatterQueue, ScatteredReceive};
use crate::{PostError, Refused};

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

    /// Whether there are targets of a message that was not asked about.
    pub(super) fn has_targets(&self) -> bool {
        self.scatter.as_ref().is_some_and(|scatter| scatter.has_done())
    }
}

/// Copies the message of a record, which begins `skip` octets behind its start, a multiple of 8, into a scattered Receive: the
/// head, and the oldest targets. Returns the octets in the head.
#[cold]
pub(super) fn receive_scattered(
    consumer: &Consumer,
    header: Header,
    skip: usize,
    head: &mut Buf,
    scatter: &mut ScatterQueue,
) -> Result<usize, BadLength> {
    let head_room = head.len();
    let Some(targets) = scatter.oldest() else { return Err(BadLength) };
    let is_plain = header.kind() == Some(Kind::Plain);
    let len = if is_plain { PLAIN_LEN + header.len() } else { header.len() - skip };
    let is_short = is_plain && header.len() < XID_LEN;
    if is_short || len > head_room + targets.capacity() {
        scatter.discard();
        return Err(BadLength);
    }
    if is_plain {
        put_plain(consumer, header, &mut Places { head, targets, at: 0 });
    } else {
        let mut places = Places { head, targets, at: 0 };
        while let (at, Some((place, room))) = (places.at, places.next(len)) {
            // SAFETY: `header` is what `peek` returned; `skip + at + room` is within its payload, as `at + room` is within its message, and `at` a multiple of 8, as the
            // capacities are; `place` is writable for `room` octets of a buffer that is ours alone.
            unsafe { consumer.part(header, skip + at, place, room) };
        }
    }
    scatter.complete(len.saturating_sub(head_room));
    Ok(len.min(head_room))
}

/// Octets of an xid.
const XID_LEN: usize = 4;

/// Octets that are copied at once where the record and the message do not begin alike.
const BLOCK_LEN: usize = 512;

/// The octets of a Receive, one after the other.
struct Places<'a> {
    head: &'a mut Buf,
    targets: &'a mut ReceiveTargets,
    /// Those before are written.
    at: usize,
}

impl Places<'_> {
    /// The next octets up to `end`, as far as they lie together, which then count as written. `None` at the end.
    fn next(&mut self, end: usize) -> Option<(*mut u8, usize)> {
        let left = end.checked_sub(self.at).filter(|left| *left > 0)?;
        let head_room = self.head.len();
        let (place, room) = if self.at < head_room {
            (self.head.as_mut_ptr().wrapping_add(self.at), head_room - self.at)
        } else {
            self.targets.piece(self.at - head_room)?
        };
        let room = room.min(left);
        self.at += room;
        Some((place, room))
    }

    fn put(&mut self, mut octets: &[u8]) {
        let end = self.at + octets.len();
        while let Some((place, room)) = self.next(end) {
            // SAFETY: `place` is writable for `room` octets of a buffer that is ours alone, and `octets` holds as many: they are
            // those up to `end`.
            unsafe { std::ptr::copy_nonoverlapping(octets.as_ptr(), place, room) };
            octets = &octets[room..];
        }
    }
}

/// Copies a message that travels without its header, and puts that before it.
fn put_plain(consumer: &Consumer, header: Header, places: &mut Places<'_>) {
    let mut block = [0_u8; BLOCK_LEN];
    for at in (0..header.len()).step_by(BLOCK_LEN) {
        let len = BLOCK_LEN.min(header.len() - at);
        // SAFETY: `header` is what `peek` returned; `at + len` is within its payload, and `at` a multiple of 8; the block is as
        // long.
        unsafe { consumer.part(header, at, block.as_mut_ptr(), len) };
        if at == 0 {
            places.put(&plain_header(&block, header.aux()));
        }
        places.put(&block[..len]);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use stag_memory::{Arena, ArenaConfig, Budget, PageChoice, PageSize, Pool};

    use super::super::ring::tests::Ring;
    use super::*;
    use crate::QueuePairCapacity;

    const UNIT: usize = 1024;
    const TARGETS: usize = 2;

    const CAPACITY: QueuePairCapacity = QueuePairCapacity {
        receives: 1,
        sends: 0,
        exposures: 0,
        send_len_max: 0,
        receive_len_max: UNIT as u32,
        receive_targets: TARGETS as u32,
    };

    fn pool() -> Pool {
        let (page, budget) = (PageChoice::Size(PageSize::Base), Budget::new(1 << 20));
        let len = Pool::footprint(UNIT, 1 + TARGETS);
        let arena = Arena::new(&ArenaConfig { name: "scattered", len, page, node: None, budget: &budget });
        Pool::fixed(&arena.expect("some pages"), "all", UNIT, 1 + TARGETS).expect("it fits")
    }

    /// Octets of a message of this length; one that begins as a Call without chunks does travels without its header.
    fn message(len: usize, is_plain: bool) -> Vec<u8> {
        let mut octets: Vec<u8> = (0..len).map(|at| at as u8 ^ (at >> 8) as u8).collect();
        if is_plain {
            let begin =
                [[1, 2, 3, 4, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0].as_slice(), &[0; 12], &[1, 2, 3, 4]]
                    .concat();
            let here = len.min(begin.len());
            octets[..here].copy_from_slice(&begin[..here]);
        }
        octets
    }

    /// Around each border between two buffers, whichever way the message travels.
    #[test]
    fn a_message_of_any_length_lands_in_the_head_and_its_targets() {
        let pool = pool();
        let (ring, mut producer, mut consumer) = Ring::new(16_384);
        let borders = [32, UNIT, 2 * UNIT, 3 * UNIT];
        let lens = borders.iter().flat_map(|border| border - 9..=border + 9).chain([0, 1]);
        for (len, is_plain) in lens.flat_map(|len| [(len, false), (len, true)]) {
            let sent = message(len, is_plain);
            assert!(ring.send(&mut producer, &sent));
            producer.publish();
            let header = consumer.peek().unwrap().expect("it was published");
            let mut receives = VecDeque::new();
            let mut queue = None;
            let take = || pool.take().expect("it is back");
            let head = take();
            let targets = Box::new(ReceiveTargets::new((0..TARGETS).map(|_| take()).collect()));
            let request = ScatteredReceive { id: 1, head, targets };
            ScatterQueue::post(&mut queue, &mut receives, &CAPACITY, request).unwrap();
            let (mut queue, (_, mut head)) = (queue.unwrap(), receives.pop_front().unwrap());
            let result = receive_scattered(&consumer, header, 0, &mut head, &mut queue);
            consumer.advance(header);
            consumer.tell(&ring.head);
            if len > UNIT * (1 + TARGETS) {
                assert_eq!(result, Err(BadLength), "{len} octets, {is_plain}");
                assert!(queue.take().is_none());
                continue;
            }
            head.set_len(result.unwrap_or_else(|error| panic!("{len} octets, {is_plain}: {error:?}")));
            let targets = queue.take().expect("they have a message");
            let parts: Vec<&[u8]> =
                std::iter::once(&head[..]).chain(targets.bufs().iter().map(|buf| &buf[..])).collect();
            assert_eq!(parts.concat(), sent, "{len} octets, {is_plain}");
        }
    }
}
