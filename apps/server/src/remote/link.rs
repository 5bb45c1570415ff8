//! One connection of a client, over any fabric, driven on the calling thread: begins Calls and waits for their ends.

use std::sync::OnceLock;
use std::time::Duration;

use stag_fabric::{
    DisconnectReason, FabricError, Iwarp, IwarpConfig, Provider, Shm, ShmConfig, Verbs, VerbsConfig,
};
use stag_memory::{Arena, ArenaConfig, Budget, Buf, Pool};
use stag_nfs::client::{AnyOperation, FinishedCall, Null, Target};
use stag_rpc::{
    Backoff, CallError, CallRefused, Chunks, ClientPolicy, CloseReason, CompletedCall, ConnectionEvent,
    ConnectionId, Credentials, Engine, EngineConfig, KeepAlive, Pools, StreamCallError,
};
use stag_runtime::{Clock, PollMode, Poller, sleep};
use stag_wire::nfs3;
use stag_wire::rpc::OpaqueAuth;

use super::credentials;
use super::error::RemoteError;
use super::tcp;
use crate::counters::Counters;
use crate::limits;
use crate::options;
use crate::programs::Programs;
use crate::seed::random_seed;
use crate::timings::Timings;
use crate::url::{FabricName, Url};

/// Octets of data on their way at once: payload of the Calls in flight, and a long Reply.
const PAYLOAD_LEN: usize = 12 << 20;

/// Largest Reply that is pulled, with `--reliable-reply`.
const PULL_LEN_MAX: u32 = 4 << 20;

/// Octets of a unit of the payload pool.
const PAGE_LEN: usize = 4096;

/// How long a server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The same, where the server may be restarted meanwhile.
const TIMEOUT_OF_ALL: Duration = Duration::from_secs(120);

/// How long a server may be away.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

/// What to do when a connection ends, or nothing is heard.
const POLICY: ClientPolicy = ClientPolicy {
    reconnect: Some(Backoff {
        first: Duration::from_millis(50),
        max: Duration::from_secs(2),
        give_up_after: GIVE_UP_AFTER,
        resend_after: Duration::from_secs(2),
    }),
    keep_alive: Some(KeepAlive {
        program: nfs3::PROGRAM,
        version: nfs3::VERSION,
        after: Duration::from_secs(10),
        answer_within: Duration::from_secs(10),
        when_idle: false,
    }),
};

/// How long a connection may take to come about, or to end.
const SET_UP_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to poll for an answer before sleep: longer than a server on a core of its own needs.
pub(super) const SPIN: Duration = PollMode::SPIN;

/// The longest sleep: events without a wake-up, such as the engine's own timers after a signal, are noticed then.
pub(super) const SLEEP_MAX: Duration = Duration::from_millis(100);

/// The clock of every connection of this process, so that one sleep can wait for several of them.
pub(super) fn clock() -> Clock {
    static CLOCK: OnceLock<Clock> = OnceLock::new();
    *CLOCK.get_or_init(Clock::start_system)
}

/// A connection over the fabric that its URL names.
pub(super) trait Link {
    /// The figures of the Calls so far.
    fn timings(&self) -> &Timings;

    /// What was counted.
    fn counters(&self) -> Counters;

    /// Credits that the server granted last.
    fn credits_granted(&self) -> u32;

    /// The longest inline Call that both sides agreed on.
    fn inline_threshold(&self) -> u32;

    /// Octets of data that a WRITE to a handle of `file_len` octets may carry inline.
    fn inline_write_len_max(&self, file_len: usize) -> usize;

    /// A buffer for `len` octets of payload, if there is one.
    fn buffer(&self, len: usize) -> Option<Buf>;

