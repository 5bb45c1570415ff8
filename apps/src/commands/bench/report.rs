//! `stag bench report`: one page with tables and plots, that needs no other file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::values::{Size, Time};

use super::chart::{Axis, Line, Scale, bars, chart, escaped};
use super::peer_row::{MissingProgram, PeerRow};
use super::results::{BenchResults, point_name};
use super::run::verdict;
use crate::commands::perf::rate;

/// Lines of a plot at most: more cannot be told apart.
const LINES_MAX: usize = 16;

/// Draws results as one HTML page
#[derive(Debug, Args)]
#[command(after_help = "Examples: stag bench report new.json -o new.html\n          \
                        stag bench report old.json new.json -o both.html")]
pub(super) struct Report {
    /// Results: files, or folders of them
    #[arg(required = true, value_name = "RESULTS")]
    results: Vec<PathBuf>,
    /// Where the page goes
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
}

impl Report {
    /// Runs it.
    pub(super) fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let all: Vec<BenchResults> =
            self.results.iter().map(|path| BenchResults::read(path)).collect::<Result<_, _>>()?;
        let path = &self.output;
        fs::write(path, page(&all))
            .map_err(|error| CommandFailure::run(format_args!("{}: {error}", path.display())))?;
        out.line(format_args!("the page is {}", path.display()))?;
        out.object(&serde_json::json!({ "page": path }))
    }
}

/// A point of a figure: its results, its figure's name, and the object of `stag perf`.
struct Point<'a> {
    /// Empty if there is one set of results.
    run: String,
    name: String,
    found: &'a Value,
}

impl Point<'_> {
    fn number(&self, place: &str) -> Option<f64> {
        self.found.pointer(place)?.as_f64()
    }

    fn text(&self, name: &str) -> &str {
        self.found[name].as_str().unwrap_or_default()
    }

    /// What it has in common with others of one line: all but what `without` says.
    fn line(&self, without: &str) -> String {
        let mut parts = vec![format!("{} {}", self.text("fabric"), self.text("operation"))];
        if let Some(size) = self.number("/size").filter(|_| without != "size") {
            parts.push(Size(size as u64).to_string());
        }
        for (name, most) in [("depth", 0.0), ("connections", 1.0)] {
            let number = self.number(&format!("/{name}")).filter(|number| *number > most && without != name);
            parts.extend(number.map(|number| format!("{name} {number}")));
        }
        if self.found["url"].is_string() {
            parts.push("of a server".to_owned());
        }
        for (flag, name) in [("/touch", "touched"), ("/crc", "CRC")] {
            if self.found.pointer(flag) == Some(&Value::Bool(true)) {
                parts.push(name.to_owned());
            }
        }
        if !self.run.is_empty() {
            parts.push(self.run.clone());
        }
        parts.join(", ")
    }
}

