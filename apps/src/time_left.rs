//! How long rounds of about the same length still take, as a progress bar shows it.

use std::fmt::Write;
use std::time::Duration;

use indicatif::{HumanDuration, ProgressState, ProgressStyle};

/// The time that `all - done` rounds take, where `done` took `elapsed`. Before the first round has ended, each takes `expected`; `None`
/// if that is not known either.
fn time_left(elapsed: Duration, done: u64, all: u64, expected: Option<Duration>) -> Option<Duration> {
    let each = if done > 0 { elapsed.div_f64(done as f64) } else { expected? };
    Some(each.mul_f64(all.saturating_sub(done) as f64))
}

/// The style of this template, whose `{left}` is `, ETA 12s`, or nothing as long as it is not known. `later` rounds follow those of the
/// bar.
#[must_use]
pub(crate) fn style(template: &str, later: u64, expected: Option<Duration>) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.with_key("left", move |state: &ProgressState, out: &mut dyn Write| {
        let all = state.len().unwrap_or(0) + later;
        if let Some(left) = time_left(state.elapsed(), state.pos(), all, expected) {
            // A bar cannot say that it could not be written.
            let _ = write!(out, ", ETA {:#}", HumanDuration(left));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_round_is_expected_and_the_others_follow_those_that_ended() {
        let seconds = Duration::from_secs;
        assert_eq!(time_left(seconds(0), 0, 3, Some(seconds(10))), Some(seconds(30)));
        assert_eq!(time_left(seconds(12), 1, 3, Some(seconds(10))), Some(seconds(24)));
        assert_eq!(time_left(seconds(30), 3, 3, Some(seconds(10))), Some(seconds(0)));
        assert_eq!(time_left(seconds(0), 0, 3, None), None);
        assert_eq!(time_left(seconds(8), 2, 6, None), Some(seconds(16)));
    }
}
