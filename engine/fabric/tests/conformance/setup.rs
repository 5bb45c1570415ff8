//! Connection set-up.

use stag_fabric::{DisconnectReason, Event, FabricError, Peer, Provider};

use crate::bench::{A, B, Bench, CAPACITY, Harness};

/// Private data arrives as it was sent, in both directions: none, a little, and as much as there can be.
pub(crate) fn private_data_flows_both_ways<H: Harness>(bench: &mut Bench<H>) {
    let max = bench[A].provider().limits().private_data_len_max;
    assert!(max >= 8, "RFC 8797 needs 8 octets of private data");
    for (ours, theirs) in [(0, 0), (8, 0), (0, 8), (8, 8), (max, 1), (1, max), (max, max)] {
        let (hello, welcome): (Vec<u8>, Vec<u8>) =
            ((0..ours).map(|i| i as u8 ^ 0x55).collect(), (0..theirs).map(|i| i as u8 ^ 0xaa).collect());
        let qa = bench.dial(&hello, CAPACITY);
        let (request, private_data) = bench.request();
        bench.assert_private_data(&private_data, &hello);
        let qb = bench.prepare(request, CAPACITY);
        bench[B].provider().accept(qb, &welcome).expect("a prepared connection is accepted");
        let answer = bench.established(A, qa);
        bench.assert_private_data(&answer, &welcome);
        assert_eq!(bench.established(B, qb), b"", "the accepting side sent the last of it");
    }
}

/// More private data than fits is refused at once, and says how much would fit.
pub(crate) fn too_much_private_data<H: Harness>(bench: &mut Bench<H>) {
    let max = bench[A].provider().limits().private_data_len_max;
    let address = bench.address.clone();
    let too_much = vec![1; max + 1];
    let is_limit = |error: &FabricError| match error {
        FabricError::Limit { wanted, limit, .. } => (*wanted, *limit) == (max as u64 + 1, max as u64),
        _ => false,
    };
    let refused = bench[A].provider().connect(&address, &too_much, CAPACITY).expect_err("it does not fit");
    assert!(is_limit(&refused), "{refused}");
    let qa = bench.dial(b"", CAPACITY);
    let request = bench.request().0;
    let qb = bench.prepare(request, CAPACITY);
    let refused = bench[B].provider().accept(qb, &too_much).expect_err("it does not fit");
    assert!(is_limit(&refused), "{refused}");
    bench[B].provider().accept(qb, b"less").expect("less of it can still be sent");
    let answer = bench.established(A, qa);
    bench.assert_private_data(&answer, b"less");
    bench.established(B, qb);
}

/// A rejection tells why, and gives posted Receives back.
pub(crate) fn rejected_with_a_reason<H: Harness>(bench: &mut Bench<H>) {
    for reason in ["", "memory.budget is spent: 64 MiB wanted, 3 MiB left"] {
        let qa = bench.dial(b"hello", CAPACITY);
        bench[A].post_receive(qa, 1);
        let request = bench.request().0;
        bench[B].provider().reject(request, reason);
        assert_eq!(bench.end(A, qa), DisconnectReason::Rejected(reason.to_owned()));
        assert!(bench[B].provider().prepare(request, CAPACITY).is_err(), "a rejected request is gone");
        bench[B].provider().reject(request, "again");
    }
}

/// Without a listener there is no connection.
pub(crate) fn no_listener<H: Harness>(bench: &mut Bench<H>) {
    let address = bench.harness.address();
    let qa = bench[A].provider().connect(&address, b"", CAPACITY).expect("connecting starts");
    bench[A].post_receive(qa, 1);
    assert_eq!(bench.end(A, qa), DisconnectReason::NoListener);
}

