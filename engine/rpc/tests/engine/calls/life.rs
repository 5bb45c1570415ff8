//! The life of a Call as it can be seen from outside, on both sides: a picture of what is counted and told, in order.
//!
//! Each scenario of `life.txt` is one Call, or a few; the steps of a side stand in the order in which they were seen. How many
//! passes lie between two of them is not in the picture: an engine may take several at once.

use std::cell::Cell;
use std::time::Duration;

use stag_fabric::sim::{FaultPlan, Odds, World};
use stag_memory::{Buf, Pool};
use stag_rpc::{Backoff, CallRefused, Chunks, ClientPolicy, ConnectionEvent, Request, Statistics};
use stag_wire::xdr::Writer;

use crate::support::program::{BIG, ECHO, GET, LATER, NEVER, PUT, Program, pattern};
use crate::support::{ADDRESS, Bench, Node, request, request_for, small, words};

/// Makes Calls outlive their connection.
const RECONNECT: ClientPolicy = ClientPolicy {
    reconnect: Some(Backoff {
        first: Duration::from_millis(20),
        max: Duration::from_millis(200),
        give_up_after: Duration::from_secs(60),
        resend_after: Duration::from_secs(2),
    }),
    keep_alive: None,
};

/// What is counted, and what it is called in the picture, in the order of a Call's life.
type Counted = (&'static str, u64);

fn server_counts(statistics: &Statistics, program: &Program) -> [Counted; 12] {
    [
        ("received", statistics.calls_received),
        ("a Long Call", statistics.position_zero_chunks),
        ("a Read chunk to pull", statistics.read_chunks),
        ("given to the service", program.executed),
        ("left for later", program.kept() as u64 + program.finished + program.abandoned),
        ("answered by the service later", program.finished),
        ("abandoned by the service", program.abandoned),
        ("a Write chunk to fill", statistics.write_chunks),
        ("a Write chunk unused", statistics.write_chunks_unused),
        ("a Long Reply", statistics.reply_chunks),
        ("refused with an RDMA_ERROR", statistics.errors_sent),
        ("replied", statistics.replies_sent),
    ]
}

fn client_counts(statistics: &Statistics) -> [Counted; 8] {
    [
        ("a Long Call", statistics.position_zero_chunks),
        ("sent", statistics.calls_sent),
        ("sent again", statistics.calls_retransmitted),
        ("a Reply", statistics.replies_received),
        ("a Long Reply", statistics.reply_chunks),
        ("a handle invalidated by the server", statistics.remote_invalidations),
        ("a handle to fence", statistics.local_fences),
        ("a message dropped", statistics.messages_discarded),
    ]
}

/// Appends a line for each unit by which a count has grown.
fn note(lines: &mut Vec<String>, before: &[Counted], after: &[Counted]) {
    for ((what, before), (_, after)) in before.iter().zip(after) {
        (*before..*after).for_each(|_| lines.push((*what).to_owned()));
    }
}

/// A bench whose steps are written down.
struct Life {
    bench: Bench,
    server: [Counted; 12],
    client: [Counted; 8],
    moved: [u64; 2],
    server_lines: Vec<String>,
    client_lines: Vec<String>,
    told: usize,
}

impl Life {
    fn new(plan: FaultPlan, policy: ClientPolicy) -> Life {
        let mut bench = Bench::in_world(World::new(1, plan), small(), small(), 0);
        bench.add_client_with(small(), policy);
        bench.establish();
        // Several credits, as most of a connection's life.
        bench.check_alive(0);
        let mut life = Life {
            bench,
            server: server_counts(&Statistics::default(), &Program::new(pool())),
            client: client_counts(&Statistics::default()),
            moved: [0; 2],
            server_lines: Vec::new(),
            client_lines: Vec::new(),
            told: 0,
        };
        life.observe();
        life.moved = life.octets();
        (life.server_lines, life.client_lines) = (Vec::new(), Vec::new());
        life
    }

    fn octets(&self) -> [u64; 2] {
        let statistics = self.bench.server.engine.statistics();
        [statistics.read_bytes, statistics.write_bytes]
    }

    /// Writes down what is new.
    fn observe(&mut self) {
        let Bench { server, clients, .. } = &mut self.bench;
        let statistics = *server.engine.statistics();
        let now = server_counts(&statistics, &server.engine.services_mut().0);
        note(&mut self.server_lines, &self.server, &now);
        self.server = now;
        let client = &mut clients[0];
        let now = client_counts(client.engine.statistics());
        note(&mut self.client_lines, &self.client, &now);
        self.client = now;
        for event in &client.events[self.told..] {
            self.client_lines.push(match event {
                ConnectionEvent::Established { .. } => "connected".to_owned(),
                ConnectionEvent::Interrupted { .. } => "the connection is interrupted".to_owned(),
                ConnectionEvent::Restored { .. } => "the connection is restored".to_owned(),
                ConnectionEvent::Closed { .. } => "the connection is closed".to_owned(),
                other => panic!("{other}: not in the picture"),
            });
        }
        self.told = client.events.len();
        for done in client.done.drain(..) {
            let end = done.result.map(|results| results.reduced_len());
            let back: Vec<usize> = done.written.iter().map(|(_, buf)| buf.len()).collect();
            self.client_lines.push(match end {
                Ok(reduced) => format!("over, with {reduced} octets by chunk, buffers {back:?}"),
                Err(error) => format!("over: {error:?}, buffers {back:?}"),
            });
        }
    }

    /// One pass, or the next moment at which something happens.
    fn step(&mut self) -> bool {
        let goes_on = self.bench.step();
        self.observe();
        goes_on
    }

    fn run_until(&mut self, mut is_done: impl FnMut(&mut Life) -> bool) {
        for _ in 0..100_000 {
            if is_done(self) {
                return;
            }
            self.step();
        }
        panic!("stuck: {:?} {:?}", self.server_lines, self.client_lines);
    }

    /// Until the client has been told the end of `count` Calls, and everything has come to rest.
    fn finish(&mut self, count: usize) {
        let is_over = |line: &&String| line.starts_with("over");
        self.run_until(|life| life.client_lines.iter().filter(is_over).count() == count);
        let until = self.bench.world.now() + Duration::from_millis(100);
        for _ in 0..100_000 {
            if self.bench.world.now() >= until || !self.step() {
                break;
            }
        }
    }

    /// This number of passes, in which nothing may be waited for.
    fn passes(&mut self, count: usize) {
        (0..count).for_each(|_| {
            self.bench.pass();
            self.observe();
        });
    }

    fn both(&mut self, line: &str) {
        self.server_lines.push(format!("-- {line}"));
        self.client_lines.push(format!("-- {line}"));
    }

    fn echo(&mut self, request: Request<'_>) -> Result<(), CallRefused> {
        self.bench.begin(0, request, Chunks::default(), |writer| writer.opaque(b"text")).map(drop)
    }

    fn later(&mut self, delay: u64, request: Request<'_>, chunks: Chunks) -> stag_rpc::CallId {
        let encode = |writer: &mut Writer<'_>| {
            writer.u64(delay)?;
            writer.opaque(b"text")
        };
        self.bench.begin(0, request, chunks, encode).expect("a credit")
    }

    fn put(&mut self, len: u32) {
        let chunks = Chunks::read(self.bench.clients[0].data(&pattern(4, len as usize)));
        let encode = |writer: &mut Writer<'_>| {
            writer.u32(1)?;
            writer.eligible_opaque_reduced(len).map(|_| ())
        };
        self.bench.begin(0, request(PUT), chunks, encode).expect("a credit");
    }

    fn get(&mut self, room: usize, len: u32) {
        let chunks = Chunks::write(self.bench.clients[0].space(room));
        let encode = |writer: &mut Writer<'_>| words(writer, &[1, 1, len]);
        self.bench.begin(0, request_for(GET, 8), chunks, encode).expect("a credit");
    }

    fn picture(mut self, name: &str) -> String {
        let [read, written] = self.octets();
        let mut text = format!("{name}\n  client\n");
        self.client_lines.iter().for_each(|line| text.push_str(&format!("    {line}\n")));
        text.push_str("  server\n");
        self.server_lines.iter().for_each(|line| text.push_str(&format!("    {line}\n")));
        let [read, written] = [read.saturating_sub(self.moved[0]), written.saturating_sub(self.moved[1])];
        if read + written > 0 {
            text.push_str(&format!("    octets read: {read}, written: {written}\n"));
        }
        self.bench.server.engine.services_mut().0.release();
        self.bench.close();
        text
    }
}

