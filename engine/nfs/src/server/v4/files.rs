//! Operations on the data of files: READ, WRITE, COMMIT, SEEK, ALLOCATE, DEALLOCATE, IO_ADVISE. OPEN and what belongs to it is in
//! [`opens`](super::opens).

use stag_rpc::owner;
use stag_state::open::ShareModes;
use stag_state::stateid::{SpecialState, StateKind, StateName};
use stag_vfs::{
    Blocked, ExtentKind, Finished, FsError, ObjectKind, Progress, ReadDone, SpaceChange, Store,
    StoreVerifier, WriteData, WriteDone,
};
use stag_wire::nfs4::extended::{ContentKind, IoAdviseArguments, SeekArguments, SeekOk, SpaceArguments};
use stag_wire::nfs4::files::{CommitArguments4, ReadArguments4, WriteArguments4, WriteOk4};
use stag_wire::nfs4::value::FixedOpaque;
use stag_wire::nfs4::{Bitmap, StateId, Status4};
use stag_wire::xdr::Item;

use super::super::ResolvedHandle;
use super::super::limits::Limited;
use super::super::nfs::TRANSFER_LEN_MAX;
use super::super::traffic::{Traffic, TrafficClient};
use super::super::words::{stability, stable};
use super::locks::{check_is_regular, find_state, token_of};
use super::opens::{self, Opening};
use super::{Cursor, Resume as CompoundResume, Server, Step, Stop};

/// Octets of READ's results without the data: whether the end was reached, and the data's length.
const READ_LEN: usize = 8;
/// Octets of WRITE's results.
const WRITE_LEN: usize = 16;
/// Octets of COMMIT's results.
const COMMIT_LEN: usize = 8;
/// Octets of SEEK's results.
const SEEK_LEN: usize = 12;

/// The kinds of states by which files are read and written.
const TRANSFER_STATES: [StateKind; 3] = [StateKind::Open, StateKind::Lock, StateKind::Delegation];

/// The rest of one of these operations, once a store is done with it.
pub(super) enum Resume {
    Read(ResolvedHandle),
    Write(ResolvedHandle),
    Commit(ResolvedHandle),
    /// ALLOCATE or DEALLOCATE.
    Space(ResolvedHandle),
    /// OPEN.
    Open(Box<Opening<'static>>),
}

/// A transfer that is over later.
fn later(opened: &ResolvedHandle, ticket: stag_vfs::Ticket, resume: Resume) -> Stop {
    Stop::Later(opened.waits(ticket), CompoundResume::Files(resume))
}

pub(super) fn resume<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    resume: Resume,
    finished: Result<Finished, FsError>,
) -> Step {
    match (resume, finished) {
        (Resume::Open(opening), finished) => opens::resume(server, cursor, *opening, finished),
        (
            Resume::Read(opened) | Resume::Write(opened) | Resume::Commit(opened) | Resume::Space(opened),
            Err(error),
        ) => Err(server.transfer_error(&opened, error)),
        (Resume::Read(opened), Ok(Finished::Read(done))) => server.end_read(cursor, &opened, done),
        (Resume::Write(opened), Ok(Finished::Write(done))) => server.end_write(cursor, &opened, done),
        (Resume::Commit(opened), Ok(_)) => append_verifier(cursor, server.verifier(&opened)),
        (Resume::Space(opened), Ok(_)) => server.settle(&opened),
        (Resume::Read(_) | Resume::Write(_), Ok(_)) => Err(FsError::Fault.into()),
    }
}

