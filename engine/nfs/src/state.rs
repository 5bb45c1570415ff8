//! The state that the status monitor needs after a restart: its state number, and the hosts that had locks.
//!
//! One small text file in a directory of the user's choice, always replaced as a whole:
//!
//! ```text
//! state 7
//! host 192.0.2.1 616c696365          a host's address, and its name in hexadecimal
//! ```
//!
//! The reactor never waits for it: a thread writes the newest state. A host is written when it gets its first lock;
//! if the server crashes before that, the host is not notified, as with any status monitor.

use std::fs::{self, DirBuilder};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::journal::{self, JournalWriter};

/// The file's name.
const FILE: &str = "nsm";
/// Hosts that are read, at most.
const HOSTS_MAX: usize = 4096;

/// A host that has locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownHost {
    /// Its address.
    pub address: IpAddr,
    /// The address of this machine that it connected to, if that is known.
    pub local: Option<IpAddr>,
    /// What it calls itself.
    pub name: Box<[u8]>,
}

/// What is known at the start.
#[derive(Debug)]
pub struct Recovered {
    /// The NSM state of this run: odd.
    pub state: u32,
    /// Hosts that had locks in the run before, and must be notified of the restart.
    pub hosts: Vec<KnownHost>,
    /// Whether there were any, so that there is a grace period.
    pub had_hosts: bool,
    /// Where to write it down, if it is.
    pub journal: Option<Journal>,
}

impl Recovered {
    /// Nothing is known from before, and nothing is written down.
    #[must_use]
    pub fn nothing() -> Recovered {
        Recovered { state: 1, hosts: Vec::new(), had_hosts: false, journal: None }
    }

    /// Reads what the run before wrote in a directory, which is made if there is none, and writes down that this
    /// run has begun.
    ///
    /// # Errors
    ///
    /// When the directory or its file cannot be read or written, or the file makes no sense.
    pub fn from_directory(directory: &Path) -> io::Result<Recovered> {
        // Whatever umask is: only this file says which hosts hold locks.
        DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
        let path = directory.join(FILE);
        let wrong = |kind, what: &dyn std::fmt::Display| {
            io::Error::new(kind, format!("{}: {what}; remove it to begin anew", path.display()))
        };
        let before = match fs::read(&path) {
            Ok(octets) if octets.is_empty() => None,
            Ok(octets) => Some(
                str::from_utf8(&octets)
                    .ok()
                    .and_then(parse)
                    .ok_or_else(|| wrong(io::ErrorKind::InvalidData, &"not a state file"))?,
            ),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(wrong(error.kind(), &error)),
        };
        let (state, hosts) = match before {
            // Odd again, and greater; after the last number comes the first.
            Some((state, hosts)) => (state.wrapping_add(2) | 1, hosts),
            None => (1, Vec::new()),
        };
        // Known to be on disk before anybody hears of it.
        replace(&path, state, &hosts)?;
        let journal = Some(Journal::new(path, hosts.clone())?);
        Ok(Recovered { state, had_hosts: !hosts.is_empty(), hosts, journal })
    }

    /// The same for `count` parts of one server, each of which keeps locks of its own. The first tells the hosts of the
    /// restart. What all of them write down is in one file, and each host in it once.
    #[must_use]
    pub fn split(self, count: usize) -> Vec<Recovered> {
        let (state, had_hosts) = (self.state, self.had_hosts);
        let mut parts = vec![self];
        while parts.len() < count {
            let journal = parts[0].journal.as_ref().map(Journal::another);
            parts.push(Recovered { state, hosts: Vec::new(), had_hosts, journal });
        }
        parts
    }
}

/// State and hosts of a file.
fn parse(text: &str) -> Option<(u32, Vec<KnownHost>)> {
    let (mut state, mut hosts) = (None, Vec::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["state", number] => state = Some(number.parse().ok()?),
            ["host", address, name, ref local @ ..] if hosts.len() < HOSTS_MAX && local.len() < 2 => {
                let local = local.first().map(|address| address.parse()).transpose().ok()?;
                hosts.push(KnownHost {
                    address: address.parse().ok()?,
                    local,
                    name: from_hexadecimal(name)?,
                });
            }
            _ => return None,
        }
    }
    Some((state?, hosts))
}

pub(crate) fn from_hexadecimal(digits: &str) -> Option<Box<[u8]>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let octet = |pair: &[u8; 2]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    if rest.is_empty() { pairs.iter().map(octet).collect() } else { None }
}

