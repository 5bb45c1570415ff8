//! Signals: stop the server in order, or print its counters.
//!
//! | signal | effect |
//! |---|---|
//! | TERM, INT, QUIT | a graceful stop; a second of these ends the process at once |
//! | HUP | reads the configuration file again; without one, a graceful stop. Nothing if it was ignored when the process started
//! (`nohup`) |
//! | USR1 | prints the counters, and goes on |
//! | USR2 | a line in the log |
//! | PIPE | nothing: a write to a closed pipe is an error of that write |

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::sync::mpsc;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use stag_runtime::{CoreId, ReactorId, Receiver, Sender, StopFlag, mailbox};

use super::asking::{EvictedSender, HoldingsSender, RecordingSender, SnapshotSender};
use super::live::{ChangedSender, LiveChange, LiveSettings, Reloaded};
use super::report::{self, Snapshot};
use crate::failure::CommandFailure;
use crate::logging::{self, FLUSH_MAX};
use crate::output::{Output, within};

/// Requests for counters that wait at most: more say nothing more.
const REQUESTS_MAX: usize = 4;

/// A request to a reactor.
#[derive(Clone, Debug)]
pub(super) enum Request {
    /// All reactors are made: the one that listens says so.
    Announce,
    /// What it counts, to be sent there.
    Counters(SnapshotSender),
    /// The end of all connections of this client. How many there were is sent there.
    Evict(String, EvictedSender),
    /// Who holds which opens and locks, to be sent there.
    Holdings(HoldingsSender),
    /// What is recorded there, to be sent there.
    Record(RecordingSender),
    /// The end of this client of NFS version 4. Whether it was known there is sent there: 1 or 0.
    EvictClient(u64, EvictedSender),
    /// A change of what is served. What became of it is sent there.
    Change(LiveChange, ChangedSender),
}

/// Both ends of each reactor's mailbox.
pub(super) type Mailboxes = (Vec<Sender<Request>>, Vec<Receiver<Request>>);

/// A mailbox for each reactor, with the first request in it.
pub(super) fn mailboxes(reactors: usize) -> Result<Mailboxes, CommandFailure> {
    let (mut senders, mut receivers) = (Vec::new(), Vec::new());
    for _ in 0..reactors {
        let (sender, receiver) = mailbox(REQUESTS_MAX)
            .map_err(|error| CommandFailure::run(format_args!("a mailbox of a reactor: {error}")))?;
        // Read in its first pass, which begins when all are made.
        let _ = sender.send(Request::Announce);
        senders.push(sender);
        receivers.push(receiver);
    }
    Ok((senders, receivers))
}

/// Handles signals from now on, in a thread of its own. What is asked of the reactors goes to their mailboxes; what they count
/// goes to `printer`. `live` reads the configuration file again.
pub(super) fn handle(
    stop: &StopFlag,
    senders: Vec<Sender<Request>>,
    printer: Weak<SnapshotSender>,
    live: Arc<LiveSettings>,
) -> Result<(), CommandFailure> {
    let fail = |error: io::Error| CommandFailure::run(format_args!("signal handlers: {error}"));
    let mut handled = vec![SIGTERM, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2];
    if !is_ignored(SIGHUP) {
        handled.push(SIGHUP);
    }
    let mut signals = Signals::new(handled).map_err(fail)?;
    let stop = stop.clone();
    let thread = thread::Builder::new().name("signals".to_owned());
    let thread = thread.spawn(move || {
        let mut is_told_to_end = false;
        for signal in signals.forever() {
            act(signal, &mut is_told_to_end, &stop, (&senders, &printer, &live));
        }
    });
    thread.map(drop).map_err(fail)
}

