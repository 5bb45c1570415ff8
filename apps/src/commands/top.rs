//! `stag top`: what a running `stagd` does right now.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use stag_server::admin::ServerState;
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::values::{Delay, Rate};
use stag_server::wrapped::{columns, rows, wrapped};

use super::admin::{self, program_name};

/// Lines of each table.
const LINES_MAX: usize = 8;

/// Shows a running stagd live: procedures, clients, cores
#[derive(Debug, Args)]
#[command(after_help = "Examples: stag top\n          stag top -i 5s -n 12 --json")]
pub struct Top {
    /// Control socket [default: that of the only stagd here]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Time between two looks
    #[arg(short, long, value_name = "TIME", default_value = "1s")]
    interval: Delay,
    /// Looks, then it ends [default: until interrupted]
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,
}

/// What was done between two looks: an object of `--json`.
#[derive(Debug, Serialize)]
struct Window {
    seconds: f64,
    calls_per_second: f64,
    rdma_bytes: u64,
    tcp_bytes: u64,
    procedures: Vec<Line>,
    /// Of NFS version 4.
    operations: Vec<Line>,
    clients: Vec<Line>,
    cores: Vec<Line>,
}

/// A line of a table.
#[derive(Debug, Serialize)]
struct Line {
    name: String,
    per_second: f64,
    /// Of a procedure, the mean time of Calls that waited; of a core, the part of its time that it was busy.
    value: Option<f64>,
    #[serde(flatten)]
    moved: Option<Moved>,
}

/// What a client moved in the window.
#[derive(Debug, Serialize)]
struct Moved {
    read_bytes: u64,
    written_bytes: u64,
}

impl Window {
    /// What was done between `before` and `after`.
    fn between(before: &ServerState, after: &ServerState) -> Window {
        let seconds = (after.uptime_seconds - before.uptime_seconds).max(1e-3);
        let rate = |new: u64, old: u64| new.saturating_sub(old) as f64 / seconds;
        let procedures = after.procedures.iter().map(|new| {
            let key = |it: &stag_server::admin::ProcedureState| (it.program, it.version, it.name.clone());
            let old = before.procedures.iter().find(|old| key(old) == key(new));
            let (calls, late, waited) =
                old.map_or((0, 0, 0.0), |old| (old.calls, old.late, old.late_seconds));
            let late = new.late.saturating_sub(late);
            Line {
                name: format!("{} {}", program_name(new.program, new.version), new.name),
                per_second: rate(new.calls, calls),
                value: (late > 0).then(|| (new.late_seconds - waited).max(0.0) / late as f64),
                moved: None,
            }
        });
        let operations = after.operations.iter().map(|new| {
            let old = before.operations.iter().find(|old| old.name == new.name);
            let per_second = rate(new.calls, old.map_or(0, |old| old.calls));
            Line { name: new.name.clone(), per_second, value: None, moved: None }
        });
        let clients = after.clients.iter().map(|new| {
            let old = before.clients.iter().find(|old| old.client == new.client);
            let (calls, read, written) =
                old.map_or((0, 0, 0), |old| (old.calls, old.read_bytes, old.written_bytes));
            let moved = Moved {
                read_bytes: new.read_bytes.saturating_sub(read),
                written_bytes: new.written_bytes.saturating_sub(written),
            };
            let per_second = rate(new.calls, calls);
            Line { name: new.client.clone(), per_second, value: None, moved: Some(moved) }
        });
        let cores = after.cores.iter().zip(&before.cores).map(|(new, old)| {
            let busy = (new.busy_seconds - old.busy_seconds) / seconds;
            Line {
                name: format!("core {}", new.core),
                per_second: rate(new.calls, old.calls),
                value: Some(busy.clamp(0.0, 1.0)),
                moved: None,
            }
        });
        let (new, old) = (&after.counters, &before.counters);
        let rdma = |it: &stag_server::counters::Counters| it.read_bytes + it.write_bytes;
        let tcp = |it: &stag_server::counters::Counters| it.stream_bytes_received + it.stream_bytes_sent;
        Window {
            seconds,
            calls_per_second: rate(new.replies_sent, old.replies_sent),
            rdma_bytes: rdma(new).saturating_sub(rdma(old)),
            tcp_bytes: tcp(new).saturating_sub(tcp(old)),
            procedures: busiest(procedures.collect()),
            operations: busiest(operations.collect()),
            clients: busiest(clients.collect()),
            cores: cores.collect(),
        }
    }

