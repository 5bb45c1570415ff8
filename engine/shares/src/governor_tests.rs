//! Ledger and governors against clients that are numbers: a round trip is a burst of as many Calls as were granted.

use super::*;

/// One connection: what its server half would hold, and a client that makes as many Calls at once as it may.
struct Link {
    client: u32,
    governor: CreditGovernor,
    held: u32,
    granted: u32,
    /// Calls that the peer may have sent, or send: each needs a Receive.
    entitled: u32,
    /// Calls that it would make at once.
    wanted: u32,
    /// What its Calls request.
    requested: u32,
}

struct Model {
    config: CreditConfig,
    ledger: CreditLedger,
    links: Vec<Option<Link>>,
    pass: u64,
    now: Duration,
    /// Calls come one by one, each in a pass of its own.
    is_spread: bool,
}

impl Model {
    fn new(connections_max: u32, receives_max: u32, credits_max: u32) -> Model {
        let config =
            CreditConfig { connections_max, receives_max, credits_max, policy: CreditPolicy::Governed };
        Model {
            ledger: CreditLedger::new(&config),
            config,
            links: Vec::new(),
            pass: 0,
            now: Duration::ZERO,
            is_spread: false,
        }
    }

    /// A connection of a client. Returns its number.
    fn open(&mut self, client: u32, weight: u32, wanted: u32) -> usize {
        let at = self.open_unchecked(client, weight, wanted);
        self.check();
        at
    }

    /// As [`Model::open`], where looking at all connections each time would take too long.
    fn open_unchecked(&mut self, client: u32, weight: u32, wanted: u32) -> usize {
        self.ledger.open(client, u128::from(client), weight);
        let governor = CreditGovernor::new(&self.config);
        self.ledger.hold(Some(client), 0, FIRST_RECEIVES);
        let held = FIRST_RECEIVES;
        let link = Link { client, governor, held, granted: 1, entitled: 1, wanted, requested: u32::MAX };
        self.links.push(Some(link));
        self.links.len() - 1
    }

    fn close(&mut self, at: usize) {
        if let Some(link) = self.links[at].take() {
            self.ledger.hold(Some(link.client), link.held, 0);
            self.ledger.close(link.client, &link.governor);
        }
        self.check();
    }

    fn link(&self, at: usize) -> &Link {
        self.links[at].as_ref().expect("it is open")
    }

    /// A round trip of a connection: the Calls that it has credits for, up to what it wants, and their Replies.
    fn round_trip(&mut self, at: usize) {
        self.round_trip_unchecked(at);
        self.check();
    }

    /// As [`Model::round_trip`], where looking at all connections each time would take too long.
    fn round_trip_unchecked(&mut self, at: usize) {
        self.pass += 1;
        self.now += Duration::from_micros(10);
        let Some(link) = &mut self.links[at] else { return };
        let count = link.granted.min(link.wanted).min(link.requested.max(1));
        for _ in 0..count {
            self.pass += u64::from(self.is_spread);
            if link.governor.observe(self.pass, 0) || !link.governor.is_current(&self.ledger) {
                let input =
                    ReviewInput { client: link.client, held: link.held, is_obstructed: false, now: self.now };
                link.governor.review(&mut self.ledger, &input);
            }
            // As `Serving::replenish`.
            let before = link.held;
            let wanted = link.governor.limit().min(link.requested).max(1) + SPARE_RECEIVES;
            if link.held != wanted {
                self.ledger.hold(Some(link.client), link.held, link.held - 1);
                link.held -= 1;
                if link.held < wanted {
                    let count = (wanted - link.held).min(self.ledger.room(link.held));
                    self.ledger.hold(Some(link.client), link.held, link.held + count);
                    link.held += count;
                    if link.held < wanted {
                        link.governor.settle(&mut self.ledger, link.client, link.held - SPARE_RECEIVES);
                    }
                }
            }
            assert!(link.held + 1 >= before, "a Reply takes one Receive out of use at most");
            link.granted = link.governor.limit().min(link.held - SPARE_RECEIVES);
            link.entitled = link.granted.max(link.entitled - 1);
            assert!(link.granted >= 1, "8166-3.3.1-c: never 0");
            assert!(link.granted <= self.config.credits_max);
            assert!(link.entitled < link.held, "{} Calls, {} Receives", link.entitled, link.held);
        }
    }

