//! Checks of a server of version 2: negotiation, headers, errors, transport characteristics.

use stag_wire::rpcrdma::procedure;

use crate::block::{FeatureBlock, SPEAKS_SECOND};
use crate::check::CheckNeeds::{Files, Null};
use crate::check::{Check, CheckOutcome, Stop, ensure, fail};
use crate::chunk_checks::{is_echo, sources, targets};
use crate::file_checks::{read, results};
use crate::files::content;
use crate::message::{DraftMessage, OPTIONAL, RpcOutcome, SECOND, SeenBody, Words, outcome};
use crate::operation::{
    CALL, CREDITS, REPLY, ToldCharacteristics, characteristic, initial, kind, none, operation, word_value,
};
use crate::probe::Probe;
use crate::version2::{Version2Probe, as_version2, is_plain_reply};

/// A NULL Call of `len` octets: what is behind its header is nothing that NULL has.
fn of_len(draft: &mut DraftMessage, len: usize) {
    let header_len = draft.header().0.len();
    draft.payload.resize(len - header_len, 0);
}

/// NULL with a fixed word or its lists changed is refused.
fn refused_with(probe: &mut Probe, change: impl FnOnce(&mut DraftMessage)) -> CheckOutcome {
    let mut version2 = Version2Probe::open(probe)?;
    let mut draft = version2.null();
    change(&mut draft);
    version2.refused(draft.fixed.xid, &draft.octets())
}

/// NULL whose header is these words behind the fixed ones is refused.
fn refused_words(probe: &mut Probe, words: &[u32]) -> CheckOutcome {
    let mut version2 = Version2Probe::open(probe)?;
    let null = version2.null();
    let octets = [Words(null.fixed.to_wire().to_vec()).words(words).0, null.payload].concat();
    version2.refused(null.fixed.xid, &octets)
}

/// An operation for which INVAL_OPTION is the answer.
fn invalid_option(probe: &mut Probe, number: u32) -> CheckOutcome {
    let mut version2 = Version2Probe::open(probe)?;
    let xid = version2.probe.xid();
    let seen = version2.ask(xid, &operation(xid, CALL, number, none(), &[]))?;
    let is_right = seen.body == SeenBody::InvalidOption && seen.len == 20;
    ensure(is_right, || format!("{seen}, {} octets", seen.len))?;
    version2.ask_null("the same connection")?;
    Ok("INVAL_OPTION of 20 octets, and NULL is answered after it".to_owned())
}

/// An operation of this direction that has no answer.
fn silent(probe: &mut Probe, direction: u32, number: u32, info: Words) -> CheckOutcome {
    let mut version2 = Version2Probe::open(probe)?;
    let xid = version2.probe.xid();
    version2.dropped(&operation(xid, direction, number, info, &[]))
}

/// ROPT_INITXCH that is refused.
fn bad_characteristics(probe: &mut Probe, info: Words) -> CheckOutcome {
    let mut version2 = Version2Probe::learned(probe)?;
    let xid = version2.probe.xid();
    version2.refused(xid, &operation(xid, CALL, kind::INITIAL, info, &[]))
}

/// What the peer tells of itself.
fn told(probe: &mut Probe) -> CheckOutcome {
    let version2 = Version2Probe::learned(probe)?;
    let Some(info) = version2.told_info() else {
        return crate::check::not_applicable("the peer tells no characteristics, which is its choice");
    };
    let Some(told) = ToldCharacteristics::of_initial(info) else {
        return fail("ROPT_INITXCH that cannot be read");
    };
    told.check()?;
    let ids: Vec<String> = told.values.iter().map(|(id, _)| id.to_string()).collect();
    Ok(format!("ROPT_INITXCH with {}", ids.join(", ")))
}

