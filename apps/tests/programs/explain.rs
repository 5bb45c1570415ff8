//! `stag explain`: it knows every entry that it must, and finds it as users type and paste it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use stag_apps::commands::explain::{Table, tables};
use stag_fabric::{DisconnectReason, WorkError};
use stag_rpc::CloseReason;
use stag_server::remote::explain_command;
use stag_wire::rdmap::Cause;
use stag_wire::{mount3, nfs3, nfs4, rpcrdma};

fn stag(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_stag")).arg("explain").args(arguments).output().unwrap()
}

/// Kind and name of what is found, in order.
fn found(arguments: &[&str]) -> Vec<(String, String)> {
    let output = stag(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    let lines = std::str::from_utf8(&output.stdout).unwrap().lines();
    let objects = lines.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    objects
        .map(|object| ["kind", "name"].map(|key| object[key].as_str().unwrap().to_owned()).into())
        .collect()
}

fn names(arguments: &[&str]) -> Vec<String> {
    found(arguments).into_iter().map(|(_, name)| name).collect()
}

fn table(kind: &str) -> Table {
    tables().into_iter().find(|table| table.kind == kind).unwrap_or_else(|| panic!("no kind {kind}"))
}

/// A source file of the engine.
fn source(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The constants of a C enumeration in the bindings, with their numbers.
fn constants(type_name: &str) -> Vec<(String, i64)> {
    let source = source("rdma-core-sys/src/types.rs");
    let constants = source.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("pub const ")?.split_once(": ")?;
        let number = rest.strip_prefix(type_name)?.strip_prefix(" = ")?.strip_suffix(';')?;
        Some((name.to_owned(), number.parse().unwrap()))
    });
    constants.collect()
}

/// The variants of an enumeration of ours.
fn variants(path: &str, name: &str) -> BTreeSet<String> {
    let source = source(path);
    let start = source.find(&format!("\npub enum {name} {{\n")).unwrap_or_else(|| panic!("{path}: {name}"));
    let body = source[start..].split("\n}\n").next().unwrap();
    let variants = body.lines().filter_map(|line| {
        let line = line.strip_prefix("    ")?;
        let end = line.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(line.len());
        line.starts_with(|c: char| c.is_ascii_uppercase()).then(|| line[..end].to_owned())
    });
    variants.collect()
}

fn has(table: &Table, name: &str, number: i64) -> bool {
    table.entries.iter().any(|entry| entry.name == name && entry.number == Some(number))
}

#[test]
fn every_status_and_event_of_the_bindings_has_an_entry() {
    for (type_name, kind, count_min) in [
        ("ibv_wc_status", "wc", 24),
        ("rdma_cm_event_type", "cm-event", 16),
        ("ibv_event_type", "device-event", 20),
    ] {
        let constants = constants(type_name);
        assert!(constants.len() >= count_min, "{type_name}: {constants:?}");
        let table = table(kind);
        for (name, number) in &constants {
            assert!(has(&table, name, *number), "{name} = {number} is not in tables/{kind}.toml");
        }
        assert_eq!(table.entries.len(), constants.len(), "{kind}: entries that are no constants");
    }
}

#[test]
fn every_cause_of_a_terminate_has_an_entry() {
    let table = table("terminate");
    let mut count = 0;
    for (layer, error_type) in (0..16).flat_map(|layer| (0..16).map(move |error_type| (layer, error_type))) {
        for code in 0..=u8::MAX {
            let Some(meaning) = (Cause { layer, error_type, code }).meaning() else { continue };
            count += 1;
            let number = i64::from(layer) << 12 | i64::from(error_type) << 8 | i64::from(code);
            let is_it = |number: i64| table.entries.iter().find(|entry| entry.number == Some(number));
            let entry = is_it(number).or_else(|| is_it(number & 0xff00).filter(|entry| entry.any_code));
            let entry =
                entry.unwrap_or_else(|| panic!("{number:#06x}, {meaning}, is not in tables/terminate.toml"));
            assert!(entry.says.iter().any(|says| says == meaning), "{}: not {meaning:?}", entry.name);
        }
    }
    assert!(count > 30, "{count} causes");
}

#[test]
fn every_error_of_rpc_over_rdma_has_an_entry() {
    let errors = table("rpcrdma-error");
    assert!(has(&errors, "ERR_VERS", rpcrdma::errcode::VERS.into()));
    assert!(has(&errors, "ERR_CHUNK", rpcrdma::errcode::CHUNK.into()));
    let source = source("wire/src/rpcrdma.rs");
    let module = source.split("pub mod errcode {").nth(1).unwrap().split("\n}").next().unwrap();
    assert_eq!(module.matches("pub const").count(), errors.entries.len(), "{module}");
}

