//! Slots of a session: each executes one request at a time, exactly once, and keeps its reply (RFC 8881 section 2.10.6).
//!
//! A slot is a word: the sequence id of its last request, and its [`SlotStage`]. Any reactor may take a request of any slot: a
//! compare-and-swap of the word decides who executes it, and who copies its kept reply. So the reply beside the word is never
//! waited for.
//!
//! ```text
//! sequence id + 1   Unused, Kept, Unkept ── claim ──▶ Running ── finish ──▶ Kept, Unkept
//! the same          Kept ── repeat ──▶ Repeating ── copied ──▶ Kept
//! ```
//!
//! A session that ends closes its slots, each in its word: so a request that another reactor takes at the same time finds the slot
//! closed, or is found running.

use crate::price;
use crate::stages::{Change, may_change};
use crate::sync::{AtomicU64, Mutex, Ordering};

/// What a slot does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotStage {
    /// It waits for its first request, whose sequence id is 1.
    Unused,
    /// Its request is executed.
    Running,
    /// It waits for the next request, and can repeat its reply.
    Kept,
    /// It waits for the next request. Its reply is gone.
    Unkept,
    /// Its reply is copied, for a retry.
    Repeating,
}

/// Every change of a slot's stage.
pub(crate) const CHANGES: [Change<SlotStage>; 9] = [
    (SlotStage::Unused, SlotStage::Running, "its first request"),
    (SlotStage::Kept, SlotStage::Running, "the next request: its client has the last reply"),
    (SlotStage::Unkept, SlotStage::Running, "the next request"),
    (SlotStage::Running, SlotStage::Kept, "it is answered, and the reply is kept"),
    (SlotStage::Running, SlotStage::Unkept, "it is answered, or never will be; the reply is not kept"),
    (SlotStage::Kept, SlotStage::Repeating, "a retry"),
    (SlotStage::Repeating, SlotStage::Kept, "the reply is copied, or the retry is another request"),
    (SlotStage::Unkept, SlotStage::Repeating, "a retry, compared with its request"),
    (SlotStage::Repeating, SlotStage::Unkept, "there is no reply to copy"),
];

/// A request, as its SEQUENCE says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRequest {
    /// Which slot.
    pub slot: u32,
    /// Its sequence id.
    pub sequence_id: u32,
    /// The highest slot that the client uses now.
    pub highest_slot: u32,
    /// Tells this request from others: a hash of who asks and of the arguments. A retry has the same one.
    pub fingerprint: u64,
}

/// What to do with a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Sequenced {
    /// Execute it, then [`SlotTable::finish`].
    New(SlotClaim),
    /// Answer it with the kept reply: [`SlotTable::repeat`].
    Retry(RepeatClaim),
    /// It was executed, and the reply is gone: its second operation answers NFS4ERR_RETRY_UNCACHED_REP, or its own error if it
    /// can have no other (RFC 8881 section 2.10.6.1.3).
    RetryUnkept,
}

/// The right and the duty to execute a slot's request.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the slot runs until it is finished"]
pub struct SlotClaim {
    slot: u32,
    sequence_id: u32,
}

/// The right and the duty to copy a slot's reply.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the slot repeats until its reply is copied"]
pub struct RepeatClaim {
    slot: u32,
    sequence_id: u32,
}

/// Why SEQUENCE fails. The slot is as it was (8881-2.10.6.1.2-a).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SequenceFault {
    /// NFS4ERR_BADSLOT.
    #[error("the slot is beyond the table")]
    BadSlot,
    /// NFS4ERR_BAD_HIGH_SLOT.
    #[error("the highest slot is beyond the table")]
    BadHighSlot,
    /// NFS4ERR_SEQ_MISORDERED.
    #[error("the slot expects another sequence id")]
    Misordered,
    /// NFS4ERR_DELAY: the request that this one repeats is still executed (8881-2.10.6.2-a), or the session is about to end.
    #[error("the request is being executed")]
    InProgress,
    /// NFS4ERR_SEQ_FALSE_RETRY.
    #[error("the sequence id is that of another request")]
    FalseRetry,
}

