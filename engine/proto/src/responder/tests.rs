//! A Call with one chunk of one segment is taken in and answered as by the general way, octet by octet.

use proptest::collection::vec;
use proptest::prelude::*;
use stag_wire::rpcrdma::{ReadSegment, Segment};

use super::*;

/// Takes a message in by the way for any lists.
fn receive_generally<'m>(responder: &mut Responder, message: &'m [u8]) -> ResponderReceived<'m> {
    responder.grant.receive_consumed();
    match responder.receive(message) {
        Ok(call) => ResponderReceived::Call(call),
        Err(refusal) => responder.answer(message, refusal),
    }
}

/// All that a driver can see of what was received.
fn describe(received: &ResponderReceived<'_>) -> String {
    match received {
        ResponderReceived::Call(call) => describe_call(call),
        other => format!("{other:?}"),
    }
}

fn describe_call(call: &ReceivedCall<'_>) -> String {
    let reads: Vec<_> = call
        .read_chunks()
        .map(|chunk| (chunk.position, chunk.at, chunk.len, chunk.segments().collect::<Vec<_>>()))
        .collect();
    let writes: Vec<_> = (0..3).map(|item| (call.write_chunk(item), call.write_room(item))).collect();
    let long: Vec<_> = call.long_segments().collect();
    format!(
        "{:?} {} {:?} {reads:?} {} {writes:?} {long:?} {:?} {}",
        call.id,
        call.xid(),
        call.payload,
        call.read_chunk_count(),
        call.reply_chunk(),
        call.is_plain()
    )
}

fn responder(parameters: Parameters, limits: ChunkLimits) -> Responder {
    let mut responder = Responder::new(&ResponderConfig { slots: 4, parameters, limits });
    responder.receives_posted(4);
    responder
}

fn any_limits() -> impl Strategy<Value = ChunkLimits> {
    let few = || prop_oneof![8 => 1..4_u32, 1 => Just(0)];
    (few(), few(), few(), 0..9000_u32, 0..9000_u32).prop_map(
        |(segments, read_chunks, write_chunks, chunk_len, pull_len)| ChunkLimits {
            segments,
            read_chunks,
            write_chunks,
            chunk_len,
            pull_len,
        },
    )
}

