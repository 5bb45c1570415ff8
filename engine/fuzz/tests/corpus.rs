//! Runs every target over its kept corpus: as it is, damaged in one place, and with parts of two inputs mixed.
//!
//! That needs neither libFuzzer nor a build of its own, and finds what changes near the paths that the corpus takes. New paths are
//! found by `ci/fuzz.sh`.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use stag_fabric::sim::Random;
use stag_fuzz::{TARGETS, Target};

/// The kept inputs of a target, and the file of each, in the order of their names.
fn kept(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut inputs: Vec<_> = entries
        .map(|entry| {
            let path = entry.expect("a folder can be read").path();
            let input = fs::read(&path).expect("a file of the corpus can be read");
            (path, input)
        })
        .collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "{name} has no corpus");
    inputs
}

/// Runs `target`. If it panics, prints the input in hexadecimal, to be kept in the corpus.
fn run(name: &str, target: Target, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(input))) {
        let hex: String = input.iter().map(|octet| format!("{octet:02x}")).collect();
        println!("{name} panicked; to replay: echo {hex} | xxd -r -p >engine/fuzz/corpus/{name}/found");
        resume_unwind(panic);
    }
}

#[test]
fn the_kept_corpus_runs() {
    for (name, target) in TARGETS {
        for (path, input) in kept(name) {
            println!("{}", path.display());
            run(name, *target, &input);
            // Cut everywhere, and with each octet changed: most of what a parser checks, in a moment.
            for at in 0..input.len().min(512) {
                run(name, *target, &input[..at]);
                for octet in [0, 1, 4, 0x7f, 0xff] {
                    let mut damaged = input.clone();
                    damaged[at] = octet;
                    run(name, *target, &damaged);
                }
            }
        }
    }
}

/// The start of one input and the end of another, with up to four words set to what counts and lengths get wrong, or spans left out
/// or repeated. At most 4 KiB.
fn mixed(random: &mut Random, inputs: &[(PathBuf, Vec<u8>)]) -> Vec<u8> {
    let mut below = |bound: usize| random.below(bound as u64) as usize;
    let first = &inputs[below(inputs.len())].1;
    let second = &inputs[below(inputs.len())].1;
    let mut input = first[..below(first.len() + 1)].to_vec();
    input.extend_from_slice(&second[below(second.len() + 1)..]);
    for _ in 0..=below(4) {
        // Fields are aligned to four octets.
        let start = below(input.len() + 1) & !3;
        let end = (start + 4 * (1 + below(8))).min(input.len());
        match below(3) {
            0 if start + 4 <= input.len() => {
                let words =
                    [0, 1, 2, 4, 0x7fff_ffff, 0x8000_0000, u32::MAX, (input.len() - start - 4) as u32];
                input[start..start + 4].copy_from_slice(&words[below(words.len())].to_be_bytes());
            }
            1 => drop(input.drain(start..end)),
            _ => {
                let span = input[start..end].to_vec();
                input.splice(start..start, span);
            }
        }
    }
    input.truncate(4096);
    input
}

#[test]
fn mixtures_of_the_kept_corpus_run() {
    for (name, target) in TARGETS {
        let inputs = kept(name);
        let mut random = Random::new(0x5eed);
        for _ in 0..4000 {
            run(name, *target, &mixed(&mut random, &inputs));
        }
    }
}

#[test]
fn every_kept_folder_has_a_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for entry in fs::read_dir(corpus).expect("corpus") {
        let folder = entry.expect("a folder can be read").file_name();
        assert!(TARGETS.iter().any(|(name, _)| folder == **name), "{folder:?} has no target");
    }
}
