//! The enumerations of RFC 1813. A number outside of them is an error, never a guess.

use super::value::numbers;

numbers! {
    /// Why a procedure failed (nfsstat3 without NFS3_OK, which is the `Ok` of a [`super::ProcedureResults`]).
    Status {
        /// Not the owner.
        Perm = 1,
        /// No such file or directory.
        NoEnt = 2,
        /// Hard error of the device.
        Io = 5,
        /// No such device or address.
        NxIo = 6,
        /// Permission denied.
        Acces = 13,
        /// The name is taken.
        Exist = 17,
        /// Hard link across devices.
        XDev = 18,
        /// No such device.
        NoDev = 19,
        /// Not a directory.
        NotDir = 20,
        /// Is a directory.
        IsDir = 21,
        /// Invalid argument, or not supported for this object.
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
        /// Too many levels of remote in path.
        Remote = 71,
        /// The handle fails its checks.
        BadHandle = 10001,
        /// The guard of SETATTR did not match.
        NotSync = 10002,
        /// The READDIR cookie is stale.
        BadCookie = 10003,
        /// The operation is not supported.
        NotSupp = 10004,
        /// The buffer or request is too small.
        TooSmall = 10005,
        /// An error that is none of these.
        ServerFault = 10006,
        /// Objects of this type cannot be made.
        BadType = 10007,
        /// Try again later, with a new xid.
        Jukebox = 10008,
    }
}

numbers! {
    /// What an object is (ftype3).
    FileType {
        /// Regular file.
        Regular = 1,
        /// Directory.
        Directory = 2,
        /// Block device.
        Block = 3,
        /// Character device.
        Character = 4,
        /// Symbolic link.
        Symlink = 5,
        /// Socket.
        Socket = 6,
        /// Named pipe.
        Fifo = 7,
    }
}

numbers! {
    /// How safe written data must be, or is, before the Reply (stable_how).
    Stable {
        /// May be lost until a COMMIT.
        Unstable = 0,
        /// Data, and what is needed to read it back.
        DataSync = 1,
        /// Data and all attributes.
        FileSync = 2,
    }
}

/// The accesses of ACCESS; bits of one word.
pub mod access {
    /// Read data of a file, or list a directory.
    pub const READ: u32 = 0x01;
    /// Look up a name in a directory.
    pub const LOOKUP: u32 = 0x02;
    /// Rewrite existing data, or change existing entries.
    pub const MODIFY: u32 = 0x04;
    /// Write new data, or add entries.
    pub const EXTEND: u32 = 0x08;
    /// Delete entries of a directory.
    pub const DELETE: u32 = 0x10;
    /// Execute a file.
    pub const EXECUTE: u32 = 0x20;
}

/// The properties of FSINFO; bits of one word.
pub mod properties {
    /// Hard links are supported.
    pub const LINK: u32 = 0x01;
    /// Symbolic links are supported.
    pub const SYMLINK: u32 = 0x02;
    /// PATHCONF is the same for every object.
    pub const HOMOGENEOUS: u32 = 0x08;
    /// SETATTR can set the times.
    pub const CAN_SET_TIME: u32 = 0x10;
}
