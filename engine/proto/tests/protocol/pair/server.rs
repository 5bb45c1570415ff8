//! The Responder's side: a driver that pulls one Read and answers one Call at a time, in any order.

use stag_proto::parameters::Parameters;
use stag_proto::responder::{CallPayload, Responder, ResponderCallId, ResponderConfig, ResponderReceived};
use stag_proto::span::Cursor;
use stag_wire::rpcrdma::Segment;

use super::program;
use super::{Link, Random};
use crate::support::limits;

#[derive(Debug)]
struct Job {
    id: ResponderCallId,
    message: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Server {
    responder: Responder,
    jobs: Vec<Job>,
    /// Receives posted and not consumed: a Send of the client that finds none would kill the connection.
    receives: u32,
    slots: u32,
    threshold: u32,
}

impl Server {
    pub(crate) fn new(random: &mut Random, slots: u32, parameters: Parameters) -> Self {
        let mut server = Self {
            responder: Responder::new(&ResponderConfig { slots, parameters, limits: limits() }),
            jobs: Vec::new(),
            receives: 0,
            slots,
            threshold: parameters.reply_threshold,
        };
        let posted = 1 + random.below(slots);
        server.post_receives(posted);
        server
    }

    fn post_receives(&mut self, count: u32) {
        self.receives += count;
        self.responder.receives_posted(count);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    pub(crate) fn check(&self) {
        assert!(self.responder.grant().check());
        assert_eq!(self.responder.grant().in_process() as usize, self.jobs.len());
        assert_eq!(self.responder.grant().receives(), self.receives);
    }

    pub(crate) fn change_credits(&mut self, random: &mut Random) {
        self.responder.set_credit_limit(random.below(self.slots + 2));
        if self.receives + (self.jobs.len() as u32) < self.slots && random.once_in(2) {
            self.post_receives(1);
        }
    }

    pub(crate) fn receive(&mut self, link: &mut Link) -> bool {
        let Some(message) = link.calls.pop_front() else { return true };
        assert!(self.receives > 0, "a Send finds no Receive");
        self.receives -= 1;
        match self.responder.handle_receive(&message) {
            ResponderReceived::Call(call) => {
                let id = call.id;
                self.jobs.push(Job { id, message });
            }
            other => panic!("our own Requester's Call is good: {other:?}"),
        }
        true
    }

    /// Pulls, runs and answers one Call. `false`: an access error ended the connection.
    pub(crate) fn work(&mut self, random: &mut Random, link: &mut Link) -> bool {
        if self.jobs.is_empty() {
            return true;
        }
        let job = self.jobs.swap_remove(random.below(self.jobs.len() as u32) as usize);
        let done = self.pull(&job, link).and_then(|stream| self.answer(random, &job, &stream, link));
        if done.is_none() {
            self.jobs.push(job);
        }
        done.is_some()
    }

    /// The Call's Payload stream before reduction.
    fn pull(&mut self, job: &Job, link: &mut Link) -> Option<Vec<u8>> {
        let call = self.responder.call(job.id, &job.message).expect("in process");
        let sent = match call.payload {
            CallPayload::Inline(stream) => stream.to_vec(),
            CallPayload::Long(len) => {
                let stream = read(link, call.long_segments())?;
                assert_eq!(stream.len(), len as usize);
                stream
            }
        };
        let mut whole = Vec::new();
        let mut at = 0;
        for chunk in call.read_chunks() {
            let place = chunk.at as usize;
            whole.extend(&sent[at..place]);
            assert_eq!(whole.len(), chunk.position as usize);
            let octets = read(link, chunk.segments())?;
            assert_eq!(octets.len(), chunk.len as usize);
            whole.extend(octets);
            whole.resize(whole.len().next_multiple_of(4), 0);
            at = place;
        }
        whole.extend(&sent[at..]);
        assert_eq!(self.responder.handle_pulled(job.id, &whole), Ok(()));
        Some(whole)
    }

    fn answer(&mut self, random: &mut Random, job: &Job, stream: &[u8], link: &mut Link) -> Option<()> {
        let call = self.responder.call(job.id, &job.message).expect("in process");
        let xid = call.xid();
        let results: Vec<Vec<u8>> = (0..)
            .zip(program::results_max(stream))
            .map(|(item, max)| program::result(random, xid, item, max))
            .collect();
        let items: Vec<u32> = results.iter().map(|result| result.len() as u32).collect();
        let reduced: Vec<bool> = (0..items.len()).map(|item| call.write_chunk(item).is_some()).collect();
        let payload = program::reply(xid, &results, &reduced);

        let form = self
            .responder
            .plan_reply(job.id, &job.message, &items, payload.len() as u32)
            .expect("the Requester made room for the largest Reply");
        for (item, result) in results.iter().enumerate() {
            if let Some(chunk) = call.write_chunk(item) {
                write(link, chunk.segments(), result)?;
            }
        }
        if form.long {
            write(link, call.reply_chunk().expect("as planned").segments(), &payload)?;
        }
        let mut message = vec![0; self.threshold as usize];
        let emitted =
            self.responder.emit_reply(job.id, &job.message, &items, &form, &mut message).expect("in process");
        message.truncate(emitted.header_len);
        if !form.long {
            message.extend(&payload);
        }
        assert!(message.len() <= self.threshold as usize);
        self.post_receives(1);
        link.replies.push_back((message, emitted.invalidate));
        Some(())
    }

    pub(crate) fn disconnect(&mut self) {
        let mut ended = 0;
        self.responder.handle_disconnect(|_| ended += 1);
        assert_eq!(ended, self.jobs.len());
        assert_eq!(self.responder.grant().in_process(), 0);
    }
}

/// Pulls a chunk.
fn read(link: &mut Link, segments: impl Iterator<Item = Segment>) -> Option<Vec<u8>> {
    let mut cursor = Cursor::new(segments);
    let mut octets = Vec::new();
    while let Some(span) = cursor.take(u32::MAX) {
        octets.extend(link.memory.read(span)?);
    }
    Some(octets)
}

/// Writes to a chunk from local pieces of 1000 octets.
fn write(link: &mut Link, segments: impl Iterator<Item = Segment>, octets: &[u8]) -> Option<()> {
    let mut cursor = Cursor::new(segments);
    for mut piece in octets.chunks(1000) {
        while !piece.is_empty() {
            let span = cursor.take(piece.len() as u32).expect("it fits, as planned");
            let (now, later) = piece.split_at(span.len as usize);
            link.memory.write(span, now)?;
            piece = later;
        }
    }
    Some(())
}
