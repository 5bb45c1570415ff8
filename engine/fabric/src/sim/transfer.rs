//! How posted work moves: departure, placement, delivery, acknowledgement, completion.

use std::time::Duration;

use super::device::Slots;
use super::exposure::{Access, Invalidated};
use super::queue_pair::{End, Part, Payload, Phase, Receive, Verb, Work};
use super::world::{Happening, State};
use crate::{Completed, DisconnectReason, Exposed, Handle, ReadPart, RemoteSegment, WorkError};

/// Pieces that one transfer is cut into, at most.
const PIECES_MAX: u64 = 4;
/// How long a Read waits before it is tried again, at a peer that lets nothing be read.
const UNREADABLE_DELAY: Duration = Duration::from_millis(100);
/// Times that a Send looks for a Receive again before the connection ends.
const NOT_READY_MAX: u32 = 3;
/// How long it waits in between.
const NOT_READY_DELAY: Duration = Duration::from_micros(100);

impl State {
    /// Lets everything leave that was posted: its doorbell was rung.
    pub(super) fn depart(&mut self, end: End) {
        loop {
            let Some(queue_pair) = self.queue_pair_mut(end) else { return };
            let Some(work) = queue_pair.sends.iter_mut().find(|work| !work.departed) else { return };
            work.departed = true;
            let (sequence, verb) = (work.sequence, work.verb);
            match verb {
                Verb::Send { .. } => {
                    let delay = self.latency(end);
                    self.plan_after(delay, Happening::SendArrives { from: end, work: sequence });
                }
                Verb::Write | Verb::Read => self.depart_in_pieces(end, sequence),
            }
            if verb != Verb::Read && self.random.happens(self.plan.complete_early) {
                let delay = *self.plan.latency.start();
                self.plan_after(delay, Happening::Acked { from: end, work: sequence });
            }
        }
    }

    /// Cuts each part of a Write or Read at random places; each piece takes its own time.
    fn depart_in_pieces(&mut self, end: End, sequence: u64) {
        let Some(work) = self.queue_pair(end).and_then(|queue_pair| queue_pair.work(sequence)) else {
            return;
        };
        let lens: Vec<u32> = work.parts.iter().map(|part| part.len).collect();
        if lens.is_empty() {
            // A Read of nothing: done as soon as it leaves.
            return self.executed(end, sequence);
        }
        for (part, &len) in lens.iter().enumerate() {
            let pieces = 1 + self.random.below(PIECES_MAX.min(u64::from(len).max(1)));
            let mut cuts: Vec<u32> =
                (1..pieces).map(|_| self.random.below(u64::from(len)) as u32).chain([0, len]).collect();
            cuts.sort_unstable();
            cuts.dedup();
            // Only an empty transfer has a single cut; it is still one piece, so that its handle is checked.
            let ends =
                if cuts.len() == 1 { vec![(0, 0)] } else { cuts.windows(2).map(|w| (w[0], w[1])).collect() };
            if let Some(work) = self.work_mut(end, sequence) {
                work.parts[part].pieces_left = ends.len() as u32;
            }
            for (at, piece_end) in ends {
                let delay = self.latency(end);
                let len = piece_end - at;
                self.plan_after(delay, Happening::PieceArrives { from: end, work: sequence, part, at, len });
            }
        }
    }

    fn work_mut(&mut self, end: End, sequence: u64) -> Option<&mut Work> {
        self.queue_pair_mut(end)?.work_mut(sequence)
    }

    /// The other end, if work of `from` has effect there now. Makes sure that it is established: the first
    /// work may overtake the news that the connection is up.
    fn reachable_peer(&mut self, from: End) -> Option<End> {
        let queue_pair = self.queue_pair(from)?;
        if queue_pair.broken {
            return None;
        }
        let peer = queue_pair.peer?;
        if !self.queue_pair(peer)?.is_reachable() {
            return None;
        }
        self.establish_accepting(peer);
        Some(peer)
    }

