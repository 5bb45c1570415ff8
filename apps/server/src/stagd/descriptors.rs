//! Whether the process may have as many descriptors as its connections need.

use super::exports::Medium;

use super::Settings;
use super::directories::DESCRIPTORS_MAX;
use super::listen::Listen;
use super::plan::Plan;
use crate::descriptors::raise;
use crate::failure::CommandFailure;
use crate::url::FabricName;

/// Standard streams, listeners, what a reactor sleeps on, the disk's, those of the state directory: of each core.
const OTHERS: u64 = 64;

/// Connections that are still being set up. One over shm has four descriptors until then, and one afterwards, as every
/// connection of every fabric has.
const HANDSHAKES: u64 = 256 + 64;

/// Raises this process' limit of descriptors as far as the system lets it.
///
/// `--connections-max` is a limit of connections by RDMA and another one of connections by TCP. Fails if the process may have too
/// few descriptors for either; adds a warning if it may have too few for both at once.
pub(super) fn check(
    settings: &Settings,
    plan: &Plan,
    warnings: &mut Vec<String>,
) -> Result<(), CommandFailure> {
    let connections = u64::from(settings.connections_max);
    let has_tcp = settings.fabric == Some(FabricName::Iwarp)
        || settings.listen.iter().any(|place| matches!(place, Listen::Tcp(_)));
    let kinds = u64::from(settings.fabric.is_some()) + u64::from(has_tcp);
    let others = OTHERS * plan.reactors.len() as u64 + HANDSHAKES;
    let has_directories = settings.exports.iter().any(|(_, export)| export.medium == Medium::Directory);
    // Directories take half of the limit, up to their own.
    let whole = |wanted: u64| if has_directories { wanted + wanted.min(DESCRIPTORS_MAX) } else { wanted };
    let (least, wanted) = (whole(others + connections), whole(others + connections * kinds));
    let limit = raise(wanted.max(4 * DESCRIPTORS_MAX));
    let rest = if has_directories { limit - (limit / 2).min(DESCRIPTORS_MAX) } else { limit };
    let room = rest.saturating_sub(others);
    if limit < least {
        let lower = match room {
            0 => String::new(),
            room => format!(", or lower --connections-max to {room}"),
        };
        return Err(CommandFailure::usage(format_args!(
            "--connections-max {connections}: it takes {least} descriptors, the process may have {limit}; raise its limit \
             (`ulimit -n {wanted}`; of a service: LimitNOFILE={wanted}){lower}"
        )));
    }
    if limit < wanted {
        warnings.push(format!(
            "descriptors: --connections-max {connections} allows as many connections by RDMA and as many by TCP, which \
             takes {wanted}; the process may have {limit}, enough for {room} connections in all; raise its limit (`ulimit \
             -n {wanted}`; of a service: LimitNOFILE={wanted})"
        ));
    }
    Ok(())
}
