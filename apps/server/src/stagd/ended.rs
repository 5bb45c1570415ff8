//! How the reactors ended: what each did, and whether all memory came back.

use stag_runtime::{CoreId, Stopped};

use super::snapshot::Snapshot;
use crate::failure::CommandFailure;

/// Pools of a reactor.
const POOLS_EACH: usize = 2;

/// What a reactor did until its end.
pub(super) struct Ended {
    pub(super) stopped: Stopped,
    pub(super) work: Snapshot,
    /// Units of its pools that did not come back, those of them that are on loan to other reactors, those that a disk has that stands
    /// still, and which they are.
    pub(super) outstanding: usize,
    pub(super) lent: usize,
    pub(super) stranded: usize,
    pub(super) ledger: String,
    /// Why it stopped, if that was not wanted.
    pub(super) failure: Option<CommandFailure>,
}

/// Units that leaked, and what is said of them. What is on loan to a core that did not finish in time is no leak: that core had no
/// turn to give it back. Neither is what a disk has that stands still.
pub(super) fn judge(cores: &[CoreId], all: &[Ended]) -> (usize, String) {
    let is_late = all.iter().any(|ended| !ended.stopped.drained);
    let on_loan = |ended: &Ended| if is_late { ended.lent } else { 0 };
    let leaked =
        |ended: &Ended| ended.outstanding.saturating_sub(on_loan(ended)).saturating_sub(ended.stranded);
    let sum = all.iter().map(leaked).sum();
    let late: usize = all.iter().map(on_loan).sum();
    let stranded: usize = all.iter().map(|ended| ended.stranded).sum();
    let lines = cores.iter().zip(all).filter(|(_, ended)| leaked(ended) > 0).map(|(core, ended)| {
        let found = ended.ledger.trim_end().replace('\n', "; ");
        if all.len() > 1 { format!("{core}: {found}") } else { found }
    });
    let pools = POOLS_EACH * all.len();
    if sum > 0 {
        return (sum, lines.collect::<Vec<_>>().join("; "));
    }
    let mut said = vec![format!("{pools} pools")];
    if late > 0 {
        said.push(format!("{late} units are on loan to a core that did not finish in time"));
    }
    if stranded > 0 {
        said.push(format!("{stranded} units are in use by a disk that stands still"));
    }
    let ledger = match said.len() {
        1 => format!("no buffer leaked ({pools} pools, every buffer returned)"),
        _ => format!("no buffer leaked ({})", said.join("; ")),
    };
    (sum, ledger)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use stag_runtime::ReactorStatistics;

    use super::*;

    fn ended(drained: bool, outstanding: usize, lent: usize) -> Ended {
        let statistics = ReactorStatistics::default();
        let ledger = match outstanding {
            0 => "2 pools, every buffer returned".to_owned(),
            _ => format!("pool payload: {outstanding} of 100 units of 4096 bytes not returned\n"),
        };
        Ended {
            stopped: Stopped { drained, drain: Duration::ZERO, statistics },
            work: Snapshot::default(),
            outstanding,
            lent,
            stranded: 0,
            ledger,
            failure: None,
        }
    }

    #[test]
    fn what_a_late_core_has_on_loan_is_no_leak() {
        let cores = [CoreId(0), CoreId(1)];
        let (leaked, ledger) = judge(&cores, &[ended(false, 0, 0), ended(true, 16, 16)]);
        assert_eq!(leaked, 0);
        assert!(
            ledger.starts_with("no buffer leaked") && ledger.contains("16 units are on loan"),
            "{ledger}"
        );
        // Units that are not on loan leaked, and so did loans when every core was in time.
        let (leaked, ledger) = judge(&cores, &[ended(false, 0, 0), ended(true, 20, 16)]);
        assert_eq!(leaked, 4);
        assert!(ledger.starts_with("core 1: pool payload: 20 of 100 units"), "{ledger}");
        assert_eq!(judge(&cores, &[ended(true, 0, 0), ended(true, 16, 16)]).0, 16);
    }

    #[test]
    fn what_a_disk_has_that_stands_still_is_no_leak() {
        let stuck = |outstanding| Ended { stranded: 4, ..ended(false, outstanding, 0) };
        let (leaked, ledger) = judge(&[CoreId(0)], &[stuck(4)]);
        let said = "no buffer leaked (2 pools; 4 units are in use by a disk that stands still)";
        assert_eq!((leaked, ledger.as_str()), (0, said));
        assert_eq!(judge(&[CoreId(0)], &[stuck(6)]).0, 2);
    }

    #[test]
    fn all_that_came_back_is_said_so() {
        let (leaked, ledger) = judge(&[CoreId(3)], &[ended(true, 0, 0)]);
        assert_eq!((leaked, ledger.as_str()), (0, "no buffer leaked (2 pools, every buffer returned)"));
        let (_, ledger) = judge(&[CoreId(3)], &[ended(true, 2, 0)]);
        assert_eq!(ledger, "pool payload: 2 of 100 units of 4096 bytes not returned");
    }
}
