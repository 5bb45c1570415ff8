//! Targets for the machines of version 2, against arbitrary peers.
//!
//! The input is a script: octets for the settings, then steps. The peer's messages are made of the script, mostly as
//! operations that are nearly right, sometimes as raw octets or with a word changed.

use stag_proto::characteristics::PeerCharacteristics;
use stag_proto::directions::ResultItem;
use stag_proto::layout::{ReceiveLayout, target_numbers};
use stag_proto::parameters::Parameters;
use stag_proto::placement::PlacementMap;
use stag_proto::requester::{
    self, ChunkLists, ExposedMemory, GroupCall, Requester, Requester2, RequesterCallId, RequesterEvent2,
    RequesterReceived, Shape,
};
use stag_proto::responder::{
    self, ChunkLimits, GroupReply, RefusedCall, Responder, Responder2, ResponderEvent2,
};
use stag_proto::version2::OwnCharacteristics;
use stag_wire::rpcrdma::Segment;
use stag_wire::rpcrdma2::{
    Body2, Continuation, DirectedPlace, DirectionSet, Elements, ErrorCode2, GroupFault, Header2, ItemPlace,
    MessageType, OptionalOperation, PlacedItem, RequestTransmission, ResponseTransmission, ResultDirection,
    TransmissionError, TransmissionId, emit_error, option,
};

/// Calls at once.
const SLOTS: u32 = 4;

/// Octets of a Receive: a head, and two targets.
const HEAD: u32 = 512;
const TARGET: u32 = 256;

/// The steps of a script.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn octet(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> u32 {
        self.octet().unwrap_or(0).into()
    }

    fn octets(&mut self) -> &'a [u8] {
        let len = (self.number() as usize).min(self.0.len());
        let (octets, rest) = self.0.split_at(len);
        self.0 = rest;
        octets
    }
}

fn own(settings: u32) -> OwnCharacteristics {
    let layout = match settings & 1 {
        0 => ReceiveLayout::plain(HEAD + 2 * TARGET),
        _ => ReceiveLayout::with_targets(HEAD, 2, TARGET, 0),
    };
    OwnCharacteristics {
        layout,
        send_len_max: layout.len(),
        request_limit: 1 + (settings >> 1 & 3),
        response_limit: 1 + (settings >> 3 & 3),
        response_receives: settings >> 5 & 3,
        reverse_support: Default::default(),
    }
}

/// A message of the peer with this xid, nearly right.
fn message(script: &mut Script<'_>, xid: u32, direction: MessageType) -> Vec<u8> {
    let kind = script.number();
    let mut out = vec![0; (HEAD + 2 * TARGET) as usize];
    let (xid, credits) = (if kind & 0x80 == 0 { xid } else { xid + 1 }, script.number());
    let [offset, first, count] = [script.number() & 0x1f, script.number() & 7, script.number() & 3];
    let numbers = [first, first + 1, first];
    let segments = [Segment { handle: 7, length: script.number() * 8, offset: 0 }];
    let places = [
        ItemPlace::Buffers { offset, numbers: Elements::new(&numbers[..count as usize]) },
        ItemPlace::Explicit(Elements::new(&segments)),
        ItemPlace::NoItem,
        ItemPlace::TooShort,
    ];
    let items: Vec<PlacedItem<'_>> = (0..script.number() & 3)
        .map(|nth| {
            let place = places[(script.number() & 3) as usize];
            PlacedItem { displacement: 8 + nth * 512, len: script.number() * 2, place }
        })
        .collect();
    let directed = [
        DirectedPlace::Explicit(Elements::new(&segments)),
        DirectedPlace::Buffers,
        DirectedPlace::Choice(Elements::new(&segments)),
        DirectedPlace::BySize { threshold: 100, segments: Elements::new(&segments) },
    ];
    let directions: Vec<ResultDirection<'_>> = (0..script.number() & 3)
        .map(|_| ResultDirection {
            min_len: script.number(),
            place: directed[(script.number() & 3) as usize],
        })
        .collect();
    let sets = [DirectionSet { begin: 0, end: 9, items: Elements::new(&directions) }];
    let [more, payload_len] = [script.number() & 3, script.number()];
    let id = TransmissionId { xid, direction: direction.opposite(), number: more };
    let fault = GroupFault::Number { expected: more, found: count };
    let operation = match kind & 7 {
        0 | 1 if direction == MessageType::Call => OptionalOperation::Request(RequestTransmission {
            items: Elements::new(&items),
            directions: Elements::new(&sets),
            count: 1 + more,
            response_receives: count,
            payload_len: payload_len + 8,
        }),
        0 | 1 => OptionalOperation::Response(ResponseTransmission {
            items: Elements::new(&items),
            count: 1 + more,
            payload_len: payload_len + 8,
        }),
        2 | 3 => OptionalOperation::Continuation(Continuation {
            number: more,
            lead_option: if direction == MessageType::Call { option::XMTREQ } else { option::XMTRESP },
            payload_len,
        }),
        4 => {
            let lead = (more & 1 != 0).then_some(id);
            OptionalOperation::Error(TransmissionError { bad: id, lead, fault })
        }
        5 => {
            let code = [ErrorCode2::BadHeader, ErrorCode2::InvalidOption][(more & 1) as usize];
            let len = emit_error(&mut out, xid, 2, credits, code).expect("28 octets");
            out.truncate(len);
            return out;
        }
        6 => return script.octets().to_vec(),
        _ => {
            let words = [xid, 2, credits, 0, direction.number(), 0, 0, 0, xid, direction.number()];
            return words.iter().flat_map(|word| word.to_be_bytes()).collect();
        }
    };
    let Ok((at, rest)) = operation.emit(&mut out, direction, xid, credits) else { return Vec::new() };
    if let Some(start) = rest.first_chunk_mut::<8>() {
        start[..4].copy_from_slice(&xid.to_be_bytes());
        start[7] = direction.number() as u8;
    }
    let len = (at as u32 + script.number() * 4).min(out.len() as u32) as usize;
    out.truncate(len);
    if kind & 0x40 != 0 && !out.is_empty() {
        let at = script.number() as usize * 4 % out.len();
        out[at] ^= script.octet().unwrap_or(1);
    }
    out
}

