//! Which of an end's two roles a message is for, where Calls go both ways on one connection (RFC 8167).
//!
//! The message decides, not which end connected: the msg_type of an inline Payload stream, and the chunks of a long one (8167
//! section 2). An xid alone says nothing: both directions may use the same one at the same time (8167-2.4-a).
//!
//! In version 2 a word of the header says it ([`Recipient::of_version2`]).

use stag_wire::rpcrdma::{self, Direction, Done, Fixed, Header, HeaderError, MessageProcedure, procedure};
use stag_wire::rpcrdma2::{Answer2, Body2, Error2, Header2, MessageType, OptionMessage, option};

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
    /// The role that this end has had since the connection was opened: the Requester of the end that opened it, the Responder of
    /// the other one. In version 2 only.
    First,
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

    /// Returns whom a message is for on a connection that speaks version 2: its direction word says so (V2-3.2-a), and an error
    /// always is a Responder's (V2-4.2.2-c). `has_call` as in [`Recipient::of`]: it is called only for messages without a direction
    /// (8167-X-1). Whether the Payload stream says the same (V2-4.2.2-b), and whether the rest can be read, its recipient sees.
    ///
    /// What a peer tells of itself belongs to neither direction, whatever its word is (XC-X-7): it is for [`Recipient::First`],
    /// which has Receives for it (XC-X-1). So is a message of version 1, as it is one from before version 2 was agreed on.
    #[must_use]
    pub fn of_version2(message: &[u8], has_call: impl FnOnce(u32) -> bool) -> Recipient {
        if message.get(4..8).is_none_or(|version| version == rpcrdma::VERSION.to_be_bytes()) {
            return Recipient::First;
        }
        let header = match Header2::parse(message) {
            Ok((header, _)) => header,
            // A Reply, or too short for any direction: the Requester drops it.
            Err(refused) if refused.answer == Answer2::Drop => return Recipient::Requester,
            Err(refused) => {
                let has_direction = !matches!(
                    refused.error,
                    Error2::Version(_) | Error2::Procedure(_) | Error2::Direction(_)
                );
                let is_ours =
                    !has_direction && Fixed::parse(message).is_ok_and(|(fixed, _)| has_call(fixed.xid));
                return if is_ours { Recipient::Requester } else { Recipient::Responder };
            }
        };
        match (&header.body, header.direction()) {
            (
                Body2::Optional(OptionMessage {
                    option: option::INITXCH | option::REQXCH | option::UPDXCH,
                    ..
                }),
                _,
            ) => Recipient::First,
            (_, MessageType::Call) => Recipient::Responder,
            (_, MessageType::Reply) => Recipient::Requester,
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
