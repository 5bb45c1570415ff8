//! How a queue pair takes messages out of its ring: shown where they are, or copied into Receives.

use std::collections::VecDeque;
use std::mem::MaybeUninit;

use stag_memory::{Buf, Shared};

use super::Ours;
use super::connection::{Phase, QueuePair, fill, is_within, read, write};
use super::exposure::{Access, Bind};
use super::link::Link;
use super::ring::{BadLength, Header, Kind, plain_header};
use super::scattered::receive_scattered;
use crate::plain::PLAIN_LEN;
use crate::{
    Completed, Completion, DisconnectReason, Handle, MemoryInReach, PLAIN_LEN_MAX, PlainMessage, ReadPart,
    RemoteSegment, TakeShown, Taken, WHOLE_LEN_MAX, WholeMessage, WorkError,
};

/// Records taken from one ring before the next ring gets its turn.
const BURST: usize = 64;

/// What a harvest did without completions.
#[derive(Default)]
pub(super) struct InPlace {
    /// Messages that were taken where they arrived.
    pub(super) taken: usize,
    /// One of them was answered, or the peer's memory was used: the caller must ring the doorbell.
    pub(super) needs_doorbell: bool,
}

/// What is left to a harvest.
struct HarvestLimits {
    /// Messages.
    left: usize,
    /// BINDs that come alone: they give the user nothing, but take time.
    binds: usize,
    /// Nothing was left to a Receive yet, which nothing overtakes.
    may_show: bool,
}

/// A record that is not shown as a message without chunks.
struct OtherRecord {
    header: Header,
    /// The queue pair is in use, and nothing waits to be sent.
    is_open: bool,
}

