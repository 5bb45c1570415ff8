//! Connection set-up: what each side waits for, and the checks of what the other side sent.
//!
//! A peer that is slow, silent or talks nonsense costs a slot for a bounded time, and nothing else.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use super::connection::{Link, Phase};
use super::exposure::Binds;
use super::message::{Introduction, Malformed, Message};
use super::pages::{self, Part};
use super::regions::Regions;
use super::rendezvous::{self, Address, Received};
use super::ring;
use super::wake::{Bell, SOCKET};
use super::{ACCEPT_BURST, Admit, INCOMING_MAX, Ours, Shm};
use crate::epoll::Token;
use crate::{ConnectRequestId, DisconnectReason, Event, ListenerId, Peer, QueuePairCapacity};

/// Connecting side.
pub(super) struct Dialing {
    pub(super) address: Address,
    /// Our part, and its descriptor until it is sent.
    pub(super) part: Part,
    pub(super) fd: OwnedFd,
    pub(super) private_data: Vec<u8>,
    /// When to give up; from the first `poll` on.
    pub(super) deadline: Option<Duration>,
}

/// Accepting side: a connection that has no queue pair yet.
pub(super) struct Incoming {
    pub(super) id: u32,
    pub(super) listener: ListenerId,
    pub(super) socket: OwnedFd,
    pub(super) peer: Peer,
    /// When to give up waiting for HELLO; afterwards the user takes the time it needs.
    pub(super) deadline: Duration,
    pub(super) hello: Option<Offer>,
}

impl Incoming {
    /// The name that the user knows it by.
    pub(super) fn request(&self) -> ConnectRequestId {
        ConnectRequestId(u64::from(self.id))
    }
}

/// What a peer said of itself, checked, with the descriptors of its memory.
pub(super) struct Offer {
    pub(super) introduction: Introduction,
    part: OwnedFd,
    bell: Bell,
    arenas: Vec<OwnedFd>,
}

impl Offer {
    /// Checks descriptors against what the introduction says of them: as many, each a memfd that cannot shrink.
    pub(super) fn new(introduction: Introduction, fds: Vec<OwnedFd>) -> Result<Offer, &'static str> {
        if fds.len() != 2 + introduction.arenas.len() {
            return Err("the number of descriptors is wrong");
        }
        let mut fds = fds.into_iter();
        let (Some(part), Some(bell)) = (fds.next(), fds.next()) else {
            return Err("the number of descriptors is wrong");
        };
        let arenas: Vec<OwnedFd> = fds.collect();
        let bell = Bell::from_peer(bell).ok_or("the wake-up descriptor is no eventfd")?;
        let part_len = introduction.layout.file_len() as u64;
        let memory =
            [(&part, part_len)].into_iter().chain(arenas.iter().zip(introduction.arenas.iter().copied()));
        for (fd, len) in memory {
            if !pages::is_safe_to_map(fd.as_fd(), len) {
                return Err("a memfd is shorter than claimed, or not sealed against shrinking");
            }
        }
        Ok(Offer { introduction, part, bell, arenas })
    }

    /// Maps the peer's memory.
    pub(super) fn map(self, regions: &mut Regions) -> io::Result<(Part, Binds, Option<Bell>)> {
        let Offer { introduction, part, bell, arenas } = self;
        let part = Part::open(part.as_fd(), introduction.layout)?;
        let arenas = arenas.iter().zip(&introduction.arenas).map(|(fd, &len)| regions.map(fd.as_fd(), len));
        let binds = Binds::new(introduction.layout.exposures, arenas.collect::<io::Result<_>>()?);
        Ok((part, binds, introduction.may_sleep.then_some(bell)))
    }
}

/// Makes our part of a connection.
pub(super) fn create_part(capacity: &QueuePairCapacity) -> io::Result<(Part, OwnedFd)> {
    let ring_len = ring::ring_len(capacity.send_len_max, super::RING_LEN_DEFAULT);
    Part::create(pages::Layout { ring_len, exposures: capacity.exposures })
}

