//! Procedures with a DDP-eligible item, READ, WRITE, READLINK, SYMLINK; and COMMIT. A store may finish READ, WRITE
//! and COMMIT later.

use std::time::Duration;

use stag_memory::Shared;
use stag_rpc::{Call, Outcome, Placed, Placement, Reply, owner};
use stag_wire::nfs3::{
    CommitArguments, CommitOk, CommitReply, HANDLE_LEN_MAX, Path, PostOpAttributes, Procedure, ReadArguments,
    ReadReply, ReadlinkArguments, ReadlinkOk, ReadlinkReply, STRING_LEN_CAP, SymlinkArguments, Verifier,
    WccAttributes, WccData, WriteArguments, WriteOk, WriteReply,
};
use stag_wire::xdr::{Item, Reader, XdrError};

use super::limits::{Limited, RateTurn};
use super::nfs::{Answer, Created, PIECES_MAX, TRANSFER_LEN_MAX, make};
use super::rerun::{Again, Answered};
use super::traffic::{Traffic, TrafficClient};
use super::waiting::{Begun, Hold, Pending, Program, Waiter, WaitsFor};
use super::words::{self, failure, stability, stable};
use super::{CallContext, ExportTable, ResolvedHandle, decode};
use stag_vfs::{
    Blocked, Finished, FsError, LINK_SPACE, Progress, ReadDone, Stability, Store, Ticket, Timestamp,
    WriteData, WriteDone,
};

/// The status in front of successful results.
const NFS3_OK: u32 = 0;

/// Answers READ: the stored pages themselves go to the Write chunk, if there is one. What it returns is answered
/// later.
pub(super) fn read<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    call: &Call<'_>,
    reply: &mut Reply<'_>,
    pieces: &mut Vec<Shared>,
    now: Timestamp,
) -> Option<(Hold, Pending)> {
    let arguments = decode::<ReadArguments<'_>>(call, reply)?;
    let opened = match exports.open(asker, arguments.file) {
        Ok(opened) => opened,
        Err(error) => {
            answer_read(reply, Err(error), &None, pieces);
            return None;
        }
    };
    let range = (arguments.offset, arguments.count.min(TRANSFER_LEN_MAX));
    if exports.is_limited(&opened) {
        return read_limited(exports, (asker, call, opened), range, reply, pieces, now);
    }
    read_opened(exports, (asker, opened), range, reply, pieces, now)
}

/// Octets of a READ that its Reply has room for.
#[inline(always)]
fn read_room<S: Store + ?Sized>(
    exports: &ExportTable<S>,
    opened: &ResolvedHandle,
    count: u32,
    reply: &Reply<'_>,
) -> u32 {
    let takes_memory = exports.volume(opened).profile().can.reads_take_memory;
    let count = if takes_memory { reply.results_room(count) } else { count };
    // A Long Reply has a copy of what lies in memory, too.
    reply.item_room(count)
}

/// As [`read`], of a file whose export has limits.
#[cold]
#[inline(never)]
fn read_limited<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    (asker, call, opened): (&CallContext<'_>, &Call<'_>, ResolvedHandle),
    (offset, count): (u64, u32),
    reply: &mut Reply<'_>,
    pieces: &mut Vec<Shared>,
    now: Timestamp,
) -> Option<(Hold, Pending)> {
    let count = read_room(exports, &opened, count, reply);
    let connection = Some(call.connection());
    match exports.limit_read(&opened, asker.peer, (offset, count), connection, call.now()) {
        Ok(()) => read_opened(exports, (asker, opened), (offset, count), reply, pieces, now),
        // No memory is kept for results that come when the limit allows.
        Err(Limited::Waits(turn)) => {
            let again = AgainTransfer { opened, what: AgainWhat::Read { offset, count } };
            Some((turn.into(), Pending::Again(Again::of_transfer(again, asker))))
        }
        Err(Limited::Full) => {
            answer_read(reply, Err(FsError::Busy), &FromStore(exports, &opened), pieces);
            None
        }
    }
}

