//! An engine as a client: connections that it opens, Calls on them, and Calls back on those that it accepted.

use std::time::Duration;

use stag_fabric::{DisconnectReason, FabricError, Provider};
use stag_proto::parameters::Parameters;
use stag_wire::xdr::{Overflow, Writer};

use crate::ConnectionId;
use crate::agreement::private_data_to_connect;
use crate::both_ways::begin_reverse;
use crate::carried::is_carried;
use crate::client::calling::Calling;
use crate::client::clients::{close, current, is_named};
use crate::client::reconnect::{ClientPolicy, Session};
use crate::client::slot::CallKind;
use crate::client::{CallId, CallRefused, Chunks, CloseReason, CompletedCall, ConnectionEvent, Request};
use crate::connection::Connection;
use crate::engine::{Engine, find};
use crate::group::register_group;
use crate::service::Services;
use crate::stream::is_stream;
use crate::version2::set_up::with_targets;

impl<P: Provider, S: Services> Engine<P, S> {
    /// Begins to connect to `address` as a client. A [`ConnectionEvent`] tells how it went.
    ///
    /// [`Pools::messages_needed`](crate::Pools::messages_needed) has the message buffers of one such connection. With more of them a Call is refused
    /// ([`CallRefused::NoMemory`]) while others have them all.
    ///
    /// # Errors
    ///
    /// What the provider says.
    pub fn connect(&mut self, address: &str) -> Result<ConnectionId, FabricError> {
        self.connect_with(address, ClientPolicy::default())
    }

    /// As [`Engine::connect`], with a policy for when the connection ends, or falls silent. It applies once the
    /// connection was established; the name that this returns stays when it is made anew.
    ///
    /// # Errors
    ///
    /// What the provider says.
    pub fn connect_with(&mut self, address: &str, policy: ClientPolicy) -> Result<ConnectionId, FabricError> {
        register_group(&mut self.core)?;
        let own = private_data_to_connect(&self.core, &self.connections);
        let capacity = with_targets(&self.core, self.core.config.capacity());
        let id = self.core.provider.connect(address, &own, capacity)?;
        // It begins with the next pass: the last one may be long ago.
        let mut connection = Connection::new(id, Duration::MAX);
        // Before the Established event the parameters are the smallest; no Call is sent until then.
        let seed = self.next_seed();
        connection.calling = Some(Calling::new(&self.core.config, Parameters::default(), seed, id, policy));
        connection.session = Some(Box::new(Session::new(id, address, policy, seed)));
        self.insert(Box::new(connection));
        Ok(id)
    }

    /// Ends a connection, for good. At a client its Calls complete first, then [`ConnectionEvent::Closed`] comes. A connection
    /// that was accepted, over RDMA or TCP, ends without the answers that are still under way.
    #[cold]
    pub fn disconnect(&mut self, connection: ConnectionId) {
        if let Some(streams) = self.streams.as_mut().filter(|_| is_stream(connection)) {
            return streams.disconnect(&mut self.core, connection);
        }
        if let Some(at) = self.parked.iter().position(|parked| is_named(parked, connection)) {
            let parked = self.parked.swap_remove(at);
            close(&mut self.core, &mut self.moved, parked, CloseReason::Fabric(DisconnectReason::Local));
            return;
        }
        let id = current(&self.moved, connection);
        if let Some(session) = find(&mut self.connections, id).and_then(|found| found.session.as_deref_mut())
        {
            session.ended = true;
        }
        self.core.provider.disconnect(id);
    }

