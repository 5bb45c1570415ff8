//! The programs that the server serves, and the files behind them.

use std::cell::RefCell;
use std::fs;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::exports::Medium;
use stag_nfs::callout::{CallOutConfig, TcpCallOut};
use stag_nfs::export::Export;
use stag_nfs::handle::HandleKey;
use stag_nfs::known_clients::KnownClients;
use stag_nfs::server::{
    self, Config4, Elsewhere, ExportTable, Locking, LockingConfig, LockingLink, Registry, SharedLocking,
    SharedSessions, TimeOfDay,
};
use stag_nfs::state::Recovered;
use stag_rpc::{Observed, Pools};
use stag_runtime::{Clock, ReactorId, WallClock};
use stag_state::client::ClientConfig;
use stag_stores::directory::WriteVerifier;
use stag_stores::memory::{MemoryConfig, MemoryStore, RootAttributes};
use stag_vfs::Store;

use super::directories::Directories;
use super::plan::Plan;
use super::{Settings, state};
use crate::failure::CommandFailure;
use crate::programs::Programs;

/// The root of an export is for everybody, and what is in it for its owners: like `/tmp`.
const ROOT_MODE: u32 = 0o1777;

/// What the reactors have in common, made once: keys, verifiers, and what is known from before a restart.
pub(super) struct Common {
    key: HandleKey,
    /// Of each export that is a directory.
    verifiers: Vec<WriteVerifier>,
    /// Of each reactor, until it is made.
    locks: Mutex<Vec<Option<(Recovered, LockingLink)>>>,
    /// Of version 4, the same at each reactor.
    version4: Config4,
    sessions: SharedSessions,
    known: KnownClients,
}

impl Common {
    /// For a server of `settings`, on all its cores.
    pub(super) fn new(settings: &Settings, plan: &Plan) -> Result<Common, CommandFailure> {
        let (recovered, known) = match &settings.state_dir {
            Some(directory) => {
                let fail =
                    |error| CommandFailure::run(format_args!("--state-dir {}: {error}", directory.display()));
                (
                    Recovered::from_directory(directory).map_err(fail)?,
                    KnownClients::from_directory(directory).map_err(fail)?,
                )
            }
            None => (Recovered::nothing(), KnownClients::nothing(epoch())),
        };
        let has_directory = settings.exports.iter().any(|(_, export)| export.medium == Medium::Directory);
        let key = match has_directory {
            true => state::handle_key(settings.state_dir.as_deref())?,
            false => HandleKey::new(),
        };
        let links = LockingLink::all(settings.core_count())
            .map_err(|error| CommandFailure::run(format_args!("locks of several cores: {error}")))?;
        let locks = recovered.split(links.len()).into_iter().zip(links).map(Some).collect();
        // One for each export: a loss in one directory is none in another.
        let verifiers = settings.exports.iter().map(|_| WriteVerifier::default()).collect();
        let version4 = Config4 {
            minor_versions: settings.nfs.four,
            // Who has the key of the handles is the same server to its clients.
            identity: key.identity().to_vec(),
            clients: ClientConfig { lease_term: lease_term(settings), ..plan.clients },
            suspended_max: plan.suspended_max,
            ..Config4::new(known.epoch())
        };
        let sessions = SharedSessions::default();
        Ok(Common { key, verifiers, locks: Mutex::new(locks), version4, sessions, known })
    }

    /// What the NLM and NSM of a reactor begin with: nothing, or what is known from before a restart.
    pub(super) fn locking(&self, reactor: ReactorId, settings: &Settings, plan: &Plan) -> SharedLocking {
        // A panic elsewhere cannot leave the list half changed.
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((recovered, link)) = locks.get_mut(reactor.index()).and_then(Option::take) else {
            unreachable!("a reactor is made once")
        };
        // Other hosts know this one by its name, if it has any.
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let config = LockingConfig {
            locks: plan.locks,
            opens: plan.opens,
            hosts_max: plan.hosts_max,
            grace: settings.grace,
            host_name: if name.trim().is_empty() { "stagd".to_owned() } else { name.trim().to_owned() },
            lease_term: lease_term(settings),
        };
        let out = TcpCallOut::new(CallOutConfig::default());
        let locking = Locking::new(config, recovered, Box::new(out));
        let locking = locking.with_clients(self.known.clone(), reactor.index() as u8);
        // A reactor that is alone has no others to tell.
        let locking = if plan.reactors.len() > 1 { locking.linked(link) } else { locking };
        Rc::new(RefCell::new(locking))
    }
}

