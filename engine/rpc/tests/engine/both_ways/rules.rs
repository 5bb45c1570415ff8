//! The rules of RFC 8167 between two engines that keep them.

use std::time::Duration;

use stag_fabric::sim::{FaultPlan, Odds};
use stag_rpc::{Backoff, CallError, CallRefused, ClientPolicy, ConnectionEvent, EngineConfig, Request};
use stag_runtime::Poller;

use super::ends::{Ends, REVERSE_CREDITS, Side, config};
use crate::support::program::{BIG, DEFER, ECHO, FORGET, LATER, NEVER, ONCE, VERSION, pattern};
use crate::support::{IS_VERSION_2, bytes, error, opaque, request, request_for, small, words};

const BOTH: [Side; 2] = [Side::Client, Side::Server];

#[test]
fn a_server_calls_its_client_on_the_same_connection() {
    // 8167-2-a, 8167-5.1-a, 8167-5.2-a
    let mut ends = Ends::new();
    for round in 0..100 {
        let text = pattern(round, 1 + round as usize * 7);
        for side in BOTH {
            let done = ends.call(side, &request_for(ECHO, 800), |writer| writer.opaque(&text));
            assert_eq!(bytes(&done), opaque(&text), "{side:?}, {round}");
        }
    }
    assert_eq!(ends.client.engine.services_mut().0.executed, 100, "the client executed the server's");
    assert_eq!(ends.server.engine.services_mut().0.executed, 101, "and the server the client's");
    assert_eq!((ends.server.engine.connection_count(), ends.client.engine.connection_count()), (1, 1));
    ends.close();
}

#[test]
fn messages_in_place_and_not_go_both_ways() {
    for odds in [Odds::NEVER, Odds::ALWAYS] {
        let plan = FaultPlan { in_place: odds, ..FaultPlan::default() };
        let mut ends = Ends::with(plan, config(), config(), ClientPolicy::default());
        for _ in 0..20 {
            BOTH.into_iter().for_each(|side| ends.check(side));
        }
        ends.close();
    }
}

#[test]
fn where_calls_go_both_ways_each_message_is_still_handled_where_it_arrived() {
    let plan = FaultPlan { in_place: Odds::ALWAYS, ..FaultPlan::default() };
    let mut ends = Ends::with(plan, config(), config(), ClientPolicy::default());
    // Grants grow the general way, while Receives are posted.
    for _ in 0..200 {
        BOTH.into_iter().for_each(|side| ends.check(side));
    }
    let before = ends.world.taken_in_place();
    for _ in 0..100 {
        BOTH.into_iter().for_each(|side| ends.check(side));
    }
    // A Call and a Reply for each side.
    assert_eq!(ends.world.taken_in_place() - before, 400);
    ends.close();
}

#[test]
fn credits_of_the_directions_are_apart() {
    // 8167-4.1-a, 8167-4.1-d, 8167-4.1-e: each direction starts with one, and has a grant of its own.
    let mut ends = Ends::new();
    let (forward, reverse) = (ends.forward, ends.reverse);
    assert_eq!(ends.server.engine.credits_granted(reverse), 0, "it was not called yet");
    let later = |writer: &mut stag_wire::xdr::Writer<'_>| {
        writer.u64(NEVER)?;
        writer.opaque(b"")
    };
    let waits = request_for(LATER, 8);
    let first = ends.begin(Side::Server, &waits, later).expect("the first credit");
    assert_eq!(ends.begin(Side::Server, &waits, later), Err(CallRefused::NoCredit), "there is one credit");
    // All forward credits are in use, and reverse Calls go on; and the other way round.
    let granted = ends.client.engine.credits_granted(forward);
    assert_eq!(granted, small().credits_max);
    let mut held = Vec::new();
    while let Ok(call) = ends.begin(Side::Client, &waits, later) {
        held.push(call);
    }
    assert_eq!(held.len() as u32, granted);
    ends.run(|ends| ends.server.engine.services_mut().0.kept() == held.len());
    ends.client.engine.services_mut().0.release();
    let done = ends.finish(Side::Server, first);
    assert_eq!(bytes(&done), opaque(b""));
    assert_eq!(ends.server.engine.credits_granted(reverse), REVERSE_CREDITS);
    assert_eq!(ends.client.engine.credits_granted(forward), granted, "it is not the reverse grant");
    for _ in 0..50 {
        ends.check(Side::Server);
    }
    let many = (0..REVERSE_CREDITS).map(|_| ends.begin(Side::Server, &waits, later).expect("a credit"));
    let many: Vec<_> = many.collect();
    assert_eq!(ends.begin(Side::Server, &waits, later), Err(CallRefused::NoCredit));
    ends.server.engine.services_mut().0.release();
    held.into_iter().for_each(|call| drop(ends.finish(Side::Client, call)));
    for _ in 0..50 {
        ends.check(Side::Client);
    }
    ends.client.engine.services_mut().0.release();
    ends.run(|ends| ends.client.engine.services_mut().0.kept() == many.len() || !ends.server.done.is_empty());
    ends.client.engine.services_mut().0.release();
    many.into_iter().for_each(|call| drop(ends.finish(Side::Server, call)));
    ends.close();
}

