//! Conditions that spoil the figures, each reported once: both ends would say the same of their memory.

use stag_bench::Figures;

/// The notes of both ends. Those that want pages of one size are one, with the sum.
pub(super) fn merged(notes: &[String]) -> Vec<String> {
    let mut merged: Vec<String> = Vec::new();
    for note in notes {
        if merged.contains(note) {
            continue;
        }
        let same = merged.iter_mut().find_map(|other| Some((wanted(other, note)?, other)));
        match same {
            Some((sum, other)) => *other = sum,
            None => merged.push(note.clone()),
        }
    }
    merged
}

/// `2 MiB pages: 14 wanted, ...` of two such notes, if they are about the same.
fn wanted(first: &str, second: &str) -> Option<String> {
    let count = |note: &str| -> Option<(String, u64, String)> {
        let (size, rest) = note.split_once(": ")?;
        let (count, rest) = rest.split_once(" wanted, ")?;
        Some((size.to_owned(), count.parse().ok()?, rest.to_owned()))
    };
    let ((size, one, rest), (other_size, other, _)) = (count(first)?, count(second)?);
    (size == other_size).then(|| {
        let sum = one + other;
        let rest = rest.replace(&format!("--count {one} "), &format!("--count {sum} "));
        format!("{size}: {sum} wanted, {rest}")
    })
}

/// The note for a server that grants fewer credits than Calls were planned outstanding.
pub(super) fn of_depth(figures: &Figures) -> Option<String> {
    let (depth, credits) = (figures.scenario.depth, figures.credits_granted);
    (credits > 0 && depth > credits as usize).then(|| {
        format!(
            "depth {depth}: the server lets {credits} Calls of a connection be under way (--credits), and the figures are \
             those of depth {credits}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_both_ends_want_are_added_up() {
        let note = |count: u32| {
            format!(
                "2 MiB pages: {count} wanted, 0 free; `stag hugepages setup --size 2m --count {count} --apply` reserves them"
            )
        };
        let transparent = "transparent 2 MiB pages: off for shared memory".to_owned();
        let notes = [note(9), transparent.clone(), note(5), transparent.clone()];
        assert_eq!(merged(&notes), [note(14), transparent.clone()]);
        assert_eq!(merged(&[note(9), "1 GiB pages: 1 wanted, 0 free".to_owned()]).len(), 2);
    }
}
