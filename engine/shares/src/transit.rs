//! Shares of the payload memory that Calls and Replies pass through.
//!
//! What stores keep is counted apart ([`Pool::set_aside`]); the rest is for transit, and every connection takes from it
//! while a peer has to do something: to let a chunk be read, to send the rest of a record, to take a Reply. So a peer must
//! not be able to take all of it and then do nothing.
//!
//! - Each *owner* (a network address, or a user of this machine) has a part, whatever the
//!   number of its connections: it gets more only while it then holds no more than is free for all, as switches do that share
//!   one buffer among their ports (a dynamic threshold). What an owner may still get is divided among its connections in the
//!   same way: one that holds something gets more only while it then holds no more than half of that. A greedy owner settles
//!   at an equal part, and waits alone; one who comes later finds twice as much as each of them has.
//! - A peer that has not yet answered gets a *probe* first, a few pages. Those of all connections together are at most
//!   one part in `PROBES_SHARE`. So peers that never answer hold next to nothing.
//! - A Call gets all of its remaining memory at once, or none and waits: two that hold parts cannot wait for each other.
//! - Peers are asked to fill at most one part in `ASKED_SHARE` without a limit to each, and beyond that a *window*, as
//!   large as a probe, at a time. What a peer was not asked for, or has filled, can be taken back while others wait.
//! - Some pages are left for messages on byte streams, so that a Call without bulk data never waits for one with. Of these an owner
//!   gets no more than it leaves free.
//! - A Long Reply comes out of its owner's part ([`TransitAccounts::reply_room`]), also where another reactor executes the Call:
//!   there its client is a [`MemoryHolder::Guest`].
//!
//! Pages that a store keeps are not memory for transit, but the list of them is heap: Replies in many pieces that peers have not
//! taken are counted too, and of [`LISTS_MAX`] an owner gets no more than it leaves free. Beyond that results are in few pieces,
//! and so shorter.

use std::collections::HashMap;

use stag_memory::Pool;

/// Of the pages for transit, probes of all connections together take at most one part in this number.
const PROBES_SHARE: usize = 4;

/// Of the pages for transit, peers are asked to fill at most one part in this number at once, beside what windows
/// hold.
const ASKED_SHARE: usize = 2;

/// Pages of a probe, and of a window, at most.
const PROBE_MAX: usize = 16;

/// Pages that bulk data leaves to others at most.
const RESERVE_MAX: usize = 128;

/// Of the pages for transit, bulk data leaves at most one part in this number to others.
const RESERVE_SHARE: usize = 16;

/// Replies in many pieces that wait to be sent at most, when services ask how many pieces a Reply may have.
pub const LISTS_MAX: u32 = 64;

/// Pages that bulk data leaves to messages on byte streams.
pub fn reserve(pool: &Pool) -> usize {
    (pool.transit() / RESERVE_SHARE).min(RESERVE_MAX)
}

/// Pages that bulk data may take now.
#[inline]
pub fn free(pool: &Pool) -> usize {
    pool.transit_free().saturating_sub(reserve(pool))
}

/// Pages that hold `octets`.
#[inline]
pub fn pages(pool: &Pool, octets: usize) -> usize {
    octets.div_ceil(pool.unit_len())
}

/// Pages of a probe, where `connections` may each have one.
pub fn probe_len(pool: &Pool, connections: u32) -> usize {
    (pool.transit() / PROBES_SHARE / connections.max(1) as usize).clamp(1, PROBE_MAX)
}

/// What the connections of one owner hold together.
#[derive(Debug)]
struct OwnerAccount {
    owner: u128,
    connections: u32,
    held: usize,
    unanswered: usize,
    /// Of `held`, what Replies take that peers have not taken.
    replies: usize,
    /// Records on byte streams that have begun and not ended.
    records: usize,
    /// Replies in many pieces that wait to be sent.
    lists: u32,
}

/// What all connections hold of the memory for transit, by owner. One entry for each owner that has a connection, so the
/// limits of connections bound it; it allocates only when a connection comes.
#[derive(Debug, Default)]
pub struct TransitAccounts {
    accounts: Vec<OwnerAccount>,
    vacant: Vec<u32>,
    places: HashMap<u128, u32>,
    /// Pages that peers have still to fill.
    unanswered: usize,
    /// Pages that are counted for results which are not there yet.
    expected: usize,
    /// Replies in many pieces that wait to be sent.
    lists: u32,
}

