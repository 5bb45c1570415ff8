//! Connections that are being set up, on either side, and what their peers said of themselves.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use super::bells::Bell;
use super::exposure::Binds;
use super::link::MappedPeer;
use super::message::Introduction;
use super::pages::{self, AllowedPages, Part};
use super::regions::{Regions, no_memory};
use super::rendezvous::Address;
use super::sockets::{Foreign, Socket};
use crate::{ConnectRequestId, FabricError, ListenerId, Peer};

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
    pub(super) socket: Socket,
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
    part: Foreign,
    arenas: Vec<Foreign>,
    bells: Option<Foreign>,
}

impl Offer {
    /// Checks descriptors against what the introduction says of them: as many, each a memfd of exactly that length, which
    /// stays, on pages that are `allowed`.
    pub(super) fn new(
        introduction: Introduction,
        mut fds: Vec<Foreign>,
        allowed: AllowedPages,
    ) -> Result<Offer, BadMessage> {
        let count = 1 + introduction.arenas.len() + usize::from(introduction.bell.is_some());
        if fds.len() != count || fds.iter().any(|fd| pages::seals(fd.as_fd()).is_none()) {
            return Err(BadMessage::Strays);
        }
        let bells = introduction.bell.and_then(|_| fds.pop());
        let mut fds = fds.into_iter();
        let Some(part) = fds.next() else { return Err(BadMessage::Strays) };
        let arenas: Vec<Foreign> = fds.collect();
        let checked = || {
            pages::check_part(part.as_fd(), introduction.layout)?;
            for (fd, &len) in arenas.iter().zip(&introduction.arenas) {
                pages::check_memory(fd.as_fd(), len, allowed)?;
            }
            introduction.bell.zip(bells.as_ref()).map_or(Ok(()), |(place, fd)| {
                pages::check_memory(fd.as_fd(), place.file_len() as u64, AllowedPages::Base)
            })
        };
        checked().map_err(BadMessage::Nonsense)?;
        Ok(Offer { introduction, part, arenas, bells })
    }

    /// Maps the memory of a peer of this user.
    ///
    /// # Errors
    ///
    /// As of [`Regions::map`].
    pub(super) fn map(self, regions: &mut Regions, user: u32) -> Result<MappedPeer, FabricError> {
        let Offer { introduction, part, arenas, bells } = self;
        let charge = regions.charge(user, introduction.layout.mapped_len() as u64)?;
        let part = Part::open(part.as_fd(), introduction.layout).map_err(no_memory)?;
        let arenas =
            arenas.iter().zip(&introduction.arenas).map(|(fd, &len)| regions.map(fd.as_fd(), len, user));
        let binds = Binds::new(introduction.layout.exposures, arenas.collect::<Result<_, _>>()?);
        let bell = match introduction.bell.zip(bells) {
            Some((place, fd)) => {
                let memory = regions.map(fd.as_fd(), place.file_len() as u64, user)?;
                Bell::new(place, memory).ok_or_else(|| no_memory(io::ErrorKind::InvalidInput.into()))?
            }
            None => Bell::NONE,
        };
        Ok(MappedPeer { part, charge, binds, bell, may_sleep: introduction.may_sleep })
    }
}

/// Why a connection ends, and why those of its user are refused for a while.
pub(super) const STRAYS: &str =
    "descriptors were sent that were not asked for; their sender's user is refused for a minute";

/// Why there is no message of the set-up, and will be none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadMessage {
    /// The peer is gone.
    Closed,
    /// The message breaks the rules.
    Nonsense(&'static str),
    /// It brings descriptors that were not asked for. Closing such a descriptor may take long, so its sender's user is shut out
    /// for a while.
    Strays,
    /// This process had no descriptors left for those that it brings.
    Exhausted,
}

impl BadMessage {
    /// What the peer is told.
    pub(super) fn reason(self) -> &'static str {
        match self {
            BadMessage::Closed => "the connection is closed",
            BadMessage::Nonsense(problem) => problem,
            BadMessage::Strays => STRAYS,
            BadMessage::Exhausted => {
                "this side has no descriptors left for the memory of one more connection; raise its limit (ulimit -n; of a \
                 service: LimitNOFILE), or try again later"
            }
        }
    }
}
