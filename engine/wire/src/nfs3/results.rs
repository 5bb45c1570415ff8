//! Results of the procedures, in the order of their numbers: the `resok` fields of each, and its
//! Reply ([`ProcedureResults`]). READDIR and READDIRPLUS are in `directory`.

use super::value::records;
use super::{
    Attributes, Data, Handle, Path, PostOpAttributes, ProcedureResults, Stable, Time, Verifier, WccData,
};

records! {
    /// GETATTR3resok.
    GetattrOk {
        /// The attributes.
        attributes: Attributes,
    }

    /// SETATTR3resok.
    SetattrOk {
        /// The object.
        object: WccData,
    }

    /// LOOKUP3resok.
    LookupOk<'a> {
        /// What was found.
        object: Handle<'a>,
        /// Its attributes.
        attributes: PostOpAttributes,
        /// The directory's attributes.
        directory: PostOpAttributes,
    }

    /// ACCESS3resok.
    AccessOk {
        /// The object's attributes.
        attributes: PostOpAttributes,
        /// Bits of [`super::access`] that the caller has.
        access: u32,
    }

    /// READLINK3resok.
    ReadlinkOk<'a> {
        /// The link's attributes.
        attributes: PostOpAttributes,
        /// What the link holds. DDP-eligible.
        path: Path<'a>,
    }

    /// READ3resok.
    ReadOk<'a> {
        /// The file's attributes.
        attributes: PostOpAttributes,
        /// Octets read: the length of `data`.
        count: u32,
        /// Whether the last octet of the file is among them, or the offset is beyond it.
        eof: bool,
        /// The data. DDP-eligible.
        data: Data<'a>,
    }

    /// WRITE3resok.
    WriteOk {
        /// The file.
        file: WccData,
        /// Octets written: may be fewer than given.
        count: u32,
        /// How safe they are.
        committed: Stable,
        /// Changes when unstable writes may have been lost.
        verifier: Verifier,
    }

    /// CREATE3resok; also that of MKDIR, SYMLINK and MKNOD.
    CreateOk<'a> {
        /// The new object.
        object: Option<Handle<'a>>,
        /// Its attributes.
        attributes: PostOpAttributes,
        /// The directory.
        directory: WccData,
    }

    /// REMOVE3resok; also that of RMDIR.
    RemoveOk {
        /// The directory.
        directory: WccData,
    }

    /// RENAME3resok; RENAME3resfail has the same fields.
    RenameOk {
        /// The directory of the old name.
        from: WccData,
        /// The directory of the new name.
        to: WccData,
    }

    /// LINK3resok; LINK3resfail has the same fields.
    LinkOk {
        /// The object's attributes.
        attributes: PostOpAttributes,
        /// The directory of the new name.
        directory: WccData,
    }

    /// FSSTAT3resok.
    FsstatOk {
        /// The root's attributes.
        attributes: PostOpAttributes,
        /// Bytes of the file system.
        bytes_total: u64,
        /// Bytes free.
        bytes_free: u64,
        /// Bytes free to the caller.
        bytes_available: u64,
        /// Objects that the file system can have.
        files_total: u64,
        /// Objects free.
        files_free: u64,
        /// Objects free to the caller.
        files_available: u64,
        /// Seconds for which none of this is expected to change.
        invariant_seconds: u32,
    }

    /// FSINFO3resok.
    FsinfoOk {
        /// The root's attributes.
        attributes: PostOpAttributes,
        /// Largest READ.
        read_max: u32,
        /// Preferred READ.
        read_preferred: u32,
        /// Suggested multiple of a READ.
        read_multiple: u32,
        /// Largest WRITE.
        write_max: u32,
        /// Preferred WRITE.
        write_preferred: u32,
        /// Suggested multiple of a WRITE.
        write_multiple: u32,
        /// Preferred READDIR.
        readdir_preferred: u32,
        /// Largest file.
        file_size_max: u64,
        /// Granularity of times.
        time_delta: Time,
        /// Bits of [`super::properties`].
        properties: u32,
    }

    /// PATHCONF3resok.
    PathconfOk {
        /// The object's attributes.
        attributes: PostOpAttributes,
        /// Hard links of an object.
        link_max: u32,
        /// Length of a name.
        name_max: u32,
        /// Longer names are refused, not cut.
        no_trunc: bool,
        /// Only a privileged user may give an object away.
        chown_restricted: bool,
        /// Case does not count.
        case_insensitive: bool,
        /// Case is kept.
        case_preserving: bool,
    }

    /// COMMIT3resok.
    CommitOk {
        /// The file.
        file: WccData,
        /// As in [`WriteOk::verifier`].
        verifier: Verifier,
    }
}

/// GETATTR3res.
pub type GetattrReply = ProcedureResults<GetattrOk, ()>;
/// SETATTR3res.
pub type SetattrReply = ProcedureResults<SetattrOk, WccData>;
/// LOOKUP3res.
pub type LookupReply<'a> = ProcedureResults<LookupOk<'a>, PostOpAttributes>;
/// ACCESS3res.
pub type AccessReply = ProcedureResults<AccessOk, PostOpAttributes>;
/// READLINK3res.
pub type ReadlinkReply<'a> = ProcedureResults<ReadlinkOk<'a>, PostOpAttributes>;
/// READ3res.
pub type ReadReply<'a> = ProcedureResults<ReadOk<'a>, PostOpAttributes>;
/// WRITE3res.
pub type WriteReply = ProcedureResults<WriteOk, WccData>;
/// CREATE3res, MKDIR3res, SYMLINK3res, MKNOD3res.
pub type CreateReply<'a> = ProcedureResults<CreateOk<'a>, WccData>;
/// REMOVE3res, RMDIR3res.
pub type RemoveReply = ProcedureResults<RemoveOk, WccData>;
/// RENAME3res.
pub type RenameReply = ProcedureResults<RenameOk, RenameOk>;
/// LINK3res.
pub type LinkReply = ProcedureResults<LinkOk, LinkOk>;
/// FSSTAT3res.
pub type FsstatReply = ProcedureResults<FsstatOk, PostOpAttributes>;
/// FSINFO3res.
pub type FsinfoReply = ProcedureResults<FsinfoOk, PostOpAttributes>;
/// PATHCONF3res.
pub type PathconfReply = ProcedureResults<PathconfOk, PostOpAttributes>;
/// COMMIT3res.
pub type CommitReply = ProcedureResults<CommitOk, WccData>;
