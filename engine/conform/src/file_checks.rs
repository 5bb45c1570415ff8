//! Checks with NFS Calls on files of the run's own: reduction, Reply chunks, thresholds.

use stag_wire::cm_private_data::PrivateData;
use stag_wire::rpcrdma::{Segment, procedure};

use crate::check::CheckNeeds::Files;
use crate::check::{Check, CheckOutcome, Stop, ensure, fail, not_applicable};
use crate::chunk_checks::{is_echo, sources, targets};
use crate::files::{FILE_LEN, LINK_TARGET, ReadResults, ScratchFiles, content, status};
use crate::message::{DraftMessage, RpcOutcome, SeenMessage, Words, outcome};
use crate::probe::{Probe, own_private_data};
use crate::raw::UNWRITTEN;

/// Procedures of NFS version 3.
pub mod number {
    /// GETATTR.
    pub const GETATTR: u32 = 1;
    /// LOOKUP.
    pub const LOOKUP: u32 = 3;
    /// READLINK.
    pub const READLINK: u32 = 5;
    /// READ.
    pub const READ: u32 = 6;
    /// WRITE.
    pub const WRITE: u32 = 7;
}

/// Octets of exposed memory behind what a Call offers: they have to stay as they are.
const MARGIN: usize = 64;

/// An NFS status that means the results are there.
const OK: u32 = 0;

/// The files of the run.
pub fn files(probe: &Probe) -> Result<&ScratchFiles, Stop> {
    probe.files.as_ref().ok_or_else(|| Stop::NotApplicable("it needs --export".to_owned()))
}

/// READ of `count` octets from `offset` of the file, without chunks.
pub fn read(probe: &mut Probe, offset: u64, count: u32) -> Result<DraftMessage, Stop> {
    let xid = probe.xid();
    let files = files(probe)?;
    let call = files.call(xid, number::READ).opaque(&files.file).wide(offset).words(&[count]);
    Ok(DraftMessage::of(xid, call))
}

/// The results of a READ.
pub fn results(payload: &[u8]) -> Result<ReadResults, Stop> {
    ReadResults::of(payload).map_or_else(|| fail("results that are not READ's"), Ok)
}

/// Exposes memory to write, with a margin behind each segment.
fn targets_with_margin(probe: &mut Probe, lens: &[usize]) -> Vec<Segment> {
    let mut segments = targets(probe, &lens.iter().map(|len| len + MARGIN).collect::<Vec<_>>());
    for (segment, len) in segments.iter_mut().zip(lens) {
        segment.length = *len as u32;
    }
    segments
}

/// Takes the memory of a chunk back: the `total` octets that are filled, in the order of the segments. Everything else has to be as it was.
fn filled(probe: &mut Probe, chunk: &[Segment], total: usize) -> Result<Vec<u8>, Stop> {
    let mut octets = Vec::new();
    for (index, segment) in chunk.iter().enumerate() {
        let memory = probe.peer().take_back(segment.handle).unwrap_or_default();
        let len = (total - octets.len()).min(segment.length as usize);
        ensure(memory.len() >= len, || format!("the memory of segment {index} did not come back"))?;
        let (data, rest) = memory.split_at(len);
        octets.extend_from_slice(data);
        ensure(rest.iter().all(|octet| *octet == UNWRITTEN), || {
            format!("segment {index} was written beyond the {len} octets of data")
        })?;
    }
    Ok(octets)
}

/// READ with a Write chunk of segments of `lens`: `count` octets from `offset`, all of which the file has.
fn read_reduced(probe: &mut Probe, lens: &[usize], offset: u64, count: u32) -> CheckOutcome {
    let chunk = targets_with_margin(probe, lens);
    let mut draft = read(probe, offset, count)?;
    draft.writes = vec![chunk.clone()];
    let (seen, payload) = probe.succeed(&draft)?;
    let results = results(&payload)?;
    ensure(results.status == OK, || format!("NFS status {}", results.status))?;
    ensure((results.count, results.length) == (count, count), || {
        format!("a count of {} and a length of {}", results.count, results.length)
    })?;
    ensure(results.inline.is_empty(), || {
        format!("{} octets inline, although there is a chunk", results.inline.len())
    })?;
    ensure(seen.writes().len() == 1, || format!("{} Write chunks", seen.writes().len()))?;
    is_echo(&chunk, &seen.writes()[0], u64::from(count))?;
    let octets = filled(probe, &chunk, count as usize)?;
    let start = offset as usize;
    ensure(octets == content()[start..start + count as usize], || "other octets than the file's".to_owned())?;
    Ok(format!("{count} octets in the chunk, and nothing behind them"))
}

