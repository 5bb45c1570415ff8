//! A client and the store that its server has: in memory, or a directory of the machine.

use std::ops::{Deref, DerefMut};

use stag_disk::{Disk, DiskConfig};
use stag_fabric::sim::FaultPlan;
use stag_nfs::server::LockingConfig;
use stag_nfs::state::Recovered;
use stag_stores::directory::{DirectoryConfig, DirectoryStore, MayWait};
use stag_testing::Scratch;

use super::client::{Client, FORE};
use super::pair::Pair;

/// A client with a session, and where its files are.
pub(crate) struct Lab {
    client: Client,
    /// The directories of the exports, if they are such.
    #[allow(dead_code, reason = "not every setting has the tests that use it")]
    pub(crate) scratch: Vec<Scratch>,
}

impl Lab {
    /// A client of a server with these exports, by minor version 2.
    pub(crate) fn new(exports: &[&str]) -> Lab {
        if !super::IS_DIRECTORY {
            return Lab { client: Client::new(exports), scratch: Vec::new() };
        }
        let scratch: Vec<_> = exports.iter().map(|_| Scratch::folder()).collect();
        let locking = (LockingConfig::default(), Recovered::nothing());
        let pair = Pair::of(exports, 1, FaultPlan::default(), locking, |index, pool| {
            // Time is simulated: no thread answers in it.
            let config = DirectoryConfig {
                may_wait: Some(MayWait::Nothing),
                locks_below: true,
                ..DirectoryConfig::new(&scratch[index].0, index as u64 + 1)
            };
            let disk = Disk::new(&DiskConfig { uring: false, helpers: false, ..DiskConfig::default() }, &[]);
            Box::new(DirectoryStore::new(&config, disk, pool.clone()).unwrap())
        });
        Lab { client: Client::of(pair, b"client", FORE), scratch }
    }

    /// The same over files in memory, for a sweep: all that is left to chance is in the seed.
    #[allow(dead_code, reason = "not every setting has the tests that use it")]
    pub(crate) fn of_seed(exports: &[&str], seed: u64) -> Lab {
        Lab { client: Client::of(Pair::of_seed(exports, seed), b"client", FORE), scratch: Vec::new() }
    }
}

impl Deref for Lab {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for Lab {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}
