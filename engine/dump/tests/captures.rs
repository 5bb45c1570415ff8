//! Every capture of the Linux kernel: each message decodes, and encodes to the same octets; Calls and Replies pair up; there are
//! as many messages as tshark finds; no rule is broken. See `captures/README.md`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use stag_dump::{ChunkKind, EventKind, Message, Rpc};
use stag_wire::nfs3::{self, *};
use stag_wire::rpc::{AuthSys, CallHeader, ReplyHeader, flavor};
use stag_wire::rpcrdma::{Emitter, Header, MessageKind, MessageProcedure as RdmaProcedure, header_len};
use stag_wire::xdr::{Decode, Encode, Reader, Reduced, Writer};

mod support;
use support::compound::{Operations, same_compound};
use support::{captures, folder, run};

/// What encodes to the octets that it came from.
#[derive(Default)]
struct Counts {
    headers: usize,
    rpc_headers: usize,
    bodies: usize,
    compounds: usize,
    operations: Operations,
}

/// Writes a header again, from its values.
fn encode_header(message: &Message<'_>, header: &Header<'_>) {
    let kind = match header.procedure() {
        RdmaProcedure::Msg => MessageKind::Msg,
        RdmaProcedure::Nomsg => MessageKind::Nomsg,
        RdmaProcedure::Error(_) => panic!("no capture has an RDMA_ERROR"),
    };
    let mut buf = vec![0xff; message.octets.len()];
    let mut emitter = Emitter::new(&mut buf, kind, header.xid(), header.credits()).unwrap();
    header.read_list().try_for_each(|entry| emitter.read_segment(entry)).unwrap();
    for chunk in header.write_list() {
        emitter.write_chunk(&chunk.segments().collect::<Vec<_>>()).unwrap();
    }
    if let Some(chunk) = header.reply_chunk() {
        emitter.reply_chunk(&chunk.segments().collect::<Vec<_>>()).unwrap();
    }
    let (len, _) = emitter.finish().unwrap();
    let writes = header.write_list().map(|chunk| chunk.segment_count());
    let reply = header.reply_chunk().map(|chunk| chunk.segment_count());
    assert_eq!(len, header_len(header.read_list().len(), writes, reply));
    assert_eq!(buf[..len], message.octets[..len]);
    if kind == MessageKind::Nomsg {
        assert_eq!(len, message.octets.len());
    }
}

/// Writes `value` at the end of `so_far`, and returns what was written there.
fn encoded(value: &impl Encode, room: usize) -> Vec<u8> {
    let mut buf = vec![0xff; room + 4];
    let mut writer = Writer::new(&mut buf);
    writer.value(value).unwrap();
    writer.written().to_vec()
}

/// Decodes all of `reader`'s rest as a `T`, and encodes it again.
fn same<'a, T: Decode<'a> + Encode>(mut reader: Reader<'a>) -> bool {
    let octets = reader.rest();
    let value: T = reader.value().unwrap();
    reader.finish().unwrap();
    assert_eq!(encoded(&value, octets.len()), octets);
    true
}

/// Decodes a Payload stream, and encodes it again. `reduced` is what was moved out of it.
fn encode_payload(payload: &[u8], rpc: &Rpc, reduced: &[Reduced], counts: &mut Counts) {
    let mut reader = Reader::with_reduced(payload, reduced);
    let mut buf = vec![0xff; payload.len()];
    let mut writer = Writer::new(&mut buf);
    match rpc {
        Rpc::Call(_) => {
            let header = CallHeader::parse(&mut reader).unwrap();
            header.emit(&mut writer).unwrap();
            if header.credential.flavor == flavor::AUTH_SYS {
                let body = header.credential.body;
                assert_eq!(encoded(&AuthSys::parse(body).unwrap(), body.len()), body);
            }
        }
        Rpc::Reply(..) => ReplyHeader::parse(&mut reader).unwrap().emit(&mut writer).unwrap(),
    }
    let len = writer.position();
    assert_eq!((len, &buf[..len]), (reader.position(), &payload[..len]));
    counts.rpc_headers += 1;
    let Some(target) = rpc.target() else { return };
    if same_compound(rpc, reader.clone(), &mut counts.operations).is_some() {
        counts.compounds += 1;
        return;
    }
    if (target.program, target.version) == (nfs3::PROGRAM, nfs3::VERSION) {
        let procedure = nfs3::Procedure::from_number(target.procedure).unwrap();
        let done = match rpc {
            Rpc::Call(_) => same_arguments(procedure, reader),
            Rpc::Reply(..) => same_results(procedure, reader),
        };
        counts.bodies += usize::from(done);
    }
}

