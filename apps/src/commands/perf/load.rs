//! Which Calls: their mix, and which data they work on. And by which clock they start.

use std::str::FromStr;

use clap::{Args, ValueEnum};
use stag_bench::{Arrivals, MeasuredOperation, MixShare, Offsets, Scenario, Spacing};
use stag_server::failure::CommandFailure;
use stag_server::values::Size;

use super::numbers::Number;

/// Files of a connection at most.
const FILES_MAX: usize = 100_000;

/// Flags of the load.
#[derive(Debug, Args)]
pub(super) struct LoadFlags {
    /// Of `mix`: read=70,write=20,getattr=10
    #[arg(long, value_name = "SHARES", help_heading = "Load", hide_short_help = true)]
    mix: Option<Mix>,
    /// Open loop: Calls a second, 200k, by the clock
    #[arg(long, value_name = "N", help_heading = "Load", hide_short_help = true)]
    pub(super) rate: Option<Number>,
    /// How the starts of Calls are spread with --rate [default: poisson]
    #[arg(long, value_enum, value_name = "HOW", requires = "rate", hide = true)]
    arrivals: Option<Spread>,
    /// Which blocks of its files a connection reads or writes, one Call after the other [default: sequential]
    #[arg(long, value_enum, value_name = "ORDER", hide = true)]
    offsets: Option<Order>,
    /// Octets of all files together [default: size × depth × connections]
    #[arg(long, value_name = "SIZE", hide = true)]
    working_set: Option<Size>,
    /// Files of each connection [default: 1]; of each client core, for operations on names [default: 1000]
    #[arg(long, value_name = "N", hide = true)]
    files: Option<usize>,
}

/// How starts are spread over time.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Spread {
    /// Independent of each other.
    Poisson,
    /// All gaps alike.
    Constant,
}

/// The order of blocks.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Order {
    /// One after the other.
    Sequential,
    /// By chance.
    Random,
}

/// Operations, and how often each is called.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mix(Vec<MixShare>);

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Mix, String> {
        let mut shares: Vec<MixShare> = Vec::new();
        for part in text.split(',') {
            let (name, weight) = part
                .split_once('=')
                .ok_or_else(|| format!("{part:?}: write OPERATION=WEIGHT, as in read=70"))?;
            let operation = MeasuredOperation::named(name).filter(|operation| can_be_mixed(*operation));
            let operation = operation.ok_or_else(|| {
                format!("{part:?}: {name:?} cannot be mixed; use read, write, getattr and null")
            })?;
            let weight = weight.parse().ok().filter(|weight| (1..=1000).contains(weight));
            let weight = weight.ok_or_else(|| format!("{part:?}: the weight must be 1 to 1000"))?;
            if shares.iter().any(|share| share.operation == operation) {
                return Err(format!("{text:?}: {name} stands there twice"));
            }
            shares.push(MixShare { operation, weight });
        }
        Ok(Mix(shares))
    }
}

fn can_be_mixed(operation: MeasuredOperation) -> bool {
    use MeasuredOperation::{Getattr, Null, Read, Write};
    matches!(operation, Null | Getattr | Read | Write)
}

impl LoadFlags {
    /// Refuses what makes no sense for `operation` with `size` octets a Call and `connections` of a core.
    pub(super) fn check(
        &self,
        operation: MeasuredOperation,
        size: u64,
        connections: usize,
    ) -> Result<(), CommandFailure> {
        let refuse = |text: String| Err(CommandFailure::usage(text));
        match (&self.mix, operation) {
            (None, MeasuredOperation::Mix) => {
                return refuse("mix: say of what: --mix read=70,write=20,getattr=10".to_owned());
            }
            (Some(_), other) if other != MeasuredOperation::Mix => {
                return refuse(format!("--mix: it goes with mix, not with {}", other.name()));
            }
            _ => {}
        }
        let flags = [("--offsets", self.offsets.is_some()), ("--working-set", self.working_set.is_some())];
        if let Some((flag, _)) = flags.iter().find(|(_, is_given)| *is_given && !operation.has_file()) {
            return refuse(format!("{flag}: it goes with read, write, getattr and mix, which work on data"));
        }
        if self.files.is_some() && !operation.has_file() && !operation.has_names() {
            return refuse(format!("--files: {} works on no files", operation.name()));
        }
        let files = self.files.unwrap_or(1);
        if !(1..=FILES_MAX).contains(&files) {
            return refuse(format!("--files {files}: it must be 1 to {FILES_MAX}"));
        }
        let least = Size(size.max(1).next_multiple_of(4096) * (files * connections) as u64);
        match self.working_set {
            Some(set) if set < least => refuse(format!(
                "--working-set {set}: it must be {least} or more: a block of each file of each connection"
            )),
            _ => Ok(()),
        }
    }

    /// `scenario` with this load.
    pub(super) fn of(&self, scenario: Scenario) -> Scenario {
        let spacing = match self.arrivals {
            Some(Spread::Constant) => Spacing::Constant,
            Some(Spread::Poisson) | None => Spacing::Poisson,
        };
        Scenario {
            mix: self.mix.as_ref().map_or_else(Vec::new, |mix| mix.0.clone()),
            offsets: match self.offsets {
                Some(Order::Random) => Offsets::Random,
                Some(Order::Sequential) | None => Offsets::Sequential,
            },
            working_set: self.working_set.map(|set| set.0),
            files: self.files.unwrap_or(1),
            arrivals: self.rate.map(|rate| Arrivals { rate: rate.0 as f64, spacing }),
            ..scenario
        }
    }
}

/// The data that a load works on, in words; `None` if it has no files.
pub(super) fn data(scenario: &Scenario) -> Option<String> {
    let all = scenario.files_len() as u64 * (scenario.connections * scenario.client_cores().len()) as u64;
    let order = match scenario.offsets {
        Offsets::Sequential => "sequential",
        Offsets::Random => "random",
    };
    let files = match scenario.files {
        0 | 1 => "a file".to_owned(),
        files => format!("{files} files"),
    };
    if scenario.operation.has_names() {
        return Some(format!("{} files of each client core", stag_bench::load::files(scenario)));
    }
    scenario
        .operation
        .has_file()
        .then(|| format!("working set {}, {files} of each connection, offsets {order}", Size(all)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_is_operations_with_weights() {
        let share = |operation, weight| MixShare { operation, weight };
        let wanted = [share(MeasuredOperation::Read, 70), share(MeasuredOperation::Getattr, 30)];
        assert_eq!("read=70,getattr=30".parse(), Ok(Mix(wanted.to_vec())));
        for (text, part) in [
            ("read", "write OPERATION=WEIGHT"),
            ("", "write OPERATION=WEIGHT"),
            ("create=1", "\"create\" cannot be mixed; use read, write"),
            ("mix=1", "cannot be mixed"),
            ("read=0", "the weight must be 1 to 1000"),
            ("read=x", "the weight must be 1 to 1000"),
            ("read=1,read=2", "read stands there twice"),
        ] {
            let error = text.parse::<Mix>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn the_working_set_is_said() {
        let scenario =
            Scenario { operation: MeasuredOperation::Read, depth: 32, connections: 2, ..Scenario::default() };
        let expected = "working set 256 KiB, a file of each connection, offsets sequential";
        assert_eq!(data(&scenario).as_deref(), Some(expected));
        assert_eq!(data(&Scenario::default()), None);
    }
}