    pub(super) fn piece_arrives(&mut self, from: End, sequence: u64, part: usize, at: u32, len: u32) {
        let Some(peer) = self.reachable_peer(from) else { return };
        let Some(work) = self.work_mut(from, sequence) else { return };
        let access = if work.verb == Verb::Read { Access::Read } else { Access::Write };
        if work.verb == Verb::Read
            && let Some(device) = self.devices[peer.device].as_mut()
            && let Some(left) = device.readable
        {
            device.readable = Some(left.saturating_sub(1));
            if left == 0 {
                let again = Happening::PieceArrives { from, work: sequence, part, at, len };
                self.plan_after(UNREADABLE_DELAY, again);
                return;
            }
        }
        let Some(work) = self.work_mut(from, sequence) else { return };
        if work.verb == Verb::Write && self.device(peer.device).is_some_and(|device| device.is_unwritable) {
            let again = Happening::PieceArrives { from, work: sequence, part, at, len };
            self.plan_after(UNREADABLE_DELAY, again);
            return;
        }
        let Some(work) = self.work_mut(from, sequence) else { return };
        let Part { remote, at: local, len: part_len, begun, .. } = work.parts[part];
        let whole = u64::from(part_len);
        let is_let_in = begun
            || self.queue_pair_mut(peer).is_some_and(|peer| peer.exposures.begin(remote, whole, access));
        if !is_let_in {
            return self.refuse_access(from, peer, sequence);
        }
        // Taken out while it is copied: the two queue pairs cannot be borrowed at once.
        let Some(work) = self.work_mut(from, sequence) else { return };
        work.parts[part].begun = true;
        let mut payload = std::mem::replace(&mut work.payload, Payload::Copied(Vec::new()));
        let start = (local + at) as usize;
        let range = start..start + len as usize;
        let copied = self.queue_pair_mut(peer).and_then(|peer| {
            match &mut payload {
                Payload::Read(target) => {
                    target[range].copy_from_slice(peer.exposures.readable(remote, at, len)?);
                }
                Payload::Write(source) => {
                    peer.exposures.writable(remote, at, len)?.copy_from_slice(&source[range]);
                }
                Payload::Copied(source) => {
                    peer.exposures.writable(remote, at, len)?.copy_from_slice(&source[range]);
                }
                Payload::Send(_) | Payload::Built(_) => return None,
            }
            Some(())
        });
        let Some(work) = self.work_mut(from, sequence) else { return };
        work.payload = payload;
        work.parts[part].pieces_left -= 1;
        let part_done = work.parts[part].pieces_left == 0;
        let all_done = work.parts.iter().all(|part| part.pieces_left == 0);
        if copied.is_none() {
            // The peer's own Send invalidated the handle meanwhile.
            return self.refuse_access(from, peer, sequence);
        }
        if part_done {
            if let Some(work) = self.work_mut(from, sequence) {
                work.parts[part].begun = false;
            }
            self.end_access(peer, remote.handle);
        }
        if all_done {
            self.executed(from, sequence);
        }
    }

    /// Reads `parts` of the peer's memory with no request and in no time, at random, if it lets them be read. `false`: nothing
    /// else has changed.
    pub(super) fn read_at_once(&mut self, from: End, target: &mut [u8], parts: &[ReadPart]) -> bool {
        if self.queue_pair(from).is_none_or(|found| found.phase != Phase::Established) {
            return false;
        }
        let Some(peer) = self.reachable_peer(from) else { return false };
        if self.devices[peer.device].as_ref().is_none_or(|device| device.readable.is_some())
            || !self.random.happens(self.plan.in_place)
        {
            return false;
        }
        parts.iter().all(|part| {
            let &ReadPart { at, len, source } = part;
            let range = at as usize..at as usize + len as usize;
            let (Some(target), Some(found)) = (target.get_mut(range), self.queue_pair_mut(peer)) else {
                return false;
            };
            if !found.exposures.begin(source, len.into(), Access::Read) {
                return false;
            }
            let octets = found.exposures.readable(source, 0, len);
            let is_there = octets.map(|octets| target.copy_from_slice(octets)).is_some();
            self.end_access(peer, source.handle);
            is_there
        })
    }

