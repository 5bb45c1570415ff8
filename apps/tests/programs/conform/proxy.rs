//! A proxy between a client and a server of ours that breaks one chosen rule, and otherwise hands on messages and data.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use stag_conform::message::{DraftMessage, SeenMessage};
use stag_conform::open::{RawFabric, open};
use stag_conform::raw::{PeerEvent, RawPeer};
use stag_memory::PageChoice;
use stag_wire::rpcrdma::{Segment, procedure};

/// How long one side is looked at, before the other is.
const LOOK: Duration = Duration::from_micros(200);

/// How long a connection or a transfer may take.
pub(crate) const WAIT: Duration = Duration::from_secs(20);

/// Octets of a segment that is handed on; what is longer goes as it is, to be refused.
const SEGMENT_LEN_MAX: u32 = 1 << 20;

/// The rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// None.
    Right,
    /// Nothing is granted.
    GrantZero,
    /// The xid of a Reply's header is not the Call's.
    ReplyXid,
    /// Every version is served.
    AnyVersion,
    /// ERR_VERS has version 1 in its header, whatever was refused.
    ErrVersOwnVersion,
    /// ERR_VERS says 2 to 2.
    ErrVersRange,
    /// ERR_CHUNK for RDMA_DONE.
    DoneAnswered,
    /// ERR_CHUNK for RDMA_ERROR.
    ErrorAnswered,
    /// Messages that are too short are answered.
    ShortAnswered,
    /// RDMA_MSGP is dropped.
    MsgpDropped,
    /// An rdma_proc that does not exist is taken for RDMA_MSG.
    AnyProcedure,
    /// The connection ends where ERR_CHUNK is due.
    ErrChunkEnds,
    /// A list word of 2 is taken for 1.
    ListWordAny,
    /// A Reply has a Read list.
    ReplyReadList,
    /// Write chunks are not returned.
    WriteListLost,
    /// Write chunks are returned as they were offered.
    WriteLengthsKept,
    /// Empty Write chunks are not returned.
    EmptyChunkLost,
    /// A returned segment has another offset.
    OffsetChanged,
    /// The Reply chunk is not returned.
    ReplyChunkLost,
    /// The segments of Read chunks are put together from the last to the first.
    ReadOrder,
    /// Octets in front of a misaligned Position are served.
    PositionIgnored,
    /// A Reply invalidates a handle, although the client did not say R.
    InvalidateUnasked,
    /// Private data is only taken at octet 0.
    PrivateAtZero,
    /// Private data of any version is taken.
    PrivateAnyVersion,
    /// The accept's private data has reserved flags.
    PrivateFlags,
    /// Connections without private data are ended.
    PrivateRequired,
    /// Every fifth message is lost.
    FifthLost,
    /// Data is followed by its padding in a Write chunk.
    PaddingWritten,
    /// The segments of Write chunks are filled from the last to the first.
    WriteOrder,
    /// Data of a Write chunk comes inline as well.
    AlsoInline,
    /// A Read chunk with padding does not fit.
    PaddingRefused,
    /// After a failed transfer no client is served any more.
    DiesOfHandle,
    /// A client's Calls are of version 2.
    CallVersion,
    /// A client's Calls have another xid in their RPC header.
    CallXid,
    /// A client requests no credits.
    CallCredits,
    /// A client says RDMA_DONE after each Reply.
    DoneSent,
    /// A client makes each Call twice at once, with two xids.
    CallsTwice,
    /// A client makes a Call again, with its xid, when that failed with RDMA_ERROR.
    ErrorRetried,
    /// A client ends the connection for a Reply that it did not wait for.
    UnknownEnds,
    /// A client's private data has reserved flags.
    ClientPrivateFlags,
    /// Replies of up to 64 KiB come inline, whatever was agreed on.
    ThresholdIgnored,
    /// An exposed Reply has Position 4.
    ExposedPosition,
    /// An exposed Reply is 4 octets shorter.
    ExposedCut,
    /// A Reply chunk that was too short is not returned.
    ReplyChunkForgotten,
    /// The Write list of an exposed Reply is not returned.
    WriteListForgotten,
    /// RDMA_DONE ends no exposure.
    ExposureKept,
    /// Every accept says that Replies are exposed.
    ExposesUnasked,
    /// More Replies are exposed at once than was said.
    FewerAnnounced,
    /// Stag's block stands in front of that of RFC 8797.
    BlockFirst,
    /// Stag's block of any version is taken.
    BlockVersionIgnored,
    /// What is exposed to be read may be written.
    ExposedWritable,
    /// With reliable reply, a Long Call is taken for something else.
    LongCallRefused,
    /// A client says RDMA_DONE twice.
    DoneTwice,
    /// A client says no RDMA_DONE.
    DoneLost,
    /// A client says RDMA_DONE for another xid.
    DoneXid,
    /// A client's RDMA_DONE is of version 2.
    DoneVersion,
    /// Replies of version 2 have direction CALL.
    ReplyDirection,
    /// Calls of version 2 have direction REPLY.
    CallDirection,
    /// Calls of version 2 are answered in version 1.
    ReplyVersion,
    /// Every accept announces version 2.
    SecondAnnouncedToAll,
    /// INVAL_OPTION is 5, as in later drafts.
    OptionErrorCode,
    /// No INVAL_OPTION is sent.
    OptionErrorLost,
    /// A direction that does not exist is taken for CALL.
    DirectionIgnored,
    /// Parts of a Receive are not as long as the whole.
    CharacteristicsSum,
    /// A set of characteristics names one that is not there.
    CharacteristicsSet,
    /// Characteristics are refused.
    CharacteristicsRefused,
    /// No XMTERR is sent.
    GroupErrorLost,
    /// XMTERR has the direction of the bad transmission.
    GroupErrorDirection,
    /// XMTERR has found for expected.
    GroupErrorNumbers,
    /// XMTERR is sent twice.
    GroupErrorTwice,
    /// Transmissions without Payload stream are lost.
    ContinuationLost,
    /// XMTRESP has no items.
    ItemsLost,
    /// XMTRESP names the targets behind those with data.
    TargetsShifted,
    /// Items in targets are said to belong four octets behind their places.
    Displaced,
    /// The octet in front of the first target is not 0.
    PaddingFilled,
    /// Further transmissions of a Reply have their numbers from 2 on.
    TransmissionNumber,
    /// Data in targets is not what was sent.
    TargetData,
    /// A client's Payload stream is longer than its message.
    PayloadBeyond,
    /// A client's groups lose their last transmission.
    LastLost,
    /// A client does not look at what this server tells of itself.
    CharacteristicsIgnored,
    /// A client's Receives are not divided as it says.
    StructureShifted,
    /// A client ends the connection when a Reply has no item for its direction.
    NoItemEnds,
    /// A client's Replies may have more transmissions than its server makes.
    ReceivesBeyond,
}

