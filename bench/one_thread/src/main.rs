//! Calls with client and server in one thread, polled in turns, to count instructions. `bench/instructions.sh` runs it:
//!
//! `valgrind --tool=callgrind target/release/one_thread shm|iwarp|verbs|tcp COUNT DEPTH [KIND [IDLE [LENGTH]]]`. With `--collect-atstart=no`,
//! `--zero-before='*counted_from_here*'` and `--toggle-collect='*client_turn*'` (or `'*server_turn*'`), the total is what COUNT
//! Calls cost at that end, after a warm-up.
//!
//! | KIND | Call |
//! |---|---|
//! | `null` | NULL of a program that has no other procedure |
//! | `get`, `put` | a Call with a Write chunk of 4 KiB, and one with a Read chunk |
//! | `getattr`, `read`, `write` | NFS on a file of a `mem:` export: 4 KiB by chunk, WRITE as UNSTABLE |
//!
//! `KIND+carried`, for all but `null`: the server is two reactors. Calls come in at one and are executed at the other, and a turn
//! of the server is a pass of the first, one of the second, and one more of the first. So the sum is that of both.
//!
//! `KIND+second`: both ends speak version 2, with data in the messages.
//!
//! `KIND+recorded`: the server records the last 1024 messages. `getattr+observed`: it counts Calls and times late ones.
//!
//! `KIND+both`: the server has called the client on the same connection before (RFC 8167).
//!
//! IDLE more connections carry no Call: their cost for a pass shows against a run without. READ and WRITE are of LENGTH octets
//! (4096).
//!
//! `iwarp` runs over the loopback: what the kernel executes is not in the sum.
//!
//! At its end it prints how much processor time a Call took at each end, the kernel's included.
//!
//! `tcp` is RPC over TCP, NULL alone: a socket calls, so there is no client's turn.
//!
//! `verbs` runs over libraries that do nothing, those of the fabric's tests: subtract the functions of their table, and no
//! instruction of a device's library is in the sum. `one_thread device COUNT DEPTH ADDRESS PAUSE` runs over this machine's RDMA
//! device with that address; there a turn may find nothing. PAUSE, in microseconds between turns, makes such turns fewer.

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use stag_fabric::iwarp::{Iwarp, IwarpConfig};
use stag_fabric::verbs::{Verbs, VerbsConfig};
use stag_fabric::{Provider, Shm, ShmConfig};
use stag_rpc::{
    CARRIED_CALLS_MAX, CallMesh, ConnectionEvent, ConnectionId, Engine, EngineConfig, Memory,
    PlacementChoice, ProtocolChoice, Services,
};
use stag_runtime::{Clock, Poller, ReactorId};

mod ends;
#[path = "../../../engine/fabric/tests/fake/mod.rs"]
mod fake;
mod kinds;
mod kinds4;
mod load;
mod tcp;

use ends::{Ends, Kind, Place};
use kinds::{Chunked, File, NfsCall, Null, Watched};
use kinds4::File4;
use load::{Load, PAYLOAD_LEN, WARM_UP, Way, counted_from_here, say, thread_time};

/// Completions of an idle connection's queue pair, at most.
const COMPLETIONS: u32 = 2048;

/// Receives that the server has for each idle connection.
const RECEIVES_IDLE: u32 = 4;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let kind = words.get(3).copied().unwrap_or("null");
    let data_len = words.get(5).map(|word| word.parse()).transpose()?;
    match kind.split('+').next().unwrap_or(kind) {
        _ if words.first() == Some(&"device") => run(&words, Null),
        "null" => run(&words, Null),
        "get" => run(&words, Chunked::get()),
        "put" => run(&words, Chunked::put()),
        "getattr" if kind.ends_with("+observed") => {
            run(&words, Watched(File::new(NfsCall::Getattr, data_len)))
        }
        "getattr" => run(&words, File::new(NfsCall::Getattr, data_len)),
        "read" => run(&words, File::new(NfsCall::Read, data_len)),
        "write" => run(&words, File::new(NfsCall::Write, data_len)),
        "getattr4" => run(&words, File4::new(NfsCall::Getattr, data_len)),
        "read4" => run(&words, File4::new(NfsCall::Read, data_len)),
        "write4" => run(&words, File4::new(NfsCall::Write, data_len)),
        _ => usage(),
    }
}

