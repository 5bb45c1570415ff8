//! One reactor of the server: its engine, and its requests beside Calls.

use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::mpsc::TrySendError;
use std::time::Duration;

use stag_memory::Ledger;
use stag_nfs::server::{
    Registered, Registry, Removal, SharedLocking, add_export, change_export, remove_export,
};
use stag_rpc::{Engine, Pools};
use stag_runtime::{Clock, Poller, ReactorId, Receiver, StopFlag, Stopped};

use super::client_name::client_name;
use super::cores::Place;
use super::directories::Directories;
use super::ended::Ended;
use super::fabric::Served;
use super::holdings::{Holdings, shown_id};
use super::listen::Listen;
use super::plan::Plan;
use super::registration::Registration;
use super::report;
use super::request::{Changed, LiveChange, Request};
use super::snapshot::Snapshot;
use super::weights::weight_of;
use super::{Settings, choices};
use crate::failure::CommandFailure;
use crate::output::Output;
use crate::programs::Programs;

/// What the reactor that listens says when all are made.
pub(super) struct Announcement<'a> {
    pub(super) settings: &'a Settings,
    pub(super) plan: &'a Plan,
    pub(super) place: &'a Place,
    pub(super) got: choices::Got,
    /// Where it listens.
    pub(super) places: Vec<Listen>,
    pub(super) json: bool,
}

impl Announcement<'_> {
    /// Registers the programs, if that is wanted, and says that the server is ready.
    fn make(self, programs: &[Registered]) -> Result<Option<Registration>, CommandFailure> {
        let Announcement { settings, plan, place, got, places, json } = self;
        let registration = settings.rpcbind.then(|| Registration::new(programs.to_vec())).transpose()?;
        let mut out = Output::new(json);
        CommandFailure::unless_output_closed(choices::started(settings, plan, place, &got, &mut out))?;
        CommandFailure::unless_output_closed(report::ready(&places, &mut out))?;
        Ok(registration)
    }
}

/// A reactor's engine, and requests for its counters.
pub(super) struct ServedReactor<'a, P: Served> {
    pub(super) engine: Engine<P, Programs>,
    pub(super) id: ReactorId,
    pub(super) requests: Receiver<Request>,
    /// What opens directories that are added.
    pub(super) directories: Directories,
    pub(super) locking: SharedLocking,
    /// What its rpcbind tells.
    pub(super) registry: Registry,
    pub(super) ledger: Ledger,
    pub(super) clock: Clock,
    /// What the one that listens serves, once it does.
    pub(super) programs: &'a OnceLock<Vec<Registered>>,
    pub(super) stop: StopFlag,
    /// Until it is made.
    pub(super) announcement: Option<Announcement<'a>>,
    /// Until the server ends.
    pub(super) registration: Option<Registration>,
    /// Why the server stops at once.
    pub(super) failure: Option<CommandFailure>,
}

/// The pools of a reactor, to see at the end that all of it came back.
pub(super) fn ledger(pools: &Pools) -> Ledger {
    let mut ledger = Ledger::new();
    ledger.register(&pools.messages);
    ledger.register(&pools.payload);
    ledger
}

