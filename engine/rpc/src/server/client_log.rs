//! Log lines about a client: its name, how long it was connected, its Calls, and why it left.

use std::fmt;
use std::time::Duration;

use stag_fabric::Peer;

use crate::service::call::Caller;

/// Characters of a machine name that the log shows: it is whatever the client says.
const HOST_SHOWN_MAX: usize = 64;

/// The name of a client's machine, once it made a Call with AUTH_SYS.
#[derive(Debug, Default)]
pub(crate) struct ClientHost(Option<Box<str>>);

impl ClientHost {
    /// Takes note of the machine's name; the first one counts.
    #[inline]
    pub(crate) fn note(&mut self, caller: &Caller<'_>) {
        if self.0.is_none()
            && let Caller::Sys(credential) = caller
        {
            self.learn(credential.machine_name);
        }
    }

    #[cold]
    fn learn(&mut self, name: &[u8]) {
        // Nothing that a terminal or a reader of the log could take for something else.
        let shown = |octet: &u8| match *octet {
            octet @ (b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' | b':') => {
                char::from(octet)
            }
            _ => '?',
        };
        self.0 = Some(name.iter().take(HOST_SHOWN_MAX).map(shown).collect());
    }
}

/// A client in the log: `client 10.0.0.7:51234 (host lab7)`.
pub(crate) struct ClientName<'a> {
    pub(crate) peer: Option<&'a Peer>,
    pub(crate) host: Option<&'a ClientHost>,
}

impl fmt::Display for ClientName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.peer {
            Some(peer) => write!(f, "client {peer}")?,
            None => f.write_str("a client")?,
        }
        match self.host.and_then(|host| host.0.as_deref()) {
            Some(host) if !host.is_empty() => write!(f, " (host {host})"),
            _ => Ok(()),
        }
    }
}

/// What a connection was good for: `12 s, 1841 Calls`.
pub(crate) struct Service {
    pub(crate) time: Duration,
    pub(crate) calls: u64,
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.time.as_secs();
        match seconds {
            0..10 => write!(f, "{:.1} s", self.time.as_secs_f64())?,
            10..120 => write!(f, "{seconds} s")?,
            120..7200 => write!(f, "{} min", seconds / 60)?,
            _ => write!(f, "{} h {} min", seconds / 3600, seconds / 60 % 60)?,
        }
        f.write_str(", ")?;
        match self.calls {
            0 => f.write_str("no Calls"),
            1 => f.write_str("1 Call"),
            calls => write!(f, "{calls} Calls"),
        }
    }
}

/// What a peer said, on one line and of bounded length.
pub(crate) fn printable(text: &str) -> String {
    let shown = |character: char| if character.is_control() { '?' } else { character };
    text.chars().take(256).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use stag_wire::rpc::AuthSys;

    fn host(name: &[u8]) -> ClientHost {
        let mut body = vec![0; 4];
        body.extend((name.len() as u32).to_be_bytes());
        body.extend(name);
        body.resize(body.len().next_multiple_of(4) + 12, 0);
        let mut host = ClientHost::default();
        host.note(&Caller::None);
        host.note(&Caller::Sys(AuthSys::parse(&body).expect("a credential")));
        host.note(&Caller::Sys(AuthSys::parse(&[0; 20]).expect("a credential")));
        host
    }

    #[test]
    fn a_client_is_its_address_and_the_name_that_it_gives() {
        let peer = Peer::Address("10.0.0.7:51234".parse().expect("an address"));
        let shown = |host: &ClientHost| ClientName { peer: Some(&peer), host: Some(host) }.to_string();
        assert_eq!(shown(&host(b"lab7")), "client 10.0.0.7:51234 (host lab7)");
        assert_eq!(shown(&host(b"a\x1b[31m\nb")), "client 10.0.0.7:51234 (host a??31m?b)");
        assert_eq!(shown(&host(&[b'n'; 255])).len(), "client 10.0.0.7:51234 (host )".len() + HOST_SHOWN_MAX);
        assert_eq!(shown(&ClientHost::default()), "client 10.0.0.7:51234");
        assert_eq!(shown(&host(b"")), "client 10.0.0.7:51234");
        assert_eq!(ClientName { peer: None, host: None }.to_string(), "a client");
        let peer = Peer::Process { pid: 7, uid: 1000, gid: 3 };
        assert_eq!(ClientName { peer: Some(&peer), host: None }.to_string(), "client process 7 (uid 1000)");
    }

    #[test]
    fn a_service_is_its_time_and_its_calls() {
        for (seconds, calls, shown) in [
            (0.04, 0, "0.0 s, no Calls"),
            (9.96, 1, "10.0 s, 1 Call"),
            (12.9, 1841, "12 s, 1841 Calls"),
            (119.0, 2, "119 s, 2 Calls"),
            (125.0, 2, "2 min, 2 Calls"),
            (8000.0, 2, "2 h 13 min, 2 Calls"),
        ] {
            assert_eq!(Service { time: Duration::from_secs_f64(seconds), calls }.to_string(), shown);
        }
    }

    #[test]
    fn what_a_peer_says_stays_on_one_line() {
        assert_eq!(printable("full\nERROR \x1b[1m"), "full?ERROR ?[1m");
        assert_eq!(printable(&"x".repeat(1000)).len(), 256);
    }
}
