//! Replays captured clients against `stagd`, and the captured server against `stag` ([`linux`]).
//!
//! Each Linux client of NFSv3 over siw is replayed, message by message over real TCP and iWARP, and `stagd`'s
//! Replies must be equivalent to those that the Linux server gave ([`equal`] says when). Clients of version 4 are replayed in
//! [`version4`].
//!
//! As captured: the MPA Request with its private data (IRD and ORD, CRC or not, peer-to-peer), each Call with its xid, credits,
//! credential, chunk lists, handles and offsets, the data of its Read chunks. Changed: file handles are the ones that `stagd`
//! gave for the same object, so a Position behind one moves by the difference of their lengths. Calls are sent one by one.

mod equal;
mod linux;
mod peer;
mod script;
mod version4;

use std::path::{Path, PathBuf};

use stag_dump::{CalledProcedure, ChunkKind};
use stag_runtime::{CoreId, affinity};
use stag_wire::nfs3::{self, Procedure};
use stag_wire::rpc::{AuthSys, CallHeader, Gids, OpaqueAuth, flavor};
use stag_wire::rpcrdma::{Emitter, Header, MessageKind, ReadSegment, Segment};
use stag_wire::xdr::{Encode, Reader, Writer};
use stag_wire::{mount3, nfsacl};

use crate::common::{Folder, Server};
use equal::{Answer, Handles, compare};
use peer::{Exposed, Peer, SetUp};
use script::{Exchange, Script, segments};

/// The Linux server refuses a long SETACL with GARBAGE_ARGS, over TCP too (captures/README.md), and `stagd` takes it: so the
/// NFSACL exchanges of this capture from this frame on differ. That is not the protocol's limit, of 1024 entries, which both have: Linux's
/// `nfs_stream_decode_acl` wants the whole list in one piece of memory, which a list over a page's end, of more than 341 entries, is not.
const LONG_ACL: (&str, u64) = ("siw-6.1-v3-acl", 47);

fn captures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/dump/tests/captures")
}

/// A connection to `stagd`, and what is known of it.
struct Replay {
    peer: Peer,
    handles: Handles,
    xid: u32,
}

/// A server on these cores, which are one or two, and the address that it listens at. The last core has the files: where there are
/// two, the first one, which is talked to, has every Call of them executed there.
fn start(cores: &[CoreId], claims: &Folder) -> (Server, String) {
    start_with(cores, claims, "/data")
}

/// The same, with an export of this path.
fn start_with(cores: &[CoreId], claims: &Folder, path: &str) -> (Server, String) {
    let list = cores.iter().map(|core| core.0.to_string()).collect::<Vec<_>>().join(",");
    let export = format!("mem:{path},root_squash=no,core={}", cores.last().expect("one or two").0);
    let arguments = ["--cores", &list, "--export", &export];
    let server = Server::start_at_with("iwarp://127.0.0.1:0", &arguments, |command| {
        command.env("STAG_RUNTIME_DIR", &claims.0);
    });
    let address = server.url.trim_start_matches("iwarp://").trim_end_matches('/').to_owned();
    (server, address)
}

/// How a plain client of our own would connect.
fn plain_set_up() -> SetUp {
    let private_data = vec![0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3];
    SetUp { crc: true, ird: 16, ord: 16, peer_to_peer: false, private_data }
}

