//! What `--memory` promises is what the process takes, whatever its clients fill it with.

#[expect(dead_code, reason = "shared with the other tests, which use other parts")]
mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use common::Server;

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
        let socket = TcpStream::connect(server.url.trim_start_matches("tcp://")).unwrap();
        socket.set_nodelay(true).unwrap();
        Client { socket, xid: 0 }
    }

    /// Makes a Call as root, and returns the results.
    fn call(&mut self, program: u32, procedure: u32, arguments: Arguments) -> Vec<u8> {
        self.xid += 1;
        let header =
            Arguments::default().word(self.xid).word(0).word(2).word(program).word(3).word(procedure);
        // AUTH_SYS: stamp, a machine without a name, user, group, no further groups.
        let credential = Arguments::default().word(0).word(0).word(0).word(0).word(0);
        let mut record = header.word(1).opaque(&credential.0).word(0).word(0).0;
        record.extend(arguments.0);
        let mark = 0x8000_0000 | record.len() as u32;
        self.socket.write_all(&[&mark.to_be_bytes(), &record[..]].concat()).unwrap();
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
    let status = fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let of = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    };
    of("RssAnon:") + of("RssShmem:")
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