/// READ whose data has to come inline.
fn read_inline(probe: &mut Probe, writes: Vec<Vec<Segment>>, count: u32) -> CheckOutcome {
    let mut draft = read(probe, 0, count)?;
    draft.writes = writes.clone();
    let (seen, payload) = probe.succeed(&draft)?;
    let results = results(&payload)?;
    ensure(!seen.is_nomsg(), || seen.to_string())?;
    ensure(results.inline.get(..count as usize) == Some(&content()[..count as usize]), || {
        format!("{} octets inline", results.inline.len())
    })?;
    ensure(results.inline.len() == (count as usize).next_multiple_of(4), || {
        format!("{} octets inline, padding included", results.inline.len())
    })?;
    ensure(seen.writes() == writes, || format!("{} Write chunks", seen.writes().len()))?;
    Ok(format!("{count} octets inline"))
}

/// The WRITE of `data` at the start of the target file.
pub fn write_call(probe: &mut Probe, len: u32) -> Result<(u32, Words), Stop> {
    let xid = probe.xid();
    let files = files(probe)?;
    // FILE_SYNC: the Reply says that it is there.
    Ok((xid, files.call(xid, number::WRITE).opaque(&files.target).wide(0).words(&[len, 2, len])))
}

/// What the target file holds: `len` octets, inline.
pub fn target_holds(probe: &mut Probe, data: &[u8]) -> Result<(), Stop> {
    let xid = probe.xid();
    let files = files(probe)?;
    let call = files.call(xid, number::READ).opaque(&files.target).wide(0).words(&[data.len() as u32]);
    let (_, payload) = probe.succeed(&DraftMessage::of(xid, call))?;
    let results = results(&payload)?;
    ensure(results.inline.get(..data.len()) == Some(data), || {
        "the file holds other octets than were written".to_owned()
    })
}

/// WRITE of `data` in a Read chunk of these octets (with or without padding), cut behind `cuts`.
fn write_reduced(probe: &mut Probe, data: &[u8], padding: usize, cuts: &[usize]) -> CheckOutcome {
    let (xid, call) = write_call(probe, data.len() as u32)?;
    let position = call.0.len() as u32;
    let mut draft = DraftMessage::of(xid, call);
    let octets = [data, &vec![0; padding]].concat();
    draft.reads = sources(probe, &octets, cuts).into_iter().map(|segment| (position, segment)).collect();
    let (_, payload) = probe.succeed(&draft)?;
    ensure(status(&payload) == Some(OK), || format!("NFS status {:?}", status(&payload)))?;
    target_holds(probe, data)?;
    Ok("written, and read back".to_owned())
}

/// Octets to write, others each time.
fn data(probe: &mut Probe, len: usize) -> Vec<u8> {
    let seed = probe.xid();
    (0..len).map(|index| (index as u32).wrapping_mul(31).wrapping_add(seed) as u8).collect()
}

/// A refusal for want of room: ERR_CHUNK or an RPC error, and the connection lives.
fn overrun(probe: &mut Probe, draft: &DraftMessage) -> CheckOutcome {
    let seen = probe.call(draft)?;
    let is_refused = seen.is_err_chunk(draft.fixed.xid) || is_rpc_error(&seen);
    ensure(is_refused, || format!("{seen}, {} octets", seen.len))?;
    probe.ask_null("the same connection")?;
    Ok(format!("{seen}, and NULL is answered after it"))
}

fn is_rpc_error(seen: &SeenMessage) -> bool {
    !seen.is_nomsg()
        && match outcome(seen.payload()) {
            RpcOutcome::Garbage | RpcOutcome::Refused => true,
            RpcOutcome::Success => status(seen.payload()).is_some_and(|status| status != OK),
            RpcOutcome::NoReply => false,
        }
}

