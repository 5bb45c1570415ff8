//! The duplicate request cache: Replies to Calls that must not be executed twice, kept for retransmissions
//! (5531-e). It is below the framing: a Call over RDMA and one over TCP are looked up alike, and so is one that
//! comes again over another connection.
//!
//! A Call is known by its caller's address (without the port, which changes when it connects again), its xid, its
//! length, and a digest of what it begins with: program, version, procedure, credential and arguments, but no
//! large data. An entry is used for [`AGE_MAX`] at most, as Linux does, lest a client that counts its xids from the
//! same number each time it starts gets the answer of its former life.
//!
//! # Bounds
//!
//! Entries are a ring: the oldest makes place for the newest. WRITEs have a ring of their own, so that the many of
//! them do not push out what matters more. A Reply is kept if it fits [`REPLY_LEN_MAX`], which all of NFS version 3's
//! do that need it (CREATE's is the longest: 304 octets), so Replies with chunks never have to be.
//! A retransmission of a Call that is still being executed is dropped: its Reply is on its way.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::Duration;

use stag_fabric::Peer;
use stag_wire::xdr::{Reader, padded};

use crate::draft::{Draft, Verdict};
use crate::service::{Procedure, Repeat, Token};
use crate::statistics::Statistics;

/// Octets of a Reply that can be kept.
pub(crate) const REPLY_LEN_MAX: usize = 320;

/// How long an entry is good for.
const AGE_MAX: Duration = Duration::from_secs(120);

/// Octets of a Call that its digest is made of, at most.
const DIGEST_LEN_MAX: usize = 320;

/// Entries for WRITEs: one for so many of the others.
const UNTIMELY_SHARE: usize = 4;

/// Entries that are looked at for one that can make place: those whose Call is being executed cannot.
const VICTIMS_MAX: usize = 8;

/// Calls of connections that are gone, whose answers are still to come: at most.
const ORPHANS_MAX: usize = 1024;

/// Names an entry, and says for which Call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryId {
    ring: u8,
    index: u32,
    generation: u32,
}

/// A Call that is looked up.
pub(crate) struct Asked<'a> {
    pub(crate) procedure: &'static Procedure,
    pub(crate) peer: Option<&'a Peer>,
    pub(crate) xid: u32,
    /// The Payload stream, from the xid on.
    pub(crate) stream: &'a [u8],
    /// At the first argument in it.
    pub(crate) arguments: &'a Reader<'a>,
    pub(crate) now: Duration,
}

/// What is known of a Call.
#[allow(clippy::large_enum_variant, reason = "on the stack, for a moment; a box would be an allocation")]
pub(crate) enum Known {
    /// Nothing, and nothing will be.
    Nothing,
    /// Nothing yet: its Reply is to be kept here.
    New(EntryId),
    /// It is being executed.
    Running,
    /// It was executed, and this is its Reply.
    Answered(Kept),
}

/// A copy of a Reply.
pub(crate) struct Kept {
    octets: [u8; REPLY_LEN_MAX],
    len: usize,
}

impl Kept {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.octets[..self.len]
    }
}

/// What a Call is known by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Key {
    caller: u128,
    digest: u64,
    xid: u32,
    len: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    Running,
    Answered,
}

/// One Call.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: Key,
    since: Duration,
    state: State,
    /// The next entry of the same bucket; [`NONE`] at the end.
    next: u32,
    generation: u32,
    reply_len: u32,
    reply: [u8; REPLY_LEN_MAX],
}

const NONE: u32 = u32::MAX;

const BLANK: Entry = Entry {
    key: Key { caller: 0, digest: 0, xid: 0, len: 0 },
    since: Duration::ZERO,
    state: State::Free,
    next: NONE,
    generation: 0,
    reply_len: 0,
    reply: [0; REPLY_LEN_MAX],
};

/// Octets that one entry takes, with its share of the buckets.
pub(crate) const ENTRY_LEN: usize = size_of::<Entry>() + 2 * size_of::<u32>();

/// Entries, the oldest of which makes place for the next.
#[derive(Debug)]
struct Ring {
    entries: Box<[Entry]>,
    /// The first entry of each bucket; as many as a power of two.
    buckets: Box<[u32]>,
    /// The oldest entry.
    oldest: usize,
}

/// The cache of one engine.
#[derive(Debug)]
pub(crate) struct Duplicates {
    /// For Calls that must not be executed twice, and for those that must not come late. None before the first
    /// such Call: an engine without such services takes no memory for them.
    rings: Option<[Ring; 2]>,
    /// 0: nothing is kept.
    entries: usize,
    /// Calls that will be answered later, on connections that are gone by now.
    orphans: Vec<(Token, EntryId)>,
    seed: [u64; 2],
}

/// Entries for WRITEs.
const fn untimely(entries: usize) -> usize {
    entries.div_ceil(UNTIMELY_SHARE)
}