fn usage() -> Result<()> {
    bail!(
        "one_thread shm|iwarp|verbs|tcp COUNT DEPTH [null|KIND|KIND+carried|KIND+second|KIND+recorded|getattr+observed|KIND+both [IDLE [LENGTH]]] with a KIND of get, put, getattr, read or write, getattr4, read4 or write4 without +, tcp only null; or device COUNT DEPTH ADDRESS PAUSE"
    )
}

fn run(words: &[&str], kind: impl Kind) -> Result<()> {
    let number = |at: usize, default: u64| words.get(at).map_or(Ok(default), |word| word.parse());
    let (count, depth) = (number(1, 100_000)?, number(2, 1)?);
    let load = Load {
        count,
        depth,
        pause: Duration::ZERO,
        idle: 0,
        way: words.get(3).map_or(Way::Plain, |kind| Way::of(kind)),
    };
    let load = if words[0] == "device" { load } else { Load { idle: number(4, 0)?.try_into()?, ..load } };
    // One more of each than connections, so that no connection waits for a slot.
    let queue_pairs = load.idle + 2;
    let completions = 8192 + load.idle * COMPLETIONS;
    let config = VerbsConfig { completions, queue_pairs: queue_pairs.max(64), ..VerbsConfig::default() };
    match words[0] {
        "shm" => {
            let config = ShmConfig { completions, queue_pairs, ..ShmConfig::default() };
            let open = || Shm::open(config.clone());
            let providers = [open()?, open()?, open()?];
            calls(providers, &format!("one-thread-{}", std::process::id()), load, kind)
        }
        "iwarp" => {
            // A port that was free a moment ago.
            let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
            let config = IwarpConfig { completions, queue_pairs, ..IwarpConfig::default() };
            let open = || Iwarp::open(config);
            calls([open()?, open()?, open()?], &address, load, kind)
        }
        "verbs" => {
            // Whatever was posted is done at the next poll, so that Calls outstanding at once share a pass.
            fake::with(|world| world.requests_per_poll = 256);
            // SAFETY: the table is of functions that do what libibverbs' and librdmacm's do.
            let open = || unsafe { Verbs::open_with(&fake::FAKE, config.clone()) };
            calls([open()?, open()?, open()?], "127.0.0.1:20049", load, kind)
        }
        "tcp" => tcp::calls(load),
        "device" => {
            let open = || Verbs::open(config.clone());
            let load = Load { pause: Duration::from_micros(number(4, 0)?), ..load };
            calls([open()?, open()?, open()?], words.get(3).copied().unwrap_or_default(), load, kind)
        }
        _ => usage(),
    }
}