/// Encodes a Call of root's.
fn payload(xid: u32, program: u32, procedure: u32, arguments: &dyn Fn(&mut Writer<'_>)) -> Vec<u8> {
    let mut body = [0; AuthSys::BODY_LEN_MAX];
    let mut writer = Writer::new(&mut body);
    writer.value(&AuthSys { stamp: 0, machine_name: b"replay", uid: 0, gid: 0, gids: Gids::NONE }).unwrap();
    let header = CallHeader {
        xid,
        program,
        version: 3,
        procedure,
        credential: OpaqueAuth { flavor: flavor::AUTH_SYS, body: writer.written() },
        verifier: OpaqueAuth::NONE,
    };
    let mut call = vec![0; 4000];
    let mut writer = Writer::new(&mut call);
    header.emit(&mut writer).unwrap();
    arguments(&mut writer);
    let len = writer.position();
    call.truncate(len);
    call
}

impl Replay {
    fn new(address: &str, set_up: &SetUp) -> Replay {
        Replay { peer: Peer::connect(address, set_up), handles: Handles::new(), xid: 1 }
    }

    /// Makes a Call of our own, and returns its results, whose status is fine.
    fn make(&mut self, program: u32, procedure: u32, arguments: &impl Encode) -> Vec<u8> {
        self.xid += 1;
        let xid = self.xid;
        let payload = payload(xid, program, procedure, &|writer| writer.value(arguments).unwrap());
        let mut message = vec![0; 4096];
        let emitter = Emitter::new(&mut message, MessageKind::Msg, xid, 32).unwrap();
        let (len, rest) = emitter.finish().unwrap();
        rest[..payload.len()].copy_from_slice(&payload);
        let reply = self.peer.call(&message[..len + payload.len()], &mut []);
        let (_, payload) = Header::parse(&reply).unwrap();
        let mut reader = Reader::new(payload);
        assert!(stag_wire::rpc::ReplyHeader::parse(&mut reader).unwrap().is_success());
        assert_eq!(reader.clone().u32(), Ok(0), "program {program}, procedure {procedure}");
        reader.rest().to_vec()
    }

    fn mount(&mut self, path: &str) -> Vec<u8> {
        let path = nfs3::Name(path.as_bytes());
        let results = self.make(mount3::PROGRAM, 1, &mount3::PathArguments { path });
        let reply: mount3::MntReply<'_> = Reader::new(&results).value().unwrap();
        reply.unwrap().handle.0.to_vec()
    }

    /// Makes a file or directory; returns its handle.
    fn create(&mut self, directory: &[u8], name: &str, mode: u32, is_directory: bool) -> Vec<u8> {
        let place =
            nfs3::DirectoryName { directory: nfs3::Handle(directory), name: nfs3::Name(name.as_bytes()) };
        let attributes = nfs3::SetAttributes { mode: Some(mode), ..nfs3::SetAttributes::default() };
        let results = if is_directory {
            self.make(nfs3::PROGRAM, 9, &nfs3::MkdirArguments { place, attributes })
        } else {
            let how = nfs3::CreateHow::Guarded(attributes);
            self.make(nfs3::PROGRAM, 8, &nfs3::CreateArguments { place, how })
        };
        let reply: nfs3::CreateReply<'_> = Reader::new(&results).value().unwrap();
        reply.unwrap().object.expect("a handle").0.to_vec()
    }

    fn write(&mut self, file: &[u8], octets: &[u8]) {
        for (index, piece) in octets.chunks(3000).enumerate() {
            let arguments = nfs3::WriteArguments {
                file: nfs3::Handle(file),
                offset: 3000 * index as u64,
                count: piece.len() as u32,
                stable: nfs3::Stable::Unstable,
                data: nfs3::Data(stag_wire::xdr::Item::Inline(piece)),
            };
            self.make(nfs3::PROGRAM, 7, &arguments);
        }
    }

    /// Makes the tree that the captured server exported in the export of this path: see `captures/README.md`. `many` are the names of
    /// its large directory.
    fn plant(&mut self, path: &str, many: &[String]) -> Vec<u8> {
        let root = self.mount(path);
        let (mode, uid, gid) = (Some(0o777), Some(0), Some(0));
        let attributes = nfs3::SetAttributes { mode, uid, gid, ..nfs3::SetAttributes::default() };
        let object = nfs3::Handle(&root);
        self.make(nfs3::PROGRAM, 2, &nfs3::SetattrArguments { object, attributes, guard: None });
        let r = self.create(&root, "r", 0o755, true);
        for len in [1u64, 100, 4096, 20_000, 131_077] {
            let file = self.create(&r, &format!("f{len}"), 0o644, false);
            let octets: Vec<u8> = (0..len).map(|i| (131 * i + 17 * (i >> 8) + len) as u8).collect();
            self.write(&file, &octets);
        }
        let directory = self.create(&root, "many", 0o755, true);
        for name in many {
            self.create(&directory, name, 0o644, false);
        }
        root
    }

    /// Sends a captured Call, and compares the Reply.
    fn replay(&mut self, exchange: &Exchange) -> Result<(), String> {
        let (header, _) = Header::parse(&exchange.call).unwrap();
        let old = exchange.call_payload();
        let new = translate(exchange.target, old, &self.handles).ok_or("a handle that was not given")?;
        let (payload, written) = self.send(exchange, &header, &new);
        let captured = Answer { payload: &exchange.reply, written: &exchange.written };
        let ours = Answer { payload: &payload, written: &written };
        compare(exchange.target, &captured, &ours, &mut self.handles)
    }

    /// Sends a captured Call with a new Payload stream. Returns the Reply's Payload stream, and the octets of its Write chunks.
    fn send(&mut self, exchange: &Exchange, header: &Header<'_>, new: &[u8]) -> (Vec<u8>, Vec<Vec<u8>>) {
        let shift = new.len() as i64 - exchange.call_payload().len() as i64;
        let mut memory = memory(exchange, header, new);
        let message = message(exchange, header, new, shift);
        let reply = self.peer.call(&message, &mut memory);
        let (answer, inline) = Header::parse(&reply).expect("a Reply");
        answer.check_reply(inline).expect("8166");
        assert_eq!(answer.xid(), header.xid(), "8166-4.2.1-a");
        assert!(answer.credits() > 0, "8166-3.3.1-c");
        // What was offered comes back, with lengths (8166-3.4.6-c).
        assert_eq!(answer.write_chunk_count(), header.write_chunk_count());
        let mut written = Vec::new();
        for (offered, returned) in header.write_list().zip(answer.write_list()) {
            written.push(gather(&memory, offered.segments(), returned.segments()));
        }
        let long = header
            .reply_chunk()
            .zip(answer.reply_chunk())
            .map(|(offered, returned)| gather(&memory, offered.segments(), returned.segments()));
        let payload = match &long {
            Some(octets) if answer.procedure() == stag_wire::rpcrdma::MessageProcedure::Nomsg => &octets[..],
            _ => inline,
        };
        (payload.to_vec(), written)
    }
}

/// Collects what was written to a chunk.
fn gather(
    memory: &[Exposed],
    offered: impl Iterator<Item = Segment>,
    returned: impl Iterator<Item = Segment>,
) -> Vec<u8> {
    let mut octets = Vec::new();
    for (offered, returned) in offered.zip(returned) {
        assert_eq!((offered.handle, offered.offset), (returned.handle, returned.offset), "8166-3.4.6-c");
        let exposed = memory.iter().find(|exposed| exposed.segment.handle == offered.handle).unwrap();
        octets.extend_from_slice(&exposed.octets[..returned.length as usize]);
    }
    octets
}

/// Puts `stagd`'s handles in the places of the captured ones; `None` if a handle was never given: an earlier Reply differed.
fn translate(target: CalledProcedure, payload: &[u8], handles: &Handles) -> Option<Vec<u8>> {
    let mut reader = Reader::new(payload);
    CallHeader::parse(&mut reader).unwrap();
    let mut new = payload[..reader.position()].to_vec();
    if target.procedure == 0 {
        return Some(new);
    }
    let mut opaque = |reader: &mut Reader<'_>, is_handle: bool| -> Option<()> {
        let old = reader.opaque(4096).unwrap();
        let octets = if is_handle { handles.get(old)? } else { old };
        let mut item = vec![0; octets.len().next_multiple_of(4) + 4];
        Writer::new(&mut item).opaque(octets).unwrap();
        new.extend(item);
        Some(())
    };
    opaque(&mut reader, true)?;
    if target.program == nfs3::PROGRAM {
        match Procedure::from_number(target.procedure) {
            Some(Procedure::Rename) => {
                opaque(&mut reader, false)?;
                opaque(&mut reader, true)?;
            }
            Some(Procedure::Link) => opaque(&mut reader, true)?,
            _ => {}
        }
    }
    new.extend(reader.rest());
    Some(new)
}

