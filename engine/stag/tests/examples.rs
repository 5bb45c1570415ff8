//! The examples run: a server and a client, as two processes.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// An example's program: Cargo puts it beside the folder of this test's. `cargo test` builds the examples,
/// `cargo test --test examples` does not.
fn example(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("a test has a path");
    let folder = own.parent().and_then(Path::parent).expect("it is in `deps`");
    let path = folder.join("examples").join(name);
    if !path.exists() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--locked", "--package", "stag", "--examples"]);
        cargo.args(folder.ends_with("release").then_some("--release"));
        assert!(cargo.status().expect("Cargo runs").success());
    }
    path
}

/// Ends the server, however the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Errors: it may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a program prints, line by line.
type Output = Lines<BufReader<ChildStdout>>;

/// Starts a program, and waits for its first line.
fn run(name: &str, arguments: &[&str]) -> (Running, String, Output) {
    let mut command = Command::new(example(name));
    let child = command.args(arguments).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut running = Running(child);
    let mut lines = BufReader::new(running.0.stdout.take().expect("it is piped")).lines();
    let first = lines.next().expect("a line").expect("text");
    (running, first, lines)
}

/// Starts a server, and waits for its line `ready: WHERE`.
fn start(name: &str, arguments: &[&str]) -> (Running, String) {
    let (server, ready, _) = run(name, arguments);
    (server, ready.strip_prefix("ready: ").expect("it says where").to_owned())
}

