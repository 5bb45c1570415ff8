//! NFS version 3: the procedures. READ and WRITE are in `transfer`, READDIR and READDIRPLUS in `listing`.

use std::os::fd::RawFd;
use std::time::Duration;

use stag_memory::Shared;
use stag_rpc::{Call, Home, Outcome, Procedure as Bound, Repeat, Reply, Service, Token};
use stag_wire::nfs3::{
    self, AccessArguments, AccessOk, AccessReply, CreateArguments, CreateOk, CreateReply, DirectoryName,
    Failure, FsinfoArguments, FsinfoOk, FsinfoReply, FsstatArguments, FsstatOk, FsstatReply,
    GetattrArguments, GetattrOk, GetattrReply, Handle, LinkArguments, LinkOk, LinkReply, LookupArguments,
    LookupOk, LookupReply, MkdirArguments, MknodArguments, MknodData, PathconfArguments, PathconfOk,
    PathconfReply, PostOpAttributes, Procedure, RemoveArguments, RemoveOk, RemoveReply, RenameArguments,
    RenameOk, RenameReply, RmdirArguments, SetattrArguments, SetattrOk, SetattrReply, Time, WccData, access,
    properties,
};
use stag_wire::xdr::Encode;

use super::listing::{readdir, readdirplus};
use super::transfer::{commit, locate_data, read, readlink, symlink, write};
use super::waiting::{Changed, Pending, Program};
use super::words::{self, failure};
use super::{CallContext, ExportTable, ResolvedHandle, SharedExports, TimeOfDay, decode};
use crate::binding;
use crate::handle::HANDLE_LEN;
use stag_vfs::{
    ChangeStep, EntryName, FsError, ObjectStat, Progress, Special, Store, Timestamp, UserIdentity, Volume,
};

/// The most octets that one READ or WRITE moves.
pub const TRANSFER_LEN_MAX: u32 = 1 << 20;

/// What READDIR and READDIRPLUS should ask for, in octets.
const LIST_LEN_PREFERRED: u32 = 1 << 16;

/// Pieces that the data of a READ can be in: all pages in different places, and one more where the READ
/// begins within a page.
const PIECES_MAX: usize = TRANSFER_LEN_MAX as usize / 4096 + 1;

/// The service NFS version 3.
pub struct Nfs<S: Store + ?Sized> {
    exports: SharedExports<S>,
    time: TimeOfDay,
    /// For the data of the Call in hand. Allocated once.
    pub(super) pieces: Vec<Shared>,
}

/// The binding, in the engine's terms.
static BOUND: [Bound; Procedure::COUNT] = {
    let mut bound = [Bound::plain(""); Procedure::COUNT];
    let mut index = 0;
    while index < bound.len() {
        let binding = &binding::NFS3[index];
        bound[index] = Bound {
            name: binding.name,
            eligible_arguments: binding.eligible_arguments,
            eligible_results: binding.eligible_results,
            repeat: if binding.idempotent { Repeat::Harmless } else { Repeat::Harmful },
            locate: None,
        };
        index += 1;
    }
    // As other servers do: a WRITE that was delayed must not undo a later one.
    let write = &mut bound[Procedure::Write as usize];
    write.repeat = Repeat::Untimely;
    write.locate = Some(locate_data);
    bound
};

impl<S: Store + ?Sized> Nfs<S> {
    pub(super) fn new(exports: SharedExports<S>, time: TimeOfDay) -> Nfs<S> {
        Nfs { exports, time, pieces: Vec::with_capacity(PIECES_MAX) }
    }

    /// What is served.
    #[must_use]
    pub fn exports(&self) -> &SharedExports<S> {
        &self.exports
    }
}

impl<S: Store + ?Sized> Service for Nfs<S> {
    fn program(&self) -> u32 {
        nfs3::PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        (nfs3::VERSION, nfs3::VERSION)
    }

