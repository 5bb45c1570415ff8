//! Peers that do not keep to the rules of reliable reply: clients that never tell, or tell too much; servers that expose what
//! they must not.

use std::time::Duration;

use stag_fabric::sim::{FaultPlan, World};
use stag_fabric::{DisconnectReason, Handle, RemoteSegment, WorkError};
use stag_rpc::{CallError, Chunks, ClientPolicy, CloseReason, ConnectionEvent, EngineConfig, Request};
use stag_wire::reliable_reply::ReliableReply;
use stag_wire::rpcrdma::{Header, MessageProcedure};

use super::{EXPOSED, config, unknown};
use crate::ends::{Asking, Served};
use crate::raw::{octets, word};
use crate::support::program::{BIG, ECHO, PROGRAM, VERSION, pattern};
use crate::support::{Ended, opaque, request, small, words};

const NOMSG: u32 = 1;
const DONE: u32 = 3;

/// What a client says that pulls.
fn pulls() -> Vec<u8> {
    ReliableReply { pulls: true, exposes: false, done_receives: 0 }.to_wire().to_vec()
}

/// The private data of a server that exposes Replies, with this number of Receives for RDMA_DONE.
fn exposes(done_receives: u16) -> Vec<u8> {
    ReliableReply { pulls: false, exposes: true, done_receives }.to_wire().to_vec()
}

impl Served {
    /// A server that exposes Replies.
    fn new(block: Vec<u8>) -> Served {
        let server = EngineConfig { inline_threshold: 4096, ..config() };
        Served::connected(World::new(1, FaultPlan::default()), server, block)
    }

    /// Asks for a result of `len` octets, without any chunk.
    fn ask(&mut self, xid: u32, len: u32) {
        let rpc = [xid, 0, 2, PROGRAM, VERSION, BIG, 0, 0, 0, 0, xid, len];
        let message = [octets(&[xid, 1, 8, 0, 0, 0, 0]), octets(&rpc)].concat();
        assert!(self.raw.send(&message, None), "the connection is there");
    }

    /// Waits for the Reply that the server exposes, and returns its segments.
    #[track_caller]
    fn exposed(&mut self, xid: u32) -> Vec<(RemoteSegment, u32)> {
        self.run(|served| !served.raw.messages.is_empty());
        let message = self.raw.messages.remove(0);
        let (header, rest) = Header::parse(&message).expect("a header");
        assert_eq!((header.xid(), header.procedure(), rest.len()), (xid, MessageProcedure::Nomsg, 0));
        let segment = |entry: stag_wire::rpcrdma::ReadSegment| {
            assert_eq!(entry.position, 0, "RR-4.1-c");
            let at = RemoteSegment { handle: Handle(entry.segment.handle), offset: entry.segment.offset };
            (at, entry.segment.length)
        };
        header.read_list().map(segment).collect()
    }

    fn tell(&mut self, xid: u32, invalidate: Option<Handle>) {
        self.raw.send(&octets(&[xid, 1, 8, DONE]), invalidate);
    }

    /// Reads what was exposed for a Call that asked for `len` octets.
    #[track_caller]
    fn check_read(&mut self, xid: u32, segments: &[(RemoteSegment, u32)], len: u32) {
        let mut payload = Vec::new();
        for (source, len) in segments {
            self.raw.post_read(*source, *len);
            self.run(|served| !served.raw.read.is_empty());
            payload.extend(self.raw.read.remove(0));
        }
        assert!(payload[24..] == opaque(&pattern(xid, len as usize)), "what was exposed is the Reply");
    }

    fn statistics(&self) -> (u64, u64, u64) {
        let found = self.bench.server.engine.statistics();
        (found.replies_exposed, found.replies_taken, found.exposures_expired)
    }
}

/// RR-P-3, RR-P-4: a client that does not ask for it sees nothing of it.
#[test]
fn private_data_tell_it_to_who_asks() {
    for (block, expected) in
        [(pulls(), 16), (Vec::new(), 8), (exposes(3), 8), (b"Stag\x02\x01\0\0".to_vec(), 8)]
    {
        let mut served = Served::new(block);
        assert_eq!(served.raw.peer_private_data.len(), expected);
        let found = ReliableReply::find(&served.raw.peer_private_data);
        let announced = ReliableReply { pulls: false, exposes: true, done_receives: EXPOSED as u16 };
        assert_eq!(found, (expected == 16).then_some(announced));
        served.ask(1, 20_000);
        served.run(|served| !served.raw.messages.is_empty());
        let is_exposed = word(&served.raw.messages.remove(0), 3) == NOMSG;
        assert_eq!(is_exposed, expected == 16);
        served.close();
    }
}

