//! The server: NFS version 3, MOUNT and NFSACL as services of one engine, over the exports that they share.
//!
//! ```text
//! Call ─▶ decode ─▶ open the handle: forged? gone? allowed? as whom? ─▶ store ─▶ attributes ─▶ encode ─▶ Reply
//! ```
//!
//! [`services`] makes them from the same [`ExportTable`]. All run on the reactor that owns the stores.

// A failed procedure returns the attributes that RFC 1813 gives it: larger than clippy likes a `Result`, but on
// the stack, where a pointer to the heap would cost more.
#![expect(clippy::result_large_err, reason = "RFC 1813's failures carry attributes; see above")]

mod below;
mod holdings;
mod home;
mod limits;
mod listing;
mod live;
mod locking;
mod mount;
mod nfs;
mod nfsacl;
mod nlm;
mod nsm;
mod rerun;
mod rpcbind;
mod share;
mod traffic;
mod transfer;
mod v4;
mod waiting;
mod words;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use stag_fabric::Peer;
use stag_memory::Pool;
use stag_rpc::{Call, Reply};
use stag_runtime::{ReactorId, WallClock};
use stag_vfs::{Blocked, ChangeStep, FsError, ObjectStat, ReadStep, Timestamp, Volume};
use stag_wire::nfs3::{Attributes, Handle, PostOpAttributes, ReadReply, WccAttributes};
use stag_wire::xdr::{Decode, Reader, XdrError};

use crate::export::{Export, Rights};
use crate::handle::{self, HANDLE_LEN, HandleKey, VerifiedHandles};
use nfs::Answer;
use stag_vfs::UserIdentity;
use stag_vfs::{ObjectId, Progress, Store, Ticket};
use waiting::{Acting, Begun, Ending, Waiting, WaitsFor};
use words::{failure, wcc};

pub use holdings::{ClientState4, HeldState, HeldWhat, HostHoldings, HostName};
pub use live::{Removal, add_export, change_export, remove_export};
pub use locking::{Locking, LockingConfig, LockingLink, LockingStatistics, SharedLocking};
pub use mount::Mount;
pub use nfs::{Nfs, TRANSFER_LEN_MAX};
pub use nfsacl::Nfsacl;
pub use nlm::Nlm;
pub use nsm::Nsm;
pub use rpcbind::{DATAGRAM_PROGRAMS, Registered, Registry, Rpcbind, datagram_programs_at, programs_at};
pub use share::Share;
pub use traffic::{Traffic, TrafficClient};
pub use v4::{Config4, Nfs4, OperationStatistics, SharedSessions};

/// What tells the time of day, for time stamps of files.
#[derive(Clone, Debug)]
pub enum TimeOfDay {
    /// The system does.
    System(WallClock),
    /// It is this much more than the reactor's time: for simulations.
    Offset(Duration),
}

impl TimeOfDay {
    /// The time of day when the reactor's clock stands at `now`.
    #[inline]
    pub fn at(&mut self, now: Duration) -> Timestamp {
        let time = match self {
            TimeOfDay::System(clock) => clock.at(now),
            TimeOfDay::Offset(offset) => *offset + now,
        };
        let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        Timestamp { seconds, nanoseconds: time.subsec_nanos() }
    }
}

/// Why exports cannot be served together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExportsError {
    /// Clients could not tell them apart.
    #[error("two exports have the path {0:?}: give each its own")]
    SamePath(String),
    /// Handles could not tell them apart.
    #[error("exports {first:?} and {second:?} have the file system id {fsid}: give each its own")]
    SameFsid {
        /// One of them.
        first: String,
        /// The other.
        second: String,
        /// The id.
        fsid: u64,
    },
}

/// Fails if two exports have the same path or the same file system id.
fn check_distinct((first, fsid): (&str, u64), (second, other_fsid): (&str, u64)) -> Result<(), ExportsError> {
    if first == second {
        return Err(ExportsError::SamePath(first.to_owned()));
    }
    if fsid == other_fsid {
        return Err(ExportsError::SameFsid { first: first.to_owned(), second: second.to_owned(), fsid });
    }
    Ok(())
}

