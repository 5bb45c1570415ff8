//! Queue pairs that die, at each step and in all weathers: no Call sees it.

use std::time::Duration;

use stag_fabric::sim::{FaultPlan, Odds, World, sweep};
use stag_rpc::{CallError, CallId, Chunks, ClientPolicy, ConnectionEvent, KeepAlive, Request};

use super::calls::POLICY;
use crate::support::program::{BIG, ECHO, GET, LATER, ONCE, PROGRAM, PUT, VERSION, pattern, sum};
use crate::support::{Bench, Ended, opaque, request_for, small, words};

/// Calls of one run: three of each form.
const CALLS: u32 = 18;
/// Forms.
const FORMS: u32 = 6;

/// Begins a Call of the form that `number` says, if it can be.
fn begin(bench: &mut Bench, number: u32) -> Option<CallId> {
    let long = |request| Request { timeout: Duration::from_secs(3600), ..request };
    let begun = match number % FORMS {
        0 => {
            let text = pattern(number, 2000);
            let mut chunks = Chunks::write(bench.clients[0].space(600));
            chunks.read.push((0, bench.clients[0].data(&pattern(number, 5000))));
            bench.begin(0, long(request_for(PUT, 9000)), chunks, |writer| {
                writer.u32(2)?;
                writer.eligible_opaque_inline(&text)?;
                writer.eligible_opaque_reduced(5000).map(|_| ())
            })
        }
        1 => bench.begin(0, long(request_for(BIG, 4000)), Chunks::default(), |writer| {
            words(writer, &[number, 3000])
        }),
        2 => {
            let chunks = Chunks::write(bench.clients[0].space(5000));
            bench.begin(0, long(request_for(GET, 8)), chunks, |writer| words(writer, &[number, 1, 4500]))
        }
        3 => bench.begin(0, long(request_for(LATER, 16)), Chunks::default(), |writer| {
            writer.u64(30)?;
            writer.opaque(&number.to_be_bytes())
        }),
        4 => {
            // Every other one takes its time: its connection may end while it is executed.
            let delay = u64::from(number / FORMS % 2) * 500;
            bench.begin(0, long(request_for(ONCE, 16)), Chunks::default(), |writer| writer.u64(delay))
        }
        _ => bench.begin(0, long(request_for(ECHO, 16)), Chunks::default(), |writer| {
            writer.opaque(&number.to_be_bytes())
        }),
    };
    begun.ok()
}

/// Whether this is the answer to Call number `number`.
fn check(number: u32, done: &Ended) {
    let wanted = match number % FORMS {
        0 => {
            let mut answer = vec![0; 4];
            answer.extend(sum(&pattern(number, 2000)).to_be_bytes());
            answer.extend(sum(&pattern(number, 5000)).to_be_bytes());
            answer
        }
        1 => opaque(&pattern(number, 3000)),
        2 => 4500u32.to_be_bytes().to_vec(),
        // 5531-e: as many as there are of it, whichever came first.
        4 => match &done.result {
            Ok(count) => count.clone(),
            Err(error) => panic!("Call {number}: {error}"),
        },
        _ => opaque(&number.to_be_bytes()),
    };
    assert_eq!(done.result, Ok(wanted), "Call {number}");
    if number.is_multiple_of(FORMS) {
        assert_eq!(done.written.len(), 1);
    } else if number % FORMS == 2 {
        assert_eq!(done.written[0].1, pattern(number, 4500));
    }
}

/// What a run came to.
#[derive(Default)]
struct Ran {
    /// The first connection did not come about.
    refused: bool,
    interruptions: u32,
    retransmitted: u64,
    timed_out: u32,
    /// Steps of the fabric that the run took.
    steps: u64,
}

