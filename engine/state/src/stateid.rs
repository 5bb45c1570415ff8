//! State ids: names of opens, locks and delegations, and whether one that a client sends is good (RFC 8881 section 8.2).
//!
//! ```text
//! other, 12 octets    boot epoch 4 │ home 1 │ kind 1 │ index 4 │ generation 2
//! ```
//!
//! The epoch tells names from before a restart. The home is the reactor that owns the state, so that a request finds it
//! without a table. An index is used again with the next generation.

use std::collections::HashMap;

use crate::client::ClientId;
use crate::stages::{Change, may_change};
use crate::{FileKey, has_share, price};

/// What a state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StateKind {
    /// An open.
    Open,
    /// Byte-range locks of an owner on a file.
    Lock,
    /// A delegation.
    Delegation,
}

/// A state id, as it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateToken {
    /// Counts the changes of the state; 0 stands for the newest.
    pub seqid: u32,
    /// Its name.
    pub other: [u8; 12],
}

/// A state id with a meaning of its own (RFC 8881 section 8.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialState {
    /// No state.
    Anonymous,
    /// No state, and READ passes locks.
    ReadBypass,
    /// The last one that the COMPOUND returned.
    Current,
}

/// What a state id that was sent says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateName {
    /// It has a meaning of its own.
    Special(SpecialState),
    /// It names a state.
    Of(NamedState),
}

/// The parts of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NamedState {
    /// When the server started.
    pub epoch: u32,
    /// The reactor that owns the state.
    pub home: u8,
    /// What it is, as a number.
    kind: u8,
    index: u32,
    generation: u16,
}

impl StateToken {
    /// Reads what it says. `None`: a reserved value that means nothing, NFS4ERR_BAD_STATEID (8881-8.2.3-a).
    #[inline]
    #[must_use]
    pub fn name(&self) -> Option<StateName> {
        match (self.other, self.seqid) {
            (o, 0) if o == [0; 12] => Some(StateName::Special(SpecialState::Anonymous)),
            (o, 1) if o == [0; 12] => Some(StateName::Special(SpecialState::Current)),
            (o, u32::MAX) if o == [0xff; 12] => Some(StateName::Special(SpecialState::ReadBypass)),
            (o, _) if o == [0; 12] || o == [0xff; 12] => None,
            ([e0, e1, e2, e3, home, kind, i0, i1, i2, i3, g0, g1], _) => Some(StateName::Of(NamedState {
                epoch: u32::from_be_bytes([e0, e1, e2, e3]),
                home,
                kind,
                index: u32::from_be_bytes([i0, i1, i2, i3]),
                generation: u16::from_be_bytes([g0, g1]),
            })),
        }
    }
}

impl NamedState {
    fn other(&self) -> [u8; 12] {
        let mut other = [0; 12];
        other[..4].copy_from_slice(&self.epoch.to_be_bytes());
        (other[4], other[5]) = (self.home, self.kind);
        other[6..10].copy_from_slice(&self.index.to_be_bytes());
        other[10..].copy_from_slice(&self.generation.to_be_bytes());
        other
    }
}

/// Why a state was taken from its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revoked {
    /// Its lease expired: NFS4ERR_EXPIRED.
    Expired,
    /// An administrator did: NFS4ERR_ADMIN_REVOKED.
    ByAdministrator,
    /// A delegation that was not returned: NFS4ERR_DELEG_REVOKED.
    NotReturned,
}

/// What a state id's entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateStage {
    /// It names nothing.
    Free,
    /// It names a state.
    Valid,
    /// It names a state that was revoked, until its client frees it.
    Revoked,
}

/// Every change of an entry's stage.
pub(crate) const CHANGES: [Change<StateStage>; 4] = [
    (StateStage::Free, StateStage::Valid, "an open, lock or delegation"),
    (StateStage::Valid, StateStage::Free, "it is closed or returned, or its client ended"),
    (StateStage::Valid, StateStage::Revoked, "it is taken from its client, who must be told"),
    (StateStage::Revoked, StateStage::Free, "FREE_STATEID, or its client ended"),
];

/// Why a state id is not good (RFC 8881 section 8.2.4, in the order of its checks).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateFault {
    /// NFS4ERR_BAD_STATEID: there is no such state, or not of this client, file or kind; or the seqid is from the future.
    #[error("no such state")]
    Bad,
    /// NFS4ERR_STALE_STATEID in 4.0, NFS4ERR_BAD_STATEID in 4.1 and later: the name is from before a restart.
    #[error("the state is from before a restart")]
    Stale,
    /// NFS4ERR_OLD_STATEID: the state changed since.
    #[error("the state has changed")]
    Old,
    /// The state was revoked.
    #[error("the state was revoked")]
    Revoked(Revoked),
}

