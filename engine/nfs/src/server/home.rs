//! Where Calls are executed in a group of reactors, by what they are about.
//!
//! | what | where |
//! |---|---|
//! | files in memory | at the reactor that has them |
//! | a directory: what changes nothing | where the Call came in: each reactor has a store of its own |
//! | a directory: what changes something, and COMMIT | at the home of the caller: what must not be done twice is remembered at one place, and a COMMIT hears of what was lost of the caller's data |
//! | locks on files in memory | at the reactor that has the file |
//! | locks on files of directories | at one reactor for all of them |
//! | news of hosts that restarted | at all reactors: each frees what it keeps for that host |
//!
//! A handle leads to its export without its tag being checked: a forged one travels, and is refused where it arrives.

use stag_rpc::{Call, Home};
use stag_wire::mount3::PathArguments;
use stag_wire::nfs3::Handle;

use super::mount::rest;
use super::{Elsewhere, Exports};
use crate::export::{Export, Medium};
use crate::handle;
use crate::store::Store;

impl<S: Store> Exports<S> {
    /// The exports, whoever has their files: first those whose files are here.
    pub(super) fn all(&self) -> impl Iterator<Item = &Export> {
        self.shares.iter().map(|(export, _)| export).chain(self.elsewhere.iter().map(|other| &other.export))
    }

    /// Whether all files are here.
    fn is_alone(&self) -> bool {
        self.locks_at.is_none()
    }

    /// Where a Call is executed whose first argument is a handle. `writes`: it changes the object.
    pub(super) fn home_of_object(&self, call: &Call<'_>, writes: bool) -> Home {
        if self.is_alone() {
            return Home::Here;
        }
        let fsid = call.arguments().value::<Handle<'_>>().ok().and_then(|handle| handle::fsid(handle.0));
        // What is no handle of ours is refused anywhere.
        let Some(fsid) = fsid else { return Home::Here };
        if let Some(other) = self.elsewhere.iter().find(|other| other.fsid == fsid) {
            return Home::At(other.reactor);
        }
        let own = self.shares.iter().find(|(_, store)| store.fsid() == fsid);
        match own.map(|(export, _)| export.medium) {
            Some(Medium::Directory) if writes => Home::OfCaller,
            _ => Home::Here,
        }
    }

    /// Where a Call is executed whose argument is a path: where the files of the longest export are that it is at or below.
    pub(super) fn home_of_path(&self, call: &Call<'_>) -> Home {
        let Ok(path) = call.arguments().value::<PathArguments<'_>>() else { return Home::Here };
        let depth =
            |export: &Export| rest(export.path.as_bytes(), path.path.0).map_or(0, |_| export.path.len());
        let own = self.shares.iter().map(|(export, _)| depth(export)).max().unwrap_or(0);
        let other = self.elsewhere.iter().max_by_key(|other| depth(&other.export));
        match other {
            Some(Elsewhere { export, reactor, .. }) if depth(export) > own => Home::At(*reactor),
            _ => Home::Here,
        }
    }

    /// Drops the files, for nobody asks for them any more, if other reactors' memory may be in them.
    pub(super) fn give_back(&mut self) {
        if !self.is_alone() {
            self.shares.clear();
        }
    }

    /// Where the locks on the file of a handle are kept.
    pub(super) fn home_of_locks(&self, file: &[u8]) -> Home {
        let (Some(locks_at), Some(fsid)) = (self.locks_at, handle::fsid(file)) else { return Home::Here };
        if let Some(other) = self.elsewhere.iter().find(|other| other.fsid == fsid) {
            return Home::At(other.reactor);
        }
        let own = self.shares.iter().find(|(_, store)| store.fsid() == fsid);
        match own.map(|(export, _)| export.medium) {
            Some(Medium::Directory) => Home::At(locks_at),
            _ => Home::Here,
        }
    }

    /// Where it is heard that a host restarted.
    pub(super) fn home_of_restarts(&self) -> Home {
        if self.is_alone() { Home::Here } else { Home::Everywhere }
    }
}