fn same_arguments(procedure: nfs3::Procedure, reader: Reader<'_>) -> bool {
    use nfs3::Procedure as P;
    match procedure {
        P::Null => same::<()>(reader),
        P::Getattr => same::<GetattrArguments<'_>>(reader),
        P::Setattr => same::<SetattrArguments<'_>>(reader),
        P::Lookup => same::<LookupArguments<'_>>(reader),
        P::Access => same::<AccessArguments<'_>>(reader),
        P::Readlink => same::<ReadlinkArguments<'_>>(reader),
        P::Read => same::<ReadArguments<'_>>(reader),
        P::Write => same::<WriteArguments<'_>>(reader),
        P::Create => same::<CreateArguments<'_>>(reader),
        P::Mkdir => same::<MkdirArguments<'_>>(reader),
        P::Symlink => same::<SymlinkArguments<'_>>(reader),
        P::Mknod => same::<MknodArguments<'_>>(reader),
        P::Remove => same::<RemoveArguments<'_>>(reader),
        P::Rmdir => same::<RmdirArguments<'_>>(reader),
        P::Rename => same::<RenameArguments<'_>>(reader),
        P::Link => same::<LinkArguments<'_>>(reader),
        P::Readdir => same::<ReaddirArguments<'_>>(reader),
        P::Readdirplus => same::<ReaddirplusArguments<'_>>(reader),
        P::Fsstat => same::<FsstatArguments<'_>>(reader),
        P::Fsinfo => same::<FsinfoArguments<'_>>(reader),
        P::Pathconf => same::<PathconfArguments<'_>>(reader),
        P::Commit => same::<CommitArguments<'_>>(reader),
    }
}

fn same_results(procedure: nfs3::Procedure, reader: Reader<'_>) -> bool {
    use nfs3::Procedure as P;
    match procedure {
        P::Null => same::<()>(reader),
        P::Getattr => same::<GetattrReply>(reader),
        P::Setattr => same::<SetattrReply>(reader),
        P::Lookup => same::<LookupReply<'_>>(reader),
        P::Access => same::<AccessReply>(reader),
        P::Readlink => same::<ReadlinkReply<'_>>(reader),
        P::Read => same::<ReadReply<'_>>(reader),
        P::Write => same::<WriteReply>(reader),
        P::Create | P::Mkdir | P::Symlink | P::Mknod => same::<CreateReply<'_>>(reader),
        P::Remove | P::Rmdir => same::<RemoveReply>(reader),
        P::Rename => same::<RenameReply>(reader),
        P::Link => same::<LinkReply>(reader),
        P::Readdir => same::<ReaddirReply<'_>>(reader),
        P::Readdirplus => same::<ReaddirplusReply<'_>>(reader),
        P::Fsstat => same::<FsstatReply>(reader),
        P::Fsinfo => same::<FsinfoReply>(reader),
        P::Pathconf => same::<PathconfReply>(reader),
        P::Commit => same::<CommitReply>(reader),
    }
}

