//! NFS version 3: the procedures. READ and WRITE are in `transfer`, READDIR and READDIRPLUS in `listing`.

use std::os::fd::RawFd;
use std::time::Duration;

use stag_memory::Shared;
use stag_rpc::{Call, Home, Outcome, Procedure as Bound, Repeat, Reply, Service, Token};
use stag_wire::nfs3::{
    self, AccessArguments, AccessOk, AccessReply, Attributes, CreateArguments, CreateOk, CreateReply,
    DirectoryName, Failure, FsinfoArguments, FsinfoOk, FsinfoReply, FsstatArguments, FsstatOk, FsstatReply,
    GetattrArguments, GetattrOk, GetattrReply, Handle, LinkArguments, LookupArguments, LookupOk, LookupReply,
    MkdirArguments, MknodArguments, MknodData, PathconfArguments, PathconfOk, PathconfReply,
    PostOpAttributes, Procedure, ReaddirArguments, ReaddirplusArguments, RemoveArguments, RenameArguments,
    RmdirArguments, SetattrArguments, Time, WccData, access, properties,
};
use stag_wire::xdr::Encode;

use super::listing::list_call;
use super::rerun::Again;
use super::transfer::{commit, locate_data, read, readlink, symlink_call, write};
use super::waiting::{Begun, Ending, Pending, Program, Waiter, WaitsFor};
use super::words::{self, failure};
use super::{CallContext, ExportTable, ResolvedHandle, SharedExports, TimeOfDay, decode};
use crate::binding;
use crate::handle::HANDLE_LEN;
use stag_vfs::{
    Blocked, ChangeStep, EntryName, FsError, ObjectStat, Progress, Special, Store, Timestamp, UserIdentity,
    Volume,
};

/// The most octets that one READ or WRITE moves.
pub const TRANSFER_LEN_MAX: u32 = 1 << 20;

/// What READDIR and READDIRPLUS should ask for, in octets.
const LIST_LEN_PREFERRED: u32 = 1 << 16;

/// Pieces that the data of a READ can be in: all pages in different places, and one more where the READ
/// begins within a page.
pub(super) const PIECES_MAX: usize = TRANSFER_LEN_MAX as usize / 4096 + 1;

