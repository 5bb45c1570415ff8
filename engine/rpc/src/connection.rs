//! One connection: its queue pair, and its client and server halves.
//!
//! A connection that was opened has the client half, one that was accepted the server half. Where Calls go both ways
//! (RFC 8167) it has both, and a message says which it is for (`both_ways.rs`).

use std::time::Duration;

use stag_fabric::{Exposed, Handle, Peer, Provider, Withheld, WorkError};
use stag_memory::Buf;
use stag_proto::parameters::Parameters;

use crate::ConnectionId;
use crate::both_ways::Half;
use crate::client::calling::Calling;
use crate::client::pulling::{PULL_READ, pull_done};
use crate::client::reconnect::Session;
use crate::client::{CloseReason, ConnectionEvent};
use crate::config::EngineConfig;
use crate::fault::fault;
use crate::ready::Listed;
use crate::server::client_log::{ClientName, Service};
use crate::server::serving::Serving;
use crate::server::serving::exposing::{exposure_fenced, take_done};
use crate::service::Services;
use crate::state::{Core, Link, Pass};

/// A Read that is done.
#[derive(Debug)]
pub(crate) struct FinishedRead {
    /// The name it was posted with.
    pub(crate) request: u64,
    pub(crate) buf: Buf,
    pub(crate) result: Result<(), WorkError>,
}

/// How long a connection outlives the beginning of a graceful stop. The Sends of a stopping engine are
/// signaled, and awaited; Replies that were posted just before are not, and have this time to arrive. Calls that come
/// in this time are answered, those that come later are not begun.
const LINGER: Duration = Duration::from_millis(10);

/// The connections of an engine, by the places of their queue pairs.
pub(crate) type Connections = [Option<Box<Connection>>];

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) id: ConnectionId,
    pub(crate) peer: Option<Peer>,
    pub(crate) established: bool,
    pub(crate) parameters: Parameters,
    pub(crate) calling: Option<Calling>,
    pub(crate) serving: Option<Serving>,
    /// A client's: what outlives the queue pair.
    pub(crate) session: Option<Box<Session>>,
    /// Why we ended it, if we did.
    pub(crate) close_reason: Option<CloseReason>,
    /// Set-up began then; `Duration::MAX`: with the next scan.
    pub(crate) opened: Duration,
    /// When a graceful stop began.
    stopping: Option<Duration>,
    closing: bool,
    /// True while the connection is ending, or speaks version 2: messages then take the general way.
    pub(crate) is_special: bool,
    pub(crate) listed: Listed,
}

impl Connection {
    /// Octets of heap of one that serves.
    pub(crate) fn footprint(config: &EngineConfig) -> usize {
        let reverse = Calling::reverse_footprint(config.reverse_credits);
        size_of::<Connection>() + Serving::footprint(config) + reverse
    }

    pub(crate) fn new(id: ConnectionId, now: Duration) -> Connection {
        Connection {
            id,
            peer: None,
            established: false,
            parameters: Parameters::default(),
            calling: None,
            serving: None,
            session: None,
            close_reason: None,
            opened: now,
            stopping: None,
            closing: false,
            is_special: false,
            listed: Listed::default(),
        }
    }

    /// Takes in a message.
    // `inline(always)`: there is one caller, which would only hand on large arguments.
    #[inline(always)]
    pub(crate) fn receive<P: Provider, S: Services>(
        &mut self,
        pass: &mut Pass<'_, Core<P>, S>,
        message: Buf,
        invalidated: Option<Handle>,
        exposed: &mut Option<Exposed>,
    ) {
        let result = if self.serving.is_some() {
            // Inside: a connection with the client half alone pays nothing for it.
            let (mut is_reply, mut message) = (false, message);
            if self.is_special || self.calling.is_some() || invalidated.is_some() {
                if self.serving.as_ref().is_some_and(|serving| serving.version2.is_some()) {
                    if let Err(reason) = self.receive_version2(pass, message, invalidated, exposed) {
                        self.close(pass.core, reason);
                    }
                    return;
                }
                match self.take_done(pass.core, message, invalidated) {
                    Some(other) => message = other,
                    None => return,
                }
                match self.direct(pass.core, &message, invalidated, exposed) {
                    Some(Half::Serving) => {}
                    Some(Half::Calling) => is_reply = true,
                    None => return,
                }
            }
            let link = Link { id: self.id, peer: self.peer.as_ref() };
            match &mut self.serving {
                Some(serving) if !is_reply => serving.receive(pass, link, message),
                _ => self.receive_reply(pass.core, message, invalidated, exposed),
            }
        } else if let Some(calling) = &mut self.calling {
            if self.is_special && calling.version2.is_some() {
                if let Err(reason) = self.receive_version2(pass, message, invalidated, exposed) {
                    self.close(pass.core, reason);
                }
                return;
            }
            calling.receive(pass.core, self.id, message, invalidated, exposed).map_err(CloseReason::Violation)
        } else {
            Err(fault("a message for a connection without a client's or a server's half"))
        };
        if let Err(reason) = result {
            self.close(pass.core, reason);
        }
    }