/// An export whose files another reactor of the group has.
#[derive(Clone, Debug)]
pub struct Elsewhere {
    /// The export.
    pub export: Export,
    /// Its file system id there.
    pub fsid: u64,
    /// The reactor that has its files.
    pub reactor: ReactorId,
}

/// What is served: exports, each with the store that keeps its files.
pub struct ExportTable<S: Store + ?Sized> {
    shares: Vec<Share<S>>,
    elsewhere: Vec<Elsewhere>,
    /// Paths, in the order in which a group lists its exports.
    order: Vec<String>,
    /// Where locks on files of directories are kept; `None`: here.
    locks_at: Option<ReactorId>,
    /// Whether NFS version 3 and NFSACL are served.
    has_version_3: bool,
    handles: VerifiedHandles,
    /// For results that have to be in registered memory and are not.
    pool: Pool,
    waiting: Waiting,
    mount_log: mount::MountLog,
    traffic: traffic::ClientsTraffic,
    /// An export has limits in octets per second.
    has_limits: bool,
    /// What the Call in hand changed is on its way to stable storage: what to wait for.
    uncommitted: Option<WaitsFor>,
    /// The current Call named an object that does not exist or that its caller may not access.
    refused: Cell<bool>,
}

impl<S: Store + ?Sized> ExportTable<S> {
    /// Puts exports together. `pool` is one that Replies can be sent from.
    pub fn new(shares: Vec<(Export, Box<S>)>, pool: Pool) -> Result<ExportTable<S>, ExportsError> {
        let shares: Vec<_> = shares.into_iter().map(|(export, store)| Share::new(export, store)).collect();
        for (index, share) in shares.iter().enumerate() {
            for earlier in &shares[..index] {
                check_distinct(earlier.identity(), share.identity())?;
            }
        }
        let mut exports = ExportTable {
            shares,
            elsewhere: Vec::new(),
            order: Vec::new(),
            locks_at: None,
            has_version_3: true,
            handles: VerifiedHandles::new(HandleKey::new()),
            pool,
            waiting: Waiting::default(),
            mount_log: mount::MountLog::default(),
            traffic: traffic::ClientsTraffic::default(),
            has_limits: false,
            uncommitted: None,
            refused: Cell::new(false),
        };
        exports.note_limits();
        Ok(exports)
    }

    /// The same exports, with handles of `key`: those of an earlier server with that key are good here.
    #[must_use]
    pub fn with_key(self, key: HandleKey) -> ExportTable<S> {
        ExportTable { handles: VerifiedHandles::new(key), ..self }
    }

    /// The same exports as one reactor of a group serves them, beside those whose files others have. `locks_at` is the reactor
    /// that keeps the locks on files of directories; those on files in memory are kept where the files are. Files in memory belong to one reactor, and a directory is served by all of them: each
    /// has a store of it, with the same write verifier.
    ///
    /// # Errors
    ///
    /// As [`ExportTable::new`].
    pub fn in_group(
        mut self,
        elsewhere: Vec<Elsewhere>,
        locks_at: ReactorId,
    ) -> Result<ExportTable<S>, ExportsError> {
        for Elsewhere { export, fsid, .. } in &elsewhere {
            for own in &self.shares {
                check_distinct(own.identity(), (&export.path, *fsid))?;
            }
        }
        (self.elsewhere, self.locks_at) = (elsewhere, Some(locks_at));
        Ok(self)
    }

    /// The same exports, of which MOUNT lists these paths first and in this order at each reactor of a group. Others follow by
    /// their fsid. A reactor that is alone lists its exports as [`ExportTable::new`] got them.
    #[must_use]
    pub fn listed_in_order(mut self, paths: Vec<String>) -> ExportTable<S> {
        self.order = paths;
        self
    }

