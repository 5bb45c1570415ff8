//! NFSv3 as a Linux client and server speak it: captured RPC messages decode, and encode to the same octets.

use stag_wire::nfs3::*;
use stag_wire::xdr::{Decode, Encode, Item, Reader, Reduced, Writer, XdrError};

/// One half of a captured exchange.
#[derive(Default)]
struct Message {
    octets: Vec<u8>,
    /// Where an item was taken out of the stream, and its length.
    reduced: Option<(u32, u32)>,
}

/// A file of `tests/captures/nfs3`: `procedure N`, then `call` and `reply`, each with its octets in
/// hexadecimal and, if an item went by chunk, `reduced POSITION LENGTH`.
struct Exchange {
    name: &'static str,
    procedure: u32,
    call: Message,
    reply: Message,
}

fn exchange(name: &'static str, text: &str) -> Exchange {
    let mut exchange = Exchange { name, procedure: 0, call: Message::default(), reply: Message::default() };
    let mut current = None;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let reduced = || Some((words.get(2)?.parse().unwrap(), words.get(3)?.parse().unwrap()));
        match words[0] {
            "procedure" => exchange.procedure = words[1].parse().unwrap(),
            "call" => {
                exchange.call.reduced = reduced();
                current = Some(&mut exchange.call.octets);
            }
            "reply" => {
                exchange.reply.reduced = reduced();
                current = Some(&mut exchange.reply.octets);
            }
            digits => {
                let octets = (0..digits.len()).step_by(2);
                let octets = octets.map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap());
                current.as_mut().unwrap().extend(octets);
            }
        }
    }
    exchange
}

macro_rules! captures {
    ($($name:literal)*) => { [$(exchange($name, include_str!(concat!("captures/nfs3/", $name, ".hex")))),*] };
}

fn captures() -> Vec<Exchange> {
    captures!(
        "null" "getattr" "setattr" "lookup" "lookup-noent" "access" "readlink" "read" "write" "write-chunk"
        "create" "mkdir" "mkdir-exist" "symlink" "symlink-chunk" "mknod" "remove" "rmdir" "rmdir-notempty"
        "rename" "link" "readdirplus" "fsstat" "fsinfo" "pathconf"
    )
    .into()
}

/// Length of the RPC header in front of the arguments (`call`) or results.
fn header_len(octets: &[u8], call: bool) -> usize {
    let mut reader = Reader::new(octets);
    let fixed = if call { 6 } else { 3 };
    reader.opaque_fixed(fixed * 4).unwrap();
    for _ in 0..if call { 2 } else { 1 } {
        reader.u32().unwrap();
        reader.opaque(400).unwrap();
    }
    if !call {
        assert_eq!(reader.u32(), Ok(0), "SUCCESS");
    }
    reader.position()
}

/// Decodes what follows the RPC header, encodes it, and compares; returns what `look` says of it.
fn same_again<'a, T: Decode<'a> + Encode, R>(
    octets: &'a [u8],
    call: bool,
    reduced: &'a [Reduced],
    look: impl FnOnce(&T) -> R,
) -> R {
    let at = header_len(octets, call);
    let body = &octets[at..];
    let mut reader = Reader::with_reduced_at(body, at as u32, reduced);
    let value: T = reader.value().unwrap();
    reader.finish().unwrap();
    let mut buf = vec![0xaa; body.len()];
    let mut writer = Writer::new(&mut buf);
    writer.value(&value).unwrap();
    assert_eq!(writer.written(), body);
    // One octet less of room is an error, not a panic and not a short message.
    if let Some(room) = body.len().checked_sub(1) {
        assert!(Writer::new(&mut buf[..room]).value(&value).is_err());
    }
    // Every shorter message is an error as well.
    for len in 0..body.len() {
        assert!(T::decode(&mut Reader::with_reduced_at(&body[..len], at as u32, reduced)).is_err());
    }
    look(&value)
}

