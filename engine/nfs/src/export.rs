//! Exports: the path that clients mount, who may, and the users that clients are mapped to. What keeps the files is the
//! business of who makes the store.

use std::fmt;
use std::net::IpAddr;

use stag_fabric::Peer;

use stag_vfs::{INVALID_ID, UserIdentity};

pub use stag_shares::rate::{RateLimits, RateWaits};

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
    /// Whether only the superuser of a client may speak for it: see [`Export::rights`]. What a Call says of its user can be
    /// trusted as far as its sender.
    pub secure: bool,
    /// Who may use it, and how. Without rules everybody may.
    pub clients: Vec<ClientRule>,
    /// Octets per second of READ and WRITE, of all clients together and of each. A clone of the export counts together with it, so
    /// all reactors that serve it keep the limits together.
    pub limits: Option<RateLimits>,
}

/// What a client may do with an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Nothing: MNT and each Call by handle are refused.
    None,
    /// It may read.
    ReadOnly,
    /// It may read and write.
    ReadWrite,
}

/// Clients, and what they may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientRule {
    /// Who.
    pub client: Client,
    /// Whether they may only read; `None`: as the export says.
    pub read_only: Option<bool>,
}

impl From<Client> for ClientRule {
    fn from(client: Client) -> ClientRule {
        ClientRule { client, read_only: None }
    }
}

