//! What holds for all values, and for all octets.

use proptest::collection::vec;
use proptest::prelude::*;
use stag_wire::cm_private_data::{InlineSize, PrivateData, inline_thresholds};
use stag_wire::rpc::{AuthSys, CallHeader, Gids, OpaqueAuth, ReplyHeader};
use stag_wire::rpcrdma::{
    Emitter, Fixed, Header, MessageKind, MessageProcedure, ReadSegment, SINGLE_LEN, Segment, Single,
    SingleChunk,
};
use stag_wire::xdr::{Item, Reader, Reduced, Writer};

fn segment() -> impl Strategy<Value = Segment> {
    // Offsets that leave room for any length.
    (any::<u32>(), any::<u32>(), 0..u64::MAX - u64::from(u32::MAX))
        .prop_map(|(handle, length, offset)| Segment { handle, length, offset })
}

fn read_segment() -> impl Strategy<Value = ReadSegment> {
    (0..u32::MAX / 4, segment())
        .prop_map(|(position, segment)| ReadSegment { position: position * 4, segment })
}

/// Mostly small words, as most words of a header are: so that random octets get past the first check.
fn likely_octets() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![6 => 0..3_u32, 1 => 0..64_u32, 1 => any::<u32>()];
    (vec(word, 0..40), 0..4_usize).prop_map(|(words, cut)| {
        let octets: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
        octets[..octets.len() - cut.min(octets.len())].to_vec()
    })
}

fn octets() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![likely_octets(), vec(any::<u8>(), 0..200)]
}

/// A header, written again from its view.
fn emit_again(header: &Header<'_>, kind: MessageKind) -> Vec<u8> {
    let mut buf = vec![0xff; header.layout().header_len()];
    let mut emitter = Emitter::new(&mut buf, kind, header.xid(), header.credits()).unwrap();
    header.read_list().try_for_each(|entry| emitter.read_segment(entry)).unwrap();
    for chunk in header.write_list() {
        emitter.echo_write_chunk(chunk, chunk.total_len()).unwrap();
    }
    if let Some(chunk) = header.reply_chunk() {
        emitter.echo_reply_chunk(chunk, chunk.total_len()).unwrap();
    }
    emitter.finish().unwrap();
    buf
}

/// What [`Single::parse`] has to find, by the general parser.
fn single_of(message: &[u8]) -> Option<Single> {
    let (header, _) = Header::parse(message).ok()?;
    if header.procedure() != MessageProcedure::Msg || header.reply_chunk().is_some() {
        return None;
    }
    let reads: Vec<ReadSegment> = header.read_list().collect();
    let writes: Vec<Vec<Segment>> = header.write_list().map(|chunk| chunk.segments().collect()).collect();
    let chunk = match (&reads[..], &writes[..]) {
        ([read], []) => SingleChunk::Read(*read),
        ([], [chunk]) if chunk.len() == 1 => SingleChunk::Write(chunk[0]),
        _ => return None,
    };
    assert_eq!(chunk.layout(), header.layout());
    Some(Single { xid: header.xid(), credits: header.credits(), chunk })
}

/// A header with one chunk of one segment, by the general emitter, and octets behind it.
fn single_message() -> impl Strategy<Value = Vec<u8>> {
    let offset = prop_oneof![4 => any::<u64>(), 1 => u64::MAX - 8..=u64::MAX];
    let length = prop_oneof![any::<u32>(), 0..9_u32];
    let segment = (any::<u32>(), length, offset).prop_map(|(handle, length, offset)| Segment {
        handle,
        length,
        offset,
    });
    let position = prop_oneof![6 => (0..64_u32).prop_map(|word| 4 * word), 1 => any::<u32>()];
    (any::<[u32; 2]>(), segment, proptest::option::of(position), vec(any::<u8>(), 0..20)).prop_map(
        |([xid, credits], segment, position, payload)| {
            let mut message = [0xff; SINGLE_LEN];
            let mut emitter = Emitter::new(&mut message, MessageKind::Msg, xid, credits).unwrap();
            match position {
                Some(position) => emitter.read_segment(ReadSegment { position, segment }).unwrap(),
                None => emitter.write_chunk(&[segment]).unwrap(),
            }
            emitter.finish().unwrap();
            [&message, &payload[..]].concat()
        },
    )
}

