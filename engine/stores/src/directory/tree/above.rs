//! The directories above a node, as far as its names are known.

use stag_vfs::FsError;

use super::{DEPTH_MAX, Index, ROOT, Tree};

impl Tree {
    /// The directory above a directory; the root is above itself.
    pub(in super::super) fn parent(&self, directory: Index) -> Index {
        self.node(directory).names.first().map_or(ROOT, |name| name.directory)
    }

    /// Fails if what is in a directory is too deep to be found again.
    pub(in super::super) fn check_depth(&self, directory: Index) -> Result<(), FsError> {
        let mut at = directory;
        for _ in 0..DEPTH_MAX {
            if at == ROOT {
                return Ok(());
            }
            at = self.parent(at);
        }
        Err(FsError::NameTooLong)
    }

    /// Whether a directory that was just found is the one with this number, or lies in it.
    pub(in super::super) fn is_within(&self, directory: Index, fileid: u64) -> bool {
        let mut at = directory;
        for _ in 0..DEPTH_MAX {
            if self.id(at).fileid == fileid {
                return true;
            }
            if at == ROOT {
                return false;
            }
            at = self.parent(at);
        }
        false
    }

    /// Whether the names that are known lead up to the root, however many.
    pub(super) fn leads_to_root(&self, index: Index) -> bool {
        let mut at = index;
        for _ in 0..self.nodes.len() {
            if at == ROOT {
                return true;
            }
            let Some(name) = self.node(at).names.first() else { return false };
            at = name.directory;
        }
        false
    }
}