impl<S: Store + ?Sized> Server<'_, S> {
    fn verifier(&self, opened: &ResolvedHandle) -> StoreVerifier {
        self.exports.volume(opened).store().write_verifier()
    }

    /// Fails unless a state id lets a client read or write a file (`access`): by an open that has this access, or without one
    /// if no open or share of others denies it.
    pub(super) fn admit_transfer(
        &mut self,
        cursor: &Cursor<'_>,
        opened: &ResolvedHandle,
        sent: StateId,
        access: u8,
    ) -> Result<(), Status4> {
        let sent = cursor.meant(sent)?;
        let session = cursor.session()?;
        let file = self.file_key(opened);
        match token_of(sent).name() {
            Some(StateName::Of(_)) => {
                let locking = self.state.locking.borrow();
                let state = find_state(&locking, session, sent, Some(file), &TRANSFER_STATES)?;
                let modes = locking.opens().modes(state).ok_or(Status4::BadStateid)?;
                // Who writes a part of a page reads the rest of it first.
                let is_admitted = access == ShareModes::READ || modes.access & access != 0;
                if is_admitted { Ok(()) } else { Err(Status4::OpenMode) }
            }
            Some(StateName::Special(SpecialState::ReadBypass)) if access == ShareModes::READ => Ok(()),
            Some(StateName::Special(SpecialState::Anonymous | SpecialState::ReadBypass)) => {
                self.admit_without_state(file, access)
            }
            Some(StateName::Special(SpecialState::Current)) | None => Err(Status4::BadStateid),
        }
    }

    #[inline(never)]
    fn admit_without_state(&mut self, file: stag_state::FileKey, access: u8) -> Result<(), Status4> {
        let locking = &mut *self.state.locking.borrow_mut();
        if locking.poll_grace(self.now) {
            return Err(Status4::Grace);
        }
        let modes = ShareModes { access, deny: 0 };
        if locking.has_share_conflict(file, modes, self.now) { Err(Status4::Locked) } else { Ok(()) }
    }

    /// Takes the octets of a READ. An operation that waited and is run again has taken them.
    #[cold]
    fn limit_read(&mut self, cursor: &mut Cursor<'_>, opened: &ResolvedHandle, range: (u64, u32)) -> Step {
        if std::mem::take(&mut cursor.has_paid) {
            return Ok(());
        }
        // It ends with its session, and not with a connection: its client may ask again over another one.
        match self.exports.limit_read(opened, cursor.caller.peer, range, None, self.now) {
            Ok(()) => Ok(()),
            Err(Limited::Full) => Err(Status4::Delay.into()),
            Err(Limited::Waits(turn)) => {
                cursor.has_paid = true;
                Err(Stop::Limited(turn, None))
            }
        }
    }

    /// Results of a READ that is done.
    #[inline(always)]
    fn end_read(&mut self, cursor: &mut Cursor<'_>, opened: &ResolvedHandle, done: ReadDone) -> Step {
        cursor.results.fixed::<4>(&done.eof)?;
        cursor.results.data(done.count, self.pieces)?;
        self.exports.count(opened.share, TrafficClient::of(cursor.caller.peer), Traffic::read(done.count));
        Ok(())
    }

    /// Results of a WRITE that is done. They may have to wait.
    #[inline(always)]
    fn end_write(&mut self, cursor: &mut Cursor<'_>, opened: &ResolvedHandle, done: WriteDone) -> Step {
        self.exports.count(opened.share, TrafficClient::of(cursor.caller.peer), Traffic::written(done.count));
        let verifier = self.verifier(opened);
        append_write(cursor, done, verifier)?;
        self.limit_write(cursor, opened, done.count)
    }

    /// Takes the octets of a WRITE that was done, and whose results are there.
    #[inline(always)]
    fn limit_write(&mut self, cursor: &Cursor<'_>, opened: &ResolvedHandle, octets: u32) -> Step {
        if !self.exports.is_limited(opened) {
            return Ok(());
        }
        match self.exports.limit_write(opened.share, owner(cursor.caller.peer), octets, self.now) {
            None => Ok(()),
            Some(turn) => Err(Stop::Limited(turn, Some(CompoundResume::Settled))),
        }
    }

    /// Why a transfer of an object failed that was under way. An object whose kind is not known now gets the store's error.
    #[cold]
    fn transfer_error(&mut self, opened: &ResolvedHandle, error: FsError) -> Stop {
        match self.transfer_blocked(opened, Blocked::Fails(error)) {
            Stop::Waits(_) => error.into(),
            stop => stop,
        }
    }

    /// Why a transfer of an object does not begin. A store says of all objects without data that they are invalid; the status
    /// depends on the kind.
    #[cold]
    fn transfer_blocked(&mut self, opened: &ResolvedHandle, blocked: Blocked) -> Stop {
        match blocked {
            Blocked::Fails(FsError::Invalid) => match self.exports.stat(opened) {
                Ok(seen) => match check_is_regular(seen.kind) {
                    Ok(()) => FsError::Invalid.into(),
                    Err(status) => status.into(),
                },
                Err(Blocked::Waits(ticket)) => Stop::Waits(opened.waits(ticket)),
                Err(Blocked::Fails(_)) => FsError::Invalid.into(),
            },
            Blocked::Fails(error) => error.into(),
            Blocked::Waits(ticket) => Stop::Waits(opened.waits(ticket)),
        }
    }
}

