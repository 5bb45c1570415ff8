//! The state that the halves of all connections share.

use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use stag_fabric::{LogLimiter, Peer, Withheld};

use crate::ConnectionId;
use crate::call_back::CallsBack;
use crate::carried::Carrier;
use crate::client::{CallError, CloseReason, CompletedCall, ConnectionEvent, Results};
use crate::config::EngineConfig;
use crate::newcomers::Doorkeeper;
use crate::pools::Pools;
use crate::ready::ReadyLists;
use crate::recorder::Recorder;
use crate::security::sealed::Seals;
use crate::server::doomed::DoomedCalls;
use crate::server::draft::Draft;
use crate::server::duplicates::Duplicates;
use crate::server::governor::CreditLedger;
use crate::server::pulling::{Pressure, Pull};
use crate::server::spares::Spares;
use crate::server::transit::TransitAccounts;
use crate::service::deferred::Deferrals;
use crate::statistics::Statistics;

/// Says what weight a client has.
pub(crate) type WeighClient = Box<dyn Fn(&Peer) -> u32>;

/// Everything of an engine but its connections and services.
///
/// It derefs to its state. What needs one part of that beside the provider, or beside another part, names the field.
pub(crate) struct Core<P> {
    pub(crate) provider: P,
    pub(crate) state: EngineState,
}

impl<P> Deref for Core<P> {
    type Target = EngineState;

    #[inline(always)]
    fn deref(&self) -> &EngineState {
        &self.state
    }
}

impl<P> DerefMut for Core<P> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut EngineState {
        &mut self.state
    }
}

/// What the steps of a Call work with, beside its connection: the core of the engine, or its state alone where the provider is
/// busy, and the services.
pub(crate) struct Pass<'a, C, S> {
    pub(crate) core: &'a mut C,
    pub(crate) services: &'a mut S,
}

/// The connection that a message came on, and who is at its other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link<'a> {
    pub(crate) id: ConnectionId,
    pub(crate) peer: Option<&'a Peer>,
}

impl<P> AsMut<EngineState> for Core<P> {
    #[inline(always)]
    fn as_mut(&mut self) -> &mut EngineState {
        &mut self.state
    }
}

impl AsMut<EngineState> for EngineState {
    #[inline(always)]
    fn as_mut(&mut self) -> &mut EngineState {
        self
    }
}

/// Everything of a [`Core`] but the provider: what can be used while the provider is polled.
pub(crate) struct EngineState {
    pub(crate) pools: Pools,
    pub(crate) config: EngineConfig,
    pub(crate) statistics: Statistics,
    pub(crate) duplicates: Duplicates,
    pub(crate) deferrals: Deferrals,
    /// What seals the Replies of Calls that are answered later.
    pub(crate) seals: Seals,
    pub(crate) refused_calls: DoomedCalls,
    /// The instant of this pass.
    pub(crate) now: Duration,
    pub(crate) completed: VecDeque<CompletedCall>,
    pub(crate) events: VecDeque<ConnectionEvent>,
    /// Calls that services make to clients.
    pub(crate) calls_back: CallsBack,
    pub(crate) drafts: Spares<Draft>,
    pub(crate) pulls: Spares<Pull>,
    /// Receives, and who holds them.
    pub(crate) credits: CreditLedger,
    /// Connections that serve.
    pub(crate) serving_count: u32,
    /// Says what weight a client has; `None`: all have the same.
    pub(crate) weigh: Option<WeighClient>,
    pub(crate) complaints: LogLimiter,
    /// About handlers' mistakes: apart from those about peers, which would hide them.
    pub(crate) defects: LogLimiter,
    /// About Calls with more data than is read.
    pub(crate) oversized: LogLimiter,
    /// Lines about clients that come and go.
    pub(crate) comings: LogLimiter,
    /// Connections on which a defect of this engine showed, by name or by queue pair: they end with this pass.
    pub(crate) faults: Vec<(ConnectionId, CloseReason)>,
    /// Counts the passes.
    pub(crate) pass: u64,
    /// A graceful stop is under way.
    pub(crate) stopping: bool,
    /// No connection is taken on; those that there are go on.
    pub(crate) refuses_newcomers: bool,
    /// Where long Replies are written.
    pub(crate) scratch: Vec<u8>,
    /// Where Payload streams in several pieces are put together.
    pub(crate) gathered: Vec<u8>,
    /// How Calls on byte streams wait for memory that others hold, if some do.
    pub(crate) streams_pressure: Option<Pressure>,
    /// What connections hold of the payload memory for transit.
    pub(crate) transit: TransitAccounts,
    /// An RDMA Read was posted since the last look at completions.
    pub(crate) read_posted: bool,
    /// What leads to the other reactors of the group, if this engine is one of a group.
    pub(crate) carrier: Option<Box<Carrier>>,
    /// Says where connections belong, in an engine that takes them for others.
    pub(crate) doorkeeper: Option<Doorkeeper>,
    /// Connections to look at.
    pub(crate) ready: ReadyLists,
    /// Clients whose connections are gone, and who was to serve them if that was another reactor; `None`: it is not
    /// asked for.
    pub(crate) departures: Option<Vec<(Option<usize>, Peer)>>,
    /// For a Call that is answered in place: its lists are at hand.
    pub(crate) draft_in_place: Option<Box<Draft>>,
    /// What records messages, if that is wanted.
    pub(crate) recorder: Option<Box<Recorder>>,
}

