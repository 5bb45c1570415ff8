//! Requester and Responder, joined by queues and a made-up fabric, through random lives from a seed.
//!
//! What is checked all the way: every Call arrives whole, however it was cut; every Reply is the Call's own;
//! each Call ends once; a Send always finds a posted Receive; nothing stays exposed, no credit is lost.

mod client;
mod memory;
mod program;
mod server;

use std::collections::VecDeque;

use stag_proto::parameters::Parameters;

use crate::support::{Random, parameters};
use client::Client;
use memory::Memory;
use server::Server;

/// What travels between the two, in order.
#[derive(Debug, Default)]
struct Link {
    /// Sends of the client.
    calls: VecDeque<Vec<u8>>,
    /// Sends of the server, and the handle that each invalidates.
    replies: VecDeque<(Vec<u8>, Option<u32>)>,
    /// What the client exposes to the server.
    memory: Memory,
}

/// What a run is allowed to do to itself.
#[derive(Clone, Copy, Debug)]
struct Faults {
    cancel: bool,
    disconnect: bool,
}

/// What a run did, so that a test can see that it was not idle.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    replied: u32,
    refused: u32,
    cancelled: u32,
    long_calls: u32,
    long_replies: u32,
    read_chunks: u32,
    write_chunks: u32,
    invalidated: u32,
    access_errors: u32,
    lost: u32,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.replied += other.replied;
        self.refused += other.refused;
        self.cancelled += other.cancelled;
        self.long_calls += other.long_calls;
        self.long_replies += other.long_replies;
        self.read_chunks += other.read_chunks;
        self.write_chunks += other.write_chunks;
        self.invalidated += other.invalidated;
        self.access_errors += other.access_errors;
        self.lost += other.lost;
    }
}

fn random_parameters(random: &mut Random) -> Parameters {
    let mut threshold = || [1024, 1024, 2048, 4096][random.below(4) as usize];
    let (call, reply) = (threshold(), threshold());
    parameters(call, reply, !random.once_in(3))
}

/// One connection's life.
fn run(seed: u64, steps: u32, faults: Faults) -> Counts {
    let mut random = Random::new(seed);
    let parameters = random_parameters(&mut random);
    let slots = 1 + random.below(8);
    let mut link = Link::default();
    let mut client = Client::new(&mut random, slots, parameters);
    let mut server = Server::new(&mut random, slots, parameters);

    for _ in 0..steps {
        let alive = match random.below(8) {
            0 | 1 => client.start_call(&mut random, &mut link),
            2 | 3 => server.receive(&mut link),
            4 => {
                let alive = server.work(&mut random, &mut link);
                client.counts.access_errors += u32::from(!alive);
                alive
            }
            5 => client.receive(&mut random, &mut link),
            6 => client.fence(&mut random, &mut link),
            _ => {
                if faults.cancel && random.once_in(4) {
                    client.cancel(&mut random);
                }
                server.change_credits(&mut random);
                !(faults.disconnect && random.once_in(50))
            }
        };
        client.check();
        server.check();
        if !alive {
            server.disconnect();
            client.disconnect(&mut link);
            return client.counts;
        }
    }
    // Let all that began come to its end.
    for _ in 0..100_000 {
        if client.is_idle() && server.is_idle() && link.calls.is_empty() && link.replies.is_empty() {
            break;
        }
        let alive = server.receive(&mut link)
            && server.work(&mut random, &mut link)
            && client.receive(&mut random, &mut link)
            && client.fence(&mut random, &mut link);
        if !alive {
            server.disconnect();
            client.disconnect(&mut link);
            return client.counts;
        }
    }
    assert!(client.is_idle() && server.is_idle(), "it comes to rest");
    assert!(link.memory.is_empty(), "nothing stays exposed");
    client.check_at_rest();
    client.counts
}

fn sweep(seeds: std::ops::Range<u64>, faults: Faults) -> Counts {
    let mut all = Counts::default();
    for seed in seeds {
        let result = std::panic::catch_unwind(|| run(seed, 600, faults));
        match result {
            Ok(counts) => all += counts,
            Err(panic) => {
                eprintln!("seed {seed}, {faults:?}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    all
}

#[test]
fn every_call_is_answered_with_its_own_data() {
    // 8166-2.3.2-e 8166-3.4.1-a 8166-3.4.5-b 8166-3.4.5.2-a 8166-3.4.6-b 8166-3.5.3-g 8166-3.3.1-b 8166-3.3.1-d
    // 8166-4.4.1-a 8797-4.1-b
    let counts = sweep(0..150, Faults { cancel: false, disconnect: false });
    assert!(counts.replied > 1000, "{counts:?}");
    assert_eq!((counts.refused, counts.cancelled, counts.access_errors, counts.lost), (0, 0, 0, 0));
    for (what, count) in [
        ("Long Calls", counts.long_calls),
        ("Long Replies", counts.long_replies),
        ("Read chunks", counts.read_chunks),
        ("Write chunks", counts.write_chunks),
        ("remote invalidations", counts.invalidated),
    ] {
        assert!(count > 50, "{what}: {counts:?}");
    }
}

#[test]
fn cancelled_calls_are_fenced_and_their_credits_come_back() {
    // 8166-4.4.1-b
    let counts = sweep(1000..1150, Faults { cancel: true, disconnect: false });
    assert!(counts.cancelled > 100 && counts.replied > 500, "{counts:?}");
    // A Responder that is still at work on a fenced Call hits the fence, and the connection ends.
    assert!(counts.access_errors > 10 && counts.lost > 10, "{counts:?}");
}

#[test]
fn the_connection_may_end_at_any_step() {
    // 8166-4.5.3-a
    let counts = sweep(2000..2200, Faults { cancel: true, disconnect: true });
    assert!(counts.lost > 100 && counts.replied > 300, "{counts:?}");
}
