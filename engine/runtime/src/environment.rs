//! Conditions of this machine that spoil a measurement, and how to repair them.
//!
//! `stag perf` prints the findings beside its figures.

use std::fmt;
use std::fs;
use std::path::Path;

use crate::cores::{CoreId, CoreSet};
use crate::topology::Topology;

/// One thing that spoils measurements or costs speed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The thing: `"governor"`.
    pub what: &'static str,
    /// How it was found: `"powersave on cores 0-1"`.
    pub found: String,
    /// Why it matters.
    pub why: &'static str,
    /// What to do about it.
    pub repair: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}; {}", self.what, self.found, self.why, self.repair)
    }
}

/// Looks at this machine, for reactors on `cores`. An empty list: nothing known is wrong.
#[must_use]
pub fn inspect(cores: &CoreSet) -> Vec<Finding> {
    inspect_from(Path::new("/"), cores)
}

/// Looks at the tree at `root`, which holds folders `sys` and `proc`. What cannot be read is not found
/// to be wrong.
#[must_use]
pub fn inspect_from(root: &Path, cores: &CoreSet) -> Vec<Finding> {
    let topology = Topology::read_from(root).ok();
    [
        governor(root, cores),
        hypervisor(root),
        topology.as_ref().and_then(|topology| siblings(topology, cores)),
        topology.as_ref().and_then(|topology| nodes(topology, cores)),
        topology.as_ref().and_then(|topology| isolation(topology, cores)),
        clocksource(root),
        quota(root),
        huge_pages(root),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn governor(root: &Path, cores: &CoreSet) -> Option<Finding> {
    let name =
        |core: CoreId| read(root, &format!("sys/devices/system/cpu/cpu{}/cpufreq/scaling_governor", core.0));
    let slow = |core: CoreId| name(core).filter(|name| name != "performance");
    let affected: CoreSet = cores.iter().filter(|core| slow(*core).is_some()).collect();
    let name = slow(affected.iter().next()?)?;
    Some(Finding {
        what: "governor",
        found: format!("{name} on cores {affected}"),
        why: "the cores change their frequency while they are measured",
        repair: format!("sudo cpupower -c {affected} frequency-set -g performance"),
    })
}

fn hypervisor(root: &Path) -> Option<Finding> {
    let flags = read(root, "proc/cpuinfo")?;
    let mut flags = flags.lines().find(|line| line.starts_with("flags"))?.split_whitespace();
    flags.any(|flag| flag == "hypervisor").then(|| {
        let vendor = read(root, "sys/class/dmi/id/sys_vendor");
        Finding {
            what: "virtual machine",
            found: vendor.unwrap_or_else(|| "the processor says so".to_owned()),
            why: "the host takes the cores away now and then, which shows in the high percentiles",
            repair: "compare ratios rather than absolute figures, or measure on bare metal".to_owned(),
        }
    })
}

fn siblings(topology: &Topology, cores: &CoreSet) -> Option<Finding> {
    let others = |core: CoreId| -> CoreSet {
        let siblings = topology.core(core).map(|core| core.siblings).unwrap_or_default();
        siblings.iter().filter(|sibling| *sibling != core).collect()
    };
    let (core, others) =
        cores.iter().map(|core| (core, others(core))).find(|(_, others)| !others.is_empty())?;
    let both = others.intersection(cores);
    let repair =
        |what: &str| format!("{what}, or switch SMT off: echo off > /sys/devices/system/cpu/smt/control");
    Some(if both.is_empty() {
        Finding {
            what: "SMT",
            found: format!("{core} shares its physical core with {others}"),
            why: "whatever runs there takes execution units and cache away",
            repair: repair("keep other work off the sibling"),
        }
    } else {
        Finding {
            what: "SMT",
            found: format!("cores {} and {both} are one physical core", core.0),
            why: "two reactors on one physical core slow each other down",
            repair: repair("choose cores of different physical cores"),
        }
    })
}

fn nodes(topology: &Topology, cores: &CoreSet) -> Option<Finding> {
    let used = topology.nodes().iter().filter(|node| !node.cores.intersection(cores).is_empty());
    let ids: Vec<String> = used.map(|node| node.id.to_string()).collect();
    (ids.len() > 1).then(|| Finding {
        what: "NUMA",
        found: format!("cores {cores} are on nodes {}", ids.join(",")),
        why: "every cache line between them crosses the interconnect",
        repair: "choose cores of one node, unless that is what you measure".to_owned(),
    })
}

fn isolation(topology: &Topology, cores: &CoreSet) -> Option<Finding> {
    let shared: CoreSet = cores.iter().filter(|core| !topology.isolated().contains(*core)).collect();
    (!shared.is_empty()).then(|| Finding {
        what: "isolation",
        found: format!("the scheduler runs other work on cores {shared} too"),
        why: "a reactor that is preempted shows in the high percentiles",
        // Core 0 stays for the rest of the system.
        repair: match shared.iter().filter(|core| core.0 != 0).collect::<CoreSet>() {
            cores if cores.is_empty() => "choose another core than 0, or keep the machine quiet".to_owned(),
            cores => format!("boot with isolcpus={cores} nohz_full={cores}, or keep the machine quiet"),
        },
    })
}

fn clocksource(root: &Path) -> Option<Finding> {
    let folder = "sys/devices/system/clocksource/clocksource0";
    let current = read(root, &format!("{folder}/current_clocksource"))?;
    // Those of other architectures, and the paravirtual ones, are read without a system call.
    let is_slow = ["hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"].contains(&current.as_str());
    is_slow.then(|| Finding {
        what: "clocksource",
        found: current,
        why: "reading the time takes a system call of about a microsecond",
        repair:
            "see why the kernel distrusts the TSC (dmesg | grep -i tsc); boot with tsc=reliable if it errs"
                .to_owned(),
    })
}

/// The processor time that a container may use (cgroup version 2, of this process's own group).
fn quota(root: &Path) -> Option<Finding> {
    let group = read(root, "proc/self/cgroup")?;
    let group = group.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let group = Path::new("sys/fs/cgroup").join(group);
    let limit = read(root, group.join("cpu.max").to_str()?)?;
    let (quota, period) = limit.split_once(' ')?;
    (quota != "max").then(|| Finding {
        what: "CPU quota",
        found: format!("{quota} of every {period} µs"),
        why: "a reactor that polls uses it up, and is then stopped for the rest of the period",
        repair: "lift the quota (docker --cpus, cpu.max) and give whole cores instead (--cpuset-cpus)"
            .to_owned(),
    })
}

fn huge_pages(root: &Path) -> Option<Finding> {
    let path = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let modes = read(root, path)?;
    let mode = modes.split_once('[')?.1.split_once(']')?.0;
    // Arenas are memfds, so it is the mode for shared memory that counts.
    matches!(mode, "never" | "deny").then(|| Finding {
        what: "transparent huge pages",
        found: format!("{mode} for shared memory"),
        why: "where no huge pages are reserved, arenas fall back to pages of 4 KiB, which cost TLB misses",
        repair: format!("`echo advise | sudo tee /{path}`; or reserve some: `sudo stag hugepages setup --size 2m --count 512 --apply`"),
    })
}

fn read(root: &Path, path: &str) -> Option<String> {
    Some(fs::read_to_string(root.join(path)).ok()?.trim().to_owned())
}
