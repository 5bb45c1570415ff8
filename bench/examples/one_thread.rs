//! NULL Calls with client and server in one thread, polled in turns, to count instructions. What `bench/instructions.sh` runs:
//!
//! `valgrind --tool=callgrind target/release/examples/one_thread shm|verbs COUNT DEPTH`, for two COUNTs; the difference of
//! the totals by the difference of the COUNTs is what one Call costs at both ends together, or at one of them with
//! `--toggle-collect='*client_turn*'` or `'*server_turn*'`.
//!
//! `verbs` is over libraries of nothing, those of the fabric's tests: what a device's library would execute is not in the sum
//! when the table's functions are taken off. `one_thread device COUNT DEPTH ADDRESS PAUSE` is over this machine's RDMA device, whose
//! address that is; there a turn may find nothing. PAUSE, in microseconds between turns, makes such turns fewer.

use std::thread;
use std::time::Duration;

use stag::fabric::verbs::{Verbs, VerbsConfig};
use stag::nfs::client::{Null, Target};
use stag::prelude::*;

#[path = "../../engine/fabric/tests/fake/mod.rs"]
mod fake;

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
    let words: Vec<String> = std::env::args().skip(1).collect();
    let word = |at: usize| words.get(at).map_or("", String::as_str);
    let number = |at: usize, default: u64| words.get(at).map_or(Ok(default), |word| word.parse());
    let load = Load { count: number(1, 100_000)?, depth: number(2, 1)?, pause: Duration::ZERO };
    let config = VerbsConfig { completions: 4096, ..VerbsConfig::default() };
    match word(0) {
        "shm" => {
            let open = || Shm::open(ShmConfig::default());
            calls([open()?, open()?], &format!("one-thread-{}", std::process::id()), load)
        }
        "verbs" => {
            // SAFETY: the table is of functions that do what libibverbs' and librdmacm's do.
            let open = || unsafe { Verbs::open_with(&fake::FAKE, config.clone()) };
            calls([open()?, open()?], "127.0.0.1:20049", load)
        }
        "device" => {
            let open = || Verbs::open(config.clone());
            calls([open()?, open()?], word(3), Load { pause: Duration::from_micros(number(4, 0)?), ..load })
        }
        _ => anyhow::bail!("one_thread shm|verbs COUNT DEPTH, or device COUNT DEPTH ADDRESS PAUSE"),
    }
}

/// Calls in all, outstanding at once, and the time between turns.
#[derive(Clone, Copy)]
struct Load {
    count: u64,
    depth: u64,
    pause: Duration,
}

fn calls<P: Provider>(mut providers: [P; 2], address: &str, load: Load) -> anyhow::Result<()> {
    let config = EngineConfig { connections_max: 1, receives_max: 80, ..EngineConfig::default() };
    let memory = [Memory::new(&config, 1 << 20)?, Memory::new(&config, 1 << 20)?];
    for (provider, memory) in providers.iter_mut().zip(&memory) {
        provider.register(&memory.arena)?;
    }
    let [client, server] = providers;
    let mut client = Engine::new(client, (), memory[0].pools.clone(), config, 1)?;
    let mut server = Engine::new(server, (Nothing,), memory[1].pools.clone(), config, 1)?;
    server.listen(address)?;
    let connection = client.connect(address)?;
    // A device takes its time to connect.
    let clock = Clock::start();
    loop {
        client.poll(clock.now());
        server.poll(clock.now());
        match client.connection_event() {
            Some(ConnectionEvent::Established { .. }) => break,
            Some(event) => anyhow::bail!("{address}: {event:?}"),
            None => {}
        }
    }
    // From here on time goes by in even steps, so that the same is executed each time.
    let mut now = clock.now();
    let target = Target { connection, credentials: Credentials::None, timeout: Duration::from_secs(1) };
    let (mut begun, mut ended, mut passes) = (0, 0, 0);
    while ended < load.count {
        passes += 1;
        now += Duration::from_micros(1);
        client_turn(&mut client, &target, now, load.depth.min(load.count - begun), &mut begun, &mut ended)?;
        pause(load.pause);
        server_turn(&mut server, now);
        pause(load.pause);
    }
    println!("{ended} Calls in {passes} passes");
    Ok(())
}

fn pause(time: Duration) {
    if !time.is_zero() {
        thread::sleep(time);
    }
}

/// A pass of the Requester: what was answered, and new Calls in its place.
#[inline(never)]
fn client_turn<P: Provider>(
    client: &mut Engine<P, ()>,
    target: &Target,
    now: Duration,
    depth: u64,
    begun: &mut u64,
    ended: &mut u64,
) -> anyhow::Result<()> {
    client.poll(now);
    while let Some(done) = client.completed() {
        done.result?;
        *ended += 1;
    }
    while *begun - *ended < depth && client.credits_available(target.connection) > 0 {
        target.begin(client, &Null, &mut Chunks::default(), *begun)?;
        *begun += 1;
    }
    client.ring_doorbells();
    Ok(())
}

/// A pass of the Responder.
#[inline(never)]
fn server_turn<P: Provider>(server: &mut Engine<P, (Nothing,)>, now: Duration) {
    server.poll(now);
}
