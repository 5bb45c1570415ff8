//! Events of the connection manager and of the device, deadlines, and the loss and return of the device.

use std::time::Duration;

use stag_rdma_core_sys as sys;

use super::connection::{Dialing, Phase, QueuePair};
use super::device::Opened;
use super::errors::{rejection, setup_failure};
use super::handover::next_number;
use super::identifiers::{CmEvent, CmId};
use super::objects::{About, AsyncEvent};
use super::{
    FLUSH_TIMEOUT, INCOMING_MAX, Incoming, LOOK_INTERVAL, Listener, REASON_TIMEOUT, RETURN_INTERVAL, Verbs,
};
use crate::epoll::Token;
use crate::{ConnectRequestId, DisconnectReason, Event, ListenerId, Peer, WorkError};

/// Events taken in one look.
const EVENTS_BURST: usize = 32;

impl Verbs {
    /// Polls everything but completions.
    #[cold]
    pub(super) fn poll_events(&mut self) {
        self.look_at = self.now + LOOK_INTERVAL;
        self.look_passes = 0;
        self.counters.looks += 1;
        if self.epoll.poll() > 0 {
            for _ in 0..EVENTS_BURST {
                let Some(event) = self.channel.next() else { break };
                self.hear(event);
            }
            self.hear_device();
        }
        self.hear_what_was_passed_on();
        if self.is_broken {
            self.lose_device();
        }
        self.attend();
        if self.now >= self.keep_alive_at {
            self.ask_the_silent();
        }
        if self.now >= self.return_at {
            self.probe_device();
        }
    }

    /// One event of the connection manager.
    fn hear(&mut self, event: CmEvent) {
        let token = event.token;
        match token {
            // Each identifier is somebody's.
            Token::Own => {}
            Token::Listener(index) => self.hear_listener(index, event),
            Token::Incoming { index: number, .. } => {
                let before = self.incoming.len();
                self.incoming.retain(|incoming| incoming.number != number);
                if self.incoming.len() == before {
                    self.note_early_end(number);
                }
            }
            Token::QueuePair { index, .. } => {
                let is_current = |pair: &&mut QueuePair| Token::queue_pair(pair.id) == token;
                let phase = self.at(index).filter(is_current).map(|pair| pair.phase);
                if let Some(phase) = phase.filter(|phase| !matches!(phase, Phase::Closing | Phase::Gone)) {
                    self.hear_queue_pair(index, phase, &event);
                }
            }
        }
    }

    fn hear_listener(&mut self, index: u32, event: CmEvent) {
        match event.kind {
            sys::RDMA_CM_EVENT_CONNECT_REQUEST => {
                let Some(mut cm) = event.incoming else { return };
                if self.incoming.len() >= INCOMING_MAX {
                    cm.reject(b"too many connection requests wait for an answer");
                    return;
                }
                let number = next_number();
                cm.set_token(Token::Incoming { index: number, generation: 0 });
                let Some(peer) = cm.peer().map(Peer::Address) else {
                    cm.reject(b"the connection manager does not say who you are");
                    return;
                };
                // What the peer has resources for is what we may make, and the other way round.
                let offered = (event.initiator_depth, event.responder_resources);
                self.incoming.push(Incoming { cm, number, offered });
                self.events.push_back(Event::ConnectRequest {
                    listener: ListenerId(index),
                    request: ConnectRequestId(number.into()),
                    peer,
                    private_data: event.private_data,
                });
            }
            sys::RDMA_CM_EVENT_DEVICE_REMOVAL => {
                if let Some(listener) = self.listeners.get_mut(index as usize) {
                    listener.cm = None;
                }
                self.lose_device();
            }
            // A bond that goes on over another device: the listener stayed with the one it was on.
            sys::RDMA_CM_EVENT_ADDR_CHANGE => {
                if let Some(listener) = self.listeners.get_mut(index as usize) {
                    tracing::warn!("the RDMA device of verbs://{} changed", listener.address);
                    listener.cm = None;
                    self.return_at = self.now;
                }
            }
            kind => tracing::debug!("a listener's event {kind}, status {}", event.status),
        }
    }

