//! Weights of clients: which of them get more credits when there are too few for all.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error};
use stag_fabric::Peer;
use stag_rpc::{CLIENT_WEIGHT_MAX, CLIENT_WEIGHT_USUAL};

/// What `--weight` gives some clients: `ADDRESS=N`, `ADDRESS/PREFIX=N`, or `uid:N=N` for processes over shm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientWeight {
    who: WeightedClients,
    weight: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WeightedClients {
    /// Addresses that begin with this number of bits of this one.
    Network(IpAddr, u8),
    User(u32),
}

impl FromStr for ClientWeight {
    type Err = String;

    fn from_str(text: &str) -> Result<ClientWeight, String> {
        let Some((who, weight)) = text.rsplit_once('=') else {
            return Err(format!(
                "{text:?} gives no weight; write CLIENT=N, for example 10.0.0.7=200 or 10.1.0.0/16=50"
            ));
        };
        let number = weight.parse().ok().filter(|number| (1..=CLIENT_WEIGHT_MAX).contains(number));
        let weight = number.ok_or_else(|| {
            format!(
                "{text:?}: the weight must be 1 to {CLIENT_WEIGHT_MAX}; clients that are not named have \
                 {CLIENT_WEIGHT_USUAL}"
            )
        })?;
        if let Some(user) = who.strip_prefix("uid:") {
            let user = user.parse();
            let user = user.map_err(|_| format!("{text:?} names no user; write the number: uid:1000=200"))?;
            return Ok(ClientWeight { who: WeightedClients::User(user), weight });
        }
        let (address, prefix) = match who.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (who, None),
        };
        let address: IpAddr = address
            .parse()
            .map_err(|_| format!("{address:?} is not an address; write ADDRESS, ADDRESS/PREFIX or uid:N"))?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(prefix) => prefix.parse().ok().filter(|prefix| *prefix <= bits),
            None => Some(bits),
        };
        let prefix = prefix.ok_or_else(|| format!("{text:?}: the prefix must be 0 to {bits}"))?;
        Ok(ClientWeight { who: WeightedClients::Network(address, prefix), weight })
    }
}

impl<'de> Deserialize<'de> for ClientWeight {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ClientWeight, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl fmt::Display for ClientWeight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.who {
            WeightedClients::Network(address, prefix) => write!(f, "{address}/{prefix}={}", self.weight),
            WeightedClients::User(user) => write!(f, "uid:{user}={}", self.weight),
        }
    }
}

impl ClientWeight {
    /// How exactly it names `peer`, in bits. `None`: it does not.
    fn precision(&self, peer: &Peer) -> Option<u8> {
        match (self.who, peer) {
            (WeightedClients::User(user), Peer::Process { uid, .. }) => (user == *uid).then_some(32),
            (WeightedClients::Network(network, prefix), Peer::Address(address)) => {
                // A client of IPv4 at a socket of IPv6 is one of IPv4.
                let differing = match (network, address.ip().to_canonical()) {
                    (IpAddr::V4(own), IpAddr::V4(its)) => u128::from(own.to_bits() ^ its.to_bits()) << 96,
                    (IpAddr::V6(own), IpAddr::V6(its)) => own.to_bits() ^ its.to_bits(),
                    _ => return None,
                };
                (differing.leading_zeros() >= prefix.into()).then_some(prefix)
            }
            _ => None,
        }
    }
}

/// The weight of `peer`: what the longest prefix says, and of several the last.
pub(super) fn weight_of(weights: &[ClientWeight], peer: &Peer) -> u32 {
    let named = weights.iter().filter_map(|named| Some((named.precision(peer)?, named.weight)));
    named.max_by_key(|(precision, _)| *precision).map_or(CLIENT_WEIGHT_USUAL, |(_, weight)| weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_says_the_weight() {
        let weights = ["0.0.0.0/0=50", "10.1.0.0/16=200", "10.1.2.3=300", "fd00::/8=400", "uid:7=500"];
        let weights: Vec<ClientWeight> = weights.iter().map(|text| text.parse().unwrap()).collect();
        let address = |text: &str| weight_of(&weights, &Peer::Address(text.parse().unwrap()));
        let cases = [
            ("10.1.2.3:1", 300),
            ("[::ffff:10.1.2.3]:1", 300),
            ("10.1.2.4:1", 200),
            ("10.2.0.1:1", 50),
            ("[fd01::1]:1", 400),
            ("[2001:db8::1]:1", CLIENT_WEIGHT_USUAL),
        ];
        for (text, weight) in cases {
            assert_eq!(address(text), weight, "{text}");
        }
        let user = |uid| weight_of(&weights, &Peer::Process { pid: 1, uid, gid: 0 });
        assert_eq!((user(7), user(8)), (500, CLIENT_WEIGHT_USUAL));
        assert_eq!(weights[1].to_string(), "10.1.0.0/16=200");
    }

    #[test]
    fn what_cannot_be_a_weight_says_why() {
        for (text, wrong) in [
            ("10.0.0.7", "gives no weight"),
            ("10.0.0.7=0", "must be 1 to 1000"),
            ("10.0.0.7=1001", "must be 1 to 1000"),
            ("10.0.0=5", "is not an address"),
            ("10.0.0.0/33=5", "must be 0 to 32"),
            ("uid:root=5", "names no user"),
        ] {
            let error = text.parse::<ClientWeight>().unwrap_err();
            assert!(error.contains(wrong), "{text}: {error}");
        }
    }
}
