//! This machine's topology, as the library hwloc finds it.

use std::ops::Deref;
use std::path::Path;

use hwlocality::Topology as Machine;
use hwlocality::cpu::cpuset::CpuSet;
use hwlocality::object::TopologyObject;
use hwlocality::object::types::ObjectType;
use hwlocality::topology::builder::{BuildFlags, TypeFilter};

use super::shape::{Core, NumaNode, RdmaDevice, Topology, is_nearer};
use super::sysfs::read_isolated;
use crate::cores::{CoreId, CoreSet};

/// `None`: hwloc fails, or found no core.
pub(super) fn read() -> Option<Topology> {
    // Cores outside of the cpuset are there, too: `affinity` knows what is allowed.
    let builder = Machine::builder().with_flags(BuildFlags::INCLUDE_DISALLOWED).ok()?;
    let machine = builder.with_io_type_filter(TypeFilter::KeepImportant).ok()?.build().ok()?;

    let online = machine.objects_with_type(ObjectType::PU).filter_map(|unit| unit.os_index().map(CoreId));
    let online: CoreSet = online.collect();
    let mut nodes: Vec<NumaNode> = machine
        .objects_with_type(ObjectType::NUMANode)
        .filter_map(|node| {
            Some(NumaNode { id: number(node.os_index()?)?, cores: cores(node).intersection(&online) })
        })
        .collect();
    nodes.sort_unstable_by_key(|node| node.id);
    if online.is_empty() || nodes.is_empty() {
        return None;
    }

    let mut cores: Vec<Core> =
        machine.objects_with_type(ObjectType::PU).filter_map(|unit| core(unit, &nodes)).collect();
    cores.sort_unstable_by_key(|core| core.id);
    // hwloc does not tell which cores the scheduler leaves alone.
    let isolated = read_isolated(Path::new("/"), &online);
    Some(Topology { cores, nodes, isolated, devices: devices(&machine, &online) })
}

fn core(unit: &TopologyObject, nodes: &[NumaNode]) -> Option<Core> {
    let id = CoreId(unit.os_index()?);
    let alone: CoreSet = [id].into_iter().collect();
    let package = unit.first_ancestor_with_type(ObjectType::Package).and_then(TopologyObject::os_index);
    // From the unit upwards levels grow: the last cache is the highest.
    let cache = unit.ancestors().filter(|object| object.object_type().is_cpu_data_cache()).last();
    Some(Core {
        id,
        node: nodes.iter().find(|node| node.cores.contains(id)).map_or(0, |node| node.id),
        package: package.and_then(number).unwrap_or(0),
        siblings: unit.first_ancestor_with_type(ObjectType::Core).map_or(alone, cores),
        cache: cache.map_or(alone, cores),
    })
}

/// The RDMA devices that are near to some cores only, by name.
fn devices(machine: &Machine, online: &CoreSet) -> Vec<RdmaDevice> {
    let mut devices: Vec<RdmaDevice> = machine
        .objects_with_type(ObjectType::OSDevice)
        .filter_map(|device| {
            let name = device.name()?.to_str().ok()?.to_owned();
            // hwloc lists disks and network cards, too.
            let is_rdma = Path::new("/sys/class/infiniband").join(&name).exists();
            let near = cores(device.first_non_io_ancestor()?).intersection(online);
            (is_rdma && is_nearer(&near, online)).then_some(RdmaDevice { name, near })
        })
        .collect();
    devices.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    devices
}

/// The cores that an object covers.
fn cores(object: &TopologyObject) -> CoreSet {
    object.cpuset().map(|set| core_set(&*set)).unwrap_or_default()
}

fn core_set(set: impl Deref<Target = CpuSet>) -> CoreSet {
    set.iter_set().map(|index| CoreId(usize::from(index))).collect()
}

fn number(index: usize) -> Option<u32> {
    u32::try_from(index).ok()
}
