//! The control socket, `stag admin`, `stag top`, and metrics of a running server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use serde_json::Value;

use crate::common::tcp_client::{Arguments, Client, word};
use crate::common::{Folder, STAG, Server, stag};

/// Output as text.
fn text(octets: &[u8]) -> &str {
    std::str::from_utf8(octets).unwrap()
}

/// A server with a control socket in a folder of this test's own.
struct Operated {
    server: Server,
    socket: String,
    folder: Folder,
}

impl Operated {
    fn start(arguments: &[&str]) -> Operated {
        Operated::start_at("", arguments)
    }

    /// The same, listening at `url`, if that is not empty.
    fn start_at(url: &str, arguments: &[&str]) -> Operated {
        let folder = Folder::new("admin");
        let socket = folder.join("control").display().to_string();
        let mut all = vec!["--export", "mem:/data,root_squash=no", "--control", &socket];
        all.extend_from_slice(arguments);
        // Other tests' servers run on the same cores.
        let set_up = |command: &mut std::process::Command| {
            command.env("STAG_RUNTIME_DIR", folder.join("run"));
        };
        let server = if url.is_empty() {
            Server::start_with(&all, set_up)
        } else {
            Server::start_at_with(url, &all, set_up)
        };
        Operated { server, socket, folder }
    }

    /// What `stag admin` prints.
    fn admin(&self, arguments: &[&str]) -> std::process::Output {
        stag(&[&["admin", "--socket", &self.socket], arguments].concat())
    }

