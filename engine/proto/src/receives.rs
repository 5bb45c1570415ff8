//! Receives of an end whose connection carries Calls both ways (RFC 8167): how many are posted, and what for.
//!
//! Receives have no type: each message takes the next one. So what counts is their number: a Receive must be posted for every
//! message that the peer is entitled to send, in both directions together (8167-4.3-a, 8167-4.3-b).
//!
//! ```text
//!   entitled = Replies to our Calls in flight + Calls that the peer has credits for + RDMA_DONEs that it owes us
//!   posted  >= entitled, but for what `missing` says
//! ```
//!
//! Plain numbers, one owner. The driver takes a Receive for a purpose before it sends the message that entitles the peer to use
//! it, and names the purpose of each message that arrives. A peer that sends a message without being entitled takes a Receive
//! of another purpose: [`Receives::missing`] says how many have to be posted before anything else is sent.

/// What a Receive is posted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceivePurpose {
    /// The Reply to a Call of ours, or the RDMA_ERROR that ends it; a cancelled Call still waits for it.
    Reply,
    /// A Call of the peer, for which it has a credit.
    Call,
    /// An RDMA_DONE for a Reply that we exposed (RR-P-8).
    Done,
}

/// The Receives of one connection's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receives {
    /// Posted, and taken by no message.
    posted: u32,
    /// Promised to messages, by purpose.
    replies: u32,
    calls: u32,
    dones: u32,
}

impl Receives {
    /// Of a new connection: nothing is posted.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns how many are posted and taken by no message.
    #[inline]
    #[must_use]
    pub fn posted(&self) -> u32 {
        self.posted
    }

    /// Returns how many are promised for one purpose.
    #[inline]
    #[must_use]
    pub fn promised(&self, purpose: ReceivePurpose) -> u32 {
        match purpose {
            ReceivePurpose::Reply => self.replies,
            ReceivePurpose::Call => self.calls,
            ReceivePurpose::Done => self.dones,
        }
    }

    /// Returns the messages that the peer may send now.
    #[inline]
    #[must_use]
    pub fn entitled(&self) -> u32 {
        self.replies + self.calls + self.dones
    }

    /// Returns how many are posted for no purpose yet.
    #[inline]
    #[must_use]
    pub fn free(&self) -> u32 {
        self.posted.saturating_sub(self.entitled())
    }

    /// Returns how many have to be posted before anything else is sent: a peer broke its credits, and took what was
    /// promised to other messages.
    #[inline]
    #[must_use]
    pub fn missing(&self) -> u32 {
        self.entitled().saturating_sub(self.posted)
    }

    /// `count` Receives were posted.
    #[inline]
    pub fn post(&mut self, count: u32) {
        self.posted = self.posted.saturating_add(count);
    }

    /// Promises up to `count` free Receives to one purpose, and returns how many.
    ///
    /// One Reply before each Call is sent (8166-3.3.1-e); Calls before the message that grants their credits, which
    /// [`Responder::receives_posted`](crate::responder::Responder::receives_posted) counts; an RDMA_DONE before a Reply is
    /// exposed.
    #[inline]
    #[must_use]
    pub fn promise(&mut self, purpose: ReceivePurpose, count: u32) -> u32 {
        let count = count.min(self.free());
        *self.promised_mut(purpose) += count;
        count
    }

    /// Takes back promises that the peer was not told of: a Call that was not sent.
    ///
    /// # Panics
    ///
    /// When more are taken back than were given.
    #[inline]
    pub fn withdraw(&mut self, purpose: ReceivePurpose, count: u32) {
        let promised = self.promised_mut(purpose);
        assert!(*promised >= count, "a Receive is withdrawn once for each that was promised");
        *promised -= count;
    }

    /// A message took a Receive. `None`, and a purpose that nothing was promised for: the peer was not entitled to it.
    /// `false`: so it was.
    #[inline]
    pub fn consume(&mut self, purpose: Option<ReceivePurpose>) -> bool {
        self.posted = self.posted.saturating_sub(1);
        let Some(promised) = purpose.map(|purpose| self.promised_mut(purpose)) else { return false };
        let is_entitled = *promised > 0;
        *promised -= u32::from(is_entitled);
        is_entitled
    }

    /// The connection is gone: all Receives came back, and no promise holds any more (8167-4.3-c).
    pub fn handle_disconnect(&mut self) {
        *self = Self::default();
    }

    #[inline]
    fn promised_mut(&mut self, purpose: ReceivePurpose) -> &mut u32 {
        match purpose {
            ReceivePurpose::Reply => &mut self.replies,
            ReceivePurpose::Call => &mut self.calls,
            ReceivePurpose::Done => &mut self.dones,
        }
    }
}
