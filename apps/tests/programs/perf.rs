//! `stag perf`: each operation measured for a moment, and the output. Never how fast it was.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::common::{Folder, Server, stag, stag_fails, stag_json, stag_ok};

/// A run as short as it can be. Tests run beside each other, so none may keep a core for itself.
const SHORT: [&str; 6] = ["--repeat", "1", "--warm-up", "10ms", "--poll", "adaptive"];
/// `arguments` of a short run: of a few Calls, however long a busy machine takes for them, if they do not say how many.
fn short<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    let count: &[&str] = if arguments.contains(&"-n") { &[] } else { &["-n", "500"] };
    [arguments, count, &SHORT].concat()
}

/// Measurements spin on both cores while they take the limits, so they take turns.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn measure(arguments: &[&str]) -> Value {
    let mut objects = stag_json(&short(&[&["perf"], arguments].concat()));
    assert_eq!(objects.len(), 1, "{arguments:?}");
    objects.remove(0)
}

/// What holds of each run, however fast.
fn check(found: &Value, operation: &str) {
    assert_eq!(found["operation"], operation);
    assert!(found["calls"].as_u64().unwrap() > 0, "{found}");
    assert_eq!(found["leaked"], 0, "{found}");
    assert!(found["calls_per_second"]["median"].as_f64().unwrap() > 0.0, "{found}");
    let latency = |name: &&str| found["latency_ns"][name]["median"].as_f64();
    let order: Vec<f64> = ["p50", "p99", "p999", "max"].iter().filter_map(latency).collect();
    assert!(order.is_sorted() && order[0] > 0.0, "{operation}: {order:?}");
    // No percentile with fewer than ten Calls beyond it; there is one round, and often one client.
    for (name, least) in [("p50", 20), ("p99", 1000), ("p999", 10_000)] {
        let is_measured = found["calls"].as_u64().unwrap() >= least;
        assert_eq!(latency(&name).is_some(), is_measured, "{name}: {found}");
    }
    assert!(found["credits_granted"].as_u64().unwrap() > 0, "{found}");
    assert!(found["inline_threshold_call"].as_u64().unwrap() >= 1024, "{found}");
    assert!(!found["pages"].as_str().unwrap().is_empty(), "{found}");
    assert!(found["cores"].as_array().unwrap().len() >= 2, "{found}");
}

#[test]
fn each_operation_is_measured() {
    let _turn = alone();
    for operation in ["null", "getattr"] {
        let found = measure(&[operation]);
        check(&found, operation);
        assert_eq!((&found["size"], found["bytes_per_second"]["median"].as_f64()), (&Value::Null, Some(0.0)));
    }
    // More Calls than there are names, where a name serves once: CREATE and REMOVE begin again.
    for (operation, count) in [
        ("setattr", "100"),
        ("lookup", "100"),
        ("create", "1500"),
        ("remove", "1500"),
        ("rename", "100"),
        ("readdirplus", "30"),
    ] {
        let found = measure(&[operation, "-q", "8", "-n", count]);
        check(&found, operation);
        assert_eq!(found["size"], Value::Null, "{found}");
        let entries = found["entries_per_call"].as_f64();
        assert_eq!(entries.is_some_and(|entries| entries > 10.0), operation == "readdirplus", "{found}");
    }
    for operation in ["read", "write", "echo"] {
        let found = measure(&[operation, "-s", "4K", "-q", "4"]);
        check(&found, operation);
        assert_eq!((&found["size"], &found["depth"]), (&4096.into(), &4.into()));
        let [rate, bytes] =
            ["calls_per_second", "bytes_per_second"].map(|name| found[name]["median"].as_f64().unwrap());
        assert!((bytes / rate / 4096.0 - 1.0).abs() < 1e-6, "{found}");
    }
    check(&measure(&["read", "-s", "1M", "-q", "2", "--touch"]), "read");
    check(&measure(&["echo", "-s", "1020K"]), "echo");
    check(&measure(&["null", "-n", "100", "--connections", "2"]), "null");
}

