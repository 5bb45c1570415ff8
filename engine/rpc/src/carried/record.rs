//! The records of a lane: a carried Call, and its Reply, of at most [`LaneRecord::LEN_MAX`] octets.
//!
//! Both ends are this process, so numbers are in the machine's order, and a record that cannot be read is a defect.
//! Contents that do not fit go beside the record, as an attachment.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use arrayvec::ArrayVec;
use stag_fabric::Peer;
use stag_runtime::LaneRecord;
use stag_wire::xdr::Reduced;

use crate::ConnectionId;
use crate::server::pulling::READ_CHUNKS_MAX;
use crate::service::Token;

/// Write chunks of a carried Call at most, as of any Call.
pub(super) const WRITE_CHUNKS_MAX: usize = 16;

/// What there is for the results of a carried Call, where its connection is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CarriedRoom {
    /// Octets of Payload stream that stay inline.
    pub(crate) inline_len_max: u32,
    /// Octets that the Reply chunk holds; 0 without one.
    pub(crate) reply_chunk_len: u32,
    /// It came over a byte stream, which has no chunks.
    pub(crate) is_stream: bool,
    /// Its client has left too many Replies in many pieces untaken, so its results should be in few.
    pub(crate) wants_few_pieces: bool,
    /// The Call has waited for memory for its Reply as long as it may: without some it is refused.
    pub(crate) is_last_try: bool,
    /// Octets that each Write chunk holds. Those that cannot be used are left out, with all behind them.
    pub(crate) write_chunks: ArrayVec<u64, WRITE_CHUNKS_MAX>,
}

/// A Call that another reactor is to execute.
#[derive(Debug)]
pub(super) struct CarriedCall {
    /// Names it where its connection is.
    pub(super) token: Token,
    pub(super) peer: Option<Peer>,
    /// Over TCP: the address of this machine that it came to.
    pub(super) local: Option<IpAddr>,
    pub(super) room: CarriedRoom,
    /// The data that is not in its Payload stream, and the pieces of memory that each is in.
    pub(super) reduced: ArrayVec<Reduced, READ_CHUNKS_MAX>,
    pub(super) pieces: ArrayVec<u32, READ_CHUNKS_MAX>,
    /// Where its Payload stream is.
    pub(super) stream: Place,
}

/// Where octets are that belong to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the record, `len` octets from `at`.
    Record { at: usize, len: usize },
    /// In the attachment.
    Attached,
}

/// How a carried Call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// There is no Reply: it is being executed already, for the same connection.
    Dropped,
    /// The payload is there.
    Encoded,
    /// The results fit nowhere: ERR_CHUNK.
    TooLong,
    /// The results fit, and its client may not have the memory for them now.
    NoMemory,
    /// Its chunks are not those that the binding allows: ERR_CHUNK.
    BadChunks,
}

/// One eligible result of a carried Reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CarriedItem {
    pub(crate) len: u32,
    pub(crate) pieces_end: u16,
    pub(crate) is_reduced: bool,
}

/// What another reactor answers.
#[derive(Debug)]
pub(crate) struct CarriedReply {
    pub(super) token: Token,
    pub(crate) ending: Ending,
    pub(crate) is_service: bool,
    /// Its pieces are a store's.
    pub(crate) are_stored: bool,
    /// Where in the payload the first reduced result belongs.
    pub(crate) splice: u32,
    /// Reduced results that were encoded, and their octets with padding.
    pub(crate) left_out: (u32, u64),
    pub(crate) items: ArrayVec<CarriedItem, WRITE_CHUNKS_MAX>,
    /// Pieces of reduced results.
    pub(crate) pieces: u16,
    /// Pieces of a payload that is not inline, and its octets.
    pub(crate) long: (u16, u32),
}

/// Kinds of records, the first octet of each.
pub(super) const CALL: u8 = 1;
pub(super) const REPLY: u8 = 2;
/// A [`CALL`] from an RDMA connection, with its Payload stream, without chunks and without a Reply chunk.
pub(super) const PLAIN_CALL: u8 = 3;
/// The same with one Write chunk.
pub(super) const WRITE_CALL: u8 = 4;
/// The same with one Read chunk, in one piece of memory.
pub(super) const READ_CALL: u8 = 5;
/// A Reply whose payload stands right behind the token, and nothing else.
pub(super) const SHORT_REPLY: u8 = 6;
/// A [`REPLY`] with its payload, and one reduced result in one piece of a store's memory.
pub(super) const SINGLE_REPLY: u8 = 7;