    /// Takes a message in if it is an RDMA_DONE for the server half; else hands it back.
    #[inline(never)]
    fn take_done<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        message: Buf,
        invalidated: Option<Handle>,
    ) -> Option<Buf> {
        let Some(serving) = &mut self.serving else { return Some(message) };
        match take_done(serving, core, self.id, message, invalidated) {
            Ok(message) => message,
            Err(reason) => {
                self.close(core, reason);
                None
            }
        }
    }

    /// An RDMA Read is done.
    pub(crate) fn read_done<P: Provider, S: Services>(
        &mut self,
        pass: &mut Pass<'_, Core<P>, S>,
        read: FinishedRead,
    ) {
        let link = Link { id: self.id, peer: self.peer.as_ref() };
        let done = match (&mut self.calling, &mut self.serving) {
            (Some(calling), _) if read.request & PULL_READ != 0 => {
                pull_done(calling, pass.core, self.id, read)
            }
            (_, Some(serving)) => serving.read_done(pass, link, read),
            _ => Err(fault("a Read is done on a connection that reads nothing")),
        };
        if let Err(reason) = done {
            self.close(pass.core, reason);
        }
    }

    /// Memory that was exposed is fenced.
    pub(crate) fn fenced<P: Provider>(&mut self, core: &mut Core<P>, handle: Handle, exposed: Exposed) {
        let mut left = Some(exposed);
        if let Some(serving) = self.serving.as_mut().filter(|serving| serving.exposes_replies())
            && let Some(exposed) = left.take()
        {
            match exposure_fenced(serving, core, self.id, handle, exposed) {
                Ok(others) => left = others,
                Err(reason) => self.close(core, reason),
            }
        }
        let Some(exposed) = left else { return };
        match &mut self.calling {
            Some(calling) => calling.fenced(core, self.id, handle, exposed),
            // It came dead with a message that broke the rules, or its Reply was told of meanwhile.
            None if self.serving.as_ref().is_some_and(Serving::exposes_replies) => {}
            None => self.close(core, fault("a fence on a server's connection")),
        }
    }

    /// Whether the answer to a Call will not be seen; or it comes too late, and there would be no end of it.
    pub(crate) fn is_deaf(&self, now: Duration) -> bool {
        self.closing || self.stopping.is_some_and(|since| now >= since + LINGER)
    }

    /// Whether it takes no more Calls, or is about to end.
    #[inline]
    pub(crate) fn is_ending(&self) -> bool {
        self.closing || self.stopping.is_some()
    }

    /// Whether the peer opened it.
    pub(crate) fn is_accepted(&self) -> bool {
        self.session.is_none()
    }

    /// Ends the queue pair.
    fn disconnect<P: Provider>(&mut self, core: &mut Core<P>) {
        (self.closing, self.is_special) = (true, true);
        core.provider.disconnect(self.id);
    }

    /// Ends the connection, for a reason of ours.
    #[cold]
    pub(crate) fn close<P: Provider>(&mut self, core: &mut Core<P>, reason: CloseReason) {
        if self.closing {
            return;
        }
        if let CloseReason::Violation(what) = reason {
            core.statistics.violations += 1;
            self.complain(core, format_args!("{what}"));
        }
        if let CloseReason::Fault(what) = reason {
            core.statistics.faults += 1;
            if let Some(withheld) = core.state.defects.admit(core.state.now) {
                let (name, client, withheld) = (self.name(), self.client(), Withheld(withheld));
                tracing::error!(
                    "connection {name} with {client} ends by a defect of this engine: {what}; report it{withheld}"
                );
            }
        }
        if reason == CloseReason::Stuck {
            core.statistics.peers_stuck += 1;
            let limit = core.config.peer_timeout;
            let what = "it takes no Replies, or its chunks cannot be read";
            self.complain(core, format_args!("{what}, for {limit:?} (peer_timeout)"));
        }
        if reason == CloseReason::Idle {
            core.statistics.peers_stuck += 1;
            self.complain(core, format_args!("its chunks cannot be read, and others wait for memory"));
        }
        self.close_reason = Some(reason);
        self.disconnect(core);
    }

    /// Whether its end has begun, for a reason of ours.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Ends the connection, because another one is of more use.
    #[cold]
    pub(crate) fn make_room<P: Provider>(&mut self, core: &mut Core<P>, why: &str) {
        core.statistics.connections_evicted += 1;
        self.complain(core, format_args!("{why}"));
        self.disconnect(core);
    }

    fn complain<P>(&self, core: &mut Core<P>, what: std::fmt::Arguments<'_>) {
        if let Some(withheld) = core.state.complaints.admit(core.state.now) {
            let withheld = Withheld(withheld);
            tracing::warn!("{} is cut off: {what}; {}{withheld}", self.client(), self.service(core.now));
        }
    }

    /// How the log names its client.
    pub(crate) fn client(&self) -> ClientName<'_> {
        ClientName { peer: self.peer.as_ref(), host: self.serving.as_ref().map(|serving| &serving.host) }
    }

    /// What it was good for.
    pub(crate) fn service(&self, now: Duration) -> Service {
        Service { time: now.saturating_sub(self.opened), calls: self.calls_served() }
    }

    /// Calls of its peer that were taken on.
    pub(crate) fn calls_served(&self) -> u64 {
        self.serving.as_ref().map_or(0, |serving| serving.governor.calls())
    }

    /// Goes on with what found no room, and with a graceful stop. Returns how much was done.
    #[inline]
    pub(crate) fn flush<P: Provider, S: Services>(&mut self, pass: &mut Pass<'_, Core<P>, S>) -> usize {
        let resumed = match &mut self.calling {
            // There is nothing to send on while the next connection is set up, or this one ends.
            Some(calling) if self.established && !self.closing && calling.has_waiting() => {
                calling.resume(pass.core, self.id)
            }
            _ => 0,
        };
        let Some(serving) = &mut self.serving else { return resumed };
        if serving.has_waiting() {
            let link = Link { id: self.id, peer: self.peer.as_ref() };
            return match serving.flush(pass, link) {
                Ok(count) => resumed + count,
                Err(reason) => {
                    self.close(pass.core, reason);
                    resumed
                }
            };
        }
        let Some(since) = self.stopping else { return resumed };
        if !self.closing && serving.is_idle() && pass.core.now >= since + LINGER {
            self.disconnect(pass.core);
            return resumed + 1;
        }
        resumed
    }

    /// Whether [`Connection::flush`] may have something to do.
    pub(crate) fn has_waiting(&self) -> bool {
        self.stopping.is_some()
            || self.serving.as_ref().is_some_and(Serving::has_waiting)
            || self.calling.as_ref().is_some_and(Calling::has_waiting)
    }

    /// What its user calls it.
    pub(crate) fn name(&self) -> ConnectionId {
        self.session.as_ref().map_or(self.id, |session| session.name)
    }

    /// A client's connection is gone, with all that was posted and exposed: its Calls wait, if there will be another one.
    /// `false`: there will not.
    pub(crate) fn await_another<P: Provider>(&mut self, core: &mut Core<P>) -> bool {
        let asks_for_version_2 = self.is_probing();
        let (Some(session), Some(calling)) = (self.session.as_deref_mut(), self.calling.as_mut()) else {
            return false;
        };
        // Announced or not: a peer that ends the connection when it is asked may speak version 1.
        if asks_for_version_2 && !session.ended {
            session.lose_to_version_1(core.now);
            calling.interrupt(core);
            return true;
        }
        // The first connection is its user's matter: an address may be wrong.
        if !self.established && session.lost.is_none() {
            return false;
        }
        if calling.heard > self.opened {
            session.heard();
        }
        if !session.lose(core.now) {
            return false;
        }
        calling.interrupt(core);
        true
    }

    /// A client's connection can be used: tells its user.
    pub(crate) fn become_ready<P: Provider>(&mut self, core: &mut Core<P>) {
        self.established = true;
        core.statistics.connections_opened += 1;
        let Some(session) = self.session.as_deref_mut() else { return };
        let connection = session.name;
        let was_lost = session.lost.is_some();
        session.restore();
        if std::mem::take(&mut session.is_new) {
            return core.events.push_back(ConnectionEvent::Established { connection });
        }
        debug_assert!(was_lost, "a connection is ready once");
        core.statistics.connections_restored += 1;
        core.events.push_back(ConnectionEvent::Restored { connection });
        if let Some(calling) = &mut self.calling {
            calling.resume(core, self.id);
        }
    }

    /// It has a queue pair again.
    pub(crate) fn revive(&mut self, id: ConnectionId, now: Duration) {
        self.id = id;
        self.opened = now;
        self.established = false;
        (self.closing, self.is_special) = (false, false);
        self.close_reason = None;
    }

    /// Begins a graceful stop: a client's half ends at once, a server's when its Calls are answered.
    pub(crate) fn stop<P: Provider>(&mut self, core: &mut Core<P>) {
        (self.stopping, self.is_special) = (Some(core.now), true);
        if self.serving.is_none() && !self.closing {
            self.disconnect(core);
        }
    }

    /// Whether something must be looked at when time passes.
    pub(crate) fn has_deadline(&self) -> bool {
        !self.established
            || self.stopping.is_some()
            || self.calling.as_ref().is_some_and(Calling::has_deadline)
            || self.serving.as_ref().is_some_and(|serving| !serving.is_idle())
    }

    /// Whether scans have to look at it, even if nothing happens.
    pub(crate) fn has_timer(&self) -> bool {
        self.has_deadline() || self.calling.as_ref().is_some_and(Calling::has_keep_alive)
    }
}
