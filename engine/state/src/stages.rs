//! What tells which stages follow which: a table beside each machine, drawn in `stages.txt` and checked at each change.

/// A change: from, to, and why.
pub(crate) type Change<K> = (K, K, &'static str);

/// Tells whether a machine may go from one stage to another.
pub(crate) fn may_change<K: PartialEq>(changes: &[Change<K>], from: K, to: K) -> bool {
    changes.iter().any(|change| change.0 == from && change.1 == to)
}

/// Draws a table of changes as `stages.txt` has it.
#[cfg(test)]
pub(crate) fn drawn<K: Copy + PartialEq + std::fmt::Debug>(title: &str, changes: &[Change<K>]) -> String {
    let mut found = format!("{title}\n");
    for (at, (from, to, why)) in changes.iter().enumerate() {
        assert!(!may_change(&changes[..at], *from, *to), "{from:?} to {to:?} is there twice");
        let [from, to] = [from, to].map(|kind| format!("{kind:?}"));
        found += &format!("    {from:<12} -> {to:<12} {why}\n");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `stages.txt` is what a reader sees of all tables.
    #[test]
    fn the_stages_are_as_drawn() {
        let found = [
            drawn("slot", &crate::slot::CHANGES),
            drawn("back channel", &crate::back::CHANGES),
            drawn("lease", &crate::lease::CHANGES),
            drawn("client", &crate::client::CHANGES),
            drawn("grace", &crate::grace::CHANGES),
            drawn("state id", &crate::stateid::CHANGES),
        ]
        .join("\n");
        assert!(found == include_str!("stages.txt"), "stages.txt should be:\n{found}");
    }
}
