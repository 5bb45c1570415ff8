//! The pseudo file system (RFC 8881 section 7.3): directories that lead from the root to the exports.
//!
//! ```text
//! /            PUTROOTFH                   exports /srv/data and /home
//! ├── srv
//! │   └── data  ─▶ the root of an export
//! └── home      ─▶ the root of an export
//! ```
//!
//! It is a file system of its own, the same at all reactors and after each restart with the same exports: a directory's number
//! comes from its path. A client that may use no export below a directory does not see the directory. An export of `/` is the root.

use stag_vfs::{DeviceId, ObjectId, ObjectKind, ObjectStat, Store, Timestamp};
use stag_wire::nfs4::Status4;

use super::super::{CallContext, ExportTable, ResolvedHandle};
use super::{At, Cursor, Server, Step};
use crate::export::Export;
use crate::handle::HANDLE_LEN;

/// The file system id in handles of the pseudo file system. Those of exports are smaller.
pub(super) const PSEUDO_FSID: u64 = u64::MAX;

/// A directory of the pseudo file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeIndex(u32);

#[derive(Debug)]
struct Node {
    /// Its last name; empty: the root.
    name: Box<[u8]>,
    parent: NodeIndex,
    children: Vec<NodeIndex>,
    /// The export that begins here.
    export: Option<Export>,
    /// Its number.
    fileid: u64,
}

/// All directories.
#[derive(Debug)]
pub(super) struct PseudoTree {
    /// The first is the root.
    nodes: Vec<Node>,
}

/// The names of a path.
fn names(path: &str) -> impl Iterator<Item = &[u8]> {
    path.split('/').filter(|name| !name.is_empty()).map(str::as_bytes)
}

/// FNV-1a: numbers of directories have to stay the same, whatever std's hashes become.
fn number(parent: u64, name: &[u8]) -> u64 {
    let octets = [b'/'].into_iter().chain(name.iter().copied());
    octets.fold(parent, |hash, octet| (hash ^ u64::from(octet)).wrapping_mul(0x0100_0000_01b3))
}

impl PseudoTree {
    pub(super) const ROOT: NodeIndex = NodeIndex(0);

    /// The tree of all exports, whichever reactor has their files.
    pub(super) fn new<S: Store + ?Sized>(exports: &ExportTable<S>) -> PseudoTree {
        PseudoTree::of(exports.all().into_iter().cloned())
    }

    /// Follows a change of the exports. Nodes stay, since COMPOUNDs that wait stand at them; clients see those that lead to an
    /// export.
    pub(super) fn follow<S: Store + ?Sized>(&mut self, exports: &ExportTable<S>) {
        self.nodes.iter_mut().for_each(|node| node.export = None);
        for export in exports.all() {
            self.place(export.clone());
        }
    }

    fn of(exports: impl IntoIterator<Item = Export>) -> PseudoTree {
        let root = Node {
            name: Box::default(),
            parent: Self::ROOT,
            children: Vec::new(),
            export: None,
            fileid: 0xcbf2_9ce4_8422_2325,
        };
        let mut tree = PseudoTree { nodes: vec![root] };
        for export in exports {
            tree.place(export);
        }
        tree
    }

    /// Puts an export where its path leads.
    fn place(&mut self, export: Export) {
        let mut at = Self::ROOT;
        for name in names(&export.path) {
            at = self.named(at, name).unwrap_or_else(|| self.add(at, name));
        }
        self.node_mut(at).export = Some(export);
    }

    fn node(&self, node: NodeIndex) -> &Node {
        &self.nodes[node.0 as usize]
    }

    fn node_mut(&mut self, node: NodeIndex) -> &mut Node {
        &mut self.nodes[node.0 as usize]
    }

    /// Whether an export is at this node or below it.
    fn leads_to_export(&self, node: NodeIndex) -> bool {
        let Node { export, children, .. } = self.node(node);
        export.is_some() || children.iter().any(|child| self.leads_to_export(*child))
    }

    /// The node of a name in another one.
    pub(super) fn named(&self, parent: NodeIndex, name: &[u8]) -> Option<NodeIndex> {
        let children = self.node(parent).children.iter().copied();
        children.into_iter().find(|child| *self.node(*child).name == *name)
    }

    fn add(&mut self, parent: NodeIndex, name: &[u8]) -> NodeIndex {
        let node = NodeIndex(self.nodes.len() as u32);
        let fileid = number(self.node(parent).fileid, name);
        self.nodes.push(Node { name: name.into(), parent, children: Vec::new(), export: None, fileid });
        self.node_mut(parent).children.push(node);
        node
    }

    /// Whether a caller may use an export at this node or below it.
    fn is_visible(&self, asker: &CallContext<'_>, node: NodeIndex) -> bool {
        let Node { export, children, .. } = self.node(node);
        export.as_ref().is_some_and(|export| asker.is_allowed(export))
            || children.iter().any(|child| self.is_visible(asker, *child))
    }

    /// The export that begins at a node.
    pub(super) fn export(&self, node: NodeIndex) -> Option<&Export> {
        self.node(node).export.as_ref()
    }

