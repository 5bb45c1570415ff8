//! One Call of a client: its stage, its memory while the peer may touch it, and its Reply.
//!
//! ```text
//!         occupy           Reply, RDMA_ERROR, time-out, cancel              all is fenced
//!  Free ──────────▶ Sent ────────────────────────────────────────▶ Ending ───────────────▶ Free
//!                   ├─ a Reply, while nothing is exposed ───────────────────────────────────▶ Free
//!                   │ ▲ │
//!                   ├─ a Reply that the server exposes ─▶ Pulling ── it was read, or cannot be ─▶ Ending
//!                   │ │ └─ the connection ends ─▶ Interrupted ── a credit on the next ──▶ Sent
//!                   │ └─── room ─── Unsent
//!                   ├─ the send queue is full ───▲
//!                   ├─ the connection ends while memory is exposed for it ─▶ Halfway ── it has ended ─▶ Interrupted
//!                   └─ memory is refused ─▶ Withdrawing ── all is fenced ─▶ Interrupted, or Free
//! ```
//!
//! | stage | waits for |
//! |---|---|
//! | `Free` | a Call; the Requester may still wait for the late Reply of one that was given up |
//! | `Sent` | its Reply, or the end of its time |
//! | `Unsent` | room in the send queue; its message is made |
//! | `Halfway` | the end of its connection, which is near |
//! | `Interrupted` | a credit on the next connection |
//! | `Withdrawing` | the fences of what was exposed before the provider refused the rest |
//! | `Pulling` | the RDMA Read of its Reply |
//! | `Ending` | its fences, or the end of its connection |
//!
//! `Unsent`, `Halfway` and `Interrupted` are only for Calls that are kept to be sent again. From each stage but `Free` a
//! cancellation, or the end of the connection for good, leads to `Ending`. `stages.txt` has every change there may be; a debug
//! build panics at another one. An event that a stage does not wait for is a
//! [`fault`](crate::fault::fault).

use std::time::Duration;

use arrayvec::ArrayVec;
use stag_fabric::{Exposed, Fence, Handle, PostError, Provider};
use stag_memory::{Buf, Shared};
use stag_proto::requester::{self, EndedCall};
use stag_wire::rpc::{Accepted, Denied, ReplyBody, ReplyHeader, take_success};
use stag_wire::xdr::Reader;

use crate::ConnectionId;
use crate::client::calling::Positions;
use crate::client::offering::{Lists, segment, write_buf};
use crate::client::{CLIENT_SEGMENTS_MAX, CallError, Chunks, Results};
use crate::security::client::AwaitedSeal;
use crate::stages::{Change, may_change};
use crate::state::Core;
use crate::statistics::Statistics;

/// What a Call waits for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Stage {
    #[default]
    Free,
    Sent,
    /// Its message is in [`Slot::message`].
    Unsent,
    Halfway,
    Interrupted,
    /// `Some`: how it ends then. `None`: it waits for the next occasion.
    Withdrawing(Option<CallError>),
    Pulling,
    Ending(Ending),
}

/// Who is told of the end of a Call, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// The user of the engine ([`Engine::completed`](crate::Engine::completed)).
    #[default]
    Usual,
    /// The same, and its Reply has to be sealed.
    Sealed,
    /// The connection, to hear whether its peer lives: no user knows of it.
    KeepAlive,
    /// A service ([`Service::called_back`](crate::Service::called_back)).
    Service,
}

/// One segment of a Write chunk, while the peer may write it and after.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) chunk: u8,
    pub(crate) handle: u32,
    pub(crate) offered: u32,
    /// Back after the fence.
    pub(crate) buf: Option<Buf>,
}

/// How a Call ended, while fences are still awaited.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ending {
    /// A Reply, inline: where its Payload starts in the message.
    Inline(u32),
    /// A Reply in the Reply chunk, of this number of octets.
    Long(u32),
    /// No Reply.
    Failed(CallError),
}

/// What a Call exposes.
pub(crate) struct CallMemory<'a> {
    /// Its Read and Write chunks.
    pub(crate) chunks: &'a mut Chunks,
    /// Where the items of the Read chunks belong in the Payload stream.
    pub(crate) positions: &'a Positions,
    /// The Payload stream of a Long Call.
    pub(crate) long: Option<Shared>,
    /// The Reply chunk.
    pub(crate) reply: Option<Buf>,
}

