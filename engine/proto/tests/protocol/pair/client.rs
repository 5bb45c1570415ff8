//! The Requester's side: a driver that reduces what it likes, and checks the Replies.

use std::collections::HashMap;

use stag_proto::parameters::Parameters;
use stag_proto::requester::{
    ChunkLists, EndedCall, ExposedMemory, ReplyPayload, Requester, RequesterCallId, RequesterConfig,
    RequesterReceived, Shape,
};
use stag_wire::rpcrdma::{ReadSegment, Segment};

use super::program::{self, Arguments};
use super::{Counts, Link, Random};

/// The part of a Call's life that the driver knows of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Sent,
    Replied,
    Cancelled,
}

/// What a Reply told, kept until the memory is back.
#[derive(Debug)]
struct Reply {
    /// The inline Payload.
    inline: Option<Vec<u8>>,
    /// Octets in the Reply chunk.
    long_len: usize,
    /// Octets in each Write chunk.
    write_lens: Vec<u32>,
}

#[derive(Debug)]
struct Call {
    id: RequesterCallId,
    step: Step,
    arguments: Arguments,
    writes: Vec<Vec<Segment>>,
    reply_chunk: Vec<Segment>,
    /// Memory that came back from fences.
    returned: HashMap<u32, Vec<u8>>,
    /// Fences begun and not done.
    fencing: Vec<u32>,
    reply: Option<Reply>,
}

#[derive(Debug)]
pub(crate) struct Client {
    requester: Requester,
    calls: HashMap<usize, Call>,
    parameters: Parameters,
    pub(crate) counts: Counts,
}

impl Client {
    pub(crate) fn new(random: &mut Random, slots: u32, parameters: Parameters) -> Self {
        let requester = Requester::new(&RequesterConfig {
            slots,
            parameters,
            credits_requested: 1 + random.below(slots),
            segments_max: 32,
            xid_seed: random.next() as u32,
        });
        Self { requester, calls: HashMap::new(), parameters, counts: Counts::default() }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.calls.is_empty()
    }

    pub(crate) fn check(&self) {
        let window = self.requester.window();
        let held = self.calls.values().filter(|call| call.step != Step::Replied).count();
        // A cancelled Call is forgotten here when it is safe; its credit may be out for longer.
        assert!(window.in_flight() as usize <= held + self.counts.cancelled as usize);
    }

    pub(crate) fn check_at_rest(&self) {
        assert_eq!(self.requester.window().in_flight(), 0);
        assert!(self.requester.available() >= 1);
        assert_eq!(self.requester.available(), self.requester.window().available());
    }

