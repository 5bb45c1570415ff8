//! A small rpcbind: it tells where the programs of this server are, and takes no registrations of others.
//!
//! It is for machines that have none of their own, where Linux's lock manager would not find ours. It answers every
//! client, as its kind does; it never forwards a Call in another's name (CALLIT), which has been abused too often.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;

use stag_rpc::{Call, Outcome, Procedure as Bound, Reply, Service};
use stag_wire::rpcbind::{
    self, Binding, Mapping, PortmapProcedure, RpcbindProcedure, Text, UniversalAddress, encode_bindings,
    encode_mappings, netid, protocol,
};
use stag_wire::{mount3, nfs3, nfs4, nfsacl, nlm4, nsm};

use super::{TimeOfDay, decode};

/// A program that is served, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Program number.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// The transport: one of [`stag_wire::rpcbind::netid`].
    pub netid: &'static [u8],
    /// The address that it listens at; an unspecified one means all.
    pub address: SocketAddr,
}

impl Registered {
    /// As the port mapper tells it: TCP and UDP over IPv4 is all that it knows.
    #[must_use]
    pub fn mapping(&self) -> Option<Mapping> {
        let protocol = match self.netid {
            netid::TCP => protocol::TCP,
            netid::UDP => protocol::UDP,
            _ => return None,
        };
        let (program, version, port) = (self.program, self.version, self.address.port().into());
        Some(Mapping { program, version, protocol, port })
    }
}

/// What an rpcbind tells. Shared, because the addresses are known only when the server listens.
pub type Registry = Rc<RefCell<Vec<Registered>>>;

/// The programs that are served at an address, under the netid of its transport: `tcp` or `rdma`. Over RDMA that is
/// NFS and NFSACL (8267-4.2-a); the rest is for TCP (8267-5.1-a).
#[must_use]
pub fn programs_at(address: SocketAddr, over_rdma: bool) -> Vec<Registered> {
    let netid = match (over_rdma, address.is_ipv4()) {
        (true, true) => netid::RDMA,
        (true, false) => netid::RDMA6,
        (false, true) => netid::TCP,
        (false, false) => netid::TCP6,
    };
    let files =
        [(nfs3::PROGRAM, nfs3::VERSION), (nfs4::PROGRAM, nfs4::VERSION), (nfsacl::PROGRAM, nfsacl::VERSION)];
    let others = [
        (mount3::PROGRAM, mount3::VERSION),
        (nlm4::PROGRAM, nlm4::VERSION),
        (nsm::PROGRAM, nsm::VERSION),
        (rpcbind::PROGRAM, rpcbind::VERSION_PORTMAP),
        (rpcbind::PROGRAM, rpcbind::VERSION_3),
        (rpcbind::PROGRAM, rpcbind::VERSION_4),
    ];
    let others = others.into_iter().filter(|_| !over_rdma);
    let all = files.into_iter().chain(others);
    all.map(|(program, version)| Registered { program, version, netid, address }).collect()
}

/// The programs that are served by UDP: status monitors announce restarts that way, and look for one another by rpcbind.
pub const DATAGRAM_PROGRAMS: &[u32] = &[nsm::PROGRAM, rpcbind::PROGRAM];

/// [`DATAGRAM_PROGRAMS`], where they are served by UDP.
#[must_use]
pub fn datagram_programs_at(address: SocketAddr) -> Vec<Registered> {
    let netid = if address.is_ipv4() { netid::UDP } else { netid::UDP6 };
    let served = programs_at(address, false).into_iter().filter(|it| DATAGRAM_PROGRAMS.contains(&it.program));
    served.map(|program| Registered { netid, ..program }).collect()
}

/// The service rpcbind, versions 2 to 4.
pub struct Rpcbind {
    registry: Registry,
    time: TimeOfDay,
}

/// The binding of a procedure; versions 3 and 4 are alike in what is known here.
fn bound(version: u32, procedure: u32) -> Option<&'static Bound> {
    static NULL: Bound = Bound::plain("NULL");
    static SET: Bound = Bound::plain("SET");
    static UNSET: Bound = Bound::plain("UNSET");
    static GETPORT: Bound = Bound::plain("GETPORT");
    static DUMP: Bound = Bound::plain("DUMP");
    static GETADDR: Bound = Bound::plain("GETADDR");
    static GETTIME: Bound = Bound::plain("GETTIME");
    static GETVERSADDR: Bound = Bound::plain("GETVERSADDR");
    if version == rpcbind::VERSION_PORTMAP {
        return Some(match PortmapProcedure::from_number(procedure)? {
            PortmapProcedure::Null => &NULL,
            PortmapProcedure::Set => &SET,
            PortmapProcedure::Unset => &UNSET,
            PortmapProcedure::Getport => &GETPORT,
            PortmapProcedure::Dump => &DUMP,
        });
    }
    match RpcbindProcedure::from_number(procedure)? {
        RpcbindProcedure::Null => Some(&NULL),
        RpcbindProcedure::Set => Some(&SET),
        RpcbindProcedure::Unset => Some(&UNSET),
        RpcbindProcedure::Getaddr => Some(&GETADDR),
        RpcbindProcedure::Dump => Some(&DUMP),
        RpcbindProcedure::Gettime => Some(&GETTIME),
        RpcbindProcedure::Getversaddr => (version == rpcbind::VERSION_4).then_some(&GETVERSADDR),
    }
}

