//! Each broken rule is named by its number: kept captures with one thing changed, and conversations made by hand.

use stag_wire::ddp::{Tagged, Untagged};
use stag_wire::rdmap::Opcode;
use stag_wire::rpcrdma::{MessageKind, ReadSegment, Segment, emit_err_chunk};

mod support;
use support::remake::*;
use support::talk::*;

/// Arguments of READ: 100 octets.
fn read_arguments() -> Vec<u8> {
    [&HANDLE[..], &words(&[0, 0, 100])].concat()
}

/// Results of READ whose `len` octets are not among them.
fn read_results(len: u32) -> Vec<u8> {
    words(&[0, 0, len, 1, len])
}

/// Arguments of WRITE whose `len` octets are not among them: the item is at Position 76.
fn write_arguments(len: u32) -> Vec<u8> {
    [&HANDLE[..], &words(&[0, 0, len, 0, len])].concat()
}

const WRITE_POSITION: u32 = 40 + 8 + 8 + 4 + 4 + 4;

/// A READ Call with a Write chunk of 100 octets under handle 9.
fn read_call(talk: &mut Talk) {
    let chunk = [segment(9, 100, 0x1000)];
    let chunks = Chunks { writes: &[&chunk], ..Chunks::default() };
    talk.send(CLIENT, &message(MessageKind::Msg, 2, &chunks, &call(2, 6, &read_arguments())));
}

/// The Reply to it, with these segments in the Write chunk.
fn read_reply(talk: &mut Talk, segments: &[Segment], len: u32) {
    let chunks = Chunks { writes: &[segments], ..Chunks::default() };
    talk.send(SERVER, &message(MessageKind::Msg, 2, &chunks, &reply(2, &read_results(len))));
}

#[test]
fn what_is_right_breaks_no_rule() {
    for crc in [false, true] {
        let mut talk = Talk::with(crc, true).greet();
        read_call(&mut talk);
        talk.write(SERVER, 9, 0x1000, &[7; 100]);
        read_reply(&mut talk, &[segment(9, 100, 0x1000)], 100);
        let chunk = ReadSegment { position: WRITE_POSITION, segment: segment(11, 6, 0x2000) };
        let chunks = Chunks { reads: &[chunk], ..Chunks::default() };
        talk.send(CLIENT, &message(MessageKind::Msg, 3, &chunks, &call(3, 7, &write_arguments(6))));
        talk.read(SERVER, 11, 0x2000, &[7; 6]);
        talk.send(SERVER, &plain(3, 32, &reply(3, &words(&[0, 0, 0, 6, 0, 0, 0]))));
        let (lines, totals) = analyze(&talk.frames);
        assert_eq!(rules(&totals), [], "{lines:#?}");
        assert_eq!((totals.messages, totals.paired, totals.unanswered), (6, 3, 0));
        assert_eq!((totals.reads.octets, totals.writes.octets), (6, 100));
        assert_eq!(totals.crc_good, if crc { 9 } else { 0 });
    }
}

#[test]
fn a_wrong_crc_5044_4_4_a() {
    let mut talk = Talk::new().greet();
    talk.send(CLIENT, &plain(2, 32, &call(2, 0, &[])));
    *talk.frames.last_mut().unwrap().octets.last_mut().unwrap() ^= 1;
    assert_eq!(talk.rules(), [("5044-4.4-a", 1)]);
}

#[test]
fn frames_out_of_turn_5044_7_1() {
    // The Responder's FPDU first.
    let mut talk = Talk::new();
    talk.write(SERVER, 1, 0, &[]);
    assert_eq!(talk.rules(), [("5044-7.1-f", 1)]);
    // A frame that claims more private data than there may be.
    let mut talk = Talk::new();
    let request = talk.frames[2].octets.len() - 32;
    talk.frames[2].octets[request + 18] = 0xff;
    assert!(talk.rules().contains(&("5044-7.1-b", 1)));
}

