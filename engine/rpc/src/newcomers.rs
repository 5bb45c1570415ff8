//! Connections that come in at one engine and are served by another of the same process.
//!
//! One engine listens. For each connection it asks a function where it belongs ([`Engine::set_placement`]), before there is a
//! queue pair or an octet was read. A connection that belongs elsewhere is released; the engine's owner carries it there
//! ([`Engine::take_released`], [`Engine::adopt_connection`]), by its own means.

use std::collections::VecDeque;
use std::fmt;
use std::net::{SocketAddr, TcpStream};

use stag_fabric::{ConnectRequestId, Peer, Provider, Stranger, Withheld};

use crate::engine::Engine;
use crate::server::admission::ConnectRequest;
use crate::service::Services;

/// Connections that wait to be carried elsewhere. Further ones are served where they came in.
const RELEASED_MAX: usize = 1024;

/// Where a connection is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedAt {
    /// By the engine that it came in at.
    Here,
    /// By the engine of that number: the place of its destination in the list of [`Engine::set_placement`].
    Engine(usize),
}

/// A connection on its way to the engine that serves it. `H` is the provider's [`Provider::Handover`]. It may go to another
/// thread. Dropped, it ends the connection.
#[derive(Debug)]
pub struct Newcomer<H> {
    peer: Peer,
    kind: NewcomerKind<H>,
}

impl<H> Newcomer<H> {
    /// Who it is.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }
}

#[derive(Debug)]
enum NewcomerKind<H> {
    /// A request to connect by RDMA.
    Request { handover: H, private_data: Vec<u8> },
    /// A TCP connection of which nothing was read.
    Stream(TcpStream, SocketAddr),
}

/// TCP connections that belong elsewhere, and what says where connections belong.
pub(crate) struct Doorkeeper {
    place: Box<dyn FnMut(&Peer) -> ServedAt>,
    streams: VecDeque<(usize, TcpStream, SocketAddr)>,
    /// Engines there are.
    engines: usize,
}

impl fmt::Debug for Doorkeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doorkeeper").field("streams", &self.streams.len()).finish_non_exhaustive()
    }
}

impl Doorkeeper {
    /// Keeps a TCP connection that belongs elsewhere, to be carried there. Gives one back that is served here.
    pub(crate) fn admit_stream(&mut self, socket: TcpStream, peer: SocketAddr) -> Option<TcpStream> {
        match (self.place)(&Peer::Address(peer)) {
            ServedAt::Engine(number) if number < self.engines && self.streams.len() < RELEASED_MAX => {
                self.streams.push_back((number, socket, peer));
                None
            }
            _ => Some(socket),
        }
    }

    /// Whether something waits to be carried.
    pub(crate) fn has_released(&self) -> bool {
        !self.streams.is_empty()
    }
}

impl<P: Provider, S: Services> Engine<P, S> {
    /// Takes on no more connections of clients. Existing connections go on as before, until they end.
    pub fn refuse_newcomers(&mut self) {
        self.core.refuses_newcomers = true;
        if let Some(streams) = &mut self.streams {
            streams.close_listeners();
        }
    }

    /// What other engines must know of this one to let connections go to it.
    #[must_use]
    pub fn destination(&self) -> P::Destination {
        self.core.provider.destination()
    }

    /// From now on `place` says for each incoming connection where it is served. It is called once for each, with the peer.
    ///
    /// The caller has to call [`Engine::take_released`] after each pass until it gives nothing: meanwhile the engine does not let
    /// its reactor sleep. At most 1024 connections of a kind wait; more are served here, as are those for a number that is not in
    /// `destinations`.
    pub fn set_placement(
        &mut self,
        destinations: Vec<P::Destination>,
        place: impl FnMut(&Peer) -> ServedAt + 'static,
    ) {
        let engines = destinations.len();
        self.destinations = destinations;
        self.core.doorkeeper = Some(Doorkeeper { place: Box::new(place), streams: VecDeque::new(), engines });
    }

