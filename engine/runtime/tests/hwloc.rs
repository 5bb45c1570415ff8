//! What hwloc finds on this machine is what `/sys` says of it.
#![cfg(feature = "hwloc")]

use std::path::Path;

use stag_runtime::{Topology, affinity};

#[test]
fn hwloc_and_sysfs_agree() {
    let sysfs = Topology::read_sysfs(Path::new("/")).unwrap();
    let hwloc = Topology::read_hwloc().expect("hwloc reads this machine");
    assert_eq!(hwloc.cores(), sysfs.cores());
    assert_eq!(hwloc.nodes(), sysfs.nodes());
    // Devices, too.
    assert_eq!(hwloc, sysfs);
    assert_eq!(Topology::read().unwrap(), hwloc);
    assert_eq!(hwloc.choose(&affinity::allowed(), 4), sysfs.choose(&affinity::allowed(), 4));
}