impl QueuePair {
    /// Takes messages from the ring, at most `room` and a burst of them, and shows to `take` those that can be taken where
    /// they are. Says how many were taken so, and whether the caller must ring the doorbell.
    #[inline]
    pub(super) fn harvest(
        &mut self,
        completions: &mut VecDeque<Completion>,
        room: usize,
        take: &mut impl TakeShown,
        ours: &Ours,
        in_place: &mut InPlace,
    ) -> Result<(), DisconnectReason> {
        let is_open = matches!(self.phase, Phase::Open) && self.pending.is_empty();
        let mut limits =
            HarvestLimits { left: room.min(BURST), binds: 4 * BURST, may_show: self.scatter.is_none() };
        let result = loop {
            if limits.left == 0 {
                break Ok(());
            }
            let Some(link) = &mut self.link else { return Ok(()) };
            let header = match link.consumer.peek() {
                Ok(Some(header)) => header,
                Ok(None) => break Ok(()),
                Err(_) => break Err(DisconnectReason::PeerViolation("a record with an impossible length")),
            };
            if limits.may_show && header.is_plain() && (4..=PLAIN_LEN_MAX).contains(&header.len()) {
                if self.receives.is_empty() {
                    break Ok(());
                }
                limits.left -= 1;
                let mut copy = MaybeUninit::<[u64; PLAIN_LEN_MAX / 8]>::uninit();
                // A copy, because the peer can write to the ring.
                // SAFETY: `header` is what `peek` returned, and the copy has room for it, which this fills.
                let stream = unsafe {
                    link.consumer.payload(header, copy.as_mut_ptr().cast(), PLAIN_LEN_MAX);
                    std::slice::from_raw_parts(copy.as_ptr().cast::<u8>(), header.len())
                };
                link.consumer.advance(header);
                let has_space = is_open && link.find_space(PLAIN_LEN_MAX);
                // SAFETY: there is room for it, and nothing is pushed before `take` returns.
                let space = has_space.then(|| unsafe { link.producer.space(PLAIN_LEN_MAX) });
                let credits = u32::from_be(header.aux());
                match take.take_plain(PlainMessage { queue_pair: self.id, credits, stream, space }) {
                    Taken::Done => in_place.taken += 1,
                    Taken::Answered { credits, len } => {
                        assert!(has_space && len <= PLAIN_LEN_MAX, "an answer of {len} octets without space");
                        link.send_built(Kind::Plain, credits.to_be(), len);
                        in_place.taken += 1;
                        in_place.needs_doorbell = true;
                    }
                    Taken::AnsweredWhole { .. } | Taken::AnsweredGathered { .. } => {
                        unreachable!("a plain message has a plain answer")
                    }
                    Taken::No => {
                        limits.may_show = false;
                        if let Err(reason) = self.receive_plain(stream, header.aux(), completions) {
                            break Err(reason);
                        }
                    }
                }
                continue;
            }
            let record = OtherRecord { header, is_open };
            match self.harvest_other(&record, &mut limits, completions, take, ours, in_place) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(reason) => break Err(reason),
            }
        };
        if let Some(link) = &mut self.link
            && link.consumer.tell(link.ours.head())
        {
            link.wake(&self.socket);
        }
        result
    }

    /// Takes a record that is not of a message without chunks, or that is not shown. `false`: the harvest is over, and it stays.
    // Not inline: it would slow down messages without chunks.
    #[inline(never)]
    fn harvest_other(
        &mut self,
        &OtherRecord { header, is_open }: &OtherRecord,
        limits: &mut HarvestLimits,
        completions: &mut VecDeque<Completion>,
        take: &mut impl TakeShown,
        ours: &Ours,
        in_place: &mut InPlace,
    ) -> Result<bool, DisconnectReason> {
        let Some(kind) = header.kind() else {
            return Err(DisconnectReason::PeerViolation("a record of an unknown kind"));
        };
        if let Some(access) = standing_access(kind) {
            let Some(link) = &mut self.link else { unreachable!("it has the record") };
            if limits.binds == 0 {
                return Ok(false);
            }
            limits.binds -= 1;
            return if bind(link, header, access) { Ok(true) } else { Err(BAD_BIND) };
        }
        if self.receives.is_empty() {
            return Ok(false);
        }
        limits.left -= 1;
        if limits.may_show && kind != Kind::Plain && header.len() <= bind_len(kind) + WHOLE_LEN_MAX {
            let message = WholeRecord { kind, header, is_open };
            limits.may_show = self.show_whole(&message, completions, take, ours, in_place)?;
        } else {
            limits.may_show = false;
            self.receive_record(kind, header, completions)?;
        }
        Ok(true)
    }

    /// Puts a message without chunks that was shown, and not taken, into the next Receive, which is there. `credits` are in the order
    /// of the wire.
    // Not inline: it would slow down the messages that are taken in place.
    #[inline(never)]
    fn receive_plain(
        &mut self,
        stream: &[u8],
        credits: u32,
        completions: &mut VecDeque<Completion>,
    ) -> Result<(), DisconnectReason> {
        let Some((id, mut buf)) = self.receives.pop_front() else { unreachable!("there is one") };
        let len = PLAIN_LEN + stream.len();
        let is_long = len > buf.capacity();
        if !is_long {
            buf.set_len(len);
            buf[..PLAIN_LEN].copy_from_slice(&plain_header(stream, credits));
            buf[PLAIN_LEN..].copy_from_slice(stream);
        }
        let result = if is_long { Err(WorkError::Length) } else { Ok(()) };
        let completed = Completed::Receive { buf, invalidated: None, exposed: None };
        completions.push_back(Completion { queue_pair: self.id, id, completed, result });
        if is_long { Err(DisconnectReason::Work(WorkError::Length)) } else { Ok(()) }
    }

    /// Puts the message of a record into the next Receive, which is there.
    #[inline(never)]
    fn receive_record(
        &mut self,
        kind: Kind,
        header: Header,
        completions: &mut VecDeque<Completion>,
    ) -> Result<(), DisconnectReason> {
        let Some(link) = &mut self.link else { unreachable!("it has the record") };
        let Some((id, mut buf)) = self.receives.pop_front() else { unreachable!("there is one") };
        let room = buf.capacity();
        let skip = bind_len(kind);
        if let Some(access) = bound_access(kind)
            && !insert_bind(link, header, access)
        {
            self.receives.push_front((id, buf));
            return Err(BAD_BIND);
        }
        let message = match &mut self.scatter {
            None if skip > 0 => {
                // The BIND is there, so it is no shorter.
                let len = header.len() - skip;
                if len <= room {
                    // SAFETY: `header` is what `peek` returned, and the rest of its payload is `len` long; the buffer has `room`
                    // writable bytes, ours alone.
                    unsafe { link.consumer.part(header, skip, buf.as_mut_ptr(), len) };
                    Ok(len)
                } else {
                    Err(BadLength)
                }
            }
            // SAFETY: `header` is what `peek` returned; the buffer has `room` writable bytes, ours alone.
            None => unsafe { link.consumer.message(header, buf.as_mut_ptr(), room) },
            Some(scatter) => receive_scattered(&link.consumer, header, skip, &mut buf, scatter),
        };
        let Ok(len) = message else {
            completions.push_back(Completion {
                queue_pair: self.id,
                id,
                completed: Completed::Receive { buf, invalidated: None, exposed: None },
                result: Err(WorkError::Length),
            });
            return Err(DisconnectReason::Work(WorkError::Length));
        };
        buf.set_len(len);
        link.consumer.advance(header);
        // Two pushes, so that what most messages do not have is not copied either.
        if kind == Kind::SendInvalidate {
            let handle = Handle(header.aux());
            let exposed = self.exposures.invalidated(handle);
            // One that we fenced while the message was on its way is dead already: no news.
            let invalidated = exposed.is_some().then_some(handle);
            let completed = Completed::Receive { buf, invalidated, exposed };
            completions.push_back(Completion { queue_pair: self.id, id, completed, result: Ok(()) });
        } else {
            let completed = Completed::Receive { buf, invalidated: None, exposed: None };
            completions.push_back(Completion { queue_pair: self.id, id, completed, result: Ok(()) });
        }
        Ok(())
    }

    /// Shows a message with chunks to `take` where it arrived, and puts it into the next Receive, which is there, if it was not
    /// taken: then it returns `false`.
    // `inline(always)`: there is one caller.
    #[inline(always)]
    fn show_whole(
        &mut self,
        record: &WholeRecord,
        completions: &mut VecDeque<Completion>,
        take: &mut impl TakeShown,
        ours: &Ours,
        in_place: &mut InPlace,
    ) -> Result<bool, DisconnectReason> {
        let &WholeRecord { kind, header, is_open } = record;
        let Some(link) = &mut self.link else { unreachable!("it has the record") };
        let mut copy = MaybeUninit::<[u64; SHOWN_LEN_MAX / 8]>::uninit();
        // A copy, because the peer can write to the ring.
        // SAFETY: `header` is what `peek` returned, and the copy has room for it, which this fills.
        let mut octets = unsafe {
            link.consumer.payload(header, copy.as_mut_ptr().cast(), SHOWN_LEN_MAX);
            std::slice::from_raw_parts(copy.as_ptr().cast::<u8>(), header.len())
        };
        link.consumer.advance(header);
        if let Some(access) = bound_access(kind) {
            let Some((bind, message)) = octets.split_first_chunk() else { return Err(BAD_BIND) };
            if link.binds.insert(header.aux(), access, Bind::decode(*bind)).is_err() {
                return Err(BAD_BIND);
            }
            octets = message;
        }
        let has_space = is_open && link.find_space(WHOLE_LEN_MAX);
        // SAFETY: there is room for it, and nothing is pushed before `take` returns.
        let space = has_space.then(|| unsafe { link.producer.space(WHOLE_LEN_MAX) });
        let (mut invalidated, mut exposed) = (None, None);
        if kind == Kind::SendInvalidate {
            let handle = Handle(header.aux());
            exposed = self.exposures.invalidated(handle);
            // One that we fenced while the message was on its way is dead already: no news.
            invalidated = exposed.is_some().then_some(handle);
        }
        let mut memory = Reach { link: &mut *link, ours, is_open };
        let taken = take.take_whole(WholeMessage {
            queue_pair: self.id,
            octets,
            space,
            invalidated,
            exposed: &mut exposed,
            memory: &mut memory,
        });
        // The doorbell ends the span of what was read or written, also if nothing is sent.
        in_place.needs_doorbell |= link.is_in_span();
        match taken {
            Taken::Done => in_place.taken += 1,
            Taken::Answered { .. } => unreachable!("a message with chunks has a whole answer"),
            Taken::AnsweredGathered { .. } => unreachable!("its Receive is one buffer"),
            Taken::AnsweredWhole { len, invalidate } => {
                assert!(has_space && len <= WHOLE_LEN_MAX, "an answer of {len} octets without space");
                in_place.taken += 1;
                in_place.needs_doorbell = true;
                let (kind, aux) = match invalidate {
                    None => (Kind::Send, 0),
                    Some(handle) if link.binds.forget(handle) => (Kind::SendInvalidate, handle.0),
                    Some(_) => return Err(DisconnectReason::Work(WorkError::RemoteAccess)),
                };
                link.send_built(kind, aux, len);
            }
            Taken::No => {
                let Some((id, mut buf)) = self.receives.pop_front() else { unreachable!("there is one") };
                let is_long = octets.len() > buf.capacity();
                if !is_long {
                    buf.set_len(octets.len());
                    buf.copy_from_slice(octets);
                }
                let result = if is_long { Err(WorkError::Length) } else { Ok(()) };
                let completed = Completed::Receive { buf, invalidated, exposed };
                completions.push_back(Completion { queue_pair: self.id, id, completed, result });
                if is_long {
                    return Err(DisconnectReason::Work(WorkError::Length));
                }
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A message with chunks in the ring.
struct WholeRecord {
    kind: Kind,
    header: Header,
    /// The queue pair is in use, and nothing waits to be sent.
    is_open: bool,
}

/// The peer's memory, while one of its messages is shown.
struct Reach<'a> {
    link: &'a mut Link,
    ours: &'a Ours,
    /// The queue pair is in use, and nothing waits to be sent.
    is_open: bool,
}

impl MemoryInReach for Reach<'_> {
    #[inline]
    fn read(&mut self, target: &mut Buf, parts: &[ReadPart]) -> bool {
        self.is_open
            && self.ours.region(target.location().arena).is_some()
            && is_within(parts, target)
            && read(self.link, target, parts).is_ok()
    }

    #[inline]
    fn fill(&mut self, target: &mut Buf, source: RemoteSegment) -> bool {
        self.is_open
            && self.ours.region(target.location().arena).is_some()
            && fill(self.link, target, source).is_ok()
    }

    #[inline]
    fn write(&mut self, source: &Shared, target: RemoteSegment) -> bool {
        self.is_open
            && self.ours.region(source.location().arena).is_some()
            && write(self.link, source, target).is_ok()
    }
}

/// Octets of the longest record that is shown: a message behind a BIND.
const SHOWN_LEN_MAX: usize = Bind::LEN + WHOLE_LEN_MAX;

/// Why a connection ends whose peer announces what makes no sense.
const BAD_BIND: DisconnectReason = DisconnectReason::PeerViolation("an exposure outside of its arena");

/// What a BIND allows, in a record that is nothing else.
#[inline(always)]
fn standing_access(kind: Kind) -> Option<Access> {
    match kind {
        Kind::BindRead => Some(Access::Read),
        Kind::BindWrite => Some(Access::Write),
        _ => None,
    }
}

/// What the BIND before a message allows, in the record of one that has it.
#[inline(always)]
fn bound_access(kind: Kind) -> Option<Access> {
    match kind {
        Kind::SendBindRead => Some(Access::Read),
        Kind::SendBindWrite => Some(Access::Write),
        _ => None,
    }
}

/// Octets of a record before its message.
#[inline(always)]
fn bind_len(kind: Kind) -> usize {
    if bound_access(kind).is_some() { Bind::LEN } else { 0 }
}

/// Takes a record that is a BIND and nothing else. `false`: it makes no sense.
// Not inline: most come in one record with a message.
#[inline(never)]
fn bind(link: &mut Link, header: Header, access: Access) -> bool {
    let is_bound = header.len() == Bind::LEN && insert_bind(link, header, access);
    link.consumer.advance(header);
    is_bound
}

/// Takes the BIND that a record begins with, and leaves the record. `false`: it makes no sense.
fn insert_bind(link: &mut Link, header: Header, access: Access) -> bool {
    let mut bytes = [0; Bind::LEN];
    if header.len() < Bind::LEN {
        return false;
    }
    // SAFETY: `header` is what `peek` returned, and its payload is no shorter than the array.
    unsafe { link.consumer.part(header, 0, bytes.as_mut_ptr(), Bind::LEN) };
    link.binds.insert(header.aux(), access, Bind::decode(bytes)).is_ok()
}
