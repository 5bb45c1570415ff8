//! `--require`: a figure, and its bound.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;
use stag_bench::{Figures, MeasuredOperation};
use stag_server::values::Time;

use super::numbers::{nanoseconds, split, thousands};

/// A ratio so much better than its limit was not measured.
const EXCESS: f64 = 1.1;

/// Why nothing is met or missed where other programs ran.
pub(crate) const DISTURBED: &str = "other programs ran on these cores; measure again on a quiet machine";

/// A figure that can be required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metric {
    P50,
    P99,
    P999,
    Max,
    Mean,
    Rate,
    Bandwidth,
    LatencyToEcho,
    RateToEcho,
    CopyHot,
    CopyRead,
    LatencyToTcp,
    RateToTcp,
    Stream,
    LatencyToBare,
    RateToBare,
    Transfer,
}

/// What a metric is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Nanoseconds,
    PerSecond,
    BytesPerSecond,
    Ratio,
}

impl Metric {
    /// All of them, by name.
    const ALL: [(&'static str, Metric); 17] = [
        ("p50", Metric::P50),
        ("p99", Metric::P99),
        ("p999", Metric::P999),
        ("max", Metric::Max),
        ("mean", Metric::Mean),
        ("rate", Metric::Rate),
        ("bandwidth", Metric::Bandwidth),
        ("latency/echo", Metric::LatencyToEcho),
        ("rate/echo", Metric::RateToEcho),
        ("copy-hot", Metric::CopyHot),
        ("copy-read", Metric::CopyRead),
        ("latency/tcp", Metric::LatencyToTcp),
        ("rate/tcp", Metric::RateToTcp),
        ("stream", Metric::Stream),
        ("latency/bare", Metric::LatencyToBare),
        ("rate/bare", Metric::RateToBare),
        ("transfer", Metric::Transfer),
    ];

    fn unit(self) -> Unit {
        match self {
            Metric::P50 | Metric::P99 | Metric::P999 | Metric::Max | Metric::Mean => Unit::Nanoseconds,
            Metric::Rate => Unit::PerSecond,
            Metric::Bandwidth => Unit::BytesPerSecond,
            _ => Unit::Ratio,
        }
    }

    /// Why a ratio says nothing, if it is better than its limit allows: then the limit was measured while other programs ran.
    fn beaten(self, found: f64) -> Option<String> {
        let excess = match self {
            _ if self.unit() != Unit::Ratio || found <= 0.0 => 1.0,
            Metric::LatencyToEcho | Metric::LatencyToTcp | Metric::LatencyToBare => 1.0 / found,
            _ => found,
        };
        (excess >= EXCESS).then(|| {
            "that is 10 % or more beyond the limit, which was disturbed; measure again on a quiet machine"
                .to_owned()
        })
    }

    /// The median over the rounds; None if it was not measured.
    fn of(self, figures: &Figures) -> Option<f64> {
        let latency = figures.latency_ns.as_ref()?;
        let (ratios, tcp) = (figures.ratios.as_ref(), figures.tcp_ratios.as_ref());
        let bare = figures.bare_ratios.as_ref();
        let spread = match self {
            Metric::P50 => latency.p50,
            Metric::P99 => latency.p99,
            Metric::P999 => latency.p999,
            Metric::Max => Some(latency.max),
            Metric::Mean => Some(latency.mean),
            Metric::Rate => Some(figures.calls_per_second),
            Metric::Bandwidth => Some(figures.bytes_per_second),
            Metric::LatencyToEcho => ratios.map(|ratios| ratios.latency_to_echo),
            Metric::RateToEcho => ratios.map(|ratios| ratios.rate_to_echo),
            Metric::CopyHot => ratios.map(|ratios| ratios.bytes_to_copy_hot),
            Metric::CopyRead => ratios.map(|ratios| ratios.bytes_to_copy_read),
            Metric::LatencyToTcp => tcp.map(|tcp| tcp.latency_to_tcp),
            Metric::RateToTcp => tcp.and_then(|tcp| tcp.rate_to_tcp),
            Metric::Stream => tcp.map(|tcp| tcp.bytes_to_stream),
            Metric::LatencyToBare => bare.map(|bare| bare.latency_to_bare),
            Metric::RateToBare => bare.map(|bare| bare.rate_to_bare),
            Metric::Transfer => bare.and_then(|bare| bare.bytes_to_transfer),
        };
        spread.map(|spread| spread.median)
    }
}

/// How the figure must compare to the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Below,
    AtMost,
    Above,
    AtLeast,
}

