//! The client's interface: the parameters of a Call, and its results.
//!
//! `calling.rs` is the client half of a connection: it drives the Requester of `stag-proto`. `making.rs` makes a Call up to its
//! message, `taking.rs` takes its Reply, `pulling.rs` one that the server exposes. `slot.rs` is one Call: its stage, and its
//! memory while the peer may touch it; `offering.rs` its chunk lists. `reconnect.rs`, `clients.rs` and `retransmission.rs` are a
//! client's life beyond one queue pair.

pub(crate) mod calling;
pub(crate) mod clients;
pub(crate) mod making;
pub(crate) mod offering;
pub(crate) mod pulling;
pub(crate) mod reconnect;
pub(crate) mod retransmission;
pub(crate) mod slot;
pub(crate) mod taking;

use std::fmt;
use std::time::Duration;

use stag_fabric::{DisconnectReason, Exposed, PostError};
use stag_memory::{Buf, Shared};
use stag_wire::xdr::Reduced;

use crate::ConnectionId;
use crate::few::Few;
use crate::security::CallSealer;

/// Pieces of one Call's Read chunks, and segments of its Write chunks, at most. With more of either a Call
/// is refused ([`CallRefused::TooManySegments`]).
pub const CLIENT_SEGMENTS_MAX: usize = 8;

/// Names a Call of a client until its [`CompletedCall`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId {
    /// The connection it was made on.
    pub connection: ConnectionId,
    pub(crate) call: stag_proto::requester::RequesterCallId,
}

/// A Call's fixed part: what is called, as whom, and how long to wait.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Program number.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Procedure number.
    pub procedure: u32,
    /// Who calls.
    pub credentials: Credentials<'a>,
    /// Comes back in the [`CompletedCall`].
    pub user: u64,
    /// Time after which the Call is given up, from the engine's last pass on: poll it first, if that is long ago.
    pub timeout: Duration,
    /// Largest possible results, in octets, **without** what goes to Write chunks. When they might not fit inline, a Reply
    /// chunk of this size is provided (8267-D-1), of [`LONG_REPLY_LEN_MAX`](crate::LONG_REPLY_LEN_MAX) at most; but see
    /// [`Request::reply_mode`]. `u32::MAX`: unknown.
    pub results_len_max: u32,
    /// Who provides the memory of a Reply that does not fit inline.
    pub reply_mode: ReplyMode,
    /// Whether the Call is sent again when the connection ends before its Reply comes, and is made anew
    /// ([`ClientPolicy::reconnect`](crate::ClientPolicy::reconnect)). Otherwise it ends with
    /// [`CallError::ConnectionLost`].
    pub retransmit: bool,
}

impl Request<'static> {
    /// A Call of procedure 0, which has neither arguments nor results: whether the server answers is all that counts.
    pub(crate) fn null(program: u32, version: u32, timeout: Duration) -> Request<'static> {
        Request {
            program,
            version,
            procedure: 0,
            credentials: Credentials::None,
            user: 0,
            timeout,
            results_len_max: 0,
            reply_mode: ReplyMode::Chunk,
            retransmit: false,
        }
    }
}

/// Who provides the memory of a Reply that does not fit inline.
///
/// The server can where both ends have reliable reply switched on ([`EngineConfig::pull_len_max`](crate::EngineConfig::pull_len_max)
/// at the client, [`EngineConfig::exposed_replies`](crate::EngineConfig::exposed_replies) at the server): it exposes the Reply, and
/// the client reads it. That takes a round trip more than a Reply chunk, but nothing for a Reply that turns out short, and its
/// size need not be known. Everywhere else all modes are [`ReplyMode::Chunk`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyMode {
    /// The server, if a Reply chunk would have to be longer than [`LONG_REPLY_LEN_MAX`](crate::LONG_REPLY_LEN_MAX); else the client.
    #[default]
    Auto,
    /// The client: the Call offers a Reply chunk of [`Request::results_len_max`].
    Chunk,
    /// The server. [`Request::results_len_max`] bounds what is read of its memory.
    Responder,
}

