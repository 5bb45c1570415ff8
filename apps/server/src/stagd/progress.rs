//! A line of progress for a server that needs longer than a second until it is ready.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::failure::CommandFailure;
use crate::output::Output;
use crate::values::Size;

/// How long `stagd` prepares its memory before it says so.
pub(super) const QUIET: Duration = Duration::from_secs(1);

/// Runs `prepare`, which makes `len` bytes of memory ready, and prints a line once it has taken longer than `quiet`.
/// (Not with `--json`: a program needs no patience.) Returns what `prepare` made, or its error.
pub(super) fn tell<T: Send>(
    out: &mut Output,
    quiet: Duration,
    len: u64,
    prepare: impl FnOnce() -> Result<T, CommandFailure> + Send,
) -> Result<T, CommandFailure> {
    let (done, waiter) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let work = move || {
            // Dropped when the memory is there, and when making it panics.
            let _done = done;
            prepare()
        };
        let work = thread::Builder::new().name("memory".to_owned()).spawn_scoped(scope, work);
        let work =
            work.map_err(|error| CommandFailure::run(format_args!("a thread for the memory: {error}")))?;
        let mut printed = Ok(());
        if waiter.recv_timeout(quiet) == Err(RecvTimeoutError::Timeout) {
            let size = Size(len);
            let line =
                format_args!("preparing  {size} of memory: every page is touched before the server is ready");
            printed = out.line(line).and_then(|()| out.flush());
        }
        let made = work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        CommandFailure::unless_output_closed(printed)?;
        Ok(made)
    })
}