    /// The same exports, served by NFS version 3 and NFSACL or not.
    #[must_use]
    pub fn serving_version_3(self, has_version_3: bool) -> ExportTable<S> {
        ExportTable { has_version_3, ..self }
    }

    /// Lets `calls_max` Calls wait at once for one store to look at names and attributes, or to change them. Without this it is 2,048. A
    /// client has as many of these places as it leaves to others: alone half, two a third each. One that wants more hears
    /// `NFS3ERR_JUKEBOX` or `NFS4ERR_DELAY`.
    pub fn set_waiting_max(&mut self, calls_max: usize) {
        self.waiting.set_places_max(calls_max);
    }

    /// Lets `transfers_max` READs and WRITEs wait at once for the limits of one export. Without this it is 8,192. Clients have parts of
    /// these places, and are refused, as with [`ExportTable::set_waiting_max`].
    pub fn set_limited_max(&mut self, transfers_max: usize) {
        let rated = self.shares.iter_mut().filter_map(Share::rated_mut);
        rated.for_each(|rated| rated.set_waiting_max(transfers_max));
    }

    /// The lowest and the highest version of a service that has only `version`; a range without any if it is not served.
    fn versions(is_served: bool, version: u32) -> (u32, u32) {
        if is_served { (version, version) } else { (u32::MAX, 0) }
    }

    /// The exports with their stores.
    #[must_use]
    pub fn shares(&self) -> &[Share<S>] {
        &self.shares
    }

    /// Those that are served, with their places.
    fn served(&self) -> impl Iterator<Item = (usize, &Share<S>)> {
        self.shares.iter().enumerate().filter(|(_, share)| !share.is_removed())
    }

    /// The object of a handle, if `asker` may know it.
    fn open(&self, asker: &CallContext<'_>, handle: Handle<'_>) -> Result<ResolvedHandle, FsError> {
        let opened = self.find(asker, handle);
        self.refused.set(opened.is_err());
        opened
    }

    // Each Call comes here: what is found is made where it is kept.
    #[inline(always)]
    fn find(&self, asker: &CallContext<'_>, handle: Handle<'_>) -> Result<ResolvedHandle, FsError> {
        let (fsid, object) = self.handles.open(handle.0)?;
        let has_fsid = |share: &Share<S>| share.volume().profile().fsid == fsid && !share.is_removed();
        let Some(place) = self.shares.iter().position(has_fsid) else {
            // The second handle of a Call whose first one is of a file here.
            let is_elsewhere = self.elsewhere.iter().any(|other| other.fsid == fsid);
            return Err(if is_elsewhere { FsError::CrossDevice } else { FsError::Stale });
        };
        if self.waiting.is_crowded() && !asker.has_waited && self.waiting.has_no_place(place, asker.peer) {
            return Err(FsError::Busy);
        }
        self.resolve(asker, place, object).ok_or(FsError::AccessDenied)
    }

    /// An object of an export; `None`: `asker` has no rights there.
    #[inline(always)]
    fn resolve(&self, asker: &CallContext<'_>, place: usize, object: ObjectId) -> Option<ResolvedHandle> {
        let share = &self.shares[place];
        let read_only = match share.rights(asker.peer) {
            Rights::None => return None,
            Rights::ReadOnly => true,
            Rights::ReadWrite => false,
        };
        let caller = share.export().caller(asker.caller.as_ref());
        Some(ResolvedHandle { share: place, object, caller, read_only })
    }

    /// A handle in words, for the log: its export, the number of its object, and its octets.
    #[cold]
    fn describe(&self, handle: &[u8]) -> String {
        let octets: String = handle.iter().map(|octet| format!("{octet:02x}")).collect();
        let own = self.shares.iter().map(|share| (share.export(), share.volume().profile().fsid));
        let others = self.elsewhere.iter().map(|other| (&other.export, other.fsid));
        let export = own.chain(others).find(|(_, fsid)| handle::fsid(handle) == Some(*fsid));
        match export.zip(handle::fileid(handle)) {
            Some(((export, _), fileid)) => format!("{} file {fileid}, handle {octets}", export.path),
            None => format!("handle {octets}"),
        }
    }

