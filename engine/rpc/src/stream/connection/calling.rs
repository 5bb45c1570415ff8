//! The Calls that services make to the client of a byte stream: records between the Replies, in the same stream. The msg_type
//! tells the Replies that answer them from the client's Calls.

use std::time::Duration;

use stag_wire::record::MARK_LEN;

use super::{Connection, QUEUED_MAX};
use crate::call_back::{CallBack, CallBackEnd};
use crate::client::slot::check_reply;
use crate::client::{CallError, CallRefused};
use crate::pools::PAGE_LEN;
use crate::state::{Core, EngineState};
use crate::stream::client::StreamCall;
use crate::stream::outbox::OutboxFull;
use crate::stream::outstanding::{Encoded, NoReply, OutstandingCalls};

impl Connection {
    /// Begins the Call `key` to the client. `seed` makes the first xid.
    pub(in crate::stream) fn call_back<P>(
        &mut self,
        core: &mut Core<P>,
        (key, call): (u64, &CallBack),
        (deadline, seed): (Duration, u32),
    ) -> Result<(), CallRefused> {
        if self.ended {
            return Err(CallRefused::NotConnected);
        }
        let len = call.message_len();
        if len > PAGE_LEN - MARK_LEN {
            return Err(CallRefused::TooLong);
        }
        // The client leaves its Replies, or others' use of the memory leaves none: as for a Call of its own.
        let pool = &core.state.pools.payload;
        if self.outbox.queued() >= QUEUED_MAX
            || core.state.transit.is_over_limit(&self.share, pool)
            || self.missing_pages(core).is_some()
        {
            return Err(CallRefused::NoMemory);
        }
        if self.outbox.queued() == 0 {
            self.progress = core.now;
        }
        let calls = self.calls_back.get_or_insert_with(|| Box::new(OutstandingCalls::new(seed)));
        let arguments = Encoded(&call.arguments);
        let stream_call = StreamCall {
            program: call.program,
            version: call.version,
            procedure: call.procedure,
            credential: call.credential(),
            arguments: &arguments,
        };
        let begun = self.outbox.push_record(&core.state.pools.payload, len, |writer| {
            calls.begin(writer, &stream_call, (key, deadline)).map(|_| ())
        });
        self.count_replies(&mut core.state.transit);
        begun.map_err(|full| match full {
            OutboxFull::NoPage => CallRefused::NoMemory,
            OutboxFull::TooLong => CallRefused::TooLong,
        })
    }

    /// Ends the Call to the client that a record answers. Any other Reply is dropped: that of a Call whose time was over, say.
    #[cold]
    pub(super) fn take_reply(&mut self, state: &mut EngineState, record: &[u8]) {
        let Some(calls) = &mut self.calls_back else { return };
        match calls.take_reply(record) {
            Ok((call, body, results)) => {
                let end: CallBackEnd =
                    check_reply(&body).map(|()| results.to_vec()).map_err(|error| error.into());
                state.calls_back.end(call.name, end);
            }
            Err(NoReply) => state.statistics.messages_discarded += 1,
        }
    }

    /// Ends the Calls to the client that have waited for too long.
    pub(in crate::stream) fn expire_calls_back(&mut self, state: &mut EngineState) {
        let Some(calls) = &mut self.calls_back else { return };
        while let Some(call) = calls.take_late(state.now) {
            state.calls_back.end(call.name, Err(CallError::TimedOut.into()));
        }
    }

    /// The client sends no more: its answers will not come.
    pub(super) fn end_calls_back(&mut self, state: &mut EngineState) {
        for call in self.calls_back.iter_mut().flat_map(|calls| calls.drain()) {
            state.calls_back.end(call.name, Err(CallError::ConnectionLost.into()));
        }
    }
}
