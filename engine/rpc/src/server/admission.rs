//! Admits connection requests, and evicts connections to make room for them.

use std::time::Duration;

use stag_fabric::{ConnectRequestId, FabricError, Peer, Provider, Withheld};
use stag_proto::parameters::{Parameters, Side};

use crate::agreement::{may_expose_to, private_data_to_accept, settings};
use crate::connection::{Connection, Connections};
use crate::engine::Engine;
use crate::group::register_group;
use crate::recorder::TracedConnection;
use crate::server::eviction::victim;
use crate::server::governor::{CLIENT_WEIGHT_USUAL, FIRST_RECEIVES};
use crate::server::owner::owner;
use crate::server::serving::Serving;
use crate::server::serving::exposing::expose_replies;
use crate::service::Services;
use crate::state::Core;
use crate::version2::set_up::{offer_version2, with_targets};

/// How long a request waits for the end of the connection that makes room for it.
const ROOM_TIMEOUT: Duration = Duration::from_secs(1);

/// A request to connect.
pub(crate) struct ConnectRequest {
    pub(crate) request: ConnectRequestId,
    pub(crate) peer: Peer,
    pub(crate) private_data: Vec<u8>,
    /// Another connection is being ended for it, which takes until then at most.
    pub(crate) deadline: Option<Duration>,
}

/// Admits or refuses the requests to connect, except those that wait for room.
#[cold]
pub(crate) fn admit_requests<P: Provider, S: Services>(engine: &mut Engine<P, S>) {
    for mut request in std::mem::take(&mut engine.requests) {
        let is_full = engine.core.serving_count >= engine.core.config.connections_max;
        if is_full && !engine.core.stopping && !engine.core.refuses_newcomers {
            if request.deadline.is_none()
                && make_room(&mut engine.core, &mut engine.connections, &request.peer)
            {
                request.deadline = Some(engine.core.now + ROOM_TIMEOUT);
            }
            if request.deadline.is_some_and(|deadline| engine.core.now < deadline) {
                engine.requests.push(request);
                continue;
            }
        }
        let ConnectRequest { request, peer, private_data, .. } = request;
        if let Err(reason) = admit(engine, request, &peer, &private_data) {
            engine.core.provider.reject(request, &reason);
            engine.core.note_refused(&peer, &reason);
        }
    }
}

/// Evicts a connection that is of less use than a newcomer's. `false`: no connection is.
fn make_room<P: Provider>(core: &mut Core<P>, connections: &mut Connections, newcomer: &Peer) -> bool {
    let candidates = connections.iter().flatten().filter_map(|found| {
        let usage = found.serving.as_ref()?.usage(found.opened, found.established);
        (found.is_accepted() && !found.is_closing()).then_some((
            found.id.index,
            owner(found.peer.as_ref()),
            usage,
        ))
    });
    let Some(index) = victim(candidates, Some(owner(Some(newcomer))), core.now) else {
        return false;
    };
    // It is one of the candidates, which are those that there are.
    let Some(Some(found)) = connections.get_mut(index as usize) else { return false };
    found.make_room(core, "it is of less use than another that comes (connections_max)");
    true
}

/// Accepts a connection, or says why not.
fn admit<P: Provider, S: Services>(
    engine: &mut Engine<P, S>,
    request: ConnectRequestId,
    peer: &Peer,
    private_data: &[u8],
) -> Result<(), String> {
    let config = engine.core.config;
    if engine.core.stopping {
        return Err("the server is stopping".into());
    }
    if engine.core.refuses_newcomers {
        return Err("the server is being drained: it takes no more connections".into());
    }
    if engine.core.serving_count >= config.connections_max {
        return Err(format!(
            "{} connections are open, the limit is {}; raise connections_max",
            engine.core.serving_count, config.connections_max
        ));
    }
    register_group(&mut engine.core).map_err(|error| format!("the memory of the other reactors: {error}"))?;
    let settings = settings(&engine.core);
    let parameters = Parameters::negotiate(Side::Server, &settings, private_data);
    let capacity = with_targets(&engine.core, config.serving_capacity());
    let id = engine.core.provider.prepare(request, capacity);
    let id = id.map_err(|error| error.to_string())?;
    let mut connection = Connection::new(id, engine.core.now);
    connection.peer = Some(peer.clone());
    connection.parameters = parameters;
    let owner = owner(Some(peer));
    let share = engine.core.transit.open(owner);
    let weight = engine.core.weigh.as_ref().map_or(CLIENT_WEIGHT_USUAL, |weigh| weigh(peer));
    engine.core.credits.open(share.account(), owner, weight);
    let mut serving = Serving::new(&config, parameters, share);
    offer_version2(&engine.core, &engine.connections, &mut connection, &mut serving, private_data);
    let is_version2 = serving.version2.is_some();
    engine.core.serving_count += 1;
    // 8166-3.3.3-a: the peer has one credit before it hears of any.
    let posted = serving.post_receives(&mut engine.core, id, FIRST_RECEIVES);
    let exposes = posted && !is_version2 && may_expose_to(&engine.core, private_data);
    let exposed_replies = if exposes { expose_replies(&mut serving, &mut engine.core, id) } else { 0 };
    connection.serving = Some(serving);
    engine.insert(Box::new(connection));
    let own = private_data_to_accept(&engine.core, exposed_replies, is_version2);
    if engine.core.recorder.is_some() {
        let own_address = engine.core.provider.local_address(id);
        engine.core.note_set_up(TracedConnection::new(id, peer, own_address, [private_data, &own]));
    }
    let accepted =
        if posted { engine.core.provider.accept(id, &own) } else { Err(FabricError::Gone("buffer")) };
    if let Err(error) = accepted {
        if let Some(withheld) = engine.core.state.complaints.admit(engine.core.state.now) {
            tracing::warn!("client {peer} is not accepted: {error}{}", Withheld(withheld));
        }
        engine.core.provider.disconnect(id);
    }
    Ok(())
}
