//! A peer's errors: the Terminate that it gets, and the reason that our user gets.

use stag_wire::rdmap::{Cause, layer};
use stag_wire::{ddp, mpa, rdmap};

use super::counters::IwarpCounters;
use crate::{DisconnectReason, WorkError};

/// Why an access to memory is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// No such STag on this queue pair.
    Stag,
    /// Not that right.
    Right,
    /// Outside of its bounds.
    Bounds,
    /// The end is beyond 2^64.
    Wrap,
}

/// What a peer did wrong within its stream. Each ends the connection (5041-h, 5042-e).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A CRC does not match.
    Crc,
    /// The FPDU has no room for its own headers, or a message not the length that it must have.
    Length,
    /// DDP's version, in a tagged segment.
    TaggedVersion,
    /// DDP's version, in an untagged segment.
    UntaggedVersion,
    /// RDMAP's version.
    Version,
    /// An opcode that does not exist, or not in such a segment.
    Opcode,
    /// No such queue.
    Queue,
    /// Not the next message of the queue.
    Sequence,
    /// Not the next octet of the message.
    Offset,
    /// No Receive is posted.
    NoReceive,
    /// The message is longer than the Receive posted for it.
    TooLong,
    /// A Write to what may not be written, or was fenced on the way.
    Write(Access),
    /// A Read of what may not be read.
    Read(Access),
    /// More Read Requests than agreed on.
    TooManyReads,
    /// A Read Response that answers no Read of ours, or goes to the wrong place.
    Response(Access),
    /// An invalidation of what was never exposed, or not any more.
    Invalidate,
}

impl Fault {
    /// What the Terminate says.
    pub(super) fn cause(self) -> Cause {
        let (layer, error_type, code) = match self {
            Fault::Crc => (layer::LLP, 0, mpa::code::CRC),
            Fault::Length => (layer::DDP, 0, 0),
            Fault::TaggedVersion => (layer::DDP, ddp::code::TAGGED, ddp::code::TAGGED_VERSION),
            Fault::UntaggedVersion => (layer::DDP, ddp::code::UNTAGGED, ddp::code::UNTAGGED_VERSION),
            Fault::Version => (layer::RDMAP, rdmap::code::OPERATION, rdmap::code::VERSION),
            Fault::Opcode => (layer::RDMAP, rdmap::code::OPERATION, rdmap::code::OPCODE),
            Fault::Queue => (layer::DDP, ddp::code::UNTAGGED, ddp::code::UNTAGGED_QUEUE),
            Fault::Sequence => (layer::DDP, ddp::code::UNTAGGED, ddp::code::UNTAGGED_MSN),
            Fault::Offset => (layer::DDP, ddp::code::UNTAGGED, ddp::code::UNTAGGED_OFFSET),
            Fault::NoReceive => (layer::DDP, ddp::code::UNTAGGED, ddp::code::UNTAGGED_NO_BUFFER),
            Fault::TooLong => (layer::DDP, ddp::code::UNTAGGED, ddp::code::UNTAGGED_TOO_LONG),
            // DDP has no code for a missing right: invalid STag, as siw does (siw-15).
            Fault::Write(Access::Stag | Access::Right) | Fault::Response(Access::Stag | Access::Right) => {
                (layer::DDP, ddp::code::TAGGED, ddp::code::TAGGED_STAG)
            }
            Fault::Write(Access::Bounds) | Fault::Response(Access::Bounds) => {
                (layer::DDP, ddp::code::TAGGED, ddp::code::TAGGED_BOUNDS)
            }
            Fault::Write(Access::Wrap) | Fault::Response(Access::Wrap) => {
                (layer::DDP, ddp::code::TAGGED, ddp::code::TAGGED_WRAP)
            }
            Fault::Read(Access::Stag) => (layer::RDMAP, rdmap::code::PROTECTION, rdmap::code::STAG),
            Fault::Read(Access::Right) => (layer::RDMAP, rdmap::code::PROTECTION, rdmap::code::ACCESS),
            Fault::Read(Access::Bounds) => (layer::RDMAP, rdmap::code::PROTECTION, rdmap::code::BOUNDS),
            Fault::Read(Access::Wrap) => (layer::RDMAP, rdmap::code::PROTECTION, rdmap::code::WRAP),
            Fault::TooManyReads => (layer::RDMAP, rdmap::code::OPERATION, rdmap::code::STREAM_CATASTROPHIC),
            Fault::Invalidate => (layer::RDMAP, rdmap::code::PROTECTION, rdmap::code::INVALIDATE),
        };
        Cause { layer, error_type, code }
    }

    /// Whether the Terminate says which segment it was. Not when its octets cannot be trusted.
    pub(super) fn names_segment(self) -> bool {
        !matches!(self, Fault::Crc | Fault::Length)
    }

