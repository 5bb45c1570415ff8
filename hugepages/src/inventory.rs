//! The machine's hugepages: of each size on each NUMA node, and the limits of their use.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::bytes::Bytes;

/// Hugepages of one size on one NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePages {
    /// Bytes of one.
    pub page_len: u64,
    /// How many the kernel holds there.
    pub total: u64,
    /// How many of them are unused.
    pub free: u64,
    /// How many of them go back to the kernel when their user does.
    pub surplus: u64,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InventoryNode {
    /// Its number.
    pub id: u32,
    /// Bytes of memory, if known.
    pub memory_total: Option<u64>,
    /// Bytes of it that are free, if known.
    pub memory_free: Option<u64>,
    /// By size, the smallest first.
    pub pages: Vec<NodePages>,
}

/// Hugepages of one size on the whole machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCounts {
    /// Bytes of one.
    pub page_len: u64,
    /// How many the kernel holds.
    pub total: u64,
    /// How many of them are unused.
    pub free: u64,
    /// How many of the free ones are promised to a mapping that has not touched them yet.
    pub reserved: u64,
    /// How many of them go back to the kernel when their user does.
    pub surplus: u64,
    /// How many more the kernel may make on demand.
    pub overcommit: u64,
}

/// The settings of transparent hugepages: the chosen word, `None` if the kernel has no such setting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transparent {
    /// For private memory.
    pub anonymous: Option<String>,
    /// For shared memory, which is what [`Mapping`](crate::Mapping) makes.
    pub shmem: Option<String>,
}

impl Transparent {
    /// Where [`Transparent::shmem`] is set.
    pub const SHMEM_PATH: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
}

/// The limit of locked memory of this process, in bytes; `None`: unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memlock {
    /// What holds now.
    pub soft: Option<u64>,
    /// What it may be raised to.
    pub hard: Option<u64>,
}

/// How much of one size of hugepages this process's control group may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupLimit {
    /// The size as the kernel writes it: `2MB`, `1GB`.
    pub size: String,
    /// Bytes; the least of the group and those around it.
    pub limit: u64,
    /// The file that says so.
    pub path: PathBuf,
}

/// How much memory this process's control group may use, hugepages apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes; the least of the group and those around it.
    pub limit: u64,
    /// The file that says so.
    pub path: PathBuf,
}

/// What the machine has. What the kernel does not show is absent, not an error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// NUMA nodes, by number. Empty on a kernel without NUMA.
    pub nodes: Vec<InventoryNode>,
    /// The whole machine, by size, the smallest first. Empty on a kernel without hugepages.
    pub pages: Vec<PageCounts>,
    /// The settings of transparent hugepages.
    pub transparent: Transparent,
    /// The limit of locked memory, if it is known.
    pub memlock: Option<Memlock>,
    /// Limits of the control group on hugepages, where there are any.
    pub cgroup: Vec<CgroupLimit>,
    /// The limit of the control group on all other memory, where there is one.
    pub memory_limit: Option<MemoryLimit>,
}

impl Inventory {
    /// Reads `sys` and `proc` below `root`: `/`, or a copy of it for a test.
    #[must_use]
    pub fn read(root: &Path) -> Inventory {
        let transparent = root.join("sys/kernel/mm/transparent_hugepage");
        Inventory {
            nodes: nodes(root),
            pages: sizes(&root.join("sys/kernel/mm/hugepages"))
                .map(|(page_len, dir)| PageCounts {
                    page_len,
                    total: number(&dir.join("nr_hugepages")).unwrap_or(0),
                    free: number(&dir.join("free_hugepages")).unwrap_or(0),
                    reserved: number(&dir.join("resv_hugepages")).unwrap_or(0),
                    surplus: number(&dir.join("surplus_hugepages")).unwrap_or(0),
                    overcommit: number(&dir.join("nr_overcommit_hugepages")).unwrap_or(0),
                })
                .collect(),
            transparent: Transparent {
                anonymous: chosen(&transparent.join("enabled")),
                shmem: chosen(&transparent.join("shmem_enabled")),
            },
            memlock: memlock(root),
            cgroup: hugetlb_limits(root),
            memory_limit: memory_limit(root),
        }
    }

    /// The node with that number.
    #[must_use]
    pub fn node(&self, id: u32) -> Option<&InventoryNode> {
        self.nodes.iter().find(|node| node.id == id)
    }
}

