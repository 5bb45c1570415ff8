//! A custom RPC program, server side: returns the arguments of each Call. Run it, then `echo_client`.
//!
//! ```text
//! cargo run -p stag --example echo_server [NAME] [--cores 0,1]
//! ```

use std::error::Error;
use std::time::Duration;

use stag::prelude::*;
use stag::rpc::{CARRIED_CALLS_MAX, EngineGroup};
use stag::runtime::{CoreSet, GroupConfig, GroupMember, ReactorGroup};

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

fn main() -> Result<(), Box<dyn Error>> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let mut cores = vec![None];
    if let Some(at) = words.iter().position(|word| word == "--cores") {
        let list = words.drain(at..).nth(1).ok_or("--cores: which? For example 0,1")?;
        cores = list.parse::<CoreSet>()?.iter().map(Some).collect();
    }
    let name = words.pop().unwrap_or_else(|| "echo".into());

    // One reactor for each core. With several, reactor 0 listens, and connections are spread over all.
    let config = GroupConfig { cores, mode: PollMode::default(), drain_max: Duration::from_secs(5) };
    let reactors = ReactorGroup::new(&config, Clock::start())?;
    let engines = EngineGroup::new(config.cores.len(), CARRIED_CALLS_MAX, 64)?;
    let make = |member: GroupMember| {
        let config = EngineConfig::default();
        let memory = Memory::new(&config, 4 << 20)?.owned_by(member.id());
        let mut shm = Shm::open(ShmConfig { may_sleep: true, ..ShmConfig::default() })?;
        shm.register(&memory.arena)?;
        let mut engine = Engine::new(shm, (Echo,), memory.pools, config, 1)?;
        if member.count() > 1 {
            engine.join_group(&engines, member.id(), Some(member.clone()));
        }
        if member.id().index() == 0 {
            engine.listen(&name)?;
            println!("ready: shm://{name}");
        }
        Ok::<_, Box<dyn Error + Send + Sync>>(engine)
    };

    // Until the process is ended by a signal.
    let stop = StopFlag::new()?;
    reactors
        .run(&stop, make, |_, stopped| println!("{:?}", stopped.drained))
        .map_err(|error| error.to_string())?;
    Ok(())
}
