//! Operations that change names and attributes: CREATE, REMOVE, RENAME, LINK, SETATTR.
//!
//! ```text
//! look, then change ──▶ done ─────────────▶ tell: change_info4 of the directories, attributes that were set ──▶ settle
//!                   └─▶ Later ─▶ Changing ──┘         ▲    │ a directory must be asked for what it is now
//!                                                     └────┴─▶ Telling
//! ```
//!
//! Nothing is changed before it is certain that the results have room.

use std::borrow::Cow;

use stag_memory::Shared;
use stag_state::open::ShareModes;
use stag_vfs::{
    Blocked, ChangeStep, DeviceId, EntryName, Finished, FsError, ObjectKind, ObjectStat, PATH_LEN_MAX,
    Progress, Special, Store, Ticket,
};
use stag_wire::nfs4::attributes::AttributeSet;
use stag_wire::nfs4::files::{
    ChangeInfo, CreateArguments4, CreateOk4, CreateType, RenameArguments4, RenameOk4, SetattrArguments4,
};
use stag_wire::nfs4::{DeviceNumber, Name4, Path, Status4};
use stag_wire::xdr::Item;

use super::names::{check_directory, check_name};
use super::settable::{self, SetOn, WantedAttributes};
use super::{At, Cursor, Place, Server, Step, Stop};
use crate::server::{ExportTable, ResolvedHandle};

/// Octets of a [`ChangeInfo`].
const CHANGE_INFO_LEN: usize = 4 + 8 + 8;
/// Octets of a set of attributes, at most.
const SET_LEN_MAX: usize = 4 + 3 * 4;

/// The rest of one of these operations, once a store is done.
pub(super) enum Resume {
    /// The change is under way.
    Changing(Ending),
    /// It is over, and made this object if it made one. What a directory is now had to be asked for.
    Telling(Ending, Option<ObjectStat>),
}

/// What is told at the end.
pub(super) enum Ending {
    /// SETATTR.
    Set(ResolvedHandle, AttributeSet<'static>),
    /// CREATE.
    Created(DirectoryBefore, WantedAttributes),
    /// REMOVE, LINK.
    Named(DirectoryBefore),
    /// RENAME.
    Renamed { from: DirectoryBefore, to: DirectoryBefore },
}

/// A directory as it was before a change.
#[derive(Clone, Copy)]
pub(super) struct DirectoryBefore {
    opened: ResolvedHandle,
    change: u64,
    /// Nothing but this operation can change it, as long as that is done at once.
    is_alone: bool,
}

impl DirectoryBefore {
    /// A directory that was seen so.
    pub(super) fn new<S: Store + ?Sized>(
        exports: &ExportTable<S>,
        opened: &ResolvedHandle,
        seen: &ObjectStat,
    ) -> DirectoryBefore {
        let volume = exports.volume(opened);
        let is_alone = volume.profile().can.counts_changes && !volume.store().is_changing(seen.object);
        DirectoryBefore { opened: *opened, change: seen.change, is_alone }
    }

    /// The directory.
    pub(super) const fn handle(&self) -> ResolvedHandle {
        self.opened
    }

    /// What is told of it by an operation that has not changed it.
    pub(super) const fn unchanged(&self) -> ChangeInfo {
        ChangeInfo { is_atomic: self.is_alone, before: self.change, after: self.change }
    }

    /// The same, for a change that is over later: others may come between.
    pub(super) fn among_others(self) -> DirectoryBefore {
        DirectoryBefore { is_alone: false, ..self }
    }

    /// What is told of it after the change. `Err`: its store has to be waited for.
    pub(super) fn info<S: Store + ?Sized>(&self, exports: &ExportTable<S>) -> Result<ChangeInfo, Ticket> {
        let DirectoryBefore { opened, change: before, is_alone: is_atomic } = *self;
        let store = exports.volume(&opened).store();
        let seen = match store.stat_after(opened.object) {
            Some(seen) => Ok(seen),
            None => store.stat(opened.object),
        };
        match seen {
            Ok(seen) => Ok(ChangeInfo { is_atomic, before, after: seen.change }),
            Err(Blocked::Waits(ticket)) => Err(ticket),
            // It is gone by now, so it has changed.
            Err(Blocked::Fails(_)) => {
                Ok(ChangeInfo { is_atomic: false, before, after: before.wrapping_add(1) })
            }
        }
    }
}

impl Ending {
    /// An object of the file system that is changed.
    fn opened(&self) -> ResolvedHandle {
        match self {
            Ending::Set(opened, _) => *opened,
            Ending::Created(directory, _) | Ending::Named(directory) => directory.opened,
            Ending::Renamed { to, .. } => to.opened,
        }
    }