impl TransitAccounts {
    /// Opens the share of a new connection of `owner`. [`TransitAccounts::close`] ends it.
    pub fn open(&mut self, owner: u128) -> TransitShare {
        let place = *self.places.entry(owner).or_insert_with(|| {
            let account = OwnerAccount {
                owner,
                connections: 0,
                held: 0,
                unanswered: 0,
                replies: 0,
                records: 0,
                lists: 0,
            };
            match self.vacant.pop() {
                Some(place) => {
                    self.accounts[place as usize] = account;
                    place
                }
                None => {
                    self.accounts.push(account);
                    self.accounts.len() as u32 - 1
                }
            }
        });
        self.accounts[place as usize].connections += 1;
        TransitShare {
            owner: place,
            held: 0,
            unanswered: 0,
            replies: 0,
            expected: 0,
            is_trusted: false,
            is_suspended: false,
            refused: None,
            exposed_len_max: 0,
            is_last_try: false,
            lists: 0,
        }
    }

    /// Ends a share: nothing that it counted is in use any more.
    pub fn close(&mut self, share: &mut TransitShare) {
        self.unanswered -= share.unanswered;
        let account = &mut self.accounts[share.owner as usize];
        account.unanswered -= std::mem::take(&mut share.unanswered);
        account.held -= std::mem::take(&mut share.held);
        account.replies -= std::mem::take(&mut share.replies);
        self.expected -= std::mem::take(&mut share.expected);
        self.lists -= share.lists;
        account.lists -= std::mem::take(&mut share.lists);
        account.connections -= 1;
        if account.connections == 0 {
            debug_assert_eq!(
                (account.held, account.unanswered, account.replies, account.records, account.lists),
                (0, 0, 0, 0, 0),
                "counted without a connection"
            );
            self.places.remove(&account.owner);
            self.vacant.push(share.owner);
        }
    }

    /// Pages that all connections of a share's owner hold.
    #[cfg(test)]
    fn held_by_owner(&self, share: &TransitShare) -> usize {
        self.accounts[share.owner as usize].held
    }

    /// The account of a holder's owner; `None`: it has none, as it holds nothing here.
    fn account_of(&self, holder: MemoryHolder<'_>) -> Option<&OwnerAccount> {
        let place = match holder {
            MemoryHolder::Share(share) => share.owner,
            MemoryHolder::Guest { owner, .. } => *self.places.get(&owner)?,
        };
        self.accounts.get(place as usize)
    }

    /// Pages that the connections of a share's owner may still get.
    fn room(&self, share: &TransitShare, pool: &Pool) -> usize {
        free(pool).saturating_sub(self.accounts[share.owner as usize].held)
    }

    /// Whether the connections of a share's owner get no more than a probe.
    #[inline]
    pub fn is_narrow(&self, share: &TransitShare, pool: &Pool) -> bool {
        self.room(share, pool) < PROBE_MAX
    }

    /// What stops `pages` more for a Call that holds `own` already; `None` if they are the connection's due, and are there.
    #[inline]
    pub fn obstacle(&self, share: &TransitShare, pool: &Pool, pages: usize, own: usize) -> Option<Obstacle> {
        if pages == 0 {
            return None;
        }
        let free = free(pool);
        if pages > free {
            return Some(Obstacle::Memory);
        }
        let held = self.accounts[share.owner as usize].held;
        if held == own {
            // Its owner has nothing else.
            return None;
        }
        let room = free.saturating_sub(held);
        if pages > room {
            return Some(Obstacle::Owner(share.owner));
        }
        (share.held != own && 2 * (share.held + pages) > room).then_some(Obstacle::Connection)
    }

    /// Whether a peer may be asked to fill `pages` more at once. If not, it is asked for a window at a time.
    pub fn may_ask(&self, share: &TransitShare, pool: &Pool, pages: usize) -> bool {
        let left = (pool.transit() / ASKED_SHARE).saturating_sub(self.unanswered);
        self.accounts[share.owner as usize].unanswered + pages <= left
    }

    /// The place of the account of a share's owner, if at least this number of records of its byte streams have begun and not
    /// ended.
    #[inline]
    pub fn has_begun(&self, share: &TransitShare, records: usize) -> Option<u32> {
        (self.accounts[share.owner as usize].records >= records).then_some(share.owner)
    }

    /// A record on a byte stream has begun.
    #[inline]
    pub fn begin(&mut self, share: &TransitShare) {
        self.accounts[share.owner as usize].records += 1;
    }

    /// A record on a byte stream is over, whether all of it came or not.
    #[inline]
    pub fn end(&mut self, share: &TransitShare) {
        self.accounts[share.owner as usize].records -= 1;
    }

