//! `stagd` with a directory: what survives its death, and what other processes see.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::common::{Folder, Server, assert_same_tree, content, stag_fails, stag_ok};
use stag_fabric::{Shm, ShmConfig};
use stag_memory::{Arena, ArenaConfig, Budget, PageChoice, PageSize, Pool};
use stag_nfs::client::{FinishedCall, Mnt, Operation, Target};
use stag_rpc::{Chunks, ConnectionEvent, ConnectionId, Credentials, Engine, EngineConfig, Pools};
use stag_runtime::{Clock, Poller};
use stag_wire::mount3::PathArguments;
use stag_wire::nfs3::{
    AccessArguments, CommitArguments, CreateArguments, CreateHow, Data, DirectoryName, GetattrArguments,
    Handle, LookupArguments, Name, ReadArguments, SetAttributes, SetattrArguments, Stable, Status,
    WriteArguments, access,
};
use stag_wire::xdr::Item;

/// A folder with a directory to export, and one for the server's state.
fn folders(what: &str) -> (Folder, String, String) {
    let folder = Folder::new(what);
    let (data, state) = (folder.join("data"), folder.join("state"));
    fs::create_dir(&data).unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    (folder, text(&data), text(&state))
}

fn server(data: &str, state: &str) -> Server {
    Server::start(&["--export", &format!("dir:{data},root_squash=no,name=/data"), "--state-dir", state])
}

#[test]
fn a_tree_goes_there_and_back() {
    let (folder, data, state) = folders("directory");
    let tree = folder.join("tree");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    for (index, len) in [0, 1, 4096, 100_000, 3 << 20].into_iter().enumerate() {
        fs::write(tree.join(format!("a/f{index}")), content(len, index as u8)).unwrap();
    }
    symlink("../a/f1", tree.join("a/b/link")).unwrap();
    let server = server(&data, &state);
    stag_ok(&["cp", "-r", tree.to_str().unwrap(), &server.at("data/tree")]);
    assert_same_tree(&tree, &Path::new(&data).join("tree"));
    let back = folder.join("back");
    stag_ok(&["cp", "-r", &server.at("data/tree"), back.to_str().unwrap()]);
    assert_same_tree(&tree, &back);
    assert!(stag_ok(&["df", &server.at("data")]).contains("GiB"));
    stag_ok(&["rm", "-r", &server.at("data/tree")]);
    assert!(!Path::new(&data).join("tree").exists());
    let (stopped, status) = server.stop();
    assert!(status.success() && stopped["leaked"] == 0, "{stopped}");
}

#[test]
fn both_kinds_are_served_side_by_side() {
    let (_folder, data, state) = folders("both");
    fs::write(Path::new(&data).join("f"), "on disk").unwrap();
    let export = format!("dir:{data},ro");
    let arguments = ["--export", "mem:/scratch,root_squash=no", "--export", &export, "--state-dir", &state];
    let server = Server::start(&arguments);
    stag_ok(&["mkdir", &server.at("scratch/d")]);
    assert_eq!(stag_ok(&["cat", &server.at(&format!("{}/f", &data[1..]))]), "on disk");
    let complaint = stag_fails(&["mkdir", &server.at(&format!("{}/d", &data[1..]))]);
    assert!(complaint.contains("read-only"), "{complaint}");
}

#[test]
fn what_cannot_be_exported_is_refused_at_start() {
    let (folder, data, state) = folders("refused");
    fs::write(folder.join("file"), "").unwrap();
    for (path, expected) in [("none", "No such file"), ("file", "Not a directory")] {
        let spec = format!("dir:{}", folder.join(path).display());
        let output = std::process::Command::new(crate::common::STAGD)
            .args(["--check", "--export", &spec, "--listen", "shm://unused", "--state-dir", &state])
            .output()
            .unwrap();
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{complaint}");
        assert!(complaint.contains(&spec) && complaint.contains(expected), "{complaint}");
    }
    let output = std::process::Command::new(crate::common::STAGD)
        .args(["--check", "--export", &format!("dir:{data}"), "--listen", "shm://unused"])
        .output()
        .unwrap();
    assert!(output.status.success());
}

/// A client of our own, which keeps its handles while servers come and go.
struct Client {
    engine: Engine<Shm, ()>,
    connection: ConnectionId,
    clock: Clock,
}

