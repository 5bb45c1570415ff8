//! One server on two cores: every file through every connection, on whichever core each is.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::common::{
    ANY_IWARP_PORT, Folder, STAG, STAGD, Server, assert_same_tree, content, stag_ok, unique,
};
use serde_json::Value;
use stag_runtime::affinity;
use stag_wire::mount3::{self, MntReply, PathArguments};
use stag_wire::nfs3::{
    self, CreateArguments, CreateHow, CreateReply, DirectoryName, Handle, LookupArguments, LookupReply, Name,
    RemoveArguments, RemoveReply, SetAttributes,
};
use stag_wire::nlm4::{self, Lock, LockArguments, Object, Results, UnlockArguments};
use stag_wire::nsm;
use stag_wire::rpc::{Accepted, CallHeader, OpaqueAuth, ReplyBody, ReplyHeader};
use stag_wire::xdr::{Decode, Encode, Reader, Writer};

/// Two cores as a list; `None`, with the reason told, if this process may use one only.
fn two_cores() -> Option<String> {
    let allowed = affinity::allowed();
    let cores: Vec<String> = allowed.iter().take(2).map(|core| core.0.to_string()).collect();
    if cores.len() < 2 {
        stag_testing::skipped("this process may use one core only");
        return None;
    }
    Some(cores.join(","))
}

/// A server on `cores` that listens at `url`: /a and /d are files in memory of the first core, /b of the second, and /c is a
/// directory.
struct Served {
    server: Server,
    /// What /c is.
    folder: Folder,
    /// Where servers note whose cores are whose: tests beside this one may use the same.
    _claims: Folder,
}

impl Served {
    fn new(cores: &str, url: &str, more: &[&str]) -> Served {
        let (folder, claims) = (Folder::new("cores-files"), Folder::new("cores-claims"));
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o777)).unwrap();
        let pinned = |place: &str, at: usize| {
            format!("mem:/{place},root_squash=no,size=8M,core={}", cores.split(',').nth(at).unwrap())
        };
        let (first, second) = (pinned("a", 0), pinned("b", 1));
        let directory = format!("dir:{},name=/c,root_squash=no", folder.0.display());
        let exports = ["--export", &first, "--export", &second, "--export", &directory];
        let arguments = [&["--cores", cores, "--memory", "128M"], &exports[..], more].concat();
        let server = Server::start_at_with(url, &arguments, |command| {
            command.env("STAG_RUNTIME_DIR", &claims.0);
        });
        Served { server, folder, _claims: claims }
    }

    /// Stops it, sees that nothing is left, and returns its last object.
    fn stop(self) -> Value {
        let (stopped, status) = self.server.stop();
        assert!(status.success(), "{stopped}");
        assert_eq!((&stopped["leaked"], &stopped["drained"]), (&0.into(), &true.into()), "{stopped}");
        stopped
    }
}

/// A number of each core's share.
fn shares(stopped: &Value, what: &str) -> Vec<u64> {
    stopped["cores"].as_array().unwrap().iter().map(|core| core[what].as_u64().unwrap()).collect()
}

/// A client that keeps its connection, and reads no further, until it is dropped.
struct Holder(Child);

impl Holder {
    fn of(url: &str) -> Holder {
        let mut command = Command::new(STAG);
        let mut child = command.args(["cat", url]).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 1]).unwrap();
        Holder(child)
    }
}