pub(super) fn read<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &ReadArguments4,
) -> Step {
    let opened = cursor.object_or(Status4::IsDir)?;
    server.admit_transfer(cursor, &opened, arguments.stateid, ShareModes::READ)?;
    // A shorter READ is a good answer to a client that takes no more.
    let room = cursor.results.item_room(READ_LEN).ok_or(Stop::TooBig)?;
    let count = arguments.count.min(TRANSFER_LEN_MAX).min(room);
    let volume = server.exports.volume(&opened);
    let count = cursor.room.of_read(count, volume.profile().can.reads_take_memory);
    let range = (arguments.offset, count);
    if server.exports.is_limited(&opened) {
        server.limit_read(cursor, &opened, range)?;
    }
    let volume = server.exports.volume_mut(&opened);
    match volume.read(&opened.caller, opened.object, range, server.pieces, server.time) {
        Ok(Progress::Done(mut done)) => {
            let most = cursor.room.pieces();
            if server.pieces.len() > most {
                server.pieces.truncate(most);
                done.count = server.pieces.iter().map(|piece| piece.len() as u32).sum();
                done.eof = false;
            }
            server.end_read(cursor, &opened, done)
        }
        Ok(Progress::Later(ticket)) => {
            cursor.expected_len = cursor.expected_len.saturating_add(count);
            Err(later(&opened, ticket, Resume::Read(opened)))
        }
        Err(blocked) => {
            cursor.expected_len = cursor.expected_len.saturating_add(count);
            cursor.has_paid = server.exports.is_limited(&opened);
            Err(server.transfer_blocked(&opened, blocked))
        }
    }
}

pub(super) fn write<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &WriteArguments4<'_>,
) -> Step {
    let opened = cursor.object_or(Status4::IsDir)?;
    let head = &arguments.head;
    server.admit_transfer(cursor, &opened, head.stateid, ShareModes::WRITE)?;
    cursor.reserve(WRITE_LEN)?;
    if opened.read_only {
        return Err(Status4::RoFs.into());
    }
    if server.exports.is_limited(&opened) && server.exports.refuses_write(&opened, owner(cursor.caller.peer))
    {
        return Err(Status4::Delay.into());
    }
    let data = match arguments.data.0 {
        Item::Inline(octets) => WriteData::Inline(octets),
        Item::Reduced { index, len } => {
            // There was no memory to place it in, because of what else is under way: not for good.
            cursor.data.take(index, len, server.pieces).ok_or(Status4::Delay)?;
            WriteData::Placed(server.pieces)
        }
    };
    let volume = server.exports.volume_mut(&opened);
    let stability = stability(head.stable);
    match volume.write(&opened.caller, opened.object, head.offset, data, stability, server.time) {
        Ok(Progress::Done(done)) => {
            server.pieces.clear();
            server.end_write(cursor, &opened, done)
        }
        Ok(Progress::Later(ticket)) => Err(later(&opened, ticket, Resume::Write(opened))),
        Err(blocked) => {
            if let (Blocked::Waits(_), Item::Reduced { index, .. }) = (blocked, arguments.data.0) {
                cursor.data.put_back(index, server.pieces);
            }
            Err(server.transfer_blocked(&opened, blocked))
        }
    }
}

