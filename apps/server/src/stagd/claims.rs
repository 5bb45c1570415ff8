//! The cores that other `stagd` run on: each holds a lock on a file named after its core, and the kernel knows
//! whose it is.
//!
//! A lock ends with its process, however that ends. The files stay; they are empty.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, fcntl_lock};
use rustix::io::Errno;
use rustix::process::{Flock, FlockOffsetType, FlockType, fcntl_getlk};
use stag_runtime::CoreId;

/// The variable that names the directory of the files, in place of the usual ones.
const VARIABLE: &str = "STAG_RUNTIME_DIR";

/// Where the files are, if this process may write there. Every server looks there.
const SYSTEM: &str = "/run/stag";

/// The directories with such files.
pub(super) struct Claims {
    /// All of them: a server of another user is as much in the way as one's own.
    directories: Vec<PathBuf>,
    /// Why there is none where this process may write.
    unwritable: Option<String>,
}

/// That a core is this process's. Ends when dropped.
#[derive(Debug)]
pub(super) struct Claim(#[expect(dead_code, reason = "held for its lock")] File);

/// The holder of a core.
#[derive(Debug)]
pub(super) struct Holder {
    /// 0: it cannot be seen from here.
    pid: u32,
    name: String,
}

/// What came of the wish for a core.
pub(super) enum Claimed {
    /// It is this process's.
    Own(Claim),
    /// Somebody else has it.
    Taken(Holder),
    /// There is no directory to write it down in: other processes will not know.
    Unknown,
}

impl Claims {
    /// Finds the directories, and makes the one to write in.
    pub(super) fn find() -> Claims {
        let user = env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty());
        let user = user.map(|path: OsString| PathBuf::from(path).join("stag"));
        let candidates: Vec<PathBuf> = match env::var_os(VARIABLE) {
            Some(path) => vec![path.into()],
            None => [PathBuf::from(SYSTEM)].into_iter().chain(user).collect(),
        };
        Claims::within(candidates)
    }

    fn within(candidates: Vec<PathBuf>) -> Claims {
        let mut refusals = Vec::new();
        for path in &candidates {
            match make(path) {
                Ok(()) => return Claims { directories: candidates, unwritable: None },
                Err(error) => refusals.push(format!("{}: {error}", path.display())),
            }
        }
        Claims { directories: candidates, unwritable: Some(refusals.join("; ")) }
    }

    /// What to tell the user where this process cannot write down which core it has.
    pub(super) fn note(&self) -> Option<String> {
        let refusals = self.unwritable.as_ref()?;
        Some(format!(
            "other servers do not see which core this one has ({refusals}); set {VARIABLE} to a directory that all may write"
        ))
    }

    /// The holder of a core, if it has one.
    pub(super) fn holder(&self, core: CoreId) -> Option<Holder> {
        self.directories.iter().find_map(|directory| {
            let file = open(directory, core, OpenOptions::new().read(true)).ok()?;
            holder(&file)
        })
    }

    /// Makes a core this process's, if no process has it.
    pub(super) fn claim(&self, core: CoreId) -> Claimed {
        if let Some(holder) = self.holder(core) {
            return Claimed::Taken(holder);
        }
        for directory in &self.directories {
            let Ok(file) = open(directory, core, OpenOptions::new().read(true).write(true).create(true))
            else {
                continue;
            };
            return match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Claimed::Own(Claim(file)),
                Err(Errno::ACCESS | Errno::AGAIN) => {
                    Claimed::Taken(holder(&file).unwrap_or(Holder { pid: 0, name: String::new() }))
                }
                Err(_) => continue,
            };
        }
        Claimed::Unknown
    }
}

/// Makes a directory, and sees that files can be made in it.
fn make(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)?;
    Ok(())
}

fn open(directory: &Path, core: CoreId, options: &mut OpenOptions) -> io::Result<File> {
    // A link would lead out of the directory, a FIFO would make the open wait.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    options.mode(0o644).custom_flags(flags as i32).open(directory.join(format!("core-{}", core.0)))
}

/// The process with a lock on the whole file.
fn holder(file: &File) -> Option<Holder> {
    let wanted = Flock {
        start: 0,
        length: 0,
        pid: None,
        typ: FlockType::WriteLock,
        offset_type: FlockOffsetType::Set,
    };
    let pid = fcntl_getlk(file, &wanted).ok()??.pid.map_or(0, |pid| pid.as_raw_nonzero().get());
    let pid = u32::try_from(pid).unwrap_or(0);
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(Holder { pid, name: name.trim().to_owned() })
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pid, self.name.as_str()) {
            (0, _) => f.write_str("a process of another container"),
            (pid, "") => write!(f, "PID {pid}"),
            (pid, name) => write!(f, "{name} (PID {pid})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_cannot_be_written_is_said_and_nothing_fails() {
        let claims = Claims::within(vec!["/proc/nowhere/stag".into(), "/dev/null".into()]);
        let note = claims.note().unwrap();
        assert!(note.contains("/proc/nowhere/stag: ") && note.contains("; /dev/null: "), "{note}");
        assert!(matches!(claims.claim(CoreId(0)), Claimed::Unknown));
        assert!(claims.holder(CoreId(0)).is_none());
    }

    #[test]
    fn a_claim_is_a_file_that_stays() {
        let path = std::env::temp_dir().join(format!("stag-claims-{}", std::process::id()));
        let claims = Claims::within(vec![path.clone()]);
        assert_eq!(claims.note(), None);
        let Claimed::Own(claim) = claims.claim(CoreId(7)) else {
            panic!("no other process knows the directory")
        };
        drop(claim);
        assert_eq!(fs::metadata(path.join("core-7")).unwrap().len(), 0);
        fs::remove_dir_all(path).unwrap();
    }
}
