//! Targets for the parsers of `stag-wire`.

use stag_wire::cm_private_data::{LEN, PrivateData, inline_thresholds};
use stag_wire::rpc::{AuthSys, CallHeader, ReplyHeader, RpcError, flavor};
use stag_wire::rpcrdma::{
    Answer, Emitter, ErrorBody, Fixed, HEADER_LEN_MIN, Header, MessageKind, MessageProcedure, SINGLE_LEN,
    Single, SingleChunk, emit_err_chunk, emit_err_vers, header_len, procedure,
};
use stag_wire::xdr::{Item, Reader, Reduced, Writer};

/// A transport header: what parses is written again as the same octets, and what does not gets an answer.
pub fn rpcrdma_header(message: &[u8]) {
    for segments_max in [stag_wire::rpcrdma::SEGMENTS_MAX, 3] {
        match Header::parse_limited(message, segments_max) {
            Ok((header, payload)) => check_header(message, &header, payload, segments_max),
            Err(error) => {
                assert_eq!(Single::parse(message), None, "parsed, although it is in error");
                // Only what has the fixed words, and is no error itself, is answered.
                if error.answer() != Answer::Drop {
                    let (fixed, _) = Fixed::parse(message).expect("answered without an xid");
                    assert_ne!(fixed.procedure, procedure::ERROR, "an error was answered");
                    assert_eq!(error.answer() == Answer::ErrVers, fixed.version != 1);
                }
            }
        }
    }
}

/// The short parser finds what the general one does in its headers, and emits the same octets.
fn check_single(message: &[u8], header: &Header<'_>) {
    let reads: Vec<_> = header.read_list().collect();
    let writes: Vec<Vec<_>> = header.write_list().map(|chunk| chunk.segments().collect()).collect();
    let chunk = match (&reads[..], &writes[..]) {
        _ if header.procedure() != MessageProcedure::Msg || header.reply_chunk().is_some() => None,
        ([read], []) => Some(SingleChunk::Read(*read)),
        ([], [chunk]) if chunk.len() == 1 => Some(SingleChunk::Write(chunk[0])),
        _ => None,
    };
    let wanted = chunk.map(|chunk| Single { xid: header.xid(), credits: header.credits(), chunk });
    let found = Single::parse(message).map(|(single, _)| single);
    assert_eq!(found, wanted, "found by one parser only");
    if let Some(single) = found {
        assert_eq!(single.chunk.layout(), header.layout());
        let mut again = [0xff; SINGLE_LEN];
        single.emit(&mut again).expect("it is as long");
        assert_eq!(again, message[..SINGLE_LEN], "emitted as it was parsed");
    }
}

fn check_header(message: &[u8], header: &Header<'_>, payload: &[u8], segments_max: u32) {
    let len = message.len() - payload.len();
    assert_eq!(&message[len..], payload);
    check_single(message, header);
    assert_eq!(header.layout().header_len(), len);
    let (call, reply) = (header.check_call(payload), header.check_reply(payload));
    let _ = header.direction(payload);

    let again = emit_again(header);
    assert_eq!(again, &message[..len], "written as it was read");
    let other = Header::with_layout(message, header.layout()).expect("the same message");
    assert_eq!(emit_again(&other), again, "viewed again");

    let chunks: Vec<_> = header.write_list().chain(header.reply_chunk()).collect();
    assert_eq!(header.write_list().count(), header.write_chunk_count());
    let segments = header.read_list().len() + chunks.iter().map(|chunk| chunk.segment_count()).sum::<usize>();
    assert!(segments <= segments_max as usize && header.write_chunk_count() <= segments_max as usize);
    for segment in
        header.read_list().map(|entry| entry.segment).chain(chunks.iter().flat_map(|c| c.segments()))
    {
        assert!(segment.offset.checked_add(u64::from(segment.length)).is_some());
    }
    assert!(header.read_list().all(|entry| entry.position % 4 == 0));

    match header.procedure() {
        MessageProcedure::Error(_) => assert!(call.is_err() && reply.is_err()),
        MessageProcedure::Msg => {
            assert!(!header.has_position_zero());
            assert!(call.is_err() || payload.len() >= 8);
        }
        MessageProcedure::Nomsg => assert!(!header.is_plain()),
    }
    assert_eq!(header.is_plain(), len <= HEADER_LEN_MIN);
}

/// Writes what `header` says.
fn emit_again(header: &Header<'_>) -> Vec<u8> {
    let writes = header.write_list().map(|chunk| chunk.segment_count());
    let reply = header.reply_chunk().map(|chunk| chunk.segment_count());
    let mut buf = vec![0xff; header_len(header.read_list().len(), writes, reply)];
    let (xid, version, credits) = (header.xid(), header.version(), header.credits());
    let kind = match header.procedure() {
        MessageProcedure::Msg => MessageKind::Msg,
        MessageProcedure::Nomsg => MessageKind::Nomsg,
        MessageProcedure::Error(body) => {
            let len = match body {
                ErrorBody::Vers { low, high } => emit_err_vers(&mut buf, xid, version, credits, (low, high)),
                ErrorBody::Chunk => emit_err_chunk(&mut buf, xid, version, credits),
            };
            buf.truncate(len.expect("28 octets are there"));
            return buf;
        }
    };
    let mut emitter = Emitter::new(&mut buf, kind, xid, credits).expect("sized by header_len");
    for entry in header.read_list() {
        emitter.read_segment(entry).expect("sized by header_len");
    }
    for chunk in header.write_list() {
        emitter.echo_write_chunk(chunk, chunk.total_len()).expect("all of its room");
    }
    if let Some(chunk) = header.reply_chunk() {
        emitter.echo_reply_chunk(chunk, chunk.total_len()).expect("all of its room");
    }
    let (_, rest) = emitter.finish().expect("sized by header_len");
    assert!(rest.is_empty(), "header_len is exact");
    buf
}

