//! What the cores recorded as captures: for `stag admin record`, and in files of connections that ended badly.
//!
//! A reactor hands over copies and goes on. Captures are made on the thread that asked, and files are written on one of their own.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use stag_dump::ConnectionEnd;
use stag_dump::recording::{RecordedConnection, RecordedMessage, RecordingWriter, WrittenConnection};
use stag_fabric::{Handle, Peer};
use stag_rpc::{BadEnd, ConnectionId, Recording, TracedConnection};
use stag_runtime::{Clock, WallClock};
use stag_wire::nfs3::Time;
use stag_wire::rpcrdma::NFS_PORT;

use super::asking::Reactors;
use super::client_name::client_name;
use super::state;
use crate::admin::PATIENCE;
use crate::attributes::{Utc, printable};
use crate::failure::CommandFailure;
use crate::values::count;

/// The folder of the files, in the state directory.
const FOLDER: &str = "recordings";

/// Files that are kept. For one more the oldest is removed.
const FILES_MAX: usize = 32;

/// Time between two files at least.
const INTERVAL: Duration = Duration::from_secs(10);

/// Connections whose messages wait to be written. Further ones are not kept: their file would be within [`INTERVAL`] anyway.
const WAITING_MAX: usize = 1;

/// Octets of a file for each message, about.
const FRAME_LEN_USUAL: usize = 256;

/// What a file tells of itself.
const ABOUT: &str = "recorded by stagd above the fabric: packets and their numbers are made up; RDMA Reads and Writes are not \
    recorded, and of long messages only the start";

/// Asks all cores for what they recorded. `Err` says why there is none.
pub(super) fn capture_of(reactors: &Reactors) -> Result<Vec<u8>, String> {
    let recordings = reactors.recordings().ok_or_else(|| format!("a core did not answer in {PATIENCE:?}"))?;
    if recordings.is_empty() {
        return Err("nothing is recorded; start stagd with --record 1024".to_owned());
    }
    capture(&recordings, ABOUT).map_err(|error| error.to_string())
}

/// The time since 1970.
fn wall_time() -> Duration {
    let now = Clock::start_system().now();
    WallClock::new(now).at(now)
}

/// Makes a capture of what several reactors recorded, in the order of time.
fn capture(recordings: &[Recording], about: &str) -> io::Result<Vec<u8>> {
    let now = wall_time();
    let mut messages: Vec<_> = recordings
        .iter()
        .enumerate()
        .flat_map(|(number, recording)| recording.messages().map(move |message| (number, message)))
        .map(|(number, message)| {
            let age = recordings[number].time.saturating_sub(message.time);
            (now.saturating_sub(age), number, message)
        })
        .collect();
    // Stable: those of a pass stay in their order.
    messages.sort_by_key(|(time, ..)| *time);
    let mut writer = RecordingWriter::new(Vec::with_capacity(messages.len() * FRAME_LEN_USUAL), about)?;
    let mut written: HashMap<(usize, ConnectionId), WrittenConnection> = HashMap::new();
    for (time, number, message) in messages {
        let connection = match written.entry((number, message.connection)) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(place) => {
                let Recording { fabric, connections, .. } = &recordings[number];
                let found = connections.iter().find(|found| found.connection == message.connection);
                let Some(found) = found else { continue };
                *place.insert(begin(&mut writer, time, fabric, found)?)
            }
        };
        let message = RecordedMessage {
            time,
            from: if message.is_sent { ConnectionEnd::Server } else { ConnectionEnd::Client },
            octets: message.octets,
            len: message.len,
            invalidated: message.invalidated.map(|Handle(handle)| handle),
        };
        writer.message(connection, &message)?;
    }
    writer.finish()
}

/// Writes how a connection was set up. Over shm, which has no addresses, both ends have the loopback's.
fn begin(
    writer: &mut RecordingWriter<Vec<u8>>,
    time: Duration,
    fabric: &str,
    found: &TracedConnection,
) -> io::Result<WrittenConnection> {
    let client = match found.peer {
        Peer::Address(address) => SocketAddr::new(address.ip().to_canonical(), address.port()),
        Peer::Process { pid, .. } => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), pid as u16),
    };
    let own = match found.own_address {
        Some(own) => SocketAddr::new(own.ip().to_canonical(), own.port()),
        None => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), NFS_PORT),
    };
    let connection = RecordedConnection {
        client,
        server: own,
        client_private_data: &found.peer_private_data,
        server_private_data: &found.own_private_data,
        comment: &format!("connection {} over {fabric}, from {}", found.connection, found.peer),
    };
    writer.connection(time, &connection)
}

/// Where the messages of connections go that ended badly: a thread that writes files.
#[derive(Clone, Debug)]
pub(super) struct BadEnds(SyncSender<BadEnd>);

impl BadEnds {
    /// Starts the thread. `Ok(None)`: there is no place for files, and `notes` says so.
    pub(super) fn start(
        state_dir: Option<&Path>,
        notes: &mut Vec<String>,
    ) -> Result<Option<BadEnds>, CommandFailure> {
        let Ok(state) = state::path(state_dir) else {
            notes.push(
                "no files of connections that end badly: there is no place for them; give a --state-dir"
                    .to_owned(),
            );
            return Ok(None);
        };
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let thread = thread::Builder::new().name("recordings".to_owned());
        let folder = state.join(FOLDER);
        let thread = thread
            .spawn(move || Files { folder, count: 0, next: Duration::ZERO, lost: 0 }.write_all(&receiver));
        thread.map_err(|error| {
            CommandFailure::run(format_args!("a thread for files of recordings (clone): {error}"))
        })?;
        Ok(Some(BadEnds(sender)))
    }

