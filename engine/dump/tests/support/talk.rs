//! Conversations made by hand: one iWARP connection, FPDU by FPDU.

use std::time::Duration;

use stag_wire::cm_private_data::{InlineSize, PrivateData};
use stag_wire::ddp::{Tagged, Untagged};
use stag_wire::mpa::{self, Enhanced, Frame, FrameKind};
use stag_wire::rdmap::{Opcode, RdmapReadRequest};
use stag_wire::rpcrdma::{Emitter, MessageKind, ReadSegment, Segment, emit_plain};

use super::remake::*;

/// Makes a capture of one iWARP connection, FPDU by FPDU.
pub(crate) struct Talk {
    pub(crate) frames: Vec<Kept>,
    /// The next sequence number of client and server.
    pub(crate) sequence: [u32; 2],
    /// The next MSN of Sends and of RDMA Read Requests.
    pub(crate) msn: [[u32; 2]; 2],
    pub(crate) crc: bool,
}

pub(crate) const CLIENT: usize = 0;
pub(crate) const SERVER: usize = 1;

/// A file handle, so that the arguments are right.
pub(crate) const HANDLE: [u8; 8] = [0, 0, 0, 4, 1, 2, 3, 4];

impl Talk {
    /// A connection whose sides told each other 4096 octets and remote invalidation, with an IRD of 2.
    pub(crate) fn new() -> Talk {
        Talk::with(true, true)
    }

    pub(crate) fn with(crc: bool, remote_invalidation: bool) -> Talk {
        Talk::with_more(crc, remote_invalidation, [&[], &[]])
    }

    /// The same, with more private data of client and server behind RFC 8797's.
    pub(crate) fn with_more(crc: bool, remote_invalidation: bool, more: [&[u8]; 2]) -> Talk {
        let mut talk = Talk { frames: Vec::new(), sequence: [1000, 5000], msn: [[1; 2]; 2], crc };
        talk.segment(CLIENT, &[], 0x02);
        talk.segment(SERVER, &[], 0x12);
        let size = InlineSize::round_down(4096);
        let told = PrivateData { remote_invalidation, send_size: size, receive_size: size }.to_wire();
        for (side, kind) in [(CLIENT, FrameKind::Request), (SERVER, FrameKind::Reply)] {
            let told = [&told[..], more[side]].concat();
            let frame = Frame {
                kind,
                markers: false,
                crc,
                rejected: false,
                large_fpdus: false,
                revision: 2,
                enhanced: Some(Enhanced { peer_to_peer: None, ird: 2, ord: 2 }),
                private_data: &told,
            };
            let mut octets = [0; 64];
            let len = frame.emit(&mut octets).unwrap();
            talk.segment(side, &octets[..len], 0x10);
        }
        talk
    }

    /// A TCP segment. 10.0.0.1 is the client, 10.0.0.2 port 20049 the server.
    pub(crate) fn segment(&mut self, from: usize, payload: &[u8], flags: u8) {
        let ends = [([10, 0, 0, 1], 700u16), ([10, 0, 0, 2], 20049)];
        let (source, destination) = (ends[from], ends[1 - from]);
        let mut octets = vec![0; 12];
        octets.extend([8, 0, 0x45, 0]);
        octets.extend((40 + payload.len() as u16).to_be_bytes());
        octets.extend([0, 0, 0, 0, 64, 6, 0, 0]);
        octets.extend([source.0, destination.0].concat());
        octets.extend([source.1.to_be_bytes(), destination.1.to_be_bytes()].concat());
        octets.extend(self.sequence[from].to_be_bytes());
        octets.extend(self.sequence[1 - from].to_be_bytes());
        octets.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        octets.extend(payload);
        self.sequence[from] += payload.len() as u32 + u32::from(flags & 0x02 != 0);
        let time = Duration::from_millis(self.frames.len() as u64);
        self.frames.push(Kept { time, octets });
    }

    pub(crate) fn fpdu(&mut self, from: usize, ulpdu: &[u8]) {
        let mut octets = vec![0; ulpdu.len() + 16];
        let crc: Option<fn(&[u8]) -> u32> = if self.crc { Some(mpa::crc32c) } else { None };
        let len = mpa::emit_fpdu(ulpdu, crc, &mut octets).unwrap();
        self.segment(from, &octets[..len], 0x18);
    }