    fn procedure(&self, _: u32, procedure: u32) -> Option<&'static Bound> {
        BOUND.get(usize::try_from(procedure).ok()?)
    }

    #[inline]
    fn home(&self, call: &Call<'_>) -> Home {
        let writes = match Procedure::from_number(call.procedure) {
            // It has to hear of what was lost where the data was written.
            Some(Procedure::Commit) => true,
            Some(procedure) => BOUND[procedure as usize].repeat != Repeat::Harmless,
            None => false,
        };
        self.exports.borrow().home_of_object(call, writes)
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        let now = self.time.at(call.now());
        let asker = CallContext::of(call);
        let mut exports = self.exports.borrow_mut();
        // The engine calls only what `procedure` knows.
        let Some(procedure) = Procedure::from_number(call.procedure) else {
            reply.system_error();
            return Outcome::Done;
        };
        let later = match procedure {
            Procedure::Read => read(&mut exports, &asker, call, reply, &mut self.pieces, now),
            Procedure::Write => write(&mut exports, &asker, call, reply, &mut self.pieces, now),
            Procedure::Commit => commit(&mut exports, &asker, call, reply),
            _ => {
                let outcome = dispatch(procedure, &mut exports, &asker, call, reply, now);
                ExportTable::<S>::refuse_for_memory(reply);
                exports.tell_refused(reply);
                return outcome;
            }
        };
        ExportTable::<S>::refuse_for_memory(reply);
        exports.tell_refused(reply);
        let Some((ticket, transfer)) = later else { return Outcome::Done };
        let token = call.token();
        exports.waiting.add(transfer.share(), ticket, Program::Nfs, token, Pending::Transfer(transfer));
        Outcome::Later(token)
    }

    fn poll_later(&mut self, now: Duration) -> Option<Token> {
        self.exports.borrow_mut().poll_later(Program::Nfs, now)
    }

    fn finish(&mut self, token: Token, reply: &mut Reply<'_>) {
        self.exports.borrow_mut().finish(token, reply, &mut self.pieces);
    }

    fn abandoned(&mut self, token: Token) {
        self.exports.borrow_mut().abandon(token, &mut self.pieces);
    }

    fn give_back(&mut self) {
        // Files have what clients of other reactors wrote.
        self.exports.borrow_mut().give_back();
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.extend(self.exports.borrow().shares.iter().filter_map(|(_, volume)| volume.store().descriptor()));
    }

    fn next_timeout(&self) -> Option<Duration> {
        let is_busy = self.exports.borrow().shares.iter().any(|(_, volume)| volume.store().is_busy());
        is_busy.then_some(Duration::ZERO)
    }
}

/// Answers everything but READ, WRITE and COMMIT.
fn dispatch<S: Store + ?Sized>(
    procedure: Procedure,
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    call: &mut Call<'_>,
    reply: &mut Reply<'_>,
    now: Timestamp,
) -> Outcome {
    /// Decodes, runs, encodes.
    macro_rules! answer {
        ($run:ident) => {
            if let Some(arguments) = decode(call, reply) {
                let results = $run(exports, asker, &arguments, now);
                results.send(reply);
            }
        };
    }
    /// Decodes, and runs what changes something.
    macro_rules! change {
        ($run:ident, $kind:ident) => {
            decode(call, reply).map(|arguments| Changed::$kind($run(exports, asker, &arguments, now)))
        };
    }
    let changed = match procedure {
        Procedure::Setattr => change!(setattr, Setattr),
        Procedure::Create => change!(create, Created),
        Procedure::Mkdir => change!(mkdir, Created),
        Procedure::Mknod => change!(mknod, Created),
        Procedure::Symlink => symlink(exports, asker, call, reply, now).map(Changed::Created),
        Procedure::Remove => change!(remove, Remove),
        Procedure::Rmdir => change!(rmdir, Remove),
        Procedure::Rename => change!(rename, Rename),
        Procedure::Link => change!(link, Link),
        _ => None,
    };
    if let Some(results) = changed {
        return exports.answer(results, Program::Nfs, call.token(), reply);
    }
    match procedure {
        Procedure::Null => reply.success(|_| Ok(())),
        Procedure::Getattr => answer!(getattr),
        Procedure::Lookup => answer!(lookup),
        Procedure::Access => answer!(access),
        Procedure::Fsstat => answer!(fsstat),
        Procedure::Fsinfo => answer!(fsinfo),
        Procedure::Pathconf => answer!(pathconf),
        Procedure::Readdir => readdir(exports, asker, call, reply, now),
        Procedure::Readdirplus => readdirplus(exports, asker, call, reply, now),
        Procedure::Readlink => readlink(exports, asker, call, reply, now),
        // Answered above, or by the caller.
        _ => {}
    }
    Outcome::Done
}

