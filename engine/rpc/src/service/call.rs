//! A Call as its handler sees it.

use std::net::IpAddr;
use std::ops::Deref;
use std::time::Duration;

use smallvec::SmallVec;
use stag_fabric::Peer;
use stag_memory::{Buf, Shared};
use stag_wire::rpc::AuthSys;
use stag_wire::xdr::Reader;

use crate::ConnectionId;
use crate::service::Token;
use crate::service::dispatch::Origin;

/// Pieces that one Read chunk is usually placed in at most. More, up to one for each page, take an allocation.
const PIECES_USUAL: usize = 16;

/// The buffers of one Read chunk: more than a few only when free memory is in pieces.
pub type PlacedPieces = SmallVec<[Buf; PIECES_USUAL]>;

/// The data of one Read chunk, as it was placed. [`Placed::is_missing`] when there was no memory for it, although the
/// Call waited for some.
#[derive(Debug, Default)]
pub struct Placed {
    /// The buffers, filled one after the other, each from its start for its `len()`.
    pub pieces: PlacedPieces,
    /// Octets in all: the item's, perhaps with roundup (8166-3.4.5.2-a).
    pub len: u32,
}

impl Placed {
    /// Whether there was no memory to place the data in: the Call cannot be executed now.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.len > 0 && self.pieces.is_empty()
    }

    /// Takes out the data of an item of `len` octets, without the padding behind it, in pieces that can be kept and sent.
    pub fn take_item(&mut self, len: u32) -> impl Iterator<Item = Shared> {
        let mut left = len as usize;
        self.pieces.drain(..).map(move |mut piece| {
            piece.shrink_to(piece.len().min(left));
            left -= piece.len();
            piece.share()
        })
    }
}

/// Who makes a Call.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Caller<'a> {
    /// AUTH_NONE, or a flavor that names no one.
    None,
    /// AUTH_SYS, or a user as whom a sealed flavor lets the caller act.
    Sys(AuthSys<'a>),
    /// What a [sealed flavor](crate::OpenedCaller::Own) calls the caller.
    Own {
        /// The flavor's number.
        flavor: u32,
        /// The name.
        name: &'a [u8],
    },
}

/// What a Call says before its arguments.
#[derive(Clone, Debug)]
pub struct CallHead<'a> {
    /// Transaction id.
    pub xid: u32,
    /// Program number.
    pub program: u32,
    /// Version.
    pub version: u32,
    /// Procedure number.
    pub procedure: u32,
    /// Who calls.
    pub caller: Caller<'a>,
    /// At the first argument.
    pub(crate) arguments: Reader<'a>,
}

/// A Call, as a handler sees it. The arguments lie in the buffer they arrived in.
// References only, because the fields they refer to are large to move.
pub struct Call<'a> {
    pub(crate) head: &'a CallHead<'a>,
    pub(crate) origin: &'a Origin<'a>,
    pub(crate) items: &'a mut [Placed],
}

impl<'a> Deref for Call<'a> {
    type Target = CallHead<'a>;

    #[inline(always)]
    fn deref(&self) -> &CallHead<'a> {
        self.head
    }
}

impl<'a> Call<'a> {
    /// Returns who is at the other end of the connection, when the fabric knows.
    #[inline]
    #[must_use]
    pub fn peer(&self) -> Option<&'a Peer> {
        self.origin.peer
    }

    /// Returns this machine's address that the client connected to, over TCP. It knows this server by that address. A Call that
    /// was carried from another reactor does not have it.
    #[inline]
    #[must_use]
    pub fn local(&self) -> Option<&'a IpAddr> {
        self.origin.local
    }

    /// Returns when this pass of the reactor began.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Duration {
        self.origin.now
    }

    /// A reader at the start of the arguments. Eligible arguments that came in Read chunks show up as
    /// reduced items, whose data [`Call::placed`] has.
    #[inline]
    #[must_use]
    pub fn arguments(&self) -> Reader<'a> {
        self.head.arguments.clone()
    }

    /// The data of the Read chunk number `index`, which the handler may take out and keep.
    ///
    /// # Panics
    ///
    /// When `index` did not come from [`Call::arguments`].
    #[must_use]
    #[inline]
    pub fn placed(&mut self, index: u32) -> &mut Placed {
        &mut self.items[index as usize]
    }

    /// The connection it came in on.
    #[must_use]
    pub fn connection(&self) -> ConnectionId {
        self.origin.connection
    }

    /// A token to answer this Call later, for [`crate::Outcome::Later`].
    #[must_use]
    pub fn token(&self) -> Token {
        Token { connection: self.origin.connection, slot: self.origin.slot, xid: self.head.xid }
    }
}
