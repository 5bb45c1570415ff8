//! Pinning the calling thread to one core, with checks that come before the system call's.

use std::io;
use std::sync::OnceLock;

use crate::cores::{CORES_MAX, CoreId, CoreSet};

/// Bytes of the mask that the kernel is offered. More than [`CORES_MAX`] needs, because a kernel built
/// for more cores refuses a mask shorter than its own.
const MASK_BYTES: usize = 1024;

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
/// Read once, from the main thread, so that a thread pinned later does not narrow the answer: ask (or
/// make the first [`Reactor`](crate::Reactor)) before the main thread is pinned.
#[must_use]
pub fn allowed() -> CoreSet {
    static ALLOWED: OnceLock<CoreSet> = OnceLock::new();
    *ALLOWED.get_or_init(|| {
        // A kernel that does not tell (a sandbox) leaves the choice to `pin`, which asks it again.
        let process = libc::pid_t::try_from(std::process::id()).unwrap_or(0);
        read_mask(process).unwrap_or_else(|_| (0..CORES_MAX).map(CoreId).collect())
    })
}

/// Checks, without pinning, that a thread of this process may be pinned to `core`.
pub fn check(core: CoreId) -> Result<(), AffinityError> {
    check_within(core, allowed())
}

/// Pins the calling thread to `core`.
pub fn pin(core: CoreId) -> Result<(), AffinityError> {
    check(core)?;
    let refused = |source| AffinityError::System { core: core.0, allowed: Box::new(allowed()), source };
    write_mask(core).map_err(refused)?;
    // The kernel cuts the mask down to the cpuset, which may have changed since `allowed` was read.
    let found = read_mask(0).map_err(refused)?;
    if found.len() == 1 && found.contains(core) {
        return Ok(());
    }
    Err(refused(io::Error::other("the mask was not taken")))
}

/// The core that the calling thread runs on at this moment.
#[must_use]
pub fn current() -> Option<CoreId> {
    // SAFETY: the call takes no pointer and only reads.
    let core = unsafe { libc::sched_getcpu() };
    usize::try_from(core).ok().map(CoreId)
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

/// The affinity mask of a thread; 0 is the calling one.
fn read_mask(thread: libc::pid_t) -> io::Result<CoreSet> {
    let mut mask = [0u64; MASK_BYTES / 8];
    // SAFETY: `mask` is MASK_BYTES long and writable, and any bits are a valid u64. The type differs,
    // but the kernel's mask is an array of long, least significant bit first, as is ours.
    let result = unsafe { libc::sched_getaffinity(thread, MASK_BYTES, mask.as_mut_ptr().cast()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((0..CORES_MAX).filter(|id| mask[id / 64] & (1 << (id % 64)) != 0).map(CoreId).collect())
}

/// Sets the calling thread's mask to one core.
fn write_mask(core: CoreId) -> io::Result<()> {
    let mut mask = [0u64; MASK_BYTES / 8];
    mask[core.0 / 64] = 1 << (core.0 % 64);
    // SAFETY: `mask` is MASK_BYTES long and initialised; the kernel only reads it.
    let result = unsafe { libc::sched_setaffinity(0, MASK_BYTES, mask.as_ptr().cast()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
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
    fn the_kernels_own_refusal_is_reported() {
        // The last id that the mask holds: no machine has so many cores.
        let error = write_mask(CoreId(MASK_BYTES * 8 - 1)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}