/// RR-4.1.3-a, RR-4.1.3-d, RR-X-2: what an RDMA_DONE says that matches nothing is dropped, as often as it comes.
#[test]
fn done_is_taken_once_and_dropped_else() {
    let mut served = Served::new(pulls());
    for round in 0..50 {
        let xid = 100 + round;
        served.tell(xid, None);
        served.ask(xid, 20_000);
        let segments = served.exposed(xid);
        served.tell(xid + 1000, None);
        served.check_read(xid, &segments, 20_000);
        served.tell(xid, None);
        served.tell(xid, None);
        served.run(|served| served.statistics() == (u64::from(round) + 1, u64::from(round) + 1, 0));
    }
    // More of them than there are Receives: each is posted again.
    for xid in 0..200 {
        served.tell(xid, None);
        served.run_for(Duration::from_millis(1));
    }
    served.ask(7, 100);
    served.run(|served| !served.raw.messages.is_empty());
    served.close();
}

/// RR-4.1.3-b: where the Calls wait because results are untaken, what ends that does not wait with them.
#[test]
fn done_overtakes_calls_that_wait_for_it() {
    let mut served = Served::new(pulls());
    // Together more than a client may leave untaken.
    for xid in 1..=EXPOSED + 3 {
        served.ask(xid, 900_000);
    }
    for xid in 1..=EXPOSED + 3 {
        let segments = served.exposed(xid);
        served.check_read(xid, &segments, 900_000);
        served.tell(xid, None);
    }
    served.close();
}

/// RR-4.1.3-f, RR-P-11: a Reply without an RDMA_DONE is revoked; its place is free when RDMA_DONE comes.
#[test]
fn replies_without_a_done_are_revoked() {
    let mut served = Served::new(pulls());
    let timeout = served.bench.server.engine.config().peer_timeout;
    let mut exposed = Vec::new();
    for xid in 1..=EXPOSED {
        served.ask(xid, 20_000);
        exposed.push(served.exposed(xid));
    }
    served.run_for(timeout + Duration::from_secs(1));
    let count = u64::from(EXPOSED);
    assert_eq!(served.statistics(), (count, 0, count));
    let held = served.bench.server.memory.pools.payload.outstanding();
    assert_eq!(held, 0, "its memory is back");
    // All places wait for RDMA_DONE, and so does the next Reply.
    served.ask(50, 20_000);
    served.run_for(Duration::from_secs(1));
    assert!(served.raw.messages.is_empty());
    served.tell(2, None);
    let segments = served.exposed(50);
    served.check_read(50, &segments, 20_000);
    // What was revoked cannot be read any more: the connection ends.
    served.raw.post_read(exposed[0][0].0, 100);
    served.run(|served| served.raw.closed.is_some());
    served.bench.check_alive(0);
    served.bench.close();
}

/// RR-P-9: a client that has all places, and tells of none, is cut off when it has had its time.
#[test]
fn who_never_tells_is_cut_off() {
    let mut served = Served::new(pulls());
    for xid in 1..=EXPOSED + 1 {
        served.ask(xid, 20_000);
    }
    let timeout = served.bench.server.engine.config().peer_timeout;
    served.run_for(3 * timeout);
    assert!(served.raw.closed.is_some(), "it is cut off");
    assert_eq!(served.bench.server.engine.statistics().peers_stuck, 1);
    served.bench.check_alive(0);
    served.bench.close();
}

/// RR-4.1.4-c: an RDMA_DONE, or another message, that invalidates what it must not.
#[test]
fn what_must_not_be_invalidated() {
    for is_done in [true, false] {
        let mut served = Served::new(pulls());
        served.ask(1, 20_000);
        served.ask(2, 20_000);
        let (_, second) = (served.exposed(1), served.exposed(2));
        let foreign = Some(second[0].0.handle);
        if is_done {
            served.tell(1, foreign);
        } else {
            let rpc = [3, 0, 2, PROGRAM, VERSION, 0, 0, 0, 0, 0];
            served.raw.send(&[octets(&[3, 1, 8, 0, 0, 0, 0]), octets(&rpc)].concat(), foreign);
        }
        served.run(|served| served.raw.closed.is_some());
        assert_eq!(served.bench.server.engine.statistics().violations, 1);
        served.bench.check_alive(0);
        served.bench.close();
    }
}

