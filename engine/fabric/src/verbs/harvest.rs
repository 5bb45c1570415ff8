//! From the device's completions to ours, and the end of a queue pair.

use std::collections::VecDeque;
use std::time::Duration;

use stag_memory::Buf;
use stag_rdma_core_sys as sys;

use super::Verbs;
use super::connection::{Phase, QueuePair};
use super::errors::{Queue, disconnect_reason, work_error};
use super::exposure::Invalidated;
use super::sends::Done;
use super::work::{SHARED_SLOT, WorkId};
use crate::{Completed, Completion, DisconnectReason, Event, Handle, WorkError};

/// Where completions go: to the user, while there is room, else to `Verbs::local`.
pub(super) struct Out<'a> {
    pub(super) completions: &'a mut VecDeque<Completion>,
    /// The length that it may grow to.
    pub(super) end: usize,
}

impl Out<'_> {
    /// For whoever has no user to give them to: all go to `Verbs::local`.
    pub(super) fn nowhere(nothing: &mut VecDeque<Completion>) -> Out<'_> {
        Out { completions: nothing, end: 0 }
    }

    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.completions.len() < self.end
    }
}

impl Verbs {
    /// Takes completions from the device once. `false`: there were no more than that.
    #[inline]
    pub(super) fn harvest(&mut self, out: &mut Out<'_>) -> bool {
        let Some(opened) = self.opened.as_ref().filter(|_| !self.is_broken) else { return false };
        let room = match out.has_room() {
            true => self.harvested.len().min(out.end - out.completions.len()),
            false => self.harvested.len(),
        };
        let Some(count) = opened.queue.poll(&mut self.harvested[..room]) else {
            self.queue_failed();
            return false;
        };
        for at in 0..count {
            let completion = self.harvested[at];
            let work = WorkId::unpack(completion.wr_id);
            if work.slot == SHARED_SLOT {
                self.shared_receive_done(work.sequence, &completion, out);
                continue;
            }
            let Some(pair) = self.at(work.slot) else { continue };
            // A queue pair that was destroyed may have left some behind.
            if pair.id.generation as u16 != work.generation {
                continue;
            }
            if !work.is_receive {
                self.send_done(work.slot, work.sequence, &completion, out);
            } else if let Some((id, buf)) = pair.receives.take_done() {
                self.received(work.slot, id, buf, &completion, out);
            }
        }
        count == room
    }

    /// The completion queue says nothing any more: the next look opens the device anew.
    #[cold]
    fn queue_failed(&mut self) {
        tracing::error!("the completion queue of the RDMA device is broken");
        for index in 0..self.slots.len() as u32 {
            self.close(index, DisconnectReason::Work(WorkError::Device));
        }
        self.is_broken = true;
        self.look_at = Duration::ZERO;
    }

    /// A message took the shared Receive of that number.
    #[inline(never)]
    fn shared_receive_done(&mut self, number: u32, completion: &sys::ibv_wc, out: &mut Out<'_>) {
        let Some(shared) = self.opened.as_ref().and_then(|opened| opened.receives.clone()) else { return };
        let Some((buf, arena)) = shared.take(number) else { return };
        let index = shared.user(completion.qp_num);
        let pair = index.and_then(|index| self.at(index));
        match (index, pair.and_then(|pair| pair.receives.take_id())) {
            (Some(index), Some(id)) => self.received(index, id, buf, completion, out),
            // Of a queue pair that is gone, whose Receives are left over; or one that none was posted for.
            (index, _) => {
                shared.put_back(buf, arena);
                if let Some(index) = index.filter(|_| completion.status == sys::IBV_WC_SUCCESS) {
                    let what = "it sent more messages than it had Receives for";
                    self.close(index, DisconnectReason::PeerViolation(what));
                }
            }
        }
    }

    /// A Receive is done.
    // Always inline: it is what most completions are.
    #[inline(always)]
    fn received(&mut self, index: u32, id: u64, mut buf: Buf, completion: &sys::ibv_wc, out: &mut Out<'_>) {
        let mut result = work_error(Queue::Receive, completion.status).map_or(Ok(()), Err);
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        let mut pair = pair;
        if result.is_ok() && !pair.is_open() {
            self.first_message(index);
            let Some(Some(again)) = self.slots.get_mut(index as usize) else { return };
            pair = again;
        }
        let (mut invalidated, mut exposed) = (None, None);
        if result.is_ok() {
            (pair.is_heard, pair.was_heard) = (true, true);
            let flags = self.opened.as_ref().map_or(0, |opened| opened.profile.with_invalidate);
            if completion.wc_flags & flags != 0 {
                // SAFETY: the flag says which field of the union it is; both are numbers.
                let handle = unsafe { completion.__bindgen_anon_1.invalidated_rkey };
                match pair.exposures.invalidated(handle) {
                    Invalidated::Ended(memory) => {
                        (invalidated, exposed) = (Some(Handle(handle)), Some(memory));
                        self.counters.invalidations += 1;
                    }
                    Invalidated::Meanwhile => {}
                    Invalidated::Violation => result = Err(WorkError::PeerViolation),
                }
            }
            match buf.capacity().checked_sub(completion.byte_len as usize) {
                Some(_) => buf.set_len(completion.byte_len as usize),
                None => result = Err(WorkError::Device),
            }
        }
        let completed = Completed::Receive { buf, invalidated, exposed };
        pair.give(&mut self.local, out, id, completed, result);
        if let Err(error) = result {
            self.failed(index, error);
        }
    }

