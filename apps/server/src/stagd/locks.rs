//! Prints the counters of locks.

use std::fmt;

use serde::Serialize;
use stag_nfs::server::LockingStatistics;

/// The `locks` of the last object of `--json`.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Locks {
    /// Locks and shares that are held at the end, and requests that wait.
    held: u32,
    waiting: u32,
    taken: u64,
    blocked: u64,
    granted: u64,
    denied: u64,
    refused: u64,
    calls_out: u64,
    calls_out_failed: u64,
    hosts_freed: u64,
}

impl Locks {
    /// Those that are held now, and requests that wait.
    pub(super) fn now(&self) -> (u32, u32) {
        (self.held, self.waiting)
    }

    /// Whether anybody ever locked anything.
    pub(super) fn is_used(&self) -> bool {
        self.taken + self.blocked + self.denied + self.refused + self.hosts_freed > 0
    }
}

impl std::ops::AddAssign for Locks {
    fn add_assign(&mut self, other: Locks) {
        self.held += other.held;
        self.waiting += other.waiting;
        self.taken += other.taken;
        self.blocked += other.blocked;
        self.granted += other.granted;
        self.denied += other.denied;
        self.refused += other.refused;
        self.calls_out += other.calls_out;
        self.calls_out_failed += other.calls_out_failed;
        self.hosts_freed += other.hosts_freed;
    }
}

impl From<LockingStatistics> for Locks {
    fn from(found: LockingStatistics) -> Locks {
        Locks {
            held: found.counts.locks,
            waiting: found.counts.waiting,
            taken: found.locks,
            blocked: found.blocked,
            granted: found.granted,
            denied: found.denied,
            refused: found.refused,
            calls_out: found.calls_out,
            calls_out_failed: found.calls_out_failed,
            hosts_freed: found.hosts_freed,
        }
    }
}

impl fmt::Display for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Locks { held, waiting, taken, blocked, granted, denied, refused, .. } = self;
        let Locks { calls_out, calls_out_failed, hosts_freed, .. } = self;
        write!(
            f,
            "{taken} taken at once, {granted} of {blocked} after a wait, {denied} denied, {refused} without room; {held} held, \
             {waiting} waiting; {calls_out} hosts called, {calls_out_failed} in vain, {hosts_freed} restarted"
        )
    }
}
