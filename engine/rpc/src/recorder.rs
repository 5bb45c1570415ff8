//! The flight recorder: the first octets of the last messages on connections that peers opened, whatever fabric carries them.
//!
//! A ring of fixed length, made once ([`Engine::record`](crate::Engine::record)). A message enters it where it is taken or sent;
//! nothing but memory is touched. Reading copies it ([`Engine::recording`](crate::Engine::recording)). When a connection ends badly,
//! its messages are copied and handed to the function that `Engine::record` was given.
//!
//! ```text
//!  taken   shown in place: RecordingTaker (in_place.rs) | as a completion: Engine::complete
//!  sent    in place: RecordingTaker | from a buffer: Core::post_send | at once: pushing.rs | built where it leaves: carrying.rs
//! ```
//!
//! Not recorded: RDMA Reads and Writes, RPC over TCP, and the connections that this engine opened as a client.

use std::fmt;
use std::mem::size_of;
use std::net::SocketAddr;
use std::time::Duration;

use arrayvec::ArrayVec;
use stag_fabric::{
    DisconnectReason, GatheredPieces, Handle, LogLimiter, Peer, PlainMessage, Provider, Refused,
    ScatteredMessage, SendRequest, Taken, WholeMessage,
};
use stag_wire::rpc::leading_xid;
use stag_wire::rpcrdma;

use crate::ConnectionId;
use crate::client::CloseReason;
use crate::state::{Core, EngineState};

/// Octets that are kept of each message.
pub const RECORDED_LEN_MAX: usize = 256;

/// Octets that are kept of each side's private data.
const PRIVATE_DATA_LEN_MAX: usize = 56;

/// Connections that ended whose set-up is remembered, for those of their messages that are still in the ring.
const ENDED_MAX: usize = 64;

/// A Call and its Reply.
const MESSAGES_MIN: u32 = 2;

/// Octets of a message that was copied, or is in a file: with the headers that it has there.
const COPIED_LEN: usize = RECORDED_LEN_MAX + 128;

/// Messages of a [`BadEnd`] at most: the last ones.
const BAD_END_MESSAGES_MAX: usize = 512;

/// Which way a message went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Received,
    Sent,
}

/// What is in a place of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryKind {
    Empty,
    /// A message with its header.
    Whole(Way),
    /// A Payload stream, and the credits of the header that stands before it: one without chunks.
    Plain(Way, u32),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    time: Duration,
    connection: ConnectionId,
    kind: EntryKind,
    invalidated: Option<Handle>,
    /// Octets of the message or of its Payload stream that were in one piece; as many as there is room for are kept.
    len: u32,
    /// Octets behind these, of which none is kept.
    behind: u32,
    octets: [u8; RECORDED_LEN_MAX],
}

impl Entry {
    const EMPTY: Entry = Entry {
        time: Duration::ZERO,
        connection: ConnectionId { index: 0, generation: 0 },
        kind: EntryKind::Empty,
        invalidated: None,
        len: 0,
        behind: 0,
        octets: [0; RECORDED_LEN_MAX],
    };
}

/// What a reader of a connection's messages must know beside them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedConnection {
    /// Its name.
    pub connection: ConnectionId,
    /// Who opened it.
    pub peer: Peer,
    /// The address of this machine that it came in at, if the fabric has one.
    pub own_address: Option<SocketAddr>,
    /// The start of the private data that came with the request.
    pub peer_private_data: ArrayVec<u8, PRIVATE_DATA_LEN_MAX>,
    /// The start of the private data that it was accepted with.
    pub own_private_data: ArrayVec<u8, PRIVATE_DATA_LEN_MAX>,
}

impl TracedConnection {
    /// What is remembered of a connection; `private_data`: the peer's, and what it is accepted with.
    pub(crate) fn new(
        connection: ConnectionId,
        peer: &Peer,
        own_address: Option<SocketAddr>,
        private_data: [&[u8]; 2],
    ) -> TracedConnection {
        let start = |octets: &[u8]| octets.iter().copied().take(PRIVATE_DATA_LEN_MAX).collect();
        let [peer_private_data, own_private_data] = private_data.map(start);
        TracedConnection { connection, peer: peer.clone(), own_address, peer_private_data, own_private_data }
    }
}

/// A message of a [`Recording`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedMessage<'a> {
    /// The instant of the pass in which it was taken or sent, on the reactor's clock.
    pub time: Duration,
    /// Its connection.
    pub connection: ConnectionId,
    /// Whether this side sent it.
    pub is_sent: bool,
    /// Its first octets.
    pub octets: &'a [u8],
    /// Octets of all of it.
    pub len: u32,
    /// The receiver's handle that it invalidates.
    pub invalidated: Option<Handle>,
}

