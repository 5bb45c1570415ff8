//! The programs that the server serves, and the files behind them.

use std::cell::RefCell;
use std::fs;
use std::rc::Rc;

use stag::nfs::callout::{CallOutConfig, TcpCallOut};
use stag::nfs::export::{Export, Medium};
use stag::nfs::handle::HandleKey;
use stag::nfs::memory::{MemoryConfig, MemoryStore, RootAttributes};
use stag::nfs::server::{self, Exports, Locking, LockingConfig, Registry, SharedLocking, TimeOfDay};
use stag::nfs::state::Recovered;
use stag::nfs::stores::AnyStore;
use stag::rpc::{Pools, Services};
use stag::runtime::{Clock, WallClock};

use super::directories::Directories;
use super::plan::{PAGE_LEN, Plan};
use super::{Settings, state};
use crate::failure::Failure;
use crate::values::Size;

/// The root of an export is for everybody, and what is in it for its owners: like `/tmp`.
const ROOT_MODE: u32 = 0o1777;

/// Makes all programs, and a store for each export: an empty one in memory, or a directory. What rpcbind is to tell of
/// them is looked up in the registry; what there is to say of the directories goes to `notes`.
pub(super) fn make(
    settings: &Settings,
    plan: &Plan,
    pools: &Pools,
    clock: &Clock,
    (registry, locking): (Registry, SharedLocking),
    notes: &mut Vec<String>,
) -> Result<impl Services + use<>, Failure> {
    let now = clock.now();
    let mut time = TimeOfDay::System(WallClock::new(now));
    let shares = shares(&settings.exports, plan)?;
    let mut directories = Directories::new(settings, plan, pools);
    let mut served: Vec<(Export, AnyStore)> = Vec::new();
    for (number, ((_, export), share)) in settings.exports.iter().zip(shares).enumerate() {
        let store = match export.medium {
            Medium::Memory => {
                let (uid, gid) = (export.anonymous_uid, export.anonymous_gid);
                let config = MemoryConfig {
                    fsid: number as u64 + 1,
                    data_len_max: share.data_len_max,
                    objects_max: share.objects_max,
                    names_max: share.objects_max,
                    root: RootAttributes { mode: ROOT_MODE, uid, gid },
                };
                let store = MemoryStore::new(&config, pools.payload.clone(), time.at(now));
                store.map_err(Failure::run)?.into()
            }
            Medium::Directory => directories.open(export, share.objects_max)?.into(),
        };
        served.push((export.clone(), store));
    }
    notes.extend(directories.notes());
    let exports = Exports::new(served, pools.payload.clone()).map_err(Failure::usage)?;
    let key = match directories.is_used() {
        true => state::handle_key(settings.state_dir.as_deref())?,
        false => HandleKey::new(),
    };
    let exports = exports.with_key(key);
    Ok(server::services_with_locks(exports, time, locking, registry))
}

/// Sees that the exports have the room that they ask for.
pub(super) fn check(settings: &Settings, plan: &Plan) -> Result<(), Failure> {
    shares(&settings.exports, plan).map(drop)
}

/// What NLM and NSM begin with: nothing, or what is known from before a restart.
pub(super) fn locking(settings: &Settings, plan: &Plan) -> Result<SharedLocking, Failure> {
    let recovered = match &settings.state_dir {
        Some(directory) => Recovered::from_directory(directory)
            .map_err(|error| Failure::run(format_args!("--state-dir {}: {error}", directory.display())))?,
        None => Recovered::nothing(),
    };
    // Other hosts know this one by its name, if it has any.
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let config = LockingConfig {
        locks: plan.locks,
        grace: settings.grace,
        host_name: if name.trim().is_empty() { "stagd".to_owned() } else { name.trim().to_owned() },
        ..LockingConfig::default()
    };
    let out = TcpCallOut::new(CallOutConfig::default());
    Ok(Rc::new(RefCell::new(Locking::new(config, recovered, Box::new(out)))))
}

/// What an export may hold.
struct Share {
    data_len_max: u64,
    objects_max: u32,
}

/// Gives each export in memory the size that it says; those that say none share the rest.
fn shares(exports: &[(String, Export)], plan: &Plan) -> Result<Vec<Share>, Failure> {
    let said: u64 = exports.iter().filter_map(|(_, export)| export.size).fold(0, u64::saturating_add);
    let is_silent = |export: &Export| export.medium == Medium::Memory && export.size.is_none();
    let silent = exports.iter().filter(|(_, export)| is_silent(export)).count() as u64;
    let left =
        plan.files_len_max.checked_sub(said).filter(|left| silent == 0 || *left >= PAGE_LEN as u64 * silent);
    let Some(left) = left else {
        return Err(Failure::usage(format_args!(
            "export: the sizes (size=) add up to {}, but {} of --memory are for files; lower a size= or raise --memory",
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
