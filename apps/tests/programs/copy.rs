//! `stag cp`, `get` and `put`: several files at once, holes, leftovers of a failure, attributes, existing files.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use stag_runtime::Clock;

use crate::common::{Folder, STAG, Server, assert_same_tree, content, stag, stag_fails, stag_json, stag_ok};

/// Forwards a TCP connection; octets leave so much later than they came. Returns the port.
fn slow_proxy(to: &str, delay: Duration) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let to = to.to_owned();
    // Ends with the process.
    thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let server = TcpStream::connect(&to).unwrap();
            client.set_nodelay(true).unwrap();
            server.set_nodelay(true).unwrap();
            forward(client.try_clone().unwrap(), server.try_clone().unwrap(), delay);
            forward(server, client, delay);
        }
    });
    port
}

fn forward(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (sender, receiver) = mpsc::channel::<(Duration, Vec<u8>)>();
    let clock = Clock::start_system();
    thread::spawn(move || {
        let mut buffer = [0; 65536];
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            if sender.send((clock.now() + delay, buffer[..len].to_vec())).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        for (due, octets) in receiver {
            thread::sleep(due.saturating_sub(clock.now()));
            if to.write_all(&octets).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
}

/// Against a server that is far away, files do not wait for each other, and the wait burns no core.
#[test]
fn files_are_copied_side_by_side() {
    let (server, folder) = (Server::with_data_over_iwarp(), Folder::new("side-by-side"));
    let port = slow_proxy(server.url.strip_prefix("iwarp://").unwrap(), Duration::from_millis(10));
    let far = format!("iwarp://127.0.0.1:{port}/data");
    let tree = folder.join("tree");
    fs::create_dir(&tree).unwrap();
    for index in 0..120 {
        fs::write(tree.join(format!("{index}")), content(2000, index as u8)).unwrap();
    }
    let tree = tree.to_str().unwrap();
    let seconds = |arguments: &[&str]| stag_json(arguments)[0]["seconds"].as_f64().unwrap();
    let one = seconds(&["put", "-r", "-j", "1", tree, &format!("{far}/one")]);
    let eight = seconds(&["put", "-r", tree, &format!("{far}/eight")]);
    // 240 Calls of 20 ms, one after the other or eight at once.
    assert!(one > 4.8 && eight < one / 2.0, "{one} s one at a time, {eight} s eight at once");
    let back = folder.join("back");
    let slow =
        seconds(&["get", "-r", "-j", "1", &format!("{far}/eight"), folder.join("slow").to_str().unwrap()]);
    let fast = seconds(&["get", "-r", &format!("{far}/eight"), back.to_str().unwrap()]);
    assert!(fast < slow / 2.0, "{slow} s one at a time, {fast} s eight at once");
    assert_same_tree(Path::new(tree), &back);
    assert_same_tree(Path::new(tree), &folder.join("slow"));
}

/// Time on a processor of `stag` with these arguments.
fn processor_time(arguments: &[&str]) -> Duration {
    let mut child = Command::new(STAG).args(arguments).stdout(Stdio::null()).spawn().unwrap();
    // Waited for by hand: the child's own times come with it.
    // SAFETY: the type is of integers, for which zeros are values.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let mut status = 0;
    let id = libc::pid_t::try_from(child.id()).unwrap();
    // SAFETY: both pointers are to locals that live; the child is ours and not waited for yet.
    let waited = unsafe { libc::wait4(id, &raw mut status, 0, &raw mut usage) };
    assert_eq!((waited, status), (id, 0));
    let _ = child.try_wait();
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, 1000 * time.tv_usec as u32);
    time(usage.ru_utime) + time(usage.ru_stime)
}

#[test]
fn to_wait_for_a_server_takes_no_processor_time() {
    let (server, folder) = (Server::with_data_over_iwarp(), Folder::new("idle"));
    let port = slow_proxy(server.url.strip_prefix("iwarp://").unwrap(), Duration::from_millis(8));
    let far = format!("iwarp://127.0.0.1:{port}/data");
    for index in 0..100 {
        fs::write(folder.join(&format!("{index}")), [index]).unwrap();
    }
    let target = format!("{far}/tree");
    let time = processor_time(&["put", "-r", "-j", "1", folder.0.to_str().unwrap(), &target]);
    // 200 Calls of 16 ms: polling through would take more than 3 s.
    assert!(time < Duration::from_millis(1200), "{time:?} on a processor");
}

fn used(server: &Server) -> u64 {
    let space = &stag_json(&["df", &server.at("data")])[0];
    space["bytes_total"].as_u64().unwrap() - space["bytes_free"].as_u64().unwrap()
}

/// A file with data at these places, and holes between.
fn sparse(path: &Path, len: u64, data: &[(u64, usize)]) {
    let file = File::create(path).unwrap();
    for (place, len) in data {
        file.write_all_at(&content(*len, *place as u8), *place).unwrap();
    }
    file.set_len(len).unwrap();
}

fn assert_same_octets(left: &Path, right: &Path) {
    let status = Command::new("cmp").args([left, right]).status().unwrap();
    assert!(status.success(), "{} and {} differ", left.display(), right.display());
}

#[test]
fn holes_stay_holes_there_and_back() {
    let (one, two, folder) = (Server::with_data(), Server::with_data(), Folder::new("holes"));
    let len = 1 << 30;
    let data = [(0, 100), (300 << 20, 500_000), ((600 << 20) + 5, 4096), (len - 4096 - 7, 1000)];
    let (sent, back) = (folder.join("sent"), folder.join("back"));
    sparse(&sent, len, &data);
    let copied = &stag_json(&["put", sent.to_str().unwrap(), &one.at("data/file")])[0];
    assert_eq!(copied["bytes"], len);
    assert!(copied["hole_bytes"].as_u64().unwrap() > len - (1 << 20), "{copied}");
    // The server has 64 MiB.
    assert!(used(&one) < 1 << 20, "{} octets used", used(&one));
    stag_ok(&["cp", &one.at("data/file"), &two.at("data/file")]);
    assert!(used(&two) < 1 << 20, "{} octets used", used(&two));
    stag_ok(&["get", &two.at("data/file"), back.to_str().unwrap()]);
    assert_same_octets(&sent, &back);
    let blocks = fs::metadata(&back).unwrap().blocks();
    assert!(512 * blocks < 2 << 20, "{blocks} blocks");
}

#[test]
fn files_of_nothing_but_holes_keep_their_length() {
    let (server, folder) = (Server::with_data(), Folder::new("empty"));
    for (index, len) in [0, 1, 4095, 4096, (33 << 20) + 1].into_iter().enumerate() {
        let (sent, back) = (folder.join(&format!("{index}")), folder.join(&format!("back-{index}")));
        sparse(&sent, len, &[]);
        let url = server.at(&format!("data/{index}"));
        stag_ok(&["put", sent.to_str().unwrap(), &url]);
        assert_eq!(stag_json(&["stat", &url])[0]["size"], len);
        stag_ok(&["get", &url, back.to_str().unwrap()]);
        assert_same_octets(&sent, &back);
        // Onto a longer one, of which nothing must shine through.
        fs::write(&back, content(50_000, 1)).unwrap();
        stag_ok(&["get", &url, back.to_str().unwrap()]);
        assert_same_octets(&sent, &back);
    }
    assert!(used(&server) < 1 << 16);
}

#[test]
fn a_copy_that_fails_leaves_nothing_incomplete() {
    let (server, folder) = (Server::with_data(), Folder::new("full"));
    let tree = folder.join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("big"), content(80 << 20, 1)).unwrap();
    for arguments in [
        vec!["put", folder.join("tree/big").to_str().unwrap(), &server.at("data/big")],
        vec!["put", "-r", tree.to_str().unwrap(), &server.at("data/tree")],
    ] {
        let complaint = stag_fails(&arguments);
        assert!(complaint.contains("no space left") && !complaint.contains("incomplete"), "{complaint}");
        assert_eq!(used(&server) / (1 << 20), 0, "{arguments:?}");
    }
    assert!(stag_fails(&["stat", &server.at("data/big")]).contains("no such file"));
    // One that was there is not removed, but it does not keep the space either.
    let small = folder.join("small");
    fs::write(&small, b"before").unwrap();
    stag_ok(&["put", small.to_str().unwrap(), &server.at("data/big")]);
    let complaint = stag_fails(&["put", tree.join("big").to_str().unwrap(), &server.at("data/big")]);
    assert!(complaint.contains("data/big is empty: its content had been overwritten"), "{complaint}");
    assert_eq!(stag_json(&["stat", &server.at("data/big")])[0]["size"], 0);
}

/// A copy that a signal interrupts in the middle: it ends as shells expect, and removes what it had begun.
#[test]
fn an_interrupted_copy_leaves_nothing_incomplete() {
    for (signal, to_server) in [(libc::SIGINT, true), (libc::SIGTERM, true), (libc::SIGINT, false)] {
        let server = Server::start_at(
            crate::common::ANY_IWARP_PORT,
            &["--memory", "256M", "--export", "mem:/data,root_squash=no"],
        );
        let folder = Folder::new("interrupted");
        // Slow enough that it is never over before the signal.
        let address = server.url.strip_prefix("iwarp://").unwrap().to_owned();
        let port = slow_proxy(&address, Duration::from_millis(40));
        let far = format!("iwarp://127.0.0.1:{port}/data");
        let (big, back) = (folder.join("big"), folder.join("back"));
        fs::write(&big, content(60 << 20, 1)).unwrap();
        let (from, to) = if to_server {
            (big.to_str().unwrap().to_owned(), format!("{far}/big"))
        } else {
            stag_ok(&["put", big.to_str().unwrap(), &server.at("data/big")]);
            (format!("{far}/big"), back.to_str().unwrap().to_owned())
        };
        let before = used(&server);
        let mut child = Command::new(STAG)
            .args(["cp", &from, &to])
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // It has begun to write.
        loop {
            let has_begun = if to_server { used(&server) > before } else { back.exists() };
            assert!(child.try_wait().unwrap().is_none(), "it is over already");
            if has_begun {
                break;
            }
            thread::yield_now();
        }
        let id = libc::pid_t::try_from(child.id()).unwrap();
        // SAFETY: a plain system call; the child is ours and not waited for yet.
        assert_eq!(unsafe { libc::kill(id, signal) }, 0);
        let mut said = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(128 + signal), "{said}");
        assert!(said.contains("interrupted after 0 files") && !said.contains("incomplete"), "{said}");
        assert_eq!(used(&server), before);
        assert!(!back.exists());
    }
}