#[test]
fn sequence_numbers_5041_c_and_offsets_5041_d() {
    let mut talk = Talk::new().greet();
    talk.msn[CLIENT][0] += 1;
    talk.send(CLIENT, &plain(2, 32, &call(2, 0, &[])));
    talk.send(SERVER, &plain(2, 32, &reply(2, &[])));
    assert_eq!(talk.rules(), [("5041-c", 1)]);

    let mut talk = Talk::new().greet();
    let control = Opcode::Send.to_control();
    let header = Untagged { last: true, control, ulp: 0, queue: 0, msn: 2, offset: 4 };
    talk.fpdu(CLIENT, &[&header.to_wire()[..], &[0; 40]].concat());
    // A message that starts in its middle was not captured whole, or is wrong: it is not taken for one.
    let (_, totals) = analyze(&talk.frames);
    assert_eq!(totals.messages, 2);
}

#[test]
fn queues_and_versions_5041_a_b() {
    let header =
        |control, queue| Untagged { last: true, control, ulp: 0, queue, msn: 1, offset: 0 }.to_wire();
    let mut talk = Talk::new().greet();
    talk.fpdu(CLIENT, &header(Opcode::Send.to_control(), 3));
    assert_eq!(talk.rules(), [("5041-b", 1)]);
    let mut talk = Talk::new().greet();
    let mut other = header(Opcode::Send.to_control(), 0);
    other[0] = 0x42;
    talk.fpdu(CLIENT, &other);
    assert_eq!(talk.rules(), [("5041-a", 1)]);
}

#[test]
fn reads_5040_b_c() {
    let mut talk = Talk::new().greet();
    let entry = |handle| ReadSegment { position: WRITE_POSITION, segment: segment(handle, 4, 0) };
    let chunks = Chunks { reads: &[entry(1), entry(2), entry(3)], ..Chunks::default() };
    talk.send(CLIENT, &message(MessageKind::Msg, 2, &chunks, &call(2, 7, &write_arguments(12))));
    for handle in 1..=3 {
        talk.read_request(SERVER, handle, 0, 4);
    }
    assert_eq!(talk.rules(), [("5040-c", 1)]);

    let mut talk = Talk::new().greet();
    let header = Tagged { last: true, control: Opcode::ReadResponse.to_control(), stag: 1, offset: 2 };
    talk.fpdu(CLIENT, &header.to_wire());
    assert_eq!(talk.rules(), [("5040-b", 1)]);
}

#[test]
fn more_after_a_terminate_5040_g() {
    let mut talk = Talk::new().greet();
    talk.untagged(SERVER, Opcode::Terminate, 0, &[0x20, 2, 0, 0]);
    talk.write(SERVER, 1, 0, &[]);
    assert_eq!(talk.rules(), [("5040-g", 1)]);
}

#[test]
fn writes_outside_of_what_is_offered_5041_f_8166_4_4_3_a_8166_2_3_2_e() {
    let mut talk = Talk::new().greet();
    read_call(&mut talk);
    talk.write(SERVER, 10, 0x1000, &[7; 4]);
    assert_eq!(talk.rules(), [("5041-f", 1)]);

    for offset in [0xfff, 0x1000 + 97, u64::MAX - 1] {
        let mut talk = Talk::new().greet();
        read_call(&mut talk);
        talk.write(SERVER, 9, offset, &[7; 4]);
        assert_eq!(talk.rules(), [("8166-4.4.3-a", 1)]);
    }

    let mut talk = Talk::new().greet();
    read_call(&mut talk);
    talk.read(SERVER, 9, 0x1000, &[7; 4]);
    assert_eq!(talk.rules(), [("8166-2.3.2-e", 1)]);

    // After the Reply the memory is the Requester's again.
    let mut talk = Talk::new().greet();
    read_call(&mut talk);
    talk.write(SERVER, 9, 0x1000, &[7; 100]);
    read_reply(&mut talk, &[segment(9, 100, 0x1000)], 100);
    talk.write(SERVER, 9, 0x1000, &[7; 4]);
    assert_eq!(talk.rules(), [("5041-f", 1)]);
}

