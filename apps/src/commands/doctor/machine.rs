//! The files that describe a machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use stag_runtime::CoreSet;

use super::finding::State;

/// A machine, or a tree that looks like one.
pub(super) struct Machine {
    root: PathBuf,
    /// RDMA hardware has to work.
    needs_verbs: bool,
}

/// Permission to lock memory beyond the limit, and to do what root does, as bits of `CapEff`.
pub(super) const CAP_IPC_LOCK: u32 = 14;
pub(super) const CAP_SYS_ADMIN: u32 = 21;

impl Machine {
    pub(super) fn new(root: &Path, needs_verbs: bool) -> Machine {
        Machine { root: root.to_owned(), needs_verbs }
    }

    /// Where its files are.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// A file's path in the tree.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// A file's text, without white space around it.
    pub(super) fn read(&self, path: &str) -> Option<String> {
        Some(fs::read_to_string(self.path(path)).ok()?.trim().to_owned())
    }

    /// A file that has one value, such as a number.
    pub(super) fn value<T: FromStr>(&self, path: &str) -> Option<T> {
        self.read(path)?.parse().ok()
    }

    pub(super) fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// What is in a folder, in order; nothing, if it is not there.
    pub(super) fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// A line of this process's status: `Uid`, `CapEff`.
    pub(super) fn status(&self, field: &str) -> Option<String> {
        let status = self.read("proc/self/status")?;
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        Some(line.trim().to_owned())
    }

    /// Whether this process has a capability.
    pub(super) fn is_capable(&self, capability: u32) -> bool {
        let set = self.status("CapEff").and_then(|set| u64::from_str_radix(&set, 16).ok());
        set.is_some_and(|set| set >> capability & 1 != 0)
    }

    /// The cores that this process may use.
    pub(super) fn cores(&self) -> Option<CoreSet> {
        self.status("Cpus_allowed_list")?.parse().ok()
    }

    /// A process of that name, if one runs.
    pub(super) fn process(&self, name: &str) -> Option<u32> {
        let processes = self.names("proc").into_iter().filter_map(|id| id.parse().ok());
        processes
            .into_iter()
            .find(|id: &u32| self.read(&format!("proc/{id}/comm")).is_some_and(|comm| comm == name))
    }

    /// The kernel's version, as its folder of modules is named.
    pub(super) fn release(&self) -> String {
        self.read("proc/sys/kernel/osrelease").unwrap_or_default()
    }

    /// The first two numbers of it.
    pub(super) fn kernel(&self) -> Option<(u32, u32)> {
        let release = self.release();
        let mut numbers = release.split('.').map_while(|number| number.parse().ok());
        Some((numbers.next()?, numbers.next()?))
    }

    /// Whether a module of the kernel is loaded, or built in with a name of its own.
    pub(super) fn has_loaded(&self, module: &str) -> bool {
        self.has(&format!("sys/module/{module}"))
    }

    /// Whether modprobe would find it, or that it is built in.
    pub(super) fn has_on_disk(&self, module: &str) -> bool {
        ["modules.dep", "modules.builtin"].into_iter().any(|list| {
            let listed = self.read(&format!("lib/modules/{}/{list}", self.release())).unwrap_or_default();
            listed.lines().any(|line| line.contains(&format!("/{module}.ko")))
        })
    }

    /// The RDMA devices.
    pub(super) fn rdma_devices(&self) -> Vec<String> {
        self.names("sys/class/infiniband")
    }

    /// How bad it is that something of verbs is missing: where it is wanted, where there is hardware for it, and elsewhere.
    pub(super) fn missing(&self) -> State {
        if self.needs_verbs {
            State::Error
        } else if self.rdma_devices().is_empty() {
            State::Note
        } else {
            State::Warning
        }
    }

    /// A network interface that could carry RDMA, for examples.
    pub(super) fn interface(&self) -> String {
        let names = self.names("sys/class/net").into_iter();
        names
            .filter(|name| name != "lo")
            .find(|name| self.has(&format!("sys/class/net/{name}/device")))
            .unwrap_or_else(|| "NETDEV".to_owned())
    }
}
