//! Targets for the machines of `stag-proto`, against arbitrary peers.
//!
//! The input is a script: one octet for the settings, then steps. A step is an octet that says what happens,
//! and for a message another with its length, and the message.

use stag_proto::parameters::Parameters;
use stag_proto::requester::{
    self, CallForm, ChunkLists, EndedCall, ExposedMemory, Requester, RequesterCallId,
};
use stag_proto::responder::{self, CallPayload, ChunkLimits, RefusedCall, Responder};
use stag_wire::rpcrdma::{Header, ReadSegment, Segment, header_len};

/// Octets of the longest Reply that is pulled.
const PULL_LEN_MAX: u32 = 4096;

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
    /// In the making; `left`: it was sent on an earlier connection.
    Building {
        left: bool,
    },
    Sent {
        left: bool,
    },
    /// Cancelled, and its Reply has not come.
    Cancelled,
    /// Over but for its fences: what the end of the connection says of it.
    Ended(EndedCall),
    /// Its connection ended: it waits for the next.
    Interrupted {
        left: bool,
    },
}

impl Step {
    fn holds_credit(self) -> bool {
        matches!(self, Step::Building { .. } | Step::Sent { .. } | Step::Cancelled)
    }

    /// What the end of the connection says of a Call.
    fn outcome(self) -> EndedCall {
        match self {
            Step::Building { left } | Step::Interrupted { left } => not_sent(left),
            Step::Sent { .. } => EndedCall::MaybeExecuted,
            Step::Cancelled => EndedCall::Cancelled,
            Step::Ended(outcome) => outcome,
        }
    }

    /// What becomes of a Call that is kept when its connection ends.
    fn kept(self) -> Option<Step> {
        match self {
            Step::Building { left } | Step::Interrupted { left } => Some(Step::Interrupted { left }),
            Step::Sent { .. } => Some(Step::Interrupted { left: true }),
            Step::Cancelled | Step::Ended(_) => None,
        }
    }
}

/// What is said of a Call that was not sent on this connection.
fn not_sent(left: bool) -> EndedCall {
    if left { EndedCall::MaybeExecuted } else { EndedCall::NotSent }
}

/// A Requester, and what its driver knows.
struct Client {
    requester: Requester,
    calls: Vec<(RequesterCallId, Step)>,
    connected: bool,
}

/// A Requester whose peer sends what it likes, through connections that end and come back. Each Call ends once, and is
/// never lost; credits are conserved.
pub fn requester(data: &[u8]) {
    let mut script = Script(data);
    let Some(settings) = script.octet() else { return };
    let slots = 1 + u32::from(settings >> 4 & 7);
    let mut requester = Requester::new(&requester::RequesterConfig {
        slots,
        parameters: parameters(settings),
        credits_requested: slots,
        segments_max: 8,
        xid_seed: 1,
    });
    // Of which settings the peer may expose Replies.
    requester.set_pull_limit(if settings & 4 != 0 { PULL_LEN_MAX } else { 0 });
    let mut client = Client { requester, calls: Vec::new(), connected: true };
    while let Some(what) = script.octet() {
        let chosen = usize::from(what >> 4);
        match what & 7 {
            0 | 1 => {
                if let Some(call) = client.begin() {
                    client.emit(call, what >> 3);
                }
            }
            2..=4 => {
                let mut message = script.message().to_vec();
                if let Some((call, _)) = client.calls.get(chosen) {
                    aim(&mut message, call.xid());
                }
                let invalidated = (what & 8 != 0).then_some(u32::from(what & 3));
                if client.receive(&message, invalidated) {
                    break;
                }
            }
            5 => client.cancel(chosen),
            6 => client.fence(chosen),
            _ => client.other(what >> 3, &mut script),
        }
        let Client { requester, calls, connected } = &client;
        let held = calls.iter().filter(|(_, step)| step.holds_credit()).count();
        assert_eq!(requester.window().in_flight() as usize, held, "credits are conserved");
        assert!(calls.len() <= slots as usize);
        let free =
            if *connected { requester.window().available().min(slots - calls.len() as u32) } else { 0 };
        assert_eq!(requester.available(), free, "slots are conserved");
    }
    let Client { mut requester, mut calls, .. } = client;
    requester.handle_disconnect(|call, outcome| {
        let at = calls.iter().position(|(known, _)| *known == call).expect("told once");
        let (_, step) = calls.swap_remove(at);
        assert_eq!(outcome, step.outcome());
    });
    assert!(calls.is_empty(), "a Call was lost");
    assert_eq!(requester.window().in_flight(), 0);
}