impl<P: Served> ServedReactor<'_, P> {
    #[cold]
    fn answer(&mut self, now: Duration) {
        while let Some(request) = self.requests.receive() {
            match request {
                Request::Announce => self.announce(),
                Request::Counters(to) => {
                    let snapshot = self.snapshot(now);
                    if let Err(TrySendError::Full(_)) = to.try_send((self.id, snapshot)) {
                        tracing::warn!(
                            "counters are not printed: those that were asked for before were not read yet"
                        );
                    }
                }
                // The operator may have given up.
                Request::Evict(client, to) => _ = to.try_send(self.evict(&client)),
                Request::Holdings(to) => {
                    if let Some(programs) = self.engine.services_mut() {
                        let _ = to.try_send(Holdings::take(programs, &self.locking, now));
                    }
                }
                Request::Record(to) => _ = to.try_send(self.engine.recording()),
                Request::EvictClient(client, to) => _ = to.try_send(self.evict_client(client).into()),
                Request::Change(change, to) => _ = to.try_send(self.change(change)),
            }
        }
    }

    fn snapshot(&mut self, now: Duration) -> Snapshot {
        Snapshot::take(&mut self.engine, &self.locking, &self.ledger, now)
    }

    /// Ends all connections of a client. Returns how many there were.
    fn evict(&mut self, client: &str) -> usize {
        let served = self.engine.served_connections();
        let found: Vec<_> = served.filter(|found| client_name(found.peer.as_ref()) == client).collect();
        found.iter().for_each(|found| self.engine.disconnect(found.connection));
        if !found.is_empty() {
            tracing::info!("client {client}: its {} connections ended by the operator", found.len());
        }
        found.len()
    }

    /// Ends a client of NFS version 4. Returns whether this reactor knew it.
    fn evict_client(&mut self, client: u64) -> bool {
        let Some(programs) = self.engine.services_mut() else { return false };
        let (_, nfs4, ..) = programs.get_mut();
        let is_known = nfs4.evict(client);
        if is_known {
            tracing::info!("client {}: ended by the operator, with all that it held", shown_id(client));
        }
        is_known
    }

    /// Changes what is served.
    fn change(&mut self, change: LiveChange) -> Changed {
        // It has services as long as it serves.
        let Some(services) = self.engine.services_mut() else { return Changed::Made };
        match change {
            LiveChange::Add(export, verifier) => {
                let opened = self.directories.open_later(&export, verifier);
                let added = opened.map_err(|failure| failure.to_string()).and_then(|store| {
                    let added = add_export(services.get_mut(), export.access, Box::new(store));
                    added.map_err(|error| error.to_string())
                });
                if let Err(problem) = added {
                    return Changed::Refused(problem);
                }
            }
            LiveChange::Rules(export) => _ = change_export(services.get_mut(), &export),
            LiveChange::Remove(path) => {
                if remove_export(services.get_mut(), &path) == Removal::LocksStay {
                    return Changed::LocksStay;
                }
            }
            LiveChange::Slow(slow) => services.set_slow_log(slow),
            LiveChange::RefuseNewcomers => self.engine.refuse_newcomers(),
            LiveChange::Weights(weights) => {
                self.engine.set_client_weights(move |peer| weight_of(&weights, peer));
            }
        }
        Changed::Made
    }

    /// All reactors are made.
    fn announce(&mut self) {
        let Some(programs) = self.programs.get() else { unreachable!("the first reactor listens") };
        self.registry.borrow_mut().clone_from(programs);
        match self.announcement.take().map(|announcement| announcement.make(programs)) {
            Some(Ok(registration)) => self.registration = registration,
            Some(Err(failure)) => {
                self.failure = Some(failure);
                self.stop.request();
            }
            None => {}
        }
    }

    /// Ends it, and says what it did. Whatever the engine, its services and the provider hold goes back to the pools.
    pub(super) fn end(self, stopped: &Stopped) -> Ended {
        let ServedReactor { mut engine, directories, locking, ledger, clock, registration, failure, .. } =
            self;
        drop(registration);
        let work = Snapshot::take(&mut engine, &locking, &ledger, clock.now());
        // Both have the disk, which has the memory of operations in flight.
        drop((engine, directories));
        Ended {
            stopped: *stopped,
            work,
            outstanding: ledger.outstanding(),
            lent: ledger.lent(),
            stranded: ledger.stranded(),
            ledger: ledger.to_string(),
            failure,
        }
    }
}

impl<P: Served> Poller for ServedReactor<'_, P> {
    #[inline]
    fn poll(&mut self, now: Duration) -> usize {
        let events = self.engine.poll(now);
        if !self.requests.is_empty() {
            self.answer(now);
        }
        events
    }

    fn next_timeout(&self) -> Option<Duration> {
        self.engine.next_timeout()
    }

    fn arm(&mut self) -> bool {
        self.requests.arm() && self.engine.arm()
    }

    fn disarm(&mut self) {
        self.requests.disarm();
        self.engine.disarm();
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        self.engine.descriptors(out);
        out.push(self.requests.descriptor());
    }

    fn stop(&mut self, now: Duration) {
        self.engine.stop(now);
    }

    fn is_drained(&self) -> bool {
        self.engine.is_drained()
    }

    fn give_back(&mut self, now: Duration) {
        self.engine.give_back(now);
    }

    fn has_given_back(&self) -> bool {
        self.engine.has_given_back()
    }
}
