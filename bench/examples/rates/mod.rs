//! Shared by measurements of a provider: a server in a process of its own, both pinned, and the output of figures.
//!
//! Each figure is taken in many short windows; best and median are printed, because other work of the machine spoils some
//! windows and never improves one.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use stag::fabric::{Provider, QueuePairId};
use stag_bench::bare::{BareEnd, BareShape, Windows};

/// Of each figure.
pub(crate) const WINDOWS: Windows = Windows { count: 40, each: Duration::from_millis(10) };
/// Messages under way at most.
pub(crate) const DEPTH_MAX: u32 = 32;
/// Octets of a large transfer.
pub(crate) const LARGE: usize = 1 << 20;

pub(crate) const SHAPE: BareShape =
    BareShape { depth: DEPTH_MAX, transfer_len: LARGE, transfers: 4, yields: false };

/// Messages of `len` octets there and back, `depth` under way.
pub(crate) fn echo<P: Provider>(
    side: &mut BareEnd<P>,
    pair: QueuePairId,
    depth: u32,
    len: usize,
) -> Result<()> {
    let rates = side.echo(pair, depth, len, WINDOWS)?.into_iter();
    let what = format!("echo {len} B, depth {depth}");
    if depth == 1 {
        report(&format!("{what}, round trip [ns]"), rates.map(|rate| 1e9 / rate), true);
    } else {
        report(&format!("{what} [M/s]"), rates.map(|rate| rate / 1e6), false);
    }
    Ok(())
}

/// Writes or Reads of `len` octets, `depth` under way.
pub(crate) fn copies<P: Provider>(
    side: &mut BareEnd<P>,
    pair: QueuePairId,
    write: bool,
    len: usize,
    depth: usize,
) -> Result<()> {
    let rates = side.copies(pair, write, len, depth, WINDOWS)?;
    report_copies(&transfers(write, len, depth), len, rates.into_iter());
    Ok(())
}

/// The name of a figure of [`copies`].
pub(crate) fn transfers(write: bool, len: usize, depth: usize) -> String {
    format!("{} {len} B, depth {depth}", if write { "Write" } else { "Read" })
}

/// Reports rates of copies of `len` octets: small ones by number, large ones by octets.
pub(crate) fn report_copies(what: &str, len: usize, rates: impl Iterator<Item = f64>) {
    if len < 65536 {
        report(&format!("{what} [M/s]"), rates.map(|r| r / 1e6), false);
    } else {
        report(&format!("{what} [GB/s]"), rates.map(|r| r * len as f64 / 1e9), false);
    }
}

/// Prints the best of some values, and their median.
pub(crate) fn report(what: &str, values: impl Iterator<Item = f64>, less_is_better: bool) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let best = if less_is_better { values[0] } else { values[values.len() - 1] };
    println!("{what:<44} {best:>12.2} {:>12.2}", values[values.len() / 2]);
}

/// A child process, killed if it is still there.
pub(crate) struct Reaped(pub(crate) Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

/// A child of this program, and the line that it prints when it listens: its address.
pub(crate) fn spawn(arguments: &[&str]) -> Result<(Reaped, String)> {
    let mut command = Command::new(env::current_exe()?);
    let mut child = command.args(arguments).stdout(Stdio::piped()).spawn()?;
    let mut out = BufReader::new(child.stdout.take().context("no output")?);
    let mut address = String::new();
    out.read_line(&mut address)?;
    Ok((Reaped(child), address.trim().to_owned()))
}

#[expect(clippy::disallowed_methods, reason = "a measurement has no reactor whose clock it could use")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Pins this process to the core `wanted` if there is one.
pub(crate) fn pin(wanted: usize) {
    // SAFETY: all zeroes is an empty set; CPU_SET is told a core below its capacity.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(wanted, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}
