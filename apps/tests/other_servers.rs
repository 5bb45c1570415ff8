//! `stag` and servers that answer otherwise than ours does: later, not of every file, or without READDIRPLUS.

#[expect(dead_code, reason = "shared with the other tests, which use other parts")]
mod common;
#[path = "common/other_server.rs"]
mod other_server;

use std::collections::HashMap;
use std::fs;

use common::{Folder, assert_same_tree, stag, stag_json, stag_ok};
use other_server::{Answer, OtherServer};
use serde_json::Value;
use stag::rpc::Call;
use stag::wire::nfs3::{DirectoryName, Procedure, Status};

/// Each procedure wants to be asked again later twice, and once more every third time.
fn later() -> impl FnMut(Procedure, &Call<'_>) -> Answer + Send {
    let (mut calls, mut xids) = (HashMap::new(), Vec::new());
    move |procedure, call| {
        assert!(!xids.contains(&call.xid), "{procedure:?}: each Call has an xid of its own");
        xids.push(call.xid);
        let number: &mut u32 = calls.entry(procedure.number()).or_default();
        *number += 1;
        match *number {
            1 | 2 | 7 => Answer::Status(Status::Jukebox),
            _ => Answer::Right,
        }
    }
}

#[test]
fn every_command_waits_for_a_server_that_wants_to_be_asked_later() {
    let folder = Folder::new("later");
    let tree = folder.join("tree");
    fs::create_dir_all(tree.join("deep")).unwrap();
    fs::write(tree.join("deep/file"), vec![7; 3 << 20]).unwrap();
    fs::hard_link(tree.join("deep/file"), tree.join("deep/other")).unwrap();
    std::os::unix::fs::symlink("deep/file", tree.join("link")).unwrap();
    let (file, tree) = (tree.join("deep/file"), tree.to_str().unwrap());
    let back = folder.join("back");
    // Each command meets a server that has not said so before.
    let again = || OtherServer::start(later());
    let server = again();
    stag_ok(&["put", "-r", "-p", tree, &server.at("data/tree")]);
    stag_ok(&["get", "-r", "-p", &server.at("data/tree"), back.to_str().unwrap()]);
    assert_same_tree(tree.as_ref(), &back);
    stag_ok(&["cp", &server.at("data/tree/deep/file"), &server.at("data/copy")]);
    stag_ok(&["rm", "-r", &server.at("data/tree")]);
    assert_eq!(stag_ok(&["ls", &server.at("data")]), "copy\n");
    for arguments in [["ls"].as_slice(), &["stat"], &["df"], &["mkdir", "-p"], &["rm", "-r"]] {
        let server = again();
        let url = server.at(if arguments[0] == "ls" { "data" } else { "data/a" });
        if arguments[0] != "mkdir" {
            stag_ok(&["mkdir", &server.at("data/a")]);
        }
        stag_ok(&[arguments, &[&url]].concat());
    }
    let server = again();
    stag_ok(&["put", file.to_str().unwrap(), &server.at("data/a")]);
    assert_eq!(stag(&["cat", &server.at("data/a")]).stdout, fs::read(&file).unwrap());
    stag_ok(&["mv", &server.at("data/a"), &server.at("data/b")]);
    stag_ok(&["rm", &server.at("data/b")]);
}

/// The name that a LOOKUP or another Call begins with.
fn name_of(call: &Call<'_>) -> Option<Vec<u8>> {
    call.arguments().value::<DirectoryName<'_>>().ok().map(|place| place.name.0.to_vec())
}

/// READDIRPLUS tells names alone, and LOOKUP refuses some of them.
fn refuses_one(procedure: Procedure, call: &Call<'_>) -> Answer {
    match (procedure, name_of(call).as_deref()) {
        (Procedure::Readdirplus, _) => Answer::Status(Status::NotSupp),
        (Procedure::Lookup, Some(b"mp")) => Answer::Status(Status::Acces),
        (Procedure::Lookup, Some(b"gone")) => Answer::Status(Status::NoEnt),
        (Procedure::Lookup, Some(b"stale")) => Answer::Status(Status::Stale),
        (Procedure::Remove, Some(b"kept")) => Answer::Status(Status::Acces),
        _ => Answer::Right,
    }
}

/// A tree at a server, with entries of which it tells nothing.
fn tree_with_refusals(folder: &Folder, server: &OtherServer) -> String {
    let tree = folder.join("tree");
    for path in ["a/one", "mp/inside", "three", "gone", "stale", "z/two"] {
        let path = tree.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"content").unwrap();
    }
    stag_ok(&["put", "-r", tree.to_str().unwrap(), &server.at("data/tree")]);
    server.at("data/tree")
}

