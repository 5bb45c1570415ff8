//! The log of `stagd`: whose connection it was, why it ended, and no colours in a file.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write, pipe};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;

use crate::common::{ANY_IWARP_PORT, Folder, STAGD, Server, stag_ok, unique};

/// The log of a server at `url` that `visit` was done to, up to its end.
fn log(url: &str, level: &str, more: &[&str], visit: impl FnOnce(&Server)) -> String {
    let folder = Folder::new("log");
    let path = folder.join("log");
    let arguments = [&["--export", "mem:/data,root_squash=no"], more].concat();
    let server = Server::start_at_with(url, &arguments, |command| {
        command.env("STAG_LOG", level).env_remove("NO_COLOR").stderr(File::create(&path).unwrap());
    });
    visit(&server);
    let (stopped, status) = server.stop();
    assert!(status.success(), "{stopped}");
    fs::read_to_string(&path).unwrap()
}

fn line<'a>(log: &'a str, parts: &[&str]) -> &'a str {
    let found = log.lines().find(|line| parts.iter().all(|part| line.contains(part)));
    found.unwrap_or_else(|| panic!("no line with {parts:?} in:\n{log}"))
}

#[test]
fn a_client_over_a_network_is_named_when_it_comes_and_when_it_goes() {
    let log = log(ANY_IWARP_PORT, "info", &[], |server| {
        stag_ok(&["mkdir", &server.at("data/a")]);
        // A plain RPC over TCP client at the same port: one NULL.
        let mut socket = TcpStream::connect(server.url.trim_start_matches("iwarp://")).unwrap();
        let call: Vec<u8> = [0x8000_0028_u32, 7, 0, 2, 100_003, 3, 0, 0, 0, 0, 0]
            .iter()
            .flat_map(|word| word.to_be_bytes())
            .collect();
        socket.write_all(&call).unwrap();
        socket.read_exact(&mut [0; 28]).unwrap();
    });
    line(&log, &["INFO client 127.0.0.1:", " connected by RDMA"]);
    let mounts = line(&log, &["INFO client 127.0.0.1:", " mounts /data"]);
    assert!(mounts.ends_with(" mounts /data"), "{mounts}");
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let host = format!(" (host {}) closed: the client ended the connection; ", host.trim());
    let closed = line(&log, &["INFO client 127.0.0.1:", &host]);
    assert!(closed.ends_with(" Calls") && closed.contains(" s, "), "{closed}");
    line(&log, &["INFO client 127.0.0.1:", " connected by TCP"]);
    line(&log, &["INFO client 127.0.0.1:", " closed: the client ended the connection; ", " s, 1 Call"]);
    assert!(!log.contains('\x1b'), "a file has no colours: {log}");
    assert!(!log.contains("Fabric("), "words, not names of the program: {log}");
}

#[test]
fn a_process_of_this_machine_is_named_by_its_user() {
    let log = log(&format!("shm://{}", unique("log")), "info", &[], |server| {
        stag_ok(&["ping", "-c", "3", &server.url]);
    });
    let closed = line(&log, &["INFO client process ", " closed: the client ended the connection; "]);
    assert!(closed.contains("(uid ") && closed.contains(" Calls"), "{closed}");
}

#[test]
fn what_is_refused_or_cut_off_is_a_warning_that_names_the_client() {
    let log = log("tcp://127.0.0.1:0", "warn", &["--connections-max", "1"], |server| {
        let address = server.url.trim_start_matches("tcp://");
        // It announces a record that is too long.
        let mut socket = TcpStream::connect(address).unwrap();
        socket.write_all(&[0x7f; 64]).unwrap();
        let _ = socket.read(&mut [0; 64]);
        drop(socket);
        // Two that have made a Call, where one may be: the second is refused.
        let call: Vec<u8> = [0x8000_0028_u32, 7, 0, 2, 100_003, 3, 0, 0, 0, 0, 0]
            .iter()
            .flat_map(|word| word.to_be_bytes())
            .collect();
        let mut first = TcpStream::connect(address).unwrap();
        first.write_all(&call).unwrap();
        first.read_exact(&mut [0; 28]).unwrap();
        let mut second = TcpStream::connect(address).unwrap();
        assert_eq!(second.read(&mut [0; 1]).unwrap_or(0), 0);
    });
    let cut = line(&log, &["WARN client 127.0.0.1:", " is cut off: a record of "]);
    assert!(cut.contains("no Calls"), "{cut}");
    assert!(!log.contains("peer="), "{log}");
    assert!(!log.contains("INFO"), "{log}");
}

