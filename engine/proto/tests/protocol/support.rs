//! What the tests share: messages by hand, and machines with usual settings.

use stag_proto::parameters::Parameters;
use stag_proto::requester::{self, CallForm, ChunkLists, ExposedMemory, Requester, Shape};
use stag_proto::responder::{self, ChunkLimits, Responder};
use stag_wire::rpcrdma::{ReadSegment, Segment};

/// Words in network order.
pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Octets that are different everywhere.
pub(crate) fn octets(salt: u32, len: u32) -> Vec<u8> {
    (0..len)
        .map(|at| (salt.wrapping_mul(31).wrapping_add(at).wrapping_mul(0x9e37_79b1) >> 24) as u8)
        .collect()
}

/// Puts items into a Payload stream, where they belong in the virtual one.
pub(crate) fn assemble(payload: &[u8], items: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let mut stream = Vec::new();
    let mut rest = payload;
    for (at, item) in items {
        let (before, behind) = rest.split_at(*at as usize - stream.len());
        stream.extend(before);
        stream.extend(item);
        stream.resize(stream.len().next_multiple_of(4), 0);
        rest = behind;
    }
    stream.extend(rest);
    stream
}

pub(crate) const MSG: u32 = 0;
pub(crate) const NOMSG: u32 = 1;
pub(crate) const MSGP: u32 = 2;
pub(crate) const DONE: u32 = 3;
pub(crate) const ERROR: u32 = 4;
pub(crate) const CALL: u32 = 0;
pub(crate) const REPLY: u32 = 1;

/// A message, field by field, right or wrong.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) xid: u32,
    pub(crate) version: u32,
    pub(crate) credits: u32,
    pub(crate) procedure: u32,
    pub(crate) reads: Vec<ReadSegment>,
    pub(crate) writes: Vec<Vec<Segment>>,
    pub(crate) reply: Option<Vec<Segment>>,
    pub(crate) payload: Vec<u8>,
}

impl Message {
    pub(crate) fn new(xid: u32, credits: u32, msg_type: u32) -> Self {
        Self {
            xid,
            version: 1,
            credits,
            procedure: MSG,
            reads: Vec::new(),
            writes: Vec::new(),
            reply: None,
            payload: words(&[xid, msg_type, 2, 100_003, 3, 0, 0, 0, 0, 0]),
        }
    }

    /// A NULL Call.
    pub(crate) fn call(xid: u32) -> Self {
        Self::new(xid, 32, CALL)
    }

    /// A Reply that grants `credits`.
    pub(crate) fn reply(xid: u32, credits: u32) -> Self {
        Self::new(xid, credits, REPLY)
    }

    /// The message without its Payload stream.
    pub(crate) fn nomsg(mut self) -> Self {
        self.procedure = NOMSG;
        self.payload.clear();
        self
    }

    pub(crate) fn read(mut self, position: u32, segment: Segment) -> Self {
        self.reads.push(ReadSegment { position, segment });
        self
    }

    pub(crate) fn write(mut self, chunk: &[Segment]) -> Self {
        self.writes.push(chunk.to_vec());
        self
    }

    pub(crate) fn reply_chunk(mut self, chunk: &[Segment]) -> Self {
        self.reply = Some(chunk.to_vec());
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = vec![self.xid, self.version, self.credits, self.procedure];
        let put = |out: &mut Vec<u32>, segment: &Segment| {
            out.extend([
                segment.handle,
                segment.length,
                (segment.offset >> 32) as u32,
                segment.offset as u32,
            ]);
        };
        for read in &self.reads {
            out.extend([1, read.position]);
            put(&mut out, &read.segment);
        }
        out.push(0);
        for chunk in &self.writes {
            out.extend([1, chunk.len() as u32]);
            chunk.iter().for_each(|segment| put(&mut out, segment));
        }
        out.push(0);
        match &self.reply {
            None => out.push(0),
            Some(chunk) => {
                out.extend([1, chunk.len() as u32]);
                chunk.iter().for_each(|segment| put(&mut out, segment));
            }
        }
        let mut bytes = words(&out);
        bytes.extend(&self.payload);
        bytes
    }
}

/// An RDMA_ERROR with ERR_CHUNK.
pub(crate) fn err_chunk(xid: u32, credits: u32) -> Vec<u8> {
    words(&[xid, 1, credits, ERROR, 2])
}

/// An RDMA_ERROR with ERR_VERS.
pub(crate) fn err_vers(xid: u32, version: u32, credits: u32, low: u32, high: u32) -> Vec<u8> {
    words(&[xid, version, credits, ERROR, 1, low, high])
}

pub(crate) fn segment(handle: u32, length: u32) -> Segment {
    Segment { handle, length, offset: u64::from(handle) << 20 }
}

pub(crate) fn read_segment(position: u32, handle: u32, length: u32) -> ReadSegment {
    ReadSegment { position, segment: segment(handle, length) }
}

pub(crate) fn parameters(call_threshold: u32, reply_threshold: u32, remote_invalidation: bool) -> Parameters {
    Parameters { call_threshold, reply_threshold, remote_invalidation }
}

pub(crate) fn requester_with(slots: u32, parameters: Parameters) -> Requester {
    Requester::new(&requester::RequesterConfig {
        slots,
        parameters,
        credits_requested: slots,
        segments_max: 32,
        xid_seed: 0x5eed,
    })
}

