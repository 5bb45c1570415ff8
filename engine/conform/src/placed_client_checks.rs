//! Checks of a client of version 2 whose data goes in messages: its groups of transmissions, and its treatment of those of a
//! Reply. They need a client that reads and writes files of the scratch service.

use stag_wire::rpcrdma::procedure;

use crate::answering::PlacedReply;
use crate::check::{CheckOutcome, Stop, ensure, fail, not_applicable};
use crate::client_checks::ClientCheck;
use crate::message::{DraftMessage, SECOND, SeenBody, SeenMessage, Words};
use crate::operation::{
    CALL, RECEIVE_SIZE, REPLY, SeenFault, TARGETS, characteristic, fault, initial, kind, operation,
    own_characteristics, place, word_value,
};
use crate::served::{GRANT, HOLD, ServedClient, is_call};
use crate::version2_client_checks::{probe_of, speak};

/// A target that no group of the size that this side makes has.
const NO_TARGET: u32 = 4096;

/// Whether the Call is a group whose data is in targets.
fn has_data(client: &ServedClient, call: &SeenMessage) -> bool {
    let group = client.groups.get(&call.fixed.xid);
    group.is_some_and(|group| group.data.iter().any(|data| !data.is_empty()))
}

/// The first rule that the client's messages broke since they were cleared.
fn offences(client: &ServedClient) -> Result<(), Stop> {
    match client.offences.first() {
        Some((rule, what)) => fail(format!("{rule}: {what}")),
        None => Ok(()),
    }
}

/// The first Call of version 2 that `is_wanted`; those before it are answered, also those of other connections. `what` it does.
fn second_call(
    client: &mut ServedClient,
    what: &str,
    is_wanted: impl Fn(&ServedClient, &SeenMessage) -> bool,
) -> Result<SeenMessage, Stop> {
    for _ in 0..CALLS_MAX {
        speak(client)?;
        let call = client.call()?;
        if client.may_be_version2() && is_wanted(client, &call) {
            return Ok(call);
        }
        client.answer(&call)?;
    }
    not_applicable(format!("none of {CALLS_MAX} Calls {what}"))
}

/// `count` Calls of this kind come and are answered, and nothing on the way breaks a rule.
fn calls_that(
    client: &mut ServedClient,
    count: usize,
    what: &str,
    is_wanted: impl Fn(&ServedClient, &SeenMessage) -> bool,
) -> CheckOutcome {
    client.offences.clear();
    for _ in 0..count {
        let call =
            second_call(client, what, |client, call| !client.offences.is_empty() || is_wanted(client, call))?;
        offences(client)?;
        client.answer(&call)?;
    }
    Ok(format!("{count} that {what}, each as it should be"))
}

/// On new connections where this side tells `info` of itself: of the Calls up to the second with data `is_right` holds, and they
/// break no rule.
fn told(
    client: &mut ServedClient,
    info: &Words,
    targets: usize,
    is_right: impl Fn(&ServedClient, &SeenMessage) -> Result<(), Stop>,
) -> CheckOutcome {
    let mut with_data = 0;
    // Some clients have no data to send: another comes.
    for _ in 0..CONNECTIONS_MAX {
        let probe = probe_of(client)?;
        client.answer(&probe)?;
        client.send(&operation(0, CALL, kind::INITIAL, info.clone(), &[]), None)?;
        client.targets = targets;
        client.offences.clear();
        let mut calls = 0;
        loop {
            let call = client.call()?;
            calls += 1;
            // The first of another connection is for that one.
            if !client.may_be_version2() {
                client.answer(&call)?;
                break;
            }
            if calls > CALLS_MAX {
                client.answer(&call)?;
                return not_applicable(format!("none of {CALLS_MAX} Calls had data"));
            }
            offences(client)?;
            is_right(client, &call)?;
            with_data += u32::from(has_data(client, &call) || !call.reads().is_empty());
            client.answer(&call)?;
            if with_data == DATA_CALLS {
                client.disconnect();
                return Ok("Calls with data, as this side can take them".to_owned());
            }
        }
    }
    client.disconnect();
    not_applicable("the clients sent no data")
}

/// Connections that are made in search of data, or of a client that goes on.
const CONNECTIONS_MAX: usize = 6;

/// Calls with data after which it is said that they are all right. A client may make those again that were under way when its connection
/// ended, as it made them before.
const DATA_CALLS: u32 = 16;

/// Calls that are answered in search of data.
const CALLS_MAX: usize = 200;

