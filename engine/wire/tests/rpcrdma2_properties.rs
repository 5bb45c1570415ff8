//! What holds for all operations of version 2, and for all octets.

use proptest::collection::vec;
use proptest::prelude::*;
use stag_wire::rpcrdma::Segment;
use stag_wire::rpcrdma2::*;
use stag_wire::xdr::Overflow;

fn segments() -> impl Strategy<Value = Vec<Segment>> {
    let segment = (any::<u32>(), any::<u32>(), 0..u64::MAX - u64::from(u32::MAX));
    vec(segment.prop_map(|(handle, length, offset)| Segment { handle, length, offset }), 0..4)
}

/// An item's place, with what it holds: segments, numbers, and which of the four it is.
type Place = (u8, Vec<Segment>, u32, Vec<u32>);

fn place() -> impl Strategy<Value = Place> {
    (0..4_u8, segments(), any::<u32>(), vec(any::<u32>(), 0..4))
}

fn item_place((kind, segments, offset, numbers): &Place, is_request: bool) -> ItemPlace<'_> {
    match kind {
        0 => ItemPlace::Explicit(Elements::new(segments)),
        2 if !is_request => ItemPlace::TooShort,
        3 if !is_request => ItemPlace::NoItem,
        _ => ItemPlace::Buffers { offset: *offset, numbers: Elements::new(numbers) },
    }
}

fn directed_place((kind, segments, threshold, _): &Place) -> DirectedPlace<'_> {
    let segments = Elements::new(segments);
    match kind {
        0 => DirectedPlace::Explicit(segments),
        1 => DirectedPlace::Buffers,
        2 => DirectedPlace::Choice(segments),
        _ => DirectedPlace::BySize { threshold: *threshold, segments },
    }
}

fn result_direction((min_len, place): &(u32, Place)) -> ResultDirection<'_> {
    ResultDirection { min_len: *min_len, place: directed_place(place) }
}

/// Items with the gap in front of each and their lengths, in words.
fn items(places: &[(u16, u16, Place)], is_request: bool) -> Vec<PlacedItem<'_>> {
    let mut free_from = 0;
    let mut items = Vec::new();
    for (gap, len, place) in places {
        let displacement = free_from + 4 * u32::from(*gap);
        let len = u32::from(*len);
        free_from = displacement + (len + 7) / 4 * 4;
        items.push(PlacedItem { displacement, len, place: item_place(place, is_request) });
    }
    items
}

/// Emits an operation and reads it again.
fn assert_reads_as_written(operation: &OptionalOperation<'_>, direction: MessageType) {
    let mut buf = vec![0xff; 8192];
    let (len, _) = operation.emit(&mut buf, direction, 7, 9).expect("it fits");
    match operation {
        OptionalOperation::Request(request) => assert_eq!(request.header_len(), len),
        OptionalOperation::Response(response) => assert_eq!(response.header_len(), len),
        OptionalOperation::Continuation(_) => assert_eq!(len, CONTINUATION_LEN),
        _ => {}
    }
    let (header, rest) = Header2::parse(&buf[..len]).expect("it was emitted");
    assert_eq!((header.xid, header.credits, rest.len()), (7, 9, 0));
    let Body2::Optional(message) = header.body else { panic!("{header:?}") };
    assert_eq!(message.direction, direction);
    let found = OptionalOperation::parse(&message).expect("it was emitted");
    assert_eq!(&found, operation);
    let mut again = vec![0xff; len];
    found.emit(&mut again, direction, 7, 9).expect("it is as long");
    assert_eq!(again, buf[..len]);
}

/// The message of version 2 that an operation with this Payload stream, of as many octets as it says, is.
fn message_of(
    operation: &OptionalOperation<'_>,
    direction: MessageType,
    xid: u32,
    data_len: usize,
) -> Vec<u8> {
    let mut buf = vec![0; 8192];
    let (len, stream) = operation.emit(&mut buf, direction, xid, 9).expect("it fits");
    stream[..4].copy_from_slice(&xid.to_be_bytes());
    stream[4..8].copy_from_slice(&direction.number().to_be_bytes());
    buf.truncate(len + operation.payload_len().unwrap_or(0) as usize + data_len);
    buf
}

