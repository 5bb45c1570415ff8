//! The shape of the machine: which cores share what, and which node of memory is near them.
//!
//! Read from `/sys`, so no library of the system is needed. If files are missing (a container, an odd kernel) the picture is
//! simpler: one node, no siblings. With the feature `hwloc`, the library hwloc reads this machine's topology; it knows more
//! machines, and `tests/hwloc.rs` shows that both agree.

use std::fs;
use std::io;
use std::path::Path;

use crate::cores::{CoreId, CoreSet};

#[cfg(feature = "hwloc")]
mod hwloc;

/// The online cores of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    cores: Vec<Core>,
    nodes: Vec<NumaNode>,
    isolated: CoreSet,
    devices: Vec<RdmaDevice>,
}

/// An RDMA device that is nearer to some cores than to others.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RdmaDevice {
    name: String,
    near: CoreSet,
}

/// A logical CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// Its number.
    pub id: CoreId,
    /// The NUMA node whose memory is nearest.
    pub node: u32,
    /// The processor package (socket).
    pub package: u32,
    /// The logical CPUs of the same physical core, itself included (SMT siblings).
    pub siblings: CoreSet,
    /// The logical CPUs that share its last-level cache (L3, or the highest there is), itself included.
    pub cache: CoreSet,
}

/// A NUMA node. One without cores has memory only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// Its number.
    pub id: u32,
    /// Its online cores.
    pub cores: CoreSet,
}

/// Why the topology could not be read.
#[derive(Debug, thiserror::Error)]
#[error("topology: {path}: {source}; is sysfs mounted at /sys?")]
pub struct TopologyError {
    /// The file that is missing or makes no sense.
    pub path: String,
    /// What is wrong with it.
    pub source: io::Error,
}

impl Topology {
    /// Reads this machine's: with hwloc, if built with that feature and it can, else from `/sys`.
    pub fn read() -> Result<Topology, TopologyError> {
        #[cfg(feature = "hwloc")]
        if let Some(topology) = Topology::read_hwloc() {
            return Ok(topology);
        }
        Topology::read_sysfs(Path::new("/"))
    }

    /// Reads this machine's with the library hwloc. `None`: it fails, or finds no core.
    #[cfg(feature = "hwloc")]
    #[must_use]
    pub fn read_hwloc() -> Option<Topology> {
        hwloc::read()
    }

    /// Reads the tree at `root`, which holds a `sys` folder. `/` is this machine.
    pub fn read_from(root: &Path) -> Result<Topology, TopologyError> {
        if root == Path::new("/") { Topology::read() } else { Topology::read_sysfs(root) }
    }

    /// Reads the tree at `root` without a library, whatever the features.
    pub fn read_sysfs(root: &Path) -> Result<Topology, TopologyError> {
        let system = root.join("sys/devices/system");
        let path = system.join("cpu/online");
        let failed = |source| TopologyError { path: path.display().to_string(), source };
        let online: CoreSet = fs::read_to_string(&path)
            .map_err(failed)?
            .parse()
            .map_err(|error| failed(io::Error::new(io::ErrorKind::InvalidData, error)))?;

        let nodes = read_nodes(&system.join("node"), &online);
        let cores = online.iter().map(|id| read_core(&system.join("cpu"), id, &online, &nodes)).collect();
        let isolated = read_isolated(root, &online);
        let devices = read_devices(&root.join("sys/class/infiniband"), &online, &nodes);
        Ok(Topology { cores, nodes, isolated, devices })
    }

    /// The online cores, lowest id first.
    #[must_use]
    pub fn cores(&self) -> &[Core] {
        &self.cores
    }

    /// The NUMA nodes, lowest id first. There is one at least.
    #[must_use]
    pub fn nodes(&self) -> &[NumaNode] {
        &self.nodes
    }

    /// The cores that the scheduler leaves alone (`isolcpus`).
    #[must_use]
    pub fn isolated(&self) -> CoreSet {
        self.isolated
    }

    /// One core; `None` when it is not online.
    #[must_use]
    pub fn core(&self, id: CoreId) -> Option<&Core> {
        self.cores.binary_search_by_key(&id, |core| core.id).ok().map(|index| &self.cores[index])
    }

    /// The NUMA node of a core; `None` when it is not online.
    #[must_use]
    pub fn node_of(&self, id: CoreId) -> Option<u32> {
        self.core(id).map(|core| core.node)
    }

    /// The cores nearest to an RDMA device. `None`: it is near to all of them, or the machine does not tell.
    #[must_use]
    pub fn near(&self, device: &str) -> Option<CoreSet> {
        self.devices.iter().find(|it| it.name == device).map(|it| it.near)
    }