    fn hear_queue_pair(&mut self, index: u32, phase: Phase, event: &CmEvent) {
        match (event.kind, phase) {
            (sys::RDMA_CM_EVENT_ADDR_RESOLVED, Phase::Resolving) => self.address_resolved(index),
            (sys::RDMA_CM_EVENT_ROUTE_RESOLVED, Phase::Routing) => self.route_resolved(index),
            (sys::RDMA_CM_EVENT_ESTABLISHED, Phase::Connecting) => {
                let settle = self.opened.as_ref().map_or(Duration::ZERO, |opened| opened.profile.settle);
                let private_data = event.private_data.clone();
                let Some(pair) = self.at(index) else { return };
                pair.sends.set_read_depth(event.initiator_depth);
                if settle.is_zero() {
                    self.establish(index, private_data);
                } else {
                    pair.phase = Phase::Settling;
                    pair.deadline = None;
                    pair.dialing = Some(Dialing { private_data });
                }
            }
            (sys::RDMA_CM_EVENT_ESTABLISHED, Phase::Accepted) => self.establish(index, Vec::new()),
            // The client gave up.
            (sys::RDMA_CM_EVENT_REJECTED, Phase::Prepared | Phase::Accepted) => {
                self.close(index, DisconnectReason::Peer);
            }
            (sys::RDMA_CM_EVENT_REJECTED, _) => {
                self.close(index, rejection(event.status, &event.private_data));
            }
            (sys::RDMA_CM_EVENT_DISCONNECTED, _) => self.close(index, DisconnectReason::Peer),
            (sys::RDMA_CM_EVENT_DEVICE_REMOVAL, _) => self.lose_device(),
            (sys::RDMA_CM_EVENT_ADDR_CHANGE, _) => {
                self.close(index, DisconnectReason::Unreachable("the network address of the device changed"));
            }
            (
                sys::RDMA_CM_EVENT_ADDR_ERROR
                | sys::RDMA_CM_EVENT_ROUTE_ERROR
                | sys::RDMA_CM_EVENT_CONNECT_ERROR
                | sys::RDMA_CM_EVENT_UNREACHABLE,
                _,
            ) => {
                tracing::debug!("no connection: event {}, status {}", event.kind, event.status);
                self.close(index, setup_failure(event.kind, event.status));
            }
            // Said twice, late, or of no concern to us: TIMEWAIT_EXIT, multicast.
            (kind, phase) => tracing::debug!("event {kind}, status {}, in {phase:?}", event.status),
        }
    }

    /// The connection is there.
    pub(super) fn establish(&mut self, index: u32, private_data: Vec<u8>) {
        let Some(pair) = self.at(index) else { return };
        pair.phase = Phase::Open;
        (pair.is_established, pair.is_heard) = (true, true);
        pair.deadline = None;
        // The connecting side knows its peer since it resolved the address; the name may have had several.
        if let Some(address) = pair.cm.as_ref().and_then(|cm| cm.peer()) {
            pair.peer = Peer::Address(address);
        }
        let event = Event::Established { queue_pair: pair.id, private_data, peer: pair.peer.clone() };
        self.events.push_back(event);
        self.mark_dirty(index);
    }

    /// What the device itself has to say. What is not ours is another provider's of this process.
    fn hear_device(&mut self) {
        for _ in 0..EVENTS_BURST {
            let Some(opened) = &self.opened else { return };
            match opened.device.next_async_event() {
                Ok(Some(event)) => {
                    if !self.is_ours_alone(event) {
                        opened.claim.pass_on(event);
                    }
                    self.hear_of_device(event);
                }
                Ok(None) => return,
                // Another provider may have taken the event that said so.
                Err(_) => return self.lose_device(),
            }
        }
    }

    /// What other providers were told and passed on.
    fn hear_what_was_passed_on(&mut self) {
        let passed = self.opened.as_ref().map(|opened| opened.claim.take_passed_on());
        passed.into_iter().flatten().for_each(|event| self.hear_of_device(event));
    }

    /// Whether an event is about what is ours.
    fn is_ours_alone(&self, event: AsyncEvent) -> bool {
        let Some(opened) = &self.opened else { return false };
        match event.about {
            About::QueuePair(number) => self.numbered(number).is_some(),
            About::CompletionQueue(address) => opened.queue.address() == address,
            About::SharedReceives(address) => {
                opened.receives.as_ref().is_some_and(|shared| shared.queue().as_ptr() as usize == address)
            }
            About::Device => false,
        }
    }

