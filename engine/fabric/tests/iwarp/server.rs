//! A provider that accepts every client, and a peer that says whatever the test wants.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use stag_fabric::iwarp::{Iwarp, IwarpConfig, IwarpCounters};
use stag_fabric::{
    Completed, Completion, DisconnectReason, Event, Exposed, Handle, Provider, QueuePairCapacity,
    QueuePairId, SendRequest,
};
use stag_memory::{Arena, ArenaConfig, Budget, PageChoice, PageSize, Pool};
use stag_wire::mpa::{self, Enhanced, Fpdu, Frame, FrameKind};
use stag_wire::rdmap::{Cause, Opcode, Terminate};
use stag_wire::{ddp, rdmap};

/// Bytes of a posted Receive.
pub(crate) const MESSAGE: usize = 1024;

pub(crate) const CAPACITY: QueuePairCapacity = QueuePairCapacity {
    receives: 8,
    sends: 8,
    exposures: 4,
    send_len_max: MESSAGE as u32,
    receive_len_max: MESSAGE as u32,
    receive_targets: 0,
};

/// Passes that any wait may take. A bound against hanging, not a time that a test relies on.
const PASSES_MAX: u32 = 1_000_000;

/// A provider, its memory, and what happened on it.
pub(crate) struct Server {
    pub(crate) iwarp: Iwarp,
    pub(crate) now: Duration,
    pub(crate) messages: Pool,
    pub(crate) pages: Pool,
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) requests: Vec<Event>,
    pub(crate) established: Vec<QueuePairId>,
    pub(crate) ended: Vec<(QueuePairId, DisconnectReason)>,
    /// Whether requests are accepted as they come.
    pub(crate) accepts: bool,
    pub(crate) address: SocketAddr,
    scratch: VecDeque<Completion>,
}

impl Server {
    pub(crate) fn new(config: IwarpConfig) -> Server {
        let budget = Budget::new(64 << 20);
        let page = PageChoice::Size(PageSize::Base);
        let arena = ArenaConfig { name: "server", len: 4 << 20, page, node: None, budget: &budget };
        let arena = Arena::new(&arena).expect("4 MiB of base pages");
        let messages = Pool::fixed(&arena, "messages", MESSAGE, 1024).expect("a megabyte");
        let pages = Pool::runs(&arena, "pages", 4096, 512).expect("two megabytes");
        let mut iwarp = Iwarp::open(config).expect("TCP needs nothing special");
        iwarp.register(&arena).expect("an arena can be registered");
        let listener = iwarp.listen("127.0.0.1:0").expect("the system finds a port");
        let address = iwarp.listener_address(listener).expect("it listens");
        Server {
            iwarp,
            now: Duration::ZERO,
            messages,
            pages,
            completions: VecDeque::new(),
            requests: Vec::new(),
            established: Vec::new(),
            ended: Vec::new(),
            accepts: true,
            address,
            scratch: VecDeque::with_capacity(64),
        }
    }

    pub(crate) fn counters(&self) -> IwarpCounters {
        *self.iwarp.counters()
    }

    /// One pass, as a reactor does it.
    pub(crate) fn pass(&mut self) {
        self.now += Duration::from_micros(40);
        self.iwarp.ring_doorbells();
        self.iwarp.poll(self.now, &mut self.scratch, 64);
        self.completions.append(&mut self.scratch);
        while let Some(event) = self.iwarp.poll_event() {
            match event {
                Event::ConnectRequest { request, .. } if self.accepts => {
                    let pair = self.iwarp.prepare(request, CAPACITY).expect("there is room");
                    assert_eq!(self.iwarp.local_address(pair), Some(self.address));
                    for id in 0..u64::from(CAPACITY.receives) {
                        let buf = self.messages.take().expect("the pool is large enough");
                        self.iwarp.post_receive(pair, id, buf).expect("within the capacity");
                    }
                    self.iwarp.accept(pair, b"").expect("just prepared");
                }
                Event::ConnectRequest { .. } => self.requests.push(event),
                Event::Established { queue_pair, .. } => self.established.push(queue_pair),
                Event::Disconnected { queue_pair, reason } => self.ended.push((queue_pair, reason)),
                _ => {}
            }
        }
    }