/// Results that can be sent as they are.
pub(super) trait Answer {
    fn send(&self, reply: &mut Reply<'_>);
}

impl<T: Encode, F: Encode> Answer for nfs3::ProcedureResults<T, F> {
    fn send(&self, reply: &mut Reply<'_>) {
        reply.success(|writer| writer.value(self));
    }
}

/// An object that was found or made: its handle, its attributes, and those of the directory.
pub(super) struct Found<D> {
    handle: [u8; HANDLE_LEN],
    attributes: PostOpAttributes,
    directory: D,
}

impl<D> Found<D> {
    fn new<S: Store + ?Sized>(
        exports: &ExportTable<S>,
        opened: &ResolvedHandle,
        found: &ObjectStat,
        directory: D,
    ) -> Found<D> {
        let attributes = Some(exports.shown(opened, found));
        Found { handle: exports.seal(opened, found.object), attributes, directory }
    }
}

impl Found<WccData> {
    /// Attributes of the directory that it is in.
    pub(super) fn directory(&self) -> WccData {
        self.directory
    }
}

impl Answer for Result<Found<PostOpAttributes>, Failure<PostOpAttributes>> {
    fn send(&self, reply: &mut Reply<'_>) {
        let results: LookupReply<'_> = self.as_ref().map_err(|failure| *failure).map(|named| LookupOk {
            object: Handle(&named.handle),
            attributes: named.attributes,
            directory: named.directory,
        });
        results.send(reply);
    }
}

/// What came of a step that is over. A store that finishes steps on names and attributes later cannot be served yet.
pub(super) fn over<T>(step: ChangeStep<T>) -> Result<T, FsError> {
    match step? {
        Progress::Done(done) => Ok(done),
        Progress::Later(_) => Err(FsError::Busy),
    }
}

/// What CREATE, MKDIR, SYMLINK and MKNOD end with.
pub(super) type Created = Result<Found<WccData>, Failure<WccData>>;

impl Answer for Created {
    fn send(&self, reply: &mut Reply<'_>) {
        let results: CreateReply<'_> = self.as_ref().map_err(|failure| *failure).map(|named| CreateOk {
            object: Some(Handle(&named.handle)),
            attributes: named.attributes,
            directory: named.directory,
        });
        results.send(reply);
    }
}

/// Makes an object of this name in a directory by what `work` does.
pub(super) fn make<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    place: &DirectoryName<'_>,
    work: impl FnOnce(&mut Volume<S>, &UserIdentity, EntryName<'_>) -> ChangeStep<ObjectStat>,
) -> Created {
    let (made, wcc) = exports.change(asker, place.directory, |exports, opened, directory| {
        let at = EntryName { directory, name: place.name.0 };
        let made = over(work(exports.volume_mut(opened), &opened.caller, at))?;
        Ok(Found::new(exports, opened, &made, ()))
    });
    match made {
        Ok(Found { handle, attributes, .. }) => Ok(Found { handle, attributes, directory: wcc }),
        Err(error) => Err(failure(error, wcc)),
    }
}

fn getattr<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &GetattrArguments<'_>,
    _: Timestamp,
) -> GetattrReply {
    let (found, attributes) = exports.with_object(asker, arguments.object, |_, _, _| Ok(()));
    match (found, attributes) {
        (Ok(()), Some(attributes)) => Ok(GetattrOk { attributes }),
        (Ok(()), None) => Err(failure(FsError::Fault, ())),
        (Err(error), _) => Err(failure(error, ())),
    }
}

fn setattr<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &SetattrArguments<'_>,
    now: Timestamp,
) -> SetattrReply {
    let (done, object) = exports.change(asker, arguments.object, |exports, opened, seen| {
        if arguments.guard.is_some_and(|ctime| ctime != words::time(seen.ctime)) {
            return Err(FsError::NotSame);
        }
        let set = words::update(&arguments.attributes);
        over(exports.volume_mut(opened).set_attributes(&opened.caller, seen, &set, now))
    });
    done.map(|()| SetattrOk { object }).map_err(|error| failure(error, object))
}

