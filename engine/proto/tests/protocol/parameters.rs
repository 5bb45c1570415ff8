//! Set-up: inline thresholds and remote invalidation from private data (RFC 8797).

use stag_proto::parameters::{InlineSize, Parameters, PrivateData, Side};

use crate::support::parameters;

fn data(send: u32, receive: u32, remote_invalidation: bool) -> PrivateData {
    PrivateData {
        remote_invalidation,
        send_size: InlineSize::round_down(send),
        receive_size: InlineSize::round_down(receive),
    }
}

/// What both ends make of their private data: they must agree.
fn negotiated(client: PrivateData, server: PrivateData) -> Parameters {
    let at_client = Parameters::negotiate(Side::Client, &client, &server.to_wire());
    let at_server = Parameters::negotiate(Side::Server, &server, &client.to_wire());
    assert_eq!(at_client, at_server);
    at_client
}

#[test]
fn a_threshold_is_the_smaller_of_one_sides_send_and_the_other_sides_receive() {
    // 8166-3.3.2-a 8797-4.2-b 8797-4.2-c 8797-L-3
    let agreed = negotiated(data(4096, 8192, true), data(16384, 2048, true));
    assert_eq!(agreed, parameters(2048, 8192, true));
}

#[test]
fn thresholds_reach_from_1_kib_to_256_kib() {
    // 8797-4.2-a 8797-4.2-d
    assert_eq!(negotiated(data(1, 1, false), data(1, 1, false)), parameters(1024, 1024, false));
    let large = data(1 << 20, 1 << 20, false);
    assert_eq!(negotiated(large, large), parameters(262_144, 262_144, false));
    let odd = data(5000, 5000, false);
    assert_eq!(negotiated(odd, odd), parameters(4096, 4096, false));
}

#[test]
fn a_silent_peer_means_1024_both_ways_and_no_remote_invalidation() {
    // 8166-3.3.3-b 8797-5.1-a 8797-5.2-b
    let own = data(4096, 4096, true);
    let mut other_version = own.to_wire();
    other_version[4] = 2;
    for private_data in [&[][..], b"something else entirely", &own.to_wire()[..7], &other_version] {
        assert_eq!(Parameters::negotiate(Side::Server, &own, private_data), Parameters::default());
        // What it said may have arrived all the same (8797-L-5).
        assert_eq!(Parameters::negotiate(Side::Client, &own, private_data), parameters(1024, 1024, true));
        let own = data(4096, 4096, false);
        assert_eq!(Parameters::negotiate(Side::Client, &own, private_data), Parameters::default());
    }
    assert_eq!(Parameters::default(), parameters(1024, 1024, false));
}

#[test]
fn the_block_is_found_at_any_offset() {
    // 8797-5.2-a
    let own = data(4096, 4096, true);
    let mut private_data = b"odd".to_vec();
    private_data.extend(own.to_wire());
    private_data.extend(b"more");
    assert_eq!(Parameters::negotiate(Side::Server, &own, &private_data), parameters(4096, 4096, true));
}

#[test]
fn a_responder_invalidates_if_both_sides_can_and_a_requester_takes_what_it_said_that_it_can() {
    // 8797-4.1-a 8797-4.1-c 8797-L-5
    for (client, server) in [(false, false), (true, false), (false, true), (true, true)] {
        let (client, server) = (data(1024, 1024, client), data(1024, 1024, server));
        let sends = Parameters::negotiate(Side::Server, &server, &client.to_wire()).remote_invalidation;
        assert_eq!(sends, client.remote_invalidation && server.remote_invalidation);
        let takes = Parameters::negotiate(Side::Client, &client, &server.to_wire()).remote_invalidation;
        assert_eq!(takes, client.remote_invalidation);
    }
}

#[test]
fn a_reconnect_may_bring_other_values() {
    // 8797-4-b
    let own = data(4096, 4096, true);
    let first = Parameters::negotiate(Side::Client, &own, &data(4096, 4096, true).to_wire());
    let second = Parameters::negotiate(Side::Client, &own, &data(1024, 2048, false).to_wire());
    assert_eq!(first, parameters(4096, 4096, true));
    assert_eq!(second, parameters(2048, 1024, true));
}

#[test]
fn the_reverse_direction_shares_thresholds_by_direction_of_travel() {
    // 8167-4.2-a
    assert_eq!(parameters(2048, 8192, true).reversed(), parameters(8192, 2048, false));
}
