//! Messages that are shown where they arrived: see [`Provider::poll_in_place`](crate::Provider::poll_in_place).

use std::fmt;

use arrayvec::ArrayVec;
use stag_memory::{Buf, Shared};
use stag_wire::rpcrdma::SINGLE_LEN;

use crate::{Exposed, Handle, QueuePairId, ReadPart, RemoteSegment};

/// A message, shown where it arrived. The peer cannot change it any more.
#[derive(Debug)]
pub enum ShownMessage<'a> {
    /// One without chunks.
    Plain(PlainMessage<'a>),
    /// Any other. Only a fabric shows it that reads or writes the peer's memory at once, or in order with the answer.
    Whole(WholeMessage<'a>),
    /// Any message on a queue pair whose Receives are scattered.
    Scattered(ScatteredMessage<'a>),
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
    /// What was exposed under that handle, for the function that takes the message.
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

/// A message on a queue pair whose Receives are scattered ([`ScatteredReceive`](crate::ScatteredReceive)), in one piece.
#[derive(Debug)]
pub struct ScatteredMessage<'a> {
    /// Where it came in.
    pub queue_pair: QueuePairId,
    /// All of it: what would fill the head of its Receive, and the targets.
    pub octets: &'a [u8],
    /// Where the start of an answer can be built, of at most [`GATHERED_LEN_MAX`] octets; `None` if there is no room now.
    /// Nothing of it leaves before [`Taken::AnsweredGathered`].
    pub space: Option<&'a mut [u8]>,
    /// Takes the memory that goes with the answer, behind what was built.
    pub pieces: &'a mut GatheredPieces,
}

/// Memory that leaves from where it lies, behind the octets that a message was built of.
pub type GatheredPieces = ArrayVec<Shared, GATHERED_PIECES_MAX>;

/// Takes messages where they arrived, or leaves them. A closure that takes all kinds is one.
///
/// One method for each kind, because a provider has them in different places: what the first kind costs does not depend on the
/// others.
pub trait TakeShown {
    /// Takes one without chunks.
    fn take_plain(&mut self, message: PlainMessage<'_>) -> Taken;

    /// Takes any other.
    fn take_whole(&mut self, message: WholeMessage<'_>) -> Taken;

    /// Takes one whose Receive is scattered.
    fn take_scattered(&mut self, message: ScatteredMessage<'_>) -> Taken;
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

    #[inline(always)]
    fn take_scattered(&mut self, message: ScatteredMessage<'_>) -> Taken {
        self(ShownMessage::Scattered(message))
    }
}

/// What a peer has exposed, on a fabric that reads or writes it at once, or before the answer.
pub trait MemoryInReach {
    /// Reads as [`Provider::read_at_once`](crate::Provider::read_at_once) does.
    fn read(&mut self, target: &mut Buf, parts: &[ReadPart]) -> bool;

    /// Reads as many octets as `target` has from `source` on: [`MemoryInReach::read`] of one part.
    #[inline]
    fn fill(&mut self, target: &mut Buf, source: RemoteSegment) -> bool {
        let len = target.len() as u32;
        self.read(target, &[ReadPart { at: 0, len, source }])
    }

    /// Writes all of `source`: what [`Provider::post_write`](crate::Provider::post_write) would do, but without a completion.
    /// It is there before the answer to the message is. The user answers then, and in place.
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
    /// Nothing more remains to do for it.
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
    /// The first `len` octets of a [`ScatteredMessage`]'s space leave as a message, with its pieces behind them.
    AnsweredGathered {
        /// Octets of the space.
        len: usize,
    },
}

/// Octets that the Payload stream of a [`PlainMessage`] has at most, and that of an answer to it.
pub const PLAIN_LEN_MAX: usize = 512;

/// Octets that a [`WholeMessage`] has at most, and an answer to it: a Payload stream of [`PLAIN_LEN_MAX`] octets behind a
/// header with one chunk of one segment, to a whole word.
pub const WHOLE_LEN_MAX: usize = (PLAIN_LEN_MAX + SINGLE_LEN).next_multiple_of(8);

/// Octets that are built of a message with memory behind it: its header, Payload stream and padding.
pub const GATHERED_LEN_MAX: usize = 1024;

/// Pieces of memory behind them: data of two pages that begins in the midst of one is in three.
pub const GATHERED_PIECES_MAX: usize = 4;

/// Octets of all of them together.
pub const GATHERED_DATA_LEN_MAX: usize = 32 * 1024;