#[test]
fn reverse_calls_end_with_errors_as_forward_ones_do() {
    let mut ends = Ends::new();
    let cases = [
        (Request { program: 7, ..request(ECHO) }, CallError::ProgramUnavailable),
        (
            Request { version: 9, ..request(ECHO) },
            CallError::ProgramMismatch { low: VERSION - 1, high: VERSION },
        ),
        (request(77), CallError::ProcedureUnavailable),
        (request(ECHO), CallError::GarbageArguments),
        (request(FORGET), CallError::SystemError),
    ];
    for (request, wanted) in cases {
        assert_eq!(error(&ends.call(Side::Server, &request, |_| Ok(()))), wanted);
    }
    // 8167-5.3-c: the client cannot send this Reply inline, and there is no Reply chunk.
    let request = request_for(BIG, 64);
    let done = ends.call(Side::Server, &request, |writer| words(writer, &[1, 20_000]));
    assert_eq!(error(&done), CallError::Chunk);
    BOTH.into_iter().for_each(|side| ends.check(side));
    // Not executed twice, and answered once: each direction has its own duplicates.
    for side in BOTH {
        let done = ends.call(side, &request_for(ONCE, 64), |writer| writer.u64(0));
        assert_eq!(bytes(&done), 1u32.to_be_bytes(), "{side:?}");
    }
    ends.close();
}

#[test]
fn what_cannot_go_back_is_refused_and_nothing_is_sent() {
    let mut ends = Ends::new();
    let text = vec![1; 2000];
    // 8167-5.3-c: it fits neither way.
    let refused = ends.begin(Side::Server, &request(ECHO), |writer| writer.opaque(&text));
    assert_eq!(refused, Err(CallRefused::NotInline));
    let refused = ends.begin(Side::Server, &request_for(ECHO, 2000), |writer| writer.opaque(b"text"));
    assert_eq!(refused, Err(CallRefused::NotInline));
    // On the client's own connection, and on one that is not there.
    let (request, forward) = (request_for(ECHO, 8), ends.forward);
    let refused = ends.client.engine.call_back(forward, &request, |_| Ok(()));
    assert_eq!(refused, Err(CallRefused::OneWay));
    let gone = stag_rpc::ConnectionId { generation: ends.reverse.generation + 9, ..ends.reverse };
    let refused = ends.server.engine.call_back(gone, &request, |_| Ok(()));
    assert_eq!(refused, Err(CallRefused::NotConnected));
    // The credit is still there.
    ends.check(Side::Server);
    assert_eq!(ends.client.engine.services_mut().0.executed, 1);
    ends.close();
}

#[test]
fn a_server_that_has_no_reverse_credits_makes_no_reverse_calls() {
    let mut ends = Ends::with(FaultPlan::default(), small(), config(), ClientPolicy::default());
    let refused = ends.begin(Side::Server, &request_for(ECHO, 8), |writer| writer.opaque(b"text"));
    assert_eq!(refused, Err(CallRefused::OneWay));
    ends.close();
}

#[test]
fn a_client_that_takes_no_calls_drops_them() {
    // 8167-6-a
    let mut ends = Ends::with(FaultPlan::default(), config(), small(), ClientPolicy::default());
    if IS_VERSION_2 {
        // XC-l: it says so, and none is sent.
        let refused = ends.begin(Side::Server, &request_for(ECHO, 64), |writer| writer.opaque(b"text"));
        assert_eq!(refused, Err(CallRefused::NotTaken));
        ends.check(Side::Client);
        return ends.close();
    }
    let request = Request { timeout: Duration::from_millis(50), ..request_for(ECHO, 64) };
    let done = ends.call(Side::Server, &request, |writer| writer.opaque(b"text"));
    assert_eq!(error(&done), CallError::TimedOut);
    assert_eq!(ends.client.engine.statistics().messages_discarded, 1);
    assert_eq!(ends.client.engine.services_mut().0.executed, 0);
    for _ in 0..20 {
        ends.check(Side::Client);
    }
    ends.close();
}

#[test]
fn the_late_reply_to_a_reverse_call_brings_its_credit_back() {
    let mut ends = Ends::new();
    let later = |writer: &mut stag_wire::xdr::Writer<'_>| {
        writer.u64(2000)?;
        writer.opaque(b"late")
    };
    let cancelled = ends.begin(Side::Server, &request_for(LATER, 64), later).expect("a credit");
    ends.server.engine.cancel(cancelled);
    assert_eq!(error(&ends.finish(Side::Server, cancelled)), CallError::Cancelled);
    let short = Request { timeout: Duration::from_millis(1), ..request_for(LATER, 64) };
    assert_eq!(ends.begin(Side::Server, &short, later), Err(CallRefused::NoCredit), "its Reply is to come");
    ends.run_for(Duration::from_millis(10));
    let timed_out = ends.call(Side::Server, &short, later);
    assert_eq!(error(&timed_out), CallError::TimedOut);
    ends.run_for(Duration::from_millis(10));
    assert_eq!(ends.server.engine.credits_available(ends.reverse), REVERSE_CREDITS);
    BOTH.into_iter().for_each(|side| ends.check(side));
    ends.close();
}