/// One Call's memory and what its user wants back.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    stage: Stage,
    pub(crate) kind: CallKind,
    /// The seal that its Reply has to have, if it is sealed.
    pub(crate) sealed: Option<Box<AwaitedSeal>>,
    /// What its maker calls it.
    pub(crate) user: u64,
    pub(crate) procedure: u32,
    pub(crate) started: Duration,
    /// Time from `started` after which it is given up.
    pub(crate) timeout: Duration,
    /// Of an unsent Call, its message; of one that ends with an inline Reply, that.
    pub(crate) message: Option<Buf>,
    pub(crate) written: ArrayVec<Written, CLIENT_SEGMENTS_MAX>,
    /// Handles of what the peer may read, until they are fenced.
    pub(crate) reads: ArrayVec<u32, { CLIENT_SEGMENTS_MAX + 1 }>,
    /// Octets in each Write chunk, by the Reply.
    pub(crate) chunk_lens: [u32; CLIENT_SEGMENTS_MAX],
    /// Where the Reply says that the only result in `written` belongs, in its virtual stream; `None`: it does not.
    pub(crate) displacement: Option<u32>,
    pub(crate) reply_chunk: Option<(u32, Option<Buf>)>,
}

/// A stage without what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StageKind {
    Free,
    Sent,
    Unsent,
    Halfway,
    Interrupted,
    Withdrawing,
    Pulling,
    Ending,
}

/// Every change of stage there may be, and why. From each stage but `Free` a cancellation leads to `Ending`.
const CHANGES: [Change<StageKind>; 22] = {
    use StageKind::{Ending, Free, Halfway, Interrupted, Pulling, Sent, Unsent, Withdrawing};
    [
        (Free, Sent, "a Call begins"),
        (Sent, Unsent, "the send queue is full"),
        (Sent, Halfway, "the connection ends while memory is exposed for it"),
        (Sent, Withdrawing, "the provider refuses to expose some of its memory"),
        (Sent, Pulling, "the server exposes its Reply"),
        (Sent, Interrupted, "the connection ends, and the Call is kept"),
        (Sent, Ending, "its Reply, RDMA_ERROR, its time is over, or the connection ends for good"),
        (Sent, Free, "its Reply is taken in one step, as nothing of it is exposed"),
        (Unsent, Sent, "there is room; or its Reply comes, as a peer may guess an xid"),
        (Unsent, Interrupted, "the connection ends, and the Call is kept"),
        (Unsent, Ending, "its time is over, or the connection ends for good"),
        (Halfway, Interrupted, "the connection has ended"),
        (Halfway, Ending, "its time is over, or the connection ends for good"),
        (Interrupted, Interrupted, "the next connection ends too"),
        (Interrupted, Sent, "a credit on the next connection"),
        (Interrupted, Ending, "its time is over, or there is no next connection"),
        (Withdrawing, Withdrawing, "its time is over, and its fences are awaited on"),
        (Withdrawing, Interrupted, "all is fenced, and the Call waits for the next occasion"),
        (Withdrawing, Ending, "all is fenced, and the Call ends"),
        (Pulling, Interrupted, "the connection ends, and the Call is kept"),
        (Pulling, Ending, "its Reply was read, or cannot be"),
        (Ending, Free, "all is fenced"),
    ]
};

impl Stage {
    fn kind(&self) -> StageKind {
        match self {
            Stage::Free => StageKind::Free,
            Stage::Sent => StageKind::Sent,
            Stage::Unsent => StageKind::Unsent,
            Stage::Halfway => StageKind::Halfway,
            Stage::Interrupted => StageKind::Interrupted,
            Stage::Withdrawing(_) => StageKind::Withdrawing,
            Stage::Pulling => StageKind::Pulling,
            Stage::Ending(_) => StageKind::Ending,
        }
    }
}

impl Slot {
    /// What the Call waits for.
    #[inline(always)]
    pub(crate) fn stage(&self) -> Stage {
        self.stage
    }

    /// The Call waits for something else from now on.
    ///
    /// # Panics
    ///
    /// In a debug build, when it may not come to that from where it is.
    #[inline(always)]
    pub(crate) fn enter(&mut self, next: Stage) {
        debug_assert!(
            may_change(&CHANGES, self.stage.kind(), next.kind()),
            "a Call goes from {:?} to {next:?}",
            self.stage
        );
        self.stage = next;
    }