/// A proxy at work; it ends when dropped.
pub(crate) struct Proxy {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// One side of it.
fn open_shm() -> Box<dyn RawPeer> {
    open(RawFabric::Shm { admit: Vec::new() }, PageChoice::Auto, WAIT).unwrap()
}

impl Proxy {
    /// Listens at `at`, both over shm, and serves what the server at `server` does, but for one rule.
    pub(crate) fn start(at: &str, server: &str, flaw: Flaw) -> Proxy {
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (at, server) = (at.to_owned(), server.to_owned());
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut front = open_shm();
            let back = open_shm();
            front.listen(&at).unwrap();
            ready.send(()).unwrap();
            let mut relay = Relay {
                front,
                back,
                flaw,
                open: HashMap::new(),
                exposed: HashMap::new(),
                count: 0,
                said_r: false,
                is_dead: false,
            };
            while !stopped.load(Ordering::Relaxed) {
                relay.serve(&server, &stopped);
            }
        });
        is_ready.recv().unwrap();
        Proxy { stop, thread: Some(thread) }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking(), "the proxy panicked");
        }
    }
}

pub(crate) struct Relay {
    /// The client.
    pub(crate) front: Box<dyn RawPeer>,
    /// The server.
    pub(crate) back: Box<dyn RawPeer>,
    pub(crate) flaw: Flaw,
    /// For each Call: what the server was offered in place of which segment of the client.
    open: HashMap<u32, Vec<(Segment, Segment)>>,
    /// For each exposed Reply: what the client was offered in place of which handle of the server.
    pub(crate) exposed: HashMap<u32, Vec<(u32, u32)>>,
    count: u64,
    said_r: bool,
    is_dead: bool,
}

/// That the connection has to end.
pub(crate) struct Broken;

