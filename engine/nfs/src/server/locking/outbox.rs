//! What is to be told to hosts, until they know it or it is no longer worth it.

use std::net::IpAddr;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::Duration;

use stag_wire::nlm4::{self, Name, Object, Status};
use stag_wire::nsm;
use stag_wire::xdr::Reader;

use crate::callout::{CallOut, CallOutId, OutCall, arguments};
use crate::lock::{FileKey, HostId, Owner, Range, Request};
use crate::state::KnownHost;

/// Seconds to wait before the first try, the second, and so on; the last holds for all that follow.
const DELAYS_S: [u64; 7] = [0, 1, 2, 4, 8, 15, 30];

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
    pub(super) fn request(&self) -> Request<'_> {
        let (host, svid, handle) = (self.owner.host, self.owner.svid, &*self.owner.handle);
        Request { file: self.file, host, svid, handle, range: self.range, exclusive: self.exclusive }
    }

    /// Whether the request is about a lock of the same owner on the same file.
    pub(super) fn is_of(&self, request: &Request<'_>) -> bool {
        let own = self.request();
        (own.file, own.host, own.svid, own.handle)
            == (request.file, request.host, request.svid, request.handle)
    }
}

/// What is to be told.
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

#[derive(Debug)]
struct Entry {
    what: What,
    to: Option<IpAddr>,
    /// Tries so far.
    tries: usize,
    next: Duration,
    deadline: Duration,
    /// The Call under way.
    call: Option<CallOutId>,
}

/// All that is to be told.
pub(super) struct Outbox {
    out: Box<dyn CallOut>,
    entries: Vec<Entry>,
    /// No entry is due before: so an idle pass looks at none.
    next: Duration,
    cookie: u32,
    succeeded: u64,
    failed: u64,
}

impl Outbox {
    pub(super) fn new(out: Box<dyn CallOut>) -> Outbox {
        Outbox { out, entries: Vec::new(), next: Duration::ZERO, cookie: 0, succeeded: 0, failed: 0 }
    }

    /// Nothing is to be told.
    pub(super) fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    /// Calls that succeeded, and that failed.
    pub(super) fn call_counts(&self) -> (u64, u64) {
        (self.succeeded, self.failed)
    }

    pub(super) fn message_count(&self) -> usize {
        self.entries.iter().filter(|entry| matches!(entry.what, What::Message(..))).count()
    }

    /// Something to tell, beginning at once, for at most `life`. Without an address it is only kept in mind.
    pub(super) fn push(&mut self, to: Option<IpAddr>, what: What, now: Duration, life: Duration) {
        self.entries.push(Entry { what, to, tries: 0, next: now, deadline: now + life, call: None });
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
            if let Some(end) = end {
                return Some((self.entries.swap_remove(place).what, end));
            }
            self.next = self.next.min(entry.next);
        }
        if now < self.next {
            return None;
        }
        let expired = self.entries.iter().position(|entry| now >= entry.deadline)?;
        let entry = self.entries.swap_remove(expired);
        entry.call.into_iter().for_each(|id| self.out.cancel(id));
        Some((entry.what, End::GivenUp))
    }

    /// Begins the Calls that are due, as far as there may be more at once.
    pub(super) fn begin_due(&mut self, now: Duration) {
        if now < self.next {
            return;
        }
        self.next = Duration::MAX;
        for entry in &mut self.entries {
            self.next = self.next.min(entry.deadline);
            let (None, Some(to)) = (entry.call, entry.to) else { continue };
            if now < entry.next {
                self.next = self.next.min(entry.next);
                continue;
            }
            self.cookie = self.cookie.wrapping_add(1);
            match self.out.begin(entry.what.call(to, self.cookie), now) {
                Some(id) => {
                    entry.call = Some(id);
                    entry.tries += 1;
                    let delay = DELAYS_S[entry.tries.min(DELAYS_S.len() - 1)];
                    entry.next = now + Duration::from_secs(delay);
                }
                None => {
                    // One of those under way has to end first.
                    self.next = now + FULL;
                    return;
                }
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

impl What {
    /// The Call that tells it.
    fn call(&self, to: IpAddr, cookie: u32) -> OutCall {
        let nlm = |procedure: nlm4::Procedure, arguments| OutCall {
            to,
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