    /// Makes one Call without chunks, and waits for its end.
    fn call(&mut self, operation: &AnyOperation<'_>) -> Result<FinishedCall, RemoteError>;

    /// How long the last completed Call took.
    fn time(&self, finished: &FinishedCall) -> Duration;

    /// Makes a pass, without waiting. Returns the number of events.
    fn pass(&mut self) -> usize;

    /// What a sleep waits for.
    fn poller(&mut self) -> &mut dyn Poller;

    /// Whether the connection is being made anew.
    fn is_interrupted(&self) -> bool;

    /// Whether a Call failed in a way in which all others will: no connection, no answer, no such program.
    fn is_useless(&self) -> bool;

    /// Begins a Call, or says `false`: not now. Never waits, even while the connection is being made anew.
    fn try_begin(
        &mut self,
        operation: &AnyOperation<'_>,
        chunks: &mut Chunks,
        user: u64,
    ) -> Result<bool, RemoteError>;

    /// The end of some Call, if one has ended: its user number, and its results.
    fn take_finished(&mut self) -> Option<(u64, Result<FinishedCall, RemoteError>)>;
}

/// Connects over the fabric that `url` names.
pub(super) fn connect(url: &Url, reconnects: bool) -> Result<Box<dyn Link>, RemoteError> {
    let options = options::get();
    match url.fabric {
        FabricName::Shm => {
            let config = ShmConfig {
                admit: options.shm_allow,
                // The server chose its pages.
                foreign_hugepages: true,
                queue_pairs: 2,
                completions: 4096,
                may_sleep: true,
                ..ShmConfig::default()
            };
            FabricLink::connect(url, reconnects, || Shm::open(config))
        }
        FabricName::Iwarp => {
            let config = IwarpConfig {
                queue_pairs: 2,
                completions: 4096,
                may_sleep: true,
                handshakes: 1,
                crc: options.crc,
                congestion_control: options.congestion_control,
                connect_timeout: SET_UP_TIMEOUT,
                ..IwarpConfig::default()
            };
            FabricLink::connect(url, reconnects, || Iwarp::open(config))
        }
        FabricName::Verbs => {
            let config = VerbsConfig {
                device: options.device,
                exposure: options.exposure,
                queue_pairs: 2,
                completions: 4096,
                may_sleep: true,
                setup_timeout: SET_UP_TIMEOUT,
                ..VerbsConfig::default()
            };
            FabricLink::connect(url, reconnects, || Verbs::open(config))
        }
    }
}

/// A connection over one fabric.
struct FabricLink<P: Provider + 'static> {
    engine: Engine<P, Programs>,
    connection: ConnectionId,
    clock: Clock,
    /// The instant of the last pass.
    now: Duration,
    credentials: Vec<u8>,
    timings: Timings,
    /// How a message names it.
    server: String,
    /// Whether it is connected again when it ends.
    reconnects: bool,
    /// Why it ended for good.
    closed: Option<CloseReason>,
    /// It ended, and is being made anew.
    interrupted: bool,
    /// A Call failed in a way in which all others will.
    is_useless: bool,
}

