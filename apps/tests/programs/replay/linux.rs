//! The captured Linux server: answers a client with its captured Replies, over real TCP and iWARP.
//!
//! As captured: the MPA Reply's IRD, ORD and private data, credits, handles, attributes, times, cookies, data, results, and that
//! a Call with one handle is answered by Send with Invalidate. A client asks in its own order and with its own sizes, so results
//! are found by their subject: attributes and data by handle, names by directory. A Call that changes something gets the Reply of
//! the same captured change; written data has to be the captured octets, which are pulled by RDMA Read if they are not inline.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use stag_wire::ddp::{self, Tagged, Untagged};
use stag_wire::mount3::{self, Flavors, MntOk, MntReply};
use stag_wire::mpa::{self, Enhanced, Fpdu, Frame, FrameKind};
use stag_wire::nfs3::*;
use stag_wire::rdmap::{Opcode, RdmapReadRequest};
use stag_wire::rpc::{Accepted, CallHeader, ReplyHeader, emit_success};
use stag_wire::rpcrdma::{Emitter, Header, MessageKind, Segment};
use stag_wire::xdr::{Item, Reader, Reduced, Writer};

use stag_dump::ChunkKind;

use super::script::Script;

/// The path that the captured server exported.
pub(crate) const EXPORT: &str = "/export";

/// An entry of a directory.
#[derive(Clone)]
struct Child {
    name: Vec<u8>,
    fileid: u64,
    cookie: u64,
    attributes: PostOpAttributes,
    handle: Option<Vec<u8>>,
}

/// A WRITE: what was written, and the results.
struct Written {
    octets: Vec<u8>,
    results: Vec<u8>,
}

/// All that a capture tells of a server's files.
#[derive(Default)]
pub(crate) struct Told {
    root: Vec<u8>,
    attributes: HashMap<Vec<u8>, Attributes>,
    names: HashMap<(Vec<u8>, Vec<u8>), Vec<u8>>,
    access: HashMap<Vec<u8>, u32>,
    /// Pieces of files, by handle and offset.
    data: HashMap<Vec<u8>, BTreeMap<u64, Vec<u8>>>,
    links: HashMap<Vec<u8>, Vec<u8>>,
    directories: HashMap<Vec<u8>, Vec<Child>>,
    /// Results of procedures on names: by number, directory and name.
    changes: HashMap<(u32, Vec<u8>, Vec<u8>), Vec<u8>>,
    /// What was written, by handle and offset.
    writes: HashMap<(Vec<u8>, u64), Written>,
    fsinfo: Vec<u8>,
    pathconf: Vec<u8>,
    /// From the MPA Reply.
    ird: u16,
    ord: u16,
    private_data: Vec<u8>,
}

impl Told {
    /// Collects what a capture tells.
    pub(crate) fn read(script: &Script, root: Vec<u8>) -> Told {
        let reply = &script.reply;
        let mut told = Told {
            root,
            ird: reply.ird,
            ord: reply.ord,
            private_data: reply.private_data.clone(),
            ..Told::default()
        };
        for exchange in script.exchanges.iter().filter(|exchange| exchange.target.program == PROGRAM) {
            let Some(procedure) = Procedure::from_number(exchange.target.procedure) else { continue };
            let pulled = exchange.chunks.iter().find_map(|chunk| match chunk.kind {
                ChunkKind::Read { position } if position > 0 => {
                    Some((Reduced::read_chunk(0, position, chunk.data.len() as u32), &chunk.data[..]))
                }
                _ => None,
            });
            let (placed, data) = pulled.unzip();
            let mut call = Reader::with_reduced(exchange.call_payload(), placed.as_slice());
            CallHeader::parse(&mut call).unwrap();
            let reduced: Vec<Reduced> = exchange
                .written
                .iter()
                .enumerate()
                .map(|(index, octets)| Reduced::write_chunk(index as u32, octets.len() as u32))
                .collect();
            let mut results = Reader::with_reduced(&exchange.reply, &reduced);
            if ReplyHeader::parse(&mut results).unwrap().is_success() {
                told.take(procedure, call, data.unwrap_or_default(), results, &exchange.written);
            }
        }
        told
    }

