//! A bounded table of Calls and their Replies, shared fairly by owners and by their connections: what the duplicate request
//! cache is made of.
//!
//! Entries are found by their key, and each is in the queue of its connection, oldest first. When the table is full, the
//! *owner* that has most entries loses the oldest one of that of its connections
//! which has most. So a busy connection evicts its own entries: one that has at most its share of its owner's entries,
//! where these are at most the owner's share of all, loses none, however many Calls the others make.
//!
//! The entries of a connection stay when it ends: they are for the next one. Each Call that comes in looks at one entry, and
//! frees it if it is too old.
//!
//! Every operation takes constant time and allocates nothing.

use std::time::Duration;

use crate::ranks::{Group, NONE, RANK_LEN, Ranks};

/// Octets of a Reply that can be kept.
pub const REPLY_LEN_MAX: usize = 320;

/// How long an entry is good for.
pub const AGE_MAX: Duration = Duration::from_secs(120);

/// Entries of one connection that are tried as victims: those whose Call is being executed cannot be evicted.
const VICTIMS_MAX: usize = 8;

/// What a Call is known by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallKey {
    /// Who calls.
    pub caller: u128,
    /// What is called, with which arguments: a keyed hash.
    pub digest: u64,
    /// Its xid.
    pub xid: u32,
    /// Octets of the Call.
    pub len: u32,
}

/// What is known of a Call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeptState {
    /// The entry is of no Call.
    #[default]
    Free,
    /// The Call is being executed.
    Running,
    /// The entry has its Reply.
    Answered,
}

/// One Call.
#[derive(Clone, Copy, Debug)]
pub struct KeptEntry {
    /// The Call.
    pub key: CallKey,
    /// When it arrived.
    pub since: Duration,
    /// What is known of it.
    pub state: KeptState,
    /// The connection that it is executed for.
    pub connection: u64,
    /// How often the entry was used: an older reference to it is void.
    pub generation: u32,
    /// The next entry of the same bucket, or of the free ones; [`NONE`] at the end.
    next: u32,
    /// Its connection's place.
    caller: u32,
    /// Its neighbours in the connection's queue.
    older: u32,
    newer: u32,
    reply_len: u32,
    reply: [u8; REPLY_LEN_MAX],
}

impl KeptEntry {
    const BLANK: KeptEntry = KeptEntry {
        key: CallKey { caller: 0, digest: 0, xid: 0, len: 0 },
        since: Duration::ZERO,
        state: KeptState::Free,
        connection: 0,
        generation: 0,
        next: NONE,
        caller: NONE,
        older: NONE,
        newer: NONE,
        reply_len: 0,
        reply: [0; REPLY_LEN_MAX],
    };

    /// The Call is answered: keeps a Reply of at most [`REPLY_LEN_MAX`] octets.
    pub fn answer(&mut self, reply: &[u8]) {
        self.reply[..reply.len()].copy_from_slice(reply);
        self.reply_len = reply.len() as u32;
        self.state = KeptState::Answered;
    }

    /// Copies the Reply.
    #[must_use]
    pub fn reply(&self) -> KeptReply {
        KeptReply { octets: self.reply, len: self.reply_len as usize }
    }

    fn can_be_evicted(&self, now: Duration) -> bool {
        self.state == KeptState::Answered || now >= self.since + AGE_MAX
    }
}

/// A copy of a Reply.
pub struct KeptReply {
    octets: [u8; REPLY_LEN_MAX],
    len: usize,
}

impl KeptReply {
    /// The RPC message.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.octets[..self.len]
    }
}

/// One connection that has entries.
#[derive(Clone, Copy, Debug)]
struct Caller {
    connection: u64,
    owner: u32,
    /// Ends of its queue.
    oldest: u32,
    newest: u32,
    /// The next one of the same bucket, or of the free ones.
    next: u32,
}

/// One owner that has entries.
#[derive(Clone, Copy, Debug)]
struct Owner {
    address: u128,
    /// Its connections.
    callers: Group,
    /// The next one of the same bucket, or of the free ones.
    next: u32,
}

/// Octets that one entry takes, with its share of the buckets, connections and owners.
pub const ENTRY_LEN: usize =
    size_of::<KeptEntry>() + size_of::<Caller>() + size_of::<Owner>() + 2 * RANK_LEN + 6 * size_of::<u32>();

