//! The Receives of a connection that serves: how many it holds, and the credits that they back.

use stag_fabric::Provider;

use super::Serving;
use crate::ConnectionId;
use crate::config::SPARE_RECEIVES;
use crate::gauges::CreditGauge;
use crate::server::governor::{CLIENT_WEIGHT_USUAL, CreditLedger, FIRST_RECEIVES, ReviewInput};
use crate::state::{Core, EngineState};
use crate::version2::serving::RECEIVES_OWED;

impl Serving {
    /// Posts `count` more Receives, if there is memory for them.
    // `inline(always)`: one turn of the loop for each Call.
    #[inline(always)]
    pub(crate) fn post_receives<P: Provider>(
        &mut self,
        core: &mut Core<P>,
        id: ConnectionId,
        count: u32,
    ) -> bool {
        if self.version2.is_some() {
            return self.post_divided(core, id, count);
        }
        let mut posted = 0;
        // One at any rate; more only while others do not need the memory to answer with.
        while posted < count
            && (posted == 0 || !core.is_short())
            && let Some(buf) = core.pools.messages.take()
            && core.provider.post_receive(id, 0, buf).is_ok()
        {
            posted += 1;
        }
        core.credits.hold(self.account, self.held, self.held + posted);
        self.held += posted;
        self.responder.receives_posted(posted);
        posted == count
    }

    /// Posts `count` more Receives on a connection that may speak version 2, if there is memory for them.
    #[cold]
    fn post_divided<P: Provider>(&mut self, core: &mut Core<P>, id: ConnectionId, count: u32) -> bool {
        let held = self.held;
        let posted =
            self.version2.as_mut().map_or(0, |version2| version2.post_receives(core, id, held, count));
        core.credits.hold(self.account, self.held, self.held + posted);
        self.held += posted;
        self.responder.receives_posted(posted);
        // Without Receives the client has no credit, so no message of its own would lead to another try.
        if self.held < FIRST_RECEIVES && !self.waiting.contains(&RECEIVES_OWED) {
            self.waiting.push_back(RECEIVES_OWED);
        }
        posted == count
    }

    /// Posts the Receives that a connection needs at least, once there is memory again.
    pub(super) fn post_owed<P: Provider>(&mut self, core: &mut Core<P>, id: ConnectionId) {
        let count = FIRST_RECEIVES.saturating_sub(self.held);
        if count > 0 {
            self.post_divided(core, id, count);
        }
    }

    /// A Receive is spent, and its Call over; or it came back without a message: the connection is ending.
    pub(crate) fn receive_gone<P>(&mut self, core: &mut Core<P>) {
        core.credits.hold(self.account, self.held, self.held - 1);
        self.held -= 1;
    }

    /// A Receive came back while the connection ends: without a message, or with one that is ignored.
    #[cold]
    pub(crate) fn receive_lost<P>(&mut self, core: &mut Core<P>) {
        // Which of the two it was does not matter any more.
        if !self.exposing.as_mut().is_some_and(|exposing| exposing.lose_receive()) {
            self.receive_gone(core);
        }
    }

    /// A message's Receive is spent, and its Call over: posts as many as the connection should have now.
    /// Before the Reply's header is made, because the grant in it counts on them (8166-3.3.1-d).
    #[inline]
    pub(crate) fn replenish<P: Provider>(&mut self, core: &mut Core<P>, id: ConnectionId) {
        let wanted = self.wanted(self.responder.credits_requested());
        if self.held == wanted
            && self.version2.is_none()
            && let Some(buf) = core.pools.messages.take()
            && core.provider.post_receive(id, 0, buf).is_ok()
        {
            // One in its stead: it holds as many as before.
            self.responder.receives_posted(1);
        } else {
            self.change_receives(core, id, wanted);
        }
        self.responder.set_credit_limit(self.credit_limit());
    }

    /// The Receive of a message is spent that is answered by no Reply: posts another, however many the connection should have. The
    /// peer has not heard of a lower grant: it keeps the last one that a Reply brought (8166-X-6).
    #[cold]
    pub(super) fn replace_receive<P: Provider>(&mut self, core: &mut Core<P>, id: ConnectionId) {
        self.receive_gone(core);
        self.post_receives(core, id, 1);
        self.responder.set_credit_limit(self.credit_limit());
    }

    /// As [`Serving::replenish`], where the connection should not have as many as before, or cannot.
    #[inline(never)]
    fn change_receives<P: Provider>(&mut self, core: &mut Core<P>, id: ConnectionId, wanted: u32) {
        self.receive_gone(core);
        if self.held < wanted {
            let count = (wanted - self.held).min(core.credits.room(self.held));
            self.post_receives(core, id, count);
            if self.held < wanted {
                let (client, credits) = (self.account.unwrap_or(0), self.held.saturating_sub(SPARE_RECEIVES));
                self.governor.settle(&mut core.credits, client, credits);
            }
        }
    }

    /// How the connection stands with its credits; its caller knows who the client is.
    pub(crate) fn credit_gauge(&self, id: ConnectionId, ledger: &CreditLedger) -> CreditGauge {
        let waiting =
            self.blocked.len() + self.waiting.len() + self.awaiting_memory.len() + self.stalled.len();
        CreditGauge {
            connection: id,
            peer: None,
            client: 0,
            weight: self.account.map_or(CLIENT_WEIGHT_USUAL, |account| ledger.weight(account)),
            requested: self.responder.credits_requested(),
            granted: self.responder.grant().granted(),
            used: self.governor.used(),
            waiting: waiting as u32,
            receives: self.held,
            is_wanting: self.governor.is_wanting(),
        }
    }

    /// Receives that it should hold, if its peer requests this number of credits.
    #[inline(always)]
    pub(super) fn wanted(&self, requested: u32) -> u32 {
        self.governor.limit().min(requested).max(1) + SPARE_RECEIVES
    }

    /// A Call has come: counts it, and sees how many there may be.
    #[inline(always)]
    pub(crate) fn note_arrival(&mut self, state: &mut EngineState) {
        if self.governor.observe(state.pass, self.pending) || !self.governor.is_current(&state.credits) {
            self.review(state);
        }
    }

    #[cold]
    #[inline(never)]
    fn review(&mut self, state: &mut EngineState) {
        let input = ReviewInput {
            client: self.account.unwrap_or(0),
            held: self.held,
            is_obstructed: self.has_waiting(),
            now: state.now,
        };
        self.governor.review(&mut state.credits, &input);
    }

    /// Credits that the connection may be granted now.
    #[inline(always)]
    pub(crate) fn credit_limit(&self) -> u32 {
        // Of what is posted and in process one is the spare: the rest may be granted, and no more.
        self.governor.limit().min(self.held.saturating_sub(SPARE_RECEIVES))
    }
}
