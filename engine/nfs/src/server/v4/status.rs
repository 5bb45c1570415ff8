//! The status of what stores and state machines refuse.

use stag_state::client::{DestroyRefused, ExchangeRefused, SessionFault};
use stag_state::session::SessionRefused;
use stag_state::slot::SequenceFault;
use stag_vfs::FsError;
use stag_wire::nfs4::Status4;
use stag_wire::nfs4::operation::Operation4;

/// The status of an error of a store or of the policy above it. Where an operation has another one for its case, it says so
/// before it asks.
pub(in crate::server) const fn status4(error: FsError) -> Status4 {
    match error {
        FsError::NotPermitted => Status4::Perm,
        FsError::NotFound => Status4::NoEnt,
        FsError::Io => Status4::Io,
        FsError::NoAddress | FsError::NoDevice => Status4::NxIo,
        FsError::AccessDenied => Status4::Access,
        FsError::Exists => Status4::Exist,
        FsError::CrossDevice => Status4::XDev,
        FsError::NotDirectory => Status4::NotDir,
        FsError::IsDirectory => Status4::IsDir,
        FsError::Invalid => Status4::Inval,
        FsError::TooLarge => Status4::FBig,
        FsError::NoSpace => Status4::NoSpc,
        FsError::ReadOnly => Status4::RoFs,
        FsError::TooManyLinks => Status4::MLink,
        FsError::NameTooLong => Status4::NameTooLong,
        FsError::NotEmpty => Status4::NotEmpty,
        FsError::OverQuota => Status4::DQuot,
        FsError::Stale => Status4::Stale,
        FsError::BadHandle => Status4::BadHandle,
        // The object changed under the operation: run again, it sees the new one.
        FsError::NotSame | FsError::Busy => Status4::Delay,
        FsError::BadCookie => Status4::BadCookie,
        FsError::NotSupported => Status4::NotSupp,
        FsError::BadKind => Status4::BadType,
        FsError::Fault => Status4::ServerFault,
    }
}

/// What an operation that fails with `status` answers: the nearest status that it may (8881-15.2). Stores fail in ways that not each
/// operation has a status for.
pub(super) fn answered(operation: Operation4, status: Status4) -> Status4 {
    if operation.may_fail_with(status) {
        return status;
    }
    let near = match status {
        Status4::Perm => Status4::Access,
        // Not a name in it, but the object itself is gone.
        Status4::NoEnt => Status4::Stale,
        Status4::NxIo | Status4::NoSpc | Status4::DQuot | Status4::FBig => Status4::Io,
        Status4::Symlink if !operation.may_fail_with(Status4::WrongType) => Status4::NotDir,
        Status4::IsDir | Status4::NotDir | Status4::Symlink => Status4::WrongType,
        _ => Status4::ServerFault,
    };
    // LOCKT has no status that says what went wrong here: the last one is at least not about the lock.
    let nearest = [near, Status4::ServerFault, Status4::Access];
    nearest.into_iter().find(|near| operation.may_fail_with(*near)).unwrap_or(status)
}

/// Of EXCHANGE_ID (8881-18.35.4).
pub(super) const fn exchange_status(refused: ExchangeRefused) -> Status4 {
    match refused {
        ExchangeRefused::InUse => Status4::ClidInuse,
        ExchangeRefused::NoRecord => Status4::NoEnt,
        ExchangeRefused::NotSame => Status4::NotSame,
        ExchangeRefused::NotPermitted => Status4::Perm,
        ExchangeRefused::NoRoom => Status4::Delay,
    }
}

/// Of CREATE_SESSION (8881-18.36.4).
pub(super) const fn session_status(fault: SessionFault) -> Status4 {
    match fault {
        SessionFault::StaleClient => Status4::StaleClientid,
        SessionFault::Misordered => Status4::SeqMisordered,
        SessionFault::InUse => Status4::ClidInuse,
        SessionFault::TooSmall => Status4::TooSmall,
        SessionFault::NoSpace => Status4::NoSpc,
    }
}

/// Of SEQUENCE (8881-18.46.3).
pub(super) const fn sequence_status(refused: SessionRefused) -> Status4 {
    match refused {
        SessionRefused::NoSession => Status4::BadSession,
        SessionRefused::Slot(SequenceFault::BadSlot) => Status4::BadSlot,
        SessionRefused::Slot(SequenceFault::BadHighSlot) => Status4::BadHighSlot,
        SessionRefused::Slot(SequenceFault::Misordered) => Status4::SeqMisordered,
        SessionRefused::Slot(SequenceFault::InProgress) => Status4::Delay,
        SessionRefused::Slot(SequenceFault::FalseRetry) => Status4::SeqFalseRetry,
    }
}