    /// Counts `pages` more for a share.
    pub fn take(&mut self, share: &mut TransitShare, pages: usize) {
        share.held += pages;
        self.accounts[share.owner as usize].held += pages;
    }

    /// Counts `pages` less for a share.
    pub fn give(&mut self, share: &mut TransitShare, pages: usize) {
        debug_assert!(pages <= share.held, "gave back more than was held");
        share.held -= pages;
        self.accounts[share.owner as usize].held -= pages;
    }

    /// Of what was taken, the peer is asked to fill `pages`.
    pub fn ask(&mut self, share: &mut TransitShare, pages: usize) {
        share.unanswered += pages;
        self.accounts[share.owner as usize].unanswered += pages;
        self.unanswered += pages;
    }

    /// The peer is no longer asked for `pages`.
    pub fn unask(&mut self, share: &mut TransitShare, pages: usize) {
        share.unanswered -= pages;
        self.accounts[share.owner as usize].unanswered -= pages;
        self.unanswered -= pages;
    }

    /// The peer filled `pages`.
    pub fn answered(&mut self, share: &mut TransitShare, pages: usize) {
        self.unask(share, pages);
        if share.unanswered == 0 || !share.is_trusted || share.is_suspended {
            share.refused = None;
        }
        (share.is_trusted, share.is_suspended) = (true, false);
    }

    /// Counts `pages` for results that the peer has not taken.
    #[inline]
    pub fn take_reply(&mut self, share: &mut TransitShare, pages: usize) {
        share.replies += pages;
        self.accounts[share.owner as usize].replies += pages;
        self.take(share, pages);
    }

    /// The peer took results of `pages`.
    #[inline]
    pub fn give_reply(&mut self, share: &mut TransitShare, pages: usize) {
        share.replies -= pages;
        self.accounts[share.owner as usize].replies -= pages;
        self.give(share, pages);
    }

    /// Counts `pages` for results that a service will have later.
    pub fn expect(&mut self, share: &mut TransitShare, pages: usize) {
        share.expected += pages;
        self.expected += pages;
        self.take_reply(share, pages);
    }

    /// These results are there, or never will be.
    pub fn expect_no_more(&mut self, share: &mut TransitShare, pages: usize) {
        share.expected -= pages;
        self.expected -= pages;
        self.give_reply(share, pages);
    }

    /// A Reply in many pieces waits to be sent.
    #[cold]
    pub fn take_list(&mut self, share: &mut TransitShare) {
        share.lists += 1;
        self.accounts[share.owner as usize].lists += 1;
        self.lists += 1;
    }

    /// It waits no more.
    #[cold]
    pub fn give_list(&mut self, share: &mut TransitShare) {
        share.lists -= 1;
        self.accounts[share.owner as usize].lists -= 1;
        self.lists -= 1;
    }

    /// Whether one more Reply to a share's owner may be in many pieces.
    pub fn may_list(&self, share: &TransitShare) -> bool {
        self.accounts[share.owner as usize].lists < LISTS_MAX.saturating_sub(self.lists)
    }

    /// Pages that results for the connections of a holder's owner may still take. What is expected may be taken already or
    /// not: it is held back.
    pub fn results_room(&self, holder: MemoryHolder<'_>, pool: &Pool) -> usize {
        let held = self.account_of(holder).map_or(0, |account| account.held);
        free(pool).saturating_sub(held).saturating_sub(self.expected)
    }

    /// Pages that one more Long Reply may take: its owner's part, and its connection's part of that.
    pub fn reply_room(&self, holder: MemoryHolder<'_>, pool: &Pool) -> usize {
        let room = self.results_room(holder, pool);
        match holder.held() {
            0 => room,
            held => (room / 2).saturating_sub(held),
        }
    }

    /// As [`TransitAccounts::reply_room`], on a byte stream: of the last pages, too, it may take no more than it leaves free.
    pub fn message_room(&self, holder: MemoryHolder<'_>, pool: &Pool) -> usize {
        let replies = self.account_of(holder).map_or(0, |account| account.replies);
        let last = pool.transit_free().min(reserve(pool));
        self.reply_room(holder, pool).max(last.saturating_sub(replies) / 2)
    }

    /// Whether the peer has left so much untaken that its next Calls wait.
    #[inline]
    pub fn is_over_limit(&self, share: &TransitShare, pool: &Pool) -> bool {
        share.replies > 0 && self.is_over(share, pool)
    }

    #[cold]
    fn is_over(&self, share: &TransitShare, pool: &Pool) -> bool {
        2 * share.replies > self.results_room(MemoryHolder::Share(share), pool)
    }