impl Client {
    fn connect(url: &str) -> Client {
        let config =
            EngineConfig { credits_max: 8, connections_max: 1, receives_max: 32, ..EngineConfig::default() };
        let messages = Pools::messages_needed(&config);
        let len = Pool::footprint(config.message_len(), messages) + Pool::footprint(4096, 512);
        let budget = Budget::new(1 << 30);
        let page = PageChoice::Size(PageSize::Base);
        let arena =
            Arena::new(&ArenaConfig { name: "client", len, page, node: None, budget: &budget }).unwrap();
        let mut provider = Shm::open(ShmConfig::default()).unwrap();
        stag_fabric::Provider::register(&mut provider, &arena).unwrap();
        let pools = Pools {
            messages: Pool::fixed(&arena, "messages", config.message_len(), messages).unwrap(),
            payload: Pool::runs(&arena, "payload", 4096, 512).unwrap(),
        };
        let mut engine = Engine::new(provider, (), pools, config, 1).unwrap();
        let clock = Clock::start();
        engine.poll(clock.now());
        let connection = engine.connect(url.strip_prefix("shm://").unwrap()).unwrap();
        let mut client = Client { engine, connection, clock };
        let event = client.until(|engine| engine.connection_event());
        assert_eq!(event, ConnectionEvent::Established { connection });
        client
    }

    fn until<T>(&mut self, mut found: impl FnMut(&mut Engine<Shm, ()>) -> Option<T>) -> T {
        loop {
            self.engine.poll(self.clock.now());
            if let Some(found) = found(&mut self.engine) {
                return found;
            }
            std::thread::yield_now();
        }
    }

