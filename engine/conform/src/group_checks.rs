//! Checks of a server of version 2 with rtrext: data in targets of Receives, and messages of several Sends.

use crate::check::CheckNeeds::{Files, Null};
use crate::check::{Check, CheckOutcome, Stop, ensure, fail, not_applicable};
use crate::chunk_checks::{sources, targets as exposed_targets};
use crate::file_checks::{files, number, read, results, target_holds, write_call};
use crate::files::{FILE_LEN, content, status};
use crate::message::{OPTIONAL, SeenBody, Words};
use crate::operation::{
    CALL, REPLY, SeenItem, characteristic, continuation, direction, fault, item_in_targets, kind, none,
    operation, place, request,
};
use crate::probe::Probe;
use crate::version2::{Version2Probe, as_version2};

/// RTR Support: Calls as groups.
const REQUESTS: u32 = 1;
/// RTR Support: Replies as groups.
const RESPONSES: u32 = 2;
/// RTR Support: groups of several transmissions.
const CONTINUATIONS: u32 = 4;

/// The payload of NULL with a new xid.
fn null_payload(version2: &mut Version2Probe<'_>) -> (u32, Vec<u8>) {
    let null = version2.null();
    (null.fixed.xid, null.payload)
}

/// The first transmission of NULL as a group of `count`, with `payload_len` octets of its Payload stream.
fn lead(xid: u32, count: u32, payload: &[u8], payload_len: usize) -> Vec<u8> {
    operation(xid, CALL, kind::REQUEST, request(none(), none(), count, 0, payload_len), payload)
}

/// A further transmission of a Call.
fn next(xid: u32, number: u32, payload: &[u8]) -> Vec<u8> {
    let info = continuation(number, kind::REQUEST, payload.len());
    operation(xid, CALL, kind::CONTINUATION, info, payload)
}

/// A peer that takes Calls of `count` transmissions, with as many credits.
fn continued<'a>(probe: &'a mut Probe, count: u32) -> Result<Version2Probe<'a>, Stop> {
    let version2 = Version2Probe::extended(probe, REQUESTS | CONTINUATIONS)?;
    let limit = version2.word(characteristic::REQUEST_LIMIT).unwrap_or(1);
    if limit < count {
        return not_applicable(format!("the peer takes Calls of {limit} transmissions at most"));
    }
    version2.probe.grow(count + 1, as_version2)?;
    if version2.probe.granted > count {
        return Ok(version2);
    }
    not_applicable(format!("{} credits granted: too few for a group", version2.probe.granted))
}

