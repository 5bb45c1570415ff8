//! A quick measurement of the project's main figures: `quick [null|read|write|…] [size] [depth] [touch]`.

use stag_bench::{MeasuredOperation, Scenario, run};

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |index: usize, default| words.get(index).and_then(|word| word.parse().ok()).unwrap_or(default);
    let operation = match words.first().map(String::as_str) {
        Some("read") => MeasuredOperation::Read,
        Some("write") => MeasuredOperation::Write,
        Some("getattr") => MeasuredOperation::Getattr,
        Some("echo") => MeasuredOperation::Echo,
        _ => MeasuredOperation::Null,
    };
    let scenario = Scenario {
        operation,
        size: number(1, 4096),
        depth: number(2, 1),
        repeat: number(4, 5),
        touch: words.get(3).is_some_and(|word| word == "touch"),
        ..Scenario::default()
    };
    let figures = run(&scenario, |_| {})?;
    let (Some(limits), Some(ratios)) = (&figures.limits, &figures.ratios) else {
        anyhow::bail!("the cores are one")
    };
    let Some(latency) = &figures.latency_ns else { anyhow::bail!("no Call ended") };
    println!(
        "{:?} {}B q{}: {:.2} M/s ({:.2} GB/s), p50 {:.0} ns p99 {:.0} ns; echo {:.0} ns {:.1} M/s, line {:.0} ns, \
         copy hot {:.1} read {:.1} GB/s; ratios: latency {:.2}, rate {:.2}, hot {:.2}, read {:.2}; leaked {}",
        operation,
        scenario.size,
        scenario.depth,
        figures.calls_per_second.median / 1e6,
        figures.bytes_per_second.median / 1e9,
        latency.p50.map_or(f64::NAN, |p50| p50.median),
        latency.p99.map_or(f64::NAN, |p99| p99.median),
        limits.echo_round_trip_ns.median,
        limits.echo_per_second.median / 1e6,
        limits.line_transfer_ns.median,
        limits.copy_hot.median / 1e9,
        limits.copy_read.median / 1e9,
        ratios.latency_to_echo.median,
        ratios.rate_to_echo.median,
        ratios.bytes_to_copy_hot.median,
        ratios.bytes_to_copy_read.median,
        figures.buffers_leaked,
    );
    Ok(())
}
