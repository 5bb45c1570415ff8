//! The shape of the machine: which cores share what, and which node of memory is near them.
//!
//! Read from `/sys`, so no library of the system is needed. If files are missing (a container, an odd kernel) the picture is
//! simpler: one node, no siblings. With the feature `hwloc`, the library hwloc reads this machine's topology; it knows more
//! machines, and `tests/hwloc.rs` shows that both agree.

use std::fs;
use std::io;
use std::path::Path;

use crate::cores::CoreSet;

#[cfg(feature = "hwloc")]
mod hwloc;
mod shape;
mod sysfs;

pub use shape::{Core, NumaNode, Topology};
use sysfs::{read_core, read_devices, read_isolated, read_nodes};

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
}
