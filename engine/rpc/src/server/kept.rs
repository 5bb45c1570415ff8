//! A bounded table of Calls and their Replies, shared fairly by the callers: the basis of the duplicate request cache.
//!
//! Entries are found by their key, and each is in the queue of its caller, oldest first. When the table is full, the
//! caller that has most entries loses its oldest one. So a busy caller evicts its own entries: one that has no more than
//! its share (entries / callers) loses none, however many Calls the others make.
//!
//! Every operation takes constant time and allocates nothing: callers with the same number of entries are in one list (a
//! *level*), and a number only ever changes by one.

use std::time::Duration;

use crate::ConnectionId;

/// Octets of a Reply that can be kept.
pub(crate) const REPLY_LEN_MAX: usize = 320;

/// How long an entry is good for.
pub(crate) const AGE_MAX: Duration = Duration::from_secs(120);

/// Entries of one caller that are tried as victims: those whose Call is being executed cannot be evicted.
const VICTIMS_MAX: usize = 8;

/// What a Call is known by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) caller: u128,
    pub(crate) digest: u64,
    pub(crate) xid: u32,
    pub(crate) len: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    #[default]
    Free,
    Running,
    Answered,
}

/// One Call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) key: Key,
    pub(crate) since: Duration,
    pub(crate) state: State,
    /// The connection that it is executed for.
    pub(crate) connection: ConnectionId,
    pub(crate) generation: u32,
    /// The next entry of the same bucket, or of the free ones; [`NONE`] at the end.
    next: u32,
    caller: u32,
    /// Its neighbours in the caller's queue.
    older: u32,
    newer: u32,
    reply_len: u32,
    reply: [u8; REPLY_LEN_MAX],
}

impl Entry {
    const BLANK: Entry = Entry {
        key: Key { caller: 0, digest: 0, xid: 0, len: 0 },
        since: Duration::ZERO,
        state: State::Free,
        connection: ConnectionId { index: 0, generation: 0 },
        generation: 0,
        next: NONE,
        caller: NONE,
        older: NONE,
        newer: NONE,
        reply_len: 0,
        reply: [0; REPLY_LEN_MAX],
    };

    /// The Call is answered: keeps a Reply of at most [`REPLY_LEN_MAX`] octets.
    pub(crate) fn answer(&mut self, reply: &[u8]) {
        self.reply[..reply.len()].copy_from_slice(reply);
        self.reply_len = reply.len() as u32;
        self.state = State::Answered;
    }

    pub(crate) fn reply(&self) -> KeptReply {
        KeptReply { octets: self.reply, len: self.reply_len as usize }
    }

    fn can_be_evicted(&self, now: Duration) -> bool {
        self.state == State::Answered || now >= self.since + AGE_MAX
    }
}

/// A copy of a Reply.
pub(crate) struct KeptReply {
    octets: [u8; REPLY_LEN_MAX],
    len: usize,
}

impl KeptReply {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.octets[..self.len]
    }
}

/// One caller that has entries.
#[derive(Clone, Copy, Debug)]
struct Owner {
    address: u128,
    count: u32,
    /// Ends of its queue.
    oldest: u32,
    newest: u32,
    /// The next caller of the same bucket, or of the free ones.
    next: u32,
    /// Its neighbours on its level.
    before: u32,
    after: u32,
}

const NO_OWNER: Owner =
    Owner { address: 0, count: 0, oldest: NONE, newest: NONE, next: NONE, before: NONE, after: NONE };

/// Callers with the same number of entries: who came to it last is the first.
#[derive(Clone, Copy, Debug)]
struct Level {
    first: u32,
    last: u32,
}

const EMPTY: Level = Level { first: NONE, last: NONE };

const NONE: u32 = u32::MAX;

/// Octets that one entry takes, with its share of the buckets, callers and levels.
pub(crate) const ENTRY_LEN: usize =
    size_of::<Entry>() + size_of::<Owner>() + size_of::<Level>() + 4 * size_of::<u32>();

/// The entries.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) entries: Box<[Entry]>,
    /// The first entry of each bucket; as many as a power of two.
    buckets: Box<[u32]>,
    free: u32,
    owners: Box<[Owner]>,
    owner_buckets: Box<[u32]>,
    free_owner: u32,
    /// By the number of entries; 0 is not used.
    levels: Box<[Level]>,
    /// The highest level that somebody is on; 0: there is no entry.
    top: u32,
}

