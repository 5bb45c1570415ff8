//! The client half of a connection: drives the Requester, and holds the memory of its Calls.

use std::time::Duration;

use arrayvec::ArrayVec;
use stag_fabric::{Exposed, Fence, Handle, Provider};
use stag_memory::Buf;
use stag_proto::parameters::Parameters;
use stag_proto::requester::{self, ExposedMemory, Requester, RequesterConfig};

use crate::ConnectionId;
use crate::client::offering::Lists;
use crate::client::pulling::{PullTable, PullTerms};
use crate::client::reconnect::ClientPolicy;
use crate::client::retransmission::Kept;
use crate::client::slot::{CallKind, Ending, Slot, Stage};
use crate::client::{CLIENT_SEGMENTS_MAX, CallError, CallId, Chunks, CompletedCall, Request, Results};
use crate::config::{EngineConfig, SEGMENTS_MAX, SPARE_RECEIVES};
use crate::few::Few;
use crate::state::{Core, EngineState};
use crate::version2::ClientVersion2;
use crate::version2::calling::end_version2;

/// Octets of a header without chunks.
pub(crate) const HEADER_LEN_MIN: u32 = stag_wire::rpcrdma::HEADER_LEN_MIN as u32;

/// Positions of a Call's reduced arguments, in order.
pub(crate) type Positions = ArrayVec<u32, CLIENT_SEGMENTS_MAX>;

/// What the silence of a server says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    /// Nothing, so far.
    Presumed,
    /// The server is gone: it had every opportunity to answer.
    Gone,
}

/// The client half of a connection.
#[derive(Debug)]
pub(crate) struct Calling {
    pub(crate) requester: Requester,
    pub(crate) slots: Box<[Slot]>,
    pub(crate) receives_posted: u32,
    pub(crate) receives_max: u32,
    /// Calls that are not over.
    pub(crate) outstanding: u32,
    /// Memory regions that are exposed, of all Calls, and how many the queue pair may have.
    pub(crate) exposed: u32,
    pub(crate) exposures_max: u32,
    /// Of the Call that is being made.
    pub(crate) lists: Lists,
    /// What its user calls the connection.
    pub(crate) name: ConnectionId,
    pub(crate) policy: ClientPolicy,
    /// What sending each Call again takes; empty if there is no other connection after this one.
    pub(crate) kept: Box<[Kept]>,
    /// Calls that wait for the next connection, or for a credit on it.
    pub(crate) interrupted: u32,
    /// Calls whose message found no room in the send queue.
    pub(crate) unsent: u32,
    /// Exposed Replies that wait for memory, or for room in the send queue.
    pub(crate) pulls_waiting: u32,
    /// Exposed Replies, where they are pulled.
    pub(crate) pulls: Option<Box<PullTable>>,
    /// When the last message came.
    pub(crate) heard: Duration,
    /// Since when Calls are in flight without a pause, as `keep_alive` saw it first.
    pub(crate) busy_since: Option<Duration>,
    /// A keep-alive is outstanding.
    pub(crate) probing: bool,
    /// The engine's user has made a Call, and is told of the end of the connection.
    pub(crate) has_user: bool,
    /// The additions of version 2, on a connection that speaks it, or probes whether its peer does.
    pub(crate) version2: Option<Box<ClientVersion2>>,
}

impl Calling {
    /// The client half of the connection that its user calls `name`.
    pub(crate) fn new(
        config: &EngineConfig,
        parameters: Parameters,
        seed: u32,
        name: ConnectionId,
        policy: ClientPolicy,
    ) -> Calling {
        let requester = RequesterConfig {
            // Twice the credits: a Call whose Reply came may still wait for fences while the next one starts.
            slots: config.credits_max * 2,
            parameters,
            credits_requested: config.credits_max,
            segments_max: SEGMENTS_MAX,
            xid_seed: seed,
        };
        Calling::with(&requester, config.capacity().exposures, name, policy)
    }

    /// For the reverse Calls of the connection `name`, which was accepted, and on which `parameters` were agreed. They have no
    /// chunks (8167-5.3-c), and end with the connection: only the peer can make another (8167-5.4-a).
    pub(crate) fn reverse(
        config: &EngineConfig,
        parameters: &Parameters,
        seed: u32,
        name: ConnectionId,
    ) -> Calling {
        let requester = RequesterConfig {
            slots: config.reverse_credits * 2,
            parameters: parameters.reversed(),
            credits_requested: config.reverse_credits,
            segments_max: 0,
            xid_seed: seed,
        };
        Calling::with(&requester, 0, name, ClientPolicy::default())
    }

