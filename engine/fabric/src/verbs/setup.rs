//! Starts connections, and answers requests.

use std::net::SocketAddr;
use std::time::Duration;

use stag_rdma_core_sys as sys;

use super::connection::{Dialing, Phase, QueuePair};
use super::device::{self, Opened, PRIVATE_DATA_LEN_MAX, capacities};
use super::errors::{address_hint, hint};
use super::exposure::Exposures;
use super::identifiers::{CmId, Parameters};
use super::objects::MemoryWindow;
use super::plain::PlainBuffers;
use super::{Incoming, Listener, Verbs, sends};
use crate::epoll::Token;
use crate::setup::{check_private_data, resolve};
use crate::{
    ConnectRequestId, DisconnectReason, ExposureKind, FabricError, ListenerId, Peer, QueuePairCapacity,
    QueuePairId,
};

/// Octets of a refusal's reason: what InfiniBand has room for.
const REASON_LEN_MAX: usize = 148;

impl Verbs {
    pub(super) fn start_listening(&mut self, address: &str) -> Result<ListenerId, FabricError> {
        let socket = resolve(address)?;
        let cm = self.listen_at(self.listeners.len() as u32, socket)?;
        // With port 0 the connection manager has chosen one, which stays when the device comes back.
        let mut address = socket;
        address.set_port(cm.local().map_or(socket.port(), |local| local.port()));
        self.listeners.push(Listener { cm: Some(cm), address });
        Ok(ListenerId(self.listeners.len() as u32 - 1))
    }

    /// Listens; at an address that leads to another device than the opened one, there.
    pub(super) fn listen_at(&mut self, index: u32, address: SocketAddr) -> Result<CmId, FabricError> {
        let failed = |source| FabricError::System { doing: format!("listen at verbs://{address}"), source };
        let cm = CmId::new(&self.channel, Token::Listener(index)).map_err(failed)?;
        cm.bind(address).map_err(failed)?;
        self.follow(cm.context())?;
        cm.listen(self.config.backlog).map_err(failed)?;
        Ok(cm)
    }

    /// Opens the device of an identifier instead of the one that was opened at first, unless that one was named or is
    /// in use: which one an address leads to only the connection manager knows. All addresses together lead to none.
    fn follow(&mut self, context: *mut sys::ibv_context) -> Result<(), FabricError> {
        let Some(opened) = &self.opened else { return Err(FabricError::Gone("the RDMA device")) };
        if context.is_null() || context == opened.device.as_ptr() {
            return Ok(());
        }
        let device = device::of_context(self.core, context)?;
        let is_used = self.config.device.is_some()
            || opened.receives.is_some()
            || self.listeners.iter().any(|listener| listener.cm.is_some())
            || self.domains().next().is_some();
        if is_used {
            let (there, here) = (device.name(), &opened.profile.name);
            return Err(FabricError::Unavailable {
                fabric: "verbs",
                problem: format!(
                    "the address leads to the device {there}, and {here} is open; name that device"
                ),
            });
        }
        let opened = Opened::on(device, &self.config, &self.arenas)?;
        let (what, repair) = ("completions of all queue pairs", "name the device");
        let (wanted, limit) = (self.completions_taken, opened.completions(&self.config).into());
        if wanted > limit {
            return Err(FabricError::Limit { what, wanted, limit, repair });
        }
        tracing::info!("the RDMA device is {}, because of the address", opened.profile.name);
        self.watch(opened)
    }

    pub(super) fn start_connecting(
        &mut self,
        address: &str,
        private_data: &[u8],
        capacity: QueuePairCapacity,
    ) -> Result<QueuePairId, FabricError> {
        let socket = resolve(address)?;
        check_private_data(private_data, PRIVATE_DATA_LEN_MAX)?;
        let mut pair = self.admit(Phase::Resolving, capacity, Peer::Address(socket))?;
        let id = pair.id;
        let cm = CmId::new(&self.channel, Token::queue_pair(id)).and_then(|cm| {
            cm.resolve_address(socket, self.timeout_ms())?;
            Ok(cm)
        });
        pair.dialing = Some(Dialing { private_data: private_data.to_vec() });
        match cm {
            Ok(cm) => pair.cm = Some(cm),
            Err(source) => {
                self.completions_taken -= pair.completions;
                let doing = format!("connect to verbs://{address}{}", address_hint(&source));
                return Err(FabricError::System { doing, source });
            }
        }
        self.install(pair);
        Ok(id)
    }

