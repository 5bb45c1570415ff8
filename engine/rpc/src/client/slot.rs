//! One Call of a client: its memory while the peer may touch it, and what its Reply says.

use std::time::Duration;

use arrayvec::ArrayVec;
use stag_fabric::{Exposed, Fence, Handle, PostError, Provider};
use stag_memory::{Buf, Shared};
use stag_proto::requester;
use stag_wire::rpc::{Accepted, Denied, ReplyBody, ReplyHeader, take_success};
use stag_wire::xdr::Reader;

use crate::ConnectionId;
use crate::client::calling::Positions;
use crate::client::offering::{Lists, segment, write_buf};
use crate::client::{CLIENT_SEGMENTS_MAX, CallError, Chunks, Results};
use crate::state::Core;
use crate::statistics::Statistics;
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
    /// A Reply in the Reply chunk, of so many octets.
    Long(u32),
    /// No Reply.
    Failed(CallError),
}

/// One Call's memory and what its user wants back.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) call: Option<requester::CallId>,
    pub(crate) user: u64,
    pub(crate) procedure: u32,
    pub(crate) started: Duration,
    /// Time from `started` after which it is given up.
    pub(crate) timeout: Duration,
    pub(crate) ending: Option<Ending>,
    pub(crate) message: Option<Buf>,
    pub(crate) written: ArrayVec<Written, CLIENT_SEGMENTS_MAX>,
    /// Handles of what the peer may read, until they are fenced.
    pub(crate) reads: ArrayVec<u32, { CLIENT_SEGMENTS_MAX + 1 }>,
    /// Octets in each Write chunk, by the Reply.
    pub(crate) chunk_lens: [u32; CLIENT_SEGMENTS_MAX],
    pub(crate) reply_chunk: Option<(u32, Option<Buf>)>,
    /// The Call could not be exposed as a whole: it ends when what was exposed of it is fenced.
    pub(crate) withdrawn: bool,
    /// It is a keep-alive, of which no user knows.
    pub(crate) probe: bool,
}

impl Slot {
    /// Exposes all memory of a Call, and puts its segments into `lists`. An error: the provider refused
    /// something, and why; what is exposed already is fenced again, and the Write chunks' buffers are back in the slot.
    #[allow(clippy::too_many_arguments, reason = "one step of `Calling::call`, cut out to be read alone")]
    pub(crate) fn expose<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        chunks: &mut Chunks,
        positions: &Positions,
        long: Option<Shared>,
        reply: Option<Buf>,
        lists: &mut Lists,
    ) -> Result<(), PostError> {
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
    // Always inline: what it returns is long, and goes straight into the completed Call.
    #[inline(always)]
    pub(crate) fn results(
        &mut self,
        ending: Ending,
        call: requester::CallId,
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
        let mut reader = Reader::new(&message[start..]);
        if !take_success(&mut reader, call.xid()) {
            let header = ReplyHeader::parse(&mut reader).map_err(|_| CallError::BadReply)?;
            check(&header.body)?;
        }
        let first = (start + reader.position()) as u32;
        let mut reduced = 0;
        if !self.written.is_empty() {
            reduced = self.spread(statistics);
        }
        let end = message.len() as u32;
        Ok(Results::new(message, first..end, reduced))
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
        if sum > 0 {
            statistics.write_chunks += 1;
        } else {
            statistics.write_chunks_unused += 1;
        }
        sum
    }
}

/// Turns an RPC-level refusal into the Call's error.
#[inline]
fn check(body: &ReplyBody<'_>) -> Result<(), CallError> {
    Err(match *body {
        ReplyBody::Accepted { outcome, .. } => match outcome {
            Accepted::Success => return Ok(()),
            Accepted::ProgUnavail => CallError::ProgramUnavailable,
            Accepted::ProgMismatch { low, high } => CallError::ProgramMismatch { low, high },
            Accepted::ProcUnavail => CallError::ProcedureUnavailable,
            Accepted::GarbageArgs => CallError::GarbageArguments,
            Accepted::SystemErr => CallError::SystemError,
        },
        ReplyBody::Denied(Denied::RpcMismatch { .. }) => CallError::RpcVersion,
        ReplyBody::Denied(Denied::AuthError(status)) => CallError::Authentication(status.0),
    })
}
