//! [`Observed`]: counts the Calls of services by procedure, with their errors and times.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::time::Duration;

use stag_fabric::LogLimiter;
use stag_runtime::Clock;
use stag_wire::rpc::{CallHeader, OpaqueAuth};

use crate::ConnectionId;
use crate::call_back::{CallBack, CallBackError};
use crate::security::{CallerVisitor, Claim, SealedCall, Unsealed};
use crate::service::call::Call;
use crate::service::reply::Reply;
use crate::service::{Home, Lookup, Outcome, Services, Token};

/// Procedures of one service that are counted apart. A higher number shares the last place.
const PROCEDURES: usize = 32;

/// Services that can be counted: as many as a tuple of services has at most.
const SERVICES: usize = 8;

/// Procedures that are counted apart.
const PLACES: usize = SERVICES * PROCEDURES;

/// Calls under way whose time is taken. Those beyond are counted and not timed.
const TIMED_MAX: usize = 65_536;

/// One Call in this number of a procedure is timed while its service has it.
const SAMPLED: u64 = 64;

/// Errors of one procedure that are counted apart. Those beyond are counted as [`OTHER_STATUS`].
const FAILURES_MAX: usize = 32;

/// The status of errors that are not counted apart.
pub const OTHER_STATUS: u32 = u32::MAX;

/// The status of a Call that is timed, until its service says another.
const TIMED: u32 = OTHER_STATUS;

/// Upper bounds of the ranges of [`ProcedureStatistics::waited`], in microseconds. The last range has no bound.
pub const WAIT_BOUNDS_MICROSECONDS: [u64; 9] =
    [64, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304];

/// Upper bounds of the ranges of [`ProcedureStatistics::executed`], in nanoseconds. The last range has no bound.
pub const EXECUTION_BOUNDS_NANOSECONDS: [u64; 9] =
    [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 64_000, 256_000];

/// What is known of one procedure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcedureStatistics {
    /// The program's number.
    pub program: u32,
    /// The version of a Call that was timed.
    pub version: u32,
    /// The procedure's name.
    pub name: &'static str,
    /// Calls that its service was given; of NULL, those that the engine answered for it.
    pub calls: u64,
    /// Those of them that were answered in a later pass: they waited, for example for a disk.
    pub late: u64,
    /// Late answers by the time from the Call to its answer, in the ranges of [`WAIT_BOUNDS_MICROSECONDS`].
    pub waited: [u64; WAIT_BOUNDS_MICROSECONDS.len() + 1],
    /// The sum of these times.
    pub waited_sum: Duration,
    /// The time that the service itself took for one Call of 64, without what happened before and after it, in the ranges of
    /// [`EXECUTION_BOUNDS_NANOSECONDS`]. A late answer counts until the service said that it comes later.
    pub executed: [u64; EXECUTION_BOUNDS_NANOSECONDS.len() + 1],
    /// The sum of these times.
    pub executed_sum: Duration,
    /// Errors of its program that it answered with, as [`Reply::failed_with`] was told, and how often. At most 32 are told apart; the
    /// last is then [`OTHER_STATUS`].
    pub failures: Vec<(u32, u64)>,
}

impl ProcedureStatistics {
    /// Counts an error.
    #[cold]
    fn fail(&mut self, status: u32) {
        let is_known = |status: u32| move |failure: &&mut (u32, u64)| failure.0 == status;
        if let Some((_, calls)) = self.failures.iter_mut().find(is_known(status)) {
            *calls += 1;
        } else if self.failures.len() < FAILURES_MAX {
            self.failures.push((status, 1));
        } else if let Some((_, calls)) = self.failures.iter_mut().find(is_known(OTHER_STATUS)) {
            *calls += 1;
        } else {
            self.failures.push((OTHER_STATUS, 1));
        }
    }
}

/// A Call that is answered later.
#[derive(Debug)]
struct LateCall {
    place: usize,
    since: Duration,
    client: Option<String>,
    /// What it is about.
    subject: Option<String>,
}

/// Serves as `S` does, and counts its Calls.
///
/// Most Calls that are answered at once cost a counter alone; one of 64 is timed. A Call that is answered later is timed with the
/// clock of the reactor's passes, from the pass that called the service to the pass that let it finish. NULL, which the engine answers itself,
/// is counted and not timed; so is a Call that is answered by a [`Deferred`](crate::Deferred). Repeated Calls whose Reply was kept, and Calls
/// that the engine refuses, are not counted.
///
/// In a group of reactors a Call counts where it is executed.
#[derive(Debug)]
pub struct Observed<S> {
    services: S,
    /// Calls, by service and procedure. Every Call changes one of these, and most change nothing else.
    calls: [u64; PLACES],
    /// What else is known of the procedures. The number of Calls in it is not used.
    details: Box<[ProcedureStatistics; PLACES]>,
    /// Calls that are answered later, by numbers that services choose: two look-ups for each.
    late: HashMap<(usize, Token), LateCall, foldhash::fast::RandomState>,
    /// Late answers that take at least this long are logged.
    slow: Option<Duration>,
    /// The time of this pass.
    now: Duration,
    /// For the Calls that are timed within a pass.
    clock: Clock,
    /// When the Call that is timed began.
    began: Duration,
    complaints: LogLimiter,
}

