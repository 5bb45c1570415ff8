//! Calls both ways on one connection, with groups of transmissions and data in messages in the forward direction.

use std::time::Duration;

use stag_fabric::sim::{FaultPlan, Odds};
use stag_rpc::{CallError, CallId, Chunks, ClientPolicy, EngineConfig, PlacementChoice, Request};
use stag_wire::rpcrdma2::{
    Body2, Continuation, Elements, Header2, MessageType, OptionalOperation, RequestTransmission,
    ResponseTransmission, option,
};

use super::ends::{Ends, Side, config};
use super::hostile::{Case, call, reply};
use crate::hostile::message;
use crate::raw::{octets, word};
use crate::support::program::{BIG, ECHO, GET_ONE, LATER, NEVER, PUT_ONE, pattern, sum};
use crate::support::{Ended, bytes, error, opaque, request_for, words};

const MSG: u32 = 0;
const OPTIONAL: u32 = 5;
/// Numbers of characteristics: operations that are supported, and the Sends of a Call and of a Reply.
const SUPPORT: u32 = 4;
const REQUEST_LIMIT: u32 = 6;
const RESPONSE_LIMIT: u32 = 7;

/// Looks at a Call that is over.
type Check = Box<dyn Fn(&Ended)>;

/// Begins a WRITE or a READ of the client of `len` octets, or a Call and a Reply that are long without data.
#[track_caller]
fn begin_large(ends: &mut Ends, round: u32, len: usize) -> (CallId, Check) {
    let (forward, client) = (ends.forward, &mut ends.client);
    let text = pattern(round, len);
    let (begun, check): (_, Check) = match round % 4 {
        0 => {
            let mut chunks = Chunks::read(client.data(&text));
            let begun = client.engine.call(forward, &request_for(PUT_ONE, 64), &mut chunks, |writer| {
                writer.u32(1)?;
                writer.eligible_opaque_reduced(len as u32).map(drop)
            });
            let expected = octets(&[0, sum(&text)]);
            (begun, Box::new(move |done| assert_eq!(bytes(done), expected, "PUT {len}")))
        }
        1 => {
            let mut chunks = Chunks::write(client.space(len));
            let begun = client.engine.call(forward, &request_for(GET_ONE, 64), &mut chunks, |writer| {
                words(writer, &[round, 1, len as u32])
            });
            (
                begun,
                Box::new(move |done| {
                    assert!(done.result.is_ok(), "{:?}", done.result);
                    assert_eq!(done.written[0].1[..], text[..], "GET {len}");
                }),
            )
        }
        kind => {
            let procedure = if kind == 2 { ECHO } else { BIG };
            let (request, none) = (request_for(procedure, len + 8), &mut Chunks::default());
            let begun = client.engine.call(forward, &request, none, |writer| match procedure {
                ECHO => writer.opaque(&text),
                _ => words(writer, &[round, len as u32]),
            });
            (begun, Box::new(move |done| assert_eq!(bytes(done), opaque(&text), "{procedure} {len}")))
        }
    };
    (begun.expect("a credit"), check)
}

#[test]
fn groups_go_forward_while_calls_go_back() {
    // 8167-2-a V2-4.2.2-a RTR-4.2-a RTR-4.3-a
    for (placement, in_place) in [
        (PlacementChoice::Send, Odds::NEVER),
        (PlacementChoice::Send, Odds::ALWAYS),
        (PlacementChoice::Auto, Odds::ALWAYS),
        (PlacementChoice::Rdma, Odds::NEVER),
    ] {
        let plan = FaultPlan { in_place, ..FaultPlan::default() };
        let config = EngineConfig { placement, ..config() };
        let mut ends = Ends::with(plan, config, config, ClientPolicy::default());
        for _ in 0..20 {
            [Side::Client, Side::Server].into_iter().for_each(|side| ends.check(side));
        }
        let mut reverse = Vec::new();
        for round in 0..80 {
            let len = [100, 3000, 8192, 9000, 20_000][round as usize % 5];
            let (large, check) = begin_large(&mut ends, round, len);
            // Reverse Calls leave, and are answered, between the Sends of the groups.
            while reverse.len() < 3 {
                let text = pattern(round, 10 + round as usize * 8);
                let begun = ends.begin(Side::Server, &request_for(ECHO, 700), |writer| writer.opaque(&text));
                reverse.push((begun.expect("a credit"), opaque(&text)));
            }
            check(&ends.finish(Side::Client, large));
            let (called, expected) = reverse.remove(0);
            assert_eq!(bytes(&ends.finish(Side::Server, called)), expected, "{round}, {placement:?}");
        }
        for (called, expected) in reverse {
            assert_eq!(bytes(&ends.finish(Side::Server, called)), expected);
        }
        let (client, server) = (ends.client.engine.statistics(), ends.server.engine.statistics());
        assert!(client.groups_sent > 0 && server.continuations > 0, "{server:?}");
        assert_eq!((client.errors_sent, server.errors_sent), (0, 0));
        assert_eq!(client.groups_received, server.groups_sent, "none of them goes back");
        ends.close();
    }
}

