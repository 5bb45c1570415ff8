//! What a reactor knows of its group: the bells, statistics and stop of all members.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::bell::Bell;
use crate::clock::Clock;
use crate::cores::CoreId;
use crate::phases::{Milestone, StopPhases};
use crate::reactor_id::{ReactorId, ReactorSet};
use crate::statistics::StatisticsReader;

/// What a reactor of a group knows of it. Handed to the `make` of its poller; clones are the same reactor's.
#[derive(Clone, Debug)]
pub struct GroupMember {
    id: ReactorId,
    core: Option<CoreId>,
    clock: Clock,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    bells: Box<[Bell]>,
    statistics: Box<[StatisticsReader]>,
    phases: StopPhases,
}

impl GroupMember {
    /// The members of a group with these cores, whose reactors count their time in `statistics`.
    pub(crate) fn all(
        cores: &[Option<CoreId>],
        clock: Clock,
        may_sleep: bool,
        statistics: Box<[StatisticsReader]>,
    ) -> io::Result<Vec<GroupMember>> {
        let shared = Arc::new(Shared {
            bells: cores.iter().map(|_| Bell::new(may_sleep)).collect::<Result<_, _>>()?,
            statistics,
            phases: StopPhases::new(cores.len()),
        });
        let member = |(at, core): (usize, &Option<CoreId>)| GroupMember {
            id: ReactorId::of(at),
            core: *core,
            clock,
            shared: shared.clone(),
        };
        Ok(cores.iter().enumerate().map(member).collect())
    }

    /// Its place in the group.
    #[must_use]
    pub fn id(&self) -> ReactorId {
        self.id
    }

    /// Reactors of the group.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shared.bells.len()
    }

    /// All reactors of the group, this one too.
    pub fn ids(&self) -> impl Iterator<Item = ReactorId> + use<> {
        (0..self.count()).map(ReactorId::of)
    }

    /// The core that its thread is pinned to.
    #[must_use]
    pub fn core(&self) -> Option<CoreId> {
        self.core
    }

    /// The clock of all reactors of the group: a time of one means the same on another.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Wakes those of `reached` that sleep, after the publications for them: at most one fence for all of them.
    #[inline]
    pub fn ring(&self, reached: ReactorSet) {
        if !reached.is_empty() {
            Bell::ring_each(reached.filter_map(|id| self.shared.bells.get(id.index())));
        }
    }

    /// What another reactor of the group, or this one, did with its time so far. `None`: the group has no such reactor.
    #[must_use]
    pub fn statistics(&self, of: ReactorId) -> Option<&StatisticsReader> {
        self.shared.statistics.get(of.index())
    }

    /// The bell that wakes this reactor. Its loop arms it; a poller only looks at its lanes when `arm` is called.
    pub(crate) fn bell(&self) -> &Bell {
        &self.shared.bells[self.id.index()]
    }

    /// Begins the stop, and says when the first reactor did.
    pub(crate) fn begin_stop(&self, now: Duration) -> Duration {
        self.shared.phases.begin(now)
    }

    /// This reactor has reached a milestone of the stop. The last one wakes all others.
    pub(crate) fn reach(&self, milestone: Milestone) {
        if self.shared.phases.reach(milestone) {
            Bell::ring_each(&self.shared.bells);
        }
    }

    /// Whether all reactors have reached it.
    pub(crate) fn is_reached_by_all(&self, milestone: Milestone) -> bool {
        self.shared.phases.is_reached_by_all(milestone)
    }
}
