//! Topology and environment, on trees that look like `/sys` and `/proc` of other machines.

// Nothing here runs under loom's scheduler.
#![cfg(not(loom))]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use stag_runtime::{CoreId, CoreSet, Finding, Topology, environment};

/// A folder that goes away with the test.
struct Tree {
    root: PathBuf,
}

impl Tree {
    fn new() -> Tree {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("stag-machine-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let root = std::env::temp_dir().join(name);
        fs::create_dir_all(&root).unwrap();
        Tree { root }
    }

    fn file(self, path: &str, text: &str) -> Tree {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
        self
    }

    fn core(self, id: usize, package: u32, siblings: &str, cache: &str) -> Tree {
        let folder = format!("sys/devices/system/cpu/cpu{id}");
        self.file(&format!("{folder}/topology/physical_package_id"), &package.to_string())
            .file(&format!("{folder}/topology/thread_siblings_list"), siblings)
            .file(&format!("{folder}/cache/index0/level"), "1")
            .file(&format!("{folder}/cache/index0/shared_cpu_list"), siblings)
            .file(&format!("{folder}/cache/index3/level"), "3")
            .file(&format!("{folder}/cache/index3/shared_cpu_list"), cache)
    }

    /// Two packages, each a node with two physical cores of two threads; core 7 is offline.
    fn two_sockets() -> Tree {
        Tree::new()
            .file("sys/devices/system/cpu/online", "0-6")
            .file("sys/devices/system/cpu/isolated", "")
            .file("sys/devices/system/node/online", "0-1")
            .file("sys/devices/system/node/node1/cpulist", "2-3,6-7")
            .file("sys/devices/system/node/node0/cpulist", "0-1,4-5")
            .core(0, 0, "0,4", "0-1,4-5")
            .core(1, 0, "1,5", "0-1,4-5")
            .core(2, 1, "2,6", "2-3,6-7")
            .core(3, 1, "3,7", "2-3,6-7")
            .core(4, 0, "0,4", "0-1,4-5")
            .core(5, 0, "1,5", "0-1,4-5")
            .core(6, 1, "2,6", "2-3,6-7")
    }

    fn topology(&self) -> Topology {
        Topology::read_from(&self.root).unwrap()
    }

    fn inspect(&self, cores: &str) -> Vec<Finding> {
        environment::inspect_from(&self.root, &set(cores))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn set(list: &str) -> CoreSet {
    list.parse().unwrap()
}

fn ids(cores: Vec<CoreId>) -> Vec<usize> {
    cores.into_iter().map(|core| core.0).collect()
}

#[test]
fn two_sockets_are_two_nodes_with_siblings_and_caches() {
    let topology = Tree::two_sockets().topology();
    assert_eq!(topology.cores().len(), 7);
    assert_eq!(topology.nodes().len(), 2);
    assert_eq!(topology.nodes()[0].cores, set("0-1,4-5"));
    assert_eq!(topology.nodes()[1].cores, set("2-3,6"), "core 7 is offline");
    assert_eq!(topology.node_of(CoreId(6)), Some(1));
    assert_eq!(topology.node_of(CoreId(7)), None);
    let core = topology.core(CoreId(3)).unwrap();
    assert_eq!((core.package, core.siblings, core.cache), (1, set("3"), set("2-3,6")));
    assert_eq!(topology.core(CoreId(4)).unwrap().siblings, set("0,4"));
}

#[test]
fn a_tree_with_the_list_of_cores_alone_is_one_node() {
    let tree = Tree::new().file("sys/devices/system/cpu/online", "0-1");
    let topology = tree.topology();
    assert_eq!(topology.nodes().len(), 1);
    assert_eq!(topology.nodes()[0].cores, set("0-1"));
    assert_eq!(topology.core(CoreId(1)).unwrap().siblings, set("1"));
    assert!(topology.isolated().is_empty());
}

#[test]
fn a_tree_without_cores_is_an_error_that_names_the_file() {
    let error = Topology::read_from(&Tree::new().root).unwrap_err();
    assert!(error.to_string().contains("cpu/online"), "{error}");
    let error = Tree::new().file("sys/devices/system/cpu/online", "many");
    let error = Topology::read_from(&error.root).unwrap_err();
    assert!(error.to_string().contains("many"), "{error}");
}

#[test]
fn reactors_get_physical_cores_of_one_cache_first() {
    let topology = Tree::two_sockets().topology();
    let all = set("0-7");
    assert_eq!(ids(topology.choose(&all, 2)), [1, 4], "one cache, two physical cores, not core 0");
    assert_eq!(ids(topology.choose(&all, 3)), [1, 4, 2], "another socket before a sibling");
    assert_eq!(ids(topology.choose(&all, 100)).len(), 7);
    assert_eq!(ids(topology.choose(&set("0-1"), 2)), [1, 0]);
    assert_eq!(ids(topology.choose(&set("2,6"), 2)), [2, 6], "siblings, when nothing else is allowed");
    assert_eq!(ids(topology.choose(&set("7"), 1)), [0; 0], "offline");
}

#[test]
fn reactors_get_isolated_cores_first() {
    let tree = Tree::two_sockets().file("sys/devices/system/cpu/isolated", "3,5");
    let topology = tree.topology();
    assert_eq!(topology.isolated(), set("3,5"));
    assert_eq!(ids(topology.choose(&set("0-6"), 3)), [3, 5, 2]);
}

#[test]
fn a_device_is_near_to_the_cores_that_its_bus_says_or_to_its_nodes() {
    let folder = "sys/class/infiniband";
    let tree = Tree::two_sockets()
        .file(&format!("{folder}/bus/device/local_cpulist"), "2,6-7")
        .file(&format!("{folder}/bus/device/numa_node"), "0")
        .file(&format!("{folder}/node/device/numa_node"), "1")
        .file(&format!("{folder}/anywhere/device/numa_node"), "-1")
        .file(&format!("{folder}/all/device/local_cpulist"), "0-7")
        .file(&format!("{folder}/software/node_type"), "4: RNIC");
    let topology = tree.topology();
    assert_eq!(topology.near("bus"), Some(set("2,6")), "core 7 is offline");
    assert_eq!(topology.near("node"), Some(set("2-3,6")));
    for name in ["anywhere", "all", "software", "absent"] {
        assert_eq!(topology.near(name), None, "{name}");
    }
}

#[test]
fn cores_near_a_device_come_before_all_others() {
    let topology = Tree::two_sockets().file("sys/devices/system/cpu/isolated", "1").topology();
    let near = |list: &str| Some(set(list));
    assert_eq!(ids(topology.choose(&set("0-6"), 2)), [1, 4]);
    assert_eq!(ids(topology.choose_near(&set("0-6"), 2, near("2-3,6"))), [2, 3]);
    assert_eq!(
        ids(topology.choose_near(&set("0-2"), 2, near("2-3,6"))),
        [2, 1],
        "what is left, in its order"
    );
    assert_eq!(ids(topology.choose_near(&set("0-1"), 1, near("2-3,6"))), [1]);
}

#[test]
fn this_machine_has_a_topology() {
    let topology = Topology::read().unwrap();
    let allowed = stag_runtime::affinity::allowed();
    assert!(!topology.choose(&allowed, 1).is_empty(), "{topology:?}, allowed {allowed}");
    for core in topology.cores() {
        assert!(core.siblings.contains(core.id) && core.cache.contains(core.id));
    }
}

fn found<'a>(findings: &'a [Finding], what: &str) -> Option<&'a str> {
    findings.iter().find(|finding| finding.what == what).map(|finding| finding.found.as_str())
}

#[test]
fn a_quiet_machine_has_no_findings() {
    let tree = Tree::two_sockets()
        .core(0, 0, "0", "0-1")
        .core(1, 0, "1", "0-1")
        .file("sys/devices/system/cpu/isolated", "0-1")
        .file("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance")
        .file("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc")
        .file(
            "sys/kernel/mm/transparent_hugepage/shmem_enabled",
            "always within_size [advise] never deny force",
        )
        .file("proc/cpuinfo", "processor : 0\nflags : fpu vme constant_tsc nonstop_tsc")
        .file("proc/self/cgroup", "0::/")
        .file("sys/fs/cgroup/cpu.max", "max 100000");
    assert_eq!(tree.inspect("0-1"), []);
}

#[test]
fn each_spoiler_is_found_with_its_repair() {
    let tree = Tree::two_sockets()
        .file("sys/devices/system/cpu/isolated", "1")
        .file("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave")
        .file("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance")
        .file("sys/devices/system/cpu/cpu4/cpufreq/scaling_governor", "powersave")
        .file("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet")
        .file(
            "sys/kernel/mm/transparent_hugepage/shmem_enabled",
            "always within_size advise [never] deny force",
        )
        .file("sys/class/dmi/id/sys_vendor", "QEMU")
        .file("proc/cpuinfo", "processor : 0\nflags : fpu hypervisor vme")
        .file("proc/self/cgroup", "1:cpu:/old\n0::/stag.slice")
        .file("sys/fs/cgroup/stag.slice/cpu.max", "150000 100000");
    let findings = tree.inspect("0-2,4");
    assert_eq!(found(&findings, "governor"), Some("powersave on cores 0,4"));
    assert_eq!(found(&findings, "virtual machine"), Some("QEMU"));
    assert_eq!(found(&findings, "SMT"), Some("cores 0 and 4 are one physical core"));
    assert_eq!(found(&findings, "NUMA"), Some("cores 0-2,4 are on nodes 0,1"));
    assert_eq!(found(&findings, "isolation"), Some("the scheduler runs other work on cores 0,2,4 too"));
    assert_eq!(found(&findings, "clocksource"), Some("hpet"));
    assert_eq!(found(&findings, "CPU quota"), Some("150000 of every 100000 µs"));
    assert_eq!(found(&findings, "transparent huge pages"), Some("never for shared memory"));
    assert_eq!(findings.len(), 8);
    let isolation = findings.iter().find(|finding| finding.what == "isolation").expect("found above");
    assert!(isolation.repair.contains("isolcpus=2,4 "), "core 0 stays for the system: {}", isolation.repair);
    for finding in &findings {
        assert!(!finding.why.is_empty() && !finding.repair.is_empty());
        assert!(!finding.to_string().contains('\n'), "one line each: {finding}");
    }
}

#[test]
fn an_idle_sibling_is_a_lesser_finding() {
    let findings = Tree::two_sockets().inspect("0-1");
    assert_eq!(found(&findings, "SMT"), Some("core 0 shares its physical core with 4"));
}

#[test]
fn an_empty_tree_has_no_findings() {
    assert_eq!(environment::inspect_from(Path::new("/nonexistent"), &set("0-1")), []);
}