#[derive(Debug)]
struct Slot {
    word: AtomicU64,
    /// The last request's. Who has claimed the word reads and writes it.
    fingerprint: AtomicU64,
    /// The last request's reply, if the word says that it is kept.
    kept: Mutex<Vec<u8>>,
}

const fn pack(sequence_id: u32, stage: SlotStage) -> u64 {
    (sequence_id as u64) << 32 | stage as u64
}

/// In a slot's word, beside its stage: it takes no request.
const CLOSED: u64 = 1 << 8;

fn unpack(word: u64) -> (u32, SlotStage) {
    let stage = match word as u8 {
        0 => SlotStage::Unused,
        1 => SlotStage::Running,
        2 => SlotStage::Kept,
        3 => SlotStage::Unkept,
        _ => SlotStage::Repeating,
    };
    ((word >> 32) as u32, stage)
}

/// The slots of a session.
#[derive(Debug)]
pub struct SlotTable {
    slots: Box<[Slot]>,
    /// Octets of a reply that is kept, at most.
    kept_max: usize,
}

impl SlotTable {
    /// Makes `count` slots, at least one, that keep replies of `kept_max` octets (ca_maxresponsesize_cached).
    #[must_use]
    pub fn new(count: u32, kept_max: u32) -> SlotTable {
        let count = count.max(1);
        let slot = |_| Slot {
            word: AtomicU64::new(pack(0, SlotStage::Unused)),
            fingerprint: AtomicU64::new(0),
            kept: Mutex::new(Vec::new()),
        };
        SlotTable { slots: (0..count).map(slot).collect(), kept_max: kept_max as usize }
    }

    /// Octets of the heap that a table takes, at most.
    #[must_use]
    pub const fn memory_max(count: u32, kept_max: u32) -> u64 {
        // A vector of octets begins with eight.
        let kept = if kept_max < 8 { 8 } else { kept_max as u64 };
        price::piece(count as u64 * size_of::<Slot>() as u64) + count as u64 * price::piece(kept)
    }