fn act(
    signal: i32,
    is_told_to_end: &mut bool,
    stop: &StopFlag,
    (reactors, printer, live): (&[Sender<Request>], &Weak<SnapshotSender>, &Arc<LiveSettings>),
) {
    match signal {
        SIGUSR1 => {
            // Without a printer the server has ended.
            let Some(printer) = printer.upgrade() else { return };
            for reactor in reactors {
                // A full mailbox has requests that are not answered yet.
                let _ = reactor.send(Request::Counters((*printer).clone()));
            }
        }
        SIGUSR2 => tracing::warn!(
            "SIGUSR2 has no meaning here: SIGUSR1 prints the counters, SIGHUP reads the configuration file again, and SIGTERM \
             stops the server in order"
        ),
        SIGHUP if live.has_file() => {
            let live = live.clone();
            // A core that hangs holds it up, and must not hold up a stop.
            let thread = thread::Builder::new().name("reload".to_owned()).spawn(move || reload(&live));
            if let Err(error) = thread {
                tracing::warn!("the configuration file is not read again: no thread for it (clone): {error}");
            }
        }
        // A terminal that closes may send it twice, and systemd sends it behind a TERM: no reason to hurry.
        SIGHUP => stop.request(),
        _ if *is_told_to_end => {
            logging::notice("stopped at once by a second signal; Calls may be unanswered");
            std::process::exit(1);
        }
        _ => {
            *is_told_to_end = true;
            stop.request();
        }
    }
}

/// Reads the configuration file again, and logs the changes and the failures.
fn reload(live: &LiveSettings) {
    match live.reload() {
        Ok(Reloaded { changed, restart }) => {
            let changed = if changed.is_empty() { "nothing".to_owned() } else { changed.join("; ") };
            logging::notice(&format!("the configuration file was read again; changed: {changed}"));
            if !restart.is_empty() {
                logging::notice(&format!("needs a restart: {}", restart.join("; ")));
            }
        }
        Err(problem) => {
            logging::notice(&format!("the configuration file changes nothing: {problem}"));
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

/// Prints counters, in a thread of its own: the reactors do not wait for a slow reader.
pub(super) struct Printer {
    sender: Arc<SnapshotSender>,
    thread: JoinHandle<()>,
}

impl Printer {
    /// Starts the thread, which prints the counters of the reactors on these cores together.
    pub(super) fn start(json: bool, cores: Vec<CoreId>) -> Result<Printer, CommandFailure> {
        let (sender, receiver) = mpsc::sync_channel::<(ReactorId, Snapshot)>(REQUESTS_MAX * cores.len());
        let thread = thread::Builder::new().name("counters".to_owned());
        let thread = thread.spawn(move || {
            let mut out = Output::new(json);
            let mut waiting: Vec<VecDeque<Snapshot>> = cores.iter().map(|_| VecDeque::new()).collect();
            for (reactor, snapshot) in receiver {
                waiting[reactor.index()].push_back(snapshot);
                if waiting.iter().all(|queue| !queue.is_empty()) {
                    let all: Vec<Snapshot> = waiting.iter_mut().filter_map(VecDeque::pop_front).collect();
                    // A server goes on without readers.
                    let _ = report::counters(&cores, &all, &mut out);
                }
            }
        });
        let thread =
            thread.map_err(|error| CommandFailure::run(format_args!("a thread for counters: {error}")))?;
        Ok(Printer { sender: Arc::new(sender), thread })
    }

    /// Where a reactor's counters go, until the printer finishes.
    pub(super) fn sender(&self) -> Weak<SnapshotSender> {
        Arc::downgrade(&self.sender)
    }

    /// When all reactors have ended: lets `tell` print the last words, behind what is still to be printed. A reader that does not
    /// read holds the end up for [`FLUSH_MAX`] at most; the rest is lost then.
    pub(super) fn finish(
        self,
        tell: impl FnOnce() -> Result<(), CommandFailure> + Send + 'static,
    ) -> Result<(), CommandFailure> {
        let Printer { sender, thread } = self;
        drop(sender);
        let told = within(FLUSH_MAX, move || {
            // Nothing in it panics; if it did, there would be nothing left to print.
            let _ = thread.join();
            tell()
        });
        told.unwrap_or_else(|| {
            tracing::warn!("standard output: its reader does not read; the last lines are lost");
            Ok(())
        })
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
