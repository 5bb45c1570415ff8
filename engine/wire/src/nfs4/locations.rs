//! Where file systems and servers are: fs_locations, fs_locations_info, network addresses (RFC 8881 section 11).

use super::value::{List, unions};
use super::{Name4, Opaque};
use crate::nfs3::value::records;

/// Components of a path at most. No RFC sets a limit; a path of Linux has 4,095 octets.
pub const PATH_COMPONENTS_MAX: u32 = 2048;
/// Locations, or servers of one, at most. No RFC sets a limit.
pub const LOCATIONS_MAX: u32 = 1024;
/// Octets of a network id or universal address at most. No RFC sets a limit; one of IPv6 with its port has 47.
pub const NETADDR_LEN_MAX: u32 = 256;
/// Octets of fls_info at most. Twelve have a meaning.
pub const SERVER_INFO_LEN_MAX: u32 = 1024;

/// A path as its components (pathname4).
pub type PathName<'a> = List<'a, Name4<'a>, PATH_COMPONENTS_MAX>;

records! {
    /// Some servers with the same file system (fs_location4).
    FsLocation<'a> {
        /// Names or addresses.
        servers: List<'a, Name4<'a>, LOCATIONS_MAX>,
        /// Where it is there.
        root: PathName<'a>,
    }

    /// Where a file system is (fs_locations4).
    FsLocations<'a> {
        /// Where it is here.
        root: PathName<'a>,
        /// Where it is elsewhere.
        locations: List<'a, FsLocation<'a>, LOCATIONS_MAX>,
    }

    /// A replica (fs_locations_server4).
    LocationServer<'a> {
        /// How current it is.
        currency: i32,
        /// Flags, classes, ranks and orders, an octet each.
        info: Opaque<'a, SERVER_INFO_LEN_MAX>,
        /// Its name or address.
        server: Name4<'a>,
    }

    /// Replicas with the same root (fs_locations_item4).
    LocationItem<'a> {
        /// The replicas.
        servers: List<'a, LocationServer<'a>, LOCATIONS_MAX>,
        /// Where it is there.
        root: PathName<'a>,
    }

    /// Where a file system is, in detail (fs_locations_info4).
    FsLocationsInfo<'a> {
        /// Flags.
        flags: u32,
        /// Seconds that this is good for.
        valid_for: i32,
        /// Where it is here.
        root: PathName<'a>,
        /// The replicas.
        items: List<'a, LocationItem<'a>, LOCATIONS_MAX>,
    }

    /// A network address (netaddr4), as of RFC 1833.
    NetAddress<'a> {
        /// Network id: `tcp`, `rdma6`.
        netid: Opaque<'a, NETADDR_LEN_MAX>,
        /// Universal address.
        address: Opaque<'a, NETADDR_LEN_MAX>,
    }
}

unions! {
    /// Where a server is (netloc4).
    NetLocation<'a> {
        /// By name.
        Name = 1 (Name4<'a>),
        /// By URL.
        Url = 2 (Name4<'a>),
        /// By address.
        Address = 3 (NetAddress<'a>),
    }
}
