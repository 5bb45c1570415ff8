//! Calls to hosts, kept until the host knows or it is no longer worth it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::Duration;

use stag_wire::nlm4::{self, Name, Object, Status};
use stag_wire::nsm;
use stag_wire::xdr::Reader;

use crate::callout::{CallOut, CallOutId, OutCall, arguments};
use crate::server::locking::hosts::Place;
use crate::state::KnownHost;
use stag_state::{FileKey, HostId, HostSite, LockRequest, Owner, Range, has_share};

/// Seconds to wait before the first try, the second, and so on; the last holds for all that follow.
const DELAYS_S: [u64; 7] = [0, 1, 2, 4, 8, 15, 30];

/// Calls to one host at once: a host that does not answer must not delay the others.
const CALLS_PER_HOST: usize = 4;

/// Calls to all hosts of one site at once, of the 16 Calls that there may be: a host of IPv6 has many addresses.
const CALLS_PER_SITE: usize = 12;

/// Notices of our restart at once, of the 16 Calls that there may be: a lock that is released must not wait for hosts that
/// are gone.
const NOTICES_AT_ONCE: usize = 8;

/// When to try again to begin a Call while as many are under way as may be.
const FULL: Duration = Duration::from_millis(20);

/// A lock that was waited for, and that its owner does not know to have yet.
#[derive(Debug)]
pub(super) struct Grant {
    pub(super) file: FileKey,
    pub(super) owner: Rc<Owner>,
    pub(super) range: Range,
    pub(super) exclusive: bool,
    /// The handle that the client knows the file by.
    pub(super) file_handle: Box<[u8]>,
    /// The name that the client knows itself by.
    pub(super) name: Box<[u8]>,
}

impl Grant {
    pub(super) fn request(&self) -> LockRequest<'_> {
        let (host, svid, handle) = (self.owner.host, self.owner.svid, &*self.owner.handle);
        LockRequest { file: self.file, host, svid, handle, range: self.range, exclusive: self.exclusive }
    }

    /// Whether the request is about a lock of the same owner on the same file.
    pub(super) fn is_of(&self, request: &LockRequest<'_>) -> bool {
        let own = self.request();
        (own.file, own.host, own.svid, own.handle)
            == (request.file, request.host, request.svid, request.handle)
    }
}

/// The kinds of Calls to hosts.
#[derive(Debug)]
pub(super) enum What {
    /// A lock is there.
    Grant(Grant),
    /// The answer to a `_MSG`: procedure and arguments.
    Message(nlm4::Procedure, Vec<u8>),
    /// We restarted: arguments of SM_NOTIFY.
    Notify(KnownHost, Vec<u8>),
}

/// How telling ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The host knows.
    Told,
    /// The host does not want the lock any more.
    Unwanted,
    /// It took too long.
    GivenUp,
}

/// How a host is called: at its address, and from the one of ours that it connected to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Way {
    /// `None`: it has none.
    pub(super) to: Option<IpAddr>,
    /// `None`: unknown, and the system chooses.
    pub(super) from: Option<IpAddr>,
}

#[derive(Debug)]
struct Entry {
    what: What,
    to: Option<IpAddr>,
    /// The address of ours that the host knows.
    from: Option<IpAddr>,
    /// Tries so far.
    tries: usize,
    next: Duration,
    deadline: Duration,
    /// The Call under way.
    call: Option<CallOutId>,
}

/// All Calls to hosts.
pub(super) struct Outbox {
    out: Box<dyn CallOut>,
    entries: Vec<Entry>,
    /// No entry is due before this: an idle pass looks at none.
    next: Duration,
    cookie: u32,
    succeeded: u64,
    failed: u64,
}

impl Outbox {
    pub(super) fn new(out: Box<dyn CallOut>) -> Outbox {
        Outbox { out, entries: Vec::new(), next: Duration::ZERO, cookie: 0, succeeded: 0, failed: 0 }
    }

    /// No Call is due.
    pub(super) fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    /// Calls that succeeded, and that failed.
    pub(super) fn call_counts(&self) -> (u64, u64) {
        (self.succeeded, self.failed)
    }

    /// Whether there may be one more answer to a `_MSG`, of `max` in all, to this address: one site never takes all the
    /// room.
    pub(super) fn has_room_for_message(&self, to: IpAddr, max: usize) -> bool {
        let messages = || self.entries.iter().filter(|entry| matches!(entry.what, What::Message(..)));
        let own = messages().filter(|entry| entry.to.is_some_and(|other| site(other) == site(to))).count();
        has_share(own as u64, messages().count() as u64, 1, max as u64)
    }

