//! Captures whose frames are cut (`tcpdump -s`), or not in the order in which they were sent: no side is accused for it.

use stag_dump::Totals;

mod support;
use support::captures;
use support::remake::{Kept, analyze, frames, rules};

/// At most this many swaps of two frames are tried in each capture.
const SWAPS: usize = 50;

fn cut(frames: &[Kept], len: usize) -> Vec<Kept> {
    // Captures say how long a frame was; here the packet's own length says so.
    frames
        .iter()
        .map(|frame| Kept { octets: frame.octets[..len.min(frame.octets.len())].to_vec(), ..*frame })
        .collect()
}

fn is_innocent(name: &str, what: &str, totals: &Totals, lines: &[String]) -> Option<String> {
    let broken = rules(totals);
    let told: Vec<&String> = lines.iter().filter(|line| !line.ends_with(" []")).collect();
    (!broken.is_empty()).then(|| format!("{name} {what}: {broken:?} {told:?}"))
}

#[test]
fn cut_frames_break_no_rule() {
    let mut accused = Vec::new();
    for (name, path) in captures() {
        let whole = frames(&path);
        for len in [42, 50, 54, 58, 60, 64, 70, 74, 80, 96, 100, 128, 160, 200, 256, 300, 400, 512, 1024] {
            let (lines, totals) = analyze(&cut(&whole, len));
            accused.extend(is_innocent(&name, &format!("cut to {len}"), &totals, &lines));
        }
    }
    assert!(accused.is_empty(), "{}", accused.join("\n"));
}

/// Only some of the frames are cut: those from one on, or one of them.
#[test]
fn one_cut_frame_breaks_no_rule() {
    let mut accused = Vec::new();
    for (name, path) in captures().into_iter().filter(|(name, _)| name.starts_with("rxe")) {
        let whole = frames(&path);
        for index in 0..whole.len() {
            for len in [60, 100, 200] {
                let mut some = whole.clone();
                some[index].octets.truncate(len);
                let (lines, totals) = analyze(&some);
                accused.extend(is_innocent(&name, &format!("frame {index} cut to {len}"), &totals, &lines));
            }
        }
    }
    assert!(accused.is_empty(), "{}", accused.join("\n"));
}

#[test]
fn frames_that_change_places_break_no_rule() {
    let mut accused = Vec::new();
    for (name, path) in captures() {
        let whole = frames(&path);
        for distance in [1, 3] {
            let last = whole.len().saturating_sub(distance);
            for index in (0..last).step_by(last.div_ceil(SWAPS).max(1)) {
                let mut swapped = whole.clone();
                let late = swapped.remove(index);
                swapped.insert(index + distance, late);
                let (lines, totals) = analyze(&swapped);
                accused.extend(is_innocent(
                    &name,
                    &format!("frame {index} {distance} later"),
                    &totals,
                    &lines,
                ));
            }
        }
    }
    assert!(accused.is_empty(), "{}", accused.join("\n"));
}
