//! Why a store or the policy above it refuses.

/// Why an operation on files failed. Each protocol has a status for each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum FsError {
    /// Only the owner, or the superuser, may do that.
    #[error("not the owner")]
    NotPermitted,
    /// There is no object of that name.
    #[error("no such file or directory")]
    NotFound,
    /// The device failed.
    #[error("hard error of the device")]
    Io,
    /// A special file without a device behind it.
    #[error("no such device or address")]
    NoAddress,
    /// A permission is missing.
    #[error("permission denied")]
    AccessDenied,
    /// The name is taken.
    #[error("the name is taken")]
    Exists,
    /// It lies in another file system.
    #[error("another file system")]
    CrossDevice,
    /// There is no such device.
    #[error("no such device")]
    NoDevice,
    /// It is no directory.
    #[error("not a directory")]
    NotDirectory,
    /// It is a directory.
    #[error("is a directory")]
    IsDirectory,
    /// An argument makes no sense, or not for this object.
    #[error("invalid argument")]
    Invalid,
    /// The file would be larger than files may be.
    #[error("file too large")]
    TooLarge,
    /// Space, or objects, are used up.
    #[error("no space left")]
    NoSpace,
    /// Nothing can be changed.
    #[error("read-only file system")]
    ReadOnly,
    /// The object has as many hard links as it can have.
    #[error("too many hard links")]
    TooManyLinks,
    /// A name or path is longer than they may be, or lies too deep.
    #[error("name too long")]
    NameTooLong,
    /// The directory has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// The owner's quota is used up.
    #[error("quota exceeded")]
    OverQuota,
    /// The object is gone.
    #[error("the object is gone")]
    Stale,
    /// What should name an object is no handle.
    #[error("not a handle")]
    BadHandle,
    /// The object changed since the caller saw it.
    #[error("the object changed since it was seen")]
    NotSame,
    /// The place in a directory where a listing should go on is not known.
    #[error("unknown cookie of a listing")]
    BadCookie,
    /// The store does not do that.
    #[error("not supported")]
    NotSupported,
    /// Objects of this kind cannot be made.
    #[error("objects of this kind cannot be made")]
    BadKind,
    /// Something is missing for a moment: try again later.
    #[error("try again later")]
    Busy,
    /// A defect: it should not happen.
    #[error("internal error")]
    Fault,
}
