//! Tables of a Call's permitted changes of stage: one for the client, one for the server.

/// From one stage to another, and why.
pub(crate) type Change<K> = (K, K, &'static str);

/// Whether a table has this change.
pub(crate) fn may_change<K: Copy + PartialEq>(changes: &[Change<K>], from: K, to: K) -> bool {
    changes.iter().any(|change| (change.0, change.1) == (from, to))
}

/// What a reader sees of a table: a line for each change. Panics if that is not `drawn`, a file beside the table, or a change is
/// in it twice.
#[cfg(test)]
pub(crate) fn check_drawn<K: Copy + PartialEq + std::fmt::Debug>(changes: &[Change<K>], drawn: &str) {
    let mut found = String::new();
    for (at, (from, to, why)) in changes.iter().enumerate() {
        assert!(!may_change(&changes[..at], *from, *to), "{from:?} to {to:?} is there twice");
        let [from, to] = [from, to].map(|kind| format!("{kind:?}"));
        found += &format!("{from:<16} -> {to:<16} {why}\n");
    }
    assert!(found == drawn, "stages.txt should be:\n{found}");
}
