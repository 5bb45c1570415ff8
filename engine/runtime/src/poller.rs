//! A poller: the interface between a reactor and the engine that it drives.

use std::os::fd::RawFd;
use std::time::Duration;

/// One thing that a reactor polls: a connection manager with its completion queue, a mailbox, a store.
///
/// A tuple of pollers is a poller: each gets its turn in every pass, in order.
pub trait Poller {
    /// Does the work that is ready and returns the number of events handled; 0 means idle.
    ///
    /// Never blocks, never allocates in the steady state, and does a bounded amount of work: what is
    /// left waits for the next pass. Due timers are its work too.
    fn poll(&mut self, now: Duration) -> usize;

    /// When `poll` must be called next even if nothing happens, on the clock of `now`. A time in the
    /// past forbids sleep.
    fn next_timeout(&self) -> Option<Duration>;

    /// Prepares for sleep on [`Poller::descriptors`]. `false`: there is work already, do not sleep.
    ///
    /// After a `true`, anything that gives `poll` work makes a descriptor readable. A poller that
    /// cannot promise this returns `false` always. [`Poller::disarm`] follows, whatever it returned.
    fn arm(&mut self) -> bool;

    /// Ends what `arm` began. Harmless when nothing was begun.
    fn disarm(&mut self);

    /// Adds what becomes readable when there is work. Asked before each sleep, after `arm`.
    fn descriptors(&self, out: &mut Vec<RawFd>);

    /// Begins a graceful stop: refuse new work, finish what is under way. `poll` goes on being called.
    fn stop(&mut self, now: Duration);

    /// Whether nothing is under way any more, so that the reactor may end after a `stop`.
    ///
    /// In a group: nothing that came in here. What others carried here does not count, for they wait for it themselves; once `true`
    /// it stays so but for that, and `poll` goes on being called until it is so for all reactors of the group.
    fn is_drained(&self) -> bool;

    /// Begins to give back what belongs to other reactors of the group: drops stores and caches, returns what is borrowed.
    ///
    /// Called once, after `stop`, when all reactors of the group are drained, or the deadline has come. `poll` goes on being
    /// called, and takes back what others return.
    fn give_back(&mut self, now: Duration) {
        let _ = now;
    }

    /// Whether nothing of other reactors is held here any more, and each return of it was published. Asked after `give_back`.
    fn has_given_back(&self) -> bool {
        true
    }
}

impl<P: Poller + ?Sized> Poller for &mut P {
    #[inline]
    fn poll(&mut self, now: Duration) -> usize {
        (**self).poll(now)
    }

    fn next_timeout(&self) -> Option<Duration> {
        (**self).next_timeout()
    }

    fn arm(&mut self) -> bool {
        (**self).arm()
    }

    fn disarm(&mut self) {
        (**self).disarm();
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        (**self).descriptors(out);
    }

    fn stop(&mut self, now: Duration) {
        (**self).stop(now);
    }

    fn is_drained(&self) -> bool {
        (**self).is_drained()
    }

    fn give_back(&mut self, now: Duration) {
        (**self).give_back(now);
    }

    fn has_given_back(&self) -> bool {
        (**self).has_given_back()
    }
}

macro_rules! poller_for_tuple {
    ($($member:ident . $index:tt),+) => {
        impl<$($member: Poller),+> Poller for ($($member,)+) {
            #[inline]
            fn poll(&mut self, now: Duration) -> usize {
                let mut events = 0;
                $(events += self.$index.poll(now);)+
                events
            }

            fn next_timeout(&self) -> Option<Duration> {
                [$(self.$index.next_timeout()),+].into_iter().flatten().min()
            }

            // The first that has work ends the attempt; `disarm` is harmless for those after it.
            fn arm(&mut self) -> bool {
                true $(&& self.$index.arm())+
            }

            fn disarm(&mut self) {
                $(self.$index.disarm();)+
            }

            fn descriptors(&self, out: &mut Vec<RawFd>) {
                $(self.$index.descriptors(out);)+
            }

            fn stop(&mut self, now: Duration) {
                $(self.$index.stop(now);)+
            }

            fn is_drained(&self) -> bool {
                true $(&& self.$index.is_drained())+
            }

            fn give_back(&mut self, now: Duration) {
                $(self.$index.give_back(now);)+
            }

            fn has_given_back(&self) -> bool {
                true $(&& self.$index.has_given_back())+
            }
        }
    };
}

poller_for_tuple!(A.0, B.1);
poller_for_tuple!(A.0, B.1, C.2);

#[cfg(test)]
mod tests {
    use super::*;

    /// Reports what it was told to, and counts the calls.
    #[derive(Default)]
    struct Member {
        events: usize,
        timeout: Option<Duration>,
        has_work: bool,
        drained: bool,
        armed: bool,
        stopped: bool,
        descriptor: RawFd,
    }

    impl Poller for Member {
        fn poll(&mut self, _now: Duration) -> usize {
            self.events
        }
        fn next_timeout(&self) -> Option<Duration> {
            self.timeout
        }
        fn arm(&mut self) -> bool {
            self.armed = !self.has_work;
            self.armed
        }
        fn disarm(&mut self) {
            self.armed = false;
        }
        fn descriptors(&self, out: &mut Vec<RawFd>) {
            out.push(self.descriptor);
        }
        fn stop(&mut self, _now: Duration) {
            self.stopped = true;
        }
        fn is_drained(&self) -> bool {
            self.drained
        }
    }

    #[test]
    fn a_tuple_is_the_sum_of_its_members() {
        let second = Duration::from_secs(1);
        let a = Member { events: 2, timeout: Some(2 * second), descriptor: 7, ..Member::default() };
        let b =
            Member { events: 3, timeout: Some(second), descriptor: 8, drained: true, ..Member::default() };
        let mut pair = (a, b);
        assert_eq!(pair.poll(second), 5);
        assert_eq!(pair.next_timeout(), Some(second));
        let mut descriptors = Vec::new();
        pair.descriptors(&mut descriptors);
        assert_eq!(descriptors, [7, 8]);
        pair.stop(second);
        assert!(pair.0.stopped && pair.1.stopped);
        assert!(!pair.is_drained());
        pair.0.drained = true;
        assert!(pair.is_drained());
        assert_eq!((Member::default(), Member::default(), Member::default()).next_timeout(), None);
    }

    #[test]
    fn a_tuple_sleeps_only_if_all_members_can() {
        let mut three = (Member::default(), Member::default(), Member::default());
        assert!(three.arm());
        three.disarm();
        three.1.has_work = true;
        assert!(!three.arm());
        three.disarm();
        assert!(!three.0.armed && !three.1.armed && !three.2.armed);
    }
}
