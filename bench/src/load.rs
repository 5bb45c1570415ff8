//! The client: keeps Calls outstanding on its connections, and takes their times.

mod names;

use std::hash::{BuildHasher, RandomState};
use std::hint::black_box;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use hdrhistogram::Histogram;
use stag::nfs::client::{FinishedCall, Mnt, Null, Operation as NfsOperation, Target};
use stag::prelude::*;
use stag::rpc::{CompletedCall, ConnectionId, Statistics};
use stag::wire::mount3::PathArguments;
use stag::wire::nfs3::{
    CreateArguments, CreateHow, Data, DirectoryName, FsinfoArguments, GetattrArguments, Handle, Name,
    ReadArguments, RemoveArguments, SetAttributes, Stable, WriteArguments,
};
use stag::wire::rpc::{AuthSys, Gids};
use stag::wire::xdr::Item;

use crate::disturbance::Contention;
use crate::limits::touch;
use crate::opened::{DeviceFacts, Opened};
use crate::scenario::{MeasuredOperation, Scenario};
use crate::server::{ECHO_PROGRAM, Programs, engine_config};

use names::Names;
pub use names::files;

/// Below this many octets the data of a READ comes inline: a chunk costs more than the copy.
const CHUNK_LEN_MIN: usize = 1024;

/// For data of at least this many octets, the next Call is begun before more data are looked at.
const LARGE: usize = 64 << 10;

/// How long one Call may take before the measurement is given up.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What one client core measured in one round.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Calls that ended in the measured time.
    pub calls: u64,
    /// The measured time.
    pub took: Duration,
    /// Latencies in nanoseconds.
    pub latency: Histogram<u64>,
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

/// Octets of the file that one connection works on: a block for each Call outstanding.
#[must_use]
pub fn file_len(scenario: &Scenario) -> usize {
    scenario.block_len() * scenario.depth.max(1)
}

struct Connection {
    id: ConnectionId,
    file: Vec<u8>,
    /// Where the file is: its folder and its name.
    place: (Vec<u8>, String),
    /// The data of a WRITE fits its message.
    writes_inline: bool,
}

