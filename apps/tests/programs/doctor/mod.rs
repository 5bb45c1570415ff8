//! `stag doctor`: each check on trees that look like machines, well and not well, and the whole on this machine.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use stag_apps::commands::doctor::{Diagnosis, State, checks, inspect, inspect_container, inspect_cores};
use stag_server::url::FabricName;

mod cases;
mod tree;

use cases::{CASES, IWARP_CASES, LIMITS, STATUS};
use tree::Tree;

#[test]
fn nothing_is_said_against_a_machine_that_is_well() {
    let tree = Tree::well("well");
    for fabric in [None, Some(FabricName::Shm), Some(FabricName::Iwarp), Some(FabricName::Verbs)] {
        for (check, Diagnosis { state, found, repair }) in inspect(&tree.0, fabric) {
            assert_eq!((state, repair), (State::Ok, None), "{fabric:?}, {check}: {found}");
        }
    }
    let seen: BTreeSet<&str> = inspect(&tree.0, None).into_iter().map(|(check, _)| check).collect();
    assert_eq!(seen, checks().collect(), "each check says something where all is well");
}

#[test]
fn each_check_says_what_is_wrong_and_how_to_repair_it() {
    let verbs = CASES.iter().map(|case| (case, FabricName::Verbs));
    let iwarp = IWARP_CASES.iter().map(|case| (case, FabricName::Iwarp));
    let tree = Tree::well("cases");
    for (case, fabric) in verbs.chain(iwarp) {
        case.changes.iter().for_each(|(path, text)| tree.change(path, *text));
        let found = tree.findings(case.check, Some(fabric));
        let is_it = |finding: &&Diagnosis| {
            let repair = finding.repair.as_deref().unwrap_or_default();
            finding.state == case.state && finding.found.contains(case.found) && repair.contains(case.repair)
        };
        assert_eq!(found.iter().filter(is_it).count(), 1, "{}: {:?}: {found:#?}", case.check, case.changes);
        case.changes.iter().for_each(|(path, _)| tree.restore(path));
    }
    let worst = inspect(&tree.0, None).into_iter().map(|(_, finding)| finding.state).max();
    assert_eq!(worst, Some(State::Ok), "all is as it was");
    let tried: BTreeSet<&str> = CASES.iter().chain(IWARP_CASES).map(|case| case.check).collect();
    assert_eq!(tried, checks().collect(), "each check has a case where something is wrong");
}

#[test]
fn a_user_may_open_device_files_by_owner_group_or_for_all() {
    let tree = Tree::well("modes");
    let file = tree.0.join("dev/infiniband/uverbs0");
    let bad =
        || tree.findings("device files", Some(FabricName::Verbs)).iter().any(|it| it.state == State::Error);
    let mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    let (uid, gid) = {
        use std::os::unix::fs::MetadataExt;
        let file = fs::metadata(&file).unwrap();
        (file.uid(), file.gid())
    };
    let user = |uid: u32, gid: u32, groups: &str| {
        let line = |name: &str, id: u32| format!("{name}:\t{id}\t{id}\t{id}\t{id}\n");
        tree.write(STATUS, &format!("{}{}Groups:\t{groups} \n", line("Uid", uid), line("Gid", gid)));
    };
    let (other, strange) = (uid + 4321, gid + 4321);
    user(other, strange, "");
    assert!(!bad(), "for all");
    mode(0o660);
    assert!(bad(), "for others: no");
    user(other, gid, "");
    assert!(!bad(), "for the group");
    user(other, strange, &gid.to_string());
    assert!(!bad(), "for one of the groups");
    mode(0o640);
    assert!(bad(), "the group may only read");
    user(0, 0, "");
    assert!(!bad(), "root");
}

#[test]
fn memory_may_be_locked_by_who_has_the_capability() {
    let tree = Tree::well("capability");
    tree.write(LIMITS, "Max locked memory 65536 65536 bytes\n");
    let state = |tree: &Tree| tree.findings("memlock", Some(FabricName::Verbs))[0].state;
    assert_eq!(state(&tree), State::Error);
    tree.write(STATUS, "CapEff:\t0000000000004000\n");
    assert_eq!(state(&tree), State::Ok);
    // Seen with Linux 6.1: to siw root is a user like any other.
    tree.write("sys/module/siw/refcnt", "1\n");
    for (release, expected) in
        [("6.1.0-56-amd64\n", State::Error), ("6.8.0\n", State::Ok), ("6.12.1+x\n", State::Ok)]
    {
        tree.write("proc/sys/kernel/osrelease", release);
        assert_eq!(state(&tree), expected, "{release}");
    }
}

