//! Reliable reply, as octets: the block in the private data, RDMA_DONE, and a Reply that the Responder exposes.

use stag_wire::cm_private_data::PrivateData;
use stag_wire::reliable_reply::{
    IDENTIFIER, LEN, ReliableReplies, ReliableReply, agree, announces_version_2, announcing_version_2,
};
use stag_wire::rpcrdma::{
    self, Done, Emitter, Header, HeaderError, MessageKind, MessageProcedure, ReadSegment, Segment, emit_plain,
};
use stag_wire::xdr::Overflow;

mod support;
use support::vector;

const BOTH: ReliableReply = ReliableReply { pulls: true, exposes: true, done_receives: 8 };

#[test]
fn the_block_reads_and_writes() {
    // RR-P-4
    let example = vector!("private-data-reliable-reply");
    assert_eq!(ReliableReply::find(&example), Some(BOTH));
    assert_eq!(BOTH.to_wire()[..], example);
    for pulls in [false, true] {
        for exposes in [false, true] {
            let block = ReliableReply { pulls, exposes, done_receives: 0xf6ab };
            assert_eq!(ReliableReply::find(&block.to_wire()), Some(block));
            assert_eq!(PrivateData::find(&block.to_wire()), None, "it is not taken for that of RFC 8797");
        }
    }
}

#[test]
fn the_block_follows_that_of_rfc_8797_and_hides_nothing() {
    // RR-P-3
    let private_data = [&vector!("private-data-4096")[..], &BOTH.to_wire()].concat();
    assert_eq!(PrivateData::find(&private_data), PrivateData::find(&vector!("private-data-4096")));
    assert_eq!(ReliableReply::find(&private_data), Some(BOTH));
    assert_eq!(ReliableReply::find(&vector!("private-data-4096")), None);
    assert_ne!(IDENTIFIER, stag_wire::cm_private_data::IDENTIFIER);
}

#[test]
fn another_version_or_a_part_is_no_block_and_other_features_are_ignored() {
    // RR-P-4a
    let wire = BOTH.to_wire();
    for len in 0..LEN {
        assert_eq!(ReliableReply::find(&wire[..len]), None);
    }
    for version in [0, 2, 255] {
        let mut wire = wire;
        wire[4] = version;
        assert_eq!(ReliableReply::find(&wire), None);
    }
    let mut wire = wire;
    wire[5] = 0xff;
    assert_eq!(ReliableReply::find(&wire), Some(BOTH));
    wire[5] = 0xfc;
    let expected = ReliableReply { pulls: false, exposes: false, done_receives: 8 };
    assert_eq!(ReliableReply::find(&wire), Some(expected));
}

#[test]
fn a_side_that_speaks_version_2_says_so_in_a_bit_of_its_own() {
    // RR-P-4b
    let none = ReliableReply::default();
    let block = announcing_version_2(none.to_wire());
    assert_eq!(block, [0x53, 0x74, 0x61, 0x67, 1, 4, 0, 0]);
    assert_eq!(ReliableReply::find(&block), Some(none));
    assert!(announces_version_2(&[&[1, 2, 3][..], &block].concat()));
    assert!(announces_version_2(&announcing_version_2(BOTH.to_wire())));
    assert!(!announces_version_2(&BOTH.to_wire()) && !announces_version_2(&block[..7]));
}

#[test]
fn it_is_on_only_if_both_say_so() {
    // RR-P-1 RR-P-2 RR-6-a
    assert_eq!(agree(None, None), ReliableReplies::default());
    assert_eq!(agree(Some(&BOTH), None), ReliableReplies::default());
    assert_eq!(agree(None, Some(&BOTH)), ReliableReplies::default());
    let pulls = ReliableReply { pulls: true, exposes: false, done_receives: 3 };
    let exposes = ReliableReply { pulls: false, exposes: true, done_receives: 5 };
    assert_eq!(agree(Some(&pulls), Some(&exposes)), ReliableReplies { expose_max: 0, pull_max: 5 });
    assert_eq!(agree(Some(&exposes), Some(&pulls)), ReliableReplies { expose_max: 5, pull_max: 0 });
    for alike in [pulls, exposes] {
        assert_eq!(agree(Some(&alike), Some(&alike)), ReliableReplies::default());
    }
    // A side that posts no Receive for RDMA_DONE exposes nothing (RR-P-8).
    let none = ReliableReply { done_receives: 0, ..BOTH };
    assert_eq!(agree(Some(&none), Some(&BOTH)), ReliableReplies { expose_max: 0, pull_max: 8 });
}

#[test]
fn done_reads_and_writes() {
    // RR-4.1.3-a RR-P-10
    let example = vector!("done");
    let done = Done { xid: 0xa000_0006, credits: 32 };
    assert_eq!(Done::parse(&example), Some(done));
    let mut buf = [0xff; 20];
    assert_eq!(done.emit(&mut buf), Ok(16));
    assert_eq!((&buf[..16], &buf[16..]), (&example[..], &[0xff; 4][..]));
    assert_eq!(done.emit(&mut buf[..15]), Err(Overflow));
    // Where it is not agreed on, RFC 8166 drops it.
    assert_eq!(Header::parse(&example).map(|_| ()), Err(HeaderError::Done));
    assert_eq!(Done::parse(&[&example[..], &[1, 2, 3]].concat()), Some(done));
    for len in 0..16 {
        assert_eq!(Done::parse(&example[..len]), None);
    }
    for (at, octet) in [(7, 2), (15, 0), (15, 4)] {
        let mut other = example.clone();
        other[at] = octet;
        assert_eq!(Done::parse(&other), None);
    }
    let mut plain = [0; 28];
    emit_plain(&mut plain, 1, 1).unwrap();
    assert_eq!(Done::parse(&plain), None);
}

#[test]
fn an_exposed_reply_reads_and_writes() {
    // RR-4.1-a
    let example = vector!("exposed-reply");
    let (header, rest) = Header::parse(&example).unwrap();
    let segment = Segment { handle: 0x5a5a_0101, length: 131_072, offset: 0x7e00_0000_0000 };
    let expected = ReadSegment { position: 0, segment };
    assert_eq!(
        (header.xid(), header.credits(), header.procedure()),
        (0xa000_0006, 32, MessageProcedure::Nomsg)
    );
    assert!(header.read_list().eq([expected]));
    assert!(header.has_position_zero());
    assert_eq!((header.write_list().count(), header.reply_chunk(), rest), (0, None, &[][..]));
    // RFC 8166 refuses it in a Reply.
    assert_eq!(header.check_reply(rest), Err(HeaderError::ReadListInReply));
    let mut buf = [0xff; 64];
    let mut emitter = Emitter::new(&mut buf, MessageKind::Nomsg, 0xa000_0006, 32).unwrap();
    emitter.read_segment(expected).unwrap();
    let (len, _) = emitter.finish().unwrap();
    assert_eq!(buf[..len], example);
    assert_eq!(len, rpcrdma::header_len(1, [], None));
}
