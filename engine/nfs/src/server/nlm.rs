//! NLM version 4: locks on the exports' files.
//!
//! `_MSG` procedures are answered by Calls of ours to the client; so is, in the end, a LOCK that has to wait.

use std::os::fd::RawFd;
use std::time::Duration;

use stag_rpc::{Call, Home, Outcome, Procedure as Bound, Reply, Service, Token};
use stag_vfs::{Blocked, FsError, ObjectKind, access};
use stag_wire::nfs3::Handle;
use stag_wire::nlm4::{
    self, CancelArguments, FreeAllArguments, Holder, Lock, LockArguments, Object, Procedure, Results,
    ShareArguments, ShareResults, Status, TestArguments, TestResults, Tested, UnlockArguments,
};
use stag_wire::xdr::Encode;

use super::locking::{Client, Ends, Locking, range};
use super::{CallContext, ExportTable, SharedExports, SharedLocking, decode};
use crate::callout::arguments as encoded;
use stag_state::open::ShareModes;
use stag_state::{FileKey, HostId, LockRefused, LockRequest, NoRoom, Range};
use stag_vfs::Store;

/// The service NLM version 4.
pub struct Nlm<S: Store + ?Sized> {
    exports: SharedExports<S>,
    locking: SharedLocking,
}

/// All but FREE_ALL may be called again: to lock what one has locked changes nothing.
const fn bound(number: u32) -> Option<Bound> {
    let bound = Bound::plain(match Procedure::from_number(number) {
        Some(Procedure::Null) => "NULL",
        Some(Procedure::Test) => "TEST",
        Some(Procedure::Lock) => "LOCK",
        Some(Procedure::Cancel) => "CANCEL",
        Some(Procedure::Unlock) => "UNLOCK",
        Some(Procedure::Granted) => "GRANTED",
        Some(Procedure::TestMsg) => "TEST_MSG",
        Some(Procedure::LockMsg) => "LOCK_MSG",
        Some(Procedure::CancelMsg) => "CANCEL_MSG",
        Some(Procedure::UnlockMsg) => "UNLOCK_MSG",
        Some(Procedure::GrantedMsg) => "GRANTED_MSG",
        Some(Procedure::TestRes) => "TEST_RES",
        Some(Procedure::LockRes) => "LOCK_RES",
        Some(Procedure::CancelRes) => "CANCEL_RES",
        Some(Procedure::UnlockRes) => "UNLOCK_RES",
        Some(Procedure::GrantedRes) => "GRANTED_RES",
        Some(Procedure::Share) => "SHARE",
        Some(Procedure::Unshare) => "UNSHARE",
        Some(Procedure::NmLock) => "NM_LOCK",
        Some(Procedure::FreeAll) => "FREE_ALL",
        None => return None,
    });
    Some(if number == Procedure::FreeAll as u32 { bound.once() } else { bound })
}

static BOUND: [Option<Bound>; Procedure::COUNT] = {
    let mut all = [const { None }; Procedure::COUNT];
    let mut number = 0;
    while number < all.len() {
        all[number] = bound(number as u32);
        number += 1;
    }
    all
};

impl<S: Store + ?Sized> Nlm<S> {
    pub(super) fn new(exports: SharedExports<S>, locking: SharedLocking) -> Nlm<S> {
        Nlm { exports, locking }
    }
}

impl<S: Store + ?Sized> Service for Nlm<S> {
    fn program(&self) -> u32 {
        nlm4::PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        (nlm4::VERSION, nlm4::VERSION)
    }

    fn procedure(&self, _: u32, procedure: u32) -> Option<&'static Bound> {
        BOUND.get(usize::try_from(procedure).ok()?)?.as_ref()
    }

    fn home(&self, call: &Call<'_>) -> Home {
        let exports = self.exports.borrow();
        match Procedure::from_number(call.procedure) {
            Some(Procedure::FreeAll) => exports.home_of_restarts(),
            Some(procedure) => {
                file_of(procedure, call).map_or(Home::Here, |file| exports.home_of_locks(file.0))
            }
            None => Home::Here,
        }
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        let exports = self.exports.borrow();
        let mut desk = Desk {
            exports: &exports,
            locking: &mut self.locking.borrow_mut(),
            asker: CallContext::of(call),
            ends: (call.peer(), call.local()),
            now: call.now(),
        };
        let Some(procedure) = Procedure::from_number(call.procedure) else {
            // The engine calls only what `procedure` knows.
            reply.system_error();
            return Outcome::Done;
        };
        desk.answer(procedure, call, reply);
        Outcome::Done
    }

    fn poll_later(&mut self, now: Duration) -> Option<Token> {
        self.locking.borrow_mut().poll(now);
        None
    }

    fn next_timeout(&self) -> Option<Duration> {
        self.locking.borrow().next_timeout()
    }

    fn arm(&mut self) -> bool {
        self.locking.borrow_mut().arm()
    }

    fn disarm(&mut self) {
        self.locking.borrow_mut().disarm();
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        self.locking.borrow().descriptors(out);
    }
}

