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
use crate::group::attend;
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
    /// `place` says which of `engines` engines serves a connection.
    pub(crate) fn new(engines: usize, place: impl FnMut(&Peer) -> ServedAt + 'static) -> Doorkeeper {
        Doorkeeper { place: Box::new(place), streams: VecDeque::new(), engines }
    }

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

/// The next connection to hand over to another engine: see [`Engine::take_released`].
pub(crate) fn take_released<P: Provider, S: Services>(
    engine: &mut Engine<P, S>,
) -> Option<(usize, Newcomer<P::Handover>)> {
    if let Some((number, peer, handover, private_data)) = engine.released.pop_front() {
        return Some((number, Newcomer { peer, kind: NewcomerKind::Request { handover, private_data } }));
    }
    let (number, socket, address) = engine.core.doorkeeper.as_mut()?.streams.pop_front()?;
    Some((number, Newcomer { peer: Peer::Address(address), kind: NewcomerKind::Stream(socket, address) }))
}

/// Takes on a connection that another engine let go: see [`Engine::adopt_connection`].
pub(crate) fn adopt<P: Provider, S: Services>(engine: &mut Engine<P, S>, newcomer: Newcomer<P::Handover>) {
    let Newcomer { peer, kind } = newcomer;
    match kind {
        NewcomerKind::Request { handover, private_data } => match engine.core.provider.adopt(handover) {
            Ok(request) => {
                engine.requests.push(ConnectRequest { request, peer, private_data, deadline: None });
            }
            Err(error) => engine.core.note_refused(&peer, &error),
        },
        NewcomerKind::Stream(socket, address) => adopt_stream(engine, socket, address),
    }
}

/// Keeps a request to connect, or releases it to the engine where it belongs.
pub(crate) fn place_request<P: Provider, S: Services>(
    engine: &mut Engine<P, S>,
    request: ConnectRequestId,
    peer: Peer,
    private_data: Vec<u8>,
) {
    if engine.core.doorkeeper.is_none() {
        // The first pass of a group: the others have joined, and it was not noticed yet.
        attend(engine);
    }
    let place = engine.core.doorkeeper.as_mut().map_or(ServedAt::Here, |keeper| (keeper.place)(&peer));
    if let ServedAt::Engine(number) = place
        && engine.released.len() < RELEASED_MAX
        && let Some(to) = engine.destinations.get(number)
    {
        match engine.core.provider.release(request, to) {
            Some(handover) => engine.released.push_back((number, peer, handover, private_data)),
            // It is gone, and the client knows.
            None => {
                if let Some(departures) = &mut engine.core.departures {
                    departures.push((Some(number), peer));
                }
            }
        }
        return;
    }
    engine.requests.push(ConnectRequest { request, peer, private_data, deadline: None });
}

/// A connection to the provider's port that speaks no RDMA: it may speak RPC over TCP.
#[cold]
pub(crate) fn place_stranger<P: Provider, S: Services>(engine: &mut Engine<P, S>, stranger: Stranger) {
    let Stranger { socket, peer, .. } = stranger;
    let socket = match &mut engine.core.doorkeeper {
        Some(keeper) => keeper.admit_stream(socket.into(), peer),
        None => Some(socket.into()),
    };
    if let Some(socket) = socket {
        adopt_stream(engine, socket, peer);
    }
}

/// Takes on a TCP connection.
fn adopt_stream<P: Provider, S: Services>(engine: &mut Engine<P, S>, socket: TcpStream, peer: SocketAddr) {
    if let Err(error) = engine.streams() {
        engine.core.note_departure(Some(&Peer::Address(peer)));
        if let Some(withheld) = engine.core.state.complaints.admit(engine.core.state.now) {
            let withheld = Withheld(withheld);
            tracing::warn!("client {peer} is refused over TCP: {error}{withheld}");
        }
    } else if let Some(streams) = &mut engine.streams {
        streams.adopt(&mut engine.core, socket, peer);
    }
}
