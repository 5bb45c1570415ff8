//! Connection set-up: the steps of each side, and the checks of the other side's messages.
//!
//! A peer that is slow, silent or sends nonsense costs a slot for a bounded time, and nothing else.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use super::admit;
use super::connection::Phase;
use super::link::Link;
use super::message::{Introduction, Malformed, Message};
use super::pages::{self, AllowedPages, Layout, Part};
use super::pending::{BadMessage, Incoming, Offer, STRAYS};
use super::rendezvous::{self, Heard, Received};
use super::sockets::{self, Foreign, Socket};
use super::{ACCEPT_BURST, Ours, SOCKET, Shm};
use crate::epoll::{EventFlags, Token};
use crate::setup::{ACCEPT_PAUSE, check_limit, is_exhausted};
use crate::{
    ConnectRequestId, DisconnectReason, Event, FabricError, ListenerId, Peer, QueuePairCapacity, QueuePairId,
};

/// Wake-ups taken from a connection in one look. One for each sleep may come, and usually there is one.
const WAKES_MAX: usize = 8;
/// How long a user is refused whose process sent descriptors that were not asked for.
const SHUN_TIME: Duration = Duration::from_secs(60);
/// Users that are refused so at once; the oldest is forgotten.
const SHUNNED_MAX: usize = 64;

/// Makes our part of a connection.
pub(super) fn create_part(capacity: &QueuePairCapacity) -> io::Result<(Part, OwnedFd)> {
    Part::create(Layout::of(capacity))
}

