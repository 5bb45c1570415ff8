//! Calls of version 2 between two ends: what each way of a Call takes and gives back, and random lives from a seed.

use std::collections::{HashMap, VecDeque};

use stag_proto::characteristics::PeerCharacteristics;
use stag_proto::directions::ResultItem;
use stag_proto::layout::{ReceiveLayout, target_numbers};
use stag_proto::receives::{ReceivePurpose, Receives};
use stag_proto::requester::{
    self, CallFailure, ChunkLists, ExposedMemory, GroupCall, Requester, Requester2, RequesterEvent2,
    RequesterReceived, Shape,
};
use stag_proto::responder::{self, GroupReply, Responder, Responder2, ResponderEvent2, is_version2};
use stag_proto::version2::OwnCharacteristics;
use stag_wire::rpcrdma::Segment;
use stag_wire::rpcrdma2::{
    Body2, DirectedPlace, DirectionSet, Elements, Header2, ItemPlace, OptionalOperation, PlacedItem,
    ResultDirection,
};

use crate::support::{Random, assemble, limits, octets, parameters, requester_with, words};

pub(crate) const SLOTS: u32 = 8;

/// For each Call as it is answered: the virtual stream that its Reply must have.
type Expected = HashMap<u32, Vec<u8>>;

/// One connection: a client, a server, and the messages between them.
pub(crate) struct Pair {
    pub(crate) own: OwnCharacteristics,
    pub(crate) peer: PeerCharacteristics,
    pub(crate) layout: ReceiveLayout,
    pub(crate) requester: Requester,
    pub(crate) requester2: Requester2,
    pub(crate) receives: Receives,
    pub(crate) responder: Responder,
    pub(crate) responder2: Responder2,
    pub(crate) to_server: VecDeque<Vec<u8>>,
    pub(crate) to_client: VecDeque<Vec<u8>>,
    /// Calls as they were made, by xid.
    pub(crate) calls: Expected,
    /// What was written into the client's memory, by handle.
    pub(crate) memory: HashMap<u32, Vec<u8>>,
    pub(crate) next_handle: u32,
    /// The transmissions that each end keeps of the group that is incomplete.
    pub(crate) kept_by_server: Vec<(Vec<u8>, u32, u32)>,
    pub(crate) kept_by_client: Vec<(Vec<u8>, u32, u32)>,
    /// Calls in process, with their messages.
    pub(crate) serving: Vec<(responder::ResponderCallId, u32, Vec<Vec<u8>>)>,
    /// What the Replies say.
    pub(crate) replies: Expected,
    pub(crate) answered: u32,
    pub(crate) by_group: u32,
    pub(crate) by_several: u32,
    pub(crate) refused: u32,
    pub(crate) late: u32,
}

impl Pair {
    pub(crate) fn new(random: &mut Random) -> Pair {
        let layout = match random.below(3) {
            0 => ReceiveLayout::plain(4096),
            1 => ReceiveLayout::with_targets(1024, 2, 1024, 1024),
            _ => ReceiveLayout::with_targets(1024, 1 + random.below(8), 4096, 4096),
        };
        let own = OwnCharacteristics {
            layout,
            send_len_max: layout.len(),
            request_limit: 1 + random.below(4),
            response_limit: 1 + random.below(4),
            response_receives: random.below(4),
            reverse_support: Default::default(),
        };
        let parameters = parameters(1024, 1024, false);
        let mut peer = PeerCharacteristics::default();
        let mut message = [0; 256];
        let len = own.emit_initial(9, &mut message).expect("it is short");
        let (header, _) = Header2::parse(&message[..len]).expect("a good header");
        let Body2::Optional(found) = header.body else { panic!("{header:?}") };
        match OptionalOperation::parse(&found) {
            Ok(OptionalOperation::Initial(initial)) => peer.handle_initial(&initial),
            other => panic!("{other:?}"),
        }
        let mut pair = Pair {
            own,
            peer,
            layout: peer.layout(own.send_len_max),
            requester: requester_with(SLOTS, parameters),
            requester2: Requester2::new(SLOTS, &own, 1 << 20),
            receives: Receives::new(),
            responder: Responder::new(&responder::ResponderConfig {
                slots: SLOTS,
                parameters,
                limits: limits(),
            }),
            responder2: Responder2::new(&own, 1 << 20),
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            calls: HashMap::new(),
            memory: HashMap::new(),
            next_handle: 1,
            kept_by_server: Vec::new(),
            kept_by_client: Vec::new(),
            serving: Vec::new(),
            replies: HashMap::new(),
            answered: 0,
            by_group: 0,
            by_several: 0,
            refused: 0,
            late: 0,
        };
        assert_eq!(pair.layout, layout, "as it was told");
        pair.responder.receives_posted(SLOTS);
        pair.responder.set_credit_limit(SLOTS);
        pair.responder2.set_threshold(&mut pair.responder, layout.len());
        pair
    }

