//! MPA, DDP and RDMAP against the octets of `engine/spec/iwarp.md` section 8 (made by an independent encoder), the CRC
//! vectors of RFC 5044, the request of a Linux client, and any octets at all.

use proptest::prelude::*;
use stag_wire::ddp::{self, DdpHeader, Tagged, Untagged};
use stag_wire::mpa::{self, Enhanced, Fpdu, Frame, FrameError, FrameKind, ReadyToReceive};
use stag_wire::rdmap::{self, Cause, Opcode, RdmapReadRequest, Terminate};

fn octets(hex: &str) -> Vec<u8> {
    let digits: String = hex.split_whitespace().collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex")).collect()
}

const REQUEST: &str = "4d504120494420526571204672616d65 50 02 000c 0010 0010 f6ab0e1801010303";
const REPLY: &str = "4d504120494420526570204672616d65 50 02 000c 0010 0010 f6ab0e1801010303";
const REQUEST_1: &str = "4d504120494420526571204672616d65 40 01 0000";
const SEND: &str = "002a 41 43 00000000 00000000 00000001 00000000
    000000000000000000000000 000000000000000000000000 b7243ec3";
const SEND_INVALIDATE: &str = "0017 41 44 0000d101 00000000 00000007 00000000 5250432121 000000 854f2dc5";
const WRITE: &str = "0012 c1 40 0000d101 00007f0000020000 01020304 a8463072";
const READ_REQUEST: &str = "002e 41 41 00000000 00000001 00000001 00000000
    00001100 0000000000001000 00001000 0000c101 00007f0000001000 3a2ff58f";
const TERMINATE: &str = "0026 41 47 00000000 00000002 00000001 00000000
    11 01 c000 0012 c1400000d10100007f0000020000 84c6f6ec";
const TERMINATE_CRC: &str = "0016 41 47 00000000 00000002 00000001 00000000 20 02 0000 7fe42585";

/// What a Linux 6.1 NFS client sends first: no CRC, IRD 128, ORD 0.
const LINUX_REQUEST: &str = "4d504120494420526571204672616d65 10 02 000c 0080 0000 f6ab0e1801010303";

const IRD_16: Enhanced = Enhanced { peer_to_peer: None, ird: 16, ord: 16 };
const PRIVATE_DATA: [u8; 8] = [0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3];

fn frame(kind: FrameKind) -> Frame<'static> {
    Frame {
        kind,
        markers: false,
        crc: true,
        rejected: false,
        large_fpdus: false,
        revision: 2,
        enhanced: Some(IRD_16),
        private_data: &PRIVATE_DATA,
    }
}

/// Both ways: parsed as expected, and emitted octet for octet.
fn frame_is(hex: &str, expected: &Frame<'_>) {
    let wire = octets(hex);
    let (parsed, rest) = Frame::parse(&wire).expect("it is complete");
    assert_eq!((&parsed, rest), (expected, &[][..]));
    let mut out = [0xee; mpa::FRAME_LEN_MAX];
    let len = parsed.emit(&mut out).expect("there is room");
    assert_eq!(out[..len], wire[..]);
    assert_eq!(parsed.len(), len);
    assert!(parsed.emit(&mut out[..len - 1]).is_none());
}

/// 5044-7.1-a, 6581-9-a.
#[test]
fn frames() {
    frame_is(REQUEST, &frame(FrameKind::Request));
    frame_is(REPLY, &frame(FrameKind::Reply));
    let plain = Frame { revision: 1, enhanced: None, private_data: &[], ..frame(FrameKind::Request) };
    frame_is(REQUEST_1, &plain);
    let enhanced = Some(Enhanced { peer_to_peer: None, ird: 128, ord: 0 });
    frame_is(LINUX_REQUEST, &Frame { crc: false, enhanced, ..frame(FrameKind::Request) });
}

/// 5044-7.1-b, siw-4, siw-6: what is wrong is found in the first octets that say so.
#[test]
fn bad_frames() {
    let good = octets(REQUEST);
    for len in 0..mpa::FRAME_LEN {
        assert_eq!(Frame::parse(&good[..len]), Err(FrameError::Truncated(mpa::FRAME_LEN)));
    }
    for len in mpa::FRAME_LEN..good.len() {
        assert_eq!(Frame::parse(&good[..len]), Err(FrameError::Truncated(good.len())));
    }
    for at in 0..mpa::KEY_LEN {
        let mut bad = good.clone();
        bad[at] ^= 0x80;
        assert_eq!(mpa::frame_len(&bad[..=at]), Err(FrameError::Key), "at octet {at} already");
    }
    let with = |at: usize, octet: u8| {
        let mut bad = good.clone();
        bad[at] = octet;
        mpa::frame_len(&bad[..mpa::FRAME_LEN])
    };
    assert_eq!(with(17, 0), Err(FrameError::Revision(0)));
    assert_eq!(with(17, 3), Err(FrameError::Revision(3)));
    assert_eq!(with(18, 2), Err(FrameError::PrivateDataTooLong(0x20c)));
    assert_eq!(with(19, 3), Err(FrameError::EnhancedTooShort));
    // Revision 1 has no S, and an R in a request means nothing (5044-7.1-e); reserved bits are ignored.
    let mut odd = octets(REQUEST_1);
    odd[16] |= 0x20 | 0x10 | 0x07;
    let (parsed, _) = Frame::parse(&odd).expect("it is complete");
    assert!(!parsed.rejected && parsed.enhanced.is_none());
}