/// The service NFS version 3.
pub struct Nfs<S: Store + ?Sized> {
    exports: SharedExports<S>,
    time: TimeOfDay,
    versions: (u32, u32),
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
        let versions = ExportTable::<S>::versions(exports.borrow().has_version_3, nfs3::VERSION);
        Nfs { exports, time, versions, pieces: Vec::with_capacity(PIECES_MAX) }
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
        self.versions
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
        let Some((hold, pending)) = later else { return Outcome::Done };
        exports.keep(hold, Waiter::of(Program::Nfs, call), pending)
    }

    fn subject(&self, call: &Call<'_>) -> Option<String> {
        let first = call.arguments().value::<Handle<'_>>().ok()?;
        Some(self.exports.borrow().describe(first.0))
    }

    fn stage(&self, token: Token) -> &'static str {
        self.exports.borrow().stage(token)
    }

    #[inline]
    fn poll_later(&mut self, now: Duration) -> Option<Token> {
        let time = || self.time.at(now);
        self.exports.borrow_mut().poll_later(Program::Nfs, now, time)
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
        out.extend(
            self.exports.borrow().shares.iter().filter_map(|share| share.volume().store().descriptor()),
        );
    }

    fn next_timeout(&self) -> Option<Duration> {
        let exports = self.exports.borrow();
        // What is answered for another service, which has asked in this pass already, is there in the next one.
        let is_busy = exports.has_answers()
            || exports.has_turned()
            || exports.shares.iter().any(|share| share.volume().store().is_busy());
        if is_busy { Some(Duration::ZERO) } else { exports.next_turn_due() }
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
    /// Decodes, runs, encodes; or keeps the Call until a store has an answer.
    macro_rules! answer {
        ($run:ident) => {
            if let Some(arguments) = decode(call, reply) {
                match $run(exports, asker, &arguments, now) {
                    Ok(results) => results.send(reply),
                    Err(waits) => {
                        let again = Again::new(procedure, &arguments, asker);
                        return exports.keep(waits, Waiter::of(Program::Nfs, call), Pending::Again(again));
                    }
                }
            }
        };
    }
    /// Decodes, and runs what changes something.
    macro_rules! change {
        ($run:ident) => {
            if let Some(arguments) = decode(call, reply) {
                let again = || Again::new(procedure, &arguments, asker);
                let begun = $run(exports, asker, &arguments, now);
                return exports.answer(begun, again, Waiter::of(Program::Nfs, call), reply);
            }
        };
    }
    match procedure {
        Procedure::Null => reply.success(|_| Ok(())),
        Procedure::Getattr => {
            if let Some(arguments) = decode(call, reply)
                && let Err(waits) = getattr(exports, asker, &arguments, |results| results.send(reply))
            {
                let again = Again::new(procedure, &arguments, asker);
                return exports.keep(waits, Waiter::of(Program::Nfs, call), Pending::Again(again));
            }
        }
        Procedure::Lookup => answer!(lookup),
        Procedure::Access => answer!(access),
        Procedure::Fsstat => answer!(fsstat),
        Procedure::Fsinfo => answer!(fsinfo),
        Procedure::Pathconf => answer!(pathconf),
        Procedure::Setattr => change!(setattr),
        Procedure::Create => change!(create),
        Procedure::Mkdir => change!(mkdir),
        Procedure::Mknod => change!(mknod),
        Procedure::Remove => change!(remove),
        Procedure::Rmdir => change!(rmdir),
        Procedure::Rename => change!(rename),
        Procedure::Link => change!(link),
        Procedure::Symlink => return symlink_call(exports, asker, call, reply, now),
        Procedure::Readlink => {
            if let Some(arguments) = decode(call, reply) {
                match readlink(exports, asker, &arguments, now) {
                    Ok(results) => results.send(exports, reply),
                    Err(waits) => {
                        let again = Again::new(procedure, &arguments, asker);
                        return exports.keep(waits, Waiter::of(Program::Nfs, call), Pending::Again(again));
                    }
                }
            }
        }
        Procedure::Readdir => return list_call::<ReaddirArguments<'_>, S>(exports, asker, call, reply, now),
        Procedure::Readdirplus => {
            return list_call::<ReaddirplusArguments<'_>, S>(exports, asker, call, reply, now);
        }
        // Answered by the caller.
        Procedure::Read | Procedure::Write | Procedure::Commit => {}
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
        if let Err(failure) = self {
            reply.failed_with(failure.status.number());
        }
    }
}

/// An object that was found or made: its handle, its attributes, and those of the directory.
pub(super) struct Found<D> {
    /// `None`: it was made, and the store does not say what it is.
    object: Option<([u8; HANDLE_LEN], Attributes)>,
    directory: D,
}

impl<D> Found<D> {
    pub(super) fn new<S: Store + ?Sized>(
        exports: &ExportTable<S>,
        opened: &ResolvedHandle,
        found: Option<&ObjectStat>,
        directory: D,
    ) -> Found<D> {
        let object = found.map(|found| (exports.seal(opened, found.object), exports.shown(opened, found)));
        Found { object, directory }
    }
}

impl Found<WccData> {
    /// Attributes of the directory that it is in.
    pub(super) fn directory(&self) -> WccData {
        self.directory
    }
}

/// What LOOKUP ends with.
pub(super) type LookedUp = Result<Found<PostOpAttributes>, Failure<PostOpAttributes>>;

impl Answer for LookedUp {
    fn send(&self, reply: &mut Reply<'_>) {
        let found = self.as_ref().map_err(|failure| *failure).and_then(|named| {
            let lost = failure(FsError::Fault, named.directory);
            named.object.as_ref().map(|object| (object, named.directory)).ok_or(lost)
        });
        let results: LookupReply<'_> = found.map(|((handle, attributes), directory)| LookupOk {
            object: Handle(handle),
            attributes: Some(*attributes),
            directory,
        });
        results.send(reply);
    }
}

