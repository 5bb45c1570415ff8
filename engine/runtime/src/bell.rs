//! The bell of a reactor: wakes it when others have published something for it.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::event::Event;
use crate::handshake::{self, Handshake};

/// Wakes one reactor. Clones are the same bell: the reactor arms it, others ring it.
///
/// One for each reactor, not for each lane: the lanes are what it looks at between [`Bell::arm`] and its sleep.
#[derive(Clone, Debug)]
pub struct Bell {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    handshake: Handshake,
    event: Event,
    /// Whether the reactor ever sleeps. If not, to ring costs nothing.
    may_sleep: bool,
}

impl Bell {
    /// A bell for a reactor that sleeps, or never does. Fails when the process has no descriptor left.
    pub fn new(may_sleep: bool) -> io::Result<Bell> {
        let shared = Shared { handshake: Handshake::new(), event: Event::new()?, may_sleep };
        Ok(Bell { shared: Arc::new(shared) })
    }

    /// Wakes the reactor if it sleeps, or is about to. Call it after the publications, once for all of them.
    ///
    /// Costs a full fence, and a system call when the reactor sleeps; nothing for one that never does.
    #[inline]
    pub fn ring(&self) {
        Bell::ring_each([self]);
    }

    /// Rings several bells behind one fence.
    #[inline]
    pub fn ring_each<'a>(bells: impl IntoIterator<Item = &'a Bell>) {
        let mut is_fenced = false;
        for bell in bells {
            if !bell.shared.may_sleep {
                continue;
            }
            if !is_fenced {
                handshake::fence_published();
                is_fenced = true;
            }
            if bell.shared.handshake.must_wake_fenced() {
                bell.shared.event.signal();
            }
        }
    }

    /// The reactor is about to sleep. It must look at its lanes once more after this, and not sleep if one has something.
    pub fn arm(&self) {
        debug_assert!(self.shared.may_sleep, "a reactor that never sleeps is not rung for");
        self.shared.handshake.arm();
    }

    /// The reactor is awake. Harmless when it was not armed.
    pub fn disarm(&self) {
        // Who rings may be between its decision and its signal. Then the signal comes after this, and costs one sleep that
        // ends at once.
        if self.shared.handshake.disarm() {
            self.shared.event.clear();
        }
    }

    /// Becomes readable when somebody rings, between `arm` and `disarm`.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.shared.event.descriptor()
    }
}

// Not under loom: its atomics work only inside a model, and the handshake has one of its own, the lane another.
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::lane::lane;

    /// Whether a descriptor is readable within `patience` ms.
    fn is_readable(descriptor: RawFd, patience: i32) -> bool {
        let mut entry = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, readable and writable, and the count says so.
        unsafe { libc::poll(&raw mut entry, 1, patience) == 1 }
    }

    #[test]
    fn only_an_armed_bell_signals_and_only_once() {
        let bell = Bell::new(true).unwrap();
        bell.ring();
        assert!(!is_readable(bell.descriptor(), 0), "awake: no signal");
        bell.arm();
        assert!(!is_readable(bell.descriptor(), 0));
        bell.clone().ring();
        assert!(is_readable(bell.descriptor(), 0));
        bell.disarm();
        assert!(!is_readable(bell.descriptor(), 0), "cleared");
        bell.ring();
        assert!(!is_readable(bell.descriptor(), 0), "awake again");
    }

    #[test]
    fn one_round_rings_all_that_sleep_and_no_other() {
        let bells = [true, false, true, true].map(|may_sleep| Bell::new(may_sleep).unwrap());
        bells[0].arm();
        bells[3].arm();
        Bell::ring_each(&bells);
        let readable: Vec<_> = bells.iter().map(|bell| is_readable(bell.descriptor(), 0)).collect();
        assert_eq!(readable, [true, false, false, true]);
    }

    #[test]
    fn a_reader_that_sleeps_between_values_hears_of_each() {
        const VALUES: u32 = 5000;
        let (mut writer, mut reader) = lane(4);
        let bell = Bell::new(true).unwrap();
        let ringer = bell.clone();
        let writing = std::thread::spawn(move || {
            for value in 0..VALUES {
                while writer.push(value).is_err() {
                    std::thread::yield_now();
                }
                writer.publish();
                ringer.ring();
            }
        });
        let mut next = 0;
        while next < VALUES {
            while let Some(value) = reader.pop() {
                assert_eq!(value, next);
                next += 1;
            }
            if next < VALUES {
                bell.arm();
                if reader.is_empty() {
                    assert!(is_readable(bell.descriptor(), 20_000), "a wake-up was lost");
                }
                bell.disarm();
            }
        }
        writing.join().unwrap();
    }
}