impl<P: Provider + 'static> FabricLink<P> {
    /// Connects over the provider that `open` opens.
    fn connect(
        url: &Url,
        reconnects: bool,
        open: impl FnOnce() -> Result<P, FabricError>,
    ) -> Result<Box<dyn Link>, RemoteError> {
        let config = EngineConfig {
            connections_max: 1,
            // It only calls.
            receives_max: 2,
            pull_len_max: if options::get().reliable_reply { PULL_LEN_MAX } else { 0 },
            protocol: options::get().protocol,
            placement: options::get().placement,
            ..EngineConfig::default()
        };
        let payload_len = PAYLOAD_LEN + config.target_pages() * PAGE_LEN;
        let broken = |error: &dyn std::fmt::Display| RemoteError::Broken(error.to_string());
        let messages = Pools::messages_needed(&config);
        let len = Pool::footprint(config.message_len(), messages) + payload_len;
        let budget = Budget::new(2 * len as u64 + (4 << 20));
        let arena =
            ArenaConfig { name: "stag", len, page: options::get().pages(), node: None, budget: &budget };
        let arena = Arena::new(&arena).map_err(|error| {
            limits::memory_too_large(len).map_or_else(|| broken(&error), |why| broken(&why))
        })?;
        let pools = Pools {
            messages: Pool::fixed(&arena, "messages", config.message_len(), messages)
                .map_err(|error| broken(&error))?,
            payload: Pool::runs(&arena, "payload", PAGE_LEN, payload_len / PAGE_LEN)
                .map_err(|error| broken(&error))?,
        };
        let mut provider = open().map_err(|error| broken(&error))?;
        provider.register(&arena).map_err(|error| broken(&error))?;
        let mut engine =
            Engine::new(provider, None, pools, config, random_seed()).map_err(|error| broken(&error))?;
        let clock = clock();
        let now = clock.now();
        engine.poll(now);
        let policy = if reconnects { POLICY } else { ClientPolicy::default() };
        let connection = engine.connect_with(&url.address, policy).map_err(|error| broken(&error))?;
        let credentials = credentials::encode();
        let mut link = FabricLink {
            engine,
            connection,
            clock,
            now,
            credentials,
            timings: Timings::default(),
            server: url.server().to_string(),
            reconnects,
            closed: None,
            interrupted: false,
            is_useless: false,
        };
        link.establish(url)?;
        Ok(Box::new(link))
    }

    fn establish(&mut self, url: &Url) -> Result<(), RemoteError> {
        let event = self.wait(SET_UP_TIMEOUT, |link| link.engine.connection_event());
        let reason = match event {
            Some(ConnectionEvent::Established { .. }) => return Ok(()),
            Some(ConnectionEvent::Closed { reason, .. }) => reason,
            Some(_) | None => CloseReason::Fabric(DisconnectReason::TimedOut),
        };
        Err(RemoteError::Broken(match reason {
            CloseReason::Fabric(DisconnectReason::NoListener) => {
                let server = url.server();
                let at = if url.fabric.is_network() { " on that host" } else { "" };
                format!("no server listens there; start one{at}: stagd --export mem:/data --listen {server}")
            }
            CloseReason::Fabric(DisconnectReason::TimedOut) => {
                let stuck = if url.fabric.is_network() {
                    "is it the right host and port?"
                } else {
                    "is the server stuck?"
                };
                format!("no connection within {} s; {stuck}", SET_UP_TIMEOUT.as_secs())
            }
            CloseReason::Fabric(
                DisconnectReason::PeerDied | DisconnectReason::Peer | DisconnectReason::PeerViolation(_),
            ) if speaks_rpc(url) => {
                "it speaks RPC over TCP there, not iWARP; name the port of one of its iwarp:// places"
                    .to_owned()
            }
            reason => closed(&reason),
        }))
    }

    /// Begins a Call. `false`: not now, wait for another one to end first; the chunks are as they were.
    fn begin(
        &mut self,
        operation: &AnyOperation<'_>,
        chunks: &mut Chunks,
        user: u64,
    ) -> Result<bool, RemoteError> {
        // The Call's time begins at the engine's last pass.
        self.engine.poll(self.clock.now());
        self.note_events();
        if self.begin_now(operation, chunks, user)? {
            return Ok(true);
        }
        // Without a connection no other Call ends either: there is one again, or none ever.
        if !self.interrupted {
            return Ok(false);
        }
        let _ = self.wait(TIMEOUT_OF_ALL, |link| {
            link.note_events();
            (!link.interrupted || link.closed.is_some()).then_some(())
        });
        self.begin_now(operation, chunks, user)
    }

    fn begin_now(
        &mut self,
        operation: &AnyOperation<'_>,
        chunks: &mut Chunks,
        user: u64,
    ) -> Result<bool, RemoteError> {
        let credentials = Credentials::Sys(&self.credentials);
        let timeout = if self.reconnects { TIMEOUT_OF_ALL } else { TIMEOUT };
        let target = Target { connection: self.connection, credentials, timeout };
        let user = if operation.program() == nfs3::PROGRAM { user } else { user | NOT_NFS };
        match target.begin_any(&mut self.engine, operation, chunks, user) {
            Ok(_) => Ok(true),
            Err(CallRefused::NoCredit | CallRefused::NoMemory | CallRefused::FabricBusy) => Ok(false),
            Err(CallRefused::Interrupted) => Ok(false),
            Err(CallRefused::NotConnected) => Err(self.broken(CallError::NotSent)),
            Err(refused) => Err(RemoteError::Broken(refused.to_string())),
        }
    }

    /// Waits for the end of some Call, which has results.
    fn finished(&mut self) -> Result<FinishedCall, RemoteError> {
        // The engine ends every Call at its time-out; this is for the engine's own mistakes.
        let completed = self.wait(2 * TIMEOUT_OF_ALL, |link| {
            link.note_events();
            link.engine.completed()
        });
        let Some(completed) = completed else {
            return Err(RemoteError::Broken("the engine lost a Call".to_owned()));
        };
        self.judge(completed)
    }

    /// Tells a Call that has results from one that failed, and records its time.
    fn judge(&mut self, completed: CompletedCall) -> Result<FinishedCall, RemoteError> {
        match completed.result {
            Ok(_) => {}
            Err(CallError::ProgramUnavailable | CallError::ProgramMismatch { .. }) => {
                self.is_useless = true;
                return Err(RemoteError::NotServed);
            }
            // A server may lack a procedure of NFS in this way, too.
            Err(CallError::ProcedureUnavailable) if completed.user & NOT_NFS == 0 => {
                return Err(RemoteError::Status(nfs3::Status::NotSupp));
            }
            Err(error) => return Err(self.broken(error)),
        }
        let time = self.now.saturating_sub(completed.started);
        if completed.user & NOT_NFS == 0
            && let Some(procedure) = nfs3::Procedure::from_number(completed.procedure)
        {
            self.timings.record(procedure, time);
        }
        Ok(FinishedCall::new(completed))
    }

    /// Makes passes until `poll` has something.
    fn wait<T>(&mut self, timeout: Duration, mut poll: impl FnMut(&mut Self) -> Option<T>) -> Option<T> {
        let begun = self.clock.now();
        self.now = begun;
        let mut active = begun;
        loop {
            if self.engine.poll(self.now) > 0 {
                active = self.now;
            }
            let found = poll(self);
            self.now = self.clock.now();
            if found.is_some() {
                return found;
            }
            if self.now.saturating_sub(begun) >= timeout {
                return None;
            }
            if self.now.saturating_sub(active) < SPIN {
                std::hint::spin_loop();
                continue;
            }
            let latest = begun.saturating_add(timeout).min(self.now.saturating_add(SLEEP_MAX));
            sleep(&mut [&mut self.engine], self.now, latest);
            self.now = self.clock.now();
        }
    }

    /// Why a Call failed; if the connection ended, why that.
    fn broken(&mut self, error: CallError) -> RemoteError {
        use CallError::{ConnectionLost, NotSent, TimedOut, TransportVersion};
        self.is_useless |= matches!(error, TimedOut | NotSent | ConnectionLost | TransportVersion { .. });
        if !matches!(error, CallError::NotSent | CallError::ConnectionLost) {
            return RemoteError::Broken(error.to_string());
        }
        let _ = self.wait(SET_UP_TIMEOUT, |link| {
            link.note_events();
            link.closed.is_some().then_some(())
        });
        RemoteError::Broken(match &self.closed {
            Some(reason) => format!("{error}: {}", closed(reason)),
            None => error.to_string(),
        })
    }

    /// Takes note of what became of the connection, and tells who waits why.
    fn note_events(&mut self) {
        while let Some(event) = self.engine.connection_event() {
            match event {
                ConnectionEvent::Interrupted { reason, .. } => {
                    self.interrupted = true;
                    let (server, why, seconds) = (&self.server, closed(&reason), GIVE_UP_AFTER.as_secs());
                    eprintln!(
                        "stag: {server}: {why}; connecting again, for {seconds} s at most (--no-reconnect gives up)"
                    );
                }
                ConnectionEvent::Restored { .. } => {
                    self.interrupted = false;
                    eprintln!("stag: {}: connected again", self.server);
                }
                ConnectionEvent::Closed { reason, .. } => self.closed = Some(reason),
                _ => {}
            }
        }
    }
}