/// A pool of one page, for a program that is never called.
fn pool() -> Pool {
    stag_rpc::Memory::on_demand(&small(), 1 << 16).expect("some memory").pools.payload
}

/// Takes all units of a pool but `left`.
fn take_all(pool: &Pool, left: usize) -> Vec<Buf> {
    std::iter::from_fn(|| (pool.free_units() > left).then(|| pool.take())?).collect()
}

thread_local! {
    /// How often messages without chunks are handled where they arrived, and built where they leave.
    static IN_PLACE: Cell<Odds> = const { Cell::new(Odds::NEVER) };
}

fn scenario(name: &str, run: impl FnOnce(&mut Life)) -> String {
    scenario_in(FaultPlan::default(), ClientPolicy::default(), name, run)
}

fn scenario_in(plan: FaultPlan, policy: ClientPolicy, name: &str, run: impl FnOnce(&mut Life)) -> String {
    let mut life = Life::new(FaultPlan { in_place: IN_PLACE.get(), ..plan }, policy);
    run(&mut life);
    life.picture(name)
}

/// Calls of each form.
fn forms() -> Vec<String> {
    vec![
        scenario("a short Call", |life| {
            life.echo(request_for(ECHO, 8)).expect("a credit");
            life.finish(1);
        }),
        scenario("a Read chunk", |life| {
            life.put(5000);
            life.finish(1);
        }),
        scenario("a Write chunk", |life| {
            life.get(5000, 4500);
            life.finish(1);
        }),
        scenario("a Write chunk that is too small", |life| {
            life.get(100, 4500);
            life.finish(1);
        }),
        scenario("a Long Call", |life| {
            let text = pattern(2, 5000);
            let encode = |writer: &mut Writer<'_>| writer.opaque(&text);
            life.bench.begin(0, request_for(ECHO, 5008), Chunks::default(), encode).expect("a credit");
            life.finish(1);
        }),
        scenario("a Long Reply", |life| {
            let encode = |writer: &mut Writer<'_>| words(writer, &[1, 3000]);
            life.bench.begin(0, request_for(BIG, 4000), Chunks::default(), encode).expect("a credit");
            life.finish(1);
        }),
        scenario("a Reply that fits nowhere", |life| {
            let encode = |writer: &mut Writer<'_>| words(writer, &[1, 9000]);
            life.bench.begin(0, request_for(BIG, 100), Chunks::default(), encode).expect("a credit");
            life.finish(1);
        }),
    ]
}

