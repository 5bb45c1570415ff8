//! A server on a TCP port of this machine, and peers of it that write and read octets in the same thread.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use stag_fabric::sim::{FaultPlan, World};
use stag_rpc::EngineConfig;
use stag_wire::record::{MARK_LEN, Mark};
use stag_wire::rpc::{Accepted, CallHeader, OpaqueAuth, ReplyBody, ReplyHeader};
use stag_wire::xdr::{Overflow, Reader, Writer};

use crate::support::Node;
use crate::support::program::{ECHO, PROGRAM, Program, VERSION};

/// How much time passes between two passes of the server.
const TICK: Duration = Duration::from_micros(100);
const PASSES_MAX: usize = 200_000;

pub(crate) fn config() -> EngineConfig {
    EngineConfig { streams_max: 8, ..crate::support::small() }
}

pub(crate) struct Server {
    pub(crate) node: Node<(Program,)>,
    pub(crate) now: Duration,
    pub(crate) address: SocketAddr,
    _world: World,
}

impl Server {
    pub(crate) fn new() -> Server {
        Server::with(config(), 8 << 20)
    }

    pub(crate) fn with(config: EngineConfig, payload_len: usize) -> Server {
        let world = World::new(1, FaultPlan::default());
        let mut node = Node::new(&world, "server", config, payload_len, |memory| {
            (Program::new(memory.pools.payload.clone()),)
        });
        let address = node.engine.listen_tcp("127.0.0.1:0").expect("a port is free");
        Server { node, now: Duration::ZERO, address, _world: world }
    }

    /// Connects a peer, and lets the server take it on or refuse it.
    pub(crate) fn connect(&mut self) -> Peer {
        let stream = TcpStream::connect(self.address).expect("the server listens");
        self.take_on(stream)
    }

    /// As [`Server::connect`], from another address of this machine.
    pub(crate) fn connect_from(&mut self, host: [u8; 4]) -> Peer {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        self.connect_by(socket, host)
    }

    /// As [`Server::connect_from`], with a socket that keeps next to nothing of what the peer does not read.
    pub(crate) fn connect_narrow(&mut self, host: [u8; 4]) -> Peer {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        set_socket_recv_buffer_size(&socket, 4096).expect("a socket");
        self.connect_by(socket, host)
    }

    fn connect_by(&mut self, socket: OwnedFd, host: [u8; 4]) -> Peer {
        bind(&socket, &SocketAddr::from((host, 0))).expect("an address of the loopback interface");
        connect(&socket, &self.address).expect("the server listens");
        self.take_on(TcpStream::from(socket))
    }

    fn take_on(&mut self, stream: TcpStream) -> Peer {
        stream.set_nonblocking(true).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
        let statistics = |server: &Server| {
            let found = server.statistics();
            found.streams_opened + found.streams_refused
        };
        let before = statistics(self);
        self.until(|server| statistics(server) > before);
        Peer { stream, received: Vec::new(), ended: false }
    }

    pub(crate) fn statistics(&self) -> &stag_rpc::Statistics {
        self.node.engine.statistics()
    }

    pub(crate) fn pass(&mut self) {
        self.now += TICK;
        self.node.poll(self.now);
    }

    #[track_caller]
    pub(crate) fn until(&mut self, mut done: impl FnMut(&mut Server) -> bool) {
        for _ in 0..PASSES_MAX {
            if done(self) {
                return;
            }
            self.pass();
        }
        panic!("what was awaited did not happen in {PASSES_MAX} passes");
    }

    /// Lets so much time pass, in few steps: deadlines come, octets hardly.
    pub(crate) fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += Duration::from_millis(500);
            self.node.poll(self.now);
        }
    }

    /// Makes a Call, and returns the whole Reply.
    #[track_caller]
    pub(crate) fn exchange(&mut self, peer: &mut Peer, octets: &[u8]) -> Vec<u8> {
        self.send(peer, octets);
        self.reply(peer)
    }

    /// Writes all of `octets`, while the server reads.
    #[track_caller]
    pub(crate) fn send(&mut self, peer: &mut Peer, octets: &[u8]) {
        let mut rest = octets;
        self.until(|_| {
            rest = &rest[peer.write(rest)..];
            // So that neither side's buffers fill up.
            peer.read();
            rest.is_empty()
        });
    }

    /// The next record that the server sends.
    #[track_caller]
    pub(crate) fn reply(&mut self, peer: &mut Peer) -> Vec<u8> {
        let mut found = None;
        self.until(|_| {
            found = peer.record();
            found.is_some()
        });
        found.expect("just seen")
    }

    /// The server has ended the connection.
    #[track_caller]
    pub(crate) fn assert_closed(&mut self, peer: &mut Peer) {
        self.until(|_| {
            peer.read();
            peer.ended
        });
    }

    /// An echo comes back on a connection of its own.
    #[track_caller]
    pub(crate) fn check_alive(&mut self) {
        let mut peer = self.connect();
        self.check_echo(&mut peer);
    }

    #[track_caller]
    pub(crate) fn check_echo(&mut self, peer: &mut Peer) {
        let reply = self.exchange(peer, &record(&call(7, ECHO, |writer| writer.opaque(b"alive?"))));
        assert_eq!(results(&reply, 7), crate::support::opaque(b"alive?"));
    }

    /// The end of a test: stops the server, and sees that nothing is left.
    #[track_caller]
    pub(crate) fn close(mut self) {
        use stag_runtime::Poller;
        self.node.engine.services_mut().0.release();
        for _ in 0..100 {
            self.pass();
        }
        let now = self.now;
        self.node.engine.stop(now);
        self.until(|server| server.node.engine.is_drained());
        let statistics = *self.statistics();
        assert_eq!(statistics.streams_opened, statistics.streams_closed);
        // What connections share is kept for the next one, while the engine lives.
        let Node { engine, memory, .. } = self.node;
        drop(engine);
        assert_eq!(memory.ledger.outstanding(), 0, "{}", memory.ledger);
    }
}

