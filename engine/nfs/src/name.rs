//! The names of entries that every store refuses.

use stag_wire::nfs3::{NAME_LEN_MAX, Status};

/// Whether it names a directory by where one stands, which no entry may.
pub(crate) fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// Fails unless `name` can be that of an entry.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Status> {
    if name.len() > NAME_LEN_MAX as usize {
        return Err(Status::NameTooLong);
    }
    if name.is_empty() || name.iter().any(|octet| matches!(octet, 0 | b'/')) {
        return Err(Status::Inval);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_step_and_of_limited_length() {
        assert_eq!(check_name(&[b'n'; NAME_LEN_MAX as usize]), Ok(()));
        assert_eq!(check_name(&[b'n'; NAME_LEN_MAX as usize + 1]), Err(Status::NameTooLong));
        for bad in [&b""[..], b"/", b"a/b", b"nul\0"] {
            assert_eq!(check_name(bad), Err(Status::Inval), "{bad:?}");
        }
        assert!(is_dots(b".") && is_dots(b"..") && !is_dots(b"...") && !is_dots(b"a"));
    }
}
