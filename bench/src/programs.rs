//! What servers of a measurement serve: NFS over a memory store, MOUNT, and the echo program.

use std::time::Duration;

use anyhow::Result;
use stag_memory::Pool;
use stag_nfs::export::Export;
use stag_nfs::server::{ExportTable, Mount, Nfs, TimeOfDay, services};
use stag_rpc::{Call, Outcome, Procedure, Reply, Service};
use stag_runtime::WallClock;
use stag_stores::memory::{MemoryConfig, MemoryStore, RootAttributes};
use stag_vfs::Store;

/// Number of the echo program, from the range that RFC 5531 leaves to users.
pub const ECHO_PROGRAM: u32 = 0x2000_7a61;

/// The export that holds the measured files.
pub const EXPORT: &str = "/perf";

/// What the engines of this crate serve: files and the echo program, or nothing, as clients. One type, because each is a copy of the engine's code
/// for every fabric to compile.
pub(crate) type Programs = Option<(Nfs<dyn Store>, Mount<dyn Store>, Echo)>;

/// Makes the programs of a server: NFS over an empty store for this many octets and files, MOUNT, and the echo program.
///
/// # Errors
///
/// When the store cannot get its memory.
pub(crate) fn programs(payload: &Pool, (data_len_max, files): (u64, u32), now: Duration) -> Result<Programs> {
    let mut time = TimeOfDay::System(WallClock::new(now));
    let config = MemoryConfig {
        fsid: 1,
        data_len_max,
        objects_max: 4096 + files,
        names_max: 4096 + files,
        root: RootAttributes { mode: 0o777, uid: 0, gid: 0 },
    };
    let store = MemoryStore::new(&config, payload.clone(), time.at(now))?;
    let export = Export { root_squash: false, ..Export::new(EXPORT) };
    let exports = ExportTable::new(vec![(export, Box::new(store) as Box<dyn Store>)], payload.clone())?;
    Ok(serving(exports, time))
}

/// The programs of a server of these exports.
pub(crate) fn serving(exports: ExportTable<dyn Store>, time: TimeOfDay) -> Programs {
    let (nfs, mount, _) = services(exports, time);
    Some((nfs, mount, Echo { results: Vec::new() }))
}

/// The echo program, version 1: procedure 1 returns its arguments, procedure 2 as many octets as its argument says.
pub(crate) struct Echo {
    /// What procedure 2 returns the start of; made when it is first called.
    results: Vec<u8>,
}

static ECHO: Procedure = Procedure::plain("ECHO");

static RESULTS: Procedure = Procedure::plain("RESULTS");

/// Octets of results at most.
const RESULTS_LEN_MAX: usize = 1 << 20;

impl Service for Echo {
    fn program(&self) -> u32 {
        ECHO_PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        (1, 1)
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<&'static Procedure> {
        match procedure {
            1 => Some(&ECHO),
            2 => Some(&RESULTS),
            _ => None,
        }
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        if call.procedure == 2 {
            match call.arguments().u32() {
                Ok(len) if len as usize <= RESULTS_LEN_MAX => {
                    self.results.resize(RESULTS_LEN_MAX, 0x5a);
                    let results = &self.results[..len as usize];
                    reply.success(|writer| writer.opaque(results));
                }
                _ => reply.garbage_arguments(),
            }
            return Outcome::Done;
        }
        match call.arguments().opaque(1 << 20) {
            Ok(octets) => reply.success(|writer| writer.opaque(octets)),
            Err(_) => reply.garbage_arguments(),
        }
        Outcome::Done
    }
}