/// A listener that never answers: the set-up times out, and the late answer reaches no client.
pub(crate) fn never_answered<H: Harness>(bench: &mut Bench<H>) {
    let qa = bench.dial(b"", CAPACITY);
    bench[A].post_receive(qa, 1);
    let request = bench.request().0;
    assert_eq!(bench.end(A, qa), DisconnectReason::TimedOut);
    bench.settle();
    if let Ok(qb) = bench[B].provider().prepare(request, CAPACITY) {
        let qb = bench[B].adopt(qb);
        bench[B].post_receive(qb, 1);
        let _ = bench[B].provider().accept(qb, b"");
        bench.end(B, qb);
    }
}

/// Two cannot listen at one address, and an address has to say something.
pub(crate) fn bad_addresses<H: Harness>(bench: &mut Bench<H>) {
    let address = bench.address.clone();
    for side in [A, B] {
        let refused = bench[side].provider().listen(&address).expect_err("somebody listens there");
        assert!(refused.to_string().contains(&address), "it names the address: {refused}");
    }
    for address in ["", "no/slash", "nul\0byte"] {
        let listening = bench[A].provider().listen(address);
        if address.is_empty() {
            assert!(matches!(listening, Err(FabricError::Address { .. })), "{listening:?}");
            let connecting = bench[A].provider().connect(address, b"", CAPACITY);
            assert!(matches!(connecting, Err(FabricError::Address { .. })), "{connecting:?}");
        }
    }
}

/// A side may listen at several addresses, and is told where a request came in.
pub(crate) fn several_listeners<H: Harness>(bench: &mut Bench<H>) {
    let second = bench.harness.address();
    let other = bench[B].provider().listen(&second).expect("the address is free");
    assert_ne!(other, bench.listener);
    let qa = bench[A].provider().connect(&second, b"2", CAPACITY).expect("connecting starts");
    let is = |event: &Event| matches!(event, Event::ConnectRequest { .. });
    let event = bench.until("a request comes in", |bench| bench[B].take_event(is));
    let Event::ConnectRequest { listener, request, private_data, .. } = event else { unreachable!() };
    assert_eq!(listener, other);
    bench.assert_private_data(&private_data, b"2");
    bench[B].provider().reject(request, "seen");
    bench.end(A, qa);
    bench.connect();
}

/// Each side is told who is at the other end.
pub(crate) fn peers_are_named<H: Harness>(bench: &mut Bench<H>) {
    let qa = bench.dial(b"", CAPACITY);
    let is = |event: &Event| matches!(event, Event::ConnectRequest { .. });
    let event = bench.until("a request comes in", |bench| bench[B].take_event(is));
    let Event::ConnectRequest { request, peer: at_request, .. } = event else { unreachable!() };
    let qb = bench.prepare(request, CAPACITY);
    bench[B].provider().accept(qb, b"").expect("a prepared connection is accepted");
    for (side, queue_pair) in [(A, qa), (B, qb)] {
        let is = |e: &Event| matches!(e, Event::Established { queue_pair: q, .. } if *q == queue_pair);
        let event = bench.until("established", |bench| bench[side].take_event(is));
        let Event::Established { peer, .. } = event else { unreachable!() };
        if side == B {
            assert_eq!(peer, at_request, "the same as of the request");
        }
        match peer {
            Peer::Process { pid, .. } => assert_ne!(pid, 0),
            Peer::Address(address) => assert_ne!(address.port(), 0),
        }
    }
}

/// One side connects to itself.
pub(crate) fn connect_to_oneself<H: Harness>(bench: &mut Bench<H>) {
    let address = bench.address.clone();
    let one = bench[B].provider().connect(&address, b"me", CAPACITY).expect("connecting starts");
    let one = bench[B].adopt(one);
    let (request, private_data) = bench.request();
    bench.assert_private_data(&private_data, b"me");
    let two = bench.prepare(request, CAPACITY);
    bench[B].provider().accept(two, b"").expect("a prepared connection is accepted");
    bench.established(B, one);
    bench.established(B, two);
    bench[B].post_receive(two, 1);
    bench[B].post_send(one, 1, b"to myself");
    assert_eq!(bench.message(B, two, 1)[..], *b"to myself");
}