/// The entries.
#[derive(Debug)]
pub struct KeptTable {
    /// By index, as [`KeptTable::find`] returns it.
    pub entries: Box<[KeptEntry]>,
    /// The first entry of each bucket; as many as a power of two.
    buckets: Box<[u32]>,
    free: u32,
    /// The entry that is looked at next, whether it is too old.
    hand: u32,
    callers: Box<[Caller]>,
    caller_buckets: Box<[u32]>,
    free_caller: u32,
    /// By the number of their entries, those of each owner.
    caller_ranks: Ranks,
    owners: Box<[Owner]>,
    owner_buckets: Box<[u32]>,
    free_owner: u32,
    /// By the number of their entries, all of them.
    owner_ranks: Ranks,
    all: Group,
}

impl KeptTable {
    /// A table of this number of entries. It is all the memory that it ever has.
    #[must_use]
    pub fn new(entries: usize) -> KeptTable {
        let buckets = vec![NONE; entries.next_power_of_two()].into_boxed_slice();
        let nowhere = KeptEntry::BLANK.connection;
        let caller = Caller { connection: nowhere, owner: NONE, oldest: NONE, newest: NONE, next: NONE };
        let owner = Owner { address: 0, callers: Group::EMPTY, next: NONE };
        let mut table = KeptTable {
            entries: vec![KeptEntry::BLANK; entries].into_boxed_slice(),
            caller_buckets: buckets.clone(),
            owner_buckets: buckets.clone(),
            buckets,
            free: NONE,
            hand: 0,
            callers: vec![caller; entries].into_boxed_slice(),
            free_caller: NONE,
            caller_ranks: Ranks::new(entries),
            owners: vec![owner; entries].into_boxed_slice(),
            free_owner: NONE,
            owner_ranks: Ranks::new(entries),
            all: Group::EMPTY,
        };
        for index in (0..entries as u32).rev() {
            table.entries[index as usize].next = std::mem::replace(&mut table.free, index);
            table.callers[index as usize].next = std::mem::replace(&mut table.free_caller, index);
            table.owners[index as usize].next = std::mem::replace(&mut table.free_owner, index);
        }
        table
    }

    fn bucket(&self, key: &CallKey) -> usize {
        key.digest as usize & (self.buckets.len() - 1)
    }

    fn owner_bucket(&self, address: u128) -> usize {
        // Addresses of one network differ in their last octets; an odd factor spreads them.
        let folded = (address ^ (address >> 64)) as u64;
        (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.owner_buckets.len() - 1)
    }

    /// The index of a Call's entry.
    #[must_use]
    pub fn find(&self, key: &CallKey) -> Option<u32> {
        let mut at = self.buckets[self.bucket(key)];
        while let Some(entry) = self.entries.get(at as usize) {
            if entry.key == *key {
                return Some(at);
            }
            at = entry.next;
        }
        None
    }

    /// Makes an entry for a Call of this owner that is executed now; its index and its generation. `None`: there is no room,
    /// because the Calls that have it are all being executed.
    pub fn insert(
        &mut self,
        key: CallKey,
        owner: u128,
        connection: u64,
        now: Duration,
    ) -> Option<(u32, u32)> {
        self.free_stale(now);
        if self.free == NONE {
            let most = self.owner_ranks.most(&self.all)?;
            let most = self.caller_ranks.most(&self.owners[most as usize].callers)?;
            let Caller { connection: other, owner: whose, .. } = self.callers[most as usize];
            let is_own = other == connection && self.owners[whose as usize].address == owner;
            let victim = match self.victim(most, now) {
                // The connection has as many entries as before.
                Some(victim) if is_own => return Some(self.refill(victim, key, connection, now)),
                Some(victim) => victim,
                None => {
                    let own = self.find_caller(self.find_owner(owner)?, connection)?;
                    let victim = self.victim(own, now)?;
                    return Some(self.refill(victim, key, connection, now));
                }
            };
            self.remove(victim);
        }
        let index = self.free;
        self.free = self.entries[index as usize].next;
        let owner = self.find_owner(owner).unwrap_or_else(|| self.new_owner(owner));
        let caller =
            self.find_caller(owner, connection).unwrap_or_else(|| self.new_caller(owner, connection));
        let filled = self.fill(index, caller, key, connection, now);
        self.caller_ranks.increase(&mut self.owners[owner as usize].callers, caller);
        self.owner_ranks.increase(&mut self.all, owner);
        Some(filled)
    }

