//! POSIX access control lists of the kernel's files: as extended attributes, through descriptors.
//!
//! ```text
//! system.posix_acl_access    version: 2 | tag, permissions: 16 bits each | id: 32 bits | ...     all little-endian
//! system.posix_acl_default   the same
//! ```
//!
//! The kernel keeps mode and access list in step, and gives new objects what their directory's default list says. Lists are read
//! as ourselves, which needs no permission, and set as the caller, whom the kernel refuses what it may not do.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr, getxattr, removexattr, setxattr};
use rustix::io::Errno;
use stag_vfs::{Acl, AclEntry, ENTRIES_MAX, FsError, INVALID_ID, Timestamp, kind as entry_kind};

use super::object::status;

/// Which list of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AclKind {
    /// Who may access it.
    Access,
    /// What new objects in it inherit.
    Default,
}

impl AclKind {
    fn name(self) -> &'static CStr {
        match self {
            AclKind::Access => c"system.posix_acl_access",
            AclKind::Default => c"system.posix_acl_default",
        }
    }
}

/// The version of the kernel's format.
const VERSION: u32 = 2;
const HEADER_LEN: usize = 4;
const ENTRY_LEN: usize = 8;

/// Octets of a list that most lists fit.
const USUAL_LEN: usize = HEADER_LEN + 16 * ENTRY_LEN;

/// Octets of the longest list that clients can be told.
const LEN_MAX: usize = HEADER_LEN + ENTRIES_MAX * ENTRY_LEN;

/// Whether the file system of `file` has lists.
pub(super) fn has_lists(file: BorrowedFd<'_>) -> bool {
    !matches!(read_acl(file, AclKind::Access), Err(Errno::OPNOTSUPP | Errno::NOSYS))
}

/// A list of what `file` is, which may be opened to be looked at only. [`Errno::OPNOTSUPP`]: the file system has none.
/// [`Errno::RANGE`]: it is longer than clients can be told.
pub(super) fn read_acl(file: BorrowedFd<'_>, kind: AclKind) -> Result<Option<Arc<Acl>>, Errno> {
    let mut usual = [0; USUAL_LEN];
    let octets = match read_octets(file, kind, &mut usual) {
        Ok(len) => &usual[..len],
        Err(Errno::RANGE) => {
            let mut long = vec![0; LEN_MAX];
            let len = read_octets(file, kind, &mut long)?;
            return decode(&long[..len]).map(|acl| Some(Arc::new(acl)));
        }
        Err(Errno::NODATA) => return Ok(None),
        Err(error) => return Err(error),
    };
    decode(octets).map(|acl| Some(Arc::new(acl)))
}

fn read_octets(file: BorrowedFd<'_>, kind: AclKind, space: &mut [u8]) -> Result<usize, Errno> {
    match fgetxattr(file, kind.name(), &mut *space) {
        Err(Errno::BADF) => getxattr(path_of(file), kind.name(), space),
        read => read,
    }
}

/// The name that /proc has for a descriptor, which may be opened to be looked at only: the kernel takes none such for this.
fn path_of(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Sets a list, or takes it away. It may be away already.
pub(super) fn write_acl(file: BorrowedFd<'_>, kind: AclKind, acl: Option<&Acl>) -> Result<(), Errno> {
    let name = kind.name();
    let Some(acl) = acl else {
        let removed = match fremovexattr(file, name) {
            Err(Errno::BADF) => removexattr(path_of(file), name),
            removed => removed,
        };
        return if removed == Err(Errno::NODATA) { Ok(()) } else { removed };
    };
    let octets = encode(acl);
    match fsetxattr(file, name, &octets, XattrFlags::empty()) {
        Err(Errno::BADF) => setxattr(path_of(file), name, &octets, XattrFlags::empty()),
        set => set,
    }
}

/// The status of an error about a list.
pub(super) fn acl_status(error: Errno) -> FsError {
    match error {
        // Longer than clients can be told: what it may permit is refused.
        Errno::RANGE => FsError::AccessDenied,
        // Longer than the file system has room for.
        Errno::TOOBIG => FsError::NoSpace,
        error => status(error),
    }
}

fn encode(acl: &Acl) -> Vec<u8> {
    let mut octets = VERSION.to_le_bytes().to_vec();
    for AclEntry { kind, id, permissions } in acl.entries(INVALID_ID, INVALID_ID, 0) {
        // On the wire each list has a mask, but not in the kernel.
        if kind == entry_kind::MASK && acl.is_minimal() {
            continue;
        }
        let is_named = matches!(kind, entry_kind::USER | entry_kind::GROUP);
        octets.extend((kind as u16).to_le_bytes());
        octets.extend((permissions as u16).to_le_bytes());
        octets.extend(if is_named { id } else { INVALID_ID }.to_le_bytes());
    }
    octets
}

fn decode(octets: &[u8]) -> Result<Acl, Errno> {
    let (version, entries) = octets.split_first_chunk().ok_or(Errno::IO)?;
    let (entries, rest) = entries.as_chunks::<ENTRY_LEN>();
    if u32::from_le_bytes(*version) != VERSION || !rest.is_empty() {
        return Err(Errno::IO);
    }
    let entries = entries.iter().map(|[kind, kind_high, permissions, permissions_high, id @ ..]| AclEntry {
        kind: u16::from_le_bytes([*kind, *kind_high]).into(),
        permissions: u16::from_le_bytes([*permissions, *permissions_high]).into(),
        id: u32::from_le_bytes(*id),
    });
    // A FUSE server may say anything.
    Acl::from_entries(entries).map_err(|_| Errno::IO)
}

/// What is known of a node's access control list.
#[derive(Clone, Copy, Default)]
pub(super) struct KnownAcl {
    /// It had none, and was last changed at this time.
    pub(super) absent_since: Option<Timestamp>,
    /// The kernel has its lists in memory, as long as the node is open.
    pub(super) is_in_memory: bool,
}

impl KnownAcl {
    /// The node is closed.
    pub(super) fn forget_memory(&mut self) {
        self.is_in_memory = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `setfacl -m u:7:rw,g:9:r` makes of mode 640, as the kernel shows it.
    const SHOWN: [u8; 52] = [
        2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 6, 0, 7, 0, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255,
        8, 0, 4, 0, 9, 0, 0, 0, 16, 0, 6, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
    ];

    #[test]
    fn a_list_comes_apart_and_together_again() {
        let acl = decode(&SHOWN).unwrap();
        assert_eq!((acl.len(), acl.mode_bits()), (2, 0o660));
        assert_eq!(encode(&acl), SHOWN);
        let minimal = Acl::from_mode(0o751);
        assert_eq!(encode(&minimal).len(), HEADER_LEN + 3 * ENTRY_LEN, "no mask");
        assert_eq!(decode(&encode(&minimal)), Ok(minimal));
    }

    #[test]
    fn octets_that_are_no_list_are_an_error() {
        assert_eq!(decode(&[]), Err(Errno::IO));
        assert_eq!(decode(&SHOWN[..4]), Err(Errno::IO), "no entries");
        assert_eq!(decode(&SHOWN[..SHOWN.len() - 1]), Err(Errno::IO), "half an entry");
        let mut other = SHOWN;
        other[0] = 3;
        assert_eq!(decode(&other), Err(Errno::IO), "another version");
        other = SHOWN;
        other[4] = 64;
        assert_eq!(decode(&other), Err(Errno::IO), "an unknown tag");
    }
}
