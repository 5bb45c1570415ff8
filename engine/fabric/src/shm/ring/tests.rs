//! A ring by itself: doorbells, laps, batches, and the attacks of a peer.

use std::mem::MaybeUninit;

use super::*;
use crate::shm::exposure::Bind;
use crate::{PLAIN_LEN_MAX, WHOLE_LEN_MAX};

/// A ring on the heap. It has no mirror: what crosses the end of the first half stays in the second, where
/// the consumer of this process finds it.
pub(in crate::shm) struct Ring {
    // Kept for the pointers into it.
    _pages: Vec<u64>,
    pub(in crate::shm) head: AtomicU64,
}

impl Ring {
    pub(in crate::shm) fn new(len: u32) -> (Ring, Producer, Consumer) {
        let mut pages = vec![0; len as usize / 4];
        let base: *mut u8 = pages.as_mut_ptr().cast();
        let ring = Ring { _pages: pages, head: AtomicU64::new(0) };
        // SAFETY: `2 * len` bytes, alive as long as `ring`; both halves in one thread.
        let (producer, consumer) = unsafe { (Producer::new(base, len), Consumer::new(base, len)) };
        (ring, producer, consumer)
    }

    pub(in crate::shm) fn send(&self, producer: &mut Producer, message: &[u8]) -> bool {
        if !producer.fits(message.len(), &self.head).unwrap() {
            return false;
        }
        // SAFETY: `fits` was true; `message` is readable.
        unsafe { producer.push_message(message.as_ptr(), message.len()) };
        true
    }

    fn receive(&self, consumer: &mut Consumer) -> Option<Vec<u8>> {
        let header = consumer.peek().unwrap()?;
        let mut message = vec![0; header.len() + PLAIN_LEN];
        // SAFETY: `header` is what `peek` returned, and `message` has the length given.
        let len = unsafe { consumer.message(header, message.as_mut_ptr(), message.len()) };
        message.truncate(len.unwrap());
        consumer.advance(header);
        consumer.tell(&self.head);
        Some(message)
    }
}

#[test]
fn nothing_is_seen_before_the_doorbell() {
    let (ring, mut producer, mut consumer) = Ring::new(4096);
    assert!(ring.send(&mut producer, b"one"));
    assert!(ring.send(&mut producer, b"two"));
    assert_eq!(ring.receive(&mut consumer), None);
    producer.publish();
    assert_eq!(ring.receive(&mut consumer).as_deref(), Some(&b"one"[..]));
    assert_eq!(ring.receive(&mut consumer).as_deref(), Some(&b"two"[..]));
    assert_eq!(ring.receive(&mut consumer), None);
}

#[test]
fn a_full_ring_takes_no_more_until_the_consumer_moved_on() {
    let (ring, mut producer, mut consumer) = Ring::new(4096);
    let mut sent = 0u64;
    while ring.send(&mut producer, &sent.to_ne_bytes()) {
        producer.publish();
        sent += 1;
    }
    // One line for each batch of one, and one line that stays clear.
    assert_eq!(sent, 4096 / 64 - 1);
    for expected in 0..sent {
        assert_eq!(ring.receive(&mut consumer).unwrap(), expected.to_ne_bytes());
    }
    assert!(ring.send(&mut producer, b"again"));
}

#[test]
fn laps_leave_no_stale_headers() {
    let (ring, mut producer, mut consumer) = Ring::new(4096);
    // Payloads that look like headers of messages of one byte.
    let stale = [1u8, 0, 0, 1, 0, 0, 0, 0].repeat(6);
    for lap in 0..1000usize {
        for message in 0..1 + lap % 5 {
            assert!(ring.send(&mut producer, &stale[..8 * (1 + (lap + message) % 6)]));
        }
        producer.publish();
        for message in 0..1 + lap % 5 {
            assert_eq!(ring.receive(&mut consumer).unwrap().len(), 8 * (1 + (lap + message) % 6));
        }
        assert_eq!(ring.receive(&mut consumer), None, "lap {lap}");
    }
}