    /// The same, of a change that is over later.
    fn among_others(self) -> Ending {
        match self {
            Ending::Set(..) => self,
            Ending::Created(directory, wanted) => Ending::Created(directory.among_others(), wanted),
            Ending::Named(directory) => Ending::Named(directory.among_others()),
            Ending::Renamed { from, to } => {
                Ending::Renamed { from: from.among_others(), to: to.among_others() }
            }
        }
    }

    /// Octets that it appends at most.
    const fn len_max(&self) -> usize {
        match self {
            Ending::Set(..) => SET_LEN_MAX,
            Ending::Created(..) => CHANGE_INFO_LEN + SET_LEN_MAX,
            Ending::Named(_) => CHANGE_INFO_LEN,
            Ending::Renamed { .. } => 2 * CHANGE_INFO_LEN,
        }
    }
}

/// Runs `work`, which changes something, and writes its results.
fn change<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    ending: Ending,
    work: impl FnOnce(&mut Server<'_, S>, &ResolvedHandle) -> ChangeStep<Option<ObjectStat>>,
) -> Step {
    cursor.reserve(ending.len_max())?;
    let opened = ending.opened();
    match opened.known(work(server, &opened))? {
        Progress::Done(made) => tell(server, cursor, ending, made),
        Progress::Later(ticket) => {
            let resume = Resume::Changing(ending.among_others());
            Err(Stop::Later(opened.waits(ticket), super::Resume::Names(Box::new(resume))))
        }
    }
}

/// Writes the results of a change that succeeded, and brings it to stable storage.
fn tell<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    ending: Ending,
    made: Option<ObjectStat>,
) -> Step {
    let opened = ending.opened();
    if let Err(ticket) = append(server, cursor, &ending, made.as_ref())? {
        let resume = Resume::Telling(ending, made);
        return Err(Stop::Later(opened.waits(ticket), super::Resume::Names(Box::new(resume))));
    }
    server.settle(&opened)
}

/// Appends the fields of an operation that succeeded, unless a directory has to be waited for.
fn append<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    ending: &Ending,
    made: Option<&ObjectStat>,
) -> Step<Result<(), Ticket>> {
    /// The value, or what has to be waited for.
    macro_rules! info {
        ($directory:expr) => {
            match $directory.info(server.exports) {
                Ok(info) => info,
                Err(ticket) => return Ok(Err(ticket)),
            }
        };
    }
    match ending {
        Ending::Set(_, set) => cursor.results.value(set)?,
        Ending::Created(directory, wanted) => {
            let made = made.ok_or(Status4::ServerFault)?;
            let (info, attributes_set) = (info!(directory), wanted.set_on(made));
            cursor.results.value(&CreateOk4 { directory: info, attributes_set })?;
            cursor.go(At::Object(ResolvedHandle { object: made.object, ..directory.opened }));
        }
        Ending::Named(directory) => {
            let info = info!(directory);
            cursor.results.value(&info)?;
        }
        Ending::Renamed { from, to } => {
            let (from, to) = (info!(from), info!(to));
            cursor.results.value(&RenameOk4 { from, to })?;
        }
    }
    Ok(Ok(()))
}

pub(super) fn resume<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    resume: Resume,
    finished: Result<Finished, FsError>,
) -> Step {
    match resume {
        Resume::Changing(ending) => {
            let made = match finished.map_err(|error| failure(&ending, error))? {
                Finished::Made(made) => Some(made),
                _ => None,
            };
            tell(server, cursor, ending, made)
        }
        // Whether there is an answer or none, the directory is asked again.
        Resume::Telling(ending, made) => tell(server, cursor, ending, made),
    }
}

/// The status of a change that failed later.
fn failure(ending: &Ending, error: FsError) -> Stop {
    match (ending, error) {
        (Ending::Set(..), FsError::IsDirectory) => Status4::Inval.into(),
        (_, error) => error.into(),
    }
}