#[test]
fn what_exists_is_treated_as_cp_does() {
    let (server, folder) = (Server::with_data(), Folder::new("exists"));
    let at = |path: &str| server.at(&format!("data/{path}"));
    let (tree, file) = (folder.join("tree"), folder.join("file"));
    fs::create_dir_all(tree.join("inner")).unwrap();
    fs::write(tree.join("inner/a"), b"a").unwrap();
    symlink("inner/a", tree.join("link")).unwrap();
    fs::write(&file, b"file").unwrap();
    let (tree_text, file_text) = (tree.to_str().unwrap(), file.to_str().unwrap());

    // Trees merge, links are made anew, files are overwritten.
    stag_ok(&["put", "-r", tree_text, &at("tree")]);
    fs::write(tree.join("inner/a"), b"longer").unwrap();
    fs::write(tree.join("b"), b"b").unwrap();
    fs::remove_file(tree.join("link")).unwrap();
    symlink("b", tree.join("link")).unwrap();
    stag_ok(&["put", "-rT", tree_text, &at("tree")]);
    stag_ok(&["get", "-r", &at("tree"), folder.join("back").to_str().unwrap()]);
    assert_same_tree(&tree, &folder.join("back"));
    stag_ok(&["get", "-rT", &at("tree"), folder.join("back").to_str().unwrap()]);
    assert_same_tree(&tree, &folder.join("back"));
    // Into a folder that is there; -T is its name.
    stag_ok(&["put", file_text, &at("tree")]);
    assert_eq!(stag_ok(&["cat", &at("tree/file")]), "file");
    let complaint = stag_fails(&["put", "-T", file_text, &at("tree")]);
    assert!(complaint.contains("data/tree: is a folder"), "{complaint}");
    // A folder does not become a file, nor a file a folder.
    stag_ok(&["put", file_text, &at("plain")]);
    assert!(stag_fails(&["put", "-r", tree_text, &at("plain")]).contains("data/plain: exists already"));
    assert!(stag_fails(&["get", "-r", &at("tree"), file_text]).contains("file: File exists"));
    stag_ok(&["mkdir", &at("tree/inner/a2")]);
    fs::write(tree.join("inner/a2"), b"").unwrap();
    assert!(stag_fails(&["put", "-rT", tree_text, &at("tree")]).contains("inner/a2: is a folder"));
    // A mode that is there stays, and a file is not copied onto itself.
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    stag_ok(&["get", &at("plain"), file_text]);
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o600);
    assert!(stag_fails(&["cp", &at("plain"), &at("plain")]).contains("source and target are the same"));
    assert!(stag_fails(&["cp", "-r", tree_text, &format!("{tree_text}/inner/deeper")]).contains("lies in"));
}