/// The chunks of a message that took items out of its Payload stream.
fn reduced(message: &Message<'_>, header: &Header<'_>) -> Vec<Reduced> {
    match message.rpc {
        Some(Rpc::Call(_)) => {
            let mut chunks: BTreeMap<u32, u32> = BTreeMap::new();
            for entry in header.read_list().filter(|entry| entry.position != 0) {
                *chunks.entry(entry.position).or_default() += entry.segment.length;
            }
            chunks.into_iter().map(|(position, len)| Reduced::read_chunk(0, position, len)).collect()
        }
        _ => header.write_list().map(|chunk| Reduced::write_chunk(0, chunk.total_len() as u32)).collect(),
    }
}

/// Takes a message apart and puts it together again.
fn check(message: &Message<'_>, counts: &mut Counts) {
    let (header, payload) = message.header.expect("a header");
    encode_header(message, &header);
    counts.headers += 1;
    let payload = match header.procedure() {
        RdmaProcedure::Nomsg => message.long_payload.expect("what went by chunk was captured"),
        _ => payload,
    };
    let rpc = message.rpc.expect("an RPC message");
    encode_payload(payload, rpc, &reduced(message, &header), counts);
}

/// 8166, 8167, 8267, 8797, 5044, 5041, 5040: what the analyzer checks, and that it does not complain of what is right.
#[test]
fn every_message_decodes_encodes_and_pairs_up() {
    let expected = table();
    let mut operations = Operations::new();
    for (name, path) in captures() {
        let mut counts = Counts::default();
        let mut reported = 0;
        let totals = run(&path, &mut |event| match &event.kind {
            EventKind::Message(message) => {
                reported += 1;
                assert_eq!(message.violations, [], "{name}, frame {}", event.frame);
                check(message, &mut counts);
                if let Some(answered) = &message.answered {
                    assert!(answered.frame < event.frame && answered.time <= event.time);
                    check_chunks(message);
                }
            }
            EventKind::Violation(_, broken) => panic!("{name}, frame {}: {broken:?}", event.frame),
            _ => {}
        });
        assert_eq!(totals.violation_count(), 0, "{name}");
        assert_eq!((totals.calls, totals.replies), (totals.paired, totals.paired), "{name}");
        assert_eq!((totals.unanswered, totals.errors, totals.other_sends), (0, 0, 0), "{name}");
        assert_eq!((totals.crc_bad, totals.missing, totals.duplicates), (0, 0, 0), "{name}");
        // Only siw-crc has CRCs, and RoCE.
        let has_crc = name.starts_with("siw-crc") || name.starts_with("rxe");
        assert_eq!(totals.crc_good, if has_crc { totals.segments } else { 0 }, "{name}");
        let found = totals.messages as usize;
        assert_eq!((reported, counts.headers, counts.rpc_headers), (found, found, found), "{name}");
        assert_eq!(Some(&totals.messages), expected.get(&name), "{name}: messages, as tshark counts them");
        let (paired, bodies, compounds) = (totals.paired, counts.bodies, counts.compounds);
        println!(
            "{name}: {found} messages, {paired} pairs, {bodies} NFSv3 bodies, {compounds} COMPOUNDs, the same again; no \
             violations: ok"
        );
        assert_eq!(counts.compounds > 0, name.contains("-v4."), "{name}");
        for (operation, count) in counts.operations {
            *operations.entry(operation).or_default() += count;
        }
    }
    // Everything that the captures are known to have (captures/README.md) was decoded as an operation.
    for operation in [
        "ALLOCATE",
        "CB_RECALL",
        "CB_RECALL_ANY",
        "CB_SEQUENCE",
        "COPY",
        "CREATE_SESSION",
        "DEALLOCATE",
        "DELEGRETURN",
        "EXCHANGE_ID",
        "FREE_STATEID",
        "GETXATTR",
        "LISTXATTRS",
        "LOCK",
        "LOCKU",
        "OPEN_CONFIRM",
        "READDIR",
        "READLINK",
        "RELEASE_LOCKOWNER",
        "REMOVEXATTR",
        "SECINFO_NO_NAME",
        "SEEK",
        "SETCLIENTID",
        "SETXATTR",
        "WRITE",
    ] {
        assert!(operations.contains_key(operation), "{operation} is in no capture: {operations:?}");
    }
    println!("{operations:?}");
}

