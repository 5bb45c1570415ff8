//! Prints a file's attributes.

use std::ffi::OsStr;
use std::fmt;

use serde::Serialize;
use stag_wire::nfs3::{Attributes, FileType, Time};

/// A file and its attributes: the object of `stag ls --json` and `stag stat --json`.
#[derive(Serialize)]
pub struct Described {
    name: String,
    /// `file`, `folder`, `link`, `block`, `character`, `socket` or `pipe`.
    kind: &'static str,
    /// The permission bits in octal.
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    used: u64,
    fileid: u64,
    fsid: u64,
    /// Times in RFC 3339, UTC.
    accessed: String,
    modified: String,
    changed: String,
}

impl Described {
    /// A file of that name, or at that URL.
    pub fn new(name: impl fmt::Display, attributes: &Attributes) -> Described {
        Described {
            name: name.to_string(),
            kind: kind(attributes.file_type).0,
            mode: format!("{:04o}", attributes.mode & 0o7777),
            links: attributes.nlink,
            uid: attributes.uid,
            gid: attributes.gid,
            size: attributes.size,
            used: attributes.used,
            fileid: attributes.fileid,
            fsid: attributes.fsid,
            accessed: Utc(attributes.atime).to_string(),
            modified: Utc(attributes.mtime).to_string(),
            changed: Utc(attributes.ctime).to_string(),
        }
    }
}

/// The name of a kind, and its letter in a listing.
#[must_use]
pub fn kind(file_type: FileType) -> (&'static str, char) {
    match file_type {
        FileType::Regular => ("file", '-'),
        FileType::Directory => ("folder", 'd'),
        FileType::Symlink => ("link", 'l'),
        FileType::Block => ("block", 'b'),
        FileType::Character => ("character", 'c'),
        FileType::Socket => ("socket", 's'),
        FileType::Fifo => ("pipe", 'p'),
    }
}

/// `rwxr-x---` in the manner of ls, with the letter of the kind before.
#[must_use]
pub fn mode(attributes: &Attributes) -> String {
    let mut text = String::from(kind(attributes.file_type).1);
    for (class, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = attributes.mode >> class;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (attributes.mode & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// A name for a terminal: control characters, which could do something there, become `?`.
#[must_use]
pub fn printable(name: &OsStr) -> String {
    name.to_string_lossy().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Everything of a `ls -l` line but the name.
#[must_use]
pub fn long(attributes: &Attributes) -> String {
    let Attributes { nlink, uid, gid, size, mtime, .. } = *attributes;
    format!("{} {nlink:>3} {uid:>5} {gid:>5} {size:>10} {:.0}", mode(attributes), Utc(mtime))
}

/// The same of a file of which nothing is known.
pub const LONG_UNKNOWN: &str = "??????????   ?     ?     ?          ? ????-??-??T??:??:??Z";

/// A time in RFC 3339, UTC: with nanoseconds, or without (`{:.0}`). By hand, because a date crate would be a dependency for
/// these thirty lines alone.
pub struct Utc(pub Time);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DAY: u32 = 86_400;
        let Time { seconds, nanoseconds } = self.0;
        let (year, month, day) = civil(seconds / DAY);
        let rest = seconds % DAY;
        let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        if f.precision() != Some(0) {
            write!(f, ".{nanoseconds:09}")?;
        }
        f.write_str("Z")
    }
}

/// The date of a day, counted from the start of 1970. Years begin in March here, so that a leap day is a
/// year's last.
fn civil(days: u32) -> (u32, u32, u32) {
    const DAYS_OF_400_YEARS: u32 = 146_097;
    /// From 0000-03-01 to 1970-01-01.
    const DAYS_BEFORE_1970: u32 = 719_468;
    let days = days + DAYS_BEFORE_1970;
    let (era, day) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u32::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_across_leap_years() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (u32::MAX, "2106-02-07T06:28:15Z"),
        ] {
            assert_eq!(format!("{:.0}", Utc(Time { seconds, nanoseconds: 7 })), expected);
        }
        assert_eq!(Utc(Time { seconds: 1, nanoseconds: 7 }).to_string(), "1970-01-01T00:00:01.000000007Z");
    }
}