    /// Begins a Call on an established connection. `encode` writes the arguments; it may be called twice,
    /// when they turn out too long to stay inline, and must write the same both times.
    ///
    /// # Errors
    ///
    /// Nothing is sent then, and `chunks` is as it was. Otherwise it is empty: its memory belongs to the
    /// Call, and the Write chunks' comes back with the [`CompletedCall`].
    pub fn call(
        &mut self,
        connection: ConnectionId,
        request: &Request<'_>,
        chunks: &mut Chunks,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Result<CallId, CallRefused> {
        let id = current(&self.moved, connection);
        let Some(found) = find(&mut self.connections, id) else {
            return Err(self.refusal(connection));
        };
        self.core.ready.wake(found);
        let established = found.established;
        let Some(calling) = found.calling.as_mut().filter(|_| established) else {
            return Err(self.refusal(connection));
        };
        calling.call(&mut self.core, id, request, chunks, encode)
    }

    /// Begins a reverse Call (RFC 8167): calls the client of a connection that this engine accepted, on that same connection.
    /// [`Call::connection`](crate::Call::connection) names it. [`Engine::completed`] has the end of the Call, and
    /// [`Engine::cancel`] gives it up.
    ///
    /// The client must have said that it takes such Calls (8167-6-a), in a Call of the program's own: one whose
    /// [`EngineConfig::reverse_credits`](crate::EngineConfig::reverse_credits) is 0 drops them, and they time out. In version 2 a client
    /// may say itself that it takes none, and nothing is sent then (XC-l). The Call and its Reply go inline. At first one Call at a
    /// time may be outstanding; the client grants more.
    ///
    /// [`Service::next_call_back`](crate::Service::next_call_back) is the way for a service, over TCP and in groups of reactors too.
    ///
    /// A connection that ends takes its reverse Calls with it ([`CallError::ConnectionLost`](crate::CallError::ConnectionLost));
    /// if there were any, [`ConnectionEvent::Closed`] follows. A stopping engine makes reverse
    /// Calls as long as Calls of that client are in process, and does not wait for their Replies.
    ///
    /// In a group of reactors a connection's reverse Calls are made at the reactor that has it. A Call that is executed at another
    /// one has another name for the connection there; a program that calls back answers the Calls by which it learns of clients
    /// where they come in ([`Home::Here`](crate::Home::Here)).
    ///
    /// # Errors
    ///
    /// Nothing is sent then. [`CallRefused::OneWay`] where there are no reverse Calls, [`CallRefused::NotTaken`] if the client says
    /// that it takes none, [`CallRefused::OtherReactor`] for a connection of another reactor of the group,
    /// [`CallRefused::NotInline`] for a Call that is too long.
    pub fn call_back(
        &mut self,
        connection: ConnectionId,
        request: &Request<'_>,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Result<CallId, CallRefused> {
        if is_carried(connection) {
            return Err(CallRefused::OtherReactor);
        }
        let call = begin_reverse(self, connection, request, CallKind::Usual, encode)?;
        if let Some(calling) =
            find(&mut self.connections, connection).and_then(|found| found.calling.as_mut())
        {
            calling.has_user = true;
        }
        Ok(call)
    }

    /// Makes Calls begun since the last pass leave now rather than at the end of the next one.
    #[inline]
    pub fn ring_doorbells(&mut self) {
        self.core.provider.ring_doorbells();
    }

    /// Gives up a Call: its memory is fenced, then it completes with
    /// [`CallError::Cancelled`](crate::CallError::Cancelled). Harmless when it is over already.
    pub fn cancel(&mut self, call: CallId) {
        let id = current(&self.moved, call.connection);
        if let Some(found) = find(&mut self.connections, id) {
            if let Some(calling) = found.calling.as_mut() {
                calling.cancel(&mut self.core, id, call.call, crate::CallError::Cancelled);
                self.core.ready.touch(found);
            }
            return;
        }
        let parked = self.parked.iter_mut().find(|found| is_named(found, call.connection));
        if let Some(calling) = parked.and_then(|found| found.calling.as_mut()) {
            calling.cancel(&mut self.core, id, call.call, crate::CallError::Cancelled);
        }
    }

    /// The next Call that is over.
    #[inline]
    pub fn completed(&mut self) -> Option<CompletedCall> {
        self.core.completed.pop_front()
    }

    /// The next change of a connection that this engine opened, and the end of one that it called back.
    pub fn connection_event(&mut self) -> Option<ConnectionEvent> {
        self.core.events.pop_front()
    }

    /// Calls that could be begun now on `connection`.
    #[must_use]
    pub fn credits_available(&self, connection: ConnectionId) -> u32 {
        self.connection(connection)
            .filter(|found| found.established)
            .and_then(|found| found.calling.as_ref())
            .map_or(0, Calling::credits_available)
    }

    /// What the server granted last on `connection`.
    #[must_use]
    pub fn credits_granted(&self, connection: ConnectionId) -> u32 {
        self.connection(connection)
            .and_then(|found| found.calling.as_ref())
            .map_or(0, Calling::credits_granted)
    }

    /// What both ends of `connection` agreed on.
    #[must_use]
    pub fn parameters(&self, connection: ConnectionId) -> Option<Parameters> {
        self.connection(connection).map(|found| found.parameters)
    }

    fn connection(&self, name: ConnectionId) -> Option<&Connection> {
        let id = current(&self.moved, name);
        self.connections.get(id.index as usize)?.as_deref().filter(|found| found.id == id)
    }

    /// Why a Call on a connection that is not established is refused.
    #[cold]
    fn refusal(&self, connection: ConnectionId) -> CallRefused {
        let parked = self.parked.iter().map(Box::as_ref);
        let found = parked.chain(self.connection(connection)).find(|found| is_named(found, connection));
        match found.and_then(|found| found.session.as_deref()) {
            Some(session) if session.lost.is_some() => CallRefused::Interrupted,
            _ => CallRefused::NotConnected,
        }
    }
}