/// No room for one more state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many states")]
pub struct NoStateRoom;

#[derive(Clone, Copy, Debug)]
struct Entry {
    client: ClientId,
    file: FileKey,
    kind: StateKind,
    seqid: u32,
    generation: u16,
    revoked: Option<Revoked>,
    /// The states of the same client before and behind it.
    neighbours: [Option<u32>; 2],
}

#[derive(Clone, Copy, Debug)]
enum Place {
    /// The generation that it had last, and the next free index.
    Free(u16, Option<u32>),
    Used(Entry),
}

/// Octets of the heap that one state id takes, if its client has no others.
pub const STATE_LEN: u64 =
    price::vector_entry(size_of::<Place>()) + price::map_entry(size_of::<(ClientId, u32)>());

/// All state ids of one home.
#[derive(Debug)]
pub struct StateTable {
    epoch: u32,
    home: u8,
    places: Vec<Place>,
    free: Option<u32>,
    /// The newest state of each client, where its chain begins.
    heads: HashMap<ClientId, u32>,
    count: u32,
    max: u32,
}

/// A state that was found good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateIndex(u32);

impl StateIndex {
    /// Its place among all states: small numbers, which are used again.
    pub(crate) const fn place(self) -> usize {
        self.0 as usize
    }
}

impl StateTable {
    /// A table of `max` states at most. `epoch` differs from that of every earlier start of the server and is not 0.
    #[must_use]
    pub fn new(epoch: u32, home: u8, max: u32) -> StateTable {
        StateTable { epoch, home, places: Vec::new(), free: None, heads: HashMap::new(), count: 0, max }
    }

    /// Returns the reactor that state ids name.
    #[must_use]
    pub const fn home(&self) -> u8 {
        self.home
    }

    /// Returns how many states there are, revoked ones included.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Names a new state. `own` is how many its client has: no client takes more than it leaves for others.
    pub fn add(
        &mut self,
        client: ClientId,
        file: FileKey,
        kind: StateKind,
        own: u32,
    ) -> Result<StateIndex, NoStateRoom> {
        if !has_share(own.into(), self.count.into(), 1, self.max.into()) {
            return Err(NoStateRoom);
        }
        let neighbours = [None, self.heads.get(&client).copied()];
        let entry =
            |generation| Entry { client, file, kind, seqid: 1, generation, revoked: None, neighbours };
        let index = match self.free {
            Some(index) => {
                let place = &mut self.places[index as usize];
                let Place::Free(last, next) = *place else { unreachable!("the list of free places") };
                self.free = next;
                *place = Place::Used(entry(last.wrapping_add(1)));
                index
            }
            None => {
                let index = u32::try_from(self.places.len()).map_err(|_| NoStateRoom)?;
                self.places.push(Place::Used(entry(0)));
                index
            }
        };
        debug_assert!(may_change(&CHANGES, StateStage::Free, StateStage::Valid));
        if let Some(behind) = neighbours[1] {
            self.entry_mut(StateIndex(behind)).neighbours[0] = Some(index);
        }
        self.heads.insert(client, index);
        self.count += 1;
        Ok(StateIndex(index))
    }

    /// Returns the state id of a state, with the seqid that it has now.
    #[must_use]
    pub fn token(&self, index: StateIndex) -> StateToken {
        let entry = self.entry(index);
        let kind = entry.kind as u8;
        let (epoch, home, generation) = (self.epoch, self.home, entry.generation);
        let name = NamedState { epoch, home, kind, index: index.0, generation };
        StateToken { seqid: entry.seqid, other: name.other() }
    }

    /// The state has changed: the next seqid, which skips 0 (8881-8.2.2-a).
    pub fn advance(&mut self, index: StateIndex) -> StateToken {
        let entry = self.entry_mut(index);
        entry.seqid = entry.seqid.checked_add(1).unwrap_or(1);
        self.token(index)
    }

    /// Takes a state from its client, who will be told until it frees it.
    pub fn revoke(&mut self, index: StateIndex, why: Revoked) {
        debug_assert!(may_change(&CHANGES, StateStage::Valid, StateStage::Revoked));
        self.entry_mut(index).revoked = Some(why);
    }

