//! Decides which of several engines serves a connection, by the history of connections, without I/O or a clock of its own.
//!
//! The first connection of a client goes to the engine with the least load, which becomes the client's *home*: a client that
//! connects again alone comes back there, where the Replies of its earlier Calls are kept. Further connections of the client
//! (Linux's `nconnect`) go to the engine with the least load.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Clients whose homes are remembered.
const HOMES_MAX: usize = 16 * 1024;

/// Of these, those of one owner: a host has all addresses of a network of IPv6, and a user as many processes.
const HOMES_EACH: usize = HOMES_MAX / 16;

/// How long a home outlives its client's last connection: longer than any Reply is kept for a retransmission.
const HOME_KEPT: Duration = Duration::from_secs(600);

/// How busy an engine is that does nothing else: the scale of [`ConnectionPlacement::set_busy`].
pub const BUSY_MAX: u16 = 1000;

/// A client's home.
#[derive(Clone, Copy, Debug)]
struct Home {
    owner: u128,
    engine: u32,
    connections: u32,
    /// When its last connection ended; while there is one, when the last one before did.
    idle_since: Duration,
}

/// The clients of one owner that have homes.
#[derive(Clone, Debug, Default)]
struct OwnerHomes {
    homes: usize,
    /// As [`ConnectionPlacement::idle`].
    idle: VecDeque<(u128, Duration)>,
}

/// What is known of an engine.
#[derive(Clone, Copy, Debug, Default)]
struct EngineLoad {
    connections: u32,
    busy: u16,
}

/// Says which engine serves a connection.
///
/// Bounded: it remembers the homes of 16 Ki clients, of which 1 Ki may be one owner's, and forgets the one that was idle for
/// longest first. An *owner* is a network address (of IPv6 the first 64 bits) or a user of this machine.
#[derive(Debug)]
pub struct ConnectionPlacement {
    engines: Vec<EngineLoad>,
    connections_max: u32,
    homes: HashMap<u128, Home>,
    owners: HashMap<u128, OwnerHomes>,
    /// Clients without connections, and since when, oldest first. Out of date where the client came back.
    idle: VecDeque<(u128, Duration)>,
}

impl ConnectionPlacement {
    /// For this number of engines, of which each takes at most `connections_max` connections.
    #[must_use]
    pub fn new(engines: usize, connections_max: u32) -> ConnectionPlacement {
        ConnectionPlacement {
            engines: vec![EngineLoad::default(); engines],
            connections_max,
            homes: HashMap::new(),
            owners: HashMap::new(),
            idle: VecDeque::new(),
        }
    }

    /// The engine that serves a connection of `client`, one of `owner`, that comes now. `None`: all are full; the caller's engine makes room, or
    /// refuses.
    pub fn place(&mut self, client: u128, owner: u128, now: Duration) -> Option<usize> {
        self.forget_homes(now);
        let home = self.homes.get(&client).copied();
        let at_home = home.filter(|home| home.connections == 0 && self.has_room(home.engine as usize));
        let engine = match at_home {
            Some(home) => home.engine as usize,
            None => self.least_loaded()?,
        };
        self.engines[engine].connections += 1;
        match self.homes.get_mut(&client) {
            Some(home) => home.connections += 1,
            None => {
                self.make_room_for_home(owner);
                // With more clients than that connected, those that come last have no home.
                if self.homes.len() < HOMES_MAX && self.homes_of(owner) < HOMES_EACH {
                    let home = Home { owner, engine: engine as u32, connections: 1, idle_since: now };
                    self.homes.insert(client, home);
                    self.owners.entry(owner).or_default().homes += 1;
                }
            }
        }
        Some(engine)
    }

    /// A connection of `client` that `engine` served, or was to serve, ended.
    pub fn ended(&mut self, client: u128, engine: usize, now: Duration) {
        if let Some(load) = self.engines.get_mut(engine) {
            load.connections = load.connections.saturating_sub(1);
        }
        let Some(home) = self.homes.get_mut(&client) else { return };
        home.connections = home.connections.saturating_sub(1);
        if home.connections > 0 {
            return;
        }
        home.idle_since = now;
        let owner = home.owner;
        note_idle(&mut self.idle, HOMES_MAX, &self.homes, client, now);
        let own = &mut self.owners.entry(owner).or_default().idle;
        note_idle(own, HOMES_EACH, &self.homes, client, now);
    }

    /// How busy an engine was lately, from 0 to [`BUSY_MAX`]: its share of the time in which it had something to do.
    pub fn set_busy(&mut self, engine: usize, busy: u16) {
        if let Some(load) = self.engines.get_mut(engine) {
            load.busy = busy.min(BUSY_MAX);
        }
    }

