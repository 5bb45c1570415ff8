//! The secret that seals file handles, which must survive a restart for the handles to stay good.

use std::env;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use rustix::process::geteuid;
use stag_nfs::handle::{HandleKey, SECRET_LEN};

use super::Settings;
use crate::failure::CommandFailure;

/// The secret's file.
const FILE: &str = "handle-key";

/// Where state is kept: what was asked for, or where it is the custom. `Err`: nowhere, and what that means.
pub(super) fn path(asked: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(asked) = asked {
        return Ok(asked.to_owned());
    }
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(given) = set("STATE_DIRECTORY") {
        return Ok(given);
    }
    if geteuid().is_root() {
        return Ok("/var/lib/stag".into());
    }
    let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")));
    state.map(|state| state.join("stag")).ok_or_else(|| {
        "clients' file handles of directories end with this process; give a --state-dir".to_owned()
    })
}

/// Sees that `--state-dir`, if it is given, is a directory, or makes it one, unless it is `only_looked_at`.
pub(super) fn check(settings: &Settings, only_looked_at: bool) -> Result<(), CommandFailure> {
    let Some(folder) = &settings.state_dir else { return Ok(()) };
    let wrong = |problem: &dyn std::fmt::Display| {
        let folder = folder.display();
        Err(CommandFailure::usage(format_args!(
            "--state-dir {folder}: {problem}; choose a directory that may be written"
        )))
    };
    match fs::metadata(folder) {
        Ok(found) if !found.is_dir() => return wrong(&"is a file, and no directory"),
        Ok(_) => {}
        Err(error) if error.kind() != ErrorKind::NotFound => return wrong(&error),
        Err(_) if only_looked_at => return Ok(()),
        Err(_) => {
            if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(folder) {
                return wrong(&format_args!("it cannot be made: {error}"));
            }
        }
    }
    match rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => Ok(()),
        Err(error) => wrong(&std::io::Error::from(error)),
    }
}

/// The key that handles are sealed with: that of the run before, or a new one, which is kept. Only for this run if
/// there is nowhere to keep it.
pub(super) fn handle_key(asked: Option<&Path>) -> Result<HandleKey, CommandFailure> {
    let Ok(folder) = path(asked) else { return Ok(HandleKey::new()) };
    let file = folder.join(FILE);
    let complain = |error: &dyn std::fmt::Display| {
        CommandFailure::run(format_args!("{}: {error}; choose another place by --state-dir", file.display()))
    };
    match fs::read(&file) {
        Ok(octets) => {
            if let Some(problem) = exposure(&file) {
                return Err(CommandFailure::run(format_args!("{}: {problem}", file.display())));
            }
            let secret: [u8; SECRET_LEN] = octets.try_into().map_err(|octets: Vec<u8>| {
                complain(&format_args!(
                    "{} bytes, but a key has {SECRET_LEN}; remove it, and clients have to mount again",
                    octets.len()
                ))
            })?;
            Ok(HandleKey::from_secret(secret))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let mut secret = [0; SECRET_LEN];
            getrandom::fill(&mut secret).map_err(|error| complain(&error))?;
            keep(&folder, &file, &secret).map_err(|error| complain(&error))?;
            Ok(HandleKey::from_secret(secret))
        }
        Err(error) => Err(complain(&error)),
    }
}

/// Who else can know the secret in a file, if somebody can: it makes handles for every file of every export.
fn exposure(file: &Path) -> Option<String> {
    let found = fs::metadata(file).ok()?;
    let (mode, owner, own) = (found.mode() & 0o7777, found.uid(), geteuid().as_raw());
    let repair = "remove it, and clients have to mount again; or, if it is still secret";
    if mode & 0o007 != 0 {
        return Some(format!(
            "mode {mode:04o} lets every user of this machine have the key of all file handles; {repair}: chmod 600"
        ));
    }
    (owner != 0 && owner != own).then(|| {
        format!(
            "it belongs to user {owner}, who therefore has the key of all file handles; {repair}: chown {own}"
        )
    })
}

/// Writes the secret down, readable only for us, as a whole or not at all.
fn keep(folder: &Path, file: &Path, secret: &[u8]) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let draft = folder.join(format!("{FILE}.{}", std::process::id()));
    let mut options = OpenOptions::new();
    let mut opened = options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    opened.write_all(secret)?;
    opened.sync_all()?;
    fs::rename(&draft, file)?;
    fs::File::open(folder)?.sync_all()
}
