//! Servers side by side: each finds a free core, or names the holder of the core it wants.

use std::process::Command;

use crate::common::{Folder, STAGD, Server};
use serde_json::Value;

/// Starts a server that looks for others in `folder` only.
fn start(folder: &Folder, arguments: &[&str]) -> Server {
    let arguments = [&["--export", "mem:/data"], arguments].concat();
    Server::start_with(&arguments, |command| {
        command.env("STAG_RUNTIME_DIR", &folder.0);
    })
}

fn warnings(server: &Server) -> String {
    let warnings = server.started["warnings"].as_array().unwrap();
    warnings.iter().map(|warning| warning.as_str().unwrap().to_owned() + "\n").collect()
}

/// The cores that this process may use, and so the servers that it starts.
fn cores() -> usize {
    std::thread::available_parallelism().unwrap().get()
}

#[test]
fn servers_take_different_cores_until_none_is_left_and_then_say_whose_they_share() {
    let folder = Folder::new("cores");
    let servers: Vec<Server> = (0..cores().min(8)).map(|_| start(&folder, &[])).collect();
    let mut taken: Vec<u64> = servers.iter().map(|server| server.started["core"].as_u64().unwrap()).collect();
    taken.sort_unstable();
    taken.dedup();
    assert_eq!(taken.len(), servers.len(), "each has a core of its own: {taken:?}");
    assert!(servers.iter().all(|server| !warnings(server).contains("PID")));
    if servers.len() < cores() {
        stag_testing::skipped(format_args!("a server more than the {} cores of this machine", cores()));
        return;
    }
    let one_more = start(&folder, &[]);
    let core = one_more.started["core"].as_u64().unwrap();
    let holder = servers.iter().find(|server| server.started["core"] == core).unwrap();
    let expected = format!("core {core}: stagd (PID {}) runs there", holder.child.id());
    assert!(warnings(&one_more).contains(&expected), "{expected}: {}", warnings(&one_more));
}

#[test]
fn a_core_that_was_asked_for_is_taken_and_its_holder_named() {
    let folder = Folder::new("core");
    let first = start(&folder, &[]);
    let core = first.started["core"].as_u64().unwrap();
    let second = start(&folder, &["--core", &core.to_string()]);
    assert_eq!(second.started["core"], core);
    let expected = format!("core {core}: stagd (PID {}) runs there", first.child.id());
    assert!(warnings(&second).contains(&expected), "{}", warnings(&second));

    // `--check` looks, and takes nothing.
    let check = |core: &str| {
        let arguments = ["--json", "--export", "mem:/data", "--listen", "shm://x", "--memory", "32M"];
        let mut command = Command::new(STAGD);
        command.args(arguments).args(["--check", "--core", core]).env("STAG_RUNTIME_DIR", &folder.0);
        let output = command.output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["warnings"].to_string()
    };
    assert!(check(&core.to_string()).contains(&expected));
    // One that was killed holds nothing.
    drop((first, second));
    assert!(!check(&core.to_string()).contains("PID"));
}

#[test]
fn without_a_place_to_write_it_down_the_server_starts_and_says_so() {
    let arguments = ["--export", "mem:/data"];
    let server = Server::start_with(&arguments, |command| {
        command.env("STAG_RUNTIME_DIR", "/proc/nowhere");
    });
    let notes = server.started["notes"].to_string();
    assert!(notes.contains("/proc/nowhere") && notes.contains("STAG_RUNTIME_DIR"), "{notes}");
}