/// The memory that the Call exposes; the Position Zero Read chunk holds the new Payload stream, all of it in its first segment.
fn memory(exchange: &Exchange, header: &Header<'_>, payload: &[u8]) -> Vec<Exposed> {
    let mut used: Vec<(u32, usize)> = Vec::new();
    let mut memory = Vec::new();
    for (position, mut segment) in segments(header) {
        let mut octets = vec![0; segment.length as usize];
        if position == Some(0) {
            let first = used.is_empty();
            used.push((0, 0));
            octets = if first { payload.to_vec() } else { Vec::new() };
            segment.length = octets.len() as u32;
        } else if let Some(position) = position {
            let chunk =
                exchange.chunks.iter().find(|chunk| chunk.kind == ChunkKind::Read { position }).unwrap();
            let at = used.iter().find(|(known, _)| *known == position).map_or(0, |(_, at)| *at);
            octets = chunk.data[at..at + octets.len()].to_vec();
            used.retain(|(known, _)| *known != position);
            used.push((position, at + octets.len()));
        }
        memory.push(Exposed { segment, octets, writable: position.is_none() });
    }
    memory
}

/// The Call's message with the new Payload stream.
fn message(exchange: &Exchange, header: &Header<'_>, payload: &[u8], shift: i64) -> Vec<u8> {
    let mut message = vec![0; exchange.call.len() + payload.len() + 64];
    let is_long = header.has_position_zero();
    let kind = if is_long { MessageKind::Nomsg } else { MessageKind::Msg };
    let mut emitter = Emitter::new(&mut message, kind, header.xid(), header.credits()).unwrap();
    let mut first = true;
    for ReadSegment { position, mut segment } in header.read_list() {
        if position == 0 {
            segment.length = if std::mem::replace(&mut first, false) { payload.len() as u32 } else { 0 };
            emitter.read_segment(ReadSegment { position, segment }).unwrap();
        } else {
            let position = (i64::from(position) + shift) as u32;
            emitter.read_segment(ReadSegment { position, segment }).unwrap();
        }
    }
    for chunk in header.write_list() {
        emitter.write_chunk(&chunk.segments().collect::<Vec<_>>()).unwrap();
    }
    if let Some(chunk) = header.reply_chunk() {
        emitter.reply_chunk(&chunk.segments().collect::<Vec<_>>()).unwrap();
    }
    let (len, rest) = emitter.finish().unwrap();
    let inline = if is_long { &[][..] } else { payload };
    rest[..inline.len()].copy_from_slice(inline);
    message.truncate(len + inline.len());
    message
}

