//! [`sum_procedures`]: what several [`Observed`](crate::Observed) counted, as one list.

use crate::service::observed::ProcedureStatistics;

impl ProcedureStatistics {
    /// Adds what another reactor or engine counted of the same procedure.
    fn add(&mut self, other: &ProcedureStatistics) {
        // A field that is missing here does not compile.
        let ProcedureStatistics {
            program: _,
            version: _,
            name: _,
            calls,
            late,
            waited,
            waited_sum,
            executed,
            executed_sum,
            failures,
        } = other;
        self.calls += calls;
        self.late += late;
        for (sum, count) in self.waited.iter_mut().zip(waited) {
            *sum += count;
        }
        self.waited_sum += *waited_sum;
        for (sum, count) in self.executed.iter_mut().zip(executed) {
            *sum += count;
        }
        self.executed_sum += *executed_sum;
        for &(status, calls) in failures {
            match self.failures.iter_mut().find(|(known, _)| *known == status) {
                Some((_, sum)) => *sum += calls,
                None => self.failures.push((status, calls)),
            }
        }
    }
}

/// Sums up what several [`Observed`](crate::Observed) counted: each procedure once, those with the most Calls first.
#[must_use]
pub fn sum_procedures<'a>(
    all: impl IntoIterator<Item = &'a ProcedureStatistics>,
) -> Vec<ProcedureStatistics> {
    let mut sums: Vec<ProcedureStatistics> = Vec::new();
    for one in all {
        let is_same = |sum: &&mut ProcedureStatistics| {
            (sum.program, sum.version, sum.name) == (one.program, one.version, one.name)
        };
        match sums.iter_mut().find(is_same) {
            Some(sum) => sum.add(one),
            None => sums.push(one.clone()),
        }
    }
    sums.sort_by(|a, b| b.calls.cmp(&a.calls).then_with(|| a.name.cmp(b.name)));
    sums
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_procedure_is_the_sum_of_its_reactors() {
        let one = |name, calls, range: usize| {
            let mut found = ProcedureStatistics { program: 7, version: 1, name, calls, ..Default::default() };
            found.late = 1;
            found.waited[range] = 1;
            found.waited_sum = Duration::from_millis(500);
            (found.executed, found.executed_sum) = (found.waited, found.waited_sum);
            found.failures = vec![(calls as u32 % 2, 1), (5, 1)];
            found
        };
        let [first, other, second] = [one("READ", 3, 0), one("WRITE", 100, 0), one("READ", 4, 9)];
        let sums = sum_procedures([&first, &other, &second]);
        let names: Vec<_> = sums.iter().map(|sum| (sum.name, sum.calls, sum.late)).collect();
        assert_eq!(names, [("WRITE", 100, 1), ("READ", 7, 2)]);
        assert_eq!((sums[1].waited[0], sums[1].waited[9]), (1, 1));
        assert_eq!(sums[1].waited_sum, Duration::from_secs(1));
        assert_eq!((sums[1].executed, sums[1].executed_sum), (sums[1].waited, sums[1].waited_sum));
        assert_eq!(sums[1].failures, [(1, 1), (5, 2), (0, 1)]);
    }
}