    fn ask<O: Operation, R>(&mut self, operation: &O, look: impl FnOnce(O::Reply<'_>) -> R) -> R {
        let target = Target {
            connection: self.connection,
            credentials: Credentials::None,
            timeout: std::time::Duration::from_secs(60),
        };
        target.begin(&mut self.engine, operation, &mut Chunks::default(), 1).unwrap();
        let finished = FinishedCall::new(self.until(Engine::completed));
        look(finished.reply::<O>().unwrap())
    }

    fn mount(&mut self) -> Vec<u8> {
        self.mount_at("/data")
    }

    fn mount_at(&mut self, path: &str) -> Vec<u8> {
        let operation = Mnt(PathArguments { path: Name(path.as_bytes()) });
        self.ask(&operation, |reply| reply.unwrap().handle.0.to_vec())
    }

    fn create(&mut self, directory: &[u8], name: &str) -> Vec<u8> {
        let place = DirectoryName { directory: Handle(directory), name: Name(name.as_bytes()) };
        let how = CreateHow::Guarded(SetAttributes { mode: Some(0o666), ..SetAttributes::default() });
        self.ask(&CreateArguments { place, how }, |reply| reply.unwrap().object.unwrap().0.to_vec())
    }

    fn write(&mut self, file: &[u8], octets: &[u8], stable: Stable) -> [u8; 8] {
        let data = Data(Item::Inline(octets));
        let count = octets.len() as u32;
        let operation = WriteArguments { file: Handle(file), offset: 0, count, stable, data };
        self.ask(&operation, |reply| {
            let done = reply.unwrap();
            assert_eq!((done.count, done.committed), (count, stable));
            done.verifier
        })
    }

    /// Tries to change the file. Why it failed, if it did.
    fn overwrite(&mut self, file: &[u8]) -> Option<Status> {
        let data = Data(Item::Inline(b"ALICE"));
        let stable = Stable::FileSync;
        let operation = WriteArguments { file: Handle(file), offset: 0, count: 5, stable, data };
        self.ask(&operation, |reply| reply.err().map(|failure| failure.status))
    }

    fn read(&mut self, file: &[u8]) -> Result<Vec<u8>, Status> {
        let operation = ReadArguments { file: Handle(file), offset: 0, count: 2000 };
        self.ask(&operation, |reply| match reply {
            Ok(done) => match done.data.0 {
                Item::Inline(octets) => Ok(octets.to_vec()),
                Item::Reduced { .. } => panic!("no chunk was offered"),
            },
            Err(failure) => Err(failure.status),
        })
    }
}

/// SIGKILL right after the Replies of a stable WRITE and of a COMMIT: the data is there, the handles are good, and the
/// verifier tells that what was not committed may be lost.
#[test]
fn what_was_acknowledged_survives_a_kill() {
    let (_folder, data, state) = folders("kill");
    let export = format!("dir:{data},name=/data,anonuid={0},anongid={0}", own_uid());
    let start = || Server::start(&["--export", &export, "--state-dir", &state]);
    let mut server = start();
    let mut client = Client::connect(&server.url);
    let root = client.mount();
    let (stable, committed) = (client.create(&root, "stable"), client.create(&root, "committed"));
    let gone = client.create(&root, "gone");
    let verifier = client.write(&stable, b"stable", Stable::FileSync);
    client.write(&committed, b"committed", Stable::Unstable);
    let operation = CommitArguments { file: Handle(&committed), offset: 0, count: 0 };
    let same = client.ask(&operation, |reply| reply.unwrap().verifier);
    assert_eq!(same, verifier);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    drop(client);

    assert_eq!(fs::read(Path::new(&data).join("stable")).unwrap(), b"stable");
    assert_eq!(fs::read(Path::new(&data).join("committed")).unwrap(), b"committed");
    fs::remove_file(Path::new(&data).join("gone")).unwrap();

    let server = start();
    let mut client = Client::connect(&server.url);
    // With the handles of the server that is dead.
    assert_eq!(client.read(&stable), Ok(b"stable".to_vec()));
    assert_eq!(client.read(&committed), Ok(b"committed".to_vec()));
    assert_eq!(client.read(&gone), Err(Status::Stale));
    assert!(client.ask(&GetattrArguments { object: Handle(&root) }, |reply| reply.is_ok()));
    assert_ne!(client.write(&stable, b"STABLE", Stable::DataSync), verifier);
    // With another secret, no handle is good.
    drop(client);
    drop(server);
    fs::remove_file(Path::new(&state).join("handle-key")).unwrap();
    let server = start();
    let mut client = Client::connect(&server.url);
    assert_eq!(client.read(&stable), Err(Status::Stale));
    drop(server);
}

/// The key is kept for the directories, and seals the handles of all exports: those of files in memory still end with the
/// run, and in whatever order the exports are, a handle never leads to another file.
#[test]
fn handles_never_lead_to_something_else_after_a_restart() {
    let (folder, data, state) = folders("reordered");
    let other = folder.join("other");
    fs::create_dir(&other).unwrap();
    let own = format!("anonuid={0},anongid={0}", own_uid());
    let (one, two) =
        (format!("dir:{data},name=/one,{own}"), format!("dir:{},name=/two,{own}", other.display()));
    let (a, b) = (format!("mem:/a,{own}"), format!("mem:/b,{own}"));
    let start = |exports: &[&str]| {
        let mut arguments = vec!["--state-dir", &*state];
        exports.iter().for_each(|export| arguments.extend(["--export", *export]));
        Server::start(&arguments)
    };
    // A file in each export, with the name of the export in it.
    let fill = |client: &mut Client, paths: &[&str]| -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut file = |path: &&str| {
            let root = client.mount_at(path);
            let file = client.create(&root, &format!("f{}", path.len()));
            client.write(&file, path.as_bytes(), Stable::FileSync);
            (root, file)
        };
        paths.iter().map(&mut file).collect()
    };
    let server = start(&[&a, &b, &one, &two]);
    let mut client = Client::connect(&server.url);
    let old = fill(&mut client, &["/a", "/b", "/one", "/two"]);
    let check = |client: &mut Client| {
        for (root, file) in &old[..2] {
            let found = client.ask(&GetattrArguments { object: Handle(root) }, |reply| {
                reply.err().map(|failure| failure.status)
            });
            assert_eq!(found, Some(Status::Stale));
            assert_eq!(client.read(file), Err(Status::Stale));
            assert_eq!(client.overwrite(file), Some(Status::Stale));
        }
    };
    drop(client);
    drop(server);

