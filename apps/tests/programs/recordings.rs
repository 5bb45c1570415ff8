//! The flight recorder: `stag admin record`, and files of connections that end badly.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use stag_wire::ddp::Untagged;
use stag_wire::mpa::{self, Frame, FrameKind};
use stag_wire::rdmap::Opcode;
use stag_wire::rpcrdma::emit_plain;

use crate::common::{ANY_IWARP_PORT, Folder, STAG, Server, content, stag, stag_ok, unique};

fn text(octets: &[u8]) -> &str {
    std::str::from_utf8(octets).unwrap()
}

/// A server that records, with its socket and its state in a folder of this test's own.
struct Recorded {
    server: Server,
    folder: Folder,
}

impl Recorded {
    fn start(url: &str, more: &[&str]) -> Recorded {
        let folder = Folder::new("recorded");
        let (socket, state) = (folder.join("control"), folder.join("state"));
        let (socket, state) = (socket.display().to_string(), state.display().to_string());
        let own = ["--export", "mem:/data,root_squash=no", "--control", &socket, "--state-dir", &state];
        let server = Server::start_at(url, &[&own[..], more].concat());
        Recorded { server, folder }
    }

    fn record(&self) -> Output {
        let socket = self.folder.join("control");
        stag(&["admin", "--socket", socket.to_str().unwrap(), "record"])
    }

    /// What is recorded, in a file.
    fn recording(&self) -> PathBuf {
        let output = self.record();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let file = self.folder.join("recording.pcapng");
        fs::write(&file, output.stdout).unwrap();
        file
    }
}

/// The objects that `stag dump` makes of a file in which no rule is broken.
fn dump(file: &Path) -> (Vec<Value>, Value) {
    let output = Command::new(STAG).args(["--json", "dump"]).arg(file).output().unwrap();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let mut objects: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let totals = objects.pop().unwrap();
    (objects, totals)
}

/// The names of what was called, and whether it was answered, in order.
fn calls(objects: &[Value]) -> Vec<(String, bool)> {
    let is_answered = |frame: &Value| objects.iter().any(|other| &other["call_frame"] == frame);
    let calls = objects.iter().filter(|object| object["rpc"]["type"] == "call");
    calls
        .map(|call| {
            // Behind the program and its version.
            let name = call["rpc"]["name"].as_str().unwrap().rsplit(' ').next().unwrap();
            (name.to_owned(), is_answered(&call["frame"]))
        })
        .collect()
}

/// The same over both fabrics, and in both versions: files are written and read, and the recording tells it.
#[test]
fn what_is_recorded_opens_in_stag_dump() {
    let shm = format!("shm://{}", unique("recorded"));
    for (url, protocol) in [(&shm[..], "1"), (ANY_IWARP_PORT, "1"), (ANY_IWARP_PORT, "auto")] {
        let recorded = Recorded::start(url, &["--record", "1024", "--protocol", protocol]);
        let file = recorded.folder.join("file");
        fs::write(&file, content(20_000, 3)).unwrap();
        stag_ok(&["put", file.to_str().unwrap(), &recorded.server.at("data/file")]);
        stag_ok(&["ls", "-l", &recorded.server.at("data")]);
        let cat = stag(&["cat", &recorded.server.at("data/file")]);
        assert!(cat.stdout == content(20_000, 3));

        let (objects, totals) = dump(&recorded.recording());
        let calls = calls(&objects);
        for wanted in ["MNT", "CREATE", "WRITE", "READDIRPLUS", "READ"] {
            let found = calls.iter().find(|(name, _)| name == wanted);
            assert!(found.is_some_and(|(_, is_answered)| *is_answered), "{wanted}, {url}: {calls:?}");
        }
        assert_eq!(totals["totals"]["violations"], 0, "{totals}");
        assert!(totals["totals"]["connections"].as_u64() >= Some(3), "one for each command: {totals}");
        assert_eq!(totals["totals"]["unanswered"], 0, "{totals}");
        // The server has the address that the client reached it at.
        let port = recorded.server.url.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or(20049);
        let server = format!("127.0.0.1:{port}");
        for connection in totals["totals"]["connection_list"].as_array().unwrap() {
            assert_eq!(connection["server"], server, "{connection}");
        }
        let vers: Vec<_> = objects.iter().map(|object| object["vers"].as_u64().unwrap()).collect();
        assert!(vers.contains(if protocol == "1" { &1 } else { &2 }), "{vers:?}");
        let (_, status) = recorded.server.stop();
        assert!(status.success());
    }
}

