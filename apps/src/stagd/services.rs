//! The programs that the server serves, and the files behind them.

use stag::nfs::export::Export;
use stag::nfs::memory::{MemoryConfig, MemoryStore, RootAttributes};
use stag::nfs::server::{self, Exports, TimeOfDay};
use stag::rpc::{Pools, Services};
use stag::runtime::{Clock, WallClock};

use super::Settings;
use super::plan::{PAGE_LEN, Plan};
use crate::failure::Failure;
use crate::values::Size;

/// The root of an export is for everybody, and what is in it for its owners: like `/tmp`.
const ROOT_MODE: u32 = 0o1777;

/// Makes NFS and MOUNT, and an empty store for each export.
pub(super) fn make(
    settings: &Settings,
    plan: &Plan,
    pools: &Pools,
    clock: &Clock,
) -> Result<impl Services + use<>, Failure> {
    let now = clock.now();
    let mut time = TimeOfDay::System(WallClock::new(now));
    let shares = shares(&settings.exports, plan)?;
    let mut served = Vec::new();
    for (number, ((_, export), share)) in settings.exports.iter().zip(shares).enumerate() {
        let root = RootAttributes { mode: ROOT_MODE, uid: export.anonymous_uid, gid: export.anonymous_gid };
        let config = MemoryConfig {
            fsid: number as u64 + 1,
            data_len_max: share.data_len_max,
            objects_max: share.objects_max,
            names_max: share.objects_max,
            root,
        };
        let store = MemoryStore::new(&config, pools.payload.clone(), time.at(now));
        served.push((export.clone(), store.map_err(Failure::run)?));
    }
    let exports = Exports::new(served, pools.payload.clone()).map_err(Failure::usage)?;
    Ok(server::services(exports, time))
}

/// What an export may hold.
struct Share {
    data_len_max: u64,
    objects_max: u32,
}

/// Gives each export the size that it says; those that say none share the rest.
fn shares(exports: &[(String, Export)], plan: &Plan) -> Result<Vec<Share>, Failure> {
    let said: u64 = exports.iter().filter_map(|(_, export)| export.size).fold(0, u64::saturating_add);
    let silent = exports.iter().filter(|(_, export)| export.size.is_none()).count() as u64;
    let left =
        plan.files_len_max.checked_sub(said).filter(|left| silent == 0 || *left >= PAGE_LEN as u64 * silent);
    let Some(left) = left else {
        return Err(Failure::usage(format_args!(
            "the exports' sizes add up to {}, but {} are for files; lower a size= or raise --memory",
            Size(said),
            Size(plan.files_len_max),
        )));
    };
    let objects_max = plan.objects_max / exports.len() as u32;
    let share = |export: &Export| Share {
        data_len_max: export.size.unwrap_or(left / silent.max(1)),
        objects_max: export.objects.min(objects_max),
    };
    Ok(exports.iter().map(|(_, export)| share(export)).collect())
}
