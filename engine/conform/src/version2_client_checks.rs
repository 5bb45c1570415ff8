//! Checks of a client that speaks version 2: its Calls, and its reaction to wrong answers.

use stag_wire::rpcrdma::{Segment, procedure};

use crate::block::{FeatureBlock, SPEAKS_SECOND, private_data_with};
use crate::check::{CheckOutcome, Stop, ensure, fail, not_applicable};
use crate::client_checks::ClientCheck;
use crate::message::{DraftMessage, SECOND, SeenBody, SeenMessage, Words, call_header};
use crate::operation::{
    CALL, CREDITS, REPLY, SeenFault, ToldCharacteristics, characteristic, continuation, fault, initial, kind,
    none, operation, own_characteristics, word_value,
};
use crate::probe::own_private_data;
use crate::served::{GRANT, HOLD, ServedClient, is_call};
use crate::version2::as_version2;

/// The probe of a new connection on which both sides announced version 2.
pub(crate) fn probe_of(client: &mut ServedClient) -> Result<SeenMessage, Stop> {
    let call = client.first_call(&private_data_with(false, SPEAKS_SECOND, 0))?;
    if !FeatureBlock::has(&client.requested, SPEAKS_SECOND) {
        client.answer(&call)?;
        // The next check has a connection on which this side did not announce it either.
        client.disconnect();
        return not_applicable("the client does not announce version 2");
    }
    Ok(call)
}

/// Answers the probe, and tells characteristics of this side.
fn answer_probe(client: &mut ServedClient, probe: &SeenMessage) -> Result<(), Stop> {
    ensure(probe.fixed.version == SECOND, || {
        format!("{probe}: it announced version 2, and did not probe for it")
    })?;
    client.answer(probe)?;
    client.send(&operation(0, CALL, kind::INITIAL, own_characteristics(8), &[]), None)
}

/// A connection that speaks version 2: the one there is, or a new one.
pub(crate) fn speak(client: &mut ServedClient) -> Result<(), Stop> {
    if client.may_be_version2() {
        return Ok(());
    }
    let probe = probe_of(client)?;
    answer_probe(client, &probe)
}

/// As [`ServedClient::drops`], where version 2 is spoken.
fn drops(
    client: &mut ServedClient,
    wrong: impl FnOnce(&SeenMessage, DraftMessage) -> Vec<u8>,
) -> CheckOutcome {
    speak(client)?;
    client.drops(wrong)
}

/// An error in place of the Reply.
fn error(call: &SeenMessage, words: &[u32]) -> Vec<u8> {
    Words::default().words(&[call.fixed.xid, SECOND, GRANT, procedure::ERROR]).words(words).0
}

/// After an operation that has an answer, and the right Reply: what came besides Calls.
fn answer_to(
    client: &mut ServedClient,
    make: impl FnOnce(&SeenMessage) -> Vec<u8>,
) -> Result<Option<SeenMessage>, Stop> {
    speak(client)?;
    let call = client.call()?;
    client.send(&make(&call), None)?;
    let mut answer = None;
    // What answers it comes before anything else does: the client has no other Reply.
    while let Some(seen) = client.message(HOLD)? {
        if !is_call(&seen) && !matches!(seen.body, SeenBody::Operation { kind: kind::INITIAL, .. }) {
            answer = Some(seen);
            break;
        }
    }
    client.answer(&call)?;
    client.goes_on(&call)?;
    Ok(answer)
}

fn first_alone(client: &mut ServedClient) -> CheckOutcome {
    client.offences.clear();
    let probe = probe_of(client)?;
    ensure(probe.fixed.procedure == procedure::MSG && probe.fixed.version == SECOND, || {
        format!("{probe}, in place of a probe")
    })?;
    ensure(probe.len <= 1024, || format!("{} octets", probe.len))?;
    if let Some(seen) = client.message(HOLD)? {
        return fail(format!("{seen}, before the probe was answered"));
    }
    answer_probe(client, &probe)?;
    let came = client.goes_on(&probe)?;
    match client.offences.first() {
        Some((rule, what)) => fail(format!("{rule}: {what}")),
        None => Ok(format!("{probe}, {} octets, direction CALL; then {came}", probe.len)),
    }
}