    /// Writes to the peer's memory with no request and in no time, at random, if it lets that be written. `false`: nothing else
    /// has changed.
    pub(super) fn write_at_once(&mut self, from: End, source: &[u8], target: RemoteSegment) -> bool {
        if self.queue_pair(from).is_none_or(|found| found.phase != Phase::Established) {
            return false;
        }
        let Some(peer) = self.reachable_peer(from) else { return false };
        if self.devices[peer.device].as_ref().is_none_or(|device| device.is_unwritable)
            || !self.random.happens(self.plan.in_place)
        {
            return false;
        }
        let len = source.len() as u32;
        let Some(found) = self.queue_pair_mut(peer) else { return false };
        if !found.exposures.begin(target, len.into(), Access::Write) {
            return false;
        }
        let octets = found.exposures.writable(target, 0, len);
        let is_there = octets.map(|octets| octets.copy_from_slice(source)).is_some();
        self.end_access(peer, target.handle);
        is_there
    }

    fn refuse_access(&mut self, from: End, peer: End, sequence: u64) {
        let reason = DisconnectReason::PeerViolation("access to memory that it may not access");
        self.refuse(from, sequence, WorkError::RemoteAccess, peer, reason);
    }

    /// Ends an access to the memory of `end`; a fence may have waited for it.
    fn end_access(&mut self, end: End, handle: Handle) {
        let Some(queue_pair) = self.devices[end.device].as_mut().and_then(|d| d.queue_pair_mut(end.id))
        else {
            return;
        };
        if let Some((id, exposed)) = queue_pair.exposures.end(handle, &mut self.handles) {
            self.complete(end, id, Completed::Fence { handle, exposed }, Ok(()), Slots::PENDING_FENCE);
        }
    }

    pub(super) fn fence_due(&mut self, end: End, handle: Handle) {
        let Some(queue_pair) = self.devices[end.device].as_mut().and_then(|d| d.queue_pair_mut(end.id))
        else {
            return;
        };
        if let Some((id, exposed)) = queue_pair.exposures.fence_due(handle, &mut self.handles) {
            self.complete(end, id, Completed::Fence { handle, exposed }, Ok(()), Slots::PENDING_FENCE);
        }
    }

    /// The peer's side of a Write or Read is done; a Send behind it may be delivered now.
    fn executed(&mut self, from: End, sequence: u64) {
        self.mark_executed(from, sequence);
        self.deliver(from);
    }

    /// The peer's side of a request is done: the news travels back.
    fn mark_executed(&mut self, from: End, sequence: u64) {
        let Some(work) = self.work_mut(from, sequence) else { return };
        work.executed = true;
        if !work.acked {
            let delay = self.latency(from);
            self.plan_after(delay, Happening::Acked { from, work: sequence });
        }
        self.retire(from);
    }

    pub(super) fn send_arrives(&mut self, from: End, sequence: u64) {
        if let Some(work) = self.work_mut(from, sequence) {
            work.arrived = true;
        }
        self.deliver(from);
    }

    pub(super) fn send_retries(&mut self, from: End) {
        if let Some(queue_pair) = self.queue_pair_mut(from) {
            queue_pair.waits_for_receive = false;
        }
        self.deliver(from);
    }

    /// Delivers the Sends whose turn it is.
    fn deliver(&mut self, from: End) {
        loop {
            let Some(peer) = self.reachable_peer(from) else { return };
            let Some(queue_pair) = self.queue_pair(from) else { return };
            if queue_pair.waits_for_receive {
                return;
            }
            let Some(sequence) = queue_pair.deliverable() else { return };
            match self.queue_pair_mut(peer).and_then(|peer| peer.receives.pop_front()) {
                Some(receive) => self.deliver_into(from, sequence, peer, receive),
                None => self.receiver_not_ready(from, sequence, peer),
            }
        }
    }