/// What CREATE, MKDIR, SYMLINK and MKNOD end with.
pub(super) type Created = Result<Found<WccData>, Failure<WccData>>;

impl Answer for Created {
    fn send(&self, reply: &mut Reply<'_>) {
        let results: CreateReply<'_> = self.as_ref().map_err(|failure| *failure).map(|named| CreateOk {
            object: named.object.as_ref().map(|(handle, _)| Handle(handle)),
            attributes: named.object.as_ref().map(|(_, attributes)| *attributes),
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
) -> Begun {
    exports.change(asker, place.directory, Ending::Make, |exports, opened, directory| {
        let at = EntryName { directory, name: place.name.0 };
        Ok(match work(exports.volume_mut(opened), &opened.caller, at)? {
            Progress::Done(made) => Progress::Done(Some(made)),
            Progress::Later(ticket) => Progress::Later(ticket),
        })
    })
}

/// A step that makes nothing.
pub(super) fn plain(step: ChangeStep<()>) -> ChangeStep<Option<ObjectStat>> {
    Ok(match step? {
        Progress::Done(()) => Progress::Done(None),
        Progress::Later(ticket) => Progress::Later(ticket),
    })
}

/// Hands its results to `answer`, where they are: attributes are large to move.
pub(super) fn getattr<S: Store + ?Sized, T>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &GetattrArguments<'_>,
    answer: impl FnOnce(&GetattrReply) -> T,
) -> Result<T, WaitsFor> {
    let opened = match exports.open(asker, arguments.object) {
        Ok(opened) => opened,
        Err(error) => return Ok(answer(&Err(failure(error, ())))),
    };
    let volume = exports.volume(&opened);
    match volume.store().stat(opened.object) {
        Ok(seen) => {
            let attributes = words::attributes(&seen, volume.profile().fsid);
            Ok(answer(&Ok(GetattrOk { attributes })))
        }
        Err(Blocked::Fails(error)) => Ok(answer(&Err(failure(error, ())))),
        Err(Blocked::Waits(ticket)) => Err(opened.waits(ticket)),
    }
}

pub(super) fn setattr<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &SetattrArguments<'_>,
    now: Timestamp,
) -> Begun {
    exports.change(asker, arguments.object, Ending::Setattr, |exports, opened, seen| {
        if arguments.guard.is_some_and(|ctime| ctime != words::time(seen.ctime)) {
            return Err(FsError::NotSame.into());
        }
        let set = words::update(&arguments.attributes);
        plain(exports.volume_mut(opened).set_attributes(&opened.caller, seen, &set, now))
    })
}

pub(super) fn lookup<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &LookupArguments<'_>,
    _: Timestamp,
) -> Result<LookedUp, WaitsFor> {
    let (found, directory) =
        exports.with_directory(asker, arguments.what.directory, |exports, opened, seen| {
            let name = arguments.what.name.0;
            let found = exports.volume(opened).lookup(&opened.caller, seen, name)?;
            Ok(Found::new(exports, opened, Some(&found), ()))
        })?;
    Ok(match found {
        Ok(Found { object, .. }) => Ok(Found { object, directory }),
        Err(error) => Err(failure(error, directory)),
    })
}

pub(super) fn access<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &AccessArguments<'_>,
    _: Timestamp,
) -> Result<AccessReply, WaitsFor> {
    let (granted, attributes) = exports.with_object(asker, arguments.object, |exports, opened, seen| {
        const CHANGES: u32 = access::MODIFY | access::EXTEND | access::DELETE;
        let mut wanted = arguments.access;
        if wanted & CHANGES != 0 && exports.takes_no_changes(opened) {
            wanted &= !CHANGES;
        }
        exports.volume(opened).access(&opened.caller, seen, wanted)
    })?;
    Ok(match granted {
        Ok(access) => Ok(AccessOk { attributes, access }),
        Err(error) => Err(failure(error, attributes)),
    })
}

