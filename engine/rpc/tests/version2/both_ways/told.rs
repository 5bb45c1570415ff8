//! What ends say of reverse Calls (characteristic 3), and what becomes of them then.

use stag_fabric::Handle;
use stag_rpc::{CallError, CallRefused, Chunks, CloseReason};
use stag_wire::rpcrdma2::{
    Body2, CharacteristicValue, Header2, MessageType, OptionalOperation, ReverseSupport,
};

use super::ends::{Ends, Side, config};
use super::hostile::{Case, call, endless, reply, told};
use crate::raw::{Raw, octets, word};
use crate::support::program::{BIG, ECHO};
use crate::support::{ADDRESS, bytes, error, opaque, request_for, small};

const MSG: u32 = 0;
const ERROR: u32 = 4;
const OPTIONAL: u32 = 5;
const UPDXCH: u32 = 4;
/// Numbers of characteristics.
const SIZE: u32 = 1;
const REVERSE: u32 = 3;

/// What a message that tells characteristics says of reverse Calls.
#[track_caller]
fn support(message: &[u8]) -> ReverseSupport {
    let (header, _) = Header2::parse(message).expect("a header");
    let Body2::Optional(found) = header.body else { panic!("{header:?}") };
    assert_eq!(found.direction, MessageType::Call);
    let Ok(OptionalOperation::Initial(initial)) = OptionalOperation::parse(&found) else {
        panic!("{found:?}")
    };
    let values = initial.values.iter().filter_map(|value| match value {
        CharacteristicValue::ReverseSupport(support) => Some(support),
        _ => None,
    });
    values.last().expect("it says so")
}

/// ROPT_UPDXCH: one characteristic, and its value.
fn update(number: u32, value: u32) -> Vec<u8> {
    octets(&[0, 2, 1, OPTIONAL, 0, UPDXCH, 16, number, 4, value, 0])
}

#[test]
fn each_end_tells_whether_it_takes_part_in_reverse_calls() {
    // XC-l XC-c XC-X-6
    for (config, expected) in [(config(), ReverseSupport::Short), (small(), ReverseSupport::None)] {
        let (_, said) = Case::client_with(config);
        assert_eq!(support(&said), expected, "a client");
        let (_, said) = Case::server_with(config);
        assert_eq!(support(&said), expected, "a server");
    }
}

#[test]
fn a_client_that_says_that_it_takes_none_is_not_called() {
    // XC-l XC-e XC-X-6
    let mut case = Case::server();
    let request = request_for(ECHO, 64);
    let connection = case.connection;
    for (said, refused) in [
        (told(&[(REVERSE, ReverseSupport::None.number())]), true),
        (update(REVERSE, ReverseSupport::Short.number()), false),
        (update(REVERSE, ReverseSupport::None.number()), true),
        (update(REVERSE, ReverseSupport::General.number()), false),
        // The program has been told (8167-6-a).
        (update(REVERSE, ReverseSupport::Unknown.number()), false),
    ] {
        assert!(case.raw.send(&said, None));
        case.run_for(std::time::Duration::from_millis(1));
        match case.node.engine.call_back(connection, &request, |_| Ok(())) {
            Err(why) => assert_eq!((why, refused), (CallRefused::NotTaken, true)),
            Ok(_) => {
                assert!(!refused);
                let xid = word(&case.answer(), 0);
                assert!(case.raw.send(&reply(xid, &[]), None));
                assert!(bytes(&case.ended()).is_empty());
            }
        }
        assert!(case.raw.messages.is_empty());
    }
    let why = CallRefused::NotTaken.to_string();
    assert!(why.contains("NONE") && why.contains("reverse_credits"), "{why}");
    case.close();
}