/// A Requester that has been granted all its slots.
pub(crate) fn requester(slots: u32) -> Requester {
    warm(requester_with(slots, parameters(1024, 1024, true)), slots)
}

/// Gets `requester` out of its first credit, with a NULL Call.
pub(crate) fn warm(mut requester: Requester, credits: u32) -> Requester {
    let call = send_null(&mut requester);
    let reply = Message::reply(call.xid(), credits).bytes();
    let requester::RequesterReceived::Reply(reply) = requester.handle_receive(&reply, None) else {
        panic!("the first Call is answered")
    };
    assert_eq!(reply.memory, ExposedMemory::Safe);
    requester
}

/// Begins and emits a NULL Call.
pub(crate) fn send_null(requester: &mut Requester) -> requester::RequesterCallId {
    let call = requester.begin().expect("a credit");
    let form = requester.plan(&Shape { payload_len: 40, ..Shape::default() }).expect("a NULL Call fits");
    requester.emit_call(call, &form, &ChunkLists::default(), &mut [0; 1024]).expect("a header");
    call
}

/// Begins and emits a Call with `lists`, and returns its header.
pub(crate) fn send(
    requester: &mut Requester,
    lists: &ChunkLists<'_>,
) -> (requester::RequesterCallId, Vec<u8>) {
    let call = requester.begin().expect("a credit");
    let mut out = vec![0; 4096];
    let len = requester.emit_call(call, &form_of(lists), lists, &mut out).expect("a header");
    out.truncate(len);
    (call, out)
}

/// The form that `lists` stand for.
pub(crate) fn form_of(lists: &ChunkLists<'_>) -> CallForm {
    let writes = lists.writes.iter().map(|chunk| chunk.len());
    let len = stag_wire::rpcrdma::header_len(lists.reads.len(), writes, lists.reply.map(<[Segment]>::len));
    CallForm {
        long: lists.reads.iter().any(|read| read.position == 0),
        reply_chunk: lists.reply.is_some(),
        header_len: len as u32,
    }
}

/// Fences all that a Call exposed.
pub(crate) fn fence_all(requester: &mut Requester, call: requester::RequesterCallId) -> Vec<u32> {
    let mut fenced = Vec::new();
    while let Some(handle) = requester.poll_fence(call) {
        fenced.push(handle);
    }
    for (nth, &handle) in (1..).zip(&fenced) {
        let memory = if nth == fenced.len() { ExposedMemory::Safe } else { ExposedMemory::Exposed };
        assert_eq!(requester.handle_fenced(call, handle), Some(memory));
    }
    fenced
}

pub(crate) fn limits() -> ChunkLimits {
    ChunkLimits { segments: 64, read_chunks: 8, write_chunks: 8, chunk_len: 1 << 20, pull_len: 1 << 21 }
}

pub(crate) fn responder_with(slots: u32, parameters: Parameters) -> Responder {
    let mut responder = Responder::new(&responder::ResponderConfig { slots, parameters, limits: limits() });
    responder.receives_posted(slots);
    responder
}

/// A Responder whose Receives are posted and whose peer has all its slots granted.
pub(crate) fn responder(slots: u32) -> Responder {
    let mut responder = responder_with(slots, parameters(1024, 1024, true));
    let message = Message::call(0xffff_fff0).bytes();
    let id = receive_call(&mut responder, &message);
    answer(&mut responder, id, &message);
    responder
}

/// Feeds a message that is a Call.
pub(crate) fn receive_call(responder: &mut Responder, message: &[u8]) -> responder::ResponderCallId {
    match responder.handle_receive(message) {
        responder::ResponderReceived::Call(call) => call.id,
        other => panic!("not a Call: {other:?}"),
    }
}

/// Answers a Call with a short Reply, posts its Receive again, and returns the header.
pub(crate) fn answer(responder: &mut Responder, id: responder::ResponderCallId, message: &[u8]) -> Vec<u8> {
    let form = responder.plan_reply(id, message, &[], 24).expect("a short Reply fits");
    let mut out = vec![0; 1024];
    let emitted = responder.emit_reply(id, message, &[], &form, &mut out).expect("the Call is in process");
    responder.receives_posted(1);
    out.truncate(emitted.header_len);
    out
}

/// Feeds a message that is answered with an RDMA_ERROR, posts its Receive again, and returns the answer.
pub(crate) fn receive_error(responder: &mut Responder, message: &[u8]) -> Vec<u8> {
    match responder.handle_receive(message) {
        responder::ResponderReceived::Error(error) => {
            responder.receives_posted(1);
            error.as_bytes().to_vec()
        }
        other => panic!("no RDMA_ERROR: {other:?}"),
    }
}

/// Feeds a message that is dropped, and posts its Receive again.
pub(crate) fn receive_dropped(responder: &mut Responder, message: &[u8]) -> responder::DroppedCall {
    match responder.handle_receive(message) {
        responder::ResponderReceived::Dropped(why) => {
            responder.receives_posted(1);
            why
        }
        other => panic!("not dropped: {other:?}"),
    }
}

/// Numbers from a seed (xorshift64*). The same seed, the same numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        (((self.next() >> 32) * u64::from(bound)) >> 32) as u32
    }

    /// True once in `odds` times.
    pub(crate) fn once_in(&mut self, odds: u32) -> bool {
        self.below(odds) == 0
    }
}
