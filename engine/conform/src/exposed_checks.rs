//! Checks of a server that exposes Replies (reliable reply): which memory, for how long, and the effect of
//! RDMA_DONE.

use std::time::Duration;

use stag_wire::rpcrdma::{Segment, VERSION, procedure};

use crate::block::{BLOCK_LEN, EXPOSES, FeatureBlock, PULLS, private_data_with};
use crate::check::CheckNeeds::{Files, Null};
use crate::check::{Check, CheckOutcome, Stop, ensure, fail, not_applicable};
use crate::chunk_checks::{is_echo, sources, targets};
use crate::file_checks::{read, results};
use crate::files::{FILE_LEN, content};
use crate::message::{DraftMessage, RpcOutcome, SeenMessage, Words, outcome};
use crate::probe::{Probe, own_private_data};

/// How long nothing may come where a rule wants silence.
const HOLD: Duration = Duration::from_millis(300);

/// Octets of all file data that a check asks for, which no threshold and no small chunk holds.
const LONG: u32 = FILE_LEN as u32;

/// Replies that the peer says it exposes at once. It is not applicable where it says nothing of the kind.
fn offered(probe: &Probe) -> Result<u32, Stop> {
    match FeatureBlock::find(&probe.accepted) {
        Some((_, block)) if block.features & EXPOSES != 0 => Ok(block.done_receives.into()),
        _ => not_applicable("the peer does not offer reliable reply"),
    }
}

/// A connection on which both sides agreed on reliable reply. Returns how many Replies the peer exposes at once.
fn agree(probe: &mut Probe, remote_invalidation: bool) -> Result<u32, Stop> {
    probe.connect(&private_data_with(remote_invalidation, PULLS, 0))?;
    let count = offered(probe)?;
    probe.ask_null("that connection")?;
    Ok(count)
}

/// The segments of an exposed Reply, whose header has to be as the rules want it.
fn segments_of(seen: &SeenMessage) -> Result<Vec<Segment>, Stop> {
    ensure(seen.is_nomsg() && !seen.reads().is_empty(), || format!("{seen}, in place of an exposed Reply"))?;
    ensure(seen.fixed.version == VERSION, || seen.to_string())?;
    ensure(seen.payload().is_empty(), || seen.to_string())?;
    ensure(seen.reads().iter().all(|(position, _)| *position == 0), || {
        "a Read list with another Position than 0".to_owned()
    })?;
    Ok(seen.reads().iter().map(|(_, segment)| *segment).collect())
}

/// Sends RDMA_DONE for `xid`. Its credits say nothing (RR-P-10).
fn tell(probe: &mut Probe, xid: u32, invalidate: Option<u32>) -> Result<(), Stop> {
    let done = Words::default().words(&[xid, VERSION, 0, procedure::DONE]).0;
    probe.peer().send(&done, invalidate).or_else(|why| fail(format!("RDMA_DONE could not be sent: {why}")))
}

/// Reads what is exposed.
fn pull(probe: &mut Probe, segments: &[Segment]) -> Result<Vec<u8>, Stop> {
    let mut payload = Vec::new();
    for segment in segments {
        match probe.peer().read(*segment, HOLD * 10) {
            Ok(octets) => payload.extend(octets),
            Err(why) => return fail(format!("the exposed Reply could not be read: {why}")),
        }
    }
    Ok(payload)
}

/// Asks for the whole file without a Reply chunk that it would fit in. Returns the xid, and the segments of the exposed Reply.
fn expose(probe: &mut Probe) -> Result<(u32, Vec<Segment>), Stop> {
    let draft = read(probe, 0, LONG)?;
    let seen = probe.call(&draft)?;
    Ok((draft.fixed.xid, segments_of(&seen)?))
}

/// What was pulled is the Reply to the READ of the whole file.
fn is_file(payload: &[u8], xid: u32) -> Result<(), Stop> {
    ensure(payload.get(..4) == Some(&xid.to_be_bytes()), || "another xid in the exposed Reply".to_owned())?;
    ensure(outcome(payload) == RpcOutcome::Success, || "what was exposed is no Reply".to_owned())?;
    let found = results(payload)?;
    ensure(found.length == LONG && found.inline.get(..FILE_LEN) == Some(&content()[..]), || {
        format!("other octets than the file's, {} of them", found.inline.len())
    })?;
    ensure(payload.len().is_multiple_of(4), || format!("{} octets: the roundup is missing", payload.len()))
}

