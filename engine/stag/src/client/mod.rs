//! [`Client`]: Calls from any thread, on the polled engine of a thread of its own.
//!
//! `request.rs` describes a Call, `answer.rs` has its results, `pending.rs` is a Call that is under way. `job.rs` is what
//! that wants of the client's thread, `queue.rs` what waits for it; `driver.rs` is the poller of that thread over RDMA, `tcp.rs` over TCP.

mod answer;
mod driver;
mod error;
mod job;
mod pending;
mod queue;
mod request;
#[cfg(feature = "tcp")]
mod tcp;

use std::fmt;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

#[cfg(feature = "iwarp")]
use stag_fabric::Iwarp;
#[cfg(feature = "shm")]
use stag_fabric::Shm;
#[cfg(feature = "verbs")]
use stag_fabric::Verbs;
#[cfg(feature = "shm")]
use stag_fabric::shm::Admit;
use stag_memory::SendBuf;
#[cfg(feature = "version2")]
use stag_rpc::ProtocolChoice;
use stag_rpc::{Backoff, EngineConfig};
use stag_runtime::{CoreId, PollMode, SendError, Sender, StopFlag, mailbox};
use stag_wire::xdr::{Overflow, Writer};

use crate::fabrics::FabricOptions;
use crate::url::{self, Scheme};

pub use answer::Answer;
use driver::{Drive, Driver, Settings};
pub use error::ClientError;
use error::{JOBS_MAX, system};
pub use job::CallData;
use job::Job;
pub use pending::Pending;
use pending::promise;
pub use request::CallBuilder;
#[cfg(feature = "tcp")]
use tcp::TcpDriver;

/// Octets of payload memory, unless told otherwise.
const MEMORY: usize = 16 << 20;

/// A connection to a server. Any thread may call; clones are the same connection.
///
/// ```no_run
/// use stag::Client;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::connect("shm://echo")?;
/// let answer = client.call(0x2000_7a62, 1, 1, |writer| writer.opaque(b"hello"))?;
/// assert_eq!(answer.reader().opaque(1024)?, b"hello");
/// # Ok(())
/// # }
/// ```
///
/// An engine of its own runs on a thread of its own, which sleeps when there is nothing to do. A Call costs a way to that thread and
/// back, some microseconds. A program that cannot afford them polls an [`Engine`](stag_rpc::Engine) itself.
///
/// The first answer says how many Calls the server lets be outstanding; until it comes there is one, and others wait.
///
/// When the connection ends it is made anew, and Calls without an answer are sent again; see [`ClientBuilder::reconnect`]. The last
/// clone that is dropped ends the connection, and the Calls that are under way.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    jobs: Sender<Job>,
    stop: StopFlag,
    /// Until it is joined.
    thread: Mutex<Option<JoinHandle<()>>>,
    timeout: Duration,
}

/// The settings of a [`Client`]. Made by [`Client::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing is connected before connect"]
pub struct ClientBuilder {
    memory: usize,
    timeout: Duration,
    reconnect: Option<Backoff>,
    core: Option<CoreId>,
    config: EngineConfig,
    options: FabricOptions,
}

impl ClientBuilder {
    /// Memory for data of Calls and results on their way, in octets, beside that of messages. Default: 16 MiB.
    pub fn memory(mut self, len: usize) -> Self {
        self.memory = len;
        self
    }

    /// How long a Call may take, unless it says so itself. Default: 30 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How the connection is made anew when it ends; `None`: it is not, and neither is a Call sent again. Default:
    /// [`Backoff::default`].
    pub fn reconnect(mut self, backoff: Option<Backoff>) -> Self {
        self.reconnect = backoff;
        self
    }

    /// Pins the client's thread to this core.
    pub fn core(mut self, core: CoreId) -> Self {
        self.core = Some(core);
        self
    }

    /// What the client's thread does while idle. Default: it polls for 50 µs, then it sleeps.
    pub fn poll(mut self, mode: PollMode) -> Self {
        self.options.poll = mode;
        self
    }

    /// Connects to a server of another user over shared memory. **It may read and write all memory of the client**: see
    /// [`fabric::shm`](stag_fabric::shm#trust).
    #[cfg(feature = "shm")]
    pub fn admit(mut self, whom: Admit) -> Self {
        self.options.admit.push(whom);
        self
    }

    /// Speaks version 2 of RPC-over-RDMA with a server that announces it, and version 1 with any other.
    #[cfg(feature = "version2")]
    pub fn version2(mut self) -> Self {
        self.config.protocol = ProtocolChoice::Auto;
        self
    }