/// 6581-9-b, 6581-9-e, 5044-7.1-d, siw-7.
#[test]
fn flags_and_words() {
    let none = ReadyToReceive::default();
    for (rtr, wire) in [
        (None, [0x00, 0x05, 0x3f, 0xff]),
        (Some(none), [0x80, 0x05, 0x3f, 0xff]),
        (Some(ReadyToReceive { send: true, ..none }), [0xc0, 0x05, 0x3f, 0xff]),
        (Some(ReadyToReceive { write: true, ..none }), [0x80, 0x05, 0xbf, 0xff]),
        (Some(ReadyToReceive { read: true, ..none }), [0x80, 0x05, 0x7f, 0xff]),
    ] {
        let enhanced = Enhanced { peer_to_peer: rtr, ird: 5, ord: mpa::NOT_NEGOTIATED };
        assert_eq!(enhanced.to_wire(), wire);
        assert_eq!(Enhanced::from_wire(wire), enhanced);
    }
    assert_eq!(Enhanced { peer_to_peer: None, ird: 0xffff, ord: 0x8000 }.to_wire(), [0x3f, 0xff, 0x3f, 0xff]);
    let all = Frame { markers: true, rejected: true, large_fpdus: true, ..frame(FrameKind::Reply) };
    let mut out = [0; mpa::FRAME_LEN_MAX];
    let len = all.emit(&mut out).expect("there is room");
    assert_eq!(out[16], 0xf8);
    assert_eq!(Frame::parse(&out[..len]).expect("it is complete").0, all);
    let too_much = [0; mpa::PRIVATE_DATA_LEN_MAX - mpa::ENHANCED_LEN + 1];
    assert!(Frame { private_data: &too_much, ..all }.emit(&mut [0; 1000]).is_none());
}

