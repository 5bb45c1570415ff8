//! The duplicate request cache: Replies to Calls that must not be executed twice, kept for retransmissions
//! (5531-e). It is below the framing: a Call over RDMA and one over TCP are looked up alike, and so is a
//! retransmission over another connection.
//!
//! A Call is known by its caller's address (without the port, which changes with each connection), its xid, its
//! length, and a digest: of program, version, procedure, credential and arguments, and of the first and the last
//! octets of its large data. An entry is used for [`AGE_MAX`] at most, as in Linux, so that a client that counts
//! its xids from the same number at each start does not get a Reply of its previous run.
//!
//! # Bounds
//!
//! There is a fixed number of entries, which owners share fairly, and the connections of each ([`KeptTable`]): a connection keeps its
//! unanswered Calls, and up to twice its credits, as long as there are that many entries for each. WRITEs have entries of their
//! own, so that their number does not evict more important ones. A Reply is kept if it fits [`REPLY_LEN_MAX`], which all of NFS
//! version 3's do that need it (CREATE's is the longest: 304 octets), so Replies with chunks never have to be.
//!
//! A retransmission of a Call that is still being executed is dropped if it comes over the same connection: its Reply is
//! on its way there. Over another one it waits for the Reply ([`Duplicates::wait`]), since the first connection may be
//! gone.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use stag_fabric::Peer;
use stag_wire::xdr::{Reader, padded};

use crate::ConnectionId;
use crate::server::kept::{AGE_MAX, CallKey, ENTRY_LEN, KeptReply, KeptState, KeptTable, REPLY_LEN_MAX};
use crate::server::owner::{address, owner};
use crate::service::call::Placed;
use crate::service::{Procedure, Repeat, Token};
use crate::statistics::Statistics;

/// Octets of a Call that its digest is made of, at most, beside its data.
const DIGEST_LEN_MAX: usize = 320;

/// Octets at each end of a Call's data that its digest is made of.
const DATA_END_LEN: usize = 64;

/// Entries for WRITEs: one for this number of the others.
const UNTIMELY_SHARE: usize = 4;

/// Calls of connections that are gone, whose answers are still to come: at most.
const ORPHANS_MAX: usize = 1024;

/// Calls that wait for the answer to another: at most.
const WAITERS_MAX: usize = 1024;

/// Names an entry, and says for which Call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryId {
    table: u8,
    index: u32,
    generation: u32,
}

/// A Call that is looked up.
pub(crate) struct Asked<'a> {
    pub(crate) procedure: &'static Procedure,
    pub(crate) connection: ConnectionId,
    pub(crate) peer: Option<&'a Peer>,
    pub(crate) xid: u32,
    /// The Payload stream, from the xid on.
    pub(crate) stream: &'a [u8],
    /// At the first argument in it.
    pub(crate) arguments: &'a Reader<'a>,
    /// The data that is not in it.
    pub(crate) items: &'a [Placed],
    pub(crate) now: Duration,
}

/// What is known of a Call that must not simply be executed again.
#[allow(clippy::large_enum_variant, reason = "on the stack, for a moment; a box would be an allocation")]
pub(crate) enum Known {
    /// Nothing, and nothing will be.
    Nothing,
    /// Nothing yet: its Reply will be kept here.
    New(EntryId),
    /// It is being executed for the same connection, where its Reply will be sent.
    Running,
    /// It is being executed for another connection: see [`Duplicates::wait`].
    RunningElsewhere(EntryId),
    /// It was executed, and this is its Reply.
    Answered(KeptReply),
}

/// The cache of one engine.
#[derive(Debug)]
pub(crate) struct Duplicates {
    /// For Calls that must not be executed twice, and for those that must not come late. None before the first
    /// such Call: an engine without such services takes no memory for them.
    tables: Option<[KeptTable; 2]>,
    /// 0: nothing is kept.
    entries: usize,
    /// Calls that will be answered later, on connections that are gone by now.
    orphans: Vec<(Token, EntryId)>,
    /// Calls that came again over another connection, and wait for the answer to the first.
    waiters: Vec<(Token, EntryId)>,
    /// An entry has changed since the waiters were looked at.
    has_news: bool,
    seed: [u64; 2],
}

/// Entries for WRITEs.
const fn untimely(entries: usize) -> usize {
    entries.div_ceil(UNTIMELY_SHARE)
}