    /// Passes until `done` gives something.
    pub(crate) fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Server) -> Option<T>) -> T {
        for _ in 0..PASSES_MAX {
            if let Some(value) = done(self) {
                return value;
            }
            self.pass();
        }
        panic!("never happened: {what}; {:?}; ended: {:?}", self.counters(), self.ended);
    }

    /// A message that arrived.
    pub(crate) fn message(&mut self, pair: QueuePairId) -> Vec<u8> {
        self.until("a message arrives", |server| {
            let is = |c: &Completion| {
                c.queue_pair == pair && c.result.is_ok() && matches!(c.completed, Completed::Receive { .. })
            };
            let at = server.completions.iter().position(is)?;
            match server.completions.remove(at)?.completed {
                Completed::Receive { buf, .. } => Some(buf.to_vec()),
                _ => None,
            }
        })
    }

    /// Sends a message.
    pub(crate) fn send(&mut self, pair: QueuePairId, message: &[u8]) {
        let mut buf = self.messages.take_len(message.len()).expect("the pool is large enough");
        buf.copy_from_slice(message);
        let request = SendRequest { id: 0, buf, invalidate: None, signaled: false };
        self.iwarp.post_send(pair, request).expect("within the capacity");
    }

    /// Exposes memory to be written: `len` octets of 0x77.
    pub(crate) fn expose_write(&mut self, pair: QueuePairId, len: usize) -> Handle {
        let mut buf = self.pages.take_len(len).expect("the pool is large enough");
        buf.fill(0x77);
        self.iwarp.expose(pair, Exposed::Write(buf)).expect("within the capacity").handle
    }

    /// Exposes memory to be read: `len` octets of 0x55.
    pub(crate) fn expose_read(&mut self, pair: QueuePairId, len: usize) -> Handle {
        let mut buf = self.pages.take_len(len).expect("the pool is large enough");
        buf.fill(0x55);
        self.iwarp.expose(pair, Exposed::Read(buf.share())).expect("within the capacity").handle
    }

    /// Why a queue pair ended.
    pub(crate) fn end(&mut self, pair: QueuePairId) -> DisconnectReason {
        self.until("the queue pair ends", |server| {
            server.ended.iter().find(|(ended, _)| *ended == pair).map(|(_, reason)| reason.clone())
        })
    }

    /// All memory is back: to be asked when all queue pairs have ended.
    pub(crate) fn check_memory(&mut self) {
        self.completions.clear();
        assert_eq!(self.messages.outstanding() + self.pages.outstanding(), 0, "all memory came back");
    }
}

/// What the other end says first: as a Linux client, but with CRC.
pub(crate) const REQUEST: Frame<'static> = Frame {
    kind: FrameKind::Request,
    markers: false,
    crc: true,
    rejected: false,
    large_fpdus: false,
    revision: 2,
    enhanced: Some(Enhanced { peer_to_peer: None, ird: 4, ord: 4 }),
    private_data: &[],
};

/// The octets of a frame.
pub(crate) fn octets(frame: &Frame<'_>) -> Vec<u8> {
    let mut octets = vec![0; mpa::FRAME_LEN_MAX];
    let len = frame.emit(&mut octets).expect("it is not too long");
    octets.truncate(len);
    octets
}

/// A peer that the test speaks for.
pub(crate) struct Peer {
    pub(crate) socket: TcpStream,
    /// What came and was not looked at.
    pub(crate) received: Vec<u8>,
    pub(crate) is_closed: bool,
    send_msn: u32,
}

impl Peer {
    /// A TCP connection, and nothing more.
    pub(crate) fn new(server: &Server) -> Peer {
        Peer::of(TcpStream::connect(server.address).expect("it listens"))
    }

    /// What came in at a listener of the test.
    pub(crate) fn of(socket: TcpStream) -> Peer {
        socket.set_nonblocking(true).expect("a socket can be");
        socket.set_nodelay(true).expect("a socket can be");
        Peer { socket, received: Vec::new(), is_closed: false, send_msn: 1 }
    }

    /// A connection that is established, with the reply to its request.
    pub(crate) fn connect_with(server: &mut Server, request: &Frame<'_>) -> (Peer, QueuePairId, Vec<u8>) {
        let mut peer = Peer::new(server);
        let before = server.established.len();
        peer.say(&octets(request));
        let reply = peer.frame(server);
        let pair = server.until("established", |server| server.established.get(before).copied());
        (peer, pair, reply)
    }

    /// A connection that is established.
    pub(crate) fn connect(server: &mut Server) -> (Peer, QueuePairId) {
        let (peer, pair, _) = Peer::connect_with(server, &REQUEST);
        (peer, pair)
    }

    /// Sends octets. What they are for is small: the socket takes it.
    pub(crate) fn say(&mut self, octets: &[u8]) {
        self.socket.write_all(octets).expect("the socket takes it");
    }

