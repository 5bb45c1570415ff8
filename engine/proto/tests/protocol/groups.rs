//! Transmission groups at their receiver (rtrext): every row of the table, and the state graph.

use stag_proto::group::{GroupReceiver, Interruption, Lead, MessagePart, Transmitted};
use stag_wire::rpcrdma2::{Continuation, GroupFault, MessageType, TransmissionError, option, procedure};

use crate::walk::{Walk, assert_all_walked, events, picture};

const ROOM: u32 = 1000;
const LIMIT: u32 = 4;

fn lead(xid: u32, count: u32) -> Lead {
    Lead { xid, count, payload_len: 100 }
}

fn continuation(number: u32) -> Continuation {
    Continuation { number, lead_option: option::XMTREQ, payload_len: 50 }
}

fn fault(found: Transmitted) -> TransmissionError {
    let Transmitted::Fault(error) = found else { panic!("no fault: {found:?}") };
    assert_eq!(error.bad.direction, MessageType::Call);
    error
}

fn open() -> GroupReceiver {
    let mut group = GroupReceiver::new(MessageType::Call, 10_000);
    let first = group.handle_lead(&lead(7, 3), LIMIT, ROOM);
    let part = MessagePart { xid: 7, number: 0, at: 0, len: 100, is_last: false };
    assert_eq!(first, Transmitted::Part(part));
    assert_eq!(group.open(), Some((7, 100)));
    group
}

#[test]
fn a_group_is_whole_with_its_last_transmission() {
    // RTR-4.2-a RTR-9.4-a RTR-X-4
    let mut group = GroupReceiver::new(MessageType::Call, 10_000);
    let whole = group.handle_lead(&lead(6, 1), LIMIT, ROOM);
    assert_eq!(whole, Transmitted::Part(MessagePart { xid: 6, number: 0, at: 0, len: 100, is_last: true }));
    assert_eq!(group.open(), None);
    let mut group = open();
    let second = group.handle_continuation(7, &continuation(1), ROOM);
    assert_eq!(
        second,
        Transmitted::Part(MessagePart { xid: 7, number: 1, at: 100, len: 50, is_last: false })
    );
    // One that brings only bulk data.
    let empty = Continuation { payload_len: 0, ..continuation(2) };
    let third = group.handle_continuation(7, &empty, 0);
    assert_eq!(third, Transmitted::Part(MessagePart { xid: 7, number: 2, at: 150, len: 0, is_last: true }));
    assert_eq!(group.open(), None);
}

#[test]
fn what_does_not_belong_to_the_group_ends_it_with_one_error() {
    // RTR-5.4-b RTR-9.5-a RTR-X-5 RTR-X-19
    let cases: [(u32, Continuation, GroupFault, u32); 5] = [
        (8, continuation(1), GroupFault::Xid { expected: 7, found: 8 }, 7),
        (7, continuation(2), GroupFault::Number { expected: 1, found: 2 }, 7),
        (7, continuation(0), GroupFault::Number { expected: 1, found: 0 }, 7),
        (
            7,
            Continuation { lead_option: option::XMTRESP, ..continuation(1) },
            GroupFault::Option { expected: 5, found: 6 },
            7,
        ),
        (
            7,
            Continuation { payload_len: ROOM + 1, ..continuation(1) },
            GroupFault::PayloadLength { value: ROOM + 1, min: 0, max: ROOM },
            7,
        ),
    ];
    for (xid, found, expected, rest) in cases {
        let mut group = open();
        let error = fault(group.handle_continuation(xid, &found, ROOM));
        assert_eq!((error.fault, error.bad.xid, error.bad.number), (expected, xid, found.number));
        assert_eq!(error.lead.map(|lead| (lead.xid, lead.number)), Some((7, 0)));
        assert_eq!(group.open(), None);
        for number in 1..3 {
            assert_eq!(group.handle_continuation(rest, &continuation(number), ROOM), Transmitted::Dropped);
        }
        // The next group is taken as if nothing had been.
        assert!(matches!(group.handle_lead(&lead(9, 2), LIMIT, ROOM), Transmitted::Part(_)));
        assert!(matches!(group.handle_continuation(9, &continuation(1), ROOM), Transmitted::Part(_)));
    }
}

#[test]
fn a_continuation_of_nothing_is_an_error_once() {
    // RTR-9.5-a RTR-X-19
    let mut group = GroupReceiver::new(MessageType::Call, 10_000);
    let error = fault(group.handle_continuation(7, &continuation(1), ROOM));
    assert_eq!((error.fault, error.lead), (GroupFault::NoGroup, None));
    assert_eq!(group.handle_continuation(7, &continuation(2), ROOM), Transmitted::Dropped);
    let error = fault(group.handle_continuation(8, &continuation(1), ROOM));
    assert_eq!(error.fault, GroupFault::NoGroup);
    // When the group was whole, another continuation is of nothing.
    let mut group = open();
    for number in 1..3 {
        assert!(matches!(group.handle_continuation(7, &continuation(number), ROOM), Transmitted::Part(_)));
    }
    assert_eq!(fault(group.handle_continuation(7, &continuation(3), ROOM)).fault, GroupFault::NoGroup);
}

