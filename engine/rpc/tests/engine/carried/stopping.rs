//! Every order in which the reactors of a group stop, and each of them dying in its turn, at every moment of Calls that are
//! carried: with loans out, and with Calls that wait for something that does not come. A Call ends once, no Call waits for ever,
//! nothing stays lent.

use std::time::Duration;

use stag_fabric::sim::{FaultPlan, World};
use stag_rpc::{Call, Chunks, Home, Memory};
use stag_runtime::{Poller, ReactorId};

use super::group::Group;
use crate::support::program::{ECHO, GET, LATER, LATER_PUT, NEVER, Program, pattern, sum};
use crate::support::{Ended, Node, bytes, opaque, request, request_for, words};

/// As long as reactors may take to stop.
const DRAIN_MAX: Duration = Duration::from_secs(2);
/// Passes after which a stop is stuck.
const PASSES_MAX: usize = 20_000;
/// Octets of payload memory of each reactor: one that dies leaves what it had been lent in use.
const PAYLOAD_LEN: usize = 256 << 10;
/// Octets of the data of a Call.
const DATA_LEN: usize = 5000;

/// At the reactor that the first two words of the arguments choose.
fn by_sum<const N: u32>(call: &Call<'_>) -> Home {
    let mut arguments = call.arguments();
    let sum: u32 = (0..2).map(|_| arguments.u32().unwrap_or(0)).fold(0, u32::wrapping_add);
    Home::At(ReactorId::new((sum % N) as usize).expect("a group of a few"))
}

/// What a stop does to a reactor next, as `Reactor` goes through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serves,
    Finishes,
    HasFinished,
    GivesBack,
    GaveBack,
    Left,
}

/// One case: the order in which reactors stop, the passes between their stops, and the passes from the first Calls
/// to the first stop.
#[derive(Clone, Debug)]
struct Case {
    order: Vec<usize>,
    gap: usize,
    begin: usize,
    /// Leaves the moment that it is told to stop.
    dying: Option<usize>,
    /// A Call of each client is never answered.
    waits: bool,
}

struct Stop {
    world: World,
    reactors: Vec<Option<Node<(Program,)>>>,
    phases: Vec<Phase>,
    memories: Vec<Memory>,
    clients: Vec<Node<()>>,
    /// When the first reactor stopped.
    began: Option<Duration>,
}

impl Stop {
    fn has_passed_deadline(&self) -> bool {
        self.began.is_some_and(|began| self.world.now() >= began + DRAIN_MAX)
    }

    fn have_all(&self, phase: fn(Phase) -> bool) -> bool {
        self.phases.iter().all(|of| phase(*of))
    }

    fn leave(&mut self, index: usize) {
        self.phases[index] = Phase::Left;
        let Node { engine, memory, .. } = self.reactors[index].take().expect("it leaves once");
        drop(engine);
        self.memories.push(memory);
    }

    /// What a reactor does with its next turn.
    fn turn(&mut self, index: usize) -> usize {
        let (now, is_late) = (self.world.now(), self.has_passed_deadline());
        let have_finished = self.have_all(|of| !matches!(of, Phase::Serves | Phase::Finishes));
        let have_given_back = self.have_all(|of| matches!(of, Phase::GaveBack | Phase::Left));
        let Some(node) = &mut self.reactors[index] else { return 0 };
        let next = match self.phases[index] {
            Phase::Finishes if node.engine.is_drained() || is_late => Phase::HasFinished,
            Phase::HasFinished if have_finished || is_late => {
                node.engine.give_back(now);
                Phase::GivesBack
            }
            Phase::GivesBack if node.engine.has_given_back() || is_late => Phase::GaveBack,
            Phase::GaveBack if have_given_back || is_late => {
                node.poll(now);
                self.leave(index);
                return 1;
            }
            _ => return node.poll(now),
        };
        self.phases[index] = next;
        1
    }

