//! `--all` and `--curve`: the points of a table of sizes, depths or rates.

use stag_bench::{Arrivals, Scenario};
use stag_server::values::Size;

use super::requirement::rate;

/// Sizes: from a cache line on, for below it all are alike.
const SIZES: std::ops::RangeInclusive<u32> = 6..=20;

/// Parts of the largest rate: closer together where a queue begins to grow.
const RATE_PARTS: [f64; 8] = [0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0];

/// What differs between the rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Along {
    /// There is one row.
    Nothing,
    /// Octets of a Call.
    Size,
    /// Calls outstanding.
    Depth,
    /// Calls a second.
    Rate,
}

impl Along {
    /// What the flags ask for.
    pub(super) fn of(is_all: bool, is_curve: bool, scenario: &Scenario) -> Along {
        match (is_all, is_curve, scenario.arrivals) {
            (true, ..) => Along::Size,
            (false, true, Some(_)) => Along::Rate,
            (false, true, None) => Along::Depth,
            (false, false, _) => Along::Nothing,
        }
    }

    /// The measurements from the smallest to `scenario`, or to the largest size.
    pub(super) fn points(self, scenario: &Scenario, size_max: u64) -> Vec<Scenario> {
        match self {
            Along::Nothing => vec![scenario.clone()],
            Along::Size => SIZES
                .map(|shift| 1 << shift)
                .filter(|size| *size as u64 <= size_max)
                .map(|size| Scenario { size, ..scenario.clone() })
                .collect(),
            Along::Depth => depths(scenario.depth)
                .map(|depth| {
                    // The files stay as large as those of the largest depth.
                    let all = scenario.files_len() * scenario.connections * scenario.client_cores().len();
                    let working_set = scenario.operation.has_file().then_some(all as u64);
                    Scenario { depth, working_set, ..scenario.clone() }
                })
                .collect(),
            Along::Rate => RATE_PARTS
                .iter()
                .filter_map(|part| {
                    let arrivals = scenario.arrivals?;
                    let arrivals = Some(Arrivals { rate: (arrivals.rate * part).max(1.0), ..arrivals });
                    Some(Scenario { arrivals, ..scenario.clone() })
                })
                .collect(),
        }
    }

    /// What stands above the first column.
    pub(super) fn heading(self) -> &'static str {
        match self {
            Along::Nothing | Along::Size => "size",
            Along::Depth => "depth",
            Along::Rate => "asked",
        }
    }

    /// The point of a row; `None` if there is one row only.
    pub(super) fn label(self, scenario: &Scenario) -> Option<String> {
        match self {
            Along::Nothing => None,
            Along::Size => Some(Size(scenario.size as u64).to_string()),
            Along::Depth => Some(scenario.depth.to_string()),
            Along::Rate => scenario.arrivals.map(|arrivals| rate(arrivals.rate)),
        }
    }
}

/// Powers of two up to `most`, and `most`.
fn depths(most: usize) -> impl Iterator<Item = usize> {
    let powers = (0..usize::BITS).map(|shift| 1 << shift).take_while(move |depth| *depth < most);
    powers.chain([most])
}

#[cfg(test)]
mod tests {
    use super::*;
    use stag_bench::{MeasuredOperation, Spacing};

    #[test]
    fn a_curve_ends_at_what_was_asked_for() {
        assert_eq!(depths(32).collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32]);
        assert_eq!(depths(20).collect::<Vec<_>>(), [1, 2, 4, 8, 16, 20]);
        assert_eq!(depths(1).collect::<Vec<_>>(), [1]);
        let arrivals = Some(Arrivals { rate: 1e6, spacing: Spacing::Constant });
        let scenario = Scenario { arrivals, ..Scenario::default() };
        let along = Along::of(false, true, &scenario);
        let rates: Vec<_> = along.points(&scenario, 1).iter().map(|at| at.arrivals.unwrap().rate).collect();
        assert!(rates.is_sorted() && rates[7] == 1e6, "{rates:?}");
        assert_eq!(along.label(&scenario).as_deref(), Some("1.00 M/s"));
    }

    #[test]
    fn all_depths_have_the_same_files() {
        let scenario = Scenario { operation: MeasuredOperation::Read, depth: 32, ..Scenario::default() };
        let points = Along::Depth.points(&scenario, 1 << 20);
        assert!(points.iter().all(|point| point.files_len() == 32 * 4096));
    }
}
