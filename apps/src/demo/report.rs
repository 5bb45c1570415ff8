//! The final report of the demo: a table for people, an object for programs.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::Value;
use stag_bench::rounds::is_enough;
use stag_server::counters::Counters;
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::timings::Timings;
use stag_server::values::{Rate, Size, Time};

use super::steps::{Run, Step};
use super::tree::Tree;
use stag_wire::nfs3::Procedure;

/// The object of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    path: String,
    files: u64,
    bytes: u64,
    /// Files left out because of `--size-limit`.
    over_limit: u64,
    /// Left out: neither file, folder nor symbolic link, or not readable.
    skipped: u64,
    /// Whether everything came back as it was sent.
    verified: bool,
    mismatches: u64,
    steps: &'a [Step],
    procedures: Vec<Row>,
    credits_granted: u32,
    inline_threshold: u32,
    client: Counters,
    /// The last object that `stagd --json` printed.
    server: &'a Value,
}

/// The latency of one procedure.
#[derive(Serialize)]
struct Row {
    procedure: String,
    calls: u64,
    /// Null if fewer than ten Calls lie beyond, as the next two.
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    p999_ns: Option<u64>,
    max_ns: u64,
}

/// The figures of a connection; taken before it ends.
pub(super) struct Connection {
    client: Counters,
    credits_granted: u32,
    inline_threshold: u32,
    rows: Vec<Row>,
    steps: Vec<Step>,
    mismatches: u64,
}

impl Connection {
    /// Takes the figures of a run that is done.
    #[must_use]
    pub(super) fn of(run: &Run<'_>) -> Connection {
        Connection {
            client: run.remote.counters(),
            credits_granted: run.remote.credits_granted(),
            inline_threshold: run.remote.inline_threshold(),
            rows: rows(&run.remote.timings()),
            steps: run.steps.clone(),
            mismatches: run.mismatches,
        }
    }
}

/// The latencies of the procedures that were called.
fn rows(timings: &Timings) -> Vec<Row> {
    let row = |(procedure, histogram): (Procedure, &Histogram<u64>)| {
        let calls = histogram.len();
        let at = |quantile| is_enough(calls, quantile).then(|| histogram.value_at_quantile(quantile));
        Row {
            procedure: format!("{procedure:?}").to_uppercase(),
            calls,
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: histogram.max(),
        }
    };
    timings.iter().map(row).collect()
}

/// Prints the table or the object. Fails if anything differed.
pub(super) fn print(
    tree: &Tree,
    connection: Connection,
    server: &Value,
    out: &mut Output,
) -> Result<(), CommandFailure> {
    let Connection { client, credits_granted, inline_threshold, rows, steps, mismatches } = connection;
    table(&rows, out)?;
    let moved = |step: &str| steps.iter().find(|found| found.step == step);
    for step in ["copied in", "read back"].into_iter().filter_map(moved) {
        let [transfer, whole] = [step.transfer_seconds, step.seconds]
            .map(|seconds| Rate(step.bytes, Duration::from_secs_f64(seconds)).to_string());
        let bytes = Size(step.bytes);
        out.line(format_args!(
            "{:<10} {bytes} at {transfer}; {whole} with digests and local files",
            step.step
        ))?;
    }
    chunks(&client, &server["counters"], credits_granted, inline_threshold, out)?;
    carried(&server["cores"], out)?;
    let ledger = server["ledger"].as_str().unwrap_or("none");
    out.line(format_args!("ledger     server: {ledger}"))?;
    let verified = mismatches == 0;
    out.object(&Report {
        path: tree.root.display().to_string(),
        files: tree.files,
        bytes: tree.bytes,
        over_limit: tree.over_limit,
        skipped: tree.skipped,
        verified,
        mismatches,
        steps: &steps,
        procedures: rows,
        credits_granted,
        inline_threshold,
        client,
        server,
    })?;
    if !verified {
        return Err(CommandFailure::run(format_args!(
            "{mismatches} things came back other than they were sent"
        )));
    }
    let Tree { files, bytes, .. } = tree;
    out.line(format_args!("verified   {files} files, {bytes} bytes: every byte is as it was sent (SHA-256)"))
}

