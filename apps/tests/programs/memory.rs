//! The process takes no more memory than `--memory` promises, whatever its clients fill it with.

use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::time::Duration;

use crate::common::tcp_client::{Arguments, Client, opaque, word};
use crate::common::{ANY_IWARP_PORT, Folder, Server};
use stag_fabric::{Iwarp, IwarpConfig, Provider};
use stag_rpc::{Chunks, ConnectionEvent, Credentials, Engine, EngineConfig, Memory, ReplyMode, Request};
use stag_runtime::{Clock, Poller};

/// NFS3ERR_NOSPC.
const NO_SPACE: u32 = 28;

/// Memory of a process that is its own, in octets: not the programs that it runs, which all processes share.
pub(crate) fn resident(server: &Server) -> u64 {
    heap(server) + status(server, "RssShmem:")
}

/// The part of it that is no arena: heap, stacks, tables.
pub(crate) fn heap(server: &Server) -> u64 {
    status(server, "RssAnon:")
}

/// Octets of the arena, whose pages come as they are used.
fn arena(server: &Server) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{}/maps", server.child.id())).unwrap();
    let len = |line: &str| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        u64::from_str_radix(end, 16).unwrap() - u64::from_str_radix(start, 16).unwrap()
    };
    maps.lines().filter(|line| line.contains("/memfd:stagd ")).map(len).sum()
}