impl Relay {
    /// Serves one connection.
    fn serve(&mut self, server: &str, stopped: &AtomicBool) {
        let Some(mut private_data) = self.front.next_request(Duration::from_millis(20)) else { return };
        self.open.clear();
        self.exposed.clear();
        self.said_r = private_data.get(5).is_some_and(|flags| flags & 1 == 1);
        match self.flaw {
            Flaw::PrivateAtZero if !private_data.starts_with(&[0xf6, 0xab]) => private_data.clear(),
            Flaw::PrivateAnyVersion if private_data.len() >= 8 => private_data[4] = 1,
            Flaw::ClientPrivateFlags if private_data.len() >= 8 => private_data[5] |= 0x40,
            // The server's own limit is above what the client can take.
            Flaw::ExposesUnasked if private_data.len() == 8 => {
                private_data.extend(*b"Stag\x01\x01\0\0");
            }
            Flaw::SecondAnnouncedToAll if private_data.len() == 8 => {
                private_data.extend(*b"Stag\x01\x04\0\0");
            }
            Flaw::BlockVersionIgnored if private_data.len() >= 16 => private_data[12] = 1,
            Flaw::BlockFirst if private_data.len() >= 16 => private_data.rotate_left(8),
            Flaw::ThresholdIgnored => private_data = vec![0xf6, 0xab, 0x0e, 0x18, 1, 0, 15, 15],
            _ => {}
        }
        let accepted = self.back.connect(server, &private_data, WAIT);
        let is_refused = accepted.is_err()
            || self.is_dead
            || (self.flaw == Flaw::PrivateRequired && private_data.is_empty());
        let mut answer = accepted.unwrap_or_default();
        match self.flaw {
            Flaw::PrivateFlags if answer.len() >= 8 => answer[5] |= 0x80,
            Flaw::FewerAnnounced if answer.len() >= 16 => answer[14..16].copy_from_slice(&[0, 2]),
            Flaw::BlockFirst if answer.len() >= 16 => answer.rotate_left(8),
            _ => {}
        }
        if self.front.accept(&answer, WAIT).is_err() {
            return;
        }
        while !is_refused && !stopped.load(Ordering::Relaxed) {
            // Who comes next is served, whatever became of the last one.
            if self.front.next_request(Duration::ZERO).is_some() || self.relay().is_err() {
                break;
            }
        }
        self.front.disconnect();
        self.back.disconnect();
    }

    /// Hands on what there is.
    fn relay(&mut self) -> Result<(), Broken> {
        match self.front.next(LOOK) {
            PeerEvent::Message { octets, invalidated } => self.up(&octets, invalidated)?,
            PeerEvent::Ended(_) => return Err(Broken),
            PeerEvent::Nothing => {}
        }
        match self.back.next(LOOK) {
            PeerEvent::Message { octets, invalidated } => self.down(&octets, invalidated),
            PeerEvent::Ended(_) => Err(Broken),
            PeerEvent::Nothing => Ok(()),
        }
    }

    fn refuse(&mut self, xid: u32) -> Result<(), Broken> {
        let words = [xid, 1, 32, procedure::ERROR, 2];
        let octets: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        self.front.send(&octets, None).map_err(|_| Broken)
    }