impl Client {
    fn begin(&mut self) -> Option<RequesterCallId> {
        let call = self.requester.begin()?;
        self.calls.push((call, Step::Building { left: false }));
        Some(call)
    }

    /// Sends a Call that is in the making.
    fn emit(&mut self, call: RequesterCallId, kind: u8) {
        let entry = self.calls.iter_mut().find(|(known, _)| *known == call);
        let Some((_, step)) = entry else { return };
        let Step::Building { left } = *step else { return };
        emit(&mut self.requester, call, kind);
        *step = Step::Sent { left };
    }

    fn cancel(&mut self, chosen: usize) {
        let Some((call, step)) = self.calls.get_mut(chosen) else { return };
        let memory = self.requester.cancel(*call);
        match step {
            Step::Sent { .. } => *step = Step::Cancelled,
            Step::Building { .. } | Step::Interrupted { .. } => {
                assert_eq!(memory, ExposedMemory::Safe, "nothing of it is exposed");
                self.calls.remove(chosen);
            }
            Step::Cancelled | Step::Ended(_) => {}
        }
    }

    fn fence(&mut self, chosen: usize) {
        let Some((call, step)) = self.calls.get(chosen).copied() else { return };
        while let Some(handle) = self.requester.poll_fence(call) {
            assert!(matches!(step, Step::Cancelled | Step::Ended(_)), "fenced while the peer may use it");
            let memory = self.requester.handle_fenced(call, handle).expect("awaited");
            if memory == ExposedMemory::Safe && step != Step::Cancelled {
                self.calls.remove(chosen);
                break;
            }
        }
    }

    /// What happens rarely: connections that end, and Calls that leave on the next, or do not.
    fn other(&mut self, what: u8, script: &mut Script<'_>) {
        match what & 7 {
            0 => {
                if let Some(call) = self.requester.begin() {
                    assert_eq!(self.requester.abandon(call), ExposedMemory::Safe);
                }
            }
            1 => {
                let _ = self.begin();
            }
            2 => self.interrupt(script.octet().unwrap_or(0)),
            3 => {
                if !self.connected {
                    self.requester.handle_reconnect(parameters(what >> 3));
                    self.connected = true;
                    assert_eq!(
                        (self.requester.window().granted(), self.requester.window().in_flight()),
                        (1, 0)
                    );
                }
            }
            which => self.go_on(which, script),
        }
    }

    /// One of the steps by which a Call leaves that is in the making or interrupted.
    fn go_on(&mut self, which: u8, script: &mut Script<'_>) {
        let chosen = usize::from(script.octet().unwrap_or(0));
        let Some((call, step)) = self.calls.get_mut(chosen) else { return };
        let call = *call;
        match which {
            4 => {
                let has_credit = self.connected && self.requester.window().available() > 0;
                let resumed = self.requester.resume(call);
                match *step {
                    Step::Interrupted { left } if has_credit => {
                        assert!(resumed);
                        *step = Step::Building { left };
                    }
                    _ => assert!(!resumed),
                }
            }
            5 => {
                self.requester.postpone(call);
                if let Step::Building { left } = *step {
                    *step = Step::Interrupted { left };
                }
            }
            6 => {
                let (Step::Building { left } | Step::Sent { left }) = *step else { return };
                match self.requester.abandon(call) {
                    ExposedMemory::Safe => drop(self.calls.remove(chosen)),
                    ExposedMemory::Exposed => *step = Step::Ended(not_sent(left)),
                }
            }
            _ => self.emit(call, script.octet().unwrap_or(0)),
        }
    }

