//! Opens with share reservations (RFC 8881 section 9.7 to 9.9): one for each owner and file, which later OPENs extend,
//! OPEN_DOWNGRADE reduces, and one CLOSE ends; and the names of owners' locks that belong to them.

use std::collections::HashMap;
use std::rc::Rc;

use smallvec::SmallVec;

use crate::FileKey;
use crate::client::ClientId;
use crate::stateid::{
    NoStateRoom, Revoked, STATE_LEN, StateFault, StateIndex, StateKind, StateTable, StateToken,
};
use crate::{has_share, price};

/// Access that an open has, and access that it denies others: bit 0 to read, bit 1 to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ShareModes {
    /// Access.
    pub access: u8,
    /// What others may not.
    pub deny: u8,
}

impl ShareModes {
    /// To read.
    pub const READ: u8 = 1;
    /// To write.
    pub const WRITE: u8 = 2;

    /// Checks the numbers of OPEN: some access, and nothing but the two bits (8881-9.7-a).
    #[must_use]
    pub const fn new(access: u32, deny: u32) -> Option<ShareModes> {
        if access == 0 || access > 3 || deny > 3 {
            return None;
        }
        Some(ShareModes { access: access as u8, deny: deny as u8 })
    }

    /// Tells whether two opens exclude each other (8881-9.7-b).
    #[must_use]
    pub const fn conflicts(&self, other: &ShareModes) -> bool {
        self.access & other.deny != 0 || self.deny & other.access != 0
    }

    pub(crate) const fn union(self, other: ShareModes) -> ShareModes {
        ShareModes { access: self.access | other.access, deny: self.deny | other.deny }
    }

    /// Its place in a set of sixteen.
    const fn bit(self) -> u16 {
        1 << (self.access << 2 | self.deny)
    }
}

/// How many opens there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenConfig {
    /// Opens, and lock owners of opens, in all.
    pub states_max: u32,
    /// Octets of an owner's name: NFS4_OPAQUE_LIMIT.
    pub owner_len_max: u32,
    /// Octets of all owners' names together.
    pub owner_octets_max: u32,
    /// Opens of one file: what one request may have to look at.
    pub file_opens_max: u32,
}

impl Default for OpenConfig {
    fn default() -> OpenConfig {
        OpenConfig {
            states_max: 262_144,
            owner_len_max: 1024,
            owner_octets_max: 16 << 20,
            file_opens_max: 8192,
        }
    }
}

impl OpenConfig {
    /// The default limits, or proportionally lower ones if those would take more than `octets` of the heap.
    #[must_use]
    pub fn within(octets: u64) -> OpenConfig {
        let all = OpenConfig::default();
        let most = all.memory_max();
        // At least something of each, however little memory there is.
        let part = |limit: u32| (u64::from(limit) * octets.min(most) / most).max(64) as u32;
        OpenConfig {
            states_max: part(all.states_max),
            owner_octets_max: part(all.owner_octets_max).max(2 * all.owner_len_max),
            file_opens_max: part(all.file_opens_max),
            ..all
        }
    }

    /// Octets of the heap that all this can take, at most.
    #[must_use]
    pub const fn memory_max(&self) -> u64 {
        // An open in a vector and three maps, with an owner, and a client and a file of its own.
        let open = STATE_LEN
            + price::vector_entry(size_of::<Option<Holder>>())
            + price::map_entry(size_of::<(OwnerKey, StateIndex)>())
            + price::map_entry(size_of::<(FileKey, FileOpens)>())
            + price::map_entry(size_of::<(ClientId, Holdings)>())
            + price::piece(4 * size_of::<StateIndex>() as u64)
            + price::piece(price::COUNTS);
        self.states_max as u64 * open + self.owner_octets_max as u64 + SPARE_NAMES_LEN
    }
}

/// OPEN, as far as it is about shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenRequest<'a> {
    /// Whose.
    pub client: ClientId,
    /// Which of its owners.
    pub owner: &'a [u8],
    /// The file.
    pub file: FileKey,
    /// What it asks for.
    pub modes: ShareModes,
    /// What others hold beside this table: shares of NLM.
    pub elsewhere: ShareModes,
}