pub(super) fn create<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &CreateArguments<'_>,
    now: Timestamp,
) -> Begun {
    make(exports, asker, &arguments.place, |volume, user, EntryName { directory, name }| {
        volume.create(user, directory, name, &words::create_mode(&arguments.how), now)
    })
}

pub(super) fn mkdir<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &MkdirArguments<'_>,
    now: Timestamp,
) -> Begun {
    make(exports, asker, &arguments.place, |volume, user, at| {
        volume.make_directory(user, at, &words::update(&arguments.attributes), now)
    })
}

pub(super) fn mknod<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &MknodArguments<'_>,
    now: Timestamp,
) -> Begun {
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

pub(super) fn remove<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &RemoveArguments<'_>,
    now: Timestamp,
) -> Begun {
    exports.change(asker, arguments.object.directory, Ending::Remove, |exports, opened, directory| {
        let at = EntryName { directory, name: arguments.object.name.0 };
        plain(exports.volume_mut(opened).remove(&opened.caller, at, now))
    })
}

pub(super) fn rmdir<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &RmdirArguments<'_>,
    now: Timestamp,
) -> Begun {
    exports.change(asker, arguments.object.directory, Ending::Remove, |exports, opened, directory| {
        let at = EntryName { directory, name: arguments.object.name.0 };
        plain(exports.volume_mut(opened).remove_directory(&opened.caller, at, now))
    })
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

pub(super) fn rename<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &RenameArguments<'_>,
    now: Timestamp,
) -> Begun {
    let (to, is_same) = (&arguments.to, arguments.from.directory == arguments.to.directory);
    // Seen before anything changes.
    let target = exports.open(asker, to.directory);
    let seen = match &target {
        Ok(target) if !is_same => match target.settle(exports.stat(target)) {
            Ok(seen) => seen.ok(),
            Err(waits) => return Begun::Waits(waits),
        },
        _ => None,
    };
    let before = target.as_ref().ok().and_then(|target| exports.before(target, seen.as_ref()?));
    let what = Ending::Rename { to: if is_same { None } else { target.ok() }, before };
    exports.change(asker, arguments.from.directory, what, |exports, opened, directory| {
        let target = open_beside(exports, asker, opened, to.directory)?;
        let from = EntryName { directory, name: arguments.from.name.0 };
        let target = match &seen {
            Some(seen) => *seen,
            None if is_same => *directory,
            None => exports.stat(&target)?,
        };
        let to = EntryName { directory: &target, name: to.name.0 };
        plain(exports.volume_mut(opened).rename(&opened.caller, from, to, now))
    })
}

pub(super) fn link<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &LinkArguments<'_>,
    now: Timestamp,
) -> Begun {
    let what = Ending::Link { file: exports.open(asker, arguments.file).ok() };
    exports.change(asker, arguments.link.directory, what, |exports, opened, directory| {
        let file = open_beside(exports, asker, opened, arguments.file)?;
        let seen = exports.stat(&file)?;
        let at = EntryName { directory, name: arguments.link.name.0 };
        plain(exports.volume_mut(opened).link(&opened.caller, &seen, at, now))
    })
}

pub(super) fn fsstat<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &FsstatArguments<'_>,
    _: Timestamp,
) -> Result<FsstatReply, WaitsFor> {
    let (usage, attributes) = exports
        .with_object(asker, arguments.root, |exports, opened, _| exports.volume(opened).store().usage())?;
    Ok(match usage {
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
    })
}

pub(super) fn fsinfo<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &FsinfoArguments<'_>,
    _: Timestamp,
) -> Result<FsinfoReply, WaitsFor> {
    let (limits, attributes) = exports.with_object(asker, arguments.root, |exports, opened, _| {
        Ok(exports.volume(opened).profile().limits)
    })?;
    Ok(match limits {
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
    })
}

pub(super) fn pathconf<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &PathconfArguments<'_>,
    _: Timestamp,
) -> Result<PathconfReply, WaitsFor> {
    let (limits, attributes) = exports.with_object(asker, arguments.object, |exports, opened, _| {
        Ok(exports.volume(opened).profile().limits)
    })?;
    Ok(match limits {
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
    })
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
