//! NULL Calls over TCP: a socket calls, without an engine, so that only the server is counted.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use stag_fabric::{Provider, Shm, ShmConfig};
use stag_rpc::{Engine, EngineConfig, Memory};
use stag_runtime::{Clock, Poller};

use crate::kinds::nothing::{Nothing, PROGRAM};
use crate::load::{Load, PAYLOAD_LEN, WARM_UP, counted_from_here, say, thread_time};

/// Octets of a Call with its record mark, and of its Reply.
const CALL_LEN: usize = 44;
const REPLY_LEN: usize = 28;

/// A server of byte streams alone, and the time, which goes by in even steps.
struct Server {
    engine: Engine<Shm, (Nothing,)>,
    now: Duration,
}

/// Calls with `load` at a server whose provider has no connection.
pub(crate) fn calls(load: Load) -> Result<()> {
    let config = EngineConfig { streams_max: load.idle + 2, ..EngineConfig::default() };
    let memory = Memory::new(&config, PAYLOAD_LEN)?;
    let mut provider = Shm::open(ShmConfig::default())?;
    provider.register(&memory.arena)?;
    let mut engine = Engine::new(provider, (Nothing,), memory.pools.clone(), config, 1)?;
    let address = engine.listen_tcp("127.0.0.1:0")?;
    let mut server = Server { engine, now: Clock::start().now() };
    let mut client = connect(address, &mut server)?;
    let idle = (0..load.idle).map(|_| connect(address, &mut server)).collect::<Result<Vec<_>>>()?;

    let mut call = [0; CALL_LEN];
    // The last fragment of a record, XID, CALL, RPC version, program, version 3, NULL, AUTH_NONE twice.
    let words = [0x8000_0000 | (CALL_LEN as u32 - 4), 1, 0, 2, PROGRAM, 3, 0, 0, 0, 0, 0];
    for (place, word) in call.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_be_bytes());
    }
    let burst = call.repeat(load.depth.try_into()?);
    let mut replies = vec![0; REPLY_LEN * burst.len() / CALL_LEN];
    let (mut ended, mut passes, mut used) = (0, 0u64, 0);
    let mut counted_from = None;
    while ended < WARM_UP + load.count {
        if counted_from.is_none() && ended >= WARM_UP {
            counted_from = Some(ended);
            (passes, used) = (0, 0);
            counted_from_here();
        }
        client.write_all(&burst)?;
        let mut received = 0;
        while received < replies.len() {
            passes += 1;
            let start = thread_time();
            server_turn(&mut server);
            used += thread_time() - start;
            match client.read(&mut replies[received..]) {
                Ok(0) => bail!("the server closed the connection"),
                Ok(count) => received += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        ended += load.depth;
    }
    // Accepted, and SUCCESS.
    ensure!(replies[12..16] == [0; 4] && replies[24..28] == [0; 4], "a NULL Call failed");
    ensure!(server.engine.stream_count() == idle.len() + 1, "the server closed a connection that is idle");
    let counted = ended - counted_from.unwrap_or_default();
    say(counted, passes, [0, used]);
    Ok(())
}

/// A connection that the server has accepted.
fn connect(address: SocketAddr, server: &mut Server) -> Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let before = server.engine.stream_count();
    while server.engine.stream_count() == before {
        server_turn(server);
    }
    Ok(stream)
}

/// A pass of the Responder.
#[inline(never)]
fn server_turn(server: &mut Server) {
    server.now += Duration::from_micros(1);
    server.engine.poll(server.now);
}
