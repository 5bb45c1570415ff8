//! Credits under clients that ask for anything, and use all they get: bursts, idle crowds, greedy ones, and messages in error.

use std::time::Duration;

use stag_fabric::sim::{FaultPlan, Random, Violations, World, sweep};
use stag_rpc::{CreditGauge, EngineConfig, client_credits, credit_fairness};

use crate::raw::{Raw, octets, word};
use crate::support::program::{PROGRAM, VERSION};
use crate::support::{ADDRESS, Bench, small};

const MSG: u32 = 0;
const ERROR: u32 = 4;

/// How a peer uses its credits.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Use {
    /// All of them, always.
    Greedy,
    /// One Call at a time.
    Single,
    /// None.
    Idle,
}

/// A peer that counts its own credits.
struct Peer {
    raw: Raw,
    how: Use,
    requested: u32,
    granted: u32,
    in_flight: u32,
    next_xid: u32,
    /// Its end has begun.
    is_ending: bool,
}

impl Peer {
    fn connect(bench: &Bench, user: u32, how: Use, requested: u32) -> Peer {
        let mut raw = Raw::new(&bench.world);
        raw.set_user(user);
        raw.connect(ADDRESS);
        Peer { raw, how, requested, granted: 1, in_flight: 0, next_xid: 1, is_ending: false }
    }

    /// Takes its answers in, and makes the Calls that it may make. `errors`: now and then one that is answered with RDMA_ERROR.
    fn step(&mut self, now: Duration, mut errors: Option<&mut Random>) -> usize {
        let mut count = self.raw.poll(now);
        for message in std::mem::take(&mut self.raw.messages) {
            self.in_flight -= 1;
            // 8166-X-6: the grant of an error is ignored.
            if word(&message, 3) != ERROR {
                self.granted = word(&message, 2);
                assert!(self.granted > 0, "8166-3.3.1-c");
            }
        }
        let window = self.granted.min(self.requested.max(1));
        let depth = match self.how {
            Use::Greedy => window,
            Use::Single => window.min(1),
            Use::Idle => 0,
        };
        while self.raw.established && !self.is_ending && self.raw.pair.is_some() && self.in_flight < depth {
            let xid = self.next_xid;
            self.next_xid += 1;
            // A list word that is neither 0 nor 1 is answered with ERR_CHUNK (8166-X-2).
            let list = errors.as_mut().map_or(0, |random| if random.below(4) == 0 { 7 } else { 0 });
            let header = [xid, 1, self.requested, MSG, 0, list, 0];
            let call = [xid, 0, 2, PROGRAM, VERSION, 0, 0, 0, 0, 0];
            assert!(self.raw.send(&octets(&[&header[..], &call].concat()), None));
            self.in_flight += 1;
            count += 1;
        }
        count
    }
}

struct Crowd {
    bench: Bench,
    peers: Vec<Peer>,
}

impl Crowd {
    fn new(world: World, server: EngineConfig) -> Crowd {
        Crowd { bench: Bench::in_world(world, server, small(), 0), peers: Vec::new() }
    }

    fn connect(&mut self, user: u32, how: Use, requested: u32) {
        self.peers.push(Peer::connect(&self.bench, user, how, requested));
    }

    fn pass(&mut self, mut errors: Option<&mut Random>) {
        let now = self.bench.world.now();
        let mut count = self.bench.pass();
        self.check();
        for peer in &mut self.peers {
            count += peer.step(now, errors.as_deref_mut());
        }
        if count == 0 {
            self.bench.world.advance();
        }
    }

    fn passes(&mut self, count: usize) {
        (0..count).for_each(|_| self.pass(None));
    }

    fn gauges(&self) -> Vec<CreditGauge> {
        self.bench.server.engine.credit_gauges().collect()
    }

    /// What holds after each pass.
    fn check(&self) {
        let gauges = self.gauges();
        // The Receives of a connection that ends come back one by one.
        let is_ending = self.peers.iter().any(|peer| peer.is_ending);
        for gauge in gauges.iter().filter(|_| !is_ending) {
            assert!(gauge.granted >= 1 && gauge.granted < gauge.receives.max(2), "{gauge:?}");
        }
        let receives: u32 = gauges.iter().map(|gauge| gauge.receives).sum();
        let (held, most) = self.bench.server.engine.receives_held();
        assert!(receives == held && held <= most, "{receives} counted, {held} held, of {most}");
    }

    fn granted(&self, peers: std::ops::Range<usize>) -> u32 {
        self.peers[peers].iter().map(|peer| peer.granted).sum()
    }

    #[track_caller]
    fn close(mut self) {
        assert_eq!(self.bench.world.violations(), Violations::default(), "no Send finds no Receive");
        assert_eq!(
            self.bench.server.engine.statistics().violations,
            0,
            "no peer did more than it was granted"
        );
        for peer in &mut self.peers {
            peer.how = Use::Idle;
            peer.is_ending = true;
            peer.raw.disconnect();
        }
        for _ in 0..10_000 {
            if self.bench.server.engine.connection_count() == 0 {
                break;
            }
            self.pass(None);
        }
        assert_eq!(self.bench.server.engine.receives_held().0, 0);
        drop(self.peers);
        self.bench.check_left();
    }
}

