//! OPEN, OPEN_DOWNGRADE, CLOSE.
//!
//! ```text
//! OPEN ─▶ grace? on record? ─┬─ by handle ────────────────────────────────┐
//!                            ├─ by name, the file is there ───────────────┼─▶ permission ─▶ share ─▶ size ─▶ results
//!                            └─ by name, it is made ──────────────────────┴─────────────────▶ share ──────────┘
//! ```
//!
//! The share comes before the size is set: an open that is denied changes nothing. A store may finish each change later; the
//! rest of the OPEN follows then ([`resume`]).

use std::borrow::Cow;

use stag_state::Range;
use stag_state::open::{OpenRefused, OpenRequest, ShareModes};
use stag_state::stateid::{StateKind, StateToken};
use stag_vfs::{
    Blocked, CreateMode, Finished, FsError, ObjectId, ObjectKind, ObjectStat, Progress, Store, Update, access,
};
use stag_wire::nfs4::attributes::{Attribute, AttributeSet};
use stag_wire::nfs4::files::ChangeInfo;
use stag_wire::nfs4::open::{
    CloseArguments4, CreateHow4, Delegation, OpenArguments4, OpenClaim, OpenDowngradeArguments, OpenHow,
    OpenOk4, WhyNoDelegation, open_result, share,
};
use stag_wire::nfs4::{Bitmap, StateId, Status4};

use super::super::{ResolvedHandle, below};
use super::attribute_sets::{either, set_of};
use super::changes::DirectoryBefore;
use super::files::Resume;
use super::locks::{STATEID_LEN, check_is_regular, find_state, open_status, token_of, wire_of};
use super::settable::{self, SetOn, WantedAttributes};
use super::{At, Cursor, Resume as CompoundResume, Server, Step, Stop};

/// Octets of OPEN's results, at most: state id, change info, flags, three words of attributes, why there is no delegation.
const OPEN_LEN: usize = STATEID_LEN + 20 + 4 + 16 + 12;

/// Bits of share_access that mean something: access, and wishes for a delegation, which are only wishes.
const ACCESS_BITS: u32 =
    share::BOTH | share::WANT_MASK | share::WANT_SIGNAL_WHEN_AVAILABLE | share::WANT_PUSH_WHEN_UNCONTENDED;

/// An OPEN under way.
pub(super) struct Opening<'a> {
    /// The directory that it names a file in.
    directory: Option<DirectoryBefore>,
    modes: ShareModes,
    owner: Cow<'a, [u8]>,
    /// The wish for a delegation.
    want: u32,
    is_reclaim: bool,
    how: How,
    stage: Stage,
}

/// Whether and how the file is made.
#[derive(Clone, Copy)]
enum How {
    /// It was there.
    Found,
    /// With attributes.
    Made(WantedAttributes),
    /// By a verifier, which may be kept in the times; with attributes in 4.1 and later.
    MadeExclusively(Option<WantedAttributes>),
}

/// What its store is at.
#[derive(Clone, Copy)]
enum Stage {
    /// It makes the file.
    Makes,
    /// It sets the size of a file that was there.
    SetsSize { object: ObjectId, token: StateToken, is_upgrade: bool },
    /// It says what the directory is now.
    Tells { object: ObjectId, token: StateToken, has_changed: bool },
}

impl Opening<'_> {
    /// Its rest, for when the store is done.
    fn later(self, opened: &ResolvedHandle, ticket: stag_vfs::Ticket, stage: Stage) -> Stop {
        let Opening { directory, modes, owner, want, is_reclaim, how, .. } = self;
        let owner = Cow::Owned(owner.into_owned());
        let rest = Opening { directory, modes, owner, want, is_reclaim, how, stage };
        Stop::Later(opened.waits(ticket), CompoundResume::Files(Resume::Open(Box::new(rest))))
    }
}

/// The modes that an OPEN or OPEN_DOWNGRADE asks for.
fn modes_of(share_access: u32, share_deny: u32) -> Result<ShareModes, Status4> {
    let want = share_access & share::WANT_MASK;
    if share_access & !ACCESS_BITS != 0 || want > share::WANT_CANCEL {
        return Err(Status4::Inval);
    }
    ShareModes::new(share_access & share::BOTH, share_deny).ok_or(Status4::Inval)
}

