//! NULL Calls with client and server in one thread, polled in turns, to count instructions:
//!
//! `valgrind --tool=callgrind target/release/examples/one_thread COUNT DEPTH`, for two COUNTs; the difference of
//! the totals by the difference of the COUNTs is what one Call costs at both ends together.

use std::time::Duration;

use stag::nfs::client::{Null, Target};
use stag::prelude::*;

struct Nothing;

impl Service for Nothing {
    fn program(&self) -> u32 {
        100_003
    }
    fn versions(&self) -> (u32, u32) {
        (3, 3)
    }
    fn procedure(&self, _: u32, _: u32) -> Option<&'static Procedure> {
        None
    }
    fn call(&mut self, _: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        reply.system_error();
        Outcome::Done
    }
}

fn main() -> anyhow::Result<()> {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<u64>());
    let count = numbers.next().transpose()?.unwrap_or(100_000);
    let depth = numbers.next().transpose()?.unwrap_or(1);
    let config = EngineConfig { connections_max: 1, receives_max: 80, ..EngineConfig::default() };
    let memory = [Memory::new(&config, 1 << 20)?, Memory::new(&config, 1 << 20)?];
    let mut shm = [Shm::open(ShmConfig::default())?, Shm::open(ShmConfig::default())?];
    for (shm, memory) in shm.iter_mut().zip(&memory) {
        shm.register(&memory.arena)?;
    }
    let [client, server] = shm;
    let mut client = Engine::new(client, (), memory[0].pools.clone(), config, 1)?;
    let mut server = Engine::new(server, (Nothing,), memory[1].pools.clone(), config, 1)?;
    let name = format!("one-thread-{}", std::process::id());
    server.listen(&name)?;
    let connection = client.connect(&name)?;
    let mut now = Duration::ZERO;
    let mut step = |client: &mut Engine<Shm, ()>, server: &mut Engine<Shm, (Nothing,)>| {
        now += Duration::from_micros(1);
        client.poll(now);
        server.poll(now);
    };
    while client.connection_event().is_none() {
        step(&mut client, &mut server);
    }
    let target = Target { connection, credentials: Credentials::None, timeout: Duration::from_secs(1) };
    let (mut begun, mut ended) = (0, 0);
    while ended < count {
        while begun < count && begun - ended < depth && client.credits_available(connection) > 0 {
            target.begin(&mut client, &Null, &mut Chunks::default(), begun)?;
            begun += 1;
        }
        client.ring_doorbells();
        step(&mut client, &mut server);
        while let Some(done) = client.completed() {
            done.result?;
            ended += 1;
        }
    }
    println!("{ended} Calls");
    Ok(())
}