    /// Something to tell, beginning at once, for at most `life`. Without an address it is only kept in mind.
    pub(super) fn push(&mut self, way: Way, what: What, now: Duration, life: Duration) {
        let Way { to, from } = way;
        self.entries.push(Entry { what, to, from, tries: 0, next: now, deadline: now + life, call: None });
        self.next = self.next.min(now);
    }

    fn grants(&self) -> impl Iterator<Item = &Grant> {
        self.entries
            .iter()
            .filter_map(|entry| if let What::Grant(grant) = &entry.what { Some(grant) } else { None })
    }

    pub(super) fn has_grant(&self, is_it: impl FnMut(&Grant) -> bool) -> bool {
        self.grants().any(is_it)
    }

    pub(super) fn has_grants_of(&self, host: HostId) -> bool {
        self.has_grant(|grant| grant.owner.host == host)
    }

    /// Forgets grants: whatever their hosts answer does not count any more.
    pub(super) fn forget(&mut self, is_it: impl Fn(&Grant) -> bool) {
        let out = &mut self.out;
        self.entries.retain(|entry| {
            let What::Grant(grant) = &entry.what else { return true };
            if is_it(grant) {
                entry.call.into_iter().for_each(|id| out.cancel(id));
                return false;
            }
            true
        });
    }

    /// The next thing that needs no more Calls.
    pub(super) fn poll_ended(&mut self, now: Duration) -> Option<(What, End)> {
        while let Some((id, result)) = self.out.poll(now) {
            let Some(place) = self.entries.iter().position(|entry| entry.call == Some(id)) else { continue };
            let entry = &mut self.entries[place];
            entry.call = None;
            let end = match &result {
                Ok(results) => entry.what.end(results),
                Err(error) => {
                    tracing::debug!(to = ?entry.to, %error, "a Call to a host failed");
                    None
                }
            };
            *(if end.is_some() { &mut self.succeeded } else { &mut self.failed }) += 1;
            // There is room for another.
            self.next = self.next.min(now);
            if let Some(end) = end {
                return Some((self.entries.swap_remove(place).what, end));
            }
        }
        if now < self.next {
            return None;
        }
        let expired = self.entries.iter().position(|entry| now >= entry.deadline)?;
        let entry = self.entries.swap_remove(expired);
        entry.call.into_iter().for_each(|id| self.out.cancel(id));
        Some((entry.what, End::GivenUp))
    }

    /// Begins the Calls that are due, as far as there may be more at once: the first to tell something before those that
    /// tell it again, and news of our restart last.
    pub(super) fn begin_due(&mut self, now: Duration) {
        if now < self.next {
            return;
        }
        self.next = self.entries.iter().map(|entry| entry.deadline).min().unwrap_or(Duration::MAX);
        let mut traffic = Traffic::of(&self.entries);
        for round in [Round::First, Round::Again, Round::Notice] {
            for entry in self.entries.iter_mut().filter(|entry| entry.round() == round) {
                let (None, Some(to)) = (entry.call, entry.to) else { continue };
                if now < entry.next {
                    self.next = self.next.min(entry.next);
                    continue;
                }
                if !traffic.has_room(to, round) {
                    self.next = self.next.min(now + FULL);
                    continue;
                }
                self.cookie = self.cookie.wrapping_add(1);
                let Some(id) = self.out.begin(entry.what.call((to, entry.from), self.cookie), now) else {
                    // One of those under way has to end first.
                    self.next = now + FULL;
                    return;
                };
                traffic.add(to, round);
                entry.call = Some(id);
                entry.tries += 1;
                let delay = DELAYS_S[entry.tries.min(DELAYS_S.len() - 1)];
                entry.next = now + Duration::from_secs(delay);
            }
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Duration> {
        let own = (!self.entries.is_empty()).then_some(self.next);
        [own, self.out.next_timeout()].into_iter().flatten().min()
    }

    pub(super) fn descriptors(&self, out: &mut Vec<RawFd>) {
        self.out.descriptors(out);
    }
}

impl Entry {
    fn round(&self) -> Round {
        match self.what {
            What::Notify(..) => Round::Notice,
            _ if self.tries == 0 => Round::First,
            _ => Round::Again,
        }
    }
}

/// The order of Calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    /// Something that somebody waits for, for the first time.
    First,
    /// The same after a failure.
    Again,
    /// Our restart: it is not urgent, and there may be many hosts, many of them gone.
    Notice,
}

/// The Calls under way.
struct Traffic {
    by_host: HashMap<IpAddr, HostTraffic>,
    /// Calls to each site.
    by_site: HashMap<HostSite, usize>,
    notices: usize,
}

#[derive(Default)]
struct HostTraffic {
    calls: usize,
    /// A notice is under way.
    is_noticed: bool,
    /// A Call failed, and what it was to tell has not been told since.
    is_silent: bool,
}

impl Traffic {
    fn of(entries: &[Entry]) -> Traffic {
        let mut traffic = Traffic { by_host: HashMap::new(), by_site: HashMap::new(), notices: 0 };
        for entry in entries {
            let Some(to) = entry.to else { continue };
            let is_under_way = entry.call.is_some();
            if is_under_way {
                traffic.add(to, entry.round());
            }
            // A notice says nothing of the lock manager.
            if entry.round() == Round::Again && entry.tries > usize::from(is_under_way) {
                traffic.by_host.entry(to).or_default().is_silent = true;
            }
        }
        traffic
    }

