//! RDMA in the kernel's sysfs, which needs no library: whether it is supported, and the devices.

use std::fs;
use std::path::Path;
use std::str::FromStr;

/// Where sysfs is, on a machine.
pub(super) const ROOT: &str = "/sys";

/// What of RDMA the kernel has loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its core and programs' way to it: `ib_uverbs`.
    pub verbs: bool,
    /// Programs' way to its connection manager: `rdma_ucm`.
    pub connection_manager: bool,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// From 1.
    pub number: u8,
    /// `ACTIVE`, `DOWN`, ...
    pub state: String,
    /// `LinkUp`, `Disabled`, ...
    pub physical_state: String,
    /// `Ethernet` or `InfiniBand`.
    pub link_layer: String,
    /// `100 Gb/sec (4X EDR)`.
    pub rate: String,
    /// Octets of the largest packet, where the device says so.
    pub mtu: Option<u32>,
    /// Those that are set.
    pub gids: Vec<Gid>,
}

impl Port {
    /// Whether it can be used.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }
}

/// An address of a port, in the device's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its place there.
    pub index: u32,
    /// As eight groups of four digits.
    pub gid: String,
    /// `IB/RoCE v1`, `RoCE v2`, `iWARP`; nothing where the kernel does not say.
    pub kind: String,
    /// The network interface, where it is one's.
    pub interface: Option<String>,
}

/// A device, as far as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelDevice {
    /// `mlx5_0`, `rxe0`.
    pub name: String,
    /// `InfiniBand or RoCE`, `iWARP`, ...
    pub transport: String,
    /// The firmware's version; software has none.
    pub firmware: Option<String>,
    /// What it is, in its driver's words.
    pub board: Option<String>,
    /// Whether the kernel is all of it, as with rxe and siw: it is in no slot.
    pub is_software: bool,
    /// The node of its slot, on a machine with several.
    pub numa_node: Option<u32>,
    /// Usually one.
    pub ports: Vec<Port>,
}

impl Kernel {
    pub(super) fn read(sysfs: &Path) -> Kernel {
        let class = sysfs.join("class");
        Kernel {
            verbs: class.join("infiniband_verbs").exists(),
            connection_manager: class.join("misc/rdma_cm").exists(),
        }
    }
}

/// The devices, by name.
pub fn devices(sysfs: &Path) -> Vec<KernelDevice> {
    let class = sysfs.join("class/infiniband");
    names(&class).into_iter().map(|name| device(&class.join(&name), name)).collect()
}

fn device(path: &Path, name: String) -> KernelDevice {
    // "4: RNIC".
    let transport = match text(&path.join("node_type")).split(':').next() {
        Some("1") => "InfiniBand or RoCE",
        Some("4") => "iWARP",
        Some("5" | "6") => "usNIC",
        _ => "unknown",
    };
    let known = |file| Some(text(&path.join(file))).filter(|text| !text.is_empty());
    let mut ports: Vec<Port> = names(&path.join("ports"))
        .into_iter()
        .filter_map(|number| Some(port(&path.join("ports").join(&number), number.parse().ok()?)))
        .collect();
    ports.sort_by_key(|port| port.number);
    if transport == "iWARP" {
        // The kernel has no type for these, and says what the first of its types is.
        ports.iter_mut().flat_map(|port| &mut port.gids).for_each(|gid| gid.kind = transport.to_owned());
    }
    KernelDevice {
        name,
        transport: transport.to_owned(),
        // What software devices say.
        firmware: known("fw_ver").filter(|version| !version.trim_matches(['0', '.']).is_empty()),
        board: known("hca_type").or_else(|| known("board_id")),
        is_software: !path.join("device").exists(),
        // -1: there is only one.
        numa_node: number(&path.join("device/numa_node")),
        ports,
    }
}

fn port(path: &Path, number: u8) -> Port {
    // "4: ACTIVE".
    let meaning = |file| {
        let text = text(&path.join(file));
        text.split_once(": ").map_or(text.clone(), |(_, meaning)| meaning.to_owned())
    };
    let mut gids: Vec<Gid> = names(&path.join("gids"))
        .into_iter()
        .filter_map(|index| {
            let gid = text(&path.join("gids").join(&index));
            let is_set = gid.contains(|c: char| c.is_ascii_hexdigit() && c != '0');
            let attribute = |what: &str| text(&path.join("gid_attrs").join(what).join(&index));
            let interface = Some(attribute("ndevs")).filter(|name| !name.is_empty());
            let gid = Gid { index: index.parse().ok()?, gid, kind: attribute("types"), interface };
            is_set.then_some(gid)
        })
        .collect();
    gids.sort_by_key(|gid| gid.index);
    Port {
        number,
        state: meaning("state"),
        physical_state: meaning("phys_state"),
        link_layer: text(&path.join("link_layer")),
        rate: text(&path.join("rate")),
        mtu: None,
        gids,
    }
}

/// The names in a folder, sorted; none, if there is no such.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// What a file says, without the end of its line; nothing, if it is not there or the kernel has nothing to say.
fn text(path: &Path) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

fn number<T: FromStr>(path: &Path) -> Option<T> {
    text(path).parse().ok()
}

/// Said where there is no device.
pub(super) const NO_DEVICE: &str = "this machine has no RDMA device: load the driver of the card, or make a software device: \
     modprobe rdma_rxe; rdma link add rxe0 type rxe netdev NETDEV";

/// What has to be there, and to be had, to open a device.
pub(super) const FILES: &str = "a user of RDMA must be able to open /dev/infiniband/rdma_cm and /dev/infiniband/uverbs* \
     (in a container: --device=/dev/infiniband)";