#[test]
fn reverse_calls_end_with_their_connection() {
    // 8167-5.4-a
    let mut ends = Ends::new();
    let never = |writer: &mut stag_wire::xdr::Writer<'_>| {
        writer.u64(NEVER)?;
        writer.opaque(b"")
    };
    let call = ends.begin(Side::Server, &request_for(LATER, 8), never).expect("a credit");
    ends.run(|ends| ends.client.engine.services_mut().0.kept() == 1);
    ends.client.engine.disconnect(ends.forward);
    assert_eq!(error(&ends.finish(Side::Server, call)), CallError::ConnectionLost);
    ends.run(|ends| ends.closed(Side::Server).is_some() && ends.closed(Side::Client).is_some());
    let refused = ends.begin(Side::Server, &request_for(ECHO, 8), |_| Ok(()));
    assert_eq!(refused, Err(CallRefused::NotConnected));
    ends.close();
}

#[test]
fn a_connection_that_is_made_anew_takes_reverse_calls() {
    // 8167-4.3-c, 8167-5.4-a: forward Calls are sent again, and the server calls back on the new connection.
    let policy = ClientPolicy { reconnect: Some(Backoff::default()), keep_alive: None };
    let mut ends = Ends::with(FaultPlan::default(), config(), config(), policy);
    for round in 0..5 {
        ends.check(Side::Server);
        let echo = |writer: &mut stag_wire::xdr::Writer<'_>| writer.opaque(b"again");
        let kept = ends.begin(Side::Client, &request_for(ECHO, 64), echo).expect("a credit");
        // One that no Reply can overtake.
        let never = |writer: &mut stag_wire::xdr::Writer<'_>| {
            writer.u64(NEVER)?;
            writer.opaque(b"")
        };
        let lost = ends.begin(Side::Server, &request_for(LATER, 8), never).expect("a credit");
        ends.server.engine.disconnect(ends.reverse);
        assert_eq!(bytes(&ends.finish(Side::Client, kept)), opaque(b"again"), "{round}");
        assert_eq!(error(&ends.finish(Side::Server, lost)), CallError::ConnectionLost, "{round}");
        let before = ends.reverse;
        ends.introduce();
        assert_ne!(before, ends.reverse);
    }
    assert!(ends.client.events.iter().any(|event| matches!(event, ConnectionEvent::Restored { .. })));
    ends.check(Side::Server);
    ends.close();
}

#[test]
fn a_stopping_server_calls_back_while_it_has_calls_to_answer() {
    let mut ends = Ends::new();
    ends.check(Side::Server);
    let forward = ends.begin(Side::Client, &request_for(DEFER, 0), |_| Ok(())).expect("a credit");
    ends.run(|ends| !ends.server.engine.services_mut().0.deferred.is_empty());
    let now = ends.world.now();
    ends.server.engine.stop(now);
    ends.run_for(Duration::from_millis(30));
    assert!(!ends.server.engine.is_drained(), "a Call is in process");
    // What the answer depends on.
    ends.check(Side::Server);
    let never = |writer: &mut stag_wire::xdr::Writer<'_>| {
        writer.u64(NEVER)?;
        writer.opaque(b"")
    };
    let left = ends.begin(Side::Server, &request_for(LATER, 8), never).expect("a credit");
    let deferred = ends.server.engine.services_mut().0.deferred.pop().expect("it was deferred");
    deferred.finish(|reply| reply.success(|_| Ok(())));
    assert_eq!(bytes(&ends.finish(Side::Client, forward)), b"");
    ends.run(|ends| ends.server.engine.is_drained());
    assert_eq!(error(&ends.finish(Side::Server, left)), CallError::ConnectionLost);
    ends.close();
}

#[test]
fn a_stopping_client_answers_the_reverse_calls_that_it_has() {
    let mut ends = Ends::new();
    let later = |writer: &mut stag_wire::xdr::Writer<'_>| {
        writer.u64(20_000)?;
        writer.opaque(b"answered")
    };
    let call = ends.begin(Side::Server, &request_for(LATER, 64), later).expect("a credit");
    ends.run(|ends| ends.client.engine.services_mut().0.kept() == 1);
    let now = ends.world.now();
    ends.client.engine.stop(now);
    assert_eq!(bytes(&ends.finish(Side::Server, call)), opaque(b"answered"));
    ends.run(|ends| ends.client.engine.is_drained());
    ends.close();
}

#[test]
fn reverse_credits_have_a_limit() {
    let config = EngineConfig { reverse_credits: 1025, ..small() };
    let error = config.check().expect_err("it is too many").to_string();
    assert!(error.starts_with("reverse_credits is 1025: it must be 0 to 1024"), "{error}");
}
