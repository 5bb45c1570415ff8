//! Which rule is kept by which test: `cargo test -p stag-proto rules -- --nocapture` prints the table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The rule numbers in a line of comment.
fn numbers(comment: &str) -> impl Iterator<Item = &str> {
    comment.split([' ', ',', ';', ':', '(', ')']).map(|word| word.trim_end_matches('.')).filter(|word| {
        let document = word.split('-').next().unwrap_or("");
        let is_named = ["LX", "V2", "XC", "RTR", "RR"].contains(&document);
        word.contains('-') && (is_named || (document.len() == 4 && document.parse::<u16>().is_ok()))
    })
}

/// The tests in a folder that name each rule, from the comments at the start of their bodies.
fn named_by(folder: &str) -> BTreeMap<String, BTreeSet<String>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut named: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("the tests' folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "rs") {
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

    let owners = [("proto", "tests/protocol"), ("wire", "../wire/tests"), ("dump", "../dump/tests")];
    let named = owners.map(|(owner, folder)| (owner, named_by(folder)));
    for (rule, keeper) in &kept_by {
        let tests =
            named.iter().flat_map(|(_, named)| named.get(*rule)).flatten().cloned().collect::<Vec<_>>();
        println!("{rule:<16}{keeper:<8}{}", tests.join(" "));
    }
    let is_missing = |(rule, keeper): &(&&str, &&str)| {
        named.iter().any(|(owner, named)| owner == *keeper && !named.contains_key(**rule))
    };
    let missing: Vec<_> = kept_by.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "rules without a test: {missing:?}");
    let known = |rule: &str| kept_by.contains_key(rule);
    let unknown: Vec<_> =
        named.iter().flat_map(|(_, named)| named).filter(|(rule, _)| !known(rule)).collect();
    assert!(unknown.is_empty(), "tests name rules that are not in the list: {unknown:?}");
    // A rule that is kept without a test here has its reason in `kept_by`.
    let silent: Vec<_> = kept_by
        .iter()
        .filter(|(_, keeper)| !owners.iter().any(|(owner, _)| owner == *keeper) && !keeper.contains(": "))
        .collect();
    assert!(silent.is_empty(), "rules without a test or a reason: {silent:?}");
}

/// The rules that a document numbers, from the first column of its tables.
fn numbered_in(document: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../spec").join(document);
    let text = std::fs::read_to_string(path).expect("a document");
    let cells = text.lines().filter_map(|line| line.strip_prefix("| ")?.split([' ', '|']).next());
    let is_rule = |cell: &&str| numbers(cell).next() == Some(*cell);
    cells.filter(is_rule).map(str::to_owned).collect()
}

#[test]
fn every_rule_of_the_later_documents_is_listed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rules.txt");
    let list = std::fs::read_to_string(path).expect("the list of rules");
    let listed: BTreeSet<&str> = list.lines().filter_map(|line| line.split(' ').next()).collect();
    let documents = ["bidirectional-8167.md", "reliable-reply.md", "rpcrdma-v2-base.md", "rtrext.md"];
    for document in documents {
        let rules = numbered_in(document);
        assert!(rules.len() > 20, "{document}: {rules:?}");
        let missing: Vec<_> = rules.iter().filter(|rule| !listed.contains(rule.as_str())).collect();
        assert!(missing.is_empty(), "{document} has rules that are not in the list: {missing:?}");
    }
}
