//! Connection set-up, as the fabric sees it.
//!
//! ```text
//! connect ──ConnectArrives──▶ ConnectRequest, prepare, accept
//! Established ◀──AcceptArrives──┘
//!      └──EstablishedArrives──▶ Established
//! ```

use super::device::{BACKLOG_MAX, Request};
use super::queue_pair::{End, Phase};
use super::world::{Happening, State};
use crate::setup::check_limit;
use crate::{ConnectRequestId, DisconnectReason, Event, FabricError, Peer};

/// A connection request that goes from one provider to another. If it is dropped, the client's set-up times out.
#[derive(Debug)]
pub struct SimHandover {
    pub(super) from: End,
}

impl State {
    /// Sends a request to connect on its way, and starts the set-up timer.
    pub(super) fn start_connect(&mut self, from: End, address: &str, private_data: &[u8]) {
        self.start_timer(from);
        if self.random.happens(self.plan.setup_lost) {
            return;
        }
        let private_data = self.carry_private_data(private_data);
        let delay = self.latency(from);
        let address = address.to_owned();
        self.plan_after(delay, Happening::ConnectArrives { from, address, private_data });
    }

    fn start_timer(&mut self, end: End) {
        let timer = self.plan_after(self.plan.setup_timeout, Happening::SetupTimesOut { end });
        if let Some(queue_pair) = self.queue_pair_mut(end) {
            queue_pair.timer = Some(timer);
        }
    }

    fn carry_private_data(&mut self, private_data: &[u8]) -> Vec<u8> {
        let mut len = private_data.len();
        if self.random.happens(self.plan.private_data_dropped) {
            len = 0;
        }
        if self.random.happens(self.plan.private_data_truncated) {
            len = self.random.below(len as u64) as usize;
        }
        private_data[..len].to_vec()
    }

    fn peer_of(&self, device: usize) -> Peer {
        let uid = self.device(device).map_or(0, |device| device.user);
        Peer::Process { pid: device as u32 + 1, uid, gid: 0 }
    }

    pub(super) fn connect_arrives(&mut self, from: End, address: &str, private_data: Vec<u8>) {
        if self.queue_pair(from).is_none_or(|queue_pair| queue_pair.phase != Phase::Connecting) {
            return;
        }
        let Some(&(index, listener)) = self.listeners.get(address) else {
            return self.refuse_connect(from, DisconnectReason::NoListener);
        };
        if self.random.happens(self.plan.connect_refused) {
            return self
                .refuse_connect(from, DisconnectReason::Rejected("refused by the fault plan".to_owned()));
        }
        let request = self.next_request;
        self.next_request += 1;
        let peer = self.peer_of(from.device);
        let Some(device) = self.device_mut(index) else { return };
        if device.requests.len() >= BACKLOG_MAX {
            let reason = format!("{BACKLOG_MAX} connection requests wait already");
            return self.refuse_connect(from, DisconnectReason::Rejected(reason));
        }
        device.requests.insert(request, Request { from });
        let request = ConnectRequestId(request);
        device.events.push_back(Event::ConnectRequest { listener, request, peer, private_data });
    }

    /// A request that came in at another device waits at this one from now on.
    pub(super) fn adopt_request(&mut self, index: usize, from: End) -> Result<ConnectRequestId, FabricError> {
        // The client may have given up; if the request is lost on the way, it times out.
        let is_there = self.queue_pair(from).is_some_and(|queue_pair| queue_pair.phase == Phase::Connecting);
        if self.random.happens(self.plan.handover_lost) || !is_there {
            return Err(FabricError::Gone("the connection request"));
        }
        let request = self.next_request;
        self.next_request += 1;
        let waiting = self.device(index).map_or(0, |device| device.requests.len());
        let (wanted, limit) = (waiting as u64 + 1, BACKLOG_MAX as u64);
        if let Err(error) = check_limit("connection requests that wait", wanted, limit, "answer them sooner")
        {
            self.refuse_connect(from, DisconnectReason::Rejected(error.to_string()));
            return Err(error);
        }
        if let Some(device) = self.device_mut(index) {
            device.requests.insert(request, Request { from });
        }
        Ok(ConnectRequestId(request))
    }

