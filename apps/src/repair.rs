//! Commands that repair a problem, printed so that this user can run them as they are.

use std::borrow::Cow;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// A repair, written for a user with sudo, as this one has to type it.
pub fn typed(repair: &str) -> Cow<'_, str> {
    // Whose this process is: root may have no sudo.
    let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    typed_by(is_root, repair)
}

fn typed_by(is_root: bool, repair: &str) -> Cow<'_, str> {
    match is_root {
        true => repair.replace("sudo ", "").into(),
        // sudo has a PATH of its own, in which a `stag` that was just built is not.
        false if repair.contains("sudo stag ") => {
            repair.replace("sudo stag ", "sudo $(command -v stag) ").into()
        }
        false => repair.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_needs_no_sudo_and_sudo_needs_a_path() {
        let repair = "sudo modprobe siw && sudo stag hugepages setup";
        assert_eq!(typed_by(true, repair), "modprobe siw && stag hugepages setup");
        assert_eq!(typed_by(false, repair), "sudo modprobe siw && sudo $(command -v stag) hugepages setup");
    }
}