/// As by kill -9, with Calls under way.
impl Drop for Holder {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Waits until the server has seen the last of its clients go.
fn wait_alone(server: &mut Server) {
    loop {
        server.signal(libc::SIGUSR1);
        let counted = server.next_event("counters");
        if shares(&counted, "connections").iter().sum::<u64>() == 0 {
            return;
        }
        std::thread::yield_now();
    }
}

/// Puts `file` into the exports of both cores, beside more and more other clients, until each core has had Calls for the other
/// one. Where a client comes to depends on the load, so it may take some tries; with as many others at one core as this, the
/// next client comes to the other core.
fn carry_both_ways(server: &mut Server, file: &str) {
    let url = server.url.clone();
    let mut others = Vec::new();
    for tries in 0.. {
        server.signal(libc::SIGUSR1);
        let counted = server.next_event("counters");
        if shares(&counted, "calls_carried").iter().all(|carried| *carried > 0) {
            return;
        }
        assert!(tries < 8, "in both directions: {counted}");
        for export in ["a", "b"] {
            stag_ok(&["put", file, &format!("{url}/{export}/carried{tries}")]);
        }
        others.push(Holder::of(&format!("{url}/c/big")));
    }
}

/// Trees in and out of each export through each core, with another client that is killed in the middle.
fn copy_trees(url: &str) {
    let Some(cores) = two_cores() else { return };
    let mut served = Served::new(&cores, url, &[]);
    let url = &served.server.url.clone();
    let source = Folder::new("cores-source");
    fs::create_dir_all(source.join("deep/er")).unwrap();
    for (number, len) in [(0, 0), (1, 1), (2, 4096), (3, 5000), (4, 300_000), (5, 3 << 20)] {
        fs::write(source.join(&format!("deep/f{number}")), content(len, number)).unwrap();
        fs::write(source.join(&format!("deep/er/g{number}")), content(len / 7, number)).unwrap();
    }
    fs::write(source.join("big"), content(6 << 20, 9)).unwrap();
    stag_ok(&["put", source.join("big").to_str().unwrap(), &format!("{url}/c/big")]);
    for export in ["a", "b", "c"] {
        // Alone a client comes to the first core; beside another one, to the second.
        for round in 0..2 {
            wait_alone(&mut served.server);
            let other = (round == 1).then(|| Holder::of(&format!("{url}/c/big")));
            let place = format!("{url}/{export}/t{round}");
            stag_ok(&["put", "-r", source.join("deep").to_str().unwrap(), &place]);
            let back = Folder::new("cores-back");
            stag_ok(&["get", "-r", &place, back.join("t").to_str().unwrap()]);
            assert_same_tree(&source.join("deep"), &back.join("t"));
            // From server to server, which here is one: what is local to one core goes by the other.
            if export != "b" {
                stag_ok(&["cp", &format!("{place}/f4"), &format!("{url}/b/copy-{export}{round}")]);
                let copy = stag_ok(&["ls", &format!("{url}/b")]);
                assert!(copy.contains(&format!("copy-{export}{round}")), "{copy}");
            }
            stag_ok(&["rm", "-r", &place]);
            drop(other);
        }
    }
    assert!(!served.folder.join("t0").exists());
    carry_both_ways(&mut served.server, source.join("deep/f3").to_str().unwrap());
    let stopped = served.stop();
    let calls = shares(&stopped, "calls");
    assert!(calls.iter().all(|calls| *calls > 0), "connections at both cores: {stopped}");
    let carried = shares(&stopped, "calls_carried");
    assert!(carried.iter().all(|carried| *carried > 0), "in both directions: {stopped}");
    let executed = shares(&stopped, "calls_executed_for_others");
    assert_eq!(carried.iter().sum::<u64>(), executed.iter().sum::<u64>(), "{stopped}");
    assert!(shares(&stopped, "pieces_lent").iter().sum::<u64>() > 0, "{stopped}");
}

#[test]
fn trees_over_shm() {
    copy_trees(&format!("shm://{}", unique("cores")));
}

#[test]
fn trees_over_iwarp() {
    copy_trees(ANY_IWARP_PORT);
}

/// A connection for RPC over TCP.
struct Connection {
    stream: TcpStream,
    xid: u32,
}

impl Connection {
    fn open(url: &str) -> Connection {
        let stream = TcpStream::connect(url.strip_prefix("tcp://").unwrap()).unwrap();
        stream.set_read_timeout(Some(stag_testing::patience(Duration::from_secs(30)))).unwrap();
        let mut connection = Connection { stream, xid: 1000 };
        // Once it is answered, somebody serves it.
        connection.call(nfs3::PROGRAM, 3, 0, &(), |_| ());
        connection
    }

    fn send(&mut self, xid: u32, (program, version, procedure): (u32, u32, u32), arguments: &impl Encode) {
        let mut space = [0; 2048];
        let mut writer = Writer::new(&mut space[4..]);
        let (credential, verifier) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
        let header = CallHeader { xid, program, version, procedure, credential, verifier };
        header.emit(&mut writer).unwrap();
        writer.value(arguments).unwrap();
        let len = writer.position();
        space[..4].copy_from_slice(&(1 << 31 | len as u32).to_be_bytes());
        self.stream.write_all(&space[..4 + len]).unwrap();
    }

