//! The configurations in `apps/package`: `stagd` takes them as they are.

use std::fs;
use std::process::Command;

use crate::common::{Folder, STAGD};

/// A file of `apps/package`.
fn packaged(name: &str) -> String {
    fs::read_to_string(format!("{}/package/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Has `stagd` check a configuration whose directory is replaced by one of this machine.
fn check(configuration: &str) {
    assert!(configuration.contains("dir:/srv/stag,"), "{configuration}");
    let folder = Folder::new("package");
    fs::create_dir(folder.join("files")).unwrap();
    let served = configuration.replace("/srv/stag", folder.join("files").to_str().unwrap());
    let path = folder.join("stagd.toml");
    fs::write(&path, served).unwrap();
    let output = Command::new(STAGD)
        .args(["--check", "--memory", "64M", "--config", path.to_str().unwrap(), "--state-dir"])
        .arg(folder.join("state"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_configuration_of_the_package_is_valid() {
    check(&packaged("stagd.toml"));
}

#[test]
fn the_configuration_for_kubernetes_is_valid() {
    let manifest = packaged("kubernetes.yaml");
    // A literal block of YAML: the lines that are indented deeper than its key.
    let block = manifest.split_once("  stagd.toml: |\n").unwrap().1;
    let lines = block.lines().map_while(|line| line.strip_prefix("    "));
    check(&lines.map(|line| format!("{line}\n")).collect::<String>());
}
