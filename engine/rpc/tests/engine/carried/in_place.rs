//! Calls without chunks go from where they arrived into the lane, and their Replies from the lane to where they leave. To all
//! others that is as if they had taken the general way.

use stag_fabric::sim::{FaultPlan, Odds, World};
use stag_rpc::{CARRIED_CALLS_MAX, Chunks};

use super::at_one;
use super::group::Group;
use crate::support::program::{BIG, ECHO, LATER, NEVER, ONCE, pattern};
use crate::support::{bytes, opaque, request, request_for, words};

const WAYS: [Odds; 3] = [Odds::NEVER, Odds::one_in(2), Odds::ALWAYS];

fn group(in_place: Odds) -> Group {
    let plan = FaultPlan { in_place, ..FaultPlan::default() };
    let mut group = Group::in_world(World::new(1, plan), 1, 2, CARRIED_CALLS_MAX, at_one);
    let client = group.connect(0);
    // Until the server has posted as many Receives as it wants.
    (0..8).for_each(|_| group.check_alive(client));
    group
}

/// Arguments and results that fit a record of a lane, just fit one, and do not.
#[test]
fn arguments_and_results_of_any_length() {
    for in_place in WAYS {
        let mut group = group(in_place);
        for len in [0, 1, 300, 360, 400, 420, 440, 460, 480, 500, 504, 510, 900] {
            let text = pattern(3, len);
            let call = group.begin(0, request(ECHO), Chunks::default(), |writer| writer.opaque(&text));
            assert_eq!(bytes(&group.finish(0, call)), opaque(&text), "{len} octets");
            // Few arguments, and results as long: they outgrow the record while they are written.
            let call = group.begin(0, request_for(BIG, len + 8), Chunks::default(), |writer| {
                words(writer, &[7, len as u32])
            });
            assert_eq!(bytes(&group.finish(0, call)), opaque(&pattern(7, len)), "{len} octets");
        }
        assert_eq!(group.executed(), [0, 8 + 26]);
        assert_eq!(group.reactors[0].engine.statistics().calls_carried, 8 + 26);
        group.close();
    }
}

/// What must not be executed twice is kept at its home, whichever way it came.
#[test]
fn harmful_calls_are_executed_once() {
    for in_place in WAYS {
        let mut group = group(in_place);
        let calls: Vec<_> = (0..4)
            .map(|number| {
                group.begin(0, request(ONCE), Chunks::default(), move |writer| writer.u64(number % 2 * 500))
            })
            .collect();
        for call in calls {
            group.finish(0, call);
        }
        assert_eq!(group.executed(), [0, 8 + 4]);
        group.close();
    }
}

/// Calls that are answered later keep their slots, and those behind them go on.
#[test]
fn calls_that_are_answered_later() {
    for in_place in WAYS {
        let mut group = group(in_place);
        let waiting: Vec<_> = (0..3)
            .map(|number| {
                group.begin(0, request(LATER), Chunks::default(), move |writer| {
                    writer.u64(NEVER)?;
                    writer.opaque(&[number])
                })
            })
            .collect();
        group.run(|group| group.program(1).kept() == 3);
        group.check_alive(0);
        group.program(1).release();
        for (number, call) in (0..).zip(waiting) {
            assert_eq!(bytes(&group.finish(0, call)), opaque(&[number]));
        }
        group.close();
    }
}