/// Keeps a transmission. The first one of a group takes the place of what was kept of another.
fn keep(kept: &mut Vec<Vec<u8>>, number: u32, message: Vec<u8>) {
    if number == 0 {
        kept.clear();
    }
    kept.push(message);
}

/// Checks that each item of a message that is whole lies in octets that came, and nowhere twice.
fn check_items(map: &PlacementMap, items: &Elements<'_, PlacedItem<'_>>, kept: &[Vec<u8>]) {
    let mut used: Vec<Vec<bool>> = kept.iter().map(|message| vec![false; message.len()]).collect();
    for item in items.iter().filter(|item| matches!(item.place, ItemPlace::Buffers { .. })) {
        let mut len = 0;
        for span in map.spans(&item) {
            len += span.len;
            for octet in &mut used[span.transmission as usize][span.at as usize..][..span.len as usize] {
                assert!(!std::mem::replace(octet, true), "it lies on another item");
            }
        }
        assert_eq!(len, item.len);
    }
}

fn parameters() -> Parameters {
    Parameters { call_threshold: 1024, reply_threshold: 1024, remote_invalidation: false }
}

/// A Responder of version 2 whose peer sends what it likes: each Call is answered once, its credits come back, and what is
/// said to lie in Receives came.
pub fn responder2(data: &[u8]) {
    let mut script = Script(data);
    let own = own(script.number());
    let limits =
        ChunkLimits { segments: 12, read_chunks: 3, write_chunks: 3, chunk_len: 1 << 16, pull_len: 1 << 17 };
    let mut responder =
        Responder::new(&responder::ResponderConfig { slots: SLOTS, parameters: parameters(), limits });
    let mut second = Responder2::new(&own, 4096);
    responder.receives_posted(SLOTS);
    let mut kept: Vec<Vec<u8>> = Vec::new();
    let mut open: Vec<(responder::ResponderCallId, Vec<u8>)> = Vec::new();
    let mut xid = 100;
    while let Some(what) = script.octet() {
        if what & 3 == 3 {
            if let Some((id, lead)) = open.pop() {
                answer(&mut responder, &mut second, (id, &lead), &own.layout, &mut script);
            }
        } else {
            if what & 4 != 0 {
                xid += 2;
            }
            let message = message(&mut script, xid, MessageType::Call);
            let lead = kept.first().cloned();
            let (event, _) = second.handle_receive(&mut responder, &message, lead.as_deref());
            match event {
                ResponderEvent2::Call(call) => {
                    assert_eq!(call.read_chunk_count(), call.read_chunks().count());
                    open.push((call.id, message.clone()));
                }
                ResponderEvent2::Part { part, header_len } => {
                    assert!((header_len + part.len) as usize <= message.len());
                    keep(&mut kept, part.number, message.clone());
                }
                ResponderEvent2::Whole { id, part, header_len } => {
                    assert!((header_len + part.len) as usize <= message.len());
                    keep(&mut kept, part.number, message.clone());
                    check_items(second.map(), &Responder2::items(&kept[0]), &kept);
                    open.push((id, kept[0].clone()));
                }
                ResponderEvent2::Answer(answer) => {
                    let _ = Header2::parse(answer.as_bytes()).expect("a good message");
                }
                ResponderEvent2::Close(_) => break,
                _ => {}
            }
            if !second.has_open_group() {
                kept.clear();
            }
            responder.receives_posted(1);
        }
        assert!(responder.grant().check());
        assert!(responder.grant().in_process() as usize >= open.len());
    }
    second.handle_disconnect();
    responder.handle_disconnect(|_| ());
    assert_eq!(responder.grant().in_process(), 0, "all credits came back");
}

