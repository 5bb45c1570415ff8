//! What a container engine decides about a `stagd`: system calls, capabilities, volumes and devices.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use stag_disk::{Disk, DiskConfig, Method};
use stag_server::machine::Machine;
use stag_server::stagd;

use super::finding::{Diagnosis, State};
use super::{rdma, system};

/// What `dir:` needs to act as its clients' users, and to find files by handle.
const NEEDED: [(u32, &str); 2] = [(6, "SETGID"), (7, "SETUID")];
const USUAL: [(u32, &str); 5] =
    [(0, "CHOWN"), (1, "DAC_OVERRIDE"), (3, "FOWNER"), (4, "FSETID"), (27, "MKNOD")];
const FASTER: [(u32, &str); 1] = [(2, "DAC_READ_SEARCH")];

/// Whether directories are read and written by io_uring: the seccomp profile of the container decides, and only a call tells.
pub(super) fn io_uring(machine: &Machine) -> Vec<Diagnosis> {
    if machine.root() != Path::new("/") {
        return system::io_uring(machine);
    }
    vec![match Disk::new(&DiskConfig::default(), &[]).method() {
        Method::Uring { .. } => Diagnosis::ok("permitted"),
        Method::Helpers(Some(error)) => {
            let found = format!("refused ({error}); threads move the data of dir:, which takes longer");
            let repair = "permit io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile; on the host: \
                          sysctl -w kernel.io_uring_disabled=0";
            Diagnosis::bad(State::Note, found, repair)
        }
        _ => Diagnosis::bad(State::Note, "there is none; threads move the data of dir:", "raise `ulimit -u`"),
    }]
}

/// Whether `dir:` may act as each client's user.
pub(super) fn capabilities(machine: &Machine) -> Vec<Diagnosis> {
    let user = machine.status("Uid").unwrap_or_default();
    if user.split_ascii_whitespace().nth(1) != Some("0") {
        let found = "this user is not root: all that clients make in dir: belongs to this user";
        return vec![Diagnosis::bad(State::Note, found, "run the container as root: --user 0")];
    }
    let lacking = |wanted: &[(u32, &'static str)]| -> Vec<&'static str> {
        let lacking = wanted.iter().filter(|(bit, _)| !machine.is_capable(*bit));
        lacking.map(|(_, name)| *name).collect()
    };
    let mut findings = Vec::new();
    for (wanted, state, without) in [
        (&NEEDED[..], State::Error, "dir: cannot act as its clients' users"),
        (&USUAL[..], State::Warning, "some of what clients may do in dir: fails"),
        (&FASTER[..], State::Note, "dir: finds files by a walk after a restart"),
    ] {
        let lacking = lacking(wanted);
        if !lacking.is_empty() {
            let repair: Vec<String> = lacking.iter().map(|name| format!("--cap-add {name}")).collect();
            let found = format!("{} not here: {without}", lacking.join(", "));
            findings.push(Diagnosis::bad(state, found, repair.join(" ")));
        }
    }
    if findings.is_empty() {
        findings.push(Diagnosis::ok("dir: may act as its clients' users"));
    }
    findings
}

/// Whether what must survive a restart has a place that survives the container.
pub(super) fn state_directory(machine: &Machine) -> Vec<Diagnosis> {
    let repair =
        "mount a volume there, as in -v stag-state:/var/lib/stag; --state-dir of stagd chooses another place";
    let place = match stagd::state_directory() {
        Ok(place) => place,
        Err(problem) => return vec![Diagnosis::bad(State::Error, problem, repair)],
    };
    let shown = place.display();
    let inside =
        |path: &Path| machine.path(path.strip_prefix("/").unwrap_or(path).to_str().unwrap_or_default());
    // Of what is not there yet, the folder that it would be made in.
    let there = place.ancestors().find(|folder| inside(folder).exists()).unwrap_or(Path::new("/"));
    if let Err(error) = access(inside(there), Access::WRITE_OK | Access::EXEC_OK) {
        let found = format!("{shown}: {}", std::io::Error::from(error));
        return vec![Diagnosis::bad(State::Error, found, repair)];
    }
    vec![if is_in_overlay(machine, &place) {
        let found = format!(
            "{shown} is in the container's own layer, and ends with it: clients lose their locks and handles"
        );
        Diagnosis::bad(State::Warning, found, repair)
    } else {
        Diagnosis::ok(format!("{shown} may be written"))
    }]
}

/// Whether the file system at `place` is an overlay.
fn is_in_overlay(machine: &Machine, place: &Path) -> bool {
    let mounts = machine.read("proc/self/mountinfo").unwrap_or_default();
    // "ID PARENT DEVICE ROOT POINT OPTIONS [TAG...] - KIND SOURCE ...": the last of the deepest mounts counts.
    let mounts = mounts.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        Some((PathBuf::from(left.split(' ').nth(4)?), right.split(' ').next()?.to_owned()))
    });
    let above = mounts.filter(|(point, _)| place.starts_with(point));
    above.max_by_key(|(point, _)| point.components().count()).is_some_and(|(_, kind)| kind == "overlay")
}

/// Whether the RDMA devices of the host, if it has some, are in the container.
pub(super) fn devices(machine: &Machine) -> Vec<Diagnosis> {
    let devices = machine.rdma_devices();
    if devices.is_empty() {
        return vec![Diagnosis::ok("no RDMA device is here; iwarp and shm need none")];
    }
    if machine.names("dev/infiniband").is_empty() {
        let found = format!("{} may not be used: /dev/infiniband is not here", devices.join(", "));
        let repair = "--device /dev/infiniband --ulimit memlock=-1";
        return vec![Diagnosis::bad(State::Note, found, repair)];
    }
    rdma::device_files(machine)
}
