//! RDMA devices and their ports, as sysfs shows them.

use stag::runtime::{CoreSet, Topology};

use super::finding::{Finding, State};
use super::machine::Machine;

/// Netdev MTU that carries InfiniBand's largest, 4096 octets, with all headers that the kernel allows for (96 octets).
const NETDEV_MTU: u32 = 4096 + 96;

/// A port of a device.
struct Port {
    /// `mlx5_0 port 1`.
    name: String,
    /// Its folder in sysfs.
    folder: String,
    /// `4: ACTIVE`.
    state: String,
    is_iwarp: bool,
    is_ethernet: bool,
    /// The network interface, where there is one.
    netdev: Option<String>,
}

impl Port {
    fn is_active(&self) -> bool {
        self.state.ends_with(" ACTIVE")
    }

    fn is_roce(&self) -> bool {
        self.is_ethernet && !self.is_iwarp
    }
}

fn all(machine: &Machine) -> Vec<Port> {
    let mut ports = Vec::new();
    for device in machine.rdma_devices() {
        let folder = format!("sys/class/infiniband/{device}");
        let node_type = machine.read(&format!("{folder}/node_type")).unwrap_or_default();
        for number in machine.names(&format!("{folder}/ports")) {
            let folder = format!("{folder}/ports/{number}");
            let read = |name: &str| machine.read(&format!("{folder}/{name}")).unwrap_or_default();
            ports.push(Port {
                name: format!("{device} port {number}"),
                state: read("state"),
                is_iwarp: node_type.ends_with("RNIC"),
                is_ethernet: read("link_layer") == "Ethernet",
                netdev: Some(read("gid_attrs/ndevs/0")).filter(|name| !name.is_empty()),
                folder,
            });
        }
    }
    ports
}

/// Whether there is a device at all.
pub(super) fn present(machine: &Machine) -> Vec<Finding> {
    let devices = machine.rdma_devices();
    if devices.is_empty() {
        let netdev = machine.interface();
        let repair = format!(
            "sudo modprobe siw && sudo rdma link add siw0 type siw netdev {netdev}, for one in software"
        );
        return vec![Finding::bad(
            machine.missing(),
            "none; verbs:// does not work without, shm:// and iwarp:// do",
            repair,
        )];
    }
    let named = devices.iter().map(|device| {
        let read = |name: &str| machine.read(&format!("sys/class/infiniband/{device}/{name}"));
        let firmware = read("fw_ver").filter(|version| !version.is_empty());
        firmware.map_or_else(|| device.clone(), |version| format!("{device} (firmware {version})"))
    });
    vec![Finding::ok(named.collect::<Vec<_>>().join(", "))]
}

/// Whether a port is active: one has to be, others may be unused.
pub(super) fn ports(machine: &Machine) -> Vec<Finding> {
    let ports = all(machine);
    let state = if ports.iter().any(Port::is_active) { State::Note } else { machine.missing() };
    let each = ports.iter().map(|port| {
        let found = format!("{}: {}", port.name, port.state);
        if port.is_active() {
            return Finding::ok(found);
        }
        let repair = match &port.netdev {
            Some(netdev) => format!("sudo ip link set {netdev} up; then the cable, and the switch"),
            None if port.is_ethernet => {
                "sudo ip link set NETDEV up, of its network interface: rdma link".to_owned()
            }
            None => "the cable; and a subnet manager: sudo systemctl start opensm, on one machine".to_owned(),
        };
        Finding::bad(state, found, repair)
    });
    each.collect()
}

/// Whether the network interface lets RoCE use its largest MTU.
pub(super) fn mtu(machine: &Machine) -> Vec<Finding> {
    let each = all(machine).into_iter().filter_map(|port| {
        let netdev = port.netdev.as_ref()?;
        let mtu: u32 = machine.value(&format!("sys/class/net/{netdev}/mtu"))?;
        if !port.is_roce() {
            return Some(Finding::ok(format!("{}: {netdev} has {mtu}", port.name)));
        }
        let active = [4096, 2048, 1024, 512].into_iter().find(|active| active + 96 <= mtu).unwrap_or(256);
        let found = format!("{}: {netdev} has {mtu}, so that RoCE can use {active} of 4096", port.name);
        Some(if mtu >= NETDEV_MTU {
            Finding::ok(found)
        } else {
            let repair = format!(
                "sudo ip link set {netdev} mtu 4200 or more, on all machines and switches of that network"
            );
            Finding::bad(State::Note, found, repair)
        })
    });
    each.collect()
}

/// Whether RoCE ports have a GID of version 2, which can be routed.
pub(super) fn gids(machine: &Machine) -> Vec<Finding> {
    let each = all(machine).into_iter().filter(Port::is_roce).map(|port| {
        let mut indexes: Vec<u32> = machine
            .names(&format!("{}/gid_attrs/types", port.folder))
            .iter()
            .filter_map(|name| name.parse().ok())
            .collect();
        indexes.sort_unstable();
        let gid = |index: u32| -> Option<String> {
            // Unused indexes cannot be read, or are zeros.
            let kind = machine.read(&format!("{}/gid_attrs/types/{index}", port.folder))?;
            let gid = machine.read(&format!("{}/gids/{index}", port.folder))?;
            (kind == "RoCE v2" && gid.chars().any(|c| !matches!(c, '0' | ':'))).then_some(gid)
        };
        match indexes.into_iter().find_map(|index| Some((index, gid(index)?))) {
            Some((index, gid)) => Finding::ok(format!("{}: index {index} is RoCEv2, {gid}", port.name)),
            None => {
                let netdev = port.netdev.as_deref().unwrap_or("NETDEV");
                let repair =
                    format!("sudo ip link set {netdev} up && sudo ip address add ADDRESS/24 dev {netdev}");
                Finding::bad(machine.missing(), format!("{}: no GID of RoCEv2", port.name), repair)
            }
        }
    });
    each.collect()
}

/// Whether the cores that may be used are near the devices.
pub(super) fn nodes(machine: &Machine) -> Vec<Finding> {
    let Ok(topology) = Topology::read_from(machine.root()) else { return Vec::new() };
    let allowed = machine.cores().unwrap_or_default();
    let each = machine.rdma_devices().into_iter().map(|device| {
        let node: Option<u32> = machine.value(&format!("sys/class/infiniband/{device}/device/numa_node"));
        // -1 is a device that is near to none, or of a machine with one.
        let Some(node) = node else { return Finding::ok(format!("{device} is near to all cores")) };
        let near = topology.nodes().iter().find(|it| it.id == node).map(|it| it.cores).unwrap_or_default();
        let usable: CoreSet = near.intersection(&allowed);
        if let Some(core) = usable.iter().next() {
            return Finding::ok(format!(
                "{device} is on node {node}, as are cores {usable}: stagd --core {}",
                core.0
            ));
        }
        let other = topology.nodes().iter().find(|it| !it.cores.intersection(&allowed).is_empty());
        let distances =
            machine.read(&format!("sys/devices/system/node/node{node}/distance")).unwrap_or_default();
        let position = other.and_then(|other| topology.nodes().iter().position(|it| it.id == other.id));
        let distance = position.and_then(|position| distances.split_ascii_whitespace().nth(position));
        let distance =
            distance.map_or_else(String::new, |distance| format!(" (distance {distance}, to its own 10)"));
        let found = format!("{device} is on node {node}, cores {allowed} are on another{distance}");
        let first = near.iter().next().map_or(0, |core| core.0);
        Finding::bad(State::Warning, found, format!("taskset -c {near} stagd --core {first} …"))
    });
    each.collect()
}