impl Table {
    pub(crate) fn new(entries: usize) -> Table {
        let buckets = vec![NONE; entries.next_power_of_two()].into_boxed_slice();
        let mut table = Table {
            entries: vec![Entry::BLANK; entries].into_boxed_slice(),
            owner_buckets: buckets.clone(),
            buckets,
            free: NONE,
            owners: vec![NO_OWNER; entries].into_boxed_slice(),
            free_owner: NONE,
            levels: vec![EMPTY; entries + 1].into_boxed_slice(),
            top: 0,
        };
        for index in (0..entries as u32).rev() {
            table.entries[index as usize].next = std::mem::replace(&mut table.free, index);
            table.owners[index as usize].next = std::mem::replace(&mut table.free_owner, index);
        }
        table
    }

    fn bucket(&self, key: &Key) -> usize {
        key.digest as usize & (self.buckets.len() - 1)
    }

    fn owner_bucket(&self, address: u128) -> usize {
        // Addresses of one network differ in their last octets; an odd factor spreads them.
        let folded = (address ^ (address >> 64)) as u64;
        (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.owner_buckets.len() - 1)
    }

    pub(crate) fn find(&self, key: &Key) -> Option<u32> {
        let mut at = self.buckets[self.bucket(key)];
        while let Some(entry) = self.entries.get(at as usize) {
            if entry.key == *key {
                return Some(at);
            }
            at = entry.next;
        }
        None
    }

    /// Makes an entry for a Call that is executed now; its index and its generation. `None`: there is no room, because
    /// the Calls that have it are all being executed.
    pub(crate) fn insert(&mut self, key: Key, connection: ConnectionId, now: Duration) -> Option<(u32, u32)> {
        if self.free == NONE {
            let most = self.levels[self.top as usize].last;
            let victim = self.victim(most, now).or_else(|| {
                let own = self.find_owner(key.caller)?;
                self.victim(own, now)
            });
            let victim = victim?;
            if self.entries[victim as usize].key.caller == key.caller {
                // The caller has as many entries as before.
                return Some(self.refill(victim, key, connection, now));
            }
            self.remove(victim);
        }
        let index = self.free;
        self.free = self.entries[index as usize].next;
        let caller = self.find_owner(key.caller).unwrap_or_else(|| self.new_owner(key.caller));
        let filled = self.fill(index, caller, key, connection, now);
        self.recount(caller, 1);
        Some(filled)
    }

    /// Makes an entry, which is in no list, that of a Call which is executed now. Returns its index and its generation.
    fn fill(
        &mut self,
        index: u32,
        caller: u32,
        key: Key,
        connection: ConnectionId,
        now: Duration,
    ) -> (u32, u32) {
        let bucket = self.bucket(&key);
        let entry = &mut self.entries[index as usize];
        (entry.key, entry.since, entry.state, entry.connection) = (key, now, State::Running, connection);
        entry.generation = entry.generation.wrapping_add(1);
        entry.next = std::mem::replace(&mut self.buckets[bucket], index);
        let generation = entry.generation;
        self.enqueue(caller, index);
        (index, generation)
    }

    /// Makes the oldest entry of a caller that of another Call of it, which is executed now. Returns its index and its
    /// generation.
    #[inline]
    fn refill(&mut self, index: u32, key: Key, connection: ConnectionId, now: Duration) -> (u32, u32) {
        self.unlink(index);
        let bucket = self.bucket(&key);
        let next = std::mem::replace(&mut self.buckets[bucket], index);
        let entry = &mut self.entries[index as usize];
        (entry.key, entry.since, entry.state, entry.connection) = (key, now, State::Running, connection);
        entry.generation = entry.generation.wrapping_add(1);
        let generation = entry.generation;
        entry.next = next;
        let (caller, second) = (entry.caller, entry.newer);
        debug_assert_eq!(self.owners[caller as usize].oldest, index, "the oldest of its caller");
        // From the front of the queue to its end. Alone in it, it is both.
        if let Some(front) = self.entries.get_mut(second as usize) {
            front.older = NONE;
            let owner = &mut self.owners[caller as usize];
            owner.oldest = second;
            let last = std::mem::replace(&mut owner.newest, index);
            self.entries[last as usize].newer = index;
            let entry = &mut self.entries[index as usize];
            (entry.older, entry.newer) = (last, NONE);
        }
        (index, generation)
    }

