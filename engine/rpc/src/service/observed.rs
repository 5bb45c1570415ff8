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

/// What each Call changes, apart from what hardly any does.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    calls: u64,
    version: u32,
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
    /// By service and procedure: how often, and all else that is known.
    counters: Box<[Counter; SERVICES * PROCEDURES]>,
    procedures: Box<[ProcedureStatistics; SERVICES * PROCEDURES]>,
    late: HashMap<Token, LateCall>,
    /// Late answers that take at least this long are logged.
    slow: Option<Duration>,
    complaints: LogLimiter,
}

impl<S: Services> Observed<S> {
    /// Counts the Calls of `services`.
    pub fn new(services: S) -> Observed<S> {
        Observed {
            services,
            counters: Box::new([Counter::default(); SERVICES * PROCEDURES]),
            procedures: Box::new(std::array::from_fn(|_| ProcedureStatistics::default())),
            late: HashMap::new(),
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
    pub fn procedures(&self) -> impl Iterator<Item = ProcedureStatistics> {
        let counted = self.counters.iter().zip(self.procedures.iter());
        counted
            .filter(|(counter, _)| counter.calls > 0)
            .map(|(counter, known)| ProcedureStatistics { calls: counter.calls, ..known.clone() })
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
        (service % SERVICES) * PROCEDURES + (procedure as usize).min(PROCEDURES - 1)
    }

    /// Notes which procedure has a place.
    #[cold]
    fn name(&mut self, place: usize, called: &ObservedProcedure) {
        let &ObservedProcedure { program, version, procedure, .. } = called;
        let name = match self.services.lookup(program, version, procedure) {
            Lookup::Found { procedure, .. } => procedure.name,
            _ => "",
        };
        self.counters[place].version = version;
        let known = &mut self.procedures[place];
        (known.program, known.version, known.name) = (program, version, name);
    }

    /// The Call to be executed has waited for its data.
    #[cold]
    fn note_pull(&mut self, place: usize, pulled: Duration) {
        let counted = &mut self.procedures[place];
        counted.pulled += 1;
        counted.pull_waited[range(pulled)] += 1;
        counted.pull_waited_sum += pulled;
    }

    /// A Call takes a step that is answered later.
    #[cold]
    fn note_late(&mut self, step: CallStep, &CallInStep { token, at, .. }: &CallInStep) {
        match step {
            CallStep::Arrived | CallStep::Ready | CallStep::Sent => {}
            CallStep::Executed => {
                if let Some(late) = self.late.get_mut(&token) {
                    late.answered = Some(at);
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

    #[inline(always)]
    fn call(&mut self, service: usize, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        self.services.call(service, call, reply)
    }

    #[inline(always)]
    fn observe(&mut self, step: CallStep, call: &CallInStep) {
        let Some(called) = &call.called else { return self.note_late(step, call) };
        if step != CallStep::Ready {
            return;
        }
        let place = Self::place(called.service, called.procedure);
        let counter = &mut self.counters[place];
        counter.calls += 1;
        if counter.version != called.version {
            self.name(place, called);
        }
        if call.arrived != call.at {
            self.note_pull(place, call.at.saturating_sub(call.arrived));
        }
    }

    #[cold]
    fn postponed(&mut self, service: usize, call: &Call<'_>, arrived: Duration) {
        if self.late.len() < TIMED_MAX {
            // Only the log asks who called, and for what.
            let client = self.slow.and_then(|_| call.peer()).map(ToString::to_string);
            let subject = self.slow.and_then(|_| self.services.subject(service, call));
            let (place, since) = (Self::place(service, call.procedure), call.now());
            let pulled = since.saturating_sub(arrived);
            self.late
                .insert(call.token(), LateCall { place, since, pulled, answered: None, client, subject });
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