/// A Call to a client, or how one ended: [`encode_key`] is all of it, and the rest is beside it.
pub(super) const CALL_BACK: u8 = 8;
pub(super) const CALLED_BACK: u8 = 9;
/// One of these two was taken out of its lane.
pub(super) const TAKEN_OUT: u8 = 10;

/// Writes a record of this kind, with the key of a Call to a client where it was carried from.
pub(super) fn encode_key(record: &mut LaneRecord, kind: u8, key: u64) {
    let mut encoder = Encoder { octets: record.buffer(), at: 0 };
    encoder.put([kind, 0, 0, 0, 0, 0, 0, 0]);
    encoder.u64(key);
    let end = encoder.at;
    record.set_len(end);
}

/// Reads the key.
pub(super) fn decode_key(record: &LaneRecord) -> u64 {
    Decoder { octets: record.octets(), at: 8 }.u64()
}

/// Flags of a Call's record.
const STREAM: u8 = 1;
const ATTACHED: u8 = 2;
const LOCAL_V4: u8 = 4;
const LOCAL_V6: u8 = 8;
const PEER_V4: u8 = 1 << 4;
const PEER_V6: u8 = 2 << 4;
const PEER_PROCESS: u8 = 3 << 4;
const PEER_MASK: u8 = 3 << 4;
const FEW_PIECES: u8 = 1 << 6;
const LAST_TRY: u8 = 1 << 7;

/// Flags of a Reply's record, beside [`ATTACHED`].
pub(super) const SERVICE: u8 = 1;
pub(super) const STORED: u8 = 4;

/// Endings in a Reply's record.
const DROPPED: u8 = 0;
pub(super) const ENCODED: u8 = 1;
const TOO_LONG: u8 = 2;
const BAD_CHUNKS: u8 = 3;
const NO_MEMORY: u8 = 4;

/// Octets of a Call's record before what says who calls.
pub(super) const CALL_HEAD_LEN: usize = 32;

/// Octets of what says who calls, at most.
pub(super) const PEER_LEN_MAX: usize = 24;

/// Octets of what says of a Read chunk where it belongs.
pub(super) const READ_ITEM_LEN: usize = 12;

/// Octets of a [`SHORT_REPLY`] before its payload.
pub(super) const SHORT_HEAD_LEN: usize = 24;

/// Octets of any other Reply's record before its payload.
pub(super) const REPLY_HEAD_LEN: usize = 48;

/// Octets of an item in a Reply's record.
pub(super) const ITEM_LEN: usize = 8;

/// Octets of payload that a Reply's record holds, with `items` items.
const fn payload_room(items: usize) -> usize {
    LaneRecord::LEN_MAX - REPLY_HEAD_LEN - items * ITEM_LEN
}

/// What a record that came is: one of the kinds above.
#[inline(always)]
pub(super) fn kind(record: &LaneRecord) -> u8 {
    record.head::<1>()[0]
}

/// Writes one record.
pub(super) struct Encoder<'a> {
    pub(super) octets: &'a mut [u8],
    pub(super) at: usize,
}

impl Encoder<'_> {
    #[inline(always)]
    pub(super) fn put<const N: usize>(&mut self, value: [u8; N]) {
        // Not `copy_from_slice`: the compiler may leave that a call, for each of the few octets of each field.
        *self.octets[self.at..].first_chunk_mut().expect("a record has room for its fields") = value;
        self.at += N;
    }

    #[inline(always)]
    pub(super) fn u16(&mut self, value: u16) {
        self.put(value.to_ne_bytes());
    }

    #[inline(always)]
    pub(super) fn u32(&mut self, value: u32) {
        self.put(value.to_ne_bytes());
    }

    #[inline(always)]
    pub(super) fn u64(&mut self, value: u64) {
        self.put(value.to_ne_bytes());
    }

    #[inline(always)]
    pub(super) fn token(&mut self, token: &Token) {
        let Token { connection: ConnectionId { index, generation }, slot, xid } = *token;
        for word in [index, generation, slot, xid] {
            self.u32(word);
        }
    }
}

/// Reads one record.
pub(super) struct Decoder<'a> {
    pub(super) octets: &'a [u8],
    pub(super) at: usize,
}

