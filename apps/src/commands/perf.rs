//! `stag perf`: how fast Calls are between pinned cores, as ratios to the limits of the same cores.
//!
//! | file | subject |
//! |---|---|
//! | `plan` | the flags checked, and every gap filled |
//! | `room` | whether the machine has room for it: memory, descriptors, mappings |
//! | `numbers` | times and counts, as the flags take them |
//! | `requirement` | `--require 'p99<20us'` |
//! | `paired` | `--paired`: a client and a server on each core, taking turns |
//! | `notes` | conditions that spoil the figures, each reported once |
//! | `report` | the results, for people and for programs |

mod notes;
mod numbers;
mod paired;
mod plan;
mod report;
mod requirement;
mod room;

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use indicatif::{ProgressBar, ProgressStyle};
use stag_bench::MeasuredOperation;

use self::numbers::{Number, Span};
use self::plan::Plan;
use self::requirement::Requirement;
use crate::failure::CommandFailure;
use crate::output::Output;
use crate::url::{FabricName, Url};
use crate::values::{DataPlacement, Poll, ReplyMemory, Size};

/// Measures Calls between pinned cores, beside the machine's limits
#[derive(Debug, Args)]
#[command(after_help = "\
    METRIC of --require: p50 p99 p999 max mean (ns, us, ms, s), rate (k, M),\n  \
    bandwidth (MB/s, GB/s); ratios: latency/echo rate/echo copy-hot\n  \
    copy-read (shm), latency/tcp rate/tcp stream (iwarp), latency/bare rate/bare\n  \
    transfer (verbs)\n\
    Examples: stag perf null -q 32\n          \
    stag perf read -s 1M -q 2 --touch --require 'copy-read>0.9'")]
pub struct Perf {
    /// Call to measure
    #[arg(value_parser = operations())]
    operation: MeasuredOperation,
    /// A running server: FABRIC://ADDRESS, /EXPORT for files [default: its own]
    url: Option<Url>,
    /// Data of a Call: 64, 1M, 16M [default: 4K]
    #[arg(short, long, conflicts_with = "all")]
    size: Option<Size>,
    /// All sizes: powers of two, 64 to 1M
    #[arg(short, long)]
    all: bool,
    /// Calls outstanding at once
    #[arg(short = 'q', long, value_name = "N", default_value_t = 1)]
    depth: usize,
    /// Connections of a core, up to 10,000
    #[arg(long, value_name = "N", default_value_t = 1)]
    connections: usize,
    /// Client cores, then the server's [default: two]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cores: Vec<usize>,
    /// Length of a round: 50ms, 2s [default: 500ms]
    #[arg(short = 't', long, value_name = "TIME")]
    duration: Option<Span>,
    /// End a round after this number of Calls
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<Number>,
    /// Warm-up before each round
    #[arg(long, value_name = "TIME", default_value = "200ms")]
    warm_up: Span,
    /// Rounds; the median is reported
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// A client and a server on each core, taking turns
    #[arg(long, conflicts_with_all = ["url", "all", "connections", "count", "touch", "poll", "require"])]
    paired: bool,
    /// With --paired: also files on disk, at PATH
    #[arg(long, value_name = "PATH", requires = "paired")]
    directory: Option<PathBuf>,
    /// Read every cache line that arrived
    #[arg(long)]
    touch: bool,
    /// When idle: busy, adaptive
    #[arg(long, value_enum, hide_possible_values = true)]
    poll: Option<Poll>,
    /// Longest inline message
    #[arg(long, value_name = "LEN", default_value = "4K")]
    inline_threshold: Size,
    /// Version 2 data: send, rdma, or auto
    #[arg(long, value_enum, value_name = "WHERE", hide_possible_values = true)]
    placement: Option<DataPlacement>,
    /// Version 2: most Sends for one message
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    continuation: Option<u32>,
    /// reply: memory by chunk, responder, or auto
    #[arg(long, value_enum, value_name = "WHOSE", hide_possible_values = true)]
    reply_mode: Option<ReplyMemory>,
    /// shm, iwarp or verbs
    #[arg(long, value_name = "NAME", value_enum, default_value = "shm", conflicts_with = "url")]
    #[arg(hide_possible_values = true)]
    fabric: FabricName,
    /// Status 1 if missed; may be repeated
    #[arg(long, value_name = "METRIC<VALUE")]
    require: Vec<Requirement>,
}

/// Reads [`MeasuredOperation`].
fn operations() -> impl TypedValueParser<Value = MeasuredOperation> {
    PossibleValuesParser::new(MeasuredOperation::ALL.map(MeasuredOperation::name))
        .try_map(|name| MeasuredOperation::named(&name).ok_or("there is no such Call"))
}

impl Perf {
    /// Whether a flag is about version 2: then that is measured, without being asked for.
    fn is_version_2(&self) -> bool {
        self.placement.is_some() || self.continuation.is_some()
    }

    /// The fabric that is measured.
    pub(crate) fn fabric(&self) -> FabricName {
        self.url.as_ref().map_or(self.fabric, |url| url.fabric)
    }

    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let plan = Plan::new(self)?;
        if self.paired {
            return paired::run(&plan, out);
        }
        report::chosen(&plan, out)?;
        let mut missed = Vec::new();
        let mut empty = Vec::new();
        let mut leaked = 0;
        for (index, scenario) in plan.scenarios.iter().enumerate() {
            let bar = progress(&plan, index, out);
            let figures = stag_bench::run(scenario, &mut |_| bar.inc(1));
            bar.finish_and_clear();
            // `{:#}`: what failed, and why, on one line.
            let figures = figures.map_err(|error| CommandFailure::run(format_args!("{error:#}")))?;
            let found: Vec<_> = self.require.iter().map(|wanted| wanted.verdict(&figures)).collect();
            report::measured(&plan, index, &figures, &found, out)?;
            let at = if self.all { format!("at {}: ", Size(scenario.size as u64)) } else { String::new() };
            let failed = found.iter().filter(|verdict| verdict.met == Some(false));
            missed.extend(failed.map(|verdict| format!("{at}--require {verdict}")));
            if figures.latency_ns.is_none() {
                empty.extend(requirement::too_short(&figures).map(|problem| at + &problem));
            }
            leaked += figures.buffers_leaked;
        }
        if leaked > 0 {
            return Err(CommandFailure::run(format_args!("the server did not get {leaked} buffers back")));
        }
        if !missed.is_empty() {
            return Err(CommandFailure::run(missed.join("; ")));
        }
        if !empty.is_empty() {
            return Err(CommandFailure::run(empty.join("; ")));
        }
        Ok(())
    }
}

/// A bar for the rounds of one size on a terminal, nothing elsewhere.
fn progress(plan: &Plan, index: usize, out: &Output) -> ProgressBar {
    if !std::io::stderr().is_terminal() || out.json() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(plan.scenarios[index].repeat as u64);
    let style = ProgressStyle::with_template("{msg} round {pos}/{len} {wide_bar} ETA {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let message = match plan.scenarios.len() {
        1 => String::new(),
        sizes => format!("size {} of {sizes},", index + 1),
    };
    bar.set_message(message);
    bar.tick();
    bar
}
