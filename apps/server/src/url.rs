//! URLs: `FABRIC://ADDRESS[/path]`. The scheme is the fabric, the address is the server's there, and the
//! path begins with an export's.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser, ValueParserFactory};
use serde::de::{Deserialize, Deserializer, Error as _};
use stag_fabric::shm::check_name;

use crate::remote::RemoteError;

/// Longest name in a path, in octets, as servers take it.
const NAME_LEN_MAX: usize = 255;

/// Longest path, in octets, as the MOUNT protocol takes it.
const PATH_LEN_MAX: usize = 1024;

/// The fabrics that there are names for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FabricName {
    /// Two processes of one host.
    Shm,
    /// RDMA in userspace over TCP.
    Iwarp,
    /// RDMA hardware, through rdma-core.
    Verbs,
}

impl FabricName {
    /// All of them.
    pub const ALL: [FabricName; 3] = [FabricName::Shm, FabricName::Iwarp, FabricName::Verbs];

    /// The scheme of its URLs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            FabricName::Shm => "shm",
            FabricName::Iwarp => "iwarp",
            FabricName::Verbs => "verbs",
        }
    }

    /// Whether its addresses are `HOST:PORT`.
    #[must_use]
    pub const fn is_network(self) -> bool {
        !matches!(self, FabricName::Shm)
    }

    /// The names of all of them, for complaints.
    #[must_use]
    pub fn names() -> String {
        FabricName::ALL.map(FabricName::name).join(", ")
    }
}

/// A server, and perhaps a file there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// How to get there.
    pub fabric: FabricName,
    /// Where it is on that fabric.
    pub address: String,
    /// The names from the root to the file; none for the root, which holds the exports.
    pub path: Vec<OsString>,
    /// There is a path, and it is `/`: the root of an export that is named so, if there is one.
    pub is_root: bool,
    /// The TCP port of the server's MOUNT (`?mountport=PORT`), if it is said.
    pub mount_port: Option<u16>,
}

/// The port of NFS over RDMA (8267-9-a), for an address that names none.
const NFS_RDMA_PORT: u16 = 20049;

/// What stands between the fabric's name and the address.
const SCHEME_END: &str = "://";

/// What the option for MOUNT's port begins with, behind the path.
const MOUNT_PORT: &str = "?mountport=";

impl Url {
    /// The server alone.
    #[must_use]
    pub fn server(&self) -> Url {
        Url { path: Vec::new(), is_root: false, ..self.clone() }
    }

    /// The host of a network's address, without the brackets of IPv6, and the port.
    pub fn host_and_port(&self) -> Result<(&str, u16), RemoteError> {
        let parts = self.address.rsplit_once(':').and_then(|(host, port)| {
            let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
            Some((host, port.parse().ok()?))
        });
        parts.ok_or_else(|| RemoteError::Broken(format!("{:?} is not HOST:PORT", self.address)))
    }

    /// The last name of the path.
    #[must_use]
    pub fn name(&self) -> Option<&OsStr> {
        self.path.last().map(OsString::as_os_str)
    }

    /// The folder that it is in; the server's, if it is an export's first name.
    #[must_use]
    pub fn parent(&self) -> Url {
        let mut url = self.clone();
        url.path.pop();
        url
    }

    /// The file `name` in the folder that this is.
    #[must_use]
    pub fn join(&self, name: &OsStr) -> Url {
        let mut url = Url { is_root: false, ..self.clone() };
        url.path.push(name.to_owned());
        url
    }
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Url, String> {
        Url::parse(OsStr::new(text))
    }
}

