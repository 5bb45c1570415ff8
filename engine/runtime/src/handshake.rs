//! The handshake between a sleeping receiver and the senders that give it work.
//!
//! The danger is a lost wake-up: the sender checks before the receiver goes to sleep, and the receiver checks
//! before the work is there. Both sides write, then fence, then read what the other wrote, so at least one of
//! them sees the other:
//!
//! ```text
//! receiver                          sender
//! asleep = true                     work is published
//! fence(SeqCst)                     fence(SeqCst)
//! look for work; none: sleep        asleep? take it and wake
//! ```
//!
//! The loom test below tries every interleaving.

use crate::sync::{AtomicBool, Ordering, fence};

/// Whether the receiver sleeps, or is about to.
#[derive(Debug)]
pub(crate) struct Handshake {
    /// Set by the receiver; taken back by the receiver, or by the one sender that will wake it.
    asleep: AtomicBool,
}

impl Handshake {
    pub(crate) fn new() -> Handshake {
        Handshake { asleep: AtomicBool::new(false) }
    }

    /// The receiver is about to sleep. It must look for work once more after this.
    pub(crate) fn arm(&self) {
        // Relaxed: the fence orders it before the receiver's last look for work.
        self.asleep.store(true, Ordering::Relaxed);
        // Pairs with the fence in `must_wake`.
        fence(Ordering::SeqCst);
    }

    /// The receiver is awake. `true`: a sender has signalled, or is about to.
    pub(crate) fn disarm(&self) -> bool {
        // Acquire pairs with the release in `must_wake`: what that sender published is seen.
        !self.asleep.swap(false, Ordering::Acquire)
    }

    /// A sender has published work. `true`: it must signal, and is the only one who must.
    #[inline]
    pub(crate) fn must_wake(&self) -> bool {
        fence_published();
        self.must_wake_fenced()
    }

    /// As `must_wake`, by a sender that called [`fence_published`] since it published.
    #[inline]
    pub(crate) fn must_wake_fenced(&self) -> bool {
        // Release pairs with the acquire in `disarm`.
        self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Release)
    }
}

/// Orders what a sender published before its look at who sleeps: one fence for any number of receivers.
#[inline]
pub(crate) fn fence_published() {
    // Pairs with the fence in `Handshake::arm`.
    fence(Ordering::SeqCst);
}

#[cfg(all(loom, test))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    use super::*;

    #[derive(Default)]
    struct World {
        /// What the senders publish, with no ordering of its own.
        work: [AtomicUsize; 2],
        signals: AtomicUsize,
    }

    impl World {
        fn work(&self) -> usize {
            self.work.iter().map(|work| work.load(Ordering::Relaxed)).sum()
        }
    }

    fn send(world: &World, handshake: &Handshake, sender: usize) {
        world.work[sender].store(1, Ordering::Relaxed);
        if handshake.must_wake() {
            world.signals.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A receiver that decided to sleep is signalled by one sender at least, in every order of the senders.
    #[test]
    fn loom_no_wake_up_is_lost() {
        for senders in 1..=2 {
            loom::model(move || {
                let shared = Arc::new((World::default(), Handshake::new()));
                let threads: Vec<_> = (0..senders)
                    .map(|sender| {
                        let shared = shared.clone();
                        thread::spawn(move || send(&shared.0, &shared.1, sender))
                    })
                    .collect();

                let (world, handshake) = &*shared;
                handshake.arm();
                let found = world.work();
                threads.into_iter().for_each(|thread| thread.join().unwrap());

                let signals = world.signals.load(Ordering::Relaxed);
                assert!(signals <= 1, "one wake-up for one sleep");
                assert!(found == senders || signals == 1, "asleep with work and no signal");
                assert_eq!(handshake.disarm(), signals == 1);
            });
        }
    }

    /// A receiver that wakes for another reason sees the work, or is signalled in its next sleep.
    #[test]
    fn loom_the_next_sleep_is_safe_too() {
        loom::model(|| {
            let shared = Arc::new((World::default(), Handshake::new()));
            let sender = {
                let shared = shared.clone();
                thread::spawn(move || send(&shared.0, &shared.1, 0))
            };

            let (world, handshake) = &*shared;
            handshake.arm();
            handshake.disarm();
            handshake.arm();
            let found = world.work();
            sender.join().unwrap();
            assert!(found == 1 || world.signals.load(Ordering::Relaxed) == 1);
        });
    }
}
