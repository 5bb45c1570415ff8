//! The effect of signals on `stagd`, and of a stop on clients that stay connected.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{Folder, STAGD, Server, stag_fails, stag_ok, unique};
use serde_json::Value;

/// A closed terminal and `systemctl reload` send SIGHUP. None of these may end the server in the middle of a Call.
#[test]
fn each_signal_that_asks_for_an_end_is_a_graceful_stop() {
    for signal in [libc::SIGHUP, libc::SIGTERM, libc::SIGINT, libc::SIGQUIT] {
        // Under nohup, the tests have HUP ignored.
        let mut server = Server::start_with(&["--export", "mem:/data,root_squash=no"], |command| {
            on_hangup(command, libc::SIG_DFL);
        });
        stag_ok(&["mkdir", &server.at("data/kept")]);
        server.signal(signal);
        let status = server.child.wait().unwrap();
        let mut rest = String::new();
        server.read_rest(&mut rest);
        let stopped: Value = serde_json::from_str(&rest).unwrap_or_else(|_| panic!("{signal}: {status}"));
        assert!(status.success(), "{signal}: {status}");
        assert_eq!((stopped["drained"].as_bool(), stopped["leaked"].as_u64()), (Some(true), Some(0)));
    }
}

/// With a configuration file there is something else to do.
#[test]
fn sighup_reads_the_configuration_file_again() {
    let folder = Folder::new("hangup");
    let file = folder.join("stagd.toml");
    std::fs::write(&file, "export = \"mem:/data,root_squash=no\"\n").unwrap();
    let url = format!("shm://{}", unique("hangup"));
    let mut server = Server::start_at_with(&url, &["--config", file.to_str().unwrap()], |command| {
        on_hangup(command, libc::SIG_DFL);
    });
    stag_ok(&["mkdir", &server.at("data/a")]);
    let mut log = BufReader::new(server.child.stderr.take().unwrap()).lines().map(Result::unwrap);
    for (text, expected) in [
        ("export = \"mem:/data,ro,root_squash=no\"\ncredits = 9\n", "changed: export /data"),
        ("export = 7\n", "changes nothing: "),
    ] {
        std::fs::write(&file, text).unwrap();
        server.signal(libc::SIGHUP);
        assert!(log.any(|line| line.contains(expected)), "{expected}");
        stag_fails(&["mkdir", &server.at("data/b")]);
    }
    let (stopped, status) = server.stop();
    assert!(status.success() && stopped["drained"] == true, "{stopped}");
}

#[test]
fn sigusr1_prints_the_counters_and_the_server_goes_on() {
    for poll in ["adaptive", "busy"] {
        let mut server = Server::start(&["--export", "mem:/data,root_squash=no", "--poll", poll]);
        stag_ok(&["mkdir", &server.at("data/a")]);
        server.signal(libc::SIGUSR1);
        let first = server.next_event("counters");
        stag_ok(&["mkdir", &server.at("data/b")]);
        server.signal(libc::SIGUSR1);
        let second = server.next_event("counters");
        let replies = |object: &Value| object["counters"]["replies_sent"].as_u64().unwrap();
        assert!(0 < replies(&first) && replies(&first) < replies(&second), "{first} {second}");
        assert!(first["uptime_seconds"].as_f64() < second["uptime_seconds"].as_f64(), "{first} {second}");
        let (stopped, status) = server.stop();
        assert!(status.success() && replies(&stopped) >= replies(&second), "{stopped}");
    }
}

/// The kernel prefers the main thread for signals. It only waits, so that a disk which holds up a reactor holds up no signal.
#[test]
fn the_thread_that_gets_signals_is_no_reactor() {
    let server = Server::start(&["--export", "mem:/data", "--poll", "busy"]);
    let id = server.child.id();
    for _ in 0..100 {
        let state = std::fs::read_to_string(format!("/proc/{id}/task/{id}/stat")).unwrap();
        // A reactor that polls is running, or ready to run.
        assert!(state.contains(") S "), "{state}");
    }
    let (stopped, status) = server.stop();
    assert!(status.success(), "{stopped}");
}

