//! Clients' connections beyond their queue pairs: found by their user's name for them, and made anew when they
//! end.

use stag_fabric::{DisconnectReason, Provider};
use stag_proto::parameters::Parameters;

use crate::ConnectionId;
use crate::agreement::{private_data_to_connect, pull_terms};
use crate::client::calling::Calling;
use crate::client::{CloseReason, ConnectionEvent};
use crate::connection::{Connection, Connections};
use crate::engine::{Engine, find};
use crate::service::Services;
use crate::state::Core;
use crate::version2::calling::begin_probe;
use crate::version2::set_up::{version2_of, with_targets};

/// Sets up the client half of a connection that is established, for the first time or anew.
pub(crate) fn handle_connected<P: Provider>(
    core: &mut Core<P>,
    connections: &mut Connections,
    seed: u32,
    id: ConnectionId,
    parameters: Parameters,
    private_data: &[u8],
) {
    let (len_max, terms) = (core.config.pull_len_max, pull_terms(core, private_data));
    let version2 = version2_of(core, connections, id, parameters, private_data);
    let Some(found) = find(connections, id) else { return };
    let Some(session) = found.session.as_deref_mut() else {
        core.fault(id, "a client's connection without a session");
        return;
    };
    let connection = session.name;
    // From now on it counts whether anything is heard.
    found.opened = core.now;
    if let Some(version2) = version2 {
        let mut calling = match found.calling.take().filter(|_| session.lost.is_some()) {
            Some(mut calling) => {
                calling.requester.handle_reconnect(parameters);
                calling
            }
            None => Calling::new(&core.config, parameters, seed, connection, session.policy),
        };
        calling.heard = core.now;
        begin_probe(&mut calling, version2);
        found.calling = Some(calling);
        return found.begin_probing(core);
    }
    if session.lost.is_some() {
        session.restore();
        let is_new = std::mem::take(&mut session.is_new);
        if let Some(calling) = found.calling.as_mut() {
            calling.reconnected(core, id, parameters, (len_max, terms));
        }
        found.serve_reverse(core);
        if is_new {
            return core.events.push_back(ConnectionEvent::Established { connection });
        }
        core.statistics.connections_restored += 1;
        core.events.push_back(ConnectionEvent::Restored { connection });
        return;
    }
    session.is_new = false;
    let mut calling = Calling::new(&core.config, parameters, seed, id, session.policy);
    calling.heard = core.now;
    calling.pull_replies(len_max, terms);
    calling.post_receives(core, id);
    found.calling = Some(calling);
    found.serve_reverse(core);
    core.events.push_back(ConnectionEvent::Established { connection });
}

/// Returns a client's connection that is gone if it will be made anew; else ends it.
pub(crate) fn lose<P: Provider>(
    core: &mut Core<P>,
    moved: &mut Vec<(ConnectionId, ConnectionId)>,
    mut gone: Box<Connection>,
    reason: CloseReason,
) -> Option<Box<Connection>> {
    // A server that breaks the rules would break them again, for the same Calls, without end; and the state that a defect of ours
    // left behind is not trusted.
    let is_final = matches!(reason, CloseReason::Violation(_) | CloseReason::Fault(_));
    if core.stopping || is_final || !gone.await_another(core) {
        close(core, moved, gone, reason);
        return None;
    }
    let connection = gone.name();
    moved.retain(|(name, _)| *name != connection);
    if std::mem::take(&mut gone.established) {
        tracing::info!("connection ended: {}; it is made anew", reason.describe("the server"));
        core.events.push_back(ConnectionEvent::Interrupted { connection, reason });
    }
    Some(gone)
}

/// Ends a client's connection that is gone.
pub(crate) fn close<P: Provider>(
    core: &mut Core<P>,
    moved: &mut Vec<(ConnectionId, ConnectionId)>,
    mut gone: Box<Connection>,
    reason: CloseReason,
) {
    let connection = gone.name();
    moved.retain(|(name, _)| *name != connection);
    if let Some(calling) = gone.calling.take() {
        // Services are told in their own way.
        let has_user = calling.has_user || gone.session.is_some();
        calling.close(core);
        if has_user {
            core.events.push_back(ConnectionEvent::Closed { connection, reason });
        }
    }
}

/// Makes parked connections anew that are due. The deadlines of their Calls hold meanwhile.
pub(crate) fn restore<P: Provider, S: Services>(engine: &mut Engine<P, S>) {
    // Each is looked at once: one that fails at once may be due again at once.
    for index in (0..engine.parked.len()).rev() {
        let found = &mut engine.parked[index];
        let (id, now) = (found.id, engine.core.now);
        if let Some(calling) = found.calling.as_mut() {
            let _ = calling.expire(&mut engine.core, id);
        }
        let Some(session) = found.session.as_deref_mut().filter(|session| session.is_due(now)) else {
            continue;
        };
        let (name, address) = (session.name, session.address.clone());
        let own = private_data_to_connect(&engine.core, &engine.connections);
        let mut found = engine.parked.swap_remove(index);
        let capacity = with_targets(&engine.core, engine.core.config.capacity());
        match engine.core.provider.connect(&address, &own, capacity) {
            Ok(id) => {
                found.revive(id, now);
                engine.moved.push((name, id));
                engine.insert(found);
            }
            Err(error) => {
                tracing::debug!(%error, "not connected anew");
                if found.await_another(&mut engine.core) {
                    engine.parked.push(found);
                } else {
                    close(
                        &mut engine.core,
                        &mut engine.moved,
                        found,
                        CloseReason::Fabric(DisconnectReason::TimedOut),
                    );
                }
            }
        }
    }
}

/// The queue pair of the connection that its user calls `name`. `moved`: names and queue pairs of connections that were restored.
#[inline]
pub(crate) fn current(moved: &[(ConnectionId, ConnectionId)], name: ConnectionId) -> ConnectionId {
    if moved.is_empty() {
        return name;
    }
    moved.iter().find(|(moved, _)| *moved == name).map_or(name, |(_, id)| *id)
}

/// Whether this is the connection that its user calls `name`.
pub(crate) fn is_named(connection: &Connection, name: ConnectionId) -> bool {
    connection.name() == name
}
