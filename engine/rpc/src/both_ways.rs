//! Calls both ways on one connection (RFC 8167): forward ones from the end that opened it, reverse ones from the end that
//! accepted it.
//!
//! Such a connection has both halves, each with its own credits, xids and Receives. The contents of a message, not the end that
//! connected, decide which half it is for ([`Recipient::of`], and [`Recipient::of_version2`] in version 2). Receives have no type:
//! each message takes the next one. Each half counts those that it posted, and loses one for each message that is for it, so the sum
//! of both counts is the number posted. A half posts before it entitles the peer to a message: a Receive for each Call that it
//! sends, and one for each credit that it grants. Only a peer that sends a message without being entitled can take a Receive of the
//! other half. It is cut off when a half has none left.
//!
//! Where messages are shown as they arrive, the msg_type and the handle that a message invalidates say as much ([`crate::in_place`]).
//!
//! Reverse Calls have no chunks in either direction (8167-5.3-b, 8167-5.3-c). They end with their connection: only the client can
//! make another (8167-5.4-a), and nothing in RPC tells that it is the same client. A program that recognises it calls again.
//!
//! In version 2 the halves are the same, with what that adds beside each ([`crate::version2`]). A client says whether it takes reverse
//! Calls (characteristic 3), and one that says NONE is not called.

use stag_fabric::{Exposed, Handle, Provider};
use stag_memory::Buf;
use stag_proto::direction::{Recipient, Roles};
use stag_wire::rpcrdma2::ReverseSupport;
use stag_wire::xdr::{Overflow, Writer};

use crate::ConnectionId;
use crate::client::calling::Calling;
use crate::client::slot::CallKind;
use crate::client::{CallId, CallRefused, CloseReason, Request};
use crate::connection::Connection;
use crate::engine::{Engine, find};
use crate::fault::fault;
use crate::server::governor::FIRST_RECEIVES;
use crate::server::owner::owner;
use crate::server::serving::Serving;
use crate::service::Services;
use crate::state::Core;
use crate::version2::calling::begin_probe;
use crate::version2::{ClientVersion2, ServerVersion2};

/// A connection with both halves takes Calls and Replies. RDMA_DONEs are filtered out before.
const BOTH: Roles = Roles { responds: true, exposes_replies: false, pulls_replies: false };

/// Which half of a connection a message is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Half {
    Serving,
    Calling,
}

/// Begins a reverse Call of the engine's user or of a service, on a connection of this reactor.
pub(crate) fn begin_reverse<P: Provider, S: Services>(
    engine: &mut Engine<P, S>,
    connection: ConnectionId,
    request: &Request<'_>,
    kind: CallKind,
    encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
) -> Result<CallId, CallRefused> {
    if crate::stream::is_stream(connection) || engine.core.config.reverse_credits == 0 {
        return Err(CallRefused::OneWay);
    }
    let seed = engine.next_seed();
    let Some(found) = find(&mut engine.connections, connection) else {
        return Err(CallRefused::NotConnected);
    };
    if !found.is_accepted() {
        return Err(CallRefused::OneWay);
    }
    if !found.established || found.is_closing() {
        return Err(CallRefused::NotConnected);
    }
    engine.core.ready.wake(found);
    let version2 = found.serving.as_ref().and_then(|serving| serving.version2.as_deref());
    match version2 {
        // Its client has not called in version 2: it may speak another.
        Some(version2) if !version2.has_told => return Err(CallRefused::OneWay),
        Some(version2) if version2.peer.reverse_support() == ReverseSupport::None => {
            return Err(CallRefused::NotTaken);
        }
        _ => {}
    }
    let config = &engine.core.config;
    let calling = found.calling.get_or_insert_with(|| {
        let mut calling = Calling::reverse(config, &found.parameters, seed, connection);
        if let Some(version2) = version2 {
            let parameters = found.parameters.reversed();
            begin_probe(&mut calling, Box::new(ClientVersion2::reverse(config, version2.own, parameters)));
        }
        calling
    });
    if let (Some(own), Some(version2)) = (&mut calling.version2, version2) {
        own.peer = version2.peer;
    }
    calling.call_back(&mut engine.core, connection, request, kind, encode)
}

