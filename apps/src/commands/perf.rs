//! `stag perf`: how fast Calls are between pinned cores, as ratios to the limits of the same cores.
//!
//! | file | subject |
//! |---|---|
//! | `plan` | the flags checked, and every gap filled |
//! | `load` | which Calls: `--mix`, `--offsets`, `--working-set`, `--files`; by which clock: `--rate` |
//! | `curve` | `--all` and `--curve`: the points of a table |
//! | `room` | whether the machine has room for it: memory, descriptors, mappings |
//! | `numbers` | times and counts, as the flags take them |
//! | `requirement` | `--require 'p99<20us'` |
//! | `paired` | `--paired`: a client and a server on each core, taking turns |
//! | `notes` | conditions that spoil the figures, each reported once |
//! | `environment` | where, when and of which build a figure is |
//! | `report` | the results for people |
//! | `object` | the results for programs: `--json` |
//! | `server_time` | `--socket`: the processor time of a `stagd` that runs |
//! | `files` | `--histogram` and `--csv` |

mod curve;
pub(crate) mod environment;
mod files;
mod load;
mod notes;
mod numbers;
mod object;
mod paired;
mod plan;
mod report;
mod requirement;
mod room;
mod server_time;

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use indicatif::ProgressBar;
use stag_bench::{MeasuredOperation, MeasurementProgress};
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::url::{FabricName, Url};
use stag_server::values::{DataPlacement, Poll, ReplyMemory, Size};

use self::environment::RunEnvironment;
use self::files::ResultFiles;
use self::load::LoadFlags;
use self::numbers::Number;
pub(crate) use self::numbers::Span;
use self::plan::Plan;
use self::requirement::Requirement;
pub(crate) use self::requirement::{DISTURBED, rate};
use self::server_time::ServerTime;
use crate::time_left;