impl<P: Provider + 'static> Link for FabricLink<P> {
    fn timings(&self) -> &Timings {
        &self.timings
    }

    fn counters(&self) -> Counters {
        self.engine.statistics().into()
    }

    fn credits_granted(&self) -> u32 {
        self.engine.credits_granted(self.connection)
    }

    fn inline_threshold(&self) -> u32 {
        self.engine.parameters(self.connection).map_or(0, |parameters| parameters.call_threshold)
    }

    fn inline_write_len_max(&self, file_len: usize) -> usize {
        let credentials = Credentials::Sys(&self.credentials);
        let target = Target { connection: self.connection, credentials, timeout: TIMEOUT };
        target.inline_write_len_max(&self.engine, file_len)
    }

    fn buffer(&self, len: usize) -> Option<Buf> {
        self.engine.pools().payload.take_len(len)
    }

    fn call(&mut self, operation: &AnyOperation<'_>) -> Result<FinishedCall, RemoteError> {
        // Credits come back within a pass or two of the last Reply.
        for _ in 0..CREDIT_PASSES {
            if self.begin(operation, &mut Chunks::default(), 0)? {
                return self.finished();
            }
        }
        Err(RemoteError::Broken("no credit or no memory, although no Call is outstanding".to_owned()))
    }

    fn time(&self, finished: &FinishedCall) -> Duration {
        self.now.saturating_sub(finished.completed().started)
    }

    fn pass(&mut self) -> usize {
        self.now = self.clock.now();
        let events = self.engine.poll(self.now);
        self.note_events();
        events
    }

    fn poller(&mut self) -> &mut dyn Poller {
        &mut self.engine
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted && self.closed.is_none()
    }

    fn is_useless(&self) -> bool {
        self.is_useless
    }

    fn try_begin(
        &mut self,
        operation: &AnyOperation<'_>,
        chunks: &mut Chunks,
        user: u64,
    ) -> Result<bool, RemoteError> {
        if self.is_interrupted() {
            return Ok(false);
        }
        self.begin_now(operation, chunks, user)
    }

    fn take_finished(&mut self) -> Option<(u64, Result<FinishedCall, RemoteError>)> {
        let completed = self.engine.completed()?;
        let user = completed.user & !NOT_NFS;
        Some((user, self.judge(completed)))
    }
}

