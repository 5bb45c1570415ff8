//! `--histogram` and `--csv`: what a run leaves for other programs.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use stag_bench::{Figures, Scenario};
use stag_server::failure::CommandFailure;

use crate::version::VERSION;

/// The first line of a CSV file.
const COLUMNS: &str = "operation,fabric,size,depth,connections,rate_wanted,round,calls,calls_per_second,\
                       bytes_per_second,p50_ns,p99_ns,p999_ns,max_ns,mean_ns,late_starts,client_cpu_ns,\
                       server_cpu_ns,disturbed\n";

/// Latencies of some time.
struct Logged {
    tag: String,
    latency: Histogram<u64>,
    began: SystemTime,
    took: Duration,
}

/// The files that were asked for. They are written at the end. A folder that is not there is a mistake to hear of before minutes of
/// measuring, so that is looked at first.
pub(super) struct ResultFiles {
    histogram: Option<PathBuf>,
    logged: Vec<Logged>,
    csv: Option<PathBuf>,
    table: String,
}

impl ResultFiles {
    /// Sees that files can be made there.
    pub(super) fn planned(
        histogram: Option<&Path>,
        csv: Option<&Path>,
    ) -> Result<ResultFiles, CommandFailure> {
        for (flag, path) in [("--histogram", histogram), ("--csv", csv)] {
            if let Some(path) = path {
                check(path).map_err(|problem| {
                    CommandFailure::usage(format_args!("{flag} {}: {problem}", path.display()))
                })?;
            }
        }
        let [histogram, csv] = [histogram, csv].map(|path| path.map(Path::to_owned));
        Ok(ResultFiles { histogram, logged: Vec::new(), csv, table: COLUMNS.to_owned() })
    }

    /// Adds what was measured.
    pub(super) fn add(&mut self, figures: &Figures) -> Result<(), CommandFailure> {
        if self.csv.is_some() {
            rows(figures, &mut self.table);
        }
        if self.histogram.is_none() {
            return Ok(());
        }
        let tag = tag(&figures.scenario);
        if figures.intervals.is_empty() {
            self.logged.extend(figures.rounds.iter().map(|round| Logged {
                tag: tag.clone(),
                latency: round.latency.clone(),
                began: round.began,
                took: round.took,
            }));
        } else {
            self.logged.extend(figures.intervals.iter().map(|interval| Logged {
                tag: tag.clone(),
                latency: interval.latency.clone(),
                began: interval.began,
                took: interval.took,
            }));
        }
        Ok(())
    }

    /// Writes the files.
    pub(super) fn finish(self) -> Result<(), CommandFailure> {
        let write = |flag: &str, path: &Path, contents: &[u8]| {
            fs::write(path, contents)
                .map_err(|error| CommandFailure::run(format_args!("{flag} {}: {error}", path.display())))
        };
        if let Some(path) = &self.csv {
            write("--csv", path, self.table.as_bytes())?;
        }
        if let Some(path) = &self.histogram {
            write("--histogram", path, &log(&self.logged)?)?;
        }
        Ok(())
    }
}