#[inline(always)]
fn read_opened<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    (asker, opened): (&CallContext<'_>, ResolvedHandle),
    (offset, count): (u64, u32),
    reply: &mut Reply<'_>,
    pieces: &mut Vec<Shared>,
    now: Timestamp,
) -> Option<(Hold, Pending)> {
    let count = read_room(exports, &opened, count, reply);
    let volume = exports.volume_mut(&opened);
    let done = match volume.read(&opened.caller, opened.object, (offset, count), pieces, now) {
        Ok(Progress::Done(done)) if pieces.len() > 1 => Ok(cut_read(done, reply, pieces)),
        Ok(Progress::Done(done)) => Ok(done),
        Ok(Progress::Later(ticket)) => {
            reply.expect_results(count);
            return Some((opened.waits(ticket).into(), Pending::transfer(Procedure::Read, opened, asker)));
        }
        Err(Blocked::Fails(error)) => Err(error),
        Err(Blocked::Waits(ticket)) => {
            reply.expect_results(count);
            let again = AgainTransfer { opened, what: AgainWhat::Read { offset, count } };
            return Some((opened.waits(ticket).into(), Pending::Again(Again::of_transfer(again, asker))));
        }
    };
    if let Ok(done) = &done {
        exports.count(opened.share, TrafficClient::of(asker.peer), Traffic::read(done.count));
    }
    let exports = &*exports;
    answer_read(reply, done, &FromStore(exports, &opened), pieces);
    None
}

/// Makes a READ shorter that is in more pieces than its Reply has room for.
#[cold]
fn cut_read(done: ReadDone, reply: &Reply<'_>, pieces: &mut Vec<Shared>) -> ReadDone {
    if pieces.len() <= reply.pieces_room() {
        return done;
    }
    pieces.truncate(reply.pieces_room());
    let count = pieces.iter().map(|piece| piece.len() as u32).sum();
    ReadDone { count, eof: false }
}

/// The attributes of a file after a READ: written where they are needed, because they are large.
trait AttributesAfter {
    fn attributes(&self) -> PostOpAttributes;
}

/// As they are known already.
impl AttributesAfter for PostOpAttributes {
    fn attributes(&self) -> PostOpAttributes {
        *self
    }
}

/// As the store tells them.
struct FromStore<'a, S: Store + ?Sized>(&'a ExportTable<S>, &'a ResolvedHandle);

impl<S: Store + ?Sized> AttributesAfter for FromStore<'_, S> {
    // Without a copy between: see the trait.
    #[inline(always)]
    fn attributes(&self) -> PostOpAttributes {
        self.0.after(self.1)
    }
}

#[inline(always)]
fn answer_read(
    reply: &mut Reply<'_>,
    done: Result<ReadDone, FsError>,
    after: &impl AttributesAfter,
    pieces: &mut Vec<Shared>,
) {
    let done = match done {
        Ok(done) => done,
        Err(error) => {
            let failed: ReadReply<'_> = Err(failure(error, after.attributes()));
            failed.send(reply);
            return;
        }
    };
    match reply.item(done.count) {
        Placement::Reduced => {
            if pieces.len() > 1 {
                pieces.drain(..).for_each(|piece| reply.piece(piece));
            } else if let Some(piece) = pieces.pop() {
                reply.piece(piece);
            }
            reply.success(|writer| {
                writer.u32(NFS3_OK)?;
                writer.optional(after.attributes().as_ref())?;
                writer.u32(done.count)?;
                writer.bool(done.eof)?;
                writer.eligible_opaque_reduced(done.count).map(drop)
            });
        }
        Placement::Inline => {
            // As `ReadOk` would, if the data were in one piece.
            reply.success(|writer| {
                writer.u32(NFS3_OK)?;
                writer.optional(after.attributes().as_ref())?;
                writer.u32(done.count)?;
                writer.bool(done.eof)?;
                writer.opaque_pieces(done.count, pieces.iter().map(|piece| &piece[..]))
            });
            pieces.clear();
        }
    }
}