    // The other way round, with other files in memory.
    let server = start(&[&two, &b, &a, &one]);
    let mut client = Client::connect(&server.url);
    let new = fill(&mut client, &["/a", "/b"]);
    check(&mut client);
    assert_eq!(client.read(&old[2].1), Ok(b"/one".to_vec()));
    assert_eq!(client.read(&old[3].1), Ok(b"/two".to_vec()));
    assert_eq!(client.read(&new[0].1), Ok(b"/a".to_vec()));
    assert_eq!(client.read(&new[1].1), Ok(b"/b".to_vec()));
    drop(client);
    drop(server);

    // One name for another directory, one directory under another name, and a share in memory in the place of one that
    // was a directory.
    let (swapped, moved) =
        (format!("dir:{},name=/one,{own}", other.display()), format!("dir:{data},name=/three,{own}"));
    let server = start(&[&format!("mem:/two,{own}"), &swapped, &moved]);
    let mut client = Client::connect(&server.url);
    fill(&mut client, &["/two"]);
    check(&mut client);
    for (root, file) in &old[2..] {
        let found = client.ask(&GetattrArguments { object: Handle(root) }, |reply| {
            reply.err().map(|failure| failure.status)
        });
        assert_eq!(found, Some(Status::Stale));
        assert_eq!(client.overwrite(file), Some(Status::Stale));
    }
    drop(client);
    drop(server);
}

/// A limit on the size of files is an error that the client sees, and a server that cannot start says so; neither is ended
/// by a signal.
#[test]
fn a_limit_on_the_size_of_files_ends_nobody() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};

    let (_folder, data, state) = folders("limit");
    let export = format!("dir:{data},name=/data,anonuid={0},anongid={0}", own_uid());
    let arguments = ["--export", &export, "--state-dir", &state];
    let mut server = Server::start(&arguments);
    let pid = Pid::from_child(&server.child);
    let limit = Rlimit { current: Some(1 << 20), maximum: Some(1 << 20) };
    prlimit(Some(pid), Resource::Fsize, limit).unwrap();
    let mut client = Client::connect(&server.url);
    let root = client.mount();
    let file = client.create(&root, "f");
    let set = |size| SetAttributes { size: Some(size), ..SetAttributes::default() };
    let grow = |size| SetattrArguments { object: Handle(&file), attributes: set(size), guard: None };
    let status = client.ask(&grow(2 << 20), |reply| reply.unwrap_err().status);
    assert_eq!(status, Status::FBig);
    assert!(client.ask(&grow(1 << 20), |reply| reply.is_ok()));
    assert!(server.child.try_wait().unwrap().is_none(), "it still serves");
    drop(client);
    drop(server);

    let output = std::process::Command::new("sh")
        .args([
            "-c",
            r#"ulimit -f 16; exec "$@""#,
            "sh",
            crate::common::STAGD,
            "--listen",
            "shm://unused-limit",
        ])
        .args(["--memory", "64M"])
        .args(arguments)
        .output()
        .unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(
        complaint.contains("limit on the size of files") && complaint.contains("ulimit -f"),
        "{complaint}"
    );
}

fn own_uid() -> u32 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").unwrap().uid()
}

