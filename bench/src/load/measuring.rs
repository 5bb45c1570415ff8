//! The loop of a measurement: Calls kept outstanding, or begun by the clock, and their times.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Result, bail};
use hdrhistogram::Histogram;
use stag_rpc::ConnectionEvent;

use super::worked_files::Names;
use super::{Client, IntervalSample, LARGE, Measured, Observer, Starts, TIMEOUT};
use crate::arrivals::ArrivalClock;
use crate::cpu::{ThreadClock, UsedTime};
use crate::disturbance::Contention;
use crate::opened::Opened;

/// The longest latency that is told from longer ones, in nanoseconds.
const LATENCY_MAX: u64 = 60_000_000_000;

/// A histogram of latencies in nanoseconds, to three digits.
fn latencies() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, LATENCY_MAX, 3)?)
}

/// Latencies of the intervals of a round, told one after the other.
struct Intervals<'o> {
    observer: &'o Observer,
    len: Duration,
    /// When the present one ends. `Duration::MAX` if there are none.
    end: Duration,
    index: usize,
    latency: Histogram<u64>,
}

impl<'o> Intervals<'o> {
    fn new(observer: &'o Observer, len: Option<Duration>, start: Duration) -> Result<Intervals<'o>> {
        let len = len.filter(|_| observer.intervals.is_some()).unwrap_or(Duration::MAX);
        Ok(Intervals { observer, len, end: start.saturating_add(len), index: 0, latency: latencies()? })
    }

    #[inline]
    fn record(&mut self, latency: u64) {
        if self.end != Duration::MAX {
            self.latency.saturating_record(latency);
        }
    }

    /// Tells those that ended by `now`.
    #[inline]
    fn advance(&mut self, now: Duration) {
        while now >= self.end && self.end != Duration::MAX {
            self.tell(self.len);
            self.end = self.end.saturating_add(self.len);
        }
    }

    /// Tells what is left at `end`, if that is a tenth of an interval at least: of less, a rate would say nothing.
    fn finish(&mut self, end: Duration) {
        if self.end == Duration::MAX || self.latency.is_empty() {
            return;
        }
        let took = end.saturating_sub(self.end.saturating_sub(self.len));
        if took * 10 >= self.len {
            self.tell(took);
        }
    }

    #[cold]
    fn tell(&mut self, took: Duration) {
        if let Some(sender) = &self.observer.intervals {
            let sample = IntervalSample { index: self.index, took, latency: self.latency.clone() };
            // Who looks at it may be gone.
            let _ = sender.send(sample);
        }
        self.latency.reset();
        self.index += 1;
    }
}

/// Lanes without a Call, and what makes one begin.
struct Idle {
    /// In closed loop the last one that ended is the next to begin; in open loop they take turns, so that all connections do.
    lanes: VecDeque<usize>,
    arrivals: Option<ArrivalClock>,
    starts: Starts,
}

impl<P: Opened> Client<'_, P> {
    /// Begins Calls on lanes that wait, as far as there are credits, and says how many.
    #[inline]
    fn begin_waiting(&mut self, idle: &mut Idle, now: Duration, is_measured: bool) -> Result<usize> {
        if idle.arrivals.is_some() {
            return self.begin_due(idle, now, is_measured);
        }
        let mut begun = 0;
        while let Some(&lane) = idle.lanes.back() {
            if self.is_out_of_names() || !self.has_credit(lane) {
                break;
            }
            idle.lanes.pop_back();
            self.begin(lane)?;
            begun += 1;
        }
        if begun > 0 {
            self.engine.ring_doorbells();
        }
        Ok(begun)
    }

