//! Replies that the server exposes: read into memory of this end, and confirmed by RDMA_DONE (reliable
//! reply).
//!
//! ```text
//!  the exposed Reply ─▶ memory for it ─▶ RDMA Read ─▶ RDMA_DONE, and the Call is over
//!                          └ none in time ─────────────▶ RDMA_DONE, and the Call fails
//! ```
//!
//! The message that announces the Reply becomes the RDMA_DONE: its buffer is kept until then, so that none can be missing. One
//! RDMA_DONE goes out for each exposed Reply, whatever became of its Call (RR-4.1.2-a, RR-4.1.3-c).

use std::time::Duration;

use arrayvec::ArrayVec;
use stag_fabric::{
    Exposed, Handle, PostError, Provider, READ_PARTS_MAX, ReadPart, ReadRequest, RemoteSegment, SendRequest,
};
use stag_memory::Buf;
use stag_proto::requester::{self, CallFailure, Pulled};
use stag_wire::rpcrdma::{DONE_LEN, Header};

use crate::ConnectionId;
use crate::client::calling::Calling;
use crate::client::slot::{Ending, Stage};
use crate::client::{CLIENT_SEGMENTS_MAX, CallError, CloseReason, ReplyMode};
use crate::connection::FinishedRead;
use crate::fault::fault;
use crate::service::reply::LONG_REPLY_LEN_MAX;
use crate::state::Core;

/// In the ids of Reads: this end pulls a Reply. Those of a Call's chunks do not have it.
pub(crate) const PULL_READ: u64 = 1 << 63;

/// How long a Reply waits for memory.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the two ends of a connection agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PullTerms {
    /// Replies that the server exposes at once.
    pub(crate) replies_max: u16,
    /// Whether RDMA_DONE goes by Send with Invalidate (RR-4.1.4-b).
    pub(crate) invalidates: bool,
}

/// How far a pull is.
#[derive(Debug)]
enum Progress {
    /// It has no memory, since then.
    Hungry(Duration),
    /// The Read found no room in the send queue.
    Ready(Buf),
    Reading,
    /// The RDMA_DONE is not sent yet; the Call, if it is not over, fails.
    Telling,
}

/// A Reply that the server exposes.
#[derive(Debug)]
struct Pulling {
    xid: u32,
    /// The Call that it answers, until that is over.
    call: Option<requester::RequesterCallId>,
    len: u32,
    /// Its first handle.
    handle: Option<Handle>,
    /// The exposed Reply; at last the RDMA_DONE.
    message: Buf,
    progress: Progress,
    /// Why it is not read.
    error: Option<CallError>,
}

/// The Replies of one connection that are being pulled.
#[derive(Debug)]
pub(crate) struct PullTable {
    entries: Box<[Option<Pulling>]>,
    /// For each slot the xid of the last Call that left its Reply to the server, and the octets that its caller takes.
    limits: Box<[(u32, u32)]>,
    invalidates: bool,
}

/// Looks where the Payload stream of an exposed Reply is.
fn parts(message: &[u8]) -> ArrayVec<ReadPart, READ_PARTS_MAX> {
    let Ok((header, _)) = Header::parse(message) else { return ArrayVec::new() };
    let (mut at, mut parts) = (0u32, ArrayVec::new());
    for entry in header.read_list() {
        let source = RemoteSegment { handle: Handle(entry.segment.handle), offset: entry.segment.offset };
        let is_empty = entry.segment.length == 0;
        if !is_empty && parts.try_push(ReadPart { at, len: entry.segment.length, source }).is_err() {
            return ArrayVec::new();
        }
        // A Reply that is pulled is no longer than this end allows.
        at = at.saturating_add(entry.segment.length);
    }
    parts
}

impl PullTable {
    /// A table for a client half with this number of slots. `terms` must allow at least one Reply.
    pub(crate) fn new(slots: usize, terms: PullTerms) -> PullTable {
        // Each Reply answers a Call of ours. Further ones wait for the send queue, which has room for that.
        let count = usize::from(terms.replies_max).min(2 * slots);
        PullTable {
            entries: (0..count).map(|_| None).collect(),
            limits: vec![(0, 0); slots].into_boxed_slice(),
            invalidates: terms.invalidates,
        }
    }

