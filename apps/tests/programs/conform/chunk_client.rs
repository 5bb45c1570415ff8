//! A client on our engine whose Calls offer chunks, and that goes on in whatever state they come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use stag_fabric::{Iwarp, IwarpConfig, Provider, Shm, ShmConfig};
use stag_rpc::{
    Chunks, ConnectionEvent, ConnectionId, Credentials, Engine, EngineConfig, Memory, ReplyMode, Request,
};
use stag_runtime::{Clock, Poller};
use stag_wire::nfs3;

/// Octets that each of its chunks has room for.
const ROOM: u32 = 100_000;

/// It makes NULL Calls until it is dropped.
pub(crate) struct ChunkClient {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ChunkClient {
    /// Of the server at `url`, over shm or iwarp.
    pub(crate) fn start(url: &str) -> ChunkClient {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, url) = (Arc::clone(&stop), url.to_owned());
        let thread = thread::spawn(move || match url.split_once("://").unwrap() {
            ("shm", name) => {
                let config = ShmConfig { queue_pairs: 4, completions: 4096, ..ShmConfig::default() };
                call(Shm::open(config).unwrap(), name, &stopped);
            }
            (_, address) => {
                let config = IwarpConfig { queue_pairs: 4, completions: 4096, ..IwarpConfig::default() };
                call(Iwarp::open(config).unwrap(), address, &stopped);
            }
        });
        ChunkClient { stop, thread: Some(thread) }
    }
}

impl Drop for ChunkClient {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking(), "the client panicked");
        }
    }
}

/// Makes Calls one after the other, on one connection after the other.
fn call<P: Provider>(mut provider: P, address: &str, stopped: &AtomicBool) {
    let config =
        EngineConfig { connections_max: 4, credits_max: 4, receives_max: 32, ..EngineConfig::default() };
    let memory = Memory::new(&config, 4 << 20).unwrap();
    provider.register(&memory.arena).unwrap();
    let mut engine = Engine::new(provider, (), memory.pools.clone(), config, 1).unwrap();
    let clock = Clock::start_system();
    let mut connection: Option<ConnectionId> = None;
    let mut is_ready = false;
    while !stopped.load(Ordering::Relaxed) {
        if connection.is_none() {
            // There is no listener yet, or not any more.
            connection = engine.connect(address).ok();
        }
        if engine.poll(clock.now()) == 0 {
            thread::sleep(Duration::from_micros(200));
        }
        while let Some(event) = engine.connection_event() {
            match event {
                ConnectionEvent::Established { .. } => is_ready = true,
                ConnectionEvent::Closed { .. } => (connection, is_ready) = (None, false),
                _ => {}
            }
        }
        while engine.completed().is_some() {}
        if let (Some(connection), true) = (connection, is_ready)
            && engine.credits_available(connection) > 0
        {
            begin(&mut engine, &memory, connection);
        }
    }
}

/// Begins a NULL Call with a Write chunk and a Reply chunk.
fn begin<P: Provider>(engine: &mut Engine<P, ()>, memory: &Memory, connection: ConnectionId) {
    let Some(mut buf) = memory.pools.payload.take_len(4096) else { return };
    buf.set_len(4096);
    let request = Request {
        program: nfs3::PROGRAM,
        version: nfs3::VERSION,
        procedure: 0,
        credentials: Credentials::None,
        user: 0,
        timeout: Duration::from_secs(600),
        results_len_max: ROOM,
        retransmit: false,
        reply_mode: ReplyMode::Chunk,
    };
    // A connection that is ending takes none.
    let _ = engine.call(connection, &request, &mut Chunks::write(buf), |_| Ok(()));
}