    /// Chooses up to `count` of the `allowed` cores for reactors that talk to each other.
    ///
    /// In this order: isolated cores before others; physical cores before SMT siblings of chosen ones;
    /// cores that share the first one's cache, then its node, before others; core 0, which takes most
    /// interrupts, last among equals. Fewer come back only when fewer are allowed.
    #[must_use]
    pub fn choose(&self, allowed: &CoreSet, count: usize) -> Vec<CoreId> {
        self.choose_near(allowed, count, None)
    }

    /// Chooses as [`choose`](Topology::choose) does, cores of `near` before all others: those nearest to a device.
    #[must_use]
    pub fn choose_near(&self, allowed: &CoreSet, count: usize, near: Option<CoreSet>) -> Vec<CoreId> {
        let mut free: Vec<&Core> = self.cores.iter().filter(|core| allowed.contains(core.id)).collect();
        let mut chosen: Vec<&Core> = Vec::new();
        while chosen.len() < count {
            let cost = |core: &&Core| {
                let is_taken = chosen.iter().any(|other| other.siblings.contains(core.id));
                let first = chosen.first();
                (
                    near.is_some_and(|near| !near.contains(core.id)),
                    !self.isolated.contains(core.id),
                    is_taken,
                    first.is_some_and(|first| !first.cache.contains(core.id)),
                    first.is_some_and(|first| first.node != core.node),
                    core.id == CoreId(0),
                    core.id,
                )
            };
            let Some(best) = free.iter().copied().min_by_key(cost) else { break };
            free.retain(|core| core.id != best.id);
            chosen.push(best);
        }
        chosen.into_iter().map(|core| core.id).collect()
    }
}

fn read_nodes(folder: &Path, online: &CoreSet) -> Vec<NumaNode> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut nodes: Vec<NumaNode> = entries
        .filter_map(|entry| {
            let id = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let cores = read_set(&entry.path().join("cpulist"))?.intersection(online);
            Some(NumaNode { id, cores })
        })
        .collect();
    nodes.sort_unstable_by_key(|node| node.id);
    if nodes.is_empty() {
        nodes.push(NumaNode { id: 0, cores: *online });
    }
    nodes
}

/// The cores that the scheduler leaves alone, of those online.
fn read_isolated(root: &Path, online: &CoreSet) -> CoreSet {
    read_set(&root.join("sys/devices/system/cpu/isolated")).unwrap_or_default().intersection(online)
}

/// The devices that are near to some cores only, by name.
fn read_devices(folder: &Path, online: &CoreSet, nodes: &[NumaNode]) -> Vec<RdmaDevice> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut devices: Vec<RdmaDevice> = entries
        .filter_map(|entry| {
            let device = entry.path().join("device");
            let of_node = || {
                let id = read_number(&device.join("numa_node"))?;
                nodes.iter().find(|node| node.id == id).map(|node| node.cores)
            };
            let near = read_set(&device.join("local_cpulist")).or_else(of_node)?.intersection(online);
            Some(RdmaDevice { name: entry.file_name().into_string().ok()?, near })
        })
        .filter(|device| is_nearer(&device.near, online))
        .collect();
    devices.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    devices
}

/// Whether being near to these cores says anything.
fn is_nearer(near: &CoreSet, online: &CoreSet) -> bool {
    !near.is_empty() && near != online
}

fn read_core(folder: &Path, id: CoreId, online: &CoreSet, nodes: &[NumaNode]) -> Core {
    let folder = folder.join(format!("cpu{}", id.0));
    let alone: CoreSet = [id].into_iter().collect();
    // A set that does not name the core itself makes no sense, and is not believed.
    let sensible = |set: Option<CoreSet>| {
        set.map(|set| set.intersection(online)).filter(|set| set.contains(id)).unwrap_or(alone)
    };
    Core {
        id,
        node: nodes.iter().find(|node| node.cores.contains(id)).map_or(0, |node| node.id),
        package: read_number(&folder.join("topology/physical_package_id")).unwrap_or(0),
        siblings: sensible(read_set(&folder.join("topology/thread_siblings_list"))),
        cache: sensible(read_cache(&folder.join("cache"))),
    }
}

/// Who shares the highest level of cache.
fn read_cache(folder: &Path) -> Option<CoreSet> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let levels = entries.filter_map(|entry| {
        let level: u32 = read_number(&entry.path().join("level"))?;
        Some((level, read_set(&entry.path().join("shared_cpu_list"))?))
    });
    levels.max_by_key(|(level, _)| *level).map(|(_, set)| set)
}

fn read_set(path: &Path) -> Option<CoreSet> {
    fs::read_to_string(path).ok()?.parse().ok()
}

fn read_number(path: &Path) -> Option<u32> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}