/// Calls that wait, at the server.
fn waits() -> Vec<String> {
    let full = || FaultPlan { post_full: Odds::ALWAYS, ..FaultPlan::default() };
    vec![
        scenario("answered later", |life| {
            life.later(30, request_for(LATER, 16), Chunks::default());
            life.finish(1);
        }),
        scenario("no memory to pull into, for a while", |life| {
            let taken = take_all(&life.bench.server.memory.pools.payload.clone(), 0);
            life.put(5000);
            life.passes(50);
            life.run_until(|life| life.server_lines.contains(&"a Read chunk to pull".to_owned()));
            life.passes(50);
            life.both("the memory is back");
            drop(taken);
            life.finish(1);
        }),
        scenario("no message buffers to answer with, for a while", |life| {
            let taken = take_all(&life.bench.server.memory.pools.messages.clone(), 0);
            life.echo(request_for(ECHO, 8)).expect("a credit");
            let until = life.bench.world.now() + Duration::from_millis(5);
            life.run_until(|life| !life.step() || life.bench.world.now() >= until);
            life.both("the buffers are back");
            drop(taken);
            life.finish(1);
        }),
        scenario_in(full(), ClientPolicy::default(), "two at once through a full send queue", |life| {
            life.get(5000, 4500);
            life.get(5000, 4500);
            life.finish(2);
        }),
        scenario_in(full(), RECONNECT, "the same, of a client that sends again", |life| {
            life.get(5000, 4500);
            life.get(5000, 4500);
            life.finish(2);
        }),
    ]
}

