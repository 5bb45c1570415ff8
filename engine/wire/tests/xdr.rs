//! XDR, rule by rule.

use stag_wire::xdr::{Item, Overflow, Reader, Reduced, Writer, XdrError, padding};

mod support;
use support::vector;

#[test]
fn basic_types_are_big_endian_xdr_a() {
    let mut buf = [0; 28];
    let mut writer = Writer::new(&mut buf);
    writer.u32(0x0102_0304).unwrap();
    writer.i32(-2).unwrap();
    writer.u64(0x1112_1314_1516_1718).unwrap();
    writer.i64(-3).unwrap();
    writer.bool(true).unwrap();
    assert_eq!((writer.position(), writer.remaining()), (28, 0));
    assert_eq!(writer.u32(0), Err(Overflow));
    assert_eq!(&buf[..12], [1, 2, 3, 4, 255, 255, 255, 254, 0x11, 0x12, 0x13, 0x14]);

    let mut reader = Reader::new(&buf);
    assert_eq!(reader.u32(), Ok(0x0102_0304));
    assert_eq!(reader.i32(), Ok(-2));
    assert_eq!(reader.u64(), Ok(0x1112_1314_1516_1718));
    assert_eq!(reader.i64(), Ok(-3));
    assert_eq!(reader.bool(), Ok(true));
    assert_eq!((reader.position(), reader.remaining()), (28, 0));
    assert_eq!(reader.u32(), Err(XdrError::Truncated));
    assert_eq!(reader.finish(), Ok(()));
}

#[test]
fn a_bool_is_0_or_1_xdr_a() {
    assert_eq!(Reader::new(&[0, 0, 0, 2]).bool(), Err(XdrError::BadBool(2)));
    assert_eq!(Reader::new(&[1, 0, 0, 0]).bool(), Err(XdrError::BadBool(1 << 24)));
}

#[test]
fn an_enum_has_declared_values_only_xdr_d() {
    let declared = |value| (value < 3).then_some(value);
    assert_eq!(Reader::new(&[0, 0, 0, 2]).enumeration(declared), Ok(2));
    assert_eq!(Reader::new(&[0, 0, 0, 3]).enumeration(declared), Err(XdrError::BadDiscriminant(3)));
}

#[test]
fn opaque_data_is_padded_with_zeros_xdr_b() {
    for (len, pad) in [(0, 0), (1, 3), (2, 2), (3, 1), (4, 0), (5, 3)] {
        assert_eq!(padding(len), pad);
        let mut buf = [0xff; 16];
        let mut writer = Writer::new(&mut buf);
        writer.opaque(&[0xab; 5][..len]).unwrap();
        let written = writer.written();
        assert_eq!(written.len(), 4 + len + pad);
        assert!(written[4 + len..].iter().all(|octet| *octet == 0));

        let mut reader = Reader::new(written);
        assert_eq!(reader.opaque(5), Ok(&[0xab; 5][..len]));
        assert_eq!(reader.finish(), Ok(()));
    }
}

#[test]
fn padding_is_ignored_but_must_be_there_xdr_e() {
    let wire = [0, 0, 0, 1, b'x', 7, 8, 9];
    let mut reader = Reader::new(&wire);
    assert_eq!(reader.string(1), Ok(&b"x"[..]));
    assert_eq!(reader.finish(), Ok(()));
    for len in 0..wire.len() {
        assert_eq!(Reader::new(&wire[..len]).string(1), Err(XdrError::Truncated));
    }
}

#[test]
fn lengths_are_checked_first_xdr_f() {
    let four_gib = [0xff; 8];
    assert_eq!(Reader::new(&four_gib).opaque(u32::MAX), Err(XdrError::Truncated));
    assert_eq!(Reader::new(&four_gib).opaque(400), Err(XdrError::TooLong { limit: 400, found: u32::MAX }));
    assert_eq!(Reader::new(&four_gib).opaque_fixed(usize::MAX), Err(XdrError::Truncated));
    assert_eq!(Reader::new(&four_gib).count(u32::MAX, usize::MAX), Err(XdrError::Truncated));
    // A count of 2 elements of 4 octets, with one there.
    assert_eq!(Reader::new(&[0, 0, 0, 2, 0, 0, 0, 0]).count(2, 4), Err(XdrError::Truncated));
    assert_eq!(
        Reader::new(&[0, 0, 0, 3, 0, 0, 0, 0]).count(2, 0),
        Err(XdrError::TooLong { limit: 2, found: 3 })
    );
}

