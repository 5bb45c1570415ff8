//! Clients that leave unread what is exposed for them: it comes out of their owner's part of the payload memory, and is taken back
//! while others wait.

use std::time::Duration;

use stag_fabric::sim::{FaultPlan, World};
use stag_rpc::{Chunks, ClientPolicy, EngineConfig};
use stag_runtime::Poller;
use stag_wire::reliable_reply::ReliableReply;

use super::config;
use crate::raw::{Raw, octets};
use crate::support::program::{BIG, PROGRAM, PUT, VERSION, pattern, sum};
use crate::support::{ADDRESS, Bench, bytes, request, small};

const PAGES: usize = (4 << 20) / 4096;

/// Octets of one result, and of the honest client's data.
const LARGE: usize = 300 << 10;

/// A server, an honest client of one user, and clients of another that tell nothing.
struct Crowd {
    bench: Bench,
    silent: Vec<Raw>,
    next_xid: u32,
}

impl Crowd {
    fn new(count: usize) -> Crowd {
        let server =
            EngineConfig { inline_threshold: 4096, connections_max: 64, receives_max: 1024, ..config() };
        let mut bench = Bench::in_world(World::new(1, FaultPlan::default()), server, small(), 0);
        bench.add_client_of(2, small(), ClientPolicy::default());
        bench.establish();
        let mut silent = Vec::new();
        for _ in 0..count {
            let mut raw = Raw::new(&bench.world);
            raw.block = ReliableReply { pulls: true, exposes: false, done_receives: 0 }.to_wire().to_vec();
            raw.set_user(1);
            raw.connect(ADDRESS);
            silent.push(raw);
        }
        let mut crowd = Crowd { bench, silent, next_xid: 1 };
        crowd.run_for(Duration::from_millis(10));
        assert!(crowd.silent.iter().all(|raw| raw.established));
        // Until there are credits enough.
        for _ in 0..4 {
            (0..count).for_each(|client| crowd.ask(client, 4));
            crowd.run_for(Duration::from_millis(10));
        }
        crowd.silent.iter_mut().for_each(|raw| assert_eq!(std::mem::take(&mut raw.messages).len(), 4));
        crowd
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.bench.world.now() + time;
        while self.bench.world.now() < end {
            let now = self.bench.world.now();
            let count = self.bench.pass() + self.silent.iter_mut().map(|raw| raw.poll(now)).sum::<usize>();
            if count == 0 {
                let timers = [self.bench.server.engine.next_timeout(), Some(end)];
                self.bench.world.advance_before(timers.into_iter().flatten().min());
            }
        }
    }

    /// A Call of one of the silent, for a result of `len` octets that has no shorter form, without any chunk.
    fn ask(&mut self, client: usize, len: usize) {
        let xid = self.next_xid;
        self.next_xid += 1;
        let rpc = [xid, 0, 2, PROGRAM, VERSION, BIG, 0, 0, 0, 0, xid, len as u32];
        let message = [octets(&[xid, 1, 8, 0, 0, 0, 0]), octets(&rpc)].concat();
        assert!(self.silent[client].send(&message, None), "the connection is there");
    }

    fn held(&self) -> usize {
        self.bench.server.memory.pools.payload.outstanding()
    }

    /// The honest client's data is read at once.
    #[track_caller]
    fn check_honest(&mut self) {
        let chunks = Chunks::read(self.bench.clients[0].data(&pattern(1, LARGE)));
        let begun = self.bench.begin(0, request(PUT), chunks, |writer| {
            writer.u32(1)?;
            writer.eligible_opaque_reduced(LARGE as u32).map(|_| ())
        });
        let call = begun.expect("a credit");
        self.run_for(Duration::from_millis(20));
        let done = self.bench.finish(0, call);
        let expected = [0u32.to_be_bytes(), sum(&pattern(1, LARGE)).to_be_bytes()].concat();
        assert_eq!(bytes(&done), expected, "its data was there");
    }

    fn close(mut self) {
        self.silent.iter_mut().for_each(Raw::disconnect);
        self.run_for(Duration::from_secs(1));
        assert_eq!(self.held(), 0);
        self.bench.close();
    }
}

#[test]
fn exposed_replies_that_nobody_reads_are_their_owners() {
    let mut crowd = Crowd::new(12);
    for _ in 0..4 {
        (0..12).for_each(|client| crowd.ask(client, LARGE));
        crowd.run_for(Duration::from_millis(15));
    }
    assert!(crowd.held() <= PAGES / 2, "{} of {PAGES} pages are held", crowd.held());
    crowd.check_honest();
    crowd.run_for(Duration::from_secs(3));
    crowd.check_honest();
    assert_eq!(crowd.bench.server.engine.statistics().peers_stuck, 0);
    crowd.close();
}

#[test]
fn exposed_replies_of_the_silent_are_taken_back_while_others_wait() {
    let mut crowd = Crowd::new(8);
    for _ in 0..3 {
        (0..7).for_each(|client| crowd.ask(client, LARGE));
        crowd.run_for(Duration::from_millis(15));
    }
    assert_eq!(crowd.bench.server.engine.statistics().exposures_expired, 0);
    (0..4).for_each(|_| crowd.ask(7, LARGE));
    crowd.run_for(Duration::from_secs(2));
    assert!(crowd.bench.server.engine.statistics().exposures_expired > 0, "it was taken back");
    let is_exposed = |message: &Vec<u8>| crate::raw::word(message, 3) == 1;
    assert!(crowd.silent[7].messages.iter().any(is_exposed), "one who came late has something of it");
    assert!(crowd.silent.iter().all(|raw| raw.closed.is_none()), "no client had to end");
    crowd.check_honest();
    crowd.close();
}