    #[inline]
    fn send_done(&mut self, index: u32, sequence: u32, completion: &sys::ibv_wc, out: &mut Out<'_>) {
        let error = work_error(Queue::Send, completion.status);
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        match error {
            None => pair.sends.note_done(sequence),
            // What is before the first that failed is done, whether or not it was to be reported.
            Some(error) if error != WorkError::Flushed && !pair.has_failed => {
                pair.sends.note_done(sequence.wrapping_sub(1));
            }
            Some(_) => {}
        }
        // Behind one that failed nothing succeeds: siw reports a Write before a Read in front of it.
        let result = if pair.has_failed { Err(WorkError::Flushed) } else { Ok(()) };
        while let Some(done) = pair.sends.take_done() {
            match done {
                Done::Completed { id, completed } => pair.give(&mut self.local, out, id, completed, result),
                Done::Invalidated { slot } => {
                    let handle = pair.exposures.handle(slot);
                    if let Some((id, exposed)) = pair.exposures.fenced(slot) {
                        pair.give(&mut self.local, out, id, Completed::Fence { handle, exposed }, Ok(()));
                    }
                }
            }
        }
        let Some(error) = error else {
            // There is room again.
            if pair.sends.is_waiting() {
                self.mark_dirty(index);
            }
            return;
        };
        pair.has_failed = true;
        while let Some(Done::Completed { id, completed }) = pair.sends.take_failed(sequence) {
            pair.give(&mut self.local, out, id, completed, Err(error));
        }
        self.failed(index, error);
    }

    /// A request failed: so does the queue pair. For one that was only flushed the connection manager knows why.
    pub(super) fn failed(&mut self, index: u32, error: WorkError) {
        let looks_fatal = self.opened.as_ref().is_some_and(|opened| opened.profile.loss_looks_fatal);
        let Some(pair) = self.at(index) else { return };
        match error {
            WorkError::Device if looks_fatal => self.failed(index, WorkError::Flushed),
            WorkError::Flushed if matches!(pair.phase, Phase::Closing | Phase::Gone | Phase::Failing) => {}
            WorkError::Flushed => {
                pair.phase = Phase::Failing;
                pair.deadline = None;
                self.mark_attention(index);
            }
            WorkError::PeerViolation => {
                let what = "it invalidated a handle that it must not, or sent what the device refused";
                self.close(index, DisconnectReason::PeerViolation(what));
            }
            error => self.close(index, disconnect_reason(error)),
        }
    }

    /// Destroys a queue pair that is closing, and gives back all that is left.
    pub(super) fn finish(&mut self, index: u32) {
        // What it completed is still true.
        let mut nothing = VecDeque::new();
        let out = &mut Out::nowhere(&mut nothing);
        while self.harvest(out) {}
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        if pair.phase != Phase::Closing {
            return;
        }
        let domain = pair.destroy();
        pair.phase = Phase::Gone;
        let flushed = Err(WorkError::Flushed);
        while let Some((id, buf)) = pair.receives.take_left() {
            let completed = Completed::Receive { buf, invalidated: None, exposed: None };
            pair.give(&mut self.local, out, id, completed, flushed);
        }
        while let Some(Done::Completed { id, completed }) = pair.sends.take_left() {
            pair.give(&mut self.local, out, id, completed, flushed);
        }
        while let Some(slot) = pair.exposures.first_used() {
            let handle = pair.exposures.handle(slot);
            if let Some((id, exposed)) = pair.exposures.fenced(slot) {
                pair.give(&mut self.local, out, id, Completed::Fence { handle, exposed }, flushed);
            }
        }
        if let (Some(opened), Some(domain)) = (&mut self.opened, domain) {
            opened.recycle(domain);
        }
    }

    /// Forgets a queue pair that is gone, when all its completions were harvested. `true`: it is forgotten.
    pub(super) fn leave(&mut self, index: u32) -> bool {
        if !self.local.is_empty() {
            return false;
        }
        let Some(pair) = self.at(index) else { return true };
        if pair.phase != Phase::Gone || !pair.held.is_empty() {
            return false;
        }
        let (queue_pair, completions) = (pair.id, pair.completions);
        let reason = pair.reason.take().unwrap_or(DisconnectReason::Local);
        self.slots[index as usize] = None;
        self.completions_taken -= completions;
        self.events.push_back(Event::Disconnected { queue_pair, reason });
        true
    }
}

impl QueuePair {
    /// Gives the user a completion, or queues it: behind those before it, and behind the word of `Established`.
    // Always inline: a completion is long, and is then made where it goes.
    #[inline(always)]
    fn give(
        &mut self,
        local: &mut VecDeque<Completion>,
        out: &mut Out<'_>,
        id: u64,
        completed: Completed,
        result: Result<(), WorkError>,
    ) {
        let completion = Completion { queue_pair: self.id, id, completed, result };
        if self.is_established && !self.is_announced {
            self.held.push_back(completion);
        } else if local.is_empty() && out.has_room() {
            self.harvested(&completion.completed);
            out.completions.push_back(completion);
        } else {
            local.push_back(completion);
        }
    }

    /// The user sees a completion: there is room for another request.
    #[inline]
    pub(super) fn harvested(&mut self, completed: &Completed) {
        match completed {
            Completed::Receive { .. } => self.receives.harvested(),
            Completed::Fence { .. } => {}
            _ => self.sends.harvested(),
        }
    }
}