    /// The home of a client, where its duplicate requests are known.
    #[must_use]
    pub fn home(&self, client: u128) -> Option<usize> {
        self.homes.get(&client).map(|home| home.engine as usize)
    }

    /// Connections that an engine serves, as far as was told.
    #[must_use]
    pub fn connections(&self, engine: usize) -> u32 {
        self.engines.get(engine).map_or(0, |load| load.connections)
    }

    fn has_room(&self, engine: usize) -> bool {
        self.engines[engine].connections < self.connections_max
    }

    /// The engine that has the least load with one connection more: connections count for more where the engine is busy, twice at
    /// most. The first of several.
    fn least_loaded(&self) -> Option<usize> {
        let load = |load: &EngineLoad| {
            (u64::from(load.connections) + 1) * (u64::from(BUSY_MAX) + u64::from(load.busy))
        };
        let with_room = (0..self.engines.len()).filter(|&engine| self.has_room(engine));
        with_room.min_by_key(|&engine| load(&self.engines[engine]))
    }

    fn forget_homes(&mut self, now: Duration) {
        while let Some(&(client, since)) = self.idle.front()
            && now >= since + HOME_KEPT
        {
            self.idle.pop_front();
            self.forget(client, since);
        }
    }

    /// Homes of an owner's clients.
    fn homes_of(&self, owner: u128) -> usize {
        self.owners.get(&owner).map_or(0, |owner| owner.homes)
    }

    fn make_room_for_home(&mut self, owner: u128) {
        while self.homes_of(owner) >= HOMES_EACH
            && let Some((client, since)) =
                self.owners.get_mut(&owner).and_then(|owner| owner.idle.pop_front())
        {
            self.forget(client, since);
        }
        while self.homes.len() >= HOMES_MAX
            && let Some((client, since)) = self.idle.pop_front()
        {
            self.forget(client, since);
        }
    }

    /// Forgets the client's home, if it has no connection since then.
    fn forget(&mut self, client: u128, since: Duration) {
        if is_idle_since(&self.homes, client, since)
            && let Some(home) = self.homes.remove(&client)
            && let Entry::Occupied(mut owner) = self.owners.entry(home.owner)
        {
            owner.get_mut().homes -= 1;
            if owner.get().homes == 0 {
                owner.remove();
            }
        }
    }
}

/// A client has no connection from now on: `idle` remembers that, and has no more than twice as many as homes there may be.
fn note_idle(
    idle: &mut VecDeque<(u128, Duration)>,
    homes_max: usize,
    homes: &HashMap<u128, Home>,
    client: u128,
    now: Duration,
) {
    if idle.len() >= 2 * homes_max {
        idle.retain(|&(client, since)| is_idle_since(homes, client, since));
    }
    idle.push_back((client, now));
}

