//! Registration with the rpcbind of this machine, so that clients find the programs without being told ports.
//!
//! rpcbind lets only programs of its own machine register, which it sees by its local socket; an old one, or one
//! started with `-L`, also by the loopback and a reserved port.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use stag::nfs::server::Registered;
use stag::wire::nsm;
use stag::wire::record::{MARK_LEN, Mark, Splitter, Step};
use stag::wire::rpc::{Accepted, CallHeader, OpaqueAuth, ReplyBody, ReplyHeader};
use stag::wire::rpcbind::{
    Binding, PORT, PROGRAM, PortmapProcedure, RpcbindProcedure, Text, UniversalAddress, VERSION_4,
    VERSION_PORTMAP,
};
use stag::wire::xdr::{Overflow, Reader, Writer};

use crate::failure::CommandFailure;
use crate::seed::random_seed;

/// rpcbind's local socket: where it is on all systems of today.
const SOCKET: &str = "/run/rpcbind.sock";

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Octets of a Call, and of a Reply.
const LEN_MAX: usize = 1024;

/// Programs that are registered. Dropped, they are not any more.
pub(super) struct Registration {
    programs: Vec<Registered>,
}

impl Registration {
    /// Registers programs; of an earlier server nothing is left then.
    pub(super) fn new(programs: Vec<Registered>) -> Result<Registration, CommandFailure> {
        let fail = |error: Refusal| CommandFailure::run(format_args!("--rpcbind: {error}"));
        let programs = to_register(programs);
        let mut rpcbind = Rpcbind::connect().map_err(fail)?;
        // A status monitor that is here already serves this machine's own mounts: it stays.
        let is_modest = |it: &Registered| it.program == nsm::PROGRAM;
        for program in programs.iter().filter(|it| !is_modest(it)) {
            // `false`: there was none.
            rpcbind.unset(program).map_err(fail)?;
        }
        let mut registration = Registration { programs: Vec::new() };
        for program in programs {
            if rpcbind.set(&program).map_err(fail)? {
                registration.programs.push(program);
            } else if !is_modest(&program) {
                let Registered { program, version, netid, address } = program;
                let netid = String::from_utf8_lossy(netid);
                return Err(CommandFailure::run(format_args!(
                    "--rpcbind: it refuses program {program} version {version} over {netid} at {address}; \
                     `rpcinfo` shows who else has it"
                )));
            }
        }
        Ok(registration)
    }
}

/// The programs to register, of those that are served, the best address first: rpcbind is its own program, and of several addresses of
/// one transport it can tell one.
fn to_register(programs: Vec<Registered>) -> Vec<Registered> {
    let mut each: Vec<Registered> = Vec::new();
    for program in programs.into_iter().filter(|it| it.program != PROGRAM) {
        let name = |it: &Registered| (it.program, it.version, it.netid);
        if !each.iter().any(|it| name(it) == name(&program)) {
            each.push(program);
        }
    }
    each
}

/// How few clients reach an address: the more, the lower. Those of other machines come before those of this one.
pub(super) fn reach(address: SocketAddr) -> u8 {
    match address.ip().to_canonical() {
        ip if ip.is_unspecified() => 0,
        ip if ip.is_loopback() => 3,
        // It takes the number of a network card besides, which rpcbind has no room for.
        IpAddr::V6(ip) if ip.is_unicast_link_local() => 2,
        _ => 1,
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Who went away before us has forgotten them anyway.
        let Ok(mut rpcbind) = Rpcbind::connect() else { return };
        for program in &self.programs {
            let _ = rpcbind.unset(program);
        }
    }
}

/// Why rpcbind was of no use.
#[derive(Debug)]
enum Refusal {
    /// It is not there.
    Absent(io::Error),
    /// It does not answer.
    Silent(io::Error),
    /// Its answer makes no sense, or is a refusal of the Call as such.
    Senseless,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Absent(error) => {
                write!(f, "no rpcbind at {SOCKET} or port {PORT} ({error}); start one, or serve without it")
            }
            Refusal::Silent(error) => write!(f, "rpcbind does not answer: {error}"),
            Refusal::Senseless => f.write_str("rpcbind's answer is malformed"),
        }
    }
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// A connection to it.
struct Rpcbind {
    stream: Box<dyn Stream>,
    xid: u32,
    /// It knows version 2 alone.
    is_old: bool,
}

impl Rpcbind {
    fn connect() -> Result<Rpcbind, Refusal> {
        let new = |stream| Rpcbind { stream, xid: random_seed(), is_old: false };
        if let Ok(stream) = UnixStream::connect(SOCKET) {
            let timed = stream.set_read_timeout(Some(TIMEOUT)).and(stream.set_write_timeout(Some(TIMEOUT)));
            timed.map_err(Refusal::Silent)?;
            return Ok(new(Box::new(stream)));
        }
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
        let stream = TcpStream::connect_timeout(&address, TIMEOUT).map_err(Refusal::Absent)?;
        let timed = stream.set_read_timeout(Some(TIMEOUT)).and(stream.set_write_timeout(Some(TIMEOUT)));
        timed.map_err(Refusal::Silent)?;
        Ok(new(Box::new(stream)))
    }

