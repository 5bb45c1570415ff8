//! `stag demo` on a small tree.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::SystemTime;

use serde_json::Value;
use stag_runtime::affinity;

use crate::common::{Folder, STAG, content, stag, stag_json, stag_ok};

fn small_tree(what: &str) -> Folder {
    let folder = Folder::new(what);
    fs::create_dir_all(folder.join("a/b/c")).unwrap();
    for (index, len) in [0, 10, 5000, 100_000, (3 << 20) + 7].into_iter().enumerate() {
        fs::write(folder.join(&format!("a/b/{index}")), content(len, index as u8)).unwrap();
    }
    symlink("b/1", folder.join("a/link")).unwrap();
    folder
}

#[test]
fn every_byte_comes_back_and_everything_is_told() {
    let folder = small_tree("demo");
    let report = &stag_json(&["demo", "--path", folder.0.to_str().unwrap()])[0];
    assert_eq!((report["verified"].as_bool(), report["mismatches"].as_u64()), (Some(true), Some(0)));
    let bytes = 10 + 5000 + 100_000 + (3 << 20) + 7;
    assert_eq!((report["files"].as_u64(), report["bytes"].as_u64()), (Some(5), Some(bytes)));
    let steps: Vec<_> = report["steps"].as_array().unwrap().iter().map(|step| &step["step"]).collect();
    assert_eq!(steps, ["copied in", "listed", "read back", "renamed", "listed", "removed"]);
    for procedure in
        ["CREATE", "WRITE", "READ", "READDIRPLUS", "RENAME", "REMOVE", "RMDIR", "MKDIR", "SYMLINK"]
    {
        let rows = report["procedures"].as_array().unwrap();
        let row = rows.iter().find(|row| row["procedure"] == procedure);
        let row = row.unwrap_or_else(|| panic!("{procedure} is not in {rows:?}"));
        assert!(row["calls"].as_u64() > Some(0) && row["p50_ns"].as_u64() <= row["max_ns"].as_u64());
    }
    let server = &report["server"];
    assert_eq!((server["leaked"].as_u64(), server["drained"].as_bool()), (Some(0), Some(true)));
    let counters = &server["counters"];
    // Four files are long enough for chunks; the last in three or more parts.
    assert!(counters["read_chunks"].as_u64() >= Some(5), "{counters}");
    assert!(counters["write_chunks"].as_u64() >= Some(5), "{counters}");
    assert!(report["credits_granted"].as_u64() > Some(0));
}

#[test]
fn people_get_lines_and_a_table() {
    let folder = small_tree("demo-text");
    let text = stag_ok(&["demo", "--path", folder.0.to_str().unwrap()]);
    for part in
        ["copied in", "read back", "procedure", "p99.9", "chunks", "credits", "no buffer leaked", "verified"]
    {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

/// The client talks to one core, and the files belong to the other.
#[test]
fn a_server_on_two_cores_carries_calls() {
    if affinity::allowed().len() < 2 {
        stag_testing::skipped("this process may use one core only");
        return;
    }
    let (folder, claims) = (small_tree("demo-cores"), Folder::new("demo-claims"));
    // Where servers note whose cores are whose: tests beside this one may use the same.
    let demo = |json: &[&str]| {
        let mut command = Command::new(STAG);
        command.args(json).args(["demo", "--cores", "2", "--path"]).arg(&folder.0);
        let output = command.env("STAG_RUNTIME_DIR", &claims.0).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let report: Value = serde_json::from_str(&demo(&["--json"])).unwrap();
    assert_eq!(report["verified"].as_bool(), Some(true));
    let cores = report["server"]["cores"].as_array().unwrap();
    let carried: Vec<_> = cores.iter().map(|core| core["calls_carried"].as_u64().unwrap()).collect();
    let executed: Vec<_> =
        cores.iter().map(|core| core["calls_executed_for_others"].as_u64().unwrap()).collect();
    assert!(carried[0] > 30 && carried[1] == 0 && executed == [0, carried[0]], "{cores:?}");
    let text = demo(&[]);
    assert!(text.contains("of them for other cores"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn what_is_over_the_limit_is_left_out_and_told() {
    let folder = small_tree("demo-limit");
    let path = folder.0.to_str().unwrap();
    let text = stag_ok(&["demo", "--path", path, "--size-limit", "1M"]);
    assert!(text.contains("1 files more would be over 1 MiB: left out"), "{text}");
    // A wrong argument: nothing was done.
    let refused = stag(&["demo", "--path", "/no/such/folder"]);
    let complaint = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{complaint}");
    assert!(complaint.contains("--path /no/such/folder: "), "{complaint}");
}

/// `cargo run --bin stag` builds no `stagd`, and may leave an old one beside: `stag` serves by itself then.
#[test]
fn the_demo_needs_no_stagd_beside_and_takes_no_old_one() {
    let (folder, bin) = (small_tree("demo-alone"), Folder::new("bin"));
    let stag = bin.join("stag");
    fs::copy(STAG, &stag).unwrap();
    let demo = || {
        let mut command = Command::new(&stag);
        command.arg("demo").arg("--path").arg(&folder.0);
        let output = stag_testing::start_written_program(|| command.output()).unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{complaint}");
    };
    demo();
    // It is no program, so the demo fails if it takes it.
    let old = File::create(bin.join("stagd")).unwrap();
    old.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    demo();
}