/// The same, with a word changed to one that is likely to mean something, or cut short.
fn nearly_single_message() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![4 => 0..5_u32, 1 => any::<u32>()];
    let damage = prop_oneof![
        2 => Just(None),
        5 => (0..SINGLE_LEN / 4, word).prop_map(Some),
    ];
    let cut = prop_oneof![4 => Just(usize::MAX), 1 => 0..80_usize];
    (single_message(), damage, cut).prop_map(|(mut message, damage, cut)| {
        if let Some((at, word)) = damage {
            message[4 * at..][..4].copy_from_slice(&u32::to_be_bytes(word));
        }
        message.truncate(cut);
        message
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, ..ProptestConfig::default() })]

    #[test]
    fn a_header_with_one_chunk_of_one_segment_is_the_same_by_both_parsers_and_emitters(
        message in prop_oneof![4 => nearly_single_message(), 1 => likely_octets()],
    ) {
        let found = Single::parse(&message);
        prop_assert_eq!(found.map(|(single, _)| single), single_of(&message));
        let Some((single, payload)) = found else { return Ok(()) };
        prop_assert_eq!(payload, &message[SINGLE_LEN..]);
        let mut again = vec![0xff; message.len()];
        prop_assert_eq!(single.emit(&mut again).unwrap().len(), payload.len());
        prop_assert_eq!(&again[..SINGLE_LEN], &message[..SINGLE_LEN]);
        prop_assert!(again[SINGLE_LEN..].iter().all(|&octet| octet == 0xff));
        prop_assert!(single.emit(&mut again[..SINGLE_LEN - 1]).is_err());
    }
}

