//! Reads and writes the data of files: several Calls in flight, each with its own chunk.

use std::collections::VecDeque;

use stag::nfs::client::FinishedCall;
use stag::rpc::Chunks;
use stag::wire::nfs3::{
    CommitArguments, Data, FsinfoOk, Handle as WireHandle, ReadArguments, Stable, Verifier, WriteArguments,
};
use stag::wire::xdr::Item;

use super::any::AnyLink;
use super::{RemoteError, RemoteHandle, answer};

/// Octets of one READ or WRITE at most, however much a server takes.
const TRANSFER_LEN: usize = 1 << 20;

/// How much a server gives and takes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Octets of one READ.
    pub(super) read: usize,
    /// Octets of one WRITE.
    pub(super) write: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { read: TRANSFER_LEN, write: TRANSFER_LEN }
    }
}

impl Limits {
    /// With those of one more export: the smaller ones count, for a handle does not tell its export.
    pub(super) fn with(self, info: FsinfoOk) -> Limits {
        // Whole pages where possible; a server that says 0 takes something all the same.
        let limit = |so_far: usize, max: u32| match max as usize {
            0 => so_far,
            max @ 1..PAGE_LEN => so_far.min(max),
            max => so_far.min(max / PAGE_LEN * PAGE_LEN),
        };
        Limits { read: limit(self.read, info.read_max), write: limit(self.write, info.write_max) }
    }
}

/// Octets of a page.
const PAGE_LEN: usize = 4096;

/// Calls in flight.
const DEPTH: usize = 4;

/// Data up to this length goes inline: a chunk costs more than the copy.
pub(super) const INLINE_LEN_MAX: usize = 1024;

/// A part of the caller's buffer to transfer.
#[derive(Clone, Copy, Debug)]
struct Part {
    start: usize,
    end: usize,
}

impl Part {
    /// In a Call's user number, so that its end says which part it was. Both are below 2^31.
    fn to_user(self) -> u64 {
        (self.start as u64) << 31 | self.end as u64
    }

    fn of(finished: &FinishedCall) -> Part {
        const MASK: u64 = (1 << 31) - 1;
        let user = finished.completed().user;
        Part { start: (user >> 31 & MASK) as usize, end: (user & MASK) as usize }
    }
}

/// The parts of a range, in order, of at most `len` octets each.
fn parts(from: usize, to: usize, len: usize) -> VecDeque<Part> {
    let starts = (from..to).step_by(len);
    starts.map(|start| Part { start, end: to.min(start + len) }).collect()
}

/// Reads from `offset` into `buffer`; returns how much there was.
pub(super) fn read(
    link: &mut AnyLink,
    limits: Limits,
    file: &RemoteHandle,
    offset: u64,
    buffer: &mut [u8],
) -> Result<usize, RemoteError> {
    // The first alone: most files end within it.
    let first = buffer.len().min(limits.read);
    let mut end = transfer_in(link, file, offset, buffer, parts(0, first, limits.read), buffer.len())?;
    if end > first {
        let rest = parts(first, buffer.len(), limits.read);
        end = transfer_in(link, file, offset, buffer, rest, end)?;
    }
    Ok(end)
}

/// Reads `waiting`. Returns where the file ends in `buffer`; `end`, if it is not seen to end.
fn transfer_in(
    link: &mut AnyLink,
    file: &RemoteHandle,
    offset: u64,
    buffer: &mut [u8],
    mut waiting: VecDeque<Part>,
    mut end: usize,
) -> Result<usize, RemoteError> {
    let mut in_flight = 0;
    loop {
        while in_flight < DEPTH
            && let Some(part) = waiting.pop_front()
        {
            if part.start >= end {
                continue;
            }
            if !begin_read(link, file, offset, part)? {
                waiting.push_front(part);
                break;
            }
            in_flight += 1;
        }
        if in_flight == 0 && waiting.is_empty() {
            return Ok(end);
        }
        if in_flight == 0 {
            return Err(RemoteError::Broken("no buffer, although nothing is in flight".to_owned()));
        }
        let finished = link.finished()?;
        in_flight -= 1;
        let part = Part::of(&finished);
        let (len, eof) = take_data(&finished, &mut buffer[part.start..part.end])?;
        if eof {
            end = end.min(part.start + len);
        } else if len == 0 {
            return Err(RemoteError::Broken(
                "the server gives no data where the file has not ended".to_owned(),
            ));
        } else if part.start + len < part.end {
            waiting.push_front(Part { start: part.start + len, ..part });
        }
    }
}

