//! A custom RPC program whose data goes by chunk, over any fabric: the server writes an object from where it lies
//! straight into the client's memory.
//!
//! ```text
//! store serve shm://NAME      or iwarp://HOST:PORT, verbs://HOST:PORT
//! store get shm://NAME 65536
//! ```

use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use stag::prelude::*;

const PROGRAM: u32 = 0x2000_7a63;
const OBJECT_LEN: u32 = 1 << 20;

/// The binding of procedure 1, `opaque get(unsigned int)`: its result may go by Write chunk (8166-6-a).
static GET: Procedure = Procedure { eligible_results: 1, ..Procedure::plain("GET") };

/// The program: version 1, with one object.
struct Store {
    object: Shared,
}

impl Service for Store {
    fn program(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        (1, 1)
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<&'static Procedure> {
        (procedure == 1).then_some(&GET)
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        let Ok(len) = call.arguments().u32() else {
            reply.garbage_arguments();
            return Outcome::Done;
        };
        let len = len.min(OBJECT_LEN);
        // A counted reference, not a copy.
        let data = self.object.slice(..len as usize);
        match reply.item(len) {
            Placement::Reduced => {
                reply.piece(data);
                reply.success(|writer| writer.eligible_opaque_reduced(len).map(drop));
            }
            // The client offered no chunk.
            Placement::Inline => reply.success(|writer| writer.eligible_opaque_inline(&data)),
        }
        Outcome::Done
    }
}

fn serve(mut fabric: impl Provider, address: &str) -> Result<(), Box<dyn Error>> {
    let config = EngineConfig::default();
    let memory = Memory::new(&config, 8 << 20)?;
    fabric.register(&memory.arena)?;
    let mut object = memory.pools.payload.take_len(OBJECT_LEN as usize).ok_or("no memory for the object")?;
    for (octet, i) in object.iter_mut().zip(0_u64..) {
        *octet = expected(i);
    }
    let store = Store { object: object.share() };
    let mut engine = Engine::new(fabric, (store,), memory.pools, config, 1)?;
    let listener = engine.listen(address)?;
    // With port 0 the system has chosen one.
    let chosen = engine.provider().listener_address(listener);
    println!("ready: {}", chosen.map_or(address.to_owned(), |chosen| chosen.to_string()));

    // Until the process is ended by a signal.
    let stop = StopFlag::new()?;
    let stopped = Reactor::new(ReactorConfig::default(), Clock::start())?.run(&mut engine, &stop)?;
    println!("{:?}, {}", stopped.drained, memory.ledger);
    Ok(())
}

fn get(mut fabric: impl Provider, address: &str, len: u32) -> Result<(), Box<dyn Error>> {
    let config = EngineConfig::default();
    let memory = Memory::new(&config, 4 << 20)?;
    fabric.register(&memory.arena)?;
    let target = memory.pools.payload.take_len(len as usize).ok_or("no memory for so much")?;
    let seed = RandomState::new().hash_one(0) as u32;
    let mut engine = Engine::new(fabric, (), memory.pools, config, seed)?;
    let clock = Clock::start();

    let connection = engine.connect(address)?;
    loop {
        engine.poll(clock.now());
        match engine.connection_event() {
            Some(ConnectionEvent::Established { .. }) => break,
            Some(event) => return Err(format!("{address}: {event}").into()),
            None => {}
        }
    }
    let request = Request {
        program: PROGRAM,
        version: 1,
        procedure: 1,
        credentials: Credentials::None,
        user: 0,
        timeout: Duration::from_secs(5),
        // The length word: the data itself is not in the Reply.
        results_len_max: 4,
        retransmit: true,
        reply_mode: ReplyMode::Auto,
    };
    // The server may write to `target` while the Call lasts, and no longer.
    engine.call(connection, &request, &mut Chunks::write(target), |writer| writer.u32(len))?;
    loop {
        engine.poll(clock.now());
        if let Some(done) = engine.completed() {
            let results = done.result?;
            let (_, data) = done.written.into_iter().next().ok_or("the Write chunk did not come back")?;
            let is_right = data.iter().zip(0_u64..).all(|(octet, i)| *octet == expected(i));
            println!("{} octets by Write chunk, right: {is_right}", results.reduced_len());
            return Ok(());
        }
    }
}

/// What the object's octet at `i` is.
fn expected(i: u64) -> u8 {
    (i % 251) as u8
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let usage = "serve URL, or get URL LEN; a URL is shm://NAME, iwarp://HOST:PORT or verbs://HOST:PORT";
    // One engine is generated for each fabric; nothing is looked up while it runs.
    match words[..] {
        ["serve", url] => match url.split_once("://") {
            Some(("shm", at)) => serve(Shm::open(ShmConfig { may_sleep: true, ..ShmConfig::default() })?, at),
            Some(("iwarp", at)) => {
                serve(Iwarp::open(IwarpConfig { may_sleep: true, ..IwarpConfig::default() })?, at)
            }
            Some(("verbs", at)) => {
                serve(Verbs::open(VerbsConfig { may_sleep: true, ..VerbsConfig::default() })?, at)
            }
            _ => Err(usage.into()),
        },
        ["get", url, len] => match url.split_once("://") {
            Some(("shm", at)) => get(Shm::open(ShmConfig::default())?, at, len.parse()?),
            Some(("iwarp", at)) => get(Iwarp::open(IwarpConfig::default())?, at, len.parse()?),
            Some(("verbs", at)) => get(Verbs::open(VerbsConfig::default())?, at, len.parse()?),
            _ => Err(usage.into()),
        },
        _ => Err(usage.into()),
    }
}
