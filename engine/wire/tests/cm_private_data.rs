//! Private data of connections, rule by rule.

use stag_wire::cm_private_data::{InlineSize, InlineThresholds, LEN, PrivateData, inline_thresholds};

mod support;
use support::{capture, vector};

fn data(remote_invalidation: bool, send: u32, receive: u32) -> PrivateData {
    PrivateData {
        remote_invalidation,
        send_size: InlineSize::round_down(send),
        receive_size: InlineSize::round_down(receive),
    }
}

#[test]
fn examples_read_and_write() {
    for (wire, value) in [
        (vector!("private-data-4096"), data(true, 4096, 4096)),
        (vector!("private-data-asymmetric"), data(false, 1024, 262_144)),
    ] {
        assert_eq!(PrivateData::find(&wire), Some(value));
        assert_eq!(value.to_wire()[..], wire);
    }
}

#[test]
fn linux_blocks_behind_the_words_of_mpa() {
    let client = PrivateData::find(&capture!("private-data-client"));
    assert_eq!(client, Some(data(true, 4096, 4096)));
    let server = PrivateData::find(&capture!("private-data-server"));
    assert_eq!(server, Some(data(false, 4096, 4096)));
}

#[test]
fn the_block_is_found_at_any_offset_8797_5_2_a() {
    let value = data(true, 8192, 2048);
    for offset in 0..56 - LEN {
        let mut private_data = [0xf6; 56];
        private_data[offset..offset + LEN].copy_from_slice(&value.to_wire());
        assert_eq!(PrivateData::find(&private_data), Some(value), "at {offset}");
    }
}

#[test]
fn a_block_cut_short_or_of_another_version_is_absent_8797_5_2_b() {
    let wire = data(true, 4096, 4096).to_wire();
    for len in 0..LEN {
        assert_eq!(PrivateData::find(&wire[..len]), None);
        let mut at_the_end = [0; 20];
        at_the_end[20 - len..].copy_from_slice(&wire[..len]);
        assert_eq!(PrivateData::find(&at_the_end), None);
    }
    for version in [0, 2, 255] {
        let mut wire = wire;
        wire[4] = version;
        assert_eq!(PrivateData::find(&wire), None);
    }
    assert_eq!(PrivateData::find(&[]), None);
}

#[test]
fn the_first_good_block_counts_8797_x_1() {
    let mut private_data = [0; 24];
    private_data[..8].copy_from_slice(&data(true, 1024, 1024).to_wire());
    private_data[4] = 9;
    private_data[8..16].copy_from_slice(&data(false, 2048, 3072).to_wire());
    private_data[16..].copy_from_slice(&data(true, 4096, 4096).to_wire());
    assert_eq!(PrivateData::find(&private_data), Some(data(false, 2048, 3072)));
}

#[test]
fn reserved_flags_are_ignored_and_sent_as_0() {
    let mut wire = data(false, 4096, 4096).to_wire();
    assert_eq!(wire[5], 0);
    wire[5] = 0xfe;
    assert_eq!(PrivateData::find(&wire), Some(data(false, 4096, 4096)));
    wire[5] = 0xff;
    assert_eq!(PrivateData::find(&wire), Some(data(true, 4096, 4096)));
    assert_eq!(data(true, 4096, 4096).to_wire()[5], 1);
}

#[test]
fn sizes_are_rounded_down_8797_4_2_d() {
    for (octets, rounded, encoded) in [
        (0, 1024, 0),
        (1023, 1024, 0),
        (1024, 1024, 0),
        (2047, 1024, 0),
        (2048, 2048, 1),
        (4096, 4096, 3),
        (262_143, 261_120, 254),
        (262_144, 262_144, 255),
        (u32::MAX, 262_144, 255),
    ] {
        let size = InlineSize::round_down(octets);
        assert_eq!(size.octets(), rounded);
        let wire = data(false, octets, octets).to_wire();
        assert_eq!(wire[6..], [encoded; 2], "8797-4.2-a for {octets}");
    }
}

#[test]
fn each_direction_has_the_smaller_of_its_two_sizes_8797_4_2_b_8797_4_2_c() {
    let client = data(true, 4096, 8192);
    let server = data(true, 16_384, 2048);
    let expected = InlineThresholds { send: 2048, receive: 8192, remote_invalidation: true };
    assert_eq!(inline_thresholds(&client, Some(&server)), expected);
    let expected = InlineThresholds { send: 8192, receive: 2048, remote_invalidation: true };
    assert_eq!(inline_thresholds(&server, Some(&client)), expected);
}

#[test]
fn a_silent_peer_gets_1024_and_no_invalidation_8797_5_1_a() {
    let own = data(true, 65_536, 65_536);
    let expected = InlineThresholds { send: 1024, receive: 1024, remote_invalidation: false };
    assert_eq!(inline_thresholds(&own, None), expected);
}

#[test]
fn invalidation_needs_both_8797_4_1_a_8797_4_1_c() {
    for (own, peer) in [(false, false), (false, true), (true, false), (true, true)] {
        let agreed = inline_thresholds(&data(own, 4096, 4096), Some(&data(peer, 4096, 4096)));
        assert_eq!(agreed.remote_invalidation, own && peer);
    }
}
