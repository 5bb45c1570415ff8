//! Predicts when the answers of other threads are due, so that the reactor is awake when they come.
//!
//! Waking a sleeping thread takes the scheduler some tens of microseconds. If the last answers took about the same time,
//! the next is due in a short window; the reactor wakes up by a timer before that, and polls until it is over. If the
//! times vary, or there is one core only, it sleeps until the answer wakes it.

use std::time::Duration;

use arrayvec::ArrayVec;

/// How long before an answer is expected the reactor wakes up: its timer may be late by as much.
const LEAD: Duration = Duration::from_micros(100);

/// How long it goes on polling after that.
const TAIL: Duration = Duration::from_micros(50);

/// A window that is so short is worth it for any answer.
const WINDOW_SHORT: Duration = Duration::from_micros(300);

/// A longer one is worth it up to this, and up to a quarter of the time that answers take.
const WINDOW_MAX: Duration = Duration::from_micros(600);

/// Calls that are watched at once. More keep a reactor awake by themselves.
const WATCHED_MAX: usize = 8;

/// What is known of how long answers take.
#[derive(Debug)]
pub(crate) struct AnswerForecast {
    /// Whether there is another core that the answer can be made on while this one polls.
    can_poll: bool,
    /// How long answers take on average, and how far from that they are on average; `None` before the first.
    usual: Option<(Duration, Duration)>,
    /// When the Calls were deferred whose answers are due.
    watched: ArrayVec<Duration, WATCHED_MAX>,
}

impl AnswerForecast {
    pub(crate) fn new(can_poll: bool) -> AnswerForecast {
        AnswerForecast { can_poll, usual: None, watched: ArrayVec::new() }
    }

    /// A Call is deferred.
    pub(crate) fn watch(&mut self, now: Duration) {
        // When it is full, this answer is not waited for.
        let _ = self.watched.try_push(now);
    }

    /// The answer came to a Call that was deferred at `since`.
    pub(crate) fn observe(&mut self, since: Duration, now: Duration) {
        if let Some(at) = self.watched.iter().position(|watched| *watched == since) {
            self.watched.remove(at);
        }
        let took = now.saturating_sub(since);
        let Some((mean, deviation)) = &mut self.usual else {
            self.usual = Some((took, took / 2));
            return;
        };
        // One that is far off says little: the thread was held up.
        let error = took.abs_diff(*mean).min(4 * *deviation + LEAD);
        if took < *mean {
            *mean -= error / 8
        } else {
            *mean += error / 8
        }
        *deviation = (*deviation * 3 + error) / 4;
    }

    /// When, after a Call is deferred, its answer is expected: from and until.
    fn window(&self) -> Option<(Duration, Duration)> {
        let (mean, deviation) = self.usual.filter(|_| self.can_poll)?;
        let from = mean.saturating_sub(2 * deviation + LEAD);
        let until = mean + 2 * deviation + TAIL;
        let limit = (mean / 4).clamp(WINDOW_SHORT, WINDOW_MAX);
        (until - from <= limit).then_some((from, until))
    }

    /// Whether an answer is expected at this instant: polling finds it sooner than sleep.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        let Some((from, until)) = self.window() else { return false };
        self.watched.iter().any(|since| (*since + from..*since + until).contains(&now))
    }

    /// When the next answer is expected after `now`.
    pub(crate) fn next_due(&self, now: Duration) -> Option<Duration> {
        let (from, _) = self.window()?;
        self.watched.iter().map(|since| *since + from).filter(|due| *due > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    /// After answers that took these numbers of microseconds, one a second.
    fn after(can_poll: bool, answers: impl IntoIterator<Item = u64>) -> (AnswerForecast, Duration) {
        let (mut forecast, mut now) = (AnswerForecast::new(can_poll), Duration::ZERO);
        for took in answers {
            now += Duration::from_secs(1);
            forecast.watch(now);
            forecast.observe(now, now + us(took));
        }
        now += Duration::from_secs(1);
        forecast.watch(now);
        (forecast, now)
    }

    #[test]
    fn an_answer_that_takes_as_long_as_the_last_ones_is_awaited_awake() {
        let answers = (0..40).map(|turn| 5000 + turn % 3 * 10);
        let (mut forecast, asked) = after(true, answers);
        let due = forecast.next_due(asked).expect("it is regular");
        assert!((us(4700)..us(4950)).contains(&(due - asked)), "{:?}", due - asked);
        assert!(!forecast.is_due(asked) && !forecast.is_due(due - us(1)), "until then it may sleep");
        assert!(forecast.is_due(due) && forecast.is_due(asked + us(5020)));
        assert!(!forecast.is_due(due + WINDOW_MAX), "and if it does not come");
        assert_eq!(forecast.next_due(due), None, "a time in the past would forbid sleep");
        forecast.observe(asked, asked + us(5000));
        assert_eq!((forecast.next_due(asked), forecast.is_due(asked + us(5000))), (None, false), "it came");
    }

    #[test]
    fn one_that_was_held_up_changes_little() {
        let (forecast, asked) = after(true, (0..40).map(|turn| if turn == 30 { 900_000 } else { 5000 }));
        assert!(forecast.is_due(asked + us(5000)));
    }

    #[test]
    fn it_sleeps_where_polling_helps_nobody() {
        let (single, asked) = after(false, [5000; 40]);
        assert_eq!((single.next_due(asked), single.is_due(asked + us(5000))), (None, false), "one core");
        let (varied, asked) = after(true, (0..40).map(|turn| 1000 + turn % 7 * 3000));
        assert_eq!(varied.next_due(asked), None, "answers that take now long and now short");
        let (first, asked) = after(true, []);
        assert_eq!(first.next_due(asked), None, "nothing is known");
    }

    #[test]
    fn more_calls_than_are_watched_are_no_matter() {
        let (mut forecast, asked) = after(true, [100; 40]);
        for n in 0..20 {
            forecast.watch(asked + us(n));
        }
        for n in (0..20).rev() {
            forecast.observe(asked + us(n), asked + us(100 + n));
        }
        forecast.observe(asked, asked + us(100));
        assert_eq!((forecast.next_due(Duration::ZERO), forecast.watched.len()), (None, 0));
    }
}
