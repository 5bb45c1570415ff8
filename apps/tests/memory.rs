//! What `--memory` promises is what the process takes, whatever its clients fill it with.

#[expect(dead_code, reason = "shared with the other tests, which use other parts")]
mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use common::{Folder, Server, free_iwarp_url};
use socket2::{Domain, Socket, Type};
use stag::prelude::*;

/// NFS3ERR_NOSPC.
const NO_SPACE: u32 = 28;

/// A client of RPC over TCP that knows as much of NFS as filling a server takes.
struct Client {
    socket: TcpStream,
    xid: u32,
}

/// Arguments in XDR.
#[derive(Default)]
struct Arguments(Vec<u8>);

impl Arguments {
    fn word(mut self, word: u32) -> Arguments {
        self.0.extend(word.to_be_bytes());
        self
    }

    fn opaque(self, octets: &[u8]) -> Arguments {
        let mut arguments = self.word(octets.len() as u32);
        arguments.0.extend(octets);
        arguments.0.resize(arguments.0.len().next_multiple_of(4), 0);
        arguments
    }

    /// Attributes of which none is set.
    fn no_attributes(self) -> Arguments {
        (0..6).fold(self, |arguments, _| arguments.word(0))
    }
}

impl Client {
    fn new(server: &Server) -> Client {
        Client::of(server, Ipv4Addr::LOCALHOST)
    }

    /// One whose address is another of this machine's.
    fn of(server: &Server, own: Ipv4Addr) -> Client {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((own, 0)).into()).unwrap();
        let (_, address) = server.url.split_once("://").unwrap();
        socket.connect(&address.parse::<SocketAddr>().unwrap().into()).unwrap();
        let socket = TcpStream::from(socket);
        socket.set_nodelay(true).unwrap();
        Client { socket, xid: 0 }
    }

    /// A Call by root, as a record.
    fn record(&mut self, (program, version): (u32, u32), procedure: u32, arguments: Arguments) -> Vec<u8> {
        self.xid += 1;
        let header =
            Arguments::default().word(self.xid).word(0).word(2).word(program).word(version).word(procedure);
        // AUTH_SYS: stamp, a machine without a name, user, group, no further groups.
        let credential = Arguments::default().word(0).word(0).word(0).word(0).word(0);
        let mut record = header.word(1).opaque(&credential.0).word(0).word(0).0;
        record.extend(arguments.0);
        let mark = 0x8000_0000 | record.len() as u32;
        [&mark.to_be_bytes(), &record[..]].concat()
    }

    /// Makes a Call as root, and returns the results.
    fn call(&mut self, program: u32, procedure: u32, arguments: Arguments) -> Vec<u8> {
        self.call_of((program, 3), procedure, arguments)
    }

    /// The same of another version.
    fn call_of(&mut self, program: (u32, u32), procedure: u32, arguments: Arguments) -> Vec<u8> {
        let record = self.record(program, procedure, arguments);
        self.socket.write_all(&record).unwrap();
        let mut mark = [0; 4];
        self.socket.read_exact(&mut mark).unwrap();
        let mut reply = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
        self.socket.read_exact(&mut reply).unwrap();
        // xid, REPLY, accepted, verifier, SUCCESS.
        assert_eq!(word(&reply, 20), 0, "it was not accepted");
        reply.split_off(24)
    }

    fn mount(&mut self) -> Vec<u8> {
        let results = self.call(100_005, 1, Arguments::default().opaque(b"/data"));
        assert_eq!(word(&results, 0), 0, "the mount was refused");
        opaque(&results, 4)
    }

    /// CREATE: the handle, or the status.
    fn create(&mut self, directory: &[u8], name: &str) -> Result<Vec<u8>, u32> {
        let arguments =
            Arguments::default().opaque(directory).opaque(name.as_bytes()).word(0).no_attributes();
        made(&self.call(100_003, 8, arguments))
    }

    fn make_directory(&mut self, directory: &[u8], name: &str) -> Result<Vec<u8>, u32> {
        let arguments = Arguments::default().opaque(directory).opaque(name.as_bytes()).no_attributes();
        made(&self.call(100_003, 9, arguments))
    }

    fn link(&mut self, directory: &[u8], name: &str, target: &[u8]) -> Result<Vec<u8>, u32> {
        let place = Arguments::default().opaque(directory).opaque(name.as_bytes());
        made(&self.call(100_003, 10, place.no_attributes().opaque(target)))
    }

    fn write(&mut self, file: &[u8], offset: u64, data: &[u8]) -> Result<(), u32> {
        let place = Arguments::default().opaque(file).word((offset >> 32) as u32).word(offset as u32);
        let results = self.call(100_003, 7, place.word(data.len() as u32).word(0).opaque(data));
        match word(&results, 0) {
            0 => Ok(()),
            status => Err(status),
        }
    }
}

fn word(octets: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(octets[at..at + 4].try_into().unwrap())
}

fn opaque(octets: &[u8], at: usize) -> Vec<u8> {
    octets[at + 4..at + 4 + word(octets, at) as usize].to_vec()
}

/// The handle of what was made.
fn made(results: &[u8]) -> Result<Vec<u8>, u32> {
    match (word(results, 0), word(results, 4)) {
        (0, 1) => Ok(opaque(results, 8)),
        (0, _) => panic!("no handle of what was made"),
        (status, _) => Err(status),
    }
}

/// Memory of a process that is its own, in octets: not the programs that it runs, which all processes share.
fn resident(server: &Server) -> u64 {
    heap(server) + status(server, "RssShmem:")
}

