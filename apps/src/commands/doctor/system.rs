//! Limits of the process and of the kernel.

use stag_server::machine::{CAP_SYS_ADMIN, Machine};

use super::finding::{Diagnosis, State};

/// Connections, exports and the files that an export keeps open.
const OPEN_FILES: u64 = 1024;

/// How many files may be open at once.
pub(super) fn open_files(machine: &Machine) -> Vec<Diagnosis> {
    let limits = machine.read("proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let Some(limit) = line.and_then(|line| line.split_ascii_whitespace().next().map(str::to_owned)) else {
        return vec![Diagnosis::bad(State::Note, "not in /proc/self/limits", "ulimit -n")];
    };
    let found = format!("{limit} may be open; {OPEN_FILES} do for a stagd with directories");
    // "unlimited" is no number.
    vec![if limit.parse().is_ok_and(|limit: u64| limit < OPEN_FILES) {
        let repair = format!("`ulimit -n {}`; of a service: LimitNOFILE={0}", 4 * OPEN_FILES);
        Diagnosis::bad(State::Warning, found, repair)
    } else {
        Diagnosis::ok(found)
    }]
}

/// Whether directories are read and written by io_uring.
pub(super) fn io_uring(machine: &Machine) -> Vec<Diagnosis> {
    // Kernels before 6.6 have no such switch.
    let switch: u32 = machine.value("proc/sys/kernel/io_uring_disabled").unwrap_or(0);
    let is_allowed = match switch {
        0 => true,
        1 => machine.is_capable(CAP_SYS_ADMIN),
        _ => false,
    };
    vec![if is_allowed {
        Diagnosis::ok(format!("kernel.io_uring_disabled is {switch}: allowed"))
    } else {
        let found = format!(
            "kernel.io_uring_disabled is {switch}: not for this user; threads move the data of dir:, which takes longer"
        );
        Diagnosis::bad(State::Warning, found, "sudo sysctl -w kernel.io_uring_disabled=0")
    }]
}