impl Rpcbind {
    pub(super) fn new(registry: Registry, time: TimeOfDay) -> Rpcbind {
        Rpcbind { registry, time }
    }

    fn portmap(&self, call: &Call<'_>, reply: &mut Reply<'_>) {
        let registered = self.registry.borrow();
        let mappings = || registered.iter().filter_map(Registered::mapping);
        match PortmapProcedure::from_number(call.procedure) {
            Some(PortmapProcedure::Set | PortmapProcedure::Unset) => {
                if decode::<Mapping>(call, reply).is_some() {
                    reply.success(|writer| writer.bool(false));
                }
            }
            Some(PortmapProcedure::Getport) => {
                let Some(wanted) = decode::<Mapping>(call, reply) else { return };
                let same = |mapping: &Mapping| {
                    mapping.program == wanted.program && mapping.protocol == wanted.protocol
                };
                let mut fits = mappings().filter(same);
                // Of another version rather than not at all: the program itself then says which it has.
                let found =
                    fits.clone().find(|mapping| mapping.version == wanted.version).or(fits.next_back());
                let port = found.map_or(0, |mapping| mapping.port);
                reply.success(|writer| writer.u32(port));
            }
            Some(PortmapProcedure::Dump) => reply.success(|writer| encode_mappings(writer, mappings())),
            Some(PortmapProcedure::Null) => reply.success(|_| Ok(())),
            // The engine calls only what `procedure` knows.
            None => reply.system_error(),
        }
    }

    fn rpcbind(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) {
        match RpcbindProcedure::from_number(call.procedure) {
            Some(RpcbindProcedure::Set | RpcbindProcedure::Unset) => {
                if decode::<Binding<'_>>(call, reply).is_some() {
                    reply.success(|writer| writer.bool(false));
                }
            }
            Some(procedure @ (RpcbindProcedure::Getaddr | RpcbindProcedure::Getversaddr)) => {
                let Some(wanted) = decode::<Binding<'_>>(call, reply) else { return };
                let of_version = procedure == RpcbindProcedure::Getversaddr;
                let address = self.address(&wanted, of_version).map(UniversalAddress::new);
                let text = address.as_ref().map_or(Text(b""), UniversalAddress::text);
                reply.success(|writer| writer.value(&text));
            }
            Some(RpcbindProcedure::Dump) => {
                let registered = self.registry.borrow();
                let listed: Vec<_> =
                    registered.iter().map(|found| (found, UniversalAddress::new(found.address))).collect();
                reply.success(|writer| {
                    let bindings = listed.iter().map(|(found, address)| Binding {
                        program: found.program,
                        version: found.version,
                        netid: Text(found.netid),
                        address: address.text(),
                        owner: Text(b"stagd"),
                    });
                    encode_bindings(writer, bindings)
                });
            }
            Some(RpcbindProcedure::Gettime) => {
                // Its times end in 2106.
                let seconds = u32::try_from(self.time.at(call.now()).seconds).unwrap_or(u32::MAX);
                reply.success(|writer| writer.u32(seconds));
            }
            Some(RpcbindProcedure::Null) => reply.success(|_| Ok(())),
            // The engine calls only what `procedure` knows.
            None => reply.system_error(),
        }
    }

    /// Where a program is. If it is everywhere: at the address that the caller reached us at, as far as it says one.
    fn address(&self, wanted: &Binding<'_>, of_version: bool) -> Option<SocketAddr> {
        let same = |found: &&Registered| found.program == wanted.program && found.netid == wanted.netid.0;
        let registered = self.registry.borrow();
        let mut fits = registered.iter().filter(same);
        let exact = fits.clone().find(|found| found.version == wanted.version);
        let found = if of_version { exact } else { exact.or(fits.next_back()) }?.address;
        if !found.ip().is_unspecified() {
            return Some(found);
        }
        let asked_at = UniversalAddress::parse(wanted.address.0).map(|address| address.ip());
        let ip = match (found.ip(), asked_at) {
            (IpAddr::V4(_), Some(IpAddr::V4(ip))) => IpAddr::V4(ip),
            (IpAddr::V6(_), Some(IpAddr::V6(ip))) => IpAddr::V6(ip),
            (IpAddr::V4(_), _) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            (IpAddr::V6(_), _) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        Some(SocketAddr::new(ip, found.port()))
    }
}

impl Service for Rpcbind {
    fn program(&self) -> u32 {
        rpcbind::PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        (rpcbind::VERSION_PORTMAP, rpcbind::VERSION_4)
    }

    fn procedure(&self, version: u32, procedure: u32) -> Option<&'static Bound> {
        bound(version, procedure)
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        if call.version == rpcbind::VERSION_PORTMAP {
            self.portmap(call, reply);
        } else {
            self.rpcbind(call, reply);
        }
        Outcome::Done
    }
}
