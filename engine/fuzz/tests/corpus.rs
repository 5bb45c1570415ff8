//! Runs every target over its kept corpus, as it is and damaged a little.

use std::fs;
use std::path::Path;

use stag_fuzz::TARGETS;

#[test]
fn the_kept_corpus_runs() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (name, target) in TARGETS {
        let folder = corpus.join(name);
        let mut count = 0;
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.expect("a folder can be read").path();
            let input = fs::read(&path).expect("a file of the corpus can be read");
            // The name of the input first: it is what a panic leaves behind.
            println!("{}", path.display());
            target(&input);
            // Cut everywhere, and with each octet changed: most of what a parser checks, in a moment.
            for at in 0..input.len().min(512) {
                target(&input[..at]);
                for octet in [0, 1, 4, 0x7f, 0xff] {
                    let mut damaged = input.clone();
                    damaged[at] = octet;
                    target(&damaged);
                }
            }
            count += 1;
        }
        assert!(count > 0, "{name} has no corpus");
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
