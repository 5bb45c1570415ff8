//! Clients of NFS version 4 that a restart of the server must not surprise: who held state before it, and who does now.
//!
//! One text file in the state directory. Lines are appended, and it is replaced as a whole at each start and when grace ends:
//!
//! ```text
//! epoch 7                      this start of the server
//! client 4c696e7578            holds state: what a client calls itself (co_ownerid), in hexadecimal
//! gone 4c696e7578              ended, or lost what it held
//! ```
//!
//! ```text
//! start ─▶ grace: clients of the file take back what they held ─▶ all are back, or a term is over
//!                                                                        │
//!          new state is given ◀── the file names only who is back ◀──────┘
//! ```
//!
//! A reactor never waits for the disk: a thread writes and syncs. What must not be given before a line is on disk is refused
//! with NFS4ERR_DELAY until then ([`KnownClients::note`], [`KnownClients::has_forgotten`]): so no client holds state that the next start does not know of,
//! and none takes back what another one got meanwhile (RFC 8881 section 8.4.3).

use std::collections::{HashMap, VecDeque};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use stag_state::grace::{Grace, GraceStage, InGrace, ReclaimRefused};

use crate::journal::{self, JournalWriter};
use crate::state::{from_hexadecimal, to_hexadecimal};
use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering};

/// The file's name.
const FILE: &str = "nfs4";
/// Clients that are read, at most: as many as a server keeps.
const CLIENTS_MAX: usize = 1 << 16;

/// Who held state before a restart, and who does now. All reactors share it.
#[derive(Clone, Debug)]
pub struct KnownClients(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    epoch: u32,
    /// Grace is over for good.
    is_over: AtomicBool,
    records: Mutex<Records>,
    journal: Option<JournalWriter<Line>>,
}

#[derive(Debug)]
struct Records {
    grace: GraceClock,
    /// Who is in the file as holding state now, and the line of the journal that says so.
    recorded: HashMap<Box<[u8]>, u64>,
    /// Who held state before the restart, until grace is over.
    before: Vec<Box<[u8]>>,
    /// The last line that says that somebody is gone.
    last_gone: u64,
    /// The line of the journal after which grace is over.
    ends_with: Option<u64>,
}

/// Grace begins with the first look at the clock.
#[derive(Debug)]
enum GraceClock {
    Stopped(Vec<Box<[u8]>>),
    Runs(Grace),
}

impl KnownClients {
    /// Nothing is known from before, and nothing is written down. `epoch` is not 0, and not that of an earlier start.
    #[must_use]
    pub fn nothing(epoch: u32) -> KnownClients {
        KnownClients::new(epoch, Vec::new(), None)
    }

    /// Reads what the start before wrote in a directory, which is made if there is none, and writes down that this start has
    /// begun.
    ///
    /// # Errors
    ///
    /// When the directory or its file cannot be read or written, or the file makes no sense.
    pub fn from_directory(directory: &Path) -> io::Result<KnownClients> {
        DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
        let path = directory.join(FILE);
        let wrong = |kind, what: &dyn std::fmt::Display| {
            io::Error::new(kind, format!("{}: {what}; remove it to begin anew", path.display()))
        };
        let (last, owners) = match fs::read(&path) {
            Ok(octets) => str::from_utf8(&octets)
                .ok()
                .and_then(parse)
                .ok_or_else(|| wrong(io::ErrorKind::InvalidData, &"not a file of clients"))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => (0, Vec::new()),
            Err(error) => return Err(wrong(error.kind(), &error)),
        };
        let epoch = last.wrapping_add(1).max(1);
        // Who did not take back its own in this start may do so in the next one, as long as nothing new was given.
        let file = replace(&path, epoch, &owners)?;
        let journal = start_journal(path, epoch, file)?;
        Ok(KnownClients::new(epoch, owners, Some(journal)))
    }

    /// What a server knows that follows this one in the same process: who holds state now may take it back. Nothing is written
    /// down.
    #[must_use]
    pub fn restarted(&self) -> KnownClients {
        let records = self.records();
        let mut owners: Vec<Box<[u8]>> = records.recorded.keys().cloned().collect();
        // Who has not come back yet may still do so.
        owners.extend(records.before.iter().filter(|owner| !records.recorded.contains_key(*owner)).cloned());
        KnownClients::new(self.0.epoch.wrapping_add(1).max(1), owners, None)
    }

