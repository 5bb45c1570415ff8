//! Which of an end's two roles a message is for, where Calls go both ways on one connection (RFC 8167).
//!
//! The message decides, not which end connected: the msg_type of an inline Payload stream, and the chunks of a long one (8167
//! section 2). An xid alone says nothing: both directions may use the same one at the same time (8167-2.4-a).

use stag_wire::rpcrdma::{Direction, Done, Fixed, Header, HeaderError, MessageProcedure, procedure};

use crate::plain;

/// What an end does on its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// It takes Calls: a service has been registered, and the peer was told so (8167-6-a).
    pub responds: bool,
    /// It exposes Replies, and takes RDMA_DONE (RR-P-2).
    pub exposes_replies: bool,
    /// It pulls Replies that the peer exposes: an RDMA_NOMSG with a Position Zero Read chunk is one (RR-X-1).
    pub pulls_replies: bool,
}

/// Whom a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipient {
    /// The Requester: a Reply, or an RDMA_ERROR, which always answers a Call of ours (8167-D-1).
    Requester,
    /// The Responder: a Call, or what it has to answer with an RDMA_ERROR.
    Responder,
    /// The Responder's exposed Replies: an RDMA_DONE.
    Exposed(Done),
    /// The message is dropped, and its Receive is posted again.
    Dropped(Stray),
}

/// Why a message is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stray {
    /// A Call to an end that takes none (8167-6-a).
    NoService,
    /// An RDMA_DONE where no Replies are exposed (RR-P-1).
    NotAgreed,
    /// It cannot be read, and may be the Reply to a Call of ours: an RDMA_ERROR would end a Call of the peer that has the same
    /// xid by chance (8167-X-1).
    Unreadable(HeaderError),
    /// It is neither a Call nor a Reply.
    NoDirection,
}

impl Recipient {
    /// Returns whom `message` is for. `has_call` tells whether a Call of ours with an xid waits for its Reply
    /// ([`Requester::has_call`](crate::requester::Requester::has_call)); it is called only for messages that cannot be read.
    #[inline]
    #[must_use]
    pub fn of(message: &[u8], roles: &Roles, has_call: impl FnOnce(u32) -> bool) -> Recipient {
        let found = if plain::parse(message, plain::REPLY).is_some() {
            Recipient::Requester
        } else if plain::parse(message, plain::CALL).is_some() {
            Recipient::Responder
        } else {
            Recipient::of_any(message, roles, has_call)
        };
        match found {
            Recipient::Responder if !roles.responds => Recipient::Dropped(Stray::NoService),
            found => found,
        }
    }

    fn of_any(message: &[u8], roles: &Roles, has_call: impl FnOnce(u32) -> bool) -> Recipient {
        let (header, payload) = match Header::parse(message) {
            Ok(parts) => parts,
            Err(error) => return Recipient::of_unreadable(message, roles, error, has_call),
        };
        let is_exposed = header.procedure() == MessageProcedure::Nomsg && header.has_position_zero();
        if is_exposed && roles.pulls_replies {
            return Recipient::Requester;
        }
        match header.direction(payload) {
            Some(Direction::Call) => Recipient::Responder,
            Some(Direction::Reply | Direction::Error) => Recipient::Requester,
            // A Payload stream without a msg_type is answered, as version 1 says, where it can only be a Call.
            None if header.procedure() == MessageProcedure::Msg
                && !has_call(header.xid())
                && payload.len() < 8 =>
            {
                Recipient::Responder
            }
            None => Recipient::Dropped(Stray::NoDirection),
        }
    }

    fn of_unreadable(
        message: &[u8],
        roles: &Roles,
        error: HeaderError,
        has_call: impl FnOnce(u32) -> bool,
    ) -> Recipient {
        if error == HeaderError::Done {
            return match Done::parse(message) {
                Some(done) if roles.exposes_replies => Recipient::Exposed(done),
                _ => Recipient::Dropped(Stray::NotAgreed),
            };
        }
        let Ok((fixed, _)) = Fixed::parse(message) else {
            return Recipient::Dropped(Stray::Unreadable(error));
        };
        // An error is never answered, and one that cannot be decoded ends nothing (8166-4.5-e).
        if fixed.procedure == procedure::ERROR || has_call(fixed.xid) {
            return Recipient::Dropped(Stray::Unreadable(error));
        }
        Recipient::Responder
    }
}
