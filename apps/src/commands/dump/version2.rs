//! Messages of version 2, as text and as objects.

use std::fmt::Write as _;

use serde::Serialize;
use stag_wire::rpcrdma2::{
    Body2, CharacteristicValue, DirectedPlace, Elements, ErrorCode2, GroupFault, Header2, ItemPlace,
    MessageType, OptionalOperation, PlacedItem, PositionSet, ResultDirection, TransmissionId,
};

/// Names what a message is.
pub(super) fn name(header: &Header2<'_>) -> &'static str {
    match header.body {
        Body2::Message(..) => "RDMA2_MSG",
        Body2::Long(..) => "RDMA2_NOMSG",
        Body2::Error(_) => "RDMA2_ERROR",
        Body2::Optional(_) => "RDMA2_OPTIONAL",
    }
}

/// Names an error.
pub(super) fn error(header: &Header2<'_>) -> Option<&'static str> {
    match header.body {
        Body2::Error(ErrorCode2::Vers { .. }) => Some("ERR_VERS"),
        Body2::Error(ErrorCode2::BadHeader) => Some("ERR_BAD_HEADER"),
        Body2::Error(ErrorCode2::InvalidOption) => Some("ERR_INVAL_OPTION"),
        _ => None,
    }
}

/// Names a direction.
pub(super) fn direction(direction: MessageType) -> &'static str {
    match direction {
        MessageType::Call => "CALL",
        MessageType::Reply => "REPLY",
    }
}

/// An item that is not in the Payload stream, or a result's direction.
#[derive(Serialize)]
pub(super) struct ItemObject {
    displacement: Option<u32>,
    /// Of an item; of a direction the least that is placed.
    octets: u32,
    place: &'static str,
    segments: Vec<(u32, u32, u64)>,
    targets: Vec<u32>,
}

/// A characteristic.
#[derive(Serialize)]
pub(super) struct CharacteristicObject {
    id: u32,
    value: String,
}

/// An operation.
#[derive(Serialize)]
pub(super) struct OperationObject {
    name: &'static str,
    direction: &'static str,
    /// Transmissions of the group, if it is the first.
    count: Option<u32>,
    /// The transmission's number, if it is a further one.
    number: Option<u32>,
    payload_octets: Option<u32>,
    response_receives: Option<u32>,
    items: Vec<ItemObject>,
    directions: Vec<ItemObject>,
    characteristics: Vec<CharacteristicObject>,
    error: Option<String>,
}

fn operation_name(operation: &OptionalOperation<'_>) -> &'static str {
    match operation {
        OptionalOperation::Initial(_) => "INITXCH",
        OptionalOperation::Ask(_) => "REQXCH",
        OptionalOperation::Answer(_) => "RESPXCH",
        OptionalOperation::Update(_) => "UPDXCH",
        OptionalOperation::Request(_) => "XMTREQ",
        OptionalOperation::Response(_) => "XMTRESP",
        OptionalOperation::Continuation(_) => "XMTCONT",
        OptionalOperation::Error(_) => "XMTERR",
    }
}

fn characteristic(value: &CharacteristicValue<'_>) -> String {
    match value {
        CharacteristicValue::ReceiveSize(octets) => format!("receive size {octets}"),
        CharacteristicValue::RequesterInvalidation(is_taken) => {
            format!("requester invalidation {}", if *is_taken { "yes" } else { "no" })
        }
        CharacteristicValue::ReverseSupport(support) => format!("reverse Calls {support:?}"),
        CharacteristicValue::TransmissionSupport(bits) => format!("transmissions {bits:#x}"),
        CharacteristicValue::RequestLimit(limit) => format!("request limit {limit}"),
        CharacteristicValue::ResponseLimit(limit) => format!("response limit {limit}"),
        CharacteristicValue::BufferStructure(structure) => {
            let mut text = format!("receives of {}:", structure.len);
            for group in structure.groups.iter() {
                let mark = if group.is_target { " for items" } else { "" };
                let _ = write!(text, " {} x {}{mark}", group.count, group.len);
            }
            text
        }
        CharacteristicValue::Unknown { id, data } => format!("characteristic {id} of {} octets", data.len()),
    }
}

fn item(item: &PlacedItem<'_>) -> ItemObject {
    let (mut segments, mut targets) = (Vec::new(), Vec::new());
    let place = match item.place {
        ItemPlace::Explicit(list) => {
            segments.extend(list.iter().map(|found| (found.handle, found.length, found.offset)));
            "EXRW"
        }
        ItemPlace::Buffers { numbers, .. } => {
            targets.extend(numbers.iter());
            "TBSN"
        }
        ItemPlace::TooShort => "TOOSHORT",
        ItemPlace::NoItem => "NOITEM",
    };
    ItemObject { displacement: Some(item.displacement), octets: item.len, place, segments, targets }
}

fn wanted(wanted: &ResultDirection<'_>) -> ItemObject {
    let place = match wanted.place {
        DirectedPlace::Explicit(_) => "EXRW",
        DirectedPlace::Buffers => "TBSN",
        DirectedPlace::Choice(_) => "CHOICE",
        DirectedPlace::BySize { .. } => "BYSIZE",
    };
    let segments =
        wanted.place.segments().iter().map(|found| (found.handle, found.length, found.offset)).collect();
    ItemObject { displacement: None, octets: wanted.min_len, place, segments, targets: Vec::new() }
}

fn transmission(id: &TransmissionId) -> String {
    format!("{} {:08x} transmission {}", direction(id.direction), id.xid, id.number)
}

fn fault(fault: &GroupFault) -> String {
    match fault {
        GroupFault::Procedure { expected, found } => format!("BADHMT {found}, expected {expected}"),
        GroupFault::Option { expected, found } => format!("BADOMT {found}, expected {expected}"),
        GroupFault::NoGroup => "BADCONT".to_owned(),
        GroupFault::Number { expected, found } => format!("BADSEQ {found}, expected {expected}"),
        GroupFault::Xid { expected, found } => format!("BADXID {found:08x}, expected {expected:08x}"),
        GroupFault::Offset { value, min, max } => format!("BADOFF {value}, {min} to {max}"),
        GroupFault::Target { value, min, max } => format!("BADTBSN {value}, {min} to {max}"),
        GroupFault::PayloadLength { value, min, max } => format!("BADPL {value}, {min} to {max}"),
    }
}

fn items(list: &Elements<'_, PlacedItem<'_>>) -> Vec<ItemObject> {
    list.iter().map(|found| item(&found)).collect()
}

fn positions(set: &PositionSet<'_>) -> String {
    let members: Vec<String> =
        (0..set.0.len() * 32).filter(|at| set.contains(*at)).map(|at| at.to_string()).collect();
    members.join(",")
}

/// Shows an operation as an object.
pub(super) fn object(header: &Header2<'_>, operation: &OptionalOperation<'_>) -> OperationObject {
    let mut shown = OperationObject {
        name: operation_name(operation),
        direction: direction(header.direction()),
        count: None,
        number: None,
        payload_octets: operation.payload_len(),
        response_receives: None,
        items: Vec::new(),
        directions: Vec::new(),
        characteristics: Vec::new(),
        error: None,
    };
    let value = |value: CharacteristicValue<'_>| CharacteristicObject {
        id: value.id(),
        value: characteristic(&value),
    };
    match operation {
        OptionalOperation::Initial(initial) => {
            shown.characteristics = initial.values.iter().map(value).collect()
        }
        OptionalOperation::Ask(ask) => shown.characteristics = ask.wanted.iter().map(value).collect(),
        OptionalOperation::Update(update) => shown.characteristics.push(value(update.now)),
        OptionalOperation::Answer(_) => {}
        OptionalOperation::Request(request) => {
            shown.count = Some(request.count);
            shown.response_receives = Some(request.response_receives);
            shown.items = items(&request.items);
            let sets = request.directions.iter().flat_map(|set| set.items.iter());
            shown.directions = sets.map(|found| wanted(&found)).collect();
        }
        OptionalOperation::Response(response) => {
            shown.count = Some(response.count);
            shown.items = items(&response.items);
        }
        OptionalOperation::Continuation(continuation) => shown.number = Some(continuation.number),
        OptionalOperation::Error(found) => {
            shown.error = Some(format!("{}: {}", transmission(&found.bad), fault(&found.fault)));
        }
    }
    shown
}

/// Shows an operation in words.
pub(super) fn text(header: &Header2<'_>, operation: &OptionalOperation<'_>) -> String {
    let shown = object(header, operation);
    let mut text = shown.name.to_owned();
    if let Some(count) = shown.count {
        let _ = write!(text, " 1 of {count}");
    }
    if let OptionalOperation::Continuation(continuation) = operation {
        let _ = write!(text, " number {}", continuation.number);
    }
    if let Some(octets) = shown.payload_octets {
        let _ = write!(text, ", {octets} octets");
    }
    if let Some(receives) = shown.response_receives.filter(|receives| *receives > 0) {
        let _ = write!(text, ", {receives} Receives for more of the Reply");
    }
    for item in &shown.items {
        let _ =
            write!(text, " | item of {} at {}: {}", item.octets, item.displacement.unwrap_or(0), item.place);
        place(&mut text, item);
    }
    for wanted in &shown.directions {
        let _ = write!(text, " | result of {} or more: {}", wanted.octets, wanted.place);
        place(&mut text, wanted);
    }
    for (index, found) in shown.characteristics.iter().enumerate() {
        let _ = write!(text, "{} {}", if index > 0 { "," } else { "" }, found.value);
    }
    if let OptionalOperation::Answer(answer) = operation {
        let _ = write!(
            text,
            " done [{}] rejected [{}] pending [{}]",
            positions(&answer.done),
            positions(&answer.rejected),
            positions(&answer.pending)
        );
    }
    if let Some(error) = &shown.error {
        let _ = write!(text, " {error}");
    }
    text
}

fn place(text: &mut String, item: &ItemObject) {
    for (handle, length, offset) in &item.segments {
        let _ = write!(text, " {length}@{handle:08x}+{offset:x}");
    }
    for target in &item.targets {
        let _ = write!(text, " #{target}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stag_wire::rpcrdma::Segment;
    use stag_wire::rpcrdma2::{
        Continuation, RequestTransmission, ResponseTransmission, TransmissionError, characteristic_id, option,
    };

    /// Emits an operation and shows what is read.
    fn shown(operation: &OptionalOperation<'_>, direction: MessageType) -> (String, String) {
        let mut buf = [0; 512];
        let (len, _) = operation.emit(&mut buf, direction, 7, 1).expect("it fits");
        let (header, _) = Header2::parse(&buf[..len]).expect("it was emitted");
        let Body2::Optional(message) = header.body else { panic!("{header:?}") };
        let operation = OptionalOperation::parse(&message).expect("it was emitted");
        let object = serde_json::to_string(&object(&header, &operation)).expect("an object");
        (text(&header, &operation), object)
    }

    #[test]
    fn operations_are_shown_with_what_they_carry() {
        let segments = [Segment { handle: 9, length: 50, offset: 0x1000 }];
        let memory = Elements::new(&segments);
        let wanted = [ResultDirection {
            min_len: 512,
            place: DirectedPlace::BySize { threshold: 1, segments: memory },
        }];
        let sets = [stag_wire::rpcrdma2::DirectionSet { begin: 0, end: 9, items: Elements::new(&wanted) }];
        let items = [PlacedItem { displacement: 68, len: 50, place: ItemPlace::Explicit(memory) }];
        let request = OptionalOperation::Request(RequestTransmission {
            items: Elements::new(&items),
            directions: Elements::new(&sets),
            count: 2,
            response_receives: 1,
            payload_len: 3968,
        });
        let (text, object) = shown(&request, MessageType::Call);
        assert_eq!(
            text,
            "XMTREQ 1 of 2, 3968 octets, 1 Receives for more of the Reply | item of 50 at 68: EXRW 50@00000009+1000 \
             | result of 512 or more: BYSIZE 50@00000009+1000"
        );
        assert!(object.contains(r#""count":2"#) && object.contains(r#""place":"BYSIZE""#), "{object}");

        let numbers = [0, 3];
        let place = ItemPlace::Buffers { offset: 0, numbers: Elements::new(&numbers) };
        let items = [PlacedItem { displacement: 44, len: 5000, place }];
        let response = ResponseTransmission { items: Elements::new(&items), count: 1, payload_len: 24 };
        let (text, _) = shown(&OptionalOperation::Response(response), MessageType::Reply);
        assert_eq!(text, "XMTRESP 1 of 1, 24 octets | item of 5000 at 44: TBSN #0 #3");

        let continuation = Continuation { number: 1, lead_option: option::XMTREQ, payload_len: 8 };
        let (text, _) = shown(&OptionalOperation::Continuation(continuation), MessageType::Call);
        assert_eq!(text, "XMTCONT number 1, 8 octets");

        let bad = TransmissionId { xid: 7, direction: MessageType::Call, number: 2 };
        let fault = GroupFault::Number { expected: 1, found: 2 };
        let error = OptionalOperation::Error(TransmissionError { bad, lead: None, fault });
        let (text, object) = shown(&error, MessageType::Reply);
        assert_eq!(text, "XMTERR CALL 00000007 transmission 2: BADSEQ 2, expected 1");
        assert!(
            object.contains(r#""error":"CALL 00000007 transmission 2: BADSEQ 2, expected 1""#),
            "{object}"
        );
    }

    #[test]
    fn characteristics_are_shown_by_name() {
        let values = [
            CharacteristicValue::ReceiveSize(8192),
            CharacteristicValue::Unknown { id: 99, data: &[1, 2, 3] },
        ];
        let initial = stag_wire::rpcrdma2::InitialCharacteristics {
            values: Elements::new(&values),
            unchanging: PositionSet(Elements::EMPTY),
        };
        let (text, object) = shown(&OptionalOperation::Initial(initial), MessageType::Call);
        assert_eq!(text, "INITXCH receive size 8192, characteristic 99 of 3 octets");
        assert!(object.contains(&format!(r#""id":{}"#, characteristic_id::RECEIVE_SIZE)), "{object}");
    }
}
