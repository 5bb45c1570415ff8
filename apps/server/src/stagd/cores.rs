//! The cores that the server runs on: those of the command line, or one that suits.

use stag_runtime::{CoreId, CoreSet, Topology, affinity};

use super::claims::{Claim, Claimed, Claims, Holder};
use super::core_list::CoreList;
use super::{Settings, listen};
use crate::failure::CommandFailure;
use crate::locality;
use crate::values::Poll;

/// A core of the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seat {
    pub(super) core: CoreId,
    /// Its NUMA node: 0 if there is only one.
    pub(super) node: u32,
}

/// Where the server runs.
pub(super) struct Place {
    /// The core of each reactor, the one that listens first.
    pub(super) seats: Vec<Seat>,
    /// Something that costs speed, if there is such.
    pub(super) warnings: Vec<String>,
    /// What is done in another way than usual, and why.
    pub(super) notes: Vec<String>,
    /// Until the server ends.
    _claims: Vec<Claim>,
}

impl Place {
    /// The cores that were asked for, or one that suits and that no other server has. Of several, none may be another server's,
    /// unless they are `only_looked_at`.
    pub(super) fn choose(settings: &Settings, only_looked_at: bool) -> Result<Place, CommandFailure> {
        let topology = Topology::read().map_err(CommandFailure::run)?;
        let allowed = affinity::allowed();
        let claims = Claims::find();
        let mut warnings = Vec::new();
        let near = near(&topology, settings)?;
        let (cores, held) = match &settings.cores {
            Some(list) => {
                let held = claim_each(list, &claims, &mut warnings, only_looked_at)?;
                (list.0.clone(), held)
            }
            None => match free_core(&topology, &allowed, near, &claims, &mut warnings) {
                Some((core, claim)) => (vec![core], claim.into_iter().collect()),
                None => {
                    return Err(CommandFailure::run("no core of this machine is allowed to this process"));
                }
            },
        };
        if allowed.len() == 1 {
            let advice = match settings.poll {
                Poll::Busy => "; --poll adaptive leaves it to the clients between Calls",
                Poll::Adaptive => "",
            };
            warnings.push(format!(
                "{} is the only core, for the server and its clients: each Call waits for the scheduler{advice}",
                cores[0].0
            ));
        }
        if cores.len() > 1 {
            warnings.extend(remarks(&topology, &allowed, near.as_ref(), &cores, settings.poll));
        }
        let seat = |core: &CoreId| Seat { core: *core, node: topology.node_of(*core).unwrap_or(0) };
        Ok(Place {
            seats: cores.iter().map(seat).collect(),
            warnings,
            notes: claims.note().into_iter().collect(),
            _claims: held,
        })
    }

    /// The cores, in the order of their reactors.
    pub(super) fn cores(&self) -> Vec<Option<CoreId>> {
        self.seats.iter().map(|seat| Some(seat.core)).collect()
    }

    /// The NUMA node of all cores; `None` if they are on several.
    pub(super) fn node(&self) -> Option<u32> {
        let first = self.seats.first()?.node;
        self.seats.iter().all(|seat| seat.node == first).then_some(first)
    }
}

/// Checks that each core may be used, and takes it.
fn claim_each(
    list: &CoreList,
    claims: &Claims,
    warnings: &mut Vec<String>,
    only_looked_at: bool,
) -> Result<Vec<Claim>, CommandFailure> {
    let flag = if list.len() == 1 { "--core" } else { "--cores" };
    let mut held = Vec::new();
    for core in &list.0 {
        affinity::check(*core)
            .map_err(|error| CommandFailure::usage(format_args!("{flag} {list}: {error}")))?;
        match claims.claim(*core) {
            Claimed::Own(claim) => held.push(claim),
            Claimed::Unknown => {}
            Claimed::Taken(holder) if list.len() == 1 => {
                warnings.push(shared(*core, &holder, "choose another core, or leave --cores out"));
            }
            Claimed::Taken(holder) if only_looked_at => {
                warnings.push(format!("{core}: {holder} runs there; a server cannot start there now"));
            }
            // Each core would wait for the others' answers while they wait for the other server's turn.
            Claimed::Taken(holder) => {
                return Err(CommandFailure::run(format_args!(
                    "--cores {list}: {core}: {holder} runs there; name cores that no other server has"
                )));
            }
        }
    }
    Ok(held)
}

