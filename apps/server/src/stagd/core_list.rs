//! A list of cores, as flags and configuration files have it.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error as _};
use stag_runtime::{CoreId, CoreSet, ReactorId};

/// The cores of a list like `2-9` or `0,4,2`, one reactor for each, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreList(pub(super) Vec<CoreId>);

impl CoreList {
    /// One core alone.
    #[must_use]
    pub fn one(core: usize) -> CoreList {
        CoreList(vec![CoreId(core)])
    }

    /// How many there are: at least one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none, which is never so.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The cores, in this order.
    pub fn iter(&self) -> impl Iterator<Item = CoreId> + '_ {
        self.0.iter().copied()
    }

    /// The first `count` of them, and at least one.
    #[must_use]
    pub fn first(&self, count: usize) -> CoreList {
        CoreList(self.0[..count.clamp(1, self.0.len())].to_vec())
    }

    /// Whether a core is in it.
    #[must_use]
    pub fn contains(&self, core: usize) -> bool {
        self.position(core).is_some()
    }

    /// Which reactor runs on a core.
    #[must_use]
    pub fn position(&self, core: usize) -> Option<usize> {
        self.0.iter().position(|found| found.0 == core)
    }
}

impl FromStr for CoreList {
    type Err = String;

    fn from_str(text: &str) -> Result<CoreList, String> {
        let mut cores = Vec::new();
        for part in text.split(',') {
            let set: CoreSet = part
                .parse()
                .ok()
                .filter(|set: &CoreSet| !set.is_empty())
                .ok_or_else(|| format!("{part:?} is no core; write cores as 2-9 or 0,2,4"))?;
            for core in set.iter() {
                if cores.contains(&core) {
                    return Err(format!("{core} is in the list twice; name each core once"));
                }
                cores.push(core);
            }
        }
        if cores.len() > ReactorId::COUNT_MAX {
            return Err(format!("{} cores (limit {}); name fewer", cores.len(), ReactorId::COUNT_MAX));
        }
        Ok(CoreList(cores))
    }
}

/// As [`CoreSet`] writes it where that is the order, else one by one.
impl fmt::Display for CoreList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_sorted() {
            return self.0.iter().copied().collect::<CoreSet>().fmt(f);
        }
        let mut separator = "";
        self.0.iter().try_for_each(|core| {
            let before = std::mem::replace(&mut separator, ",");
            write!(f, "{before}{}", core.0)
        })
    }
}

/// In a configuration file: a text as on the command line.
impl<'de> Deserialize<'de> for CoreList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CoreList, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_shown() {
        for (text, count, shown) in [
            ("0", 1, "0"),
            ("2-9", 8, "2-9"),
            ("2,3", 2, "2-3"),
            ("0,2,4", 3, "0,2,4"),
            ("3,2", 2, "3,2"),
            ("0-63", 64, "0-63"),
        ] {
            let list: CoreList = text.parse().unwrap();
            assert_eq!((list.len(), list.to_string().as_str()), (count, shown), "{text}");
        }
        let list: CoreList = "5,2-3".parse().unwrap();
        assert_eq!([5, 2, 3, 4].map(|core| list.position(core)), [Some(0), Some(1), Some(2), None]);
    }

    #[test]
    fn what_is_no_list_says_why() {
        for (text, why) in [
            ("", "\"\" is no core"),
            ("0,", "\"\" is no core"),
            ("a", "\"a\" is no core"),
            ("3-1", "\"3-1\" is no core"),
            ("-1", "\"-1\" is no core"),
            ("0-1,1", "core 1 is in the list twice"),
            ("7,7", "core 7 is in the list twice"),
            ("0-64", "65 cores (limit 64)"),
            ("1024", "\"1024\" is no core"),
        ] {
            let error = text.parse::<CoreList>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