/// Credentials of a Call.
#[derive(Clone, Copy, Debug, Default)]
pub enum Credentials<'a> {
    /// AUTH_NONE.
    #[default]
    None,
    /// AUTH_SYS, its body encoded once by [`stag_wire::rpc`].
    Sys(&'a [u8]),
    /// Those of a sealed flavor, which also verifies the Reply. The Call is not sent again over another connection.
    Own(&'a dyn CallSealer),
}

/// The memory that goes with a Call: it is exposed to the Responder until the Call is complete.
#[derive(Debug, Default)]
pub struct Chunks {
    /// Read chunks: pieces of DDP-eligible arguments, with the number of the eligible item each belongs
    /// to, ascending. The arguments' encoder says `eligible_opaque_reduced` once for each item.
    pub read: Few<(u8, Shared)>,
    /// Write chunks: segments for DDP-eligible results, with the number of the chunk each belongs to,
    /// ascending from 0. A buffer's `len()` is what is offered.
    pub write: Few<(u8, Buf)>,
}

impl Chunks {
    /// Whether there is no chunk.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.read.is_empty() && self.write.is_empty()
    }

    /// One Read chunk of one piece.
    #[must_use]
    #[inline]
    pub fn read(data: Shared) -> Chunks {
        Chunks { read: Few::one((0, data)), write: Few::new() }
    }

    /// One Write chunk of one segment.
    #[must_use]
    #[inline]
    pub fn write(buf: Buf) -> Chunks {
        Chunks { read: Few::new(), write: Few::one((0, buf)) }
    }

    /// Puts memory back that [`Chunks::take_single`] took out.
    #[cold]
    pub(crate) fn put_back(&mut self, memory: Exposed) {
        match memory {
            Exposed::Read(data) => self.read = Few::one((0, data)),
            Exposed::Write(buf) => self.write = Few::one((0, buf)),
        }
    }

    /// Takes the memory out if it is all of one Read chunk, or of one Write chunk.
    #[inline]
    pub(crate) fn take_single(&mut self) -> Option<Exposed> {
        match (self.read.only(), self.write.only()) {
            (Some((0, _)), None) if self.write.is_empty() => {
                self.read.take_only().map(|(_, data)| Exposed::Read(data))
            }
            (None, Some((0, _))) if self.read.is_empty() => {
                self.write.take_only().map(|(_, buf)| Exposed::Write(buf))
            }
            _ => None,
        }
    }
}

