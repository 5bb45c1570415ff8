//! The same programs on machines without rdma-core, and with it but without a device: they start, say what is missing
//! with the command that repairs it, and which fabrics work instead. With a device: `ci/interop.sh`, in the guest.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const STAG: &str = env!("CARGO_BIN_EXE_stag");
const STAGD: &str = env!("CARGO_BIN_EXE_stagd");

/// What would work instead.
const INSTEAD: &str = "iwarp:// goes to any machine, and shm:// within this one";

/// Runs a program; `libraries` is where the dynamic linker looks first.
fn run(libraries: Option<&Path>, program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments);
    if let Some(folder) = libraries {
        command.env("LD_LIBRARY_PATH", folder);
    }
    command.output().unwrap()
}

/// What each program says of verbs on a machine that cannot: the reason, which is the same everywhere.
fn reason(libraries: Option<&Path>) -> String {
    let fabrics = run(libraries, STAG, &["fabrics", "--json"]);
    assert!(fabrics.status.success());
    let objects: Vec<Value> = String::from_utf8(fabrics.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let verbs = objects.iter().find(|object| object["fabric"] == "verbs").unwrap();
    assert_eq!(verbs["works"], false, "{verbs}");
    assert!(objects.iter().filter(|object| object["works"] == true).count() >= 2, "{objects:?}");
    let reason = verbs["detail"].as_str().unwrap().to_owned();

    let serve = ["--export", "mem:/data", "--listen", "verbs://0.0.0.0", "--memory", "64M"];
    let perf = ["perf", "null", "--fabric", "verbs", "-t", "1ms", "--repeat", "1"];
    let check = [&serve[..], &["--check"]].concat();
    for (program, arguments) in [
        (STAGD, &serve[..]),
        (STAGD, &check[..]),
        (STAG, &["ping", "verbs://localhost"][..]),
        (STAG, &["ls", "verbs://[::1]:20049/data"][..]),
        (STAG, &perf[..]),
    ] {
        let output = run(libraries, program, arguments);
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {complaint}");
        assert_eq!(complaint.lines().count(), 1, "{arguments:?}: {complaint}");
        assert!(complaint.contains(&reason), "{arguments:?}: {complaint}; {reason}");
        assert!(complaint.contains(INSTEAD), "{arguments:?}: {complaint}");
    }
    reason
}

/// The linker refuses the libraries: what it says differs from a machine that has none, what we say does not.
#[test]
fn without_rdma_core_the_packages_are_named() {
    let folder = std::env::temp_dir().join(format!("stag-no-rdma-core-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        fs::write(folder.join(library), "").unwrap();
    }
    let reason = reason(Some(&folder));
    fs::remove_dir_all(&folder).unwrap();
    assert!(reason.contains("libibverbs.so.1 cannot be loaded"), "{reason}");
    assert!(reason.contains("apt-get install libibverbs1 librdmacm1 ibverbs-providers"), "{reason}");
}

/// The machine as it is. Most have no RDMA device; what is said must be what is so.
#[test]
fn this_machine_is_told_what_it_lacks() {
    let has = |path: &str| Path::new(path).exists();
    let has_device = fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some());
    if has_device {
        let fabrics = run(None, STAG, &["fabrics"]);
        assert!(fabrics.status.success());
        assert!(String::from_utf8(fabrics.stdout).unwrap().contains("\n  device  "));
        return;
    }
    let reason = reason(None);
    let expected = if reason.contains("cannot be loaded") {
        "apt-get install libibverbs1 librdmacm1 ibverbs-providers"
    } else if !has("/sys/class/infiniband_verbs") {
        "modprobe -a ib_uverbs rdma_ucm"
    } else if !has("/sys/class/misc/rdma_cm") {
        "modprobe rdma_ucm"
    } else {
        "rdma link add"
    };
    assert!(reason.contains(expected), "{reason}");
}
