//! Procedures with a DDP-eligible item: READ, WRITE, READLINK, SYMLINK.

use stag_memory::Shared;
use stag_rpc::{Call, Placed, Placement, Reply};
use stag_wire::nfs3::{
    Data, Failure, HANDLE_LEN_MAX, Path, ReadArguments, ReadOk, ReadReply, ReadlinkArguments, ReadlinkOk,
    ReadlinkReply, STRING_LEN_CAP, Status, SymlinkArguments, Time, WriteArguments, WriteOk, WriteReply,
};
use stag_wire::xdr::{Error, Item, Reader};

use super::nfs::{Answer, Made, TRANSFER_LEN_MAX, make};
use super::{Asker, Exports, decode};
use crate::store::{Store, WriteData};

/// The status in front of successful results.
const NFS3_OK: u32 = 0;

/// Answers READ: the stored pages themselves go to the Write chunk, if there is one.
pub(super) fn read<S: Store>(
    exports: &mut Exports<S>,
    asker: &Asker<'_>,
    call: &Call<'_>,
    reply: &mut Reply<'_>,
    pieces: &mut Vec<Shared>,
    now: Time,
) {
    let Some(arguments) = decode::<ReadArguments<'_>>(call, reply) else { return };
    let count = arguments.count.min(TRANSFER_LEN_MAX);
    let (done, attributes) = exports.look(asker, arguments.file, |exports, opened| {
        let store = exports.store_mut(opened);
        store.read(&opened.caller, opened.object, arguments.offset, count, pieces, now)
    });
    let done = match done {
        Ok(done) => done,
        Err(status) => {
            let failed: ReadReply<'_> = Err(Failure { status, attributes });
            failed.send(reply);
            return;
        }
    };
    match reply.item(done.count) {
        Placement::Reduced => {
            pieces.drain(..).for_each(|piece| reply.piece(piece));
            let data = Data(Item::Reduced { index: 0, len: done.count });
            let results: ReadReply<'_> = Ok(ReadOk { attributes, count: done.count, eof: done.eof, data });
            results.send(reply);
        }
        Placement::Inline => {
            // As `ReadOk` would, if the data were in one piece.
            reply.success(|writer| {
                writer.u32(NFS3_OK)?;
                writer.value(&attributes)?;
                writer.u32(done.count)?;
                writer.bool(done.eof)?;
                writer.opaque_pieces(done.count, pieces.iter().map(|piece| &piece[..]))
            });
            pieces.clear();
        }
    }
}

/// Answers WRITE: the very buffers that the data was placed in become the file's pages.
pub(super) fn write<S: Store>(
    exports: &mut Exports<S>,
    asker: &Asker<'_>,
    call: &mut Call<'_>,
    reply: &mut Reply<'_>,
    pieces: &mut Vec<Shared>,
    now: Time,
) {
    let Some(arguments) = decode::<WriteArguments<'_>>(call, reply) else { return };
    let mut missing = false;
    let data = match arguments.data.0 {
        Item::Inline(octets) => WriteData::Inline(octets),
        Item::Reduced { index, len } => {
            missing = take_placed(call.placed(index), len, pieces).is_none();
            WriteData::Placed(pieces)
        }
    };
    let (done, file) = exports.change(asker, arguments.file, |exports, opened| {
        let store = exports.store_mut(opened);
        if arguments.count as usize != arguments.data.0.len() {
            return Err(Status::Inval);
        }
        if missing {
            // There was no memory to place it in: for good, or because of what else is under way.
            let is_full = store.usage().bytes_free < u64::from(arguments.count);
            return Err(if is_full { Status::NoSpc } else { Status::Jukebox });
        }
        let (offset, stable) = (arguments.offset, arguments.stable);
        let done = store.write(&opened.caller, opened.object, offset, data, stable, now)?;
        Ok((done, store.write_verifier()))
    });
    pieces.clear();
    let results: WriteReply = match done {
        Ok((done, verifier)) => Ok(WriteOk { file, count: done.count, committed: done.committed, verifier }),
        Err(status) => Err(Failure { status, attributes: file }),
    };
    results.send(reply);
}

/// Finds the data of a WRITE behind the other arguments, of which perhaps not all have arrived.
pub(super) fn locate_data(arguments: &mut Reader<'_>) -> Result<u32, Error> {
    arguments.opaque(HANDLE_LEN_MAX)?;
    // Offset, count, stable, and the data's own length.
    arguments.array::<16>()?;
    arguments.u32()
}

/// Takes the first `len` octets out of where they were placed; what follows is roundup. `None` if there was no
/// memory for them.
fn take_placed(placed: &mut Placed, len: u32, pieces: &mut Vec<Shared>) -> Option<()> {
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
pub(super) fn readlink<S: Store>(
    exports: &mut Exports<S>,
    asker: &Asker<'_>,
    call: &Call<'_>,
    reply: &mut Reply<'_>,
    now: Time,
) {
    let Some(arguments) = decode::<ReadlinkArguments<'_>>(call, reply) else { return };
    let opened = match exports.open(asker, arguments.symlink) {
        Ok(opened) => opened,
        Err(status) => {
            let failed: ReadlinkReply<'_> = Err(Failure { status, attributes: None });
            return failed.send(reply);
        }
    };
    let path = exports.store(&opened).read_link(&opened.caller, opened.object, now);
    let attributes = exports.attributes(&opened);
    let path = match path {
        Ok(path) => path,
        Err(status) => {
            let failed: ReadlinkReply<'_> = Err(Failure { status, attributes });
            return failed.send(reply);
        }
    };
    let len = path.len() as u32;
    let item = match reply.item(len) {
        Placement::Inline => Item::Inline(path),
        Placement::Reduced => {
            let Some(mut buf) = exports.pool.take_len(path.len()) else { return reply.system_error() };
            buf.copy_from_slice(path);
            reply.piece(buf.share());
            Item::Reduced { index: 0, len }
        }
    };
    let results: ReadlinkReply<'_> = Ok(ReadlinkOk { attributes, path: Path(item) });
    results.send(reply);
}

/// Answers SYMLINK.
pub(super) fn symlink<S: Store>(
    exports: &mut Exports<S>,
    asker: &Asker<'_>,
    call: &mut Call<'_>,
    reply: &mut Reply<'_>,
    now: Time,
) {
    let Some(arguments) = decode::<SymlinkArguments<'_>>(call, reply) else { return };
    let mut buf = [0; STRING_LEN_CAP as usize];
    let path = match arguments.path.0 {
        Item::Inline(octets) => Some(octets),
        Item::Reduced { index, len } => gather(call.placed(index), len, &mut buf),
    };
    let made: Made = make(exports, asker, arguments.place.directory, |store, opened| {
        let path = path.ok_or(Status::Jukebox)?;
        let (name, set) = (arguments.place.name.0, &arguments.attributes);
        store.make_symlink(&opened.caller, opened.object, name, path, set, now)
    });
    made.send(reply);
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