/// REQXCH, which is answered by RESPXCH that has every wish once, or by INVAL_OPTION.
fn asked(probe: &mut Probe) -> CheckOutcome {
    let mut version2 = Version2Probe::learned(probe)?;
    let xid = version2.probe.xid();
    let wishes = [word_value(characteristic::RECEIVE_SIZE, 4096), word_value(0xffff_ff01, 7)];
    let info = wishes.into_iter().fold(Words::default().words(&[2]), |mut out, wish| {
        out.0.extend(wish.0);
        out
    });
    let seen = version2.ask(xid, &operation(xid, CALL, kind::ASK, info, &[]))?;
    let came = match &seen.body {
        SeenBody::InvalidOption => "INVAL_OPTION".to_owned(),
        SeenBody::Operation { kind: kind::ANSWER, info, payload } => {
            ensure(seen.direction == Some(REPLY) && payload.is_empty(), || seen.to_string())?;
            let mut rest = &info[..];
            let mut set = || {
                let count = crate::message::take(&mut rest)?;
                (0..count).try_fold(0, |all, index| {
                    let word = crate::message::take(&mut rest)?;
                    Some(if index == 0 { word } else { all })
                })
            };
            let (Some(done), Some(rejected), Some(pending)) = (set(), set(), set()) else {
                return fail("a RESPXCH that cannot be read");
            };
            let (all, twice) =
                (done | rejected | pending, done & rejected | done & pending | rejected & pending);
            ensure(all == 3 && twice == 0, || {
                format!("done {done:x}, rejected {rejected:x}, pending {pending:x}")
            })?;
            format!("RESPXCH: done {done:x}, rejected {rejected:x}, pending {pending:x}")
        }
        _ => return fail(seen.to_string()),
    };
    version2.ask_null("the same connection")?;
    Ok(came)
}

/// READ of `count` octets with a Reply chunk, while this side says that its Receives have `size` octets. Returns whether the Reply
/// came in the chunk.
fn read_with_receives_of(probe: &mut Probe, size: u32, count: u32) -> Result<(bool, usize), Stop> {
    let mut version2 = Version2Probe::learned(probe)?;
    version2.tell(initial(&[word_value(characteristic::RECEIVE_SIZE, size)]))?;
    let mut draft = as_version2(read(version2.probe, 0, count)?);
    draft.reply = Some(targets(version2.probe, &[16384]));
    let (seen, payload) = version2.succeed(&draft)?;
    let found = results(&payload)?;
    ensure(found.inline.get(..count as usize) == Some(&content()[..count as usize]), || {
        "other octets than the file's".to_owned()
    })?;
    Ok((seen.is_nomsg(), seen.len))
}

/// READ of 6000 octets, whose Reply has to come in its chunk.
fn long_reply(version2: &mut Version2Probe<'_>) -> CheckOutcome {
    let mut draft = as_version2(read(version2.probe, 0, 6000)?);
    draft.reply = Some(targets(version2.probe, &[16384]));
    let (seen, _) = version2.succeed(&draft)?;
    ensure(seen.is_nomsg(), || format!("{seen}, {} octets inline", seen.len))?;
    Ok(seen.to_string())
}

