//! Checks that iWARP works on this machine: both ends in this thread, and one Call between them.

use std::time::Duration;

use anyhow::{Result, bail};
use stag_fabric::{Iwarp, IwarpConfig, Provider};
use stag_rpc::{Chunks, ConnectionEvent, Credentials, Engine, EngineConfig, Memory, ReplyMode, Request};
use stag_runtime::{Clock, Poller};
use stag_wire::xdr::Reader;

use crate::programs::{ECHO_PROGRAM, Programs, programs};

/// How long it may take.
const TIMEOUT: Duration = Duration::from_secs(3);

/// What is echoed. It is too long to go inline: the server reads it by RDMA Read, and answers by RDMA Write.
const DATA: &[u8; 8192] = &[0x5a; 8192];

/// Has some data echoed, and says how long the Call took.
///
/// # Errors
///
/// What did not work: memory, a socket, the connection or the Call.
pub fn check() -> Result<Duration> {
    let config =
        EngineConfig { connections_max: 2, credits_max: 4, receives_max: 16, ..EngineConfig::default() };
    let iwarp = IwarpConfig { queue_pairs: 2, completions: 1024, handshakes: 2, ..IwarpConfig::default() };
    let memory = Memory::new(&config, 4 << 20)?;
    let clock = Clock::start_system();
    let mut server = Iwarp::open(iwarp)?;
    server.register(&memory.arena)?;
    let listener = server.listen("127.0.0.1:0")?;
    let Some(address) = server.listener_address(listener) else { bail!("it does not say where it listens") };
    let services = programs(&memory.pools.payload, (1 << 20, 1), clock.now())?;
    let mut server = Engine::new(server, services, memory.pools.clone(), config, 1)?;
    let mut client = Iwarp::open(iwarp)?;
    client.register(&memory.arena)?;
    let mut client: Engine<Iwarp, Programs> = Engine::new(client, None, memory.pools.clone(), config, 2)?;

    let connection = client.connect(&address.to_string())?;
    let mut begun = None;
    loop {
        let now = clock.now();
        client.poll(now);
        server.poll(now);
        match client.connection_event() {
            Some(ConnectionEvent::Established { .. }) => {
                let request = Request {
                    program: ECHO_PROGRAM,
                    version: 1,
                    procedure: 1,
                    credentials: Credentials::None,
                    user: 0,
                    timeout: TIMEOUT,
                    results_len_max: 4 + DATA.len() as u32,
                    retransmit: false,
                    reply_mode: ReplyMode::Auto,
                };
                client.call(connection, &request, &mut Chunks::default(), |writer| writer.opaque(DATA))?;
                begun = Some(now);
            }
            Some(event) => bail!("{event:?}"),
            None => {}
        }
        if let (Some(begun), Some(done)) = (begun, client.completed()) {
            let results = done.result?;
            let arrived = Reader::new(results.bytes()).opaque(DATA.len() as u32) == Ok(&DATA[..]);
            return if arrived {
                Ok(clock.now().saturating_sub(begun))
            } else {
                bail!("its data is not what was sent")
            };
        }
        if now > TIMEOUT {
            bail!("nothing happens within {} s", TIMEOUT.as_secs());
        }
    }
}