/// The file comes by an exposed Reply, which is read and told of.
fn pulled(probe: &mut Probe) -> CheckOutcome {
    let (xid, segments) = expose(probe)?;
    let payload = pull(probe, &segments)?;
    is_file(&payload, xid)?;
    tell(probe, xid, None)?;
    probe.ask_null("the same connection")?;
    Ok(format!("{} octets in {} segments, read whole", payload.len(), segments.len()))
}

/// Asks for the whole file with these chunks, and expects an exposed Reply. The chunks come back without
/// octets.
fn with_chunks(probe: &mut Probe, change: impl FnOnce(&mut Probe, &mut DraftMessage)) -> CheckOutcome {
    agree(probe, false)?;
    let mut draft = read(probe, 0, LONG)?;
    change(probe, &mut draft);
    let seen = probe.call(&draft)?;
    let segments = segments_of(&seen)?;
    ensure(seen.writes().len() == draft.writes.len(), || {
        format!("{} Write chunks returned of {}", seen.writes().len(), draft.writes.len())
    })?;
    for (offered, returned) in draft.writes.iter().zip(seen.writes()) {
        is_echo(offered, returned, 0)?;
    }
    match (&draft.reply, seen.reply_chunk()) {
        (Some(offered), Some(returned)) => is_echo(offered, returned, 0)?,
        (None, None) => {}
        (offered, _) => {
            let lost = if offered.is_some() { "was not returned" } else { "was made up" };
            return fail(format!("{seen}: a Reply chunk {lost}"));
        }
    }
    let payload = pull(probe, &segments)?;
    is_file(&payload, draft.fixed.xid)?;
    tell(probe, draft.fixed.xid, None)?;
    probe.ask_null("the same connection")?;
    Ok(format!("{seen}; the chunks came back unused"))
}

/// Without an agreement the whole file is refused.
fn refused_without(probe: &mut Probe, private_data: &[u8]) -> CheckOutcome {
    probe.connect(private_data)?;
    ensure(!FeatureBlock::has(&probe.accepted, EXPOSES), || {
        "the peer offers to expose Replies to who did not say that it pulls them".to_owned()
    })?;
    probe.ask_null("that connection")?;
    let draft = read(probe, 0, LONG)?;
    probe.refused(&draft)
}

/// The peer's block.
fn of_peer(probe: &mut Probe) -> CheckOutcome {
    let count = agree(probe, false)?;
    let Some((place, block)) = FeatureBlock::find(&probe.accepted) else { return fail("no block") };
    ensure(place == BLOCK_LEN, || format!("it stands at octet {place}, not behind the 8 of RFC 8797"))?;
    ensure(count > 0, || "it exposes no Reply at once, and says that it exposes some".to_owned())?;
    let len = probe.accepted.len();
    Ok(format!("features {:#04x}, {count} Receives for RDMA_DONE, {len} octets in all", block.features))
}

/// RDMA_DONE that matches nothing, as octets of a message.
fn dropped_done(probe: &mut Probe) -> CheckOutcome {
    agree(probe, false)?;
    let mut came = String::new();
    for _ in 0..20 {
        let xid = probe.xid();
        came = probe.dropped(&Words::default().words(&[xid, VERSION, 7, procedure::DONE]).0)?;
    }
    Ok(came)
}

/// What was told of cannot be read any more.
fn closed_after_done(probe: &mut Probe) -> CheckOutcome {
    agree(probe, false)?;
    let (xid, segments) = expose(probe)?;
    tell(probe, xid, None)?;
    // Its answer says that RDMA_DONE was taken: messages come in order.
    probe.ask_null("the same connection")?;
    match pull(probe, &segments) {
        Ok(_) => fail("it could be read"),
        Err(Stop::Fail(why)) => Ok(why),
        Err(stop) => Err(stop),
    }
}