/// `false`: not now.
fn begin_read(link: &mut AnyLink, file: &RemoteHandle, offset: u64, part: Part) -> Result<bool, RemoteError> {
    let count = part.end - part.start;
    let Some(chunk) = link.buffer(count) else { return Ok(false) };
    let arguments =
        ReadArguments { file: WireHandle(file), offset: offset + part.start as u64, count: count as u32 };
    link.begin(&arguments, &mut Chunks::write(chunk), part.to_user())
}

/// Copies the data of a READ to where it belongs. Returns its length, and whether the file ends with it.
fn take_data(finished: &FinishedCall, target: &mut [u8]) -> Result<(usize, bool), RemoteError> {
    let ok = answer(finished.reply::<ReadArguments<'_>>())?;
    let mut len = 0;
    for octets in finished.octets(&ok.data.0) {
        let target = target.get_mut(len..len + octets.len()).ok_or(RemoteError::senseless("READ"))?;
        target.copy_from_slice(octets);
        len += octets.len();
    }
    Ok((len, ok.eof))
}

/// Writes `data` at `offset`, so that it is safe when this returns: once more, if the server was started anew before.
pub(super) fn write(
    link: &mut AnyLink,
    limits: Limits,
    file: &RemoteHandle,
    offset: u64,
    data: &[u8],
) -> Result<(), RemoteError> {
    for _ in 0..RESTARTS_MAX {
        if write_once(link, limits, file, offset, data)? {
            return Ok(());
        }
    }
    Err(RemoteError::Broken("the server forgets what was written again and again".to_owned()))
}

/// Restarts of a server within the writing of one piece that are taken without complaint.
const RESTARTS_MAX: usize = 5;

/// `false`: the server may have forgotten some of it.
fn write_once(
    link: &mut AnyLink,
    limits: Limits,
    file: &RemoteHandle,
    offset: u64,
    data: &[u8],
) -> Result<bool, RemoteError> {
    let mut waiting = parts(0, data.len(), limits.write);
    // One Call that is safe at once, or several and one COMMIT.
    let stable = if waiting.len() == 1 { Stable::FileSync } else { Stable::Unstable };
    let mut verifier: Option<Verifier> = None;
    let (mut uncommitted, mut is_same) = (false, true);
    let mut in_flight = 0;
    loop {
        while in_flight < DEPTH
            && let Some(part) = waiting.pop_front()
        {
            if !begin_write(link, file, offset, &data[part.start..part.end], part, stable)? {
                waiting.push_front(part);
                break;
            }
            in_flight += 1;
        }
        if in_flight == 0 && waiting.is_empty() {
            break;
        }
        if in_flight == 0 {
            return Err(RemoteError::Broken("no buffer, although nothing is in flight".to_owned()));
        }
        let finished = link.finished()?;
        in_flight -= 1;
        let part = Part::of(&finished);
        let ok = answer(finished.reply::<WriteArguments<'_>>())?;
        let count = ok.count as usize;
        if count == 0 || count > part.end - part.start {
            return Err(RemoteError::senseless("WRITE"));
        }
        if part.start + count < part.end {
            waiting.push_front(Part { start: part.start + count, ..part });
        }
        if ok.committed == Stable::Unstable {
            uncommitted = true;
            is_same &= is_known(&mut verifier, ok.verifier);
        }
    }
    Ok(is_same && (!uncommitted || commit(link, file, &mut verifier)?))
}

fn begin_write(
    link: &mut AnyLink,
    file: &RemoteHandle,
    offset: u64,
    data: &[u8],
    part: Part,
    stable: Stable,
) -> Result<bool, RemoteError> {
    let count = data.len() as u32;
    let (mut chunks, item) = if data.len() <= INLINE_LEN_MAX {
        (Chunks::default(), Item::Inline(data))
    } else {
        let Some(mut chunk) = link.buffer(data.len()) else { return Ok(false) };
        chunk.copy_from_slice(data);
        (Chunks::read(chunk.share()), Item::Reduced { index: 0, len: count })
    };
    let offset = offset + part.start as u64;
    let arguments = WriteArguments { file: WireHandle(file), offset, count, stable, data: Data(item) };
    link.begin(&arguments, &mut chunks, part.to_user())
}

fn commit(
    link: &mut AnyLink,
    file: &RemoteHandle,
    verifier: &mut Option<Verifier>,
) -> Result<bool, RemoteError> {
    let arguments = CommitArguments { file: WireHandle(file), offset: 0, count: 0 };
    let finished = link.call(&arguments)?;
    let ok = answer(finished.reply::<CommitArguments<'_>>())?;
    Ok(is_known(verifier, ok.verifier))
}

/// A verifier that changes says that the server has forgotten what was not committed.
fn is_known(known: &mut Option<Verifier>, found: Verifier) -> bool {
    *known.get_or_insert(found) == found
}