fn calls<P: Provider>(mut providers: [P; 3], address: &str, load: Load, mut kind: impl Kind) -> Result<()> {
    let (connections_max, receives_max) = (1 + load.idle, 80 + RECEIVES_IDLE * load.idle);
    let (protocol, placement) = match load.way == Way::Second {
        true => (ProtocolChoice::Auto, PlacementChoice::Send),
        false => (ProtocolChoice::One, PlacementChoice::Auto),
    };
    let reverse_credits = if load.way == Way::Both { 4 } else { 0 };
    let config = EngineConfig {
        connections_max,
        receives_max,
        protocol,
        placement,
        reverse_credits,
        ..EngineConfig::default()
    };
    let mut memory = [
        Memory::new(&config, PAYLOAD_LEN)?,
        Memory::new(&config, PAYLOAD_LEN)?,
        Memory::new(&config, PAYLOAD_LEN)?,
    ];
    memory[2].pools.payload = memory[2].pools.payload.clone().owned_by(1);
    for (provider, memory) in providers.iter_mut().zip(&memory) {
        provider.register(&memory.arena)?;
    }
    // The entry sends what lies in the home's memory.
    providers[1].register(&memory[2].arena)?;
    let [client, server, home] = providers;
    let mut client = Engine::new(client, (), memory[0].pools.clone(), config, 1)?;
    let (entry, mut home) = match load.way == Way::Carried {
        true => {
            let services = kind.services(&memory[2], Place::Home)?;
            (Place::Entry, Some(Engine::new(home, services, memory[2].pools.clone(), config, 1)?))
        }
        false => (Place::Alone, None),
    };
    let services = kind.services(&memory[1], entry)?;
    let mut server = Engine::new(server, services, memory[1].pools.clone(), config, 1)?;
    if load.way == Way::Recorded {
        server.record(1024, |_| {});
    }
    if let Some(home) = &mut home {
        let mesh = CallMesh::new(2, CARRIED_CALLS_MAX);
        for (index, engine) in [&mut server, home].into_iter().enumerate() {
            let lanes = ReactorId::new(index).and_then(|own| mesh.take(own));
            engine.join(lanes.context("a group of two")?, None);
        }
    }
    server.listen(address)?;
    let clock = Clock::start();
    let connection = connect(&mut client, &mut server, address, &clock)?;
    for _ in 0..load.idle {
        connect(&mut client, &mut server, address, &clock)?;
    }
    let mut ends = Ends { client, server, home, connection, now: clock.now() };
    kind.prepare(&mut ends)?;
    if load.way == Way::Both {
        ends.call_back()?;
    }

    let Load { count, depth, pause, .. } = load;
    let (mut begun, mut ended, mut passes) = (0, 0, 0);
    let mut counted_from = None;
    let mut used = [0; 2];
    while ended < WARM_UP + count {
        // All Calls that may be outstanding are: a pass that is counted ends as many Calls as it begins.
        if counted_from.is_none() && ended >= WARM_UP {
            counted_from = Some(ended);
            (passes, used) = (0, [0; 2]);
            counted_from_here();
        }
        passes += 1;
        ends.now += Duration::from_micros(1);
        let start = thread_time();
        client_turn(&mut ends, &mut kind, depth, &mut begun, &mut ended)?;
        let middle = thread_time();
        wait(pause);
        let again = thread_time();
        server_turn(&mut ends);
        used = [used[0] + middle - start, used[1] + thread_time() - again];
        wait(pause);
    }
    let counted = ended - counted_from.unwrap_or_default();
    while ended < begun {
        ends.pass();
        while let Some(done) = ends.client.completed() {
            kind.end(done)?;
            ended += 1;
        }
    }
    say(counted, passes, used);
    Ok(())
}

/// Connects, and waits until that is done: a device takes its time.
fn connect<P: Provider, S: Services>(
    client: &mut Engine<P, ()>,
    server: &mut Engine<P, S>,
    address: &str,
    clock: &Clock,
) -> Result<ConnectionId> {
    let connection = client.connect(address)?;
    loop {
        client.poll(clock.now());
        server.poll(clock.now());
        match client.connection_event() {
            Some(ConnectionEvent::Established { .. }) => return Ok(connection),
            Some(event) => bail!("{address}: {event:?}"),
            None => {}
        }
    }
}

fn wait(time: Duration) {
    if !time.is_zero() {
        thread::sleep(time);
    }
}

/// A pass of the Requester: what was answered, and new Calls in its place.
#[inline(never)]
fn client_turn<P: Provider, K: Kind>(
    ends: &mut Ends<P, K::Services>,
    kind: &mut K,
    depth: u64,
    begun: &mut u64,
    ended: &mut u64,
) -> Result<()> {
    let client = &mut ends.client;
    client.poll(ends.now);
    while let Some(done) = client.completed() {
        kind.end(done)?;
        *ended += 1;
    }
    while *begun - *ended < depth && client.credits_available(ends.connection) > 0 {
        kind.begin(client, ends.connection, *begun)?;
        *begun += 1;
    }
    client.ring_doorbells();
    Ok(())
}

/// A pass of the Responder.
#[inline(never)]
fn server_turn<P: Provider, S: Services>(ends: &mut Ends<P, S>) {
    ends.serve();
}
