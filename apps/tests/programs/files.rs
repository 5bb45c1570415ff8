//! Every file command against a real server.

use std::fs;
use std::os::unix::fs::symlink;

use crate::common::{
    Folder, Server, assert_same_tree, content, free_iwarp_url, stag, stag_fails, stag_json, stag_ok, unique,
};
use serde_json::Value;

/// Lengths around the limits of inline data, pages and transfers.
const LENGTHS: [usize; 9] = [0, 1, 1024, 1025, 4096, 4097, 1 << 20, (1 << 20) + 1, (5 << 20) + 123];

#[test]
fn a_file_of_any_length_comes_back_as_it_went() {
    files_of_any_length(Server::with_data());
}

#[test]
fn a_file_of_any_length_comes_back_as_it_went_over_iwarp() {
    files_of_any_length(Server::with_data_over_iwarp());
}

fn files_of_any_length(server: Server) {
    let folder = Folder::new("lengths");
    for (seed, len) in LENGTHS.into_iter().enumerate() {
        let (sent, back) = (folder.join("sent"), folder.join("back"));
        let url = server.at(&format!("data/file-{len}"));
        fs::write(&sent, content(len, seed as u8)).unwrap();
        let copied = &stag_json(&["put", sent.to_str().unwrap(), &url])[0];
        assert_eq!((copied["files"].as_u64(), copied["bytes"].as_u64()), (Some(1), Some(len as u64)));
        stag_ok(&["get", &url, back.to_str().unwrap()]);
        assert!(fs::read(&back).unwrap() == content(len, seed as u8), "{len} bytes by get");
        assert!(stag(&["cat", &url]).stdout == content(len, seed as u8), "{len} bytes by cat");
        assert_eq!(stag_json(&["stat", &url])[0]["size"], len);
    }
    // A shorter file in the stead of a longer one leaves nothing of it.
    let (short, url) = (folder.join("short"), server.at("data/file-4097"));
    fs::write(&short, b"short").unwrap();
    stag_ok(&["put", short.to_str().unwrap(), &url]);
    assert_eq!(stag_ok(&["cat", &url]), "short");
    let (stopped, status) = server.stop();
    assert!(status.success(), "{stopped}");
    assert_eq!(stopped["leaked"], 0);
}

/// A tree goes there and back, whatever both ends agree to speak. Returns what the server counted.
fn tree_there_and_back(url: &str, flags: &[&str], lengths: &[usize]) -> Value {
    let folder = Folder::new("dialect");
    let (tree, back) = (folder.join("tree"), folder.join("back"));
    fs::create_dir(&tree).unwrap();
    for (seed, len) in lengths.iter().enumerate() {
        fs::write(tree.join(len.to_string()), content(*len, seed as u8)).unwrap();
    }
    let export = ["--export", "mem:/data,root_squash=no", "--connections-max", "4"];
    let server = Server::start_at(url, &[&export, flags].concat());
    let (tree, back, there) = (tree.to_str().unwrap(), back.to_str().unwrap(), server.at("data/tree"));
    stag_ok(&[flags, &["put", "-r", tree, &there]].concat());
    stag_ok(&[flags, &["get", "-r", &there, back]].concat());
    assert_same_tree(tree.as_ref(), back.as_ref());
    let (stopped, status) = server.stop();
    assert!(status.success() && stopped["leaked"] == 0, "{flags:?}: {stopped}");
    stopped["counters"].clone()
}

/// `is_dear`: over this fabric data costs less by RDMA, so it is not in messages of version 2 either.
fn trees_there_and_back(url: &dyn Fn() -> String, is_dear: bool) {
    let dialects: [&[&str]; 4] = [
        &["--protocol", "auto"],
        &["--protocol", "2"],
        &["--protocol", "1", "--reliable-reply"],
        &["--protocol", "auto", "--reliable-reply"],
    ];
    for flags in dialects {
        tree_there_and_back(&url(), flags, &LENGTHS);
        // Data of up to a page is in the messages of version 2, and in chunks of version 1.
        let counters = tree_there_and_back(&url(), flags, &[1, 1024, 4096]);
        let chunks =
            [&counters["read_chunks"], &counters["write_chunks"]].map(|count| count.as_u64().unwrap());
        let is_in_messages = flags[1] != "1" && !is_dear;
        assert_eq!(chunks.map(|count| count == 0), [is_in_messages; 2], "{flags:?}: {counters}");
    }
}

#[test]
fn a_tree_comes_back_whatever_is_agreed_on() {
    trees_there_and_back(&|| format!("shm://{}", unique("dialect")), true);
}

#[test]
fn a_tree_comes_back_whatever_is_agreed_on_over_iwarp() {
    trees_there_and_back(&free_iwarp_url, false);
}

#[test]
fn a_walk_through_every_command() {
    walk(Server::with_data());
}

#[test]
fn a_walk_through_every_command_over_iwarp() {
    walk(Server::with_data_over_iwarp());
}