/// Why a Call was not begun. Nothing was sent, and its [`Chunks`] are as they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallRefused {
    /// Every credit is in use: wait for a completion.
    #[error("no credit: as many Calls are outstanding as the server granted")]
    NoCredit,
    /// No such connection, or it is not established.
    #[error("not connected")]
    NotConnected,
    /// The connection ended, and is being made anew: wait for [`ConnectionEvent::Restored`].
    #[error("the connection ended, and is being made anew")]
    Interrupted,
    /// A pool has no buffer left.
    #[error("no memory: the pool has no buffer left for this Call")]
    NoMemory,
    /// The chunk lists do not fit the inline threshold.
    #[error("the chunk lists do not fit the inline threshold")]
    TooManySegments,
    /// The arguments are longer than a Long Call may be.
    #[error("the arguments are longer than a Long Call may be")]
    TooLong,
    /// The provider did not take the work.
    #[error("the fabric's send queue is full")]
    FabricBusy,
    /// A reverse Call or its Reply may not fit inline, and reverse Calls have no chunks (8167-5.3-c).
    #[error(
        "the reverse Call, or its Reply, may be longer than the inline threshold; ask for less, or raise inline_threshold"
    )]
    NotInline,
    /// There are no reverse Calls on this connection: it was not accepted over RDMA, its client was offered version 2 and has not
    /// called in it, or [`EngineConfig::reverse_credits`](crate::EngineConfig::reverse_credits) is 0.
    #[error(
        "no reverse Calls: they need a connection that was accepted over RDMA, whose client has called in the version that was \
         agreed on, and reverse_credits above 0"
    )]
    OneWay,
    /// The client says that it takes no reverse Calls: its Backward Request Support is NONE (XC-l).
    #[error(
        "the client says that it takes no reverse Calls (Backward Request Support NONE); raise its reverse_credits above 0"
    )]
    NotTaken,
    /// [`CALLS_BACK_MAX`](crate::CALLS_BACK_MAX) Calls to the client of this connection are not over.
    #[error("too many Calls to this client wait for its answers, or for credits")]
    TooManyCallsBack,
    /// The connection is another reactor's: a reverse Call is made at the reactor that has the connection.
    #[error("the connection is another reactor's; call back at the reactor that has it")]
    OtherReactor,
    /// The Call has chunks for data, and its [`CallSealer`] protects arguments and results.
    #[error("chunks for data: the credentials protect arguments and results, which go inline then")]
    Protected,
    /// The arguments' encoder left out other items than the Read chunks have: a mistake of the caller's.
    #[error(
        "Read chunks: the encoder said eligible_opaque_reduced {reduced} times, the chunks are of {items} items; \
             say it once for each item"
    )]
    NotReduced {
        /// Items that the Read chunks are of.
        items: u32,
        /// Items that the encoder left out.
        reduced: u32,
    },
}

/// A Call that is over. All its memory is fenced: no peer can reach it any more.
#[derive(Debug)]
pub struct CompletedCall {
    /// Which.
    pub call: CallId,
    /// [`Request::user`].
    pub user: u64,
    /// The procedure that was called.
    pub procedure: u32,
    /// When the Call was sent, on the reactor's clock.
    pub started: Duration,
    /// How it ended.
    pub result: Result<Results, CallError>,
    /// The Write chunks' segments, as they were given. Each buffer's `len()` is what the server wrote
    /// into it, if the Call succeeded; otherwise its content is undefined (8166-4.3.2.2-c).
    pub written: Few<(u8, Buf)>,
}

/// A successful Reply.
#[derive(Debug)]
pub struct Results {
    /// `None`: there are no octets.
    message: Option<Buf>,
    /// Where they start in the message; they end with it.
    start: u16,
    /// Where the reduced result belongs in them, in words, if the Reply says so; else [`UNPLACED`]. Not more than 16 bits, as a Call
    /// that is over is moved.
    position: u16,
    reduced: u32,
}

/// A reduced result of which the Reply does not say where it belongs, or one that is too far behind to be told.
const UNPLACED: u16 = u16::MAX;

// A Call that is over is moved twice: without a call of memcpy up to this length.
const _: () = assert!(size_of::<CompletedCall>() <= 128);

impl Results {
    #[inline]
    pub(crate) fn new(message: Buf, start: u32, reduced: u32) -> Results {
        // Behind headers, whose lists are bounded.
        debug_assert!(start <= u16::MAX.into(), "results start at {start}");
        Results { message: Some(message), start: start as u16, reduced, position: UNPLACED }
    }

    /// Those that are all of `message`, and `reduced` octets in a Write chunk.
    #[inline(always)]
    pub(crate) fn short(message: Option<Buf>, reduced: u32) -> Results {
        Results { message, start: 0, reduced, position: UNPLACED }
    }

