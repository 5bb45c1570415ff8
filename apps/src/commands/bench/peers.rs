//! `stag bench peers`: what other programs do on the same two cores, in the same minutes, in the same table.
//!
//! They are no competitors of the same kind: each row says what differs. What is not installed is named with its package.

mod ganesha;
mod tools;

use std::fs;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use serde_json::Value;
use stag_runtime::{Topology, affinity};
use stag_server::failure::CommandFailure;
use stag_server::output::{Colour, Output};
use stag_server::values::Time;
use stag_server::wrapped::{columns, wrapped};

use super::peer_row::{MissingProgram, PeerRow, PeerSetup};
use super::results::{BenchResults, SCHEMA};
use super::run::take;
use crate::commands::perf::environment::RunEnvironment;
use crate::commands::perf::{Span, rate};
use crate::time_left;

/// Measures other programs beside stag, on the same cores
#[derive(Debug, Args)]
#[command(after_help = "They are run if they are on the PATH: ucx_perftest, fi_pingpong, iperf3,\n\
                        ganesha.nfsd\n\
                        Examples: stag bench peers\n          \
                        stag bench peers --cores 2,3 -o peers.json")]
pub(super) struct Peers {
    /// The client's core, then the server's
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cores: Vec<usize>,
    /// Length of each measurement
    #[arg(short = 't', long, value_name = "TIME", default_value = "1s")]
    duration: Span,
    /// Where the results are kept, as JSON
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// What is compared: the arguments of `stag perf`, what of it is told, and the others.
struct Shape {
    name: &'static str,
    who: &'static str,
    perf: &'static str,
    tells: Tells,
    others: fn(&PeerSetup) -> Vec<Result<PeerRow, MissingProgram>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tells {
    RoundTrip,
    Data,
}

const SHAPES: [Shape; 4] = [
    Shape {
        name: "one at a time, shared memory",
        who: "stag NULL",
        perf: "null -q 1",
        tells: Tells::RoundTrip,
        others: |setup| {
            vec![tools::ucx_round_trip(setup, tools::SHARED_MEMORY), tools::fabric_round_trip(setup, "shm")]
        },
    },
    Shape {
        name: "1 MiB, shared memory",
        who: "stag READ, depth 4",
        perf: "read -s 1M -q 4",
        tells: Tells::Data,
        others: |setup| vec![tools::ucx_data(setup, tools::SHARED_MEMORY)],
    },
    Shape {
        name: "one at a time, TCP",
        who: "stag NULL, iWARP",
        perf: "null -q 1 --fabric iwarp",
        tells: Tells::RoundTrip,
        others: |setup| {
            vec![tools::ucx_round_trip(setup, tools::TCP), tools::fabric_round_trip(setup, "tcp")]
        },
    },
    Shape {
        name: "1 MiB, TCP",
        who: "stag READ, iWARP, depth 4",
        perf: "read -s 1M -q 4 --fabric iwarp",
        tells: Tells::Data,
        others: |setup| vec![tools::ucx_data(setup, tools::TCP), tools::iperf(setup)],
    },
];

impl Peers {
    /// Runs it.
    pub(super) fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let environment = RunEnvironment::now();
        let setup = PeerSetup { cores: self.choose_cores()?, duration: self.duration.0 };
        if let Some(path) = &self.output {
            write(path, "")?;
        }
        let [client, server] = setup.cores;
        out.line(format_args!(
            "cores      client {client}, server {server}; each of them {}",
            Time(setup.duration)
        ))?;
        out.line(format_args!("\n{:<30} {:>10} {:>10} {:>8}", "", "round trip", "rate", "GB/s"))?;
        out.flush()?;
        let (mut rows, mut missing) = (Vec::new(), Vec::new());
        let bar = progress(SHAPES.len() + 1, out);
        for shape in &SHAPES {
            begin(shape.name, &bar, out)?;
            let own = own(shape, &setup);
            bar.suspend(|| keep(Ok(own), shape.name, &mut rows, &mut missing, out))?;
            for row in (shape.others)(&setup) {
                bar.suspend(|| keep(row, shape.name, &mut rows, &mut missing, out))?;
            }
            bar.inc(1);
        }
        begin(ganesha::SHAPE, &bar, out)?;
        let ganesha = ganesha::rows(&setup);
        bar.finish_and_clear();
        for row in ganesha {
            keep(row, ganesha::SHAPE, &mut rows, &mut missing, out)?;
        }
        differences(&rows, out)?;
        for MissingProgram { program, package } in &missing {
            out.line(format_args!("not installed: {program} (Debian: apt install {package})"))?;
        }
        let failed = rows.iter().filter(|row| row.error.is_some()).count();
        let results = BenchResults {
            schema: SCHEMA,
            environment: serde_json::to_value(&environment).map_err(CommandFailure::run)?,
            figures: Vec::new(),
            peers: rows,
            missing,
        };
        if let Some(path) = &self.output {
            write(path, &(serde_json::to_string(&results).map_err(CommandFailure::run)? + "\n"))?;
            out.line(format_args!("results    {}", path.display()))?;
        }
        out.object(&results)?;
        match failed {
            0 => Ok(()),
            failed => {
                Err(CommandFailure::run(format_args!("{failed} of the programs could not be measured")))
            }
        }
    }

