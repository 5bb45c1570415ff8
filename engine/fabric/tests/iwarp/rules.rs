//! Every rule of `engine/spec/iwarp.md` is named by a test, or `rules.txt` says why not:
//! `cargo test -p stag-fabric --test iwarp rules -- --nocapture` prints the table.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The rule numbers in a text.
fn numbers(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    text.split(move |c| !is_part(c)).map(|word| word.trim_end_matches('.')).filter(|word| {
        let mut parts = word.split('-');
        match parts.next() {
            Some("siw") => parts.next().is_some_and(|number| number.parse::<u32>().is_ok()),
            Some("5044" | "6581" | "5041" | "5040" | "5042") => {
                word.ends_with(|c: char| c.is_ascii_lowercase()) && parts.next().is_some()
            }
            _ => false,
        }
    })
}

fn sources(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the project") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            out.push(path);
        }
    }
}

/// The tests' text of a file: all of it, or what is behind `#[cfg(test)]`.
fn tests_of(path: &Path) -> String {
    let text = fs::read_to_string(path).expect("a source");
    if path.components().any(|part| part.as_os_str() == "src") {
        text.split_once("#[cfg(test)]").map_or(String::new(), |(_, tests)| tests.to_owned())
    } else {
        text
    }
}

#[test]
fn every_rule_is_named_by_a_test() {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = vec![crate_folder.join("../wire/tests/iwarp.rs")];
    sources(&crate_folder.join("tests/iwarp"), &mut files);
    sources(&crate_folder.join("src/iwarp"), &mut files);
    let mut named: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in &files {
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        if name == "rules.rs" {
            continue;
        }
        for number in numbers(&tests_of(file)) {
            named.entry(number.to_owned()).or_default().insert(name.clone());
        }
    }
    let list = fs::read_to_string(crate_folder.join("tests/iwarp/rules.txt")).expect("the list");
    let others: BTreeSet<&str> =
        list.lines().filter(|line| !line.starts_with('#')).filter_map(|l| l.split(' ').next()).collect();
    let spec = fs::read_to_string(crate_folder.join("../spec/iwarp.md")).expect("the rules");
    let rows = spec.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next());
    let rules: BTreeSet<&str> = rows.flat_map(numbers).collect();
    assert!(rules.len() > 50, "the tables were found: {rules:?}");
    for rule in &rules {
        let by = named.get(*rule).map(|files| files.iter().cloned().collect::<Vec<_>>().join(" "));
        println!("{rule:<12} {}", by.unwrap_or_else(|| "see rules.txt".to_owned()));
    }
    let missing: Vec<_> =
        rules.iter().filter(|rule| !named.contains_key(**rule) && !others.contains(**rule)).collect();
    assert!(missing.is_empty(), "rules without a test: {missing:?}");
    let needless: Vec<_> =
        others.iter().filter(|rule| !rule.is_empty() && named.contains_key(**rule)).collect();
    assert!(needless.is_empty(), "rules.txt excuses what a test names: {needless:?}");
    let unknown: Vec<_> = named.keys().filter(|rule| !rules.contains(rule.as_str())).collect();
    assert!(unknown.is_empty(), "tests name rules that there are not: {unknown:?}");
}