    /// The slot of the queue pair with that number.
    fn numbered(&self, number: u32) -> Option<u32> {
        let is_it = |cm: &CmId| number != 0 && cm.queue_pair_number() == number;
        let at = self
            .slots
            .iter()
            .position(|slot| slot.as_ref().and_then(|pair| pair.cm.as_ref()).is_some_and(is_it));
        at.map(|at| at as u32)
    }

    fn hear_of_device(&mut self, event: AsyncEvent) {
        match event.about {
            About::QueuePair(number) => {
                if let Some(index) = self.numbered(number) {
                    self.hear_of_queue_pair(index, event.kind);
                }
            }
            // Of no use any more, and with it everything: the device is opened anew.
            About::CompletionQueue(_) | About::SharedReceives(_) => {
                if self.is_ours_alone(event) {
                    self.lose_device();
                }
            }
            About::Device => match event.kind {
                sys::IBV_EVENT_DEVICE_FATAL => self.lose_device(),
                // Not the end of connections: the device tries again for a while, and a link that was only pulled for a
                // moment is back by then.
                sys::IBV_EVENT_PORT_ERR => tracing::warn!("a port of the RDMA device is down"),
                sys::IBV_EVENT_PORT_ACTIVE => tracing::info!("a port of the RDMA device is up"),
                // The connections over it find out; those over the port's other addresses go on.
                sys::IBV_EVENT_GID_CHANGE | sys::IBV_EVENT_LID_CHANGE | sys::IBV_EVENT_PKEY_CHANGE => {
                    tracing::warn!("an address of the RDMA device changed: its connections may end");
                }
                kind => tracing::debug!("event {kind} of the RDMA device"),
            },
        }
    }

    fn hear_of_queue_pair(&mut self, index: u32, kind: sys::ibv_event_type) {
        let loss_looks_fatal = self.opened.as_ref().is_some_and(|opened| opened.profile.loss_looks_fatal);
        match kind {
            sys::IBV_EVENT_COMM_EST => self.first_message(index),
            // Its answer to a Read could not be sent: the access is forbidden, or the reader is gone.
            sys::IBV_EVENT_QP_REQ_ERR if loss_looks_fatal => self.failed(index, WorkError::Flushed),
            sys::IBV_EVENT_QP_REQ_ERR | sys::IBV_EVENT_QP_ACCESS_ERR => {
                let what = "it requested a forbidden access, or sent a malformed message";
                self.close(index, DisconnectReason::PeerViolation(what));
            }
            sys::IBV_EVENT_QP_LAST_WQE_REACHED => {
                if let Some(pair) = self.at(index) {
                    pair.awaits_last_receive = false;
                }
            }
            _ => self.failed(index, WorkError::Device),
        }
    }

    /// Something came before the connection manager said that the connection is there, or the time for that came: then
    /// it is.
    pub(super) fn first_message(&mut self, index: u32) {
        let Some(pair) = self.at(index) else { return };
        match pair.phase {
            Phase::Accepted => {
                if let Some(cm) = &pair.cm {
                    cm.notify_established();
                }
                self.establish(index, Vec::new());
            }
            Phase::Settling => {
                let private_data = pair.dialing.take().map(|dialing| dialing.private_data);
                self.establish(index, private_data.unwrap_or_default());
            }
            _ => {}
        }
    }

    /// Queue pairs whose phase ends with time, or is over.
    fn attend(&mut self) {
        let now = self.now;
        let settle = self.opened.as_ref().map_or(Duration::ZERO, |opened| opened.profile.settle);
        let mut at = 0;
        while let Some(&index) = self.attention.get(at) {
            let setup_timeout = self.config.setup_timeout;
            let Some(pair) = self.at(index) else {
                self.attention.swap_remove(at);
                continue;
            };
            let timeout = match pair.phase {
                Phase::Open => {
                    self.attention.swap_remove(at);
                    continue;
                }
                Phase::Failing => REASON_TIMEOUT,
                Phase::Settling => settle,
                Phase::Closing | Phase::Gone => FLUSH_TIMEOUT,
                _ => setup_timeout,
            };
            let deadline = *pair.deadline.get_or_insert(now.saturating_add(timeout));
            let is_late = now >= deadline;
            at += 1;
            match pair.phase {
                Phase::Closing if is_late || pair.is_flushed() => self.finish(index),
                Phase::Settling if is_late => self.first_message(index),
                Phase::Failing if is_late => self.close(index, DisconnectReason::Peer),
                Phase::Closing | Phase::Failing | Phase::Gone => {}
                _ if is_late => self.close(index, DisconnectReason::TimedOut),
                _ => {}
            }
            if self.leave(index) {
                at -= 1;
                self.attention.retain(|&other| other != index);
            }
        }
    }

