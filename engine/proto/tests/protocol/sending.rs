//! How a message is cut into transmissions, and the state graph of their sender (rtrext).

use stag_proto::cut::{CutError, ItemPiece, MessageCut, MessageShape};
use stag_proto::layout::ReceiveLayout;
use stag_proto::sender::{GroupSender, SendingFault};
use stag_wire::rpcrdma2::{GroupFault, MessageType, TransmissionError, TransmissionId};

use crate::walk::{Walk, assert_all_walked, events, picture};

/// What each transmission holds: octets of header, Payload stream and Send, and its pieces of items.
type Parts = Vec<(u32, u32, u32, Vec<(u32, usize, u32, u32)>)>;

fn cut(
    lead_len: u32,
    payload_len: u32,
    items: &[u32],
    layout: &ReceiveLayout,
    limit: u32,
) -> Result<Parts, CutError> {
    let cut = MessageCut::new(MessageShape { lead_len, payload_len, items }, layout, limit)?;
    let mut parts = Vec::new();
    let mut payload_at = 0;
    for (number, sent) in (0..).zip(cut.transmissions()) {
        assert_eq!((sent.number, sent.payload_at), (number, payload_at));
        assert!(sent.len <= layout.len());
        payload_at += sent.payload_len;
        let pieces =
            cut.pieces(&sent).map(|ItemPiece { at, item, from, len, .. }| (at, item, from, len)).collect();
        parts.push((sent.header_len, sent.payload_len, sent.len, pieces));
    }
    assert_eq!(
        (parts.len() as u32, parts[0].1, payload_at),
        (cut.count(), cut.first_payload_len(), payload_len)
    );
    Ok(parts)
}

#[test]
fn a_message_without_items_fills_whole_receives() {
    // RTR-4.2-b RTR-9.2-b RTR-9.4-a
    let plain = ReceiveLayout::plain(1000);
    assert_eq!(cut(92, 500, &[], &plain, 1), Ok(vec![(92, 500, 592, vec![])]));
    assert_eq!(cut(92, 908, &[], &plain, 1), Ok(vec![(92, 908, 1000, vec![])]));
    let two = vec![(92, 908, 1000, vec![]), (40, 1, 41, vec![])];
    assert_eq!(cut(92, 909, &[], &plain, 2), Ok(two.clone()));
    let targets = ReceiveLayout::with_targets(200, 2, 400, 4096);
    assert_eq!(cut(92, 909, &[], &targets, 2), Ok(two), "over the boundaries of the parts");
}

#[test]
fn items_begin_at_targets_and_the_payload_stays_before_them() {
    // RTR-4.2-b RTR-5.3-d RTR-7.3-e RTR-X-10
    let layout = ReceiveLayout::with_targets(200, 2, 400, 4096);
    assert_eq!(cut(92, 100, &[300], &layout, 1), Ok(vec![(92, 100, 500, vec![(200, 0, 0, 300)])]));
    let full = vec![(200, 0, 0, 400), (600, 0, 400, 1)];
    assert_eq!(cut(92, 100, &[401], &layout, 1), Ok(vec![(92, 100, 601, full)]));
    // Each item begins a target; what does not fit goes into the next Receive, and so does the Payload stream.
    let first = vec![(200, 0, 0, 400), (600, 0, 400, 100)];
    let second = vec![(200, 2, 0, 7)];
    let expected = vec![(92, 108, 700, first), (40, 160, 207, second), (40, 232, 272, vec![])];
    assert_eq!(cut(92, 500, &[500, 0, 7], &layout, 3), Ok(expected));
    assert_eq!(cut(92, 500, &[500, 0, 7], &layout, 2), Err(CutError::TooMany { limit: 2 }));
}

