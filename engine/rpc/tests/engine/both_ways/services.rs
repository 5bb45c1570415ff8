//! Services that call their clients back: [`Service::next_call_back`](stag_rpc::Service::next_call_back) over RDMA.

use std::time::Duration;

use stag_fabric::sim::FaultPlan;
use stag_rpc::{
    CALLS_BACK_MAX, CallBack, CallBackError, CallError, CallRefused, ClientPolicy, ConnectionId,
    EngineConfig, ProtocolChoice, name_in_group,
};
use stag_runtime::{Poller, ReactorId};

use super::ends::{Ends, REVERSE_CREDITS, Side, config};
use crate::support::program::{ECHO, FORGET, LATER, NEVER, Program};
use crate::support::{opaque, small};

fn service(ends: &mut Ends) -> &mut Program {
    &mut ends.server.engine.services_mut().0
}

/// The arguments of a Call that is never answered.
fn never() -> Vec<u8> {
    [&NEVER.to_be_bytes()[..], &opaque(b"")].concat()
}

fn wait_for(ends: &mut Ends, count: usize) -> Vec<(u64, Result<Vec<u8>, CallBackError>)> {
    ends.run(|ends| service(ends).called_back.len() >= count);
    std::mem::take(&mut service(ends).called_back)
}

#[test]
fn a_service_calls_its_client_back() {
    // 8167-2-a, 8167-5.1-a
    let mut ends = Ends::new();
    let connection = ends.reverse;
    for id in 0..20 {
        let text = vec![id as u8; 10 * id as usize];
        service(&mut ends).call_back(id, connection, ECHO, &opaque(&text));
        assert_eq!(wait_for(&mut ends, 1), [(id, Ok(opaque(&text)))]);
        ends.check(Side::Client);
    }
    assert!(ends.server.done.is_empty() && ends.server.events.is_empty(), "the engine's user hears nothing");
    // Its name in the group is as good.
    service(&mut ends).call_back(7, name_in_group(ReactorId::FIRST, connection), ECHO, &opaque(b"group"));
    assert_eq!(wait_for(&mut ends, 1), [(7, Ok(opaque(b"group")))]);
    // The engine's user may do so beside it.
    ends.check(Side::Server);
    ends.close();
}

#[test]
fn calls_back_wait_for_credits_and_all_are_answered() {
    let mut ends = Ends::new();
    let connection = ends.reverse;
    for id in 0..CALLS_BACK_MAX as u64 {
        service(&mut ends).call_back(id, connection, ECHO, &opaque(&[id as u8]));
    }
    let mut answers = wait_for(&mut ends, CALLS_BACK_MAX);
    answers.sort_by_key(|(id, _)| *id);
    let wanted: Vec<_> = (0..CALLS_BACK_MAX as u64).map(|id| (id, Ok(opaque(&[id as u8])))).collect();
    assert_eq!(answers, wanted);
    ends.close();
}

#[test]
fn a_client_that_never_answers_costs_a_bounded_number_until_their_time_is_over() {
    let mut ends = Ends::new();
    let connection = ends.reverse;
    for id in 0..CALLS_BACK_MAX as u64 + 3 {
        service(&mut ends).call_back(id, connection, LATER, &never());
    }
    // Beyond the limit they are refused at once.
    let refused = wait_for(&mut ends, 3);
    let beyond = CALLS_BACK_MAX as u64;
    let too_many = Err(CallRefused::TooManyCallsBack.into());
    assert_eq!(refused, [beyond, beyond + 1, beyond + 2].map(|id| (id, too_many.clone())));
    // Those that had a credit time out, the others were never sent.
    let start = ends.world.now();
    let ended = wait_for(&mut ends, CALLS_BACK_MAX);
    let waited = ends.world.now() - start;
    assert!((Duration::from_secs(4)..Duration::from_secs(6)).contains(&waited), "{waited:?}");
    let sent = ended.iter().filter(|(_, end)| *end == Err(CallError::TimedOut.into())).count();
    let unsent = ended.iter().filter(|(_, end)| *end == Err(CallRefused::NoCredit.into())).count();
    assert_eq!(
        (sent, unsent),
        (1, CALLS_BACK_MAX - 1),
        "the client grants nothing before it answers: {ended:?}"
    );
    // Its credit comes back with the late Reply.
    ends.client.engine.services_mut().0.release();
    ends.run_for(Duration::from_millis(10));
    service(&mut ends).call_back(1, connection, ECHO, &opaque(b"again"));
    assert_eq!(wait_for(&mut ends, 1), [(1, Ok(opaque(b"again")))]);
    ends.close();
}