    fn pass(&mut self) {
        let mut count: usize = (0..self.reactors.len()).map(|index| self.turn(index)).sum();
        let now = self.world.now();
        count += self.clients.iter_mut().map(|client| client.poll(now)).sum::<usize>();
        if count == 0 {
            let reactors = self.reactors.iter().flatten().map(|node| node.engine.next_timeout());
            let clients = self.clients.iter().map(|client| client.engine.next_timeout());
            let deadline = self.began.map(|began| began + DRAIN_MAX).filter(|deadline| *deadline > now);
            let next = reactors.chain(clients).chain([deadline]).flatten().min();
            let goes_on = self.world.advance_before(next);
            assert!(goes_on || self.has_passed_deadline(), "nothing happens any more: {:?}", self.phases);
        }
    }

    fn stop(&mut self, index: usize, is_dying: bool) {
        let now = self.world.now();
        self.began.get_or_insert(now);
        if is_dying {
            return self.leave(index);
        }
        self.phases[index] = Phase::Finishes;
        self.reactors[index].as_mut().expect("it serves").engine.stop(now);
    }
}

/// A Call that was begun, and what its results have to be.
struct Begun {
    client: usize,
    call: stag_rpc::CallId,
    results: Vec<u8>,
    written: Vec<u8>,
    is_answered: bool,
}

fn begin(group: &mut Group, client: usize, reactors: usize, waits: bool) -> Vec<Begun> {
    let mut begun = Vec::new();
    // To two reactors: of two to that which the client is connected to as well, of three to the others.
    for home in (0..reactors as u32).filter(|home| reactors == 2 || *home != client as u32) {
        let number = (reactors as u32) * 8;
        let mut add = |call, results, written, is_answered| {
            begun.push(Begun { client, call, results, written, is_answered });
        };
        let text = [4, home + number - 4].map(u32::to_be_bytes);
        let call = group.begin(client, request(ECHO), Chunks::default(), |writer| writer.opaque(&text[1]));
        add(call, text.concat(), Vec::new(), true);

        let space = group.clients[client].space(DATA_LEN);
        let seed = home + number - 1;
        let call = group.begin(client, request_for(GET, 100), Chunks::write(space), |writer| {
            words(writer, &[seed, 1, DATA_LEN as u32])
        });
        add(call, (DATA_LEN as u32).to_be_bytes().to_vec(), pattern(seed, DATA_LEN), true);

        let data = pattern(home, DATA_LEN);
        let chunks = Chunks::read(group.data(client, &data));
        let delay = u64::from(home + 30 * number);
        let call = group.begin(client, request(LATER_PUT), chunks, |writer| {
            writer.u64(delay)?;
            writer.u32(1)?;
            writer.eligible_opaque_reduced(DATA_LEN as u32).map(drop)
        });
        add(call, [0, sum(&data)].map(u32::to_be_bytes).concat(), Vec::new(), true);
    }
    if waits {
        let call = group.begin(client, request(LATER), Chunks::default(), |writer| {
            writer.u64(NEVER)?;
            writer.opaque(b"lock")
        });
        begun.push(Begun { client, call, results: opaque(b"lock"), written: Vec::new(), is_answered: false });
    }
    begun
}