/// Answers WRITE: the very buffers that the data was placed in become the file's pages. What it returns is answered
/// later.
pub(super) fn write<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    call: &mut Call<'_>,
    reply: &mut Reply<'_>,
    pieces: &mut Vec<Shared>,
    now: Timestamp,
) -> Option<(Hold, Pending)> {
    let arguments = decode::<WriteArguments<'_>>(call, reply)?;
    let mut missing = false;
    if let Item::Reduced { index, len } = arguments.data.0 {
        missing = take_placed(call.placed(index), len, pieces).is_none();
    }
    let opened = match exports.open(asker, arguments.file) {
        Ok(opened) => opened,
        Err(error) => {
            pieces.clear();
            answer_write(reply, Err(error), WccData::default());
            return None;
        }
    };
    let data = (&arguments, missing);
    if exports.is_limited(&opened) {
        return write_limited(exports, (asker, call.now(), opened), data, reply, pieces, now);
    }
    write_opened(exports, (asker, None, opened), data, reply, pieces, now)
}

/// As [`write`], of a file whose export has limits: the answer may have to wait.
#[cold]
#[inline(never)]
fn write_limited<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    (asker, now, opened): (&CallContext<'_>, Duration, ResolvedHandle),
    data: (&WriteArguments<'_>, bool),
    reply: &mut Reply<'_>,
    pieces: &mut Vec<Shared>,
    time: Timestamp,
) -> Option<(Hold, Pending)> {
    let client = owner(asker.peer);
    if exports.refuses_write(&opened, client) {
        pieces.clear();
        let file = WccData { before: None, after: exports.after(&opened) };
        answer_write(reply, Err(FsError::Busy), file);
        return None;
    }
    write_opened(exports, (asker, Some((client, now)), opened), data, reply, pieces, time)
}

/// As [`write`]. `limited`: whose octets are counted, and when.
#[inline(always)]
fn write_opened<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    (asker, limited, opened): (&CallContext<'_>, Option<(u128, Duration)>, ResolvedHandle),
    (arguments, missing): (&WriteArguments<'_>, bool),
    reply: &mut Reply<'_>,
    pieces: &mut Vec<Shared>,
    now: Timestamp,
) -> Option<(Hold, Pending)> {
    let data = match arguments.data.0 {
        Item::Inline(octets) => WriteData::Inline(octets),
        Item::Reduced { .. } => WriteData::Placed(pieces),
    };
    let before = exports.before_transfer(&opened);
    let (offset, stability) = (arguments.offset, stability(arguments.stable));
    let done = if opened.read_only {
        Err(FsError::ReadOnly.into())
    } else if arguments.count as usize != arguments.data.0.len() {
        Err(FsError::Invalid.into())
    } else if missing {
        // There was no memory to place it in, because of what else is under way: not for good.
        Err(FsError::Busy.into())
    } else {
        exports.volume_mut(&opened).write(&opened.caller, opened.object, offset, data, stability, now)
    };
    if let Err(Blocked::Waits(ticket)) = done {
        let inline = if let Item::Inline(octets) = arguments.data.0 { octets.into() } else { Box::default() };
        let data = KeptData { inline, placed: std::mem::take(pieces) };
        let what = AgainWhat::Write { offset, data, stability, before };
        // The list is allocated once, for its capacity.
        pieces.reserve_exact(PIECES_MAX);
        let again = Again::of_transfer(AgainTransfer { opened, what }, asker);
        return Some((opened.waits(ticket).into(), Pending::Again(again)));
    }
    pieces.clear();
    match done {
        Ok(Progress::Later(ticket)) => {
            return Some((opened.waits(ticket).into(), Pending::transfer(Procedure::Write, opened, asker)));
        }
        Ok(Progress::Done(done @ WriteDone { count, committed })) => {
            exports.count(opened.share, TrafficClient::of(asker.peer), Traffic::written(count));
            if let Some((client, now)) = limited {
                let done = Ok((done, exports.volume(&opened).store().write_verifier()));
                let file = WccData { before, after: exports.after(&opened) };
                let answered = AnsweredTransfer::Write { done, file, share: opened.share, client };
                let Some(turn) = answered.limit(exports, now) else {
                    answered.send(reply);
                    return None;
                };
                return Some((turn.into(), Pending::Answered(Answered::Transfer(answered))));
            }
            let exports = &*exports;
            let verifier = exports.volume(&opened).store().write_verifier();
            // As `WriteOk`, with the attributes written from where they are: they are large to move.
            reply.success(|writer| {
                writer.u32(NFS3_OK)?;
                writer.optional(before.as_ref())?;
                writer.optional(exports.after(&opened).as_ref())?;
                writer.u32(count)?;
                writer.value(&stable(committed))?;
                writer.value(&verifier)
            });
        }
        Err(blocked) => {
            let after = exports.after(&opened);
            answer_write(reply, Err(blocked.into()), WccData { before, after });
        }
    }
    None
}

fn answer_write(reply: &mut Reply<'_>, done: Result<(WriteDone, Verifier), FsError>, file: WccData) {
    let results: WriteReply = match done {
        Ok((done, verifier)) => {
            Ok(WriteOk { file, count: done.count, committed: stable(done.committed), verifier })
        }
        Err(error) => Err(failure(error, file)),
    };
    results.send(reply);
}

/// Answers COMMIT. What it returns is answered later.
pub(super) fn commit<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    call: &Call<'_>,
    reply: &mut Reply<'_>,
) -> Option<(Hold, Pending)> {
    let arguments = decode::<CommitArguments<'_>>(call, reply)?;
    let opened = match exports.open(asker, arguments.file) {
        Ok(opened) => opened,
        Err(error) => {
            answer_commit(reply, Err(error), WccData::default());
            return None;
        }
    };
    let before = exports.before_transfer(&opened);
    // Nothing changes, so a read-only export is no obstacle.
    let volume = exports.volume_mut(&opened);
    let done = match volume.commit(opened.object, arguments.offset, arguments.count) {
        Ok(Progress::Done(())) => Ok(volume.store().write_verifier()),
        Ok(Progress::Later(ticket)) => {
            return Some((opened.waits(ticket).into(), Pending::transfer(Procedure::Commit, opened, asker)));
        }
        Err(Blocked::Fails(error)) => Err(error),
        Err(Blocked::Waits(ticket)) => {
            let (offset, count) = (arguments.offset, arguments.count);
            let again = AgainTransfer { opened, what: AgainWhat::Commit { offset, count, before } };
            return Some((opened.waits(ticket).into(), Pending::Again(Again::of_transfer(again, asker))));
        }
    };
    answer_commit(reply, done, WccData { before, after: exports.after(&opened) });
    None
}

fn answer_commit(reply: &mut Reply<'_>, done: Result<Verifier, FsError>, file: WccData) {
    let results: CommitReply = match done {
        Ok(verifier) => Ok(CommitOk { file, verifier }),
        Err(error) => Err(failure(error, file)),
    };
    results.send(reply);
}

/// A READ, WRITE or COMMIT that its store is at.
#[derive(Clone, Copy)]
pub(super) struct Transfer {
    procedure: Procedure,
    opened: ResolvedHandle,
    from: TransferSource,
}

/// Whose octets they are.
#[derive(Clone, Copy)]
struct TransferSource {
    client: TrafficClient,
    /// To the limits of the export, if it has any.
    owner: u128,
}

impl TransferSource {
    fn of(asker: &CallContext<'_>) -> TransferSource {
        TransferSource { client: TrafficClient::of(asker.peer), owner: owner(asker.peer) }
    }
}

impl Transfer {
    /// Whether it is a WRITE.
    pub(super) fn is_write(&self) -> bool {
        self.procedure == Procedure::Write
    }

    /// Whether it is a COMMIT.
    pub(super) fn is_commit(&self) -> bool {
        self.procedure == Procedure::Commit
    }
}

impl Pending {
    fn transfer(procedure: Procedure, opened: ResolvedHandle, asker: &CallContext<'_>) -> Pending {
        Pending::Transfer(Transfer { procedure, opened, from: TransferSource::of(asker) })
    }
}

/// The answer to a WRITE that its store is done with.
pub(super) fn conclude_write<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    Transfer { opened, from, .. }: &Transfer,
    finished: Result<Finished, FsError>,
) -> AnsweredTransfer {
    let verifier = exports.volume(opened).store().write_verifier();
    let done = match finished {
        Ok(Finished::Write(done)) => {
            exports.count(opened.share, from.client, Traffic::written(done.count));
            Ok((done, verifier))
        }
        Ok(_) => Err(FsError::Fault),
        Err(error) => Err(error),
    };
    // As in `finish`.
    let file = WccData { before: None, after: exports.after(opened) };
    AnsweredTransfer::Write { done, file, share: opened.share, client: from.owner }
}

