//! The state graph of an exposed Reply, walked exhaustively. The picture is `exposed_states.txt`.

use stag_proto::exposed::{DoneOutcome, ExposedId, ExposedReplies};
use stag_proto::requester::ExposedMemory;

use crate::support::*;
use crate::walk::{Walk, assert_all_walked, events, picture};

events! {
    Expose => "expose",
    Done => "handle_done",
    /// Of another xid.
    DoneOther => "handle_done",
    DoneInvalidating => "handle_done",
    /// It invalidates a handle that is not the Reply's.
    DoneForeign => "handle_done",
    Revoke => "revoke",
    /// A Call with the Reply's xid.
    CallAgain => "handle_call",
    CallOther => "handle_call",
    PollFence => "poll_fence",
    Fenced => "handle_fenced",
    Disconnect => "handle_disconnect",
}

/// Room for one Reply of one handle, and what the driver knows.
struct Server {
    replies: ExposedReplies,
    reply: ExposedId,
    stale: ExposedId,
    /// The driver does not have its memory back.
    exposed: bool,
    fence_begun: bool,
    /// The peer has not told.
    is_owed: bool,
    is_revoked: bool,
}

impl Server {
    fn settle(&mut self, memory: ExposedMemory) {
        assert!(self.exposed, "memory comes back once");
        if memory == ExposedMemory::Safe {
            (self.exposed, self.fence_begun) = (false, false);
        }
    }

    fn done(&mut self, xid: u32, invalidated: Option<u32>) {
        match self.replies.handle_done(xid, invalidated) {
            DoneOutcome::Told { reply, memory } => {
                assert_eq!((reply, self.is_owed), (self.reply, true), "told of once");
                self.is_owed = false;
                if self.exposed {
                    self.settle(memory);
                } else {
                    assert_eq!(memory, ExposedMemory::Safe);
                }
            }
            DoneOutcome::Unknown => assert!(!self.is_owed || xid != 5),
            DoneOutcome::ForeignHandle(handle) => assert_eq!(invalidated, Some(handle)),
        }
    }
}

impl Walk for Server {
    type Event = Event;

    const EVENTS: &'static [Event] = Event::ALL;

    fn start() -> Self {
        let mut replies = ExposedReplies::new(1, 1, true);
        let segments = [read_segment(0, 7, 64)];
        let stale = replies.expose(4, &segments).expect("there is room");
        let mut told = 0;
        replies.handle_disconnect(|reply| told += u32::from(reply == stale));
        assert_eq!(told, 1);
        Self {
            replies,
            reply: stale,
            stale,
            exposed: false,
            fence_begun: false,
            is_owed: false,
            is_revoked: false,
        }
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Expose => {
                if let Some(reply) = self.replies.expose(5, &[read_segment(0, 7, 64)]) {
                    assert!(!self.exposed && !self.is_owed, "there is room for one");
                    self.reply = reply;
                    (self.exposed, self.is_owed, self.is_revoked) = (true, true, false);
                }
            }
            Event::Done => self.done(5, None),
            Event::DoneOther => self.done(6, None),
            Event::DoneInvalidating => self.done(5, Some(7)),
            Event::DoneForeign => self.done(5, Some(8)),
            Event::Revoke => {
                let memory = self.replies.revoke(self.reply);
                assert_eq!(memory == ExposedMemory::Exposed, self.exposed);
                self.is_revoked |= self.is_owed;
            }
            Event::CallAgain => {
                if let Some(reply) = self.replies.handle_call(5) {
                    assert_eq!((reply, self.is_owed, self.is_revoked), (self.reply, true, false));
                    self.is_revoked = true;
                }
            }
            Event::CallOther => assert_eq!(self.replies.handle_call(6), None),
            Event::PollFence => {
                if let Some(handle) = self.replies.poll_fence(self.reply) {
                    assert_eq!((handle, self.exposed, self.fence_begun), (7, true, false));
                    self.fence_begun = true;
                }
            }
            Event::Fenced => {
                if let Some(memory) = self.replies.handle_fenced(self.reply, 7) {
                    assert!(self.fence_begun, "each handle is fenced once");
                    self.settle(memory);
                }
            }
            Event::Disconnect => {
                let mut told = 0;
                self.replies.handle_disconnect(|reply| told += u32::from(reply == self.reply));
                assert_eq!(told, u32::from(self.exposed), "each that is exposed, once");
                (self.exposed, self.fence_begun) = (false, false);
                (self.is_owed, self.is_revoked) = (false, false);
            }
        }
    }

    fn name(mut self) -> String {
        let seen = |replies: &ExposedReplies| (replies.available(), replies.owed());
        let (available, owed) = seen(&self.replies);
        assert_eq!(owed, u32::from(self.is_owed));
        assert_eq!(available == 0, self.exposed || self.is_owed);
        // What is long over changes nothing.
        assert_eq!(self.replies.revoke(self.stale), ExposedMemory::Safe);
        assert_eq!(self.replies.poll_fence(self.stale), None);
        assert_eq!(self.replies.handle_fenced(self.stale, 7), None);
        assert_eq!(seen(&self.replies), (available, owed));
        let memory = match (self.exposed, self.fence_begun) {
            (false, _) => "none",
            (true, false) => "exposed",
            (true, true) => "being fenced",
        };
        let is_revoked = self.is_revoked && self.is_owed;
        format!("owed: {owed}, available: {available}, revoked: {is_revoked}, memory: {memory}")
    }
}

