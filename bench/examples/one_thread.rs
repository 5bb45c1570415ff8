//! Calls with client and server in one thread, polled in turns, to count instructions. What `bench/instructions.sh` runs:
//!
//! `valgrind --tool=callgrind target/release/examples/one_thread shm|verbs COUNT DEPTH [null|get|put]`, for two COUNTs; the
//! difference of the totals by the difference of the COUNTs is what one Call costs at both ends together, or at one of them with
//! `--toggle-collect='*client_turn*'` or `'*server_turn*'`. `get` has a Write chunk of 4 KiB, `put` a Read chunk, `null` none.
//!
//! `verbs` is over libraries of nothing, those of the fabric's tests: what a device's library would execute is not in the sum
//! when the table's functions are taken off. `one_thread device COUNT DEPTH ADDRESS PAUSE` is over this machine's RDMA device, whose
//! address that is; there a turn may find nothing. PAUSE, in microseconds between turns, makes such turns fewer.

use std::thread;
use std::time::Duration;

use anyhow::Context;
use stag::fabric::verbs::{Verbs, VerbsConfig};
use stag::nfs::client::{Null, Target};
use stag::prelude::*;
use stag::wire::xdr::Item;

#[path = "../../engine/fabric/tests/fake/mod.rs"]
mod fake;

const PROGRAM: u32 = 100_003;

/// Octets of a chunk.
const DATA_LEN: u32 = 4096;

/// What is called: how a Call begins, and who answers it. A type, so that a NULL Call is counted without what the others need.
trait Calls: Copy {
    type Service: Service;
    fn service(self, data: Shared) -> Self::Service;
    fn begin<P: Provider>(
        self,
        client: &mut Engine<P, ()>,
        target: &Target,
        data: &Shared,
        user: u64,
    ) -> anyhow::Result<()>;
}

impl Calls for Null {
    type Service = Nothing;

    fn service(self, _: Shared) -> Nothing {
        Nothing
    }

    fn begin<P: Provider>(
        self,
        client: &mut Engine<P, ()>,
        target: &Target,
        _: &Shared,
        user: u64,
    ) -> anyhow::Result<()> {
        target.begin(client, &self, &mut Chunks::default(), user)?;
        Ok(())
    }
}

struct Nothing;

impl Service for Nothing {
    fn program(&self) -> u32 {
        PROGRAM
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

/// Calls with a chunk: `opaque get()` and `void put(opaque)`.
#[derive(Clone, Copy)]
enum Chunked {
    Get,
    Put,
}

impl Calls for Chunked {
    type Service = Object;

    fn service(self, data: Shared) -> Object {
        Object(data)
    }

    fn begin<P: Provider>(
        self,
        client: &mut Engine<P, ()>,
        target: &Target,
        data: &Shared,
        user: u64,
    ) -> anyhow::Result<()> {
        let (procedure, mut chunks) = match self {
            Chunked::Get => {
                let buf = client.pools().payload.take_len(DATA_LEN as usize);
                (1, Chunks::write(buf.context("no memory")?))
            }
            Chunked::Put => (2, Chunks::read(data.clone())),
        };
        let request = Request {
            program: PROGRAM,
            version: 3,
            procedure,
            credentials: target.credentials,
            user,
            timeout: target.timeout,
            results_len_max: 4,
            retransmit: true,
        };
        client.call(target.connection, &request, &mut chunks, |writer| match self {
            Chunked::Get => Ok(()),
            Chunked::Put => writer.eligible_opaque_reduced(DATA_LEN).map(drop),
        })?;
        Ok(())
    }
}

/// What is got, and put in its place.
struct Object(Shared);

static GET: Procedure = Procedure { eligible_results: 1, ..Procedure::plain("GET") };
static PUT: Procedure = Procedure { eligible_arguments: 1, ..Procedure::plain("PUT") };

impl Service for Object {
    fn program(&self) -> u32 {
        PROGRAM
    }
    fn versions(&self) -> (u32, u32) {
        (3, 3)
    }
    fn procedure(&self, _: u32, procedure: u32) -> Option<&'static Procedure> {
        [&GET, &PUT].get(procedure.wrapping_sub(1) as usize).copied()
    }
    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        if call.procedure == 1 && reply.item(DATA_LEN) == Placement::Reduced {
            reply.piece(self.0.clone());
            reply.success(|writer| writer.eligible_opaque_reduced(DATA_LEN).map(drop));
        } else if let Ok(Item::Reduced { index, .. }) = call.arguments().eligible_opaque(DATA_LEN)
            && let Some(data) = call.placed(index).pieces.pop()
        {
            self.0 = data.share();
            reply.success(|_| Ok(()));
        } else {
            reply.system_error();
        }
        Outcome::Done
    }
}

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [_, _, _, "get"] => run(&words, Chunked::Get),
        [_, _, _, "put"] => run(&words, Chunked::Put),
        _ => run(&words, Null),
    }
}