/// Of DESTROY_CLIENTID (8881-18.50.3).
pub(super) const fn destroy_status(refused: DestroyRefused) -> Status4 {
    match refused {
        DestroyRefused::StaleClient => Status4::StaleClientid,
        DestroyRefused::Busy => Status4::ClientidBusy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORES: [FsError; 26] = [
        FsError::NotPermitted,
        FsError::NotFound,
        FsError::Io,
        FsError::NoAddress,
        FsError::NoDevice,
        FsError::AccessDenied,
        FsError::Exists,
        FsError::CrossDevice,
        FsError::NotDirectory,
        FsError::IsDirectory,
        FsError::Invalid,
        FsError::TooLarge,
        FsError::NoSpace,
        FsError::ReadOnly,
        FsError::TooManyLinks,
        FsError::NameTooLong,
        FsError::NotEmpty,
        FsError::OverQuota,
        FsError::Stale,
        FsError::BadHandle,
        FsError::NotSame,
        FsError::Busy,
        FsError::BadCookie,
        FsError::NotSupported,
        FsError::BadKind,
        FsError::Fault,
    ];

    /// 8881-15.2: whatever fails in a store, an operation that asks one answers what it may.
    #[test]
    fn an_operation_fails_only_as_it_may() {
        for number in 0..80 {
            let Ok(operation) = Operation4::lookup(number, 2) else { continue };
            // GETFH does not ask, nor do those that know of no files.
            let asks_a_store = operation.may_fail_with(Status4::Stale) && operation != Operation4::Getfh;
            for error in STORES {
                let answered = answered(operation, status4(error));
                assert!(!asks_a_store || operation.may_fail_with(answered), "{operation:?}: {answered:?}");
            }
        }
    }

    /// What the state machines refuse is answered as it is.
    #[test]
    fn operations_of_sessions_may_fail_as_they_do() {
        use ExchangeRefused::{InUse, NoRecord, NoRoom, NotPermitted, NotSame};
        use SequenceFault::{BadHighSlot, BadSlot, FalseRetry, InProgress, Misordered};
        let faults = [
            SessionFault::StaleClient,
            SessionFault::Misordered,
            SessionFault::InUse,
            SessionFault::TooSmall,
            SessionFault::NoSpace,
        ];
        let slots = [BadSlot, BadHighSlot, Misordered, InProgress, FalseRetry].map(SessionRefused::Slot);
        let exchanges = [InUse, NoRecord, NotSame, NotPermitted, NoRoom].map(exchange_status);
        let sequences = slots.into_iter().chain([SessionRefused::NoSession]).map(sequence_status);
        let destroys = [DestroyRefused::StaleClient, DestroyRefused::Busy].map(destroy_status);
        let of = |operation, status: Status4| (operation, status);
        let all = (exchanges.into_iter().map(|status| of(Operation4::ExchangeId, status)))
            .chain(faults.map(session_status).map(|status| of(Operation4::CreateSession, status)))
            .chain(sequences.map(|status| of(Operation4::Sequence, status)))
            .chain(destroys.map(|status| of(Operation4::DestroyClientid, status)));
        for (operation, status) in all {
            assert_eq!(answered(operation, status), status, "{operation:?}");
        }
    }

    #[test]
    fn the_nearest_status_is_answered() {
        for (operation, status, expected) in [
            (Operation4::Lookup, Status4::NoEnt, Status4::NoEnt),
            (Operation4::Getattr, Status4::NoEnt, Status4::Stale),
            (Operation4::Read, Status4::Perm, Status4::Access),
            (Operation4::Lock, Status4::Io, Status4::ServerFault),
            (Operation4::Deallocate, Status4::NoSpc, Status4::Io),
            (Operation4::SecinfoNoName, Status4::Symlink, Status4::NotDir),
            // Another reactor's file, and a disk that fails: there is no NFS4ERR_SERVERFAULT for it.
            (Operation4::Lockt, Status4::ServerFault, Status4::Access),
            (Operation4::Lockt, Status4::Io, Status4::Access),
            (Operation4::Lockt, Status4::NoEnt, Status4::Stale),
        ] {
            assert_eq!(answered(operation, status), expected, "{operation:?}: {status:?}");
        }
    }
}