/// Sends HELLO (`is_hello`) or ACCEPT.
pub(super) fn introduce(
    socket: BorrowedFd<'_>,
    is_hello: bool,
    ours: &Ours,
    (part, fd): (&Part, BorrowedFd<'_>),
    (queue_pair, capacity): (QueuePairId, QueuePairCapacity),
    private_data: Vec<u8>,
) -> io::Result<()> {
    let (bell, bells) = ours.bells.place(queue_pair.index);
    let introduction = Introduction {
        may_sleep: ours.may_sleep,
        capacity,
        layout: part.layout(),
        arenas: ours.arenas.iter().map(|arena| arena.len() as u64).collect(),
        bell: Some(bell),
        private_data,
    };
    let message = if is_hello { Message::Hello(introduction) } else { Message::Accept(introduction) };
    let mut fds = vec![fd];
    // An arena without is not registered.
    fds.extend(ours.arenas.iter().filter_map(|arena| arena.fd()));
    fds.push(bells);
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
    /// Something that it must not send.
    Violation(BadMessage),
    /// The listener went away.
    Closed,
}

/// Reads the answer to HELLO.
pub(super) fn answer(socket: BorrowedFd<'_>, allowed: AllowedPages) -> Answer {
    match hear(socket) {
        Ok(None) => Answer::Nothing,
        Ok(Some((Message::Accept(introduction), fds))) => match Offer::new(introduction, fds, allowed) {
            Ok(offer) => Answer::Accepted(offer),
            Err(bad) => Answer::Violation(bad),
        },
        Ok(Some((Message::Reject(reason), _))) => Answer::Rejected(reason),
        Ok(Some((Message::Hello(_), _))) => {
            Answer::Violation(BadMessage::Nonsense("a HELLO from the accepting side"))
        }
        Err(BadMessage::Closed) => Answer::Closed,
        Err(bad) => Answer::Violation(bad),
    }
}

/// Reads HELLO. `None`: not there yet.
fn hello(socket: BorrowedFd<'_>, allowed: AllowedPages) -> Result<Option<Offer>, BadMessage> {
    match hear(socket)? {
        None => Ok(None),
        Some((Message::Hello(introduction), fds)) => Offer::new(introduction, fds, allowed).map(Some),
        Some((_, fds)) if !fds.is_empty() => Err(BadMessage::Strays),
        Some(_) => Err(BadMessage::Nonsense("the first message is not HELLO")),
    }
}

fn hear(socket: BorrowedFd<'_>) -> Result<Option<(Message, Vec<Foreign>)>, BadMessage> {
    match rendezvous::receive(socket) {
        Received::Nothing => Ok(None),
        Received::Closed => Err(BadMessage::Closed),
        Received::TooLong => Err(BadMessage::Nonsense("the message is too long")),
        Received::TooMany => Err(BadMessage::Strays),
        Received::Exhausted => Err(BadMessage::Exhausted),
        Received::Datagram(bytes, fds) => match Message::decode(&bytes) {
            Ok(message) => Ok(Some((message, fds))),
            // Another version may well bring more memory.
            Err(Malformed::Version) if fds.iter().all(|fd| pages::seals(fd.as_fd()).is_some()) => {
                Err(BadMessage::Nonsense("the peer speaks another version"))
            }
            Err(_) if !fds.is_empty() => Err(BadMessage::Strays),
            Err(Malformed::Version | Malformed::Content) => {
                Err(BadMessage::Nonsense("the message is malformed"))
            }
        },
    }
}

/// The pages that arenas of this peer may lie on. `is_allowed`: see [`ShmConfig::foreign_hugepages`](super::ShmConfig).
fn allowed_pages(is_allowed: bool, own: u32, peer: &Peer) -> AllowedPages {
    if is_allowed || admit::user(peer) == own { AllowedPages::Hugepages } else { AllowedPages::Base }
}

/// Whether connections of this user are refused for a while.
fn is_shunned(shunned: &[(u32, Duration)], user: u32, now: Duration) -> bool {
    shunned.iter().any(|&(other, until)| other == user && now < until)
}

// Whom to listen to.
impl Shm {
    /// A peer of this user sent descriptors that were not asked for: no connection of the user is accepted for a while.
    #[cold]
    fn shun(&mut self, user: u32) {
        tracing::warn!(
            "shm: a process of user {user} sent descriptors that were not asked for; connections of that user are refused \
             for {} s",
            SHUN_TIME.as_secs()
        );
        let now = self.now;
        self.shunned.retain(|&(other, until)| other != user && now < until);
        if self.shunned.len() == SHUNNED_MAX {
            self.shunned.remove(0);
        }
        self.shunned.push((user, now + SHUN_TIME));
        // What they have sent is not read any more.
        self.incoming.retain(|incoming| incoming.hello.is_some() || admit::user(&incoming.peer) != user);
    }

    /// Why the process that has just connected is refused, if it is.
    fn refusal(&self, peer: &Peer, socket: BorrowedFd<'_>) -> Option<&'static str> {
        let (own, user) = ((self.own_user)(), admit::user(peer));
        let is_silent =
            |incoming: &&Incoming| incoming.hello.is_none() && admit::user(&incoming.peer) == user;
        if !admit::is_admitted(&self.config.admit, own, peer, socket) {
            Some("processes of your user are not admitted")
        } else if is_shunned(&self.shunned, user, self.now) {
            Some(STRAYS)
        } else if user != own && sockets::waits_to_close() {
            Some("descriptors that others sent are still being closed; try again later")
        } else if self.incoming.len() >= self.incoming_max() {
            Some("too many connection requests wait")
        } else if 2 * self.incoming.iter().filter(is_silent).count() >= self.incoming_max() {
            Some("too many connections of your user have not said HELLO yet")
        } else {
            None
        }
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
        // Before anything is handed over: the listener may have taken somebody else's name.
        let admitted = rendezvous::peer(socket.as_fd()).map(|peer| {
            pair.peer = peer;
            admit::is_admitted(&self.config.admit, (self.own_user)(), &pair.peer, socket.as_fd())
        });
        if let (Ok(false), Peer::Process { uid, gid, .. }) = (&admitted, &pair.peer) {
            let reason = DisconnectReason::NotAdmitted { uid: *uid, gid: *gid };
            return self.close(index, reason);
        }
        if is_shunned(&self.shunned, admit::user(&pair.peer), self.now) {
            return self.close(index, DisconnectReason::PeerViolation(STRAYS));
        }
        let result = admitted.and_then(|_| {
            self.epoll.add(socket.as_fd(), token, SOCKET)?;
            let part = (&dialing.part, dialing.fd.as_fd());
            let private_data = dialing.private_data.clone();
            introduce(socket.as_fd(), true, &self.ours, part, (pair.id, pair.capacity), private_data)
        });
        // Who refuses at once may be gone before our HELLO; its reason is there.
        let allowed = allowed_pages(self.config.foreign_hugepages, (self.own_user)(), &pair.peer);
        let refusal = result.err().map(|_| match answer(socket.as_fd(), allowed) {
            Answer::Rejected(reason) => DisconnectReason::Rejected(reason),
            _ => DisconnectReason::PeerDied,
        });
        pair.socket = Some(socket);
        if let Some(reason) = refusal {
            self.close(index, reason);
        }
    }

    /// The socket of a queue pair has news.
    pub(super) fn hear(&mut self, index: u32, hung_up: bool) {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        let pair = &mut **pair;
        let Some(socket) = &pair.socket else { return };
        match pair.phase {
            Phase::Dialing => {
                let allowed = allowed_pages(self.config.foreign_hugepages, (self.own_user)(), &pair.peer);
                match answer(socket.as_fd(), allowed) {
                    Answer::Nothing => {}
                    Answer::Accepted(offer) => self.establish(index, offer),
                    Answer::Rejected(reason) => self.close(index, DisconnectReason::Rejected(reason)),
                    Answer::Violation(bad) => self.violated(index, bad),
                    Answer::Closed => self.close(index, DisconnectReason::PeerDied),
                }
            }
            _ if hung_up => {
                // The process that holds this end no longer reads it: it would be ready for ever.
                self.epoll.remove(socket.as_fd());
                pair.peer_gone = true;
                let reason = pair.peer_reason();
                match pair.phase {
                    Phase::Open => {
                        pair.phase = Phase::Draining(reason);
                        // It may have been killed between a doorbell and the bell.
                        self.rouse(index);
                        self.mark_attention(index);
                    }
                    // The user has to hear that it was there, first.
                    Phase::Announced | Phase::Closing(_) => {}
                    _ => self.close(index, reason),
                }
            }
            _ => {
                let mut heard =
                    std::iter::repeat_with(|| rendezvous::hear_wake(socket.as_fd())).take(WAKES_MAX);
                let problem = heard.find_map(|heard| match heard {
                    Heard::Nothing => Some(None),
                    Heard::Wake if pair.link.as_mut().is_some_and(Link::count_wake) => None,
                    Heard::Wake => Some(Some(BadMessage::Nonsense("a wake-up that was not asked for"))),
                    Heard::Nonsense => Some(Some(BadMessage::Nonsense("a message after the set-up"))),
                    Heard::Strays => Some(Some(BadMessage::Strays)),
                });
                // What is left is there for the next look.
                let Some(Some(bad)) = problem else { return };
                // Nothing more is read; its end is still heard.
                let _ = self.epoll.change(socket.as_fd(), Token::queue_pair(pair.id), EventFlags::RDHUP);
                self.violated(index, bad);
            }
        }
    }

    /// The peer of a queue pair sent what it must not.
    fn violated(&mut self, index: u32, bad: BadMessage) {
        if let (BadMessage::Strays, Some(Some(pair))) = (bad, self.slots.get(index as usize)) {
            self.shun(admit::user(&pair.peer));
        }
        self.close(index, DisconnectReason::PeerViolation(bad.reason()));
    }

    /// The peer accepted.
    fn establish(&mut self, index: u32, mut offer: Offer) {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        let Some(dialing) = pair.dialing.take() else { return };
        let private_data = std::mem::take(&mut offer.introduction.private_data);
        match offer.map(&mut self.regions, admit::user(&pair.peer)) {
            Ok(theirs) => {
                pair.link = Some(Link::new(dialing.part, theirs, self.ours.arenas.len()));
                pair.phase = Phase::Announced;
                let (queue_pair, peer) = (pair.id, pair.peer.clone());
                self.events.push_back(Event::Established { queue_pair, private_data, peer });
            }
            Err(error) => self.close(index, DisconnectReason::MemoryRefused(error.to_string())),
        }
    }
}

// The accepting side.
impl Shm {
    /// Takes connections from a listener's backlog.
    pub(super) fn take_connections(&mut self, index: u32) {
        sockets::go_on_closing();
        for _ in 0..ACCEPT_BURST {
            let Some(listener) = self.listeners.get(index as usize) else { return };
            let socket = match listener.accept() {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                // Of a connection that is gone again: the next look tries again.
                Err(error) => {
                    if is_exhausted(&error) {
                        self.pause_accepting();
                    }
                    return;
                }
            };
            let Ok(peer) = rendezvous::peer(socket.as_fd()) else { continue };
            if let Some(reason) = self.refusal(&peer, socket.as_fd()) {
                refuse(socket.as_fd(), reason);
                continue;
            }
            let id = self.next_incoming();
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

    /// Descriptors ran out: closes the oldest silent connection, and ignores the listeners for a while. They would be ready all the
    /// time.
    #[cold]
    fn pause_accepting(&mut self) {
        if let Some(silent) = self.incoming.iter().position(|incoming| incoming.hello.is_none()) {
            self.incoming.swap_remove(silent);
        }
        self.set_listening(EventFlags::empty());
        self.paused_until = Some(self.now + ACCEPT_PAUSE);
    }

    pub(super) fn set_listening(&self, flags: EventFlags) {
        for (index, listener) in (0..).zip(&self.listeners) {
            // It fails only without memory. Then the listener is as it was, which costs time, or is not heard until the next
            // pause.
            let _ = self.epoll.change(listener.as_fd(), Token::Listener(index), flags);
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
        let allowed = allowed_pages(self.config.foreign_hugepages, (self.own_user)(), &incoming.peer);
        match hello(incoming.socket.as_fd(), allowed) {
            Ok(Some(mut offer)) => {
                let private_data = std::mem::take(&mut offer.introduction.private_data);
                incoming.hello = Some(offer);
                let Incoming { listener, ref peer, .. } = *incoming;
                let (request, peer) = (incoming.request(), peer.clone());
                self.events.push_back(Event::ConnectRequest { listener, request, peer, private_data });
            }
            Ok(None) if !hung_up => {}
            Ok(None) | Err(BadMessage::Closed) => {
                self.incoming.swap_remove(at);
            }
            Err(bad) => {
                refuse(incoming.socket.as_fd(), bad.reason());
                let refused = self.incoming.swap_remove(at);
                match bad {
                    BadMessage::Strays => self.shun(admit::user(&refused.peer)),
                    BadMessage::Exhausted => self.pause_accepting(),
                    BadMessage::Closed | BadMessage::Nonsense(_) => {}
                }
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

/// A connection request that goes from one provider to another: its socket, and what the peer said of itself.
pub struct ShmHandover {
    incoming: Incoming,
    offer: Offer,
}

impl std::fmt::Debug for ShmHandover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ShmHandover({})", self.incoming.peer)
    }
}

// Handing over.
impl Shm {
    pub(super) fn release_request(&mut self, request: ConnectRequestId) -> Option<ShmHandover> {
        let (incoming, offer) = self.take_request(request)?;
        // It stays open: it does not leave by itself.
        self.epoll.remove(incoming.socket.as_fd());
        Some(ShmHandover { incoming, offer })
    }

    pub(super) fn adopt_request(&mut self, handover: ShmHandover) -> Result<ConnectRequestId, FabricError> {
        let ShmHandover { mut incoming, offer } = handover;
        let refused = |socket: &Socket, error: FabricError| {
            refuse(socket.as_fd(), &error.to_string());
            error
        };
        let (wanted, limit) = (self.incoming.len() as u64 + 1, self.incoming_max() as u64);
        check_limit("connection requests that wait", wanted, limit, "answer them sooner")
            .map_err(|error| refused(&incoming.socket, error))?;
        incoming.id = self.next_incoming();
        let token = Token::Incoming { index: incoming.id, generation: 0 };
        // The epoll reports a peer that is gone at once, and its request goes with it.
        self.epoll.add(incoming.socket.as_fd(), token, SOCKET).map_err(|source| {
            let doing = "watch the socket of a connection request".to_owned();
            refused(&incoming.socket, FabricError::System { doing, source })
        })?;
        incoming.hello = Some(offer);
        let request = incoming.request();
        self.incoming.push(incoming);
        Ok(request)
    }

    fn next_incoming(&mut self) -> u32 {
        let id = self.incoming_next;
        self.incoming_next = self.incoming_next.wrapping_add(1);
        id
    }
}

/// Says no, as far as the peer still listens.
pub(super) fn refuse(socket: BorrowedFd<'_>, reason: &str) {
    // It may be gone already.
    let _ = rendezvous::send(socket, &Message::Reject(reason.to_owned()).encode(), &[]);
}