    /// The next connection to hand over to another engine, and that engine's number.
    pub fn take_released(&mut self) -> Option<(usize, Newcomer<P::Handover>)> {
        if let Some((number, peer, handover, private_data)) = self.released.pop_front() {
            return Some((number, Newcomer { peer, kind: NewcomerKind::Request { handover, private_data } }));
        }
        let (number, socket, address) = self.core.doorkeeper.as_mut()?.streams.pop_front()?;
        Some((number, Newcomer { peer: Peer::Address(address), kind: NewcomerKind::Stream(socket, address) }))
    }

    /// Takes on a connection that another engine let go. The next pass admits it, or refuses it as if it had come in here.
    pub fn adopt_connection(&mut self, newcomer: Newcomer<P::Handover>) {
        let Newcomer { peer, kind } = newcomer;
        match kind {
            NewcomerKind::Request { handover, private_data } => match self.core.provider.adopt(handover) {
                Ok(request) => {
                    self.requests.push(ConnectRequest { request, peer, private_data, deadline: None })
                }
                Err(error) => {
                    self.core.note_departure(Some(&peer));
                    self.core.statistics.connections_refused += 1;
                    if let Some(withheld) = self.core.state.complaints.admit(self.core.state.now) {
                        tracing::warn!("client {peer} is refused: {error}{}", Withheld(withheld));
                    }
                }
            },
            NewcomerKind::Stream(socket, address) => self.adopt_stream(socket, address),
        }
    }

    /// A request to connect came in: keeps it, or lets it go to where it belongs.
    pub(crate) fn place_request(&mut self, request: ConnectRequestId, peer: Peer, private_data: Vec<u8>) {
        if self.core.doorkeeper.is_none() {
            // The first pass of a group: the others have joined, and it was not noticed yet.
            self.attend();
        }
        let place = self.core.doorkeeper.as_mut().map_or(ServedAt::Here, |keeper| (keeper.place)(&peer));
        if let ServedAt::Engine(number) = place
            && self.released.len() < RELEASED_MAX
            && let Some(to) = self.destinations.get(number)
        {
            match self.core.provider.release(request, to) {
                Some(handover) => self.released.push_back((number, peer, handover, private_data)),
                // It is gone, and the client knows.
                None => {
                    if let Some(departures) = &mut self.core.departures {
                        departures.push((Some(number), peer));
                    }
                }
            }
            return;
        }
        self.requests.push(ConnectRequest { request, peer, private_data, deadline: None });
    }

    /// A connection to the provider's port that speaks no RDMA: it may speak RPC over TCP.
    #[cold]
    pub(crate) fn place_stranger(&mut self, stranger: Stranger) {
        let Stranger { socket, peer, .. } = stranger;
        let socket = match &mut self.core.doorkeeper {
            Some(keeper) => keeper.admit_stream(socket.into(), peer),
            None => Some(socket.into()),
        };
        if let Some(socket) = socket {
            self.adopt_stream(socket, peer);
        }
    }

    /// Takes on a TCP connection.
    fn adopt_stream(&mut self, socket: TcpStream, peer: SocketAddr) {
        if let Err(error) = self.streams() {
            self.core.note_departure(Some(&Peer::Address(peer)));
            if let Some(withheld) = self.core.state.complaints.admit(self.core.state.now) {
                let withheld = Withheld(withheld);
                tracing::warn!("client {peer} is refused over TCP: {error}{withheld}");
            }
        } else if let Some(streams) = &mut self.streams {
            streams.adopt(&mut self.core, socket, peer);
        }
    }

    /// Whether connections wait to be carried elsewhere.
    pub(crate) fn has_released(&self) -> bool {
        !self.released.is_empty() || self.core.doorkeeper.as_ref().is_some_and(Doorkeeper::has_released)
    }
}
