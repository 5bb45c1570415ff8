//! A real `stagd` whose files lie page by page in turn, so that free memory is single pages: files written, read and listed then
//! are as before, by RDMA and by TCP, in memory and in a directory.

use std::fs;

use crate::common::tcp_client::{Arguments, Client, opaque};
use crate::common::{ANY_IWARP_PORT, Folder, Server, content, stag_ok};

const MEBI: usize = 1 << 20;
const PAGE: usize = 4096;

/// NFS3ERR_NOSPC.
const NO_SPACE: u32 = 28;

/// Fills the export with two files, page by page in turn, and removes one. Returns octets that are free then.
fn fragment(client: &mut Client, root: &[u8]) -> usize {
    let files = [client.create(root, "a").unwrap(), client.create(root, "b").unwrap()];
    let page = content(PAGE, 1);
    for number in 0_u64.. {
        for file in &files {
            if let Err(status) = client.write(file, number * PAGE as u64, &page) {
                assert_eq!(status, NO_SPACE);
                client.remove(root, "b");
                return number as usize * PAGE;
            }
        }
    }
    unreachable!("numbers do not end")
}

/// WRITEs of a megabyte each by TCP as long as there is room, and what they wrote.
fn check_tcp(client: &mut Client, root: &[u8], room: usize) {
    let file = client.create(root, "by-tcp").unwrap();
    let count = room / MEBI;
    assert!(count >= 3, "only {room} octets");
    let data = |number: usize| content(MEBI, number as u8);
    for number in 0..count {
        assert_eq!(client.write(&file, (number * MEBI) as u64, &data(number)), Ok(()), "WRITE {number}");
    }
    for number in 0..count {
        let (mut found, wanted) = (Vec::new(), data(number));
        while found.len() < MEBI {
            let at = number * MEBI + found.len();
            let more = client.read(&file, at as u64, (MEBI - found.len()) as u32).unwrap();
            assert!(!more.is_empty(), "nothing at {at}");
            found.extend(more);
        }
        assert!(found == wanted, "megabyte {number}");
    }
    client.remove(root, "by-tcp");
}

#[test]
fn single_free_pages_are_as_good_as_runs() {
    /// Files whose names a list has.
    const NAMES: usize = 3000;
    let folder = Folder::new("fragmented");
    let directory = folder.join("exported");
    fs::create_dir(&directory).unwrap();
    let disk = format!("dir:{},name=/disk,root_squash=no", directory.display());
    let exports = ["--export", "mem:/data,root_squash=no", "--export", &disk];
    let server =
        Server::start_at(ANY_IWARP_PORT, &[&exports[..], &["--memory", "64M", "--nfs", "3"]].concat());
    let mut client = Client::new(&server);
    let root = client.mount();
    for number in 0..NAMES {
        client.create(&root, &format!("a name of some length {number}")).unwrap();
    }
    let room = fragment(&mut client, &root);
    println!("{room} octets are free, in single pages");
    assert!(room > 6 * MEBI, "{room} octets");

    check_tcp(&mut client, &root, room);
    // The root, its parent, the names, and the file that is left.
    let (names, calls) = client.list(&root);
    assert_eq!(names, NAMES + 3);
    assert!(calls < 10, "a list of {NAMES} names took {calls} Calls");

    let path = folder.join("file");
    fs::write(&path, content(5 * MEBI, 3)).unwrap();
    for place in ["data", "disk"] {
        let (there, back) = (server.at(&format!("{place}/by-rdma")), folder.join("back"));
        stag_ok(&["put", path.to_str().unwrap(), &there]);
        stag_ok(&["get", &there, back.to_str().unwrap()]);
        assert!(fs::read(&back).unwrap() == fs::read(&path).unwrap(), "{place}");
        fs::remove_file(&back).unwrap();
        let listed = stag_ok(&["ls", &server.at(place)]);
        let count = listed.lines().count();
        assert_eq!(count, if place == "data" { NAMES + 2 } else { 1 }, "names in {place}");
    }
    // What RDMA wrote into the directory, by TCP.
    let results = client.call(100_005, 1, Arguments::default().opaque(b"/disk"));
    let disk = opaque(&results, 4);
    check_tcp(&mut client, &disk, 4 * MEBI);
    let (stopped, status) = server.stop();
    assert!(status.success() && stopped["leaked"] == 0, "{stopped}");
}
