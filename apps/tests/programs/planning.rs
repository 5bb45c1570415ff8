//! Flags and configurations that the programs write: for a load, and from a file of knfsd.

use std::process::Command;

use crate::common::{Folder, STAGD, stag_fails, stag_json, stag_ok};
use serde_json::Value;

fn text(octets: &[u8]) -> &str {
    std::str::from_utf8(octets).unwrap()
}

/// The flags that are printed are taken, and have the room.
#[test]
fn a_planned_server_has_the_room() {
    let planned = Command::new(STAGD).args(["--plan", "clients=100", "files=64M"]).output().unwrap();
    assert!(planned.status.success(), "{}", text(&planned.stderr));
    let flags: Vec<&str> = text(&planned.stdout).split_whitespace().collect();
    for part in ["--memory", "--connections-max", "100", "--export", "mem:/data", "--listen"] {
        assert!(flags.contains(&part), "{part}: {flags:?}");
    }
    let checked = Command::new(STAGD).args(["--json", "--check"]).args(&flags).output().unwrap();
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    let checked: Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert!(checked["cores"][0]["files"].as_u64() >= Some(64 << 20), "{checked}");
    assert_eq!(checked["connections_max"], 100);
    let refused = Command::new(STAGD).args(["--plan", "users=7"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("clients=200 or files=500G"), "{}", text(&refused.stderr));
}

/// What is printed of an exports file of knfsd is a configuration of `stagd`.
#[test]
fn a_translated_exports_file_is_taken() {
    let folder = Folder::new("translate");
    let (data, more) = (folder.join("data"), folder.join("my more"));
    for path in [&data, &more] {
        std::fs::create_dir(path).unwrap();
    }
    let (file, configuration) = (folder.join("exports"), folder.join("stagd.toml"));
    let lines = format!(
        "{} 10.0.0.0/8(rw,sync,no_subtree_check,no_root_squash) *(ro,fsid=0,no_root_squash)\n\
         \"{}\" -rw,async host.example.com fd00::/8\n",
        data.display(),
        more.display()
    );
    std::fs::write(&file, lines).unwrap();
    let translated = stag_ok(&["translate", file.to_str().unwrap()]);
    for part in
        ["client=10.0.0.0/8:rw,client=*:ro", "root_squash=no", "fsid=0: ", "host.example.com is left out"]
    {
        assert!(translated.contains(part), "{part}: {translated}");
    }
    std::fs::write(&configuration, &translated).unwrap();
    let checked = Command::new(STAGD)
        .args(["--json", "--check", "--config", configuration.to_str().unwrap(), "--memory", "64M"])
        .args(["--state-dir", folder.join("state").to_str().unwrap()])
        .output()
        .unwrap();
    assert!(checked.status.success(), "{}\n{translated}", text(&checked.stderr));
    let checked: Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!(checked["exports"].as_array().unwrap().len(), 2);
    let objects = stag_json(&["translate", file.to_str().unwrap()]);
    assert_eq!(objects[0]["losses"][0]["line"], 1);
    let none = stag_fails(&["translate", "/dev/null"]);
    assert!(none.contains("no export"), "{none}");
}