    fn has_room(&self, to: IpAddr, round: Round) -> bool {
        if self.by_site.get(&site(to)).is_some_and(|calls| *calls >= CALLS_PER_SITE) {
            return false;
        }
        let host = self.by_host.get(&to);
        if round == Round::Notice {
            // One at an address, which may have had many names.
            return self.notices < NOTICES_AT_ONCE && host.is_none_or(|host| !host.is_noticed);
        }
        let Some(host) = host else { return true };
        let limit = match (host.is_silent, round) {
            (false, _) => CALLS_PER_HOST,
            // What it has not heard yet must not wait for what it did not answer.
            (true, Round::First) => 2,
            (true, _) => 1,
        };
        host.calls < limit
    }

    fn add(&mut self, to: IpAddr, round: Round) {
        *self.by_site.entry(site(to)).or_default() += 1;
        let host = self.by_host.entry(to).or_default();
        if round == Round::Notice {
            host.is_noticed = true;
            self.notices += 1;
        } else {
            host.calls += 1;
        }
    }
}

/// The site of an address.
fn site(address: IpAddr) -> HostSite {
    Place::Address(address).site()
}

impl What {
    /// The Call that tells it.
    fn call(&self, (to, from): (IpAddr, Option<IpAddr>), cookie: u32) -> OutCall {
        let nlm = |procedure: nlm4::Procedure, arguments| OutCall {
            to,
            from,
            program: nlm4::PROGRAM,
            version: nlm4::VERSION,
            procedure: procedure.number(),
            arguments,
        };
        match self {
            What::Grant(grant) => {
                let lock = nlm4::Lock {
                    caller: Name(&grant.name),
                    file: Object(&grant.file_handle),
                    owner: Object(&grant.owner.handle),
                    svid: grant.owner.svid,
                    offset: grant.range.first(),
                    len: grant.range.wire_len(),
                };
                let cookie = cookie.to_be_bytes();
                let granted =
                    nlm4::TestArguments { cookie: Object(&cookie), exclusive: grant.exclusive, lock };
                nlm(nlm4::Procedure::Granted, arguments(&granted))
            }
            What::Message(procedure, arguments) => nlm(*procedure, arguments.clone()),
            What::Notify(_, arguments) => OutCall {
                to,
                from,
                program: nsm::PROGRAM,
                version: nsm::VERSION,
                procedure: nsm::Procedure::Notify.number(),
                arguments: arguments.clone(),
            },
        }
    }

