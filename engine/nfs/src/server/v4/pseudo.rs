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
//!
//! Exports may lie in each other. Then a directory of the outer one stands in for a node, as far as the outer one has that
//! directory: with exports `/a` and `/a/x/b`, the directory `x` of `/a` leads to `b`, whether it has such a name or not. If `/a` has
//! no `x`, the node does.

use stag_vfs::{Blocked, EntryName, ObjectId, ObjectKind, ObjectStat, ReadStep, Store};
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
    /// Nodes in an export, each with the node where the innermost of these exports begins.
    inner: Vec<(NodeIndex, NodeIndex)>,
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
        self.place_all(exports.all().into_iter().cloned());
    }

    fn of(exports: impl IntoIterator<Item = Export>) -> PseudoTree {
        let root = Node {
            name: Box::default(),
            parent: Self::ROOT,
            children: Vec::new(),
            export: None,
            fileid: 0xcbf2_9ce4_8422_2325,
        };
        let mut tree = PseudoTree { nodes: vec![root], inner: Vec::new() };
        tree.place_all(exports);
        tree
    }

    fn place_all(&mut self, exports: impl IntoIterator<Item = Export>) {
        for export in exports {
            self.place(export);
        }
        let all = (1..self.nodes.len() as u32).map(NodeIndex).filter(|node| self.leads_to_export(*node));
        self.inner = all.filter_map(|node| Some((node, self.outer(node)?))).collect();
    }

    /// Puts an export where its path leads.
    fn place(&mut self, export: Export) {
        let mut at = Self::ROOT;
        for name in names(&export.path) {
            at = self.named(at, name).unwrap_or_else(|| self.add(at, name));
        }
        self.node_mut(at).export = Some(export);
    }

    /// The node where the export begins that a node lies in; not the one that begins there itself.
    fn outer(&self, node: NodeIndex) -> Option<NodeIndex> {
        let mut at = self.parent(node)?;
        loop {
            if self.node(at).export.is_some() {
                return Some(at);
            }
            at = self.parent(at)?;
        }
    }

    /// Nodes in the export that begins at `top`, but for those in exports inside of it.
    fn inside(&self, top: NodeIndex) -> impl Iterator<Item = NodeIndex> {
        self.inner.iter().filter(move |(_, outer)| *outer == top).map(|(node, _)| *node)
    }

    /// The names from one node down to another one, the last one first.
    fn way(&self, top: NodeIndex, mut node: NodeIndex) -> Vec<&[u8]> {
        let mut names = Vec::new();
        while let Some(parent) = self.parent(node).filter(|_| node != top) {
            names.push(&*self.node(node).name);
            node = parent;
        }
        names
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
        let object = ObjectId { fileid: *fileid, generation: 0 };
        let shown = || children.iter().filter(|child| self.leads_to_export(**child));
        ObjectStat {
            nlink: 2 + shown().count() as u32,
            size: 4096,
            // It changes only with the exports.
            change: shown().fold(*fileid, |hash, child| number(hash, &self.node(*child).name)),
            ..ObjectStat::new(object, ObjectKind::Directory, 0o555)
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
        // Where another reactor has the files, COMPOUNDs that go there are carried: this one goes to several. There is no better word
        // for it that LOOKUP and its like may say (8881-15.2).
        let place = place.ok_or(Status4::ServerFault)?;
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

    /// What an export that begins at `top` has in the place of a node inside of it. `None`: it has nothing there.
    fn in_export(&self, share: usize, top: NodeIndex, node: NodeIndex) -> ReadStep<Option<ObjectId>> {
        let volume = self.exports.shares[share].volume();
        let mut object = volume.profile().root;
        for name in self.state.pseudo.way(top, node).into_iter().rev() {
            let directory = volume.stat(object)?;
            if directory.kind != ObjectKind::Directory {
                return Ok(None);
            }
            match volume.store().entry(EntryName { directory: &directory, name }) {
                Ok(found) => object = found.object,
                Err(Blocked::Fails(_)) => return Ok(None),
                Err(waits) => return Err(waits),
            }
        }
        Ok(Some(object))
    }

    /// The node that a directory of an export stands in for, if other exports lie in it.
    pub(super) fn node_at(&self, opened: &ResolvedHandle) -> Step<Option<NodeIndex>> {
        let pseudo = &self.state.pseudo;
        if pseudo.inner.is_empty() {
            return Ok(None);
        }
        let share = &self.exports.shares[opened.share];
        let volume = share.volume();
        let Some(top) = pseudo.node_of(share.export()) else { return Ok(None) };
        if volume.profile().root == opened.object {
            let leads_on = pseudo.node(top).children.iter().any(|child| pseudo.leads_to_export(*child));
            return Ok(leads_on.then_some(top));
        }
        let has_more = |node: &NodeIndex| pseudo.node(*node).export.is_none();
        for node in pseudo.inside(top).filter(has_more) {
            if opened.known(self.in_export(opened.share, top, node))? == Some(opened.object) {
                return Ok(Some(node));
            }
        }
        Ok(None)
    }

    /// The node of a name in a directory of an export where another export begins.
    pub(super) fn junction(&self, opened: &ResolvedHandle, name: &[u8]) -> Step<Option<NodeIndex>> {
        let pseudo = &self.state.pseudo;
        let is_it = |(node, _): &(NodeIndex, NodeIndex)| {
            let Node { name: other, export, .. } = pseudo.node(*node);
            export.is_some() && **other == *name
        };
        // Most names are those of no export.
        if !pseudo.inner.iter().any(is_it) {
            return Ok(None);
        }
        let node = self.node_at(opened)?.and_then(|node| pseudo.named(node, name));
        Ok(node.filter(|node| pseudo.export(*node).is_some()))
    }

    /// What is above the root of an export: a directory of the export that it lies in, or a node. `None`: nothing, it is the root of
    /// all. Objects that are not the root of their export are not asked for.
    pub(super) fn above_export(&self, asker: &CallContext<'_>, opened: &ResolvedHandle) -> Step<Option<At>> {
        let pseudo = &self.state.pseudo;
        let node = pseudo.node_of(self.exports.shares[opened.share].export());
        let Some(parent) = node.and_then(|node| pseudo.parent(node)) else { return Ok(None) };
        let outer = node.and_then(|node| pseudo.outer(node));
        if let Some(top) = outer.filter(|top| *top != parent)
            && let At::Object(root) = self.enter(asker, top)?
            && let Some(object) = root.known(self.in_export(root.share, top, parent))?
        {
            return Ok(Some(At::Object(ResolvedHandle { object, ..root })));
        }
        Ok(Some(self.enter(asker, parent)?))
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
    pub(super) fn handle(&self, at: &At) -> [u8; HANDLE_LEN] {
        match at {
            At::Object(opened) => self.exports.seal(opened, opened.object),
            At::Pseudo(node) => {
                let object = ObjectId { fileid: self.state.pseudo.fileid(*node), generation: 0 };
                self.exports.handles.seal(PSEUDO_FSID, object)
            }
        }
    }

    /// The object or node of a handle, if the caller may know it. NFS4ERR_XDEV: another reactor has it.
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
        CallContext { peer: None, caller: None, has_waited: false }
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
        tree.place_all([Export::new("/home")]);
        assert_eq!(listed(&tree, PseudoTree::ROOT, 0), [(&b"home"[..], 4)]);
        assert_eq!(tree.parent(data), tree.named(PseudoTree::ROOT, b"srv"));
        let after = tree.stat(PseudoTree::ROOT);
        assert_ne!(before.change, after.change, "clients see that it has changed");
        assert_eq!((before.nlink, after.nlink), (4, 3));
    }

    #[test]
    fn exports_lie_in_each_other() {
        let tree = PseudoTree::of(["/a", "/a/x/b", "/a/c", "/a/c/d", "/e"].map(Export::new));
        let node =
            |path: &str| names(path).try_fold(PseudoTree::ROOT, |at, name| tree.named(at, name)).unwrap();
        let outer = |path: &str| tree.outer(node(path));
        assert_eq!(["/a", "/e"].map(outer), [None; 2]);
        assert_eq!(["/a/x", "/a/x/b", "/a/c"].map(outer), [Some(node("/a")); 3]);
        assert_eq!(outer("/a/c/d"), Some(node("/a/c")));
        let mut inside: Vec<_> = tree.inside(node("/a")).collect();
        inside.sort_by_key(|node| node.0);
        assert_eq!(inside, ["/a/x", "/a/x/b", "/a/c"].map(node));
        assert_eq!(tree.way(node("/a"), node("/a/x/b")), [b"b", b"x"]);
        assert!(tree.way(node("/a"), node("/a")).is_empty());
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
