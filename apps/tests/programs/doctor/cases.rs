//! Problems of a machine, the findings on them, and the repairs.

use stag_apps::commands::doctor::State;

/// One thing that is not well.
pub(crate) struct Case {
    pub(crate) check: &'static str,
    /// Files, and their new text; `None`: gone.
    pub(crate) changes: &'static [(&'static str, Option<&'static str>)],
    pub(crate) state: State,
    /// What is said of it.
    pub(crate) found: &'static str,
    pub(crate) repair: &'static str,
}

pub(crate) const STATUS: &str = "proc/self/status";
pub(crate) const LIMITS: &str = "proc/self/limits";

/// Of a machine whose RDMA has to work.
pub(crate) const CASES: &[Case] = &[
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
        found: "/dev/infiniband/rdma_cm is not there",
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
        found: "no RDMA device: verbs:// is unavailable",
        repair: "sudo modprobe siw && sudo rdma link add siw0 type siw netdev eth1",
    },
    Case {
        check: "RDMA devices",
        changes: &[
            ("sys/class/infiniband/mlx5_0", None),
            ("lib/modules/6.12.0/modules.dep", Some("kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko:\n")),
        ],
        state: State::Error,
        found: "no RDMA device: verbs:// is unavailable",
        repair: "sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev eth1",
    },
    Case {
        check: "RDMA devices",
        changes: &[("sys/class/infiniband/mlx5_0", None), ("lib/modules/6.12.0/modules.dep", Some(""))],
        state: State::Error,
        found: "no RDMA device: verbs:// is unavailable",
        repair: "then: `sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev eth1`",
    },
    Case {
        check: "RDMA ports",
        changes: &[("sys/class/infiniband/mlx5_0/ports/1/state", Some("1: DOWN\n"))],
        state: State::Error,
        found: "mlx5_0 port 1: DOWN",
        repair: "sudo ip link set eth1 up",
    },
    Case {
        check: "RDMA ports",
        changes: &[("sys/class/infiniband/mlx5_0/ports/2/state", Some("2: INIT\n"))],
        state: State::Note,
        found: "mlx5_0 port 2: INIT",
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
        repair: "taskset -c 0-1 stagd --cores 0",
    },
    Case {
        check: "memlock",
        changes: &[(
            LIMITS,
            Some("Max open files 4096 4096 files\nMax locked memory 8388608 8388608 bytes\n"),
        )],
        state: State::Error,
        found: "8 MiB may be locked; a stagd pins 1 GiB",
        repair: "`sudo prlimit --pid $$ --memlock=unlimited` in the shell",
    },
    Case {
        check: "memlock",
        changes: &[(LIMITS, None)],
        state: State::Note,
        found: "does not tell",
        repair: "ulimit -l",
    },
    Case {
        check: "memory",
        changes: &[
            ("proc/self/cgroup", Some("0::/box\n")),
            ("sys/fs/cgroup/box/memory.max", Some("536870912\n")),
        ],
        state: State::Note,
        found: "the control group has 512 MiB of memory; a stagd takes 128 MiB",
        repair: "sys/fs/cgroup/box/memory.max",
    },
    Case {
        check: "hugepages",
        changes: &[("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", Some("12\n"))],
        state: State::Note,
        found: "24 MiB are free; a stagd takes 1 GiB",
        repair: "sudo stag hugepages setup --count 1524 --node 1 --apply",
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
        repair: "taskset -c 1 stagd --cores 1",
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
        repair: "echo advise | sudo tee /sys/kernel/mm/transparent_hugepage/shmem_enabled",
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
        changes: &[
            ("proc/net/tcp6", Some("sl local\n 0: 00000000000000000000000000000000:4E51 0:0 0A 0\n")),
            ("proc/4711/comm", Some("stagd\n")),
        ],
        state: State::Note,
        found: "20049 is taken, the port of NFS over RDMA; a stagd runs, process 4711",
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
pub(crate) const IWARP_CASES: &[Case] = &[
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
        found: "tcp_rmem is not in",
        repair: "sysctl net.ipv4.tcp_rmem",
    },
];
