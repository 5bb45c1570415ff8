//! The thread of a client: an engine, and what other threads want of it, as one poller.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::RawFd;
use std::sync::mpsc;
use std::time::Duration;

use stag_rpc::{
    Backoff, CallError, CallId, CallRefused, Chunks, ClientPolicy, CloseReason, CompletedCall,
    ConnectionEvent, ConnectionId, Credentials, Engine, EngineConfig, Memory, ReplyMode, Request,
};
use stag_runtime::{AffinityError, Clock, CoreId, Poller, Reactor, ReactorConfig, Receiver, StopFlag};

use super::answer::Answer;
use super::error::{ClientError, system};
use super::job::{CallData, Job};
use super::pending::Promise;
use super::queue::{Queue, Waiting};
use crate::fabrics::{FabricOptions, Open};

/// Data of at most this many octets goes in the message: to fetch it costs more.
const INLINE_MAX: usize = 512;

/// How often the connection may end under one Call until the Call is given up.
pub(super) const ENDS_MAX: u32 = 8;

/// What the driver's thread needs.
pub(super) struct Settings {
    pub(super) address: String,
    pub(super) memory: usize,
    pub(super) reconnect: Option<Backoff>,
    pub(super) core: Option<CoreId>,
    pub(super) config: EngineConfig,
    pub(super) options: FabricOptions,
}

/// A Call that was sent.
struct Sent {
    call: CallId,
    promise: Promise<Answer>,
    /// How often its connection ended, and why the last time, once that was too often.
    ends: u32,
    given_up: Option<CloseReason>,
}

/// The connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// There is none: the next Call makes one.
    Down,
    /// It is being made, for the first time, or for the first time since it was given up.
    Connecting(ConnectionId),
    /// Calls can be made. While it is interrupted the engine refuses them.
    Up(ConnectionId),
}

/// The poller of a client's thread.
pub(super) struct Driver<P: Open> {
    engine: Engine<P, ()>,
    address: String,
    policy: ClientPolicy,
    link: Link,
    queue: Queue,
    sent: HashMap<u64, Sent>,
    next_user: u64,
    /// Until the first connection is made, or not.
    ready: Option<mpsc::Sender<Result<(), ClientError>>>,
    is_stopping: bool,
}

/// The poller of a client's thread, over one kind of connection.
pub(super) trait Drive: Poller + Sized {
    /// Makes it, with the memory that its buffers come from, and begins to connect. It says to `ready` whether it is connected.
    fn new(
        settings: Settings,
        jobs: Receiver<Job>,
        ready: mpsc::Sender<Result<(), ClientError>>,
    ) -> Result<(Memory, Self), ClientError>;
}

/// Runs a client until `stop` is requested. Says to `ready` whether it is connected.
pub(super) fn run<D: Drive>(
    settings: Settings,
    jobs: Receiver<Job>,
    stop: &StopFlag,
    ready: &mpsc::Sender<Result<(), ClientError>>,
) {
    let (mode, core) = (settings.options.poll, settings.core);
    let serve = || {
        let (memory, mut driver) = D::new(settings, jobs, ready.clone())?;
        let config = ReactorConfig { core, mode, ..ReactorConfig::default() };
        let mut reactor = Reactor::new(config, Clock::start()).map_err(not_pinned)?;
        // The handles are gone: whether it drained makes no difference.
        let _ = reactor.run(&mut driver, stop).map_err(not_pinned)?;
        // Its buffers go back before the pools go.
        drop((driver, memory));
        Ok(())
    };
    if let Err(error) = serve() {
        // Fails when no one waits for it: it ended later.
        let _ = ready.send(Err(error));
    }
}

fn not_pinned(error: AffinityError) -> ClientError {
    system("pin the client's thread")(io::Error::other(error))
}

impl<P: Open> Drive for Driver<P> {
    fn new(
        settings: Settings,
        jobs: Receiver<Job>,
        ready: mpsc::Sender<Result<(), ClientError>>,
    ) -> Result<(Memory, Driver<P>), ClientError> {
        let Settings { address, memory: len, reconnect, config, options, .. } = settings;
        let memory = Memory::new(&config, len)?;
        let mut provider = P::open_for(&options, &config)?;
        provider.register(&memory.arena)?;
        let seed = RandomState::new().hash_one(0) as u32;
        let engine = Engine::new(provider, (), memory.pools.clone(), config, seed)?;
        let mut driver = Driver {
            engine,
            address,
            policy: ClientPolicy { reconnect, keep_alive: None },
            link: Link::Down,
            queue: Queue::new(jobs, memory.pools.payload.clone()),
            sent: HashMap::new(),
            next_user: 0,
            ready: Some(ready),
            is_stopping: false,
        };
        driver.link = Link::Connecting(driver.engine.connect_with(&driver.address, driver.policy)?);
        Ok((memory, driver))
    }
}

