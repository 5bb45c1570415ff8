//! Admits connection requests, and evicts connections to make room for them.

use std::time::Duration;

use stag_fabric::{ConnectRequestId, FabricError, Peer, Provider, Withheld};
use stag_proto::parameters::{Parameters, Side};

use crate::connection::Connection;
use crate::engine::Engine;
use crate::recorder::TracedConnection;
use crate::server::eviction::victim;
use crate::server::governor::{CLIENT_WEIGHT_USUAL, FIRST_RECEIVES};
use crate::server::owner::owner;
use crate::server::serving::Serving;
use crate::server::serving::exposing::expose_replies;
use crate::service::Services;

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

impl<P: Provider, S: Services> Engine<P, S> {
    /// Answers the requests to connect, but for those that wait for room.
    #[cold]
    pub(crate) fn admit_requests(&mut self) {
        for mut request in std::mem::take(&mut self.requests) {
            let is_full = self.core.serving_count >= self.core.config.connections_max;
            if is_full && !self.core.stopping && !self.core.refuses_newcomers {
                if request.deadline.is_none() && self.make_room(&request.peer) {
                    request.deadline = Some(self.core.now + ROOM_TIMEOUT);
                }
                if request.deadline.is_some_and(|deadline| self.core.now < deadline) {
                    self.requests.push(request);
                    continue;
                }
            }
            let ConnectRequest { request, peer, private_data, .. } = request;
            if let Err(reason) = self.admit(request, &peer, &private_data) {
                self.core.statistics.connections_refused += 1;
                if let Some(withheld) = self.core.state.complaints.admit(self.core.state.now) {
                    tracing::warn!("client {peer} is refused: {reason}{}", Withheld(withheld));
                }
                self.core.provider.reject(request, &reason);
                self.core.note_departure(Some(&peer));
            }
        }
    }

    /// Ends a connection that is of less use than a newcomer's. `false`: there is none.
    fn make_room(&mut self, newcomer: &Peer) -> bool {
        let candidates = self.connections.iter().flatten().filter_map(|found| {
            let usage = found.serving.as_ref()?.usage(found.opened, found.established);
            (found.is_accepted() && !found.is_closing()).then_some((
                found.id.index,
                owner(found.peer.as_ref()),
                usage,
            ))
        });
        let Some(index) = victim(candidates, Some(owner(Some(newcomer))), self.core.now) else {
            return false;
        };
        // It is one of the candidates, which are those that there are.
        let Some(Some(found)) = self.connections.get_mut(index as usize) else { return false };
        found.make_room(&mut self.core, "it is of less use than another that comes (connections_max)");
        true
    }

    /// Takes on a connection that somebody asked for, or says why not.
    fn admit(&mut self, request: ConnectRequestId, peer: &Peer, private_data: &[u8]) -> Result<(), String> {
        let config = self.core.config;
        if self.core.stopping {
            return Err("the server is stopping".into());
        }
        if self.core.refuses_newcomers {
            return Err("the server is being drained: it takes no more connections".into());
        }
        if self.core.serving_count >= config.connections_max {
            return Err(format!(
                "{} connections are open, the limit is {}; raise connections_max",
                self.core.serving_count, config.connections_max
            ));
        }
        self.register_group().map_err(|error| format!("the memory of the other reactors: {error}"))?;
        let settings = self.settings();
        let parameters = Parameters::negotiate(Side::Server, &settings, private_data);
        let capacity = self.with_targets(config.serving_capacity());
        let id = self.core.provider.prepare(request, capacity);
        let id = id.map_err(|error| error.to_string())?;
        let mut connection = Connection::new(id, self.core.now);
        connection.peer = Some(peer.clone());
        connection.parameters = parameters;
        let owner = owner(Some(peer));
        let share = self.core.transit.open(owner);
        let weight = self.core.weigh.as_ref().map_or(CLIENT_WEIGHT_USUAL, |weigh| weigh(peer));
        self.core.credits.open(share.account(), owner, weight);
        let mut serving = Serving::new(&config, parameters, share);
        self.offer_version2(&mut connection, &mut serving, private_data);
        let is_version2 = serving.version2.is_some();
        self.core.serving_count += 1;
        // 8166-3.3.3-a: the peer has one credit before it hears of any.
        let posted = serving.post_receives(&mut self.core, id, FIRST_RECEIVES);
        let exposes = posted && !is_version2 && self.may_expose_to(private_data);
        let exposed_replies = if exposes { expose_replies(&mut serving, &mut self.core, id) } else { 0 };
        connection.serving = Some(serving);
        self.insert(Box::new(connection));
        let own = self.private_data_to_accept(exposed_replies, is_version2);
        if self.core.recorder.is_some() {
            let own_address = self.core.provider.local_address(id);
            self.core.note_set_up(TracedConnection::new(id, peer, own_address, [private_data, &own]));
        }
        let accepted =
            if posted { self.core.provider.accept(id, &own) } else { Err(FabricError::Gone("buffer")) };
        if let Err(error) = accepted {
            if let Some(withheld) = self.core.state.complaints.admit(self.core.state.now) {
                tracing::warn!("client {peer} is not accepted: {error}{}", Withheld(withheld));
            }
            self.core.provider.disconnect(id);
        }
        Ok(())
    }
}
