//! Services whose Calls are counted by procedure.

use std::time::Duration;

use stag_fabric::sim::{FaultPlan, Odds, World};
use stag_rpc::{
    Call, Chunks, ConnectionEvent, ConnectionId, Deferred, Observed, Outcome, Procedure, ProcedureStatistics,
    Reply, Service, Services, Token, WAIT_BOUNDS_MICROSECONDS,
};
use stag_runtime::Poller;

use crate::support::program::PROGRAM;
use crate::support::{Ended, Node, PASSES_MAX, bytes, request, small};

/// Answered at once.
const NOW: u32 = 1;
/// Answered when the test says so.
const LATER: u32 = 2;
/// Answered by a [`Deferred`].
const DEFERRED: u32 = 3;
/// Answered with the error 7.
const FAILS: u32 = 4;
/// Answered late with the error 8.
const FAILS_LATE: u32 = 5;
/// Beyond the procedures that are counted apart.
const HIGH: u32 = 1000;

static NOW_PROCEDURE: Procedure = Procedure::plain("NOW");
static LATER_PROCEDURE: Procedure = Procedure::plain("LATER");
static DEFERRED_PROCEDURE: Procedure = Procedure::plain("DEFERRED");
static FAILS_PROCEDURE: Procedure = Procedure::plain("FAILS");
static FAILS_LATE_PROCEDURE: Procedure = Procedure::plain("FAILS_LATE");
static HIGH_PROCEDURE: Procedure = Procedure::plain("HIGH");

#[derive(Default)]
struct Slow {
    late: Vec<Token>,
    may_answer: bool,
    deferred: Vec<Deferred>,
    abandoned: u32,
    /// Of the next late answer.
    status: u32,
}

impl Service for Slow {
    fn program(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        (2, 3)
    }

    fn procedure(&self, _: u32, procedure: u32) -> Option<&'static Procedure> {
        match procedure {
            NOW => Some(&NOW_PROCEDURE),
            LATER => Some(&LATER_PROCEDURE),
            DEFERRED => Some(&DEFERRED_PROCEDURE),
            FAILS => Some(&FAILS_PROCEDURE),
            FAILS_LATE => Some(&FAILS_LATE_PROCEDURE),
            HIGH => Some(&HIGH_PROCEDURE),
            _ => None,
        }
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        match call.procedure {
            LATER | FAILS_LATE => {
                self.status = if call.procedure == FAILS_LATE { 8 } else { 0 };
                self.late.push(call.token());
                Outcome::Later(call.token())
            }
            DEFERRED => {
                let deferred = reply.defer(call).expect("a descriptor");
                let token = deferred.token();
                self.deferred.push(deferred);
                Outcome::Later(token)
            }
            _ => {
                reply.success(|_| Ok(()));
                if call.procedure == FAILS {
                    reply.failed_with(7);
                }
                Outcome::Done
            }
        }
    }

    fn stage(&self, _: Token) -> &'static str {
        "a test"
    }

    fn poll_later(&mut self, _: Duration) -> Option<Token> {
        if self.may_answer { self.late.pop() } else { None }
    }

    fn finish(&mut self, _: Token, reply: &mut Reply<'_>) {
        reply.success(|_| Ok(()));
        reply.failed_with(self.status);
    }

    fn abandoned(&mut self, _: Token) {
        self.abandoned += 1;
    }
}

struct Lab {
    world: World,
    server: Node<Observed<(Slow,)>>,
    client: Node<()>,
    connection: ConnectionId,
}

impl Lab {
    fn new() -> Lab {
        Lab::with(FaultPlan::default())
    }

    fn with(plan: FaultPlan) -> Lab {
        let world = World::new(1, plan);
        let mut server = Node::new(&world, "server", small(), 1 << 20, |_| Observed::new((Slow::default(),)));
        server.engine.listen("server").expect("the address is free");
        let mut client = Node::new(&world, "client", small(), 1 << 20, |_| ());
        let connection = client.engine.connect("server").expect("the address is fine");
        let mut lab = Lab { world, server, client, connection };
        let wanted = ConnectionEvent::Established { connection };
        lab.run(|lab| lab.client.events.contains(&wanted));
        lab
    }

    #[track_caller]
    fn run(&mut self, done: impl Fn(&mut Lab) -> bool) {
        for _ in 0..PASSES_MAX {
            if done(self) {
                return;
            }
            let now = self.world.now();
            if self.server.poll(now) + self.client.poll(now) == 0 {
                let timers = [self.server.engine.next_timeout(), self.client.engine.next_timeout()];
                self.world.advance_before(timers.into_iter().flatten().min());
            }
        }
        panic!("what was awaited did not happen in {PASSES_MAX} passes");
    }

    fn begin(&mut self, procedure: u32) {
        let (connection, mut chunks) = (self.connection, Chunks::default());
        let call = self.client.engine.call(connection, &request(procedure), &mut chunks, |_| Ok(()));
        call.expect("a credit");
    }

    #[track_caller]
    fn end(&mut self) {
        self.run(|lab| !lab.client.done.is_empty());
        assert_eq!(bytes(&Ended::of(self.client.done.remove(0))), []);
    }

