//! Which cores suit an RDMA device.

use std::path::Path;

use stag_fabric::verbs::kernel_devices;
use stag_runtime::{CoreSet, Topology};

use crate::url::FabricName;

/// The cores nearest to the RDMA device that a program is going to use. `None`: any core will do, or the device is not known.
///
/// `device` is the one asked for. Without it the only device of the machine is meant; of several, the address chooses one only when
/// it is opened.
#[must_use]
pub fn near(topology: &Topology, fabric: FabricName, device: Option<&str>) -> Option<CoreSet> {
    if fabric != FabricName::Verbs {
        return None;
    }
    match (device, &kernel_devices(Path::new("/sys"))[..]) {
        (Some(name), _) => topology.near(name),
        (None, [only]) => topology.near(&only.name),
        (None, _) => None,
    }
}