/// OPEN. `behind`: octets that the next operation's results need, which have to follow.
pub(super) fn open<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &OpenArguments4<'_>,
    behind: usize,
) -> Step {
    let modes = modes_of(arguments.share_access, arguments.share_deny)?;
    let is_reclaim = matches!(arguments.claim, OpenClaim::Previous(_));
    match arguments.claim {
        OpenClaim::Null(_) => {}
        // There are no delegations.
        OpenClaim::DelegateCurrent(_) | OpenClaim::DelegateCurrentHandle(_) => {
            return Err(Status4::BadStateid.into());
        }
        OpenClaim::DelegatePrevious(_) | OpenClaim::DelegatePreviousHandle => {
            return Err(Status4::NotSupp.into());
        }
        OpenClaim::Previous(_) | OpenClaim::Handle => {
            if matches!(arguments.how, OpenHow::Create(_)) {
                return Err(Status4::Inval.into());
            }
        }
    }
    let decode = |list, on| settable::decode(list, cursor.minor, on);
    let how = match &arguments.how {
        OpenHow::NoCreate => How::Found,
        OpenHow::Create(CreateHow4::Unchecked(list) | CreateHow4::Guarded(list)) => {
            How::Made(decode(list, SetOn::New)?)
        }
        OpenHow::Create(CreateHow4::Exclusive(_)) => How::MadeExclusively(None),
        OpenHow::Create(CreateHow4::Exclusive41(both)) => {
            How::MadeExclusively(Some(decode(&both.attributes, SetOn::Exclusive)?))
        }
    };
    let opening = Opening {
        directory: None,
        modes,
        owner: Cow::Borrowed(arguments.owner.owner.0),
        want: arguments.share_access & share::WANT_MASK,
        is_reclaim,
        how,
        stage: Stage::Makes,
    };
    cursor.at()?;
    server.check_grace(cursor, is_reclaim)?;
    cursor.reserve(OPEN_LEN + behind)?;
    match arguments.claim {
        OpenClaim::Null(name) => open_named(server, cursor, opening, name.0, &arguments.how),
        _ => {
            let opened = cursor.object_or(Status4::IsDir)?;
            let seen = opened.known(server.exports.stat(&opened))?;
            open_found(server, cursor, opening, &opened, &seen, None)
        }
    }
}

fn open_named<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    mut opening: Opening<'_>,
    name: &[u8],
    how: &OpenHow<'_>,
) -> Step {
    super::names::check_name(name)?;
    let directory = match cursor.at()? {
        At::Object(directory) => directory,
        // It has directories only.
        At::Pseudo(node) => {
            server.enter_named(&cursor.caller, node, name)?;
            return Err(Status4::IsDir.into());
        }
    };
    let above = directory.known(server.exports.stat(&directory))?;
    match above.kind {
        ObjectKind::Directory => {}
        ObjectKind::Symlink => return Err(Status4::Symlink.into()),
        _ => return Err(Status4::NotDir.into()),
    }
    if server.junction(&directory, name)?.is_some() {
        return Err(Status4::IsDir.into());
    }
    opening.directory = Some(DirectoryBefore::new(server.exports, &directory, &above));
    let volume = server.exports.volume(&directory);
    let found = match volume.lookup(&directory.caller, &above, name) {
        Ok(seen) => Some(seen),
        Err(Blocked::Fails(FsError::NotFound)) if matches!(how, OpenHow::Create(_)) => None,
        Err(blocked) => return directory.known(Err(blocked)),
    };
    let file = |seen: &ObjectStat| ResolvedHandle { object: seen.object, ..directory };
    let set = match opening.how {
        How::Made(wanted) | How::MadeExclusively(Some(wanted)) => {
            wanted.for_new(server.inherits_list(&directory, &wanted)?)
        }
        How::Found | How::MadeExclusively(None) => Update::default(),
    };
    let mode = match (how, found, opening.how) {
        (OpenHow::NoCreate, Some(seen), _) => {
            return open_found(server, cursor, opening, &file(&seen), &seen, None);
        }
        (OpenHow::Create(CreateHow4::Unchecked(_)), Some(seen), How::Made(wanted)) => {
            // The file that is there keeps its attributes; only its size is set.
            opening.how = How::Found;
            let size = wanted.update().size;
            return open_found(server, cursor, opening, &file(&seen), &seen, size);
        }
        (OpenHow::Create(CreateHow4::Guarded(_)), Some(_), _) => return Err(Status4::Exist.into()),
        (OpenHow::Create(CreateHow4::Exclusive(verifier)), ..) => CreateMode::Exclusive(verifier.0, set),
        (OpenHow::Create(CreateHow4::Exclusive41(both)), ..) => CreateMode::Exclusive(both.verifier.0, set),
        (_, _, How::Made(_)) => CreateMode::Guarded(set),
        (_, _, How::Found | How::MadeExclusively(_)) => return Err(Status4::NoEnt.into()),
    };
    if directory.read_only {
        return Err(Status4::RoFs.into());
    }
    let volume = server.exports.volume_mut(&directory);
    match volume.create(&directory.caller, &above, name, &mode, server.time) {
        Ok(Progress::Done(made)) => open_made(server, cursor, opening, &made),
        Ok(Progress::Later(ticket)) => Err(opening.later(&directory, ticket, Stage::Makes)),
        Err(blocked) => directory.known(Err(blocked)),
    }
}