    /// A message of the client.
    fn up(&mut self, octets: &[u8], invalidated: Option<u32>) -> Result<(), Broken> {
        let mut octets = octets.to_vec();
        let word = |octets: &[u8], index: usize| {
            octets
                .get(4 * index..4 * index + 4)
                .map_or(0, |word| u32::from_be_bytes(word.try_into().unwrap()))
        };
        let (xid, version, number) = (word(&octets, 0), word(&octets, 1), word(&octets, 3));
        match self.flaw {
            Flaw::AnyVersion if octets.len() >= 28 && number != procedure::ERROR => {
                octets[4..8].copy_from_slice(&1u32.to_be_bytes());
            }
            Flaw::DoneAnswered if number == procedure::DONE => return self.refuse(xid),
            Flaw::ErrorAnswered if number == procedure::ERROR => return self.refuse(xid),
            Flaw::ShortAnswered if octets.len() < 28 && number == procedure::MSG => return self.refuse(xid),
            Flaw::MsgpDropped if number == procedure::MSGP => return Ok(()),
            Flaw::AnyProcedure if number > 4 && version == 1 => octets[12..16].fill(0),
            Flaw::ListWordAny if word(&octets, 4) == 2 => octets[16..20].fill(0),
            _ => {}
        }
        if version == 1 && number == procedure::DONE {
            return self.done(octets, xid, invalidated);
        }
        let seen = SeenMessage::of(&octets, None);
        let Some(mut draft) = seen.to_draft() else {
            return self.up_operation(octets, &seen);
        };
        match self.flaw {
            Flaw::DirectionIgnored if draft.direction.is_some_and(|word| word > 1) => {
                draft.direction = Some(0)
            }
            Flaw::CallDirection if draft.direction == Some(0) => draft.direction = Some(1),
            Flaw::LongCallRefused if draft.fixed.procedure == procedure::NOMSG => return self.refuse(xid),
            Flaw::CallVersion => draft.fixed.version = 2,
            Flaw::CallXid => draft.payload[0] ^= 1,
            Flaw::CallCredits => draft.fixed.credits = 0,
            Flaw::CallsTwice => {
                let mut twice = draft.clone();
                twice.fixed.xid ^= 0x8000_0000;
                twice.payload.splice(..4, twice.fixed.xid.to_be_bytes());
                self.back.send(&twice.octets(), None).map_err(|_| Broken)?;
            }
            _ => {}
        }
        if self.flaw == Flaw::PositionIgnored && draft.reads.iter().any(|(position, _)| position % 4 != 0) {
            draft.reads.clear();
        }
        let mut pairs = Vec::new();
        self.hand_on_reads(&mut draft)?;
        for segment in draft.writes.iter_mut().flatten().chain(draft.reply.iter_mut().flatten()) {
            if segment.length <= SEGMENT_LEN_MAX && segment.length > 0 {
                let ours = self.back.offer_target(segment.length as usize);
                pairs.push((*segment, ours));
                *segment = ours;
            }
        }
        self.open.insert(xid, pairs);
        self.back.send(&draft.octets(), None).map_err(|_| Broken)
    }

    /// Puts what the client's Read chunks hold in their place.
    fn hand_on_reads(&mut self, draft: &mut DraftMessage) -> Result<(), Broken> {
        let mut octets = Vec::new();
        for (_, segment) in &draft.reads {
            if segment.length > SEGMENT_LEN_MAX || segment.offset.checked_add(segment.length.into()).is_none()
            {
                return Ok(());
            }
            if segment.length == 0 {
                octets.push(Vec::new());
                continue;
            }
            let read = self.front.read(*segment, WAIT);
            self.is_dead |= read.is_err() && self.flaw == Flaw::DiesOfHandle;
            octets.push(read.map_err(|_| Broken)?);
        }
        if self.flaw == Flaw::ReadOrder {
            octets.reverse();
        }
        let positions: Vec<u32> = draft.reads.iter().map(|(position, _)| *position).collect();
        draft.reads.clear();
        for (position, mut octets) in positions.into_iter().zip(octets) {
            if self.flaw == Flaw::PaddingRefused && octets.len().is_multiple_of(4) && position != 0 {
                octets.push(0);
            }
            draft.reads.push((position, self.back.offer_source(&octets)));
        }
        Ok(())
    }

    /// A message of the server.
    fn down(&mut self, octets: &[u8], invalidated: Option<u32>) -> Result<(), Broken> {
        self.count += 1;
        if self.flaw == Flaw::FifthLost && self.count.is_multiple_of(5) {
            return Ok(());
        }
        let mut octets = octets.to_vec();
        let seen = SeenMessage::of(&octets, None);
        let is_error = seen.fixed.procedure == procedure::ERROR;
        match self.flaw {
            Flaw::ErrorRetried if is_error && self.open.contains_key(&seen.fixed.xid) => {
                let again = DraftMessage::null(seen.fixed.xid);
                return self.back.send(&again.octets(), None).map_err(|_| Broken);
            }
            Flaw::UnknownEnds if !self.open.contains_key(&seen.fixed.xid) => return Err(Broken),
            Flaw::DoneSent => {
                let done: Vec<u8> = [seen.fixed.xid, 1, 32, procedure::DONE]
                    .iter()
                    .flat_map(|word| word.to_be_bytes())
                    .collect();
                self.back.send(&done, None).map_err(|_| Broken)?;
            }
            _ => {}
        }
        let pairs = self.open.remove(&seen.fixed.xid).unwrap_or_default();
        let Some(mut draft) = seen.to_draft() else {
            match (self.flaw, &seen.body) {
                (Flaw::ErrVersOwnVersion, _) => octets[4..8].copy_from_slice(&1u32.to_be_bytes()),
                (Flaw::ErrVersRange, stag_conform::message::SeenBody::ErrVers(..)) => {
                    octets[20..24].copy_from_slice(&2u32.to_be_bytes());
                    octets[24..28].copy_from_slice(&2u32.to_be_bytes());
                }
                (Flaw::ErrChunkEnds, stag_conform::message::SeenBody::ErrChunk) => return Err(Broken),
                _ => {}
            }
            return self.down_operation(octets, &seen);
        };
        self.hand_on_exposed(&mut draft)?;
        self.place(&mut draft, &pairs)?;
        self.spoil(&mut draft, &pairs);
        let theirs = |handle: u32| {
            pairs.iter().find(|(_, ours)| ours.handle == handle).map(|(segment, _)| segment.handle)
        };
        let mut invalidate = invalidated.and_then(theirs);
        if self.flaw == Flaw::InvalidateUnasked && !self.said_r {
            invalidate = pairs.first().map(|(segment, _)| segment.handle);
        }
        self.front.send(&draft.octets(), invalidate).map_err(|_| Broken)
    }

