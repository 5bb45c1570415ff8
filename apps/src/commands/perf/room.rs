//! Whether the machine has room for a measurement: memory, descriptors, mappings. Both ends are in this process.

use std::fs;

use stag_bench::server::engine_config;
use stag_bench::{MeasuredFabric, Scenario};
use stag_fabric::{Iwarp, Shm, Verbs};
use stag_rpc::Pools;
use stag_server::descriptors::raise;
use stag_server::failure::CommandFailure;
use stag_server::values::Size;

/// Descriptors of an end besides its connections: streams, arenas, listeners, and a connection's set-up.
const OTHERS: u64 = 128;

/// Over shm each end maps one part of its peer for each connection; one user may have an eighth of the kernel's limit of mappings.
const MAPPINGS_PER_CONNECTION: u64 = 2 * 8;

/// Mappings of peers' arenas and bells, and those of the program.
const MAPPINGS_OTHERS: u64 = 64 * 8;

/// Refuses what the machine has no room for.
pub(super) fn check(scenario: &Scenario) -> Result<(), CommandFailure> {
    let connections = (scenario.connections * scenario.client_cores().len()) as u64;
    if let Err(problem) = engine_config(scenario).check() {
        return Err(CommandFailure::usage(format_args!(
            "--depth {}, --connections {}: {problem}; lower one of them",
            scenario.depth, scenario.connections
        )));
    }
    check_memory(scenario)?;
    let wanted = descriptors(scenario, connections);
    let limit = raise(wanted);
    if limit < wanted {
        return Err(CommandFailure::usage(format_args!(
            "--connections {}: it takes {wanted} descriptors, the process may have {limit}; raise its limit (`ulimit -n \
             {wanted}`), or lower --connections",
            scenario.connections
        )));
    }
    let wanted = if scenario.fabric == MeasuredFabric::Shm { mappings(connections) } else { 0 };
    match read_number("/proc/sys/vm/max_map_count") {
        Some(limit) if limit < wanted => Err(CommandFailure::usage(format_args!(
            "--connections {}: over shm it takes vm.max_map_count {wanted}, the machine has {limit}; raise it (`sysctl -w \
             vm.max_map_count={wanted}`), or lower --connections to {}",
            scenario.connections,
            limit.saturating_sub(MAPPINGS_OTHERS)
                / MAPPINGS_PER_CONNECTION
                / scenario.client_cores().len() as u64,
        ))),
        _ => Ok(()),
    }
}

/// Descriptors that one table of them needs: of shm and iwarp each end has its own.
fn descriptors(scenario: &Scenario, connections: u64) -> u64 {
    OTHERS + connections * if scenario.fabric == MeasuredFabric::Verbs { 2 } else { 1 }
}

/// `vm.max_map_count` that this number of connections over shm needs.
fn mappings(connections: u64) -> u64 {
    MAPPINGS_OTHERS + MAPPINGS_PER_CONNECTION * connections
}

/// Refuses what would not fit into the machine: pinned memory is never swapped out.
fn check_memory(scenario: &Scenario) -> Result<(), CommandFailure> {
    let wanted = memory_len(scenario);
    match available() {
        Some(available) if wanted > available / 4 * 3 => Err(CommandFailure::usage(format_args!(
            "--depth {}, --connections {}, --size {}, --inline-threshold {}{}: together they take {} of the {} of memory \
             that is available; lower one of them",
            scenario.depth,
            scenario.connections,
            Size(scenario.size as u64),
            Size(scenario.inline_threshold.into()),
            scenario.working_set.map_or(String::new(), |set| format!(", --working-set {}", Size(set))),
            Size(wanted),
            Size(available),
        ))),
        _ => Ok(()),
    }
}

/// Octets that both ends take, about: the files, two blocks for each Call outstanding, the messages, and the tables of both ends of
/// each connection.
fn memory_len(scenario: &Scenario) -> u64 {
    let config = engine_config(scenario);
    let clients = scenario.client_cores().len() as u64;
    let connections = scenario.connections as u64 * clients;
    let block = scenario.block_len() as u64;
    let messages = (Pools::messages_needed(&config) * config.message_len()) as u64;
    let capacity = config.capacity();
    let queue_pair = match scenario.fabric {
        MeasuredFabric::Shm => Shm::queue_pair_len(&capacity, capacity.exposures),
        MeasuredFabric::Iwarp => Iwarp::queue_pair_len(&capacity),
        MeasuredFabric::Verbs => Verbs::queue_pair_len(&capacity),
    };
    let tables = 2 * (queue_pair + config.connection_len()) as u64;
    // The server's own; those of another one are its matter.
    let files = if scenario.server.is_none() { scenario.files_len() as u64 } else { 0 };
    (files + 2 * scenario.depth as u64 * block) * connections
        + (1 + clients) * messages
        + connections * tables
        + (32 << 20)
}

/// Octets of memory that are available, if the kernel says.
fn available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn read_number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_connection_takes_memory_descriptors_and_mappings() {
        for fabric in [MeasuredFabric::Shm, MeasuredFabric::Iwarp] {
            let of = |connections| Scenario { connections, fabric, ..Scenario::default() };
            let (few, many) = (memory_len(&of(1000)), memory_len(&of(10_000)));
            assert!(many > 8 * few && many < 8 << 30, "{few} and {many}");
            assert_eq!(descriptors(&of(10_000), 10_000), 10_128);
        }
        assert!(mappings(4000) <= 65_530 && mappings(10_000) > 65_530);
    }
}