/// One object after the other fails, in the middle of a tree: each is named, and the rest is copied.
#[test]
fn what_fails_in_a_tree_does_not_end_its_copy() {
    let (server, folder) = (Server::with_data(), Folder::new("goes-on"));
    let tree = folder.join("tree");
    fs::create_dir_all(tree.join("inner")).unwrap();
    for index in 0..30 {
        fs::write(tree.join(format!("{index:02}")), content(2000, index)).unwrap();
        fs::write(tree.join(format!("inner/{index:02}")), content(100, index)).unwrap();
    }
    let taken = ["05", "inner/00", "inner/29"];
    fs::hard_link(tree.join("inner/00"), tree.join("inner/second")).unwrap();
    symlink("05", tree.join("link")).unwrap();
    let tree_text = tree.to_str().unwrap();
    for (jobs, kept) in [("1", "-rT"), ("8", "-rT"), ("8", "-rpT")] {
        let target = server.at(&format!("data/{jobs}{kept}"));
        stag_ok(&["mkdir", &target]);
        stag_ok(&["mkdir", &format!("{target}/inner")]);
        for name in taken {
            stag_ok(&["mkdir", &format!("{target}/{name}")]);
        }
        let output = stag(&["--json", "put", kept, "-j", jobs, tree_text, &target]);
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{complaint}");
        let error = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["error"].clone();
        let mut errors: Vec<_> =
            complaint.lines().map(|line| error(line).as_str().unwrap().to_owned()).collect();
        errors.sort_unstable();
        let expected = taken.map(|name| format!("{target}/{name}: is a folder"));
        assert_eq!(errors, expected, "-j {jobs}");
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&told["failed"], &told["files"]), (&3.into(), &58.into()), "{told}");
        // Back, into a tree where folders and files have changed places once more.
        let back = folder.join(&format!("back{jobs}{kept}"));
        fs::create_dir_all(back.join("inner/01")).unwrap();
        for name in taken {
            stag_ok(&["rm", "-r", &format!("{target}/{name}")]);
        }
        let output = stag(&["get", kept, "-j", jobs, &target, back.to_str().unwrap()]);
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), complaint.lines().count()), (Some(1), 1), "{complaint}");
        assert!(complaint.contains("inner/01: "), "{complaint}");
        let summary = String::from_utf8(output.stdout).unwrap();
        assert!(summary.contains("not copied: 1 object, named on standard error"), "{summary}");
        fs::remove_dir(back.join("inner/01")).unwrap();
        fs::copy(tree.join("inner/01"), back.join("inner/01")).unwrap();
        for name in taken {
            fs::copy(tree.join(name), back.join(name)).unwrap();
        }
        assert_same_tree(&tree, &back);
    }
}

