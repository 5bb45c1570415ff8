//! Work on files as other users: one thread does it for all of them, and nothing of one is left to the next.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use stag_disk::Errno;
use stag_disk::system::{FileUser, FileUsers};
use stag_testing::Scratch;

/// `None`: this process cannot act as others.
fn users() -> Option<FileUsers> {
    let users = FileUsers::new();
    if let Err(error) = &users {
        stag_testing::skipped(format_args!("this process may not act as others: {error}"));
    }
    users.ok()
}

fn user(uid: u32, groups: &[u32], privileged: bool) -> FileUser<'_> {
    FileUser { uid, gid: uid, groups, privileged }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap()
}

fn make(path: &Path) -> Result<(u32, u32), Errno> {
    let made = File::create_new(path).and_then(|file| file.metadata());
    made.map(|made| (made.uid(), made.gid())).map_err(|error| errno(&error))
}

/// The calling thread's number, and its credentials and capabilities as the kernel tells them.
fn thread() -> (PathBuf, Vec<String>) {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let told = ["Uid:", "Gid:", "Groups:", "CapEff:", "CapPrm:"];
    let is_told = |line: &&str| told.iter().any(|name| line.starts_with(name));
    (fs::read_link("/proc/thread-self").unwrap(), status.lines().filter(is_told).map(str::to_owned).collect())
}

#[test]
fn one_other_thread_does_it_for_all() {
    let Some(users) = users() else { return };
    let ours = thread();
    let number = |uid| users.run(&user(uid, &[], false), || Ok(thread().0)).unwrap();
    let helper = number(1000);
    assert_ne!(helper, ours.0);
    assert_eq!([number(1001), number(0), number(1000)], [&helper; 3].map(Clone::clone));
    assert_eq!(thread(), ours, "the thread that asks keeps its credentials");
}

/// For a thread that is there for such work.
#[test]
fn a_thread_that_acts_here_is_root_again_afterwards() {
    let Some(users) = users() else { return };
    let scratch = Scratch::folder();
    fs::set_permissions(&scratch.0, Permissions::from_mode(0o777)).unwrap();
    let acts = || {
        let made = |name: &str| make(&scratch.0.join(name));
        let ours = thread();
        assert_eq!(users.run_here(&user(1000, &[], false), || made("a")), Ok((1000, 1000)));
        assert_eq!(users.run_here(&user(u32::MAX, &[], false), || made("b")), Err(Errno::INVAL));
        assert_eq!(users.run_here(&user(1001, &[7], true), || Err::<(), _>(Errno::IO)), Err(Errno::IO));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _ = users.run_here(&user(1002, &[], false), || -> Result<(), Errno> { panic!("of the act") });
        }));
        assert!(panicked.is_err());
        assert_eq!(made("c"), Ok((0, 0)));
        let capabilities = |lines: &[String]| -> Vec<String> {
            lines.iter().filter(|line| line.starts_with("Cap")).cloned().collect()
        };
        assert_eq!(capabilities(&thread().1), capabilities(&ours.1));
    };
    std::thread::scope(|scope| scope.spawn(acts).join().unwrap());
}

#[test]
fn nothing_of_one_user_is_left_to_the_next() {
    let Some(users) = users() else { return };
    let scratch = Scratch::folder();
    let (secret, shared) = (scratch.0.join("secret"), scratch.0.join("shared"));
    for (path, mode) in [(&secret, 0o600), (&shared, 0o640)] {
        fs::write(path, "x").unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    std::os::unix::fs::chown(&shared, Some(0), Some(77)).unwrap();
    let read = |path: &Path| File::open(path).map(drop).map_err(|error| errno(&error));
    for round in 0..3 {
        let path = scratch.0.join(format!("{round}"));
        // With our capabilities: may do everything, and what it makes is the user's.
        assert_eq!(users.run(&user(1000, &[77], true), || make(&path)), Ok((1000, 1000)));
        assert_eq!(users.run(&user(1000, &[77], true), || read(&secret)), Ok(()));
        assert_eq!(users.run(&user(1000, &[77], false), || read(&shared)), Ok(()));
        for uid in [1000, 1001] {
            let next = user(uid, &[], false);
            assert_eq!(users.run(&next, || read(&secret)), Err(Errno::ACCESS), "no capability is left");
            assert_eq!(users.run(&next, || read(&shared)), Err(Errno::ACCESS), "no group is left");
            let path = scratch.0.join("no");
            assert_eq!(users.run(&next, || make(&path)), Err(Errno::ACCESS));
        }
        // After users without capabilities, those of root are there again.
        assert_eq!(users.run(&user(0, &[], false), || read(&secret)), Ok(()));
        assert_eq!(users.run(&user(u32::MAX, &[], true), || Ok(())), Err(Errno::INVAL));
    }
}

#[test]
fn a_panic_is_the_callers_and_the_thread_goes_on() {
    let Some(users) = users() else { return };
    let one = user(1000, &[], false);
    let number = || users.run(&one, || Ok(thread().0)).unwrap();
    let helper = number();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        users.run(&one, || if one.uid == 1000 { panic!("of the caller") } else { Ok(()) })
    }));
    assert_eq!(panicked.unwrap_err().downcast_ref::<&str>(), Some(&"of the caller"));
    assert_eq!(number(), helper);
}

/// Several threads may ask: each waits for its own errand.
#[test]
fn errands_of_several_threads_do_not_mix() {
    let Some(users) = users() else { return };
    std::thread::scope(|scope| {
        for uid in 1000..1004 {
            let users = &users;
            scope.spawn(move || {
                for _ in 0..200 {
                    let seen = users.run(&user(uid, &[], false), || Ok(thread().1[0].clone())).unwrap();
                    assert!(seen.ends_with(&format!("\t{uid}")), "{seen}, wanted {uid}");
                }
            });
        }
    });
}
