//! The state graph of a Call whose Reply the peer exposes, walked exhaustively. The picture is `pulling_states.txt`.

use stag_proto::requester::{
    CallFailure, ChunkLists, EndedCall, ExposedMemory, Pulled, Requester, RequesterCallId, RequesterReceived,
};

use crate::support::*;
use crate::walk::{Walk, assert_all_walked, events, picture};

events! {
    Begin => "begin",
    /// With a Read chunk of one handle.
    Emit => "emit_call",
    Exposed => "handle_receive",
    /// Longer than what is pulled.
    ExposedLong => "handle_receive",
    /// With a Read chunk that is at another Position.
    ExposedOther => "handle_receive",
    ExposedInvalidating => "handle_receive",
    /// For an xid that no Call has.
    ExposedUnknown => "handle_receive",
    Reply => "handle_receive",
    Pulled => "handle_pulled",
    Cancel => "cancel",
    PollFence => "poll_fence",
    Fenced => "handle_fenced",
    /// The connection ends, and the Call is kept for the next one.
    Interrupt => "handle_interruption",
    Reconnect => "handle_reconnect",
    Resume => "resume",
    Limit => "set_pull_limit",
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    None,
    Making,
    Sent,
    GivenUp,
    Pulling,
    /// Cancelled while its Reply is pulled.
    PullingForNobody,
    Ending,
    Interrupted,
}

/// A Requester with one slot and one handle, and what its driver knows.
struct Client {
    requester: Requester,
    call: RequesterCallId,
    stage: Stage,
    exposed: bool,
    fence_begun: bool,
    connected: bool,
    pulls: bool,
}

const LIMIT: u32 = 1000;

impl Client {
    fn settle(&mut self, memory: ExposedMemory) {
        if memory == ExposedMemory::Safe {
            (self.exposed, self.fence_begun) = (false, false);
            if self.stage == Stage::Ending {
                self.stage = Stage::None;
            }
        }
    }

    fn receive(&mut self, message: &Message, invalidated: Option<u32>) {
        let message = message.bytes();
        let is_ours = message[..4] == self.call.xid().to_be_bytes();
        match self.requester.handle_receive(&message, invalidated) {
            RequesterReceived::Exposed(reply) => {
                assert!(self.pulls, "it was not agreed on");
                assert_eq!(reply.xid.to_be_bytes(), message[..4]);
                let mut done = [0; 16];
                assert_eq!(self.requester.emit_done(reply.xid, &mut done), Ok(16));
                assert_eq!((&done[..4], done[15]), (&message[..4], 3));
                match reply.pulled {
                    Pulled::Pull { call, len, memory } => {
                        assert_eq!((call, len, self.stage), (self.call, 64, Stage::Sent));
                        assert_eq!(reply.segments().count(), 1);
                        self.fence_begun &= invalidated.is_none();
                        self.stage = Stage::Pulling;
                        self.settle(memory);
                    }
                    Pulled::Tell { call: Some(call), failure, memory } => {
                        let expected = if failure.is_some() { Stage::Sent } else { Stage::GivenUp };
                        assert_eq!((call, self.stage), (self.call, expected));
                        self.fence_begun &= invalidated.is_none();
                        self.stage = Stage::Ending;
                        self.settle(memory);
                    }
                    Pulled::Tell { call: None, failure, .. } => {
                        let waits = matches!(self.stage, Stage::Sent | Stage::GivenUp);
                        assert!((!waits || !is_ours) && failure.is_none());
                    }
                }
            }
            RequesterReceived::Reply(reply) => {
                assert_eq!(self.stage, Stage::Sent);
                self.stage = Stage::Ending;
                self.settle(reply.memory);
            }
            RequesterReceived::Late { memory, .. } => {
                assert_eq!(self.stage, Stage::GivenUp);
                self.stage = Stage::Ending;
                self.settle(memory);
            }
            RequesterReceived::Failed { .. } => {
                panic!("neither an error nor a Reply that contradicts its Call")
            }
            RequesterReceived::Dropped(_) | RequesterReceived::Close(_) => {}
        }
    }

    fn exposed(&self, position: u32, length: u32) -> Message {
        Message::reply(self.call.xid(), 9).read(position, segment(50, length)).nomsg()
    }
}

impl Walk for Client {
    type Event = Event;

    const EVENTS: &'static [Event] = Event::ALL;