/// Measures Calls between pinned cores, beside the machine's limits
#[derive(Debug, Args)]
#[command(
    after_help = "\
    Examples: stag perf null -q 32\n          \
    stag perf read -s 1M -q 2 --require 'p99<2ms'",
    after_long_help = "\
    Data: --working-set SIZE --files N --offsets sequential|random --touch\n\
    Also: --arrivals poisson|constant --warm-up TIME --poll busy|adaptive\n      \
    --inline-threshold LEN --placement send|rdma|auto --continuation N\n      \
    --reply-mode chunk|responder|auto --directory PATH --socket PATH\n\
    METRIC: p50 p99 p999 max mean (ns, us, ms, s), rate (k, M), bandwidth\n  \
    (MB/s, GB/s); ratios: latency/ and rate/ with echo (shm), tcp (iwarp), bare\n  \
    (verbs); copy-hot copy-read (shm), stream (iwarp), transfer (verbs)\n\
    Examples: stag perf null -q 32 --curve\n          \
    stag perf read -s 1M -q 2 --touch --require 'copy-read>0.9'"
)]
pub struct Perf {
    /// Call to measure
    #[arg(value_parser = operations())]
    operation: MeasuredOperation,
    /// Server: FABRIC://ADDRESS[/EXPORT] [default: its own]
    url: Option<Url>,
    /// Data of a Call: 64, 1M, 16M [default: 4K]
    #[arg(short, long, conflicts_with = "all", help_heading = "Load")]
    size: Option<Size>,
    /// All sizes: powers of two, 64 to 1M
    #[arg(short, long, help_heading = "Load", hide_short_help = true)]
    all: bool,
    /// Calls outstanding [default: 1, --rate: 64]
    #[arg(short = 'q', long, value_name = "N", help_heading = "Load")]
    depth: Option<usize>,
    #[command(flatten)]
    load: LoadFlags,
    /// Table of depths up to -q, or rates to --rate
    #[arg(long, conflicts_with = "all", help_heading = "Load", hide_short_help = true)]
    curve: bool,
    /// Connections of a core, up to 10,000
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Load", hide_short_help = true)]
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
    #[arg(long, value_name = "TIME", default_value = "200ms", hide = true)]
    warm_up: Span,
    /// Rounds; the median is reported
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000), hide_short_help = true)]
    repeat: u32,
    /// A line for each such time: 1s
    #[arg(long, value_name = "TIME", help_heading = "Report", hide_short_help = true)]
    interval: Option<Span>,
    /// Control socket of the URL's stagd, which tells its processor time
    #[arg(long, value_name = "PATH", requires = "url", hide = true)]
    socket: Option<PathBuf>,
    /// Write all latencies as an HDR histogram log
    #[arg(long, value_name = "FILE", help_heading = "Report", hide_short_help = true)]
    histogram: Option<PathBuf>,
    /// Write the figures of each round as CSV
    #[arg(long, value_name = "FILE", help_heading = "Report", hide_short_help = true)]
    csv: Option<PathBuf>,
    /// A client and a server on each core, taking turns
    #[arg(long, conflicts_with_all = ["url", "all", "connections", "count", "touch", "poll", "require"], hide_short_help = true)]
    #[arg(conflicts_with_all = ["curve", "rate", "interval", "histogram", "csv"])]
    paired: bool,
    /// With --paired: also files on disk, at PATH
    #[arg(long, value_name = "PATH", requires = "paired", hide = true)]
    directory: Option<PathBuf>,
    /// Read every cache line that arrived
    #[arg(long, hide = true)]
    touch: bool,
    /// When idle: busy, adaptive
    #[arg(long, value_enum, hide = true)]
    poll: Option<Poll>,
    /// Longest inline message
    #[arg(long, value_name = "LEN", default_value = "4K", hide = true)]
    inline_threshold: Size,
    /// Version 2 data: send, rdma, or auto
    #[arg(long, value_enum, value_name = "WHERE", hide = true)]
    placement: Option<DataPlacement>,
    /// Version 2: most Sends for one message
    #[arg(long, value_name = "N", hide = true, value_parser = clap::value_parser!(u32).range(1..=16))]
    continuation: Option<u32>,
    /// reply: memory by chunk, responder, or auto
    #[arg(long, value_enum, value_name = "WHOSE", hide = true)]
    reply_mode: Option<ReplyMemory>,
    /// shm, iwarp or verbs
    #[arg(long, value_name = "NAME", value_enum, default_value = "shm", conflicts_with = "url")]
    #[arg(hide_possible_values = true)]
    fabric: FabricName,
    /// Status 1 unless met; may be repeated
    #[arg(long, value_name = "METRIC<VALUE", help_heading = "Report")]
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

    /// Calls outstanding at most: with a rate more than one, so that a slow Call does not keep the next from its time.
    fn depth(&self) -> usize {
        const OPEN_LOOP: usize = 64;
        self.depth.unwrap_or(if self.load.rate.is_some() { OPEN_LOOP } else { 1 })
    }

    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let environment = RunEnvironment::now();
        let plan = Plan::new(self)?;
        if self.paired {
            return paired::run(&plan, &environment, out);
        }
        let mut files = ResultFiles::planned(self.histogram.as_deref(), self.csv.as_deref())?;
        report::chosen(&plan, out)?;
        let mut missed = Vec::new();
        let mut empty = Vec::new();
        let (mut leaked, mut disturbed) = (0, false);
        for (index, scenario) in plan.scenarios.iter().enumerate() {
            let bar = progress(&plan, index, out);
            let mut told = Ok(());
            let before = self.socket.as_ref().map(ServerTime::ask).transpose()?;
            let figures = stag_bench::run(scenario, &mut |progress| match progress {
                MeasurementProgress::Round => bar.inc(1),
                MeasurementProgress::Interval(interval) => bar.suspend(|| {
                    let line = report::interval(scenario, interval, out);
                    told = std::mem::replace(&mut told, Ok(())).and(line);
                }),
            });
            bar.finish_and_clear();
            told?;
            // `{:#}`: what failed, and why, on one line.
            let mut figures = figures.map_err(|error| CommandFailure::run(format_args!("{error:#}")))?;
            if let (Some(before), Some(socket)) = (before, &self.socket) {
                ServerTime::ask(socket)?.add_since(before, &mut figures.cpu);
            }
            let found: Vec<_> = self.require.iter().map(|wanted| wanted.verdict(&figures)).collect();
            disturbed |= figures.disturbance.disturbed;
            report::measured(&plan, index, &figures, &found, disturbed, out)?;
            out.object(&object::object(&plan, index, &figures, &found, &environment))?;
            out.flush()?;
            files.add(&figures)?;
            let at = plan.along.label(scenario).map_or(String::new(), |label| format!("at {label}: "));
            let failed = found.iter().filter(|verdict| verdict.met != Some(true));
            missed.extend(failed.map(|verdict| format!("{at}--require {verdict}")));
            if figures.latency_ns.is_none() {
                empty.extend(requirement::too_short(&figures).map(|problem| at + &problem));
            }
            leaked += figures.buffers_leaked;
        }
        files.finish()?;
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

/// A bar for the rounds of one point on a terminal, nothing elsewhere.
fn progress(plan: &Plan, index: usize, out: &Output) -> ProgressBar {
    if !std::io::stderr().is_terminal() || out.json() {
        return ProgressBar::hidden();
    }
    let scenario = &plan.scenarios[index];
    let bar = ProgressBar::new(scenario.repeat as u64);
    let later: usize = plan.scenarios[index + 1..].iter().map(|scenario| scenario.repeat).sum();
    // How long a number of Calls takes is known when a round has ended.
    let expected = scenario.count.is_none().then_some(scenario.warm_up + scenario.duration);
    bar.set_style(time_left::style("{msg}round {pos}/{len} {wide_bar}{left}", later as u64, expected));
    let message = match plan.scenarios.len() {
        1 => String::new(),
        points => format!("{} {} of {points}, ", plan.along.heading(), index + 1),
    };
    bar.set_message(message);
    bar.tick();
    bar
}
