//! Checks of a client that pulls Replies which its server exposes (reliable reply).

use stag_wire::rpcrdma::{Segment, VERSION, procedure};

use crate::block::{BLOCK_LEN, EXPOSES, FeatureBlock, PULLS, private_data_with};
use crate::check::{CheckOutcome, Stop, ensure, fail, not_applicable};
use crate::client_checks::ClientCheck;
use crate::message::SeenMessage;
use crate::served::{GRANT, HOLD, ServedClient};

/// Replies that this side says it exposes at once.
const EXPOSED_MAX: u16 = 8;

/// Octets of memory that this side may expose for a Reply, and that belong to no Reply.
const DECOY_LEN: usize = 64;

/// A Call on a new connection on which both sides agreed on reliable reply.
fn agreed(client: &mut ServedClient, remote_invalidation: bool) -> Result<SeenMessage, Stop> {
    let call = client.first_call(&private_data_with(remote_invalidation, EXPOSES, EXPOSED_MAX))?;
    if !FeatureBlock::has(&client.requested, PULLS) {
        client.answer(&call)?;
        client.disconnect();
        return not_applicable("the client does not ask for exposed Replies");
    }
    Ok(call)
}

/// The Reply to `call` exposed in these segments.
fn expose(
    client: &mut ServedClient,
    call: &SeenMessage,
    xid: u32,
    reads: Vec<(u32, Segment)>,
) -> Result<(), Stop> {
    let mut reply = client.reply_to(call, GRANT);
    reply.fixed.xid = xid;
    reply.fixed.procedure = procedure::NOMSG;
    reply.payload.clear();
    reply.reads = reads;
    client.send(&reply.octets(), None)
}

/// Exposes the octets of the Reply to `call`, cut behind each of `cuts`.
fn sources(client: &mut ServedClient, call: &SeenMessage, cuts: &[usize]) -> Vec<(u32, Segment)> {
    let octets = client.reply_to(call, GRANT).payload;
    let (mut start, mut reads) = (0, Vec::new());
    for end in cuts.iter().copied().chain([octets.len()]) {
        reads.push((0, client.peer().offer_source(&octets[start..end])));
        start = end;
    }
    reads
}

/// The RDMA_DONE for `xid` comes, once, and is as it has to be. Returns the handle that it invalidated.
fn told(client: &mut ServedClient, xid: u32) -> Result<Option<u32>, Stop> {
    let done = client.done_of(xid)?;
    ensure((done.len, done.fixed.version) == (16, VERSION), || {
        format!("an RDMA_DONE of {} octets and version {}", done.len, done.fixed.version)
    })?;
    Ok(done.invalidated)
}

/// Three more Calls are made and answered, and RDMA_DONE came once for `xid`.
fn goes_on_once(client: &mut ServedClient, xid: u32) -> CheckOutcome {
    for _ in 0..3 {
        let next = client.call()?;
        ensure(next.fixed.xid != xid, || "the same Call again, although it was answered".to_owned())?;
        client.answer(&next)?;
    }
    let count = client.told_of.iter().filter(|told| **told == xid).count();
    ensure(count == 1, || format!("RDMA_DONE came {count} times"))?;
    Ok("RDMA_DONE, once, and its next Calls".to_owned())
}

/// A Reply exposed in these pieces is pulled.
fn pulled(client: &mut ServedClient, cuts: &[usize]) -> CheckOutcome {
    let call = agreed(client, false)?;
    let reads = sources(client, &call, cuts);
    expose(client, &call, call.fixed.xid, reads)?;
    client.note_answered(GRANT);
    let invalidated = told(client, call.fixed.xid)?;
    ensure(invalidated.is_none(), || {
        "RDMA_DONE invalidated a handle, although this side did not say R".to_owned()
    })?;
    goes_on_once(client, call.fixed.xid)
}

/// A Reply that cannot be read gets an RDMA_DONE, and ends its Call: a list of segments that makes no sense.
fn told_and_ended(
    client: &mut ServedClient,
    make: impl FnOnce(Segment) -> Vec<(u32, Segment)>,
) -> CheckOutcome {
    let call = agreed(client, false)?;
    let segment = client.peer().offer_source(&[0; DECOY_LEN]);
    expose(client, &call, call.fixed.xid, make(segment))?;
    client.note_answered(GRANT);
    told(client, call.fixed.xid)?;
    // Its Call failed: what it does then is its own affair, but for the same xid again.
    match client.message(HOLD) {
        Ok(Some(seen)) if seen.fixed.xid == call.fixed.xid => fail(format!("{seen}: the same xid again")),
        _ => Ok("RDMA_DONE, and the Call does not come again".to_owned()),
    }
}

