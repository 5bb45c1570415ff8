//! The version that a connection speaks: the announcements, the probe, and the consequences of its answer.

use stag_fabric::{Exposed, Handle, Provider, QueuePairCapacity};
use stag_memory::Buf;
use stag_proto::parameters::Parameters;
use stag_proto::version::{NextMessage, ProtocolVersion};
use stag_wire::reliable_reply::announces_version_2;

use crate::ConnectionId;
use crate::both_ways::Half;
use crate::client::calling::Calling;
use crate::client::slot::CallKind;
use crate::client::{Chunks, CloseReason, Credentials, ReplyMode, Request};
use crate::config::ProtocolChoice;
use crate::connection::Connection;
use crate::engine::{Engine, find};
use crate::fault::fault;
use crate::server::serving::Serving;
use crate::service::Services;
use crate::state::{Core, Link, Pass};
use crate::version2::{
    ClientVersion2, PlacementLimits, ServerVersion2, calling, own_characteristics, serving,
};

impl<P: Provider, S: Services> Engine<P, S> {
    /// Returns `capacity` with as many targets for each Receive as a connection of version 2 may post.
    pub(crate) fn with_targets(&self, capacity: QueuePairCapacity) -> QueuePairCapacity {
        let config = &self.core.config;
        let own = own_characteristics(config, self.core.provider.limits().receive_targets, true);
        let receive_targets = if config.speaks_version_2() { own.layout.targets() } else { 0 };
        QueuePairCapacity { receive_targets, ..capacity }
    }

    /// What the client's connection `id` has to find out, as [`Engine::second_client`].
    pub(crate) fn version2_of(
        &mut self,
        id: ConnectionId,
        parameters: Parameters,
        private_data: &[u8],
    ) -> Option<Box<ClientVersion2>> {
        let session = find(&mut self.connections, id)?.session.as_deref()?;
        let assumes_version_1 = session.assumes_version_1;
        self.second_client(parameters, private_data, assumes_version_1)
    }

    /// Says what a client's connection that is established has to find out of the peer's version. `None`: nothing, it speaks
    /// version 1.
    pub(crate) fn second_client(
        &self,
        parameters: Parameters,
        private_data: &[u8],
        assumes_version_1: bool,
    ) -> Option<Box<ClientVersion2>> {
        let config = &self.core.config;
        let is_announced = announces_version_2(private_data);
        let is_tried = !assumes_version_1 && self.has_room_for_version2();
        if !is_tried || !(is_announced || config.protocol == ProtocolChoice::Two) {
            return None;
        }
        let limits = self.core.provider.limits();
        let own = own_characteristics(config, limits.receive_targets, is_announced);
        let placement = PlacementLimits::of(config, &limits);
        Some(Box::new(ClientVersion2::new(config, own, parameters, is_announced, placement)))
    }

    /// Whether one more connection may speak version 2.
    pub(crate) fn has_room_for_version2(&self) -> bool {
        let config = &self.core.config;
        let most = config.version2_connections();
        if most == 0 || most >= config.connections_max {
            return most > 0;
        }
        let mut open = self.connections.iter().flatten().filter(|found| found.may_speak_version2());
        open.nth(most as usize - 1).is_none()
    }

    /// Gives the server half of a new connection what version 2 adds, if it may be spoken.
    pub(crate) fn offer_version2(
        &self,
        connection: &mut Connection,
        serving: &mut Serving,
        private_data: &[u8],
    ) {
        let config = &self.core.config;
        let is_announced = announces_version_2(private_data);
        // Without room the client hears no announcement, as from a server that speaks version 1 only.
        if !(is_announced || config.protocol == ProtocolChoice::Two) || !self.has_room_for_version2() {
            return;
        }
        let own = own_characteristics(config, self.core.provider.limits().receive_targets, is_announced);
        // Until the client tells more, Replies are as long as version 1 would have them (V2-5.2-c).
        let threshold = connection.parameters.reply_threshold;
        let mut version2 = Box::new(ServerVersion2::new(config, own, threshold));
        version2.learn_receives(&mut serving.responder);
        serving.version2 = Some(version2);
        connection.is_special = true;
    }
}

impl Connection {
    /// Whether it speaks version 2, or is about to find out.
    fn may_speak_version2(&self) -> bool {
        self.serving.as_ref().is_some_and(|serving| serving.version2.is_some())
            || self.calling.as_ref().is_some_and(|calling| calling.version2.is_some())
    }

