//! NLM version 4: locks on the exports' files.
//!
//! `_MSG` procedures are answered by Calls of ours to the client; so is, in the end, a LOCK that has to wait.
//!
//! TEST, LOCK, UNLOCK and SHARE of files that are locked below as well may wait for the store. They are kept and run again then.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::time::Duration;

use stag_rpc::{Call, Home, Outcome, Procedure as Bound, Reply, Service, Token};
use stag_vfs::{Blocked, FsError, ObjectKind, OctetLock, access};
use stag_wire::nfs3::Handle;
use stag_wire::nlm4::{
    self, CancelArguments, FreeAllArguments, Holder, Lock, LockArguments, Object, Procedure, Results,
    ShareArguments, ShareResults, Status, TestArguments, TestResults, Tested, UnlockArguments,
};
use stag_wire::xdr::{Encode, Reader, XdrError};

use super::below::{self, Attempt};
use super::locking::{Client, Ends, Locking, range};
use super::waiting::{Pending, Program, Waiter, WaitsFor};
use super::{
    Asker, CallContext, ExportTable, ResolvedHandle, SharedExports, SharedLocking, decode, decode_with,
};
use crate::callout::arguments as encoded;
use stag_state::open::ShareModes;
use stag_state::{FileKey, HostId, LockRefused, LockRequest, NoRoom, Range};
use stag_vfs::Store;

/// The service NLM version 4.
pub struct Nlm<S: Store + ?Sized> {
    exports: SharedExports<S>,
    locking: SharedLocking,
    /// Calls that waited, and their results.
    answered: VecDeque<(Token, Vec<u8>)>,
}

/// What waits for a store.
pub(super) enum SuspendedLock {
    Call(SuspendedCall),
    /// A request that was told to wait. Its Call is answered already.
    Attempt(Attempt),
}

/// A Call that waits for a store.
pub(super) struct SuspendedCall {
    procedure: Procedure,
    arguments: Vec<u8>,
    asker: Asker,
    local: Option<IpAddr>,
    /// All but the wait is over: it is an UNLOCK whose lock others below get now.
    is_done: bool,
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
    fn take_answered(&mut self, token: Token) -> Option<Vec<u8>> {
        let place = self.answered.iter().position(|(answered, _)| *answered == token)?;
        self.answered.remove(place).map(|(_, results)| results)
    }

    pub(super) fn new(exports: SharedExports<S>, locking: SharedLocking) -> Nlm<S> {
        Nlm { exports, locking, answered: VecDeque::new() }
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
        let mut desk = Desk {
            exports: &mut self.exports.borrow_mut(),
            locking: &mut self.locking.borrow_mut(),
            asker: CallContext::of(call),
            ends: (call.peer(), call.local()),
            token: call.token(),
            now: call.now(),
        };
        let Some(procedure) = Procedure::from_number(call.procedure) else {
            // The engine calls only what `procedure` knows.
            reply.system_error();
            return Outcome::Done;
        };
        desk.answer(procedure, call, reply)
    }

    fn poll_later(&mut self, now: Duration) -> Option<Token> {
        if let Some((token, _)) = self.answered.front() {
            return Some(*token);
        }
        let exports = &mut *self.exports.borrow_mut();
        let locking = &mut *self.locking.borrow_mut();
        let mut has_taken = false;
        while let Some((token, suspended)) = exports.take_lock(now, has_taken) {
            has_taken = true;
            match *suspended {
                SuspendedLock::Attempt(attempt) => attempt.resume(exports, locking, now),
                SuspendedLock::Call(call) => {
                    if let Some(results) = call.resume(exports, locking, token, now) {
                        self.answered.push_back((token, results));
                        return Some(token);
                    }
                }
            }
        }
        below::poll(exports, locking, now);
        locking.poll(now);
        None
    }

    fn finish(&mut self, token: Token, reply: &mut Reply<'_>) {
        match self.take_answered(token) {
            Some(results) => reply.success(|writer| writer.opaque_fixed(&results)),
            None => reply.system_error(),
        }
    }

    fn abandoned(&mut self, token: Token) {
        self.take_answered(token);
    }

