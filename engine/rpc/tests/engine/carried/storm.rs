//! Groups of 1 to 4 reactors under Calls of all kinds whose homes the arguments decide: each ends once, with its own data,
//! and nothing is left.

use stag_fabric::sim::{Attendance, FaultPlan, Odds, World, sweep};
use stag_rpc::{Call, CallId, Chunks, Home};
use stag_runtime::ReactorId;

use super::group::Group;
use crate::support::program::{BIG, ECHO, GET, LATER, LATER_PUT, ONCE, pattern, sum};
use crate::support::{bytes, opaque, request, request_for, words};

/// Seeds without `STAG_SEEDS`.
const SEEDS: u64 = 60;

/// At the reactor that the arguments choose, of a group of as many as `N`; now and then at all of them.
fn by_arguments<const N: u32>(call: &Call<'_>) -> Home {
    let mut arguments = call.arguments();
    let sum: u32 = (0..2).map(|_| arguments.u32().unwrap_or(0)).fold(0, u32::wrapping_add);
    match call.procedure {
        // What all execute is executed as often as there are reactors.
        ECHO if sum.is_multiple_of(16) => Home::Everywhere,
        _ => Home::At(ReactorId::new((sum % N) as usize).expect("a group may have four")),
    }
}

const HOMES: [fn(&Call<'_>) -> Home; 4] =
    [by_arguments::<1>, by_arguments::<2>, by_arguments::<3>, by_arguments::<4>];

/// A Call that is under way, and what its results have to be.
struct Expected {
    client: usize,
    call: CallId,
    results: Option<Vec<u8>>,
    /// What its Write chunk has to hold.
    written: Option<Vec<u8>>,
}

fn begin(group: &mut Group, client: usize, number: u32) -> Expected {
    let len = group.draw(800);
    let (call, results) = match group.draw(6) {
        0 => {
            let text = pattern(number, len);
            let call = group.begin(client, request(ECHO), Chunks::default(), |writer| writer.opaque(&text));
            (call, Some(opaque(&text)))
        }
        1 => {
            let (text, delay) = (pattern(number, len), group.draw(3000) as u64);
            let call = group.begin(client, request(LATER), Chunks::default(), |writer| {
                writer.u64(delay)?;
                writer.opaque(&text)
            });
            (call, Some(opaque(&text)))
        }
        2 => {
            let delay = group.draw(2) as u64 * 700;
            let call = group.begin(client, request(ONCE), Chunks::default(), |writer| writer.u64(delay));
            (call, None)
        }
        3 => {
            let (len, number) = (len * 20 + 1, number + 1);
            let data = pattern(number, len);
            let chunks = Chunks::read(group.data(client, &data));
            let call = group.begin(client, request(LATER_PUT), chunks, |writer| {
                writer.u64(u64::from(number))?;
                writer.u32(1)?;
                writer.eligible_opaque_reduced(len as u32).map(drop)
            });
            (call, Some([0, sum(&data)].iter().flat_map(|word| word.to_be_bytes()).collect()))
        }
        4 => {
            let len = len * 20 + 1;
            let chunks = Chunks::write(group.clients[client].space(len));
            let arguments = [number, 1, len as u32];
            let call = group.begin(client, request_for(GET, 100), chunks, |writer| words(writer, &arguments));
            return Expected { client, call, results: None, written: Some(pattern(number, len)) };
        }
        _ => {
            let arguments = [number, len as u32];
            let call = group
                .begin(client, request_for(BIG, 900), Chunks::default(), |writer| words(writer, &arguments));
            (call, Some(opaque(&pattern(number, len))))
        }
    };
    Expected { client, call, results, written: None }
}

fn storm(seed: u64) {
    let reactors = 1 + (seed % 4) as usize;
    let lanes = [1, 2, 64][(seed / 4 % 3) as usize];
    let in_place = [Odds::one_in(2), Odds::ALWAYS, Odds::NEVER, Odds::one_in(10)][(seed / 12 % 4) as usize];
    let world = World::new(seed, FaultPlan { in_place, ..FaultPlan::default() });
    let mut group = Group::in_world(world, seed, reactors, lanes, HOMES[reactors - 1]);
    let clients: Vec<usize> = (0..6).map(|client| group.connect(client % reactors)).collect();
    clients.iter().for_each(|client| group.check_alive(*client));
    group.attendance = Some(Attendance::new(seed));
    for round in 0..12_u32 {
        let mut under_way = Vec::new();
        for client in &clients {
            for number in 0..3 {
                under_way.push(begin(&mut group, *client, round * 3 + number));
            }
        }
        for Expected { client, call, results, written } in under_way {
            let ended = group.finish(client, call);
            if let Some(results) = results {
                assert_eq!(bytes(&ended), results, "seed {seed}");
            }
            if let Some(written) = written {
                assert_eq!(ended.written[0].1, written, "seed {seed}");
            }
        }
    }
    group.close();
}

#[test]
fn carried_calls_of_all_kinds() {
    sweep("carried_calls_of_all_kinds", 0..SEEDS, storm);
}