    /// Leaves the Reply of a Call to the server, and notes that the caller takes `len_max` octets. `false`: a Call of this mode
    /// offers a Reply chunk for so long a Reply.
    pub(crate) fn leave_reply(
        &mut self,
        call: requester::RequesterCallId,
        mode: ReplyMode,
        len_max: u32,
    ) -> bool {
        let is_left = match mode {
            ReplyMode::Auto => len_max as usize > LONG_REPLY_LEN_MAX,
            ReplyMode::Chunk => false,
            ReplyMode::Responder => true,
        };
        if is_left && let Some(limit) = self.limits.get_mut(call.index()) {
            *limit = (call.xid(), len_max);
        }
        is_left
    }
}

/// Takes in a Reply that the server exposed, in `message`. `chunk_lens`: the octets in each Write chunk. `Err`: the connection
/// has to end.
#[cold]
pub(super) fn take_exposed<P: Provider>(
    calling: &mut Calling,
    core: &mut Core<P>,
    id: ConnectionId,
    (xid, pulled): (u32, Pulled),
    message: Buf,
    chunk_lens: [u32; CLIENT_SEGMENTS_MAX],
    (invalidated, exposed): (Option<Handle>, &mut Option<Exposed>),
) -> Result<(), &'static str> {
    let Some(pulls) = calling.pulls.as_deref_mut() else {
        return Err("it exposed a Reply, which was not agreed on (RR-P-1)");
    };
    let Some(index) = pulls.entries.iter().position(Option::is_none) else {
        return Err("it exposed more Replies than it said that it would (RR-P-8)");
    };
    let handle = parts(&message).first().map(|part| part.source.handle);
    let progress = Progress::Telling;
    let mut entry = Pulling { xid, call: None, len: 0, handle, message, progress, error: None };
    let (call, memory) = match pulled {
        Pulled::Pull { call, len, memory } => {
            (entry.call, entry.len, entry.progress) = (Some(call), len, Progress::Hungry(core.now));
            let (limited, limit) = pulls.limits[call.index()];
            if limited == xid && len > limit {
                entry.progress = Progress::Telling;
                entry.error = Some(CallError::ReplyTooLong { len: len.into(), limit });
            }
            pulls.entries[index] = Some(entry);
            calling.pulls_waiting += 1;
            if !calling.note_answered(call) {
                core.fault(calling.name, "a Call that waits for its Reply is over");
            }
            let slot = &mut calling.slots[call.index()];
            slot.chunk_lens = chunk_lens;
            slot.enter(Stage::Pulling);
            (Some(call), memory)
        }
        Pulled::Tell { call, failure, memory } => {
            pulls.entries[index] = Some(entry);
            calling.pulls_waiting += 1;
            if let (Some(call), Some(failure)) = (call, failure) {
                let error = match failure {
                    CallFailure::Length { len, limit } => CallError::ReplyTooLong { len, limit },
                    _ => CallError::BadReply,
                };
                calling.end_answered(core, call, Ending::Failed(error));
            }
            (call, memory)
        }
    };
    if let Some(call) = call {
        calling.exposed -= calling.slots[call.index()].take_back(invalidated, exposed.take());
        calling.settle(core, id, call, memory);
    }
    go_on_pulling(calling, core, id, index);
    Ok(())
}

/// Goes on with all pulls that wait for memory, or for room in the send queue. Returns how many of them wait no more.
#[cold]
pub(super) fn resume_pulls<P: Provider>(
    calling: &mut Calling,
    core: &mut Core<P>,
    id: ConnectionId,
) -> usize {
    let waited = calling.pulls_waiting;
    for index in 0..calling.pulls.as_ref().map_or(0, |pulls| pulls.entries.len()) {
        go_on_pulling(calling, core, id, index);
    }
    waited.saturating_sub(calling.pulls_waiting) as usize
}

