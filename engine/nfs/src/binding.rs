//! The Upper-Layer Binding of NFS versions 2 and 3, MOUNT and NFSACL (RFC 8267): which items may go by
//! chunk, and how long a Reply can be.
//!
//! A client needs the bound before it sends a Call (8267-3-a): it decides whether the Reply can stay inline, with
//! or without its eligible result, and how large the chunks must be that it provides.

use stag_wire::nfs3::{self, ATTRIBUTES_LEN, HANDLE_LEN_MAX, POST_OP_ATTRIBUTES_LEN_MAX, WCC_DATA_LEN_MAX};
use stag_wire::{mount3, xdr};

/// Program number of NFS.
pub const NFS: u32 = nfs3::PROGRAM;
/// Program number of MOUNT.
pub const MOUNT: u32 = mount3::PROGRAM;
/// Program number of NFSACL.
pub const NFSACL: u32 = 100_227;

/// What the binding says of one procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Its name.
    pub name: &'static str,
    /// DDP-eligible items of its arguments: 0 or 1 (8267-4-b).
    pub eligible_arguments: u8,
    /// DDP-eligible items of its results: 0 or 1.
    pub eligible_results: u8,
    /// Whether it may simply be called again when it is not known whether it ran.
    pub idempotent: bool,
}

const fn plain(name: &'static str) -> Binding {
    Binding { name, eligible_arguments: 0, eligible_results: 0, idempotent: true }
}

const fn once(name: &'static str) -> Binding {
    Binding { idempotent: false, ..plain(name) }
}

const fn with_argument(procedure: Binding) -> Binding {
    Binding { eligible_arguments: 1, ..procedure }
}

const fn with_result(procedure: Binding) -> Binding {
    Binding { eligible_results: 1, ..procedure }
}

/// NFS version 2 (RFC 1094).
pub static NFS2: [Binding; 18] = [
    plain("NULL"),
    plain("GETATTR"),
    once("SETATTR"),
    plain("ROOT"),
    plain("LOOKUP"),
    with_result(plain("READLINK")),
    with_result(plain("READ")),
    plain("WRITECACHE"),
    with_argument(plain("WRITE")),
    once("CREATE"),
    once("REMOVE"),
    once("RENAME"),
    once("LINK"),
    with_argument(once("SYMLINK")),
    once("MKDIR"),
    once("RMDIR"),
    plain("READDIR"),
    plain("STATFS"),
];

/// NFS version 3 (RFC 1813).
pub static NFS3: [Binding; nfs3::Procedure::COUNT] = [
    plain("NULL"),
    plain("GETATTR"),
    once("SETATTR"),
    plain("LOOKUP"),
    plain("ACCESS"),
    with_result(plain("READLINK")),
    with_result(plain("READ")),
    with_argument(plain("WRITE")),
    once("CREATE"),
    once("MKDIR"),
    with_argument(once("SYMLINK")),
    once("MKNOD"),
    once("REMOVE"),
    once("RMDIR"),
    once("RENAME"),
    once("LINK"),
    plain("READDIR"),
    plain("READDIRPLUS"),
    plain("FSSTAT"),
    plain("FSINFO"),
    plain("PATHCONF"),
    plain("COMMIT"),
];

/// MOUNT version 3; versions 1 and 2 differ in nothing that the binding says.
pub static MOUNT3: [Binding; mount3::Procedure::COUNT] =
    [plain("NULL"), plain("MNT"), plain("DUMP"), plain("UMNT"), plain("UMNTALL"), plain("EXPORT")];

/// NFSACL of every version (8267-P-1). A GETACL Reply has no bound of its own (8267-5.2-a).
pub static NFSACL3: [Binding; 3] = [plain("NULL"), plain("GETACL"), plain("SETACL")];

/// What the binding says of a procedure; `None` if it does not know it.
#[must_use]
pub fn procedure(program: u32, version: u32, procedure: u32) -> Option<&'static Binding> {
    let table: &'static [Binding] = match (program, version) {
        (NFS, 2) => &NFS2,
        (NFS, 3) => &NFS3,
        (MOUNT, 1..=3) => &MOUNT3,
        (NFSACL, 1..=3) => &NFSACL3,
        _ => return None,
    };
    table.get(usize::try_from(procedure).ok()?)
}