/// Who provides the memory of a Reply decides how many round trips it takes, and nothing else.
#[test]
fn replies_come_by_the_mode_that_is_asked_for() {
    let _turn = alone();
    for (mode, size, pulled, chunks) in [
        ("chunk", "64K", 0.0, 1.0),
        ("auto", "64K", 0.0, 1.0),
        ("responder", "64K", 1.0, 0.0),
        ("responder", "1K", 0.0, 0.0),
        ("chunk", "1K", 0.0, 0.0),
    ] {
        for fabric in ["shm", "iwarp"] {
            let found = measure(&["reply", "-s", size, "-q", "4", "--reply-mode", mode, "--fabric", fabric]);
            check(&found, "reply");
            let figure = |name: &str| found[name].as_f64().unwrap();
            // The Calls of one round are counted, all of which have such a Reply.
            assert!((figure("replies_pulled_per_call") - pulled).abs() < 1e-6, "{mode} {size}: {found}");
            assert!((figure("reply_chunks_per_call") - chunks).abs() < 1e-6, "{mode} {size}: {found}");
            assert!((figure("round_trips") - 1.0 - pulled).abs() < 1e-6, "{mode} {size}: {found}");
        }
    }
    assert_eq!(measure(&["null"])["round_trips"], Value::Null);
    let text = stag_ok(&short(&["perf", "reply", "-s", "64K", "--reply-mode", "responder"]));
    assert!(text.contains("2.00 round trips a Call: 100 % of the Replies read"), "{text}");
    for (arguments, part) in [
        (&["read", "--reply-mode", "chunk"][..], "--reply-mode: it goes with reply"),
        (&["reply", "--placement", "send"], "reply: it measures version 1"),
        (&["reply", "shm://absent"], "reply is a program of stag perf's own server"),
    ] {
        let output = stag(&[&["perf"], arguments].concat());
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{complaint}");
        assert!(complaint.contains(part), "{complaint}");
    }
}

#[test]
fn iwarp_is_measured_and_compared_with_tcp() {
    let _turn = alone();
    for (arguments, operation) in [
        (&["null", "--fabric", "iwarp"][..], "null"),
        (&["read", "-s", "1M", "-q", "2", "--fabric", "iwarp", "--crc", "off"], "read"),
        (&["write", "-s", "64K", "-q", "4", "--fabric", "iwarp", "--crc", "on"], "write"),
    ] {
        let found = measure(arguments);
        check(&found, operation);
        let congestion = found["congestion_control"].as_str().unwrap();
        assert!(!congestion.is_empty(), "{found}");
        let bbr = found["notes"].to_string().contains("congestion control is bbr");
        assert_eq!(bbr, congestion == "bbr", "{found}");
        assert_eq!(found["crc"], !arguments.contains(&"off"), "{found}");
        if found["cores"][0] != found["cores"][1] {
            for limit in ["round_trip_ns", "stream", "stream_crc"] {
                assert!(found["tcp_limits"][limit]["median"].as_f64().unwrap() > 0.0, "{found}");
            }
            let is_small = found["size"].as_u64().is_none_or(|size| size <= 64 << 10);
            for (ratio, limit) in [("tcp_limits", "calls_per_second"), ("tcp_ratios", "rate_to_tcp")] {
                assert_eq!(found[ratio][limit]["median"].as_f64().is_some(), is_small, "{found}");
            }
            let ratio = if operation == "null" { "latency_to_tcp" } else { "bytes_to_stream" };
            assert!(found["tcp_ratios"][ratio]["median"].as_f64().unwrap() > 0.0, "{found}");
        }
        assert_eq!((&found["limits"], &found["bare_limits"]), (&Value::Null, &Value::Null));
    }
    let server = Server::with_data_over_iwarp();
    check(&measure(&["null", &server.url]), "null");
    check(&measure(&["read", &server.at("data"), "-s", "8K"]), "read");
    let (stopped, status) = server.stop();
    assert!(status.success() && stopped["leaked"] == 0, "{stopped}");
}

