//! Limits of exports in octets per second, for READ and WRITE of all versions.
//!
//! ```text
//! READ  ──▶ passes, or waits in the queue of its export ──▶ runs from its start
//! WRITE ──▶ runs ──▶ its answer passes, or waits in the queue ──▶ the answer
//! ```
//!
//! A READ waits with its arguments, and takes memory when its turn has come. A WRITE has its data in memory already, so it runs at
//! once, and its answer waits: a client is ahead of the limit by no more than the WRITEs that it may have under way. If the queue is
//! full, both are told to try again. Metadata never waits for a limit.
//!
//! The answer to a WRITE waits also when its connection is gone. Else a client could write beyond the limit by not waiting for answers. The
//! READs of a connection that ended are dropped.

use std::time::Duration;

use stag_fabric::Peer;
use stag_rpc::{ConnectionId, owner};
use stag_vfs::{FsError, Store, Timestamp};

use super::rerun::Answered;
use super::transfer::AnsweredTransfer;
use super::waiting::{Pending, PendingCall, Stage};
use super::{ExportTable, ResolvedHandle};

/// Transfers of one export that go on in a pass at most.
const TURNS_MAX: usize = 64;

/// What a transfer takes of the limits of its export. Boxed where it waits: most Calls pass no limit.
#[derive(Debug)]
pub(super) struct RateTurn {
    /// The place of its export.
    pub(super) share: usize,
    pub(super) client: u128,
    pub(super) octets: u32,
    /// The connection that it ends with.
    pub(super) connection: Option<ConnectionId>,
    /// Since when it waits.
    pub(super) since: Duration,
}

/// Why a transfer does not begin.
#[derive(Debug)]
pub(super) enum Limited {
    /// It has to wait for its turn.
    Waits(Box<RateTurn>),
    /// The queue has no room for it.
    Full,
}

impl<S: Store + ?Sized> ExportTable<S> {
    /// Whether READ and WRITE of an object's export have limits.
    #[inline(always)]
    pub(super) fn is_limited(&self, opened: &ResolvedHandle) -> bool {
        self.shares[opened.share].rated().is_some()
    }

    /// Takes the octets of a READ of this range, at an export that has limits. `connection` is the one that it ends with.
    #[cold]
    pub(super) fn limit_read(
        &mut self,
        opened: &ResolvedHandle,
        peer: Option<&Peer>,
        (offset, count): (u64, u32),
        connection: Option<ConnectionId>,
        now: Duration,
    ) -> Result<(), Limited> {
        let share = &mut self.shares[opened.share];
        // What lies behind the end is not read, as far as that is known.
        let size = share.volume().store().stat_seen(opened.object).map_or(u64::MAX, |seen| seen.size);
        let octets = u64::from(count).min(size.saturating_sub(offset)) as u32;
        let client = owner(peer);
        let Some(rated) = share.rated_mut() else { return Ok(()) };
        if rated.pass(client, octets, now) {
            return Ok(());
        }
        if rated.is_full(client) {
            return Err(Limited::Full);
        }
        let turn = RateTurn { share: opened.share, client, octets, connection, since: now };
        Err(Limited::Waits(Box::new(turn)))
    }

    /// Whether the answer to a WRITE of this client would find no room to wait, at an export that has limits.
    #[cold]
    pub(super) fn refuses_write(&self, opened: &ResolvedHandle, client: u128) -> bool {
        self.shares[opened.share].rated().is_some_and(|rated| rated.is_full(client))
    }

    /// Takes the octets of a WRITE that was done. Returns what its answer waits for, if it has to.
    #[cold]
    pub(super) fn limit_write(
        &mut self,
        share: usize,
        client: u128,
        octets: u32,
        now: Duration,
    ) -> Option<Box<RateTurn>> {
        let rated = self.shares[share].rated_mut()?;
        let waits = !rated.pass(client, octets, now);
        waits.then(|| Box::new(RateTurn { share, client, octets, connection: None, since: now }))
    }

    /// Lets a Call wait for its turn.
    pub(super) fn queue(&mut self, turn: &RateTurn, call: PendingCall) {
        match self.shares[turn.share].rated_mut() {
            Some(rated) => rated.push(turn.client, turn.octets, call, turn.since),
            // The limits are gone.
            None => self.take_turn(call, turn.since, Timestamp::default()),
        }
    }

    /// Takes note of whether an export has limits.
    pub(super) fn note_limits(&mut self) {
        self.has_limits = self.shares.iter().any(|share| share.rated().is_some());
    }

    /// Whether the turn of a Call has come.
    #[inline]
    pub(super) fn has_turn(&self, now: Duration) -> bool {
        self.has_limits && self.next_turn_due().is_some_and(|due| due <= now)
    }

    /// When the turn of the next Call has come.
    #[inline]
    pub(super) fn next_turn_due(&self) -> Option<Duration> {
        if !self.has_limits {
            return None;
        }
        self.first_turn_due()
    }

    #[cold]
    fn first_turn_due(&self) -> Option<Duration> {
        self.shares.iter().filter_map(|share| share.rated()?.next_due()).min()
    }

    /// Goes on with the Calls whose turn has come.
    #[cold]
    pub(super) fn take_turns(&mut self, now: Duration, time: Timestamp) {
        for place in 0..self.shares.len() {
            for _ in 0..TURNS_MAX {
                let Some(call) = self.shares[place].next_turn(now) else { break };
                self.take_turn(call, now, time);
            }
        }
        self.note_limits();
    }

    fn take_turn(&mut self, call: PendingCall, now: Duration, time: Timestamp) {
        let PendingCall { mut waiter, pending, .. } = call;
        waiter.end_wait(Stage::Limit, now);
        match pending {
            Pending::Compound(suspended) => self.waiting.add_turned(waiter.token, suspended),
            Pending::Answered(answered) => self.waiting.add_answered(waiter, answered),
            Pending::Again(again) => {
                let next = again.run(self, time);
                self.follow(waiter, next, now);
            }
            Pending::Acting(_) | Pending::Transfer(_) | Pending::Changed(_) | Pending::Lock(_) => {
                debug_assert!(false, "what a store is at has no turn to wait for");
            }
        }
    }

    /// A connection ended: drops the READs of version 3 that wait for a limit and came over it.
    pub(super) fn drop_limited(&mut self, is_ended: impl Fn(ConnectionId) -> bool) {
        if !self.has_limits {
            return;
        }
        let shares = self.shares.iter_mut().filter_map(|share| share.rated_mut());
        let dropped = shares.flat_map(|rated| rated.remove(|call| call.connection.is_some_and(&is_ended)));
        let dropped: Vec<_> = dropped.collect();
        for PendingCall { waiter, .. } in dropped {
            let done = Err(FsError::Busy);
            let nothing = AnsweredTransfer::Read { done, after: None, pieces: Vec::new() };
            self.waiting.add_answered(waiter, Answered::Transfer(nothing));
        }
    }
}
