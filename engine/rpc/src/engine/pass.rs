//! One pass over the work of an engine: what the reactor calls, in the order in which it is done.

use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use stag_fabric::{Completed, Completion, DisconnectReason, Event, Provider, Withheld, WorkError};
use stag_proto::parameters::{Parameters, Side};
use stag_runtime::Poller;

use crate::ConnectionId;
use crate::agreement::settings;
use crate::call_back::call_clients_back;
use crate::carried::exchange::exchange;
use crate::chores::{SCAN_INTERVAL, end_faulty, flush, scan};
use crate::client::CloseReason;
use crate::client::clients::{close, handle_connected, lose, restore};
use crate::connection::FinishedRead;
use crate::engine::{Engine, find};
use crate::in_place::poll_provider;
use crate::newcomers::{Doorkeeper, place_request, place_stranger};
use crate::recorder::Way;
use crate::server::admission::admit_requests;
use crate::server::client_log::printable;
use crate::server::doomed::xid_of;
use crate::service::Services;
use crate::service::late::answer_late;
use crate::state::Pass;

/// How often a pass that finds nothing polls again.
const IDLE_LOOKS: usize = 4;

impl<P: Provider, S: Services> Poller for Engine<P, S> {
    fn poll(&mut self, now: Duration) -> usize {
        self.core.now = now;
        self.core.pass += 1;
        let mut count = poll_provider(self);
        if count == 0 {
            count = self.poll_again();
        }
        let mut events = count + self.handle();
        if self.core.read_posted {
            events += self.look_after_reads();
        }
        if !self.disconnects.is_empty() || !self.requests.is_empty() {
            self.admit_and_dismiss();
        }
        if let Some(carrier) = &mut self.core.carrier {
            // Calls leave before others' are executed, so that their homes do not wait for that.
            carrier.publish();
            events += exchange(self);
        }
        let (answerer, services) = self.answerer();
        events += answer_late(answerer, services);
        if self.core.ready.is_due() {
            let pass = &mut Pass { core: &mut self.core, services: &mut self.services };
            events += flush(pass, &mut self.connections);
        }
        debug_assert!(self.is_listed(), "something waits, and is on no list");
        while let Some(stranger) = self.core.provider.take_stranger() {
            place_stranger(self, stranger);
        }
        if let Some(streams) = &mut self.streams {
            events += streams.poll(&mut Pass { core: &mut self.core, services: &mut self.services });
        }
        if now >= self.next_scan {
            self.scan();
        }
        if !self.core.faults.is_empty() {
            end_faulty(&mut self.core, &mut self.connections, &self.moved);
        }
        events += call_clients_back(self);
        // Posted work leaves together: one doorbell for each queue pair, not for each request.
        self.core.provider.ring_doorbells();
        if let Some(carrier) = &mut self.core.carrier {
            carrier.publish();
        }
        self.core.deferrals.yield_core();
        events
    }

    fn next_timeout(&self) -> Option<Duration> {
        let awake = || {
            let places = self.core.ready.awake.iter();
            places.filter_map(|&index| self.connections.get(index as usize)?.as_deref())
        };
        let busy = awake().any(|found| found.has_deadline());
        let busy = busy || !self.requests.is_empty() || !self.parked.is_empty();
        let own = busy.then_some(self.next_scan);
        let streams = self.streams.as_ref().and_then(|streams| streams.next_timeout());
        let idle = awake().filter_map(|found| found.calling.as_ref()?.keep_alive_due());
        let idle = idle.min().map(|due| due.max(self.next_scan));
        let back = self.core.calls_back.next_deadline();
        let others = [idle, streams, back, self.services.next_timeout(), self.core.provider.poll_timeout()];
        others.into_iter().chain([own]).flatten().min()
    }

    fn arm(&mut self) -> bool {
        self.core.completed.is_empty()
            && self.core.events.is_empty()
            && !self.core.calls_back.has_news()
            && self.released.is_empty()
            && !self.core.doorkeeper.as_ref().is_some_and(Doorkeeper::has_released)
            && self.membership.as_mut().is_none_or(|membership| membership.arm())
            // One that was adopted since the last pass.
            && self.requests.iter().all(|request| request.deadline.is_some())
            && self.services.arm()
            && self.core.deferrals.arm()
            && self.streams.as_ref().is_none_or(|streams| streams.arm())
            && self.core.carrier.as_ref().is_none_or(|carrier| carrier.is_quiet())
            && self.core.provider.arm()
    }

