//! Pins the calling thread to one core, and says in advance why the system call would refuse.

use std::fs;
use std::io;
use std::sync::OnceLock;

use crate::cores::{CORES_MAX, CoreId, CoreSet};

/// Why a thread was not pinned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AffinityError {
    /// The id is beyond what an affinity mask holds.
    #[error(
        "core {core}: ids must be below {CORES_MAX}; this process may use cores {allowed}: choose one of them"
    )]
    TooLarge {
        /// The core wanted.
        core: usize,
        /// The cores of this process.
        allowed: Box<CoreSet>,
    },
    /// The core is not there, is offline, or is outside of the process's cpuset or affinity mask.
    #[error(
        "core {core} is not available: this process may use cores {allowed}; choose one of them, or widen the set that \
         started it (taskset, cpuset.cpus of its cgroup, --cpuset-cpus of its container)"
    )]
    NotAllowed {
        /// The core wanted.
        core: usize,
        /// The cores of this process.
        allowed: Box<CoreSet>,
    },
    /// The kernel refused although the core was in the process's set.
    #[error(
        "core {core}: the kernel refused to pin a thread to it: {source}; this process was started with cores {allowed}: \
         see whether the core went offline or the cpuset was made smaller since"
    )]
    System {
        /// The core wanted.
        core: usize,
        /// The cores of this process when it first asked.
        allowed: Box<CoreSet>,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// The cores that this process may use: its affinity mask, which lies within its cpuset.
///
/// Read once, by the first thread that asks, so that a thread pinned later does not narrow the answer: ask (or make the first
/// [`Reactor`](crate::Reactor)) before the main thread is pinned.
#[must_use]
pub fn allowed() -> CoreSet {
    static ALLOWED: OnceLock<CoreSet> = OnceLock::new();
    *ALLOWED.get_or_init(read_allowed)
}

/// The calling thread's cores and the main thread's: either may have been pinned before anybody asked.
fn read_allowed() -> CoreSet {
    let threads = [own_mask(), status_mask("/proc/self/status")];
    // A kernel that does not tell (a sandbox) leaves the choice to `pin`, which asks it again.
    let all = || (0..CORES_MAX).map(CoreId).collect();
    threads.into_iter().flatten().reduce(|one, other| one.union(&other)).unwrap_or_else(all)
}

/// Checks, without pinning, that a thread of this process may be pinned to `core`.
pub fn check(core: CoreId) -> Result<(), AffinityError> {
    check_within(core, allowed())
}

/// Pins the calling thread to `core`.
pub fn pin(core: CoreId) -> Result<(), AffinityError> {
    check(core)?;
    let refused = |source| AffinityError::System { core: core.0, allowed: Box::new(allowed()), source };
    // Its id is below CORES_MAX: `core_affinity` would abort on others.
    if !core_affinity::set_for_current(core_affinity::CoreId { id: core.0 }) {
        return Err(refused(io::Error::last_os_error()));
    }
    // The kernel cuts the mask down to the cpuset, which may have changed since `allowed` was read.
    let found = own_mask().unwrap_or_default();
    if found.len() == 1 && found.contains(core) {
        return Ok(());
    }
    Err(refused(io::Error::other("the mask was not taken")))
}

/// The core that the calling thread runs on at this moment.
#[must_use]
pub fn current() -> Option<CoreId> {
    Some(CoreId(rustix::thread::sched_getcpu()))
}

fn check_within(core: CoreId, allowed: CoreSet) -> Result<(), AffinityError> {
    if core.0 >= CORES_MAX {
        return Err(AffinityError::TooLarge { core: core.0, allowed: Box::new(allowed) });
    }
    if !allowed.contains(core) {
        return Err(AffinityError::NotAllowed { core: core.0, allowed: Box::new(allowed) });
    }
    Ok(())
}

/// The affinity mask of the calling thread. A kernel built for more than [`CORES_MAX`] cores does not tell `core_affinity`, but
/// writes it in the thread's status.
fn own_mask() -> Option<CoreSet> {
    let ids = core_affinity::get_core_ids();
    ids.map(|ids| ids.into_iter().map(|core| CoreId(core.id)).collect())
        .or_else(|| status_mask("/proc/thread-self/status"))
}

/// The affinity mask that a status file below `/proc` shows.
fn status_mask(path: &str) -> Option<CoreSet> {
    let status = fs::read_to_string(path).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_pinned_to_each_allowed_core() {
        for core in allowed().iter().take(4) {
            std::thread::spawn(move || {
                pin(core).unwrap();
                assert_eq!(current(), Some(core));
            })
            .join()
            .unwrap();
        }
    }

    #[test]
    fn a_pinned_thread_does_not_narrow_the_choice_of_another() {
        let before = allowed();
        std::thread::spawn(move || {
            pin(before.iter().next().unwrap()).unwrap();
            assert_eq!(allowed(), before);
            pin(before.iter().last().unwrap()).unwrap();
        })
        .join()
        .unwrap();
    }

    #[test]
    fn an_id_of_1024_or_more_is_refused_before_the_kernel_sees_it() {
        for id in [1024, 4096, usize::MAX] {
            let error = pin(CoreId(id)).unwrap_err();
            assert!(matches!(error, AffinityError::TooLarge { core, .. } if core == id));
            assert!(error.to_string().contains("below 1024"), "{error}");
        }
    }

    #[test]
    fn a_core_outside_of_the_set_is_refused_and_the_message_names_the_set() {
        let allowed = "0-3,8".parse().unwrap();
        let error = check_within(CoreId(5), allowed).unwrap_err();
        assert!(matches!(error, AffinityError::NotAllowed { core: 5, .. }));
        let text = error.to_string();
        assert!(text.contains("core 5") && text.contains("cores 0-3,8") && text.contains("cpuset"), "{text}");
        check_within(CoreId(8), allowed).unwrap();
    }

    #[test]
    fn a_thread_that_was_pinned_by_others_still_sees_all_cores() {
        let before = read_allowed();
        std::thread::spawn(move || {
            let core = before.iter().next().unwrap();
            assert!(core_affinity::set_for_current(core_affinity::CoreId { id: core.0 }));
            assert_eq!(own_mask(), Some([core].into_iter().collect()));
            assert_eq!(read_allowed(), before);
        })
        .join()
        .unwrap();
    }

    /// What is read of a kernel with more cores than `core_affinity` asks for.
    #[test]
    fn the_status_of_a_thread_shows_the_same_mask() {
        assert_eq!(status_mask("/proc/thread-self/status"), own_mask());
    }

    #[test]
    fn the_kernels_own_refusal_is_reported() {
        // The last id that the mask holds, if this machine has fewer cores.
        let last = CoreId(CORES_MAX - 1);
        if allowed().contains(last) {
            return stag_testing::skipped("this machine has as many cores as an affinity mask holds");
        }
        assert!(!core_affinity::set_for_current(core_affinity::CoreId { id: last.0 }));
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
    }
}