    /// A round trip of each connection that wants something, `count` times.
    fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            (0..self.links.len()).for_each(|at| self.round_trip(at));
        }
    }

    /// As [`Model::rounds`], where looking at all connections each time would take too long.
    fn rounds_unchecked(&mut self, count: usize) {
        for _ in 0..count {
            (0..self.links.len()).for_each(|at| self.round_trip_unchecked(at));
            self.check();
        }
    }

    /// What holds at all times.
    fn check(&self) {
        let held: u32 = self.links.iter().flatten().map(|link| link.held).sum();
        assert_eq!(held, self.ledger.held());
        let granted: u32 = self.links.iter().flatten().map(|link| link.entitled).sum();
        assert!(granted <= held && held <= self.config.receives_max, "{granted} granted, {held} Receives");
        // Every connection, and every one that may yet come, finds the first ones.
        let open = self.links.iter().flatten().count() as u32;
        let sure: u32 = self.links.iter().flatten().map(|link| link.held.max(self.ledger.sure)).sum();
        let absent = self.config.connections_max - open;
        assert!(
            sure + absent * self.ledger.sure <= self.config.receives_max.max(held),
            "nothing for newcomers"
        );
    }

    /// A silent connection that holds too much ends for a starved one, as `Engine::relieve_starved` does, and connects again.
    fn evict(&mut self) {
        self.now += Duration::from_secs(1);
        if !self.ledger.take_starved(self.now) {
            return;
        }
        let silent = self.links.iter().enumerate().filter_map(|(at, link)| {
            let link = link.as_ref().filter(|link| link.wanted == 0)?;
            Some((self.ledger.excess(link.client, link.held), at))
        });
        if let Some((1.., at)) = silent.max() {
            let client = self.link(at).client;
            self.close(at);
            self.open(client, 100, 0);
        }
    }

    /// Credits of a client.
    fn granted(&self, client: u32) -> u32 {
        self.links.iter().flatten().filter(|link| link.client == client).map(|link| link.granted).sum()
    }
}

#[test]
fn the_busy_have_what_they_want_within_four_round_trips() {
    for wanted in [8, 32, 64, 128] {
        let mut model = Model::new(64, 2048, 128);
        let at = model.open(0, 100, wanted);
        model.rounds(4);
        assert!(model.link(at).granted >= wanted, "{wanted}: {}", model.link(at).granted);
    }
}

#[test]
fn calls_that_come_one_by_one_find_their_credits() {
    let mut model = Model::new(64, 2048, 128);
    model.is_spread = true;
    let (deep, single) = (model.open(0, 100, 128), model.open(1, 100, 1));
    model.rounds(60);
    assert_eq!(model.link(deep).granted, 128, "for who waits for its credits");
    model.rounds(10_000);
    let mut mean = 0;
    for _ in 0..1000 {
        model.round_trip(single);
        mean += model.link(single).granted;
    }
    assert!(mean / 1000 <= 16, "{}: more would not make it faster", mean / 1000);
}

#[test]
fn spread_calls_share_what_is_scarce() {
    let mut model = Model::new(64, 640, 128);
    model.is_spread = true;
    for client in 0..40 {
        model.open(client, 100, if client % 4 == 0 { 128 } else { 1 });
        model.rounds(2);
    }
    model.rounds(3000);
    let mut means = [0.0; 40];
    for _ in 0..400 {
        model.rounds(1);
        (0..40).for_each(|at| means[at] += f64::from(model.link(at).granted) / 400.0);
    }
    let deep = means.iter().step_by(4);
    let single = means.iter().enumerate().filter(|(at, _)| at % 4 > 0);
    let single = single.map(|(_, mean)| *mean).fold(0.0, f64::max);
    let least = deep.clone().copied().fold(f64::MAX, f64::min);
    assert!(least > 2.0 * single && least >= 16.0, "{least} with demand, {single} without");
    assert!(jain(deep.copied()) >= 0.95, "{means:?}");
}

