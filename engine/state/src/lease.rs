//! Leases of clients: renewed by any request, lapsed after a term, expired when others want what the client holds.
//!
//! A lapsed client keeps what it holds as a courtesy, until a conflict or a shortage ends it (RFC 8881 section 8.4.3 allows it).
//! The lease is one word, so that any reactor renews it, and of a renewal and an expiry at once exactly one succeeds.

use std::time::Duration;

use crate::back::BackPaths;
use crate::stages::{Change, may_change};
use crate::sync::{AtomicBool, AtomicU64, Ordering};

/// What a lease is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStage {
    /// The client was heard within the term.
    Active,
    /// It was not. It keeps what it holds until somebody wants it.
    Courtesy,
    /// What it held is lost, and stays so: the client starts again.
    Expired,
}

/// Every change of a lease's stage.
pub(crate) const CHANGES: [Change<LeaseStage>; 5] = [
    (LeaseStage::Active, LeaseStage::Active, "it is renewed"),
    (LeaseStage::Active, LeaseStage::Courtesy, "the term is over"),
    (LeaseStage::Courtesy, LeaseStage::Active, "it is renewed, with nothing lost"),
    (LeaseStage::Courtesy, LeaseStage::Expired, "a conflict, or no room for others"),
    (LeaseStage::Active, LeaseStage::Expired, "the client ends it, or its next incarnation does"),
];

/// NFS4ERR_EXPIRED, or NFS4ERR_BADSESSION from SEQUENCE: the client must start again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lease has expired")]
pub struct LeaseExpired;

/// The lease of a client, and whether it has reclaimed: what each reactor must know of it.
#[derive(Debug)]
pub struct Lease {
    word: AtomicU64,
    /// It said RECLAIM_COMPLETE.
    has_reclaimed: AtomicBool,
    /// The back channels of its sessions.
    back_paths: BackPaths,
}

const fn pack(second: u64, stage: LeaseStage) -> u64 {
    second << 2 | stage as u64
}

const fn unpack(word: u64) -> (u64, LeaseStage) {
    let stage = match word & 3 {
        0 => LeaseStage::Active,
        1 => LeaseStage::Courtesy,
        _ => LeaseStage::Expired,
    };
    (word >> 2, stage)
}

impl Lease {
    /// A lease that begins at `now`, a time since any fixed moment.
    #[must_use]
    pub fn new(now: Duration) -> Lease {
        let word = AtomicU64::new(pack(now.as_secs(), LeaseStage::Active));
        Lease { word, has_reclaimed: AtomicBool::new(false), back_paths: BackPaths::default() }
    }

    /// Renews it: any request of the client does. Once a second it writes, else it only reads.
    #[inline]
    pub fn renew(&self, now: Duration) -> Result<(), LeaseExpired> {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let (heard, stage) = unpack(word);
            match stage {
                LeaseStage::Expired => return Err(LeaseExpired),
                LeaseStage::Active if heard >= now.as_secs() => return Ok(()),
                _ => {}
            }
            debug_assert!(may_change(&CHANGES, stage, LeaseStage::Active));
            let renewed = pack(now.as_secs(), LeaseStage::Active);
            match self.word.compare_exchange(word, renewed, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(()),
                Err(found) => word = found,
            }
        }
    }

    /// Returns its stage at `now`, with a term of `term`: a lease that was not renewed becomes a courtesy.
    pub fn look(&self, now: Duration, term: Duration) -> LeaseStage {
        let word = self.word.load(Ordering::Acquire);
        let (heard, stage) = unpack(word);
        if stage != LeaseStage::Active || now.as_secs().saturating_sub(heard) <= term.as_secs() {
            return stage;
        }
        let lapsed = pack(heard, LeaseStage::Courtesy);
        match self.word.compare_exchange(word, lapsed, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => LeaseStage::Courtesy,
            Err(found) => unpack(found).1,
        }
    }

    /// Expires a lapsed lease, for a conflict. `true` to exactly one of those who ask, who then frees what the client held;
    /// `false` if it is renewed, or another one did.
    pub fn expire(&self, now: Duration, term: Duration) -> bool {
        if self.look(now, term) != LeaseStage::Courtesy {
            return false;
        }
        let word = self.word.load(Ordering::Acquire);
        let (heard, stage) = unpack(word);
        let expired = pack(heard, LeaseStage::Expired);
        stage == LeaseStage::Courtesy
            && self.word.compare_exchange(word, expired, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Ends it at once: the client said so. `true` to exactly one.
    pub fn end(&self) -> bool {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let (heard, stage) = unpack(word);
            if stage == LeaseStage::Expired {
                return false;
            }
            let ended = pack(heard, LeaseStage::Expired);
            match self.word.compare_exchange(word, ended, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(found) => word = found,
            }
        }
    }

    /// The back channels of the client's sessions.
    #[must_use]
    pub const fn back_paths(&self) -> &BackPaths {
        &self.back_paths
    }

    /// Tells whether the client said RECLAIM_COMPLETE.
    #[must_use]
    pub fn has_reclaimed(&self) -> bool {
        self.has_reclaimed.load(Ordering::Acquire)
    }

    /// The client says RECLAIM_COMPLETE. `false`: it did before.
    pub(crate) fn reclaim_complete(&self) -> bool {
        !self.has_reclaimed.swap(true, Ordering::AcqRel)
    }

    /// Returns the time when the client was last heard, to the second.
    #[must_use]
    pub fn heard(&self) -> Duration {
        Duration::from_secs(unpack(self.word.load(Ordering::Acquire)).0)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// 8881-8.4.3-a: of a renewal and an expiry of a lapsed lease exactly one succeeds.
    #[test]
    fn loom_a_lapsed_lease_is_renewed_or_expired() {
        loom::model(|| {
            let (now, term) = (Duration::from_secs(1000), Duration::from_secs(90));
            let lease = Arc::new(Lease::new(Duration::ZERO));
            let other = Arc::clone(&lease);
            let renewal = thread::spawn(move || other.renew(now).is_ok());
            let is_expired = lease.expire(now, term);
            assert!(renewal.join().unwrap() ^ is_expired);
        });
    }

    /// 8881-18.51.3-a: of two RECLAIM_COMPLETEs one is the first, and who has seen that the client reclaimed goes on seeing it.
    #[test]
    fn loom_a_client_reclaims_once() {
        loom::model(|| {
            let lease = Arc::new(Lease::new(Duration::ZERO));
            let other = Arc::clone(&lease);
            let second = thread::spawn(move || {
                let had_reclaimed = other.has_reclaimed();
                let is_first = other.reclaim_complete();
                assert!(!(had_reclaimed && is_first));
                is_first
            });
            let is_first = lease.reclaim_complete();
            assert!(lease.has_reclaimed());
            assert!(is_first ^ second.join().unwrap());
        });
    }

    /// Of two that expire it, one frees what the client held.
    #[test]
    fn loom_one_expires_a_lease() {
        loom::model(|| {
            let (now, term) = (Duration::from_secs(1000), Duration::from_secs(90));
            let lease = Arc::new(Lease::new(Duration::ZERO));
            let other = Arc::clone(&lease);
            let second = thread::spawn(move || other.expire(now, term));
            assert!(lease.expire(now, term) ^ second.join().unwrap());
        });
    }
}