    /// The next Reply.
    fn receive(&mut self) -> Vec<u8> {
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark).unwrap();
        let mark = u32::from_be_bytes(mark);
        assert!(mark >> 31 == 1, "Replies this short are in one fragment");
        let mut reply = vec![0; (mark & 0xffff) as usize];
        self.stream.read_exact(&mut reply).unwrap();
        reply
    }

    fn call<T>(
        &mut self,
        program: u32,
        version: u32,
        procedure: u32,
        arguments: &impl Encode,
        look: impl FnOnce(&mut Reader<'_>) -> T,
    ) -> T {
        self.xid += 1;
        self.send(self.xid, (program, version, procedure), arguments);
        results(&self.receive(), look)
    }

    fn mount(&mut self, path: &str) -> Vec<u8> {
        let arguments = PathArguments { path: Name(path.as_bytes()) };
        self.call(mount3::PROGRAM, 3, mount3::Procedure::Mnt as u32, &arguments, |results| {
            value::<MntReply<'_>>(results).unwrap().handle.0.to_vec()
        })
    }

    /// The object of this name, if it is there.
    fn look_up(&mut self, directory: &[u8], name: &str) -> Option<Vec<u8>> {
        let arguments = LookupArguments { what: place(directory, name) };
        self.call(nfs3::PROGRAM, 3, nfs3::Procedure::Lookup as u32, &arguments, |results| {
            value::<LookupReply<'_>>(results).ok().map(|found| found.object.0.to_vec())
        })
    }

    /// Takes a lock on octets 10 to 19 of a file, as process 7 of `host`.
    fn lock(&mut self, file: &[u8], host: &str) -> nlm4::Status {
        self.lock_since(file, host, 1)
    }

    /// The same, with the NSM state of the host.
    fn lock_since(&mut self, file: &[u8], host: &str, state: u32) -> nlm4::Status {
        let lock = lock(file, host);
        let cookie = Object(b"cookie");
        let arguments = LockArguments { cookie, block: false, exclusive: true, lock, reclaim: false, state };
        self.call(nlm4::PROGRAM, 4, nlm4::Procedure::Lock as u32, &arguments, |results| {
            value::<Results<'_>>(results).status
        })
    }

    fn unlock(&mut self, file: &[u8], host: &str) -> nlm4::Status {
        let arguments = UnlockArguments { cookie: Object(b"cookie"), lock: lock(file, host) };
        self.call(nlm4::PROGRAM, 4, nlm4::Procedure::Unlock as u32, &arguments, |results| {
            value::<Results<'_>>(results).status
        })
    }
}

fn lock<'a>(file: &'a [u8], host: &'a str) -> Lock<'a> {
    let caller = nlm4::Name(host.as_bytes());
    Lock { caller, file: Object(file), owner: Object(b"7"), svid: 7, offset: 10, len: 10 }
}

fn place<'a>(directory: &'a [u8], name: &'a str) -> DirectoryName<'a> {
    DirectoryName { directory: Handle(directory), name: Name(name.as_bytes()) }
}

fn creation<'a>(directory: &'a [u8], name: &'a str) -> CreateArguments<'a> {
    CreateArguments { place: place(directory, name), how: CreateHow::Guarded(SetAttributes::default()) }
}

/// The results of a Reply, which says success.
fn results<T>(reply: &[u8], look: impl FnOnce(&mut Reader<'_>) -> T) -> T {
    let mut reader = Reader::new(reply);
    let header = ReplyHeader::parse(&mut reader).unwrap();
    assert!(matches!(header.body, ReplyBody::Accepted { outcome: Accepted::Success, .. }), "{header:?}");
    look(&mut reader)
}

fn value<'a, T: Decode<'a>>(reader: &mut Reader<'a>) -> T {
    reader.value().unwrap()
}

/// Two connections, of which each core has one.
fn connect_to_both(url: &str) -> [Connection; 2] {
    [Connection::open(url), Connection::open(url)]
}

#[test]
fn a_lock_at_one_core_is_in_the_way_at_the_other() {
    let Some(cores) = two_cores() else { return };
    let served = Served::new(&cores, "tcp://127.0.0.1:0", &[]);
    let mut both = connect_to_both(&served.server.url);
    for export in ["/a", "/b", "/c"] {
        let root = both[0].mount(export);
        assert_eq!(both[1].mount(export), root);
        let create = nfs3::Procedure::Create as u32;
        let file = both[1].call(nfs3::PROGRAM, 3, create, &creation(&root, "locked"), |results| {
            value::<CreateReply<'_>>(results).unwrap().object.unwrap().0.to_vec()
        });
        for (first, second) in [(0, 1), (1, 0)] {
            assert_eq!(both[first].lock(&file, "alice"), nlm4::Status::Granted, "{export}");
            assert_eq!(both[second].lock(&file, "bob"), nlm4::Status::Denied, "{export}");
            assert_eq!(both[second].lock(&file, "alice"), nlm4::Status::Granted, "one's own, {export}");
            assert_eq!(both[second].unlock(&file, "alice"), nlm4::Status::Granted, "{export}");
            assert_eq!(both[second].lock(&file, "bob"), nlm4::Status::Granted, "{export}");
            assert_eq!(both[first].unlock(&file, "bob"), nlm4::Status::Granted, "{export}");
        }
    }
    drop(both);
    let stopped = served.stop();
    assert_eq!((&stopped["locks"]["held"], &stopped["locks"]["denied"]), (&0.into(), &6.into()), "{stopped}");
    assert!(shares(&stopped, "calls").iter().all(|calls| *calls > 10), "{stopped}");
}

/// A host restarts and says so by a LOCK of one core's file: what it had locked at another core is free as well. The same by
/// SM_NOTIFY, which comes in at either.
#[test]
fn a_restarted_host_has_no_locks_at_any_core() {
    let Some(cores) = two_cores() else { return };
    let served = Served::new(&cores, "tcp://127.0.0.1:0", &[]);
    let mut both = connect_to_both(&served.server.url);
    let create = nfs3::Procedure::Create as u32;
    let files = ["/a", "/b", "/c"].map(|export| {
        let root = both[0].mount(export);
        both[0].call(nfs3::PROGRAM, 3, create, &creation(&root, "locked"), |results| {
            value::<CreateReply<'_>>(results).unwrap().object.unwrap().0.to_vec()
        })
    });
    let mut state = 1;
    for entry in [0, 1] {
        for file in &files {
            assert_eq!(both[entry].lock_since(file, "alice", state), nlm4::Status::Granted);
            assert_eq!(both[entry].lock(file, "bob"), nlm4::Status::Denied);
        }
        for (heard, file) in files.iter().enumerate() {
            state += 2;
            assert_eq!(both[entry].lock_since(file, "alice", state), nlm4::Status::Granted);
            for (at, other) in files.iter().enumerate().filter(|(at, _)| *at != heard) {
                // The other core hears of it a moment later.
                let mut tries = 0;
                while both[1 - entry].lock(other, "bob") != nlm4::Status::Granted {
                    tries += 1;
                    assert!(tries < 10_000, "file {at} after a restart that file {heard} heard of");
                    std::thread::yield_now();
                }
                assert_eq!(both[entry].unlock(other, "bob"), nlm4::Status::Granted);
                assert_eq!(both[entry].lock_since(other, "alice", state), nlm4::Status::Granted);
            }
        }
        // By SM_NOTIFY, all at once.
        state += 2;
        let arguments = nsm::NotifyArguments { name: nsm::Name(b"alice"), state };
        both[entry].call(nsm::PROGRAM, 1, nsm::Procedure::Notify as u32, &arguments, |_| ());
        for file in &files {
            assert_eq!(both[1 - entry].lock(file, "bob"), nlm4::Status::Granted);
            assert_eq!(both[entry].unlock(file, "bob"), nlm4::Status::Granted);
        }
    }
    drop(both);
    let stopped = served.stop();
    assert_eq!(stopped["locks"]["held"], 0, "{stopped}");
}

/// A Call that is repeated over a new connection, at another core, is answered and not executed again.
#[test]
fn a_repeated_call_is_executed_once_wherever_it_comes_in() {
    let Some(cores) = two_cores() else { return };
    let served = Served::new(&cores, "tcp://127.0.0.1:0", &[]);
    let url = served.server.url.clone();
    // It has the client's home, the first core, for as long as it lives.
    let mut first = Connection::open(&url);
    let (create, remove) = (nfs3::Procedure::Create as u32, nfs3::Procedure::Remove as u32);
    let mut answered = 0;
    for (number, export) in ["/a", "/b", "/c"].into_iter().enumerate() {
        let root = first.mount(export);
        for round in 0..4 {
            let name = format!("once{round}");
            let xid = 7_000 + 10 * number as u32 + round;
            // By the second core; then the connection is cut, and its end is the only one whose turn comes.
            let mut cut = Connection::open(&url);
            cut.send(xid, (nfs3::PROGRAM, 3, create), &creation(&root, &name));
            let made = cut.receive();
            drop(cut);
            // By whichever core has room now, and by the first.
            let mut again = Connection::open(&url);
            for connection in [&mut again, &mut first] {
                connection.send(xid, (nfs3::PROGRAM, 3, create), &creation(&root, &name));
                let repeated = connection.receive();
                assert_eq!(repeated, made, "{export}: the same Reply, not EXIST");
                answered += 1;
            }
            results(&made, |results| value::<CreateReply<'_>>(results).map(drop).unwrap());
            // What is removed stays removed, even if another client repeats it.
            let object = RemoveArguments { object: place(&root, &name) };
            again.send(xid + 500, (nfs3::PROGRAM, 3, remove), &object);
            let removed = again.receive();
            results(&removed, |results| value::<RemoveReply>(results).map(drop).unwrap());
            first.send(xid + 500, (nfs3::PROGRAM, 3, remove), &object);
            assert_eq!(first.receive(), removed, "{export}: the same Reply, not NOENT");
            answered += 1;
            assert_eq!(again.look_up(&root, &name), None);
        }
    }
    drop(first);
    let stopped = served.stop();
    assert_eq!(stopped["counters"]["duplicates_answered"], answered, "{stopped}");
    assert!(shares(&stopped, "calls").iter().all(|calls| *calls > 10), "{stopped}");
}

/// A client whose connections are at both cores is killed while its Calls are under way, again and again.
#[test]
fn clients_that_are_killed_leave_nothing() {
    let Some(cores) = two_cores() else { return };
    let served = Served::new(&cores, &format!("shm://{}", unique("cores-killed")), &[]);
    let source = Folder::new("cores-killed");
    fs::write(source.join("big"), content(3 << 20, 1)).unwrap();
    for export in ["a", "b", "c"] {
        let place = format!("{}/{export}/big", served.server.url);
        stag_ok(&["put", source.join("big").to_str().unwrap(), &place]);
        let held: Vec<Holder> = (0..4).map(|_| Holder::of(&place)).collect();
        drop(held);
        let found = stag_ok(&["stat", &place]);
        assert!(found.contains("big") || !found.is_empty(), "{found}");
        // A WRITE in the middle of which its client goes.
        let mut command = Command::new(STAG);
        let source = source.join("big");
        let target = format!("{place}2");
        let mut writer = command.args(["put", source.to_str().unwrap(), &target]).spawn().unwrap();
        stag_ok(&["ls", &format!("{}/{export}", served.server.url)]);
        writer.kill().unwrap();
        writer.wait().unwrap();
        stag_ok(&["rm", &place]);
    }
    let stopped = served.stop();
    assert!(shares(&stopped, "calls_carried").iter().sum::<u64>() > 0, "{stopped}");
}

fn check(arguments: &[&str], claims: &Folder) -> Output {
    let mut command = Command::new(STAGD);
    command.args(["--listen", "shm://nowhere", "--check"]).args(arguments);
    command.env("STAG_RUNTIME_DIR", &claims.0).output().unwrap()
}

#[test]
fn cores_that_cannot_be_are_refused_in_one_line() {
    let claims = Folder::new("cores-refused");
    let allowed = affinity::allowed();
    let own = allowed.iter().next().unwrap().0.to_string();
    let twice = format!("{own},{own}");
    let absent = format!("{own},1023");
    let pinned = format!("mem:/data,core={}", own.parse::<usize>().unwrap() + 1);
    let data = ["--export", "mem:/data"];
    let cases: &[(&[&str], &str)] = &[
        (&["--cores", &twice], "is in the list twice; name each core once"),
        (&["--cores", "0-64"], "65 cores (limit 64); name fewer"),
        (&["--cores", ""], "\"\" is no core; write cores as 2-9 or 0,2,4"),
        (&["--cores", "0,,1"], "\"\" is no core"),
        (&["--cores", "3-1"], "\"3-1\" is no core"),
        (&["--cores", "-2"], "--cores"),
        (&["--cores", "one"], "\"one\" is no core"),
        (&["--cores", "0-99999"], "\"0-99999\" is no core"),
        (&["--cores", &absent, "--memory", "256M"], "core 1023 is not available: this process may use cores"),
        (&["--cores", &own, "--core", &own], "--core"),
    ];
    for (arguments, wanted) in cases {
        let output = check(&[&data[..], arguments].concat(), &claims);
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {complaint}");
        assert_eq!(complaint.lines().count(), 1, "{arguments:?}: {complaint}");
        assert!(complaint.contains(wanted), "{arguments:?}: {wanted:?} in {complaint}");
    }
    for (export, wanted) in [
        (pinned.as_str(), "is not among the server's cores"),
        ("dir:/tmp,core=0", "every core serves a directory; leave it out"),
        ("mem:/data,core=x", "give a number"),
    ] {
        let output = check(&["--export", export, "--cores", &own], &claims);
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), complaint.lines().count()), (Some(2), 1), "{export}: {complaint}");
        assert!(complaint.contains(wanted), "{export}: {complaint}");
    }
    let output = check(&["--export", "mem:/data,core=0"], &claims);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(complaint.contains("name them by --cores"), "{complaint}");
}