    fn disarm(&mut self) {
        if let Some(streams) = &mut self.streams {
            streams.disarm();
        }
        self.services.disarm();
        self.core.deferrals.disarm();
        if let Some(membership) = &mut self.membership {
            membership.disarm();
        }
        self.core.provider.disarm();
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.extend(self.core.provider.descriptor().map(|descriptor| descriptor.as_raw_fd()));
        out.extend(self.streams.as_ref().map(|streams| streams.descriptor()));
        out.extend(self.core.deferrals.descriptor());
        out.extend(self.membership.as_ref().map(|membership| membership.descriptor()));
        self.services.descriptors(out);
    }

    fn stop(&mut self, now: Duration) {
        self.core.now = now;
        self.core.stopping = true;
        // Clients' connections end at once, serving ones when their Calls are answered.
        for found in self.connections.iter_mut().flatten() {
            found.stop(&mut self.core);
            self.core.ready.touch(found);
        }
        if let Some(streams) = &mut self.streams {
            streams.stop();
        }
        while let Some(parked) = self.parked.pop() {
            close(&mut self.core, &mut self.moved, parked, CloseReason::Fabric(DisconnectReason::Local));
        }
    }

    fn is_drained(&self) -> bool {
        self.connection_count == 0 && self.parked.is_empty() && self.stream_count() == 0
    }

    fn give_back(&mut self, now: Duration) {
        self.core.now = now;
        self.services.give_back();
    }

    fn has_given_back(&self) -> bool {
        self.core.carrier.as_ref().is_none_or(|carrier| carrier.is_settled())
    }
}

impl<P: Provider, S: Services> Engine<P, S> {
    /// Handles the events and completions that one poll found. Returns the number of events.
    #[inline]
    fn handle(&mut self) -> usize {
        let mut events = 0;
        // Established comes before a queue pair's first completion, Disconnected after its last.
        while let Some(event) = self.core.provider.poll_event() {
            events += 1;
            self.handle_event(event);
        }
        if !self.completions.is_empty() {
            self.handle_completions();
        }
        events
    }

    /// Polls a few times more: an idle poll is much cheaper than a pass, and shortens the time from a message's arrival to its
    /// handling.
    // Not inline, as each of these: it would slow down a pass that needs none of it.
    #[inline(never)]
    fn poll_again(&mut self) -> usize {
        for _ in 0..IDLE_LOOKS {
            let count = poll_provider(self);
            if count > 0 {
                return count;
            }
        }
        0
    }

    /// Polls once more: where memory is shared, a Read is done when it is posted, so its Call need not wait for another pass. Once
    /// only, so that the pass stays bounded.
    #[inline(never)]
    fn look_after_reads(&mut self) -> usize {
        self.core.read_posted = false;
        poll_provider(self) + self.handle()
    }

    #[inline(never)]
    fn handle_completions(&mut self) {
        while let Some(completion) = self.completions.pop_front() {
            self.complete(completion);
        }
    }

    #[inline]
    fn complete(&mut self, mut completion: Completion) {
        let id = completion.queue_pair;
        let Some(found) = find(&mut self.connections, id) else {
            debug_assert!(false, "{id} is gone, and has a completion");
            return;
        };
        self.core.ready.wake(found);
        match completion.completed {
            // By reference: hardly any message has it, and it is large to move.
            Completed::Receive { buf, invalidated, ref mut exposed } => {
                if completion.result.is_err() {
                    // Flushed: the buffer goes back to its pool.
                    found.receive_flushed(&mut self.core);
                } else {
                    let state = &mut self.core.state;
                    if let Some(recorder) = &mut state.recorder {
                        recorder.note(state.now, id, Way::Received, &buf, invalidated);
                    }
                    let pass = &mut Pass { core: &mut self.core, services: &mut self.services };
                    found.receive(pass, buf, invalidated, exposed);
                }
            }
            Completed::Read(buf) => {
                let read = FinishedRead { request: completion.id, buf, result: completion.result };
                let pass = &mut Pass { core: &mut self.core, services: &mut self.services };
                found.read_done(pass, read);
            }
            Completed::Fence { handle, exposed } => found.fenced(&mut self.core, handle, exposed),
            // Unsignaled, but for the Sends of a stopping server: only failures arrive, and the disconnect that
            // follows them says all.
            Completed::Send(_) => {
                if let (Err(WorkError::Length), Some(xid)) = (completion.result, xid_of(completion.id)) {
                    self.core.state.refused_calls.add(found.peer.as_ref(), xid, self.core.state.now);
                }
                if let Some(serving) = found.serving.as_mut() {
                    serving.sent(&mut self.core);
                }
            }
            Completed::Write(_) => {
                if let (Err(WorkError::RemoteAccess), Some(xid)) = (completion.result, xid_of(completion.id))
                {
                    self.core.state.refused_calls.add(found.peer.as_ref(), xid, self.core.state.now);
                }
            }
        }
        if found.has_waiting() {
            self.core.ready.touch(found);
        }
    }

