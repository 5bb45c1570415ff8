//! Which test, and which check of `stag conform`, keeps which rule, on which fabric: `engine/spec/table.txt`, generated.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use stag_conform::rules::{checks, unobserved};

/// The documents whose rules are in the table, in its order.
const DOCUMENTS: [&str; 9] = [
    "rpcrdma-v1.md",
    "cm-private-data-8797.md",
    "nfs-ulb-8267.md",
    "nfsv4.md",
    "bidirectional-8167.md",
    "reliable-reply.md",
    "rpcrdma-v2-base.md",
    "rtrext.md",
    "iwarp.md",
];

/// Folders with tests that name rules, and the fabrics that these run on.
const FOLDERS: [(&str, &str); 15] = [
    ("engine/wire/tests", "no fabric"),
    ("engine/proto/tests", "no fabric"),
    ("engine/dump/tests", "captures"),
    ("engine/fabric/tests/conformance", "sim, shm, iwarp, verbs"),
    ("engine/fabric/tests/verbs", "verbs on libraries of nothing"),
    ("engine/fabric/tests/iwarp", "iwarp"),
    ("engine/fabric/src/iwarp", "iwarp"),
    ("engine/rpc/tests", "sim"),
    ("engine/rpc/src", "sim"),
    ("engine/nfs/tests", "sim"),
    ("engine/nfs/src", "no fabric"),
    ("engine/stag/tests", "shm, iwarp, verbs"),
    ("engine/state/tests", "no fabric"),
    ("engine/state/src", "no fabric"),
    ("apps/tests", "shm, iwarp"),
];

/// Lists of rules with the keeper of each, or the reason why it has none.
const LISTS: [&str; 2] = ["engine/proto/tests/rules.txt", "engine/fabric/tests/iwarp/rules.txt"];

/// The results of `stag conform` against our own programs.
const RESULTS: &str = "apps/tests/programs/conform/table.txt";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rules that a document numbers, in its order, from the first column of its tables.
fn rules_of(document: &str) -> Vec<String> {
    let text = read(&root().join("engine/spec").join(document));
    let cells = text.lines().filter_map(|line| line.strip_prefix("| ")?.split([' ', '|']).next());
    let is_rule = |cell: &&str| {
        let Some((document, rest)) = cell.split_once('-') else { return false };
        let is_rfc = document.len() == 4 && document.bytes().all(|octet| octet.is_ascii_digit());
        let is_ours = ["LX", "ULB2", "RR", "V2", "XC", "RTR", "siw"].contains(&document);
        !rest.is_empty() && (is_rfc || is_ours)
    };
    let mut found = Vec::new();
    for cell in cells.filter(is_rule) {
        if !found.contains(&cell.to_owned()) {
            found.push(cell.to_owned());
        }
    }
    found
}

fn sources(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            out.push(path);
        }
    }
}

/// Words of a line that may be numbers of rules.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    line.split(move |c| !is_part(c)).map(|word| word.trim_end_matches('.')).filter(|word| word.contains('-'))
}

/// The tests of a source, each with all that is written of it: the comment above, and its body. What stands elsewhere, as in functions
/// that tests share, comes under no name.
fn tests_of(source: &str) -> Vec<(String, Vec<&str>)> {
    let mut tests: Vec<(String, Vec<&str>)> = vec![(String::new(), Vec::new())];
    let (mut above, mut is_test): (Vec<&str>, bool) = (Vec::new(), false);
    let mut shared = Vec::new();
    let mut is_shared = true;
    for line in source.lines() {
        let text = line.trim();
        if text.starts_with("#[") {
            is_test |= text == "#[test]";
        } else if text.starts_with("///") {
            above.push(text);
        } else if let Some(rest) = text.strip_prefix("fn ") {
            let above = std::mem::take(&mut above);
            is_shared = !is_test;
            match rest.split('(').next() {
                Some(name) if is_test => tests.push((name.to_owned(), above)),
                _ => shared.extend(above),
            }
            is_test = false;
        } else {
            shared.append(&mut above);
            match tests.last_mut() {
                Some((_, lines)) if !is_shared => lines.push(text),
                _ => shared.push(text),
            }
        }
    }
    tests[0].1 = shared;
    tests
}

