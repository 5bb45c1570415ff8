//! Limits that a process inherits, and that must not kill or restrict a server or a copy.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

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

/// Octets of stack that a program may need: more than its first thread may have under a low limit (`ulimit -s`), so that the
/// system would end it by a signal.
const STACK_LEN: usize = 1 << 20;

/// Runs a program, on a thread with a stack of its own where the first thread's may be too small.
pub fn run_with_enough_stack(program: fn() -> ExitCode) -> ExitCode {
    if getrlimit(Resource::Stack).current.is_none_or(|limit| limit >= STACK_LEN as u64) {
        return program();
    }
    let thread = thread::Builder::new().name("main".to_owned()).stack_size(STACK_LEN).spawn(program);
    match thread.map(thread::JoinHandle::join) {
        Ok(Ok(status)) => status,
        // What panicked said why.
        Ok(Err(_)) => ExitCode::FAILURE,
        Err(error) => {
            CommandFailure::run(format_args!("a thread with a stack of {STACK_LEN} bytes: {error}"))
                .report("stagd", false)
        }
    }
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