/// The file that a Call is about; `None` if it is about none, or its arguments make no sense.
fn file_of<'a>(procedure: Procedure, call: &Call<'a>) -> Option<Object<'a>> {
    let mut arguments = call.arguments();
    let file = match procedure {
        Procedure::Test | Procedure::TestMsg => arguments.value::<TestArguments<'_>>().ok()?.lock.file,
        Procedure::Lock | Procedure::NmLock | Procedure::LockMsg => {
            arguments.value::<LockArguments<'_>>().ok()?.lock.file
        }
        Procedure::Cancel | Procedure::CancelMsg => arguments.value::<CancelArguments<'_>>().ok()?.lock.file,
        Procedure::Unlock | Procedure::UnlockMsg => arguments.value::<UnlockArguments<'_>>().ok()?.lock.file,
        Procedure::Share | Procedure::Unshare => arguments.value::<ShareArguments<'_>>().ok()?.share.file,
        _ => return None,
    };
    Some(file)
}

/// One Call, and what it takes to answer it.
struct Desk<'a, S: Store + ?Sized> {
    exports: &'a ExportTable<S>,
    locking: &'a mut Locking,
    asker: CallContext<'a>,
    ends: Ends<'a>,
    now: Duration,
}

impl<S: Store + ?Sized> Desk<'_, S> {
    fn answer(&mut self, procedure: Procedure, call: &Call<'_>, reply: &mut Reply<'_>) {
        /// Decodes and runs; the results go with the Reply, or in a Call of ours.
        macro_rules! answer {
            (|$arguments:ident: $type:ty| $results:expr $(, by $res:ident)?) => {
                if let Some($arguments) = decode::<$type>(call, reply) {
                    let results = $results;
                    answer!(@send results $(, $res)?);
                }
            };
            (@send $results:ident) => { reply.success(|writer| writer.value(&$results)) };
            (@send $results:ident, $res:ident) => { self.message(Procedure::$res, &$results, reply) };
        }
        match procedure {
            Procedure::Null
            | Procedure::GrantedMsg
            | Procedure::TestRes
            | Procedure::LockRes
            | Procedure::CancelRes
            | Procedure::UnlockRes
            | Procedure::GrantedRes => reply.success(|_| Ok(())),
            Procedure::Test => {
                if let Some(arguments) = decode(call, reply) {
                    self.test(&arguments, |_, results| reply.success(|writer| writer.value(results)));
                }
            }
            Procedure::TestMsg => {
                if let Some(arguments) = decode(call, reply) {
                    self.test(&arguments, |desk, results| {
                        let results = encoded(results);
                        desk.send(Procedure::TestRes, results);
                    });
                    reply.success(|_| Ok(()));
                }
            }
            Procedure::Lock => answer!(|arguments: LockArguments<'_>| self.lock(&arguments, true)),
            Procedure::NmLock => answer!(|arguments: LockArguments<'_>| self.lock(&arguments, false)),
            Procedure::LockMsg => {
                answer!(|arguments: LockArguments<'_>| self.lock(&arguments, true), by LockRes);
            }
            Procedure::Cancel => answer!(|arguments: CancelArguments<'_>| self.cancel(&arguments)),
            Procedure::CancelMsg => {
                answer!(|arguments: CancelArguments<'_>| self.cancel(&arguments), by CancelRes);
            }
            Procedure::Unlock => answer!(|arguments: UnlockArguments<'_>| self.unlock(&arguments)),
            Procedure::UnlockMsg => {
                answer!(|arguments: UnlockArguments<'_>| self.unlock(&arguments), by UnlockRes);
            }
            // We never wait for another server's locks.
            Procedure::Granted => {
                answer!(|arguments: TestArguments<'_>| Results {
                    cookie: arguments.cookie,
                    status: Status::Denied
                });
            }
            Procedure::Share => answer!(|arguments: ShareArguments<'_>| self.share(&arguments, true)),
            Procedure::Unshare => answer!(|arguments: ShareArguments<'_>| self.share(&arguments, false)),
            Procedure::FreeAll => {
                if let Some(arguments) = decode::<FreeAllArguments<'_>>(call, reply) {
                    self.locking.free_all(&Client::new(arguments.name.0, self.ends), arguments.state);
                    reply.success(|_| Ok(()));
                }
            }
        }
    }

    fn message(&mut self, procedure: Procedure, results: &impl Encode, reply: &mut Reply<'_>) {
        self.send(procedure, encoded(results));
        reply.success(|_| Ok(()));
    }

    fn send(&mut self, procedure: Procedure, results: Vec<u8>) {
        self.locking.send(self.ends, procedure, results, self.now);
    }

    /// The file of a handle. `exclusive` is given if it is about to be locked: then it must be a file, and the
    /// caller must be able to read it, or own it.
    fn file(&self, handle: Object<'_>, exclusive: Option<bool>) -> Result<FileKey, Status> {
        let opened = self.exports.open(&self.asker, Handle(handle.0)).map_err(status)?;
        let volume = self.exports.volume(&opened);
        let key = FileKey { volume: volume.profile().volume, object: opened.object };
        let Some(exclusive) = exclusive else { return Ok(key) };
        // A lock cannot wait. Who asks for it has just opened the file.
        let seen = self.exports.stat(&opened).or_else(|blocked| match blocked {
            Blocked::Waits(_) => volume.store().stat_seen(opened.object).ok_or(blocked),
            Blocked::Fails(_) => Err(blocked),
        });
        let seen = seen.map_err(|blocked| status(blocked.into()))?;
        if seen.kind != ObjectKind::Regular {
            return Err(Status::Failed);
        }
        if exclusive && self.exports.takes_no_changes(&opened) {
            return Err(Status::Rofs);
        }
        let caller = &opened.caller;
        let may_read =
            || volume.access(caller, &seen, access::READ).map_err(|blocked| status(blocked.into()));
        if seen.uid != caller.uid && may_read()? == 0 {
            return Err(Status::Failed);
        }
        Ok(key)
    }

    /// The requested lock, of a host that may not be known.
    fn request<'l>(
        &self,
        lock: &Lock<'l>,
        exclusive: bool,
        file: FileKey,
    ) -> Result<LockRequest<'l>, Status> {
        let host = self.locking.find_host(&Client::new(lock.caller.0, self.ends));
        let range = range(lock).ok_or(Status::Fbig)?;
        Ok(LockRequest { file, host, svid: lock.svid, handle: lock.owner.0, range, exclusive })
    }

    fn test(&mut self, arguments: &TestArguments<'_>, answer: impl FnOnce(&mut Self, &TestResults<'_>)) {
        let found = self.find_conflict(arguments);
        let cookie = arguments.cookie;
        let outcome = match &found {
            Ok(None) => Tested::Other(Status::Granted),
            Ok(Some(held)) => Tested::Denied(Holder {
                exclusive: held.exclusive,
                svid: held.owner.svid,
                owner: Object(&held.owner.handle),
                offset: held.range.first(),
                len: held.range.wire_len(),
            }),
            Err(status) => Tested::Other(*status),
        };
        answer(self, &TestResults { cookie, outcome });
    }

    fn find_conflict(&mut self, arguments: &TestArguments<'_>) -> Result<Option<stag_state::Held>, Status> {
        if self.locking.poll_grace(self.now) {
            return Err(Status::DeniedGracePeriod);
        }
        let file = self.file(arguments.lock.file, Some(arguments.exclusive))?;
        let request = self.request(&arguments.lock, arguments.exclusive, file)?;
        Ok(self.locking.conflict(&request, self.now).cloned())
    }

    fn lock<'l>(&mut self, arguments: &LockArguments<'l>, is_monitored: bool) -> Results<'l> {
        let status = match self.try_lock(arguments, is_monitored) {
            Ok(status) | Err(status) => status,
        };
        Results { cookie: arguments.cookie, status }
    }

    fn try_lock(&mut self, arguments: &LockArguments<'_>, is_monitored: bool) -> Result<Status, Status> {
        let LockArguments { lock, exclusive, .. } = arguments;
        self.check_grace(arguments.reclaim)?;
        let file = self.file(lock.file, Some(*exclusive))?;
        let client = Client::new(lock.caller.0, self.ends);
        let range = range(lock).ok_or(Status::Fbig)?;
        let state = is_monitored.then_some(arguments.state);
        let host = self.locking.host(&client, state).ok_or_else(|| self.no_room())?;
        let (svid, handle) = (lock.svid, lock.owner.0);
        let request = LockRequest { file, host, svid, handle, range, exclusive: *exclusive };
        match self.locking.lock(&request, self.now) {
            Ok(()) => {
                self.locking.statistics.locks += 1;
                self.locking.acknowledge(&request);
                if is_monitored {
                    self.locking.note(host);
                }
                Ok(Status::Granted)
            }
            Err(LockRefused::Conflict) if arguments.block => {
                let waiter = Locking::waiter(&client, lock.file.0);
                self.locking.table.wait(&request, waiter).map_err(|NoRoom| self.no_room())?;
                self.locking.statistics.blocked += 1;
                Ok(Status::Blocked)
            }
            Err(LockRefused::Conflict) => {
                self.locking.statistics.denied += 1;
                Err(Status::Denied)
            }
            Err(LockRefused::NoRoom(_)) => Err(self.no_room()),
        }
    }

    /// In the grace period only locks of before are given; outside of it, it is unknown whether the lock
    /// still existed.
    fn check_grace(&mut self, reclaim: bool) -> Result<(), Status> {
        let is_grace = self.locking.poll_grace(self.now);
        let is_late = reclaim && !is_grace && self.locking.has_grace();
        if is_grace != reclaim && (is_grace || is_late) { Err(Status::DeniedGracePeriod) } else { Ok(()) }
    }

    fn no_room(&mut self) -> Status {
        self.locking.statistics.refused += 1;
        Status::DeniedNolocks
    }

    fn cancel<'l>(&mut self, arguments: &CancelArguments<'l>) -> Results<'l> {
        let CancelArguments { lock, exclusive, .. } = arguments;
        let request = self.file(lock.file, None).and_then(|file| self.request(lock, *exclusive, file));
        let status = match request {
            // Too late: it has the lock, and gives it back by UNLOCK.
            Ok(request) if !self.locking.table.cancel(&request) && self.locking.is_granted(&request) => {
                Status::Denied
            }
            // Also if nothing waits: that is what was wanted.
            Ok(_) => Status::Granted,
            Err(status) => status,
        };
        Results { cookie: arguments.cookie, status }
    }

    /// Also in the grace period: giving back a lock conflicts with no other.
    fn unlock<'l>(&mut self, arguments: &UnlockArguments<'l>) -> Results<'l> {
        let lock = &arguments.lock;
        let request = self.file(lock.file, None).and_then(|file| self.request(lock, false, file));
        let status = match request {
            Ok(request) => {
                self.locking.acknowledge(&request);
                match self.locking.table.unlock(&request) {
                    Ok(()) => Status::Granted,
                    Err(NoRoom) => self.no_room(),
                }
            }
            Err(status) => status,
        };
        Results { cookie: arguments.cookie, status }
    }

    fn share<'l>(&mut self, arguments: &ShareArguments<'l>, take: bool) -> ShareResults<'l> {
        let status = match self.try_share(arguments, take) {
            Ok(()) => Status::Granted,
            Err(status) => status,
        };
        ShareResults { cookie: arguments.cookie, status, sequence: 0 }
    }

    fn try_share(&mut self, arguments: &ShareArguments<'_>, take: bool) -> Result<(), Status> {
        let share = &arguments.share;
        if take {
            self.check_grace(arguments.reclaim)?;
        }
        let file = self.file(share.file, take.then_some(share.access.number() & 2 != 0))?;
        let client = Client::new(share.caller.0, self.ends);
        let host: HostId = if take {
            self.locking.host(&client, None).ok_or_else(|| self.no_room())?
        } else {
            self.locking.find_host(&client)
        };
        // A share is of the whole file, and of no process.
        let Some(range) = Range::new(0, 0) else { return Err(Status::Failed) };
        let request = LockRequest { file, host, svid: 0, handle: share.owner.0, range, exclusive: false };
        if !take {
            self.locking.table.unshare(&request);
            return Ok(());
        }
        let modes = ShareModes { access: share.access.number() as u8, deny: share.mode.number() as u8 };
        match self.locking.share(&request, modes, self.now) {
            Ok(()) => {
                self.locking.note(host);
                Ok(())
            }
            Err(LockRefused::Conflict) => Err(Status::Denied),
            Err(LockRefused::NoRoom(_)) => Err(self.no_room()),
        }
    }
}

/// What NLM says when a store fails.
fn status(error: FsError) -> Status {
    match error {
        FsError::Stale | FsError::BadHandle => Status::StaleFh,
        FsError::ReadOnly => Status::Rofs,
        _ => Status::Failed,
    }
}