    /// Has the messages of a connection written, unless others wait.
    pub(super) fn keep(&self, end: BadEnd) {
        // The log has a line about its end anyway.
        let _ = self.0.try_send(end);
    }
}

/// The files of connections that ended badly.
struct Files {
    folder: PathBuf,
    /// Files that this process wrote.
    count: u64,
    /// When the next one may be written.
    next: Duration,
    /// Connections without a file since the last one.
    lost: u64,
}

impl Files {
    /// Writes a file for each that comes, until the server ends.
    fn write_all(mut self, ends: &Receiver<BadEnd>) {
        let clock = Clock::start_system();
        for end in ends {
            self.lost += end.withheld;
            // The log has a line about its end; a file would say no more.
            if end.recording.messages().next().is_none() {
                continue;
            }
            if clock.now() < self.next {
                self.lost += 1;
                continue;
            }
            self.next = clock.now() + INTERVAL;
            self.tell(&end);
        }
    }

    /// Writes a file and says so in the log.
    fn tell(&mut self, end: &BadEnd) {
        let (peer, reason) = (&end.peer, &end.reason);
        match self.write(end) {
            Ok(file) => {
                let messages = count(end.recording.messages().count() as u64, "message");
                let lost = match std::mem::take(&mut self.lost) {
                    0 => String::new(),
                    lost => format!("; {} before it ended badly without a file", count(lost, "connection")),
                };
                tracing::warn!(
                    "connection of {peer} ended badly: {}; its last {messages} are in {}{lost}",
                    printable(reason.as_ref()),
                    file.display()
                );
            }
            Err(error) => tracing::warn!(
                "connection of {peer} ended badly, and its last messages are not kept: {}: {error}",
                self.folder.display()
            ),
        }
    }

    fn write(&mut self, end: &BadEnd) -> io::Result<PathBuf> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        self.make_room()?;
        let about = format!("{} ended badly: {}; {ABOUT}", end.peer, end.reason);
        let capture = capture(std::slice::from_ref(&end.recording), &about)?;
        let time =
            Utc(Time { seconds: u32::try_from(wall_time().as_secs()).unwrap_or(u32::MAX), nanoseconds: 0 });
        // Names sort by time. A second process in the same second has another number.
        let time = format!("{time:.0}").replace([':', '-'], "");
        let client = client_name(Some(&end.peer)).replace(' ', "-").replace(':', ".");
        self.count += 1;
        let name = format!("{time}-{client}-{}-{}.pcapng", std::process::id(), self.count);
        let path = self.folder.join(name);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(&capture)?;
        Ok(path)
    }

    /// Removes the oldest files, so that there is room for one more.
    fn make_room(&self) -> io::Result<()> {
        let entries = fs::read_dir(&self.folder)?.flatten();
        let names = entries.map(|entry| entry.path());
        let mut names: Vec<_> =
            names.filter(|path| path.extension().is_some_and(|it| it == "pcapng")).collect();
        names.sort();
        let excess = (names.len() + 1).saturating_sub(FILES_MAX);
        names[..excess].iter().try_for_each(fs::remove_file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end() -> BadEnd {
        BadEnd {
            recording: Recording::default(),
            peer: Peer::Process { pid: 7, uid: 1000, gid: 1000 },
            reason: "it is a test".to_owned(),
            withheld: 0,
        }
    }

    fn files(state: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(state.join(FOLDER)).unwrap();
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    /// A file without messages would say nothing that the log does not.
    #[test]
    fn an_end_without_messages_leaves_no_file() {
        let folder = std::env::temp_dir().join(format!("stag-no-recordings-{}", std::process::id()));
        let (sender, receiver) = sync_channel(WAITING_MAX);
        sender.send(end()).unwrap();
        drop(sender);
        let files = Files { folder: folder.clone(), count: 0, next: Duration::ZERO, lost: 0 };
        files.write_all(&receiver);
        assert!(!folder.exists(), "{}", folder.display());
    }

    /// The number of files is bounded, the oldest go first, and other files stay.
    #[test]
    fn files_are_bounded() {
        let state = std::env::temp_dir().join(format!("stag-recordings-{}", std::process::id()));
        let folder = state.join(FOLDER);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("notes.txt"), "mine").unwrap();
        for number in 0..FILES_MAX + 5 {
            fs::write(folder.join(format!("20000101T0000{number:02}Z-old.pcapng")), "").unwrap();
        }
        let mut writer = Files { folder, count: 0, next: Duration::ZERO, lost: 0 };
        let first = writer.write(&end()).unwrap();
        let second = writer.write(&end()).unwrap();
        let found = files(&state);
        assert_eq!(found.len(), FILES_MAX + 1);
        for file in [&first, &second] {
            assert!(found.contains(file), "{}", file.display());
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert!(found[0].ends_with("20000101T000007Z-old.pcapng"), "{}", found[0].display());
        fs::remove_dir_all(&state).unwrap();
    }
}