    /// The encoded results, without what went to Write chunks.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.message {
            Some(message) => &message[self.start as usize..],
            None => &[],
        }
    }

    /// The Reply says that its reduced result belongs at `displacement` of its virtual stream, `header_len` octets of which come
    /// before the results. A displacement before them is none of a result (RTR-X-23).
    pub(crate) fn placed(mut self, displacement: u32, header_len: u32) -> Result<Results, CallError> {
        let position = displacement.checked_sub(header_len).ok_or(CallError::BadReply)?;
        self.position = u16::try_from(position / 4).unwrap_or(UNPLACED);
        Ok(self)
    }

    /// The eligible result that is not in [`Results::bytes`], as a reader of these takes it. Where the Reply says where it belongs
    /// (version 2), a reader that meets it elsewhere refuses it.
    #[must_use]
    pub fn reduced(&self) -> Reduced {
        match self.position {
            UNPLACED => Reduced::write_chunk(0, self.reduced),
            words => Reduced::read_chunk(0, 4 * u32::from(words), self.reduced),
        }
    }

    /// How many octets of eligible results arrived in Write chunks.
    #[inline]
    #[must_use]
    pub fn reduced_len(&self) -> u32 {
        self.reduced
    }
}

/// Why a Call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The time is over. The server may have executed it.
    #[error("timed out; the server may have executed the Call")]
    TimedOut,
    /// It was cancelled. The server may have executed it.
    #[error("cancelled; the server may have executed the Call")]
    Cancelled,
    /// The connection ended before the Call was sent: it was not executed.
    #[error("the connection ended before the Call was sent")]
    NotSent,
    /// The fabric did not take the Call's message or memory, and why: it was not executed. The connection lives.
    #[error("the Call was not sent: {0}")]
    NotPosted(PostError),
    /// The connection ended while the Call was outstanding: it may have been executed.
    #[error("the connection ended; the server may have executed the Call")]
    ConnectionLost,
    /// The server does not speak this version of RPC-over-RDMA (ERR_VERS).
    #[error("the server speaks RPC-over-RDMA versions {low} to {high} only")]
    TransportVersion {
        /// Lowest it speaks.
        low: u32,
        /// Highest it speaks.
        high: u32,
    },
    /// The server could not use this Call's chunks, or had no way to send the Reply (ERR_CHUNK). It may
    /// have executed the Call (8267-4-c).
    #[error(
        "the server refused the Call's chunks, or could not send its Reply (ERR_CHUNK): more data than it reads at once \
         (its chunk_len_max), results longer than results_len_max, or no memory for them"
    )]
    Chunk,
    /// The server exposed a Reply that is longer than [`Request::results_len_max`] and
    /// [`EngineConfig::pull_len_max`](crate::EngineConfig::pull_len_max) allow. It executed the Call.
    #[error("the Reply has {len} octets, the limit is {limit}; the server has executed the Call")]
    ReplyTooLong {
        /// Octets of the RPC message.
        len: u64,
        /// The limit.
        limit: u32,
    },
    /// There was no memory in one piece for the Reply: to read it into if the server exposed it, or to put it together in version 2.
    /// The server executed the Call.
    #[error("no memory for the Reply of {len} octets; the server has executed the Call")]
    NoMemory {
        /// Octets of the RPC message.
        len: u32,
    },
    /// The program is not served.
    #[error("the server does not have this program")]
    ProgramUnavailable,
    /// The program's version is not served.
    #[error("the server has versions {low} to {high} of this program")]
    ProgramMismatch {
        /// Lowest version.
        low: u32,
        /// Highest version.
        high: u32,
    },
    /// The procedure does not exist.
    #[error("the server does not have this procedure")]
    ProcedureUnavailable,
    /// The server could not decode the arguments.
    #[error("the server could not decode the arguments")]
    GarbageArguments,
    /// The server failed inside.
    #[error("the server reports a system error")]
    SystemError,
    /// The server refused the credentials: an `auth_stat` of RFC 5531.
    #[error("the server refused the credentials (auth_stat {0})")]
    Authentication(u32),
    /// The Reply is not the server's, or was changed on the way: its verifier is wrong. The server may have executed the Call.
    #[error("the Reply's verifier is wrong; the server may have executed the Call")]
    Unverified,
    /// The server does not speak RPC version 2.
    #[error("the server does not speak RPC version 2")]
    RpcVersion,
    /// The Reply breaks the protocol.
    #[error("the server's Reply breaks the protocol")]
    BadReply,
}

