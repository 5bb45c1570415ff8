//! Calls on one byte stream that have no Reply yet: their xids, deadlines, and how their Replies end them.

use std::time::Duration;

use stag_wire::rpc::{CallHeader, OpaqueAuth, ReplyBody, ReplyHeader};
use stag_wire::xdr::{Encode, Overflow, Reader, Writer};

use super::client::StreamCall;

/// Octets of a record that tell whether it is a Call or a Reply: xid and msg_type.
const TYPED_LEN: usize = 8;

/// Whether a record is a Reply. Anything else goes where Calls go.
#[inline]
pub(super) fn is_reply(record: &[u8]) -> bool {
    record.first_chunk::<TYPED_LEN>().is_some_and(|head| head[4..] == [0, 0, 0, 1])
}

/// A Call that has no Reply yet.
#[derive(Debug)]
pub(super) struct Outstanding<T> {
    pub(super) xid: u32,
    deadline: Duration,
    /// What its maker calls it.
    pub(super) name: T,
}

/// A record that ends no Call: no Reply, or the Reply to a Call that is over or was never made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoReply;

/// The Calls of one stream. A Call is never sent twice on one stream, which loses nothing while it lasts.
#[derive(Debug)]
pub(super) struct OutstandingCalls<T> {
    xid: u32,
    calls: Vec<Outstanding<T>>,
}

impl<T> OutstandingCalls<T> {
    /// None. The first has the xid after `seed`: a peer that remembers the Calls of an earlier stream must not take ours for those.
    pub(super) const fn new(seed: u32) -> OutstandingCalls<T> {
        OutstandingCalls { xid: seed, calls: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Writes a Call, to end before `deadline`. Returns its xid. An error: it is not begun.
    pub(super) fn begin(
        &mut self,
        writer: &mut Writer<'_>,
        call: &StreamCall<'_>,
        (name, deadline): (T, Duration),
    ) -> Result<u32, Overflow> {
        let xid = self.xid.wrapping_add(1);
        self.begin_with_xid(writer, (xid, call), (name, deadline))?;
        self.xid = xid;
        Ok(xid)
    }

    /// Writes a Call with an xid that no other Call has.
    pub(super) fn begin_with_xid(
        &mut self,
        writer: &mut Writer<'_>,
        (xid, call): (u32, &StreamCall<'_>),
        (name, deadline): (T, Duration),
    ) -> Result<(), Overflow> {
        let StreamCall { program, version, procedure, credential, arguments } = *call;
        CallHeader { xid, program, version, procedure, credential, verifier: OpaqueAuth::NONE }
            .emit(writer)?;
        writer.value(arguments)?;
        self.calls.push(Outstanding { xid, deadline, name });
        Ok(())
    }

    /// Takes out the Call that a Reply answers, with what the Reply says, and the octets behind its header.
    pub(super) fn take_reply<'r>(
        &mut self,
        record: &'r [u8],
    ) -> Result<(Outstanding<T>, ReplyBody<'r>, &'r [u8]), NoReply> {
        let mut reader = Reader::new(record);
        let header = ReplyHeader::parse(&mut reader).map_err(|_| NoReply)?;
        let place = self.calls.iter().position(|call| call.xid == header.xid).ok_or(NoReply)?;
        Ok((self.calls.swap_remove(place), header.body, reader.rest()))
    }

    /// Takes out a Call that has waited for too long.
    pub(super) fn take_late(&mut self, now: Duration) -> Option<Outstanding<T>> {
        let place = self.calls.iter().position(|call| now >= call.deadline)?;
        Some(self.calls.swap_remove(place))
    }

    /// When the first Call has waited for too long.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.calls.iter().map(|call| call.deadline).min()
    }

    /// Takes out all Calls: the stream is of no more use.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Outstanding<T>> {
        self.calls.drain(..)
    }
}

/// Octets that are encoded already.
pub(super) struct Encoded<'a>(pub(super) &'a [u8]);

impl Encode for Encoded<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.opaque_fixed(self.0)
    }
}