#[test]
fn without_rdma_hardware_there_are_notes_and_errors_only_for_verbs() {
    let tree = Tree::well("none");
    for path in ["sys/class/infiniband", "dev/infiniband", "sys/module", "etc", "usr"] {
        tree.change(path, None);
    }
    let worst =
        |fabric| inspect(&tree.0, fabric).into_iter().map(|(_, finding)| finding.state).max().unwrap();
    assert_eq!(worst(None), State::Note);
    assert_eq!(worst(Some(FabricName::Verbs)), State::Error);
    assert_eq!(worst(Some(FabricName::Shm)), State::Ok);
    assert_eq!(worst(Some(FabricName::Iwarp)), State::Ok);
}

#[test]
fn a_device_of_iwarp_needs_neither_gid_nor_large_mtu() {
    let tree = Tree::well("rnic");
    tree.write("sys/class/infiniband/mlx5_0/node_type", "4: RNIC\n");
    tree.write("sys/class/net/eth1/mtu", "1500\n");
    tree.change("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types", None);
    let worst = inspect(&tree.0, Some(FabricName::Verbs)).into_iter().map(|(_, finding)| finding.state).max();
    assert_eq!(worst, Some(State::Ok));
}

/// Cores for one server, of a machine with cores 2 and 3 allowed, which are on the device's node.
#[test]
fn cores_for_one_server_are_checked_against_cpuset_nodes_and_device() {
    let tree = Tree::well("together");
    let told = |list: &str, fabric| -> Vec<(State, String, Option<String>)> {
        let findings = inspect_cores(&tree.0, fabric, &list.parse().unwrap());
        findings.into_iter().map(|(_, finding)| (finding.state, finding.found, finding.repair)).collect()
    };
    assert_eq!(
        told("2-3", None),
        [(State::Ok, "2-3 may be used, and are near to each other".to_owned(), None)]
    );
    let absent = told("2,9", None);
    assert_eq!(absent[0].0, State::Error);
    assert!(absent[0].1.contains("cores 9 of 2,9 are not online; there are 0-3"), "{absent:?}");
    let spread = told("1-2", Some(FabricName::Verbs));
    let states: Vec<State> = spread.iter().map(|(state, ..)| *state).collect();
    assert_eq!(states, [State::Error, State::Warning, State::Warning], "{spread:?}");
    for (told, (found, repair)) in spread.iter().zip([
        ("cores 1 of 1-2 may not be used; the cpuset and the affinity allow 2-3", "taskset -pc 0-3"),
        ("on NUMA nodes 0 to 1", "stagd --cores 2-3"),
        ("cores 1 of 1-2 are far from mlx5_0; near to it are 2-3", "stagd --cores 2-3"),
    ]) {
        assert!(told.1.contains(found) && told.2.as_ref().unwrap().contains(repair), "{told:?}");
    }
    assert_eq!(told("1-2", Some(FabricName::Shm)).len(), 2, "no device is of concern");
    for core in [2, 3] {
        tree.write(&format!("sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"), "2-3\n");
    }
    let siblings = told("2-3", None);
    assert_eq!(
        (siblings.len(), siblings[0].0, siblings[0].2.as_deref()),
        (1, State::Note, Some("stagd --cores 2"))
    );
}

/// Modules may be built into the kernel: then only what they make shows that they are there.
#[test]
fn what_is_built_into_the_kernel_is_there() {
    let tree = Tree::well("built-in");
    tree.change("sys/module", None);
    let state = || tree.findings("kernel modules", Some(FabricName::Verbs)).iter().map(|it| it.state).max();
    assert_eq!(state(), Some(State::Error));
    tree.write("sys/class/infiniband_verbs/abi_version", "6\n");
    tree.write("sys/class/misc/rdma_cm/dev", "10:58\n");
    assert_eq!(state(), Some(State::Ok));
}

/// What can be read of an empty tree is nothing, and that is no failure.
#[test]
fn a_machine_that_tells_nothing_is_checked_too() {
    let tree = Tree::new("empty", &[]);
    for (check, Diagnosis { state, found, repair }) in inspect(&tree.0, None) {
        assert!(!found.is_empty(), "{check}");
        assert_eq!(repair.is_none(), state == State::Ok, "{check}: {found}");
        assert!(state <= State::Note, "{check}: {found}");
    }
}

