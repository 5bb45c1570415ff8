//! Runs as responder: our own client keeps the rules, and one that breaks a rule is caught.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};

use super::chunk_client::ChunkClient;
use super::proxy::{Flaw, Proxy};
use super::runs::parse;
use crate::common::{Folder, STAG, unique};

type Results = BTreeMap<String, (String, String)>;

/// Checks that want a Call with a chunk, which `stag ping` does not make.
const WITH_CHUNKS: [&str; 4] =
    ["client-least-access", "client-beyond-chunk", "client-fences", "client-echo-too-long"];

/// Checks that want a client which reads and writes files.
const WITH_DATA: [&str; 15] = [
    "client-group-calls",
    "client-placed-data",
    "client-group-continued",
    "client-group-limit",
    "client-no-targets",
    "client-takes-targets",
    "client-takes-offset",
    "client-takes-no-item",
    "client-takes-continued",
    "client-refuses-target",
    "client-refuses-offset",
    "client-refuses-payload",
    "client-refuses-number",
    "client-refuses-xid",
    "client-refuses-between",
];

/// A client, ended when dropped.
struct Client(Child);

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Begins a run as responder.
fn begin(url: &str, only: &[&str]) -> Child {
    let mut run = Command::new(STAG);
    run.args(["--json", "conform", url, "--as", "responder", "--wait", "10"]);
    for check in only {
        run.args(["--only", check]);
    }
    run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// What the run finds when it ends.
fn finish(run: Child) -> Results {
    let output = run.wait_with_output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    parse(&String::from_utf8(output.stdout).unwrap(), &complaint)
}

/// What a run as responder at `url` finds, while clients run this command, one after the other, as long as it lasts.
fn serve(url: &str, client: &[&str], only: &[&str]) -> Results {
    serve_all(url, &[client.iter().map(|word| (*word).to_owned()).collect()], only)
}

/// As [`serve`], with clients that run these commands in rotation.
fn serve_all(url: &str, clients: &[Vec<String>], only: &[&str]) -> Results {
    let run = begin(url, only);
    let (ended, is_ended) = std::sync::mpsc::channel::<()>();
    let clients = std::thread::spawn({
        let commands = clients.to_vec();
        let mut turns = (0..commands.len()).cycle();
        move || loop {
            let command = &commands[turns.next().unwrap()];
            let child = Command::new(STAG).args(command).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            let mut client = Client(child.unwrap());
            // The next one comes when this one is gone; a run that has ended ends it.
            while client.0.try_wait().unwrap().is_none() {
                if is_ended.recv_timeout(std::time::Duration::from_millis(20)).is_ok() {
                    return;
                }
            }
            if is_ended.try_recv().is_ok() {
                return;
            }
        }
    });
    let found = finish(run);
    ended.send(()).unwrap();
    clients.join().unwrap();
    found
}

/// `stag ping` without end, with everything switched on that a client can ask for.
const PING: [&str; 8] =
    ["--reliable-reply", "--protocol", "auto", "--placement", "send", "ping", "-c", "1000000000"];

/// Clients that bring a tree to the scratch service and get it back, with the data in messages.
struct Copies {
    commands: Vec<Vec<String>>,
    _folder: Folder,
}

impl Copies {
    fn to(url: &str) -> Copies {
        let folder = Folder::new("conform-copies");
        let (from, to) = (folder.join("from"), folder.join("to"));
        fs::create_dir(&from).unwrap();
        // Each is one WRITE and one READ, of several transmissions; many, so that another Call follows.
        for index in 0..24 {
            fs::write(from.join(index.to_string()), [0x5a; 20_000]).unwrap();
        }
        let (from, to) = (from.to_str().unwrap().to_owned(), to.to_str().unwrap().to_owned());
        let (above, there) = (format!("{url}/scratch"), format!("{url}/scratch/from"));
        let command = |words: [&str; 3]| {
            // One file at a time: where other Calls leave too few credits for several transmissions, data goes by chunks.
            let switches = ["--protocol", "auto", "--placement", "send", words[0], "-r", "-j", "1"];
            switches.iter().chain(&words[1..]).map(|word| (*word).to_owned()).collect()
        };
        let commands = vec![command(["put", &from, &above]), command(["get", &there, &to])];
        Copies { commands, _folder: folder }
    }

    /// What a run at `url` finds with them.
    fn serve(&self, url: &str, only: &[&str]) -> Results {
        serve_all(url, &self.commands, only)
    }
}

/// All checks of a client, over one fabric.
pub(crate) fn own_client(url: &str) -> Results {
    let mut found = serve(url, &[&PING[..], &[url]].concat(), &[]);
    let run = begin(url, &WITH_CHUNKS);
    let client = ChunkClient::start(url);
    found.extend(finish(run));
    drop(client);
    found.extend(Copies::to(url).serve(url, &WITH_DATA));
    let broken: Vec<_> = found.iter().filter(|(_, (result, _))| result != "pass").collect();
    assert!(broken.is_empty(), "{url}: {broken:#?}");
    found
}

/// A client that offers nothing is asked for nothing: neither exposed Replies nor version 2 apply.
#[test]
fn what_a_client_does_not_ask_for_is_not_applicable() {
    let at = unique("plain-client");
    let url = format!("shm://{at}");
    let checks = ["client-pulls", "client-pulls-unknown", "client-second-probe", "client-second-option"];
    let found = serve(&url, &["ping", "-c", "1000000000", &url], &checks);
    assert_eq!(found.len(), checks.len());
    for (check, (result, came)) in found {
        assert_eq!(result, "not_applicable", "{check}: {came}");
        assert!(came.contains("the client does not "), "{check}: {came}");
    }
}

/// Each flaw of a client fails this check.
#[test]
fn broken_clients_are_caught() {
    for (flaw, check) in [
        (Flaw::CallVersion, "client-calls"),
        (Flaw::CallXid, "client-calls"),
        (Flaw::CallCredits, "client-calls"),
        (Flaw::DoneSent, "client-calls"),
        (Flaw::CallsTwice, "client-first-alone"),
        (Flaw::ErrorRetried, "client-error-chunk"),
        (Flaw::ErrorRetried, "client-error-vers"),
        (Flaw::UnknownEnds, "client-unknown-xid"),
        (Flaw::ClientPrivateFlags, "client-private-data"),
        (Flaw::DoneTwice, "client-pulls"),
        (Flaw::DoneLost, "client-pulls-segments"),
        (Flaw::DoneXid, "client-pulls-unknown"),
        (Flaw::DoneVersion, "client-pulls"),
        (Flaw::BlockFirst, "client-pulling-block"),
        (Flaw::CallDirection, "client-second-calls"),
        (Flaw::CallXid, "client-second-calls"),
        (Flaw::CallsTwice, "client-second-probe"),
        (Flaw::CharacteristicsSum, "client-characteristics"),
        (Flaw::CharacteristicsSet, "client-characteristics"),
        (Flaw::GroupErrorLost, "client-group-none"),
        (Flaw::GroupErrorDirection, "client-group-none"),
        (Flaw::OptionErrorLost, "client-characteristics-ask"),
    ] {
        let (name, at) = (unique("broken-client"), unique("responder"));
        let _proxy = Proxy::start(&name, &at, flaw);
        // One that asks for nothing speaks version 1 whatever the flaw makes of that.
        let is_plain =
            !["pull", "second", "characteristics", "group"].iter().any(|part| check.contains(part));
        let words = if is_plain { &PING[5..] } else { &PING[..] };
        let from = format!("shm://{name}");
        let found = serve(&format!("shm://{at}"), &[words, &[&from]].concat(), &[check]);
        let (result, came) = found.get(check).cloned().unwrap_or_default();
        assert_eq!(result, "fail", "{flaw:?}: {check}: {came}");
    }
}

#[test]
fn a_proxy_of_a_client_that_breaks_nothing_passes() {
    let (name, at) = (unique("right-client"), unique("responder"));
    let _proxy = Proxy::start(&name, &at, Flaw::Right);
    let checks = [
        "client-calls",
        "client-first-alone",
        "client-unknown-xid",
        "client-error-chunk",
        "client-pulling-block",
        "client-pulls",
        "client-pulls-segments",
        "client-pulls-unknown",
        "client-second-probe",
        "client-second-calls",
        "client-characteristics",
        "client-characteristics-ask",
        "client-group-none",
    ];
    let from = format!("shm://{name}");
    let client = [&PING[..], &[&from]].concat();
    let found = serve(&format!("shm://{at}"), &client, &checks);
    assert!(found.len() == checks.len() && found.values().all(|(result, _)| result == "pass"), "{found:#?}");
}

/// As [`broken_clients_are_caught`], of clients whose data goes in messages.
#[test]
fn broken_clients_with_data_are_caught() {
    for (flaw, check) in [
        (Flaw::PayloadBeyond, "client-group-calls"),
        (Flaw::ReceivesBeyond, "client-group-calls"),
        (Flaw::TargetsShifted, "client-placed-data"),
        (Flaw::Displaced, "client-placed-data"),
        (Flaw::TransmissionNumber, "client-group-continued"),
        (Flaw::LastLost, "client-group-continued"),
        (Flaw::CharacteristicsIgnored, "client-group-limit"),
        (Flaw::CharacteristicsIgnored, "client-no-targets"),
        (Flaw::StructureShifted, "client-takes-targets"),
        (Flaw::StructureShifted, "client-takes-offset"),
        (Flaw::NoItemEnds, "client-takes-no-item"),
        (Flaw::GroupErrorLost, "client-refuses-target"),
        (Flaw::GroupErrorDirection, "client-refuses-offset"),
        (Flaw::GroupErrorLost, "client-refuses-payload"),
        (Flaw::GroupErrorNumbers, "client-refuses-number"),
        (Flaw::GroupErrorLost, "client-refuses-xid"),
        (Flaw::GroupErrorDirection, "client-refuses-between"),
    ] {
        let (name, at) = (unique("broken-copies"), unique("responder"));
        let _proxy = Proxy::start(&name, &at, flaw);
        let found = Copies::to(&format!("shm://{name}")).serve(&format!("shm://{at}"), &[check]);
        let (result, came) = found.get(check).cloned().unwrap_or_default();
        assert_eq!(result, "fail", "{flaw:?}: {check}: {came}");
    }
}

#[test]
fn a_proxy_of_a_client_with_data_that_breaks_nothing_passes() {
    let (name, at) = (unique("right-copies"), unique("responder"));
    let _proxy = Proxy::start(&name, &at, Flaw::Right);
    let found = Copies::to(&format!("shm://{name}")).serve(&format!("shm://{at}"), &WITH_DATA);
    assert!(
        found.len() == WITH_DATA.len() && found.values().all(|(result, _)| result == "pass"),
        "{found:#?}"
    );
}