#[test]
fn linux_calls_encode_to_the_same_octets() {
    for Exchange { name, procedure, call, .. } in captures() {
        let reduced: Vec<_> =
            call.reduced.iter().map(|&(position, len)| Reduced::read_chunk(0, position, len)).collect();
        macro_rules! same {
            ($type:ty) => {
                same_again::<$type, _>(&call.octets, true, &reduced, |value| format!("{value:?}"))
            };
        }
        let shown = match Procedure::from_number(procedure).unwrap() {
            Procedure::Null => same!(()),
            Procedure::Getattr => same!(GetattrArguments),
            Procedure::Setattr => same!(SetattrArguments),
            Procedure::Lookup => same!(LookupArguments),
            Procedure::Access => same!(AccessArguments),
            Procedure::Readlink => same!(ReadlinkArguments),
            Procedure::Read => same!(ReadArguments),
            Procedure::Write => same!(WriteArguments),
            Procedure::Create => same!(CreateArguments),
            Procedure::Mkdir => same!(MkdirArguments),
            Procedure::Symlink => same!(SymlinkArguments),
            Procedure::Mknod => same!(MknodArguments),
            Procedure::Remove => same!(RemoveArguments),
            Procedure::Rmdir => same!(RmdirArguments),
            Procedure::Rename => same!(RenameArguments),
            Procedure::Link => same!(LinkArguments),
            Procedure::Readdir => same!(ReaddirArguments),
            Procedure::Readdirplus => same!(ReaddirplusArguments),
            Procedure::Fsstat => same!(FsstatArguments),
            Procedure::Fsinfo => same!(FsinfoArguments),
            Procedure::Pathconf => same!(PathconfArguments),
            Procedure::Commit => same!(CommitArguments),
        };
        // 8267-2: the item of a Read chunk is the data, found by its Position.
        assert_eq!(shown.contains("Reduced"), call.reduced.is_some(), "{name}: {shown}");
    }
}

#[test]
fn linux_replies_encode_to_the_same_octets() {
    for Exchange { name, procedure, reply, .. } in captures() {
        let reduced: Vec<_> = reply.reduced.iter().map(|&(_, len)| Reduced::write_chunk(0, len)).collect();
        macro_rules! same {
            ($type:ty) => {
                same_again::<$type, _>(&reply.octets, false, &reduced, |value| format!("{value:?}"))
            };
        }
        let shown = match Procedure::from_number(procedure).unwrap() {
            Procedure::Null => same!(()),
            Procedure::Getattr => same!(GetattrReply),
            Procedure::Setattr => same!(SetattrReply),
            Procedure::Lookup => same!(LookupReply),
            Procedure::Access => same!(AccessReply),
            Procedure::Readlink => same!(ReadlinkReply),
            Procedure::Read => same!(ReadReply),
            Procedure::Write => same!(WriteReply),
            Procedure::Create | Procedure::Mkdir | Procedure::Symlink | Procedure::Mknod => {
                same!(CreateReply)
            }
            Procedure::Remove | Procedure::Rmdir => same!(RemoveReply),
            Procedure::Rename => same!(RenameReply),
            Procedure::Link => same!(LinkReply),
            Procedure::Readdir => same!(ReaddirReply),
            Procedure::Readdirplus => same!(ReaddirplusReply),
            Procedure::Fsstat => same!(FsstatReply),
            Procedure::Fsinfo => same!(FsinfoReply),
            Procedure::Pathconf => same!(PathconfReply),
            Procedure::Commit => same!(CommitReply),
        };
        assert_eq!(shown.contains("Reduced"), reply.reduced.is_some(), "{name}: {shown}");
        // Failures are named so in the file's name.
        let status = name.split_once('-').map(|(_, status)| status).filter(|&status| status != "chunk");
        assert_eq!(shown.starts_with("Err"), status.is_some(), "{name}: {shown}");
        if let Some(status) = status {
            assert!(shown.to_lowercase().contains(&format!("status: {status}")), "{name}: {shown}");
        }
    }
}

fn capture(name: &str) -> Exchange {
    captures().into_iter().find(|exchange| exchange.name == name).unwrap()
}

#[test]
fn linux_readdirplus_lists_its_files() {
    let reply = capture("readdirplus").reply;
    same_again::<ReaddirplusReply, _>(&reply.octets, false, &[], |list| {
        let list = list.as_ref().unwrap();
        assert!(list.eof);
        let names: Vec<_> = list.entries.into_iter().map(|entry| entry.name.0).collect();
        assert_eq!(names, [&b"."[..], b"..", b"f131077", b"f20000", b"f4096", b"f100", b"f1"]);
        let last = list.entries.into_iter().last().unwrap();
        assert_eq!((last.cookie, last.attributes.unwrap().size), (7, 1));
        assert_eq!(last.handle.unwrap().0.len(), 20);
    });
}

/// 8166-3.4.6.2-a: the Write chunk says another length than the item.
#[test]
fn a_read_reply_with_a_wrong_chunk_length_is_refused() {
    let reply = capture("read").reply;
    let at = header_len(&reply.octets, false);
    let reduced = [Reduced::write_chunk(0, 2)];
    let mut reader = Reader::with_reduced_at(&reply.octets[at..], at as u32, &reduced);
    assert_eq!(reader.value::<ReadReply>(), Err(XdrError::ChunkLength { chunk: 2, item: 3 }));
}