fn walk(server: Server) {
    let folder = Folder::new("walk");
    let at = |path: &str| server.at(path);

    let pings = stag_ok(&["ping", "-c", "3", &server.url]);
    assert!(
        pings.lines().count() == 4
            && pings.contains("3 Calls answered: min ")
            && pings.contains(" credits granted"),
        "{pings}"
    );
    let pinged = &stag_json(&["ping", &server.url])[0];
    assert_eq!(pinged["calls"], 10);
    assert!(pinged["min_ns"].as_u64() > Some(0) && pinged["max_ns"].as_u64() >= pinged["min_ns"].as_u64());

    assert_eq!(stag_ok(&["ls", &server.url]), "/data\n");
    assert_eq!(stag_json(&["ls", &server.url])[0]["export"], "/data");
    assert_eq!(stag_ok(&["ls", &at("data")]), "");

    // mkdir, alone and with parents.
    stag_ok(&["mkdir", &at("data/a")]);
    assert!(stag_fails(&["mkdir", &at("data/a")]).contains("exists already"));
    stag_ok(&["mkdir", "-p", &at("data/a")]);
    assert!(stag_fails(&["mkdir", &at("data/x/y")]).contains("no such file"));
    assert_eq!(stag_json(&["mkdir", "-p", &at("data/x/y/z")])[0]["folders"], 3);

    // put into a folder, ls, stat.
    let notes = folder.join("notes");
    fs::write(&notes, b"hello\n").unwrap();
    stag_ok(&["put", notes.to_str().unwrap(), &at("data/a")]);
    assert_eq!(stag_ok(&["ls", &at("data")]), "a/\nx/\n");
    assert_eq!(stag_ok(&["ls", &at("data/a")]), "notes\n");
    let long = stag_ok(&["ls", "-l", &at("data/a")]);
    assert!(long.starts_with("-rw") && long.trim_end().ends_with(" notes"), "{long}");
    let stat = &stag_json(&["stat", &at("data/a/notes")])[0];
    assert_eq!((stat["kind"].as_str(), stat["size"].as_u64()), (Some("file"), Some(6)));
    assert!(stag_ok(&["stat", &at("data/a")]).contains("kind  folder"));

    // cp within the server, from it and to it.
    stag_ok(&["cp", &at("data/a/notes"), &at("data/copy")]);
    assert_eq!(stag_ok(&["cat", &at("data/copy"), &at("data/a/notes")]), "hello\nhello\n");
    stag_ok(&["cp", &at("data/copy"), folder.join("copy").to_str().unwrap()]);
    assert_eq!(fs::read(folder.join("copy")).unwrap(), b"hello\n");
    assert!(stag_fails(&["cp", &at("data/a"), &at("data/b")]).contains("is a folder; -r copies it"));
    assert!(stag_fails(&["cp", "-r", &at("data/a"), &at("data/a/b")]).contains("the folder to copy"));

    // mv to a name, and into a folder.
    let fileid = |path: &str| stag_json(&["stat", &server.at(path)])[0]["fileid"].as_u64();
    let before = fileid("data/copy");
    stag_ok(&["mv", &at("data/copy"), &at("data/moved")]);
    stag_ok(&["mv", &at("data/moved"), &at("data/x/y")]);
    assert_eq!(fileid("data/x/y/moved"), before);
    assert!(stag_fails(&["stat", &at("data/copy")]).contains("no such file"));

    // df counts the files.
    let used = || {
        let space = &stag_json(&["df", &server.at("data")])[0];
        space["bytes_total"].as_u64().unwrap() - space["bytes_free"].as_u64().unwrap()
    };
    assert!(used() >= 8192, "two files of a page each");
    assert!(stag_ok(&["df", &server.url]).lines().count() == 2);

    // rm.
    assert!(stag_fails(&["rm", &at("data/x")]).contains("is a folder; -r removes it"));
    let removed = &stag_json(&["rm", "-r", &at("data/x")])[0];
    assert_eq!((removed["files"].as_u64(), removed["folders"].as_u64()), (Some(1), Some(3)));
    stag_ok(&["rm", &at("data/a/notes")]);
    stag_ok(&["rm", "-r", &at("data/a")]);
    assert_eq!(stag_ok(&["ls", &at("data")]), "");
    assert_eq!(used(), 0);

    let (stopped, status) = server.stop();
    assert!(status.success(), "{stopped}");
    assert!(stopped["ledger"].as_str().unwrap().starts_with("no buffer leaked"), "{stopped}");
}