impl EngineState {
    /// A client's connection is gone, or did not come about.
    pub(crate) fn note_departure(&mut self, peer: Option<&Peer>) {
        if let (Some(departures), Some(peer)) = (&mut self.departures, peer) {
            departures.push((None, peer.clone()));
        }
    }

    /// A newcomer is refused, and is told why.
    pub(crate) fn note_refused(&mut self, peer: &Peer, why: &dyn fmt::Display) {
        self.statistics.connections_refused += 1;
        if let Some(withheld) = self.complaints.admit(self.now) {
            tracing::warn!("client {peer} is refused: {why}{}", Withheld(withheld));
        }
        self.note_departure(Some(peer));
    }

    #[inline]
    pub(crate) fn draft(&mut self) -> Box<Draft> {
        self.drafts.take()
    }

    #[inline]
    pub(crate) fn put_draft(&mut self, draft: Box<Draft>) {
        self.drafts.put(draft);
    }

    /// A draft for a Call that is answered before another begins.
    #[inline(always)]
    pub(crate) fn draft_in_place(&mut self) -> Box<Draft> {
        match self.draft_in_place.take() {
            Some(draft) => draft,
            None => self.drafts.take(),
        }
    }

    /// Takes that back, which has nothing in it any more.
    #[inline(always)]
    pub(crate) fn put_draft_in_place(&mut self, draft: Box<Draft>) {
        let none = self.draft_in_place.replace(draft);
        debug_assert!(none.is_none(), "one Call at a time is answered in place");
        // As it is none: the check would be in the way of each Call.
        std::mem::forget(none);
    }

    /// A Call to a client that a service made is over.
    #[cold]
    pub(crate) fn end_call_back(&mut self, key: u64, result: Result<Results, CallError>) {
        self.calls_back.end(key, result.map(|results| results.bytes().to_vec()).map_err(Into::into));
    }

    pub(crate) fn put_pull(&mut self, pull: Box<Pull>) {
        self.pulls.put(pull);
    }

    /// Whether there are hardly enough message buffers to answer what is begun: nothing more is begun then.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.pools.messages.free_units() < MESSAGES_RESERVE
    }
}

/// Message buffers that answering one Call takes: its Reply, or an RDMA_ERROR instead, and the Receive in
/// place of its own.
pub(crate) const MESSAGES_RESERVE: usize = 3;