#[test]
fn the_reverse_calls_of_a_connection_have_the_version_of_its_forward_ones() {
    // 8167-5.1-a V2-5.3-a: a client that announces version 2 and calls in version 1 is not called in the other.
    let mut case = Case::server();
    case.raw.disconnect();
    case.run(|case| case.raw.closed.is_some());
    case.raw = Raw::new(&case.world);
    case.raw.connect(ADDRESS);
    case.run(|case| case.raw.established);
    let in_first =
        [&octets(&[7, 1, 8, MSG, 0, 0, 0])[..], &call(7, MSG, &[0, 0, 0], ECHO, &[0])[32..]].concat();
    assert!(case.raw.send(&in_first, None));
    assert_eq!(word(&case.answer(), 1), 1);
    case.connection = case.node.engine.services_mut().0.called_on.expect("it was called");
    let (connection, request) = (case.connection, request_for(ECHO, 64));
    let refused = case.node.engine.call_back(connection, &request, |_| Ok(()));
    assert_eq!(refused, Err(CallRefused::OneWay));
    // Then it speaks version 2 after all, and is called in that.
    assert!(case.raw.send(&call(8, MSG, &[0, 0, 0], ECHO, &[0]), None));
    case.run(|case| case.raw.messages.len() == 2);
    case.raw.messages.clear();
    let sent = case.called(&mut Chunks::default());
    assert_eq!([1, 3, 4].map(|at| word(&sent, at)), [2, MSG, 0]);
    assert!(case.raw.send(&reply(word(&sent, 0), &[]), None));
    assert!(bytes(&case.ended()).is_empty());
    case.close();
}

#[test]
fn a_direction_word_that_is_not_the_msg_type_is_refused_both_ways() {
    // V2-3.2-a V2-4.2.2-b V2-X-5
    for mut case in [Case::client(), Case::server()] {
        let xid = word(&case.called(&mut Chunks::default()), 0);
        // A Reply that calls itself a Call is answered as one, and ends no Call of the same xid.
        let mut found = reply(xid, &[]);
        found[16..20].copy_from_slice(&0_u32.to_be_bytes());
        assert!(case.raw.send(&found, None));
        let answer = case.answer();
        assert_eq!([0, 1, 3, 4].map(|at| word(&answer, at)), [xid, 2, ERROR, 2], "BAD_HEADER");
        // A Call that calls itself a Reply is dropped.
        let mut found = call(xid, MSG, &[0, 0, 0], ECHO, &[0]);
        found[16..20].copy_from_slice(&1_u32.to_be_bytes());
        let before = case.node.engine.statistics().messages_discarded;
        assert!(case.raw.send(&found, None));
        case.run(|case| case.node.engine.statistics().messages_discarded == before + 1);
        assert!(case.node.done.is_empty() && case.raw.messages.is_empty());
        assert!(case.raw.send(&reply(xid, &[]), None));
        assert!(bytes(&case.ended()).is_empty());
        case.close();
    }
}

#[test]
fn an_operation_that_is_not_supported_ends_no_call_of_the_other_direction() {
    // V2-4.2.2-c V2-4.2.2-d V2-4.2.3-a XC-a: what answers the characteristics of this end has their xid, which is 0.
    for mut case in [Case::client(), Case::server()] {
        let xid = word(&case.called(&mut Chunks::default()), 0);
        let before = case.node.engine.statistics().messages_discarded;
        assert!(case.raw.send(&octets(&[0, 2, 1, ERROR, 3]), None));
        case.run(|case| case.node.engine.statistics().messages_discarded == before + 1);
        // An unknown one of the peer's, with the xid of a Call of ours.
        assert!(case.raw.send(&octets(&[xid, 2, 1, OPTIONAL, 0, 4242, 0]), None));
        let answer = case.answer();
        assert_eq!([0, 1, 3, 4].map(|at| word(&answer, at)), [xid, 2, ERROR, 3], "INVAL_OPTION");
        assert!(case.raw.send(&reply(xid, &[]), None));
        assert!(bytes(&case.ended()).is_empty());
        case.close();
    }
}

#[test]
fn what_a_server_tells_of_its_receives_counts_for_the_replies_to_its_calls() {
    // XC-X-5 XC-X-7 8167-4.2-a: they have 4096 octets at first, and less or more later.
    let mut case = Case::client();
    for (xid, told, len, fits) in [
        (70, None, 4000, true),
        (71, None, 5000, false),
        (72, Some(1024), 900, true),
        (73, Some(1024), 1100, false),
        (74, Some(4096), 4000, true),
    ] {
        if let Some(octets) = told {
            assert!(case.raw.send(&update(SIZE, octets), None));
        }
        assert!(case.raw.send(&call(xid, MSG, &[0, 0, 0], BIG, &[1, len]), None));
        let answer = case.answer();
        let expected = if fits { MSG } else { ERROR };
        assert_eq!((word(&answer, 0), word(&answer, 3)), (xid, expected), "{len} octets, {told:?}");
    }
    case.close();
}

