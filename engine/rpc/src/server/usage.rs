//! How many of its credits a serving connection uses, and so how many it should have.

use crate::state::PassState;

/// Credits that a connection starts with, when there are enough.
const CREDITS_START: u32 = 16;

/// Calls after which a connection's use of its credits is looked at.
const CREDITS_EPOCH: u32 = 1024;

/// More are granted while it uses many, fewer when it does not.
#[derive(Debug)]
pub(crate) struct Usage {
    /// Most that it may ever have.
    max: u32,
    /// Credits that it may have at present.
    pub(crate) limit: u32,
    /// Calls that arrived in the pass `pass` (0: none did yet), the most in one pass of this epoch, and Calls of this epoch.
    pass: u64,
    arrived: u32,
    peak: u32,
    epoch: u32,
    /// Epochs that are over.
    epochs: u64,
}

impl Usage {
    pub(crate) fn new(max: u32) -> Usage {
        Usage { max, limit: CREDITS_START.min(max), pass: 0, arrived: 0, peak: 0, epoch: 0, epochs: 0 }
    }

    /// Messages that came.
    pub(crate) fn calls(&self) -> u64 {
        self.epochs * u64::from(CREDITS_EPOCH) + u64::from(self.epoch)
    }

    /// A Call has come, beside `pending` that are in process.
    #[inline(always)]
    pub(crate) fn observe(&mut self, pass: &PassState, pending: u32) {
        if self.pass != pass.number {
            self.pass = pass.number;
            self.arrived = 0;
        }
        self.arrived += 1;
        self.peak = self.peak.max(self.arrived + pending);
        self.epoch += 1;
        if self.peak * 2 >= self.limit && self.limit < pass.credit_share {
            self.limit = (self.limit * 2).min(pass.credit_share).min(self.max);
        }
        if self.epoch == CREDITS_EPOCH {
            if self.peak * 8 < self.limit {
                self.limit = (self.limit / 2).max(CREDITS_START.min(self.max));
            }
            self.epoch = 0;
            self.epochs += 1;
            self.peak = 0;
        }
    }
}
