//! A client whose Replies have a size that it cannot know before: it offers no memory for the Reply, and it just arrives.
//!
//! ```text
//! any_size serve NAME
//! any_size list NAME COUNT
//! ```
//!
//! Short results go inline. For longer ones the server exposes the Reply where it lies, and the client reads it (reliable reply).
//! Both ends switch it on: the server by `exposed_replies`, the client by `pull_len_max`.

use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use stag::prelude::*;

const PROGRAM: u32 = 0x2000_7a65;

/// Octets of the longest Reply.
const REPLY_LEN_MAX: u32 = 4 << 20;

/// Entries of the longest list.
const COUNT_MAX: u32 = 100_000;

/// `entry list(unsigned int)<>`: no bound that a client could know.
static LIST: Procedure = Procedure::plain("LIST");

/// The program: version 1, whose procedure 1 lists the requested number of names.
struct Names;

impl Service for Names {
    fn program(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        (1, 1)
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<&'static Procedure> {
        (procedure == 1).then_some(&LIST)
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        match call.arguments().u32() {
            Ok(count) if count <= COUNT_MAX => reply.success(|writer| {
                writer.u32(count)?;
                (0..count).try_for_each(|number| writer.opaque(format!("entry {number}").as_bytes()))
            }),
            _ => reply.garbage_arguments(),
        }
        Outcome::Done
    }
}

fn serve(name: &str) -> Result<(), Box<dyn Error>> {
    let config = EngineConfig {
        // At most this number at once for each client; more wait until one was read.
        exposed_replies: 4,
        exposed_len_max: REPLY_LEN_MAX,
        ..EngineConfig::default()
    };
    let memory = Memory::new(&config, 4 * REPLY_LEN_MAX as usize)?;
    let mut fabric = Shm::open(ShmConfig { may_sleep: true, ..ShmConfig::default() })?;
    fabric.register(&memory.arena)?;
    let mut engine = Engine::new(fabric, (Names,), memory.pools, config, 1)?;
    engine.listen(name)?;
    println!("ready: shm://{name}");
    let stop = StopFlag::new()?;
    let _ = Reactor::new(ReactorConfig::default(), Clock::start())?.run(&mut engine, &stop)?;
    Ok(())
}

fn list(name: &str, count: u32) -> Result<(), Box<dyn Error>> {
    // What is longer than that is not read, and fails its Call.
    let config = EngineConfig { pull_len_max: REPLY_LEN_MAX, ..EngineConfig::default() };
    let memory = Memory::new(&config, 2 * REPLY_LEN_MAX as usize)?;
    let mut fabric = Shm::open(ShmConfig::default())?;
    fabric.register(&memory.arena)?;
    let seed = RandomState::new().hash_one(0) as u32;
    let mut engine = Engine::new(fabric, (), memory.pools, config, seed)?;
    let clock = Clock::start();
    let connection = engine.connect(name)?;
    loop {
        engine.poll(clock.now());
        match engine.connection_event() {
            Some(ConnectionEvent::Established { .. }) => break,
            Some(event) => return Err(format!("shm://{name}: {event}").into()),
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
        // The size is unknown. With a server that does not expose Replies, the engine offers the longest Reply chunk there is
        // instead.
        results_len_max: u32::MAX,
        retransmit: true,
        reply_mode: ReplyMode::Responder,
    };
    engine.call(connection, &request, &mut Chunks::default(), |writer| writer.u32(count))?;
    loop {
        engine.poll(clock.now());
        if let Some(done) = engine.completed() {
            let results = done.result?;
            let mut reader = Reader::new(results.bytes());
            let mut last = String::new();
            let found = reader.u32()?;
            for _ in 0..found {
                last = String::from_utf8_lossy(reader.opaque(100)?).into_owned();
            }
            let way = match engine.statistics().replies_pulled {
                0 => "inline",
                _ => "read of the server's memory",
            };
            println!("{found} entries, the last one {last:?}, in {} octets, {way}", results.bytes().len());
            return Ok(());
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", name] => serve(name),
        ["list", name, count] => list(name, count.parse()?),
        _ => Err("serve NAME, or list NAME COUNT".into()),
    }
}