/// A step that makes nothing.
fn plain(step: ChangeStep<()>) -> ChangeStep<Option<ObjectStat>> {
    Ok(match step? {
        Progress::Done(()) => Progress::Done(None),
        Progress::Later(ticket) => Progress::Later(ticket),
    })
}

impl<S: Store + ?Sized> Server<'_, S> {
    /// The current object, if its file system can be changed.
    pub(super) fn changeable(&self, cursor: &Cursor<'_>) -> Step<ResolvedHandle> {
        let opened = cursor.object_or(Status4::RoFs)?;
        if opened.read_only { Err(Status4::RoFs.into()) } else { Ok(opened) }
    }

    /// A directory whose entries are about to change, as it is.
    pub(super) fn directory(&self, opened: &ResolvedHandle) -> Step<ObjectStat> {
        let seen = self.stat(&At::Object(*opened))?;
        check_directory(&seen)?;
        Ok(seen)
    }
}

/// The text of a link to make; where it was placed, it is taken out into `pieces`.
fn link_text<'p>(cursor: &mut Cursor<'_>, path: &Path<'p>, pieces: &mut Vec<Shared>) -> Step<Cow<'p, [u8]>> {
    match path.0 {
        Item::Inline(path) => Ok(Cow::Borrowed(path)),
        Item::Reduced { len, .. } if len > PATH_LEN_MAX => Err(Status4::NameTooLong.into()),
        Item::Reduced { index, len } => {
            // There was no memory for it, because of what else is under way.
            cursor.data.take(index, len, pieces).ok_or(Status4::Delay)?;
            Ok(Cow::Owned(pieces.iter().flat_map(|piece| piece.iter().copied()).collect()))
        }
    }
}

const fn device(DeviceNumber { major, minor }: DeviceNumber) -> DeviceId {
    DeviceId { major, minor }
}

/// CREATE. `behind`: octets that the next operation's results need, which have to follow.
pub(super) fn create<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &CreateArguments4<'_>,
    behind: usize,
) -> Step {
    cursor.at()?;
    let CreateArguments4 { kind, name, attributes } = arguments;
    check_name(name.0)?;
    let special = match kind {
        CreateType::Regular | CreateType::AttributeDirectory | CreateType::NamedAttribute => {
            return Err(Status4::BadType.into());
        }
        CreateType::Directory | CreateType::Symlink(_) => None,
        CreateType::Block(number) => Some(Special::Block(device(*number))),
        CreateType::Character(number) => Some(Special::Character(device(*number))),
        CreateType::Socket => Some(Special::Socket),
        CreateType::Fifo => Some(Special::Fifo),
    };
    let wanted = settable::decode(attributes, cursor.minor, SetOn::New)?;
    let opened = server.changeable(cursor)?;
    let seen = server.directory(&opened)?;
    let set = wanted.for_new(server.inherits_list(&opened, &wanted)?);
    let ending = Ending::Created(DirectoryBefore::new(server.exports, &opened, &seen), wanted);
    cursor.reserve(ending.len_max() + behind)?;
    let mut taken = std::mem::take(server.pieces);
    let text = match kind {
        CreateType::Symlink(path) => link_text(cursor, path, &mut taken),
        _ => Ok(Cow::Borrowed(&[][..])),
    };
    let at = EntryName { directory: &seen, name: name.0 };
    let made = text.and_then(|text| {
        change(server, cursor, ending, |server, opened| {
            let (time, volume) = (server.time, server.exports.volume_mut(opened));
            let made = match (kind, special) {
                (CreateType::Symlink(_), _) => volume.make_symlink(&opened.caller, at, &text, &set, time),
                (_, Some(special)) => volume.make_special(&opened.caller, at, special, &set, time),
                (_, None) => volume.make_directory(&opened.caller, at, &set, time),
            };
            Ok(match made? {
                Progress::Done(made) => Progress::Done(Some(made)),
                Progress::Later(ticket) => Progress::Later(ticket),
            })
        })
    });
    if let CreateType::Symlink(Path(Item::Reduced { index, .. })) = kind
        && matches!(made, Err(Stop::Waits(_)))
    {
        cursor.data.put_back(*index, &mut taken);
    }
    taken.clear();
    *server.pieces = taken;
    made
}

