//! Errors that each operation may answer: the tables of RFC 8881 (section 15.2), RFC 7862 (11.2) and RFC 8276 (8.4.5).

use super::Status4;
use super::operation::{Operation4, Requirement};

use Status4 as S;

impl Operation4 {
    /// Tells whether the operation may fail with this status: by the tables of the RFCs (8881-15.2), or by their text where that says more.
    #[must_use]
    pub const fn may_fail_with(self, status: Status4) -> bool {
        match (self, status) {
            // What a session or the server's memory refuses, whatever the operation is; the tables leave some out of GETFH, SAVEFH and others
            // (8881-2.10.6.4, 8881-15.1.1.3, 8881-15.1.3.5).
            (_, S::Delay | S::OpNotInSession | S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep) => {
                true
            }
            (_, S::BadXdr | S::ReqTooBig | S::TooManyOps) => true,
            // An operation that the server does not have (8881-17).
            (Operation4::SetSsv, S::NotSupp) => true,
            (_, S::NotSupp) if !matches!(self.requirement(2), Requirement::Required) => true,
            // What a server may leave out of it: exclusive creates (8881-18.16.4), claims of delegations from before a restart of the client.
            (Operation4::Open, S::NotSupp) => true,
            // A record that another principal made (8881-18.35.5, case 9).
            (Operation4::ExchangeId, S::Perm) => true,
            // What is no file (8881-18.12.3).
            (Operation4::Locku, S::IsDir | S::Symlink | S::WrongType) => true,
            // A share of another client, as for WRITE. Their lists have all else of WRITE's; Linux's server answers so.
            (Operation4::Allocate | Operation4::Deallocate, S::Locked) => true,
            // From the end of the file on (7862-15.11.3).
            (Operation4::Seek, S::NxIo) => true,
            // Nothing in its table tells a client that an export is not for it. Linux's server answers so.
            (Operation4::Putfh, S::Access) => true,
            _ => self.is_in_table(status),
        }
    }

