//! Requests that one provider lets go and another one takes on: the connection is as good as any.

use stag_fabric::{ConnectRequestId, DisconnectReason, Provider, QueuePairCapacity};

use crate::bench::*;
use crate::{exposures, messages, setup, teardown, transfers};

/// Messages in order, in both directions, over several adopted connections.
pub(crate) fn adopted_messages<H: Harness>(bench: &mut Bench<H>) {
    bench.keep_the_door();
    messages::sends_arrive_in_order(bench);
    messages::both_directions_at_once(bench);
    messages::many_queue_pairs(bench);
}

/// The adopter's memory is what the peer reads and writes, and the other way round.
pub(crate) fn adopted_transfers<H: Harness>(bench: &mut Bench<H>) {
    bench.keep_the_door();
    transfers::writes_land_before_the_send_behind_them(bench);
    transfers::a_read_gathers_its_parts(bench);
}

/// Fences and invalidations.
pub(crate) fn adopted_exposures<H: Harness>(bench: &mut Bench<H>) {
    bench.keep_the_door();
    exposures::a_fence_gives_the_memory_back(bench);
    exposures::send_with_invalidate(bench);
}

/// What both say of themselves arrives, and a refusal with its reason.
pub(crate) fn adopted_answers<H: Harness>(bench: &mut Bench<H>) {
    bench.keep_the_door();
    setup::private_data_flows_both_ways(bench);
    setup::rejected_with_a_reason(bench);
}

/// The client gives up at each step, until the adopter has the request.
pub(crate) fn the_asker_goes_before_the_answer<H: Harness>(bench: &mut Bench<H>) {
    bench.keep_the_door();
    teardown::before_the_answer(bench);
}

/// The client gives up while the adopter has a queue pair for it, or the adopter does.
pub(crate) fn the_asker_goes_after_adoption<H: Harness>(bench: &mut Bench<H>) {
    bench.keep_the_door();
    teardown::after_prepare(bench);
}

/// Everything of an adopted connection comes back when it ends.
pub(crate) fn an_adopted_connection_ends<H: Harness>(bench: &mut Bench<H>) {
    bench.keep_the_door();
    teardown::with_everything_under_way(bench);
}

/// The request is between providers while the client gives up: the adopter finds out, or refuses, and serves
/// on.
pub(crate) fn the_asker_goes_between<H: Harness>(bench: &mut Bench<H>) {
    bench.keep_the_door();
    bench.hands_over = false;
    let qa = bench.dial(b"", CAPACITY);
    let request = bench.request_at_the_door();
    let handover = bench.release(request).expect("the request is there");
    bench[A].provider().disconnect(qa);
    assert_eq!(bench.end(A, qa), DisconnectReason::Local);
    bench.settle();
    if let Ok(request) = bench[B].provider().adopt(handover) {
        bench.settle();
        if let Ok(qb) = bench[B].provider().prepare(request, CAPACITY) {
            let qb = bench[B].adopt(qb);
            let _ = bench[B].provider().accept(qb, b"");
            bench.end(B, qb);
        }
    }
    bench.hands_over = true;
    bench.connect();
}

/// A request that is dropped on its way leaves nothing, and the client does not wait for ever.
pub(crate) fn dropped_between<H: Harness>(bench: &mut Bench<H>) {
    bench.keep_the_door();
    bench.hands_over = false;
    let qa = bench.dial(b"", CAPACITY);
    let request = bench.request_at_the_door();
    drop(bench.release(request).expect("the request is there"));
    bench.end(A, qa);
    bench.hands_over = true;
    bench.connect();
}

/// The doorkeeper knows nothing of a request that it let go, nor of one that never was.
pub(crate) fn unknown_requests<H: Harness>(bench: &mut Bench<H>) {
    bench.keep_the_door();
    bench.hands_over = false;
    assert!(bench.release(ConnectRequestId(12345)).is_none());
    let qa = bench.dial(b"", CAPACITY);
    let request = bench.request_at_the_door();
    let handover = bench.release(request).expect("the request is there");
    assert!(bench.release(request).is_none(), "it was let go");
    bench.door().provider().reject(request, "it was let go");
    assert!(bench.door().provider().prepare(request, CAPACITY).is_err());
    let request = bench[B].provider().adopt(handover).expect("the client waits");
    let qb = bench.prepare(request, CAPACITY);
    bench[B].provider().accept(qb, b"").expect("a prepared connection is accepted");
    bench.established(A, qa);
    bench.established(B, qb);
}

/// The adopter has no room for the queue pair: the client is refused, and told why.
pub(crate) fn a_full_adopter<H: Harness>(bench: &mut Bench<H>) {
    bench.keep_the_door();
    let qa = bench.dial(b"", CAPACITY);
    let request = bench.request().0;
    let large = QueuePairCapacity { receives: u32::MAX / 4, ..CAPACITY };
    let refusal = bench[B].provider().prepare(request, large).expect_err("no provider has that many");
    bench[B].provider().reject(request, &refusal.to_string());
    let reason = bench.end(A, qa);
    assert!(matches!(reason, DisconnectReason::Rejected(_)), "{reason:?}");
    bench.connect();
}