impl<S: Services> Observed<S> {
    /// Counts the Calls of `services`.
    pub fn new(services: S) -> Observed<S> {
        Observed {
            services,
            calls: [0; PLACES],
            details: Box::new(std::array::from_fn(|_| ProcedureStatistics::default())),
            late: HashMap::default(),
            slow: None,
            now: Duration::ZERO,
            clock: Clock::start(),
            began: Duration::ZERO,
            complaints: LogLimiter::default(),
        }
    }

    /// The same. Each Call whose answer took at least `slow` gets a line in the log: its client, its procedure, what it is
    /// about ([`Service::subject`](crate::Service::subject)), and its time. There are at most a few lines a second, which say
    /// how many were left out.
    #[must_use]
    pub fn with_slow_log(self, slow: Duration) -> Observed<S> {
        Observed { slow: Some(slow), ..self }
    }

    /// Logs Calls whose answer takes at least `slow` from now on, as [`Observed::with_slow_log`] does; `None`: none.
    pub fn set_slow_log(&mut self, slow: Option<Duration>) {
        self.slow = slow;
    }

    /// Counts the Calls of other services, from 0, and logs slow ones as this one does. `with` makes them of those that it has.
    #[must_use]
    pub fn map<T: Services>(self, with: impl FnOnce(S) -> T) -> Observed<T> {
        let mut mapped = Observed::new(with(self.services));
        mapped.set_slow_log(self.slow);
        mapped
    }

    /// The procedures that were called, in no particular order.
    pub fn procedures(&self) -> impl Iterator<Item = ProcedureStatistics> {
        let called = self.calls.iter().zip(&*self.details).filter(|(calls, _)| **calls > 0);
        called.map(|(calls, details)| ProcedureStatistics { calls: *calls, ..details.clone() })
    }

    /// Calls whose answers are timed at this moment.
    #[must_use]
    pub fn timed(&self) -> usize {
        self.late.len()
    }

    /// The services.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.services
    }

    /// The place of a procedure.
    #[inline(always)]
    fn place(service: usize, procedure: u32) -> usize {
        let place = procedure as usize * SERVICES + service;
        if place < PLACES { place } else { Self::last_place(service) % PLACES }
    }

    /// The place that high numbers share.
    #[cold]
    #[inline(never)]
    fn last_place(service: usize) -> usize {
        (PROCEDURES - 1) * SERVICES + service % SERVICES
    }

    /// A Call is timed from now on.
    #[cold]
    #[inline(never)]
    fn begin_timed(&mut self, service: usize, call: &Call<'_>, reply: &mut Reply<'_>) {
        let details = &self.details[Self::place(service, call.procedure)];
        if (details.program, details.version) != (call.program, call.version) {
            self.name(service, (call.program, call.version, call.procedure));
        }
        // So that it is noted, too, if it is answered without an error.
        reply.failed_with(TIMED);
        self.began = self.clock.now();
    }

    /// The service has had a Call that is timed, has failed, or is answered later with `token`.
    #[cold]
    #[inline(never)]
    fn note_rare(&mut self, service: usize, call: &Call<'_>, reply: &mut Reply<'_>, token: Option<Token>) {
        let place = Self::place(service, call.procedure);
        // It is the last of these that was counted.
        let is_timed = (self.calls[place] - 1).is_multiple_of(SAMPLED);
        let details = &mut self.details[place];
        if is_timed {
            let took = self.clock.now().saturating_sub(self.began);
            let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            let range = EXECUTION_BOUNDS_NANOSECONDS.partition_point(|&bound| bound < nanoseconds);
            details.executed[range] += 1;
            details.executed_sum += took;
        }
        match reply.status() {
            0 => {}
            TIMED if is_timed => reply.failed_with(0),
            status => details.fail(status),
        }
        if let Some(token) = token
            && !reply.is_deferred(token)
        {
            self.begin((service, token), call);
        }
    }

    /// Notes which procedure has a place.
    #[cold]
    fn name(&mut self, service: usize, (program, version, procedure): (u32, u32, u32)) {
        let name = match self.services.lookup(program, version, procedure) {
            Lookup::Found { procedure, .. } => procedure.name,
            _ => "",
        };
        let details = &mut self.details[Self::place(service, procedure)];
        (details.program, details.version, details.name) = (program, version, name);
    }

    /// What a late Call waited for longest, if the log asks.
    fn stage_of(&self, service: usize, token: Token) -> &'static str {
        if self.slow.is_some() { self.services.stage(service, token) } else { "" }
    }

    fn begin(&mut self, key: (usize, Token), call: &Call<'_>) {
        let (place, since) = (Self::place(key.0, call.procedure), call.now());
        if self.late.len() < TIMED_MAX {
            // Only the log asks who called, and for what.
            let client = self.slow.and_then(|_| call.peer()).map(ToString::to_string);
            let subject = self.slow.and_then(|_| self.services.subject(key.0, call));
            self.late.insert(key, LateCall { place, since, client, subject });
        }
    }

    /// A late answer is there, with this status. `stage` says what the Call waited for.
    fn end(&mut self, key: (usize, Token), status: u32, stage: &str) {
        let Some(LateCall { place, since, client, subject }) = self.late.remove(&key) else { return };
        if status != 0 {
            self.details[place].fail(status);
        }
        let waited = self.now.saturating_sub(since);
        let microseconds = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        let range = WAIT_BOUNDS_MICROSECONDS.partition_point(|&bound| bound < microseconds);
        let details = &mut self.details[place];
        details.late += 1;
        details.waited[range] += 1;
        details.waited_sum += waited;
        if self.slow.is_some_and(|slow| waited >= slow)
            && let Some(withheld) = self.complaints.admit(self.now)
        {
            let procedure = details.name;
            let client = client.as_deref().unwrap_or("unknown");
            let subject = subject.as_deref().unwrap_or("unknown");
            tracing::warn!(
                procedure,
                client,
                subject,
                ?waited,
                stage,
                withheld,
                "slow: it waited for {stage}"
            );
        }
    }
}

