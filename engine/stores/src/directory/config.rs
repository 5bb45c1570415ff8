//! The configuration of a directory store, and why it cannot be opened.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use stag_disk::system;

use super::object;
use super::opened::MayWait;
use super::verifier::WriteVerifier;

/// What store to make.
#[derive(Clone, Debug)]
pub struct DirectoryConfig {
    /// The directory to serve.
    pub path: PathBuf,
    /// Goes into what identifies the file system in handles, beside what the directory is by itself: choose one that is the
    /// same after a restart, and another for each export of the same directory ([`stable_fsid`]).
    pub fsid: u64,
    /// Objects whose place is remembered: some 200 octets each.
    pub objects_max: usize,
    /// Descriptors that are kept open; at least 16.
    pub descriptors_max: usize,
    /// Octets of buffers that READs take at once.
    pub reading_max: usize,
    /// How long a name is believed that was seen to lead where it should. So long something stays in reach after
    /// somebody moves it out of the directory on the server.
    pub trust: Duration,
    /// Whether to let the kernel open objects by file handle, where it does so for us.
    pub by_handle: bool,
    /// What may wait in its file system; `None`: as the kind of that is.
    pub may_wait: Option<MayWait>,
    /// Whether names and attributes that a Call changed are on stable storage before it is answered. Without, a crash of
    /// the machine may take back what clients were told is done. Data is not concerned: what is stable or committed
    /// is synced.
    pub sync: bool,
    /// Whether locks of clients are also taken on the files, where other processes and other nodes of a cluster file system see
    /// them.
    pub locks_below: bool,
    /// The write verifier. Stores of the same directory, at several reactors, have the same one.
    pub verifier: WriteVerifier,
}

impl DirectoryConfig {
    /// A store of `path` with the default numbers.
    #[must_use]
    pub fn new(path: &Path, fsid: u64) -> DirectoryConfig {
        DirectoryConfig {
            path: path.to_owned(),
            fsid,
            objects_max: 1 << 17,
            descriptors_max: 256,
            reading_max: 16 << 20,
            trust: Duration::from_secs(1),
            by_handle: true,
            may_wait: None,
            sync: true,
            locks_below: false,
            verifier: WriteVerifier::default(),
        }
    }
}

/// A number for what is exported as `path`: the same in every run.
#[must_use]
pub fn stable_fsid(path: &str) -> u64 {
    // Small numbers are for stores in memory.
    object::hash(path.as_bytes()) | 1 << 63
}

/// Why there is no store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// It cannot be opened.
    #[error("directory {}: {error}", path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// What the kernel says.
        error: Errno,
    },
    /// The kernel, or the container that it runs in, refuses a system call that nothing replaces.
    #[error(
        "directory {}: statx: {error}; it takes Linux 4.11, and a container whose seccomp profile permits statx: use a newer \
         container runtime, or add statx to the profile",
        path.display()
    )]
    Statx {
        /// Which.
        path: PathBuf,
        /// What the kernel says.
        error: Errno,
    },
    /// The server is root, and may not be anybody else.
    #[error(
        "directory {}: root may not act as other users here: {error}; give it the capabilities CAP_SETUID and \
         CAP_SETGID, or start it as another user",
        path.display()
    )]
    ActAs {
        /// Which.
        path: PathBuf,
        /// What the kernel says.
        error: Errno,
    },
    /// Fewer than what one operation takes.
    #[error("{found} descriptors for a directory store: it needs at least 16; raise `ulimit -n`")]
    Descriptors {
        /// What there are.
        found: usize,
    },
}

impl DirectoryError {
    /// Why the directory at `path` could not be opened.
    pub(super) fn of_opening(path: &Path, error: Errno) -> DirectoryError {
        let path = path.to_owned();
        match error {
            // No other system call is refused that way.
            Errno::NOSYS => DirectoryError::Statx { path, error: system::statx_refusal() },
            error => DirectoryError::Open { path, error },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The thing, what the system says, and what to do.
    #[test]
    fn a_refused_system_call_is_named_with_the_repair() {
        let text = DirectoryError::of_opening(Path::new("/srv"), Errno::NOSYS).to_string();
        assert!(text.starts_with("directory /srv: statx: ") && text.contains("seccomp profile"), "{text}");
        let text = DirectoryError::of_opening(Path::new("/srv"), Errno::ACCESS).to_string();
        assert_eq!(text, "directory /srv: Permission denied (os error 13)");
    }
}