/// Lines through the points that differ in `without` only: at least two points each.
fn lines<'a>(
    points: &[Point<'a>],
    without: &str,
    is_wanted: impl Fn(&Point<'a>) -> bool,
    at: impl Fn(&Point<'a>) -> Option<(f64, f64)>,
) -> Vec<Line> {
    let mut found: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for point in points.iter().filter(|point| is_wanted(point)) {
        if let Some(at) = at(point) {
            found.entry(point.line(without)).or_default().push(at);
        }
    }
    let mut lines: Vec<Line> = found
        .into_iter()
        .map(|(name, mut points)| {
            points.sort_by(|one, other| one.0.total_cmp(&other.0));
            points.dedup_by(|one, other| one.0 == other.0);
            Line { name, points }
        })
        .filter(|line| line.points.len() > 1)
        .collect();
    lines.truncate(LINES_MAX);
    lines
}

fn nanoseconds(value: f64) -> String {
    match value {
        ..1e3 => format!("{value} ns"),
        1e3..1e6 => format!("{} µs", value / 1e3),
        1e6..1e9 => format!("{} ms", value / 1e6),
        _ => format!("{} s", value / 1e9),
    }
}

fn percent(quantile: f64) -> String {
    let text = format!("{:.6}", 100.0 * quantile);
    format!("{} %", text.trim_end_matches('0').trim_end_matches('.'))
}

fn plain(value: f64) -> String {
    format!("{value}")
}

fn size(value: f64) -> String {
    Size(value as u64).to_string()
}

fn gigabytes(value: f64) -> String {
    format!("{}", (value * 100.0).round() / 100.0)
}

/// The whole page.
fn page(all: &[BenchResults]) -> String {
    let mut points = Vec::new();
    for results in all {
        for figure in &results.figures {
            for found in &figure.points {
                let at = point_name(&figure.points, found);
                let name = if at.is_empty() { figure.name.clone() } else { format!("{}, {at}", figure.name) };
                let run = if all.len() > 1 { results.label() } else { String::new() };
                points.push(Point { run, name, found });
            }
        }
    }
    let mut text = HEAD.to_owned();
    for results in all {
        text += &environment(&results.environment);
    }
    text += "<section><h2>Figures</h2>\n";
    for results in all {
        text += &table(results, all.len() > 1);
    }
    text += "</section>\n<section class=\"charts\"><h2>Plots</h2>\n";
    text += &charts(&points);
    text += "</section>\n";
    for results in all.iter().filter(|results| !results.peers.is_empty()) {
        text += &peers(results);
    }
    text + "</main></body></html>\n"
}

fn charts(points: &[Point<'_>]) -> String {
    let latency = || Axis { title: "latency", scale: Scale::Log, label: nanoseconds };
    let is_lone = |point: &Point<'_>| point.number("/connections") == Some(1.0);
    let is_closed = |point: &Point<'_>| point.found["open_loop"].is_null();
    let mut text = String::new();
    let distributions = |fabric: &str| {
        let mut lines: Vec<Line> = points
            .iter()
            .filter(|point| point.text("fabric") == fabric)
            .map(|point| {
                let steps = point.found["latency_distribution"].as_array().into_iter().flatten();
                let points = steps.filter_map(|step| Some((step[0].as_f64()?, step[1].as_f64()?)));
                let run = if point.run.is_empty() { String::new() } else { format!(", {}", point.run) };
                Line { name: format!("{}{run}", point.name), points: points.collect() }
            })
            .filter(|line| line.points.len() > 1)
            .collect();
        lines.truncate(LINES_MAX);
        lines
    };
    for fabric in ["shm", "iwarp", "verbs"] {
        let lines = distributions(fabric);
        if fabric == "shm" || !lines.is_empty() {
            let x = Axis { title: "share of Calls that are faster", scale: Scale::Tail, label: percent };
            text += &chart(&format!("Latency over {fabric}"), &x, &latency(), &lines);
        }
    }
    let rates = |title: &'static str| Axis { title, scale: Scale::Log, label: rate };
    let by_depth = |place: &'static str| {
        lines(
            points,
            "depth",
            |point| is_lone(point) && is_closed(point),
            move |point| Some((point.number("/depth")?, point.number(place)?)),
        )
    };
    let depth = || Axis { title: "Calls outstanding", scale: Scale::Doubling, label: plain };
    text +=
        &chart("Rate by depth", &depth(), &rates("Calls a second"), &by_depth("/calls_per_second/median"));
    text += &chart("Median latency by depth", &depth(), &latency(), &by_depth("/latency_ns/p50/median"));
    let by_connections = lines(points, "connections", is_closed, |point| {
        Some((point.number("/connections")?, point.number("/calls_per_second/median")?))
    });
    let connections = Axis { title: "connections", scale: Scale::Log, label: plain };
    text += &chart("Rate by connections", &connections, &rates("Calls a second"), &by_connections);
    let by_size = lines(points, "size", is_closed, |point| {
        let octets = point.number("/bytes_per_second/median").filter(|octets| *octets > 0.0)?;
        Some((point.number("/size")?, octets / 1e9))
    });
    let sizes = Axis { title: "octets of a Call", scale: Scale::Doubling, label: size };
    let moved = Axis { title: "GB/s", scale: Scale::Linear, label: gigabytes };
    text += &chart("Data by size", &sizes, &moved, &by_size);
    let mut by_rate = Vec::new();
    for (name, place) in [("p50", "/latency_ns/p50/median"), ("p99", "/latency_ns/p99/median")] {
        let found = lines(
            points,
            "rate",
            |point| !is_closed(point),
            |point| Some((point.number("/open_loop/rate")?, point.number(place)?)),
        );
        by_rate.extend(found.into_iter().map(|line| Line { name: format!("{name}, {}", line.name), ..line }));
    }
    text += &chart("Latency by rate, open loop", &rates("Calls a second asked for"), &latency(), &by_rate);
    text
}

/// Others beside ours: bars for each shape, and what differs.
fn peers(results: &BenchResults) -> String {
    let mut text = "<section class=\"charts\"><h2>Beside other programs</h2>\n".to_owned();
    let mut shapes: Vec<&str> = Vec::new();
    for row in &results.peers {
        if !shapes.contains(&&row.shape[..]) {
            shapes.push(&row.shape);
        }
    }
    for shape in shapes {
        let rows: Vec<&PeerRow> = results.peers.iter().filter(|row| row.shape == shape).collect();
        let of = |value: fn(&PeerRow) -> Option<f64>| {
            let bars = rows.iter().filter_map(|row| Some((row.who.clone(), value(row)?)));
            bars.collect::<Vec<_>>()
        };
        let time = |value: f64| Time(Duration::from_nanos(value as u64)).to_string();
        let data = |value: f64| format!("{:.2} GB/s", value / 1e9);
        let moved = of(|row| row.bytes_per_second);
        text += &match moved.is_empty() {
            true => bars(&format!("{shape}: round trip, less is better"), &of(|row| row.round_trip_ns), time),
            false => bars(&format!("{shape}: data, more is better"), &moved, data),
        };
    }
    text +=
        "</section>\n<section><table><thead><tr><th>program</th><th>what differs</th></tr></thead><tbody>\n";
    for row in &results.peers {
        let note = row.error.as_ref().map_or_else(|| row.differs.clone(), |error| format!("failed: {error}"));
        if !note.is_empty() {
            let who = format!("{}, {}", row.who, row.shape);
            let _ = writeln!(text, "<tr><td>{}</td><td>{}</td></tr>", escaped(&who), escaped(&note));
        }
    }
    text += "</tbody></table>\n";
    for MissingProgram { program, package } in &results.missing {
        let _ = writeln!(text, "<p>Not installed: {} (Debian: {})</p>", escaped(program), escaped(package));
    }
    text + "</section>\n"
}

/// Where, when and of which build.
fn environment(found: &Value) -> String {
    let mut text = "<table class=\"where\">".to_owned();
    for (key, name) in [
        ("commit", "commit"),
        ("version", "version"),
        ("profile", "profile"),
        ("time", "time"),
        ("host", "host"),
        ("cpu", "processor"),
        ("processors", "processors"),
        ("kernel", "kernel"),
    ] {
        let value = match &found[key] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        // Writing to a text does not fail.
        let _ = write!(text, "<tr><th>{name}</th><td>{}</td></tr>", escaped(&value));
    }
    text + "</table>\n"
}

/// A row for each point.
fn table(results: &BenchResults, is_named: bool) -> String {
    let mut text = String::new();
    if is_named {
        let _ = writeln!(text, "<h3>{}</h3>", escaped(&results.label()));
    }
    text += "<table><thead><tr><th>figure</th><th>rate</th><th>±</th><th>GB/s</th><th>p50</th><th>p99</th>\
             <th>p99.9</th><th>max</th><th>CPU client, server</th><th>verdict</th></tr></thead><tbody>\n";
    for figure in &results.figures {
        if let Some(error) = &figure.error {
            let (name, error) = (escaped(&figure.name), escaped(error));
            let _ = writeln!(text, "<tr><td>{name}</td><td colspan=\"9\" class=\"bad\">{error}</td></tr>");
        }
        for found in &figure.points {
            let at = point_name(&figure.points, found);
            let name = if at.is_empty() { figure.name.clone() } else { format!("{}, {at}", figure.name) };
            text += &row(&Point { run: String::new(), name, found });
        }
    }
    text + "</tbody></table>\n"
}

fn row(point: &Point<'_>) -> String {
    let time = |place: &str| {
        let found = point.number(place);
        found.map_or("-".to_owned(), |found| Time(Duration::from_nanos(found as u64)).to_string())
    };
    let spread = |low: &str, high: &str, middle: &str| {
        Some((point.number(high)? - point.number(low)?) / 2.0 / point.number(middle)?.max(1e-9) * 100.0)
    };
    let [min, max, median] = ["min", "max", "median"].map(|name| format!("/calls_per_second/{name}"));
    let spread = spread(&min, &max, &median).map_or("-".to_owned(), |spread| format!("{spread:.0} %"));
    let octets = point.number("/bytes_per_second/median").filter(|octets| *octets > 0.0);
    let server = match &point.found["cpu"]["server_ns_per_call"] {
        Value::Null => "-".to_owned(),
        _ => time("/cpu/server_ns_per_call/median"),
    };
    let verdict = verdict(point.found);
    let (class, verdict) = match point.found["requirements"][0]["met"].as_bool() {
        _ if point.found["disturbed"] == true => ("doubt", "not measured: other programs ran".to_owned()),
        Some(true) => ("good", verdict),
        Some(false) => ("bad", verdict),
        None if point.found["requirements"][0].is_null() => ("", String::new()),
        None => ("doubt", verdict),
    };
    format!(
        "<tr><td>{}</td><td>{}</td><td>{spread}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
         <td>{}, {server}</td><td class=\"{class}\">{}</td></tr>\n",
        escaped(&point.name),
        rate(point.number(&median).unwrap_or_default()),
        octets.map_or("-".to_owned(), |octets| format!("{:.2}", octets / 1e9)),
        time("/latency_ns/p50/median"),
        time("/latency_ns/p99/median"),
        time("/latency_ns/p999/median"),
        time("/latency_ns/max/median"),
        time("/cpu/client_ns_per_call/median"),
        escaped(&verdict)
    )
}

/// The page up to its first section.
const HEAD: &str = r#"<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Stag: measured</title>
<meta name="viewport" content="width=device-width">
<style>
:root { color-scheme: light dark; --line: #8884; --good: #0a7d36; --bad: #c62828; --doubt: #a86500; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0; }
main { max-width: 1360px; margin: 0 auto; padding: 1.5rem; }
h1 { margin: 0 0 1rem; font-size: 1.6rem; } h2 { margin: 2rem 0 .6rem; } h3 { margin: .4rem 0; font-size: 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0 0 1rem; }
th, td { text-align: left; padding: .2rem .7rem .2rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
.where { display: inline-table; margin-right: 3rem; } .where th { font-weight: 500; opacity: .7; }
.good { color: var(--good); } .bad { color: var(--bad); } .doubt { color: var(--doubt); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(520px, 1fr)); gap: 1.5rem; }
.charts h2 { grid-column: 1 / -1; margin-bottom: 0; }
figure { margin: 0; } svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: currentColor; }
svg .axis { font-size: 12px; opacity: .8; } svg .grid { stroke: #8885; stroke-width: 1; }
.legend { list-style: none; padding: 0; margin: .3rem 0 0 4rem; font-size: 13px; columns: 2; }
.legend i { display: inline-block; width: 18px; margin-right: .5rem; vertical-align: middle; }
</style></head>
<body><main><h1>Stag: measured</h1>
"#;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::results::{BenchFigure, SCHEMA};
    use super::*;

    fn point(operation: &str, depth: u32, size: Option<u32>, rate: f64) -> Value {
        let spread =
            |middle: f64| json!({"median": middle, "min": middle * 0.9, "max": middle * 1.1, "count": 5});
        json!({
            "operation": operation, "fabric": "shm", "depth": depth, "connections": 1, "size": size,
            "calls_per_second": spread(rate), "bytes_per_second": spread(rate * f64::from(size.unwrap_or(0))),
            "latency_ns": {"p50": spread(1e9 / rate), "p99": spread(2e9 / rate), "p999": null, "max": spread(1e7)},
            "latency_distribution": [[0.0, 100.0], [0.5, 200.0], [0.99, 900.0], [0.999, 4000.0]],
            "cpu": {"client_ns_per_call": spread(90.0), "server_ns_per_call": null},
            "open_loop": null, "disturbed": false, "touch": false, "url": null, "crc": null,
            "requirements": [{"wanted": "rate>1", "text": "x", "met": true, "reason": null}],
        })
    }

    fn peer(who: &str, round_trip: f64) -> PeerRow {
        PeerRow {
            shape: "one at a time".to_owned(),
            who: who.to_owned(),
            round_trip_ns: Some(round_trip),
            differs: "no RPC".to_owned(),
            ..PeerRow::default()
        }
    }

    fn results() -> BenchResults {
        let figure = |name: &str, points| BenchFigure {
            scenario: "test".to_owned(),
            name: name.to_owned(),
            points,
            error: None,
        };
        let depths = [1, 2, 4, 8].map(|depth| point("null", depth, None, 1e6 * f64::from(depth)));
        let sizes = [64, 4096, 1 << 20].map(|size| point("read", 4, Some(size), 1e9 / f64::from(size)));
        let failed = BenchFigure { error: Some("no <room>".to_owned()), ..figure("failed", Vec::new()) };
        BenchResults {
            schema: SCHEMA,
            environment: json!({"commit": "1a2b3c", "cpu": "a <processor>", "time": "2026-01-02T03:04:05Z"}),
            figures: vec![figure("null", depths.to_vec()), figure("read", sizes.to_vec()), failed],
            peers: vec![peer("stag NULL", 400.0), peer("UCX <tag>", 800.0)],
            missing: vec![MissingProgram { program: "iperf3".to_owned(), package: "iperf3".to_owned() }],
        }
    }

    #[test]
    fn points_that_differ_in_one_thing_are_a_line() {
        let results = results();
        let points: Vec<Point<'_>> = results.figures[..2]
            .iter()
            .flat_map(|figure| &figure.points)
            .map(|found| Point { run: String::new(), name: String::new(), found })
            .collect();
        let found = lines(&points, "depth", |_| true, |point| Some((point.number("/depth")?, 1.0)));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((&found[0].name[..], found[0].points.len()), ("shm null", 4));
        let found = lines(&points, "size", |_| true, |point| Some((point.number("/size")?, 1.0)));
        assert_eq!((found.len(), &found[0].name[..]), (1, "shm read, depth 4"));
    }

    #[test]
    fn a_page_stands_alone_and_keeps_markup_out() {
        let text = page(&[results()]);
        assert_eq!(text.matches("<svg").count(), 5, "distribution, two of depth, one of size, one of peers");
        assert!(text.contains("UCX &lt;tag&gt;") && text.contains("Not installed: iperf3"), "{text}");
        assert!(text.contains("Not measured in these results"), "no connections, no open loop");
        for part in ["a &lt;processor&gt;", "no &lt;room&gt;", "1a2b3c", "class=\"good\">met"] {
            assert!(text.contains(part), "{part}");
        }
        for other_file in ["src=", "href=", "@import", "url(", "<script"] {
            assert!(!text.contains(other_file), "{other_file}");
        }
        let both = page(&[results(), results()]);
        assert!(both.contains("shm null, 1a2b3c, 2026-01-02 03:04"), "lines say of which run they are");
    }

    #[test]
    fn labels_are_short() {
        assert_eq!(
            (percent(0.9), percent(0.99999), percent(0.0)),
            ("90 %".into(), "99.999 %".into(), "0 %".into())
        );
        assert_eq!((nanoseconds(500.0), nanoseconds(2e6)), ("500 ns".into(), "2 ms".into()));
    }
}