/// An RPC header: what parses as a Call or a Reply survives being written, what is refused has an answer
/// unless it must be dropped.
pub fn rpc_header(message: &[u8]) {
    let mut reader = Reader::new(message);
    match CallHeader::parse(&mut reader) {
        Ok(call) => {
            let read = reader.position();
            assert_eq!(call.emitted_len(), read);
            let mut buf = vec![0xff; read];
            call.emit(&mut Writer::new(&mut buf)).expect("sized by emitted_len");
            assert_eq!(CallHeader::parse(&mut Reader::new(&buf)), Ok(call));
            if call.credential.flavor == flavor::AUTH_SYS {
                auth_sys(call.credential.body);
            }
        }
        Err(error) => {
            assert_eq!(ReplyHeader::refusal(error).is_none(), error == RpcError::Drop);
            if let Some(answer) = ReplyHeader::refusal(error) {
                assert_eq!(answer.xid.to_be_bytes(), message[..4]);
            }
        }
    }

    let mut reader = Reader::new(message);
    if let Ok(reply) = ReplyHeader::parse(&mut reader) {
        assert_eq!(reply.emitted_len(), reader.position());
        let mut buf = vec![0xff; reader.position()];
        reply.emit(&mut Writer::new(&mut buf)).expect("sized by emitted_len");
        assert_eq!(ReplyHeader::parse(&mut Reader::new(&buf)), Ok(reply));
    }
    auth_sys(message);
}

fn auth_sys(body: &[u8]) {
    let Ok(auth) = AuthSys::parse(body) else { return };
    assert!(auth.machine_name.len() <= 255 && auth.gids.len() <= 16);
    let mut buf = [0xff; AuthSys::BODY_LEN_MAX];
    let mut writer = Writer::new(&mut buf);
    writer.value(&auth).expect("BODY_LEN_MAX is enough");
    assert_eq!(AuthSys::parse(writer.written()), Ok(auth));
}

/// Private data: the first good block is found, and no other.
pub fn cm_private_data(private_data: &[u8]) {
    let good = |block: &&[u8]| block.starts_with(&[0xf6, 0xab, 0x0e, 0x18, 1]);
    let expected = private_data.windows(LEN).find(good);
    let found = PrivateData::find(private_data);
    assert_eq!(found.is_some(), expected.is_some());
    if let (Some(found), Some(block)) = (found, expected) {
        let mut wire = [0; LEN];
        wire.copy_from_slice(block);
        wire[5] &= 1;
        assert_eq!(found.to_wire(), wire);
    }
    let agreed = inline_thresholds(&found.unwrap_or(PrivateData::ABSENT), None);
    assert_eq!((agreed.send, agreed.receive, agreed.remote_invalidation), (1024, 1024, false));
}

/// A reader: the input is a number of chunks, the chunks, a number of steps, the steps, and then the stream.
///
/// It never reads beyond the stream, its places are right, and a chunk is given out at most once.
pub fn xdr_reader(input: &[u8]) {
    let Some((chunks, rest)) = split_counted(input, 3, 4) else { return };
    let Some((steps, stream)) = split_counted(rest, 1, 64) else { return };
    let chunks: Vec<Reduced> = chunks
        .chunks_exact(3)
        .zip(0..)
        .map(|(chunk, index)| match chunk[0] {
            0xff => Reduced::write_chunk(index, u32::from(chunk[1])),
            0xfe => Reduced::empty_write_chunk(index),
            position => {
                Reduced::read_chunk(index, u32::from(position), u32::from(chunk[1]) << (chunk[2] % 32))
            }
        })
        .collect();

    let mut reader = Reader::with_reduced(stream, &chunks);
    let mut next = 0;
    for step in steps {
        let before = reader.unreduced_position();
        let result = match step % 12 {
            0 => reader.u32().map(drop),
            1 => reader.i32().map(drop),
            2 => reader.u64().map(drop),
            3 => reader.i64().map(drop),
            4 => reader.bool().map(drop),
            5 => reader.enumeration(|value| (value < 3).then_some(())),
            6 => reader.array::<24>().map(drop),
            7 => reader.opaque_fixed(usize::from(*step)).map(drop),
            8 => reader.opaque(u32::from(*step)).map(drop),
            9 => reader.string(u32::MAX).map(drop),
            10 => reader.count(u32::MAX, usize::from(*step)).map(drop),
            _ => reader.eligible_opaque(u32::MAX).map(|item| {
                if let Item::Reduced { index, .. } = item {
                    assert!(index >= next, "a chunk was given out twice");
                    next = index + 1;
                }
            }),
        };
        if result.is_err() {
            return;
        }
        assert_eq!(reader.position() + reader.remaining(), stream.len());
        assert!(reader.unreduced_position() >= before);
    }
    let left = reader.remaining();
    let lenient = reader.clone().finish_lenient();
    assert_eq!(reader.finish().is_ok(), lenient.is_ok() && left == 0);
}

/// Splits off a count, at most `max`, and as many records of `len` octets.
fn split_counted(input: &[u8], len: usize, max: u8) -> Option<(&[u8], &[u8])> {
    let (count, rest) = input.split_first()?;
    rest.split_at_checked(usize::from(*count % (max + 1)) * len)
}