fn run(words: &[&str], what: impl Calls) -> anyhow::Result<()> {
    let word = |at: usize| words.get(at).copied().unwrap_or_default();
    let number = |at: usize, default: u64| words.get(at).map_or(Ok(default), |word| word.parse());
    let load = Load { count: number(1, 100_000)?, depth: number(2, 1)?, pause: Duration::ZERO };
    let config = VerbsConfig { completions: 4096, ..VerbsConfig::default() };
    match word(0) {
        "shm" => {
            let open = || Shm::open(ShmConfig::default());
            calls([open()?, open()?], &format!("one-thread-{}", std::process::id()), load, what)
        }
        "verbs" => {
            // SAFETY: the table is of functions that do what libibverbs' and librdmacm's do.
            let open = || unsafe { Verbs::open_with(&fake::FAKE, config.clone()) };
            calls([open()?, open()?], "127.0.0.1:20049", load, what)
        }
        "device" => {
            let open = || Verbs::open(config.clone());
            let load = Load { pause: Duration::from_micros(number(4, 0)?), ..load };
            calls([open()?, open()?], word(3), load, what)
        }
        _ => anyhow::bail!(
            "one_thread shm|verbs COUNT DEPTH [null|get|put], or device COUNT DEPTH ADDRESS PAUSE"
        ),
    }
}

/// Calls in all, outstanding at once, and the time between turns.
#[derive(Clone, Copy)]
struct Load {
    count: u64,
    depth: u64,
    pause: Duration,
}

fn calls<P: Provider>(
    mut providers: [P; 2],
    address: &str,
    load: Load,
    what: impl Calls,
) -> anyhow::Result<()> {
    let config = EngineConfig { connections_max: 1, receives_max: 80, ..EngineConfig::default() };
    let memory = [Memory::new(&config, 1 << 20)?, Memory::new(&config, 1 << 20)?];
    for (provider, memory) in providers.iter_mut().zip(&memory) {
        provider.register(&memory.arena)?;
    }
    let data =
        memory.each_ref().map(|memory| memory.pools.payload.take_len(DATA_LEN as usize).map(Buf::share));
    let [Some(data), Some(object)] = data else { anyhow::bail!("no memory") };
    let [client, server] = providers;
    let mut client = Engine::new(client, (), memory[0].pools.clone(), config, 1)?;
    let mut server = Engine::new(server, (what.service(object),), memory[1].pools.clone(), config, 1)?;
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
        let load = Load { depth: load.depth.min(load.count - begun), ..load };
        client_turn(&mut client, (&target, what, &data), now, load.depth, &mut begun, &mut ended)?;
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
    (target, what, data): (&Target, impl Calls, &Shared),
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
        what.begin(client, target, data, *begun)?;
        *begun += 1;
    }
    client.ring_doorbells();
    Ok(())
}

/// A pass of the Responder.
#[inline(never)]
fn server_turn<P: Provider, S: Service>(server: &mut Engine<P, (S,)>, now: Duration) {
    server.poll(now);
}
