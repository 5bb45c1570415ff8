//! A client of RPC over TCP, for Calls that `stag` does not make.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use socket2::{Domain, Socket, Type};

use crate::common::Server;

/// NFS version 3.
const NFS: u32 = 100_003;

/// A client of RPC over TCP that knows as much of NFS as filling a server takes.
pub(crate) struct Client {
    pub(crate) socket: TcpStream,
    xid: u32,
}

/// Arguments in XDR.
#[derive(Default)]
pub(crate) struct Arguments(Vec<u8>);

impl Arguments {
    pub(crate) fn word(mut self, word: u32) -> Arguments {
        self.0.extend(word.to_be_bytes());
        self
    }

    pub(crate) fn opaque(self, octets: &[u8]) -> Arguments {
        let mut arguments = self.word(octets.len() as u32);
        arguments.0.extend(octets);
        arguments.0.resize(arguments.0.len().next_multiple_of(4), 0);
        arguments
    }

    pub(crate) fn octets(mut self, octets: &[u8]) -> Arguments {
        self.0.extend(octets);
        self
    }

    pub(crate) fn as_octets(&self) -> &[u8] {
        &self.0
    }

    /// Attributes of which none is set.
    pub(crate) fn no_attributes(self) -> Arguments {
        (0..6).fold(self, |arguments, _| arguments.word(0))
    }
}

impl Client {
    pub(crate) fn new(server: &Server) -> Client {
        Client::of(server, Ipv4Addr::LOCALHOST)
    }

    /// One whose address is another of this machine's.
    pub(crate) fn of(server: &Server, own: Ipv4Addr) -> Client {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((own, 0)).into()).unwrap();
        let (_, address) = server.url.split_once("://").unwrap();
        socket.connect(&address.parse::<SocketAddr>().unwrap().into()).unwrap();
        let socket = TcpStream::from(socket);
        socket.set_nodelay(true).unwrap();
        Client { socket, xid: 0 }
    }

    /// A Call by root, as a record.
    pub(crate) fn record(
        &mut self,
        (program, version): (u32, u32),
        procedure: u32,
        arguments: Arguments,
    ) -> Vec<u8> {
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
    pub(crate) fn call(&mut self, program: u32, procedure: u32, arguments: Arguments) -> Vec<u8> {
        self.call_of((program, 3), procedure, arguments)
    }

    /// The same of another version.
    pub(crate) fn call_of(&mut self, program: (u32, u32), procedure: u32, arguments: Arguments) -> Vec<u8> {
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

    pub(crate) fn mount(&mut self) -> Vec<u8> {
        let results = self.call(100_005, 1, Arguments::default().opaque(b"/data"));
        assert_eq!(word(&results, 0), 0, "the mount was refused");
        opaque(&results, 4)
    }

    /// CREATE: the handle, or the status.
    pub(crate) fn create(&mut self, directory: &[u8], name: &str) -> Result<Vec<u8>, u32> {
        let arguments =
            Arguments::default().opaque(directory).opaque(name.as_bytes()).word(0).no_attributes();
        made(&self.call(100_003, 8, arguments))
    }

    pub(crate) fn make_directory(&mut self, directory: &[u8], name: &str) -> Result<Vec<u8>, u32> {
        let arguments = Arguments::default().opaque(directory).opaque(name.as_bytes()).no_attributes();
        made(&self.call(100_003, 9, arguments))
    }

    pub(crate) fn link(&mut self, directory: &[u8], name: &str, target: &[u8]) -> Result<Vec<u8>, u32> {
        let place = Arguments::default().opaque(directory).opaque(name.as_bytes());
        made(&self.call(100_003, 10, place.no_attributes().opaque(target)))
    }

    pub(crate) fn write(&mut self, file: &[u8], offset: u64, data: &[u8]) -> Result<(), u32> {
        let place = Arguments::default().opaque(file).word((offset >> 32) as u32).word(offset as u32);
        let results = self.call(100_003, 7, place.word(data.len() as u32).word(0).opaque(data));
        match word(&results, 0) {
            0 => Ok(()),
            status => Err(status),
        }
    }

    /// READ: the data, or the status.
    pub(crate) fn read(&mut self, file: &[u8], offset: u64, count: u32) -> Result<Vec<u8>, u32> {
        let place = Arguments::default().opaque(file).word((offset >> 32) as u32).word(offset as u32);
        let results = self.call(NFS, 6, place.word(count));
        match word(&results, 0) {
            // Attributes, count, end of file.
            0 => Ok(opaque(&results, 8 + 84 * word(&results, 4) as usize + 8)),
            status => Err(status),
        }
    }

    pub(crate) fn remove(&mut self, directory: &[u8], name: &str) {
        let results = self.call(NFS, 12, Arguments::default().opaque(directory).opaque(name.as_bytes()));
        assert_eq!(word(&results, 0), 0, "REMOVE of {name}");
    }

    /// READDIRPLUS of all: how many names, and Calls that it took.
    pub(crate) fn list(&mut self, directory: &[u8]) -> (usize, usize) {
        let (mut cookie, mut verifier, mut names) = ([0; 8], [0; 8], 0);
        for calls in 1..1000 {
            let place = Arguments::default().opaque(directory).octets(&cookie).octets(&verifier);
            let results = self.call(NFS, 17, place.word(1 << 20).word(1 << 20));
            assert_eq!(word(&results, 0), 0, "READDIRPLUS");
            let mut at = 8 + 84 * word(&results, 4) as usize;
            verifier.copy_from_slice(&results[at..at + 8]);
            at += 8;
            while word(&results, at) == 1 {
                names += 1;
                // fileid, name, cookie, attributes, handle.
                at += 12;
                at += 4 + opaque(&results, at).len().next_multiple_of(4);
                cookie.copy_from_slice(&results[at..at + 8]);
                at += 8;
                at += 4 + 84 * word(&results, at) as usize;
                at += 4 + word(&results, at) as usize
                    * (4 + opaque(&results, at + 4).len().next_multiple_of(4));
            }
            if word(&results, at + 4) == 1 {
                return (names, calls);
            }
        }
        panic!("a list without end");
    }
}

pub(crate) fn word(octets: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(octets[at..at + 4].try_into().unwrap())
}

pub(crate) fn opaque(octets: &[u8], at: usize) -> Vec<u8> {
    octets[at + 4..at + 4 + word(octets, at) as usize].to_vec()
}

/// The handle of what was made.
pub(crate) fn made(results: &[u8]) -> Result<Vec<u8>, u32> {
    match (word(results, 0), word(results, 4)) {
        (0, 1) => Ok(opaque(results, 8)),
        (0, _) => panic!("no handle of what was made"),
        (status, _) => Err(status),
    }
}
