//! Messages of the Linux kernel decode, and encode to the same octets. See `captures/README.md`.

use stag_wire::rpc::{Accepted, AuthSys, CallHeader, ReplyHeader, flavor};
use stag_wire::rpcrdma::{Direction, Emitter, Header, MessageKind, MessageProcedure, Segment, header_len};
use stag_wire::xdr::{Item, Reader, Reduced, Writer};

mod support;
use support::capture;

/// What the tests expect of a message.
struct Expected {
    direction: Direction,
    nomsg: bool,
    /// Position and length of each entry.
    reads: &'static [(u32, u32)],
    /// Lengths of the segments of the Write chunk.
    write: Option<&'static [u32]>,
    /// Lengths of the segments of the Reply chunk.
    reply: Option<&'static [u32]>,
}

const CALL: Expected =
    Expected { direction: Direction::Call, nomsg: false, reads: &[], write: None, reply: None };
const REPLY: Expected = Expected { direction: Direction::Reply, ..CALL };

fn lengths(segments: impl Iterator<Item = Segment>) -> Vec<u32> {
    segments.map(|segment| segment.length).collect()
}

/// Checks the message against `expected`, and that what was read is written as the same octets.
fn check(message: &[u8], expected: &Expected) {
    let (header, payload) = Header::parse(message).unwrap();
    let kind = if expected.nomsg { MessageKind::Nomsg } else { MessageKind::Msg };
    assert_eq!(header.procedure() == MessageProcedure::Nomsg, expected.nomsg);
    assert_eq!(header.direction(payload), Some(expected.direction));
    let reads: Vec<_> = header.read_list().map(|entry| (entry.position, entry.segment.length)).collect();
    assert_eq!(reads, expected.reads);
    let writes: Vec<_> = header.write_list().map(|chunk| lengths(chunk.segments())).collect();
    assert_eq!(writes, expected.write.into_iter().map(<[u32]>::to_vec).collect::<Vec<_>>());
    let reply = header.reply_chunk().map(|chunk| lengths(chunk.segments()));
    assert_eq!(reply, expected.reply.map(<[u32]>::to_vec));

    // The same again from the values.
    let mut buf = vec![0xff; message.len()];
    let mut emitter = Emitter::new(&mut buf, kind, header.xid(), header.credits()).unwrap();
    header.read_list().try_for_each(|entry| emitter.read_segment(entry)).unwrap();
    for chunk in header.write_list() {
        emitter.write_chunk(&chunk.segments().collect::<Vec<_>>()).unwrap();
    }
    if let Some(chunk) = header.reply_chunk() {
        emitter.reply_chunk(&chunk.segments().collect::<Vec<_>>()).unwrap();
    }
    let (len, rest) = emitter.finish().unwrap();
    let write_segments = header.write_list().map(|chunk| chunk.segment_count());
    let reply_segments = header.reply_chunk().map(|chunk| chunk.segment_count());
    assert_eq!(len, header_len(header.read_list().len(), write_segments, reply_segments));
    if expected.nomsg {
        assert_eq!(payload, b"");
    } else {
        encode_rpc(payload, expected.direction, rest);
    }
    assert_eq!(buf, message);
}

/// Reads the RPC header of `payload`, and writes it and what follows into `out`.
fn encode_rpc(payload: &[u8], direction: Direction, out: &mut [u8]) {
    let mut reader = Reader::new(payload);
    let mut writer = Writer::new(out);
    match direction {
        Direction::Call => {
            let call = CallHeader::parse(&mut reader).unwrap();
            assert_eq!(call.emitted_len(), reader.position());
            call.emit(&mut writer).unwrap();
            if call.credential.flavor == flavor::AUTH_SYS {
                let auth = AuthSys::parse(call.credential.body).unwrap();
                let mut body = [0xff; AuthSys::BODY_LEN_MAX];
                let mut writer = Writer::new(&mut body);
                writer.value(&auth).unwrap();
                assert_eq!(writer.written(), call.credential.body);
            }
        }
        _ => {
            let reply = ReplyHeader::parse(&mut reader).unwrap();
            assert_eq!(reply.emitted_len(), reader.position());
            reply.emit(&mut writer).unwrap();
        }
    }
    writer.opaque_fixed(reader.rest()).unwrap();
}

#[test]
fn short_messages() {
    check(&capture!("null-call"), &CALL);
    check(&capture!("null-reply"), &REPLY);
    check(&capture!("fsinfo-call"), &CALL);
    check(&capture!("fsinfo-reply"), &REPLY);
}

