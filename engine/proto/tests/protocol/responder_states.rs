//! The state graph of a Responder's Call, walked exhaustively: every event at each state a driver can tell apart.
//!
//! The picture is `responder_states.txt`. An event that is not in it leaves its state as it is.

use stag_proto::responder::{
    CallPayload, RefusedCall, ReplyError, Responder, ResponderCallId, ResponderReceived,
};

use stag_wire::rpcrdma::Single;

use crate::support::*;
use crate::walk::{Walk, assert_all_walked, events, picture};

events! {
    Call => "handle_receive",
    /// With a Read and a Write chunk of one handle, which the Reply may invalidate.
    CallChunks => "handle_receive",
    CallLong => "handle_receive",
    /// The message of the Call that came last, again.
    CallAgain => "handle_receive",
    /// A Call of another version.
    CallRefused => "handle_receive",
    /// A Reply, which is not for a Responder.
    CallDropped => "handle_receive",
    /// A plain Call is taken in and answered in one step.
    CallAnswered => "answer_plain",
    /// A plain Call is taken in, and its Receive stays posted.
    CallBegun => "begin_plain",
    /// It is answered without a header of its own.
    BegunAnswered => "answer_begun",
    /// One with a Read chunk is taken in so, too.
    SingleBegun => "begin_single",
    BegunSingleAnswered => "answer_begun_single",
    /// It is answered in one step, too.
    CallSingleAnswered => "answer_single",
    Pulled => "handle_pulled",
    /// What was pulled is another Call.
    PulledOther => "handle_pulled",
    Emit => "emit_reply",
    Refuse => "refuse",
    Discard => "discard",
    /// If none is posted.
    Post => "receives_posted",
    Limit => "set_credit_limit",
    /// The free slot is the next.
    Slot => "use_next",
    Disconnect => "handle_disconnect",
}

/// A Responder with one slot, and what its driver knows.
struct Server {
    responder: Responder,
    /// The Call that came last, even when it is over, and its message.
    call: ResponderCallId,
    message: Vec<u8>,
    xid: u32,
    /// One before it, in the same slot.
    stale: ResponderCallId,
    in_process: Option<&'static str>,
    connected: bool,
}

impl Server {
    fn receive(&mut self, message: Vec<u8>, kind: &'static str) {
        match self.responder.handle_receive(&message) {
            ResponderReceived::Call(call) => {
                assert_eq!(self.in_process, None, "there is one slot");
                assert_eq!(call.xid().to_be_bytes(), message[..4]);
                assert_eq!(matches!(call.payload, CallPayload::Long(_)), kind == "long");
                (self.call, self.xid) = (call.id, call.xid());
                self.in_process = Some(kind);
                self.message = message;
            }
            ResponderReceived::Error(_) | ResponderReceived::Dropped(_) => {}
            // The driver ends the connection then; here it goes on.
            ResponderReceived::Close(_) => assert!(self.in_process.is_some()),
        }
    }

    fn pulled(&mut self, xid: u32) {
        let stream = Message::call(xid).payload;
        match self.responder.handle_pulled(self.call, &stream) {
            Ok(()) => assert!(self.in_process.is_some() && xid == self.xid),
            Err(error) => {
                assert_eq!(error.is_some(), self.in_process.take().is_some());
            }
        }
    }
}

impl Walk for Server {
    type Event = Event;

    const EVENTS: &'static [Event] = Event::ALL;

    fn start() -> Self {
        let mut responder = responder(1);
        let message = Message::call(1).bytes();
        let [stale, call] = [(); 2].map(|()| {
            let call = receive_call(&mut responder, &message);
            answer(&mut responder, call, &message);
            call
        });
        Self { responder, call, message, xid: 1, stale, in_process: None, connected: true }
    }

