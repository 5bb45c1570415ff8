//! The examples run: a server and a client, as two processes.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

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

#[test]
fn echo_server_answers_echo_client() {
    let name = format!("echo-example-{}", std::process::id());
    let mut command = Command::new(example("echo_server"));
    let child = command.arg(&name).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut server = Running(child);
    let mut lines = BufReader::new(server.0.stdout.take().expect("it is piped")).lines();
    let ready = lines.next().expect("a line").expect("text");
    assert_eq!(ready, format!("ready: shm://{name}"));

    for text in ["hello", "zero copies"] {
        let output = Command::new(example("echo_client")).arg(&name).arg(text).output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), text);
    }
}
