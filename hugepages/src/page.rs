//! Page sizes: what a user asks for, and what a mapping got.

use std::fmt;
use std::str::FromStr;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
const GIB: usize = 1024 * MIB;

/// The pages that a mapping stands on. Ordered: larger is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageSize {
    /// Ordinary pages of 4 KiB.
    Base,
    /// Ordinary memory that the kernel has put on 2 MiB pages by itself, at least in part.
    Transparent,
    /// Reserved hugepages of 2 MiB.
    Huge2M,
    /// Reserved hugepages of 1 GiB.
    Huge1G,
}

impl PageSize {
    /// From largest to smallest: the order of stepping down.
    pub const DESCENDING: [PageSize; 4] =
        [PageSize::Huge1G, PageSize::Huge2M, PageSize::Transparent, PageSize::Base];

    /// Bytes of one page. For [`PageSize::Transparent`] that of the large ones.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            PageSize::Base => 4 * KIB,
            PageSize::Transparent | PageSize::Huge2M => 2 * MIB,
            PageSize::Huge1G => GIB,
        }
    }

    /// What the length of a mapping is a multiple of.
    pub(crate) const fn bytes_of_len(self) -> usize {
        if self.is_reserved() { self.bytes() } else { PageSize::Base.bytes() }
    }

    /// Whether these are reserved pages (hugetlbfs), which are never swapped.
    #[must_use]
    pub const fn is_reserved(self) -> bool {
        matches!(self, PageSize::Huge2M | PageSize::Huge1G)
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PageSize::Base => "4 KiB pages",
            PageSize::Transparent => "transparent 2 MiB pages",
            PageSize::Huge2M => "2 MiB pages",
            PageSize::Huge1G => "1 GiB pages",
        })
    }
}

/// What pages to try. Every choice is where to *begin*: if the machine does not have such pages, the
/// mapping steps down and says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageChoice {
    /// The largest pages that do not waste more than an eighth of the memory by rounding up.
    #[default]
    Auto,
    /// These, or smaller ones.
    Size(PageSize),
}

/// A page choice that cannot be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown page size; use one of: auto, 1g, 2m, thp, 4k")]
pub struct PageChoiceError;

impl FromStr for PageChoice {
    type Err = PageChoiceError;

    fn from_str(text: &str) -> Result<PageChoice, PageChoiceError> {
        match text.to_ascii_lowercase().as_str() {
            "auto" => Ok(PageChoice::Auto),
            "1g" | "1gib" => Ok(PageChoice::Size(PageSize::Huge1G)),
            "2m" | "2mib" => Ok(PageChoice::Size(PageSize::Huge2M)),
            "thp" | "transparent" => Ok(PageChoice::Size(PageSize::Transparent)),
            "4k" | "4kib" => Ok(PageChoice::Size(PageSize::Base)),
            _ => Err(PageChoiceError),
        }
    }
}

impl fmt::Display for PageChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PageChoice::Auto => f.write_str("auto"),
            PageChoice::Size(PageSize::Huge1G) => f.write_str("1g"),
            PageChoice::Size(PageSize::Huge2M) => f.write_str("2m"),
            PageChoice::Size(PageSize::Transparent) => f.write_str("thp"),
            PageChoice::Size(PageSize::Base) => f.write_str("4k"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_read_back_what_they_show() {
        for text in ["auto", "1g", "2m", "thp", "4k"] {
            assert_eq!(text.parse::<PageChoice>().unwrap().to_string(), text);
        }
        assert!("3m".parse::<PageChoice>().unwrap_err().to_string().contains("auto, 1g, 2m, thp, 4k"));
    }
}
