//! A scripted iWARP client over a plain TCP socket. It only answers RDMA Reads from the memory that a Call exposes, and
//! takes RDMA Writes into it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use stag_wire::ddp::{self, Tagged, Untagged};
use stag_wire::mpa::{self, Enhanced, Fpdu, Frame, FrameKind, ReadyToReceive};
use stag_wire::rdmap::{Opcode, READ_REQUEST_LEN, RdmapReadRequest};
use stag_wire::rpcrdma::{Direction, Header, Segment};

/// Octets of an FPDU's payload: fits a segment of Ethernet, as siw's do.
const PIECE: usize = 1400;

/// How a captured client set its connection up.
#[derive(Clone, Debug)]
pub(crate) struct SetUp {
    pub(crate) crc: bool,
    pub(crate) ird: u16,
    pub(crate) ord: u16,
    /// It sent an RDMA Write without octets first.
    pub(crate) peer_to_peer: bool,
    pub(crate) private_data: Vec<u8>,
}

/// Memory that a Call exposes: one segment.
pub(crate) struct Exposed {
    pub(crate) segment: Segment,
    pub(crate) octets: Vec<u8>,
    /// The peer may write; otherwise it may read.
    pub(crate) writable: bool,
}

pub(crate) struct Peer {
    socket: TcpStream,
    buffer: Vec<u8>,
    crc: bool,
    /// The next message of each queue.
    msn: [u32; 2],
}

impl Peer {
    /// Connects, and goes through MPA's set-up.
    pub(crate) fn connect(address: &str, set_up: &SetUp) -> Peer {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(stag_testing::patience(Duration::from_secs(20)))).unwrap();
        let ready = ReadyToReceive { write: true, ..ReadyToReceive::default() };
        let request = Frame {
            kind: FrameKind::Request,
            markers: false,
            crc: set_up.crc,
            rejected: false,
            large_fpdus: false,
            revision: 2,
            enhanced: Some(Enhanced {
                peer_to_peer: set_up.peer_to_peer.then_some(ready),
                ird: set_up.ird,
                ord: set_up.ord,
            }),
            private_data: &set_up.private_data,
        };
        let mut octets = [0; mpa::FRAME_LEN_MAX];
        let len = request.emit(&mut octets).unwrap();
        let mut peer = Peer { socket, buffer: Vec::new(), crc: set_up.crc, msn: [1; 2] };
        peer.socket.write_all(&octets[..len]).unwrap();
        loop {
            if let Ok((reply, rest)) = Frame::parse(&peer.buffer) {
                assert!(reply.kind == FrameKind::Reply && !reply.rejected && !reply.markers);
                peer.crc |= reply.crc;
                peer.buffer = rest.to_vec();
                break;
            }
            peer.receive();
        }
        if set_up.peer_to_peer {
            let header = Tagged { last: true, control: Opcode::Write.to_control(), stag: 1, offset: 0 };
            peer.fpdu(&header.to_wire(), &[]);
        }
        peer
    }

    fn receive(&mut self) {
        let mut piece = [0; 65536];
        let len = self.socket.read(&mut piece).expect("an answer of the server");
        assert!(len > 0, "the server closed the connection");
        self.buffer.extend_from_slice(&piece[..len]);
    }

    fn fpdu(&mut self, header: &[u8], payload: &[u8]) {
        let ulpdu = [header, payload].concat();
        let mut octets = vec![0; mpa::fpdu_len(ulpdu.len())];
        let crc: Option<fn(&[u8]) -> u32> = if self.crc { Some(mpa::crc32c) } else { None };
        mpa::emit_fpdu(&ulpdu, crc, &mut octets).unwrap();
        self.socket.write_all(&octets).unwrap();
    }

    fn send(&mut self, message: &[u8]) {
        let msn = self.msn[0];
        self.msn[0] += 1;
        let count = message.len().div_ceil(PIECE).max(1);
        for index in 0..count {
            let start = index * PIECE;
            let header = Untagged {
                last: index + 1 == count,
                control: Opcode::Send.to_control(),
                ulp: 0,
                queue: 0,
                msn,
                offset: start as u32,
            };
            let end = message.len().min(start + PIECE);
            self.fpdu(&header.to_wire(), &message[start..end]);
        }
    }

    /// Sends a Call, lets the server at `memory`, and returns the Reply. Calls of the server are not answered.
    pub(crate) fn call(&mut self, message: &[u8], memory: &mut [Exposed]) -> Vec<u8> {
        self.send(message);
        let mut reply = Vec::new();
        loop {
            let Some((ulpdu, rest)) = self.next_fpdu() else {
                self.receive();
                continue;
            };
            self.buffer = rest;
            let (header, payload) = ddp::DdpHeader::parse(&ulpdu).expect("a DDP segment");
            match header {
                ddp::DdpHeader::Tagged(header) => {
                    assert_eq!(Opcode::from_control(header.control), Ok(Opcode::Write));
                    let (exposed, at) = find(memory, header.stag, header.offset, payload.len(), true);
                    exposed.octets[at..at + payload.len()].copy_from_slice(payload);
                }
                ddp::DdpHeader::Untagged(header) => {
                    match Opcode::from_control(header.control).expect("RDMAP") {
                        Opcode::ReadRequest => {
                            let wire: [u8; READ_REQUEST_LEN] = payload.try_into().expect("a Read Request");
                            self.answer_read(&RdmapReadRequest::from_wire(wire), memory);
                        }
                        Opcode::Terminate => panic!("the server ends the connection: {payload:02x?}"),
                        _ => {
                            assert_eq!(header.offset as usize, reply.len());
                            reply.extend_from_slice(payload);
                            if header.last && !is_call(&reply) {
                                return reply;
                            }
                            if header.last {
                                reply.clear();
                            }
                        }
                    }
                }
            }
        }
    }

    /// Takes an FPDU off what was received.
    fn next_fpdu(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let (fpdu, rest) = Fpdu::parse(&self.buffer).ok()?;
        assert!(!self.crc || fpdu.is_intact(), "5044-4.4-a");
        Some((fpdu.ulpdu.to_vec(), rest.to_vec()))
    }

    fn answer_read(&mut self, request: &RdmapReadRequest, memory: &mut [Exposed]) {
        let len = request.len as usize;
        let (exposed, at) = find(memory, request.source_stag, request.source_offset, len, false);
        let octets = exposed.octets[at..at + len].to_vec();
        let count = len.div_ceil(PIECE).max(1);
        for index in 0..count {
            let start = index * PIECE;
            let header = Tagged {
                last: index + 1 == count,
                control: Opcode::ReadResponse.to_control(),
                stag: request.sink_stag,
                offset: request.sink_offset + start as u64,
            };
            self.fpdu(&header.to_wire(), &octets[start..len.min(start + PIECE)]);
        }
    }
}

fn is_call(message: &[u8]) -> bool {
    let (header, payload) = Header::parse(message).expect("a message");
    header.direction(payload) == Some(Direction::Call)
}

/// Finds the exposed segment that an operation may use (8166-4.4.3-a).
fn find(memory: &mut [Exposed], handle: u32, offset: u64, len: usize, write: bool) -> (&mut Exposed, usize) {
    let exposed =
        memory.iter_mut().find(|exposed| exposed.segment.handle == handle).expect("a handle of the Call");
    assert_eq!(exposed.writable, write, "8166-2.3.2-e");
    let at = offset.checked_sub(exposed.segment.offset).expect("8166-4.4.3-a") as usize;
    assert!(at + len <= exposed.octets.len(), "8166-4.4.3-a");
    (exposed, at)
}
