//! `stag doctor`: each check on trees that look like machines, well and not well, and the whole on this machine.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use stag_apps::commands::doctor::{Finding, State, checks, inspect};
use stag_apps::url::Fabric;

/// A machine that has all that verbs wants, and nothing to complain about.
const WELL: &[(&str, &str)] = &[
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
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str, files: &[(&str, &str)]) -> Tree {
        let root = std::env::temp_dir().join(format!("stag-doctor-{name}-{}", std::process::id()));
        // Left by a run that was killed, perhaps.
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        let tree = Tree(root);
        files.iter().for_each(|(path, text)| tree.write(path, text));
        tree
    }

    fn well(name: &str) -> Tree {
        Tree::new(name, WELL)
    }

    fn write(&self, path: &str, text: &str) {
        let file = self.0.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        if path.starts_with("dev/") {
            fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        }
    }

    /// A file is written anew; without a text, it or the folder is removed.
    fn change(&self, path: &str, text: Option<&str>) {
        match text {
            Some(text) => self.write(path, text),
            None if self.0.join(path).is_dir() => fs::remove_dir_all(self.0.join(path)).unwrap(),
            None => fs::remove_file(self.0.join(path)).unwrap(),
        }
    }

    fn findings(&self, check: &str, fabric: Option<Fabric>) -> Vec<Finding> {
        let all = inspect(&self.0, fabric).into_iter();
        all.filter(|(name, _)| *name == check).map(|(_, finding)| finding).collect()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn nothing_is_said_against_a_machine_that_is_well() {
    let tree = Tree::well("well");
    for fabric in [None, Some(Fabric::Shm), Some(Fabric::Iwarp), Some(Fabric::Verbs)] {
        for (check, Finding { state, found, repair }) in inspect(&tree.0, fabric) {
            assert_eq!((state, repair), (State::Ok, None), "{fabric:?}, {check}: {found}");
        }
    }
    let seen: BTreeSet<&str> = inspect(&tree.0, None).into_iter().map(|(check, _)| check).collect();
    assert_eq!(seen, checks().collect(), "each check says something where all is well");
}

/// One thing that is not well.
struct Case {
    check: &'static str,
    /// Files, and their new text; `None`: gone.
    changes: &'static [(&'static str, Option<&'static str>)],
    state: State,
    /// What is said of it.
    found: &'static str,
    repair: &'static str,
}

const STATUS: &str = "proc/self/status";
const LIMITS: &str = "proc/self/limits";
const PORT: &str = "sys/class/infiniband/mlx5_0/ports/1";

/// Of a machine whose RDMA has to work.
const CASES: &[Case] = &[
    Case {
        check: "kernel modules",
        changes: &[("sys/module/ib_uverbs", None)],
        state: State::Error,
        found: "ib_uverbs is not loaded",
        repair: "sudo modprobe ib_uverbs",
    },
    Case {
        check: "kernel modules",
        changes: &[("sys/module/rdma_ucm", None)],
        state: State::Error,
        found: "rdma_ucm is not loaded, and not among the modules of kernel 6.12.0",
        repair: "linux-image-amd64",
    },
    Case {
        check: "rdma-core",
        changes: &[("usr/lib/x86_64-linux-gnu/librdmacm.so.1", None)],
        state: State::Error,
        found: "librdmacm.so.1 is not there",
        repair: "sudo apt install librdmacm1",
    },
    Case {
        check: "rdma-core",
        changes: &[("etc/libibverbs.d", None)],
        state: State::Error,
        found: "no drivers of libibverbs",
        repair: "sudo apt install ibverbs-providers",
    },
    Case {
        check: "device files",
        changes: &[("dev/infiniband", None)],
        state: State::Error,
        found: "/dev/infiniband is not there",
        repair: "sudo modprobe rdma_ucm",
    },
    Case {
        check: "device files",
        changes: &[("dev/infiniband/rdma_cm", None)],
        state: State::Error,
        found: "/dev/infiniband/rdma_cm is not there",
        repair: "sudo modprobe rdma_ucm",
    },
    Case {
        check: "RDMA devices",
        changes: &[("sys/class/infiniband/mlx5_0", None)],
        state: State::Error,
        found: "none; verbs:// does not work",
        repair: "sudo rdma link add siw0 type siw netdev eth1",
    },
    Case {
        check: "RDMA ports",
        changes: &[("sys/class/infiniband/mlx5_0/ports/1/state", Some("1: DOWN\n"))],
        state: State::Error,
        found: "mlx5_0 port 1: 1: DOWN",
        repair: "sudo ip link set eth1 up",
    },
    Case {
        check: "RDMA ports",
        changes: &[("sys/class/infiniband/mlx5_0/ports/2/state", Some("2: INIT\n"))],
        state: State::Note,
        found: "mlx5_0 port 2: 2: INIT",
        repair: "sudo systemctl start opensm",
    },
    Case {
        check: "MTU",
        changes: &[("sys/class/net/eth1/mtu", Some("1500\n"))],
        state: State::Note,
        found: "eth1 has 1500, so that RoCE can use 1024 of 4096",
        repair: "sudo ip link set eth1 mtu 4200",
    },
    Case {
        check: "GID",
        changes: &[("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/1", None)],
        state: State::Error,
        found: "mlx5_0 port 1: no GID of RoCEv2",
        repair: "sudo ip address add ADDRESS/24 dev eth1",
    },
    Case {
        check: "GID",
        changes: &[(
            "sys/class/infiniband/mlx5_0/ports/1/gids/1",
            Some("0000:0000:0000:0000:0000:0000:0000:0000\n"),
        )],
        state: State::Error,
        found: "mlx5_0 port 1: no GID of RoCEv2",
        repair: "sudo ip address add ADDRESS/24 dev eth1",
    },
    Case {
        check: "NIC and cores",
        changes: &[("sys/class/infiniband/mlx5_0/device/numa_node", Some("0\n"))],
        state: State::Warning,
        found: "mlx5_0 is on node 0, cores 2-3 are on another (distance 21, to its own 10)",
        repair: "taskset -c 0-1 stagd --core 0",
    },
    Case {
        check: "memlock",
        changes: &[(
            LIMITS,
            Some("Max open files 4096 4096 files\nMax locked memory 8388608 8388608 bytes\n"),
        )],
        state: State::Error,
        found: "8 MiB may be locked; a stagd pins 1 GiB",
        repair: "sudo prlimit --pid $$ --memlock=unlimited",
    },
    Case {
        check: "memlock",
        changes: &[(LIMITS, None)],
        state: State::Note,
        found: "does not tell",
        repair: "ulimit -l",
    },
    Case {
        check: "hugepages",
        changes: &[("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", Some("12\n"))],
        state: State::Note,
        found: "24 MiB are free; a stagd takes 1 GiB",
        repair: "sudo stag hugepages setup --count 1524 --apply",
    },
    Case {
        check: "hugepages",
        changes: &[("sys/kernel/mm/hugepages", None)],
        state: State::Note,
        found: "this kernel shows none",
        repair: "CONFIG_HUGETLBFS",
    },
    Case {
        check: "hugepages",
        changes: &[
            ("proc/self/cgroup", Some("0::/box\n")),
            ("sys/fs/cgroup/box/hugetlb.2MB.max", Some("1048576\n")),
        ],
        state: State::Note,
        found: "the control group may use 1 MiB of pages of 2MB",
        repair: "echo max | sudo tee",
    },
    Case {
        check: "cores",
        changes: &[(STATUS, Some("Cpus_allowed_list:\t3\n"))],
        state: State::Warning,
        found: "3 may be used, of 0-3 online",
        repair: "taskset -pc 0-3 $$",
    },
    Case {
        check: "cores",
        changes: &[("sys/devices/system/cpu/isolated", Some("1,3\n"))],
        state: State::Note,
        found: "1 are isolated from other work, and may not be used",
        repair: "taskset -c 1 stagd --core 1",
    },
    Case {
        check: "cores",
        changes: &[("sys/devices/system/cpu/online", None)],
        state: State::Note,
        found: "/sys does not tell which cores there are",
        repair: "mount -t sysfs",
    },
    Case {
        check: "machine",
        changes: &[("sys/devices/system/cpu/cpu3/cpufreq/scaling_governor", Some("powersave\n"))],
        state: State::Note,
        found: "governor: powersave on cores 3",
        repair: "cpupower -c 3 frequency-set -g performance",
    },
    Case {
        check: "machine",
        changes: &[("sys/devices/system/cpu/cpu2/topology/thread_siblings_list", Some("1-2\n"))],
        state: State::Note,
        found: "SMT: core 2 shares its physical core with 1",
        repair: "/sys/devices/system/cpu/smt/control",
    },
    Case {
        check: "machine",
        changes: &[("sys/devices/system/clocksource/clocksource0/current_clocksource", Some("hpet\n"))],
        state: State::Warning,
        found: "clocksource: hpet",
        repair: "dmesg | grep -i tsc",
    },
    Case {
        check: "machine",
        changes: &[
            ("proc/self/cgroup", Some("0::/box\n")),
            ("sys/fs/cgroup/box/cpu.max", Some("50000 100000\n")),
        ],
        state: State::Warning,
        found: "CPU quota: 50000 of every 100000",
        repair: "cpu.max",
    },
    Case {
        check: "machine",
        changes: &[("sys/kernel/mm/transparent_hugepage/shmem_enabled", Some("always [never]\n"))],
        state: State::Note,
        found: "transparent huge pages: never",
        repair: "stag hugepages setup",
    },
    Case {
        check: "machine",
        changes: &[("sys/devices/system/cpu/isolated", Some("\n"))],
        state: State::Note,
        found: "isolation: the scheduler runs other work on cores 2-3",
        repair: "isolcpus=2-3",
    },
    Case {
        check: "TCP ports",
        changes: &[("proc/net/tcp6", Some("sl local\n 0: 00000000000000000000000000000000:4E51 0:0 0A 0\n"))],
        state: State::Warning,
        found: "20049 is taken",
        repair: "sudo ss -ltnp 'sport = :20049'",
    },
    Case {
        check: "TCP ports",
        changes: &[("proc/fs/nfsd/portlist", Some("rdma 20049\ntcp 2049\n"))],
        state: State::Warning,
        found: "20049 is taken over RDMA by the kernel's NFS server",
        repair: "sudo systemctl stop nfs-server",
    },
    Case {
        check: "TCP ports",
        changes: &[("proc/net/tcp6", Some("sl local\n 0: 00000000000000000000000000000000:0801 0:0 0A 0\n"))],
        state: State::Note,
        found: "2049 is taken",
        repair: "sudo ss -ltnp 'sport = :2049'",
    },
    Case {
        check: "TCP ports",
        changes: &[("proc/net/tcp", Some("sl local\n"))],
        state: State::Note,
        found: "111: no rpcbind",
        repair: "sudo systemctl start rpcbind",
    },
    Case {
        check: "open files",
        changes: &[(LIMITS, Some("Max open files 256 4096 files\n"))],
        state: State::Warning,
        found: "256 may be open",
        repair: "ulimit -n 4096",
    },
    Case {
        check: "io_uring",
        changes: &[("proc/sys/kernel/io_uring_disabled", Some("1\n"))],
        state: State::Warning,
        found: "kernel.io_uring_disabled is 1: not for this user",
        repair: "sudo sysctl -w kernel.io_uring_disabled=0",
    },
    Case {
        check: "io_uring",
        changes: &[
            ("proc/sys/kernel/io_uring_disabled", Some("2\n")),
            (STATUS, Some("CapEff:\t000001ffffffffff\n")),
        ],
        state: State::Warning,
        found: "kernel.io_uring_disabled is 2",
        repair: "sudo sysctl -w kernel.io_uring_disabled=0",
    },
];

/// Of a machine whose iWARP has to work.
const IWARP_CASES: &[Case] = &[
    Case {
        check: "congestion control",
        changes: &[("proc/sys/net/ipv4/tcp_congestion_control", Some("bbr\n"))],
        state: State::Note,
        found: "bbr, which paces even the loopback",
        repair: "net.ipv4.tcp_congestion_control=cubic",
    },
    Case {
        check: "backlog",
        changes: &[("proc/sys/net/core/somaxconn", Some("128\n"))],
        state: State::Note,
        found: "128 connections may wait",
        repair: "sudo sysctl -w net.core.somaxconn=4096",
    },
    Case {
        check: "socket buffers",
        changes: &[("proc/sys/net/ipv4/tcp_wmem", Some("4096 16384 65536\n"))],
        state: State::Note,
        found: "tcp_wmem up to 64 KiB",
        repair: "sudo sysctl -w net.ipv4.tcp_wmem='4096 131072 16777216'",
    },
    Case {
        check: "socket buffers",
        changes: &[("proc/sys/net/ipv4/tcp_rmem", None)],
        state: State::Note,
        found: "tcp_rmem is not told",
        repair: "sysctl net.ipv4.tcp_rmem",
    },
];

#[test]
fn each_check_says_what_is_wrong_and_how_to_repair_it() {
    let verbs = CASES.iter().map(|case| (case, Fabric::Verbs));
    let iwarp = IWARP_CASES.iter().map(|case| (case, Fabric::Iwarp));
    for (index, (case, fabric)) in verbs.chain(iwarp).enumerate() {
        let tree = Tree::well(&format!("case-{index}"));
        case.changes.iter().for_each(|(path, text)| tree.change(path, *text));
        let found = tree.findings(case.check, Some(fabric));
        let is_it = |finding: &&Finding| {
            let repair = finding.repair.as_deref().unwrap_or_default();
            finding.state == case.state && finding.found.contains(case.found) && repair.contains(case.repair)
        };
        assert_eq!(found.iter().filter(is_it).count(), 1, "{}: {:?}: {found:#?}", case.check, case.changes);
    }
    let tried: BTreeSet<&str> = CASES.iter().chain(IWARP_CASES).map(|case| case.check).collect();
    assert_eq!(tried, checks().collect(), "each check has a case where something is wrong");
}

#[test]
fn a_user_may_open_device_files_by_owner_group_or_for_all() {
    let tree = Tree::well("modes");
    let file = tree.0.join("dev/infiniband/uverbs0");
    let bad = || tree.findings("device files", Some(Fabric::Verbs)).iter().any(|it| it.state == State::Error);
    let mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    let (uid, gid) = {
        use std::os::unix::fs::MetadataExt;
        let file = fs::metadata(&file).unwrap();
        (file.uid(), file.gid())
    };
    let user = |uid: u32, gid: u32, groups: &str| {
        let line = |name: &str, id: u32| format!("{name}:\t{id}\t{id}\t{id}\t{id}\n");
        tree.write(STATUS, &format!("{}{}Groups:\t{groups} \n", line("Uid", uid), line("Gid", gid)));
    };
    let (other, strange) = (uid + 4321, gid + 4321);
    user(other, strange, "");
    assert!(!bad(), "for all");
    mode(0o660);
    assert!(bad(), "for others: no");
    user(other, gid, "");
    assert!(!bad(), "for the group");
    user(other, strange, &gid.to_string());
    assert!(!bad(), "for one of the groups");
    mode(0o640);
    assert!(bad(), "the group may only read");
    user(0, 0, "");
    assert!(!bad(), "root");
}

#[test]
fn memory_may_be_locked_by_who_has_the_capability() {
    let tree = Tree::well("capability");
    tree.write(LIMITS, "Max locked memory 65536 65536 bytes\n");
    let state = |tree: &Tree| tree.findings("memlock", Some(Fabric::Verbs))[0].state;
    assert_eq!(state(&tree), State::Error);
    tree.write(STATUS, "CapEff:\t0000000000004000\n");
    assert_eq!(state(&tree), State::Ok);
}

#[test]
fn without_rdma_hardware_there_are_notes_and_errors_only_for_verbs() {
    let tree = Tree::well("none");
    for path in ["sys/class/infiniband", "dev/infiniband", "sys/module", "etc", "usr"] {
        tree.change(path, None);
    }
    let worst =
        |fabric| inspect(&tree.0, fabric).into_iter().map(|(_, finding)| finding.state).max().unwrap();
    assert_eq!(worst(None), State::Note);
    assert_eq!(worst(Some(Fabric::Verbs)), State::Error);
    assert_eq!(worst(Some(Fabric::Shm)), State::Ok);
    assert_eq!(worst(Some(Fabric::Iwarp)), State::Ok);
}

#[test]
fn a_device_of_iwarp_needs_neither_gid_nor_large_mtu() {
    let tree = Tree::well("rnic");
    tree.write("sys/class/infiniband/mlx5_0/node_type", "4: RNIC\n");
    tree.write("sys/class/net/eth1/mtu", "1500\n");
    tree.change(&format!("{PORT}/gid_attrs/types"), None);
    let worst = inspect(&tree.0, Some(Fabric::Verbs)).into_iter().map(|(_, finding)| finding.state).max();
    assert_eq!(worst, Some(State::Ok));
}

/// What can be read of an empty tree is nothing, and that is no failure.
#[test]
fn a_machine_that_tells_nothing_is_checked_too() {
    let tree = Tree::new("empty", &[]);
    for (check, Finding { state, found, repair }) in inspect(&tree.0, None) {
        assert!(!found.is_empty(), "{check}");
        assert_eq!(repair.is_none(), state == State::Ok, "{check}: {found}");
        assert!(state <= State::Note, "{check}: {found}");
    }
}

/// Whatever this machine is: the output is whole, and the exit status is that of the worst finding.
#[test]
fn this_machine_is_checked_and_the_exit_status_says_how_it_is() {
    for arguments in [&["doctor"][..], &["doctor", "--for", "shm"], &["doctor", "--for", "verbs"]] {
        let run = |more: &[&str]| {
            Command::new(env!("CARGO_BIN_EXE_stag")).args(arguments).args(more).output().unwrap()
        };
        let output = run(&["--json"]);
        let lines = std::str::from_utf8(&output.stdout).unwrap().lines();
        let objects: Vec<serde_json::Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(!objects.is_empty());
        let mut worst = 0;
        for object in &objects {
            let state = ["ok", "note", "warning", "error"].iter().position(|name| object["state"] == *name);
            let state = state.unwrap_or_else(|| panic!("{object}"));
            assert!(checks().any(|name| object["check"] == name), "{object}");
            assert!(!object["found"].as_str().unwrap().is_empty(), "{object}");
            assert_eq!(object["repair"].is_string(), state > 0, "{object}");
            worst = worst.max(state);
        }
        assert_eq!(output.status.code(), Some([0, 0, 1, 3][worst]), "{objects:#?}");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(run(&[]).stdout).unwrap();
        assert!(text.lines().last().unwrap().starts_with("errors: "), "{text}");
    }
    assert!(inspect(Path::new("/"), None).len() >= checks().count() - 5, "but for what needs a device");
}

#[test]
fn an_unknown_fabric_is_status_2() {
    let output = Command::new(env!("CARGO_BIN_EXE_stag")).args(["doctor", "--for", "tcp"]).output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(complaint.contains("shm, iwarp, verbs") && complaint.lines().count() == 1, "{complaint}");
}
