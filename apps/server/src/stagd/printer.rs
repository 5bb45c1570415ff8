//! Prints counters and the last words.

use std::collections::VecDeque;
use std::sync::{Arc, Weak, mpsc};
use std::thread::{self, JoinHandle};

use stag_runtime::{CoreId, ReactorId};

use super::report;
use super::request::{REQUESTS_MAX, SnapshotSender};
use super::snapshot::Snapshot;
use crate::failure::CommandFailure;
use crate::logging::FLUSH_MAX;
use crate::output::{Output, within};

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
