//! A simulated queue pair: its posted requests, and the progress of each.

use std::collections::VecDeque;
use std::time::Duration;

use super::exposure::Exposures;
use crate::scatter::ReceiveTargets;
use crate::{DisconnectReason, Handle, QueuePairCapacity, QueuePairId, RemoteSegment};
use stag_memory::{Buf, Shared};

/// Names a queue pair in the whole world. One that is gone is simply not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) device: usize,
    pub(super) id: QueuePairId,
}

/// Where a queue pair is in its life.
///
/// ```text
/// connect ── Connecting ──────────────┐
///                                     ├─ Established ── Closing ── Dead
/// prepare ── Prepared ── Accepting ───┘
/// ```
///
/// `Closing` and `Dead` are reached from everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waits for the peer's accept.
    Connecting,
    /// Waits for the user's accept.
    Prepared,
    /// Waits for the peer to learn of the accept.
    Accepting,
    /// Carries work.
    Established,
    /// The user asked for the end; it is under way.
    Closing,
    /// Everything was flushed. Waits for the user to harvest it.
    Dead,
}

/// A posted Receive.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) id: u64,
    pub(super) buf: Buf,
    pub(super) targets: Option<Box<ReceiveTargets>>,
}

/// The local memory of a request.
#[derive(Debug)]
pub(super) enum Payload {
    Send(Buf),
    /// A message that was built in place: there is no buffer to give back.
    Built(Vec<u8>),
    Write(Shared),
    Read(Buf),
    /// What a Send or Write that completed early still has to bring to the peer.
    Copied(Vec<u8>),
}

/// One transfer to or from the peer's memory. A Write is one; a Read may be several.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) remote: RemoteSegment,
    /// Where in the local buffer.
    pub(super) at: u32,
    pub(super) len: u32,
    pub(super) pieces_left: u32,
    /// The peer's table let it in, and counts it as under way.
    pub(super) begun: bool,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Send { invalidate: Option<Handle> },
    Write,
    Read,
}

/// A posted Send, Write or Read.
#[derive(Debug)]
pub(super) struct Work {
    /// Counts the requests of the queue pair.
    pub(super) sequence: u64,
    pub(super) id: u64,
    pub(super) signaled: bool,
    pub(super) verb: Verb,
    pub(super) payload: Payload,
    pub(super) parts: Vec<Part>,
    /// The doorbell was rung for it.
    pub(super) departed: bool,
    /// A Send has reached the peer. It may still wait for earlier requests, or for a Receive.
    pub(super) arrived: bool,
    /// The peer's side is done: delivered, placed, or read.
    pub(super) executed: bool,
    /// The own side knows, and may complete it when all before it have.
    pub(super) acked: bool,
    /// Completed, or given back unsignaled.
    pub(super) reported: bool,
    /// Times that no Receive was there for it.
    pub(super) not_ready: u32,
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) phase: Phase,
    pub(super) peer: Option<End>,
    pub(super) capacity: QueuePairCapacity,
    pub(super) receives: VecDeque<Receive>,
    /// The targets of messages that came, until the user takes them; and the octets of the head that were posted.
    pub(super) filled: VecDeque<(Box<ReceiveTargets>, usize)>,
    /// Its Receives are in several buffers.
    pub(super) is_scattered: bool,
    /// In posting order. A request leaves when it is both reported and executed.
    pub(super) sends: VecDeque<Work>,
    pub(super) exposures: Exposures,
    pub(super) next_sequence: u64,
    /// Slots in use of each kind: from the post until the completion is harvested.
    pub(super) receives_used: u32,
    pub(super) sends_used: u32,
    pub(super) exposures_used: u32,
    /// Completions in the completion queue.
    pub(super) unharvested: u32,
    /// It came as far as that, whatever it is now.
    pub(super) was_established: bool,
    /// `Established` waits to be taken: completions stay back until then.
    pub(super) held: bool,
    /// The peer refused a request of ours: nothing more of ours has effect.
    pub(super) broken: bool,
    /// The connection is cut: nothing arrives on either side.
    pub(super) cut: bool,
    /// A Send waits for the peer's next Receive.
    pub(super) waits_for_receive: bool,
    /// How many times slower than others.
    pub(super) slowness: u32,
    /// The set-up timer, while it runs.
    pub(super) timer: Option<(Duration, u64)>,
    /// Why it ended; set in [`Phase::Dead`], taken when the user gets the event.
    pub(super) reason: Option<DisconnectReason>,
}

impl QueuePair {
    pub(super) fn new(phase: Phase, capacity: QueuePairCapacity, slowness: u32) -> QueuePair {
        QueuePair {
            phase,
            peer: None,
            capacity,
            receives: VecDeque::new(),
            filled: VecDeque::new(),
            is_scattered: false,
            sends: VecDeque::new(),
            exposures: Exposures::default(),
            next_sequence: 0,
            receives_used: 0,
            sends_used: 0,
            exposures_used: 0,
            unharvested: 0,
            was_established: false,
            held: false,
            broken: false,
            cut: false,
            waits_for_receive: false,
            slowness,
            timer: None,
            reason: None,
        }
    }

    /// Completions that may come to need room at once.
    pub(super) fn completions(capacity: &QueuePairCapacity) -> u64 {
        u64::from(capacity.receives) + u64::from(capacity.sends) + u64::from(capacity.exposures)
    }

    /// Whether the peer's work has effect here.
    pub(super) fn is_reachable(&self) -> bool {
        match self.phase {
            Phase::Accepting | Phase::Established => true,
            Phase::Closing => self.was_established,
            Phase::Connecting | Phase::Prepared | Phase::Dead => false,
        }
    }

    pub(super) fn work(&self, sequence: u64) -> Option<&Work> {
        self.sends.iter().find(|work| work.sequence == sequence)
    }

    pub(super) fn work_mut(&mut self, sequence: u64) -> Option<&mut Work> {
        self.sends.iter_mut().find(|work| work.sequence == sequence)
    }

    /// The next Send to deliver, if it has arrived and what was posted before it is done: earlier Sends are
    /// delivered, earlier Writes are placed. It does not wait for Reads.
    pub(super) fn deliverable(&self) -> Option<u64> {
        for work in &self.sends {
            match work.verb {
                Verb::Read => {}
                Verb::Write | Verb::Send { .. } if work.executed => {}
                Verb::Send { .. } if work.arrived => return Some(work.sequence),
                Verb::Write | Verb::Send { .. } => return None,
            }
        }
        None
    }
}