#[test]
fn a_word_can_be_filled_later() {
    let mut buf = [0; 12];
    let mut writer = Writer::new(&mut buf);
    let count = writer.reserve_u32().unwrap();
    writer.u32(5).unwrap();
    let mark = writer.mark();
    assert_eq!(writer.u64(6), Err(Overflow));
    writer.rewind(mark);
    writer.u32(7).unwrap();
    writer.patch_u32(count, 2);
    assert_eq!(buf, [0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 7]);
}

#[test]
fn nothing_is_written_beyond_the_buffer() {
    let mut buf = [0xee; 8];
    assert_eq!(Writer::new(&mut buf[..7]).opaque(b"abc"), Err(Overflow));
    assert_eq!(buf[7], 0xee);
}

#[test]
fn rpcbind_examples_read_and_write() {
    let wire = vector!("rpcb-getaddr");
    let mut reader = Reader::new(&wire);
    assert_eq!((reader.u32(), reader.u32()), (Ok(100_003), Ok(3)));
    assert_eq!(reader.string(64), Ok(&b"rdma"[..]));
    assert_eq!((reader.string(64), reader.string(64)), (Ok(&b""[..]), Ok(&b""[..])));
    assert_eq!(reader.finish(), Ok(()));

    let mut buf = [0xff; 24];
    let mut writer = Writer::new(&mut buf);
    writer.u32(100_003).unwrap();
    writer.u32(3).unwrap();
    for string in ["rdma", "", ""] {
        writer.string(string.as_bytes()).unwrap();
    }
    assert_eq!(writer.written(), wire);

    let wire = vector!("rpcb-uaddr");
    assert_eq!(Reader::new(&wire).string(64), Ok(&b"192.0.2.1.78.81"[..]));
    let mut buf = [0xff; 20];
    Writer::new(&mut buf).string(b"192.0.2.1.78.81").unwrap();
    assert_eq!(buf, *wire);

    let wire = vector!("portmap-getport");
    let mut reader = Reader::new(&wire);
    assert_eq!([(); 4].map(|()| reader.u32().unwrap()), [100_003, 3, 6, 0]);
    assert_eq!(reader.finish(), Ok(()));
}

/// A stream of a word, an eligible item of 5 octets that left it, and another word.
fn reduced_stream() -> [u8; 12] {
    [0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 9]
}

#[test]
fn a_reduced_item_leaves_its_length_and_takes_its_padding_8166_3_4_4_4_b() {
    let mut buf = [0; 12];
    let mut writer = Writer::new(&mut buf);
    writer.u32(1).unwrap();
    assert_eq!(writer.eligible_opaque_reduced(5), Ok(8));
    assert_eq!((writer.position(), writer.unreduced_position()), (8, 16));
    writer.u32(9).unwrap();
    assert_eq!(writer.unreduced_position(), 20);
    assert_eq!(buf, reduced_stream());
}

#[test]
fn a_read_chunk_is_found_by_its_position_8166_3_4_5_a() {
    let wire = reduced_stream();
    let chunks = [Reduced::read_chunk(3, 8, 5)];
    let mut reader = Reader::with_reduced(&wire, &chunks);
    assert_eq!(reader.u32(), Ok(1));
    assert_eq!(reader.eligible_opaque(10), Ok(Item::Reduced { index: 3, len: 5 }));
    assert_eq!(reader.unreduced_position(), 16);
    assert_eq!(reader.u32(), Ok(9));
    assert_eq!(reader.finish(), Ok(()));
}

#[test]
fn positions_count_from_the_rpc_message_8166_3_4_5_a() {
    // The reader starts 40 octets into the message, after the RPC header.
    let wire = reduced_stream();
    let chunks = [Reduced::read_chunk(0, 48, 5)];
    let mut reader = Reader::with_reduced_at(&wire, 40, &chunks);
    assert_eq!(reader.u32(), Ok(1));
    assert_eq!(reader.eligible_opaque(10), Ok(Item::Reduced { index: 0, len: 5 }));
    assert_eq!(reader.unreduced_position(), 56);
}