pub(crate) fn to_hexadecimal(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

fn replace(path: &Path, state: u32, hosts: &[KnownHost]) -> io::Result<()> {
    let mut text = format!("state {state}\n");
    for host in hosts {
        text += &format!("host {} {}", host.address, to_hexadecimal(&host.name));
        text += &host.local.map_or_else(String::new, |local| format!(" {local}"));
        text.push('\n');
    }
    journal::replace(path, &text).map(drop)
}

/// Writes states down, on a thread of its own. For one part of the server: what all parts have given is in the file.
#[derive(Debug)]
pub struct Journal {
    writer: Arc<JournalWriter<PartState>>,
    part: usize,
    /// Parts so far.
    parts: Arc<AtomicUsize>,
}

/// What a part of the server has.
#[derive(Debug)]
struct PartState {
    part: usize,
    state: u32,
    hosts: Vec<KnownHost>,
}

/// The hosts of all parts, each once.
fn all_hosts(parts: &[Vec<KnownHost>]) -> Vec<KnownHost> {
    let mut hosts: Vec<KnownHost> = Vec::new();
    for host in parts.iter().flatten() {
        if !hosts.contains(host) {
            hosts.push(host.clone());
        }
    }
    hosts
}

impl Journal {
    /// For the first part, whose hosts are in the file already.
    fn new(path: PathBuf, hosts: Vec<KnownHost>) -> io::Result<Journal> {
        let mut parts = vec![hosts];
        let writer = JournalWriter::start("nsm-state", move |entries| {
            let mut newest = None;
            for PartState { part, state, hosts } in entries {
                parts.resize_with(parts.len().max(part + 1), Vec::new);
                parts[part] = hosts;
                newest = Some(state);
            }
            if let Some(state) = newest
                && let Err(error) = replace(&path, state, &all_hosts(&parts))
            {
                tracing::warn!(path = %path.display(), %error, "the state of locks was not written down");
            }
        })?;
        Ok(Journal { writer: Arc::new(writer), part: 0, parts: Arc::new(AtomicUsize::new(1)) })
    }

    /// A journal for another part of the server.
    fn another(&self) -> Journal {
        // Relaxed: only the number must differ.
        let part = self.parts.fetch_add(1, Ordering::Relaxed);
        Journal { writer: Arc::clone(&self.writer), part, parts: Arc::clone(&self.parts) }
    }

    /// Writes this down, soon, replacing what was given for the same part.
    pub fn write(&self, state: u32, hosts: Vec<KnownHost>) {
        let part = self.part;
        self.writer.push(PartState { part, state, hosts }, |earlier| earlier.part == part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("stag-nsm-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        directory
    }

    #[test]
    fn the_state_is_odd_and_grows_and_hosts_are_remembered() {
        let place = directory("grows");
        let first = Recovered::from_directory(&place).unwrap();
        assert_eq!((first.state, first.hosts.len()), (1, 0));
        let alice =
            KnownHost { address: "192.0.2.1".parse().unwrap(), local: None, name: (*b"alice").into() };
        let local = "fd00::2".parse().ok();
        let other = KnownHost { address: "fd00::1".parse().unwrap(), local, name: (*b"\xff \n").into() };
        let journal = first.journal.unwrap();
        journal.write(1, vec![alice.clone()]);
        journal.write(1, vec![alice.clone(), other.clone()]);
        drop(journal);
        let second = Recovered::from_directory(&place).unwrap();
        assert_eq!((second.state, &second.hosts[..]), (3, &[alice, other][..]));
        second.journal.unwrap().write(3, Vec::new());
        let third = Recovered::from_directory(&place).unwrap();
        assert_eq!((third.state, third.hosts.len()), (5, 0));
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn parts_of_a_server_write_into_one_file() {
        let place = directory("parts");
        let host = |number: u8| KnownHost {
            address: [192, 0, 2, number].into(),
            local: None,
            name: vec![number].into(),
        };
        Recovered::from_directory(&place).unwrap().journal.unwrap().write(1, vec![host(1)]);
        let mut parts = Recovered::from_directory(&place).unwrap().split(3);
        assert!(parts.iter().all(|part| part.had_hosts && part.state == 3));
        assert_eq!(parts.iter().map(|part| part.hosts.len()).collect::<Vec<_>>(), [1, 0, 0]);
        let journals: Vec<Journal> = parts.drain(..).filter_map(|part| part.journal).collect();
        // A part that has not written anything yet keeps what it begins with.
        journals[1].write(3, vec![host(2), host(3)]);
        journals[2].write(3, vec![host(3)]);
        drop(journals);
        let found = Recovered::from_directory(&place).unwrap();
        assert_eq!(found.hosts, [1, 2, 3].map(host));
        drop(found);
        fs::remove_dir_all(place).unwrap();
        assert_eq!(Recovered::nothing().split(4).len(), 4);
    }

    #[test]
    fn what_is_no_state_file_is_told() {
        let place = directory("told");
        fs::create_dir_all(&place).unwrap();
        for text in [
            "state\n",
            "state x\n",
            "host 192.0.2.1 61\n",
            "state 1\nhost 192.0.2.1 6\n",
            "state 1\nhost x 61\n",
            "state 1\nhost 192.0.2.1 61 x\n",
            "state 1\nhost 192.0.2.1 61 192.0.2.2 192.0.2.3\n",
        ] {
            fs::write(place.join(FILE), text).unwrap();
            let error = Recovered::from_directory(&place).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{text:?}");
            assert!(error.to_string().contains("remove it"));
        }
        let path = place.join(FILE);
        let told = || {
            let error = Recovered::from_directory(&place).unwrap_err().to_string();
            assert!(error.starts_with(&path.display().to_string()) && error.contains("remove it"), "{error}");
        };
        fs::write(&path, b"state 1\n\xff").unwrap();
        told();
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        told();
        fs::remove_dir_all(place).unwrap();
    }
}
