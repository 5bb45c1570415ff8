//! `Server` and `Client`: what they promise, over each fabric that needs no device.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::net::TcpListener;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use stag::fabric::{DisconnectReason, FabricError};
use stag::memory::SendHome;
use stag::prelude::*;
use stag::rpc::{
    AuthNone, Backoff, BlockingClient, CallSealer, CallSource, CallToSeal, CloseReason, SealedHeader,
    Secured, StreamCall, StreamLimits,
};
use stag::wire::rpc::OpaqueAuth;
use stag::wire::xdr::Encode;

const PROGRAM: u32 = 0x2000_7a70;

/// A name for shared memory that no other process has.
fn shm(name: &str) -> String {
    format!("shm://{name}-{}", std::process::id())
}

const ECHO: u32 = 1;
const PUT: u32 = 2;
const GET: u32 = 3;
const PANIC: u32 = 4;
const LATE: u32 = 5;
const WHERE: u32 = 6;
const NEVER: u32 = 7;

static PROCEDURES: [Procedure; 7] = [
    Procedure::plain("ECHO"),
    Procedure { eligible_arguments: 1, ..Procedure::plain("PUT") },
    Procedure { eligible_results: 1, ..Procedure::plain("GET") },
    Procedure::plain("PANIC"),
    Procedure { eligible_results: 1, ..Procedure::plain("LATE") },
    Procedure::plain("WHERE"),
    Procedure::plain("NEVER"),
];

/// Data of objects, in pieces.
type Objects = RefCell<HashMap<Vec<u8>, Vec<Shared>>>;

/// Keeps objects as they came.
struct Keeper {
    seat: Seat,
    objects: std::rc::Rc<Objects>,
    /// Calls that are never answered.
    kept: Vec<Deferred>,
}

fn keeper(seat: &Seat) -> (Keeper,) {
    (Keeper { seat: seat.clone(), objects: seat.shared(Objects::default), kept: Vec::new() },)
}

impl Service for Keeper {
    fn program(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        (1, 1)
    }

    fn procedure(&self, _: u32, procedure: u32) -> Option<&'static Procedure> {
        PROCEDURES.get(procedure.checked_sub(1)? as usize)
    }

    fn home(&self, call: &Call<'_>) -> Home {
        match (call.procedure, call.arguments().u32()) {
            (WHERE, Ok(index)) => ReactorId::new(index as usize).map_or(Home::Here, Home::At),
            _ => Home::Here,
        }
    }

    fn give_back(&mut self) {
        self.objects.borrow_mut().clear();
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        let mut arguments = call.arguments();
        match call.procedure {
            ECHO => {
                let text = arguments.opaque(1 << 20).expect("the test sends it");
                reply.success(|writer| writer.opaque(text));
            }
            PUT => {
                let name = arguments.opaque(64).expect("the test sends it").to_vec();
                let pieces = match arguments.eligible_opaque(8 << 20).expect("the test sends it") {
                    Item::Reduced { index, .. } => {
                        call.placed(index).pieces.drain(..).map(Buf::share).collect()
                    }
                    Item::Inline(octets) => {
                        let mut buf = self.seat.payload().take_len(octets.len()).expect("memory");
                        buf.set_len(octets.len());
                        buf.copy_from_slice(octets);
                        vec![buf.share()]
                    }
                };
                self.objects.borrow_mut().insert(name, pieces);
                reply.success(|_| Ok(()));
            }
            GET => {
                let name = arguments.opaque(64).expect("the test sends it");
                let pieces = self.objects.borrow().get(name).cloned().unwrap_or_default();
                let len = pieces.iter().map(Shared::len).sum::<usize>() as u32;
                match reply.item(len) {
                    Placement::Reduced => {
                        pieces.into_iter().for_each(|piece| reply.piece(piece));
                        reply.success(|writer| writer.eligible_opaque_reduced(len).map(drop));
                    }
                    Placement::Inline => {
                        let octets: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
                        reply.success(|writer| writer.eligible_opaque_inline(&octets));
                    }
                }
            }
            PANIC => panic!("a handler that panics, as the test wants"),
            LATE => {
                let len = arguments.u32().expect("the test sends it");
                let Some(mut data) = reply.data_room(len) else {
                    reply.system_error();
                    return Outcome::Done;
                };
                let deferred = reply.defer(call).expect("there is room");
                let token = deferred.token();
                thread::spawn(move || {
                    data.fill(9);
                    deferred.finish(move |reply| {
                        let data = data.into_buf().expect("it is of this thread").share();
                        match reply.item(len) {
                            Placement::Reduced => {
                                reply.piece(data);
                                reply.success(|writer| writer.eligible_opaque_reduced(len).map(drop));
                            }
                            Placement::Inline => {
                                reply.success(|writer| writer.eligible_opaque_inline(&data));
                            }
                        }
                    });
                });
                return Outcome::Later(token);
            }
            WHERE => {
                let own = self.seat.reactor().index() as u32;
                reply.success(|writer| writer.u32(own));
            }
            _ => {
                let deferred = reply.defer(call).expect("there is room");
                let token = deferred.token();
                self.kept.push(deferred);
                return Outcome::Later(token);
            }
        }
        Outcome::Done
    }
}

