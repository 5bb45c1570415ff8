//! Memory: how much may be locked, and the sizes of its pages.

use stag_hugepages::{Inventory, MemoryLimit};
use stag_runtime::Topology;
use stag_server::machine::Machine;
use stag_server::stagd;
use stag_server::values::Size;

use super::finding::{Diagnosis, State};

/// Whether what a device has to reach may be pinned. Memory of the other fabrics is not.
pub(super) fn memlock(machine: &Machine) -> Vec<Diagnosis> {
    let wanted = stagd::memory_unasked(machine.root());
    if !machine.is_lock_limited() {
        return vec![Diagnosis::ok("no limit for this user, who has CAP_IPC_LOCK")];
    }
    let Some(limits) = Inventory::read(machine.root()).memlock else {
        let found = "/proc/self/limits does not tell how much memory may be locked";
        return vec![Diagnosis::bad(State::Note, found, "ulimit -l")];
    };
    let Some(limit) = limits.soft else { return vec![Diagnosis::ok("unlimited")] };
    let found = format!("{} may be locked; a stagd pins {} over verbs", Size(limit), Size(wanted));
    if limit >= wanted {
        return vec![Diagnosis::ok(found)];
    }
    let repair = "`sudo prlimit --pid $$ --memlock=unlimited` in the shell that starts it; of a service: LimitMEMLOCK=infinity";
    vec![Diagnosis::bad(State::of_missing(machine), found, repair)]
}

/// Whether the control group leaves a stagd less memory than the machine would.
pub(super) fn control_group(machine: &Machine) -> Vec<Diagnosis> {
    let wanted = Size(stagd::memory_unasked(machine.root()));
    let Some(MemoryLimit { limit, path }) = Inventory::read(machine.root()).memory_limit else {
        return vec![Diagnosis::ok(format!("no limit of a control group; a stagd takes {wanted}"))];
    };
    let found = format!("the control group has {} of memory; a stagd takes {wanted}", Size(limit));
    vec![if limit / 4 >= stagd::MEMORY_DEFAULT_MAX {
        Diagnosis::ok(found)
    } else {
        let repair = format!("echo max | sudo tee {}; of a container: docker run --memory", path.display());
        Diagnosis::bad(State::Note, found, repair)
    }]
}

/// Whether a stagd fits on the hugepages that are free.
pub(super) fn hugepages(machine: &Machine) -> Vec<Diagnosis> {
    /// Octets of the pages that the repair reserves.
    const PAGE_LEN: u64 = 2 << 20;
    let wanted = stagd::memory_unasked(machine.root());
    let inventory = Inventory::read(machine.root());
    if inventory.pages.is_empty() {
        let repair = "none but another kernel: one with CONFIG_HUGETLBFS, outside of containers that hide it";
        return vec![Diagnosis::bad(State::Note, "this kernel shows none", repair)];
    }
    let free: u64 =
        inventory.pages.iter().map(|pages| pages.page_len * pages.free.saturating_sub(pages.reserved)).sum();
    let mut findings = Vec::new();
    let found = format!("{} are free; a stagd takes {}", Size(free), Size(wanted));
    findings.push(if free >= wanted {
        Diagnosis::ok(found)
    } else {
        let (node, there) = reserved(machine, &inventory, PAGE_LEN);
        let count = there + (wanted - free).div_ceil(PAGE_LEN);
        let node = node.map_or_else(String::new, |node| format!(" --node {node}"));
        let repair = format!("sudo stag hugepages setup --count {count}{node} --apply");
        Diagnosis::bad(State::Note, format!("{found}, the rest on small pages"), repair)
    });
    for limit in inventory.cgroup.iter().filter(|limit| limit.limit < wanted) {
        let path = limit.path.display();
        let found = format!("the control group may use {} of pages of {}", Size(limit.limit), limit.size);
        findings.push(Diagnosis::bad(State::Note, found, format!("echo max | sudo tee {path}")));
    }
    findings
}

/// The node that a stagd would run on, where there are several, and the pages of that size there, which `setup` counts.
fn reserved(machine: &Machine, inventory: &Inventory, page_len: u64) -> (Option<u32>, u64) {
    let core = machine.cores().and_then(|cores| cores.iter().next());
    let topology = Topology::read_from(machine.root()).ok();
    let node = topology.and_then(|topology| Some(topology.core(core?)?.node));
    match node.and_then(|node| inventory.node(node)).filter(|_| inventory.nodes.len() > 1) {
        Some(node) => {
            let pages = node.pages.iter().find(|pages| pages.page_len == page_len);
            (Some(node.id), pages.map_or(0, |pages| pages.total))
        }
        None => {
            let pages = inventory.pages.iter().find(|pages| pages.page_len == page_len);
            (None, pages.map_or(0, |pages| pages.total))
        }
    }
}