    /// A client's connection that is to speak version 2 has a queue pair: probes the peer. It counts as established when the
    /// answer is here.
    pub(crate) fn begin_probing<P: Provider>(&mut self, core: &mut Core<P>) {
        (self.established, self.is_special) = (false, true);
        core.statistics.connections_opened -= 1;
        self.serve_reverse(core);
        if !self.is_closing() && !self.send_probe(core) {
            self.close(core, CloseReason::CannotReply);
        }
    }

    /// Sends the probe for version 2 (V2-X-4). `false`: it cannot be sent.
    pub(crate) fn send_probe<P: Provider>(&mut self, core: &mut Core<P>) -> bool {
        let Some(calling) = &mut self.calling else { return false };
        calling.post_divided(core, self.id);
        let named = calling.policy.keep_alive;
        let request = Request {
            program: named.map_or(0, |policy| policy.program),
            version: named.map_or(0, |policy| policy.version),
            procedure: 0,
            credentials: Credentials::None,
            user: 0,
            timeout: core.config.set_up_timeout,
            results_len_max: 0,
            retransmit: false,
            reply_mode: ReplyMode::Chunk,
        };
        let made =
            calling.make(core, self.id, &request, &mut Chunks::default(), CallKind::KeepAlive, |_| Ok(()));
        if let Some(version2) = &mut calling.version2 {
            version2.probe.handle_sent();
        }
        made.is_ok()
    }

    /// Takes in a message on a connection that speaks version 2, or whose version is not known yet.
    #[inline(never)]
    pub(crate) fn receive_version2<P: Provider, S: Services>(
        &mut self,
        pass: &mut Pass<'_, Core<P>, S>,
        message: Buf,
        invalidated: Option<Handle>,
        exposed: &mut Option<Exposed>,
    ) -> Result<(), CloseReason> {
        let half = self.direct(pass.core, &message, invalidated, exposed);
        let is_settled = self.calling.as_ref().is_none_or(Calling::has_version);
        match (half, &mut self.serving, &mut self.calling) {
            (Some(Half::Serving), Some(serving), _) if is_settled => {
                let link = Link { id: self.id, peer: self.peer.as_ref() };
                serving::receive_version2(serving, pass, link, message)
            }
            // V2-5-a: one message at a time, until the first is answered.
            (Some(Half::Serving), Some(_), _) => {
                Err(CloseReason::Violation("it called before it said which version it speaks"))
            }
            (Some(Half::Calling), serving, Some(calling)) => {
                let received =
                    calling::receive_version2(calling, pass.core, self.id, message, invalidated, exposed);
                received.map_err(CloseReason::Violation)?;
                if let (Some(serving), Some(version2)) = (serving, &calling.version2)
                    && let Some(own) = &mut serving.version2
                {
                    own.learn_peer(&mut serving.responder, &version2.peer);
                }
                self.advance_set_up(pass.core)
            }
            (Some(_), ..) => Err(fault("a message for no half")),
            // Its targets come back apart from it, and go with it.
            (None, ..) => {
                drop(pass.core.provider.take_targets(self.id));
                Ok(())
            }
        }
    }

    /// Goes on with the set-up of a client's connection, as far as its version is known.
    fn advance_set_up<P: Provider>(&mut self, core: &mut Core<P>) -> Result<(), CloseReason> {
        let Some(calling) = &mut self.calling else { return Ok(()) };
        let Some(version2) = calling.version2.as_mut().filter(|version2| !version2.is_ready) else {
            return Ok(());
        };
        match version2.probe.next_message() {
            NextMessage::Any(ProtocolVersion::Two) => {
                if version2.is_announced && !version2.has_characteristics {
                    return Ok(());
                }
                version2.is_ready = true;
            }
            NextMessage::Any(ProtocolVersion::One) if version2.is_announced => {
                return Err(CloseReason::Violation("it announced version 2, and refuses it"));
            }
            NextMessage::Any(ProtocolVersion::One) => {
                calling::fall_back(calling);
                if let Some(serving) = &mut self.serving {
                    serving.version2 = None;
                }
                self.is_special = false;
                calling.post_receives(core, self.id);
            }
            NextMessage::Nothing => {
                return Err(CloseReason::Violation("it speaks neither version 1 nor version 2"));
            }
            NextMessage::Probe { .. } | NextMessage::Wait => return Ok(()),
        }
        self.become_ready(core);
        Ok(())
    }

    /// Whether its version is still to be found out.
    pub(crate) fn is_probing(&self) -> bool {
        self.calling
            .as_ref()
            .and_then(|calling| calling.version2.as_ref())
            .is_some_and(|version2| !version2.is_ready)
    }
}
