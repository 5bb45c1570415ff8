//! Clients' connections beyond their queue pairs: found by their user's name for them, and made anew when they
//! end.

use stag_fabric::{DisconnectReason, Provider};
use stag_proto::parameters::Parameters;

use crate::ConnectionId;
use crate::client::calling::Calling;
use crate::client::{CallRefused, CloseReason, ConnectionEvent};
use crate::connection::Connection;
use crate::engine::{Engine, find};
use crate::service::Services;
use crate::version2::calling::begin_probe;

impl<P: Provider, S: Services> Engine<P, S> {
    /// The queue pair of the connection that its user calls `name`.
    #[inline]
    pub(crate) fn current(&self, name: ConnectionId) -> ConnectionId {
        if self.moved.is_empty() {
            return name;
        }
        self.moved.iter().find(|(moved, _)| *moved == name).map_or(name, |(_, id)| *id)
    }

    /// Why there can be no Call on a connection that is not established.
    #[cold]
    pub(crate) fn refusal(&self, connection: ConnectionId) -> CallRefused {
        let parked = self.parked.iter().map(Box::as_ref);
        let found = parked.chain(self.connection(connection)).find(|found| is_named(found, connection));
        match found.and_then(|found| found.session.as_deref()) {
            Some(session) if session.lost.is_some() => CallRefused::Interrupted,
            _ => CallRefused::NotConnected,
        }
    }

    /// A client's connection is established, for the first time or anew.
    pub(crate) fn handle_connected(&mut self, id: ConnectionId, parameters: Parameters, private_data: &[u8]) {
        let (len_max, terms) = (self.core.config.pull_len_max, self.pull_terms(private_data));
        let seed = self.next_seed();
        let version2 = self.version2_of(id, parameters, private_data);
        let Some(found) = find(&mut self.connections, id) else { return };
        let Some(session) = found.session.as_deref_mut() else {
            self.core.fault(id, "a client's connection without a session");
            return;
        };
        let connection = session.name;
        // From now on it counts whether anything is heard.
        found.opened = self.core.now;
        if let Some(version2) = version2 {
            let mut calling = match found.calling.take().filter(|_| session.lost.is_some()) {
                Some(mut calling) => {
                    calling.requester.handle_reconnect(parameters);
                    calling
                }
                None => Calling::new(&self.core.config, parameters, seed, connection, session.policy),
            };
            calling.heard = self.core.now;
            begin_probe(&mut calling, version2);
            found.calling = Some(calling);
            return found.begin_probing(&mut self.core);
        }
        if session.lost.is_some() {
            session.restore();
            let is_new = std::mem::take(&mut session.is_new);
            if let Some(calling) = found.calling.as_mut() {
                calling.reconnected(&mut self.core, id, parameters, (len_max, terms));
            }
            found.serve_reverse(&mut self.core);
            if is_new {
                return self.core.events.push_back(ConnectionEvent::Established { connection });
            }
            self.core.statistics.connections_restored += 1;
            self.core.events.push_back(ConnectionEvent::Restored { connection });
            return;
        }
        session.is_new = false;
        let mut calling = Calling::new(&self.core.config, parameters, seed, id, session.policy);
        calling.heard = self.core.now;
        calling.pull_replies(len_max, terms);
        calling.post_receives(&mut self.core, id);
        found.calling = Some(calling);
        found.serve_reverse(&mut self.core);
        self.core.events.push_back(ConnectionEvent::Established { connection });
    }

    /// A client's connection is gone.
    pub(crate) fn lose(&mut self, mut gone: Box<Connection>, reason: CloseReason) {
        // A server that breaks the rules would break them again, for the same Calls, without end; and what a defect of ours left
        // behind is not to be trusted.
        let is_final = matches!(reason, CloseReason::Violation(_) | CloseReason::Fault(_));
        let is_final = self.core.stopping || is_final;
        if is_final || !gone.await_another(&mut self.core) {
            self.close(gone, reason);
            return;
        }
        let connection = gone.name();
        self.moved.retain(|(name, _)| *name != connection);
        if std::mem::take(&mut gone.established) {
            tracing::info!("connection ended: {}; it is made anew", reason.describe("the server"));
            self.core.events.push_back(ConnectionEvent::Interrupted { connection, reason });
        }
        self.parked.push(gone);
    }

    /// Ends a client's connection that is gone.
    pub(crate) fn close(&mut self, mut gone: Box<Connection>, reason: CloseReason) {
        let connection = gone.name();
        self.moved.retain(|(name, _)| *name != connection);
        if let Some(calling) = gone.calling.take() {
            // Services are told in their own way.
            let has_user = calling.has_user || gone.session.is_some();
            calling.close(&mut self.core);
            if has_user {
                self.core.events.push_back(ConnectionEvent::Closed { connection, reason });
            }
        }
    }

    /// Makes parked connections anew, when it is time. Calls' deadlines hold meanwhile.
    pub(crate) fn restore(&mut self) {
        // Each is looked at once: one that fails at once may be due again at once.
        for index in (0..self.parked.len()).rev() {
            let found = &mut self.parked[index];
            let (id, now) = (found.id, self.core.now);
            if let Some(calling) = found.calling.as_mut() {
                let _ = calling.expire(&mut self.core, id);
            }
            let Some(session) = found.session.as_deref_mut().filter(|session| session.is_due(now)) else {
                continue;
            };
            let (name, address) = (session.name, session.address.clone());
            let own = self.private_data_to_connect();
            let mut found = self.parked.swap_remove(index);
            let capacity = self.with_targets(self.core.config.capacity());
            match self.core.provider.connect(&address, &own, capacity) {
                Ok(id) => {
                    found.revive(id, now);
                    self.moved.push((name, id));
                    self.insert(found);
                }
                Err(error) => {
                    tracing::debug!(%error, "not connected anew");
                    if found.await_another(&mut self.core) {
                        self.parked.push(found);
                    } else {
                        self.close(found, CloseReason::Fabric(DisconnectReason::TimedOut));
                    }
                }
            }
        }
    }
}

/// Whether this is the connection that its user calls `name`.
pub(crate) fn is_named(connection: &Connection, name: ConnectionId) -> bool {
    connection.name() == name
}