/// Goes on with an OPEN whose store is done with its stage.
pub(super) fn resume<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    mut opening: Opening<'_>,
    finished: Result<Finished, FsError>,
) -> Step {
    opening.directory = opening.directory.map(DirectoryBefore::among_others);
    let at = match (opening.directory, cursor.at()?) {
        (Some(directory), _) => directory.handle(),
        (None, At::Object(opened)) => opened,
        (None, At::Pseudo(_)) => return Err(FsError::Fault.into()),
    };
    match (opening.stage, finished) {
        (Stage::Makes, Ok(Finished::Made(made))) => open_made(server, cursor, opening, &made),
        (Stage::Makes, Ok(_)) => Err(FsError::Fault.into()),
        (Stage::SetsSize { object, token, .. }, Ok(_)) => {
            append(server, cursor, opening, &ResolvedHandle { object, ..at }, token, true)
        }
        // Whether there is an answer or none, the directory is asked again.
        (Stage::Tells { object, token, has_changed }, _) => {
            append(server, cursor, opening, &ResolvedHandle { object, ..at }, token, has_changed)
        }
        (Stage::SetsSize { object, token, is_upgrade }, Err(error)) => {
            let opened = ResolvedHandle { object, ..at };
            server.take_back(cursor, &opened, token, is_upgrade)?;
            Err(error.into())
        }
        (Stage::Makes, Err(error)) => Err(error.into()),
    }
}

/// Opens a file that was there, and sets its size if there is one to set.
fn open_found<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    opening: Opening<'_>,
    opened: &ResolvedHandle,
    seen: &ObjectStat,
    size: Option<u64>,
) -> Step {
    check_is_regular(seen.kind)?;
    server.check_access(opened, seen, &opening, size.is_some())?;
    server.make_way(opened, &opening)?;
    let (token, is_upgrade) = server.open_state(cursor, opened, &opening)?;
    let Some(size) = size else { return append(server, cursor, opening, opened, token, false) };
    let set = Update { size: Some(size), ..Update::default() };
    let volume = server.exports.volume_mut(opened);
    match volume.set_attributes(&opened.caller, seen, &set, server.time) {
        Ok(Progress::Done(())) => append(server, cursor, opening, opened, token, true),
        Ok(Progress::Later(ticket)) => {
            let stage = Stage::SetsSize { object: opened.object, token, is_upgrade };
            Err(opening.later(opened, ticket, stage))
        }
        Err(blocked) => {
            server.take_back(cursor, opened, token, is_upgrade)?;
            opened.known(Err(blocked))
        }
    }
}

