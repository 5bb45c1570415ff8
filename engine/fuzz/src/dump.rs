//! Captures: any file, any octets of a TCP connection that may be iWARP, and any messages of one that is.

use std::time::Duration;

use stag_dump::capture::{CaptureReader, CapturedFrame};
use stag_dump::{Analyzer, CapturedEvent, EventKind, Options, Totals};
use stag_wire::mpa;
use stag_wire::reliable_reply::ReliableReply;

/// Octets that an analyzer may hold for an input of a few KiB: chunks claim more than there is, so it is not the input's
/// length, but far below its own limit.
const HELD_MAX: usize = 64 << 20;

/// The bit of the first octet that asks for a conversation.
const CONVERSATION: u8 = 8;

/// Looks at all that an event says, and counts messages.
fn check_event(event: &CapturedEvent<'_>, messages: &mut u64) {
    if let EventKind::Message(message) = &event.kind {
        *messages += 1;
        if let (Ok((header, _)), Some(answered)) = (&message.header, &message.answered) {
            let writes: u64 = header.write_list().map(|chunk| chunk.total_len()).sum();
            let _ = writes.wrapping_add(answered.chunks.iter().map(|chunk| chunk.moved).sum());
        }
    }
}

/// Checks what holds whatever was in the capture.
fn check(totals: &Totals, messages: u64) {
    assert_eq!(totals.messages, messages);
    assert!(totals.paired <= totals.replies + totals.errors);
    assert!(totals.crc_good + totals.crc_bad <= totals.segments);
}

/// Reads `data` as a capture file, and analyzes what is in it.
fn file(data: &[u8]) {
    let Ok(mut capture) = CaptureReader::new(data) else { return };
    let mut analyzer = Analyzer::new(Options { keep_data: data.len().is_multiple_of(2) });
    let mut messages = 0;
    while let Ok(Some(frame)) = capture.next_frame() {
        analyzer.frame(&frame, &mut |event| check_event(event, &mut messages));
        assert!(analyzer.held() <= HELD_MAX);
    }
    let totals = analyzer.finish(&mut |event| check_event(event, &mut messages));
    check(&totals, messages);
}

/// A TCP segment between the same two ends, in a packet of IPv4.
fn packet(from_client: bool, sequence: u32, acknowledged: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let ends = [[10, 0, 0, 1], [10, 0, 0, 2]];
    let ports = [700u16.to_be_bytes(), 20049u16.to_be_bytes()];
    let (source, destination) = if from_client { (0, 1) } else { (1, 0) };
    let mut octets = vec![0x45, 0];
    octets.extend((40 + payload.len() as u16).to_be_bytes());
    octets.extend([0, 0, 0, 0, 64, 6, 0, 0]);
    octets.extend([ends[source], ends[destination]].concat());
    octets.extend([ports[source], ports[destination]].concat());
    octets.extend(sequence.to_be_bytes());
    octets.extend(acknowledged.to_be_bytes());
    octets.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    octets.extend(payload);
    octets
}

/// Reads `data` as what two sides send: pieces with a length, a side and a place, so that they come in any order, twice,
/// and with gaps.
fn segments(data: &[u8]) {
    let mut analyzer = Analyzer::new(Options { keep_data: true });
    let mut messages = 0;
    let mut number = 0;
    let mut next = [1000u32, 5000];
    let mut frame = |octets: &[u8], analyzer: &mut Analyzer| {
        number += 1;
        let frame =
            CapturedFrame { number, time: Duration::from_micros(number), link: 101, octets, missing: 0 };
        analyzer.frame(&frame, &mut |event| check_event(event, &mut messages));
        assert!(analyzer.held() <= HELD_MAX);
    };
    let mut rest = data;
    // Half of the inputs start with the start of the connection.
    if let Some((first, after)) = rest.split_first()
        && first & 1 != 0
    {
        frame(&packet(true, 999, 0, 0x02, &[]), &mut analyzer);
        frame(&packet(false, 4999, 1000, 0x12, &[]), &mut analyzer);
        rest = after;
    }
    while let Some(([control, len], after)) = rest.split_first_chunk() {
        let (payload, after) = after.split_at(usize::from(*len).min(after.len()));
        rest = after;
        let side = usize::from(control & 1);
        // Mostly where the last one ended; sometimes before, or behind a gap.
        let sequence = match control >> 1 & 7 {
            0 => next[side].wrapping_sub(u32::from(*len) / 2),
            1 => next[side].wrapping_add(64),
            _ => next[side],
        };
        next[side] = next[side].max(sequence.wrapping_add(payload.len() as u32));
        let flags = match control >> 4 {
            15 => 0x14,
            14 => 0x11,
            _ => 0x10,
        };
        frame(&packet(side == 0, sequence, next[1 - side], flags, payload), &mut analyzer);
    }
    let totals = analyzer.finish(&mut |event| check_event(event, &mut messages));
    check(&totals, messages);
}