impl<P: Open> Driver<P> {
    /// Handles what happened to the connection.
    fn handle_events(&mut self) -> usize {
        let mut count = 0;
        while let Some(event) = self.engine.connection_event() {
            count += 1;
            match event {
                ConnectionEvent::Established { connection } | ConnectionEvent::Restored { connection } => {
                    self.link = Link::Up(connection);
                    if let Some(ready) = self.ready.take() {
                        let _ = ready.send(Ok(()));
                    }
                }
                ConnectionEvent::Interrupted { reason, .. } => self.note_end(&reason),
                ConnectionEvent::Closed { reason, .. } => {
                    self.link = Link::Down;
                    if let Some(ready) = self.ready.take() {
                        let _ = ready.send(Err(ClientError::NotConnected(reason.clone())));
                    }
                    self.queue.fail(&ClientError::NotConnected(reason));
                }
                _ => {}
            }
        }
        count
    }

    /// The connection ended under the Calls that were sent. One under which it ends again and again is given up: the server would
    /// end it for ever.
    fn note_end(&mut self, reason: &CloseReason) {
        // Those say that the server is slow, not that it does not want the Call.
        if matches!(reason, CloseReason::Unanswered | CloseReason::Silent) {
            return;
        }
        for sent in self.sent.values_mut() {
            sent.ends += 1;
            if sent.ends >= ENDS_MAX && sent.given_up.is_none() {
                sent.given_up = Some(reason.clone());
                self.engine.cancel(sent.call);
            }
        }
    }

    /// Hands over what is complete.
    fn hand_over(&mut self) -> usize {
        let mut count = 0;
        while let Some(done) = self.engine.completed() {
            count += 1;
            let CompletedCall { user, result, mut written, .. } = done;
            let Some(Sent { promise, ends, given_up, .. }) = self.sent.remove(&user) else {
                debug_assert!(false, "a Call that was not sent is complete");
                continue;
            };
            let data = written.take_only().map(|(_, buf)| buf);
            promise.keep(match (result, given_up) {
                (Ok(results), _) => Ok(Answer::new(&results, data.map(|buf| self.queue.home.send(buf)))),
                (Err(CallError::Cancelled), Some(reason)) => {
                    Err(ClientError::EndedEachTime { times: ends, reason })
                }
                (Err(error), _) => Err(error.into()),
            });
        }
        count
    }

    /// Begins Calls that wait, as far as there are credits and memory.
    fn begin_waiting(&mut self, now: Duration) -> usize {
        let mut count = 0;
        while let Some(mut waiting) = self.queue.waiting.pop_front() {
            let connection = match self.link {
                Link::Up(connection) => connection,
                Link::Connecting(_) => {
                    self.queue.waiting.push_front(waiting);
                    break;
                }
                Link::Down => {
                    match self.engine.connect_with(&self.address, self.policy) {
                        Ok(connection) => {
                            self.link = Link::Connecting(connection);
                            self.queue.waiting.push_front(waiting);
                            break;
                        }
                        Err(error) => waiting.promise.keep(Err(error.into())),
                    }
                    continue;
                }
            };
            match self.begin(connection, &mut waiting, now) {
                Ok(call) => {
                    count += 1;
                    let sent = Sent { call, promise: waiting.promise, ends: 0, given_up: None };
                    self.sent.insert(self.next_user, sent);
                    self.next_user += 1;
                }
                Err(error) if self.is_for_now(&error) => {
                    self.queue.waiting.push_front(waiting);
                    break;
                }
                Err(error) => waiting.promise.keep(Err(error)),
            }
        }
        if count > 0 {
            self.engine.ring_doorbells();
        }
        count
    }