    fn with(
        requester: &RequesterConfig,
        exposures_max: u32,
        name: ConnectionId,
        policy: ClientPolicy,
    ) -> Calling {
        let slots = requester.slots;
        Calling {
            requester: Requester::new(requester),
            slots: (0..slots).map(|_| Slot::default()).collect(),
            receives_posted: 0,
            receives_max: requester.credits_requested + SPARE_RECEIVES,
            outstanding: 0,
            exposed: 0,
            exposures_max,
            lists: Lists::default(),
            name,
            policy,
            kept: (0..if policy.reconnect.is_some() { slots } else { 0 }).map(|_| Kept::default()).collect(),
            interrupted: 0,
            unsent: 0,
            pulls_waiting: 0,
            pulls: None,
            heard: Duration::ZERO,
            busy_since: None,
            probing: false,
            has_user: false,
            version2: None,
        }
    }

    /// Whether the version is known that its Calls go in.
    pub(crate) fn has_version(&self) -> bool {
        self.version2.as_ref().is_none_or(|version2| version2.is_agreed())
    }

    /// Pulls Replies of up to `len_max` octets from now on, as the connection agreed. Comes first on every connection.
    pub(crate) fn pull_replies(&mut self, len_max: u32, terms: PullTerms) {
        self.stop_pulling();
        if terms.replies_max > 0 && len_max > 0 {
            self.requester.set_pull_limit(len_max);
            self.pulls = Some(Box::new(PullTable::new(self.slots.len(), terms)));
        }
    }

    /// The connection is gone, and the memory of its pulls is back.
    pub(crate) fn stop_pulling(&mut self) {
        self.pulls = None;
        self.pulls_waiting = 0;
    }

    /// Sets the number of Receives to that of version 1, for this connection or the next one.
    pub(crate) fn receive_as_version1(&mut self) {
        self.receives_max = self.requester.window().requested() + SPARE_RECEIVES;
    }

    /// Octets of heap of its tables, for `reverse_credits` reverse credits.
    pub(crate) fn reverse_footprint(reverse_credits: u32) -> usize {
        let slots = reverse_credits * 2;
        Requester::short_footprint(slots) + slots as usize * size_of::<Slot>()
    }

    #[inline]
    pub(crate) fn credits_available(&self) -> u32 {
        // Calls that were there before come first.
        if self.interrupted > 0 {
            return 0;
        }
        self.requester.available().saturating_sub(self.credits_reserved())
    }

    /// Credits that no Call of a user gets: one for a keep-alive (8267-6.7.2-a), but not the only one.
    #[inline]
    pub(crate) fn credits_reserved(&self) -> u32 {
        if self.policy.keep_alive.is_none() || self.probing {
            return 0;
        }
        let window = self.requester.window();
        u32::from(window.granted().min(window.requested()) > 1)
    }

    pub(crate) fn credits_granted(&self) -> u32 {
        self.requester.window().granted()
    }

    pub(crate) fn has_deadline(&self) -> bool {
        self.outstanding > 0
    }

    /// Posts Receives until there is one for each credit (8166-3.3.1-e).
    // `inline(always)`: one turn of the loop for each Reply.
    #[inline(always)]
    pub(crate) fn post_receives<P: Provider>(&mut self, core: &mut Core<P>, id: ConnectionId) {
        while self.receives_posted < self.receives_max {
            let Some(buf) = core.pools.messages.take() else { return };
            if core.provider.post_receive(id, 0, buf).is_err() {
                return;
            }
            self.receives_posted += 1;
        }
    }