/// The peer exposes no more Replies at once than it said.
fn limit(probe: &mut Probe) -> CheckOutcome {
    let count = agree(probe, false)?;
    let mut exposed = Vec::new();
    // One after the other: an exposed Reply brings its credit back.
    for _ in 0..count {
        exposed.push(expose(probe)?);
    }
    let draft = read(probe, 0, LONG)?;
    probe.send(&draft.octets())?;
    let (first, _) = exposed[0];
    let came = match probe.next_within(HOLD)? {
        None => {
            tell(probe, first, None)?;
            let seen = probe.message()?;
            exposed.push((seen.fixed.xid, segments_of(&seen)?));
            "it waited for RDMA_DONE"
        }
        Some(seen) if seen.is_err_chunk(draft.fixed.xid) => {
            tell(probe, first, None)?;
            "it was refused with ERR_CHUNK"
        }
        Some(seen) => return fail(format!("{seen}, beyond the {count} that may be exposed at once")),
    };
    for (xid, segments) in exposed.drain(1..) {
        is_file(&pull(probe, &segments)?, xid)?;
        tell(probe, xid, None)?;
    }
    probe.ask_null("the same connection")?;
    Ok(format!("{count} Replies exposed at once; of the next one {came}"))
}

/// A Call with the xid of an exposed Reply.
fn same_xid(probe: &mut Probe) -> CheckOutcome {
    agree(probe, false)?;
    let (xid, first) = expose(probe)?;
    let mut draft = read(probe, 0, LONG)?;
    draft.fixed.xid = xid;
    draft.payload.splice(..4, xid.to_be_bytes());
    let seen = probe.call(&draft)?;
    let second = segments_of(&seen)?;
    is_file(&pull(probe, &second)?, xid)?;
    tell(probe, xid, None)?;
    probe.ask_null("the same connection")?;
    match pull(probe, &first) {
        Ok(_) => fail("the first Reply is exposed still"),
        Err(_) => Ok("another Reply, and the first one is revoked".to_owned()),
    }
}

/// RDMA_DONE with Send with Invalidate.
fn invalidated(probe: &mut Probe) -> CheckOutcome {
    agree(probe, true)?;
    if !probe.peer_data().remote_invalidation {
        return not_applicable("the peer does not say R");
    }
    for _ in 0..3 {
        let (xid, segments) = expose(probe)?;
        is_file(&pull(probe, &segments)?, xid)?;
        tell(probe, xid, segments.first().map(|segment| segment.handle))?;
        probe.ask_null("the same connection")?;
    }
    Ok("taken, and NULL is answered after each".to_owned())
}

/// RDMA_DONE that invalidates what belongs to another Reply.
fn invalidated_foreign(probe: &mut Probe) -> CheckOutcome {
    agree(probe, true)?;
    if !probe.peer_data().remote_invalidation {
        return not_applicable("the peer does not say R");
    }
    let ((first, _), (_, second)) = (expose(probe)?, expose(probe)?);
    tell(probe, first, second.first().map(|segment| segment.handle))?;
    let null = probe.null();
    let came = match probe.send(&null.octets()) {
        Ok(()) => probe.end_of(null.fixed.xid)?,
        Err(_) => "the connection ended".to_owned(),
    };
    probe.reconnect()?;
    Ok(format!("{came}; NULL is answered on a new connection"))
}

/// An exposed Reply is there to be read only.
fn read_only(probe: &mut Probe) -> CheckOutcome {
    agree(probe, false)?;
    let (_, segments) = expose(probe)?;
    let segment = Segment { length: 4, ..segments[0] };
    if let Err(why) = probe.peer().write(segment, &[0; 4], HOLD * 10) {
        return Ok(why);
    }
    // Where the Write's end says nothing of the other side, the end of the connection does.
    match probe.next_within(HOLD * 10) {
        Err(Stop::Fail(why)) => Ok(why),
        _ => fail("it could be written"),
    }
}