/// Has `command` start its program in mounts of its own, after the shell script `before`.
fn in_own_mounts(command: &mut std::process::Command, before: &str) {
    let script = format!(r#"set -e; {before}; exec "$@""#);
    let mut inside = std::process::Command::new("unshare");
    inside
        .args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"])
        .arg(command.get_program());
    inside.args(command.get_args());
    inside.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    *command = inside;
}

/// Whether tests may mount. If not, says so.
fn can_mount() -> bool {
    let script = "mount -t tmpfs none /tmp";
    let command = ["--mount", "--propagation", "private", "sh", "-c", script];
    let output = std::process::Command::new("unshare").args(command).output();
    let can = output.is_ok_and(|output| output.status.success());
    if !can {
        stag_testing::skipped("only a root that may mount has mounts of its own");
    }
    can
}

/// What is mounted below an export is not exported with it, and an export that lies in another is easily taken for its own
/// file system: the server says both before anybody is surprised.
#[test]
fn what_lies_around_an_export_is_told_at_start() {
    if !can_mount() {
        return;
    }
    let (folder, data, state) = folders("around");
    let outer = folder.0.to_str().unwrap();
    fs::create_dir(Path::new(&data).join("mp")).unwrap();
    let exports = [format!("dir:{data},name=/data,root_squash=no"), format!("dir:{outer},name=/all")];
    let arguments = ["--export", &exports[0], "--export", &exports[1], "--state-dir", &state];
    let script = format!("mount -t tmpfs none {data}/mp");
    let server = Server::start_with(&arguments, |command| in_own_mounts(command, &script));
    let warnings = server.started["warnings"].to_string();
    for part in [
        &*format!("export dir:{data}: other file systems are mounted below it"),
        &format!("{data}/mp; give each"),
        &format!("exports /data (dir:{data}) and /all (dir:{outer}) overlap"),
    ] {
        assert!(warnings.contains(part), "{part:?} is not in {warnings}");
    }
    let note = format!("export dir:{outer} as /all: root of clients is user 65534 (root_squash)");
    let notes = server.started["notes"].to_string();
    assert!(notes.contains(&note) && !notes.contains("as /data"), "{notes}");
    let mut client = Client::connect(&server.url);
    let root = client.mount();
    let what = DirectoryName { directory: Handle(&root), name: Name(b"mp") };
    let status = client.ask(&LookupArguments { what }, |reply| reply.unwrap_err().status);
    assert_eq!(status, Status::XDev);
}

/// A file has one set of locks, so it is kept in one way.
#[test]
fn exports_of_the_same_files_take_locks_in_one_way() {
    let (folder, data, state) = folders("locks");
    let outer = folder.0.to_str().unwrap();
    let exports = [format!("dir:{data},name=/data,lock=below"), format!("dir:{outer},name=/all")];
    let served = ["--export", &exports[0], "--export", &exports[1], "--state-dir", &state];
    let arguments = ["--check", "--listen", "shm://nobody"].into_iter().chain(served);
    let refused = std::process::Command::new(env!("CARGO_BIN_EXE_stagd")).args(arguments).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let message = String::from_utf8(refused.stderr).unwrap();
    let part = format!("exports /data (dir:{data}) and /all (dir:{outer}) overlap and differ in lock=");
    assert!(message.contains(&part), "{message}");
}

/// Where another file system is mounted, and between two, each command says what is in its way.
#[test]
fn a_mount_point_below_an_export_is_named_for_what_it_is() {
    if !can_mount() {
        return;
    }
    let (_folder, data, state) = folders("mounted");
    fs::create_dir(Path::new(&data).join("mp")).unwrap();
    fs::write(Path::new(&data).join("f"), "f").unwrap();
    let export = format!("dir:{data},name=/data,root_squash=no");
    let arguments = ["--export", &*export, "--export", "mem:/m,root_squash=no", "--state-dir", &state];
    let script = format!("mount -t tmpfs none {data}/mp");
    let server = Server::start_with(&arguments, |command| in_own_mounts(command, &script));
    let [file, mounted, other] = ["data/f", "data/mp", "m/f"].map(|path| server.at(path));
    let below = format!("{mounted}/f");
    let is_mounted = "another file system is mounted there";
    for arguments in [&["stat", &mounted][..], &["cat", &below], &["rm", "-r", &mounted]] {
        let complaint = stag_fails(arguments);
        assert!(complaint.contains(is_mounted), "{arguments:?}: {complaint}");
    }
    let complaint = stag_fails(&["mv", &file, &other]);
    assert!(complaint.contains("another export") && complaint.contains("use cp and rm"), "{complaint}");
}

/// A client that may open a file for writing must be able to write it.
#[test]
fn access_knows_a_read_only_mount() {
    if !can_mount() {
        return;
    }
    let (_folder, data, state) = folders("read-only");
    let file = Path::new(&data).join("f");
    fs::write(&file, "f").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let script = format!("mount --bind {data} {data}; mount -o remount,ro,bind {data}");
    let export = format!("dir:{data},name=/data,root_squash=no");
    let arguments = ["--export", &*export, "--state-dir", &state];
    let server = Server::start_with(&arguments, |command| in_own_mounts(command, &script));
    let mut client = Client::connect(&server.url);
    let root = client.mount();
    let what = DirectoryName { directory: Handle(&root), name: Name(b"f") };
    let file = client.ask(&LookupArguments { what }, |reply| reply.unwrap().object.0.to_vec());
    for (object, expected) in [(&file, access::READ), (&root, access::READ | access::LOOKUP)] {
        let object = Handle(object);
        let arguments = AccessArguments { object, access: 0x3f };
        assert_eq!(client.ask(&arguments, |reply| reply.unwrap().access), expected);
    }
    assert_eq!(client.overwrite(&file), Some(Status::RoFs));
}

/// Who has the key can make handles of every file.
#[test]
fn a_key_that_everybody_may_read_is_refused() {
    let (_folder, data, state) = folders("key");
    fs::create_dir(&state).unwrap();
    let key = Path::new(&state).join("handle-key");
    fs::write(&key, [7; 16]).unwrap();
    let export = format!("dir:{data}");
    for mode in [0o666, 0o604, 0o602] {
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
        let output = std::process::Command::new(crate::common::STAGD)
            .args([
                "--export",
                &export,
                "--listen",
                "shm://unused-key",
                "--memory",
                "64M",
                "--state-dir",
                &state,
            ])
            .output()
            .unwrap();
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{complaint}");
        for part in [key.to_str().unwrap(), &format!("mode {mode:04o}"), "chmod 600"] {
            assert!(complaint.contains(part), "{part:?} is not in {complaint}");
        }
    }
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    drop(server(&data, &state));
}

/// An ext4 on a file, which can be frozen. Dropping it thaws it and takes it away.
struct Freezer(PathBuf);

impl Freezer {
    /// `None`: it cannot be mounted here.
    fn mount(folder: &Folder) -> Option<Freezer> {
        let (image, at) = (folder.join("image"), folder.join("frozen"));
        File::create(&image).unwrap().set_len(256 << 20).unwrap();
        fs::create_dir(&at).unwrap();
        let [image, place] = [&image, &at].map(|path| path.to_str().unwrap());
        let commands = [&["mkfs.ext4", "-q", "-F", image][..], &["mount", "-o", "loop", image, place]];
        commands.iter().all(|command| Freezer::run(command)).then_some(Freezer(at))
    }

    fn run(command: &[&str]) -> bool {
        let run = std::process::Command::new(command[0]).args(&command[1..]).stderr(Stdio::null()).status();
        run.is_ok_and(|status| status.success())
    }

    fn set_frozen(&self, is_frozen: bool) -> bool {
        Freezer::run(&["fsfreeze", if is_frozen { "-f" } else { "-u" }, self.0.to_str().unwrap()])
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.set_frozen(false);
        Freezer::run(&["umount", "-l", self.0.to_str().unwrap()]);
    }
}

/// A stop ends in time although a disk stands still, and what that has in hand is no leak.
#[test]
fn a_disk_that_stands_still_does_not_hold_up_the_end() {
    let folder = Folder::new("frozen");
    let Some(freezer) = Freezer::mount(&folder) else {
        return stag_testing::skipped("no ext4 can be mounted here on a file");
    };
    let state = folder.join("state").display().to_string();
    let export = format!("dir:{},name=/frozen,root_squash=no", freezer.0.display());
    let mut server = Server::start(&["--export", &export, "--state-dir", &state]);
    let mut writer = std::process::Command::new(crate::common::STAG)
        .args(["perf", "write", "-s", "4K", "-q", "4", "-t", "100s", &server.at("frozen")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Once it writes, its file grows and changes.
    let changed = || {
        let files = fs::read_dir(&freezer.0).unwrap().flatten();
        let files = files.filter_map(|entry| entry.metadata().ok()).filter(|found| found.is_file());
        files.filter(|found| found.len() > 0).map(|found| found.modified().unwrap()).max()
    };
    let first = loop {
        if let Some(first) = changed() {
            break first;
        }
        std::thread::yield_now();
    };
    while changed() == Some(first) {
        std::thread::yield_now();
    }
    if !freezer.set_frozen(true) {
        writer.kill().unwrap();
        writer.wait().unwrap();
        return stag_testing::skipped("no file system can be frozen here");
    }
    server.signal(libc::SIGTERM);
    // It is said while the disk stands still.
    let stopped = server.next_event("stopped");
    assert_eq!((&stopped["drained"], &stopped["leaked"]), (&false.into(), &0.into()), "{stopped}");
    assert!(freezer.set_frozen(false), "it was frozen until now");
    assert!(server.child.wait().unwrap().success());
    let _ = writer.kill();
    writer.wait().unwrap();
}