/// Every way in which our own layers fail, by the names that logs print.
#[test]
fn every_error_of_ours_has_an_entry_and_no_entry_is_left_over() {
    for (path, name, kind) in [
        ("fabric/src/verb_types.rs", "DisconnectReason", "stag-disconnect"),
        ("fabric/src/verb_types.rs", "WorkError", "stag-work"),
        ("fabric/src/verb_types.rs", "PostError", "stag-post"),
        ("fabric/src/verb_types.rs", "FabricError", "stag-fabric"),
        ("rpc/src/client/mod.rs", "CallError", "stag-call"),
        ("rpc/src/client/mod.rs", "CloseReason", "stag-close"),
        ("wire/src/rpcrdma/error.rs", "HeaderError", "rpcrdma-header"),
    ] {
        let entries: BTreeSet<String> = table(kind).entries.into_iter().map(|entry| entry.name).collect();
        assert_eq!(entries, variants(path, name), "tables/{kind}.toml and {name}");
    }
}

#[test]
fn every_status_of_nfs_and_mount_has_an_entry() {
    let plain = |name: &str| name.replace('_', "").to_uppercase();
    let nfs3 =
        nfs3::Status::ALL.iter().map(|status| ("NFS3ERR", format!("{status:?}"), status.number(), "nfs3"));
    let mount = mount3::Status::ALL.iter();
    let mount = mount.map(|status| ("MNT3ERR", format!("{status:?}"), status.number(), "mount3"));
    let nfs4 = nfs4::Status4::ALL.iter().skip(1);
    let nfs4 = nfs4.map(|status| ("NFS4ERR", format!("{status:?}"), status.number(), "nfs4"));
    for (prefix, name, number, kind) in nfs3.chain(mount).chain(nfs4) {
        let wanted = plain(&format!("{prefix}{name}"));
        let is_it = |entry: &&stag_apps::commands::explain::Entry| {
            plain(&entry.name) == wanted && entry.number == Some(number.into())
        };
        assert!(table(kind).entries.iter().any(|entry| is_it(&entry)), "{wanted} = {number}");
    }
}

/// What each entry owes its reader.
#[test]
fn every_entry_is_whole() {
    let mut kinds = BTreeSet::new();
    for table in tables() {
        assert!(kinds.insert(table.kind.clone()), "{} twice", table.kind);
        for entry in &table.entries {
            let name = format!("{} {}", table.kind, entry.name);
            for text in [&entry.means, &entry.usually] {
                assert!(text.ends_with('.') && text.len() > 10, "{name}: {text:?} is no sentence");
            }
            let is_well = ["Nothing is wrong", "First step", "Second step"]
                .iter()
                .any(|well| entry.usually.starts_with(well));
            let needs_no_step =
                ["nfs3", "nfs4", "mount3", "stag-disconnect", "stag-call", "cm-event", "kernel"];
            let may_end = is_well || needs_no_step.contains(&table.kind.as_str());
            assert!(may_end || !entry.next.is_empty(), "{name}: nothing to look at next");
            assert!(table.kind != "kernel" || !entry.says.is_empty(), "{name}: nothing that it is found by");
        }
    }
}

/// Entries send their reader on to others: these are there.
#[test]
fn every_command_of_an_entry_finds_something() {
    let mut commands = BTreeSet::new();
    for entry in tables().into_iter().flat_map(|table| table.entries) {
        for text in entry.next.iter().chain([&entry.means, &entry.usually]) {
            let typed = text.split("stag explain ").skip(1);
            commands.extend(typed.map(|typed| typed.split([';', ',', ')', ':']).next().unwrap().to_owned()));
        }
    }
    assert!(commands.len() > 10, "{commands:?}");
    for command in commands {
        // What the reader has to fill in, and words about the command.
        let open = ["STATUS", "NUMBER", "NAME", "LAYER/TYPE/CODE", "lists", "the", "reasons"];
        let words: Vec<&str> = command.split(' ').filter(|word| !open.contains(word)).collect();
        assert!(!names(&words).is_empty(), "stag explain {command}");
    }
}

#[test]
fn names_are_found_without_case_and_prefix_and_end() {
    let rnr = ["IBV_WC_RNR_RETRY_EXC_ERR"];
    for typed in
        ["IBV_WC_RNR_RETRY_EXC_ERR", "WC_RNR_RETRY_EXC", "rnr_retry_exc", "ibv_wc_rnr", "RNR retry counter"]
    {
        assert_eq!(names(&[typed]), rnr, "{typed}");
    }
    assert_eq!(names(&["RDMA_CM_EVENT_REJECTED"]), ["RDMA_CM_EVENT_REJECTED"]);
    assert_eq!(names(&["rejected"]), ["RDMA_CM_EVENT_REJECTED", "Rejected"]);
    assert_eq!(names(&["cm", "rejected"]), ["RDMA_CM_EVENT_REJECTED"]);
    assert_eq!(names(&["err_chunk"]), ["ERR_CHUNK"]);
    assert_eq!(names(&["NFS3ERR_JUKEBOX"]), names(&["jukebox"]));
    assert_eq!(names(&["PeerDied"]), ["PeerDied"]);
}

