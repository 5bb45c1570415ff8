//! RDMA devices and their ports, as sysfs shows them.

use stag_fabric::verbs::{KernelDevice, Port, kernel_devices};
use stag_runtime::{CoreSet, Topology};
use stag_server::machine::Machine;

use super::finding::{Diagnosis, State};
use super::rdma::modprobe;

/// InfiniBand's sizes of packets, the largest first.
const MTUS: [u32; 5] = [4096, 2048, 1024, 512, 256];

/// Octets of headers that the kernel allows for in a RoCE packet, beside its payload.
const ROCE_HEADERS: u32 = 96;

fn devices(machine: &Machine) -> Vec<KernelDevice> {
    kernel_devices(&machine.path("sys"))
}

/// What `check` says of each port, whose name comes first.
fn each_port(
    machine: &Machine,
    check: impl Fn(&str, &KernelDevice, &Port) -> Option<Diagnosis>,
) -> Vec<Diagnosis> {
    let devices = devices(machine);
    let ports = devices.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)));
    ports
        .filter_map(|(device, port)| check(&format!("{} port {}", device.name, port.number), device, port))
        .collect()
}

fn is_roce(device: &KernelDevice, port: &Port) -> bool {
    port.link_layer == "Ethernet" && device.transport != "iWARP"
}

/// The network interface that a port belongs to.
fn netdev(port: &Port) -> Option<&str> {
    port.gids.iter().find_map(|gid| gid.interface.as_deref())
}

/// Whether there is a device at all.
pub(super) fn present(machine: &Machine) -> Vec<Diagnosis> {
    let devices = devices(machine);
    if devices.is_empty() {
        let found =
            "no RDMA device: verbs:// is unavailable (a software device is enough); shm:// and iwarp:// work";
        // Distributions differ in which of the two they have.
        let has_siw = machine.has_loaded("siw") || machine.has_on_disk("siw");
        let (module, kind) = if has_siw { ("siw", "siw") } else { ("rdma_rxe", "rxe") };
        let netdev = machine.interface();
        let repair =
            modprobe(machine, module, &format!(" && sudo rdma link add {kind}0 type {kind} netdev {netdev}"));
        return vec![Diagnosis::bad(State::of_missing(machine), found, repair)];
    }
    let named = devices.into_iter().map(|device| match device.firmware {
        Some(version) => format!("{} (firmware {version})", device.name),
        None => device.name,
    });
    vec![Diagnosis::ok(named.collect::<Vec<_>>().join(", "))]
}

/// Whether a port is active: one has to be, others may be unused.
pub(super) fn ports(machine: &Machine) -> Vec<Diagnosis> {
    let has_active = devices(machine).iter().any(|device| device.ports.iter().any(Port::is_active));
    let state = if has_active { State::Note } else { State::of_missing(machine) };
    each_port(machine, |name, _, port| {
        let found = format!("{name}: {}", port.state);
        if port.is_active() {
            return Some(Diagnosis::ok(found));
        }
        let repair = match netdev(port) {
            Some(netdev) => format!("`sudo ip link set {netdev} up`; then the cable, and the switch"),
            None if port.link_layer == "Ethernet" => {
                "`sudo ip link set NETDEV up`, of its network interface, which `rdma link` shows".to_owned()
            }
            None => {
                "the cable; and a subnet manager: `sudo systemctl start opensm`, on one machine".to_owned()
            }
        };
        Some(Diagnosis::bad(state, found, repair))
    })
}

/// Whether the network interface lets RoCE use its largest MTU.
pub(super) fn mtu(machine: &Machine) -> Vec<Diagnosis> {
    each_port(machine, |name, device, port| {
        let netdev = netdev(port)?;
        let mtu: u32 = machine.value(&format!("sys/class/net/{netdev}/mtu"))?;
        if !is_roce(device, port) {
            return Some(Diagnosis::ok(format!("{name}: {netdev} has {mtu}")));
        }
        let [largest, .., smallest] = MTUS;
        let active = MTUS.into_iter().find(|active| active + ROCE_HEADERS <= mtu).unwrap_or(smallest);
        let found = format!("{name}: {netdev} has {mtu}, so that RoCE can use {active} of {largest}");
        if active == largest {
            return Some(Diagnosis::ok(found));
        }
        let repair = format!(
            "`sudo ip link set {netdev} mtu 4200`, or more, on all machines and switches of that network"
        );
        Some(Diagnosis::bad(State::Note, found, repair))
    })
}

/// Whether RoCE ports have a GID of version 2, which can be routed.
pub(super) fn gids(machine: &Machine) -> Vec<Diagnosis> {
    each_port(machine, |name, device, port| {
        if !is_roce(device, port) {
            return None;
        }
        if let Some(gid) = port.gids.iter().find(|gid| gid.kind == "RoCE v2") {
            return Some(Diagnosis::ok(format!("{name}: index {} is RoCEv2, {}", gid.index, gid.gid)));
        }
        let netdev = netdev(port).unwrap_or("NETDEV");
        let repair = format!("sudo ip link set {netdev} up && sudo ip address add ADDRESS/24 dev {netdev}");
        Some(Diagnosis::bad(State::of_missing(machine), format!("{name}: no GID of RoCEv2"), repair))
    })
}

/// Whether the cores that may be used are near the devices.
pub(super) fn nodes(machine: &Machine) -> Vec<Diagnosis> {
    let Ok(topology) = Topology::read_from(machine.root()) else { return Vec::new() };
    let allowed = machine.cores().unwrap_or_default();
    let each = devices(machine).into_iter().map(|KernelDevice { name, numa_node, .. }| {
        let Some(node) = numa_node else { return Diagnosis::ok(format!("{name} is near to all cores")) };
        let of_node = || topology.nodes().iter().find(|it| it.id == node).map(|it| it.cores);
        let near = topology.near(&name).or_else(of_node).unwrap_or_default();
        let usable: CoreSet = near.intersection(&allowed);
        if let Some(core) = usable.iter().next() {
            let found = format!("{name} is on node {node}, as are cores {usable}: stagd --cores {}", core.0);
            return Diagnosis::ok(found);
        }
        let distance = distance(machine, &topology, node, &allowed);
        let found = format!("{name} is on node {node}, cores {allowed} are on another{distance}");
        let first = near.iter().next().map_or(0, |core| core.0);
        Diagnosis::bad(State::Warning, found, format!("taskset -c {near} stagd --cores {first} …"))
    });
    each.collect()
}

/// How far the memory of a node is from cores of another, in words; nothing, if the machine does not tell.
fn distance(machine: &Machine, topology: &Topology, node: u32, cores: &CoreSet) -> String {
    // One number for each node, in their order.
    let distances = machine.read(&format!("sys/devices/system/node/node{node}/distance")).unwrap_or_default();
    let other = topology.nodes().iter().position(|it| !it.cores.intersection(cores).is_empty());
    let distance = other.and_then(|other| distances.split_ascii_whitespace().nth(other));
    distance.map_or_else(String::new, |distance| format!(" (distance {distance}, to its own 10)"))
}