    /// Why our side's connection ends.
    pub(super) fn reason(self) -> DisconnectReason {
        match self {
            Fault::TooLong => DisconnectReason::Work(WorkError::Length),
            _ => DisconnectReason::PeerViolation(self.text()),
        }
    }

    /// How the Receive at the head of the queue ends, if it is the one that it happened to.
    pub(super) fn receive_error(self) -> WorkError {
        match self {
            Fault::TooLong => WorkError::Length,
            Fault::Invalidate => WorkError::PeerViolation,
            _ => WorkError::Flushed,
        }
    }

    /// In words.
    pub(super) fn text(self) -> &'static str {
        match self {
            Fault::Crc => "an FPDU with a wrong CRC",
            Fault::Length => "a segment whose lengths do not agree",
            Fault::TaggedVersion | Fault::UntaggedVersion => "a segment of another DDP version",
            Fault::Version => "a message of another RDMAP version",
            Fault::Opcode => "an opcode that is not expected there",
            Fault::Queue => "a segment for a queue that does not exist",
            Fault::Sequence => "a message out of order",
            Fault::Offset => "a segment out of order",
            Fault::NoReceive => "a message without a Receive for it",
            Fault::TooLong => "a message longer than its Receive",
            Fault::Write(Access::Stag) => "a Write with an invalid STag",
            Fault::Write(Access::Right) => "a Write to what may only be read",
            Fault::Write(_) => "a Write out of bounds",
            Fault::Read(Access::Stag) => "a Read with an invalid STag",
            Fault::Read(Access::Right) => "a Read of what may only be written",
            Fault::Read(_) => "a Read out of bounds",
            Fault::TooManyReads => "more Read Requests than agreed on",
            Fault::Response(_) => "a Read Response that was not asked for",
            Fault::Invalidate => "an invalidation of what is not exposed",
        }
    }

    /// Counts it.
    pub(super) fn count(self, counters: &mut IwarpCounters) {
        let counter = match self {
            Fault::Crc => &mut counters.bad_crcs,
            Fault::Length
            | Fault::TaggedVersion
            | Fault::UntaggedVersion
            | Fault::Version
            | Fault::Opcode
            | Fault::Queue => &mut counters.bad_segments,
            Fault::Sequence | Fault::Offset => &mut counters.bad_sequences,
            Fault::NoReceive | Fault::TooLong => &mut counters.bad_messages,
            Fault::Write(Access::Stag) | Fault::Read(Access::Stag) => &mut counters.stags_refused,
            Fault::Write(_) | Fault::Read(_) => &mut counters.accesses_refused,
            Fault::TooManyReads => &mut counters.reads_refused,
            Fault::Response(_) => &mut counters.bad_responses,
            Fault::Invalidate => &mut counters.bad_invalidations,
        };
        *counter += 1;
    }
}

/// Why our side's connection ends when the peer sent a Terminate.
pub(super) fn reason_of(cause: Cause) -> DisconnectReason {
    match (cause.layer, cause.error_type, cause.code) {
        (layer::DDP, ddp::code::UNTAGGED, ddp::code::UNTAGGED_TOO_LONG) => {
            DisconnectReason::Work(WorkError::Length)
        }
        (layer::DDP, ddp::code::TAGGED, _)
        | (layer::RDMAP, rdmap::code::PROTECTION, _)
        | (layer::RDMAP, rdmap::code::OPERATION, rdmap::code::INVALIDATE) => {
            DisconnectReason::Work(WorkError::RemoteAccess)
        }
        _ => DisconnectReason::PeerViolation(cause.meaning().unwrap_or("a Terminate for no known reason")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 5041-h: what we tell a peer means something, and says who was wrong.
    #[test]
    fn every_fault_has_a_cause() {
        let accesses = [Access::Stag, Access::Right, Access::Bounds, Access::Wrap];
        let each = accesses.into_iter().flat_map(|a| [Fault::Write(a), Fault::Read(a), Fault::Response(a)]);
        let others = [
            Fault::Crc,
            Fault::Length,
            Fault::TaggedVersion,
            Fault::UntaggedVersion,
            Fault::Version,
            Fault::Opcode,
            Fault::Queue,
            Fault::Sequence,
            Fault::Offset,
            Fault::NoReceive,
            Fault::TooLong,
            Fault::TooManyReads,
            Fault::Invalidate,
        ];
        for fault in each.chain(others) {
            assert!(fault.cause().meaning().is_some(), "{fault:?}");
            let mut counters = IwarpCounters::default();
            fault.count(&mut counters);
            assert_eq!(counters.each().map(|(_, value)| value).sum::<u64>(), 1, "{fault:?}");
        }
        assert_eq!(reason_of(Fault::TooLong.cause()), DisconnectReason::Work(WorkError::Length));
        for access in accesses {
            for fault in [Fault::Write(access), Fault::Read(access)] {
                assert_eq!(reason_of(fault.cause()), DisconnectReason::Work(WorkError::RemoteAccess));
            }
        }
    }
}
