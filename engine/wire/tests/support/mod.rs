//! Reads octets from the hex texts beside these tests.

/// Reads a hex text: either plain, or a table as the rules' examples have it, with offset and meaning.
pub(crate) fn octets(text: &str) -> Vec<u8> {
    let table = text.starts_with("off ");
    let mut octets = Vec::new();
    for line in text.lines() {
        if !table {
            octets.extend(hex(line));
        } else if let Some(total) = line.strip_prefix("total ") {
            let (total, _) = total.split_once(' ').expect("total N octets");
            assert_eq!(total.parse(), Ok(octets.len()), "the table's own total");
        } else if !line.starts_with("off ") {
            assert_eq!(usize::from_str_radix(&line[..4], 16), Ok(octets.len()), "the table's own offsets");
            octets.extend(hex(&line[6..line.len().min(26)]));
        }
    }
    octets
}

fn hex(line: &str) -> impl Iterator<Item = u8> + '_ {
    line.split_whitespace().flat_map(|word| {
        (0..word.len()).step_by(2).map(|at| u8::from_str_radix(&word[at..at + 2], 16).expect("hex"))
    })
}

/// Reads `tests/vectors/NAME.txt`: an example of the rules.
#[allow(unused_macros, reason = "each test crate has its own copy of this module")]
macro_rules! vector {
    ($name:literal) => {
        crate::support::octets(include_str!(concat!("vectors/", $name, ".txt")))
    };
}

/// Reads `tests/captures/NAME.hex`: a message of the Linux kernel.
#[allow(unused_macros, reason = "each test crate has its own copy of this module")]
macro_rules! capture {
    ($name:literal) => {
        crate::support::octets(include_str!(concat!("captures/", $name, ".hex")))
    };
}

#[allow(unused_imports, reason = "each test crate has its own copy of this module")]
pub(crate) use {capture, vector};
