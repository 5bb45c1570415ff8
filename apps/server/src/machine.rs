//! The files that describe a machine, and what they tell.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use stag_hugepages::Inventory;
use stag_runtime::CoreSet;

/// A machine, or a tree that looks like one.
pub struct Machine {
    root: PathBuf,
    needs_verbs: bool,
}

/// Permission to lock memory beyond the limit. This, as the next one, is the number of a bit of `CapEff`.
const CAP_IPC_LOCK: u32 = 14;
/// Permission to do most of what root does.
pub const CAP_SYS_ADMIN: u32 = 21;

impl Machine {
    /// The machine whose `sys`, `proc`, `dev` and so on are below `root`; and whether RDMA hardware has to work there.
    #[must_use]
    pub fn new(root: &Path, needs_verbs: bool) -> Machine {
        Machine { root: root.to_owned(), needs_verbs }
    }

    /// Where its files are.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether RDMA hardware has to work.
    #[must_use]
    pub fn needs_verbs(&self) -> bool {
        self.needs_verbs
    }

    /// A file's path in the tree.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// A file's text, without white space around it.
    #[must_use]
    pub fn read(&self, path: &str) -> Option<String> {
        Some(fs::read_to_string(self.path(path)).ok()?.trim().to_owned())
    }

    /// A file that has one value, such as a number.
    #[must_use]
    pub fn value<T: FromStr>(&self, path: &str) -> Option<T> {
        self.read(path)?.parse().ok()
    }

    /// Whether there is such a file or folder.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// What is in a folder, in order; nothing, if it is not there.
    #[must_use]
    pub fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// A line of this process's status: `Uid`, `CapEff`.
    #[must_use]
    pub fn status(&self, field: &str) -> Option<String> {
        let status = self.read("proc/self/status")?;
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        Some(line.trim().to_owned())
    }

    /// Whether this process has a capability.
    #[must_use]
    pub fn is_capable(&self, capability: u32) -> bool {
        let set = self.status("CapEff").and_then(|set| u64::from_str_radix(&set, 16).ok());
        set.is_some_and(|set| set >> capability & 1 != 0)
    }

    /// The cores that this process may use.
    #[must_use]
    pub fn cores(&self) -> Option<CoreSet> {
        self.status("Cpus_allowed_list")?.parse().ok()
    }

    /// A process of that name, if one runs.
    #[must_use]
    pub fn process(&self, name: &str) -> Option<u32> {
        let processes = self.names("proc").into_iter().filter_map(|id| id.parse().ok());
        processes
            .into_iter()
            .find(|id: &u32| self.read(&format!("proc/{id}/comm")).is_some_and(|comm| comm == name))
    }

    /// The kernel's version, as its folder of modules is named.
    #[must_use]
    pub fn release(&self) -> String {
        self.read("proc/sys/kernel/osrelease").unwrap_or_default()
    }

    /// The first two numbers of it.
    #[must_use]
    pub fn kernel(&self) -> Option<(u32, u32)> {
        let release = self.release();
        let mut numbers = release.split('.').map_while(|number| number.parse().ok());
        Some((numbers.next()?, numbers.next()?))
    }

    /// Whether a module of the kernel is loaded, or built in with a name of its own.
    #[must_use]
    pub fn has_loaded(&self, module: &str) -> bool {
        self.has(&format!("sys/module/{module}"))
    }

    /// Whether modprobe would find it, or that it is built in.
    #[must_use]
    pub fn has_on_disk(&self, module: &str) -> bool {
        ["modules.dep", "modules.builtin"].into_iter().any(|list| {
            let listed = self.read(&format!("lib/modules/{}/{list}", self.release())).unwrap_or_default();
            listed.lines().any(|line| line.contains(&format!("/{module}.ko")))
        })
    }

    /// The RDMA devices.
    #[must_use]
    pub fn rdma_devices(&self) -> Vec<String> {
        self.names("sys/class/infiniband")
    }

    /// A network interface that could carry RDMA, for examples.
    #[must_use]
    pub fn interface(&self) -> String {
        let names = self.names("sys/class/net").into_iter();
        names
            .filter(|name| name != "lo")
            .find(|name| self.has(&format!("sys/class/net/{name}/device")))
            .unwrap_or_else(|| "NETDEV".to_owned())
    }

    /// Whether the limit of locked memory applies to this process: with the capability it does not, but siw honours the capability
    /// only from Linux 6.8 on.
    #[must_use]
    pub fn is_lock_limited(&self) -> bool {
        let has_old_siw = self.has_loaded("siw") && self.kernel().is_some_and(|kernel| kernel < (6, 8));
        has_old_siw || !self.is_capable(CAP_IPC_LOCK)
    }

    /// Octets that this process may lock, if there is a limit, and if the machine tells it.
    #[must_use]
    pub fn lockable(&self) -> Option<u64> {
        self.is_lock_limited().then(|| Inventory::read(&self.root).memlock?.soft)?
    }
}