/// Reads a message field by field, as what constants say of it. `None`: it is of another shape, or wrong.
fn lone_by_fields(message: &[u8], direction: MessageType) -> Option<LoneTransmission> {
    let (header, rest) = Header2::parse(message).ok()?;
    let Body2::Optional(option) = header.body else { return None };
    let operation = OptionalOperation::parse(&option).ok()?;
    let (items, is_directed, count, payload_len) = match operation {
        OptionalOperation::Request(found) if found.response_receives == 0 => {
            let sets: Vec<_> = found.directions.iter().collect();
            let is_directed = match &sets[..] {
                [] => false,
                [DirectionSet { begin: 0, end: u32::MAX, items }] => {
                    let items: Vec<_> = items.iter().collect();
                    if items != [ResultDirection { min_len: 0, place: DirectedPlace::Buffers }] {
                        return None;
                    }
                    true
                }
                _ => return None,
            };
            (found.items, is_directed, found.count, found.payload_len)
        }
        OptionalOperation::Response(found) => (found.items, false, found.count, found.payload_len),
        _ => return None,
    };
    let is_there = payload_len as usize <= rest.len() && option.check_start(rest).is_ok();
    if option.direction != direction || count != 1 || items.len() > 1 || !is_there {
        return None;
    }
    let item = match items.iter().next() {
        None => None,
        Some(PlacedItem { place: ItemPlace::NoItem, .. }) => Some(LonePlace::NoItem),
        Some(PlacedItem { displacement, len, place: ItemPlace::Buffers { offset: 0, numbers } }) => {
            let count = numbers.len() as u32;
            numbers.iter().eq(0..count).then_some(Some(LonePlace::Targets { displacement, len, count }))?
        }
        Some(_) => return None,
    };
    let (xid, credits) = (header.xid, header.credits);
    Some(LoneTransmission { xid, credits, direction, item, is_directed, payload_len })
}

/// Constants and fields say the same of a message, whatever it is; what constants say is emitted as these octets.
fn assert_lone_agrees(message: &[u8]) {
    for direction in [MessageType::Call, MessageType::Reply] {
        let found = LoneTransmission::parse(message, direction);
        assert_eq!(found.map(|(lone, _)| lone), lone_by_fields(message, direction));
        let Some((lone, rest)) = found else { continue };
        let header = &message[..message.len() - rest.len()];
        assert_eq!(lone.header_len(), header.len());
        let mut buf = vec![0xff; header.len()];
        assert_eq!(lone.emit(&mut buf[1..]), Err(Overflow));
        assert_eq!(lone.emit(&mut buf), Ok(header.len()));
        // Displacement and length of NOITEM mean nothing: words 8 and 9.
        let means_nothing = if lone.item == Some(LonePlace::NoItem) { 32..40 } else { 0..0 };
        for (at, (own, other)) in buf.iter().zip(header).enumerate() {
            assert!(own == other || means_nothing.contains(&at), "octet {at} of {lone:?}");
        }
    }
}

/// Whatever parses is emitted as octets that parse the same.
fn assert_survives(message: &[u8]) {
    assert_lone_agrees(message);
    let Ok((header, rest)) = Header2::parse(message) else { return };
    let _ = header.check(rest);
    let Body2::Optional(option) = header.body else { return };
    let Ok(operation) = OptionalOperation::parse(&option) else { return };
    let _ = option.check_start(rest);
    assert_eq!(operation.option(), option.option);
    let mut buf = vec![0xff; message.len() - rest.len()];
    let (len, _) =
        operation.emit(&mut buf, option.direction, option.xid, option.credits).expect("it is as long");
    assert_eq!(len, buf.len());
    let (again, _) = Header2::parse(&buf).expect("it was emitted");
    let Body2::Optional(again) = again.body else { panic!("{again:?}") };
    assert_eq!(OptionalOperation::parse(&again), Ok(operation));
}