#[test]
fn the_state_graph_is_the_one_in_the_picture() {
    // RR-4.1.3-d RR-4.1.3-f RR-P-11 RR-4.1.4-c
    let expected = include_str!("exposed_states.txt");
    let found = picture::<Server>();
    assert!(found == expected, "exposed_states.txt should be:\n{found}");
}

#[test]
fn every_method_that_changes_exposed_replies_is_walked() {
    let walked = Event::ALL.iter().map(|event| event.method());
    assert_all_walked(include_str!("../../src/exposed.rs"), walked);
}

#[test]
fn no_more_are_exposed_than_receives_were_promised_for() {
    // RR-P-7 RR-P-8 RR-P-9
    let mut replies = ExposedReplies::new(3, 2, true);
    let segments = |handle| [read_segment(0, handle, 64), read_segment(0, handle + 1, 64)];
    let exposed: Vec<_> = (0..3).map(|nth| replies.expose(10 + nth, &segments(20 + 2 * nth))).collect();
    assert!(exposed.iter().all(Option::is_some));
    assert_eq!((replies.expose(13, &segments(30)), replies.owed()), (None, 3));
    // Of several handles one is invalidated remotely, and the Responder does the others (RR-4.1.4-c).
    let DoneOutcome::Told { reply, memory: ExposedMemory::Exposed } = replies.handle_done(11, Some(23))
    else {
        panic!("another handle is left")
    };
    assert_eq!(Some(reply), exposed[1]);
    assert_eq!((replies.owed(), replies.available()), (2, 0), "told of, and not fenced yet");
    assert_eq!(replies.poll_fence(reply), Some(22));
    assert_eq!(replies.poll_fence(reply), None);
    assert_eq!(replies.handle_fenced(reply, 22), Some(ExposedMemory::Safe));
    assert_eq!((replies.owed(), replies.available()), (2, 1));
    // More segments than a Reply may have.
    let three = [read_segment(0, 1, 1), read_segment(0, 2, 1), read_segment(0, 3, 1)];
    assert_eq!(replies.expose(14, &three), None);
    assert_eq!(replies.available(), 1);
}

#[test]
fn an_invalidation_needs_both_ends() {
    // RR-4.1.4-a RR-4.1.4-b
    let mut replies = ExposedReplies::new(1, 1, false);
    let reply = replies.expose(5, &[read_segment(0, 7, 64)]).expect("there is room");
    assert_eq!(replies.handle_done(5, Some(7)), DoneOutcome::ForeignHandle(7));
    assert_eq!(replies.handle_done(6, Some(7)), DoneOutcome::ForeignHandle(7), "for no Reply at all");
    assert_eq!(replies.handle_done(5, None), DoneOutcome::Told { reply, memory: ExposedMemory::Exposed });
}

#[test]
fn of_two_with_one_xid_the_older_is_told_of_first() {
    // RR-P-12
    let mut replies = ExposedReplies::new(2, 1, true);
    let old = replies.expose(5, &[read_segment(0, 7, 64)]).expect("there is room");
    assert_eq!(replies.handle_call(5), Some(old));
    let new = replies.expose(5, &[read_segment(0, 8, 64)]).expect("there is room");
    assert!(matches!(replies.handle_done(5, None), DoneOutcome::Told { reply, .. } if reply == old));
    assert!(matches!(replies.handle_done(5, None), DoneOutcome::Told { reply, .. } if reply == new));
    assert_eq!(replies.handle_done(5, None), DoneOutcome::Unknown);
}
