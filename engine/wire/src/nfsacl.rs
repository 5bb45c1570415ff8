//! NFSACL version 3, program 100227: POSIX access control lists beside NFS version 3. There is no RFC: Solaris
//! made it, and Linux speaks it. Nothing in it is DDP-eligible (8267-5.2-a).
//!
//! ```text
//! GETACL   handle, mask         ──▶ status, attributes, mask, Acl access, Acl default
//! SETACL   handle, mask, 2 Acls ──▶ status, attributes
//! Acl      count - n - TIP - TIP - ... - TIP      T, I, P: type, id, permissions; n is count, or 0 if only counted
//! ```
//!
//! A list always has at least four entries on the wire: a list without a mask gets one with the permissions
//! of the owning group.

use crate::nfs3::value::{numbers, records};
use crate::nfs3::{Handle, PostOpAttributes, ProcedureResults};
use crate::xdr::{Decode, Encode, Overflow, Reader, Writer, XdrError};

/// Program number of NFSACL.
pub const PROGRAM: u32 = 100_227;
/// The version spoken here: the one for NFS version 3.
pub const VERSION: u32 = 3;

/// Most entries of one list (Linux's NFS_ACL_MAX_ENTRIES).
pub const ENTRIES_MAX: u32 = 1024;
/// XDR length of an entry in bytes.
pub const ENTRY_LEN: usize = 12;

numbers! {
    /// The procedures of version 3.
    Procedure {
        /// Does nothing.
        Null = 0,
        /// The lists of an object.
        Getacl = 1,
        /// Puts other lists in their stead.
        Setacl = 2,
    }
}

impl Procedure {
    /// How many there are: they are numbered from 0 without a gap.
    pub const COUNT: usize = 3;
}

/// Bits of a mask: which lists are asked for, or given.
pub mod mask {
    /// The access list's entries (NFS_ACL).
    pub const ACCESS: u32 = 1;
    /// How many entries the access list has (NFS_ACLCNT).
    pub const ACCESS_COUNT: u32 = 2;
    /// The default list's entries (NFS_DFACL).
    pub const DEFAULT: u32 = 4;
    /// How many entries the default list has (NFS_DFACLCNT).
    pub const DEFAULT_COUNT: u32 = 8;
    /// All of them.
    pub const ALL: u32 = 15;
}

/// What an entry is about ([`Entry::kind`]).
pub mod kind {
    /// The object's owner (NA_USER_OBJ).
    pub const OWNER: u32 = 0x01;
    /// Another user (NA_USER).
    pub const USER: u32 = 0x02;
    /// The object's group (NA_GROUP_OBJ).
    pub const OWNING_GROUP: u32 = 0x04;
    /// Another group (NA_GROUP).
    pub const GROUP: u32 = 0x08;
    /// The most that users, groups and the owning group get (NA_CLASS_OBJ).
    pub const MASK: u32 = 0x10;
    /// Everybody else (NA_OTHER_OBJ).
    pub const OTHER: u32 = 0x20;
    /// Set in every entry of a default list (NA_ACL_DEFAULT).
    pub const DEFAULT: u32 = 0x1000;
}

records! {
    /// An entry of a list (aclent).
    Entry {
        /// One of [`kind`], perhaps with [`kind::DEFAULT`]. Not checked here.
        kind: u32,
        /// The user or group, where the kind has one.
        id: u32,
        /// Read 4, write 2, execute 1.
        permissions: u32,
    }

    /// A list (secattr has two).
    Acl<'a> {
        /// How many entries it has.
        count: u32,
        /// The entries, or none if only their number was asked for.
        entries: AclEntries<'a>,
    }

    /// Arguments of GETACL (GETACL3args).
    GetaclArguments<'a> {
        /// Whose lists.
        object: Handle<'a>,
        /// Bits of [`mask`]: what of them.
        mask: u32,
    }

    /// GETACL3resok.
    GetaclOk<'a> {
        /// The object's attributes.
        attributes: PostOpAttributes,
        /// What follows is there as far as these bits of [`mask`] say.
        mask: u32,
        /// Who may access the object.
        access: Acl<'a>,
        /// What new objects in this directory get.
        default: Acl<'a>,
    }

    /// Arguments of SETACL (SETACL3args).
    SetaclArguments<'a> {
        /// Whose lists.
        object: Handle<'a>,
        /// Bits of [`mask`]: which lists are given.
        mask: u32,
        /// Who may access the object.
        access: Acl<'a>,
        /// What new objects in this directory get.
        default: Acl<'a>,
    }

    /// SETACL3resok.
    SetaclOk {
        /// The object's attributes.
        attributes: PostOpAttributes,
    }
}

/// GETACL3res.
pub type GetaclReply<'a> = ProcedureResults<GetaclOk<'a>, PostOpAttributes>;
/// SETACL3res.
pub type SetaclReply = ProcedureResults<SetaclOk, PostOpAttributes>;

/// A counted array of [`Entry`], still in XDR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AclEntries<'a>(&'a [[u8; ENTRY_LEN]]);

impl<'a> AclEntries<'a> {
    /// Iterates over the entries.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Entry> + Clone + use<'a> {
        self.0.iter().map(|octets| {
            let word =
                |at: usize| u32::from_be_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]]);
            Entry { kind: word(0), id: word(4), permissions: word(8) }
        })
    }
}

impl<'a> Decode<'a> for AclEntries<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        let count = reader.count(ENTRIES_MAX, ENTRY_LEN)? as usize;
        Ok(AclEntries(reader.opaque_fixed(count * ENTRY_LEN)?.as_chunks().0))
    }
}

impl Encode for AclEntries<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.u32(u32::try_from(self.0.len()).map_err(|_| Overflow)?)?;
        writer.opaque_fixed(self.0.as_flattened())
    }
}

/// Writes an [`Acl`] with its entries, or with their number alone.
pub fn encode_acl(
    writer: &mut Writer<'_>,
    entries: impl ExactSizeIterator<Item = Entry>,
    only_counted: bool,
) -> Result<(), Overflow> {
    let count = u32::try_from(entries.len()).map_err(|_| Overflow)?;
    writer.u32(count)?;
    if only_counted {
        return writer.u32(0);
    }
    writer.u32(count)?;
    for entry in entries {
        writer.value(&entry)?;
    }
    Ok(())
}