/// Answers what was left for later, and is over now.
pub(super) fn finish<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    ticket: Ticket,
    pending: &Transfer,
    reply: &mut Reply<'_>,
    pieces: &mut Vec<Shared>,
) {
    let opened = &pending.opened;
    let store = exports.volume_mut(opened).store_mut();
    let done = store.finish(ticket, pieces);
    let verifier = store.write_verifier();
    // Others wrote the file meanwhile: what it was before would make a client take all of that for this Call's work.
    let file = WccData { before: None, after: exports.after(opened) };
    let moved = match &done {
        Ok(Finished::Read(done)) => Traffic::read(done.count),
        Ok(Finished::Write(done)) => Traffic::written(done.count),
        _ => Traffic::default(),
    };
    exports.count(opened.share, pending.from.client, moved);
    match (pending.procedure, done) {
        (_, Ok(Finished::Read(done))) => answer_read(reply, Ok(done), &file.after, pieces),
        (_, Ok(Finished::Write(done))) => answer_write(reply, Ok((done, verifier)), file),
        (_, Ok(_)) => answer_commit(reply, Ok(verifier), file),
        (Procedure::Read, Err(error)) => answer_read(reply, Err(error), &file.after, pieces),
        (Procedure::Write, Err(error)) => answer_write(reply, Err(error), file),
        (_, Err(error)) => answer_commit(reply, Err(error), file),
    }
    pieces.clear();
}