    #[inline(never)]
    fn handle_event(&mut self, event: Event) {
        match event {
            Event::ConnectRequest { request, peer, private_data, .. } => {
                place_request(self, request, peer, private_data);
            }
            Event::Established { queue_pair, private_data, peer } => {
                let settings = settings(&self.core);
                let Some(found) = find(&mut self.connections, queue_pair) else {
                    debug_assert!(false, "{queue_pair} is established, but was not asked for");
                    return;
                };
                self.core.ready.touch(found);
                found.established = true;
                found.peer = Some(peer);
                self.core.statistics.connections_opened += 1;
                if found.serving.is_some()
                    && tracing::enabled!(tracing::Level::INFO)
                    && let Some(withheld) = self.core.state.comings.admit(self.core.state.now)
                {
                    let (client, withheld) = (found.client(), Withheld(withheld));
                    tracing::info!("{client} connected by RDMA{withheld}");
                    tracing::debug!("{client}: {:?}", found.parameters);
                }
                if found.calling.is_some() {
                    let parameters = Parameters::negotiate(Side::Client, &settings, &private_data);
                    found.parameters = parameters;
                    let seed = self.next_seed();
                    let Engine { core, connections, .. } = self;
                    handle_connected(core, connections, seed, queue_pair, parameters, &private_data);
                }
            }
            Event::Disconnected { queue_pair, reason } => self.disconnects.push((queue_pair, reason)),
            // `Event` may grow.
            _ => {}
        }
    }

    /// Whether every connection that waits or has a deadline is in the list for that.
    fn is_listed(&self) -> bool {
        self.connections.iter().flatten().all(|found| {
            let is_to_be_flushed = found.listed.is_touched || self.core.ready.is_touched_late(found.id);
            (is_to_be_flushed || !found.has_waiting()) && (found.listed.is_awake || !found.has_timer())
        })
    }

    /// Checks deadlines, and makes clients' connections anew that are due.
    #[cold]
    fn scan(&mut self) {
        self.next_scan = self.core.now + SCAN_INTERVAL;
        scan(&mut self.core, &mut self.connections);
        restore(self);
    }

    /// Forgets the connections that are gone, then admits or refuses the ones that ask.
    #[inline(never)]
    fn admit_and_dismiss(&mut self) {
        while let Some((id, reason)) = self.disconnects.pop() {
            self.handle_disconnected(id, reason);
        }
        // After those that are gone: their places and their memory are free now.
        if !self.requests.is_empty() {
            admit_requests(self);
        }
    }

    fn handle_disconnected(&mut self, id: ConnectionId, reason: DisconnectReason) {
        let place = self.connections.get_mut(id.index as usize);
        let Some(mut gone) = place.and_then(|place| place.take_if(|found| found.id == id)) else {
            debug_assert!(false, "{id} is gone for the second time");
            return;
        };
        self.connection_count -= 1;
        self.core.ready.forget(&mut gone);
        self.core.statistics.connections_closed += u64::from(gone.established);
        let reason = gone.close_reason.take().unwrap_or(CloseReason::Fabric(reason));
        self.core.note_end(id, &reason);
        if gone.is_accepted()
            && tracing::enabled!(tracing::Level::INFO)
            && let Some(withheld) = self.core.state.comings.admit(self.core.state.now)
        {
            let (client, service) = (gone.client(), gone.service(self.core.now));
            let (reason, withheld) = (reason.describe("the client"), Withheld(withheld));
            tracing::info!("{client} closed: {}; {service}{withheld}", printable(&reason));
        }
        if let Some(serving) = gone.serving.take() {
            serving.close(&mut self.core, id);
            if gone.is_accepted() {
                self.core.calls_back.note_gone(id);
                self.core.note_departure(gone.peer.as_ref());
                self.core.serving_count -= 1;
            }
        }
        self.parked.extend(lose(&mut self.core, &mut self.moved, gone, reason));
    }
}
