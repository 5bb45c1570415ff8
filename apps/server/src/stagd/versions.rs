//! The versions of NFS that the server serves.

use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error as _};
use stag_nfs::server::Registered;
use stag_wire::nfs4;

/// Versions of NFS, as `3,4.2` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NfsVersions {
    /// Version 3.
    pub three: bool,
    /// Minor versions 1 and 2 of version 4.
    pub four: [bool; 2],
}

impl Default for NfsVersions {
    fn default() -> NfsVersions {
        NfsVersions { three: true, four: [true; 2] }
    }
}

impl NfsVersions {
    /// Whether a program, in its version, belongs to what is served.
    pub(super) fn serves(&self, registered: &Registered) -> bool {
        match (registered.program, registered.version) {
            (nfs4::PROGRAM, nfs4::VERSION) => self.four != [false; 2],
            (nfs4::PROGRAM, _) => self.three,
            _ => true,
        }
    }
}

impl FromStr for NfsVersions {
    type Err = String;

    fn from_str(text: &str) -> Result<NfsVersions, String> {
        let mut versions = NfsVersions { three: false, four: [false; 2] };
        for word in text.split(',') {
            match word {
                "3" => versions.three = true,
                "4" => versions.four = [true; 2],
                "4.1" => versions.four[0] = true,
                "4.2" => versions.four[1] = true,
                _ => return Err(format!("{word:?} is no version that is served; choose of 3,4.1,4.2")),
            }
        }
        Ok(versions)
    }
}

impl<'de> Deserialize<'de> for NfsVersions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<NfsVersions, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_named_with_their_minor_versions() {
        let parsed = |text: &str| text.parse::<NfsVersions>();
        assert_eq!(parsed("3,4.1,4.2"), Ok(NfsVersions::default()));
        assert_eq!(parsed("4.2"), Ok(NfsVersions { three: false, four: [false, true] }));
        assert_eq!(parsed("4,3"), Ok(NfsVersions::default()));
        for wrong in ["", "4.0", "2", "3,", "3 4.1"] {
            let error = parsed(wrong).unwrap_err();
            assert!(error.contains("choose of 3,4.1,4.2"), "{error}");
        }
    }
}
