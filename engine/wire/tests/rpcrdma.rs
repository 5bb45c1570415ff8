//! Transport headers, rule by rule.

use stag_wire::rpcrdma::{
    Answer, Direction, Emitter, ErrorBody, Fixed, Header, MessageKind, MessageProcedure, ReadSegment,
    SEGMENTS_MAX, Segment, emit_err_chunk, emit_err_vers, emit_plain, header_len, procedure,
};
use stag_wire::rpcrdma::{ERR_CHUNK_LEN, ERR_VERS_LEN, HEADER_LEN_MIN, HeaderError};
use stag_wire::xdr::Overflow;

mod support;
use support::vector;

fn segment(handle: u32, length: u32, offset: u64) -> Segment {
    Segment { handle, length, offset }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn emit(
    kind: MessageKind,
    (xid, credits): (u32, u32),
    lists: impl FnOnce(&mut Emitter<'_>) -> Result<(), Overflow>,
) -> Vec<u8> {
    let mut buf = [0xff; 1024];
    let mut emitter = Emitter::new(&mut buf, kind, xid, credits).unwrap();
    lists(&mut emitter).unwrap();
    let (len, rest) = emitter.finish().unwrap();
    assert_eq!(rest.len(), 1024 - len);
    buf[..len].to_vec()
}

fn parse(message: &[u8]) -> (Header<'_>, &[u8]) {
    let (header, payload) = Header::parse(message).unwrap();
    // Whatever is parsed in these tests can be viewed again, and is the same.
    let again = Header::with_layout(message, header.layout()).unwrap();
    assert_eq!(again.fixed(), header.fixed());
    assert_eq!(again.procedure(), header.procedure());
    assert!(again.read_list().eq(header.read_list()));
    assert!(again.write_list().eq(header.write_list()));
    assert_eq!(again.write_chunk_count(), header.write_chunk_count());
    assert_eq!(again.reply_chunk(), header.reply_chunk());
    assert_eq!(again.is_plain(), header.is_plain());
    assert_eq!(header.layout().header_len(), message.len() - payload.len());
    (header, payload)
}

fn refused(message: &[u8]) -> HeaderError {
    Header::parse(message).map(|(header, _)| header.fixed()).unwrap_err()
}

#[test]
fn the_null_call_and_its_reply_8166_4_1_b() {
    for (name, message) in [("call", vector!("null-call")), ("reply", vector!("null-reply"))] {
        let (header, payload) = parse(&message);
        let fixed = Fixed { xid: 0x1122_3344, version: 1, credits: 32, procedure: procedure::MSG };
        assert_eq!(header.fixed(), fixed);
        assert_eq!(header.procedure(), MessageProcedure::Msg);
        assert!(header.is_plain());
        assert_eq!(header.read_list().len(), 0);
        assert_eq!(header.write_list().count(), 0);
        assert_eq!(header.reply_chunk(), None);
        assert_eq!(payload, &message[HEADER_LEN_MIN..]);
        assert_eq!(header.check_call(payload), Ok(()));
        let direction = if name == "call" { Direction::Call } else { Direction::Reply };
        assert_eq!(header.direction(payload), Some(direction));

        let mut buf = [0xff; 100];
        assert_eq!(emit_plain(&mut buf, 0x1122_3344, 32).unwrap().len(), 72);
        assert_eq!(buf[..28], message[..28]);
        let plain = emit(MessageKind::Msg, (0x1122_3344, 32), |_| Ok(()));
        assert_eq!(plain, message[..28]);
        assert_eq!(header_len(0, [], None), 28);
    }
}

#[test]
fn a_read_chunk_of_two_segments_8166_4_1_2_a() {
    let message = vector!("write-call");
    let (header, payload) = parse(&message);
    let expected = [
        ReadSegment { position: 96, segment: segment(0xc101, 4096, 0x7f00_0000_1000) },
        ReadSegment { position: 96, segment: segment(0xc202, 1905, 0x7f00_0000_9000) },
    ];
    assert!(header.read_list().eq(expected));
    assert!(!header.has_position_zero());
    assert_eq!(payload.len(), 96);
    assert_eq!(header.check_call(payload), Ok(()));
    assert_eq!(header.check_reply(payload), Err(HeaderError::ReadListInReply), "8166-4.3.1-a");

    let emitted = emit(MessageKind::Msg, (0xa000_0001, 32), |emitter| {
        expected.into_iter().try_for_each(|entry| emitter.read_segment(entry))
    });
    assert_eq!(emitted, message[..0x4c]);
    assert_eq!(emitted.len(), header_len(2, [], None));
}

#[test]
fn a_write_chunk_and_its_echo_8166_4_1_2_b_8166_3_4_6_c() {
    let call = vector!("read-call");
    let (header, payload) = parse(&call);
    assert_eq!(payload, b"");
    let expected = [segment(0xd101, 4096, 0x7f00_0002_0000), segment(0xd202, 4096, 0x7f00_0004_0000)];
    let chunk = header.write_list().next().unwrap();
    assert_eq!((header.write_chunk_count(), chunk.segment_count(), chunk.total_len()), (1, 2, 8192));
    assert!(chunk.segments().eq(expected));
    let emitted = emit(MessageKind::Msg, (0xa000_0002, 32), |emitter| emitter.write_chunk(&expected));
    assert_eq!(emitted, call);
    assert_eq!(emitted.len(), header_len(0, [2], None));

    let reply = vector!("read-reply");
    let emitted = emit(MessageKind::Msg, (0xa000_0002, 30), |emitter| emitter.echo_write_chunk(chunk, 5001));
    assert_eq!(emitted, reply);
    let (header, _) = parse(&reply);
    assert_eq!(header.write_list().next().map(|chunk| chunk.total_len()), Some(5001));
}

#[test]
fn an_unused_and_an_empty_write_chunk_8166_4_3_2_2_b_8166_4_3_2_3_b() {
    let call = vector!("read-call");
    let (header, _) = parse(&call);
    let chunk = header.write_list().next().unwrap();
    let emitted = emit(MessageKind::Msg, (7, 1), |emitter| emitter.echo_write_chunk(chunk, 0));
    assert_eq!(emitted[20..64], vector!("write-list-unused"));
    let (header, _) = parse(&emitted);
    let unused = header.write_list().next().unwrap();
    assert_eq!((unused.is_empty(), unused.total_len()), (false, 0));

    let call = emit(MessageKind::Msg, (7, 1), |emitter| emitter.write_chunk(&[]));
    assert_eq!(call[20..32], vector!("write-list-empty"));
    let (header, _) = parse(&call);
    let empty = header.write_list().next().unwrap();
    assert!(empty.is_empty());
    let reply = emit(MessageKind::Msg, (7, 1), |emitter| emitter.echo_write_chunk(empty, 0));
    assert_eq!(reply, call, "returned at the same place, empty");
}

#[test]
fn several_write_chunks_keep_their_order_8166_4_3_2_1_a() {
    let segments = [segment(1, 10, 100), segment(2, 20, 200), segment(3, 30, 300)];
    let call = emit(MessageKind::Msg, (7, 1), |emitter| {
        emitter.write_chunk(&segments[..2])?;
        emitter.write_chunk(&[])?;
        emitter.write_chunk(&segments[2..])
    });
    assert_eq!(call.len(), header_len(0, [2, 0, 1], None));
    let (header, _) = parse(&call);
    let lens: Vec<_> = header.write_list().map(|chunk| (chunk.segment_count(), chunk.total_len())).collect();
    assert_eq!(lens, [(2, 30), (0, 0), (1, 30)]);
}

#[test]
fn a_long_call_and_a_long_reply_8166_4_2_4_b_8166_4_1_2_c() {
    let call = vector!("long-call");
    let (header, payload) = parse(&call);
    assert_eq!((header.procedure(), payload), (MessageProcedure::Nomsg, &b""[..]));
    let zero = ReadSegment { position: 0, segment: segment(0xe101, 3000, 0x7f00_0008_0000) };
    assert!(header.read_list().eq([zero]));
    assert!(header.has_position_zero());
    let offered = [segment(0xe202, 65_536, 0x7f00_0010_0000)];
    let chunk = header.reply_chunk().unwrap();
    assert!(chunk.segments().eq(offered));
    assert_eq!(header.check_call(payload), Ok(()));
    assert_eq!(header.direction(payload), Some(Direction::Call));
    let emitted = emit(MessageKind::Nomsg, (0xa000_0003, 32), |emitter| {
        emitter.read_segment(zero)?;
        emitter.reply_chunk(&offered)
    });
    assert_eq!(emitted, call);
    assert_eq!(emitted.len(), header_len(1, [], Some(1)));

    let reply = vector!("long-reply");
    let emitted =
        emit(MessageKind::Nomsg, (0xa000_0003, 32), |emitter| emitter.echo_reply_chunk(chunk, 20_480));
    assert_eq!(emitted, reply);
    let (header, payload) = parse(&reply);
    assert_eq!(header.check_reply(payload), Ok(()));
    assert_eq!(header.direction(payload), Some(Direction::Reply));
    assert_eq!(header.check_call(payload), Err(HeaderError::NoPayload), "8166-X-4");
}

#[test]
fn errors_read_and_write_8166_4_5_b() {
    let vers = vector!("err-vers");
    let (header, _) = parse(&vers);
    assert_eq!(header.procedure(), MessageProcedure::Error(ErrorBody::Vers { low: 1, high: 1 }));
    assert_eq!((header.xid(), header.version(), header.credits()), (0xa000_0004, 2, 32));
    assert_eq!(header.direction(&[]), Some(Direction::Error));
    let mut buf = [0xff; ERR_VERS_LEN];
    assert_eq!(emit_err_vers(&mut buf, 0xa000_0004, 2, 32, (1, 1)), Ok(ERR_VERS_LEN));
    assert_eq!(buf[..], vers);
    assert_eq!(emit_err_vers(&mut buf[..27], 0, 2, 32, (1, 1)), Err(Overflow));

    let chunk = vector!("err-chunk");
    let (header, _) = parse(&chunk);
    assert_eq!(header.procedure(), MessageProcedure::Error(ErrorBody::Chunk));
    assert_eq!((header.xid(), header.version(), header.credits()), (0xa000_0005, 1, 32));
    let mut buf = [0xff; ERR_CHUNK_LEN];
    assert_eq!(emit_err_chunk(&mut buf, 0xa000_0005, 1, 32), Ok(ERR_CHUNK_LEN));
    assert_eq!(buf[..], chunk);
    assert_eq!(emit_err_chunk(&mut buf[..19], 0, 1, 32), Err(Overflow));
}

#[test]
fn an_error_is_never_answered_8166_4_2_4_c() {
    for message in [vector!("err-vers"), vector!("err-chunk")] {
        let (header, payload) = parse(&message);
        let error = header.check_call(payload).unwrap_err();
        assert_eq!((error, error.answer()), (HeaderError::UnexpectedError, Answer::Drop));
        for len in 0..message.len() {
            assert_eq!(refused(&message[..len]).answer(), Answer::Drop);
        }
    }
}

#[test]
fn an_error_that_cannot_be_decoded_is_dropped_8166_4_5_e() {
    for code in [0, 3, u32::MAX] {
        let error = refused(&words(&[7, 1, 1, 4, code, 1, 1]));
        assert_eq!((error, error.answer()), (HeaderError::ErrorBody, Answer::Drop));
    }
    // ERR_CHUNK of another version: only ERR_VERS is laid out alike in all (8166-7-a).
    let error = refused(&words(&[7, 2, 1, 4, 2]));
    assert_eq!((error, error.answer()), (HeaderError::ErrorBody, Answer::Drop));
}

#[test]
fn octets_behind_an_error_or_nomsg_are_left_to_be_ignored_8166_x_5() {
    for mut message in
        [vector!("err-vers"), vector!("err-chunk"), vector!("long-call"), vector!("long-reply")]
    {
        message.extend([1, 2, 3]);
        assert_eq!(parse(&message).1, [1, 2, 3]);
    }
}

#[test]
fn what_is_too_short_is_dropped_8166_4_5_a_8166_x_1() {
    let message = vector!("null-call");
    for len in 0..HEADER_LEN_MIN {
        assert_eq!(refused(&message[..len]), HeaderError::Short);
    }
    for procedure in [procedure::NOMSG, procedure::MSGP, 9] {
        let message = words(&[7, 1, 1, procedure, 0, 0]);
        assert_eq!(refused(&message), HeaderError::Short);
    }
    assert_eq!(HeaderError::Short.answer(), Answer::Drop);
}

#[test]
fn another_version_is_answered_whatever_follows_8166_4_5_1_a() {
    for version in [0, 2, u32::MAX] {
        for procedure in [0, 1, 2, 3, 9] {
            for body in 0..5 {
                let message = words(&[&[7, version, 1, procedure][..], &[0xff; 5][..body]].concat());
                assert_eq!(refused(&message), HeaderError::Version(version));
            }
        }
    }
    assert_eq!(HeaderError::Version(2).answer(), Answer::ErrVers);
}

#[test]
fn the_fixed_words_are_read_for_any_version_8166_4_1_a() {
    let message = words(&[7, 2, 3, 9, 5]);
    let fixed = Fixed { xid: 7, version: 2, credits: 3, procedure: 9 };
    assert_eq!(Fixed::parse(&message), Ok((fixed, &message[16..])));
    assert_eq!(fixed.to_wire(), message[..16]);
    assert_eq!(Fixed::parse(&message[..15]), Err(HeaderError::Short));
}

#[test]
fn done_is_dropped_and_msgp_and_others_are_answered_8166_4_6_1_a_8166_4_6_2_a() {
    assert_eq!(refused(&words(&[7, 1, 1, 3])), HeaderError::Done, "16 octets are enough");
    assert_eq!(HeaderError::Done.answer(), Answer::Drop);
    assert_eq!(refused(&words(&[7, 1, 1, 2, 0, 0, 0, 0, 0])), HeaderError::Padded);
    assert_eq!(HeaderError::Padded.answer(), Answer::ErrChunk);
    for procedure in [5, u32::MAX] {
        let error = refused(&words(&[7, 1, 1, procedure, 0, 0, 0]));
        assert_eq!((error, error.answer()), (HeaderError::Procedure(procedure), Answer::ErrChunk));
    }
}

#[test]
fn list_words_are_0_or_1_8166_x_2() {
    for at in [4, 5, 6] {
        for found in [2, 1 << 24, u32::MAX] {
            let mut message = [7, 1, 1, 0, 0, 0, 0, 7, 0];
            message[at] = found;
            let error = refused(&words(&message));
            assert_eq!((error, error.answer()), (HeaderError::ListWord(found), Answer::ErrChunk));
        }
    }
}

#[test]
fn lists_cut_short_are_answered_8166_4_5_2_a() {
    let segments = [segment(1, 10, 100), segment(2, 20, 200)];
    let message = emit(MessageKind::Msg, (7, 1), |emitter| {
        emitter.read_segment(ReadSegment { position: 8, segment: segments[0] })?;
        emitter.write_chunk(&segments)?;
        emitter.reply_chunk(&segments)
    });
    assert_eq!(message.len(), header_len(1, [2], Some(2)));
    parse(&message);
    for len in HEADER_LEN_MIN..message.len() {
        assert_eq!(refused(&message[..len]), HeaderError::Truncated, "{len} octets");
    }
    assert_eq!(HeaderError::Truncated.answer(), Answer::ErrChunk);
}

#[test]
fn counts_are_bounded_8166_x_13() {
    let too_many = HeaderError::TooManySegments { limit: SEGMENTS_MAX };
    assert_eq!(too_many.answer(), Answer::ErrChunk);
    // 2^32 - 1 segments claimed, in the Write list and in the Reply chunk: nothing overflows.
    assert_eq!(refused(&words(&[7, 1, 1, 0, 0, 1, u32::MAX, 0, 0, 0])), too_many);
    assert_eq!(refused(&words(&[7, 1, 1, 0, 0, 0, 1, u32::MAX, 0, 0])), too_many);

    // The limit counts all lists together, and empty Write chunks for themselves.
    let message = emit(MessageKind::Msg, (7, 1), |emitter| {
        emitter.read_segment(ReadSegment { position: 8, segment: segment(1, 1, 1) })?;
        emitter.write_chunk(&[segment(2, 2, 2); 2])?;
        emitter.write_chunk(&[])?;
        emitter.reply_chunk(&[segment(3, 3, 3)])
    });
    assert!(Header::parse_limited(&message, 4).is_ok());
    let refused = Header::parse_limited(&message, 3).map(|(header, _)| header.xid());
    assert_eq!(refused, Err(HeaderError::TooManySegments { limit: 3 }));
    let empty = emit(MessageKind::Msg, (7, 1), |emitter| (0..3).try_for_each(|_| emitter.write_chunk(&[])));
    let refused = Header::parse_limited(&empty, 2).map(|(header, _)| header.xid());
    assert_eq!(refused, Err(HeaderError::TooManySegments { limit: 2 }));
    // A plain header passes any limit.
    assert!(Header::parse_limited(&vector!("null-call"), 0).is_ok());
}

#[test]
fn sixteen_segments_in_each_chunk_are_accepted_8267_6_4_2_a() {
    let segments = [segment(1, u32::MAX, 0); 16];
    let mut buf = [0; 2048];
    let mut emitter = Emitter::new(&mut buf, MessageKind::Nomsg, 7, 1).unwrap();
    for position in [0, 96] {
        for segment in segments {
            emitter.read_segment(ReadSegment { position, segment }).unwrap();
        }
    }
    emitter.write_chunk(&segments).unwrap();
    emitter.reply_chunk(&segments).unwrap();
    let (len, _) = emitter.finish().unwrap();
    assert_eq!(len, 1320, "8267-D-2");
    let (header, _) = parse(&buf[..len]);
    assert_eq!(header.read_list().len(), 32);
    // The sum of the lengths is beyond 32 bits.
    assert_eq!(header.reply_chunk().unwrap().total_len(), 16 * u64::from(u32::MAX));
}

#[test]
fn positions_are_multiples_of_4_8166_3_4_5_a() {
    for position in [1, 2, 3, 97, u32::MAX] {
        let message = emit(MessageKind::Msg, (7, 1), |emitter| {
            emitter.read_segment(ReadSegment { position, segment: segment(1, 1, 1) })
        });
        assert_eq!(refused(&message), HeaderError::Position(position));
    }
    assert_eq!(HeaderError::Position(1).answer(), Answer::ErrChunk);
}

#[test]
fn a_segment_must_end_within_64_bits() {
    let bad = segment(1, 16, u64::MAX - 15);
    let in_list = |list: usize, segment: Segment| {
        emit(MessageKind::Msg, (7, 1), |emitter| match list {
            0 => emitter.read_segment(ReadSegment { position: 8, segment }),
            1 => emitter.write_chunk(&[segment]),
            _ => emitter.reply_chunk(&[segment]),
        })
    };
    for list in 0..3 {
        assert_eq!(refused(&in_list(list, bad)), HeaderError::SegmentRange);
        parse(&in_list(list, Segment { length: 15, ..bad }));
    }
    assert_eq!(HeaderError::SegmentRange.answer(), Answer::ErrChunk);
}

#[test]
fn a_message_has_its_payload_in_one_place_8166_x_3() {
    let mut message = vector!("long-call");
    message[15] = 0;
    assert_eq!(refused(&message), HeaderError::PositionZero);
    assert_eq!(HeaderError::PositionZero.answer(), Answer::ErrChunk);
}

#[test]
fn nomsg_needs_a_chunk_for_its_payload_8166_4_2_4_b_8166_x_4() {
    assert_eq!(refused(&words(&[7, 1, 1, 1, 0, 0, 0])), HeaderError::NoPayload);
    assert_eq!(HeaderError::NoPayload.answer(), Answer::ErrChunk);

    // A Call with other lists than the Position Zero Read chunk.
    let message = emit(MessageKind::Nomsg, (7, 1), |emitter| {
        emitter.read_segment(ReadSegment { position: 8, segment: segment(1, 1, 1) })
    });
    let (header, payload) = parse(&message);
    assert_eq!(header.check_call(payload), Err(HeaderError::NoPayload));
    assert_eq!(header.direction(payload), Some(Direction::Call));

    // A Reply without a Reply chunk, or with one of no octets (LX-5).
    let message = emit(MessageKind::Nomsg, (7, 1), |emitter| emitter.write_chunk(&[]));
    let (header, payload) = parse(&message);
    assert_eq!(header.check_reply(payload), Err(HeaderError::NoPayload));
    assert_eq!(header.direction(payload), None);
    let message = emit(MessageKind::Nomsg, (7, 1), |emitter| emitter.reply_chunk(&[segment(1, 0, 1)]));
    let (header, payload) = parse(&message);
    assert_eq!(header.check_reply(payload), Err(HeaderError::NoPayload));
}

#[test]
fn a_short_reply_leaves_its_reply_chunk_empty_lx_5() {
    let with_reply_chunk = |length| {
        let mut message =
            emit(MessageKind::Msg, (0x1122_3344, 1), |emitter| emitter.reply_chunk(&[segment(1, length, 1)]));
        message.extend(&vector!("null-reply")[28..]);
        message
    };
    let message = with_reply_chunk(0);
    let (header, payload) = parse(&message);
    assert_eq!(header.check_reply(payload), Ok(()));
    let message = with_reply_chunk(1);
    let (header, payload) = parse(&message);
    let error = header.check_reply(payload).unwrap_err();
    assert_eq!((error, error.answer()), (HeaderError::ReplyChunkWithMessage, Answer::Drop));
}

#[test]
fn header_and_payload_have_the_same_xid_8166_4_2_1_a() {
    let mut message = vector!("null-call");
    message[3] = 0;
    let (header, payload) = parse(&message);
    let error = header.check_call(payload).unwrap_err();
    assert_eq!((error, error.answer()), (HeaderError::Xid { payload: 0x1122_3344 }, Answer::ErrChunk));
    assert_eq!(header.check_reply(payload), Err(error));
}

#[test]
fn a_payload_has_an_xid_and_a_type() {
    let message = vector!("null-call");
    for len in 28..36 {
        let (header, payload) = parse(&message[..len]);
        let error = header.check_call(payload).unwrap_err();
        assert_eq!((error, error.answer()), (HeaderError::PayloadShort, Answer::ErrChunk));
        assert_eq!(header.direction(payload), None);
    }
}

#[test]
fn a_msg_type_that_does_not_exist_has_no_direction() {
    let mut message = vector!("null-call");
    message[35] = 2;
    let (header, payload) = parse(&message);
    assert_eq!(header.direction(payload), None);
}

#[test]
fn an_echo_fills_segments_in_order_8166_3_4_6_b() {
    let offered = [segment(1, 10, 100), segment(2, 0, 200), segment(3, 5, 300)];
    let call = emit(MessageKind::Nomsg, (7, 1), |emitter| emitter.reply_chunk(&offered));
    let (header, _) = parse(&call);
    let chunk = header.reply_chunk().unwrap();
    for (written, lengths) in
        [(0, [0, 0, 0]), (9, [9, 0, 0]), (10, [10, 0, 0]), (12, [10, 0, 2]), (15, [10, 0, 5])]
    {
        let reply = emit(MessageKind::Nomsg, (7, 1), |emitter| emitter.echo_reply_chunk(chunk, written));
        let (header, _) = parse(&reply);
        let echoed = header.reply_chunk().unwrap();
        let expected =
            offered.into_iter().zip(lengths).map(|(offered, length)| Segment { length, ..offered });
        assert!(echoed.segments().eq(expected));
    }
    for written in [16, u64::MAX] {
        let mut buf = [0; 1024];
        let mut emitter = Emitter::new(&mut buf, MessageKind::Nomsg, 7, 1).unwrap();
        assert_eq!(emitter.echo_reply_chunk(chunk, written), Err(Overflow));
    }
}

#[test]
fn a_header_needs_its_room() {
    let entry = ReadSegment { position: 8, segment: segment(1, 1, 1) };
    let full = header_len(1, [1], Some(1));
    for room in 0..full {
        let mut buf = [0; 256];
        let emitted = Emitter::new(&mut buf[..room], MessageKind::Msg, 7, 1).and_then(|mut emitter| {
            emitter.read_segment(entry)?;
            emitter.write_chunk(&[entry.segment])?;
            emitter.reply_chunk(&[entry.segment])?;
            emitter.finish().map(|(len, _)| len)
        });
        assert_eq!(emitted, Err(Overflow), "{room} octets");
    }
    assert_eq!(emit_plain(&mut [0; 27], 7, 1), Err(Overflow));
}

#[test]
#[should_panic(expected = "in the order of the wire")]
fn lists_out_of_order_are_our_own_bug() {
    let mut buf = [0; 256];
    let mut emitter = Emitter::new(&mut buf, MessageKind::Msg, 7, 1).unwrap();
    emitter.write_chunk(&[]).unwrap();
    let _ = emitter.read_segment(ReadSegment::default());
}

#[test]
fn a_layout_over_other_octets_stays_within_them() {
    let call = vector!("long-call");
    let (header, _) = parse(&call);
    let layout = header.layout();
    assert!(Header::with_layout(&call[..call.len() - 1], layout).is_none());
    let nonsense = vec![0xff; call.len()];
    let header = Header::with_layout(&nonsense, layout).unwrap();
    assert_eq!(header.read_list().count(), 1);
    assert_eq!(header.write_list().count(), 0);
    assert_eq!(header.reply_chunk(), None);
}