    fn new(epoch: u32, owners: Vec<Box<[u8]>>, journal: Option<JournalWriter<Line>>) -> KnownClients {
        let is_over = AtomicBool::new(owners.is_empty());
        let before = owners.clone();
        let grace = GraceClock::Stopped(owners);
        let records = Records { grace, recorded: HashMap::new(), before, last_gone: 0, ends_with: None };
        let records = Mutex::new(records);
        KnownClients(Arc::new(Shared { epoch, is_over, records, journal }))
    }

    /// A number that no earlier start of the server had, and not 0.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.0.epoch
    }

    /// Ends the grace period when its time has come, and returns whether it still lasts. While it lasts, clients may take back what
    /// they held before the restart, and nothing new is given. It begins with the first call, and lasts `term` at most.
    #[must_use]
    pub fn poll_grace(&self, now: Duration, term: Duration) -> bool {
        if self.0.is_over.load(Ordering::Acquire) {
            return false;
        }
        let mut records = self.records();
        if records.grace.runs(now, term).stage(now) == GraceStage::Waiting {
            return true;
        }
        // Before anything new is given, the file no longer names who is not back.
        let ends_with = match records.ends_with {
            Some(line) => line,
            None => {
                let owners = records.recorded.keys().cloned().collect();
                let line =
                    self.0.journal.as_ref().map_or(0, |journal| journal.push(Line::All(owners), |_| true));
                *records.ends_with.insert(line)
            }
        };
        let is_over = self.0.journal.as_ref().is_none_or(|journal| journal.written() >= ends_with);
        if is_over {
            records.before = Vec::new();
        }
        self.0.is_over.store(is_over, Ordering::Release);
        !is_over
    }

    /// Whether a client may take back what it held. `has_reclaimed`: it said RECLAIM_COMPLETE.
    ///
    /// # Errors
    ///
    /// Grace is over, or it held nothing when the server ended.
    pub fn may_reclaim(
        &self,
        owner: &[u8],
        has_reclaimed: bool,
        now: Duration,
        term: Duration,
    ) -> Result<(), ReclaimRefused> {
        if self.0.is_over.load(Ordering::Acquire) {
            return Err(ReclaimRefused::NoGrace);
        }
        self.records().grace.runs(now, term).may_reclaim(owner, has_reclaimed, now)
    }

    /// Whether a client may take something new.
    ///
    /// # Errors
    ///
    /// Grace lasts, or the client has not said RECLAIM_COMPLETE (8881-18.51.3-b).
    pub fn may_take(&self, has_reclaimed: bool, now: Duration, term: Duration) -> Result<(), InGrace> {
        if has_reclaimed && !self.poll_grace(now, term) { Ok(()) } else { Err(InGrace) }
    }

    /// Notes that a client holds state, or is about to. Returns whether that is on disk: until then it gets none.
    #[must_use]
    pub fn note(&self, owner: &[u8]) -> bool {
        let journal = self.0.journal.as_ref();
        let mut records = self.records();
        let line = match records.recorded.get(owner) {
            Some(line) => *line,
            None => {
                let line = journal.map_or(0, |journal| journal.push(Line::Client(owner.into()), |_| false));
                *records.recorded.entry(owner.into()).or_insert(line)
            }
        };
        journal.is_none_or(|journal| journal.written() >= line)
    }

    /// Notes that a client said RECLAIM_COMPLETE.
    pub fn complete(&self, owner: &[u8], now: Duration, term: Duration) {
        let _ = self.note(owner);
        if !self.0.is_over.load(Ordering::Acquire) {
            self.records().grace.runs(now, term).complete(owner, now);
        }
    }

    /// Notes that a client has ended, or has lost what it held.
    pub fn forget(&self, owner: &[u8]) {
        let mut records = self.records();
        records.before.retain(|other| **other != *owner);
        if records.recorded.remove(owner).is_some()
            && let Some(journal) = &self.0.journal
        {
            records.last_gone = journal.push(Line::Gone(owner.into()), |_| false);
        }
    }

    /// Whether the disk knows of all clients that were forgotten. Until then no other client gets what they lost.
    #[must_use]
    pub fn has_forgotten(&self) -> bool {
        let Some(journal) = &self.0.journal else { return true };
        journal.written() >= self.records().last_gone
    }

    /// Held for a moment only.
    fn records(&self) -> MutexGuard<'_, Records> {
        self.0.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GraceClock {
    fn runs(&mut self, now: Duration, term: Duration) -> &mut Grace {
        if let GraceClock::Stopped(owners) = self {
            *self = GraceClock::Runs(Grace::new(std::mem::take(owners), now, term));
        }
        match self {
            GraceClock::Runs(grace) => grace,
            GraceClock::Stopped(_) => unreachable!("it was started above"),
        }
    }
}