    /// The cores that were asked for, or those that `stag perf` would take.
    fn choose_cores(&self) -> Result<[usize; 2], CommandFailure> {
        match self.cores[..] {
            [] => {
                let topology = Topology::read().map_err(CommandFailure::run)?;
                match topology.choose_near(&affinity::allowed(), 2, None)[..] {
                    [server, client] => Ok([client.0, server.0]),
                    _ => Err(CommandFailure::run("bench peers takes two cores, this process may use one")),
                }
            }
            [client, server] => Ok([client, server]),
            _ => Err(CommandFailure::usage("--cores: name two, the client's and the server's")),
        }
    }
}

/// Says what is measured next.
fn begin(shape: &'static str, bar: &ProgressBar, out: &mut Output) -> Result<(), CommandFailure> {
    bar.suspend(|| out.line(shape).and_then(|()| out.flush()))?;
    bar.set_message(shape);
    bar.tick();
    Ok(())
}

/// A bar for the shapes on a terminal, nothing elsewhere.
fn progress(count: usize, out: &Output) -> ProgressBar {
    if !std::io::stderr().is_terminal() || out.json() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(count as u64);
    bar.set_style(time_left::style("measuring {msg} {wide_bar} {pos}/{len}{left}", 0, None));
    bar
}

/// Prints a row and keeps it, or keeps what is missing, once.
fn keep(
    found: Result<PeerRow, MissingProgram>,
    shape: &str,
    rows: &mut Vec<PeerRow>,
    missing: &mut Vec<MissingProgram>,
    out: &mut Output,
) -> Result<(), CommandFailure> {
    match found {
        Ok(row) => {
            let row = PeerRow { shape: shape.to_owned(), ..row };
            out.line(text(&row))?;
            rows.push(row);
        }
        Err(program) if !missing.contains(&program) => missing.push(program),
        Err(_) => {}
    }
    out.flush()
}

/// The row of `stag` itself.
fn own(shape: &Shape, setup: &PeerSetup) -> PeerRow {
    let [client, server] = setup.cores;
    let row = PeerRow { who: shape.who.to_owned(), ..PeerRow::default() };
    let more = [
        "--cores".to_owned(),
        format!("{client},{server}"),
        "-t".to_owned(),
        format!("{}ms", setup.duration.as_millis()),
        "--repeat".to_owned(),
        "3".to_owned(),
    ];
    let words = shape.perf.split_ascii_whitespace().map(str::to_owned).chain(more);
    let point = match take(words) {
        Ok(points) => points[0].clone(),
        Err(error) => return PeerRow { error: Some(error), ..row },
    };
    let number = |place: &str| point.pointer(place).and_then(Value::as_f64);
    let is_data = shape.tells == Tells::Data;
    PeerRow {
        version: Some(crate::version::VERSION.to_owned()),
        round_trip_ns: number("/latency_ns/p50/median").filter(|_| !is_data),
        per_second: number("/calls_per_second/median"),
        bytes_per_second: number("/bytes_per_second/median").filter(|_| is_data),
        disturbed: point["disturbed"].as_bool(),
        ..row
    }
}

fn text(row: &PeerRow) -> String {
    if let Some(error) = &row.error {
        return Colour::Red.of(&wrapped(
            &format!("  {:<28} ", row.who),
            &format!("FAILED: {error}"),
            columns(),
        ));
    }
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let note = if row.disturbed == Some(true) { "  disturbed" } else { "" };
    format!(
        "  {:<28} {:>10} {:>10} {:>8}{note}",
        row.who,
        or_dash(row.round_trip_ns.map(|time| Time(Duration::from_nanos(time as u64)).to_string())),
        or_dash(row.per_second.map(rate)),
        or_dash(row.bytes_per_second.map(|octets| format!("{:.2}", octets / 1e9))),
    )
}

/// Says what differs, below the table.
fn differences(rows: &[PeerRow], out: &mut Output) -> Result<(), CommandFailure> {
    let mut told: Vec<(&str, Vec<&str>)> = Vec::new();
    for PeerRow { who, differs, .. } in
        rows.iter().filter(|row| !row.differs.is_empty() && row.error.is_none())
    {
        match told.iter_mut().find(|(text, _)| *text == differs) {
            Some((_, names)) => names.push(who),
            None => told.push((differs, vec![who])),
        }
    }
    if !told.is_empty() {
        out.line("\nWhat differs from stag's rows")?;
    }
    for (differs, names) in told {
        out.line(wrapped("  ", &format!("{}: {differs}", names.join("; ")), columns().min(80)))?;
    }
    out.flush()
}

fn write(path: &std::path::Path, text: &str) -> Result<(), CommandFailure> {
    fs::write(path, text).map_err(|error| CommandFailure::run(format_args!("{}: {error}", path.display())))
}
