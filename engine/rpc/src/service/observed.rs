//! [`Observed`]: services whose Calls are counted by procedure, with the time that late answers took.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::time::Duration;

use stag_fabric::LogLimiter;
use stag_wire::rpc::{CallHeader, OpaqueAuth};

use crate::ConnectionId;
use crate::call_back::{CallBack, CallBackError};
use crate::security::{CallerVisitor, Claim, SealedCall, Unsealed};
use crate::service::call::Call;
use crate::service::observing::{CallInStep, CallStep, ObservedProcedure};
use crate::service::reply::Reply;
use crate::service::{Home, Lookup, Outcome, Services, Token};

/// Procedures of one service that are counted apart. A higher number shares the last place.
const PROCEDURES: usize = 32;

/// Services that can be counted: as many as a tuple of services has at most.
const SERVICES: usize = 8;

/// Calls under way whose time is taken. Those beyond are counted and not timed.
const TIMED_MAX: usize = 65_536;

/// Upper bounds of the ranges of [`ProcedureStatistics::waited`], in microseconds. The last range has no bound.
pub const WAIT_BOUNDS_MICROSECONDS: [u64; 9] =
    [64, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304];

/// What is known of one procedure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcedureStatistics {
    /// The program's number.
    pub program: u32,
    /// The version that was called last.
    pub version: u32,
    /// The procedure's name.
    pub name: &'static str,
    /// Calls that its service was given.
    pub calls: u64,
    /// Replies of those.
    pub sent: u64,
    /// Calls that waited for their data: it was read from the client's memory, or there was no memory for it.
    pub pulled: u64,
    /// Those by the time from the Call to its data, in the ranges of [`WAIT_BOUNDS_MICROSECONDS`].
    pub pull_waited: [u64; WAIT_BOUNDS_MICROSECONDS.len() + 1],
    /// The sum of these times.
    pub pull_waited_sum: Duration,
    /// Those of them that were answered in a later pass: they waited, for example for a disk.
    pub late: u64,
    /// Late answers by the time from the Call to its answer, in the ranges of [`WAIT_BOUNDS_MICROSECONDS`].
    pub waited: [u64; WAIT_BOUNDS_MICROSECONDS.len() + 1],
    /// The sum of these times.
    pub waited_sum: Duration,
}

/// A Call that is answered later.
#[derive(Debug)]
struct LateCall {
    place: usize,
    since: Duration,
    /// How long it had waited for its data before.
    pulled: Duration,
    /// When its service answered.
    answered: Option<Duration>,
    client: Option<String>,
    /// What it is about.
    subject: Option<String>,
}

/// Serves as `S` does, and counts its Calls.
///
/// It is an observer ([`Services::observe`]). A Call that waits for nothing costs its counters alone. One whose data comes later, or its
/// answer, is timed with the clock of the reactor's passes: from the pass that it came in to the pass that has its data, and from
/// the pass that called the service to the pass that let it finish.
///
/// In a group of reactors a Call counts where it is executed.
#[derive(Debug)]
pub struct Observed<S> {
    services: S,
    /// By service and procedure.
    procedures: Box<[ProcedureStatistics; SERVICES * PROCEDURES]>,
    late: HashMap<Token, LateCall>,
    /// How long the Call that is executed waited for its data, and when it came.
    pulled: Duration,
    arrived: Duration,
    /// Late answers that take at least this long are logged.
    slow: Option<Duration>,
    complaints: LogLimiter,
}

