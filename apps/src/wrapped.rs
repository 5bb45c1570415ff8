//! Text on as many lines as it needs.

use std::io;
use std::sync::OnceLock;

use rustix::termios::tcgetwinsize;
use textwrap::{Options, WordSplitter};

/// The narrowest column that text is wrapped in: on a narrower terminal the terminal breaks the lines.
const TEXT_COLUMNS_MIN: usize = 24;

/// Columns of the terminal that standard output was at first. A file or a pipe has lines without end: a program that reads them finds
/// each finding on one.
#[must_use]
pub fn columns() -> usize {
    static COLUMNS: OnceLock<usize> = OnceLock::new();
    *COLUMNS.get_or_init(|| match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 => size.ws_col.into(),
        _ => usize::MAX,
    })
}

/// `text` behind `indent`, on lines of up to `width` columns; those behind the first begin where the text begins.
#[must_use]
pub fn wrapped(indent: &str, text: &str, width: usize) -> String {
    let start = indent.chars().count();
    if width == usize::MAX || start + TEXT_COLUMNS_MIN > width {
        return format!("{indent}{text}");
    }
    let below = " ".repeat(start);
    let options = Options::new(width)
        .initial_indent(indent)
        .subsequent_indent(&below)
        .break_words(false)
        .word_splitter(WordSplitter::NoHyphenation);
    textwrap::fill(text, options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_hang_below_the_text_and_words_stay_whole() {
        let text = "2 MiB pages: 14 wanted, 0 free; `stag hugepages setup --count 14 --apply` reserves them";
        let lines = wrapped("warning: ", text, 40);
        for (index, line) in lines.lines().enumerate() {
            assert!(line.chars().count() <= 40, "{line}");
            assert!(line.starts_with(if index == 0 { "warning: 2" } else { "         " }), "{line}");
        }
        let words: Vec<&str> = lines.split_whitespace().skip(1).collect();
        assert_eq!(words, text.split_whitespace().collect::<Vec<_>>());
        assert_eq!(wrapped("  ", "one two", usize::MAX), "  one two");
        assert_eq!(wrapped("note: ", text, 20), format!("note: {text}"));
        let long = "/a/path/that/is/longer/than/the/line/and/is/copied/from/it";
        assert!(wrapped("> ", &format!("see {long} there"), 40).contains(long));
    }
}
