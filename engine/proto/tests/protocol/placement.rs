//! Items in targets: two ends that cut and place at random, and each thing that the receiver refuses (rtrext).

use stag_proto::cut::{MessageCut, MessageShape};
use stag_proto::group::{GroupReceiver, Lead, Transmitted};
use stag_proto::layout::{ReceiveLayout, target_numbers};
use stag_proto::placement::{ItemSpan, PlacementError, PlacementMap};
use stag_wire::rpcrdma2::{
    Body2, Continuation, Elements, GroupFault, Header2, ItemPlace, MessageType, OptionalOperation,
    PlacedItem, RequestTransmission, option,
};

use crate::support::{Random, assemble, octets};

/// A Call: its Payload stream, and items with their displacements in the virtual stream.
struct Example {
    payload: Vec<u8>,
    items: Vec<(u32, Vec<u8>)>,
}

impl Example {
    fn new(random: &mut Random) -> Example {
        let mut payload = 7_u32.to_be_bytes().to_vec();
        payload.extend([0; 4]);
        let mut items = Vec::new();
        let mut placed = 0;
        for salt in 0..random.below(4) {
            payload.extend(octets(salt, 4 * random.below(60)));
            let item = octets(salt + 9, random.below(3000));
            let at = payload.len() as u32 + placed;
            placed += (item.len() as u32).next_multiple_of(4);
            items.push((at, item));
        }
        let bound = if random.once_in(4) { 1000 } else { 60 };
        payload.extend(octets(99, 4 * random.below(bound)));
        Example { payload, items }
    }

    /// The whole XDR stream.
    fn virtual_stream(&self) -> Vec<u8> {
        assemble(&self.payload, &self.items)
    }

    /// The Sends that carry it to Receives of `layout`.
    fn send(&self, layout: &ReceiveLayout, limit: u32) -> Option<Vec<Vec<u8>>> {
        let lens: Vec<u32> = self.items.iter().map(|(_, item)| item.len() as u32).collect();
        let mut next = 0;
        let mut placed = Vec::new();
        for (at, item) in &self.items {
            let len = item.len() as u32;
            let range = layout.place(next, len, u32::MAX)?;
            next = range.end;
            let place = ItemPlace::Buffers { offset: 0, numbers: target_numbers(&range) };
            placed.push(PlacedItem { displacement: *at, len, place });
        }
        let mut lead = RequestTransmission {
            items: Elements::new(&placed),
            directions: Elements::EMPTY,
            count: 0,
            response_receives: 0,
            payload_len: 0,
        };
        let shape = MessageShape {
            lead_len: lead.header_len() as u32,
            payload_len: self.payload.len() as u32,
            items: &lens,
        };
        let cut = MessageCut::new(shape, layout, limit).ok()?;
        let is_named = |(nth, item): (usize, &PlacedItem<'_>)| {
            let ItemPlace::Buffers { offset, numbers } = item.place else { return false };
            offset == cut.offset_of(nth) && numbers.iter().eq(cut.targets_of(nth))
        };
        if !placed.iter().enumerate().all(is_named) {
            return None;
        }
        (lead.count, lead.payload_len) = (cut.count(), cut.first_payload_len());
        let mut sends = Vec::new();
        for sent in cut.transmissions() {
            let operation = match sent.number {
                0 => OptionalOperation::Request(lead),
                number => OptionalOperation::Continuation(Continuation {
                    number,
                    lead_option: option::XMTREQ,
                    payload_len: sent.payload_len,
                }),
            };
            let mut octets = vec![0; sent.len as usize];
            let (header_len, _) = operation.emit(&mut octets, MessageType::Call, 7, 9).expect("it is cut so");
            assert_eq!(header_len as u32, sent.header_len);
            let part = sent.payload_at as usize..(sent.payload_at + sent.payload_len) as usize;
            octets[header_len..header_len + part.len()].copy_from_slice(&self.payload[part]);
            for piece in cut.pieces(&sent) {
                let source =
                    &self.items[piece.item].1[piece.from as usize..(piece.from + piece.len) as usize];
                let place = &mut octets[piece.at as usize..(piece.at + piece.len) as usize];
                assert!(place.iter().all(|octet| *octet == 0), "nothing lies there");
                assert!(piece.at >= sent.header_len + sent.payload_len);
                place.copy_from_slice(source);
            }
            sends.push(octets);
        }
        Some(sends)
    }
}

/// The octets of a checked item.
fn collect(map: &PlacementMap, item: &PlacedItem<'_>, sends: &[Vec<u8>]) -> Vec<u8> {
    let pick =
        |span: ItemSpan| &sends[span.transmission as usize][span.at as usize..(span.at + span.len) as usize];
    map.spans(item).flat_map(|span| pick(span).to_vec()).collect()
}