/// What may not be read is not copied either; nothing of it is made.
#[test]
fn what_may_not_be_read_in_a_tree_does_not_end_its_copy() {
    let folder = Folder::new("unreadable");
    let tree = folder.join("tree");
    fs::create_dir_all(tree.join("closed")).unwrap();
    for (name, mode) in [("a", 0o644), ("b", 0o600), ("c", 0o644), ("closed", 0o700)] {
        if name != "closed" {
            fs::write(tree.join(name), name).unwrap();
        }
        fs::set_permissions(tree.join(name), Permissions::from_mode(mode)).unwrap();
    }
    if fs::metadata(&tree).unwrap().uid() != 0 {
        return stag_testing::skipped("only root is somebody else on the server");
    }
    fs::set_permissions(&tree, Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&folder.0, Permissions::from_mode(0o755)).unwrap();
    let server = Server::start(&["--export", &format!("dir:{}", tree.display())]);
    let (url, back) = (server.at(&tree.display().to_string()[1..]), folder.join("back"));
    let output = stag(&["get", "-r", &url, back.to_str().unwrap()]);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    let mut lines: Vec<&str> = complaint.lines().collect();
    lines.sort_unstable();
    for (line, name) in lines.iter().zip(["b", "closed"]) {
        assert!(line.starts_with(&format!("stag: {url}/{name}: permission denied")), "{line}");
        // Who runs as root, and is not root there, is told why.
        assert!(line.contains("export with root_squash=no, or chown the folder"), "{line}");
    }
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(
        (fs::read(back.join("a")).unwrap(), fs::read(back.join("c")).unwrap()),
        (b"a".into(), b"c".into())
    );
    assert!(!back.join("b").exists());
}