/// The checks.
pub static CHECKS: &[ClientCheck] = &[
    ClientCheck {
        name: "client-second-probe",
        rules: &["V2-5-a", "V2-X-4", "V2-5.1-a", "V2-4.2.2-b"],
        sent: "an accept that announces version 2, and the first Reply late",
        expected: "one RDMA2_MSG with direction CALL, of 1024 octets at most; no other message before it is answered",
        run: first_alone,
    },
    ClientCheck {
        name: "client-second-calls",
        rules: &["V2-5.3-a", "V2-3.2-a", "V2-3-a", "V2-4.2.1-a", "V2-4.2.2-d", "XC-j"],
        sent: "Replies as they should be",
        expected: "16 Calls of version 2: direction, xid and msg_type agree, none longer than this side's Receives",
        run: |client| {
            speak(client)?;
            client.offences.clear();
            for _ in 0..16 {
                let call = client.call()?;
                ensure(client.may_be_version2(), || "the connection ended".to_owned())?;
                client.answer(&call)?;
            }
            match client.offences.first() {
                Some((rule, what)) => fail(format!("{rule}: {what}")),
                None => Ok("16 Calls, each as it should be".to_owned()),
            }
        },
    },
    ClientCheck {
        name: "client-characteristics",
        rules: &["XC-c", "XC-b", "RTR-7.2-c", "RTR-8.3-a"],
        sent: "Replies as they should be",
        expected: "ROPT_INITXCH that can be read, whose values fit each other; or none",
        run: |client| {
            speak(client)?;
            let call = client.call()?;
            client.answer(&call)?;
            client.goes_on(&call)?;
            let Some(info) = client.characteristics.clone() else {
                return not_applicable("the client tells no characteristics, which is its choice");
            };
            let Some(told) = ToldCharacteristics::of_initial(&info) else {
                return fail("ROPT_INITXCH that cannot be read");
            };
            told.check()?;
            let ids: Vec<String> = told.values.iter().map(|(id, _)| id.to_string()).collect();
            Ok(format!("ROPT_INITXCH with {}", ids.join(", ")))
        },
    },
    ClientCheck {
        name: "client-second-unknown-xid",
        rules: &["V2-X-5", "V2-4.2.2-d"],
        sent: "a Reply to a Call that was not made, before the right one",
        expected: "its next Call: the first is dropped",
        run: |client| {
            drops(client, |call, mut reply| {
                reply.fixed.xid = !call.fixed.xid;
                reply.payload.splice(..4, reply.fixed.xid.to_be_bytes());
                reply.octets()
            })
        },
    },
    ClientCheck {
        name: "client-second-short",
        rules: &["V2-X-6"],
        sent: "the first 31 octets of a Reply, before the right one",
        expected: "its next Call: the first is dropped",
        run: |client| drops(client, |_, reply| reply.octets()[..31].to_vec()),
    },
    ClientCheck {
        name: "client-second-direction",
        rules: &["V2-3.2-a", "V2-4.2.2-b", "V2-X-7"],
        sent: "a Reply with direction 7, and one with direction CALL, before the right one",
        expected: "its next Call: both are dropped",
        run: |client| {
            for direction in [7, CALL] {
                drops(client, |_, mut reply| {
                    reply.direction = Some(direction);
                    reply.octets()
                })?;
            }
            Ok("its next Call, after each".to_owned())
        },
    },
    ClientCheck {
        name: "client-second-msg-type",
        rules: &["V2-4.2.2-b"],
        sent: "a message with direction REPLY that holds an RPC Call, before the right Reply",
        expected: "its next Call: the first is dropped",
        run: |client| {
            drops(client, |_, mut reply| {
                reply.payload[7] = 0;
                reply.octets()
            })
        },
    },
    ClientCheck {
        name: "client-second-read-list",
        rules: &["RR-P-6", "V2-4.2.1-a"],
        sent: "an RDMA2_NOMSG Reply with a Read list, before the right one",
        expected: "its next Call: version 2 has no exposed Replies, and the first is dropped",
        run: |client| {
            drops(client, |_, mut reply| {
                reply.fixed.procedure = procedure::NOMSG;
                reply.payload.clear();
                let segment = Segment { handle: 1, length: 64, offset: 0 };
                reply.reads.push((0, segment));
                reply.octets()
            })
        },
    },
    ClientCheck {
        name: "client-second-error-unknown",
        rules: &["V2-4.2.3-a", "V2-X-7"],
        sent: "BAD_HEADER for a Call that was not made, and an error code 9 for its own, before the right Reply",
        expected: "its next Call: both are dropped",
        run: |client| {
            drops(client, |call, _| {
                Words::default().words(&[!call.fixed.xid, SECOND, GRANT, procedure::ERROR, 2]).0
            })?;
            drops(client, |call, _| error(call, &[9]))
        },
    },
    ClientCheck {
        name: "client-characteristics-unknown",
        rules: &["XC-g", "XC-k", "XC-j"],
        sent: "ROPT_INITXCH with ids that are not known, before the right Reply",
        expected: "its next Call: they are skipped",
        run: |client| {
            drops(client, |_, _| {
                let values = [word_value(0xffff_ff77, 1), word_value(999, 2)];
                operation(0, CALL, kind::INITIAL, initial(&values), &[])
            })
        },
    },
    ClientCheck {
        name: "client-characteristics-reply",
        rules: &["XC-X-4", "XC-g"],
        sent: "ROPT_INITXCH with direction REPLY and ids that are not known, before the right Reply",
        expected: "its next Call: what an end tells of itself may have either direction",
        run: |client| {
            drops(client, |_, _| {
                operation(0, REPLY, kind::INITIAL, initial(&[word_value(0xffff_ff77, 1)]), &[])
            })
        },
    },
    ClientCheck {
        name: "client-second-reverse-call",
        rules: &["V2-4.2.2-a", "V2-4.2.2-d", "8167-2.4-a", "8167-L-1"],
        sent: "a NULL Call to the client, with the xid of its own Call, before the right Reply",
        expected: "its next Call: the other direction has xids of its own; it may answer, refuse or drop the Call",
        run: |client| {
            drops(client, |call, _| {
                let xid = call.fixed.xid;
                as_version2(DraftMessage::of(xid, call_header(xid, 0x4000_0001, 1, 0))).octets()
            })
        },
    },
    ClientCheck {
        name: "client-second-reverse-chunk",
        rules: &["V2-4.2.2-a", "8167-5.3-b", "8167-L-1"],
        sent: "a NULL Call to the client with a Write chunk, before the right Reply",
        expected: "its next Call; it refuses the Call with BAD_HEADER, or drops or serves it",
        run: |client| {
            drops(client, |call, _| {
                let xid = call.fixed.xid ^ 0x0f0f;
                let mut draft = as_version2(DraftMessage::of(xid, call_header(xid, 0x4000_0001, 1, 0)));
                draft.writes = vec![vec![Segment { handle: 0x5555, length: 64, offset: 0 }]];
                draft.octets()
            })
        },
    },
    ClientCheck {
        name: "client-characteristics-ask",
        rules: &["XC-a", "XC-d"],
        sent: "ROPT_REQXCH, before the right Reply",
        expected: "ROPT_RESPXCH or INVAL_OPTION with its xid, and its next Call",
        run: |client| {
            let answer = answer_to(client, |_| {
                let info = Words::default().words(&[1, characteristic::RECEIVE_SIZE, 4, 4096]);
                operation(0x0f0f, CALL, kind::ASK, info, &[])
            })?;
            let Some(seen) = answer else { return fail("no answer") };
            let is_answer = matches!(seen.body, SeenBody::Operation { kind: kind::ANSWER, .. });
            ensure(is_answer || seen.body == SeenBody::InvalidOption, || seen.to_string())?;
            ensure(seen.fixed.xid == 0x0f0f, || format!("{seen} for {:#x}", seen.fixed.xid))?;
            Ok(seen.to_string())
        },
    },
    ClientCheck {
        name: "client-group-none",
        rules: &["RTR-9.5-a", "RTR-5.4-a", "RTR-X-17"],
        sent: "XMTCONT without a group, before the right Reply",
        expected: "XMTERR BADCONT with direction CALL from who supports groups; and its next Call",
        run: |client| {
            let answer = answer_to(client, |call| {
                let info = continuation(1, kind::RESPONSE, 8);
                operation(call.fixed.xid, REPLY, kind::CONTINUATION, info, &[0; 8])
            })?;
            let told = client.characteristics.as_deref().and_then(ToldCharacteristics::of_initial);
            let support = told.and_then(|told| told.word(characteristic::SUPPORT)).unwrap_or(0);
            match answer {
                None if support == 0 => Ok("nothing: it supports no groups".to_owned()),
                None => fail("nothing"),
                Some(seen) => {
                    let found = SeenFault::of_message(&seen, CALL)?;
                    ensure(found.which == fault::NO_GROUP, || format!("XMTERR {}", found.which))?;
                    ensure(found.bad[1] == REPLY, || format!("XMTERR of {:x?}", found.bad))?;
                    Ok("XMTERR BADCONT, and its next Call".to_owned())
                }
            }
        },
    },
    ClientCheck {
        name: "client-group-unasked",
        rules: &["RTR-5.2-b", "RTR-X-7", "RTR-4.3-c"],
        sent: "XMTRESP that begins a group of two, which the client has no Receives for, before the right Reply",
        expected: "XMTERR or nothing, and its next Call",
        run: |client| {
            let answer = answer_to(client, |call| {
                let payload = Words::default().words(&[call.fixed.xid, 1, 0, 0, 0, 0]).0;
                let info = none().words(&[99, payload.len() as u32]);
                operation(call.fixed.xid, REPLY, kind::RESPONSE, info, &payload)
            })?;
            match answer {
                None => Ok("nothing, and its next Call".to_owned()),
                Some(seen) => {
                    SeenFault::of_message(&seen, CALL)?;
                    Ok(format!("{seen}, and its next Call"))
                }
            }
        },
    },
    ClientCheck {
        name: "client-group-error-unknown",
        rules: &["RTR-X-12"],
        sent: "XMTERR for a Call that was not made, before the right Reply",
        expected: "its next Call: it is dropped",
        run: |client| {
            drops(client, |call, _| {
                let info = Words::default().words(&[!call.fixed.xid, CALL, 0, 0, fault::NO_GROUP]);
                operation(!call.fixed.xid, REPLY, kind::ERROR, info, &[])
            })
        },
    },
    ClientCheck {
        name: "client-second-option",
        rules: &["V2-4.2.3-a", "V2-X-3"],
        sent: "INVAL_OPTION in place of the Reply",
        expected: "the Call does not come again",
        run: |client| {
            speak(client)?;
            let call = client.call()?;
            client.ends_for_good(&call, &error(&call, &[3]))
        },
    },
    ClientCheck {
        name: "client-second-bad-header",
        rules: &["V2-4.2.3-a"],
        sent: "BAD_HEADER in place of the Reply",
        expected: "the Call does not come again",
        run: |client| {
            speak(client)?;
            let call = client.call()?;
            client.ends_for_good(&call, &error(&call, &[2]))
        },
    },
    ClientCheck {
        name: "client-second-version-1",
        rules: &["V2-5.3-a"],
        sent: "in place of the Reply one of version 1",
        expected: "it is not taken for the Reply: the Call stays open, or the connection ends",
        run: |client| {
            speak(client)?;
            let call = client.call()?;
            let mut reply = client.reply_to(&call, GRANT);
            (reply.fixed.version, reply.direction) = (1, None);
            client.send(&reply.octets(), None)?;
            let came = match client.message(HOLD * 3) {
                Ok(None) => "nothing".to_owned(),
                Err(Stop::Fail(why)) => why,
                Err(stop) => return Err(stop),
                Ok(Some(seen)) => return fail(format!("{seen}: it goes on")),
            };
            client.disconnect();
            Ok(came)
        },
    },
    ClientCheck {
        name: "client-second-refused",
        rules: &["V2-5.2-a", "V2-5-a"],
        sent: "an accept that announces nothing, and ERR_VERS 1 to 1 for Calls of version 2",
        expected: "a Call of version 1 on the same connection",
        run: |client| {
            let call = client.first_call(&own_private_data(false).to_wire())?;
            if call.fixed.version != SECOND {
                client.answer(&call)?;
                let came = client.goes_on(&call)?;
                return Ok(format!("it speaks version 1 at once; then {came}"));
            }
            client.send(&error(&call, &[1, 1, 1]), None)?;
            client.note_answered(CREDITS);
            let next = client.call()?;
            ensure(next.fixed.version == 1, || format!("{next} of version {}", next.fixed.version))?;
            client.answer(&next)?;
            client.goes_on(&next)
        },
    },
];