impl Decoder<'_> {
    #[inline(always)]
    pub(super) fn take<const N: usize>(&mut self) -> [u8; N] {
        let found = self.octets[self.at..].first_chunk().copied();
        self.at += N;
        found.unwrap_or_else(|| {
            unreachable!("a record of {} octets ends before {}", self.octets.len(), self.at)
        })
    }

    #[inline(always)]
    pub(super) fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }

    #[inline(always)]
    pub(super) fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    #[inline(always)]
    pub(super) fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }

    #[inline(always)]
    pub(super) fn token(&mut self) -> Token {
        let connection = ConnectionId { index: self.u32(), generation: self.u32() };
        Token { connection, slot: self.u32(), xid: self.u32() }
    }
}

/// Writes who is at the other end of a connection, and returns what the flags say of it.
#[inline(always)]
pub(super) fn encode_peer(encoder: &mut Encoder<'_>, peer: Option<&Peer>) -> u8 {
    match peer {
        None => 0,
        Some(Peer::Address(SocketAddr::V4(address))) => {
            encoder.put(address.ip().octets());
            encoder.u32(address.port().into());
            PEER_V4
        }
        Some(Peer::Address(SocketAddr::V6(address))) => {
            encoder.put(address.ip().octets());
            encoder.u32(address.scope_id());
            encoder.u32(address.port().into());
            PEER_V6
        }
        Some(Peer::Process { pid, uid, gid }) => {
            for word in [*pid, *uid, *gid, 0] {
                encoder.u32(word);
            }
            PEER_PROCESS
        }
    }
}

#[inline(always)]
pub(super) fn decode_peer(decoder: &mut Decoder<'_>, flags: u8) -> Option<Peer> {
    let port = |word: u32| u16::try_from(word).unwrap_or_else(|_| unreachable!("a port of {word}"));
    match flags & PEER_MASK {
        PEER_V4 => {
            let ip = Ipv4Addr::from(decoder.take::<4>());
            Some(Peer::Address(SocketAddr::new(ip.into(), port(decoder.u32()))))
        }
        PEER_V6 => {
            let ip = Ipv6Addr::from(decoder.take::<16>());
            let scope = decoder.u32();
            Some(Peer::Address(SocketAddrV6::new(ip, port(decoder.u32()), 0, scope).into()))
        }
        PEER_PROCESS => {
            let peer = Peer::Process { pid: decoder.u32(), uid: decoder.u32(), gid: decoder.u32() };
            decoder.u32();
            Some(peer)
        }
        _ => None,
    }
}

/// Writes the address of this machine that a Call came to, and returns what the flags say of it.
fn encode_local(encoder: &mut Encoder<'_>, local: Option<&IpAddr>) -> u8 {
    match local {
        None => 0,
        Some(IpAddr::V4(address)) => {
            encoder.put(address.octets());
            LOCAL_V4
        }
        Some(IpAddr::V6(address)) => {
            encoder.put(address.octets());
            LOCAL_V6
        }
    }
}

fn decode_local(decoder: &mut Decoder<'_>, flags: u8) -> Option<IpAddr> {
    match flags & (LOCAL_V4 | LOCAL_V6) {
        LOCAL_V4 => Some(Ipv4Addr::from(decoder.take::<4>()).into()),
        LOCAL_V6 => Some(Ipv6Addr::from(decoder.take::<16>()).into()),
        _ => None,
    }
}

