//! Messages that are shown where they arrived: see [`Provider::poll_in_place`](crate::Provider::poll_in_place).

use std::fmt;

use stag_memory::{Buf, Shared};
use stag_wire::rpcrdma::SINGLE_LEN;

use crate::{Exposed, Handle, QueuePairId, ReadPart, RemoteSegment};

/// A message, shown where it arrived. The peer cannot change it any more.
#[derive(Debug)]
pub enum ShownMessage<'a> {
    /// One without chunks.
    Plain(PlainMessage<'a>),
    /// Any other. Only a fabric shows it that has the peer's memory in reach.
    Whole(WholeMessage<'a>),
}

/// A message without chunks.
///
/// Its first 28 octets are an RPC-over-RDMA header of version 1 whose lists are empty (RFC 8166, section 4.2), of which
/// only the credits say something: the xid is that of the Payload stream.
#[derive(Debug)]
pub struct PlainMessage<'a> {
    /// Where it came in.
    pub queue_pair: QueuePairId,
    /// The credits of its header.
    pub credits: u32,
    /// Its Payload stream: at least 4 octets, at most [`PLAIN_LEN_MAX`].
    pub stream: &'a [u8],
    /// Where the Payload stream of an answer can be built, of at most [`PLAIN_LEN_MAX`] octets; `None` if there is no room
    /// now. Nothing of it leaves before [`Taken::Answered`].
    pub space: Option<&'a mut [u8]>,
}

/// A message with its header.
pub struct WholeMessage<'a> {
    /// Where it came in.
    pub queue_pair: QueuePairId,
    /// All of it, at most [`WHOLE_LEN_MAX`] octets.
    pub octets: &'a [u8],
    /// Where an answer can be built, header included, of at most [`WHOLE_LEN_MAX`] octets; `None` if there is no room now.
    /// Nothing of it leaves before [`Taken::AnsweredWhole`].
    pub space: Option<&'a mut [u8]>,
    /// Our handle that its Send invalidated.
    pub invalidated: Option<Handle>,
    /// What was exposed under that handle, for whoever takes the message.
    pub exposed: &'a mut Option<Exposed>,
    /// The peer's memory.
    pub memory: &'a mut dyn MemoryInReach,
}

impl fmt::Debug for WholeMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WholeMessage { queue_pair, octets, invalidated, .. } = self;
        f.debug_struct("WholeMessage")
            .field("queue_pair", queue_pair)
            .field("octets", octets)
            .field("invalidated", invalidated)
            .finish_non_exhaustive()
    }
}

/// Takes messages where they arrived, or leaves them. A closure that takes either kind is one.
///
/// Two methods, because a provider with both kinds has them in two places: what the first kind costs does not depend on the second.
pub trait TakeShown {
    /// Takes one without chunks.
    fn take_plain(&mut self, message: PlainMessage<'_>) -> Taken;

    /// Takes any other.
    fn take_whole(&mut self, message: WholeMessage<'_>) -> Taken;
}

impl<F: FnMut(ShownMessage<'_>) -> Taken> TakeShown for F {
    #[inline(always)]
    fn take_plain(&mut self, message: PlainMessage<'_>) -> Taken {
        self(ShownMessage::Plain(message))
    }

    #[inline(always)]
    fn take_whole(&mut self, message: WholeMessage<'_>) -> Taken {
        self(ShownMessage::Whole(message))
    }
}

/// What a peer has exposed, on a fabric that reads and writes it at once.
pub trait MemoryInReach {
    /// Reads as [`Provider::read_at_once`](crate::Provider::read_at_once) does.
    fn read(&mut self, target: &mut Buf, parts: &[ReadPart]) -> bool;

    /// Writes all of `source`: what [`Provider::post_write`](crate::Provider::post_write) would do, but without a completion.
    /// It is there before the answer to the message is.
    ///
    /// `false`: not now, or it is refused. Nothing was posted and nothing has failed; what the target holds is not defined.
    /// [`Provider::post_write`](crate::Provider::post_write) does it then, or says what is wrong.
    fn write(&mut self, source: &Shared, target: RemoteSegment) -> bool;
}

/// What became of a [`ShownMessage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Nothing: it is put into a Receive, and comes as a completion.
    No,
    /// Nothing more is to be done for it.
    Done,
    /// The first `len` octets of a [`PlainMessage`]'s space leave as a message of the same kind, with these credits. They
    /// begin with an xid.
    Answered {
        /// The credits of the answer's header.
        credits: u32,
        /// Octets of the Payload stream, at least 4.
        len: usize,
    },
    /// The first `len` octets of a [`WholeMessage`]'s space leave as a message.
    AnsweredWhole {
        /// Octets, header included.
        len: usize,
        /// The peer's handle to invalidate with it. One that the peer has not exposed ends the connection, as after
        /// [`Provider::post_send`](crate::Provider::post_send).
        invalidate: Option<Handle>,
    },
}

/// Octets that the Payload stream of a [`PlainMessage`] has at most, and that of an answer to it.
pub const PLAIN_LEN_MAX: usize = 512;

/// Octets that a [`WholeMessage`] has at most, and an answer to it: a Payload stream of [`PLAIN_LEN_MAX`] octets behind a
/// header with one chunk of one segment, to a whole word.
pub const WHOLE_LEN_MAX: usize = (PLAIN_LEN_MAX + SINGLE_LEN).next_multiple_of(8);
