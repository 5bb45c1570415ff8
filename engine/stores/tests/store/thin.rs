//! A file system that is larger than what is under it, as on a thin volume: data that was acknowledged cannot be written.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use stag_testing::Scratch;
use stag_vfs::{Stability, UserIdentity, WriteData};

use crate::lab::{Lab, PAGE, is_root};

const MIB: usize = 1 << 20;

/// What was mounted for a test.
struct Mounted {
    scratch: Scratch,
    at: Vec<PathBuf>,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for path in self.at.iter().rev() {
            let _ = Command::new("umount").arg("-l").arg(path).status();
        }
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    match Command::new(program).args(arguments).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{program}: {error}")),
    }
}

impl Mounted {
    /// A file system of this kind in `files`, on a file in `under`, which has `len` octets of room in all.
    fn new(kind: &str, len: usize) -> Result<Mounted, String> {
        let mut mounted = Mounted { scratch: Scratch::folder(), at: Vec::new() };
        let [under, files] = ["under", "files"].map(|name| mounted.scratch.0.join(name));
        for path in [&under, &files] {
            fs::create_dir(path).unwrap();
        }
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        run("mount", &["-t", "tmpfs", "-o", &format!("size={len}"), "tmpfs", &text(&under)])?;
        mounted.at.push(under.clone());
        let image = under.join("image");
        File::create(&image).unwrap().set_len(512 * MIB as u64).unwrap();
        let force = if kind == "xfs" { "-f" } else { "-F" };
        run(&format!("mkfs.{kind}"), &["-q", force, &text(&image)])?;
        run("mount", &["-t", kind, "-o", "loop", &text(&image), &text(&files)])?;
        mounted.at.push(files);
        Ok(mounted)
    }

    fn files(&self) -> PathBuf {
        self.scratch.0.join("files")
    }

    /// Takes all that is left of what is under the file system.
    fn fill(&self) {
        let mut file = File::create(self.scratch.0.join("under/filler")).unwrap();
        while std::io::Write::write_all(&mut file, &[1; 1 << 16]).is_ok() {}
    }
}

/// The error of data that was lost goes to the first sync. If that is another client's WRITE, which is told that there is
/// no space, COMMIT must still not say that all is well.
#[test]
fn what_was_lost_is_told_of_the_first_who_hears_of_it() {
    if !is_root() {
        return stag_testing::skipped("only root mounts file systems");
    }
    for kind in ["xfs", "ext4"] {
        let mounted = match Mounted::new(kind, 200 * MIB) {
            Ok(mounted) => mounted,
            Err(error) => {
                stag_testing::skipped(format_args!("no {kind} on a loop device here: {error}"));
                continue;
            }
        };
        let pool = Lab::pool(PAGE, 1024);
        let inside = Scratch(mounted.files().join("export"));
        fs::create_dir(&inside.0).unwrap();
        let store = Lab::open(&inside, &pool, |_| {});
        let mut lab = Lab { pool, store, seconds: 0, baseline: 0, scratch: Some(inside) };
        let file = lab.file("f");
        lab.settle().unwrap();
        mounted.fill();
        let data = vec![7; MIB];
        for block in 0..64 {
            let data = WriteData::Inline(&data);
            let done = lab
                .write_of(&UserIdentity::ROOT, file, (block * MIB) as u64, data, Stability::Unstable)
                .unwrap();
            assert_eq!(done.committed, Stability::Unstable);
        }
        let told = lab.store.write_verifier();
        // The kernel writes what it can. This descriptor gets the failure, and none of the store's.
        let path = lab.scratch.as_ref().unwrap().0.join("f");
        let lost = File::open(path).unwrap().sync_all();
        assert!(lost.is_err(), "{kind}: there was room enough");
        let stable = lab.write_of(&UserIdentity::ROOT, file, 0, WriteData::Inline(b"x"), Stability::FileSync);
        let committed = lab.commit(file);
        println!("{kind}: {lost:?}; a stable WRITE {stable:?}; COMMIT {committed:?}");
        assert!(
            committed.is_err() || lab.store.write_verifier() != told,
            "{kind}: 64 MiB are lost, and COMMIT says nothing of it"
        );
    }
}

/// The same, if the store closed its descriptor of the file meanwhile: one that is opened later gets no report of an error
/// that another descriptor got already.
#[test]
fn what_was_lost_is_told_of_though_the_file_was_not_used_for_long() {
    if !is_root() {
        return stag_testing::skipped("only root mounts file systems");
    }
    for kind in ["xfs", "ext4"] {
        let mounted = match Mounted::new(kind, 200 * MIB) {
            Ok(mounted) => mounted,
            Err(error) => {
                stag_testing::skipped(format_args!("no {kind} on a loop device here: {error}"));
                continue;
            }
        };
        let pool = Lab::pool(PAGE, 1024);
        let inside = Scratch(mounted.files().join("export"));
        fs::create_dir(&inside.0).unwrap();
        let store = Lab::open(&inside, &pool, |config| config.descriptors_max = 16);
        let mut lab = Lab { pool, store, seconds: 0, baseline: 0, scratch: Some(inside) };
        let file = lab.file("f");
        let others: Vec<_> = (0..40).map(|index| lab.file(&format!("other-{index}"))).collect();
        lab.settle().unwrap();
        mounted.fill();
        let data = vec![7; MIB];
        for block in 0..64 {
            let data = WriteData::Inline(&data);
            lab.write_of(&UserIdentity::ROOT, file, (block * MIB) as u64, data, Stability::Unstable).unwrap();
        }
        let told = lab.store.write_verifier();
        for other in others {
            lab.read(other, 0, 1);
            lab.commit(other).unwrap();
        }
        let path = lab.scratch.as_ref().unwrap().0.join("f");
        let lost = File::open(path).unwrap().sync_all();
        assert!(lost.is_err(), "{kind}: there was room enough");
        let committed = lab.commit(file);
        println!("{kind}: {lost:?}; COMMIT {committed:?}");
        assert!(
            committed.is_err() || lab.store.write_verifier() != told,
            "{kind}: 64 MiB are lost, and COMMIT says nothing of it"
        );
    }
}
