//! Nothing allocates after `new`: whole lives of Calls, good and bad, without touching the heap.
#![cfg(not(miri))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use stag_proto::parameters::Parameters;
use stag_proto::requester::{self, ChunkLists, Memory, Requester, Shape};
use stag_proto::responder::{self, Limits, Refused, ReplyError, Responder};
use stag_wire::rpcrdma::{ReadSegment, Segment};

thread_local! {
    // Of this thread alone: the test harness allocates on its own when it likes.
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: passes every call on to the system's allocator, unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: the caller's word.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: the caller's word.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What one Call does in its life.
#[derive(Clone, Copy, Debug)]
enum Life {
    Plain,
    Chunks,
    Refused,
    Cancelled,
}

fn live(requester: &mut Requester, responder: &mut Responder, life: Life) {
    let read = ReadSegment { position: 36, segment: Segment { handle: 1, length: 6001, offset: 0 } };
    let chunk =
        [Segment { handle: 2, length: 4096, offset: 0 }, Segment { handle: 3, length: 4096, offset: 0 }];
    let room = [Segment { handle: 4, length: 8192, offset: 0 }];
    let (lists, shape) = match life {
        Life::Plain => (ChunkLists::default(), Shape { payload_len: 40, ..Shape::default() }),
        _ => (
            ChunkLists { reads: &[read], writes: &[&chunk], reply: Some(&room) },
            Shape {
                payload_len: 40,
                read_segments: 1,
                write_chunks: &[2],
                reply_payload_len_max: 8000,
                ..Shape::default()
            },
        ),
    };
    let call = requester.begin().expect("a credit");
    let form = requester.plan(&shape).expect("it fits");
    let mut message = [0; 1024];
    let len = requester.emit_call(call, &form, &lists, &mut message).expect("as planned");
    message[len..len + 4].copy_from_slice(&call.xid().to_be_bytes());
    let message = &message[..len + 40];
    if let Life::Cancelled = life {
        assert_eq!(requester.cancel(call), Memory::Exposed);
        fence(requester, call);
    }

    let mut reply = [0; 1024];
    let mut reply_len = 0;
    let responder::Received::Call(received) = responder.handle_receive(message) else { panic!("a Call") };
    let id = received.id;
    let items = [5001];
    if let Life::Refused = life {
        let error = responder.refuse(id, Refused::Reply(ReplyError::ReplyChunk)).expect("in process");
        reply_len = error.as_bytes().len();
        reply[..reply_len].copy_from_slice(error.as_bytes());
    } else {
        let form = responder.plan_reply(id, message, &items, 24).expect("it fits");
        let emitted = responder.emit_reply(id, message, &items, &form, &mut reply).expect("in process");
        reply_len += emitted.header_len;
        reply[reply_len..reply_len + 4].copy_from_slice(&call.xid().to_be_bytes());
        reply[reply_len + 7] = 1;
        reply_len += 24;
    }
    responder.receives_posted(1);

    let memory = match (life, requester.handle_receive(&reply[..reply_len], None)) {
        (Life::Plain | Life::Chunks, requester::Received::Reply(reply)) => reply.memory,
        (Life::Refused, requester::Received::Failed { memory, .. }) => memory,
        (Life::Cancelled, requester::Received::Late { memory, .. }) => memory,
        (_, other) => panic!("{life:?}: {other:?}"),
    };
    if memory == Memory::Exposed {
        fence(requester, call);
    }
}

fn fence(requester: &mut Requester, call: requester::CallId) {
    while let Some(handle) = requester.poll_fence(call) {
        assert!(requester.handle_fenced(call, handle).is_some());
    }
}

#[test]
fn calls_live_and_end_without_the_heap() {
    let parameters = Parameters::default();
    let mut requester = Requester::new(&requester::Config {
        slots: 4,
        parameters,
        credits_requested: 4,
        segments_max: 16,
        xid_seed: 7,
    });
    let mut responder =
        Responder::new(&responder::Config { slots: 4, parameters, limits: Limits::default() });
    responder.receives_posted(4);

    let before = CALLS.get();
    drop(Box::new(1_u8));
    assert_eq!(CALLS.get(), before + 2, "the count works");

    let before = CALLS.get();
    for _ in 0..1000 {
        for life in [Life::Plain, Life::Chunks, Life::Refused, Life::Cancelled] {
            live(&mut requester, &mut responder, life);
        }
        assert!(matches!(responder.handle_receive(&[0; 20]), responder::Received::Error(_)));
        responder.receives_posted(1);
    }
    // The end of the connection, with Calls at both ends.
    while requester.begin().is_some() {}
    requester.handle_disconnect(|_, _| ());
    responder.handle_disconnect(|_| ());
    assert_eq!(CALLS.get(), before);
}