/// A batch longer than what is cleared ahead, from each line of the ring, behind stale bytes.
#[test]
fn long_batches_leave_no_stale_headers() {
    let (ring, mut producer, mut consumer) = Ring::new(4096);
    let stale = [1u8, 0, 0, 1, 0, 0, 0, 0].repeat(160);
    for lap in 0..2000usize {
        let len = 8 * (1 + lap * 37 % 160);
        assert!(ring.send(&mut producer, &stale[..len]));
        producer.publish();
        assert_eq!(ring.receive(&mut consumer).unwrap().len(), len);
        assert_eq!(ring.receive(&mut consumer), None, "lap {lap}");
    }
}

#[test]
fn the_first_message_of_a_pass_is_due_at_once_and_later_ones_together() {
    let (ring, mut producer, mut consumer) = Ring::new(16384);
    for _ in 0..2 {
        let mut batches = Vec::new();
        for _ in 0..100 {
            assert!(ring.send(&mut producer, &[0; 48]));
            if producer.is_due() {
                producer.publish_early();
                let mut batch = 0;
                while ring.receive(&mut consumer).is_some() {
                    batch += 1;
                }
                batches.push(batch);
            }
        }
        // Records of 56 bytes: at least 64 bytes of them, 128, 256, 512, then 1 KiB.
        assert_eq!(batches, [1, 2, 3, 5, 10, 19, 19, 19, 19]);
        producer.publish();
        while ring.receive(&mut consumer).is_some() {}
    }
}

#[test]
fn messages_with_a_constant_header_travel_without_it_and_arrive_whole() {
    let (ring, mut producer, mut consumer) = Ring::new(4096);
    let mut plain = vec![0xa1, 0xa2, 0xa3, 0xa4, 0, 0, 0, 1, 0x80, 0, 1, 2];
    plain.extend([0; 16]);
    plain.extend([0xa1, 0xa2, 0xa3, 0xa4, 0, 0, 0, 1, 9, 8, 7, 6, 5, 4, 3, 2]);
    for len in 0..=plain.len() {
        let mut travels = |message: &[u8]| {
            assert!(ring.send(&mut producer, message));
            producer.publish();
            let header = consumer.peek().unwrap().unwrap();
            assert_eq!(ring.receive(&mut consumer).unwrap(), message);
            header
        };
        let header = travels(&plain[..len]);
        let (kind, short) = if len < 32 { (Kind::Send, len) } else { (Kind::Plain, len - 28) };
        assert_eq!((header.kind(), header.len()), (Some(kind), short));
        // One bit elsewhere than in the credits or behind the second xid makes it another message.
        for at in (0..len.min(32)).filter(|at| !(8..12).contains(at)) {
            let mut other = plain[..len].to_vec();
            other[at] ^= 0x10;
            assert_eq!(travels(&other).kind(), Some(Kind::Send), "octet {at}");
        }
    }
}