impl Duplicates {
    pub(crate) fn new(entries: u32) -> Duplicates {
        // So that nobody who does not see our memory can make digests collide.
        let random = RandomState::new();
        let seed = [random.hash_one(1), random.hash_one(2) | 1];
        Duplicates { rings: None, entries: entries as usize, orphans: Vec::new(), seed }
    }

    /// Octets of memory that `entries` take.
    pub(crate) const fn footprint(entries: u32) -> usize {
        (entries as usize + untimely(entries as usize)) * ENTRY_LEN
    }

    /// What is known of a Call that must not simply be executed again.
    pub(crate) fn look(&mut self, asked: &Asked<'_>, statistics: &mut Statistics) -> Known {
        let (Some(caller), true) = (asked.peer.map(address), self.entries > 0) else { return Known::Nothing };
        let key =
            Key { caller, digest: digest(begin(asked), self.seed), xid: asked.xid, len: whole_len(asked) };
        let entries = self.entries;
        let rings = self.rings.get_or_insert_with(|| [Ring::new(entries), Ring::new(untimely(entries))]);
        let number = u8::from(asked.procedure.repeat == Repeat::Untimely);
        let ring = &mut rings[usize::from(number)];
        if let Some(found) = ring.find(&key)
            && asked.now < found.since + AGE_MAX
        {
            if found.state == State::Running {
                statistics.duplicates_dropped += 1;
                return Known::Running;
            }
            statistics.duplicates_answered += 1;
            return Known::Answered(Kept { octets: found.reply, len: found.reply_len as usize });
        }
        match ring.insert(key, asked.now) {
            Some((index, generation)) => Known::New(EntryId { ring: number, index, generation }),
            None => {
                statistics.duplicates_unkept += 1;
                Known::Nothing
            }
        }
    }

    /// Keeps the Reply of a Call that was executed, if it can be.
    pub(crate) fn keep(&mut self, id: EntryId, draft: &Draft, statistics: &mut Statistics) {
        let is_whole = draft.verdict == Verdict::Encoded && draft.long.is_none() && draft.items.is_empty();
        let payload = draft.header_len..draft.header_len + draft.payload_len;
        let reply = draft.send.as_ref().and_then(|send| send.get(payload)).filter(|_| is_whole);
        match (reply, self.ring(id)) {
            (Some(reply), Some(ring)) if reply.len() <= REPLY_LEN_MAX => {
                let entry = &mut ring.entries[id.index as usize];
                entry.reply[..reply.len()].copy_from_slice(reply);
                entry.reply_len = reply.len() as u32;
                entry.state = State::Answered;
            }
            _ => {
                statistics.duplicates_unkept += 1;
                self.forget(id);
            }
        }
    }

    /// A Call was not executed, or nobody may be told that it was.
    #[cold]
    pub(crate) fn forget(&mut self, id: EntryId) {
        if let Some(ring) = self.ring(id) {
            ring.remove(id.index);
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

    /// Whether the Reply to a Call whose connection is gone is still wanted: it is to be kept there.
    #[cold]
    pub(crate) fn take_orphan(&mut self, token: &Token) -> Option<EntryId> {
        let place = self.orphans.iter().position(|(orphan, _)| orphan == token)?;
        Some(self.orphans.swap_remove(place).1)
    }

    /// The ring of an entry that is still of its Call.
    fn ring(&mut self, id: EntryId) -> Option<&mut Ring> {
        let ring = &mut self.rings.as_mut()?[usize::from(id.ring)];
        let entry = &ring.entries[id.index as usize];
        (entry.generation == id.generation && entry.state == State::Running).then_some(ring)
    }
}

impl Ring {
    fn new(entries: usize) -> Ring {
        Ring {
            entries: vec![BLANK; entries].into_boxed_slice(),
            buckets: vec![NONE; entries.next_power_of_two()].into_boxed_slice(),
            oldest: 0,
        }
    }

    fn bucket(&self, key: &Key) -> usize {
        key.digest as usize & (self.buckets.len() - 1)
    }

    fn find(&self, key: &Key) -> Option<&Entry> {
        let mut at = self.buckets[self.bucket(key)];
        while let Some(entry) = self.entries.get(at as usize) {
            if entry.key == *key {
                return Some(entry);
            }
            at = entry.next;
        }
        None
    }

    /// Makes an entry for a Call that is executed now; its index and its generation.
    fn insert(&mut self, key: Key, now: Duration) -> Option<(u32, u32)> {
        for _ in 0..VICTIMS_MAX.min(self.entries.len()) {
            let index = self.oldest;
            self.oldest = (index + 1) % self.entries.len();
            let is_lost = now >= self.entries[index].since + AGE_MAX;
            if self.entries[index].state == State::Running && !is_lost {
                continue;
            }
            self.remove(index as u32);
            let bucket = self.bucket(&key);
            let entry = &mut self.entries[index];
            (entry.key, entry.since, entry.state) = (key, now, State::Running);
            entry.generation = entry.generation.wrapping_add(1);
            entry.next = std::mem::replace(&mut self.buckets[bucket], index as u32);
            return Some((index as u32, entry.generation));
        }
        None
    }

    /// Takes an entry out of its bucket.
    fn remove(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        if std::mem::take(&mut entry.state) == State::Free {
            return;
        }
        let (key, next) = (entry.key, entry.next);
        let bucket = self.bucket(&key);
        if self.buckets[bucket] == index {
            self.buckets[bucket] = next;
            return;
        }
        let mut at = self.buckets[bucket];
        while let Some(entry) = self.entries.get_mut(at as usize) {
            if entry.next == index {
                entry.next = next;
                return;
            }
            at = entry.next;
        }
        debug_assert!(false, "an entry is in the bucket of its key");
    }
}

/// Who a Call is from, over whichever connection.
fn address(peer: &Peer) -> u128 {
    match peer {
        Peer::Address(address) => match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
            IpAddr::V6(ip) => ip.to_bits(),
        },
        // In a range of addresses that nobody has (RFC 6666).
        Peer::Process { pid, uid, gid } => {
            0x0100 << 112 | u128::from(*pid) << 64 | u128::from(*uid) << 32 | u128::from(*gid)
        }
    }
}

/// The octets that a Call's digest is made of: the first ones, but none of its large data, which may be elsewhere
/// next time.
fn begin<'a>(asked: &Asked<'a>) -> &'a [u8] {
    let mut len = asked.stream.len().min(DIGEST_LEN_MAX);
    if let Some(locate) = asked.procedure.locate {
        let mut reader = asked.arguments.clone();
        if locate(&mut reader).is_ok() {
            len = len.min(reader.position());
        }
    }
    &asked.stream[..len]
}