fn append_write(cursor: &mut Cursor<'_>, done: WriteDone, verifier: StoreVerifier) -> Step {
    let (count, committed) = (done.count, stable(done.committed));
    cursor.results.fixed::<WRITE_LEN>(&WriteOk4 { count, committed, verifier: FixedOpaque(verifier) })?;
    Ok(())
}

fn append_verifier(cursor: &mut Cursor<'_>, verifier: StoreVerifier) -> Step {
    cursor.results.value(&FixedOpaque(verifier))?;
    Ok(())
}

/// COMMIT changes nothing that a client sees, so a read-only export is no obstacle.
pub(super) fn commit<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &CommitArguments4,
) -> Step {
    let opened = cursor.object_or(Status4::IsDir)?;
    cursor.reserve(COMMIT_LEN)?;
    check_is_regular(opened.known(server.exports.stat(&opened))?.kind)?;
    let volume = server.exports.volume_mut(&opened);
    match volume.commit(opened.object, arguments.offset, arguments.count) {
        Ok(Progress::Done(())) => append_verifier(cursor, server.verifier(&opened)),
        Ok(Progress::Later(ticket)) => Err(later(&opened, ticket, Resume::Commit(opened))),
        Err(blocked) => Err(server.transfer_blocked(&opened, blocked)),
    }
}

/// SEEK (RFC 7862 section 15.11.3): the end of a file is followed by a hole, so only data may be missing.
pub(super) fn seek<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &SeekArguments,
) -> Step {
    let opened = cursor.object_or(Status4::WrongType)?;
    server.admit_transfer(cursor, &opened, arguments.stateid, ShareModes::READ)?;
    cursor.reserve(SEEK_LEN)?;
    let seen = opened.known(server.exports.stat(&opened))?;
    if seen.kind != ObjectKind::Regular {
        return Err(Status4::WrongType.into());
    }
    let kind = match arguments.what {
        ContentKind::Data => ExtentKind::Data,
        ContentKind::Hole => ExtentKind::Hole,
    };
    let volume = server.exports.volume(&opened);
    let found = opened.known(volume.seek(&opened.caller, &seen, arguments.offset, kind))?;
    let offset = found.unwrap_or(seen.size);
    cursor.results.value(&SeekOk { eof: offset >= seen.size, offset })?;
    Ok(())
}

/// ALLOCATE (RFC 7862 section 15.1.3).
pub(super) fn allocate<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &SpaceArguments,
) -> Step {
    change_space(server, cursor, arguments, SpaceChange::Reserve)
}

/// DEALLOCATE (RFC 7862 section 15.4.3).
pub(super) fn deallocate<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &SpaceArguments,
) -> Step {
    change_space(server, cursor, arguments, SpaceChange::Release)
}

fn change_space<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &SpaceArguments,
    change: SpaceChange,
) -> Step {
    let opened = cursor.object_or(Status4::WrongType)?;
    server.admit_transfer(cursor, &opened, arguments.stateid, ShareModes::WRITE)?;
    if opened.read_only {
        return Err(Status4::RoFs.into());
    }
    let seen = opened.known(server.exports.stat(&opened))?;
    check_is_regular(seen.kind)?;
    let (octets, time) = ((arguments.offset, arguments.length), server.time);
    let volume = server.exports.volume_mut(&opened);
    match opened.known(volume.change_space(&opened.caller, &seen, octets, change, time))? {
        Progress::Done(()) => server.settle(&opened),
        Progress::Later(ticket) => Err(later(&opened, ticket, Resume::Space(opened))),
    }
}

/// IO_ADVISE: no hint is followed, which is a good answer (RFC 7862 section 15.5.3).
pub(super) fn io_advise<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &IoAdviseArguments<'_>,
) -> Step {
    let opened = cursor.object_or(Status4::WrongType)?;
    server.admit_transfer(cursor, &opened, arguments.stateid, ShareModes::READ)?;
    cursor.results.value(&Bitmap::EMPTY)?;
    Ok(())
}