    /// Takes an entry out of its bucket.
    fn unlink(&mut self, index: u32) {
        let &Entry { ref key, next, .. } = &self.entries[index as usize];
        let bucket = self.bucket(key);
        if self.buckets[bucket] == index {
            self.buckets[bucket] = next;
        } else {
            let mut at = self.buckets[bucket];
            while self.entries[at as usize].next != index {
                at = self.entries[at as usize].next;
            }
            self.entries[at as usize].next = next;
        }
    }

    /// Frees an entry. Harmless when it is free.
    pub(crate) fn remove(&mut self, index: u32) {
        if self.entries[index as usize].state == State::Free {
            return;
        }
        self.unlink(index);
        let entry = &mut self.entries[index as usize];
        entry.state = State::Free;
        entry.next = std::mem::replace(&mut self.free, index);
        let caller = entry.caller;
        self.dequeue(caller, index);
        self.recount(caller, -1);
        if self.owners[caller as usize].count == 0 {
            self.free_owner(caller);
        }
    }

    /// The caller's oldest entry that can be evicted. Those that cannot go to the end of its queue.
    #[inline]
    fn victim(&mut self, caller: u32, now: Duration) -> Option<u32> {
        let oldest = self.owners.get(caller as usize)?.oldest;
        if self.entries.get(oldest as usize)?.can_be_evicted(now) {
            return Some(oldest);
        }
        self.later_victim(caller, now)
    }

    /// As [`Table::victim`], where the oldest cannot be evicted.
    #[cold]
    fn later_victim(&mut self, caller: u32, now: Duration) -> Option<u32> {
        for _ in 0..VICTIMS_MAX.min(self.owners.get(caller as usize)?.count as usize) {
            let index = self.owners[caller as usize].oldest;
            if self.entries[index as usize].can_be_evicted(now) {
                return Some(index);
            }
            self.dequeue(caller, index);
            self.enqueue(caller, index);
        }
        None
    }

    fn enqueue(&mut self, caller: u32, index: u32) {
        let owner = &mut self.owners[caller as usize];
        let last = std::mem::replace(&mut owner.newest, index);
        let entry = &mut self.entries[index as usize];
        (entry.caller, entry.older, entry.newer) = (caller, last, NONE);
        match self.entries.get_mut(last as usize) {
            Some(last) => last.newer = index,
            None => owner.oldest = index,
        }
    }

