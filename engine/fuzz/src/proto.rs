//! Targets for the machines of `stag-proto`, against arbitrary peers.
//!
//! The input is a script: one octet for the settings, then steps. A step is an octet that says what happens,
//! and for a message another with its length, and the message.

use stag_proto::parameters::Parameters;
use stag_proto::requester::{self, CallId, ChunkLists, Form, Memory, Outcome, Requester};
use stag_proto::responder::{self, Limits, Payload, Refused, Responder};
use stag_wire::rpcrdma::{Header, ReadSegment, Segment, header_len};

/// The steps of a script.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn octet(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn message(&mut self) -> &'a [u8] {
        let len = usize::from(self.octet().unwrap_or(0)).min(self.0.len());
        let (message, rest) = self.0.split_at(len);
        self.0 = rest;
        message
    }
}

fn parameters(settings: u8) -> Parameters {
    let threshold = if settings & 1 == 0 { 1024 } else { 4096 };
    Parameters {
        call_threshold: threshold,
        reply_threshold: threshold,
        remote_invalidation: settings & 2 != 0,
    }
}

/// What the Requester's driver knows of a Call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Sent,
    /// Cancelled, and its Reply has not come.
    Cancelled,
    /// Over but for its fences.
    Ended,
}

/// A Requester whose peer sends what it likes. Each Call ends once, and is never lost.
pub fn requester(data: &[u8]) {
    let mut script = Script(data);
    let Some(settings) = script.octet() else { return };
    let slots = 1 + u32::from(settings >> 4 & 7);
    let mut requester = Requester::new(&requester::Config {
        slots,
        parameters: parameters(settings),
        credits_requested: slots,
        segments_max: 8,
        xid_seed: 1,
    });
    let mut calls: Vec<(CallId, Step)> = Vec::new();
    while let Some(what) = script.octet() {
        let chosen = usize::from(what >> 4);
        match what & 7 {
            0 | 1 => calls.extend(send(&mut requester, what >> 3).map(|call| (call, Step::Sent))),
            2..=4 => {
                let mut message = script.message().to_vec();
                if let Some((call, _)) = calls.get(chosen) {
                    aim(&mut message, call.xid());
                }
                let invalidated = (what & 8 != 0).then_some(u32::from(what & 3));
                if receive(&mut requester, &mut calls, &message, invalidated) {
                    break;
                }
            }
            5 => {
                if let Some((call, step)) = calls.get_mut(chosen) {
                    let _ = requester.cancel(*call);
                    if *step == Step::Sent {
                        *step = Step::Cancelled;
                    }
                }
            }
            6 => {
                if let Some((call, step)) = calls.get(chosen).copied() {
                    while let Some(handle) = requester.poll_fence(call) {
                        assert_ne!(step, Step::Sent, "fenced while the peer may use it");
                        let memory = requester.handle_fenced(call, handle).expect("awaited");
                        if memory == Memory::Safe && step == Step::Ended {
                            calls.remove(chosen);
                            break;
                        }
                    }
                }
            }
            _ => {
                if let Some(call) = requester.begin() {
                    assert_eq!(requester.abandon(call), Memory::Safe);
                }
            }
        }
        let held = calls.iter().filter(|(_, step)| *step != Step::Ended).count();
        assert_eq!(requester.window().in_flight() as usize, held, "credits are conserved");
        assert!(calls.len() <= slots as usize);
    }
    requester.handle_disconnect(|call, outcome| {
        let at = calls.iter().position(|(known, _)| *known == call).expect("told once");
        let (_, step) = calls.swap_remove(at);
        match step {
            Step::Sent => assert_eq!(outcome, Outcome::MaybeExecuted),
            Step::Cancelled => assert_eq!(outcome, Outcome::Cancelled),
            Step::Ended => assert_ne!(outcome, Outcome::MaybeExecuted),
        }
    });
    assert!(calls.is_empty(), "a Call was lost");
}

/// Sends a Call with chunks as the bits of `kind` say.
fn send(requester: &mut Requester, kind: u8) -> Option<CallId> {
    let call = requester.begin()?;
    let segment = |handle: u32| Segment { handle, length: 64, offset: u64::from(handle) << 12 };
    let position = if kind & 2 == 0 { 64 } else { 0 };
    let reads = [ReadSegment { position, segment: segment(0) }];
    let reads = if kind & 1 == 0 { &[][..] } else { &reads };
    let (first, second) = ([segment(1), segment(2)], [segment(2)]);
    let chunks: [&[Segment]; 3] = [&first, &[], &second];
    let writes = &chunks[..usize::from(kind >> 2 & 3)];
    let room = [segment(3)];
    let reply = (kind & 16 != 0).then_some(&room[..]);
    let counts = writes.iter().map(|chunk| chunk.len());
    let form = Form {
        long: !reads.is_empty() && position == 0,
        reply_chunk: reply.is_some(),
        header_len: header_len(reads.len(), counts, reply.map(<[Segment]>::len)) as u32,
    };
    let mut out = [0; 1024];
    let lists = ChunkLists { reads, writes, reply };
    let len = requester.emit_call(call, &form, &lists, &mut out).expect("as planned");
    assert_eq!(Header::parse(&out[..len]).expect("a good header").0.xid(), call.xid());
    Some(call)
}