/// What the receiver makes of the Sends: the virtual stream.
fn receive(sends: &[Vec<u8>], layout: ReceiveLayout, limit: u32) -> Vec<u8> {
    let mut group = GroupReceiver::new(MessageType::Call, 1 << 20);
    let mut map = PlacementMap::new(layout, limit);
    let mut payload = Vec::new();
    let mut items = None;
    for (nth, send) in sends.iter().enumerate() {
        let (header, rest) = Header2::parse(send).expect("a good header");
        let Body2::Optional(message) = header.body else { panic!("{header:?}") };
        let operation = OptionalOperation::parse(&message).expect("a good operation");
        let room = rest.len() as u32;
        let header_len = send.len() as u32 - room;
        let found = match operation {
            OptionalOperation::Request(request) => {
                message.check_start(rest).expect("the start of the Payload stream");
                items = Some(request.items);
                map.begin();
                let RequestTransmission { count, payload_len, .. } = request;
                group.handle_lead(&Lead { xid: message.xid, count, payload_len }, limit, room)
            }
            OptionalOperation::Continuation(found) => group.handle_continuation(message.xid, &found, room),
            other => panic!("{other:?}"),
        };
        let Transmitted::Part(part) = found else { panic!("{found:?}") };
        map.record(header_len, part.len, send.len() as u32);
        assert_eq!(part.at as usize, payload.len());
        payload.extend(&rest[..part.len as usize]);
        assert_eq!(part.is_last, nth + 1 == sends.len());
    }
    let items = items.expect("a lead");
    map.check(&items).expect("all in its place");
    let mut found = Example { payload, items: Vec::new() };
    for item in items.iter() {
        let span = map.spans(&item).next();
        // It begins at a target, in a place of its own.
        assert!(
            span.is_none_or(|span| (0..)
                .map_while(|n| layout.target(n))
                .any(|target| target.start == span.at))
        );
        found.items.push((item.displacement, collect(&map, &item, sends)));
    }
    found.virtual_stream()
}

fn random_layout(random: &mut Random) -> ReceiveLayout {
    match random.below(4) {
        0 => ReceiveLayout::plain(1024 + random.below(4000)),
        1 => ReceiveLayout::with_targets(512, 4, 256 + random.below(512), 0),
        _ => ReceiveLayout::with_targets(512 + random.below(600), 1 + random.below(6), 1024, 4096),
    }
}

#[test]
fn what_one_end_cuts_the_other_puts_together() {
    // RTR-4.2-b RTR-6.2-a RTR-7.3-b RTR-7.3-e RTR-9.2-b RTR-9.4-a RTR-X-9 RTR-X-10
    let (mut sent, mut several, mut refused) = (0, 0, 0);
    for seed in 0..4000 {
        let mut random = Random::new(seed);
        let layout = random_layout(&mut random);
        let limit = 1 + random.below(12);
        let example = Example::new(&mut random);
        let Some(sends) = example.send(&layout, limit) else {
            refused += 1;
            continue;
        };
        assert!(sends.len() <= limit as usize && sends.iter().all(|send| send.len() as u32 <= layout.len()));
        assert_eq!(receive(&sends, layout, limit), example.virtual_stream(), "seed {seed}");
        sent += 1;
        several += u32::from(sends.len() > 1 && !example.items.is_empty());
    }
    assert!(sent > 2000 && several > 300 && refused > 300, "{sent} {several} {refused}");
}

const LAYOUT: (u32, u32, u32) = (100, 2, 50);

/// Two transmissions in Receives of a head of 100 and two targets of 50: the first full, the second up to its octet 170. The
/// Payload stream of the first ends at 110, in its first target.
fn map() -> PlacementMap {
    let mut map = PlacementMap::new(ReceiveLayout::with_targets(LAYOUT.0, LAYOUT.1, LAYOUT.2, 0), 3);
    map.begin();
    map.record(60, 50, 200);
    map.record(40, 0, 170);
    map
}

fn placed<'a>(displacement: u32, len: u32, offset: u32, numbers: &'a [u32]) -> PlacedItem<'a> {
    let place = ItemPlace::Buffers { offset, numbers: Elements::new(numbers) };
    PlacedItem { displacement, len, place }
}