#[test]
fn what_cannot_be_cut_goes_by_base_means() {
    // RTR-4.3-a RTR-5.2-a RTR-5.3-a RTR-X-11
    let layout = ReceiveLayout::with_targets(39, 1, 60, 4096);
    assert_eq!(cut(92, 100, &[300], &layout, 9), Err(CutError::Head { len: 100, room: 99 }));
    // Without a target there is no room for an item, however long the Receive.
    let plain = ReceiveLayout::plain(1000);
    assert_eq!(cut(92, 100, &[300], &plain, 9), Err(CutError::Head { len: 100, room: 0 }));
    // Heads that have no room for a continuation, and no other target behind it.
    let short = ReceiveLayout::with_targets(39, 1, 400, 0);
    assert_eq!(cut(20, 8, &[900], &short, 9), Err(CutError::Head { len: 40, room: 439 }));
    assert_eq!(cut(20, 100, &[], &ReceiveLayout::plain(40), 9), Err(CutError::Head { len: 41, room: 40 }));
    assert_eq!(cut(92, 9000, &[], &plain, 0), Err(CutError::TooMany { limit: 0 }));
    assert_eq!(cut(u32::MAX, 9000, &[], &plain, 1), Err(CutError::Head { len: u32::MAX, room: 1000 }));
}

#[test]
fn where_a_head_is_short_items_begin_at_a_later_place() {
    // RTR-X-24 RTR-6.2-a
    let layout = ReceiveLayout::with_targets(99, 2, 400, 4096);
    assert_eq!(cut(92, 100, &[300], &layout, 1), Ok(vec![(92, 100, 799, vec![(499, 0, 0, 300)])]));
    // One that fits no whole target behind begins in the midst of one.
    let shifted = vec![(92, 100, 692, vec![(192, 0, 0, 307), (499, 0, 307, 193)])];
    assert_eq!(cut(92, 100, &[500], &layout, 1), Ok(shifted));
    // What goes on in the next Receive goes on at a target there.
    let first = (92, 100, 899, vec![(499, 0, 0, 400)]);
    let second = (40, 0, 799, vec![(99, 0, 400, 400), (499, 0, 800, 300)]);
    assert_eq!(cut(92, 100, &[1100], &layout, 2), Ok(vec![first, second]));
    let short = ReceiveLayout::with_targets(39, 2, 400, 0);
    let first = (20, 8, 839, vec![(39, 0, 0, 400), (439, 0, 400, 400)]);
    assert_eq!(cut(20, 8, &[900], &short, 2), Ok(vec![first, (40, 0, 539, vec![(439, 0, 800, 100)])]));
    let shape = MessageShape { lead_len: 20, payload_len: 8, items: &[900] };
    let found = MessageCut::new(shape, &short, 2).expect("as above");
    assert_eq!((found.targets_of(0).collect::<Vec<_>>(), found.offset_of(0)), (vec![0, 1, 3], 0));
    // Sends that do not reach the end of a Receive: its last targets are not used, and keep their numbers.
    let long = ReceiveLayout::with_targets(200, 4, 400, 0).bounded(1100);
    let first = (92, 108, 1000, vec![(200, 0, 0, 400), (600, 0, 400, 400)]);
    let second = (40, 92, 500, vec![(200, 0, 800, 300)]);
    assert_eq!(cut(92, 200, &[1100], &long, 2), Ok(vec![first, second]));
    let shape = MessageShape { lead_len: 92, payload_len: 200, items: &[1100] };
    let found = MessageCut::new(shape, &long, 2).expect("as above");
    assert_eq!(found.targets_of(0).collect::<Vec<_>>(), [0, 1, 4]);
    // One long target, of which a part is reached.
    let one = ReceiveLayout::with_targets(200, 1, 5000, 0).bounded(1100);
    assert_eq!(cut(92, 100, &[900], &one, 9), Ok(vec![(92, 100, 1100, vec![(200, 0, 0, 900)])]));
    assert!(matches!(cut(92, 100, &[901], &one, 9), Err(CutError::Head { .. })));
}