    fn segment(&mut self, len: u32) -> Segment {
        self.next_handle += 1;
        Segment { handle: self.next_handle, length: len, offset: 0 }
    }

    pub(crate) fn promise(&mut self, count: u32) {
        self.receives.post(count);
        assert_eq!(self.receives.promise(ReceivePurpose::Reply, count), count);
    }

    /// Makes a Call: in a group if it fits, else by a base message without items.
    fn call(&mut self, random: &mut Random) {
        let Some(call) = self.requester.begin() else { return };
        let mut payload = words(&[call.xid(), 0]);
        let bound = if random.once_in(3) { 900 } else { 40 };
        payload.extend(octets(1, 4 * random.below(bound)));
        let mut items = Vec::new();
        let mut placed = 0;
        for salt in 0..random.below(3) {
            let item = octets(salt + 7, random.below(9000));
            let at = 8 + placed + 4 * random.below((payload.len() as u32 - 8) / 4 + 1);
            let at = items.last().map_or(at, |(last, item): &(u32, Vec<u8>)| {
                at.max(last + (item.len() as u32).next_multiple_of(4))
            });
            if at - placed > payload.len() as u32 {
                continue;
            }
            placed += (item.len() as u32).next_multiple_of(4);
            items.push((at, item));
        }
        let directed: Vec<(u32, Segment, u32)> = (0..random.below(3))
            .map(|_| (random.below(4), self.segment(random.below(9000)), random.below(500)))
            .collect();
        let directions: Vec<ResultDirection<'_>> = directed
            .iter()
            .map(|(kind, segment, min_len)| {
                let segments = Elements::new(std::slice::from_ref(segment));
                let place = match kind {
                    0 => DirectedPlace::Explicit(segments),
                    1 => DirectedPlace::Buffers,
                    2 => DirectedPlace::Choice(segments),
                    _ => DirectedPlace::BySize { threshold: 3000, segments },
                };
                ResultDirection { min_len: *min_len, place }
            })
            .collect();
        let sets = [DirectionSet { begin: 0, end: 8, items: Elements::new(&directions) }];
        let sets = if directions.is_empty() { &[][..] } else { &sets[..] };
        let lens: Vec<u32> = items.iter().map(|(_, item)| item.len() as u32).collect();
        let mut next = 0;
        let placed: Option<Vec<PlacedItem<'_>>> = items
            .iter()
            .map(|(at, item)| {
                let len = item.len() as u32;
                let range = self.layout.place(next, len, u32::MAX)?;
                next = range.end;
                let place = ItemPlace::Buffers { offset: 0, numbers: target_numbers(&range) };
                Some(PlacedItem { displacement: *at, len, place })
            })
            .collect();
        let layout = self.layout;
        let placed = placed.unwrap_or_default();
        let response_receives = random.below(self.own.response_receives + 1);
        let group = GroupCall {
            items: &placed,
            target_lens: &lens,
            directions: Elements::new(sets),
            payload_len: payload.len() as u32,
            response_receives,
        };
        assert_eq!(group.has_targets(), !placed.is_empty());
        let cut = self.requester2.plan_group(&self.requester, &self.peer, &layout, &group);
        let cut = cut.ok().filter(|_| placed.len() == items.len());
        let Some(cut) = cut else {
            payload.truncate(1000);
            let shape = Shape { payload_len: payload.len() as u32, ..Shape::default() };
            let form = self.requester2.plan(&self.requester, &self.peer, &self.own, &shape).expect("short");
            let mut out = vec![0; 4096];
            let lists = ChunkLists::default();
            let len = self
                .requester2
                .emit_call(&mut self.requester, call, &form, &lists, &mut out)
                .expect("it fits");
            assert_eq!(len, 32);
            out.truncate(len);
            out.extend(&payload);
            self.promise(1);
            self.calls.insert(call.xid(), payload);
            self.to_server.push_back(out);
            return;
        };
        let before = self.requester.window().in_flight();
        let writes: Vec<&[Segment]> = directed
            .iter()
            .map(|(kind, segment, _)| if *kind == 1 { &[][..] } else { std::slice::from_ref(segment) })
            .collect();
        let lists = ChunkLists { writes: &writes, ..ChunkLists::default() };
        self.promise(1 + response_receives);
        for sent in cut.transmissions() {
            let mut out = vec![0; sent.len as usize];
            let len = match sent.number {
                0 => self.requester2.emit_lead(&mut self.requester, call, &group, &cut, &lists, &mut out),
                _ => self
                    .requester2
                    .emit_continuation(&self.requester, call, &sent, &mut out)
                    .map(|len| len.expect("it was not refused")),
            };
            let at = len.expect("as planned");
            let part = sent.payload_at as usize..(sent.payload_at + sent.payload_len) as usize;
            out[at..at + part.len()].copy_from_slice(&payload[part]);
            for piece in cut.pieces(&sent) {
                let source = &items[piece.item].1[piece.from as usize..(piece.from + piece.len) as usize];
                out[piece.at as usize..(piece.at + piece.len) as usize].copy_from_slice(source);
            }
            self.to_server.push_back(out);
        }
        assert_eq!(self.requester.window().in_flight(), before + cut.count() - 1, "a credit for each");
        self.by_group += 1;
        self.by_several += u32::from(cut.count() > 1);
        self.calls.insert(call.xid(), assemble(&payload, &items));
    }