/// A Call whose results go in targets, with at least `receives` Receives for further transmissions, and the right
/// Reply.
fn directed(client: &mut ServedClient, receives: u32) -> Result<(SeenMessage, PlacedReply), Stop> {
    for _ in 0..CALLS_MAX {
        let call = second_call(client, "wanted data in targets", |client, call| {
            client.groups.get(&call.fixed.xid).is_some_and(|group| {
                let first = group.request.directions.first();
                first.is_some_and(|first| first.place != place::EXPLICIT)
                    && group.request.response_receives >= receives
            })
        })?;
        let (stream, payload) = client.executed(&call)?;
        let Some(group) = client.groups.get(&call.fixed.xid).cloned() else { continue };
        let placed = client.placed(&call, GRANT, &group, (&stream, payload))?;
        // Enough for an offset of some octets.
        if placed.reply.data.len() > 8 {
            return Ok((call, placed));
        }
        client.answer(&call)?;
    }
    not_applicable("the client read nothing")
}

/// The Reply with the last words of its Payload stream in another transmission.
fn split(placed: &mut PlacedReply) {
    placed.reply.part_max = placed.reply.payload.len().saturating_sub(8).max(24);
}

/// The Reply as `change` makes it is right: the client goes on. One that ends may have had all that it wanted, so others are tried.
fn takes(client: &mut ServedClient, receives: u32, change: impl Fn(&mut PlacedReply)) -> CheckOutcome {
    let mut came = String::new();
    for _ in 0..CONNECTIONS_MAX {
        let (call, mut placed) = directed(client, receives)?;
        change(&mut placed);
        client.note_answered_call(&call, GRANT);
        client.send_placed(&mut placed)?;
        match has_taken(client) {
            Ok(true) => {
                let octets = placed.reply.data.len();
                return Ok(format!("its next Call, after a Reply with {octets} octets in targets"));
            }
            Ok(false) => return not_applicable("no other Call came"),
            Err(Stop::Fail(why)) if client.may_be_version2() => return fail(why),
            Err(Stop::Fail(why)) => came = why,
            Err(stop) => return Err(stop),
        }
    }
    fail(came)
}

/// Makes it the Reply of a service that failed: there is no result.
fn leave_out(placed: &mut PlacedReply) {
    // Answered, accepted, with no verifier: SYSTEM_ERR (RFC 5531, section 9).
    placed.reply.payload = Words::default().words(&[placed.reply.xid, 1, 0, 0, 0, 5]).0;
    placed.reply.data.clear();
    for item in &mut placed.reply.items {
        (item.displacement, item.len, item.place) = (0, 0, place::NO_ITEM);
    }
}

/// After a Reply that is right: no XMTERR comes, and other Calls do. Calls that were under way come first, so it waits until nothing
/// comes any more; they are left for the next check.
fn has_taken(client: &mut ServedClient) -> Result<bool, Stop> {
    let mut has_call = false;
    while let Some(seen) = client.message(if has_call { HOLD } else { HOLD * 10 })? {
        if is_call(&seen) {
            client.put_back(seen);
            has_call = true;
        } else if !is_initial(&seen) {
            return refused(&seen).map(|_| false);
        }
    }
    Ok(has_call)
}

/// Whether it is ROPT_INITXCH, which may come at any time.
fn is_initial(seen: &SeenMessage) -> bool {
    matches!(seen.body, SeenBody::Operation { kind: kind::INITIAL, .. })
}

fn refused(seen: &SeenMessage) -> CheckOutcome {
    match SeenFault::of_message(seen, CALL) {
        Ok(found) => fail(format!("XMTERR {} {:?}, for a Reply that is right", found.which, found.info)),
        Err(_) => fail(seen.to_string()),
    }
}