#[derive(Clone, Debug)]
struct Copied {
    time: Duration,
    connection: ConnectionId,
    is_sent: bool,
    kept: u32,
    len: u32,
    invalidated: Option<Handle>,
}

/// A copy of what a recorder has, the oldest message first.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// The fabric.
    pub fabric: &'static str,
    /// The instant of the copy, on the reactor's clock.
    pub time: Duration,
    /// The connections that have a message in it.
    pub connections: Vec<TracedConnection>,
    messages: Vec<Copied>,
    octets: Vec<u8>,
}

impl Recording {
    /// The messages.
    pub fn messages(&self) -> impl Iterator<Item = TracedMessage<'_>> {
        let mut rest = &self.octets[..];
        self.messages.iter().map(move |copied| {
            let &Copied { time, connection, is_sent, kept, len, invalidated } = copied;
            let (octets, behind) = rest.split_at(kept as usize);
            rest = behind;
            TracedMessage { time, connection, is_sent, octets, len, invalidated }
        })
    }

    fn push(&mut self, entry: &Entry) {
        let (way, header) = match entry.kind {
            EntryKind::Empty => return,
            EntryKind::Whole(way) => (way, None),
            EntryKind::Plain(way, credits) => (way, Some(credits)),
        };
        let start = self.octets.len();
        let mut len = entry.len.saturating_add(entry.behind);
        let kept = &entry.octets[..RECORDED_LEN_MAX.min(entry.len as usize)];
        if let Some(credits) = header {
            let xid = leading_xid(kept);
            let mut message = [0; rpcrdma::HEADER_LEN_MIN];
            // It has room for that, and nothing else.
            let _ = rpcrdma::emit_plain(&mut message, xid, credits);
            self.octets.extend(message);
            len = len.saturating_add(message.len() as u32);
        }
        self.octets.extend(kept);
        let kept = (self.octets.len() - start) as u32;
        let &Entry { time, connection, invalidated, .. } = entry;
        self.messages.push(Copied { time, connection, is_sent: way == Way::Sent, kept, len, invalidated });
    }
}

/// The last messages of a connection that ended badly.
#[derive(Clone, Debug)]
pub struct BadEnd {
    /// The connection and its messages.
    pub recording: Recording,
    /// Who was at its other end.
    pub peer: Peer,
    /// Why it ended, as a sentence.
    pub reason: String,
    /// Bad ends with messages before this one that were not handed over: there is one a second.
    pub withheld: u64,
}

/// Takes what [`BadEnd`] has.
type BadEndTaker = Box<dyn FnMut(BadEnd)>;

/// A connection, and where its last message is.
struct KnownConnection {
    traced: TracedConnection,
    /// [`Recorder::entered`] with its last message; 0: it has none.
    last: u64,
}

/// The ring, and what is known of connections.
pub(crate) struct Recorder {
    entries: Box<[Entry]>,
    next: usize,
    /// Messages that were entered.
    entered: u64,
    /// By the index of the queue pair: the last connection there.
    connections: Vec<Option<Box<KnownConnection>>>,
    /// Those before.
    ended: Vec<KnownConnection>,
    take_bad_end: BadEndTaker,
    limit: LogLimiter,
    fabric: &'static str,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("entries", &self.entries.len()).finish_non_exhaustive()
    }
}

impl Recorder {
    /// Takes the next place, whose octets are those of an older message.
    #[inline(always)]
    fn enter(
        &mut self,
        time: Duration,
        connection: ConnectionId,
        kind: EntryKind,
        octets: &[u8],
    ) -> &mut Entry {
        let at = self.next;
        self.next = if at + 1 == self.entries.len() { 0 } else { at + 1 };
        self.entered += 1;
        if let Some(Some(known)) = self.connections.get_mut(connection.index as usize)
            && known.traced.connection == connection
        {
            known.last = self.entered;
        }
        let entry = &mut self.entries[at];
        (entry.time, entry.connection, entry.kind) = (time, connection, kind);
        entry.invalidated = None;
        (entry.len, entry.behind) = (octets.len() as u32, 0);
        let kept = octets.len().min(RECORDED_LEN_MAX);
        entry.octets[..kept].copy_from_slice(&octets[..kept]);
        entry
    }

