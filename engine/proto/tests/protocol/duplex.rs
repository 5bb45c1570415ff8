//! Two ends that both call and both serve, joined by queues, through random lives from a seed.
//!
//! Both Requesters count their xids from the same start, so that they collide all the time. What is checked all the way: a Send
//! always finds a posted Receive; every Call ends once; credits of the two directions never mix. Some lives have an end that
//! breaks its credits: that harms no other Call.

use std::collections::VecDeque;

use stag_proto::direction::{Recipient, Roles};
use stag_proto::receives::{ReceivePurpose, Receives};
use stag_proto::requester::{self, ChunkLists, Requester, Shape};
use stag_proto::responder::{self, Responder};

use crate::support::*;

const SLOTS: u32 = 5;

/// One end and its driver.
struct End {
    requester: Requester,
    responder: Responder,
    receives: Receives,
    /// Calls of ours that were not answered, and whether they were cancelled.
    calling: Vec<(requester::RequesterCallId, bool)>,
    /// Calls of the peer that were not answered, with their messages.
    serving: Vec<(responder::ResponderCallId, Vec<u8>)>,
    /// What it sent and has not arrived, and whether the peer is not entitled to have sent it.
    sent: VecDeque<(Vec<u8>, bool)>,
    replies: u32,
    strays: u32,
    lost: u32,
}

impl End {
    fn new(random: &mut Random) -> End {
        let parameters = parameters(1024, 1024, false);
        let mut end = End {
            requester: requester_with(1 + random.below(SLOTS), parameters),
            responder: Responder::new(&responder::ResponderConfig {
                slots: SLOTS,
                parameters,
                limits: limits(),
            }),
            receives: Receives::new(),
            calling: Vec::new(),
            serving: Vec::new(),
            sent: VecDeque::new(),
            replies: 0,
            strays: 0,
            lost: 0,
        };
        // The peer has one credit before it hears anything (8167-4.1-d).
        end.post_for_calls(1 + random.below(SLOTS));
        end
    }

    fn post_for_calls(&mut self, count: u32) {
        self.receives.post(count);
        assert_eq!(self.receives.promise(ReceivePurpose::Call, count), count);
        self.responder.receives_posted(count);
    }

    /// Begins a Call if there is a credit: its Receive is posted before it is sent.
    fn call(&mut self) {
        if self.requester.available() == 0 {
            return;
        }
        self.receives.post(1);
        assert_eq!(self.receives.promise(ReceivePurpose::Reply, 1), 1);
        let call = self.requester.begin().expect("a credit");
        let form = self.requester.plan(&Shape { payload_len: 40, ..Shape::default() }).expect("it fits");
        let mut out = vec![0; 1024];
        let len = self.requester.emit_call(call, &form, &ChunkLists::default(), &mut out).expect("a header");
        out.truncate(len);
        out.extend(Message::call(call.xid()).payload);
        self.sent.push_back((out, false));
        self.calling.push((call, false));
    }

    /// Answers one of the peer's Calls, perhaps with an error.
    fn answer(&mut self, random: &mut Random) {
        if self.serving.is_empty() {
            return;
        }
        let (id, message) = self.serving.swap_remove(random.below(self.serving.len() as u32) as usize);
        let xid = u32::from_be_bytes(message[..4].try_into().expect("an xid"));
        let octets = if random.once_in(5) {
            let error =
                self.responder.refuse(id, responder::RefusedCall::Ineligible).expect("it is in process");
            error.as_bytes().to_vec()
        } else {
            let form = self.responder.plan_reply(id, &message, &[], 24).expect("it fits");
            let mut out = vec![0; 1024];
            let emitted = self.responder.emit_reply(id, &message, &[], &form, &mut out).expect("in process");
            out.truncate(emitted.header_len);
            out.extend(Message::reply(xid, 1).payload);
            out
        };
        // Its Receive is posted again before the Send, as the grant in it counts on.
        self.post_for_calls(1);
        self.sent.push_back((octets, false));
    }

    fn cancel(&mut self, random: &mut Random) {
        if self.calling.is_empty() {
            return;
        }
        let at = random.below(self.calling.len() as u32) as usize;
        let (call, is_cancelled) = &mut self.calling[at];
        let _ = self.requester.cancel(*call);
        *is_cancelled = true;
    }

    /// Changes what the peer is granted; more credits need more Receives.
    fn regrant(&mut self, random: &mut Random) {
        let limit = 1 + random.below(SLOTS);
        self.responder.set_credit_limit(limit);
        let backed = self.receives.promised(ReceivePurpose::Call) + self.responder.grant().in_process();
        if limit > backed {
            self.post_for_calls(limit - backed);
        }
    }