#[test]
fn a_read_by_write_chunk() {
    check(&capture!("read-call"), &Expected { write: Some(&[4096]), ..CALL });
    check(&capture!("read-reply"), &Expected { write: Some(&[100]), ..REPLY });
}

#[test]
fn items_by_read_chunk() {
    check(&capture!("write-call"), &Expected { reads: &[(112, 5000)], ..CALL });
    check(&capture!("write-reply"), &REPLY);
    check(&capture!("symlink-call"), &Expected { reads: &[(124, 4000)], ..CALL });
}

#[test]
fn a_long_reply() {
    check(&capture!("readdirplus-call"), &Expected { reply: Some(&[124, 65_536, 4]), ..CALL });
    check(&capture!("readdirplus-reply"), &Expected { nomsg: true, reply: Some(&[124, 51_984, 0]), ..REPLY });
}

#[test]
fn long_calls() {
    check(&capture!("setacl-call"), &Expected { nomsg: true, reads: &[(0, 96), (0, 5116)], ..CALL });
    let reads = &[(0, 168), (0, 20_000), (0, 16)];
    check(&capture!("setxattr-call"), &Expected { nomsg: true, reads, ..CALL });

    let reply = capture!("setacl-reply");
    check(&reply, &REPLY);
    let (header, payload) = Header::parse(&reply).unwrap();
    let answer = ReplyHeader::parse(&mut Reader::new(payload)).unwrap();
    assert_eq!(answer, ReplyHeader::accepted(header.xid(), Accepted::GarbageArgs));
}

#[test]
fn a_call_of_the_server() {
    check(&capture!("recall-call"), &CALL);
    check(&capture!("recall-reply"), &REPLY);
}

#[test]
fn our_echo_is_the_servers_8166_3_4_6_c() {
    // READ: the Write chunk of the Call with 100 octets written.
    let call = capture!("read-call");
    let reply = capture!("read-reply");
    let (header, _) = Header::parse(&call).unwrap();
    let mut buf = [0; 1024];
    let mut emitter = Emitter::new(&mut buf, MessageKind::Msg, header.xid(), 64).unwrap();
    emitter.echo_write_chunk(header.write_list().next().unwrap(), 100).unwrap();
    let (len, _) = emitter.finish().unwrap();
    assert_eq!(buf[..len], reply[..len]);

    // READDIRPLUS: the Reply chunk, filled in the order of its segments.
    let call = capture!("readdirplus-call");
    let reply = capture!("readdirplus-reply");
    let (header, _) = Header::parse(&call).unwrap();
    let mut emitter = Emitter::new(&mut buf, MessageKind::Nomsg, header.xid(), 64).unwrap();
    emitter.echo_reply_chunk(header.reply_chunk().unwrap(), 124 + 51_984).unwrap();
    let (len, _) = emitter.finish().unwrap();
    assert_eq!(buf[..len], reply);
}

#[test]
fn the_clients_position_is_where_its_item_is_8166_3_4_5_a() {
    let call = capture!("write-call");
    let (header, payload) = Header::parse(&call).unwrap();
    let entry = header.read_list().next().unwrap();
    let chunks = [Reduced::read_chunk(0, entry.position, entry.segment.length)];
    let mut reader = Reader::with_reduced(payload, &chunks);
    assert_eq!(CallHeader::parse(&mut reader).unwrap().procedure, 7);
    // File handle, offset, count, stable, then the data.
    reader.opaque(64).unwrap();
    assert_eq!(reader.u64(), Ok(0));
    assert_eq!((reader.u32(), reader.u32()), (Ok(5000), Ok(2)));
    assert_eq!(reader.eligible_opaque(1 << 20), Ok(Item::Reduced { index: 0, len: 5000 }));
    assert_eq!(reader.finish(), Ok(()));
}

#[test]
fn the_servers_result_is_in_the_write_chunk_8166_4_3_2_a() {
    let reply = capture!("read-reply");
    let (header, payload) = Header::parse(&reply).unwrap();
    let chunk = header.write_list().next().unwrap();
    let chunks = [Reduced::write_chunk(0, u32::try_from(chunk.total_len()).unwrap())];
    let mut reader = Reader::with_reduced(payload, &chunks);
    assert!(ReplyHeader::parse(&mut reader).unwrap().is_success());
    // Status, attributes, count, eof, then the data.
    assert_eq!((reader.u32(), reader.bool()), (Ok(0), Ok(true)));
    reader.opaque_fixed(84).unwrap();
    assert_eq!((reader.u32(), reader.bool()), (Ok(100), Ok(true)));
    assert_eq!(reader.eligible_opaque(4096), Ok(Item::Reduced { index: 0, len: 100 }));
    assert_eq!(reader.finish(), Ok(()));
}
