//! Nothing allocates after `new`: whole lives of Calls, good and bad, without touching the heap.
#![cfg(not(miri))]

use stag_proto::characteristics::PeerCharacteristics;
use stag_proto::directions::ResultItem;
use stag_proto::layout::{ReceiveLayout, target_numbers};
use stag_proto::parameters::Parameters;
use stag_proto::requester::{self, ChunkLists, ExposedMemory, Requester, Shape};
use stag_proto::requester::{GroupCall, Requester2, RequesterEvent2};
use stag_proto::responder::{
    self, ChunkLimits, GroupReply, RefusedCall, ReplyError, Responder, Responder2, ResponderEvent2,
};
use stag_proto::version2::OwnCharacteristics;
use stag_testing::CountingAllocator;
use stag_wire::rpcrdma::{ReadSegment, Segment};
use stag_wire::rpcrdma2::{
    Body2, DirectedPlace, DirectionSet, Elements, Header2, ItemPlace, OptionalOperation, PlacedItem,
    ResultDirection,
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// How often this thread has called the allocator.
fn touched() -> u64 {
    CountingAllocator::allocations() + CountingAllocator::frees()
}

/// What one Call does in its life.
#[derive(Clone, Copy, Debug)]
enum Life {
    Plain,
    Chunks,
    RefusedCall,
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
        assert_eq!(requester.cancel(call), ExposedMemory::Exposed);
        fence(requester, call);
    }

    let mut reply = [0; 1024];
    let mut reply_len = 0;
    let responder::ResponderReceived::Call(received) = responder.handle_receive(message) else {
        panic!("a Call")
    };
    let id = received.id;
    let items = [5001];
    if let Life::RefusedCall = life {
        let error = responder.refuse(id, RefusedCall::Reply(ReplyError::ReplyChunk)).expect("in process");
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
        (Life::Plain | Life::Chunks, requester::RequesterReceived::Reply(reply)) => reply.memory,
        (Life::RefusedCall, requester::RequesterReceived::Failed { memory, .. }) => memory,
        (Life::Cancelled, requester::RequesterReceived::Late { memory, .. }) => memory,
        (_, other) => panic!("{life:?}: {other:?}"),
    };
    if memory == ExposedMemory::Exposed {
        fence(requester, call);
    }
}

fn fence(requester: &mut Requester, call: requester::RequesterCallId) {
    while let Some(handle) = requester.poll_fence(call) {
        assert!(requester.handle_fenced(call, handle).is_some());
    }
}

#[test]
fn calls_live_and_end_without_the_heap() {
    let parameters = Parameters::default();
    let mut requester = Requester::new(&requester::RequesterConfig {
        slots: 4,
        parameters,
        credits_requested: 4,
        segments_max: 16,
        xid_seed: 7,
    });
    let mut responder =
        Responder::new(&responder::ResponderConfig { slots: 4, parameters, limits: ChunkLimits::default() });
    responder.receives_posted(4);

    let before = touched();
    drop(Box::new(1_u8));
    assert_eq!(touched(), before + 2, "the count works");

    let before = touched();
    for _ in 0..1000 {
        for life in [Life::Plain, Life::Chunks, Life::RefusedCall, Life::Cancelled] {
            live(&mut requester, &mut responder, life);
        }
        assert!(matches!(responder.handle_receive(&[0; 20]), responder::ResponderReceived::Error(_)));
        responder.receives_posted(1);
    }
    // The end of the connection, with Calls at both ends.
    while requester.begin().is_some() {}
    requester.handle_disconnect(|_, _| ());
    responder.handle_disconnect(|_| ());
    assert_eq!(touched(), before);
}

