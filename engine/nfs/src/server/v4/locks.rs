//! Byte-range locks and state ids: LOCK, LOCKT, LOCKU, TEST_STATEID, FREE_STATEID.
//!
//! A state id is judged in [`find_state`], once for all operations. Locks are those of [`Locking`], which NLM's hosts share. A
//! lock that a client would wait for is refused at once: it asks again (8881-18.10.3).

use std::time::Duration;

use stag_state::grace::ReclaimRefused;
use stag_state::open::{OpenFault, ShareModes};
use stag_state::session::Session;
use stag_state::stateid::{Revoked, StateFault, StateIndex, StateKind, StateToken};
use stag_state::{FileKey, Held, LockRefused, LockRequest, Range};
use stag_vfs::{ObjectKind, OctetLock, Store};
use stag_wire::nfs4::lock::{LockArguments4, LockDenied, LockKind, Locker, LocktArguments, LockuArguments};
use stag_wire::nfs4::open::StateOwner;
use stag_wire::nfs4::session::TestStateidArguments;
use stag_wire::nfs4::{Opaque, StateId, Status4};

use super::super::locking::{Locking, StateRefused, host_of};
use super::super::{ResolvedHandle, below};
use super::{Cursor, Resume, Server, Step, Stop};

/// Octets of a state id.
pub(super) const STATEID_LEN: usize = 16;
/// All kinds of states.
const ALL_KINDS: [StateKind; 3] = [StateKind::Open, StateKind::Lock, StateKind::Delegation];

pub(super) const fn token_of(sent: StateId) -> StateToken {
    StateToken { seqid: sent.seqid, other: sent.other }
}

pub(super) const fn wire_of(token: StateToken) -> StateId {
    StateId { seqid: token.seqid, other: token.other }
}

/// What a state id that is not good is told as (8881-8.2.4).
pub(super) const fn fault_status(fault: StateFault) -> Status4 {
    match fault {
        StateFault::Bad | StateFault::Stale => Status4::BadStateid,
        StateFault::Old => Status4::OldStateid,
        StateFault::Revoked(Revoked::Expired) => Status4::Expired,
        StateFault::Revoked(Revoked::ByAdministrator) => Status4::AdminRevoked,
        StateFault::Revoked(Revoked::NotReturned) => Status4::DelegRevoked,
    }
}

pub(super) const fn open_status(fault: OpenFault) -> Status4 {
    match fault {
        OpenFault::State(fault) => fault_status(fault),
        OpenFault::NotOpened => Status4::Inval,
    }
}

impl Cursor<'_> {
    /// The session that runs this. An operation that needs one has a SEQUENCE before it.
    pub(super) fn session(&self) -> Result<&Session, Status4> {
        self.session.as_deref().ok_or(Status4::OpNotInSession)
    }

    /// The state id that a client means: the current one for the one that stands for it (8881-16.2.3.1.2).
    pub(super) fn meant(&self, sent: StateId) -> Result<StateId, Status4> {
        if sent == StateId::CURRENT { self.current_state.ok_or(Status4::BadStateid) } else { Ok(sent) }
    }
}

impl<S: Store + ?Sized> Server<'_, S> {
    /// The file of all protocols that an object is.
    pub(super) fn file_key(&self, opened: &ResolvedHandle) -> FileKey {
        FileKey { volume: self.exports.volume(opened).profile().volume, object: opened.object }
    }

    /// Fails unless the client may take something new, or take back what it held before a restart (8881-8.4.2-a,
    /// 8881-8.4.2.1-a, 8881-18.51.3-b).
    pub(super) fn check_grace(&self, cursor: &Cursor<'_>, is_reclaim: bool) -> Result<(), Status4> {
        let admitted = self.state.locking.borrow_mut().admit_state(cursor.session()?, is_reclaim, self.now);
        admitted.map_err(|refused| match refused {
            StateRefused::Grace => Status4::Grace,
            StateRefused::Reclaim(ReclaimRefused::NoGrace) => Status4::NoGrace,
            StateRefused::Reclaim(ReclaimRefused::NotKnown) => Status4::ReclaimBad,
            StateRefused::NotRecorded => Status4::Delay,
        })
    }

    /// The current object, which must be a regular file.
    fn lockable(&self, cursor: &Cursor<'_>) -> Step<ResolvedHandle> {
        let opened = cursor.object_or(Status4::IsDir)?;
        let seen = opened.known(self.exports.stat(&opened))?;
        check_is_regular(seen.kind)?;
        Ok(opened)
    }
}

/// Fails unless an object of this kind can be opened, read, written and locked.
pub(super) const fn check_is_regular(kind: ObjectKind) -> Result<(), Status4> {
    match kind {
        ObjectKind::Regular => Ok(()),
        ObjectKind::Directory => Err(Status4::IsDir),
        ObjectKind::Symlink => Err(Status4::Symlink),
        _ => Err(Status4::WrongType),
    }
}