/// Names of the large directory, as the capture lists them.
fn many(path: &Path) -> Vec<String> {
    let script = Script::read(path);
    let listing = script.exchanges.iter().find(|exchange| {
        exchange.target.program == nfs3::PROGRAM
            && exchange.target.procedure == Procedure::Readdirplus.number()
    });
    let mut reader = Reader::new(&listing.expect("a READDIRPLUS").reply);
    stag_wire::rpc::ReplyHeader::parse(&mut reader).unwrap();
    let reply: nfs3::ReaddirplusReply<'_> = reader.value().unwrap();
    let names =
        reply.unwrap().entries.into_iter().map(|entry| String::from_utf8(entry.name.0.to_vec()).unwrap());
    names.filter(|name| name != "." && name != "..").collect()
}

/// Handles of the captured root: the first one of the conversation.
fn captured_root(script: &Script) -> Vec<u8> {
    let first = script
        .exchanges
        .iter()
        .find(|exchange| exchange.target.procedure != 0)
        .expect("a Call with a handle");
    let mut reader = Reader::new(first.call_payload());
    CallHeader::parse(&mut reader).unwrap();
    reader.opaque(64).unwrap().to_vec()
}

#[test]
fn captured_clients_get_equivalent_replies() {
    replay_all(&affinity::allowed().iter().take(1).collect::<Vec<_>>());
}

#[test]
fn captured_clients_get_equivalent_replies_of_another_core() {
    let cores: Vec<CoreId> = affinity::allowed().iter().take(2).collect();
    if cores.len() < 2 {
        stag_testing::skipped("this process may use one core only");
        return;
    }
    replay_all(&cores);
}

/// Replays every captured client of NFSv3 to a server on these cores.
fn replay_all(cores: &[CoreId]) {
    let claims = Folder::new("replay-claims");
    let many = many(&captures().join("siw-6.1-v3-readdir.pcap"));
    assert_eq!(many.len(), 300);
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(captures()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("siw") && name.contains("-v3-") && name.ends_with(".pcap")
    });
    paths.sort();
    assert_eq!(paths.len(), 12, "captures of NFSv3 over siw");
    for path in paths {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let script = Script::read(&path);
        let (server, address) = start(cores, &claims);
        let root = Replay::new(&address, &plain_set_up()).plant("/data", &many);
        let mut replay = Replay::new(&address, &script.set_up);
        replay.handles.insert(captured_root(&script), root.clone());
        let (mut equal, mut known, mut differences) = (0, 0, Vec::new());
        let mut connection = 1;
        for exchange in &script.exchanges {
            if exchange.connection != connection {
                connection = exchange.connection;
                let handles = std::mem::take(&mut replay.handles);
                replay = Replay::new(&address, &script.set_up);
                replay.handles = handles;
            }
            match replay.replay(exchange) {
                Ok(()) => equal += 1,
                Err(_) if is_known(&name, exchange) => known += 1,
                Err(difference) => {
                    differences.push(format!("{name}, frame {}: {difference}", exchange.frame))
                }
            }
        }
        assert!(differences.is_empty(), "{}", differences.join("\n"));
        println!("{name}: {} Calls, {equal} Replies equivalent, {known} known to differ: ok", equal + known);
        drop(replay);
        let (stopped, status) = server.stop();
        assert!(status.success(), "{stopped}");
        let carried = stopped["cores"][0]["calls_carried"].as_u64().unwrap();
        assert_eq!(carried > 0, cores.len() > 1, "{stopped}");
    }
}

