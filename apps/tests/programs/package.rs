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

/// Both say the same of a container.
#[test]
fn compose_gives_the_capabilities_that_kubernetes_gives() {
    let given = |file: &str, key: &str| {
        let file = packaged(file);
        let line = file.lines().find_map(|line| line.trim().strip_prefix(key).map(str::to_owned));
        line.unwrap_or_else(|| panic!("no {key} in {file}"))
    };
    assert_eq!(given("compose.yaml", "cap_add: "), given("kubernetes.yaml", "add: "));
    // From the folder of the file.
    let [context, image] = ["context: ", "dockerfile: "].map(|key| given("compose.yaml", key));
    let path = format!("{}/package/{context}/{image}", env!("CARGO_MANIFEST_DIR"));
    assert!(fs::metadata(&path).is_ok(), "{path}");
    let containerfile = packaged("Containerfile");
    for volume in ["/var/lib/stag", "/srv/stag"] {
        assert!(packaged("compose.yaml").contains(&format!(":{volume}\n")), "{volume}");
        assert!(containerfile.contains(volume), "{volume}");
    }
}