    /// The place of the account of a share's owner, if one more Reply would come out of what bulk data leaves, and its peers have
    /// not taken as many pages of Replies as are free: of the last pages an owner gets no more than it leaves to others.
    #[inline]
    pub fn leaves_untaken(&self, share: &TransitShare, pool: &Pool) -> Option<u32> {
        let free = pool.transit_free();
        let is_scarce = free <= reserve(pool);
        (is_scarce && self.accounts[share.owner as usize].replies >= free.max(1)).then_some(share.owner)
    }

    /// Remembers that a share was refused something.
    pub fn refuse(&self, share: &mut TransitShare, pool: &Pool) {
        let held = self.accounts[share.owner as usize].held;
        share.refused = Some(Refusal { free: pool.transit_free(), held: share.held, owner_held: held });
    }

    /// Whether what was refused might be granted now.
    pub fn is_worth_trying(&self, share: &TransitShare, pool: &Pool) -> bool {
        let held = self.accounts[share.owner as usize].held;
        share.refused.is_none_or(|was| {
            pool.transit_free() > was.free || share.held < was.held || held < was.owner_held
        })
    }
}

/// Who takes memory for a Reply.
#[derive(Clone, Copy, Debug)]
pub enum MemoryHolder<'a> {
    /// A connection of this reactor.
    Share(&'a TransitShare),
    /// A client of another reactor, whose Call is executed here.
    Guest {
        /// Its owner.
        owner: u128,
        /// As in [`TransitShare`].
        is_last_try: bool,
    },
}

impl MemoryHolder<'_> {
    /// Pages that its connection holds; of a guest nothing is known but what its owner holds.
    fn held(self) -> usize {
        match self {
            MemoryHolder::Share(share) => share.held,
            MemoryHolder::Guest { .. } => 0,
        }
    }

    /// Whether its Call has waited for memory as long as it may.
    pub fn is_last_try(self) -> bool {
        match self {
            MemoryHolder::Share(share) => share.is_last_try,
            MemoryHolder::Guest { is_last_try, .. } => is_last_try,
        }
    }
}

/// What stops a Call from getting memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// There is not so much.
    Memory,
    /// Its owner's connections hold as much as is theirs: this is the place of its account.
    Owner(u32),
    /// Its connection holds as much as is its.
    Connection,
}

/// How things were when a share was refused something: while nothing has become better there is no use in trying again.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    free: usize,
    held: usize,
    owner_held: usize,
}

/// What one connection holds of the memory for transit. [`TransitAccounts`] changes it.
#[derive(Debug)]
pub struct TransitShare {
    /// Place of its owner's account.
    owner: u32,
    /// Pages that its Calls and Replies hold.
    held: usize,
    /// Of these, pages that its peer has still to fill.
    unanswered: usize,
    /// Of those held, pages of results that its peer has not taken.
    replies: usize,
    /// Of these, pages of results that are not there yet.
    expected: usize,
    /// Its peer has let something be read, and goes on doing so.
    pub is_trusted: bool,
    /// Memory was taken back from its Calls, and its peer has let nothing be read since: it gets none.
    pub is_suspended: bool,
    refused: Option<Refusal>,
    /// Octets of the longest Reply that is exposed on the connection; 0 where none is.
    pub exposed_len_max: u32,
    /// The Call that is being executed has waited for memory for its Reply as long as it may: without some it is refused.
    pub is_last_try: bool,
    /// Replies in many pieces that wait to be sent.
    lists: u32,
}

impl TransitShare {
    /// Pages that its Calls and Replies hold.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Pages that its peer has still to fill.
    pub fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// Pages of results that its peer has not taken.
    pub fn replies(&self) -> usize {
        self.replies
    }

    /// The place of its owner's account. It stays while the owner has a connection.
    pub fn account(&self) -> u32 {
        self.owner
    }

    /// Whether it is one of the owner with this account.
    pub fn is_of(&self, owner: u32) -> bool {
        self.owner == owner
    }
}

#[cfg(test)]
mod tests {
    use stag_memory::{Arena, ArenaConfig, Budget, Buf, PageChoice, PageSize};

    use super::*;

    fn pool(units: usize) -> Pool {
        let page = PageChoice::Size(PageSize::Base);
        let budget = Budget::new(1 << 30);
        let len = Pool::footprint(4096, units);
        let arena = Arena::new(&ArenaConfig { name: "test", len, page, node: None, budget: &budget });
        Pool::runs(&arena.expect("some megabytes"), "pages", 4096, units).expect("it fits")
    }

