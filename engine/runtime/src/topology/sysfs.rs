//! The files of `/sys` that tell of cores, nodes and devices.

use std::fs;
use std::path::Path;

use super::shape::{Core, NumaNode, RdmaDevice, is_nearer};
use crate::cores::{CoreId, CoreSet};

pub(super) fn read_nodes(folder: &Path, online: &CoreSet) -> Vec<NumaNode> {
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
pub(super) fn read_isolated(root: &Path, online: &CoreSet) -> CoreSet {
    read_set(&root.join("sys/devices/system/cpu/isolated")).unwrap_or_default().intersection(online)
}

/// The devices that are near to some cores only, by name.
pub(super) fn read_devices(folder: &Path, online: &CoreSet, nodes: &[NumaNode]) -> Vec<RdmaDevice> {
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

pub(super) fn read_core(folder: &Path, id: CoreId, online: &CoreSet, nodes: &[NumaNode]) -> Core {
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
