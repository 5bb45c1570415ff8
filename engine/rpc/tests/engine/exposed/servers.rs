//! Servers that expose anything, by seed, against a client's engine that pulls.

use std::collections::BTreeMap;
use std::time::Duration;

use stag_fabric::sim::{FaultPlan, Random, Violations, World, sweep};
use stag_rpc::{Chunks, ClientPolicy, Request};
use stag_wire::reliable_reply::ReliableReply;

use super::{config, unknown};
use crate::ends::Asking;
use crate::raw::{octets, word};
use crate::support::program::ECHO;

const NOMSG: u32 = 1;
const DONE: u32 = 3;

/// Calls of a seed.
const CALLS: u32 = 30;

/// What a server may send for a Call: its octets, the handle that it invalidates, and the xid that it exposes a Reply for.
struct Sent {
    octets: Vec<u8>,
    exposed_for: Option<u32>,
}

/// A message for the Call `xid`, or not for it.
fn anything(asking: &mut Asking, random: &mut Random, xid: u32) -> Sent {
    let of_nobody = random.below(6) == 0;
    let xid = if of_nobody { xid ^ 0x4000 } else { xid };
    let head = |kind: u32| vec![xid, 1, random_grant(xid), kind];
    let mut exposed_for = None;
    let mut found = match random.below(8) {
        0 => octets(&[&head(0)[..], &[0, 0, 0, xid, 1, 0, 0, 0, 0, 1, 7 << 24]].concat()),
        1 => octets(&[&head(4)[..], &[2]].concat()),
        2 => octets(&head(DONE)),
        _ => {
            let mut words = head(NOMSG);
            for _ in 0..random.below(4) {
                // As long as it says, mostly; a handle that is not there ends the connection.
                let len = 24 + 4 * random.below(100) as u32;
                let Some(source) = asking.raw.expose_filled(512, random.below(2) as u8) else { break };
                let handle = if random.below(60) == 0 { source.handle.0 ^ 1 } else { source.handle.0 };
                let position = if random.below(12) == 0 { 4 } else { 0 };
                let len = if random.below(12) == 0 { u32::MAX } else { len };
                words.extend([1, position, handle, len, (source.offset >> 32) as u32, source.offset as u32]);
            }
            // Without a segment it is nothing that is exposed.
            exposed_for = (words.len() > 4).then_some(xid);
            words.extend([0, 0, 0]);
            octets(&words)
        }
    };
    if random.below(6) == 0 {
        let at = random.below(found.len() as u64) as usize;
        found[at] ^= 1 << random.below(8);
        // Whatever it is now: what it may be told of is not known.
        exposed_for = None;
    }
    Sent { octets: found, exposed_for }
}

/// Between no credit at all and more than anybody wants.
fn random_grant(xid: u32) -> u32 {
    [0, 1, 8, u32::MAX][xid as usize % 4]
}

/// RR-X-2, RR-4.1.2-a, RR-4.1.3-c: whatever is exposed, each Call ends once, and only exposed Replies get an RDMA_DONE.
#[test]
fn any_exposed_replies_end_a_connection_at_worst() {
    sweep("any_exposed_replies_end_a_connection_at_worst", 0..60, |seed| {
        let mut random = Random::new(seed);
        let exposes = ReliableReply { pulls: false, exposes: true, done_receives: 4 }.to_wire().to_vec();
        let world = World::new(seed, FaultPlan::default());
        let mut asking = Asking::connected(world, config(), ClientPolicy::default(), exposes);
        let mut told: BTreeMap<u32, u32> = BTreeMap::new();
        let mut exposed: BTreeMap<u32, u32> = BTreeMap::new();
        let mut is_spoilt = false;
        let (mut begun, mut ended) = (0, 0);
        for _ in 0..CALLS {
            let request = Request { timeout: Duration::from_millis(20), ..unknown(ECHO) };
            let (client, connection) = (&mut asking.client.engine, asking.connection);
            begun += u32::from(
                client
                    .call(connection, &request, &mut Chunks::default(), |writer| writer.opaque(b"text"))
                    .is_ok(),
            );
            for _ in 0..random.below(30) {
                asking.pass();
            }
            for message in asking.raw.messages.drain(..).collect::<Vec<_>>() {
                if word(&message, 3) == DONE {
                    *told.entry(word(&message, 0)).or_default() += 1;
                    continue;
                }
                for _ in 0..1 + random.below(2) {
                    let sent = anything(&mut asking, &mut random, word(&message, 0));
                    match sent.exposed_for {
                        Some(xid) => *exposed.entry(xid).or_default() += 1,
                        None => is_spoilt = true,
                    }
                    asking.raw.send(&sent.octets, None);
                }
            }
            if random.below(3) == 0 {
                asking.run_for(Duration::from_millis(25));
            }
            ended += asking.client.done.drain(..).count() as u32;
            if asking.raw.pair.is_none() {
                break;
            }
        }
        asking.run_for(Duration::from_millis(50));
        ended += asking.client.done.drain(..).count() as u32;
        assert_eq!(begun, ended, "each Call ends once");
        for message in asking.raw.messages.drain(..) {
            if word(&message, 3) == DONE {
                *told.entry(word(&message, 0)).or_default() += 1;
            }
        }
        let is_right = |(xid, count): (&u32, &u32)| exposed.get(xid).is_some_and(|most| count <= most);
        assert!(is_spoilt || told.iter().all(is_right), "told of {told:?}, exposed {exposed:?}");
        let violations = asking.world.violations();
        let tolerated =
            Violations { receiver_not_ready: violations.receiver_not_ready, ..Violations::default() };
        asking.close_after(tolerated);
    });
}