/// The checks.
pub static CHECKS: &[Check] = &[
    Check {
        name: "second-probe",
        rules: &["V2-5.1-a", "V2-5.3-a", "V2-X-4", "V2-3.2-a", "V2-4.2.2-b", "V2-4.2.1-a"],
        sent: "as first message NULL in RDMA2_MSG",
        expected: "its Reply in RDMA2_MSG with direction REPLY and the same xid; or ERR_VERS from who speaks version 1 alone",
        needs: Null,
        run: |probe| Version2Probe::open(probe)?.ask_null("the same connection").map(|seen| seen.to_string()),
    },
    Check {
        name: "second-announced",
        rules: &["RR-P-4a", "RR-P-4b", "V2-5-a"],
        sent: "private data without a block of Stag's, and NULL in version 1",
        expected: "an accept without the word that version 2 is spoken, and a Reply of version 1",
        needs: Null,
        run: |probe| {
            ensure(!FeatureBlock::has(&probe.accepted, SPEAKS_SECOND), || {
                "it announces version 2 to who did not".to_owned()
            })?;
            probe.ask_null("that connection").map(|seen| seen.to_string())
        },
    },
    Check {
        name: "second-probe-1024",
        rules: &["V2-5-a", "V2-5.2-c"],
        sent: "as first message NULL of 1024 octets in RDMA2_MSG",
        expected: "an RPC Reply of version 2",
        needs: Null,
        run: |probe| {
            let mut version2 = Version2Probe::open_with(probe, |draft| of_len(draft, 1024))?;
            version2.ask_null("the same connection").map(|seen| seen.to_string())
        },
    },
    Check {
        name: "second-4096",
        rules: &["V2-3-a", "V2-5.1-a"],
        sent: "after the first answer, NULL of 4096 octets",
        expected: "an RPC Reply: that is the smallest threshold there is",
        needs: Null,
        run: |probe| {
            let mut version2 = Version2Probe::open(probe)?;
            let mut draft = version2.null();
            of_len(&mut draft, 4096);
            let seen = version2.ask(draft.fixed.xid, &draft.octets())?;
            ensure(outcome(seen.payload()) != RpcOutcome::NoReply, || seen.to_string())?;
            Ok(seen.to_string())
        },
    },
    Check {
        name: "second-mixed",
        rules: &["V2-5.3-a"],
        sent: "after NULL of version 2, NULL of version 1, and NULL of version 2 again",
        expected: "a Reply of the version of each Call",
        needs: Null,
        run: |probe| {
            let mut version2 = Version2Probe::open(probe)?;
            let first = version2.probe.null();
            let seen = version2.ask(first.fixed.xid, &first.octets())?;
            ensure(seen.fixed.version == 1 && outcome(seen.payload()) == RpcOutcome::Success, || {
                seen.to_string()
            })?;
            version2.ask_null("the same connection").map(|seen| seen.to_string())
        },
    },
    Check {
        name: "second-version-3",
        rules: &["V2-5.2-a", "V2-X-1"],
        sent: "NULL whose rdma_vers is 3",
        expected: "ERR_VERS laid out as in version 1, with its xid and version, and a range that has 2",
        needs: Null,
        run: |probe| {
            let mut version2 = Version2Probe::open(probe)?;
            let mut draft = version2.null();
            draft.fixed.version = 3;
            let seen = version2.ask(draft.fixed.xid, &draft.octets())?;
            let SeenBody::ErrVers(low, high) = seen.body else { return fail(seen.to_string()) };
            ensure((low..=high).contains(&SECOND) && high < 3, || seen.to_string())?;
            ensure(seen.fixed.version == 3 && seen.len == 28, || format!("{seen}, {} octets", seen.len))?;
            version2.ask_null("the same connection")?;
            Ok(seen.to_string())
        },
    },
    Check {
        name: "second-proc-msgp",
        rules: &["V2-3-a", "V2-4.2.3-a"],
        sent: "rdma_proc 2, which version 2 does not have",
        expected: "BAD_HEADER",
        needs: Null,
        run: |probe| refused_with(probe, |draft| draft.fixed.procedure = procedure::MSGP),
    },
    Check {
        name: "second-proc-done",
        rules: &["V2-3-a", "V2-4.2.3-a"],
        sent: "rdma_proc 3, which version 2 does not have",
        expected: "BAD_HEADER",
        needs: Null,
        run: |probe| refused_with(probe, |draft| draft.fixed.procedure = procedure::DONE),
    },
    Check {
        name: "second-direction-7",
        rules: &["V2-X-7"],
        sent: "NULL with direction 7",
        expected: "BAD_HEADER",
        needs: Null,
        run: |probe| refused_with(probe, |draft| draft.direction = Some(7)),
    },
    Check {
        name: "second-direction-reply",
        rules: &["V2-4.2.2-b", "V2-X-5"],
        sent: "NULL with direction REPLY",
        expected: "nothing: it is no Call, and a Reply is never answered",
        needs: Null,
        run: |probe| {
            let mut version2 = Version2Probe::open(probe)?;
            let mut draft = version2.null();
            draft.direction = Some(REPLY);
            version2.dropped(&draft.octets())
        },
    },
    Check {
        name: "second-payload-reply",
        rules: &["V2-4.2.2-b"],
        sent: "an RPC Reply with direction CALL",
        expected: "BAD_HEADER",
        needs: Null,
        run: |probe| refused_with(probe, |draft| draft.payload[7] = 1),
    },
    Check {
        name: "second-list-word",
        rules: &["V2-4.2.3-a"],
        sent: "NULL whose Read list begins with 2",
        expected: "BAD_HEADER, as ERR_CHUNK in version 1",
        needs: Null,
        run: |probe| refused_words(probe, &[CALL, 2, 0, 0]),
    },
    Check {
        name: "second-nomsg-empty",
        rules: &["V2-4.2.1-a", "V2-4.2.3-a"],
        sent: "RDMA2_NOMSG without any chunk",
        expected: "BAD_HEADER",
        needs: Null,
        run: |probe| refused_with(probe, |draft| draft.fixed.procedure = procedure::NOMSG),
    },
    Check {
        name: "second-short",
        rules: &["V2-X-6"],
        sent: "the first 12, 16 and 31 octets of NULL, and the first 27 of an operation",
        expected: "nothing for any",
        needs: Null,
        run: |probe| {
            let mut version2 = Version2Probe::open(probe)?;
            let null = version2.null().octets();
            let xid = version2.probe.xid();
            let told = operation(xid, CALL, kind::INITIAL, none(), &[]);
            let mut came = String::new();
            for cut in [&null[..12], &null[..16], &null[..31], &told[..27]] {
                came = version2.dropped(cut)?;
            }
            Ok(came)
        },
    },
    Check {
        name: "second-error",
        rules: &["V2-4.2.2-c"],
        sent: "RDMA2_ERROR with BAD_HEADER, with INVAL_OPTION, and with a code that does not exist",
        expected: "nothing: errors come from Responders",
        needs: Null,
        run: |probe| {
            let mut version2 = Version2Probe::open(probe)?;
            let mut came = String::new();
            for code in [2, 3, 9] {
                let words = [version2.probe.xid(), SECOND, CREDITS, procedure::ERROR, code];
                came = version2.dropped(&Words::default().words(&words).0)?;
            }
            Ok(came)
        },
    },
    Check {
        name: "second-reply-unknown",
        rules: &["V2-4.2.2-a", "V2-X-5"],
        sent: "a Reply to a Call that the peer never made",
        expected: "nothing: it is looked up among its own Calls",
        needs: Null,
        run: |probe| {
            let mut version2 = Version2Probe::open(probe)?;
            let mut draft = version2.null();
            draft.direction = Some(REPLY);
            draft.payload = Words::default().words(&[draft.fixed.xid, 1, 0, 0, 0, 0]).0;
            version2.dropped(&draft.octets())
        },
    },
    Check {
        name: "second-long-call",
        rules: &["V2-4.2.1-a"],
        sent: "NULL in a Position Zero Read chunk of two segments, in RDMA2_NOMSG",
        expected: "its Reply",
        needs: Null,
        run: |probe| {
            let mut version2 = Version2Probe::open(probe)?;
            let mut draft = version2.null();
            let payload = std::mem::take(&mut draft.payload);
            draft.fixed.procedure = procedure::NOMSG;
            let segments = sources(version2.probe, &payload, &[12]);
            draft.reads = segments.into_iter().map(|segment| (0, segment)).collect();
            version2.succeed(&draft).map(|(seen, _)| seen.to_string())
        },
    },
    Check {
        name: "second-chunks-unused",
        rules: &["V2-5.1-a", "V2-4.2.1-a"],
        sent: "NULL with a Write chunk of two segments, which it has no result for",
        expected: "its Reply, with the chunk returned: all segments, each of length 0",
        needs: Null,
        run: |probe| {
            let mut version2 = Version2Probe::open(probe)?;
            let mut draft = version2.null();
            draft.writes = vec![targets(version2.probe, &[256, 256])];
            let (seen, _) = version2.succeed(&draft)?;
            ensure(seen.writes().len() == 1, || seen.to_string())?;
            is_echo(&draft.writes[0], &seen.writes()[0], 0)?;
            Ok(seen.to_string())
        },
    },
    Check {
        name: "second-option-unknown",
        rules: &["V2-4.2.3-a", "V2-3.3-a", "V2-X-3"],
        sent: "RDMA2_OPTIONAL with operation 77, of direction CALL",
        expected: "RDMA2_ERROR with INVAL_OPTION, which is 3, and its xid",
        needs: Null,
        run: |probe| invalid_option(probe, 77),
    },
    Check {
        name: "second-option-reply",
        rules: &["V2-X-5", "V2-4.2.2-d"],
        sent: "RDMA2_OPTIONAL with operation 77, of direction REPLY",
        expected: "nothing: a Reply is never answered with an error",
        needs: Null,
        run: |probe| silent(probe, REPLY, 77, none()),
    },
    Check {
        name: "second-option-cut",
        rules: &["V2-4.2.3-a", "XC-h"],
        sent: "RDMA2_OPTIONAL that ends before the octets of its operation",
        expected: "BAD_HEADER",
        needs: Null,
        run: |probe| {
            let mut version2 = Version2Probe::open(probe)?;
            let words = [version2.probe.xid(), SECOND, CREDITS, OPTIONAL, CALL, kind::INITIAL, 400, 0];
            version2.refused(words[0], &Words::default().words(&words).0)
        },
    },
    Check {
        name: "characteristics-of-peer",
        rules: &["XC-c", "XC-b", "XC-f", "RTR-7.2-c", "RTR-8.3-a", "RTR-7.2-a"],
        sent: "NULL twice, so that the peer can tell its characteristics",
        expected: "ROPT_INITXCH that can be read, whose values fit each other, with direction CALL or REPLY; or none",
        needs: Null,
        run: told,
    },
    Check {
        name: "characteristics-unknown",
        rules: &["XC-g", "XC-k", "XC-c", "XC-a", "XC-X-1", "XC-X-4"],
        sent: "ROPT_INITXCH with ids that are not known, in falling order, ten times, each with a NULL behind it",
        expected: "nothing for it, and the NULL's Reply",
        needs: Null,
        run: |probe| {
            let mut version2 = Version2Probe::learned(probe)?;
            let mut came = String::new();
            for round in 0..10 {
                let values = [
                    word_value(0xffff_ff00 + round, 1),
                    word_value(999, 2),
                    word_value(characteristic::SUPPORT, 0),
                ];
                let xid = version2.probe.xid();
                came = version2.dropped(&operation(xid, CALL, kind::INITIAL, initial(&values), &[]))?;
            }
            Ok(came)
        },
    },
    Check {
        name: "characteristics-twice",
        rules: &["XC-X-2", "XC-j"],
        sent: "a Receive Buffer Size of 32768 and one of 4096 in one ROPT_INITXCH; READ of 6000 octets with a Reply chunk",
        expected: "the Reply in its chunk: the last value counts",
        needs: Files,
        run: |probe| {
            let mut version2 = Version2Probe::learned(probe)?;
            let sizes = [32768, 4096].map(|size| word_value(characteristic::RECEIVE_SIZE, size));
            version2.tell(initial(&sizes))?;
            long_reply(&mut version2)
        },
    },
    Check {
        name: "characteristics-reply",
        rules: &["XC-X-4", "XC-j"],
        sent: "a Receive Buffer Size of 32768, then one of 4096 with direction REPLY; READ of 6000 octets with a Reply chunk",
        expected: "the Reply in its chunk: what an end tells of itself may have either direction",
        needs: Files,
        run: |probe| {
            let mut version2 = Version2Probe::learned(probe)?;
            version2.tell(initial(&[word_value(characteristic::RECEIVE_SIZE, 32768)]))?;
            version2.tell_in(REPLY, initial(&[word_value(characteristic::RECEIVE_SIZE, 4096)]))?;
            long_reply(&mut version2)
        },
    },
    Check {
        name: "characteristics-short",
        rules: &["XC-h"],
        sent: "a Receive Buffer Size of 2 octets",
        expected: "BAD_HEADER",
        needs: Null,
        run: |probe| {
            let info =
                Words::default().words(&[1, characteristic::RECEIVE_SIZE]).opaque(&[16, 0]).words(&[0]);
            bad_characteristics(probe, info)
        },
    },
    Check {
        name: "characteristics-beyond",
        rules: &["XC-h"],
        sent: "an unknown characteristic whose octets run past the operation",
        expected: "BAD_HEADER",
        needs: Null,
        run: |probe| bad_characteristics(probe, Words::default().words(&[1, 4000, 64, 0])),
    },
    Check {
        name: "characteristics-long",
        rules: &["XC-X-3"],
        sent: "a Receive Buffer Size with four octets behind it",
        expected: "BAD_HEADER",
        needs: Null,
        run: |probe| {
            let value = Words::default().words(&[8192, 0]);
            let info =
                Words::default().words(&[1, characteristic::RECEIVE_SIZE]).opaque(&value.0).words(&[0]);
            bad_characteristics(probe, info)
        },
    },
    Check {
        name: "characteristics-structure",
        rules: &["RTR-7.2-c", "XC-X-3"],
        sent: "a Receive of 8192 octets whose parts are 4096 together",
        expected: "BAD_HEADER",
        needs: Null,
        run: |probe| {
            let structure = Words::default().words(&[8192, 1, 1, 4096, 1, 0]);
            let info =
                Words::default().words(&[1, characteristic::STRUCTURE]).opaque(&structure.0).words(&[0]);
            bad_characteristics(probe, info)
        },
    },
    Check {
        name: "characteristics-tiny",
        rules: &["XC-X-3"],
        sent: "a Receive of 28 octets, which holds no message",
        expected: "BAD_HEADER",
        needs: Null,
        run: |probe| {
            let structure = Words::default().words(&[28, 1, 1, 28, 1, 0]);
            let info =
                Words::default().words(&[1, characteristic::STRUCTURE]).opaque(&structure.0).words(&[0]);
            bad_characteristics(probe, info)
        },
    },
    Check {
        name: "characteristics-ask",
        rules: &["XC-d", "XC-a", "XC-f"],
        sent: "ROPT_REQXCH with two wishes, one for an unknown characteristic",
        expected: "ROPT_RESPXCH with its xid, with each wish done, rejected or pending; or INVAL_OPTION",
        needs: Null,
        run: asked,
    },
    Check {
        name: "characteristics-update",
        rules: &["XC-e", "XC-i", "XC-X-4"],
        sent: "ROPT_UPDXCH: Receives have 16384 octets now",
        expected: "nothing, or INVAL_OPTION; NULL is answered behind it",
        needs: Null,
        run: |probe| {
            let mut version2 = Version2Probe::learned(probe)?;
            let xid = version2.probe.xid();
            let info = word_value(characteristic::RECEIVE_SIZE, 16384).words(&[0]);
            version2.dropped(&operation(xid, CALL, kind::UPDATE, info, &[]))
        },
    },
    Check {
        name: "characteristics-answer",
        rules: &["XC-d", "V2-X-5"],
        sent: "ROPT_RESPXCH for a wish that the peer never had",
        expected: "nothing",
        needs: Null,
        run: |probe| silent(probe, REPLY, kind::ANSWER, Words::default().words(&[0, 0, 0])),
    },
    Check {
        name: "second-receive-size",
        rules: &["XC-j", "XC-i", "V2-3-a"],
        sent: "Receives of 4096 octets, and then of 9216; READ of 6000 octets with a Reply chunk in each case",
        expected: "no Reply longer than the Receive",
        needs: Files,
        run: |probe| {
            let (is_long, len) = read_with_receives_of(probe, 4096, 6000)?;
            ensure(is_long && len <= 4096, || format!("{len} octets for a Receive of 4096"))?;
            let (_, len) = read_with_receives_of(probe, 9216, 6000)?;
            ensure(len <= 9216, || format!("{len} octets for a Receive of 9216"))?;
            Ok(format!("in the chunk; {len} octets"))
        },
    },
    Check {
        name: "second-credits",
        rules: &["V2-4.2.2-d", "XC-X-1"],
        sent: "NULL that requests 0 credits and 2^32-1",
        expected: "Replies with grants above 0",
        needs: Null,
        run: |probe| {
            let mut version2 = Version2Probe::open(probe)?;
            let mut came = String::new();
            for credits in [0, u32::MAX] {
                let mut draft = version2.null();
                draft.fixed.credits = credits;
                let seen = version2.ask(draft.fixed.xid, &draft.octets())?;
                came = is_plain_reply(&seen, draft.fixed.xid)?;
            }
            Ok(came)
        },
    },
];