    /// Shows it on as many lines as there are, if that is limited.
    fn tell(&self, lines: Option<usize>, out: &mut Output) -> Result<(), CommandFailure> {
        let tables = [&self.procedures, &self.operations, &self.clients, &self.cores];
        let mut shown = tables.map(|table| table.len());
        shown[..3].iter_mut().for_each(|count| *count = LINES_MAX.min(*count));
        // The first line, the headings, and the line of the cursor.
        let room = lines.map(|lines| lines.saturating_sub(if self.operations.is_empty() { 5 } else { 6 }));
        let [procedures, operations, clients, cores] = fit(shown, room.unwrap_or(usize::MAX));
        let time = Duration::from_secs_f64(self.seconds);
        let [rdma, tcp] = [self.rdma_bytes, self.tcp_bytes].map(|bytes| Rate(bytes, time));
        out.line(format_args!("{:.0} Calls/s, {rdma} by RDMA, {tcp} by TCP", self.calls_per_second))?;
        out.line(format_args!("{:<48} {:>12} {:>14}", "procedure", "Calls/s", "mean wait"))?;
        for Line { name, per_second, value, .. } in self.procedures.iter().take(procedures) {
            let wait = value.map_or_else(|| "-".to_owned(), admin::mean_wait);
            out.line(format_args!("{name:<48} {per_second:>12.0} {wait:>14}"))?;
        }
        if !self.operations.is_empty() {
            out.line(format_args!("{:<48} {:>12}", "NFSv4 operation", "executed/s"))?;
        }
        for Line { name, per_second, .. } in self.operations.iter().take(operations) {
            out.line(format_args!("{name:<48} {per_second:>12.0}"))?;
        }
        out.line(format_args!("{:<39} {:>9} {:>12} {:>12}", "client", "Calls/s", "read", "written"))?;
        for Line { name, per_second, moved, .. } in self.clients.iter().take(clients) {
            let [read, written] = moved
                .as_ref()
                .map_or([0, 0], |moved| [moved.read_bytes, moved.written_bytes])
                .map(|bytes| Rate(bytes, time).to_string());
            out.line(format_args!("{name:<39} {per_second:>9.0} {read:>12} {written:>12}"))?;
        }
        out.line(format_args!("{:<48} {:>12} {:>14}", "core", "Calls/s", "busy"))?;
        for Line { name, per_second, value, .. } in self.cores.iter().take(cores) {
            out.line(format_args!("{name:<48} {per_second:>12.0} {:>13.0}%", 100.0 * value.unwrap_or(0.0)))?;
        }
        Ok(())
    }
}

/// Takes lines of the longest tables until all fit; one of each stays.
fn fit(mut counts: [usize; 4], room: usize) -> [usize; 4] {
    while counts.iter().sum::<usize>() > room {
        match counts.iter_mut().max().filter(|longest| **longest > 1) {
            Some(longest) => *longest -= 1,
            None => break,
        }
    }
    counts
}

/// Those with something to show, the busiest first.
fn busiest(mut lines: Vec<Line>) -> Vec<Line> {
    lines.retain(|line| line.per_second > 0.0);
    lines.sort_by(|a, b| b.per_second.total_cmp(&a.per_second));
    lines
}

impl Top {
    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let mut before = admin::state(self.socket.as_ref())?;
        let mut left = self.count;
        while left != Some(0) {
            thread::sleep(self.interval.0);
            let after = admin::state(self.socket.as_ref())?;
            let window = Window::between(&before, &after);
            let mut lines = None;
            if io::stdout().is_terminal() {
                // Clears the screen and writes from its upper left corner.
                let version = wrapped("stagd ", &after.version, columns());
                out.line(format_args!("\x1b[H\x1b[2J{version}"))?;
                lines = rows().map(|rows| rows.saturating_sub(version.lines().count()));
            }
            window.tell(lines, out)?;
            out.object(&window)?;
            out.flush()?;
            before = after;
            left = left.map(|left| left - 1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_tables_give_way_first() {
        assert_eq!(fit([8, 0, 2, 1], 100), [8, 0, 2, 1]);
        assert_eq!(fit([8, 8, 2, 1], 15), [6, 6, 2, 1]);
        assert_eq!(fit([8, 0, 8, 64], 18).iter().sum::<usize>(), 18);
        assert_eq!(fit([3, 3, 3, 3], 0), [1, 1, 1, 1]);
    }
}