    fn step(&mut self, event: Event) {
        let next = self.xid + 1;
        match event {
            Event::Call => self.receive(Message::call(next).bytes(), "plain"),
            Event::CallChunks => {
                let message = Message::call(next).read(40, segment(7, 64)).write(&[segment(7, 64)]);
                self.receive(message.bytes(), "chunks");
            }
            Event::CallLong => {
                self.receive(Message::call(next).nomsg().read(0, segment(7, 40)).bytes(), "long");
            }
            Event::CallAgain => {
                // The same xid as a new Call is allowed when the first is over (5531-e is about those in process).
                if self.in_process.is_some() {
                    self.receive(self.message.clone(), "again");
                }
            }
            Event::CallRefused => {
                let mut message = Message::call(next);
                message.version = 2;
                self.receive(message.bytes(), "of another version");
            }
            Event::CallDropped => self.receive(Message::reply(next, 1).bytes(), "a Reply"),
            Event::CallAnswered => {
                let may = self.responder.may_answer(next);
                assert_eq!(may, self.connected && self.in_process.is_none(), "there is one credit");
                if may {
                    assert_eq!(self.responder.answer_plain(7, 9), 1);
                    assert_eq!(self.responder.credits_requested(), 7);
                }
                assert!(self.in_process.is_none() || !self.responder.may_answer(self.xid));
            }
            Event::CallBegun => {
                if self.responder.may_answer(next) {
                    self.call = self.responder.begin_plain(next, 7);
                    (self.xid, self.message) = (next, Message::call(next).bytes());
                    self.in_process = Some("begun");
                    assert_eq!(self.responder.credits_requested(), 7);
                }
            }
            Event::BegunAnswered => {
                if matches!(self.in_process, None | Some("begun")) {
                    let answered = self.responder.answer_begun(self.call, 9);
                    assert_eq!(answered.is_some(), self.in_process.take().is_some());
                }
            }
            Event::SingleBegun => {
                if self.responder.may_answer(next) {
                    let message = Message::call(next).read(8, segment(7, 40)).bytes();
                    let (call, _) = self.responder.peek_single(&message).expect("it has one chunk");
                    self.call = self.responder.begin_single(&Single { credits: 7, ..call });
                    (self.xid, self.message) = (next, message);
                    self.in_process = Some("begun with a chunk");
                    assert_eq!(self.responder.credits_requested(), 7);
                }
            }
            Event::BegunSingleAnswered => {
                if matches!(self.in_process, None | Some("begun with a chunk")) {
                    let emitted = self.responder.answer_begun_single(self.call, 9, 0, &mut [0; 64]);
                    let invalidated = emitted.map(|emitted| emitted.invalidate);
                    assert_eq!(invalidated, self.in_process.take().map(|_| Some(7)));
                }
            }
            Event::CallSingleAnswered => {
                if self.responder.may_answer(next) {
                    let message = Message::call(next).read(8, segment(7, 40)).bytes();
                    let (call, _) = self.responder.peek_single(&message).expect("it has one chunk");
                    let emitted =
                        self.responder.answer_single(&Single { credits: 7, ..call }, 9, 0, &mut [0; 64]);
                    assert_eq!(emitted.invalidate, Some(7));
                    assert_eq!(self.responder.credits_requested(), 7);
                }
            }
            Event::Pulled => self.pulled(self.xid),
            Event::PulledOther => self.pulled(next),
            Event::Emit => {
                let planned = self.responder.plan_reply(self.call, &self.message, &[8], 24);
                let Ok(form) = planned else {
                    assert_eq!((planned, self.in_process), (Err(ReplyError::Stale), None));
                    return;
                };
                let out = &mut [0; 1024];
                let emitted = self.responder.emit_reply(self.call, &self.message, &[8], &form, out);
                let invalidate = emitted.expect("it is in process").invalidate;
                let has_chunk = matches!(self.in_process, Some("chunks" | "long" | "begun with a chunk"));
                assert_eq!(invalidate, has_chunk.then_some(7));
                self.in_process = None;
            }
            Event::Refuse => {
                let error = self.responder.refuse(self.call, RefusedCall::Ineligible);
                assert_eq!(error.is_some(), self.in_process.take().is_some());
            }
            Event::Discard => {
                assert_eq!(self.responder.discard(self.call), self.in_process.take().is_some());
            }
            Event::Post => {
                if self.responder.grant().receives() == 0 {
                    self.responder.receives_posted(1);
                }
            }
            Event::Limit => self.responder.set_credit_limit(9),
            Event::Slot => {
                if self.in_process.is_none() {
                    self.responder.use_next(0);
                    assert_eq!(self.responder.next_slot(), 0);
                }
            }
            Event::Disconnect => {
                let mut told = Vec::new();
                self.responder.handle_disconnect(|call| told.push(call));
                let expected = self.in_process.take().map(|_| self.call);
                assert_eq!(told, Vec::from_iter(expected));
                self.connected = false;
            }
        }
    }

    fn name(mut self) -> String {
        let grant = *self.responder.grant();
        assert!(grant.check());
        assert_eq!(self.responder.call(self.call, &self.message).is_some(), self.in_process.is_some());
        let stale = self.stale;
        assert!(self.responder.call(stale, &self.message).is_none());
        assert!(self.responder.handle_pulled(stale, &[]) == Err(None));
        assert_eq!(self.responder.plan_reply(stale, &self.message, &[], 24), Err(ReplyError::Stale));
        assert_eq!(self.responder.refuse(stale, RefusedCall::Ineligible), None);
        assert!(!self.responder.discard(stale));
        assert_eq!(*self.responder.grant(), grant, "an event for a stale Call");
        format!(
            "call: {}, connected: {}, in process: {}, receives: {}, granted: {}",
            self.in_process.unwrap_or("none"),
            self.connected,
            grant.in_process(),
            grant.receives(),
            grant.granted(),
        )
    }
}

#[test]
fn the_responders_state_graph_is_the_one_in_the_picture() {
    // 5531-e 8166-4.5.4-c
    let expected = include_str!("responder_states.txt");
    let found = picture::<Server>();
    assert!(found == expected, "responder_states.txt should be:\n{found}");
}

#[test]
fn every_method_that_changes_a_responder_is_walked() {
    let walked = Event::ALL.iter().map(|event| event.method());
    let source =
        concat!(include_str!("../../src/responder.rs"), include_str!("../../src/responder/at_once.rs"));
    assert_all_walked(source, walked);
}
