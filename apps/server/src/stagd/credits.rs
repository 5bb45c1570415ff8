//! Prints the credits of clients.

use serde::Serialize;
use stag_fabric::Provider;
use stag_rpc::{ClientCredits, CreditGauge, Engine, client_credits, credit_fairness};

use super::client_name::client_name;
use crate::failure::CommandFailure;
use crate::output::Output;
use crate::programs::Programs;

/// Clients with a line of their own; `--json` has all.
const CLIENTS_TOLD: usize = 8;

/// The gauges of a reactor's connections.
#[derive(Clone, Debug, Default)]
pub(super) struct CreditSnapshot {
    gauges: Vec<CreditGauge>,
    receives_held: u32,
    receives_max: u32,
}

impl CreditSnapshot {
    pub(super) fn take<P: Provider>(engine: &Engine<P, Programs>) -> CreditSnapshot {
        let (receives_held, receives_max) = engine.receives_held();
        CreditSnapshot { gauges: engine.credit_gauges().collect(), receives_held, receives_max }
    }

    pub(super) fn gauges(&self) -> &[CreditGauge] {
        &self.gauges
    }

    /// Receives that are held, and the most that may be.
    pub(super) fn receives(&self) -> (u32, u32) {
        (self.receives_held, self.receives_max)
    }
}

impl std::ops::AddAssign<&CreditSnapshot> for CreditSnapshot {
    fn add_assign(&mut self, other: &CreditSnapshot) {
        self.gauges.extend_from_slice(&other.gauges);
        self.receives_held += other.receives_held;
        self.receives_max += other.receives_max;
    }
}

/// The `credits` of an object of `--json`.
#[derive(Serialize)]
pub(super) struct CreditReport {
    receives_held: u32,
    receives_max: u32,
    /// Jain's index of the clients that want more; null: fewer than two do.
    fairness: Option<f64>,
    clients: Vec<ClientReport>,
    connections: Vec<ConnectionReport>,
}

/// What one client has.
#[derive(Serialize)]
struct ClientReport {
    client: String,
    weight: u32,
    connections: u32,
    granted: u32,
    used: u32,
    waiting: u32,
    receives: u32,
    is_wanting: bool,
    share: f64,
}

/// What one connection has.
#[derive(Serialize)]
struct ConnectionReport {
    peer: Option<String>,
    requested: u32,
    granted: u32,
    used: u32,
    waiting: u32,
    receives: u32,
}

impl CreditReport {
    pub(super) fn new(snapshot: &CreditSnapshot) -> CreditReport {
        let CreditSnapshot { gauges, receives_held, receives_max } = snapshot;
        let mut clients = client_credits(gauges);
        clients.sort_by_key(|client| std::cmp::Reverse(client.granted));
        let connection = |gauge: &CreditGauge| ConnectionReport {
            peer: gauge.peer.as_ref().map(ToString::to_string),
            requested: gauge.requested,
            granted: gauge.granted,
            used: gauge.used,
            waiting: gauge.waiting,
            receives: gauge.receives,
        };
        CreditReport {
            receives_held: *receives_held,
            receives_max: *receives_max,
            fairness: credit_fairness(&clients),
            clients: clients.iter().map(client_report).collect(),
            connections: gauges.iter().map(connection).collect(),
        }
    }

    /// Lines for people, if there is a client.
    pub(super) fn tell(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let CreditReport { receives_held, receives_max, fairness, clients, .. } = self;
        if clients.is_empty() {
            return Ok(());
        }
        let fairness = fairness.map_or_else(String::new, |index| format!("; fairness {index:.2}"));
        let granted: u32 = clients.iter().map(|client| client.granted).sum();
        let count = clients.len();
        out.line(format_args!(
            "credits    {granted} granted to {count} clients, {receives_held} of {receives_max} Receives in use{fairness}"
        ))?;
        for client in clients.iter().take(CLIENTS_TOLD) {
            let ClientReport { client, weight, connections, granted, used, waiting, .. } = client;
            out.line(format_args!(
                "           {client}: {granted} on {connections} connections (weight {weight}), {used} used, {waiting} waiting"
            ))?;
        }
        if count > CLIENTS_TOLD {
            out.line(format_args!(
                "           and {} clients with less (--json has all)",
                count - CLIENTS_TOLD
            ))?;
        }
        Ok(())
    }
}

fn client_report(client: &ClientCredits) -> ClientReport {
    ClientReport {
        client: client_name(client.peer.as_ref()),
        weight: client.weight,
        connections: client.connections,
        granted: client.granted,
        used: client.used,
        waiting: client.waiting,
        receives: client.receives,
        is_wanting: client.is_wanting,
        share: client.share,
    }
}
