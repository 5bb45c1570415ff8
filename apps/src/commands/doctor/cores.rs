//! Cores: which may be used, and what else slows them.

use stag::runtime::{CoreSet, Topology, environment};

use super::finding::{Finding, State};
use super::machine::Machine;

/// The cores of this process, beside those that are there.
pub(super) fn allowed(machine: &Machine) -> Vec<Finding> {
    let Some(allowed) = machine.cores() else {
        let found = "/proc/self/status does not tell which cores this process may use";
        return vec![Finding::bad(State::Note, found, "taskset -p $$")];
    };
    let Ok(topology) = Topology::read_from(machine.root()) else {
        let found = "/sys does not tell which cores there are";
        return vec![Finding::bad(State::Note, found, "mount -t sysfs sysfs /sys")];
    };
    let online: CoreSet = topology.cores().iter().map(|core| core.id).collect();
    let found = format!("{allowed} may be used, of {online} online");
    let mut findings = vec![if allowed.len() > 1 || online.len() == 1 {
        Finding::ok(found)
    } else {
        let repair = format!("`taskset -pc {online} $$`; or cpuset.cpus of its control group");
        Finding::bad(
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
        let repair = format!("taskset -c {unused} stagd --core {first} …");
        findings.push(Finding::bad(State::Note, found, repair));
    }
    findings
}

/// How bad what [`environment`] looks for is, and what is said where it is not found.
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
pub(super) fn environment(machine: &Machine) -> Vec<Finding> {
    let cores = machine.cores().unwrap_or_default();
    let found = environment::inspect_from(machine.root(), &cores);
    let known = ENVIRONMENT.iter().map(|(what, state, well)| {
        match found.iter().find(|finding| finding.what == *what) {
            Some(finding) => bad(*state, finding),
            None => Finding::ok(format!("{what}: {well}")),
        }
    });
    let is_new = |finding: &&environment::Finding| ENVIRONMENT.iter().all(|(what, ..)| finding.what != *what);
    known.chain(found.iter().filter(is_new).map(|finding| bad(State::Note, finding))).collect()
}

fn bad(state: State, finding: &environment::Finding) -> Finding {
    let environment::Finding { what, found, why, repair } = finding;
    Finding::bad(state, format!("{what}: {found}; {why}"), repair.clone())
}