/// Clients that one rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// All clients, over every fabric.
    Any,
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
            (Client::Any, _) => true,
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

    /// Orders rules as exports(5) does: single clients come before networks, and networks before all clients.
    fn breadth(&self) -> u8 {
        match self {
            Client::User(_) => 0,
            Client::Network { address, bits } => {
                let bits_max = if address.is_ipv4() { 32 } else { 128 };
                u8::from(*bits < bits_max)
            }
            Client::Any => 2,
        }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Client::Any => f.write_str("*"),
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
            limits: None,
        }
    }

    /// What `peer` may do here; `None`: the fabric tells nothing of it. If there are rules, one of them has to be about it. Of
    /// several the narrowest decides: a single client, then a network, then all clients; among networks the first.
    ///
    /// One that is `secure` is only for ports below 1024 and for processes of the superuser, whatever the fabric: other users
    /// of a client cannot have those.
    #[must_use]
    pub fn rights(&self, peer: Option<&Peer>) -> Rights {
        if self.secure && !peer.is_some_and(is_superuser) {
            return Rights::None;
        }
        let is_about = |client: &Client| peer.map_or(*client == Client::Any, |peer| client.includes(peer));
        let rules = self.clients.iter().filter(|rule| is_about(&rule.client));
        let read_only = match rules.min_by_key(|rule| rule.client.breadth()) {
            Some(rule) => rule.read_only.unwrap_or(self.read_only),
            None if self.clients.is_empty() => self.read_only,
            None => return Rights::None,
        };
        if read_only { Rights::ReadOnly } else { Rights::ReadWrite }
    }

    /// What a client may do that no rule is about, if there are no rules.
    #[inline]
    pub(crate) const fn own_rights(&self) -> Rights {
        if self.read_only { Rights::ReadOnly } else { Rights::ReadWrite }
    }

    /// Whether rights depend on who asks.
    #[inline]
    #[must_use]
    pub fn has_rules(&self) -> bool {
        self.secure || !self.clients.is_empty()
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

    fn rules(clients: &[Client]) -> Vec<ClientRule> {
        clients.iter().copied().map(ClientRule::from).collect()
    }

    fn allows(export: &Export, peer: &Peer) -> bool {
        export.rights(Some(peer)) != Rights::None
    }

    #[test]
    fn everybody_or_those_who_are_named() {
        let open = Export::new("/a");
        assert!(allows(&open, &process(7)) && allows(&open, &address("192.0.2.1:1")));

        let users = Export { clients: rules(&[Client::User(7), Client::User(8)]), ..Export::new("/a") };
        assert!(allows(&users, &process(7)) && allows(&users, &process(8)));
        assert!(!allows(&users, &process(0)) && !allows(&users, &address("192.0.2.1:1")));

        let networks = Export {
            clients: rules(&[network("192.0.2.128", 25), network("fd00::", 8)]),
            ..Export::new("/a")
        };
        for (peer, expected) in [
            ("192.0.2.128:9", true),
            ("192.0.2.127:9", false),
            ("[::ffff:192.0.2.200]:9", true),
            ("[fdff::1]:9", true),
            ("[fe80::1]:9", false),
        ] {
            assert_eq!(allows(&networks, &address(peer)), expected, "{peer}");
        }
        assert!(!allows(&networks, &process(0)));

        let one = Export { clients: rules(&[network("192.0.2.1", 32)]), ..Export::new("/a") };
        assert!(allows(&one, &address("192.0.2.1:9")) && !allows(&one, &address("192.0.2.0:9")));
        let all = Export { clients: rules(&[network("0.0.0.0", 0)]), ..Export::new("/a") };
        assert!(allows(&all, &address("203.0.113.9:9")) && !allows(&all, &address("[2001:db8::1]:9")));
    }

    #[test]
    fn a_secure_export_is_for_the_superusers_of_clients() {
        let export = Export {
            secure: true,
            clients: rules(&[network("192.0.2.0", 24), Client::User(7), Client::User(0)]),
            ..Export::new("/a")
        };
        for (peer, expected) in [
            ("192.0.2.1:1023", true),
            ("192.0.2.1:1024", false),
            ("192.0.2.1:40000", false),
            ("[::ffff:192.0.2.1]:700", true),
            ("198.51.100.1:700", false),
        ] {
            assert_eq!(allows(&export, &address(peer)), expected, "{peer}");
        }
        assert!(allows(&export, &process(0)) && !allows(&export, &process(7)));
        let open = Export { secure: true, ..Export::new("/a") };
        assert!(open.secure && allows(&open, &address("192.0.2.1:1")) && open.rights(None) == Rights::None);
        assert!(!allows(&open, &address("192.0.2.1:2000")) && !allows(&open, &process(7)));
    }

    /// exports(5): "the first match from the above list order takes precedence".
    #[test]
    fn the_narrowest_rule_decides() {
        let rule = |client, read_only| ClientRule { client, read_only };
        let clients = vec![
            rule(Client::Any, Some(true)),
            rule(network("10.0.0.0", 8), Some(true)),
            rule(network("10.1.0.0", 16), Some(false)),
            rule(network("10.1.0.7", 32), Some(false)),
            rule(network("fd00::", 8), Some(false)),
            rule(network("fd00::1", 128), None),
            rule(Client::User(7), Some(false)),
        ];
        let export = Export { read_only: true, clients, ..Export::new("/a") };
        for (peer, expected) in [
            (address("10.1.0.7:9"), Rights::ReadWrite),
            (address("[::ffff:10.1.0.7]:9"), Rights::ReadWrite),
            // Both networks: the first one.
            (address("10.1.0.8:9"), Rights::ReadOnly),
            (address("[fd00::2]:9"), Rights::ReadWrite),
            // What the export says.
            (address("[fd00::1]:9"), Rights::ReadOnly),
            (address("192.0.2.1:9"), Rights::ReadOnly),
            (process(7), Rights::ReadWrite),
            (process(8), Rights::ReadOnly),
        ] {
            assert_eq!(export.rights(Some(&peer)), expected, "{peer}");
        }
        assert_eq!(export.rights(None), Rights::ReadOnly);
        let closed = Export { clients: rules(&[network("10.0.0.0", 8)]), ..export };
        assert_eq!(closed.rights(None), Rights::None);
        assert_eq!(closed.rights(Some(&process(7))), Rights::None);
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