fn nodes(root: &Path) -> Vec<InventoryNode> {
    let mut nodes: Vec<InventoryNode> = entries(&root.join("sys/devices/system/node"))
        .filter_map(|(name, dir)| {
            let id = name.strip_prefix("node")?.parse().ok()?;
            let meminfo = fs::read_to_string(dir.join("meminfo")).unwrap_or_default();
            // "Node 0 MemTotal:        8086084 kB"
            let field = |wanted: &str| {
                let line = meminfo.lines().find(|line| line.contains(wanted))?;
                let kib: u64 = line.split_ascii_whitespace().nth(3)?.parse().ok()?;
                kib.checked_mul(1024)
            };
            let pages = sizes(&dir.join("hugepages"))
                .map(|(page_len, dir)| NodePages {
                    page_len,
                    total: number(&dir.join("nr_hugepages")).unwrap_or(0),
                    free: number(&dir.join("free_hugepages")).unwrap_or(0),
                    surplus: number(&dir.join("surplus_hugepages")).unwrap_or(0),
                })
                .collect();
            Some(InventoryNode {
                id,
                memory_total: field(" MemTotal:"),
                memory_free: field(" MemFree:"),
                pages,
            })
        })
        .collect();
    nodes.sort_by_key(|node| node.id);
    nodes
}

/// The folders `hugepages-2048kB`, with the size each names in bytes, the smallest first.
fn sizes(dir: &Path) -> impl Iterator<Item = (u64, PathBuf)> {
    let mut sizes: Vec<(u64, PathBuf)> = entries(dir)
        .filter_map(|(name, path)| {
            let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            Some((kib.checked_mul(1024)?, path))
        })
        .collect();
    sizes.sort();
    sizes.into_iter()
}

fn entries(dir: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
}