#[test]
fn memory_that_is_too_small_says_for_how_many_cores_it_is_enough() {
    let Some(cores) = two_cores() else { return };
    let claims = Folder::new("cores-memory");
    let output = check(&["--export", "mem:/data", "--cores", &cores, "--memory", "30M"], &claims);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), complaint.lines().count()), (Some(2), 1), "{complaint}");
    assert!(
        complaint.contains("--memory 30 MiB") && complaint.contains("it is enough for 1 core"),
        "{complaint}"
    );
}

/// A core outside of the process' affinity mask.
#[test]
fn a_core_that_is_not_allowed_is_refused() {
    let Some(cores) = two_cores() else { return };
    let claims = Folder::new("cores-allowed");
    let (own, other) = cores.split_once(',').unwrap();
    let mut command = Command::new("taskset");
    command.args(["-c", own, STAGD, "--listen", "shm://nowhere", "--check", "--export", "mem:/data"]);
    command.args(["--memory", "256M", "--cores", &cores]).env("STAG_RUNTIME_DIR", &claims.0);
    let Ok(output) = command.output() else { return stag_testing::skipped("there is no taskset here") };
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), complaint.lines().count()), (Some(2), 1), "{complaint}");
    let wanted = format!("core {other} is not available: this process may use cores {own}");
    assert!(complaint.contains(&wanted), "{complaint}");
}