/// How long the results of a Call can be, in bytes. The RPC header of the Reply is not among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyLen {
    /// Without the eligible item, but with its length word; the same as `whole` if there is none.
    pub reduced: u32,
    /// The eligible item alone, without padding: what a Write chunk must hold.
    pub item: u32,
    /// With the item and its padding.
    pub whole: u32,
}

const fn fixed(len: usize) -> ReplyLen {
    ReplyLen { reduced: len as u32, item: 0, whole: len as u32 }
}

const fn with_item(reduced: usize, item: u32) -> ReplyLen {
    let whole = (reduced as u64).saturating_add(xdr::padded(item));
    let whole = if whole > u32::MAX as u64 { u32::MAX } else { whole as u32 };
    ReplyLen { reduced: reduced as u32, item, whole }
}

/// Results that `limit` bounds, whatever it is: a failure, or a list without entries, may be longer.
const fn listed(limit: u32) -> ReplyLen {
    let resok = POST_OP_ATTRIBUTES_LEN_MAX as u32 + 8 + 8;
    let len = if limit > resok { limit } else { resok };
    let whole = len.saturating_add(STATUS as u32);
    ReplyLen { reduced: whole, item: 0, whole }
}

const STATUS: usize = 4;
const HANDLE: usize = 4 + HANDLE_LEN_MAX as usize;
const ATTRIBUTES: usize = POST_OP_ATTRIBUTES_LEN_MAX;
const WCC: usize = WCC_DATA_LEN_MAX;

/// Bounds the results of an NFS version 3 procedure (8267-3-a).
///
/// `limit` is the limit of the Call itself or the client's knowledge: `count` of READ and READDIR, `maxcount` of
/// READDIRPLUS, the longest path for READLINK. Other procedures ignore it.
#[must_use]
pub const fn reply_len_max(procedure: nfs3::Procedure, limit: u32) -> ReplyLen {
    use nfs3::Procedure;
    match procedure {
        Procedure::Null => fixed(0),
        Procedure::Getattr => fixed(STATUS + ATTRIBUTES_LEN),
        Procedure::Setattr | Procedure::Remove | Procedure::Rmdir => fixed(STATUS + WCC),
        Procedure::Lookup => fixed(STATUS + HANDLE + ATTRIBUTES + ATTRIBUTES),
        Procedure::Access => fixed(STATUS + ATTRIBUTES + 4),
        Procedure::Readlink => with_item(STATUS + ATTRIBUTES + 4, limit),
        Procedure::Read => with_item(STATUS + ATTRIBUTES + 4 + 4 + 4, limit),
        Procedure::Write => fixed(STATUS + WCC + 4 + 4 + 8),
        Procedure::Create | Procedure::Mkdir | Procedure::Symlink | Procedure::Mknod => {
            fixed(STATUS + 4 + HANDLE + ATTRIBUTES + WCC)
        }
        Procedure::Rename => fixed(STATUS + WCC + WCC),
        Procedure::Link => fixed(STATUS + ATTRIBUTES + WCC),
        Procedure::Readdir | Procedure::Readdirplus => listed(limit),
        Procedure::Fsstat => fixed(STATUS + ATTRIBUTES + 6 * 8 + 4),
        Procedure::Fsinfo => fixed(STATUS + ATTRIBUTES + 7 * 4 + 8 + 8 + 4),
        Procedure::Pathconf => fixed(STATUS + ATTRIBUTES + 6 * 4),
        Procedure::Commit => fixed(STATUS + WCC + 8),
    }
}

/// Which chunks a client provides for the results of a Call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultChunks {
    /// None: the Reply fits inline, whatever it turns out to be.
    None,
    /// A Write chunk of this many bytes for the eligible item; the rest fits inline.
    Write(u32),
    /// A Reply chunk of this many bytes.
    Reply(u32),
}