impl Url {
    /// Parses a URL. The names of its path are octets, as those of files are.
    pub fn parse(text: &OsStr) -> Result<Url, String> {
        let fail = |problem: String| Err(format!("URL {text:?}: {problem}"));
        let Some((scheme, rest)) = split_once(text.as_bytes(), SCHEME_END) else {
            return fail("it names no fabric; write FABRIC://ADDRESS/PATH, as in shm://demo/data".into());
        };
        let Some(fabric) = FabricName::ALL.into_iter().find(|fabric| fabric.name().as_bytes() == scheme)
        else {
            let scheme = OsStr::from_bytes(scheme);
            return fail(format!("{scheme:?} is no fabric; there are: {}", FabricName::names()));
        };
        let scheme = fabric.name();
        // Names may have a `?` too: only this option is one.
        let option = rest.windows(MOUNT_PORT.len()).rposition(|part| part == MOUNT_PORT.as_bytes());
        let (rest, mount_port) = match option {
            Some(_) if !fabric.is_network() => {
                return fail(format!("mountport: {scheme} has no ports; leave it out"));
            }
            Some(at) => {
                let port = OsStr::from_bytes(&rest[at + MOUNT_PORT.len()..]);
                match port.to_str().map(str::parse) {
                    Some(Ok(port @ 1..)) => (&rest[..at], Some(port)),
                    _ => return fail(format!("mountport: {port:?} is not a port; write 1 to 65535")),
                }
            }
            None => (rest, None),
        };
        let (address, path) =
            split_once(rest, "/").map_or((rest, None), |(address, path)| (address, Some(path)));
        if address.is_empty() {
            let address = if fabric.is_network() { "HOST" } else { "NAME" };
            return fail(format!("the address is empty; write {scheme}://{address}/PATH"));
        }
        let Ok(address) = std::str::from_utf8(address) else {
            return fail(
                "the address is not UTF-8; only the names behind it may be something else".to_owned(),
            );
        };
        let address = if fabric.is_network() {
            with_port(address)
        } else {
            check_name(address).map(|()| address.to_owned())
        };
        let address = match address {
            Ok(address) => address,
            Err(problem) => return fail(problem),
        };
        let path_len = path.map_or(0, |path| path.len() + 1);
        if path_len > PATH_LEN_MAX {
            return fail(format!("the path has {path_len} octets, the limit is {PATH_LEN_MAX}"));
        }
        let mut names: Vec<OsString> = Vec::new();
        for name in path.unwrap_or_default().split(|octet| *octet == b'/') {
            match name {
                b"" | b"." => {}
                b".." => drop(names.pop()),
                name if name.len() > NAME_LEN_MAX => {
                    return fail(format!("a name has {} octets, the limit is {NAME_LEN_MAX}", name.len()));
                }
                name => names.push(OsStr::from_bytes(name).to_owned()),
            }
        }
        let is_root = path.is_some() && names.is_empty();
        Ok(Url { fabric, address, path: names, is_root, mount_port })
    }
}

/// The octets before the first `separator`, and those behind it.
fn split_once<'t>(text: &'t [u8], separator: &str) -> Option<(&'t [u8], &'t [u8])> {
    let at = text.windows(separator.len()).position(|part| part == separator.as_bytes())?;
    Some((&text[..at], &text[at + separator.len()..]))
}

/// The argument of a command: it need not be UTF-8.
impl ValueParserFactory for Url {
    type Parser = ValueParser;

    fn value_parser() -> ValueParser {
        ValueParser::new(OsStringValueParser::new().try_map(|text| Url::parse(&text)))
    }
}

/// `HOST:PORT`, the port filled in if it is missing.
fn with_port(address: &str) -> Result<String, String> {
    let (host, port) = match address.rsplit_once(':') {
        // The last colon is of the host's own, which is an address of IPv6.
        Some(_) if address.ends_with(']') => (address, None),
        Some((host, port)) => (host, Some(port)),
        None => (address, None),
    };
    if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
        return Err(format!("{address:?} has several colons; write an IPv6 address as [{address}]"));
    }
    if host.is_empty() {
        return Err("the host is empty; write HOST:PORT".to_owned());
    }
    match port.map(str::parse::<u16>) {
        None => Ok(format!("{host}:{NFS_RDMA_PORT}")),
        Some(Ok(port)) => Ok(format!("{host}:{port}")),
        Some(Err(_)) => Err(format!("{:?} is not a port; write 1 to 65535", port.unwrap_or_default())),
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.fabric.name(), self.address)?;
        self.path.iter().try_for_each(|name| write!(f, "/{}", name.display()))?;
        if self.is_root {
            f.write_str("/")?;
        }
        self.mount_port.map_or(Ok(()), |port| write!(f, "{MOUNT_PORT}{port}"))
    }
}

impl<'de> Deserialize<'de> for Url {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Url, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// A file on this machine or on a server: what `stag cp` copies between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A path of this machine.
    Local(PathBuf),
    /// A file of a server.
    Remote(Url),
}

/// The argument of a command: it need not be UTF-8.
impl ValueParserFactory for Place {
    type Parser = ValueParser;

    fn value_parser() -> ValueParser {
        ValueParser::new(OsStringValueParser::new().try_map(|text| {
            match split_once(text.as_bytes(), SCHEME_END) {
                Some(_) => Url::parse(&text).map(Place::Remote),
                None => Ok(Place::Local(text.into())),
            }
        }))
    }
}

