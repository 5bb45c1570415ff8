//! Times and counts, as the flags take them.

use std::str::FromStr;
use std::time::Duration;

/// A time: `50ms`, `2s`, `1.5s`; seconds without a unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Span(pub(crate) Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Span, String> {
        let (number, unit) = split(text);
        let nanoseconds = if unit.is_empty() { Some(1e9) } else { nanoseconds(unit) };
        let seconds = number.zip(nanoseconds).map(|(number, unit)| number * unit / 1e9);
        seconds
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            // A day, so that sums of it do not overflow.
            .filter(|span| *span <= Duration::from_secs(86_400))
            .map(Span)
            .ok_or_else(|| format!("{text:?} is not a time; write 50ms, 2s, at most 86400s"))
    }
}

/// A count: `1000`, `50k`, `1.5M`; here k is 1000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number(pub(super) u64);

impl FromStr for Number {
    type Err = String;

    fn from_str(text: &str) -> Result<Number, String> {
        let (number, unit) = split(text);
        let count = number.zip(thousands(unit)).map(|(number, unit)| number * unit);
        // Up to here a float is exact.
        let count = count.filter(|count| (1.0..=9e15).contains(count) && count.fract() == 0.0);
        count
            .map(|count| Number(count as u64))
            .ok_or_else(|| format!("{text:?} is not a number of Calls; write 1000, 50k, 2M"))
    }
}

/// The number that a text begins with, if it is one, and the rest.
pub(super) fn split(text: &str) -> (Option<f64>, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number.parse().ok(), unit.trim())
}

/// The nanoseconds in a unit of time.
pub(super) fn nanoseconds(unit: &str) -> Option<f64> {
    match unit {
        "ns" => Some(1.0),
        "us" | "µs" => Some(1e3),
        "ms" => Some(1e6),
        "s" => Some(1e9),
        _ => None,
    }
}

/// What a factor of a count stands for.
pub(super) fn thousands(unit: &str) -> Option<f64> {
    match unit {
        "" => Some(1.0),
        "k" | "K" => Some(1e3),
        "M" => Some(1e6),
        "G" => Some(1e9),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_counts_are_read() {
        for (text, milliseconds) in [("50ms", 50), ("2s", 2000), ("1.5s", 1500), ("3", 3000), ("0s", 0)] {
            assert_eq!(text.parse(), Ok(Span(Duration::from_millis(milliseconds))), "{text}");
        }
        for text in ["", "ms", "-1s", "1h", "1.2.3s", "1e3s", "90000s"] {
            assert!(text.parse::<Span>().unwrap_err().contains("is not a time; write 50ms"), "{text}");
        }
        for (text, count) in [("1", 1), ("50k", 50_000), ("1.5M", 1_500_000)] {
            assert_eq!(text.parse(), Ok(Number(count)), "{text}");
        }
        for text in ["", "0", "-1", "1.5", "1Q", "99999999999G"] {
            assert!(text.parse::<Number>().unwrap_err().contains("is not a number of Calls"), "{text}");
        }
    }
}
