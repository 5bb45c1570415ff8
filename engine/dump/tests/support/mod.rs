//! Runs captures through the analyzer.
#![allow(dead_code, reason = "each test crate has its own copy of this module")]

pub(crate) mod compound;
pub(crate) mod remake;
pub(crate) mod talk;

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use stag_dump::capture::CaptureReader;
use stag_dump::{Analyzer, CapturedEvent, Options, Totals};

/// Where the captures are.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures")
}

/// All captures, by name.
pub(crate) fn captures() -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(folder()).expect("the folder of captures");
    let paths = entries.map(|entry| entry.expect("a file of it").path());
    let mut captures: Vec<(String, PathBuf)> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "pcap"))
        .map(|path| (path.file_stem().expect("a name").to_string_lossy().into_owned(), path))
        .collect();
    captures.sort();
    assert!(!captures.is_empty());
    captures
}

/// Runs a capture; chunks' data is kept.
pub(crate) fn run(path: &Path, sink: &mut dyn FnMut(&CapturedEvent<'_>)) -> Totals {
    let file = File::open(path).expect("a capture");
    let mut capture = CaptureReader::new(BufReader::new(file)).expect("a capture");
    let mut analyzer = Analyzer::new(Options { keep_data: true });
    while let Some(frame) = capture.next_frame().expect("a whole capture") {
        analyzer.frame(&frame, sink);
    }
    assert!(analyzer.held() < 16 << 20);
    analyzer.finish(sink)
}