impl Comparison {
    /// The longer signs first: `<` begins `<=` too.
    const ALL: [(&'static str, Comparison); 4] = [
        ("<=", Comparison::AtMost),
        (">=", Comparison::AtLeast),
        ("<", Comparison::Below),
        (">", Comparison::Above),
    ];

    fn holds(self, found: f64, value: f64) -> bool {
        match self {
            Comparison::Below => found < value,
            Comparison::AtMost => found <= value,
            Comparison::Above => found > value,
            Comparison::AtLeast => found >= value,
        }
    }
}

/// A figure, and what it must come to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Requirement {
    text: String,
    metric: Metric,
    comparison: Comparison,
    value: f64,
}

/// Whether a requirement was met.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Verdict {
    pub(super) wanted: String,
    /// In nanoseconds, Calls a second, octets a second, or as a ratio; null if there is no such figure.
    pub(super) found: Option<f64>,
    /// The same for people, or why there is nothing.
    pub(super) text: String,
    /// Null if what was found says nothing: it was not measured, for this `reason`.
    pub(super) met: Option<bool>,
    pub(super) reason: Option<String>,
}

impl Verdict {
    /// As a line begins.
    pub(super) fn word(&self) -> &'static str {
        match (self.found, self.met) {
            (None, _) | (Some(_), None) => "UNMEASURED",
            (Some(_), Some(true)) => "met",
            (Some(_), Some(false)) => "MISSED",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict { wanted, text, .. } = self;
        match (self.found, &self.reason) {
            (Some(_), Some(reason)) => write!(f, "{wanted}: not measured: {text} found, but {reason}"),
            (Some(_), None) => write!(f, "{wanted}: {text} found"),
            (None, _) => write!(f, "{wanted}: not measured: {text}"),
        }
    }
}

impl Requirement {
    /// Compares it with the medians.
    pub(super) fn verdict(&self, figures: &Figures) -> Verdict {
        // A latency of the rounds that had Calls would hide that others had none.
        let found = self.metric.of(figures).filter(|_| figures.rounds_empty == 0);
        let text = match (found, self.metric.unit()) {
            (None, Unit::Nanoseconds) => too_short(figures).unwrap_or_else(|| {
                "fewer than 10 Calls of a round lie beyond it; give a longer -t".to_owned()
            }),
            (None, _) => too_short(figures)
                .unwrap_or_else(|| "there is no such figure on one core, or over this fabric".to_owned()),
            (Some(found), Unit::Nanoseconds) => Time(Duration::from_nanos(found as u64)).to_string(),
            (Some(found), Unit::PerSecond) => rate(found),
            (Some(found), Unit::BytesPerSecond) => format!("{:.2} GB/s", found / 1e9),
            (Some(found), Unit::Ratio) => format!("{found:.3}"),
        };
        let reason = found.and_then(|found| {
            let is_disturbed = figures.disturbance.disturbed;
            is_disturbed.then(|| DISTURBED.to_owned()).or_else(|| self.metric.beaten(found))
        });
        let holds = found.is_some_and(|found| self.comparison.holds(found, self.value));
        Verdict { wanted: self.text.clone(), found, text, met: reason.is_none().then_some(holds), reason }
    }