/// Decides which chunks a client provides (8267-D-1), when `inline_len` bytes of the Reply's Send are left for
/// results, next to the headers that a Reply with such chunks has, and an eligible item from `item_len_min` bytes on
/// is worth a Write chunk even if it fitted inline.
#[must_use]
pub const fn result_chunks(len: ReplyLen, inline_len: u32, item_len_min: u32) -> ResultChunks {
    let item_is_long = len.item > 0 && (len.item >= item_len_min || len.whole > inline_len);
    if item_is_long && len.reduced <= inline_len {
        ResultChunks::Write(len.item)
    } else if len.whole > inline_len {
        ResultChunks::Reply(len.whole)
    } else {
        ResultChunks::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nfs3::{Procedure as Proc, *};
    use stag_wire::xdr::{Encode, Item, Writer};

    /// 8267-2: the complete list of eligible items, and 8267-6.1-a: nothing else.
    #[test]
    fn the_eligible_items_are_those_of_rfc_8267() {
        let eligible = |table: &[Binding]| -> Vec<(usize, u8, u8)> {
            let all = table.iter().enumerate().map(|(n, p)| (n, p.eligible_arguments, p.eligible_results));
            all.filter(|(_, arguments, results)| arguments + results > 0).collect()
        };
        assert_eq!(eligible(&NFS2), [(5, 0, 1), (6, 0, 1), (8, 1, 0), (13, 1, 0)]);
        assert_eq!(eligible(&NFS3), [(5, 0, 1), (6, 0, 1), (7, 1, 0), (10, 1, 0)]);
        assert_eq!(eligible(&MOUNT3), []);
        // 8267-5.2-a, 8267-P-1
        assert_eq!(eligible(&NFSACL3), []);
    }

    #[test]
    fn the_numbers_are_those_of_the_codec() {
        for &procedure in Proc::ALL {
            let name = format!("{procedure:?}").to_uppercase();
            assert_eq!(NFS3[procedure.number() as usize].name, name);
        }
        for &procedure in mount3::Procedure::ALL {
            let name = format!("{procedure:?}").to_uppercase();
            assert_eq!(MOUNT3[procedure.number() as usize].name, name);
        }
        assert_eq!(procedure(NFS, 3, 7).map(|p| p.name), Some("WRITE"));
        assert_eq!(procedure(NFS, 2, 8).map(|p| p.name), Some("WRITE"));
        assert_eq!((procedure(NFS, 3, 22), procedure(NFS, 4, 1), procedure(9, 1, 0)), (None, None, None));
        assert_eq!(procedure(NFS, 3, u32::MAX), None);
    }

    const TIME: Time = Time { seconds: 1, nanoseconds: 2 };
    const SOME: PostOpAttributes = Some(Attributes {
        file_type: FileType::Regular,
        mode: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        size: 0,
        used: 0,
        rdev: DeviceNumber { major: 0, minor: 0 },
        fsid: 0,
        fileid: 0,
        atime: TIME,
        mtime: TIME,
        ctime: TIME,
    });

    fn len(value: &impl Encode) -> u32 {
        let mut buf = [0; 4096];
        let mut writer = Writer::new(&mut buf);
        writer.value(value).unwrap();
        writer.position() as u32
    }

    /// 8267-3-a: the bound of every procedure is the length of its longest results, and of no failure more.
    #[test]
    fn the_bounds_are_the_lengths_of_the_longest_results() {
        const STATUS: Status = Status::Io;
        let wcc = WccData { before: SOME.map(|attributes| attributes.wcc()), after: SOME };
        let handle = Handle(&[0; 64]);
        let data = Item::Inline(&[0; 1001]);
        let wcc_failure = Failure { status: STATUS, attributes: wcc };
        let failure = Failure { status: STATUS, attributes: SOME };
        macro_rules! longest {
            ($procedure:ident, $limit:expr, $reply:ty, $ok:expr, $failure:expr) => {
                let bound = reply_len_max(Proc::$procedure, $limit);
                let ok: $reply = Ok($ok);
                assert_eq!(len(&ok), bound.whole, stringify!($procedure));
                let failed: $reply = Err($failure);
                assert!(len(&failed) <= bound.reduced, stringify!($procedure));
            };
        }
        let nothing = Failure { status: STATUS, attributes: () };
        longest!(Getattr, 0, GetattrReply, GetattrOk { attributes: SOME.unwrap() }, nothing);
        longest!(Setattr, 0, SetattrReply, SetattrOk { object: wcc }, wcc_failure);
        let found = LookupOk { object: handle, attributes: SOME, directory: SOME };
        longest!(Lookup, 0, LookupReply, found, failure);
        longest!(Access, 0, AccessReply, AccessOk { attributes: SOME, access: 0 }, failure);
        let link = ReadlinkOk { attributes: SOME, path: Path(data) };
        longest!(Readlink, 1001, ReadlinkReply, link, failure);
        let read = ReadOk { attributes: SOME, count: 0, eof: true, data: Data(data) };
        longest!(Read, 1001, ReadReply, read, failure);
        let written = WriteOk { file: wcc, count: 0, committed: Stable::FileSync, verifier: [0; 8] };
        longest!(Write, 0, WriteReply, written, wcc_failure);
        let created = CreateOk { object: Some(handle), attributes: SOME, directory: wcc };
        longest!(Create, 0, CreateReply, created, wcc_failure);
        longest!(Mkdir, 0, CreateReply, created, wcc_failure);
        longest!(Symlink, 0, CreateReply, created, wcc_failure);
        longest!(Mknod, 0, CreateReply, created, wcc_failure);
        longest!(Remove, 0, RemoveReply, RemoveOk { directory: wcc }, wcc_failure);
        longest!(Rmdir, 0, RemoveReply, RemoveOk { directory: wcc }, wcc_failure);
        let renamed = RenameOk { from: wcc, to: wcc };
        longest!(Rename, 0, RenameReply, renamed, Failure { status: STATUS, attributes: renamed });
        let linked = LinkOk { attributes: SOME, directory: wcc };
        longest!(Link, 0, LinkReply, linked, Failure { status: STATUS, attributes: linked });
        let usage = FsstatOk {
            attributes: SOME,
            bytes_total: 0,
            bytes_free: 0,
            bytes_available: 0,
            files_total: 0,
            files_free: 0,
            files_available: 0,
            invariant_seconds: 0,
        };
        longest!(Fsstat, 0, FsstatReply, usage, failure);
        let info = FsinfoOk {
            attributes: SOME,
            read_max: 0,
            read_preferred: 0,
            read_multiple: 0,
            write_max: 0,
            write_preferred: 0,
            write_multiple: 0,
            readdir_preferred: 0,
            file_size_max: 0,
            time_delta: TIME,
            properties: 0,
        };
        longest!(Fsinfo, 0, FsinfoReply, info, failure);
        let limits = PathconfOk {
            attributes: SOME,
            link_max: 0,
            name_max: 0,
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: true,
            case_preserving: true,
        };
        longest!(Pathconf, 0, PathconfReply, limits, failure);
        longest!(Commit, 0, CommitReply, CommitOk { file: wcc, verifier: [0; 8] }, wcc_failure);
        assert_eq!(reply_len_max(Proc::Null, 0), fixed(0));
    }

    /// READDIR is bounded by its count, but an empty list may be longer than a tiny count.
    #[test]
    fn lists_are_bounded_by_their_counts() {
        for procedure in [Proc::Readdir, Proc::Readdirplus] {
            assert_eq!(reply_len_max(procedure, 8192).whole, 8196);
            assert_eq!(reply_len_max(procedure, u32::MAX).whole, u32::MAX);
            let mut buf = [0; 256];
            let mut writer = Writer::new(&mut buf);
            Listing::begin(&mut writer, &SOME, [0; 8], 0, 0).unwrap().finish(true).unwrap();
            assert_eq!(writer.position() as u32, reply_len_max(procedure, 0).whole);
        }
    }

    /// 8267-6 (worked positions): READ's results inline, reduced, are 104 octets after the RPC header of 24.
    #[test]
    fn a_reduced_read_reply_is_128_octets() {
        let bound = reply_len_max(Proc::Read, 1 << 20);
        assert_eq!((24 + bound.reduced, bound.item), (128, 1 << 20));
    }

    /// 8267-D-1, 8267-4-b
    #[test]
    fn chunks_are_provided_when_the_reply_might_not_fit() {
        let read = |count| reply_len_max(Proc::Read, count);
        assert_eq!(result_chunks(read(100), 900, 512), ResultChunks::None);
        assert_eq!(result_chunks(read(512), 900, 512), ResultChunks::Write(512));
        assert_eq!(result_chunks(read(4096), 900, u32::MAX), ResultChunks::Write(4096));
        // Not even the reduced Reply fits inline: it all goes by Reply chunk.
        assert_eq!(result_chunks(read(4096), 100, 512), ResultChunks::Reply(104 + 4096));
        assert_eq!(result_chunks(reply_len_max(Proc::Readdir, 8192), 900, 512), ResultChunks::Reply(8196));
        assert_eq!(result_chunks(reply_len_max(Proc::Getattr, 0), 900, 0), ResultChunks::None);
        assert_eq!(result_chunks(reply_len_max(Proc::Read, u32::MAX), 900, 0), ResultChunks::Write(u32::MAX));
    }
}
