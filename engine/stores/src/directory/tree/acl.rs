//! Access control lists of nodes.
//!
//! Most objects have none, and few change often. So a node remembers when its object was last changed while that had no list: as
//! long as that time stays, it has none. A list that it has is read each time.

use std::sync::Arc;

use stag_disk::system;
use stag_vfs::{Acl, FsError, ObjectId, Timestamp};

use super::super::acl::{AclKind, acl_status};
use super::super::index::Index;
use super::super::opened::File;
use super::Tree;

impl Tree {
    /// The access control list of an object that was last changed at `changed`. Not of a symbolic link, which has none.
    pub(in super::super) fn access_acl(
        &mut self,
        object: ObjectId,
        changed: Timestamp,
    ) -> Result<Option<Arc<Acl>>, FsError> {
        let known = self.known_as(object);
        if known.is_some_and(|index| self.node(index).acl.absent_since == Some(changed)) {
            return Ok(None);
        }
        // A change that comes in the same tick of the kernel's clock would not be seen.
        let is_settled = changed.since_epoch().is_some_and(|changed| changed < system::file_time());
        let index = self.find(object)?;
        let acl = self.read_acl(index, AclKind::Access)?;
        if acl.is_none() && is_settled {
            self.node_mut(index).acl.absent_since = Some(changed);
        }
        Ok(acl)
    }

    /// The list that new objects in a directory inherit. Other objects have none.
    pub(in super::super) fn default_acl(&mut self, directory: ObjectId) -> Result<Option<Arc<Acl>>, FsError> {
        let index = self.find(directory)?;
        self.read_acl(index, AclKind::Default)
    }

    fn read_acl(&mut self, index: Index, kind: AclKind) -> Result<Option<Arc<Acl>>, FsError> {
        let file = self.file_for_acl(index)?;
        let is_in_memory = self.node(index).acl.is_in_memory;
        let acl = self.kernel.acl(&file, kind, is_in_memory).map_err(acl_status)?;
        self.node_mut(index).acl.is_in_memory |= kind == AclKind::Access;
        Ok(acl)
    }

    /// A descriptor of a node that was just found. One that is more than a look takes fewer system calls.
    pub(in super::super) fn file_for_acl(&self, index: Index) -> Result<File, FsError> {
        let opened = self.node(index).opened.as_ref().map(|opened| opened.file.clone());
        opened.map_or_else(|| self.path_fd(index), Ok)
    }
}