fn lookup<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &LookupArguments<'_>,
    _: Timestamp,
) -> Result<Found<PostOpAttributes>, Failure<PostOpAttributes>> {
    let (found, directory) = exports.with_object(asker, arguments.what.directory, |exports, opened, seen| {
        let name = arguments.what.name.0;
        let found = exports.volume(opened).lookup(&opened.caller, seen, name)?;
        Ok(Found::new(exports, opened, &found, ()))
    });
    match found {
        Ok(Found { handle, attributes, .. }) => Ok(Found { handle, attributes, directory }),
        Err(error) => Err(failure(error, directory)),
    }
}

fn access<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &AccessArguments<'_>,
    _: Timestamp,
) -> AccessReply {
    let (granted, attributes) = exports.with_object(asker, arguments.object, |exports, opened, seen| {
        const CHANGES: u32 = access::MODIFY | access::EXTEND | access::DELETE;
        let mut wanted = arguments.access;
        if wanted & CHANGES != 0 && exports.takes_no_changes(opened) {
            wanted &= !CHANGES;
        }
        Ok(exports.volume(opened).access(&opened.caller, seen, wanted)?)
    });
    match granted {
        Ok(access) => Ok(AccessOk { attributes, access }),
        Err(error) => Err(failure(error, attributes)),
    }
}

fn create<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &CreateArguments<'_>,
    now: Timestamp,
) -> Created {
    make(exports, asker, &arguments.place, |volume, user, EntryName { directory, name }| {
        volume.create(user, directory, name, &words::create_mode(&arguments.how), now)
    })
}

fn mkdir<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &MkdirArguments<'_>,
    now: Timestamp,
) -> Created {
    make(exports, asker, &arguments.place, |volume, user, at| {
        volume.make_directory(user, at, &words::update(&arguments.attributes), now)
    })
}

fn mknod<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &MknodArguments<'_>,
    now: Timestamp,
) -> Created {
    make(exports, asker, &arguments.place, |volume, user, at| {
        let (special, set) = match &arguments.what {
            MknodData::Block(set, number) => (Special::Block(words::device(*number)), set),
            MknodData::Character(set, number) => (Special::Character(words::device(*number)), set),
            MknodData::Socket(set) => (Special::Socket, set),
            MknodData::Fifo(set) => (Special::Fifo, set),
            MknodData::Other(_) => return Err(FsError::BadKind.into()),
        };
        volume.make_special(user, at, special, &words::update(set), now)
    })
}

fn remove<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &RemoveArguments<'_>,
    now: Timestamp,
) -> RemoveReply {
    let (done, directory) =
        exports.change(asker, arguments.object.directory, |exports, opened, directory| {
            let at = EntryName { directory, name: arguments.object.name.0 };
            over(exports.volume_mut(opened).remove(&opened.caller, at, now))
        });
    done.map(|()| RemoveOk { directory }).map_err(|error| failure(error, directory))
}

fn rmdir<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &RmdirArguments<'_>,
    now: Timestamp,
) -> RemoveReply {
    let (done, directory) =
        exports.change(asker, arguments.object.directory, |exports, opened, directory| {
            let at = EntryName { directory, name: arguments.object.name.0 };
            over(exports.volume_mut(opened).remove_directory(&opened.caller, at, now))
        });
    done.map(|()| RemoveOk { directory }).map_err(|error| failure(error, directory))
}

/// Opens the second object of a procedure that takes two: both must be of one export.
fn open_beside<S: Store + ?Sized>(
    exports: &ExportTable<S>,
    asker: &CallContext<'_>,
    first: &ResolvedHandle,
    handle: Handle<'_>,
) -> Result<ResolvedHandle, FsError> {
    let second = exports.open(asker, handle)?;
    if second.share == first.share { Ok(second) } else { Err(FsError::CrossDevice) }
}