    /// Posts Receives if there are fewer than for that many Replies (8166-3.3.1-e). Returns whether there are as many now.
    #[inline(always)]
    pub(crate) fn provide_receives<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        replies: u32,
    ) -> bool {
        self.receives_posted >= replies || self.post_missing_receives(core, id, replies)
    }

    #[cold]
    fn post_missing_receives<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        replies: u32,
    ) -> bool {
        self.post_receives(core, id);
        self.post_divided(core, id);
        self.receives_posted >= replies
    }

    /// Posts Receives until there are as many as version 2 may need. It does nothing for version 1.
    #[cold]
    pub(crate) fn post_divided<P: Provider>(&mut self, core: &mut Core<P>, id: ConnectionId) {
        if let Some(version2) = &mut self.version2 {
            version2.post_receives(core, id, &mut self.receives_posted);
        }
    }

    /// Posts Receives as [`Calling::post_divided`] does. Returns whether there are enough, not yet promised, for a Reply of this
    /// number of transmissions.
    pub(crate) fn provide_receives_for<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        transmissions: u32,
    ) -> bool {
        self.post_divided(core, id);
        let Some(version2) = &self.version2 else { return true };
        self.receives_posted >= version2.promised + transmissions
    }

    /// Gives up a Call, with `error` as its end.
    pub(crate) fn cancel<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        call: requester::RequesterCallId,
        error: CallError,
    ) {
        if self.requester.call_at(call.index()) != Some(call) {
            return;
        }
        let slot = &mut self.slots[call.index()];
        let ending = Stage::Ending(Ending::Failed(error));
        let stage = slot.stage();
        match stage {
            Stage::Free | Stage::Ending(_) => return,
            // What was exposed of it is being fenced: it ends then.
            Stage::Withdrawing(already) => return slot.enter(Stage::Withdrawing(already.or(Some(error)))),
            // What was exposed of it comes back with the end of the connection: it ends then.
            Stage::Halfway => return slot.enter(ending),
            Stage::Unsent | Stage::Interrupted | Stage::Sent | Stage::Pulling => slot.enter(ending),
        }
        let memory = match stage {
            Stage::Unsent => {
                slot.message = None;
                self.unsent -= 1;
                if let Some(version2) = &mut self.version2 {
                    version2.forget_unsent(&mut self.requester, call);
                }
                self.requester.abandon(call)
            }
            Stage::Interrupted => {
                self.interrupted -= 1;
                self.requester.cancel(call)
            }
            _ => self.requester.cancel(call),
        };
        self.settle(core, id, call, memory);
    }

    /// Gives up all Calls whose time is over. The server is gone if a keep-alive is among them, and nothing else came since it was
    /// sent.
    pub(crate) fn expire<P: Provider>(&mut self, core: &mut Core<P>, id: ConnectionId) -> Liveness {
        let mut liveness = Liveness::Presumed;
        if self.outstanding == 0 {
            return liveness;
        }
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            let elapsed = core.now.saturating_sub(slot.started);
            if matches!(slot.stage(), Stage::Free) || elapsed < slot.timeout {
                continue;
            }
            if slot.kind != CallKind::KeepAlive {
                let Some(call) = self.requester.call_at(index) else {
                    core.fault(id, "a Call waits, and the Requester knows nothing of it");
                    continue;
                };
                self.cancel(core, id, call, CallError::TimedOut);
            } else if self.heard > slot.started {
                // Slow, but alive.
                slot.started = core.now;
            } else {
                liveness = Liveness::Gone;
            }
        }
        liveness
    }

    /// Probes the server, if it is time: a NULL Call on the credit that is kept back for it (8267-6.7.2-a). It is gone where no probe can be sent because it answered no Call on any credit, although
    /// those Calls were abandoned.
    pub(crate) fn keep_alive<P: Provider>(&mut self, core: &mut Core<P>, id: ConnectionId) -> Liveness {
        let Some(policy) = self.policy.keep_alive else { return Liveness::Presumed };
        if self.is_busy() {
            // Not when the Call began: for that the last pass is taken, which may be long ago.
            self.busy_since.get_or_insert(core.now);
        }
        let due = self.keep_alive_due().filter(|due| core.now >= *due);
        let Some(due) = due else { return Liveness::Presumed };
        if self.requester.available() == 0 {
            let is_gone = self.outstanding == 0 && core.now >= due.saturating_add(policy.answer_within);
            return if is_gone { Liveness::Gone } else { Liveness::Presumed };
        }
        let request = Request::null(policy.program, policy.version, policy.answer_within);
        let made = self.make(core, id, &request, &mut Chunks::default(), CallKind::KeepAlive, |_| Ok(()));
        core.statistics.keep_alives += u64::from(made.is_ok());
        Liveness::Presumed
    }

    /// Whether its server may have to be asked whether it lives.
    pub(crate) fn has_keep_alive(&self) -> bool {
        self.policy.keep_alive.is_some()
    }

    /// Whether the server owes an answer: also to Calls that were given up, whose credits are gone until it comes.
    fn is_busy(&self) -> bool {
        self.requester.window().in_flight() > 0
    }

    /// When to probe the server, if no message comes before.
    pub(crate) fn keep_alive_due(&self) -> Option<Duration> {
        let policy = self.policy.keep_alive.filter(|_| !self.probing)?;
        let silent_since = match self.is_busy() {
            true => self.heard.max(self.busy_since?),
            false if policy.when_idle => self.heard,
            false => return None,
        };
        Some(silent_since.saturating_add(policy.after))
    }

    /// A fence is done.
    pub(crate) fn fenced<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        handle: Handle,
        exposed: Exposed,
    ) {
        // By handle, not by slot: at the end of a connection handles come back that were not fenced. None:
        // the peer's Send invalidated it, and brought the memory back, while its fence was under way.
        let Some(index) = self.slots.iter().position(|slot| slot.exposes(handle.0)) else { return };
        let slot = &mut self.slots[index];
        self.exposed -= slot.take_back(Some(handle), Some(exposed));
        let Some(call) = self.requester.call_at(index).filter(|_| !matches!(slot.stage(), Stage::Free))
        else {
            core.fault(id, "memory of a Call that is over was exposed");
            return;
        };
        if let Stage::Withdrawing(_) = slot.stage() {
            self.withdrawn(core, id, call);
        } else if let Some(memory) = self.requester.handle_fenced(call, handle.0) {
            self.settle(core, id, call, memory);
        }
    }

    /// The connection is gone, and all memory is back: every Call ends now.
    pub(crate) fn close<P: Provider>(mut self, core: &mut Core<P>) {
        end_version2(&mut self);
        let slots = &mut self.slots;
        let mut over: Vec<requester::RequesterCallId> = Vec::new();
        self.requester.handle_disconnect(|call, outcome| {
            slots[call.index()].end_disconnected(outcome);
            over.push(call);
        });
        for call in over {
            self.finish(core, call);
        }
    }

    /// Fences what is left of a Call's memory, and ends the Call when nothing is.
    #[inline]
    pub(crate) fn settle<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        call: requester::RequesterCallId,
        mut memory: ExposedMemory,
    ) {
        if memory == ExposedMemory::Exposed {
            while let Some(handle) = self.requester.poll_fence(call) {
                core.statistics.local_fences += 1;
                match core.provider.fence(id, Handle(handle), u64::from(call.xid())) {
                    Some(Fence::Done(exposed)) => {
                        let slot = &mut self.slots[call.index()];
                        self.exposed -= slot.take_back(Some(Handle(handle)), Some(exposed));
                    }
                    Some(Fence::Pending) => continue,
                    // Not exposed any more: the connection is ending, and its completion carries the memory.
                    None => continue,
                }
                if let Some(now) = self.requester.handle_fenced(call, handle) {
                    memory = now;
                }
            }
        }
        if memory == ExposedMemory::Safe {
            self.finish(core, call);
        }
    }

    /// Ends a Call whose memory is back.
    #[inline]
    pub(crate) fn finish(&mut self, state: &mut EngineState, call: requester::RequesterCallId) {
        let slot = &mut self.slots[call.index()];
        let ending = match slot.stage() {
            // The late Reply of a Call that was given up, whose end was reported already.
            Stage::Free => return,
            // All that it exposed is back, but its Reply is not here.
            Stage::Pulling => return,
            Stage::Ending(ending) => ending,
            _ => {
                // Its user waits for it, however it is.
                state.fault(self.name, "a Call is over without an outcome");
                Ending::Failed(CallError::ConnectionLost)
            }
        };
        let result = slot.results(ending, call, &mut state.statistics);
        let written = if slot.written.is_empty() {
            Few::new()
        } else {
            // Without its buffer: the peer never let go of it (`Event::Disconnected`).
            slot.written.drain(..).filter_map(|part| Some((part.chunk, part.buf?))).collect()
        };
        slot.reply_chunk = None;
        self.hand_over(state, call, result, written);
    }

    /// Frees the slot of a Call that is over, and hands the Call to its user. None of its memory is in the slot any more.
    #[inline(always)]
    pub(crate) fn hand_over(
        &mut self,
        state: &mut EngineState,
        call: requester::RequesterCallId,
        result: Result<Results, CallError>,
        written: Few<(u8, Buf)>,
    ) {
        let slot = &mut self.slots[call.index()];
        slot.enter(Stage::Free);
        self.outstanding -= 1;
        if let Some(kept) = self.kept.get_mut(call.index()) {
            kept.clear();
        }
        if slot.kind != CallKind::Usual {
            return self.hand_over_other(state, call, result, written);
        }
        self.complete(state, call, result, written);
    }

    /// Hands over a Call that is not like most.
    #[cold]
    #[inline(never)]
    fn hand_over_other(
        &mut self,
        state: &mut EngineState,
        call: requester::RequesterCallId,
        result: Result<Results, CallError>,
        written: Few<(u8, Buf)>,
    ) {
        let slot = &mut self.slots[call.index()];
        let sealed = slot.sealed.take();
        match std::mem::take(&mut slot.kind) {
            // All that counts is that something came.
            CallKind::KeepAlive => self.probing = false,
            CallKind::Service => state.end_call_back(slot.user, result),
            CallKind::Usual | CallKind::Sealed => {
                let result = match sealed {
                    Some(sealed) => sealed.results(&state.pools, result),
                    None => result,
                };
                self.complete(state, call, result, written);
            }
        }
    }

    #[inline(always)]
    fn complete(
        &mut self,
        state: &mut EngineState,
        call: requester::RequesterCallId,
        result: Result<Results, CallError>,
        written: Few<(u8, Buf)>,
    ) {
        let slot = &self.slots[call.index()];
        state.statistics.calls_failed += u64::from(result.is_err());
        state.completed.push_back(CompletedCall {
            call: CallId { connection: self.name, call },
            user: slot.user,
            procedure: slot.procedure,
            started: slot.started,
            result,
            written,
        });
    }
}