impl CarriedCall {
    /// Writes a Call, which came from a peer and to an address of this machine. Its Payload stream is copied if there is room for
    /// it; `false`: the caller must attach it.
    pub(super) fn encode(
        record: &mut LaneRecord,
        token: &Token,
        (peer, local): (Option<&Peer>, Option<&IpAddr>),
        room: &CarriedRoom,
        (reduced, pieces): (&[Reduced], &[u32]),
        stream: &[u8],
    ) -> bool {
        debug_assert_eq!(reduced.len(), pieces.len());
        let mut encoder = Encoder { octets: record.buffer(), at: 8 };
        encoder.token(token);
        encoder.u32(room.inline_len_max);
        encoder.u32(room.reply_chunk_len);
        debug_assert_eq!(encoder.at, CALL_HEAD_LEN);
        let mut flags = encode_peer(&mut encoder, peer) | if room.is_stream { STREAM } else { 0 };
        flags |= if room.wants_few_pieces { FEW_PIECES } else { 0 };
        flags |= if room.is_last_try { LAST_TRY } else { 0 };
        flags |= encode_local(&mut encoder, local);
        for len in &room.write_chunks {
            encoder.u64(*len);
        }
        for (item, pieces) in reduced.iter().zip(pieces) {
            for word in [item.position, item.len, *pieces] {
                encoder.u32(word);
            }
        }
        let (at, end) = (encoder.at, encoder.at + stream.len());
        let is_inside = end <= LaneRecord::LEN_MAX;
        if is_inside {
            encoder.octets[at..end].copy_from_slice(stream);
        } else {
            flags |= ATTACHED;
        }
        encoder.at = 0;
        let kind = if room.reply_chunk_len != 0 || flags & !PEER_MASK != 0 {
            CALL
        } else {
            // As the short way has it, whichever way it came here.
            match (&room.write_chunks[..], pieces) {
                ([], []) => PLAIN_CALL,
                (&[len], []) if u32::try_from(len).is_ok() => WRITE_CALL,
                ([], [1]) => READ_CALL,
                _ => CALL,
            }
        };
        encoder.put([kind, flags, room.write_chunks.len() as u8, reduced.len() as u8]);
        encoder.u32(stream.len() as u32);
        record.set_len(if is_inside { end } else { at });
        is_inside
    }

    /// Reads a Call.
    pub(super) fn decode(record: &LaneRecord) -> CarriedCall {
        let mut decoder = Decoder { octets: record.octets(), at: 0 };
        let [_, flags, write_count, reduced_count] = decoder.take();
        let len = decoder.u32() as usize;
        let token = decoder.token();
        let (inline_len_max, reply_chunk_len) = (decoder.u32(), decoder.u32());
        let peer = decode_peer(&mut decoder, flags);
        let local = decode_local(&mut decoder, flags);
        let write_chunks = (0..write_count).map(|_| decoder.u64()).collect();
        let (mut reduced, mut pieces) = (ArrayVec::new(), ArrayVec::new());
        for index in 0..reduced_count {
            reduced.push(Reduced::read_chunk(index.into(), decoder.u32(), decoder.u32()));
            pieces.push(decoder.u32());
        }
        let stream = match flags & ATTACHED {
            0 => Place::Record { at: decoder.at, len },
            _ => Place::Attached,
        };
        let room = CarriedRoom {
            inline_len_max,
            reply_chunk_len,
            is_stream: flags & STREAM != 0,
            wants_few_pieces: flags & FEW_PIECES != 0,
            is_last_try: flags & LAST_TRY != 0,
            write_chunks,
        };
        CarriedCall { token, peer, local, room, reduced, pieces, stream }
    }
}

impl CarriedReply {
    /// No Reply.
    pub(super) fn dropped(token: Token) -> CarriedReply {
        CarriedReply {
            token,
            ending: Ending::Dropped,
            is_service: false,
            are_stored: false,
            splice: 0,
            left_out: (0, 0),
            items: ArrayVec::new(),
            pieces: 0,
            long: (0, 0),
        }
    }

    /// Writes a Reply. Its payload is copied if there is room for it; `false`: the caller must attach it.
    pub(super) fn encode(&self, record: &mut LaneRecord, payload: &[u8]) -> bool {
        let is_inside = payload.len() <= payload_room(self.items.len());
        let payload = if is_inside { payload } else { &[] };
        let mut encoder = Encoder { octets: record.buffer(), at: 0 };
        let ending = match self.ending {
            Ending::Dropped => DROPPED,
            Ending::Encoded => ENCODED,
            Ending::TooLong => TOO_LONG,
            Ending::NoMemory => NO_MEMORY,
            Ending::BadChunks => BAD_CHUNKS,
        };
        let flags = if self.is_service { SERVICE } else { 0 }
            | if self.are_stored { STORED } else { 0 }
            | if is_inside { 0 } else { ATTACHED };
        encoder.put([REPLY, ending, flags, self.items.len() as u8]);
        encoder.u32(payload.len() as u32);
        encoder.token(&self.token);
        encoder.u32(self.splice);
        encoder.u32(self.left_out.0);
        encoder.u64(self.left_out.1);
        encoder.u16(self.pieces);
        encoder.u16(self.long.0);
        encoder.u32(self.long.1);
        debug_assert_eq!(encoder.at, REPLY_HEAD_LEN);
        let end = encoder.at + payload.len();
        encoder.octets[encoder.at..end].copy_from_slice(payload);
        encoder.at = end;
        for item in &self.items {
            encoder.u32(item.len);
            encoder.u16(item.pieces_end);
            encoder.u16(item.is_reduced.into());
        }
        let end = encoder.at;
        record.set_len(end);
        is_inside
    }