    fn dequeue(&mut self, caller: u32, index: u32) {
        let owner = &mut self.owners[caller as usize];
        let Entry { older, newer, .. } = self.entries[index as usize];
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = newer,
            None => owner.oldest = newer,
        }
        match self.entries.get_mut(newer as usize) {
            Some(entry) => entry.older = older,
            None => owner.newest = older,
        }
    }

    fn find_owner(&self, address: u128) -> Option<u32> {
        let mut at = self.owner_buckets[self.owner_bucket(address)];
        while let Some(owner) = self.owners.get(at as usize) {
            if owner.address == address {
                return Some(at);
            }
            at = owner.next;
        }
        None
    }

    /// A caller without entries. There is always one: each of the others has an entry, and one entry is free.
    fn new_owner(&mut self, address: u128) -> u32 {
        let bucket = self.owner_bucket(address);
        let index = self.free_owner;
        let owner = &mut self.owners[index as usize];
        self.free_owner = owner.next;
        let next = std::mem::replace(&mut self.owner_buckets[bucket], index);
        *owner = Owner { address, next, ..NO_OWNER };
        index
    }

    fn free_owner(&mut self, index: u32) {
        let Owner { address, next, .. } = self.owners[index as usize];
        let bucket = self.owner_bucket(address);
        if self.owner_buckets[bucket] == index {
            self.owner_buckets[bucket] = next;
        } else {
            let mut at = self.owner_buckets[bucket];
            while self.owners[at as usize].next != index {
                at = self.owners[at as usize].next;
            }
            self.owners[at as usize].next = next;
        }
        self.owners[index as usize].next = std::mem::replace(&mut self.free_owner, index);
    }

    /// The caller has one entry more, or one less: it moves to the next level.
    fn recount(&mut self, caller: u32, change: i32) {
        let Owner { count, before, after, .. } = self.owners[caller as usize];
        if count > 0 {
            let level = &mut self.levels[count as usize];
            match self.owners.get_mut(before as usize) {
                Some(owner) => owner.after = after,
                None => level.first = after,
            }
            match self.owners.get_mut(after as usize) {
                Some(owner) => owner.before = before,
                None => level.last = before,
            }
        }
        let new = count.wrapping_add_signed(change);
        if new > 0 {
            let level = &mut self.levels[new as usize];
            let first = std::mem::replace(&mut level.first, caller);
            match self.owners.get_mut(first as usize) {
                Some(owner) => owner.before = caller,
                None => level.last = caller,
            }
            let owner = &mut self.owners[caller as usize];
            (owner.before, owner.after) = (NONE, first);
        }
        self.owners[caller as usize].count = new;
        if new > self.top || (count == self.top && self.levels[count as usize].first == NONE) {
            self.top = new;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOWHERE: ConnectionId = ConnectionId { index: 0, generation: 0 };

    /// Random keys of `callers` against a plain list: few buckets' worth of keys, so that chains are long.
    fn against_a_list(entries: usize, callers: u32) {
        let mut table = Table::new(entries);
        let mut model: Vec<(Key, u32)> = Vec::new();
        let mut state = 1u32;
        for step in 0..20_000u32 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let caller = u128::from((state >> 20) % callers);
            let key = Key { caller, digest: u64::from(state >> 28), xid: step % 7, len: 0 };
            let known = model.iter().position(|(other, _)| *other == key);
            assert_eq!(table.find(&key), known.map(|at| model[at].1), "step {step}");
            match known {
                Some(at) if state & 0x100 == 0 => table.remove(model.remove(at).1),
                Some(_) => {}
                None => {
                    let count = |caller| model.iter().filter(|(other, _)| other.caller == caller).count();
                    let most = model.iter().map(|(key, _)| count(key.caller)).max();
                    let (index, _) =
                        table.insert(key, NOWHERE, Duration::ZERO).expect("none is being executed");
                    table.entries[index as usize].answer(&[]);
                    if let Some(at) = model.iter().position(|(_, other)| *other == index) {
                        let evicted = model[at].0.caller;
                        assert_eq!(model.len(), entries, "none is evicted while there is room");
                        assert_eq!(Some(count(evicted)), most, "who has most loses one");
                        let oldest = model.iter().position(|(key, _)| key.caller == evicted);
                        assert_eq!(oldest, Some(at), "its oldest");
                        model.remove(at);
                    }
                    model.push((key, index));
                }
            }
            let most =
                model.iter().map(|(key, _)| model.iter().filter(|it| it.0.caller == key.caller).count());
            assert_eq!(table.top as usize, most.max().unwrap_or(0), "step {step}");
        }
    }

    #[test]
    fn who_has_most_loses_its_oldest() {
        for (entries, callers) in [(1, 1), (5, 1), (5, 2), (16, 3), (16, 40)] {
            against_a_list(entries, callers);
        }
    }

    #[test]
    fn a_busy_caller_does_not_evict_a_quiet_one() {
        let mut table = Table::new(64);
        let key = |caller, xid| Key { caller, digest: u64::from(xid), xid, len: 0 };
        let mut insert = |key| {
            let (index, _) = table.insert(key, NOWHERE, Duration::ZERO).expect("there is room");
            table.entries[index as usize].answer(&[]);
        };
        (0..31).for_each(|xid| insert(key(1, xid)));
        (0..10_000).for_each(|xid| insert(key(2, xid)));
        assert!((0..31).all(|xid| table.find(&key(1, xid)).is_some()));
        assert!((9967..10_000).all(|xid| table.find(&key(2, xid)).is_some()));
    }

    #[test]
    fn calls_that_are_executed_stay() {
        let mut table = Table::new(4);
        let key = |xid| Key { xid, ..Key::default() };
        let first: Vec<_> = (0..4).map(|xid| table.insert(key(xid), NOWHERE, Duration::ZERO)).collect();
        assert!(table.insert(key(9), NOWHERE, Duration::ZERO).is_none());
        let (third, _) = first[2].expect("there was room");
        table.entries[third as usize].answer(b"answer");
        assert_eq!(table.insert(key(9), NOWHERE, Duration::ZERO).map(|it| it.0), Some(third));
        assert_eq!(table.find(&key(2)), None);
        // One that was never answered is lost, some day.
        assert!(table.insert(key(10), NOWHERE, AGE_MAX).is_some());
    }
}