    fn deliver_into(&mut self, from: End, sequence: u64, peer: End, receive: Receive) {
        let Receive { id, mut buf, mut targets } = receive;
        let Some(work) = self.work_mut(from, sequence) else { return };
        let Verb::Send { invalidate } = work.verb else { return };
        let payload = std::mem::replace(&mut work.payload, Payload::Copied(Vec::new()));
        let message: &[u8] = match &payload {
            Payload::Send(message) => message,
            Payload::Built(message) | Payload::Copied(message) => message,
            Payload::Write(_) | Payload::Read(_) => &[],
        };
        // The head of a scattered Receive holds as much as it was posted with.
        let head_room = if targets.is_some() { buf.len() } else { buf.capacity() };
        let room = head_room + targets.as_ref().map_or(0, |targets| targets.capacity());
        let outcome =
            if message.len() > room { Err(WorkError::Length) } else { self.invalidate(peer, invalidate) };
        if outcome.is_ok() {
            let (head, mut rest) = message.split_at(message.len().min(head_room));
            buf.set_len(head.len());
            buf.copy_from_slice(head);
            if let Some(targets) = &mut targets {
                targets.set_len(rest.len());
                for target in targets.bufs_mut() {
                    let (here, behind) = rest.split_at(target.len());
                    target.copy_from_slice(here);
                    rest = behind;
                }
            }
            self.trace.word(message.len() as u64);
            self.trace.bytes(&message[..message.len().min(64)]);
        }
        if let Some(work) = self.work_mut(from, sequence) {
            work.payload = payload;
        }
        match outcome {
            Ok(exposed) => {
                let slots = if exposed.is_some() { Slots::RECEIVE_AND_EXPOSURE } else { Slots::RECEIVE };
                let invalidated = invalidate.filter(|_| exposed.is_some());
                if let (Some(targets), Some(queue_pair)) = (targets, self.queue_pair_mut(peer)) {
                    queue_pair.filled.push_back((targets, head_room));
                }
                self.complete(peer, id, Completed::Receive { buf, invalidated, exposed }, Ok(()), slots);
                self.mark_executed(from, sequence);
            }
            Err(error) => {
                let completed = Completed::Receive { buf, invalidated: None, exposed: None };
                self.complete(peer, id, completed, Err(error), Slots::RECEIVE);
                let (own, peers) = match error {
                    WorkError::Length => (WorkError::Length, DisconnectReason::Work(WorkError::Length)),
                    _ => (
                        WorkError::RemoteAccess,
                        DisconnectReason::PeerViolation("invalidation of a handle that is not exposed"),
                    ),
                };
                self.refuse(from, sequence, own, peer, peers);
            }
        }
    }

    /// Kills the handle that a Send names, at its receiver.
    fn invalidate(&mut self, end: End, handle: Option<Handle>) -> Result<Option<Exposed>, WorkError> {
        let Some(handle) = handle else { return Ok(None) };
        let (devices, live) = (&mut self.devices, &mut self.handles);
        let queue_pair = devices[end.device].as_mut().and_then(|device| device.queue_pair_mut(end.id));
        match queue_pair.map(|queue_pair| queue_pair.exposures.invalidate(handle, live)) {
            Some(Invalidated::Memory(exposed)) => Ok(Some(exposed)),
            Some(Invalidated::AlreadyFenced) if !self.random.happens(self.plan.late_invalidate_refused) => {
                Ok(None)
            }
            _ => Err(WorkError::PeerViolation),
        }
    }

