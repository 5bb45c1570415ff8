//! Imports between the files of a crate point one way: files that import each other in a circle are named in `ci/circles.txt`, each
//! circle with its reason.
//!
//! Imports are read as text, and what a module hands on (`pub use`) is followed to the file that defines it. Test code and `mod`
//! declarations do not count.

mod graph;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{env, fs};

use graph::{Crate, circles};

/// The folder that the workspace is in.
fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("engine/testing is two folders down")
        .to_owned()
}

/// Folders of all crates, by their names from the top level.
fn crates() -> BTreeSet<String> {
    let top = workspace();
    let mut found = BTreeSet::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        if top.join(&folder).join("src").is_dir() && top.join(&folder).join("Cargo.toml").is_file() {
            found.insert(folder.clone());
        }
        for entry in fs::read_dir(top.join(&folder)).expect("a folder of the workspace").flatten() {
            let name = entry.file_name().into_string().expect("names are UTF-8");
            let is_own =
                !name.starts_with('.') && !["src", "tests", "target", "docs"].contains(&name.as_str());
            if is_own && entry.path().is_dir() && folder.split('/').count() < 3 {
                folders.push(Path::new(&folder).join(name).to_str().expect("names are UTF-8").to_owned());
            }
        }
    }
    found
}

/// The circles that are named: the crate, and its files in the order of their names.
fn named() -> BTreeSet<(String, Vec<String>)> {
    let list = fs::read_to_string(workspace().join("ci/circles.txt")).expect("ci/circles.txt");
    let mut found = BTreeSet::new();
    for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (place, reason) = line.split_once(" because ").unwrap_or((line, ""));
        assert!(!reason.is_empty(), "ci/circles.txt: give a reason, behind \"because\": {line}");
        let (name, files) = place.split_once(": ").expect("ci/circles.txt: CRATE: FILE... because REASON");
        found.insert((name.to_owned(), files.split(' ').map(str::to_owned).collect()));
    }
    found
}

#[test]
fn files_import_each_other_in_a_circle_only_where_it_is_named() {
    let named = named();
    let (mut found, mut offences) = (BTreeSet::new(), Vec::new());
    for name in crates() {
        let read = Crate::read(&workspace().join(&name).join("src"));
        let arrows = read.arrows();
        for circle in circles(&arrows) {
            let key = (name.clone(), circle.clone());
            if !named.contains(&key) {
                offences.push(format!(
                    "{name}: {} import each other:{}",
                    circle.join(" "),
                    told(&circle, &arrows)
                ));
            }
            found.insert(key);
        }
    }
    for (name, circle) in named.difference(&found) {
        offences.push(format!(
            "{name}: {} is no circle any more: take it out of ci/circles.txt",
            circle.join(" ")
        ));
    }
    assert!(
        offences.is_empty(),
        "move what two files share to a third, or name the circle in ci/circles.txt:\n{}",
        offences.join("\n")
    );
}

/// The arrows of a circle, and the names on each.
fn told(circle: &[String], arrows: &BTreeMap<String, BTreeMap<String, BTreeSet<String>>>) -> String {
    let mut text = String::new();
    for from in circle {
        for (to, names) in arrows.get(from).into_iter().flatten().filter(|(to, _)| circle.contains(to)) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            text += &format!("\n    {from} -> {to}: {}", names.join(", "));
        }
    }
    text
}
