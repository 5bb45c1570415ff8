//! Readings of connections: credits of each connection, the share of each client, the fairness of the shares, and what was agreed on.

use std::collections::BTreeMap;

use stag_fabric::Peer;
use stag_shares::governor::jain;

use crate::ConnectionId;
use crate::connection::Connections;
use crate::server::owner::owner;
use crate::state::EngineState;
use crate::stream::Streams;

/// How a connection that an engine accepted stands with its credits.
#[derive(Clone, Debug)]
pub struct CreditGauge {
    /// The connection.
    pub connection: ConnectionId,
    /// Who is at the other end.
    pub peer: Option<Peer>,
    /// The same number for all connections of one client, at all reactors.
    pub client: u128,
    /// The client's weight.
    pub weight: u32,
    /// Credits that its last Call requested.
    pub requested: u32,
    /// Credits that the last message to it granted.
    pub granted: u32,
    /// Calls of it that were in process at once: the most in its last round of Calls.
    pub used: u32,
    /// Calls and Replies of it that wait for memory, or for room in a queue.
    pub waiting: u32,
    /// Receives that it holds: posted, or with a Call in process.
    pub receives: u32,
    /// It uses half of its credits at least, and would get more if there were more.
    pub is_wanting: bool,
}

/// What the connections of one client have of credits.
#[derive(Clone, Debug)]
pub struct ClientCredits {
    /// Who it is: the other end of one of its connections.
    pub peer: Option<Peer>,
    /// Its weight.
    pub weight: u32,
    /// Its connections.
    pub connections: u32,
    /// Sums of what its connections' gauges say.
    pub granted: u32,
    /// Of the most that were in process at once.
    pub used: u32,
    /// Of what waits.
    pub waiting: u32,
    /// Of the Receives.
    pub receives: u32,
    /// One of its connections would get more if there were more.
    pub is_wanting: bool,
    /// What it is granted for each part of weight, where the mean of all clients is 1.
    pub share: f64,
}

/// A connection that an engine accepted.
#[derive(Clone, Debug)]
pub struct ServedConnection {
    /// The connection.
    pub connection: ConnectionId,
    /// Who is at the other end.
    pub peer: Option<Peer>,
    /// Whether it is a byte stream (TCP), not RDMA.
    pub is_stream: bool,
    /// Calls of it that were taken on.
    pub calls: u64,
}

/// See [`Engine::served_connections`](crate::Engine::served_connections).
pub(crate) fn served_connections<'a>(
    connections: &'a Connections,
    streams: Option<&'a Streams>,
) -> impl Iterator<Item = ServedConnection> + 'a {
    let accepted = connections.iter().flatten().filter(|found| found.is_accepted());
    let rdma = accepted.map(|found| ServedConnection {
        connection: found.id,
        peer: found.peer.clone(),
        is_stream: false,
        calls: found.calls_served(),
    });
    let streams = streams.into_iter().flat_map(|streams| streams.served());
    rdma.chain(streams.map(|(connection, peer, calls)| ServedConnection {
        connection,
        peer: Some(peer.clone()),
        is_stream: true,
        calls,
    }))
}

/// See [`Engine::credit_gauges`](crate::Engine::credit_gauges).
pub(crate) fn credit_gauges<'a>(
    state: &'a EngineState,
    connections: &'a Connections,
) -> impl Iterator<Item = CreditGauge> + 'a {
    connections.iter().flatten().filter(|found| found.is_accepted()).filter_map(|found| {
        let serving = found.serving.as_ref()?;
        let mut gauge = serving.credit_gauge(found.id, &state.credits);
        gauge.client = owner(found.peer.as_ref());
        gauge.peer.clone_from(&found.peer);
        Some(gauge)
    })
}

/// Adds the gauges of each client up, whatever reactors they come from.
#[must_use]
pub fn client_credits(gauges: &[CreditGauge]) -> Vec<ClientCredits> {
    let mut clients: BTreeMap<u128, ClientCredits> = BTreeMap::new();
    for gauge in gauges {
        let client = clients.entry(gauge.client).or_insert_with(|| ClientCredits {
            peer: gauge.peer.clone(),
            weight: gauge.weight,
            connections: 0,
            granted: 0,
            used: 0,
            waiting: 0,
            receives: 0,
            is_wanting: false,
            share: 0.0,
        });
        client.connections += 1;
        client.granted += gauge.granted;
        client.used += gauge.used;
        client.waiting += gauge.waiting;
        client.receives += gauge.receives;
        client.is_wanting |= gauge.is_wanting;
    }
    let mut clients: Vec<_> = clients.into_values().collect();
    let each = |client: &ClientCredits| f64::from(client.granted) / f64::from(client.weight);
    let mean = clients.iter().map(each).sum::<f64>() / clients.len() as f64;
    for client in &mut clients {
        client.share = each(client) / mean;
    }
    clients
}

/// Returns Jain's index of the clients that want more credits than they have: 1 if each of n has as much as its weight says,
/// 1/n if one has all. `None`: fewer than two want more.
#[must_use]
pub fn credit_fairness(clients: &[ClientCredits]) -> Option<f64> {
    let shares = || clients.iter().filter(|client| client.is_wanting).map(|client| client.share);
    let count = shares().count();
    (count > 1).then(|| jain(shares()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gauge(client: u128, weight: u32, granted: u32) -> CreditGauge {
        let connection = ConnectionId { index: 0, generation: 0 };
        CreditGauge {
            connection,
            peer: None,
            client,
            weight,
            requested: 64,
            granted,
            used: granted,
            waiting: 1,
            receives: granted + 1,
            is_wanting: true,
        }
    }

    #[test]
    fn a_client_is_the_sum_of_its_connections() {
        let gauges = [gauge(1, 100, 10), gauge(2, 300, 60), gauge(1, 100, 10)];
        let clients = client_credits(&gauges);
        let sums: Vec<_> = clients.iter().map(|client| (client.connections, client.granted)).collect();
        assert_eq!(sums, [(2, 20), (1, 60)]);
        assert!(clients.iter().all(|client| (client.share - 1.0).abs() < 1e-9), "{clients:?}");
        assert_eq!(credit_fairness(&clients), Some(1.0));
        assert_eq!(credit_fairness(&clients[..1]), None, "there is no other to be fair to");
    }

    #[test]
    fn who_has_all_of_it_is_unfair() {
        let gauges: Vec<_> =
            (0..4).map(|client| gauge(client, 100, if client == 0 { 64 } else { 0 })).collect();
        let fairness = credit_fairness(&client_credits(&gauges)).expect("four clients");
        assert!((fairness - 0.25).abs() < 1e-9, "{fairness}");
    }
}