/// What a queue pair does in `build_plain`, `build_whole` and `build_exposing`, and its harvest with what arrives, on a ring that
/// needs no mapping: in each place of the ring, given up now and then, behind a message that was pushed.
#[test]
fn messages_are_built_where_they_leave_and_copied_before_anybody_looks() {
    let (ring, mut producer, mut consumer) = Ring::new(8192);
    let count = if cfg!(miri) { 200 } else { 5000 };
    for number in 0..count {
        let is_exposing = number % 3 == 0;
        let (room, len) = match is_exposing {
            true => (Bind::LEN + WHOLE_LEN_MAX, Bind::LEN + number * 13 % (WHOLE_LEN_MAX + 1)),
            false => (PLAIN_LEN_MAX, 4 + number * 7 % (PLAIN_LEN_MAX - 3)),
        };
        let octet = |at: usize| (at * 5 + number) as u8;
        assert_eq!(producer.fits(room, &ring.head), Ok(true), "what came was taken");
        // SAFETY: there is room for it, and nothing is pushed before it is filled.
        let space = unsafe { producer.space(room) };
        if is_exposing {
            // The message first, then what it names.
            let (bind, message) = space.split_first_chunk_mut::<{ Bind::LEN }>().unwrap();
            (Bind::LEN..len).for_each(|at| message[at - Bind::LEN] = octet(at));
            *bind = std::array::from_fn(octet);
        } else {
            (0..len).for_each(|at| space[at] = octet(at));
        }
        if number % 5 == 0 {
            // Nothing of it leaves; what is pushed instead begins in the same place.
            assert!(ring.send(&mut producer, b"instead"));
            producer.publish();
            assert_eq!(ring.receive(&mut consumer).as_deref(), Some(&b"instead"[..]));
            continue;
        }
        producer.push_built(if is_exposing { Kind::SendBindRead } else { Kind::Plain }, number as u32, len);
        producer.publish();
        let header = consumer.peek().unwrap().unwrap();
        assert_eq!((header.len(), header.aux()), (len, number as u32));
        let mut copy = MaybeUninit::<[u64; (Bind::LEN + WHOLE_LEN_MAX).div_ceil(8)]>::uninit();
        let copy_len = size_of_val(&copy);
        // SAFETY: `header` is what `peek` returned, and the copy has room for it, which this fills.
        let octets = unsafe {
            consumer.payload(header, copy.as_mut_ptr().cast(), copy_len);
            std::slice::from_raw_parts(copy.as_ptr().cast::<u8>(), header.len())
        };
        consumer.advance(header);
        consumer.tell(&ring.head);
        assert!(octets.iter().copied().eq((0..len).map(octet)), "message {number}");
    }
}

#[test]
fn a_message_that_is_longer_than_the_room_for_it_is_not_copied() {
    let (ring, mut producer, consumer) = Ring::new(4096);
    let mut plain = [0u8; 68];
    plain[7] = 1;
    assert!(ring.send(&mut producer, &plain));
    producer.publish();
    let header = consumer.peek().unwrap().unwrap();
    assert_eq!(header.len(), 40);
    let mut target = [0xdd; 68];
    // SAFETY: `header` is what `peek` returned, and the target has at least the length given.
    let refused = unsafe { consumer.message(header, target.as_mut_ptr(), 67) };
    assert_eq!((refused, target), (Err(BadLength), [0xdd; 68]));
    // SAFETY: as above.
    assert_eq!(unsafe { consumer.message(header, target.as_mut_ptr(), 68) }, Ok(68));
    assert_eq!(target, plain);
}

#[test]
fn a_corrupt_header_is_refused() {
    let (ring, _, consumer) = Ring::new(4096);
    let word = |value: u64| {
        // SAFETY: the start of the ring.
        unsafe { AtomicU64::from_ptr(consumer.doorbell().cast_mut().cast()) }.set(value);
    };
    word(Header::new(Kind::Send, 4096, 0).0);
    assert_eq!(consumer.peek(), Err(Corrupt));
    word(0xf << 24);
    assert_eq!(consumer.peek().unwrap().unwrap().kind(), None);
    let _ = ring;
}

#[test]
fn a_consumer_that_claims_to_be_ahead_is_refused() {
    let (ring, mut producer, _) = Ring::new(4096);
    Word::set(&ring.head, 1 << 20);
    while producer.fits(100, &ring.head) == Ok(true) {
        assert!(ring.send(&mut producer, &[0; 100]));
    }
    assert_eq!(producer.fits(100, &ring.head), Err(BadHead));
}

#[test]
fn a_ring_holds_two_messages_of_the_largest_length() {
    assert_eq!(ring_len(1024, 16384), 16384);
    for len in [1, 4096, 262_144, 1 << 20] {
        assert!(u64::from(ring_len(len, 0)) >= 2 * u64::from(len) + 4 * LINE);
    }
}