    fn objects(&self, arguments: &[&str]) -> Vec<Value> {
        let output = self.admin(&[&["--json"], arguments].concat());
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Writes a file of 1 MiB and reads it.
    fn use_it(&self) {
        let file = self.folder.join("file");
        std::fs::write(&file, vec![7; 1 << 20]).unwrap();
        let put = stag(&["put", file.to_str().unwrap(), &self.server.at("data/file")]);
        assert!(put.status.success(), "{}", text(&put.stderr));
        let cat = stag(&["cat", &self.server.at("data/file")]);
        assert_eq!(cat.stdout.len(), 1 << 20);
    }
}

#[test]
fn stats_count_calls_by_procedure_and_memory_by_pool() {
    let operated = Operated::start(&[]);
    operated.use_it();
    let [stats] = &operated.objects(&["stats"])[..] else { panic!("one object") };
    let calls = |name: &str| {
        let procedures = stats["procedures"].as_array().unwrap();
        let found = procedures.iter().find(|it| it["name"] == name && it["program"] == 100_003);
        found.map_or(0, |it| it["calls"].as_u64().unwrap())
    };
    assert!(calls("WRITE") > 0 && calls("READ") > 0 && calls("CREATE") == 1, "{stats}");
    let pools = stats["pools"].as_array().unwrap();
    assert!(pools.iter().any(|pool| pool["pool"] == "payload" && pool["units_free"].as_u64() > Some(0)));
    assert!(stats["cores"][0]["calls"].as_u64() > Some(0), "{stats}");

    let [export] = &operated.objects(&["exports"])[..] else { panic!("one export") };
    let used = export["bytes_total"].as_u64().unwrap() - export["bytes_free"].as_u64().unwrap();
    assert!(used >= 1 << 20, "{export}");

    // For people, within 80 columns.
    let shown = operated.admin(&["stats"]);
    assert!(text(&shown.stdout).contains("NFSv3 WRITE"), "{}", text(&shown.stdout));
    assert!(text(&shown.stdout).lines().all(|line| line.chars().count() <= 80), "{}", text(&shown.stdout));
}

/// A limit holds, is lifted while the server serves, and the server tells what waited.
#[test]
fn the_limit_of_an_export_is_kept_until_it_is_lifted() {
    let limited = "mem:/limited,root_squash=no,size=16M";
    let with_rate = format!("{limited},rate=2M,client_rate=1M");
    let operated = Operated::start(&["--export", &with_rate]);
    let clock = stag_runtime::Clock::start_system();
    let file = operated.folder.join("file");
    std::fs::write(&file, vec![7; 4 << 20]).unwrap();
    let url = operated.server.at("limited/file");
    let state = || {
        let exports = operated.objects(&["exports"]);
        exports.into_iter().find(|export| export["path"] == "/limited").unwrap()
    };
    let begin = clock.now();
    let put = stag(&["put", file.to_str().unwrap(), &url]);
    assert!(put.status.success(), "{}", text(&put.stderr));
    let took = clock.now() - begin;
    // 4 MiB at 1 MiB a second, of which the first is the burst.
    assert!(took.as_millis() >= 2900, "{took:?}");
    let found = state();
    assert_eq!((&found["rate"], &found["client_rate"]), (&(2 << 20).into(), &(1 << 20).into()), "{found}");
    assert!(found["limited"]["calls"].as_u64() > Some(0), "{found}");
    assert!(found["limited"]["seconds"].as_f64() > Some(0.9), "{found}");

    // What waits when the limit is lifted goes on.
    let mut cat = std::process::Command::new(crate::common::STAG)
        .args(["cat", &url])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let changed = operated.admin(&["exports", "change", limited]);
    assert!(changed.status.success(), "{}", text(&changed.stderr));
    assert!(cat.wait().unwrap().success());
    let found = state();
    assert!(found["rate"].is_null() && found["limited"].is_null(), "{found}");
}

#[test]
fn stats_count_the_operations_of_version_4() {
    let operated = Operated::start_at(crate::common::ANY_IWARP_PORT, &[]);
    let mut client = Client::new(&operated.server);
    // PUTROOTFH outside of a session: NFS4ERR_OP_NOT_IN_SESSION.
    compound(&mut client, &[operation(24)]);
    let [stats] = &operated.objects(&["stats"])[..] else { panic!("one object") };
    let failures = [("NFS4ERR_OP_NOT_IN_SESSION", 1)];
    let found = serde_json::json!([
        { "name": "PUTROOTFH", "calls": 1, "errors": 1, "failures": failures, "waits": 0 }
    ]);
    assert_eq!(stats["operations"], found, "{stats}");
    assert!(text(&operated.admin(&["stats"]).stdout).contains("PUTROOTFH"));
}

#[test]
fn a_client_is_listed_and_can_be_evicted() {
    let operated = Operated::start(&[]);
    assert_eq!(operated.objects(&["clients"]), Vec::<Value>::new());
    // It reconnects, and so does not notice; but its connection ended.
    let mut ping = std::process::Command::new(crate::common::STAG)
        .args(["ping", "-c", "4000000000", &operated.server.url])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let client = loop {
        let found = operated.objects(&["clients"]);
        if let Some(client) = found.first().filter(|client| client["calls"].as_u64() > Some(0)) {
            break client.clone();
        }
    };
    let name = client["client"].as_str().unwrap();
    assert!(name.starts_with("uid "), "{client}");
    assert_eq!(client["connections"], 1);
    let [done] = &operated.objects(&["evict", name])[..] else { panic!("one object") };
    assert_eq!(done["done"], format!("1 connections of {name} ended"));
    ping.kill().unwrap();
    ping.wait().unwrap();

    let refused = operated.admin(&["evict", "192.0.2.1"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        text(&refused.stderr).contains("no client \"192.0.2.1\" is connected"),
        "{}",
        text(&refused.stderr)
    );
}

/// COMPOUND of version 4.2: these operations.
fn compound(client: &mut Client, operations: &[Arguments]) -> Vec<u8> {
    let begun = Arguments::default().opaque(b"").word(2).word(operations.len() as u32);
    let all = operations.iter().fold(begun, |all, operation| all.octets(operation.as_octets()));
    client.call_of((100_003, 4), 1, all)
}

/// The start of an operation.
fn operation(number: u32) -> Arguments {
    Arguments::default().word(number)
}

/// Limits of a channel of four slots.
fn channel(operation: Arguments) -> Arguments {
    operation.word(0).word(65_536).word(65_536).word(1024).word(8).word(4).word(0)
}

/// A client of version 4 is listed with its session, its open and its lock, and an operator ends it by its id.
#[test]
fn a_client_of_version_4_is_listed_with_what_it_holds_and_can_be_ended() {
    const BADSESSION: u32 = 10_052;
    let operated = Operated::start_at(crate::common::ANY_IWARP_PORT, &[]);
    let mut client = Client::new(&operated.server);
    let exchange = operation(42).octets(&[1; 8]).opaque(b"te\xffster").word(0).word(0).word(0);
    let exchanged = compound(&mut client, &[exchange]);
    // Status, tag, count, number, status; then the results.
    assert_eq!(word(&exchanged, 0), 0, "EXCHANGE_ID");
    let (id, sequence_id) = (exchanged[20..28].to_vec(), word(&exchanged, 28));
    let create = channel(channel(operation(43).octets(&id).word(sequence_id).word(0)));
    let created = compound(&mut client, &[create.word(0x4000_0000).word(1).word(0)]);
    assert_eq!(word(&created, 0), 0, "CREATE_SESSION");
    let session = created[20..36].to_vec();
    let sequence = |number| operation(53).octets(&session).word(number).word(0).word(0).word(0);
    assert_eq!(word(&compound(&mut client, &[sequence(1), operation(58).word(0)]), 0), 0, "RECLAIM_COMPLETE");
    let current = Arguments::default().word(1).octets(&[0; 12]);
    let open = operation(18).word(0).word(3).word(2).octets(&id).opaque(b"owner");
    let open = open.word(1).word(0).word(0).word(0).word(0).opaque(b"file");
    let lock = operation(12).word(2).word(0).octets(&[0; 8]).octets(&10_u64.to_be_bytes()).word(1).word(0);
    let lock = lock.octets(current.as_octets()).word(0).octets(&id).opaque(b"process");
    let data = operation(15).opaque(b"data");
    let held = compound(&mut client, &[sequence(2), operation(24), data, open, lock]);
    assert_eq!(word(&held, 0), 0, "OPEN and LOCK");

    let id = u64::from_be_bytes(id.try_into().unwrap());
    let name = format!("{id:#018x}");
    let listed = |operated: &Operated| {
        let all = operated.objects(&["clients"]);
        all.into_iter().find(|client| client["id"] == name.as_str())
    };
    let found = listed(&operated).unwrap();
    assert_eq!((&found["owner"], &found["version"]), (&"te\\xffster".into(), &"4.2".into()));
    assert_eq!((&found["lease"], &found["confirmed"]), (&"active".into(), &true.into()));
    assert_eq!((&found["sessions"], &found["slots"]), (&1.into(), &4.into()));
    assert_eq!((&found["opens"], &found["locks"]), (&1.into(), &1.into()));
    let locks = operated.objects(&["locks"]);
    let [lock, open] = &locks[..] else { panic!("{locks:?}") };
    assert_eq!((&lock["kind"], &lock["offset"], &lock["length"]), (&"lock".into(), &0.into(), &10.into()));
    assert_eq!((&open["kind"], &open["access"], &open["deny"]), (&"open".into(), &"rw".into(), &"w".into()));
    for one in [lock, open] {
        assert_eq!((&one["client"], &one["export"]), (&name.as_str().into(), &"/data".into()));
    }
    for what in ["clients", "locks"] {
        let shown = operated.admin(&[what]);
        assert!(text(&shown.stdout).contains(&name), "{}", text(&shown.stdout));
        assert!(
            text(&shown.stdout).lines().all(|line| line.chars().count() <= 80),
            "{}",
            text(&shown.stdout)
        );
    }

    let [done] = &operated.objects(&["evict", &name])[..] else { panic!("one object") };
    assert_eq!(done["done"], format!("client {name} ended, with all that it held"));
    assert_eq!(word(&compound(&mut client, &[sequence(3)]), 0), BADSESSION);
    assert!(listed(&operated).is_none() && operated.objects(&["locks"]).is_empty());
    assert_eq!(operated.admin(&["evict", &name]).status.code(), Some(1), "it is gone");
}

#[test]
fn the_log_can_be_changed_and_the_server_stopped() {
    let mut operated = Operated::start(&[]);
    assert!(text(&operated.admin(&["log", "debug"]).stdout).contains("logs debug from now on"));
    let refused = operated.admin(&["log", "stag_rpc=loud"]);
    assert!(!refused.status.success() && text(&refused.stderr).contains("loud"), "{}", text(&refused.stderr));
    assert!(operated.admin(&["stop"]).status.success());
    assert_eq!(operated.server.next_event("stopped")["drained"], true);
    assert!(operated.server.child.wait().unwrap().success());
    assert!(!std::path::Path::new(&operated.socket).exists(), "the socket is left behind");
}

/// Only the server's user and root may ask; what is no request, and silence, end nothing.
#[test]
fn the_socket_is_the_owners_and_takes_no_nonsense() {
    let operated = Operated::start(&[]);
    let mode = std::fs::metadata(&operated.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let say = |octets: &[u8]| {
        let mut stream = UnixStream::connect(&operated.socket).unwrap();
        // The server may end the connection before it has read all of a request that is too long.
        let _ = stream.write_all(octets);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut reply = String::new();
        // What the server leaves unread resets the connection.
        let _ = stream.read_to_string(&mut reply);
        reply
    };
    for nonsense in [&b"\n"[..], b"{}", b"{\"do\":\"dance\"}\n", &[b'x'; 100_000], b"\xff\xfe\n", b""] {
        let reply = say(nonsense);
        assert!(reply.is_empty() || reply.starts_with("{\"refused\":"), "{reply}");
    }
    assert!(say(b"{\"do\":\"stats\"}\n").starts_with("{\"stats\":"));
}

#[test]
fn a_second_server_does_not_take_the_socket() {
    let operated = Operated::start(&[]);
    let second = std::process::Command::new(crate::common::STAGD)
        .args([
            "--export",
            "mem:/data",
            "--memory",
            "64M",
            "--listen",
            &format!("shm://{}", crate::common::unique("second")),
        ])
        .args(["--control", &operated.socket])
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(text(&second.stderr).contains("--control"), "{}", text(&second.stderr));
    assert_eq!(operated.objects(&["stats"]).len(), 1, "the first one is still asked");
}

#[test]
fn metrics_are_served_over_http() {
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap()
    };
    let operated = Operated::start(&["--metrics", &port.to_string()]);
    operated.use_it();
    let missing = stag(&["cat", &operated.server.at("data/missing")]);
    assert!(!missing.status.success());
    let get = |request: &str| {
        let mut stream = TcpStream::connect(port).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    };
    let metrics = get("GET /metrics HTTP/1.0\r\n\r\n");
    for part in [
        "200 OK",
        "application/openmetrics-text",
        "stag_calls_total{program=\"100003\",version=\"3\",procedure=\"WRITE\"}",
        "stag_call_errors_total{program=\"100003\",version=\"3\",procedure=\"LOOKUP\",status=\"NFS3ERR_NOENT\"}",
        "stag_call_execute_seconds_count{program=\"100003\",version=\"3\",procedure=\"WRITE\"}",
        "stag_memory_part_bytes{part=",
        "stag_export_bytes{export=\"/data\"}",
        "stag_export_written_bytes_total{export=\"/data\"}",
        "# EOF",
    ] {
        assert!(metrics.contains(part), "{part} is not in {metrics}");
    }
    let export = &operated.objects(&["exports"])[0];
    assert_eq!(export["written_bytes"], 1 << 20, "{export}");
    assert!(export["read_bytes"].as_u64() >= Some(1 << 20), "{export}");
    // What the dashboard asks for is there: the names of its queries, without what a counter or a histogram adds.
    let dashboard = include_str!("../../package/grafana-dashboard.json");
    let dashboard: Value = serde_json::from_str(dashboard).unwrap();
    let queries: Vec<&str> = (dashboard["panels"].as_array().unwrap().iter())
        .flat_map(|panel| panel["targets"].as_array().unwrap())
        .map(|target| target["expr"].as_str().unwrap())
        .collect();
    assert!(queries.len() > 20, "{queries:?}");
    for query in queries {
        let words = query.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
        for name in words.filter(|word| word.starts_with("stag_")) {
            let family = name.trim_end_matches("_total").trim_end_matches("_bucket");
            assert!(metrics.contains(&format!("# TYPE {family} ")), "{name}, of the query {query}");
        }
    }
    assert!(get("GET / HTTP/1.0\r\n\r\n").contains("404"));
    assert!(get("POST /metrics HTTP/1.0\r\nContent-Length: 0\r\n\r\n").contains("405"));
}

/// On the usual terminal everything is on one screen. `script` gives the command a terminal.
#[test]
fn top_fits_a_terminal_of_80_columns_and_24_lines() {
    let operated = Operated::start(&[]);
    let mut ping = std::process::Command::new(STAG)
        .args(["ping", "-c", "4000000000", &operated.server.url])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while operated.objects(&["clients"]).is_empty() {}
    let line = format!("stty rows 24 cols 80; {STAG} top --socket {} -i 500ms -n 2", operated.socket);
    let top = std::process::Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut top) = top else {
        ping.kill().unwrap();
        ping.wait().unwrap();
        return stag_testing::skipped("there is no script (util-linux)");
    };
    // A client that has gone has no line.
    while top.try_wait().unwrap().is_none() {
        stag(&["ls", "-l", &operated.server.at("data")]);
    }
    ping.kill().unwrap();
    ping.wait().unwrap();
    let shown = top.wait_with_output().unwrap();
    assert!(shown.status.success(), "{}", text(&shown.stdout));
    let shown = text(&shown.stdout).replace('\r', "");
    let screens: Vec<&str> = shown.split("\x1b[H\x1b[2J").skip(1).collect();
    assert_eq!(screens.len(), 2, "{shown:?}");
    for screen in &screens {
        assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
        // The cursor stands below.
        assert!(screen.lines().count() < 24, "{screen}");
        for part in ["stagd ", "procedure ", "NFSv3 ", "client ", "uid ", "core "] {
            assert!(screen.contains(part), "{part:?} is not in {screen}");
        }
    }
}

#[test]
fn top_shows_what_was_done_between_two_looks() {
    let operated = Operated::start(&[]);
    let mut ping = std::process::Command::new(crate::common::STAG)
        .args(["ping", "-c", "4000000000", &operated.server.url])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while operated.objects(&["clients"]).is_empty() {}
    let top = stag(&["top", "--json", "--socket", &operated.socket, "-i", "200ms", "-n", "2"]);
    ping.kill().unwrap();
    ping.wait().unwrap();
    assert!(top.status.success(), "{}", text(&top.stderr));
    let windows: Vec<Value> =
        text(&top.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(windows.len(), 2);
    assert!(windows.iter().any(|window| window["calls_per_second"].as_f64() > Some(0.0)), "{windows:?}");
    let is_null = |line: &Value| line["name"] == "NFSv3 NULL";
    let has_null = |window: &Value| window["procedures"].as_array().unwrap().iter().any(is_null);
    assert!(windows.iter().any(has_null), "{windows:?}");
}

/// `Type=notify` and `WatchdogSec` of systemd's units.
#[test]
fn a_supervisor_hears_that_the_server_is_ready_and_works() {
    let folder = Folder::new("notify");
    let path = folder.join("socket");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(stag_testing::patience(std::time::Duration::from_secs(30)))).unwrap();
    let server = Server::start_with(&["--export", "mem:/data"], |command| {
        command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "200000");
    });
    let mut heard = Vec::new();
    while heard.len() < 4 {
        let mut octets = [0; 256];
        let len = socket.recv(&mut octets).expect("a word");
        heard.push(text(&octets[..len]).trim().to_owned());
    }
    let said = |word: &str| heard.iter().filter(|told| told.lines().any(|line| line == word)).count();
    assert!(said("READY=1") == 1 && said("STATUS=ready") == 1, "{heard:?}");
    assert!(said("WATCHDOG=1") >= 2, "{heard:?}");
    assert!(said("STATUS=ready; connections: 0 of RDMA, 0 of TCP") >= 2, "{heard:?}");
    assert_eq!(server.stop().0["drained"], true);
}