impl Duplicates {
    pub(crate) fn new(entries: u32) -> Duplicates {
        // So that a peer, which does not see our memory, cannot make digests collide.
        let random = RandomState::new();
        let seed = [random.hash_one(1), random.hash_one(2) | 1];
        Duplicates {
            tables: None,
            entries: entries as usize,
            orphans: Vec::new(),
            waiters: Vec::new(),
            has_news: false,
            seed,
        }
    }

    /// Octets of memory that `entries` take.
    pub(crate) const fn footprint(entries: u32) -> usize {
        (entries as usize + untimely(entries as usize)) * ENTRY_LEN
    }

    /// What is known of a Call that must not simply be executed again.
    pub(crate) fn lookup(&mut self, asked: &Asked<'_>, statistics: &mut Statistics) -> Known {
        let (Some(caller), true) = (asked.peer.map(address), self.entries > 0) else { return Known::Nothing };
        let key =
            CallKey { caller, digest: call_digest(asked, self.seed), xid: asked.xid, len: whole_len(asked) };
        let entries = self.entries;
        let tables =
            self.tables.get_or_insert_with(|| [KeptTable::new(entries), KeptTable::new(untimely(entries))]);
        let number = u8::from(asked.procedure.repeat == Repeat::Untimely);
        let table = &mut tables[usize::from(number)];
        if let Some(index) = table.find(&key) {
            let found = &table.entries[index as usize];
            if asked.now >= found.since + AGE_MAX {
                table.remove(index);
            } else if found.state == KeptState::Answered {
                return Known::Answered(found.reply());
            } else if found.connection == folded(asked.connection) {
                return Known::Running;
            } else {
                let generation = found.generation;
                return Known::RunningElsewhere(EntryId { table: number, index, generation });
            }
        }
        // Another entry may make room for it.
        self.has_news = true;
        match table.insert(key, owner(asked.peer), folded(asked.connection), asked.now) {
            Some((index, generation)) => Known::New(EntryId { table: number, index, generation }),
            None => {
                statistics.duplicates_unkept += 1;
                Known::Nothing
            }
        }
    }

    /// Keeps the Reply of a Call that was executed; `None`: it cannot be kept.
    pub(crate) fn keep(&mut self, id: EntryId, reply: Option<&[u8]>, statistics: &mut Statistics) {
        self.has_news = true;
        match (reply, self.table(id)) {
            (Some(reply), Some(table)) if reply.len() <= REPLY_LEN_MAX => {
                table.entries[id.index as usize].answer(reply);
            }
            _ => {
                statistics.duplicates_unkept += 1;
                self.forget(id);
            }
        }
    }

    /// A Call was not executed, or must count as not executed.
    #[cold]
    pub(crate) fn forget(&mut self, id: EntryId) {
        self.has_news = true;
        if let Some(table) = self.table(id) {
            table.remove(id.index);
        }
    }

    /// The connection of a Call is gone that will be answered later.
    #[cold]
    pub(crate) fn orphan(&mut self, token: Token, id: EntryId) {
        if self.orphans.len() == ORPHANS_MAX {
            self.forget(id);
        } else {
            self.orphans.push((token, id));
        }
    }

    /// Whether the Reply to a Call whose connection is gone is still wanted: it is kept there then.
    #[cold]
    pub(crate) fn take_orphan(&mut self, token: &Token) -> Option<EntryId> {
        let place = self.orphans.iter().position(|(orphan, _)| orphan == token)?;
        Some(self.orphans.swap_remove(place).1)
    }

    /// Lets a Call that came again wait for the answer to the first. `false`: it has come over this connection before,
    /// or too many wait; the caller drops it.
    #[cold]
    pub(crate) fn wait(&mut self, token: Token, id: EntryId, statistics: &mut Statistics) -> bool {
        let waits = |(other, entry): &(Token, EntryId)| *entry == id && other.connection == token.connection;
        if self.waiters.len() == WAITERS_MAX || self.waiters.iter().any(waits) {
            statistics.duplicates_dropped += 1;
            return false;
        }
        self.waiters.push((token, id));
        true
    }

    /// A connection is gone: its Calls wait no more.
    pub(crate) fn close(&mut self, connection: ConnectionId) {
        self.waiters.retain(|(token, _)| token.connection != connection);
    }