/// Whatever this machine is: the output is whole, and the exit status is that of the worst finding.
#[test]
fn this_machine_is_checked_and_the_exit_status_says_how_it_is() {
    for arguments in [&["doctor"][..], &["doctor", "--for", "shm"], &["doctor", "--for", "verbs"]] {
        let run = |more: &[&str]| {
            Command::new(env!("CARGO_BIN_EXE_stag")).args(arguments).args(more).output().unwrap()
        };
        let output = run(&["--json"]);
        let lines = std::str::from_utf8(&output.stdout).unwrap().lines();
        let objects: Vec<serde_json::Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(!objects.is_empty());
        let mut worst = 0;
        for object in &objects {
            let state = ["ok", "note", "warning", "error"].iter().position(|name| object["state"] == *name);
            let state = state.unwrap_or_else(|| panic!("{object}"));
            assert!(checks().any(|name| object["check"] == name), "{object}");
            assert!(!object["found"].as_str().unwrap().is_empty(), "{object}");
            assert_eq!(object["repair"].is_string(), state > 0, "{object}");
            worst = worst.max(state);
        }
        assert_eq!(output.status.code(), Some([0, 0, 1, 3][worst]), "{objects:#?}");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(run(&[]).stdout).unwrap();
        assert!(text.lines().last().unwrap().starts_with("errors: "), "{text}");
    }
    assert!(inspect(Path::new("/"), None).len() >= checks().count() - 5, "but for what needs a device");
}

/// What a container engine decides: each with the flag that changes it.
#[test]
fn a_container_is_checked_for_what_its_engine_decides() {
    /// Root with CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, SETGID, SETUID and MKNOD.
    const ROOT: &str = "Uid:\t0\t0\t0\t0\nCapEff:\t00000000080000df\nCpus_allowed_list:\t2-3\n";
    const ON_OVERLAY: &str =
        "1 0 0:50 / / rw - overlay overlay rw,lowerdir=/a\n2 1 0:51 / /proc rw - proc proc rw\n";
    let tree = Tree::well("container");
    tree.change(STATUS, Some(ROOT));
    for (check, Diagnosis { state, found, repair }) in inspect_container(&tree.0) {
        assert_eq!((state, repair), (State::Ok, None), "{check}: {found}");
    }
    for (path, text, check, state, repair) in [
        (
            STATUS,
            Some(&ROOT.replace("0df", "01f")[..]),
            "capabilities",
            State::Error,
            "--cap-add SETGID --cap-add SETUID",
        ),
        (STATUS, Some(&ROOT.replace("08000", "00000")), "capabilities", State::Warning, "--cap-add MKNOD"),
        (STATUS, Some(&ROOT.replace("Uid:\t0\t0", "Uid:\t7\t7")), "capabilities", State::Note, "--user 0"),
        (
            "proc/self/mountinfo",
            Some(ON_OVERLAY),
            "state directory",
            State::Warning,
            "-v stag-state:/var/lib/stag",
        ),
        ("dev/infiniband", None, "RDMA devices", State::Note, "--device /dev/infiniband"),
        ("proc/sys/kernel/io_uring_disabled", Some("2\n"), "io_uring", State::Warning, "io_uring_disabled=0"),
    ] {
        tree.change(path, text);
        let findings = inspect_container(&tree.0);
        let is_it = |(name, finding): &&(&str, Diagnosis)| {
            *name == check
                && finding.state == state
                && finding.repair.as_deref().is_some_and(|it| it.contains(repair))
        };
        assert_eq!(findings.iter().filter(is_it).count(), 1, "{path}: {findings:#?}");
        tree.restore(path);
        tree.change(STATUS, Some(ROOT));
    }
    let here =
        Command::new(env!("CARGO_BIN_EXE_stag")).args(["doctor", "--for", "container"]).output().unwrap();
    let here = String::from_utf8(here.stdout).unwrap();
    for check in
        ["state directory", "capabilities", "io_uring", "memlock", "hugepages", "cores", "RDMA devices"]
    {
        assert!(here.contains(check), "{check} is not in {here}");
    }
}

#[test]
fn an_unknown_fabric_is_status_2() {
    let output = Command::new(env!("CARGO_BIN_EXE_stag")).args(["doctor", "--for", "tcp"]).output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(complaint.contains("shm, iwarp, verbs") && complaint.lines().count() == 1, "{complaint}");
}