/// Which characteristic, and what it may hold: a word, octets, groups of parts.
type AnyValue = (u8, u32, Vec<u8>, Vec<(u16, u16, bool)>);

fn value() -> impl Strategy<Value = AnyValue> {
    (0..8_u8, any::<u32>(), vec(any::<u8>(), 0..9), vec((any::<u16>(), 1..u16::MAX, any::<bool>()), 0..3))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn transmissions_read_as_they_were_written(
        placed in vec((any::<u16>(), any::<u16>(), place()), 0..4),
        directed in vec((0..9_u32, 1..9_u32, vec((any::<u32>(), place()), 0..3)), 0..3),
        [response_receives, more] in any::<[u32; 2]>(),
        count in 1..=u32::MAX,
    ) {
        let payload_len = more.max(8);
        let directions: Vec<Vec<ResultDirection<'_>>> = directed
            .iter()
            .map(|(_, _, items)| items.iter().map(result_direction).collect())
            .collect();
        let mut free_from = 0;
        let mut sets = Vec::new();
        for ((gap, len, _), items) in directed.iter().zip(&directions) {
            let begin = free_from + gap;
            free_from = begin + len;
            sets.push(DirectionSet { begin, end: free_from, items: Elements::new(items) });
        }
        let of_request = items(&placed, true);
        let request = OptionalOperation::Request(RequestTransmission {
            items: Elements::new(&of_request),
            directions: Elements::new(&sets),
            count,
            response_receives,
            payload_len,
        });
        assert_reads_as_written(&request, MessageType::Call);
        let of_response = items(&placed, false);
        let response = ResponseTransmission { items: Elements::new(&of_response), count, payload_len };
        assert_reads_as_written(&OptionalOperation::Response(response), MessageType::Reply);
    }

    #[test]
    fn messages_of_constants_read_as_field_by_field(
        (xid, data_len, payload_len) in (any::<u32>(), 0..64_usize, 8..64_u32),
        (displacement, len, offset) in (any::<u32>(), any::<u32>(), 0..2_u32),
        (numbers, shuffled) in (0..20_u32, prop_oneof![7 => Just(false), 1 => Just(true)]),
        (has_item, is_directed, end) in (any::<bool>(), any::<bool>(), prop_oneof![Just(u32::MAX), any::<u32>()]),
        (place, count, response_receives) in (0..4_u8, 1..3_u32, 0..2_u32),
        changes in vec((any::<prop::sample::Index>(), prop_oneof![0..8_u32, any::<u32>()]), 0..3),
        cut in 0..100_usize,
    ) {
        let mut numbers: Vec<u32> = (0..numbers).collect();
        if shuffled {
            numbers.reverse();
        }
        let numbers = Elements::new(&numbers);
        // Mostly right, and of the shape.
        let (displacement, offset, count) = match place {
            0 => (displacement, offset, count),
            _ => (displacement & 0xfffc, 0, 1),
        };
        let place = match place {
            0 => ItemPlace::TooShort,
            1 => ItemPlace::NoItem,
            _ => ItemPlace::Buffers { offset, numbers },
        };
        let item = [PlacedItem { displacement, len, place }];
        let items = Elements::new(&item[..usize::from(has_item)]);
        let direction = [ResultDirection { min_len: offset, place: DirectedPlace::Buffers }];
        let set = [DirectionSet { begin: 0, end: end.max(1), items: Elements::new(&direction) }];
        let directions = Elements::new(&set[..usize::from(is_directed)]);
        let request = RequestTransmission { items, directions, count, response_receives, payload_len };
        let response = ResponseTransmission { items, count, payload_len };
        for (operation, direction) in [
            (OptionalOperation::Request(request), MessageType::Call),
            (OptionalOperation::Response(response), MessageType::Reply),
        ] {
            let mut message = message_of(&operation, direction, xid, data_len);
            assert_lone_agrees(&message);
            for (at, word) in &changes {
                let at = at.index(message.len() / 4) * 4;
                message[at..at + 4].copy_from_slice(&word.to_be_bytes());
            }
            assert_lone_agrees(&message);
            message.truncate(message.len().saturating_sub(cut));
            assert_lone_agrees(&message);
        }
    }

    #[test]
    fn characteristics_read_as_they_were_written(values in vec(value(), 0..6), set in vec(any::<u32>(), 0..3)) {
        let groups: Vec<Vec<BufferGroup>> = values
            .iter()
            .map(|(_, align, _, groups)| {
                // The smallest message fits.
                let head = BufferGroup { count: 1, len: 32, align: 0, is_target: false };
                let rest = groups.iter().map(|(count, len, is_target)| BufferGroup {
                    count: u32::from(*count) >> 4,
                    len: u32::from(*len),
                    align: *align,
                    is_target: *is_target,
                });
                std::iter::once(head).chain(rest).collect()
            })
            .collect();
        let values: Vec<CharacteristicValue<'_>> = values
            .iter()
            .zip(&groups)
            .map(|((kind, word, data, _), groups)| match kind {
                0 => CharacteristicValue::ReceiveSize((*word).max(32)),
                1 => CharacteristicValue::RequesterInvalidation(word % 2 == 1),
                2 => CharacteristicValue::ReverseSupport(ReverseSupport::from_number(word % 4).expect("four")),
                3 => CharacteristicValue::TransmissionSupport(*word),
                4 => CharacteristicValue::RequestLimit(*word),
                5 => CharacteristicValue::ResponseLimit(*word),
                6 => CharacteristicValue::BufferStructure(BufferStructure {
                    len: groups.iter().map(|group| group.count * group.len).sum(),
                    groups: Elements::new(groups),
                }),
                _ => CharacteristicValue::Unknown { id: (*word).max(8), data },
            })
            .collect();
        let set = PositionSet(Elements::new(&set));
        let elements = Elements::new(&values);
        let initial = InitialCharacteristics { values: elements, unchanging: set };
        assert_reads_as_written(&OptionalOperation::Initial(initial), MessageType::Call);
        assert_reads_as_written(&OptionalOperation::Ask(CharacteristicRequest { wanted: elements }), MessageType::Call);
        let answer = CharacteristicResponse { done: set, rejected: set, pending: set };
        assert_reads_as_written(&OptionalOperation::Answer(answer), MessageType::Reply);
        for now in values {
            let update = CharacteristicUpdate { now, is_settled: set.contains(3) };
            assert_reads_as_written(&OptionalOperation::Update(update), MessageType::Call);
        }
    }

    #[test]
    fn a_target_of_a_receive_is_within_it(
        groups in vec((0..9_u32, 1..5000_u32, any::<bool>()), 0..6), number in 0..64_u32,
    ) {
        let groups: Vec<BufferGroup> =
            groups.into_iter().map(|(count, len, is_target)| BufferGroup { count, len, align: 0, is_target }).collect();
        let len = groups.iter().map(|group| group.count * group.len).sum();
        let structure = BufferStructure { len, groups: Elements::new(&groups) };
        // The same by walking over every part.
        let mut start = 0;
        let mut targets = Vec::new();
        for group in &groups {
            for _ in 0..group.count {
                if group.is_target {
                    targets.push((start, group.len));
                }
                start += group.len;
            }
        }
        prop_assert_eq!(structure.target_count(), targets.len() as u64);
        prop_assert_eq!(structure.target(number), targets.get(number as usize).copied());
    }

    #[test]
    fn any_octets_are_read_without_harm(
        option in 0..10_u32, direction in 0..3_u32, procedure in 0..7_u32, version in 1..4_u32,
        info in vec(prop_oneof![6 => 0..7_u32, 1 => any::<u32>()], 0..40), cut in 0..20_usize,
    ) {
        let len = 4 * info.len() as u32;
        let mut words = vec![7, version, 1, procedure, direction];
        if procedure == 5 {
            words.extend([option, len]);
        }
        words.extend(info);
        let octets: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
        assert_survives(&octets);
        assert_survives(&octets[..octets.len() - cut.min(octets.len())]);
    }
}
