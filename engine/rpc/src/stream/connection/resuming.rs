//! Resumes Calls that waited for memory, or for Replies to leave.

use super::{Backlog, Connection, Ending, Shared, means};
use crate::server::transit;
use crate::service::Services;
use crate::state::{Core, Pass};

impl Connection {
    /// Lets the next record begin, if none has. `false`: it waits, and its octets stay where they are, as to keep them would take
    /// memory, too.
    pub(super) fn try_begin<P>(&mut self, core: &mut Core<P>, shared: &mut Shared) -> bool {
        let may = self.incoming.try_begin(&means(core, &mut self.share, shared))
            && (self.incoming.started.is_some() || !self.lacks_pages(core));
        if !may {
            (self.stalled, self.is_short) = (true, true);
        }
        may
    }

    /// Goes on with what waited.
    pub(in crate::stream) fn resume<P, S: Services>(
        &mut self,
        pass: &mut Pass<'_, Core<P>, S>,
        shared: &mut Shared,
    ) -> Result<(), Ending> {
        let result = match self.backlog.take() {
            None if !self.try_begin(pass.core, shared) => return Ok(()),
            None => self.process(pass, shared, &[]).1,
            Some(Backlog { buf, at, end }) => {
                let pages = transit::pages(&pass.core.pools.payload, buf.capacity());
                pass.core.transit.give(&mut self.share, pages);
                let (used, result) = self.process(pass, shared, &buf[at..end]);
                self.settle(pass.core, shared, buf, end, (at + used, result))
            }
        };
        if !self.stalled {
            // The time that it waited for us is not the peer's.
            self.incoming.started = self.incoming.started.map(|_| pass.core.now);
            self.active = pass.core.now;
        }
        result
    }
}
