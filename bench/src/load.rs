//! The client: its connections and files, and each Call that it begins and ends.
//!
//! | file | subject |
//! |---|---|
//! | `measuring` | the loop that keeps Calls outstanding, or begins them by the clock, and takes their times |
//! | `places` | which block of which file a Call is at, and which Call of a mix it is |
//! | `names`, `worked_files` | loads on names and attributes, and the files that they work on |

mod measuring;
mod names;
mod places;
mod worked_files;

use std::hash::{BuildHasher, RandomState};
use std::hint::black_box;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use hdrhistogram::Histogram;
use stag_memory::{Arena, Buf, Shared};
use stag_nfs::client::{FinishedCall, Mnt, Null, Operation as NfsOperation, Target};
use stag_rpc::{
    Chunks, CompletedCall, ConnectionEvent, ConnectionId, Credentials, Engine, Memory, ReplyMode, Request,
    Statistics,
};
use stag_runtime::{Clock, Poller};
use stag_wire::mount3::PathArguments;
use stag_wire::nfs3::{
    CreateArguments, CreateHow, Data, DirectoryName, FsinfoArguments, GetattrArguments, Handle, Name,
    ReadArguments, RemoveArguments, SetAttributes, Stable, WriteArguments,
};
use stag_wire::rpc::{AuthSys, Gids};
use stag_wire::xdr::{Item, Reader, Writer};

use crate::cpu::{ServerMeter, UsedTime};
use crate::disturbance::Contention;
use crate::engine_config::engine_config;
use crate::limits::touch;
use crate::opened::{DeviceFacts, Opened};
use crate::programs::{ECHO_PROGRAM, Programs};
use crate::scenario::{MeasuredOperation, Scenario};

pub use names::files;
use places::Places;
use worked_files::Names;

/// Below this many octets the data of a READ comes inline: a chunk costs more than the copy.
const CHUNK_LEN_MIN: usize = 1024;

/// For data of at least this many octets, the next Call is begun before more data are looked at.
const LARGE: usize = 64 << 10;

/// How long one Call may take before the measurement is given up.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The longest WRITE that fills a file before the load begins, if the working set is larger than what is outstanding.
const FILL_LEN_MAX: usize = 1 << 20;

/// What one client core measured in one round.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Calls that ended in the measured time.
    pub calls: u64,
    /// The measured time.
    pub took: Duration,
    /// Latencies in nanoseconds; in open loop from the intended start.
    pub latency: Histogram<u64>,
    /// The same of each operation of a mix, in its order.
    pub shares: Vec<Histogram<u64>>,
    /// Of open loop.
    pub starts: Starts,
    /// Processor time of the client.
    pub client: UsedTime,
    /// Of the server, if it is in this process.
    pub server: Option<UsedTime>,
    /// Entries that READDIRPLUS returned, for each Call; 0 of other loads.
    pub entries_per_call: f64,
    /// The engine's counters at the end, set-up and warm-up included.
    pub statistics: Statistics,
    /// The last grant.
    pub credits_granted: u32,
    /// What the client's thread waited for its core.
    pub contention: Contention,
    /// Inline thresholds: Calls, Replies.
    pub thresholds: (u32, u32),
    /// The pages that the arena stands on.
    pub pages: String,
    /// What it stepped down from, if anything.
    pub notes: Vec<String>,
    /// The RDMA device, where there is one.
    pub device: Option<DeviceFacts>,
    /// The congestion control algorithm below, where there is one.
    pub congestion_control: Option<String>,
}

/// How far the starts of Calls were behind their time, in the measured time of open loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Starts {
    /// Calls that started when the next one was due, too, or 10 us after their time.
    pub late: u64,
    /// Calls that were due and had not started at the end, about.
    pub never: u64,
    /// The longest that a Call started after its time.
    pub delay_max: Duration,
}

/// What one client core measured in one interval of a round.
#[derive(Clone, Debug)]
pub struct IntervalSample {
    /// Which interval, from 0.
    pub index: usize,
    /// How long it was.
    pub took: Duration,
    /// Latencies in nanoseconds of the Calls that ended in it.
    pub latency: Histogram<u64>,
}

/// What looks at a client's round from outside.
#[derive(Clone, Debug, Default)]
pub struct Observer {
    /// Tells the time that the server uses.
    pub server: Option<ServerMeter>,
    /// Where intervals are told, if the scenario has some.
    pub intervals: Option<mpsc::Sender<IntervalSample>>,
}

/// Octets of the files that one connection works on.
#[must_use]
pub fn file_len(scenario: &Scenario) -> usize {
    scenario.files_len()
}

