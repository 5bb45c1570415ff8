//! The text of `--export`: `mem:/data,ro,client=10.0.0.0/8`, `dir:/srv/data,name=/data`.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::sync::LazyLock;

use stag_nfs::export::{Client, ClientRule, Export, RateLimits};
use stag_nfs::server::TRANSFER_LEN_MAX;
use stag_vfs::INVALID_ID;
use stag_wire::mount3::PATH_LEN_MAX;

/// What keeps an export's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Pool memory.
    Memory,
    /// A directory of the machine.
    Directory,
}

/// One export: who may use it, and what keeps its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportSpec {
    /// The path that clients mount, the clients, and their users.
    pub access: Export,
    /// What keeps the files.
    pub medium: Medium,
    /// The directory whose files these are; empty for memory.
    pub directory: String,
    /// Bytes of data that it may hold; the rest of the memory budget if it does not say.
    pub size: Option<u64>,
    /// The core whose reactor has the files, of memory served by several cores. The server chooses one if it is not given.
    pub core: Option<u32>,
    /// Objects that it may hold; of a directory, those whose place is remembered.
    pub objects: u32,
    /// Whether what a Call changed in a directory is on stable storage before it is answered: else a crash of the machine may
    /// take it back.
    pub sync: bool,
    /// Whether locks of clients are taken on the files of a directory as well, where other processes and nodes see them.
    pub locks_below: bool,
}

impl ExportSpec {
    /// An export of `path` with the default options.
    fn new(medium: Medium, path: &str) -> ExportSpec {
        ExportSpec {
            access: Export::new(path),
            medium,
            directory: match medium {
                Medium::Memory => String::new(),
                Medium::Directory => path.to_owned(),
            },
            size: None,
            core: None,
            objects: 1 << 20,
            sync: true,
            locks_below: false,
        }
    }
}

/// Why a line of text is no export.
#[derive(Clone, Debug, PartialEq, Eq)]
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

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExportError { export, what, found, wanted } = self;
        write!(f, "export {export:?}: {what} {found:?}: {wanted}")
    }
}

/// An option that may follow the path of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExportOption {
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
    pub(super) fn name(&self) -> &'static str {
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
    Rate,
    ClientRate,
    Objects,
    Size,
    Core,
    Name,
    Sync,
    Lock,
}