    pub(crate) fn server_takes(&mut self) {
        let Some(message) = self.to_server.pop_front() else { return };
        assert!(is_version2(&message) && message.len() as u32 <= self.layout.len());
        assert!(self.responder.grant().receives() > 0, "a Receive for each message");
        let lead = self.kept_by_server.first().map(|(lead, ..)| lead.clone());
        let (event, broken) = self.responder2.handle_receive(&mut self.responder, &message, lead.as_deref());
        assert!(broken.is_none());
        let call = match event {
            ResponderEvent2::Call(call) => {
                let responder::CallPayload::Inline(stream) = call.payload else { panic!("it was short") };
                assert_eq!(self.calls[&call.xid()], stream);
                Some((call.id, call.xid(), vec![message.clone()]))
            }
            ResponderEvent2::Part { part, header_len } => {
                self.kept_by_server.push((message.clone(), header_len, part.len));
                None
            }
            ResponderEvent2::Whole { id, part, header_len } => {
                self.kept_by_server.push((message.clone(), header_len, part.len));
                let kept = std::mem::take(&mut self.kept_by_server);
                let items = Responder2::items(&kept[0].0);
                let stream = gather(&kept, self.responder2.map(), &items, |_, _| Vec::new());
                assert_eq!(self.calls[&part.xid], stream);
                Some((id, part.xid, kept.into_iter().map(|(message, ..)| message).collect()))
            }
            other => panic!("{other:?}"),
        };
        self.serving.extend(call);
        assert!(self.responder.grant().check());
    }