/// A READ, WRITE or COMMIT that could not begin, because a step that reads had no answer.
pub(super) struct AgainTransfer {
    opened: ResolvedHandle,
    what: AgainWhat,
}

enum AgainWhat {
    Read { offset: u64, count: u32 },
    Write { offset: u64, data: KeptData, stability: Stability, before: Option<WccAttributes> },
    Commit { offset: u64, count: u32, before: Option<WccAttributes> },
}

/// The data of a WRITE that waits: in one of the two.
struct KeptData {
    inline: Box<[u8]>,
    placed: Vec<Shared>,
}

/// What it came to.
pub(super) enum AnsweredTransfer {
    Read {
        done: Result<ReadDone, FsError>,
        after: PostOpAttributes,
        pieces: Vec<Shared>,
    },
    Write {
        done: Result<(WriteDone, Verifier), FsError>,
        file: WccData,
        /// The place of the export, and whose octets are counted if it has limits.
        share: usize,
        client: u128,
    },
    Commit {
        done: Result<Verifier, FsError>,
        file: WccData,
    },
}

impl AgainTransfer {
    /// Begins it again, for `asker`. `Err`: what it waits for, and what is left to do then.
    pub(super) fn run<S: Store + ?Sized>(
        self,
        exports: &mut ExportTable<S>,
        asker: &CallContext<'_>,
        now: Timestamp,
    ) -> Result<AnsweredTransfer, (WaitsFor, Result<Transfer, AgainTransfer>)> {
        let AgainTransfer { opened, what } = self;
        let from = TransferSource::of(asker);
        let volume = exports.volume_mut(&opened);
        let verifier = volume.store().write_verifier();
        let (user, object) = (&opened.caller, opened.object);
        let later = |procedure, ticket| Err((opened.waits(ticket), Ok(Transfer { procedure, opened, from })));
        let again = |ticket, what| Err((opened.waits(ticket), Err(AgainTransfer { opened, what })));
        match what {
            AgainWhat::Read { offset, count } => {
                let mut pieces = Vec::with_capacity(PIECES_MAX);
                let done = match volume.read(user, object, (offset, count), &mut pieces, now) {
                    Ok(Progress::Done(done)) => Ok(done),
                    Ok(Progress::Later(ticket)) => return later(Procedure::Read, ticket),
                    Err(Blocked::Waits(ticket)) => return again(ticket, what),
                    Err(Blocked::Fails(error)) => Err(error),
                };
                if let Ok(done) = &done {
                    exports.count(opened.share, from.client, Traffic::read(done.count));
                }
                Ok(AnsweredTransfer::Read { done, after: exports.after(&opened), pieces })
            }
            AgainWhat::Write { offset, mut data, stability, before } => {
                let octets = if data.placed.is_empty() {
                    WriteData::Inline(&data.inline)
                } else {
                    WriteData::Placed(&mut data.placed)
                };
                let done = match volume.write(user, object, offset, octets, stability, now) {
                    Ok(Progress::Done(done)) => Ok((done, verifier)),
                    Ok(Progress::Later(ticket)) => return later(Procedure::Write, ticket),
                    Err(Blocked::Waits(ticket)) => {
                        return again(ticket, AgainWhat::Write { offset, data, stability, before });
                    }
                    Err(Blocked::Fails(error)) => Err(error),
                };
                if let Ok((done, _)) = &done {
                    exports.count(opened.share, from.client, Traffic::written(done.count));
                }
                let file = WccData { before, after: exports.after(&opened) };
                Ok(AnsweredTransfer::Write { done, file, share: opened.share, client: from.owner })
            }
            AgainWhat::Commit { offset, count, before } => {
                let done = match volume.commit(object, offset, count) {
                    Ok(Progress::Done(())) => Ok(verifier),
                    Ok(Progress::Later(ticket)) => return later(Procedure::Commit, ticket),
                    Err(Blocked::Waits(ticket)) => return again(ticket, what),
                    Err(Blocked::Fails(error)) => Err(error),
                };
                Ok(AnsweredTransfer::Commit { done, file: WccData { before, after: exports.after(&opened) } })
            }
        }
    }
}

