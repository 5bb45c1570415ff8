//! The cost of a message in the shm provider's own code: two providers in one thread, 64 octets from one to
//! the other, through the fabric trait. No line moves between cores here; `stag perf` measures that.

use std::collections::VecDeque;
use std::error::Error;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use stag_fabric::{
    Completed, Completion, Event, Provider, QueuePairCapacity, QueuePairId, SendRequest, Shm, ShmConfig,
};
use stag_memory::{Arena, ArenaConfig, Budget, PageChoice, Pool};

const MESSAGE_LEN: usize = 64;
const DEPTH_MAX: u32 = 32;
const CAPACITY: QueuePairCapacity = QueuePairCapacity {
    receives: DEPTH_MAX,
    sends: DEPTH_MAX,
    exposures: 1,
    send_len_max: 1024,
    receive_len_max: 1024,
    receive_targets: 0,
};

/// One provider with its memory.
struct Side {
    shm: Shm,
    messages: Pool,
    completions: VecDeque<Completion>,
    pair: Option<QueuePairId>,
}

impl Side {
    fn new() -> Result<Side, Box<dyn Error>> {
        let budget = Budget::new(16 << 20);
        let len = 4 << 20;
        let arena = Arena::new(&ArenaConfig {
            name: "bench",
            len,
            page: PageChoice::Auto,
            node: None,
            budget: &budget,
        })?;
        let messages = Pool::fixed(&arena, "messages", 1024, 256)?;
        let mut shm = Shm::open(ShmConfig::default())?;
        shm.register(&arena)?;
        Ok(Side { shm, messages, completions: VecDeque::with_capacity(128), pair: None })
    }

    fn post_receives(&mut self, pair: QueuePairId) {
        for _ in 0..CAPACITY.receives {
            let buf = self.messages.take().expect("there are enough");
            self.shm.post_receive(pair, 0, buf).expect("within the capacity");
        }
    }

    /// Looks at connections as they are made.
    fn set_up(&mut self, now: Duration) -> bool {
        self.shm.poll(now, &mut self.completions, 16);
        match self.shm.poll_event() {
            Some(Event::ConnectRequest { request, .. }) => {
                let pair = self.shm.prepare(request, CAPACITY).expect("one queue pair fits");
                self.post_receives(pair);
                self.shm.accept(pair, b"").expect("just prepared");
                false
            }
            Some(Event::Established { queue_pair, .. }) => {
                self.pair = Some(queue_pair);
                true
            }
            Some(other) => panic!("{other:?}"),
            None => false,
        }
    }

    fn send(&mut self, count: u32) {
        let pair = self.pair.expect("connected");
        for _ in 0..count {
            let mut buf = self.messages.take().expect("there are enough");
            buf.set_len(MESSAGE_LEN);
            let request = SendRequest { id: 0, buf, invalidate: None, signaled: false };
            self.shm.post_send(pair, request).expect("within the capacity");
        }
        self.shm.ring_doorbells();
    }

    /// Takes in `count` messages, and posts their Receives again.
    fn receive(&mut self, count: u32) -> usize {
        let (mut left, mut octets) = (count, 0);
        while left > 0 {
            // Time stands still: the sockets are looked at by count.
            self.shm.poll(Duration::ZERO, &mut self.completions, DEPTH_MAX as usize);
            for completion in self.completions.drain(..) {
                let Completed::Receive { buf, .. } = completion.completed else { continue };
                octets += buf.len();
                left -= 1;
                self.shm.post_receive(completion.queue_pair, 0, buf).expect("it was just received");
            }
        }
        octets
    }
}

fn connect() -> Result<(Side, Side), Box<dyn Error>> {
    let name = format!("bench-ring-{}", std::process::id());
    let (mut client, mut server) = (Side::new()?, Side::new()?);
    server.shm.listen(&name)?;
    let pair = client.shm.connect(&name, b"", CAPACITY)?;
    client.post_receives(pair);
    let (mut now, mut ready) = (Duration::ZERO, 0);
    while ready < 2 {
        now += Duration::from_micros(50);
        ready += u32::from(client.set_up(now)) + u32::from(server.set_up(now));
        if now > Duration::from_secs(3600) {
            return Err("the two sides do not connect".into());
        }
    }
    Ok((client, server))
}

/// One message, and a batch of them behind one doorbell.
fn messages(criterion: &mut Criterion) {
    let (mut client, mut server) = connect().expect("shared memory");
    let mut group = criterion.benchmark_group("ring");
    for depth in [1, 8, DEPTH_MAX] {
        group.throughput(Throughput::Elements(depth.into()));
        group.bench_function(format!("64 octets, {depth} behind a doorbell"), |b| {
            b.iter(|| {
                client.send(depth);
                server.receive(depth)
            });
        });
    }
    group.finish();
}

criterion_group!(benches, messages);
criterion_main!(benches);
