//! READDIR and READDIRPLUS: as many entries as the client's limits, and the room for its Reply, hold.

use std::cell::Cell;

use stag_rpc::{Call, Reply};
use stag_wire::nfs3::{
    Entry, EntryPlus, Failure, Handle, Listing, Name, ReaddirArguments, ReaddirReply, ReaddirplusArguments,
    Status, Verifier,
};
use stag_wire::xdr::{Overflow, Writer};

use super::words::{self, failure};
use super::{CallContext, ExportTable, ResolvedHandle, decode};
use stag_vfs::{ListStart, Listed, ObjectStat, Store, Timestamp};

/// The most octets of one list.
const LIST_LEN_MAX: u32 = 1 << 20;

pub(super) fn readdir<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    call: &Call<'_>,
    reply: &mut Reply<'_>,
    now: Timestamp,
) {
    let Some(arguments) = decode::<ReaddirArguments<'_>>(call, reply) else { return };
    let request = Request {
        directory: arguments.directory,
        cookie: arguments.cookie,
        verifier: arguments.verifier,
        len_max: arguments.count,
        dircount: u32::MAX,
        plus: false,
    };
    list(exports, asker, &request, reply, now);
}

pub(super) fn readdirplus<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    call: &Call<'_>,
    reply: &mut Reply<'_>,
    now: Timestamp,
) {
    let Some(arguments) = decode::<ReaddirplusArguments<'_>>(call, reply) else { return };
    let request = Request {
        directory: arguments.directory,
        cookie: arguments.cookie,
        verifier: arguments.verifier,
        len_max: arguments.maxcount,
        dircount: arguments.dircount,
        plus: true,
    };
    list(exports, asker, &request, reply, now);
}

/// What both procedures ask for.
struct Request<'a> {
    directory: Handle<'a>,
    cookie: u64,
    verifier: Verifier,
    len_max: u32,
    dircount: u32,
    plus: bool,
}

fn list<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    request: &Request<'_>,
    reply: &mut Reply<'_>,
    now: Timestamp,
) {
    let opened = exports.open(asker, request.directory);
    let (opened, seen) = match opened.and_then(|opened| Ok((opened, exports.stat(&opened)?))) {
        Ok(found) => found,
        Err(error) => {
            let failed: ReaddirReply<'_> = Err(failure(error, None));
            return reply.success(|writer| writer.value(&failed));
        }
    };
    let exports = &*exports;
    // A Reply chunk that is hardly larger, or that there is no memory for, is of no use: the list is cut to what fits.
    let long_room = reply.long_room();
    let is_inline = Cell::new(true);
    reply.success(|writer| {
        let is_cramped = is_inline.take() && writer.remaining() < long_room;
        let cut = encode(writer, exports, (&opened, &seen), request, now)?;
        // If only the room inline cuts the list short, it belongs into the Reply chunk.
        if cut && is_cramped { Err(Overflow) } else { Ok(()) }
    });
}

/// Writes results. `true`: they hold fewer entries than the client would take, because there is no room.
fn encode<S: Store + ?Sized>(
    writer: &mut Writer<'_>,
    exports: &ExportTable<S>,
    (opened, seen): (&ResolvedHandle, &ObjectStat),
    request: &Request<'_>,
    now: Timestamp,
) -> Result<bool, Overflow> {
    let mark = writer.mark();
    let attributes = Some(exports.shown(opened, seen));
    let volume = exports.volume(opened);
    // Both procedures fail with the same fields.
    let fail = |writer: &mut Writer<'_>, status: Status| {
        writer.rewind(mark);
        let failed: ReaddirReply<'_> = Err(Failure { status, attributes });
        writer.value(&failed)
    };
    let verifier = match volume.list_verifier(seen) {
        Ok(verifier) => verifier,
        Err(error) => return fail(writer, words::status(error)).map(|()| false),
    };
    let len_max = request.len_max.min(LIST_LEN_MAX);
    let mut list = Listing::begin(writer, &attributes, verifier, len_max, request.dircount)?;
    let start = ListStart { cookie: request.cookie, attributes: request.plus };
    let listed = volume.list(&opened.caller, seen, start, request.verifier, now, &mut |entry| {
        push(&mut list, exports, opened, &entry, request.plus)
    });
    let cut = list.is_cut();
    match listed {
        Ok(false) if list.is_empty() => fail(writer, Status::TooSmall)?,
        Ok(eof) => list.finish(eof)?,
        Err(blocked) => fail(writer, words::status(blocked.into()))?,
    }
    Ok(cut)
}

fn push<S: Store + ?Sized>(
    list: &mut Listing<'_, '_>,
    exports: &ExportTable<S>,
    opened: &ResolvedHandle,
    entry: &Listed<'_>,
    plus: bool,
) -> bool {
    let (fileid, name, cookie) = (entry.object.fileid, Name(entry.name), entry.cookie);
    if plus {
        let handle = exports.seal(opened, entry.object);
        let attributes = entry.attributes.map(|found| exports.shown(opened, &found));
        // What cannot be reached has no handle: clients look it up, and hear why.
        let handle = attributes.map(|_| Handle(&handle[..]));
        list.push(&EntryPlus { fileid, name, cookie, attributes, handle })
    } else {
        list.push(&Entry { fileid, name, cookie })
    }
}
