//! How often each operation of COMPOUND was executed, at one reactor.

use std::collections::BTreeMap;

use stag_vfs::Store;
use stag_wire::nfs4::Status4;
use stag_wire::nfs4::operation::Operation4;

use super::super::Nfs4;

/// Pairs of an operation and a status that are counted apart.
const STATUSES_MAX: usize = 1_024;

/// Operations that are counted: those with numbers below this. [`Operation4::Illegal`] counts at 0, which no operation has.
const NUMBERS: usize = 77;

/// What is known of one operation of version 4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationStatistics {
    /// The name of the RFCs.
    pub name: &'static str,
    /// Executions that are over, whatever came of them.
    pub calls: u64,
    /// Those of them that answered another status than NFS4_OK.
    pub errors: u64,
    /// The same by status (`nfsstat4`), as far as they are told apart.
    pub failures: Vec<(u32, u64)>,
    /// Times that one had to wait: for a store, or for a limit of its export. One may wait several times.
    pub waits: u64,
}

/// The counters, by the number of the operation.
#[derive(Debug)]
pub(super) struct OperationCounts {
    succeeded: [u64; NUMBERS],
    failed: [u64; NUMBERS],
    /// Failures by place and status.
    statuses: BTreeMap<(usize, u32), u64>,
    waited: [u64; NUMBERS],
    /// The operation that waited last.
    last_waited: u32,
}

impl Default for OperationCounts {
    fn default() -> OperationCounts {
        OperationCounts {
            succeeded: [0; NUMBERS],
            failed: [0; NUMBERS],
            statuses: BTreeMap::new(),
            waited: [0; NUMBERS],
            last_waited: 0,
        }
    }
}

impl OperationCounts {
    /// An operation has succeeded.
    #[inline(always)]
    pub(super) fn succeed(&mut self, number: u32) {
        if let Some(count) = self.succeeded.get_mut(number as usize) {
            *count += 1;
        }
    }

    /// An operation has failed.
    #[cold]
    pub(super) fn fail(&mut self, number: u32, status: Status4) {
        let place = if (number as usize) < NUMBERS { number as usize } else { 0 };
        self.failed[place] += 1;
        let key = (place, status.number());
        if self.statuses.len() < STATUSES_MAX || self.statuses.contains_key(&key) {
            *self.statuses.entry(key).or_default() += 1;
        }
    }

    /// An operation waits.
    pub(super) fn wait(&mut self, number: u32) {
        self.last_waited = number;
        if let Some(count) = self.waited.get_mut(number as usize) {
            *count += 1;
        }
    }

    /// The name of the operation that waited last.
    pub(super) fn last_waited(&self) -> Option<&'static str> {
        Operation4::from_number(self.last_waited).map(Operation4::name)
    }

    /// The failures of an operation, by status.
    fn failures(&self, place: usize) -> Vec<(u32, u64)> {
        let all = self.statuses.range((place, 0)..=(place, u32::MAX));
        all.map(|(&(_, status), &calls)| (status, calls)).collect()
    }

    /// The operations that were executed.
    fn all(&self) -> impl Iterator<Item = OperationStatistics> {
        (0..NUMBERS).filter_map(|place| {
            let (errors, waits) = (self.failed[place], self.waited[place]);
            let calls = self.succeeded[place] + errors;
            let operation = Operation4::from_number(place as u32).unwrap_or(Operation4::Illegal);
            (calls + waits > 0).then_some(OperationStatistics {
                name: operation.name(),
                calls,
                errors,
                failures: self.failures(place),
                waits,
            })
        })
    }
}

impl<S: Store + ?Sized> Nfs4<S> {
    /// The operations that were executed, by their numbers. What a slot kept and a COMPOUND repeated is not among them.
    #[must_use]
    pub fn operations(&self) -> Vec<OperationStatistics> {
        self.state.counts.all().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_count_by_their_names() {
        let mut counts = OperationCounts::default();
        assert_eq!(counts.all().count(), 0);
        for number in [Operation4::Read.number(), 3, 3, Operation4::Removexattr.number()] {
            counts.succeed(number);
        }
        for number in [3, Operation4::Illegal.number(), u32::MAX] {
            counts.fail(number, Status4::Inval);
        }
        counts.wait(Operation4::Read.number());
        assert_eq!(counts.last_waited(), Some("READ"));
        let failed: Vec<_> = counts.all().map(|found| found.failures).collect();
        assert_eq!(failed, [vec![(22, 2)], vec![(22, 1)], vec![], vec![]]);
        let all: Vec<_> =
            counts.all().map(|found| (found.name, found.calls, found.errors, found.waits)).collect();
        assert_eq!(
            all,
            [("ILLEGAL", 2, 2, 0), ("ACCESS", 3, 1, 0), ("READ", 1, 0, 1), ("REMOVEXATTR", 1, 0, 0)]
        );
    }
}
