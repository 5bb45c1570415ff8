//! Names that were probably meant.

/// Changes of one character, or exchanges of two neighbours, that make `found` of `meant`.
#[must_use]
pub fn changes(found: &str, meant: &str) -> usize {
    strsim::damerau_levenshtein(found, meant)
}

/// Whether a name is likely to be what was meant: otherwise it is another word.
#[must_use]
pub fn is_likely(found: &str, meant: &str) -> bool {
    let (found, meant) = (found.trim_start_matches('-'), meant.trim_start_matches('-'));
    changes(found, meant) <= (found.len() / 3).max(1)
}

/// The name that is most likely to be what was meant, if one is.
pub fn nearest<'n>(found: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let likely = names.into_iter().filter(|name| is_likely(found, name));
    likely.min_by_key(|name| changes(found, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_looks_like_it_is_proposed() {
        for (found, suggested, is_near) in [
            ("--rate", "--duration", false),
            ("--dept", "--depth", true),
            ("--listne", "--listen", true),
            ("--cuont", "--count", true),
            ("completions", "cp", false),
            ("sl", "ls", true),
            ("--x", "--crc", false),
            ("--memroy", "--memory", true),
        ] {
            assert_eq!(is_likely(found, suggested), is_near, "{found} {suggested}");
        }
        assert_eq!(nearest("memroy", ["listen", "memory", "mem"]), Some("memory"));
    }
}
