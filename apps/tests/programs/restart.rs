//! A server that dies and comes back while a command is at work: the command goes on.

use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread;

use crate::common::{Folder, STAG, Server, content, free_iwarp_url, stag_ok, unique};

/// A server of the folder, at `url`.
fn serve(url: &str, folder: &Folder) -> Server {
    let export = format!("dir:{},root_squash=no", folder.0.display());
    Server::start_at(url, &["--export", &export])
}

/// Dies as by a power cut, and comes back.
fn restart(mut server: Server, url: &str, folder: &Folder) -> Server {
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    drop(server);
    serve(url, folder)
}

fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new(STAG);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// What it said of the interruption.
fn check_complaint(complaint: &str) {
    assert!(complaint.contains("; connecting again, for 60 s at most"), "{complaint}");
    assert!(complaint.contains(": connected again"), "{complaint}");
}

fn reads_on_after_a_restart(url: &str) {
    let folder = Folder::new("restart-read");
    let data = content(24 << 20, 3);
    fs::write(folder.join("big"), &data).unwrap();
    let server = serve(url, &folder);
    let path: String = folder.0.to_str().unwrap().to_owned();
    // The client has read something and waits for us to take it: there is more to come.
    let mut client = start(&["cat", &format!("{url}{path}/big")]);
    let mut output = client.stdout.take().unwrap();
    let mut found = vec![0; 1];
    output.read_exact(&mut found).unwrap();
    let server = restart(server, url, &folder);
    output.read_to_end(&mut found).unwrap();
    let mut complaint = String::new();
    client.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
    assert!(client.wait().unwrap().success(), "{complaint}");
    assert!(found == data, "{} octets, {complaint}", found.len());
    check_complaint(&complaint);
    let (stopped, _) = server.stop();
    assert_eq!(stopped["leaked"], 0);
}

#[test]
fn cat_goes_on_after_a_restart() {
    reads_on_after_a_restart(&format!("shm://{}", unique("restart")));
}

#[test]
fn cat_goes_on_after_a_restart_over_iwarp() {
    reads_on_after_a_restart(&free_iwarp_url());
}

#[test]
fn put_goes_on_after_a_restart() {
    let url = free_iwarp_url();
    let (folder, source) = (Folder::new("restart-write"), Folder::new("restart-source"));
    let data = content(96 << 20, 5);
    fs::write(source.join("big"), &data).unwrap();
    let server = serve(&url, &folder);
    let target = format!("{url}{}/big", folder.0.to_str().unwrap());
    let mut client = start(&["put", source.join("big").to_str().unwrap(), &target]);
    // In the midst of it.
    while fs::metadata(folder.join("big")).map_or(0, |metadata| metadata.len()) < 8 << 20 {
        assert!(client.try_wait().unwrap().is_none(), "it ended before the server did");
        thread::yield_now();
    }
    let server = restart(server, &url, &folder);
    let output = client.wait_with_output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    check_complaint(&complaint);
    assert!(
        fs::read(folder.join("big")).unwrap() == data,
        "what was not safe when the server died was written again"
    );
    assert!(stag_ok(&["stat", &target]).contains("kind  file"));
    let (stopped, _) = server.stop();
    assert_eq!(stopped["leaked"], 0);
}
