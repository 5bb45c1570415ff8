//! Where the server listens: on a fabric, or for RPC over TCP.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error as _};

use crate::failure::CommandFailure;
use crate::url::{FabricName, Url};

/// What the URLs of plain TCP begin with.
const TCP: &str = "tcp://";

/// One place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A fabric's address.
    Fabric(Url),
    /// `HOST:PORT`, for RPC over TCP.
    Tcp(String),
}

impl Listen {
    /// What its URL begins with.
    pub(super) const fn scheme(&self) -> &'static str {
        match self {
            Listen::Fabric(url) => url.fabric.name(),
            Listen::Tcp(_) => "tcp",
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        if text.contains(',') {
            return Err(format!(
                "{text:?}: one place for each; give --listen (in a file, an item of the list) for each"
            ));
        }
        let Some(address) = text.strip_prefix(TCP) else { return text.parse().map(Listen::Fabric) };
        let address = address.strip_suffix('/').unwrap_or(address);
        let port = address.rsplit_once(':').and_then(|(host, port)| {
            let is_plain = !host.is_empty() && (!host.contains(':') || host.starts_with('['));
            port.parse::<u16>().ok().filter(|_| is_plain)
        });
        if port.is_none() {
            return Err(format!("URL {text:?}: write tcp://HOST:PORT, as in tcp://0.0.0.0:2049"));
        }
        Ok(Listen::Tcp(address.to_owned()))
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Fabric(url) => url.fmt(f),
            Listen::Tcp(address) => write!(f, "{TCP}{address}"),
        }
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Listen, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Checks places against each other, and returns the fabric that there is, if any.
pub(super) fn fabric(places: &[Listen]) -> Result<Option<FabricName>, CommandFailure> {
    let mut fabric: Option<FabricName> = None;
    for place in places {
        let Listen::Fabric(url) = place else { continue };
        let server = Url { mount_port: None, ..url.server() };
        if !url.path.is_empty() || url.mount_port.is_some() {
            return Err(CommandFailure::usage(format_args!(
                "--listen {url}: path and mountport are the clients' matter; write {server}"
            )));
        }
        if let Some(other) = fabric.filter(|other| *other != url.fabric) {
            return Err(CommandFailure::usage(format_args!(
                "--listen {url}: a server has one fabric, here {}; start another stagd for {}, or \
                 listen at tcp:// beside it",
                other.name(),
                url.fabric.name(),
            )));
        }
        fabric = Some(url.fabric);
    }
    Ok(fabric)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(texts: &[&str]) -> Vec<Listen> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn tcp_wants_a_host_and_a_port() {
        assert_eq!("tcp://0.0.0.0:2049".parse(), Ok(Listen::Tcp("0.0.0.0:2049".into())));
        assert_eq!("tcp://[::]:2049/".parse::<Listen>().unwrap().to_string(), "tcp://[::]:2049");
        for text in
            ["tcp://", "tcp://host", "tcp://:2049", "tcp://host:port", "tcp://::1:20:x", "tcp://::1:2049"]
        {
            let error = text.parse::<Listen>().unwrap_err();
            assert!(error.contains("HOST:PORT") && error.contains(text), "{error}");
        }
    }

    #[test]
    fn one_fabric_and_any_number_of_tcp_ports() {
        let many = places(&["tcp://h:1", "shm://a", "tcp://h:2", "shm://b"]);
        assert_eq!(fabric(&many).unwrap(), Some(FabricName::Shm));
        assert_eq!(fabric(&places(&["tcp://h:1"])).unwrap(), None);
    }
}