#[test]
fn what_comes_back_of_a_write_chunk_8166_3_4_6_c_8166_x_11() {
    type Case<'c> = (&'c [Segment], u32, &'c [(&'c str, u64)]);
    let cases: [Case<'_>; 5] = [
        // Another handle; another offset; more than there is room for.
        (&[segment(8, 100, 0x1000)], 100, &[("8166-3.4.6-c", 1)]),
        (&[segment(9, 100, 0x1001)], 100, &[("8166-3.4.6-c", 1)]),
        (&[segment(9, 101, 0x1000)], 101, &[("8166-3.4.6-c", 1), ("8166-X-11", 1)]),
        // Another number of segments.
        (&[segment(9, 100, 0x1000), segment(9, 0, 0)], 100, &[("8166-3.4.6-c", 1)]),
        // The chunk's length is not the item's.
        (&[segment(9, 99, 0x1000)], 100, &[("8166-3.4.6.2-a", 1)]),
    ];
    for (segments, len, expected) in cases {
        let mut talk = Talk::new().greet();
        read_call(&mut talk);
        talk.write(SERVER, 9, 0x1000, &[7; 100]);
        read_reply(&mut talk, segments, len);
        assert_eq!(talk.rules(), expected, "{segments:?}");
    }
    // Fewer octets were written than is claimed.
    let mut talk = Talk::new().greet();
    read_call(&mut talk);
    talk.write(SERVER, 9, 0x1000, &[7; 60]);
    read_reply(&mut talk, &[segment(9, 100, 0x1000)], 100);
    assert_eq!(talk.rules(), [("8166-3.4.6-c", 1)]);
    // The Write list does not come back; so the result must not be reduced either.
    let mut talk = Talk::new().greet();
    read_call(&mut talk);
    talk.send(SERVER, &plain(2, 32, &reply(2, &[read_results(100), vec![0; 100]].concat())));
    assert_eq!(talk.rules(), [("8166-3.4.6-c", 1), ("8166-4.3.2-a", 1)]);
}

#[test]
fn credits_8166_3_3() {
    // 0 granted; 0 asked for.
    let mut talk = Talk::new();
    talk.send(CLIENT, &plain(1, 0, &call(1, 0, &[])));
    talk.send(SERVER, &plain(1, 0, &reply(1, &[])));
    assert_eq!(talk.rules(), [("8166-3.3.1-c", 1), ("8166-X-8", 1)]);
    // Two Calls before the first Reply.
    let mut talk = Talk::new();
    talk.send(CLIENT, &plain(1, 32, &call(1, 0, &[])));
    talk.send(CLIENT, &plain(2, 32, &call(2, 0, &[])));
    assert_eq!(talk.rules(), [("8166-3.3.3-a", 1)]);
    // More than were granted.
    let mut talk = Talk::new();
    talk.send(CLIENT, &plain(1, 32, &call(1, 0, &[])));
    talk.send(SERVER, &plain(1, 2, &reply(1, &[])));
    for xid in 2..=4 {
        talk.send(CLIENT, &plain(xid, 32, &call(xid, 0, &[])));
    }
    assert_eq!(talk.rules(), [("8166-3.3.1-b", 1)]);
}

