//! NFS version 4 as a whole `stagd` serves it: a server that is full of its clients' state keeps its promise, and serves others.

use std::net::Ipv4Addr;

use stag_wire::nfs4::attributes::{Attribute, AttributeSet};
use stag_wire::nfs4::files::{GetattrArguments4, ReadArguments4, WriteArguments4, WriteHead};
use stag_wire::nfs4::lock::{LockArguments4, LockKind, Locker, NewLocker};
use stag_wire::nfs4::open::StateOwner;
use stag_wire::nfs4::operation::Argument4;
use stag_wire::nfs4::{Data, Opaque, Stable, StateId, Status4};
use stag_wire::xdr::Item;

use crate::common::tcp_client::Client;
use crate::common::tcp_client4::{Client4, close, open_handle, open_name, put};
use crate::common::{Folder, Server};
use crate::memory::{check_heap, heap, resident};

/// A name as long as it may be (NFS4_OPAQUE_LIMIT).
fn long_name(number: u32) -> Vec<u8> {
    format!("{number:01024}").into_bytes()
}

/// A lock of two octets by an owner that has none yet.
fn lock(open: StateId, owner: &[u8], number: u32) -> Argument4<'_> {
    let owner = StateOwner { clientid: 0, owner: Opaque(owner) };
    let new = NewLocker { open_seqid: 0, open_stateid: open, lock_seqid: 0, owner };
    Argument4::Lock(LockArguments4 {
        kind: LockKind::Write,
        is_reclaim: false,
        offset: 4 * u64::from(number),
        length: 2,
        locker: Locker::New(new),
    })
}

/// Attributes of all kinds: a long result.
fn getattr() -> Argument4<'static> {
    let all = Attribute::set_of(|attribute| attribute.is_readable() && attribute != Attribute::Acl);
    Argument4::Getattr(GetattrArguments4 { request: AttributeSet(all) })
}

/// What clients got until they were refused.
#[derive(Debug, Default)]
pub(crate) struct Filled {
    clients: u32,
    sessions: u32,
    opens: u32,
    locks: u32,
    refusals: Vec<Status4>,
}

/// Makes clients with sessions, whose slots keep long replies; then opens and locks. Each of several addresses takes what it gets.
pub(crate) fn fill(server: &Server, files: &[Vec<u8>]) -> (Filled, Vec<Client4>) {
    let (mut filled, mut clients) = (Filled::default(), Vec::new());
    for address in (2..8).map(|last| Ipv4Addr::new(127, 0, 0, last)) {
        let mut first = None;
        let refused = loop {
            let mut client = match Client4::new(server, address, &long_name(filled.clients)) {
                Ok(client) => client,
                Err(status) => break status,
            };
            filled.clients += 1;
            client.keeps = true;
            let refused = loop {
                filled.sessions += 1;
                // Each reply is as long as one may be that is kept.
                let long = [&[Argument4::Putrootfh(())][..], &[getattr(); 8]].concat();
                (0..client.session.fore.requests_max)
                    .for_each(|slot| client.compound(slot, &long, |_, _| ()));
                if let Err(status) = client.next_session() {
                    break status;
                }
            };
            client.keeps = false;
            // The others need no connection.
            first.get_or_insert(client);
            if refused != Status4::NoSpc {
                break refused;
            }
        };
        filled.refusals.push(refused);
        let Some(mut client) = first else { continue };
        for number in 0.. {
            let (file, name) = (&files[number as usize % files.len()], long_name(number));
            let open = match client.state(&[put(file), open_handle(&name)]) {
                Ok(open) => open,
                Err(status) => {
                    assert_eq!(status, Status4::Delay, "OPEN");
                    break;
                }
            };
            filled.opens += 1;
            // By a lock owner for each open.
            match client.state(&[put(file), lock(open, &name, filled.locks)]) {
                Ok(_) => filled.locks += 1,
                Err(status) => assert_eq!(status, Status4::Delay, "LOCK"),
            }
        }
        clients.push(client);
    }
    (filled, clients)
}