fn complaints(output: &std::process::Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn an_entry_that_is_refused_ends_no_listing() {
    let (folder, server) = (Folder::new("refused"), OtherServer::start(refuses_one));
    let url = tree_with_refusals(&folder, &server);

    let listed = stag(&["ls", &url]);
    assert_eq!(complaints(&listed), format!("stag: {url}/mp: permission denied\n"));
    assert_eq!(String::from_utf8(listed.stdout).unwrap(), "a/\nmp\nthree\nz/\n");
    let listed = stag(&["ls", "-l", &url]);
    assert_eq!(complaints(&listed).lines().count(), 1);
    let long = String::from_utf8(listed.stdout).unwrap();
    let unknown = long.lines().find(|line| line.ends_with(" mp")).expect("it is listed");
    assert!(unknown.starts_with("?????????? ") && long.lines().count() == 4, "{long}");
    let widths: Vec<_> = long.lines().map(|line| line.rfind(' ')).collect();
    assert!(widths.windows(2).all(|pair| pair[0] == pair[1]), "{long}");

    let listed = stag(&["--json", "ls", &url]);
    let error: Value = serde_json::from_slice(&listed.stderr).unwrap();
    assert_eq!((listed.status.code(), error["event"].as_str()), (Some(1), Some("error")));
    assert!(
        String::from_utf8(listed.stdout).unwrap().contains(r#"{"name":"mp","error":"permission denied"}"#)
    );

    let back = folder.join("back");
    let got = stag(&["get", "-r", &url, back.to_str().unwrap()]);
    assert_eq!(complaints(&got), format!("stag: {url}/mp: permission denied\n"));
    fs::remove_dir_all(folder.join("tree/mp")).unwrap();
    for gone in ["gone", "stale"] {
        fs::remove_file(folder.join("tree").join(gone)).unwrap();
    }
    assert_same_tree(&folder.join("tree"), &back);

    let copied = stag(&["cp", "-r", &url, &server.at("data/copy")]);
    assert_eq!(complaints(&copied), format!("stag: {url}/mp: permission denied\n"));
    assert_eq!(stag_ok(&["cat", &server.at("data/copy/z/two")]), "content");

    // The folders of what stays stay, without a complaint about each.
    let removed = stag(&["rm", "-r", &url]);
    assert_eq!(complaints(&removed), format!("stag: {url}/mp: permission denied\n"));
    let listed = stag(&["ls", &url]);
    assert_eq!(String::from_utf8(listed.stdout).unwrap(), "mp\n");
}

#[test]
fn a_removal_goes_on_behind_what_stays() {
    let (folder, server) = (Folder::new("kept"), OtherServer::start(refuses_one));
    let tree = folder.join("tree");
    for path in ["a/deep/kept", "a/one", "b/two", "three"] {
        fs::create_dir_all(tree.join(path).parent().unwrap()).unwrap();
        fs::write(tree.join(path), b"content").unwrap();
    }
    stag_ok(&["put", "-r", tree.to_str().unwrap(), &server.at("data/tree")]);
    let removed = stag(&["--json", "rm", "-r", &server.at("data/tree")]);
    let error: Value = serde_json::from_str(&complaints(&removed)).unwrap();
    assert!(
        error["error"].as_str().unwrap().ends_with("/data/tree/a/deep/kept: permission denied"),
        "{error}"
    );
    let removed: Value = serde_json::from_slice(&removed.stdout).unwrap();
    assert_eq!([&removed["files"], &removed["folders"], &removed["failed"]], [3, 1, 1], "{removed}");
    assert_eq!(stag_ok(&["ls", &server.at("data/tree")]), "a/\n");
    assert_eq!(stag_ok(&["ls", &server.at("data/tree/a")]), "deep/\n");

    // Of several arguments each is tried.
    stag_ok(&["mkdir", &server.at("data/x")]);
    let (absent, there) = (server.at("data/absent"), server.at("data/x"));
    let removed = stag(&["rm", "-r", &absent, &there]);
    assert_eq!(complaints(&removed), format!("stag: {absent}: no such file\n"));
    assert_eq!(stag_ok(&["ls", &server.at("data")]), "tree/\n");
}

#[test]
fn entries_without_handle_and_attributes_are_looked_up() {
    let mut is_first = true;
    let server = OtherServer::start(move |procedure, call| match (procedure, name_of(call).as_deref()) {
        (Procedure::Readdirplus, _) if std::mem::take(&mut is_first) => {
            Answer::Names(&[".", "..", "file", "never", "denied", "a/b", ""])
        }
        (Procedure::Lookup, Some(b"denied")) => Answer::Status(Status::Acces),
        _ => Answer::Right,
    });
    let folder = Folder::new("bare");
    fs::write(folder.join("file"), b"content").unwrap();
    stag_ok(&["put", folder.join("file").to_str().unwrap(), &server.at("data/file")]);
    let listed = stag(&["ls", &server.at("data")]);
    let complaints = complaints(&listed);
    assert!(complaints.contains("data/denied: permission denied\n"), "{complaints}");
    assert!(complaints.contains("data/a/b: is listed, which is no file's name\n"), "{complaints}");
    assert!(!complaints.contains("never") && complaints.lines().count() == 3, "{complaints}");
    let names = String::from_utf8(listed.stdout).unwrap();
    assert!(names.contains("file\n") && !names.contains("never"), "{names}");
}

#[test]
fn a_server_without_readdirplus_is_listed_by_name() {
    let mut asked = 0;
    let server = OtherServer::start(move |procedure, _| match procedure {
        Procedure::Readdirplus => {
            asked += 1;
            // One Call for each of the commands below.
            assert!(asked <= 3, "it is remembered");
            Answer::Status(Status::NotSupp)
        }
        _ => Answer::Right,
    });
    let folder = Folder::new("names");
    let tree = folder.join("tree");
    fs::create_dir_all(tree.join("deep/er")).unwrap();
    // More names than one READDIR tells.
    for index in 0..1000 {
        fs::write(tree.join(format!("deep/{index}-{}", "n".repeat(100))), [index as u8]).unwrap();
    }
    let url = server.at("data/tree");
    stag_ok(&["put", "-r", tree.to_str().unwrap(), &url]);
    assert_eq!(stag_ok(&["ls", &format!("{url}/deep")]).lines().count(), 1001);
    stag_ok(&["get", "-r", &url, folder.join("back").to_str().unwrap()]);
    assert_same_tree(&tree, &folder.join("back"));
    assert_eq!(stag_json(&["rm", "-r", &url])[0]["files"], 1000);
}
