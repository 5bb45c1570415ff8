//! The state graph of a Requester's Call, walked exhaustively: every event at each state a driver can tell apart.
//!
//! The picture, `states.txt`, is what the walk finds. A new edge shows in review as a change of the picture. An event that
//! is not in it leaves its state as it is.

use stag_proto::requester::{ChunkLists, ExposedMemory, Requester, RequesterCallId, RequesterReceived};

use stag_wire::rpcrdma::{SINGLE_LEN, SingleChunk};

use crate::support::*;
use crate::walk::{Walk, assert_all_walked, events, picture};

events! {
    Begin => "begin",
    /// Leaves one credit for others: there is no other.
    BeginBeyond => "begin_beyond",
    /// More credits than there are slots.
    Request => "set_credits_requested",
    /// With a Read chunk of one segment.
    Emit => "emit_call",
    /// With a Read chunk of two segments, of one handle.
    EmitLists => "emit_call",
    EmitPlain => "emit_call",
    /// The caller writes its header.
    EmitInPlace => "emit_plain",
    /// With a Read chunk of one segment, by a header of its own.
    EmitSingle => "emit_single_call",
    /// With a Read chunk, into a buffer that is too short.
    EmitShort => "emit_call",
    Abandon => "abandon",
    Reply => "handle_receive",
    /// Without its header, which the caller has read.
    ReplyInPlace => "handle_plain",
    /// Taken in by the first part of `handle_receive` alone.
    ReplyShort => "handle_short",
    ReplyInvalidating => "handle_receive",
    /// A Reply that invalidates another's handle.
    ReplyForeign => "handle_receive",
    Error => "handle_receive",
    Cancel => "cancel",
    PollFence => "poll_fence",
    Fenced => "handle_fenced",
    Disconnect => "handle_disconnect",
    /// The connection ends, and each Call is kept for the next one.
    Interrupt => "handle_interruption",
    Reconnect => "handle_reconnect",
    Resume => "resume",
    Postpone => "postpone",
}

/// What a driver remembers of its Call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// There is none, or it is over.
    None,
    Making,
    Sent,
    GivenUp,
    /// Answered, failed or abandoned: fences are missing.
    Ending,
    Interrupted,
}

/// A Requester with one slot and one handle, and what its driver knows.
struct Client {
    requester: Requester,
    /// The last Call, even when it is over.
    call: RequesterCallId,
    /// One before it, in the same slot.
    stale: RequesterCallId,
    stage: Stage,
    /// It was sent on an earlier connection.
    left: bool,
    /// It exposed its handle when it was sent.
    offered: bool,
    exposed: bool,
    fence_begun: bool,
    connected: bool,
}

impl Client {
    /// The Call is answered, failed or abandoned.
    fn end(&mut self, memory: ExposedMemory) {
        self.stage = Stage::Ending;
        self.settle(memory);
    }

    fn settle(&mut self, memory: ExposedMemory) {
        if memory == ExposedMemory::Safe {
            self.exposed = false;
            self.fence_begun = false;
            if self.stage == Stage::Ending {
                (self.stage, self.offered) = (Stage::None, false);
            }
        }
    }

    fn emit(&mut self, lists: &ChunkLists<'_>, len: usize) {
        let emitted = self.requester.emit_call(self.call, &form_of(lists), lists, &mut [0; 1024][..len]);
        if emitted.is_ok() {
            self.stage = Stage::Sent;
            self.offered = !lists.reads.is_empty();
            self.exposed = self.offered;
        }
    }

    fn receive(&mut self, message: &[u8], invalidated: Option<u32>) {
        let call = match self.requester.handle_receive(message, invalidated) {
            RequesterReceived::Reply(reply) => {
                assert_eq!(self.stage, Stage::Sent);
                Some((reply.call, reply.memory))
            }
            RequesterReceived::Failed { call, memory, .. } => {
                assert_eq!(self.stage, Stage::Sent);
                Some((call, memory))
            }
            RequesterReceived::Late { call, memory } => {
                assert_eq!(self.stage, Stage::GivenUp);
                Some((call, memory))
            }
            RequesterReceived::Exposed(_) => panic!("it was not agreed on"),
            RequesterReceived::Dropped(_) | RequesterReceived::Close(_) => None,
        };
        if let Some((call, memory)) = call {
            assert_eq!(call, self.call);
            self.fence_begun &= invalidated.is_none();
            self.end(memory);
        }
    }

