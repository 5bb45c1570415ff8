//! Checks of the fixed words, of lengths, credits and lists that cannot be read.

use stag_wire::rpcrdma::{Segment, VERSION, procedure};

use crate::check::CheckNeeds::Null;
use crate::check::{Check, CheckOutcome, ensure, fail, not_applicable};
use crate::message::{DraftMessage, RpcOutcome, SeenMessage, Words, call_header, outcome};
use crate::probe::Probe;

/// Calls that are sent at once at most, whatever was granted.
const BURST_MAX: u32 = 48;

/// Segment that names nothing.
const NOWHERE: Segment = Segment { handle: 0x5555_0001, length: 64, offset: 0 };

/// A Reply to a Call without results, as it has to look.
fn is_plain_reply(seen: &SeenMessage, xid: u32) -> CheckOutcome {
    ensure(seen.fixed.procedure == procedure::MSG, || seen.to_string())?;
    ensure(seen.fixed.version == VERSION, || seen.to_string())?;
    ensure(seen.fixed.xid == xid, || format!("rdma_xid {:#010x}", seen.fixed.xid))?;
    ensure(seen.payload().get(..4) == Some(&xid.to_be_bytes()), || {
        "another xid in the Payload stream".to_owned()
    })?;
    ensure(outcome(seen.payload()) == RpcOutcome::Success, || seen.to_string())?;
    ensure(seen.reads().is_empty(), || "a Read list".to_owned())?;
    ensure(seen.writes().is_empty() && seen.reply_chunk().is_none(), || {
        "chunks that were not offered".to_owned()
    })?;
    Ok(format!("{seen}, {} octets", seen.len))
}

fn null(probe: &mut Probe) -> CheckOutcome {
    let null = probe.null();
    let seen = probe.call(&null)?;
    is_plain_reply(&seen, null.fixed.xid)
}

fn credits(probe: &mut Probe, requested: u32) -> CheckOutcome {
    let null = probe.null_with(|draft| draft.fixed.credits = requested);
    let (seen, _) = probe.succeed(&null)?;
    let granted = seen.fixed.credits;
    ensure(granted > 0, || "a grant of 0".to_owned())?;
    probe.ask_null("the same connection")?;
    Ok(format!("{granted} granted"))
}

/// As many Calls at once as were granted, up to a limit of ours.
fn burst(probe: &mut Probe) -> CheckOutcome {
    ensure(probe.granted > 0, || "a grant of 0".to_owned())?;
    // The smaller of the values requested and granted counts (8166-3.3.1-b).
    let count = probe.granted.min(32).min(BURST_MAX);
    let mut open: Vec<u32> = Vec::new();
    for _ in 0..count {
        let null = probe.null();
        open.push(null.fixed.xid);
        probe.send(&null.octets())?;
    }
    while !open.is_empty() {
        let seen = probe.message()?;
        let Some(place) = open.iter().position(|xid| *xid == seen.fixed.xid) else {
            return fail(format!("{seen} for a xid that has no Call"));
        };
        let xid = open.swap_remove(place);
        is_plain_reply(&seen, xid)?;
        ensure(seen.fixed.credits > 0, || "a grant of 0".to_owned())?;
    }
    Ok(format!("{count} Replies, one for each xid"))
}

/// A NULL Call of `len` octets: what is behind its header is nothing that NULL has.
fn of_len(probe: &mut Probe, len: usize) -> CheckOutcome {
    let mut null = probe.null();
    let header_len = null.header().0.len();
    null.payload.resize(len - header_len, 0);
    let seen = probe.call(&null)?;
    // Whether NULL may have arguments is not the transport's: any RPC answer will do.
    ensure(outcome(seen.payload()) != RpcOutcome::NoReply, || seen.to_string())?;
    Ok(format!("{seen} for a Call of {len} octets"))
}

/// The fixed words of NULL with this rdma_proc, and empty lists and the RPC Call behind them.
fn with_procedure(probe: &mut Probe, number: u32) -> DraftMessage {
    probe.null_with(|draft| draft.fixed.procedure = number)
}