/// Rights change for clients that are there already; what is fixed is named, and changes nothing.
#[test]
fn rules_of_an_export_change_while_it_is_served() {
    let operated = Operated::start(&[]);
    operated.use_it();
    let mkdir = |name: &str| stag(&["mkdir", &operated.server.at(name)]);
    assert!(mkdir("data/a").status.success());
    let [done] = &operated.objects(&["exports", "change", "mem:/data,ro,root_squash=no"])[..] else {
        panic!()
    };
    assert!(done["done"].as_str().unwrap().contains("export /data"), "{done}");
    let refused = mkdir("data/b");
    assert!(
        !refused.status.success() && text(&refused.stderr).contains("read-only"),
        "{}",
        text(&refused.stderr)
    );
    assert_eq!(operated.objects(&["exports"])[0]["spec"], "mem:/data,ro,root_squash=no");
    let uid = rustix::process::geteuid().as_raw();
    let other = format!("mem:/data,root_squash=no,uid={}", uid + 1);
    assert!(operated.admin(&["exports", "change", &other]).status.success());
    assert!(!stag(&["ls", &operated.server.at("data")]).status.success());
    let own = format!("mem:/data,root_squash=no,uid={uid}:rw,client=*:ro");
    assert!(operated.admin(&["exports", "change", &own]).status.success());
    assert!(mkdir("data/b").status.success());

    for (spec, part) in [
        ("mem:/data,size=1M", "size cannot change while it is served"),
        ("mem:/none", "no export \"/none\" is served"),
        ("mem:/data,wrong", "option \"wrong\""),
    ] {
        let refused = operated.admin(&["exports", "change", spec]);
        assert_eq!(refused.status.code(), Some(1), "{spec}");
        assert!(text(&refused.stderr).contains(part), "{}", text(&refused.stderr));
    }
}