    /// As [`Peer::say`], to a server that may have closed.
    pub(crate) fn try_say(&mut self, octets: &[u8]) -> bool {
        self.socket.write_all(octets).is_ok()
    }

    /// Takes what came.
    pub(crate) fn listen(&mut self) {
        let mut octets = [0; 4096];
        loop {
            match self.socket.read(&mut octets) {
                Ok(0) => {
                    self.is_closed = true;
                    return;
                }
                Ok(count) => self.received.extend_from_slice(&octets[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.is_closed = true;
                    return;
                }
            }
        }
    }

    /// The frame that comes.
    pub(crate) fn frame(&mut self, server: &mut Server) -> Vec<u8> {
        server.until("a frame comes", |_| {
            self.listen();
            let (_, rest) = Frame::parse(&self.received).ok()?;
            let len = self.received.len() - rest.len();
            Some(self.received.drain(..len).collect())
        })
    }

    /// The ULPDU of the FPDU that comes.
    pub(crate) fn ulpdu(&mut self, server: &mut Server) -> Vec<u8> {
        server.until("an FPDU comes", |_| {
            self.listen();
            let (fpdu, rest) = Fpdu::parse(&self.received).ok()?;
            assert!(fpdu.is_intact() || fpdu.crc == 0);
            let (ulpdu, len) = (fpdu.ulpdu.to_vec(), self.received.len() - rest.len());
            self.received.drain(..len);
            Some(ulpdu)
        })
    }

    /// Waits for the server to close, after which nothing more comes. It may have said something before.
    pub(crate) fn closed(&mut self, server: &mut Server) {
        server.until("the server closes", |_| {
            self.listen();
            self.is_closed.then_some(())
        });
    }

    /// Waits for a Terminate, and for the end; returns what it says.
    pub(crate) fn terminated(&mut self, server: &mut Server) -> (Cause, Option<ddp::DdpHeader>) {
        let terminate = loop {
            let ulpdu = self.ulpdu(server);
            if ulpdu[1] == Opcode::Terminate.to_control() {
                break ulpdu;
            }
        };
        // 5040-g: one message of one segment, the first of its queue, and nothing behind it.
        let (header, payload) = ddp::DdpHeader::parse(&terminate).expect("it is a segment");
        let ddp::DdpHeader::Untagged(header) = header else { panic!("a Terminate is untagged") };
        assert_eq!((header.queue, header.msn, header.offset, header.last), (2, 1, 0, true));
        self.closed(server);
        assert!(self.received.is_empty(), "nothing comes behind a Terminate");
        let terminate = Terminate::parse(payload).expect("it says something");
        (terminate.cause, terminate.header)
    }

    /// The FPDU of a Send, the next one.
    pub(crate) fn send(&mut self, message: &[u8]) -> Vec<u8> {
        let fpdu = untagged(Opcode::Send, 0, self.send_msn, 0, true, message);
        self.send_msn += 1;
        fpdu
    }
}

/// An FPDU with its CRC.
pub(crate) fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut octets = vec![0; mpa::fpdu_len(ulpdu.len())];
    mpa::emit_fpdu(ulpdu, Some(mpa::crc32c), &mut octets).expect("it fits");
    octets
}

/// The FPDU of an untagged segment, in the queue of its opcode.
pub(crate) fn untagged(
    opcode: Opcode,
    ulp: u32,
    msn: u32,
    offset: u32,
    last: bool,
    payload: &[u8],
) -> Vec<u8> {
    let queue = opcode.queue().expect("it is untagged");
    let header = ddp::Untagged { last, control: opcode.to_control(), ulp, queue, msn, offset };
    fpdu(&[&header.to_wire()[..], payload].concat())
}

/// The FPDU of a tagged segment.
pub(crate) fn tagged(opcode: Opcode, stag: u32, offset: u64, last: bool, payload: &[u8]) -> Vec<u8> {
    let header = ddp::Tagged { last, control: opcode.to_control(), stag, offset };
    fpdu(&[&header.to_wire()[..], payload].concat())
}

/// The FPDU of a Read Request.
pub(crate) fn read_request(msn: u32, stag: u32, offset: u64, len: u32) -> Vec<u8> {
    let request = rdmap::RdmapReadRequest {
        sink_stag: 0x99,
        sink_offset: 0,
        len,
        source_stag: stag,
        source_offset: offset,
    };
    untagged(Opcode::ReadRequest, 0, msn, 0, true, &request.to_wire())
}