/// Whether the client has no connection since then.
fn is_idle_since(homes: &HashMap<u128, Home>, client: u128, since: Duration) -> bool {
    homes.get(&client).is_some_and(|home| home.connections == 0 && home.idle_since == since)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A client that is its own owner.
    fn client(number: u32) -> u128 {
        number.into()
    }

    fn place(placement: &mut ConnectionPlacement, client: u128, now: Duration) -> Option<usize> {
        placement.place(client, client, now)
    }

    const T0: Duration = Duration::ZERO;

    #[test]
    fn connections_of_one_client_are_spread() {
        let mut placement = ConnectionPlacement::new(4, 100);
        let placed: Vec<_> = (0..8).map(|_| place(&mut placement, client(1), T0).unwrap()).collect();
        assert_eq!(placed, [0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(placement.home(client(1)), Some(0));
    }

    #[test]
    fn a_busy_engine_gets_fewer() {
        let mut placement = ConnectionPlacement::new(2, 100);
        placement.set_busy(0, BUSY_MAX);
        for number in 0..30 {
            place(&mut placement, client(number), T0).unwrap();
        }
        assert_eq!((placement.connections(0), placement.connections(1)), (10, 20));
    }

    #[test]
    fn a_client_comes_home_until_it_was_away_for_long() {
        let mut placement = ConnectionPlacement::new(2, 100);
        assert_eq!(place(&mut placement, client(1), T0), Some(0));
        assert_eq!(place(&mut placement, client(2), T0), Some(1));
        assert_eq!(place(&mut placement, client(3), T0), Some(0));
        // Its engine has more connections than the other, and is its home.
        placement.ended(client(3), 0, T0);
        for number in 10..13 {
            place(&mut placement, client(number), T0).unwrap();
        }
        placement.ended(client(11), 1, T0);
        assert!(placement.connections(0) > placement.connections(1));
        let late = HOME_KEPT - Duration::from_secs(1);
        assert_eq!(place(&mut placement, client(3), late), Some(0));
        placement.ended(client(3), 0, late);
        assert_eq!(place(&mut placement, client(3), late + HOME_KEPT), Some(1), "its home is forgotten");
    }

    #[test]
    fn who_is_full_gets_none() {
        let mut placement = ConnectionPlacement::new(2, 1);
        assert_eq!(place(&mut placement, client(1), T0), Some(0));
        placement.ended(client(1), 0, T0);
        assert_eq!(place(&mut placement, client(2), T0), Some(0));
        assert_eq!(place(&mut placement, client(1), T0), Some(1), "its home is full");
        assert_eq!(place(&mut placement, client(3), T0), None);
        assert_eq!(place(&mut ConnectionPlacement::new(0, 1), client(1), T0), None);
    }

    #[test]
    fn homes_are_bounded_and_the_oldest_goes_first() {
        let mut placement = ConnectionPlacement::new(3, u32::MAX);
        let most = HOMES_MAX as u32;
        for number in 0..most + 10 {
            let engine = place(&mut placement, client(number), T0).unwrap();
            placement.ended(client(number), engine, T0);
            // Again and again: what is remembered of it does not grow.
            let engine = place(&mut placement, client(number), T0).unwrap();
            placement.ended(client(number), engine, T0);
        }
        assert_eq!(placement.homes.len(), HOMES_MAX);
        assert!(placement.idle.len() <= 2 * HOMES_MAX);
        assert_eq!((placement.home(client(9)), placement.home(client(10)).is_some()), (None, true));
    }

    #[test]
    fn one_owner_does_not_make_others_homes_forgotten() {
        let mut placement = ConnectionPlacement::new(3, u32::MAX);
        let quiet = client(1);
        let home = place(&mut placement, quiet, T0).unwrap();
        placement.ended(quiet, home, T0);
        let network = 0x2001_0db8_u128 << 96;
        let of_network = |number: u32| network | u128::from(number);
        for number in 0..2 * HOMES_MAX as u32 {
            let engine = placement.place(of_network(number), network, T0).unwrap();
            placement.ended(of_network(number), engine, T0);
        }
        assert_eq!(placement.home(quiet), Some(home));
        assert_eq!(placement.homes.len(), HOMES_EACH + 1);
        assert!(placement.home(of_network(2 * HOMES_MAX as u32 - 1)).is_some(), "its latest are known");
        place(&mut placement, quiet, HOME_KEPT).unwrap();
        assert_eq!((placement.homes.len(), placement.owners.len()), (1, 1), "all others were away for long");
    }

    proptest! {
        /// Of engines that are equally busy, none has two connections more than another while connections only come,
        /// whatever clients they are of.
        #[test]
        fn equal_engines_have_equal_shares(
            engines in 1_usize..9,
            clients in prop::collection::vec(0_u32..20, 0..200),
        ) {
            let mut placement = ConnectionPlacement::new(engines, 1000);
            for number in clients {
                place(&mut placement, client(number), T0).unwrap();
                let loads = (0..engines).map(|engine| placement.connections(engine));
                let (least, most) = (loads.clone().min().unwrap(), loads.max().unwrap());
                prop_assert!(most - least <= 1, "{least} to {most}");
            }
        }

        /// A client's home stays where it is while it comes and goes, and a client without other connections is placed there; the
        /// counts are those of the open connections.
        #[test]
        fn homes_stay(steps in prop::collection::vec((0_u32..6, any::<bool>(), 0_u64..100), 0..300)) {
            let mut placement = ConnectionPlacement::new(4, 1000);
            let mut open: HashMap<u32, Vec<usize>> = HashMap::new();
            let mut now = T0;
            for (number, comes, pause) in steps {
                now += Duration::from_millis(pause);
                let home = placement.home(client(number));
                let own = open.entry(number).or_default();
                if comes {
                    let engine = place(&mut placement, client(number), now).unwrap();
                    if own.is_empty() && home.is_some() {
                        prop_assert_eq!(Some(engine), home);
                    }
                    own.push(engine);
                } else if let Some(engine) = own.pop() {
                    placement.ended(client(number), engine, now);
                }
                if home.is_some() {
                    prop_assert_eq!(placement.home(client(number)), home);
                }
                let all: usize = open.values().map(Vec::len).sum();
                let counted: u32 = (0..4).map(|engine| placement.connections(engine)).sum();
                prop_assert_eq!(counted as usize, all);
            }
        }
    }
}