    fn next_timeout(&self) -> Option<Duration> {
        if self.answered.is_empty() { self.locking.borrow().next_timeout() } else { Some(Duration::ZERO) }
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

/// Arguments of a procedure that may wait for a store.
enum Arguments<'a> {
    Test(TestArguments<'a>),
    /// Whether the host is monitored.
    Lock(LockArguments<'a>, bool),
    Unlock(UnlockArguments<'a>),
    Share(ShareArguments<'a>),
}

impl<'a> Arguments<'a> {
    /// Whether a procedure has such, and by which Call of ours its results go, if not by the Reply.
    const fn way(procedure: Procedure) -> Option<Option<Procedure>> {
        match procedure {
            Procedure::Test | Procedure::Lock | Procedure::NmLock | Procedure::Unlock | Procedure::Share => {
                Some(None)
            }
            Procedure::TestMsg => Some(Some(Procedure::TestRes)),
            Procedure::LockMsg => Some(Some(Procedure::LockRes)),
            Procedure::UnlockMsg => Some(Some(Procedure::UnlockRes)),
            _ => None,
        }
    }

    /// Reads them, of a procedure that has such.
    fn read(procedure: Procedure, reader: &mut Reader<'a>) -> Result<Arguments<'a>, XdrError> {
        Ok(match procedure {
            Procedure::Test | Procedure::TestMsg => Arguments::Test(reader.value()?),
            Procedure::Unlock | Procedure::UnlockMsg => Arguments::Unlock(reader.value()?),
            Procedure::Share => Arguments::Share(reader.value()?),
            _ => Arguments::Lock(reader.value()?, procedure != Procedure::NmLock),
        })
    }
}

/// Where the results of a procedure go that may wait.
enum Sink<'s, 'r> {
    /// Into the Reply.
    Reply(&'s mut Reply<'r>),
    /// Into these octets, for a Reply that follows.
    Octets(&'s mut Vec<u8>),
}

impl Sink<'_, '_> {
    fn put(&mut self, results: &impl Encode) {
        match self {
            Sink::Reply(reply) => reply.success(|writer| writer.value(results)),
            Sink::Octets(octets) => **octets = encoded(results),
        }
    }

    fn put_nothing(&mut self) {
        if let Sink::Reply(reply) = self {
            reply.success(|_| Ok(()));
        }
    }
}

/// A procedure waits for a store.
struct Wait {
    waits: WaitsFor,
    /// All but this is over.
    is_done: bool,
}

/// Why a step of a procedure has no answer.
enum Stopped {
    Ends(Status),
    Waits(WaitsFor),
}

impl From<Status> for Stopped {
    fn from(status: Status) -> Stopped {
        Stopped::Ends(status)
    }
}

impl SuspendedCall {
    /// Goes on when the store is done. `None`: it waits again.
    fn resume<S: Store + ?Sized>(
        self,
        exports: &mut ExportTable<S>,
        locking: &mut Locking,
        token: Token,
        now: Duration,
    ) -> Option<Vec<u8>> {
        let mut results = Vec::new();
        let waited = {
            let asker = self.asker.context();
            let ends = (self.asker.peer.as_ref(), self.local.as_ref());
            let mut desk = Desk { exports, locking, asker, ends, token, now };
            let arguments = Arguments::read(self.procedure, &mut Reader::new(&self.arguments));
            // They were read once, so they can be read again.
            let Ok(arguments) = arguments else { return Some(results) };
            desk.perform(self.procedure, &arguments, self.is_done, Sink::Octets(&mut results))
        };
        let Err(Wait { waits, is_done }) = waited else { return Some(results) };
        let waiter = Waiter::new(Program::Nlm, token, self.asker.peer.as_ref());
        let again = SuspendedCall { is_done, ..self };
        let _ = exports.keep(waits, waiter, Pending::Lock(Box::new(SuspendedLock::Call(again))));
        None
    }
}

/// One Call, and what it takes to answer it.
struct Desk<'a, S: Store + ?Sized> {
    exports: &'a mut ExportTable<S>,
    locking: &'a mut Locking,
    asker: CallContext<'a>,
    ends: Ends<'a>,
    token: Token,
    now: Duration,
}

impl<S: Store + ?Sized> Desk<'_, S> {
    fn answer(&mut self, procedure: Procedure, call: &Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        if Arguments::way(procedure).is_some() {
            return self.begin(procedure, call, reply);
        }
        self.answer_at_once(procedure, call, reply);
        Outcome::Done
    }

    /// Answers a procedure, or keeps it until its store is done.
    fn begin(&mut self, procedure: Procedure, call: &Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        let arguments = decode_with(call, reply, |reader| Arguments::read(procedure, reader));
        let Some(arguments) = arguments else { return Outcome::Done };
        let Err(Wait { waits, is_done }) = self.perform(procedure, &arguments, false, Sink::Reply(reply))
        else {
            return Outcome::Done;
        };
        let suspended = SuspendedCall {
            procedure,
            arguments: call.arguments().rest().to_vec(),
            asker: self.asker.to_owned(),
            local: self.ends.1.copied(),
            is_done,
        };
        let pending = Pending::Lock(Box::new(SuspendedLock::Call(suspended)));
        self.exports.keep(waits, Waiter::of(Program::Nlm, call), pending)
    }

    /// Runs a procedure that may wait. `is_done`: it has, and only its results are missing.
    fn perform(
        &mut self,
        procedure: Procedure,
        arguments: &Arguments<'_>,
        is_done: bool,
        mut sink: Sink<'_, '_>,
    ) -> Result<(), Wait> {
        let by = Arguments::way(procedure).flatten();
        match arguments {
            Arguments::Test(arguments) => {
                let found = self.find_conflict(arguments)?;
                self.tell(by, &found.results(arguments.cookie), &mut sink);
            }
            Arguments::Lock(arguments, is_monitored) => {
                let results = self.lock(arguments, *is_monitored)?;
                self.tell(by, &results, &mut sink);
            }
            Arguments::Unlock(arguments) => {
                let status = if is_done { Status::Granted } else { self.unlock(arguments)? };
                self.tell(by, &Results { cookie: arguments.cookie, status }, &mut sink);
            }
            Arguments::Share(arguments) => {
                let results = self.share(arguments)?;
                self.tell(by, &results, &mut sink);
            }
        }
        Ok(())
    }

    /// Gives results to the client, by a Call of ours or by the Reply.
    fn tell(&mut self, by: Option<Procedure>, results: &impl Encode, sink: &mut Sink<'_, '_>) {
        match by {
            Some(procedure) => {
                self.send(procedure, encoded(results));
                sink.put_nothing();
            }
            None => sink.put(results),
        }
    }

    fn answer_at_once(&mut self, procedure: Procedure, call: &Call<'_>, reply: &mut Reply<'_>) {
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
            // They begin otherwise.
            Procedure::Test
            | Procedure::TestMsg
            | Procedure::Lock
            | Procedure::NmLock
            | Procedure::LockMsg
            | Procedure::Unlock
            | Procedure::UnlockMsg
            | Procedure::Share => reply.system_error(),
            Procedure::Cancel => answer!(|arguments: CancelArguments<'_>| self.cancel(&arguments)),
            Procedure::CancelMsg => {
                answer!(|arguments: CancelArguments<'_>| self.cancel(&arguments), by CancelRes);
            }
            // We never wait for another server's locks.
            Procedure::Granted => {
                answer!(|arguments: TestArguments<'_>| Results {
                    cookie: arguments.cookie,
                    status: Status::Denied
                });
            }
            Procedure::Unshare => answer!(|arguments: ShareArguments<'_>| self.unshare(&arguments)),
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

    /// The file of a handle.
    fn file(&self, handle: Object<'_>) -> Result<FileKey, Status> {
        let opened = self.exports.open(&self.asker, Handle(handle.0)).map_err(status)?;
        Ok(self.key(&opened))
    }

    fn key(&self, opened: &ResolvedHandle) -> FileKey {
        FileKey { volume: self.exports.volume(opened).profile().volume, object: opened.object }
    }

    /// The file of a handle that is about to be locked, and the place of its export. It must be a file, and the caller must be able to
    /// read it, or own it.
    fn file_to_lock(&self, handle: Object<'_>, exclusive: bool) -> Result<(FileKey, usize), Stopped> {
        let opened = self.exports.open(&self.asker, Handle(handle.0)).map_err(status)?;
        let volume = self.exports.volume(&opened);
        let stopped = |blocked| match blocked {
            Blocked::Waits(ticket) => Stopped::Waits(opened.waits(ticket)),
            Blocked::Fails(error) => Stopped::Ends(status(error)),
        };
        let seen = self.exports.stat(&opened).map_err(stopped)?;
        if seen.kind != ObjectKind::Regular {
            return Err(Status::Failed.into());
        }
        if exclusive && self.exports.takes_no_changes(&opened) {
            return Err(Status::Rofs.into());
        }
        let caller = &opened.caller;
        if seen.uid != caller.uid && volume.access(caller, &seen, access::READ).map_err(stopped)? == 0 {
            return Err(Status::Failed.into());
        }
        Ok((self.key(&opened), opened.share))
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

    fn find_conflict(&mut self, arguments: &TestArguments<'_>) -> Result<Found, Wait> {
        match self.try_find_conflict(arguments) {
            Ok(found) => Ok(found),
            Err(Stopped::Ends(status)) => Ok(Found::Status(status)),
            Err(Stopped::Waits(waits)) => Err(Wait { waits, is_done: false }),
        }
    }

    fn try_find_conflict(&mut self, arguments: &TestArguments<'_>) -> Result<Found, Stopped> {
        if self.locking.poll_grace(self.now) {
            return Err(Status::DeniedGracePeriod.into());
        }
        let (file, via) = self.file_to_lock(arguments.lock.file, arguments.exclusive)?;
        let request = self.request(&arguments.lock, arguments.exclusive, file)?;
        if let Some(held) = self.locking.conflict(&request, self.now) {
            return Ok(Found::Held(held.clone()));
        }
        match below::find(self.exports, self.locking, via, &request) {
            Err(waits) => Err(Stopped::Waits(waits)),
            Ok(Err(error)) => Err(below_status(error).into()),
            Ok(Ok(Some(found))) => Ok(Found::Below(found)),
            Ok(Ok(None)) => Ok(Found::Status(Status::Granted)),
        }
    }

    fn lock<'l>(&mut self, arguments: &LockArguments<'l>, is_monitored: bool) -> Result<Results<'l>, Wait> {
        let status = match self.try_lock(arguments, is_monitored) {
            Ok(status) | Err(Stopped::Ends(status)) => status,
            Err(Stopped::Waits(waits)) => return Err(Wait { waits, is_done: false }),
        };
        Ok(Results { cookie: arguments.cookie, status })
    }

    fn try_lock(&mut self, arguments: &LockArguments<'_>, is_monitored: bool) -> Result<Status, Stopped> {
        let LockArguments { lock, exclusive, .. } = arguments;
        self.check_grace(arguments.reclaim)?;
        let (file, via) = self.file_to_lock(lock.file, *exclusive)?;
        let client = Client::new(lock.caller.0, self.ends);
        let range = range(lock).ok_or(Status::Fbig)?;
        let state = is_monitored.then_some(arguments.state);
        let host = self.locking.host(&client, state).ok_or_else(|| self.no_room())?;
        let (svid, handle) = (lock.svid, lock.owner.0);
        let request = LockRequest { file, host, svid, handle, range, exclusive: *exclusive };
        match self.take(&request, via)? {
            Ok(()) => {
                self.locking.statistics.locks += 1;
                self.locking.acknowledge(&request);
                if is_monitored {
                    self.locking.note(host);
                }
                Ok(Status::Granted)
            }
            Err(LockRefused::Conflict) if arguments.block => {
                let waiter = Locking::waiter(&client, lock.file.0, self.token);
                self.locking.table.wait(&request, waiter).map_err(|NoRoom| self.no_room())?;
                if below::is_below(self.exports, self.locking, file, via) {
                    self.locking.table.hold_back(&request);
                    below::wait(self.exports, self.locking, file, via, self.now);
                }
                self.locking.statistics.blocked += 1;
                Ok(Status::Blocked)
            }
            Err(LockRefused::Conflict) => {
                self.locking.statistics.denied += 1;
                Err(Status::Denied.into())
            }
            Err(LockRefused::NoRoom(_)) => Err(self.no_room().into()),
        }
    }

    /// Takes a lock: first below, if the store locks its files.
    fn take(&mut self, request: &LockRequest<'_>, via: usize) -> Result<Result<(), LockRefused>, Stopped> {
        if !below::is_below(self.exports, self.locking, request.file, via) {
            return Ok(self.locking.lock(request, self.now));
        }
        if self.locking.conflict(request, self.now).is_some() {
            below::withdraw(self.locking, request);
            return Ok(Err(LockRefused::Conflict));
        }
        match below::strengthen(self.exports, self.locking, via, request, self.now) {
            Err(waits) => return Err(Stopped::Waits(waits)),
            Ok(Err(error)) => return Err(below_status(error).into()),
            Ok(Ok(Some(_))) => return Ok(Err(LockRefused::Conflict)),
            Ok(Ok(None)) => {}
        }
        let taken = self.locking.lock(request, self.now);
        // If it was refused, or is less than before, others get what it leaves. Nothing waits for that.
        let _ = below::relax(self.exports, self.locking, request.file, request.range);
        Ok(taken)
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
        let request = self.file(lock.file).and_then(|file| self.request(lock, *exclusive, file));
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
    fn unlock(&mut self, arguments: &UnlockArguments<'_>) -> Result<Status, Wait> {
        let lock = &arguments.lock;
        let request = self.file(lock.file).and_then(|file| self.request(lock, false, file));
        let request = match request {
            Ok(request) => request,
            Err(status) => return Ok(status),
        };
        self.locking.acknowledge(&request);
        if let Err(NoRoom) = self.locking.table.unlock(&request) {
            return Ok(self.no_room());
        }
        // The client expects that others get it now.
        match below::give_back(self.exports, self.locking, request.file, request.range) {
            Some(waits) => Err(Wait { waits, is_done: true }),
            None => Ok(Status::Granted),
        }
    }

    fn share<'l>(&mut self, arguments: &ShareArguments<'l>) -> Result<ShareResults<'l>, Wait> {
        let status = match self.try_share(arguments) {
            Ok(()) => Status::Granted,
            Err(Stopped::Ends(status)) => status,
            Err(Stopped::Waits(waits)) => return Err(Wait { waits, is_done: false }),
        };
        Ok(ShareResults { cookie: arguments.cookie, status, sequence: 0 })
    }

    fn try_share(&mut self, arguments: &ShareArguments<'_>) -> Result<(), Stopped> {
        let share = &arguments.share;
        self.check_grace(arguments.reclaim)?;
        let (file, _) = self.file_to_lock(share.file, share.access.number() & 2 != 0)?;
        let client = Client::new(share.caller.0, self.ends);
        let host = self.locking.host(&client, None).ok_or_else(|| self.no_room())?;
        let request = Self::share_request(share, file, host);
        let modes = ShareModes { access: share.access.number() as u8, deny: share.mode.number() as u8 };
        match self.locking.share(&request, modes, self.now) {
            Ok(()) => {
                self.locking.note(host);
                Ok(())
            }
            Err(LockRefused::Conflict) => Err(Status::Denied.into()),
            Err(LockRefused::NoRoom(_)) => Err(self.no_room().into()),
        }
    }

    fn unshare<'l>(&mut self, arguments: &ShareArguments<'l>) -> ShareResults<'l> {
        let share = &arguments.share;
        let status = match self.file(share.file) {
            Ok(file) => {
                let host = self.locking.find_host(&Client::new(share.caller.0, self.ends));
                self.locking.table.unshare(&Self::share_request(share, file, host));
                Status::Granted
            }
            Err(status) => status,
        };
        ShareResults { cookie: arguments.cookie, status, sequence: 0 }
    }

    /// A share is of the whole file, and of no process.
    fn share_request<'l>(share: &nlm4::Share<'l>, file: FileKey, host: HostId) -> LockRequest<'l> {
        LockRequest { file, host, svid: 0, handle: share.owner.0, range: Range::ALL, exclusive: false }
    }
}

/// What TEST found.
enum Found {
    /// Another owner has this lock.
    Held(stag_state::Held),
    /// Somebody has this lock below.
    Below(OctetLock),
    /// Nothing, or why there is no answer.
    Status(Status),
}

impl Found {
    fn results<'f>(&'f self, cookie: Object<'f>) -> TestResults<'f> {
        let outcome = match self {
            Found::Held(held) => Tested::Denied(Holder {
                exclusive: held.exclusive,
                svid: held.owner.svid,
                owner: Object(&held.owner.handle),
                offset: held.range.first(),
                len: held.range.wire_len(),
            }),
            Found::Below(OctetLock { first, last, exclusive }) => Tested::Denied(Holder {
                exclusive: *exclusive,
                svid: 0,
                owner: Object(&[]),
                offset: *first,
                len: if *last == u64::MAX { 0 } else { last - first + 1 },
            }),
            Found::Status(status) => Tested::Other(*status),
        };
        TestResults { cookie, outcome }
    }
}

/// What NLM says when a lock fails below.
fn below_status(error: FsError) -> Status {
    match error {
        FsError::Busy | FsError::NotSupported => Status::DeniedNolocks,
        error => status(error),
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