    pub(crate) fn start_call(&mut self, random: &mut Random, link: &mut Link) -> bool {
        let Some(id) = self.requester.begin() else { return true };
        let arguments = program::arguments(random, id.xid());
        let reduced: Vec<bool> =
            arguments.items.iter().map(|item| !item.is_empty() && random.once_in(2)).collect();
        // Write chunks for the first results, some of them empty.
        let with_chunk = random.below(arguments.results_max.len() as u32 + 1) as usize;
        let in_chunk: Vec<bool> =
            arguments.results_max[..with_chunk].iter().map(|&max| max > 0 && !random.once_in(4)).collect();

        let (stream, mut reads) = reduce(random, link, &arguments, &reduced);
        let writes: Vec<Vec<Segment>> = in_chunk
            .iter()
            .zip(&arguments.results_max)
            .map(|(&used, &max)| match used {
                true => link.memory.expose(random, &vec![0; max as usize], true),
                false => Vec::new(),
            })
            .collect();
        let reply_max: u32 = 12
            + (0..)
                .zip(&arguments.results_max)
                .map(|(item, max)| {
                    4 + if in_chunk.get(item) == Some(&true) { 0 } else { max.next_multiple_of(4) }
                })
                .sum::<u32>();

        // The chunks for the Payload streams are exposed before it is known whether they are needed, so
        // that their segments can be counted.
        let long = link.memory.expose(random, &stream, false);
        let reply_chunk = link.memory.expose(random, &vec![0; reply_max as usize], true);
        let counts: Vec<u32> = writes.iter().map(|chunk| chunk.len() as u32).collect();
        let form = self.requester.plan(&Shape {
            payload_len: stream.len() as u32,
            read_segments: reads.len() as u32,
            write_chunks: &counts,
            reply_payload_len_max: reply_max,
            prefer_long_call: random.once_in(8),
            long_call_segments: long.len() as u32,
            reply_chunk_segments: reply_chunk.len() as u32,
        });
        let exposed = |segments: &[Segment]| {
            let mut handles: Vec<u32> = segments.iter().map(|segment| segment.handle).collect();
            handles.dedup();
            handles
        };
        let Ok(form) = form else {
            // Too many segments for so small a threshold: it fails locally.
            let reads: Vec<_> = reads.iter().map(|read| read.segment).collect();
            for chunk in [&reads, &long, &reply_chunk].into_iter().chain(&writes) {
                exposed(chunk).into_iter().for_each(|handle| drop(link.memory.fence(handle)));
            }
            assert_eq!(self.requester.abandon(id), ExposedMemory::Safe);
            return true;
        };
        self.counts.read_chunks += reads.len() as u32;
        self.counts.write_chunks += in_chunk.iter().filter(|used| **used).count() as u32;
        match form.long {
            true => reads.extend(long.iter().map(|&segment| ReadSegment { position: 0, segment })),
            false => exposed(&long).into_iter().for_each(|handle| drop(link.memory.fence(handle))),
        }
        self.counts.long_calls += u32::from(form.long);
        if !form.reply_chunk {
            exposed(&reply_chunk).into_iter().for_each(|handle| drop(link.memory.fence(handle)));
        }

        let chunks: Vec<&[Segment]> = writes.iter().map(Vec::as_slice).collect();
        let reply = form.reply_chunk.then_some(reply_chunk.as_slice());
        let lists = ChunkLists { reads: &reads, writes: &chunks, reply };
        let mut message = vec![0; self.parameters.call_threshold as usize];
        let len = self.requester.emit_call(id, &form, &lists, &mut message).expect("as planned");
        assert_eq!(len, form.header_len as usize);
        message.truncate(len);
        if !form.long {
            message.extend(&stream);
        }
        assert!(message.len() <= self.parameters.call_threshold as usize);
        link.calls.push_back(message);
        let call = Call {
            id,
            step: Step::Sent,
            arguments,
            writes,
            reply_chunk,
            returned: HashMap::new(),
            fencing: Vec::new(),
            reply: None,
        };
        assert!(self.calls.insert(id.index(), call).is_none(), "a slot is used by one Call");
        true
    }

    pub(crate) fn receive(&mut self, _random: &mut Random, link: &mut Link) -> bool {
        let Some((message, invalidate)) = link.replies.pop_front() else { return true };
        let returned = invalidate.and_then(|handle| Some((handle, link.memory.invalidate(handle)?)));
        self.counts.invalidated += u32::from(invalidate.is_some());
        match self.requester.handle_receive(&message, invalidate) {
            RequesterReceived::Reply(reply) => {
                let call = self.calls.get_mut(&reply.call.index()).expect("a Call in flight");
                assert_eq!((call.id, call.step), (reply.call, Step::Sent));
                let (inline, long_len) = match reply.payload {
                    ReplyPayload::Inline(payload) => (Some(payload.to_vec()), 0),
                    ReplyPayload::Long(len) => (None, len as usize),
                };
                self.counts.long_replies += u32::from(inline.is_none());
                call.step = Step::Replied;
                call.reply = Some(Reply { inline, long_len, write_lens: reply.write_lens().collect() });
                call.returned.extend(returned);
                if reply.memory == ExposedMemory::Safe {
                    self.complete(reply.call.index());
                }
            }
            RequesterReceived::Late { call: id, memory } => {
                if let Some(call) = self.calls.get_mut(&id.index())
                    && call.id == id
                {
                    assert_eq!(call.step, Step::Cancelled);
                    call.returned.extend(returned);
                    // Its fence, if one was under way, is not awaited any more.
                    call.fencing.retain(|handle| Some(*handle) != invalidate);
                    if memory == ExposedMemory::Safe {
                        self.complete(id.index());
                    }
                }
            }
            other => panic!("our own Responder's Reply is good: {other:?}"),
        }
        true
    }

    /// Begins or ends one fence.
    pub(crate) fn fence(&mut self, random: &mut Random, link: &mut Link) -> bool {
        let indices: Vec<usize> = self.calls.keys().copied().collect();
        for index in indices {
            let call = self.calls.get_mut(&index).expect("just listed");
            if let Some(handle) = self.requester.poll_fence(call.id) {
                assert_ne!(call.step, Step::Sent, "the Responder may still use it");
                call.fencing.push(handle);
            }
            if call.fencing.is_empty() || random.once_in(3) {
                continue;
            }
            let handle = call.fencing.swap_remove(random.below(call.fencing.len() as u32) as usize);
            call.returned.insert(handle, link.memory.fence(handle));
            match self.requester.handle_fenced(call.id, handle) {
                Some(ExposedMemory::Safe) => self.complete(index),
                Some(ExposedMemory::Exposed) => {}
                None => panic!("a fence that was asked for is awaited"),
            }
        }
        true
    }