    pub(crate) fn untagged(&mut self, from: usize, opcode: Opcode, ulp: u32, payload: &[u8]) {
        let queue = opcode.queue().unwrap();
        let mut msn = 1;
        if let Some(next) = self.msn[from].get_mut(queue as usize) {
            msn = *next;
            *next += 1;
        }
        let header = Untagged { last: true, control: opcode.to_control(), ulp, queue, msn, offset: 0 };
        self.fpdu(from, &[&header.to_wire()[..], payload].concat());
    }

    pub(crate) fn send(&mut self, from: usize, message: &[u8]) {
        self.untagged(from, Opcode::Send, 0, message);
    }

    pub(crate) fn write(&mut self, from: usize, stag: u32, offset: u64, payload: &[u8]) {
        let header = Tagged { last: true, control: Opcode::Write.to_control(), stag, offset };
        self.fpdu(from, &[&header.to_wire()[..], payload].concat());
    }

    /// An RDMA Read, and the answer to it.
    pub(crate) fn read(&mut self, from: usize, stag: u32, offset: u64, payload: &[u8]) {
        self.read_request(from, stag, offset, payload.len() as u32);
        let control = Opcode::ReadResponse.to_control();
        let header = Tagged { last: true, control, stag: 77, offset: 88 };
        self.fpdu(1 - from, &[&header.to_wire()[..], payload].concat());
    }

    pub(crate) fn read_request(&mut self, from: usize, stag: u32, offset: u64, len: u32) {
        let request = RdmapReadRequest {
            sink_stag: 77,
            sink_offset: 88,
            len,
            source_stag: stag,
            source_offset: offset,
        };
        self.untagged(from, Opcode::ReadRequest, 0, &request.to_wire());
    }

    /// A NULL Call and its Reply, so that credits are granted.
    pub(crate) fn greet(mut self) -> Talk {
        self.send(CLIENT, &plain(1, 32, &call(1, 0, &[])));
        self.send(SERVER, &plain(1, 32, &reply(1, &[])));
        self
    }

    /// The rules that are broken.
    pub(crate) fn rules(&self) -> Vec<(&'static str, u64)> {
        rules(&analyze(&self.frames).1)
    }
}

/// A Call of NFSv3.
pub(crate) fn call(xid: u32, procedure: u32, arguments: &[u8]) -> Vec<u8> {
    let words = [xid, 0, 2, 100_003, 3, procedure, 0, 0, 0, 0];
    words.iter().flat_map(|word| word.to_be_bytes()).chain(arguments.iter().copied()).collect()
}

/// A successful Reply.
pub(crate) fn reply(xid: u32, results: &[u8]) -> Vec<u8> {
    let words = [xid, 1, 0, 0, 0, 0];
    words.iter().flat_map(|word| word.to_be_bytes()).chain(results.iter().copied()).collect()
}

pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A message without chunks.
pub(crate) fn plain(xid: u32, credits: u32, payload: &[u8]) -> Vec<u8> {
    let mut message = vec![0; 28 + payload.len()];
    emit_plain(&mut message, xid, credits).unwrap().copy_from_slice(payload);
    message
}

/// A message with chunks.
#[derive(Default)]
pub(crate) struct Chunks<'c> {
    pub(crate) reads: &'c [ReadSegment],
    pub(crate) writes: &'c [&'c [Segment]],
    pub(crate) reply: Option<&'c [Segment]>,
}

pub(crate) fn message(kind: MessageKind, xid: u32, chunks: &Chunks<'_>, payload: &[u8]) -> Vec<u8> {
    let mut buf = vec![0; 4096];
    let mut emitter = Emitter::new(&mut buf, kind, xid, 32).unwrap();
    chunks.reads.iter().try_for_each(|entry| emitter.read_segment(*entry)).unwrap();
    chunks.writes.iter().try_for_each(|chunk| emitter.write_chunk(chunk)).unwrap();
    if let Some(chunk) = chunks.reply {
        emitter.reply_chunk(chunk).unwrap();
    }
    let (len, _) = emitter.finish().unwrap();
    buf.truncate(len);
    buf.extend(payload);
    buf
}

pub(crate) fn segment(handle: u32, length: u32, offset: u64) -> Segment {
    Segment { handle, length, offset }
}