    /// Returns how many slots there are.
    #[inline]
    #[must_use]
    pub fn count(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns the highest slot that a client may use, and should: sr_highest_slotid and sr_target_highest_slotid.
    #[inline]
    #[must_use]
    pub fn highest(&self) -> u32 {
        self.count() - 1
    }

    /// Takes a request of a slot.
    #[inline]
    pub fn sequence(&self, request: &SlotRequest) -> Result<Sequenced, SequenceFault> {
        let slot = self.slots.get(request.slot as usize).ok_or(SequenceFault::BadSlot)?;
        if request.highest_slot > self.highest() {
            return Err(SequenceFault::BadHighSlot);
        }
        loop {
            let word = slot.word.load(Ordering::Acquire);
            let (last, stage) = unpack(word);
            if word & CLOSED != 0 {
                return Err(SequenceFault::InProgress);
            }
            let next = if request.sequence_id == last.wrapping_add(1) {
                match stage {
                    SlotStage::Unused | SlotStage::Kept | SlotStage::Unkept => SlotStage::Running,
                    // A client that has not got its reply must not go on.
                    SlotStage::Running => return Err(SequenceFault::Misordered),
                    SlotStage::Repeating => return Err(SequenceFault::InProgress),
                }
            } else if request.sequence_id == last {
                match stage {
                    SlotStage::Kept | SlotStage::Unkept => SlotStage::Repeating,
                    SlotStage::Running | SlotStage::Repeating => return Err(SequenceFault::InProgress),
                    SlotStage::Unused => return Err(SequenceFault::Misordered),
                }
            } else {
                return Err(SequenceFault::Misordered);
            };
            let claimed = pack(request.sequence_id, next);
            if slot.word.compare_exchange(word, claimed, Ordering::AcqRel, Ordering::Acquire).is_err() {
                continue;
            }
            debug_assert!(may_change(&CHANGES, stage, next), "{stage:?} to {next:?}");
            return slot.claimed(request, stage, next == SlotStage::Running);
        }
    }

    /// Ends a request with its reply, which is kept if it is short enough; `None` if it is not to be kept, or will never be
    /// made.
    #[inline]
    pub fn finish(&self, claim: SlotClaim, reply: Option<&[u8]>) {
        let slot = &self.slots[claim.slot as usize];
        let stage = match reply.filter(|reply| reply.len() <= self.kept_max) {
            Some(reply) => {
                slot.with_kept(|kept| {
                    kept.clear();
                    // No more than a slot is said to take.
                    kept.reserve_exact(reply.len());
                    kept.extend_from_slice(reply);
                });
                SlotStage::Kept
            }
            None => SlotStage::Unkept,
        };
        slot.set(claim.sequence_id, SlotStage::Running, stage);
    }

    /// Copies the reply of a retried request.
    pub fn repeat<R>(&self, claim: RepeatClaim, copy: impl FnOnce(&[u8]) -> R) -> R {
        let slot = &self.slots[claim.slot as usize];
        let copied = slot.with_kept(|kept| copy(kept));
        slot.set(claim.sequence_id, SlotStage::Repeating, SlotStage::Kept);
        copied
    }

    /// Closes all slots: none takes a request from now on, and none copies a reply. `running`: requests that may be under way. `false`:
    /// there are more, and all slots are open as before.
    pub(crate) fn close(&self, mut running: usize) -> bool {
        let is_closed = self.slots.iter().position(|slot| !slot.close(&mut running));
        let Some(failed) = is_closed else { return true };
        self.slots[..failed].iter().for_each(Slot::reopen);
        false
    }

    /// Returns how many slots execute a request.
    #[must_use]
    pub fn running(&self) -> usize {
        let stages = self.slots.iter().map(|slot| unpack(slot.word.load(Ordering::Acquire)).1);
        stages.filter(|stage| *stage == SlotStage::Running).count()
    }

    /// Returns the stage of a slot, and the sequence id of its last request.
    #[must_use]
    pub fn stage(&self, slot: u32) -> Option<(u32, SlotStage)> {
        self.slots.get(slot as usize).map(|slot| unpack(slot.word.load(Ordering::Acquire)))
    }

    /// Returns the octets of all kept replies.
    #[must_use]
    pub fn kept_octets(&self) -> usize {
        self.slots.iter().map(|slot| slot.kept.try_lock().map_or(0, |kept| kept.capacity())).sum()
    }
}

impl Slot {
    /// What follows from a claim of the word, which was in `stage`. `is_new`: the request was not there before.
    #[inline]
    fn claimed(
        &self,
        request: &SlotRequest,
        stage: SlotStage,
        is_new: bool,
    ) -> Result<Sequenced, SequenceFault> {
        let SlotRequest { slot, sequence_id, fingerprint, .. } = *request;
        // Relaxed: claims of the word order what their claimants do.
        if is_new {
            self.fingerprint.store(fingerprint, Ordering::Relaxed);
            return Ok(Sequenced::New(SlotClaim { slot, sequence_id }));
        }
        let is_same = self.fingerprint.load(Ordering::Relaxed) == fingerprint;
        if is_same && stage == SlotStage::Kept {
            return Ok(Sequenced::Retry(RepeatClaim { slot, sequence_id }));
        }
        self.set(sequence_id, SlotStage::Repeating, stage);
        if is_same { Ok(Sequenced::RetryUnkept) } else { Err(SequenceFault::FalseRetry) }
    }

    /// Changes the stage of a slot that the caller has claimed. It stays closed if it is.
    #[inline]
    fn set(&self, sequence_id: u32, from: SlotStage, to: SlotStage) {
        debug_assert!(may_change(&CHANGES, from, to), "{from:?} to {to:?}");
        let before = self.word.fetch_add((to as u64).wrapping_sub(from as u64), Ordering::AcqRel);
        debug_assert_eq!(unpack(before), (sequence_id, from), "a word is changed by its claimant");
    }

