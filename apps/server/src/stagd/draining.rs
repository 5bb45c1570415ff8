//! Drains the server: it takes no more connections, and stops when the last one has ended, or when the time is up.

use std::thread;
use std::time::Duration;

use stag_runtime::{Clock, StopFlag};

use super::asking::Reactors;

/// How often connections are counted.
const INTERVAL: Duration = Duration::from_millis(200);

/// Begins to drain. When it returns, no core takes a connection; a thread of its own waits for the end of the others. `Err`: a core
/// does not answer, or there can be no such thread.
pub(super) fn begin(reactors: Reactors, stop: StopFlag, limit: Duration) -> Result<(), String> {
    reactors.live.refuse_newcomers()?;
    let clock = Clock::start_system();
    let until = clock.now().saturating_add(limit);
    let thread = thread::Builder::new().name("drain".to_owned());
    let thread = thread.spawn(move || {
        tracing::info!(
            "no more connections are taken; the server stops when those that there are have ended"
        );
        // A core that does not answer has connections as far as anybody knows.
        while !stop.is_requested() && reactors.connection_count() != Some(0) {
            if clock.now() >= until {
                tracing::warn!("the time to drain is up ({limit:?}): the remaining connections are ended");
                break;
            }
            thread::sleep(INTERVAL);
        }
        stop.request();
    });
    thread.map(drop).map_err(|error| format!("a thread to drain (clone): {error}"))
}