    /// The connection is gone. `keeps`: each Call is kept for the next one.
    fn interrupt(&mut self, keeps: bool) {
        self.left |= self.stage == Stage::Sent;
        let is_kept = keeps && matches!(self.stage, Stage::Making | Stage::Sent | Stage::Interrupted);
        self.stage = if is_kept { Stage::Interrupted } else { Stage::None };
        (self.offered, self.exposed, self.fence_begun, self.connected) = (false, false, false, false);
    }

    /// Feeds `event` to the Requester for a Call that is long over.
    fn step_stale(&mut self, event: Event) {
        let (reply, stale) = (Message::reply(self.stale.xid(), 1).bytes(), self.stale);
        let requester = &mut self.requester;
        match event {
            Event::Abandon => assert_eq!(requester.abandon(stale), ExposedMemory::Safe),
            Event::Reply => {
                assert!(matches!(requester.handle_receive(&reply, None), RequesterReceived::Dropped(_)))
            }
            Event::ReplyInPlace => assert_eq!(requester.handle_plain(1, &reply[28..]), None),
            Event::ReplyShort => assert_eq!(requester.handle_short(&reply, None), None),
            Event::Cancel => assert_eq!(requester.cancel(stale), ExposedMemory::Safe),
            Event::PollFence => assert_eq!(requester.poll_fence(stale), None),
            Event::Fenced => assert_eq!(requester.handle_fenced(stale, 7), None),
            Event::Resume => assert!(!requester.resume(stale)),
            Event::Postpone => requester.postpone(stale),
            _ => {}
        }
    }
}

impl Walk for Client {
    type Event = Event;

    const EVENTS: &'static [Event] = Event::ALL;

    fn start() -> Self {
        let mut requester = requester(1);
        let [stale, call] = [(); 2].map(|()| {
            let call = requester.begin().expect("a credit");
            assert_eq!(requester.abandon(call), ExposedMemory::Safe);
            call
        });
        let stage = Stage::None;
        Self {
            requester,
            call,
            stale,
            stage,
            left: false,
            offered: false,
            exposed: false,
            fence_begun: false,
            connected: true,
        }
    }

