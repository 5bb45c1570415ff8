//! Tells systemd that the server is ready, and that it works (`Type=notify`, `WatchdogSec`). Without systemd it does nothing.

use std::thread;

use sd_notify::{NotifyState, watchdog_enabled};
use stag_runtime::StopFlag;

use super::asking::Reactors;
use super::snapshot::Snapshot;
use crate::failure::CommandFailure;

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("systemd does not hear of the server: {error}");
    }
}

/// The server serves.
pub(super) fn ready() {
    tell(&[NotifyState::Ready, NotifyState::Status("ready")]);
}

/// What `systemctl status` shows, of the RDMA and TCP connections of each core.
fn status(connections: impl Iterator<Item = (usize, usize)>) -> String {
    let (rdma, tcp) = connections.fold((0, 0), |sum, core| (sum.0 + core.0, sum.1 + core.1));
    format!("ready; connections: {rdma} of RDMA, {tcp} of TCP")
}

/// Says again and again that all reactors answer, and how many connections there are, if systemd wants to hear it (`WatchdogSec`). A
/// reactor that hangs is silence,
/// and systemd starts the server anew.
pub(super) fn watch(reactors: Reactors, stop: StopFlag) -> Result<(), CommandFailure> {
    let Some(interval) = watchdog_enabled() else { return Ok(()) };
    let thread = thread::Builder::new().name("watchdog".to_owned());
    let thread = thread.spawn(move || {
        while !stop.is_requested() {
            if let Some(all) = reactors.snapshots() {
                let status = status(all.iter().map(Snapshot::connections));
                tell(&[NotifyState::Watchdog, NotifyState::Status(&status)]);
            }
            thread::sleep(interval / 2);
        }
    });
    thread.map(drop).map_err(|error| {
        CommandFailure::run(format_args!("a thread for systemd's watchdog (clone): {error}"))
    })
}