/// A Call of several transmissions with an item in targets, and its Reply with one.
fn live_in_groups(
    (requester, requester2): (&mut Requester, &mut Requester2),
    (responder, responder2): (&mut Responder, &mut Responder2),
    peer: &PeerCharacteristics,
) {
    let layout = peer.layout(u32::MAX);
    let call = requester.begin().expect("a credit");
    let range = layout.place(0, 2000, u32::MAX).expect("it fits");
    let place = ItemPlace::Buffers { offset: 0, numbers: target_numbers(&range) };
    let items = [PlacedItem { displacement: 8, len: 2000, place }];
    let directions = [ResultDirection { min_len: 100, place: DirectedPlace::Buffers }];
    let sets = [DirectionSet { begin: 0, end: 8, items: Elements::new(&directions) }];
    let directions = Elements::new(&sets);
    let group =
        GroupCall { items: &items, target_lens: &[2000], directions, payload_len: 8, response_receives: 1 };
    let cut = requester2.plan_group(requester, peer, &layout, &group).expect("it fits");
    assert_eq!(cut.count(), 2);
    let mut sends = [[0_u8; 2048]; 2];
    let mut id = None;
    for sent in cut.transmissions() {
        let (first, rest) = sends.split_at_mut(sent.number as usize);
        let out = &mut rest[0][..sent.len as usize];
        let lists = ChunkLists { writes: &[&[]], ..ChunkLists::default() };
        let at = match sent.number {
            0 => requester2.emit_lead(requester, call, &group, &cut, &lists, out),
            _ => requester2.emit_continuation(requester, call, &sent, out).map(|len| len.expect("open")),
        };
        let at = at.expect("as planned");
        if sent.number == 0 {
            out[at..at + 4].copy_from_slice(&call.xid().to_be_bytes());
        }
        let lead = first.first().map(|lead| &lead[..]);
        match responder2.handle_receive(responder, out, lead).0 {
            ResponderEvent2::Part { .. } => {}
            ResponderEvent2::Whole { id: found, .. } => id = Some(found),
            other => panic!("{other:?}"),
        }
    }
    responder.receives_posted(2);
    let id = id.expect("it is whole");
    let results = [ResultItem { source: 0, displacement: 8, len: 2000 }];
    let reply = GroupReply { results: &results, stream_len: 2008, layout: &layout };
    let lead = sends[0];
    let plan = responder2.plan_group(responder, id, &lead, &reply).expect("it fits");
    let cut = plan.cut(&layout);
    let mut first = [0_u8; 2048];
    for sent in cut.transmissions() {
        let mut out = [0_u8; 2048];
        let at = match sent.number {
            0 => responder2.emit_lead(responder, id, &lead, &reply, &plan, &mut out).expect("open"),
            _ => responder2.emit_continuation(responder, &sent, &mut out).expect("room").expect("open"),
        };
        if sent.number == 0 {
            out[at..at + 4].copy_from_slice(&call.xid().to_be_bytes());
            out[at + 7] = 1;
            first = out;
        }
        let message = &out[..sent.len as usize];
        let lead = (sent.number > 0).then_some(&first[..]);
        match requester2.handle_receive(requester, message, None, lead).0 {
            RequesterEvent2::Part { .. } => {}
            RequesterEvent2::Whole { memory, .. } => assert_eq!(memory, ExposedMemory::Safe),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(requester2.take_unused(), 0);
}

#[test]
fn groups_live_and_end_without_the_heap() {
    let parameters = Parameters::default();
    let mut requester = Requester::new(&requester::RequesterConfig {
        slots: 4,
        parameters,
        credits_requested: 4,
        segments_max: 16,
        xid_seed: 7,
    });
    let limits = ChunkLimits::default();
    let mut responder = Responder::new(&responder::ResponderConfig { slots: 4, parameters, limits });
    let layout = ReceiveLayout::with_targets(512, 1, 1024, 0);
    let own = OwnCharacteristics {
        layout,
        send_len_max: 4096,
        request_limit: 2,
        response_limit: 2,
        response_receives: 1,
        reverse_support: Default::default(),
    };
    let mut requester2 = Requester2::new(4, &own, 1 << 16);
    let mut responder2 = Responder2::new(&own, 1 << 16);
    let mut peer = PeerCharacteristics::default();
    let mut message = [0; 256];
    let len = own.emit_initial(4, &mut message).expect("it is short");
    let Body2::Optional(found) = Header2::parse(&message[..len]).expect("it is good").0.body else {
        panic!("an operation")
    };
    let Ok(OptionalOperation::Initial(initial)) = OptionalOperation::parse(&found) else { panic!("INITXCH") };
    peer.handle_initial(&initial);
    // More than one credit, from here on.
    responder.receives_posted(4);
    live(&mut requester, &mut responder, Life::Plain);

    let before = touched();
    for _ in 0..100 {
        live_in_groups((&mut requester, &mut requester2), (&mut responder, &mut responder2), &peer);
    }
    requester2.handle_disconnect(&mut requester);
    responder2.handle_disconnect();
    assert_eq!(touched(), before);
}