    /// Sets how a Call ends whose connection is gone, by what the Requester says of it.
    pub(crate) fn end_disconnected(&mut self, outcome: EndedCall) {
        let ending = match self.stage {
            Stage::Free | Stage::Ending(_) => return,
            Stage::Withdrawing(Some(error)) => error,
            _ if outcome == EndedCall::NotSent => CallError::NotSent,
            _ => CallError::ConnectionLost,
        };
        self.message = None;
        self.enter(Stage::Ending(Ending::Failed(ending)));
    }

    /// Exposes all memory of a Call, and puts its segments into `lists`. An error: the provider refused
    /// something, and why; what is exposed already is fenced again, and the Write chunks' buffers are back in the slot.
    pub(crate) fn expose<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        memory: CallMemory<'_>,
        lists: &mut Lists,
    ) -> Result<(), PostError> {
        let CallMemory { chunks, positions, long, reply } = memory;
        lists.reads.clear();
        lists.writes.clear();
        lists.reply = None;
        self.written.clear();
        self.reply_chunk = None;
        let mut result = Ok(());
        if let Some(data) = long {
            result = lists.expose_read(core, id, 0, data);
        }
        for (item, data) in chunks.read.drain() {
            // A piece whose item the encoder did not reduce has no Position: the Call is not well formed.
            let position = positions.get(usize::from(item)).ok_or(PostError::NotRegistered);
            result = result.and(position).and_then(|at| lists.expose_read(core, id, *at, data));
        }
        for (chunk, buf) in chunks.write.drain() {
            let offered = buf.len() as u32;
            let mut part = Written { chunk, handle: 0, offered, buf: None };
            if result.is_ok() {
                match core.provider.expose(id, Exposed::Write(buf)) {
                    Ok(target) => {
                        part.handle = target.handle.0;
                        lists.writes.push(segment(target, offered));
                    }
                    Err(refused) => {
                        result = Err(refused.error);
                        part.buf = write_buf(refused.request);
                    }
                }
            } else {
                part.buf = Some(buf);
            }
            self.written.push(part);
        }
        if let Some(buf) = reply.filter(|_| result.is_ok()) {
            let len = buf.len() as u32;
            match core.provider.expose(id, Exposed::Write(buf)) {
                Ok(target) => {
                    self.reply_chunk = Some((target.handle.0, None));
                    lists.reply = Some(segment(target, len));
                }
                Err(refused) => result = Err(refused.error),
            }
        }
        self.reads = lists.reads.iter().map(|read| read.segment.handle).collect();
        if result.is_err() {
            self.withdraw(core, id, lists);
        }
        result
    }

    /// Fences what was exposed for a Call that will not be sent. What is not back at once comes with a
    /// completion, as after every fence, or at the end of the connection.
    pub(crate) fn withdraw<P: Provider>(&mut self, core: &mut Core<P>, id: ConnectionId, lists: &Lists) {
        let reads = lists.reads.iter().map(|read| read.segment.handle);
        let handles = reads.chain(lists.writes.iter().chain(&lists.reply).map(|segment| segment.handle));
        for handle in handles {
            if let Some(Fence::Done(exposed)) = core.provider.fence(id, Handle(handle), 0) {
                self.take_back(Some(Handle(handle)), Some(exposed));
            }
        }
    }

    /// Memory regions of this Call that are not back yet.
    pub(crate) fn exposed_count(&self) -> u32 {
        let written = self.written.iter().filter(|part| part.buf.is_none()).count();
        let reply = usize::from(matches!(self.reply_chunk, Some((_, None))));
        (written + self.reads.len() + reply) as u32
    }

    /// Whether `handle` is one of this Call's that is not fenced yet.
    pub(crate) fn exposes(&self, handle: u32) -> bool {
        self.written.iter().any(|part| part.handle == handle && part.buf.is_none())
            || self.reads.contains(&handle)
            || matches!(self.reply_chunk, Some((own, None)) if own == handle)
    }

    /// Keeps memory that came back from a fence. Returns how many regions of this Call that is: one or none.
    #[inline]
    pub(crate) fn take_back(&mut self, handle: Option<Handle>, exposed: Option<Exposed>) -> u32 {
        let (Some(handle), Some(exposed)) = (handle, exposed) else { return 0 };
        let Exposed::Write(buf) = exposed else {
            let before = self.reads.len();
            self.reads.retain(|own| *own != handle.0);
            return (before - self.reads.len()) as u32;
        };
        let mut written = self.written.iter_mut();
        if let Some(part) = written.find(|part| part.handle == handle.0 && part.buf.is_none()) {
            part.buf = Some(buf);
            return 1;
        }
        match &mut self.reply_chunk {
            Some((own, place @ None)) if *own == handle.0 => {
                *place = Some(buf);
                1
            }
            _ => 0,
        }
    }

    /// Looks into the Reply, and sets the lengths of the Write chunks' buffers.
    // `inline(always)`: the result is large, and goes straight into the completed Call.
    #[inline(always)]
    pub(crate) fn results(
        &mut self,
        ending: Ending,
        call: requester::RequesterCallId,
        statistics: &mut Statistics,
    ) -> Result<Results, CallError> {
        let (message, start) = match ending {
            Ending::Failed(error) => {
                self.message = None;
                return Err(error);
            }
            Ending::Inline(start) => (self.message.take().ok_or(CallError::BadReply)?, start as usize),
            Ending::Long(len) => {
                self.message = None;
                let (_, buf) = self.reply_chunk.take().ok_or(CallError::BadReply)?;
                let mut buf = buf.ok_or(CallError::BadReply)?;
                buf.set_len((len as usize).min(buf.capacity()));
                if !call.is_reply(&buf) {
                    return Err(CallError::BadReply);
                }
                (buf, 0)
            }
        };
        let first = results_start(&message, start, call, &mut self.sealed)?;
        let mut reduced = 0;
        if !self.written.is_empty() {
            reduced = self.spread(statistics);
        }
        let results = Results::new(message, first, reduced);
        match self.displacement.take() {
            None => Ok(results),
            Some(displacement) => results.placed(displacement, first - start as u32),
        }
    }

    /// Gives each segment of the Write chunks its share of the octets written, front to back
    /// (8166-3.4.6-b), and returns their sum.
    pub(crate) fn spread(&mut self, statistics: &mut Statistics) -> u32 {
        let mut left = self.chunk_lens;
        let mut sum = 0;
        for part in &mut self.written {
            let chunk = usize::from(part.chunk).min(CLIENT_SEGMENTS_MAX - 1);
            let len = left[chunk].min(part.offered);
            left[chunk] -= len;
            sum += len;
            if let Some(buf) = &mut part.buf {
                buf.set_len(len as usize);
            }
        }
        statistics.count_write_chunk(sum);
        sum
    }
}