    /// Reads a Reply, and where its payload is.
    pub(super) fn decode(record: &LaneRecord) -> (CarriedReply, Place) {
        let mut decoder = Decoder { octets: record.octets(), at: 0 };
        let [kind, ending, flags, item_count] = decoder.take();
        let len = decoder.u32() as usize;
        let token = decoder.token();
        if kind == SHORT_REPLY {
            let reply = CarriedReply {
                ending: Ending::Encoded,
                is_service: flags & SERVICE != 0,
                ..CarriedReply::dropped(token)
            };
            return (reply, Place::Record { at: decoder.at, len });
        }
        let splice = decoder.u32();
        let left_out = (decoder.u32(), decoder.u64());
        let pieces = decoder.u16();
        let long = (decoder.u16(), decoder.u32());
        let payload = match flags & ATTACHED {
            0 => Place::Record { at: decoder.at, len },
            _ => Place::Attached,
        };
        decoder.at += len;
        let item =
            |_| CarriedItem { len: decoder.u32(), pieces_end: decoder.u16(), is_reduced: decoder.u16() != 0 };
        let items = (0..item_count).map(item).collect();
        let ending = match ending {
            DROPPED => Ending::Dropped,
            ENCODED => Ending::Encoded,
            TOO_LONG => Ending::TooLong,
            NO_MEMORY => Ending::NoMemory,
            BAD_CHUNKS => Ending::BadChunks,
            other => unreachable!("a carried Reply that ended as {other}"),
        };
        let (is_service, are_stored) = (flags & SERVICE != 0, flags & STORED != 0);
        (
            CarriedReply { token, ending, is_service, are_stored, splice, left_out, items, pieces, long },
            payload,
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn peers() -> impl Strategy<Value = Option<Peer>> {
        prop_oneof![
            Just(None),
            any::<(u32, u32, u32)>().prop_map(|(pid, uid, gid)| Some(Peer::Process { pid, uid, gid })),
            any::<(u32, u16)>().prop_map(|(ip, port)| {
                Some(Peer::Address(SocketAddr::new(Ipv4Addr::from(ip).into(), port)))
            }),
            any::<(u128, u16, u32)>().prop_map(|(ip, port, scope)| {
                Some(Peer::Address(SocketAddrV6::new(ip.into(), port, 0, scope).into()))
            }),
        ]
    }

    fn tokens() -> impl Strategy<Value = Token> {
        any::<(u32, u32, u32, u32)>().prop_map(|(index, generation, slot, xid)| Token {
            connection: ConnectionId { index, generation },
            slot,
            xid,
        })
    }

    /// Cache lines of a lane that NFS Calls on a file take, with AUTH_SYS of a host name of twelve octets at most, and a client of
    /// this machine. The piece of memory beside a record is less than half a line, and so are the indices and what goes back,
    /// in batches.
    #[test]
    fn the_usual_calls_take_seven_lines() {
        // RPC header with AUTH_SYS; a handle; what follows it, and the Reply's results behind its status.
        let (header, handle) = (24 + 8 + 32 + 8, 36);
        let attributes = 84;
        for (head, arguments, reply_head, results) in [
            // GETATTR
            (0, 0, SHORT_HEAD_LEN, attributes),
            // READ: a Write chunk; offset, count; attributes, count, eof, the data's length; an item
            (8, 12, REPLY_HEAD_LEN + ITEM_LEN, 4 + attributes + 12),
            // WRITE: a Read chunk; offset, count, stable, the data's length; wcc_data, count, committed, verifier
            (12, 20, SHORT_HEAD_LEN, 28 + 4 + attributes + 16),
        ] {
            let call = LaneRecord::lines_for(CALL_HEAD_LEN + 16 + head + header + handle + arguments);
            let reply = LaneRecord::lines_for(reply_head + 24 + 4 + results);
            assert!(call + reply <= 7, "{call} lines of a Call, {reply} of its Reply");
        }
    }

    proptest! {
        #[test]
        fn a_call_comes_as_it_was_sent(
            token in tokens(),
            peer in peers(),
            local in proptest::option::of(any::<IpAddr>()),
            numbers in (any::<u32>(), prop_oneof![Just(0), any::<u32>()], any::<[bool; 3]>()),
            writes in proptest::collection::vec(prop_oneof![0..=u64::from(u32::MAX), any::<u64>()], 0..=WRITE_CHUNKS_MAX),
            reads in proptest::collection::vec((any::<u32>(), any::<u32>(), prop_oneof![Just(1), any::<u32>()]), 0..=READ_CHUNKS_MAX),
            stream in proptest::collection::vec(any::<u8>(), 0..600),
        ) {
            let (inline_len_max, reply_chunk_len, [is_stream, wants_few_pieces, is_last_try]) = numbers;
            let write_chunks = writes.into_iter().collect();
            let room = CarriedRoom { inline_len_max, reply_chunk_len, is_stream, wants_few_pieces, is_last_try, write_chunks };
            let pieces: Vec<u32> = reads.iter().map(|(.., pieces)| *pieces).collect();
            let reduced: Vec<Reduced> =
                (0..).zip(reads).map(|(index, (position, len, _))| Reduced::read_chunk(index, position, len)).collect();
            let mut record = LaneRecord::new();
            let is_inside = CarriedCall::encode(&mut record, &token, (peer.as_ref(), local.as_ref()), &room, (&reduced, &pieces), &stream);
            let is_light = is_inside && !is_stream && !wants_few_pieces && !is_last_try && local.is_none() && reply_chunk_len == 0;
            let chunks = (room.write_chunks.len(), &pieces[..]);
            let light = match chunks {
                (0, []) => PLAIN_CALL,
                (1, []) if room.write_chunks[0] <= u64::from(u32::MAX) => WRITE_CALL,
                (0, [1]) => READ_CALL,
                _ => CALL,
            };
            prop_assert_eq!(kind(&record), if is_light { light } else { CALL });
            let call = CarriedCall::decode(&record);
            prop_assert_eq!((call.token, call.peer, call.local, call.room), (token, peer, local, room));
            prop_assert_eq!(&call.reduced[..], &reduced[..]);
            prop_assert_eq!(&call.pieces[..], &pieces[..]);
            match call.stream {
                Place::Record { at, len } => {
                    prop_assert!(is_inside);
                    prop_assert_eq!(&record.octets()[at..at + len], &stream[..]);
                }
                Place::Attached => prop_assert!(!is_inside && stream.len() > 200),
            }
        }

        #[test]
        fn a_reply_comes_as_it_was_sent(
            token in tokens(),
            ending in 0..5_u8,
            numbers in any::<(bool, u32, u32, u64, u16, u16, u32)>(),
            are_stored in any::<bool>(),
            items in proptest::collection::vec(any::<(u32, u16, bool)>(), 0..=WRITE_CHUNKS_MAX),
            payload in proptest::collection::vec(any::<u8>(), 0..LaneRecord::LEN_MAX),
        ) {
            let ending = [Ending::Dropped, Ending::Encoded, Ending::TooLong, Ending::NoMemory, Ending::BadChunks][usize::from(ending)];
            let (is_service, splice, count, octets, pieces, long, long_len) = numbers;
            let items = items.into_iter().map(|(len, pieces_end, is_reduced)| CarriedItem { len, pieces_end, is_reduced });
            let mut record = LaneRecord::new();
            let reply = CarriedReply {
                token, ending, is_service, are_stored, splice,
                left_out: (count, octets),
                items: items.collect(),
                pieces,
                long: (long, long_len),
            };
            let is_inside = reply.encode(&mut record, &payload);
            prop_assert_eq!(is_inside, payload.len() <= payload_room(reply.items.len()));
            prop_assert_eq!(kind(&record), REPLY);
            let (found, place) = CarriedReply::decode(&record);
            prop_assert_eq!((found.token, found.ending, found.is_service, found.are_stored), (token, ending, is_service, are_stored));
            prop_assert_eq!((found.splice, found.left_out, found.pieces), (splice, (count, octets), pieces));
            prop_assert_eq!(found.long, (long, long_len));
            prop_assert_eq!(found.items, reply.items);
            match place {
                Place::Record { at, len } => prop_assert_eq!(&record.octets()[at..at + len], &payload[..]),
                Place::Attached => prop_assert!(!is_inside),
            }
        }
    }
}