    /// A Send found no Receive: it waits and tries again, a few times.
    fn receiver_not_ready(&mut self, from: End, sequence: u64, peer: End) {
        let Some(queue_pair) = self.queue_pair_mut(from) else { return };
        queue_pair.waits_for_receive = true;
        let Some(work) = queue_pair.work_mut(sequence) else { return };
        work.not_ready += 1;
        let times = work.not_ready;
        if times == 1 {
            self.violations.receiver_not_ready += 1;
        }
        if times > NOT_READY_MAX {
            let reason = DisconnectReason::PeerViolation("Sends for which no Receive was posted");
            self.refuse(from, sequence, WorkError::PeerViolation, peer, reason);
        } else {
            self.plan_after(NOT_READY_DELAY, Happening::SendRetries { from });
        }
    }

    /// The peer refuses a request: from here on nothing of this side has effect, and both sides end, each
    /// when it learns of it.
    fn refuse(&mut self, from: End, sequence: u64, error: WorkError, peer: End, reason: DisconnectReason) {
        if let Some(queue_pair) = self.queue_pair_mut(from) {
            queue_pair.broken = true;
        }
        let delay = self.latency(from);
        let own = DisconnectReason::Work(error);
        let failed = Some((sequence, error));
        self.plan_after(delay, Happening::Dies { end: from, failed, reason: own, tell: None });
        let delay = self.latency(peer);
        self.plan_after(delay, Happening::Dies { end: peer, failed: None, reason, tell: None });
    }

    /// The side that posted a request learns that it is done.
    pub(super) fn acked(&mut self, end: End, sequence: u64) {
        let Some(queue_pair) = self.queue_pair_mut(end) else { return };
        let ghosts = queue_pair.sends.iter().filter(|work| work.reported).count();
        let room = ghosts < queue_pair.capacity.sends as usize;
        let Some(work) = queue_pair.work_mut(sequence) else { return };
        // Completing early is optional: bounded, it leaves no more behind than could be posted.
        if work.executed || room {
            work.acked = true;
        }
        self.report(end);
    }

    /// Completes what is acknowledged, in posting order.
    fn report(&mut self, end: End) {
        loop {
            let Some(queue_pair) = self.queue_pair_mut(end) else { return };
            let Some(work) = queue_pair.sends.iter_mut().find(|work| !work.reported) else { break };
            if !work.acked {
                break;
            }
            let sequence = work.sequence;
            self.report_one(end, sequence, Ok(()));
        }
        self.retire(end);
    }

    /// Gives a request's buffer back: in a completion, or to its pool if that was agreed and all went well.
    fn report_one(&mut self, end: End, sequence: u64, result: Result<(), WorkError>) {
        let Some(work) = self.work_mut(end, sequence) else { return };
        work.reported = true;
        let (id, silent) = (work.id, !work.signaled && result.is_ok());
        let left_behind = match &work.payload {
            // What completes early is still under way: the data stays, the buffer goes.
            Payload::Send(buf) if !work.executed => buf.to_vec(),
            Payload::Built(message) if !work.executed => message.clone(),
            Payload::Write(source) if !work.executed => source.to_vec(),
            _ => Vec::new(),
        };
        let completed = match std::mem::replace(&mut work.payload, Payload::Copied(left_behind)) {
            Payload::Send(buf) => Completed::Send(buf),
            Payload::Write(source) => Completed::Write(source),
            Payload::Read(target) => Completed::Read(target),
            // Without a buffer there is nothing to complete: if it failed, the end of the connection tells.
            Payload::Built(_) => {
                if let Some(queue_pair) = self.queue_pair_mut(end) {
                    queue_pair.sends_used -= 1;
                }
                return;
            }
            Payload::Copied(_) => return,
        };
        if silent {
            if let Some(queue_pair) = self.queue_pair_mut(end) {
                queue_pair.sends_used -= 1;
            }
        } else {
            self.complete(end, id, completed, result, Slots::SEND);
        }
    }

    /// Forgets requests that are done on both sides.
    fn retire(&mut self, end: End) {
        let Some(queue_pair) = self.queue_pair_mut(end) else { return };
        while queue_pair.sends.front().is_some_and(|work| work.reported && work.executed) {
            queue_pair.sends.pop_front();
        }
    }

