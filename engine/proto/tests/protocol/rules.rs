//! Which rule is kept by which test: `cargo test -p stag-proto rules -- --nocapture` prints the table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The rule numbers in a line of comment.
fn numbers(comment: &str) -> impl Iterator<Item = &str> {
    comment.split([' ', ',', ';', ':', '(', ')']).map(|word| word.trim_end_matches('.')).filter(|word| {
        let document = word.split('-').next().unwrap_or("");
        word.contains('-') && (document == "LX" || (document.len() == 4 && document.parse::<u16>().is_ok()))
    })
}

/// The tests that name each rule, from the comments at the start of their bodies.
fn named_by() -> BTreeMap<String, BTreeSet<String>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/protocol");
    let mut named: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("the tests' folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            continue;
        }
        let source = std::fs::read_to_string(&path).expect("a test's source");
        let file = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let mut lines = source.lines().map(str::trim);
        while lines.any(|line| line == "#[test]") {
            let function = lines.next().expect("a function behind its attribute");
            let Some(name) = function.strip_prefix("fn ").and_then(|rest| rest.split('(').next()) else {
                continue;
            };
            let comments = lines.by_ref().map_while(|line| line.strip_prefix("// "));
            for number in comments.flat_map(numbers) {
                named.entry(number.to_owned()).or_default().insert(format!("{file}::{name}"));
            }
        }
    }
    named
}

#[test]
fn every_rule_of_this_crate_is_named_by_a_test() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rules.txt");
    let list = std::fs::read_to_string(path).expect("the list of rules");
    let mut kept_by: BTreeMap<&str, &str> = BTreeMap::new();
    for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (rule, keeper) = line.split_once(' ').expect("a rule and who keeps it");
        assert!(kept_by.insert(rule, keeper.trim()).is_none(), "{rule} is listed twice");
    }

    let named = named_by();
    for (rule, keeper) in &kept_by {
        let tests = named.get(*rule).into_iter().flatten().cloned().collect::<Vec<_>>();
        println!("{rule:<16}{keeper:<8}{}", tests.join(" "));
    }
    let missing: Vec<_> =
        kept_by.iter().filter(|(rule, keeper)| **keeper == "proto" && !named.contains_key(**rule)).collect();
    assert!(missing.is_empty(), "rules without a test: {missing:?}");
    let unknown: Vec<_> = named.iter().filter(|(rule, _)| !kept_by.contains_key(rule.as_str())).collect();
    assert!(unknown.is_empty(), "tests name rules that are not in the list: {unknown:?}");
}
