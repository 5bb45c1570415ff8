//! Trees that look like machines.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use stag_apps::commands::doctor::{Diagnosis, inspect};
use stag_server::url::FabricName;

/// A machine that has all that verbs wants, and nothing to complain about.
pub(crate) const WELL: &[(&str, &str)] = &[
    ("proc/meminfo", "MemTotal:        8388608 kB\n"),
    (
        "proc/self/status",
        "Name:\tstag\nUid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\nGroups:\t27 4000000001 \n\
         CapEff:\t0000000000000000\nCpus_allowed_list:\t2-3\n",
    ),
    (
        "proc/self/limits",
        "Limit  Soft Limit  Hard Limit  Units\n\
         Max open files            4096                 4096                 files     \n\
         Max locked memory         unlimited            unlimited            bytes     \n",
    ),
    ("proc/cpuinfo", "flags\t\t: fpu tsc\n"),
    (
        "proc/net/tcp",
        "  sl  local_address rem_address   st\n   0: 0100007F:006F 00000000:0000 0A 0\n   1: 0100007F:4E51 0100007F:0801 01 0\n",
    ),
    ("proc/net/tcp6", "  sl  local_address rem_address   st\n"),
    ("proc/sys/kernel/osrelease", "6.12.0\n"),
    ("proc/sys/kernel/io_uring_disabled", "0\n"),
    ("proc/sys/net/core/somaxconn", "4096\n"),
    ("proc/sys/net/ipv4/tcp_congestion_control", "cubic\n"),
    ("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304\n"),
    ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
    ("sys/devices/system/cpu/online", "0-3\n"),
    ("sys/devices/system/cpu/isolated", "2-3\n"),
    ("sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "performance\n"),
    ("sys/devices/system/cpu/cpu3/cpufreq/scaling_governor", "performance\n"),
    ("sys/devices/system/node/node0/cpulist", "0-1\n"),
    ("sys/devices/system/node/node0/distance", "10 21\n"),
    ("sys/devices/system/node/node1/cpulist", "2-3\n"),
    ("sys/devices/system/node/node1/distance", "21 10\n"),
    ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
    ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "1024\n"),
    ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "600\n"),
    ("sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "1024\n"),
    ("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size [advise] never deny force\n"),
    ("sys/module/ib_uverbs/refcnt", "1\n"),
    ("sys/module/rdma_ucm/refcnt", "1\n"),
    ("sys/module/mlx5_ib/refcnt", "1\n"),
    (
        "lib/modules/6.12.0/modules.dep",
        "kernel/drivers/infiniband/sw/siw/siw.ko.xz:\nkernel/drivers/infiniband/core/ib_uverbs.ko.xz:\n",
    ),
    ("usr/lib/x86_64-linux-gnu/libibverbs.so.1", ""),
    ("usr/lib/x86_64-linux-gnu/librdmacm.so.1", ""),
    ("etc/libibverbs.d/mlx5.driver", "driver mlx5\n"),
    ("dev/infiniband/uverbs0", ""),
    ("dev/infiniband/rdma_cm", ""),
    ("sys/class/net/lo/mtu", "65536\n"),
    ("sys/class/net/eth1/mtu", "9000\n"),
    ("sys/class/net/eth1/device/vendor", "0x15b3\n"),
    ("sys/class/infiniband/mlx5_0/node_type", "1: CA\n"),
    ("sys/class/infiniband/mlx5_0/fw_ver", "16.35.2000\n"),
    ("sys/class/infiniband/mlx5_0/device/numa_node", "1\n"),
    ("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"),
    ("sys/class/infiniband/mlx5_0/ports/1/link_layer", "Ethernet\n"),
    ("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "eth1\n"),
    ("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0", "IB/RoCE v1\n"),
    ("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/1", "RoCE v2\n"),
    ("sys/class/infiniband/mlx5_0/ports/1/gids/0", "0000:0000:0000:0000:0000:ffff:c000:0207\n"),
    ("sys/class/infiniband/mlx5_0/ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:c000:0207\n"),
];

/// A tree in a folder of its own, removed when dropped.
pub(crate) struct Tree(pub(crate) PathBuf);

impl Tree {
    pub(crate) fn new(name: &str, files: &[(&str, &str)]) -> Tree {
        let root = std::env::temp_dir().join(format!("stag-doctor-{name}-{}", std::process::id()));
        // Left by a run that was killed, perhaps.
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        let tree = Tree(root);
        files.iter().for_each(|(path, text)| tree.write(path, text));
        tree
    }

    pub(crate) fn well(name: &str) -> Tree {
        Tree::new(name, WELL)
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let file = self.0.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        if path.starts_with("dev/") {
            fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        }
    }

    /// A file is written anew; without a text, it or the folder is removed.
    pub(crate) fn change(&self, path: &str, text: Option<&str>) {
        match text {
            Some(text) => self.write(path, text),
            None if self.0.join(path).is_dir() => fs::remove_dir_all(self.0.join(path)).unwrap(),
            None => fs::remove_file(self.0.join(path)).unwrap(),
        }
    }

    /// Undoes a change of a tree that was well.
    pub(crate) fn restore(&self, path: &str) {
        let is_well = |path: &Path| WELL.iter().any(|(file, _)| Path::new(file).starts_with(path));
        if let Some(strange) = Path::new(path).ancestors().take_while(|path| !is_well(path)).last() {
            self.change(strange.to_str().unwrap(), None);
        }
        let below = WELL.iter().filter(|(file, _)| Path::new(file).starts_with(path));
        below.for_each(|(file, text)| self.write(file, text));
    }

    pub(crate) fn findings(&self, check: &str, fabric: Option<FabricName>) -> Vec<Diagnosis> {
        let all = inspect(&self.0, fabric).into_iter();
        all.filter(|(name, _)| *name == check).map(|(_, finding)| finding).collect()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