    /// Cuts a connection: nothing of it arrives any more, and each side finds out by itself.
    pub(super) fn cut(&mut self, end: End) {
        let peer = self.queue_pair(end).and_then(|queue_pair| queue_pair.peer);
        for end in [Some(end), peer].into_iter().flatten() {
            let Some(queue_pair) = self.queue_pair_mut(end) else { continue };
            if queue_pair.cut || queue_pair.phase == Phase::Dead {
                continue;
            }
            queue_pair.cut = true;
            let delay = self.latency(end) * (1 + self.random.below(20) as u32);
            let reason = DisconnectReason::PeerDied;
            self.plan_after(delay, Happening::Dies { end, failed: None, reason, tell: None });
        }
    }

    /// Ends a queue pair: flushes everything, in posting order, and tells the peer.
    pub(super) fn die(
        &mut self,
        end: End,
        failed: Option<(u64, WorkError)>,
        reason: DisconnectReason,
        tell: Option<DisconnectReason>,
    ) {
        let Some(queue_pair) = self.queue_pair_mut(end) else { return };
        if queue_pair.phase == Phase::Dead {
            return;
        }
        let was_connecting = queue_pair.phase == Phase::Connecting;
        queue_pair.phase = Phase::Dead;
        queue_pair.reason = Some(reason);
        let (peer, timer, cut) = (queue_pair.peer, queue_pair.timer.take(), queue_pair.cut);
        if let Some(key) = timer {
            self.unplan(key);
        }
        if was_connecting {
            self.withdraw_request(end);
        }
        if let (Some(peer), Some(reason), false) = (peer, tell, cut) {
            let delay = self.latency(end);
            self.plan_after(delay, Happening::Dies { end: peer, failed: None, reason, tell: None });
        }
        self.flush_sends(end, failed);
        self.flush_receives(end);
        self.flush_exposures(end);
        if let Some(device) = self.device_mut(end.device) {
            device.announce_end(end.id);
        }
    }

    fn flush_sends(&mut self, end: End, failed: Option<(u64, WorkError)>) {
        let Some(queue_pair) = self.queue_pair(end) else { return };
        let works: Vec<(u64, bool)> =
            queue_pair.sends.iter().map(|work| (work.sequence, work.executed)).collect();
        let mut flushing = false;
        for (sequence, executed) in works {
            let result = match failed {
                Some((work, error)) if work == sequence => Err(error),
                _ if executed && !flushing => Ok(()),
                _ => Err(WorkError::Flushed),
            };
            flushing |= result.is_err();
            if let Some(work) = self.work_mut(end, sequence).filter(|work| !work.reported) {
                // Nothing is left behind: whatever is not there by now never arrives.
                work.executed = true;
                self.report_one(end, sequence, result);
            }
        }
        // An access under way stays so in the peer's table: the peer ends too, and a fence there with it.
        if let Some(queue_pair) = self.queue_pair_mut(end) {
            queue_pair.sends.clear();
        }
    }

    fn flush_receives(&mut self, end: End) {
        while let Some(Receive { id, buf, .. }) =
            self.queue_pair_mut(end).and_then(|queue_pair| queue_pair.receives.pop_front())
        {
            let completed = Completed::Receive { buf, invalidated: None, exposed: None };
            self.complete(end, id, completed, Err(WorkError::Flushed), Slots::RECEIVE);
        }
    }

    fn flush_exposures(&mut self, end: End) {
        let (devices, live) = (&mut self.devices, &mut self.handles);
        let queue_pair = devices[end.device].as_mut().and_then(|device| device.queue_pair_mut(end.id));
        let Some(queue_pair) = queue_pair else { return };
        for (handle, exposed, fence) in queue_pair.exposures.drain(live) {
            let slots = if fence.is_some() { Slots::PENDING_FENCE } else { Slots::EXPOSURE };
            let completed = Completed::Fence { handle, exposed };
            self.complete(end, fence.unwrap_or(0), completed, Err(WorkError::Flushed), slots);
        }
    }
}