#[test]
fn a_number_shows_all_its_meanings_and_a_kind_narrows_them() {
    let meanings = found(&["13"]);
    let kinds: Vec<&str> = meanings.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(
        kinds,
        ["wc", "cm-event", "cm-reject", "cm-status", "device-event", "rpc-auth", "nfs3", "nfs4", "mount3"]
    );
    assert_eq!(names(&["wc", "13"]), ["IBV_WC_RNR_RETRY_EXC_ERR"]);
    assert_eq!(names(&["cm", "28"]), ["IB_CM_REJ_CONSUMER_DEFINED"]);
    assert_eq!(names(&["cm-status", "111"]), ["ECONNREFUSED"]);
    assert_eq!(names(&["-111"]), ["ECONNREFUSED"]);
    assert_eq!(names(&["0x0100"]), ["RDMAP_INVALID_STAG"]);
    assert_eq!(names(&["0x0001"]), ["RDMAP_CATASTROPHIC"], "any code; 1 would be much else");
    assert_eq!(names(&["terminate", "1/1/0"])[0], "DDP_INVALID_STAG");
}

#[test]
fn what_the_kernel_prints_is_found_as_it_is_pasted() {
    let line = "[ 4929.694628] siw: got TERMINATE. layer 2, type 1, code 2";
    assert_eq!(names(&[line]), ["siw-terminate", "DDP_NO_BUFFER"], "a peer that is not siw");
    assert_eq!(names(&["rpcrdma: connection to 192.0.2.7:20049 closed (-103)"]), ["rpcrdma-closed"]);
    assert_eq!(names(&["nfs: server box not responding, still trying"]), ["nfs-not-responding"]);
    assert_eq!(names(&["rdma_rxe: failed to init crc32 algorithm"]), ["rxe-crc"]);
    for (text, name) in [
        ("mount.nfs: access denied by server while mounting box:/data", "mount-denied"),
        (
            "mount.nfs: mounting box:/x failed, reason given by server: No such file or directory",
            "mount-no-export",
        ),
        ("mount.nfs: requested NFS version or transport protocol is not supported", "mount-not-supported"),
        ("mount.nfs: Protocol not supported for box:/data on /mnt", "mount-no-rdma"),
        ("mount.nfs: Connection refused", "mount-refused"),
        ("ls: cannot access 'a': Stale file handle", "stale-file-handle"),
    ] {
        assert_eq!(names(&[text]), [name]);
    }
    let log = "Send failed on qp 0x11: IBV_WC_RETRY_EXC_ERR, vendor_err 0x81";
    assert_eq!(names(&[log]), ["IBV_WC_RETRY_EXC_ERR"]);
    assert_eq!(names(&["error on send wc: transport retry counter exceeded"]), ["IBV_WC_RETRY_EXC_ERR"]);
}

#[test]
fn an_unknown_name_is_answered_with_near_ones_and_status_2() {
    for typed in ["WC_RMR_RETRY_EXC_ERR", "IBV_WC_RNR_RETY"] {
        let output = stag(&[typed]);
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
        assert!(complaint.contains("did you mean IBV_WC_RNR_RETRY_EXC_ERR"), "{complaint}");
    }
    let output = stag(&["flibbertigibbet"]);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && complaint.contains("--list shows all"), "{complaint}");
    assert!(!complaint.contains("did you mean"), "{complaint}");
}

#[test]
fn the_list_has_everything_and_a_kind_alone_its_own() {
    let all: usize = tables().iter().map(|table| table.entries.len()).sum();
    assert_eq!(names(&[]).len(), all);
    assert_eq!(names(&["--list"]).len(), all);
    assert_eq!(names(&["wc"]).len(), table("wc").entries.len());
    assert_eq!(names(&["--list", "terminate"]).len(), table("terminate").entries.len());
    assert_eq!(stag(&["--list", "ERR_CHUNK"]).status.code(), Some(2));
    let text = String::from_utf8(stag(&["ERR_VERS"]).stdout).unwrap();
    assert!(
        text.starts_with("ERR_VERS (1), RPC-over-RDMA error") && text.contains("\n  Next:    stag dump"),
        "{text}"
    );
}

/// What `stag` adds to the line that says why a connection ended.
#[test]
fn the_hint_at_a_lost_connection_finds_its_entry() {
    let rejected = DisconnectReason::Rejected("no credits left (64)".to_owned());
    for (reason, kind, name) in [
        (CloseReason::Fabric(DisconnectReason::PeerDied), "stag-disconnect", "PeerDied"),
        (CloseReason::Fabric(rejected), "stag-disconnect", "Rejected"),
        (CloseReason::Fabric(DisconnectReason::Work(WorkError::RemoteAccess)), "stag-work", "RemoteAccess"),
        (CloseReason::Violation("a Reply without a Call"), "stag-close", "Violation"),
        (CloseReason::Silent, "stag-close", "Silent"),
    ] {
        let hint = explain_command(&reason);
        let typed = hint.strip_prefix("stag explain ").unwrap();
        assert!(found(&[typed]).contains(&(kind.to_owned(), name.to_owned())), "{reason:?}: {hint}");
    }
}