/// Where the results start in `message`, whose Payload stream starts at `start`. An error: there are none, and why. Opens a Reply that
/// has to be `sealed`.
#[inline(always)]
pub(crate) fn results_start(
    message: &[u8],
    start: usize,
    call: requester::RequesterCallId,
    sealed: &mut Option<Box<AwaitedSeal>>,
) -> Result<u32, CallError> {
    let mut reader = Reader::new(&message[start..]);
    if !take_success(&mut reader, call.xid()) {
        let header = ReplyHeader::parse(&mut reader).map_err(|_| CallError::BadReply)?;
        if let Some(sealed) = sealed {
            sealed.open(&header.body, reader.rest())?;
        }
        check_reply(&header.body)?;
    }
    Ok((start + reader.position()) as u32)
}

/// Turns an RPC-level refusal into the Call's error.
#[inline]
pub(crate) fn check_reply(body: &ReplyBody<'_>) -> Result<(), CallError> {
    match *body {
        ReplyBody::Accepted { outcome, .. } => check_accepted(outcome),
        ReplyBody::Denied(denied) => Err(error_of_denied(denied)),
    }
}

/// The same, of a Call that was accepted.
#[inline]
pub(crate) fn check_accepted(outcome: Accepted) -> Result<(), CallError> {
    Err(match outcome {
        Accepted::Success => return Ok(()),
        Accepted::ProgUnavail => CallError::ProgramUnavailable,
        Accepted::ProgMismatch { low, high } => CallError::ProgramMismatch { low, high },
        Accepted::ProcUnavail => CallError::ProcedureUnavailable,
        Accepted::GarbageArgs => CallError::GarbageArguments,
        Accepted::SystemErr => CallError::SystemError,
    })
}

/// The error of a Call that was denied.
pub(crate) fn error_of_denied(denied: Denied) -> CallError {
    match denied {
        Denied::RpcMismatch { .. } => CallError::RpcVersion,
        Denied::AuthError(status) => CallError::Authentication(status.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::check_drawn;

    /// `stages.txt` is what a reader sees of [`CHANGES`].
    #[test]
    fn the_stages_are_as_drawn() {
        check_drawn(&CHANGES, include_str!("stages.txt"));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "a Call goes from Free to Pulling")]
    fn a_change_that_is_not_drawn_is_a_defect() {
        Slot::default().enter(Stage::Pulling);
    }
}