pub(super) fn remove<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    name: &Name4<'_>,
) -> Step {
    cursor.at()?;
    check_name(name.0)?;
    let opened = server.changeable(cursor)?;
    let seen = server.directory(&opened)?;
    let at = EntryName { directory: &seen, name: name.0 };
    let ending = Ending::Named(DirectoryBefore::new(server.exports, &opened, &seen));
    let found = opened.known(server.exports.volume(&opened).lookup(&opened.caller, &seen, name.0))?;
    change(server, cursor, ending, |server, opened| {
        let (time, volume) = (server.time, server.exports.volume_mut(opened));
        let removed = match found.kind {
            ObjectKind::Directory => volume.remove_directory(&opened.caller, at, time),
            _ => volume.remove(&opened.caller, at, time),
        };
        plain(removed.map_err(|blocked| match blocked {
            // Another object has the name by now: tried again, the operation sees that one.
            Blocked::Fails(FsError::IsDirectory | FsError::NotDirectory) => FsError::Busy.into(),
            blocked => blocked,
        }))
    })
}

/// The objects of an operation on two handles, which must be of one file system: the saved one and the current one.
fn saved_and_current(cursor: &Cursor<'_>) -> Step<(ResolvedHandle, ResolvedHandle)> {
    match (cursor.saved.ok_or(Status4::NoFilehandle)?, *cursor.place()?) {
        (Place::Here(At::Object(saved)), Place::Here(At::Object(current)))
            if saved.share == current.share =>
        {
            if current.read_only {
                return Err(Status4::RoFs.into());
            }
            Ok((saved, current))
        }
        (Place::Here(At::Pseudo(_)), Place::Here(At::Pseudo(_))) => Err(Status4::RoFs.into()),
        _ => Err(Status4::XDev.into()),
    }
}

pub(super) fn rename<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &RenameArguments4<'_>,
) -> Step {
    cursor.place()?;
    cursor.saved.ok_or(Status4::NoFilehandle)?;
    check_name(arguments.from.0)?;
    check_name(arguments.to.0)?;
    let (source, target) = saved_and_current(cursor)?;
    let from_seen = server.directory(&source)?;
    let to_seen = if source.object == target.object { from_seen } else { server.directory(&target)? };
    let ending = Ending::Renamed {
        from: DirectoryBefore::new(server.exports, &source, &from_seen),
        to: DirectoryBefore::new(server.exports, &target, &to_seen),
    };
    change(server, cursor, ending, |server, opened| {
        let from = EntryName { directory: &from_seen, name: arguments.from.0 };
        let to = EntryName { directory: &to_seen, name: arguments.to.0 };
        let (time, volume) = (server.time, server.exports.volume_mut(opened));
        plain(volume.rename(&opened.caller, from, to, time))
    })
}

pub(super) fn link<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    name: &Name4<'_>,
) -> Step {
    cursor.place()?;
    cursor.saved.ok_or(Status4::NoFilehandle)?;
    check_name(name.0)?;
    let (file, directory) = saved_and_current(cursor)?;
    let seen = server.directory(&directory)?;
    let file_seen = server.stat(&At::Object(file))?;
    if file_seen.kind == ObjectKind::Directory {
        return Err(Status4::IsDir.into());
    }
    let ending = Ending::Named(DirectoryBefore::new(server.exports, &directory, &seen));
    change(server, cursor, ending, |server, opened| {
        let at = EntryName { directory: &seen, name: name.0 };
        let (time, volume) = (server.time, server.exports.volume_mut(opened));
        plain(volume.link(&opened.caller, &file_seen, at, time))
    })
}

pub(super) fn setattr<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &SetattrArguments4<'_>,
) -> Step {
    cursor.at()?;
    let wanted = settable::decode(&arguments.attributes, cursor.minor, SetOn::Existing)?;
    let opened = server.changeable(cursor)?;
    let seen = server.stat(&At::Object(opened))?;
    let set = *wanted.update();
    if set.size.is_some() {
        if seen.kind != ObjectKind::Regular {
            return Err(Status4::Inval.into());
        }
        server.admit_transfer(cursor, &opened, arguments.stateid, ShareModes::WRITE)?;
    }
    change(server, cursor, Ending::Set(opened, wanted.set()), |server, opened| {
        let (time, volume) = (server.time, server.exports.volume_mut(opened));
        plain(volume.set_attributes(&opened.caller, &seen, &set, time))
    })
}