/// Puts `xid` in the place of the message's own, wherever that stands.
fn aim(message: &mut [u8], xid: u32) {
    let Some(own) = message.first_chunk::<4>().copied() else { return };
    for word in message.as_chunks_mut::<4>().0 {
        if *word == own {
            *word = xid.to_be_bytes();
        }
    }
}

/// `true`: the connection has to be closed.
fn receive(
    requester: &mut Requester,
    calls: &mut Vec<(CallId, Step)>,
    message: &[u8],
    invalidated: Option<u32>,
) -> bool {
    let (call, memory, from) = match requester.handle_receive(message, invalidated) {
        requester::Received::Reply(reply) => {
            let room: u32 = reply.write_lens().sum();
            assert!(room <= 3 * 64);
            if let requester::Payload::Long(len) = reply.payload {
                assert!((1..=64).contains(&len));
            }
            (reply.call, reply.memory, Step::Sent)
        }
        requester::Received::Failed { call, memory, .. } => (call, memory, Step::Sent),
        requester::Received::Late { call, memory } => (call, memory, Step::Cancelled),
        requester::Received::Dropped(_) => return false,
        requester::Received::Close(_) => {
            assert!(invalidated.is_some());
            return true;
        }
    };
    let at = calls.iter().position(|(known, _)| *known == call).expect("a Call ends once");
    assert_eq!(calls[at].1, from);
    match memory {
        Memory::Safe => drop(calls.remove(at)),
        Memory::Exposed => calls[at].1 = Step::Ended,
    }
    false
}

/// A Responder whose peer sends what it likes. Each Call is answered once, what is pulled is bounded, and the
/// grant never breaks its promise.
pub fn responder(data: &[u8]) {
    let mut script = Script(data);
    let Some(settings) = script.octet() else { return };
    let slots = 1 + u32::from(settings >> 4 & 7);
    let limits =
        Limits { segments: 12, read_chunks: 3, write_chunks: 3, chunk_len: 1 << 16, pull_len: 1 << 17 };
    let mut responder =
        Responder::new(&responder::Config { slots, parameters: parameters(settings), limits });
    responder.receives_posted(slots);
    let mut open: Vec<(responder::CallId, &[u8])> = Vec::new();
    while let Some(what) = script.octet() {
        match what & 3 {
            0 | 1 => {
                let message = script.message();
                match responder.handle_receive(message) {
                    responder::Received::Call(call) => open.push((call.id, message)),
                    responder::Received::Error(error) => {
                        assert_eq!(error.as_bytes()[..8], message[..8], "same xid, same version");
                    }
                    responder::Received::Dropped(_) => {}
                    responder::Received::Close(_) => break,
                }
                responder.receives_posted(1);
            }
            2 => {
                if let Some((id, message)) = open.pop() {
                    answer(&mut responder, id, message, what >> 2, &limits);
                }
            }
            _ => responder.set_credit_limit(u32::from(what >> 2)),
        }
        assert!(responder.grant().check());
        assert_eq!(responder.grant().in_process() as usize, open.len());
    }
    responder.handle_disconnect(|id| {
        let at = open.iter().position(|(known, _)| *known == id).expect("told once");
        open.swap_remove(at);
    });
    assert!(open.is_empty(), "a Call was lost");
}

fn answer(responder: &mut Responder, id: responder::CallId, message: &[u8], kind: u8, limits: &Limits) {
    let call = responder.call(id, message).expect("in process");
    let stream_len = match call.payload {
        Payload::Inline(stream) => stream.len() as u32,
        Payload::Long(len) => {
            assert_eq!(sum(call.long_segments()), u64::from(len));
            len
        }
    };
    let mut pulled = 0;
    let mut last = (0, 0);
    for chunk in call.read_chunks() {
        assert!(chunk.position > last.0 && chunk.at >= last.1 && chunk.at <= stream_len);
        assert_eq!(sum(chunk.segments()), u64::from(chunk.len));
        pulled += chunk.len;
        last = (chunk.position, chunk.at);
    }
    assert!(pulled <= limits.pull_len);

    let items = [u32::from(kind & 7) * 20, u32::from(kind >> 3) * 20];
    let payload_len = 24 << (kind >> 3);
    match responder.plan_reply(id, message, &items, payload_len) {
        Ok(form) => {
            let mut out = [0; 4096];
            let emitted = responder.emit_reply(id, message, &items, &form, &mut out).expect("in process");
            assert_eq!(emitted.header_len, form.header_len as usize);
            let (header, _) = Header::parse(&out).expect("a good header");
            let inline = if form.long { 0 } else { payload_len };
            assert!(form.header_len + inline <= responder.parameters().reply_threshold);
            assert_eq!(header.reply_chunk().map_or(0, |chunk| chunk.total_len() as u32) > 0, form.long);
        }
        Err(why) => assert!(responder.refuse(id, Refused::Reply(why)).is_some()),
    }
    assert!(responder.call(id, message).is_none(), "answered once");
}

fn sum(segments: impl Iterator<Item = Segment>) -> u64 {
    segments.map(|segment| u64::from(segment.length)).sum()
}