    fn start() -> Self {
        let mut requester = requester(1);
        let call = requester.begin().expect("a credit");
        assert_eq!(requester.abandon(call), ExposedMemory::Safe);
        let stage = Stage::None;
        Self { requester, call, stage, exposed: false, fence_begun: false, connected: true, pulls: false }
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Begin => {
                if let Some(call) = self.requester.begin() {
                    assert_eq!(self.stage, Stage::None, "there is one slot");
                    (self.call, self.stage) = (call, Stage::Making);
                }
            }
            Event::Emit => {
                let reads = [read_segment(96, 7, 64)];
                let lists = ChunkLists { reads: &reads, ..ChunkLists::default() };
                let emitted = self.requester.emit_call(self.call, &form_of(&lists), &lists, &mut [0; 1024]);
                assert!(emitted.is_ok());
                (self.stage, self.exposed) = (Stage::Sent, true);
            }
            Event::Exposed => self.receive(&self.exposed(0, 64), None),
            Event::ExposedLong => self.receive(&self.exposed(0, LIMIT + 1), None),
            Event::ExposedOther => self.receive(&self.exposed(0, 64).read(8, segment(51, 64)), None),
            Event::ExposedInvalidating => self.receive(&self.exposed(0, 64), Some(7)),
            Event::ExposedUnknown => {
                let message = Message { xid: self.call.xid() ^ 0x100, ..self.exposed(0, 64) };
                self.receive(&message, None);
            }
            Event::Reply => self.receive(&Message::reply(self.call.xid(), 9), None),
            Event::Pulled => {
                let memory = self.requester.handle_pulled(self.call);
                if matches!(self.stage, Stage::Pulling | Stage::PullingForNobody) {
                    self.stage = Stage::Ending;
                    self.settle(memory);
                }
            }
            Event::Cancel => {
                let memory = self.requester.cancel(self.call);
                match self.stage {
                    Stage::Making | Stage::Interrupted => self.stage = Stage::None,
                    Stage::Sent => self.stage = Stage::GivenUp,
                    Stage::Pulling => self.stage = Stage::PullingForNobody,
                    _ => {}
                }
                self.settle(memory);
            }
            Event::PollFence => {
                if let Some(handle) = self.requester.poll_fence(self.call) {
                    assert_eq!((handle, self.exposed), (7, true));
                    self.fence_begun = true;
                }
            }
            Event::Fenced => {
                if let Some(memory) = self.requester.handle_fenced(self.call, 7) {
                    assert!(self.fence_begun);
                    self.settle(memory);
                }
            }
            Event::Interrupt => {
                let stage = self.stage;
                self.requester.handle_interruption(|_, outcome| {
                    let expected = match stage {
                        Stage::Sent | Stage::Pulling => Some(EndedCall::MaybeExecuted),
                        Stage::GivenUp | Stage::PullingForNobody => Some(EndedCall::Cancelled),
                        _ => None,
                    };
                    assert!(expected.is_none_or(|expected| expected == outcome), "{stage:?}: {outcome:?}");
                    true
                });
                let is_kept =
                    matches!(stage, Stage::Making | Stage::Sent | Stage::Pulling | Stage::Interrupted);
                self.stage = if is_kept { Stage::Interrupted } else { Stage::None };
                (self.exposed, self.fence_begun, self.connected) = (false, false, false);
            }
            Event::Reconnect => {
                self.requester.handle_reconnect(parameters(1024, 1024, true));
                (self.connected, self.pulls) = (true, false);
            }
            Event::Resume => {
                if self.requester.resume(self.call) {
                    self.stage = Stage::Making;
                }
            }
            Event::Limit => {
                self.requester.set_pull_limit(LIMIT);
                self.pulls = true;
            }
        }
    }

    fn name(self) -> String {
        let memory = match (self.exposed, self.fence_begun) {
            (false, _) => "none",
            (true, true) => "being fenced",
            (true, false) => "exposed",
        };
        let (in_flight, available) = (self.requester.window().in_flight(), self.requester.available());
        format!(
            "call: {:?}, connected: {}, pulls: {}, in flight: {in_flight}, may begin: {available}, memory: {memory}",
            self.stage, self.connected, self.pulls
        )
    }
}

#[test]
fn the_state_graph_is_the_one_in_the_picture() {
    // RR-4.1.2-a RR-4.1.3-a RR-4.1.3-c RR-P-1 RR-X-2
    let expected = include_str!("pulling_states.txt");
    let found = picture::<Client>();
    assert!(found == expected, "pulling_states.txt should be:\n{found}");
}

