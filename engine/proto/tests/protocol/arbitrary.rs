//! Arbitrary peers: whatever arrives, neither machine panics, and what they promise holds.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use stag_proto::plan::{CallForm, Shape};
use stag_proto::requester::{self, ChunkLists, ExposedMemory, Pulled, Requester};
use stag_proto::responder::{self, CallPayload, Responder};
use stag_wire::rpcrdma::{Header, ReadSegment, Segment};

use crate::support::*;

fn any_segment() -> impl Strategy<Value = Segment> {
    let length = prop_oneof![8 => 0..5000u32, 1 => any::<u32>()];
    let offset = prop_oneof![8 => 0..1_000_000u64, 1 => any::<u64>()];
    (0..6u32, length, offset).prop_map(|(handle, length, offset)| Segment { handle, length, offset })
}

fn any_read() -> impl Strategy<Value = ReadSegment> {
    let position = prop_oneof![6 => (0..40u32).prop_map(|word| 4 * word), 1 => any::<u32>()];
    (position, any_segment()).prop_map(|(position, segment)| ReadSegment { position, segment })
}

/// Messages near to good ones.
fn any_message() -> impl Strategy<Value = Vec<u8>> {
    let words = (0..6u32, select(vec![1, 1, 1, 1, 2]), any::<u32>(), select(vec![0, 0, 0, 1, 1, 2, 3, 4, 9]));
    let lists =
        (vec(any_read(), 0..6), vec(vec(any_segment(), 0..4), 0..4), any::<bool>(), vec(any_segment(), 0..4));
    let stream = (0..3u32, vec(any::<u8>(), 0..200));
    let damage = prop_oneof![3 => Just(None), 1 => (any::<usize>(), any::<u8>()).prop_map(Some)];
    (words, lists, stream, damage, any::<proptest::sample::Index>()).prop_map(
        |(
            (xid, version, credits, procedure),
            (reads, writes, has_reply, reply),
            (msg_type, rest),
            damage,
            cut,
        )| {
            let mut payload = words_of(xid, msg_type);
            payload.extend(rest);
            let reply = has_reply.then_some(reply);
            let message = Message { xid, version, credits, procedure, reads, writes, reply, payload };
            let mut bytes = message.bytes();
            if let Some((at, octet)) = damage {
                let at = at % bytes.len();
                bytes[at] = octet;
                if octet < 64 {
                    bytes.truncate(cut.index(bytes.len()));
                }
            }
            bytes
        },
    )
}

fn words_of(xid: u32, msg_type: u32) -> Vec<u8> {
    words(&[xid, msg_type])
}

