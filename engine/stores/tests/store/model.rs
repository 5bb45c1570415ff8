//! The stores against the simplest file system there can be.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::procedures::Start;
use proptest::prelude::*;
use stag_memory::Shared;
use stag_vfs::{CreateMode, ExtentKind, FsError, ObjectId, ObjectKind, SpaceChange, Update, UserIdentity};

use crate::lab::{Lab, NONE, PAGE};

/// A file system of maps and vectors. Objects have numbers that are never used again.
struct Model {
    nodes: BTreeMap<usize, Node>,
    next: usize,
}

enum Node {
    Directory { parent: usize, entries: BTreeMap<String, usize> },
    File(Vec<u8>),
    Symlink(Vec<u8>),
}

const ROOT: usize = 0;

impl Model {
    fn new() -> Model {
        let root = Node::Directory { parent: ROOT, entries: BTreeMap::new() };
        Model { nodes: BTreeMap::from([(ROOT, root)]), next: 1 }
    }

    fn directories(&self) -> Vec<usize> {
        self.of_kind(|node| matches!(node, Node::Directory { .. }))
    }

    fn files(&self) -> Vec<usize> {
        self.of_kind(|node| matches!(node, Node::File(_)))
    }

    fn of_kind(&self, is: impl Fn(&Node) -> bool) -> Vec<usize> {
        self.nodes.iter().filter(|(_, node)| is(node)).map(|(id, _)| *id).collect()
    }

    fn entries(&self, directory: usize) -> &BTreeMap<String, usize> {
        match &self.nodes[&directory] {
            Node::Directory { entries, .. } => entries,
            _ => panic!("not a directory"),
        }
    }

    fn entries_mut(&mut self, directory: usize) -> &mut BTreeMap<String, usize> {
        match self.nodes.get_mut(&directory) {
            Some(Node::Directory { entries, .. }) => entries,
            _ => panic!("not a directory"),
        }
    }

    fn parent(&self, directory: usize) -> usize {
        match &self.nodes[&directory] {
            Node::Directory { parent, .. } => *parent,
            _ => panic!("not a directory"),
        }
    }

    fn is_directory(&self, id: usize) -> bool {
        matches!(self.nodes[&id], Node::Directory { .. })
    }

    fn add(&mut self, directory: usize, name: &str, node: Node) -> Result<usize, FsError> {
        if self.entries(directory).contains_key(name) {
            return Err(FsError::Exists);
        }
        let id = self.next;
        self.next += 1;
        self.nodes.insert(id, node);
        self.entries_mut(directory).insert(name.into(), id);
        Ok(id)
    }

    fn links(&self, id: usize) -> usize {
        let names = |node: &Node| match node {
            Node::Directory { entries, .. } => entries.values().filter(|found| **found == id).count(),
            _ => 0,
        };
        self.nodes.values().map(names).sum()
    }

    fn collect(&mut self, id: usize) {
        if self.links(id) == 0 {
            self.nodes.remove(&id);
        }
    }

    fn remove(&mut self, directory: usize, name: &str) -> Result<(), FsError> {
        let id = *self.entries(directory).get(name).ok_or(FsError::NotFound)?;
        if self.is_directory(id) {
            return Err(FsError::IsDirectory);
        }
        self.entries_mut(directory).remove(name);
        self.collect(id);
        Ok(())
    }

    fn remove_directory(&mut self, directory: usize, name: &str) -> Result<(), FsError> {
        let id = *self.entries(directory).get(name).ok_or(FsError::NotFound)?;
        if !self.is_directory(id) {
            return Err(FsError::NotDirectory);
        }
        if !self.entries(id).is_empty() {
            return Err(FsError::NotEmpty);
        }
        self.entries_mut(directory).remove(name);
        self.collect(id);
        Ok(())
    }