impl AnsweredTransfer {
    /// Takes the octets of a WRITE that was done. Returns what the answer waits for, if it has to.
    pub(super) fn limit<S: Store + ?Sized>(
        &self,
        exports: &mut ExportTable<S>,
        now: Duration,
    ) -> Option<Box<RateTurn>> {
        match self {
            AnsweredTransfer::Write { done: Ok((done, _)), share, client, .. } => {
                exports.limit_write(*share, *client, done.count, now)
            }
            _ => None,
        }
    }

    /// Answers with it.
    pub(super) fn send(self, reply: &mut Reply<'_>) {
        match self {
            AnsweredTransfer::Read { done, after, mut pieces } => {
                let done = done.map(|done| cut_read(done, reply, &mut pieces));
                answer_read(reply, done, &after, &mut pieces);
            }
            AnsweredTransfer::Write { done, file, .. } => answer_write(reply, done, file),
            AnsweredTransfer::Commit { done, file } => answer_commit(reply, done, file),
        }
    }
}

/// Finds the data of a WRITE behind the other arguments, of which perhaps not all have arrived.
pub(super) fn locate_data(arguments: &mut Reader<'_>) -> Result<u32, XdrError> {
    arguments.opaque(HANDLE_LEN_MAX)?;
    // Offset, count, stable, and the data's own length.
    arguments.array::<16>()?;
    arguments.u32()
}

/// Takes the first `len` octets out of where they were placed; what follows is roundup. `None` if there was no
/// memory for them.
#[inline]
pub(super) fn take_placed(placed: &mut Placed, len: u32, pieces: &mut Vec<Shared>) -> Option<()> {
    // In one piece, as most data is.
    if placed.pieces.len() == 1
        && let Some(mut buf) = placed.pieces.pop()
    {
        let is_whole = buf.len() >= len as usize;
        if buf.len() > len as usize {
            buf.set_len(len as usize);
        }
        pieces.push(buf.share());
        return is_whole.then_some(());
    }
    take_pieces(placed, len, pieces)
}