#[test]
fn each_level_says_more_than_the_one_before() {
    const LEVELS: [&str; 5] = ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"];
    // Whether there are warnings depends on the machine.
    for (level, others) in [("error", 0), ("info", 2), ("debug", 3), ("trace", 4)] {
        let log = log(&format!("shm://{}", unique("level")), level, &[], |server| {
            stag_ok(&["ping", "-c", "1", &server.url]);
        });
        let has = |level: &str| log.lines().any(|line| line.split_whitespace().any(|word| word == level));
        assert_eq!(
            LEVELS[2..].iter().filter(|level| has(level)).count(),
            others.max(1) - 1,
            "{level}: {log}"
        );
        assert!(others == 0 || has(LEVELS[others]), "{level}: {log}");
    }
}

/// A Call that waits for a disk is logged with its file, so that an operator finds what is slow.
#[test]
fn a_slow_call_names_its_client_and_its_file() {
    let folder = Folder::new("slow");
    let [data, file, log] = ["data", "file", "log"].map(|name| folder.join(name));
    fs::create_dir(&data).unwrap();
    fs::write(&file, vec![7; 1 << 20]).unwrap();
    let export = format!("dir:{},name=/disk,root_squash=no", data.display());
    let state = folder.join("state").display().to_string();
    let arguments = ["--export", &export, "--slow", "0us", "--state-dir", &state];
    let server = Server::start_with(&arguments, |command| {
        command.env("STAG_LOG", "warn").stderr(File::create(&log).unwrap());
    });
    // Lines are few each second.
    let found = loop {
        stag_ok(&["put", file.to_str().unwrap(), &server.at("disk/file")]);
        let text = fs::read_to_string(&log).unwrap();
        if let Some(line) = text.lines().find(|line| line.contains("subject=\"/disk file ")) {
            break line.to_owned();
        }
    };
    for part in
        ["WARN slow: it waited for the ", "stage=\"the ", "procedure=", "client=\"process ", ", handle "]
    {
        assert!(found.contains(part), "{part}: {found}");
    }
    let inode = [&data, &data.join("file")].map(|path| format!("file {},", path.metadata().unwrap().ino()));
    assert!(inode.iter().any(|inode| found.contains(inode)), "{found}: {inode:?}");
}

/// Every line is an object; the first one says which build it is.
#[test]
fn a_log_can_be_json() {
    let log = log(&format!("shm://{}", unique("json")), "info", &["--log-format", "json"], |server| {
        stag_ok(&["ping", "-c", "1", &server.url]);
    });
    let objects: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    for object in &objects {
        let field = |name: &str| object[name].as_str().unwrap_or_else(|| panic!("{name} of {object}"));
        assert!(field("time").ends_with('Z') && field("time").contains('T'), "{object}");
        assert_eq!(field("level"), "info");
        assert!(!field("message").is_empty() && field("target").starts_with("stag"), "{object}");
    }
    let has = |part: &str| objects.iter().any(|it| it["message"].as_str().unwrap().contains(part));
    assert!(objects[0]["message"].as_str().unwrap().contains("profile "), "{}", objects[0]);
    assert!(has("client process ") && has("stopped in "), "{log}");
}

/// systemd's journal takes a priority from each line (sd-daemon(3)), and has its own time.
#[test]
fn the_journal_gets_priorities() {
    let folder = Folder::new("journal");
    let path = folder.join("log");
    let file = File::create(&path).unwrap();
    let found = file.metadata().unwrap();
    let server = Server::start_with(&["--export", "mem:/data"], |command| {
        command.env("STAG_LOG", "info").stderr(file);
        command.env("JOURNAL_STREAM", format!("{}:{}", found.dev(), found.ino()));
    });
    server.signal(libc::SIGUSR2);
    assert!(server.stop().1.success());
    let log = fs::read_to_string(&path).unwrap();
    line(&log, &["<4>", "WARN SIGUSR2 has no meaning"]);
    let first = log.lines().next().unwrap();
    assert!(first.starts_with("<6> INFO stagd "), "{first}");
}