/// The epoch, and who holds state, of a file.
fn parse(text: &str) -> Option<(u32, Vec<Box<[u8]>>)> {
    let (mut epoch, mut owners) = (None, Vec::<Box<[u8]>>::new());
    let mut places = std::collections::HashMap::<Box<[u8]>, usize>::new();
    // A line that a crash cut off was not on disk: nothing was given for it.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for line in whole.lines() {
        let (word, value) = line.split_once(' ')?;
        match word {
            "epoch" => epoch = Some(value.parse().ok()?),
            "client" => {
                let owner = from_hexadecimal(value)?;
                if owners.len() < CLIENTS_MAX && !places.contains_key(&owner) {
                    places.insert(owner.clone(), owners.len());
                    owners.push(owner);
                }
            }
            "gone" => {
                if let Some(place) = places.remove(&from_hexadecimal(value)?) {
                    owners.swap_remove(place);
                    if let Some(moved) = owners.get(place) {
                        places.insert(moved.clone(), place);
                    }
                }
            }
            _ => return None,
        }
    }
    Some((epoch?, owners))
}

/// Writes a new file in the place of the old one. Returns it, to append to.
fn replace(path: &Path, epoch: u32, owners: &[Box<[u8]>]) -> io::Result<File> {
    let mut text = format!("epoch {epoch}\n");
    for owner in owners {
        text += &format!("client {}\n", to_hexadecimal(owner));
    }
    journal::replace(path, &text)
}

/// What is written next.
#[derive(Debug)]
enum Line {
    Client(Box<[u8]>),
    Gone(Box<[u8]>),
    /// A new file, with these.
    All(Vec<Box<[u8]>>),
}

/// Starts the thread that appends lines to `file`.
fn start_journal(path: PathBuf, epoch: u32, mut file: File) -> io::Result<JournalWriter<Line>> {
    JournalWriter::start("nfs4-clients", move |lines| {
        if let Err(error) = write(&path, epoch, &mut file, lines) {
            // Clients go on; after a restart those that are not in the file hear that their state is lost.
            tracing::warn!(path = %path.display(), %error, "clients of NFSv4 were not written down");
        }
    })
}