    /// Its number, which is the mounted_on_fileid of an export there.
    pub(super) fn fileid(&self, node: NodeIndex) -> u64 {
        self.node(node).fileid
    }

    /// The node of a number.
    pub(super) fn find(&self, fileid: u64) -> Option<NodeIndex> {
        let found = self.nodes.iter().position(|node| node.fileid == fileid)?;
        Some(NodeIndex(found as u32))
    }

    /// The node where an export begins.
    pub(super) fn node_of(&self, export: &Export) -> Option<NodeIndex> {
        names(&export.path).try_fold(Self::ROOT, |at, name| self.named(at, name))
    }

    /// The node above one; `None`: it is the root.
    pub(super) fn parent(&self, node: NodeIndex) -> Option<NodeIndex> {
        (node != Self::ROOT).then(|| self.node(node).parent)
    }

    /// What is in a node that the caller may see, with cookies behind `cookie`: 0 is before the first one. READDIR's cookies 1
    /// and 2 have a meaning of their own.
    pub(super) fn entries<'t>(
        &'t self,
        asker: &'t CallContext<'_>,
        node: NodeIndex,
        cookie: u64,
    ) -> impl Iterator<Item = PseudoEntry<'t>> {
        const FIRST: u64 = 3;
        let skipped = if cookie < FIRST { 0 } else { cookie - FIRST + 1 };
        let children = self.node(node).children.iter().copied().enumerate();
        let children = children.skip(usize::try_from(skipped).unwrap_or(usize::MAX));
        children.filter(|(_, child)| self.is_visible(asker, *child)).map(|(place, child)| PseudoEntry {
            node: child,
            name: &self.node(child).name,
            cookie: place as u64 + FIRST,
        })
    }

    /// What a node is, as a directory.
    pub(super) fn stat(&self, node: NodeIndex) -> ObjectStat {
        let Node { fileid, children, .. } = self.node(node);
        let shown = || children.iter().filter(|child| self.leads_to_export(**child));
        let time = Timestamp::default();
        ObjectStat {
            object: ObjectId { fileid: *fileid, generation: 0 },
            kind: ObjectKind::Directory,
            mode: 0o555,
            nlink: 2 + shown().count() as u32,
            uid: 0,
            gid: 0,
            size: 4096,
            used: 0,
            device: DeviceId::default(),
            atime: time,
            mtime: time,
            ctime: time,
            has_list: false,
            born: None,
            // It changes only with the exports.
            change: shown().fold(*fileid, |hash, child| number(hash, &self.node(*child).name)),
        }
    }
}

/// An entry of a directory of the pseudo file system.
pub(super) struct PseudoEntry<'t> {
    /// Where it leads: [`Server::enter`].
    pub(super) node: NodeIndex,
    pub(super) name: &'t [u8],
    pub(super) cookie: u64,
}

impl<S: Store + ?Sized> Server<'_, S> {
    /// Goes to a node: to the root of the export that begins there, if there is one.
    pub(super) fn enter(&self, asker: &CallContext<'_>, node: NodeIndex) -> Result<At, Status4> {
        let pseudo = &self.state.pseudo;
        if !pseudo.is_visible(asker, node) && node != PseudoTree::ROOT {
            return Err(Status4::NoEnt);
        }
        let Some(export) = &pseudo.node(node).export else { return Ok(At::Pseudo(node)) };
        if !asker.is_allowed(export) {
            // One below it is for the caller.
            return Ok(At::Pseudo(node));
        }
        let place = self.exports.shares.iter().position(|own| own.serves(&export.path));
        // Where another reactor has the files, COMPOUNDs that go there are carried: this one goes to several.
        let place = place.ok_or(Status4::XDev)?;
        let root = self.exports.shares[place].volume().profile().root;
        Ok(self.exports.resolve(asker, place, root).map_or(At::Pseudo(node), At::Object))
    }

    /// Looks a name up in a node.
    pub(super) fn enter_named(
        &self,
        asker: &CallContext<'_>,
        node: NodeIndex,
        name: &[u8],
    ) -> Result<At, Status4> {
        let named = self.state.pseudo.named(node, name).ok_or(Status4::NoEnt)?;
        self.enter(asker, named)
    }

    /// The node of a name in a directory of an export where another export begins. Only the root of an export is known by its
    /// path, so exports are found directly below it.
    pub(super) fn junction(&self, opened: &ResolvedHandle, name: &[u8]) -> Option<NodeIndex> {
        let share = &self.exports.shares[opened.share];
        if share.volume().profile().root != opened.object {
            return None;
        }
        let pseudo = &self.state.pseudo;
        let node = pseudo.named(pseudo.node_of(share.export())?, name)?;
        pseudo.node(node).export.is_some().then_some(node)
    }

    /// The node that the root of an export is in; `None`: it is the root of all. Objects that are not the root of their export
    /// are not asked for.
    pub(super) fn above_export(&self, opened: &ResolvedHandle) -> Option<NodeIndex> {
        let node = self.state.pseudo.node_of(self.exports.shares[opened.share].export())?;
        self.state.pseudo.parent(node)
    }

    /// The mounted_on_fileid of an object: of the root of an export the number of the node that it covers.
    pub(super) fn mounted_on(&self, opened: &ResolvedHandle) -> u64 {
        let share = &self.exports.shares[opened.share];
        if share.volume().profile().root != opened.object {
            return opened.object.fileid;
        }
        let node = self.state.pseudo.node_of(share.export());
        node.map_or(opened.object.fileid, |node| self.state.pseudo.fileid(node))
    }

    /// The handle of an object or node.
    pub(super) fn handle(&self, at: At) -> [u8; HANDLE_LEN] {
        match at {
            At::Object(opened) => self.exports.seal(&opened, opened.object),
            At::Pseudo(node) => {
                let object = ObjectId { fileid: self.state.pseudo.fileid(node), generation: 0 };
                self.exports.handles.seal(PSEUDO_FSID, object)
            }
        }
    }

    /// The object or node of a handle, if the caller may know it.
    pub(super) fn open_handle(&self, asker: &CallContext<'_>, handle: &[u8]) -> Result<At, Status4> {
        if crate::handle::fsid(handle) != Some(PSEUDO_FSID) {
            let opened = self.exports.open(asker, stag_wire::nfs3::Handle(handle));
            return opened.map(At::Object).map_err(super::status::status4);
        }
        let (_, object) = self.exports.handles.open(handle).map_err(super::status::status4)?;
        let node = self.state.pseudo.find(object.fileid).ok_or(Status4::Stale)?;
        Ok(At::Pseudo(node))
    }
}