/// Finds a state of the client: of `file`, if it must be of one, and of one of these kinds.
pub(super) fn find_state(
    locking: &Locking,
    session: &Session,
    sent: StateId,
    file: Option<FileKey>,
    kinds: &[StateKind],
) -> Result<StateIndex, Status4> {
    let states = locking.opens().states();
    states.find(&token_of(sent), session.client(), file, kinds, session.fore().slots).map_err(fault_status)
}

/// The range of a lock (8881-18.10.3): a length of all ones is to the end of the file.
fn range(offset: u64, length: u64) -> Result<Range, Status4> {
    if length == u64::MAX {
        return Range::between(offset, u64::MAX).ok_or(Status4::Inval);
    }
    let last = length.checked_sub(1).and_then(|more| offset.checked_add(more));
    last.and_then(|last| Range::between(offset, last)).ok_or(Status4::Inval)
}

const fn is_exclusive(kind: LockKind) -> bool {
    matches!(kind, LockKind::Write | LockKind::WriteWaiting)
}

/// Ends the operation with the lock that is in its way. A host of NLM has no client id.
fn denied(cursor: &mut Cursor<'_>, held: &Held) -> Stop {
    let lock = OctetLock { first: held.range.first(), last: held.range.last(), exclusive: held.exclusive };
    let clientid = held.owner.host.client().map_or(0, |client| client.0);
    denied_by(cursor, &lock, StateOwner { clientid, owner: Opaque(&held.owner.handle) })
}

/// The same of a lock below, whose owner is no client.
fn denied_below(cursor: &mut Cursor<'_>, lock: &OctetLock) -> Stop {
    denied_by(cursor, lock, StateOwner { clientid: 0, owner: Opaque(&[]) })
}

fn denied_by(cursor: &mut Cursor<'_>, lock: &OctetLock, owner: StateOwner<'_>) -> Stop {
    let OctetLock { first, last, exclusive } = *lock;
    let denied = LockDenied {
        offset: first,
        length: if last == u64::MAX { u64::MAX } else { last - first + 1 },
        kind: if exclusive { LockKind::Write } else { LockKind::Read },
        owner,
    };
    match cursor.results.value(&denied) {
        Ok(()) => Stop::FailsWithFields(Status4::Denied),
        Err(overflow) => overflow.into(),
    }
}

pub(super) fn lock<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &LockArguments4<'_>,
) -> Step {
    let opened = server.lockable(cursor)?;
    let range = range(arguments.offset, arguments.length)?;
    let exclusive = is_exclusive(arguments.kind);
    server.check_grace(cursor, arguments.is_reclaim)?;
    cursor.reserve(STATEID_LEN)?;
    let file = server.file_key(&opened);
    let session = cursor.session()?;
    let host = host_of(session);
    let locking = &mut *server.state.locking.borrow_mut();
    // Through which open, by which owner, and the state of its locks if it has one.
    let (through, owner, locker) = match &arguments.locker {
        Locker::New(new) => {
            let sent = cursor.meant(new.open_stateid)?;
            let open = find_state(locking, session, sent, Some(file), &[StateKind::Open])?;
            (open, new.owner.owner.0.into(), None)
        }
        Locker::Existing(existing) => {
            let sent = cursor.meant(existing.stateid)?;
            let locker = find_state(locking, session, sent, Some(file), &[StateKind::Lock])?;
            let owner = locking.opens().owner(locker).cloned().ok_or(Status4::BadStateid)?;
            (locker, owner, Some(locker))
        }
    };
    let needed = if exclusive { ShareModes::WRITE } else { ShareModes::READ };
    if locking.opens().modes(through).is_none_or(|modes| modes.access & needed == 0) {
        return Err(Status4::OpenMode.into());
    }
    let request = LockRequest { file, host, svid: 0, handle: &owner, range, exclusive };
    if let Some(held) = locking.conflict(&request, server.now).cloned() {
        below::withdraw(locking, &request);
        return Err(if arguments.is_reclaim {
            Status4::ReclaimConflict.into()
        } else {
            denied(cursor, &held)
        });
    }
    match below::strengthen(server.exports, locking, opened.share, &request, server.now) {
        Err(waits) => return Err(Stop::Waits(waits)),
        Ok(Err(error)) => return Err(error.into()),
        Ok(Ok(Some(_))) if arguments.is_reclaim => return Err(Status4::ReclaimConflict.into()),
        Ok(Ok(Some(found))) => return Err(denied_below(cursor, &found)),
        Ok(Ok(None)) => {}
    }
    let taken = take(locking, &request, (through, locker), server.now);
    // If it was refused, or is less than before, others get what it leaves. Nothing waits for that.
    let _ = below::relax(server.exports, locking, file, range);
    let token = taken?;
    cursor.current_state = Some(wire_of(token));
    cursor.results.value(&wire_of(token))?;
    Ok(())
}

