//! The state graph of a Call, walked exhaustively: each state a driver can tell apart, and each step out of it.
//!
//! The picture below is what the walk finds. A new edge shows in review as a change of the picture.

use std::collections::{BTreeMap, VecDeque};

use stag_proto::requester::{CallId, ChunkLists, Memory, Received, Requester};

use crate::support::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Begin,
    Emit,
    Abandon,
    Reply,
    ReplyInvalidating,
    Error,
    Cancel,
    PollFence,
    Fenced,
}

const STEPS: [Step; 9] = [
    Step::Begin,
    Step::Emit,
    Step::Abandon,
    Step::Reply,
    Step::ReplyInvalidating,
    Step::Error,
    Step::Cancel,
    Step::PollFence,
    Step::Fenced,
];

/// A Requester with one slot and one handle, and what its driver knows.
struct Walk {
    requester: Requester,
    call: Option<CallId>,
    emitted: bool,
    cancelled: bool,
    fence_begun: bool,
    over: bool,
}

impl Walk {
    /// Takes `steps`. `None`: the last one is not possible, or changes nothing.
    fn take(steps: &[Step]) -> Option<Self> {
        let mut walk = Self {
            requester: requester(1),
            call: None,
            emitted: false,
            cancelled: false,
            fence_begun: false,
            over: false,
        };
        for step in steps {
            if !walk.step(*step) {
                return None;
            }
        }
        Some(walk)
    }

    fn settle(&mut self, memory: Memory) {
        self.over |= memory == Memory::Safe;
    }

    fn step(&mut self, step: Step) -> bool {
        if step == Step::Begin {
            let begun = self.requester.begin();
            // A second Call would be in another place of the picture.
            let first = self.call.is_none();
            self.call = begun.or(self.call);
            return begun.is_some() && first;
        }
        let Some(call) = self.call else { return false };
        let reads = [read_segment(96, 7, 64)];
        let lists = ChunkLists { reads: &reads, ..ChunkLists::default() };
        match step {
            Step::Begin => unreachable!("above"),
            Step::Emit => {
                if self.emitted || self.over {
                    return false;
                }
                self.emitted = true;
                self.requester.emit_call(call, &form_of(&lists), &lists, &mut [0; 1024]).is_ok()
            }
            Step::Abandon => {
                // For Calls in the making; the driver knows which.
                if self.cancelled || self.requester.window().in_flight() == 0 {
                    return false;
                }
                let memory = self.requester.abandon(call);
                self.settle(memory);
                true
            }
            Step::Reply | Step::ReplyInvalidating | Step::Error => {
                let message = match step {
                    Step::Error => err_chunk(call.xid(), 1),
                    _ => Message::reply(call.xid(), 1).bytes(),
                };
                let invalidated = (step == Step::ReplyInvalidating).then_some(7);
                let memory = match self.requester.handle_receive(&message, invalidated) {
                    Received::Reply(reply) => reply.memory,
                    Received::Failed { memory, .. } | Received::Late { memory, .. } => memory,
                    Received::Dropped(_) | Received::Close(_) => return false,
                };
                self.fence_begun &= invalidated.is_none();
                self.settle(memory);
                true
            }
            Step::Cancel => {
                self.cancelled = true;
                let memory = self.requester.cancel(call);
                self.settle(memory);
                true
            }
            Step::PollFence => {
                self.fence_begun |= self.requester.poll_fence(call).is_some_and(|handle| handle == 7);
                self.fence_begun
            }
            Step::Fenced => {
                self.fence_begun = false;
                match self.requester.handle_fenced(call, 7) {
                    Some(memory) => {
                        self.settle(memory);
                        true
                    }
                    None => false,
                }
            }
        }
    }

    /// What can be told of the state from outside.
    fn name(&self) -> String {
        let window = self.requester.window();
        let memory = match (self.emitted, self.over, self.fence_begun) {
            (false, ..) | (true, true, _) => "safe",
            (true, false, true) => "being fenced",
            (true, false, false) => "exposed",
        };
        format!(
            "begun: {}, in flight: {}, may begin: {}, memory: {memory}",
            self.call.is_some(),
            window.in_flight(),
            self.requester.available(),
        )
    }
}

/// The state after `steps`, with what a disconnect says there.
fn state(steps: &[Step]) -> Option<String> {
    let mut walk = Walk::take(steps)?;
    let name = walk.name();
    let mut outcome = "none".to_owned();
    walk.requester.handle_disconnect(|_, told| outcome = format!("{told:?}"));
    assert_eq!(walk.requester.window().in_flight(), 0);
    Some(format!("{name}, outcome: {outcome}"))
}

fn picture() -> String {
    let start = state(&[]).expect("the start");
    let mut names = BTreeMap::from([(start, 0)]);
    let mut labels = vec![state(&[]).expect("the start")];
    let mut edges = String::new();
    let mut waiting = VecDeque::from([Vec::new()]);
    while let Some(path) = waiting.pop_front() {
        let from = names[&state(&path).expect("walked before")];
        for step in STEPS {
            let mut next = path.clone();
            next.push(step);
            let Some(to) = state(&next) else { continue };
            let count = names.len();
            let number = *names.entry(to.clone()).or_insert(count);
            if number == count {
                labels.push(to);
                waiting.push_back(next);
            }
            if number != from {
                edges.push_str(&format!("{from} -{step:?}-> {number}\n"));
            }
        }
    }
    let states: String = (0..).zip(labels).map(|(number, label)| format!("{number}: {label}\n")).collect();
    states + &edges
}

#[test]
fn the_state_graph_is_the_one_in_the_picture() {
    // 8166-4.4.1-a 8166-4.4.1-b
    let expected = include_str!("states.txt");
    let found = picture();
    assert!(found == expected, "states.txt should be:\n{found}");
}
