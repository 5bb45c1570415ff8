//! Procedures with a DDP-eligible item, READ, WRITE, READLINK, SYMLINK; and COMMIT. A store may finish READ, WRITE
//! and COMMIT later.

use stag_memory::Shared;
use stag_rpc::{Call, Placed, Placement, Reply};
use stag_wire::nfs3::{
    CommitArguments, CommitOk, CommitReply, HANDLE_LEN_MAX, Path, PostOpAttributes, Procedure, ReadArguments,
    ReadReply, ReadlinkArguments, ReadlinkOk, ReadlinkReply, STRING_LEN_CAP, SymlinkArguments, Verifier,
    WccData, WriteArguments, WriteOk, WriteReply,
};
use stag_wire::xdr::{Item, Reader, XdrError};

use super::nfs::{Answer, Created, TRANSFER_LEN_MAX, make};
use super::words::{self, failure, stability, stable};
use super::{CallContext, ExportTable, ResolvedHandle, decode};
use stag_vfs::{Finished, LINK_SPACE, Progress, ReadDone, Store, Ticket, WriteData, WriteDone};
use stag_vfs::{FsError, Timestamp};

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
) -> Option<(Ticket, Transfer)> {
    let arguments = decode::<ReadArguments<'_>>(call, reply)?;
    let mut count = arguments.count.min(TRANSFER_LEN_MAX);
    let opened = match exports.open(asker, arguments.file) {
        Ok(opened) => opened,
        Err(error) => {
            answer_read(reply, Err(error), || None, pieces);
            return None;
        }
    };
    let volume = exports.volume_mut(&opened);
    if volume.profile().can.reads_take_memory {
        count = reply.results_room(count);
    }
    // A Long Reply has a copy of what lies in memory, too.
    count = reply.item_room(count);
    let done = match volume.read(&opened.caller, opened.object, (arguments.offset, count), pieces, now) {
        Ok(Progress::Done(done)) if pieces.len() > 1 => Ok(cut_read(done, reply, pieces)),
        Ok(Progress::Done(done)) => Ok(done),
        Ok(Progress::Later(ticket)) => {
            reply.expect_results(count);
            return Some((ticket, Transfer { procedure: Procedure::Read, opened }));
        }
        Err(blocked) => Err(blocked.into()),
    };
    let volume = exports.volume(&opened);
    let after = || {
        let seen = volume.store().stat(opened.object).ok()?;
        Some(words::attributes(&seen, volume.profile().fsid))
    };
    answer_read(reply, done, after, pieces);
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

/// `attributes` is a closure, so that they are written where they are needed: they are large.
#[inline(always)]
fn answer_read(
    reply: &mut Reply<'_>,
    done: Result<ReadDone, FsError>,
    attributes: impl Fn() -> PostOpAttributes,
    pieces: &mut Vec<Shared>,
) {
    let done = match done {
        Ok(done) => done,
        Err(error) => {
            let failed: ReadReply<'_> = Err(failure(error, attributes()));
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
                writer.optional(attributes().as_ref())?;
                writer.u32(done.count)?;
                writer.bool(done.eof)?;
                writer.eligible_opaque_reduced(done.count).map(drop)
            });
        }
        Placement::Inline => {
            // As `ReadOk` would, if the data were in one piece.
            reply.success(|writer| {
                writer.u32(NFS3_OK)?;
                writer.optional(attributes().as_ref())?;
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
) -> Option<(Ticket, Transfer)> {
    let arguments = decode::<WriteArguments<'_>>(call, reply)?;
    let mut missing = false;
    let data = match arguments.data.0 {
        Item::Inline(octets) => WriteData::Inline(octets),
        Item::Reduced { index, len } => {
            missing = take_placed(call.placed(index), len, pieces).is_none();
            WriteData::Placed(pieces)
        }
    };
    let opened = match exports.open(asker, arguments.file) {
        Ok(opened) => opened,
        Err(error) => {
            pieces.clear();
            answer_write(reply, Err(error), WccData::default());
            return None;
        }
    };
    let before = exports.before_transfer(&opened);
    let done = if exports.is_read_only(&opened) {
        Err(FsError::ReadOnly.into())
    } else if arguments.count as usize != arguments.data.0.len() {
        Err(FsError::Invalid.into())
    } else if missing {
        // There was no memory to place it in, because of what else is under way: not for good.
        Err(FsError::Busy.into())
    } else {
        let (offset, stability) = (arguments.offset, stability(arguments.stable));
        exports.volume_mut(&opened).write(&opened.caller, opened.object, offset, data, stability, now)
    };
    pieces.clear();
    match done {
        Ok(Progress::Later(ticket)) => {
            return Some((ticket, Transfer { procedure: Procedure::Write, opened }));
        }
        Ok(Progress::Done(WriteDone { count, committed })) => {
            let volume = exports.volume(&opened);
            let (store, fsid) = (volume.store(), volume.profile().fsid);
            let verifier = store.write_verifier();
            // As `WriteOk`, with the attributes written from where they are: they are large to move.
            reply.success(|writer| {
                writer.u32(NFS3_OK)?;
                writer.optional(before.as_ref())?;
                let after = store.stat(opened.object).ok();
                writer.optional(after.map(|found| words::attributes(&found, fsid)).as_ref())?;
                writer.u32(count)?;
                writer.value(&stable(committed))?;
                writer.value(&verifier)
            });
        }
        Err(blocked) => {
            let after = exports.attributes(&opened);
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
) -> Option<(Ticket, Transfer)> {
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
            return Some((ticket, Transfer { procedure: Procedure::Commit, opened }));
        }
        Err(blocked) => Err(blocked.into()),
    };
    answer_commit(reply, done, WccData { before, after: exports.attributes(&opened) });
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
}

impl Transfer {
    /// The place of its store.
    pub(super) fn share(&self) -> usize {
        self.opened.share
    }
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
    let fsid = exports.fsid(opened);
    let store = exports.volume_mut(opened).store_mut();
    let done = store.finish(ticket, pieces);
    let verifier = store.write_verifier();
    let after = store.stat_after(opened.object).ok().map(|found| words::attributes(&found, fsid));
    // Others wrote the file meanwhile: what it was before would make a client take all of that for this Call's work.
    let file = WccData { before: None, after };
    match (pending.procedure, done) {
        (_, Ok(Finished::Read(done))) => answer_read(reply, Ok(done), || after, pieces),
        (_, Ok(Finished::Write(done))) => answer_write(reply, Ok((done, verifier)), file),
        (_, Ok(_)) => answer_commit(reply, Ok(verifier), file),
        (Procedure::Read, Err(error)) => answer_read(reply, Err(error), || after, pieces),
        (Procedure::Write, Err(error)) => answer_write(reply, Err(error), file),
        (_, Err(error)) => answer_commit(reply, Err(error), file),
    }
    pieces.clear();
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
fn take_placed(placed: &mut Placed, len: u32, pieces: &mut Vec<Shared>) -> Option<()> {
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

/// Answers READLINK. A path is not in registered memory, so it is copied if it must be; that is rare: clients
/// ask for it inline, or in the Reply chunk.
pub(super) fn readlink<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    call: &Call<'_>,
    reply: &mut Reply<'_>,
    now: Timestamp,
) {
    let Some(arguments) = decode::<ReadlinkArguments<'_>>(call, reply) else { return };
    let opened = match exports.open(asker, arguments.symlink) {
        Ok(opened) => opened,
        Err(error) => {
            let failed: ReadlinkReply<'_> = Err(failure(error, None));
            return failed.send(reply);
        }
    };
    let mut space = [0; LINK_SPACE];
    let volume = exports.volume(&opened);
    let path = volume.stat(opened.object).and_then(|seen| volume.read_link(&seen, &mut space, now));
    let attributes = exports.attributes(&opened);
    let path = match path {
        Ok(path) => path,
        Err(blocked) => {
            let failed: ReadlinkReply<'_> = Err(failure(blocked.into(), attributes));
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

/// Runs SYMLINK. `None`: it could not be decoded, and is answered.
pub(super) fn symlink<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    call: &mut Call<'_>,
    reply: &mut Reply<'_>,
    now: Timestamp,
) -> Option<Created> {
    let arguments = decode::<SymlinkArguments<'_>>(call, reply)?;
    let mut buf = [0; STRING_LEN_CAP as usize];
    let path = match arguments.path.0 {
        Item::Inline(octets) => Some(octets),
        Item::Reduced { index, len } => gather(call.placed(index), len, &mut buf),
    };
    Some(make(exports, asker, &arguments.place, |volume, user, at| {
        let path = path.ok_or(FsError::Busy)?;
        volume.make_symlink(user, at, path, &words::update(&arguments.attributes), now)
    }))
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
