//! Exports: the path that clients mount, who may, and the users that clients are mapped to. What keeps the files is the
//! business of who makes the store.

use std::fmt;
use std::net::IpAddr;

use stag_fabric::Peer;

use stag_vfs::{INVALID_ID, UserIdentity};

/// The user and the group that stand for unknown ones, unless an export says otherwise: "nobody" on Linux.
pub const NOBODY: u32 = 65534;

/// Ports below this are the superuser's.
const PRIVILEGED_PORTS_END: u16 = 1024;

/// One export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The path that clients mount.
    pub path: String,
    /// Whether nothing may be changed.
    pub read_only: bool,
    /// Whether the user and group 0 of a client are `anonymous` here.
    pub root_squash: bool,
    /// Whether every client is `anonymous` here.
    pub all_squash: bool,
    /// User of callers that are squashed, or send no credential.
    pub anonymous_uid: u32,
    /// Group of those.
    pub anonymous_gid: u32,
    /// Whether only the superuser of a client may speak for it: see [`Export::allows`]. What a Call says of its user can be
    /// trusted as far as its sender.
    pub secure: bool,
    /// Who may mount it: everybody if there are none.
    pub clients: Vec<Client>,
}

/// Who may mount an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// Processes of this machine that run as this user.
    User(u32),
    /// Addresses whose first `bits` bits are those of `address`.
    Network {
        /// The network.
        address: IpAddr,
        /// Bits that count.
        bits: u8,
    },
}

impl Client {
    /// Whether `peer` is one of them.
    #[must_use]
    pub fn includes(&self, peer: &Peer) -> bool {
        match (*self, peer) {
            (Client::User(uid), Peer::Process { uid: found, .. }) => uid == *found,
            (Client::Network { address, bits }, Peer::Address(found)) => {
                // An IPv4 peer of an IPv6 socket is still an IPv4 peer.
                match (address, found.ip().to_canonical()) {
                    (IpAddr::V4(network), IpAddr::V4(found)) => {
                        let differ = u32::from(network) ^ u32::from(found);
                        differ.checked_shr(32 - u32::from(bits)).unwrap_or(0) == 0
                    }
                    (IpAddr::V6(network), IpAddr::V6(found)) => {
                        let differ = u128::from(network) ^ u128::from(found);
                        differ.checked_shr(128 - u32::from(bits)).unwrap_or(0) == 0
                    }
                    _ => false,
                }
            }
            _ => false,
        }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Client::User(uid) => write!(f, "uid={uid}"),
            Client::Network { address, bits } => write!(f, "{address}/{bits}"),
        }
    }
}

impl Export {
    /// An export of `path` with the default options.
    #[must_use]
    pub fn new(path: &str) -> Export {
        Export {
            path: path.to_owned(),
            read_only: false,
            root_squash: true,
            all_squash: false,
            anonymous_uid: NOBODY,
            anonymous_gid: NOBODY,
            secure: false,
            clients: Vec::new(),
        }
    }

    /// Whether `peer` may use it. As soon as somebody is named, everybody else may not. One that is `secure` is only for
    /// ports below 1024 and for processes of the superuser, whatever the fabric: other users of a client
    /// cannot have those.
    #[must_use]
    pub fn allows(&self, peer: &Peer) -> bool {
        let is_named = || self.clients.is_empty() || self.clients.iter().any(|client| client.includes(peer));
        (!self.secure || is_superuser(peer)) && is_named()
    }

    /// Whether somebody may use it of whom the fabric tells nothing.
    #[must_use]
    pub fn allows_anybody(&self) -> bool {
        !self.secure && self.clients.is_empty()
    }

    /// As whom a Call runs here; `None` is one that says nothing of its user.
    #[inline]
    #[must_use]
    pub fn caller(&self, named: Option<&UserIdentity>) -> UserIdentity {
        let (uid, gid) = (self.anonymous_uid, self.anonymous_gid);
        let Some(mut caller) = named.copied().filter(|_| !self.all_squash) else { return self.anonymous() };
        caller.replace(INVALID_ID, uid, gid);
        if self.root_squash {
            if caller.is_root() {
                return self.anonymous();
            }
            caller.replace(0, uid, gid);
        }
        caller
    }

    fn anonymous(&self) -> UserIdentity {
        UserIdentity::new(self.anonymous_uid, self.anonymous_gid, [])
    }
}