    /// Changes numbers of the engine that no method here has.
    pub fn tune(mut self, change: impl FnOnce(&mut EngineConfig)) -> Self {
        change(&mut self.config);
        self
    }

    /// Connects to `url`, and waits for that: `shm://NAME`, `iwarp://HOST:PORT`, `verbs://HOST:PORT`, `tcp://HOST:PORT`.
    ///
    /// # Errors
    ///
    /// Why there is no connection.
    pub fn connect(self, url: &str) -> Result<Client, ClientError> {
        let (scheme, address) = url::parse(url)?;
        match scheme {
            #[cfg(feature = "shm")]
            Scheme::Shm => self.connect_over::<Driver<Shm>>(address),
            #[cfg(feature = "iwarp")]
            Scheme::Iwarp => self.connect_over::<Driver<Iwarp>>(address),
            #[cfg(feature = "verbs")]
            Scheme::Verbs => self.connect_over::<Driver<Verbs>>(address),
            #[cfg(feature = "tcp")]
            Scheme::Tcp => self.connect_over::<TcpDriver>(address),
            // Not built: refused already.
            #[cfg(not(all(feature = "shm", feature = "iwarp", feature = "verbs", feature = "tcp")))]
            _ => Err(url::UrlError::Unknown(url.to_owned()).into()),
        }
    }

    fn connect_over<D: Drive>(self, address: &str) -> Result<Client, ClientError> {
        let ClientBuilder { memory, timeout, reconnect, core, config, options } = self;
        let settings = Settings { address: address.to_owned(), memory, reconnect, core, config, options };
        let (jobs, receiver) = mailbox(JOBS_MAX).map_err(system("make the client's mailbox"))?;
        let stop = StopFlag::new().map_err(system("make the flag that stops the client"))?;
        let (ready, is_ready) = mpsc::channel();
        let its_stop = stop.clone();
        let thread = thread::Builder::new().name("stag-client".to_owned());
        let thread = thread.spawn(move || driver::run::<D>(settings, receiver, &its_stop, &ready));
        let thread = thread.map_err(system("start the client's thread"))?;
        let inner = Inner { jobs, stop, thread: Mutex::new(Some(thread)), timeout };
        let client = Client { inner: Arc::new(inner) };
        // Without a word it has panicked. Dropped, the client waits for its thread.
        is_ready.recv().unwrap_or(Err(ClientError::Ended))?;
        Ok(client)
    }
}

impl Client {
    /// Connects to `url`, and waits for that: `shm://NAME`, `iwarp://HOST:PORT`, `verbs://HOST:PORT`, `tcp://HOST:PORT`.
    ///
    /// # Errors
    ///
    /// Why there is no connection.
    pub fn connect(url: &str) -> Result<Client, ClientError> {
        Client::builder().connect(url)
    }

    /// For a client with settings of its own.
    pub fn builder() -> ClientBuilder {
        ClientBuilder {
            memory: MEMORY,
            timeout: Duration::from_secs(30),
            reconnect: Some(Backoff::default()),
            core: None,
            // One connection that ends, and the next; it serves no Calls.
            config: EngineConfig { connections_max: 4, receives_max: 16, ..EngineConfig::default() },
            options: FabricOptions::default(),
        }
    }

    /// Calls a procedure, and waits for its results. `encode` writes the arguments. What else there is to say of a Call,
    /// [`Client::request`] has.
    ///
    /// # Errors
    ///
    /// Why there are no results.
    pub fn call(
        &self,
        program: u32,
        version: u32,
        procedure: u32,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Result<Answer, ClientError> {
        self.request(program, version, procedure).call(encode)
    }

    /// Begins to describe a Call.
    pub fn request(&self, program: u32, version: u32, procedure: u32) -> CallBuilder<'_> {
        CallBuilder::new(self, program, version, procedure, self.inner.timeout)
    }

    /// Memory of `len` octets that data of a Call is written to, so that it is not copied: [`CallBuilder::data`] takes it. Waits
    /// for the client's thread.
    ///
    /// # Errors
    ///
    /// When there is not so much in one piece now.
    pub fn buffer(&self, len: usize) -> Result<SendBuf, ClientError> {
        let (promise, pending) = promise();
        self.send(Job::Buffer(len, promise))?;
        pending.wait()
    }

    fn send(&self, job: Job) -> Result<(), ClientError> {
        self.inner.jobs.send(job).map_err(|error| match error {
            SendError::Full(_) => ClientError::Busy,
            SendError::Closed(_) => ClientError::Ended,
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop.request();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) {
            // A panic has printed its message.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}