    /// Answers one of the Calls.
    pub(crate) fn answer(&mut self, random: &mut Random) {
        if self.serving.is_empty() {
            return;
        }
        let (id, xid, messages) = self.serving.swap_remove(random.below(self.serving.len() as u32) as usize);
        let lead = &messages[0];
        let directions = Responder2::directions(lead);
        let is_group = matches!(Header2::parse(lead).expect("good").0.body, Body2::Optional(_));
        let mut payload = words(&[xid, 1]);
        payload.extend(octets(3, 4 * random.below(60)));
        let mut results = Vec::new();
        let mut items = Vec::new();
        let mut stream_len = payload.len() as u32;
        for salt in 0..if is_group { random.below(3) } else { 0 } {
            let item = octets(salt + 40, random.below(6000));
            let len = item.len() as u32;
            results.push(ResultItem { source: 0, displacement: stream_len, len });
            items.push((stream_len, item));
            stream_len += len.next_multiple_of(4);
        }
        // The virtual stream: the payload, and the items behind it, one after the other.
        let stream = assemble(&payload, &items);
        assert_eq!(stream.len() as u32, stream_len);
        self.responder.receives_posted(messages.len() as u32);
        let layout = self.layout;
        let reply = GroupReply { results: &results, stream_len, layout: &layout };
        let fits = self.responder.plan_reply(id, lead, &[], stream_len).is_ok();
        let is_plain = directions.is_empty() && fits;
        if is_plain && random.once_in(2) || !is_group {
            let form = self.responder.plan_reply(id, lead, &[], stream_len).expect("it fits");
            let mut out = vec![0; 4096];
            let emitted = self.responder.emit_reply(id, lead, &[], &form, &mut out).expect("in process");
            out.truncate(emitted.header_len);
            out.extend(&stream);
            self.replies.insert(xid, stream);
            self.to_client.push_back(out);
            return;
        }
        let plan = match self.responder2.plan_group(&self.responder, id, lead, &reply) {
            Ok(plan) => plan,
            Err(error) => {
                let refused = responder::RefusedCall::Reply(error);
                let error = self.responder.refuse(id, refused).expect("in process");
                assert_eq!(error.as_bytes().len(), 20);
                self.to_client.push_back(error.as_bytes().to_vec());
                self.refused += 1;
                return;
            }
        };
        // What stays in the Payload stream, and what is placed.
        let mut is_placed = vec![None; results.len()];
        for entry in plan.placed.iter() {
            use stag_proto::directions::ResultPlace::{Explicit, Targets};
            if let (Some(result), Explicit | Targets) = (entry.result, entry.place) {
                is_placed[result] = Some(entry.place);
            }
        }
        for ((_, item), place) in items.iter().zip(&is_placed) {
            if place.is_none() {
                payload.extend(item);
                payload.resize(payload.len().next_multiple_of(4), 0);
            }
        }
        assert_eq!(payload.len() as u32, plan.payload_len);
        for (entry, direction) in plan.placed.iter().zip(directions.iter().flat_map(|set| set.items.iter())) {
            if entry.place == stag_proto::directions::ResultPlace::Explicit {
                let item = &items[entry.result.expect("an item")].1;
                let segment = direction.place.segments().iter().next().expect("one segment");
                self.memory.insert(segment.handle, item.clone());
            }
        }
        let targets: Vec<&Vec<u8>> = plan
            .placed
            .iter()
            .filter(|entry| entry.place == stag_proto::directions::ResultPlace::Targets)
            .map(|entry| &items[entry.result.expect("an item")].1)
            .collect();
        let cut = plan.cut(&layout);
        for sent in cut.transmissions() {
            let mut out = vec![0; sent.len as usize];
            let at = if sent.number == 0 {
                let second = &mut self.responder2;
                second.emit_lead(&mut self.responder, id, lead, &reply, &plan, &mut out).expect("open")
            } else {
                let second = &mut self.responder2;
                second.emit_continuation(&self.responder, &sent, &mut out).expect("room").expect("open")
            };
            let part = sent.payload_at as usize..(sent.payload_at + sent.payload_len) as usize;
            out[at..at + part.len()].copy_from_slice(&payload[part]);
            for piece in cut.pieces(&sent) {
                let source = &targets[piece.item][piece.from as usize..(piece.from + piece.len) as usize];
                out[piece.at as usize..(piece.at + piece.len) as usize].copy_from_slice(source);
            }
            self.to_client.push_back(out);
        }
        self.replies.insert(xid, stream);
    }

    fn cancel(&mut self, random: &mut Random) {
        let Some(call) = self.requester.call_at(random.below(SLOTS) as usize) else { return };
        let _ = self.requester.cancel(call);
    }

    pub(crate) fn client_takes(&mut self) {
        let Some(message) = self.to_client.pop_front() else { return };
        assert!(message.len() as u32 <= self.layout.len());
        assert!(self.receives.posted() > 0, "a Receive for each message");
        let lead = self.kept_by_client.first().map(|(lead, ..)| lead.clone());
        let (event, broken) =
            self.requester2.handle_receive(&mut self.requester, &message, None, lead.as_deref());
        assert!(broken.is_none());
        let (call, memory) = match event {
            RequesterEvent2::Base(RequesterReceived::Reply(reply)) => {
                let requester::ReplyPayload::Inline(stream) = reply.payload else { panic!("it was short") };
                assert_eq!(self.replies[&reply.call.xid()], stream);
                self.answered += 1;
                (reply.call, reply.memory)
            }
            RequesterEvent2::Base(RequesterReceived::Failed { call, failure, memory }) => {
                assert_eq!(failure, CallFailure::Chunk, "the server could not send it");
                (call, memory)
            }
            RequesterEvent2::Base(RequesterReceived::Late { call, memory }) => {
                self.kept_by_client.clear();
                self.late += 1;
                (call, memory)
            }
            RequesterEvent2::Part { part, header_len } => {
                assert!(self.receives.consume(Some(ReceivePurpose::Reply)));
                self.kept_by_client.push((message.clone(), header_len, part.len));
                return;
            }
            RequesterEvent2::Whole { call, part, header_len, memory } => {
                self.kept_by_client.push((message.clone(), header_len, part.len));
                let kept = std::mem::take(&mut self.kept_by_client);
                let items = Requester2::items(&kept[0].0);
                let written = |handle, len: u32| self.memory[&handle][..len as usize].to_vec();
                let stream = gather(&kept, self.requester2.map(), &items, written);
                assert_eq!(self.replies[&call.xid()], stream);
                self.answered += 1;
                (call, memory)
            }
            other => panic!("{other:?}"),
        };
        assert!(self.receives.consume(Some(ReceivePurpose::Reply)), "the peer is entitled to it");
        self.receives.withdraw(ReceivePurpose::Reply, self.requester2.take_unused());
        if memory == ExposedMemory::Exposed {
            while let Some(handle) = self.requester.poll_fence(call) {
                assert!(self.requester.handle_fenced(call, handle).is_some());
            }
        }
    }

