//! What a server that root started may still do once it serves: no more than it needs.

use std::fs;

use stag_disk::system::keep_capabilities;

use super::Settings;

const CHOWN: u64 = 1 << 0;
const DAC_OVERRIDE: u64 = 1 << 1;
const DAC_READ_SEARCH: u64 = 1 << 2;
const FOWNER: u64 = 1 << 3;
const FSETID: u64 = 1 << 4;
const SETGID: u64 = 1 << 6;
const SETUID: u64 = 1 << 7;
const NET_BIND_SERVICE: u64 = 1 << 10;
const NET_ADMIN: u64 = 1 << 12;
const IPC_LOCK: u64 = 1 << 14;
const SYS_ADMIN: u64 = 1 << 21;
const MKNOD: u64 = 1 << 27;

/// For files of any owner, as that owner.
const FILES: u64 = CHOWN | DAC_OVERRIDE | DAC_READ_SEARCH | FOWNER | FSETID | MKNOD | SETUID | SETGID;

/// For ports below 1024, also those that hosts with locks are called from, and for memory that a device reaches.
const NETWORK: u64 = NET_BIND_SERVICE | IPC_LOCK;

/// Who may use io_uring.
const IO_URING: &str = "/proc/sys/kernel/io_uring_disabled";

/// Gives up all capabilities that the server does not need, for this thread and those that it starts. Where the system does not
/// let it, the log says so.
pub(super) fn drop_unneeded(settings: &Settings) {
    let io_uring_disabled = fs::read_to_string(IO_URING).unwrap_or_default();
    let needed = needed(settings.congestion_control.is_some(), io_uring_disabled.trim());
    if let Err(error) = keep_capabilities(needed) {
        tracing::warn!("capabilities that the server does not need are not given up: {error}");
    }
}

fn needed(chooses_congestion_control: bool, io_uring_disabled: &str) -> u64 {
    // Without it the system lets only algorithms be chosen that everybody may choose.
    let congestion_control = if chooses_congestion_control { NET_ADMIN } else { 0 };
    // "1": only who has it, and a group, may use io_uring.
    let io_uring = if io_uring_disabled == "1" { SYS_ADMIN } else { 0 };
    FILES | NETWORK | congestion_control | io_uring
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_kept_than_the_settings_take() {
        assert_eq!(needed(false, "0"), 0x0800_44df);
        assert_eq!(needed(false, ""), needed(false, "2"));
        assert_eq!(needed(true, "0") ^ needed(false, "0"), NET_ADMIN);
        assert_eq!(needed(false, "1") ^ needed(false, "0"), SYS_ADMIN);
    }
}
