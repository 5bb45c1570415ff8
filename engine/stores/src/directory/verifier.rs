//! The write verifier of a directory, one for all stores of it.
//!
//! Several reactors may serve the same directory, each by a store of its own. To a client they are one server, whose verifier
//! says whether written and uncommitted data may have been lost since (RFC 1813 section 3.3.7). So all stores have one verifier,
//! and a loss that any of them notices changes it.

use std::hash::{BuildHasher, RandomState};
#[cfg(not(loom))]
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

#[cfg(loom)]
use loom::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use stag_vfs::StoreVerifier;

/// The write verifier of a directory. Clones are the same one: give them to the stores of all reactors.
#[derive(Clone, Debug)]
pub struct WriteVerifier {
    shared: Arc<Common>,
}

#[derive(Debug)]
struct Common {
    /// The verifier, as long as nothing was lost.
    base: u64,
    /// How often data may have been lost.
    losses: AtomicU64,
    /// How often a store of the directory changed names or attributes.
    changes: AtomicU64,
}

impl Default for WriteVerifier {
    /// One that no earlier run had, nor any other directory.
    fn default() -> WriteVerifier {
        WriteVerifier {
            shared: Arc::new(Common {
                base: RandomState::new().hash_one(0),
                losses: AtomicU64::new(0),
                changes: AtomicU64::new(0),
            }),
        }
    }
}

impl WriteVerifier {
    /// How often one of the stores changed names or attributes. What another reactor has answered is counted.
    pub(super) fn changes(&self) -> u64 {
        // Acquire pairs with the release in `note_change`.
        self.shared.changes.load(Ordering::Acquire)
    }

    /// A store has changed names or attributes, and answers that next.
    pub(super) fn note_change(&self) {
        self.shared.changes.fetch_add(1, Ordering::Release);
    }

    /// What Replies carry now.
    pub(super) fn current(&self) -> StoreVerifier {
        // Acquire pairs with the release in `note`: who sees what followed a loss, sees the loss.
        let losses = self.shared.losses.load(Ordering::Acquire);
        self.shared.base.wrapping_add(losses).to_be_bytes()
    }
}

/// Counts losses for one part of a store.
#[derive(Debug)]
pub(super) struct LossCount {
    own: u64,
    verifier: WriteVerifier,
}

impl LossCount {
    pub(super) fn new(verifier: &WriteVerifier) -> LossCount {
        LossCount { own: 0, verifier: verifier.clone() }
    }

    /// Data may have been lost: the verifier changes at once, before anybody can be told of what happened after.
    pub(super) fn note(&mut self) {
        self.own += 1;
        // Release pairs with the acquire in `current`.
        self.verifier.shared.losses.fetch_add(1, Ordering::Release);
    }

    /// How often it noted a loss.
    pub(super) fn own(&self) -> u64 {
        self.own
    }
}

// Not under loom: its atomics work only inside a model.
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_loss_of_one_store_changes_the_verifier_of_all() {
        let verifier = WriteVerifier::default();
        let (mut one, mut other) = (LossCount::new(&verifier), LossCount::new(&verifier));
        let mut seen = vec![verifier.current()];
        for part in [&mut one, &mut other] {
            part.note();
            assert!(!seen.contains(&verifier.current()));
            assert_eq!(verifier.clone().current(), verifier.current());
            seen.push(verifier.current());
        }
        assert_eq!((one.own(), other.own()), (1, 1));
        assert_ne!(WriteVerifier::default().current(), WriteVerifier::default().current());
    }
}

#[cfg(all(loom, test))]
mod loom_tests {
    use loom::thread;

    use super::*;

    /// Two stores note losses at the same time: none of them is forgotten, and who looks meanwhile never sees a verifier again
    /// that it saw change.
    #[test]
    fn loom_no_loss_is_forgotten() {
        loom::model(|| {
            let verifier = WriteVerifier::default();
            let base = verifier.shared.base;
            let losses =
                move |verifier: &WriteVerifier| u64::from_be_bytes(verifier.current()).wrapping_sub(base);
            let stores: Vec<_> = (0..2)
                .map(|_| {
                    let mut part = LossCount::new(&verifier);
                    thread::spawn(move || {
                        part.note();
                        part.own()
                    })
                })
                .collect();
            let (first, second) = (losses(&verifier), losses(&verifier));
            assert!(first <= second && second <= 2, "{first}, then {second}");
            for store in stores {
                assert_eq!(store.join().unwrap(), 1);
            }
            assert_eq!(losses(&verifier), 2);
        });
    }

    /// What another reactor does after a loss, and tells of, has the new verifier: so a COMMIT that is answered there after
    /// the loss tells the client to write again.
    #[test]
    fn loom_what_follows_a_loss_has_the_new_verifier() {
        loom::model(|| {
            let verifier = WriteVerifier::default();
            let before = verifier.current();
            let told = Arc::new(AtomicU64::new(0));
            let (mut part, tell) = (LossCount::new(&verifier), told.clone());
            let store = thread::spawn(move || {
                part.note();
                // As a lane does.
                tell.store(1, Ordering::Release);
            });
            if told.load(Ordering::Acquire) == 1 {
                assert_ne!(verifier.current(), before);
            }
            store.join().unwrap();
        });
    }
}