    /// Tells the engine if the Call in hand was refused: who gets nothing else makes room for others.
    #[inline]
    fn tell_refused(&self, reply: &mut Reply<'_>) {
        if self.refused.take() {
            reply.refuses_caller();
        }
    }

    /// Answers JUKEBOX if the results of the Call in hand found no memory. The only ones that are so long are those of procedures which
    /// fail with the attributes of one object.
    #[inline]
    fn refuse_for_memory(reply: &mut Reply<'_>) {
        if reply.lacks_memory() {
            reply.forget_results();
            Self::refuse_for_now(reply);
        }
    }

    /// Answers JUKEBOX to a procedure that fails with the attributes of one object.
    #[cold]
    fn refuse_for_now(reply: &mut Reply<'_>) {
        let failed: ReadReply<'_> = Err(failure(FsError::Busy, None));
        failed.send(reply);
    }

    fn volume(&self, opened: &ResolvedHandle) -> &Volume<S> {
        self.shares[opened.share].volume()
    }

    fn volume_mut(&mut self, opened: &ResolvedHandle) -> &mut Volume<S> {
        self.shares[opened.share].volume_mut()
    }

    fn fsid(&self, opened: &ResolvedHandle) -> u64 {
        self.volume(opened).profile().fsid
    }

    /// Whether the caller cannot change anything, because of its rights or because of the files.
    fn takes_no_changes(&self, opened: &ResolvedHandle) -> bool {
        opened.read_only || self.volume(opened).store().is_read_only()
    }

    fn seal(&self, opened: &ResolvedHandle, object: ObjectId) -> [u8; HANDLE_LEN] {
        self.handles.seal(self.fsid(opened), object)
    }

    fn stat(&self, opened: &ResolvedHandle) -> ReadStep<ObjectStat> {
        self.volume(opened).stat(opened.object)
    }

    /// The attributes of an object of the same file system, as it was seen.
    fn shown(&self, opened: &ResolvedHandle, seen: &ObjectStat) -> Attributes {
        words::attributes(seen, self.fsid(opened))
    }

    /// The attributes of an object that a procedure has just changed, or failed to.
    #[inline(always)]
    fn after(&self, opened: &ResolvedHandle) -> PostOpAttributes {
        let volume = self.volume(opened);
        let seen = volume.store().stat_after(opened.object)?;
        Some(words::attributes(&seen, volume.profile().fsid))
    }

    /// What an object is that is about to be changed and was seen so. `None` if something else is changing it at the same time.
    fn before(&self, opened: &ResolvedHandle, seen: &ObjectStat) -> Option<WccAttributes> {
        (!self.volume(opened).store().is_changing(seen.object)).then(|| wcc(seen))
    }

    /// The same of a file that a WRITE or COMMIT is about to begin on. `None` also where a store does them later: others come
    /// between, so what the file was before is not told then.
    #[inline(always)]
    fn before_transfer(&self, opened: &ResolvedHandle) -> Option<WccAttributes> {
        let volume = self.volume(opened);
        if volume.profile().can.finishes_transfers_later {
            return None;
        }
        volume.store().stat_after(opened.object).map(|seen| wcc(&seen))
    }

    /// Runs `work` on the object of `handle`, as it is; gives its attributes as well.
    fn with_object<T>(
        &mut self,
        asker: &CallContext<'_>,
        handle: Handle<'_>,
        work: impl FnOnce(&mut Self, &ResolvedHandle, &ObjectStat) -> ReadStep<T>,
    ) -> Result<(Result<T, FsError>, PostOpAttributes), WaitsFor> {
        self.with_seen(asker, handle, Self::stat, work)
    }

