//! Checks of chunks with NULL Calls: which the peer returns, refuses, reads and survives.

use stag_wire::rpcrdma::{Segment, procedure};

use crate::check::CheckNeeds::{Consent, Null};
use crate::check::{Check, CheckOutcome, Stop, ensure, fail, not_applicable};
use crate::message::{DraftMessage, RpcOutcome, SeenBody, SeenMessage, outcome};
use crate::probe::{Probe, own_private_data};
use crate::raw::UNWRITTEN;

/// Octets of a target that no result of NULL fills.
const TARGET_LEN: usize = 256;

/// A steering tag that this side never gave away.
const UNKNOWN_HANDLE: u32 = 0x5a5a_5a5a;

/// Exposes memory to write, one exposure for each length.
pub fn targets(probe: &mut Probe, lens: &[usize]) -> Vec<Segment> {
    lens.iter().map(|len| probe.peer().offer_target(*len)).collect()
}

/// Exposes `octets` to be read, cut behind each of `cuts`.
pub fn sources(probe: &mut Probe, octets: &[u8], cuts: &[usize]) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut start = 0;
    for end in cuts.iter().copied().chain([octets.len()]) {
        segments.push(probe.peer().offer_source(&octets[start..end]));
        start = end;
    }
    segments
}

/// Whether `returned` is `offered` with `total` octets in the order of its segments.
pub fn is_echo(offered: &[Segment], returned: &[Segment], total: u64) -> Result<(), Stop> {
    let mut left = total;
    ensure(offered.len() == returned.len(), || {
        format!("{} segments returned of {}", returned.len(), offered.len())
    })?;
    for (index, (offer, back)) in offered.iter().zip(returned).enumerate() {
        ensure((offer.handle, offer.offset) == (back.handle, back.offset), || {
            format!("segment {index} came back with another handle or offset")
        })?;
        let length = u64::from(offer.length).min(left);
        left -= length;
        ensure(u64::from(back.length) == length, || {
            format!("segment {index} came back with {} octets in place of {length}", back.length)
        })?;
    }
    Ok(())
}

/// A NULL Call whose Payload stream is in a Position Zero Read chunk of these segments.
fn long_call(draft: &DraftMessage, segments: Vec<Segment>) -> DraftMessage {
    let mut long = draft.clone();
    long.fixed.procedure = procedure::NOMSG;
    long.reads = segments.into_iter().map(|segment| (0, segment)).collect();
    long.payload.clear();
    long
}

fn long_null(probe: &mut Probe, cuts: &[usize]) -> CheckOutcome {
    let null = probe.null();
    let segments = sources(probe, &null.payload, cuts);
    let (seen, _) = probe.succeed(&long_call(&null, segments))?;
    Ok(seen.to_string())
}

/// NULL with these Write chunks, which come back unused.
fn unused_writes(probe: &mut Probe, writes: Vec<Vec<Segment>>) -> CheckOutcome {
    let draft = probe.null_with(|draft| draft.writes = writes.clone());
    let (seen, _) = probe.succeed(&draft)?;
    returned_unused(&seen, &writes)?;
    Ok(seen.to_string())
}

fn returned_unused(seen: &SeenMessage, writes: &[Vec<Segment>]) -> Result<(), Stop> {
    ensure(seen.writes().len() == writes.len(), || {
        format!("{} Write chunks returned of {}", seen.writes().len(), writes.len())
    })?;
    for (offered, returned) in writes.iter().zip(seen.writes()) {
        is_echo(offered, returned, 0)?;
    }
    Ok(())
}

/// NULL with a Reply chunk: inline with the chunk returned empty of octets, or all of it in the chunk.
fn reply_chunk(probe: &mut Probe, lens: &[usize]) -> CheckOutcome {
    let chunk = targets(probe, lens);
    let draft = probe.null_with(|draft| draft.reply = Some(chunk.clone()));
    let seen = probe.call(&draft)?;
    let Some(returned) = seen.reply_chunk().map(<[Segment]>::to_vec) else {
        return fail(format!("{seen}: the Reply chunk was not returned"));
    };
    let total: u64 = returned.iter().map(|segment| u64::from(segment.length)).sum();
    is_echo(&chunk, &returned, total)?;
    ensure(seen.is_nomsg() == (total != 0), || format!("{seen}: {total} octets in the Reply chunk"))?;
    let payload = probe.payload_of(&seen)?;
    ensure(outcome(&payload) == RpcOutcome::Success, || seen.to_string())?;
    ensure(payload.get(..4) == Some(&draft.fixed.xid.to_be_bytes()), || {
        "another xid in the Reply".to_owned()
    })?;
    Ok(seen.to_string())
}

