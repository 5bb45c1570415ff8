//! Exports: their files, their clients, and the users that clients are mapped to. One line of text each:
//! `mem:/data,ro,client=10.0.0.0/8`, `dir:/srv/data,name=/data`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::LazyLock;

use stag_fabric::Peer;
use stag_wire::mount3::PATH_LEN_MAX;

use stag_vfs::{INVALID_ID, UserIdentity};

/// The user and the group that stand for unknown ones, unless an export says otherwise: "nobody" on Linux.
pub const NOBODY: u32 = 65534;

/// Ports below this are the superuser's.
const PRIVILEGED_PORTS_END: u16 = 1024;

/// What keeps an export's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Pool memory.
    Memory,
    /// A directory of the machine.
    Directory,
}

/// One export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// What keeps the files.
    pub medium: Medium,
    /// The path that clients mount.
    pub path: String,
    /// The directory whose files these are; empty for memory.
    pub directory: String,
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
    /// Bytes of data that it may hold; the rest of the memory budget if it does not say.
    pub size: Option<u64>,
    /// The core whose reactor has the files, of memory served by several cores. The server chooses one if it is not given.
    pub core: Option<u32>,
    /// Objects that it may hold; of a directory, those whose place is remembered.
    pub objects: u32,
    /// Whether what a Call changed in a directory is on stable storage before it is answered: else a crash of the machine may
    /// take it back.
    pub sync: bool,
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
    pub fn new(medium: Medium, path: &str) -> Export {
        Export {
            medium,
            path: path.to_owned(),
            directory: match medium {
                Medium::Memory => String::new(),
                Medium::Directory => path.to_owned(),
            },
            read_only: false,
            root_squash: true,
            all_squash: false,
            anonymous_uid: NOBODY,
            anonymous_gid: NOBODY,
            size: None,
            core: None,
            objects: 1 << 20,
            sync: true,
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

/// Why a line of text is no export.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("export {export:?}: {what} {found:?}: {wanted}")]
pub struct ExportError {
    /// The whole line.
    pub export: String,
    /// What of it is wrong.
    pub what: &'static str,
    /// What was found there.
    pub found: String,
    /// What is possible there.
    pub wanted: &'static str,
}

/// An option that may follow the path of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportOption {
    /// How it is written, as `anonuid=N`.
    pub syntax: &'static str,
    /// The medium that alone has it, if not both have it.
    pub medium: Option<Medium>,
    /// What it means, in a few words.
    pub meaning: &'static str,
    /// What holds without it.
    pub default: &'static str,
    kind: OptionKind,
}

impl ExportOption {
    const fn new(
        kind: OptionKind,
        medium: Option<Medium>,
        [syntax, meaning, default]: [&'static str; 3],
    ) -> ExportOption {
        ExportOption { syntax, medium, meaning, default, kind }
    }

    /// What it is called, as `anonuid`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.syntax.split_once('=').map_or(self.syntax, |(name, _)| name)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OptionKind {
    ReadOnly,
    ReadWrite,
    Client,
    Uid,
    Secure,
    RootSquash,
    AllSquash,
    AnonymousUid,
    AnonymousGid,
    Objects,
    Size,
    Core,
    Name,
    Sync,
}

/// All options of exports, in the order in which people are told of them.
pub const OPTIONS: &[ExportOption] = {
    use OptionKind::{
        AllSquash, AnonymousGid, AnonymousUid, Client, Core, Name, Objects, ReadOnly, ReadWrite, RootSquash,
        Secure, Size, Sync, Uid,
    };
    const MEMORY: Option<Medium> = Some(Medium::Memory);
    const DIRECTORY: Option<Medium> = Some(Medium::Directory);
    &[
        ExportOption::new(ReadOnly, None, ["ro", "nothing may be changed", "rw"]),
        ExportOption::new(ReadWrite, None, ["rw", "files may be changed", "rw"]),
        ExportOption::new(
            Client,
            None,
            ["client=ADDRESS/BITS", "an address or network that may mount it; repeated", "all"],
        ),
        ExportOption::new(Uid, None, ["uid=N", "over shm: a user of this machine; repeated", "all"]),
        ExportOption::new(
            Secure,
            None,
            ["secure=yes|no", "only ports below 1024 and root may send Calls", "no"],
        ),
        ExportOption::new(
            RootSquash,
            None,
            ["root_squash=yes|no", "whether a client's root is the anonymous user", "yes"],
        ),
        ExportOption::new(
            AllSquash,
            None,
            ["all_squash=yes|no", "whether every client is the anonymous user", "no"],
        ),
        ExportOption::new(AnonymousUid, None, ["anonuid=N", "the anonymous user", "65534"]),
        ExportOption::new(AnonymousGid, None, ["anongid=N", "the anonymous group", "65534"]),
        ExportOption::new(
            Objects,
            None,
            ["objects=N", "objects it may have; of dir: those remembered", "1048576"],
        ),
        ExportOption::new(Size, MEMORY, ["size=BYTES", "octets of data, as 512M", "the rest"]),
        ExportOption::new(Core, MEMORY, ["core=N", "the core of --cores that has the files", "spread"]),
        ExportOption::new(Name, DIRECTORY, ["name=/PATH", "the path that clients mount", "the same"]),
        ExportOption::new(Sync, DIRECTORY, ["sync=yes|no", "names are on the disk before an answer", "yes"]),
    ]
};

/// What to write where an option is unknown.
static KNOWN_OPTIONS: LazyLock<String> = LazyLock::new(|| {
    let of = |medium| {
        let listed = OPTIONS.iter().filter(|option| option.medium == medium);
        listed.map(|option| option.syntax).collect::<Vec<_>>().join(", ")
    };
    format!(
        "the options are {}, of files in memory {}, and of a directory {}",
        of(None),
        of(Some(Medium::Memory)),
        of(Some(Medium::Directory))
    )
});

/// Part of [`ExportError`]: what, found, wanted.
type Complaint = (&'static str, String, &'static str);

impl FromStr for Export {
    type Err = ExportError;

    /// Reads `MEDIUM:/PATH[,OPTION...]`.
    fn from_str(text: &str) -> Result<Export, ExportError> {
        parse(text).map_err(|(what, found, wanted)| ExportError {
            export: text.to_owned(),
            what,
            found,
            wanted,
        })
    }
}

fn parse(text: &str) -> Result<Export, Complaint> {
    let mut words = text.split(',');
    let place = words.next().unwrap_or_default();
    let (medium, path) = place.split_once(':').unwrap_or(("", place));
    let medium = match medium {
        "mem" => Medium::Memory,
        "dir" => Medium::Directory,
        "" => {
            return Err((
                "no medium before",
                place.to_owned(),
                "write dir:/PATH for a directory of this machine, mem:/PATH for files in memory",
            ));
        }
        other => {
            return Err((
                "medium",
                other.to_owned(),
                "write mem:/PATH for files in memory, dir:/PATH for a directory",
            ));
        }
    };
    check_path(path)?;
    let mut export = Export::new(medium, path);
    let mut seen: Vec<&str> = Vec::new();
    for word in words {
        let (option, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let repeats = matches!(option, "client" | "uid");
        if !repeats && seen.contains(&option) {
            return Err(("option", word.to_owned(), "give each option but client and uid only once"));
        }
        seen.push(option);
        set(&mut export, option, value, word)?;
    }
    if seen.contains(&"ro") && seen.contains(&"rw") {
        return Err(("options", "ro,rw".to_owned(), "give one of the two"));
    }
    Ok(export)
}

fn check_path(path: &str) -> Result<(), Complaint> {
    let complain = |wanted| Err(("path", path.to_owned(), wanted));
    if !path.starts_with('/') {
        return complain("a path begins with /");
    }
    if path.len() > PATH_LEN_MAX as usize {
        return complain("a path has at most 1024 bytes");
    }
    let names = path.split('/').skip(1);
    if path.len() > 1 && names.clone().any(|name| matches!(name, "" | "." | "..")) {
        return complain("leave out //, /./, /../ and a / at the end");
    }
    if path.contains('\0') {
        return complain("leave out the zero byte");
    }
    Ok(())
}

fn set(export: &mut Export, option: &str, value: Option<&str>, word: &str) -> Result<(), Complaint> {
    let number = |what| {
        let found = value.unwrap_or_default();
        found.parse::<u32>().map_err(|_| (what, found.to_owned(), "give a number from 0 to 4294967295"))
    };
    // Of a user or group. The last number is none: nothing may belong to it.
    let id = |what| match number(what)? {
        INVALID_ID => Err((what, INVALID_ID.to_string(), "give a number from 0 to 4294967294")),
        id => Ok(id),
    };
    let yes_or_no = |what| match value {
        None | Some("yes") => Ok(true),
        Some("no") => Ok(false),
        Some(other) => Err((what, other.to_owned(), "give yes or no")),
    };
    let known = OPTIONS.iter().find(|known| known.name() == option);
    let Some(known) = known else { return Err(("option", word.to_owned(), &KNOWN_OPTIONS)) };
    if known.medium.is_some_and(|medium| medium != export.medium) {
        let wanted = match known.kind {
            OptionKind::Size => "a directory has the size that its file system has; leave it out",
            OptionKind::Core => "every core serves a directory; leave it out",
            OptionKind::Sync => "files in memory are never on a disk; leave it out",
            _ => "files in memory have no other path than the one before the options; leave it out",
        };
        return Err(("option", word.to_owned(), wanted));
    }
    match (known.kind, value) {
        (OptionKind::ReadOnly, None) => export.read_only = true,
        (OptionKind::ReadWrite, None) => export.read_only = false,
        (OptionKind::ReadOnly | OptionKind::ReadWrite, Some(value)) => {
            return Err((
                "option ro or rw with the value",
                value.to_owned(),
                "it has none; write ro or rw alone",
            ));
        }
        (OptionKind::RootSquash, _) => export.root_squash = yes_or_no("option root_squash")?,
        (OptionKind::AllSquash, _) => export.all_squash = yes_or_no("option all_squash")?,
        (OptionKind::AnonymousUid, _) => export.anonymous_uid = id("option anonuid")?,
        (OptionKind::AnonymousGid, _) => export.anonymous_gid = id("option anongid")?,
        (OptionKind::Uid, _) => export.clients.push(Client::User(id("option uid")?)),
        (OptionKind::Client, _) => export.clients.push(network(value.unwrap_or_default())?),
        (OptionKind::Objects, _) => match number("option objects")? {
            0 => return Err(("option objects", "0".to_owned(), "give at least 1, for the root directory")),
            objects => export.objects = objects,
        },
        (OptionKind::Core, _) => export.core = Some(number("option core")?),
        (OptionKind::Name, path) => {
            let path = path.unwrap_or_default();
            check_path(path)?;
            path.clone_into(&mut export.path);
        }
        (OptionKind::Sync, _) => export.sync = yes_or_no("option sync")?,
        (OptionKind::Secure, _) => export.secure = yes_or_no("option secure")?,
        (OptionKind::Size, _) => export.size = Some(size(value.unwrap_or_default())?),
    }
    Ok(())
}

fn network(text: &str) -> Result<Client, Complaint> {
    let complain =
        || ("option client", text.to_owned(), "give an address, or a network like 10.0.0.0/8 or fd00::/8");
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let address: IpAddr = address.parse().map_err(|_| complain())?;
    let bits_max = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Ok(bits_max), |bits| bits.parse::<u8>().map_err(|_| complain()))?;
    if bits > bits_max {
        return Err(("option client", text.to_owned(), "an IPv4 network has at most /32, an IPv6 one /128"));
    }
    Ok(Client::Network { address, bits })
}

/// Reads a number of bytes, with an optional K, M, G or T of 1024s.
fn size(text: &str) -> Result<u64, Complaint> {
    let complain =
        || ("option size", text.to_owned(), "give bytes, like 1073741824, 512M or 4G, at least 4096");
    let digits = text.trim_end_matches(['K', 'M', 'G', 'T']);
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(complain()),
    };
    let number: u64 = digits.parse().map_err(|_| complain())?;
    let bytes = number.checked_mul(1 << shift).filter(|bytes| *bytes >= 4096);
    bytes.ok_or_else(complain)
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

    #[test]
    fn a_directory_may_be_mounted_under_another_name() {
        let plain: Export = "dir:/srv/data".parse().unwrap();
        assert_eq!(
            (plain.medium, &*plain.path, &*plain.directory),
            (Medium::Directory, "/srv/data", "/srv/data")
        );
        assert!(plain.sync && !"dir:/srv/data,sync=no".parse::<Export>().unwrap().sync);
        let named: Export = "dir:/srv/data,ro,name=/data".parse().unwrap();
        assert_eq!((&*named.path, &*named.directory, named.read_only), ("/data", "/srv/data", true));
        for wrong in [
            "dir:srv",
            "dir:/a/../b",
            "dir:/a,name=b",
            "dir:/a,name",
            "dir:/a,size=1M",
            "dir:/a,core=1",
            "mem:/a,core=one",
            "mem:/a,name=/b",
            "mem:/a,sync=no",
        ] {
            assert!(wrong.parse::<Export>().is_err(), "{wrong}");
        }
        let memory: Export = "mem:/a".parse().unwrap();
        assert_eq!((memory.medium, &*memory.directory), (Medium::Memory, ""));
    }

    /// One list is what is parsed, what help prints, and what an error names.
    #[test]
    fn every_option_of_the_list_is_understood() {
        for option in OPTIONS {
            let value = match option.syntax.split_once('=') {
                None => String::new(),
                Some((_, "ADDRESS/BITS")) => "=10.0.0.0/8".to_owned(),
                Some((_, "BYTES")) => "=1M".to_owned(),
                Some((_, "/PATH")) => "=/other".to_owned(),
                Some((_, "yes|no")) => "=yes".to_owned(),
                Some((_, "N")) => "=1".to_owned(),
                Some((_, other)) => panic!("{other}: write a value of it here"),
            };
            for medium in [Medium::Memory, Medium::Directory] {
                let scheme = if medium == Medium::Memory { "mem" } else { "dir" };
                let text = format!("{scheme}:/a,{}{value}", option.name());
                let is_of_it = option.medium.is_none_or(|only| only == medium);
                assert_eq!(text.parse::<Export>().is_ok(), is_of_it, "{text}");
            }
            let unknown = "mem:/a,unknown".parse::<Export>().unwrap_err();
            assert!(unknown.wanted.contains(option.syntax), "{}: {}", option.syntax, unknown.wanted);
        }
    }

    #[test]
    fn options_are_understood() {
        let plain: Export = "mem:/data".parse().unwrap();
        assert_eq!(plain, Export::new(Medium::Memory, "/data"));
        let full: Export =
            "mem:/a/b,ro,root_squash=no,anonuid=1,anongid=2,size=3M,core=7,objects=4,uid=5,client=10.1.0.0/16"
                .parse()
                .unwrap();
        let network = Client::Network { address: "10.1.0.0".parse().unwrap(), bits: 16 };
        let expected = Export {
            path: "/a/b".into(),
            read_only: true,
            root_squash: false,
            anonymous_uid: 1,
            anonymous_gid: 2,
            size: Some(3 << 20),
            core: Some(7),
            objects: 4,
            clients: vec![Client::User(5), network],
            ..plain
        };
        assert_eq!(full, expected);
        assert_eq!("mem:/".parse::<Export>().unwrap().path, "/");
    }

    #[test]
    fn errors_name_the_option_the_value_and_the_repair() {
        for (text, message) in [
            (
                "/data",
                r#"export "/data": no medium before "/data": write dir:/PATH for a directory of this machine, mem:/PATH for files in memory"#,
            ),
            (
                "nfs:/x",
                r#"export "nfs:/x": medium "nfs": write mem:/PATH for files in memory, dir:/PATH for a directory"#,
            ),
            ("mem:data", r#"export "mem:data": path "data": a path begins with /"#),
            ("mem:/a/", r#"export "mem:/a/": path "/a/": leave out //, /./, /../ and a / at the end"#),
            (
                "mem:/a/../b",
                r#"export "mem:/a/../b": path "/a/../b": leave out //, /./, /../ and a / at the end"#,
            ),
            (
                "mem:/a,ro,ro",
                r#"export "mem:/a,ro,ro": option "ro": give each option but client and uid only once"#,
            ),
            ("mem:/a,ro,rw", r#"export "mem:/a,ro,rw": options "ro,rw": give one of the two"#),
            (
                "mem:/a,ro=1",
                r#"export "mem:/a,ro=1": option ro or rw with the value "1": it has none; write ro or rw alone"#,
            ),
            (
                "mem:/a,root_squash=maybe",
                r#"export "mem:/a,root_squash=maybe": option root_squash "maybe": give yes or no"#,
            ),
            (
                "mem:/a,anonuid=-1",
                r#"export "mem:/a,anonuid=-1": option anonuid "-1": give a number from 0 to 4294967295"#,
            ),
            (
                "dir:/a,anongid=4294967295",
                r#"export "dir:/a,anongid=4294967295": option anongid "4294967295": give a number from 0 to 4294967294"#,
            ),
            (
                "mem:/a,uid=4294967295",
                r#"export "mem:/a,uid=4294967295": option uid "4294967295": give a number from 0 to 4294967294"#,
            ),
            (
                "mem:/a,client=10.0.0.0/33",
                r#"export "mem:/a,client=10.0.0.0/33": option client "10.0.0.0/33": an IPv4 network has at most /32, an IPv6 one /128"#,
            ),
            (
                "mem:/a,client=host",
                r#"export "mem:/a,client=host": option client "host": give an address, or a network like 10.0.0.0/8 or fd00::/8"#,
            ),
            (
                "mem:/a,size=99999999T",
                r#"export "mem:/a,size=99999999T": option size "99999999T": give bytes, like 1073741824, 512M or 4G, at least 4096"#,
            ),
            (
                "mem:/a,objects=0",
                r#"export "mem:/a,objects=0": option objects "0": give at least 1, for the root directory"#,
            ),
        ] {
            assert_eq!(text.parse::<Export>().unwrap_err().to_string(), message);
        }
        let unknown = "mem:/a,sync".parse::<Export>().unwrap_err();
        assert_eq!((unknown.what, unknown.found.as_str()), ("option", "sync"));
        assert!(format!("mem:/{}", "x".repeat(1024)).parse::<Export>().is_err());
        assert!(format!("mem:/{}", "x".repeat(1023)).parse::<Export>().is_ok());
    }

    #[test]
    fn everybody_or_those_who_are_named() {
        let open: Export = "mem:/a".parse().unwrap();
        assert!(open.allows(&process(7)) && open.allows(&address("192.0.2.1:1")));

        let users: Export = "mem:/a,uid=7,uid=8".parse().unwrap();
        assert!(users.allows(&process(7)) && users.allows(&process(8)));
        assert!(!users.allows(&process(0)) && !users.allows(&address("192.0.2.1:1")));

        let networks: Export = "mem:/a,client=192.0.2.128/25,client=fd00::/8".parse().unwrap();
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

        let one: Export = "mem:/a,client=192.0.2.1".parse().unwrap();
        assert!(one.allows(&address("192.0.2.1:9")) && !one.allows(&address("192.0.2.0:9")));
        let all: Export = "mem:/a,client=0.0.0.0/0".parse().unwrap();
        assert!(all.allows(&address("203.0.113.9:9")) && !all.allows(&address("[2001:db8::1]:9")));
    }

    #[test]
    fn a_secure_export_is_for_the_superusers_of_clients() {
        let export: Export = "mem:/a,secure,client=192.0.2.0/24,uid=7,uid=0".parse().unwrap();
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
        let open: Export = "mem:/a,secure=yes".parse().unwrap();
        assert!(open.secure && open.allows(&address("192.0.2.1:1")) && !open.allows_anybody());
        assert!(!open.allows(&address("192.0.2.1:2000")) && !open.allows(&process(7)));
        let default: Export = "mem:/a,secure=no".parse().unwrap();
        assert_eq!(default, "mem:/a".parse().unwrap());
        assert!(default.allows_anybody());
        assert!("mem:/a,secure=maybe".parse::<Export>().is_err());
    }

    #[test]
    fn squashing() {
        let root = UserIdentity::new(0, 0, [0, 9]);
        let user = UserIdentity::new(5, 0, [0, 9]);
        let squashed = UserIdentity::new(NOBODY, NOBODY, []);
        let default: Export = "mem:/a".parse().unwrap();
        assert_eq!(default.caller(Some(&root)), squashed);
        assert_eq!(default.caller(Some(&user)), UserIdentity::new(5, NOBODY, [NOBODY, 9]));
        assert_eq!(default.caller(None), squashed);
        let trusting: Export = "mem:/a,root_squash=no".parse().unwrap();
        assert_eq!(trusting.caller(Some(&root)), root);
        assert_eq!(trusting.caller(None), squashed);
        // 4294967295 is no user, whatever is squashed: to a kernel that number means "leave it", which is root.
        for export in [&default, &trusting] {
            let nobodys = UserIdentity::new(u32::MAX, u32::MAX, [9, u32::MAX]);
            assert_eq!(export.caller(Some(&nobodys)), UserIdentity::new(NOBODY, NOBODY, [9, NOBODY]));
            let half = UserIdentity::new(5, u32::MAX, []);
            assert_eq!(export.caller(Some(&half)), UserIdentity::new(5, NOBODY, []));
        }
        let all: Export = "mem:/a,all_squash,anonuid=1,anongid=2".parse().unwrap();
        assert_eq!(all.caller(Some(&user)), UserIdentity::new(1, 2, []));
    }
}
