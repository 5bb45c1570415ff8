//! Exports that are directories of this machine.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::exports::{ExportSpec, Medium};
use rustix::process::{Resource, geteuid, getrlimit};
use stag_disk::{Disk, DiskConfig, Method};
use stag_memory::Pool;
use stag_nfs::export::Export;
use stag_rpc::Pools;
use stag_runtime::ReactorId;
use stag_stores::directory::{
    DirectoryConfig, DirectoryStore, WriteVerifier, handle_weakness, has_stable_storage, stable_fsid,
};

use super::mounts::Mounts;
use super::plan::{EXPORTS_ADDED_MAX, OF_LATER, Plan};
use super::{Settings, state};
use crate::failure::CommandFailure;

/// Descriptors without which a directory does not work.
const DESCRIPTORS_LATER_MIN: usize = 16;

/// Descriptors that are kept open in all directories together, at most.
pub(super) const DESCRIPTORS_MAX: u64 = 16 << 10;

/// The store at the bottom of every export that is a directory, at one reactor, and what they share.
pub(super) struct Directories {
    pool: Pool,
    config: DirectoryConfig,
    /// What each that is added later may have.
    later: Room,
    /// Made for the first of them.
    disk: Option<Disk>,
}

/// What one store may keep.
#[derive(Clone, Copy)]
struct Room {
    objects: u32,
    descriptors: usize,
}

impl Directories {
    pub(super) fn new(settings: &Settings, plan: &Plan, reactor: ReactorId, pools: &Pools) -> Directories {
        let count = exported(settings).count().max(1);
        let mut config = DirectoryConfig::new(Path::new("/"), 0);
        // One half is for WRITEs and Replies.
        config.reading_max = plan.reactors[reactor.index()].transit_len / 2;
        let reactors = plan.reactors.len();
        let of_later = descriptors() / OF_LATER;
        config.descriptors_max = (descriptors() - of_later) / count / reactors;
        let later = Room {
            objects: plan.objects_later,
            descriptors: (of_later / EXPORTS_ADDED_MAX / reactors).max(DESCRIPTORS_LATER_MIN),
        };
        Directories { pool: pools.payload.clone(), config, later, disk: None }
    }

    /// Opens the directory of an export, and remembers the places of at most `objects_max` objects. All reactors have the
    /// same `verifier` of it.
    pub(super) fn open(
        &mut self,
        export: &ExportSpec,
        objects_max: u32,
        verifier: WriteVerifier,
    ) -> Result<DirectoryStore, CommandFailure> {
        let room = Room { objects: objects_max, descriptors: self.config.descriptors_max };
        self.open_with(export, room, verifier)
    }

    /// Opens the directory of an export that is added to a server at work. At most [`EXPORTS_ADDED_MAX`] have room.
    pub(super) fn open_later(
        &mut self,
        export: &ExportSpec,
        verifier: WriteVerifier,
    ) -> Result<DirectoryStore, CommandFailure> {
        let room = Room { objects: self.later.objects.min(export.objects), ..self.later };
        self.open_with(export, room, verifier)
    }

