//! `stagd` over TCP: on a port of its own, and on iWARP's.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

const STAGD: &str = env!("CARGO_BIN_EXE_stagd");

/// A Call of NULL of a program, with its record mark.
fn null(xid: u32, program: u32, version: u32) -> Vec<u8> {
    let words = [0x8000_0028, xid, 0, 2, program, version, 0, 0, 0, 0, 0];
    words.iter().flat_map(|word: &u32| word.to_be_bytes()).collect()
}

/// SM_NOTIFY (program 100024, version 1, procedure 6) of the host `me`, whose NSM state is 3.
fn notify(xid: u32) -> Vec<u8> {
    let words = [0x8000_0034, xid, 0, 2, 100_024, 1, 6, 0, 0, 0, 0, 2, u32::from_be_bytes(*b"me\0\0"), 3];
    words.iter().flat_map(|word: &u32| word.to_be_bytes()).collect()
}

/// The accept_stat that a server answers with.
fn ask(port: &str, call: &[u8]) -> u32 {
    let mut stream = TcpStream::connect(port).unwrap();
    stream.write_all(call).unwrap();
    let mut reply = [0; 28];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!((&reply[..4], &reply[4..8]), (&[0x80, 0, 0, reply[3]][..], &call[4..8]));
    u32::from_be_bytes(reply[24..].try_into().unwrap())
}

/// The accept_stat by UDP: the same Call without its mark.
fn ask_by_datagram(port: &str, call: &[u8]) -> u32 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(stag_testing::patience(Duration::from_secs(20)))).unwrap();
    socket.connect(port).unwrap();
    socket.send(&call[4..]).unwrap();
    let mut reply = [0; 64];
    let len = socket.recv(&mut reply).unwrap();
    assert!(len >= 24 && reply[..4] == call[4..8]);
    u32::from_be_bytes(reply[20..24].try_into().unwrap())
}

struct Server {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Server {
    fn start(arguments: &[&str]) -> Server {
        let mut command = Command::new(STAGD);
        command.args(["--json", "--export", "mem:/data", "--memory", "64M"]).args(arguments);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Server { child, output }
    }

    fn event(&mut self, event: &str) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let object: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}"));
        assert_eq!(object["event"], event);
        object
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn rpc_over_tcp_on_its_own_port_and_on_that_of_iwarp() {
    let listen = ["--listen", "iwarp://127.0.0.1:0", "--listen", "tcp://127.0.0.1:0"];
    let mut server = Server::start(&listen);
    server.event("started");
    for scheme in ["iwarp://", "tcp://"] {
        let ready = server.event("ready");
        let url = ready["url"].as_str().unwrap();
        let port = url.strip_prefix(scheme).unwrap();
        let served = [(100_003, 3, 0), (100_003, 4, 0), (100_005, 3, 0), (100_003, 5, 2), (400_000, 1, 1)];
        for (program, version, wanted) in served {
            assert_eq!(ask(port, &null(7, program, version)), wanted, "{program} {version} at {url}");
        }
        // By UDP the status monitor and rpcbind alone.
        for (program, version, wanted) in [(100_024, 1, 0), (100_000, 2, 0), (100_024, 9, 2), (100_003, 3, 1)]
        {
            let found = ask_by_datagram(port, &null(7, program, version));
            assert_eq!(found, wanted, "{program} {version} by UDP at {url}");
        }
        // Linux tells a restart by UDP, and again until it is answered.
        for _ in 0..2 {
            assert_eq!(ask_by_datagram(port, &notify(8)), 0, "SM_NOTIFY by UDP at {url}");
        }
    }
    // SAFETY: a plain system call; the child is ours and not waited for yet, so the id is its own.
    assert_eq!(unsafe { libc::kill(server.child.id() as libc::pid_t, libc::SIGTERM) }, 0);
    let stopped = server.event("stopped");
    assert_eq!(stopped["counters"]["streams_opened"], 10);
    assert_eq!(stopped["counters"]["calls_received"], 10);
    assert_eq!(stopped["counters"]["datagrams_received"], 12);
    assert_eq!(stopped["counters"]["datagrams_dropped"], 0);
    assert_eq!((&stopped["locks"]["taken"], &stopped["locks"]["hosts_freed"]), (&0.into(), &0.into()));
    assert_eq!((&stopped["leaked"], &stopped["drained"]), (&Value::from(0), &Value::from(true)));
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn two_fabrics_of_one_server_are_refused() {
    let listen = ["--listen", "iwarp://127.0.0.1:0", "--listen", "shm://one-too-many"];
    let output = Command::new(STAGD).args(["--export", "mem:/data"]).args(listen).output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(complaint.contains("one fabric, here iwarp; start another stagd for shm"), "{complaint}");
}