    /// What the host's results mean; `None`: it has to be told again.
    fn end(&self, results: &[u8]) -> Option<End> {
        if !matches!(self, What::Grant(_)) {
            return Some(End::Told);
        }
        match Reader::new(results).value::<nlm4::Results<'_>>().ok()?.status {
            Status::Granted => Some(End::Told),
            Status::Denied => Some(End::Unwanted),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::callout::CallOutError;
    use stag_state::HostNumber;
    use stag_vfs::ObjectId;

    /// Calls that have begun, and answers to give.
    #[derive(Clone, Default)]
    struct Script(Rc<RefCell<Lines>>);

    impl Script {
        /// Calls that have not ended. (Those that were begun have their numbers for ids.)
        fn under_way(&self) -> usize {
            let lines = self.0.borrow();
            lines.begun.len() - lines.ended
        }

        /// All Calls under way end without an answer.
        fn fail_all(&self) {
            let mut lines = self.0.borrow_mut();
            let (ended, begun) = (lines.ended, lines.begun.len());
            let failed = |number| (CallOutId(number as u64 + 1), Err(CallOutError::NotRegistered));
            lines.answers.extend((ended..begun).map(failed));
            lines.ended = begun;
        }
    }

    #[derive(Default)]
    struct Lines {
        begun: Vec<OutCall>,
        cancelled: Vec<CallOutId>,
        answers: Vec<(CallOutId, Result<Vec<u8>, CallOutError>)>,
        /// Of those that begun, by [`Script::fail_all`].
        ended: usize,
        calls_max: Option<usize>,
    }

    impl CallOut for Script {
        fn begin(&mut self, call: OutCall, _: Duration) -> Option<CallOutId> {
            if self.0.borrow().calls_max.is_some_and(|max| self.under_way() >= max) {
                return None;
            }
            let begun = &mut self.0.borrow_mut().begun;
            begun.push(call);
            Some(CallOutId(begun.len() as u64))
        }

        fn cancel(&mut self, id: CallOutId) {
            self.0.borrow_mut().cancelled.push(id);
        }

        fn poll(&mut self, _: Duration) -> Option<(CallOutId, Result<Vec<u8>, CallOutError>)> {
            self.0.borrow_mut().answers.pop()
        }

        fn next_timeout(&self) -> Option<Duration> {
            None
        }

        fn descriptors(&self, _: &mut Vec<RawFd>) {}
    }

    fn grant(svid: u32) -> What {
        let host = HostId { number: HostNumber::Nlm(0), site: HostSite(0) };
        let owner = Rc::new(Owner { host, svid, handle: Box::default() });
        What::Grant(Grant {
            file: FileKey { volume: 1, object: ObjectId { fileid: 1, generation: 1 } },
            owner,
            range: Range::new(0, 1).expect("a range"),
            exclusive: true,
            file_handle: Box::default(),
            name: Box::default(),
        })
    }

    const LIFE: Duration = Duration::from_secs(120);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn to(last: u8) -> Option<IpAddr> {
        Some([192, 0, 2, last].into())
    }

    fn way(last: u8) -> Way {
        Way { to: to(last), from: None }
    }

    /// A host of IPv6 that answers at none of its addresses.
    #[test]
    fn one_network_does_not_keep_others_from_hearing() {
        let script = Script::default();
        script.0.borrow_mut().calls_max = Some(16);
        let mut outbox = Outbox::new(Box::new(script.clone()));
        for host in 0..100_u16 {
            let to = Some([0x2001, 0xdb8, 0, 1, 0, 0, 0, host].into());
            outbox.push(Way { to, from: None }, grant(u32::from(host)), Duration::ZERO, LIFE);
        }
        outbox.begin_due(Duration::ZERO);
        assert_eq!(script.under_way(), 12);
        outbox.push(way(1), grant(1), Duration::ZERO, LIFE);
        outbox.begin_due(Duration::ZERO);
        assert_eq!(script.under_way(), 13);
    }

    #[test]
    fn one_host_does_not_keep_others_from_hearing() {
        let script = Script::default();
        let mut outbox = Outbox::new(Box::new(script.clone()));
        for svid in 0..10 {
            outbox.push(way(1), grant(svid), seconds(1), LIFE);
        }
        outbox.push(way(2), grant(99), seconds(1), LIFE);
        outbox.push(Way::default(), grant(100), seconds(1), LIFE);
        outbox.begin_due(seconds(1));
        let count = |host| script.0.borrow().begun.iter().filter(|call| Some(call.to) == to(host)).count();
        assert_eq!((count(1), count(2)), (CALLS_PER_HOST, 1));
        // Nothing ends: nothing more begins, and the clock is not asked to hurry.
        outbox.begin_due(seconds(2));
        assert_eq!((count(1), count(2)), (CALLS_PER_HOST, 1));
        assert_eq!(outbox.next_timeout(), Some(seconds(2) + FULL));
    }

    #[test]
    fn what_fails_is_told_again_until_it_is_given_up() {
        let script = Script::default();
        let mut outbox = Outbox::new(Box::new(script.clone()));
        outbox.push(way(1), grant(1), seconds(1), LIFE);
        let mut tries = Vec::new();
        for now in 1..200 {
            let now = seconds(now);
            if let Some((_, end)) = outbox.poll_ended(now) {
                assert_eq!((end, now), (End::GivenUp, seconds(121)));
                break;
            }
            outbox.begin_due(now);
            let begun = script.0.borrow().begun.len();
            if begun > tries.len() {
                tries.push(now.as_secs());
                script
                    .0
                    .borrow_mut()
                    .answers
                    .push((CallOutId(begun as u64), Err(CallOutError::NotRegistered)));
            }
        }
        assert_eq!(tries, [1, 2, 4, 8, 16, 31, 61, 91]);
        assert!(outbox.is_idle());
        assert_eq!(outbox.call_counts(), (0, 8));
    }

    #[test]
    fn the_answer_to_what_was_forgotten_does_not_count() {
        let script = Script::default();
        let mut outbox = Outbox::new(Box::new(script.clone()));
        outbox.push(way(1), grant(1), seconds(1), LIFE);
        outbox.push(way(1), grant(2), seconds(1), LIFE);
        outbox.begin_due(seconds(1));
        outbox.forget(|grant| grant.owner.svid == 1);
        assert_eq!(script.0.borrow().cancelled, [CallOutId(1)]);
        let denied = arguments(&nlm4::Results { cookie: Object(&[]), status: Status::Denied });
        script
            .0
            .borrow_mut()
            .answers
            .extend([(CallOutId(2), Ok(denied.clone())), (CallOutId(1), Ok(denied))]);
        let Some((What::Grant(grant), End::Unwanted)) = outbox.poll_ended(seconds(2)) else { panic!() };
        assert_eq!(grant.owner.svid, 2);
        assert!(outbox.poll_ended(seconds(2)).is_none() && outbox.is_idle());
    }
    /// A place that limits the Calls under way, and where none is ever answered before its time is over.
    fn silent(calls_max: usize) -> Script {
        let script = Script::default();
        script.0.borrow_mut().calls_max = Some(calls_max);
        script
    }

    fn begun_to(script: &Script, host: u8) -> usize {
        script.0.borrow().begun.iter().filter(|call| Some(call.to) == to(host)).count()
    }

    fn notice(host: u8) -> What {
        let address = to(host).expect("an address");
        What::Notify(KnownHost { address, local: None, name: Box::default() }, Vec::new())
    }

    /// After a restart many hosts are told, and many of them may be gone: a lock that is released meanwhile is granted at
    /// once, also to a host that does not answer the notice.
    #[test]
    fn notices_of_a_restart_do_not_hold_up_a_grant() {
        let script = silent(16);
        let mut outbox = Outbox::new(Box::new(script.clone()));
        for _ in 0..9 {
            outbox.push(way(200), notice(200), seconds(1), LIFE);
        }
        for host in 1..100 {
            outbox.push(way(host), notice(host), seconds(1), LIFE);
        }
        outbox.begin_due(seconds(1));
        assert_eq!((script.under_way(), begun_to(&script, 200)), (NOTICES_AT_ONCE, 1));
        for host in [1, 150, 200] {
            outbox.push(way(host), grant(host.into()), seconds(2), LIFE);
            let before = begun_to(&script, host);
            outbox.begin_due(seconds(2));
            assert_eq!(begun_to(&script, host), before + 1, "{host}");
        }
        // When those that hang have failed, the next of the others are told: none is forgotten.
        for _ in 0..40 {
            script.fail_all();
            while outbox.poll_ended(seconds(3)).is_some() {}
            outbox.begin_due(seconds(3));
        }
        assert!((1..100).all(|host| begun_to(&script, host) > 0));
    }

    /// Hosts that do not answer take one place each, once that is known; a new grant to another does not wait for them.
    #[test]
    fn silent_hosts_do_not_hold_up_a_grant_to_another() {
        let script = silent(16);
        let mut outbox = Outbox::new(Box::new(script.clone()));
        for host in 1..=8 {
            for svid in 0..10 {
                outbox.push(way(host), grant(svid), seconds(1), LIFE);
            }
        }
        outbox.begin_due(seconds(1));
        assert_eq!(script.0.borrow().begun.len(), 16, "as many as may be");
        let mut now = seconds(1);
        for _ in 0..15 {
            script.fail_all();
            now += seconds(5);
            while outbox.poll_ended(now).is_some() {}
            outbox.begin_due(now);
        }
        // Of each of the eight one at most is under way, however many are due.
        assert!((1..=8).contains(&script.under_way()), "{}", script.under_way());
        outbox.push(way(9), grant(1), now, LIFE);
        outbox.begin_due(now);
        assert_eq!(begun_to(&script, 9), 1);
    }
}