#[test]
fn a_tree_goes_from_machine_to_server_to_server_to_machine() {
    let (one, two, folder) = (Server::with_data(), Server::with_data(), Folder::new("trees"));
    let tree = folder.join("tree");
    fs::create_dir_all(tree.join("deep/er/est")).unwrap();
    fs::create_dir(tree.join("empty")).unwrap();
    for (seed, len) in LENGTHS.into_iter().enumerate() {
        fs::write(tree.join(format!("deep/er/{len}")), content(len, seed as u8)).unwrap();
    }
    // More names than one READDIRPLUS tells.
    for index in 0..700 {
        fs::write(tree.join(format!("deep/er/est/{index}-{}", "n".repeat(100))), [index as u8]).unwrap();
    }
    symlink("../nowhere", tree.join("deep/link")).unwrap();

    stag_ok(&["put", "-r", tree.to_str().unwrap(), &one.at("data")]);
    let copied = &stag_json(&["cp", "-r", &one.at("data/tree"), &two.at("data/copy")])[0];
    assert_eq!((copied["files"].as_u64(), copied["links"].as_u64()), (Some(709), Some(1)));
    stag_ok(&["get", "-r", &two.at("data/copy"), folder.join("back").to_str().unwrap()]);
    assert_same_tree(&tree, &folder.join("back"));

    assert_eq!(stag_json(&["rm", "-r", &two.at("data/copy")])[0]["files"], 710);
    for server in [one, two] {
        let (stopped, status) = server.stop();
        assert!(status.success(), "{stopped}");
    }
}

#[test]
fn what_cannot_be_done_is_said_on_one_line() {
    let server = Server::start(&["--export", "mem:/data,root_squash=no", "--export", "mem:/fixed,ro"]);
    let folder = Folder::new("refusals");
    let big = folder.join("big");
    fs::write(&big, content(80 << 20, 1)).unwrap();
    let big = big.to_str().unwrap();
    for (arguments, part) in [
        (vec!["cat", &server.at("data/none")], "data/none: no such file"),
        (vec!["ls", &server.at("other")], "is in no export; the server has: /data, /fixed"),
        (vec!["cat", &server.at("data")], "is a folder"),
        (vec!["rm", &server.url], "names a server; add an export and a path"),
        (vec!["mkdir", &server.at("fixed/a")], "the export is read-only"),
        (
            vec!["put", big, &server.at("data/big")],
            "no space left in this export (`stag df` shows it); raise its size= or the server's --memory",
        ),
        (vec!["put", "/no/such", &server.at("data")], "/no/such: no such file"),
        (vec!["ping", "shm://absent-server"], "no server listens there; start one: stagd --export"),
    ] {
        let complaint = stag_fails(&arguments);
        assert!(complaint.contains(part), "{part:?} is not in {complaint:?}");
    }
    // Nothing was lost, nothing incomplete is left, and the server goes on.
    assert_eq!(stag_ok(&["ls", &server.at("data")]), "");
    let space = &stag_json(&["df", &server.at("data")])[0];
    assert_eq!(space["bytes_free"], space["bytes_total"]);
    let (stopped, status) = server.stop();
    assert!(status.success(), "{stopped}");
}

/// What is fetched as a tree stays below where it was wanted, whatever links lie there already: a server could
/// list a name twice, first as a link.
#[test]
fn a_fetched_tree_follows_no_link() {
    let (server, folder) = (Server::with_data(), Folder::new("links"));
    let (outside, back) = (folder.join("outside"), folder.join("back"));
    fs::create_dir_all(folder.join("tree/deep")).unwrap();
    fs::write(folder.join("tree/deep/file"), b"new").unwrap();
    stag_ok(&["put", "-r", folder.join("tree").to_str().unwrap(), &server.at("data")]);
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("file"), b"old").unwrap();

    fs::create_dir_all(back.join("tree")).unwrap();
    symlink(&outside, back.join("tree/deep")).unwrap();
    let complaint = stag_fails(&["get", "-r", &server.at("data/tree"), back.to_str().unwrap()]);
    assert!(complaint.contains("back/tree/deep: File exists"), "{complaint}");

    fs::remove_file(back.join("tree/deep")).unwrap();
    fs::create_dir(back.join("tree/deep")).unwrap();
    symlink(outside.join("file"), back.join("tree/deep/file")).unwrap();
    stag_fails(&["get", "-r", &server.at("data/tree"), back.to_str().unwrap()]);
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"old");
}

/// An export is the server's, and a complaint is all that a failed command prints.
#[test]
fn an_export_is_no_file_of_the_clients() {
    let server = Server::with_data();
    let export = server.at("data");
    for arguments in [&["rm", "-r", &export][..], &["mkdir", &export], &["mv", &export, &server.at("data/a")]]
    {
        let complaint = stag_fails(arguments);
        assert!(
            complaint.contains("/data: is an export; clients can neither make, move nor remove it"),
            "{complaint}"
        );
    }
    let complaint = stag_fails(&["mkdir", &server.at("nowhere/a")]);
    assert!(complaint.contains("is in no export; the server has: /data"), "{complaint}");
    let absent = stag(&["df", &server.at("data/absent")]);
    assert_eq!((absent.status.code(), absent.stdout.len()), (Some(1), 0));
}