/// A client that had its session before opens, reads, writes, locks and closes a file.
fn check_is_served(client: &mut Client4, root: &[u8], file: &[u8]) {
    let open = client.state(&[put(root), open_name(b"open", b"served")]).unwrap();
    let made = client.state(&[put(file), open_handle(b"open")]).unwrap();
    let head = WriteHead { stateid: made, offset: 0, stable: Stable::Unstable };
    let write = Argument4::Write(WriteArguments4 { head, data: Data(Item::Inline(b"octets")) });
    let read = Argument4::Read(ReadArguments4 { stateid: made, offset: 0, count: 6 });
    assert_eq!(client.status(&[put(file), write, read, getattr()]), Status4::Ok);
    client.state(&[put(file), lock(made, b"lock", 1 << 30)]).unwrap();
    assert_eq!(client.status(&[put(file), close(made)]), Status4::Ok);
    assert_eq!(client.status(&[put(root), Argument4::Lookup(Opaque(b"served")), close(open)]), Status4::Ok);
}

#[test]
fn a_server_full_of_state_keeps_its_promise_and_serves_others() {
    let export = ["--export", "mem:/data,root_squash=no", "--memory", "128M"];
    let server = Server::start_at("tcp://127.0.0.1:0", &export);
    let mut files = Client::new(&server);
    let root = files.mount();
    let names: Vec<_> = (0..64).map(|n| files.create(&root, &format!("{n}")).unwrap()).collect();
    let mut other = Client4::new(&server, Ipv4Addr::new(127, 0, 0, 9), b"other").unwrap();
    let start = heap(&server);
    let (filled, clients) = fill(&server, &names);
    println!("{filled:?}");
    assert!(filled.clients >= 4 && filled.sessions >= 4, "{filled:?}");
    assert!(filled.opens >= 16 && filled.locks >= 16, "{filled:?}");
    let prices = [
        "clients and sessions of NFSv4, at most",
        "opens of NFSv4, at most",
        "locks, at most",
        "hosts with locks, at most",
        "TCP connections, at most",
    ];
    check_heap("state of version 4", &server, start, &prices);
    let promised = server.started["memory"].as_u64().unwrap();
    assert!(resident(&server) <= promised / 100 * 105, "{} of {promised}", resident(&server));
    for _ in 0..100 {
        check_is_served(&mut other, &root, &names[0]);
    }
    drop((clients, other, files));
    let (stopped, status) = server.stop();
    assert!(status.success() && stopped["leaked"] == 0, "{stopped}");
}

/// Two servers export one directory, as two nodes of a cluster do: locks of one's clients deny those of the other's.
#[test]
fn servers_of_one_directory_see_each_others_locks() {
    let folder = Folder::new("below");
    let export = format!("dir:{},name=/data,root_squash=no,lock=below", folder.0.display());
    let start = || Server::start_at("tcp://127.0.0.1:0", &["--export", &export]);
    let servers = [start(), start()];
    let own = Ipv4Addr::new(127, 0, 0, 9);
    let mut nodes = servers.each_ref().map(|server| {
        let root = Client::new(server).mount();
        let mut client = Client4::new(server, own, b"client").unwrap();
        let open = client.state(&[put(&root), open_name(b"open", b"file")]).unwrap();
        (client, root, open)
    });
    let take = |(client, root, open): &mut (Client4, Vec<u8>, StateId), owner: &[u8], number| {
        let file = Argument4::Lookup(Opaque(b"file"));
        client.state(&[put(root), file, lock(*open, owner, number)]).map(drop)
    };
    assert_eq!(take(&mut nodes[0], b"one", 0), Ok(()));
    assert_eq!(take(&mut nodes[1], b"one", 0), Err(Status4::Denied));
    assert_eq!(take(&mut nodes[1], b"one", 1), Ok(()));
    assert_eq!(take(&mut nodes[0], b"two", 1), Err(Status4::Denied));
    let (client, root, open) = &mut nodes[0];
    let file = Argument4::Lookup(Opaque(b"file"));
    assert_eq!(client.status(&[put(root), file, close(*open)]), Status4::Ok);
    // What a CLOSE frees the other node gets a moment later.
    while take(&mut nodes[1], b"two", 0) == Err(Status4::Denied) {
        std::thread::yield_now();
    }
    assert_eq!(take(&mut nodes[1], b"three", 0), Err(Status4::Denied), "it is the second owner's");
    drop(nodes);
    for server in servers {
        let (stopped, status) = server.stop();
        assert!(status.success() && stopped["leaked"] == 0, "{stopped}");
    }
}