    /// Closes it, unless its reply is being copied, or it executes a request and no more may run. One that may counts for one of
    /// `running`.
    fn close(&self, running: &mut usize) -> bool {
        loop {
            let word = self.word.load(Ordering::Acquire);
            let left = match unpack(word).1 {
                SlotStage::Unused | SlotStage::Kept | SlotStage::Unkept => Some(*running),
                SlotStage::Running => running.checked_sub(1),
                SlotStage::Repeating => None,
            };
            let Some(left) = left else { return false };
            let closed = word | CLOSED;
            if self.word.compare_exchange(word, closed, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                *running = left;
                return true;
            }
        }
    }

    fn reopen(&self) {
        self.word.fetch_and(!CLOSED, Ordering::AcqRel);
    }

    /// Looks at what is kept; the caller has claimed the word.
    fn with_kept<R>(&self, look: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        // This never waits: the word is claimed. A panic of another holder leaves whole values behind.
        let mut kept = self.kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        look(&mut kept)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// 8881-2.10.6.1-a: 0 follows the last number.
    #[test]
    fn sequence_ids_wrap_around_to_zero() {
        let table = SlotTable::new(1, 16);
        table.slots[0].word.store(pack(u32::MAX - 1, SlotStage::Unkept), Ordering::Relaxed);
        let request = |sequence_id| SlotRequest { slot: 0, sequence_id, highest_slot: 0, fingerprint: 0 };
        for sequence_id in [u32::MAX, 0, 1] {
            let Ok(Sequenced::New(claim)) = table.sequence(&request(sequence_id)) else {
                panic!("{sequence_id}")
            };
            table.finish(claim, None);
            assert_eq!(table.sequence(&request(sequence_id)), Ok(Sequenced::RetryUnkept));
            assert_eq!(table.sequence(&request(sequence_id.wrapping_add(2))), Err(SequenceFault::Misordered));
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    fn request(sequence_id: u32) -> SlotRequest {
        SlotRequest { slot: 0, sequence_id, highest_slot: 0, fingerprint: u64::from(sequence_id) }
    }

    /// Takes a request as a reactor does. Returns whether it executed it, and the reply that it got.
    fn take(table: &SlotTable, sequence_id: u32) -> (bool, Option<Vec<u8>>) {
        let reply = sequence_id.to_be_bytes();
        match table.sequence(&request(sequence_id)) {
            Ok(Sequenced::New(claim)) => {
                table.finish(claim, Some(&reply));
                (true, Some(reply.to_vec()))
            }
            Ok(Sequenced::Retry(claim)) => (false, Some(table.repeat(claim, <[u8]>::to_vec))),
            Ok(Sequenced::RetryUnkept) | Err(_) => (false, None),
        }
    }

    /// 8881-2.10.6.1-b: a request and its copy at another reactor are executed once, and hear the same.
    #[test]
    fn loom_a_request_and_its_copy_are_executed_once() {
        loom::model(|| {
            let table = Arc::new(SlotTable::new(1, 16));
            let other = Arc::clone(&table);
            let copy = thread::spawn(move || take(&other, 1));
            let (first, second) = (take(&table, 1), copy.join().unwrap());
            assert!(first.0 ^ second.0, "one of the two executes it");
            for reply in [first.1, second.1].into_iter().flatten() {
                assert_eq!(reply, 1_u32.to_be_bytes());
            }
        });
    }

    /// A late retry beside the next request never hears the next one's reply.
    #[test]
    fn loom_a_late_retry_never_gets_another_reply() {
        loom::model(|| {
            let table = Arc::new(SlotTable::new(1, 16));
            assert!(take(&table, 1).0);
            let other = Arc::clone(&table);
            let retry = thread::spawn(move || take(&other, 1));
            let next = take(&table, 2);
            let (executed, reply) = retry.join().unwrap();
            assert!(!executed);
            assert!(reply.is_none_or(|reply| reply == 1_u32.to_be_bytes()));
            // In some orders the next request is told to come again.
            assert!(next.0 || take(&table, 2).0);
        });
    }
}