/// The published vectors, and 5044-4.4-a.
#[test]
fn crc_vectors() {
    let zeros = |n: usize| vec![0u8; n];
    let input = [octets("00000000002a4143000000000000000000000001"), zeros(28)].concat();
    assert_eq!(mpa::crc32c(&input).to_le_bytes(), [0x52, 0x23, 0x99, 0x83]);
    let input = octets(
        "002a41430000000000000000000000020000000000000014 000000000000000000000000000000000000000000000000",
    );
    assert_eq!(mpa::crc32c(&input).to_le_bytes(), [0x84, 0x92, 0x58, 0x98]);
    assert_eq!(mpa::crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(mpa::crc32c(b""), 0);
}

/// 5044-4.1-a, 5044-4.1-b, 5044-4.1-c, 5044-4.4-a.
#[test]
fn fpdus() {
    for hex in [SEND, SEND_INVALIDATE, WRITE, READ_REQUEST, TERMINATE, TERMINATE_CRC] {
        let wire = octets(hex);
        let (fpdu, rest) = Fpdu::parse(&wire).expect("it is complete");
        assert!(fpdu.is_intact() && rest.is_empty());
        let mut out = [0xee; 64];
        assert_eq!(mpa::emit_fpdu(fpdu.ulpdu, Some(mpa::crc32c), &mut out), Some(wire.len()));
        assert_eq!(out[..wire.len()], wire[..]);
        assert_eq!(mpa::emit_fpdu(fpdu.ulpdu, None, &mut out), Some(wire.len()));
        assert_eq!(out[wire.len() - 4..wire.len()], [0; 4]);
        assert!(mpa::emit_fpdu(fpdu.ulpdu, None, &mut out[..wire.len() - 1]).is_none());
        for len in 2..wire.len() {
            assert_eq!(Fpdu::parse(&wire[..len]), Err(wire.len()));
        }
        for at in 2..wire.len() {
            let mut bad = wire.clone();
            bad[at] ^= 1;
            assert!(!Fpdu::parse(&bad).expect("as long as before").0.is_intact());
        }
    }
    assert!(mpa::emit_fpdu(&vec![0; 1 << 16], None, &mut vec![0; 1 << 17]).is_none());
    for len in 0..9 {
        assert_eq!(mpa::pad_len(len), [2, 1, 0, 3][len % 4]);
        assert_eq!(mpa::fpdu_len(len) % 4, 0);
    }
}

/// 5044-5-a.
#[test]
fn mulpdu() {
    assert_eq!(mpa::mulpdu(1460), 1454);
    assert_eq!(mpa::mulpdu(8948), 8942);
    assert_eq!(mpa::mulpdu(65483), 65474);
    assert_eq!(mpa::mulpdu(1 << 20), mpa::ULPDU_LEN_MAX);
    for small in [0, 1, 100, 136] {
        assert_eq!(mpa::mulpdu(small).max(128), mpa::mulpdu(small));
    }
    for emss in 140..9000 {
        let len = mpa::mulpdu(emss);
        assert!(mpa::fpdu_len(len) <= emss, "{emss}");
    }
}

fn ulpdu(hex: &str) -> Vec<u8> {
    Fpdu::parse(&octets(hex)).expect("it is complete").0.ulpdu.to_vec()
}

/// 5041-a to 5041-d, and the opcodes of RFC 5040.
#[test]
fn segments() {
    let untagged = |hex: &str, expected: Untagged, opcode: Opcode| {
        let ulpdu = ulpdu(hex);
        let (header, payload) = DdpHeader::parse(&ulpdu).expect("it is complete");
        assert_eq!(header, DdpHeader::Untagged(expected));
        assert_eq!(Opcode::from_control(expected.control), Ok(opcode));
        assert_eq!((opcode.to_control(), opcode.queue()), (expected.control, Some(expected.queue)));
        assert_eq!(expected.to_wire(), ulpdu[..ddp::UNTAGGED_LEN]);
        assert_eq!(ddp::header_len(ulpdu[0]), header.len());
        payload.to_vec()
    };
    let first = Untagged { last: true, control: 0x43, ulp: 0, queue: 0, msn: 1, offset: 0 };
    assert_eq!(untagged(SEND, first, Opcode::Send), [0; 24]);
    let inv = Untagged { control: 0x44, ulp: 0xd101, msn: 7, ..first };
    assert_eq!(untagged(SEND_INVALIDATE, inv, Opcode::SendInvalidate), *b"RPC!!");
    let read = Untagged { control: 0x41, queue: 1, ..first };
    let payload = untagged(READ_REQUEST, read, Opcode::ReadRequest);
    let request = RdmapReadRequest {
        sink_stag: 0x1100,
        sink_offset: 0x1000,
        len: 4096,
        source_stag: 0xc101,
        source_offset: 0x7f00_0000_1000,
    };
    assert_eq!(RdmapReadRequest::from_wire(payload[..].try_into().expect("28 octets")), request);
    assert_eq!(request.to_wire(), payload[..]);

    let write = Tagged { last: true, control: 0x40, stag: 0xd101, offset: 0x7f00_0002_0000 };
    let ulpdu = ulpdu(WRITE);
    assert_eq!(DdpHeader::parse(&ulpdu), Ok((DdpHeader::Tagged(write), &[1, 2, 3, 4][..])));
    assert_eq!(write.to_wire(), ulpdu[..ddp::TAGGED_LEN]);
    assert_eq!(ddp::header_len(ulpdu[0]), ddp::TAGGED_LEN);

    for (header, error) in [(0x81, ddp::TAGGED_LEN), (0x01, ddp::UNTAGGED_LEN)] {
        let mut segment = vec![0; error];
        segment[0] = header;
        for len in 0..error {
            assert_eq!(DdpHeader::parse(&segment[..len]), Err(ddp::DdpError::Truncated));
        }
        segment[0] ^= 3;
        let version =
            if header & 0x80 != 0 { ddp::DdpError::TaggedVersion } else { ddp::DdpError::UntaggedVersion };
        assert_eq!(DdpHeader::parse(&segment), Err(version));
    }
    assert_eq!(Opcode::from_control(0x03), Err(rdmap::ControlError::Version(0)));
    assert_eq!(Opcode::from_control(0x48), Err(rdmap::ControlError::Opcode(8)));
    for opcode in 0..8 {
        assert_eq!(Opcode::from_control(0x40 | opcode).map(Opcode::to_control), Ok(0x40 | opcode));
    }
}

/// The layout of RFC 5040's Terminate.
#[test]
fn terminates() {
    let wire = ulpdu(TERMINATE);
    let terminate = Terminate::parse(&wire[ddp::UNTAGGED_LEN..]).expect("it is complete");
    let bounds = Cause { layer: 1, error_type: 1, code: 1 };
    assert_eq!((terminate.cause, terminate.is_siw), (bounds, Some(false)));
    assert_eq!(terminate.likely_cause(), bounds);
    assert_eq!((terminate.segment_len, terminate.read_request), (Some(18), None));
    let write = Tagged { last: true, control: 0x40, stag: 0xd101, offset: 0x7f00_0002_0000 };
    assert_eq!(terminate.header, Some(DdpHeader::Tagged(write)));
    let mut out = [0; rdmap::TERMINATE_LEN_MAX];
    let len = rdmap::emit_terminate(bounds, Some((&write.to_wire(), 18)), None, &mut out);
    assert_eq!(out[..len], wire[ddp::UNTAGGED_LEN..]);

    let wire = ulpdu(TERMINATE_CRC);
    let terminate = Terminate::parse(&wire[ddp::UNTAGGED_LEN..]).expect("it is complete");
    let crc = Cause { layer: rdmap::layer::LLP, error_type: 0, code: mpa::code::CRC };
    assert_eq!((terminate.likely_cause(), terminate.is_siw), (crc, None));
    let len = rdmap::emit_terminate(crc, None, None, &mut out);
    assert_eq!(out[..len], wire[ddp::UNTAGGED_LEN..]);

    // About a Read Request: its header and itself.
    let wire = ulpdu(READ_REQUEST);
    let (header, request) = wire.split_at(ddp::UNTAGGED_LEN);
    let request: &[u8; rdmap::READ_REQUEST_LEN] = request.try_into().expect("28 octets");
    let stag = Cause { layer: 0, error_type: rdmap::code::PROTECTION, code: rdmap::code::STAG };
    let len = rdmap::emit_terminate(stag, Some((header, 46)), Some(request), &mut out);
    assert_eq!(len, rdmap::TERMINATE_LEN_MAX);
    let terminate = Terminate::parse(&out[..len]).expect("just emitted");
    assert_eq!((terminate.likely_cause(), terminate.read_request), (stag, Some(request)));
    assert!(matches!(terminate.header, Some(DdpHeader::Untagged(Untagged { msn: 1, queue: 1, .. }))));
    for len in 4..rdmap::TERMINATE_LEN_MAX {
        assert_eq!(Terminate::parse(&out[..len]).expect("the cause is there").cause, stag);
    }
    assert!(Terminate::parse(&out[..3]).is_none());
}

/// siw-21: on little-endian machines siw exchanges the halves of the first octet, and writes the flags from the other
/// end.
#[test]
fn terminates_of_siw() {
    // No buffer (layer 1, error type 2), with and without the flags that tell the order.
    let wire = octets("21 02 0300 0016 4143000000000000000000000001 00000000");
    let terminate = Terminate::parse(&wire).expect("it is complete");
    let no_buffer = Cause { layer: 1, error_type: 2, code: 2 };
    assert_eq!((terminate.is_siw, terminate.likely_cause()), (Some(true), no_buffer));
    assert!(matches!(terminate.header, Some(DdpHeader::Untagged(Untagged { msn: 1, .. }))));
    let terminate = Terminate::parse(&wire[..4]).expect("the cause is there");
    assert_eq!((terminate.is_siw, terminate.likely_cause()), (Some(true), no_buffer));
    let wire = octets("21 02 0000");
    let terminate = Terminate::parse(&wire).expect("it is complete");
    assert_eq!((terminate.is_siw, terminate.likely_cause()), (None, no_buffer));
    // CRC: layer 2, error type 0, in both orders; RFC 5040's 0x02 would be a remote operation error of code 2, which there is not.
    for first in ["20 02 0000", "02 02 0000"] {
        let wire = octets(first);
        let terminate = Terminate::parse(&wire).expect("it is complete");
        assert_eq!(terminate.likely_cause().to_string(), "MPA: CRC");
    }
}

proptest! {
    /// Nothing panics, and what parses is emitted as it was.
    #[test]
    fn any_octets(octets in proptest::collection::vec(any::<u8>(), 0..700), as_frame in any::<bool>()) {
        let mut octets = octets;
        if as_frame && octets.len() >= 16 {
            octets[..16].copy_from_slice(&mpa::REQUEST_KEY);
        }
        if let Ok((frame, rest)) = Frame::parse(&octets) {
            let mut out = [0; mpa::FRAME_LEN_MAX];
            let len = frame.emit(&mut out).expect("a frame that was parsed is not too long");
            prop_assert_eq!(len + rest.len(), octets.len());
            let again = Frame::parse(&out[..len]).expect("just emitted").0;
            prop_assert_eq!(again, frame);
        }
        match Fpdu::parse(&octets) {
            Ok((fpdu, rest)) => prop_assert_eq!(mpa::fpdu_len(fpdu.ulpdu.len()) + rest.len(), octets.len()),
            Err(needed) => prop_assert!(needed > octets.len()),
        }
        if let Ok((header, payload)) = DdpHeader::parse(&octets) {
            prop_assert_eq!(header.len() + payload.len(), octets.len());
        }
        let _ = Terminate::parse(&octets).map(|terminate| terminate.likely_cause().to_string());
    }
}
