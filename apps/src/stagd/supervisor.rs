//! Tells systemd that the server is ready, and that it works (`Type=notify`, `WatchdogSec`). Without systemd it does nothing.

use std::thread;

use sd_notify::{NotifyState, watchdog_enabled};
use stag::runtime::StopFlag;

use super::asking::Reactors;
use crate::failure::CommandFailure;

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("systemd does not hear of the server: {error}");
    }
}

/// The server serves.
pub(super) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// Says again and again that all reactors answer, if systemd wants to hear it (`WatchdogSec`). A reactor that hangs is silence,
/// and systemd starts the server anew.
pub(super) fn watch(reactors: Reactors, stop: StopFlag) -> Result<(), CommandFailure> {
    let Some(interval) = watchdog_enabled() else { return Ok(()) };
    let thread = thread::Builder::new().name("watchdog".to_owned());
    let thread = thread.spawn(move || {
        while !stop.is_requested() {
            if reactors.snapshots().is_some() {
                tell(&[NotifyState::Watchdog]);
            }
            thread::sleep(interval / 2);
        }
    });
    thread.map(drop).map_err(|error| {
        CommandFailure::run(format_args!("a thread for systemd's watchdog (clone): {error}"))
    })
}
