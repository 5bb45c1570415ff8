//! `stag ping`: NULL Calls, and how long they take.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::remote::Remote;
use stag_server::url::Url;
use stag_server::values::Time;

/// Times NULL Calls to a server
#[derive(Debug, Args)]
#[command(after_help = "Examples: stag ping shm://NAME\n          stag ping -c 100000 shm://NAME")]
pub struct Ping {
    /// Server: shm://NAME, iwarp://HOST or verbs://HOST
    pub(crate) url: Url,
    /// Number of Calls, one after the other
    #[arg(short, long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
}

/// The object of `--json`.
#[derive(Serialize)]
struct Pinged {
    url: String,
    calls: u32,
    min_ns: u64,
    mean_ns: u64,
    max_ns: u64,
    credits_granted: u32,
}

/// Up to this number, Calls are shown one by one.
const SHOWN_MAX: u32 = 20;

impl Ping {
    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let mut remote = Remote::connect(&self.url)?;
        let (mut min, mut max, mut sum) = (Duration::MAX, Duration::ZERO, Duration::ZERO);
        for call in 1..=self.count {
            let time = remote.null().map_err(|error| error.at(&self.url))?;
            (min, max, sum) = (min.min(time), max.max(time), sum + time);
            if self.count <= SHOWN_MAX {
                out.line(format_args!("{}: Call {call}: {}", self.url, Time(time)))?;
                out.flush()?;
            }
        }
        let (mean, credits_granted) = (sum / self.count, remote.credits_granted());
        out.object(&Pinged {
            url: self.url.to_string(),
            calls: self.count,
            min_ns: min.as_nanos() as u64,
            mean_ns: mean.as_nanos() as u64,
            max_ns: max.as_nanos() as u64,
            credits_granted,
        })?;
        let (min, mean, max) = (Time(min), Time(mean), Time(max));
        out.line(format_args!(
            "{} Calls answered: min {min}, mean {mean}, max {max}; {credits_granted} credits granted",
            self.count
        ))
    }
}
