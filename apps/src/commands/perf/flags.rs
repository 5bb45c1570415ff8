//! The flags, as they were typed.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use stag_bench::MeasuredOperation;
use stag_server::url::{FabricName, Url};
use stag_server::values::{DataPlacement, Poll, ReplyMemory, Size};

use super::load::LoadFlags;
use super::numbers::{Number, Span};
use super::requirement::Requirement;

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
    pub(super) operation: MeasuredOperation,
    /// Server: FABRIC://ADDRESS[/EXPORT] [default: its own]
    pub(super) url: Option<Url>,
    /// Data of a Call: 64, 1M, 16M [default: 4K]
    #[arg(short, long, conflicts_with = "all", help_heading = "Load")]
    pub(super) size: Option<Size>,
    /// All sizes: powers of two, 64 to 1M
    #[arg(short, long, help_heading = "Load", hide_short_help = true)]
    pub(super) all: bool,
    /// Calls outstanding [default: 1, --rate: 64]
    #[arg(short = 'q', long, value_name = "N", help_heading = "Load")]
    pub(super) depth: Option<usize>,
    #[command(flatten)]
    pub(super) load: LoadFlags,
    /// Table of depths up to -q, or rates to --rate
    #[arg(long, conflicts_with = "all", help_heading = "Load", hide_short_help = true)]
    pub(super) curve: bool,
    /// Connections of a core, up to 10,000
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Load", hide_short_help = true)]
    pub(super) connections: usize,
    /// Client cores, then the server's [default: two]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(super) cores: Vec<usize>,
    /// Length of a round: 50ms, 2s [default: 500ms]
    #[arg(short = 't', long, value_name = "TIME")]
    pub(super) duration: Option<Span>,
    /// End a round after this number of Calls
    #[arg(short = 'n', long, value_name = "N")]
    pub(super) count: Option<Number>,
    /// Warm-up before each round
    #[arg(long, value_name = "TIME", default_value = "200ms", hide = true)]
    pub(super) warm_up: Span,
    /// Rounds; the median is reported
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000), hide_short_help = true)]
    pub(super) repeat: u32,
    /// A line for each such time: 1s
    #[arg(long, value_name = "TIME", help_heading = "Report", hide_short_help = true)]
    pub(super) interval: Option<Span>,
    /// Control socket of the URL's stagd, which tells its processor time
    #[arg(long, value_name = "PATH", requires = "url", hide = true)]
    pub(super) socket: Option<PathBuf>,
    /// Write all latencies as an HDR histogram log
    #[arg(long, value_name = "FILE", help_heading = "Report", hide_short_help = true)]
    pub(super) histogram: Option<PathBuf>,
    /// Write the figures of each round as CSV
    #[arg(long, value_name = "FILE", help_heading = "Report", hide_short_help = true)]
    pub(super) csv: Option<PathBuf>,
    /// A client and a server on each core, taking turns
    #[arg(long, conflicts_with_all = ["url", "all", "connections", "count", "touch", "poll", "require"], hide_short_help = true)]
    #[arg(conflicts_with_all = ["curve", "rate", "interval", "histogram", "csv"])]
    pub(super) paired: bool,
    /// With --paired: also files on disk, at PATH
    #[arg(long, value_name = "PATH", requires = "paired", hide = true)]
    pub(super) directory: Option<PathBuf>,
    /// Read every cache line that arrived
    #[arg(long, hide = true)]
    pub(super) touch: bool,
    /// When idle: busy, adaptive
    #[arg(long, value_enum, hide = true)]
    pub(super) poll: Option<Poll>,
    /// Longest inline message
    #[arg(long, value_name = "LEN", default_value = "4K", hide = true)]
    pub(super) inline_threshold: Size,
    /// Version 2 data: send, rdma, or auto
    #[arg(long, value_enum, value_name = "WHERE", hide = true)]
    pub(super) placement: Option<DataPlacement>,
    /// Version 2: most Sends for one message
    #[arg(long, value_name = "N", hide = true, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(super) continuation: Option<u32>,
    /// reply: memory by chunk, responder, or auto
    #[arg(long, value_enum, value_name = "WHOSE", hide = true)]
    pub(super) reply_mode: Option<ReplyMemory>,
    /// shm, iwarp or verbs
    #[arg(long, value_name = "NAME", value_enum, default_value = "shm", conflicts_with = "url")]
    #[arg(hide_possible_values = true)]
    pub(super) fabric: FabricName,
    /// Status 1 unless met; may be repeated
    #[arg(long, value_name = "METRIC<VALUE", help_heading = "Report")]
    pub(super) require: Vec<Requirement>,
}

/// Reads [`MeasuredOperation`].
fn operations() -> impl TypedValueParser<Value = MeasuredOperation> {
    PossibleValuesParser::new(MeasuredOperation::ALL.map(MeasuredOperation::name))
        .try_map(|name| MeasuredOperation::named(&name).ok_or("there is no such Call"))
}

impl Perf {
    /// Whether a flag is about version 2: then that is measured, without being asked for.
    pub(super) fn is_version_2(&self) -> bool {
        self.placement.is_some() || self.continuation.is_some()
    }

    /// The fabric that is measured.
    pub(crate) fn fabric(&self) -> FabricName {
        self.url.as_ref().map_or(self.fabric, |url| url.fabric)
    }

    /// Calls outstanding at most: with a rate more than one, so that a slow Call does not keep the next from its time.
    pub(super) fn depth(&self) -> usize {
        const OPEN_LOOP: usize = 64;
        self.depth.unwrap_or(if self.load.rate.is_some() { OPEN_LOOP } else { 1 })
    }
}
