//! Cores: which may be used, and what slows them.

use stag_runtime::{CoreId, CoreSet, Topology, environment};
use stag_server::machine::Machine;
use stag_server::stagd::CoreList;

use super::finding::{Diagnosis, State};

/// The cores of this process, beside those that are there.
pub(super) fn allowed(machine: &Machine) -> Vec<Diagnosis> {
    let Some(allowed) = machine.cores() else {
        let found = "/proc/self/status does not tell which cores this process may use";
        return vec![Diagnosis::bad(State::Note, found, "taskset -p $$")];
    };
    let Ok(topology) = Topology::read_from(machine.root()) else {
        let found = "/sys does not tell which cores there are";
        return vec![Diagnosis::bad(State::Note, found, "mount -t sysfs sysfs /sys")];
    };
    let online: CoreSet = topology.cores().iter().map(|core| core.id).collect();
    let found = format!("{allowed} may be used, of {online} online");
    let mut findings = vec![if allowed.len() > 1 || online.len() == 1 {
        Diagnosis::ok(found)
    } else {
        let repair = format!("`taskset -pc {online} $$`; or cpuset.cpus of its control group");
        Diagnosis::bad(
            State::Warning,
            format!("{found}: a reactor that polls leaves nothing to others"),
            repair,
        )
    }];
    let isolated = topology.isolated();
    let unused: CoreSet = isolated.iter().filter(|core| !allowed.contains(*core)).collect();
    if !unused.is_empty() {
        let first = unused.iter().next().map_or(0, |core| core.0);
        let found = format!("{unused} are isolated from other work, and may not be used");
        let repair = format!("taskset -c {unused} stagd --cores {first} …");
        findings.push(Diagnosis::bad(State::Note, found, repair));
    }
    findings
}

/// Whether one server can run on `cores`, and what that costs.
pub(super) fn together(machine: &Machine, cores: &CoreList, has_device: bool) -> Vec<Diagnosis> {
    let Ok(topology) = Topology::read_from(machine.root()) else {
        let found = "/sys does not tell which cores there are";
        return vec![Diagnosis::bad(State::Note, found, "mount -t sysfs sysfs /sys")];
    };
    let online: CoreSet = topology.cores().iter().map(|core| core.id).collect();
    let allowed = machine.cores().unwrap_or(online);
    let chosen: CoreSet = cores.iter().collect();
    let mut findings = Vec::new();
    let beyond = |of: &CoreSet| -> CoreSet { chosen.iter().filter(|core| !of.contains(*core)).collect() };
    let absent = beyond(&online);
    if !absent.is_empty() {
        let found = format!("cores {absent} of {cores} are not online; there are {online}");
        findings.push(Diagnosis::bad(State::Error, found, format!("stagd --cores {allowed}")));
    }
    let refused: CoreSet = beyond(&allowed).iter().filter(|core| online.contains(*core)).collect();
    if !refused.is_empty() {
        let found = format!(
            "cores {refused} of {cores} may not be used; the cpuset and the affinity allow {allowed}"
        );
        let repair = format!("`taskset -pc {online} $$`; or cpuset.cpus of its control group");
        findings.push(Diagnosis::bad(State::Error, found, repair));
    }
    let on = |node: u32| -> CoreSet {
        allowed.iter().filter(|core| topology.node_of(*core) == Some(node)).collect()
    };
    let mut nodes: Vec<u32> = chosen.iter().filter_map(|core| topology.node_of(core)).collect();
    nodes.sort_unstable();
    nodes.dedup();
    if let [first, .., last] = nodes[..] {
        let found =
            format!("cores {cores} are on NUMA nodes {first} to {last}: Calls between them cost more");
        let best = nodes.iter().map(|node| on(*node)).max_by_key(CoreSet::len).unwrap_or_default();
        findings.push(Diagnosis::bad(State::Warning, found, format!("stagd --cores {best}")));
    }
    for name in machine.rdma_devices().iter().filter(|_| has_device) {
        let node = || machine.value::<u32>(&format!("sys/class/infiniband/{name}/device/numa_node"));
        let of_node = || topology.nodes().iter().find(|it| Some(it.id) == node()).map(|it| it.cores);
        let Some(near) = topology.near(name).or_else(of_node) else { continue };
        let far: CoreSet = beyond(&near).intersection(&online);
        if !far.is_empty() {
            let found = format!("cores {far} of {cores} are far from {name}; near to it are {near}");
            let usable = near.intersection(&allowed);
            let better = if usable.is_empty() { near } else { usable };
            findings.push(Diagnosis::bad(State::Warning, found, format!("stagd --cores {better}")));
        }
    }
    let siblings = |core: CoreId| topology.core(core).map(|core| core.siblings).unwrap_or_default();
    let shared: CoreSet = chosen
        .iter()
        .filter(|core| siblings(*core).iter().any(|other| other != *core && chosen.contains(other)))
        .collect();
    if !shared.is_empty() {
        let one_each: CoreSet = chosen
            .iter()
            .filter(|core| siblings(*core).iter().all(|other| other >= *core || !chosen.contains(other)))
            .collect();
        let found = format!("cores {shared} of {cores} share physical cores, and each slows another down");
        findings.push(Diagnosis::bad(State::Note, found, format!("stagd --cores {one_each}")));
    }
    if findings.is_empty() {
        findings.push(Diagnosis::ok(format!("{cores} may be used, and are near to each other")));
    }
    findings
}

/// How bad what [`environment()`] looks for is, and what is said where it is not found.
const ENVIRONMENT: [(&str, State, &str); 8] = [
    ("governor", State::Note, "none that slows the cores"),
    ("virtual machine", State::Note, "this is none"),
    ("SMT", State::Note, "no core shares its physical core"),
    ("NUMA", State::Note, "the cores are on one node"),
    ("isolation", State::Note, "no other work on the cores"),
    ("clocksource", State::Warning, "the time is read without a system call"),
    ("CPU quota", State::Warning, "none"),
    ("transparent huge pages", State::Note, "allowed for shared memory, or of no concern"),
];

/// What spoils measurements and costs speed: `stag perf` shows the same.
pub(super) fn environment(machine: &Machine) -> Vec<Diagnosis> {
    let cores = machine.cores().unwrap_or_default();
    let found = environment::inspect_from(machine.root(), &cores);
    let known = ENVIRONMENT.iter().map(|(what, state, well)| {
        match found.iter().find(|finding| finding.what == *what) {
            Some(finding) => bad(*state, finding),
            None => Diagnosis::ok(format!("{what}: {well}")),
        }
    });
    let is_new = |finding: &&environment::Finding| ENVIRONMENT.iter().all(|(what, ..)| finding.what != *what);
    known.chain(found.iter().filter(is_new).map(|finding| bad(State::Note, finding))).collect()
}

fn bad(state: State, finding: &environment::Finding) -> Diagnosis {
    let environment::Finding { what, found, why, repair } = finding;
    Diagnosis::bad(state, format!("{what}: {found}; {why}"), repair.clone())
}