    // One operation after the other, as in the RFCs, also where two may answer the same.
    #[allow(clippy::match_same_arms, reason = "each operation has its line in a table")]
    #[rustfmt::skip]
    const fn is_in_table(self, status: Status4) -> bool {
        match self {
            Operation4::Access => matches!(status,
                S::Io | S::Access | S::Inval | S::Stale | S::ServerFault | S::Delay | S::FhExpired | S::Moved |
                S::NoFilehandle | S::BadXdr | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache |
                S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession),
            Operation4::Close => matches!(status,
                S::Stale | S::ServerFault | S::Delay | S::Expired | S::FhExpired | S::Moved | S::NoFilehandle |
                S::OldStateid | S::BadStateid | S::BadXdr | S::LocksHeld | S::AdminRevoked | S::ReqTooBig |
                S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession |
                S::Deadsession | S::WrongCred),
            Operation4::Commit => matches!(status,
                S::Io | S::Access | S::IsDir | S::Stale | S::ServerFault | S::Delay | S::FhExpired | S::Moved |
                S::NoFilehandle | S::Symlink | S::BadXdr | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache |
                S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession | S::WrongType),
            Operation4::Create => matches!(status,
                S::Perm | S::Io | S::Access | S::Exist | S::NotDir | S::Inval | S::NoSpc | S::RoFs | S::MLink |
                S::NameTooLong | S::DQuot | S::Stale | S::ServerFault | S::BadType | S::Delay | S::FhExpired |
                S::Moved | S::NoFilehandle | S::AttrNotSupp | S::BadXdr | S::BadOwner | S::BadChar | S::BadName |
                S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep | S::UnsafeCompound |
                S::TooManyOps | S::OpNotInSession | S::Deadsession),
            Operation4::Delegpurge => matches!(status,
                S::NotSupp | S::ServerFault | S::Delay | S::BadXdr | S::ReqTooBig | S::RepTooBig |
                S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession |
                S::WrongCred),
            Operation4::Delegreturn => matches!(status,
                S::Inval | S::Stale | S::NotSupp | S::ServerFault | S::Delay | S::Expired | S::FhExpired |
                S::Moved | S::NoFilehandle | S::OldStateid | S::BadStateid | S::BadXdr | S::AdminRevoked |
                S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps |
                S::OpNotInSession | S::Deadsession | S::WrongCred | S::DelegRevoked),
            Operation4::Getattr => matches!(status,
                S::Io | S::Access | S::Inval | S::Stale | S::ServerFault | S::Delay | S::Grace | S::FhExpired |
                S::Moved | S::NoFilehandle | S::BadXdr | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache |
                S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession | S::WrongType),
            Operation4::Getfh => matches!(status,
                S::Stale | S::FhExpired | S::Moved | S::NoFilehandle | S::OpNotInSession),
            Operation4::Link => matches!(status,
                S::Io | S::Access | S::Exist | S::XDev | S::NotDir | S::IsDir | S::Inval | S::NoSpc | S::RoFs |
                S::MLink | S::NameTooLong | S::DQuot | S::Stale | S::NotSupp | S::ServerFault | S::Delay |
                S::Grace | S::FhExpired | S::WrongSec | S::Moved | S::NoFilehandle | S::Symlink | S::BadXdr |
                S::BadChar | S::BadName | S::FileOpen | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache |
                S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession | S::WrongType),
            Operation4::Lock => matches!(status,
                S::Access | S::IsDir | S::Inval | S::RoFs | S::Stale | S::ServerFault | S::Delay | S::Denied |
                S::Expired | S::Grace | S::FhExpired | S::Moved | S::NoFilehandle | S::OldStateid |
                S::BadStateid | S::LockRange | S::Symlink | S::NoGrace | S::ReclaimBad | S::ReclaimConflict |
                S::BadXdr | S::OpenMode | S::BadRange | S::LockNotsupp | S::Deadlock | S::AdminRevoked |
                S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps |
                S::OpNotInSession | S::Deadsession | S::WrongCred | S::WrongType),
            Operation4::Lockt => matches!(status,
                S::Access | S::IsDir | S::Inval | S::RoFs | S::Stale | S::Delay | S::Denied | S::Grace |
                S::FhExpired | S::Moved | S::NoFilehandle | S::LockRange | S::Symlink | S::BadXdr | S::BadRange |
                S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps |
                S::OpNotInSession | S::Deadsession | S::WrongCred | S::WrongType),
            Operation4::Locku => matches!(status,
                S::Access | S::Inval | S::Stale | S::ServerFault | S::Delay | S::Expired | S::FhExpired |
                S::Moved | S::NoFilehandle | S::OldStateid | S::BadStateid | S::LockRange | S::BadXdr |
                S::BadRange | S::AdminRevoked | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache |
                S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession | S::WrongCred),
            Operation4::Lookup => matches!(status,
                S::NoEnt | S::Io | S::Access | S::NotDir | S::Inval | S::NameTooLong | S::Stale | S::ServerFault |
                S::Delay | S::FhExpired | S::WrongSec | S::Moved | S::NoFilehandle | S::Symlink | S::BadXdr |
                S::BadChar | S::BadName | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache |
                S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession),
            Operation4::Lookupp => matches!(status,
                S::NoEnt | S::Io | S::Access | S::NotDir | S::Stale | S::ServerFault | S::Delay | S::FhExpired |
                S::WrongSec | S::Moved | S::NoFilehandle | S::Symlink | S::ReqTooBig | S::RepTooBig |
                S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession),
            Operation4::Nverify => matches!(status,
                S::Io | S::Access | S::Inval | S::Stale | S::ServerFault | S::Delay | S::Same | S::Grace |
                S::FhExpired | S::Moved | S::NoFilehandle | S::AttrNotSupp | S::BadXdr | S::BadChar |
                S::UnknownLayouttype | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep |
                S::TooManyOps | S::OpNotInSession | S::Deadsession | S::WrongType),
            Operation4::Open => matches!(status,
                S::Perm | S::NoEnt | S::Io | S::Access | S::Exist | S::NotDir | S::IsDir | S::Inval | S::FBig |
                S::NoSpc | S::RoFs | S::NameTooLong | S::DQuot | S::Stale | S::ServerFault | S::Delay |
                S::Expired | S::Grace | S::FhExpired | S::ShareDenied | S::WrongSec | S::Moved | S::NoFilehandle |
                S::OldStateid | S::BadStateid | S::Symlink | S::AttrNotSupp | S::NoGrace | S::ReclaimBad |
                S::ReclaimConflict | S::BadXdr | S::BadOwner | S::BadChar | S::BadName | S::AdminRevoked |
                S::DelegAlreadyWanted | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep |
                S::UnsafeCompound | S::TooManyOps | S::OpNotInSession | S::Deadsession | S::WrongType |
                S::DelegRevoked),
            Operation4::Openattr => matches!(status,
                S::NoEnt | S::Io | S::Access | S::NoSpc | S::RoFs | S::DQuot | S::Stale | S::NotSupp |
                S::ServerFault | S::Delay | S::FhExpired | S::Moved | S::NoFilehandle | S::BadXdr | S::ReqTooBig |
                S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep | S::UnsafeCompound | S::TooManyOps |
                S::OpNotInSession | S::Deadsession | S::WrongType),
            Operation4::OpenConfirm => matches!(status,
                S::NotSupp),
            Operation4::OpenDowngrade => matches!(status,
                S::Inval | S::RoFs | S::Stale | S::ServerFault | S::Delay | S::Expired | S::FhExpired | S::Moved |
                S::NoFilehandle | S::OldStateid | S::BadStateid | S::BadXdr | S::AdminRevoked | S::ReqTooBig |
                S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession |
                S::Deadsession | S::WrongCred),
            Operation4::Putfh => matches!(status,
                S::Stale | S::BadHandle | S::ServerFault | S::Delay | S::WrongSec | S::Moved | S::BadXdr |
                S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps |
                S::OpNotInSession | S::Deadsession),
            Operation4::Putpubfh => matches!(status,
                S::ServerFault | S::Delay | S::WrongSec | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache |
                S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession),
            Operation4::Putrootfh => matches!(status,
                S::ServerFault | S::Delay | S::WrongSec | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache |
                S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession),
            Operation4::Read => matches!(status,
                S::Io | S::Access | S::IsDir | S::Inval | S::Stale | S::ServerFault | S::Delay | S::Expired |
                S::Locked | S::Grace | S::FhExpired | S::Moved | S::NoFilehandle | S::OldStateid | S::BadStateid |
                S::Symlink | S::BadXdr | S::OpenMode | S::AdminRevoked | S::ReqTooBig | S::RepTooBig |
                S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::PnfsIoHole |
                S::Deadsession | S::PnfsNoLayout | S::WrongType | S::DelegRevoked),
            Operation4::Readdir => matches!(status,
                S::Io | S::Access | S::NotDir | S::Inval | S::Stale | S::BadCookie | S::TooSmall |
                S::ServerFault | S::Delay | S::FhExpired | S::Moved | S::NoFilehandle | S::NotSame | S::BadXdr |
                S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps |
                S::OpNotInSession | S::Deadsession),
            Operation4::Readlink => matches!(status,
                S::Io | S::Access | S::Inval | S::Stale | S::ServerFault | S::Delay | S::FhExpired | S::Moved |
                S::NoFilehandle | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep |
                S::TooManyOps | S::OpNotInSession | S::Deadsession | S::WrongType),
            Operation4::Remove => matches!(status,
                S::NoEnt | S::Io | S::Access | S::NotDir | S::Inval | S::RoFs | S::NameTooLong | S::NotEmpty |
                S::Stale | S::ServerFault | S::Delay | S::Grace | S::FhExpired | S::Moved | S::NoFilehandle |
                S::BadXdr | S::BadChar | S::BadName | S::FileOpen | S::ReqTooBig | S::RepTooBig |
                S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession),
            Operation4::Rename => matches!(status,
                S::NoEnt | S::Io | S::Access | S::Exist | S::XDev | S::NotDir | S::Inval | S::NoSpc | S::RoFs |
                S::MLink | S::NameTooLong | S::NotEmpty | S::DQuot | S::Stale | S::ServerFault | S::Delay |
                S::Grace | S::FhExpired | S::WrongSec | S::Moved | S::NoFilehandle | S::BadXdr | S::BadChar |
                S::BadName | S::FileOpen | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache |
                S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession),
            Operation4::Renew => matches!(status,
                S::NotSupp),
            Operation4::Restorefh => matches!(status,
                S::Stale | S::ServerFault | S::FhExpired | S::WrongSec | S::Moved | S::NoFilehandle |
                S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps |
                S::OpNotInSession | S::Deadsession),
            Operation4::Savefh => matches!(status,
                S::Stale | S::ServerFault | S::FhExpired | S::Moved | S::NoFilehandle | S::ReqTooBig |
                S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession |
                S::Deadsession),
            Operation4::Secinfo => matches!(status,
                S::NoEnt | S::Access | S::NotDir | S::Inval | S::NameTooLong | S::Stale | S::ServerFault |
                S::Delay | S::FhExpired | S::Moved | S::NoFilehandle | S::BadXdr | S::BadChar | S::BadName |
                S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps |
                S::OpNotInSession | S::Deadsession),
            Operation4::Setattr => matches!(status,
                S::Perm | S::Io | S::Access | S::Inval | S::FBig | S::NoSpc | S::RoFs | S::DQuot | S::Stale |
                S::ServerFault | S::Delay | S::Expired | S::Locked | S::Grace | S::FhExpired | S::Moved |
                S::NoFilehandle | S::OldStateid | S::BadStateid | S::AttrNotSupp | S::BadXdr | S::OpenMode |
                S::BadOwner | S::BadChar | S::AdminRevoked | S::UnknownLayouttype | S::ReqTooBig | S::RepTooBig |
                S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession |
                S::WrongType | S::DelegRevoked),
            Operation4::Setclientid => matches!(status,
                S::NotSupp),
            Operation4::SetclientidConfirm => matches!(status,
                S::NotSupp),
            Operation4::Verify => matches!(status,
                S::Io | S::Access | S::Inval | S::Stale | S::ServerFault | S::Delay | S::Grace | S::FhExpired |
                S::Moved | S::NoFilehandle | S::NotSame | S::AttrNotSupp | S::BadXdr | S::BadChar |
                S::UnknownLayouttype | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep |
                S::TooManyOps | S::OpNotInSession | S::Deadsession | S::WrongType),
            Operation4::Write => matches!(status,
                S::Io | S::Access | S::IsDir | S::Inval | S::FBig | S::NoSpc | S::RoFs | S::DQuot | S::Stale |
                S::ServerFault | S::Delay | S::Expired | S::Locked | S::Grace | S::FhExpired | S::Moved |
                S::NoFilehandle | S::OldStateid | S::BadStateid | S::Symlink | S::BadXdr | S::OpenMode |
                S::AdminRevoked | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep |
                S::TooManyOps | S::OpNotInSession | S::PnfsIoHole | S::Deadsession | S::PnfsNoLayout |
                S::WrongType | S::DelegRevoked),
            Operation4::ReleaseLockowner => matches!(status,
                S::NotSupp),
            Operation4::BackchannelCtl => matches!(status,
                S::NoEnt | S::Inval | S::Delay | S::BadXdr | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache |
                S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession),
            Operation4::BindConnToSession => matches!(status,
                S::Inval | S::ServerFault | S::Delay | S::BadXdr | S::BadSessionDigest | S::BadSession |
                S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps |
                S::Deadsession | S::NotOnlyOp),
            Operation4::ExchangeId => matches!(status,
                S::NoEnt | S::Inval | S::ServerFault | S::Delay | S::ClidInuse | S::NotSame | S::BadXdr |
                S::BadChar | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep |
                S::TooManyOps | S::HashAlgUnsupp | S::Deadsession | S::EncrAlgUnsupp | S::NotOnlyOp),
            Operation4::CreateSession => matches!(status,
                S::NoEnt | S::Inval | S::NoSpc | S::TooSmall | S::ServerFault | S::Delay | S::ClidInuse |
                S::StaleClientid | S::BadXdr | S::SeqMisordered | S::ReqTooBig | S::RepTooBig |
                S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps | S::Deadsession | S::NotOnlyOp |
                S::WrongCred),
            Operation4::DestroySession => matches!(status,
                S::ServerFault | S::Delay | S::StaleClientid | S::BadXdr | S::CbPathDown | S::BadSession |
                S::ConnNotBoundToSession | S::BackChanBusy | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache |
                S::RetryUncachedRep | S::TooManyOps | S::Deadsession | S::NotOnlyOp | S::WrongCred),
            Operation4::FreeStateid => matches!(status,
                S::ServerFault | S::Delay | S::OldStateid | S::BadStateid | S::BadXdr | S::LocksHeld |
                S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps |
                S::OpNotInSession | S::Deadsession | S::WrongCred),
            Operation4::GetDirDelegation => matches!(status,
                S::Io | S::Access | S::NotDir | S::Inval | S::Stale | S::NotSupp | S::ServerFault | S::Delay |
                S::Grace | S::FhExpired | S::Moved | S::NoFilehandle | S::BadXdr | S::ReqTooBig | S::RepTooBig |
                S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession |
                S::DirdelegUnavail),
            Operation4::Getdeviceinfo => matches!(status,
                S::NoEnt | S::Inval | S::NotSupp | S::TooSmall | S::ServerFault | S::Delay | S::BadXdr |
                S::UnknownLayouttype | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep |
                S::TooManyOps | S::OpNotInSession | S::Deadsession),
            Operation4::Getdevicelist => matches!(status,
                S::Io | S::Inval | S::BadCookie | S::NotSupp | S::ServerFault | S::Delay | S::FhExpired |
                S::NoFilehandle | S::NotSame | S::BadXdr | S::UnknownLayouttype | S::ReqTooBig | S::RepTooBig |
                S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession),
            Operation4::Layoutcommit => matches!(status,
                S::Io | S::Access | S::IsDir | S::Inval | S::FBig | S::Stale | S::NotSupp | S::ServerFault |
                S::Delay | S::Expired | S::Grace | S::FhExpired | S::Moved | S::NoFilehandle | S::Symlink |
                S::AttrNotSupp | S::NoGrace | S::ReclaimBad | S::ReclaimConflict | S::BadXdr | S::AdminRevoked |
                S::BadIoMode | S::BadLayout | S::UnknownLayouttype | S::ReqTooBig | S::RepTooBig |
                S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession |
                S::WrongCred | S::DelegRevoked),
            Operation4::Layoutget => matches!(status,
                S::Io | S::Access | S::Inval | S::NoSpc | S::DQuot | S::Stale | S::NotSupp | S::TooSmall |
                S::ServerFault | S::Delay | S::Locked | S::Grace | S::FhExpired | S::Moved | S::NoFilehandle |
                S::OldStateid | S::BadStateid | S::BadXdr | S::OpenMode | S::AdminRevoked | S::BadIoMode |
                S::BadLayout | S::LayoutTryLater | S::LayoutUnavailable | S::RecallConflict |
                S::UnknownLayouttype | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep |
                S::TooManyOps | S::OpNotInSession | S::Deadsession | S::WrongType | S::DelegRevoked),
            Operation4::Layoutreturn => matches!(status,
                S::IsDir | S::Inval | S::Stale | S::NotSupp | S::ServerFault | S::Delay | S::Expired | S::Grace |
                S::FhExpired | S::Moved | S::NoFilehandle | S::OldStateid | S::BadStateid | S::NoGrace |
                S::BadXdr | S::AdminRevoked | S::UnknownLayouttype | S::ReqTooBig | S::RepTooBig |
                S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession |
                S::WrongCred | S::WrongType | S::DelegRevoked),
            Operation4::SecinfoNoName => matches!(status,
                S::NoEnt | S::Access | S::NotDir | S::Inval | S::Stale | S::NotSupp | S::ServerFault | S::Delay |
                S::FhExpired | S::Moved | S::NoFilehandle | S::BadXdr | S::ReqTooBig | S::RepTooBig |
                S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession),
            Operation4::Sequence => matches!(status,
                S::Delay | S::BadXdr | S::BadSession | S::BadSlot | S::ConnNotBoundToSession | S::SeqMisordered |
                S::SequencePos | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep |
                S::TooManyOps | S::SeqFalseRetry | S::BadHighSlot | S::Deadsession),
            Operation4::SetSsv => matches!(status,
                S::Inval | S::Delay | S::BadXdr | S::BadSessionDigest | S::ReqTooBig | S::RepTooBig |
                S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession),
            Operation4::TestStateid => matches!(status,
                S::ServerFault | S::Delay | S::BadXdr | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache |
                S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession),
            Operation4::WantDelegation => matches!(status,
                S::Io | S::Inval | S::Stale | S::NotSupp | S::ServerFault | S::Delay | S::Grace | S::FhExpired |
                S::Moved | S::NoFilehandle | S::NoGrace | S::ReclaimBad | S::ReclaimConflict | S::BadXdr |
                S::DelegAlreadyWanted | S::RecallConflict | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache |
                S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession | S::WrongType),
            Operation4::DestroyClientid => matches!(status,
                S::ServerFault | S::Delay | S::StaleClientid | S::BadXdr | S::ReqTooBig | S::RepTooBig |
                S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps | S::ClientidBusy | S::Deadsession |
                S::NotOnlyOp | S::WrongCred),
            Operation4::ReclaimComplete => matches!(status,
                S::Inval | S::Stale | S::ServerFault | S::Delay | S::FhExpired | S::Moved | S::NoFilehandle |
                S::BadXdr | S::CompleteAlready | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache |
                S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession | S::WrongCred |
                S::WrongType),
            Operation4::Allocate => matches!(status,
                S::Io | S::Access | S::IsDir | S::Inval | S::FBig | S::NoSpc | S::RoFs | S::DQuot | S::Stale |
                S::NotSupp | S::ServerFault | S::Delay | S::Expired | S::Grace | S::FhExpired | S::Moved |
                S::NoFilehandle | S::OldStateid | S::BadStateid | S::Symlink | S::BadXdr | S::OpenMode |
                S::AdminRevoked | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep |
                S::TooManyOps | S::OpNotInSession | S::Deadsession | S::WrongType | S::DelegRevoked),
            Operation4::Copy => matches!(status,
                S::Io | S::Access | S::IsDir | S::Inval | S::FBig | S::NoSpc | S::RoFs | S::DQuot | S::Stale |
                S::ServerFault | S::Delay | S::Expired | S::Locked | S::Grace | S::FhExpired | S::Moved |
                S::NoFilehandle | S::OldStateid | S::BadStateid | S::Symlink | S::BadXdr | S::OpenMode |
                S::AdminRevoked | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep |
                S::TooManyOps | S::OpNotInSession | S::PnfsIoHole | S::Deadsession | S::PnfsNoLayout |
                S::WrongType | S::DelegRevoked | S::PartnerNotsupp | S::PartnerNoAuth | S::OffloadDenied),
            Operation4::CopyNotify => matches!(status,
                S::Io | S::Access | S::IsDir | S::Inval | S::Stale | S::ServerFault | S::Delay | S::Expired |
                S::Locked | S::Grace | S::FhExpired | S::Moved | S::NoFilehandle | S::OldStateid | S::BadStateid |
                S::Symlink | S::BadXdr | S::OpenMode | S::AdminRevoked | S::ReqTooBig | S::RepTooBig |
                S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::PnfsIoHole |
                S::Deadsession | S::PnfsNoLayout | S::WrongType | S::DelegRevoked),
            Operation4::Deallocate => matches!(status,
                S::Io | S::Access | S::IsDir | S::Inval | S::FBig | S::RoFs | S::Stale | S::NotSupp |
                S::ServerFault | S::Delay | S::Expired | S::Grace | S::FhExpired | S::Moved | S::NoFilehandle |
                S::OldStateid | S::BadStateid | S::Symlink | S::BadXdr | S::OpenMode | S::AdminRevoked |
                S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps |
                S::OpNotInSession | S::Deadsession | S::WrongType | S::DelegRevoked),
            Operation4::IoAdvise => matches!(status,
                S::Io | S::Access | S::IsDir | S::Inval | S::FBig | S::Stale | S::NotSupp | S::ServerFault |
                S::Delay | S::Expired | S::Grace | S::FhExpired | S::Moved | S::NoFilehandle | S::OldStateid |
                S::BadStateid | S::Symlink | S::BadXdr | S::AdminRevoked | S::RetryUncachedRep | S::TooManyOps |
                S::OpNotInSession | S::Deadsession | S::WrongType | S::DelegRevoked),
            Operation4::Layouterror => matches!(status,
                S::IsDir | S::Inval | S::Stale | S::NotSupp | S::ServerFault | S::Delay | S::Expired | S::Grace |
                S::FhExpired | S::Moved | S::NoFilehandle | S::OldStateid | S::BadStateid | S::NoGrace |
                S::BadXdr | S::AdminRevoked | S::UnknownLayouttype | S::ReqTooBig | S::RepTooBig |
                S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession |
                S::WrongCred | S::WrongType | S::DelegRevoked),
            Operation4::Layoutstats => matches!(status,
                S::IsDir | S::Inval | S::Stale | S::NotSupp | S::ServerFault | S::Delay | S::Expired | S::Grace |
                S::FhExpired | S::Moved | S::NoFilehandle | S::OldStateid | S::BadStateid | S::NoGrace |
                S::BadXdr | S::AdminRevoked | S::UnknownLayouttype | S::ReqTooBig | S::RepTooBig |
                S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession |
                S::WrongCred | S::WrongType | S::DelegRevoked),
            Operation4::OffloadCancel => matches!(status,
                S::NotSupp | S::ServerFault | S::Delay | S::Expired | S::Grace | S::OldStateid | S::BadStateid |
                S::BadXdr | S::AdminRevoked | S::CompleteAlready | S::TooManyOps | S::OpNotInSession |
                S::Deadsession),
            Operation4::OffloadStatus => matches!(status,
                S::NotSupp | S::ServerFault | S::Delay | S::Expired | S::Grace | S::OldStateid | S::BadStateid |
                S::BadXdr | S::AdminRevoked | S::CompleteAlready | S::TooManyOps | S::OpNotInSession |
                S::Deadsession),
            Operation4::ReadPlus => matches!(status,
                S::Io | S::Access | S::IsDir | S::Inval | S::Stale | S::NotSupp | S::ServerFault | S::Delay |
                S::Expired | S::Locked | S::Grace | S::FhExpired | S::Moved | S::NoFilehandle | S::OldStateid |
                S::BadStateid | S::Symlink | S::BadXdr | S::OpenMode | S::AdminRevoked | S::ReqTooBig |
                S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession |
                S::PnfsIoHole | S::Deadsession | S::PnfsNoLayout | S::WrongType | S::DelegRevoked |
                S::PartnerNoAuth),
            Operation4::Seek => matches!(status,
                S::Io | S::Access | S::IsDir | S::Inval | S::Stale | S::NotSupp | S::ServerFault | S::Delay |
                S::Expired | S::Locked | S::Grace | S::FhExpired | S::Moved | S::NoFilehandle | S::OldStateid |
                S::BadStateid | S::Symlink | S::BadXdr | S::OpenMode | S::AdminRevoked | S::ReqTooBig |
                S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession |
                S::PnfsIoHole | S::Deadsession | S::PnfsNoLayout | S::WrongType | S::DelegRevoked |
                S::UnionNotsupp),
            Operation4::WriteSame => matches!(status,
                S::Io | S::Access | S::IsDir | S::Inval | S::FBig | S::NoSpc | S::RoFs | S::DQuot | S::Stale |
                S::NotSupp | S::ServerFault | S::Delay | S::Expired | S::Locked | S::Grace | S::FhExpired |
                S::Moved | S::NoFilehandle | S::OldStateid | S::BadStateid | S::Symlink | S::BadXdr |
                S::OpenMode | S::AdminRevoked | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache |
                S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::PnfsIoHole | S::Deadsession |
                S::PnfsNoLayout | S::WrongType | S::DelegRevoked),
            Operation4::Clone => matches!(status,
                S::Io | S::Access | S::XDev | S::IsDir | S::Inval | S::FBig | S::NoSpc | S::RoFs | S::DQuot |
                S::Stale | S::NotSupp | S::ServerFault | S::Delay | S::Expired | S::Grace | S::FhExpired |
                S::Moved | S::NoFilehandle | S::OldStateid | S::BadStateid | S::Symlink | S::BadXdr |
                S::OpenMode | S::AdminRevoked | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache |
                S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession | S::WrongType |
                S::DelegRevoked),
            Operation4::Getxattr => matches!(status,
                S::Perm | S::Io | S::Access | S::Inval | S::NameTooLong | S::Stale | S::NotSupp | S::ServerFault |
                S::Delay | S::FhExpired | S::Moved | S::NoFilehandle | S::BadXdr | S::ReqTooBig | S::RepTooBig |
                S::RepTooBigToCache | S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession |
                S::WrongType | S::NoXattr),
            Operation4::Setxattr => matches!(status,
                S::Perm | S::Io | S::Access | S::Exist | S::Inval | S::NoSpc | S::RoFs | S::NameTooLong |
                S::DQuot | S::Stale | S::ServerFault | S::Delay | S::FhExpired | S::Moved | S::NoFilehandle |
                S::BadXdr | S::BadChar | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache | S::RetryUncachedRep |
                S::TooManyOps | S::OpNotInSession | S::Deadsession | S::WrongType | S::NoXattr | S::Xattr2Big),
            Operation4::Listxattrs => matches!(status,
                S::Perm | S::Io | S::Access | S::Inval | S::NameTooLong | S::Stale | S::NotSupp | S::ServerFault |
                S::Delay | S::Moved | S::NoFilehandle | S::ReqTooBig | S::RepTooBig | S::RepTooBigToCache |
                S::RetryUncachedRep | S::TooManyOps | S::OpNotInSession | S::Deadsession | S::WrongType |
                S::NoXattr),
            Operation4::Removexattr => matches!(status,
                S::Perm | S::Io | S::Access | S::Exist | S::Inval | S::NoSpc | S::RoFs | S::NameTooLong |
                S::DQuot | S::Stale | S::ServerFault | S::Delay | S::Locked | S::Moved | S::NoFilehandle |
                S::OldStateid | S::BadXdr | S::OpenMode | S::BadChar | S::RetryUncachedRep | S::TooManyOps |
                S::OpNotInSession | S::Deadsession | S::WrongType | S::NoXattr),
            Operation4::Illegal => matches!(status,
                S::BadXdr | S::OpIllegal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_has_the_errors_of_its_table_and_of_the_text() {
        for (operation, status, may) in [
            (Operation4::Lockt, S::Denied, true),
            (Operation4::Lockt, S::ServerFault, false),
            (Operation4::Rename, S::XDev, true),
            (Operation4::Lookup, S::XDev, false),
            (Operation4::Getfh, S::RepTooBig, true),
            (Operation4::Clone, S::NotSupp, true),
            (Operation4::Getattr, S::NotSupp, false),
            (Operation4::Seek, S::NxIo, true),
            (Operation4::ExchangeId, S::Perm, true),
            (Operation4::Locku, S::IsDir, true),
        ] {
            assert_eq!(operation.may_fail_with(status), may, "{operation:?}: {status:?}");
        }
    }
}