/// Goes on with one pull as far as it can.
fn go_on_pulling<P: Provider>(calling: &mut Calling, core: &mut Core<P>, id: ConnectionId, index: usize) {
    let Some(pulls) = calling.pulls.as_deref_mut() else { return };
    let Some(entry) = pulls.entries.get_mut(index).and_then(Option::as_mut) else { return };
    loop {
        match std::mem::replace(&mut entry.progress, Progress::Telling) {
            Progress::Hungry(since) => {
                let is_wanted = |call: requester::RequesterCallId| {
                    matches!(calling.slots[call.index()].stage(), Stage::Pulling)
                };
                if !entry.call.is_some_and(is_wanted) {
                    // It was cancelled, or its time is over.
                    continue;
                }
                let (len, payload) = (entry.len as usize, &core.pools.payload);
                if let Some(mut buf) = payload.take_len(len) {
                    buf.set_len(len);
                    entry.progress = Progress::Ready(buf);
                } else if len <= payload.units() * payload.unit_len()
                    && core.now < since.saturating_add(PATIENCE)
                {
                    entry.progress = Progress::Hungry(since);
                    return;
                } else {
                    entry.error = Some(CallError::NoMemory { len: entry.len });
                }
            }
            Progress::Ready(target) => {
                let request = ReadRequest { id: PULL_READ | index as u64, target };
                match core.provider.post_read(id, request, &parts(&entry.message)) {
                    Ok(()) => {
                        entry.progress = Progress::Reading;
                        calling.pulls_waiting -= 1;
                        core.state.read_posted = true;
                        return;
                    }
                    Err(refused) if refused.error == PostError::Full => {
                        entry.progress = Progress::Ready(refused.request.target);
                        return;
                    }
                    Err(refused) => entry.error = Some(CallError::NotPosted(refused.error)),
                }
            }
            Progress::Reading => {
                entry.progress = Progress::Reading;
                return;
            }
            Progress::Telling => break,
        }
    }
    let (call, error) = (entry.call.take(), entry.error.unwrap_or(CallError::BadReply));
    tell(calling, core, id, index);
    if let Some(call) = call {
        end_pull(calling, core, id, call, Err(error));
    }
}

/// A Read that pulls a Reply is done. `Err`: a defect of this engine.
#[cold]
pub(crate) fn pull_done<P: Provider>(
    calling: &mut Calling,
    core: &mut Core<P>,
    id: ConnectionId,
    read: FinishedRead,
) -> Result<(), CloseReason> {
    let FinishedRead { request, buf, result } = read;
    let index = (request & !PULL_READ) as usize;
    let pulls = calling.pulls.as_deref_mut();
    let entry = pulls.and_then(|pulls| pulls.entries.get_mut(index)).and_then(Option::as_mut);
    let Some(entry) = entry.filter(|entry| matches!(entry.progress, Progress::Reading)) else {
        return Err(fault("a Reply is read that is not being pulled"));
    };
    if result.is_err() {
        // The connection is ending, with everything in it.
        return Ok(());
    }
    entry.progress = Progress::Telling;
    calling.pulls_waiting += 1;
    core.statistics.read_bytes += buf.len() as u64;
    core.statistics.replies_pulled += 1;
    let call = entry.call.take();
    tell(calling, core, id, index);
    if let Some(call) = call {
        end_pull(calling, core, id, call, Ok(buf));
    }
    Ok(())
}

/// The Payload stream of a Call's Reply is here, or never will be.
fn end_pull<P: Provider>(
    calling: &mut Calling,
    core: &mut Core<P>,
    id: ConnectionId,
    call: requester::RequesterCallId,
    pulled: Result<Buf, CallError>,
) {
    let slot = &mut calling.slots[call.index()];
    // Else it is over for its user.
    if matches!(slot.stage(), Stage::Pulling) {
        let ending = match pulled {
            Ok(payload) if call.is_reply(&payload) => {
                slot.message = Some(payload);
                core.statistics.replies_received += 1;
                Ending::Inline(0)
            }
            Ok(_) => Ending::Failed(CallError::BadReply),
            Err(error) => Ending::Failed(error),
        };
        slot.enter(Stage::Ending(ending));
    }
    let memory = calling.requester.handle_pulled(call);
    calling.settle(core, id, call, memory);
}

/// Sends the RDMA_DONE of a Reply.
fn tell<P: Provider>(calling: &mut Calling, core: &mut Core<P>, id: ConnectionId, index: usize) {
    let Some(pulls) = calling.pulls.as_deref_mut() else { return };
    let Some(mut entry) = pulls.entries.get_mut(index).and_then(Option::take) else { return };
    let mut message = entry.message;
    message.set_len(DONE_LEN);
    let emitted = calling.requester.emit_done(entry.xid, &mut message);
    debug_assert_eq!(emitted, Ok(DONE_LEN), "a message buffer holds an RDMA_DONE");
    let invalidate = entry.handle.filter(|_| pulls.invalidates);
    let request = SendRequest { id: 0, buf: message, invalidate, signaled: false };
    match core.post_send(id, request) {
        Err(refused) if refused.error == PostError::Full => {
            entry.message = refused.request.buf;
            pulls.entries[index] = Some(entry);
        }
        // Refused for another reason, the connection is ending.
        _ => calling.pulls_waiting -= 1,
    }
}