/// READ of more than this threshold, without a chunk for it.
fn beyond_threshold(probe: &mut Probe, private_data: &[u8], threshold: u32) -> CheckOutcome {
    probe.connect(private_data)?;
    probe.ask_null("that connection")?;
    let draft = read(probe, 0, threshold)?;
    overrun(probe, &draft)
}

/// READ in a Reply chunk of segments of `lens`, with no Write chunk.
fn read_in_reply_chunk(probe: &mut Probe, lens: &[usize], count: u32) -> CheckOutcome {
    let chunk = targets_with_margin(probe, lens);
    let mut draft = read(probe, 0, count)?;
    draft.reply = Some(chunk.clone());
    let seen = probe.call(&draft)?;
    let returned = seen.reply_chunk().unwrap_or_default().to_vec();
    ensure(seen.is_nomsg(), || format!("{seen}, {} octets", seen.len))?;
    let total: u64 = returned.iter().map(|segment| u64::from(segment.length)).sum();
    is_echo(&chunk, &returned, total)?;
    let payload = filled(probe, &chunk, total as usize)?;
    let results = results(&payload)?;
    ensure(results.inline.get(..count as usize) == Some(&content()[..count as usize]), || {
        "other octets than the file's".to_owned()
    })?;
    ensure(results.inline.len() == (count as usize).next_multiple_of(4), || {
        format!("{} octets of data and padding", results.inline.len())
    })?;
    Ok(format!("{total} octets in the Reply chunk, padding included"))
}