/// Said where rdma-core opens no device, whatever the kernel has.
pub(super) fn none_opened(devices: &[KernelDevice]) -> String {
    if devices.is_empty() {
        return NO_DEVICE.to_owned();
    }
    let names = devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join(", ");
    format!(
        "the kernel has RDMA devices ({names}), and rdma-core opens none: {FILES}, and have the driver: ibverbs-providers"
    )
}

/// What the kernel lacks, with rdma-core installed, and the commands that repair it; `None` if nothing.
pub(super) fn lacks(kernel: Kernel, has_device: bool) -> Option<String> {
    match (kernel, has_device) {
        (Kernel { verbs: false, .. }, _) => Some(format!(
            "rdma-core is installed, but the kernel's part is not loaded: modprobe -a ib_uverbs rdma_ucm (`stag doctor --for \
             verbs` says whether this kernel has them); then, if {NO_DEVICE}"
        )),
        (Kernel { connection_manager: false, .. }, _) => {
            Some("the kernel's RDMA connection manager is not loaded: modprobe rdma_ucm".to_owned())
        }
        (_, false) => Some(NO_DEVICE.to_owned()),
        (_, true) => None,
    }
}

/// What to do about a device whose port is down.
pub(super) fn not_active(device: &str) -> String {
    format!(
        "the port of RDMA device {device} is not active: look at its cable and its network interface (rdma link show; \
         ip link set DEV up; on InfiniBand, is there a subnet manager?)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_cannot_be_opened_are_not_missing() {
        assert_eq!(none_opened(&[]), NO_DEVICE);
        let device = device(Path::new("/nowhere"), "mlx5_0".to_owned());
        let words = none_opened(&[device]);
        assert!(words.contains("mlx5_0") && words.contains("/dev/infiniband/uverbs"), "{words}");
    }

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a temporary folder");
        fs::write(path, format!("{text}\n")).expect("a temporary file");
    }

    /// Two devices as Linux shows them: a card, and a software one whose port is down.
    #[test]
    fn devices_are_read_from_a_tree() {
        let root = std::env::temp_dir().join(format!("stag-sysfs-{}", std::process::id()));
        let card = "class/infiniband/mlx5_0";
        for (file, text) in [
            ("node_type", "1: CA"),
            ("fw_ver", "22.31.1014"),
            ("hca_type", "MT4125"),
            ("device/numa_node", "1"),
            ("ports/1/state", "4: ACTIVE"),
            ("ports/1/phys_state", "5: LinkUp"),
            ("ports/1/link_layer", "Ethernet"),
            ("ports/1/rate", "100 Gb/sec (4X EDR)"),
            ("ports/1/gids/0", "0000:0000:0000:0000:0000:0000:0000:0000"),
            ("ports/1/gids/10", "0000:0000:0000:0000:0000:ffff:0a4d:0001"),
            ("ports/1/gids/3", "fe80:0000:0000:0000:5054:00ff:fe12:3456"),
            ("ports/1/gid_attrs/types/3", "RoCE v2"),
            ("ports/1/gid_attrs/ndevs/3", "eth0"),
        ] {
            write(&root, &format!("{card}/{file}"), text);
        }
        write(&root, "class/infiniband/siw0/node_type", "4: RNIC");
        write(&root, "class/infiniband/siw0/fw_ver", "0.0.0.0");
        write(&root, "class/infiniband/siw0/ports/1/state", "1: DOWN");
        write(&root, "class/infiniband/siw0/ports/1/gids/0", "16e4:4550:3b92:0000:0000:0000:0000:0000");
        write(&root, "class/infiniband/siw0/ports/1/gid_attrs/types/0", "IB/RoCE v1");
        write(&root, "class/infiniband_verbs/abi_version", "6");
        let found = devices(&root);
        let kernel = Kernel::read(&root);
        fs::remove_dir_all(&root).expect("ours");

        assert_eq!(kernel, Kernel { verbs: true, connection_manager: false });
        let [card, siw] = &found[..] else { panic!("{found:?}") };
        assert_eq!((card.name.as_str(), card.transport.as_str()), ("mlx5_0", "InfiniBand or RoCE"));
        assert_eq!((card.firmware.as_deref(), card.board.as_deref()), (Some("22.31.1014"), Some("MT4125")));
        assert_eq!((card.numa_node, card.is_software), (Some(1), false));
        let port = &card.ports[0];
        assert!(port.is_active());
        assert_eq!((port.physical_state.as_str(), port.rate.as_str()), ("LinkUp", "100 Gb/sec (4X EDR)"));
        let gids: Vec<_> =
            port.gids.iter().map(|gid| (gid.index, &gid.kind[..], gid.interface.as_deref())).collect();
        assert_eq!(gids, [(3, "RoCE v2", Some("eth0")), (10, "", None)]);
        assert_eq!((siw.transport.as_str(), &siw.firmware, siw.is_software), ("iWARP", &None, true));
        assert!(!siw.ports[0].is_active());
        assert_eq!(siw.ports[0].gids[0].kind, "iWARP");
    }

    #[test]
    fn what_is_missing_comes_with_its_repair() {
        let kernel = |verbs, connection_manager| Kernel { verbs, connection_manager };
        assert!(lacks(kernel(false, false), false).is_some_and(|text| text.contains("ib_uverbs rdma_ucm")));
        assert!(lacks(kernel(true, false), true).is_some_and(|text| text.contains("modprobe rdma_ucm")));
        assert!(lacks(kernel(true, true), false).is_some_and(|text| text.contains("rdma link add")));
        assert_eq!(lacks(kernel(true, true), true), None);
    }
}
