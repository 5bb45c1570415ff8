//! One queue pair: its two queues, its exposures, and its state.
//!
//! ```text
//! connecting side  Resolving ─▶ Routing ─▶ Connecting ─▶ (Settling) ─┐
//!                                                                    ├─▶ Open ─▶ Failing
//! listening side                             Prepared ─▶ Accepted ───┘
//!
//! any of them, for any reason                Closing ─▶ Gone
//! ```
//!
//! Memory that the device may touch is given back when its work request completes; the rest is given back when the
//! queue pair is destroyed, after which no device accesses it.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use stag_rdma_core_sys as sys;

use super::domain::Domain;
use super::exposure::Exposures;
use super::identifiers::CmId;
use super::plain::PlainBuffers;
use super::receives::{ReceiveQueue, SharedReceivePool};
use super::sends::{self, SendQueue};
use super::work::Batch;
use crate::slots::Numbered;
use crate::{Completion, DisconnectReason, Peer, QueuePairCapacity, QueuePairId};

/// Where a queue pair is in its life, and so what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// For the address to be resolved: then it is known which device leads there, and the queue pair is made.
    Resolving,
    /// For the route.
    Routing,
    /// For the other side's answer.
    Connecting,
    /// For a moment to pass, on siw.
    Settling,
    /// For our user's `accept`.
    Prepared,
    /// For the connection manager to say that it is there, or for the first message.
    Accepted,
    /// For nothing: it works.
    Open,
    /// Requests were flushed: for the connection manager to say why.
    Failing,
    /// For the device to give back what is posted.
    Closing,
    /// For the user to harvest what it gave back.
    Gone,
}

/// What a queue pair being connected still needs.
pub(super) struct Dialing {
    /// Ours until it was sent, then the peer's.
    pub(super) private_data: Vec<u8>,
}

/// A queue pair. Fields that let the device or the peer touch memory are declared before those that own it; `destroy` has
/// ended all access before.
pub(super) struct QueuePair {
    pub(super) cm: Option<CmId>,
    pub(super) exposures: Exposures,
    pub(super) sends: SendQueue,
    pub(super) receives: ReceiveQueue,
    /// `None` before there is a device.
    pub(super) domain: Option<Rc<Domain>>,
    pub(super) id: QueuePairId,
    pub(super) phase: Phase,
    pub(super) capacity: QueuePairCapacity,
    pub(super) peer: Peer,
    /// Why it ends.
    pub(super) reason: Option<DisconnectReason>,
    /// When the phase has lasted too long; set at the first look.
    pub(super) deadline: Option<Duration>,
    pub(super) dialing: Option<Dialing>,
    /// What the other side of a connection request offered: Reads that it takes, Reads that it makes.
    pub(super) offered: (u8, u8),
    /// Whether it ever was open, and whether the user has heard of that.
    pub(super) is_established: bool,
    pub(super) is_announced: bool,
    /// Whether a message came since silent peers were looked for, and whether one ever did.
    pub(super) is_heard: bool,
    pub(super) was_heard: bool,
    /// The poll in which a message came as a completion last: none behind it is shown in place then.
    pub(super) left_in: u64,
    /// Completions from before it was announced.
    pub(super) held: VecDeque<Completion>,
    pub(super) is_dirty: bool,
    /// Whether a request failed, other than by being flushed.
    pub(super) has_failed: bool,
    /// Whether the device may still hold one of the shared Receives for a message: it says when it does not.
    pub(super) awaits_last_receive: bool,
    /// Completions that it may have in the completion queue.
    pub(super) completions: u64,
    /// Octets of a Send that go into its work request.
    pub(super) inline_len: u32,
}

impl Numbered for QueuePair {
    #[inline(always)]
    fn id(&self) -> QueuePairId {
        self.id
    }

    #[inline(always)]
    fn dirty_flag(&mut self) -> &mut bool {
        &mut self.is_dirty
    }
}

impl QueuePair {
    pub(super) fn new(
        id: QueuePairId,
        phase: Phase,
        capacity: QueuePairCapacity,
        peer: Peer,
        shared: Option<Rc<SharedReceivePool>>,
    ) -> QueuePair {
        QueuePair {
            completions: QueuePair::completions(&capacity, shared.is_some()),
            cm: None,
            exposures: Exposures::default(),
            sends: SendQueue::new(&capacity),
            receives: ReceiveQueue::new(&capacity, shared),
            domain: None,
            id,
            phase,
            capacity,
            peer,
            reason: None,
            deadline: None,
            dialing: None,
            offered: (0, 0),
            is_established: false,
            is_announced: false,
            is_heard: false,
            was_heard: false,
            left_in: 0,
            held: VecDeque::new(),
            is_dirty: false,
            has_failed: false,
            awaits_last_receive: false,
            inline_len: 0,
        }
    }