    fn step(&mut self, event: Event) {
        let call = self.call;
        let reads = [read_segment(96, 7, 64)];
        let lists = ChunkLists { reads: &reads, ..ChunkLists::default() };
        // More than there are slots, so that a grant which outlives its connection is seen.
        let reply = Message::reply(call.xid(), 9).bytes();
        match event {
            Event::Begin | Event::BeginBeyond => {
                let begun = match event {
                    Event::Begin => self.requester.begin(),
                    _ => self.requester.begin_beyond(1),
                };
                if let Some(call) = begun {
                    assert_eq!(self.stage, Stage::None, "there is one slot");
                    (self.call, self.stage, self.left) = (call, Stage::Making, false);
                }
            }
            Event::Request => self.requester.set_credits_requested(9),
            Event::Emit => self.emit(&lists, 1024),
            Event::EmitLists => {
                let reads = [read_segment(96, 7, 32), read_segment(96, 7, 32)];
                self.emit(&ChunkLists { reads: &reads, ..ChunkLists::default() }, 1024);
            }
            Event::EmitPlain => self.emit(&ChunkLists::default(), 1024),
            Event::EmitInPlace => {
                assert_eq!(self.requester.emit_plain(call), self.requester.window().requested());
                (self.stage, self.offered, self.exposed) = (Stage::Sent, false, false);
            }
            Event::EmitSingle => {
                let chunk = SingleChunk::Read(reads[0]);
                self.requester.emit_single_call(call, chunk, &mut [0; SINGLE_LEN]);
                (self.stage, self.offered, self.exposed) = (Stage::Sent, true, true);
            }
            Event::EmitShort => self.emit(&lists, 40),
            Event::Abandon => {
                let memory = self.requester.abandon(call);
                if self.stage != Stage::None {
                    self.end(memory);
                }
            }
            Event::Reply => self.receive(&reply, None),
            Event::ReplyInPlace => {
                if let Some(answered) = self.requester.handle_plain(9, &reply[28..]) {
                    assert_eq!((answered, self.stage, self.exposed), (call, Stage::Sent, false));
                    self.end(ExposedMemory::Safe);
                }
            }
            Event::ReplyShort => {
                if let Some(found) = self.requester.handle_short(&reply, None) {
                    assert_eq!(
                        (found.call, self.stage, found.start, found.written),
                        (call, Stage::Sent, 28, None)
                    );
                    self.end(found.memory);
                }
            }
            Event::ReplyInvalidating => self.receive(&reply, Some(7)),
            Event::ReplyForeign => self.receive(&reply, Some(8)),
            Event::Error => self.receive(&err_chunk(call.xid(), 1), None),
            Event::Cancel => {
                let memory = self.requester.cancel(call);
                match self.stage {
                    Stage::Making | Stage::Interrupted => {
                        assert_eq!(memory, ExposedMemory::Safe, "nothing of it is exposed");
                        self.stage = Stage::None;
                    }
                    Stage::Sent => {
                        self.stage = Stage::GivenUp;
                        self.settle(memory);
                    }
                    Stage::None | Stage::GivenUp | Stage::Ending => {}
                }
            }
            Event::PollFence => {
                if let Some(handle) = self.requester.poll_fence(call) {
                    assert_eq!((handle, self.exposed), (7, true));
                    self.fence_begun = true;
                }
            }
            Event::Fenced => {
                if let Some(memory) = self.requester.handle_fenced(call, 7) {
                    assert!(self.fence_begun);
                    self.settle(memory);
                }
            }
            Event::Disconnect => {
                self.requester.handle_disconnect(|_, _| {});
                self.interrupt(false);
            }
            Event::Interrupt => {
                self.requester.handle_interruption(|_, _| true);
                self.interrupt(true);
            }
            Event::Reconnect => {
                self.requester.handle_reconnect(parameters(1024, 1024, true));
                self.connected = true;
                assert_eq!(self.requester.window().granted(), 1, "8166-3.3.3-a");
            }
            Event::Resume => {
                if self.requester.resume(call) {
                    assert_eq!(self.stage, Stage::Interrupted);
                    self.stage = Stage::Making;
                }
            }
            Event::Postpone => {
                self.requester.postpone(call);
                if self.stage == Stage::Making {
                    self.stage = Stage::Interrupted;
                }
            }
        }
    }

    fn name(mut self) -> String {
        let seen = |requester: &Requester| (requester.window().in_flight(), requester.available());
        let (in_flight, available) = seen(&self.requester);
        for event in Event::ALL {
            self.step_stale(*event);
            assert_eq!(seen(&self.requester), (in_flight, available), "{event:?} for a stale Call");
        }
        let memory = match (self.offered, self.exposed, self.fence_begun) {
            (false, ..) => "none",
            (true, false, _) => "safe",
            (true, true, true) => "being fenced",
            (true, true, false) => "exposed",
        };
        let mut outcome = "none".to_owned();
        self.requester.handle_disconnect(|call, told| {
            assert_eq!((call, outcome.as_str()), (self.call, "none"));
            outcome = format!("{told:?}");
        });
        assert_eq!(self.requester.window().in_flight(), 0, "no credit outlives the connection");
        let waits = matches!(self.stage, Stage::Making | Stage::Sent | Stage::Interrupted);
        let is_repeated = self.left && waits;
        format!(
            "call: {:?}{}, connected: {}, in flight: {in_flight}, may begin: {available}, memory: {memory}, outcome: {outcome}",
            self.stage,
            if is_repeated { ", sent before" } else { "" },
            self.connected,
        )
    }
}

#[test]
fn the_state_graph_is_the_one_in_the_picture() {
    // 8166-4.4.1-a 8166-4.4.1-b
    let expected = include_str!("states.txt");
    let found = picture::<Client>();
    assert!(found == expected, "states.txt should be:\n{found}");
}

#[test]
fn every_method_that_changes_a_requester_is_walked() {
    let walked = Event::ALL.iter().map(|event| event.method());
    let source = concat!(
        include_str!("../../src/requester.rs"),
        include_str!("../../src/requester/interruption.rs"),
        include_str!("../../src/requester/short.rs")
    );
    assert_all_walked(source, walked);
}