    /// Records a message without chunks: its Payload stream, and the credits of its header.
    // Not inline, and cold, as the next: a server that records nothing pays for one branch.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_plain(
        &mut self,
        time: Duration,
        connection: ConnectionId,
        way: Way,
        (credits, stream): (u32, &[u8]),
    ) {
        self.enter(time, connection, EntryKind::Plain(way, credits), stream);
    }

    /// Records a message.
    #[cold]
    #[inline(never)]
    pub(crate) fn note(
        &mut self,
        time: Duration,
        connection: ConnectionId,
        way: Way,
        octets: &[u8],
        invalidated: Option<Handle>,
    ) {
        self.enter(time, connection, EntryKind::Whole(way), octets).invalidated = invalidated;
    }

    fn last(&mut self) -> &mut Entry {
        let last = self.next.checked_sub(1).unwrap_or(self.entries.len() - 1);
        &mut self.entries[last]
    }

    /// The message that was recorded last is longer: `more` octets of it are elsewhere.
    #[cold]
    #[inline(never)]
    pub(crate) fn lengthen_last(&mut self, more: u32) {
        let last = self.last();
        last.behind = last.behind.saturating_add(more);
    }

    /// The message that was recorded last was not sent.
    fn take_last_back(&mut self) {
        self.last().kind = EntryKind::Empty;
        self.next = self.next.checked_sub(1).unwrap_or(self.entries.len() - 1);
        self.entered -= 1;
    }

    /// A peer opened a connection.
    fn open(&mut self, opened: TracedConnection) {
        let index = opened.connection.index as usize;
        if self.connections.len() <= index {
            self.connections.resize_with(index + 1, || None);
        }
        let opened = Box::new(KnownConnection { traced: opened, last: 0 });
        if let Some(before) = self.connections[index].replace(opened) {
            if self.ended.len() == ENDED_MAX {
                self.ended.remove(0);
            }
            self.ended.push(*before);
        }
    }

    /// What is known of a connection, if a peer opened it.
    fn find(&self, id: ConnectionId) -> Option<&KnownConnection> {
        let last = self.connections.get(id.index as usize).and_then(Option::as_deref);
        last.into_iter().chain(&self.ended).find(|known| known.traced.connection == id)
    }

    /// Who opened a connection, if the ring has a message of it.
    fn peer_of_recorded(&self, id: ConnectionId) -> Option<&Peer> {
        let known = self.find(id).filter(|known| known.last > 0)?;
        let is_there = self.entered.saturating_sub(known.last) < self.entries.len() as u64;
        is_there.then_some(&known.traced.peer)
    }

    /// For the first octets of each of the last `messages` messages. See [`Engine::record`](crate::Engine::record).
    pub(crate) fn new(
        messages: u32,
        fabric: &'static str,
        take_bad_end: impl FnMut(BadEnd) + 'static,
    ) -> Recorder {
        Recorder {
            entries: vec![Entry::EMPTY; messages.max(MESSAGES_MIN) as usize].into_boxed_slice(),
            next: 0,
            entered: 0,
            connections: Vec::new(),
            ended: Vec::with_capacity(ENDED_MAX),
            take_bad_end: Box::new(take_bad_end),
            limit: LogLimiter::default(),
            fabric,
        }
    }

    /// Copies the messages of all connections, or the last [`BAD_END_MESSAGES_MAX`] of one.
    pub(crate) fn copy(&self, now: Duration, only: Option<ConnectionId>) -> Recording {
        let mut recording = Recording { fabric: self.fabric, time: now, ..Recording::default() };
        let (newer, older) = self.entries.split_at(self.next);
        let entries = || older.iter().chain(newer).filter(|entry| entry.kind != EntryKind::Empty);
        let is_wanted = |id: &ConnectionId| only.is_none_or(|only| only == *id);
        let mut ids: Vec<ConnectionId> = entries().map(|entry| entry.connection).filter(is_wanted).collect();
        ids.sort_unstable_by_key(|id| (id.index, id.generation));
        ids.dedup();
        recording.connections = ids.iter().filter_map(|id| Some(self.find(*id)?.traced.clone())).collect();
        let known = |id: ConnectionId| {
            let key = |id: ConnectionId| (id.index, id.generation);
            recording.connections.binary_search_by_key(&key(id), |known| key(known.connection)).is_ok()
        };
        let wanted: Vec<&Entry> = entries().filter(|entry| known(entry.connection)).collect();
        let most = only.map_or(wanted.len(), |_| BAD_END_MESSAGES_MAX);
        let wanted = &wanted[wanted.len().saturating_sub(most)..];
        let kept = |entry: &&Entry| rpcrdma::HEADER_LEN_MIN + RECORDED_LEN_MAX.min(entry.len as usize);
        recording.messages.reserve_exact(wanted.len());
        recording.octets.reserve_exact(wanted.iter().map(kept).sum());
        wanted.iter().for_each(|entry| recording.push(entry));
        recording
    }
}

