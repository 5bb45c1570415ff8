//! Credits (8166-3.3): how many Calls may be in flight, seen from either end.
//!
//! Plain numbers, one owner each: a [`Window`] in the Requester, a [`Grant`] in the Responder. The invariants
//! of both are in `check`, which debug builds call after each change.
//!
//! ```text
//!          Requester                                      Responder
//!   Window { requested, granted,        Call: requested       Grant { limit, receives,
//!            in_flight }            ─────────────────────▶            in_process, granted, ceiling }
//!   in_flight <= min(requested,     ◀─────────────────────    granted <= receives + in_process
//!                    granted)           Reply: granted        1 <= granted <= limit
//! ```

/// The Requester's side: how many more Calls it may send.
///
/// A grant that shrinks below what is in flight stops new Calls until enough Replies have come
/// (8166-3.3.1-d); it takes nothing back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    requested: u32,
    granted: u32,
    in_flight: u32,
}

impl Window {
    /// A new connection's window: one credit, whatever is requested (8166-3.3.3-a). A request for 0 is a
    /// request for 1 (8166-X-8).
    #[must_use]
    pub fn new(requested: u32) -> Self {
        Self { requested: requested.max(1), granted: 1, in_flight: 0 }
    }

    /// Credits to request in the next Call.
    #[inline]
    #[must_use]
    pub fn requested(&self) -> u32 {
        self.requested
    }

    /// The grant in force.
    #[inline]
    #[must_use]
    pub fn granted(&self) -> u32 {
        self.granted
    }

    /// Calls sent whose Reply has not come.
    #[inline]
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Calls that may be sent now: `min(requested, granted) - in_flight` (8166-3.3.1-b).
    #[inline]
    #[must_use]
    pub fn available(&self) -> u32 {
        self.requested.min(self.granted).saturating_sub(self.in_flight)
    }

    /// Changes what the next Calls request.
    pub fn set_requested(&mut self, requested: u32) {
        self.requested = requested.max(1);
    }

    /// Takes one credit for a Call. `false`: there is none.
    #[inline]
    pub fn take(&mut self) -> bool {
        let available = self.available() > 0;
        self.in_flight += u32::from(available);
        available
    }

    /// Gives back the credit of a Call that was answered, or never sent.
    #[inline]
    pub fn give_back(&mut self) {
        assert!(self.in_flight > 0, "a credit is given back once for each that was taken");
        self.in_flight -= 1;
    }

    /// Takes `count` credits more for a Call of several transmissions (RTR-4.3-a). `false`: they are not there, and none is
    /// taken.
    pub fn take_more(&mut self, count: u32) -> bool {
        let is_there = self.available() >= count;
        self.in_flight += if is_there { count } else { 0 };
        is_there
    }

    /// Takes in the grant of a valid Reply. 0 counts as 1 (8166-X-7).
    #[inline]
    pub fn handle_grant(&mut self, granted: u32) {
        self.granted = granted.max(1);
    }
}

/// The Responder's side: how many Calls it lets the peer have in flight.
///
/// A grant is a promise that each of those Calls finds a posted Receive, so it follows the Receives: it
/// rises only after they are posted (8166-3.3.1-d), and a Call in process counts because its own Receive
/// is posted again before its Reply is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    slots: u32,
    limit: u32,
    receives: u32,
    in_process: u32,
    granted: u32,
    ceiling: u32,
}

impl Grant {
    /// No Receive posted yet; the peer assumes one credit (8166-3.3.3-a).
    ///
    /// `slots` is how many Calls can be in process at once: no grant exceeds it.
    #[must_use]
    pub fn new(slots: u32) -> Self {
        assert!(slots > 0, "a Responder needs at least one slot");
        Self { slots, limit: slots, receives: 0, in_process: 0, granted: 1, ceiling: 1 }
    }

    /// The grant that the last message to the peer carried; 1 before the first.
    #[inline]
    #[must_use]
    pub fn granted(&self) -> u32 {
        self.granted
    }

    /// The largest grant ever given on this connection: a peer that keeps to the rules never has more
    /// Calls in flight, even when it has not seen yet that the grant shrank.
    #[inline]
    #[must_use]
    pub fn ceiling(&self) -> u32 {
        self.ceiling
    }

    /// Calls received and not answered.
    #[inline]
    #[must_use]
    pub fn in_process(&self) -> u32 {
        self.in_process
    }

    /// Receives posted for this role's messages, and not consumed.
    #[inline]
    #[must_use]
    pub fn receives(&self) -> u32 {
        self.receives
    }

    /// Bounds the grants to come. 0 counts as 1; more than the slots counts as the slots.
    #[inline]
    pub fn set_limit(&mut self, limit: u32) {
        // Not `clamp`, which is a call: there is one slot at least.
        self.limit = limit.min(self.slots).max(1);
    }

    /// `count` Receives were posted.
    #[inline]
    pub fn receives_posted(&mut self, count: u32) {
        self.receives = self.receives.saturating_add(count);
    }

    /// A message took a posted Receive.
    #[inline]
    pub fn receive_consumed(&mut self) {
        self.receives = self.receives.saturating_sub(1);
    }

    /// Starts a Call. `false`: the peer has no credit for it.
    #[inline]
    #[must_use]
    pub fn start(&mut self) -> bool {
        let allowed = self.in_process < self.ceiling;
        self.in_process += u32::from(allowed);
        debug_assert!(self.check(), "{self:?}");
        allowed
    }

    /// The grant to put in a message that goes out now. Remembers it.
    ///
    /// The Receive of the message that this answers counts, because it is posted again before the answer is
    /// sent: ask before [`Grant::finish`], or with `refused` when the message never became a Call in process.
    #[inline]
    pub fn renew(&mut self, refused: bool) -> u32 {
        let covered = self.receives.saturating_add(self.in_process).saturating_add(u32::from(refused));
        self.granted = self.limit.min(covered).max(1);
        self.ceiling = self.ceiling.max(self.granted);
        debug_assert!(self.check(), "{self:?}");
        self.granted
    }

    /// Starts a Call and ends it, in one step: returns the grant of its Reply, under a new bound. `None`: the peer has no credit
    /// for it.
    ///
    /// As [`Grant::start`], [`Grant::set_limit`], [`Grant::renew`] and [`Grant::finish`].
    #[inline(always)]
    #[must_use]
    pub fn answer_at_once(&mut self, limit: u32) -> Option<u32> {
        if self.in_process >= self.ceiling {
            return None;
        }
        self.set_limit(limit);
        self.granted = self.limit.min(self.receives.saturating_add(self.in_process + 1)).max(1);
        self.ceiling = self.ceiling.max(self.granted);
        debug_assert!(self.check(), "{self:?}");
        Some(self.granted)
    }

    /// Ends a Call.
    #[inline]
    pub fn finish(&mut self) {
        assert!(self.in_process > 0, "a Call ends once");
        self.in_process -= 1;
    }

    /// Whether what must always hold does: never 0 (8166-3.3.1-c), never more than the slots, and no more
    /// Calls in process than were ever allowed.
    #[must_use]
    pub fn check(&self) -> bool {
        self.granted >= 1
            && self.granted <= self.ceiling
            && self.ceiling <= self.slots
            && self.limit <= self.slots
            && self.in_process <= self.ceiling
    }
}
