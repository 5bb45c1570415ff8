//! Shared by tests of several crates: how a test says that it was skipped, how long it waits, how many allocations it makes
//! ([`CountingAllocator`]), where its files are ([`Scratch`]), and how system calls fail ([`refuse_system_calls`]).
//!
//! Rust's test harness knows passed and failed only, and hides what a passed test prints. A test that cannot do its work on
//! this machine calls [`skipped`] and returns. `ci/test.sh` counts it as skipped, not as passed, and prints the reason.
#![deny(unsafe_code)]

mod allocator;
mod refusal;
mod scratch;

use std::env;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

pub use allocator::CountingAllocator;
pub use refusal::refuse_system_calls;
pub use scratch::Scratch;

/// The environment variable that names the file to which [`skipped`] appends its lines.
pub const SKIPPED_FILE: &str = "STAG_SKIPPED";

/// The environment variable that says how many times slower than a quiet one this machine is.
pub const SLOWNESS: &str = "STAG_SLOWNESS";

/// Says that the calling test, or a part of it, cannot run on this machine, and why.
///
/// Prints `SKIPPED: reason`, and appends `PROGRAM TEST: reason` to the file that [`SKIPPED_FILE`] names, if that is set.
/// Call it on the test's own thread, whose name is the test's.
///
/// # Panics
///
/// If the file cannot be written: a skip that is not recorded would count as passed.
#[track_caller]
pub fn skipped(reason: impl Display) {
    println!("SKIPPED: {reason}");
    let Some(file) = env::var_os(SKIPPED_FILE) else { return };
    let program = env::current_exe().unwrap_or_default();
    // The harness runs binaries of cargo's, whose names end with a hash.
    let program = program.file_stem().unwrap_or_default().to_string_lossy();
    let program = program.rsplit_once('-').map_or(&*program, |(name, _)| name);
    let thread = thread::current();
    let line = line(program, thread.name().unwrap_or("main"), &reason.to_string());
    append(Path::new(&file), &line).unwrap_or_else(|error| {
        panic!("{SKIPPED_FILE}={}: {error}; name a file that can be written", file.display())
    });
}

/// A limit of time, longer on a machine that is slower: `limit` times [`SLOWNESS`], which is 1 if unset.
///
/// # Panics
///
/// If the variable is no whole number from 1 on.
#[must_use]
pub fn patience(limit: Duration) -> Duration {
    limit * slowness(env::var(SLOWNESS).ok().as_deref())
}

/// Starts a program that this process has just written: `start`, again while the file is still open for writing.
///
/// A process that another test forks has a copy of every descriptor of this one until it is another program. For so long the kernel
/// refuses to run a file that one of them may write (`ETXTBSY`).
///
/// # Errors
///
/// Those of `start`. `ETXTBSY` too, if it stays for ten seconds (times [`SLOWNESS`]).
pub fn start_written_program<T>(mut start: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    #[expect(clippy::disallowed_methods, reason = "a test has no pass of a reactor")]
    let began = Instant::now();
    loop {
        match start() {
            Err(error)
                if error.kind() == io::ErrorKind::ExecutableFileBusy
                    && began.elapsed() < patience(Duration::from_secs(10)) =>
            {
                thread::yield_now();
            }
            started => return started,
        }
    }
}

fn slowness(variable: Option<&str>) -> u32 {
    let Some(text) = variable else { return 1 };
    match text.parse() {
        Ok(times @ 1..) => times,
        _ => panic!("{SLOWNESS}={text:?}: not a whole number from 1 on"),
    }
}

/// One line, whatever the reason has in it.
fn line(program: &str, test: &str, reason: &str) -> String {
    let reason: Vec<&str> = reason.split_whitespace().collect();
    format!("{program} {test}: {}\n", reason.join(" "))
}

/// One system call, so that lines of several processes do not mix.
fn append(file: &Path, line: &str) -> std::io::Result<()> {
    OpenOptions::new().create(true).append(true).open(file)?.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_line_behind_the_names_of_program_and_test() {
        assert_eq!(line("disk", "a::b", "no\n handles"), "disk a::b: no handles\n");
    }

    #[test]
    fn lines_are_appended() {
        let file = env::temp_dir().join(format!("stag-testing-{}", std::process::id()));
        append(&file, "a\n").unwrap();
        append(&file, "b\n").unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(text, "a\nb\n");
        assert!(append(Path::new("/nonexistent/file"), "c\n").is_err());
    }

    #[test]
    fn a_program_that_is_still_open_for_writing_is_started_when_it_is_closed() {
        let file = env::temp_dir().join(format!("stag-written-{}", std::process::id()));
        std::fs::copy("/bin/true", &file).unwrap();
        let mut writer = OpenOptions::new().append(true).open(&file).ok();
        let mut refused = 0;
        let output = start_written_program(|| {
            let output = std::process::Command::new(&file).output();
            refused += usize::from(output.is_err());
            drop(writer.take());
            output
        });
        std::fs::remove_file(&file).unwrap();
        assert!(output.unwrap().status.success());
        assert!(refused > 0);
        assert_eq!(
            start_written_program(|| std::process::Command::new(&file).output()).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn slowness_is_a_whole_number() {
        assert_eq!((slowness(None), slowness(Some("1")), slowness(Some("7"))), (1, 1, 7));
    }

    #[test]
    #[should_panic(expected = "not a whole number")]
    fn no_limit_becomes_zero() {
        slowness(Some("0"));
    }
}
