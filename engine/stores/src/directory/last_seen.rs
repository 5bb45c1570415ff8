//! What objects were when they were last seen.

use stag_vfs::ObjectId;

use super::object::Stat;

/// Objects of which [`LastSeen`] keeps what they were.
const LAST_SEEN: usize = 256;

/// What some objects were when they were last seen, for who cannot wait.
pub(super) struct LastSeen(Vec<Option<(ObjectId, Stat)>>);

impl LastSeen {
    pub(super) fn new() -> LastSeen {
        LastSeen(vec![None; LAST_SEEN])
    }

    /// An object that has the same place is forgotten.
    pub(super) fn note(&mut self, object: ObjectId, found: Stat) {
        self.0[object.fileid as usize % LAST_SEEN] = Some((object, found));
    }

    pub(super) fn get(&self, object: ObjectId) -> Option<Stat> {
        let (seen, found) = self.0[object.fileid as usize % LAST_SEEN]?;
        (seen == object).then_some(found)
    }
}