    /// Tells the connecting side that there will be no connection.
    pub(super) fn refuse_connect(&mut self, from: End, reason: DisconnectReason) {
        let delay = self.latency(from);
        self.plan_after(delay, Happening::Dies { end: from, failed: None, reason, tell: None });
    }

    /// The connecting side is gone: its request, wherever it waits, will be too.
    pub(super) fn withdraw_request(&mut self, from: End) {
        let waits = |index: &usize| {
            self.device(*index).is_some_and(|device| device.requests.values().any(|r| r.from == from))
        };
        if let Some(device) = (0..self.devices.len()).find(waits) {
            let delay = self.latency(from);
            self.plan_after(delay, Happening::RequestLapses { device, from });
        }
    }

    pub(super) fn request_lapses(&mut self, device: usize, from: End) {
        if let Some(device) = self.device_mut(device) {
            device.requests.retain(|_, request| request.from != from);
        }
    }

    /// Joins the queue pair of an incoming connection to the one that asked for it.
    pub(super) fn join(&mut self, end: End, from: End) {
        let found = self.queue_pair_mut(from).filter(|queue_pair| queue_pair.phase == Phase::Connecting);
        let is_there = match found {
            Some(queue_pair) => {
                queue_pair.peer = Some(end);
                true
            }
            None => false,
        };
        if let Some(queue_pair) = self.queue_pair_mut(end) {
            queue_pair.peer = Some(from);
        }
        if !is_there {
            let delay = self.latency(end);
            let reason = DisconnectReason::Peer;
            self.plan_after(delay, Happening::Dies { end, failed: None, reason, tell: None });
        }
    }

    /// Sends the accept on its way.
    pub(super) fn start_accept(&mut self, end: End, private_data: &[u8]) {
        self.start_timer(end);
        let Some(queue_pair) = self.queue_pair_mut(end) else { return };
        queue_pair.phase = Phase::Accepting;
        let Some(to) = queue_pair.peer else { return };
        if self.random.happens(self.plan.setup_lost) {
            return;
        }
        let private_data = self.carry_private_data(private_data);
        let delay = self.latency(end);
        self.plan_after(delay, Happening::AcceptArrives { to, private_data });
    }

    pub(super) fn accept_arrives(&mut self, to: End, private_data: Vec<u8>) {
        let Some(queue_pair) = self.queue_pair_mut(to) else { return };
        let (Phase::Connecting, Some(acceptor)) = (queue_pair.phase, queue_pair.peer) else { return };
        self.establish(to, private_data);
        let delay = self.latency(to);
        self.plan_after(delay, Happening::EstablishedArrives { to: acceptor });
    }

    /// The accepting side learns that the connection is up: by being told, or from the first work to arrive.
    pub(super) fn establish_accepting(&mut self, end: End) {
        if self.queue_pair(end).is_some_and(|queue_pair| queue_pair.phase == Phase::Accepting) {
            self.establish(end, Vec::new());
        }
    }

    fn establish(&mut self, end: End, private_data: Vec<u8>) {
        let Some(queue_pair) = self.queue_pair_mut(end) else { return };
        queue_pair.phase = Phase::Established;
        queue_pair.was_established = true;
        queue_pair.held = true;
        let (peer, timer) = (queue_pair.peer, queue_pair.timer.take());
        if let Some(key) = timer {
            self.unplan(key);
        }
        let peer = self.peer_of(peer.map_or(end.device, |peer| peer.device));
        if let Some(device) = self.device_mut(end.device) {
            device.events.push_back(Event::Established { queue_pair: end.id, private_data, peer });
        }
    }

    pub(super) fn setup_times_out(&mut self, end: End) {
        if let Some(queue_pair) = self.queue_pair_mut(end) {
            queue_pair.timer = None;
            self.die(end, None, DisconnectReason::TimedOut, Some(DisconnectReason::Peer));
        }
    }
}