    /// Whether a Call may have waited long enough.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.has_news && !self.waiters.is_empty()
    }

    /// The next Call that need not wait any more, and the Reply to send. `None` instead of a Reply: none was kept.
    #[cold]
    pub(crate) fn next_waiter(&mut self, statistics: &mut Statistics) -> Option<(Token, Option<KeptReply>)> {
        let tables = self.tables.as_ref()?;
        let found = |id: &EntryId| &tables[usize::from(id.table)].entries[id.index as usize];
        let is_over = |(_, id): &(Token, EntryId)| {
            let entry = found(id);
            entry.generation != id.generation || entry.state != KeptState::Running
        };
        let Some(place) = self.waiters.iter().position(is_over) else {
            self.has_news = false;
            return None;
        };
        let (token, id) = self.waiters.swap_remove(place);
        let entry = found(&id);
        let is_kept = entry.generation == id.generation && entry.state == KeptState::Answered;
        match is_kept {
            true => statistics.duplicates_answered += 1,
            false => statistics.duplicates_dropped += 1,
        }
        Some((token, is_kept.then(|| entry.reply())))
    }

    /// The table of an entry that is still of its Call.
    fn table(&mut self, id: EntryId) -> Option<&mut KeptTable> {
        let table = &mut self.tables.as_mut()?[usize::from(id.table)];
        let entry = &table.entries[id.index as usize];
        (entry.generation == id.generation && entry.state == KeptState::Running).then_some(table)
    }
}

/// The digest of a Call: of what it begins with, and of both ends of its data, wherever that is: it may come in a chunk
/// now and inline the next time.
fn call_digest(asked: &Asked<'_>, seed: [u64; 2]) -> u64 {
    let stream = asked.stream;
    let mut digest = Digest::new(seed);
    let Some((at, len)) = find_data(asked) else {
        digest.add(&stream[..stream.len().min(DIGEST_LEN_MAX)]);
        digest
            .add(&stream[stream.len().saturating_sub(DATA_END_LEN).max(DIGEST_LEN_MAX).min(stream.len())..]);
        for item in asked.items {
            add_ends(&mut digest, item.pieces.iter().map(|piece| &piece[..]), item.len as usize);
        }
        return digest.finish();
    };
    digest.add(&stream[..at.min(DIGEST_LEN_MAX)]);
    match asked.items.first() {
        Some(item) => add_ends(&mut digest, item.pieces.iter().map(|piece| &piece[..]), len),
        None => add_ends(&mut digest, [&stream[at..]].into_iter(), len),
    }
    digest.finish()
}

/// Where the large data of a Call begins in its stream, or is left out of it, and how long it is. `None`: it has none.
fn find_data(asked: &Asked<'_>) -> Option<(usize, usize)> {
    let locate = asked.procedure.locate?;
    if let ([_], [chunk]) = (asked.items, asked.arguments.reduced()) {
        // A chunk says itself where its data belongs: behind the word with its length.
        let at = chunk.position as usize;
        let (_, len) = asked.stream.get(asked.arguments.position()..at)?.split_last_chunk()?;
        return Some((at, u32::from_be_bytes(*len) as usize));
    }
    let mut reader = asked.arguments.clone();
    let len = locate(&mut reader).ok()? as usize;
    Some((reader.position().min(asked.stream.len()), len))
}

/// Adds the first and the last octets of data of `len` octets, which lies in `pieces`.
fn add_ends<'p>(digest: &mut Digest, mut pieces: impl Iterator<Item = &'p [u8]>, len: usize) {
    let first = pieces.next().unwrap_or(&[]);
    // In one piece, as most data is.
    if len >= 2 * DATA_END_LEN
        && let Some(data) = first.get(..len)
        && let (Some(start), Some(end)) = (data.first_chunk(), data.last_chunk())
    {
        return digest.add_two(start, end);
    }
    let pieces = std::iter::once(first).chain(pieces);
    let mut ends = [0; 2 * DATA_END_LEN];
    let (tail, mut at) = (len.saturating_sub(DATA_END_LEN).max(DATA_END_LEN), 0);
    for piece in pieces {
        let end = (at + piece.len()).min(len);
        for (from, to, place) in [(0, DATA_END_LEN.min(len), 0), (tail, len, DATA_END_LEN)] {
            let (from, to) = (from.max(at), to.min(end));
            if from < to {
                let base = if place == 0 { 0 } else { tail };
                ends[place + from - base..place + to - base].copy_from_slice(&piece[from - at..to - at]);
            }
        }
        at = end;
    }
    digest.add(&ends);
}

