//! Right answers to a client's Calls: the results of the scratch service, sent in the form that the Call asks
//! for.

use stag_wire::cm_private_data::PrivateData;
use stag_wire::rpcrdma::{INLINE_THRESHOLD_DEFAULT, Segment, procedure};

use crate::check::{Stop, fail};
use crate::message::{DraftMessage, SECOND, SeenMessage, Words};
use crate::operation::{REPLY, SeenItem, ToldCharacteristics, characteristic, place};
use crate::raw::RECEIVE_LEN;
pub use crate::scratch::ScratchAnswers;
use crate::scratch::eligible;
use crate::sent_group::{DraftGroup, SentGroup, TRANSMISSIONS_MAX};
use crate::served::{HOLD, ServedClient};

/// Octets of a Call that is handed to the service.
const CALL_LEN_MAX: u64 = (1 << 20) + (64 << 10);

/// Octets of the longest Reply that [`ServedClient::reply_to`] makes: every client takes Replies of this
/// length.
const SHORT_LEN_MAX: usize = 512;

/// A Reply for a group, and what it is made of.
#[derive(Clone, Debug)]
pub struct PlacedReply {
    /// To be sent.
    pub reply: DraftGroup,
    /// Transmissions that the Call allows.
    pub count_max: u32,
}

impl ServedClient {
    /// The octets of a Call, with what it left elsewhere.
    fn stream_of(&mut self, call: &SeenMessage) -> Result<Vec<u8>, Stop> {
        if let Some(mut group) = self.groups.get(&call.fixed.xid).cloned() {
            for (item, data) in group.request.items.iter().zip(&mut group.data) {
                if item.place == place::EXPLICIT {
                    *data = self.read_all(&item.segments)?;
                }
            }
            return Ok(group.stream());
        }
        let mut stream = call.payload().to_vec();
        let mut reads = call.reads().to_vec();
        reads.sort_by_key(|(position, _)| *position);
        for same in reads.chunk_by(|one, other| one.0 == other.0) {
            let segments: Vec<Segment> = same.iter().map(|(_, segment)| *segment).collect();
            let mut data = self.read_all(&segments)?;
            data.resize(data.len().next_multiple_of(4), 0);
            let at = (same[0].0 as usize).min(stream.len());
            stream.splice(at..at, data);
        }
        Ok(stream)
    }

    fn read_all(&mut self, segments: &[Segment]) -> Result<Vec<u8>, Stop> {
        let len: u64 = segments.iter().map(|segment| u64::from(segment.length)).sum();
        if len > CALL_LEN_MAX {
            return fail(format!("{len} octets to be read for a Call"));
        }
        let mut octets = Vec::new();
        for segment in segments.iter().filter(|segment| segment.length > 0) {
            match self.peer().read(*segment, HOLD * 30) {
                Ok(read) => octets.extend(read),
                Err(why) => return fail(format!("what the Call offers cannot be read: {why}")),
            }
        }
        Ok(octets)
    }

    /// The Call's octets, and the RPC Reply: SUCCESS to NULL, what the service says to what it serves, PROG_UNAVAIL to anything else.
    pub fn executed(&mut self, call: &SeenMessage) -> Result<(Vec<u8>, Vec<u8>), Stop> {
        let xid = call.fixed.xid;
        // The sixth word of a Call is its procedure. A long Call is no NULL.
        let is_null = call.payload().get(20..24) == Some(&[0; 4]);
        let plain = Words::default().words(&[xid, 1, 0, 0, 0, u32::from(!is_null)]).0;
        if is_null {
            return Ok((call.payload().to_vec(), plain));
        }
        if let Some((of, stream, reply)) = &self.answering.last
            && *of == xid
        {
            return Ok((stream.clone(), reply.clone()));
        }
        let stream = self.stream_of(call)?;
        let reply = self.answering.execute(&stream).unwrap_or(plain);
        self.answering.last = Some((xid, stream.clone(), reply.clone()));
        Ok((stream, reply))
    }

    /// The Reply as a message without data elsewhere: all chunks unused. It has the results only if they are short.
    pub fn reply_to(&mut self, call: &SeenMessage, credits: u32) -> DraftMessage {
        let reply = self.executed(call).map(|(_, reply)| reply).unwrap_or_default();
        if (1..=SHORT_LEN_MAX).contains(&reply.len()) {
            return self.inline(call, credits, reply);
        }
        let unavailable = Words::default().words(&[call.fixed.xid, 1, 0, 0, 0, 1]).0;
        self.inline(call, credits, unavailable)
    }

    /// A Reply with this Payload stream: all chunks unused.
    fn inline(&self, call: &SeenMessage, credits: u32, payload: Vec<u8>) -> DraftMessage {
        let mut reply = DraftMessage::of(call.fixed.xid, Words(payload));
        reply.fixed.credits = credits;
        // The Call says the version, where there are two.
        if self.may_be_version2() && call.fixed.version == SECOND {
            (reply.fixed.version, reply.direction) = (SECOND, Some(REPLY));
        }
        reply.writes = call.writes().to_vec();
        reply.reply = call.reply_chunk().map(<[_]>::to_vec);
        for segment in reply.writes.iter_mut().flatten().chain(reply.reply.iter_mut().flatten()) {
            segment.length = 0;
        }
        reply
    }

    /// Octets of the longest message that the client takes.
    fn message_len_max(&self, call: &SeenMessage) -> usize {
        let octets = if call.fixed.version == SECOND {
            self.told().and_then(|told| told.word(characteristic::RECEIVE_SIZE)).unwrap_or(1024)
        } else {
            PrivateData::find(&self.requested)
                .map_or(INLINE_THRESHOLD_DEFAULT, |theirs| theirs.receive_size.octets())
        };
        (octets as usize).min(RECEIVE_LEN)
    }