    /// Whether something is going to happen that helps a Call which is not begun.
    fn is_for_now(&self, error: &ClientError) -> bool {
        match error {
            ClientError::Refused(
                CallRefused::NoCredit | CallRefused::Interrupted | CallRefused::FabricBusy,
            ) => true,
            // A connection that has ended tells so by an event.
            ClientError::Refused(CallRefused::NotConnected) => true,
            // Others' memory comes back.
            ClientError::Refused(CallRefused::NoMemory) | ClientError::NoMemory(_) => !self.sent.is_empty(),
            _ => false,
        }
    }

    fn begin(
        &mut self,
        connection: ConnectionId,
        waiting: &mut Waiting,
        now: Duration,
    ) -> Result<CallId, ClientError> {
        if self.engine.credits_available(connection) == 0 {
            // Refused all the same, and why is in its words; memory is not taken before.
            let state = self.engine.parameters(connection).map(|_| CallRefused::NoCredit);
            return Err(state.unwrap_or(CallRefused::Interrupted).into());
        }
        self.provide(waiting)?;
        let Waiting { job, deadline, chunks, data_len, .. } = waiting;
        let (program, version, procedure) = job.target();
        let request = Request {
            program,
            version,
            procedure,
            credentials: match (&job.sealer, &job.user) {
                (Some(sealer), _) => Credentials::Own(&**sealer),
                (None, Some(user)) => Credentials::Sys(user),
                (None, None) => Credentials::None,
            },
            user: self.next_user,
            timeout: deadline.saturating_sub(now),
            results_len_max: job.results_max,
            reply_mode: ReplyMode::Auto,
            retransmit: job.retransmit && self.policy.reconnect.is_some(),
        };
        let chunks = chunks.get_or_insert_default();
        Ok(self.engine.call(connection, &request, chunks, |writer| job.encode(*data_len, writer))?)
    }

    /// Finds the memory of a Call.
    fn provide(&self, waiting: &mut Waiting) -> Result<(), ClientError> {
        if waiting.chunks.is_some() {
            return Ok(());
        }
        let Waiting { job, chunks, data_len, .. } = waiting;
        let mut found = Chunks::default();
        if let Some(len) = job.room {
            found.write.push((0, self.queue.take(len)?));
        }
        let long = job.data.take_if(|data| data.len() > INLINE_MAX);
        if let Some(data) = long {
            let len = data.len();
            let buf = match data {
                CallData::Octets(octets) => match self.queue.take(len) {
                    Ok(mut buf) => {
                        buf.copy_from_slice(&octets);
                        buf
                    }
                    Err(error) => {
                        job.data = Some(CallData::Octets(octets));
                        return Err(error);
                    }
                },
                CallData::Buffer(sent) if sent.is_of(&self.queue.home) => match sent.into_buf() {
                    Ok(buf) => buf,
                    Err(_) => unreachable!("a buffer of this thread's home"),
                },
                // Memory of another client: its octets are copied, as those of anywhere.
                CallData::Buffer(sent) => {
                    let copied = self.queue.take(len).map(|mut buf| {
                        buf.copy_from_slice(&sent);
                        buf
                    });
                    match copied {
                        Ok(buf) => buf,
                        Err(error) => {
                            job.data = Some(CallData::Buffer(sent));
                            return Err(error);
                        }
                    }
                }
            };
            *data_len = Some(len as u32);
            found.read.push((0, buf.share()));
        }
        *chunks = Some(found);
        Ok(())
    }
}

impl<P: Open> Poller for Driver<P> {
    fn poll(&mut self, now: Duration) -> usize {
        let events = self.engine.poll(now) + self.handle_events() + self.hand_over();
        if self.is_stopping {
            return events;
        }
        let taken = self.queue.take_jobs(now);
        self.queue.expire(now);
        events + taken + self.begin_waiting(now)
    }

    fn next_timeout(&self) -> Option<Duration> {
        self.engine.next_timeout().into_iter().chain(self.queue.next_timeout()).min()
    }

    fn arm(&mut self) -> bool {
        self.queue.jobs.arm() && self.engine.arm()
    }

    fn disarm(&mut self) {
        self.queue.jobs.disarm();
        self.engine.disarm();
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        self.engine.descriptors(out);
        out.push(self.queue.jobs.descriptor());
    }

    fn stop(&mut self, now: Duration) {
        self.is_stopping = true;
        // Their promises say that the client has ended.
        self.queue.waiting.clear();
        self.engine.stop(now);
    }

    fn is_drained(&self) -> bool {
        self.engine.is_drained()
    }
}
