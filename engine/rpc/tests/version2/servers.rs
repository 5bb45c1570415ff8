//! Servers that announce version 2 and then send anything, by seed, against a client's engine.

use std::time::Duration;

use stag_fabric::sim::{FaultPlan, Random, Violations, World, sweep};
use stag_proto::layout::ReceiveLayout;
use stag_proto::version2::OwnCharacteristics;
use stag_rpc::{CallError, Chunks, ClientPolicy, ConnectionEvent, EngineConfig, PlacementChoice, Request};
use stag_wire::rpcrdma2::{
    Continuation, Elements, ItemPlace, MessageType, OptionalOperation, PlacedItem, ResponseTransmission,
    option,
};
use stag_wire::xdr::{Item, Reader};

use crate::ends::Asking;
use crate::raw::{octets, word};
use crate::support::program::{BIG, ECHO, GET_ONE, PUT_ONE, pattern};
use crate::support::{request_for, small};

/// Octets of the head of the engine's Receives.
const HEAD: usize = 1024;
const ERROR: u32 = 4;
/// The same as they are.
const OWN_HEAD: usize = 384;

/// Turns of a seed.
const TURNS: u32 = 40;

/// A Reply to a Call without results.
fn reply(xid: u32, version: u32, grant: u32) -> Vec<u8> {
    let direction: &[u32] = if version == 2 { &[1] } else { &[] };
    octets(&[&[xid, version, grant, 0], direction, &[0, 0, 0, xid, 1, 0, 0, 0, 0]].concat())
}

fn message(operation: &OptionalOperation<'_>, direction: MessageType, xid: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 2048];
    let (len, _) = operation.emit(&mut out, direction, xid, 8).expect("there is room");
    out.truncate(len);
    out.extend(payload);
    out
}

/// What a server tells of itself.
fn characteristics(random: &mut Random) -> Vec<u8> {
    let layout = match random.below(3) {
        0 => ReceiveLayout::plain(4096),
        1 => ReceiveLayout::with_targets(1024, 2, 4096, 4096),
        _ => ReceiveLayout::with_targets(random.below(2000) as u32, 1 + random.below(8) as u32, 4096, 4096),
    };
    let own = OwnCharacteristics {
        layout,
        send_len_max: 4096,
        request_limit: random.below(9) as u32,
        response_limit: random.below(9) as u32,
        response_receives: 0,
        reverse_support: Default::default(),
    };
    let mut out = vec![0; 512];
    let len = own.emit_initial(8, &mut out).expect("it is short");
    out.truncate(len);
    out
}

/// A message for the Call `xid`, or not for it.
fn anything(random: &mut Random, xid: u32) -> Vec<u8> {
    let xid = if random.below(8) == 0 { xid ^ 0x40 } else { xid };
    let direction = if random.below(8) == 0 { MessageType::Call } else { MessageType::Reply };
    let count = 1 + random.below(4) as u32;
    let mut found = match random.below(10) {
        0 | 1 => reply(xid, 2, [0, 1, 8, u32::MAX][random.below(4) as usize]),
        2 => octets(&[xid, 2, 8, ERROR, 1 + random.below(4) as u32, 1, 2]),
        3 => characteristics(random),
        4 => {
            let next = Continuation {
                number: random.below(4) as u32,
                lead_option: option::XMTRESP,
                payload_len: random.below(64) as u32,
            };
            message(&OptionalOperation::Continuation(next), direction, xid, &[0; 64])
        }
        5 => {
            let words = [xid, 2, 8, 5, direction.number(), 8, 28, xid, random.below(2) as u32, 0, 0, 3, 0, 0];
            octets(&words)
        }
        6 if random.below(8) == 0 => reply(xid, 1, 8),
        _ => {
            let numbers = [random.below(4) as u32, random.below(4) as u32];
            let items = [PlacedItem {
                displacement: 4 * random.below(12) as u32,
                len: random.below(6000) as u32,
                place: match random.below(4) {
                    0 => ItemPlace::NoItem,
                    1 => ItemPlace::TooShort,
                    _ => ItemPlace::Buffers {
                        offset: random.below(3) as u32 * 8,
                        numbers: Elements::new(&numbers[..1 + random.below(2) as usize]),
                    },
                },
            }];
            let payload = octets(&[xid, 1, 0, 0, 0, 0, random.below(6000) as u32]);
            let response = ResponseTransmission {
                items: Elements::new(&items[..random.below(2) as usize]),
                count,
                payload_len: payload.len() as u32,
            };
            let mut found = message(&OptionalOperation::Response(response), direction, xid, &payload);
            found.resize(found.len().max(HEAD), 0);
            found.resize(HEAD + random.below(3000) as usize, 7);
            found
        }
    };
    for _ in 0..random.below(3) {
        let at = random.below(found.len() as u64) as usize;
        found[at] = random.next_u64() as u8;
    }
    if random.below(10) == 0 {
        found.truncate(random.below(found.len() as u64 + 1) as usize);
    }
    found
}

