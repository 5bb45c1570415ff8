//! A custom RPC program, client side: sends its arguments to `echo_server` and prints the Reply.
//!
//! ```text
//! cargo run -p stag --example echo_client echo some words
//! ```

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use stag::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_else(|| "echo".into());
    let text = words.reduce(|text, word| text + " " + &word).unwrap_or_else(|| "hello".into());
    let config = EngineConfig::default();
    let memory = Memory::new(&config, 4 << 20)?;
    let mut shm = Shm::open(ShmConfig::default())?;
    shm.register(&memory.arena)?;
    let seed = RandomState::new().hash_one(0) as u32;
    let mut engine = Engine::new(shm, (), memory.pools, config, seed)?;
    let clock = Clock::start();

    let connection = engine.connect(&name)?;
    loop {
        engine.poll(clock.now());
        match engine.connection_event() {
            Some(ConnectionEvent::Established { .. }) => break,
            Some(event) => return Err(format!("{name}: {event}").into()),
            None => {}
        }
    }
    let request = Request {
        program: 0x2000_7a60,
        version: 1,
        procedure: 1,
        credentials: Credentials::None,
        user: 0,
        timeout: Duration::from_secs(5),
        results_len_max: 4 + 1024,
        retransmit: true,
        reply_mode: ReplyMode::Auto,
    };
    engine.call(connection, &request, &mut Chunks::default(), |writer| writer.opaque(text.as_bytes()))?;
    loop {
        engine.poll(clock.now());
        if let Some(done) = engine.completed() {
            let results = done.result?;
            let text = Reader::new(results.bytes()).opaque(1024)?;
            println!("{}", String::from_utf8_lossy(text));
            return Ok(());
        }
    }
}