/// The last messages stay, however many there were.
#[test]
fn the_ring_is_bounded() {
    let recorded = Recorded::start(&format!("shm://{}", unique("ring")), &["--record", "16"]);
    stag_ok(&["ping", "-c", "100", &recorded.server.url]);
    let (objects, _) = dump(&recorded.recording());
    assert!(objects.len() <= 16 && objects.len() >= 14, "{}", objects.len());
    let calls = calls(&objects);
    assert!(calls.iter().all(|(name, _)| name == "NULL"), "{calls:?}");
}

#[test]
fn a_server_that_records_nothing_says_how_to_change_that() {
    let recorded = Recorded::start(&format!("shm://{}", unique("none")), &[]);
    let refused = recorded.record();
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(1), 0));
    assert!(text(&refused.stderr).contains("start stagd with --record 1024"), "{}", text(&refused.stderr));
}

/// A file of octets on a terminal helps nobody. `script` gives the command one.
#[test]
fn a_terminal_is_refused() {
    let recorded = Recorded::start(&format!("shm://{}", unique("terminal")), &["--record", "16"]);
    let socket = recorded.folder.join("control");
    let line = format!("{STAG} admin --socket {} record", socket.display());
    let output = Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output();
    let Ok(output) = output else { return stag_testing::skipped("there is no script (util-linux)") };
    let shown = text(&output.stdout);
    assert!(shown.contains("stag admin record > x.pcapng"), "{shown}");
}

/// A client over iWARP that a test makes, without CRCs.
struct Raw(TcpStream, u32);

impl Raw {
    fn connect(server: &Server) -> Raw {
        let mut socket = TcpStream::connect(server.url.trim_start_matches("iwarp://")).unwrap();
        let request = Frame {
            kind: FrameKind::Request,
            markers: false,
            crc: false,
            rejected: false,
            large_fpdus: false,
            revision: 1,
            enhanced: None,
            private_data: &[],
        };
        let mut octets = [0; 64];
        let len = request.emit(&mut octets).unwrap();
        socket.write_all(&octets[..len]).unwrap();
        let mut reply = [0; 20];
        socket.read_exact(&mut reply).unwrap();
        let private_data_len = usize::from(u16::from_be_bytes([reply[18], reply[19]]));
        socket.read_exact(&mut vec![0; private_data_len]).unwrap();
        Raw(socket, 1)
    }

    /// Sends a segment to the queue of Sends.
    fn send(&mut self, control: u8, payload: &[u8]) {
        let queue = Opcode::Send.queue().unwrap();
        let header = Untagged { last: true, control, ulp: 0, queue, msn: self.1, offset: 0 };
        self.1 += 1;
        let ulpdu = [&header.to_wire()[..], payload].concat();
        let mut octets = vec![0; ulpdu.len() + 16];
        let len = mpa::emit_fpdu(&ulpdu, None, &mut octets).unwrap();
        self.0.write_all(&octets[..len]).unwrap();
    }

    /// A NULL Call, which is answered.
    fn call(&mut self, xid: u32) {
        let words = [xid, 0, 2, 100_003, 3, 0, 0, 0, 0, 0];
        let mut message = [0; 28 + 40];
        let payload: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        emit_plain(&mut message, xid, 32).unwrap().copy_from_slice(&payload);
        self.send(Opcode::Send.to_control(), &message);
        // Length, header of DDP and RDMAP, header and Reply, and in the place of a CRC.
        self.0.read_exact(&mut [0; 2 + 18 + 28 + 24 + 4]).unwrap();
    }
}

/// A client breaks RDMAP's rules: its last messages are in a file that is the server's alone, and the log names it.
#[test]
fn a_connection_that_ends_badly_leaves_a_file() {
    let mut recorded = Recorded::start(ANY_IWARP_PORT, &["--record", "64", "--crc", "off"]);
    // One that ends in order leaves none.
    stag_ok(&["ping", "-c", "3", &recorded.server.url]);
    let mut raw = Raw::connect(&recorded.server);
    raw.call(0x77);
    raw.call(0x78);
    // An opcode that there is not.
    raw.send(0x4f, &[0; 8]);

    let mut log = BufReader::new(recorded.server.child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("ended badly") {
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0, "the server ended");
    }
    let folder = recorded.folder.join("state/recordings");
    let files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    assert!(line.contains(&file.display().to_string()), "{line}");
    assert!(line.contains("connection of 127.0.0.1:"), "{line}");
    assert!(!line.contains('\\'), "a sentence has no escapes: {line}");
    for (path, mode) in [(&folder, 0o700), (file, 0o600)] {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, mode);
    }
    let (objects, totals) = dump(file);
    let xids: Vec<_> = objects.iter().map(|object| object["xid"].as_u64().unwrap()).collect();
    assert_eq!(xids, [0x77, 0x77, 0x78, 0x78], "{totals}");
    assert_eq!(calls(&objects), [("NULL".to_owned(), true), ("NULL".to_owned(), true)]);
}
