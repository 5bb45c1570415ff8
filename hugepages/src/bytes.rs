//! Byte counts for human readers.

use std::fmt;

/// A number of bytes that displays with a unit: exact where it is a whole number of a unit, else rounded to a tenth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        for (unit, shift) in UNITS {
            if self.0 >> shift != 0 {
                if self.0.trailing_zeros() >= shift {
                    return f.pad(&format!("{} {unit}", self.0 >> shift));
                }
                return f.pad(&format!("{:.1} {unit}", self.0 as f64 / (1_u64 << shift) as f64));
            }
        }
        f.pad(&format!("{} B", self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_exact_and_others_rounded() {
        let show = |bytes| Bytes(bytes).to_string();
        assert_eq!(
            [0, 1023, 1024, 1536, 5 << 20, (1 << 30) + 1, u64::MAX].map(show),
            ["0 B", "1023 B", "1 KiB", "1.5 KiB", "5 MiB", "1.0 GiB", "16777216.0 TiB"]
        );
        assert_eq!(format!("{:>7}", Bytes(2048)), "  2 KiB");
    }
}