/// What was read and written is as long as the headers say.
fn check_chunks(message: &Message<'_>) {
    let (Some(answered), Ok((reply, _))) = (&message.answered, &message.header) else { return };
    let mut returned = reply.write_list();
    for chunk in answered.chunks {
        let expected = match chunk.kind {
            ChunkKind::Read { .. } => {
                // A server reads what it needs: all of it, or nothing of a Call that it refuses.
                assert!([0, chunk.offered].contains(&chunk.moved), "{chunk:?}");
                chunk.moved
            }
            ChunkKind::Write { .. } => returned.next().map_or(0, |chunk| chunk.total_len()),
            ChunkKind::Reply => reply.reply_chunk().map_or(0, |chunk| chunk.total_len()),
            ChunkKind::Exposed => panic!("Linux exposes no Reply: {chunk:?}"),
        };
        assert_eq!(chunk.moved, expected, "{chunk:?}");
    }
}

/// Messages of each capture, as tshark counted them when `ci/captures.sh` wrote the table.
fn table() -> BTreeMap<String, u64> {
    let text = std::fs::read_to_string(folder().join("messages.txt")).expect("messages.txt");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, count) = line.split_once(' ').expect("NAME COUNT");
            (name.to_owned(), count.parse().expect("a number"))
        })
        .collect()
}

#[test]
fn the_table_has_every_capture() {
    let names: Vec<String> = captures().into_iter().map(|(name, _)| name).collect();
    assert_eq!(table().into_keys().collect::<Vec<_>>(), names);
}

/// xids of a capture as tshark finds them, in the order of the frames; `None` without tshark.
fn tshark(path: &Path) -> Option<Vec<u32>> {
    let fields = ["-Y", "rpcordma", "-T", "fields", "-e", "rpcordma.xid"];
    let output = Command::new("tshark").arg("-r").arg(path).args(fields).output().ok()?;
    let text = String::from_utf8(output.stdout).expect("text");
    let words = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    Some(
        words.map(|word| u32::from_str_radix(word.trim_start_matches("0x"), 16).expect("a number")).collect(),
    )
}

#[test]
fn the_xids_are_those_that_tshark_finds() {
    // The small ones: tshark takes most of a second for each.
    for (name, path) in
        captures().into_iter().filter(|(name, _)| name.contains("-v3-") || name.contains("recall"))
    {
        let Some(mut expected) = tshark(&path) else {
            stag_testing::skipped("tshark is not installed; messages.txt has what it counted");
            return;
        };
        let mut found = Vec::new();
        run(&path, &mut |event| {
            if let EventKind::Message(message) = &event.kind {
                found.push(message.header.expect("a header").0.xid());
            }
        });
        // Calls by Read chunk are reported a little later.
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "{name}");
        println!("{name}: {} xids, the same as tshark's: ok", found.len());
    }
}

/// 5044-7.1, 6581-9, 8797-5.2-a: the MPA Request that a Linux 6.1 client sent.
#[test]
fn the_mpa_request_of_linux() {
    use stag_wire::cm_private_data::PrivateData;
    use stag_wire::mpa::{Frame, FrameKind};
    let octets = std::fs::read(folder().join("mpa-request-linux-6.1-client.bin")).expect("the request");
    let (frame, rest) = Frame::parse(&octets).expect("an MPA frame");
    assert_eq!((frame.kind, frame.revision, rest), (FrameKind::Request, 2, &[][..]));
    let enhanced = frame.enhanced.expect("IRD and ORD");
    assert_eq!((enhanced.ird, enhanced.ord, enhanced.peer_to_peer), (128, 0, None));
    let told = PrivateData::find(frame.private_data).expect("RFC 8797");
    assert_eq!((told.send_size.octets(), told.receive_size.octets()), (4096, 4096));
    assert!(told.remote_invalidation);
    let mut again = [0; 32];
    assert_eq!(frame.emit(&mut again), Some(32));
    assert_eq!(again[..], octets[..]);
}