fn run(case: &Case) {
    let reactors = case.order.len();
    let home = if reactors == 2 { by_sum::<2> } else { by_sum::<3> };
    let world = World::new(1, FaultPlan::default());
    let mut group = Group::with_payload(world, PAYLOAD_LEN, reactors, home);
    let clients: Vec<_> = (0..reactors).map(|reactor| group.connect(reactor)).collect();
    // Grants grow with use: all Calls have a credit.
    for client in &clients {
        while group.credits(*client) < 7 {
            group.check_alive(*client);
        }
    }
    let before: Vec<_> = received(&group.reactors);
    let mut begun: Vec<_> =
        clients.iter().flat_map(|client| begin(&mut group, *client, reactors, case.waits)).collect();
    let Group { world, reactors: nodes, clients, .. } = group;
    let mut stop = Stop {
        world,
        phases: vec![Phase::Serves; nodes.len()],
        reactors: nodes.into_iter().map(Some).collect(),
        memories: Vec::new(),
        clients,
        began: None,
    };
    (0..case.begin).for_each(|_| stop.pass());
    let each = begun.len() / reactors;
    let all_arrived = stop
        .reactors
        .iter()
        .flatten()
        .zip(before)
        .all(|(node, before)| node.engine.statistics().calls_received - before == each as u64);
    for &reactor in &case.order {
        stop.stop(reactor, case.dying == Some(reactor));
        (0..case.gap).for_each(|_| stop.pass());
    }
    let mut passes = 0;
    while !stop.have_all(|of| of == Phase::Left) {
        stop.pass();
        passes += 1;
        assert!(passes < PASSES_MAX, "a reactor does not leave: {:?}", stop.phases);
    }
    // Clients hear of it, by a disconnect or in the end by their timeouts.
    while stop.clients.iter().map(|client| client.done.len()).sum::<usize>() < begun.len() {
        stop.pass();
        passes += 1;
        assert!(passes < 2 * PASSES_MAX, "a Call does not end");
    }
    for client in &mut stop.clients {
        assert_eq!(client.done.len(), each, "each Call ends once");
    }
    for Begun { client, call, results, written, is_answered } in begun.drain(..) {
        let done = &mut stop.clients[client].done;
        let at = done.iter().position(|done| done.call == call).expect("each Call ends");
        let ended = Ended::of(done.swap_remove(at));
        if ended.result.is_ok() {
            assert_eq!(bytes(&ended), results);
            assert!(written.is_empty() || ended.written[0].1 == written);
        } else {
            let may_fail = !all_arrived || case.dying.is_some() || !is_answered || case.waits;
            assert!(may_fail, "a Call that was here before the stop is lost: {:?}", ended.result);
        }
    }
    while stop.clients.iter().any(|client| client.engine.connection_count() > 0) {
        stop.pass();
        passes += 1;
        assert!(passes < 3 * PASSES_MAX, "a client does not hear that its connection is gone");
    }
    for client in &mut stop.clients {
        assert_eq!(client.outstanding(), 0, "a client's buffers: {}", client.memory.ledger);
    }
    // What was lent to one that died, or was on its way there, stays lent.
    if case.dying.is_none() {
        for memory in &stop.memories {
            assert_eq!(memory.ledger.outstanding(), 0, "a reactor's buffers: {}", memory.ledger);
        }
    }
}

/// Calls that each reactor has taken in.
fn received(reactors: &[Node<(Program,)>]) -> Vec<u64> {
    reactors.iter().map(|node| node.engine.statistics().calls_received).collect()
}

/// All orders of `count` reactors.
fn orders(count: usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for next in 0..count {
        all = all
            .into_iter()
            .flat_map(|order: Vec<usize>| {
                (0..=next).map(move |at| {
                    let mut order = order.clone();
                    order.insert(at, next);
                    order
                })
            })
            .collect();
    }
    all
}

fn all_cases(reactors: usize, mortal: bool) {
    let dying: Vec<_> = if mortal { (0..reactors).map(Some).collect() } else { vec![None] };
    // One that dies leaves memory in use, that of the case: fewer of these.
    let (gaps, moments, waiting): (&[usize], usize, &[bool]) = match (mortal, reactors) {
        (false, _) => (&[0, 2], 8, &[false, true]),
        (true, 2) => (&[0, 1], 6, &[false, true]),
        (true, _) => (&[1], 6, &[false]),
    };
    for order in orders(reactors) {
        for &gap in gaps {
            for begin in 0..moments {
                for &waits in waiting {
                    for &dying in &dying {
                        let case = Case { order: order.clone(), gap, begin, dying, waits };
                        let guard = Named(&case);
                        run(&case);
                        std::mem::forget(guard);
                    }
                }
            }
        }
    }
}

/// Says which case failed.
struct Named<'a>(&'a Case);

impl Drop for Named<'_> {
    fn drop(&mut self) {
        eprintln!("the case that failed: {:?}", self.0);
    }
}

#[test]
fn all_orders_of_three() {
    let mut all = orders(3);
    all.sort();
    assert_eq!(all, [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]);
}

#[test]
fn two_reactors_stop_in_every_order() {
    all_cases(2, false);
}

#[test]
fn three_reactors_stop_in_every_order() {
    all_cases(3, false);
}

#[test]
fn one_of_two_dies_in_its_turn() {
    all_cases(2, true);
}

#[test]
fn one_of_three_dies_in_its_turn() {
    all_cases(3, true);
}