    /// Forgets a state.
    pub fn remove(&mut self, index: StateIndex) {
        let Entry { generation, client, neighbours, .. } = *self.entry(index);
        let [before, behind] = neighbours;
        if let Some(behind) = behind {
            self.entry_mut(StateIndex(behind)).neighbours[0] = before;
        }
        match (before, behind) {
            (Some(before), _) => self.entry_mut(StateIndex(before)).neighbours[1] = behind,
            (None, Some(behind)) => drop(self.heads.insert(client, behind)),
            (None, None) => drop(self.heads.remove(&client)),
        }
        self.places[index.0 as usize] = Place::Free(generation, self.free);
        self.free = Some(index.0);
        self.count -= 1;
    }

    /// Finds the state that a client names (8881-8.2.4-a). `file`: the current one, where the state must belong to it.
    /// `slots`: of all sessions of the client, for seqids around their wrap.
    #[inline]
    pub fn find(
        &self,
        token: &StateToken,
        client: ClientId,
        file: Option<FileKey>,
        kinds: &[StateKind],
        slots: u32,
    ) -> Result<StateIndex, StateFault> {
        let Some(StateName::Of(name)) = token.name() else { return Err(StateFault::Bad) };
        if name.epoch != self.epoch {
            return Err(StateFault::Stale);
        }
        let Some(Place::Used(entry)) = self.places.get(name.index as usize) else {
            return Err(StateFault::Bad);
        };
        let is_it = entry.generation == name.generation
            && entry.kind as u8 == name.kind
            && name.home == self.home
            && entry.client == client
            && file.is_none_or(|file| file == entry.file);
        if !is_it {
            return Err(StateFault::Bad);
        }
        if let Some(why) = entry.revoked {
            return Err(StateFault::Revoked(why));
        }
        if !kinds.contains(&entry.kind) {
            return Err(StateFault::Bad);
        }
        match compare_seqids(token.seqid, entry.seqid, slots) {
            _ if token.seqid == 0 => Ok(StateIndex(name.index)),
            std::cmp::Ordering::Less => Err(StateFault::Old),
            std::cmp::Ordering::Greater => Err(StateFault::Bad),
            std::cmp::Ordering::Equal => Ok(StateIndex(name.index)),
        }
    }

    /// FREE_STATEID: forgets a revoked state. `Ok(false)`: it is not revoked, which is NFS4ERR_LOCKS_HELD unless it is a lock
    /// state without locks.
    pub fn free_revoked(&mut self, token: &StateToken, client: ClientId) -> Result<bool, StateFault> {
        let all = [StateKind::Open, StateKind::Lock, StateKind::Delegation];
        match self.find(token, client, None, &all, u32::MAX) {
            Err(StateFault::Revoked(_)) => {
                let Some(StateName::Of(name)) = token.name() else { return Err(StateFault::Bad) };
                debug_assert!(may_change(&CHANGES, StateStage::Revoked, StateStage::Free));
                self.remove(StateIndex(name.index));
                Ok(true)
            }
            Ok(_) | Err(StateFault::Old) => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    /// Returns the client of a state.
    #[must_use]
    pub fn client(&self, index: StateIndex) -> ClientId {
        self.entry(index).client
    }

    /// Returns the file of a state.
    #[must_use]
    pub fn file(&self, index: StateIndex) -> FileKey {
        self.entry(index).file
    }

    /// Returns the states of a client, the newest first, with what they are and whether they are revoked.
    pub fn of_client(&self, client: ClientId) -> impl Iterator<Item = (StateIndex, StateKind, bool)> + '_ {
        let mut next = self.heads.get(&client).copied();
        std::iter::from_fn(move || {
            let index = StateIndex(next?);
            let entry = self.entry(index);
            next = entry.neighbours[1];
            Some((index, entry.kind, entry.revoked.is_some()))
        })
    }

    fn entry(&self, index: StateIndex) -> &Entry {
        match &self.places[index.0 as usize] {
            Place::Used(entry) => entry,
            Place::Free(..) => unreachable!("an index is given out for a state that is there"),
        }
    }

    fn entry_mut(&mut self, index: StateIndex) -> &mut Entry {
        match &mut self.places[index.0 as usize] {
            Place::Used(entry) => entry,
            Place::Free(..) => unreachable!("an index is given out for a state that is there"),
        }
    }
}

/// Compares seqids. Near the wrap a small one follows a large one: as far as the client can have requests under way, which
/// `slots` bounds (8881-8.2.2-b).
#[inline]
#[must_use]
pub fn compare_seqids(a: u32, b: u32, slots: u32) -> std::cmp::Ordering {
    let is_low = |seqid: u32| seqid < slots;
    let is_high = |seqid: u32| seqid > u32::MAX - slots;
    match (is_low(a) && is_high(b), is_high(a) && is_low(b)) {
        (true, false) => std::cmp::Ordering::Greater,
        (false, true) => std::cmp::Ordering::Less,
        _ => a.cmp(&b),
    }
}