struct Connection {
    id: ConnectionId,
    /// The handle of the folder that the files are in.
    folder: Vec<u8>,
    /// The name and the handle of each.
    files: Vec<(String, Vec<u8>)>,
    /// The data of a WRITE fits its message.
    writes_inline: bool,
}

/// One client core's engine and what it works with.
struct Client<'a, P: Opened> {
    scenario: &'a Scenario,
    /// Which of the clients it is, from 0.
    number: usize,
    engine: Engine<P, Programs>,
    clock: Clock,
    credential: Vec<u8>,
    connections: Vec<Connection>,
    /// Of a load on names.
    names: Option<Names>,
    /// Where in the files Calls are, and which Call comes next.
    places: Places,
    /// The Call of each lane.
    lanes: Vec<Lane>,
    /// The octets that WRITE and echo send, and that files are filled with.
    data: Shared,
    /// Buffers for READ that no Call has at present.
    spare: Vec<Buf>,
    arena: Arena,
    /// What takes turns with the engine on this thread: a server's reactor.
    companion: Option<&'a mut Companion<'a>>,
}

/// A Call that may be outstanding.
#[derive(Clone, Copy, Debug)]
struct Lane {
    /// What it calls.
    operation: MeasuredOperation,
    /// Which of the mix that is.
    share: usize,
    /// When it ought to have started, in open loop.
    due: Duration,
}

/// What is polled whenever the client is, with the time.
pub(crate) type Companion<'a> = dyn FnMut(Duration) + 'a;

/// Waits for other threads, and polls what they may need.
pub(crate) type Stage<'a> = dyn FnMut(&mut Companion<'_>) -> Result<()> + 'a;

/// Runs one round of `scenario` on this thread, against `address`.
///
/// # Errors
///
/// When a Call fails, or the server goes away.
pub fn run<P: Opened>(
    scenario: &Scenario,
    address: &str,
    export: &str,
    number: usize,
    observer: &Observer,
) -> Result<Measured> {
    let mut client = Client::<P>::start(scenario, address, &[export], number, None)?;
    let measured = client.measure(observer)?;
    client.remove_files()?;
    Ok(measured)
}