#[test]
fn what_a_client_tells_of_its_receives_counts_for_the_calls_to_it() {
    // XC-X-5 8167-4.2-a
    let mut case = Case::server();
    let (connection, request) = (case.connection, request_for(ECHO, 64));
    let begin = |case: &mut Case, len: usize| {
        let text = vec![7; len];
        case.node.engine.call_back(connection, &request, |writer| writer.opaque(&text)).map(drop)
    };
    assert_eq!(begin(&mut case, 900), Ok(()));
    let xid = word(&case.answer(), 0);
    assert!(case.raw.send(&reply(xid, &[]), None));
    case.ended();
    assert!(case.raw.send(&told(&[(SIZE, 600)]), None));
    case.run_for(std::time::Duration::from_millis(1));
    assert_eq!(begin(&mut case, 900), Err(CallRefused::NotInline));
    assert_eq!(begin(&mut case, 400), Ok(()));
    assert!(case.answer().len() <= 600);
    case.close();
}

#[test]
fn a_server_that_calls_before_it_has_said_its_version_is_cut_off() {
    // V2-5-a
    let mut case = Case::probing(config());
    assert!(case.raw.send(&endless(9), None));
    case.run(|case| case.raw.closed.is_some());
    assert_eq!(case.node.engine.services_mut().0.executed, 0);
    case.close();
}

#[test]
fn a_grant_of_one_direction_is_none_of_the_other_and_errors_bring_none() {
    // 8167-4.1-a 8167-4.1-b 8167-4.1-c V2-4.2.2-d
    let mut case = Case::server();
    let xid = word(&case.called(&mut Chunks::default()), 0);
    assert_eq!(case.node.engine.credits_granted(case.connection), 1);
    // A request for forward credits, an error about another Call, and characteristics.
    let others = [
        call(30, MSG, &[0, 0, 0], ECHO, &[0]),
        octets(&[xid ^ 4, 2, 9, ERROR, 2]),
        octets(&[0, 2, 9, OPTIONAL, 0, UPDXCH, 16, SIZE, 4, 4096, 0]),
    ];
    for other in others {
        assert!(case.raw.send(&other, None));
        case.run_for(std::time::Duration::from_millis(1));
        assert_eq!(case.node.engine.credits_granted(case.connection), 1);
    }
    case.raw.messages.clear();
    assert!(case.raw.send(&reply(xid, &[]), None));
    case.ended();
    assert_eq!(case.node.engine.credits_granted(case.connection), 7);
    case.close();
}

#[test]
fn a_reply_that_finds_no_memory_to_be_put_together_ends_its_call_alone() {
    let mut ends = Ends::new();
    let text = [5; 700];
    let call =
        ends.begin(Side::Server, &request_for(ECHO, 800), |writer| writer.opaque(&text)).expect("a credit");
    ends.run(|ends| ends.client.engine.services_mut().0.executed == 1);
    // The Reply is on its way, behind the head of a Receive.
    let memory = ends.server.memory.pools.messages.clone();
    let hoard: Vec<_> = std::iter::from_fn(|| memory.take()).collect();
    let done = ends.finish(Side::Server, call);
    assert!(matches!(done.result, Err(CallError::NoMemory { .. })), "{:?}", done.result);
    drop(hoard);
    for side in [Side::Client, Side::Server] {
        let done = ends.call(side, &request_for(ECHO, 800), |writer| writer.opaque(&text));
        assert_eq!(bytes(&done), opaque(&text), "{side:?}");
    }
    ends.close();
}

#[test]
fn what_is_no_reply_and_invalidates_a_handle_ends_the_connection() {
    // 8797-4.1-b: the memory comes back to its Call all the same.
    for message in [told(&[(SIZE, 4096)]), update(SIZE, 4096), octets(&[0, 2, 1, ERROR, 3])] {
        let mut case = Case::client();
        let mut chunks = Chunks::write(case.node.space(4096));
        let sent = case.called(&mut chunks);
        assert_eq!([5, 6, 7].map(|at| word(&sent, at)), [0, 1, 1], "one Write chunk of one segment");
        assert!(case.raw.send(&message, Some(Handle(word(&sent, 8)))));
        assert!(matches!(case.cut_off(), CloseReason::Violation(_)));
        let ended = case.ended();
        assert_eq!((error(&ended), ended.written.len()), (CallError::ConnectionLost, 1));
        case.close();
    }
}