/// For people they are lines, the same as at the end.
#[test]
fn sigusr1_prints_lines_where_no_json_was_asked_for() {
    let url = format!("shm://{}", unique("usr1"));
    let mut child = Command::new(STAGD)
        .args(["--export", "mem:/data", "--listen", &url, "--memory", "32M"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with("ready: ")));
    stag_ok(&["ping", "-c", "3", &url]);
    kill(&child, libc::SIGUSR1);
    assert!(lines.any(|line| line.starts_with("counters   after ")));
    let served = lines.find(|line| line.starts_with("served ")).unwrap();
    assert!(served.contains("3 Calls on 1 RDMA"), "{served}");
    kill(&child, libc::SIGTERM);
    assert!(lines.any(|line| line.starts_with("ledger ")));
    assert!(child.wait().unwrap().success());
}

#[test]
fn sigusr2_and_sigpipe_end_nothing() {
    let mut server = Server::with_data();
    server.signal(libc::SIGUSR2);
    server.signal(libc::SIGPIPE);
    let mut log = BufReader::new(server.child.stderr.take().unwrap());
    let mut line = String::new();
    log.read_line(&mut line).unwrap();
    assert!(line.contains("SIGUSR2") && line.contains("SIGUSR1 prints the counters"), "{line}");
    stag_ok(&["ping", "-c", "1", &server.url]);
    let (stopped, status) = server.stop();
    assert!(status.success(), "{stopped}");
}

/// What a command starts with as the answer to HUP.
fn on_hangup(command: &mut Command, disposition: libc::sighandler_t) {
    // SAFETY: between fork and exec, one system call that takes numbers.
    unsafe {
        command.pre_exec(move || match libc::signal(libc::SIGHUP, disposition) {
            libc::SIG_ERR => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
}

/// `nohup stagd`: a signal that is ignored already stays so.
#[test]
fn a_server_that_is_to_outlive_its_terminal_does() {
    let url = format!("shm://{}", unique("nohup"));
    let mut command = Command::new(STAGD);
    command.args(["--json", "--export", "mem:/data", "--listen", &url, "--memory", "32M"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    on_hangup(&mut command, libc::SIG_IGN);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("\"ready\"")));
    kill(&child, libc::SIGHUP);
    // Signals are handled in order: had the first one ended it, there would be no counters.
    kill(&child, libc::SIGUSR1);
    assert!(lines.any(|line| line.contains("\"counters\"")));
    stag_ok(&["ping", "-c", "1", &url]);
    kill(&child, libc::SIGTERM);
    assert!(lines.any(|line| line.contains("\"stopped\"")));
    assert!(child.wait().unwrap().success());
}

/// A client that reads none of its Replies cannot make a stop a failure: nothing is lost but what it did not want.
#[test]
fn a_client_that_takes_no_replies_is_cut_off_after_the_drain_limit() {
    let mut server = Server::start_at("tcp://127.0.0.1:0", &["--export", "mem:/data"]);
    let mut socket = TcpStream::connect(server.url.trim_start_matches("tcp://")).unwrap();
    socket.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    // NULL of NFS version 3 with record marking; 44 octets each.
    let call: Vec<u8> = [0x8000_0028_u32, 7, 0, 2, 100_003, 3, 0, 0, 0, 0, 0]
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .collect();
    let burst = call.repeat(1000);
    // Until the server has more Replies than the socket takes, and takes no more Calls.
    let blocked = loop {
        match socket.write_all(&burst) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(blocked.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{blocked}");

    server.signal(libc::SIGTERM);
    let stopped = server.next_event("stopped");
    let status = server.child.wait().unwrap();
    assert_eq!(stopped["drained"], false, "{stopped}");
    assert_eq!((stopped["connections_cut"].as_u64(), stopped["leaked"].as_u64()), (Some(1), Some(0)));
    assert_eq!(status.code(), Some(0), "{stopped}");
    drop(socket);
}

fn kill(child: &std::process::Child, signal: libc::c_int) {
    let id = libc::pid_t::try_from(child.id()).unwrap();
    // SAFETY: a plain system call; the child is the caller's and not waited for yet, so the id is its own.
    assert_eq!(unsafe { libc::kill(id, signal) }, 0);
}