    fn take(
        &mut self,
        procedure: Procedure,
        mut call: Reader<'_>,
        data: &[u8],
        mut results: Reader<'_>,
        written: &[Vec<u8>],
    ) {
        let rest = results.rest();
        if let Some(place) = changes(procedure, &call) {
            let (directory, name) = (place.directory.0.to_vec(), place.name.0.to_vec());
            // The first is the one that worked: what came after it found the name, or not any more.
            self.changes.entry((procedure.number(), directory, name)).or_insert(rest.to_vec());
        }
        match procedure {
            Procedure::Getattr => {
                let GetattrArguments { object } = call.value().unwrap();
                if let Ok(ok) = results.value::<GetattrReply>().unwrap() {
                    self.attributes.insert(object.0.to_vec(), ok.attributes);
                }
            }
            Procedure::Lookup => {
                let LookupArguments { what } = call.value().unwrap();
                if let Ok(ok) = results.value::<LookupReply<'_>>().unwrap() {
                    self.found(what.directory.0, what.name.0, ok.object.0, ok.attributes);
                }
            }
            Procedure::Access => {
                let AccessArguments { object, .. } = call.value().unwrap();
                if let Ok(ok) = results.value::<AccessReply>().unwrap() {
                    self.access.insert(object.0.to_vec(), ok.access);
                }
            }
            Procedure::Readlink => {
                let ReadlinkArguments { symlink } = call.value().unwrap();
                if let Ok(ok) = results.value::<ReadlinkReply<'_>>().unwrap() {
                    self.links.insert(symlink.0.to_vec(), octets(&ok.path.0, written).to_vec());
                }
            }
            Procedure::Read => {
                let ReadArguments { file, offset, .. } = call.value().unwrap();
                if let Ok(ok) = results.value::<ReadReply<'_>>().unwrap() {
                    let pieces = self.data.entry(file.0.to_vec()).or_default();
                    pieces.insert(offset, octets(&ok.data.0, written).to_vec());
                }
            }
            Procedure::Write => {
                let WriteArguments { file, offset, data: item, .. } = call.value().unwrap();
                let octets = match item.0 {
                    Item::Inline(octets) => octets,
                    Item::Reduced { len, .. } => &data[..len as usize],
                };
                let written = Written { octets: octets.to_vec(), results: rest.to_vec() };
                self.writes.insert((file.0.to_vec(), offset), written);
            }
            Procedure::Create | Procedure::Mkdir | Procedure::Symlink => {
                let name: DirectoryName<'_> = call.value().unwrap();
                if let Ok(CreateOk { object: Some(object), attributes, .. }) =
                    results.value::<CreateReply<'_>>().unwrap()
                {
                    self.found(name.directory.0, name.name.0, object.0, attributes);
                }
            }
            Procedure::Readdirplus => {
                let ReaddirplusArguments { directory, .. } = call.value().unwrap();
                if let Ok(ok) = results.value::<ReaddirplusReply<'_>>().unwrap() {
                    for entry in ok.entries {
                        if let Some(handle) = entry.handle {
                            self.found(directory.0, entry.name.0, handle.0, entry.attributes);
                        }
                        self.directories.entry(directory.0.to_vec()).or_default().push(Child {
                            name: entry.name.0.to_vec(),
                            fileid: entry.fileid,
                            cookie: entry.cookie,
                            attributes: entry.attributes,
                            handle: entry.handle.map(|handle| handle.0.to_vec()),
                        });
                    }
                }
            }
            Procedure::Fsinfo => self.fsinfo = rest.to_vec(),
            Procedure::Pathconf => self.pathconf = rest.to_vec(),
            _ => {}
        }
    }

    fn found(&mut self, directory: &[u8], name: &[u8], handle: &[u8], attributes: PostOpAttributes) {
        self.names.insert((directory.to_vec(), name.to_vec()), handle.to_vec());
        if let Some(attributes) = attributes {
            self.attributes.insert(handle.to_vec(), attributes);
        }
    }

    fn attributes(&self, handle: Handle<'_>) -> PostOpAttributes {
        self.attributes.get(handle.0).copied()
    }

    /// What was written to a file in a directory, from its start.
    pub(crate) fn written(&self, name: &[u8]) -> Vec<u8> {
        let mut handles = self.names.iter().filter(|((_, known), _)| known == name).map(|(_, handle)| handle);
        let handle = handles.find_map(|handle| self.writes.get(&(handle.clone(), 0)));
        handle.expect("a file that was written").octets.clone()
    }

    /// The results of a Call, whose Read chunk is `pulled`, and the eligible one for its Write chunk.
    fn answer(
        &self,
        program: u32,
        procedure: u32,
        mut call: Reader<'_>,
        pulled: &[u8],
        reduces: bool,
    ) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut buf = vec![0; 1 << 20];
        let mut writer = Writer::new(&mut buf);
        let mut item = Vec::new();
        if program == mount3::PROGRAM {
            match mount3::Procedure::from_number(procedure)? {
                mount3::Procedure::Mnt => {
                    let path: mount3::PathArguments<'_> = call.value().unwrap();
                    let ok = MntOk { handle: Handle(&self.root), flavors: Flavors::new(&[[0, 0, 0, 1]]) };
                    let is_export = path.path.0 == EXPORT.as_bytes();
                    let reply: MntReply<'_> = if is_export { Ok(ok) } else { Err(mount3::Status::NoEnt) };
                    writer.value(&reply).unwrap();
                }
                mount3::Procedure::Export => {
                    mount3::encode_export(&mut writer, Name(EXPORT.as_bytes()), []).unwrap();
                    mount3::encode_exports_end(&mut writer).unwrap();
                }
                _ => {}
            }
            return Some((writer.written().to_vec(), item));
        }
        let failure = |status, attributes| Failure { status, attributes };
        let procedure = Procedure::from_number(procedure).filter(|_| program == PROGRAM)?;
        if let Some(place) = changes(procedure, &call) {
            let key = (procedure.number(), place.directory.0.to_vec(), place.name.0.to_vec());
            return Some((self.changes.get(&key)?.clone(), item));
        }
        match procedure {
            Procedure::Null => {}
            Procedure::Getattr => {
                let GetattrArguments { object } = call.value().unwrap();
                let found = self.attributes(object).map(|attributes| GetattrOk { attributes });
                let reply: GetattrReply = found.ok_or(failure(Status::Stale, ()));
                writer.value(&reply).unwrap();
            }
            Procedure::Lookup => {
                let LookupArguments { what } = call.value().unwrap();
                let directory = self.attributes(what.directory);
                let found = self.names.get(&(what.directory.0.to_vec(), what.name.0.to_vec()));
                let reply: LookupReply<'_> = match found {
                    Some(handle) => {
                        let object = Handle(handle);
                        Ok(LookupOk { object, attributes: self.attributes(object), directory })
                    }
                    None => Err(Failure { status: Status::NoEnt, attributes: directory }),
                };
                writer.value(&reply).unwrap();
            }
            Procedure::Access => {
                let AccessArguments { object, access } = call.value().unwrap();
                let known = self.access.get(object.0).copied().unwrap_or(access);
                let reply: AccessReply =
                    Ok(AccessOk { attributes: self.attributes(object), access: known & access });
                writer.value(&reply).unwrap();
            }
            Procedure::Readlink => {
                let ReadlinkArguments { symlink } = call.value().unwrap();
                item.clone_from(self.links.get(symlink.0)?);
                let attributes = self.attributes(symlink);
                let path = Path(Item::Inline(&item));
                let whole: ReadlinkReply<'_> = Ok(ReadlinkOk { attributes, path });
                writer.value(&whole).unwrap();
            }
            Procedure::Read => {
                let ReadArguments { file, offset, count } = call.value().unwrap();
                let pieces = self.data.get(file.0)?;
                let all: Vec<u8> = pieces.values().flatten().copied().collect();
                let start = all.len().min(offset as usize);
                let end = all.len().min(start + count as usize);
                item = all[start..end].to_vec();
                let (count, eof) = ((end - start) as u32, end == all.len());
                let data = Data(Item::Inline(&item));
                let whole: ReadReply<'_> = Ok(ReadOk { attributes: self.attributes(file), count, eof, data });
                writer.value(&whole).unwrap();
            }
            Procedure::Readdirplus => {
                let ReaddirplusArguments { directory, cookie, dircount, maxcount, .. } =
                    call.value().unwrap();
                let children = self.directories.get(directory.0)?;
                let after = children.iter().position(|child| child.cookie == cookie).map_or(0, |at| at + 1);
                let attributes = self.attributes(directory);
                let mut listing =
                    Listing::begin(&mut writer, &attributes, [0; 8], maxcount, dircount).unwrap();
                let fits = children[after..].iter().all(|child| {
                    listing.push(&EntryPlus {
                        fileid: child.fileid,
                        name: Name(&child.name),
                        cookie: child.cookie,
                        attributes: child.attributes,
                        handle: child.handle.as_deref().map(Handle),
                    })
                });
                listing.finish(fits).unwrap();
            }
            Procedure::Write => {
                let WriteArguments { file, offset, count, data, .. } = call.value().unwrap();
                let octets = match data.0 {
                    Item::Inline(octets) => octets,
                    Item::Reduced { len, .. } => &pulled[..len as usize],
                };
                let captured = self.writes.get(&(file.0.to_vec(), offset))?;
                assert!(
                    octets == captured.octets && count as usize == octets.len(),
                    "what the capture wrote"
                );
                writer.opaque_fixed(&captured.results).unwrap();
            }
            Procedure::Fsinfo => writer.opaque_fixed(&self.fsinfo).unwrap(),
            Procedure::Pathconf => writer.opaque_fixed(&self.pathconf).unwrap(),
            _ => return None,
        }
        let mut results = writer.written().to_vec();
        if item.is_empty() || !reduces {
            return Some((results, Vec::new()));
        }
        // The item is the last of the results: it leaves with its padding, and its length stays (8166-3.4.4.4-b).
        results.truncate(results.len() - item.len().next_multiple_of(4));
        Some((results, item))
    }
}