/// In a Call's user number: it is of another program, whose procedures have other names.
const NOT_NFS: u64 = 1 << 63;

/// Passes within which a credit must have come back.
const CREDIT_PASSES: u32 = 1000;

/// Ends the connection in order, so that the server does not take it for a death.
impl<P: Provider + 'static> Drop for FabricLink<P> {
    fn drop(&mut self) {
        self.engine.disconnect(self.connection);
        let _ = self.wait(SET_UP_TIMEOUT, |link| link.engine.is_drained().then_some(()));
    }
}

/// Whether what ended a connection of iWARP is a server of NFS over TCP.
fn speaks_rpc(url: &Url) -> bool {
    let Some((host, port)) = url.host_and_port().ok().filter(|_| url.fabric == FabricName::Iwarp) else {
        return false;
    };
    let Ok(mut rpc) = tcp::connect(host, port) else { return false };
    matches!(
        tcp::call(&mut rpc, &Null, OpaqueAuth::NONE),
        Ok(_) | Err(StreamCallError::NotExecuted(_) | StreamCallError::Denied(_))
    )
}

/// Why a connection ended, and where to read on.
fn closed(reason: &CloseReason) -> String {
    let words = match reason {
        // Here the flag is known that the engine has no name for.
        CloseReason::Fabric(DisconnectReason::NotAdmitted { uid, .. }) => format!(
            "the server there runs as user {uid}, who could read and change all memory that is shared with it; if \
             that is meant: --shm-allow uid:{uid}"
        ),
        reason => reason.describe("the server"),
    };
    format!("{words} ({})", explain_command(reason))
}

/// The command that explains why a connection ended, for the line that says so.
#[must_use]
pub fn explain_command(reason: &CloseReason) -> String {
    let name = match reason {
        CloseReason::Fabric(DisconnectReason::Work(error)) => format!("{error:?}"),
        CloseReason::Fabric(reason) => format!("{reason:?}"),
        reason => format!("{reason:?}"),
    };
    // What stands behind the name is in words already.
    let end = name.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(name.len());
    format!("stag explain {}", &name[..end])
}
