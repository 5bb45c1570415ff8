//! A custom RPC program, server side: answers with what it was sent. Run it, then `echo_client`.
//!
//! ```text
//! cargo run -p stag --example echo_server
//! ```

use stag::prelude::*;

const PROGRAM: u32 = 0x2000_7a60;
const TEXT_LEN_MAX: u32 = 1024;

/// The program: version 1 has one procedure, number 1, `opaque echo(opaque)`.
struct Echo;

static ECHO: Procedure = Procedure::plain("ECHO");

impl Service for Echo {
    fn program(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        (1, 1)
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<&'static Procedure> {
        (procedure == 1).then_some(&ECHO)
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        match call.arguments().opaque(TEXT_LEN_MAX) {
            Ok(text) => reply.success(|writer| writer.opaque(text)),
            Err(_) => reply.garbage_arguments(),
        }
        Outcome::Done
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "echo".into());
    let config = EngineConfig::default();
    let memory = Memory::new(&config, 4 << 20)?;
    let mut shm = Shm::open(ShmConfig { may_sleep: true, ..ShmConfig::default() })?;
    shm.register(&memory.arena)?;
    let mut engine = Engine::new(shm, (Echo,), memory.pools, config, 1)?;
    engine.listen(&name)?;
    println!("ready: shm://{name}");

    // Until the process is ended by a signal.
    let stop = StopFlag::new()?;
    let stopped = Reactor::new(ReactorConfig::default(), Clock::start())?.run(&mut engine, &stop)?;
    println!("{:?}, {}", stopped.drained, memory.ledger);
    Ok(())
}