    fn rename(&mut self, from: (usize, &str), to: (usize, &str)) -> Result<(), FsError> {
        let id = *self.entries(from.0).get(from.1).ok_or(FsError::NotFound)?;
        let mut above = Some(to.0).filter(|_| self.is_directory(id) && from.0 != to.0);
        while let Some(directory) = above {
            if directory == id {
                return Err(FsError::Invalid);
            }
            above = Some(self.parent(directory)).filter(|_| directory != ROOT);
        }
        if let Some(&replaced) = self.entries(to.0).get(to.1) {
            if replaced == id {
                return Ok(());
            }
            if self.is_directory(replaced) != self.is_directory(id) {
                return Err(FsError::Exists);
            }
            if self.is_directory(replaced) && !self.entries(replaced).is_empty() {
                return Err(FsError::NotEmpty);
            }
            self.entries_mut(to.0).remove(to.1);
            self.collect(replaced);
        }
        self.entries_mut(from.0).remove(from.1);
        self.entries_mut(to.0).insert(to.1.into(), id);
        if let Some(Node::Directory { parent, .. }) = self.nodes.get_mut(&id) {
            *parent = to.0;
        }
        Ok(())
    }

    fn data(&mut self, file: usize) -> &mut Vec<u8> {
        match self.nodes.get_mut(&file) {
            Some(Node::File(data)) => data,
            _ => panic!("not a file"),
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Create(usize, usize, bool),
    MakeDirectory(usize, usize),
    MakeSymlink(usize, usize),
    Link(usize, usize, usize),
    Remove(usize, usize),
    RemoveDirectory(usize, usize),
    Rename(usize, usize, usize, usize),
    /// File, offset, length, and how the data comes: inline, or placed in pieces cut at this length.
    Write(usize, u64, usize, Option<usize>),
    Truncate(usize, u64),
    /// File, offset, length, and whether space is reserved or given up.
    Space(usize, u64, u64, SpaceChange),
    /// File, offset, count; the pieces are kept, to be compared at the end.
    Read(usize, u64, u32),
}

const NAMES: [&str; 4] = ["a", "b", "c", "long name of an entry"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pick = || 0usize..8;
    // Around page boundaries more often than not.
    let place = || {
        prop_oneof![
            0..(6 * PAGE as u64),
            (0u64..6).prop_map(|page| page * PAGE as u64),
            (1u64..6, 0u64..3).prop_map(|(page, off)| page * PAGE as u64 - 1 + off),
            (64u64..66).prop_map(|page| page * PAGE as u64 - 7),
        ]
    };
    let step = prop_oneof![
        3 => (pick(), pick(), any::<bool>()).prop_map(|(d, n, guarded)| Step::Create(d, n, guarded)),
        2 => (pick(), pick()).prop_map(|(d, n)| Step::MakeDirectory(d, n)),
        1 => (pick(), pick()).prop_map(|(d, n)| Step::MakeSymlink(d, n)),
        1 => (pick(), pick(), pick()).prop_map(|(f, d, n)| Step::Link(f, d, n)),
        1 => (pick(), pick()).prop_map(|(d, n)| Step::Remove(d, n)),
        1 => (pick(), pick()).prop_map(|(d, n)| Step::RemoveDirectory(d, n)),
        3 => (pick(), pick(), pick(), pick()).prop_map(|(d, n, e, m)| Step::Rename(d, n, e, m)),
        8 => (pick(), place(), 0usize..3 * PAGE, prop::option::of(100usize..2 * PAGE))
            .prop_map(|(f, offset, len, pieces)| Step::Write(f, offset, len, pieces)),
        4 => (pick(), prop::sample::select(vec![0, 4096, 8192]), 1usize..4, Just(Some(2 * PAGE)))
            .prop_map(|(f, offset, pages, pieces)| Step::Write(f, offset, pages * PAGE, pieces)),
        2 => (pick(), place()).prop_map(|(f, len)| Step::Truncate(f, len)),
        3 => (pick(), place(), 1u64..3 * PAGE as u64, any::<bool>()).prop_map(|(f, at, len, reserves)| {
            Step::Space(f, at, len, if reserves { SpaceChange::Reserve } else { SpaceChange::Release })
        }),
        4 => (pick(), place(), 0u32..5 * PAGE as u32).prop_map(|(f, at, len)| Step::Read(f, at, len)),
    ];
    prop::collection::vec(step, 1..60)
}

/// The store and the model, side by side.
struct Pair {
    lab: Lab,
    model: Model,
    /// What each of the model's objects is in the store.
    objects: BTreeMap<usize, ObjectId>,
    held: Vec<(Vec<Shared>, Vec<u8>)>,
    fill: u8,
}

impl Pair {
    fn new(lab: Lab) -> Pair {
        let objects = BTreeMap::from([(ROOT, lab.root())]);
        Pair { lab, model: Model::new(), objects, held: Vec::new(), fill: 0 }
    }

    fn directory(&self, pick: usize) -> (usize, ObjectId) {
        let all = self.model.directories();
        let id = all[pick % all.len()];
        (id, self.objects[&id])
    }

    fn file(&self, pick: usize) -> Option<(usize, ObjectId)> {
        let all = self.model.files();
        let id = *all.get(pick.checked_rem(all.len())?)?;
        Some((id, self.objects[&id]))
    }

    fn added(&mut self, ours: Result<ObjectId, FsError>, expected: Result<usize, FsError>) {
        assert_eq!(ours.err(), expected.err());
        if let (Ok(object), Ok(id)) = (ours, expected) {
            self.objects.insert(id, object);
        }
    }

    fn run(&mut self, step: &Step) {
        let now = self.lab.now();
        let name = |pick: usize| NAMES[pick % NAMES.len()];
        let root = UserIdentity::ROOT;
        match *step {
            Step::Create(pick, n, guarded) => {
                let (directory, object) = self.directory(pick);
                let how = if guarded { CreateMode::Guarded(NONE) } else { CreateMode::Unchecked(NONE) };
                let found = self.model.entries(directory).get(name(n)).copied();
                let expected = match found {
                    Some(id) if !guarded && matches!(self.model.nodes[&id], Node::File(_)) => Ok(id),
                    _ => self.model.add(directory, name(n), Node::File(Vec::new())),
                };
                let ours = self.lab.store.create(&root, object, name(n).as_bytes(), &how, now);
                if let (Ok(id), Ok(object)) = (expected, ours)
                    && let Some(known) = self.objects.get(&id)
                {
                    assert_eq!(*known, object, "UNCHECKED finds the file that is there");
                }
                self.added(ours, expected);
            }
            Step::MakeDirectory(pick, n) => {
                let (directory, object) = self.directory(pick);
                let node = Node::Directory { parent: directory, entries: BTreeMap::new() };
                let expected = self.model.add(directory, name(n), node);
                let ours = self.lab.store.make_directory(&root, object, name(n).as_bytes(), &NONE, now);
                self.added(ours, expected);
            }
            Step::MakeSymlink(pick, n) => {
                let (directory, object) = self.directory(pick);
                let path = b"some/where".to_vec();
                let expected = self.model.add(directory, name(n), Node::Symlink(path.clone()));
                let ours = self.lab.store.make_symlink(&root, object, name(n).as_bytes(), &path, &NONE, now);
                self.added(ours, expected);
            }
            Step::Link(pick, directory, n) => {
                let Some((file, object)) = self.file(pick) else { return };
                let (directory, place) = self.directory(directory);
                let expected = if self.model.entries(directory).contains_key(name(n)) {
                    Err(FsError::Exists)
                } else {
                    self.model.entries_mut(directory).insert(name(n).into(), file);
                    Ok(())
                };
                let ours = self.lab.store.link(&root, object, place, name(n).as_bytes(), now);
                assert_eq!(ours, expected);
            }
            Step::Remove(pick, n) => {
                let (directory, object) = self.directory(pick);
                let expected = self.model.remove(directory, name(n));
                assert_eq!(self.lab.store.remove(&root, object, name(n).as_bytes(), now), expected);
            }
            Step::RemoveDirectory(pick, n) => {
                let (directory, object) = self.directory(pick);
                let expected = self.model.remove_directory(directory, name(n));
                let ours = self.lab.store.remove_directory(&root, object, name(n).as_bytes(), now);
                assert_eq!(ours, expected);
            }
            Step::Rename(pick, n, other, m) => {
                let ((from, source), (to, target)) = (self.directory(pick), self.directory(other));
                let expected = self.model.rename((from, name(n)), (to, name(m)));
                let ours = self.lab.store.rename(
                    &root,
                    (source, name(n).as_bytes()),
                    (target, name(m).as_bytes()),
                    now,
                );
                assert_eq!(ours, expected);
            }
            Step::Write(pick, offset, len, pieces) => {
                let Some((file, object)) = self.file(pick) else { return };
                self.fill = self.fill.wrapping_add(1);
                let octets: Vec<u8> = (0..len).map(|at| self.fill.wrapping_add((at / 97) as u8)).collect();
                let done = match pieces {
                    None => self.lab.write(object, offset, &octets),
                    Some(cut) => {
                        let pieces: Vec<_> = octets.chunks(cut).map(|piece| self.lab.placed(piece)).collect();
                        self.lab.write_placed(object, offset, &pieces)
                    }
                };
                assert_eq!(done.unwrap().count as usize, len);
                if len > 0 {
                    let (start, end) = (offset as usize, offset as usize + len);
                    let data = self.model.data(file);
                    data.resize(data.len().max(end), 0);
                    data[start..end].copy_from_slice(&octets);
                }
            }
            Step::Truncate(pick, len) => {
                let Some((file, object)) = self.file(pick) else { return };
                self.lab.set(&root, object, Update { size: Some(len), ..NONE }).unwrap();
                self.model.data(file).resize(len as usize, 0);
            }
            Step::Space(pick, offset, len, change) => {
                let Some((file, object)) = self.file(pick) else { return };
                self.lab.store.change_space(&root, object, (offset, len), change, now).unwrap();
                let data = self.model.data(file);
                let end = (offset + len) as usize;
                match change {
                    SpaceChange::Reserve => data.resize(data.len().max(end), 0),
                    SpaceChange::Release => {
                        let end = end.min(data.len());
                        data[(offset as usize).min(end)..end].fill(0);
                    }
                }
            }
            Step::Read(pick, offset, count) => {
                let Some((file, object)) = self.file(pick) else { return };
                let (pieces, done) = self.lab.pieces(object, offset, count);
                let data = self.model.data(file);
                let start = (offset as usize).min(data.len());
                let end = (start + count as usize).min(data.len());
                let expected = data[start..end].to_vec();
                assert_eq!(done.count as usize, expected.len());
                assert_eq!(done.eof, offset + u64::from(done.count) >= data.len() as u64);
                assert!(pieces.iter().flat_map(|piece| piece.iter()).eq(expected.iter()));
                self.held.push((pieces, expected));
            }
        }
    }

    /// Compares everything there is.
    fn compare(&mut self) {
        self.objects.retain(|id, _| self.model.nodes.contains_key(id));
        let mut pages = 0;
        for (&id, &object) in &self.objects {
            let attributes = self.lab.store.attributes(object).unwrap();
            match &self.model.nodes[&id] {
                Node::File(data) => {
                    assert_eq!(attributes.kind, ObjectKind::Regular);
                    assert_eq!(attributes.size, data.len() as u64);
                    assert_eq!(attributes.nlink as usize, self.model.links(id));
                    pages += attributes.used / PAGE as u64;
                }
                Node::Symlink(path) => {
                    assert_eq!(attributes.kind, ObjectKind::Symlink);
                    assert_eq!(attributes.size, path.len() as u64);
                }
                Node::Directory { parent, entries } => {
                    let children = entries.values().filter(|&&id| self.model.is_directory(id)).count();
                    // Not every file system counts a directory's `..`s.
                    let links = attributes.nlink as usize;
                    assert!(links == 2 + children || !self.lab.is_memory() && links == 1);
                    let dotdot = self.lab.store.lookup(&UserIdentity::ROOT, object, b"..").unwrap();
                    assert_eq!(dotdot, self.objects[parent]);
                    let verifier = self.lab.store.list_verifier(object).unwrap();
                    let start = Start { cookie: 0, verifier, attributes: true };
                    let mut listed = BTreeMap::new();
                    let now = self.lab.now();
                    let eof = self.lab.store.list(&UserIdentity::ROOT, object, start, now, |entry| {
                        assert_eq!(entry.attributes.unwrap().object.fileid, entry.object.fileid);
                        listed.insert(String::from_utf8(entry.name.to_vec()).unwrap(), entry.object);
                        true
                    });
                    assert_eq!(eof, Ok(true));
                    assert_eq!(listed.remove("."), Some(object));
                    assert_eq!(listed.remove(".."), Some(self.objects[parent]));
                    let expected = entries.iter().map(|(name, id)| (name.clone(), self.objects[id]));
                    assert_eq!(listed, expected.collect());
                    for (name, id) in entries {
                        let found = self.lab.store.lookup(&UserIdentity::ROOT, object, name.as_bytes());
                        assert_eq!(found, Ok(self.objects[id]));
                    }
                }
            }
        }
        if !self.lab.is_memory() {
            return;
        }
        let usage = self.lab.store.usage();
        assert_eq!(usage.files_free as usize, 10_000 - self.model.nodes.len());
        let held_by_files = (usage.bytes_total - usage.bytes_free) / PAGE as u64;
        assert!(held_by_files >= pages, "{held_by_files} counted, {pages} in files");
    }

    /// The holes of a file that has this size.
    fn holes(&self, object: ObjectId, size: u64) -> Vec<Range<u64>> {
        let seek = |at, kind| self.lab.store.seek(&UserIdentity::ROOT, object, at, kind).unwrap();
        let (mut at, mut holes) = (0, Vec::new());
        while at < size {
            let hole = seek(at, ExtentKind::Hole).unwrap();
            let data = if hole < size { seek(hole, ExtentKind::Data).unwrap_or(size) } else { size };
            assert!(at <= hole && hole <= data && (hole < data || data == size), "{at} {hole} {data}");
            holes.push(hole..data);
            at = data;
        }
        holes
    }

    fn finish(mut self) {
        // A READ goes on showing what it found, whatever was written since: never torn.
        for (pieces, expected) in self.held.drain(..) {
            assert!(pieces.iter().flat_map(|piece| piece.iter()).eq(expected.iter()));
        }
        for (file, object) in self.model.files().into_iter().map(|id| (id, self.objects[&id])) {
            let len = self.model.data(file).len() as u32;
            let (octets, done) = self.lab.read(object, 0, len);
            assert!(octets == *self.model.data(file) && done.eof);
            assert!(self.holes(object, octets.len() as u64).into_iter().all(|hole| {
                octets[hole.start as usize..hole.end as usize].iter().all(|octet| *octet == 0)
            }));
        }
        let used: u64 = self
            .objects
            .values()
            .map(|&object| {
                let attributes = self.lab.store.attributes(object).unwrap();
                if attributes.kind == ObjectKind::Regular { attributes.used } else { 0 }
            })
            .sum();
        let held = if self.lab.is_memory() { used / PAGE as u64 } else { 0 };
        // Space that is reserved is taken when it is written.
        assert!(self.lab.units() as u64 <= held, "files hold all that is held");
        if self.lab.is_memory() {
            let usage = self.lab.store.usage();
            assert_eq!(usage.bytes_total - usage.bytes_free, used);
        }
        // Deepest first, until nothing is left.
        while self.model.nodes.len() > 1 {
            let directories = self.model.directories();
            for directory in directories {
                if !self.model.nodes.contains_key(&directory) {
                    continue;
                }
                let object = self.objects[&directory];
                for (name, id) in self.model.entries(directory).clone() {
                    let now = self.lab.now();
                    let (expected, ours) = if self.model.is_directory(id) {
                        (
                            self.model.remove_directory(directory, &name),
                            self.lab.store.remove_directory(
                                &UserIdentity::ROOT,
                                object,
                                name.as_bytes(),
                                now,
                            ),
                        )
                    } else {
                        (
                            self.model.remove(directory, &name),
                            self.lab.store.remove(&UserIdentity::ROOT, object, name.as_bytes(), now),
                        )
                    };
                    assert_eq!(ours, expected);
                }
            }
        }
        assert_eq!(self.lab.units(), 0, "all memory is back");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]
    #[test]
    fn the_memory_store_is_the_model(steps in steps()) {
        follow(Lab::new(2000), &steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// With room for few descriptors, so that they are closed and opened all the time.
    #[test]
    fn the_directory_store_is_the_model(steps in steps(), descriptors in 16usize..64) {
        follow(Lab::directory(2000, |config| config.descriptors_max = descriptors), &steps);
    }
}

fn follow(lab: Lab, steps: &[Step]) {
    let mut pair = Pair::new(lab);
    for step in steps {
        pair.run(step);
        pair.compare();
    }
    pair.finish();
}