/// Whether a connection that ended so had something wrong: not that a side went in order, or its process died.
fn is_bad(reason: &CloseReason) -> bool {
    match reason {
        CloseReason::Fabric(reason) => matches!(
            reason,
            DisconnectReason::Work(_) | DisconnectReason::PeerViolation(_) | DisconnectReason::DeviceRemoved
        ),
        _ => true,
    }
}

/// Octets of memory that a recorder of `messages` takes, with `connections` at once; and the copies of its messages: a
/// [`Recording`] and the file that is made of it, and as much for two [`BadEnd`]s.
#[must_use]
pub fn recorder_len(messages: u32, connections: u32) -> usize {
    let messages = messages.max(MESSAGES_MIN) as usize;
    let known = connections as usize + ENDED_MAX;
    let copied = 2 * messages + 4 * messages.min(BAD_END_MESSAGES_MAX);
    size_of::<Recorder>()
        + messages * size_of::<Entry>()
        + copied * COPIED_LEN
        + known * (size_of::<KnownConnection>() + size_of::<Box<KnownConnection>>())
}

impl EngineState {
    /// A peer's connection is accepted, with this private data of both sides.
    pub(crate) fn note_set_up(&mut self, opened: TracedConnection) {
        if let Some(recorder) = &mut self.recorder {
            recorder.open(opened);
        }
    }

    /// A connection is gone: hands its messages over if its end was bad and there are any.
    #[cold]
    pub(crate) fn note_end(&mut self, connection: ConnectionId, reason: &CloseReason) {
        let Some(recorder) = self.recorder.as_deref_mut().filter(|_| is_bad(reason)) else { return };
        let Some(peer) = recorder.peer_of_recorded(connection).cloned() else { return };
        let Some(withheld) = recorder.limit.admit(self.now) else { return };
        let (recording, reason) = (recorder.copy(self.now, Some(connection)), reason.describe("the client"));
        (recorder.take_bad_end)(BadEnd { recording, peer, reason, withheld });
    }

    /// Records a message that was shown as one without chunks, and its answer in `space`.
    pub(crate) fn note_plain_taken(&mut self, shown: &PlainMessage<'_>, taken: Taken) {
        let (now, id) = (self.now, shown.queue_pair);
        let Some(recorder) = self.recorder.as_deref_mut().filter(|_| taken != Taken::No) else { return };
        recorder.note_plain(now, id, Way::Received, (shown.credits, shown.stream));
        if let (Taken::Answered { credits, len }, Some(space)) = (taken, &shown.space) {
            recorder.note_plain(now, id, Way::Sent, (credits, space.get(..len).unwrap_or_default()));
        }
    }

    /// Records a message that was shown with its header, and its answer.
    pub(crate) fn note_whole_taken(&mut self, shown: &WholeMessage<'_>, taken: Taken) {
        let (now, id) = (self.now, shown.queue_pair);
        let Some(recorder) = self.recorder.as_deref_mut().filter(|_| taken != Taken::No) else { return };
        recorder.note(now, id, Way::Received, shown.octets, shown.invalidated);
        if let (Taken::AnsweredWhole { len, invalidate }, Some(space)) = (taken, &shown.space) {
            recorder.note(now, id, Way::Sent, space.get(..len).unwrap_or_default(), invalidate);
        }
    }

    /// Records a message that was shown in one piece, and its answer.
    pub(crate) fn note_scattered_taken(&mut self, shown: &ScatteredMessage<'_>, taken: Taken) {
        let (now, id) = (self.now, shown.queue_pair);
        let Some(recorder) = self.recorder.as_deref_mut().filter(|_| taken != Taken::No) else { return };
        recorder.note(now, id, Way::Received, shown.octets, None);
        if let (Taken::AnsweredGathered { len }, Some(space)) = (taken, &shown.space) {
            recorder.note(now, id, Way::Sent, space.get(..len).unwrap_or_default(), None);
            recorder.lengthen_last(octets_of(shown.pieces));
        }
    }
}

impl EngineState {
    /// The Send that was recorded last was refused.
    #[cold]
    #[inline(never)]
    fn note_unsent(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.take_last_back();
        }
    }
}

fn octets_of(pieces: &GatheredPieces) -> u32 {
    pieces.iter().map(|piece| piece.len() as u32).sum()
}

impl<P: Provider> Core<P> {
    /// Posts a Send, and records it.
    #[inline(always)]
    pub(crate) fn post_send(
        &mut self,
        id: ConnectionId,
        request: SendRequest,
    ) -> Result<(), Refused<SendRequest>> {
        if let Some(recorder) = &mut self.state.recorder {
            recorder.note(self.state.now, id, Way::Sent, &request.buf, request.invalidate);
        }
        let posted = self.provider.post_send(id, request);
        if posted.is_err() {
            self.state.note_unsent();
        }
        posted
    }
}
