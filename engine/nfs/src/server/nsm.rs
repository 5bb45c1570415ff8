//! NSM version 1: hosts report their restarts, and their locks are freed. We monitor no host on behalf of others:
//! a host with locks here is notified when we restart, without having asked.

use stag_rpc::{Call, Home, Outcome, Procedure as Bound, Reply, Service};
use stag_wire::nsm::{
    self, MonArguments, MonitorId, NotifyArguments, Procedure, Requester, StatArguments, StatResults, State,
};

use super::locking::Client;
use super::{SharedLocking, decode};

/// The service NSM version 1.
pub struct Nsm {
    locking: SharedLocking,
    /// Where it is heard that a host restarted.
    restarts_at: Home,
}

/// All may be called again: the state number in SM_NOTIFY tells news from what was heard before.
static BOUND: [Bound; Procedure::COUNT] = [
    Bound::plain("NULL"),
    Bound::plain("SM_STAT"),
    Bound::plain("SM_MON"),
    Bound::plain("SM_UNMON"),
    Bound::plain("SM_UNMON_ALL"),
    Bound::plain("SM_SIMU_CRASH"),
    Bound::plain("SM_NOTIFY"),
];

impl Nsm {
    pub(super) fn new(locking: SharedLocking, restarts_at: Home) -> Nsm {
        Nsm { locking, restarts_at }
    }
}

impl Service for Nsm {
    fn program(&self) -> u32 {
        nsm::PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        (nsm::VERSION, nsm::VERSION)
    }

    fn procedure(&self, _: u32, procedure: u32) -> Option<&'static Bound> {
        BOUND.get(usize::try_from(procedure).ok()?)
    }

    fn home(&self, call: &Call<'_>) -> Home {
        match Procedure::from_number(call.procedure) {
            Some(Procedure::Notify) => self.restarts_at,
            _ => Home::Here,
        }
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        let mut locking = self.locking.borrow_mut();
        let state = locking.state();
        let not_monitored = StatResults { outcome: nsm::Outcome::Fail, state };
        match Procedure::from_number(call.procedure) {
            Some(Procedure::Stat) => {
                if decode::<StatArguments<'_>>(call, reply).is_some() {
                    reply.success(|writer| writer.value(&not_monitored));
                }
            }
            Some(Procedure::Mon) => {
                if decode::<MonArguments<'_>>(call, reply).is_some() {
                    reply.success(|writer| writer.value(&not_monitored));
                }
            }
            Some(Procedure::Unmon) => {
                if decode::<MonitorId<'_>>(call, reply).is_some() {
                    reply.success(|writer| writer.value(&State { state }));
                }
            }
            Some(Procedure::UnmonAll) => {
                if decode::<Requester<'_>>(call, reply).is_some() {
                    reply.success(|writer| writer.value(&State { state }));
                }
            }
            Some(Procedure::Notify) => {
                if let Some(arguments) = decode::<NotifyArguments<'_>>(call, reply) {
                    locking.restarted(
                        &Client::new(arguments.name.0, (call.peer(), call.local())),
                        arguments.state,
                    );
                    reply.success(|_| Ok(()));
                }
            }
            // Only our own user may simulate a crash.
            Some(Procedure::Null | Procedure::SimuCrash) => reply.success(|_| Ok(())),
            // The engine calls only what `procedure` knows.
            None => reply.system_error(),
        }
        Outcome::Done
    }
}