    /// The same of a directory in which a name is looked up.
    fn with_directory<T>(
        &mut self,
        asker: &CallContext<'_>,
        handle: Handle<'_>,
        work: impl FnOnce(&mut Self, &ResolvedHandle, &ObjectStat) -> ReadStep<T>,
    ) -> Result<(Result<T, FsError>, PostOpAttributes), WaitsFor> {
        let stat =
            |exports: &Self, opened: &ResolvedHandle| exports.volume(opened).stat_to_search(opened.object);
        self.with_seen(asker, handle, stat, work)
    }

    #[inline(always)]
    fn with_seen<T>(
        &mut self,
        asker: &CallContext<'_>,
        handle: Handle<'_>,
        stat: impl FnOnce(&Self, &ResolvedHandle) -> ReadStep<ObjectStat>,
        work: impl FnOnce(&mut Self, &ResolvedHandle, &ObjectStat) -> ReadStep<T>,
    ) -> Result<(Result<T, FsError>, PostOpAttributes), WaitsFor> {
        let opened = match self.open(asker, handle) {
            Ok(opened) => opened,
            Err(error) => return Ok((Err(error), None)),
        };
        let seen = match opened.settle(stat(self, &opened))? {
            Ok(seen) => seen,
            Err(error) => return Ok((Err(error), None)),
        };
        let result = opened.settle(work(self, &opened, &seen))?;
        Ok((result, Some(self.shown(&opened, &seen))))
    }

    /// Runs `work`, which changes the object of `handle`, for a procedure that ends with `what`. Who changed names or attributes
    /// answers by [`ExportTable::answer`].
    fn change(
        &mut self,
        asker: &CallContext<'_>,
        handle: Handle<'_>,
        what: Ending,
        work: impl FnOnce(&mut Self, &ResolvedHandle, &ObjectStat) -> ChangeStep<Option<ObjectStat>>,
    ) -> Begun {
        let fails = |exports: &mut Self, error| {
            let acting = Acting { what, opened: None, before: None };
            Begun::Over(acting.conclude(exports, Err(error)))
        };
        let opened = match self.open(asker, handle) {
            Ok(opened) => opened,
            Err(error) => return fails(self, error),
        };
        let seen = match opened.settle(self.stat(&opened)) {
            Ok(Ok(seen)) => seen,
            Ok(Err(error)) => return fails(self, error),
            Err(waits) => return Begun::Waits(waits),
        };
        let before = self.before(&opened, &seen);
        let step = if opened.read_only { Err(FsError::ReadOnly.into()) } else { work(self, &opened, &seen) };
        let acting = Acting { what, opened: Some(opened), before };
        match step {
            Ok(Progress::Done(made)) => Begun::Over(acting.conclude(self, Ok(made))),
            Ok(Progress::Later(ticket)) => Begun::Acts(opened.waits(ticket), acting),
            Err(Blocked::Fails(error)) => Begun::Over(acting.conclude(self, Err(error))),
            Err(Blocked::Waits(ticket)) => Begun::Waits(opened.waits(ticket)),
        }
    }
}

/// An object that a Call names, and as whom the Call runs there.
#[derive(Clone, Copy)]
struct ResolvedHandle {
    share: usize,
    object: ObjectId,
    caller: UserIdentity,
    /// The client may only read.
    read_only: bool,
}

impl ResolvedHandle {
    fn waits(&self, ticket: Ticket) -> WaitsFor {
        WaitsFor { share: self.share, ticket }
    }

    /// Tells a step that waits from one that has an answer.
    fn settle<T>(&self, step: ReadStep<T>) -> Result<Result<T, FsError>, WaitsFor> {
        match step {
            Ok(found) => Ok(Ok(found)),
            Err(Blocked::Fails(error)) => Ok(Err(error)),
            Err(Blocked::Waits(ticket)) => Err(self.waits(ticket)),
        }
    }
}

/// Who makes a Call.
#[derive(Clone)]
struct CallContext<'a> {
    peer: Option<&'a Peer>,
    caller: Option<UserIdentity>,
    /// The Call has waited for a store, and keeps its place.
    has_waited: bool,
}

