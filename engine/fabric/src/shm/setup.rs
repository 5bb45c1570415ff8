//! Connection set-up: what each side waits for, and the checks of what the other side sent.
//!
//! A peer that is slow, silent or talks nonsense costs a slot for a bounded time, and nothing else.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use super::exposure::Binds;
use super::message::{Introduction, Malformed, Message};
use super::pages::{self, Part};
use super::regions::Regions;
use super::rendezvous::{self, Address, Received};
use super::ring;
use super::wake::Bell;
use super::{Admit, Ours};
use crate::{ConnectRequestId, ListenerId, Peer, QueuePairCapacity};

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
