//! Decides at which reactor of a group a COMPOUND is executed: all of it at one.
//!
//! | the COMPOUND | where |
//! |---|---|
//! | makes or ends a client or a session, or says RECLAIM_COMPLETE | at the first reactor, which has the clients |
//! | goes to a file in memory | at the reactor that has the file |
//! | goes to a file of a directory | at the reactor that keeps the locks of directories: opens are there |
//! | goes from the root or a node into an export, down or up | as for the export |
//! | frees or tests a state id | at the reactor that the state id names |
//! | anything else | where it came in |
//!
//! The first operation that tells decides. What a COMPOUND reaches later and is elsewhere ([`Place`](super::Place)) it can only name
//! for RENAME and LINK, which refuse it. Nothing but the arguments decides, so a retry finds the reactor that knows its request.

use stag_rpc::{Call, Home};
use stag_runtime::ReactorId;
use stag_state::stateid::{StateName, StateToken};
use stag_vfs::Store;
use stag_wire::nfs4::compound::CompoundCall;
use stag_wire::nfs4::open::OpenClaim;
use stag_wire::nfs4::operation::Argument4;
use stag_wire::nfs4::{Handle4, Name4, StateId};

use super::super::ExportTable;
use super::pseudo::{NodeIndex, PSEUDO_FSID, PseudoTree};
use crate::handle;

/// Operations that are looked at, at most.
const LOOKED_AT_MAX: u32 = 16;

/// The reactor that has the clients.
fn registrar() -> Home {
    ReactorId::new(0).map_or(Home::Here, Home::At)
}

/// Where an operation leads.
enum Leads {
    Home(Home),
    /// To this node.
    Node(NodeIndex),
    /// It does not tell.
    On,
}

/// Where a COMPOUND is executed.
pub(super) fn home_of_compound<S: Store + ?Sized>(
    exports: &ExportTable<S>,
    pseudo: &PseudoTree,
    call: &Call<'_>,
) -> Home {
    if exports.is_alone() {
        return Home::Here;
    }
    let Ok(CompoundCall { mut operations, .. }) = CompoundCall::parse(call.arguments()) else {
        return Home::Here;
    };
    let mut at = None;
    for _ in 0..LOOKED_AT_MAX {
        let Some(Ok(operation)) = operations.next_item() else { break };
        match leads(exports, pseudo, at, &operation) {
            Leads::Home(home) => return home,
            Leads::Node(node) => {
                at = Some(node);
                if let Some(home) = home_of_node(exports, pseudo, node) {
                    return home;
                }
            }
            Leads::On => {}
        }
    }
    Home::Here
}

/// The first handle that a COMPOUND goes to, if it is among its first operations.
pub(super) fn first_handle<'a>(call: &Call<'a>) -> Option<Handle4<'a>> {
    let CompoundCall { mut operations, .. } = CompoundCall::parse(call.arguments()).ok()?;
    for _ in 0..LOOKED_AT_MAX {
        if let Argument4::Putfh(handle) = operations.next_item()?.ok()? {
            return Some(handle);
        }
    }
    None
}

fn leads<S: Store + ?Sized>(
    exports: &ExportTable<S>,
    pseudo: &PseudoTree,
    at: Option<NodeIndex>,
    operation: &Argument4<'_>,
) -> Leads {
    match operation {
        Argument4::ExchangeId(_)
        | Argument4::CreateSession(_)
        | Argument4::DestroySession(_)
        | Argument4::DestroyClientid(_)
        | Argument4::ReclaimComplete(_) => Leads::Home(registrar()),
        Argument4::Putfh(handle) => home_of_handle(exports, pseudo, handle),
        Argument4::Putrootfh(()) | Argument4::Putpubfh(()) => Leads::Node(PseudoTree::ROOT),
        Argument4::Lookup(name) | Argument4::Secinfo(name) => down(pseudo, at, name),
        Argument4::Lookupp(()) => at.and_then(|at| pseudo.parent(at)).map_or(Leads::On, Leads::Node),
        Argument4::Open(arguments) => match &arguments.claim {
            OpenClaim::Null(name) => down(pseudo, at, name),
            _ => Leads::On,
        },
        Argument4::FreeStateid(state) => Leads::Home(home_of_state(exports, state)),
        Argument4::TestStateid(states) => {
            Leads::Home(states.iter().next().map_or(Home::Here, |state| home_of_state(exports, &state)))
        }
        _ => Leads::On,
    }
}

/// The home of the export that begins at a node.
fn home_of_node<S: Store + ?Sized>(
    exports: &ExportTable<S>,
    pseudo: &PseudoTree,
    node: NodeIndex,
) -> Option<Home> {
    let path = &pseudo.export(node)?.path;
    let own = exports.shares.iter().find(|share| share.serves(path));
    let own = own.map(|share| share.volume().profile().fsid);
    let other = || exports.elsewhere.iter().find(|other| other.export.path == *path).map(|other| other.fsid);
    Some(exports.home_of_state(own.or_else(other)?))
}

fn home_of_handle<S: Store + ?Sized>(
    exports: &ExportTable<S>,
    pseudo: &PseudoTree,
    handle: &Handle4<'_>,
) -> Leads {
    match handle::fsid(handle.0) {
        // What is no handle of ours is refused anywhere.
        None => Leads::Home(Home::Here),
        Some(PSEUDO_FSID) => {
            let node = handle::fileid(handle.0).and_then(|fileid| pseudo.find(fileid));
            node.map_or(Leads::Home(Home::Here), Leads::Node)
        }
        Some(fsid) => Leads::Home(exports.home_of_state(fsid)),
    }
}

/// The reactor that a state id names, if it is one that gives state ids. What a client makes up is refused where it came in.
fn home_of_state<S: Store + ?Sized>(exports: &ExportTable<S>, state: &StateId) -> Home {
    let name = (StateToken { seqid: state.seqid, other: state.other }).name();
    let Some(StateName::Of(named)) = name else { return Home::Here };
    let others = exports.elsewhere.iter().map(|other| other.reactor);
    let mut homes = exports.locks_at.into_iter().chain(others);
    homes.find(|home| home.index() == usize::from(named.home)).map_or(Home::Here, Home::At)
}

/// To a name in a node.
fn down(pseudo: &PseudoTree, at: Option<NodeIndex>, name: &Name4<'_>) -> Leads {
    at.and_then(|at| pseudo.named(at, name.0)).map_or(Leads::On, Leads::Node)
}