#[test]
fn greedy_clients_settle_at_equal_parts() {
    for (clients, receives_max) in [(2, 160), (5, 600), (16, 1024), (33, 1024), (64, 1024), (200, 4096)] {
        let mut model = Model::new(256.min(receives_max / 2), receives_max, 1024);
        for client in 0..clients {
            model.open(client, 100, u32::MAX);
            // Who was there before has all it can get.
            model.rounds(2);
        }
        model.rounds(10);
        let parts = || (0..clients).map(|client| model.granted(client));
        let fairness = jain(parts().map(f64::from));
        let (least, most) = (parts().min(), parts().max());
        assert!(fairness >= 0.99, "{clients} clients, {receives_max}: {fairness}, {least:?} to {most:?}");
        // What no connection is sure of is in use.
        assert!(model.ledger.free() * 5 <= model.ledger.shared + 5 * clients, "{} free", model.ledger.free());
    }
}

#[test]
fn a_client_with_many_connections_gets_no_more() {
    for others in [4, 15, 40] {
        let mut model = Model::new(128, 2048, 1024);
        for _ in 0..16 {
            model.open(0, 100, u32::MAX);
        }
        model.rounds(20);
        let alone = model.granted(0);
        for client in 1..=others {
            model.open(client, 100, u32::MAX);
        }
        model.rounds(60);
        let (many, single) = (model.granted(0), model.granted(1));
        assert!(many * 10 <= single * 11, "{others} others: {many} for 16 connections, {single} for one");
        assert!(alone > 4 * many.min(200), "{alone}: alone it has what others do not want");
    }
}

#[test]
fn a_client_with_many_connections_gets_no_more_of_what_an_idle_crowd_leaves() {
    let mut model = Model::new(600, 6000, 1024);
    for client in 10..510 {
        let at = model.open(client, 100, 1);
        model.round_trip(at);
    }
    let mut busy: Vec<_> = (0..16).map(|_| model.open(0, 100, u32::MAX)).collect();
    busy.extend((1..5).map(|client| model.open(client, 100, u32::MAX)));
    for _ in 0..40 {
        busy.iter().for_each(|&at| model.round_trip(at));
    }
    let (many, single) = (model.granted(0), model.granted(1));
    assert!(many * 4 <= single * 5, "{many} for 16 connections, {single} for one");
    assert!(single >= 100, "{single}");
}

/// Who comes: connections of client 0; clients that are busy for a while one after the other, and silent from then on; and
/// clients with one busy connection each.
#[derive(Clone, Copy, Debug)]
enum Company {
    Crowd(u32),
    Silent(u32),
    Single(u32),
}

impl Model {
    fn come(&mut self, company: Company) {
        match company {
            Company::Crowd(count) => (0..count).for_each(|_| _ = self.open_unchecked(0, 100, u32::MAX)),
            Company::Silent(count) => {
                for client in 1000..1000 + count {
                    let at = self.open_unchecked(client, 100, u32::MAX);
                    (0..7).for_each(|_| self.round_trip_unchecked(at));
                    self.links[at].as_mut().expect("it is open").wanted = 0;
                }
            }
            Company::Single(count) => {
                for client in 1..=count {
                    self.open_unchecked(client, 100, u32::MAX);
                    self.rounds_unchecked(1);
                }
            }
        }
        self.rounds_unchecked(10);
    }
}

