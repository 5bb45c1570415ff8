//! What is known of a machine, and which of its cores are chosen.

use crate::cores::{CoreId, CoreSet};

/// The online cores of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    pub(super) cores: Vec<Core>,
    pub(super) nodes: Vec<NumaNode>,
    pub(super) isolated: CoreSet,
    pub(super) devices: Vec<RdmaDevice>,
}

/// An RDMA device that is nearer to some cores than to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RdmaDevice {
    pub(super) name: String,
    pub(super) near: CoreSet,
}

/// A logical CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// Its number.
    pub id: CoreId,
    /// The NUMA node whose memory is nearest.
    pub node: u32,
    /// The processor package (socket).
    pub package: u32,
    /// The logical CPUs of the same physical core, itself included (SMT siblings).
    pub siblings: CoreSet,
    /// The logical CPUs that share its last-level cache (L3, or the highest there is), itself included.
    pub cache: CoreSet,
}

/// A NUMA node. One without cores has memory only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// Its number.
    pub id: u32,
    /// Its online cores.
    pub cores: CoreSet,
}

impl Topology {
    /// The online cores, lowest id first.
    #[must_use]
    pub fn cores(&self) -> &[Core] {
        &self.cores
    }

    /// The NUMA nodes, lowest id first. There is one at least.
    #[must_use]
    pub fn nodes(&self) -> &[NumaNode] {
        &self.nodes
    }

    /// The cores that the scheduler leaves alone (`isolcpus`).
    #[must_use]
    pub fn isolated(&self) -> CoreSet {
        self.isolated
    }

    /// One core; `None` when it is not online.
    #[must_use]
    pub fn core(&self, id: CoreId) -> Option<&Core> {
        self.cores.binary_search_by_key(&id, |core| core.id).ok().map(|index| &self.cores[index])
    }

    /// The NUMA node of a core; `None` when it is not online.
    #[must_use]
    pub fn node_of(&self, id: CoreId) -> Option<u32> {
        self.core(id).map(|core| core.node)
    }

    /// The cores nearest to an RDMA device. `None`: it is near to all of them, or the machine does not tell.
    #[must_use]
    pub fn near(&self, device: &str) -> Option<CoreSet> {
        self.devices.iter().find(|it| it.name == device).map(|it| it.near)
    }

    /// Chooses up to `count` of the `allowed` cores for reactors that talk to each other.
    ///
    /// In this order: isolated cores before others; physical cores before SMT siblings of chosen ones;
    /// cores that share the first one's cache, then its node, before others; core 0, which takes most
    /// interrupts, last among equals. Fewer come back only when fewer are allowed.
    #[must_use]
    pub fn choose(&self, allowed: &CoreSet, count: usize) -> Vec<CoreId> {
        self.choose_near(allowed, count, None)
    }

    /// Chooses as [`choose`](Topology::choose) does, cores of `near` before all others: those nearest to a device.
    #[must_use]
    pub fn choose_near(&self, allowed: &CoreSet, count: usize, near: Option<CoreSet>) -> Vec<CoreId> {
        let mut free: Vec<&Core> = self.cores.iter().filter(|core| allowed.contains(core.id)).collect();
        let mut chosen: Vec<&Core> = Vec::new();
        while chosen.len() < count {
            let cost = |core: &&Core| {
                let is_taken = chosen.iter().any(|other| other.siblings.contains(core.id));
                let first = chosen.first();
                (
                    near.is_some_and(|near| !near.contains(core.id)),
                    !self.isolated.contains(core.id),
                    is_taken,
                    first.is_some_and(|first| !first.cache.contains(core.id)),
                    first.is_some_and(|first| first.node != core.node),
                    core.id == CoreId(0),
                    core.id,
                )
            };
            let Some(best) = free.iter().copied().min_by_key(cost) else { break };
            free.retain(|core| core.id != best.id);
            chosen.push(best);
        }
        chosen.into_iter().map(|core| core.id).collect()
    }
}

/// Whether being near to these cores says anything.
pub(super) fn is_nearer(near: &CoreSet, online: &CoreSet) -> bool {
    !near.is_empty() && near != online
}
