//! Calls and Replies on one byte stream, without a socket or a clock: octets in, octets out, deadlines.
//!
//! ```text
//! begin ─▶ waiting ─▶ ended: results, or why there are none
//!             └──────▶ all at once, when the stream fails
//! ```
//!
//! A stream is of no more use after the first failure: a deadline that passed, a Reply that no Call waits for, octets that
//! are no record. Call again on a new one: a Call is never sent twice on one stream, which loses nothing while it lasts.

use std::collections::VecDeque;
use std::time::Duration;

use stag_wire::record::{MARK_LEN, Mark, Splitter, Step};
use stag_wire::rpc::{Accepted, ReplyBody};
use stag_wire::xdr::{Overflow, Writer};

use super::{StreamCall, StreamCallError, StreamLimits};
use crate::stream::outstanding::{NoReply, OutstandingCalls};

/// Octets of most Calls at most: what a Call is written to first.
const CALL_LEN_USUAL: usize = 4096;

/// How a Call ended.
type End = Result<Vec<u8>, StreamCallError>;

/// The Calls of one stream. Its memory is bounded by [`StreamLimits`]: each Call once, one Reply, and the results that were
/// not taken, one for each Call.
#[derive(Debug)]
pub(super) struct Exchange {
    limits: StreamLimits,
    /// Octets to send, of which `sent` are gone.
    output: Vec<u8>,
    sent: usize,
    splitter: Splitter,
    /// The record that is arriving.
    record: Vec<u8>,
    waiting: OutstandingCalls<()>,
    ended: VecDeque<(u32, End)>,
    failed: Option<StreamCallError>,
}

impl Exchange {
    /// Without Calls. The first has the xid after `seed`: a server that remembers the Calls of an earlier stream must not
    /// take ours for those.
    pub(super) fn new(limits: StreamLimits, seed: u32) -> Exchange {
        Exchange {
            limits,
            output: Vec::new(),
            sent: 0,
            splitter: Splitter::new(limits.reply_len_max),
            record: Vec::new(),
            waiting: OutstandingCalls::new(seed),
            ended: VecDeque::new(),
            failed: None,
        }
    }

    /// Begins a Call, to end before `deadline`. Returns its xid.
    pub(super) fn begin(
        &mut self,
        call: &StreamCall<'_>,
        deadline: Duration,
    ) -> Result<u32, StreamCallError> {
        self.write(|waiting, writer| waiting.begin(writer, call, ((), deadline)))
    }

    /// Begins a Call with an xid that no other Call has.
    pub(super) fn begin_with_xid(
        &mut self,
        xid: u32,
        call: &StreamCall<'_>,
        deadline: Duration,
    ) -> Result<(), StreamCallError> {
        self.write(|waiting, writer| waiting.begin_with_xid(writer, (xid, call), ((), deadline)))
    }

    /// Makes a record of the Call that `begin` writes.
    fn write<T>(
        &mut self,
        begin: impl Fn(&mut OutstandingCalls<()>, &mut Writer<'_>) -> Result<T, Overflow>,
    ) -> Result<T, StreamCallError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if self.waiting.len() + self.ended.len() >= self.limits.calls_max {
            return Err(StreamCallError::TooMany);
        }
        // What was sent is not kept for longer.
        self.output.drain(..self.sent);
        self.sent = 0;
        let start = self.output.len();
        let len_max = self.limits.call_len_max as usize;
        let mut room = CALL_LEN_USUAL.min(len_max);
        let (begun, len) = loop {
            self.output.resize(start + MARK_LEN + room, 0);
            let mut writer = Writer::new(&mut self.output[start + MARK_LEN..]);
            if let Ok(begun) = begin(&mut self.waiting, &mut writer) {
                break (begun, writer.position());
            }
            if room == len_max {
                self.output.truncate(start);
                return Err(StreamCallError::TooLong);
            }
            room = (room * 8).min(len_max);
        };
        self.output[start..start + MARK_LEN].copy_from_slice(&Mark::whole(len as u32).to_bytes());
        self.output.truncate(start + MARK_LEN + len);
        Ok(begun)
    }

    /// The octets to send next.
    pub(super) fn output(&self) -> &[u8] {
        &self.output[self.sent..]
    }

    /// The first `len` octets of [`Exchange::output`] were sent.
    pub(super) fn sent(&mut self, len: usize) {
        self.sent += len;
        debug_assert!(self.sent <= self.output.len(), "more was sent than there is");
    }

    /// Octets arrived.
    pub(super) fn receive(&mut self, mut input: &[u8]) {
        while self.failed.is_none() {
            match self.splitter.step(&mut input) {
                Ok(Step::Octets(octets)) => self.record.extend_from_slice(octets),
                Ok(Step::End) => {
                    let record = std::mem::take(&mut self.record);
                    if let Err(error) = self.take_reply(&record) {
                        self.fail(error);
                    }
                }
                Ok(Step::Pause) => return,
                Err(_) => self.fail(StreamCallError::BadReply),
            }
        }
    }

    /// Ends the Call that a Reply answers.
    fn take_reply(&mut self, record: &[u8]) -> Result<(), StreamCallError> {
        let reply = self.waiting.take_reply(record);
        let (call, body, results) = reply.map_err(|NoReply| StreamCallError::BadReply)?;
        let end = match body {
            ReplyBody::Accepted { outcome: Accepted::Success, .. } => Ok(results.to_vec()),
            ReplyBody::Accepted { outcome, .. } => Err(StreamCallError::NotExecuted(outcome)),
            ReplyBody::Denied(denied) => Err(StreamCallError::Denied(denied)),
        };
        self.ended.push_back((call.xid, end));
        Ok(())
    }

    /// The stream is of no more use: all Calls end.
    pub(super) fn fail(&mut self, error: StreamCallError) {
        self.failed.get_or_insert(error);
        self.output.clear();
        self.sent = 0;
        self.record = Vec::new();
        self.ended.extend(self.waiting.drain().map(|call| (call.xid, Err(error))));
    }

    /// The stream fails if a Call has waited for too long.
    pub(super) fn expire(&mut self, now: Duration) {
        if self.next_deadline().is_some_and(|deadline| now >= deadline) {
            self.fail(StreamCallError::TimedOut);
        }
    }

    /// When the first Call has waited for too long.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.waiting.next_deadline()
    }

    /// Takes the end of the next Call that ended.
    pub(super) fn take_ended(&mut self) -> Option<(u32, End)> {
        self.ended.pop_front()
    }

    /// Whether a Call waits for its Reply.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}