    /// Asks peers of whom nothing came since the last time whether they are there. Who does not answer ends as any other
    /// that requests do not reach.
    fn ask_the_silent(&mut self) {
        let Some(interval) = self.config.keep_alive else { return };
        self.keep_alive_at = self.now.saturating_add(interval);
        let is_iwarp = self.opened.as_ref().is_some_and(|opened| opened.profile.is_iwarp);
        for index in 0..self.slots.len() as u32 {
            let Some(pair) = self.at(index).filter(|pair| pair.is_open()) else { continue };
            let is_silent = !std::mem::take(&mut pair.is_heard);
            // Over iWARP the end that connected speaks first (RFC 5044, 7.1).
            if is_silent && (pair.was_heard || !is_iwarp) && pair.sends.push_probe() {
                self.mark_dirty(index);
                self.counters.probes += 1;
            }
        }
    }

    /// When `look` has to come by even if nothing happens.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let pairs = self.attention.iter().filter_map(|&index| {
            let pair = self.slots.get(index as usize)?.as_ref()?;
            let is_over = matches!(pair.phase, Phase::Closing | Phase::Gone);
            Some(if is_over { self.now + LOOK_INTERVAL } else { pair.deadline.unwrap_or(self.now) })
        });
        let looks =
            self.is_incomplete() || self.opened.as_ref().is_some_and(|opened| opened.claim.is_visible());
        let asks = self.config.keep_alive.is_some();
        pairs.chain(looks.then_some(self.return_at)).chain(asks.then_some(self.keep_alive_at)).min()
    }

    /// The device is gone, or of no use any more: so is everything on it.
    fn lose_device(&mut self) {
        if self.opened.is_none() {
            return;
        }
        tracing::warn!(
            "the RDMA device is gone; all its connections end, and it is looked for until it is back"
        );
        self.incoming.clear();
        for listener in &mut self.listeners {
            listener.cm = None;
        }
        for index in 0..self.slots.len() as u32 {
            self.close(index, DisconnectReason::DeviceRemoved);
            // It gives nothing back any more; destroying the queue pair ends all access.
            if self.at(index).is_some_and(|pair| pair.phase == Phase::Closing) {
                self.finish(index);
            }
        }
        // All but the device itself ends here.
        self.left = self.opened.take().map(|opened| opened.claim);
        self.is_broken = false;
        self.return_at = self.now + RETURN_INTERVAL;
    }

    /// Whether the device is away, or a listener is.
    fn is_incomplete(&self) -> bool {
        self.opened.is_none() || self.listeners.iter().any(|listener| listener.cm.is_none())
    }

    /// Looks whether the device is still there. Opens it again if it is back, with its arenas, and restores the
    /// listeners that were lost.
    #[cold]
    fn probe_device(&mut self) {
        self.return_at = self.now + RETURN_INTERVAL;
        if self.opened.as_ref().is_some_and(|opened| opened.claim.is_gone()) {
            self.lose_device();
        }
        if let Some(claim) = self.left.take_if(|claim| claim.is_gone()) {
            claim.let_go();
        }
        if self.opened.is_none() && !self.open_again() {
            return;
        }
        for index in 0..self.listeners.len() {
            let Listener { cm: None, address } = self.listeners[index] else { continue };
            match self.listen_at(index as u32, address) {
                Ok(cm) => {
                    tracing::info!("listening at verbs://{address} again");
                    self.listeners[index].cm = Some(cm);
                }
                // Its address may take a while to be back. The loss was told, and it is tried until it succeeds.
                Err(error) => tracing::debug!("listen at verbs://{address} again: {error}"),
            }
        }
    }

    fn open_again(&mut self) -> bool {
        let opened = match Opened::new(self.core, &self.config, &self.arenas) {
            Ok(opened) => opened,
            Err(error) => {
                tracing::debug!("the RDMA device is not back: {error}");
                return false;
            }
        };
        let name = opened.profile.name.clone();
        if let Err(error) = self.watch(opened) {
            tracing::warn!("{error}");
            self.opened = None;
            return false;
        }
        self.left = None;
        tracing::info!("the RDMA device {name} is back");
        true
    }
}