/// What several cores cost that are ill chosen.
fn remarks(
    topology: &Topology,
    allowed: &CoreSet,
    near: Option<&CoreSet>,
    cores: &[CoreId],
    poll: Poll,
) -> Vec<String> {
    let chosen: CoreSet = cores.iter().copied().collect();
    let mut remarks = Vec::new();
    let nodes = |cores: &CoreSet| {
        let mut nodes: Vec<u32> = cores.iter().filter_map(|core| topology.node_of(core)).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    };
    if nodes(&chosen).len() > 1 {
        remarks.push(format!(
            "cores {chosen} are on NUMA nodes {:?}: memory is on any of them, and Calls between them cost more; \
             choose cores of one node",
            nodes(&chosen)
        ));
    }
    if let Some(near) = near.filter(|near| !near.is_empty() && chosen.intersection(near).is_empty()) {
        remarks.push(format!("cores {chosen} are far from the RDMA device; those near it are {near}"));
    }
    for (at, core) in cores.iter().enumerate() {
        let siblings = topology.core(*core).map(|core| core.siblings).unwrap_or_default();
        if let Some(sibling) = cores[..at].iter().find(|other| siblings.contains(**other)) {
            remarks.push(format!(
                "{sibling} and {core} are threads of one physical core, and each slows the other down"
            ));
        }
    }
    if poll == Poll::Busy && chosen.intersection(allowed).len() == allowed.len() && allowed.len() > 1 {
        remarks.push(format!(
            "cores {chosen} are all that this process may use: with --poll busy nothing else gets a turn, its own threads \
             included; leave one out, or use --poll adaptive"
        ));
    }
    remarks
}

/// The core that suits best of those that no other server has; if they have all, the best of all.
fn free_core(
    topology: &Topology,
    allowed: &CoreSet,
    near: Option<CoreSet>,
    claims: &Claims,
    warnings: &mut Vec<String>,
) -> Option<(CoreId, Option<Claim>)> {
    let mut free = *allowed;
    // Cores whose SMT siblings are taken are as slow as taken ones, nearly: they come last.
    let mut quiet = *allowed;
    let best = |cores: &CoreSet| topology.choose_near(cores, 1, near).first().copied();
    while let Some(core) = best(&quiet).or_else(|| best(&free)) {
        match claims.claim(core) {
            Claimed::Own(claim) => return Some((core, Some(claim))),
            Claimed::Unknown => return Some((core, None)),
            Claimed::Taken(_) => {
                free.remove(core);
                quiet.remove(core);
                let siblings = topology.core(core).map(|core| core.siblings).unwrap_or_default();
                siblings.iter().for_each(|sibling| quiet.remove(sibling));
            }
        }
    }
    let core = best(allowed)?;
    if let Some(holder) = claims.holder(core) {
        let advice = "other servers have all cores of this process; give it more, or run fewer servers";
        warnings.push(shared(core, &holder, advice));
    }
    Some((core, None))
}

fn shared(core: CoreId, holder: &Holder, advice: &str) -> String {
    format!("core {}: {holder} runs there, and each waits while the other works; {advice}", core.0)
}

/// The cores nearest to the RDMA device, where it serves over one.
fn near(topology: &Topology, settings: &Settings) -> Result<Option<CoreSet>, CommandFailure> {
    let fabric = listen::fabric(&settings.listen)?;
    Ok(fabric.and_then(|fabric| locality::near(topology, fabric, settings.device.as_deref())))
}