/// As [`run`], in turns with `companion` on the same thread. Connections use `exports` in rotation. `prepared` waits for the
/// other threads when the files are there, and `measured` when the last Call has ended; both poll what others may need.
pub(crate) fn run_beside<P: Opened>(
    scenario: &Scenario,
    (address, exports): (&str, &[&str]),
    number: usize,
    companion: &mut Companion<'_>,
    stages: [&mut Stage<'_>; 2],
) -> Result<Measured> {
    let companion: &mut Companion<'_> = companion;
    let mut client = Client::<P>::start(scenario, address, exports, number, Some(companion))?;
    client.meet(&mut *stages[0])?;
    let measured = client.measure(&Observer::default())?;
    client.meet(&mut *stages[1])?;
    client.remove_files()?;
    Ok(measured)
}

impl<'a, P: Opened> Client<'a, P> {
    fn start(
        scenario: &'a Scenario,
        address: &str,
        exports: &[&str],
        number: usize,
        companion: Option<&'a mut Companion<'a>>,
    ) -> Result<Client<'a, P>> {
        let config = engine_config(scenario);
        let lanes = scenario.depth * scenario.connections;
        let data_len = scenario.size.max(fill_len(scenario)).max(1);
        let memory = Memory::new(&config, lanes * scenario.block_len() + data_len + (8 << 20))?;
        let mut provider = P::open(scenario)?;
        provider.register(&memory.arena)?;
        let seed = RandomState::new().hash_one(number) as u32;
        let engine = Engine::new(provider, None, memory.pools.clone(), config, seed)?;
        let take = |len| memory.pools.payload.take_len(len).context("the client's payload pool is too small");
        let mut data = take(data_len)?;
        for (index, octet) in data.iter_mut().enumerate() {
            *octet = index as u8;
        }
        let mut spare = Vec::new();
        if scenario.calls(MeasuredOperation::Read) && scenario.size >= CHUNK_LEN_MIN {
            for _ in 0..lanes {
                spare.push(take(scenario.size)?);
            }
        }
        let mut client = Client {
            scenario,
            number,
            engine,
            clock: Clock::start(),
            credential: credential(),
            connections: Vec::new(),
            names: None,
            places: Places::new(scenario, number),
            lanes: vec![
                Lane { operation: scenario.operation, share: 0, due: Duration::ZERO };
                scenario.depth * scenario.connections
            ],
            data: data.share(),
            spare,
            arena: memory.arena.clone(),
            companion,
        };
        for index in 0..scenario.connections {
            let export = exports[index % exports.len()];
            let id = client.connect(address)?;
            let name = format!("perf-{}-{number}-{index}", std::process::id());
            let (folder, files) = match scenario.operation {
                operation if operation.has_file() => client.make_files(id, export, &name)?,
                operation => {
                    if operation.has_names() && client.names.is_none() {
                        client.make_names(id, export, name.clone())?;
                    }
                    Default::default()
                }
            };
            let target = Target {
                connection: id,
                credentials: Credentials::Sys(&client.credential),
                timeout: TIMEOUT,
            };
            let handle_len = files.first().map_or(0, |(_, handle)| handle.len());
            let writes_inline = scenario.size <= target.inline_write_len_max(&client.engine, handle_len);
            client.connections.push(Connection { id, folder, files, writes_inline });
        }
        if client.names.is_some() {
            client.fill_names()?;
        }
        Ok(client)
    }

    /// A pass of the engine, and of what takes turns with it.
    #[inline]
    fn poll(&mut self, now: Duration) {
        self.engine.poll(now);
        if let Some(companion) = &mut self.companion {
            companion(now);
        }
    }

    /// Waits for the other threads.
    fn meet(&mut self, stage: &mut Stage<'_>) -> Result<()> {
        match &mut self.companion {
            Some(companion) => stage(&mut **companion),
            None => Ok(()),
        }
    }

    fn connect(&mut self, address: &str) -> Result<ConnectionId> {
        let id = self.engine.connect(address)?;
        loop {
            self.poll(self.clock.now());
            match self.engine.connection_event() {
                Some(ConnectionEvent::Established { connection }) if connection == id => return Ok(id),
                Some(ConnectionEvent::Closed { reason, .. }) => bail!("{address}: {reason:?}"),
                _ => std::thread::yield_now(),
            }
        }
    }

    /// Makes one Call and waits for its end.
    fn ask<O: NfsOperation>(
        &mut self,
        id: ConnectionId,
        operation: &O,
        mut chunks: Chunks,
    ) -> Result<FinishedCall> {
        let target =
            Target { connection: id, credentials: Credentials::Sys(&self.credential), timeout: TIMEOUT };
        target.begin(&mut self.engine, operation, &mut chunks, 0)?;
        loop {
            self.poll(self.clock.now());
            if let Some(done) = self.engine.completed() {
                return Ok(FinishedCall::new(done));
            }
            if self.scenario.may_sleep {
                std::thread::yield_now();
            }
        }
    }

    /// The handle of an export's root.
    fn mount(&mut self, id: ConnectionId, export: &str) -> Result<Vec<u8>> {
        if let Some(root) = &self.scenario.root {
            return Ok(root.clone());
        }
        let mount = Mnt(PathArguments { path: Name(export.as_bytes()) });
        let finished = self.ask(id, &mount, Chunks::default())?;
        match finished.reply::<Mnt<'_>>()? {
            Ok(ok) => Ok(ok.handle.0.to_vec()),
            Err(status) => bail!("mount {export}: {status:?}"),
        }
    }

    /// Makes the files of a connection, full of data. Returns the handle of their folder, and each one's name and handle.
    fn make_files(&mut self, id: ConnectionId, export: &str, name: &str) -> Result<FilesOfConnection> {
        let root = self.mount(id, export)?;
        let write_max = self.check_size(id, &root)?;
        let mut files = Vec::new();
        for number in 0..self.scenario.files.max(1) {
            let name = format!("{name}-{number}");
            let place = DirectoryName { directory: Handle(&root), name: Name(name.as_bytes()) };
            let how = CreateHow::Unchecked(SetAttributes { mode: Some(0o600), ..SetAttributes::default() });
            let finished = self.ask(id, &CreateArguments { place, how }, Chunks::default())?;
            let file = match finished.reply::<CreateArguments<'_>>()? {
                Ok(ok) => ok.object.context("the server gave no handle")?.0.to_vec(),
                Err(failure) => bail!("create {name}: {:?}", failure.status),
            };
            files.push((name, file));
            self.fill(id, files.len() - 1, &files, write_max)?;
        }
        Ok((root, files))
    }

    /// Fills a file: with a WRITE for each block, or with longer ones if it has many.
    fn fill(
        &mut self,
        id: ConnectionId,
        index: usize,
        files: &[(String, Vec<u8>)],
        write_max: usize,
    ) -> Result<()> {
        let (name, file) = &files[index];
        let (stride, blocks) = (self.scenario.block_len(), self.scenario.blocks_of_file());
        let together = (fill_len(self.scenario).min(write_max) / stride).max(1);
        for block in (0..blocks).step_by(together) {
            let len = match (blocks - block).min(together) {
                1 => self.scenario.size.max(1),
                more => more * stride,
            };
            let (offset, count) = ((block * stride) as u64, len as u32);
            let data = Data(Item::Reduced { index: 0, len: count });
            let arguments =
                WriteArguments { file: Handle(file), offset, count, stable: Stable::Unstable, data };
            let finished = self.ask(id, &arguments, Chunks::read(self.data.slice(..len)))?;
            if let Err(failure) = finished.reply::<WriteArguments<'_>>()? {
                bail!("write {name}: {:?}", failure.status);
            }
        }
        Ok(())
    }

    /// Fails if the server announces that it takes less in one Call: the file of a READ is written by WRITEs as long. Returns the
    /// most that a WRITE may have.
    fn check_size(&mut self, id: ConnectionId, root: &[u8]) -> Result<usize> {
        let finished = self.ask(id, &FsinfoArguments { root: Handle(root) }, Chunks::default())?;
        let info = match finished.reply::<FsinfoArguments<'_>>()? {
            Ok(info) => info,
            Err(failure) => bail!("fsinfo: {:?}", failure.status),
        };
        for (what, most) in [("READ", info.read_max), ("WRITE", info.write_max)] {
            if (1..self.scenario.size).contains(&(most as usize)) {
                bail!(
                    "--size {}: the server takes a {what} of {most} octets at most (FSINFO); give a smaller one",
                    self.scenario.size
                );
            }
        }
        Ok(if info.write_max == 0 { self.scenario.size } else { info.write_max as usize })
    }

    /// Leaves the export as it was found.
    fn remove_files(&mut self) -> Result<()> {
        self.remove_names()?;
        for Connection { id, files, folder, .. } in std::mem::take(&mut self.connections) {
            for (name, _) in files {
                let object = DirectoryName { directory: Handle(&folder), name: Name(name.as_bytes()) };
                let finished = self.ask(id, &RemoveArguments { object }, Chunks::default())?;
                if let Err(failure) = finished.reply::<RemoveArguments<'_>>()? {
                    bail!("remove {name}: {:?}", failure.status);
                }
            }
        }
        Ok(())
    }

    /// Begins the Call of one lane: a connection, and a place in its depth.
    #[inline]
    fn begin(&mut self, lane: usize) -> Result<()> {
        let scenario = self.scenario;
        if scenario.operation.has_names() {
            return self.begin_at_name(lane);
        }
        let number = lane / scenario.depth;
        if scenario.operation == MeasuredOperation::Mix {
            self.lanes[lane].share = self.places.next_share();
            self.lanes[lane].operation = scenario.mix[self.lanes[lane].share].operation;
        }
        let operation = self.lanes[lane].operation;
        let connection = &self.connections[number];
        let engine = &mut self.engine;
        let user = lane as u64;
        let target = Target {
            connection: connection.id,
            credentials: Credentials::Sys(&self.credential),
            timeout: TIMEOUT,
        };
        let size = scenario.size;
        let refused = match operation {
            MeasuredOperation::Null => Target { credentials: Credentials::None, ..target }.begin(
                engine,
                &Null,
                &mut Chunks::default(),
                user,
            ),
            MeasuredOperation::Getattr => {
                let (file, _) = self.places.next(number);
                let arguments = GetattrArguments { object: Handle(&connection.files[file].1) };
                target.begin(engine, &arguments, &mut Chunks::default(), user)
            }
            MeasuredOperation::Read => {
                let (file, offset) = self.places.next(number);
                let file = Handle(&connection.files[file].1);
                let arguments = ReadArguments { file, offset, count: size as u32 };
                let mut chunks = Chunks::default();
                if size >= CHUNK_LEN_MIN {
                    let mut buf = self.spare.pop().context("a buffer for each Call")?;
                    buf.set_len(size);
                    chunks.write.push((0, buf));
                }
                target.begin(engine, &arguments, &mut chunks, user)
            }
            MeasuredOperation::Write => {
                let mut chunks = Chunks::default();
                let item = if !connection.writes_inline {
                    chunks.read.push((0, self.data.slice(..size)));
                    Item::Reduced { index: 0, len: size as u32 }
                } else {
                    Item::Inline(&self.data[..size])
                };
                let (file, offset) = self.places.next(number);
                let arguments = WriteArguments {
                    file: Handle(&connection.files[file].1),
                    offset,
                    count: size as u32,
                    stable: Stable::Unstable,
                    data: Data(item),
                };
                target.begin(engine, &arguments, &mut chunks, user)
            }
            MeasuredOperation::Echo => {
                let request = Request {
                    program: ECHO_PROGRAM,
                    version: 1,
                    procedure: 1,
                    credentials: Credentials::None,
                    user,
                    timeout: TIMEOUT,
                    results_len_max: 4 + (size as u32).next_multiple_of(4),
                    retransmit: true,
                    reply_mode: ReplyMode::Auto,
                };
                let data = &self.data[..size];
                engine.call(connection.id, &request, &mut Chunks::default(), |writer| writer.opaque(data))
            }
            MeasuredOperation::Reply => {
                let reply_mode = scenario.reply_mode;
                // Who leaves the memory to the server need not know how long the Reply is.
                let results_len_max = match reply_mode {
                    ReplyMode::Responder => u32::MAX,
                    _ => 4 + (size as u32).next_multiple_of(4),
                };
                let request = Request {
                    program: ECHO_PROGRAM,
                    version: 1,
                    procedure: 2,
                    credentials: Credentials::None,
                    user,
                    timeout: TIMEOUT,
                    results_len_max,
                    retransmit: true,
                    reply_mode,
                };
                let len = size as u32;
                engine.call(connection.id, &request, &mut Chunks::default(), |writer| writer.u32(len))
            }
            operation => bail!("{} works on names", operation.name()),
        };
        refused.map(|_| ()).map_err(|refused| anyhow!("a Call was not begun: {refused}"))
    }

    /// Looks at the end of a Call, and gives its buffer back.
    #[inline]
    fn end(&mut self, lane: usize, done: CompletedCall) -> Result<()> {
        let size = self.scenario.size;
        match self.lanes[lane].operation {
            MeasuredOperation::Null => {
                done.result?;
            }
            MeasuredOperation::Echo | MeasuredOperation::Reply => {
                let len = Reader::new(done.result?.bytes()).opaque(u32::MAX)?.len();
                if len != size {
                    bail!("{len} octets returned, in place of {size}");
                }
            }
            MeasuredOperation::Getattr => {
                let finished = FinishedCall::new(done);
                if let Err(failure) = finished.reply::<GetattrArguments<'_>>()? {
                    bail!("getattr: {:?}", failure.status);
                }
            }
            MeasuredOperation::Read => {
                let finished = FinishedCall::new(done);
                match finished.reply::<ReadArguments<'_>>()? {
                    Ok(ok) if ok.count as usize == size => {
                        if self.scenario.touch {
                            for piece in finished.octets(&ok.data.0) {
                                black_box(touch(piece));
                            }
                        }
                    }
                    Ok(ok) => bail!("a READ of {size} octets returned {}", ok.count),
                    Err(failure) => bail!("read: {:?}", failure.status),
                }
                self.spare.extend(finished.into_buffers().into_iter().map(|(_, buf)| buf));
            }
            MeasuredOperation::Write => {
                let finished = FinishedCall::new(done);
                match finished.reply::<WriteArguments<'_>>()? {
                    Ok(ok) if ok.count as usize == size => {}
                    Ok(ok) => bail!("a WRITE of {size} octets wrote {}", ok.count),
                    Err(failure) => bail!("write: {:?}", failure.status),
                }
            }
            _ => self.end_at_name(lane, done)?,
        }
        Ok(())
    }
}

/// The handle of a folder, and the name and the handle of each file in it.
type FilesOfConnection = (Vec<u8>, Vec<(String, Vec<u8>)>);

/// Octets of the WRITEs that fill a file: with a block for each Call outstanding, those of the load.
fn fill_len(scenario: &Scenario) -> usize {
    if scenario.working_set.is_none() || !scenario.operation.has_file() {
        return 0;
    }
    let stride = scenario.block_len();
    let file = scenario.blocks_of_file() * stride;
    file.min((FILL_LEN_MAX / stride).max(1) * stride)
}

/// This process's user, as AUTH_SYS.
fn credential() -> Vec<u8> {
    // SAFETY: these calls have no preconditions and cannot fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let user = AuthSys { stamp: 0, machine_name: b"stag-perf", uid, gid, gids: Gids::NONE };
    let mut body = vec![0; AuthSys::BODY_LEN_MAX];
    let mut writer = Writer::new(&mut body);
    // The body is as long as any credential can be.
    let written = writer.value(&user).map(|()| writer.position());
    body.truncate(written.unwrap_or(0));
    body
}
