//! ObjectStat of files examined in this pass, for transfers that may share them.

use stag_vfs::{FsError, ObjectId};

use super::index::Index;
use super::object::Stat;
use super::tree::Tree;

/// Files that are remembered. There are rarely more at once, and one more look is all that it costs.
const SEEN_MAX: usize = 8;

/// What a few files were. Its owner clears it as soon as that may not be told any more.
pub(super) struct Seen {
    files: Vec<SeenFile>,
    /// The place of the next, once all are taken.
    next: usize,
}

#[derive(Clone, Copy)]
struct SeenFile {
    object: ObjectId,
    found: Stat,
    /// Where it is in the tree, as long as nothing left that since.
    index: Index,
    departures: u64,
}

impl Seen {
    pub(super) fn new() -> Seen {
        Seen { files: Vec::with_capacity(SEEN_MAX), next: 0 }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.files.clear();
        self.next = 0;
    }

    /// As [`Tree::find_stat`], which is called if the file is not known.
    pub(super) fn find_stat(&mut self, tree: &mut Tree, object: ObjectId) -> Result<(Index, &Stat), FsError> {
        if let Some(at) = self.files.iter().position(|seen| seen.object == object) {
            let seen = &mut self.files[at];
            if seen.departures != tree.departures() {
                seen.index = tree.find(object)?;
                seen.departures = tree.departures();
            }
            return Ok((seen.index, &seen.found));
        }
        let (index, found) = tree.find_stat(object)?;
        let seen = SeenFile { object, found, index, departures: tree.departures() };
        let at = if self.files.len() < SEEN_MAX {
            self.files.push(seen);
            self.files.len() - 1
        } else {
            let at = self.next;
            self.files[at] = seen;
            self.next = (at + 1) % SEEN_MAX;
            at
        };
        Ok((index, &self.files[at].found))
    }
}
