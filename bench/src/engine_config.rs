//! The engine's numbers for a scenario.

use std::time::Duration;

use stag_rpc::{EngineConfig, PAGE_LEN, ProtocolChoice};

use crate::scenario::{MeasuredOperation, Scenario};

/// Replies that one connection exposes at once, at most: each pins a message buffer.
const EXPOSED_MAX: u32 = 64;

/// Octets of the longest Reply that the client reads of the server's memory.
const PULL_LEN_MAX: u32 = 2 << 20;

/// How long all connections together may take to be set up.
const SET_UP_TIMEOUT: Duration = Duration::from_secs(120);

/// The engine's numbers for `scenario`, at either end.
#[must_use]
pub fn engine_config(scenario: &Scenario) -> EngineConfig {
    let connections = (scenario.connections * scenario.client_cores().len()) as u32;
    // Room for a lone connection's grant to grow; one of a crowd needs no more than its depth.
    let credits = scenario.credits().max((4096 / connections.max(1)).clamp(4, 16));
    let usual = EngineConfig::default();
    // A message of several Sends takes as many credits.
    let sends = match scenario.protocol {
        ProtocolChoice::One => 1,
        _ => scenario.size.div_ceil(PAGE_LEN * usual.receive_targets as usize) as u32,
    };
    // Both ends take part in reliable reply in every mode, so that the modes differ only in which end provides
    // the memory.
    let is_exposed =
        scenario.operation == MeasuredOperation::Reply && scenario.protocol == ProtocolChoice::One;
    let exposed_replies = if is_exposed { credits.min(EXPOSED_MAX) } else { 0 };
    let credits = (credits * sends.clamp(1, scenario.continuation)).min(1024);
    EngineConfig {
        inline_threshold: scenario.inline_threshold,
        credits_max: credits,
        connections_max: connections,
        receives_max: (credits + 3) * connections,
        protocol: scenario.protocol,
        placement: scenario.placement,
        continuation: scenario.continuation,
        version2_max: connections,
        exposed_replies,
        pull_len_max: if is_exposed { PULL_LEN_MAX } else { 0 },
        // The first Call of a connection comes when all are there.
        set_up_timeout: SET_UP_TIMEOUT,
        ..usual
    }
}
