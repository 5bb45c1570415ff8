//! Transmission groups as their sender sees them (rtrext): one message in several Sends, and nothing between them.
//!
//! ```text
//!         begin                  next_transmission: the last one
//!  Idle ─────────▶ Sending ──────────────────────────────────▶ Idle
//!   ▲                │ ▲ next_transmission: another one
//!   │                └─┘
//!   └────────────────┘ abandon, or the peer's XMTERR
//! ```
//!
//! One [`GroupSender`] for each direction of a connection (RTR-4.2-a): while a group is open, no other message of its direction
//! is sent. It never waits for the peer, because the credits or Receives of all its transmissions are there before it begins
//! (RTR-4.3-a). An abandoned group ends with the next message that is sent; the peer then sends an XMTERR that has the abandoned
//! one as its lead.

use stag_wire::rpcrdma2::{MessageType, TransmissionError};

/// A group of which transmissions were not sent yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unfinished {
    xid: u32,
    count: u32,
    next: u32,
}

/// What the peer's XMTERR means to the sender of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum SendingFault {
    /// The group that is being sent is refused: the rest of it is not sent.
    Stopped {
        /// The group.
        xid: u32,
        /// Transmissions that were not sent.
        unsent: u32,
    },
    /// A group that was sent is refused, if there was one. An end that knows no message of this xid drops the error
    /// (RTR-X-12).
    Sent {
        /// The group.
        xid: u32,
    },
    /// It is about the other direction: dropped (RTR-X-17).
    OtherDirection,
}

/// The groups of one direction, as they are sent.
#[derive(Clone, Copy, Debug)]
pub struct GroupSender {
    direction: MessageType,
    unfinished: Option<Unfinished>,
}

impl GroupSender {
    /// Of Calls, or of Replies.
    #[must_use]
    pub fn new(direction: MessageType) -> Self {
        Self { direction, unfinished: None }
    }

    /// Returns the xid of the group that is being sent: no other message of this direction may be sent.
    #[must_use]
    pub fn open(&self) -> Option<u32> {
        self.unfinished.map(|group| group.xid)
    }

    /// Begins a group of `count` transmissions.
    ///
    /// # Panics
    ///
    /// When another is being sent, or `count` is 0.
    pub fn begin(&mut self, xid: u32, count: u32) {
        assert!(self.unfinished.is_none(), "one group after the other");
        assert!(count > 0, "a group has at least one transmission");
        self.unfinished = Some(Unfinished { xid, count, next: 0 });
    }

    /// Returns the number of the transmission to send now. It counts as sent. `None`: no group is open.
    pub fn next_transmission(&mut self) -> Option<u32> {
        let group = self.unfinished.as_mut()?;
        let number = group.next;
        group.next += 1;
        if group.next == group.count {
            self.unfinished = None;
        }
        Some(number)
    }

    /// Gives up the group that is being sent. Returns the number of its transmissions that were not sent.
    pub fn abandon(&mut self) -> u32 {
        self.unfinished.take().map_or(0, |group| group.count - group.next)
    }

    /// Takes in an XMTERR. It is about its lead, if it has one: the bad transmission may be of another message, which the peer
    /// has treated normally.
    pub fn handle_error(&mut self, error: &TransmissionError) -> SendingFault {
        let id = error.lead.unwrap_or(error.bad);
        if error.bad.direction != self.direction || id.direction != self.direction {
            return SendingFault::OtherDirection;
        }
        match self.unfinished {
            Some(group) if group.xid == id.xid => {
                SendingFault::Stopped { xid: id.xid, unsent: self.abandon() }
            }
            _ => SendingFault::Sent { xid: id.xid },
        }
    }

    /// The connection is gone.
    pub fn handle_disconnect(&mut self) {
        self.unfinished = None;
    }
}