    /// The connection ends; of `keeps`, each bit says whether the driver wants to keep one Call.
    fn interrupt(&mut self, keeps: u8) {
        let mut kept = Vec::new();
        let calls = &mut self.calls;
        self.requester.handle_interruption(|call, outcome| {
            let at = calls.iter().position(|(known, _)| *known == call).expect("told once");
            let (_, step) = calls.swap_remove(at);
            assert_eq!(outcome, step.outcome());
            let keep = keeps >> (call.index() & 7) & 1 == 1;
            if let Some(step) = step.kept().filter(|_| keep) {
                kept.push((call, step));
            }
            keep
        });
        assert!(self.calls.is_empty(), "a Call was lost");
        self.calls = kept;
        self.connected = false;
    }

    /// `true`: the connection has to be closed.
    fn receive(&mut self, message: &[u8], invalidated: Option<u32>) -> bool {
        let (call, memory, ended) = match self.requester.handle_receive(message, invalidated) {
            requester::RequesterReceived::Reply(reply) => {
                let room: u32 = reply.write_lens().sum();
                assert!(room <= 3 * 64);
                if let requester::ReplyPayload::Long(len) = reply.payload {
                    assert!((1..=64).contains(&len));
                }
                (reply.call, reply.memory, EndedCall::Replied)
            }
            requester::RequesterReceived::Failed { call, memory, .. } => (call, memory, EndedCall::Failed),
            requester::RequesterReceived::Late { call, memory } => (call, memory, EndedCall::Cancelled),
            requester::RequesterReceived::Exposed(reply) => match reply.pulled {
                requester::Pulled::Pull { call, len, .. } => {
                    assert!((1..=PULL_LEN_MAX).contains(&len));
                    assert_eq!(reply.segments().map(|entry| entry.segment.length).sum::<u32>(), len);
                    let mut done = [0; 16];
                    assert_eq!(self.requester.emit_done(reply.xid, &mut done), Ok(16));
                    (call, self.requester.handle_pulled(call), EndedCall::Replied)
                }
                requester::Pulled::Tell { call: Some(call), failure: Some(_), memory } => {
                    (call, memory, EndedCall::Failed)
                }
                requester::Pulled::Tell { call: Some(call), failure: None, memory } => {
                    (call, memory, EndedCall::Cancelled)
                }
                requester::Pulled::Tell { call: None, .. } => return false,
            },
            requester::RequesterReceived::Dropped(_) => return false,
            requester::RequesterReceived::Close(_) => {
                assert!(invalidated.is_some());
                return true;
            }
        };
        let at = self.calls.iter().position(|(known, _)| *known == call).expect("a Call ends once");
        let step = &mut self.calls[at].1;
        match ended {
            EndedCall::Cancelled => assert_eq!(*step, Step::Cancelled),
            _ => assert!(matches!(step, Step::Sent { .. })),
        }
        match memory {
            ExposedMemory::Safe => drop(self.calls.remove(at)),
            ExposedMemory::Exposed => *step = Step::Ended(ended),
        }
        false
    }
}