#[test]
fn a_read_chunk_may_include_the_padding_and_nothing_else_8166_3_4_5_2_a() {
    for (chunk, good) in [(4, false), (5, true), (6, false), (7, false), (8, true), (9, false)] {
        let wire = reduced_stream();
        let chunks = [Reduced::read_chunk(0, 8, chunk)];
        let mut reader = Reader::with_reduced(&wire, &chunks);
        reader.u32().unwrap();
        let expected = if good {
            Ok(Item::Reduced { index: 0, len: 5 })
        } else {
            Err(XdrError::ChunkLength { chunk, item: 5 })
        };
        assert_eq!(reader.eligible_opaque(10), expected, "chunk of {chunk}");
    }
}

#[test]
fn a_length_near_2_to_32_does_not_wrap() {
    let wire = [0xff; 4];
    for chunk in [0, 1, u32::MAX] {
        let chunks = [Reduced::read_chunk(0, 4, chunk)];
        let mut reader = Reader::with_reduced(&wire, &chunks);
        let found = reader.eligible_opaque(u32::MAX);
        let expected = Item::Reduced { index: 0, len: u32::MAX };
        assert_eq!(found.ok(), (chunk == u32::MAX).then_some(expected));
    }
}

#[test]
fn two_read_chunks_in_order_8166_3_4_5_a() {
    // Items of 5 and 3 octets, both reduced: the second Position counts the first item, padded.
    let mut buf = [0; 8];
    let mut writer = Writer::new(&mut buf);
    let first = writer.eligible_opaque_reduced(5).unwrap();
    let second = writer.eligible_opaque_reduced(3).unwrap();
    assert_eq!((first, second), (4, 16));

    let chunks = [Reduced::read_chunk(0, 4, 5), Reduced::read_chunk(1, 16, 4)];
    let mut reader = Reader::with_reduced(&buf, &chunks);
    assert_eq!(reader.eligible_opaque(9), Ok(Item::Reduced { index: 0, len: 5 }));
    assert_eq!(reader.eligible_opaque(9), Ok(Item::Reduced { index: 1, len: 3 }));
    assert_eq!(reader.finish(), Ok(()));

    // The first item inline, the second reduced.
    let mut buf = [0; 16];
    let mut writer = Writer::new(&mut buf);
    writer.eligible_opaque_inline(b"hello").unwrap();
    assert_eq!(writer.eligible_opaque_reduced(3), Ok(16));
    let mut reader = Reader::with_reduced(&buf, &chunks[1..]);
    assert_eq!(reader.eligible_opaque(9), Ok(Item::Inline(b"hello")));
    assert_eq!(reader.eligible_opaque(9), Ok(Item::Reduced { index: 1, len: 3 }));
    assert_eq!(reader.finish(), Ok(()));
}

#[test]
fn a_chunk_that_belongs_to_no_item_is_refused() {
    let wire = [0, 0, 0, 0];
    let chunks = [Reduced::read_chunk(0, 400, 5)];
    let mut reader = Reader::with_reduced(&wire, &chunks);
    assert_eq!(reader.eligible_opaque(9), Ok(Item::Inline(b"")));
    assert_eq!(reader.clone().finish(), Err(XdrError::UnusedChunk));
    assert_eq!(reader.finish_lenient(), Err(XdrError::UnusedChunk));
}

#[test]
fn an_ineligible_item_in_a_chunk_is_refused_8166_6_1_c() {
    let wire = reduced_stream();
    let chunks = [Reduced::read_chunk(0, 8, 5)];
    let mut reader = Reader::with_reduced(&wire, &chunks);
    reader.u32().unwrap();
    assert_eq!(reader.opaque(10), Err(XdrError::IneligibleChunk));
}