    /// What the client told of itself on this connection.
    #[must_use]
    pub fn told(&self) -> Option<ToldCharacteristics> {
        self.characteristics.as_deref().and_then(ToldCharacteristics::of_initial)
    }

    /// Answers a Call as it should be, with this grant.
    pub fn answer_with(&mut self, call: &SeenMessage, credits: u32) -> Result<(), Stop> {
        let (stream, payload) = self.executed(call)?;
        let group = self.groups.get(&call.fixed.xid).cloned();
        self.note_answered_call(call, credits);
        match group {
            Some(group) => {
                let mut placed = self.placed(call, credits, &group, (&stream, payload))?;
                self.send_placed(&mut placed)
            }
            None => self.answer_base(call, credits, &stream, payload),
        }
    }

    /// Answers a Call by a base message: its data in the Write chunk, or all of it in the Reply chunk.
    fn answer_base(
        &mut self,
        call: &SeenMessage,
        credits: u32,
        stream: &[u8],
        payload: Vec<u8>,
    ) -> Result<(), Stop> {
        let mut reply = self.inline(call, credits, payload);
        if let (Some((at, len)), Some(chunk)) = (eligible(stream, &reply.payload), call.writes().first())
            && room(chunk) >= len as u64
        {
            let end = at + len.next_multiple_of(4);
            let data: Vec<u8> = reply.payload.splice(at..end, []).take(len).collect();
            reply.writes[0] = self.write_all(chunk, &data)?;
        }
        if reply.octets().len() > self.message_len_max(call)
            && let Some(chunk) = call.reply_chunk()
            && room(chunk) >= reply.payload.len() as u64
        {
            reply.reply = Some(self.write_all(chunk, &reply.payload)?);
            reply.fixed.procedure = procedure::NOMSG;
            reply.payload.clear();
        }
        if reply.octets().len() > self.message_len_max(call) {
            // The client offers no room for it.
            let error = [call.fixed.xid, call.fixed.version, credits, procedure::ERROR, 2];
            return self.send(&Words::default().words(&error).0, None);
        }
        self.send(&reply.octets(), None)
    }

    /// Writes into a chunk, front to back. Returns its segments as they are used.
    fn write_all(&mut self, chunk: &[Segment], data: &[u8]) -> Result<Vec<Segment>, Stop> {
        let (mut used, mut rest) = (Vec::new(), data);
        for segment in chunk {
            let (now, later) = rest.split_at(rest.len().min(segment.length as usize));
            rest = later;
            used.push(Segment { length: now.len() as u32, ..*segment });
            if !now.is_empty()
                && let Err(why) = self.peer().write(*segment, now, HOLD * 30)
            {
                return fail(format!("what the Call offers cannot be written: {why}"));
            }
        }
        Ok(used)
    }

    /// The Reply to a Call that came as a group: items as the Call directs them.
    pub fn placed(
        &mut self,
        call: &SeenMessage,
        credits: u32,
        group: &SentGroup,
        (stream, mut payload): (&[u8], Vec<u8>),
    ) -> Result<PlacedReply, Stop> {
        let mut found = eligible(stream, &payload);
        let (mut items, mut in_targets) = (Vec::new(), Vec::new());
        let told = self.told();
        let has_targets = told
            .as_ref()
            .and_then(ToldCharacteristics::structure)
            .is_some_and(|(_, parts)| parts.iter().any(|part| part.1));
        for direction in &group.request.directions {
            let none = SeenItem {
                displacement: 0,
                len: 0,
                place: place::NO_ITEM,
                offset: 0,
                numbers: Vec::new(),
                segments: Vec::new(),
            };
            let Some((at, len)) = found.take() else {
                items.push(none);
                continue;
            };
            let mut item = SeenItem { displacement: at as u32, len: len as u32, ..none };
            let is_by_message = match direction.place {
                place::TARGETS => true,
                place::EXPLICIT => false,
                place::BY_SIZE => has_targets && item.len < direction.threshold,
                _ => has_targets,
            };
            if item.len < direction.min_len {
                item.place = place::TOO_SHORT;
            } else {
                let data: Vec<u8> = payload.splice(at..at + len.next_multiple_of(4), []).take(len).collect();
                if is_by_message {
                    (item.place, in_targets) = (place::TARGETS, data);
                } else {
                    item.place = place::EXPLICIT;
                    item.segments = self.write_all(&direction.segments, &data)?;
                }
            }
            items.push(item);
        }
        let count_max = (group.request.response_receives.saturating_add(1)).min(TRANSMISSIONS_MAX);
        let reply = DraftGroup {
            xid: call.fixed.xid,
            credits,
            items,
            payload,
            data: in_targets,
            part_max: RECEIVE_LEN,
            offset: 0,
        };
        Ok(PlacedReply { reply, count_max })
    }

    /// The transmissions of a Reply.
    pub fn transmissions(&self, placed: &mut PlacedReply) -> Result<Vec<Vec<u8>>, Stop> {
        placed.reply.transmissions(self.told().as_ref(), placed.count_max).or_else(fail)
    }

    /// Sends a Reply as a group.
    pub fn send_placed(&mut self, placed: &mut PlacedReply) -> Result<(), Stop> {
        for octets in self.transmissions(placed)? {
            self.send(&octets, None)?;
        }
        Ok(())
    }
}

/// Octets of a chunk.
fn room(chunk: &[Segment]) -> u64 {
    chunk.iter().map(|segment| u64::from(segment.length)).sum()
}
