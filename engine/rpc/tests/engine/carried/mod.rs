//! Groups of reactors in one thread: Calls that are executed at another reactor than they came in at.

mod call_back;
mod data;
mod duplicates;
mod greedy;
mod group;
mod in_place;
mod spread;
mod stopping;
mod storm;
mod stream;

use stag_rpc::{Call, CallRefused, Chunks, Home};
use stag_runtime::ReactorId;

use crate::support::program::{BIG, DEFER, ECHO, LATER, NEVER, pattern};
use crate::support::{bytes, error, opaque, request, request_for, words};
use group::Group;

/// At reactor 1, whatever it is.
fn at_one(_: &Call<'_>) -> Home {
    Home::At(ReactorId::new(1).expect("a group may have two"))
}

fn everywhere(_: &Call<'_>) -> Home {
    Home::Everywhere
}

#[test]
fn a_call_is_executed_at_its_home() {
    let mut group = Group::new(2, at_one);
    let client = group.connect(0);
    for len in [0, 1, 100, 300, 420, 500, 900] {
        let text = vec![7; len];
        let call = group.begin(client, request(ECHO), Chunks::default(), |writer| writer.opaque(&text));
        assert_eq!(bytes(&group.finish(client, call)), opaque(&text));
    }
    assert_eq!(group.executed(), [0, 7]);
    assert_eq!(group.reactors[0].engine.statistics().calls_carried, 7);
    assert_eq!(group.reactors[1].engine.statistics().calls_executed_for_others, 7);
    // NULL is answered where it comes in.
    let call = group.begin(client, request(0), Chunks::default(), |_| Ok(()));
    group.finish(client, call);
    assert_eq!(group.executed(), [0, 7]);
    group.close();
}

#[test]
fn at_its_home_it_is_not_carried() {
    let mut group = Group::new(2, at_one);
    let client = group.connect(1);
    let call = group.begin(client, request(ECHO), Chunks::default(), |writer| writer.opaque(b"here"));
    assert_eq!(bytes(&group.finish(client, call)), opaque(b"here"));
    assert_eq!(group.executed(), [0, 1]);
    assert_eq!(group.reactors[0].engine.statistics().calls_executed_for_others, 0);
    group.close();
}

#[test]
fn what_is_answered_later() {
    let mut group = Group::new(3, at_one);
    let client = group.connect(2);
    group.check_alive(client);
    let calls: Vec<_> = (0..4_u64)
        .map(|number| {
            group.begin(client, request(LATER), Chunks::default(), move |writer| {
                writer.u64(1000 - 100 * number)?;
                writer.opaque(&[number as u8])
            })
        })
        .collect();
    for (number, call) in (0..).zip(calls) {
        assert_eq!(bytes(&group.finish(client, call)), opaque(&[number]));
    }
    // By another thread.
    let call = group.begin(client, request(DEFER), Chunks::default(), |_| Ok(()));
    group.run(|group| !group.program(1).deferred.is_empty());
    let deferred = group.program(1).deferred.pop().expect("just seen");
    deferred.finish(|reply| reply.success(|writer| writer.u32(9)));
    assert_eq!(bytes(&group.finish(client, call)), 9_u32.to_be_bytes());
    group.close();
}

#[test]
fn all_reactors_execute_it_before_it_is_answered() {
    let mut group = Group::new(4, everywhere);
    let client = group.connect(2);
    for _ in 0..3 {
        let call = group.begin(client, request(ECHO), Chunks::default(), |writer| writer.opaque(b"all"));
        assert_eq!(bytes(&group.finish(client, call)), opaque(b"all"));
    }
    assert_eq!(group.executed(), [3; 4]);
    // One of them takes its time.
    let call = group.begin(client, request(LATER), Chunks::default(), |writer| {
        writer.u64(NEVER)?;
        writer.opaque(b"late")
    });
    group.run(|group| {
        (0..4).filter(|reactor| *reactor != 2).all(|reactor| group.program(reactor).kept() == 1)
    });
    group.run_passes(100);
    assert_eq!(group.program(2).kept(), 0, "it is the last");
    for reactor in [0, 3] {
        group.program(reactor).release();
    }
    group.run_passes(100);
    assert_eq!(group.program(2).kept(), 0, "one has not answered");
    group.program(1).release();
    group.run(|group| group.program(2).kept() == 1);
    group.program(2).release();
    assert_eq!(bytes(&group.finish(client, call)), opaque(b"late"));
    group.close();
}

