//! Results of unbounded length: a short Reply chunk first, and a longer one for each new try.
//!
//! ```text
//! let mut room = ReplyRoom::FIRST;
//! loop {
//!     target.begin_unbounded(&mut engine, &Getacl(..), room, user)?;
//!     ... engine.poll(now), engine.completed() ...
//!     if !room.grow_after(&finished) { break finished.reply::<Getacl>() }
//! }
//! ```
//!
//! If both ends have reliable reply switched on, the server exposes long Replies, and no Reply chunk is offered; the limit on the
//! length to read grows in the same way.

use stag_fabric::Provider;
use stag_rpc::{CallError, CallId, CallRefused, Chunks, Engine, Services};

use super::{FinishedCall, Getacl, Operation, Target};

/// Octets of results that there is room for, try by try. The last one is as long as Replies of this engine get.
const LENS: [u32; 4] = [4 << 10, 32 << 10, 256 << 10, 1 << 20];

/// An operation that may be called again with a longer Reply chunk (8267-3.1-a, 8267-5.2-a).
///
/// Of NFS version 3 none may (8267-4.1-a), because all its results have bounds.
pub trait Unbounded: Operation {}

impl Unbounded for Getacl<'_> {}

/// Room for the results of one [`Unbounded`] operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyRoom {
    tries: usize,
}

impl ReplyRoom {
    /// That of the first try.
    pub const FIRST: ReplyRoom = ReplyRoom { tries: 0 };

    /// Returns the octets of results that there is room for.
    #[must_use]
    pub fn results_len_max(self) -> u32 {
        LENS[self.tries.min(LENS.len() - 1)]
    }

    /// Returns whether the caller must make the Call again, as a new one, with the room that there is then.
    ///
    /// It is after a Reply that found no room, four times in all at most. The server may have executed the Call before: only
    /// operations without effect are [`Unbounded`].
    pub fn grow_after(&mut self, finished: &FinishedCall) -> bool {
        finished.completed().result.as_ref().is_err_and(|error| self.grow(error))
    }

    fn grow(&mut self, error: &CallError) -> bool {
        let found_no_room = matches!(error, CallError::Chunk | CallError::ReplyTooLong { .. });
        let may_grow = found_no_room && self.tries + 1 < LENS.len();
        self.tries += usize::from(may_grow);
        may_grow
    }
}

impl Target<'_> {
    /// Begins a Call whose results have no bound, with room for the given number of octets of them.
    ///
    /// # Errors
    ///
    /// Those of [`begin`](Target::begin).
    pub fn begin_unbounded<P: Provider, S: Services, O: Unbounded>(
        &self,
        engine: &mut Engine<P, S>,
        operation: &O,
        room: ReplyRoom,
        user: u64,
    ) -> Result<CallId, CallRefused> {
        let number = (O::PROGRAM, O::VERSION, operation.procedure());
        let request = self.request(number, room.results_len_max(), user);
        engine.call(self.connection, &request, &mut Chunks::default(), |writer| writer.value(operation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_three_times_and_for_want_of_room_alone() {
        // 8267-3.1-a: not indefinitely.
        let mut room = ReplyRoom::FIRST;
        let mut lens = vec![room.results_len_max()];
        assert!(!room.grow(&CallError::TimedOut));
        while room.grow(&CallError::Chunk) {
            lens.push(room.results_len_max());
        }
        assert_eq!(lens, LENS);
        assert!(!room.grow(&CallError::ReplyTooLong { len: 2 << 20, limit: 1 << 20 }));
        let mut room = ReplyRoom::FIRST;
        assert!(room.grow(&CallError::ReplyTooLong { len: 9000, limit: 4096 }));
    }
}