/// Untagged headers for a side: which queue, and the number of the next message in it.
struct Numbers([u32; 3]);

impl Numbers {
    fn untagged(&mut self, opcode: u8, queue: usize, invalidated: u32, payload: &[u8]) -> Vec<u8> {
        let number = self.0[queue];
        self.0[queue] = number.wrapping_add(1);
        let words = [invalidated, queue as u32, number, 0];
        [&[0x41, 0x40 | opcode], words.map(u32::to_be_bytes).as_flattened(), payload].concat()
    }
}

/// Reads `data` as what two sides say after a set-up in order, in frames in order: the first octet has settings, and then come
/// steps. A step is an octet with the side and what it sends, another with a length in words, and that. So the messages, and
/// not the layers below, are what is fuzzed.
fn conversation(data: &[u8]) {
    let Some((settings, mut script)) = data.split_first() else { return };
    let is_checked = settings & 1 != 0;
    let cut = [usize::MAX, 7, 60, 700][usize::from(settings >> 6)];
    let mut analyzer = Analyzer::new(Options { keep_data: settings & 2 != 0 });
    let (mut messages, mut count) = (0, 0);
    let mut next = [1000u32, 5000];
    let mut send = |side: usize, octets: &[u8], analyzer: &mut Analyzer| {
        for part in octets.chunks(cut) {
            count += 1;
            let octets = packet(side == 0, next[side], next[1 - side], 0x18, part);
            next[side] = next[side].wrapping_add(part.len() as u32);
            let frame = CapturedFrame {
                number: count,
                time: Duration::from_micros(count),
                link: 101,
                octets: &octets,
                missing: 0,
            };
            analyzer.frame(&frame, &mut |event| check_event(event, &mut messages));
            assert!(analyzer.held() <= HELD_MAX);
        }
    };
    // With reliable reply or without: both sides expose four Replies at once.
    let mut told = vec![0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3];
    if settings & 16 != 0 {
        told.extend(ReliableReply { pulls: true, exposes: true, done_receives: 4 }.to_wire());
    }
    for (side, kind) in [(0, mpa::FrameKind::Request), (1, mpa::FrameKind::Reply)] {
        let frame = mpa::Frame {
            kind,
            markers: false,
            crc: is_checked,
            rejected: false,
            large_fpdus: settings & 4 != 0,
            revision: 2,
            enhanced: Some(mpa::Enhanced { peer_to_peer: None, ird: 16, ord: 16 }),
            private_data: &told,
        };
        let mut octets = [0; 64];
        let len = frame.emit(&mut octets).expect("it is short");
        send(side, &octets[..len], &mut analyzer);
    }
    let mut numbers = [Numbers([1; 3]), Numbers([1; 3])];
    while let Some(([what, words], rest)) = script.split_first_chunk() {
        let (payload, rest) = rest.split_at((usize::from(*words) * 4).min(rest.len()));
        script = rest;
        let side = usize::from(what & 1);
        let invalidated = u32::from(what >> 4);
        let ulpdu = match what >> 1 & 7 {
            0 => payload.to_vec(),
            1 | 2 => numbers[side].untagged(3, 0, 0, payload),
            3 => numbers[side].untagged(4, 0, invalidated, payload),
            4 => [&[0xc1, 0x40], payload].concat(),
            5 => numbers[side].untagged(1, 1, 0, payload),
            6 => [&[0xc1, 0x42], payload].concat(),
            _ => numbers[side].untagged(7, 2, 0, payload),
        };
        let mut fpdu = vec![0; mpa::fpdu_len(ulpdu.len())];
        mpa::emit_fpdu(&ulpdu, is_checked.then_some(mpa::crc32c), &mut fpdu).expect("it fits");
        send(side, &fpdu, &mut analyzer);
    }
    let totals = analyzer.finish(&mut |event| check_event(event, &mut messages));
    assert_eq!(totals.crc_bad, 0, "every frame was good");
    check(&totals, messages);
}

/// `stag dump` over any file; and over any TCP connection, or any conversation, as a bit of the first octet says.
pub fn dump(data: &[u8]) {
    file(data);
    match data.first() {
        Some(first) if first & CONVERSATION != 0 => conversation(data),
        _ => segments(data),
    }
}
