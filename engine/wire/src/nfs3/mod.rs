//! NFS version 3 (RFC 1813): arguments and results of all 22 procedures, for both sides.
//!
//! ```text
//! client                                   server
//! XArguments::encode ── the Call's payload ──▶  XArguments::decode
//! XReply::decode    ◀── the Reply's payload ── XReply::encode
//! ```
//!
//! A procedure's arguments are a plain struct; its results are a [`ProcedureResults`]: `Ok` with the fields of
//! RFC 1813's `resok`, or a [`Failure`] with the status and the fields of its `resfail`. Parsing checks
//! everything once: afterwards fields and iterators cannot fail, and names, handles and data are borrowed
//! from the message. The names are the RFC's, spelled out; each type says its RFC name.
//!
//! The DDP-eligible items of RFC 8267 ([`WriteArguments::data`], [`SymlinkArguments::path`],
//! [`ReadOk::data`], [`ReadlinkOk::path`]) are [`Item`](crate::xdr::Item)s: octets of the message, or a
//! reference to what went by chunk. Nothing else is ever reduced (8267-6.1-a).
//!
//! Names longer than [`NAME_LEN_MAX`] and paths longer than [`PATH_LEN_MAX`] parse, up to
//! [`STRING_LEN_CAP`], so that a server can answer [`Status::NameTooLong`]; see [`Name::is_too_long`].

mod arguments;
mod attributes;
mod directory;
mod outcome;
mod results;
mod status;
pub(crate) mod value;

pub use arguments::*;
pub use attributes::*;
pub use directory::*;
pub use outcome::*;
pub use results::*;
pub use status::*;
pub use value::*;

/// Program number of NFS.
pub const PROGRAM: u32 = 100_003;
/// The version spoken here.
pub const VERSION: u32 = 3;
/// Length of the verifiers of WRITE, COMMIT, CREATE and READDIR, in bytes.
pub const VERIFIER_LEN: usize = 8;

/// A verifier: writeverf3, createverf3, cookieverf3.
pub type Verifier = [u8; VERIFIER_LEN];

value::numbers! {
    /// The procedures of version 3.
    Procedure {
        /// Does nothing.
        Null = 0,
        /// Attributes of an object.
        Getattr = 1,
        /// Changes attributes, if a guard holds.
        Setattr = 2,
        /// Handle of a name in a directory.
        Lookup = 3,
        /// Which of some accesses the caller has.
        Access = 4,
        /// Path that a symbolic link holds.
        Readlink = 5,
        /// Data of a file.
        Read = 6,
        /// Puts data into a file.
        Write = 7,
        /// Makes a regular file.
        Create = 8,
        /// Makes a directory.
        Mkdir = 9,
        /// Makes a symbolic link.
        Symlink = 10,
        /// Makes a device, socket or pipe.
        Mknod = 11,
        /// Removes a name that is not a directory's.
        Remove = 12,
        /// Removes an empty directory.
        Rmdir = 13,
        /// Gives an object another name or directory.
        Rename = 14,
        /// Gives an object one more name.
        Link = 15,
        /// Lists a directory.
        Readdir = 16,
        /// Lists a directory with attributes and handles.
        Readdirplus = 17,
        /// Space and objects, free and used.
        Fsstat = 18,
        /// What the server can and prefers.
        Fsinfo = 19,
        /// POSIX limits.
        Pathconf = 20,
        /// Puts earlier unstable writes on stable storage.
        Commit = 21,
    }
}

impl Procedure {
    /// How many there are: they are numbered from 0 without a gap.
    pub const COUNT: usize = 22;
}