/// The checks.
pub static CHECKS: &[Check] = &[
    Check {
        name: "exposing-block",
        rules: &["RR-P-3", "RR-P-4", "RR-P-4a"],
        sent: "private data with a block of Stag's that says: it pulls Replies",
        expected: "an accept with such a block behind that of RFC 8797: it exposes Replies, more than none at once",
        needs: Null,
        run: of_peer,
    },
    Check {
        name: "exposing-block-unasked",
        rules: &["RR-P-1", "RR-P-3"],
        sent: "private data of RFC 8797 alone",
        expected: "an accept without a block that says: it exposes Replies",
        needs: Null,
        run: |probe| {
            probe.connect(&own_private_data(false).to_wire())?;
            ensure(!FeatureBlock::has(&probe.accepted, EXPOSES), || "there is such a block".to_owned())?;
            Ok(format!("{} octets of private data", probe.accepted.len()))
        },
    },
    Check {
        name: "exposing-block-features",
        rules: &["RR-P-4a"],
        sent: "a block with feature bits that are not known",
        expected: "what came for the block without them",
        needs: Null,
        run: |probe| {
            let count = agree(probe, false)?;
            probe.connect(&private_data_with(false, PULLS | 0xf8, 0xffff))?;
            ensure(offered(probe).ok() == Some(count), || "another offer".to_owned())?;
            probe.ask_null("that connection").map(|seen| seen.to_string())
        },
    },
    Check {
        name: "expose",
        rules: &["RR-4.1.1-a", "RR-4.1-a", "RR-4.1-c", "RR-4.1.3-a", "RR-P-2"],
        sent: "READ of 20001 octets without chunks; RDMA_DONE when the Reply was read",
        expected: "RDMA_NOMSG whose Read list is a Position Zero Read chunk with the Reply, its roundup included",
        needs: Files,
        run: |probe| {
            agree(probe, false)?;
            pulled(probe)
        },
    },
    Check {
        name: "expose-again",
        rules: &["RR-P-7", "RR-P-8", "RR-7-a"],
        sent: "the same 40 times, one after the other",
        expected: "the same: places and Receives come back with RDMA_DONE, and no handle is twice in use",
        needs: Files,
        run: |probe| {
            agree(probe, false)?;
            let mut last = Vec::new();
            for _ in 0..40 {
                let (xid, segments) = expose(probe)?;
                ensure(segments != last, || "the handle of the Reply before".to_owned())?;
                is_file(&pull(probe, &segments)?, xid)?;
                tell(probe, xid, None)?;
                last = segments;
            }
            Ok("40 Replies, each read whole".to_owned())
        },
    },
    Check {
        name: "expose-reply-chunk-short",
        rules: &["RR-4.1-d", "RR-4.1.1-a"],
        sent: "READ of 20001 octets with a Reply chunk of 4096",
        expected: "an exposed Reply; the Reply chunk is returned with length 0",
        needs: Files,
        run: |probe| with_chunks(probe, |probe, draft| draft.reply = Some(targets(probe, &[4096]))),
    },
    Check {
        name: "expose-write-list",
        rules: &["RR-4.1-b"],
        sent: "READ of 20001 octets with an empty Write chunk",
        expected: "an exposed Reply with the data in it; the Write list is returned",
        needs: Files,
        run: |probe| with_chunks(probe, |_, draft| draft.writes = vec![Vec::new()]),
    },
    Check {
        name: "expose-reply-chunk",
        rules: &["RR-4.1.1-a", "RR-4.1-b"],
        sent: "READ of 20001 octets with a Reply chunk of 32768",
        expected: "RDMA_NOMSG with the Reply in its chunk: nothing is exposed where there is room",
        needs: Files,
        run: |probe| {
            agree(probe, false)?;
            let mut draft = read(probe, 0, LONG)?;
            draft.reply = Some(targets(probe, &[32768]));
            let seen = probe.call(&draft)?;
            ensure(seen.reads().is_empty(), || seen.to_string())?;
            let payload = probe.payload_of(&seen)?;
            is_file(&payload, draft.fixed.xid)?;
            Ok(seen.to_string())
        },
    },
    Check {
        name: "expose-not-agreed",
        rules: &["RR-4.1.1-b", "RR-P-1", "RR-P-2", "RR-6-a"],
        sent: "without a block, READ of 20001 octets without chunks",
        expected: "ERR_CHUNK, a permanent error",
        needs: Files,
        run: |probe| refused_without(probe, &own_private_data(false).to_wire()),
    },
    Check {
        name: "expose-other-version",
        rules: &["RR-P-4a", "RR-P-2"],
        sent: "a block of version 2, and READ of 20001 octets without chunks",
        expected: "ERR_CHUNK: it is as if there were no block",
        needs: Files,
        run: |probe| {
            let mut data = private_data_with(false, PULLS, 0);
            data[BLOCK_LEN + 4] = 2;
            refused_without(probe, &data)
        },
    },
    Check {
        name: "expose-not-pulling",
        rules: &["RR-6-a", "RR-P-2"],
        sent: "a block that says: it exposes, and not: it pulls; READ of 20001 octets without chunks",
        expected: "ERR_CHUNK",
        needs: Files,
        run: |probe| refused_without(probe, &private_data_with(false, EXPOSES, 4)),
    },
    Check {
        name: "expose-long-call",
        rules: &["RR-X-1"],
        sent: "with reliable reply agreed on, NULL in a Position Zero Read chunk",
        expected: "its Reply: what a Requester sends so is a Long Call",
        needs: Null,
        run: |probe| {
            agree(probe, false)?;
            let mut draft = probe.null();
            let payload = std::mem::take(&mut draft.payload);
            draft.fixed.procedure = procedure::NOMSG;
            draft.reads = sources(probe, &payload, &[]).into_iter().map(|segment| (0, segment)).collect();
            let (seen, _) = probe.succeed(&draft)?;
            Ok(seen.to_string())
        },
    },
    Check {
        name: "done-unknown",
        rules: &["RR-4.1.3-d", "RR-P-10"],
        sent: "RDMA_DONE for xids that no exposed Reply has, 20 times, each with a NULL behind it",
        expected: "nothing for it, and the NULL's Reply",
        needs: Null,
        run: dropped_done,
    },
    Check {
        name: "done-twice",
        rules: &["RR-4.1.3-d", "RR-4.1.2-a"],
        sent: "RDMA_DONE twice for an exposed Reply, which was not read",
        expected: "nothing for either, and NULL is answered",
        needs: Files,
        run: |probe| {
            agree(probe, false)?;
            let (xid, _) = expose(probe)?;
            tell(probe, xid, None)?;
            probe.dropped(&Words::default().words(&[xid, VERSION, 9, procedure::DONE]).0)
        },
    },
    Check {
        name: "done-ends-exposure",
        rules: &["RR-4.1.3-a", "RR-7-a"],
        sent: "an RDMA Read of an exposed Reply after RDMA_DONE",
        expected: "a failure: the memory is not exposed any more",
        needs: Files,
        run: closed_after_done,
    },
    Check {
        name: "done-invalidates",
        rules: &["RR-4.1.4-b"],
        sent: "where both sides say R, RDMA_DONE by Send with Invalidate of the Reply's handle, three times",
        expected: "it is taken, and NULL is answered",
        needs: Files,
        run: invalidated,
    },
    Check {
        name: "done-invalidates-foreign",
        rules: &["RR-4.1.4-c"],
        sent: "RDMA_DONE that invalidates the handle of another exposed Reply",
        expected: "whatever becomes of the connection, the peer serves the next one",
        needs: Files,
        run: invalidated_foreign,
    },
    Check {
        name: "expose-limit",
        rules: &["RR-P-8", "RR-P-9"],
        sent: "READs of 20001 octets, one more than the peer exposes Replies at once; then RDMA_DONE for one",
        expected: "as many exposed Replies as it said; the next one after RDMA_DONE, or ERR_CHUNK",
        needs: Files,
        run: limit,
    },
    Check {
        name: "expose-same-xid",
        rules: &["RR-4.1.3-f"],
        sent: "while a Reply is exposed, a new Call with its xid",
        expected: "another exposed Reply; the first one is revoked",
        needs: Files,
        run: same_xid,
    },
    Check {
        name: "expose-read-only",
        rules: &["RR-7-a"],
        sent: "an RDMA Write into an exposed Reply",
        expected: "a failure: the connection ends",
        needs: Files,
        run: read_only,
    },
];