#[test]
fn another_message_ends_the_group_and_is_treated_normally() {
    // RTR-4.2-a RTR-9.5-a
    let mut group = open();
    let error = group.handle_other(9, Interruption::Option(option::XMTREQ)).expect("a group is open");
    assert_eq!(error.fault, GroupFault::Option { expected: option::XMTCONT, found: option::XMTREQ });
    assert_eq!((error.bad.xid, error.lead.map(|lead| lead.xid)), (9, Some(7)));
    assert!(matches!(group.handle_lead(&lead(9, 2), LIMIT, ROOM), Transmitted::Part(_)));
    let error = group.handle_other(3, Interruption::Procedure(procedure::MSG)).expect("a group is open");
    assert_eq!(error.fault, GroupFault::Procedure { expected: procedure::OPTIONAL, found: procedure::MSG });
    assert_eq!(group.handle_continuation(9, &continuation(1), ROOM), Transmitted::Dropped);
    assert_eq!(group.handle_other(3, Interruption::Procedure(procedure::MSG)), None, "there is none");
}

#[test]
fn limits_of_a_group() {
    // RTR-5.2-a RTR-5.2-b RTR-X-7
    let mut group = GroupReceiver::new(MessageType::Call, 120);
    let error = fault(group.handle_lead(&lead(7, LIMIT + 1), LIMIT, ROOM));
    assert_eq!(error.fault, GroupFault::Number { expected: LIMIT, found: LIMIT + 1 });
    assert_eq!(group.handle_continuation(7, &continuation(1), ROOM), Transmitted::Dropped);
    let error = fault(group.handle_lead(&lead(7, u32::MAX), LIMIT, ROOM));
    assert_eq!(error.fault, GroupFault::Number { expected: LIMIT, found: u32::MAX });
    let error = fault(group.handle_lead(&lead(7, 1), LIMIT, 99));
    assert_eq!(error.fault, GroupFault::PayloadLength { value: 100, min: 0, max: 99 });
    // The stream is bounded, whatever the transmissions hold.
    assert!(matches!(group.handle_lead(&lead(7, 4), LIMIT, ROOM), Transmitted::Part(_)));
    let error = fault(group.handle_continuation(7, &continuation(1), ROOM));
    assert_eq!(error.fault, GroupFault::PayloadLength { value: 50, min: 0, max: 20 });
}

events! {
    Single => "handle_lead",
    First => "handle_lead",
    FirstTooMany => "handle_lead",
    Next => "handle_continuation",
    OtherNumber => "handle_continuation",
    OtherXid => "handle_continuation",
    TooLong => "handle_continuation",
    Interrupted => "handle_other",
    Disconnect => "handle_disconnect",
}

/// A receiver of groups of three, and what its driver knows.
struct Receiver {
    group: GroupReceiver,
    /// The number of the next transmission of the open group.
    next: Option<u32>,
    /// The xid of the group that was refused last: what is left of it is dropped.
    refused: Option<u32>,
}

impl Receiver {
    fn take(&mut self, found: Transmitted) {
        let was_open = self.next.is_some();
        match found {
            Transmitted::Part(part) => {
                assert_eq!((part.xid, part.number), (7, self.next.unwrap_or(0)));
                self.next = (!part.is_last).then_some(part.number + 1);
                self.refused = None;
            }
            Transmitted::Fault(error) => {
                assert_eq!(was_open, error.lead.is_some());
                (self.next, self.refused) = (None, Some(if was_open { 7 } else { error.bad.xid }));
            }
            Transmitted::Dropped => assert!(self.refused.is_some() && !was_open),
        }
    }
}

impl Walk for Receiver {
    type Event = Event;

    const EVENTS: &'static [Event] = Event::ALL;

    fn start() -> Self {
        Self { group: GroupReceiver::new(MessageType::Call, 10_000), next: None, refused: None }
    }

    fn step(&mut self, event: Event) {
        let next = continuation(self.next.unwrap_or(1));
        let found = match event {
            Event::Single => self.group.handle_lead(&lead(7, 1), LIMIT, ROOM),
            Event::First => self.group.handle_lead(&lead(7, 3), LIMIT, ROOM),
            Event::FirstTooMany => self.group.handle_lead(&lead(7, 9), LIMIT, ROOM),
            Event::Next => self.group.handle_continuation(7, &next, ROOM),
            Event::OtherNumber => self.group.handle_continuation(7, &continuation(9), ROOM),
            Event::OtherXid => self.group.handle_continuation(8, &next, ROOM),
            Event::TooLong => {
                let long = Continuation { payload_len: ROOM + 1, ..next };
                self.group.handle_continuation(7, &long, ROOM)
            }
            Event::Interrupted => {
                let told = self.group.handle_other(9, Interruption::Option(option::INITXCH));
                assert_eq!(told.is_some(), self.next.is_some());
                self.refused = self.next.take().map(|_| 7).or(self.refused);
                return;
            }
            Event::Disconnect => {
                self.group.handle_disconnect();
                (self.next, self.refused) = (None, None);
                return;
            }
        };
        self.take(found);
    }

    fn name(mut self) -> String {
        assert_eq!(self.group.open().is_some(), self.next.is_some());
        let rest = match self.next {
            Some(_) => "taken",
            None => match self.group.handle_continuation(7, &continuation(1), ROOM) {
                Transmitted::Dropped => "dropped",
                Transmitted::Fault(_) => "an error",
                Transmitted::Part(_) => panic!("a part of nothing"),
            },
        };
        format!("next: {:?}, the rest: {rest}", self.next)
    }
}

#[test]
fn the_state_graph_is_the_one_in_the_picture() {
    // RTR-4.2-a RTR-X-19
    let expected = include_str!("groups.txt");
    let found = picture::<Receiver>();
    assert!(found == expected, "groups.txt should be:\n{found}");
}

#[test]
fn every_method_that_changes_a_group_is_walked() {
    assert_all_walked(include_str!("../../src/group.rs"), Event::ALL.iter().map(|event| event.method()));
}
