//! Our user and groups, as AUTH_SYS carries them.

use std::fs;

use stag_wire::rpc::{AuthSys, Gids};
use stag_wire::xdr::Writer;

use crate::seed::random_seed;

/// The body of an AUTH_SYS credential of this process.
#[must_use]
pub fn encode() -> Vec<u8> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let machine = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let numbers = |name: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().filter_map(|number| number.parse().ok()).collect()
    };
    // Real, effective, saved, file system: files are made as the effective one.
    let effective = |name: &str| numbers(name).get(1).copied().unwrap_or(UNKNOWN_USER);
    let mut groups = numbers("Groups:");
    groups.truncate(AuthSys::GIDS_MAX as usize);
    let machine = machine.trim().as_bytes();
    let body = AuthSys {
        stamp: random_seed(),
        machine_name: &machine[..machine.len().min(AuthSys::MACHINE_NAME_LEN_MAX as usize)],
        uid: effective("Uid:"),
        gid: effective("Gid:"),
        gids: Gids::new(&groups).unwrap_or(Gids::NONE),
    };
    let mut bytes = vec![0; AuthSys::BODY_LEN_MAX];
    let mut writer = Writer::new(&mut bytes);
    let written = writer.value(&body);
    assert!(written.is_ok(), "every part is cut to its limit");
    let len = writer.position();
    bytes.truncate(len);
    bytes
}

/// A process whose user is unknown.
const UNKNOWN_USER: u32 = 65534;
