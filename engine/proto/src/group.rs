//! Transmission groups as their receiver sees them (rtrext, section 7): one message in several Sends.
//!
//! ```text
//!            first of one                      last one
//!  None ──────────────────▶ whole    Open ──────────────────▶ whole, None
//!   │  first of n                     ▲ │ next one: stays Open
//!   └─────────────────────────────────┘ │ anything else: an XMTERR, Refused
//!                                       ▼
//!                                    Refused: the rest of that group is dropped
//! ```
//!
//! One [`GroupReceiver`] for each direction of a connection (RTR-4.2-a). It holds no octets: it says where in the Payload stream
//! each part belongs, and the driver keeps them. A group that breaks off gets one XMTERR; the rest of it is dropped without
//! another, because the peer posted Receives for one answer (RTR-X-19).

use stag_wire::rpcrdma2::{Continuation, GroupFault, MessageType, TransmissionError, TransmissionId, option};

/// A group of which transmissions are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Open {
    xid: u32,
    count: u32,
    next: u32,
    /// Octets of the Payload stream so far.
    len: u32,
}

/// The first transmission of a group, as its operation says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lead {
    /// The group's xid.
    pub xid: u32,
    /// Its transmissions, at least 1.
    pub count: u32,
    /// Octets of the Payload stream in this one.
    pub payload_len: u32,
}

/// A part of a message's Payload stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessagePart {
    /// The message's xid.
    pub xid: u32,
    /// The transmission's number, from 0.
    pub number: u32,
    /// Where the part belongs in the Payload stream.
    pub at: u32,
    /// Octets of the part: those behind the operation.
    pub len: u32,
    /// Whether the message is whole with it.
    pub is_last: bool,
}

/// What a transmission meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Transmitted {
    /// Another part of a message.
    Part(MessagePart),
    /// An error: it is sent back as XMTERR. Whatever came of its group is forgotten.
    Fault(TransmissionError),
    /// The rest of a group that was refused.
    Dropped,
}

/// The transmissions of one direction of a connection, as they are received.
#[derive(Clone, Copy, Debug)]
pub struct GroupReceiver {
    direction: MessageType,
    open: Option<Open>,
    /// The xid of a group that was refused, while the rest of it may come.
    refused: Option<u32>,
    payload_len_max: u32,
}

impl GroupReceiver {
    /// Of Calls, or of Replies. `payload_len_max`: octets of the longest Payload stream that is taken.
    #[must_use]
    pub fn new(direction: MessageType, payload_len_max: u32) -> Self {
        Self { direction, open: None, refused: None, payload_len_max }
    }

    /// Returns the xid of the group that is incomplete, and the octets of its Payload stream so far.
    #[must_use]
    pub fn open(&self) -> Option<(u32, u32)> {
        self.open.map(|open| (open.xid, open.len))
    }