fn answer(
    responder: &mut Responder,
    second: &mut Responder2,
    (id, lead): (responder::ResponderCallId, &[u8]),
    layout: &ReceiveLayout,
    script: &mut Script<'_>,
) {
    let before = responder.grant().in_process();
    let results: Vec<ResultItem> = (0..script.number() & 3)
        .map(|nth| ResultItem { source: 0, displacement: 8 + nth * 2048, len: script.number() * 4 })
        .collect();
    let stream_len = 8 + results.iter().map(|item| item.len).sum::<u32>();
    let reply = GroupReply { results: &results, stream_len, layout };
    match second.plan_group(responder, id, lead, &reply) {
        Ok(plan) => {
            let cut = plan.cut(layout);
            for sent in cut.transmissions() {
                let mut out = vec![0; sent.len as usize];
                if sent.number == 0 {
                    second.emit_lead(responder, id, lead, &reply, &plan, &mut out).expect("open");
                } else {
                    second.emit_continuation(responder, &sent, &mut out).expect("room").expect("open");
                }
                let (header, _) = Header2::parse(&out).expect("a good header");
                let Body2::Optional(found) = header.body else { panic!("an operation") };
                let _ = OptionalOperation::parse(&found).expect("a good operation");
            }
        }
        Err(error) => match responder.plan_reply(id, lead, &[], 8) {
            Ok(form) if script.number() & 1 == 0 => {
                let mut out = [0; 4096];
                responder.emit_reply(id, lead, &[], &form, &mut out).expect("it was planned");
            }
            _ => assert!(responder.refuse(id, RefusedCall::Reply(error)).is_some()),
        },
    }
    assert!(responder.grant().in_process() < before, "it is answered");
    assert!(!responder.discard(id), "once");
}

/// A Requester of version 2 whose peer sends what it likes: each Call ends once, and its credits and Receives come back.
pub fn requester2(data: &[u8]) {
    let mut script = Script(data);
    let own = own(script.number());
    let mut peer = PeerCharacteristics::default();
    let mut initial = [0; 256];
    let len = own.emit_initial(4, &mut initial).expect("it is short");
    if let Ok((Header2 { body: Body2::Optional(found), .. }, _)) = Header2::parse(&initial[..len])
        && let Ok(OptionalOperation::Initial(initial)) = OptionalOperation::parse(&found)
    {
        peer.handle_initial(&initial);
    }
    let mut requester = Requester::new(&requester::RequesterConfig {
        slots: SLOTS,
        parameters: parameters(),
        credits_requested: SLOTS,
        segments_max: 8,
        xid_seed: 1,
    });
    let mut second = Requester2::new(SLOTS, &own, 4096);
    let mut kept: Vec<Vec<u8>> = Vec::new();
    let mut calls: Vec<RequesterCallId> = Vec::new();
    let (mut promised, mut unused) = (0, 0);
    while let Some(what) = script.octet() {
        match what & 3 {
            0 => promised += call(&mut requester, &mut second, &peer, &own, &mut calls, &mut script),
            1 if what & 0x70 == 0 => {
                if let Some(call) = calls.get(usize::from(what >> 2 & 3)) {
                    let _ = requester.cancel(*call);
                }
            }
            _ => {
                let xid = calls.get(usize::from(what >> 2 & 3)).map_or(5, |call| call.xid());
                let message = message(&mut script, xid, MessageType::Reply);
                let lead = kept.first().cloned();
                let (event, _) = second.handle_receive(&mut requester, &message, None, lead.as_deref());
                let ended = match event {
                    RequesterEvent2::Base(RequesterReceived::Reply(reply)) => {
                        Some((reply.call, reply.memory))
                    }
                    RequesterEvent2::Base(
                        RequesterReceived::Failed { call, memory, .. }
                        | RequesterReceived::Late { call, memory },
                    ) => Some((call, memory)),
                    RequesterEvent2::Part { part, header_len } => {
                        assert!((header_len + part.len) as usize <= message.len());
                        keep(&mut kept, part.number, message);
                        None
                    }
                    RequesterEvent2::Whole { call, part, header_len, memory } => {
                        assert!((header_len + part.len) as usize <= message.len());
                        keep(&mut kept, part.number, message);
                        check_items(second.map(), &Requester2::items(&kept[0]), &kept);
                        Some((call, memory))
                    }
                    RequesterEvent2::Fault(answer) => {
                        let _ = Header2::parse(answer.as_bytes()).expect("a good message");
                        None
                    }
                    _ => None,
                };
                if !second.has_open_group() {
                    kept.clear();
                }
                if let Some((call, memory)) = ended {
                    let at = calls.iter().position(|known| *known == call).expect("a Call ends once");
                    calls.swap_remove(at);
                    while memory == ExposedMemory::Exposed
                        && let Some(handle) = requester.poll_fence(call)
                    {
                        assert!(requester.handle_fenced(call, handle).is_some());
                    }
                }
                unused += second.take_unused();
            }
        }
        assert!(unused <= promised, "no promise is taken back that was not made");
        assert!(requester.window().in_flight() as usize >= calls.len());
        if calls.is_empty() {
            assert_eq!(requester.window().in_flight(), 0, "all credits came back");
        }
    }
    second.handle_disconnect(&mut requester);
    requester.handle_disconnect(|_, _| ());
    assert_eq!(requester.window().in_flight(), 0);
}

