//! The cost of a lane: a round trip of a record between two cores beside that of a bare cache line, and instructions on one
//! thread.
//!
//! `lane pair [ROUNDS]` pins two threads to two cores and prints both round trips and their ratio, the median of turns taken
//! by both in alternation. `valgrind --tool=callgrind --toggle-collect='*one_record*' lane one ROUNDS` counts push,
//! publish and pop of records of three lines.

use std::sync::atomic::{AtomicU64, Ordering};
use std::{hint, thread};

use anyhow::{Context, Result, bail, ensure};
use stag::runtime::{Clock, CoreId, LaneReader, LaneRecord, LaneWriter, affinity, lane};

/// Octets of a record of three lines.
const RECORD_LEN: usize = 3 * 64 - 8;
/// Turns of each kind, of which the median is taken.
const TURNS: usize = 9;

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let rounds = arguments.get(1).map_or(Ok(100_000), |text| text.parse()).context("ROUNDS: not a number")?;
    match arguments.first().map(String::as_str) {
        Some("pair") => pair(rounds),
        Some("one") => {
            one(rounds);
            Ok(())
        }
        _ => bail!("usage: lane pair|one [ROUNDS]"),
    }
}

/// Runs `there` on one core and `here` on another, and returns nanoseconds for each round of `here`.
fn between(
    cores: [CoreId; 2],
    rounds: u64,
    here: impl FnOnce() + Send,
    there: impl FnOnce() + Send,
) -> Result<f64> {
    thread::scope(|scope| {
        let other = scope.spawn(move || affinity::pin(cores[1]).map(|()| there()));
        let timed = scope.spawn(move || {
            affinity::pin(cores[0])?;
            let clock = Clock::start();
            let begin = clock.now();
            here();
            anyhow::Ok((clock.now() - begin).as_secs_f64() * 1e9 / rounds as f64)
        });
        let joined = "a thread that is measured does not panic";
        let time = timed.join().expect(joined);
        other.join().expect(joined)?;
        time
    })
}

/// A cache line that one thread writes.
#[derive(Default)]
#[repr(align(128))]
struct Padded(AtomicU64);

fn bare(cores: [CoreId; 2], rounds: u64) -> Result<f64> {
    let (ping, pong) = (Padded::default(), Padded::default());
    let await_round = |line: &Padded, round| {
        while line.0.load(Ordering::Acquire) != round {
            hint::spin_loop();
        }
    };
    let here = || {
        for round in 1..=rounds {
            ping.0.store(round, Ordering::Release);
            await_round(&pong, round);
        }
    };
    let there = || {
        for round in 1..=rounds {
            await_round(&ping, round);
            pong.0.store(round, Ordering::Release);
        }
    };
    between(cores, rounds, here, there)
}

fn record() -> LaneRecord {
    let mut record = LaneRecord::new();
    record.set_len(RECORD_LEN);
    record
}

fn send(writer: &mut LaneWriter<LaneRecord>, record: &LaneRecord) {
    while !writer.push_record(record) {
        hint::spin_loop();
    }
    writer.publish();
}

fn receive(reader: &mut LaneReader<LaneRecord>, record: &mut LaneRecord) {
    while !reader.pop_record(record) {
        hint::spin_loop();
    }
}

fn lanes(cores: [CoreId; 2], rounds: u64) -> Result<f64> {
    let (mut to, mut at_other) = lane(1024);
    let (mut back, mut from) = lane(1024);
    let here = move || {
        let mut record = record();
        for _ in 0..rounds {
            send(&mut to, &record);
            receive(&mut from, &mut record);
        }
    };
    let there = move || {
        let mut record = record();
        for _ in 0..rounds {
            receive(&mut at_other, &mut record);
            send(&mut back, &record);
        }
    };
    between(cores, rounds, here, there)
}

fn pair(rounds: u64) -> Result<()> {
    let allowed: Vec<_> = affinity::allowed().iter().take(2).collect();
    ensure!(allowed.len() == 2, "two cores are needed, and this process may use {}", affinity::allowed());
    let cores = [allowed[0], allowed[1]];
    let mut times = Vec::new();
    for _ in 0..TURNS {
        let (bare, lane) = (bare(cores, rounds)?, lanes(cores, rounds)?);
        times.push((lane / bare, bare, lane));
    }
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (ratio, bare, lane) = times[TURNS / 2];
    println!(
        "round trip, cores {} and {}: a line {bare:.0} ns, a record {lane:.0} ns, ratio {ratio:.2}",
        cores[0], cores[1]
    );
    Ok(())
}

fn one(rounds: u64) {
    let (mut writer, mut reader) = lane(1024);
    let (record, mut found) = (record(), LaneRecord::new());
    for _ in 0..rounds {
        one_record(&mut writer, &mut reader, &record, &mut found);
    }
    assert_eq!(writer.statistics().values, rounds);
}

#[inline(never)]
fn one_record(
    writer: &mut LaneWriter<LaneRecord>,
    reader: &mut LaneReader<LaneRecord>,
    record: &LaneRecord,
    found: &mut LaneRecord,
) {
    assert!(writer.push_record(record));
    writer.publish();
    assert!(reader.pop_record(found));
}