/// How long a lease of version 4 lasts, and the time after a restart in which its clients reclaim: the same as for locks of version
/// 3. Without that it is as long as a Linux server's.
fn lease_term(settings: &Settings) -> Duration {
    if settings.grace.is_zero() { ClientConfig::default().lease_term } else { settings.grace }
}

/// A number that no earlier start of the server had, nor one on a clock that was set back by less than the time since: the time in
/// units of an eighth of a second. It comes again after 17 years.
fn epoch() -> u32 {
    let now = Clock::start().now();
    let since = WallClock::new(now).at(now);
    (since.as_nanos() >> 27) as u32
}

/// Makes all programs of a reactor, and a store for each export that it serves: an empty one in memory, or a directory. Rpcbind
/// answers from `registry`. Remarks about the directories are added to `notes`. Also returns what opens directories that are added
/// later.
pub(super) fn make(
    (settings, plan, common): (&Settings, &Plan, &Common),
    reactor: ReactorId,
    pools: &Pools,
    clock: &Clock,
    (registry, locking): (Registry, SharedLocking),
    notes: &mut Vec<String>,
) -> Result<(Programs, Directories), CommandFailure> {
    let now = clock.now();
    let mut time = TimeOfDay::System(WallClock::new(now));
    let mut directories = Directories::new(settings, plan, reactor, pools);
    let mut served: Vec<(Export, Box<dyn Store>)> = Vec::new();
    let mut elsewhere = Vec::new();
    for (number, ((_, export), share)) in settings.exports.iter().zip(&plan.exports).enumerate() {
        let store: Box<dyn Store> = match export.medium {
            Medium::Memory => {
                let fsid = number as u64 + 1;
                if share.owner != reactor.index() {
                    let Some(owner) = ReactorId::new(share.owner) else {
                        unreachable!("the plan has no more reactors than a group")
                    };
                    elsewhere.push(Elsewhere { export: export.access.clone(), fsid, reactor: owner });
                    continue;
                }
                let (uid, gid) = (export.access.anonymous_uid, export.access.anonymous_gid);
                let config = MemoryConfig {
                    fsid,
                    data_len_max: share.data_len_max,
                    objects_max: share.objects_max,
                    names_max: share.objects_max,
                    root: RootAttributes { mode: ROOT_MODE, uid, gid },
                };
                let store = MemoryStore::new(&config, pools.payload.clone(), time.at(now));
                Box::new(store.map_err(CommandFailure::run)?)
            }
            Medium::Directory => {
                Box::new(directories.open(export, share.objects_max, common.verifiers[number].clone())?)
            }
        };
        served.push((export.access.clone(), store));
    }
    notes.extend(directories.notes());
    let mut exports = ExportTable::new(served, pools.payload.clone()).map_err(CommandFailure::usage)?;
    if plan.reactors.len() > 1 {
        let Some(first) = ReactorId::new(0) else { unreachable!("a group has a first reactor") };
        exports = exports.in_group(elsewhere, first).map_err(CommandFailure::usage)?;
        let paths = settings.exports.iter().map(|(_, export)| export.access.path.clone());
        exports = exports.listed_in_order(paths.collect());
    }
    let exports = exports.with_key(common.key.clone());
    let exports = exports.serving_version_3(settings.nfs.three);
    let reverse_credits = plan.engine.reverse_credits;
    let version4 = Config4 { reverse_credits, ..common.version4.clone() };
    let version4 = (version4, common.sessions.clone());
    let services = server::services_with_locks(exports, time, locking, registry, version4);
    let services = Observed::new(services);
    let services = match settings.slow {
        Some(slow) => services.with_slow_log(slow),
        None => services,
    };
    Ok((Some(services), directories))
}