/// Whether only the superuser of the peer's machine can be this peer.
fn is_superuser(peer: &Peer) -> bool {
    match peer {
        Peer::Address(address) => address.port() < PRIVILEGED_PORTS_END,
        Peer::Process { uid, .. } => *uid == 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(uid: u32) -> Peer {
        Peer::Process { pid: 1, uid, gid: 1 }
    }

    fn address(text: &str) -> Peer {
        Peer::Address(text.parse().unwrap())
    }

    fn network(address: &str, bits: u8) -> Client {
        Client::Network { address: address.parse().unwrap(), bits }
    }

    #[test]
    fn everybody_or_those_who_are_named() {
        let open = Export::new("/a");
        assert!(open.allows(&process(7)) && open.allows(&address("192.0.2.1:1")));

        let users = Export { clients: vec![Client::User(7), Client::User(8)], ..Export::new("/a") };
        assert!(users.allows(&process(7)) && users.allows(&process(8)));
        assert!(!users.allows(&process(0)) && !users.allows(&address("192.0.2.1:1")));

        let networks =
            Export { clients: vec![network("192.0.2.128", 25), network("fd00::", 8)], ..Export::new("/a") };
        for (peer, expected) in [
            ("192.0.2.128:9", true),
            ("192.0.2.127:9", false),
            ("[::ffff:192.0.2.200]:9", true),
            ("[fdff::1]:9", true),
            ("[fe80::1]:9", false),
        ] {
            assert_eq!(networks.allows(&address(peer)), expected, "{peer}");
        }
        assert!(!networks.allows(&process(0)));

        let one = Export { clients: vec![network("192.0.2.1", 32)], ..Export::new("/a") };
        assert!(one.allows(&address("192.0.2.1:9")) && !one.allows(&address("192.0.2.0:9")));
        let all = Export { clients: vec![network("0.0.0.0", 0)], ..Export::new("/a") };
        assert!(all.allows(&address("203.0.113.9:9")) && !all.allows(&address("[2001:db8::1]:9")));
    }

    #[test]
    fn a_secure_export_is_for_the_superusers_of_clients() {
        let export = Export {
            secure: true,
            clients: vec![network("192.0.2.0", 24), Client::User(7), Client::User(0)],
            ..Export::new("/a")
        };
        for (peer, expected) in [
            ("192.0.2.1:1023", true),
            ("192.0.2.1:1024", false),
            ("192.0.2.1:40000", false),
            ("[::ffff:192.0.2.1]:700", true),
            ("198.51.100.1:700", false),
        ] {
            assert_eq!(export.allows(&address(peer)), expected, "{peer}");
        }
        assert!(export.allows(&process(0)) && !export.allows(&process(7)));
        let open = Export { secure: true, ..Export::new("/a") };
        assert!(open.secure && open.allows(&address("192.0.2.1:1")) && !open.allows_anybody());
        assert!(!open.allows(&address("192.0.2.1:2000")) && !open.allows(&process(7)));
    }

    #[test]
    fn squashing() {
        let root = UserIdentity::new(0, 0, [0, 9]);
        let user = UserIdentity::new(5, 0, [0, 9]);
        let squashed = UserIdentity::new(NOBODY, NOBODY, []);
        let default = Export::new("/a");
        assert_eq!(default.caller(Some(&root)), squashed);
        assert_eq!(default.caller(Some(&user)), UserIdentity::new(5, NOBODY, [NOBODY, 9]));
        assert_eq!(default.caller(None), squashed);
        let trusting = Export { root_squash: false, ..Export::new("/a") };
        assert_eq!(trusting.caller(Some(&root)), root);
        assert_eq!(trusting.caller(None), squashed);
        // 4294967295 is no user, whatever is squashed: to a kernel that number means "leave it", which is root.
        for export in [&default, &trusting] {
            let nobodys = UserIdentity::new(u32::MAX, u32::MAX, [9, u32::MAX]);
            assert_eq!(export.caller(Some(&nobodys)), UserIdentity::new(NOBODY, NOBODY, [9, NOBODY]));
            let half = UserIdentity::new(5, u32::MAX, []);
            assert_eq!(export.caller(Some(&half)), UserIdentity::new(5, NOBODY, []));
        }
        let all = Export { all_squash: true, anonymous_uid: 1, anonymous_gid: 2, ..Export::new("/a") };
        assert_eq!(all.caller(Some(&user)), UserIdentity::new(1, 2, []));
    }
}