/// The Reply's transmissions as `change` makes them are wrong: XMTERR `which` comes, and the right Reply after it is taken. The Reply has
/// several of them if `is_split`. A client that ends after the right Reply may have had all that it wanted, so others are tried.
fn refuses(
    client: &mut ServedClient,
    (which, is_split): (u32, bool),
    change: impl Fn(&mut Vec<Vec<u8>>),
) -> CheckOutcome {
    let mut came = String::new();
    for _ in 0..CONNECTIONS_MAX {
        let (call, mut placed) = directed(client, u32::from(is_split))?;
        let mut wrong = placed.clone();
        if is_split {
            split(&mut wrong);
        }
        let mut sends = client.transmissions(&mut wrong)?;
        change(&mut sends);
        for octets in sends {
            client.send(&octets, None)?;
        }
        let found = loop {
            match client.message(HOLD * 3)? {
                Some(seen) if is_call(&seen) => client.put_back(seen),
                Some(seen) if is_initial(&seen) => {}
                Some(seen) => break SeenFault::of_message(&seen, CALL)?,
                None => return fail("no XMTERR"),
            }
        };
        ensure(found.which == which, || format!("XMTERR {}, not {which}", found.which))?;
        ensure(found.bad[1] == REPLY, || format!("XMTERR of {:x?}, which is no Reply", found.bad))?;
        ensure(which != fault::NUMBER || found.info == [1, 2], || {
            format!("expected and found: {:?}", found.info)
        })?;
        client.note_answered_call(&call, GRANT);
        client.send_placed(&mut placed)?;
        match has_taken(client) {
            Ok(_) => return Ok(format!("XMTERR {which}; the right Reply after it is taken")),
            Err(Stop::Fail(why)) if !client.may_be_version2() => came = why,
            Err(stop) => return Err(stop),
        }
    }
    fail(came)
}

/// Sets a word of a message.
fn set(octets: &mut [u8], at: usize, word: u32) {
    if let Some(place) = octets.get_mut(at..at + 4) {
        place.copy_from_slice(&word.to_be_bytes());
    }
}

/// Octets in front of an operation.
const OPERATION_AT: usize = 28;

/// The octet behind the operation of a message.
fn end_of_operation(octets: &[u8]) -> usize {
    let len = octets.get(24..28).and_then(|word| word.try_into().ok()).map_or(0, u32::from_be_bytes);
    OPERATION_AT + len as usize
}

/// What this side tells of itself where it has no targets.
fn without_targets() -> Words {
    initial(&[
        word_value(characteristic::RECEIVE_SIZE, RECEIVE_SIZE as u32),
        word_value(characteristic::SUPPORT, 7),
        word_value(characteristic::REQUEST_LIMIT, 8),
        word_value(characteristic::RESPONSE_LIMIT, 8),
    ])
}