/// PUTROOTFH, and PUTPUBFH: the public handle is the root.
pub(super) fn putrootfh<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    _: &(),
) -> Step {
    let root = server.enter(&cursor.caller, PseudoTree::ROOT)?;
    cursor.go(root);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::Client;

    fn asker() -> CallContext<'static> {
        CallContext { peer: None, caller: None }
    }

    fn listed(tree: &PseudoTree, node: NodeIndex, cookie: u64) -> Vec<(&[u8], u64)> {
        let asker = asker();
        tree.entries(&asker, node, cookie).map(|entry| (&*tree.node(entry.node).name, entry.cookie)).collect()
    }

    #[test]
    fn directories_lead_to_the_exports() {
        let tree = PseudoTree::of(["/srv/data", "/home", "/srv/more"].map(Export::new));
        assert_eq!(listed(&tree, PseudoTree::ROOT, 0), [(&b"srv"[..], 3), (b"home", 4)]);
        assert_eq!(listed(&tree, PseudoTree::ROOT, 3), [(&b"home"[..], 4)]);
        assert_eq!(listed(&tree, PseudoTree::ROOT, u64::MAX), []);
        let srv = tree.named(PseudoTree::ROOT, b"srv").unwrap();
        assert_eq!(listed(&tree, srv, 0), [(&b"data"[..], 3), (b"more", 4)]);
        assert_eq!(tree.parent(srv), Some(PseudoTree::ROOT));
        assert_eq!(tree.parent(PseudoTree::ROOT), None);
        assert_eq!(tree.find(tree.fileid(srv)), Some(srv));
        assert_eq!(tree.find(1), None);
    }

    /// A COMPOUND that waits stands at a node, whatever becomes of the exports meanwhile.
    #[test]
    fn nodes_without_exports_stay_and_are_not_seen() {
        let mut tree = PseudoTree::of(["/srv/data", "/srv/more", "/home"].map(Export::new));
        let data = tree.node_of(&Export::new("/srv/data")).unwrap();
        let before = tree.stat(PseudoTree::ROOT);
        tree.nodes.iter_mut().for_each(|node| node.export = None);
        tree.place(Export::new("/home"));
        assert_eq!(listed(&tree, PseudoTree::ROOT, 0), [(&b"home"[..], 4)]);
        assert_eq!(tree.parent(data), tree.named(PseudoTree::ROOT, b"srv"));
        let after = tree.stat(PseudoTree::ROOT);
        assert_ne!(before.change, after.change, "clients see that it has changed");
        assert_eq!((before.nlink, after.nlink), (4, 3));
    }

    #[test]
    fn numbers_stay_the_same_when_other_exports_come_and_go() {
        let (one, other) =
            (PseudoTree::of([Export::new("/a/b")]), PseudoTree::of(["/c", "/a/b"].map(Export::new)));
        let number = |tree: &PseudoTree| tree.fileid(tree.node_of(&Export::new("/a/b")).unwrap());
        assert_eq!(number(&one), number(&other));
        let root = |tree: &PseudoTree| tree.stat(PseudoTree::ROOT).change;
        assert_ne!(root(&one), root(&other), "clients see that it has changed");
    }

    #[test]
    fn who_may_use_nothing_below_a_directory_does_not_see_it() {
        let secret = Export { clients: vec![Client::User(7).into()], ..Export::new("/secret/a") };
        let tree = PseudoTree::of([secret, Export::new("/open/a")]);
        assert_eq!(listed(&tree, PseudoTree::ROOT, 0), [(&b"open"[..], 4)]);
    }
}