/// The tests that name each rule.
fn named(rules: &BTreeSet<String>) -> BTreeMap<String, BTreeSet<String>> {
    let mut named: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (folder, fabrics) in FOLDERS {
        let mut files = Vec::new();
        sources(&root().join(folder), &mut files);
        for file in files {
            let source = read(&file);
            let place = file.strip_prefix(root()).unwrap().with_extension("");
            let place = place.display().to_string();
            let source = match folder.ends_with("tests") || folder.contains("/tests/") {
                true => &source[..],
                false => source.split_once("#[cfg(test)]").map_or("", |(_, tests)| tests),
            };
            for (name, lines) in tests_of(source) {
                let name = if name.is_empty() { "(shared by its tests)".to_owned() } else { name };
                for rule in lines.iter().flat_map(|line| words(line)).filter(|word| rules.contains(*word)) {
                    named.entry(rule.to_owned()).or_default().insert(format!("{place}::{name}  [{fabrics}]"));
                }
            }
        }
    }
    named
}

/// Reasons why nothing tests a rule, from the lists.
fn reasons() -> BTreeMap<String, String> {
    let mut reasons: BTreeMap<String, String> =
        unobserved().map(|(rule, why)| (rule.to_owned(), why.to_owned())).collect();
    for list in LISTS {
        for line in read(&root().join(list)).lines().filter(|line| !line.starts_with('#')) {
            if let Some((rule, keeper)) = line.split_once(' ').filter(|(_, keeper)| keeper.contains(": ")) {
                reasons.insert(rule.to_owned(), keeper.trim().to_owned());
            }
        }
    }
    reasons
}

#[test]
fn the_table_of_rules_is_complete_and_fresh() {
    let all: Vec<(&str, Vec<String>)> =
        DOCUMENTS.iter().map(|document| (*document, rules_of(document))).collect();
    let rules: BTreeSet<String> = all.iter().flat_map(|(_, rules)| rules).cloned().collect();
    let (named, reasons) = (named(&rules), reasons());
    let known: BTreeSet<&str> = checks().map(|check| check.name).collect();
    let mut checks: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let results = read(&root().join(RESULTS));
    for line in results.lines().filter(|line| !line.starts_with('#')) {
        let mut columns = line.split_whitespace();
        let (Some(rule), Some(check)) = (columns.next(), columns.next()) else { continue };
        assert!(known.contains(check), "{RESULTS} has {check}, which no check is called");
        let results: Vec<&str> = columns.collect();
        assert!(
            results.len() == 2,
            "{RESULTS} has {results:?} for {check} and {rule}, not one result for each fabric"
        );
        let results = ["shm", "iwarp"].into_iter().zip(results);
        let results: Vec<String> = results.map(|(fabric, result)| format!("{fabric} {result}")).collect();
        checks.entry(rule).or_default().push(format!("stag conform: {check}  [{}]", results.join(", ")));
    }
    let mut table = String::from(
        "# Each rule of engine/spec: the tests that name it, with the fabrics that they run on; the checks of `stag conform`, with\n\
         # their results against our own programs; or why there is neither. A test that fails fails the build, so it has no result here.\n\
         # Generated by engine/conform/tests/rules/rules_table.rs, which says when it is stale and where the new one is.\n",
    );
    let mut untested = Vec::new();
    for (document, rules) in &all {
        assert!(rules.len() > 10, "{document}: {rules:?}");
        writeln!(table, "\n## {document}").unwrap();
        for rule in rules {
            writeln!(table, "\n{rule}").unwrap();
            let tests = named.get(rule).into_iter().flatten();
            let mut is_tested = false;
            for line in tests.chain(checks.get(rule.as_str()).into_iter().flatten()) {
                is_tested = true;
                writeln!(table, "    {line}").unwrap();
            }
            match reasons.get(rule) {
                _ if is_tested => {}
                Some(reason) => writeln!(table, "    no test: {reason}").unwrap(),
                None => untested.push(rule),
            }
        }
    }
    assert!(untested.is_empty(), "rules without a test and without a reason: {untested:?}");
    let fresh = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rules-table.txt");
    fs::write(&fresh, &table).unwrap();
    let kept = read(&root().join("engine/spec/table.txt"));
    assert!(table == kept, "engine/spec/table.txt is stale: cp {} engine/spec/table.txt", fresh.display());
}
