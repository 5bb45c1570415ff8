//! Messages that are no Call here, and may be answered as one: those that cannot be read, and groups that broke off.

use std::collections::VecDeque;

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
    pub(crate) fn take(&mut self, xid: u32) -> bool {
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
