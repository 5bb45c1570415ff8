//! NFS version 4, minor versions 0, 1 and 2 (RFC 7530, 8881, 7862), with extended attributes (RFC 8276) and mode_umask
//! (RFC 8275): COMPOUND and CB_COMPOUND, all operations and all attributes, for both sides.
//!
//! ```text
//! compound   COMPOUND and its reply: one operation at a time, read and written
//! operation  the table of operations: number, name, minor versions, arguments, results
//! attributes the table of attributes: number, name, type, access, minor version
//! files directory open lock · session · client_id · pnfs · extended · callback    arguments and results by subject
//! ```
//!
//! Views borrow the message, and decoding checks all but the values of an [`attributes::AttributeList`]. Every counted value
//! has its limit in its type. Names longer than 255 octets decode, up to [`STRING_LEN_CAP`], so that a server can answer
//! [`Status4::NameTooLong`].
//!
//! The DDP-eligible items of RFC 8267 are the data of WRITE and READ and the text of CREATE's and READLINK's links
//! ([`operation::Operation4::has_eligible_argument`], [`operation::Operation4::has_eligible_result`]); they are
//! [`Item`](crate::xdr::Item)s. [`compound::locate_write`] says where the data of a WRITE will be before it is there.

pub mod acl;
pub mod attributes;
pub mod callback;
pub mod client_id;
pub mod compound;
pub mod directory;
pub mod extended;
pub mod files;
pub mod locations;
pub mod lock;
pub mod open;
pub mod operation;
pub mod pnfs;
pub mod session;
pub mod status;
mod valid_errors;
pub mod value;

pub use extended::Advice;
pub use status::Status4;
pub use value::{Bitmap, List, Opaque, SessionId, StateId, Time4, Verifier4};

use crate::nfs3::value::numbers;
pub use crate::nfs3::{Data, DeviceNumber, Entries, Path, STRING_LEN_CAP, Stable};

/// Program number of NFS.
pub const PROGRAM: u32 = crate::nfs3::PROGRAM;
/// The version spoken here.
pub const VERSION: u32 = 4;
/// Procedure number of COMPOUND, and of CB_COMPOUND; 0 is NULL.
pub const COMPOUND: u32 = 1;
/// Version of the callback program, whose number the client chooses. RFC 8881's XDR and Linux say 1; the text of
/// its section 18.36.3 says 4.
pub const CALLBACK_VERSION: u32 = 1;

/// Longest handle, in octets (NFS4_FHSIZE).
pub const HANDLE_LEN_MAX: u32 = 128;
/// Longest owner of a client, open or lock, and longest scope of a server, in octets (NFS4_OPAQUE_LIMIT).
pub const OWNER_LEN_MAX: u32 = 1024;

/// A handle (nfs_fh4).
pub type Handle4<'a> = Opaque<'a, HANDLE_LEN_MAX>;
/// A name of a directory entry or extended attribute, a user or group, or other text (component4, utf8string).
pub type Name4<'a> = Opaque<'a, STRING_LEN_CAP>;

numbers! {
    /// What an object is (nfs_ftype4).
    FileType4 {
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
        /// Directory of named attributes.
        AttributeDirectory = 8,
        /// Named attribute.
        NamedAttribute = 9,
    }
}
