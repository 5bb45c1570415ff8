//! The version that a connection speaks: the announcements, the probe, and the consequences of its answer.

use stag_fabric::{Exposed, Handle, Provider, QueuePairCapacity};
use stag_memory::Buf;
use stag_proto::parameters::Parameters;
use stag_proto::version::{NextMessage, ProtocolVersion};
use stag_wire::reliable_reply::announces_version_2;

use crate::both_ways::Half;
use crate::client::calling::Calling;
use crate::client::slot::CallKind;
use crate::client::{Chunks, CloseReason, Request};
use crate::config::ProtocolChoice;
use crate::connection::{Connection, Connections};
use crate::fault::fault;
use crate::server::serving::Serving;
use crate::service::Services;
use crate::state::{Core, Link, Pass};
use crate::version2::receives::ArrivedMessage;
use crate::version2::{
    ClientVersion2, PlacementLimits, ServerVersion2, calling, own_characteristics, serving,
};
use crate::{ConnectionId, EngineConfig};

/// Returns `capacity` with as many targets for each Receive as a connection of version 2 may post.
pub(crate) fn with_targets<P: Provider>(core: &Core<P>, capacity: QueuePairCapacity) -> QueuePairCapacity {
    let config = &core.config;
    let own = own_characteristics(config, core.provider.limits().receive_targets, true);
    let receive_targets = if config.speaks_version_2() { own.layout.targets() } else { 0 };
    QueuePairCapacity { receive_targets, ..capacity }
}

/// The client half's additions for version 2, if the established connection `id` is to probe for it. `None`: it speaks version 1.
pub(crate) fn version2_of<P: Provider>(
    core: &Core<P>,
    connections: &Connections,
    id: ConnectionId,
    parameters: Parameters,
    private_data: &[u8],
) -> Option<Box<ClientVersion2>> {
    let config = &core.config;
    let found = connections.get(id.index as usize)?.as_deref().filter(|found| found.id == id)?;
    let is_announced = announces_version_2(private_data);
    let assumes_version_1 = found.session.as_deref()?.assumes_version_1;
    let is_tried = !assumes_version_1 && has_room_for_version2(config, connections);
    if !is_tried || !(is_announced || config.protocol == ProtocolChoice::Two) {
        return None;
    }
    let limits = core.provider.limits();
    let own = own_characteristics(config, limits.receive_targets, is_announced);
    let placement = PlacementLimits::of(config, &limits);
    Some(Box::new(ClientVersion2::new(config, own, parameters, is_announced, placement)))
}

/// Whether one more connection may speak version 2.
pub(crate) fn has_room_for_version2(config: &EngineConfig, connections: &Connections) -> bool {
    let most = config.version2_connections();
    if most == 0 || most >= config.connections_max {
        return most > 0;
    }
    let mut open = connections.iter().flatten().filter(|found| found.may_speak_version2());
    open.nth(most as usize - 1).is_none()
}

/// Gives the server half of a new connection what version 2 adds, if it may be spoken.
pub(crate) fn offer_version2<P: Provider>(
    core: &Core<P>,
    connections: &Connections,
    connection: &mut Connection,
    serving: &mut Serving,
    private_data: &[u8],
) {
    let config = &core.config;
    let is_announced = announces_version_2(private_data);
    // Without room the client hears no announcement, as from a server that speaks version 1 only.
    if !(is_announced || config.protocol == ProtocolChoice::Two)
        || !has_room_for_version2(config, connections)
    {
        return;
    }
    let own = own_characteristics(config, core.provider.limits().receive_targets, is_announced);
    // Until the client tells more, Replies are as long as version 1 would have them (V2-5.2-c).
    let threshold = connection.parameters.reply_threshold;
    let mut version2 = Box::new(ServerVersion2::new(config, own, threshold));
    version2.learn_receives(&mut serving.responder);
    serving.version2 = Some(version2);
    connection.is_special = true;
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
        let (program, version) = named.map_or((0, 0), |policy| (policy.program, policy.version));
        let request = Request::null(program, version, core.config.set_up_timeout);
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
        let arrived = ArrivedMessage::arrive(pass.core, self.id, message);
        let half = self.direct(pass.core, &arrived.octets, invalidated, exposed);
        let is_settled = self.calling.as_ref().is_none_or(Calling::has_version);
        match (half, &mut self.serving, &mut self.calling) {
            (Some(Half::Serving), Some(serving), _) if is_settled => {
                let link = Link { id: self.id, peer: self.peer.as_ref() };
                serving::receive_version2(serving, pass, link, arrived)
            }
            // V2-5-a: one message at a time, until the first is answered.
            (Some(Half::Serving), Some(_), _) => {
                Err(CloseReason::Violation("it called before it said which version it speaks"))
            }
            (Some(Half::Calling), serving, Some(calling)) => {
                let received =
                    calling::receive_version2(calling, pass.core, self.id, arrived, invalidated, exposed);
                received.map_err(CloseReason::Violation)?;
                if let (Some(serving), Some(version2)) = (serving, &calling.version2)
                    && let Some(own) = &mut serving.version2
                {
                    own.learn_peer(&mut serving.responder, &version2.peer);
                }
                self.advance_set_up(pass.core)
            }
            (Some(_), ..) => Err(fault("a message for no half")),
            (None, ..) => Ok(()),
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