/// A run without Calls has measured nothing, and so met nothing.
#[test]
fn a_run_without_calls_meets_no_requirement() {
    let _turn = alone();
    let arguments = ["--json", "perf", "null", "-t", "1ns", "--warm-up", "0s", "--repeat", "2"];
    let more = ["--poll", "adaptive", "--require", "p99<1000s", "--require", "rate<1000M"];
    let output = stag(&[&arguments[..], &more].concat());
    let complaint = String::from_utf8(output.stderr).unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{complaint}"));
    assert_eq!((&found["calls"], &found["rounds_empty"]), (&0.into(), &2.into()), "{found}");
    assert_eq!((&found["latency_ns"], &found["ratios"]), (&Value::Null, &Value::Null), "{found}");
    for requirement in found["requirements"].as_array().unwrap() {
        assert_eq!((&requirement["found"], &requirement["met"]), (&Value::Null, &false.into()), "{found}");
    }
    assert_eq!((output.status.code(), complaint.lines().count()), (Some(1), 1), "{complaint}");
    let part =
        "--require p99<1000s: not measured: a round of 1 ns is too short: 0 Calls; give more, as in -t 1s";
    assert!(complaint.contains(part), "{complaint}");

    // Nor does it end well without requirements; a table has dashes.
    let output = stag(&[&arguments[1..], &["--poll", "adaptive"]].concat());
    let (text, complaint) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(complaint.contains("a round of 1 ns is too short: 0 Calls"), "{complaint}");
    let row = text.lines().find(|line| line.starts_with("null ")).unwrap();
    assert!(row.split_whitespace().filter(|word| *word == "-").count() >= 5, "{row}");
    assert!(!row.contains("ns"), "{row}");
}

/// Calls start by the clock, and their latency counts from then.
#[test]
fn open_loop_begins_calls_by_the_clock() {
    let _turn = alone();
    for (arrivals, name) in [("constant", "constant"), ("poisson", "poisson")] {
        let found = measure(&["null", "--rate", "2k", "--arrivals", arrivals, "-t", "300ms"]);
        check(&found, "null");
        let open = &found["open_loop"];
        assert_eq!((open["rate"].as_f64(), &open["spacing"]), (Some(2000.0), &name.into()), "{found}");
        assert!(open["late_starts"].is_u64() && open["never_started"].is_u64(), "{found}");
        assert!(open["start_delay_max_ns"].is_f64(), "{found}");
        assert_eq!(found["depth"], 64, "{found}");
    }
    assert_eq!(measure(&["null"])["open_loop"], Value::Null);
    // More than anything can do: what was due and never started is counted, and a queue is said.
    let text = stag_ok(&[
        "perf",
        "null",
        "--rate",
        "1G",
        "-q",
        "4",
        "-t",
        "50ms",
        "--repeat",
        "1",
        "--warm-up",
        "1ms",
        "--poll",
        "adaptive",
    ]);
    assert!(text.contains("open loop, up to 1000.00 M/s (poisson)"), "{text}");
    assert!(text.contains("asked for") && text.contains("started late"), "{text}");
    let delayed = measure(&["null", "--rate", "1G", "-q", "4", "-t", "50ms", "-n", "1000000000"]);
    assert!(delayed["open_loop"]["never_started"].as_u64().unwrap() > 1_000_000, "{delayed}");
}

