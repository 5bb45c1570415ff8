//! From an echo to an object store: each step is a small difference from the one before, and each is compiled and run.
//!
//! A program that uses Stag depends on it by `cargo add --path STAG/engine/stag stag`, where STAG is this source tree. The features
//! `shm` and `iwarp` are on; `--features verbs,tcp,nfs` adds others.
//!
//! | step | what is new |
//! |---|---|
//! | [`a_echo`] | a server, a client, one Call |
//! | [`b_chunks`] | data that is not copied |
//! | [`c_late`] | answers that a disk thread has |
//! | [`d_cores`] | several cores as one server |
//! | [`e_own_store`] | a service with state, over several fabrics |
//! | [`f_callers`] | who calls, and who may |
//! | [`g_calls_back`] | a server that calls its clients, on the polled engine |
//! | [`h_own_files`] | a file system of your own, which Linux mounts |
//! | [`i_own_authentication`] | callers that prove who they are |
//! | [`j_counters`] | what the server counts, read by another thread |
//!
//! Then what you have to decide: [`fabrics`], [`threads`], [`memory`], [`security`], [`configuration`]. A whole program is
//! `examples/objects.rs`: an object store on two cores with a disk thread and counters, in 300 lines.

mod decisions;

pub use decisions::{configuration, fabrics, memory, security, threads};

/// A server of one function, a client, and one Call.
///
/// A **program** has a number, a version, and procedures that are numbered from 1. Arguments and results are XDR (RFC 4506):
/// [`Reader`](crate::wire::xdr::Reader) takes them apart, [`Writer`](crate::wire::xdr::Writer) puts them together. Numbers from
/// 0x2000_0000 to 0x3fff_ffff are for programs of one's own (RFC 5531 section 13).
///
/// ```
/// use stag::prelude::*;
///
/// const PROGRAM: u32 = 0x2000_7a62;
///
/// // What the engine has to know of each procedure. This one has nothing special.
/// static PROCEDURES: [Procedure; 1] = [Procedure::plain("ECHO")];
///
/// // Runs on the server's core, and must not block: other Calls wait meanwhile.
/// fn echo(call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
///     match call.arguments().opaque(1024) {
///         Ok(text) => reply.success(|writer| writer.opaque(text)),
///         Err(_) => reply.garbage_arguments(),
///     }
///     Outcome::Done
/// }
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let server = Server::new(|_| (Program::new(PROGRAM, 1, &PROCEDURES, echo),));
///     // `run` instead of `start` serves until SIGTERM.
///     let running = server.listen("iwarp://127.0.0.1:0").start()?;
///
///     let client = Client::connect(&running.urls()[0])?;
///     let answer = client.call(PROGRAM, 1, 1, |writer| writer.opaque(b"hello"))?;
///     assert_eq!(answer.reader().opaque(1024)?, b"hello");
///
///     // Many at once: each is a future, too.
///     let request = |text| client.request(PROGRAM, 1, 1).begin(move |writer| writer.opaque(text));
///     let (first, second) = (request(b"first")?, request(b"second")?);
///     assert_eq!(second.wait()?.reader().opaque(1024)?, b"second");
///     assert_eq!(first.wait()?.reader().opaque(1024)?, b"first");
///     Ok(())
/// }
/// ```
pub mod a_echo {}