#[test]
fn calls_back_end_with_their_connection() {
    // 8167-5.4-a
    let mut ends = Ends::new();
    let connection = ends.reverse;
    for id in 0..3 {
        service(&mut ends).call_back(id, connection, LATER, &never());
    }
    ends.run(|ends| ends.client.engine.services_mut().0.kept() == 1);
    ends.client.engine.disconnect(ends.forward);
    let mut ended = wait_for(&mut ends, 3);
    ended.sort_by_key(|(id, _)| *id);
    let refused = Err(CallRefused::NotConnected.into());
    assert_eq!(
        ended,
        [(0, Err(CallError::ConnectionLost.into())), (1, refused.clone()), (2, refused.clone())]
    );
    assert_eq!(service(&mut ends).ended, [name_in_group(ReactorId::FIRST, connection)]);
    assert!(ends.server.events.is_empty(), "the engine's user has called nobody");
    // Nor can it be called any more.
    service(&mut ends).call_back(3, connection, ECHO, &opaque(b""));
    assert_eq!(wait_for(&mut ends, 1), [(3, refused)]);
    ends.close();
}

#[test]
fn what_cannot_be_called_back_is_refused() {
    let mut ends = Ends::new();
    let connection = ends.reverse;
    let long = opaque(&[1; 2000]);
    service(&mut ends).call_back(0, connection, ECHO, &long);
    assert_eq!(wait_for(&mut ends, 1), [(0, Err(CallRefused::NotInline.into()))]);
    let nowhere = ConnectionId { generation: connection.generation + 9, ..connection };
    let stream = ConnectionId { index: 1 << 31, generation: 0 };
    let elsewhere = name_in_group(ReactorId::new(3).expect("a group may be as large"), connection);
    for connection in [nowhere, stream, elsewhere] {
        service(&mut ends).call_back(1, connection, ECHO, &opaque(b""));
        assert_eq!(wait_for(&mut ends, 1), [(1, Err(CallRefused::NotConnected.into()))], "{connection}");
    }
    // Nothing has become of the connection, and a handler's failure is told.
    service(&mut ends).call_back(2, connection, FORGET, &[]);
    assert_eq!(wait_for(&mut ends, 1), [(2, Err(CallError::SystemError.into()))]);
    ends.close();
}

#[test]
fn without_reverse_credits_there_are_none() {
    let mut ends = Ends::with(FaultPlan::default(), small(), config(), ClientPolicy::default());
    let connection = ends.reverse;
    service(&mut ends).call_back(1, connection, ECHO, &opaque(b""));
    assert_eq!(wait_for(&mut ends, 1), [(1, Err(CallRefused::OneWay.into()))]);
    ends.close();
}

#[test]
fn a_connection_of_version_1_has_reverse_calls_where_others_may_speak_version_2() {
    let second = EngineConfig { protocol: ProtocolChoice::Auto, ..config() };
    let first = EngineConfig { protocol: ProtocolChoice::One, ..config() };
    let mut ends = Ends::with(FaultPlan::default(), second, first, ClientPolicy::default());
    let connection = ends.reverse;
    for id in 0..u64::from(REVERSE_CREDITS) {
        service(&mut ends).call_back(id, connection, ECHO, &opaque(b"one"));
        assert_eq!(wait_for(&mut ends, 1), [(id, Ok(opaque(b"one")))]);
    }
    ends.close();
}

#[test]
fn a_call_back_has_a_credential() {
    let mut ends = Ends::new();
    let connection = ends.reverse;
    let mut call = CallBack {
        id: 1,
        connection,
        program: crate::support::program::PROGRAM,
        version: crate::support::program::VERSION,
        procedure: ECHO,
        user: Some([0; 20].into()),
        arguments: opaque(b"user"),
        results_len_max: 64,
        timeout: Duration::from_secs(5),
    };
    service(&mut ends).to_call.push_back(call.clone());
    assert_eq!(wait_for(&mut ends, 1), [(1, Ok(opaque(b"user")))]);
    // One that is none.
    call.user = Some([7; 3].into());
    service(&mut ends).to_call.push_back(call);
    assert_eq!(wait_for(&mut ends, 1), [(1, Err(CallError::Authentication(1).into()))]);
    ends.close();
}

#[test]
fn a_server_sleeps_while_it_waits_for_an_answer() {
    let mut ends = Ends::new();
    let connection = ends.reverse;
    service(&mut ends).call_back(1, connection, LATER, &never());
    ends.run(|ends| ends.client.engine.services_mut().0.kept() == 1);
    while ends.pass() > 0 {}
    assert!(ends.server.engine.arm() && ends.server.engine.next_timeout().is_some());
    ends.server.engine.disarm();
    assert_eq!(wait_for(&mut ends, 1), [(1, Err(CallError::TimedOut.into()))]);
    ends.close();
}