impl<S: Services> Services for Observed<S> {
    #[inline(always)]
    fn named_caller<'a, V: CallerVisitor<'a>>(&self, credential: OpaqueAuth<'a>, visitor: V) -> V::Output {
        self.services.named_caller(credential, visitor)
    }

    fn claim<'a>(&self, header: &CallHeader<'a>) -> Claim<'a> {
        self.services.claim(header)
    }

    fn open(&mut self, call: &SealedCall<'_>) -> Unsealed {
        self.services.open(call)
    }

    #[inline]
    fn lookup(&self, program: u32, version: u32, procedure: u32) -> Lookup {
        self.services.lookup(program, version, procedure)
    }

    #[inline]
    fn home(&self, service: usize, call: &Call<'_>) -> Home {
        self.services.home(service, call)
    }

    // A call of its own would cost as much as the counting.
    #[inline(always)]
    fn call(&mut self, service: usize, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        let place = Self::place(service, call.procedure);
        // The first, and each 64th after it.
        if self.calls[place].is_multiple_of(SAMPLED) {
            self.begin_timed(service, call, reply);
        }
        self.calls[place] += 1;
        // In one place only, so that the service is compiled into it.
        let outcome = self.services.call(service, call, reply);
        match outcome {
            Outcome::Done if reply.status() == 0 => {}
            Outcome::Done => self.note_rare(service, call, reply, None),
            Outcome::Later(token) => self.note_rare(service, call, reply, Some(token)),
        }
        outcome
    }

    #[inline(always)]
    fn note_null(&mut self, service: usize, program: u32, version: u32) {
        let counted = &mut self.calls[Self::place(service, 0)];
        *counted += 1;
        if *counted == 1 {
            self.name(service, (program, version, 0));
        }
        self.services.note_null(service, program, version);
    }

    fn subject(&self, service: usize, call: &Call<'_>) -> Option<String> {
        self.services.subject(service, call)
    }

    #[inline]
    fn poll_later(&mut self, now: Duration) -> Option<(usize, Token)> {
        self.now = now;
        self.services.poll_later(now)
    }

    fn stage(&self, service: usize, token: Token) -> &'static str {
        self.services.stage(service, token)
    }

    fn finish(&mut self, service: usize, token: Token, reply: &mut Reply<'_>) {
        let stage = self.stage_of(service, token);
        self.services.finish(service, token, reply);
        self.end((service, token), reply.status(), stage);
    }

    fn abandoned(&mut self, service: usize, token: Token) {
        let stage = self.stage_of(service, token);
        self.services.abandoned(service, token);
        self.end((service, token), 0, stage);
    }

    #[inline]
    fn next_call_back(&mut self) -> Option<(usize, CallBack)> {
        self.services.next_call_back()
    }

    fn called_back(&mut self, service: usize, id: u64, end: Result<&[u8], CallBackError>) {
        self.services.called_back(service, id, end);
    }

    fn connection_ended(&mut self, connection: ConnectionId) {
        self.services.connection_ended(connection);
    }

    fn give_back(&mut self) {
        self.services.give_back();
    }

    fn arm(&mut self) -> bool {
        self.services.arm()
    }

    fn disarm(&mut self) {
        self.services.disarm();
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        self.services.descriptors(out);
    }

    fn next_timeout(&self) -> Option<Duration> {
        self.services.next_timeout()
    }
}