/// The replacement of the second transmission of a group of two is answered with this XMTERR, and served where it is a Call.
fn broken_by(
    probe: &mut Probe,
    which: u32,
    info: &[u32],
    make: impl FnOnce(&mut Version2Probe<'_>, u32) -> (Vec<u8>, u32, u32, bool),
) -> CheckOutcome {
    let mut version2 = continued(probe, 3)?;
    let (xid, payload) = null_payload(&mut version2);
    version2.probe.send(&lead(xid, 3, &payload[..20], 20))?;
    let (octets, bad, bad_number, is_call) = make(&mut version2, xid);
    version2.probe.send(&octets)?;
    version2.fault_of((bad, bad_number, xid), which, info)?;
    if is_call {
        let seen = version2.message()?;
        ensure(seen.fixed.xid == bad, || format!("{seen}, in place of its Reply"))?;
    } else {
        // The rest of the group is dropped without another error.
        version2.dropped(&next(xid, 2, &payload[20..]))?;
    }
    version2.ask_null("the same connection")?;
    Ok(format!("XMTERR {which}; what is left of the group is dropped"))
}

/// The first transmission of a WRITE of `data` in targets of the peer's Receive: numbers and offset as given.
fn write_message(
    version2: &mut Version2Probe<'_>,
    data: &[u8],
    offset: u32,
    numbers: &[u32],
    len: usize,
) -> Result<(u32, Vec<u8>), Stop> {
    let targets = version2.targets()?;
    let (xid, call) = write_call(version2.probe, len as u32)?;
    let items = item_in_targets(call.0.len(), len, offset, numbers);
    let info = request(items, none(), 1, 0, call.0.len());
    let mut message = operation(xid, CALL, kind::REQUEST, info, &call.0);
    let (first, _) = targets[0];
    if message.len() > first {
        return not_applicable(format!("a header of {} octets reaches into the first target", message.len()));
    }
    message.resize(first + offset as usize, 0);
    message.extend_from_slice(data);
    Ok((xid, message))
}

/// Octets to write, others each time.
fn data(probe: &mut Probe, len: usize) -> Vec<u8> {
    let seed = probe.xid();
    (0..len).map(|index| (index as u32).wrapping_mul(29).wrapping_add(seed) as u8).collect()
}

/// WRITE of `len` octets in targets from `offset` of the first one.
fn write_placed(probe: &mut Probe, len: usize, offset: u32) -> CheckOutcome {
    let mut version2 = Version2Probe::extended(probe, REQUESTS)?;
    let targets = version2.targets()?;
    let mut numbers = Vec::new();
    let mut left = len + offset as usize;
    for (number, (_, target)) in (0..).zip(&targets) {
        if left > 0 {
            numbers.push(number);
        }
        left = left.saturating_sub(*target);
    }
    if left > 0 {
        return not_applicable(format!("{len} octets do not fit the targets of one Receive"));
    }
    let data = data(version2.probe, len);
    let (xid, message) = write_message(&mut version2, &data, offset, &numbers, len)?;
    let whole = version2.whole_reply(xid, &message, 0)?;
    ensure(status(&whole.payload) == Some(0), || format!("NFS status {:?}", status(&whole.payload)))?;
    version2.probe.reconnect()?;
    target_holds(version2.probe, &data[..len.min(3000)])?;
    Ok(format!("{len} octets in {} targets: written, and read back", numbers.len()))
}

/// A WRITE whose item is where nothing is.
fn write_nowhere(
    probe: &mut Probe,
    which: u32,
    len: usize,
    offset: u32,
    numbers: impl FnOnce(u32) -> Vec<u32>,
) -> CheckOutcome {
    let mut version2 = Version2Probe::extended(probe, REQUESTS)?;
    let numbers = numbers(version2.targets()?.len() as u32);
    let (xid, mut message) = write_message(&mut version2, &[], 0, &numbers, len)?;
    // The offset is the fourth word of the item, which is the third word of the operation.
    message[28 + 16..28 + 20].copy_from_slice(&offset.to_be_bytes());
    let (first, _) = version2.targets()?[0];
    message.resize(first + 100, 7);
    version2.faulted(&message, (xid, 0, xid), which, &[])
}

/// READ of `count` octets whose data is directed. Returns the Call's xid and octets.
fn read_directed(
    version2: &mut Version2Probe<'_>,
    count: u32,
    min_len: u32,
    place: &[u32],
    further: u32,
) -> Result<(u32, Vec<u8>), Stop> {
    let draft = read(version2.probe, 0, count)?;
    let xid = draft.fixed.xid;
    let info =
        request(none(), direction(draft.payload.len(), min_len, place), 1, further, draft.payload.len());
    Ok((xid, operation(xid, CALL, kind::REQUEST, info, &draft.payload)))
}

/// What became of the one direction of a READ of `count` octets: the item, and the file's octets wherever they are.
fn result_of(
    version2: &mut Version2Probe<'_>,
    count: u32,
    (xid, octets): (u32, Vec<u8>),
    further: u32,
) -> Result<SeenItem, Stop> {
    let whole = version2.whole_reply(xid, &octets, further)?;
    let [item] = &whole.items[..] else {
        return fail(format!("{} items for one direction", whole.items.len()));
    };
    let found = results(&whole.payload)?;
    ensure((found.status, found.length) == (0, count), || format!("{found:?}"))?;
    // Behind the count of its octets, which is the last word in front of them.
    let position = whole.payload.len() - found.inline.len();
    ensure(item.displacement as usize == position, || {
        format!("RTR-7.3-a: an item at displacement {}, whose data belongs at {position}", item.displacement)
    })?;
    let data = match item.place {
        place::TARGETS => whole.octets_of(item)?,
        place::TOO_SHORT => found.inline.iter().copied().take(count as usize).collect(),
        place::EXPLICIT => version2.probe.gather(&item.segments),
        _ => return fail("NOITEM, although there is data"),
    };
    ensure(data == content()[..count as usize], || {
        format!("{} octets, and others than the file's", data.len())
    })?;
    ensure(item.place == place::TOO_SHORT || found.inline.is_empty(), || {
        format!("{} octets inline as well", found.inline.len())
    })?;
    Ok(item.clone())
}

/// READ with a direction whose result has to be one of these.
fn directed(
    probe: &mut Probe,
    count: u32,
    min_len: u32,
    place: &[u32],
    allowed: &[u32],
    further: u32,
) -> CheckOutcome {
    let mut version2 = Version2Probe::extended(probe, REQUESTS | RESPONSES)?;
    let call = read_directed(&mut version2, count, min_len, place, further)?;
    let item = result_of(&mut version2, count, call, further)?;
    ensure(allowed.contains(&item.place), || {
        format!("result {} for direction {}, which Table 2 does not have", item.place, place[0])
    })?;
    version2.ask_null("the same connection")?;
    Ok(format!("result {}: {} octets, targets {:?}", item.place, item.len, item.numbers))
}

/// As [`directed`], with a segment of `len` octets of exposed memory behind the words of the direction.
fn directed_to_segment(probe: &mut Probe, head: &[u32], allowed: &[u32]) -> CheckOutcome {
    let mut version2 = Version2Probe::extended(probe, REQUESTS | RESPONSES)?;
    let segment = exposed_targets(version2.probe, &[8192])[0];
    let words =
        [head, &[1, segment.handle, segment.length, (segment.offset >> 32) as u32, segment.offset as u32]]
            .concat();
    let call = read_directed(&mut version2, 5000, 0, &words, 0)?;
    let item = result_of(&mut version2, 5000, call, 0)?;
    ensure(allowed.contains(&item.place), || {
        format!("result {} for direction {}, which Table 2 does not have", item.place, head[0])
    })?;
    version2.ask_null("the same connection")?;
    Ok(format!("result {}: {} octets", item.place, item.len))
}

/// The first transmission is refused with BAD_HEADER.
fn bad_lead(probe: &mut Probe, make: impl FnOnce(u32, &[u8]) -> Words) -> CheckOutcome {
    let mut version2 = Version2Probe::extended(probe, REQUESTS)?;
    let (xid, payload) = null_payload(&mut version2);
    let info = make(xid, &payload);
    version2.refused(xid, &operation(xid, CALL, kind::REQUEST, info, &payload))
}

/// The checks.
pub static CHECKS: &[Check] = &[
    Check {
        name: "group-null",
        rules: &["RTR-9.2-a", "RTR-9.2-b", "RTR-7.3-d", "RTR-5.1-a", "RTR-9.4-b"],
        sent: "NULL by XMTREQ, as a group of one",
        expected: "its Reply, by a base message or by XMTRESP",
        needs: Null,
        run: |probe| {
            let mut version2 = Version2Probe::extended(probe, REQUESTS)?;
            let (xid, payload) = null_payload(&mut version2);
            let whole = version2.whole_reply(xid, &lead(xid, 1, &payload, payload.len()), 0)?;
            ensure(whole.items.is_empty(), || format!("{:?}", whole.items))?;
            Ok(format!("{} octets, SUCCESS", whole.payload.len()))
        },
    },
    Check {
        name: "group-of-three",
        rules: &["RTR-9.4-a", "RTR-4.2-b", "RTR-X-4", "RTR-5.2-a", "RTR-X-8"],
        sent: "NULL in three transmissions, the second of which has no Payload stream; 20 times",
        expected: "its Reply each time: all credits come back",
        needs: Null,
        run: |probe| {
            let mut version2 = continued(probe, 3)?;
            for _ in 0..20 {
                let (xid, payload) = null_payload(&mut version2);
                version2.probe.send(&lead(xid, 3, &payload[..16], 16))?;
                version2.probe.send(&next(xid, 1, &[]))?;
                version2.whole_reply(xid, &next(xid, 2, &payload[16..]), 0)?;
            }
            version2.ask_null("the same connection").map(|seen| seen.to_string())
        },
    },
    Check {
        name: "group-number",
        rules: &["RTR-9.5-a", "RTR-X-19", "RTR-4.2-a", "RTR-5.4-a", "RTR-X-17"],
        sent: "of a group of three the first transmission, and then the third; the rest of it later",
        expected: "one XMTERR BADSEQ, expected 1, found 2; nothing for the rest",
        needs: Null,
        run: |probe| {
            broken_by(probe, fault::NUMBER, &[1, 2], |_, xid| (next(xid, 2, &[0; 8]), xid, 2, false))
        },
    },
    Check {
        name: "group-xid",
        rules: &["RTR-9.4-a", "RTR-9.5-a", "RTR-X-19"],
        sent: "a first transmission, and a second one with another xid",
        expected: "XMTERR BADXID with both",
        needs: Null,
        run: |probe| {
            broken_by(probe, fault::XID, &[], |version2, _| {
                let other = version2.probe.xid();
                (next(other, 1, &[0; 8]), other, 1, false)
            })
        },
    },
    Check {
        name: "group-operation",
        rules: &["RTR-X-5", "RTR-9.5-a"],
        sent: "a first transmission, and a second one whose optxc_itype is XMTRESP",
        expected: "XMTERR BADOMT, expected 5, found 6",
        needs: Null,
        run: |probe| {
            broken_by(probe, fault::OPERATION, &[kind::REQUEST, kind::RESPONSE], |_, xid| {
                let info = continuation(1, kind::RESPONSE, 8);
                (operation(xid, CALL, kind::CONTINUATION, info, &[0; 8]), xid, 1, false)
            })
        },
    },
    Check {
        name: "group-other-group",
        rules: &["RTR-4.2-a", "RTR-9.5-a"],
        sent: "a first transmission, and then NULL by XMTREQ",
        expected: "XMTERR BADOMT, and the NULL's Reply",
        needs: Null,
        run: |probe| {
            broken_by(probe, fault::OPERATION, &[kind::CONTINUATION, kind::REQUEST], |version2, _| {
                let (other, payload) = null_payload(version2);
                (lead(other, 1, &payload, payload.len()), other, 0, true)
            })
        },
    },
    Check {
        name: "group-base-message",
        rules: &["RTR-4.2-a", "RTR-9.5-a"],
        sent: "a first transmission, and then NULL in RDMA2_MSG",
        expected: "XMTERR BADHMT, expected 5, found 0, and the NULL's Reply",
        needs: Null,
        run: |probe| {
            broken_by(probe, fault::PROCEDURE, &[OPTIONAL, 0], |version2, _| {
                let null = version2.null();
                (null.octets(), null.fixed.xid, 0, true)
            })
        },
    },
    Check {
        name: "group-version-1",
        rules: &["RTR-4.2-a", "RTR-9.5-a"],
        sent: "a first transmission, and then NULL of version 1",
        expected: "XMTERR BADHMT, expected 5, found 0, and the NULL's Reply in version 1",
        needs: Null,
        run: |probe| {
            broken_by(probe, fault::PROCEDURE, &[OPTIONAL, 0], |version2, _| {
                let null = version2.probe.null();
                (null.octets(), null.fixed.xid, 0, true)
            })
        },
    },
    Check {
        name: "group-none",
        rules: &["RTR-9.5-a", "RTR-5.4-a", "RTR-X-12"],
        sent: "XMTCONT without a group",
        expected: "XMTERR BADCONT",
        needs: Null,
        run: |probe| {
            let mut version2 = continued(probe, 2)?;
            let xid = version2.probe.xid();
            version2.faulted(&next(xid, 1, &[0; 8]), (xid, 1, xid), fault::NO_GROUP, &[])
        },
    },
    Check {
        name: "group-payload-beyond",
        rules: &["RTR-9.5-b", "RTR-9.5-a"],
        sent: "XMTREQ that says 100 octets more of Payload stream than it has",
        expected: "XMTERR BADPL, with bounds that the value is not in",
        needs: Null,
        run: |probe| {
            let mut version2 = Version2Probe::extended(probe, REQUESTS)?;
            let (xid, payload) = null_payload(&mut version2);
            let message = lead(xid, 1, &payload, payload.len() + 100);
            version2.faulted(&message, (xid, 0, xid), fault::PAYLOAD, &[payload.len() as u32 + 100])
        },
    },
    Check {
        name: "group-too-long",
        rules: &["RTR-X-7", "RTR-5.2-a"],
        sent: "XMTREQ of more transmissions than the peer takes",
        expected: "XMTERR BADSEQ: the limit, and the count",
        needs: Null,
        run: |probe| {
            let mut version2 = Version2Probe::extended(probe, REQUESTS)?;
            let limit = version2.word(characteristic::REQUEST_LIMIT).unwrap_or(1);
            let (xid, payload) = null_payload(&mut version2);
            let message = lead(xid, limit + 1, &payload, payload.len());
            version2.faulted(&message, (xid, 0, xid), fault::NUMBER, &[limit, limit + 1])
        },
    },
    Check {
        name: "group-count-0",
        rules: &["RTR-X-14"],
        sent: "XMTREQ of 0 transmissions",
        expected: "BAD_HEADER",
        needs: Null,
        run: |probe| bad_lead(probe, |_, payload| request(none(), none(), 0, 0, payload.len())),
    },
    Check {
        name: "group-start-empty",
        rules: &["RTR-X-11"],
        sent: "XMTREQ of one transmission without Payload stream",
        expected: "BAD_HEADER",
        needs: Null,
        run: |probe| bad_lead(probe, |_, _| request(none(), none(), 1, 0, 0)),
    },
    Check {
        name: "group-choice-in-call",
        rules: &["RTR-X-13", "RTR-5.4-b"],
        sent: "XMTREQ with an item whose place is CHOICE, which only a direction has",
        expected: "BAD_HEADER",
        needs: Null,
        run: |probe| {
            bad_lead(probe, |_, payload| {
                let items = Words::default().words(&[1, 40, 8, place::CHOICE, 0]);
                request(items, none(), 1, 0, payload.len())
            })
        },
    },
    Check {
        name: "group-result-in-call",
        rules: &["RTR-X-13"],
        sent: "XMTREQ with an item whose place is NOITEM, which only a Reply has",
        expected: "BAD_HEADER",
        needs: Null,
        run: |probe| {
            bad_lead(probe, |_, payload| {
                request(Words::default().words(&[1, 40, 0, place::NO_ITEM]), none(), 1, 0, payload.len())
            })
        },
    },
    Check {
        name: "group-displacement",
        rules: &["RTR-X-18"],
        sent: "XMTREQ with an item at displacement 6, which is no multiple of 4",
        expected: "BAD_HEADER",
        needs: Null,
        run: |probe| {
            bad_lead(probe, |_, payload| request(item_in_targets(6, 4, 0, &[0]), none(), 1, 0, payload.len()))
        },
    },
    Check {
        name: "group-range-empty",
        rules: &["RTR-X-16", "RTR-7.4-a"],
        sent: "XMTREQ with a direction for the range 8 to 8",
        expected: "BAD_HEADER",
        needs: Null,
        run: |probe| {
            bad_lead(probe, |_, payload| {
                let directions = Words::default().words(&[1, 8, 8, 1, 0, place::TARGETS]);
                request(none(), directions, 1, 0, payload.len())
            })
        },
    },
    Check {
        name: "group-response-unasked",
        rules: &["V2-X-5", "RTR-9.3-a"],
        sent: "XMTRESP for a Call that the peer never made",
        expected: "nothing",
        needs: Null,
        run: |probe| {
            let mut version2 = Version2Probe::extended(probe, REQUESTS)?;
            let xid = version2.probe.xid();
            let info = none().words(&[1, 8]);
            let payload = Words::default().words(&[xid, 1]).0;
            version2.dropped(&operation(xid, REPLY, kind::RESPONSE, info, &payload))
        },
    },
    Check {
        name: "group-error-unknown",
        rules: &["RTR-X-12", "RTR-X-17", "RTR-5.4-c"],
        sent: "XMTERR for a Reply that the peer never sent, and one that cannot be read",
        expected: "nothing for either",
        needs: Null,
        run: |probe| {
            let mut version2 = Version2Probe::extended(probe, REQUESTS | RESPONSES)?;
            let xid = version2.probe.xid();
            let info = Words::default().words(&[xid, REPLY, 0, 0, fault::NO_GROUP]);
            version2.dropped(&operation(xid, CALL, kind::ERROR, info, &[]))?;
            // Of the other direction: it is no error of a Reply.
            let info = Words::default().words(&[xid, CALL, 0, 0, fault::NO_GROUP]);
            version2.dropped(&operation(xid, REPLY, kind::ERROR, info, &[]))
        },
    },
    Check {
        name: "group-broken-off",
        rules: &["RTR-4.2-a"],
        sent: "the first of two transmissions, and the end of the connection",
        expected: "the peer serves the next one",
        needs: Null,
        run: |probe| {
            let mut version2 = continued(probe, 2)?;
            let (xid, payload) = null_payload(&mut version2);
            version2.probe.send(&lead(xid, 2, &payload[..16], 16))?;
            version2.probe.reconnect()?;
            Ok("NULL is answered on a new connection".to_owned())
        },
    },
    Check {
        name: "placed-write",
        rules: &["RTR-7.3-a", "RTR-7.3-b", "RTR-6.2-a", "RTR-5.3-a", "RTR-X-10"],
        sent: "WRITE of 3001 octets in the first target of the peer's Receive",
        expected: "a Reply, and the octets in the file",
        needs: Files,
        run: |probe| write_placed(probe, 3001, 0),
    },
    Check {
        name: "placed-write-offset",
        rules: &["RTR-7.3-b"],
        sent: "WRITE of 1000 octets from offset 8 of the first target on",
        expected: "a Reply, and the octets in the file",
        needs: Files,
        run: |probe| write_placed(probe, 1000, 8),
    },
    Check {
        name: "placed-write-two-targets",
        rules: &["RTR-7.3-b", "RTR-6.2-a", "RTR-7.3-e"],
        sent: "WRITE of 5000 octets in the first two targets",
        expected: "a Reply, and the octets in the file",
        needs: Files,
        run: |probe| write_placed(probe, 5000, 0),
    },
    Check {
        name: "placed-write-no-target",
        rules: &["RTR-9.5-a", "RTR-X-20"],
        sent: "WRITE whose data is in a target that no Receive has",
        expected: "XMTERR BADTBSN",
        needs: Files,
        run: |probe| write_nowhere(probe, fault::TARGET, 100, 0, |count| vec![count + 90]),
    },
    Check {
        name: "placed-write-unsent",
        rules: &["RTR-X-20"],
        sent: "WRITE whose data is in a target of which nothing was sent",
        expected: "XMTERR BADTBSN",
        needs: Files,
        run: |probe| write_nowhere(probe, fault::TARGET, 3000, 0, |_| vec![0]),
    },
    Check {
        name: "placed-write-bad-offset",
        rules: &["RTR-9.5-b"],
        sent: "WRITE whose data begins behind the end of its target",
        expected: "XMTERR BADOFF",
        needs: Files,
        run: |probe| write_nowhere(probe, fault::OFFSET, 100, 1 << 20, |_| vec![0]),
    },
    Check {
        name: "placed-write-no-list",
        rules: &["RTR-X-20"],
        sent: "WRITE of 100 octets with an empty list of targets",
        expected: "XMTERR BADTBSN",
        needs: Files,
        run: |probe| write_nowhere(probe, fault::TARGET, 100, 0, |_| Vec::new()),
    },
    Check {
        name: "placed-write-explicit",
        rules: &["RTR-7.3-c", "RTR-X-25"],
        sent: "WRITE by XMTREQ of 3001 octets in two segments of this side's memory (EXRW)",
        expected: "a Reply, and the octets in the file",
        needs: Files,
        run: |probe| {
            let mut version2 = Version2Probe::extended(probe, REQUESTS)?;
            let data = data(version2.probe, 3001);
            let (xid, call) = write_call(version2.probe, 3001)?;
            let segments = sources(version2.probe, &data, &[1000]);
            let mut items = Words::default().words(&[1, call.0.len() as u32, 3001, place::EXPLICIT]);
            items = items.words(&[segments.len() as u32]);
            for segment in &segments {
                let [high, low] = [(segment.offset >> 32) as u32, segment.offset as u32];
                items = items.words(&[segment.handle, segment.length, high, low]);
            }
            let info = request(items, none(), 1, 0, call.0.len());
            let message = operation(xid, CALL, kind::REQUEST, info, &call.0);
            let whole = version2.whole_reply(xid, &message, 0)?;
            ensure(status(&whole.payload) == Some(0), || format!("NFS status {:?}", status(&whole.payload)))?;
            version2.probe.reconnect()?;
            target_holds(version2.probe, &data[..3000])?;
            Ok("3001 octets in 2 segments: written, and read back".to_owned())
        },
    },
    Check {
        name: "directed-targets",
        rules: &["RTR-7.4-e", "RTR-7.4-f", "RTR-5.3-c", "RTR-9.3-a", "RTR-7.3-a", "RTR-X-9"],
        sent: "READ of 5000 octets, its data directed to targets (TBSN)",
        expected: "XMTRESP with one item, in targets of this side's Receive or TOOSHORT; at the place of the data in the \
            virtual stream, and with zeros in front of the targets",
        needs: Files,
        run: |probe| directed(probe, 5000, 0, &[place::TARGETS], &[place::TARGETS, place::TOO_SHORT], 0),
    },
    Check {
        name: "directed-short",
        rules: &["RTR-7.4-c", "RTR-X-15"],
        sent: "READ of 100 octets, directed to targets from 512 octets on",
        expected: "TOOSHORT, and the data in the Payload stream",
        needs: Files,
        run: |probe| directed(probe, 100, 512, &[place::TARGETS], &[place::TOO_SHORT], 0),
    },
    Check {
        name: "directed-nothing",
        rules: &["RTR-7.4-d", "RTR-X-15", "RTR-7.4-f"],
        sent: "GETATTR with a direction for data that it does not have",
        expected: "XMTRESP with one item: NOITEM",
        needs: Files,
        run: |probe| {
            let mut version2 = Version2Probe::extended(probe, REQUESTS | RESPONSES)?;
            let xid = version2.probe.xid();
            let files = files(version2.probe)?;
            let call = files.call(xid, number::GETATTR).opaque(&files.file).0;
            let directions = direction(call.len(), 0, &[place::TARGETS]);
            let info = request(none(), directions, 1, 0, call.len());
            let whole = version2.whole_reply(xid, &operation(xid, CALL, kind::REQUEST, info, &call), 0)?;
            ensure(status(&whole.payload) == Some(0), || "no results".to_owned())?;
            let places: Vec<u32> = whole.items.iter().map(|item| item.place).collect();
            ensure(places == [place::NO_ITEM], || format!("results {places:?}"))?;
            Ok("NOITEM".to_owned())
        },
    },
    Check {
        name: "directed-elsewhere",
        rules: &["RTR-7.4-a", "RTR-7.4-d", "RTR-X-22"],
        sent: "READ with directions to targets for the range of its xid and msg_type, and for one behind its end",
        expected: "XMTRESP with two items, both NOITEM, and the data in the Payload stream",
        needs: Files,
        run: |probe| {
            let mut version2 = Version2Probe::extended(probe, REQUESTS | RESPONSES)?;
            let draft = read(version2.probe, 0, 1000)?;
            let (xid, end) = (draft.fixed.xid, draft.payload.len() as u32);
            let set = |begin: u32, end: u32| [begin, end, 1, 0, place::TARGETS];
            let directions = Words::default().words(&[2]).words(&set(0, 8)).words(&set(end, end + 400));
            let info = request(none(), directions, 1, 0, draft.payload.len());
            let call = operation(xid, CALL, kind::REQUEST, info, &draft.payload);
            let whole = version2.whole_reply(xid, &call, 0)?;
            let places: Vec<u32> = whole.items.iter().map(|item| item.place).collect();
            ensure(places == [place::NO_ITEM; 2], || format!("results {places:?}"))?;
            let found = results(&whole.payload)?;
            ensure(found.inline == content()[..1000], || {
                format!("{} octets in the Payload stream, not the file's 1000", found.inline.len())
            })?;
            Ok("NOITEM twice, and the data inline".to_owned())
        },
    },
    Check {
        name: "directed-explicit",
        rules: &["RTR-7.4-e", "RTR-7.3-c", "RTR-5.3-b", "RTR-7.4-f"],
        sent: "READ of 5000 octets, its data directed to a segment (EXRW)",
        expected: "XMTRESP with the data in that segment, or TOOSHORT",
        needs: Files,
        run: |probe| directed_to_segment(probe, &[place::EXPLICIT], &[place::EXPLICIT, place::TOO_SHORT]),
    },
    Check {
        name: "directed-choice",
        rules: &["RTR-7.4-e", "RTR-7.4-f"],
        sent: "READ of 5000 octets with CHOICE, and a segment",
        expected: "XMTRESP with the data in targets, in the segment, or TOOSHORT",
        needs: Files,
        run: |probe| {
            let allowed = [place::TARGETS, place::EXPLICIT, place::TOO_SHORT];
            directed_to_segment(probe, &[place::CHOICE], &allowed)
        },
    },
    Check {
        name: "directed-by-size",
        rules: &["RTR-X-2", "RTR-7.4-e"],
        sent: "READ of 5000 octets with BYSIZE from 4096 octets on, and a segment",
        expected: "XMTRESP with the data in the segment, or TOOSHORT: it is as long as that",
        needs: Files,
        run: |probe| {
            directed_to_segment(probe, &[place::BY_SIZE, 4096], &[place::EXPLICIT, place::TOO_SHORT])
        },
    },
    Check {
        name: "directed-continued",
        rules: &["RTR-5.2-b", "RTR-9.4-a", "RTR-4.3-c", "RTR-7.3-e", "RTR-5.2-c"],
        sent: "READ of 12000 octets to targets, with three Receives more for its Reply",
        expected: "XMTRESP of as many transmissions at most, in their order, with the data in their targets",
        needs: Files,
        run: |probe| directed(probe, 12_000, 0, &[place::TARGETS], &[place::TARGETS, place::TOO_SHORT], 3),
    },
    Check {
        name: "directed-too-long",
        rules: &["RTR-5.2-b", "RTR-X-1", "RTR-4.3-c"],
        sent: "READ of 20001 octets to targets, without Receives for further transmissions, nor chunks",
        expected: "a refusal: it fits nowhere",
        needs: Files,
        run: |probe| {
            let mut version2 = Version2Probe::extended(probe, REQUESTS | RESPONSES)?;
            let (xid, octets) = read_directed(&mut version2, FILE_LEN as u32, 0, &[place::TARGETS], 0)?;
            let seen = version2.ask(xid, &octets)?;
            // A shorter READ is as good a way out.
            let is_refused = matches!(seen.body, SeenBody::ErrChunk);
            if !is_refused {
                let info = match &seen.body {
                    SeenBody::Operation { kind: kind::RESPONSE, info, .. } => info,
                    _ => return fail(seen.to_string()),
                };
                let count = crate::operation::SeenResponse::of(info).map(|response| response.count);
                ensure(count == Some(1), || format!("{seen}: {count:?} transmissions"))?;
            }
            version2.ask_null("the same connection")?;
            Ok(seen.to_string())
        },
    },
];
