//! The steps of the demo. Each goes through the whole tree and says how long it took.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use serde::Serialize;
use sha2::{Digest, Sha256};
use stag_runtime::Clock;
use stag_server::copy::read_full;
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::remote::{Remote, RemoteHandle, RemoteNode};
use stag_server::url::Url;

use super::progress::Progress;
use super::tree::{Kind, Object, Tree};

/// Octets on their way at once.
const WINDOW: usize = 8 << 20;

/// Mismatches that are told one by one.
const TOLD_MAX: u64 = 10;

/// A finished step; an object within that of `--json`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Step {
    /// Its name.
    pub(super) step: &'static str,
    /// Files, folders or names that it went through.
    pub(super) files: u64,
    /// Octets of files.
    pub(super) bytes: u64,
    /// Time it took.
    pub(super) seconds: f64,
    /// Time of that in which the data of files was on its way: without digests, and without this machine's
    /// file system.
    pub(super) transfer_seconds: f64,
}

type Hash = [u8; 32];

/// What is known of an object once it is at the server.
#[derive(Clone, Debug)]
struct Copied {
    handle: RemoteHandle,
    /// The name that it has there now.
    name: OsString,
    /// Octets that were sent.
    len: u64,
    /// Their digest, of a file.
    hash: Option<Hash>,
    fileid: u64,
}

/// A run of the demo.
pub(super) struct Run<'t> {
    /// The connection.
    pub(super) remote: Remote,
    tree: &'t Tree,
    /// The export.
    export: RemoteNode,
    url: Url,
    clock: Clock,
    /// Time in this step in which data was on its way.
    transfer: Duration,
    copied: Vec<Copied>,
    buffer: Vec<u8>,
    /// Steps done.
    pub(super) steps: Vec<Step>,
    /// Things that are not as they should be.
    pub(super) mismatches: u64,
}