#[test]
fn an_error_is_about_the_group_that_caused_it() {
    // RTR-5.4-a RTR-5.4-c RTR-X-12 RTR-X-17
    let id = |xid, direction| TransmissionId { xid, direction, number: 1 };
    let error = |bad, lead| TransmissionError { bad, lead, fault: GroupFault::NoGroup };
    let mut sender = GroupSender::new(MessageType::Call);
    sender.begin(7, 3);
    assert_eq!(sender.next_transmission(), Some(0));
    let foreign = error(id(7, MessageType::Reply), None);
    assert_eq!(sender.handle_error(&foreign), SendingFault::OtherDirection);
    let older = error(id(6, MessageType::Call), None);
    assert_eq!(sender.handle_error(&older), SendingFault::Sent { xid: 6 });
    let mixed = error(id(6, MessageType::Call), Some(id(7, MessageType::Reply)));
    assert_eq!(sender.handle_error(&mixed), SendingFault::OtherDirection);
    let found = error(id(9, MessageType::Call), Some(id(7, MessageType::Call)));
    assert_eq!(sender.handle_error(&found), SendingFault::Stopped { xid: 7, unsent: 2 });
    assert_eq!(sender.open(), None);
    assert_eq!(sender.handle_error(&found), SendingFault::Sent { xid: 7 }, "it is ended once");
}

events! {
    BeginOne => "begin",
    BeginThree => "begin",
    Next => "next_transmission",
    Abandon => "abandon",
    /// An XMTERR about the group that was begun last.
    Refused => "handle_error",
    /// One about another.
    RefusedOther => "handle_error",
    Disconnect => "handle_disconnect",
}

/// A sender, and the transmissions that its driver has left to send.
struct Sender {
    sender: GroupSender,
    unsent: u32,
}

impl Walk for Sender {
    type Event = Event;

    const EVENTS: &'static [Event] = Event::ALL;

    fn start() -> Self {
        Self { sender: GroupSender::new(MessageType::Reply), unsent: 0 }
    }

    fn step(&mut self, event: Event) {
        let error = |xid| TransmissionError {
            bad: TransmissionId { xid, direction: MessageType::Reply, number: 1 },
            lead: None,
            fault: GroupFault::NoGroup,
        };
        match event {
            Event::BeginOne => {
                self.sender.begin(7, 1);
                self.unsent = 1;
            }
            Event::BeginThree => {
                self.sender.begin(7, 3);
                self.unsent = 3;
            }
            Event::Next => {
                let number = self.sender.next_transmission();
                assert_eq!(number.is_some(), self.unsent > 0);
                self.unsent = self.unsent.saturating_sub(1);
            }
            Event::Abandon => {
                assert_eq!(self.sender.abandon(), self.unsent);
                self.unsent = 0;
            }
            Event::Refused => {
                let expected = match self.unsent {
                    0 => SendingFault::Sent { xid: 7 },
                    unsent => SendingFault::Stopped { xid: 7, unsent },
                };
                assert_eq!(self.sender.handle_error(&error(7)), expected);
                self.unsent = 0;
            }
            Event::RefusedOther => {
                assert_eq!(self.sender.handle_error(&error(8)), SendingFault::Sent { xid: 8 });
            }
            Event::Disconnect => {
                self.sender.handle_disconnect();
                self.unsent = 0;
            }
        }
    }

    fn name(self) -> String {
        assert_eq!(self.sender.open(), (self.unsent > 0).then_some(7));
        format!("unsent: {}", self.unsent)
    }
}

#[test]
fn the_state_graph_is_the_one_in_the_picture() {
    // RTR-4.2-a
    let expected = include_str!("sending.txt");
    let found = picture::<Sender>();
    assert!(found == expected, "sending.txt should be:\n{found}");
}

#[test]
fn every_method_that_changes_a_sender_is_walked() {
    assert_all_walked(include_str!("../../src/sender.rs"), Event::ALL.iter().map(|event| event.method()));
}