/// A new Call has the xid of a Reply that is exposed: its sender does not need that one any more.
#[test]
fn a_call_with_the_same_xid_revokes_the_reply() {
    let mut served = Served::new(pulls());
    served.ask(1, 20_000);
    let first = served.exposed(1);
    served.ask(1, 30_000);
    let second = served.exposed(1);
    served.check_read(1, &second, 30_000);
    served.tell(1, None);
    served.tell(1, None);
    served.run(|served| served.statistics() == (2, 2, 0));
    served.raw.post_read(first[0].0, 100);
    served.run(|served| served.raw.closed.is_some());
    served.bench.check_alive(0);
    served.bench.close();
}

impl Asking {
    /// A client that pulls.
    fn new(block: Vec<u8>, client: EngineConfig) -> Asking {
        let world = World::new(1, FaultPlan::default());
        Asking::connected(world, client, ClientPolicy::default(), block)
    }

    /// Begins a Call, and returns its xid.
    #[track_caller]
    fn call(&mut self, timeout: Duration) -> u32 {
        let request = Request { timeout, ..unknown(ECHO) };
        let mut chunks = Chunks::default();
        let begun =
            self.client.engine.call(self.connection, &request, &mut chunks, |writer| writer.opaque(b"text"));
        begun.expect("a credit");
        self.run(|asking| asking.raw.messages.iter().any(|message| word(message, 3) != DONE));
        let at = self.raw.messages.iter().position(|message| word(message, 3) != DONE);
        let call = self.raw.messages.remove(at.expect("just seen"));
        assert_eq!(call[16..28], [0; 12], "it has no chunks");
        word(&call, 0)
    }

    /// The Reply with this xid, exposed in these segments: Position, handle, length.
    fn expose(&mut self, xid: u32, segments: &[(u32, u32, u32, u64)]) {
        let mut message = vec![xid, 1, 8, NOMSG];
        for &(position, handle, length, offset) in segments {
            message.extend([1, position, handle, length, (offset >> 32) as u32, offset as u32]);
        }
        message.extend([0, 0, 0]);
        self.raw.send(&octets(&message), None);
    }

    /// As [`Asking::expose`], with segments of new memory: RDMA_DONE invalidates its handle.
    fn expose_anew(&mut self, xid: u32, segments: &[(u32, u32)]) {
        let source = self.raw.expose_filled(4096, 1).expect("memory");
        let segment = |&(position, length)| (position, source.handle.0, length, source.offset);
        self.expose(xid, &segments.iter().map(segment).collect::<Vec<_>>());
    }

    /// Waits for the RDMA_DONE with this xid.
    #[track_caller]
    fn done(&mut self, xid: u32) {
        let is_done = |message: &Vec<u8>| word(message, 0) == xid && word(message, 3) == DONE;
        self.run(|asking| asking.raw.messages.iter().any(is_done));
        let at = self.raw.messages.iter().position(is_done).expect("just seen");
        // RR-P-10
        let message = self.raw.messages.remove(at);
        assert_eq!((message.len(), word(&message, 1)), (16, 1));
        assert!(!self.raw.messages.iter().any(is_done), "there is one RDMA_DONE");
    }

    #[track_caller]
    fn ended(&mut self) -> Result<Vec<u8>, CallError> {
        self.run(|asking| !asking.client.done.is_empty());
        Ended::of(self.client.done.remove(0)).result
    }

    #[track_caller]
    fn closed(&mut self) -> CloseReason {
        self.run(|asking| {
            asking.client.events.iter().any(|event| matches!(event, ConnectionEvent::Closed { .. }))
        });
        match self.client.events.pop() {
            Some(ConnectionEvent::Closed { reason, .. }) => reason,
            event => panic!("{event:?}"),
        }
    }
}

const HOUR: Duration = Duration::from_secs(3600);

/// RR-X-3, RR-4.1.2-a, RR-4.1.3-c: lists that make no sense, and unknown xids, get an RDMA_DONE, and are not read.
#[test]
fn exposed_replies_that_make_no_sense_are_told_of() {
    let client = EngineConfig { pull_len_max: 100_000, ..config() };
    let mut asking = Asking::new(exposes(8), client);
    let too_long = |len| CallError::ReplyTooLong { len, limit: 100_000 };
    // Position and length of each segment.
    let cases: [(&[(u32, u32)], CallError); 5] = [
        (&[(4, 4096)], CallError::BadReply),
        (&[(0, 4096), (8, 4)], CallError::BadReply),
        (&[(0, 0)], too_long(0)),
        (&[(0, 4096), (0, u32::MAX)], too_long((1 << 32) + 4095)),
        // It is read, and is no Reply.
        (&[(0, 4096)], CallError::BadReply),
    ];
    for (segments, expected) in cases {
        let xid = asking.call(HOUR);
        asking.expose_anew(xid, segments);
        asking.done(xid);
        assert_eq!(asking.ended(), Err(expected), "{segments:?}");
    }
    for xid in [5, 6, 5] {
        asking.expose_anew(xid, &[(0, 4096)]);
        asking.done(xid);
    }
    asking.close();
}