    /// Each share takes 8 pages in turn, as long as it may.
    fn settle(pool: &Pool, accounts: &mut TransitAccounts, shares: &mut [TransitShare]) -> Vec<Buf> {
        let mut taken = Vec::new();
        for _ in 0..400 {
            for share in shares.iter_mut() {
                if accounts.obstacle(share, pool, 8, 0).is_none() {
                    accounts.take(share, 8);
                    taken.push(pool.take_len(8 * 4096).expect("it is free"));
                }
            }
        }
        taken
    }

    #[test]
    fn the_greedy_settle_at_equal_parts_and_one_who_comes_later_finds_as_much() {
        let pool = pool(3200);
        let mut accounts = TransitAccounts::default();
        let mut shares: Vec<_> = (0..9).map(|uid| accounts.open(uid)).collect();
        let taken = settle(&pool, &mut accounts, &mut shares);
        let held: Vec<usize> = shares.iter().map(TransitShare::held).collect();
        let part = (3200 - reserve(&pool)) / 12;
        assert!(held.iter().all(|held| held.abs_diff(part) <= 24), "{part}: {held:?}");
        let newcomer = accounts.open(9);
        assert_eq!(accounts.obstacle(&newcomer, &pool, 2 * part, 0), None, "{held:?}");
        drop(taken);
    }

    /// One owner has one part, whether it has one connection or 240; and a further connection of its own finds something.
    #[test]
    fn connections_of_one_owner_share_its_part() {
        for count in [1, 24, 240] {
            let pool = pool(6400);
            let most = 6400 - reserve(&pool);
            let mut accounts = TransitAccounts::default();
            let mut shares: Vec<_> = (0..count).map(|_| accounts.open(1)).collect();
            let taken = settle(&pool, &mut accounts, &mut shares);
            let held = accounts.held_by_owner(&shares[0]);
            assert!(held <= most / 2, "{count} connections hold {held} of {most}");
            let honest = accounts.open(2);
            assert_eq!(accounts.obstacle(&honest, &pool, most / 2, 0), None);
            let held: Vec<usize> = shares.iter().map(TransitShare::held).collect();
            let spread = held.iter().max().unwrap_or(&0) - held.iter().min().unwrap_or(&0);
            assert!(spread <= 8, "{held:?}");
            // All end, and nothing is left of the account.
            for share in &mut shares {
                accounts.close(share);
            }
            drop(taken);
            assert_eq!((accounts.places.len(), accounts.vacant.len()), (1, 1));
            let again = accounts.open(3);
            assert_eq!((accounts.held_by_owner(&again), accounts.accounts.len()), (0, 2));
        }
    }

    #[test]
    fn all_connections_together_leave_pages_to_messages() {
        let pool = pool(3200);
        let mut accounts = TransitAccounts::default();
        let (mut taken, mut users) = (Vec::new(), 0..);
        for pages in [1000, 100, 10, 1] {
            // Each is taken by an owner that has nothing yet.
            loop {
                let newcomer = accounts.open(users.next().unwrap_or(0));
                if accounts.obstacle(&newcomer, &pool, pages, 0).is_some() {
                    break;
                }
                taken.push(pool.take_len(pages * 4096).expect("it is free"));
            }
        }
        assert_eq!(pool.transit_free(), RESERVE_MAX);
    }

    #[test]
    fn probes_of_all_connections_leave_most_of_the_memory() {
        let pool = pool(3200);
        for connections in [1, 24, 240, 4096] {
            let probes = probe_len(&pool, connections) * connections as usize;
            assert!(probes <= 800 || connections > 800, "{connections}");
        }
    }

    #[test]
    fn an_owner_has_no_more_lists_than_it_leaves() {
        let mut accounts = TransitAccounts::default();
        let mut shares: Vec<TransitShare> = [1, 1, 2, 3].map(|uid| accounts.open(uid)).into_iter().collect();
        let taken: Vec<u32> = shares
            .iter_mut()
            .map(|share| {
                let mut count = 0;
                while accounts.may_list(share) {
                    accounts.take_list(share);
                    count += 1;
                }
                count
            })
            .collect();
        // The second connection of the first owner finds nothing, each further owner half of what is left.
        assert_eq!(taken, [LISTS_MAX / 2, 0, LISTS_MAX / 4, LISTS_MAX / 8]);
        accounts.give_list(&mut shares[0]);
        assert!(accounts.may_list(&shares[3]) && !accounts.may_list(&shares[1]));
        for mut share in shares {
            accounts.close(&mut share);
        }
        let share = accounts.open(0);
        assert!(accounts.may_list(&share));
        assert_eq!(accounts.lists, 0, "what a connection had ends with it");
    }
}
