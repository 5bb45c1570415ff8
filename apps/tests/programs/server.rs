//! The life of `stagd`: start, stop, and sudden death.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use stag_testing::patience;

use crate::common::{Folder, STAG, STAGD, Server, content, stag_fails, stag_ok, unique};

#[test]
fn check_prints_the_price_list_and_ends() {
    let arguments = ["--export", "mem:/data", "--listen", "shm://unused", "--memory", "64M", "--check"];
    let output = Command::new(STAGD).args(arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    for part in ["Receives and Sends", "files, in pages", "total", "64 credits", "mem:/data"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(!text.contains("ready"), "{text}");
}

#[test]
fn flags_win_over_the_configuration_file() {
    let folder = Folder::new("configuration");
    let path = folder.join("stagd.toml");
    let url = format!("shm://{}", unique("file"));
    let content = format!(
        "export = [\"mem:/from-file\"]\nlisten = [\"{url}\"]\nmemory = \"32M\"\ncredits = 8\npages = \"4k\"\n"
    );
    std::fs::write(&path, content).unwrap();
    let arguments = ["--json", "--check", "--credits", "16", "--config", path.to_str().unwrap()];
    let output = Command::new(STAGD).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let checked: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(checked["event"], "checked");
    assert_eq!((checked["credits"].as_u64(), checked["memory"].as_u64()), (Some(16), Some(32 << 20)));
    assert_eq!(checked["exports"][0], "mem:/from-file");
}

#[test]
fn the_start_says_what_was_chosen() {
    let server = Server::with_data();
    let started = &server.started;
    assert_eq!(started["inline_threshold"], 4096);
    assert!(started["core"].is_u64() && started["node"].is_u64());
    assert!(started["pages"].as_str().unwrap().contains("pages"));
    let prices = started["prices"].as_array().unwrap();
    let sum: u64 = prices.iter().map(|price| price["bytes"].as_u64().unwrap()).sum();
    assert!(sum <= started["memory"].as_u64().unwrap());
}

#[test]
fn a_graceful_stop_leaves_a_clean_ledger_whoever_asks_for_it() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut server = Server::with_data();
        stag_ok(&["mkdir", &server.at("data/kept")]);
        server.signal(signal);
        let mut rest = String::new();
        let status = server.child.wait().unwrap();
        server.read_rest(&mut rest);
        let stopped: serde_json::Value = serde_json::from_str(&rest).unwrap();
        assert!(status.success(), "{stopped}");
        assert_eq!((stopped["event"].as_str(), stopped["drained"].as_bool()), (Some("stopped"), Some(true)));
        assert_eq!(stopped["leaked"], 0);
        assert!(stopped["counters"]["replies_sent"].as_u64() > Some(0), "{stopped}");
    }
}

/// Two servers of one name cannot be: the second says so and ends.
#[test]
fn a_name_that_is_taken_is_refused() {
    let server = Server::with_data();
    let arguments = ["--export", "mem:/data", "--listen", &server.url, "--memory", "32M"];
    let output = Command::new(STAGD).args(arguments).output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(complaint.lines().count() == 1 && complaint.contains(&server.url), "{complaint}");
}

/// A server that is killed while a client is busy with it: the client says so at once, not after a time-out.
#[test]
fn a_client_hears_at_once_that_its_server_was_killed() {
    let mut server = Server::with_data();
    let folder = Folder::new("killed");
    let (big, url) = (folder.join("big"), server.at("data/big"));
    std::fs::write(&big, content(20 << 20, 1)).unwrap();
    stag_ok(&["put", big.to_str().unwrap(), &url]);

    // The client has read something and waits for us to take it: there is more to come.
    let mut command = Command::new(STAG);
    command
        .args(["cat", "--no-reconnect", &url])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut client = command.spawn().unwrap();
    let mut data = client.stdout.take().unwrap();
    data.read_exact(&mut [0; 1]).unwrap();
    server.child.kill().unwrap();
    server.child.wait().unwrap();

    let (sender, receiver) = mpsc::channel();
    let mut complaints = client.stderr.take().unwrap();
    let reader = thread::spawn(move || {
        let mut rest = Vec::new();
        let len = data.read_to_end(&mut rest).unwrap();
        let mut complaint = String::new();
        complaints.read_to_string(&mut complaint).unwrap();
        let _ = sender.send((len, complaint));
    });
    let heard = receiver.recv_timeout(patience(Duration::from_secs(10)));
    let _ = client.kill();
    let status = client.wait().unwrap();
    reader.join().unwrap();
    let (len, complaint) = heard.expect("the client says in time that its server is gone");
    assert!(len < (20 << 20) - 1, "the client cannot have got everything");
    assert_eq!(status.code(), Some(1), "{complaint}");
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    assert!(complaint.contains(&url) && complaint.contains("the server's process is gone"), "{complaint}");
    // Nor does a new client wait.
    assert!(stag_fails(&["ping", &server.url]).contains("no server listens there"));
}

/// `--until-eof`: a server does not outlive the process that holds its standard input.
#[test]
fn a_server_may_end_with_its_parent() {
    let url = format!("shm://{}", unique("eof"));
    let mut child = Command::new(STAGD)
        .args(["--until-eof", "--export", "mem:/data", "--listen", &url, "--memory", "32M"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("ready: ") {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "it ended before it was ready");
    }
    assert_eq!(line.trim_end(), format!("ready: {url}"));
    drop(child.stdin.take());
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(rest.contains("no buffer leaked"), "{rest}");
}

/// Root may do more than a server needs: the rest is given up before the first client.
#[test]
fn a_server_of_root_keeps_what_it_needs_and_no_more() {
    let server = Server::start(&["--export", "mem:/data"]);
    let tasks = format!("/proc/{}/task", server.child.id());
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let value = |status: &str, name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    // CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, SETGID, SETUID, NET_BIND_SERVICE, IPC_LOCK, MKNOD; and SYS_ADMIN where
    // it takes that to use io_uring.
    let io_uring = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let needed = 0x0800_44df | if io_uring.trim() == "1" { 1 << 21 } else { 0 };
    let kept = value(&own, "CapPrm:") & needed;
    for task in std::fs::read_dir(tasks).unwrap() {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        for set in ["CapPrm:", "CapEff:"] {
            assert_eq!(value(&status, set), kept, "{status}");
        }
        assert_eq!((value(&status, "CapInh:"), value(&status, "NoNewPrivs:")), (0, 1), "{status}");
    }
}

/// The limit of the stack is a user's, not a reason to die of a signal.
#[test]
fn a_low_limit_of_the_stack_ends_nothing() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    use std::os::unix::process::CommandExt;

    let allowed = stag_runtime::affinity::allowed();
    let cores: Vec<String> = allowed.iter().take(2).map(|core| core.0.to_string()).collect();
    // Cores are claimed there: other tests have the same ones.
    let claims = Folder::new("claims");
    let server = Server::start_with(&["--export", "mem:/data", "--cores", &cores.join(",")], |command| {
        let limit = Rlimit { current: Some(64 << 10), maximum: Some(64 << 10) };
        // SAFETY: between fork and exec nothing but a system call is made.
        unsafe { command.pre_exec(move || Ok(setrlimit(Resource::Stack, limit)?)) };
        command.env("STAG_RUNTIME_DIR", &claims.0);
    });
    let (stopped, status) = server.stop();
    assert!(status.success(), "{stopped}");
}