/// Makes a Call if there is a credit. Returns the Receives that are promised for its Reply.
fn call(
    requester: &mut Requester,
    second: &mut Requester2,
    peer: &PeerCharacteristics,
    own: &OwnCharacteristics,
    calls: &mut Vec<RequesterCallId>,
    script: &mut Script<'_>,
) -> u32 {
    let Some(call) = requester.begin() else { return 0 };
    let layout = peer.layout(own.send_len_max);
    let item_len = script.number() * 4;
    let range = layout.place(0, item_len, u32::MAX).filter(|_| layout.targets() > 0);
    let placed: Vec<PlacedItem<'_>> = range
        .iter()
        .map(|range| {
            let place = ItemPlace::Buffers { offset: 0, numbers: target_numbers(range) };
            PlacedItem { displacement: 8, len: item_len, place }
        })
        .collect();
    let lens = [item_len];
    let segments = [Segment { handle: 7, length: script.number() * 8, offset: 0 }];
    let directed = [
        DirectedPlace::Explicit(Elements::new(&segments)),
        DirectedPlace::Buffers,
        DirectedPlace::Choice(Elements::new(&segments)),
        DirectedPlace::BySize { threshold: 100, segments: Elements::new(&segments) },
    ];
    let wanted = script.number();
    let directions: Vec<ResultDirection<'_>> = (0..wanted & 1)
        .map(|_| ResultDirection { min_len: wanted >> 4, place: directed[(wanted >> 1 & 3) as usize] })
        .collect();
    let sets = [DirectionSet { begin: 0, end: 9, items: Elements::new(&directions) }];
    let group = GroupCall {
        items: &placed,
        target_lens: &lens[..placed.len()],
        directions: Elements::new(&sets),
        payload_len: 8 + script.number() * 8,
        response_receives: (wanted >> 3 & 3).min(own.response_receives),
    };
    calls.push(call);
    if let Ok(cut) = second.plan_group(requester, peer, &layout, &group) {
        let chunk = if wanted >> 1 & 3 == 1 { &[][..] } else { &segments };
        let writes = [chunk];
        let lists = ChunkLists { writes: &writes[..directions.len()], ..ChunkLists::default() };
        for sent in cut.transmissions() {
            let mut out = vec![0; sent.len as usize];
            if sent.number == 0 {
                second.emit_lead(requester, call, &group, &cut, &lists, &mut out).expect("as planned");
            } else {
                let len = second.emit_continuation(requester, call, &sent, &mut out).expect("room");
                assert!(len.is_some(), "it was not refused");
            }
        }
        return 1 + group.response_receives;
    }
    let shape = Shape { payload_len: 8, ..Shape::default() };
    let form = second.plan(requester, peer, own, &shape).expect("it fits");
    let mut out = [0; 64];
    second.emit_call(requester, call, &form, &ChunkLists::default(), &mut out).expect("as planned");
    1
}