    /// The address is resolved, so the device is known: makes the queue pair.
    pub(super) fn address_resolved(&mut self, index: u32) {
        let timeout_ms = self.timeout_ms();
        let context = self.at(index).and_then(|pair| Some(pair.cm.as_ref()?.context()));
        if let Err(error) = self.follow(context.unwrap_or(std::ptr::null_mut())) {
            tracing::warn!("{error}");
        }
        if let Err(reason) = self.equip(index) {
            self.close(index, reason);
            return;
        }
        let Some(pair) = self.at(index) else { return };
        pair.phase = Phase::Routing;
        let routed = pair.cm.as_ref().is_some_and(|cm| cm.resolve_route(timeout_ms).is_ok());
        if !routed {
            self.close(index, DisconnectReason::Unreachable("the route cannot be resolved"));
        }
    }

    /// The route is known: asks the other side.
    pub(super) fn route_resolved(&mut self, index: u32) {
        self.ring_one(index);
        let Some(opened) = &self.opened else { return };
        let (responder_resources, initiator_depth) =
            (opened.profile.responder_resources, opened.profile.initiator_depth);
        let rnr_retry_count = self.config.rnr_retries.min(7);
        let Some(pair) = self.at(index) else { return };
        let Some(dialing) = pair.dialing.take() else { return };
        pair.phase = Phase::Connecting;
        let private_data = &dialing.private_data[..];
        let parameters = Parameters { private_data, responder_resources, initiator_depth, rnr_retry_count };
        if let Some(Err(error)) = pair.cm.as_ref().map(|cm| cm.connect(parameters)) {
            let reason = match error.raw_os_error() {
                // siw looks for the listener here.
                Some(libc::ECONNREFUSED) => DisconnectReason::NoListener,
                Some(libc::ETIMEDOUT) => DisconnectReason::TimedOut,
                _ => DisconnectReason::Unreachable("the device refused to connect"),
            };
            tracing::debug!("rdma_connect: {error}");
            self.close(index, reason);
        }
    }

    /// Prepares the queue pair of a request. The client gets a refusal when that fails.
    pub(super) fn prepare_request(
        &mut self,
        request: ConnectRequestId,
        capacity: QueuePairCapacity,
    ) -> Result<QueuePairId, FabricError> {
        let at = self.incoming.iter().position(|incoming| u64::from(incoming.number) == request.0);
        let mut incoming = self.incoming.swap_remove(at.ok_or(FabricError::Gone("the connection request"))?);
        let peer = Peer::Address(incoming.cm.peer().unwrap_or(UNKNOWN_PEER));
        let mut pair = match self.admit(Phase::Prepared, capacity, peer) {
            Ok(pair) => pair,
            Err(error) => {
                incoming.cm.reject(reason_octets(&error.to_string()));
                return Err(error);
            }
        };
        let (id, completions) = (pair.id, pair.completions);
        incoming.cm.set_token(Token::queue_pair(id));
        pair.offered = incoming.offered;
        pair.cm = Some(incoming.cm);
        self.install(pair);
        if let Err(reason) = self.equip(id.index) {
            let doing = format!("make the queue pair of an incoming connection: {reason:?}");
            if let Some(Some(pair)) = self.slots.get_mut(id.index as usize)
                && let Some(cm) = &pair.cm
            {
                cm.reject(reason_octets(&doing));
                pair.destroy();
            }
            // It never was: nothing was posted, and its name was not handed out.
            self.slots[id.index as usize] = None;
            self.attention.retain(|&index| index != id.index);
            self.completions_taken -= completions;
            return Err(FabricError::System { doing, source: std::io::Error::last_os_error() });
        }
        Ok(id)
    }

    pub(super) fn accept_prepared(
        &mut self,
        queue_pair: QueuePairId,
        private_data: &[u8],
    ) -> Result<(), FabricError> {
        check_private_data(private_data, PRIVATE_DATA_LEN_MAX)?;
        let gone = FabricError::Gone("the prepared queue pair");
        let Some(opened) = &self.opened else { return Err(gone) };
        let (ours_in, ours_out) = (opened.profile.responder_resources, opened.profile.initiator_depth);
        let rnr_retry_count = self.config.rnr_retries.min(7);
        if self.find(queue_pair).is_none_or(|pair| pair.phase != Phase::Prepared) {
            return Err(gone);
        }
        // Receives are there before the peer hears of it.
        self.ring_one(queue_pair.index);
        let Some(pair) = self.find(queue_pair).filter(|pair| pair.phase == Phase::Prepared) else {
            return Ok(());
        };
        let (takes, makes) = pair.offered;
        let initiator_depth = ours_out.min(takes);
        let responder_resources = ours_in.min(makes);
        pair.sends.set_read_depth(initiator_depth);
        pair.phase = Phase::Accepted;
        pair.deadline = None;
        let parameters = Parameters { private_data, responder_resources, initiator_depth, rnr_retry_count };
        if let Some(Err(error)) = pair.cm.as_ref().map(|cm| cm.accept(parameters)) {
            tracing::debug!("rdma_accept: {error}");
            self.close(queue_pair.index, DisconnectReason::PeerDied);
        }
        Ok(())
    }