/// Makes all Calls through a world, each of which must be answered, once and rightly.
fn run(seed: u64, plan: FaultPlan) -> Ran {
    let deaf = plan.private_data_dropped != Odds::NEVER || plan.private_data_truncated != Odds::NEVER;
    let mut bench = Bench::in_world(World::new(seed, plan), small(), small(), 0);
    // Impatient: it asks in vain, and takes for silence what is none.
    let keep_alive = KeepAlive {
        program: PROGRAM,
        version: VERSION,
        after: Duration::from_millis(20),
        answer_within: Duration::from_millis(10),
        when_idle: seed % 3 == 1,
    };
    let keep_alive = (!seed.is_multiple_of(3)).then_some(keep_alive);
    bench.add_client_with(small(), ClientPolicy { keep_alive, ..POLICY });
    let mut calls: Vec<(CallId, u32)> = Vec::new();
    let (mut next, mut over) = (0, 0);
    let mut ran = Ran::default();
    bench.run(|bench| {
        if bench.closed(0).is_some() {
            return true;
        }
        let connection = bench.connections[0];
        if next < CALLS
            && bench.clients[0].engine.credits_available(connection) > 0
            && let Some(call) = begin(bench, next)
        {
            calls.push((call, next));
            next += 1;
        }
        for done in std::mem::take(&mut bench.clients[0].done) {
            let at = calls.iter().position(|(call, _)| *call == done.call).expect("each ends once");
            let (_, number) = calls.swap_remove(at);
            over += 1;
            match &done.result {
                // The ends do not know each other's inline threshold: a Reply may not fit.
                Err(CallError::Chunk) if deaf => {}
                Err(CallError::TimedOut) => ran.timed_out += 1,
                _ => check(number, &Ended::of(done)),
            }
        }
        over == CALLS
    });
    let events = &bench.clients[0].events;
    ran.interruptions =
        events.iter().filter(|event| matches!(event, ConnectionEvent::Interrupted { .. })).count() as u32;
    ran.refused = !events.iter().any(|event| matches!(event, ConnectionEvent::Established { .. }));
    ran.retransmitted = bench.clients[0].engine.statistics().calls_retransmitted;
    let done_once = bench.server.engine.services_mut().0.counted;
    assert!(ran.refused || done_once == CALLS / FORMS, "executed {done_once} times: 5531-e; {events:?}");
    ran.steps = bench.world.steps();
    let gave_up = bench.closed(0).is_some();
    assert!(ran.refused || !gave_up, "{events:?}");
    bench.close();
    ran
}

/// Runs once for each step of the scenario, with the connection cut there.
fn death_at_every_step_of(plan: &FaultPlan) {
    let (mut steps, mut retransmitted) = (0, 0);
    loop {
        let plan = FaultPlan { death_at: Some(steps + 1), ..plan.clone() };
        let ran = run(3, plan);
        retransmitted += ran.retransmitted;
        // It was over before the step at which it would have been cut.
        if ran.steps <= steps {
            break;
        }
        steps += 1;
    }
    assert!(steps > 50 && retransmitted > steps / 2, "{steps} steps, {retransmitted} Calls sent again");
}

#[test]
fn death_at_every_step() {
    death_at_every_step_of(&FaultPlan::default());
}

#[test]
fn death_at_every_step_of_a_rough_fabric() {
    death_at_every_step_of(&FaultPlan {
        fence_pending: Odds::ALWAYS,
        complete_early: Odds::ALWAYS,
        ..FaultPlan::default()
    });
}

#[test]
fn calls_through_storms_are_answered_once_each() {
    let (mut interruptions, mut retransmitted, mut timed_out) = (0, 0, 0);
    sweep("calls_through_storms_are_answered_once_each", 0..150, |seed| {
        // Deaths often enough that runs as short as these meet several.
        let plan = FaultPlan { death: Odds::one_in(60), ..FaultPlan::from_seed(seed) };
        let ran = run(seed, plan);
        interruptions += ran.interruptions;
        retransmitted += ran.retransmitted;
        timed_out += ran.timed_out;
    });
    println!("{interruptions} interruptions, {retransmitted} Calls sent again, {timed_out} timed out");
    assert!(
        interruptions > 100 && retransmitted > 100,
        "{interruptions} interruptions, {retransmitted} Calls"
    );
}