/// Data that is not copied: it goes by chunk, from memory to memory.
///
/// The difference: the procedure says that one of its results is **eligible** to go by chunk. Then the client offers memory for it
/// ([`CallBuilder::room`](crate::CallBuilder::room)), and the server's data is written there by RDMA from where it lies. Without an
/// offer the same data goes in the Reply. An eligible argument goes the other way: the client gives data
/// ([`CallBuilder::data`](crate::CallBuilder::data)), the server's engine fetches it before the handler runs, and
/// [`Call::placed`](crate::rpc::Call::placed) has the memory that it is in.
///
/// ```
/// use stag::prelude::*;
///
/// const PROGRAM: u32 = 0x2000_7a63;
/// const LEN: u32 = 1 << 20;
///
/// static PROCEDURES: [Procedure; 1] = [Procedure { eligible_results: 1, ..Procedure::plain("GET") }];
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let server = Server::new(|seat: &Seat| {
///         // Made once, in memory that the fabrics know.
///         let mut object = seat.payload().take_len(LEN as usize).expect("64 MiB are enough");
///         object.fill(7);
///         let object = object.share();
///         let get = move |_: &mut Call<'_>, reply: &mut Reply<'_>| {
///             match reply.item(LEN) {
///                 Placement::Reduced => {
///                     // A counted reference, not a copy.
///                     reply.piece(object.clone());
///                     reply.success(|writer| writer.eligible_opaque_reduced(LEN).map(drop));
///                 }
///                 Placement::Inline => reply.success(|writer| writer.eligible_opaque_inline(&object)),
///             }
///             Outcome::Done
///         };
///         (Program::new(PROGRAM, 1, &PROCEDURES, get),)
///     });
///     let running = server.listen("iwarp://127.0.0.1:0").start()?;
///
///     let client = Client::connect(&running.urls()[0])?;
///     let answer = client.request(PROGRAM, 1, 1).room(LEN as usize).call(|_| Ok(()))?;
///     assert!(answer.data().iter().all(|octet| *octet == 7) && answer.data().len() == LEN as usize);
///     Ok(())
/// }
/// ```
pub mod b_chunks {}

/// Answers that another thread has: the core goes on with other Calls meanwhile.
///
/// The difference: the handler takes memory for the data ([`Reply::data_room`](crate::rpc::Reply::data_room)), defers the answer
/// ([`Reply::defer`](crate::rpc::Reply::defer)), and gives both to a thread. The thread fills the memory, and finishes. What it fills is
/// what is sent.
///
/// ```
/// use std::sync::mpsc;
/// use std::thread;
///
/// use stag::prelude::*;
///
/// const PROGRAM: u32 = 0x2000_7a64;
///
/// static PROCEDURES: [Procedure; 1] = [Procedure { eligible_results: 1, ..Procedure::plain("READ") }];
///
/// type Job = (SendBuf, Deferred);
///
/// // Reads what is slow to read, and answers.
/// fn disk(jobs: mpsc::Receiver<Job>) {
///     for (mut data, deferred) in jobs {
///         data.fill(9);
///         let len = data.len() as u32;
///         // Runs on the server's core, where the buffer is at home again.
///         deferred.finish(move |reply| match (reply.item(len), data.into_buf()) {
///             (Placement::Reduced, Ok(data)) => {
///                 reply.piece(data.share());
///                 reply.success(|writer| writer.eligible_opaque_reduced(len).map(drop));
///             }
///             (Placement::Inline, Ok(data)) => reply.success(|writer| writer.eligible_opaque_inline(&data)),
///             (_, Err(_)) => reply.system_error(),
///         });
///     }
/// }
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let (sender, jobs) = mpsc::channel::<Job>();
///     thread::spawn(move || disk(jobs));
///     let server = Server::new(move |_| {
///         let sender = sender.clone();
///         let read = move |call: &mut Call<'_>, reply: &mut Reply<'_>| {
///             let len = call.arguments().u32().unwrap_or(0).min(1 << 20);
///             // No room now, or too many answers are outstanding: the client hears so at once.
///             let (Some(room), Ok(deferred)) = (reply.data_room(len), reply.defer(call)) else {
///                 reply.system_error();
///                 return Outcome::Done;
///             };
///             let token = deferred.token();
///             // A thread that is gone drops it, and then the client gets SYSTEM_ERR.
///             let _ = sender.send((room, deferred));
///             Outcome::Later(token)
///         };
///         (Program::new(PROGRAM, 1, &PROCEDURES, read),)
///     });
///     let running = server.listen("iwarp://127.0.0.1:0").start()?;
///
///     let client = Client::connect(&running.urls()[0])?;
///     let answer = client.request(PROGRAM, 1, 1).room(4096).call(|writer| writer.u32(4096))?;
///     assert_eq!(answer.data(), [9; 4096]);
///     Ok(())
/// }
/// ```
///
/// Files need no thread: a `stag::disk::Disk` (feature `nfs`) reads and writes them by io_uring while the core goes on, from and into the
/// memory that is sent. `examples/disk.rs` is a whole program. What a service keeps as [`Shared`](crate::memory::Shared) stays on its core;
/// the module [`memory`](crate::memory#threads-that-are-no-reactors) says how another thread can read it.
pub mod c_late {}

/// Several cores as one server.
///
/// The difference: [`Server::cores`](crate::Server::cores), and a service of one's own that says where a Call is **at home**. Clients
/// connect to one address; connections are spread over the cores; a Call goes to the core that owns what it is about, and its data
/// goes with it as a loan, without a copy and without a lock. A program whose Calls own nothing needs no homes.
///
/// ```
/// use stag::prelude::*;
///
/// const PROGRAM: u32 = 0x2000_7a65;
///
/// static ADD: Procedure = Procedure::plain("ADD").once();
///
/// /// Counters, each of which lives on one core.
/// struct Counters {
///     seat: Seat,
///     counters: std::collections::HashMap<u32, u32>,
/// }
///
/// impl Service for Counters {
///     fn program(&self) -> u32 {
///         PROGRAM
///     }
///
///     fn versions(&self) -> (u32, u32) {
///         (1, 1)
///     }
///
///     fn procedure(&self, _: u32, procedure: u32) -> Option<&'static Procedure> {
///         (procedure == 1).then_some(&ADD)
///     }
///
///     fn home(&self, call: &Call<'_>) -> Home {
///         let name = call.arguments().u32().unwrap_or(0) as usize;
///         ReactorId::new(name % self.seat.count()).map_or(Home::Here, Home::At)
///     }
///
///     fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
///         let name = call.arguments().u32().unwrap_or(0);
///         let counter = self.counters.entry(name).or_default();
///         *counter += 1;
///         reply.success(|writer| writer.u32(*counter));
///         Outcome::Done
///     }
/// }
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let server = Server::new(|seat| (Counters { seat: seat.clone(), counters: Default::default() },));
///     // `threads(2)` where it does not matter which cores, as in this test.
///     let running = server.listen("iwarp://127.0.0.1:0").threads(2).memory(128 << 20).start()?;
///
///     let clients = [(); 2].map(|()| Client::connect(&running.urls()[0]).expect("it is there"));
///     for expected in 1..=4 {
///         for client in &clients[..1] {
///             let answer = client.call(PROGRAM, 1, 1, |writer| writer.u32(7))?;
///             assert_eq!(answer.reader().u32()?, expected);
///         }
///     }
///     let answer = clients[1].call(PROGRAM, 1, 1, |writer| writer.u32(7))?;
///     assert_eq!(answer.reader().u32()?, 5, "one counter, whatever connection");
///     Ok(())
/// }
/// ```
///
/// [`Procedure::once`](crate::rpc::Procedure::once) says that a second execution does harm. Then the server keeps the Reply, and a
/// client that lost its connection and sends the Call again gets that.
///
/// A list over all cores is a loop of the client, as in `examples/objects.rs`: the procedure takes the number of a core, is at home
/// there, and answers with how many cores there are. [`Home::Everywhere`](crate::rpc::Home::Everywhere) executes a Call on all cores, for
/// what each has to know, and answers with the Reply of the last one alone. The engine does not merge Replies: it would have to keep as
/// many as there are cores, of any length, for a merge that only the program understands.
///
/// What other cores lent must go back when the server stops: a service that keeps data of Calls drops it in
/// [`Service::give_back`](crate::rpc::Service::give_back).
pub mod d_cores {}

/// A service with state, over several fabrics at once.
///
/// The difference: more than one URL. A service is made for each core **and each fabric**, so what clients of one fabric shall see of
/// those of another comes from [`Seat::shared`](crate::Seat::shared). All of them send from the same memory.
///
/// ```
/// use std::cell::RefCell;
///
/// use stag::prelude::*;
///
/// const PROGRAM: u32 = 0x2000_7a66;
///
/// static PROCEDURES: [Procedure; 2] = [
///     Procedure { eligible_arguments: 1, ..Procedure::plain("PUT") }.once(),
///     Procedure { eligible_results: 1, ..Procedure::plain("GET") },
/// ];
///
/// /// The one object, in the pieces in which it came.
/// type Object = RefCell<Vec<Shared>>;
///
/// fn put(object: &Object, call: &mut Call<'_>, reply: &mut Reply<'_>) {
///     match call.arguments().eligible_opaque(1 << 20) {
///         Ok(Item::Reduced { index, .. }) => {
///             let pieces = call.placed(index).pieces.drain(..);
///             *object.borrow_mut() = pieces.map(Buf::share).collect();
///             // It stays: it does not count against what this client has on its way.
///             object.borrow().iter().for_each(Shared::mark_stored);
///             reply.success(|_| Ok(()));
///         }
///         _ => reply.garbage_arguments(),
///     }
/// }
///
/// fn get(object: &Object, reply: &mut Reply<'_>) {
///     let pieces = object.borrow();
///     let len = pieces.iter().map(|piece| piece.len()).sum::<usize>() as u32;
///     match reply.item(len) {
///         Placement::Reduced => {
///             pieces.iter().for_each(|piece| reply.piece(piece.clone()));
///             reply.success(|writer| writer.eligible_opaque_reduced(len).map(drop));
///         }
///         Placement::Inline => {
///             reply.success(|writer| writer.opaque_pieces(len, pieces.iter().map(|piece| &piece[..])));
///         }
///     }
/// }
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let server = Server::new(|seat: &Seat| {
///         let object = seat.shared(Object::default);
///         let handle = move |call: &mut Call<'_>, reply: &mut Reply<'_>| {
///             match call.procedure {
///                 1 => put(&object, call, reply),
///                 _ => get(&object, reply),
///             }
///             Outcome::Done
///         };
///         (Program::new(PROGRAM, 1, &PROCEDURES, handle),)
///     });
///     let name = format!("shm://guide-{}", std::process::id());
///     let running = server.listen(&name).listen("iwarp://127.0.0.1:0").start()?;
///
///     let near = Client::connect(&running.urls()[0])?;
///     let far = Client::connect(&running.urls()[1])?;
///     // Written straight into memory that is sent: nothing is copied on the way.
///     let mut data = near.buffer(100_000)?;
///     data.fill(5);
///     near.request(PROGRAM, 1, 1).data(data).call(|_| Ok(()))?;
///     let answer = far.request(PROGRAM, 1, 2).room(1 << 20).call(|_| Ok(()))?;
///     assert!(answer.data().len() == 100_000 && answer.data().iter().all(|octet| *octet == 5));
///     Ok(())
/// }
/// ```
///
/// A store of **files** is mounted by any NFS client: step [`h_own_files`].
pub mod e_own_store {}

/// Who calls, and who may.
///
/// A Call may name a user of the client's machine (AUTH_SYS, [`Caller::Sys`](crate::rpc::Caller::Sys)). **That is the client's word,
/// and nothing proves it.** What is known without asking is the other end of the connection ([`Call::peer`](crate::rpc::Call::peer)): over
/// shared memory the kernel says which user and process it is, over a network its address.
///
/// ```
/// use stag::prelude::*;
/// use stag::wire::rpc::{AuthSys, Gids};
///
/// const PROGRAM: u32 = 0x2000_7a67;
///
/// static PROCEDURES: [Procedure; 1] = [Procedure::plain("WHO")];
///
/// fn who(call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
///     match call.caller {
///         Caller::Sys(user) => reply.success(|writer| writer.u32(user.uid)),
///         _ => {
///             reply.system_error();
///             // A connection that gets nothing but refusals makes room for others.
///             reply.refuses_caller();
///         }
///     }
///     Outcome::Done
/// }
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let server = Server::new(|_| (Program::new(PROGRAM, 1, &PROCEDURES, who),));
///     let running = server.listen("iwarp://127.0.0.1:0").start()?;
///
///     let client = Client::connect(&running.urls()[0])?;
///     let user = AuthSys { stamp: 0, machine_name: b"here", uid: 1000, gid: 100, gids: Gids::NONE };
///     let answer = client.request(PROGRAM, 1, 1).user(&user).call(|_| Ok(()))?;
///     assert_eq!(answer.reader().u32()?, 1000);
///     assert!(client.call(PROGRAM, 1, 1, |_| Ok(())).is_err());
///     Ok(())
/// }
/// ```
///
/// A Call with any other flavor is refused before a handler sees it. To take AUTH_SYS only, serve
/// `Secured::new((service,), (AuthUnix,))`. Callers that prove who they are need a flavor of your own: [`i_own_authentication`].
///
/// **What does not exist**: RPCSEC_GSS (Kerberos) and TLS.
pub mod f_callers {}

/// A service that calls its clients back, on the connections that they opened.
///
/// The service hands out the Calls it wants to make ([`Service::next_call_back`](crate::rpc::Service::next_call_back)), and is told how
/// each one ended ([`Service::called_back`](crate::rpc::Service::called_back)). The engine makes them: as reverse Calls over RDMA
/// (RFC 8167), in the same byte stream over TCP, and by way of another core if that one has the connection. Over RDMA both ends
/// say how many Calls may go the other way (`reverse_credits`).
///
/// The client has a service, too, for these Calls. Here both ends are in one thread; `examples/lease.rs` is a whole program, whose
/// user calls back instead of its service ([`Engine::call_back`](crate::rpc::Engine::call_back)).
///
/// ```
/// use std::time::Duration;
///
/// use stag::prelude::*;
/// use stag::rpc::{CallBack, CallBackError, ConnectionId};
///
/// /// Forward: `void subscribe()`. Reverse: `u32 notify(u32)`.
/// const NEWS: u32 = 0x2000_0057;
/// static ONLY: Procedure = Procedure::plain("ONLY");
///
/// #[derive(Default)]
/// struct News {
///     subscriber: Option<ConnectionId>,
///     told: Option<u32>,
/// }
///
/// impl Service for News {
///     fn program(&self) -> u32 {
///         NEWS
///     }
///     fn versions(&self) -> (u32, u32) {
///         (1, 1)
///     }
///     fn procedure(&self, _: u32, procedure: u32) -> Option<&'static Procedure> {
///         (procedure == 1).then_some(&ONLY)
///     }
///     fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
///         self.subscriber = Some(call.connection());
///         reply.success(|_| Ok(()));
///         Outcome::Done
///     }
///     fn next_call_back(&mut self) -> Option<CallBack> {
///         let connection = self.subscriber.take()?;
///         Some(CallBack {
///             id: 1,
///             connection,
///             program: NEWS,
///             version: 1,
///             procedure: 1,
///             user: None,
///             arguments: 41_u32.to_be_bytes().to_vec(),
///             results_len_max: 4,
///             timeout: Duration::from_secs(5),
///         })
///     }
///     fn called_back(&mut self, _id: u64, end: Result<&[u8], CallBackError>) {
///         let results = end.expect("the client answers");
///         self.told = results.first_chunk().map(|word| u32::from_be_bytes(*word));
///     }
/// }
///
/// fn answer(call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
///     match call.arguments().u32() {
///         Ok(number) => reply.success(|writer| writer.u32(number + 1)),
///         Err(_) => reply.garbage_arguments(),
///     }
///     Outcome::Done
/// }
///
/// fn engine<S: stag::rpc::Services>(services: S) -> Result<Engine<Shm, S>, Box<dyn std::error::Error>> {
///     let config = EngineConfig { reverse_credits: 4, connections_max: 2, ..EngineConfig::default() };
///     let memory = Memory::new(&config, 1 << 20)?;
///     let mut fabric = Shm::open(ShmConfig::default())?;
///     fabric.register(&memory.arena)?;
///     Ok(Engine::new(fabric, services, memory.pools, config, 1)?)
/// }
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     static PROCEDURES: [Procedure; 1] = [Procedure::plain("NOTIFY")];
///     let mut server = engine((News::default(),))?;
///     let mut client = engine((Program::new(NEWS, 1, &PROCEDURES, answer),))?;
///     let address = format!("news-{}", std::process::id());
///     server.listen(&address)?;
///     let connection = client.connect(&address)?;
///
///     let clock = Clock::start();
///     let request = Request {
///         program: NEWS,
///         version: 1,
///         procedure: 1,
///         credentials: Credentials::None,
///         user: 0,
///         timeout: Duration::from_secs(5),
///         results_len_max: 0,
///         reply_mode: ReplyMode::Auto,
///         retransmit: false,
///     };
///     while server.services_mut().0.told.is_none() {
///         server.poll(clock.now());
///         client.poll(clock.now());
///         if let Some(ConnectionEvent::Established { .. }) = client.connection_event() {
///             client.call(connection, &request, &mut Chunks::default(), |_| Ok(()))?;
///         }
///     }
///     assert_eq!(server.services_mut().0.told, Some(42));
///     Ok(())
/// }
/// ```
pub mod g_calls_back {}

/// A file system of your own, served by NFS: Linux mounts it.
///
/// The difference: instead of a service you write a `vfs::Store` (feature `nfs`). It says what its objects are, how
/// they are named, and what is in files. The NFS programs and the policy above it do the rest: protocols, handles, permissions, waiting.
///
/// | you implement | for |
/// |---|---|
/// | `profile`, `stat`, `entry`, `list`, `read` | files that can be read: the least |
/// | `is_read_only` | clients that shall hear at once that nothing can be changed |
/// | `update`, `make`, `link`, `remove`, `rename`, `write`, `commit` | changes; without them they are refused |
/// | `access_acl`, `default_acl`, `set_lists` | access control lists |
/// | `poll_later`, `finish` | answers that take their time: any step may say `Blocked::Waits` |
///
/// A step must not block: its core serves others meanwhile. `examples/own_files.rs` is a whole program, a read-only tree in 150 lines.
/// Its server:
///
/// ```
/// use stag::nfs::export::Export;
/// use stag::nfs::handle::HandleKey;
/// use stag::nfs::server::{ExportTable, TimeOfDay, services};
/// use stag::prelude::*;
/// use stag::runtime::WallClock;
/// use stag::vfs::{
///     ChangeStep, EntryName, FsError, ListStart, Listed, ObjectId, ObjectKind, ObjectStat, ReadDone, ReadStep, Store,
///     StoreProfile, Timestamp, UserIdentity,
/// };
///
/// /// A file system with an empty root.
/// struct Nothing;
///
/// const ROOT: ObjectId = ObjectId { fileid: 1, generation: 1 };
///
/// impl Store for Nothing {
///     fn profile(&self) -> StoreProfile {
///         StoreProfile::new(1, ROOT)
///     }
///
///     fn stat(&self, object: ObjectId) -> ReadStep<ObjectStat> {
///         if object == ROOT { Ok(ObjectStat::new(ROOT, ObjectKind::Directory, 0o555)) } else { Err(FsError::Stale.into()) }
///     }
///
///     fn entry(&self, at: EntryName<'_>) -> ReadStep<ObjectStat> {
///         if at.name == b".." { self.stat(ROOT) } else { Err(FsError::NotFound.into()) }
///     }
///
///     fn list(&self, _: ObjectId, _: ListStart, _: Timestamp, _: &mut dyn FnMut(Listed<'_>) -> bool) -> ReadStep<bool> {
///         Ok(true)
///     }
///
///     fn read(
///         &mut self,
///         _: &UserIdentity,
///         _: ObjectId,
///         _: u64,
///         _: u32,
///         _: &mut Vec<Shared>,
///         _: Timestamp,
///     ) -> ChangeStep<ReadDone> {
///         Err(FsError::IsDirectory.into())
///     }
/// }
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     // All engines of the server know each other's handles.
///     let key = HandleKey::new();
///     let server = Server::new(move |seat: &Seat| {
///         let files: Box<dyn Store> = Box::new(Nothing);
///         let exports = ExportTable::new(vec![(Export::new("/nothing"), files)], seat.payload().clone());
///         let time = TimeOfDay::System(WallClock::new(seat.clock().now()));
///         services(exports.expect("one export").with_key(key.clone()), time)
///     });
///     // `mount -t nfs -o ro,vers=3,proto=tcp,port=N,mountport=N,nolock 127.0.0.1:/nothing /mnt`
///     let running = server.listen("tcp://127.0.0.1:0").start()?;
///     assert!(running.urls()[0].starts_with("tcp://"));
///     running.stop()?;
///     Ok(())
/// }
/// ```
pub mod h_own_files {}

/// Callers that prove who they are: an authentication flavor of your own, at both ends.
///
/// A flavor is a kind of credential and verifier. Its server half, a [`Flavor`](crate::rpc::Flavor), verifies each Call before a service
/// sees it and seals the answer; its client half, a [`CallSealer`](crate::rpc::CallSealer), seals Calls and verifies their answers. The
/// services do not change.
///
/// This one signs headers with a key that both ends have. It says [`Claim::Signed`](crate::rpc::Claim::Signed): arguments and results stay
/// plain, so data goes by chunk as before, and could be changed on the way.
/// With [`Claim::Protected`](crate::rpc::Claim::Protected) the flavor gets arguments and results to sign or encrypt, and data goes inline.
///
/// ```
/// use std::hash::{DefaultHasher, Hasher};
/// use std::sync::Arc;
///
/// use stag::prelude::*;
/// use stag::rpc::{
///     AuthBody, CallSealer, CallToSeal, Claim, Flavor, OpenedCall, OpenedCaller, OpenedResults, ReplyOpener, ReplySeal, SealBroken,
///     SealedCall, SealedHeader, Secured, Unsealed,
/// };
/// use stag::wire::rpc::{Accepted, AuthStat, CallHeader, OpaqueAuth};
///
/// const PROGRAM: u32 = 0x2000_7a69;
/// // IANA assigns numbers from 400000 upward; this is far above.
/// const NUMBER: u32 = 0x4000_7a69;
///
/// static PROCEDURES: [Procedure; 1] = [Procedure::plain("WHO")];
///
/// // A real flavor takes a real one, HMAC-SHA-256 for example.
/// fn sign(key: u64, octets: &[u8]) -> AuthBody {
///     let mut hasher = DefaultHasher::new();
///     hasher.write_u64(key);
///     hasher.write(octets);
///     AuthBody { flavor: NUMBER, body: hasher.finish().to_be_bytes().to_vec() }
/// }
///
/// // The server's half. The credential is the caller's name.
/// struct Keyed {
///     key: u64,
/// }
///
/// impl Flavor for Keyed {
///     const NUMBER: u32 = NUMBER;
///
///     fn claim<'a>(&self, _: &CallHeader<'a>) -> Claim<'a> {
///         Claim::Signed
///     }
///
///     fn open(&mut self, call: &SealedCall<'_>) -> Unsealed {
///         if call.header.verifier != sign(self.key, call.signed).as_opaque() {
///             return Unsealed::Denied(AuthStat::BADVERF);
///         }
///         let caller = OpenedCaller::Own(call.header.credential.body.to_vec());
///         // A flavor with sequence numbers answers `Unsealed::Dropped` to one that it has seen.
///         Unsealed::Call(OpenedCall { caller, arguments: None, seal: Box::new(Seal(self.key)) })
///     }
/// }
///
/// // Seals one answer at the server, and verifies it at the client.
/// #[derive(Debug)]
/// struct Seal(u64);
///
/// impl ReplySeal for Seal {
///     fn growth_max(&self) -> usize {
///         8
///     }
///
///     fn seal(&mut self, xid: u32, _: Accepted, _: &mut Vec<u8>) -> AuthBody {
///         sign(self.0, &xid.to_be_bytes())
///     }
/// }
///
/// // The client's half.
/// #[derive(Debug)]
/// struct Signer {
///     key: u64,
///     name: &'static str,
/// }
///
/// impl CallSealer for Signer {
///     fn protects_body(&self) -> bool {
///         false
///     }
///
///     fn reply_growth_max(&self) -> u32 {
///         8
///     }
///
///     fn seal(&self, call: CallToSeal, _: &mut Vec<u8>) -> SealedHeader {
///         let credential = AuthBody { flavor: NUMBER, body: self.name.as_bytes().to_vec() };
///         let verifier = sign(self.key, &call.signed(credential.as_opaque()));
///         let opener = Box::new(Expected(sign(self.key, &call.xid.to_be_bytes())));
///         SealedHeader { credential, verifier, opener }
///     }
/// }
///
/// #[derive(Debug)]
/// struct Expected(AuthBody);
///
/// impl ReplyOpener for Expected {
///     fn open(&mut self, _: Accepted, verifier: OpaqueAuth<'_>, _: &[u8]) -> Result<OpenedResults, SealBroken> {
///         if verifier == self.0.as_opaque() { Ok(OpenedResults::AsTheyCame) } else { Err(SealBroken) }
///     }
/// }
///
/// fn who(call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
///     match call.caller {
///         Caller::Own { name, .. } => reply.success(|writer| writer.opaque(name)),
///         _ => reply.system_error(),
///     }
///     Outcome::Done
/// }
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let key = 0x5eed;
///     // No other flavor is taken: each core makes its own value of this one.
///     let server = Server::new(move |_| Secured::new((Program::new(PROGRAM, 1, &PROCEDURES, who),), (Keyed { key },)));
///     let running = server.listen("iwarp://127.0.0.1:0").start()?;
///
///     let client = Client::connect(&running.urls()[0])?;
///     let ada = Arc::new(Signer { key, name: "ada" });
///     let answer = client.request(PROGRAM, 1, 1).sealed_by(ada).call(|_| Ok(()))?;
///     assert_eq!(answer.reader().opaque(100)?, b"ada");
///
///     // Another key, and none at all.
///     let eve = Arc::new(Signer { key: 1, name: "ada" });
///     assert!(client.request(PROGRAM, 1, 1).sealed_by(eve).call(|_| Ok(())).is_err());
///     assert!(client.call(PROGRAM, 1, 1, |_| Ok(())).is_err());
///     Ok(())
/// }
/// ```
///
/// **What to keep in mind**: the credential travels in the clear. Without sequence numbers a Call that was recorded can be played again.
/// [`rpc::StreamClient`](crate::rpc::StreamClient) makes plain Calls only.
pub mod i_own_authentication {}

/// What the server counts, read by another thread.
///
/// The difference: the services are [`Observed`](crate::rpc::Observed), which counts Calls by procedure and takes the time of late
/// answers. [`RunningServer::statistics`](crate::RunningServer::statistics) adds up what all cores counted: each core is asked by a
/// message, and answers between two passes. So cores count in plain numbers, and a question costs time only when it is asked.
///
/// ```
/// use stag::prelude::*;
///
/// const PROGRAM: u32 = 0x2000_7a6a;
///
/// static PROCEDURES: [Procedure; 1] = [Procedure::plain("ADD")];
///
/// fn add(call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
///     let mut arguments = call.arguments();
///     match (arguments.u32(), arguments.u32()) {
///         (Ok(a), Ok(b)) => reply.success(|writer| writer.u32(a.wrapping_add(b))),
///         _ => reply.garbage_arguments(),
///     }
///     Outcome::Done
/// }
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let server = Server::new(|_| Observed::new((Program::new(PROGRAM, 1, &PROCEDURES, add),)));
///     let running = server.listen("iwarp://127.0.0.1:0").threads(2).memory(128 << 20).start()?;
///
///     let client = Client::connect(&running.urls()[0])?;
///     for number in 0..3 {
///         client.call(PROGRAM, 1, 1, |writer| writer.u32(number).and_then(|()| writer.u32(1)))?;
///     }
///
///     // A handle goes to the thread that serves metrics, and outlives the server.
///     let handle = running.statistics_handle();
///     let metrics = move || {
///         let counted = handle.read().ok_or("a core does not answer")?;
///         let lines = counted.procedures.iter();
///         let lines = lines.map(|it| format!("calls_total{{procedure=\"{}\"}} {}\n", it.name, it.calls));
///         Ok::<String, &str>(lines.collect())
///     };
///     assert_eq!(metrics()?, "calls_total{procedure=\"ADD\"} 3\n");
///     Ok(())
/// }
/// ```
///
/// A program on the polled engine reads [`Engine::statistics`](crate::rpc::Engine::statistics) and
/// [`Observed::procedures`](crate::rpc::Observed::procedures) between two passes, and a reactor's time by
/// [`StatisticsReader`](crate::runtime::StatisticsReader) from any thread.
pub mod j_counters {}
