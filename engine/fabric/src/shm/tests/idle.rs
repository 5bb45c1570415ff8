//! Unused connections: what a pass pays for them, and how their first message is found.

use super::*;

const COUNT: usize = 100;

/// Two sides with [`COUNT`] connections, each with a Receive at the server; all are idle.
fn idle_pairs() -> (Side, Side, Vec<(QueuePairId, QueuePairId)>) {
    let config = ShmConfig { completions: 1 << 16, ..ShmConfig::default() };
    let (mut client, mut server) = (Side::new(config.clone()), Side::new(config));
    let pairs: Vec<_> = (0..COUNT)
        .map(|_| {
            let pair = connect(&mut client, &mut server, CAPACITY);
            client.events.clear();
            server.events.clear();
            server.receive(pair.1);
            pair
        })
        .collect();
    for _ in 0..100 {
        client.turn();
        server.turn();
    }
    (client, server, pairs)
}

fn seen_in(side: &mut Side, turns: u64) -> u64 {
    let before = side.shm.doorbells_seen;
    for _ in 0..turns {
        side.turn();
    }
    side.shm.doorbells_seen - before
}

#[test]
fn a_pass_looks_at_no_idle_connection() {
    let (mut client, mut server, _pairs) = idle_pairs();
    for side in [&mut client, &mut server] {
        let seen = seen_in(side, 1000);
        assert_eq!(seen, 0, "doorbells in 1000 passes, of {COUNT} idle connections");
    }
}

#[test]
fn the_first_message_of_an_idle_connection_is_there_at_once() {
    let (mut client, mut server, pairs) = idle_pairs();
    for (number, &(a, _)) in pairs.iter().enumerate() {
        client.send(a, &[number as u8; 8]).unwrap();
        client.turn();
        server.turn();
        assert_eq!(server.messages(), [vec![number as u8; 8]], "connection {number}");
    }
    // Those that were used are looked at for a while, and idle again.
    let seen = seen_in(&mut server, 1000);
    assert!(seen <= COUNT as u64 * 20, "{seen} doorbells");
}

#[test]
fn connections_in_use_stay_and_their_messages_arrive_in_each_phase() {
    let (mut client, mut server, pairs) = idle_pairs();
    // Pauses of every length: before, while and after a bell is silenced.
    for pause in 0..60 {
        for &(a, b) in &pairs[pause % 7..][..10] {
            client.send(a, b"a pause ended").unwrap();
            client.turn();
            server.turn();
            assert_eq!(server.messages().len(), 1, "after {pause} turns");
            server.receive(b);
        }
        for _ in 0..pause {
            client.turn();
            server.turn();
        }
    }
}

#[test]
fn a_message_whose_bell_was_lost_is_found_by_turns() {
    let (mut client, mut server, pairs) = idle_pairs();
    client.send(pairs[70].0, b"silenced by a third").unwrap();
    client.turn();
    server.shm.ours.bells.collect(&mut Vec::new());
    // Four idle ones every 30 µs, which are three turns.
    let turns = (COUNT / 4 * 3 + 3) as u64;
    seen_in(&mut server, turns);
    assert_eq!(server.messages(), [b"silenced by a third"]);
}

#[test]
fn what_a_peer_sent_before_it_died_is_found_without_its_bell() {
    let (mut client, mut server, pairs) = idle_pairs();
    client.send(pairs[70].0, b"last words").unwrap();
    client.turn();
    server.shm.ours.bells.collect(&mut Vec::new());
    drop(client);
    let pair = pairs[70].1;
    let reason = until(&mut [&mut server], |sides| sides[0].reason(pair));
    assert_eq!(reason, DisconnectReason::Peer);
    assert_eq!(server.messages(), [b"last words"]);
}

#[test]
fn an_idle_connection_that_ends_leaves_nothing_behind() {
    let (mut client, mut server, pairs) = idle_pairs();
    for &(a, _) in &pairs {
        client.shm.disconnect(a);
    }
    let last = pairs[COUNT - 1].1;
    until(&mut [&mut client, &mut server], |sides| sides[1].reason(last));
    assert_eq!(server.shm.ours.bells.next_idle(), None);
    assert!(!server.shm.ours.bells.is_rung());
}
