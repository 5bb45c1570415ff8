//! The cost of the state machines for one Call: the credits alone, and a NULL Call through Requester and
//! Responder, each with its headers but without a fabric between them.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use stag_proto::credits::{Grant, Window};
use stag_proto::parameters::Parameters;
use stag_proto::plan::Shape;
use stag_proto::requester::{self, ChunkLists, Requester};
use stag_proto::responder::{self, ChunkLimits, Responder};
use stag_wire::rpcrdma::{HEADER_LEN_MIN, Segment};

const SLOTS: u32 = 32;
/// Octets of a NULL Call's Payload stream, and of its Reply's.
const CALL_LEN: usize = 40;
const REPLY_LEN: usize = 24;

/// One Call's steps in the Requester's window, and in the Responder's grant.
fn accounting(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("credits");
    let mut window = Window::new(SLOTS);
    window.handle_grant(SLOTS);
    group.bench_function("window", |b| {
        b.iter(|| {
            let window = black_box(&mut window);
            let taken = window.take();
            window.handle_grant(black_box(SLOTS));
            window.give_back();
            taken
        });
    });
    let mut grant = Grant::new(SLOTS);
    grant.receives_posted(SLOTS);
    group.bench_function("grant", |b| {
        b.iter(|| {
            let grant = black_box(&mut grant);
            grant.receive_consumed();
            let started = grant.start();
            grant.receives_posted(1);
            let granted = grant.renew(false);
            grant.finish();
            (started, granted)
        });
    });
    group.finish();
}

/// Two machines and the messages between them.
struct Pair {
    requester: Requester,
    responder: Responder,
    call: [u8; 1024],
    reply: [u8; 1024],
}

impl Pair {
    fn new() -> Pair {
        let parameters = Parameters::default();
        let mut responder = Responder::new(&responder::ResponderConfig {
            slots: SLOTS,
            parameters,
            limits: ChunkLimits::default(),
        });
        responder.receives_posted(SLOTS);
        let requester = Requester::new(&requester::RequesterConfig {
            slots: SLOTS,
            parameters,
            credits_requested: SLOTS,
            segments_max: 16,
            xid_seed: 7,
        });
        Pair { requester, responder, call: [0; 1024], reply: [0; 1024] }
    }

    /// Sends a Call with `lists`, whose reduced result has the lengths of `items`. Returns the message's length.
    fn send(&mut self, shape: &Shape<'_>, lists: &ChunkLists<'_>) -> (requester::RequesterCallId, usize) {
        let call = self.requester.begin().expect("a credit");
        let form = self.requester.plan(shape).expect("it fits");
        let len = self.requester.emit_call(call, &form, lists, &mut self.call).expect("as planned");
        // The Payload's first two words: xid, and CALL. The rest is RPC's.
        self.call[len..len + 4].copy_from_slice(&call.xid().to_be_bytes());
        (call, len + CALL_LEN)
    }

    fn answer(&mut self, xid: u32, call_len: usize, items: &[u32]) -> usize {
        let message = &self.call[..call_len];
        let responder::ResponderReceived::Call(call) = self.responder.handle_receive(message) else {
            panic!("a Call")
        };
        let id = call.id;
        let form = self.responder.plan_reply(id, message, items, REPLY_LEN as u32).expect("it fits");
        self.responder.receives_posted(1);
        let emitted =
            self.responder.emit_reply(id, message, items, &form, &mut self.reply).expect("in process");
        let payload = &mut self.reply[emitted.header_len..];
        payload[..4].copy_from_slice(&xid.to_be_bytes());
        payload[4..8].copy_from_slice(&1_u32.to_be_bytes());
        emitted.header_len + REPLY_LEN
    }

    fn receive(&mut self, len: usize) -> requester::ExposedMemory {
        match self.requester.handle_receive(&self.reply[..len], None) {
            requester::RequesterReceived::Reply(reply) => reply.memory,
            other => panic!("{other:?}"),
        }
    }

    fn null(&mut self) -> requester::ExposedMemory {
        let shape = Shape { payload_len: CALL_LEN as u32, ..Shape::default() };
        let (call, len) = self.send(&shape, &ChunkLists::default());
        debug_assert_eq!(len, HEADER_LEN_MIN + CALL_LEN);
        let len = self.answer(call.xid(), len, &[]);
        self.receive(len)
    }

    fn read(&mut self) -> Option<requester::ExposedMemory> {
        let chunk = [Segment { handle: 7, length: 1 << 20, offset: 0x7f00_0000 }];
        let lists = ChunkLists { writes: &[&chunk], ..ChunkLists::default() };
        let shape = Shape { payload_len: CALL_LEN as u32, write_chunks: &[1], ..Shape::default() };
        let (call, len) = self.send(&shape, &lists);
        let len = self.answer(call.xid(), len, &[1 << 20]);
        assert_eq!(self.receive(len), requester::ExposedMemory::Exposed);
        let handle = self.requester.poll_fence(call).expect("the chunk's");
        self.requester.handle_fenced(call, handle)
    }
}

/// A Call through both machines and back.
fn call(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("call");
    let mut pair = Pair::new();
    group.bench_function("null", |b| b.iter(|| pair.null()));
    group.bench_function("one write chunk", |b| b.iter(|| pair.read()));
    group.finish();
}

criterion_group!(benches, accounting, call);
criterion_main!(benches);