fn check(items: &[PlacedItem<'_>]) -> Result<(), PlacementError> {
    map().check(&Elements::new(items))
}

#[test]
fn items_in_received_octets_are_taken() {
    // RTR-6.2-a RTR-7.3-b
    assert_eq!(check(&[]), Ok(()));
    assert_eq!(check(&[placed(8, 40, 10, &[0])]), Ok(()), "behind the Payload stream in the same target");
    assert_eq!(check(&[placed(8, 120, 0, &[1, 2, 3])]), Ok(()), "up to the last octet");
    assert_eq!(check(&[placed(8, 20, 0, &[3]), placed(28, 50, 0, &[2])]), Ok(()), "in any order of targets");
    assert_eq!(check(&[placed(8, 20, 0, &[2]), placed(28, 30, 20, &[2])]), Ok(()), "two in one");
    assert_eq!(check(&[placed(8, 0, 0, &[])]), Ok(()), "nothing is anywhere");
    assert_eq!(check(&[placed(8, 0, 50, &[3])]), Ok(()), "at the very end of a target");
    let mut map = map();
    let item = placed(8, 70, 40, &[1, 2, 3, 0]);
    assert_eq!(map.check(&Elements::new(&[item])), Ok(()));
    let expected = [(0, 190, 10), (1, 100, 50), (1, 150, 10)];
    assert_eq!(
        map.spans(&item).map(|span| (span.transmission, span.at, span.len)).collect::<Vec<_>>(),
        expected
    );
    // One check does not fill what the next one looks at.
    assert_eq!(map.check(&Elements::new(&[item])), Ok(()));
}

#[test]
fn items_elsewhere_are_an_error() {
    // RTR-5.4-b RTR-9.5-b RTR-X-20 RTR-X-21
    let number = |value| Err(PlacementError::Fault(GroupFault::Target { value, min: 0, max: 3 }));
    assert_eq!(check(&[placed(8, 20, 0, &[4])]), number(4), "a target of a transmission that did not come");
    assert_eq!(check(&[placed(8, 20, 0, &[u32::MAX])]), number(u32::MAX));
    assert_eq!(check(&[placed(8, 21, 0, &[3])]), number(3), "octets that did not come");
    assert_eq!(check(&[placed(8, 41, 9, &[0])]), number(0), "the Payload stream is there");
    assert_eq!(check(&[placed(8, 51, 0, &[1])]), number(4), "the list ends before the item");
    assert_eq!(check(&[placed(8, 1, 0, &[])]), number(4));
    assert_eq!(check(&[placed(8, 100, 0, &[1, 1])]), number(1), "twice in one list");
    assert_eq!(check(&[placed(8, 20, 0, &[1]), placed(28, 20, 19, &[1])]), number(1), "one over the other");
    let offset = GroupFault::Offset { value: 51, min: 0, max: 50 };
    assert_eq!(check(&[placed(8, 20, 51, &[1])]), Err(PlacementError::Fault(offset)));
    assert_eq!(
        check(&[placed(52, 20, 0, &[1])]),
        Err(PlacementError::Displacement(52)),
        "50 octets of payload"
    );
    assert_eq!(check(&[placed(48, 20, 0, &[1]), placed(68, 20, 0, &[2])]), Ok(()));
    let behind = [placed(48, 20, 0, &[1]), placed(72, 20, 0, &[2])];
    assert_eq!(check(&behind), Err(PlacementError::Displacement(72)));
    // Receives without targets.
    let mut plain = PlacementMap::new(ReceiveLayout::plain(1000), 3);
    plain.begin();
    plain.record(60, 50, 200);
    let fault = GroupFault::Target { value: 0, min: 0, max: 0 };
    assert_eq!(plain.check(&Elements::new(&[placed(8, 20, 0, &[0])])), Err(PlacementError::Fault(fault)));
}

#[test]
fn any_list_of_targets_ends_in_an_error_or_in_octets_that_came() {
    // RTR-X-20
    let mut taken = 0;
    for seed in 0..20_000 {
        let mut random = Random::new(seed);
        let lists: Vec<Vec<u32>> = (0..3)
            .map(|_| (0..random.below(3)).map(|_| random.below(if seed % 2 == 0 { 5 } else { 4 })).collect())
            .collect();
        let mut items = Vec::new();
        let mut at = 8;
        for numbers in &lists {
            let len = random.below(52 * numbers.len() as u32 + 1);
            items.push(placed(at, len, if random.once_in(2) { 0 } else { random.below(55) }, numbers));
            at += len.next_multiple_of(4);
        }
        let mut map = map();
        if map.check(&Elements::new(&items)).is_err() {
            continue;
        }
        taken += 1;
        let mut used = [[false; 200]; 2];
        used[0][..110].fill(true);
        used[1][..40].fill(true);
        for item in &items {
            let mut len = 0;
            for span in map.spans(item) {
                let end = span.at + span.len;
                assert!(end <= [200, 170][span.transmission as usize]);
                for octet in &mut used[span.transmission as usize][span.at as usize..end as usize] {
                    assert!(!std::mem::replace(octet, true), "seed {seed}: nothing lies on something");
                }
                len += span.len;
            }
            assert_eq!(len, item.len);
        }
    }
    assert!(taken > 1000, "{taken}");
}
