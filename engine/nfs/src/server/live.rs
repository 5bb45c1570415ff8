//! Changes of what is served, while it is served. Each reactor of a group makes them for itself.

use stag_vfs::Store;

use super::{ExportTable, ExportsError, ServicesWithLocks, Share, check_distinct};
use crate::export::Export;

/// What became of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// No export has that path here.
    NotServed,
    /// It is no longer served. Locks and opens of its files that were kept here are free.
    Done,
    /// The same, but its locks and opens stay until their owners give them up: another export is in the same file system, and
    /// locks do not tell by which of the two they were reached.
    LocksStay,
}

/// Serves one more export, whose files `store` keeps: clients find it from now on. In a group each reactor adds it, with a store of the
/// same directory; files in memory would be those of one reactor, which the others do not learn of here.
///
/// # Errors
///
/// As [`ExportTable::new`]: an export that is served has its path or its file system id.
pub fn add_export<S: Store + ?Sized>(
    services: &mut ServicesWithLocks<S>,
    export: Export,
    store: Box<S>,
) -> Result<(), ExportsError> {
    let version4 = &mut services.1;
    let added = version4.exports().borrow_mut().add(export, store);
    version4.follow_exports();
    added
}

/// Serves the export of the same path by other rules: who may use it, how, and as whom. Calls that begin from now on obey them.
/// `false`: no export has that path here.
pub fn change_export<S: Store + ?Sized>(services: &mut ServicesWithLocks<S>, export: &Export) -> bool {
    let version4 = &mut services.1;
    let exports = version4.exports();
    let has_changed = exports.borrow_mut().set_rules(export);
    version4.follow_exports();
    has_changed
}

/// Stops serving the export of a path: MNT does not find it, and its handles are stale. What opens and locks of its files were
/// kept here is free. Files in memory are dropped. A Call under way ends as if it had come before.
pub fn remove_export<S: Store + ?Sized>(services: &mut ServicesWithLocks<S>, path: &str) -> Removal {
    let version4 = &mut services.1;
    let removed = version4.exports().borrow_mut().remove(path);
    version4.follow_exports();
    match removed {
        Removed::NotServed => Removal::NotServed,
        Removed::Elsewhere => Removal::Done,
        Removed::Here { volume, is_shared: false } => {
            version4.locking().borrow_mut().free_volume(volume);
            Removal::Done
        }
        Removed::Here { is_shared: true, .. } => Removal::LocksStay,
    }
}

enum Removed {
    NotServed,
    /// Another reactor has its files.
    Elsewhere,
    Here {
        /// The file system that its files are in.
        volume: u64,
        /// Another export has files of that file system.
        is_shared: bool,
    },
}

impl<S: Store + ?Sized> ExportTable<S> {
    fn add(&mut self, export: Export, store: Box<S>) -> Result<(), ExportsError> {
        let added = Share::new(export, store);
        for (_, served) in self.served() {
            check_distinct(served.identity(), added.identity())?;
        }
        for other in &self.elsewhere {
            check_distinct((&other.export.path, other.fsid), added.identity())?;
        }
        // All reactors of a group list it in the same place.
        let path = &added.export().path;
        if !self.is_alone() && !self.order.contains(path) {
            self.order.push(path.clone());
        }
        self.shares.push(added);
        self.note_limits();
        Ok(())
    }

    fn set_rules(&mut self, export: &Export) -> bool {
        let other = self.elsewhere.iter_mut().map(|other| &mut other.export);
        if let Some(other) = other.into_iter().find(|other| other.path == export.path) {
            other.clone_from(export);
            return true;
        }
        let own = self.shares.iter_mut().find(|share| share.serves(&export.path));
        let is_here = own.is_some();
        if let Some(own) = own {
            own.set_export(export.clone());
        }
        self.note_limits();
        is_here
    }

    fn remove(&mut self, path: &str) -> Removed {
        let before = self.elsewhere.len();
        self.elsewhere.retain(|other| other.export.path != path);
        if self.elsewhere.len() < before {
            return Removed::Elsewhere;
        }
        let Some(own) = self.shares.iter_mut().find(|share| share.serves(path)) else {
            return Removed::NotServed;
        };
        own.remove();
        let volume = own.volume().profile().volume;
        let is_shared = self.served().any(|(_, share)| share.volume().profile().volume == volume);
        Removed::Here { volume, is_shared }
    }
}