    /// Whether no group is incomplete, and nothing is left to come of one that was refused.
    #[inline]
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.open.is_none() && self.refused.is_none()
    }

    /// Takes in the first transmission of a group. An incomplete one before it must have been ended with
    /// [`GroupReceiver::handle_other`].
    ///
    /// `count_max`: transmissions that this end takes: of a Call its characteristic 6, of a Reply one more than it told
    /// Receives for (RTR-5.2-b). `room`: octets behind the operation.
    ///
    /// # Panics
    ///
    /// When a group is incomplete.
    pub fn handle_lead(&mut self, lead: &Lead, count_max: u32, room: u32) -> Transmitted {
        assert!(self.open.is_none(), "an incomplete group is ended first");
        self.refused = None;
        let Lead { xid, count, payload_len } = *lead;
        if count > count_max || count == 0 {
            // RTR-X-7
            return self.refuse(xid, 0, None, GroupFault::Number { expected: count_max, found: count });
        }
        if let Err(fault) = self.check_len(payload_len, room, 0) {
            return self.refuse(xid, 0, None, fault);
        }
        let is_last = count == 1;
        if !is_last {
            self.open = Some(Open { xid, count, next: 1, len: payload_len });
        }
        Transmitted::Part(MessagePart { xid, number: 0, at: 0, len: payload_len, is_last })
    }

    /// Takes in a further transmission. `xid` is that of its header.
    pub fn handle_continuation(&mut self, xid: u32, found: &Continuation, room: u32) -> Transmitted {
        let number = found.number;
        let Some(mut open) = self.open.take() else {
            return match self.refused {
                Some(refused) if refused == xid => Transmitted::Dropped,
                _ => self.refuse(xid, number, None, GroupFault::NoGroup),
            };
        };
        let lead = Some(open.xid);
        let lead_option = self.lead_option();
        if xid != open.xid {
            // What is left of either is not wanted; the one that was begun is more likely to go on.
            let fault = GroupFault::Xid { expected: open.xid, found: xid };
            let refused = self.refuse(xid, number, lead, fault);
            self.refused = lead;
            return refused;
        }
        if found.lead_option != lead_option {
            let fault = GroupFault::Option { expected: lead_option, found: found.lead_option };
            return self.refuse(xid, number, lead, fault);
        }
        if number != open.next {
            return self.refuse(xid, number, lead, GroupFault::Number { expected: open.next, found: number });
        }
        if let Err(fault) = self.check_len(found.payload_len, room, open.len) {
            return self.refuse(xid, number, lead, fault);
        }
        let part = MessagePart {
            xid,
            number,
            at: open.len,
            len: found.payload_len,
            is_last: open.next + 1 == open.count,
        };
        if !part.is_last {
            open.next += 1;
            open.len += found.payload_len;
            self.open = Some(open);
        }
        Transmitted::Part(part)
    }

    /// A message of this direction came that is no continuation: an RDMA2_OPTIONAL with another operation, or a message with
    /// another procedure. Returns the error to send if it came into the midst of a group; the message is then treated as if
    /// there had been none.
    pub fn handle_other(&mut self, xid: u32, other: Interruption) -> Option<TransmissionError> {
        let open = self.open.take()?;
        self.refused = Some(open.xid);
        let fault = match other {
            Interruption::Option(found) => GroupFault::Option { expected: option::XMTCONT, found },
            Interruption::Procedure(found) => {
                GroupFault::Procedure { expected: stag_wire::rpcrdma2::procedure::OPTIONAL, found }
            }
        };
        Some(self.error(xid, 0, Some(open.xid), fault))
    }

    /// The connection is gone.
    pub fn handle_disconnect(&mut self) {
        (self.open, self.refused) = (None, None);
    }

    /// Says what is wrong with the first transmission of a group that is whole.
    #[must_use]
    pub fn fault_of_lead(&self, xid: u32, fault: GroupFault) -> TransmissionError {
        self.error(xid, 0, None, fault)
    }

    /// The operation that starts a group of this direction.
    fn lead_option(&self) -> u32 {
        match self.direction {
            MessageType::Call => option::XMTREQ,
            MessageType::Reply => option::XMTRESP,
        }
    }

    /// Checks that a part is in its Send, and that the stream does not become too long.
    fn check_len(&self, len: u32, room: u32, before: u32) -> Result<(), GroupFault> {
        let max = room.min(self.payload_len_max - before);
        if len > max { Err(GroupFault::PayloadLength { value: len, min: 0, max }) } else { Ok(()) }
    }

    fn refuse(&mut self, xid: u32, number: u32, lead: Option<u32>, fault: GroupFault) -> Transmitted {
        self.refused = Some(xid);
        Transmitted::Fault(self.error(xid, number, lead, fault))
    }

    fn error(&self, xid: u32, number: u32, lead: Option<u32>, fault: GroupFault) -> TransmissionError {
        let direction = self.direction;
        let lead = lead.map(|xid| TransmissionId { xid, direction, number: 0 });
        TransmissionError { bad: TransmissionId { xid, direction, number }, lead, fault }
    }
}

/// What came in the midst of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// An RDMA2_OPTIONAL with this operation.
    Option(u32),
    /// A message with this procedure.
    Procedure(u32),
}