/// A Call with one chunk of one segment, or what is nearly one: another type, version or xid, a position or a length beyond
/// the limits, a word changed, octets missing.
fn nearly_single() -> impl Strategy<Value = Vec<u8>> {
    let length = prop_oneof![6 => 0..9000_u32, 1 => any::<u32>()];
    let offset = prop_oneof![6 => any::<u32>().prop_map(u64::from), 1 => u64::MAX - 8000..=u64::MAX];
    let segment = (any::<u32>(), length, offset).prop_map(|(handle, length, offset)| Segment {
        handle,
        length,
        offset,
    });
    let position = prop_oneof![6 => (0..20_u32).prop_map(|word| 4 * word), 1 => any::<u32>()];
    let stream =
        (vec(any::<u8>(), 0..60), prop_oneof![8 => Just(0), 1 => 0..3_u32], prop::bool::weighted(0.1));
    let word = prop_oneof![4 => 0..5_u32, 1 => any::<u32>()];
    let damage = prop_oneof![4 => Just(None), 1 => (0..SINGLE_LEN / 4, word).prop_map(Some)];
    let cut = prop_oneof![8 => Just(usize::MAX), 1 => 0..80_usize];
    (any::<[u32; 2]>(), segment, prop::option::of(position), stream, damage, cut).prop_map(
        |([xid, credits], segment, position, (rest, msg_type, is_foreign), damage, cut)| {
            let mut message = vec![0; SINGLE_LEN];
            let mut emitter = Emitter::new(&mut message, MessageKind::Msg, xid, credits).expect("room");
            match position {
                Some(position) => emitter.read_segment(ReadSegment { position, segment }).expect("room"),
                None => emitter.write_chunk(&[segment]).expect("room"),
            }
            emitter.finish().expect("room");
            message.extend((xid ^ u32::from(is_foreign)).to_be_bytes());
            message.extend(msg_type.to_be_bytes());
            message.extend(rest);
            if let Some((at, word)) = damage {
                message[4 * at..][..4].copy_from_slice(&word.to_be_bytes());
            }
            message.truncate(cut);
            message
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn a_call_with_one_chunk_of_one_segment_is_served_as_one_with_any_lists(
        message in nearly_single(),
        limits in any_limits(),
        remote_invalidation: bool,
        items in vec(prop_oneof![0..9000_u32, any::<u32>()], 0..3),
        payload_len in prop_oneof![4 => 0..1100_u32, 1 => any::<u32>()],
    ) {
        let parameters = Parameters { remote_invalidation, ..Parameters::default() };
        let (mut short, mut general) = (responder(parameters, limits), responder(parameters, limits));
        let one = short.handle_receive(&message);
        let other = receive_generally(&mut general, &message);
        prop_assert_eq!(describe(&one), describe(&other));
        prop_assert_eq!((short.grant, short.requested), (general.grant, general.requested));
        let mut at_once = responder(parameters, limits);
        let peeked = at_once.peek_single(&message);
        let (ResponderReceived::Call(one), ResponderReceived::Call(other)) = (one, other) else {
            prop_assert!(peeked.is_none());
            return Ok(());
        };
        let found = peeked.map(|(single, stream)| (single.xid, single.credits.max(1), single.chunk, stream));
        let CallPayload::Inline(stream) = one.payload else {
            prop_assert!(peeked.is_none());
            return Ok(());
        };
        prop_assert_eq!(found, one.single().map(|chunk| (one.xid(), short.requested, chunk, stream)));
        let id = one.id;
        prop_assert!(other.single().is_none());
        for again in [short.call(id, &message), general.call(id, &message)] {
            prop_assert_eq!(again.map(|call| describe_call(&call)), Some(describe_call(&one)));
        }
        prop_assert!(short.call(id, &message[..SINGLE_LEN - 1]).is_none() || one.is_plain());

        let form = short.plan_reply(id, &message, &items, payload_len);
        prop_assert_eq!(form, general.plan_reply(id, &message, &items, payload_len));
        let Ok(form) = form else { return Ok(()) };
        let mut outs = [[0xff; 2 * SINGLE_LEN]; 2];
        let one = short.emit_reply(id, &message, &items, &form, &mut outs[0]);
        let other = general.emit_reply(id, &message, &items, &form, &mut outs[1]);
        prop_assert_eq!(one, other);
        prop_assert_eq!(outs[0], outs[1]);
        prop_assert_eq!((short.grant, short.requested), (general.grant, general.requested));

        // In one step, where the Receive is posted again before the Reply leaves.
        let Some((single, _)) = peeked else { return Ok(()) };
        let mut in_steps = responder(parameters, limits);
        let ResponderReceived::Call(other) = receive_generally(&mut in_steps, &message) else {
            panic!("it was one above");
        };
        in_steps.receives_posted(1);
        in_steps.set_credit_limit(3);
        let other = in_steps.emit_reply(other.id, &message, &items, &form, &mut outs[1]);
        let item = items.first().copied().unwrap_or(0);
        let one = at_once.answer_single(&single, 3, item, &mut outs[0]);
        prop_assert_eq!(Ok(one), other);
        prop_assert_eq!(outs[0], outs[1]);
        prop_assert_eq!((at_once.grant, at_once.requested), (in_steps.grant, in_steps.requested));
        prop_assert!(at_once.may_answer(single.xid) && at_once.call(id, &message).is_none());
    }
}

/// Else the property would say nothing.
#[test]
fn a_usual_read_and_a_usual_write_are_of_the_short_shape() {
    let segment = Segment { handle: 7, length: 4096, offset: 1 << 40 };
    for chunk in [SingleChunk::Write(segment), SingleChunk::Read(ReadSegment { position: 8, segment })] {
        let mut message = [0; SINGLE_LEN + 8];
        Single { xid: 5, credits: 2, chunk }.emit(&mut message).expect("room");
        message[SINGLE_LEN + 3] = 5;
        let mut responder = responder(Parameters::default(), ChunkLimits::default());
        let ResponderReceived::Call(call) = responder.handle_receive(&message) else {
            panic!("it is a Call")
        };
        assert_eq!(call.single(), Some(chunk));
    }
}