/// What a run tells besides its figures: enough to repeat it, and to judge it.
#[test]
fn a_figure_says_where_and_when_it_was_taken() {
    let _turn = alone();
    let found = measure(&["null"]);
    let environment = &found["environment"];
    for name in ["version", "commit", "profile", "host", "cpu", "kernel", "time"] {
        assert!(environment[name].as_str().is_some_and(|text| !text.is_empty()), "{name}: {environment}");
    }
    let argv: Vec<_> =
        environment["argv"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    assert!(argv[0].ends_with("stag") && argv.contains(&"perf"), "{argv:?}");
    for when in ["before", "during"] {
        assert!(environment[when]["steal"].is_f64(), "{environment}");
    }
    assert_eq!((&found["schema"], &found["warm_up_s"]), (&1.into(), &0.01.into()), "{found}");
    let cpu = &found["cpu"];
    for end in ["client", "server"] {
        let all = cpu[format!("{end}_ns_per_call")]["median"].as_f64().unwrap();
        let busy = cpu[format!("{end}_busy_ns_per_call")]["median"].as_f64().unwrap();
        assert!(all > 0.0 && busy >= 0.0, "{cpu}");
    }
    assert_eq!(found["rounds"].as_array().unwrap().len(), 1, "{found}");
    let distribution = found["latency_distribution"].as_array().unwrap();
    let points: Vec<f64> = distribution.iter().map(|point| point[1].as_f64().unwrap()).collect();
    assert!(points.len() > 1 && points.is_sorted(), "{distribution:?}");
    // Another server tells at its control socket.
    let folder = Folder::new("perf");
    let socket = folder.join("control.sock");
    let socket = socket.to_str().unwrap();
    let server = Server::start(&["--export", "mem:/data", "--control", socket]);
    assert_eq!(measure(&["null", &server.url])["cpu"]["server_ns_per_call"], Value::Null);
    let told = measure(&["null", &server.url, "--socket", socket]);
    assert!(told["cpu"]["server_busy_ns_per_call"]["median"].as_f64().unwrap() > 0.0, "{told}");
}

#[test]
fn intervals_histograms_and_rows_are_written() {
    let _turn = alone();
    let folder = Folder::new("perf");
    let (histogram, csv) = (folder.join("all.hlog"), folder.join("rounds.csv"));
    let found = measure(&[
        "read",
        "-t",
        "250ms",
        "-n",
        "1000000000",
        "--interval",
        "50ms",
        "--histogram",
        histogram.to_str().unwrap(),
        "--csv",
        csv.to_str().unwrap(),
    ]);
    let intervals = found["intervals"].as_array().unwrap();
    assert!((4..=6).contains(&intervals.len()), "{intervals:?}");
    let log = std::fs::read_to_string(&histogram).unwrap();
    let lines: Vec<_> = log.lines().filter(|line| line.starts_with("Tag=read-4096-q1-c1,")).collect();
    assert_eq!(lines.len(), intervals.len(), "{log}");
    let table = std::fs::read_to_string(&csv).unwrap();
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!((rows.len(), rows[0].len()), (2, rows[1].len()), "{table}");
    assert_eq!(
        (&rows[0][..3], &rows[1][..3]),
        (&["operation", "fabric", "size"][..], &["read", "shm", "4096"][..])
    );
    let text = stag_ok(&[
        "perf",
        "null",
        "-t",
        "100ms",
        "--interval",
        "50ms",
        "--repeat",
        "2",
        "--warm-up",
        "1ms",
        "--poll",
        "adaptive",
    ]);
    assert!(text.lines().filter(|line| line.starts_with("round 2/2")).count() >= 1, "{text}");
    let absent = folder.join("absent/file");
    let output = stag(&short(&["perf", "null", "--csv", absent.to_str().unwrap()]));
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(complaint.contains("--csv") && complaint.contains("No such file"), "{complaint}");
}

#[test]
fn a_mix_and_its_data_are_as_asked_for() {
    let _turn = alone();
    let found = measure(&[
        "mix",
        "--mix",
        "read=70,write=20,getattr=10",
        "--working-set",
        "1M",
        "--files",
        "4",
        "--offsets",
        "random",
        "-q",
        "8",
        "-n",
        "3000",
    ]);
    check(&found, "mix");
    assert_eq!((&found["working_set"], &found["files"]), (&(1 << 20).into(), &4.into()), "{found}");
    assert_eq!(found["offsets"], "random");
    let shares = found["mix"].as_array().unwrap();
    let calls: Vec<u64> = shares.iter().map(|share| share["calls"].as_u64().unwrap()).collect();
    assert_eq!(calls.iter().sum::<u64>(), found["calls"].as_u64().unwrap(), "{found}");
    assert!(calls.is_sorted_by(|a, b| a > b), "{calls:?}");
    assert!(shares[0]["latency_ns"]["p50"].as_f64().unwrap() > 0.0, "{found}");
    // To a server that runs, which has its files as it had before.
    let server = Server::with_data();
    let data = server.at("data");
    check(
        &measure(&["mix", &data, "--mix", "read=1,write=1", "--files", "3", "--working-set", "100K"]),
        "mix",
    );
    check(&measure(&["read", &data, "--working-set", "4M", "--offsets", "random"]), "read");
    assert_eq!(stag_ok(&["ls", &data]), "");
    let (stopped, status) = server.stop();
    assert!(status.success() && stopped["leaked"] == 0, "{stopped}");
}

#[test]
fn a_curve_has_a_row_for_each_point() {
    let _turn = alone();
    let found = stag_json(&short(&["perf", "read", "--curve", "-q", "6"]));
    let depths: Vec<_> = found.iter().map(|found| found["depth"].as_u64().unwrap()).collect();
    assert_eq!(depths, [1, 2, 4, 6]);
    assert!(found.iter().all(|found| found["working_set"] == 6 * 4096), "{found:?}");
    let text = stag_ok(&short(&["perf", "null", "--curve", "--rate", "10k", "-t", "200ms"]));
    assert!(text.lines().any(|line| line.starts_with("asked ")), "{text}");
    let rows =
        text.lines().filter(|line| line.split_whitespace().nth(1).is_some_and(|word| word.ends_with("/s")));
    assert_eq!(rows.filter(|row| row.contains('%')).count(), 8, "{text}");
}

/// A report fits the usual terminal, whatever it tells.
#[test]
fn a_report_fits_80_columns() {
    let _turn = alone();
    for arguments in [
        &["mix", "--mix", "read=70,write=30", "-q", "32", "-s", "512K"][..],
        &["null", "--rate", "10k"],
        &["null", "-q", "4", "--curve"],
        &["read", "-s", "1M", "-q", "2", "--fabric", "iwarp"],
        &["null", "--fabric", "iwarp", "-q", "32"],
    ] {
        let text = stag_ok(&short(&[&["perf"], arguments].concat()));
        // Warnings are of one line where there is no terminal.
        for line in text.lines().filter(|line| !line.starts_with("warning: ")) {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}

#[test]
fn more_depth_than_credits_is_said() {
    let _turn = alone();
    let server = Server::start(&["--export", "mem:/data", "--credits", "8"]);
    let found = measure(&["null", &server.url, "-q", "32"]);
    assert!(found["notes"].to_string().contains("depth 32: the server lets 8 Calls"), "{found}");
    let found = measure(&["null", &server.url, "-q", "4"]);
    assert!(!found["notes"].to_string().contains("depth 4"), "{found}");
}

#[test]
fn a_requirement_decides_the_status() {
    let _turn = alone();
    let perf = |requirements: &[&'static str]| [&short(&["perf", "null"]), requirements].concat();
    // Where other programs run meanwhile nothing is met or missed, whatever was found, and the status says so.
    let output = stag(&[&["--json"], &perf(&["--require", "p50<1000s", "--require", "rate>0"])[..]].concat());
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let is_disturbed = found["disturbed"].as_bool().unwrap();
    assert_eq!(output.status.code(), Some(i32::from(is_disturbed)), "{found}");
    for requirement in found["requirements"].as_array().unwrap() {
        assert_eq!(requirement["met"].as_bool(), (!is_disturbed).then_some(true), "{found}");
        assert_eq!(requirement["reason"].is_string(), is_disturbed, "{found}");
    }
    let disturbance = &found["disturbance"];
    assert!(disturbance["waited"].is_number() && disturbance["involuntary_switches"].is_u64(), "{found}");

    let output = stag(&perf(&["--require", "p50<1ns"]));
    let (text, complaint) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    let line = text.lines().find(|line| line.contains("p50<1ns: ") && line.contains(" found")).unwrap();
    assert_eq!((output.status.code(), complaint.lines().count()), (Some(1), 1), "{complaint}");
    assert!(complaint.contains("--require p50<1ns: "), "{complaint}");
    if line.starts_with("UNMEASURED") {
        assert!(
            [line, &complaint].iter().all(|text| text.contains("other programs ran")),
            "{line}: {complaint}"
        );
    } else {
        assert!(line.starts_with("MISSED"), "{line}");
    }
    // Of 500 Calls, five lie beyond the 99th percentile.
    let complaint = stag_fails(&perf(&["--require", "p99<1000s"]));
    assert!(complaint.contains("not measured: fewer than 10 Calls of a round lie beyond it"), "{complaint}");

    let output = stag(&[&["--json"], &perf(&["--require", "p50<1ns"])[..]].concat());
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let p50 = found["requirements"][0]["found"].as_f64().unwrap();
    assert_eq!(Some(p50), found["latency_ns"]["p50"]["median"].as_f64(), "{found}");
}

#[test]
fn a_server_that_runs_is_measured_and_left_as_it_was() {
    let _turn = alone();
    let server = Server::with_data();
    let data = server.at("data");
    check(&measure(&["null", &server.url]), "null");
    for operation in ["read", "write", "getattr", "create", "rename", "readdirplus"] {
        let found = measure(&[operation, &data, "-q", "2"]);
        check(&found, operation);
        assert_eq!(
            (&found["url"], &found["server_copied_bytes_per_call"]),
            (&data.clone().into(), &Value::Null)
        );
    }
    for operation in ["read", "write"] {
        let complaint = stag_fails(&short(&["perf", operation, &data, "-s", "2M"]));
        let part = "--size 2097152: the server takes a READ of 1048576 octets at most (FSINFO)";
        assert!(complaint.contains(part), "{complaint}");
    }
    assert_eq!(stag_ok(&["ls", &data]), "", "the files that were measured are gone");
    let (stopped, status) = server.stop();
    assert!(status.success() && stopped["leaked"] == 0, "{stopped}");

    let absent = format!("shm://{}", crate::common::unique("absent"));
    stag_fails(&short(&["perf", "null", &absent]));
}

#[test]
fn one_core_for_both_ends_works_and_says_what_that_means() {
    let _turn = alone();
    let found = measure(&["null", "-n", "10"]);
    let core = found["cores"][0].to_string();
    let both = format!("{core},{core}");
    let found = measure(&["null", "--cores", &both]);
    check(&found, "null");
    assert_eq!((&found["limits"], &found["ratios"]), (&Value::Null, &Value::Null));
    let notes = found["notes"].to_string();
    assert!(notes.contains("client and server share a core"), "{notes}");
}

#[test]
fn all_sizes_are_measured_one_after_the_other() {
    let _turn = alone();
    let found = stag_json(&short(&["perf", "echo", "-a", "-n", "20"]));
    let sizes: Vec<u64> = found.iter().map(|found| found["size"].as_u64().unwrap()).collect();
    assert!(sizes.len() >= 8 && sizes.is_sorted_by(|a, b| a < b), "{sizes:?}");
    for found in &found {
        check(found, "echo");
        // As many as were asked for, and those that end together with the last.
        assert!(found["calls"].as_u64().unwrap() >= 20, "{found}");
    }
}

#[test]
fn several_clients_share_one_server() {
    let _turn = alone();
    let cores = measure(&["null", "-n", "10"])["cores"].clone();
    let (client, server) = (&cores[0], &cores[1]);
    let found = measure(&["read", "-s", "4K", "-q", "2", "--cores", &format!("{client},{client},{server}")]);
    check(&found, "read");
    assert_eq!(found["cores"].as_array().unwrap().len(), 3, "{found}");
}

#[test]
fn many_connections_are_measured() {
    let _turn = alone();
    for fabric in ["shm", "iwarp"] {
        let found = measure(&["null", "--connections", "600", "-n", "1200", "--fabric", fabric]);
        check(&found, "null");
        assert_eq!(found["connections"], 600, "{found}");
    }
}

/// Descriptors are counted before anything is opened: the process may have 500, and each end wants 628.
#[test]
fn too_few_descriptors_are_said_at_once() {
    let script = "ulimit -n 500 && exec \"$0\" perf null --connections 500 --fabric iwarp";
    let output = std::process::Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_stag")])
        .output()
        .expect("a shell");
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    let part = "--connections 500: it takes 628 descriptors, the process may have 500; raise its limit (`ulimit -n 628`)";
    assert!(complaint.contains(part), "{complaint}");
}

#[test]
fn bad_flags_are_one_line_and_status_2() {
    let cases: &[(&[&str], &str)] = &[
        (&["read", "-s", "2M"], "--size 2 MiB: it must be 1 B to 1 MiB"),
        (&["read", "shm://absent/data", "-s", "17M"], "--size 17 MiB: it must be 1 B to 16 MiB"),
        (&["echo", "-s", "1M"], "--size 1 MiB: it must be 1 B to 1020 KiB"),
        (&["read", "-s", "0"], "--size 0 B: it must be 1 B to 1 MiB"),
        (&["read", "-s", "12Q"], "\"12Q\" is not a size"),
        (&["read", "-s", "4K", "-a"], "cannot be combined with"),
        (&["null", "-s", "4K"], "--size: it goes with read, write, echo, reply and mix"),
        (&["null", "--rate", "0"], "is not a number of Calls"),
        (&["null", "--arrivals", "constant"], "--rate"),
        (&["null", "--curve"], "--curve: say how far: the largest depth (-q 64) or rate (--rate 1M)"),
        (&["null", "--interval", "1us"], "--interval: it must be 1ms or more"),
        (&["mix"], "mix: say of what: --mix read=70,write=20,getattr=10"),
        (&["read", "--mix", "read=1"], "--mix: it goes with mix, not with read"),
        (&["mix", "--mix", "create=1"], "\"create\" cannot be mixed"),
        (&["null", "--files", "2"], "--files: null works on no files"),
        (&["lookup", "--working-set", "4K"], "--working-set: it goes with read, write, getattr and mix"),
        (&["read", "--files", "0"], "--files 0: it must be 1 to 100000"),
        (&["read", "--working-set", "4K", "--files", "2"], "--working-set 4 KiB: it must be 8 KiB or more"),
        (&["read", "--working-set", "100T"], "of memory that is available; lower one of them"),
        (&["null", "-q", "0"], "--depth 0: it must be 1 to 1022"),
        (&["null", "-q", "1025"], "--depth 1025: it must be 1 to 1022"),
        (&["null", "--connections", "0"], "--connections 0: it must be 1 to 10000"),
        (&["null", "--connections", "10001"], "--connections 10001: it must be 1 to 10000"),
        (
            &["null", "--connections", "10000", "-q", "1000"],
            "--depth 1000, --connections 10000: receives_max",
        ),
        (&["null", "--cores", "0"], "name two at least, the server's last"),
        (&["null", "--cores", "1023,1023"], "this process may use cores "),
        (&["null", "--cores", "5000,0"], "this process may use cores "),
        (&["null", "-t", "1h"], "\"1h\" is not a time; write 50ms"),
        (&["null", "-t", "0"], "--duration 0: it must be more"),
        (&["null", "-n", "0"], "is not a number of Calls"),
        (&["null", "--inline-threshold", "512"], "--inline-threshold 512 B: it must be 1 KiB to 256 KiB"),
        (&["null", "--touch"], "--touch: it goes with read"),
        (&["null", "--require", "stream>0.1"], "--require stream>0.1: it is a figure of read and write"),
        (&["null", "--require", "transfer>0.1"], "--require transfer>0.1: it is a figure of read and write"),
        (&["null", "--fabric", "tcp"], "--fabric: invalid value \"tcp\"; use one of: shm, iwarp, verbs"),
        (&["null", "--require", "p98<1us"], "\"p98\" is no metric; use one of: p50"),
        (&["null", "--require", "copy-hot>0.9"], "--require copy-hot>0.9: it is a figure of read and write"),
        (&["echo", "shm://absent"], "echo is a program of stag perf's own server"),
        (&["read", "shm://absent"], "name an export, as in shm://absent/data"),
        (&["frob"], "use one of: null, read, write, getattr, setattr, lookup, create"),
    ];
    for (arguments, part) in cases {
        let output = stag(&[&["perf"], *arguments].concat());
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {complaint}");
        assert_eq!(complaint.lines().count(), 1, "{arguments:?}: {complaint}");
        assert!(complaint.contains(part), "{arguments:?}: {part:?} is not in {complaint:?}");
    }
}