/// Results that do not stay inline, of a Call that all execute.
#[test]
fn long_results_of_a_call_that_all_execute() {
    let mut group = Group::new(3, everywhere);
    let client = group.connect(1);
    for len in [10, 700, 5000] {
        let call = group.begin(client, request_for(BIG, len + 8), Chunks::default(), |writer| {
            words(writer, &[5, len as u32])
        });
        assert_eq!(bytes(&group.finish(client, call)), opaque(&pattern(5, len)), "{len} octets");
    }
    assert_eq!(group.executed(), [3; 3]);
    group.close();
}

/// An answer comes when there is no message buffer to send it from: it waits, and the connection goes on.
#[test]
fn an_answer_waits_for_message_buffers() {
    let mut group = Group::new(2, at_one);
    let client = group.connect(0);
    group.check_alive(client);
    let call = group.begin(client, request(LATER), Chunks::default(), |writer| {
        writer.u64(NEVER)?;
        writer.opaque(b"late")
    });
    group.run(|group| group.program(1).kept() == 1);
    let messages = group.reactors[0].memory.pools.messages.clone();
    let taken: Vec<_> = std::iter::from_fn(|| messages.take()).collect();
    group.program(1).release();
    group.run_passes(100);
    assert_eq!(group.reactors[0].engine.connection_count(), 1);
    drop(taken);
    assert_eq!(bytes(&group.finish(client, call)), opaque(b"late"));
    group.close();
}

#[test]
fn what_a_handler_refuses() {
    let mut group = Group::new(2, at_one);
    let client = group.connect(0);
    let call = group.begin(client, request(ECHO), Chunks::default(), |writer| writer.u32(u32::MAX));
    assert_eq!(error(&group.finish(client, call)), stag_rpc::CallError::GarbageArguments);
    let call = group.begin(client, request(crate::support::program::FORGET), Chunks::default(), |_| Ok(()));
    assert_eq!(error(&group.finish(client, call)), stag_rpc::CallError::SystemError);
    assert_eq!(group.reactors[1].engine.statistics().replies_defective, 1);
    let call =
        group.begin(client, request(crate::support::program::BAD_CHUNKS), Chunks::default(), |_| Ok(()));
    assert!(group.finish(client, call).result.is_err());
    group.close();
}

/// More Calls than a lane takes: they wait where they came in, and all are answered.
#[test]
fn more_calls_than_may_be_under_way() {
    let mut group = Group::with_lanes(2, 2, at_one);
    let clients: Vec<usize> = (0..4).map(|_| group.connect(0)).collect();
    clients.iter().for_each(|client| group.check_alive(*client));
    let mut calls = Vec::new();
    for number in 0..4_u8 {
        for client in &clients {
            let call = group.begin(*client, request(LATER), Chunks::default(), move |writer| {
                writer.u64(500)?;
                writer.opaque(&[number; 400])
            });
            calls.push((*client, call, number));
        }
    }
    for (client, call, number) in calls {
        assert_eq!(bytes(&group.finish(client, call)), opaque(&[number; 400]));
    }
    group.close();
}

/// A connection that ends while its Call is executed elsewhere.
#[test]
fn a_connection_that_is_gone() {
    let mut group = Group::new(2, at_one);
    let client = group.connect(0);
    group.begin(client, request(LATER), Chunks::default(), |writer| {
        writer.u64(NEVER)?;
        writer.opaque(b"lost")
    });
    group.run(|group| group.program(1).kept() == 1);
    group.disconnect(client);
    group.run(|group| group.reactors[0].engine.connection_count() == 0);
    group.program(1).release();
    group.close();
}

/// A connection's reverse Calls live on its reactor: the home of a Call has another name for it.
#[test]
fn a_reactor_calls_back_on_its_own_connections() {
    let mut group = Group::new(2, at_one);
    let client = group.connect(0);
    let call = group.begin(client, request(ECHO), Chunks::default(), |writer| writer.opaque(b"text"));
    assert_eq!(bytes(&group.finish(client, call)), opaque(b"text"));
    let named = group.program(1).called_on.expect("it was executed there");
    let refused = group.reactors[1].engine.call_back(named, &request(ECHO), |_| Ok(()));
    assert_eq!(refused, Err(CallRefused::OtherReactor));
    group.close();
}
