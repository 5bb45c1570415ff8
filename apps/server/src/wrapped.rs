//! Text on as many lines as it needs.

use std::io;
use std::sync::OnceLock;

use rustix::termios::tcgetwinsize;
use textwrap::core::Word;
use textwrap::{Options, WordSeparator, WordSplitter};

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

/// Lines of the terminal that standard output is now; `None` of a file or a pipe.
#[must_use]
pub fn rows() -> Option<usize> {
    tcgetwinsize(io::stdout()).ok().map(|size| size.ws_row.into()).filter(|rows| *rows > 0)
}

/// `text` behind `indent`, on lines of up to `width` columns; those behind the first begin where the text begins.
#[must_use]
pub fn wrapped(indent: &str, text: &str, width: usize) -> String {
    fill(indent, text, width, WordSeparator::AsciiSpace)
}

/// The same of options with commas between, behind each of which a line may end.
#[must_use]
pub fn wrapped_options(indent: &str, text: &str, width: usize) -> String {
    fn words<'t>(line: &'t str) -> Box<dyn Iterator<Item = Word<'t>> + 't> {
        Box::new(line.split_inclusive(',').map(Word::from))
    }
    fill(indent, text, width, WordSeparator::Custom(words))
}

/// `text` behind the figures of a row, or below them where the line has no room for it.
#[must_use]
pub fn beside_or_below(figures: &str, text: &str, width: usize) -> String {
    if figures.chars().count() + text.chars().count() <= width {
        return format!("{figures}{text}");
    }
    format!("{}\n{}", figures.trim_end(), wrapped_options("    ", text, width))
}

fn fill(indent: &str, text: &str, width: usize, separator: WordSeparator) -> String {
    let start = indent.chars().count();
    if width == usize::MAX || start + TEXT_COLUMNS_MIN > width {
        return format!("{indent}{text}");
    }
    let below = " ".repeat(start);
    let options = Options::new(width)
        .initial_indent(indent)
        .subsequent_indent(&below)
        .break_words(false)
        .word_separator(separator)
        .word_splitter(WordSplitter::NoHyphenation);
    textwrap::fill(text, options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_broken_behind_commas() {
        let spec = "dir:/srv/data,name=/data,client=10.0.0.0/8:rw,client=*:ro,root_squash=no";
        let lines = wrapped_options("export     ", spec, 40);
        assert!(lines.lines().all(|line| line.chars().count() <= 40), "{lines}");
        assert_eq!(lines.lines().next(), Some("export     dir:/srv/data,name=/data,"));
        assert_eq!(lines.replace(char::is_whitespace, ""), format!("export{spec}"));
        assert_eq!(beside_or_below("  1 KiB  ", "mem:/a", 40), "  1 KiB  mem:/a");
        let below = beside_or_below("  1 KiB  ", spec, 40);
        assert!(below.starts_with("  1 KiB\n    dir:/srv/data,"), "{below}");
    }

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