/// The WRITE Call worked out octet by octet from RFC 8166 and RFC 8267: 6001 octets of data in a Read chunk at
/// Position 96, whose three octets of roundup are neither in the stream nor in the chunk.
#[test]
fn a_write_with_a_read_chunk_at_position_96() {
    const CALL: [u8; 96] = {
        let mut call = [0; 96];
        let words: [(usize, u32); 10] = [
            (0, 0xa000_0001), // xid
            (8, 2),           // rpcvers
            (12, 100_003),    // prog
            (16, 3),          // vers
            (20, 7),          // WRITE
            (40, 32),         // file handle length
            (84, 6001),       // count
            (88, 0),          // UNSTABLE
            (92, 6001),       // length of the data: stays in the stream
            (76, 0),          // offset 0
        ];
        let mut index = 0;
        while index < words.len() {
            let (at, word) = words[index];
            let octets = word.to_be_bytes();
            call[at] = octets[0];
            call[at + 1] = octets[1];
            call[at + 2] = octets[2];
            call[at + 3] = octets[3];
            index += 1;
        }
        let mut octet = 0;
        while octet < 32 {
            call[44 + octet] = octet as u8;
            octet += 1;
        }
        call
    };
    let handle: Vec<u8> = (0..32).collect();
    let written = WriteArguments {
        file: Handle(&handle),
        offset: 0,
        count: 6001,
        stable: Stable::Unstable,
        data: Data(Item::Reduced { index: 5, len: 6001 }),
    };
    // With and without the roundup in the chunk's length (8166-3.4.5.2-a).
    for chunk_len in [6001, 6004] {
        let reduced = [Reduced::read_chunk(5, 96, chunk_len)];
        let at = header_len(&CALL, true);
        let mut reader = Reader::with_reduced_at(&CALL[at..], at as u32, &reduced);
        assert_eq!(reader.value(), Ok(written));
        assert_eq!(reader.finish(), Ok(()));
    }
    let mut buf = [0; 96];
    let mut writer = Writer::new(&mut buf);
    writer.opaque_fixed(&CALL[..40]).unwrap();
    writer.value(&written).unwrap();
    assert_eq!(writer.written(), CALL);
    assert_eq!(writer.unreduced_position(), 96 + 6004);
}

/// 8267-6.1-a: a chunk in the place of anything but the data is refused.
#[test]
fn a_chunk_for_a_name_is_refused() {
    let call = capture("lookup").call;
    let at = header_len(&call.octets, true);
    let position = {
        let mut reader = Reader::new(&call.octets[at..]);
        reader.opaque(HANDLE_LEN_MAX).unwrap();
        at as u32 + reader.position() as u32 + 4
    };
    let reduced = [Reduced::read_chunk(0, position, 4)];
    let mut reader = Reader::with_reduced_at(&call.octets[at..], at as u32, &reduced);
    assert_eq!(reader.value::<LookupArguments>(), Err(XdrError::IneligibleChunk));
}

/// Names and paths beyond the limits parse, so that the server can say which limit; beyond the cap they do not.
#[test]
fn long_names_parse_and_are_told() {
    let octets = [b'n'; 5000];
    let mut buf = [0; 6000];
    let mut parse = |len: usize| {
        let mut writer = Writer::new(&mut buf);
        writer.value(&Name(&octets[..len])).unwrap();
        let name = Reader::new(writer.written()).value::<Name>().map(|name| name.is_too_long());
        let path = Reader::new(writer.written()).value::<Path>().map(|path| path.is_too_long());
        (name, path)
    };
    assert_eq!(parse(255), (Ok(false), Ok(false)));
    assert_eq!(parse(256), (Ok(true), Ok(false)));
    assert_eq!(parse(4095), (Ok(true), Ok(false)));
    assert_eq!(parse(4096), (Ok(true), Ok(true)));
    let too_long = XdrError::TooLong { limit: STRING_LEN_CAP, found: 4097 };
    assert_eq!(parse(4097), (Err(too_long), Err(too_long)));
    // A handle has no such leniency: 64 octets are RFC 1813's limit.
    let mut writer = Writer::new(&mut buf);
    writer.value(&Handle(&octets[..65])).unwrap();
    assert!(Reader::new(writer.written()).value::<Handle>().is_err());
}