#[test]
fn crowds_and_singles_have_equal_parts_beside_silent_clients() {
    use Company::{Crowd, Silent, Single};
    let settings = [
        (64, 1024, 64),
        (64, 1024, 256),
        (64, 512, 64),
        (256, 2048, 128),
        (256, 1024, 1024),
        (600, 2400, 64),
    ];
    let companies = [
        (0, 0, 64),
        (40, 0, 7),
        (40, 0, 20),
        (16, 0, 40),
        (4, 0, 30),
        (0, 62, 1),
        (0, 40, 20),
        (20, 20, 20),
        (8, 40, 10),
        (40, 20, 2),
    ];
    for (connections_max, receives_max, credits_max) in settings {
        for company in companies {
            let [crowd, silent, singles] = <[u32; 3]>::from(company).map(|part| connections_max * part / 64);
            let (c, s, x) = (Crowd(crowd), Silent(silent), Single(singles));
            for order in [[c, s, x], [c, x, s], [s, c, x], [s, x, c], [x, c, s], [x, s, c]] {
                let mut model = Model::new(connections_max, receives_max, credits_max);
                order.into_iter().for_each(|company| model.come(company));
                model.now += Duration::from_secs(5);
                for _ in 0..silent {
                    model.rounds_unchecked(1);
                    model.evict();
                }
                model.rounds_unchecked(10);
                // One credit for each connection of the crowd may be more than its part.
                let first = if model.granted(0) == crowd { 1 } else { 0 };
                let parts = (first..=singles).map(|client| model.granted(client));
                // What is more than a single client may have is its own affair.
                let fairness = jain(parts.clone().map(|part| part.min(credits_max).into()));
                let least = parts.clone().min();
                let most = parts.max();
                let clients = u32::from(crowd > 0) + silent + singles;
                let equal = credits_max.min(model.ledger.shared / clients);
                assert!(
                    fairness >= 0.99 && least >= Some(equal),
                    "{credits_max} of {receives_max}, {order:?}: {fairness}, {least:?} to {most:?} of {equal}"
                );
            }
        }
    }
}

#[test]
fn weights_are_kept() {
    let mut model = Model::new(64, 4096, 1024);
    for client in 0..12 {
        model.open(client, if client == 0 { 300 } else { 100 }, u32::MAX);
    }
    model.rounds(60);
    let (heavy, usual) = (f64::from(model.granted(0)), f64::from(model.granted(5)));
    // Each is sure of as much, whatever its weight.
    assert!((2.3..=3.3).contains(&(heavy / usual)), "{heavy} and {usual}");
}

#[test]
fn an_idle_crowd_leaves_credits_to_the_busy() {
    let mut model = Model::new(1000, 8000, 128);
    for client in 0..990 {
        let at = model.open(client, 100, 1);
        model.round_trip(at);
    }
    let idle: u32 = model.links.iter().flatten().map(|link| link.granted).sum();
    let busy: Vec<_> = (990..1000).map(|client| model.open(client, 100, 128)).collect();
    for _ in 0..10 {
        busy.iter().for_each(|&at| model.round_trip(at));
    }
    let least = busy.iter().map(|&at| model.link(at).granted).min();
    assert!(least >= Some(64), "{least:?} for each of ten, beside {idle} for an idle crowd");
}

/// Receives for a crowd of `count` connections: four for each, and what is shared by those with use for more.
fn crowd_receives(count: u32) -> u32 {
    4 * count + 2048
}

/// A crowd of `count` connections, of one client or of as many, each with four Calls, one at a time. Returns 16 of them.
fn crowd(count: u32, is_one_client: bool) -> (Model, Vec<usize>) {
    let mut model = Model::new(count, crowd_receives(count), 128);
    for number in 0..count {
        model.open_unchecked(if is_one_client { 0 } else { number }, 100, 1);
    }
    for at in (0..count as usize).cycle().take(4 * count as usize) {
        model.round_trip_unchecked(at);
    }
    model.check();
    (model, (0..16).map(|number| number * (count as usize / 16)).collect())
}

#[test]
fn the_busy_of_a_crowd_have_what_they_want_within_eight_round_trips() {
    for count in [100, 1000, 10_000] {
        for is_one_client in [true, false] {
            let (mut model, busy) = crowd(count, is_one_client);
            for &at in &busy {
                model.links[at].as_mut().expect("it is open").wanted = 32;
            }
            let mut least = Vec::new();
            for _ in 0..8 {
                busy.iter().for_each(|&at| model.round_trip_unchecked(at));
                least.extend(busy.iter().map(|&at| model.link(at).granted).min());
            }
            model.check();
            let free = model.ledger.free();
            assert!(
                least.last() >= Some(&32),
                "{count} connections, one client: {is_one_client}: {least:?}, {free} free"
            );
        }
    }
}