    fn check(&self) {
        assert!(self.receives.missing() == 0);
        if self.to_client.is_empty() && self.to_server.is_empty() && self.serving.is_empty() {
            assert_eq!((self.requester.window().in_flight(), self.responder.grant().in_process()), (0, 0));
            assert_eq!(self.receives.entitled(), 0, "each promise was kept or withdrawn");
        }
    }
}

/// The virtual stream of a message that is whole. `written(handle, len)`: what went into registered memory.
fn gather(
    kept: &[(Vec<u8>, u32, u32)],
    map: &stag_proto::placement::PlacementMap,
    items: &Elements<'_, PlacedItem<'_>>,
    written: impl Fn(u32, u32) -> Vec<u8>,
) -> Vec<u8> {
    let mut payload = Vec::new();
    for (message, header_len, len) in kept {
        payload.extend(&message[*header_len as usize..(header_len + len) as usize]);
    }
    let mut found = Vec::new();
    for item in items.iter() {
        let octets = match item.place {
            ItemPlace::Buffers { .. } => map
                .spans(&item)
                .flat_map(|span| {
                    kept[span.transmission as usize].0[span.at as usize..(span.at + span.len) as usize]
                        .to_vec()
                })
                .collect(),
            ItemPlace::Explicit(segments) => {
                segments.iter().flat_map(|segment| written(segment.handle, segment.length)).collect()
            }
            ItemPlace::TooShort | ItemPlace::NoItem => continue,
        };
        found.push((item.displacement, octets));
    }
    assemble(&payload, &found)
}

#[test]
fn calls_of_every_way_live_and_end() {
    // RTR-4.3-a RTR-4.3-b RTR-4.3-c RTR-5.2-a RTR-5.2-b RTR-7.3-d RTR-7.4-f RTR-9.2-a RTR-9.3-a RTR-X-3 RTR-X-8 V2-5.3-a
    let mut sums = [0; 5];
    for seed in 0..600 {
        let mut random = Random::new(seed);
        let mut pair = Pair::new(&mut random);
        for _ in 0..150 {
            match random.below(10) {
                0..3 => pair.call(&mut random),
                3..5 => pair.answer(&mut random),
                5 if random.once_in(4) => pair.cancel(&mut random),
                5..8 => pair.server_takes(),
                _ => pair.client_takes(),
            }
            pair.check();
        }
        if random.once_in(3) {
            let mut told = 0;
            pair.requester2.handle_disconnect(&mut pair.requester);
            pair.requester.handle_disconnect(|_, _| told += 1);
            assert_eq!(pair.requester.window().in_flight(), 0);
            pair.responder2.handle_disconnect();
            pair.responder.handle_disconnect(|_| told += 1);
            assert_eq!(pair.responder.grant().in_process(), 0);
        } else {
            while !(pair.to_server.is_empty() && pair.to_client.is_empty() && pair.serving.is_empty()) {
                pair.server_takes();
                pair.answer(&mut random);
                pair.client_takes();
            }
            pair.check();
        }
        let found = [pair.answered, pair.by_group, pair.by_several, pair.refused, pair.late];
        sums = std::array::from_fn(|at| sums[at] + found[at]);
    }
    let [answered, by_group, by_several, refused, late] = sums;
    assert!(answered > 5000 && by_group > 3000 && by_several > 300 && refused > 300 && late > 50, "{sums:?}");
}