/// Octets of the Call, those included that are not in its stream.
fn whole_len(asked: &Asked<'_>) -> u32 {
    let reduced = match asked.arguments.reduced() {
        [item] => padded(item.len),
        items => items.iter().map(|item| padded(item.len)).sum(),
    };
    (asked.stream.len() as u64 + reduced) as u32
}

/// A keyed digest: good enough to tell Calls apart, and to spread them.
struct Digest {
    seed: [u64; 2],
    sum: u64,
}

impl Digest {
    fn new(seed: [u64; 2]) -> Digest {
        Digest { seed, sum: seed[0] }
    }

    fn fold(a: u64, b: u64) -> u64 {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    }

    fn mix(&mut self, pair: [u8; 16]) {
        let words = u128::from_le_bytes(pair);
        self.sum = Digest::fold(words as u64 ^ self.seed[1], (words >> 64) as u64 ^ self.sum);
    }

    #[inline(always)]
    fn mix_block(&mut self, block: &[u8; 64]) {
        block.as_chunks().0.iter().for_each(|pair| self.mix(*pair));
    }

    /// Adds octets, and how many they are.
    fn add(&mut self, octets: &[u8]) {
        self.sum ^= octets.len() as u64;
        // Four pairs at a time: to count them would take as long as to mix them.
        let (blocks, behind) = octets.as_chunks::<64>();
        blocks.iter().for_each(|block| self.mix_block(block));
        let (pairs, rest) = behind.as_chunks::<16>();
        pairs.iter().for_each(|pair| self.mix(*pair));
        if rest.is_empty() {
            return;
        }
        // Together with octets before them, if there are: a copy of a length that only the run knows would be a call.
        let last = octets.last_chunk().copied().unwrap_or_else(|| {
            let mut last = [0; 16];
            last[..rest.len()].copy_from_slice(rest);
            last
        });
        self.mix(last);
    }

    /// Adds the octets of both, one behind the other.
    fn add_two(&mut self, start: &[u8; DATA_END_LEN], end: &[u8; DATA_END_LEN]) {
        self.sum ^= 2 * DATA_END_LEN as u64;
        self.mix_block(start);
        self.mix_block(end);
    }

    fn finish(self) -> u64 {
        Digest::fold(self.sum ^ self.seed[0], self.seed[1])
    }
}

/// A connection's name as one number, for the table of kept Replies.
fn folded(connection: ConnectionId) -> u64 {
    u64::from(connection.index) << 32 | u64::from(connection.generation)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(octets: &[u8], seed: [u64; 2]) -> u64 {
        let mut digest = Digest::new(seed);
        digest.add(octets);
        digest.finish()
    }

    #[test]
    fn every_octet_counts() {
        let octets: Vec<u8> = (0..100).collect();
        let seed = [3, 5];
        let mut seen: Vec<u64> = (0..100).map(|len| digest(&octets[..len], seed)).collect();
        for at in 0..100 {
            for change in [1, 0x80] {
                let mut other = octets.clone();
                other[at] ^= change;
                seen.push(digest(&other, seed));
            }
        }
        seen.push(digest(&octets, seed));
        seen.push(digest(&octets, [4, 5]));
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), count);
    }

    #[test]
    fn both_ends_of_data_count_however_it_is_cut() {
        let ends = |data: &[u8], len: usize, cut: usize| {
            let mut digest = Digest::new([3, 5]);
            add_ends(&mut digest, data.chunks(cut), len);
            digest.finish()
        };
        for len in [0, 1, 63, 64, 65, 100, 127, 128, 129, 500] {
            // With padding, which does not count.
            let data: Vec<u8> = (0..len + 3).map(|octet| octet as u8).collect();
            let whole = ends(&data, len, 1000);
            for cut in [1, 3, 64, 100] {
                assert_eq!(ends(&data, len, cut), whole, "{len} octets cut by {cut}");
            }
            for at in 0..len + 3 {
                let mut other = data.clone();
                other[at] ^= 1;
                let counts = at < len && (at < DATA_END_LEN || at + DATA_END_LEN >= len);
                assert_eq!(ends(&other, len, 1000) != whole, counts, "octet {at} of {len}");
            }
        }
    }
}