    /// Begins the Calls that are due, as far as there are lanes and credits for them, and says how many.
    fn begin_due(&mut self, idle: &mut Idle, now: Duration, is_measured: bool) -> Result<usize> {
        let Idle { lanes, arrivals: Some(arrivals), starts } = idle else { return Ok(0) };
        let mut begun = 0;
        while arrivals.is_due(now) && !self.is_out_of_names() {
            // The connection whose turn it is may have no credit while another one has.
            let Some(at) = lanes.iter().position(|lane| self.has_credit(*lane)) else { break };
            let Some(lane) = lanes.remove(at) else { break };
            let due = arrivals.take();
            self.lanes[lane].due = due;
            if is_measured {
                starts.late += u64::from(arrivals.is_late(due, now));
                starts.delay_max = starts.delay_max.max(now.saturating_sub(due));
            }
            self.begin(lane)?;
            begun += 1;
        }
        if begun > 0 {
            self.engine.ring_doorbells();
        }
        Ok(begun)
    }

    #[inline]
    fn has_credit(&self, lane: usize) -> bool {
        self.engine.credits_available(self.connections[lane / self.scenario.depth].id) > 0
    }

    /// Keeps Calls outstanding, or begins them by the clock, until the time is over.
    pub(super) fn measure(&mut self, observer: &Observer) -> Result<Measured> {
        let scenario = self.scenario;
        let mut latency = latencies()?;
        let mut shares = scenario.mix.iter().map(|_| latencies()).collect::<Result<Vec<_>>>()?;
        let start = self.clock.now();
        let client = (self.number, scenario.client_cores().len());
        let mut idle = Idle {
            // A server grants more as it sees more use: lanes wait until there are credits for them.
            lanes: (0..self.lanes.len()).rev().collect(),
            arrivals: scenario.arrivals.map(|arrivals| ArrivalClock::new(&arrivals, client, start)),
            starts: Starts::default(),
        };
        let is_open = idle.arrivals.is_some();
        let (measure_from, mut measure_to) =
            (start + scenario.warm_up, start + scenario.warm_up + scenario.duration);
        let mut intervals = Intervals::new(observer, scenario.interval, measure_from)?;
        let (mut calls, mut total) = (0, 0u64);
        let mut outstanding = 0usize;
        let mut ending = false;
        let mut last = start;
        // While names are renewed, no time goes by.
        let mut paused = Duration::ZERO;
        let thread = ThreadClock::of_this_thread();
        let (mut busy, mut before) = (Duration::ZERO, None);
        let (mut used, mut server) = (UsedTime::default(), None);
        let (mut pass_began, mut has_worked) = (start, false);
        loop {
            let real = self.clock.now();
            if has_worked {
                busy += real.saturating_sub(pass_began);
            }
            (pass_began, has_worked) = (real, false);
            self.poll(real);
            let now = real.saturating_sub(paused);
            let is_measured = now >= measure_from && !ending;
            if is_measured && before.is_none() {
                let own = UsedTime { cpu: thread.and_then(ThreadClock::read).unwrap_or_default(), busy };
                before = Some((own, observer.server.as_ref().and_then(|server| server.read())));
            }
            intervals.advance(now);
            let mut any = false;
            while let Some(done) = self.engine.completed() {
                any = true;
                outstanding -= 1;
                let lane = done.user as usize;
                if is_measured {
                    calls += 1;
                    total += 1;
                    let since =
                        if is_open { now.saturating_sub(self.lanes[lane].due) } else { real - done.started };
                    let nanoseconds = since.as_nanos() as u64;
                    latency.saturating_record(nanoseconds);
                    intervals.record(nanoseconds);
                    if let Some(share) = shares.get_mut(self.lanes[lane].share) {
                        share.saturating_record(nanoseconds);
                    }
                }
                last = now;
                self.end(lane, done)?;
                idle.lanes.push_back(lane);
                // To look at much data takes long: meanwhile the server has the next Call. Of short Calls several leave together,
                // which costs less than one at a time.
                if scenario.size >= LARGE && !ending && now < measure_to {
                    outstanding += self.begin_waiting(&mut idle, now, is_measured)?;
                }
            }
            if !ending && (now >= measure_to || scenario.count.is_some_and(|count| total >= count)) {
                measure_to = measure_to.min(now);
                ending = true;
                if let Some((own, theirs)) = before {
                    let cpu = thread.and_then(ThreadClock::read).unwrap_or_default();
                    used = UsedTime { cpu, busy }.since(own);
                    let after = observer.server.as_ref().and_then(|server| server.read());
                    server = after.zip(theirs).map(|(after, before)| after.since(before));
                }
                idle.starts.never = idle.arrivals.as_ref().map_or(0, |arrivals| arrivals.backlog(measure_to));
                intervals.finish(measure_to);
            }
            if ending {
                if outstanding == 0 {
                    break;
                }
                continue;
            }
            if outstanding == 0 && self.is_out_of_names() {
                self.renew_names()?;
                paused += self.clock.now().saturating_sub(real);
            }
            let begun = self.begin_waiting(&mut idle, now, is_measured)?;
            if outstanding == 0 && begun > 0 {
                last = now;
            }
            outstanding += begun;
            has_worked = any || begun > 0;
            if !any {
                if let Some(ConnectionEvent::Closed { reason, .. }) = self.engine.connection_event() {
                    bail!("the connection ended: {reason:?}");
                }
                // In open loop there may be nothing to do for long.
                if now > last + TIMEOUT && (outstanding > 0 || !is_open) {
                    bail!("no Call ended for {TIMEOUT:?}");
                }
                if scenario.may_sleep {
                    std::thread::yield_now();
                }
            }
        }
        let first = self.connections[0].id;
        let thresholds = self
            .engine
            .parameters(first)
            .map_or((0, 0), |agreed| (agreed.call_threshold, agreed.reply_threshold));
        Ok(Measured {
            calls,
            took: measure_to.saturating_sub(measure_from),
            latency,
            shares,
            starts: idle.starts,
            client: used,
            server,
            entries_per_call: self.names.as_ref().map_or(0.0, Names::entries_per_call),
            statistics: *self.engine.statistics(),
            credits_granted: self.engine.credits_granted(first),
            contention: Contention::of_this_thread(),
            thresholds,
            pages: self.arena.page_size().to_string(),
            notes: self.arena.notes().to_vec(),
            device: self.engine.provider().device(),
            congestion_control: self.engine.provider().congestion_control_of(first),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn each_interval_is_told_once_and_the_last_with_its_length() {
        let (sender, receiver) = mpsc::channel();
        let observer = Observer { server: None, intervals: Some(sender) };
        let ms = Duration::from_millis;
        let mut intervals = Intervals::new(&observer, Some(ms(100)), ms(50)).unwrap();
        intervals.advance(ms(100));
        intervals.record(7);
        intervals.advance(ms(351));
        intervals.record(9);
        intervals.record(9);
        intervals.finish(ms(380));
        let told: Vec<_> =
            receiver.try_iter().map(|sample| (sample.index, sample.took, sample.latency.len())).collect();
        assert_eq!(told, [(0, ms(100), 1), (1, ms(100), 0), (2, ms(100), 0), (3, ms(30), 2)]);
    }

    /// The end of a round comes a moment after that of its last interval.
    #[test]
    fn a_moment_is_no_interval() {
        let (sender, receiver) = mpsc::channel();
        let observer = Observer { server: None, intervals: Some(sender) };
        let ms = Duration::from_millis;
        let mut intervals = Intervals::new(&observer, Some(ms(100)), ms(0)).unwrap();
        intervals.record(7);
        intervals.advance(ms(100));
        intervals.record(9);
        intervals.finish(ms(101));
        assert_eq!(receiver.try_iter().map(|sample| sample.took).collect::<Vec<_>>(), [ms(100)]);
    }

    #[test]
    fn without_intervals_nothing_is_told() {
        let observer = Observer::default();
        let mut intervals =
            Intervals::new(&observer, Some(Duration::from_millis(1)), Duration::ZERO).unwrap();
        intervals.record(7);
        intervals.advance(Duration::from_secs(1));
        intervals.finish(Duration::from_secs(2));
        assert!(intervals.latency.is_empty());
    }
}
