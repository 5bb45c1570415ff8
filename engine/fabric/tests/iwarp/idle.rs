//! Many queue pairs, few of them in use: what a pass asks the system, and that everybody is heard.

use std::collections::VecDeque;
use std::time::Duration;

use stag_fabric::iwarp::IwarpConfig;
use stag_fabric::{Provider, QueuePairId};

use crate::server::{Peer, Server};

const COUNT: usize = 40;

fn crowd(config: IwarpConfig) -> (Server, Vec<(Peer, QueuePairId)>) {
    let mut server = Server::new(config);
    let peers = (0..COUNT).map(|_| Peer::connect(&mut server)).collect();
    (server, peers)
}

/// Passes a microsecond apart, in which nothing comes.
fn pass(server: &mut Server, passes: u64) {
    let mut completions = VecDeque::with_capacity(64);
    for _ in 0..passes {
        server.now += Duration::from_micros(1);
        server.iwarp.poll(server.now, &mut completions, 64);
    }
    assert!(completions.is_empty());
}

/// Says `times` messages, one after another, and sees that each arrives.
fn is_heard(server: &mut Server, (peer, pair): &mut (Peer, QueuePairId), times: u8) {
    for number in 0..times {
        let message = peer.send(&[number; 50]);
        peer.say(&message);
        assert_eq!(server.message(*pair), [number; 50]);
        let buf = server.messages.take().expect("the pool is large enough");
        server.iwarp.post_receive(*pair, 100, buf).expect("one was taken");
    }
}

#[test]
fn a_pass_does_not_ask_for_idle_queue_pairs() {
    let (mut server, mut peers) = crowd(IwarpConfig::default());
    pass(&mut server, 1000);
    for used in [0, 10] {
        // Those that are used do not change that.
        peers[..4].iter_mut().for_each(|peer| is_heard(&mut server, peer, used));
        let before = server.counters().looks;
        pass(&mut server, 3000);
        let looks = server.counters().looks - before;
        assert!(looks <= 3000 / 12, "{looks} looks in 3000 passes");
        assert!(looks >= 3000 / 20, "{looks} looks in 3000 passes: an idle peer waits long");
    }
}

#[test]
fn everybody_is_heard_in_use_or_not() {
    for may_sleep in [false, true] {
        let (mut server, mut peers) = crowd(IwarpConfig { may_sleep, ..IwarpConfig::default() });
        // Each in turn is used enough to be read in every pass, and then leaves its place to others.
        for times in [1, 2, 9] {
            for peer in &mut peers {
                is_heard(&mut server, peer, times);
            }
            pass(&mut server, 1000);
        }
        // All at once.
        for (peer, _) in &mut peers {
            let message = peer.send(b"all at once");
            peer.say(&message);
        }
        for (_, pair) in &peers {
            assert_eq!(server.message(*pair), b"all at once");
        }
    }
}
