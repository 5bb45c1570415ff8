//! Requirements of verbs beside a device: modules of the kernel, libraries, device files.

use std::fs;
use std::os::unix::fs::MetadataExt;

use stag_server::machine::Machine;

use super::finding::{Diagnosis, State};

/// What programs reach devices and the connection manager through, and what the kernel shows once it is there: it may be
/// built in.
const MODULES: [(&str, &str); 2] =
    [("ib_uverbs", "sys/class/infiniband_verbs"), ("rdma_ucm", "sys/class/misc/rdma_cm")];

/// Drivers of devices.
const DRIVERS: [&str; 14] = [
    "mlx5_ib",
    "mlx4_ib",
    "bnxt_re",
    "irdma",
    "i40iw",
    "iw_cxgb4",
    "qedr",
    "hns_roce",
    "efa",
    "ionic_rdma",
    "mana_ib",
    "vmw_pvrdma",
    "rdma_rxe",
    "siw",
];

/// The libraries of rdma-core, with the packages that have them.
const LIBRARIES: [(&str, &str); 2] = [("libibverbs.so.1", "libibverbs1"), ("librdmacm.so.1", "librdmacm1")];

/// The modules of the kernel.
pub(super) fn modules(machine: &Machine) -> Vec<Diagnosis> {
    let is_loaded = |name: &str| machine.has_loaded(name);
    let is_available = |name: &str| machine.has_on_disk(name);
    let release = machine.release();
    let mut findings: Vec<Diagnosis> = Vec::new();
    for (name, class) in MODULES {
        if is_loaded(name) || machine.has(class) {
            continue;
        }
        let found = if is_available(name) {
            format!("{name} is not loaded")
        } else {
            format!("{name} is not loaded, and not among the modules of kernel {release}")
        };
        findings.push(Diagnosis::bad(State::of_missing(machine), found, modprobe(machine, name, "")));
    }
    let listed =
        |is: &dyn Fn(&str) -> bool| match DRIVERS.into_iter().filter(|name| is(name)).collect::<Vec<_>>() {
            names if names.is_empty() => "none".to_owned(),
            names => names.join(", "),
        };
    if findings.is_empty() {
        let loaded = listed(&is_loaded);
        let available = listed(&|name| !is_loaded(name) && is_available(name));
        findings.push(Diagnosis::ok(format!("there; drivers loaded: {loaded}; available: {available}")));
    }
    findings
}

/// The command that loads a module, with what follows it; and what it takes where the kernel has none of that name.
pub(super) fn modprobe(machine: &Machine, module: &str, and: &str) -> String {
    let command = format!("sudo modprobe {module}{and}");
    if machine.has_loaded(module) || machine.has_on_disk(module) {
        return command;
    }
    format!("a kernel with RDMA support (Debian: `sudo apt install linux-image-amd64`), then: `{command}`")
}

/// The libraries, where dynamic linkers look.
pub(super) fn libraries(machine: &Machine) -> Vec<Diagnosis> {
    let is_triplet = |name: &String| name.ends_with("-linux-gnu");
    let triplets =
        machine.names("usr/lib").into_iter().filter(is_triplet).map(|name| format!("usr/lib/{name}"));
    let folders = ["lib", "lib64", "usr/lib", "usr/lib64", "usr/local/lib"].map(str::to_owned);
    let folders: Vec<String> = folders.into_iter().chain(triplets).collect();
    let is_there = |name: &str| folders.iter().any(|folder| machine.has(&format!("{folder}/{name}")));
    let missing: Vec<_> = LIBRARIES.iter().filter(|(name, _)| !is_there(name)).collect();
    let has_providers =
        ["etc/libibverbs.d", "usr/share/libibverbs.d"].iter().any(|path| !machine.names(path).is_empty());
    let mut findings = Vec::new();
    for (name, package) in &missing {
        let repair = format!("sudo apt install {package}");
        findings.push(Diagnosis::bad(State::of_missing(machine), format!("{name} is not there"), repair));
    }
    if missing.is_empty() && !has_providers {
        let found = "no drivers of libibverbs in /etc/libibverbs.d: it finds no device";
        findings.push(Diagnosis::bad(
            State::of_missing(machine),
            found,
            "sudo apt install ibverbs-providers",
        ));
    }
    if findings.is_empty() {
        findings.push(Diagnosis::ok("libibverbs and librdmacm are there, and drivers for them"));
    }
    findings
}

/// Whether this process may open the device files.
pub(super) fn device_files(machine: &Machine) -> Vec<Diagnosis> {
    const FOLDER: &str = "dev/infiniband";
    let names = machine.names(FOLDER);
    let of_devices = names.iter().filter(|name| name.starts_with("uverbs")).cloned();
    let wanted: Vec<String> = of_devices.chain(["rdma_cm".to_owned()]).collect();
    let mut findings = Vec::new();
    for name in &wanted {
        let path = format!("{FOLDER}/{name}");
        match fs::metadata(machine.path(&path)) {
            Err(_) => {
                let found = format!("/{path} is not there");
                findings.push(Diagnosis::bad(
                    State::of_missing(machine),
                    found,
                    modprobe(machine, "rdma_ucm", ""),
                ));
            }
            Ok(file) if !may_write(machine, &file) => {
                let found = format!("/{path} may not be opened (mode {:o})", file.mode() & 0o7777);
                let repair = format!("`sudo chmod a+rw /{path}`; or a rule of udev");
                findings.push(Diagnosis::bad(State::of_missing(machine), found, repair));
            }
            Ok(_) => {}
        }
    }
    if findings.is_empty() {
        findings.push(Diagnosis::ok(format!("/{FOLDER}: {} may be opened", wanted.join(", "))));
    }
    findings
}

/// Whether this process may read and write a file, by its mode.
fn may_write(machine: &Machine, file: &fs::Metadata) -> bool {
    let numbers = |field: &str| -> Vec<u32> {
        let line = machine.status(field).unwrap_or_default();
        line.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect()
    };
    // The effective one is the second of four.
    let effective = |field: &str| numbers(field).get(1).copied();
    let user = effective("Uid");
    let is_ours = |group: u32| effective("Gid") == Some(group) || numbers("Groups").contains(&group);
    let bits = match user {
        Some(0) => return true,
        Some(user) if user == file.uid() => file.mode() >> 6,
        _ if is_ours(file.gid()) => file.mode() >> 3,
        _ => file.mode(),
    };
    bits & 0o6 == 0o6
}