#[test]
fn an_item_of_no_octets_may_have_a_read_chunk_of_none() {
    let wire = [0, 0, 0, 0];
    let chunks = [Reduced::read_chunk(6, 4, 0)];
    let mut reader = Reader::with_reduced(&wire, &chunks);
    assert_eq!(reader.eligible_opaque(9), Ok(Item::Reduced { index: 6, len: 0 }));
    assert_eq!(reader.finish(), Ok(()));

    let chunks = [Reduced::read_chunk(6, 4, 4)];
    let mut reader = Reader::with_reduced(&wire, &chunks);
    assert_eq!(reader.eligible_opaque(9), Err(XdrError::ChunkLength { chunk: 4, item: 0 }));
}

#[test]
fn write_chunks_go_to_eligible_results_in_order_8166_4_3_2_1_a() {
    // Three results: in the first chunk, inline beside an empty chunk, in the third.
    let wire = [0, 0, 0, 5, 0, 0, 0, 2, b'h', b'i', 0, 0, 0, 0, 0, 7];
    let chunks = [Reduced::write_chunk(0, 5), Reduced::empty_write_chunk(1), Reduced::write_chunk(2, 7)];
    let mut reader = Reader::with_reduced(&wire, &chunks);
    assert_eq!(reader.eligible_opaque(9), Ok(Item::Reduced { index: 0, len: 5 }));
    assert_eq!(reader.eligible_opaque(9), Ok(Item::Inline(b"hi")));
    assert_eq!(reader.eligible_opaque(9), Ok(Item::Reduced { index: 2, len: 7 }));
    assert_eq!(reader.finish(), Ok(()));
}

#[test]
fn a_write_chunk_has_no_padding_8166_3_4_6_2_a() {
    let wire = [0, 0, 0, 5];
    let chunks = [Reduced::write_chunk(0, 8)];
    let mut reader = Reader::with_reduced(&wire, &chunks);
    assert_eq!(reader.eligible_opaque(9), Err(XdrError::ChunkLength { chunk: 8, item: 5 }));
}

#[test]
fn an_eligible_result_inline_beside_its_write_chunk_is_refused_8166_6_1_d() {
    let wire = [0, 0, 0, 4, 1, 2, 3, 4];
    let chunks = [Reduced::write_chunk(0, 0)];
    let mut reader = Reader::with_reduced(&wire, &chunks);
    assert_eq!(reader.eligible_opaque(9), Err(XdrError::ChunkLength { chunk: 0, item: 4 }));
}

#[test]
fn a_result_of_no_octets_leaves_its_write_chunk_unused_8267_x_3() {
    let wire = [0, 0, 0, 0];
    let chunks = [Reduced::write_chunk(0, 0)];
    let mut reader = Reader::with_reduced(&wire, &chunks);
    assert_eq!(reader.eligible_opaque(9), Ok(Item::Inline(b"")));
    assert_eq!(reader.finish(), Ok(()));
}

#[test]
fn write_chunks_without_a_result_may_be_left_if_unused_8166_4_3_2_2_b() {
    let unused = [Reduced::write_chunk(0, 0), Reduced::empty_write_chunk(1)];
    assert_eq!(Reader::with_reduced(&[], &unused).finish(), Ok(()));
    let filled = [Reduced::write_chunk(0, 1)];
    assert_eq!(Reader::with_reduced(&[], &filled).finish(), Err(XdrError::UnusedChunk));
}

#[test]
fn surplus_results_are_inline_8166_4_3_2_3_c() {
    let wire = [0, 0, 0, 5, 0, 0, 0, 1, b'x', 0, 0, 0];
    let chunks = [Reduced::write_chunk(0, 5)];
    let mut reader = Reader::with_reduced(&wire, &chunks);
    assert_eq!(reader.eligible_opaque(9), Ok(Item::Reduced { index: 0, len: 5 }));
    assert_eq!(reader.eligible_opaque(9), Ok(Item::Inline(b"x")));
    assert_eq!(reader.finish(), Ok(()));
}

#[test]
fn octets_behind_the_last_item_are_an_error_unless_forgiven() {
    assert_eq!(Reader::new(&[0]).finish(), Err(XdrError::TrailingOctets));
    assert_eq!(Reader::new(&[0]).finish_lenient(), Ok(()));
}
