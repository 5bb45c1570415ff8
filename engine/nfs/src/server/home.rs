//! Decides at which reactor of a group a Call is executed.
//!
//! | what | where |
//! |---|---|
//! | files in memory | at the reactor that has them |
//! | a directory: what changes nothing | where the Call came in: each reactor has a store of its own |
//! | a directory: what changes something, and COMMIT | at the home of the caller: Calls that must not be done twice are
//! remembered at one place, and a COMMIT sees the losses of the caller's data |
//! | locks on files in memory | at the reactor that has the file |
//! | locks on files of directories | at one reactor for all of them |
//! | news of hosts that restarted | at all reactors: each frees what it keeps for that host |
//!
//! A handle leads to its export without its tag being checked: a forged one is carried, and refused where it arrives.

use stag_rpc::{Call, Home};
use stag_wire::mount3::PathArguments;
use stag_wire::nfs3::Handle;

use super::mount::depth;
use super::{Elsewhere, ExportTable};
use crate::export::Export;
use crate::handle;
use stag_vfs::{Store, Volume};

impl<S: Store + ?Sized> ExportTable<S> {
    /// The exports of all reactors: in a group in an order that does not depend on the reactor.
    pub(super) fn all(&self) -> Vec<&Export> {
        let own = self.served().map(|(_, share)| (share.export(), share.volume().profile().fsid));
        let others = self.elsewhere.iter().map(|other| (&other.export, other.fsid));
        let mut all: Vec<_> = own.chain(others).collect();
        if !self.is_alone() {
            let place = |path: &str| self.order.iter().position(|listed| listed == path);
            all.sort_by_key(|(export, fsid)| (place(&export.path).unwrap_or(usize::MAX), *fsid));
        }
        all.into_iter().map(|(export, _)| export).collect()
    }

    fn volume_of(&self, fsid: u64) -> Option<&Volume<S>> {
        let volumes = self.served().map(|(_, share)| share.volume());
        volumes.into_iter().find(|volume| volume.profile().fsid == fsid)
    }

    /// Whether all files are here.
    pub(super) fn is_alone(&self) -> bool {
        self.locks_at.is_none()
    }

    /// Where a Call is executed whose first argument is a handle. `writes`: it changes the object.
    #[inline]
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
        let own = self.volume_of(fsid);
        let is_everywhere = own.is_some_and(|volume| volume.profile().can.is_at_every_reactor);
        if is_everywhere && writes { Home::OfCaller } else { Home::Here }
    }

    /// Where a Call is executed whose argument is a path: where the files of the longest export are that it is at or below.
    pub(super) fn home_of_path(&self, call: &Call<'_>) -> Home {
        let Ok(path) = call.arguments().value::<PathArguments<'_>>() else { return Home::Here };
        let depth = |export: &Export| depth(export, path.path.0);
        let own = self.served().map(|(_, share)| depth(share.export())).max().unwrap_or(0);
        let other = self.elsewhere.iter().max_by_key(|other| depth(&other.export));
        match other {
            Some(Elsewhere { export, reactor, .. }) if depth(export) > own => Home::At(*reactor),
            _ => Home::Here,
        }
    }

    /// Drops the files, which are no longer asked for, if other reactors' memory may be in them.
    pub(super) fn give_back(&mut self) {
        if !self.is_alone() {
            self.shares.clear();
        }
    }

    /// Where the locks on the file of a handle are kept.
    pub(super) fn home_of_locks(&self, file: &[u8]) -> Home {
        handle::fsid(file).map_or(Home::Here, |fsid| self.home_of_state(fsid))
    }

    /// Where locks and opens of the files of an export are kept.
    pub(super) fn home_of_state(&self, fsid: u64) -> Home {
        let Some(locks_at) = self.locks_at else { return Home::Here };
        if let Some(other) = self.elsewhere.iter().find(|other| other.fsid == fsid) {
            return Home::At(other.reactor);
        }
        let own = self.volume_of(fsid);
        let is_everywhere = own.is_some_and(|volume| volume.profile().can.is_at_every_reactor);
        if is_everywhere { Home::At(locks_at) } else { Home::Here }
    }

    /// Where it is heard that a host restarted.
    pub(super) fn home_of_restarts(&self) -> Home {
        if self.is_alone() { Home::Here } else { Home::Everywhere }
    }
}

#[cfg(test)]
mod tests {
    use stag_rpc::{EngineConfig, Memory};
    use stag_runtime::ReactorId;
    use stag_vfs::Timestamp;

    use super::*;
    use stag_stores::memory::{MemoryConfig, MemoryStore, RootAttributes};

    /// The paths of what a reactor lists that has the files of one export, while another has those of the others. The letter is
    /// the export's number.
    fn listed(own: &str, others: &[&str], order: &[&str]) -> Vec<String> {
        let memory = Memory::new(&EngineConfig::default(), 1 << 20).unwrap();
        let pool = memory.pools.payload;
        let fsid = |path: &str| u64::from(path.as_bytes()[1]);
        let config = MemoryConfig {
            fsid: fsid(own),
            data_len_max: 1 << 16,
            objects_max: 8,
            names_max: 8,
            root: RootAttributes { mode: 0o755, uid: 0, gid: 0 },
        };
        let store = MemoryStore::new(&config, pool.clone(), Timestamp::default()).unwrap();
        let export = Export::new;
        let reactor = ReactorId::new(1).unwrap();
        let elsewhere =
            others.iter().map(|path| Elsewhere { export: export(path), fsid: fsid(path), reactor }).collect();
        let exports = ExportTable::new(vec![(export(own), Box::new(store))], pool).unwrap();
        let exports = exports.in_group(elsewhere, reactor).unwrap();
        let exports = exports.listed_in_order(order.iter().map(ToString::to_string).collect());
        exports.all().iter().map(|export| export.path.clone()).collect()
    }

    #[test]
    fn all_reactors_list_the_exports_in_the_same_order() {
        for (order, all) in [(&[][..], ["/a", "/b", "/c"]), (&["/c", "/a", "/b"], ["/c", "/a", "/b"])] {
            assert_eq!(listed("/b", &["/c", "/a"], order), all);
            assert_eq!(listed("/a", &["/b", "/c"], order), all);
            assert_eq!(listed("/c", &["/a", "/b"], order), all);
        }
    }
}
