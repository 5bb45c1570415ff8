//! The beginning of a connection in version 2: probe and fall-back, and what the peer says of itself.

use stag_proto::characteristics::PeerCharacteristics;
use stag_proto::version::{NextMessage, ProtocolVersion, VersionProbe};
use stag_wire::rpcrdma2::{
    BufferGroup, BufferStructure, CharacteristicUpdate, CharacteristicValue, Elements,
    InitialCharacteristics, PositionSet, ReverseSupport,
};

use crate::walk::{Walk, assert_all_walked, events, picture};

events! {
    Sent => "handle_sent",
    Answered => "handle_answer",
    /// With a range of version 1.
    RefusedOne => "handle_err_vers",
    /// With a range that has neither.
    RefusedThree => "handle_err_vers",
    Disconnect => "handle_disconnect",
}

/// A peer that may speak version 2.
struct Peer(VersionProbe);

impl Walk for Peer {
    type Event = Event;

    const EVENTS: &'static [Event] = Event::ALL;

    fn start() -> Self {
        Peer(VersionProbe::new(true))
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Sent => self.0.handle_sent(),
            Event::Answered => self.0.handle_answer(),
            Event::RefusedOne => self.0.handle_err_vers(1, 1),
            Event::RefusedThree => self.0.handle_err_vers(3, 4),
            Event::Disconnect => self.0.handle_disconnect(),
        }
    }

    fn name(mut self) -> String {
        let now = self.0.next_message();
        self.0.handle_disconnect();
        format!("now: {now:?}, on the next connection: {:?}", self.0.next_message())
    }
}

#[test]
fn the_state_graph_is_the_one_in_the_picture() {
    // V2-5-a V2-5.1-a V2-5.2-a V2-5.2-b V2-X-4
    let expected = include_str!("version2.txt");
    let found = picture::<Peer>();
    assert!(found == expected, "version2.txt should be:\n{found}");
}

#[test]
fn every_method_that_changes_a_probe_is_walked() {
    assert_all_walked(include_str!("../../src/version.rs"), Event::ALL.iter().map(|event| event.method()));
}

#[test]
fn a_peer_that_is_known_is_not_probed() {
    // V2-5.2-c
    let mut probe = VersionProbe::new(false);
    for _ in 0..2 {
        assert_eq!(probe.next_message(), NextMessage::Any(ProtocolVersion::One));
        probe.handle_sent();
        probe.handle_answer();
        probe.handle_err_vers(3, 3);
        probe.handle_disconnect();
    }
    assert_eq!(VersionProbe::new(true).next_message(), NextMessage::Probe { len_max: 1024 });
}

