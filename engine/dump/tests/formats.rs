//! The same capture in every format, over every link, and with its TCP segments in any shape and order, says the same.

mod support;
use support::folder;
use support::remake::*;

/// What a capture says, but for the connections' numbers.
fn said(name: &str) -> (Vec<Kept>, Vec<String>) {
    let frames = frames(&folder().join(name));
    let (lines, totals) = analyze(&frames);
    assert!(totals.messages > 0 && totals.violation_count() == 0);
    (frames, lines)
}

const IWARP: &str = "siw-crc-6.1-v3-write.pcap";
const ROCE: &str = "rxe-6.1-v3-wire.pcap";

#[test]
fn pcap_and_pcapng_in_both_orders_and_resolutions() {
    let (frames, expected) = said(IWARP);
    for order in [Order::Little, Order::Big] {
        for nanoseconds in [false, true] {
            assert_eq!(analyze_file(&pcap(&frames, order, nanoseconds, link::ETHERNET)).0, expected);
        }
        for digits in [6, 9] {
            let file = pcapng(&frames, order, digits, link::ETHERNET);
            let (lines, _) = analyze_file(&file);
            assert_eq!(lines, expected);
            // Two sections, the second in the other order and on its own interfaces.
            let other = if order == Order::Little { Order::Big } else { Order::Little };
            let (first, second) = frames.split_at(frames.len() / 2);
            let file = [pcapng(first, order, digits, 1), pcapng(second, other, digits, 1)].concat();
            assert_eq!(analyze_file(&file).0, expected);
        }
    }
}

#[test]
fn times_are_kept_to_the_nanosecond() {
    let time = std::time::Duration::new(1_700_000_000, 123_456_789);
    let frames = [Kept { time, octets: vec![0; 60] }];
    for file in [pcap(&frames, Order::Big, true, 1), pcapng(&frames, Order::Little, 9, 1)] {
        let mut capture = stag_dump::capture::CaptureReader::new(&file[..]).unwrap();
        assert_eq!(capture.next_frame().unwrap().unwrap().time, time);
    }
}

#[test]
fn every_link_type() {
    for name in [IWARP, ROCE] {
        let (frames, expected) = said(name);
        let cooked = [&[0; 14][..], &[8, 0]].concat();
        let cooked_2 = [&[8, 0][..], &[0; 18]].concat();
        let one_tag = [&[0; 12][..], &[0x81, 0, 0, 5, 8, 0]].concat();
        let two_tags = [&[0; 12][..], &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 8, 0]].concat();
        let links: [(u16, &[u8]); 6] = [
            (link::RAW, &[]),
            (link::NULL, &[2, 0, 0, 0]),
            (link::COOKED, &cooked),
            (link::COOKED_2, &cooked_2),
            (link::ETHERNET, &one_tag),
            (link::ETHERNET, &two_tags),
        ];
        for (link, header) in links {
            let (lines, _) = analyze_file(&pcap(&relink(&frames, header), Order::Little, false, link));
            assert_eq!(lines, expected, "{name}, link type {link}");
        }
    }
}