#[test]
fn who_does_not_use_them_gives_credits_back_when_others_want_them() {
    let mut model = Model::new(20, 500, 128);
    let first = model.open(0, 100, 128);
    model.rounds(10);
    let before = model.link(first).granted;
    assert_eq!(before, 128, "alone");
    model.links[first].as_mut().expect("it is open").wanted = 1;
    // There is no other client: it keeps them.
    for _ in 0..200 {
        model.round_trip(first);
    }
    assert!(model.link(first).granted >= before / 2, "{}", model.link(first).granted);
    let others: Vec<_> = (1..8).map(|client| model.open(client, 100, u32::MAX)).collect();
    for _ in 0..600 {
        others.iter().for_each(|&at| model.round_trip(at));
        model.round_trip(first);
    }
    assert!(model.link(first).granted <= 16, "{}", model.link(first).granted);
    let least = others.iter().map(|&at| model.link(at).granted).min();
    assert!(least >= Some(30), "{least:?}");
}

#[test]
fn reactors_share_a_clients_weight_as_its_connections_are_spread() {
    // Client 0 has 16 connections, four at each of four reactors; of four others each has one.
    let counts = HeadCounts::new(64);
    let mut reactors: Vec<_> = (0..4).map(|_| Model::new(64, 1024, 1024)).collect();
    for (number, model) in reactors.iter_mut().enumerate() {
        model.ledger.join(counts.clone());
        for _ in 0..4 {
            model.open(0, 100, u32::MAX);
        }
        model.open(1 + number as u32, 100, u32::MAX);
    }
    for _ in 0..80 {
        reactors.iter_mut().for_each(|model| model.rounds(1));
    }
    let many: u32 = reactors.iter().map(|model| model.granted(0)).sum();
    let single = reactors[0].granted(1);
    assert!(many * 10 <= single * 12, "{many} for 16 connections, {single} for one");
    // Those of the other reactors go: this one is where all of them are.
    for model in &mut reactors[1..] {
        (0..5).for_each(|at| model.close(at));
    }
    reactors[0].rounds(80);
    let (many, single) = (reactors[0].granted(0), reactors[0].granted(1));
    assert!(many * 10 >= single * 8, "{many} for 4 connections, {single} for one");
}

#[test]
fn requests_are_kept_whatever_they_are() {
    let mut model = Model::new(8, 200, 64);
    for requested in [u32::MAX, 0, 1, 7, u32::MAX, 0] {
        let at = model.open(0, 100, u32::MAX);
        for _ in 0..40 {
            model.links[at].as_mut().expect("it is open").requested = requested;
            model.round_trip(at);
        }
        let link = model.link(at);
        assert!(link.held <= requested.max(1).saturating_add(SPARE_RECEIVES), "{requested}: {}", link.held);
        model.close(at);
    }
}

/// Every order of a few steps on a small ledger: bursts, ends, newcomers, and requests of every size.
#[test]
fn every_order_of_six_steps_keeps_the_rules() {
    const STEPS: u64 = 8;
    for order in 0..STEPS.pow(6) {
        let mut model = Model::new(4, 20, 8);
        let mut rest = order;
        for client in 0..3 {
            model.open(client.min(1), 100, u32::MAX);
        }
        for _ in 0..6 {
            let step = rest % STEPS;
            rest /= STEPS;
            match step {
                0..=2 => model.round_trip(step as usize),
                3 => (0..16).for_each(|_| model.round_trip(0)),
                4 => model.close(0),
                5 if model.links.iter().flatten().count() < 4 => _ = model.open(2, 1000, u32::MAX),
                6 => {
                    if let Some(link) = &mut model.links[1] {
                        link.requested = 0;
                    }
                }
                _ => model.round_trip(model.links.len() - 1),
            }
        }
    }
}