impl<'a> CallContext<'a> {
    #[inline]
    fn of(call: &Call<'a>) -> CallContext<'a> {
        let caller = match &call.caller {
            stag_rpc::Caller::Sys(user) => {
                let fill = |groups: &mut _| if user.gids.is_empty() { 0 } else { user.gids.copy_to(groups) };
                Some(UserIdentity::with_groups(user.uid, user.gid, fill))
            }
            // What a flavor of its own calls a caller says nothing about files.
            _ => None,
        };
        CallContext { peer: call.peer(), caller, has_waited: false }
    }

    /// The same, for a Call that waits.
    fn to_owned(&self) -> Asker {
        Asker { peer: self.peer.cloned(), caller: self.caller }
    }

    #[inline]
    fn is_allowed(&self, export: &Export) -> bool {
        export.rights(self.peer) != Rights::None
    }
}

/// Who made a Call that waits.
struct Asker {
    peer: Option<Peer>,
    caller: Option<UserIdentity>,
}

impl Asker {
    fn context(&self) -> CallContext<'_> {
        CallContext { peer: self.peer.as_ref(), caller: self.caller, has_waited: true }
    }
}

/// Exports that several services of one reactor use in turn.
pub type SharedExports<S> = Rc<RefCell<ExportTable<S>>>;

/// Makes the services NFS, MOUNT and NFSACL of the same exports.
#[must_use]
pub fn services<S: Store + ?Sized>(
    exports: ExportTable<S>,
    time: TimeOfDay,
) -> (Nfs<S>, Mount<S>, Nfsacl<S>) {
    let exports = Rc::new(RefCell::new(exports));
    (Nfs::new(exports.clone(), time.clone()), Mount::new(exports.clone()), Nfsacl::new(exports, time))
}

/// What [`services_with_locks`] makes.
pub type ServicesWithLocks<S> = (Nfs<S>, Nfs4<S>, Mount<S>, Nfsacl<S>, Nlm<S>, Nsm, Rpcbind);

/// Makes all that a client of the exports may look for: NFS of versions 3 and 4, MOUNT and NFSACL; NLM and NSM, which share
/// `locking`; and an rpcbind that tells what is in `registry` (8267-5.1-a). `sessions` are those of all reactors.
#[must_use]
pub fn services_with_locks<S: Store + ?Sized>(
    exports: ExportTable<S>,
    time: TimeOfDay,
    locking: SharedLocking,
    registry: Registry,
    (version4, sessions): (Config4, SharedSessions),
) -> ServicesWithLocks<S> {
    let restarts_at = exports.home_of_restarts();
    let exports = Rc::new(RefCell::new(exports));
    (
        Nfs::new(exports.clone(), time.clone()),
        Nfs4::new(exports.clone(), time.clone(), version4, sessions, locking.clone()),
        Mount::new(exports.clone()),
        Nfsacl::new(exports.clone(), time.clone()),
        Nlm::new(exports, locking.clone()),
        Nsm::new(locking, restarts_at),
        Rpcbind::new(registry, time),
    )
}

/// Decodes a Call's arguments. If that fails, the Reply says so.
///
/// Octets after the arguments are forgiven: some clients send the roundup of a Read chunk inline.
#[inline]
fn decode<'a, T: Decode<'a>>(call: &Call<'a>, reply: &mut Reply<'_>) -> Option<T> {
    decode_with(call, reply, Reader::value)
}

/// The same of what `read` decodes.
#[inline]
fn decode_with<'a, T>(
    call: &Call<'a>,
    reply: &mut Reply<'_>,
    read: impl FnOnce(&mut Reader<'a>) -> Result<T, XdrError>,
) -> Option<T> {
    let mut reader = call.arguments();
    match read(&mut reader).and_then(|value| reader.finish_lenient().map(|()| value)) {
        Ok(value) => return Some(value),
        // 8166-6.1-c
        Err(XdrError::IneligibleChunk | XdrError::UnusedChunk) => reply.bad_chunks(),
        // 8267-6.4.2-b
        Err(_) => reply.garbage_arguments(),
    }
    None
}