    /// Why `operation` has no such figure, if it has none.
    pub(super) fn misfit(&self, operation: MeasuredOperation) -> Option<String> {
        let copies =
            matches!(self.metric, Metric::CopyHot | Metric::CopyRead | Metric::Stream | Metric::Transfer);
        let moves = operation.has_size()
            && !(copies && matches!(operation, MeasuredOperation::Echo | MeasuredOperation::Reply));
        let needs_data = copies || self.metric == Metric::Bandwidth;
        (needs_data && !moves).then(|| format!("--require {}: it is a figure of read and write", self.text))
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Requirement {
    type Err = String;

    fn from_str(text: &str) -> Result<Requirement, String> {
        let fail = |problem: &str| Err(format!("{text:?}: {problem}, as in p99<20us, rate>5M, copy-hot>0.9"));
        let Some((sign, at)) = Comparison::ALL.iter().find_map(|sign| Some((*sign, text.find(sign.0)?)))
        else {
            return fail("no <, <=, > or >=; write METRIC, one of them, VALUE");
        };
        let (name, value) = (text[..at].trim(), text[at + sign.0.len()..].trim());
        let Some(&(_, metric)) = Metric::ALL.iter().find(|(known, _)| *known == name) else {
            let names: Vec<_> = Metric::ALL.iter().map(|(name, _)| *name).collect();
            return Err(format!("{text:?}: {name:?} is no metric; use one of: {}", names.join(", ")));
        };
        let (number, unit) = split(value);
        let Some(number) = number else { return fail("the value is not a number") };
        let (scale, units) = match metric.unit() {
            Unit::Nanoseconds => (nanoseconds(unit), "a unit of ns, us, ms or s"),
            Unit::PerSecond => (thousands(unit.trim_end_matches("/s")), "no unit, or k or M"),
            Unit::BytesPerSecond => {
                let scale = match unit {
                    "MB/s" => Some(1e6),
                    "GB/s" => Some(1e9),
                    _ => None,
                };
                (scale, "a unit of MB/s or GB/s")
            }
            Unit::Ratio => ((unit.is_empty() || unit == "x").then_some(1.0), "no unit"),
        };
        let Some(scale) = scale else { return fail(&format!("{name} takes {units}")) };
        Ok(Requirement { text: text.to_owned(), metric, comparison: sign.1, value: number * scale })
    }
}

/// Why the ratio of that name says nothing, if it is better than its limit allows.
pub(super) fn beaten(name: &str, found: f64) -> Option<String> {
    let (_, metric) = Metric::ALL.iter().find(|(known, _)| *known == name)?;
    metric.beaten(found)
}

/// What to say if there were rounds without Calls.
pub(super) fn too_short(figures: &Figures) -> Option<String> {
    let scenario = &figures.scenario;
    let (empty, rounds) = (figures.rounds_empty, scenario.repeat.max(1));
    let which = match empty {
        0 => return None,
        _ if empty == rounds => "0 Calls".to_owned(),
        _ => format!("0 Calls in {empty} of {rounds}"),
    };
    let longer = Time((scenario.duration * 10).max(Duration::from_secs(1)));
    Some(format!(
        "a round of {} is too short: {which}; give more, as in -t {}s",
        Time(scenario.duration),
        longer.0.as_secs()
    ))
}

/// Calls a second for people.
pub(crate) fn rate(per_second: f64) -> String {
    match per_second {
        1e6.. => format!("{:.2} M/s", per_second / 1e6),
        1e3.. => format!("{:.1} k/s", per_second / 1e3),
        _ => format!("{per_second:.0} /s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requirement_is_a_metric_a_sign_and_a_value() {
        for (text, metric, comparison, value) in [
            ("p99<20us", Metric::P99, Comparison::Below, 20e3),
            ("max <= 1.5ms", Metric::Max, Comparison::AtMost, 1.5e6),
            ("rate>5M", Metric::Rate, Comparison::Above, 5e6),
            ("rate>=200k/s", Metric::Rate, Comparison::AtLeast, 2e5),
            ("bandwidth>10GB/s", Metric::Bandwidth, Comparison::Above, 10e9),
            ("latency/echo<2", Metric::LatencyToEcho, Comparison::Below, 2.0),
            ("rate/echo>0.2", Metric::RateToEcho, Comparison::Above, 0.2),
            ("rate/tcp>=0.85", Metric::RateToTcp, Comparison::AtLeast, 0.85),
            ("copy-hot>0.9", Metric::CopyHot, Comparison::Above, 0.9),
            ("latency/bare<3", Metric::LatencyToBare, Comparison::Below, 3.0),
            ("transfer>=0.5", Metric::Transfer, Comparison::AtLeast, 0.5),
        ] {
            let found: Requirement = text.parse().unwrap();
            assert_eq!((found.metric, found.comparison, found.value), (metric, comparison, value), "{text}");
        }
    }

    #[test]
    fn a_refusal_says_what_can_be_written() {
        for (text, part) in [
            ("p99", "no <, <=, > or >="),
            ("p98<1us", "\"p98\" is no metric; use one of: p50, p99, p999, max"),
            ("p99<", "the value is not a number"),
            ("p99<20", "p99 takes a unit of ns, us, ms or s"),
            ("p99<20GB/s", "p99 takes a unit of ns"),
            ("rate>5x", "rate takes no unit, or k or M"),
            ("bandwidth>5", "bandwidth takes a unit of MB/s or GB/s"),
            ("copy-hot>0.9GB/s", "copy-hot takes no unit"),
        ] {
            let error = text.parse::<Requirement>().unwrap_err();
            assert!(error.contains(part) && error.contains(text), "{part:?}: {error}");
        }
    }

    #[test]
    fn a_ratio_beyond_its_limit_is_not_measured() {
        for (metric, found, is_beaten) in [
            (Metric::LatencyToTcp, 0.272, true),
            (Metric::LatencyToTcp, 0.95, false),
            (Metric::LatencyToEcho, 2.0, false),
            (Metric::Stream, 1.045, false),
            (Metric::Stream, 1.2, true),
            (Metric::RateToTcp, 1.5, true),
            (Metric::Rate, 9e6, false),
            (Metric::P50, 300.0, false),
        ] {
            assert_eq!(metric.beaten(found).is_some(), is_beaten, "{metric:?} {found}");
        }
    }

    #[test]
    fn what_was_not_measured_is_neither_met_nor_missed() {
        let verdict = |found, met, reason: Option<&str>| Verdict {
            wanted: "rate>5M".to_owned(),
            found,
            text: "4.00 M/s".to_owned(),
            met,
            reason: reason.map(str::to_owned),
        };
        let disturbed = verdict(Some(4e6), None, Some(DISTURBED));
        assert_eq!(disturbed.word(), "UNMEASURED");
        let said = "rate>5M: not measured: 4.00 M/s found, but other programs ran on these cores; measure again on a quiet machine";
        assert_eq!(disturbed.to_string(), said);
        let json = serde_json::to_value(&disturbed).unwrap();
        assert_eq!((&json["met"], &json["reason"]), (&serde_json::Value::Null, &DISTURBED.into()));
        assert_eq!(verdict(Some(4e6), Some(false), None).word(), "MISSED");
        assert_eq!(verdict(Some(6e6), Some(true), None).word(), "met");
        assert_eq!(verdict(None, Some(false), None).word(), "UNMEASURED");
    }

    #[test]
    fn signs_compare_as_they_are_written() {
        for (text, [less, same, more]) in [
            ("rate<5", [true, false, false]),
            ("rate<=5", [true, true, false]),
            ("rate>5", [false, false, true]),
            ("rate>=5", [false, true, true]),
        ] {
            let wanted: Requirement = text.parse().unwrap();
            let holds = |found| wanted.comparison.holds(found, wanted.value);
            assert_eq!([holds(4.0), holds(5.0), holds(6.0)], [less, same, more], "{text}");
        }
    }
}
