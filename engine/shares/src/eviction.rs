//! Chooses the connection to evict when all places are taken and another client comes.
//!
//! In this order: a connection that was never of use (it made no Call, or only NULL and refused ones), one that is idle for
//! long, one that is idle now, one with a Call under way. Among equals, one of the owner that has most connections; of
//! those the one that is idle for longest. The last two kinds are only evicted for an owner with fewer connections, so no
//! owner can take all there are, and none loses one to an owner who has as many.
//!
//! A connection that is idle for some seconds and holds more than its part of the credits ends, too, while a busy one finds less
//! than its part: nothing but its own Calls could take them back.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

/// How long a connection is left alone that is being set up.
const SET_UP_MIN: Duration = Duration::from_secs(1);

/// A connection without a Call for so long is idle.
const RECENT: Duration = Duration::from_secs(10);

/// A connection without a Call for so long ends for a busy one that finds no credits, if it holds more than its part.
const YIELDS: Duration = Duration::from_secs(5);

/// How much a connection is worth; the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    Useless,
    Idle,
    Recent,
    Busy,
}

/// How a connection is used.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionUse {
    /// When it began.
    pub opened: Duration,
    /// When it last had an answer from a service that was no refusal.
    pub served: Option<Duration>,
    /// Both ends have agreed to talk.
    pub is_set_up: bool,
    /// A Call of it is under way.
    pub is_busy: bool,
}

impl ConnectionUse {
    /// Whether the connection is idle for so long that it has no claim to more credits than its part.
    #[must_use]
    pub fn has_to_yield(&self, now: Duration) -> bool {
        self.is_set_up && !self.is_busy && now >= self.served.unwrap_or(self.opened).saturating_add(YIELDS)
    }

    /// `None`: it is just being set up.
    ///
    /// One that is set up has no time of grace: a flood of strangers would take each place that becomes free before a
    /// client comes. As it is, each newcomer is let in, and keeps its place if it makes a Call before as many others
    /// came as there are places, which takes a client one round trip.
    fn worth(&self, now: Duration) -> Option<Worth> {
        match self.served {
            None if !self.is_set_up && now < self.opened.saturating_add(SET_UP_MIN) => None,
            None => Some(Worth::Useless),
            Some(_) if self.is_busy => Some(Worth::Busy),
            Some(served) if now < served.saturating_add(RECENT) => Some(Worth::Recent),
            Some(_) => Some(Worth::Idle),
        }
    }
}

/// Chooses which of `connections`, each with its owner, makes room for another of the owner `newcomer`; without one, among the
/// useless and idle only.
#[must_use]
pub fn victim<Id>(
    connections: impl Iterator<Item = (Id, u128, ConnectionUse)> + Clone,
    newcomer: Option<u128>,
    now: Duration,
) -> Option<Id> {
    let mut counts: HashMap<u128, u32> = HashMap::new();
    for (_, owner, _) in connections.clone() {
        *counts.entry(owner).or_default() += 1;
    }
    let count = |owner| counts.get(&owner).copied().unwrap_or(0);
    // An owner that gives one up still has as many as the newcomer has then.
    let enough = newcomer.map_or(u32::MAX, |owner| count(owner).saturating_add(1));
    let candidates = connections.filter_map(|(id, owner, usage)| {
        let worth = usage.worth(now)?;
        let count = count(owner);
        let since = usage.served.unwrap_or(usage.opened);
        (worth <= Worth::Idle || count > enough).then_some(((worth, Reverse(count), since), id))
    });
    candidates.min_by_key(|(rank, _)| *rank).map(|(_, id)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    /// An owner for each host: the text of its address without the port.
    fn owner(text: &str) -> u128 {
        let (host, _) = text.rsplit_once(':').expect("a port");
        host.bytes().fold(0, |owner, octet| owner << 8 | u128::from(octet))
    }

    /// A connection that was opened at second 0 and last served at `served`.
    fn used(served: u64, is_busy: bool) -> ConnectionUse {
        ConnectionUse {
            opened: Duration::ZERO,
            served: Some(Duration::from_secs(served)),
            is_set_up: true,
            is_busy,
        }
    }

    fn unused(opened: u64) -> ConnectionUse {
        ConnectionUse {
            opened: Duration::from_secs(opened),
            served: None,
            is_set_up: opened != 100,
            is_busy: false,
        }
    }

    fn choose(connections: &[(&str, ConnectionUse)], newcomer: Option<&str>) -> Option<usize> {
        let each = connections.iter().enumerate();
        victim(each.map(|(at, (text, usage))| (at, owner(text), *usage)), newcomer.map(owner), NOW)
    }

    #[test]
    fn the_least_useful_goes_first() {
        let mut connections = vec![
            ("10.0.0.1:1", used(99, true)),
            ("10.0.0.1:2", used(99, false)),
            ("10.0.0.1:3", used(80, false)),
            ("10.0.0.1:4", used(70, false)),
            ("10.0.0.1:5", unused(98)),
            ("10.0.0.1:6", unused(50)),
            ("10.0.0.1:7", unused(100)),
        ];
        for expected in [5, 4, 3, 2, 1, 0] {
            assert_eq!(choose(&connections, Some("10.0.0.2:1")), Some(expected));
            connections.remove(expected);
        }
        assert_eq!(choose(&connections, Some("10.0.0.2:1")), None, "one that is just being set up");
    }

    #[test]
    fn whoever_has_as_many_gets_no_more_of_what_is_used() {
        let two = [("10.0.0.1:1", used(99, false)), ("10.0.0.1:2", used(98, true))];
        assert_eq!(choose(&two, Some("10.0.0.1:3")), None, "the same owner");
        assert_eq!(choose(&two, Some("10.0.0.2:3")), Some(0));
        assert_eq!(choose(&two[..1], Some("10.0.0.2:3")), None, "its only one");
        assert_eq!(choose(&two, None), None);
        let idle = [("10.0.0.1:1", used(9, false)), ("10.0.0.1:2", used(8, false))];
        assert_eq!(choose(&idle, Some("10.0.0.1:3")), Some(1));
        assert_eq!(choose(&idle, None), Some(1));
    }

    #[test]
    fn the_owner_of_most_is_asked_first() {
        let many = [
            ("10.0.0.1:1", used(1, false)),
            ("10.0.0.3:1", used(80, false)),
            ("10.0.0.3:2", used(50, false)),
        ];
        assert_eq!(choose(&many, Some("10.0.0.2:3")), Some(2));
    }
}