proptest! {
    #[test]
    fn headers_go_there_and_back(
        xid: u32,
        credits: u32,
        reads in vec(read_segment(), 1..20),
        writes in vec(vec(segment(), 0..5), 0..5),
        reply in proptest::option::of(vec(segment(), 0..5)),
        payload in vec(any::<u8>(), 0..20),
    ) {
        // Position Zero makes the difference between what MSG and NOMSG may have.
        let zero = reads.iter().any(|entry| entry.position == 0);
        let kind = if zero { MessageKind::Nomsg } else { MessageKind::Msg };
        let mut buf = vec![0xff; 4096];
        let mut emitter = Emitter::new(&mut buf, kind, xid, credits).unwrap();
        for entry in &reads {
            emitter.read_segment(*entry).unwrap();
        }
        for chunk in &writes {
            emitter.write_chunk(chunk).unwrap();
        }
        if let Some(chunk) = &reply {
            emitter.reply_chunk(chunk).unwrap();
        }
        let (len, rest) = emitter.finish().unwrap();
        rest[..payload.len()].copy_from_slice(&payload);
        let message = &buf[..len + payload.len()];

        let (header, found) = Header::parse(message).unwrap();
        prop_assert_eq!(found, &payload[..]);
        prop_assert_eq!((header.xid(), header.credits(), header.version()), (xid, credits, 1));
        prop_assert!(header.read_list().eq(reads.iter().copied()));
        let found: Vec<Vec<Segment>> = header.write_list().map(|chunk| chunk.segments().collect()).collect();
        prop_assert_eq!(&found, &writes);
        let found: Option<Vec<Segment>> = header.reply_chunk().map(|chunk| chunk.segments().collect());
        prop_assert_eq!(&found, &reply);
        prop_assert_eq!(emit_again(&header, kind), &message[..len]);
    }

    #[test]
    fn any_octets_are_a_header_or_an_error(message in octets(), segments_max in prop_oneof![Just(256), 0..3_u32]) {
        let _ = Fixed::parse(&message);
        let Ok((header, payload)) = Header::parse_limited(&message, segments_max) else { return Ok(()) };
        let _ = (header.check_call(payload), header.check_reply(payload), header.direction(payload));
        let len = message.len() - payload.len();
        prop_assert_eq!(header.layout().header_len(), len);
        let kind = match header.procedure() {
            MessageProcedure::Msg => MessageKind::Msg,
            MessageProcedure::Nomsg => MessageKind::Nomsg,
            MessageProcedure::Error(_) => return Ok(()),
        };
        prop_assert_eq!(emit_again(&header, kind), &message[..len]);
        let again = Header::with_layout(&message, header.layout()).unwrap();
        prop_assert_eq!(emit_again(&again, kind), &message[..len]);
    }

    #[test]
    fn a_layout_over_any_octets_is_safe(message in likely_octets(), other in octets()) {
        let Ok((header, _)) = Header::parse(&message) else { return Ok(()) };
        let Some(other) = Header::with_layout(&other, header.layout()) else { return Ok(()) };
        let chunks = other.write_list().chain(other.reply_chunk());
        let segments = chunks.map(|chunk| chunk.segments().count()).sum::<usize>() + other.read_list().count();
        prop_assert!(segments <= header.layout().header_len() / 16);
    }

    #[test]
    fn calls_go_there_and_back(
        fields: [u32; 4],
        flavors: [u32; 2],
        credential in vec(any::<u8>(), 0..=400),
        verifier in vec(any::<u8>(), 0..=400),
    ) {
        let [xid, program, version, procedure] = fields;
        let call = CallHeader {
            xid,
            program,
            version,
            procedure,
            credential: OpaqueAuth { flavor: flavors[0], body: &credential },
            verifier: OpaqueAuth { flavor: flavors[1], body: &verifier },
        };
        let mut buf = [0xff; 840];
        let mut writer = Writer::new(&mut buf);
        call.emit(&mut writer).unwrap();
        prop_assert_eq!(writer.position(), call.emitted_len());
        let mut reader = Reader::new(writer.written());
        prop_assert_eq!(CallHeader::parse(&mut reader), Ok(call));
        prop_assert_eq!(reader.finish(), Ok(()));
    }

    #[test]
    fn auth_sys_goes_there_and_back(
        fields: [u32; 3],
        machine_name in vec(any::<u8>(), 0..=255),
        gids in vec(any::<u32>(), 0..=16),
    ) {
        let [stamp, uid, gid] = fields;
        let gids = Gids::new(&gids).unwrap();
        let auth = AuthSys { stamp, machine_name: &machine_name, uid, gid, gids };
        let mut buf = [0xff; AuthSys::BODY_LEN_MAX];
        let mut writer = Writer::new(&mut buf);
        writer.value(&auth).unwrap();
        prop_assert_eq!(AuthSys::parse(writer.written()), Ok(auth));
    }

    #[test]
    fn any_octets_are_an_rpc_header_or_an_error(message in octets()) {
        let _ = AuthSys::parse(&message);
        if let Ok(call) = CallHeader::parse(&mut Reader::new(&message)) {
            let mut buf = vec![0; call.emitted_len()];
            call.emit(&mut Writer::new(&mut buf)).unwrap();
            prop_assert_eq!(CallHeader::parse(&mut Reader::new(&buf)), Ok(call));
        }
        if let Ok(reply) = ReplyHeader::parse(&mut Reader::new(&message)) {
            let mut buf = vec![0; reply.emitted_len()];
            reply.emit(&mut Writer::new(&mut buf)).unwrap();
            prop_assert_eq!(ReplyHeader::parse(&mut Reader::new(&buf)), Ok(reply));
        }
    }

    #[test]
    fn private_data_is_found_wherever_it_is(
        before in vec(0..0xf6_u8, 0..48),
        remote_invalidation: bool,
        send: u32,
        receive: u32,
        after in vec(any::<u8>(), 0..10),
    ) {
        let own = PrivateData {
            remote_invalidation,
            send_size: InlineSize::round_down(send),
            receive_size: InlineSize::round_down(receive),
        };
        let wire = [&before[..], &own.to_wire(), &after].concat();
        prop_assert_eq!(PrivateData::find(&wire), Some(own));
    }

    #[test]
    fn both_ends_agree_on_thresholds(own in any::<[u8; 8]>(), peer in any::<[u8; 8]>()) {
        let read = |mut wire: [u8; 8]| {
            wire[..5].copy_from_slice(&[0xf6, 0xab, 0x0e, 0x18, 1]);
            PrivateData::find(&wire).unwrap()
        };
        let (own, peer) = (read(own), read(peer));
        let here = inline_thresholds(&own, Some(&peer));
        let there = inline_thresholds(&peer, Some(&own));
        prop_assert_eq!((here.send, here.receive), (there.receive, there.send));
        prop_assert_eq!(here.remote_invalidation, there.remote_invalidation);
        prop_assert!((1024..=262_144).contains(&here.send));
    }

    /// Items written inline or reduced, in any mix, are read back as the same mix.
    #[test]
    fn reduced_items_are_found_where_they_were_left(
        items in vec((vec(any::<u8>(), 0..40), any::<bool>(), any::<bool>()), 0..8),
    ) {
        let mut buf = [0xff; 1024];
        let mut writer = Writer::new(&mut buf);
        let mut chunks = Vec::new();
        for (index, (item, reduced, roundup)) in items.iter().enumerate() {
            writer.u32(index as u32).unwrap();
            if *reduced {
                let len = item.len() as u32;
                let position = writer.eligible_opaque_reduced(len).unwrap();
                let len = if *roundup { len.next_multiple_of(4) } else { len };
                chunks.push(Reduced::read_chunk(index as u32, position, len));
            } else {
                writer.eligible_opaque_inline(item).unwrap();
            }
        }
        let end = writer.unreduced_position();

        let mut reader = Reader::with_reduced(writer.written(), &chunks);
        for (index, (item, reduced, _)) in items.iter().enumerate() {
            let index = index as u32;
            prop_assert_eq!(reader.u32(), Ok(index));
            let expected =
                if *reduced { Item::Reduced { index, len: item.len() as u32 } } else { Item::Inline(item) };
            prop_assert_eq!(reader.eligible_opaque(40), Ok(expected));
        }
        prop_assert_eq!(reader.unreduced_position(), end);
        prop_assert_eq!(reader.finish(), Ok(()));
    }

    /// A reader of any octets, with any chunks, ends: and never beyond its octets.
    #[test]
    fn any_octets_are_items_or_an_error(
        message in octets(),
        steps in vec(0..8_u8, 0..40),
        chunks in vec((0..80_u32, 0..8_u32), 0..4),
    ) {
        let chunks: Vec<_> =
            chunks.into_iter().map(|(position, len)| Reduced::read_chunk(0, position, len)).collect();
        let mut reader = Reader::with_reduced(&message, &chunks);
        for step in steps {
            let done = match step {
                0 => reader.u32().is_err(),
                1 => reader.u64().is_err(),
                2 => reader.bool().is_err(),
                3 => reader.opaque(8).is_err(),
                4 => reader.opaque(u32::MAX).is_err(),
                5 => reader.count(u32::MAX, 20).is_err(),
                6 => reader.opaque_fixed(5).is_err(),
                _ => reader.eligible_opaque(u32::MAX).is_err(),
            };
            if done {
                return Ok(());
            }
            prop_assert_eq!(reader.position() + reader.remaining(), message.len());
            prop_assert!(reader.unreduced_position() >= reader.position() as u64);
        }
    }
}
