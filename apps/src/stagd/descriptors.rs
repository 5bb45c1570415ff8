//! Whether the process may have as many descriptors as its connections need.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stag::nfs::export::Medium;

use super::Settings;
use super::directories::DESCRIPTORS_MAX;
use super::plan::Plan;
use crate::failure::CommandFailure;
use crate::url::FabricName;

/// Standard streams, listeners, what the reactor sleeps on, the disk's, those of the state directory.
const OTHERS: u64 = 64;

/// Connections that have sent no request yet, and strangers that are being handed over.
const HANDSHAKES: u64 = 256 + 64;

/// Raises this process' limit of descriptors as far as the system lets it, and fails if that is not enough for all
/// connections that there may be.
pub(super) fn check(settings: &Settings, plan: &Plan) -> Result<(), CommandFailure> {
    let connections = u64::from(settings.connections_max);
    let cores = plan.reactors.len() as u64;
    // TCP may have as many.
    let each = 1 + each(settings.fabric);
    let others = OTHERS * cores + HANDSHAKES;
    let mut wanted = others + u64::from(plan.engine.connections_max) * cores * each;
    let has_directories = settings.exports.iter().any(|(_, export)| export.medium == Medium::Directory);
    if has_directories {
        // They take half of what there is, up to their own limit.
        wanted += wanted.min(DESCRIPTORS_MAX);
    }
    let limit = raise(wanted.max(4 * DESCRIPTORS_MAX));
    if limit >= wanted {
        return Ok(());
    }
    let room = if has_directories { limit - (limit / 2).min(DESCRIPTORS_MAX) } else { limit };
    let most = room.saturating_sub(others) / each / cores;
    let lower = match most {
        0 => String::new(),
        most => format!(", or lower --connections-max to {most}"),
    };
    Err(CommandFailure::usage(format_args!(
        "--connections-max {connections}: it takes {wanted} descriptors, the process may have {limit}; raise its limit \
         (`ulimit -n {wanted}`; of a service: LimitNOFILE={wanted}){lower}"
    )))
}

/// Descriptors of one connection over a fabric.
fn each(fabric: Option<FabricName>) -> u64 {
    match fabric {
        None => 0,
        // The socket of its set-up, its rings, what wakes the peer, and one while it is set up.
        Some(FabricName::Shm) => 4,
        Some(FabricName::Iwarp) => 1,
        // They share the connection manager's and the completion queue's.
        Some(FabricName::Verbs) => 1,
    }
}

/// Raises the soft limit to `wanted`, or as far as the hard one allows. Returns what it is then.
fn raise(wanted: u64) -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // What a shell starts with is made for programs that cannot deal with many.
    let target = maximum.unwrap_or(u64::MAX).min(wanted);
    match current {
        Some(current) if current < target => {
            let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(target), maximum });
            if raised.is_ok() { target } else { current }
        }
        current => current.unwrap_or(u64::MAX),
    }
}