/// The part of it that is no arena: heap, stacks, tables.
fn heap(server: &Server) -> u64 {
    status(server, "RssAnon:")
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

/// What a server takes for itself after its start, whoever its clients are: buffers of the fabric, pages of its stacks and of
/// its allocator.
const OWN: u64 = 512 << 10;

/// The heap has grown by no more than the prices of these say.
fn check_heap(what: &str, server: &Server, start: u64, names: &[&str]) {
    let (took, promised) = (heap(server).saturating_sub(start), price(server, names));
    println!("{what}: {took} octets, {promised} promised");
    assert!(took <= promised / 100 * 105 + OWN, "{what}: {took} octets of {promised}");
}

/// Fills a server with one thing after the other, until it has no more room for that.
fn fill(what: &str, mut make: impl FnMut(&mut Client, &[u8], u32) -> Result<(), u32>) {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let export = ["--export", "mem:/data,root_squash=no", "--memory", "128M"];
    let server = Server::start_at(&format!("tcp://127.0.0.1:{port}"), &export);
    let promised = server.started["memory"].as_u64().unwrap();
    let mut client = Client::new(&server);
    let root = client.mount();
    let (mut count, start) = (0, resident(&server));
    let refused = loop {
        match make(&mut client, &root, count) {
            Ok(()) => count += 1,
            Err(status) => break status,
        }
    };
    let found = resident(&server);
    println!("{what}: {count}; {start} at the start, {found} now, {promised} promised");
    assert_eq!(refused, NO_SPACE, "{what}");
    assert!(count > 1000, "{what}: only {count}");
    assert!(found <= promised / 100 * 105, "{what}: {found} octets of {promised} after {count}");
    // And the server is well.
    client.link(&root, "x", b"y").unwrap_or_default();
    let (stopped, status) = server.stop();
    assert!(status.success() && stopped["leaked"] == 0, "{stopped}");
}

#[test]
fn symbolic_links_take_no_more_than_was_promised() {
    fill("links", |client, root, n| client.link(root, &format!("{n:0255}"), &[b'x'; 1023]).map(drop));
}

#[test]
fn directories_take_no_more_than_was_promised() {
    fill("directories", |client, root, n| {
        let directory = client.make_directory(root, &format!("{n:0255}"))?;
        client.create(&directory, &"n".repeat(255)).map(drop)
    });
}

#[test]
fn scattered_pages_take_no_more_than_was_promised() {
    let mut file = Vec::new();
    fill("pages", move |client, root, n| {
        if file.is_empty() {
            file = client.create(root, "sparse")?;
        }
        // The last page of each 64: the table before it is as long as it can be.
        client.write(&file, (u64::from(n) * 64 + 63) * 4096, b"x")
    });
}

#[test]
fn small_files_take_no_more_than_was_promised() {
    fill("files", |client, root, n| {
        let file = client.create(root, &format!("a file with the number {n}"))?;
        client.write(&file, 0, &[7; 100])
    });
}

#[test]
fn connections_take_no_more_than_was_promised() {
    const CREDITS: u32 = 32;
    let export = ["--export", "mem:/data,root_squash=no", "--memory", "128M", "--credits", "32"];
    let server = Server::start_at(&free_iwarp_url(), &export);
    let count = server.started["connections_max"].as_u64().unwrap() as u32;
    let start = heap(&server);

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
    let mut engine = Engine::new(iwarp, (), memory.pools, config, 7).unwrap();
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
    let mut streams: Vec<Client> = (0..count).map(|_| Client::new(&server)).collect();
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
    let names = ["connections, at most", "Calls in process, at most", "TCP connections, at most"];
    check_heap("connections", &server, start, &names);
    drop((engine, streams));
    let (stopped, status) = server.stop();
    assert!(status.success() && stopped["leaked"] == 0, "{stopped}");
}

#[test]
fn locks_take_no_more_than_was_promised() {
    /// NLM's status of a lock for which there is no room.
    const NO_LOCKS: u32 = 2;
    let listen = format!("tcp://{}", free_iwarp_url().trim_start_matches("iwarp://"));
    let export = ["--export", "mem:/data,root_squash=no", "--memory", "128M"];
    let server = Server::start_at(&listen, &export);
    let mut client = Client::new(&server);
    let root = client.mount();
    let files: Vec<Vec<u8>> = (0..64).map(|n| client.create(&root, &format!("{n}")).unwrap()).collect();
    let (start, mut count) = (heap(&server), 0);
    // No address gets more of anything than it leaves free: several take nearly all of it.
    for address in 2u8..8 {
        let mut client = Client::of(&server, Ipv4Addr::new(127, 0, 0, address));
        for host in 0u32..200 {
            for n in 0u32.. {
                // Ranges that do not meet, of owners with names as long as they may be.
                let (owner, file) = ([count as u8; 64], &files[n as usize % files.len()]);
                let at = (u64::from(address) << 32 | u64::from(host) << 20 | u64::from(n)) * 2;
                let lock = Arguments::default()
                    .opaque(b"cookie")
                    .word(0)
                    .word(1)
                    .opaque(format!("{host:0200}").as_bytes())
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
    let names = ["locks, at most", "Replies kept for retransmissions", "TCP connections, at most"];
    check_heap("locks", &server, start, &names);
    let (stopped, status) = server.stop();
    assert!(status.success() && stopped["leaked"] == 0, "{stopped}");
}

#[test]
fn known_places_on_a_disk_take_no_more_than_was_promised() {
    let folder = Folder::new("memory");
    let listen = format!("tcp://{}", free_iwarp_url().trim_start_matches("iwarp://"));
    let export = format!("dir:{},name=/data,root_squash=no", folder.0.display());
    let server = Server::start_at(&listen, &["--export", &export, "--memory", "32M"]);
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
