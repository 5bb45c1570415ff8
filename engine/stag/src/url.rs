//! URLs of the builders: a fabric and an address.

use std::fmt;

/// What a URL begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Shm,
    Iwarp,
    Verbs,
    Tcp,
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scheme::Shm => "shm",
            Scheme::Iwarp => "iwarp",
            Scheme::Verbs => "verbs",
            Scheme::Tcp => "tcp",
        })
    }
}

/// Why a URL cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// It is none.
    #[error(
        "{0:?} is no URL of a fabric; write shm://NAME, iwarp://HOST:PORT, verbs://HOST:PORT or tcp://HOST:PORT"
    )]
    Unknown(String),
    /// The program was built without this fabric.
    #[error("{url}: this program was built without it; give the crate stag the feature {feature:?}")]
    NotBuilt {
        /// The URL.
        url: String,
        /// The feature.
        feature: String,
    },
}

/// Splits a URL whose fabric is in this build.
pub(crate) fn parse(url: &str) -> Result<(Scheme, &str), UrlError> {
    let unknown = || UrlError::Unknown(url.to_owned());
    let (scheme, address) = url.split_once("://").ok_or_else(unknown)?;
    let address = address.strip_suffix('/').unwrap_or(address);
    if address.is_empty() {
        return Err(unknown());
    }
    let (scheme, is_built) = match scheme {
        "shm" => (Scheme::Shm, cfg!(feature = "shm")),
        "iwarp" => (Scheme::Iwarp, cfg!(feature = "iwarp")),
        "verbs" => (Scheme::Verbs, cfg!(feature = "verbs")),
        "tcp" => (Scheme::Tcp, cfg!(feature = "tcp")),
        _ => return Err(unknown()),
    };
    match is_built {
        true => Ok((scheme, address)),
        false => Err(UrlError::NotBuilt { url: url.to_owned(), feature: scheme.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_fabric_and_an_address() {
        assert_eq!(parse("shm://echo"), Ok((Scheme::Shm, "echo")));
        assert_eq!(parse("iwarp://[::1]:20049/"), Ok((Scheme::Iwarp, "[::1]:20049")));
        for bad in ["", "echo", "shm:/echo", "shm://", "shm:///", "http://host:80"] {
            let error = parse(bad).expect_err("not a URL of a fabric").to_string();
            assert!(error.contains("write shm://NAME"), "{error}");
        }
    }

    #[test]
    fn a_fabric_that_is_not_built_names_its_feature() {
        let url = "verbs://host:1";
        match parse(url) {
            Ok(found) => assert_eq!((found, cfg!(feature = "verbs")), ((Scheme::Verbs, "host:1"), true)),
            Err(error) => assert!(error.to_string().contains("feature \"verbs\""), "{error}"),
        }
    }
}