    /// Takes in a message. `is_peer_fair`: it keeps to its credits.
    fn receive(&mut self, (message, is_unfair): (Vec<u8>, bool), is_peer_fair: bool) {
        if is_unfair && self.receives.posted() == 0 {
            // The fabric has no place for it, and would end the connection.
            self.strays += 1;
            return;
        }
        assert!(self.receives.posted() > 0, "no Receive is posted for a message");
        let roles = Roles { responds: true, ..Roles::default() };
        let requester = &self.requester;
        let purpose = match Recipient::of(&message, &roles, |xid| requester.has_call(xid)) {
            Recipient::Requester => match self.requester.handle_receive(&message, None) {
                requester::RequesterReceived::Reply(requester::AnsweredCall { call, .. })
                | requester::RequesterReceived::Failed { call, .. }
                | requester::RequesterReceived::Late { call, .. } => {
                    let at = self.calling.iter().position(|(known, _)| *known == call);
                    self.calling.swap_remove(at.expect("each Call ends once"));
                    self.replies += 1;
                    Some(ReceivePurpose::Reply)
                }
                requester::RequesterReceived::Exposed(_) => panic!("it was not agreed on"),
                requester::RequesterReceived::Dropped(_) | requester::RequesterReceived::Close(_) => None,
            },
            Recipient::Responder => match self.responder.handle_receive(&message) {
                responder::ResponderReceived::Call(call) => {
                    let id = call.id;
                    self.serving.push((id, message));
                    Some(ReceivePurpose::Call)
                }
                responder::ResponderReceived::Error(_)
                | responder::ResponderReceived::Dropped(_)
                | responder::ResponderReceived::Close(_) => {
                    self.responder.receives_posted(1);
                    None
                }
            },
            Recipient::Exposed(_) | Recipient::Dropped(_) | Recipient::First => None,
        };
        let is_entitled = self.receives.consume(purpose);
        assert!(is_entitled || !is_peer_fair, "a peer that keeps to the rules is entitled to what it sends");
        self.strays += u32::from(!is_entitled);
        // Before anything else is sent.
        self.receives.post(self.receives.missing());
        self.check();
    }

    fn check(&self) {
        assert_eq!(self.receives.missing(), 0);
        assert_eq!(self.requester.window().in_flight() as usize, self.calling.len());
        assert_eq!(self.receives.promised(ReceivePurpose::Reply) as usize, self.calling.len());
        assert_eq!(self.responder.grant().in_process() as usize, self.serving.len());
        assert_eq!(self.receives.promised(ReceivePurpose::Call), self.responder.grant().receives());
        let grant = self.responder.grant();
        assert!(grant.granted() <= (grant.receives() + grant.in_process()).max(1));
    }

    fn disconnect(&mut self) {
        let mut told = 0;
        self.requester.handle_disconnect(|_, _| told += 1);
        assert_eq!(told, self.calling.len());
        self.responder.handle_disconnect(|_| told += 1);
        assert_eq!(told, self.calling.len() + self.serving.len());
        self.receives.handle_disconnect();
        self.lost += self.calling.len() as u32;
        assert_eq!((self.receives.posted(), self.requester.available()), (0, 0));
    }
}

/// A message that no credit covers.
fn unfair(random: &mut Random) -> Vec<u8> {
    let xid = random.below(1 << 20);
    match random.below(4) {
        // It grants no more than the other Replies do: what it grants counts (8166-X-10).
        0 => Message::reply(xid, 1).bytes(),
        1 => err_chunk(xid, 9),
        2 => words(&[xid, 1, 9, DONE]),
        _ => vec![0; 12],
    }
}

/// One connection's life: replies, strays, lost Calls.
fn run(seed: u64, is_fair: bool) -> [u32; 3] {
    let mut random = Random::new(seed);
    let mut ends = [End::new(&mut random), End::new(&mut random)];
    for _ in 0..400 {
        let side = random.below(2) as usize;
        match random.below(12) {
            0..3 => ends[side].call(),
            3..6 => ends[side].answer(&mut random),
            6 => ends[side].cancel(&mut random),
            7 => ends[side].regrant(&mut random),
            8 => ends[side].requester.set_credits_requested(random.below(2 * SLOTS)),
            9 if !is_fair => {
                let stray = unfair(&mut random);
                ends[side].sent.push_back((stray, true));
            }
            _ => {
                if let Some(message) = ends[side].sent.pop_front() {
                    ends[1 - side].receive(message, is_fair);
                }
            }
        }
    }
    if random.once_in(2) {
        // All is answered, and nothing is left.
        while ends.iter().any(|end| !end.sent.is_empty() || !end.serving.is_empty()) {
            for side in [0, 1] {
                if let Some(message) = ends[side].sent.pop_front() {
                    ends[1 - side].receive(message, is_fair);
                }
                ends[side].answer(&mut random);
            }
        }
        assert!(ends.iter().all(|end| end.calling.is_empty()), "every Call was answered");
    }
    ends.iter_mut().for_each(End::disconnect);
    let [a, b] = ends;
    [a.replies + b.replies, a.strays + b.strays, a.lost + b.lost]
}

#[test]
fn every_message_finds_its_receive_in_both_directions() {
    // 8167-4.3-a 8167-4.3-b 8167-2.4-a 8167-4.1-a
    let mut sums = [0; 3];
    for seed in 0..400 {
        let counts = run(seed, true);
        sums = std::array::from_fn(|at| sums[at] + counts[at]);
    }
    let [replies, strays, lost] = sums;
    assert!(replies > 4000 && lost > 100, "{sums:?}");
    assert_eq!(strays, 0);
}

#[test]
fn a_peer_that_sends_what_it_may_not_harms_no_call() {
    // 8166-3.3.1-b 8166-X-10
    let mut strays = 0;
    for seed in 0..400 {
        strays += run(seed, false)[1];
    }
    assert!(strays > 1000, "{strays}");
}