#[test]
fn a_connection_with_groups_and_reverse_calls_outstanding_ends_them_all() {
    // 8167-5.4-a 8167-4.3-c
    for side in [Side::Client, Side::Server] {
        let mut ends = Ends::with(
            FaultPlan::default(),
            EngineConfig { placement: PlacementChoice::Send, ..config() },
            EngineConfig { placement: PlacementChoice::Send, ..config() },
            ClientPolicy::default(),
        );
        ends.check(Side::Server);
        let never = |writer: &mut stag_wire::xdr::Writer<'_>| {
            writer.u64(NEVER)?;
            writer.opaque(b"")
        };
        let mut called = Vec::new();
        while let Ok(call) = ends.begin(Side::Server, &request_for(LATER, 8), never) {
            called.push(call);
        }
        ends.run(|ends| ends.client.engine.services_mut().0.kept() == called.len());
        let (large, _) = begin_large(&mut ends, 0, 20_000);
        ends.pass();
        match side {
            Side::Client => ends.client.engine.disconnect(ends.forward),
            Side::Server => ends.server.engine.disconnect(ends.reverse),
        }
        for call in called {
            let done = ends.finish(Side::Server, call);
            assert_eq!(error(&done), CallError::ConnectionLost);
        }
        ends.finish(Side::Client, large);
        ends.run(|ends| ends.closed(Side::Server).is_some() && ends.closed(Side::Client).is_some());
        ends.close();
    }
}

#[test]
fn one_xid_may_be_that_of_a_group_and_of_a_reverse_call_between_its_transmissions() {
    // 8167-2.4-a RTR-4.2-a RTR-9.3-a RTR-9.4-a RTR-X-26: a group is one of its direction.
    let mut case = Case::client();
    let told = super::hostile::told(&[(SUPPORT, 7), (REQUEST_LIMIT, 4), (RESPONSE_LIMIT, 4)]);
    assert!(case.raw.send(&told, None));
    case.run_for(Duration::from_millis(1));
    // The Call tells of Receives for several transmissions.
    let (connection, engine) = (case.connection, &mut case.node.engine);
    let request = Request { timeout: Duration::from_secs(5), ..request_for(BIG, 10_000) };
    let begun = engine.call(connection, &request, &mut Chunks::default(), |writer| words(writer, &[1, 7000]));
    begun.expect("a credit");
    let sent = case.answer();
    assert_eq!([3, 4, 5].map(|at| word(&sent, at)), [OPTIONAL, 0, option::XMTREQ]);
    let xid = word(&sent, 0);
    let payload = [&octets(&[xid, 1, 0, 0, 0, 0])[..], &opaque(&pattern(1, 7000))].concat();
    let (first, second) = payload.split_at(4000);
    let lead = ResponseTransmission { items: Elements::EMPTY, count: 2, payload_len: first.len() as u32 };
    let next = Continuation { number: 1, lead_option: option::XMTRESP, payload_len: second.len() as u32 };
    let lead = message(&OptionalOperation::Response(lead), MessageType::Reply, xid, first);
    let next = message(&OptionalOperation::Continuation(next), MessageType::Reply, xid, second);
    assert!(case.raw.send(&lead, None));
    // A reverse Call with the same xid, which is answered at once.
    assert!(case.raw.send(&call(xid, MSG, &[0, 0, 0], ECHO, &[4, 5]), None));
    let answer = case.answer();
    assert_eq!([0, 3, 4].map(|at| word(&answer, at)), [xid, MSG, 1]);
    assert_eq!(answer[answer.len() - 8..], octets(&[4, 5]));
    assert!(case.raw.send(&next, None));
    assert_eq!(bytes(&case.ended()), opaque(&pattern(1, 7000)));
    assert_eq!(case.node.engine.statistics().errors_sent, 0);
    case.close();
}

#[test]
fn one_xid_may_be_that_of_a_forward_group_and_of_a_reverse_call() {
    // 8167-2.4-a RTR-X-26: the Reply to the reverse Call comes between the transmissions of the forward one.
    let mut case = Case::server();
    let sent = case.called(&mut Chunks::default());
    let (header, _) = Header2::parse(&sent).expect("a header");
    assert!(matches!(header.body, Body2::Message(MessageType::Call, _)), "a base message");
    let xid = header.xid;
    // The Reply brings more credits.
    for round in 0..8 {
        assert!(case.raw.send(&call(100 + round, MSG, &[0, 0, 0], ECHO, &[0]), None));
        case.answer();
    }
    let payload = call(xid, MSG, &[0, 0, 0], ECHO, &[8, 1, 2])[32..].to_vec();
    let (first, second) = payload.split_at(12);
    let lead = RequestTransmission {
        items: Elements::EMPTY,
        directions: Elements::EMPTY,
        count: 2,
        response_receives: 0,
        payload_len: first.len() as u32,
    };
    let next = Continuation { number: 1, lead_option: option::XMTREQ, payload_len: second.len() as u32 };
    let lead = message(&OptionalOperation::Request(lead), MessageType::Call, xid, first);
    let next = message(&OptionalOperation::Continuation(next), MessageType::Call, xid, second);
    assert!(case.raw.send(&lead, None));
    assert!(case.raw.send(&reply(xid, &[5]), None));
    assert_eq!(bytes(&case.ended()), octets(&[5]));
    assert!(case.raw.send(&next, None));
    let answer = case.answer();
    assert_eq!(word(&answer, 0), xid);
    assert_eq!(answer[answer.len() - 12..], octets(&[8, 1, 2]));
    case.close();
}