impl Place {
    /// The fabric that leads there, if one has to.
    #[must_use]
    pub const fn fabric(&self) -> Option<FabricName> {
        match self {
            Place::Local(_) => None,
            Place::Remote(url) => Some(url.fabric),
        }
    }

    /// The last name of it, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&OsStr> {
        match self {
            Place::Local(path) => path.file_name(),
            Place::Remote(url) => url.name(),
        }
    }

    /// The file `name` in the folder that this is.
    #[must_use]
    pub fn join(&self, name: &OsStr) -> Place {
        match self {
            Place::Local(path) => Place::Local(path.join(name)),
            Place::Remote(url) => Place::Remote(url.join(name)),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Local(path) => path.display().fmt(f),
            Place::Remote(url) => url.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_fabric_an_address_and_names() {
        let url: Url = "shm://demo//data/./a/../b c".parse().unwrap();
        assert_eq!((url.fabric, url.address.as_str()), (FabricName::Shm, "demo"));
        assert_eq!(url.path, ["data", "b c"]);
        assert_eq!(url.to_string(), "shm://demo/data/b c");
        let root: Url = "shm://demo/..".parse().unwrap();
        assert_eq!((root.to_string().as_str(), root.is_root), ("shm://demo/", true));
        assert_eq!((root.server(), "shm://demo".parse()), (url.server(), Ok(url.server())));
        assert_eq!(root.join(OsStr::new("data")).join(OsStr::new("b c")), url);
    }

    #[test]
    fn the_names_of_a_path_are_octets() {
        let url = Url::parse(OsStr::from_bytes(b"iwarp://host:7/data/\xff\xfe?mountport=1")).unwrap();
        assert_eq!(url.path, [OsStr::new("data"), OsStr::from_bytes(b"\xff\xfe")]);
        assert_eq!(url.mount_port, Some(1));
        let error = Url::parse(OsStr::from_bytes(b"iwarp://h\xff/data")).unwrap_err();
        assert!(error.contains("the address is not UTF-8"), "{error}");
    }

    #[test]
    fn a_network_has_hosts_and_ports() {
        for (text, host, port, shown) in [
            ("iwarp://host/data", "host", 20049, "iwarp://host:20049/data"),
            ("iwarp://host:1/a?b", "host", 1, "iwarp://host:1/a?b"),
            ("iwarp://[fd00::1]", "fd00::1", 20049, "iwarp://[fd00::1]:20049"),
            ("iwarp://[::1]:7/", "::1", 7, "iwarp://[::1]:7/"),
            ("iwarp://1.2.3.4/d?mountport=635", "1.2.3.4", 20049, "iwarp://1.2.3.4:20049/d?mountport=635"),
            ("verbs://host/data", "host", 20049, "verbs://host:20049/data"),
            ("verbs://[fe80::1%eth0]/d", "fe80::1%eth0", 20049, "verbs://[fe80::1%eth0]:20049/d"),
        ] {
            let url: Url = text.parse().unwrap();
            assert_eq!(url.host_and_port(), Ok((host, port)), "{text}");
            assert_eq!(url.to_string(), shown);
            assert_eq!(shown.parse::<Url>().unwrap(), url);
        }
    }

    #[test]
    fn a_refusal_names_the_value_and_the_repair() {
        for (text, part) in [
            ("demo", "names no fabric"),
            ("tcp://demo", "there are: shm, iwarp, verbs"),
            ("verbs://:20049", "the host is empty; write HOST:PORT"),
            ("iwarp://:20049", "the host is empty; write HOST:PORT"),
            ("iwarp://host:x", "\"x\" is not a port"),
            ("iwarp://fd00::1/data", "\"fd00::1\" has several colons; write an IPv6 address as [fd00::1]"),
            ("iwarp://host/data?mountport=0", "\"0\" is not a port"),
            ("shm://demo/data?mountport=2049", "mountport: shm has no ports; leave it out"),
            ("shm:///data", "the address is empty"),
            ("shm://a b/data", "' ' cannot be in a name; use letters, digits"),
            ("shm://a,iwarp://b", "',' cannot be in a name"),
        ] {
            let error = text.parse::<Url>().unwrap_err();
            assert!(error.contains(part) && error.contains(text), "{error}");
        }
        let error = format!("shm://d/{}", "n".repeat(256)).parse::<Url>().unwrap_err();
        assert!(error.contains("256 octets, the limit is 255"), "{error}");
    }
}
