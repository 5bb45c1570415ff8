//! Shared by the tests of both programs: a server process of the test's own, and runs of `stag`.

pub(crate) mod other_server;
pub(crate) mod tcp_client;
pub(crate) mod tcp_client4;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

pub(crate) const STAG: &str = env!("CARGO_BIN_EXE_stag");
pub(crate) const STAGD: &str = env!("CARGO_BIN_EXE_stagd");

/// A name that no other test and no other run uses.
pub(crate) fn unique(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-{what}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A folder of this test's own, removed when dropped.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(what: &str) -> Folder {
        let path = std::env::temp_dir().join(unique(what));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The URL at which a [`Server`] listens on a port that the kernel chooses for it.
pub(crate) const ANY_IWARP_PORT: &str = "iwarp://127.0.0.1:0";

/// The URL of a free port of this machine, for tests that have to know it before a server starts. Others say
/// [`ANY_IWARP_PORT`]: this one may be taken by then.
pub(crate) fn free_iwarp_url() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    // A process that another test starts right now has a copy of each descriptor until it is another program.
    while std::net::TcpStream::connect(address).is_ok() {
        std::thread::yield_now();
    }
    format!("iwarp://{address}")
}

/// A `stagd` process, killed when dropped.
pub(crate) struct Server {
    pub(crate) child: Child,
    output: BufReader<ChildStdout>,
    /// Where it listens.
    pub(crate) url: String,
    /// The first object that it printed.
    pub(crate) started: Value,
}

impl Server {
    /// Starts it on memory for a test, and waits for its ready line.
    pub(crate) fn start(arguments: &[&str]) -> Server {
        Server::start_at(&format!("shm://{}", unique("server")), arguments)
    }

    /// As [`Server::start`], listening at `url`.
    pub(crate) fn start_at(url: &str, arguments: &[&str]) -> Server {
        Server::launch(url, arguments, |_| {})
    }

    /// As [`Server::start`]; `adjust` changes the command before it runs.
    pub(crate) fn start_with(arguments: &[&str], adjust: impl FnOnce(&mut Command)) -> Server {
        Server::launch(&format!("shm://{}", unique("server")), arguments, adjust)
    }

    /// As [`Server::start_at`]; `adjust` changes the command before it runs.
    pub(crate) fn start_at_with(url: &str, arguments: &[&str], adjust: impl FnOnce(&mut Command)) -> Server {
        Server::launch(url, arguments, adjust)
    }

    fn launch(url: &str, arguments: &[&str], adjust: impl FnOnce(&mut Command)) -> Server {
        let url = url.to_owned();
        let mut command = Command::new(STAGD);
        // Tests run beside each other: none may keep a core for itself.
        command.args(["--json", "--listen", &url]);
        for default in [["--memory", "64M"], ["--poll", "adaptive"]] {
            if !arguments.contains(&default[0]) {
                command.args(default);
            }
        }
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        adjust(&mut command);
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut server = Server { child, output, url: url.clone(), started: Value::Null };
        server.started = server.next_event("started");
        let ready = server.next_event("ready");
        // With port 0 it has chosen one.
        if url.ends_with(":0") {
            server.url = ready["url"].as_str().unwrap().to_owned();
        }
        assert_eq!(ready["url"], server.url);
        server
    }

    /// A server with the export `/data` that lets root be root, as tests may run as root.
    pub(crate) fn with_data() -> Server {
        Server::start(&["--export", "mem:/data,root_squash=no"])
    }

    /// The same over iWARP.
    pub(crate) fn with_data_over_iwarp() -> Server {
        Server::start_at(ANY_IWARP_PORT, &["--export", "mem:/data,root_squash=no"])
    }

    /// The URL of a file.
    pub(crate) fn at(&self, path: &str) -> String {
        format!("{}/{path}", self.url)
    }

    /// Reads its next object, which must be of this event.
    pub(crate) fn next_event(&mut self, event: &str) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let object: Value = serde_json::from_str(&line).unwrap_or_else(|error| {
            let mut complaint = String::new();
            let _ = std::io::Read::read_to_string(&mut self.child.stderr.take().unwrap(), &mut complaint);
            panic!("{event} wanted, {line:?} found: {error}; {complaint}")
        });
        assert_eq!(object["event"], event);
        object
    }

    /// What it printed since the last object that was read.
    pub(crate) fn read_rest(&mut self, rest: &mut String) {
        std::io::Read::read_to_string(&mut self.output, rest).unwrap();
    }

    pub(crate) fn signal(&self, signal: libc::c_int) {
        let id = libc::pid_t::try_from(self.child.id()).unwrap();
        // SAFETY: a plain system call; the child is ours and not waited for yet, so the id is its own.
        assert_eq!(unsafe { libc::kill(id, signal) }, 0);
    }

    /// Stops it in order, and returns its last object and its status.
    pub(crate) fn stop(mut self) -> (Value, ExitStatus) {
        self.signal(libc::SIGTERM);
        let stopped = self.next_event("stopped");
        (stopped, self.child.wait().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn stag(arguments: &[&str]) -> Output {
    Command::new(STAG).args(arguments).output().unwrap()
}

/// Runs `stag`, which must succeed, and returns its output.
pub(crate) fn stag_ok(arguments: &[&str]) -> String {
    let output = stag(arguments);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "stag {arguments:?}: {}: {complaint}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Runs `stag --json`, which must succeed, and returns its objects.
pub(crate) fn stag_json(arguments: &[&str]) -> Vec<Value> {
    let output = stag_ok(&[&["--json"], arguments].concat());
    output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Runs `stag`, which must fail while running: status 1 and one line, which is returned.
pub(crate) fn stag_fails(arguments: &[&str]) -> String {
    let output = stag(arguments);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "stag {arguments:?}: {complaint}");
    assert_eq!(complaint.lines().count(), 1, "stag {arguments:?}: {complaint}");
    complaint
}

/// Octets that differ from file to file and from place to place.
pub(crate) fn content(len: usize, seed: u8) -> Vec<u8> {
    let mut state = u32::from(seed) + 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Whether two trees hold the same names, kinds and octets.
pub(crate) fn assert_same_tree(left: &Path, right: &Path) {
    let list = |path: &Path| -> Vec<_> {
        let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(list(left), list(right), "{} and {}", left.display(), right.display());
    for name in list(left) {
        let (left, right) = (left.join(&name), right.join(&name));
        let (a, b) = (fs::symlink_metadata(&left).unwrap(), fs::symlink_metadata(&right).unwrap());
        assert_eq!(a.file_type(), b.file_type(), "{}", left.display());
        if a.is_dir() {
            assert_same_tree(&left, &right);
        } else if a.is_symlink() {
            assert_eq!(fs::read_link(&left).unwrap(), fs::read_link(&right).unwrap());
        } else {
            assert!(fs::read(&left).unwrap() == fs::read(&right).unwrap(), "{} differs", left.display());
        }
    }
}
