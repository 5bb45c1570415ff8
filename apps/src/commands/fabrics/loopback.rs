//! Whether iWARP works on this machine: both ends in this process, and one Call between them.

use std::time::Duration;

use anyhow::{Result, bail};
use stag::fabric::{Iwarp, IwarpConfig, Provider};
use stag::memory::Buf;
use stag::rpc::{
    Call, Chunks, ConnectionEvent, Credentials, Engine, EngineConfig, Memory, Outcome, Procedure, Reply,
    Request, Service,
};
use stag::runtime::{Clock, Poller};

/// From the range that RFC 5531 leaves to users.
const PROGRAM: u32 = 0x2000_7a62;

/// How long it may take.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Octets of the result, which go through a Write chunk.
const DATA: &[u8; 4096] = &[0x5a; 4096];

/// Makes a Call that has some data written to it, and says how long it took.
pub(super) fn check() -> Result<Duration> {
    let config =
        EngineConfig { connections_max: 2, credits_max: 4, receives_max: 16, ..EngineConfig::default() };
    let iwarp = IwarpConfig { queue_pairs: 2, completions: 1024, handshakes: 2, ..IwarpConfig::default() };
    let memory = Memory::new(&config, 1 << 20)?;
    let mut server = Iwarp::open(iwarp)?;
    server.register(&memory.arena)?;
    let listener = server.listen("127.0.0.1:0")?;
    let Some(address) = server.listener_address(listener) else { bail!("it does not say where it listens") };
    let services = (Give(memory.pools.payload.take_len(DATA.len())),);
    let mut server = Engine::new(server, services, memory.pools.clone(), config, 1)?;
    let mut client = Iwarp::open(iwarp)?;
    client.register(&memory.arena)?;
    let mut client = Engine::new(client, (), memory.pools.clone(), config, 2)?;

    let clock = Clock::start_system();
    let connection = client.connect(&address.to_string())?;
    let mut begun = None;
    loop {
        let now = clock.now();
        client.poll(now);
        server.poll(now);
        match client.connection_event() {
            Some(ConnectionEvent::Established { .. }) => {
                let Some(buf) = memory.pools.payload.take_len(DATA.len()) else { bail!("no memory") };
                let request = Request {
                    program: PROGRAM,
                    version: 1,
                    procedure: 1,
                    credentials: Credentials::None,
                    user: 0,
                    timeout: TIMEOUT,
                    results_len_max: 4,
                    retransmit: false,
                };
                client.call(connection, &request, &mut Chunks::write(buf), |_| Ok(()))?;
                begun = Some(now);
            }
            Some(event) => bail!("{event:?}"),
            None => {}
        }
        if let (Some(begun), Some(done)) = (begun, client.completed()) {
            done.result?;
            let arrived = done.written.iter().map(|(_, buf)| &**buf).eq([&DATA[..]]);
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

/// Procedure 1 gives [`DATA`].
struct Give(Option<Buf>);

static GIVE: Procedure = Procedure { eligible_results: 1, ..Procedure::plain("GIVE") };

impl Service for Give {
    fn program(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        (1, 1)
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<&'static Procedure> {
        (procedure == 1).then_some(&GIVE)
    }

    fn call(&mut self, _call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        let _ = reply.item(DATA.len() as u32);
        match self.0.take() {
            Some(mut buf) => {
                buf.copy_from_slice(DATA);
                reply.piece(buf.share());
                reply.success(|writer| writer.eligible_opaque_reduced(DATA.len() as u32).map(|_| ()));
            }
            None => reply.system_error(),
        }
        Outcome::Done
    }
}