/// Bursts, silence, newcomers, ends, errors, and requests of 0 and 2^32-1, in any order.
#[test]
fn no_grant_is_without_its_receive_whatever_clients_do() {
    let seeds = 0..30;
    sweep("no_grant_is_without_its_receive_whatever_clients_do", seeds, |seed| {
        let mut random = Random::new(seed);
        let latency = Duration::from_micros(random.below(20));
        let plan = FaultPlan { latency: Duration::ZERO..=latency, ..FaultPlan::default() };
        let connections_max = 2 + random.below(10) as u32;
        let server = EngineConfig {
            credits_max: 1 + random.below(32) as u32,
            connections_max,
            receives_max: 2 * connections_max + random.below(150) as u32,
            burst: [1, 4, 64][random.below(3) as usize],
            ..small()
        };
        let mut crowd = Crowd::new(World::new(seed, plan), server);
        for _ in 0..300 {
            let at = random.below(connections_max.into()) as usize;
            let how = [Use::Greedy, Use::Single, Use::Idle][random.below(3) as usize];
            let requested = [0, 1, 5, u32::MAX][random.below(4) as usize];
            if at >= crowd.peers.len() {
                crowd.connect(random.below(3) as u32, how, requested);
            } else if random.below(40) == 0 {
                crowd.peers[at].is_ending = true;
                crowd.peers[at].raw.disconnect();
            } else {
                let peer = &mut crowd.peers[at];
                // A request may shrink only while no more Calls are under way (8166-3.3.1-b).
                peer.how = how;
                peer.requested = if peer.in_flight <= requested.max(1) { requested } else { peer.requested };
            }
            for _ in 0..random.below(30) {
                crowd.pass(Some(&mut random));
            }
        }
        // Messages under way get their answers.
        crowd.peers.iter_mut().for_each(|peer| peer.how = Use::Idle);
        crowd.passes(200);
        crowd.close();
    });
}

#[test]
fn a_greedy_client_leaves_others_their_part() {
    let server = EngineConfig { credits_max: 32, connections_max: 32, receives_max: 200, ..small() };
    let mut crowd = Crowd::new(World::new(1, FaultPlan::default()), server);
    // One client with 16 connections, and when it has all that it can get, five with one.
    for _ in 0..16 {
        crowd.connect(1, Use::Greedy, u32::MAX);
    }
    crowd.passes(4000);
    let alone = crowd.granted(0..16);
    for user in 2..7 {
        crowd.connect(user, Use::Greedy, u32::MAX);
    }
    crowd.passes(8000);
    let (many, single) = (crowd.granted(0..16), crowd.granted(16..21) / 5);
    assert!(alone >= 100, "{alone} for who is alone");
    assert!(single >= 20 && many * 4 <= single * 5, "{many} for 16 connections, {single} for one");
    crowd.close();
}

#[test]
fn equals_get_equal_parts_and_the_weighty_more() {
    for weight in [100, 150] {
        let server = EngineConfig { credits_max: 32, connections_max: 16, receives_max: 300, ..small() };
        let mut crowd = Crowd::new(World::new(1, FaultPlan::default()), server);
        crowd.bench.server.engine.set_client_weights(move |peer| match peer {
            stag_fabric::Peer::Process { uid: 3, .. } => weight,
            _ => 100,
        });
        for user in 0..12 {
            crowd.connect(user, Use::Greedy, u32::MAX);
            crowd.passes(20);
        }
        crowd.passes(8000);
        let clients = client_credits(&crowd.gauges());
        assert_eq!(clients.len(), 12);
        let fairness = credit_fairness(&clients).expect("all want more");
        assert!(fairness >= 0.95, "weight {weight}: {fairness}, {clients:?}");
        let (heavy, usual) = (crowd.granted(3..4), crowd.granted(5..6));
        assert!(heavy * 100 >= usual * (weight * 3 / 4), "{heavy} and {usual}");
        crowd.close();
    }
}

#[test]
fn the_busy_find_credits_beside_an_idle_crowd() {
    let server = EngineConfig { credits_max: 32, connections_max: 110, receives_max: 550, ..small() };
    let mut crowd = Crowd::new(World::new(1, FaultPlan::default()), server);
    for user in 0..100 {
        crowd.connect(user, Use::Single, 32);
    }
    crowd.passes(50);
    crowd.peers.iter_mut().for_each(|peer| peer.how = Use::Idle);
    crowd.passes(10);
    for user in 100..104 {
        crowd.connect(user, Use::Greedy, 32);
    }
    crowd.passes(12_000);
    let least = crowd.peers[100..].iter().map(|peer| peer.granted).min();
    assert!(least >= Some(24), "{least:?} for each of four");
    crowd.close();
}

#[test]
fn who_is_silent_with_more_than_its_part_ends_for_one_that_finds_less() {
    let server = EngineConfig { credits_max: 32, connections_max: 16, receives_max: 128, ..small() };
    let mut crowd = Crowd::new(World::new(1, FaultPlan::default()), server);
    // Busy one after the other, and silent from then on: the first have most of what is shared.
    for user in 0..6 {
        crowd.connect(user, Use::Greedy, u32::MAX);
        crowd.passes(100);
        crowd.peers[user as usize].how = Use::Idle;
        crowd.passes(10);
    }
    crowd.connect(6, Use::Greedy, u32::MAX);
    crowd.passes(100);
    let before = crowd.granted(6..7);
    assert_eq!(crowd.bench.server.engine.statistics().connections_evicted, 0, "no client is silent for long");
    for _ in 0..60 {
        let now = crowd.bench.world.now();
        crowd.bench.world.advance_to(now + Duration::from_millis(100));
        crowd.passes(50);
    }
    let (after, evicted) = (crowd.granted(6..7), crowd.bench.server.engine.statistics().connections_evicted);
    // It is sure of three. An equal part of seven is 12.
    assert!(before < 8 && after >= 12, "{before} credits, then {after}");
    assert!((1..=2).contains(&evicted), "{evicted}: no more than it needs");
    crowd.close();
}
