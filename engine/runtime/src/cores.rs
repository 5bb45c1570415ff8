//! Cores by number, and sets of them in the kernel's notation (`0-3,8`).

use std::fmt;
use std::str::FromStr;

/// Core ids are below this number: what the kernel's ordinary affinity mask holds.
pub const CORES_MAX: usize = 1024;

const WORD_BITS: usize = u64::BITS as usize;

/// A logical CPU, by the kernel's number for it (`processor` in `/proc/cpuinfo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoreId(pub usize);

impl fmt::Display for CoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "core {}", self.0)
    }
}

/// A set of cores with ids below [`CORES_MAX`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CoreSet {
    words: [u64; CORES_MAX / WORD_BITS],
}

/// Why a list of cores was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "list of cores {list:?}: {part:?} is not a number below {CORES_MAX} or a range of them; write for example 0-3,8"
)]
pub struct CoreSetError {
    /// What was given.
    pub list: String,
    /// The part that is wrong.
    pub part: String,
}

impl CoreSet {
    /// The set of none.
    pub const EMPTY: CoreSet = CoreSet { words: [0; CORES_MAX / WORD_BITS] };

    /// Adds a core. `false`: its id is [`CORES_MAX`] or more, and it was not added.
    pub fn insert(&mut self, core: CoreId) -> bool {
        let fits = core.0 < CORES_MAX;
        if fits {
            self.words[core.0 / WORD_BITS] |= 1 << (core.0 % WORD_BITS);
        }
        fits
    }

    /// Takes a core out.
    pub fn remove(&mut self, core: CoreId) {
        if core.0 < CORES_MAX {
            self.words[core.0 / WORD_BITS] &= !(1 << (core.0 % WORD_BITS));
        }
    }

    /// Whether the core is in the set.
    #[must_use]
    pub fn contains(&self, core: CoreId) -> bool {
        core.0 < CORES_MAX && self.words[core.0 / WORD_BITS] & (1 << (core.0 % WORD_BITS)) != 0
    }

    /// The number of cores.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// The cores that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &CoreSet) -> CoreSet {
        let mut both = *self;
        both.words.iter_mut().zip(other.words).for_each(|(word, other)| *word &= other);
        both
    }

    /// The cores that are in one of the sets.
    #[must_use]
    pub fn union(&self, other: &CoreSet) -> CoreSet {
        let mut either = *self;
        either.words.iter_mut().zip(other.words).for_each(|(word, other)| *word |= other);
        either
    }

    /// The cores, lowest id first.
    pub fn iter(&self) -> impl Iterator<Item = CoreId> + '_ {
        (0..CORES_MAX).map(CoreId).filter(|core| self.contains(*core))
    }
}

impl Default for CoreSet {
    fn default() -> CoreSet {
        CoreSet::EMPTY
    }
}

/// Ids of [`CORES_MAX`] or more are left out.
impl FromIterator<CoreId> for CoreSet {
    fn from_iter<I: IntoIterator<Item = CoreId>>(cores: I) -> CoreSet {
        let mut set = CoreSet::EMPTY;
        for core in cores {
            set.insert(core);
        }
        set
    }
}

impl FromStr for CoreSet {
    type Err = CoreSetError;

    /// Reads `0-3,8`. The empty list is the empty set, as in `/sys`.
    fn from_str(list: &str) -> Result<CoreSet, CoreSetError> {
        let mut set = CoreSet::EMPTY;
        for part in list.trim().split(',').filter(|_| !list.trim().is_empty()) {
            let (first, last) = range(part)
                .ok_or_else(|| CoreSetError { list: list.trim().to_owned(), part: part.to_owned() })?;
            for id in first..=last {
                set.insert(CoreId(id));
            }
        }
        Ok(set)
    }
}

fn range(part: &str) -> Option<(usize, usize)> {
    let part = part.trim();
    let (first, last) = part.split_once('-').unwrap_or((part, part));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < CORES_MAX).then_some((first, last))
}

impl fmt::Display for CoreSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        let mut separator = "";
        let mut first = 0;
        while first < CORES_MAX {
            if !self.contains(CoreId(first)) {
                first += 1;
                continue;
            }
            let mut last = first;
            while self.contains(CoreId(last + 1)) {
                last += 1;
            }
            match last - first {
                0 => write!(f, "{separator}{first}")?,
                _ => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
            first = last + 1;
        }
        Ok(())
    }
}

impl fmt::Debug for CoreSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CoreSet({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_notation_is_read_and_written() {
        for (list, written) in [
            ("", "none"),
            ("\n", "none"),
            ("0\n", "0"),
            ("0-1", "0-1"),
            ("3,1,2,0", "0-3"),
            ("0-3,8,10-11", "0-3,8,10-11"),
            ("1023", "1023"),
            ("0-1023", "0-1023"),
        ] {
            assert_eq!(list.parse::<CoreSet>().unwrap().to_string(), written, "{list:?}");
        }
    }

    #[test]
    fn what_is_no_list_of_cores_is_named() {
        for (list, part) in [
            ("1024", "1024"),
            ("0,3-1", "3-1"),
            ("0-", "0-"),
            ("-1", "-1"),
            ("a", "a"),
            ("0,,1", ""),
            ("0-99999999999999999999", "0-99999999999999999999"),
        ] {
            let error = list.parse::<CoreSet>().unwrap_err();
            assert_eq!((error.list.as_str(), error.part.as_str()), (list, part));
            assert!(error.to_string().contains("0-3,8"), "{error}");
        }
    }

    #[test]
    fn a_set_holds_ids_below_1024() {
        let mut set = CoreSet::EMPTY;
        assert!(set.insert(CoreId(1023)));
        assert!(!set.insert(CoreId(1024)));
        assert!(!set.contains(CoreId(1024)));
        assert_eq!(set.len(), 1);
        set.remove(CoreId(1024));
        set.remove(CoreId(1023));
        assert!(set.is_empty());
        let (one, other): (CoreSet, CoreSet) = ("0-3".parse().unwrap(), "2-5,1023".parse().unwrap());
        assert_eq!(one.union(&other).to_string(), "0-5,1023");
        assert_eq!(one.intersection(&other).to_string(), "2-3");
        assert_eq!([CoreId(5), CoreId(2), CoreId(2000)].into_iter().collect::<CoreSet>().to_string(), "2,5");
    }
}