/// A message whose lists are these words, with NULL's RPC Call behind them.
fn with_lists(probe: &mut Probe, words: &[u32], has_payload: bool) -> CheckOutcome {
    let null = probe.null();
    let mut octets = Words(null.fixed.to_wire().to_vec()).words(words).0;
    if has_payload {
        octets.extend_from_slice(&null.payload);
    }
    probe.refused_octets(null.fixed.xid, &octets)
}

/// NULL cut to `len` octets.
fn cut(probe: &mut Probe, len: usize) -> CheckOutcome {
    let null = probe.null();
    probe.dropped(&null.octets()[..len])
}

fn rdma_error(probe: &mut Probe, version: u32, words: &[u32]) -> CheckOutcome {
    let mut fixed = probe.null().fixed;
    (fixed.version, fixed.procedure) = (version, procedure::ERROR);
    probe.dropped(&Words(fixed.to_wire().to_vec()).words(words).0)
}

/// A Reply, to a Call that the peer never made.
fn reply(probe: &mut Probe) -> CheckOutcome {
    let draft = probe.null_with(|draft| {
        draft.payload = Words::default().words(&[draft.fixed.xid, 1, 0, 0, 0, 0]).0;
    });
    probe.dropped(&draft.octets())
}

/// The checks.
pub static CHECKS: &[Check] = &[
    Check {
        name: "null",
        rules: &[
            "8166-3.5.1-a",
            "8166-3.2-a",
            "8166-3.2-b",
            "8166-4.1-b",
            "8166-4.2.2-a",
            "8166-4.2.4-a",
            "8166-4.3.1-a",
            "8166-4.1.2-d",
        ],
        sent: "a NULL Call as Short message",
        expected: "one RDMA_MSG of version 1 with its xid, empty lists, and the RPC Reply at once behind the header",
        needs: Null,
        run: null,
    },
    Check {
        name: "credits-0",
        rules: &["8166-X-8", "8166-3.3.1-c"],
        sent: "a NULL Call that requests 0 credits",
        expected: "its Reply, with a grant above 0",
        needs: Null,
        run: |probe| credits(probe, 0),
    },
    Check {
        name: "credits-max",
        rules: &["8166-4.2.3-a", "8166-3.3.1-c", "8166-3.3.1-a"],
        sent: "a NULL Call that requests 2^32-1 credits",
        expected: "its Reply, with a grant above 0",
        needs: Null,
        run: |probe| credits(probe, u32::MAX),
    },
    Check {
        name: "credits-vary",
        rules: &["8166-3.3.1-d"],
        sent: "NULL Calls that request 1, 64 and 2 credits",
        expected: "Replies, with grants above 0",
        needs: Null,
        run: |probe| {
            let mut came = String::new();
            for requested in [1, 64, 2] {
                came = format!(
                    "{came}{}{}",
                    if came.is_empty() { "" } else { ", " },
                    credits(probe, requested)?
                );
            }
            Ok(came)
        },
    },
    Check {
        name: "burst",
        rules: &["8166-3.3.1-a", "8166-3.3.1-d", "8166-2.3.2-b"],
        sent: "as many NULL Calls at once as are granted (32 at most)",
        expected: "a Reply for each: a Receive was posted for every credit",
        needs: Null,
        run: burst,
    },
    Check {
        name: "first-of-1024",
        rules: &["8166-3.3.3-b", "8166-3.3.2-a"],
        sent: "without private data, a NULL Call of 1024 octets, the smallest threshold there is",
        expected: "an RPC Reply",
        needs: Null,
        run: |probe| {
            probe.connect(&[])?;
            of_len(probe, 1024)
        },
    },
    Check {
        name: "call-of-threshold",
        rules: &["8797-4.2-b", "8797-4.2-a", "8166-4.2.4-d"],
        sent: "a NULL Call as long as the smaller of our 4096 octets and the peer's Receive size",
        expected: "an RPC Reply",
        needs: Null,
        run: |probe| {
            let len = probe.call_threshold();
            of_len(probe, len as usize)
        },
    },
    Check {
        name: "version-0",
        rules: &["8166-4.5.1-a", "8166-4.1-a"],
        sent: "a NULL Call of version 0",
        expected: "ERR_VERS with its xid, a copy of its version, and a range that has 1",
        needs: Null,
        run: |probe| probe.refused_version(0),
    },
    Check {
        name: "version-2",
        rules: &["8166-4.5.1-a", "8166-4.5-b", "8166-7-a"],
        sent: "a NULL Call whose rdma_vers is 2",
        expected: "ERR_VERS with its xid, a copy of its version, and a range that has 1",
        needs: Null,
        run: |probe| probe.refused_version(2),
    },
    Check {
        name: "version-max",
        rules: &["8166-4.5-b", "8166-4.5.1-a"],
        sent: "a NULL Call of version 2^32-1",
        expected: "ERR_VERS with its xid, a copy of its version, and a range that has 1",
        needs: Null,
        run: |probe| probe.refused_version(u32::MAX),
    },
    Check {
        name: "version-and-proc",
        rules: &["8166-4.5.1-a"],
        sent: "version 3 with an rdma_proc that does not exist: the version is checked first",
        expected: "ERR_VERS",
        needs: Null,
        run: |probe| {
            let draft = probe.null_with(|draft| (draft.fixed.version, draft.fixed.procedure) = (3, 77));
            probe.send(&draft.octets())?;
            let seen = probe.message()?;
            ensure(matches!(seen.body, crate::message::SeenBody::ErrVers(..)), || seen.to_string())?;
            Ok(seen.to_string())
        },
    },
    Check {
        name: "proc-5",
        rules: &["8166-4.5.2-a", "8166-4.5-b"],
        sent: "rdma_proc 5, which does not exist",
        expected: "ERR_CHUNK",
        needs: Null,
        run: |probe| {
            let draft = with_procedure(probe, 5);
            probe.refused(&draft)
        },
    },
    Check {
        name: "proc-max",
        rules: &["8166-4.5.2-a"],
        sent: "rdma_proc 2^32-1, which does not exist",
        expected: "ERR_CHUNK",
        needs: Null,
        run: |probe| {
            let draft = with_procedure(probe, u32::MAX);
            probe.refused(&draft)
        },
    },
    Check {
        name: "msgp",
        rules: &["8166-4.6.1-a"],
        sent: "RDMA_MSGP with align 0 and thresh 0",
        expected: "ERR_CHUNK",
        needs: Null,
        run: |probe| {
            let draft = with_procedure(probe, procedure::MSGP);
            let octets = Words(draft.fixed.to_wire().to_vec()).words(&[0, 0, 0, 0, 0]).0;
            probe.refused_octets(draft.fixed.xid, &[octets, draft.payload].concat())
        },
    },
    Check {
        name: "done",
        rules: &["8166-4.6.2-a", "8166-X-1"],
        sent: "RDMA_DONE for an unknown xid",
        expected: "nothing",
        needs: Null,
        run: |probe| {
            let fixed = with_procedure(probe, procedure::DONE).fixed;
            probe.dropped(&fixed.to_wire())
        },
    },
    Check {
        name: "error-chunk",
        rules: &["8166-4.2.4-c", "8167-D-1"],
        sent: "RDMA_ERROR with ERR_CHUNK for an unknown xid",
        expected: "nothing",
        needs: Null,
        run: |probe| rdma_error(probe, VERSION, &[2]),
    },
    Check {
        name: "error-vers",
        rules: &["8166-4.2.4-c"],
        sent: "RDMA_ERROR with ERR_VERS for an unknown xid",
        expected: "nothing",
        needs: Null,
        run: |probe| rdma_error(probe, VERSION, &[1, 1, 1]),
    },
    Check {
        name: "error-unreadable",
        rules: &["8166-4.5-e", "8166-4.2.4-c"],
        sent: "RDMA_ERROR with error code 9",
        expected: "nothing",
        needs: Null,
        run: |probe| rdma_error(probe, VERSION, &[9, 0, 0]),
    },
    Check {
        name: "error-other-version",
        rules: &["8166-4.2.4-c", "8166-4.1-a"],
        sent: "RDMA_ERROR with ERR_CHUNK of version 9: an error is never answered with an error",
        expected: "nothing",
        needs: Null,
        run: |probe| rdma_error(probe, 9, &[2]),
    },
    Check {
        name: "reply-unknown",
        rules: &["8166-X-10", "8167-2.4-a", "8167-L-1"],
        sent: "an RPC Reply to a Call that the peer never made",
        expected: "nothing",
        needs: Null,
        run: reply,
    },
    Check {
        name: "short-4",
        rules: &["8166-4.5-a"],
        sent: "the first 4 octets of a NULL Call",
        expected: "nothing",
        needs: Null,
        run: |probe| cut(probe, 4),
    },
    Check {
        name: "short-15",
        rules: &["8166-4.5-a", "8166-X-1"],
        sent: "the first 15 octets of a NULL Call",
        expected: "nothing",
        needs: Null,
        run: |probe| cut(probe, 15),
    },
    Check {
        name: "short-27",
        rules: &["8166-4.5-a", "8166-X-1"],
        sent: "the first 27 octets of a NULL Call",
        expected: "nothing",
        needs: Null,
        run: |probe| cut(probe, 27),
    },
    Check {
        name: "payload-absent",
        rules: &["8166-4.5.2-a", "8166-3.2-a"],
        sent: "the 28 octets of RDMA_MSG's header, and no Payload stream",
        expected: "ERR_CHUNK",
        needs: Null,
        run: |probe| {
            let draft = probe.null_with(|draft| draft.payload.clear());
            probe.refused(&draft)
        },
    },
    Check {
        name: "xid-mismatch",
        rules: &["8166-4.2.1-a"],
        sent: "a NULL Call whose RPC xid is another one than rdma_xid",
        expected: "ERR_CHUNK, or a Reply that has rdma_xid in its header: a receiver may look at that one only",
        needs: Null,
        run: |probe| {
            let draft = probe.null_with(|draft| draft.payload[3] ^= 1);
            let seen = probe.call(&draft)?;
            let is_answered = outcome(seen.payload()) == RpcOutcome::Success;
            ensure(is_answered || seen.is_err_chunk(draft.fixed.xid), || seen.to_string())?;
            probe.ask_null("the same connection")?;
            Ok(seen.to_string())
        },
    },
    Check {
        name: "list-word-2",
        rules: &["8166-X-2", "8166-4.1-b"],
        sent: "a Read list whose first word is 2",
        expected: "ERR_CHUNK",
        needs: Null,
        run: |probe| with_lists(probe, &[2, 0, 0], true),
    },
    Check {
        name: "write-list-word-7",
        rules: &["8166-X-2"],
        sent: "a Write list whose first word is 7",
        expected: "ERR_CHUNK",
        needs: Null,
        run: |probe| with_lists(probe, &[0, 7, 0], true),
    },
    Check {
        name: "reply-word-max",
        rules: &["8166-X-2", "8166-4.1.2-c"],
        sent: "a Reply chunk whose first word is 2^32-1",
        expected: "ERR_CHUNK",
        needs: Null,
        run: |probe| with_lists(probe, &[0, 0, u32::MAX], true),
    },
    Check {
        name: "read-list-cut",
        rules: &["8166-4.1.2-a", "8166-4.5.2-a"],
        sent: "a message that ends inside a segment of its Read list",
        expected: "ERR_CHUNK",
        needs: Null,
        run: |probe| with_lists(probe, &[1, 0, 0x5555, 16], false),
    },
    Check {
        name: "write-list-cut",
        rules: &["8166-4.1.2-b", "8166-4.5.2-a"],
        sent: "a message that ends inside a Write chunk of 2 segments",
        expected: "ERR_CHUNK",
        needs: Null,
        run: |probe| with_lists(probe, &[0, 1, 2, 0x5555, 16, 0, 0], false),
    },
    Check {
        name: "write-count-max",
        rules: &["8166-4.1.2-b", "8166-X-13"],
        sent: "a Write chunk that counts 2^32-1 segments",
        expected: "ERR_CHUNK",
        needs: Null,
        run: |probe| with_lists(probe, &[0, 1, u32::MAX, 0, 0], true),
    },
    Check {
        name: "reply-chunk-cut",
        rules: &["8166-4.1.2-c", "8166-4.5.2-a"],
        sent: "a message that ends inside its Reply chunk",
        expected: "ERR_CHUNK",
        needs: Null,
        run: |probe| with_lists(probe, &[0, 0, 1, 1, 0x5555], false),
    },
    Check {
        name: "reply-count-max",
        rules: &["8166-4.1.2-c", "8166-X-13"],
        sent: "a Reply chunk that counts 2^32-1 segments",
        expected: "ERR_CHUNK",
        needs: Null,
        run: |probe| with_lists(probe, &[0, 0, 1, u32::MAX, 0, 0], true),
    },
    Check {
        name: "nomsg-empty",
        rules: &["8166-4.2.4-b", "8166-4.5.2-a"],
        sent: "RDMA_NOMSG without any chunk",
        expected: "ERR_CHUNK",
        needs: Null,
        run: |probe| {
            let draft = with_procedure(probe, procedure::NOMSG);
            probe.refused_octets(draft.fixed.xid, &draft.header().0)
        },
    },
    Check {
        name: "nomsg-write-list",
        rules: &["8166-X-4", "8166-4.2.4-b"],
        sent: "RDMA_NOMSG with a Write list only",
        expected: "ERR_CHUNK",
        needs: Null,
        run: |probe| {
            let draft = probe.null_with(|draft| {
                draft.fixed.procedure = procedure::NOMSG;
                draft.writes = vec![vec![NOWHERE]];
            });
            probe.refused_octets(draft.fixed.xid, &draft.header().0)
        },
    },
    Check {
        name: "call-garbage-rpc",
        rules: &["8166-4.5.2-b"],
        sent: "a Call whose RPC header ends inside its credential",
        expected: "an RPC refusal, ERR_CHUNK or nothing: and NULL is answered after it",
        needs: Null,
        run: |probe| {
            let xid = probe.xid();
            let mut payload = call_header(xid, 100_003, 3, 0);
            payload.0.truncate(26);
            let draft = DraftMessage::of(xid, payload);
            probe.send(&draft.octets())?;
            let null = probe.null();
            probe.send(&null.octets())?;
            let first = probe.message()?;
            if first.fixed.xid == null.fixed.xid {
                return Ok("nothing, and NULL is answered after it".to_owned());
            }
            let is_refused = first.is_err_chunk(xid)
                || matches!(outcome(first.payload()), RpcOutcome::Garbage | RpcOutcome::Refused);
            ensure(first.fixed.xid == xid && is_refused, || first.to_string())?;
            let second = probe.message()?;
            ensure(second.fixed.xid == null.fixed.xid, || second.to_string())?;
            Ok(format!("{first}, and NULL is answered after it"))
        },
    },
    Check {
        name: "same-xid-again",
        rules: &["8166-3.3.1-a"],
        sent: "NULL twice with one xid, one Call after the other's Reply",
        expected: "two Replies",
        needs: Null,
        run: |probe| {
            let null = probe.null();
            probe.succeed(&null)?;
            probe.succeed(&null)?;
            Ok("two Replies".to_owned())
        },
    },
    Check {
        name: "program-unknown",
        rules: &["8166-6.3-b", "8166-6-a"],
        sent: "NULL of an unknown program",
        expected: "an RPC refusal",
        needs: Null,
        run: |probe| {
            let xid = probe.xid();
            let draft = DraftMessage::of(xid, call_header(xid, 0x3fff_fff1, 1, 0));
            let seen = probe.call(&draft)?;
            match outcome(seen.payload()) {
                RpcOutcome::Refused => Ok(seen.to_string()),
                RpcOutcome::Success => not_applicable("the peer serves that program"),
                _ => fail(seen.to_string()),
            }
        },
    },
];