/// What a client prints.
fn ask(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(example(name)).args(arguments).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// What a server says by HTTP at `HOST:PORT/PATH`.
fn get(place: &str) -> String {
    let (host, path) = place.split_once('/').expect("a path");
    let mut server = TcpStream::connect(host).expect("it listens");
    server.write_all(format!("GET /{path} HTTP/1.0\r\n\r\n").as_bytes()).expect("it takes it");
    let mut answer = String::new();
    server.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn echo_server_answers_echo_client() {
    let name = format!("echo-example-{}", std::process::id());
    let (_server, place) = start("echo_server", &[&name]);
    assert_eq!(place, format!("shm://{name}"));
    for text in ["hello", "zero copies"] {
        assert_eq!(ask("echo_client", &[&name, text]), text);
    }
}

/// A Reply of any size arrives, although its caller offered no memory for it.
#[test]
fn lists_of_any_size_arrive() {
    let name = format!("any-size-{}", std::process::id());
    let (_server, _) = start("any_size", &["serve", &name]);
    for (count, len, way) in [("10", "124", "inline"), ("100000", "1599604", "read of the server's memory")] {
        let last = count.parse::<u32>().unwrap() - 1;
        let expected = format!("{count} entries, the last one \"entry {last}\", in {len} octets, {way}");
        assert_eq!(ask("any_size", &["list", &name, count]), expected);
    }
}

/// Connections are spread over two reactors, and all are served.
#[test]
fn echo_server_on_two_cores() {
    let cores: Vec<String> =
        stag::runtime::affinity::allowed().iter().map(|core| core.0.to_string()).collect();
    let [first, second, ..] = &cores[..] else {
        stag_testing::skipped("this process has one core");
        return;
    };
    let name = format!("echo-cores-{}", std::process::id());
    let (_server, place) = start("echo_server", &[&name, "--cores", &format!("{first},{second}")]);
    assert_eq!(place, format!("shm://{name}"));
    for text in ["first", "second", "third", "fourth"] {
        assert_eq!(ask("echo_client", &[&name, text]), text);
    }
}

#[test]
fn later_answers_from_a_thread() {
    let name = format!("later-example-{}", std::process::id());
    let (_server, place) = start("later", &["serve", &name]);
    assert_eq!(place, name);
    let said = ask("later", &["call", &name, "5", "20"]);
    let job: f64 = said.split(' ').nth(3).and_then(|word| word.parse().ok()).expect("milliseconds");
    assert!(said.starts_with("20 jobs of ") && job >= 5.0, "{said}");
    let said = ask("later", &["wake", "1", "5"]);
    assert!(said.starts_with("a thread that sleeps is awake "), "{said}");
}

#[test]
fn store_writes_into_its_clients_memory() {
    let name = format!("shm://store-example-{}", std::process::id());
    for (scheme, url) in [("shm", &name[..]), ("iwarp", "iwarp://127.0.0.1:0")] {
        let (_server, place) = start("store", &["serve", url]);
        let url = format!("{scheme}://{place}");
        for len in ["1", "4096", "1048576"] {
            let said = ask("store", &["get", &url, len]);
            assert_eq!(said, format!("{len} octets by Write chunk, right: true"), "{url}");
        }
    }
}

/// The server recalls a lease from the client that holds it, on that client's connection.
#[test]
fn leases_are_recalled_from_who_holds_them() {
    let name = format!("lease-example-{}", std::process::id());
    let (_server, place) = start("lease", &["serve", &name]);
    assert_eq!(place, name);
    for round in 0..3 {
        let (mut holder, taken, mut lines) = run("lease", &["hold", &name, "door"]);
        assert!(taken.starts_with("door: taken after "), "{taken}");
        let said = ask("lease", &["take", &name, "window"]);
        assert!(said.starts_with("window: taken after "), "{said}");
        let said = ask("lease", &["take", &name, "door"]);
        assert!(said.starts_with("door: taken after "), "{said}");
        let recalled = lines.next().expect("a line").expect("text");
        assert_eq!(recalled, "door: recalled", "round {round}");
        assert!(holder.0.wait().expect("it ends").success());
    }
}

/// Objects of all sizes, on two cores, are put, listed, saved, read by a disk thread, and deleted.
#[test]
fn objects_are_kept_by_several_cores() {
    let scratch = stag_testing::Scratch::folder();
    let folder = scratch.0.to_str().expect("text");
    let saved = format!("{folder}/saved");
    std::fs::create_dir(&saved).expect("a folder");
    let (from, to) = (format!("{folder}/from"), format!("{folder}/to"));
    let name = format!("shm://objects-{}", std::process::id());
    for url in [&name[..], "iwarp://127.0.0.1:0"] {
        let (server, ready, mut lines) = run("objects", &["serve", url, &saved, "2", "127.0.0.1:0"]);
        let url = ready.strip_prefix("ready: ").expect("it says where").to_owned();
        let metrics = lines.next().expect("a line").expect("text");
        let lens = [1, 512, 4096, 100_001, 8 << 20];
        for (at, len) in lens.into_iter().enumerate() {
            let data: Vec<u8> = (0..len).map(|octet: usize| (octet * 7 % 251) as u8).collect();
            std::fs::write(&from, &data).expect("a file");
            ask("objects", &["put", &url, &format!("object {at}"), &from]);
            ask("objects", &["get", &url, &format!("object {at}"), &to]);
            assert!(std::fs::read(&to).expect("a file") == data, "{len} octets");
        }
        ask("objects", &["save", &url, "object 4"]);
        ask("objects", &["delete", &url, "object 0"]);
        let mut names: Vec<String> = ask("objects", &["list", &url]).lines().map(str::to_owned).collect();
        names.sort();
        assert_eq!(names, ["object 1", "object 2", "object 3", "object 4"]);
        let counted = get(metrics.strip_prefix("metrics: http://").expect("it says where"));
        for line in ["PUT\"} 5", "GET\"} 5", "LIST\"} 2", "SAVE\"} 1", "DELETE\"} 1"] {
            assert!(counted.contains(&format!("objects_calls_total{{procedure=\"{line}\n")), "{counted}");
        }
        // The next server has what was saved: a thread brings it.
        drop(server);
        let (_server, url) = start("objects", &["serve", "iwarp://127.0.0.1:0", &saved, "2"]);
        ask("objects", &["get", &url, "object 4", &to]);
        assert!(std::fs::read(&to).expect("a file") == std::fs::read(&from).expect("a file"));
        ask("objects", &["delete", &url, "object 4"]);
    }
}

/// Objects go to files and come back, through inline messages and by chunk.
#[test]
fn objects_are_written_and_read_by_the_disk() {
    let scratch = stag_testing::Scratch::folder();
    let folder = scratch.0.to_str().expect("text");
    let files = format!("{folder}/files");
    std::fs::create_dir(&files).expect("a folder");
    let (from, to) = (format!("{folder}/from"), format!("{folder}/to"));
    let name = format!("shm://disk-{}", std::process::id());
    for url in [&name[..], "iwarp://127.0.0.1:0"] {
        let (_server, url) = start("disk", &["serve", url, &files]);
        for len in [0, 1, 100_001, 1 << 20] {
            let data: Vec<u8> = (0..len).map(|octet: usize| (octet * 7 % 251) as u8).collect();
            std::fs::write(&from, &data).expect("a file");
            ask("disk", &["put", &url, "an object", &from]);
            // Its name in hexadecimal.
            let written = std::fs::read(format!("{files}/616e206f626a656374")).expect("a file");
            assert!(written == data, "{len} octets");
            ask("disk", &["get", &url, "an object", &to]);
            assert!(std::fs::read(&to).expect("a file") == data, "{len} octets");
        }
        let output = Command::new(example("disk")).args(["get", &url, "nothing", &to]).output();
        assert!(!output.expect("it runs").status.success());
    }
}

/// The simulator finds a planted bug, and its seed shows it again.
#[test]
fn a_planted_bug_is_found_by_its_seed() {
    let said = ask("planted_bug", &[]);
    assert!(said.starts_with("seed ") && said.ends_with("repaired: 200 seeds add 40 each"), "{said}");
}