    /// Looks at one entry, each time at the next one, and frees it if it is too old: connections that are gone leave some.
    fn free_stale(&mut self, now: Duration) {
        let hand = self.hand;
        self.hand = if hand as usize + 1 < self.entries.len() { hand + 1 } else { 0 };
        let entry = &self.entries[hand as usize];
        if entry.state == KeptState::Answered && now >= entry.since + AGE_MAX {
            self.remove(hand);
        }
    }

    /// Makes an entry, which is in no list, that of a Call which is executed now. Returns its index and its generation.
    fn fill(&mut self, index: u32, caller: u32, key: CallKey, connection: u64, now: Duration) -> (u32, u32) {
        let bucket = self.bucket(&key);
        let entry = &mut self.entries[index as usize];
        (entry.key, entry.since, entry.state, entry.connection) = (key, now, KeptState::Running, connection);
        entry.generation = entry.generation.wrapping_add(1);
        entry.next = std::mem::replace(&mut self.buckets[bucket], index);
        let generation = entry.generation;
        self.enqueue(caller, index);
        (index, generation)
    }

    /// Makes the oldest entry of a connection that of another Call of it, which is executed now. Returns its index and its
    /// generation.
    #[inline]
    fn refill(&mut self, index: u32, key: CallKey, connection: u64, now: Duration) -> (u32, u32) {
        self.unlink(index);
        let bucket = self.bucket(&key);
        let next = std::mem::replace(&mut self.buckets[bucket], index);
        let entry = &mut self.entries[index as usize];
        (entry.key, entry.since, entry.state, entry.connection) = (key, now, KeptState::Running, connection);
        entry.generation = entry.generation.wrapping_add(1);
        let generation = entry.generation;
        entry.next = next;
        let (caller, second) = (entry.caller, entry.newer);
        debug_assert_eq!(self.callers[caller as usize].oldest, index, "the oldest of its connection");
        // From the front of the queue to its end. Alone in it, it is both.
        if let Some(front) = self.entries.get_mut(second as usize) {
            front.older = NONE;
            let queue = &mut self.callers[caller as usize];
            queue.oldest = second;
            let last = std::mem::replace(&mut queue.newest, index);
            self.entries[last as usize].newer = index;
            let entry = &mut self.entries[index as usize];
            (entry.older, entry.newer) = (last, NONE);
        }
        (index, generation)
    }