/// The checks.
pub static CHECKS: &[ClientCheck] = &[
    ClientCheck {
        name: "client-pulling-block",
        rules: &["RR-P-3", "RR-P-4", "RR-P-1"],
        sent: "nothing yet",
        expected: "a connect request with a block of Stag's behind that of RFC 8797, which says: it pulls Replies; or none",
        run: |client| {
            let call = client.call()?;
            let requested = client.requested.clone();
            client.answer(&call)?;
            let Some((place, block)) = FeatureBlock::find(&requested) else {
                return not_applicable("the client has no block, which is its choice");
            };
            ensure(place == BLOCK_LEN, || format!("it stands at octet {place}"))?;
            ensure(block.features & EXPOSES != 0 || block.done_receives == 0, || {
                format!("{} Receives for RDMA_DONE of one that exposes nothing", block.done_receives)
            })?;
            Ok(format!("at octet {place}, features {:#04x}", block.features))
        },
    },
    ClientCheck {
        name: "client-pulls",
        rules: &["RR-4.1.2-a", "RR-4.1.3-a", "RR-P-10", "RR-4.1.4-a", "RR-P-7"],
        sent: "the Reply exposed in a Position Zero Read chunk",
        expected: "RDMA_DONE with its xid, of 16 octets, once; and its next Call",
        run: |client| pulled(client, &[]),
    },
    ClientCheck {
        name: "client-pulls-segments",
        rules: &["RR-4.1-a", "RR-X-3"],
        sent: "the Reply exposed in three segments",
        expected: "RDMA_DONE once, and its next Call: it has put them together",
        run: |client| pulled(client, &[4, 16]),
    },
    ClientCheck {
        name: "client-pulls-unknown",
        rules: &["RR-4.1.3-c", "RR-X-2"],
        sent: "an exposed Reply to a Call that was not made, before the right one",
        expected: "RDMA_DONE for it, once, and its next Call",
        run: |client| {
            let call = agreed(client, false)?;
            let xid = !call.fixed.xid;
            let segment = client.peer().offer_source(&[0; DECOY_LEN]);
            expose(client, &call, xid, vec![(0, segment)])?;
            told(client, xid)?;
            client.answer(&call)?;
            goes_on_once(client, xid)
        },
    },
    ClientCheck {
        name: "client-pull-invalidates",
        rules: &["RR-4.1.4-b", "RR-4.1.4-c"],
        sent: "where both sides say R, the Reply exposed in two segments",
        expected: "RDMA_DONE that invalidates one of their handles, or none",
        run: |client| {
            let call = agreed(client, true)?;
            let reads = sources(client, &call, &[8]);
            let handles: Vec<u32> = reads.iter().map(|(_, segment)| segment.handle).collect();
            expose(client, &call, call.fixed.xid, reads)?;
            client.note_answered(GRANT);
            let came = match told(client, call.fixed.xid)? {
                None => "a plain Send",
                Some(handle) if handles.contains(&handle) => "one of its handles invalidated",
                Some(_) => return fail("a handle invalidated that is not the Reply's"),
            };
            goes_on_once(client, call.fixed.xid)?;
            Ok(came.to_owned())
        },
    },
    ClientCheck {
        name: "client-pull-position",
        rules: &["RR-X-3", "RR-4.1-c"],
        sent: "an exposed Reply whose Position is 4",
        expected: "RDMA_DONE all the same, and no Read; the Call ends",
        run: |client| told_and_ended(client, |segment| vec![(4, segment)]),
    },
    ClientCheck {
        name: "client-pull-too-long",
        rules: &["RR-4.1.2-a"],
        sent: "an exposed Reply that says it has 2^32-1 octets",
        expected: "RDMA_DONE all the same, and no Read: the connection lives; the Call ends",
        run: |client| told_and_ended(client, |segment| vec![(0, Segment { length: u32::MAX, ..segment })]),
    },
    ClientCheck {
        name: "client-pull-no-reply",
        rules: &["RR-4.1.2-a"],
        sent: "an exposed Reply whose octets are none",
        expected: "RDMA_DONE, and the Call ends",
        run: |client| told_and_ended(client, |segment| vec![(0, segment)]),
    },
    ClientCheck {
        name: "client-pull-not-agreed",
        rules: &["RR-P-1", "RR-P-2", "RR-6-a"],
        sent: "after an accept without a block, the Reply exposed, before the right one",
        expected: "its next Call, and no RDMA_DONE: the first is dropped",
        run: |client| {
            let own = crate::probe::own_private_data(false).to_wire();
            let call = client.first_call(&own)?;
            let segment = client.peer().offer_source(&[0; DECOY_LEN]);
            expose(client, &call, call.fixed.xid, vec![(0, segment)])?;
            client.answer(&call)?;
            let came = client.goes_on(&call)?;
            ensure(client.told_of.is_empty(), || "RDMA_DONE".to_owned())?;
            Ok(came)
        },
    },
    ClientCheck {
        name: "client-pull-gone",
        rules: &["RR-4.1.3-f"],
        sent: "an exposed Reply whose handle names nothing",
        expected: "the end of the connection: the Read fails",
        run: |client| {
            let call = agreed(client, false)?;
            let segment = Segment { handle: 0x5a5a_5a5a, length: DECOY_LEN as u32, offset: 0 };
            expose(client, &call, call.fixed.xid, vec![(0, segment)])?;
            match client.message(HOLD * 30) {
                Err(Stop::Fail(why)) => Ok(why),
                Err(stop) => Err(stop),
                Ok(Some(seen)) if seen.fixed.procedure == procedure::DONE => {
                    client.disconnect();
                    Ok("RDMA_DONE, after the Read failed".to_owned())
                }
                Ok(Some(seen)) => fail(format!("{seen}: it goes on")),
                Ok(None) => fail("the connection lives, and nothing came"),
            }
        },
    },
];