/// Calls that end otherwise than by their Reply.
fn endings() -> Vec<String> {
    let late = || FaultPlan { fence_pending: Odds::ALWAYS, ..FaultPlan::default() };
    let timed = |timeout| Request { timeout: Duration::from_millis(timeout), ..request_for(LATER, 16) };
    let killed = |life: &mut Life| {
        let (world, pool) =
            (life.bench.world.clone(), |memory: &stag_rpc::Memory| memory.pools.payload.clone());
        life.server_lines.push("-- another server comes in its place".to_owned());
        life.bench.server =
            Node::new(&world, "spare", small(), 1 << 20, |memory| (Program::new(pool(memory)),));
        let mut server =
            Node::new(&world, "server", small(), 4 << 20, |memory| (Program::new(pool(memory)),));
        server.engine.listen(ADDRESS).expect("the address is free");
        life.bench.server = server;
        life.server = server_counts(&Statistics::default(), &life.bench.server.engine.services_mut().0);
    };
    vec![
        scenario("given up, and answered late", |life| {
            life.later(50_000, timed(10), Chunks::default());
            life.finish(1);
        }),
        scenario("given up with a Write chunk", |life| {
            let chunks = Chunks::write(life.bench.clients[0].space(100));
            life.later(50_000, timed(10), chunks);
            life.finish(1);
        }),
        scenario_in(late(), ClientPolicy::default(), "given up, and fenced later", |life| {
            let chunks = Chunks::write(life.bench.clients[0].space(100));
            life.later(50_000, timed(10), chunks);
            life.finish(1);
        }),
        scenario("cancelled before it left", |life| {
            let call = life.later(30, request_for(LATER, 16), Chunks::default());
            life.bench.clients[0].engine.cancel(call);
            life.finish(1);
        }),
        scenario("its connection ends", |life| {
            life.later(NEVER, request_for(LATER, 16), Chunks::default());
            life.run_until(|life| life.server_lines.contains(&"left for later".to_owned()));
            let connection = life.bench.connections[0];
            life.bench.clients[0].engine.disconnect(connection);
            life.finish(1);
        }),
        scenario_in(FaultPlan::default(), RECONNECT, "interrupted, and sent again", |life| {
            life.later(NEVER, request_for(LATER, 16), Chunks::default());
            life.run_until(|life| life.server_lines.contains(&"left for later".to_owned()));
            killed(life);
            life.run_until(|life| life.server_lines.last().is_some_and(|line| line == "left for later"));
            life.bench.server.engine.services_mut().0.release();
            life.finish(1);
        }),
        scenario_in(FaultPlan::default(), RECONNECT, "interrupted, and given up meanwhile", |life| {
            let call = life.later(NEVER, request_for(LATER, 16), Chunks::default());
            life.run_until(|life| life.server_lines.contains(&"left for later".to_owned()));
            killed(life);
            life.run_until(|life| life.client_lines.iter().any(|line| line.contains("interrupted")));
            life.bench.clients[0].engine.cancel(call);
            life.finish(1);
        }),
    ]
}

#[test]
fn the_life_of_a_call_is_the_one_in_the_picture() {
    let expected = include_str!("life.txt");
    // Whether messages are handled where they arrived makes no difference to anybody.
    for odds in [Odds::NEVER, Odds::ALWAYS, Odds::one_in(2)] {
        IN_PLACE.set(odds);
        let found = [forms(), waits(), endings()].concat().concat();
        assert!(found == expected, "{odds:?} in place: life.txt should be:\n{found}");
    }
}
