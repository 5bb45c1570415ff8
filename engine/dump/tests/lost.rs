//! Captures that lack a frame: every other Call whose frames are there still pairs up, and the gap is reported
//! once.

use std::collections::{BTreeMap, BTreeSet};

use stag_dump::capture::CapturedFrame;
use stag_dump::{Analyzer, ConnectionEnd, EventKind, Options, Totals};
use stag_wire::roce;
use stag_wire::rpcrdma::NFS_PORT;

mod support;
use support::captures;
use support::remake::{ETHERNET_LEN, Kept, Random, frames, link, tcp_payload};

/// Frames of one capture that are taken away, one at a time.
const SAMPLE: usize = 60;

/// What a capture tells, by the numbers of the frames.
#[derive(Default)]
struct Told {
    /// Frames of each Call and of its Reply.
    pairs: BTreeSet<(u64, u64)>,
    calls: BTreeSet<u64>,
    /// Octets of the message that ends in a frame.
    lens: BTreeMap<u64, usize>,
    gaps: Vec<(u64, ConnectionEnd, u64)>,
    broken: Vec<String>,
    totals: Totals,
}

/// Runs the frames but one, each with the number that it has in the whole capture.
fn tell(frames: &[Kept], without: Option<usize>) -> Told {
    let mut analyzer = Analyzer::new(Options::default());
    let mut told = Told::default();
    let mut sink = |event: &stag_dump::CapturedEvent<'_>| match &event.kind {
        EventKind::Message(message) => {
            told.lens.insert(event.frame, message.octets.len());
            match message.answered {
                Some(answered) => drop(told.pairs.insert((answered.frame, event.frame))),
                None => drop(told.calls.insert(event.frame)),
            }
            told.broken.extend(message.violations.iter().map(|broken| format!("{broken:?}")));
        }
        EventKind::Violation(_, broken) => told.broken.push(format!("{broken:?}")),
        EventKind::Gap(from, len) => told.gaps.push((event.frame, *from, *len)),
        _ => {}
    };
    for (index, Kept { time, octets }) in frames.iter().enumerate() {
        if Some(index) != without {
            let frame = CapturedFrame {
                number: index as u64 + 1,
                time: *time,
                link: link::ETHERNET,
                octets,
                missing: 0,
            };
            analyzer.frame(&frame, &mut sink);
        }
    }
    let totals = analyzer.finish(&mut sink);
    told.totals = totals;
    told
}

/// What a frame carries of a connection, and who sent it to whom.
fn carries(octets: &[u8]) -> Option<(usize, &[u8])> {
    if let Some(at) = tcp_payload(octets) {
        // MOUNT and others, on plain TCP.
        let ports = &octets[ETHERNET_LEN + 20..ETHERNET_LEN + 24];
        if !ports.chunks(2).any(|port| port == NFS_PORT.to_be_bytes()) {
            return None;
        }
        let total = usize::from(u16::from_be_bytes([octets[ETHERNET_LEN + 2], octets[ETHERNET_LEN + 3]]));
        let len = (ETHERNET_LEN + total).saturating_sub(at);
        return (len > 0).then(|| (len, &octets[ETHERNET_LEN + 12..ETHERNET_LEN + 20]));
    }
    let udp = ETHERNET_LEN + 4 * usize::from(octets.get(ETHERNET_LEN)? & 0x0f);
    let is_roce = octets.get(12..14)? == [8, 0]
        && octets.get(ETHERNET_LEN + 9)? == &17
        && octets.get(udp + 2..udp + 4)? == roce::PORT.to_be_bytes();
    let packet = roce::Packet::parse(octets.get(udp + 8..).filter(|_| is_roce)?).ok()?;
    let is_numbered = packet.destination_qp != roce::QP_GENERAL_SERVICES
        && !matches!(packet.operation, roce::RoceOperation::Acknowledge { .. });
    is_numbered.then(|| (1, &octets[ETHERNET_LEN + 12..ETHERNET_LEN + 20]))
}