/// Everything a driver does with a Call.
fn process(
    responder: &mut Responder,
    id: responder::ResponderCallId,
    message: &[u8],
    items: &[u32],
    payload_len: u32,
) {
    let call = responder.call(id, message).expect("just received");
    let stream_len = match call.payload {
        CallPayload::Inline(stream) => stream.len() as u32,
        CallPayload::Long(len) => len,
    };
    let mut last = (0, 0);
    let mut pulled = 0u64;
    for chunk in call.read_chunks() {
        assert!(chunk.position > last.0 && chunk.at >= last.1 && chunk.at <= stream_len);
        let total: u64 = chunk.segments().map(|segment| u64::from(segment.length)).sum();
        assert_eq!(total, u64::from(chunk.len));
        pulled += total;
        last = (chunk.position, chunk.at);
    }
    assert!(pulled <= u64::from(limits().pull_len));
    match responder.plan_reply(id, message, items, payload_len) {
        Ok(form) => {
            let mut out = vec![0; responder.parameters().reply_threshold as usize];
            let emitted = responder.emit_reply(id, message, items, &form, &mut out).expect("in process");
            assert_eq!(emitted.header_len, form.header_len as usize);
            let (header, _) = Header::parse(&out).expect("a good header");
            assert!(header.credits() >= 1);
            assert!(form.long || form.header_len + payload_len <= responder.parameters().reply_threshold);
        }
        Err(why) => {
            let error = responder.refuse(id, responder::RefusedCall::Reply(why)).expect("in process");
            assert_eq!(error.as_bytes().len(), 20);
        }
    }
    assert!(responder.call(id, message).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_responder_takes_anything(
        messages in vec((any_message(), vec(0..9000u32, 0..3), 24..9000u32, any::<bool>()), 1..12),
        threshold in select(vec![1024u32, 4096]),
    ) {
        let mut responder = responder_with(4, parameters(threshold, threshold, true));
        let mut open = Vec::new();
        for (message, items, payload_len, later) in &messages {
            match responder.handle_receive(message) {
                responder::ResponderReceived::Call(call) => {
                    let id = call.id;
                    if *later {
                        open.push((id, message, items, *payload_len));
                    } else {
                        process(&mut responder, id, message, items, *payload_len);
                    }
                }
                responder::ResponderReceived::Error(error) => {
                    prop_assert_eq!(&error.as_bytes()[..8], &message[..8]);
                    prop_assert_eq!(&error.as_bytes()[12..16], &[0, 0, 0, 4]);
                }
                responder::ResponderReceived::Dropped(_) => {}
                responder::ResponderReceived::Close(_) => break,
            }
            responder.receives_posted(1);
            prop_assert!(responder.grant().check());
            prop_assert_eq!(responder.grant().in_process() as usize, open.len());
        }
        for (id, message, items, payload_len) in open {
            process(&mut responder, id, message, items, payload_len);
        }
        prop_assert_eq!(responder.grant().in_process(), 0);
    }

    #[test]
    fn a_requester_takes_anything(
        messages in vec((any_message(), prop_oneof![3 => Just(None), 1 => (0..8u32).prop_map(Some)], any::<u8>()), 1..12),
        writes in vec(vec(any_segment(), 0..3), 0..3),
        [remote_invalidation, pulls] in any::<[bool; 2]>(),
    ) {
        let mut requester = warm(requester_with(4, parameters(1024, 1024, remote_invalidation)), 4);
        requester.set_pull_limit(if pulls { 4096 } else { 0 });
        let writes: Vec<&[Segment]> = writes.iter().map(Vec::as_slice).collect();
        let mut open = Vec::new();
        for (message, invalidated, choice) in &messages {
            if requester.available() > 0 {
                let room = [segment(7, 4096)];
                let reply = choice.is_multiple_of(2).then_some(&room[..]);
                let (call, _) = send(&mut requester, &ChunkLists { writes: &writes, reply, reads: &[] });
                open.push(call);
            }
            // Aimed at one of the Calls, most of the time.
            let mut message = message.clone();
            if let Some(call) = open.get(usize::from(*choice) % 5)
                && message.len() >= 4
            {
                let old: [u8; 4] = message[..4].try_into().expect("four octets");
                let positions: Vec<usize> =
                    (0..message.len() / 4).map(|word| 4 * word).filter(|&at| message[at..at + 4] == old).collect();
                for at in positions {
                    message[at..at + 4].copy_from_slice(&call.xid().to_be_bytes());
                }
            }
            let mut ended = None;
            match requester.handle_receive(&message, *invalidated) {
                requester::RequesterReceived::Reply(reply) => {
                    prop_assert_eq!(reply.write_lens().count(), writes.len());
                    for (len, chunk) in reply.write_lens().zip(&writes) {
                        prop_assert!(u64::from(len) <= chunk.iter().map(|segment| u64::from(segment.length)).sum());
                    }
                    if let requester::ReplyPayload::Long(len) = reply.payload {
                        prop_assert!((1..=4096).contains(&len));
                    }
                    ended = Some(reply.call);
                }
                requester::RequesterReceived::Failed { call, .. } => ended = Some(call),
                requester::RequesterReceived::Late { .. } => prop_assert!(false, "nothing was cancelled"),
                requester::RequesterReceived::Exposed(reply) => {
                    prop_assert!(pulls, "it was not agreed on");
                    match reply.pulled {
                        Pulled::Pull { call, len, .. } => {
                            prop_assert!((1..=4096).contains(&len));
                            let sum: u32 = reply.segments().map(|entry| entry.segment.length).sum();
                            prop_assert_eq!(sum, len);
                            prop_assert_eq!(reply.write_lens().count(), writes.len());
                            let _ = requester.handle_pulled(call);
                            ended = Some(call);
                        }
                        Pulled::Tell { call, .. } => ended = call,
                    }
                }
                requester::RequesterReceived::Dropped(_) => prop_assert!(invalidated.is_none()),
                requester::RequesterReceived::Close(_) => {
                    prop_assert!(invalidated.is_some());
                    break;
                }
            }
            if let Some(call) = ended {
                prop_assert!(open.contains(&call), "each Call ends once");
                open.retain(|other| *other != call);
                finish(&mut requester, call);
            }
            prop_assert_eq!(requester.window().in_flight() as usize, open.len());
            prop_assert!(requester.window().granted() >= 1);
        }
        let mut told = 0;
        requester.handle_disconnect(|call, _| {
            assert!(open.contains(&call));
            told += 1;
        });
        prop_assert_eq!(told, open.len());
    }

    #[test]
    fn plain_octets_harm_nobody(message in vec(any::<u8>(), 0..100)) {
        let mut requester = requester(2);
        send_null(&mut requester);
        let _ = requester.handle_receive(&message, None);
        let _ = responder(2).handle_receive(&message);
    }

    #[test]
    fn a_plan_keeps_both_thresholds(
        payload_len in any_len(), read_segments in 0..50u32, write_chunks in vec(0..30u32, 0..4),
        reply_payload_len_max in any_len(), prefer_long_call in any::<bool>(),
        long_call_segments in 0..5u32, reply_chunk_segments in 0..5u32,
        call_threshold in (1..8u32).prop_map(|kib| kib * 1024), reply_threshold in (1..8u32).prop_map(|kib| kib * 1024),
    ) {
        // 8166-4.2.4-d 8166-4.3.3-a 8166-4.5.4-a
        let shape = Shape {
            payload_len, read_segments, write_chunks: &write_chunks, reply_payload_len_max, prefer_long_call,
            long_call_segments, reply_chunk_segments,
        };
        if let Ok(form) = CallForm::of_call(&shape, &parameters(call_threshold, reply_threshold, false), 64) {
            let inline = if form.long { 0 } else { payload_len };
            prop_assert!(form.header_len + inline <= call_threshold);
            let writes = || write_chunks.iter().map(|count| *count as usize);
            let reads = read_segments + if form.long { long_call_segments.max(1) } else { 0 };
            let reply = form.reply_chunk.then_some(reply_chunk_segments.max(1) as usize);
            let header_len = stag_wire::rpcrdma::header_len(reads as usize, writes(), reply);
            prop_assert_eq!(form.header_len as usize, header_len);
            let reply_header_len = stag_wire::rpcrdma::header_len(0, writes(), reply) as u32;
            prop_assert!(reply_header_len <= reply_threshold);
            prop_assert!(form.reply_chunk || reply_header_len + reply_payload_len_max <= reply_threshold);
        }
    }
}

fn any_len() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0..10_000u32, 1 => any::<u32>()]
}

/// Fences all of an ended Call, if anything is left to fence.
fn finish(requester: &mut Requester, call: requester::RequesterCallId) {
    let handles: Vec<u32> = std::iter::from_fn(|| requester.poll_fence(call)).collect();
    for (nth, handle) in (1..).zip(&handles) {
        let expected = if nth == handles.len() { ExposedMemory::Safe } else { ExposedMemory::Exposed };
        assert_eq!(requester.handle_fenced(call, *handle), Some(expected));
    }
    assert_eq!(requester.poll_fence(call), None);
}
