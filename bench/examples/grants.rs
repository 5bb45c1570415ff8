//! The cost and benefit of grants: fixed ones beside those of the governor.
//!
//! `grants COUNT governed|CREDITS [CALLS]` opens COUNT connections over shm, both ends in this thread, which run in turn, and
//! makes [`FIRST_CALLS`] NULL Calls on each, one at a time. Then [`BUSY_MAX`] of them (or all, if there are fewer) are busy, each
//! with up to [`DEPTH`] Calls outstanding, until CALLS of them are done (500,000 if it is left out). It prints one line: Calls a
//! second, their median and 99th percentile, the Receives that the server holds at the end, and their memory.
//!
//! A fixed grant has as many Receives as it may need; the governor has four for each connection and 2,048 to share. Compare runs
//! that take turns: the figures of one are those of the machine's other work, too.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use stag::nfs::client::{Null, Target};
use stag::prelude::*;
use stag::rpc::{ConnectionId, CreditPolicy};

#[path = "shared/descriptors.rs"]
mod descriptors;
#[path = "shared/nothing.rs"]
mod nothing;

use descriptors::raise_descriptors;
use nothing::Nothing;

/// Calls on each connection before the busy ones begin.
const FIRST_CALLS: u64 = 4;

/// Connections that are busy.
const BUSY_MAX: usize = 16;

/// Calls outstanding on each of them, if its grant allows.
const DEPTH: u32 = 32;

/// Credits that clients ask for, and the most that the governor grants.
const CREDITS_MAX: u32 = 128;

/// Receives of an engine at most.
const RECEIVES_MAX: u32 = 1 << 20;

/// Octets of payload memory at each end: there is no payload.
const PAYLOAD_LEN: usize = 4 << 20;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(300);

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let usage = "grants COUNT governed|CREDITS [CALLS]";
    let [count, grant, rest @ ..] = &words[..] else { bail!("{usage}") };
    let count: u32 = count.parse().context(usage)?;
    let calls: u64 = rest.first().map_or(Ok(500_000), |word| word.parse()).context(usage)?;
    let base = EngineConfig { inline_threshold: 1024, connections_max: count, ..EngineConfig::default() };
    let server = match grant.as_str() {
        "governed" => EngineConfig {
            credits_max: CREDITS_MAX,
            credit_policy: CreditPolicy::Governed,
            receives_max: 4 * count + 2048,
            ..base
        },
        credits => {
            let credits: u32 = credits.parse().context(usage)?;
            let receives_max = (credits + 1) * count;
            // Half of all is put aside for connections, the other half is shared.
            EngineConfig {
                credits_max: credits,
                credit_policy: CreditPolicy::Fixed,
                receives_max: receives_max.max(2 * count),
                ..base
            }
        }
    };
    raise_descriptors()?;
    let mut pair = Pair::new(server, count)?;
    pair.first_calls()?;
    pair.be_busy(calls)?;
    pair.tell(grant);
    Ok(())
}

/// A server, and the client of all connections.
struct Pair {
    server: Engine<Shm, (Nothing,)>,
    client: Engine<Shm, ()>,
    connections: Vec<ConnectionId>,
    clock: Clock,
    times: Histogram<u64>,
    /// Calls done while connections were busy, and how long that took.
    calls: u64,
    took: Duration,
}

impl Pair {
    fn new(config: EngineConfig, count: u32) -> Result<Pair> {
        let receives_max = (CREDITS_MAX * count).min(RECEIVES_MAX);
        let requests = EngineConfig { credits_max: CREDITS_MAX, receives_max, ..config };
        let queue_pairs = count + 2;
        let open = |completions| Shm::open(ShmConfig { completions, queue_pairs, ..ShmConfig::default() });
        let (mut to_server, mut to_client) =
            (open(config.completions_max())?, open(requests.completions_max())?);
        let memory = [Memory::new(&config, PAYLOAD_LEN)?, Memory::new(&requests, PAYLOAD_LEN)?];
        to_server.register(&memory[0].arena)?;
        to_client.register(&memory[1].arena)?;
        let [served, asking] = memory.map(|memory| memory.pools);
        let mut server = Engine::new(to_server, (Nothing,), served, config, 1)?;
        let address = format!("grants-{}", std::process::id());
        server.listen(&address)?;
        let client = Engine::new(to_client, (), asking, requests, 1)?;
        let times = Histogram::new(3)?;
        let (connections, clock) = (Vec::new(), Clock::start());
        let mut pair = Pair { server, client, connections, clock, times, calls: 0, took: Duration::ZERO };
        for _ in 0..count {
            pair.connect(&address)?;
        }
        Ok(pair)
    }

    fn connect(&mut self, address: &str) -> Result<()> {
        let connection = self.client.connect(address)?;
        loop {
            self.pass();
            match self.client.connection_event() {
                Some(ConnectionEvent::Established { .. }) => break,
                Some(event) => bail!("{event:?}"),
                None => {}
            }
        }
        self.connections.push(connection);
        Ok(())
    }

    fn pass(&mut self) {
        let now = self.clock.now();
        self.client.poll(now);
        self.server.poll(now);
    }

    fn begin(&mut self, connection: ConnectionId) -> Result<()> {
        let target = Target { connection, credentials: Credentials::None, timeout: PATIENCE };
        target.begin(&mut self.client, &Null, &mut Chunks::default(), 0)?;
        Ok(())
    }

    /// A few Calls on each connection, one at a time.
    fn first_calls(&mut self) -> Result<()> {
        for _ in 0..FIRST_CALLS {
            for at in 0..self.connections.len() {
                self.begin(self.connections[at])?;
                self.client.ring_doorbells();
                while self.client.completed().is_none() {
                    self.pass();
                }
            }
        }
        Ok(())
    }

    /// Some connections have as many Calls outstanding as they are granted, up to [`DEPTH`].
    fn be_busy(&mut self, calls: u64) -> Result<()> {
        let step = (self.connections.len() / BUSY_MAX).max(1);
        let busy: Vec<_> = self.connections.iter().copied().step_by(step).take(BUSY_MAX).collect();
        let mut outstanding = vec![0; busy.len()];
        let (mut begun, began) = (0, self.clock.now());
        while self.calls < calls {
            for (connection, outstanding) in busy.iter().zip(&mut outstanding) {
                while *outstanding < DEPTH && begun < calls && self.client.credits_available(*connection) > 0
                {
                    self.begin(*connection)?;
                    *outstanding += 1;
                    begun += 1;
                }
            }
            self.client.ring_doorbells();
            self.pass();
            let now = self.clock.now();
            ensure!(now - began < PATIENCE, "{} of {calls} Calls are done", self.calls);
            while let Some(done) = self.client.completed() {
                self.times.record((now - done.started).as_nanos() as u64)?;
                let at = busy.iter().position(|busy| *busy == done.call.connection).context("it is busy")?;
                outstanding[at] -= 1;
                self.calls += 1;
            }
        }
        self.took = self.clock.now() - began;
        Ok(())
    }

    fn tell(&self, grant: &str) {
        let (held, _) = self.server.receives_held();
        let memory = u64::from(held) * self.server.config().message_len() as u64;
        println!(
            "{} connections, {grant}: {:.0} Calls/s, median {:.1?}, 99th percentile {:.1?}; {held} Receives, {:.1} MiB",
            self.connections.len(),
            self.calls as f64 / self.took.as_secs_f64(),
            Duration::from_nanos(self.times.value_at_quantile(0.5)),
            Duration::from_nanos(self.times.value_at_quantile(0.99)),
            memory as f64 / f64::from(1 << 20),
        );
    }
}