/// Takes a lock through an open or through an owner's locks, for an owner that may have no locks of the file yet.
fn take(
    locking: &mut Locking,
    request: &LockRequest<'_>,
    (through, locker): (StateIndex, Option<StateIndex>),
    now: Duration,
) -> Result<StateToken, Status4> {
    // A client that made way is forgotten on disk first.
    if !locking.known_clients().has_forgotten() {
        return Err(Status4::Delay);
    }
    let before = locking.opens().count();
    let state = match locker {
        Some(locker) => locker,
        None => locking.opens_mut().add_locker(through, request.handle).map_err(|_| Status4::Delay)?,
    };
    let is_new = locking.opens().count() != before;
    match locking.lock(request, now) {
        Ok(()) if is_new => Ok(locking.opens().states().token(state)),
        Ok(()) => Ok(locking.opens_mut().advance(state)),
        Err(LockRefused::Conflict | LockRefused::NoRoom(_)) => {
            if is_new {
                locking.opens_mut().remove_locker(state);
            }
            Err(Status4::Delay)
        }
    }
}

pub(super) fn lockt<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &LocktArguments<'_>,
) -> Step {
    let opened = server.lockable(cursor)?;
    let range = range(arguments.offset, arguments.length)?;
    let (file, host) = (server.file_key(&opened), host_of(cursor.session()?));
    let locking = &mut *server.state.locking.borrow_mut();
    if locking.poll_grace(server.now) {
        return Err(Status4::Grace.into());
    }
    let exclusive = is_exclusive(arguments.kind);
    let request = LockRequest { file, host, svid: 0, handle: arguments.owner.owner.0, range, exclusive };
    if let Some(held) = locking.conflict(&request, server.now) {
        return Err(denied(cursor, &held.clone()));
    }
    match below::find(server.exports, locking, opened.share, &request) {
        Err(waits) => Err(Stop::Waits(waits)),
        Ok(Err(error)) => Err(error.into()),
        Ok(Ok(Some(found))) => Err(denied_below(cursor, &found)),
        Ok(Ok(None)) => Ok(()),
    }
}

pub(super) fn locku<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &LockuArguments,
) -> Step {
    let opened = cursor.object_or(Status4::IsDir)?;
    let range = range(arguments.offset, arguments.length)?;
    cursor.reserve(STATEID_LEN)?;
    let file = server.file_key(&opened);
    let session = cursor.session()?;
    let sent = cursor.meant(arguments.stateid)?;
    let locking = &mut *server.state.locking.borrow_mut();
    let locker = find_state(locking, session, sent, Some(file), &[StateKind::Lock])?;
    let owner = locking.opens().owner(locker).cloned().ok_or(Status4::BadStateid)?;
    let host = host_of(session);
    let request = LockRequest { file, host, svid: 0, handle: &owner, range, exclusive: false };
    // What stays may be too many pieces.
    locking.table.unlock(&request).map_err(|_| Status4::Delay)?;
    let token = locking.opens_mut().advance(locker);
    cursor.current_state = Some(wire_of(token));
    cursor.results.value(&wire_of(token))?;
    // The client expects that others get it now.
    match below::give_back(server.exports, locking, file, range) {
        Some(waits) => Err(Stop::Later(waits, Resume::Settled)),
        None => Ok(()),
    }
}

pub(super) fn test_stateid<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &TestStateidArguments<'_>,
) -> Step {
    let session = cursor.session.clone().ok_or(Status4::OpNotInSession)?;
    let locking = server.state.locking.borrow();
    cursor.results.append(|writer| {
        writer.u32(arguments.len() as u32)?;
        for sent in arguments.iter() {
            let found = find_state(&locking, &session, sent, None, &ALL_KINDS);
            writer.value(&found.err().unwrap_or(Status4::Ok))?;
        }
        Ok(())
    })?;
    Ok(())
}

pub(super) fn free_stateid<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &StateId,
) -> Step {
    let session = cursor.session()?;
    let sent = cursor.meant(*arguments)?;
    let locking = &mut *server.state.locking.borrow_mut();
    if locking.opens_mut().free_revoked(&token_of(sent), session.client()).map_err(fault_status)? {
        return Ok(());
    }
    let state = find_state(locking, session, sent, None, &ALL_KINDS)?;
    let locker = find_state(locking, session, sent, None, &[StateKind::Lock]).ok();
    let Some(locker) = locker else { return Err(Status4::LocksHeld.into()) };
    let owner = locking.opens().owner(locker).cloned().ok_or(Status4::BadStateid)?;
    let file = locking.opens().states().file(state);
    let range = range(0, u64::MAX)?;
    let all = LockRequest { file, host: host_of(session), svid: 0, handle: &owner, range, exclusive: true };
    if locking.table.holds(&all) {
        return Err(Status4::LocksHeld.into());
    }
    locking.opens_mut().remove_locker(locker);
    Ok(())
}