/// A pipe without a reader delays neither clients nor the end; lines that were not read in time are counted.
#[test]
fn a_log_that_nobody_reads_holds_nobody_up() {
    let mut server = Server::start_with(&["--export", "mem:/data,root_squash=no"], |command| {
        command.env("STAG_LOG", "trace").stderr(Stdio::piped());
    });
    let mut log = server.child.stderr.take().unwrap();
    // Until more was said than the pipe and the lines that wait can hold.
    for _ in 0..400 {
        stag_ok(&["ping", "-c", "3", &server.url]);
        if is_full(&log) {
            break;
        }
    }
    assert!(is_full(&log), "the log fills its pipe");
    for _ in 0..20 {
        stag_ok(&["ping", "-c", "1000", &server.url]);
    }
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        text
    });
    stag_ok(&["ping", "-c", "1", &server.url]);
    let (stopped, status) = server.stop();
    assert!(status.success() && stopped["leaked"] == 0, "{stopped}");
    let text = reader.join().unwrap();
    assert!(text.contains("lines of the log were dropped"), "{} octets", text.len());
}

/// What the stop says goes to a full pipe: to standard output, to standard error, to both. It is lost, and the stop is none the worse.
#[test]
fn a_stop_does_not_wait_for_readers_of_what_it_says() {
    for (is_output_full, is_log_full) in [(true, false), (false, true), (true, true)] {
        let url = format!("shm://{}", unique("stop"));
        let [(output, output_end), (log, log_end)] = [pipe().unwrap(), pipe().unwrap()];
        let mut command = Command::new(STAGD);
        command.args(["--json", "--export", "mem:/data", "--listen", &url, "--memory", "32M"]);
        command.env("STAG_LOG", "trace").stdin(Stdio::null());
        let again = output.try_clone().unwrap();
        command.stdout(output_end).stderr(log_end.try_clone().unwrap());
        let mut child = command.spawn().unwrap();
        // Then the output ends if the child does not start.
        drop(command);
        let mut lines = BufReader::new(output).lines().map(Result::unwrap);
        assert!(lines.any(|line| line.contains("\"ready\"")), "{:?}", ended(&mut child));
        let ends = [(is_output_full, writer_of(&again)), (is_log_full, log_end)];
        ends.into_iter().filter(|(is_full, _)| *is_full).for_each(|(_, end)| fill(end));
        // More counters than the thread that prints them takes.
        for signal in [libc::SIGUSR1; 8].into_iter().chain([libc::SIGTERM]) {
            // SAFETY: a plain system call; the child is ours and not waited for yet, so the id is its own.
            assert_eq!(unsafe { libc::kill(child.id().cast_signed(), signal) }, 0);
        }
        // Nobody reads before the end; what is read then keeps the other pipe from being full.
        let status = if is_output_full { ended(&mut child) } else { None };
        let told = lines.any(|line| line.contains("\"stopped\""));
        let status = status.or_else(|| ended(&mut child));
        assert!(status.is_some_and(|status| status.success()), "{is_output_full} {is_log_full}: {status:?}");
        assert_eq!(told, !is_output_full);
        drop(log);
    }
}

/// One more end of a pipe to write to.
fn writer_of(pipe: &PipeReader) -> PipeWriter {
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let end = File::options().write(true).open(path).unwrap();
    PipeWriter::from(OwnedFd::from(end))
}

/// Fills a pipe as far as a write does not wait.
fn fill(mut end: PipeWriter) {
    let has_room = |end: &PipeWriter| {
        let mut entries = [PollFd::new(end, PollFlags::OUT)];
        poll(&mut entries, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    };
    while has_room(&end) {
        end.write_all(&[b' '; 4096]).unwrap();
    }
}

/// How a process ended; `None`: it did not, in a time that is long on any machine.
fn ended(child: &mut Child) -> Option<ExitStatus> {
    let end = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).unwrap();
    let mut entries = [PollFd::new(&end, PollFlags::IN)];
    if poll(&mut entries, Some(&Timespec { tv_sec: 30, tv_nsec: 0 })).unwrap() > 0 {
        return child.try_wait().unwrap();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// Whether nothing more fits in a pipe.
fn is_full(pipe: &ChildStderr) -> bool {
    // SAFETY: a plain question about an open descriptor.
    let capacity = unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_GETPIPE_SZ) };
    // A line that does not fit as a whole waits.
    rustix::io::ioctl_fionread(pipe).unwrap() + 4096 > capacity as u64
}