    /// Takes an entry out of its bucket.
    fn unlink(&mut self, index: u32) {
        let &KeptEntry { ref key, next, .. } = &self.entries[index as usize];
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
    pub fn remove(&mut self, index: u32) {
        if self.entries[index as usize].state == KeptState::Free {
            return;
        }
        self.unlink(index);
        let entry = &mut self.entries[index as usize];
        entry.state = KeptState::Free;
        entry.next = std::mem::replace(&mut self.free, index);
        let caller = entry.caller;
        self.dequeue(caller, index);
        let owner = self.callers[caller as usize].owner;
        self.caller_ranks.decrease(&mut self.owners[owner as usize].callers, caller);
        if self.caller_ranks.count(caller) == 0 {
            self.free_caller(caller);
        }
        self.owner_ranks.decrease(&mut self.all, owner);
        if self.owner_ranks.count(owner) == 0 {
            self.free_owner(owner);
        }
    }

    /// The connection's oldest entry that can be evicted. Those that cannot go to the end of its queue.
    #[inline]
    fn victim(&mut self, caller: u32, now: Duration) -> Option<u32> {
        let oldest = self.callers[caller as usize].oldest;
        if self.entries.get(oldest as usize)?.can_be_evicted(now) {
            return Some(oldest);
        }
        self.later_victim(caller, now)
    }

    /// As [`KeptTable::victim`], where the oldest cannot be evicted.
    #[cold]
    fn later_victim(&mut self, caller: u32, now: Duration) -> Option<u32> {
        for _ in 0..VICTIMS_MAX.min(self.caller_ranks.count(caller) as usize) {
            let index = self.callers[caller as usize].oldest;
            if self.entries[index as usize].can_be_evicted(now) {
                return Some(index);
            }
            self.dequeue(caller, index);
            self.enqueue(caller, index);
        }
        None
    }

    fn enqueue(&mut self, caller: u32, index: u32) {
        let queue = &mut self.callers[caller as usize];
        let last = std::mem::replace(&mut queue.newest, index);
        let entry = &mut self.entries[index as usize];
        (entry.caller, entry.older, entry.newer) = (caller, last, NONE);
        match self.entries.get_mut(last as usize) {
            Some(last) => last.newer = index,
            None => queue.oldest = index,
        }
    }

    fn dequeue(&mut self, caller: u32, index: u32) {
        let queue = &mut self.callers[caller as usize];
        let KeptEntry { older, newer, .. } = self.entries[index as usize];
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = newer,
            None => queue.oldest = newer,
        }
        match self.entries.get_mut(newer as usize) {
            Some(entry) => entry.older = older,
            None => queue.newest = older,
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

    /// An owner without entries. There is always one: each of the others has an entry, and one entry is free.
    fn new_owner(&mut self, address: u128) -> u32 {
        let bucket = self.owner_bucket(address);
        let index = self.free_owner;
        let owner = &mut self.owners[index as usize];
        self.free_owner = owner.next;
        let next = std::mem::replace(&mut self.owner_buckets[bucket], index);
        *owner = Owner { address, callers: Group::EMPTY, next };
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

    fn caller_bucket(&self, owner: u32, connection: u64) -> usize {
        let spread = (connection ^ u64::from(owner) << 16).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        spread as usize & (self.caller_buckets.len() - 1)
    }

    fn find_caller(&self, owner: u32, connection: u64) -> Option<u32> {
        let mut at = self.caller_buckets[self.caller_bucket(owner, connection)];
        while let Some(caller) = self.callers.get(at as usize) {
            if caller.connection == connection && caller.owner == owner {
                return Some(at);
            }
            at = caller.next;
        }
        None
    }

    /// A connection without entries. There is always one, as there is always an owner.
    fn new_caller(&mut self, owner: u32, connection: u64) -> u32 {
        let bucket = self.caller_bucket(owner, connection);
        let index = self.free_caller;
        let caller = &mut self.callers[index as usize];
        self.free_caller = caller.next;
        let next = std::mem::replace(&mut self.caller_buckets[bucket], index);
        *caller = Caller { connection, owner, oldest: NONE, newest: NONE, next };
        index
    }

    fn free_caller(&mut self, index: u32) {
        let Caller { connection, owner, next, .. } = self.callers[index as usize];
        let bucket = self.caller_bucket(owner, connection);
        if self.caller_buckets[bucket] == index {
            self.caller_buckets[bucket] = next;
        } else {
            let mut at = self.caller_buckets[bucket];
            while self.callers[at as usize].next != index {
                at = self.callers[at as usize].next;
            }
            self.callers[at as usize].next = next;
        }
        self.callers[index as usize].next = std::mem::replace(&mut self.free_caller, index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOWHERE: u64 = 0;

    fn connection(index: u32) -> u64 {
        u64::from(index) << 32 | 7
    }

    /// Random keys of `owners` with several connections each against a plain list: few buckets' worth of keys, so that chains are
    /// long.
    fn against_a_list(entries: usize, owners: u32) {
        let mut table = KeptTable::new(entries);
        // CallKey, owner, connection, and the entry.
        let mut model: Vec<(CallKey, u128, u32, u32)> = Vec::new();
        let mut state = 1u32;
        for step in 0..20_000u32 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let owner = u128::from((state >> 20) % owners);
            let number = (state >> 10) % 3;
            let key = CallKey { caller: owner << 8, digest: u64::from(state >> 28), xid: step % 7, len: 0 };
            let known = model.iter().position(|(other, ..)| *other == key);
            assert_eq!(table.find(&key), known.map(|at| model[at].3), "step {step}");
            match known {
                Some(at) if state & 0x100 == 0 => table.remove(model.remove(at).3),
                Some(_) => {}
                None => {
                    let of = |owner| model.iter().filter(|it| it.1 == owner).count();
                    let of_connection =
                        |owner, number| model.iter().filter(|it| it.1 == owner && it.2 == number).count();
                    let most = model.iter().map(|it| of(it.1)).max();
                    let (index, _) = table
                        .insert(key, owner, connection(number), Duration::ZERO)
                        .expect("none is being executed");
                    table.entries[index as usize].answer(&[]);
                    if let Some(at) = model.iter().position(|it| it.3 == index) {
                        let (_, owner, number, _) = model[at];
                        assert_eq!(model.len(), entries, "none is evicted while there is room");
                        assert_eq!(Some(of(owner)), most, "the owner that has most loses one");
                        let most = (0..3).map(|number| of_connection(owner, number)).max();
                        assert_eq!(Some(of_connection(owner, number)), most, "its connection with most");
                        let oldest = model.iter().position(|it| it.1 == owner && it.2 == number);
                        assert_eq!(oldest, Some(at), "its oldest");
                        model.remove(at);
                    }
                    model.push((key, owner, number, index));
                }
            }
        }
    }

    #[test]
    fn who_has_most_loses_its_oldest() {
        for (entries, owners) in [(1, 1), (5, 1), (5, 2), (16, 3), (16, 40), (64, 3)] {
            against_a_list(entries, owners);
        }
    }

    #[test]
    fn neither_a_busy_owner_nor_a_busy_connection_evicts_what_quiet_ones_have() {
        // Owners and connections of the quiet one and of the busy one, which may have many addresses or connections.
        let busy = |xid: u32| [(2, 2), (1, 2), (1, 2 + xid % 10)];
        for kind in 0..3 {
            let mut table = KeptTable::new(64);
            let mut insert = |caller: u128, owner, number, xid| {
                let key = CallKey { caller, digest: u64::from(xid), xid, len: 0 };
                let (index, _) =
                    table.insert(key, owner, connection(number), Duration::ZERO).expect("there is room");
                table.entries[index as usize].answer(&[]);
                key
            };
            let quiet: Vec<_> = (0..5).map(|xid| insert(1, 1, 1, xid)).collect();
            let mut last = Vec::new();
            for xid in 0..10_000 {
                let (owner, number) = busy(xid)[kind];
                last.push(insert(u128::from(xid) << 8, owner, number, xid));
            }
            assert!(quiet.iter().all(|key| table.find(key).is_some()), "{kind}");
            assert!(last.iter().rev().take(50).all(|key| table.find(key).is_some()), "{kind}");
        }
    }

    #[test]
    fn what_is_too_old_makes_room() {
        let mut table = KeptTable::new(64);
        let key = |xid| CallKey { digest: u64::from(xid), xid, ..CallKey::default() };
        let insert = |table: &mut KeptTable, number, xid, now| {
            let (index, _) = table.insert(key(xid), 1, connection(number), now).expect("there is room");
            table.entries[index as usize].answer(&[]);
        };
        // Of many connections that are gone.
        (0..64).for_each(|xid| insert(&mut table, xid, xid, Duration::ZERO));
        (100..300).for_each(|xid| insert(&mut table, 70, xid, AGE_MAX));
        assert!((250..300).all(|xid| table.find(&key(xid)).is_some()));
    }

    #[test]
    fn calls_that_are_executed_stay() {
        let mut table = KeptTable::new(4);
        let key = |xid| CallKey { xid, ..CallKey::default() };
        let first: Vec<_> = (0..4).map(|xid| table.insert(key(xid), 0, NOWHERE, Duration::ZERO)).collect();
        assert!(table.insert(key(9), 0, NOWHERE, Duration::ZERO).is_none());
        let (third, _) = first[2].expect("there was room");
        table.entries[third as usize].answer(b"answer");
        assert_eq!(table.insert(key(9), 0, NOWHERE, Duration::ZERO).map(|it| it.0), Some(third));
        assert_eq!(table.find(&key(2)), None);
        // One that was never answered is lost, some day.
        assert!(table.insert(key(10), 0, NOWHERE, AGE_MAX).is_some());
    }
}