/// Opens a file that was made, whatever its mode lets its maker do.
fn open_made<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    opening: Opening<'_>,
    made: &ObjectStat,
) -> Step {
    let directory = opening.directory.ok_or(FsError::Fault)?;
    let opened = ResolvedHandle { object: made.object, ..directory.handle() };
    let (token, _) = server.open_state(cursor, &opened, &opening)?;
    append(server, cursor, opening, &opened, token, true)
}

/// Appends the results. The file becomes the current object. `has_changed`: something has to reach stable storage.
fn append<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    opening: Opening<'_>,
    opened: &ResolvedHandle,
    token: StateToken,
    has_changed: bool,
) -> Step {
    let directory = match &opening.directory {
        Some(directory) if matches!(opening.how, How::Found) => directory.unchanged(),
        Some(directory) => match directory.info(server.exports) {
            Ok(info) => info,
            Err(ticket) => {
                let stage = Stage::Tells { object: opened.object, token, has_changed };
                return Err(opening.later(opened, ticket, stage));
            }
        },
        // Which directory it is in is not known.
        None => ChangeInfo { is_atomic: false, before: 0, after: 0 },
    };
    let delegation = match opening.want {
        share::WANT_NO_PREFERENCE => Delegation::None,
        share::WANT_NO_DELEGATION => Delegation::NoneWhy(WhyNoDelegation::NotWanted),
        share::WANT_CANCEL => Delegation::NoneWhy(WhyNoDelegation::Cancelled),
        _ => Delegation::NoneWhy(WhyNoDelegation::Resource(false)),
    };
    let stateid = wire_of(token);
    cursor.results.value(&OpenOk4 {
        stateid,
        directory,
        flags: open_result::LOCKTYPE_POSIX,
        attributes_set: server.attributes_set(opened, &opening),
        delegation,
    })?;
    cursor.go(At::Object(*opened));
    cursor.current_state = Some(stateid);
    if has_changed { server.settle(opened) } else { Ok(()) }
}