/// NULL with a Read chunk of `segment` at `position`.
fn read_at(probe: &mut Probe, entries: &[(u32, usize)]) -> DraftMessage {
    let reads = entries
        .iter()
        .map(|(position, len)| (*position, probe.peer().offer_source(&vec![7; *len])))
        .collect();
    probe.null_with(|draft| draft.reads = reads)
}

/// What NULL's Reply invalidates of a Reply chunk's and a Write chunk's handles, where this side said R or not.
fn invalidated(probe: &mut Probe, remote_invalidation: bool) -> CheckOutcome {
    probe.connect(&own_private_data(remote_invalidation).to_wire())?;
    let chunk = targets(probe, &[TARGET_LEN]);
    let draft = probe.null_with(|draft| draft.writes = vec![chunk.clone()]);
    let (seen, _) = probe.succeed(&draft)?;
    match seen.invalidated {
        None => Ok("a plain Send".to_owned()),
        Some(handle) if remote_invalidation => {
            ensure(handle == chunk[0].handle, || "a handle invalidated that is not the Call's".to_owned())?;
            probe.ask_null("the same connection")?;
            Ok("the Call's handle invalidated".to_owned())
        }
        Some(_) => fail("a handle invalidated, although this side did not say R"),
    }
}

/// The checks.
pub static CHECKS: &[Check] = &[
    Check {
        name: "write-unused",
        rules: &["8166-4.3.2.2-b", "8166-3.4.6-c"],
        sent: "NULL with a Write chunk of 2 segments, which it has no result for",
        expected: "its Reply, with the chunk returned: all segments, each of length 0",
        needs: Null,
        run: |probe| {
            let chunk = targets(probe, &[TARGET_LEN, TARGET_LEN]);
            let came = unused_writes(probe, vec![chunk.clone()])?;
            let memory =
                chunk.iter().map(|segment| probe.peer().take_back(segment.handle).unwrap_or_default());
            let is_untouched = memory.flatten().all(|octet| octet == UNWRITTEN);
            let touched = if is_untouched { "untouched" } else { "written, as it may be" };
            Ok(format!("{came}; its memory is {touched}"))
        },
    },
    Check {
        name: "write-16-segments",
        rules: &["8267-6.4.2-a", "8166-X-13"],
        sent: "NULL with a Write chunk of 16 segments, which every server has to take",
        expected: "its Reply, with the chunk returned",
        needs: Null,
        run: |probe| {
            let chunk = targets(probe, &[TARGET_LEN; 16]);
            unused_writes(probe, vec![chunk])
        },
    },
    Check {
        name: "write-empty",
        rules: &["8166-4.3.2.3-b", "8166-4.3.2.3-a"],
        sent: "NULL with an empty Write chunk",
        expected: "its Reply, with an empty chunk in its place",
        needs: Null,
        run: |probe| unused_writes(probe, vec![Vec::new()]),
    },
    Check {
        name: "write-length-0",
        rules: &["8166-3.4.6-c"],
        sent: "NULL with a Write chunk whose only segment has length 0",
        expected: "its Reply, with the chunk returned, or ERR_CHUNK",
        needs: Null,
        run: |probe| {
            let mut chunk = targets(probe, &[TARGET_LEN]);
            chunk[0].length = 0;
            let draft = probe.null_with(|draft| draft.writes = vec![chunk.clone()]);
            let seen = probe.call(&draft)?;
            if !seen.is_err_chunk(draft.fixed.xid) {
                ensure(outcome(seen.payload()) == RpcOutcome::Success, || seen.to_string())?;
                returned_unused(&seen, &[chunk])?;
            }
            probe.ask_null("the same connection")?;
            Ok(seen.to_string())
        },
    },
    Check {
        name: "write-2-chunks",
        rules: &["8267-4-b", "8166-4.3.2.2-b", "LX-4"],
        sent: "NULL with two Write chunks",
        expected: "its Reply, with both returned in order, or a refusal: more than one need not be taken",
        needs: Null,
        run: |probe| {
            let chunks = vec![targets(probe, &[TARGET_LEN]), targets(probe, &[64, 64])];
            let draft = probe.null_with(|draft| draft.writes = chunks.clone());
            let seen = probe.call(&draft)?;
            if !seen.is_err_chunk(draft.fixed.xid) && outcome(seen.payload()) != RpcOutcome::Garbage {
                ensure(outcome(seen.payload()) == RpcOutcome::Success, || seen.to_string())?;
                returned_unused(&seen, &chunks)?;
            }
            probe.ask_null("the same connection")?;
            Ok(seen.to_string())
        },
    },
    Check {
        name: "write-too-complex",
        rules: &["8267-6.4.2-b", "8166-X-13"],
        sent: "NULL with 36 Write chunks",
        expected: "ERR_CHUNK, GARBAGE_ARGS, or its Reply with all of them",
        needs: Null,
        run: |probe| {
            let target = targets(probe, &[TARGET_LEN])[0];
            let writes = vec![vec![target]; 36];
            let draft = probe.null_with(|draft| draft.writes = writes.clone());
            let seen = probe.call(&draft)?;
            let refused =
                seen.is_err_chunk(draft.fixed.xid) || outcome(seen.payload()) == RpcOutcome::Garbage;
            if !refused {
                ensure(outcome(seen.payload()) == RpcOutcome::Success, || seen.to_string())?;
                returned_unused(&seen, &writes)?;
            }
            probe.ask_null("the same connection")?;
            Ok(if refused { seen.to_string() } else { "all 36 returned".to_owned() })
        },
    },
    Check {
        name: "reply-chunk",
        rules: &["8166-4.3.3-c", "8166-4.3.3-b", "8166-3.5.3-e", "LX-8"],
        sent: "NULL with a Reply chunk, which it does not need",
        expected: "its Reply, inline with the chunk returned at length 0, or in the chunk, as RDMA_NOMSG",
        needs: Null,
        run: |probe| reply_chunk(probe, &[TARGET_LEN]),
    },
    Check {
        name: "reply-chunk-16-segments",
        rules: &["8267-6.4.2-a", "8166-3.4.6-b"],
        sent: "NULL with a Reply chunk of 16 segments of 8 octets and more",
        expected: "its Reply, inline or in the chunk, filled in the order of its segments",
        needs: Null,
        run: |probe| {
            let mut lens = [16; 16];
            lens[0] = 8;
            reply_chunk(probe, &lens)
        },
    },
    Check {
        name: "reply-chunk-empty",
        rules: &["8166-4.3.3-c", "8166-3.4.6-c"],
        sent: "NULL with a Reply chunk that has no segments",
        expected: "its Reply inline with the chunk returned empty, or ERR_CHUNK",
        needs: Null,
        run: |probe| {
            let draft = probe.null_with(|draft| draft.reply = Some(Vec::new()));
            let seen = probe.call(&draft)?;
            if !seen.is_err_chunk(draft.fixed.xid) {
                ensure(!seen.is_nomsg(), || seen.to_string())?;
                ensure(seen.reply_chunk().is_some_and(<[_]>::is_empty), || {
                    format!("{seen}: it was not returned")
                })?;
                ensure(outcome(seen.payload()) == RpcOutcome::Success, || seen.to_string())?;
            }
            probe.ask_null("the same connection")?;
            Ok(seen.to_string())
        },
    },
    Check {
        name: "long-call",
        rules: &["8166-3.5.3-d", "8166-3.5.3-a", "8166-3.5.3-b", "8166-2.3.2-e"],
        sent: "NULL as RDMA_NOMSG with a Position Zero Read chunk",
        expected: "its Reply",
        needs: Null,
        run: |probe| long_null(probe, &[]),
    },
    Check {
        name: "long-call-3-segments",
        rules: &["8166-3.4.5-b", "8166-3.4.4-a"],
        sent: "NULL in a Position Zero Read chunk of 3 segments, cut behind octets 6 and 13",
        expected: "its Reply: the segments are put together in the order of the list",
        needs: Null,
        run: |probe| long_null(probe, &[6, 13]),
    },
    Check {
        name: "long-call-16-segments",
        rules: &["8267-6.4.2-a"],
        sent: "NULL in a Position Zero Read chunk of 16 segments",
        expected: "its Reply",
        needs: Null,
        run: |probe| long_null(probe, &[2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30]),
    },
    Check {
        name: "long-call-and-reply-chunk",
        rules: &["8166-3.5.3-c", "8166-3.5.3-f"],
        sent: "NULL in a Position Zero Read chunk, with a Reply chunk",
        expected: "its Reply, inline or in the chunk",
        needs: Null,
        run: |probe| {
            let null = probe.null();
            let segments = sources(probe, &null.payload, &[]);
            let mut draft = long_call(&null, segments);
            draft.reply = Some(targets(probe, &[TARGET_LEN]));
            let (seen, _) = probe.succeed(&draft)?;
            Ok(seen.to_string())
        },
    },
    Check {
        name: "nomsg-tail",
        rules: &["8166-X-5"],
        sent: "NULL in a Position Zero Read chunk, and 12 octets behind the header",
        expected: "its Reply: the octets are ignored",
        needs: Null,
        run: |probe| {
            let null = probe.null();
            let segments = sources(probe, &null.payload, &[]);
            let mut draft = long_call(&null, segments);
            draft.payload = vec![0xff; 12];
            let (seen, _) = probe.succeed(&draft)?;
            Ok(seen.to_string())
        },
    },
    Check {
        name: "msg-position-0",
        rules: &["8166-X-3"],
        sent: "RDMA_MSG with a Position Zero Read chunk and a Payload stream as well",
        expected: "ERR_CHUNK",
        needs: Null,
        run: |probe| {
            let null = probe.null();
            let segments = sources(probe, &null.payload, &[]);
            let mut draft = null.clone();
            draft.reads = segments.into_iter().map(|segment| (0, segment)).collect();
            probe.refused(&draft)
        },
    },
    Check {
        name: "position-odd",
        rules: &["8166-3.4.5-a", "8166-X-9", "LX-3"],
        sent: "NULL with a Read chunk at Position 38",
        expected: "ERR_CHUNK",
        needs: Null,
        run: |probe| {
            let draft = read_at(probe, &[(38, 4)]);
            probe.refused(&draft)
        },
    },
    Check {
        name: "position-beyond",
        rules: &["8166-X-9", "8166-4.5.2-b", "LX-3"],
        sent: "NULL with a Read chunk at Position 4096, beyond its end",
        expected: "ERR_CHUNK or GARBAGE_ARGS",
        needs: Null,
        run: |probe| {
            let draft = read_at(probe, &[(4096, 4)]);
            probe.refused_either_way(&draft)
        },
    },
    Check {
        name: "position-overlap",
        rules: &["8166-X-9", "LX-3"],
        sent: "NULL with Read chunks of 16 octets at Positions 40 and 44",
        expected: "ERR_CHUNK or GARBAGE_ARGS",
        needs: Null,
        run: |probe| {
            let draft = read_at(probe, &[(40, 16), (44, 16)]);
            probe.refused_either_way(&draft)
        },
    },
    Check {
        name: "read-ineligible",
        rules: &["8166-6.1-c", "8166-3.4.2-a", "8166-8.2-a"],
        sent: "NULL with the body of its credential, 8 octets, in a Read chunk",
        expected: "ERR_CHUNK, or an RPC refusal: it must not be executed",
        needs: Null,
        run: |probe| {
            let entry = (32, probe.peer().offer_source(&[0; 8]));
            let draft = probe.null_with(|draft| {
                draft.reads = vec![entry];
                draft.payload.splice(28..32, 8u32.to_be_bytes());
            });
            probe.refused_either_way(&draft)
        },
    },
    Check {
        name: "long-call-xid",
        rules: &["8166-4.2.1-a"],
        sent: "NULL in a Position Zero Read chunk with another xid than rdma_xid",
        expected: "ERR_CHUNK, or a Reply that has rdma_xid in its header",
        needs: Null,
        run: |probe| {
            let mut null = probe.null();
            null.payload[0] ^= 0x40;
            let segments = sources(probe, &null.payload, &[]);
            let draft = long_call(&null, segments);
            let seen = probe.call(&draft)?;
            let is_answered = outcome(seen.payload()) == RpcOutcome::Success;
            ensure(is_answered || seen.is_err_chunk(draft.fixed.xid), || seen.to_string())?;
            probe.ask_null("the same connection")?;
            Ok(seen.to_string())
        },
    },
    Check {
        name: "long-call-unknown-handle",
        rules: &["8166-4.5.3-a", "8166-2.3.2-a"],
        sent: "NULL in a Position Zero Read chunk whose handle names nothing",
        expected: "an error or the end of the connection; a new one is served",
        needs: Null,
        run: |probe| {
            let null = probe.null();
            let segment = Segment { handle: UNKNOWN_HANDLE, length: null.payload.len() as u32, offset: 0 };
            probe.survives(&long_call(&null, vec![segment]))
        },
    },
    Check {
        name: "long-call-beyond-region",
        rules: &["8166-4.5.3-a"],
        sent: "NULL in a Position Zero Read chunk that goes 1 MiB beyond its region",
        expected: "an error or the end of the connection; a new one is served",
        needs: Null,
        run: |probe| {
            let null = probe.null();
            let mut segments = sources(probe, &null.payload, &[]);
            segments[0].length += 1 << 20;
            probe.survives(&long_call(&null, segments))
        },
    },
    Check {
        name: "long-call-of-written",
        rules: &["8166-8.1-c"],
        sent: "NULL in a Position Zero Read chunk whose memory allows only writing",
        expected: "an error or the end of the connection; a new one is served",
        needs: Null,
        run: |probe| {
            let null = probe.null();
            let segments = targets(probe, &[null.payload.len()]);
            probe.survives(&long_call(&null, segments))
        },
    },
    Check {
        name: "long-call-huge",
        rules: &["8166-8.1-e"],
        sent: "NULL in a Position Zero Read chunk of 16 segments of 4 GiB-1 each",
        expected: "ERR_CHUNK or the end of the connection; a new one is served",
        needs: Null,
        run: |probe| {
            let null = probe.null();
            let mut segment = sources(probe, &null.payload, &[])[0];
            (segment.length, segment.offset) = (u32::MAX, 0);
            probe.survives(&long_call(&null, vec![segment; 16]))
        },
    },
    Check {
        name: "segment-wraps",
        rules: &["8166-4.4.3-a", "8166-4.5.3-a"],
        sent: "NULL in a Position Zero Read chunk whose end is beyond 2^64",
        expected: "ERR_CHUNK or the end of the connection; a new one is served",
        needs: Null,
        run: |probe| {
            let null = probe.null();
            let mut segment = sources(probe, &null.payload, &[])[0];
            segment.offset = u64::MAX - 7;
            probe.survives(&long_call(&null, vec![segment]))
        },
    },
    Check {
        name: "long-call-empty",
        rules: &["8166-4.2.4-b", "8166-4.5.2-a"],
        sent: "RDMA_NOMSG with a Position Zero Read chunk of length 0",
        expected: "ERR_CHUNK or an RPC refusal, and NULL is answered after it; or silence",
        // Linux 6.1 ends by a BUG() of the kernel (svc_rdma_build_read_segment).
        needs: Consent,
        run: |probe| {
            let null = probe.null();
            let mut segment = sources(probe, &null.payload, &[])[0];
            segment.length = 0;
            let draft = long_call(&null, vec![segment]);
            probe.send(&draft.octets())?;
            let null = probe.null();
            probe.send(&null.octets())?;
            let first = probe.message()?;
            if first.fixed.xid == null.fixed.xid {
                return Ok("nothing, and NULL is answered after it".to_owned());
            }
            let is_refused = first.is_err_chunk(draft.fixed.xid)
                || (first.body != SeenBody::ErrChunk
                    && matches!(outcome(first.payload()), RpcOutcome::Garbage | RpcOutcome::Refused));
            ensure(is_refused, || first.to_string())?;
            let second = probe.message()?;
            ensure(second.fixed.xid == null.fixed.xid, || second.to_string())?;
            Ok(format!("{first}, and NULL is answered after it"))
        },
    },
    Check {
        name: "reply-call-backwards",
        rules: &["8167-5.3-b", "8167-2-a"],
        sent: "RDMA_NOMSG with a Reply chunk only: a Reply, from a peer that was not called",
        expected: "nothing or ERR_CHUNK, and NULL is answered after it",
        needs: Null,
        run: |probe| {
            if probe.granted < 2 {
                return not_applicable("the peer grants one credit: nothing can be sent before an answer");
            }
            let chunk = targets(probe, &[TARGET_LEN]);
            let draft = probe.null_with(|draft| {
                draft.fixed.procedure = procedure::NOMSG;
                draft.reply = Some(chunk);
                draft.payload.clear();
            });
            probe.send(&draft.octets())?;
            let null = probe.null();
            probe.send(&null.octets())?;
            let first = probe.message()?;
            if first.fixed.xid == null.fixed.xid {
                return Ok("nothing, and NULL is answered after it".to_owned());
            }
            ensure(first.is_err_chunk(draft.fixed.xid), || first.to_string())?;
            let second = probe.message()?;
            ensure(second.fixed.xid == null.fixed.xid, || second.to_string())?;
            Ok("ERR_CHUNK, and NULL is answered after it".to_owned())
        },
    },
    Check {
        name: "no-invalidation",
        rules: &["8797-4.1-c", "8166-4.4.1-c"],
        sent: "without R in our private data, NULL with a Write chunk",
        expected: "its Reply by a plain Send",
        needs: Null,
        run: |probe| invalidated(probe, false),
    },
    Check {
        name: "invalidation",
        rules: &["8797-4.1-a", "8797-4.1-b", "8797-X-3", "8797-L-5"],
        sent: "with R in our private data, NULL with a Write chunk",
        expected: "its Reply by a plain Send, or by one that invalidates the Call's handle",
        needs: Null,
        run: |probe| invalidated(probe, true),
    },
];
