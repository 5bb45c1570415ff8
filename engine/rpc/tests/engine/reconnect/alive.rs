//! Whether the server is still there: keep-alives (8267-6.7.2-a).

use std::time::Duration;

use stag_rpc::{Chunks, ClientPolicy, CloseReason, ConnectionEvent, KeepAlive, Request};
use stag_runtime::Poller;

use super::calls::{POLICY, bench};
use crate::support::program::{ECHO, LATER, PROGRAM, VERSION};
use crate::support::{Bench, IS_VERSION_2, bytes, opaque, request_for, small};

const KEEP_ALIVE: KeepAlive = KeepAlive {
    program: PROGRAM,
    version: VERSION,
    after: Duration::from_secs(1),
    answer_within: Duration::from_millis(500),
    when_idle: false,
};

fn policy() -> ClientPolicy {
    ClientPolicy { keep_alive: Some(KEEP_ALIVE), ..POLICY }
}

fn later(bench: &mut Bench, delay: Duration) -> stag_rpc::CallId {
    let begun = bench.begin(0, request_for(LATER, 16), Chunks::default(), |writer| {
        writer.u64(delay.as_micros() as u64)?;
        writer.opaque(b"text")
    });
    begun.expect("a credit")
}

fn keep_alives(bench: &Bench) -> u64 {
    bench.clients[0].engine.statistics().keep_alives
}

/// The server is there, but nothing of it moves, as behind a cut cable.
fn freeze(bench: &mut Bench, time: Duration) {
    let end = bench.world.now() + time;
    while bench.world.now() < end {
        let now = bench.world.now();
        if bench.clients[0].poll(now) == 0 {
            let timer = bench.clients[0].engine.next_timeout();
            bench.world.advance_before(Some(timer.unwrap_or(end).min(end)));
        }
    }
}

#[test]
fn a_slow_answer_is_waited_for_as_long_as_the_server_lives() {
    let mut bench = bench(policy());
    bench.check_alive(0);
    let call = later(&mut bench, Duration::from_secs(20));
    let done = bench.finish(0, call);
    assert_eq!(bytes(&done), opaque(b"text"));
    assert!((15..=20).contains(&keep_alives(&bench)), "{}", keep_alives(&bench));
    assert_eq!(bench.clients[0].events.len(), 1, "{:?}", bench.clients[0].events);
    assert!(bench.clients[0].done.is_empty(), "keep-alives are no user's Calls");
    bench.close();
}

#[test]
fn one_credit_is_kept_back_for_it() {
    let mut bench = bench(policy());
    for _ in 0..20 {
        bench.check_alive(0);
    }
    let connection = bench.connections[0];
    let granted = bench.clients[0].engine.credits_granted(connection);
    assert!(granted > 1);
    let mut calls = Vec::new();
    while bench.clients[0].engine.credits_available(connection) > 0 {
        calls.push(later(&mut bench, Duration::from_secs(5)));
    }
    assert_eq!(calls.len() as u32, granted.min(small().credits_max) - 1);
    bench.run_for(Duration::from_secs(4));
    assert!(keep_alives(&bench) >= 3, "although every Call that may be begun is");
    for call in calls {
        let done = bench.finish(0, call);
        assert_eq!(bytes(&done), opaque(b"text"));
    }
    assert_eq!(bench.clients[0].events.len(), 1, "{:?}", bench.clients[0].events);
    bench.close();
}

#[test]
fn a_server_that_falls_silent_is_left_and_found_again() {
    let mut bench = bench(policy());
    bench.check_alive(0);
    let call = bench
        .begin(0, request_for(ECHO, 16), Chunks::default(), |writer| writer.opaque(b"text"))
        .expect("a credit");
    freeze(&mut bench, Duration::from_secs(2));
    let connection = bench.connections[0];
    let silent = ConnectionEvent::Interrupted { connection, reason: CloseReason::Silent };
    assert!(bench.clients[0].events.contains(&silent), "{:?}", bench.clients[0].events);
    assert_eq!(keep_alives(&bench), 1);
    let done = bench.finish(0, call);
    assert_eq!(bytes(&done), opaque(b"text"));
    bench.check_alive(0);
    bench.close();
}

#[test]
fn an_idle_connection_is_asked_only_if_so_wished() {
    for when_idle in [false, true] {
        let mut bench = bench(ClientPolicy {
            keep_alive: Some(KeepAlive { when_idle, ..KEEP_ALIVE }),
            ..ClientPolicy::default()
        });
        bench.check_alive(0);
        bench.run_for(Duration::from_secs(10));
        assert_eq!(keep_alives(&bench) > 0, when_idle);
        // An hour of peace counts as no silence of a Call that has just begun.
        let before = keep_alives(&bench);
        bench.check_alive(0);
        assert_eq!(keep_alives(&bench), before);
        freeze(&mut bench, Duration::from_secs(10));
        bench.run(|bench| !when_idle || bench.closed(0).is_some());
        assert_eq!(bench.closed(0), when_idle.then_some(&CloseReason::Silent));
        bench.close();
    }
}

/// Calls that are given up soon leave nothing outstanding, but their credits are gone until they are answered.
#[test]
fn a_server_that_falls_silent_is_left_although_all_calls_were_given_up() {
    let mut bench = bench(ClientPolicy { keep_alive: Some(KEEP_ALIVE), ..ClientPolicy::default() });
    bench.check_alive(0);
    let request = Request { timeout: Duration::from_millis(100), ..request_for(ECHO, 16) };
    for _ in 0..50 {
        let _ = bench.begin(0, request, Chunks::default(), |writer| writer.opaque(b"text"));
        freeze(&mut bench, Duration::from_millis(200));
    }
    bench.run(|bench| bench.closed(0).is_some());
    assert_eq!(bench.closed(0), Some(&CloseReason::Silent));
    bench.close();
}

/// A new connection of version 1 has one credit: there is none for a keep-alive when it is in use, and the Call on it asks as much.
#[test]
fn a_server_that_never_says_anything_is_left() {
    let mut bench = bench(ClientPolicy { keep_alive: Some(KEEP_ALIVE), ..ClientPolicy::default() });
    let request = Request { timeout: Duration::from_millis(100), ..request_for(ECHO, 16) };
    let begun = bench.begin(0, request, Chunks::default(), |writer| writer.opaque(b"text"));
    begun.expect("the first credit");
    freeze(&mut bench, Duration::from_secs(2));
    bench.run(|bench| bench.closed(0).is_some());
    assert_eq!(bench.closed(0), Some(&CloseReason::Silent));
    assert_eq!(keep_alives(&bench), u64::from(IS_VERSION_2));
    bench.close();
}

/// The only credit is a slow Call's: its user waits for it, however long the server is silent.
#[test]
fn a_slow_answer_to_the_only_credit_is_waited_for() {
    let mut bench = bench(policy());
    let call = later(&mut bench, Duration::from_secs(20));
    assert_eq!(bytes(&bench.finish(0, call)), opaque(b"text"));
    assert_eq!(bench.clients[0].events.len(), 1, "{:?}", bench.clients[0].events);
    bench.close();
}