/// Tells whether the Linux server is known to answer this Call in its own way.
fn is_known(name: &str, exchange: &Exchange) -> bool {
    name == LONG_ACL.0 && exchange.target.program == nfsacl::PROGRAM && exchange.frame >= LONG_ACL.1
}

/// The other way round: `stag` with the captured Linux server. What it reads is what the README of the captures says.
#[test]
fn our_client_with_the_captured_server() {
    for name in ["siw-6.1-v3-read", "siw-crc-6.1-v3-read", "siw-6.1-v3-parallel"] {
        let script = Script::read(&captures().join(format!("{name}.pcap")));
        let told = linux::Told::read(&script, captured_root(&script));
        let lens = [1u64, 100, 4096, 20_000, 131_077];
        let (address, served) = linux::serve(told, lens.len());
        for len in lens {
            let url = format!("iwarp://{address}{}/r/f{len}", linux::EXPORT);
            let output = crate::common::stag(&["cat", "--no-reconnect", &url]);
            assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
            let expected: Vec<u8> = (0..len).map(|i| (131 * i + 17 * (i >> 8) + len) as u8).collect();
            assert!(output.stdout == expected, "{name}: f{len}");
        }
        println!(
            "{name}: the captured server answered {} Calls of ours, 5 files are right: ok",
            served.join().unwrap()
        );
    }
    let path = captures().join("siw-6.1-v3-readdir.pcap");
    let script = Script::read(&path);
    let told = linux::Told::read(&script, captured_root(&script));
    let (address, served) = linux::serve(told, 1);
    let output =
        crate::common::stag(&["ls", "--no-reconnect", &format!("iwarp://{address}{}/many", linux::EXPORT)]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut expected = many(&path);
    expected.sort();
    let mut found: Vec<&str> = std::str::from_utf8(&output.stdout).unwrap().lines().collect();
    found.sort_unstable();
    assert_eq!(found, expected);
    println!(
        "siw-6.1-v3-readdir: the captured server answered {} Calls of ours, 300 names: ok",
        served.join().unwrap()
    );
}

/// A captured server, and `stag` with a command line against it. Its URLs begin with `@`.
fn stag_against(script: &Script, arguments: &[&str]) -> std::process::Output {
    let told = linux::Told::read(script, captured_root(script));
    let (address, served) = linux::serve(told, 1);
    let place = format!("iwarp://{address}{}", linux::EXPORT);
    let arguments: Vec<String> = arguments.iter().map(|argument| argument.replace('@', &place)).collect();
    let output = crate::common::stag(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    println!("stag {}: {} Calls answered as captured", arguments.join(" "), served.join().unwrap());
    output
}

/// `stag` writes what the captured client wrote, inline and by Read chunks, and the server gets the same octets.
#[test]
fn our_client_writes_to_the_captured_server() {
    let script = Script::read(&captures().join("siw-6.1-v3-write.pcap"));
    let folder = crate::common::Folder::new("replay-write");
    for len in [1u64, 500, 3000, 5000, 70_000, 131_072] {
        let octets: Vec<u8> = (0..len).map(|i| (131 * i + 17 * (i >> 8) + len) as u8).collect();
        let file = folder.join(&format!("w{len}"));
        std::fs::write(&file, octets).unwrap();
        let output = stag_against(&script, &["put", file.to_str().unwrap(), &format!("@/w{len}")]);
        assert!(output.status.success(), "w{len}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// `stag` makes, moves and removes names as the captured client did, and hears of the same failures.
#[test]
fn our_client_changes_names_on_the_captured_server() {
    let script = Script::read(&captures().join("siw-6.1-v3-meta.pcap"));
    let folder = crate::common::Folder::new("replay-names");
    let file = folder.join("beta");
    std::fs::write(&file, linux::Told::read(&script, captured_root(&script)).written(b"beta")).unwrap();
    for (arguments, complaint) in [
        (&["mkdir", "@/alpha"][..], None),
        (&["put", file.to_str().unwrap(), "@/alpha/beta"], None),
        (&["mv", "@/alpha/beta", "@/alpha/gamma"], None),
        (&["rm", "@/alpha/gamma"], None),
        (&["rm", "@/nothing-here"], Some("no such file")),
        (&["mkdir", "@/many"], Some("exists already")),
    ] {
        let output = stag_against(&script, arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        match complaint {
            None => assert!(output.status.success(), "{arguments:?}: {text}"),
            Some(words) => assert!(!output.status.success() && text.contains(words), "{arguments:?}: {text}"),
        }
    }
}
