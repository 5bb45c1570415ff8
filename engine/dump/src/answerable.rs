//! Messages that are no Call here, and may be answered as one: those that cannot be read, and groups that broke off.

use std::collections::VecDeque;

use stag_wire::rpcrdma::Fixed;
use stag_wire::rpcrdma2::procedure;

use crate::call::Call;
use crate::conversation::Conversation;
use crate::event::{ConnectionEnd, Context};

/// Xids of one side that are remembered; the oldest is forgotten for another.
const XIDS_MAX: usize = 4096;

/// The xids of one side's messages that its peer may answer, although no Call has them. Each permits one answer.
#[derive(Debug, Default)]
pub(crate) struct Answerable {
    xids: XidQueue,
    /// Characteristics that were told: only a peer that does not support the operation answers them (XC-a).
    pub(crate) told: XidQueue,
    /// The last group that the peer refused while it went on, in each direction: the rest of it may be on its way (RTR-X-19).
    pub(crate) refused: [Option<u32>; 2],
}

/// Xids, oldest first.
#[derive(Debug, Default)]
pub(crate) struct XidQueue(VecDeque<u32>);

impl XidQueue {
    pub(crate) fn note(&mut self, xid: u32) {
        if self.0.len() == XIDS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(xid);
    }

    /// Takes an xid out. `false`: it is not there.
    fn take(&mut self, xid: u32) -> bool {
        let found = self.0.iter().position(|known| *known == xid);
        found.and_then(|place| self.0.remove(place)).is_some()
    }
}

impl Answerable {
    /// A message with this xid may be answered.
    pub(crate) fn note(&mut self, xid: u32) {
        self.xids.note(xid);
    }

    /// It is answered. `false`: no such message is known.
    pub(crate) fn take(&mut self, xid: u32) -> bool {
        self.xids.take(xid)
    }
}

impl Conversation {
    /// A message cannot be read beyond its xid: its receiver may answer it with an error, unless it is an error itself.
    pub(crate) fn note_unreadable(&mut self, from: ConnectionEnd, octets: &[u8]) {
        if let Ok((fixed, _)) = Fixed::parse(octets)
            && fixed.procedure != procedure::ERROR
        {
            self.parties[from.index()].answerable.note(fixed.xid);
        }
    }

    /// A group of Calls broke off: its Call is over, and is answered with an error about the group.
    pub(crate) fn give_up_call(&mut self, cx: &mut Context<'_>, from: ConnectionEnd, xid: u32) {
        if self.end_call(cx, from, xid).is_some() {
            self.parties[from.index()].answerable.note(xid);
        }
    }

    /// Takes away what one of these xids answers: a message that cannot be read, else a Call, else characteristics. `None`: there is
    /// nothing of them.
    pub(crate) fn end_answered(
        &mut self,
        cx: &mut Context<'_>,
        requester: ConnectionEnd,
        xids: &[u32],
    ) -> Option<Option<Call>> {
        let answerable = &mut self.parties[requester.index()].answerable;
        if xids.iter().any(|xid| answerable.take(*xid)) {
            return Some(None);
        }
        if let Some(call) = xids.iter().find_map(|xid| self.end_call(cx, requester, *xid)) {
            return Some(Some(call));
        }
        let told = &mut self.parties[requester.index()].answerable.told;
        xids.iter().any(|xid| told.take(*xid)).then_some(None)
    }
}