/// The number in a file of sysfs.
pub(crate) fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The word in brackets: `always [madvise] never`.
fn chosen(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

fn memlock(root: &Path) -> Option<Memlock> {
    let limits = fs::read_to_string(root.join("proc/self/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    let mut words = line.split_ascii_whitespace();
    let mut limit = || match words.next()? {
        "unlimited" => Some(None),
        bytes => bytes.parse().ok().map(Some),
    };
    Some(Memlock { soft: limit()?, hard: limit()? })
}

/// A control group of this process, or one around it.
struct Cgroup {
    directory: PathBuf,
    /// Which of the two versions it is of: they name their files differently.
    is_version_1: bool,
}

/// The control groups that limit this process in what `controller` counts, and those around them: of both versions, also where they are
/// mounted side by side.
fn cgroups(root: &Path, controller: &str) -> Vec<Cgroup> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut found = Vec::new();
    for line in groups.lines() {
        // "4:hugetlb:/group", or "0::/group" for version 2.
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let of_version_1 = format!("sys/fs/cgroup/{controller}");
        let (mounts, is_version_1): (&[&str], _) = if controllers.is_empty() {
            (&["sys/fs/cgroup", "sys/fs/cgroup/unified"], false)
        } else if controllers.split(',').any(|other| other == controller) {
            (&[&of_version_1], true)
        } else {
            continue;
        };
        for mount in mounts {
            let mount = root.join(mount);
            let group = mount.join(group.trim_start_matches('/'));
            // A limit of any group around ours holds for us too.
            let directories = group.ancestors().take_while(|directory| directory.starts_with(&mount));
            found.extend(
                directories.map(|directory| Cgroup { directory: directory.to_owned(), is_version_1 }),
            );
        }
    }
    found
}

/// A limit, if it is one: "max" of version 2 is no number, and version 1 says a number that no machine reaches.
fn limit_in(path: &Path) -> Option<u64> {
    number(path).filter(|&limit| limit < 1 << 60)
}

fn memory_limit(root: &Path) -> Option<MemoryLimit> {
    let limits = cgroups(root, "memory").into_iter().filter_map(|Cgroup { directory, is_version_1 }| {
        let path = directory.join(if is_version_1 { "memory.limit_in_bytes" } else { "memory.max" });
        Some(MemoryLimit { limit: limit_in(&path)?, path })
    });
    limits.min_by_key(|found| found.limit)
}

fn hugetlb_limits(root: &Path) -> Vec<CgroupLimit> {
    let mut limits: Vec<CgroupLimit> = Vec::new();
    for Cgroup { directory, is_version_1 } in cgroups(root, "hugetlb") {
        let suffix = if is_version_1 { ".limit_in_bytes" } else { ".max" };
        for (name, path) in entries(&directory) {
            let size = name.strip_prefix("hugetlb.").and_then(|name| name.strip_suffix(suffix));
            let Some(size) = size.filter(|size| !size.contains('.')) else { continue };
            let Some(limit) = limit_in(&path) else { continue };
            match limits.iter_mut().find(|known| known.size == size) {
                Some(known) if known.limit <= limit => {}
                Some(known) => (known.limit, known.path) = (limit, path),
                None => limits.push(CgroupLimit { size: size.to_owned(), limit, path }),
            }
        }
    }
    limits.sort_by(|a, b| a.size.cmp(&b.size));
    limits
}

impl fmt::Display for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pages.is_empty() {
            writeln!(f, "hugepages: none, this kernel is built without them")?;
        } else {
            writeln!(
                f,
                "{:8}{:>8}{:>9}{:>9}{:>10}{:>9}",
                "node", "page", "total", "free", "reserved", "surplus"
            )?;
        }
        for node in &self.nodes {
            for pages in &node.pages {
                let NodePages { page_len, total, free, surplus } = *pages;
                let len = Bytes(page_len);
                writeln!(f, "{:<8}{len:>8}{total:>9}{free:>9}{:>10}{surplus:>9}", node.id, "-")?;
            }
        }
        for pages in &self.pages {
            let PageCounts { page_len, total, free, reserved, surplus, overcommit } = *pages;
            let len = Bytes(page_len);
            write!(f, "{:8}{len:>8}{total:>9}{free:>9}{reserved:>10}{surplus:>9}", "all")?;
            if overcommit > 0 {
                write!(f, "  and {overcommit} more on demand")?;
            }
            writeln!(f)?;
        }
        for node in &self.nodes {
            if let (Some(free), Some(total)) = (node.memory_free, node.memory_total) {
                writeln!(f, "memory of node {}: {} free of {}", node.id, Bytes(free), Bytes(total))?;
            }
        }
        let setting =
            |setting: &Option<String>| setting.clone().unwrap_or_else(|| "not in this kernel".into());
        let Transparent { anonymous, shmem } = &self.transparent;
        writeln!(f, "transparent: {}; for shared memory: {}", setting(anonymous), setting(shmem))?;
        if let Some(Memlock { soft, hard }) = self.memlock {
            let limit =
                |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |bytes| Bytes(bytes).to_string());
            writeln!(f, "locked memory: at most {}, can be raised to {}", limit(soft), limit(hard))?;
        }
        for limit in &self.cgroup {
            let path = limit.path.display();
            writeln!(f, "control group: at most {} of pages of {} ({path})", Bytes(limit.limit), limit.size)?;
        }
        if let Some(MemoryLimit { limit, path }) = &self.memory_limit {
            writeln!(f, "control group: at most {} of memory ({})", Bytes(*limit), path.display())?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A machine in a folder, removed when dropped.
    pub(crate) struct Machine(pub(crate) PathBuf);

    impl Machine {
        pub(crate) fn new(name: &str, files: &[(&str, &str)]) -> Machine {
            let root = std::env::temp_dir().join(format!("stag-hugepages-{name}-{}", std::process::id()));
            // Left by a run that was killed, perhaps.
            let _ = fs::remove_dir_all(&root);
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Machine(root)
        }

        /// Two nodes, two sizes.
        pub(crate) fn large(name: &str) -> Machine {
            Machine::new(
                name,
                &[
                    ("sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "512\n"),
                    ("sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "12\n"),
                    ("sys/devices/system/node/node1/hugepages/hugepages-2048kB/surplus_hugepages", "0\n"),
                    ("sys/devices/system/node/node1/hugepages/hugepages-1048576kB/nr_hugepages", "0\n"),
                    (
                        "sys/devices/system/node/node1/meminfo",
                        "Node 1 MemTotal:  8388608 kB\nNode 1 MemFree:  4194304 kB\n",
                    ),
                    ("sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", "0\n"),
                    ("sys/devices/system/node/node0/hugepages/hugepages-1048576kB/nr_hugepages", "2\n"),
                    ("sys/devices/system/node/node0/hugepages/hugepages-1048576kB/free_hugepages", "2\n"),
                    (
                        "sys/devices/system/node/node0/meminfo",
                        "Node 0 MemTotal:  8388608 kB\nNode 0 MemFree:  1048576 kB\n",
                    ),
                    ("sys/devices/system/node/online", "0-1\n"),
                    ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512\n"),
                    ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "12\n"),
                    ("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "4\n"),
                    ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages", "7\n"),
                    ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "2\n"),
                    ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
                    (
                        "sys/kernel/mm/transparent_hugepage/shmem_enabled",
                        "always within_size advise [never] deny force\n",
                    ),
                    (
                        "proc/self/limits",
                        "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         8388608              unlimited            bytes     \n",
                    ),
                    ("proc/self/cgroup", "9:name=systemd:/\n4:cpu,hugetlb:/a/b\n0::/c\n"),
                    ("sys/fs/cgroup/hugetlb/a/b/hugetlb.2MB.limit_in_bytes", "9223372036852678656\n"),
                    ("sys/fs/cgroup/hugetlb/a/hugetlb.2MB.limit_in_bytes", "1073741824\n"),
                    ("sys/fs/cgroup/hugetlb/hugetlb.2MB.limit_in_bytes", "2147483648\n"),
                    ("sys/fs/cgroup/hugetlb/a/hugetlb.2MB.rsvd.limit_in_bytes", "1\n"),
                    ("sys/fs/cgroup/unified/c/hugetlb.1GB.max", "max\n"),
                    ("sys/fs/cgroup/unified/hugetlb.1GB.max", "3221225472\n"),
                    ("sys/fs/cgroup/unified/c/memory.max", "max\n"),
                    ("sys/fs/cgroup/unified/memory.max", "4294967296\n"),
                ],
            )
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_large_machine_is_read() {
        let machine = Machine::large("read");
        let inventory = Inventory::read(&machine.0);
        let text = inventory.to_string().replace(machine.0.to_str().unwrap(), "");
        assert_eq!(
            text,
            "\
node        page    total     free  reserved  surplus
0          2 MiB        0        0         -        0
0          1 GiB        2        2         -        0
1          2 MiB      512       12         -        0
1          1 GiB        0        0         -        0
all        2 MiB      512       12         4        0  and 7 more on demand
all        1 GiB        2        0         0        0
memory of node 0: 1 GiB free of 8 GiB
memory of node 1: 4 GiB free of 8 GiB
transparent: madvise; for shared memory: never
locked memory: at most 8 MiB, can be raised to unlimited
control group: at most 3 GiB of pages of 1GB (/sys/fs/cgroup/unified/hugetlb.1GB.max)
control group: at most 1 GiB of pages of 2MB (/sys/fs/cgroup/hugetlb/a/hugetlb.2MB.limit_in_bytes)
control group: at most 4 GiB of memory (/sys/fs/cgroup/unified/memory.max)
"
        );
        assert_eq!(inventory.node(1).unwrap().memory_free, Some(4 << 30));
    }

    #[test]
    fn a_machine_that_shows_nothing_is_read_too() {
        let machine = Machine::new("empty", &[("sys/kernel/mm/hugepages/hugepages-xkB/nr_hugepages", "x")]);
        let inventory = Inventory::read(&machine.0);
        assert_eq!(inventory, Inventory::default());
        assert!(inventory.to_string().starts_with("hugepages: none"));
    }

    #[test]
    fn this_machine_is_read() {
        let inventory = Inventory::read(Path::new("/"));
        assert!(inventory.memlock.is_some());
    }

    #[test]
    fn the_least_limit_of_memory_of_all_groups_holds() {
        /// The line of `/proc/self/cgroup`, files below `/sys/fs/cgroup`, and the limit that holds.
        type Case = (&'static str, &'static [(&'static str, &'static str)], Option<u64>);
        let cases: [Case; 6] = [
            ("0::/\n", &[("memory.max", "536870912\n")], Some(512 << 20)),
            (
                "0::/a/b\n",
                &[("a/b/memory.max", "max\n"), ("a/memory.max", "1048576\n"), ("memory.max", "9\n")],
                Some(9),
            ),
            (
                "0::/a/b\n",
                &[("a/b/memory.max", "7\n"), ("a/memory.max", "8\n"), ("a/c/memory.max", "1\n")],
                Some(7),
            ),
            (
                "9:cpu:/x\n3:memory:/a/b\n",
                &[
                    ("memory/a/b/memory.limit_in_bytes", "9223372036854771712\n"),
                    ("memory/a/memory.limit_in_bytes", "77\n"),
                ],
                Some(77),
            ),
            (
                "3:memory:/a\n0::/b\n",
                &[("memory/a/memory.limit_in_bytes", "5\n"), ("b/memory.max", "6\n")],
                Some(5),
            ),
            ("0::/\n", &[], None),
        ];
        for (index, (groups, files, expected)) in cases.into_iter().enumerate() {
            let machine = Machine::new(&format!("memory-{index}"), &[("proc/self/cgroup", groups)]);
            for (path, text) in files {
                let path = machine.0.join("sys/fs/cgroup").join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            let found = Inventory::read(&machine.0).memory_limit;
            assert_eq!(found.map(|found| found.limit), expected, "{groups}");
        }
    }
}