/// Files in memory are only lost if the operator says so.
#[test]
fn an_export_is_removed_while_others_are_served() {
    let operated = Operated::start(&["--export", "mem:/more,root_squash=no", "--export", "mem:/empty"]);
    operated.use_it();
    let refused = operated.admin(&["exports", "remove", "/data"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("--force"), "{}", text(&refused.stderr));
    assert!(operated.admin(&["exports", "remove", "/empty"]).status.success());
    assert!(operated.admin(&["exports", "remove", "/data", "--force"]).status.success());
    let paths: Vec<Value> = operated.objects(&["exports"]).iter().map(|it| it["path"].clone()).collect();
    assert_eq!(paths, ["/more"]);
    assert!(!stag(&["ls", &operated.server.at("data")]).status.success());
    assert!(stag(&["mkdir", &operated.server.at("more/a")]).status.success());
    let refused = operated.admin(&["exports", "remove", "/data", "--force"]);
    assert!(text(&refused.stderr).contains("no export \"/data\""), "{}", text(&refused.stderr));
}

/// A directory is found as soon as it is added, and can be taken away and added again. What has no room is refused.
#[test]
fn a_directory_is_added_while_others_are_served() {
    let operated = Operated::start(&[]);
    operated.use_it();
    let folder = Folder::new("added");
    std::fs::write(folder.join("file"), "here").unwrap();
    let spec = format!("dir:{},name=/new,root_squash=no", folder.0.display());
    let [done] = &operated.objects(&["exports", "add", &spec])[..] else { panic!("one object") };
    let done = done["done"].as_str().unwrap();
    assert!(done.contains("export /new is served") && done.contains("mount this one again"), "{done}");
    let cat = |path: &str| stag(&["cat", &operated.server.at(path)]).stdout;
    assert_eq!(cat("new/file"), b"here");
    assert_eq!(cat("data/file").len(), 1 << 20, "the others go on");
    let paths: Vec<Value> = operated.objects(&["exports"]).iter().map(|it| it["path"].clone()).collect();
    assert_eq!(paths, ["/data", "/new"]);

    for (spec, part) in [
        (spec.as_str(), "it is served already"),
        ("mem:/more", "memory is divided when the server starts"),
        ("dir:/no/such/directory", "No such file or directory"),
        ("dir:relative", "relative"),
        (&format!("{},lock=below", spec.replace("/new", "/again")), "differ in lock="),
    ] {
        let refused = operated.admin(&["exports", "add", spec]);
        assert_eq!(refused.status.code(), Some(1), "{spec}");
        assert!(text(&refused.stderr).contains(part), "{}", text(&refused.stderr));
    }

    let is_open = || {
        let links = std::fs::read_dir(format!("/proc/{}/fd", operated.server.child.id())).unwrap();
        let mut open = links.filter_map(|link| std::fs::read_link(link.ok()?.path()).ok());
        open.any(|at| at.starts_with(&folder.0))
    };
    for _ in 1..8 {
        assert!(is_open());
        assert!(operated.admin(&["exports", "remove", "/new"]).status.success());
        // So its file system can be unmounted.
        while is_open() {
            assert!(operated.admin(&["exports"]).status.success(), "a helper closes it meanwhile");
        }
        assert!(operated.admin(&["exports", "add", &spec]).status.success());
    }
    assert_eq!(cat("new/file"), b"here");
    let refused = operated.admin(&["exports", "add", "dir:/tmp"]);
    assert!(text(&refused.stderr).contains("no more have room; restart stagd"), "{}", text(&refused.stderr));
}

/// A folder with a configuration file, which a test rewrites.
struct Configured {
    folder: Folder,
    url: String,
}

impl Configured {
    fn new(text: &str) -> Configured {
        let configured = Configured {
            folder: Folder::new("reload"),
            url: format!("shm://{}", crate::common::unique("reload")),
        };
        configured.write(text);
        configured
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// The server's own flags are those of every test; all else is in the file.
    fn write(&self, text: &str) {
        std::fs::write(self.folder.join("stagd.toml"), text).unwrap();
    }

    fn start(&self) -> Server {
        Server::start_at(
            &self.url,
            &["--config", &self.path("stagd.toml"), "--control", &self.path("control")],
        )
    }

    fn reload(&self) -> std::process::Output {
        stag(&["admin", "--json", "--socket", &self.path("control"), "reload"])
    }
}

/// What can change live changes; the rest is named; a file that is wrong changes nothing.
#[test]
fn a_configuration_file_is_read_again() {
    let configured = Configured::new(
        "export = [\"mem:/data,root_squash=no\", \"mem:/old\", \"mem:/full,root_squash=no\"]\ncredits = 32\n",
    );
    let server = configured.start();
    assert!(stag(&["mkdir", &server.at("full/a")]).status.success());
    let added = Folder::new("reload-added");
    configured.write(&format!(
        "export = [\"mem:/data,ro,root_squash=no\", \"mem:/new\", \"dir:{},name=/added\"]\ncredits = 33\nslow = \"1s\"\n\
         weight = [\"10.0.0.7=200\"]\n",
        added.0.display()
    ));
    let reply = configured.reload();
    assert!(reply.status.success(), "{}", text(&reply.stderr));
    let reloaded: Value = serde_json::from_slice(&reply.stdout).unwrap();
    let names =
        |key: &str| reloaded[key].as_array().unwrap().iter().map(Value::to_string).collect::<Vec<_>>();
    let (changed, restart) = (names("changed"), names("restart"));
    for part in
        ["export /data", "export /old is no longer served", "export /added is served", "slow", "weight"]
    {
        assert!(changed.iter().any(|change| change.contains(part)), "{part}: {changed:?}");
    }
    for part in
        ["credits", "export /new: memory is divided", "/full: 1 files and folders in memory would be lost"]
    {
        assert!(restart.iter().any(|change| change.contains(part)), "{part}: {restart:?}");
    }
    assert_eq!((changed.len(), restart.len()), (5, 3), "{reloaded}");
    assert!(!stag(&["mkdir", &server.at("data/a")]).status.success());

    configured.write("export = [\"mem:/data,nonsense\"]\n");
    let reply = configured.reload();
    assert_eq!(reply.status.code(), Some(1));
    assert!(text(&reply.stderr).contains("nonsense"), "{}", text(&reply.stderr));
    assert!(stag(&["ls", &server.at("data")]).status.success());

    let operated = Operated::start(&[]);
    let refused = operated.admin(&["reload"]);
    assert!(text(&refused.stderr).contains("without --config"), "{}", text(&refused.stderr));
}

/// Each core has the change before the operator has an answer.
#[test]
fn all_cores_learn_of_a_change() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores < 2 {
        return stag_testing::skipped("it takes two cores");
    }
    let operated =
        Operated::start(&["--cores", "0,1", "--export", "mem:/more,root_squash=no", "--poll", "adaptive"]);
    for path in ["data", "more"] {
        assert!(stag(&["mkdir", &operated.server.at(&format!("{path}/a"))]).status.success());
        let spec = format!("mem:/{path},ro,root_squash=no");
        assert!(operated.admin(&["exports", "change", &spec]).status.success());
        assert!(!stag(&["mkdir", &operated.server.at(&format!("{path}/b"))]).status.success());
        assert!(operated.admin(&["exports", "remove", &format!("/{path}"), "--force"]).status.success());
        assert!(!stag(&["ls", &operated.server.at(path)]).status.success());
    }
    let folder = Folder::new("added-everywhere");
    let spec = format!("dir:{},name=/new,root_squash=no", folder.0.display());
    assert!(operated.admin(&["exports", "add", &spec]).status.success());
    // Each connection is at the core that has the fewest.
    for name in ["a", "b", "c", "d"] {
        assert!(stag(&["mkdir", &operated.server.at(&format!("new/{name}"))]).status.success());
    }
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 4);
}