/// Begins a Call of some kind. `false`: it was refused.
fn begin(asking: &mut Asking, random: &mut Random) -> bool {
    let timeout = Duration::from_millis(20);
    let len = 1 + random.below(20_000) as usize;
    let (connection, client) = (asking.connection, &mut asking.client);
    let begun = match random.below(4) {
        0 => {
            let request = Request { timeout, ..request_for(ECHO, 64) };
            client.engine.call(connection, &request, &mut Chunks::default(), |writer| writer.opaque(b"text"))
        }
        1 => {
            let request = Request { timeout, ..request_for(BIG, len) };
            let words = [3, len as u32];
            client.engine.call(connection, &request, &mut Chunks::default(), |writer| {
                words.iter().try_for_each(|word| writer.u32(*word))
            })
        }
        2 => {
            let request = Request { timeout, ..request_for(PUT_ONE, 64) };
            let mut chunks = Chunks::read(client.data(&pattern(2, len)));
            client.engine.call(connection, &request, &mut chunks, |writer| {
                writer.u32(1)?;
                writer.eligible_opaque_reduced(len as u32).map(drop)
            })
        }
        _ => {
            let request = Request { timeout, ..request_for(GET_ONE, 64) };
            let mut chunks = Chunks::write(client.space(len));
            client.engine.call(connection, &request, &mut chunks, |writer| {
                [7, 1, len as u32].iter().try_for_each(|word| writer.u32(*word))
            })
        }
    };
    begun.is_ok()
}

/// A client that speaks version 2 with a server whose Receives have a head of `head` octets, and two targets.
fn spoken(head: usize) -> Asking {
    let set_up_timeout = Duration::from_millis(50);
    let client = EngineConfig { set_up_timeout, placement: PlacementChoice::Send, ..small() };
    let world = World::new(1, FaultPlan::default());
    let mut asking = Asking::begun(world, client, ClientPolicy::default(), Vec::new());
    asking.run(|asking| !asking.raw.messages.is_empty());
    let probe = word(&asking.raw.messages.remove(0), 0);
    asking.raw.send(&reply(probe, 2, 8), None);
    let own = OwnCharacteristics {
        layout: ReceiveLayout::with_targets(head as u32, 2, 4096, 4096),
        send_len_max: 65_920,
        request_limit: 4,
        response_limit: 4,
        response_receives: 0,
        reverse_support: Default::default(),
    };
    let mut told = vec![0; 512];
    let len = own.emit_initial(8, &mut told).expect("it is short");
    asking.raw.send(&told[..len], None);
    asking.run(|asking| asking.client.events.len() == 1);
    asking
}

/// What a client makes of a READ whose item is said to belong at `displacement`, in a Reply of this number of Sends.
fn read_at(displacement: u32, sends: u32) -> Result<bool, CallError> {
    let mut asking = spoken(OWN_HEAD);
    // Several Sends need a longer result.
    let (connection, client) = (asking.connection, &mut asking.client);
    let room = if sends == 1 { 100 } else { 10_000 };
    let request = Request { timeout: Duration::from_millis(20), ..request_for(GET_ONE, 64) };
    let mut chunks = Chunks::write(client.space(room));
    client
        .engine
        .call(connection, &request, &mut chunks, |writer| {
            [7, 1, 100].iter().try_for_each(|word| writer.u32(*word))
        })
        .expect("a credit");
    // Behind what it tells of itself.
    let is_request = |found: &Vec<u8>| found.len() > 24 && word(found, 5) == option::XMTREQ;
    asking.run(|asking| asking.raw.messages.iter().any(is_request));
    let xid = word(&asking.raw.messages.pop().expect("a Call"), 0);
    let items = [PlacedItem {
        displacement,
        len: 100,
        place: ItemPlace::Buffers { offset: 0, numbers: Elements::new(&[0]) },
    }];
    // Eight octets that could be a count as well.
    let payload = octets(&[xid, 1, 0, 0, 0, 0, 100, 100, 100]);
    let (start, rest) = payload.split_at(if sends == 1 { 36 } else { 32 });
    let response =
        ResponseTransmission { items: Elements::new(&items), count: sends, payload_len: start.len() as u32 };
    let mut found = message(&OptionalOperation::Response(response), MessageType::Reply, xid, start);
    found.resize(OWN_HEAD, 0);
    found.extend(pattern(3, 100));
    asking.raw.send(&found, None);
    if sends == 2 {
        let next = Continuation { number: 1, lead_option: option::XMTRESP, payload_len: rest.len() as u32 };
        asking
            .raw
            .send(&message(&OptionalOperation::Continuation(next), MessageType::Reply, xid, rest), None);
    }
    asking.run(|asking| !asking.client.done.is_empty());
    let done = asking.client.done.remove(0);
    let result = done.result.map(|results| {
        let reduced = [results.reduced()];
        let mut reader = Reader::with_reduced(results.bytes(), &reduced);
        let is_right = [reader.u32(), reader.u32()] == [Ok(100), Ok(100)]
            && matches!(reader.eligible_opaque(1000), Ok(Item::Reduced { len: 100, .. }));
        is_right && reader.finish().is_ok()
    });
    drop(done.written);
    asking.run_for(Duration::from_millis(60));
    let violations = asking.world.violations();
    asking.close_after(violations);
    result
}