/// 5044-4.1: a receiver that lost its place finds it again.
#[test]
fn without_any_frame_all_other_calls_pair_up() {
    let mut random = Random(8);
    let mut problems = Vec::new();
    for (name, path) in captures() {
        let frames = frames(&path);
        let whole = tell(&frames, None);
        assert_eq!(whole.gaps, [], "{name}");
        // TCP's sequence number.
        let sequence = |index: usize| frames[index].octets.get(ETHERNET_LEN + 24..ETHERNET_LEN + 28);
        let (mut lost_pairs, mut tried) = (0, 0);
        let chosen: BTreeSet<usize> = match frames.len() {
            0..=SAMPLE => (0..frames.len()).collect(),
            len => (0..SAMPLE).map(|_| random.below(len)).collect(),
        };
        for without in chosen {
            let number = without as u64 + 1;
            let told = tell(&frames, Some(without));
            let carried = carries(&frames[without].octets);
            let sent_by = |index: usize| {
                let other = carries(&frames[index].octets)?;
                carried.filter(|(_, ends)| other.1 == *ends).map(|_| other.0)
            };
            // A message may end in a later frame of its sender.
            let is_hit = |frame: u64| {
                let behind: usize = (without + 1..frame as usize).filter_map(sent_by).sum();
                frame == number
                    || (frame > number
                        && sent_by(frame as usize - 1).is_some()
                        && behind < whole.lens.get(&frame).copied().unwrap_or(0))
            };
            let missed: Vec<_> = whole.pairs.difference(&told.pairs).collect();
            // Without the connection manager's word, a queue pair's other end is known by its first answer.
            let is_told_late = name.starts_with("rxe") && carried.is_none() && missed.len() <= 1;
            let are_hit =
                missed.len() <= 3 && missed.iter().all(|(call, reply)| is_hit(*call) || is_hit(*reply));
            let mut expect = |holds: bool, what: &dyn std::fmt::Debug| {
                if !holds {
                    problems.push(format!("{name} without frame {number}: {what:?}"));
                }
            };
            expect(are_hit || is_told_late, &("pairs", &missed));
            expect(told.broken.is_empty(), &("rules", &told.broken));
            // A Reply that is lost was perhaps given.
            expect(told.totals.unanswered == 0, &("unanswered", told.totals.unanswered));
            // A segment that was sent twice is still there.
            let is_twice = carried.is_some_and(|(len, _)| {
                let same =
                    |index: &usize| sent_by(*index) == Some(len) && sequence(*index) == sequence(without);
                (0..frames.len()).any(|index| index != without && same(&index))
            });
            let is_tcp = tcp_payload(&frames[without].octets).is_some();
            let is_told = match (carried, &told.gaps[..]) {
                (None, []) => true,
                (Some(_), []) => is_tcp && is_twice,
                (Some((len, _)), [(frame, _, lacks)]) => *frame > number && (!is_tcp || *lacks == len as u64),
                _ => false,
            };
            expect(is_told, &("gaps", &told.gaps, carried.map(|(len, _)| len)));
            lost_pairs += missed.len();
            tried += 1;
        }
        println!(
            "{name}: {tried} times one of {} frames away, {lost_pairs} Calls lost in all: ok",
            frames.len()
        );
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// A TCP segment of IPv4 without options, between a client and a server; ends, numbers and flags as they are given.
fn segment(from_client: bool, sequence: u32, acknowledged: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let ends = [([10, 0, 0, 1], 700u16), ([10, 0, 0, 2], NFS_PORT)];
    let (source, destination) = if from_client { (ends[0], ends[1]) } else { (ends[1], ends[0]) };
    let mut octets = vec![0x45, 0];
    octets.extend((40 + payload.len() as u16).to_be_bytes());
    octets.extend([0, 0, 0, 0, 64, 6, 0, 0]);
    octets.extend([source.0, destination.0].concat());
    octets.extend([source.1.to_be_bytes(), destination.1.to_be_bytes()].concat());
    octets.extend([sequence.to_be_bytes(), acknowledged.to_be_bytes()].concat());
    octets.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    octets.extend(payload);
    octets
}

/// A segment can claim to answer what the other side never sent: its stream ended before. It is not waited for.
#[test]
fn nobody_waits_for_what_comes_after_the_end() {
    const SYN: u8 = 0x02;
    const ACK: u8 = 0x10;
    const FIN: u8 = 0x01;
    let frames = [
        segment(true, 999, 0, SYN, &[]),
        segment(false, 4999, 1000, SYN | ACK, &[]),
        segment(false, 5000, 1000, FIN | ACK, b"MPA"),
        segment(true, 1000, 6000, ACK, b"an answer to a thousand octets"),
    ];
    let mut analyzer = Analyzer::new(Options::default());
    for (number, octets) in (1..).zip(&frames) {
        // Packets of IP, without Ethernet.
        let frame = CapturedFrame { number, time: std::time::Duration::ZERO, link: 101, octets, missing: 0 };
        analyzer.frame(&frame, &mut |_| {});
    }
    let totals = analyzer.finish(&mut |_| {});
    assert_eq!((totals.connections, totals.messages), (0, 0), "there is no whole frame of MPA");
}
