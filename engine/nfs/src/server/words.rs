//! What stores say, in the words of NFS version 3, and the other way round.

use stag_vfs::{
    CreateMode, DeviceId, FsError, ObjectKind, ObjectStat, Stability, TimeUpdate, Timestamp, Update,
};
use stag_wire::nfs3::{
    Attributes, CreateHow, DeviceNumber, Failure, FileType, SetAttributes, SetTime, Stable, Status, Time,
    WccAttributes,
};

/// The status of an error.
pub(super) const fn status(error: FsError) -> Status {
    match error {
        FsError::NotPermitted => Status::Perm,
        FsError::NotFound => Status::NoEnt,
        FsError::Io => Status::Io,
        FsError::NoAddress => Status::NxIo,
        FsError::AccessDenied => Status::Acces,
        FsError::Exists => Status::Exist,
        FsError::CrossDevice => Status::XDev,
        FsError::NoDevice => Status::NoDev,
        FsError::NotDirectory => Status::NotDir,
        FsError::IsDirectory => Status::IsDir,
        FsError::Invalid => Status::Inval,
        FsError::TooLarge => Status::FBig,
        FsError::NoSpace => Status::NoSpc,
        FsError::ReadOnly => Status::RoFs,
        FsError::TooManyLinks => Status::MLink,
        FsError::NameTooLong => Status::NameTooLong,
        FsError::NotEmpty => Status::NotEmpty,
        FsError::OverQuota => Status::DQuot,
        FsError::Stale => Status::Stale,
        FsError::BadHandle => Status::BadHandle,
        FsError::NotSame => Status::NotSync,
        FsError::BadCookie => Status::BadCookie,
        FsError::NotSupported => Status::NotSupp,
        FsError::BadKind => Status::BadType,
        FsError::Busy => Status::Jukebox,
        FsError::Fault => Status::ServerFault,
    }
}

/// A failed procedure's results.
pub(super) const fn failure<A>(error: FsError, attributes: A) -> Failure<A> {
    Failure { status: status(error), attributes }
}

/// RFC 1813's times are from 1970 to 2106: others are shown as the nearest that is.
#[inline(always)]
pub(super) const fn time(time: Timestamp) -> Time {
    // One comparison for what nearly all times are: each Reply has several.
    if time.seconds as u64 >> 32 == 0 {
        return Time { seconds: time.seconds as u32, nanoseconds: time.nanoseconds };
    }
    nearest_time(time.seconds)
}

#[cold]
#[inline(never)]
const fn nearest_time(seconds: i64) -> Time {
    Time { seconds: if seconds < 0 { 0 } else { u32::MAX }, nanoseconds: 0 }
}

/// A time that a client gives.
pub(super) const fn timestamp(time: Time) -> Timestamp {
    Timestamp { seconds: time.seconds as i64, nanoseconds: time.nanoseconds }
}

/// Attributes of an object of the file system `fsid`.
#[inline(always)]
pub(super) const fn attributes(found: &ObjectStat, fsid: u64) -> Attributes {
    Attributes {
        file_type: match found.kind {
            ObjectKind::Regular => FileType::Regular,
            ObjectKind::Directory => FileType::Directory,
            ObjectKind::Block => FileType::Block,
            ObjectKind::Character => FileType::Character,
            ObjectKind::Symlink => FileType::Symlink,
            ObjectKind::Socket => FileType::Socket,
            ObjectKind::Fifo => FileType::Fifo,
        },
        mode: found.mode,
        nlink: found.nlink,
        uid: found.uid,
        gid: found.gid,
        size: found.size,
        used: found.used,
        rdev: DeviceNumber { major: found.device.major, minor: found.device.minor },
        fsid,
        fileid: found.object.fileid,
        atime: time(found.atime),
        mtime: time(found.mtime),
        ctime: time(found.ctime),
    }
}

/// The attributes that tell whether an object changed.
#[inline(always)]
pub(super) const fn wcc(found: &ObjectStat) -> WccAttributes {
    WccAttributes { size: found.size, mtime: time(found.mtime), ctime: time(found.ctime) }
}

/// Attributes to set.
pub(super) const fn update(set: &SetAttributes) -> Update {
    const fn time(time: SetTime) -> TimeUpdate {
        match time {
            SetTime::Keep => TimeUpdate::Keep,
            SetTime::ServerTime => TimeUpdate::Now,
            SetTime::ClientTime(time) => TimeUpdate::To(timestamp(time)),
        }
    }
    Update {
        mode: set.mode,
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: time(set.atime),
        mtime: time(set.mtime),
    }
}

/// How a file is made.
pub(super) fn create_mode(how: &CreateHow) -> CreateMode {
    match how {
        CreateHow::Unchecked(set) => CreateMode::Unchecked(update(set)),
        CreateHow::Guarded(set) => CreateMode::Guarded(update(set)),
        CreateHow::Exclusive(verifier) => CreateMode::Exclusive(*verifier, Update::default()),
    }
}

/// The number of a device to make.
pub(super) const fn device(number: DeviceNumber) -> DeviceId {
    DeviceId { major: number.major, minor: number.minor }
}

/// How safe a WRITE should be.
#[inline]
pub(super) const fn stability(stable: Stable) -> Stability {
    match stable {
        Stable::Unstable => Stability::Unstable,
        Stable::DataSync => Stability::DataSync,
        Stable::FileSync => Stability::FileSync,
    }
}

/// How safe a WRITE is.
#[inline]
pub(super) const fn stable(stability: Stability) -> Stable {
    match stability {
        Stability::Unstable => Stable::Unstable,
        Stability::DataSync => Stable::DataSync,
        Stability::FileSync => Stable::FileSync,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_out_of_range_are_the_nearest() {
        let shown = |seconds| time(Timestamp { seconds, nanoseconds: 7 });
        assert_eq!(shown(-1), Time::default());
        assert_eq!(shown(9), Time { seconds: 9, nanoseconds: 7 });
        assert_eq!(shown(0xffff_ffff), Time { seconds: u32::MAX, nanoseconds: 7 });
        assert_eq!(shown(1 << 40), Time { seconds: u32::MAX, nanoseconds: 0 });
    }
}