    /// Octets of its queues and tables, all full, and of what it sends from.
    pub(super) fn footprint(capacity: &QueuePairCapacity) -> usize {
        ReceiveQueue::footprint(capacity)
            + SendQueue::footprint(capacity)
            + Exposures::footprint(capacity.exposures)
            + PlainBuffers::footprint(capacity)
    }

    /// Completions that such a queue pair may have in the completion queue. Those of shared Receives are counted once.
    pub(super) fn completions(capacity: &QueuePairCapacity, shares: bool) -> u64 {
        if shares { sends::depth(capacity) } else { u64::from(capacity.receives) + sends::depth(capacity) }
    }

    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether a message may be shown where it arrived, in that poll.
    #[inline]
    pub(super) fn may_show(&self, poll: u64) -> bool {
        self.is_open() && self.is_announced && self.left_in != poll && !self.receives.is_scattered()
    }

    /// Whether Receives may still be posted.
    #[inline]
    pub(super) fn takes_receives(&self) -> bool {
        !matches!(self.phase, Phase::Failing | Phase::Closing | Phase::Gone)
    }

    /// The device's queue pair; null before it is made and after it is destroyed.
    #[inline]
    fn raw(&self) -> *mut sys::ibv_qp {
        self.cm.as_ref().map_or(std::ptr::null_mut(), CmId::queue_pair)
    }

    /// Hands to the device what it has room for. An error is the end of the queue pair.
    #[inline]
    pub(super) fn ring(&mut self, batch: &mut Batch) -> io::Result<()> {
        let raw = self.raw();
        let Some(domain) = self.domain.as_ref().filter(|_| !raw.is_null()) else { return Ok(()) };
        // First: a Send may tell the peer that they are there.
        while self.receives.is_waiting() && self.takes_receives() {
            if self.receives.is_scattered() {
                self.receives.fill_scattered(batch, self.id, domain);
                // SAFETY: as below; the targets stay in `receives`, too.
                unsafe { batch.post_scattered(raw) }?;
                continue;
            }
            self.receives.fill(batch, self.id, domain);
            // SAFETY: the queue pair exists, `cm` owns it. The buffers stay in `receives`, which does not access
            // them, until they complete or the queue pair is destroyed (`finish`, or the order of our fields).
            unsafe { batch.post_receives(raw) }?;
        }
        while self.sends.is_waiting() && self.is_open() {
            // SAFETY: as above; the messages were built in memory that `sends` has for this queue pair.
            match unsafe { self.sends.post_plain(raw, self.inline_len) } {
                Some(Ok(0)) => break,
                Some(Ok(_)) => continue,
                Some(Err(error)) => return Err(error),
                None => {}
            }
            self.sends.fill(batch, self.id, domain, &self.exposures, self.inline_len);
            if batch.is_empty() {
                // The device has no room.
                break;
            }
            // SAFETY: as above; what is sent or written stays in `sends`, what is exposed in `exposures`.
            unsafe { batch.post_sends(raw) }?;
            for slot in batch.take_binds() {
                self.exposures.bound(slot);
            }
        }
        Ok(())
    }

    /// Posts the oldest Receive again, whose message was taken where it arrived: at once, unless others wait before it.
    // One call of the driver for each is cheaper than a pass over the queue for it.
    #[inline]
    pub(super) fn post_again(&mut self) -> io::Result<()> {
        let raw = self.raw();
        if raw.is_null() {
            return Ok(());
        }
        let Some(receive) = self.receives.post_again() else { return Ok(()) };
        // SAFETY: as in `ring`.
        let posted = unsafe { receive.post(raw) };
        if posted.is_err() {
            self.receives.refused_again();
        }
        posted
    }

    /// Whether there is something that the device does not have yet.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.sends.is_waiting() || self.receives.is_waiting()
    }

    /// Whether the device has given everything back that it got.
    pub(super) fn is_flushed(&self) -> bool {
        let is_idle = self.sends.is_idle() && self.receives.is_idle() && !self.awaits_last_receive;
        self.raw().is_null() || is_idle
    }

    /// Destroys the queue pair and all access of the peer; after this only we touch the memory that is left.
    pub(super) fn destroy(&mut self) -> Option<Rc<Domain>> {
        self.exposures.drop_windows();
        let number = self.cm.take().map_or(0, |cm| cm.queue_pair_number());
        self.receives.give_up(number);
        self.exposures.drop_regions();
        self.sends.set_plain(None);
        self.domain.take()
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.destroy();
    }
}