#[test]
fn xids_8166_x_10_5531_e_8166_4_2_1_a() {
    let mut talk = Talk::new().greet();
    talk.send(SERVER, &plain(7, 32, &reply(7, &[])));
    assert_eq!(talk.rules(), [("8166-X-10", 1)]);
    let mut talk = Talk::new().greet();
    for _ in 0..2 {
        talk.send(CLIENT, &plain(2, 32, &call(2, 0, &[])));
    }
    assert_eq!(talk.rules(), [("5531-e", 1)]);
    let mut talk = Talk::new().greet();
    talk.send(CLIENT, &plain(2, 32, &call(3, 0, &[])));
    assert_eq!(talk.rules(), [("8166-4.2.1-a", 1)]);
    let mut talk = Talk::new().greet();
    let mut error = [0; 20];
    emit_err_chunk(&mut error, 9, 1, 32).unwrap();
    talk.send(SERVER, &error);
    assert_eq!(talk.rules(), [("8166-4.5-e", 1)]);
}

#[test]
fn directions_8167_2_4_a() {
    // The same xid in both directions, at the same time, is nothing wrong.
    let mut talk = Talk::new().greet();
    talk.send(CLIENT, &plain(2, 32, &call(2, 0, &[])));
    talk.send(SERVER, &plain(2, 2, &call(2, 0, &[])));
    talk.send(CLIENT, &plain(2, 2, &reply(2, &[])));
    talk.send(SERVER, &plain(2, 32, &reply(2, &[])));
    assert_eq!(talk.rules(), []);
}

#[test]
fn headers_8166_4() {
    let entry = |position| ReadSegment { position, segment: segment(9, 100, 0x1000) };
    let reads = [entry(0)];
    let position_zero = Chunks { reads: &reads, ..Chunks::default() };
    let good = plain(2, 32, &call(2, 0, &[]));
    let with = |at: usize, word: u32| {
        let mut message = good.clone();
        message[at..at + 4].copy_from_slice(&word.to_be_bytes());
        message
    };
    let misplaced = [entry(6)];
    let misplaced = Chunks { reads: &misplaced, ..Chunks::default() };
    let cases: [(&str, Vec<u8>); 10] = [
        ("8166-4.5-a", good[..20].to_vec()),
        ("8166-4.2.2-a", with(4, 2)),
        ("8166-4.6.1-a", with(12, 2)),
        ("8166-4.6.2-a", with(12, 3)),
        ("8166-4.5.2-a", with(12, 5)),
        ("8166-X-2", with(16, 7)),
        ("8166-X-3", message(MessageKind::Msg, 2, &position_zero, &call(2, 0, &[]))),
        ("8166-3.4.5-a", message(MessageKind::Msg, 2, &misplaced, &call(2, 0, &[]))),
        ("8166-4.2.4-b", message(MessageKind::Nomsg, 2, &Chunks::default(), &[])),
        ("8166-4.2.4-d", plain(2, 32, &call(2, 0, &[0; 4096]))),
    ];
    for (rule, octets) in cases {
        let mut talk = Talk::new().greet();
        talk.send(CLIENT, &octets);
        let rules = talk.rules();
        assert!(rules.contains(&(rule, 1)), "{rule}: {rules:?}");
    }
    let mut talk = Talk::new().greet();
    let chunks = Chunks { reads: &misplaced.reads[..0], ..Chunks::default() };
    talk.send(CLIENT, &message(MessageKind::Msg, 2, &chunks, &call(2, 0, &[])));
    let reads = [entry(28)];
    let chunks = Chunks { reads: &reads, ..Chunks::default() };
    talk.send(SERVER, &message(MessageKind::Msg, 2, &chunks, &reply(2, &[])));
    assert_eq!(talk.rules(), [("8166-4.3.1-a", 1)]);
}

#[test]
fn chunks_that_fit_no_item_8166_6_1_c_8166_4_5_2_b_8166_3_4_5_2_a() {
    let cases = [
        // The name of a LOOKUP is not DDP-eligible.
        ("8166-6.1-c", 3, [&HANDLE[..], &words(&[4])].concat(), 40 + 8 + 4, 4),
        // No item is there; the item is longer.
        ("8166-4.5.2-b", 1, HANDLE.to_vec(), 200, 4),
        ("8166-3.4.5.2-a", 7, write_arguments(50), WRITE_POSITION, 20),
    ];
    for (rule, procedure, arguments, position, length) in cases {
        let mut talk = Talk::new().greet();
        let reads = [ReadSegment { position, segment: segment(9, length, 0) }];
        let chunks = Chunks { reads: &reads, ..Chunks::default() };
        talk.send(CLIENT, &message(MessageKind::Msg, 2, &chunks, &call(2, procedure, &arguments)));
        assert_eq!(talk.rules(), [(rule, 1)]);
    }
}