impl<'t> Run<'t> {
    /// Connects to the empty export at `url`.
    pub(super) fn new(tree: &'t Tree, url: Url) -> Result<Run<'t>, CommandFailure> {
        // Its server is its own: without it there is nothing to go on with.
        let mut remote = Remote::connect_with(&url, false)?;
        let export = remote.find(&url.path).map_err(|error| error.at(&url))?;
        Ok(Run {
            remote,
            tree,
            export,
            url,
            clock: Clock::start(),
            transfer: Duration::ZERO,
            copied: Vec::with_capacity(tree.objects.len()),
            buffer: vec![0; WINDOW],
            steps: Vec::new(),
            mismatches: 0,
        })
    }

    /// Octets free at the server.
    pub(super) fn free(&mut self) -> Result<u64, CommandFailure> {
        let space = self.remote.space(&self.export.handle).map_err(|error| error.at(&self.url))?;
        Ok(space.bytes_free)
    }

    /// Copies the tree to the server, and takes the digest of what it sends.
    pub(super) fn copy_in(&mut self, out: &mut Output) -> Result<(), CommandFailure> {
        let begun = self.clock.now();
        let mut progress = Progress::new("copied in", self.tree.files, self.tree.bytes, out);
        for object in &self.tree.objects {
            let copied = self.copy_object(object, &mut progress)?;
            self.copied.push(copied);
        }
        self.done(progress, begun, out)
    }

    fn copy_object(&mut self, object: &Object, progress: &mut Progress) -> Result<Copied, CommandFailure> {
        let folder = match object.folder {
            Some(folder) => self.copied[folder].handle.clone(),
            None => self.export.handle.clone(),
        };
        let fail = |error: stag_server::remote::RemoteError| error.at(object.path.display());
        let name = object.name.clone();
        let (node, len, hash) = match &object.kind {
            Kind::Folder => (self.remote.make_folder(&folder, &name, 0o755).map_err(fail)?, 0, None),
            Kind::Link(held) => {
                let node = self.remote.make_link(&folder, &name, held.as_bytes()).map_err(fail)?;
                (node, held.len() as u64, None)
            }
            Kind::File { mode, .. } => {
                // The demo reads its own files back: it must be able to, whatever their bits.
                let node = self.remote.create(&folder, &name, mode | 0o600).map_err(fail)?;
                let (len, hash) = self.send(object, &node.handle, progress)?;
                (node, len, Some(hash))
            }
        };
        Ok(Copied { handle: node.handle, name, len, hash, fileid: node.attributes.fileid })
    }

    fn send(
        &mut self,
        object: &Object,
        handle: &RemoteHandle,
        progress: &mut Progress,
    ) -> Result<(u64, Hash), CommandFailure> {
        let path = object.path.display();
        let local = |error: std::io::Error| CommandFailure::run(format_args!("{path}: {error}"));
        let mut file = File::open(&object.path).map_err(local)?;
        let mut hash = Sha256::new();
        let mut offset = 0;
        loop {
            let len = read_full(&mut file, &mut self.buffer).map_err(local)?;
            let data = &self.buffer[..len];
            hash.update(data);
            if len > 0 {
                let begun = self.clock.now();
                self.remote.write(handle, offset, data).map_err(|error| error.at(&path))?;
                self.transfer += self.clock.now() - begun;
            }
            offset += len as u64;
            if len < self.buffer.len() {
                progress.file(len as u64);
                return Ok((offset, hash.finalize().into()));
            }
            progress.more(len as u64);
        }
    }

    /// Lists every folder, and compares names, kinds, sizes and file ids.
    pub(super) fn list(&mut self, out: &mut Output) -> Result<(), CommandFailure> {
        let begun = self.clock.now();
        let mut progress = Progress::new("listed", self.tree.objects.len() as u64, 0, out);
        let mut expected: HashMap<usize, HashMap<OsString, usize>> = HashMap::new();
        for (index, object) in self.tree.objects.iter().enumerate() {
            if object.kind == Kind::Folder {
                expected.entry(index).or_default();
            }
            if let Some(folder) = object.folder {
                expected.entry(folder).or_default().insert(self.copied[index].name.clone(), index);
            }
        }
        for (folder, mut expected) in expected {
            let path = self.tree.objects[folder].path.display();
            let handle = &self.copied[folder].handle;
            for entry in self.remote.list(handle).map_err(|error| error.at(&path))? {
                progress.file(0);
                let name = entry.name.display();
                let Some(index) = expected.remove(&entry.name) else {
                    mismatch(
                        &mut self.mismatches,
                        format_args!("{path}: lists {name}, which was not put there"),
                    );
                    continue;
                };
                let (object, copied) = (&self.tree.objects[index], &self.copied[index]);
                let node = match entry.node {
                    Ok(node) => node,
                    Err(error) => {
                        mismatch(&mut self.mismatches, format_args!("{path}/{name}: {error}"));
                        continue;
                    }
                };
                let attributes = node.attributes;
                let same_kind = (object.kind == Kind::Folder) == node.is_folder();
                let same_len = object.kind == Kind::Folder || attributes.size == copied.len;
                if !same_kind || !same_len || attributes.fileid != copied.fileid {
                    mismatch(
                        &mut self.mismatches,
                        format_args!("{path}: {name} is listed with other attributes"),
                    );
                }
            }
            for name in expected.keys() {
                mismatch(&mut self.mismatches, format_args!("{path}: {} is not listed", name.display()));
            }
        }
        self.done(progress, begun, out)
    }

    /// Reads everything back and compares digests.
    pub(super) fn read_back(&mut self, out: &mut Output) -> Result<(), CommandFailure> {
        let begun = self.clock.now();
        let mut progress = Progress::new("read back", self.tree.files, self.tree.bytes, out);
        for (object, copied) in self.tree.objects.iter().zip(&self.copied) {
            let path = object.path.display();
            if let Kind::Link(held) = &object.kind {
                let found = self.remote.read_link(&copied.handle).map_err(|error| error.at(&path))?;
                if found != held.as_bytes() {
                    mismatch(&mut self.mismatches, format_args!("{path}: the link holds something else"));
                }
            }
            let Some(expected) = copied.hash else { continue };
            let mut hash = Sha256::new();
            let mut offset = 0;
            loop {
                let begun = self.clock.now();
                let read = self.remote.read(&copied.handle, offset, &mut self.buffer);
                let len = read.map_err(|error| error.at(&path))?;
                self.transfer += self.clock.now() - begun;
                hash.update(&self.buffer[..len]);
                offset += len as u64;
                if len < self.buffer.len() {
                    progress.file(len as u64);
                    break;
                }
                progress.more(len as u64);
            }
            let found: Hash = hash.finalize().into();
            if found != expected || offset != copied.len {
                mismatch(
                    &mut self.mismatches,
                    format_args!(
                        "{path}: {offset} bytes with SHA-256 {} came back, {} with {} were sent",
                        Hex(&found),
                        copied.len,
                        Hex(&expected)
                    ),
                );
            }
        }
        self.done(progress, begun, out)
    }

    /// Gives everything but the root another name.
    pub(super) fn rename(&mut self, out: &mut Output) -> Result<(), CommandFailure> {
        let begun = self.clock.now();
        let mut progress = Progress::new("renamed", self.tree.objects.len() as u64, 0, out);
        for (index, object) in self.tree.objects.iter().enumerate() {
            let Some(folder) = object.folder else { continue };
            let folder = self.copied[folder].handle.clone();
            // Not longer than a name may be, whatever the old one was.
            let name = OsString::from(format!("renamed-{index}"));
            let renamed = self.remote.rename((&folder, &self.copied[index].name), (&folder, &name));
            renamed.map_err(|error| error.at(object.path.display()))?;
            self.copied[index].name = name;
            progress.file(0);
        }
        self.done(progress, begun, out)
    }

    /// Removes everything, and checks that nothing is left.
    pub(super) fn remove(&mut self, out: &mut Output) -> Result<(), CommandFailure> {
        let begun = self.clock.now();
        let mut progress = Progress::new("removed", self.tree.objects.len() as u64, 0, out);
        for (object, copied) in self.tree.objects.iter().zip(&self.copied).rev() {
            let folder = match object.folder {
                Some(folder) => &self.copied[folder].handle,
                None => &self.export.handle,
            };
            let name: &OsStr = &copied.name;
            let removed = match object.kind {
                Kind::Folder => self.remote.remove_folder(folder, name),
                _ => self.remote.remove(folder, name),
            };
            removed.map_err(|error| error.at(object.path.display()))?;
            progress.file(0);
        }
        let left = self.remote.list(&self.export.handle).map_err(|error| error.at(&self.url))?;
        for entry in left {
            mismatch(&mut self.mismatches, format_args!("{}: is left over", entry.name.display()));
        }
        self.done(progress, begun, out)
    }

    /// Checks a number that must be as it was.
    pub(super) fn expect_free(&mut self, before: u64) -> Result<(), CommandFailure> {
        let now = self.free()?;
        if now != before {
            mismatch(
                &mut self.mismatches,
                format_args!("{now} bytes are free at the end, {before} at the start"),
            );
        }
        Ok(())
    }

    fn done(&mut self, progress: Progress, begun: Duration, out: &mut Output) -> Result<(), CommandFailure> {
        let elapsed = self.clock.now() - begun;
        let (step, files, bytes) = (progress.name(), progress.files, progress.bytes);
        let transfer = std::mem::take(&mut self.transfer);
        let (seconds, transfer_seconds) = (elapsed.as_secs_f64(), transfer.as_secs_f64());
        self.steps.push(Step { step, files, bytes, seconds, transfer_seconds });
        progress.finish(elapsed, out)
    }
}

/// Counts a mismatch, and tells the first few.
fn mismatch(count: &mut u64, what: std::fmt::Arguments<'_>) {
    *count += 1;
    if *count <= TOLD_MAX {
        eprintln!("stag demo: MISMATCH: {what}");
    }
}

struct Hex<'a>(&'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
