//! `stag` and servers that answer otherwise than ours does: later, not of every file, or without READDIRPLUS.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::thread;

use crate::common::other_server::{Answer, OtherServer};
use crate::common::{
    ANY_IWARP_PORT, Folder, STAG, Server, assert_same_tree, stag, stag_fails, stag_json, stag_ok,
};
use serde_json::Value;
use stag_rpc::Call;
use stag_wire::mpa::{Fpdu, Frame};
use stag_wire::nfs3::{DirectoryName, Handle, Procedure, Status};

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

/// What is said of a refusal: root is told why it may be refused.
fn denied() -> &'static str {
    match rustix::process::geteuid().is_root() {
        true => {
            "permission denied; the server may treat root as nobody: export with root_squash=no, or chown the folder"
        }
        false => "permission denied",
    }
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
    assert_eq!(complaints(&listed), format!("stag: {url}/mp: {}\n", denied()));
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
    let described = format!(r#"{{"name":"mp","error":"{}"}}"#, denied());
    assert!(String::from_utf8(listed.stdout).unwrap().contains(&described));

    let back = folder.join("back");
    let got = stag(&["get", "-r", &url, back.to_str().unwrap()]);
    assert_eq!(complaints(&got), format!("stag: {url}/mp: {}\n", denied()));
    fs::remove_dir_all(folder.join("tree/mp")).unwrap();
    for gone in ["gone", "stale"] {
        fs::remove_file(folder.join("tree").join(gone)).unwrap();
    }
    assert_same_tree(&folder.join("tree"), &back);

    let copied = stag(&["cp", "-r", &url, &server.at("data/copy")]);
    assert_eq!(complaints(&copied), format!("stag: {url}/mp: {}\n", denied()));
    assert_eq!(stag_ok(&["cat", &server.at("data/copy/z/two")]), "content");

    // The folders of what stays stay, without a complaint about each.
    let removed = stag(&["rm", "-r", &url]);
    assert_eq!(complaints(&removed), format!("stag: {url}/mp: {}\n", denied()));
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
        error["error"].as_str().unwrap().contains("/data/tree/a/deep/kept: permission denied"),
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
    assert!(complaints.contains("data/denied: permission denied"), "{complaints}");
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

#[test]
fn an_export_named_root_is_listed_and_fetched() {
    let (server, folder) = (OtherServer::with_export("/", |_, _| Answer::Right), Folder::new("root"));
    let (file, back) = (folder.join("file"), folder.join("back"));
    fs::write(&file, b"content").unwrap();
    let root = format!("{}/", server.url);
    stag_ok(&["put", file.to_str().unwrap(), &root]);
    stag_ok(&["mkdir", &server.at("deep")]);
    // Without the slash the server is meant, and its exports.
    assert_eq!(stag_ok(&["ls", &server.url]), "/\n");
    for url in [root.clone(), format!("{root}/"), format!("{root}."), format!("{root}deep/..")] {
        assert_eq!(stag_ok(&["ls", &url]), "deep/\nfile\n", "{url}");
        assert!(stag_ok(&["stat", &url]).contains("kind  folder"));
        let df = &stag_json(&["df", &url])[0];
        assert_eq!(df["url"].as_str(), Some(root.as_str()));
    }
    assert_eq!(stag_json(&["df", &server.url])[0]["url"].as_str(), Some(root.as_str()));
    stag_ok(&["get", "-r", &root, back.to_str().unwrap()]);
    assert_eq!(fs::read(back.join("file")).unwrap(), b"content");
    stag_ok(&["cp", &server.at("file"), &server.at("deep")]);
    stag_ok(&["mv", &server.at("file"), &server.at("other")]);
    assert_eq!(stag_ok(&["ls", &server.at("deep")]), "file\n");
    // A server without such an export has a list of them behind the slash, too.
    let server = OtherServer::start(|_, _| Answer::Right);
    assert_eq!(stag_ok(&["ls", &server.at("")]), "/data\n");
}

#[test]
fn names_that_are_not_utf_8_are_names() {
    let (server, folder) = (OtherServer::start(|_, _| Answer::Right), Folder::new("octets"));
    let name = OsStr::from_bytes(b"\xff\xfe");
    let (file, back) = (folder.0.join(name), folder.join("back"));
    fs::write(&file, b"content").unwrap();
    let mut url = OsString::from(server.at("data/"));
    url.push(name);
    let run = |arguments: &[&OsStr]| {
        let output = Command::new(STAG).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        output.stdout
    };
    run(&["put".as_ref(), file.as_ref(), &url]);
    assert_eq!(run(&["cat".as_ref(), &url]), b"content");
    run(&["stat".as_ref(), &url]);
    run(&["get".as_ref(), &url, back.as_ref()]);
    assert_eq!(fs::read(&back).unwrap(), b"content");
    run(&["rm".as_ref(), &url]);
    assert_eq!(stag_ok(&["ls", &server.at("data")]), "");
}

/// What fails for one reason is one line beyond the first ten.
#[test]
fn many_failures_of_one_kind_are_counted() {
    let server = OtherServer::start(|procedure, call| match (procedure, name_of(call)) {
        (Procedure::Create, Some(name)) if name.starts_with(b"full") => Answer::Status(Status::NoSpc),
        (Procedure::Create, Some(name)) if name.starts_with(b"quota") => Answer::Status(Status::DQuot),
        _ => Answer::Right,
    });
    let folder = Folder::new("full");
    let tree = folder.join("tree");
    fs::create_dir(&tree).unwrap();
    for index in 0..20 {
        fs::write(tree.join(format!("full-{index}")), b"content").unwrap();
        fs::write(tree.join(format!("quota-{index}")), b"content").unwrap();
    }
    fs::write(tree.join("file"), b"content").unwrap();
    let put = stag(&["put", "-r", tree.to_str().unwrap(), &server.at("data/tree")]);
    let complaints = complaints(&put);
    let of = |reason: &str| complaints.lines().filter(|line| line.contains(reason)).collect::<Vec<_>>();
    let (full, quota) = (of("no space left in this export"), of("over quota"));
    assert_eq!((full.len() + quota.len(), complaints.lines().count()), (12, 12), "{complaints}");
    for (lines, told) in [(&full, full.len() - 1), (&quota, quota.len() - 1)] {
        let more = format!("stag: … and {} more: ", 20 - told);
        assert!(lines.last().unwrap().starts_with(&more), "{complaints}");
    }
    assert_eq!(stag_ok(&["ls", &server.at("data/tree")]), "file\n");
    assert!(String::from_utf8(put.stdout).unwrap().contains("not copied: 40 objects"));
}

/// Between a client of iWARP and a server: ends each connection at its first message of version 2.
fn without_version_2(server: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (url, server) = (format!("iwarp://{}", listener.local_addr().unwrap()), server.to_owned());
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(&server).unwrap());
            let (mut back, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || {
                let _ = io::copy(&mut back, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
            thread::spawn(move || {
                let _ = until_version_2(&client, &server);
                let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
            });
        }
    });
    url
}