/// Sends HELLO (`is_hello`) or ACCEPT.
pub(super) fn introduce(
    socket: BorrowedFd<'_>,
    is_hello: bool,
    ours: &Ours,
    (part, fd): (&Part, BorrowedFd<'_>),
    capacity: QueuePairCapacity,
    private_data: Vec<u8>,
) -> io::Result<()> {
    let introduction = Introduction {
        may_sleep: ours.may_sleep,
        capacity,
        layout: part.layout(),
        arenas: ours.arenas.iter().map(|arena| arena.len() as u64).collect(),
        private_data,
    };
    let message = if is_hello { Message::Hello(introduction) } else { Message::Accept(introduction) };
    let mut fds = vec![fd, ours.bell.as_fd()];
    fds.extend(ours.arenas.iter().map(|arena| arena.fd()));
    rendezvous::send(socket, &message.encode(), &fds)
}

/// What the connecting side hears.
pub(super) enum Answer {
    /// Nothing yet.
    Nothing,
    /// ACCEPT.
    Accepted(Offer),
    /// REJECT.
    Rejected(String),
    /// Nonsense.
    Violation(&'static str),
    /// The listener went away.
    Closed,
}

/// Reads the answer to HELLO.
pub(super) fn answer(socket: BorrowedFd<'_>) -> Answer {
    match hear(socket) {
        Ok(None) => Answer::Nothing,
        Ok(Some((Message::Accept(introduction), fds))) => match Offer::new(introduction, fds) {
            Ok(offer) => Answer::Accepted(offer),
            Err(problem) => Answer::Violation(problem),
        },
        Ok(Some((Message::Reject(reason), _))) => Answer::Rejected(reason),
        Ok(Some((Message::Hello(_), _))) => Answer::Violation("a HELLO from the accepting side"),
        Err(Deaf::Closed) => Answer::Closed,
        Err(Deaf::Nonsense(problem)) => Answer::Violation(problem),
    }
}

/// Reads HELLO. `None`: not there yet.
pub(super) fn hello(socket: BorrowedFd<'_>) -> Result<Option<Offer>, Deaf> {
    match hear(socket)? {
        None => Ok(None),
        Some((Message::Hello(introduction), fds)) => {
            Offer::new(introduction, fds).map(Some).map_err(Deaf::Nonsense)
        }
        Some(_) => Err(Deaf::Nonsense("the first message is not HELLO")),
    }
}

/// Why there is no message and will be none.
pub(super) enum Deaf {
    Closed,
    Nonsense(&'static str),
}

fn hear(socket: BorrowedFd<'_>) -> Result<Option<(Message, Vec<OwnedFd>)>, Deaf> {
    match rendezvous::receive(socket) {
        Received::Nothing => Ok(None),
        Received::Closed => Err(Deaf::Closed),
        Received::TooLong => Err(Deaf::Nonsense("the message is too long")),
        Received::Datagram(bytes, fds) => match Message::decode(&bytes) {
            Ok(message) => Ok(Some((message, fds))),
            Err(Malformed::Version) => Err(Deaf::Nonsense("the peer speaks another version")),
            Err(Malformed::Content) => Err(Deaf::Nonsense("the message makes no sense")),
        },
    }
}

/// Whether `peer` may connect to us, or we to it.
pub(super) fn is_admitted(admit: Admit, peer: &Peer) -> bool {
    // SAFETY: no pointers; it cannot fail.
    let ours = unsafe { libc::geteuid() };
    match (admit, peer) {
        (Admit::AnyUser, _) => true,
        (Admit::SameUserOrRoot, Peer::Process { uid, .. }) => *uid == ours || *uid == 0 || ours == 0,
        (Admit::SameUserOrRoot, Peer::Address(_)) => false,
    }
}

// The connecting side.
impl Shm {
    /// Tries to reach the listener, and says HELLO.
    pub(super) fn dial(&mut self, index: u32) {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        if !matches!(pair.phase, Phase::Dialing) {
            return;
        }
        let Some(dialing) = &pair.dialing else { return };
        let socket = match rendezvous::connect(&dialing.address) {
            Ok(socket) => socket,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => return self.close(index, DisconnectReason::NoListener),
        };
        let token = Token::queue_pair(pair.id);
        let result = rendezvous::peer(socket.as_fd()).and_then(|peer| {
            pair.peer = peer;
            if !is_admitted(self.config.admit, &pair.peer) {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            self.epoll.add(socket.as_fd(), token, SOCKET)?;
            let part = (&dialing.part, dialing.fd.as_fd());
            let private_data = dialing.private_data.clone();
            introduce(socket.as_fd(), true, &self.ours, part, pair.capacity, private_data)
        });
        pair.socket = Some(socket);
        match result {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let reason = "the listener runs as another user; see Admit".to_owned();
                self.close(index, DisconnectReason::Rejected(reason));
            }
            Err(_) => self.close(index, DisconnectReason::PeerDied),
        }
    }

    /// The socket of a queue pair has news.
    pub(super) fn hear(&mut self, index: u32, hung_up: bool) {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        let Some(socket) = &pair.socket else { return };
        match pair.phase {
            Phase::Dialing => match answer(socket.as_fd()) {
                Answer::Nothing => {}
                Answer::Accepted(offer) => self.establish(index, offer),
                Answer::Rejected(reason) => self.close(index, DisconnectReason::Rejected(reason)),
                Answer::Violation(problem) => self.close(index, DisconnectReason::PeerViolation(problem)),
                Answer::Closed => self.close(index, DisconnectReason::PeerDied),
            },
            _ if hung_up => {
                // Whoever holds this end no longer reads it: it would be ready for ever.
                self.epoll.remove(socket.as_fd());
                pair.peer_gone = true;
                let reason = pair.peer_reason();
                match pair.phase {
                    Phase::Open => {
                        pair.phase = Phase::Draining(reason);
                        self.mark_attention(index);
                    }
                    // The user has to hear that it was there, first.
                    Phase::Announced | Phase::Closing(_) => {}
                    _ => self.close(index, reason),
                }
            }
            // One more datagram, after the last that there should be.
            _ => {
                self.epoll.remove(socket.as_fd());
                self.close(index, DisconnectReason::PeerViolation("a message after the set-up"));
            }
        }
    }

    /// The peer accepted.
    fn establish(&mut self, index: u32, mut offer: Offer) {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        let Some(dialing) = pair.dialing.take() else { return };
        let private_data = std::mem::take(&mut offer.introduction.private_data);
        match offer.map(&mut self.regions) {
            Ok((theirs, binds, bell)) => {
                pair.link = Some(Link::new(dialing.part, theirs, binds, bell, self.ours.arenas.len()));
                pair.phase = Phase::Announced;
                let (queue_pair, peer) = (pair.id, pair.peer.clone());
                self.events.push_back(Event::Established { queue_pair, private_data, peer });
            }
            Err(_) => self.close(index, DisconnectReason::PeerViolation("its memory cannot be mapped")),
        }
    }
}

// The accepting side.
impl Shm {
    /// Takes connections from a listener's backlog.
    pub(super) fn take_connections(&mut self, index: u32) {
        for _ in 0..ACCEPT_BURST {
            let Some(listener) = self.listeners.get(index as usize) else { return };
            // An error here is one of a connection that is gone again, or of descriptors that ran out: the
            // next look tries again.
            let Ok(Some(socket)) = rendezvous::accept(listener.as_fd()) else { return };
            let Ok(peer) = rendezvous::peer(socket.as_fd()) else { continue };
            let refusal = if !is_admitted(self.config.admit, &peer) {
                Some("only processes of the same user, or root, may connect")
            } else if self.incoming.len() == INCOMING_MAX {
                Some("too many connection requests wait")
            } else {
                None
            };
            if let Some(reason) = refusal {
                refuse(socket.as_fd(), reason);
                continue;
            }
            let id = self.incoming_next;
            self.incoming_next = self.incoming_next.wrapping_add(1);
            let token = Token::Incoming { index: id, generation: 0 };
            if self.epoll.add(socket.as_fd(), token, SOCKET).is_ok() {
                let deadline = self.now + self.config.setup_timeout;
                let listener = ListenerId(index);
                self.incoming.push(Incoming { id, listener, socket, peer, deadline, hello: None });
                // HELLO is usually there already.
                self.hear_incoming(id, false);
            }
        }
    }

    /// A connection without a queue pair has news.
    pub(super) fn hear_incoming(&mut self, id: u32, hung_up: bool) {
        let Some(at) = self.incoming.iter().position(|incoming| incoming.id == id) else { return };
        let incoming = &mut self.incoming[at];
        if incoming.hello.is_some() {
            // The user has not answered yet. If the peer gave up, or sent more than it should, it will
            // find the request gone.
            self.incoming.swap_remove(at);
            return;
        }
        match hello(incoming.socket.as_fd()) {
            Ok(Some(mut offer)) => {
                let private_data = std::mem::take(&mut offer.introduction.private_data);
                incoming.hello = Some(offer);
                let Incoming { listener, ref peer, .. } = *incoming;
                let (request, peer) = (incoming.request(), peer.clone());
                self.events.push_back(Event::ConnectRequest { listener, request, peer, private_data });
            }
            Ok(None) if !hung_up => {}
            Ok(None) | Err(Deaf::Closed) => {
                self.incoming.swap_remove(at);
            }
            Err(Deaf::Nonsense(problem)) => {
                refuse(incoming.socket.as_fd(), problem);
                self.incoming.swap_remove(at);
            }
        }
    }

    pub(super) fn take_request(&mut self, request: ConnectRequestId) -> Option<(Incoming, Offer)> {
        let is_it = |incoming: &Incoming| incoming.request() == request && incoming.hello.is_some();
        let at = self.incoming.iter().position(is_it)?;
        let mut incoming = self.incoming.swap_remove(at);
        let offer = incoming.hello.take()?;
        Some((incoming, offer))
    }
}

/// Says no, as far as the peer still listens.
pub(super) fn refuse(socket: BorrowedFd<'_>, reason: &str) {
    // It may be gone already.
    let _ = rendezvous::send(socket, &Message::Reject(reason.to_owned()).encode(), &[]);
}
