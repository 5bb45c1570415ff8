//! The connected half of a queue pair: both rings, the peer's part, and the span of our accesses to its memory.

use std::os::fd::AsFd;

use stag_memory::Buf;

use super::bells::Bell;
use super::exposure::{Access, Bind, Binds, Refusal};
use super::mapped::MappedCharge;
use super::order::{self, Word};
use super::pages::{Layout, Part};
use super::rendezvous;
use super::ring::{Consumer, Kind, Producer};
use super::sockets::Socket;
use crate::{Handle, RemoteSegment, WorkError};

/// Why a side closed, as it tells the peer in `closed`. 0 is open.
pub(super) mod closed {
    /// In order.
    pub(in crate::shm) const ORDERLY: u32 = 1;
    /// The peer sent a message that was larger than the Receive for it.
    pub(in crate::shm) const LENGTH: u32 = 2;
}

/// What we know of a peer, with its memory mapped.
pub(super) struct MappedPeer {
    pub(super) part: Part,
    /// Counts the part.
    pub(super) charge: MappedCharge,
    pub(super) binds: Binds,
    pub(super) bell: Bell,
    pub(super) may_sleep: bool,
}

/// The connected half of a queue pair. Rings point into the parts, which live as long.
pub(super) struct Link {
    pub(super) consumer: Consumer,
    pub(super) producer: Producer,
    pub(super) ours: Part,
    pub(super) theirs: Part,
    _charge: MappedCharge,
    pub(super) binds: Binds,
    /// Rung when the peer does not look at our ring.
    pub(super) bell: Bell,
    /// Whether the peer may sleep.
    may_sleep: bool,
    /// Its sleep that we woke it from last, by what it calls it.
    woken: u32,
    /// How often we went to sleep, and how often the peer woke us.
    pub(super) sleeps: u32,
    wakes: u32,
    /// How many of our arenas the peer knows.
    pub(super) regions: usize,
    /// Our epoch; odd within a span of accesses.
    epoch: u64,
}

impl Link {
    pub(super) fn new(ours: Part, peer: MappedPeer, regions: usize) -> Link {
        let MappedPeer { part: theirs, charge, binds, bell, may_sleep } = peer;
        let (Layout { ring_len: our_len, .. }, Layout { ring_len: their_len, .. }) =
            (ours.layout(), theirs.layout());
        // SAFETY: both rings are mapped twice, back to back, by `Part`, and stay so: the parts are moved into
        // the same `Link`, which drops them with the rings. `ring_len` is a power of two. Ours is
        // writable, and this producer the only one that writes there.
        let (consumer, producer) =
            unsafe { (Consumer::new(theirs.ring(), their_len), Producer::new(ours.ring(), our_len)) };
        let (woken, sleeps, wakes) = (0, 0, 0);
        let epoch = 0;
        Link {
            consumer,
            producer,
            ours,
            theirs,
            _charge: charge,
            binds,
            bell,
            may_sleep,
            woken,
            sleeps,
            wakes,
            regions,
            epoch,
        }
    }

    /// Rings the doorbell for what was pushed, and whatever else the peer listens to.
    #[inline(always)]
    pub(super) fn publish(&mut self, socket: &Option<Socket>) {
        self.producer.publish();
        self.bell.ring();
        self.wake(socket);
    }

    /// Our part.
    pub(super) fn ours(&self) -> &Part {
        &self.ours
    }

    /// Wakes the peer if it sleeps, once for each time. After a doorbell, or after news for a producer that waits.
    #[inline(always)]
    pub(super) fn wake(&mut self, socket: &Option<Socket>) {
        if self.may_sleep {
            self.wake_sleeper(socket.as_ref());
        }
    }

    #[inline(never)]
    fn wake_sleeper(&mut self, socket: Option<&Socket>) {
        if let Some(sleep) = order::asleep(self.theirs.sleeping())
            && sleep != self.woken
            && let Some(socket) = socket
        {
            self.woken = sleep;
            rendezvous::wake(socket.as_fd());
        }
    }