    pub(super) fn refuse(&mut self, request: ConnectRequestId, reason: &str) {
        let at = self.incoming.iter().position(|incoming| u64::from(incoming.number) == request.0);
        if let Some(at) = at {
            let incoming: Incoming = self.incoming.swap_remove(at);
            incoming.cm.reject(reason_octets(reason));
        }
    }

    /// Makes the queue pair and what belongs to it, on the opened device.
    fn equip(&mut self, index: u32) -> Result<(), DisconnectReason> {
        let Some(opened) = &mut self.opened else { return Err(DisconnectReason::DeviceRemoved) };
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return Ok(()) };
        let Some(cm) = &mut pair.cm else { return Ok(()) };
        if self.config.ack_timeout != 0 {
            cm.set_ack_timeout(self.config.ack_timeout);
        }
        if cm.context() != opened.device.as_ptr() {
            return Err(DisconnectReason::Unreachable("another RDMA device than the opened one leads there"));
        }
        let failed = |what: &'static str| {
            move |error: std::io::Error| {
                tracing::warn!("{what}{}: {error}", hint(&error));
                DisconnectReason::Unreachable(what)
            }
        };
        let domain = opened.domain(&self.arenas).map_err(failed("no protection domain"))?;
        let capacity = &pair.capacity;
        let shared = pair.receives.shared();
        let receives = if shared.is_some() { 0 } else { capacity.receives.max(1) };
        let cap = capacities(
            sends::depth(capacity) as u32,
            receives,
            1 + capacity.receive_targets,
            opened.profile.inline_len,
        );
        let made = cm.create_queue_pair(&domain.domain, &opened.queue, shared, cap);
        let made =
            made.map_err(failed("the device makes no such queue pair: too deep, or it has none left"))?;
        // What was probed may not be left in a deeper queue.
        pair.inline_len = made.max_inline_data.min(opened.profile.inline_len);
        pair.sends.set_lent_from(opened.profile.lent_from);
        if let Some(shared) = shared {
            shared.join(cm.queue_pair_number(), index);
        }
        let count = capacity.exposures as usize;
        let windows = match opened.profile.exposure {
            ExposureKind::MemoryWindow => {
                (0..count).map(|_| MemoryWindow::new(&domain.domain)).collect::<Result<_, _>>()
            }
            _ => Ok(Vec::new()),
        };
        let windows = windows.map_err(failed("the device has no memory window left"))?;
        let is_standing = opened.profile.exposure == ExposureKind::Standing;
        pair.exposures = Exposures::new(windows, count, is_standing);
        let plain = PlainBuffers::new(&domain, pair.id, capacity).unwrap_or_else(|error| {
            tracing::debug!("no memory to build messages in, so all are sent from pools: {error}");
            None
        });
        pair.sends.set_plain(plain);
        pair.domain = Some(domain);
        self.mark_dirty(index);
        Ok(())
    }

    /// Puts a queue pair into the slot that `admit` found.
    fn install(&mut self, pair: QueuePair) {
        let index = pair.id.index;
        self.slots[index as usize] = Some(Box::new(pair));
        self.mark_attention(index);
    }

    fn timeout_ms(&self) -> i32 {
        let timeout = self.config.setup_timeout.max(Duration::from_millis(1));
        i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX)
    }
}

/// The client's address, where the connection manager does not say it.
const UNKNOWN_PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

/// As much of a reason as fits.
pub(super) fn reason_octets(reason: &str) -> &[u8] {
    let mut end = reason.len().min(REASON_LEN_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    &reason.as_bytes()[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        assert_eq!(reason_octets("short"), b"short");
        let long = "ä".repeat(100);
        let cut = reason_octets(&long);
        assert_eq!(cut.len(), REASON_LEN_MAX);
        assert!(long.starts_with(std::str::from_utf8(cut).expect("whole characters")));
        let odd = format!("x{long}");
        assert_eq!(reason_octets(&odd).len(), REASON_LEN_MAX - 1);
    }
}
