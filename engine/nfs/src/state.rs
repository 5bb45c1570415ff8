//! What the status monitor must know after a restart: its state number, and the hosts that had locks.
//!
//! One small text file in a directory of the user's choice, always replaced as a whole:
//!
//! ```text
//! state 7
//! host 192.0.2.1 616c696365          a host's address, and its name in hexadecimal
//! ```
//!
//! The reactor never waits for it: a thread writes what it is given, the newest last. A host is written when it gets
//! its first lock; a crash in the moment between costs that host the news, as with any status monitor.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

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
    /// Hosts that had locks in the run before.
    pub hosts: Vec<KnownHost>,
    /// Where to write it down, if it is.
    pub journal: Option<Journal>,
}

impl Recovered {
    /// Nothing is known from before, and nothing is written down.
    #[must_use]
    pub fn nothing() -> Recovered {
        Recovered { state: 1, hosts: Vec::new(), journal: None }
    }

    /// Reads what the run before wrote in a directory, which is made if there is none, and writes down that this
    /// run has begun.
    ///
    /// # Errors
    ///
    /// When the directory or its file cannot be read or written, or the file makes no sense.
    pub fn from_directory(directory: &Path) -> io::Result<Recovered> {
        // Whatever umask is: nobody else says which hosts hold locks.
        DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
        let path = directory.join(FILE);
        let before = match fs::read_to_string(&path) {
            Ok(text) if text.is_empty() => None,
            Ok(text) => Some(parse(&text).ok_or_else(|| {
                let message = format!("{}: not a state file; remove it to begin anew", path.display());
                io::Error::new(io::ErrorKind::InvalidData, message)
            })?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let (state, hosts) = match before {
            // Odd again, and greater; after the last number comes the first.
            Some((state, hosts)) => (state.wrapping_add(2) | 1, hosts),
            None => (1, Vec::new()),
        };
        // Known to be on disk before anybody hears of it.
        replace(&path, state, &hosts)?;
        Ok(Recovered { state, hosts, journal: Some(Journal::new(path)?) })
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

fn from_hexadecimal(digits: &str) -> Option<Box<[u8]>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let octet = |pair: &[u8; 2]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    if rest.is_empty() { pairs.iter().map(octet).collect() } else { None }
}

fn replace(path: &Path, state: u32, hosts: &[KnownHost]) -> io::Result<()> {
    let new = path.with_extension("new");
    // Whatever umask is.
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o644).open(&new)?;
    let mut text = format!("state {state}\n");
    for host in hosts {
        let name: String = host.name.iter().map(|octet| format!("{octet:02x}")).collect();
        text += &format!("host {} {name}", host.address);
        text += &host.local.map_or_else(String::new, |local| format!(" {local}"));
        text.push('\n');
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    // The name is on disk when the directory is.
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

/// Writes states down, on a thread of its own.
#[derive(Debug)]
pub struct Journal {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

/// Between the reactor and the thread: the newest state only, so it never piles up.
#[derive(Debug, Default)]
struct Desk {
    next: Mutex<Next>,
    has_news: Condvar,
}

#[derive(Debug, Default)]
struct Next {
    page: Option<(u32, Vec<KnownHost>)>,
    is_last: bool,
}

impl Desk {
    /// Held for a moment only, whoever has it.
    fn next(&self) -> MutexGuard<'_, Next> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be written; waits for it. `None`: nothing more will come.
    fn take(&self) -> Option<(u32, Vec<KnownHost>)> {
        let wants = |next: &mut Next| next.page.is_none() && !next.is_last;
        let next = self.has_news.wait_while(self.next(), wants);
        next.unwrap_or_else(PoisonError::into_inner).page.take()
    }
}

impl Journal {
    fn new(path: PathBuf) -> io::Result<Journal> {
        let desk = Arc::new(Desk::default());
        let theirs = desk.clone();
        let thread = thread::Builder::new().name("nsm-state".to_owned()).spawn(move || {
            while let Some((state, hosts)) = theirs.take() {
                if let Err(error) = replace(&path, state, &hosts) {
                    tracing::warn!(path = %path.display(), %error, "the state of locks was not written down");
                }
            }
        })?;
        Ok(Journal { desk, thread: Some(thread) })
    }

    /// Writes this down in the stead of all that was, soon.
    pub fn write(&self, state: u32, hosts: Vec<KnownHost>) {
        self.desk.next().page = Some((state, hosts));
        self.desk.has_news.notify_one();
    }
}

/// What was given is written down.
impl Drop for Journal {
    fn drop(&mut self) {
        self.desk.next().is_last = true;
        self.desk.has_news.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
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
        fs::remove_dir_all(place).unwrap();
    }
}
