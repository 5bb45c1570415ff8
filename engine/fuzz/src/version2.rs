//! Targets for the parsers of version 2, and of Stag's additions to version 1.

use stag_wire::cm_private_data::PrivateData;
use stag_wire::reliable_reply::{LEN, ReliableReply, agree};
use stag_wire::rpcrdma::{Done, Fixed, HeaderLists, MessageKind};
use stag_wire::rpcrdma2::{
    Answer2, Body2, CharacteristicValue, Error2, Header2, ItemPlace, LonePlace, LoneTransmission,
    MessageType, OptionMessage, OptionalOperation, Refused2, emit_error, start,
};

/// A message of version 2: what parses is written again as the same, and what does not gets an answer that fits.
pub fn rpcrdma2_message(message: &[u8]) {
    check_lone(message);
    let (header, rest) = match Header2::parse(message) {
        Ok(parts) => parts,
        Err(refused) => return check_refused(message, &refused),
    };
    assert_eq!(&message[message.len() - rest.len()..], rest);
    let octets = &message[..message.len() - rest.len()];
    if let Err(refused) = header.check(rest) {
        assert_eq!(refused.answer == Answer2::Drop, header.direction() == MessageType::Reply);
    }
    match &header.body {
        Body2::Message(direction, lists) => check_lists(octets, &header, MessageKind::Msg, *direction, lists),
        Body2::Long(direction, lists) => check_lists(octets, &header, MessageKind::Nomsg, *direction, lists),
        Body2::Error(code) => {
            let mut buf = [0xff; 28];
            let len =
                emit_error(&mut buf, header.xid, header.version, header.credits, *code).expect("28 octets");
            assert_eq!(&buf[..len], octets);
        }
        Body2::Optional(option) => check_option(octets, option, rest),
    }
}

/// What is read by constants reads the same field by field, and is written as the same octets.
fn check_lone(message: &[u8]) {
    for direction in [MessageType::Call, MessageType::Reply] {
        let Some((lone, rest)) = LoneTransmission::parse(message, direction) else { continue };
        let (header, same) = Header2::parse(message).expect("it was read");
        assert_eq!((header.xid, header.credits, same), (lone.xid, lone.credits, rest));
        let Body2::Optional(option) = header.body else { panic!("{header:?}") };
        assert_eq!((option.direction, option.check_start(rest)), (direction, Ok(())));
        let operation = OptionalOperation::parse(&option).expect("it was read");
        assert_eq!(operation.payload_len(), Some(lone.payload_len));
        let mut buf = vec![0xff; message.len() - rest.len()];
        assert_eq!(lone.emit(&mut buf), Ok(buf.len()));
        let (again, _) = Header2::parse(&buf).expect("it was emitted");
        let Body2::Optional(again) = again.body else { panic!("{again:?}") };
        let again = OptionalOperation::parse(&again).expect("it was emitted");
        match (lone.item, &operation, &again) {
            // What stands in front of NOITEM means nothing.
            (
                Some(LonePlace::NoItem),
                OptionalOperation::Response(found),
                OptionalOperation::Response(own),
            ) => {
                assert_eq!((found.count, found.payload_len), (own.count, own.payload_len));
                assert!(
                    found.items.iter().map(|item| item.place).eq(own.items.iter().map(|item| item.place))
                );
            }
            _ => assert_eq!(buf, message[..buf.len()]),
        }
    }
}

/// Only what has the fixed words, and is no error itself, is answered.
fn check_refused(message: &[u8], refused: &Refused2) {
    if refused.answer == Answer2::Drop {
        return;
    }
    let (fixed, _) = Fixed::parse(message).expect("answered without an xid");
    assert_ne!(fixed.procedure, 4, "an error was answered");
    assert_eq!(refused.answer == Answer2::ErrVers, fixed.version != 2);
}

