//! Long Replies of Calls that are executed at another reactor: they take that one's memory, and come out of their owner's part there.

use std::time::Duration;

use stag_rpc::{CallError, Chunks};
use stag_runtime::Poller;

use super::at_one;
use super::group::Group;
use crate::support::program::{BIG, PUT, pattern, sum};
use crate::support::{Ended, bytes, opaque, request, request_for, words};

const PAGES: usize = (4 << 20) / 4096;

/// Octets of one result, and of the honest client's data.
const LARGE: usize = 300 << 10;

impl Group {
    fn run_for(&mut self, time: Duration) {
        let end = self.world.now() + time;
        while self.world.now() < end {
            if self.pass() == 0 {
                let timers = self.reactors.iter().map(|reactor| reactor.engine.next_timeout());
                self.world.advance_before(timers.chain([Some(end)]).flatten().min());
            }
        }
    }
}

/// Data for the home of the greedy clients' Calls is read at once.
#[track_caller]
fn check_honest(group: &mut Group, client: usize) {
    let chunks = Chunks::read(group.data(client, &pattern(1, LARGE)));
    let begun = group.world.now();
    let call = group.begin(client, request(PUT), chunks, |writer| {
        writer.u32(1)?;
        writer.eligible_opaque_reduced(LARGE as u32).map(|_| ())
    });
    let done = group.finish(client, call);
    let expected = [0u32.to_be_bytes(), sum(&pattern(1, LARGE)).to_be_bytes()].concat();
    assert_eq!(bytes(&done), expected, "its data was there");
    assert!(group.world.now() - begun < Duration::from_millis(20), "it waited");
}

/// All that the greedy ask for is executed elsewhere before the first Reply is back.
#[test]
fn long_replies_of_carried_calls_are_their_owners() {
    let mut group = Group::new(2, at_one);
    let honest = group.connect_of(2, 1);
    group.check_alive(honest);
    let greedy: Vec<_> = (0..6).map(|_| group.connect_of(1, 0)).collect();
    for &client in &greedy {
        group.check_alive(client);
        group.clients[client].engine.provider_mut().set_writable(false);
    }
    let mut count = 0;
    for _ in 0..3 {
        for &client in &greedy {
            let encode = |writer: &mut stag_wire::xdr::Writer<'_>| words(writer, &[9, LARGE as u32]);
            let asked = request_for(BIG, LARGE + 8);
            while group.try_begin(client, asked, Chunks::default(), encode).is_ok() {
                count += 1;
            }
        }
        group.run_for(Duration::from_millis(15));
    }
    let held = group.reactors[1].memory.pools.payload.outstanding();
    assert!(held <= PAGES / 2, "{held} of {PAGES} pages of their home are held");
    check_honest(&mut group, honest);
    group.run_for(Duration::from_secs(3));
    check_honest(&mut group, honest);
    // Who takes them after all gets what was not refused.
    greedy.iter().for_each(|&client| group.clients[client].engine.provider_mut().set_writable(true));
    group.run_for(Duration::from_secs(3));
    let (mut whole, mut refused) = (0, 0);
    for &client in &greedy {
        for done in std::mem::take(&mut group.clients[client].done) {
            match Ended::of(done).result {
                Ok(results) if results == opaque(&pattern(9, LARGE)) => whole += 1,
                Err(CallError::Chunk | CallError::ConnectionLost | CallError::NotSent) => refused += 1,
                other => panic!("{:?}", other.map(|results| results.len())),
            }
        }
    }
    assert!(whole > 0 && refused > 0 && whole + refused == count, "{whole} whole, {refused} refused");
    assert_eq!(group.reactors[1].memory.pools.payload.outstanding(), 0, "all is counted back");
    group.close();
}