/// What happened to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// It can be used.
    Established {
        /// Which.
        connection: ConnectionId,
    },
    /// It ended, and is being made anew; see [`ClientPolicy::reconnect`](crate::ClientPolicy::reconnect). Its Calls
    /// wait, and no other can begin.
    Interrupted {
        /// Which.
        connection: ConnectionId,
        /// Why it ended.
        reason: CloseReason,
    },
    /// It can be used again. What waited is being sent again.
    Restored {
        /// Which.
        connection: ConnectionId,
    },
    /// It is gone. Comes after the completions of all its Calls.
    Closed {
        /// Which.
        connection: ConnectionId,
        /// Why.
        reason: CloseReason,
    },
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// The fabric says so.
    Fabric(DisconnectReason),
    /// The peer broke RPC-over-RDMA's rules: what it did.
    Violation(&'static str),
    /// Nothing was heard, and the keep-alive was not answered.
    Silent,
    /// A Call that was sent again was not answered: `resend_after` of [`Backoff`](crate::Backoff).
    Unanswered,
    /// A client did not take its Replies, or did not let its chunks be read, for
    /// [`peer_timeout`](crate::EngineConfig::peer_timeout).
    Stuck,
    /// A client did not let its chunks be read, while others waited for the memory that is kept for them.
    Idle,
    /// We could not send a Reply or an RDMA_ERROR (8166-4.5.4-c).
    CannotReply,
    /// An invariant of this engine is broken: its own fault, not the peer's. What was found. Debug builds panic instead.
    Fault(&'static str),
}

impl CloseReason {
    /// The reason as a sentence; `peer` is what it calls the other side, for example "the server".
    #[must_use]
    pub fn describe(&self, peer: &str) -> String {
        match self {
            CloseReason::Fabric(reason) => reason.describe(peer),
            CloseReason::Violation(what) => format!("{peer} broke the protocol: {what}"),
            CloseReason::Silent => format!("{peer} does not answer any more"),
            CloseReason::Unanswered => format!("{peer} did not answer what was sent again"),
            CloseReason::Stuck => {
                format!("{peer} took none of its Replies, or did not let its chunks be read, for too long")
            }
            CloseReason::Idle => {
                format!("{peer} did not let its chunks be read, while others waited for memory")
            }
            CloseReason::CannotReply => "no Reply could be sent".to_owned(),
            CloseReason::Fault(what) => format!("this end has a defect: {what}"),
        }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe("the peer"))
    }
}

impl fmt::Display for ConnectionEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectionEvent::Established { connection } => write!(f, "connection {connection}: established"),
            ConnectionEvent::Interrupted { connection, reason } => {
                write!(f, "connection {connection}: interrupted: {reason}")
            }
            ConnectionEvent::Restored { connection } => {
                write!(f, "connection {connection}: established again")
            }
            ConnectionEvent::Closed { connection, reason } => {
                write!(f, "connection {connection}: closed: {reason}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_sentence() {
        let connection = ConnectionId { index: 3, generation: 1 };
        let closed = |reason| ConnectionEvent::Closed { connection, reason }.to_string();
        assert_eq!(
            closed(CloseReason::Fabric(DisconnectReason::NoListener)),
            "connection 3.1: closed: no server listens there"
        );
        assert_eq!(closed(CloseReason::Silent), "connection 3.1: closed: the peer does not answer any more");
        assert_eq!(
            CloseReason::Fabric(DisconnectReason::Peer).describe("the client"),
            "the client ended the connection"
        );
        assert_eq!(ConnectionEvent::Restored { connection }.to_string(), "connection 3.1: established again");
    }
}