/// The name that a procedure on names is about, and the directory that it is in; of RENAME the old one.
fn changes<'a>(procedure: Procedure, call: &Reader<'a>) -> Option<DirectoryName<'a>> {
    use Procedure::{Create, Mkdir, Remove, Rename, Rmdir, Symlink};
    matches!(procedure, Create | Mkdir | Symlink | Remove | Rmdir | Rename)
        .then(|| call.clone().value().expect("the place comes first"))
}

fn octets<'a>(item: &Item<'a>, written: &'a [Vec<u8>]) -> &'a [u8] {
    match item {
        Item::Inline(octets) => octets,
        Item::Reduced { index, .. } => &written[*index as usize],
    }
}

/// Serves one client after the other, `connections` in all, and returns how many Calls it answered.
pub(crate) fn serve(told: Told, connections: usize) -> (String, JoinHandle<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let served = thread::spawn(move || {
        (0..connections).map(|_| Served::new(listener.accept().unwrap().0, &told).run()).sum()
    });
    (address, served)
}

struct Served<'t> {
    socket: TcpStream,
    told: &'t Told,
    buffer: Vec<u8>,
    crc: bool,
    /// The next message of each queue.
    msn: [u32; 2],
    message: Vec<u8>,
}

impl<'t> Served<'t> {
    fn new(socket: TcpStream, told: &'t Told) -> Served<'t> {
        socket.set_nodelay(true).unwrap();
        Served { socket, told, buffer: Vec::new(), crc: false, msn: [1; 2], message: Vec::new() }
    }

    fn receive(&mut self) -> bool {
        let mut piece = [0; 65536];
        let len = self.socket.read(&mut piece).unwrap_or(0);
        self.buffer.extend_from_slice(&piece[..len]);
        len > 0
    }

    fn run(mut self) -> usize {
        let mut calls = 0;
        loop {
            match Frame::parse(&self.buffer) {
                Ok((request, rest)) => {
                    assert_eq!((request.kind, request.markers), (FrameKind::Request, false));
                    let (crc, rest) = (request.crc, rest.to_vec());
                    let takes = request.enhanced.map_or(0, |enhanced| enhanced.ird);
                    self.reply_to_request(crc, takes);
                    self.buffer = rest;
                    break;
                }
                Err(mpa::FrameError::Truncated(_)) => {
                    if !self.receive() {
                        return 0;
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
        loop {
            let Ok((fpdu, rest)) = Fpdu::parse(&self.buffer) else {
                if !self.receive() {
                    return calls;
                }
                continue;
            };
            assert!(!self.crc || fpdu.is_intact(), "5044-4.4-a");
            let (ulpdu, rest) = (fpdu.ulpdu.to_vec(), rest.to_vec());
            self.buffer = rest;
            let (header, payload) = ddp::DdpHeader::parse(&ulpdu).expect("a DDP segment");
            let header = match header {
                ddp::DdpHeader::Untagged(header) => header,
                // To be heard by a siw that missed the first segment, our client sends RDMA Writes of nothing.
                ddp::DdpHeader::Tagged(_) => {
                    assert!(payload.is_empty(), "an RDMA Write of the client");
                    continue;
                }
            };
            assert_eq!(header.offset as usize, self.message.len(), "5041-d");
            self.message.extend_from_slice(payload);
            if header.last {
                calls += 1;
                let message = std::mem::take(&mut self.message);
                self.call(&message);
            }
        }
    }

    /// The captured MPA Reply; with CRC if the client asks for it (siw-2), and no more RDMA Reads than it takes.
    fn reply_to_request(&mut self, crc: bool, takes: u16) {
        self.crc = crc;
        let reply = Frame {
            kind: FrameKind::Reply,
            markers: false,
            crc,
            rejected: false,
            large_fpdus: false,
            revision: 2,
            enhanced: Some(Enhanced {
                peer_to_peer: None,
                ird: self.told.ird,
                ord: self.told.ord.min(takes),
            }),
            private_data: &self.told.private_data,
        };
        let mut octets = [0; mpa::FRAME_LEN_MAX];
        let len = reply.emit(&mut octets).unwrap();
        self.socket.write_all(&octets[..len]).unwrap();
    }

    fn fpdu(&mut self, header: &[u8], payload: &[u8]) {
        let ulpdu = [header, payload].concat();
        let mut octets = vec![0; mpa::fpdu_len(ulpdu.len())];
        let crc: Option<fn(&[u8]) -> u32> = if self.crc { Some(mpa::crc32c) } else { None };
        mpa::emit_fpdu(&ulpdu, crc, &mut octets).unwrap();
        self.socket.write_all(&octets).unwrap();
    }

    /// Reads a segment of the client's memory.
    fn pull(&mut self, segment: Segment) -> Vec<u8> {
        const SINK: u32 = 0x5157_4a00;
        let request = RdmapReadRequest {
            sink_stag: SINK,
            sink_offset: 0,
            len: segment.length,
            source_stag: segment.handle,
            source_offset: segment.offset,
        };
        let control = Opcode::ReadRequest.to_control();
        let header = Untagged { last: true, control, ulp: 0, queue: 1, msn: self.msn[1], offset: 0 };
        self.msn[1] += 1;
        self.fpdu(&header.to_wire(), &request.to_wire());
        let mut octets = Vec::new();
        loop {
            let Ok((fpdu, rest)) = Fpdu::parse(&self.buffer) else {
                assert!(self.receive(), "the client went away");
                continue;
            };
            assert!(!self.crc || fpdu.is_intact(), "5044-4.4-a");
            let (ulpdu, rest) = (fpdu.ulpdu.to_vec(), rest.to_vec());
            self.buffer = rest;
            let Ok((ddp::DdpHeader::Tagged(header), payload)) = ddp::DdpHeader::parse(&ulpdu) else {
                panic!("a Read Response was to come");
            };
            if Opcode::from_control(header.control) == Ok(Opcode::Write) {
                assert!(payload.is_empty(), "an RDMA Write of the client");
                continue;
            }
            assert_eq!(Opcode::from_control(header.control), Ok(Opcode::ReadResponse));
            assert_eq!((header.stag, header.offset), (SINK, octets.len() as u64), "5040-4.4");
            octets.extend_from_slice(payload);
            if header.last {
                assert_eq!(octets.len(), segment.length as usize);
                return octets;
            }
        }
    }

    /// Writes to the segments of a chunk, and returns them with what each got.
    fn write(&mut self, segments: impl Iterator<Item = Segment>, octets: &[u8]) -> Vec<Segment> {
        let mut rest = octets;
        let mut returned = Vec::new();
        for mut segment in segments {
            let (now, later) = rest.split_at(rest.len().min(segment.length as usize));
            rest = later;
            let count = now.len().div_ceil(1400);
            for (index, piece) in now.chunks(1400).enumerate() {
                let offset = segment.offset + 1400 * index as u64;
                let control = Opcode::Write.to_control();
                let header = Tagged { last: index + 1 == count, control, stag: segment.handle, offset };
                self.fpdu(&header.to_wire(), piece);
            }
            segment.length = now.len() as u32;
            returned.push(segment);
        }
        assert!(rest.is_empty(), "the client offers too little");
        returned
    }

    fn call(&mut self, message: &[u8]) {
        let (header, payload) = Header::parse(message).expect("a Call");
        header.check_call(payload).expect("a Call");
        let entries: Vec<_> = header.read_list().collect();
        let pulled: Vec<u8> = entries.iter().flat_map(|entry| self.pull(entry.segment)).collect();
        let placed = entries.first().map(|e| Reduced::read_chunk(0, e.position, pulled.len() as u32));
        let mut reader = Reader::with_reduced(payload, placed.as_slice());
        let call = CallHeader::parse(&mut reader).expect("a Call");
        let offers = header.write_list().next().is_some_and(|chunk| !chunk.is_empty());
        let answer = self.told.answer(call.program, call.procedure, reader, &pulled, offers);
        let (results, item) = answer.clone().unwrap_or_default();
        let mut stream = vec![0; results.len() + 64];
        let mut writer = Writer::new(&mut stream);
        match answer {
            Some(_) => emit_success(&mut writer, call.xid).unwrap(),
            None => ReplyHeader::accepted(call.xid, Accepted::ProcUnavail).emit(&mut writer).unwrap(),
        }
        writer.opaque_fixed(&results).unwrap();
        let len = writer.position();
        stream.truncate(len);

        let written = header.write_list().next().map(|chunk| self.write(chunk.segments(), &item));
        // Linux uses a Reply chunk whenever it is offered one (LX-8).
        let long = header.reply_chunk().map(|chunk| self.write(chunk.segments(), &stream));
        let mut reply = vec![0; 8192];
        let kind = if long.is_some() { MessageKind::Nomsg } else { MessageKind::Msg };
        let mut emitter = Emitter::new(&mut reply, kind, header.xid(), 64).unwrap();
        if let Some(segments) = &written {
            emitter.write_chunk(segments).unwrap();
        }
        if let Some(segments) = &long {
            emitter.reply_chunk(segments).unwrap();
        }
        let (len, rest) = emitter.finish().unwrap();
        let inline = if long.is_some() { &[][..] } else { &stream };
        rest[..inline.len()].copy_from_slice(inline);
        reply.truncate(len + inline.len());

        // 8797-L-2: only if the Call has exactly one handle.
        let mut handles = written.iter().chain(&long).flatten().map(|segment| segment.handle);
        let only = handles.next().filter(|_| handles.next().is_none());
        let opcode = if only.is_some() { Opcode::SendInvalidate } else { Opcode::Send };
        let count = reply.len().div_ceil(1400);
        for (index, piece) in reply.chunks(1400).enumerate() {
            let header = Untagged {
                last: index + 1 == count,
                control: opcode.to_control(),
                ulp: only.unwrap_or(0),
                queue: 0,
                msn: self.msn[0],
                offset: 1400 * index as u32,
            };
            self.fpdu(&header.to_wire(), piece);
        }
        self.msn[0] += 1;
    }
}