/// Why no file can be made there, as far as that is seen without making one.
fn check(path: &Path) -> Result<(), String> {
    if path.file_name().is_none() || path.is_dir() {
        return Err("it names no file".to_owned());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let found = fs::metadata(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    if found.is_dir() { Ok(()) } else { Err(format!("{} is no folder", folder.display())) }
}

/// What was measured, as a tag: no comma and no space may be in one.
fn tag(scenario: &Scenario) -> String {
    let size = if scenario.operation.has_size() { format!("-{}", scenario.size) } else { String::new() };
    let rate = scenario.arrivals.map_or(String::new(), |arrivals| format!("-r{}", arrivals.rate.round()));
    format!("{}{size}-q{}-c{}{rate}", scenario.operation.name(), scenario.depth, scenario.connections)
}

/// The HDR histogram log: nanoseconds, with the maximum in milliseconds, as its readers expect.
fn log(logged: &[Logged]) -> Result<Vec<u8>, CommandFailure> {
    let fail = |error: &dyn std::fmt::Display| CommandFailure::run(format_args!("--histogram: {error}"));
    let mut octets = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let mut builder = IntervalLogWriterBuilder::new();
    builder.add_comment(&format!("[stag perf {VERSION}]")).with_max_value_divisor(1e6);
    if let Some(first) = logged.first() {
        builder.with_start_time(first.began);
    }
    let mut writer = builder.begin_log_with(&mut octets, &mut serializer).map_err(|error| fail(&error))?;
    for Logged { tag, latency, began, took } in logged {
        // Without a base time, times are those since the epoch.
        let since = began.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        writer.write_histogram(latency, since, *took, Tag::new(tag)).map_err(|error| fail(&error))?;
    }
    Ok(octets)
}

/// A row for each round. What was not measured is empty.
fn rows(figures: &Figures, table: &mut String) {
    let scenario = &figures.scenario;
    let number = |number: Option<f64>| number.map_or(String::new(), |number| format!("{number:.0}"));
    let fabric = serde_json::to_value(scenario.fabric).unwrap_or_default();
    for (index, round) in figures.rounds.iter().enumerate() {
        let latency = &round.latency_ns;
        let size = scenario.operation.has_size().then_some(scenario.size as f64);
        // Writing to a text does not fail.
        let _ = writeln!(
            table,
            "{},{},{},{},{},{},{},{},{:.0},{:.0},{},{},{},{},{},{},{},{},{}",
            scenario.operation.name(),
            fabric.as_str().unwrap_or_default(),
            number(size),
            scenario.depth,
            scenario.connections,
            number(scenario.arrivals.map(|arrivals| arrivals.rate)),
            index + 1,
            round.calls,
            round.calls_per_second,
            round.bytes_per_second,
            number(latency.p50),
            number(latency.p99),
            number(latency.p999),
            number(latency.max),
            number(latency.mean),
            round.late_starts,
            number(round.client_cpu_ns),
            number(round.server_cpu_ns),
            figures.disturbance.disturbed,
        );
    }
}

#[cfg(test)]
mod tests {
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    use super::*;

    #[test]
    fn a_place_without_a_folder_is_refused() {
        for (path, part) in [
            ("", "names no file"),
            ("/", "names no file"),
            ("/tmp", "names no file"),
            ("/no/such/file", "/no/such: No such file"),
            ("/proc/version/file", "is no folder"),
        ] {
            let problem = check(Path::new(path)).unwrap_err();
            assert!(problem.contains(part), "{path}: {problem}");
        }
        assert_eq!(check(Path::new("a-file")), Ok(()));
    }

    #[test]
    fn a_log_is_read_again_as_it_was_written() {
        let mut latency = Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap();
        [100, 2_000, 30_000].into_iter().for_each(|value| latency.saturating_record(value));
        let began = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let logged = [Logged {
            tag: tag(&Scenario::default()),
            latency: latency.clone(),
            began,
            took: Duration::from_millis(500),
        }];
        let octets = log(&logged).unwrap();
        let text = String::from_utf8(octets.clone()).unwrap();
        assert!(text.starts_with("#[stag perf ") && text.contains("#[StartTime: 1700000000.000"), "{text}");
        let read: Vec<_> = IntervalLogIterator::new(&octets)
            .filter_map(|entry| match entry.unwrap() {
                LogEntry::Interval(interval) => Some((
                    interval.tag().unwrap().as_str().to_owned(),
                    interval.duration(),
                    interval.encoded_histogram().to_owned(),
                )),
                _ => None,
            })
            .collect();
        assert_eq!((read.len(), &read[0].0[..], read[0].1), (1, "null-q1-c1", Duration::from_millis(500)));
        let packed = base64_of(&read[0].2);
        let found: Histogram<u64> = Deserializer::new().deserialize(&mut &packed[..]).unwrap();
        assert_eq!(found, latency);
    }

    /// The octets that base64 stands for.
    fn base64_of(text: &str) -> Vec<u8> {
        let digit = |letter: u8| match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            _ => 63,
        };
        let letters: Vec<u8> = text.bytes().filter(|letter| *letter != b'=').collect();
        letters
            .chunks(4)
            .flat_map(|four| {
                let bits = four.iter().fold(0u32, |bits, letter| bits << 6 | u32::from(digit(*letter)))
                    << (6 * (4 - four.len()));
                bits.to_be_bytes()[1..four.len()].to_vec()
            })
            .collect()
    }
}