/// Why an open is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenRefused {
    /// NFS4ERR_SHARE_DENIED: by an open of this client, or by a share of another protocol. If the client's lease has lapsed, the
    /// caller expires it and asks again.
    #[error("another open is in the way")]
    Conflict(Option<ClientId>),
    /// NFS4ERR_RESOURCE in 4.0, NFS4ERR_DELAY later.
    #[error(transparent)]
    NoRoom(#[from] NoStateRoom),
}

/// Why an open is not changed or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenFault {
    /// The state id is not good.
    #[error(transparent)]
    State(#[from] StateFault),
    /// NFS4ERR_INVAL: OPEN_DOWNGRADE to modes that no OPEN of it asked for (8881-18.18.3-a).
    #[error("no opens have these modes together")]
    NotOpened,
}

/// An open that was made or extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenGrant {
    /// Its state id.
    pub token: StateToken,
    /// Its owner had the file open.
    pub is_upgrade: bool,
}

type OwnerKey = (ClientId, FileKey, Rc<[u8]>);

/// What each state is, at its place.
#[derive(Debug, Default)]
struct Holders(Vec<Option<Holder>>);

impl Holders {
    #[inline]
    fn get(&self, index: StateIndex) -> Option<&Holder> {
        self.0.get(index.place())?.as_ref()
    }

    fn get_mut(&mut self, index: StateIndex) -> Option<&mut Holder> {
        self.0.get_mut(index.place())?.as_mut()
    }

    fn insert(&mut self, index: StateIndex, holder: Holder) {
        if self.0.len() <= index.place() {
            self.0.resize_with(index.place() + 1, || None);
        }
        self.0[index.place()] = Some(holder);
    }

    fn remove(&mut self, index: StateIndex) -> Option<Holder> {
        self.0.get_mut(index.place())?.take()
    }
}

#[derive(Debug)]
struct Holder {
    owner: Rc<[u8]>,
    what: Holding,
}

#[derive(Debug)]
enum Holding {
    Open {
        modes: ShareModes,
        /// The modes of each OPEN, as a set.
        asked: u16,
        /// Lock owners that use it.
        lockers: Vec<StateIndex>,
    },
    /// A lock owner's state, and the open that it belongs to.
    Locks(StateIndex),
}

/// The opens of a file, the oldest first. One or two take no piece of the heap.
type FileOpens = SmallVec<[StateIndex; 2]>;

/// Owners' names that are kept for the next opens, and octets of one at most: clients open and close by names of one length.
const SPARE_NAMES_MAX: usize = 64;
const SPARE_NAME_LEN_MAX: usize = 64;

/// Octets of the heap that they take, at most.
const SPARE_NAMES_LEN: u64 = SPARE_NAMES_MAX as u64
    * (price::piece(price::COUNTS + SPARE_NAME_LEN_MAX as u64) + 2 * size_of::<Rc<[u8]>>() as u64);

/// Owners' names that are no longer used.
#[derive(Debug, Default)]
struct SpareNames(Vec<Rc<[u8]>>);

impl SpareNames {
    /// A name of these octets.
    fn take(&mut self, octets: &[u8]) -> Rc<[u8]> {
        if let Some(place) = self.0.iter().rposition(|spare| spare.len() == octets.len()) {
            let mut name = self.0.swap_remove(place);
            if let Some(space) = Rc::get_mut(&mut name) {
                space.copy_from_slice(octets);
                return name;
            }
        }
        octets.into()
    }

    /// Keeps a name whose state ended.
    fn put(&mut self, name: Rc<[u8]>) {
        if self.0.len() < SPARE_NAMES_MAX && name.len() <= SPARE_NAME_LEN_MAX {
            self.0.push(name);
        }
    }
}

/// What a client has.
#[derive(Clone, Copy, Debug, Default)]
struct Holdings {
    states: u32,
    owner_octets: u64,
}

/// All opens of one home.
#[derive(Debug)]
pub struct OpenTable {
    config: OpenConfig,
    states: StateTable,
    holders: Holders,
    by_owner: HashMap<OwnerKey, StateIndex>,
    files: HashMap<FileKey, FileOpens>,
    clients: HashMap<ClientId, Holdings>,
    owner_octets: u64,
    spare_names: SpareNames,
}