#[test]
fn a_second_server_takes_none_of_the_cores() {
    let Some(cores) = two_cores() else { return };
    let served = Served::new(&cores, &format!("shm://{}", unique("cores-first")), &[]);
    let listed: Vec<u64> = served.server.started["cores"]
        .as_array()
        .unwrap()
        .iter()
        .map(|core| core["core"].as_u64().unwrap())
        .collect();
    assert_eq!(listed.iter().map(u64::to_string).collect::<Vec<_>>().join(","), cores);
    let start = |more: &[&str]| {
        let mut command = Command::new(STAGD);
        let name = format!("shm://{}", unique("cores-second"));
        command.args(["--listen", &name, "--export", "mem:/data", "--memory", "128M", "--cores", &cores]);
        command.args(more).env("STAG_RUNTIME_DIR", &served._claims.0).output().unwrap()
    };
    let output = start(&[]);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), complaint.lines().count()), (Some(1), 1), "{complaint}");
    let holder = format!("stagd (PID {}) runs there", served.server.child.id());
    assert!(complaint.contains(&holder), "{complaint}");
    let output = start(&["--check"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && text.contains(&holder) && text.contains("cannot start there now"),
        "{text}"
    );
    served.stop();
}

/// The counters that SIGUSR1 asks for are those of all cores, and each core's.
#[test]
fn counters_are_those_of_all_cores() {
    let Some(cores) = two_cores() else { return };
    let mut served = Served::new(&cores, "tcp://127.0.0.1:0", &[]);
    let both = connect_to_both(&served.server.url);
    served.server.signal(libc::SIGUSR1);
    let counted = served.server.next_event("counters");
    assert_eq!((shares(&counted, "streams"), &counted["streams"]), (vec![1, 1], &2.into()), "{counted}");
    assert_eq!((shares(&counted, "calls"), &counted["counters"]["replies_sent"]), (vec![1, 1], &2.into()));
    drop(both);
    let stopped = served.stop();
    assert!(stopped["cores"][1]["asleep_seconds"].as_f64().unwrap() > 0.0, "{stopped}");
}