fn table(rows: &[Row], out: &mut Output) -> Result<(), CommandFailure> {
    out.line("")?;
    let [p50, p99, p999, max] = ["p50", "p99", "p99.9", "max"];
    out.line(format_args!("{:<12} {:>9} {p50:>11} {p99:>11} {p999:>11} {max:>11}", "procedure", "Calls"))?;
    let mut calls = 0;
    for row in rows {
        let [p50, p99, p999, max] =
            [row.p50_ns, row.p99_ns, row.p999_ns, Some(row.max_ns)].map(|nanoseconds| {
                nanoseconds.map_or_else(|| "-".to_owned(), |it| Time(Duration::from_nanos(it)).to_string())
            });
        calls += row.calls;
        out.line(format_args!(
            "{:<12} {:>9} {p50:>11} {p99:>11} {p999:>11} {max:>11}",
            row.procedure, row.calls
        ))?;
    }
    out.line(format_args!("{:<12} {calls:>9}", "in all"))?;
    out.line("")
}

/// Chunks by kind, copies and credits.
fn chunks(
    client: &Counters,
    server: &Value,
    credits: u32,
    inline_threshold: u32,
    out: &mut Output,
) -> Result<(), CommandFailure> {
    let of = |name: &str| server[name].as_u64().unwrap_or(0);
    let (read, write) = (of("read_chunks"), of("write_chunks"));
    let (reply, zero, short) = (of("reply_chunks"), of("position_zero_chunks"), of("messages_short"));
    out.line(format_args!(
        "chunks     Read {read}, Write {write}, Reply {reply}, Position Zero {zero}; {short} messages without"
    ))?;
    let (pulled, pushed) = (Size(of("read_bytes")), Size(of("write_bytes")));
    out.line(format_args!("placed     {pulled} by RDMA Read, {pushed} by RDMA Write: each byte once"))?;
    let (own, theirs) = (Size(client.copied_bytes), Size(of("copied_bytes")));
    out.line(format_args!(
        "copies     by the engines beyond that: client {own}, server {theirs} (inline data)"
    ))?;
    let threshold = Size(inline_threshold.into());
    out.line(format_args!("credits    {credits} granted; inline threshold {threshold}"))
}

/// What the cores of the server did for each other, if there are several.
fn carried(cores: &Value, out: &mut Output) -> Result<(), CommandFailure> {
    let cores = cores.as_array().map_or(&[][..], Vec::as_slice);
    for share in cores.iter().filter(|_| cores.len() > 1) {
        let of = |name: &str| share[name].as_u64().unwrap_or(0);
        let (core, calls, carried) = (of("core"), of("calls"), of("calls_carried"));
        let executed = of("calls_executed_for_others");
        out.line(format_args!(
            "core {core:<5} {calls} Calls came here, {carried} of them for other cores; {executed} executed for others"
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_what_was_recorded() {
        let mut timings = Timings::default();
        for tenths in 1..=10_000 {
            timings.record(Procedure::Read, Duration::from_nanos(100 * tenths));
        }
        timings.record(Procedure::Write, Duration::from_secs(7200));
        let all = rows(&timings);
        assert_eq!((all.len(), &*all[0].procedure, all[0].calls), (2, "READ", 10_000));
        let near = |found: Option<u64>, micros: f64| {
            found.is_some_and(|found| (found as f64 / 1e3 / micros - 1.0).abs() < 0.01)
        };
        assert!(near(all[0].p50_ns, 500.0) && near(all[0].p99_ns, 990.0) && near(all[0].p999_ns, 999.0));
        assert!(near(Some(all[0].max_ns), 1000.0));
        assert_eq!((all[1].p50_ns, all[1].p99_ns, all[1].p999_ns), (None, None, None), "of one Call");
    }
}