/// The other end of one connection.
pub(crate) struct Peer {
    stream: TcpStream,
    received: Vec<u8>,
    /// The server has closed it.
    pub(crate) ended: bool,
}

impl Peer {
    /// Writes what the socket takes.
    pub(crate) fn write(&mut self, octets: &[u8]) -> usize {
        match self.stream.write(octets) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(_) => {
                self.ended = true;
                octets.len()
            }
        }
    }

    /// Reads all octets that arrived.
    pub(crate) fn read(&mut self) {
        let mut buf = [0; 1 << 16];
        loop {
            match self.stream.read(&mut buf) {
                Ok(0) => self.ended = true,
                Ok(count) => {
                    self.received.extend(&buf[..count]);
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => self.ended = true,
            }
            return;
        }
    }

    /// The next record, if all of it is there. The server sends one fragment.
    pub(crate) fn record(&mut self) -> Option<Vec<u8>> {
        self.read();
        let mark = Mark::from_bytes(*self.received.first_chunk()?);
        assert!(mark.is_last, "the server cuts no records");
        let end = MARK_LEN + mark.len as usize;
        let record = self.received.get(MARK_LEN..end)?.to_vec();
        self.received.drain(..end);
        Some(record)
    }

    /// Says that no more will come.
    pub(crate) fn finish(&mut self) {
        self.stream.shutdown(std::net::Shutdown::Write).expect("it is open");
    }

    /// Ends the connection with something unread, if the server has sent it: that resets it.
    pub(crate) fn abort(self) {
        let mut octet = [0];
        while self.stream.peek(&mut octet).is_err() {
            std::thread::yield_now();
        }
    }

    pub(crate) fn has_octets(&mut self) -> bool {
        self.read();
        !self.received.is_empty()
    }
}

/// A Call without its mark.
pub(crate) fn call(
    xid: u32,
    procedure: u32,
    encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
) -> Vec<u8> {
    let mut octets = vec![0; 2 << 20];
    let mut writer = Writer::new(&mut octets);
    let (credential, verifier) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
    let header = CallHeader { xid, program: PROGRAM, version: VERSION, procedure, credential, verifier };
    header.emit(&mut writer).expect("room enough");
    encode(&mut writer).expect("room enough");
    let len = writer.position();
    octets.truncate(len);
    octets
}

/// A record in one fragment.
pub(crate) fn record(octets: &[u8]) -> Vec<u8> {
    [&Mark::whole(octets.len() as u32).to_bytes(), octets].concat()
}

/// A record in fragments of at most `len` octets.
pub(crate) fn fragments(octets: &[u8], len: usize) -> Vec<u8> {
    let count = octets.len().div_ceil(len);
    let mut all = Vec::new();
    for (index, fragment) in octets.chunks(len).enumerate() {
        all.extend(Mark { len: fragment.len() as u32, is_last: index + 1 == count }.to_bytes());
        all.extend(fragment);
    }
    all
}

/// What a Reply says became of the Call.
#[track_caller]
pub(crate) fn outcome(reply: &[u8], xid: u32) -> Accepted {
    let header = ReplyHeader::parse(&mut Reader::new(reply)).expect("a Reply");
    assert_eq!(header.xid, xid);
    match header.body {
        ReplyBody::Accepted { outcome, .. } => outcome,
        ReplyBody::Denied(denied) => panic!("denied: {denied:?}"),
    }
}

/// The results of a Reply that says success.
#[track_caller]
pub(crate) fn results(reply: &[u8], xid: u32) -> Vec<u8> {
    assert_eq!(outcome(reply, xid), Accepted::Success);
    reply[stag_wire::rpc::REPLY_HEADER_LEN_MIN..].to_vec()
}