/// Hands on what the client says: MPA's request, then FPDUs, until one begins a message of version 2.
fn until_version_2(mut client: &TcpStream, mut server: &TcpStream) -> io::Result<()> {
    let (mut octets, mut piece, mut is_set_up) = (Vec::new(), [0; 1 << 16], false);
    loop {
        let len = client.read(&mut piece)?;
        octets.extend_from_slice(&piece[..len]);
        while let Some(len) = match is_set_up {
            false => Frame::parse(&octets).ok().map(|(_, rest)| octets.len() - rest.len()),
            true => Fpdu::parse(&octets).ok().map(|(_, rest)| octets.len() - rest.len()),
        } {
            let unit: Vec<u8> = octets.drain(..len).collect();
            // Length, a header of DDP for untagged messages, xid, version.
            if is_set_up && unit.get(24..28) == Some(&[0, 0, 0, 2]) && unit[2] & 0x80 == 0 {
                return Ok(());
            }
            is_set_up = true;
            server.write_all(&unit)?;
        }
        if len == 0 {
            return Ok(());
        }
    }
}

/// V2-5.2-b: also of a server that announces version 2, and on the first connection.
#[test]
fn a_connection_that_ends_at_the_probe_for_version_2_is_made_again_with_version_1() {
    for protocol in ["1", "auto", "2"] {
        let server = Server::start_at(
            ANY_IWARP_PORT,
            &[
                "--export",
                "mem:/data,root_squash=no",
                "--protocol",
                if protocol == "1" { "auto" } else { protocol },
            ],
        );
        let url = without_version_2(server.url.strip_prefix("iwarp://").unwrap());
        for asked in ["1", "2", "auto"] {
            assert_eq!(stag_ok(&["--protocol", asked, "ls", &url]), "/data\n", "{protocol} {asked}");
        }
        let (stopped, status) = server.stop();
        assert!(status.success(), "{stopped}");
    }
}

/// Each end says what the other one speaks.
#[test]
fn iwarp_at_a_port_of_rpc_over_tcp_is_told_apart() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut server = Server::start_with(&["--export", "mem:/data"], |command| {
        command.args(["--listen", &format!("tcp://{port}")]).env("STAG_LOG", "info");
    });
    let complaint = stag_fails(&["ls", &format!("iwarp://{port}/data")]);
    assert!(complaint.contains("it speaks RPC over TCP there, not iWARP"), "{complaint}");
    server.signal(libc::SIGTERM);
    let mut log = String::new();
    server.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains("its peer speaks iWARP, and this port RPC over TCP"), "{log}");
}

/// What is removed between the listing and the copy is no failure of the copy.
#[test]
fn what_vanishes_during_a_copy_is_left_out() {
    let gone = |call: &Call<'_>, handles: &[Vec<u8>]| {
        let handle = call.arguments().value::<Handle<'_>>().ok();
        handle.is_some_and(|handle| handles.iter().any(|gone| gone == handle.0))
    };
    let mut handles: Vec<Vec<u8>> = Vec::new();
    let server = OtherServer::start(move |procedure, call| match procedure {
        // Each file that is read first is gone with that, and so it is for GETATTR.
        Procedure::Read if handles.is_empty() => {
            handles.push(call.arguments().value::<Handle<'_>>().unwrap().0.to_vec());
            Answer::Status(Status::Stale)
        }
        Procedure::Read | Procedure::Getattr if gone(call, &handles) => Answer::Status(Status::Stale),
        _ => Answer::Right,
    });
    let folder = Folder::new("vanishes");
    let tree = folder.join("tree");
    fs::create_dir(&tree).unwrap();
    for name in ["one", "two", "three"] {
        fs::write(tree.join(name), b"content").unwrap();
    }
    stag_ok(&["put", "-r", tree.to_str().unwrap(), &server.at("data/tree")]);
    let back = folder.join("back");
    let copied = &stag_json(&["get", "-r", "-j", "1", &server.at("data/tree"), back.to_str().unwrap()])[0];
    assert_eq!((copied["files"].as_u64(), copied["failed"].as_u64()), (Some(2), Some(0)), "{copied}");
    assert_eq!(fs::read_dir(&back).unwrap().count(), 2);
}
