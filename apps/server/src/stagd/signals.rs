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

use std::fs;
use std::io;
use std::sync::{Arc, Weak};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use stag_runtime::{Sender, StopFlag};

use super::live::{LiveSettings, Reloaded};
use super::request::{Request, SnapshotSender};
use crate::failure::CommandFailure;
use crate::logging;

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