/// Writes the header of a Call, with chunks as the bits of `kind` say.
fn emit(requester: &mut Requester, call: RequesterCallId, kind: u8) {
    let segment = |handle: u32| Segment { handle, length: 64, offset: u64::from(handle) << 12 };
    let position = if kind & 2 == 0 { 64 } else { 0 };
    let reads = [ReadSegment { position, segment: segment(0) }];
    let reads = if kind & 1 == 0 { &[][..] } else { &reads };
    let (first, second) = ([segment(1), segment(2)], [segment(2)]);
    // Without a Read chunk that has a Position, the first Write chunk may have one segment: most do.
    let first = if kind & 3 == 2 { &first[..1] } else { &first };
    let chunks: [&[Segment]; 3] = [first, &[], &second];
    let writes = &chunks[..usize::from(kind >> 2 & 3)];
    let room = [segment(3)];
    let reply = (kind & 16 != 0).then_some(&room[..]);
    let counts = writes.iter().map(|chunk| chunk.len());
    let form = CallForm {
        long: !reads.is_empty() && position == 0,
        reply_chunk: reply.is_some(),
        header_len: header_len(reads.len(), counts, reply.map(<[Segment]>::len)) as u32,
    };
    let mut out = [0; 1024];
    let lists = ChunkLists { reads, writes, reply };
    let len = requester.emit_call(call, &form, &lists, &mut out).expect("as planned");
    assert_eq!(Header::parse(&out[..len]).expect("a good header").0.xid(), call.xid());
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

/// A Responder whose peer sends what it likes. Each Call is answered once, what is pulled is bounded, and the
/// grant never breaks its promise.
pub fn responder(data: &[u8]) {
    let mut script = Script(data);
    let Some(settings) = script.octet() else { return };
    let slots = 1 + u32::from(settings >> 4 & 7);
    let limits =
        ChunkLimits { segments: 12, read_chunks: 3, write_chunks: 3, chunk_len: 1 << 16, pull_len: 1 << 17 };
    let mut responder =
        Responder::new(&responder::ResponderConfig { slots, parameters: parameters(settings), limits });
    responder.receives_posted(slots);
    let mut open: Vec<(responder::ResponderCallId, &[u8])> = Vec::new();
    while let Some(what) = script.octet() {
        match what & 3 {
            0 | 1 => {
                let message = script.message();
                match responder.handle_receive(message) {
                    responder::ResponderReceived::Call(call) => open.push((call.id, message)),
                    responder::ResponderReceived::Error(error) => {
                        assert_eq!(error.as_bytes()[..8], message[..8], "same xid, same version");
                    }
                    responder::ResponderReceived::Dropped(_) => {}
                    responder::ResponderReceived::Close(_) => break,
                }
                responder.receives_posted(1);
            }
            2 => {
                if let Some((id, message)) = open.pop() {
                    answer(&mut responder, id, message, what >> 2, &limits);
                }
            }
            _ if what & 0x80 == 0 => responder.set_credit_limit(u32::from(what >> 2)),
            _ => {
                let chosen = usize::from(what >> 4 & 7);
                if let Some((id, _)) = open.get(chosen).copied()
                    && end(&mut responder, id, what >> 2, script.message())
                {
                    open.remove(chosen);
                }
            }
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

/// Ends a Call without a Reply: `false` when what was pulled for it is its Payload stream.
fn end(responder: &mut Responder, id: responder::ResponderCallId, kind: u8, pulled: &[u8]) -> bool {
    match kind & 3 {
        0 => assert!(responder.discard(id)),
        1 => assert!(responder.refuse(id, RefusedCall::Ineligible).is_some()),
        _ => match responder.handle_pulled(id, pulled) {
            Ok(()) => return false,
            Err(error) => assert!(error.is_some(), "it was in process"),
        },
    }
    assert!(!responder.discard(id), "it is over");
    true
}

fn answer(
    responder: &mut Responder,
    id: responder::ResponderCallId,
    message: &[u8],
    kind: u8,
    limits: &ChunkLimits,
) {
    let call = responder.call(id, message).expect("in process");
    let stream_len = match call.payload {
        CallPayload::Inline(stream) => stream.len() as u32,
        CallPayload::Long(len) => {
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
        Err(why) => assert!(responder.refuse(id, RefusedCall::Reply(why)).is_some()),
    }
    assert!(responder.call(id, message).is_none(), "answered once");
}

fn sum(segments: impl Iterator<Item = Segment>) -> u64 {
    segments.map(|segment| u64::from(segment.length)).sum()
}
