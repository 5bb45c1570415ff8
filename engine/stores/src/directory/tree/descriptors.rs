//! The descriptors that nodes keep open.

use rustix::io::Errno;
use stag_vfs::ObjectKind;

use super::super::opened::{File, Reopen, reopen_as};
use super::{Index, Node, Opened, ROOT, Tree};

impl Tree {
    pub(super) fn set_looked(&mut self, index: Index, opened: File) {
        self.keep(index, |node| node.looked = Some(opened));
    }

    /// Keeps within the limit, but keeps the last that was touched.
    fn close_oldest(&mut self) {
        while self.descriptors > self.limits.descriptors && self.with_descriptors.len() > 1 {
            let Some(oldest) = self.with_descriptors.oldest() else { return };
            self.close(oldest);
        }
    }

    /// Closes the descriptors of a node. What is under way keeps its own reference.
    pub(super) fn close(&mut self, index: Index) {
        self.departures += 1;
        let node = self.node_mut(index);
        let before = node.descriptors();
        node.opened = None;
        // The root stays open: everything begins at it.
        if index != ROOT {
            node.looked = None;
        }
        node.checked = None;
        node.acl.forget_memory();
        let count = before - node.descriptors();
        self.descriptors -= count;
        self.with_descriptors.remove(index);
    }

    /// A descriptor of a file or directory that was just found, to read it, or also to write if it is a file and
    /// `writable`.
    pub(in super::super) fn reopen(&mut self, index: Index, writable: bool) -> Result<File, Errno> {
        let node = self.node(index);
        if let Some(opened) = node.opened.as_ref().filter(|opened| opened.writable || !writable) {
            let file = opened.file.clone();
            self.with_descriptors.touch(index);
            return Ok(file);
        }
        let how = reopen_as(node.kind, writable)?;
        let file = self.open_apart(index, how)?;
        Ok(self.keep_opened(index, file, how == Reopen::Write))
    }

    /// A descriptor of its own of what was just found.
    fn open_apart(&mut self, index: Index, how: Reopen) -> Result<File, Errno> {
        let looked = self.open_to_look(index)?;
        // Where /proc is missing, it is opened by its name.
        let by_name = if how == Reopen::Directory { None } else { self.name(index).ok() };
        let aside = by_name.map(|(directory, name)| (directory, name.into()));
        self.kernel.reopen(&looked, how, aside)
    }

    /// A descriptor of its own of a file that was just found, to lock it: open to be written as well, where that may be.
    pub(in super::super) fn open_to_lock(&mut self, index: Index) -> Result<File, Errno> {
        if self.node(index).kind != ObjectKind::Regular {
            return Err(Errno::INVAL);
        }
        match self.open_apart(index, Reopen::Write) {
            Err(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::TXTBSY) => {
                self.open_apart(index, Reopen::Read)
            }
            opened => opened,
        }
    }

    /// Keeps a descriptor for reading or writing. A file needs no other one then.
    pub(in super::super) fn keep_opened(&mut self, index: Index, file: File, writable: bool) -> File {
        self.keep(index, |node| {
            node.opened = Some(Opened { file: file.clone(), writable });
            if node.kind == ObjectKind::Regular {
                node.looked = Some(file.clone());
            }
        });
        file
    }

    /// Changes what descriptors a node keeps, within the limit of all.
    fn keep(&mut self, index: Index, change: impl FnOnce(&mut Node)) {
        if self.is_closed {
            return;
        }
        let node = self.node_mut(index);
        let before = node.descriptors();
        change(node);
        let now = node.descriptors();
        self.descriptors = self.descriptors + now - before;
        self.with_descriptors.touch(index);
        self.close_oldest();
    }

    /// Closes everything for good, the root as well, so that the file system can be unmounted. What is under way keeps its own
    /// reference until it ends.
    pub(in super::super) fn close_all(&mut self) {
        self.is_closed = true;
        for index in 0..self.nodes.len() as Index {
            if self.nodes[index as usize].is_some() {
                self.close(index);
                self.node_mut(index).looked = None;
            }
        }
        self.mount = None;
        self.descriptors = 0;
        self.search.stop();
    }
}