impl OpenTable {
    /// A table without opens: see [`StateTable::new`].
    #[must_use]
    pub fn new(config: OpenConfig, epoch: u32, home: u8) -> OpenTable {
        OpenTable {
            config,
            states: StateTable::new(epoch, home, config.states_max),
            holders: Holders::default(),
            by_owner: HashMap::new(),
            files: HashMap::new(),
            clients: HashMap::new(),
            owner_octets: 0,
            spare_names: SpareNames::default(),
        }
    }

    /// Returns the reactor that state ids name.
    #[must_use]
    pub const fn home(&self) -> u8 {
        self.states.home()
    }

    /// Returns how many opens and lock owners there are.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.states.count()
    }

    /// Tells whether a client holds anything.
    #[must_use]
    pub fn has_state(&self, client: ClientId) -> bool {
        self.clients.contains_key(&client)
    }

    /// Returns all opens: whose, of which file, of which owner, and what they have and deny.
    pub fn opens(&self) -> impl Iterator<Item = (ClientId, FileKey, &[u8], ShareModes)> {
        self.files.iter().flat_map(|(file, opens)| {
            opens.iter().filter_map(|open| {
                let holder = self.holders.get(*open)?;
                let Holding::Open { modes, .. } = holder.what else { return None };
                Some((self.states.client(*open), *file, &*holder.owner, modes))
            })
        })
    }

    /// Returns what all opens of a file together have and deny: for requests without an open, and for other protocols.
    #[must_use]
    pub fn file_modes(&self, file: FileKey) -> ShareModes {
        let opens = self.files.get(&file).map(SmallVec::as_slice).unwrap_or_default();
        opens.iter().filter_map(|open| self.modes(*open)).fold(ShareModes::default(), ShareModes::union)
    }

    /// Returns the client of an open of a file that excludes `modes`, of the oldest if there are several.
    #[must_use]
    pub fn conflict(&self, file: FileKey, modes: ShareModes) -> Option<ClientId> {
        let opens = self.files.get(&file).map(SmallVec::as_slice).unwrap_or_default();
        let found = opens.iter().find(|open| self.modes(**open).is_some_and(|other| modes.conflicts(&other)));
        found.map(|open| self.states.client(*open))
    }

    /// Returns what an open has and denies; of a lock owner's state, that of its open.
    #[inline]
    #[must_use]
    pub fn modes(&self, index: StateIndex) -> Option<ShareModes> {
        let open = match self.holders.get(index)?.what {
            Holding::Open { modes, .. } => return Some(modes),
            Holding::Locks(open) => open,
        };
        match self.holders.get(open)?.what {
            Holding::Open { modes, .. } => Some(modes),
            Holding::Locks(_) => None,
        }
    }

    /// Opens a file, or extends what the owner has open there (8881-9.9-a).
    pub fn open(&mut self, request: &OpenRequest<'_>) -> Result<OpenGrant, OpenRefused> {
        let OpenRequest { client, file, modes, .. } = *request;
        if modes.conflicts(&request.elsewhere) {
            return Err(OpenRefused::Conflict(None));
        }
        // All opens count, those of the same owner too (RFC 8881 section 9.7).
        if let Some(client) = self.conflict(file, modes) {
            return Err(OpenRefused::Conflict(Some(client)));
        }
        let owner = self.spare_names.take(request.owner);
        let key = (client, file, Rc::clone(&owner));
        if let Some(open) = self.by_owner.get(&key).copied() {
            drop(key);
            self.spare_names.put(owner);
            if let Some(Holder { what: Holding::Open { modes: held, asked, .. }, .. }) =
                self.holders.get_mut(open)
            {
                *held = held.union(modes);
                *asked |= modes.bit();
            }
            return Ok(OpenGrant { token: self.states.advance(open), is_upgrade: true });
        }
        if self.files.get(&file).map_or(0, SmallVec::len) >= self.config.file_opens_max as usize {
            return Err(NoStateRoom.into());
        }
        let open = self.add(client, file, StateKind::Open, &owner)?;
        let what = Holding::Open { modes, asked: modes.bit(), lockers: Vec::new() };
        self.holders.insert(open, Holder { owner, what });
        self.by_owner.insert(key, open);
        self.files.entry(file).or_default().push(open);
        Ok(OpenGrant { token: self.states.token(open), is_upgrade: false })
    }

    /// OPEN_DOWNGRADE (8881-18.18.3-a, 8881-9.9-b).
    pub fn downgrade(
        &mut self,
        token: &StateToken,
        client: ClientId,
        file: FileKey,
        modes: ShareModes,
        slots: u32,
    ) -> Result<StateToken, OpenFault> {
        let open = self.states.find(token, client, Some(file), &[StateKind::Open], slots)?;
        let Some(Holder { what: Holding::Open { modes: held, asked, .. }, .. }) = self.holders.get_mut(open)
        else {
            return Err(StateFault::Bad.into());
        };
        // What some of the opens have together, of access and of denials each by themselves.
        let (mut access, mut deny) = (0, 0);
        for bit in (0..16_u8).filter(|bit| *asked >> bit & 1 != 0) {
            let (one_access, one_deny) = (bit >> 2, bit & 3);
            access |= if one_access & !modes.access == 0 { one_access } else { 0 };
            deny |= if one_deny & !modes.deny == 0 { one_deny } else { 0 };
        }
        if (access, deny) != (modes.access, modes.deny) {
            return Err(OpenFault::NotOpened);
        }
        *held = modes;
        *asked = modes.bit() | asked_within(*asked, modes);
        Ok(self.states.advance(open))
    }

    /// CLOSE. Lock owners' states of the open end with it: `unlock` frees the locks of each (8881-9.8-a).
    pub fn close(
        &mut self,
        token: &StateToken,
        client: ClientId,
        file: FileKey,
        slots: u32,
        mut unlock: impl FnMut(&[u8]),
    ) -> Result<(), OpenFault> {
        let open = self.states.find(token, client, Some(file), &[StateKind::Open], slots)?;
        if let Some(Holder { what: Holding::Open { lockers, .. }, .. }) = self.holders.get(open) {
            lockers.iter().filter_map(|locker| self.holders.get(*locker)).for_each(|it| unlock(&it.owner));
        }
        self.remove(open);
        Ok(())
    }

    /// Names the locks of an owner that locks through an open for the first time. If it did before, the same name.
    pub fn add_locker(&mut self, open: StateIndex, owner: &[u8]) -> Result<StateIndex, OpenRefused> {
        let (client, file) = (self.states.client(open), self.states.file(open));
        let lockers = match self.holders.get(open) {
            Some(Holder { what: Holding::Open { lockers, .. }, .. }) => lockers,
            _ => return Err(NoStateRoom.into()),
        };
        let is_its =
            |locker: &&StateIndex| self.holders.get(**locker).is_some_and(|holder| *holder.owner == *owner);
        if let Some(locker) = lockers.iter().find(is_its) {
            return Ok(*locker);
        }
        let owner = self.spare_names.take(owner);
        let locker = self.add(client, file, StateKind::Lock, &owner)?;
        self.holders.insert(locker, Holder { owner, what: Holding::Locks(open) });
        if let Some(Holder { what: Holding::Open { lockers, .. }, .. }) = self.holders.get_mut(open) {
            lockers.push(locker);
        }
        Ok(locker)
    }

    /// Returns the name of the owner of an open, or of a lock owner's state.
    #[must_use]
    pub fn owner(&self, index: StateIndex) -> Option<&Rc<[u8]>> {
        self.holders.get(index).map(|holder| &holder.owner)
    }

    /// Returns the state ids, to find and name states.
    #[must_use]
    pub const fn states(&self) -> &StateTable {
        &self.states
    }

    /// A lock owner's locks have changed: the next seqid.
    pub fn advance(&mut self, index: StateIndex) -> StateToken {
        self.states.advance(index)
    }

    /// Forgets a lock owner's state, which has no locks.
    pub fn remove_locker(&mut self, locker: StateIndex) {
        self.remove(locker);
    }

    /// FREE_STATEID of a revoked state: see [`StateTable::free_revoked`].
    pub fn free_revoked(&mut self, token: &StateToken, client: ClientId) -> Result<bool, StateFault> {
        let is_freed = self.states.free_revoked(token, client)?;
        if is_freed {
            self.uncount(client);
        }
        Ok(is_freed)
    }

    /// Takes all from a client that keeps its session: it is told until it frees each state id.
    pub fn revoke_client(&mut self, client: ClientId, why: Revoked) {
        let all: Vec<StateIndex> = self
            .states
            .of_client(client)
            .filter(|(_, _, revoked)| !revoked)
            .map(|(index, ..)| index)
            .collect();
        for index in all {
            self.release(index);
            self.states.revoke(index, why);
        }
    }

    /// Frees all that a client held: it is gone.
    pub fn free_client(&mut self, client: ClientId) {
        let all: Vec<StateIndex> = self.states.of_client(client).map(|(index, ..)| index).collect();
        for index in all {
            self.release(index);
            self.states.remove(index);
        }
        self.clients.remove(&client);
    }

    /// Ends all opens of files of a file system ([`FileKey::volume`]): it is no longer served.
    pub fn free_volume(&mut self, volume: u64) {
        let files = self.files.iter().filter(|(key, _)| key.volume == volume);
        let all: Vec<StateIndex> = files.flat_map(|(_, opens)| opens.iter().copied()).collect();
        for open in all {
            self.remove(open);
        }
    }

    fn add(
        &mut self,
        client: ClientId,
        file: FileKey,
        kind: StateKind,
        owner: &Rc<[u8]>,
    ) -> Result<StateIndex, NoStateRoom> {
        let own = self.clients.get(&client).copied().unwrap_or_default();
        let octets = owner.len() as u64;
        let has_room = octets <= u64::from(self.config.owner_len_max)
            && has_share(own.owner_octets, self.owner_octets, octets, self.config.owner_octets_max.into());
        if !has_room {
            return Err(NoStateRoom);
        }
        let index = self.states.add(client, file, kind, own.states)?;
        let holdings = self.clients.entry(client).or_default();
        holdings.states += 1;
        holdings.owner_octets += octets;
        self.owner_octets += octets;
        Ok(index)
    }

    /// Ends a state, and those of lock owners that belong to it.
    fn remove(&mut self, index: StateIndex) {
        while let Some(Holder { what: Holding::Open { lockers, .. }, .. }) = self.holders.get(index)
            && let Some(locker) = lockers.last().copied()
        {
            self.remove(locker);
        }
        let client = self.states.client(index);
        if self.release(index) {
            self.states.remove(index);
            self.uncount(client);
        }
    }

    /// Takes a state out of everything but the state ids. `false`: it was taken out before.
    fn release(&mut self, index: StateIndex) -> bool {
        let Some(holder) = self.holders.remove(index) else { return false };
        let (client, file) = (self.states.client(index), self.states.file(index));
        let octets = holder.owner.len() as u64;
        self.owner_octets -= octets;
        if let Some(holdings) = self.clients.get_mut(&client) {
            holdings.owner_octets -= octets;
        }
        match holder.what {
            Holding::Open { .. } => {
                let key = (client, file, holder.owner);
                self.by_owner.remove(&key);
                self.spare_names.put(key.2);
                if let Some(opens) = self.files.get_mut(&file) {
                    opens.retain(|open| *open != index);
                    if opens.is_empty() {
                        self.files.remove(&file);
                    }
                }
            }
            Holding::Locks(open) => {
                self.spare_names.put(holder.owner);
                if let Some(Holder { what: Holding::Open { lockers, .. }, .. }) = self.holders.get_mut(open) {
                    lockers.retain(|locker| *locker != index);
                }
            }
        }
        true
    }

    fn uncount(&mut self, client: ClientId) {
        if let Some(holdings) = self.clients.get_mut(&client) {
            holdings.states -= 1;
            if holdings.states == 0 {
                self.clients.remove(&client);
            }
        }
    }
}

/// Those of a set of modes that are within others.
fn asked_within(asked: u16, modes: ShareModes) -> u16 {
    let is_within = |bit: &u8| (bit >> 2) & !modes.access == 0 && (bit & 3) & !modes.deny == 0;
    (0..16_u8).filter(is_within).fold(0, |set, bit| set | asked & 1 << bit)
}