impl<S: Store + ?Sized> Server<'_, S> {
    /// Whether an object that is made gets an access control list from its directory, if that matters.
    pub(super) fn inherits_list(&self, directory: &ResolvedHandle, wanted: &WantedAttributes) -> Step<bool> {
        if !wanted.has_umask() {
            return Ok(false);
        }
        let default = directory.known(self.exports.volume(directory).default_acl(directory.object))?;
        Ok(default.is_some())
    }

    /// The attributes that the OPEN set.
    fn attributes_set(&self, opened: &ResolvedHandle, opening: &Opening<'_>) -> AttributeSet<'static> {
        const TIMES: [u32; 3] = set_of(&[Attribute::TimeAccessSet, Attribute::TimeModifySet]);
        let volume = self.exports.volume(opened);
        let of = |wanted: &WantedAttributes| match volume.store().stat_after(opened.object) {
            Some(made) => wanted.set_on(&made),
            None => wanted.set(),
        };
        match &opening.how {
            How::Found => AttributeSet(Bitmap::EMPTY),
            How::Made(wanted) => of(wanted),
            How::MadeExclusively(wanted) => {
                let set = wanted.as_ref().map_or([0; 3], |wanted| of(wanted).0.words());
                // The client sets the times itself where they keep the verifier (8881-18.16.3).
                let times = if volume.profile().can.keeps_verifiers { [0; 3] } else { TIMES };
                AttributeSet(Bitmap::from_words(either(set, times)))
            }
        }
    }

    /// Fails unless the caller may open a file that was there. Permission to execute a file is enough to read it: the client tells the two
    /// apart. A reclaim was permitted before the restart, at least to the owner.
    fn check_access(
        &self,
        opened: &ResolvedHandle,
        seen: &ObjectStat,
        opening: &Opening<'_>,
        sets_size: bool,
    ) -> Step {
        const READS: u32 = access::READ | access::EXECUTE;
        let reads = opening.modes.access & ShareModes::READ != 0;
        let writes = opening.modes.access & ShareModes::WRITE != 0 || sets_size;
        if writes && self.exports.takes_no_changes(opened) {
            return Err(Status4::RoFs.into());
        }
        if opening.is_reclaim && opened.caller.uid == seen.uid {
            return Ok(());
        }
        let wanted = if reads { READS } else { 0 } | if writes { access::MODIFY } else { 0 };
        let granted = opened.known(self.exports.volume(opened).access(&opened.caller, seen, wanted))?;
        let may_read = !reads || granted & READS != 0;
        let may_write = !writes || granted & access::MODIFY != 0;
        if may_read && may_write { Ok(()) } else { Err(Status4::Access.into()) }
    }

    /// Fails if another open or share is in the way, before anything changes.
    fn make_way(&mut self, opened: &ResolvedHandle, opening: &Opening<'_>) -> Step {
        let file = self.file_key(opened);
        let locking = &mut *self.state.locking.borrow_mut();
        if locking.has_share_conflict(file, opening.modes, self.now) {
            return Err(conflict_status(opening).into());
        }
        // A client that made way is forgotten on disk first.
        if locking.known_clients().has_forgotten() { Ok(()) } else { Err(Status4::Delay.into()) }
    }

    /// Opens a file as far as shares are concerned. Returns whether the owner had it open.
    fn open_state(
        &mut self,
        cursor: &Cursor<'_>,
        opened: &ResolvedHandle,
        opening: &Opening<'_>,
    ) -> Step<(StateToken, bool)> {
        let session = cursor.session()?;
        let request = OpenRequest {
            client: session.client(),
            owner: &opening.owner,
            file: self.file_key(opened),
            modes: opening.modes,
            elsewhere: ShareModes::default(),
        };
        match self.state.locking.borrow_mut().open(session, &request, self.now) {
            Ok(grant) => Ok((grant.token, grant.is_upgrade)),
            Err(OpenRefused::Conflict(_)) => Err(conflict_status(opening).into()),
            Err(OpenRefused::NoRoom(_)) => Err(Status4::Delay.into()),
        }
    }

    /// Ends an open whose size could not be set, unless the owner had the file open before.
    fn take_back(
        &mut self,
        cursor: &Cursor<'_>,
        opened: &ResolvedHandle,
        token: StateToken,
        is_upgrade: bool,
    ) -> Step {
        if !is_upgrade {
            let file = self.file_key(opened);
            let _ = self.state.locking.borrow_mut().close(cursor.session()?, &token, file);
        }
        Ok(())
    }
}

const fn conflict_status(opening: &Opening<'_>) -> Status4 {
    if opening.is_reclaim { Status4::ReclaimConflict } else { Status4::ShareDenied }
}

pub(super) fn open_downgrade<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &OpenDowngradeArguments,
) -> Step {
    let opened = cursor.object_or(Status4::BadStateid)?;
    let modes = modes_of(arguments.share_access, arguments.share_deny)?;
    cursor.reserve(STATEID_LEN)?;
    let file = server.file_key(&opened);
    let sent = token_of(cursor.meant(arguments.stateid)?);
    let session = cursor.session()?;
    let opens = &mut *server.state.locking.borrow_mut();
    let (client, slots) = (session.client(), session.fore().slots);
    let token = opens.opens_mut().downgrade(&sent, client, file, modes, slots).map_err(open_status)?;
    cursor.current_state = Some(wire_of(token));
    cursor.results.value(&wire_of(token))?;
    Ok(())
}

pub(super) fn close<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &CloseArguments4,
) -> Step {
    let opened = cursor.object_or(Status4::BadStateid)?;
    cursor.reserve(STATEID_LEN)?;
    let file = server.file_key(&opened);
    let sent = cursor.meant(arguments.stateid)?;
    let session = cursor.session()?;
    let locking = &mut *server.state.locking.borrow_mut();
    find_state(locking, session, sent, Some(file), &[StateKind::Open])?;
    locking.close(session, &token_of(sent), file).map_err(open_status)?;
    // Nothing waits for that.
    let _ = below::give_back(server.exports, locking, file, Range::ALL);
    cursor.current_state = Some(StateId::INVALID);
    cursor.results.value(&StateId::INVALID)?;
    Ok(())
}
