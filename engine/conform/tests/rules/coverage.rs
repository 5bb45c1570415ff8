//! The rules that are checked, and those that cannot be, are complete against the numbers of `engine/spec`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use stag_conform::rules::{RuleCoverage, checks, coverage, unobserved};

/// The documents whose rules a peer has to keep.
const DOCUMENTS: [&str; 7] = [
    "rpcrdma-v1.md",
    "cm-private-data-8797.md",
    "nfs-ulb-8267.md",
    "bidirectional-8167.md",
    "reliable-reply.md",
    "rpcrdma-v2-base.md",
    "rtrext.md",
];

/// The rules that a document numbers, from the first column of its tables.
fn numbered_in(document: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../spec").join(document);
    let text = fs::read_to_string(path).unwrap();
    let cells = text.lines().filter_map(|line| line.strip_prefix("| ")?.split([' ', '|']).next());
    let is_rule = |cell: &&str| {
        let document = cell.split('-').next().unwrap_or_default();
        let is_rfc = document.len() == 4 && document.bytes().all(|octet| octet.is_ascii_digit());
        cell.contains('-') && (is_rfc || ["LX", "ULB2", "RR", "V2", "XC", "RTR"].contains(&document))
    };
    cells.filter(is_rule).map(str::to_owned).collect()
}

#[test]
fn every_rule_is_checked_or_it_is_said_why_not() {
    let mut rules = BTreeSet::new();
    for document in DOCUMENTS {
        let found = numbered_in(document);
        assert!(found.len() > 20, "{document}: {found:?}");
        rules.extend(found);
    }
    let coverage = coverage();
    let missing: Vec<_> = rules.iter().filter(|rule| !coverage.contains_key(rule.as_str())).collect();
    assert!(missing.is_empty(), "neither a check nor a reason in unobserved.txt: {missing:#?}");
    let unknown: Vec<_> = coverage.keys().filter(|rule| !rules.contains(**rule)).collect();
    assert!(unknown.is_empty(), "no document has these rules: {unknown:?}");
}

#[test]
fn what_is_checked_is_not_excused() {
    for (rule, why) in unobserved() {
        assert!(why.len() > 10, "{rule}: {why:?} is no reason");
        assert_eq!(
            coverage()[rule],
            RuleCoverage::Unobserved(why),
            "{rule} is checked: take it off unobserved.txt"
        );
    }
    let listed: Vec<&str> = unobserved().map(|(rule, _)| rule).collect();
    let once: BTreeSet<&str> = listed.iter().copied().collect();
    assert_eq!(once.len(), listed.len(), "a rule stands twice in unobserved.txt");
}

#[test]
fn names_of_checks_are_unique() {
    let names: Vec<&str> = checks().map(|check| check.name).collect();
    let once: BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(once.len(), names.len(), "{names:?}");
    assert!(names.len() > 240, "{}", names.len());
}