fn write(path: &Path, epoch: u32, file: &mut File, lines: VecDeque<Line>) -> io::Result<()> {
    let mut text = String::new();
    for line in lines {
        match line {
            Line::Client(owner) => text += &format!("client {}\n", to_hexadecimal(&owner)),
            Line::Gone(owner) => text += &format!("gone {}\n", to_hexadecimal(&owner)),
            Line::All(owners) => {
                *file = replace(path, epoch, &owners)?;
                text.clear();
            }
        }
    }
    file.write_all(text.as_bytes())?;
    file.sync_data()
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use super::*;
    use crate::sync::AtomicU64;

    const TERM: Duration = Duration::from_secs(90);

    /// 8881-8.4.2-a: when a reactor finds that grace is over, the file no longer names who is not back; and it stays over for all.
    #[test]
    fn loom_grace_is_over_once_the_file_says_so() {
        loom::model(|| {
            let files = Arc::new(AtomicU64::new(0));
            let theirs = Arc::clone(&files);
            let journal = JournalWriter::start("journal", move |lines: VecDeque<Line>| {
                let all = lines.iter().filter(|line| matches!(line, Line::All(_))).count();
                theirs.fetch_add(all as u64, Ordering::Relaxed);
            });
            let clients = KnownClients::new(1, vec![(*b"bobby").into()], Some(journal.unwrap()));
            assert!(clients.poll_grace(Duration::ZERO, TERM), "bobby is not back");
            let (other, same_files) = (clients.clone(), Arc::clone(&files));
            let is_over = |clients: &KnownClients, files: &AtomicU64| {
                let is_over = !clients.poll_grace(TERM + TERM, TERM);
                assert!(!is_over || files.load(Ordering::Relaxed) == 1, "new state, and bobby in the file");
                is_over
            };
            let reactor = thread::spawn(move || is_over(&other, &same_files));
            let was_over = is_over(&clients, &files);
            let was_over = reactor.join().unwrap() || was_over;
            assert!(!was_over || is_over(&clients, &files), "it does not begin again");
        });
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const TERM: Duration = Duration::from_secs(90);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn directory(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("stag-nfs4-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        directory
    }

    fn until_written(clients: &KnownClients, owner: &[u8]) {
        while !clients.note(owner) {
            thread::yield_now();
        }
    }

    /// 8881-8.4.2-a, 8881-8.4.2.1-a
    #[test]
    fn who_held_state_reclaims_and_grace_ends_with_the_last() {
        let place = directory("reclaims");
        let first = KnownClients::from_directory(&place).unwrap();
        assert!(!first.poll_grace(at(0), TERM), "nothing is known from before");
        for owner in [b"alice", b"bobby", b"carol"] {
            until_written(&first, owner);
        }
        first.forget(b"carol");
        while !first.has_forgotten() {
            thread::yield_now();
        }
        let epoch = first.epoch();
        drop(first);

        let second = KnownClients::from_directory(&place).unwrap();
        assert_eq!(second.epoch(), epoch + 1);
        let reclaim = |owner: &[u8], done| second.may_reclaim(owner, done, at(5), TERM);
        assert_eq!(reclaim(b"alice", false), Ok(()));
        assert_eq!(reclaim(b"carol", false), Err(ReclaimRefused::NotKnown));
        assert_eq!(second.may_take(true, at(5), TERM), Err(InGrace));
        second.complete(b"alice", at(6), TERM);
        assert!(second.poll_grace(at(6), TERM));
        second.complete(b"bobby", at(7), TERM);
        // It is over when the file says so.
        while second.poll_grace(at(7), TERM) {
            thread::yield_now();
        }
        assert_eq!(second.may_take(true, at(7), TERM), Ok(()));
        assert_eq!(second.may_take(false, at(7), TERM), Err(InGrace));
        assert_eq!(reclaim(b"alice", false), Err(ReclaimRefused::NoGrace));
        fs::remove_dir_all(place).unwrap();
    }

    /// RFC 8881 section 8.4.3: a client that grace ended without lost what it held. One that a second crash cut off did not.
    #[test]
    fn who_misses_grace_is_forgotten_and_who_is_cut_off_is_not() {
        let place = directory("misses");
        let first = KnownClients::from_directory(&place).unwrap();
        until_written(&first, b"alice");
        until_written(&first, b"bobby");
        drop(first);
        let second = KnownClients::from_directory(&place).unwrap();
        second.complete(b"alice", at(1), TERM);
        drop(second);
        let third = KnownClients::from_directory(&place).unwrap();
        assert_eq!(third.may_reclaim(b"bobby", false, at(0), TERM), Ok(()), "grace was not over");
        third.complete(b"alice", at(1), TERM);
        while third.poll_grace(at(91), TERM) {
            thread::yield_now();
        }
        drop(third);
        let fourth = KnownClients::from_directory(&place).unwrap();
        assert_eq!(fourth.may_reclaim(b"bobby", false, at(0), TERM), Err(ReclaimRefused::NotKnown));
        assert_eq!(fourth.may_reclaim(b"alice", false, at(0), TERM), Ok(()));
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn a_line_that_was_cut_off_counts_not_and_nonsense_is_told() {
        let place = directory("nonsense");
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join(FILE), "epoch 3\nclient 61\nclient 62\ngone 61\nclient 6").unwrap();
        let clients = KnownClients::from_directory(&place).unwrap();
        assert_eq!(clients.epoch(), 4);
        assert_eq!(clients.may_reclaim(b"b", false, at(0), TERM), Ok(()));
        assert_eq!(clients.may_reclaim(b"a", false, at(0), TERM), Err(ReclaimRefused::NotKnown));
        drop(clients);
        for text in ["client 61\n", "epoch x\n", "epoch 1\nclient 6\n", "epoch 1\nwhat 61\n", "epoch\n", ""] {
            fs::write(place.join(FILE), text).unwrap();
            let error = KnownClients::from_directory(&place).unwrap_err();
            assert!(error.to_string().contains("remove it"), "{text:?}: {error}");
        }
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn a_server_that_follows_in_the_same_process_knows_who_held_something() {
        let first = KnownClients::nothing(9);
        assert!(first.note(b"alice") && first.note(b"bobby"));
        first.forget(b"bobby");
        let second = first.restarted();
        assert_eq!(second.epoch(), 10);
        assert_eq!(second.may_reclaim(b"alice", false, at(0), TERM), Ok(()));
        assert_eq!(second.may_reclaim(b"bobby", false, at(0), TERM), Err(ReclaimRefused::NotKnown));
        second.complete(b"alice", at(1), TERM);
        assert!(!second.poll_grace(at(1), TERM));
    }

    #[test]
    fn without_a_directory_there_is_no_grace() {
        let clients = KnownClients::nothing(9);
        assert!(clients.note(b"alice"));
        clients.forget(b"alice");
        assert_eq!((clients.epoch(), clients.has_forgotten()), (9, true));
        assert_eq!(clients.may_take(true, at(0), TERM), Ok(()));
        assert_eq!(clients.may_reclaim(b"alice", false, at(0), TERM), Err(ReclaimRefused::NoGrace));
    }
}
