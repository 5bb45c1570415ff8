//! Connections that end, and Calls that outlive them.

use super::{EndedCall, Offer, Parameters, Requester, RequesterCallId, State, Window};

impl Requester {
    /// The connection is gone: every posted buffer came back, and the peer can touch nothing any more.
    /// Tells `each` outstanding Call its outcome, and forgets them all. No Call begins after this.
    pub fn handle_disconnect(&mut self, mut each: impl FnMut(RequesterCallId, EndedCall)) {
        self.handle_interruption(|call, outcome| {
            each(call, outcome);
            false
        });
    }

    /// As [`Requester::handle_disconnect`], but there may be a new connection to the same Responder: a Call for
    /// which `each` returns `true` is kept, with its xid, and sent again there ([`Requester::resume`]). That can only
    /// be one that left without a Reply, or did not leave: any other is over (8166-4.5-d).
    pub fn handle_interruption(&mut self, mut each: impl FnMut(RequesterCallId, EndedCall) -> bool) {
        self.connected = false;
        for index in 0..self.slots.len() as u32 {
            let slot = &mut self.slots[index as usize];
            let state = slot.state;
            if state == State::Free {
                continue;
            }
            let (call, outcome) = (RequesterCallId { xid: slot.xid, index }, slot.outcome);
            if matches!(state, State::Building | State::Sent | State::Cancelled) {
                self.window.give_back();
            }
            slot.offer = Offer::default();
            let keeps = each(call, outcome);
            let may_be_kept = match state {
                State::Building | State::Sent | State::Interrupted => true,
                // A cancelled one is over; any other is sent again.
                State::Pulling => outcome != EndedCall::Cancelled,
                State::Free | State::Cancelled | State::Fencing => false,
            };
            if keeps && may_be_kept {
                let slot = &mut self.slots[index as usize];
                slot.state = State::Interrupted;
                slot.left = outcome == EndedCall::MaybeExecuted;
            } else {
                self.free(index);
            }
        }
    }

    /// There is a new connection, on which this was agreed. It starts with one credit, as every one does
    /// (8166-3.3.3-a).
    ///
    /// # Panics
    ///
    /// When the old one is not gone.
    pub fn handle_reconnect(&mut self, parameters: Parameters) {
        assert!(!self.connected, "one connection at a time");
        self.parameters = parameters;
        self.window = Window::new(self.window.requested());
        self.connected = true;
        self.pull_len_max = 0;
    }

    /// Goes on with a Call that [`Requester::handle_interruption`] kept: it is in the making again, and is emitted
    /// and sent with new handles. `false`: there is no credit for it now.
    pub fn resume(&mut self, call: RequesterCallId) -> bool {
        if !self.connected || self.state(call) != Some(State::Interrupted) || !self.window.take() {
            return false;
        }
        self.slots[call.index()].state = State::Building;
        true
    }

    /// Undoes [`Requester::resume`]: the Call was not emitted again, and waits for another time.
    pub fn postpone(&mut self, call: RequesterCallId) {
        if self.state(call) == Some(State::Building) {
            self.window.give_back();
            self.slots[call.index()].state = State::Interrupted;
        }
    }
}
