//! The mounts of this machine, as /proc/self/mountinfo lists them: where exported directories lie, and what lies below them.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// What a process has mounted.
#[derive(Debug, Default)]
pub(super) struct Mounts {
    list: Vec<Mount>,
}

#[derive(Debug)]
struct Mount {
    /// The file system's device, as `MAJOR:MINOR`.
    device: String,
    /// The directory of the file system that is mounted.
    root: PathBuf,
    /// Where it is mounted.
    point: PathBuf,
    /// The kind of file system.
    kind: String,
}

/// Where a path lies: the same for all paths that lead to one directory by different mounts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Location {
    device: String,
    path: PathBuf,
}

impl Location {
    /// Whether one of the two is the other, or lies in it.
    pub(super) fn overlaps(&self, other: &Location) -> bool {
        self.device == other.device
            && (self.path.starts_with(&other.path) || other.path.starts_with(&self.path))
    }
}

impl Mounts {
    /// Those of this process; none where there is no /proc.
    pub(super) fn own() -> Mounts {
        fs::read("/proc/self/mountinfo").map(|text| Mounts::parse(&text)).unwrap_or_default()
    }

    fn parse(text: &[u8]) -> Mounts {
        Mounts { list: text.split(|octet| *octet == b'\n').filter_map(Mount::parse).collect() }
    }

    /// Where `path`, which has no symbolic links in it, lies.
    pub(super) fn location(&self, path: &Path) -> Option<Location> {
        let Mount { device, root, point, .. } = self.of(path)?;
        let below = path.strip_prefix(point).ok()?;
        // Not with a slash at its end.
        let path = if below.as_os_str().is_empty() { root.clone() } else { root.join(below) };
        Some(Location { device: device.clone(), path })
    }

    /// Whether `path` lies in an overlay.
    pub(super) fn is_overlay(&self, path: &Path) -> bool {
        self.of(path).is_some_and(|mount| mount.kind == "overlay")
    }

    /// Where other mounts begin below `path`, each once and in order.
    pub(super) fn below(&self, path: &Path) -> Vec<&Path> {
        let points = self.list.iter().map(|mount| mount.point.as_path());
        let mut found: Vec<_> = points.filter(|point| *point != path && point.starts_with(path)).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The mount that `path` is in. Of several at one place the last lies on top.
    fn of(&self, path: &Path) -> Option<&Mount> {
        let above = self.list.iter().filter(|mount| path.starts_with(&mount.point));
        above.max_by_key(|mount| mount.point.components().count())
    }
}

impl Mount {
    /// Reads `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELD…] - KIND SOURCE OPTIONS`.
    fn parse(line: &[u8]) -> Option<Mount> {
        let mut words = line.split(|octet| *octet == b' ');
        let device = String::from_utf8_lossy(words.nth(2)?).into_owned();
        let (root, point) = (unescaped(words.next()?), unescaped(words.next()?));
        let kind = words.skip_while(|word| *word != b"-").nth(1)?;
        Some(Mount { device, root, point, kind: String::from_utf8_lossy(kind).into_owned() })
    }
}

/// A path of the file, in which blanks, line ends and backslashes are three octal digits each.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut octets = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let digits =
            after.get(..3).filter(|_| *first == b'\\').and_then(|digits| str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(octet) => {
                octets.push(octet);
                rest = &after[3..];
            }
            None => {
                octets.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(octets).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &[u8] = b"\
        21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
        22 21 0:20 / /proc rw - proc proc rw\n\
        30 21 8:1 / /srv/data rw shared:2 master:1 - xfs /dev/sda rw\n\
        31 30 8:2 / /srv/data/a\\040b rw - ext4 /dev/sdb rw\n\
        32 30 8:1 /deep /srv/data/deep rw - xfs /dev/sda rw\n\
        33 21 8:1 /deep/er /mnt rw - xfs /dev/sda rw\n\
        34 21 0:40 / /srv/database rw - overlay overlay rw,lowerdir=/x\n";

    #[test]
    fn a_directory_is_one_whichever_mount_leads_to_it() {
        let mounts = Mounts::parse(MOUNTS);
        let location = |path: &str| mounts.location(Path::new(path)).unwrap();
        assert_eq!(location("/srv/data/deep/er"), location("/mnt"));
        assert_eq!(location("/srv/x"), Location { device: "254:0".into(), path: "/srv/x".into() });
        for (one, other, overlaps) in [
            ("/srv/data", "/mnt", true),
            ("/srv/data", "/mnt/x", true),
            ("/srv/data/deep", "/mnt", true),
            ("/srv", "/srv/data", false),
            ("/srv/data/d", "/srv/data/dd", false),
            ("/srv/data", "/srv/data/a b", false),
        ] {
            assert_eq!(location(one).overlaps(&location(other)), overlaps, "{one} and {other}");
            assert_eq!(location(other).overlaps(&location(one)), overlaps, "{other} and {one}");
        }
    }

    #[test]
    fn mounts_below_a_directory_are_found() {
        let mounts = Mounts::parse(MOUNTS);
        assert_eq!(
            mounts.below(Path::new("/srv/data")),
            [Path::new("/srv/data/a b"), Path::new("/srv/data/deep")]
        );
        assert_eq!(mounts.below(Path::new("/mnt")).len(), 0);
        assert!(
            mounts.is_overlay(Path::new("/srv/database/x")) && !mounts.is_overlay(Path::new("/srv/data"))
        );
        assert_eq!(Mounts::parse(b"nonsense\n\n1 2 3").below(Path::new("/")).len(), 0);
    }
}
