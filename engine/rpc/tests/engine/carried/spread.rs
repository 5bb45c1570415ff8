//! A group that is one server: reactor 0 listens, and connections are spread over all.

use stag_rpc::{Call, ConnectionEvent, Home};

use super::group::{Group, address};

fn here(_: &Call<'_>) -> Home {
    Home::Here
}

fn of_caller(_: &Call<'_>) -> Home {
    Home::OfCaller
}

#[test]
fn clients_are_spread_and_served_where_they_are() {
    let mut group = Group::of_one_server(3, 8, here);
    let clients: Vec<usize> = (0..6).map(|_| group.connect(0)).collect();
    assert_eq!(group.connections(), [2, 2, 2]);
    clients.iter().for_each(|client| group.check_alive(*client));
    assert_eq!(group.executed(), [2, 2, 2]);
    let carried = group.reactors.iter().map(|reactor| reactor.engine.statistics().calls_carried);
    assert_eq!(carried.sum::<u64>(), 0);
    group.close();
}

#[test]
fn connections_of_one_client_are_spread_too() {
    let mut group = Group::of_one_server(4, 8, here);
    let client = group.connect(0);
    let others: Vec<_> = (0..7).map(|_| group.connect_again(client)).collect();
    assert_eq!(group.connections(), [2; 4]);
    others.iter().for_each(|connection| group.clients[client].engine.disconnect(*connection));
    group.run(|group| group.connections().iter().sum::<usize>() == 1);
    group.check_alive(client);
    group.close();
}

/// What must not be executed twice is executed at one reactor, whichever connection it comes by.
#[test]
fn calls_of_a_caller_have_one_home() {
    let mut group = Group::of_one_server(3, 8, of_caller);
    // The first one's home is reactor 0, the second one's reactor 1, and so on.
    let clients: Vec<usize> = (0..3).map(|_| group.connect(0)).collect();
    for (reactor, client) in clients.iter().enumerate() {
        let before = group.executed();
        group.check_alive(*client);
        // By its other connections, which are at other reactors.
        for _ in 0..3 {
            let connection = group.connect_again(*client);
            group.check_alive_over(*client, connection);
        }
        let after = group.executed();
        let executed: Vec<u64> = before.iter().zip(after).map(|(before, after)| after - before).collect();
        let mut expected = vec![0; 3];
        expected[reactor] = 4;
        assert_eq!(executed, expected, "client {client}");
    }
    let carried = group.reactors.iter().map(|reactor| reactor.engine.statistics().calls_carried);
    assert!(carried.sum::<u64>() > 0);
    group.close();
}

#[test]
fn a_client_that_comes_back_comes_home() {
    let mut group = Group::of_one_server(3, 8, here);
    let clients: Vec<usize> = (0..3).map(|_| group.connect(0)).collect();
    assert_eq!(group.connections(), [1, 1, 1]);
    for client in [2, 1] {
        group.disconnect(clients[client]);
        group.run(|group| group.connections()[client] == 0);
        // The news of it has to arrive.
        group.run_passes(20);
    }
    // Reactor 1 has as few as reactor 2, and comes first.
    group.connect_again(clients[2]);
    assert_eq!(group.connections(), [1, 0, 1]);
    group.close();
}

/// When all are full, who comes is refused; and what was counted for it is not counted any more.
#[test]
fn a_full_group() {
    let mut group = Group::of_one_server(2, 2, here);
    let clients: Vec<usize> = (0..4).map(|_| group.connect(0)).collect();
    clients.iter().for_each(|client| group.check_alive(*client));
    assert_eq!(group.connections(), [2, 2]);
    let last = clients[3];
    group.disconnect(last);
    group.run(|group| group.connections() == [2, 1]);
    group.run_passes(20);
    let connection = group.clients[clients[0]].engine.connect(&address(0)).expect("the address is fine");
    let wanted = ConnectionEvent::Established { connection };
    group.run(|group| group.clients[clients[0]].events.contains(&wanted));
    assert_eq!(group.connections(), [2, 2]);
    group.close();
}