/// The checks.
pub static CHECKS: &[ClientCheck] = &[
    ClientCheck {
        name: "client-group-calls",
        rules: &["RTR-9.2-a", "RTR-9.2-b", "RTR-4.2-b", "RTR-7.4-a", "RTR-5.2-c", "RTR-X-9", "RTR-X-16"],
        sent: "Replies as they should be, with content",
        expected: "8 Calls by XMTREQ: each can be read, is within what it holds, and has ranges in order",
        run: |client| {
            calls_that(client, 8, "came by XMTREQ", |client, call| {
                client.groups.contains_key(&call.fixed.xid)
            })
        },
    },
    ClientCheck {
        name: "client-placed-data",
        rules: &["RTR-7.3-b", "RTR-6.2-a", "RTR-7.3-a", "RTR-7.3-e", "RTR-X-18", "RTR-X-20"],
        sent: "Replies as they should be, with content",
        expected: "4 Calls with data in the targets that this side told of; the arguments can be read with it in its place",
        run: |client| calls_that(client, 4, "have data in targets", has_data),
    },
    ClientCheck {
        name: "client-group-continued",
        rules: &["RTR-9.4-a", "RTR-4.2-a", "RTR-9.4-b", "RTR-X-4", "RTR-X-5", "RTR-X-8", "RTR-4.3-a"],
        sent: "Replies as they should be, with content",
        expected: "4 Calls of several transmissions, in order, with nothing between them, within the grant",
        run: |client| {
            calls_that(client, 4, "have several transmissions", |client, call| {
                client.groups.get(&call.fixed.xid).is_some_and(|group| group.request.count > 1)
            })
        },
    },
    ClientCheck {
        name: "client-group-limit",
        rules: &["RTR-5.2-a", "RTR-4.3-a"],
        sent: "a Request Transmission Receive Limit of 1",
        expected: "Calls with data, none of several transmissions",
        run: |client| {
            told(client, &own_characteristics(1), TARGETS, |client, call| {
                let count = client.groups.get(&call.fixed.xid).map_or(1, |group| group.request.count);
                ensure(count == 1, || format!("a Call of {count} transmissions"))
            })
        },
    },
    ClientCheck {
        name: "client-no-targets",
        rules: &["RTR-5.3-a"],
        sent: "no Receive Buffer Structure: this side has no targets",
        expected: "Calls with data, none of it in targets",
        run: |client| told(client, &without_targets(), 0, |_, _| Ok(())),
    },
    ClientCheck {
        name: "client-takes-targets",
        rules: &["RTR-7.3-b", "RTR-6.2-a", "RTR-7.2-a", "RTR-9.3-a", "RTR-7.4-f"],
        sent: "data in targets, as the client's Receive Buffer Structure has them",
        expected: "its next Call",
        run: |client| takes(client, 0, |_| {}),
    },
    ClientCheck {
        name: "client-takes-offset",
        rules: &["RTR-7.3-b"],
        sent: "data that begins 4 octets into its first target",
        expected: "its next Call",
        run: |client| takes(client, 0, |placed| placed.reply.offset = 4),
    },
    ClientCheck {
        name: "client-takes-no-item",
        rules: &["RTR-7.4-d"],
        sent: "a Reply without results (SYSTEM_ERR), which says NOITEM for each direction",
        expected: "its next Call",
        run: |client| takes(client, 0, leave_out),
    },
    ClientCheck {
        name: "client-takes-continued",
        rules: &["RTR-9.4-a", "RTR-7.3-e", "RTR-4.3-c"],
        sent: "a Reply with the Payload stream in two transmissions, data behind both",
        expected: "its next Call; or not to be said, if it has no Receive for that",
        run: |client| takes(client, 1, split),
    },
    ClientCheck {
        name: "client-refuses-target",
        rules: &["RTR-X-20", "RTR-9.5-a", "RTR-5.4-a", "RTR-5.4-c", "RTR-9.5-b"],
        sent: "XMTRESP that names a target which its group does not have, and the right Reply",
        expected: "XMTERR BADTBSN with direction CALL, and its next Call",
        run: |client| {
            refuses(client, (fault::TARGET, false), |sends| {
                // The last number of the only item, in front of count and length.
                let at = end_of_operation(&sends[0]) - 12;
                set(&mut sends[0], at, NO_TARGET);
            })
        },
    },
    ClientCheck {
        name: "client-refuses-offset",
        rules: &["RTR-9.5-a", "RTR-7.3-b", "RTR-5.4-c"],
        sent: "XMTRESP with an offset beyond its target, and the right Reply",
        expected: "XMTERR BADOFF with direction CALL, and its next Call",
        run: |client| {
            refuses(client, (fault::OFFSET, false), |sends| {
                // Count, displacement, length, place, offset.
                set(&mut sends[0], OPERATION_AT + 16, 1 << 20);
            })
        },
    },
    ClientCheck {
        name: "client-refuses-payload",
        rules: &["RTR-9.5-a", "RTR-9.2-b", "RTR-5.4-c"],
        sent: "XMTRESP with a Payload stream longer than the message, and the right Reply",
        expected: "XMTERR BADPL with direction CALL, and its next Call",
        run: |client| {
            refuses(client, (fault::PAYLOAD, false), |sends| {
                let at = end_of_operation(&sends[0]) - 4;
                set(&mut sends[0], at, 1 << 20);
                sends.truncate(1);
            })
        },
    },
    ClientCheck {
        name: "client-refuses-number",
        rules: &["RTR-X-4", "RTR-9.4-a", "RTR-9.5-a", "RTR-X-19"],
        sent: "a Reply of several transmissions, the second of which has the number 2; and the right Reply",
        expected: "XMTERR BADSEQ that expected 1 and found 2, and its next Call",
        run: |client| refuses(client, (fault::NUMBER, true), |sends| set(&mut sends[1], OPERATION_AT, 2)),
    },
    ClientCheck {
        name: "client-refuses-xid",
        rules: &["RTR-9.4-a", "RTR-4.2-a", "RTR-9.5-a"],
        sent: "a Reply of several transmissions, the second of which has another xid; and the right Reply",
        expected: "XMTERR BADXID with direction CALL, and its next Call",
        run: |client| {
            refuses(client, (fault::XID, true), |sends| {
                sends[1][0] ^= 0x80;
            })
        },
    },
    ClientCheck {
        name: "client-refuses-between",
        rules: &["RTR-4.2-a", "RTR-9.5-a"],
        sent: "a base message to no Call of its between two transmissions of a Reply, and the right Reply",
        expected: "XMTERR BADHMT with direction CALL, and its next Call",
        run: |client| {
            refuses(client, (fault::PROCEDURE, true), |sends| {
                let mut other = DraftMessage::null(0x0f0f_0f0f);
                other.payload = Words::default().words(&[0x0f0f_0f0f, 1, 0, 0, 0, 0]).0;
                (other.fixed.version, other.fixed.credits) = (SECOND, GRANT);
                (other.direction, other.fixed.procedure) = (Some(REPLY), procedure::MSG);
                sends.truncate(1);
                sends.push(other.octets());
            })
        },
    },
];