    fn open_with(
        &mut self,
        export: &ExportSpec,
        room: Room,
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
            fsid: stable_fsid(&export.access.path),
            objects_max: room.objects as usize,
            descriptors_max: room.descriptors,
            sync: export.sync && has_stable_storage(Path::new(&export.directory)),
            locks_below: export.locks_below,
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
fn exported(settings: &Settings) -> impl Iterator<Item = &ExportSpec> {
    settings.exports.iter().map(|(_, export)| export).filter(|export| export.medium == Medium::Directory)
}

/// Fails if a directory cannot be exported; says what an administrator should know.
pub(super) fn check(settings: &Settings, warnings: &mut Vec<String>) -> Result<(), CommandFailure> {
    let directories: Vec<&ExportSpec> = exported(settings).collect();
    if directories.is_empty() {
        return Ok(());
    }
    let mounts = Mounts::own();
    for (index, export) in directories.iter().enumerate() {
        check_one(export, warnings)?;
        check_overlaps(export, &directories[..index], &mounts, warnings)?;
        warn_of_what_is_below(export, &directories, &mounts, warnings);
    }
    let uid = geteuid();
    if !uid.is_root() {
        warnings.push(format!(
            "not started by root: in exported directories every client is user {}, whatever user it claims to be",
            uid.as_raw()
        ));
    }
    if let Method::Helpers(_) = Disk::new(&DiskConfig { depth: 1, ..DiskConfig::default() }, &[]).method() {
        warnings.push(
            "io_uring is not permitted here: threads move the data of dir:, which takes longer".to_owned(),
        );
    }
    if let Err(failure) = state::path(settings.state_dir.as_deref()) {
        warnings.push(failure);
    }
    Ok(())
}

/// As [`check`], of an export that is added to those that are served.
pub(super) fn check_added(
    export: &ExportSpec,
    settings: &Settings,
    warnings: &mut Vec<String>,
) -> Result<(), CommandFailure> {
    let served: Vec<&ExportSpec> = exported(settings).collect();
    let mounts = Mounts::own();
    check_one(export, warnings)?;
    check_overlaps(export, &served, &mounts, warnings)?;
    warn_of_what_is_below(export, &served, &mounts, warnings);
    Ok(())
}

/// Fails if the directory of an export cannot be read; says what is weak about it.
fn check_one(export: &ExportSpec, warnings: &mut Vec<String>) -> Result<(), CommandFailure> {
    if !export.sync {
        warnings.push(format!(
            "export dir:{}: with sync=no a crash of this machine takes back names and attributes that clients were told \
             are safe",
            export.directory
        ));
    }
    let complain = |error| CommandFailure::usage(format_args!("export dir:{}: {error}", export.directory));
    fs::read_dir(&export.directory).map_err(complain)?;
    if let Ok(Some(weakness)) = handle_weakness(Path::new(&export.directory)) {
        warnings.push(format!("export dir:{}: {weakness}", export.directory));
    }
    Ok(())
}

/// Where an export is by now. One that vanished since it was looked at is refused when it is opened.
fn real_place(export: &ExportSpec) -> Option<PathBuf> {
    fs::canonicalize(&export.directory).ok()
}

/// Warns of files that are exported twice; fails if their locks would be taken in two ways.
fn check_overlaps(
    export: &ExportSpec,
    others: &[&ExportSpec],
    mounts: &Mounts,
    warnings: &mut Vec<String>,
) -> Result<(), CommandFailure> {
    let location = |export: &ExportSpec| mounts.location(&real_place(export)?);
    let Some(own) = location(export) else { return Ok(()) };
    for other in others {
        if !location(other).is_some_and(|other| own.overlaps(&other)) {
            continue;
        }
        let named = format!(
            "exports {} (dir:{}) and {} (dir:{}) overlap",
            other.access.path, other.directory, export.access.path, export.directory
        );
        if other.locks_below != export.locks_below {
            return Err(CommandFailure::usage(format_args!(
                "{named} and differ in lock=, but a file has one set of locks; give both the same"
            )));
        }
        warnings.push(format!(
            "{named}: clients see the same files as different ones, and cache each for itself; export each directory once"
        ));
    }
    Ok(())
}

/// Warns of what lies below an export and is not exported with it.
fn warn_of_what_is_below(
    export: &ExportSpec,
    exported: &[&ExportSpec],
    mounts: &Mounts,
    warnings: &mut Vec<String>,
) {
    let Some(place) = real_place(export) else { return };
    let is_exported =
        |path: &Path| exported.iter().any(|other| real_place(other).is_some_and(|other| other == path));
    let points = mounts.below(&place);
    let left_out: Vec<&Path> = points.iter().copied().filter(|point| !is_exported(point)).collect();
    if !left_out.is_empty() {
        warnings.push(format!(
            "export dir:{}: other file systems are mounted below it and not exported with it: {}; give each that \
             clients need an export of its own",
            export.directory,
            some_of(&left_out)
        ));
    }
    let parts = other_parts(&place);
    let parts: Vec<&Path> =
        parts.iter().map(PathBuf::as_path).filter(|path| !points.contains(path)).collect();
    if !parts.is_empty() {
        let (what, repair) = if mounts.is_overlay(&place) {
            ("files of layers on different file systems", "mount the overlay with xino=on")
        } else {
            ("subvolumes", "give each that clients need an export of its own")
        };
        warnings.push(format!(
            "export dir:{}: {what} are not exported with it: {}; {repair}",
            export.directory,
            some_of(&parts)
        ));
    }
}

/// Entries of a directory that are looked at.
const ENTRIES_MAX: usize = 4096;

/// What is in a directory and in another file system. Only a start is made: what lies deeper is told when it is met.
fn other_parts(directory: &Path) -> Vec<PathBuf> {
    let device = |path: &Path| fs::symlink_metadata(path).map(|found| found.dev()).ok();
    let (Some(own), Ok(entries)) = (device(directory), fs::read_dir(directory)) else { return Vec::new() };
    let paths = entries.take(ENTRIES_MAX).filter_map(|entry| Some(entry.ok()?.path()));
    let mut others: Vec<_> = paths.filter(|path| device(path).is_some_and(|other| other != own)).collect();
    others.sort_unstable();
    others
}

/// The first few of some paths, and how many more there are.
fn some_of(paths: &[&Path]) -> String {
    const SHOWN_MAX: usize = 5;
    let shown: Vec<String> = paths.iter().take(SHOWN_MAX).map(|path| path.display().to_string()).collect();
    let more = paths.len().saturating_sub(SHOWN_MAX);
    shown.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
}

/// As whom the clients' superuser acts in exported directories, where that is not as itself: the first thing that
/// surprises.
pub(super) fn squashed(settings: &Settings) -> Vec<String> {
    let squashes =
        |export: &&ExportSpec| export.access.root_squash && !export.access.all_squash && geteuid().is_root();
    let line = |export: &ExportSpec| {
        let ExportSpec { directory, access: Export { path, anonymous_uid, .. }, .. } = export;
        format!("export dir:{directory} as {path}: root of clients is user {anonymous_uid} (root_squash)")
    };
    exported(settings).filter(squashes).map(line).collect()
}

/// Descriptors that all directories together may have, of as many as the process may have: `descriptors.rs` has raised
/// that. The rest is for connections.
fn descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    (limit / 2).min(DESCRIPTORS_MAX) as usize
}
