//! Registration with the rpcbind of this machine, so that clients find the programs without being told ports.
//!
//! rpcbind lets only programs of its own machine register, which it sees by its local socket; an old one, or one
//! started with `-L`, also by the loopback and a reserved port.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use stag_nfs::server::Registered;
use stag_rpc::{BlockingClient, CallSource, StreamCall, StreamCallError, StreamLimits};
use stag_wire::nsm;
use stag_wire::rpc::{Accepted, OpaqueAuth};
use stag_wire::rpcbind::{
    Binding, PORT, PROGRAM, PortmapProcedure, RpcbindProcedure, Text, UniversalAddress, VERSION_4,
    VERSION_PORTMAP,
};
use stag_wire::xdr::{Encode, Reader};

use crate::failure::CommandFailure;

/// rpcbind's local socket: where it is on all systems of today.
const SOCKET: &str = "/run/rpcbind.sock";

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Bounds of Calls and Replies.
const LIMITS: StreamLimits = StreamLimits { calls_max: 1, call_len_max: 1024, reply_len_max: 1024 };

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
    Absent(StreamCallError),
    /// A Call brought no answer that makes sense.
    Failed(StreamCallError),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Absent(error) => {
                write!(f, "no rpcbind at {SOCKET} or port {PORT} ({error}); start one, or serve without it")
            }
            Refusal::Failed(error) => write!(f, "a Call to rpcbind failed: {error}"),
        }
    }
}

/// A connection to it.
struct Rpcbind {
    client: BlockingClient,
    /// It knows version 2 alone.
    is_old: bool,
}

impl Rpcbind {
    fn connect() -> Result<Rpcbind, Refusal> {
        let client = BlockingClient::connect_local(SOCKET, LIMITS, TIMEOUT).or_else(|_| {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
            BlockingClient::connect(address, CallSource::Any, LIMITS, (TIMEOUT, TIMEOUT))
        });
        Ok(Rpcbind { client: client.map_err(Refusal::Absent)?, is_old: false })
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
            match self.call(VERSION_4, procedure as u32, &binding) {
                Err(StreamCallError::NotExecuted(Accepted::ProgMismatch { .. })) => self.is_old = true,
                done => return done.map_err(Refusal::Failed),
            }
        }
        // What it has no word for is done.
        let Some(mapping) = registered.mapping() else { return Ok(true) };
        self.call(VERSION_PORTMAP, old as u32, &mapping).map_err(Refusal::Failed)
    }

    /// Makes a Call that is answered with a bool.
    fn call(
        &mut self,
        version: u32,
        procedure: u32,
        arguments: &dyn Encode,
    ) -> Result<bool, StreamCallError> {
        let credential = OpaqueAuth::NONE;
        let call = StreamCall { program: PROGRAM, version, procedure, credential, arguments };
        let results = self.client.call(&call)?;
        Reader::new(&results).bool().map_err(|_| StreamCallError::BadReply)
    }
}

#[cfg(test)]
mod tests {
    use stag_nfs::server::programs_at;
    use stag_wire::rpcbind::netid;

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
            let nfs = found.iter().filter(|it| (it.program, it.version, it.netid) == (100_003, 3, netid));
            nfs.map(|it| it.address.to_string()).collect()
        };
        assert_eq!(ports(netid::TCP), ["0.0.0.0:2049"]);
        assert_eq!(ports(netid::TCP6), ["[::]:2049"]);
        assert_eq!(ports(netid::RDMA), ["192.0.2.1:20049"]);
        assert!(found.iter().all(|it| it.program != PROGRAM));
    }
}