/// Connected clients go on, new ones are refused, and the server ends after the last one.
#[test]
fn a_server_is_drained() {
    let mut operated = Operated::start(&["--listen", "tcp://127.0.0.1:0"]);
    let tcp = operated.server.next_event("ready")["url"].as_str().unwrap().replace("tcp://", "");
    let mut stays = TcpStream::connect(&tcp).unwrap();
    let null: Vec<u8> = [0x8000_0028_u32, 7, 0, 2, 100_003, 3, 0, 0, 0, 0, 0]
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .collect();
    let mut ask = || {
        stays.write_all(&null).unwrap();
        stays.read_exact(&mut [0; 28])
    };
    ask().unwrap();
    let drain = std::process::Command::new(crate::common::STAG)
        .args(["admin", "--json", "--socket", &operated.socket, "drain", "--limit", "10m"])
        .stdout(std::process::Stdio::piped())
        .spawn();
    let mut drain = drain.unwrap();
    let mut told = BufReader::new(drain.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&told.next()?.unwrap()).ok();
    assert_eq!(next().unwrap()["connections"], 1);
    assert!(TcpStream::connect(&tcp).is_err());
    let refused = stag(&["ping", "--no-reconnect", "-c", "1", &operated.server.url]);
    assert!(!refused.status.success());
    assert!(text(&refused.stderr).contains("drained"), "{}", text(&refused.stderr));
    ask().unwrap();
    drop(stays);
    assert_eq!(operated.server.next_event("stopped")["drained"], true);
    assert!(operated.server.child.wait().unwrap().success());
    assert_eq!(std::iter::from_fn(next).last().unwrap()["done"], "the server has ended");
    assert!(drain.wait().unwrap().success());
}

#[test]
fn a_drain_ends_when_its_time_is_up() {
    let mut operated = Operated::start(&["--listen", "tcp://127.0.0.1:0"]);
    let tcp = operated.server.next_event("ready")["url"].as_str().unwrap().replace("tcp://", "");
    let _stays = TcpStream::connect(&tcp).unwrap();
    while operated.objects(&["clients"]).is_empty() {}
    assert!(operated.admin(&["drain", "--limit", "1s"]).status.success());
    operated.server.next_event("stopped");
    assert!(operated.server.child.wait().unwrap().success());
}