/// All options of exports, in the order in which people are told of them.
pub(super) const OPTIONS: &[ExportOption] = {
    use OptionKind::{
        AllSquash, AnonymousGid, AnonymousUid, Client, ClientRate, Core, Lock, Name, Objects, Rate, ReadOnly,
        ReadWrite, RootSquash, Secure, Size, Sync, Uid,
    };
    const MEMORY: Option<Medium> = Some(Medium::Memory);
    const DIRECTORY: Option<Medium> = Some(Medium::Directory);
    &[
        ExportOption::new(ReadOnly, None, ["ro", "nothing may be changed", "rw"]),
        ExportOption::new(ReadWrite, None, ["rw", "files may be changed", "rw"]),
        ExportOption::new(
            Client,
            None,
            ["client=NET[:ro|:rw]", "an address, a network or *: may use it; repeated", "all"],
        ),
        ExportOption::new(Uid, None, ["uid=N[:ro|:rw]", "over shm: a user of this machine; repeated", "all"]),
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
            Rate,
            None,
            ["rate=BYTES", "octets/s of READ and WRITE, all clients together", "any"],
        ),
        ExportOption::new(
            ClientRate,
            None,
            ["client_rate=BYTES", "octets/s of READ and WRITE, each client", "any"],
        ),
        ExportOption::new(
            Objects,
            None,
            ["objects=N", "objects it may have; of dir: those remembered", "1048576"],
        ),
        ExportOption::new(Size, MEMORY, ["size=BYTES", "octets of data, as 512M", "the rest"]),
        ExportOption::new(Core, MEMORY, ["core=N", "the core of --cores that has the files", "spread"]),
        ExportOption::new(Name, DIRECTORY, ["name=/PATH", "the path that clients mount", "the same"]),
        ExportOption::new(Sync, DIRECTORY, ["sync=yes|no", "names are on the disk before an answer", "yes"]),
        ExportOption::new(
            Lock,
            DIRECTORY,
            ["lock=local|below", "below: other nodes see clients' locks", "local"],
        ),
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

impl FromStr for ExportSpec {
    type Err = ExportError;

    /// Reads `MEDIUM:/PATH[,OPTION...]`.
    fn from_str(text: &str) -> Result<ExportSpec, ExportError> {
        parse(text).map_err(|(what, found, wanted)| ExportError {
            export: text.to_owned(),
            what,
            found,
            wanted,
        })
    }
}

fn parse(text: &str) -> Result<ExportSpec, Complaint> {
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
    let mut export = ExportSpec::new(medium, path);
    let mut seen: Vec<&str> = Vec::new();
    let mut rates = (None, None);
    for word in words {
        let (option, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let repeats = matches!(option, "client" | "uid");
        if !repeats && seen.contains(&option) {
            return Err(("option", word.to_owned(), "give each option but client and uid only once"));
        }
        seen.push(option);
        set(&mut export, &mut rates, option, value, word)?;
    }
    if let (Some(_), _) | (_, Some(_)) = rates {
        export.access.limits = Some(RateLimits::new(rates.0, rates.1, TRANSFER_LEN_MAX));
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

/// Octets per second of all clients together, and of each.
type Rates = (Option<NonZeroU64>, Option<NonZeroU64>);

fn set(
    export: &mut ExportSpec,
    rates: &mut Rates,
    option: &str,
    value: Option<&str>,
    word: &str,
) -> Result<(), Complaint> {
    let number = |what| number(value.unwrap_or_default(), what);
    let id = |what| user(value.unwrap_or_default(), what);
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
            OptionKind::Lock => "files in memory have no other users than clients; leave it out",
            _ => "files in memory have no other path than the one before the options; leave it out",
        };
        return Err(("option", word.to_owned(), wanted));
    }
    match (known.kind, value) {
        (OptionKind::ReadOnly, None) => export.access.read_only = true,
        (OptionKind::ReadWrite, None) => export.access.read_only = false,
        (OptionKind::ReadOnly | OptionKind::ReadWrite, Some(value)) => {
            return Err((
                "option ro or rw with the value",
                value.to_owned(),
                "it has none; write ro or rw alone",
            ));
        }
        (OptionKind::RootSquash, _) => export.access.root_squash = yes_or_no("option root_squash")?,
        (OptionKind::AllSquash, _) => export.access.all_squash = yes_or_no("option all_squash")?,
        (OptionKind::AnonymousUid, _) => export.access.anonymous_uid = id("option anonuid")?,
        (OptionKind::AnonymousGid, _) => export.access.anonymous_gid = id("option anongid")?,
        (OptionKind::Uid | OptionKind::Client, _) => {
            let (named, read_only) = rights(value.unwrap_or_default());
            let client = match known.kind {
                OptionKind::Uid => Client::User(user(named, "option uid")?),
                _ => network(named)?,
            };
            export.access.clients.push(ClientRule { client, read_only });
        }
        (OptionKind::Objects, _) => match number("option objects")? {
            0 => return Err(("option objects", "0".to_owned(), "give at least 1, for the root directory")),
            objects => export.objects = objects,
        },
        (OptionKind::Core, _) => export.core = Some(number("option core")?),
        (OptionKind::Name, path) => {
            let path = path.unwrap_or_default();
            check_path(path)?;
            path.clone_into(&mut export.access.path);
        }
        (OptionKind::Sync, _) => export.sync = yes_or_no("option sync")?,
        (OptionKind::Lock, Some("local")) => export.locks_below = false,
        (OptionKind::Lock, Some("below")) => export.locks_below = true,
        (OptionKind::Lock, value) => {
            let found = value.unwrap_or_default().to_owned();
            return Err(("option lock", found, "give local or below"));
        }
        (OptionKind::Secure, _) => export.access.secure = yes_or_no("option secure")?,
        (OptionKind::Rate, _) => rates.0 = Some(rate(value.unwrap_or_default(), "option rate")?),
        (OptionKind::ClientRate, _) => {
            rates.1 = Some(rate(value.unwrap_or_default(), "option client_rate")?);
        }
        (OptionKind::Size, _) => export.size = Some(size(value.unwrap_or_default())?),
    }
    Ok(())
}

/// Splits `CLIENT:ro` and `CLIENT:rw`. No address ends so.
fn rights(text: &str) -> (&str, Option<bool>) {
    match text.rsplit_once(':') {
        Some((client, "ro")) => (client, Some(true)),
        Some((client, "rw")) => (client, Some(false)),
        _ => (text, None),
    }
}

fn number(found: &str, what: &'static str) -> Result<u32, Complaint> {
    found.parse().map_err(|_| (what, found.to_owned(), "give a number from 0 to 4294967295"))
}

/// A user or group. The last number is none: nothing may belong to it.
fn user(found: &str, what: &'static str) -> Result<u32, Complaint> {
    match number(found, what)? {
        INVALID_ID => Err((what, INVALID_ID.to_string(), "give a number from 0 to 4294967294")),
        id => Ok(id),
    }
}

fn network(text: &str) -> Result<Client, Complaint> {
    const WANTED: &str =
        "give an address, a network like 10.0.0.0/8 or fd00::/8, or * for all; :ro or :rw may follow";
    let complain = || ("option client", text.to_owned(), WANTED);
    if text == "*" {
        return Ok(Client::Any);
    }
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let address: IpAddr = address.parse().map_err(|_| complain())?;
    let bits_max = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Ok(bits_max), |bits| bits.parse::<u8>().map_err(|_| complain()))?;
    if bits > bits_max {
        return Err(("option client", text.to_owned(), "an IPv4 network has at most /32, an IPv6 one /128"));
    }
    Ok(Client::Network { address, bits })
}

/// The least limit in octets per second: at a lower one the largest READ would take longer than clients wait for an answer.
const RATE_MIN: u64 = 64 << 10;

fn size(text: &str) -> Result<u64, Complaint> {
    let complain =
        || ("option size", text.to_owned(), "give bytes, like 1073741824, 512M or 4G, at least 4096");
    bytes(text).filter(|bytes| *bytes >= 4096).ok_or_else(complain)
}

fn rate(text: &str, what: &'static str) -> Result<NonZeroU64, Complaint> {
    let rate = bytes(text).filter(|bytes| *bytes >= RATE_MIN).and_then(NonZeroU64::new);
    rate.ok_or_else(|| (what, text.to_owned(), "give bytes per second, like 500M or 1G, at least 64K"))
}

/// Reads a number of bytes, with an optional K, M, G or T of 1024s.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['K', 'M', 'G', 'T']);
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_may_be_mounted_under_another_name() {
        let plain: ExportSpec = "dir:/srv/data".parse().unwrap();
        assert_eq!(
            (plain.medium, &*plain.access.path, &*plain.directory),
            (Medium::Directory, "/srv/data", "/srv/data")
        );
        assert!(plain.sync && !"dir:/srv/data,sync=no".parse::<ExportSpec>().unwrap().sync);
        assert!(!plain.locks_below && "dir:/a,lock=below".parse::<ExportSpec>().unwrap().locks_below);
        assert_eq!("dir:/srv/data,lock=local".parse(), Ok(plain));
        let named: ExportSpec = "dir:/srv/data,ro,name=/data".parse().unwrap();
        assert_eq!(
            (&*named.access.path, &*named.directory, named.access.read_only),
            ("/data", "/srv/data", true)
        );
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
            "mem:/a,lock=below",
            "dir:/a,lock",
        ] {
            assert!(wrong.parse::<ExportSpec>().is_err(), "{wrong}");
        }
        let memory: ExportSpec = "mem:/a".parse().unwrap();
        assert_eq!((memory.medium, &*memory.directory), (Medium::Memory, ""));
    }

    /// One list is what is parsed, what help prints, and what an error names.
    #[test]
    fn every_option_of_the_list_is_understood() {
        for option in OPTIONS {
            let value = match option.syntax.split_once('=') {
                None => String::new(),
                Some((_, "NET[:ro|:rw]")) => "=10.0.0.0/8:ro".to_owned(),
                Some((_, "BYTES")) => "=1M".to_owned(),
                Some((_, "/PATH")) => "=/other".to_owned(),
                Some((_, "yes|no")) => "=yes".to_owned(),
                Some((_, "local|below")) => "=below".to_owned(),
                Some((_, "N" | "N[:ro|:rw]")) => "=1".to_owned(),
                Some((_, other)) => panic!("{other}: write a value of it here"),
            };
            for medium in [Medium::Memory, Medium::Directory] {
                let scheme = if medium == Medium::Memory { "mem" } else { "dir" };
                let text = format!("{scheme}:/a,{}{value}", option.name());
                let is_of_it = option.medium.is_none_or(|only| only == medium);
                assert_eq!(text.parse::<ExportSpec>().is_ok(), is_of_it, "{text}");
            }
            let unknown = "mem:/a,unknown".parse::<ExportSpec>().unwrap_err();
            assert!(unknown.wanted.contains(option.syntax), "{}: {}", option.syntax, unknown.wanted);
        }
    }

    #[test]
    fn options_are_understood() {
        let plain: ExportSpec = "mem:/data".parse().unwrap();
        assert_eq!(plain, ExportSpec::new(Medium::Memory, "/data"));
        let full: ExportSpec =
            "mem:/a/b,ro,root_squash=no,anonuid=1,anongid=2,size=3M,core=7,objects=4,uid=5,client=10.1.0.0/16"
                .parse()
                .unwrap();
        let network = Client::Network { address: "10.1.0.0".parse().unwrap(), bits: 16 };
        let access = Export {
            read_only: true,
            root_squash: false,
            anonymous_uid: 1,
            anonymous_gid: 2,
            clients: vec![Client::User(5).into(), network.into()],
            ..Export::new("/a/b")
        };
        let expected = ExportSpec { access, size: Some(3 << 20), core: Some(7), objects: 4, ..plain };
        assert_eq!(full, expected);
        assert_eq!("mem:/".parse::<ExportSpec>().unwrap().access.path, "/");
    }

    #[test]
    fn limits_are_bytes_per_second() {
        let limits = |text: &str| text.parse::<ExportSpec>().unwrap().access.limits;
        let read = |text: &str| limits(text).map(|limits| (limits.all(), limits.each()));
        assert_eq!(read("mem:/a"), None);
        assert_eq!(read("mem:/a,rate=500M"), Some((NonZeroU64::new(500 << 20), None)));
        assert_eq!(read("dir:/a,client_rate=65536"), Some((None, NonZeroU64::new(1 << 16))));
        let both = (NonZeroU64::new(1 << 30), NonZeroU64::new(100 << 10));
        assert_eq!(read("dir:/a,client_rate=100K,rate=1G"), Some(both));
        // What says the same is the same: a reload changes nothing.
        assert_eq!(limits("dir:/a,rate=1G"), limits("dir:/a,rate=1024M"));
        for wrong in ["rate", "rate=0", "rate=1K", "rate=fast", "rate=1M,rate=2M", "client_rate=-1"] {
            assert!(format!("mem:/a,{wrong}").parse::<ExportSpec>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn clients_have_rights_of_their_own() {
        let text = "mem:/a,client=10.0.0.0/8:rw,client=fd00::1:ro,client=fd00::/8,client=*:ro,uid=5:rw";
        let rules = text.parse::<ExportSpec>().unwrap().access.clients;
        let rule = |text: &str, bits, read_only| {
            let client = Client::Network { address: text.parse().unwrap(), bits };
            ClientRule { client, read_only }
        };
        let expected = [
            rule("10.0.0.0", 8, Some(false)),
            rule("fd00::1", 128, Some(true)),
            rule("fd00::", 8, None),
            ClientRule { client: Client::Any, read_only: Some(true) },
            ClientRule { client: Client::User(5), read_only: Some(false) },
        ];
        assert_eq!(rules, expected);
        for wrong in
            ["client=10.0.0.0/8:rx", "client=:ro", "client", "client=*:", "client=*/8", "uid=:ro", "uid=*"]
        {
            assert!(format!("mem:/a,{wrong}").parse::<ExportSpec>().is_err(), "{wrong}");
        }
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
                r#"export "mem:/a,client=host": option client "host": give an address, a network like 10.0.0.0/8 or fd00::/8, or * for all; :ro or :rw may follow"#,
            ),
            (
                "mem:/a,size=99999999T",
                r#"export "mem:/a,size=99999999T": option size "99999999T": give bytes, like 1073741824, 512M or 4G, at least 4096"#,
            ),
            (
                "dir:/a,rate=9",
                r#"export "dir:/a,rate=9": option rate "9": give bytes per second, like 500M or 1G, at least 64K"#,
            ),
            (
                "mem:/a,lock=below",
                r#"export "mem:/a,lock=below": option "lock=below": files in memory have no other users than clients; leave it out"#,
            ),
            (
                "dir:/a,lock=remote",
                r#"export "dir:/a,lock=remote": option lock "remote": give local or below"#,
            ),
            (
                "mem:/a,objects=0",
                r#"export "mem:/a,objects=0": option objects "0": give at least 1, for the root directory"#,
            ),
        ] {
            assert_eq!(text.parse::<ExportSpec>().unwrap_err().to_string(), message);
        }
        let unknown = "mem:/a,sync".parse::<ExportSpec>().unwrap_err();
        assert_eq!((unknown.what, unknown.found.as_str()), ("option", "sync"));
        assert!(format!("mem:/{}", "x".repeat(1024)).parse::<ExportSpec>().is_err());
        assert!(format!("mem:/{}", "x".repeat(1023)).parse::<ExportSpec>().is_ok());
    }
}