    fn set(&mut self, program: &Registered) -> Result<bool, Refusal> {
        self.change(program, RpcbindProcedure::Set, PortmapProcedure::Set)
    }

    fn unset(&mut self, program: &Registered) -> Result<bool, Refusal> {
        self.change(program, RpcbindProcedure::Unset, PortmapProcedure::Unset)
    }

    fn change(
        &mut self,
        registered: &Registered,
        procedure: RpcbindProcedure,
        old: PortmapProcedure,
    ) -> Result<bool, Refusal> {
        let Registered { program, version, netid, address } = *registered;
        if !self.is_old {
            let universal = UniversalAddress::new(address);
            let (text, owner) = (universal.text(), Text(b"superuser"));
            let binding = Binding { program, version, netid: Text(netid), address: text, owner };
            let done = self.call(VERSION_4, procedure as u32, |writer| writer.value(&binding))?;
            match done {
                Some(done) => return Ok(done),
                None => self.is_old = true,
            }
        }
        // What it has no word for is done.
        let Some(mapping) = registered.mapping() else { return Ok(true) };
        let done = self.call(VERSION_PORTMAP, old as u32, |writer| writer.value(&mapping))?;
        done.ok_or(Refusal::Senseless)
    }

    /// Makes a Call that is answered with a bool. `None`: this version of rpcbind is not served.
    fn call(
        &mut self,
        version: u32,
        procedure: u32,
        encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Result<Option<bool>, Refusal> {
        self.xid = self.xid.wrapping_add(1);
        let mut space = [0; LEN_MAX];
        let mut writer = Writer::new(&mut space[MARK_LEN..]);
        let (credential, verifier) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
        let header = CallHeader { xid: self.xid, program: PROGRAM, version, procedure, credential, verifier };
        header.emit(&mut writer).and_then(|()| encode(&mut writer)).map_err(|_| Refusal::Senseless)?;
        let len = writer.position();
        space[..MARK_LEN].copy_from_slice(&Mark::whole(len as u32).to_bytes());
        self.stream.write_all(&space[..MARK_LEN + len]).map_err(Refusal::Silent)?;

        let record = self.record()?;
        let mut reader = Reader::new(&record);
        let header = ReplyHeader::parse(&mut reader).map_err(|_| Refusal::Senseless)?;
        match header.body {
            _ if header.xid != self.xid => Err(Refusal::Senseless),
            ReplyBody::Accepted { outcome: Accepted::Success, .. } => {
                reader.bool().map(Some).map_err(|_| Refusal::Senseless)
            }
            ReplyBody::Accepted { outcome: Accepted::ProgMismatch { .. }, .. } => Ok(None),
            _ => Err(Refusal::Senseless),
        }
    }

    fn record(&mut self) -> Result<Vec<u8>, Refusal> {
        let mut splitter = Splitter::new(LEN_MAX as u32);
        let (mut record, mut buf) = (Vec::new(), [0; LEN_MAX]);
        loop {
            let count = self.stream.read(&mut buf).map_err(Refusal::Silent)?;
            if count == 0 {
                return Err(Refusal::Silent(io::ErrorKind::UnexpectedEof.into()));
            }
            let mut input = &buf[..count];
            loop {
                match splitter.step(&mut input).map_err(|_| Refusal::Senseless)? {
                    Step::Octets(octets) => record.extend(octets),
                    Step::End => return Ok(record),
                    Step::Pause => break,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use stag::nfs::server::programs_at;
    use stag::wire::rpcbind::netid;

    use super::*;

    #[test]
    fn addresses_that_more_clients_reach_come_first() {
        let order = ["0.0.0.0:1", "192.0.2.1:1", "[fe80::1]:1", "127.0.0.1:1"];
        assert_eq!(order.map(|address| reach(address.parse().unwrap())), [0, 1, 2, 3]);
        let order = ["[::]:1", "[2001:db8::1]:1", "[fe80::1]:1", "[::1]:1"];
        assert_eq!(order.map(|address| reach(address.parse().unwrap())), [0, 1, 2, 3]);
        assert_eq!(reach("[::ffff:127.0.0.1]:1".parse().unwrap()), 3);
    }

    #[test]
    fn the_first_address_of_a_transport_is_registered() {
        let at = |address: &str, rdma| programs_at(address.parse().unwrap(), rdma);
        let all = [
            at("0.0.0.0:2049", false),
            at("127.0.0.1:2050", false),
            at("[::]:2049", false),
            at("192.0.2.1:20049", true),
            at("127.0.0.1:20049", true),
        ];
        let found = to_register(all.concat());
        let ports = |netid: &[u8]| -> Vec<String> {
            let nfs = found.iter().filter(|it| (it.program, it.netid) == (100_003, netid));
            nfs.map(|it| it.address.to_string()).collect()
        };
        assert_eq!(ports(netid::TCP), ["0.0.0.0:2049"]);
        assert_eq!(ports(netid::TCP6), ["[::]:2049"]);
        assert_eq!(ports(netid::RDMA), ["192.0.2.1:20049"]);
        assert!(found.iter().all(|it| it.program != PROGRAM));
    }
}
