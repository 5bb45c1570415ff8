//! What signals do to the server: end it in order, or make it print its counters.
//!
//! | signal | effect |
//! |---|---|
//! | TERM, INT, QUIT | a graceful stop; a second of these ends the process at once |
//! | HUP | a graceful stop, unless it was ignored when the process started (`nohup`) |
//! | USR1 | prints the counters, and goes on |
//! | USR2 | a line in the log |
//! | PIPE | nothing: a write to a closed pipe is an error of that write |

use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use stag::nfs::server::SharedLocking;
use stag::rpc::{Engine, Services};
use stag::runtime::{Poller, Receiver, Sender, StopFlag, mailbox};

use super::fabric::Served;
use super::report::{self, Snapshot};
use crate::failure::Failure;
use crate::output::Output;

/// Requests for counters that wait at most: more say nothing more.
const REQUESTS_MAX: usize = 4;

/// Handles signals from now on, in a thread of its own. What arrives wants the counters.
pub(super) fn handle(stop: &StopFlag) -> Result<Receiver<()>, Failure> {
    let fail = |error: io::Error| Failure::run(format_args!("signal handlers: {error}"));
    let (sender, receiver) = mailbox(REQUESTS_MAX).map_err(fail)?;
    let mut handled = vec![SIGTERM, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2];
    if !is_ignored(SIGHUP) {
        handled.push(SIGHUP);
    }
    let mut signals = Signals::new(handled).map_err(fail)?;
    let stop = stop.clone();
    let thread = thread::Builder::new().name("signals".to_owned());
    let thread = thread.spawn(move || {
        let mut is_told_to_end = false;
        signals.forever().for_each(|signal| act(signal, &mut is_told_to_end, &stop, &sender));
    });
    thread.map(drop).map_err(fail)?;
    Ok(receiver)
}

fn act(signal: i32, is_told_to_end: &mut bool, stop: &StopFlag, counters: &Sender<()>) {
    match signal {
        // A full mailbox has requests that are not answered yet; one that is closed belongs to a server that has ended.
        SIGUSR1 => drop(counters.send(())),
        SIGUSR2 => tracing::warn!(
            "SIGUSR2 has no meaning here: SIGUSR1 prints the counters, SIGTERM and SIGHUP stop the server in order"
        ),
        // A terminal that closes may send it twice, and systemd sends it behind a TERM: no reason to hurry.
        SIGHUP => stop.request(),
        _ if *is_told_to_end => {
            eprintln!("stagd: stopped at once by a second signal; Calls may be unanswered");
            std::process::exit(1);
        }
        _ => {
            *is_told_to_end = true;
            stop.request();
        }
    }
}

/// Whether this process was started with `signal` ignored.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal - 1)) != 0
}

/// Prints counters, in a thread of its own: the reactor does not wait for whoever reads them.
pub(super) struct Printer {
    sender: SyncSender<Snapshot>,
    thread: JoinHandle<()>,
}

impl Printer {
    /// Starts the thread.
    pub(super) fn start(json: bool) -> Result<Printer, Failure> {
        let (sender, receiver) = mpsc::sync_channel::<Snapshot>(REQUESTS_MAX);
        let thread = thread::Builder::new().name("counters".to_owned());
        let thread = thread.spawn(move || {
            let mut out = Output::new(json);
            for snapshot in receiver {
                // A server goes on without readers.
                let _ = report::counters(&snapshot, &mut out);
            }
        });
        let thread = thread.map_err(|error| Failure::run(format_args!("a thread for counters: {error}")))?;
        Ok(Printer { sender, thread })
    }

    /// Ends when everything is printed.
    pub(super) fn finish(self) {
        drop(self.sender);
        // Nothing in it panics; if it did, there would be nothing left to print.
        let _ = self.thread.join();
    }
}

/// The engine, and requests for its counters.
pub(super) struct Observed<'a, P: Served, S> {
    pub(super) engine: &'a mut Engine<P, S>,
    pub(super) requests: Receiver<()>,
    pub(super) locking: SharedLocking,
    pub(super) printer: &'a Printer,
}

impl<P: Served, S: Services> Observed<'_, P, S> {
    #[cold]
    fn answer(&mut self, now: Duration) {
        while self.requests.receive().is_some() {
            let snapshot = Snapshot::take(self.engine, &self.locking, now);
            if let Err(TrySendError::Full(_)) = self.printer.sender.try_send(snapshot) {
                tracing::warn!("counters are not printed: nobody reads those that were asked for before");
            }
        }
    }
}

impl<P: Served, S: Services> Poller for Observed<'_, P, S> {
    #[inline]
    fn poll(&mut self, now: Duration) -> usize {
        let events = self.engine.poll(now);
        if !self.requests.is_empty() {
            self.answer(now);
        }
        events
    }

    fn next_timeout(&self) -> Option<Duration> {
        self.engine.next_timeout()
    }

    fn arm(&mut self) -> bool {
        self.requests.arm() && self.engine.arm()
    }

    fn disarm(&mut self) {
        self.requests.disarm();
        self.engine.disarm();
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        self.engine.descriptors(out);
        out.push(self.requests.descriptor());
    }

    fn stop(&mut self, now: Duration) {
        self.engine.stop(now);
    }

    fn is_drained(&self) -> bool {
        self.engine.is_drained()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_known() {
        // Rust's runtime ignores SIGPIPE before `main`.
        assert!(is_ignored(signal_hook::consts::SIGPIPE));
        assert!(!is_ignored(SIGUSR2));
    }
}