fn status(server: &Server, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// What the price list says of these, in octets.
fn price(server: &Server, names: &[&str]) -> u64 {
    let prices = server.started["prices"].as_array().unwrap();
    let of = |name: &&str| {
        let price = prices.iter().find(|price| price["what"] == **name);
        price.unwrap_or_else(|| panic!("no price of {name}"))["bytes"].as_u64().unwrap()
    };
    names.iter().map(of).sum()
}

/// What a server takes for itself after its start, independent of its clients: buffers of the fabric, pages of its stacks and
/// of its allocator.
const OWN: u64 = 512 << 10;

/// The heap has grown by no more than the prices of these say.
pub(crate) fn check_heap(what: &str, server: &Server, start: u64, names: &[&str]) {
    let (took, promised) = (heap(server).saturating_sub(start), price(server, names));
    println!("{what}: {took} octets, {promised} promised");
    assert!(took <= promised / 100 * 105 + OWN, "{what}: {took} octets of {promised}");
}

/// Fills a server with one thing after the other, until it has no more room for that. What the heap is said to hold then it holds,
/// unless the objects themselves are too many first.
fn fill(what: &str, is_heap_full: bool, mut make: impl FnMut(&mut Client, &[u8], u32) -> Result<(), u32>) {
    let export = ["--export", "mem:/data,root_squash=no", "--memory", "128M"];
    let server = Server::start_at("tcp://127.0.0.1:0", &export);
    let promised = server.started["memory"].as_u64().unwrap();
    let mut client = Client::new(&server);
    let root = client.mount();
    let (mut count, start) = (0, heap(&server));
    let refused = loop {
        match make(&mut client, &root, count) {
            Ok(()) => count += 1,
            Err(status) => break status,
        }
    };
    let found = resident(&server);
    let took = heap(&server).saturating_sub(start);
    println!("{what}: {count}; {found} now, {promised} promised; {took} more of heap");
    assert_eq!(refused, NO_SPACE, "{what}");
    assert!(count > 1000, "{what}: only {count}");
    assert!(found <= promised / 100 * 105, "{what}: {found} octets of {promised} after {count}");
    let price = price(&server, &["objects, names, page tables, at most", "Replies kept for retransmissions"]);
    let share = took as f64 / price as f64;
    println!("{what}: {share:.3} of the price");
    assert!(share <= 1.05 && (share >= 0.95 || !is_heap_full), "{what}: {took} octets of {price}");
    // And the server is well.
    client.link(&root, "x", b"y").unwrap_or_default();
    let (stopped, status) = server.stop();
    assert!(status.success() && stopped["leaked"] == 0, "{stopped}");
}

#[test]
fn symbolic_links_take_no_more_than_was_promised() {
    fill("links", true, |client, root, n| client.link(root, &format!("{n:0255}"), &[b'x'; 1023]).map(drop));
}

#[test]
fn directories_take_no_more_than_was_promised() {
    fill("directories", true, |client, root, n| {
        let directory = client.make_directory(root, &format!("{n:0255}"))?;
        client.create(&directory, &"n".repeat(255)).map(drop)
    });
}

#[test]
fn scattered_pages_take_no_more_than_was_promised() {
    let mut file = Vec::new();
    fill("pages", true, move |client, root, n| {
        if file.is_empty() {
            file = client.create(root, "sparse")?;
        }
        // The last page of each 64: the table before it is as long as it can be.
        client.write(&file, (u64::from(n) * 64 + 63) * 4096, b"x")
    });
}

#[test]
fn small_files_take_no_more_than_was_promised() {
    fill("files", false, |client, root, n| {
        let file = client.create(root, &format!("a file with the number {n}"))?;
        client.write(&file, 0, &[7; 100])
    });
}

/// What keeps connections open.
type Connected = (Engine<Iwarp, ()>, Memory, Vec<Client>);

/// Connects as many clients as there may be, by RDMA and by TCP, to a server with 32 credits for each.
fn connect_all(server: &Server) -> Connected {
    const CREDITS: u32 = 32;
    let count = server.started["connections_max"].as_u64().unwrap() as u32;

    // As many RDMA clients as it takes, each with all its credits in use at once.
    let config = EngineConfig {
        inline_threshold: 1024,
        credits_max: CREDITS,
        connections_max: count,
        receives_max: 2 * count * CREDITS,
        ..EngineConfig::default()
    };
    let memory = Memory::new(&config, 1 << 20).unwrap();
    let completions = config.completions_max();
    let mut iwarp = Iwarp::open(IwarpConfig { completions, ..IwarpConfig::default() }).unwrap();
    iwarp.register(&memory.arena).unwrap();
    let mut engine = Engine::new(iwarp, (), memory.pools.clone(), config, 7).unwrap();
    let clock = Clock::start();
    let null = Request {
        program: 100_003,
        version: 3,
        procedure: 0,
        credentials: Credentials::None,
        user: 0,
        timeout: Duration::from_secs(60),
        results_len_max: 0,
        retransmit: true,
        reply_mode: ReplyMode::Auto,
    };
    let address = server.url.trim_start_matches("iwarp://");
    let connections: Vec<_> = (0..count).map(|_| engine.connect(address).unwrap()).collect();
    let (mut established, mut answered, mut asked) = (0, 0, 0);
    while answered < 64 * count {
        engine.poll(clock.now());
        while let Some(event) = engine.connection_event() {
            assert!(matches!(event, ConnectionEvent::Established { .. }), "{event:?}");
            established += 1;
        }
        while let Some(done) = engine.completed() {
            done.result.unwrap();
            answered += 1;
        }
        for &connection in &connections {
            while asked < 64 * count
                && engine.credits_available(connection) > 0
                && engine.call(connection, &null, &mut Chunks::default(), |_| Ok(())).is_ok()
            {
                asked += 1;
            }
        }
    }
    assert_eq!(established, count);

    // As many TCP clients, some of which take no answers.
    let mut streams: Vec<Client> = (0..count).map(|_| Client::new(server)).collect();
    for stream in &mut streams {
        stream.call(100_003, 0, Arguments::default());
    }
    for stream in streams.iter_mut().take(4) {
        let records: Vec<u8> =
            (0..50_000).flat_map(|_| stream.record((100_003, 3), 0, Arguments::default())).collect();
        stream.socket.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        // It fails when the server takes no more.
        let _ = stream.socket.write_all(&records);
    }
    (engine, memory, streams)
}

#[test]
fn connections_take_no_more_than_was_promised() {
    let export = ["--export", "mem:/data,root_squash=no", "--memory", "128M", "--credits", "32"];
    let server = Server::start_at(ANY_IWARP_PORT, &export);
    let start = heap(&server);
    let connected = connect_all(&server);
    let names = ["connections, at most", "Calls in process, at most", "TCP connections, at most"];
    check_heap("connections", &server, start, &names);
    drop(connected);
    let (stopped, status) = server.stop();
    assert!(status.success() && stopped["leaked"] == 0, "{stopped}");
}

/// Takes as many locks as there may be, of many hosts with names of `name_len` octets. Returns how many.
fn take_locks(server: &Server, files: &[Vec<u8>], name_len: usize) -> u32 {
    /// NLM's status of a lock for which there is no room.
    const NO_LOCKS: u32 = 2;
    let mut count = 0;
    // No address gets more of anything than it leaves free: several take nearly all of it.
    for address in 2u8..8 {
        let mut client = Client::of(server, Ipv4Addr::new(127, 0, 0, address));
        for host in 0u32..200 {
            for n in 0u32.. {
                // Ranges that do not meet, of owners with names as long as they may be.
                let (owner, file) = ([count as u8; 64], &files[n as usize % files.len()]);
                let at = (u64::from(address) << 32 | u64::from(host) << 20 | u64::from(n)) * 2;
                let lock = Arguments::default()
                    .opaque(b"cookie")
                    .word(0)
                    .word(1)
                    .opaque(format!("{host:0name_len$}").as_bytes())
                    .opaque(file)
                    .opaque(&owner)
                    .word(count)
                    .word((at >> 32) as u32)
                    .word(at as u32)
                    .word(0)
                    .word(1)
                    .word(0)
                    .word(1);
                let results = client.call_of((100_021, 4), 2, lock);
                let status = word(&results, 4 + opaque(&results, 0).len().next_multiple_of(4));
                if status == NO_LOCKS {
                    break;
                }
                assert_eq!(status, 0, "lock {count} of host {host} at address {address}");
                count += 1;
                // Each host some, so that there are many hosts.
                if n == 20 {
                    break;
                }
            }
        }
    }
    println!("{count} locks");
    assert!(count > 1000, "only {count} locks");
    count
}

/// Some files of `/data`.
fn files(server: &Server) -> Vec<Vec<u8>> {
    let mut client = Client::new(server);
    let root = client.mount();
    (0..64).map(|n| client.create(&root, &format!("{n}")).unwrap()).collect()
}

#[test]
fn locks_take_no_more_than_was_promised() {
    let export = ["--export", "mem:/data,root_squash=no", "--memory", "128M"];
    let server = Server::start_at("tcp://127.0.0.1:0", &export);
    let files = files(&server);
    let start = heap(&server);
    take_locks(&server, &files, 1000);
    let names = ["locks, at most", "hosts with locks, at most"];
    check_heap("locks", &server, start, &names);
    let (stopped, status) = server.stop();
    assert!(status.success() && stopped["leaked"] == 0, "{stopped}");
}

#[test]
fn known_places_on_a_disk_take_no_more_than_was_promised() {
    let folder = Folder::new("memory");
    let export = format!("dir:{},name=/data,root_squash=no", folder.0.display());
    let server = Server::start_at("tcp://127.0.0.1:0", &["--export", &export, "--memory", "32M"]);
    let mut client = Client::new(&server);
    let root = client.mount();
    // More than it remembers.
    let count = 6000;
    let name = |n: u32| format!("{n:0200}");
    for n in 0..count {
        fs::write(folder.join(&name(n)), b"").unwrap();
    }
    let start = heap(&server);
    for n in 0..count {
        let arguments = Arguments::default().opaque(&root).opaque(name(n).as_bytes());
        let results = client.call(100_003, 3, arguments);
        assert_eq!(word(&results, 0), 0, "LOOKUP of {n}");
    }
    let names = ["objects, names, page tables, at most", "Calls in process, at most"];
    check_heap("places on a disk", &server, start, &names);
    let (stopped, status) = server.stop();
    assert!(status.success() && stopped["leaked"] == 0, "{stopped}");
}

/// All kinds at once, at a size at which their limits are what they usually are: the process takes what `--memory` says, with 5 %
/// more or less.
#[test]
fn a_full_server_takes_what_was_promised() {
    // `nfs/tests/heap.rs` and `state/tests/heap.rs` fill what version 4 takes.
    let export =
        ["--export", "mem:/data,root_squash=no", "--memory", "512M", "--credits", "32", "--nfs", "3"];
    let server = Server::start_at(ANY_IWARP_PORT, &export);
    let files = files(&server);
    let mut client = Client::new(&server);
    let root = client.mount();
    let mut made = 0;
    while client.link(&root, &format!("{made:0255}"), &[b'x'; 1023]).is_ok() {
        made += 1;
    }
    drop(client);
    let locks = take_locks(&server, &files, 1000);
    let connected = connect_all(&server);
    let promised = server.started["memory"].as_u64().unwrap();
    let found = heap(&server) + arena(&server);
    let share = found as f64 / promised as f64;
    assert!(resident(&server) <= found);
    println!("{made} links, {locks} locks, all connections: {found} octets, {share:.3} of {promised}");
    assert!((0.95..=1.05).contains(&share), "{found} octets of {promised}");
    drop(connected);
    let (stopped, status) = server.stop();
    assert!(status.success() && stopped["leaked"] == 0, "{stopped}");
}
