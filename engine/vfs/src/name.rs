//! The names of entries that every store refuses.

use crate::error::FsError;

/// The longest name of an entry, in bytes.
pub const NAME_LEN_MAX: u32 = 255;
/// The longest path of a symbolic link, in bytes: as long as Linux makes them.
pub const PATH_LEN_MAX: u32 = 4095;

/// Whether it names a directory by where one stands, which no entry may.
pub fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// Fails unless `name` can be that of an entry.
pub fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.len() > NAME_LEN_MAX as usize {
        return Err(FsError::NameTooLong);
    }
    if name.is_empty() || name.iter().any(|octet| matches!(octet, 0 | b'/')) {
        return Err(FsError::Invalid);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_step_and_of_limited_length() {
        assert_eq!(check_name(&[b'n'; NAME_LEN_MAX as usize]), Ok(()));
        assert_eq!(check_name(&[b'n'; NAME_LEN_MAX as usize + 1]), Err(FsError::NameTooLong));
        for bad in [&b""[..], b"/", b"a/b", b"nul\0"] {
            assert_eq!(check_name(bad), Err(FsError::Invalid), "{bad:?}");
        }
        assert!(is_dots(b".") && is_dots(b"..") && !is_dots(b"...") && !is_dots(b"a"));
    }
}
