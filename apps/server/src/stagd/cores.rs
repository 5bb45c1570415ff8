//! The cores that the server runs on: those of the command line, or one that suits.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error as _};
use stag_runtime::{CoreId, CoreSet, ReactorId, Topology, affinity};

use super::claims::{Claim, Claimed, Claims, Holder};
use super::{Settings, listen};
use crate::failure::CommandFailure;
use crate::locality;
use crate::values::Poll;

/// The cores of a list like `2-9` or `0,4,2`, one reactor for each, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreList(Vec<CoreId>);

impl CoreList {
    /// One core alone.
    #[must_use]
    pub fn one(core: usize) -> CoreList {
        CoreList(vec![CoreId(core)])
    }

    /// How many there are: at least one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none, which is never so.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The cores, in this order.
    pub fn iter(&self) -> impl Iterator<Item = CoreId> + '_ {
        self.0.iter().copied()
    }

    /// The first `count` of them, and at least one.
    #[must_use]
    pub fn first(&self, count: usize) -> CoreList {
        CoreList(self.0[..count.clamp(1, self.0.len())].to_vec())
    }

    /// Whether a core is in it.
    #[must_use]
    pub fn contains(&self, core: usize) -> bool {
        self.position(core).is_some()
    }

    /// Which reactor runs on a core.
    #[must_use]
    pub fn position(&self, core: usize) -> Option<usize> {
        self.0.iter().position(|found| found.0 == core)
    }
}

impl FromStr for CoreList {
    type Err = String;

    fn from_str(text: &str) -> Result<CoreList, String> {
        let mut cores = Vec::new();
        for part in text.split(',') {
            let set: CoreSet = part
                .parse()
                .ok()
                .filter(|set: &CoreSet| !set.is_empty())
                .ok_or_else(|| format!("{part:?} is no core; write cores as 2-9 or 0,2,4"))?;
            for core in set.iter() {
                if cores.contains(&core) {
                    return Err(format!("{core} is in the list twice; name each core once"));
                }
                cores.push(core);
            }
        }
        if cores.len() > ReactorId::COUNT_MAX {
            return Err(format!("{} cores (limit {}); name fewer", cores.len(), ReactorId::COUNT_MAX));
        }
        Ok(CoreList(cores))
    }
}

/// As [`CoreSet`] writes it where that is the order, else one by one.
impl fmt::Display for CoreList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_sorted() {
            return self.0.iter().copied().collect::<CoreSet>().fmt(f);
        }
        let mut separator = "";
        self.0.iter().try_for_each(|core| {
            let before = std::mem::replace(&mut separator, ",");
            write!(f, "{before}{}", core.0)
        })
    }
}

/// In a configuration file: a text as on the command line.
impl<'de> Deserialize<'de> for CoreList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CoreList, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_shown() {
        for (text, count, shown) in [
            ("0", 1, "0"),
            ("2-9", 8, "2-9"),
            ("2,3", 2, "2-3"),
            ("0,2,4", 3, "0,2,4"),
            ("3,2", 2, "3,2"),
            ("0-63", 64, "0-63"),
        ] {
            let list: CoreList = text.parse().unwrap();
            assert_eq!((list.len(), list.to_string().as_str()), (count, shown), "{text}");
        }
        let list: CoreList = "5,2-3".parse().unwrap();
        assert_eq!([5, 2, 3, 4].map(|core| list.position(core)), [Some(0), Some(1), Some(2), None]);
    }

    #[test]
    fn what_is_no_list_says_why() {
        for (text, why) in [
            ("", "\"\" is no core"),
            ("0,", "\"\" is no core"),
            ("a", "\"a\" is no core"),
            ("3-1", "\"3-1\" is no core"),
            ("-1", "\"-1\" is no core"),
            ("0-1,1", "core 1 is in the list twice"),
            ("7,7", "core 7 is in the list twice"),
            ("0-64", "65 cores (limit 64)"),
            ("1024", "\"1024\" is no core"),
        ] {
            let error = text.parse::<CoreList>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
