//! The process' limit of descriptors.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to `wanted`, or as far as the hard one allows. Returns the limit afterwards.
pub fn raise(wanted: u64) -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // What a shell starts with is made for programs that cannot deal with many.
    let target = maximum.unwrap_or(u64::MAX).min(wanted);
    match current {
        Some(current) if current < target => {
            let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(target), maximum });
            if raised.is_ok() { target } else { current }
        }
        current => current.unwrap_or(u64::MAX),
    }
}