    fn observed(&mut self) -> &mut Observed<(Slow,)> {
        self.server.engine.services_mut()
    }

    fn slow(&mut self) -> &mut Slow {
        &mut self.observed().get_mut().0
    }

    fn found(&mut self, name: &str) -> ProcedureStatistics {
        let found = self.observed().procedures().find(|found| found.name == name);
        found.unwrap_or_default()
    }
}

#[test]
fn calls_are_counted_by_procedure() {
    let mut lab = Lab::new();
    for procedure in [NOW, HIGH, NOW, 0, NOW] {
        lab.begin(procedure);
        lab.end();
    }
    let now = lab.found("NOW");
    assert_eq!((now.program, now.calls, now.late), (PROGRAM, 3, 0));
    assert_eq!(lab.found("HIGH").calls, 1);
    assert_eq!(lab.observed().procedures().count(), 3);
}

/// The engine answers NULL for the service, where it arrived or not.
#[test]
fn null_is_counted_and_not_timed() {
    for in_place in [Odds::NEVER, Odds::ALWAYS] {
        let mut lab = Lab::with(FaultPlan { in_place, ..FaultPlan::default() });
        for _ in 0..65 {
            lab.begin(0);
            lab.end();
        }
        let null = lab.found("NULL");
        assert_eq!((null.program, null.version, null.calls), (PROGRAM, 3, 65));
        assert_eq!(null.executed.iter().sum::<u64>(), 0);
    }
}

#[test]
fn late_answers_are_timed_from_the_call_to_the_answer() {
    let mut lab = Lab::new();
    lab.begin(LATER);
    lab.run(|lab| !lab.slow().late.is_empty());
    assert_eq!(lab.observed().timed(), 1);
    let waited = Duration::from_millis(10);
    let later = lab.world.now() + waited;
    lab.world.advance_to(later);
    lab.slow().may_answer = true;
    lab.end();
    let late = lab.found("LATER");
    assert_eq!((late.calls, late.late), (1, 1));
    assert!(late.waited_sum >= waited && late.waited_sum < 2 * waited, "{:?}", late.waited_sum);
    let range = WAIT_BOUNDS_MICROSECONDS.iter().position(|&bound| bound > 10_000).expect("a range");
    assert_eq!(late.waited[range], 1, "{late:?}");
    assert_eq!(lab.observed().timed(), 0);
}

/// Its answer does not come by way of the service.
#[test]
fn a_deferred_call_is_counted_and_not_timed() {
    let mut lab = Lab::new();
    lab.begin(DEFERRED);
    lab.run(|lab| !lab.slow().deferred.is_empty());
    assert_eq!(lab.observed().timed(), 0);
    let deferred = lab.slow().deferred.pop().expect("it was just there");
    deferred.finish(|reply| reply.success(|_| Ok(())));
    lab.end();
    assert_eq!((lab.found("DEFERRED").calls, lab.found("DEFERRED").late), (1, 0));
}

#[test]
fn a_call_whose_client_is_gone_is_timed_no_longer() {
    let mut lab = Lab::new();
    lab.begin(LATER);
    lab.run(|lab| !lab.slow().late.is_empty());
    lab.client.engine.disconnect(lab.connection);
    lab.run(|lab| lab.server.engine.connection_count() == 0);
    lab.slow().may_answer = true;
    lab.run(|lab| lab.slow().abandoned == 1);
    assert_eq!(lab.observed().timed(), 0);
}

#[test]
fn errors_are_counted_by_procedure_and_status() {
    let mut lab = Lab::new();
    for procedure in [NOW, FAILS, NOW, FAILS, FAILS] {
        lab.begin(procedure);
        lab.end();
    }
    lab.slow().may_answer = true;
    for procedure in [FAILS_LATE, LATER] {
        lab.begin(procedure);
        lab.end();
    }
    let found = ["NOW", "FAILS", "FAILS_LATE", "LATER"].map(|name| lab.found(name).failures);
    assert_eq!(found, [vec![], vec![(7, 3)], vec![(8, 1)], vec![]]);
}

/// The time of the first Call of each procedure is taken, and of each 64th after it.
#[test]
fn some_calls_are_timed_while_their_service_has_them() {
    let mut lab = Lab::new();
    for calls in 1..=130 {
        lab.begin(NOW);
        lab.end();
        let found = lab.found("NOW");
        assert_eq!(found.executed.iter().sum::<u64>(), u64::div_ceil(calls, 64), "{calls} Calls");
    }
    lab.begin(FAILS);
    lab.end();
    let found = lab.found("FAILS");
    assert_eq!((found.executed.iter().sum::<u64>(), found.version), (1, 3));
    assert!(found.executed_sum > Duration::ZERO);
}

#[test]
fn a_service_says_what_its_call_waited_for() {
    let mut lab = Lab::new();
    lab.begin(LATER);
    lab.run(|lab| !lab.slow().late.is_empty());
    let token = lab.slow().late[0];
    assert_eq!(lab.observed().stage(0, token), "a test");
}