    /// The peer woke us. `false`: more often than we slept.
    pub(super) fn count_wake(&mut self) -> bool {
        // From 0 on, in the same steps: what is between them may still come.
        let is_expected = self.wakes != self.sleeps;
        self.wakes = order::next_sleep(self.wakes);
        is_expected
    }

    #[inline(always)]
    fn begin_span(&mut self) {
        if self.epoch.is_multiple_of(2) {
            self.epoch += 1;
            order::access_begin(self.ours.epoch(), self.epoch);
        }
    }

    /// Whether accesses to the peer's memory may be under way, for all that the peer knows.
    #[inline(always)]
    pub(super) fn is_in_span(&self) -> bool {
        !self.epoch.is_multiple_of(2)
    }

    #[inline(always)]
    pub(super) fn end_span(&mut self) {
        if !self.epoch.is_multiple_of(2) {
            self.epoch += 1;
            order::access_end(self.ours.epoch(), self.epoch);
        }
    }

    /// Pushes a message for which there is room. The first of a pass leaves at once.
    #[inline(always)]
    pub(super) fn send(&mut self, buf: &Buf, invalidate: Option<Handle>) {
        // SAFETY: the buffer is readable for its length; the caller asked `fits` for it.
        unsafe {
            match invalidate {
                None => self.producer.push_message(buf.as_ptr(), buf.len()),
                Some(Handle(handle)) => {
                    self.producer.push(Kind::SendInvalidate, handle, buf.as_ptr(), buf.len());
                }
            }
        }
        if self.producer.is_due() {
            // First, so that a peer that fences what this batch did not invalidate need not wait.
            self.end_span();
            self.producer.publish_early();
        }
    }

    /// Makes sure of room to build a message of at most `len` octets; looks how far the consumer is if that takes it. `false`: there is none.
    #[inline(always)]
    pub(super) fn find_space(&mut self, len: usize) -> bool {
        // A consumer that claims the impossible is found out by the general way.
        self.producer.fits(len, self.theirs.head()) == Ok(true)
    }

    /// Pushes the message that was built in the space given last. The first of a pass leaves at once.
    #[inline(always)]
    pub(super) fn send_built(&mut self, kind: Kind, aux: u32, len: usize) {
        self.producer.push_built(kind, aux, len);
        if self.producer.is_due() {
            self.end_span();
            self.producer.publish_early();
        }
    }

    /// Pushes a BIND for which there is room. It leaves with the message that names it.
    #[inline(always)]
    pub(super) fn announce(&mut self, kind: Kind, handle: Handle, bind: Bind) {
        let bytes = bind.encode();
        // SAFETY: the array is readable for its length; the caller asked `fits` for it.
        unsafe { self.producer.push(kind, handle.0, bytes.as_ptr(), bytes.len()) };
        if self.producer.is_full() {
            self.producer.publish_early();
        }
    }

    /// Where the peer's memory is, for an access within the span that this starts.
    #[inline(always)]
    pub(super) fn access(
        &mut self,
        at: RemoteSegment,
        len: usize,
        access: Access,
    ) -> Result<*mut u8, WorkError> {
        self.begin_span();
        self.binds
            .access(at.handle, at.offset, len, access, &self.theirs)
            .map_err(|refusal| self.refused(refusal))
    }

    /// Whether memory that was just copied was exposed all the time; otherwise the copy is worth nothing.
    #[inline(always)]
    pub(super) fn check_read(&self, handle: Handle) -> Result<(), WorkError> {
        if self.binds.is_alive(handle, &self.theirs) { Ok(()) } else { Err(self.refused(Refusal::Dead)) }
    }

    #[cold]
    fn refused(&self, refusal: Refusal) -> WorkError {
        match refusal {
            // A peer that closes kills all it exposed.
            Refusal::Dead if is_closed(&self.theirs) => WorkError::Flushed,
            Refusal::Dead | Refusal::Access => WorkError::RemoteAccess,
        }
    }
}

/// Whether the owner of `part` has closed.
fn is_closed(part: &Part) -> bool {
    closed_code(part) != 0
}

/// Why the owner of `part` has closed, by [`closed`]; 0 if it has not.
pub(super) fn closed_code(part: &Part) -> u32 {
    // Acquire: pairs with the release in `QueuePair::close`.
    part.closed().get_acquire()
}