#[test]
fn every_method_that_pulls_is_walked() {
    let walked = Event::ALL.iter().map(|event| event.method());
    let walked = walked.filter(|method| ["set_pull_limit", "handle_pulled"].contains(method));
    assert_all_walked(include_str!("../../src/requester/pulling.rs"), walked);
}

/// A Requester that pulls, with a Call in flight that has a Write chunk and a Reply chunk.
fn sent() -> (Requester, RequesterCallId) {
    let mut requester = requester(2);
    requester.set_pull_limit(LIMIT);
    let (chunk, reply) = ([segment(1, 100)], [segment(2, 40)]);
    let lists = ChunkLists { writes: &[&chunk], reply: Some(&reply), ..ChunkLists::default() };
    let (call, _) = send(&mut requester, &lists);
    (requester, call)
}

#[test]
fn the_write_list_comes_back_beside_the_exposed_stream() {
    // RR-4.1-b RR-4.1-d
    let (mut requester, call) = sent();
    let base = Message::reply(call.xid(), 3).write(&[segment(1, 60)]).reply_chunk(&[segment(2, 0)]);
    let message = base.clone().read(0, segment(50, 300)).read(0, segment(51, 200)).nomsg().bytes();
    let RequesterReceived::Exposed(reply) = requester.handle_receive(&message, None) else {
        panic!("it is exposed")
    };
    assert_eq!(reply.pulled, Pulled::Pull { call, len: 500, memory: ExposedMemory::Exposed });
    assert_eq!(reply.segments().map(|entry| entry.segment.handle).collect::<Vec<_>>(), [50, 51]);
    assert_eq!(reply.write_lens().collect::<Vec<_>>(), [60]);
    assert_eq!((requester.window().in_flight(), requester.window().granted()), (0, 3));
    assert!(!requester.has_call(call.xid()), "its Reply is here");
    assert_eq!(fence_all(&mut requester, call), [1, 2]);
    assert_eq!(requester.handle_pulled(call), ExposedMemory::Safe);
    assert_eq!(requester.handle_pulled(call), ExposedMemory::Safe, "it is over");
}

#[test]
fn an_exposed_reply_that_is_wrong_is_told_of_and_fails_its_call() {
    // RR-X-3 RR-4.1-c RR-4.1.2-a
    let failure_of = |change: &dyn Fn(Message) -> Message| {
        let (mut requester, call) = sent();
        let message = Message::reply(call.xid(), 3).write(&[segment(1, 60)]).reply_chunk(&[segment(2, 0)]);
        let message = change(message.read(0, segment(50, 300)).nomsg()).bytes();
        let RequesterReceived::Exposed(reply) = requester.handle_receive(&message, None) else {
            panic!("it is exposed")
        };
        let Pulled::Tell { call: Some(told), failure: Some(failure), memory: ExposedMemory::Exposed } =
            reply.pulled
        else {
            panic!("{:?}", reply.pulled)
        };
        assert_eq!(told, call);
        failure
    };
    let limit = LIMIT;
    let other = failure_of(&|message| message.read(8, segment(51, 4)));
    assert_eq!(other, CallFailure::Lists);
    let used = failure_of(&|message| message.reply_chunk(&[segment(2, 40)]));
    assert_eq!(used, CallFailure::Lists);
    let long = failure_of(&|message| message.read(0, segment(51, limit - 299)));
    assert_eq!(long, CallFailure::Length { len: 1001, limit });
    let beyond = failure_of(&|message| message.read(0, segment(51, u32::MAX)));
    assert_eq!(beyond, CallFailure::Length { len: 300 + u64::from(u32::MAX), limit });
    let empty = failure_of(&|message| Message { reads: vec![read_segment(0, 50, 0)], ..message });
    assert_eq!(empty, CallFailure::Length { len: 0, limit });
    let missing = failure_of(&|message| Message { writes: Vec::new(), ..message });
    assert!(matches!(missing, CallFailure::Violation(_)));
}

#[test]
fn where_it_was_not_agreed_on_the_reply_is_discarded() {
    // RR-4.1.3-e RR-P-1
    let mut requester = requester(2);
    let call = send_null(&mut requester);
    let message = Message::reply(call.xid(), 3).read(0, segment(50, 300)).nomsg().bytes();
    assert!(matches!(requester.handle_receive(&message, None), RequesterReceived::Dropped(_)));
    assert!(requester.has_call(call.xid()));
}
