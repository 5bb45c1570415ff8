//! Access control lists (RFC 8881 section 6).

use super::value::List;
use super::{Name4, Opaque};
use crate::nfs3::value::records;

/// Entries of an access control list at most. No RFC sets a limit; Linux's own stays far below.
pub const ACES_MAX: u32 = 4096;

records! {
    /// An access control entry (nfsace4).
    Ace<'a> {
        /// Allow, deny, audit or alarm: one of [`kind`].
        kind: u32,
        /// Bits of [`flag`].
        flags: u32,
        /// Bits of [`mask`].
        mask: u32,
        /// `OWNER@`, `GROUP@`, `EVERYONE@`, or a user or group.
        who: Name4<'a>,
    }

    /// A list with flags of its own (nfsacl41).
    AclWithFlags<'a> {
        /// Bits of [`list_flag`].
        flags: u32,
        /// The entries.
        entries: AceList<'a>,
    }
}

/// An access control list (fattr4_acl).
pub type AceList<'a> = List<'a, Ace<'a>, ACES_MAX>;

/// Who an entry is about, if it is none of the users and groups.
pub const WHO_OWNER: Opaque<'static, { super::STRING_LEN_CAP }> = Opaque(b"OWNER@");
/// The object's group.
pub const WHO_GROUP: Opaque<'static, { super::STRING_LEN_CAP }> = Opaque(b"GROUP@");
/// Everybody, the owner and the group as well.
pub const WHO_EVERYONE: Opaque<'static, { super::STRING_LEN_CAP }> = Opaque(b"EVERYONE@");

/// Kinds of entries (acetype4).
pub mod kind {
    /// Allows the accesses of its mask.
    pub const ALLOW: u32 = 0;
    /// Denies them.
    pub const DENY: u32 = 1;
    /// Logs them.
    pub const AUDIT: u32 = 2;
    /// Raises an alarm.
    pub const ALARM: u32 = 3;
}

/// Which kinds a server supports: bits of aclsupport.
pub mod support {
    /// Allow.
    pub const ALLOW: u32 = 1;
    /// Deny.
    pub const DENY: u32 = 2;
    /// Audit.
    pub const AUDIT: u32 = 4;
    /// Alarm.
    pub const ALARM: u32 = 8;
}

/// Flags of an entry (aceflag4).
pub mod flag {
    /// New files inherit it.
    pub const FILE_INHERIT: u32 = 0x01;
    /// New directories inherit it.
    pub const DIRECTORY_INHERIT: u32 = 0x02;
    /// Inherited once.
    pub const NO_PROPAGATE_INHERIT: u32 = 0x04;
    /// It does not count for the directory itself.
    pub const INHERIT_ONLY: u32 = 0x08;
    /// Of successful accesses.
    pub const SUCCESSFUL_ACCESS: u32 = 0x10;
    /// Of failed accesses.
    pub const FAILED_ACCESS: u32 = 0x20;
    /// `who` is a group.
    pub const IDENTIFIER_GROUP: u32 = 0x40;
    /// It was inherited.
    pub const INHERITED: u32 = 0x80;
}

/// Accesses of an entry (acemask4).
pub mod mask {
    /// Read data, or list a directory.
    pub const READ_DATA: u32 = 0x1;
    /// Write data, or add a file.
    pub const WRITE_DATA: u32 = 0x2;
    /// Append data, or add a directory.
    pub const APPEND_DATA: u32 = 0x4;
    /// Read named attributes.
    pub const READ_NAMED_ATTRS: u32 = 0x8;
    /// Write named attributes.
    pub const WRITE_NAMED_ATTRS: u32 = 0x10;
    /// Execute, or look up a name.
    pub const EXECUTE: u32 = 0x20;
    /// Delete entries of a directory.
    pub const DELETE_CHILD: u32 = 0x40;
    /// Read attributes.
    pub const READ_ATTRIBUTES: u32 = 0x80;
    /// Write attributes.
    pub const WRITE_ATTRIBUTES: u32 = 0x100;
    /// Change retention.
    pub const WRITE_RETENTION: u32 = 0x200;
    /// Change holds.
    pub const WRITE_RETENTION_HOLD: u32 = 0x400;
    /// Delete.
    pub const DELETE: u32 = 0x1_0000;
    /// Read the list.
    pub const READ_ACL: u32 = 0x2_0000;
    /// Write the list.
    pub const WRITE_ACL: u32 = 0x4_0000;
    /// Change owner or group.
    pub const WRITE_OWNER: u32 = 0x8_0000;
    /// Access at the server is synchronous.
    pub const SYNCHRONIZE: u32 = 0x10_0000;
}

/// Flags of a list (aclflag4).
pub mod list_flag {
    /// Inheritance is automatic.
    pub const AUTO_INHERIT: u32 = 1;
    /// It is not changed by inheritance.
    pub const PROTECTED: u32 = 2;
    /// It is a default.
    pub const DEFAULTED: u32 = 4;
}