/// The checks.
pub static CHECKS: &[Check] = &[
    Check {
        name: "read-reduced",
        rules: &[
            "8166-4.3.2-a",
            "8166-4.3.2.1-a",
            "8267-6.4.1-c",
            "8267-6.4.1-d",
            "8267-2-a",
            "8166-3.4.4.1-a",
            "8166-3.4.1-a",
            "8166-3.5.2-a",
        ],
        sent: "READ of 4096 octets with a Write chunk",
        expected: "the data in the chunk; count and length inline, and nothing behind them",
        needs: Files,
        run: |probe| read_reduced(probe, &[4096], 0, 4096),
    },
    Check {
        name: "read-odd",
        rules: &["8166-3.4.6.2-a", "8166-3.4.4.4-b", "8166-3.4.4.4-a"],
        sent: "READ of 4097 octets with a Write chunk that has room for more",
        expected: "4097 octets in the chunk, and no padding: neither there nor inline",
        needs: Files,
        run: |probe| read_reduced(probe, &[8192], 3, 4097),
    },
    Check {
        name: "read-segments",
        rules: &["8166-3.4.6-b", "8166-3.4.6-c", "8166-3.4.4-a"],
        sent: "READ of 5001 octets with a Write chunk of segments of 1, 1000, 3000 and 4096 octets",
        expected: "the segments filled in order, with what was written into each as its length",
        needs: Files,
        run: |probe| read_reduced(probe, &[1, 1000, 3000, 4096], 7, 5001),
    },
    Check {
        name: "read-exact",
        rules: &["8166-3.4.6-a", "8166-4.4.3-a"],
        sent: "READ of 2999 octets with a Write chunk of exactly that length in 16 segments",
        expected: "the segments filled, and nothing behind them",
        needs: Files,
        run: |probe| {
            let mut lens = [187; 16];
            lens[15] = 2999 - 15 * 187;
            read_reduced(probe, &lens, 0, 2999)
        },
    },
    Check {
        name: "read-inline",
        rules: &["8267-6.4.1-b", "8166-4.3.2.3-a", "8166-3.5.1-a"],
        sent: "READ of 301 octets without a Write list",
        expected: "the data inline, padded",
        needs: Files,
        run: |probe| read_inline(probe, Vec::new(), 301),
    },
    Check {
        name: "read-empty-chunk",
        rules: &["8267-6.4.1-e", "8166-4.3.2.3-b"],
        sent: "READ of 301 octets with an empty Write chunk",
        expected: "the data inline, and an empty chunk in its place",
        needs: Files,
        run: |probe| read_inline(probe, vec![Vec::new()], 301),
    },
    Check {
        name: "read-2-chunks",
        rules: &["8267-4-b", "8166-4.3.2.2-b", "8166-4.3.2.1-a", "LX-4"],
        sent: "READ of 1000 octets with two Write chunks",
        expected: "the data in the first and the second returned unused, or a refusal",
        needs: Files,
        run: |probe| {
            let chunks = vec![targets_with_margin(probe, &[1000]), targets_with_margin(probe, &[1000])];
            let mut draft = read(probe, 0, 1000)?;
            draft.writes = chunks.clone();
            let seen = probe.call(&draft)?;
            if seen.is_err_chunk(draft.fixed.xid) || outcome(seen.payload()) == RpcOutcome::Garbage {
                probe.ask_null("the same connection")?;
                return Ok(seen.to_string());
            }
            ensure(seen.writes().len() == 2, || format!("{} Write chunks", seen.writes().len()))?;
            is_echo(&chunks[0], &seen.writes()[0], 1000)?;
            is_echo(&chunks[1], &seen.writes()[1], 0)?;
            let octets = filled(probe, &chunks[0], 1000)?;
            ensure(octets == content()[..1000], || "other octets than the file's".to_owned())?;
            Ok(seen.to_string())
        },
    },
    Check {
        name: "read-end",
        rules: &["8267-X-3", "8166-X-12"],
        sent: "READ behind the end of the file with a Write chunk",
        expected: "0 octets, and the chunk returned unused or empty",
        needs: Files,
        run: |probe| {
            let chunk = targets(probe, &[512]);
            let mut draft = read(probe, FILE_LEN as u64 + 5, 512)?;
            draft.writes = vec![chunk.clone()];
            let (seen, payload) = probe.succeed(&draft)?;
            let results = results(&payload)?;
            ensure((results.status, results.count, results.length) == (OK, 0, 0), || format!("{results:?}"))?;
            is_without_data(&seen, &chunk)?;
            Ok(seen.to_string())
        },
    },
    Check {
        name: "read-error",
        rules: &["8267-6.4.1-f", "8267-X-2", "8166-4.3.2.2-b"],
        sent: "READ of a folder with a Write chunk",
        expected: "an NFS error, and the chunk returned unused or empty",
        needs: Files,
        run: |probe| {
            let chunk = targets(probe, &[512]);
            let xid = probe.xid();
            let files = files(probe)?;
            let call = files.call(xid, number::READ).opaque(&files.folder).wide(0).words(&[512]);
            let mut draft = DraftMessage::of(xid, call);
            draft.writes = vec![chunk.clone()];
            let (seen, payload) = probe.succeed(&draft)?;
            ensure(status(&payload).is_some_and(|status| status != OK), || "it can be read".to_owned())?;
            is_without_data(&seen, &chunk)?;
            Ok(format!("NFS status {}, {seen}", status(&payload).unwrap_or_default()))
        },
    },
    Check {
        name: "readlink-reduced",
        rules: &["8166-4.3.2-a", "8267-6.1-a"],
        sent: "READLINK with a Write chunk",
        expected: "the link's octets in the chunk, and their length inline",
        needs: Files,
        run: |probe| {
            let chunk = targets_with_margin(probe, &[1024]);
            let xid = probe.xid();
            let files = files(probe)?;
            let mut draft = DraftMessage::of(xid, files.call(xid, number::READLINK).opaque(&files.link));
            draft.writes = vec![chunk.clone()];
            let (seen, _) = probe.succeed(&draft)?;
            ensure(seen.writes().len() == 1, || format!("{} Write chunks", seen.writes().len()))?;
            is_echo(&chunk, &seen.writes()[0], LINK_TARGET.len() as u64)?;
            let octets = filled(probe, &chunk, LINK_TARGET.len())?;
            ensure(octets == LINK_TARGET, || "other octets than the link's".to_owned())?;
            Ok(seen.to_string())
        },
    },
    Check {
        name: "getattr-write-chunk",
        rules: &["8267-6.1-a", "8166-6.1-b", "8166-4.3.2.2-b"],
        sent: "GETATTR with a Write chunk: nothing of its results is eligible",
        expected: "its results inline, and the chunk returned unused",
        needs: Files,
        run: |probe| {
            let chunk = targets(probe, &[512]);
            let xid = probe.xid();
            let files = files(probe)?;
            let mut draft = DraftMessage::of(xid, files.call(xid, number::GETATTR).opaque(&files.file));
            draft.writes = vec![chunk.clone()];
            let (seen, payload) = probe.succeed(&draft)?;
            ensure(status(&payload) == Some(OK), || "an NFS error".to_owned())?;
            is_without_data(&seen, &chunk)?;
            Ok(seen.to_string())
        },
    },
    Check {
        name: "write-chunk-too-short",
        rules: &["8267-3-b", "8166-4.5.3-a"],
        sent: "READ of 2000 octets with a Write chunk of 100",
        expected: "ERR_CHUNK or an error, nothing beyond the chunk; or fewer octets, as READ may return",
        needs: Files,
        run: |probe| {
            let chunk = targets_with_margin(probe, &[100]);
            let mut draft = read(probe, 0, 2000)?;
            draft.writes = vec![chunk.clone()];
            let seen = probe.call(&draft)?;
            if !seen.is_err_chunk(draft.fixed.xid) && !is_rpc_error(&seen) {
                let results = results(seen.payload())?;
                ensure(results.length <= 100, || {
                    format!("a length of {} with room for 100", results.length)
                })?;
                is_echo(&chunk, &seen.writes()[0], u64::from(results.length))?;
            }
            let _ = filled(probe, &chunk, 100)?;
            probe.ask_null("the same connection")?;
            Ok(seen.to_string())
        },
    },
    Check {
        name: "write-chunk-unknown-handle",
        rules: &["8166-4.5.3-a"],
        sent: "READ with a Write chunk whose handle names nothing",
        expected: "an error or the end of the connection; a new one is served",
        needs: Files,
        run: |probe| {
            let mut draft = read(probe, 0, 512)?;
            draft.writes = vec![vec![Segment { handle: 0x5a5a_5a5a, length: 512, offset: 0 }]];
            probe.survives(&draft)
        },
    },
    Check {
        name: "write-chunk-of-read",
        rules: &["8166-8.1-c"],
        sent: "READ with a Write chunk whose memory allows only reading",
        expected: "an error or the end of the connection; a new one is served",
        needs: Files,
        run: |probe| {
            let mut draft = read(probe, 0, 512)?;
            draft.writes = vec![sources(probe, &[9; 512], &[])];
            probe.survives(&draft)
        },
    },
    Check {
        name: "long-reply",
        rules: &["8166-3.5.3-e", "8166-3.5.3-c", "8166-3.5.3-f", "8166-4.2.4-b"],
        sent: "READ of 8001 octets with a Reply chunk, and no Write chunk",
        expected: "RDMA_NOMSG; the whole Reply, with the padding of the data, in the chunk",
        needs: Files,
        run: |probe| read_in_reply_chunk(probe, &[12 << 10], 8001),
    },
    Check {
        name: "long-reply-segments",
        rules: &["8166-3.4.6-b", "8166-3.5.3-f"],
        sent: "READ of 6002 octets with a Reply chunk of segments of 10, 5000 and 4096 octets",
        expected: "RDMA_NOMSG; the segments filled in order",
        needs: Files,
        run: |probe| read_in_reply_chunk(probe, &[10, 5000, 4096], 6002),
    },
    Check {
        name: "long-reply-reduced",
        rules: &["8166-3.5.3-e", "8166-4.3.3-c", "8166-4.3.2-a"],
        sent: "READ of 4095 octets with a Write chunk and a Reply chunk",
        expected: "the data in the Write chunk; the rest inline, or in the Reply chunk",
        needs: Files,
        run: |probe| {
            let chunk = targets_with_margin(probe, &[4096]);
            let mut draft = read(probe, 0, 4095)?;
            draft.writes = vec![chunk.clone()];
            draft.reply = Some(targets(probe, &[1024]));
            let (seen, payload) = probe.succeed(&draft)?;
            let results = results(&payload)?;
            ensure(results.inline.is_empty() && results.length == 4095, || format!("{results:?}"))?;
            ensure(seen.reply_chunk().is_some(), || "the Reply chunk was not returned".to_owned())?;
            is_echo(&chunk, seen.writes().first().map_or(&[], Vec::as_slice), 4095)?;
            let octets = filled(probe, &chunk, 4095)?;
            ensure(octets == content()[..4095], || "other octets than the file's".to_owned())?;
            Ok(seen.to_string())
        },
    },
    Check {
        name: "reply-chunk-too-short",
        rules: &["8166-4.3.3-d", "8267-3-b", "8166-4.5.3-a"],
        sent: "READ of 8000 octets with a Reply chunk of 100, and no Write chunk",
        expected: "ERR_CHUNK or an error; nothing beyond the chunk, and the connection lives",
        needs: Files,
        run: |probe| {
            let chunk = targets_with_margin(probe, &[100]);
            let mut draft = read(probe, 0, 8000)?;
            draft.reply = Some(chunk.clone());
            let came = overrun(probe, &draft)?;
            let _ = filled(probe, &chunk, 100)?;
            Ok(came)
        },
    },
    Check {
        name: "reply-without-room",
        rules: &["8267-3-b", "8166-4.3.3-d", "8166-4.2.4-d", "8797-4.2-c"],
        sent: "READ of as many octets as this side receives inline, and no chunk for them",
        expected: "ERR_CHUNK or an error: never a message beyond the threshold",
        needs: Files,
        run: |probe| {
            let own = own_private_data(false);
            beyond_threshold(probe, &own.to_wire(), own.receive_size.octets())
        },
    },
    Check {
        name: "threshold-1024",
        rules: &["8797-4.2-c", "8166-3.3.2-a"],
        sent: "private data with a Receive size of 1024, and READ of 1024 octets without a chunk",
        expected: "ERR_CHUNK or an error",
        needs: Files,
        run: |probe| {
            let mut data = own_private_data(false).to_wire();
            data[7] = 0;
            beyond_threshold(probe, &data, 1024)
        },
    },
    Check {
        name: "threshold-absent",
        rules: &["8797-5.1-a", "8166-3.3.3-b"],
        sent: "no private data, and READ of 1024 octets without a chunk",
        expected: "ERR_CHUNK or an error",
        needs: Files,
        run: |probe| beyond_threshold(probe, &[], 1024),
    },
    Check {
        name: "threshold-unknown-version",
        rules: &["8797-5.2-b", "8797-5.1-a"],
        sent: "private data of version 2 with large sizes, and READ of 1024 octets without a chunk",
        expected: "ERR_CHUNK or an error: it is as if there were none",
        needs: Files,
        run: |probe| {
            let mut data = own_private_data(false).to_wire();
            data[4] = 2;
            beyond_threshold(probe, &data, 1024)
        },
    },
    Check {
        name: "threshold-later",
        rules: &["8797-5.2-a", "8797-L-1"],
        sent: "private data at octet 5, behind other octets, and READ of 2048 octets without a chunk",
        expected: "the data inline, as far as the peer's Send size goes",
        needs: Files,
        run: |probe| {
            probe.connect(&[&b"other"[..], &own_private_data(false).to_wire()].concat())?;
            let data = PrivateData::find(&probe.accepted).unwrap_or(PrivateData::ABSENT);
            if data.send_size.octets() < 4096 {
                return not_applicable(format!("the peer sends {} octets inline", data.send_size.octets()));
            }
            probe.ask_null("that connection")?;
            read_inline(probe, Vec::new(), 2048)
        },
    },
    Check {
        name: "write-reduced",
        rules: &["8166-3.4.5-a", "8166-3.4.5.2-a", "8166-3.4.5.1-a", "8267-6.4.1-a"],
        sent: "WRITE of 3001 octets in a Read chunk without padding, at the Position of its data",
        expected: "all of it written",
        needs: Files,
        run: |probe| {
            let data = data(probe, 3001);
            write_reduced(probe, &data, 0, &[])
        },
    },
    Check {
        name: "write-padded",
        rules: &["8166-3.4.5.2-a"],
        sent: "WRITE of 3001 octets in a Read chunk with its padding",
        expected: "all of it written",
        needs: Files,
        run: |probe| {
            let data = data(probe, 3001);
            write_reduced(probe, &data, 3, &[])
        },
    },
    Check {
        name: "write-segments",
        rules: &["8166-3.4.5-b", "8166-3.4.5-a", "8166-3.4.4-a"],
        sent: "WRITE of 3001 octets in a Read chunk of 5 segments of odd lengths",
        expected: "all of it written, in the order of the list",
        needs: Files,
        run: |probe| {
            let data = data(probe, 3001);
            write_reduced(probe, &data, 0, &[1, 18, 1001, 3000])
        },
    },
    Check {
        name: "write-data-16-segments",
        rules: &["8267-6.4.2-a"],
        sent: "WRITE of 1600 octets in a Read chunk of 16 segments",
        expected: "all of it written",
        needs: Files,
        run: |probe| {
            let data = data(probe, 1600);
            let cuts: Vec<usize> = (1..16).map(|segment| segment * 100).collect();
            write_reduced(probe, &data, 0, &cuts)
        },
    },
    Check {
        name: "write-data-inline",
        rules: &["8166-3.5.1-a", "8166-3.4.2-a"],
        sent: "WRITE of 501 octets inline",
        expected: "all of it written",
        needs: Files,
        run: |probe| {
            let data = data(probe, 501);
            let (xid, mut call) = write_call(probe, 501)?;
            call.0.extend_from_slice(&data);
            call.0.resize(call.0.len().next_multiple_of(4), 0);
            let (_, payload) = probe.succeed(&DraftMessage::of(xid, call))?;
            ensure(status(&payload) == Some(OK), || "an NFS error".to_owned())?;
            target_holds(probe, &data)?;
            Ok("written, and read back".to_owned())
        },
    },
    Check {
        name: "write-long-call",
        rules: &["8166-3.5.3-f", "8166-3.5.3-a"],
        sent: "WRITE of 2001 octets, all of it in a Position Zero Read chunk, padded",
        expected: "all of it written",
        needs: Files,
        run: |probe| {
            let data = data(probe, 2001);
            let (xid, mut call) = write_call(probe, 2001)?;
            call.0.extend_from_slice(&data);
            call.0.resize(call.0.len().next_multiple_of(4), 0);
            let mut draft = DraftMessage::of(xid, Words::default());
            draft.fixed.procedure = procedure::NOMSG;
            draft.reads = sources(probe, &call.0, &[]).into_iter().map(|segment| (0, segment)).collect();
            let (_, payload) = probe.succeed(&draft)?;
            ensure(status(&payload) == Some(OK), || "an NFS error".to_owned())?;
            target_holds(probe, &data)?;
            Ok("written, and read back".to_owned())
        },
    },
    Check {
        name: "write-long-call-reduced",
        rules: &["8166-3.5.3-g", "8267-6.4.2-a"],
        sent: "WRITE of 2002 octets in a Read chunk, and the rest of it in a Position Zero Read chunk",
        expected: "all of it written",
        needs: Files,
        run: |probe| {
            let data = data(probe, 2002);
            let (xid, call) = write_call(probe, 2002)?;
            let position = call.0.len() as u32;
            let mut draft = DraftMessage::of(xid, Words::default());
            draft.fixed.procedure = procedure::NOMSG;
            draft.reads = sources(probe, &call.0, &[]).into_iter().map(|segment| (0, segment)).collect();
            draft.reads.extend(sources(probe, &data, &[]).into_iter().map(|segment| (position, segment)));
            let (_, payload) = probe.succeed(&draft)?;
            ensure(status(&payload) == Some(OK), || "an NFS error".to_owned())?;
            target_holds(probe, &data)?;
            Ok("written, and read back".to_owned())
        },
    },
    Check {
        name: "write-length-differs",
        rules: &["8166-4.5.2-b"],
        sent: "WRITE of 3000 octets whose Read chunk has 2000",
        expected: "GARBAGE_ARGS or ERR_CHUNK, and nothing written",
        needs: Files,
        run: |probe| {
            let before = data(probe, 64);
            write_reduced(probe, &before, 0, &[])?;
            let (xid, call) = write_call(probe, 3000)?;
            let position = call.0.len() as u32;
            let mut draft = DraftMessage::of(xid, call);
            draft.reads =
                sources(probe, &[0x77; 2000], &[]).into_iter().map(|segment| (position, segment)).collect();
            let came = overrun(probe, &draft)?;
            target_holds(probe, &before)?;
            Ok(came)
        },
    },
    Check {
        name: "write-wrong-position",
        rules: &["8166-4.5.2-b", "8166-3.4.5-a", "8166-6.1-c"],
        sent: "WRITE whose Read chunk is 4 octets before its data",
        expected: "GARBAGE_ARGS or ERR_CHUNK, and nothing written",
        needs: Files,
        run: |probe| {
            let before = data(probe, 64);
            write_reduced(probe, &before, 0, &[])?;
            let (xid, call) = write_call(probe, 1000)?;
            let position = call.0.len() as u32 - 4;
            let mut draft = DraftMessage::of(xid, call);
            draft.reads =
                sources(probe, &[0x77; 1000], &[]).into_iter().map(|segment| (position, segment)).collect();
            let came = overrun(probe, &draft)?;
            target_holds(probe, &before)?;
            Ok(came)
        },
    },
    Check {
        name: "write-unknown-handle",
        rules: &["8166-4.5.3-a"],
        sent: "WRITE whose Read chunk has a handle that names nothing",
        expected: "an error or the end of the connection; a new one is served, and nothing is written",
        needs: Files,
        run: |probe| {
            let before = data(probe, 64);
            write_reduced(probe, &before, 0, &[])?;
            let (xid, call) = write_call(probe, 1000)?;
            let segment = Segment { handle: 0x5a5a_5a5a, length: 1000, offset: 0 };
            let position = call.0.len() as u32;
            let mut draft = DraftMessage::of(xid, call);
            draft.reads = vec![(position, segment)];
            let came = probe.survives(&draft)?;
            target_holds(probe, &before)?;
            Ok(came)
        },
    },
    Check {
        name: "lookup-reduced",
        rules: &["8166-6.1-c", "8267-6.1-a", "8166-3.4.2-a"],
        sent: "LOOKUP whose name is in a Read chunk: it is not eligible",
        expected: "ERR_CHUNK or GARBAGE_ARGS: it must not be executed",
        needs: Files,
        run: |probe| {
            let xid = probe.xid();
            let files = files(probe)?;
            let call = files.call(xid, number::LOOKUP).opaque(&files.folder).words(&[4]);
            let position = call.0.len() as u32;
            let mut draft = DraftMessage::of(xid, call);
            draft.reads =
                sources(probe, b"file", &[]).into_iter().map(|segment| (position, segment)).collect();
            probe.refused_either_way(&draft)
        },
    },
    Check {
        name: "write-2-read-chunks",
        rules: &["8267-4-b"],
        sent: "WRITE of 500 octets with a second Read chunk behind its data",
        expected: "ERR_CHUNK or GARBAGE_ARGS, and nothing written",
        needs: Files,
        run: |probe| {
            let before = data(probe, 64);
            write_reduced(probe, &before, 0, &[])?;
            let (xid, call) = write_call(probe, 500)?;
            let position = call.0.len() as u32;
            let mut draft = DraftMessage::of(xid, call);
            for place in [position, position + 500] {
                draft
                    .reads
                    .extend(sources(probe, &[0x77; 500], &[]).into_iter().map(|segment| (place, segment)));
            }
            let came = overrun(probe, &draft)?;
            target_holds(probe, &before)?;
            Ok(came)
        },
    },
];

/// The Write chunk came back unused, or empty.
fn is_without_data(seen: &SeenMessage, chunk: &[Segment]) -> Result<(), Stop> {
    match seen.writes() {
        [returned] if returned.is_empty() => Ok(()),
        [returned] => is_echo(chunk, returned, 0),
        others => fail(format!("{} Write chunks", others.len())),
    }
}