fn echo(client: &Client, text: &[u8]) -> Vec<u8> {
    let answer = client.call(PROGRAM, 1, ECHO, |writer| writer.opaque(text)).expect("an answer");
    answer.reader().opaque(1 << 20).expect("text").to_vec()
}

/// Stores an object.
fn put(client: &Client, name: &[u8], data: &[u8]) {
    let request = client.request(PROGRAM, 1, PUT).data(data);
    request.call(|writer| writer.opaque(name)).expect("it is stored");
}

fn get(client: &Client, name: &[u8]) -> Vec<u8> {
    let request = client.request(PROGRAM, 1, GET).room(2 << 20);
    let answer = request.call(|writer| writer.opaque(name)).expect("an answer");
    answer.item(&mut answer.reader(), 8 << 20).expect("data").to_vec()
}

/// Octets, as XDR.
struct Opaque(&'static [u8]);

impl Encode for Opaque {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.opaque(self.0)
    }
}

/// Seals nothing.
#[derive(Debug)]
struct NoSeal;

impl CallSealer for NoSeal {
    fn protects_body(&self) -> bool {
        false
    }

    fn reply_growth_max(&self) -> u32 {
        0
    }

    fn seal(&self, _: CallToSeal, _: &mut Vec<u8>) -> SealedHeader {
        unreachable!("a Call over TCP is refused before")
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

#[test]
fn a_server_of_one_function_answers() {
    fn answer(call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        match call.arguments().u32() {
            Ok(number) => reply.success(|writer| writer.u32(number + 1)),
            Err(_) => reply.garbage_arguments(),
        }
        Outcome::Done
    }
    static NEXT: [Procedure; 1] = [Procedure::plain("NEXT")];
    let server = Server::new(|_| (Program::new(PROGRAM, 3, &NEXT, answer),));
    let running = server.listen(&shm("one-function")).start().expect("it runs");
    let client = Client::connect(&running.urls()[0]).expect("it is there");
    let answer = client.call(PROGRAM, 3, 1, |writer| writer.u32(41)).expect("an answer");
    assert_eq!(answer.reader().u32(), Ok(42));
    let call = |version, procedure| client.call(PROGRAM, version, procedure, |_| Ok(()));
    assert!(matches!(call(3, 1), Err(ClientError::Call(CallError::GarbageArguments))));
    assert!(matches!(call(3, 2), Err(ClientError::Call(CallError::ProcedureUnavailable))));
    assert!(matches!(call(2, 1), Err(ClientError::Call(CallError::ProgramMismatch { low: 3, high: 3 }))));
    drop(client);
    let end = running.stop().expect("no panic");
    assert!(end.drained);
    assert_eq!(end.buffers_lost, 0);
}

/// Data of all sizes goes both ways, over several fabrics of one server, which serve the same objects.
#[test]
fn fabrics_of_one_server_share_what_the_seat_shares() {
    let server = Server::new(keeper).listen(&shm("several")).listen("iwarp://127.0.0.1:0");
    let running = server.listen("tcp://127.0.0.1:0").data_max(2 << 20).start().expect("it runs");
    let [over_shm, over_iwarp, over_tcp] = running.urls() else { panic!("{:?}", running.urls()) };
    let clients = [over_shm, over_iwarp, over_tcp].map(|url| Client::connect(url).expect("it is there"));
    for (at, len) in [0, 1, 512, 513, 4096, 100_000, (1 << 20) + 1].into_iter().enumerate() {
        let (data, name) = (pattern(len), [at as u8]);
        put(&clients[at % 3], &name, &data);
        for client in &clients {
            assert!(get(client, &name) == data, "{len} octets");
        }
    }
    let address = over_tcp.strip_prefix("tcp://").expect("a URL").parse().expect("an address");
    drop(clients);
    let limits = StreamLimits { calls_max: 1, call_len_max: 4096, reply_len_max: 4096 };
    let patience = stag_testing::patience(Duration::from_secs(60));
    let client = BlockingClient::connect(address, CallSource::Any, limits, (patience, patience));
    let arguments = Opaque(b"tcp!");
    let credential = OpaqueAuth::NONE;
    let call =
        StreamCall { program: PROGRAM, version: 1, procedure: ECHO, credential, arguments: &arguments };
    let mut client = client.expect("it is there");
    assert_eq!(client.call(&call).expect("an answer"), b"\0\0\0\x04tcp!");
    drop(client);
    let end = running.stop().expect("no panic");
    assert!(end.drained);
    assert_eq!(end.buffers_lost, 0);
}

#[test]
fn a_client_goes_to_other_threads_and_its_buffers_are_sent_without_a_copy() {
    let running = Server::new(keeper).listen(&shm("threads")).start().expect("it runs");
    let client = Client::connect(&running.urls()[0]).expect("it is there");
    thread::scope(|scope| {
        for number in 0..4_u8 {
            let client = client.clone();
            scope.spawn(move || {
                let mut buf = client.buffer(70_000).expect("memory");
                buf.fill(number);
                let request = client.request(PROGRAM, 1, PUT).data(buf);
                request.call(|writer| writer.opaque(&[number])).expect("it is stored");
                for _ in 0..20 {
                    assert_eq!(echo(&client, &[number; 100]), [number; 100]);
                }
                // Data that is kept by its reader stays what it is.
                let request = client.request(PROGRAM, 1, GET).room(70_000);
                let answer = request.call(|writer| writer.opaque(&[number])).expect("an answer");
                let data = answer.into_data().expect("it came by chunk");
                drop(client);
                assert!(data.len() == 70_000 && data.iter().all(|octet| *octet == number));
            });
        }
    });
    assert!(echo(&client, &pattern(60_000)) == pattern(60_000), "a Long Call, and a Long Reply");
    drop(client);
    assert_eq!(running.stop().expect("no panic").buffers_lost, 0);
}

#[test]
fn a_panic_costs_one_call() {
    let running = Server::new(keeper).listen(&shm("panic")).start().expect("it runs");
    let client = Client::connect(&running.urls()[0]).expect("it is there");
    // The first answer says how many Calls may be outstanding.
    assert_eq!(echo(&client, b"here"), b"here");
    let kept = client.request(PROGRAM, 1, NEVER).begin(|_| Ok(())).expect("it is sent");
    let panicked = client.call(PROGRAM, 1, PANIC, |_| Ok(()));
    assert!(matches!(panicked, Err(ClientError::Call(CallError::SystemError))), "{panicked:?}");
    assert_eq!(echo(&client, b"still here"), b"still here");
    assert!(!kept.is_ready(), "other Calls go on");
}

#[test]
fn a_panic_that_is_not_caught_ends_the_server() {
    let running =
        Server::new(keeper).listen(&shm("not-caught")).catch_panics(false).start().expect("it runs");
    let client = Client::builder().reconnect(None).connect(&running.urls()[0]).expect("it is there");
    let ended = client.call(PROGRAM, 1, PANIC, |_| Ok(()));
    assert!(matches!(ended, Err(ClientError::Call(CallError::ConnectionLost))), "{ended:?}");
    let end = running.wait().expect_err("its thread has panicked");
    assert!(matches!(&end, ServerError::Panic(text) if text.contains("as the test wants")), "{end:?}");
}

/// An answer from another thread has its data in memory that the server sends as it is.
#[test]
fn a_thread_answers_with_data() {
    for url in [shm("late-data"), "iwarp://127.0.0.1:0".to_owned()] {
        let running = Server::new(keeper).listen(&url).start().expect("it runs");
        let client = Client::connect(&running.urls()[0]).expect("it is there");
        let late: Vec<_> = [1, 4096, 1 << 20]
            .map(|len| {
                let request = client.request(PROGRAM, 1, LATE).room(len as usize);
                (len, request.begin(|writer| writer.u32(len)).expect("it is sent"))
            })
            .into_iter()
            .collect();
        for (len, pending) in late {
            let answer = pending.wait().expect("an answer");
            let data = answer.item(&mut answer.reader(), len).expect("data");
            assert!(data.len() == len as usize && data.iter().all(|octet| *octet == 9), "{len} octets");
        }
        // More than there is.
        let too_much = client.call(PROGRAM, 1, LATE, |writer| writer.u32(1 << 30));
        assert!(matches!(too_much, Err(ClientError::Call(CallError::SystemError))), "{too_much:?}");
        drop(client);
        assert_eq!(running.stop().expect("no panic").buffers_lost, 0);
    }
}

#[test]
fn calls_find_their_homes_among_threads() {
    let server = Server::new(keeper).listen(&shm("homes")).threads(2).memory(64 << 20);
    let running = server.start().expect("it runs");
    let client = Client::connect(&running.urls()[0]).expect("it is there");
    for home in [0, 1, 1, 0] {
        let answer = client.call(PROGRAM, 1, WHERE, |writer| writer.u32(home)).expect("an answer");
        assert_eq!(answer.reader().u32(), Ok(home));
    }
    drop(client);
    let end = running.stop().expect("no panic");
    assert!(end.drained);
    assert_eq!(end.buffers_lost, 0);
}

/// Calls of all cores and fabrics are counted, and read by another thread while they run and after their end.
#[test]
fn another_thread_reads_what_the_cores_count() {
    let observed = |seat: &Seat| Observed::new(keeper(seat));
    let server = Server::new(observed).listen(&shm("counted")).listen("iwarp://127.0.0.1:0");
    let running = server.threads(2).memory(128 << 20).start().expect("it runs");
    let before = running.statistics().expect("the cores answer");
    assert_eq!((before.engines.calls_received, before.procedures.len(), before.cores.len()), (0, 0, 2));

    let clients = [0, 1].map(|at: usize| Client::connect(&running.urls()[at]).expect("it is there"));
    for client in &clients {
        for home in [0, 1, 1] {
            client.call(PROGRAM, 1, WHERE, |writer| writer.u32(home)).expect("an answer");
        }
        assert_eq!(echo(client, b"text"), b"text");
    }
    let handle = running.statistics_handle();
    let found = thread::spawn(move || handle.read()).join().expect("no panic").expect("the cores answer");
    let procedures: Vec<_> =
        found.procedures.iter().map(|it| (it.program, it.version, it.name, it.calls)).collect();
    assert_eq!(procedures, [(PROGRAM, 1, "WHERE", 6), (PROGRAM, 1, "ECHO", 2)]);
    assert_eq!(found.engines.calls_received, 8);
    let connections: usize = found.cores.iter().map(|core| core.connections).sum();
    assert_eq!(connections, 2);
    assert!(found.cores.iter().all(|core| core.core.is_none() && core.time.passes > 0));

    drop(clients);
    let handle = running.statistics_handle();
    assert!(running.stop().expect("no panic").drained);
    let end = handle.read().expect("what it counted stays");
    assert_eq!((end.engines.replies_sent, end.procedures), (8, found.procedures));
}

/// Services that are not observed count no procedures; those that are may have flavors, before or behind.
#[test]
fn what_is_counted_depends_on_the_services() {
    fn found<S: stag::ServiceSet + 'static>(make: fn(&Seat) -> S, name: &str) -> Option<u64> {
        let running = Server::new(make).listen(&shm(name)).start().expect("it runs");
        let client = Client::connect(&running.urls()[0]).expect("it is there");
        assert_eq!(echo(&client, b"text"), b"text");
        let counted = running.statistics().expect("the core answers");
        assert_eq!(counted.engines.replies_sent, 1);
        counted.procedures.first().map(|echo| echo.calls)
    }
    assert_eq!(found(keeper, "not-observed"), None);
    assert_eq!(found(|seat| Secured::new(Observed::new(keeper(seat)), (AuthNone,)), "secured"), Some(1));
    assert_eq!(found(|seat| Observed::new(Secured::new(keeper(seat), (AuthNone,))), "observed"), Some(1));
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => return done,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn a_call_is_a_future_without_a_runtime() {
    let running = Server::new(keeper).listen(&shm("future")).start().expect("it runs");
    let client = Client::connect(&running.urls()[0]).expect("it is there");
    let sum = block_on(async {
        let mut sum = 0;
        for number in 0..10 {
            let request = client.request(PROGRAM, 1, ECHO);
            let pending = request.begin(|writer| writer.opaque(&[number])).expect("it is sent");
            sum += usize::from(pending.await.expect("an answer").reader().opaque(1).expect("an octet")[0]);
        }
        sum
    });
    assert_eq!(sum, 45);
}

/// More Calls than the server grants credits wait for their turn; each gets its own answer.
#[test]
fn calls_wait_for_their_turn() {
    let running = Server::new(keeper).listen(&shm("turns")).start().expect("it runs");
    let client = Client::connect(&running.urls()[0]).expect("it is there");
    let pending: Vec<_> = (0..500_u32)
        .map(|number| {
            let request = client.request(PROGRAM, 1, ECHO);
            request.begin(|writer| writer.opaque(&number.to_be_bytes())).expect("it is sent")
        })
        .collect();
    for (number, pending) in (0_u32..).zip(pending) {
        let answer = pending.wait().expect("an answer");
        assert_eq!(answer.reader().opaque(4), Ok(&number.to_be_bytes()[..]));
    }
}

#[test]
fn what_cannot_be_is_an_error_at_once() {
    let refused = |result: Result<Client, ClientError>| result.expect_err("there is no server");
    assert!(matches!(refused(Client::connect("http://host")), ClientError::Url(_)));
    let error = refused(Client::connect("tcp://127.0.0.1:1"));
    let none = CloseReason::Fabric(DisconnectReason::NoListener);
    assert!(matches!(&error, ClientError::NotConnected(reason) if *reason == none), "{error:?}");
    assert!(matches!(refused(Client::connect("tcp://nosuchhost.invalid:1")), ClientError::System { .. }));
    let error = refused(Client::connect(&shm("nobody")));
    assert!(matches!(error, ClientError::NotConnected(_) | ClientError::Fabric(_)), "{error:?}");
    assert!(matches!(refused(Client::connect("iwarp://nosuchhost.invalid:1")), ClientError::Fabric(_)));

    let fails = |result: Result<RunningServer, ServerError>| result.expect_err("it cannot run");
    assert!(matches!(fails(Server::new(keeper).start()), ServerError::NoUrl));
    assert!(matches!(fails(Server::new(keeper).listen("echo").start()), ServerError::Url(_)));
    let small = Server::new(keeper).listen(&shm("small")).memory(1 << 20).start();
    assert!(matches!(fails(small), ServerError::TooLittleMemory { .. }));
    let none = Server::new(keeper).listen(&shm("none")).threads(0).start();
    assert!(matches!(fails(none), ServerError::Cores(_)));
    let wrong = Server::new(keeper).listen(&shm("wrong")).tune(|config| config.credits_max = 0).start();
    assert!(matches!(fails(wrong), ServerError::Engine(_)));
    let first = Server::new(keeper).listen("iwarp://127.0.0.1:0").start().expect("it runs");
    let second = fails(Server::new(keeper).listen(&first.urls()[0]).start());
    assert!(matches!(second, ServerError::Fabric(FabricError::System { .. })), "{second:?}");
}

#[test]
fn a_call_that_cannot_be_made_says_why() {
    let running = Server::new(keeper).listen(&shm("refused")).start().expect("it runs");
    let client = Client::builder().memory(1 << 20).connect(&running.urls()[0]).expect("it is there");
    let long = client.call(PROGRAM, 1, ECHO, |writer| writer.opaque(&[0; 2 << 20]));
    assert!(matches!(long, Err(ClientError::ArgumentsTooLong(_))), "{long:?}");
    let items = client.call(PROGRAM, 1, ECHO, |writer| writer.eligible_opaque_reduced(4).map(drop));
    assert!(matches!(items, Err(ClientError::Items(1))), "{items:?}");
    let memory = client.request(PROGRAM, 1, GET).room(2 << 20).call(|writer| writer.opaque(b"x"));
    assert!(matches!(memory, Err(ClientError::NoMemory(_))), "{memory:?}");
    assert!(matches!(client.buffer(2 << 20), Err(ClientError::NoMemory(_))));
    // The first answer says how many Calls may be outstanding.
    assert_eq!(echo(&client, b"well"), b"well");
    let late = client.request(PROGRAM, 1, NEVER).timeout(Duration::from_millis(20)).call(|_| Ok(()));
    assert!(matches!(late, Err(ClientError::Call(CallError::TimedOut))), "{late:?}");
    assert_eq!(echo(&client, b"well"), b"well");
}

/// A Call whose Reply cannot be sent, whatever is done, ends with an error and not in a loop of connections.
#[test]
fn a_call_that_ends_every_connection_is_given_up() {
    static GETS: [Procedure; 1] = [Procedure { eligible_results: 1, ..Procedure::plain("GET") }];
    let server = Server::new(|_: &Seat| {
        // Memory that no fabric knows.
        let memory = Memory::on_demand(&EngineConfig::default(), 1 << 20).expect("a megabyte");
        let get = move |_: &mut Call<'_>, reply: &mut Reply<'_>| {
            let mut data = memory.pools.payload.take_len(8192).expect("it is free");
            data.set_len(8192);
            let _ = reply.item(8192);
            reply.piece(data.share());
            reply.success(|writer| writer.eligible_opaque_reduced(8192).map(drop));
            Outcome::Done
        };
        (Program::new(PROGRAM, 1, &GETS, get),)
    });
    let running = server.listen(&shm("given-up")).start().expect("it runs");
    let backoff =
        Backoff { first: Duration::from_millis(1), max: Duration::from_millis(2), ..Backoff::default() };
    let client = Client::builder().reconnect(Some(backoff)).connect(&running.urls()[0]).expect("it is there");
    let ended = client.request(PROGRAM, 1, 1).room(8192).call(|_| Ok(()));
    assert!(matches!(ended, Err(ClientError::EndedEachTime { times: 8.., .. })), "{ended:?}");
}

/// Over TCP, too, a Call says why it has no answer, and others go on.
#[test]
fn a_call_over_tcp_says_why_it_fails() {
    let running = Server::new(keeper).listen("tcp://127.0.0.1:0").start().expect("it runs");
    let client = Client::builder().memory(1 << 20).connect(&running.urls()[0]).expect("it is there");
    put(&client, b"object", &pattern(5000));
    let long = client.request(PROGRAM, 1, GET).results_max(100).call(|writer| writer.opaque(b"object"));
    let Err(ClientError::Call(CallError::ReplyTooLong { len, limit: 100 })) = long else {
        panic!("{long:?}");
    };
    assert_eq!(len, 5004);
    let data = vec![0; 4 << 20];
    let much = client.request(PROGRAM, 1, PUT).data(data).call(|writer| writer.opaque(b"much"));
    assert!(matches!(much, Err(ClientError::ArgumentsTooLong(_))), "{much:?}");
    let other = client.call(PROGRAM, 9, ECHO, |_| Ok(()));
    assert!(
        matches!(other, Err(ClientError::Call(CallError::ProgramMismatch { low: 1, high: 1 }))),
        "{other:?}"
    );
    let late = client.request(PROGRAM, 1, NEVER).timeout(Duration::from_millis(20)).call(|_| Ok(()));
    assert!(matches!(late, Err(ClientError::Call(CallError::TimedOut))), "{late:?}");
    let sealed = client.request(PROGRAM, 1, ECHO).sealed_by(Arc::new(NoSeal)).call(|_| Ok(()));
    assert!(matches!(sealed, Err(ClientError::SealedOverTcp)), "{sealed:?}");
    // More than are sent at once.
    let begin =
        |number: u32| client.request(PROGRAM, 1, ECHO).begin(move |writer| writer.opaque(&[number as u8]));
    let pending: Vec<_> = (0..200).map(|number| begin(number).expect("it waits")).collect();
    for (number, pending) in pending.into_iter().enumerate() {
        let answer = pending.wait().expect("an answer");
        assert_eq!(answer.reader().opaque(1), Ok(&[number as u8][..]));
    }
    drop(client);
    assert_eq!(running.stop().expect("no panic").buffers_lost, 0);
}

/// The server goes away and comes back: the Calls of today are answered by the server of tomorrow.
#[test]
fn a_client_outlives_its_server() {
    outlives(&shm("outlives"));
}

#[test]
fn a_client_over_tcp_outlives_its_server() {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    outlives(&format!("tcp://{}", port.expect("a free port")));
}

fn outlives(url: &str) {
    let running = Server::new(keeper).listen(url).start().expect("it runs");
    let client = Client::connect(url).expect("it is there");
    assert_eq!(echo(&client, b"one"), b"one");
    running.stop().expect("no panic");
    let (sender, receiver) = mpsc::channel();
    let asks = {
        let client = client.clone();
        thread::spawn(move || sender.send(echo(&client, b"two")))
    };
    let running = Server::new(keeper).listen(url).start().expect("it runs again");
    assert_eq!(receiver.recv().expect("an answer"), b"two");
    asks.join().expect("no panic").expect("it is heard");
    drop(client);
    assert_eq!(running.stop().expect("no panic").buffers_lost, 0);
}

#[test]
fn what_is_under_way_ends_with_the_last_clone() {
    let running = Server::new(keeper).listen(&shm("ends")).start().expect("it runs");
    let client = Client::connect(&running.urls()[0]).expect("it is there");
    let never = client.request(PROGRAM, 1, NEVER).begin(|_| Ok(())).expect("it is sent");
    drop(client);
    assert!(never.wait().is_err());
}

#[test]
fn handles_go_to_other_threads() {
    fn sends<T: Send>() {}
    fn shares<T: Send + Sync + Clone>() {}
    shares::<Client>();
    sends::<Pending<Answer>>();
    sends::<RunningServer>();
    sends::<SendBuf>();
    let _ = SendHome::new();
}
