//! Targets for the programs' arguments and results: NFS version 3 and MOUNT version 3.
//!
//! Every procedure's parser reads the same octets. An input begins with five octets that say which chunk there
//! is beside the stream: a kind (see [`split_chunk`]) and a length.

use std::fmt::Debug;

use stag_wire::mount3;
use stag_wire::nfs3::*;
use stag_wire::xdr::{Encode, Item, Reader, Reduced, Writer};

/// Octets of the RPC header that a stream's arguments or results stand behind.
pub(crate) const HEADER_LEN: u32 = 44;

/// Reads a value of a type, checks it, and returns it if there is one: `read!(Type, stream, chunks)`.
///
/// - What is read is written again in as many octets, and reads as the same value.
/// - In one octet less there is no such value, and no room for it.
///
/// A macro, because the type has another lifetime each time.
macro_rules! read {
    ($type:ty, $stream:expr, $chunks:expr) => {{
        let (stream, chunks): (&[u8], &[Reduced]) = ($stream, $chunks);
        let mut reader = Reader::with_reduced_at(stream, HEADER_LEN, chunks);
        let value: Option<$type> = reader.value().ok();
        if let Some(value) = &value {
            let len = reader.position();
            let (octets, position) = write_again(value, len);
            let mut again = Reader::with_reduced_at(&octets, HEADER_LEN, chunks);
            assert_eq!(again.value::<$type>().as_ref(), Ok(value));
            assert_eq!((again.position(), again.unreduced_position()), (len, reader.unreduced_position()));
            if let Some(cut) = len.checked_sub(1) {
                let mut short = Reader::with_reduced_at(&stream[..cut], HEADER_LEN, chunks);
                assert!(short.value::<$type>().is_err(), "{value:?} without its last octet");
            }
            // A Read chunk is found by its Position, and the writer knows where it left one out.
            if let (Some(position), Some(chunk)) = (position, chunks.first())
                && chunk.position % 4 == 0
            {
                assert_eq!(position + HEADER_LEN, chunk.position);
            }
        }
        value
    }};
}
pub(crate) use read;

/// As `read!`, for a value that has nothing more to check.
macro_rules! check {
    ($type:ty, $stream:expr, $chunks:expr) => {{
        let _ = read!($type, $stream, $chunks);
    }};
}

pub(crate) use check;

/// Writes a value that was read from `len` octets. Returns also where an item was left to a chunk.
pub(crate) fn write_again<T: Encode + Debug>(value: &T, len: usize) -> (Vec<u8>, Option<u32>) {
    let mut buf = vec![0xff; len];
    let mut writer = Writer::new(&mut buf);
    writer.value(value).unwrap_or_else(|_| panic!("{value:?} needs more octets than it was read from"));
    assert_eq!(writer.written().len(), len, "{value:?}");
    let position = writer.reduced_positions().first().copied();
    if let Some(cut) = len.checked_sub(1) {
        let mut buf = vec![0xff; cut];
        assert!(Writer::new(&mut buf).value(value).is_err(), "{value:?} in an octet less");
    }
    (buf, position)
}

/// Splits an input into the chunk beside the stream, and the stream.
pub(crate) fn split_chunk(input: &[u8]) -> Option<(Option<Reduced>, &[u8])> {
    let ([kind, length @ ..], stream) = input.split_first_chunk::<5>()?;
    let len = u32::from_be_bytes(*length);
    let chunk = match kind {
        0xff => None,
        0xfe => Some(Reduced::write_chunk(0, len)),
        0xfd => Some(Reduced::empty_write_chunk(0)),
        word => Some(Reduced::read_chunk(0, HEADER_LEN + u32::from(*word) * 4, len)),
    };
    Some((chunk, stream))
}

/// An eligible item lies in the stream, or in the one chunk, which has its length.
fn check_item(item: &Item<'_>, stream: &[u8], chunks: &[Reduced]) {
    match *item {
        Item::Inline(octets) => assert!(octets.len() <= stream.len()),
        Item::Reduced { index, len } => {
            let chunk = chunks.first().expect("there is a chunk");
            assert_eq!(index, chunk.index);
            assert!(chunk.len == len || chunk.len == len.next_multiple_of(4));
        }
    }
}

fn check_name(name: &Name<'_>) {
    assert!(name.0.len() <= STRING_LEN_CAP as usize);
    assert_eq!(name.is_too_long(), name.0.len() > 255);
}

