//! Captures: any file, and any octets of a TCP connection that may be iWARP.

use std::time::Duration;

use stag_dump::capture::{Frame, Reader};
use stag_dump::{Analyzer, Event, EventKind, Options, Totals};

/// Octets that an analyzer may hold for an input of a few KiB: chunks claim more than there is, so it is not the input's
/// length, but far below its own limit.
const HELD_MAX: usize = 64 << 20;

/// Looks at all that an event says, and counts messages.
fn look(event: &Event<'_>, messages: &mut u64) {
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
    let Ok(mut capture) = Reader::new(data) else { return };
    let mut analyzer = Analyzer::new(Options { keep_data: data.len().is_multiple_of(2) });
    let mut messages = 0;
    while let Ok(Some(frame)) = capture.next_frame() {
        analyzer.frame(&frame, &mut |event| look(event, &mut messages));
        assert!(analyzer.held() <= HELD_MAX);
    }
    let totals = analyzer.finish(&mut |event| look(event, &mut messages));
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
        let frame = Frame { number, time: Duration::from_micros(number), link: 101, octets };
        analyzer.frame(&frame, &mut |event| look(event, &mut messages));
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
    let totals = analyzer.finish(&mut |event| look(event, &mut messages));
    check(&totals, messages);
}

/// `stag dump` over any file; and over any TCP connection.
pub fn dump(data: &[u8]) {
    file(data);
    segments(data);
}