/// Octets of the Call, those included that are not in its stream.
fn whole_len(asked: &Asked<'_>) -> u32 {
    let reduced: u64 = asked.arguments.reduced().iter().map(|item| padded(item.len)).sum();
    (asked.stream.len() as u64 + reduced) as u32
}

/// A keyed digest: good enough to tell Calls apart, and to spread them.
fn digest(octets: &[u8], seed: [u64; 2]) -> u64 {
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    };
    let (pairs, rest) = octets.as_chunks::<16>();
    let mut sum = seed[0] ^ octets.len() as u64;
    let mut mix = |pair: &[u8; 16]| {
        let words = u128::from_le_bytes(*pair);
        sum = fold(words as u64 ^ seed[1], (words >> 64) as u64 ^ sum);
    };
    pairs.iter().for_each(&mut mix);
    let mut last = [0; 16];
    last[..rest.len()].copy_from_slice(rest);
    mix(&last);
    fold(sum ^ seed[0], seed[1])
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

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

    /// A ring against a list that says the same plainly: few buckets' worth of keys, so that chains are long.
    #[test]
    fn a_ring_forgets_the_oldest() {
        let mut ring = Ring::new(5);
        let mut model: VecDeque<(Key, u32)> = VecDeque::new();
        let mut state = 1u32;
        for step in 0..20_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let key = Key { digest: u64::from(state >> 28), xid: step % 7, ..Key::default() };
            let known = model.iter().find(|(other, _)| *other == key).map(|(_, index)| *index);
            let found = ring.find(&key).map(|entry| entry.key);
            assert_eq!(found, known.map(|_| key), "step {step}");
            match known {
                Some(index) if state & 0x100 == 0 => {
                    ring.remove(index);
                    model.retain(|(other, _)| *other != key);
                }
                Some(_) => {}
                None => {
                    let (index, _) = ring.insert(key, Duration::ZERO).expect("none is being executed");
                    ring.entries[index as usize].state = State::Answered;
                    // Whoever had this place is gone.
                    model.retain(|(_, other)| *other != index);
                    model.push_back((key, index));
                    assert!(model.len() <= 5);
                }
            }
        }
    }

    #[test]
    fn callers_are_addresses_without_ports() {
        let of = |text: &str| address(&Peer::Address(text.parse().expect("an address")));
        assert_eq!(of("10.0.0.1:700"), of("10.0.0.1:2"));
        assert_eq!(of("10.0.0.1:700"), of("[::ffff:10.0.0.1]:9"));
        assert_ne!(of("10.0.0.1:700"), of("10.0.0.2:700"));
        assert_ne!(of("[fe80::1]:700"), of("[fe80::2]:700"));
        let process = |pid| address(&Peer::Process { pid, uid: 0, gid: 0 });
        assert_ne!(process(1), process(2));
    }
}