fn rename<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &RenameArguments<'_>,
    now: Timestamp,
) -> RenameReply {
    let (to, is_same) = (&arguments.to, arguments.from.directory == arguments.to.directory);
    // Seen before anything changes.
    let target = exports.open(asker, to.directory);
    let seen = match &target {
        Ok(target) if !is_same => exports.stat(target).ok(),
        _ => None,
    };
    let before = target.as_ref().ok().and_then(|target| exports.before(target, seen.as_ref()?));
    let (done, from) = exports.change(asker, arguments.from.directory, |exports, opened, directory| {
        let target = open_beside(exports, asker, opened, to.directory)?;
        let from = EntryName { directory, name: arguments.from.name.0 };
        let target = match &seen {
            Some(seen) => *seen,
            None if is_same => *directory,
            None => exports.stat(&target)?,
        };
        let to = EntryName { directory: &target, name: to.name.0 };
        over(exports.volume_mut(opened).rename(&opened.caller, from, to, now))
    });
    let to = if is_same {
        from
    } else {
        WccData { before, after: target.ok().and_then(|target| exports.attributes(&target)) }
    };
    let attributes = RenameOk { from, to };
    done.map(|()| attributes).map_err(|error| failure(error, attributes))
}

fn link<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &LinkArguments<'_>,
    now: Timestamp,
) -> LinkReply {
    let (done, directory) = exports.change(asker, arguments.link.directory, |exports, opened, directory| {
        let file = open_beside(exports, asker, opened, arguments.file)?;
        let seen = exports.stat(&file)?;
        let at = EntryName { directory, name: arguments.link.name.0 };
        over(exports.volume_mut(opened).link(&opened.caller, &seen, at, now))
    });
    let attributes = exports.open(asker, arguments.file).ok().and_then(|file| exports.attributes(&file));
    let attributes = LinkOk { attributes, directory };
    done.map(|()| attributes).map_err(|error| failure(error, attributes))
}

fn fsstat<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &FsstatArguments<'_>,
    _: Timestamp,
) -> FsstatReply {
    let (usage, attributes) = exports.with_object(asker, arguments.root, |exports, opened, _| {
        Ok(exports.volume(opened).store().usage()?)
    });
    match usage {
        Ok(usage) => Ok(FsstatOk {
            attributes,
            bytes_total: usage.bytes_total,
            bytes_free: usage.bytes_free,
            bytes_available: usage.bytes_free,
            files_total: usage.files_total,
            files_free: usage.files_free,
            files_available: usage.files_free,
            invariant_seconds: 0,
        }),
        Err(error) => Err(failure(error, attributes)),
    }
}

fn fsinfo<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &FsinfoArguments<'_>,
    _: Timestamp,
) -> FsinfoReply {
    let (limits, attributes) = exports
        .with_object(asker, arguments.root, |exports, opened, _| Ok(exports.volume(opened).profile().limits));
    match limits {
        Ok(limits) => Ok(FsinfoOk {
            attributes,
            read_max: TRANSFER_LEN_MAX,
            read_preferred: TRANSFER_LEN_MAX,
            read_multiple: 4096,
            write_max: TRANSFER_LEN_MAX,
            write_preferred: TRANSFER_LEN_MAX,
            write_multiple: 4096,
            readdir_preferred: LIST_LEN_PREFERRED,
            file_size_max: limits.file_len_max,
            time_delta: Time { seconds: 0, nanoseconds: 1 },
            properties: properties::LINK
                | properties::SYMLINK
                | properties::HOMOGENEOUS
                | properties::CAN_SET_TIME,
        }),
        Err(error) => Err(failure(error, attributes)),
    }
}

fn pathconf<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &PathconfArguments<'_>,
    _: Timestamp,
) -> PathconfReply {
    let (limits, attributes) = exports.with_object(asker, arguments.object, |exports, opened, _| {
        Ok(exports.volume(opened).profile().limits)
    });
    match limits {
        Ok(limits) => Ok(PathconfOk {
            attributes,
            link_max: limits.links_max,
            name_max: limits.name_len_max,
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
        }),
        Err(error) => Err(failure(error, attributes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As other servers do (5531-e): what must not run twice, and WRITE, whose Replies are in a ring of their own.
    #[test]
    fn replies_that_are_kept() {
        let kept = |wanted| -> Vec<_> {
            let all = BOUND.iter().filter(move |bound| bound.repeat == wanted);
            all.map(|bound| bound.name).collect()
        };
        assert_eq!(
            kept(Repeat::Harmful),
            ["SETATTR", "CREATE", "MKDIR", "SYMLINK", "MKNOD", "REMOVE", "RMDIR", "RENAME", "LINK"]
        );
        assert_eq!(kept(Repeat::Untimely), ["WRITE"]);
    }
}