fn initial(values: &[CharacteristicValue<'_>]) -> PeerCharacteristics {
    let mut peer = PeerCharacteristics::default();
    let unchanging = PositionSet(Elements::EMPTY);
    peer.handle_initial(&InitialCharacteristics { values: Elements::new(values), unchanging });
    peer
}

#[test]
fn who_says_nothing_has_the_defaults() {
    // XC-j V2-3-a
    for peer in
        [PeerCharacteristics::default(), initial(&[CharacteristicValue::Unknown { id: 99, data: &[] }])]
    {
        assert_eq!((peer.receive_size(), peer.takes_invalidation()), (4096, false));
        assert_eq!(peer.reverse_support(), ReverseSupport::Unknown);
        assert!(!peer.takes_request_transmissions() && !peer.places_results());
        assert_eq!((peer.request_transmissions(), peer.response_transmissions()), (1, 1));
        assert_eq!((peer.layout(u32::MAX).targets(), peer.layout(u32::MAX).len()), (0, 4096));
    }
}

#[test]
fn the_last_word_counts() {
    // XC-X-2 XC-e XC-l XC-m
    let mut peer = initial(&[
        CharacteristicValue::ReceiveSize(8192),
        CharacteristicValue::RequesterInvalidation(true),
        CharacteristicValue::ReverseSupport(ReverseSupport::Short),
        CharacteristicValue::ReceiveSize(16_384),
    ]);
    assert_eq!((peer.receive_size(), peer.takes_invalidation()), (16_384, true));
    assert_eq!(peer.reverse_support(), ReverseSupport::Short);
    peer.handle_update(&CharacteristicUpdate {
        now: CharacteristicValue::ReceiveSize(4096),
        is_settled: true,
    });
    assert_eq!((peer.receive_size(), peer.takes_invalidation()), (4096, true));
}

#[test]
fn transmissions_are_as_many_as_the_peer_takes_and_supports() {
    // RTR-5.1-a RTR-5.2-a RTR-5.2-c RTR-5.3-c
    let told = |bits, limit| {
        initial(&[
            CharacteristicValue::TransmissionSupport(bits),
            CharacteristicValue::RequestLimit(limit),
            CharacteristicValue::ResponseLimit(limit),
        ])
    };
    for (bits, limit, expected) in
        [(7, 4, [4, 4]), (3, 4, [1, 1]), (5, 4, [4, 1]), (6, 4, [1, 4]), (7, 0, [1, 1])]
    {
        let peer = told(bits, limit);
        assert_eq!([peer.request_transmissions(), peer.response_transmissions()], expected, "{bits} {limit}");
        assert_eq!(peer.takes_request_transmissions(), bits & 1 != 0);
        assert_eq!(peer.places_results(), bits & 2 != 0);
    }
}

#[test]
fn items_go_where_the_peers_receives_have_targets() {
    // RTR-5.3-a RTR-8.3-a RTR-6.2-a
    let group = |count, len, is_target| BufferGroup { count, len, align: 0, is_target };
    let groups = [group(1, 512, false), group(2, 4096, true), group(3, 100, false), group(1, 8, true)];
    let len = 512 + 8192 + 300 + 8;
    let structure = BufferStructure { len, groups: Elements::new(&groups) };
    let told = CharacteristicValue::BufferStructure(structure);
    let peer = initial(&[told]);
    let layout = peer.layout(u32::MAX);
    let found = |number| layout.target(number).map(|target| (target.transmission, target.start, target.len));
    assert_eq!(
        [0, 1, 2].map(found),
        [(512, 4096), (4608, 4096), (9004, 8)].map(|(at, len)| Some((0, at, len)))
    );
    assert_eq!(
        [3, 7].map(found),
        [Some((1, 512, 4096)), Some((2, 4608, 4096))],
        "those of the next Receives"
    );
    assert_eq!((layout.targets(), layout.head_len(), layout.structure()), (3, 512, structure));
    assert_eq!(peer.receive_size(), len, "the sum of the parts");
    // Receives that this end cannot fill.
    let bounded = peer.layout(len - 1);
    assert_eq!((peer.layout(len).targets(), bounded.targets(), bounded.len()), (3, 3, len - 1));
    for number in 0..3 {
        assert_eq!(structure.target(number), found(number).map(|(_, start, len)| (start, len)));
    }
    let smaller = initial(&[told, CharacteristicValue::ReceiveSize(4096)]);
    assert_eq!((smaller.receive_size(), smaller.layout(u32::MAX).targets()), (4096, 0), "the smaller");
    assert_eq!(initial(&[told, CharacteristicValue::ReceiveSize(100_000)]).receive_size(), len);
    // More groups than are remembered: no items, and still the length.
    let many = [group(1, 8, true); 17];
    let structure = BufferStructure { len: 17 * 8, groups: Elements::new(&many) };
    let peer = initial(&[CharacteristicValue::BufferStructure(structure)]);
    assert_eq!((peer.layout(u32::MAX).targets(), peer.receive_size()), (0, 136));
    // And more targets.
    let many = [group(1025, 4, true)];
    let structure = BufferStructure { len: 4100, groups: Elements::new(&many) };
    let peer = initial(&[CharacteristicValue::BufferStructure(structure)]);
    assert_eq!(
        (peer.layout(u32::MAX).targets(), peer.layout(u32::MAX).target(0), peer.receive_size()),
        (0, None, 4100)
    );
}
