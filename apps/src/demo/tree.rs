//! The tree that the demo copies: finds it, and cuts it to the allowed size.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use stag_server::failure::CommandFailure;

/// Folders of a project that are not sources.
const SKIPPED: [&str; 2] = ["target", ".git"];

/// Octets of a page of the server's store.
const PAGE: u64 = 4096;

/// What an object of the tree is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A file of that many octets.
    File {
        /// Its length when it was found.
        len: u64,
        /// Its permission bits.
        mode: u32,
    },
    /// A folder.
    Folder,
    /// A symbolic link, with what it holds.
    Link(OsString),
}

/// An object of the tree.
#[derive(Clone, Debug)]
pub(super) struct Object {
    /// Its place in [`Tree::objects`] of the folder that it is in; `None` for the tree's root.
    pub(super) folder: Option<usize>,
    /// Its name there.
    pub(super) name: OsString,
    /// What it is.
    pub(super) kind: Kind,
    /// Where it is.
    pub(super) path: PathBuf,
}

/// A tree of files. A folder comes before what is in it.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// Where it is.
    pub(super) root: PathBuf,
    /// All of it.
    pub(super) objects: Vec<Object>,
    /// Files.
    pub(super) files: u64,
    /// Octets of files.
    pub(super) bytes: u64,
    /// Octets of files, each rounded up to whole pages: what they take at the server.
    pub(super) pages_bytes: u64,
    /// Files left out because the limit was reached.
    pub(super) over_limit: u64,
    /// Left out: neither file, folder nor symbolic link, or not readable.
    pub(super) skipped: u64,
}

impl Tree {
    /// The tree at `path`, or if there is none given, the sources of the project that the current folder is
    /// in; without a project, the current folder. Files beyond `limit` octets are left out.
    pub(super) fn find(path: Option<&Path>, limit: u64) -> Result<Tree, CommandFailure> {
        let (root, skipped): (PathBuf, &[&str]) = match path {
            Some(path) => (path.to_owned(), &[]),
            None => (project()?, &SKIPPED),
        };
        let fail = |error: io::Error| CommandFailure::run(format_args!("--path {}: {error}", root.display()));
        let wrong = |problem: &dyn std::fmt::Display| {
            CommandFailure::usage(format_args!("--path {}: {problem}; choose a folder", root.display()))
        };
        match fs::metadata(&root) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(wrong(&"is no folder")),
            Err(error) => return Err(wrong(&error)),
        }
        let mut tree = Tree { root: root.clone(), ..Tree::default() };
        tree.objects.push(Object {
            folder: None,
            name: root.file_name().map_or_else(|| "tree".into(), ToOwned::to_owned),
            kind: Kind::Folder,
            path: root.clone(),
        });
        let mut next = 0;
        // The list grows behind `next` by what each folder holds.
        while next < tree.objects.len() {
            if tree.objects[next].kind == Kind::Folder {
                tree.add_folder(next, skipped, limit).map_err(fail)?;
            }
            next += 1;
        }
        Ok(tree)
    }

    fn add_folder(&mut self, folder: usize, skipped: &[&str], limit: u64) -> io::Result<()> {
        let entries = match fs::read_dir(&self.objects[folder].path) {
            Ok(entries) => entries,
            // The root must be readable; of the rest, what is not is left out.
            Err(error) if folder == 0 => return Err(error),
            Err(_) => {
                self.skipped += 1;
                return Ok(());
            }
        };
        let mut entries: Vec<_> = entries.flatten().collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let (name, path) = (entry.file_name(), entry.path());
            if skipped.iter().any(|skipped| name == *skipped) {
                continue;
            }
            let Ok(metadata) = fs::symlink_metadata(&path) else {
                self.skipped += 1;
                continue;
            };
            let kind = match () {
                () if metadata.is_dir() => Kind::Folder,
                () if metadata.is_file() && fs::File::open(&path).is_ok() => {
                    let pages_bytes = metadata.len().next_multiple_of(PAGE);
                    if self.pages_bytes.saturating_add(pages_bytes) > limit {
                        self.over_limit += 1;
                        continue;
                    }
                    self.files += 1;
                    self.bytes += metadata.len();
                    self.pages_bytes += pages_bytes;
                    Kind::File { len: metadata.len(), mode: metadata.mode() & 0o777 }
                }
                () if metadata.is_symlink() => match fs::read_link(&path) {
                    Ok(held) => Kind::Link(held.into()),
                    Err(_) => continue,
                },
                () => {
                    self.skipped += 1;
                    continue;
                }
            };
            self.objects.push(Object { folder: Some(folder), name, kind, path });
        }
        Ok(())
    }
}

/// The folder of the enclosing git or cargo project, the outermost cargo workspace of it; else the current
/// folder.
fn project() -> Result<PathBuf, CommandFailure> {
    let current = std::env::current_dir();
    let current =
        current.map_err(|error| CommandFailure::run(format_args!("current folder: {error}; give --path")))?;
    let git = current.ancestors().find(|folder| folder.join(".git").exists());
    let cargo = || current.ancestors().filter(|folder| folder.join("Cargo.toml").exists()).last();
    Ok(git.or_else(cargo).unwrap_or(&current).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_comes_before_what_is_in_it_and_the_limit_holds() {
        let root = std::env::temp_dir().join(format!("stag-tree-{}", std::process::id()));
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/one"), vec![1; 5000]).unwrap();
        fs::write(root.join("a/two"), b"2").unwrap();
        std::os::unix::fs::symlink("two", root.join("a/link")).unwrap();
        let tree = Tree::find(Some(&root), u64::MAX).unwrap();
        assert_eq!((tree.files, tree.bytes, tree.pages_bytes, tree.over_limit), (2, 5001, 12288, 0));
        for (index, object) in tree.objects.iter().enumerate().skip(1) {
            assert!(object.folder.unwrap() < index);
        }
        assert!(tree.objects.iter().any(|object| object.kind == Kind::Link("two".into())));
        let cut = Tree::find(Some(&root), 8191).unwrap();
        assert_eq!((cut.files, cut.over_limit), (1, 1));
        fs::remove_dir_all(&root).unwrap();
    }
}
