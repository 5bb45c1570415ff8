//! Status of operations (nfsstat4): RFC 7530, 8881, 7862 and 8276. A number outside of them is an error, never a guess.

use crate::nfs3::value::numbers;

numbers! {
    /// What an operation or a COMPOUND answers (nfsstat4), with the numbers of all minor versions.
    Status4 {
        /// Everything is well.
        Ok = 0,
        /// Not the owner, or not privileged.
        Perm = 1,
        /// No such file or directory.
        NoEnt = 2,
        /// Hard error of the device.
        Io = 5,
        /// No such device or address.
        NxIo = 6,
        /// Permission denied.
        Access = 13,
        /// The name is taken.
        Exist = 17,
        /// Across file systems.
        XDev = 18,
        /// Not a directory.
        NotDir = 20,
        /// Is a directory.
        IsDir = 21,
        /// Invalid argument.
        Inval = 22,
        /// File too large.
        FBig = 27,
        /// No space left.
        NoSpc = 28,
        /// Read-only file system.
        RoFs = 30,
        /// Too many hard links.
        MLink = 31,
        /// Name too long.
        NameTooLong = 63,
        /// Directory not empty.
        NotEmpty = 66,
        /// Quota exceeded.
        DQuot = 69,
        /// The object of this handle is gone.
        Stale = 70,
        /// The handle fails its checks.
        BadHandle = 10001,
        /// The READDIR cookie is stale.
        BadCookie = 10003,
        /// The operation is not supported.
        NotSupp = 10004,
        /// The limit of the results is too small.
        TooSmall = 10005,
        /// An error that is none of these.
        ServerFault = 10006,
        /// CREATE does not make objects of this type.
        BadType = 10007,
        /// Try again later.
        Delay = 10008,
        /// NVERIFY: the attributes are the same.
        Same = 10009,
        /// Another owner holds the lock.
        Denied = 10010,
        /// The lease of the state has expired.
        Expired = 10011,
        /// A lock forbids the access.
        Locked = 10012,
        /// The server is in its grace period.
        Grace = 10013,
        /// The volatile handle has expired.
        FhExpired = 10014,
        /// A share reservation forbids the open.
        ShareDenied = 10015,
        /// The security flavor is wrong.
        WrongSec = 10016,
        /// Another principal uses this client owner.
        ClidInuse = 10017,
        /// Out of resources (4.0 only).
        Resource = 10018,
        /// The file system is elsewhere.
        Moved = 10019,
        /// There is no current handle.
        NoFilehandle = 10020,
        /// This minor version is not spoken.
        MinorVersMismatch = 10021,
        /// The server has restarted, or does not know the client.
        StaleClientid = 10022,
        /// The state id is from before a restart.
        StaleStateid = 10023,
        /// The state id is older than the state.
        OldStateid = 10024,
        /// No such state.
        BadStateid = 10025,
        /// The owner sequence number is out of order (4.0 only).
        BadSeqid = 10026,
        /// VERIFY: the attributes differ.
        NotSame = 10027,
        /// The range overlaps others in a way that is not supported.
        LockRange = 10028,
        /// Is a symbolic link.
        Symlink = 10029,
        /// There is no saved handle.
        RestoreFh = 10030,
        /// State of this lease has moved (4.0 only).
        LeaseMoved = 10031,
        /// The attribute is not supported.
        AttrNotSupp = 10032,
        /// A reclaim outside of the grace period.
        NoGrace = 10033,
        /// The server cannot establish what is reclaimed.
        ReclaimBad = 10034,
        /// The reclaim conflicts with other state.
        ReclaimConflict = 10035,
        /// The arguments do not decode.
        BadXdr = 10036,
        /// CLOSE while byte-range locks are held.
        LocksHeld = 10037,
        /// The open does not allow this access.
        OpenMode = 10038,
        /// The owner or group cannot be translated.
        BadOwner = 10039,
        /// A character is not supported.
        BadChar = 10040,
        /// The name is not supported.
        BadName = 10041,
        /// The range is not supported.
        BadRange = 10042,
        /// No atomic upgrade or downgrade of locks.
        LockNotsupp = 10043,
        /// There is no such operation.
        OpIllegal = 10044,
        /// The lock would deadlock.
        Deadlock = 10045,
        /// The open file blocks the operation.
        FileOpen = 10046,
        /// An administrator revoked the state.
        AdminRevoked = 10047,
        /// There is no path for callbacks.
        CbPathDown = 10048,
        /// The layout has another I/O mode.
        BadIoMode = 10049,
        /// The layout is malformed.
        BadLayout = 10050,
        /// The digest of SET_SSV is wrong.
        BadSessionDigest = 10051,
        /// No such session.
        BadSession = 10052,
        /// The slot is beyond the table.
        BadSlot = 10053,
        /// RECLAIM_COMPLETE was sent before.
        CompleteAlready = 10054,
        /// The connection is not bound to the session.
        ConnNotBoundToSession = 10055,
        /// The delegation is wanted already.
        DelegAlreadyWanted = 10056,
        /// Callbacks of the session are outstanding.
        BackChanBusy = 10057,
        /// Ask for the layout later.
        LayoutTryLater = 10058,
        /// No layout for this file.
        LayoutUnavailable = 10059,
        /// CB_LAYOUTRECALL: no such layout.
        NomatchingLayout = 10060,
        /// The layout is being recalled.
        RecallConflict = 10061,
        /// The layout type is not known.
        UnknownLayouttype = 10062,
        /// The slot expects another sequence id.
        SeqMisordered = 10063,
        /// SEQUENCE is not the first operation.
        SequencePos = 10064,
        /// The request is beyond ca_maxrequestsize.
        ReqTooBig = 10065,
        /// The reply is beyond ca_maxresponsesize.
        RepTooBig = 10066,
        /// The reply is beyond ca_maxresponsesize_cached.
        RepTooBigToCache = 10067,
        /// The reply of the retried request was not kept.
        RetryUncachedRep = 10068,
        /// Retry or recovery of the COMPOUND would be too hard.
        UnsafeCompound = 10069,
        /// More operations than ca_maxoperations.
        TooManyOps = 10070,
        /// The operation needs a SEQUENCE before it.
        OpNotInSession = 10071,
        /// No hash algorithm is supported.
        HashAlgUnsupp = 10072,
        /// The client still has state.
        ClientidBusy = 10074,
        /// I/O to a hole of a sparse layout.
        PnfsIoHole = 10075,
        /// A retry that is another request.
        SeqFalseRetry = 10076,
        /// The highest slot of the request is wrong.
        BadHighSlot = 10077,
        /// A new request to a session that is being destroyed.
        Deadsession = 10078,
        /// No encryption algorithm is supported.
        EncrAlgUnsupp = 10079,
        /// I/O without a layout.
        PnfsNoLayout = 10080,
        /// The operation must be alone in its COMPOUND.
        NotOnlyOp = 10081,
        /// Another principal owns the state.
        WrongCred = 10082,
        /// The object has the wrong type.
        WrongType = 10083,
        /// No delegation of this directory.
        DirdelegUnavail = 10084,
        /// CB_PUSH_DELEG: the client declines.
        RejectDeleg = 10085,
        /// LAYOUTGET before the LAYOUTRETURN was done.
        ReturnConflict = 10086,
        /// The delegation or layout was revoked.
        DelegRevoked = 10087,
        /// The other server does not copy between servers.
        PartnerNotsupp = 10088,
        /// The other server does not allow the copy.
        PartnerNoAuth = 10089,
        /// The arm of the union is not supported.
        UnionNotsupp = 10090,
        /// The destination does not allow the copy.
        OffloadDenied = 10091,
        /// The label format is not supported.
        WrongLfs = 10092,
        /// The label is wrong.
        BadLabel = 10093,
        /// The requirements of the copy cannot be met.
        OffloadNoReqs = 10094,
        /// No such extended attribute.
        NoXattr = 10095,
        /// The extended attribute is too big.
        Xattr2Big = 10096,
    }
}