/// The arguments of every procedure of NFS.
pub fn nfs3_call(input: &[u8]) {
    let Some((chunk, stream)) = split_chunk(input) else { return };
    let chunks = chunk.as_slice();
    for procedure in Procedure::ALL {
        match procedure {
            Procedure::Null => check!((), stream, chunks),
            Procedure::Getattr => check!(GetattrArguments<'_>, stream, chunks),
            Procedure::Setattr => check!(SetattrArguments<'_>, stream, chunks),
            Procedure::Lookup => {
                if let Some(arguments) = read!(LookupArguments<'_>, stream, chunks) {
                    check_name(&arguments.what.name);
                    assert!(arguments.what.directory.0.len() <= HANDLE_LEN_MAX as usize);
                }
            }
            Procedure::Access => check!(AccessArguments<'_>, stream, chunks),
            Procedure::Readlink => check!(ReadlinkArguments<'_>, stream, chunks),
            Procedure::Read => check!(ReadArguments<'_>, stream, chunks),
            Procedure::Write => {
                if let Some(arguments) = read!(WriteArguments<'_>, stream, chunks) {
                    check_item(&arguments.data.0, stream, chunks);
                }
            }
            Procedure::Create => check!(CreateArguments<'_>, stream, chunks),
            Procedure::Mkdir => check!(MkdirArguments<'_>, stream, chunks),
            Procedure::Symlink => {
                if let Some(arguments) = read!(SymlinkArguments<'_>, stream, chunks) {
                    check_item(&arguments.path.0, stream, chunks);
                    assert_eq!(arguments.path.is_too_long(), arguments.path.0.len() > 4095);
                }
            }
            Procedure::Mknod => {
                if let Some(arguments) = read!(MknodArguments<'_>, stream, chunks) {
                    let _ = arguments.what.file_type();
                }
            }
            Procedure::Remove => check!(RemoveArguments<'_>, stream, chunks),
            Procedure::Rmdir => check!(RmdirArguments<'_>, stream, chunks),
            Procedure::Rename => {
                if let Some(arguments) = read!(RenameArguments<'_>, stream, chunks) {
                    check_name(&arguments.from.name);
                    check_name(&arguments.to.name);
                }
            }
            Procedure::Link => check!(LinkArguments<'_>, stream, chunks),
            Procedure::Readdir => check!(ReaddirArguments<'_>, stream, chunks),
            Procedure::Readdirplus => check!(ReaddirplusArguments<'_>, stream, chunks),
            Procedure::Fsstat => check!(FsstatArguments<'_>, stream, chunks),
            Procedure::Fsinfo => check!(FsinfoArguments<'_>, stream, chunks),
            Procedure::Pathconf => check!(PathconfArguments<'_>, stream, chunks),
            Procedure::Commit => check!(CommitArguments<'_>, stream, chunks),
        }
    }
}

/// The results of every procedure of NFS.
pub fn nfs3_reply(input: &[u8]) {
    let Some((chunk, stream)) = split_chunk(input) else { return };
    let chunks = chunk.as_slice();
    for procedure in Procedure::ALL {
        match procedure {
            Procedure::Null => check!((), stream, chunks),
            Procedure::Getattr => check!(GetattrReply, stream, chunks),
            Procedure::Setattr => check!(SetattrReply, stream, chunks),
            Procedure::Lookup => check!(LookupReply<'_>, stream, chunks),
            Procedure::Access => check!(AccessReply, stream, chunks),
            Procedure::Readlink => {
                if let Some(Ok(results)) = read!(ReadlinkReply<'_>, stream, chunks) {
                    check_item(&results.path.0, stream, chunks);
                }
            }
            Procedure::Read => {
                if let Some(Ok(results)) = read!(ReadReply<'_>, stream, chunks) {
                    check_item(&results.data.0, stream, chunks);
                }
            }
            Procedure::Write => check!(WriteReply, stream, chunks),
            Procedure::Create | Procedure::Mkdir | Procedure::Symlink | Procedure::Mknod => {
                check!(CreateReply<'_>, stream, chunks);
            }
            Procedure::Remove | Procedure::Rmdir => check!(RemoveReply, stream, chunks),
            Procedure::Rename => check!(RenameReply, stream, chunks),
            Procedure::Link => check!(LinkReply, stream, chunks),
            Procedure::Readdir => {
                if let Some(Ok(list)) = read!(ReaddirReply<'_>, stream, chunks) {
                    list.entries.into_iter().for_each(|entry| check_name(&entry.name));
                    let (len, written) = list_again(&list);
                    let mut reader = Reader::new(&written);
                    let again: ReaddirReply<'_> = reader.value().expect("as it was written");
                    assert!(again.expect("a success").entries.into_iter().eq(list.entries));
                    assert_eq!(reader.position(), len);
                }
            }
            Procedure::Readdirplus => {
                if let Some(Ok(list)) = read!(ReaddirplusReply<'_>, stream, chunks) {
                    list.entries.into_iter().for_each(|entry| check_name(&entry.name));
                    let (len, written) = list_again(&list);
                    let mut reader = Reader::new(&written);
                    let again: ReaddirplusReply<'_> = reader.value().expect("as it was written");
                    assert!(again.expect("a success").entries.into_iter().eq(list.entries));
                    assert_eq!(reader.position(), len);
                }
            }
            Procedure::Fsstat => check!(FsstatReply, stream, chunks),
            Procedure::Fsinfo => check!(FsinfoReply, stream, chunks),
            Procedure::Pathconf => check!(PathconfReply, stream, chunks),
            Procedure::Commit => check!(CommitReply, stream, chunks),
        }
    }
}

/// Writes a list as a server does, entry by entry, and as long as it was.
fn list_again<'a, E>(list: &ListOk<'a, E>) -> (usize, Vec<u8>)
where
    E: ListEntry + stag_wire::xdr::Decode<'a>,
{
    let entries = list.entries.into_iter();
    let fixed = 4 + if list.attributes.is_some() { POST_OP_ATTRIBUTES_LEN_MAX } else { 4 } + 8 + 4 + 4;
    let len = fixed + entries.map(|entry| 4 + entry.encoded_len()).sum::<usize>();
    let mut buf = vec![0xff; len];
    let mut writer = Writer::new(&mut buf);
    let mut listing = Listing::begin(&mut writer, &list.attributes, list.verifier, u32::MAX, u32::MAX)
        .expect("room for a list without entries");
    for entry in list.entries {
        assert!(entry.directory_len() <= entry.encoded_len());
        assert!(listing.push(&entry), "room for every entry");
    }
    listing.finish(list.eof).expect("room for the end");
    (len, buf)
}

/// Arguments and results of every procedure of MOUNT.
pub fn mount3(stream: &[u8]) {
    // MNT and UMNT; NULL, DUMP, UMNTALL and EXPORT have no arguments.
    if let Some(arguments) = read!(mount3::PathArguments<'_>, stream, &[]) {
        check_name(&arguments.path);
    }
    if let Some(Ok(results)) = read!(mount3::MntReply<'_>, stream, &[]) {
        assert!(results.handle.0.len() <= HANDLE_LEN_MAX as usize);
        assert!(results.flavors.iter().len() <= mount3::FLAVORS_MAX as usize);
        assert_eq!(results.flavors.iter().count(), results.flavors.iter().len());
    }
    if let Some(mounts) = read!(mount3::Mounts<'_>, stream, &[]) {
        let mut buf = vec![0xff; stream.len()];
        let mut writer = Writer::new(&mut buf);
        mount3::encode_mounts(&mut writer, mounts).expect("as many octets as it was read from");
        let again: mount3::Mounts<'_> = Reader::new(writer.written()).value().expect("as it was written");
        assert!(again.into_iter().eq(mounts));
    }
    if let Some(exports) = read!(mount3::Exports<'_>, stream, &[]) {
        let mut buf = vec![0xff; stream.len()];
        let mut writer = Writer::new(&mut buf);
        for export in exports {
            mount3::encode_export(&mut writer, export.path, export.groups).expect("no more than was read");
        }
        mount3::encode_exports_end(&mut writer).expect("no more than was read");
        let again: mount3::Exports<'_> = Reader::new(writer.written()).value().expect("as it was written");
        let same = |(a, b): (mount3::Export<'_>, mount3::Export<'_>)| {
            a.path == b.path && a.groups.into_iter().eq(b.groups)
        };
        assert!(again.into_iter().zip(exports).all(same));
        assert_eq!(again.into_iter().count(), exports.into_iter().count());
    }
}