    pub(crate) fn cancel(&mut self, random: &mut Random) {
        let sent: Vec<usize> =
            self.calls.values().filter(|call| call.step == Step::Sent).map(|call| call.id.index()).collect();
        if sent.is_empty() {
            return;
        }
        let index = sent[random.below(sent.len() as u32) as usize];
        let call = self.calls.get_mut(&index).expect("just listed");
        call.step = Step::Cancelled;
        self.counts.cancelled += 1;
        if self.requester.cancel(call.id) == ExposedMemory::Safe {
            self.complete(index);
        }
    }

    /// All memory of a Call is back: what is in it must be what the server put there.
    fn complete(&mut self, index: usize) {
        let call = self.calls.remove(&index).expect("a Call ends once");
        assert!(call.fencing.is_empty());
        let Some(reply) = call.reply else {
            assert_eq!(call.step, Step::Cancelled);
            return;
        };
        let placed =
            call.writes.iter().zip(&reply.write_lens).map(|(chunk, &len)| {
                (!chunk.is_empty()).then(|| gather(&call.returned, chunk, len as usize))
            });
        let stream = reply.inline.unwrap_or_else(|| {
            let stream = gather(&call.returned, &call.reply_chunk, reply.long_len);
            assert!(call.id.is_reply(&stream));
            stream
        });
        let results = program::results(&stream, &placed.collect::<Vec<_>>());
        assert_eq!(results.len(), call.arguments.results_max.len());
        for (item, result) in results.iter().enumerate() {
            let name = u64::from(call.id.xid()) << 8 | 0x80 | item as u64;
            assert_eq!(*result, program::octets(name, result.len()));
        }
        self.counts.replied += 1;
    }

    pub(crate) fn disconnect(&mut self, link: &mut Link) {
        self.counts.lost += 1;
        link.memory.disconnect();
        let calls = &mut self.calls;
        let mut cancelled = 0;
        self.requester.handle_disconnect(|id, outcome| match calls.remove(&id.index()) {
            Some(call) => {
                assert_eq!(call.id, id);
                let expected = match call.step {
                    Step::Sent => EndedCall::MaybeExecuted,
                    Step::Replied => EndedCall::Replied,
                    Step::Cancelled => EndedCall::Cancelled,
                };
                assert_eq!(outcome, expected);
            }
            None => {
                assert_eq!(outcome, EndedCall::Cancelled, "only these outlive their memory");
                cancelled += 1;
            }
        });
        assert!(calls.is_empty(), "every Call has an outcome");
        assert!(cancelled <= self.counts.cancelled);
        assert_eq!(self.requester.window().in_flight(), 0);
    }
}

/// Takes the items to reduce out of the stream, and exposes them.
fn reduce(
    random: &mut Random,
    link: &mut Link,
    arguments: &Arguments,
    reduced: &[bool],
) -> (Vec<u8>, Vec<ReadSegment>) {
    let mut stream = Vec::new();
    let mut reads = Vec::new();
    let mut at = 0;
    for (item, _) in arguments.items.iter().zip(reduced).filter(|(_, reduced)| **reduced) {
        stream.extend(&arguments.stream[at..item.start]);
        at = item.end.next_multiple_of(4);
        // With its roundup or without (8166-3.4.5.2-a).
        let end = if random.once_in(2) { item.end } else { at };
        let chunk = link.memory.expose(random, &arguments.stream[item.start..end], false);
        let position = item.start as u32;
        reads.extend(chunk.into_iter().map(|segment| ReadSegment { position, segment }));
    }
    stream.extend(&arguments.stream[at..]);
    (stream, reads)
}

/// The first `len` octets of a chunk whose memory is back.
fn gather(returned: &HashMap<u32, Vec<u8>>, chunk: &[Segment], len: usize) -> Vec<u8> {
    let mut octets = Vec::new();
    let mut handles: Vec<u32> = chunk.iter().map(|segment| segment.handle).collect();
    handles.dedup();
    for handle in handles {
        octets.extend(&returned[&handle]);
    }
    octets.truncate(len);
    assert_eq!(octets.len(), len);
    octets
}
