//! Services that call their clients back over TCP: both ends' Calls and Replies in one stream.

use std::time::Duration;

use stag_rpc::{CALLS_BACK_MAX, CallBackError, CallError, CallRefused, ConnectionId, name_in_group};
use stag_runtime::ReactorId;
use stag_wire::rpc::CallHeader;
use stag_wire::xdr::Reader;

use super::peer::{Peer, Server, call, fragments, record, results};
use crate::support::opaque;
use crate::support::program::{ECHO, PROGRAM, Program};

fn service(server: &mut Server) -> &mut Program {
    &mut server.node.engine.services_mut().0
}

/// A server, a peer of it, and what the server calls their connection.
fn connected() -> (Server, Peer, ConnectionId) {
    let mut server = Server::new();
    let mut peer = server.connect();
    server.check_echo(&mut peer);
    let connection = service(&mut server).called_on.expect("it was called");
    (server, peer, connection)
}

type Answers = Vec<(u64, Result<Vec<u8>, CallBackError>)>;

fn answers(server: &mut Server, count: usize) -> Answers {
    server.until(|server| service(server).called_back.len() >= count);
    std::mem::take(&mut service(server).called_back)
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A successful Reply.
fn success(xid: u32, results: &[u8]) -> Vec<u8> {
    [&words(&[xid, 1, 0, 0, 0, 0])[..], results].concat()
}

/// Takes the server's next Call, and returns its xid and arguments.
#[track_caller]
fn called(server: &mut Server, peer: &mut Peer) -> (u32, Vec<u8>) {
    let record = server.reply(peer);
    let mut reader = Reader::new(&record);
    let header = CallHeader::parse(&mut reader).expect("a Call");
    assert_eq!((header.program, header.procedure), (PROGRAM, ECHO));
    (header.xid, reader.rest().to_vec())
}

#[test]
fn a_service_calls_its_client_back() {
    let (mut server, mut peer, connection) = connected();
    let mut last = None;
    for id in 0..10 {
        let arguments = opaque(&vec![id as u8; 100 * id as usize]);
        let name = if id % 2 == 0 { connection } else { name_in_group(ReactorId::FIRST, connection) };
        service(&mut server).call_back(id, name, ECHO, &arguments);
        let (xid, found) = called(&mut server, &mut peer);
        assert_eq!(found, arguments);
        assert_ne!(last.replace(xid), Some(xid));
        server.send(&mut peer, &record(&success(xid, &arguments)));
        assert_eq!(answers(&mut server, 1), [(id, Ok(arguments))]);
        server.check_echo(&mut peer);
    }
    server.close();
}

#[test]
fn calls_and_replies_of_both_ends_are_told_apart() {
    let (mut server, mut peer, connection) = connected();
    for id in 0..3 {
        service(&mut server).call_back(id, connection, ECHO, &opaque(b"back"));
    }
    let xids: Vec<u32> = (0..3).map(|_| called(&mut server, &mut peer).0).collect();
    // In one burst, in small fragments: a Call of its own with the xid of one of the server's, its Replies in another order.
    let own = |xid| call(xid, ECHO, |writer| writer.opaque(b"forth"));
    let burst = [
        record(&success(xids[2], &opaque(b"two"))),
        fragments(&own(xids[0]), 7),
        fragments(&success(xids[0], &opaque(b"zero")), 5),
        record(&own(9)),
        record(&success(xids[1], &opaque(b"one"))),
    ]
    .concat();
    server.send(&mut peer, &burst);
    for xid in [xids[0], 9] {
        assert_eq!(results(&server.reply(&mut peer), xid), opaque(b"forth"));
    }
    assert_eq!(
        answers(&mut server, 3),
        [(2, Ok(opaque(b"two"))), (0, Ok(opaque(b"zero"))), (1, Ok(opaque(b"one")))]
    );
    server.close();
}

#[test]
fn replies_that_answer_nothing_are_dropped_and_errors_are_told() {
    let (mut server, mut peer, connection) = connected();
    // Before there was a Call, and of one that there is not.
    server.send(&mut peer, &record(&success(77, b"")));
    service(&mut server).call_back(1, connection, ECHO, &opaque(b"x"));
    let (xid, _) = called(&mut server, &mut peer);
    server.send(&mut peer, &record(&success(xid.wrapping_add(1), b"")));
    // No Reply is like this: its status, its verifier, its end.
    for nonsense in [words(&[xid, 1, 7]), words(&[xid, 1, 0, 0, 500]), words(&[xid, 1]), words(&[xid, 2, 0])]
    {
        server.send(&mut peer, &record(&nonsense));
    }
    server.check_echo(&mut peer);
    assert_eq!(service(&mut server).called_back, []);
    // PROG_UNAVAIL, GARBAGE_ARGS, and a denial.
    server.send(&mut peer, &record(&words(&[xid, 1, 0, 0, 0, 1])));
    assert_eq!(answers(&mut server, 1), [(1, Err(CallError::ProgramUnavailable.into()))]);
    for (id, reply, wanted) in [
        (2, vec![1, 0, 0, 0, 4], CallError::GarbageArguments),
        (3, vec![1, 1, 1, 2], CallError::Authentication(2)),
    ] {
        service(&mut server).call_back(id, connection, ECHO, &opaque(b"x"));
        let (xid, _) = called(&mut server, &mut peer);
        server.send(&mut peer, &record(&words(&[&[xid], &reply[..]].concat())));
        assert_eq!(answers(&mut server, 1), [(id, Err(wanted.into()))]);
        // It is answered once.
        server.send(&mut peer, &record(&success(xid, b"")));
    }
    server.check_echo(&mut peer);
    assert_eq!(service(&mut server).called_back, []);
    server.close();
}

#[test]
fn a_client_that_never_answers_costs_a_bounded_number_until_their_time_is_over() {
    let (mut server, mut peer, connection) = connected();
    for id in 0..CALLS_BACK_MAX as u64 + 2 {
        service(&mut server).call_back(id, connection, ECHO, &opaque(b"x"));
    }
    let beyond = CALLS_BACK_MAX as u64;
    let refused = Err(CallRefused::TooManyCallsBack.into());
    assert_eq!(answers(&mut server, 2), [(beyond, refused.clone()), (beyond + 1, refused)]);
    let (xid, _) = called(&mut server, &mut peer);
    server.wait(Duration::from_secs(7));
    let ended = answers(&mut server, CALLS_BACK_MAX);
    assert!(ended.iter().all(|(_, end)| *end == Err(CallError::TimedOut.into())), "{ended:?}");
    // Too late, and the connection is as good as before.
    server.send(&mut peer, &record(&success(xid, b"")));
    while peer.record().is_some() {}
    server.check_echo(&mut peer);
    service(&mut server).call_back(1, connection, ECHO, &opaque(b"again"));
    let (xid, arguments) = called(&mut server, &mut peer);
    server.send(&mut peer, &record(&success(xid, &arguments)));
    assert_eq!(answers(&mut server, 1), [(1, Ok(opaque(b"again")))]);
    server.close();
}

#[test]
fn calls_back_end_with_their_connection() {
    for is_half_closed in [false, true] {
        let (mut server, mut peer, connection) = connected();
        service(&mut server).call_back(1, connection, ECHO, &opaque(b"x"));
        called(&mut server, &mut peer);
        let mut half = None;
        if is_half_closed {
            peer.finish();
            half = Some(peer);
        } else {
            drop(peer);
        }
        assert_eq!(answers(&mut server, 1), [(1, Err(CallError::ConnectionLost.into()))]);
        drop(half);
        server.until(|server| !service(server).ended.is_empty());
        assert_eq!(service(&mut server).ended, [name_in_group(ReactorId::FIRST, connection)]);
        service(&mut server).call_back(2, connection, ECHO, &opaque(b"x"));
        assert_eq!(answers(&mut server, 1), [(2, Err(CallRefused::NotConnected.into()))]);
        server.close();
    }
}

#[test]
fn a_call_that_fits_no_page_is_refused_and_the_longest_that_does_is_sent() {
    let (mut server, mut peer, connection) = connected();
    // A page, without its mark and the header.
    let most = 4096 - 4 - 40;
    service(&mut server).call_back(1, connection, ECHO, &vec![1; most + 4]);
    assert_eq!(answers(&mut server, 1), [(1, Err(CallRefused::TooLong.into()))]);
    service(&mut server).call_back(2, connection, ECHO, &opaque(b"short"));
    service(&mut server).call_back(3, connection, ECHO, &vec![2; most]);
    for (id, len) in [(2, 12), (3, most)] {
        let (xid, arguments) = called(&mut server, &mut peer);
        assert_eq!(arguments.len(), len);
        server.send(&mut peer, &record(&success(xid, b"")));
        assert_eq!(answers(&mut server, 1), [(id, Ok(Vec::new()))]);
    }
    server.close();
}

/// The Replies of a client that takes none fill the memory that it may have: a Call to it waits, and is sent when they left.
#[test]
fn a_call_to_a_client_that_takes_nothing_waits() {
    use crate::support::program::BIG;
    let (mut server, mut peer, connection) = connected();
    let big = record(&call(5, BIG, |writer| {
        writer.u32(1)?;
        writer.u32(1 << 20)
    }));
    // Written, and not read.
    for _ in 0..8 {
        let mut rest = &big[..];
        while !rest.is_empty() {
            rest = &rest[peer.write(rest)..];
            server.pass();
        }
    }
    for _ in 0..200 {
        server.pass();
    }
    service(&mut server).call_back(1, connection, ECHO, &opaque(b"x"));
    for _ in 0..200 {
        server.pass();
    }
    assert_eq!(service(&mut server).called_back, [], "it waits, or is queued");
    let mut replies = 0;
    let xid = loop {
        let record = server.reply(&mut peer);
        match CallHeader::parse(&mut Reader::new(&record)) {
            Ok(header) => break header.xid,
            Err(_) => replies += 1,
        }
    };
    server.send(&mut peer, &record(&success(xid, b"")));
    assert_eq!(answers(&mut server, 1), [(1, Ok(Vec::new()))]);
    for _ in replies..8 {
        server.reply(&mut peer);
    }
    server.close();
}
