//! Limits that a process inherits, and that must not kill or restrict a server or a copy.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::process::{Resource, getrlimit};
use signal_hook::consts::SIGXFSZ;

use crate::failure::CommandFailure;

/// Lets a file that would be larger than `ulimit -f` fail with an error (EFBIG), which is answered or reported, where the
/// system would end the program by a signal.
pub fn survive_file_size_limit() -> Result<(), CommandFailure> {
    // The flag is not read; a handler is all that it takes. (A program that this one starts does not inherit it.)
    let flag = Arc::new(AtomicBool::new(false));
    let registered = signal_hook::flag::register(SIGXFSZ, flag);
    registered.map(drop).map_err(|error| CommandFailure::run(format_args!("a handler for SIGXFSZ: {error}")))
}

/// Why `len` octets of memory, which are one file to the system, exceed `ulimit -f`.
#[must_use]
pub fn memory_too_large(len: usize) -> Option<String> {
    let limit = getrlimit(Resource::Fsize).current?;
    (limit < len as u64).then(|| {
        format!(
            "this is a file of {len} bytes to the system, and the limit on the size of files is {limit}; raise it: \
             `ulimit -f unlimited`, or of a service LimitFSIZE=infinity"
        )
    })
}