#[test]
fn attributes_are_kept_if_wanted_and_their_loss_is_said() {
    let (server, folder) = (Server::with_data(), Folder::new("attributes"));
    let tree = folder.join("tree");
    fs::create_dir_all(tree.join("closed")).unwrap();
    let write = |name: &str, mode: u32| {
        fs::write(tree.join(name), name).unwrap();
        fs::set_permissions(tree.join(name), Permissions::from_mode(mode)).unwrap();
    };
    write("plain", 0o640);
    write("set-id", 0o6755);
    write("closed/inner", 0o400);
    fs::hard_link(tree.join("plain"), tree.join("closed/second")).unwrap();
    fs::hard_link(tree.join("plain"), tree.join("third")).unwrap();
    symlink("plain", tree.join("link")).unwrap();
    let is_root = fs::metadata(&tree).unwrap().uid() == 0;
    if is_root {
        std::os::unix::fs::lchown(tree.join("link"), Some(7), Some(8)).unwrap();
        std::os::unix::fs::chown(tree.join("set-id"), Some(1234), Some(5678)).unwrap();
        fs::set_permissions(tree.join("set-id"), Permissions::from_mode(0o6755)).unwrap();
    }
    let time = std::time::SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    for name in ["plain", "set-id", "closed/inner", "closed"] {
        let times = fs::FileTimes::new().set_accessed(time).set_modified(time + Duration::from_secs(1));
        File::open(tree.join(name)).unwrap().set_times(times).unwrap();
    }
    // Root may fill it all the same; others need the permission that the copy only has meanwhile.
    fs::set_permissions(tree.join("closed"), Permissions::from_mode(0o1555)).unwrap();

    let copied = &stag_json(&["put", "-rp", tree.to_str().unwrap(), &server.at("data/kept")])[0];
    assert_eq!((copied["files"].as_u64(), copied["hard_links"].as_u64()), (Some(3), Some(2)), "{copied}");
    stag_ok(&["get", "-r", "--preserve", &server.at("data/kept"), folder.join("kept").to_str().unwrap()]);
    let seen = |path: &Path| {
        let metadata = fs::symlink_metadata(path).unwrap();
        let mode = if metadata.is_symlink() { 0 } else { metadata.mode() };
        let times =
            if metadata.is_symlink() { None } else { Some((metadata.mtime(), metadata.mtime_nsec())) };
        (mode, metadata.uid(), metadata.gid(), metadata.nlink(), times)
    };
    for name in ["plain", "set-id", "closed/inner", "closed/second", "third", "link", "closed"] {
        assert_eq!(seen(&tree.join(name)), seen(&folder.join("kept").join(name)), "{name}");
    }
    let id = |name: &str| fs::metadata(folder.join("kept").join(name)).unwrap().ino();
    assert_eq!((id("plain"), id("plain")), (id("third"), id("closed/second")));

    // Without it: plain modes, files of their own, and a word about it.
    let bare = &stag_json(&["put", "-r", tree.to_str().unwrap(), &server.at("data/bare")])[0];
    let not_kept = &bare["not_kept"];
    assert_eq!(
        (&bare["files"], &not_kept["special_bits"], &not_kept["hard_links"]),
        (&5.into(), &2.into(), &3.into()),
        "{bare}"
    );
    stag_ok(&["get", "-r", &server.at("data/bare"), folder.join("bare").to_str().unwrap()]);
    let mode = |name: &str| fs::metadata(folder.join("bare").join(name)).unwrap().mode() & 0o7777;
    assert_eq!((mode("set-id"), mode("closed"), mode("closed/inner")), (0o755, 0o555, 0o400));
    let told = stag_ok(&["put", "-rT", tree.to_str().unwrap(), &server.at("data/bare")]);
    assert!(
        told.contains("not kept of 2 objects: set-user-ID")
            && told.contains("not kept of 3 objects: hard links")
    );
}

#[test]
fn the_summary_counts_in_words_and_says_what_was_left_out() {
    let (server, folder) = (Server::with_data(), Folder::new("summary"));
    let tree = folder.join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("one"), content(138, 1)).unwrap();
    let _socket = UnixListener::bind(tree.join("socket")).unwrap();
    let told = stag_ok(&["put", "-r", tree.to_str().unwrap(), &server.at("data")]);
    let mut lines = told.lines();
    let first = lines.next().unwrap();
    assert!(first.starts_with("1 file, 1 folder, 138 B in ") && first.ends_with("B/s)"), "{told}");
    assert_eq!(lines.next(), Some("left out 1 object, neither file, folder nor symbolic link:"));
    assert_eq!(lines.next(), Some(&*format!("  {}/socket: socket", tree.display())));
    let copied = &stag_json(&["put", "-r", tree.to_str().unwrap(), &server.at("data")])[0];
    assert_eq!((&copied["skipped"], &copied["left_out"][0]["kind"]), (&1.into(), &"socket".into()));
    // A complaint stands alone.
    let output = stag(&["df", &server.at("data/none")]);
    assert_eq!((output.status.code(), output.stdout), (Some(1), Vec::new()));
}
