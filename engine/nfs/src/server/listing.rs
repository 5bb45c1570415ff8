//! READDIR and READDIRPLUS: as many entries as the client's limits, and the room for its Reply, hold.

use std::cell::Cell;

use stag_rpc::{Call, Outcome, Reply};
use stag_wire::nfs3::{
    Entry, EntryPlus, Failure, Handle, Listing, Name, Procedure, ReaddirArguments, ReaddirReply,
    ReaddirplusArguments, Status, Verifier,
};
use stag_wire::xdr::{Decode, Encode, Overflow, Writer};

use super::rerun::Again;
use super::waiting::{Pending, Program, Waiter, WaitsFor};
use super::words::{self, failure};
use super::{CallContext, ExportTable, ResolvedHandle, decode};
use stag_vfs::{Blocked, ListStart, Listed, ObjectStat, Store, Ticket, Timestamp};

/// The least octets of an entry in a list.
const ENTRY_LEN_MIN: usize = 24;

/// The most octets of one list.
const LIST_LEN_MAX: u32 = 1 << 20;

/// Octets more than there are inline for which a list does not go by Reply chunk. RPC's header of the Reply has fewer.
const HARDLY_MORE: usize = 128;

/// Answers READDIR or READDIRPLUS, whose arguments are `A`.
pub(super) fn list_call<'a, A, S>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    call: &Call<'a>,
    reply: &mut Reply<'_>,
    now: Timestamp,
) -> Outcome
where
    A: Decode<'a> + Encode + 'a,
    for<'r> Request<'r>: From<&'r A>,
    S: Store + ?Sized,
{
    let Some(arguments) = decode::<A>(call, reply) else { return Outcome::Done };
    match list(exports, asker, &Request::from(&arguments), reply, now) {
        Ok(()) => Outcome::Done,
        Err(waits) => {
            let procedure = Procedure::from_number(call.procedure).unwrap_or(Procedure::Readdir);
            let again = Again::new(procedure, &arguments, asker);
            exports.keep(waits, Waiter::of(Program::Nfs, call), Pending::Again(again))
        }
    }
}

impl<'r> From<&'r ReaddirArguments<'_>> for Request<'r> {
    fn from(arguments: &'r ReaddirArguments<'_>) -> Request<'r> {
        Request {
            directory: arguments.directory,
            cookie: arguments.cookie,
            verifier: arguments.verifier,
            len_max: arguments.count,
            dircount: u32::MAX,
            plus: false,
        }
    }
}

impl<'r> From<&'r ReaddirplusArguments<'_>> for Request<'r> {
    fn from(arguments: &'r ReaddirplusArguments<'_>) -> Request<'r> {
        Request {
            directory: arguments.directory,
            cookie: arguments.cookie,
            verifier: arguments.verifier,
            len_max: arguments.maxcount,
            dircount: arguments.dircount,
            plus: true,
        }
    }
}

/// What both procedures ask for.
pub(super) struct Request<'a> {
    directory: Handle<'a>,
    cookie: u64,
    verifier: Verifier,
    len_max: u32,
    dircount: u32,
    plus: bool,
}

/// Finds out whether a listing can be written: whether the store has all that may be shown.
pub(super) fn probe<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    request: &Request<'_>,
    now: Timestamp,
) -> Result<(), WaitsFor> {
    let Ok(opened) = exports.open(asker, request.directory) else { return Ok(()) };
    let Ok(seen) = opened.settle(exports.stat(&opened))? else { return Ok(()) };
    let start = ListStart { cookie: request.cookie, attributes: request.plus };
    // More than a Reply holds.
    let mut left = request.len_max.min(LIST_LEN_MAX) as usize / ENTRY_LEN_MIN + 1;
    let listed =
        exports.volume(&opened).list(&opened.caller, &seen, start, request.verifier, now, &mut |_| {
            left -= 1;
            left > 0
        });
    opened.settle(listed).map(|_| ())
}

/// Answers with a listing, unless something in it has to be waited for.
pub(super) fn list<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    request: &Request<'_>,
    reply: &mut Reply<'_>,
    now: Timestamp,
) -> Result<(), WaitsFor> {
    let opened = exports.open(asker, request.directory);
    let found = match opened {
        Ok(opened) => opened.settle(exports.stat(&opened))?.map(|seen| (opened, seen)),
        Err(error) => Err(error),
    };
    let (opened, seen) = match found {
        Ok(found) => found,
        Err(error) => {
            let failed: ReaddirReply<'_> = Err(failure(error, None));
            reply.success(|writer| writer.value(&failed));
            return Ok(());
        }
    };
    let exports = &*exports;
    // A list that the room inline may cut short is written once, where there is more room. It goes inline if it is short.
    let room_wanted = reply.long_room().min(request.len_max as usize);
    let waits = Cell::new(None);
    reply.success(|writer| {
        if writer.remaining() + HARDLY_MORE < room_wanted {
            return Err(Overflow);
        }
        encode(writer, exports, (&opened, &seen), request, now, &waits)
    });
    match waits.take() {
        None => Ok(()),
        Some(ticket) => {
            reply.forget_results();
            Err(opened.waits(ticket))
        }
    }
}

/// Writes results: as many entries as the client takes and there is room for.
fn encode<S: Store + ?Sized>(
    writer: &mut Writer<'_>,
    exports: &ExportTable<S>,
    (opened, seen): (&ResolvedHandle, &ObjectStat),
    request: &Request<'_>,
    now: Timestamp,
    waits: &Cell<Option<Ticket>>,
) -> Result<(), Overflow> {
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
        Err(error) => return fail(writer, words::status(error)),
    };
    let len_max = request.len_max.min(LIST_LEN_MAX);
    let mut list = Listing::begin(writer, &attributes, verifier, len_max, request.dircount)?;
    let start = ListStart { cookie: request.cookie, attributes: request.plus };
    let listed = volume.list(&opened.caller, seen, start, request.verifier, now, &mut |entry| {
        push(&mut list, exports, opened, &entry, request.plus)
    });
    match listed {
        Ok(false) if list.is_empty() => fail(writer, Status::TooSmall),
        Ok(eof) => list.finish(eof),
        Err(Blocked::Fails(error)) => fail(writer, words::status(error)),
        // These results are forgotten.
        Err(Blocked::Waits(ticket)) => {
            waits.set(Some(ticket));
            fail(writer, Status::Jukebox)
        }
    }
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