#[test]
fn an_item_at_another_displacement_than_its_result_makes_a_reply_broken() {
    // RTR-7.3-a RTR-X-23
    for sends in [1, 2] {
        assert_eq!(read_at(36, sends), Ok(true), "{sends} Sends");
        for wrong in [24, 28, 32] {
            assert_eq!(read_at(wrong, sends), Ok(false), "{wrong}, {sends} Sends");
        }
        for wrong in [0, 4, 20, 40, 128] {
            assert_eq!(read_at(wrong, sends), Err(CallError::BadReply), "{wrong}, {sends} Sends");
        }
    }
}

#[test]
fn a_call_puts_its_data_into_the_targets_of_the_server_wherever_they_begin() {
    // RTR-7.3-b
    for head in [384, 1024, 1032, 2000] {
        let mut asking = spoken(head);
        let (connection, client) = (asking.connection, &mut asking.client);
        let request = Request { timeout: Duration::from_millis(20), ..request_for(PUT_ONE, 64) };
        let mut chunks = Chunks::read(client.data(&pattern(2, 100)));
        let begun = client.engine.call(connection, &request, &mut chunks, |writer| {
            writer.u32(1)?;
            writer.eligible_opaque_reduced(100).map(drop)
        });
        begun.expect("a credit");
        let is_request = |found: &Vec<u8>| found.len() > 24 && word(found, 5) == option::XMTREQ;
        asking.run(|asking| asking.raw.messages.iter().any(is_request));
        let sent = asking.raw.messages.pop().expect("a Call");
        // One item: displacement, length, TBSN, offset, one target, number 0.
        assert_eq!([7, 9, 10, 11, 12, 13].map(|at| word(&sent, at)), [1, 100, 2, 0, 1, 0], "{head}");
        assert_eq!(sent[head..], pattern(2, 100), "{head}");
        asking.run_for(Duration::from_millis(60));
        asking.client.done.clear();
        let violations = asking.world.violations();
        asking.close_after(violations);
    }
}

/// V2-X-5, RTR-X-12, RTR-X-19: whatever comes, each Call ends once, and all memory comes back.
#[test]
fn any_servers_end_a_connection_at_worst() {
    let mut established = 0;
    sweep("any_servers_end_a_connection_at_worst", 0..60, |seed| {
        let mut random = Random::new(seed);
        let world = World::new(seed, FaultPlan::default());
        let client = EngineConfig { set_up_timeout: Duration::from_millis(50), ..small() };
        let mut asking = Asking::begun(world, client, ClientPolicy::default(), Vec::new());
        let is_honest = random.below(8) > 0;
        let (mut begun, mut ended) = (0, 0);
        let mut is_established = false;
        for turn in 0..TURNS {
            for _ in 0..random.below(30) {
                asking.pass();
            }
            for call in asking.raw.messages.drain(..).collect::<Vec<_>>() {
                if call.len() < 16 {
                    continue;
                }
                let xid = word(&call, 0);
                if !is_established && is_honest {
                    // The probe is answered, and the rest is not as it should be.
                    asking.raw.send(&reply(xid, 2, 8), None);
                    let told = characteristics(&mut random);
                    asking.raw.send(&told, None);
                    continue;
                }
                for _ in 0..1 + random.below(3) {
                    let found = anything(&mut random, xid);
                    asking.raw.send(&found, None);
                }
            }
            for event in asking.client.events.drain(..) {
                is_established |= matches!(event, ConnectionEvent::Established { .. });
            }
            if is_established {
                begun += u32::from(begin(&mut asking, &mut random));
            }
            if turn % 8 == 7 {
                asking.run_for(Duration::from_millis(60));
            }
            ended += asking.client.done.drain(..).count() as u32;
        }
        asking.run_for(Duration::from_millis(60));
        ended += asking.client.done.drain(..).count() as u32;
        assert_eq!(begun, ended, "each Call ends once");
        established += u32::from(is_established);
        let violations = asking.world.violations();
        let tolerated =
            Violations { receiver_not_ready: violations.receiver_not_ready, ..Violations::default() };
        asking.close_after(tolerated);
    });
    assert!(established > 0 || std::env::var_os("STAG_SEED").is_some(), "some connections were made");
}