impl<S: Services> Observed<S> {
    /// Counts the Calls of `services`.
    pub fn new(services: S) -> Observed<S> {
        Observed {
            services,
            procedures: Box::new(std::array::from_fn(|_| ProcedureStatistics::default())),
            late: HashMap::new(),
            pulled: Duration::ZERO,
            arrived: Duration::ZERO,
            slow: None,
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

    /// The procedures that were called, in no particular order.
    pub fn procedures(&self) -> impl Iterator<Item = &ProcedureStatistics> {
        self.procedures.iter().filter(|procedure| procedure.calls > 0)
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

    #[inline(always)]
    fn place(service: usize, procedure: u32) -> usize {
        service % SERVICES * PROCEDURES + (procedure as usize).min(PROCEDURES - 1)
    }

    /// Notes which procedure has a place.
    #[cold]
    fn name(&mut self, place: usize, called: &ObservedProcedure) {
        let &ObservedProcedure { program, version, procedure, .. } = called;
        let name = match self.services.lookup(program, version, procedure) {
            Lookup::Found { procedure, .. } => procedure.name,
            _ => "",
        };
        let counted = &mut self.procedures[place];
        (counted.program, counted.version, counted.name) = (program, version, name);
    }

    /// The Call to be executed has waited for its data.
    #[cold]
    fn note_pull(&mut self, place: usize, pulled: Duration) {
        self.pulled = pulled;
        let counted = &mut self.procedures[place];
        counted.pulled += 1;
        counted.pull_waited[range(pulled)] += 1;
        counted.pull_waited_sum += pulled;
    }

    #[cold]
    fn begin(&mut self, service: usize, token: Token, call: &Call<'_>) {
        if self.late.len() < TIMED_MAX {
            // Only the log asks who called, and for what.
            let client = self.slow.and_then(|_| call.peer()).map(ToString::to_string);
            let subject = self.slow.and_then(|_| self.services.subject(service, call));
            let place = Self::place(service, call.procedure);
            // Of this Call, if it came before this pass.
            let pulled = if self.arrived == call.now() { Duration::ZERO } else { self.pulled };
            let late = LateCall { place, since: call.now(), pulled, answered: None, client, subject };
            self.late.insert(token, late);
        }
    }

    /// A Call takes a step that is answered later.
    #[cold]
    fn note_late(&mut self, step: CallStep, &CallInStep { token, at, .. }: &CallInStep) {
        match step {
            CallStep::Arrived | CallStep::Ready => {}
            CallStep::Executed => {
                if let Some(late) = self.late.get_mut(&token) {
                    late.answered = Some(at);
                }
            }
            CallStep::Sent => {
                if let Some(late) = self.late.get(&token) {
                    self.procedures[late.place].sent += 1;
                }
            }
            CallStep::Done => self.end(token),
        }
    }

    fn end(&mut self, token: Token) {
        let Some(late) = self.late.remove(&token) else { return };
        let LateCall { place, since, pulled, answered: Some(answered), client, subject } = late else {
            return;
        };
        let waited = answered.saturating_sub(since);
        let counted = &mut self.procedures[place];
        counted.late += 1;
        counted.waited[range(waited)] += 1;
        counted.waited_sum += waited;
        if self.slow.is_some_and(|slow| waited >= slow)
            && let Some(withheld) = self.complaints.admit(answered)
        {
            let procedure = counted.name;
            let client = client.as_deref().unwrap_or("unknown");
            let subject = subject.as_deref().unwrap_or("unknown");
            tracing::warn!(
                procedure,
                client,
                subject,
                ?pulled,
                ?waited,
                withheld,
                "slow: its service answered late"
            );
        }
    }
}

/// The range of [`WAIT_BOUNDS_MICROSECONDS`] that a time is in.
fn range(waited: Duration) -> usize {
    let microseconds = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
    WAIT_BOUNDS_MICROSECONDS.partition_point(|&bound| bound < microseconds)
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

    #[inline]
    fn call(&mut self, service: usize, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        let outcome = self.services.call(service, call, reply);
        if let Outcome::Later(token) = outcome {
            self.begin(service, token, call);
        }
        outcome
    }

    #[inline(always)]
    fn observe(&mut self, step: CallStep, call: &CallInStep) {
        let Some(called) = &call.called else { return self.note_late(step, call) };
        let place = Self::place(called.service, called.procedure);
        match step {
            CallStep::Arrived => self.arrived = call.at,
            CallStep::Ready => {
                let counted = &mut self.procedures[place];
                counted.calls += 1;
                if counted.version != called.version {
                    self.name(place, called);
                }
                if self.arrived != call.at {
                    self.note_pull(place, call.at.saturating_sub(self.arrived));
                }
            }
            CallStep::Sent => self.procedures[place].sent += 1,
            CallStep::Executed | CallStep::Done => {}
        }
    }

    fn subject(&self, service: usize, call: &Call<'_>) -> Option<String> {
        self.services.subject(service, call)
    }

    #[inline]
    fn poll_later(&mut self, now: Duration) -> Option<(usize, Token)> {
        self.services.poll_later(now)
    }

    fn finish(&mut self, service: usize, token: Token, reply: &mut Reply<'_>) {
        self.services.finish(service, token, reply);
    }

    fn abandoned(&mut self, service: usize, token: Token) {
        self.services.abandoned(service, token);
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