fn check_lists(
    octets: &[u8],
    header: &Header2<'_>,
    kind: MessageKind,
    direction: MessageType,
    lists: &HeaderLists<'_>,
) {
    let mut buf = vec![0xff; octets.len()];
    let mut emitter = start(&mut buf, kind, direction, header.xid, header.credits).expect("it is as long");
    for entry in lists.read_list() {
        emitter.read_segment(entry).expect("it is as long");
    }
    for chunk in lists.write_list() {
        emitter.echo_write_chunk(chunk, chunk.total_len()).expect("all of its room");
    }
    if let Some(chunk) = lists.reply_chunk() {
        emitter.echo_reply_chunk(chunk, chunk.total_len()).expect("all of its room");
    }
    let (len, _) = emitter.finish().expect("it is as long");
    assert_eq!(len, octets.len());
    assert_eq!(buf, octets, "written as it was read");
}

fn check_option(octets: &[u8], message: &OptionMessage<'_>, payload: &[u8]) {
    let operation = match OptionalOperation::parse(message) {
        Ok(operation) => operation,
        Err(Refused2 { error, answer }) => {
            let is_unknown = matches!(error, Error2::UnknownOption(_));
            assert!(!is_unknown || !(1..=8).contains(&message.option));
            assert_eq!(
                answer == Answer2::InvalidOption,
                is_unknown && message.direction == MessageType::Call
            );
            return;
        }
    };
    check_operation(&operation);
    let _ = message.check_start(payload);
    let mut buf = vec![0xff; octets.len()];
    let written = operation.emit(&mut buf, message.direction, message.xid, message.credits);
    let (len, _) = written.expect("it is as long");
    assert_eq!(len, octets.len());
    let (again, _) = Header2::parse(&buf).expect("it was emitted");
    let Body2::Optional(again) = again.body else { panic!("it was an operation") };
    assert_eq!(OptionalOperation::parse(&again), Ok(operation), "read as it was written");
}

/// Looks at all that an operation says.
fn check_operation(operation: &OptionalOperation<'_>) {
    match operation {
        OptionalOperation::Initial(initial) => {
            for (position, value) in initial.values.iter().enumerate() {
                let _ = initial.unchanging.contains(position);
                if let CharacteristicValue::BufferStructure(structure) = value {
                    let count = structure.target_count();
                    for number in [0, 1, u32::try_from(count).unwrap_or(u32::MAX).saturating_sub(1)] {
                        let target = structure.target(number);
                        assert_eq!(target.is_some(), u64::from(number) < count);
                        assert!(target.is_none_or(|(start, len)| start + len <= structure.len && len > 0));
                    }
                }
            }
        }
        OptionalOperation::Request(request) => {
            assert!(request.items.iter().all(|item| item.displacement % 4 == 0));
            let mut end = 0;
            for set in request.directions.iter() {
                assert!(end <= set.begin && set.begin < set.end);
                end = set.end;
                assert!(set.items.iter().all(|item| item.place.permits(&ItemPlace::NoItem)));
            }
        }
        OptionalOperation::Response(response) => assert!(response.count > 0 && response.payload_len >= 8),
        _ => {}
    }
}

/// Private data with the block of reliable reply; and RDMA_DONE.
pub fn reliable_reply(octets: &[u8]) {
    let good = |block: &&[u8]| block.starts_with(b"Stag\x01");
    let expected = octets.windows(LEN).find(good);
    let found = ReliableReply::find(octets);
    assert_eq!(found.is_some(), expected.is_some());
    if let (Some(found), Some(block)) = (found, expected) {
        let mut wire = [0; LEN];
        wire.copy_from_slice(block);
        wire[5] &= 3;
        assert_eq!(found.to_wire(), wire);
        assert_eq!(PrivateData::find(&wire), None);
        let (ours, theirs) = (agree(Some(&found), Some(&found)), agree(Some(&found), None));
        assert_eq!((ours.expose_max, theirs.expose_max, theirs.pull_max), (ours.pull_max, 0, 0));
    }
    if let Some(done) = Done::parse(octets) {
        let mut buf = [0xff; 16];
        done.emit(&mut buf).expect("16 octets are there");
        assert_eq!(buf, octets[..16]);
    }
}
