//! Exports that are directories of this machine.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, geteuid, getrlimit};
use stag::disk::{Disk, DiskConfig, Method};
use stag::memory::Pool;
use stag::nfs::directory::{DirectoryConfig, DirectoryStore, WriteVerifier, stable_fsid};
use stag::nfs::export::{Export, Medium};
use stag::rpc::Pools;
use stag::runtime::ReactorId;

use super::plan::Plan;
use super::{Settings, state};
use crate::failure::CommandFailure;

/// Descriptors that are kept open in all directories together, at most.
pub(super) const DESCRIPTORS_MAX: u64 = 16 << 10;

/// The store at the bottom of every export that is a directory, at one reactor, and what they share.
pub(super) struct Directories {
    pool: Pool,
    config: DirectoryConfig,
    /// Made for the first of them.
    disk: Option<Disk>,
}

impl Directories {
    pub(super) fn new(settings: &Settings, plan: &Plan, reactor: ReactorId, pools: &Pools) -> Directories {
        let count = exported(settings).count().max(1);
        let mut config = DirectoryConfig::new(Path::new("/"), 0);
        // One half is for WRITEs and Replies.
        config.reading_max = plan.reactors[reactor.index()].transit_len / 2;
        config.descriptors_max = descriptors() / count / plan.reactors.len();
        Directories { pool: pools.payload.clone(), config, disk: None }
    }

    /// Opens the directory of an export, and remembers the places of at most `objects_max` objects. All reactors have the
    /// same `verifier` of it.
    pub(super) fn open(
        &mut self,
        export: &Export,
        objects_max: u32,
        verifier: WriteVerifier,
    ) -> Result<DirectoryStore, CommandFailure> {
        let disk = match &self.disk {
            Some(disk) => disk.another(),
            None => {
                let disk = Disk::new(&DiskConfig::default(), &[self.pool.arena()]);
                self.disk = Some(disk.another());
                disk
            }
        };
        let config = DirectoryConfig {
            path: export.directory.clone().into(),
            fsid: stable_fsid(&export.path),
            objects_max: objects_max as usize,
            sync: export.sync,
            verifier,
            ..self.config.clone()
        };
        DirectoryStore::new(&config, disk, self.pool.clone()).map_err(CommandFailure::usage)
    }

    /// What is worth knowing.
    pub(super) fn notes(&self) -> Option<String> {
        self.disk.as_ref().map(|disk| format!("directories: {}", disk.method()))
    }
}

/// The exports that are directories.
fn exported(settings: &Settings) -> impl Iterator<Item = &Export> {
    settings.exports.iter().map(|(_, export)| export).filter(|export| export.medium == Medium::Directory)
}

/// Fails if a directory cannot be exported; says what an administrator should know.
pub(super) fn check(settings: &Settings, warnings: &mut Vec<String>) -> Result<(), CommandFailure> {
    let mut directories = exported(settings).peekable();
    if directories.peek().is_none() {
        return Ok(());
    }
    for export in directories {
        if !export.sync {
            warnings.push(format!(
                "export dir:{}: with sync=no a crash of this machine takes back names and attributes that clients \
                 were told are safe",
                export.directory
            ));
        }
        let complain =
            |error| CommandFailure::usage(format_args!("export dir:{}: {error}", export.directory));
        fs::read_dir(&export.directory).map_err(complain)?;
    }
    let uid = geteuid();
    if !uid.is_root() {
        warnings.push(format!(
            "not started by root: in exported directories every client is user {}, whatever user it claims to be",
            uid.as_raw()
        ));
    }
    if let Method::Blocking(_) = Disk::new(&DiskConfig { depth: 1, uring: true }, &[]).method() {
        warnings.push("io_uring is not permitted here: while a disk works, all clients wait".to_owned());
    }
    if let Err(failure) = state::path(settings.state_dir.as_deref()) {
        warnings.push(failure);
    }
    Ok(())
}

/// Descriptors that all directories together may have, of as many as the process may have: `descriptors.rs` has raised
/// that. The rest is for connections.
fn descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    (limit / 2).min(DESCRIPTORS_MAX) as usize
}