/// As [`take_placed`], of data in any number of pieces.
#[inline(never)]
fn take_pieces(placed: &mut Placed, len: u32, pieces: &mut Vec<Shared>) -> Option<()> {
    if placed.is_missing() {
        return None;
    }
    let mut left = len as usize;
    for mut buf in placed.pieces.drain(..) {
        if buf.len() > left {
            buf.set_len(left);
        }
        left -= buf.len();
        pieces.push(buf.share());
    }
    (left == 0).then_some(())
}

/// What READLINK ends with.
pub(super) struct LinkRead {
    path: Result<Vec<u8>, FsError>,
    attributes: PostOpAttributes,
}

pub(super) fn readlink<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &ReadlinkArguments<'_>,
    now: Timestamp,
) -> Result<LinkRead, WaitsFor> {
    let (path, attributes) = exports.with_object(asker, arguments.symlink, |exports, opened, seen| {
        let mut space = [0; LINK_SPACE];
        exports.volume(opened).read_link(seen, &mut space, now).map(<[u8]>::to_vec)
    })?;
    Ok(LinkRead { path, attributes })
}

impl LinkRead {
    /// Answers with it. A path is not in registered memory, so it is copied if it must be; that is rare: clients ask for it
    /// inline, or in the Reply chunk.
    pub(super) fn send<S: Store + ?Sized>(&self, exports: &ExportTable<S>, reply: &mut Reply<'_>) {
        let attributes = self.attributes;
        let path = match &self.path {
            Ok(path) => &path[..],
            Err(error) => {
                let failed: ReadlinkReply<'_> = Err(failure(*error, attributes));
                return failed.send(reply);
            }
        };
        let len = path.len() as u32;
        let item = match reply.item(len) {
            Placement::Inline => Item::Inline(path),
            Placement::Reduced => {
                let has_room = reply.has_results_room(len);
                let Some(mut buf) = exports.pool.take_len(path.len()).filter(|_| has_room) else {
                    reply.forget_results();
                    let failed: ReadlinkReply<'_> = Err(failure(FsError::Busy, attributes));
                    return failed.send(reply);
                };
                buf.copy_from_slice(path);
                reply.piece(buf.share());
                Item::Reduced { index: 0, len }
            }
        };
        let results: ReadlinkReply<'_> = Ok(ReadlinkOk { attributes, path: Path(item) });
        results.send(reply);
    }
}

/// Answers SYMLINK, whose path may have been placed.
pub(super) fn symlink_call<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    call: &mut Call<'_>,
    reply: &mut Reply<'_>,
    now: Timestamp,
) -> Outcome {
    let Some(mut arguments) = decode::<SymlinkArguments<'_>>(call, reply) else { return Outcome::Done };
    let mut buf = [0; STRING_LEN_CAP as usize];
    if let Item::Reduced { index, len } = arguments.path.0 {
        let Some(path) = gather(call.placed(index), len, &mut buf) else {
            let attributes = WccData::default();
            let failed: Created = Err(failure(FsError::Busy, attributes));
            failed.send(reply);
            return Outcome::Done;
        };
        arguments.path = Path(Item::Inline(path));
    }
    let again = || Again::new(Procedure::Symlink, &arguments, asker);
    let begun = symlink(exports, asker, &arguments, now);
    exports.answer(begun, again, Waiter::of(Program::Nfs, call), reply)
}

/// Runs SYMLINK, whose path is inline.
pub(super) fn symlink<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &SymlinkArguments<'_>,
    now: Timestamp,
) -> Begun {
    make(exports, asker, &arguments.place, |volume, user, at| {
        let Item::Inline(path) = arguments.path.0 else { return Err(FsError::Fault.into()) };
        volume.make_symlink(user, at, path, &words::update(&arguments.attributes), now)
    })
}

/// Copies `len` placed octets together. `None` if there was no memory to place them in.
fn gather<'b>(placed: &Placed, len: u32, buf: &'b mut [u8]) -> Option<&'b [u8]> {
    if placed.is_missing() {
        return None;
    }
    let buf = buf.get_mut(..len as usize)?;
    let mut octets = placed.pieces.iter().flat_map(|piece| piece.iter());
    for place in &mut *buf {
        *place = *octets.next()?;
    }
    Some(buf)
}