/// One client core's engine and what it works with.
struct Client<'a, P: Opened> {
    scenario: &'a Scenario,
    engine: Engine<P, Programs>,
    clock: Clock,
    credential: Vec<u8>,
    connections: Vec<Connection>,
    /// Of a load on names.
    names: Option<Names>,
    /// The octets that WRITE and echo send.
    data: Shared,
    /// Buffers for READ that no Call has at present.
    spare: Vec<Buf>,
    arena: Arena,
    /// What takes turns with the engine on this thread: a server's reactor.
    companion: Option<&'a mut Companion<'a>>,
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
pub fn run<P: Opened>(scenario: &Scenario, address: &str, export: &str, number: usize) -> Result<Measured> {
    let mut client = Client::<P>::start(scenario, address, &[export], number, None)?;
    let measured = client.measure()?;
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
    let measured = client.measure()?;
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
        let block = scenario.block_len();
        let blocks = scenario.depth * scenario.connections + 1;
        let memory = Memory::new(&config, blocks * block + (8 << 20))?;
        let mut provider = P::open(scenario)?;
        provider.register(&memory.arena)?;
        let seed = RandomState::new().hash_one(number) as u32;
        let engine = Engine::new(provider, None, memory.pools.clone(), config, seed)?;
        let take = |len| memory.pools.payload.take_len(len).context("the client's payload pool is too small");
        let mut data = take(scenario.size.max(1))?;
        for (index, octet) in data.iter_mut().enumerate() {
            *octet = index as u8;
        }
        let mut spare = Vec::new();
        if scenario.operation == MeasuredOperation::Read && scenario.size >= CHUNK_LEN_MIN {
            for _ in 0..scenario.depth * scenario.connections {
                spare.push(take(scenario.size)?);
            }
        }
        let mut client = Client {
            scenario,
            engine,
            clock: Clock::start(),
            credential: credential(),
            connections: Vec::new(),
            names: None,
            data: data.share(),
            spare,
            arena: memory.arena.clone(),
            companion,
        };
        for index in 0..scenario.connections {
            let export = exports[index % exports.len()];
            let id = client.connect(address)?;
            let name = format!("perf-{}-{number}-{index}", std::process::id());
            let (folder, file) = match scenario.operation {
                operation if operation.has_file() => client.make_file(id, export, &name)?,
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
            let writes_inline = scenario.size <= target.inline_write_len_max(&client.engine, file.len());
            client.connections.push(Connection { id, file, place: (folder, name), writes_inline });
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

    /// Makes the file of a connection, full of data. Returns the handles of its folder and of itself.
    fn make_file(&mut self, id: ConnectionId, export: &str, name: &str) -> Result<(Vec<u8>, Vec<u8>)> {
        let root = self.mount(id, export)?;
        if self.connections.is_empty() {
            self.check_size(id, &root)?;
        }
        let place = DirectoryName { directory: Handle(&root), name: Name(name.as_bytes()) };
        let how = CreateHow::Unchecked(SetAttributes { mode: Some(0o600), ..SetAttributes::default() });
        let finished = self.ask(id, &CreateArguments { place, how }, Chunks::default())?;
        let file = match finished.reply::<CreateArguments<'_>>()? {
            Ok(ok) => ok.object.context("the server gave no handle")?.0.to_vec(),
            Err(failure) => bail!("create {name}: {:?}", failure.status),
        };
        for block in 0..self.scenario.depth {
            let arguments = self.write_arguments(&file, block);
            let finished = self.ask(id, &arguments.0, arguments.1)?;
            if let Err(failure) = finished.reply::<WriteArguments<'_>>()? {
                bail!("write {name}: {:?}", failure.status);
            }
        }
        Ok((root, file))
    }

    /// Fails if the server announces that it takes less in one Call. The file of a READ is written by WRITEs as long.
    fn check_size(&mut self, id: ConnectionId, root: &[u8]) -> Result<()> {
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
        Ok(())
    }

    /// Leaves the export as it was found.
    fn remove_files(&mut self) -> Result<()> {
        self.remove_names()?;
        for Connection { id, file, place, .. } in std::mem::take(&mut self.connections) {
            if file.is_empty() {
                continue;
            }
            let object = DirectoryName { directory: Handle(&place.0), name: Name(place.1.as_bytes()) };
            let finished = self.ask(id, &RemoveArguments { object }, Chunks::default())?;
            if let Err(failure) = finished.reply::<RemoveArguments<'_>>()? {
                bail!("remove {}: {:?}", place.1, failure.status);
            }
        }
        Ok(())
    }

    fn write_arguments<'f>(&self, file: &'f [u8], block: usize) -> (WriteArguments<'f>, Chunks) {
        let size = self.scenario.size.max(1);
        let offset = (block * size.next_multiple_of(4096)) as u64;
        let (stable, count) = (Stable::Unstable, size as u32);
        let item = Item::Reduced { index: 0, len: count };
        let arguments = WriteArguments { file: Handle(file), offset, count, stable, data: Data(item) };
        (arguments, Chunks::read(self.data.clone()))
    }

    /// Begins the Call of one lane: a connection, and a place in its depth.
    #[inline]
    fn begin(&mut self, lane: usize) -> Result<()> {
        let scenario = self.scenario;
        if scenario.operation.has_names() {
            return self.begin_at_name(lane);
        }
        let (connection, block) = (&self.connections[lane / scenario.depth], lane % scenario.depth);
        let engine = &mut self.engine;
        let user = lane as u64;
        let target = Target {
            connection: connection.id,
            credentials: Credentials::Sys(&self.credential),
            timeout: TIMEOUT,
        };
        let size = scenario.size;
        let offset = (block * size.next_multiple_of(4096)) as u64;
        let refused = match scenario.operation {
            MeasuredOperation::Null => Target { credentials: Credentials::None, ..target }.begin(
                engine,
                &Null,
                &mut Chunks::default(),
                user,
            ),
            MeasuredOperation::Getattr => {
                let arguments = GetattrArguments { object: Handle(&connection.file) };
                target.begin(engine, &arguments, &mut Chunks::default(), user)
            }
            MeasuredOperation::Read => {
                let arguments = ReadArguments { file: Handle(&connection.file), offset, count: size as u32 };
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
                    chunks.read.push((0, self.data.clone()));
                    Item::Reduced { index: 0, len: size as u32 }
                } else {
                    Item::Inline(&self.data[..size])
                };
                let arguments = WriteArguments {
                    file: Handle(&connection.file),
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
        match self.scenario.operation {
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

    /// Begins Calls on lanes that wait, as far as there are credits, and says how many.
    #[inline]
    fn begin_waiting(&mut self, waiting: &mut Vec<usize>) -> Result<usize> {
        let mut begun = 0;
        while let Some(&lane) = waiting.last() {
            if self.is_out_of_names() {
                break;
            }
            if self.engine.credits_available(self.connections[lane / self.scenario.depth].id) == 0 {
                break;
            }
            waiting.pop();
            self.begin(lane)?;
            begun += 1;
        }
        if begun > 0 {
            self.engine.ring_doorbells();
        }
        Ok(begun)
    }

    /// Keeps every lane's Call outstanding until the time is over.
    fn measure(&mut self) -> Result<Measured> {
        let scenario = self.scenario;
        let lanes = scenario.depth * scenario.connections;
        let mut latency = Histogram::new_with_bounds(1, 60_000_000_000, 3)?;
        // A server grants more as it sees more use: lanes wait until there are credits for them.
        let mut waiting: Vec<usize> = (0..lanes).rev().collect();
        let start = self.clock.now();
        let (measure_from, mut measure_to) =
            (start + scenario.warm_up, start + scenario.warm_up + scenario.duration);
        let (mut calls, mut total) = (0, 0u64);
        let mut outstanding = 0usize;
        let mut ending = false;
        let mut last = start;
        // While names are renewed, no time goes by.
        let mut paused = Duration::ZERO;
        loop {
            let real = self.clock.now();
            self.poll(real);
            let now = real.saturating_sub(paused);
            let mut any = false;
            while let Some(done) = self.engine.completed() {
                any = true;
                outstanding -= 1;
                let lane = done.user as usize;
                if now >= measure_from && !ending {
                    calls += 1;
                    total += 1;
                    latency.saturating_record((real - done.started).as_nanos() as u64);
                }
                last = now;
                self.end(lane, done)?;
                waiting.push(lane);
                // To look at much data takes long: meanwhile the server has the next Call. Of short Calls several leave together,
                // which costs less than one at a time.
                if scenario.size >= LARGE && !ending && now < measure_to {
                    outstanding += self.begin_waiting(&mut waiting)?;
                }
            }
            if now >= measure_to || scenario.count.is_some_and(|count| total >= count) {
                measure_to = measure_to.min(now);
                ending = true;
            }
            if ending {
                if outstanding == 0 {
                    break;
                }
                continue;
            }
            if outstanding == 0 && self.is_out_of_names() {
                self.renew_names()?;
                paused += self.clock.now().saturating_sub(real);
            }
            outstanding += self.begin_waiting(&mut waiting)?;
            if !any {
                if let Some(ConnectionEvent::Closed { reason, .. }) = self.engine.connection_event() {
                    bail!("the connection ended: {reason:?}");
                }
                if now > last + TIMEOUT {
                    bail!("no Call ended for {TIMEOUT:?}");
                }
                if scenario.may_sleep {
                    std::thread::yield_now();
                }
            }
        }
        let first = self.connections[0].id;
        let thresholds = self
            .engine
            .parameters(first)
            .map_or((0, 0), |agreed| (agreed.call_threshold, agreed.reply_threshold));
        Ok(Measured {
            calls,
            took: measure_to.saturating_sub(measure_from),
            latency,
            entries_per_call: self.names.as_ref().map_or(0.0, Names::entries_per_call),
            statistics: *self.engine.statistics(),
            credits_granted: self.engine.credits_granted(first),
            contention: Contention::of_this_thread(),
            thresholds,
            pages: self.arena.page_size().to_string(),
            notes: self.arena.notes().to_vec(),
            device: self.engine.provider().device(),
            congestion_control: self.engine.provider().congestion_control_of(first),
        })
    }
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
