//! Waits for the end of all reactors, and tells how they ended.

use std::sync::{Mutex, OnceLock, PoisonError};

use stag_runtime::CoreId;

use super::ended::{Ended, judge};
use super::printer::Printer;
use super::report::tell_end;
use crate::failure::CommandFailure;
use crate::output::Output;

/// What the reactors did until their end. The last one tells it, on its own thread: the kernel lets no thread end that waits for a
/// disk which stands still.
pub(super) struct Ends {
    waiting: Mutex<Waiting>,
    told: OnceLock<Result<(), CommandFailure>>,
    json: bool,
}

/// What the last one needs.
struct Waiting {
    /// Of each reactor, once it has ended.
    ended: Vec<Option<Ended>>,
    cores: Vec<CoreId>,
    /// Until it is told.
    printer: Option<Printer>,
}

impl Ends {
    pub(super) fn new(cores: Vec<CoreId>, printer: Printer, json: bool) -> Ends {
        let ended = cores.iter().map(|_| None).collect();
        let waiting = Waiting { ended, cores, printer: Some(printer) };
        Ends { waiting: Mutex::new(waiting), told: OnceLock::new(), json }
    }

    /// A reactor has ended.
    pub(super) fn add(&self, reactor: usize, ended: Ended) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.ended[reactor] = Some(ended);
        if waiting.ended.iter().all(Option::is_some)
            && let Some(printer) = waiting.printer.take()
        {
            let cores = std::mem::take(&mut waiting.cores);
            let all = waiting.ended.drain(..).flatten().collect();
            // It is told once.
            let _ = self.told.set(stopped(cores, all, printer, self.json));
        }
    }

    /// What came of telling it.
    pub(super) fn told(self) -> Result<(), CommandFailure> {
        self.told.into_inner().unwrap_or(Ok(()))
    }
}

/// Says what the reactors on these cores did. Fails if a buffer did not come back. Clients that held the server up until the
/// drain limit and were cut off then are no failure of the server's.
fn stopped(
    cores: Vec<CoreId>,
    mut all: Vec<Ended>,
    printer: Printer,
    json: bool,
) -> Result<(), CommandFailure> {
    if let Some(failure) = all.iter_mut().find_map(|ended| ended.failure.take()) {
        return printer.finish(|| Ok(())).and(Err(failure));
    }
    let (leaked, ledger) = judge(&cores, &all);
    let said = ledger.clone();
    let told = printer.finish(move || tell_end(&cores, &all, leaked, &said, &mut Output::new(json)));
    // What went wrong matters more than who hears of it.
    if leaked > 0 {
        return Err(CommandFailure::Run(ledger));
    }
    CommandFailure::unless_output_closed(told)
}
