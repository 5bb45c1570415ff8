//! Runs as responder: our own client keeps the rules, and one that breaks a rule is caught.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};

use crate::common::{STAG, unique};
use crate::proxy::{Flaw, Proxy};
use crate::runs::parse;

type Results = BTreeMap<String, (String, String)>;

/// Checks that want a Call with a chunk, which `stag ls` makes and `stag ping` does not.
const WITH_CHUNKS: [&str; 4] =
    ["client-least-access", "client-beyond-chunk", "client-fences", "client-echo-too-long"];

/// A client, ended when dropped.
struct Client(Child);

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a run as responder at `url` finds, while clients run this command, one after the other, as long as it lasts.
fn serve(url: &str, client: &[&str], only: &[&str]) -> Results {
    let mut run = Command::new(STAG);
    run.args(["--json", "conform", url, "--as", "responder", "--wait", "10"]);
    for check in only {
        run.args(["--only", check]);
    }
    let run = run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (ended, is_ended) = std::sync::mpsc::channel::<()>();
    let clients = std::thread::spawn({
        let command: Vec<String> = client.iter().map(|word| (*word).to_owned()).collect();
        move || loop {
            let child = Command::new(STAG).args(&command).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
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
    let output = run.wait_with_output().unwrap();
    ended.send(()).unwrap();
    clients.join().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    parse(&String::from_utf8(output.stdout).unwrap(), &complaint)
}

/// All checks of a client, over one fabric.
pub(crate) fn own_client(url: &str) -> Results {
    let mut found = serve(url, &["ping", "-c", "1000000000", url], &[]);
    found.extend(serve(url, &["ls", &format!("{url}/data")], &WITH_CHUNKS));
    // `stag ls` ends when it is refused: what becomes of its memory then cannot be seen.
    let is_seen = |name: &String| !["client-fences", "client-beyond-chunk"].contains(&name.as_str());
    let broken: Vec<_> =
        found.iter().filter(|(name, (result, _))| result != "pass" && is_seen(name)).collect();
    assert!(broken.is_empty(), "{url}: {broken:#?}");
    assert!(found.values().all(|(result, _)| result != "fail"), "{url}: {found:#?}");
    found
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
    ] {
        let (name, at) = (unique("broken-client"), unique("responder"));
        let _proxy = Proxy::start(&name, &at, flaw);
        let found =
            serve(&format!("shm://{at}"), &["ping", "-c", "1000000000", &format!("shm://{name}")], &[check]);
        let (result, came) = found.get(check).cloned().unwrap_or_default();
        assert_eq!(result, "fail", "{flaw:?}: {check}: {came}");
    }
}

#[test]
fn a_proxy_of_a_client_that_breaks_nothing_passes() {
    let (name, at) = (unique("right-client"), unique("responder"));
    let _proxy = Proxy::start(&name, &at, Flaw::Right);
    let checks = ["client-calls", "client-first-alone", "client-unknown-xid", "client-error-chunk"];
    let client = ["ping", "-c", "1000000000", &format!("shm://{name}")];
    let found = serve(&format!("shm://{at}"), &client, &checks);
    assert!(found.len() == checks.len() && found.values().all(|(result, _)| result == "pass"), "{found:#?}");
}