/// RR-4.1.3-c: a Call that timed out gets an RDMA_DONE when its Reply comes, and its credit is free again.
#[test]
fn a_late_exposed_reply_is_told_of() {
    let mut asking = Asking::new(exposes(8), config());
    for _ in 0..30 {
        let xid = asking.call(Duration::from_millis(20));
        assert_eq!(asking.ended(), Err(CallError::TimedOut));
        asking.expose_anew(xid, &[(0, 4096)]);
        asking.done(xid);
    }
    asking.close();
}

/// RR-4.1.3-f: a handle that is not there ends the connection, and the Call with it.
#[test]
fn a_handle_that_is_not_there_ends_the_connection() {
    let mut asking = Asking::new(exposes(8), config());
    let xid = asking.call(HOUR);
    asking.expose(xid, &[(0, 77, 4096, 0)]);
    let error = asking.ended();
    assert_eq!(error, Err(CallError::ConnectionLost));
    let reason = CloseReason::Fabric(DisconnectReason::Work(WorkError::RemoteAccess));
    assert_eq!(asking.closed(), reason);
    asking.close();
}

/// RR-P-8: a server exposes as many as it said.
#[test]
fn more_exposed_replies_than_announced_end_the_connection() {
    let mut asking = Asking::new(exposes(2), config());
    let source = asking.raw.expose_filled(4096, 1).expect("memory");
    // The client's memory is full: none of them is read.
    let mut hoard = Vec::new();
    while let Some(buf) = asking.client.memory.pools.payload.take() {
        hoard.push(buf);
    }
    // The grant lets all of them out.
    let first = asking.call(HOUR);
    asking.raw.send(&octets(&[first, 1, 8, 0, 0, 0, 0, first, 1, 0, 0, 0, 0]), None);
    assert!(asking.ended().is_ok());
    let xids: Vec<u32> = (0..3).map(|_| asking.call(HOUR)).collect();
    for xid in xids {
        asking.expose(xid, &[(0, source.handle.0, 4096, source.offset)]);
    }
    assert!(matches!(asking.closed(), CloseReason::Violation(what) if what.contains("RR-P-8")));
    drop(hoard);
    asking.close();
}

/// A Reply that finds no memory in time fails its Call, and gets an RDMA_DONE.
#[test]
fn a_reply_without_memory_is_told_of() {
    let mut asking = Asking::new(exposes(2), config());
    let mut hoard = Vec::new();
    while let Some(buf) = asking.client.memory.pools.payload.take() {
        hoard.push(buf);
    }
    let xid = asking.call(HOUR);
    asking.expose_anew(xid, &[(0, 4096)]);
    asking.done(xid);
    assert_eq!(asking.ended(), Err(CallError::NoMemory { len: 4096 }));
    // One that waits is given up at once.
    let xid = asking.call(Duration::from_millis(100));
    asking.expose_anew(xid, &[(0, 4096)]);
    assert_eq!(asking.ended(), Err(CallError::TimedOut));
    asking.done(xid);
    drop(hoard);
    asking.close();
}

/// RR-P-1, RR-P-2: without the agreement of both, an exposed Reply is dropped without a word, and RDMA_DONE as well.
#[test]
fn without_agreement_nothing_is_told() {
    for (block, client) in [(Vec::new(), config()), (exposes(8), small()), (pulls(), config())] {
        let asks = client.pull_len_max > 0;
        let mut asking = Asking::new(block, client);
        assert_eq!(asking.raw.peer_private_data.len(), if asks { 16 } else { 8 });
        let source = asking.raw.expose_filled(4096, 1).expect("memory");
        let request = Request { timeout: Duration::from_millis(50), ..request(ECHO) };
        let begun =
            asking
                .client
                .engine
                .call(asking.connection, &request, &mut Chunks::default(), |writer| words(writer, &[0]));
        begun.expect("a credit");
        asking.run(|asking| !asking.raw.messages.is_empty());
        let xid = word(&asking.raw.messages.remove(0), 0);
        asking.expose(xid, &[(0, source.handle.0, 4096, source.offset)]);
        assert_eq!(asking.ended(), Err(CallError::TimedOut));
        assert!(asking.raw.messages.is_empty());
        assert_eq!(asking.client.engine.statistics().messages_discarded, 1);
        asking.close();
    }
}