impl Connection {
    /// A connection that this end opened is established: from now on it takes reverse Calls, if it is to.
    pub(crate) fn serve_reverse<P: Provider>(&mut self, core: &mut Core<P>) {
        if core.config.reverse_credits == 0 {
            return;
        }
        let share = core.transit.open(owner(self.peer.as_ref()));
        let mut serving = Serving::reverse(&core.config, &self.parameters, share);
        if let Some(version2) = self.calling.as_ref().and_then(|calling| calling.version2.as_deref()) {
            let threshold = self.parameters.reversed().reply_threshold;
            let mut version2 = Box::new(ServerVersion2::reverse(&core.config, version2.own, threshold));
            version2.learn_receives(&mut serving.responder);
            serving.version2 = Some(version2);
        }
        // 8167-4.1-d: the peer has one credit before it hears of any.
        let is_posted = serving.post_receives(core, self.id, FIRST_RECEIVES);
        self.serving = Some(serving);
        if !is_posted {
            self.close(core, CloseReason::CannotReply);
        }
    }

    /// A Receive came back without a message: the connection is ending.
    pub(crate) fn receive_flushed<P>(&mut self, core: &mut Core<P>) {
        match (&mut self.serving, &mut self.calling) {
            // Which half posted it does not matter any more.
            (Some(_), Some(calling)) if calling.receives_posted > 0 => calling.receives_posted -= 1,
            (Some(serving), _) => serving.receive_lost(core),
            _ => {}
        }
    }

    /// Says which half a message is for, of a connection that ends or has both halves. `None`: neither takes it, and its Receive
    /// is dealt with.
    #[inline(never)]
    pub(crate) fn direct<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        message: &[u8],
        invalidated: Option<Handle>,
        exposed: &mut Option<Exposed>,
    ) -> Option<Half> {
        let (is_deaf, is_accepted) = (self.is_deaf(core.now), self.is_accepted());
        let (serving, calling) = match (&mut self.serving, &mut self.calling) {
            (Some(serving), Some(calling)) => (serving, calling),
            (Some(serving), None) if is_deaf => {
                serving.receive_lost(core);
                return None;
            }
            (Some(_), None) => return Some(Half::Serving),
            (None, _) => return Some(Half::Calling),
        };
        let roles = Roles { pulls_replies: calling.pulls.is_some(), ..BOTH };
        let has_call = |xid| calling.requester.has_call(xid);
        let recipient = match serving.version2 {
            None => Recipient::of(message, &roles, has_call),
            Some(_) => match Recipient::of_version2(message, has_call) {
                Recipient::First if is_accepted => Recipient::Responder,
                Recipient::First => Recipient::Requester,
                found => found,
            },
        };
        let what = match recipient {
            // Only a Reply has a handle of ours to invalidate (8797-4.1-b).
            Recipient::Responder | Recipient::Exposed(_) | Recipient::Dropped(_) if invalidated.is_some() => {
                calling.misused(invalidated, exposed)
            }
            // Its Receive is not counted any more: all of them are over soon.
            Recipient::Responder if is_deaf => return None,
            Recipient::Responder if serving.has_receive() => return Some(Half::Serving),
            Recipient::Responder => "it sent more Calls than it had credits for",
            _ if calling.receives_posted == 0 => "it sent more messages than there were Receives for",
            Recipient::Requester | Recipient::First => return Some(Half::Calling),
            Recipient::Exposed(_) | Recipient::Dropped(_) => {
                core.statistics.messages_discarded += 1;
                calling.receives_posted -= 1;
                calling.post_receives(core, self.id);
                return None;
            }
        };
        self.close(core, CloseReason::Violation(what));
        None
    }

    /// Takes in what is for the client half of both.
    #[inline(never)]
    pub(crate) fn receive_reply<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        message: Buf,
        invalidated: Option<Handle>,
        exposed: &mut Option<Exposed>,
    ) -> Result<(), CloseReason> {
        let Some(calling) = &mut self.calling else {
            return Err(fault("a Reply for a connection without a client's half"));
        };
        calling.receive(core, self.id, message, invalidated, exposed).map_err(CloseReason::Violation)
    }
}