#[test]
fn invalidation_8797_4_1() {
    let answer = |remote_invalidation: bool, handle: u32| {
        let mut talk = Talk::with(true, remote_invalidation).greet();
        read_call(&mut talk);
        talk.write(SERVER, 9, 0x1000, &[7; 100]);
        let chunk = [segment(9, 100, 0x1000)];
        let chunks = Chunks { writes: &[&chunk], ..Chunks::default() };
        let octets = message(MessageKind::Msg, 2, &chunks, &reply(2, &read_results(100)));
        talk.untagged(SERVER, Opcode::SendInvalidate, handle, &octets);
        talk.rules()
    };
    assert_eq!(answer(true, 9), []);
    assert_eq!(answer(true, 10), [("8797-4.1-b", 1)]);
    assert_eq!(answer(false, 9), [("8797-4.1-c", 1)]);
}

#[test]
fn a_long_call_is_known_when_it_was_read_8166_3_5_3_b() {
    let mut talk = Talk::new().greet();
    let stream = call(2, 6, &read_arguments());
    let reads = [ReadSegment { position: 0, segment: segment(9, stream.len() as u32, 0) }];
    let chunks = Chunks { reads: &reads, ..Chunks::default() };
    talk.send(CLIENT, &message(MessageKind::Nomsg, 2, &chunks, &[]));
    talk.read(SERVER, 9, 0, &stream);
    talk.send(SERVER, &plain(2, 32, &reply(2, &words(&[2, 0]))));
    let (lines, totals) = analyze(&talk.frames);
    assert_eq!(rules(&totals), []);
    assert!(lines[2].contains("Call") && lines[2].contains("procedure: 6"), "{lines:#?}");
    assert!(lines[3].contains("NFS3ERR_NOENT"), "{lines:#?}");
}

/// 5044-4.3-a: markers are not decoded, and that is said.
#[test]
fn markers_are_told() {
    let mut talk = Talk::new().greet();
    let at = talk.frames[3].octets.len() - 32;
    talk.frames[3].octets[at + 16] |= 0x80;
    let (_, totals) = analyze(&talk.frames);
    assert_eq!((totals.connections, totals.replies), (1, 1));
    assert_eq!(totals.calls, 0);
}

/// 8166-3.3.1-d: no rule names a limit, so a grant larger than any receive queue is noted, once.
#[test]
fn an_absurd_grant_is_noted() {
    for (credits, expected) in [(65_536, 0), (65_537, 1), (u32::MAX, 1)] {
        let mut talk = Talk::new().greet();
        for xid in [2, 3] {
            talk.send(CLIENT, &plain(xid, 32, &call(xid, 0, &[])));
            talk.send(SERVER, &plain(xid, credits, &reply(xid, &[])));
        }
        let mut analyzer = stag_dump::Analyzer::new(stag_dump::Options::default());
        let mut notes = 0;
        for (number, Kept { time, octets }) in (1..).zip(&talk.frames) {
            let frame = stag_dump::capture::CapturedFrame {
                number,
                time: *time,
                link: link::ETHERNET,
                octets,
                missing: 0,
            };
            analyzer.frame(&frame, &mut |event| {
                notes += usize::from(matches!(event.kind, stag_dump::EventKind::Note(..)));
            });
        }
        assert_eq!((notes, rules(analyzer.totals())), (expected, vec![]), "{credits}");
    }
}