    /// Writes what the server wrote into the client's memory, and names the client's segments.
    fn place(&mut self, draft: &mut DraftMessage, pairs: &[(Segment, Segment)]) -> Result<(), Broken> {
        for chunk in draft.writes.iter_mut().chain(draft.reply.iter_mut()) {
            let mut data = Vec::new();
            for segment in chunk.iter_mut() {
                let Some((theirs, ours)) = pairs.iter().find(|(_, ours)| ours.handle == segment.handle)
                else {
                    continue;
                };
                let memory = self.back.take_back(ours.handle).unwrap_or_default();
                data.extend_from_slice(&memory[..memory.len().min(segment.length as usize)]);
                *segment = Segment { length: segment.length, ..*theirs };
            }
            if self.flaw == Flaw::PaddingWritten {
                data.resize(data.len().next_multiple_of(4), 0);
            }
            if self.flaw == Flaw::AlsoInline && draft.fixed.procedure == procedure::MSG {
                draft.payload.extend_from_slice(&data);
                draft.payload.truncate(1000);
            }
            let mut left = &data[..];
            let mut targets: Vec<Segment> = chunk.clone();
            if self.flaw == Flaw::WriteOrder {
                targets.reverse();
            }
            let last = targets.iter().rposition(|segment| segment.length > 0).unwrap_or(0);
            for (index, target) in targets.into_iter().enumerate() {
                // What is left over, such as padding, goes behind the last octets.
                let len = if index == last { left.len() } else { left.len().min(target.length as usize) };
                let (now, later) = left.split_at(len);
                left = later;
                if !now.is_empty() {
                    let written = self.front.write(target, now, WAIT);
                    self.is_dead |= written.is_err() && self.flaw == Flaw::DiesOfHandle;
                    written.map_err(|_| Broken)?;
                }
            }
        }
        Ok(())
    }

    /// Breaks the rule in a Reply.
    fn spoil(&self, draft: &mut DraftMessage, pairs: &[(Segment, Segment)]) {
        match self.flaw {
            Flaw::GrantZero => draft.fixed.credits = 0,
            Flaw::ReplyXid => draft.fixed.xid ^= 1,
            Flaw::ReplyDirection if draft.direction.is_some() => draft.direction = Some(0),
            Flaw::ReplyVersion if draft.direction.is_some() => {
                (draft.direction, draft.fixed.version) = (None, 1);
            }
            Flaw::ReplyReadList => draft.reads.push((0, Segment { handle: 7, length: 4, offset: 0 })),
            Flaw::WriteListLost => draft.writes.clear(),
            Flaw::EmptyChunkLost => draft.writes.retain(|chunk| !chunk.is_empty()),
            Flaw::ReplyChunkLost if draft.fixed.procedure == procedure::MSG => draft.reply = None,
            Flaw::WriteLengthsKept => {
                for segment in draft.writes.iter_mut().flatten() {
                    let offered = pairs.iter().find(|(theirs, _)| theirs.handle == segment.handle);
                    segment.length = offered.map_or(segment.length, |(theirs, _)| theirs.length);
                }
            }
            Flaw::OffsetChanged => {
                for segment in draft.writes.iter_mut().flatten() {
                    segment.offset += 4;
                }
            }
            _ => {}
        }
    }
}