#[test]
fn ipv6_with_and_without_extensions() {
    for name in [IWARP, ROCE] {
        let (frames, expected) = said(name);
        // Nothing; a destination options header of 8 octets; one of 16.
        for (first, extensions) in [
            (None, &[][..]),
            (Some(60), &[0; 8][..]),
            (Some(60), &[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ] {
            let (lines, _) = analyze(&ipv6(&frames, first, extensions));
            assert_eq!(lines, expected, "{name}, {} octets of extensions", extensions.len());
        }
    }
}

/// 5044-5-b: FPDUs in any alignment.
#[test]
fn segments_of_any_size() {
    let (frames, expected) = said("siw-crc-6.1-v3-read.pcap");
    for size in [1, 3, 7, 100, 1000] {
        assert_eq!(analyze(&resegment(&frames, size)).0, expected, "segments of {size}");
    }
}

#[test]
fn reordered_duplicated_and_retransmitted_segments() {
    let (frames, mut expected) = said(IWARP);
    expected.sort();
    let frames = resegment(&frames, 400);
    for seed in 1..=20 {
        let mut random = Random(seed);
        let mut shaken: Vec<Kept> = Vec::new();
        for kept in &frames {
            // Some frames come up to four places early, of those with data; some come twice.
            let early = if tcp_payload(&kept.octets).is_some() { random.below(5) } else { 0 };
            let data_behind =
                shaken.iter().rev().take_while(|kept| tcp_payload(&kept.octets).is_some()).count();
            let at = shaken.len() - early.min(data_behind);
            shaken.insert(at, kept.clone());
            if random.below(10) == 0 && tcp_payload(&kept.octets).is_some() {
                shaken.push(kept.clone());
            }
        }
        let (mut lines, totals) = analyze(&shaken);
        lines.sort();
        assert_eq!(totals.missing, 0, "seed {seed}");
        // Frames of the two directions may change places, so a Reply may come before its Call: that is all.
        assert_eq!(rules(&totals), [], "seed {seed}");
        assert_eq!(lines.len(), expected.len(), "seed {seed}");
    }
}

/// A capture that lost frames says so, goes on behind them, and reports no violation.
#[test]
fn lost_segments_are_gaps_and_no_violations() {
    for name in [IWARP, "siw-6.1-v3-read.pcap", "siw-6.1-v4.1-recall.pcap"] {
        let (frames, expected) = said(name);
        for seed in 1..=40 {
            let mut random = Random(seed);
            let kept: Vec<Kept> = frames
                .iter()
                .filter(|kept| tcp_payload(&kept.octets).is_none() || random.below(12) != 0)
                .cloned()
                .collect();
            let (lines, totals) = analyze(&kept);
            assert_eq!(rules(&totals), [], "{name}, seed {seed}");
            assert!(totals.missing > 0, "{name}, seed {seed}");
            // All that was not lost is found, but for what shared its message with it.
            assert!(
                lines.len() * 3 > expected.len(),
                "{name}, seed {seed}: {} of {}",
                lines.len(),
                expected.len()
            );
        }
    }
}

#[test]
fn captures_that_start_midway() {
    for name in [IWARP, "siw-6.1-v3-read.pcap", ROCE] {
        let (frames, expected) = said(name);
        for start in [60, 100, 151, 200] {
            let (lines, totals) = analyze(&frames[start..]);
            assert_eq!(rules(&totals), [], "{name} from frame {start}");
            assert!(totals.messages > 0 && totals.connections == 1, "{name} from frame {start}");
            // Its Call may have been before the start, and who is the client is a guess: the xid is the same.
            let last =
                |lines: &[String]| lines.last().and_then(|line| line.split(' ').nth(2).map(str::to_owned));
            assert_eq!(last(&lines), last(&expected), "{name} from frame {start}");
        }
    }
}

/// Frames that were cut by a snap length: headers are there, the data is a gap.
#[test]
fn frames_that_were_cut() {
    let (mut frames, expected) = said("siw-6.1-v3-write.pcap");
    for kept in &mut frames {
        kept.octets.truncate(1000);
    }
    let (lines, totals) = analyze(&frames);
    assert_eq!(rules(&totals), []);
    assert!(totals.missing > 0);
    assert!(lines.len() * 2 > expected.len(), "{} of {}", lines.len(), expected.len());
}

/// Lost, repeated and late packets of RoCE.
#[test]
fn lost_and_repeated_packets_of_roce() {
    let (frames, expected) = said(ROCE);
    let twice: Vec<Kept> = frames.iter().flat_map(|kept| [kept.clone(), kept.clone()]).collect();
    let (lines, totals) = analyze(&twice);
    assert_eq!(lines, expected);
    assert!(totals.duplicates > 0);
    for seed in 1..=40 {
        let mut random = Random(seed);
        // All but acknowledgements: without them a lost Call looks like a Reply without one, until the next packet.
        let is_acknowledgement = |kept: &Kept| kept.octets.len() == 62;
        let kept: Vec<Kept> =
            frames.iter().filter(|kept| is_acknowledgement(kept) || random.below(12) != 0).cloned().collect();
        let (lines, totals) = analyze(&kept);
        assert_eq!(rules(&totals), [], "seed {seed}");
        assert!(lines.len() * 2 > expected.len(), "seed {seed}: {} of {}", lines.len(), expected.len());
    }
}
