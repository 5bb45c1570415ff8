//! Attributes of objects: one table of all that 4.0, 4.1 and 4.2 name, with RFC 8276's and RFC 8275's, and the codec that
//! comes from it.
//!
//! ```text
//! GETATTR   mask ∩ supported ── AttributeList::encode_with ── each Attribute's AttributeValue, in the order of the numbers
//! SETATTR   AttributeList ── values() ── (Attribute, AttributeValue) ...
//! ```
//!
//! An [`AttributeList`] (fattr4) is not looked into when it is decoded: a server must tell an attribute that it does not
//! know (NFS4ERR_ATTRNOTSUPP) from one that is malformed (NFS4ERR_BADXDR), and [`AttributeList::values`] does.

use super::acl::{AceList, AclWithFlags};
use super::locations::{FsLocations, FsLocationsInfo};
use super::pnfs::{LayoutHint, LayoutTypes, ThresholdHints};
pub use super::value::Time4;
use super::value::unions;
use super::{Bitmap, DeviceNumber, FileType4, Handle4, Name4, Opaque, STRING_LEN_CAP, Status4};
use crate::nfs3::value::{numbers, records};
use crate::xdr::{Decode, Encode, Overflow, Reader, Writer, XdrError};

/// Octets of all values of an [`AttributeList`] at most. No RFC sets a limit. An ACL of many entries is the largest; a list is
/// always a part of a message, which is bounded by other means.
pub const ATTRIBUTES_LEN_CAP: u32 = 1 << 20;

/// Octets of a security label at most: far above those of SELinux.
pub const LABEL_LEN_CAP: u32 = 4096;

records! {
    /// Identifies a file system (fsid4).
    #[derive(Hash, Default)]
    Fsid {
        /// The first half.
        major: u64,
        /// The second half.
        minor: u64,
    }

    /// Changes when the policies of a file system do (change_policy4).
    ChangePolicy {
        /// The first half.
        major: u64,
        /// The second half.
        minor: u64,
    }

    /// State of a file system (fs4_status).
    FsStatus<'a> {
        /// It is not here.
        is_absent: bool,
        /// What becomes of it.
        kind: FsStatusKind,
        /// Where it comes from.
        source: Name4<'a>,
        /// Which version this is.
        current: Name4<'a>,
        /// Seconds since it was up to date.
        age: i32,
        /// When this version was made.
        version: Time4,
    }

    /// How long an object is retained (retention_get4).
    RetentionGet {
        /// Seconds.
        duration: u64,
        /// Since when.
        begin: Option<Time4>,
    }

    /// Sets retention (retention_set4).
    RetentionSet {
        /// Starts it.
        enable: bool,
        /// Seconds.
        duration: Option<u64>,
    }

    /// Some bits of a mode (mode_masked4).
    ModeMasked {
        /// Their values.
        value: u32,
        /// Which bits.
        mask: u32,
    }

    /// A security label (sec_label4).
    SecurityLabel<'a> {
        /// The label format (lfs_lfs).
        format: u32,
        /// The policy (lfs_pi).
        policy: u32,
        /// The label.
        data: Opaque<'a, LABEL_LEN_CAP>,
    }

    /// A mode to which the server applies a umask, if no ACL is inherited (mode_umask4, RFC 8275).
    ModeUmask {
        /// The mode.
        mode: u32,
        /// The bits to clear.
        umask: u32,
    }
}

numbers! {
    /// What becomes of a file system (fs4_status_type).
    FsStatusKind {
        /// It never changes.
        Fixed = 1,
        /// It is replaced by later versions of a source.
        Updated = 2,
        /// As `Updated`, but a client stays with its version.
        Versioned = 3,
        /// It can be written.
        Writable = 4,
        /// It is elsewhere.
        Referral = 5,
    }
}

numbers! {
    /// How the change attribute of a file system behaves (change_attr_type4).
    ChangeAttributeType {
        /// It counts up.
        MonotonicIncrement = 0,
        /// It counts changes.
        VersionCounter = 1,
        /// It counts changes, but for those through pNFS.
        VersionCounterNoPnfs = 2,
        /// It is derived from time_metadata.
        TimeMetadata = 3,
        /// Nothing is known of it.
        Undefined = 4,
    }
}

unions! {
    /// How to set a time (settime4).
    SetTime4 {
        /// To the server's clock.
        ServerTime = 0,
        /// To this.
        ClientTime = 1 (Time4),
    }
}

/// Bits of fh_expire_type.
pub mod expire {
    /// A handle stays good as long as its object lives.
    pub const PERSISTENT: u32 = 0;
    /// It does not expire while the file is open.
    pub const NOEXPIRE_WITH_OPEN: u32 = 1;
    /// It may expire at any time.
    pub const VOLATILE_ANY: u32 = 2;
    /// It expires when the file system moves.
    pub const VOLATILE_MIGRATION: u32 = 4;
    /// It expires when the object is renamed.
    pub const VOLATILE_RENAME: u32 = 8;
}

/// Declares the types of attributes: `Kind(type on the wire)`.
macro_rules! attribute_types {
    ($($(#[$meta:meta])* $kind:ident($type:ty),)*) => {
        /// What an attribute is made of.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum AttributeType {
            $($(#[$meta])* $kind,)*
        }

        /// The value of an attribute.
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub enum AttributeValue<'a> {
            $($(#[$meta])* $kind($type),)*
        }

        impl<'a> AttributeValue<'a> {
            /// Returns which type it is of.
            #[inline]
            #[must_use]
            pub const fn attribute_type(&self) -> AttributeType {
                match self {
                    $(AttributeValue::$kind(_) => AttributeType::$kind,)*
                }
            }

            /// Reads a value of a type.
            pub fn decode(of: AttributeType, reader: &mut Reader<'a>) -> Result<Self, XdrError> {
                match of {
                    $(AttributeType::$kind => reader.value().map(AttributeValue::$kind),)*
                }
            }
        }

        /// The value alone: its type follows from the attribute.
        impl core::fmt::Debug for AttributeValue<'_> {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self {
                    $(AttributeValue::$kind(value) => value.fmt(f),)*
                }
            }
        }

        impl Encode for AttributeValue<'_> {
            #[inline]
            fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
                match self {
                    $(AttributeValue::$kind(value) => writer.value(value),)*
                }
            }
        }
    };
}

attribute_types! {
    /// A set of attributes.
    Set(AttributeSet<'a>),
    /// What an object is.
    FileType(FileType4),
    /// A word.
    U32(u32),
    /// Two words.
    U64(u64),
    /// Yes or no.
    Bool(bool),
    /// A file system.
    Fsid(Fsid),
    /// A status.
    Status(Status4),
    /// Access control entries.
    Acl(AceList<'a>),
    /// Access control entries, and flags of the list.
    AclWithFlags(AclWithFlags<'a>),
    /// A handle.
    Handle(Handle4<'a>),
    /// Where a file system is.
    Locations(FsLocations<'a>),
    /// Where a file system is, in detail.
    LocationsInfo(FsLocationsInfo<'a>),
    /// Text: users, groups, media types.
    Text(Opaque<'a, STRING_LEN_CAP>),
    /// A device.
    Device(DeviceNumber),
    /// A time.
    Time(Time4),
    /// A time to set.
    SetTime(SetTime4),
    /// A policy.
    ChangePolicy(ChangePolicy),
    /// State of a file system.
    FsStatus(FsStatus<'a>),
    /// Layout types.
    LayoutTypes(LayoutTypes<'a>),
    /// A hint for layouts.
    LayoutHint(LayoutHint<'a>),
    /// When to use layouts.
    Thresholds(ThresholdHints<'a>),
    /// Retention.
    RetentionGet(RetentionGet),
    /// Retention to set.
    RetentionSet(RetentionSet),
    /// Some bits of a mode.
    ModeMasked(ModeMasked),
    /// How the change attribute behaves.
    ChangeAttributeType(ChangeAttributeType),
    /// A security label.
    SecurityLabel(SecurityLabel<'a>),
    /// A mode and a umask.
    ModeUmask(ModeUmask),
}

/// Whether an attribute is asked for or set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttributeAccess {
    /// Asked for only.
    Get,
    /// Asked for and set.
    GetSet,
    /// Set only.
    Set,
}

/// Declares attributes: `Variant = number name type access since minor version`.
macro_rules! attributes {
    ($($(#[$meta:meta])* $variant:ident = $number:literal $name:literal $type:ident $access:ident $since:literal;)*) => {
        numbers! {
            /// An attribute.
            Attribute {
                $($(#[$meta])* $variant = $number,)*
            }
        }

        impl Attribute {
            /// Returns its name in the RFCs.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Attribute::$variant => $name,)*
                }
            }

            /// Returns what it is made of.
            #[inline]
            #[must_use]
            pub const fn attribute_type(self) -> AttributeType {
                match self {
                    $(Attribute::$variant => AttributeType::$type,)*
                }
            }

            /// Tells whether it is asked for or set.
            #[must_use]
            pub const fn access(self) -> AttributeAccess {
                match self {
                    $(Attribute::$variant => AttributeAccess::$access,)*
                }
            }

            /// Returns the first minor version that has it.
            #[must_use]
            pub const fn since(self) -> u32 {
                match self {
                    $(Attribute::$variant => $since,)*
                }
            }
        }
    };
}

attributes! {
    /// Which attributes the object has.
    SupportedAttrs = 0 "supported_attrs" Set Get 0;
    /// What the object is.
    Type = 1 "type" FileType Get 0;
    /// When handles expire; bits of [`expire`].
    FhExpireType = 2 "fh_expire_type" U32 Get 0;
    /// Changes with each change of the object.
    Change = 3 "change" U64 Get 0;
    /// Size in bytes.
    Size = 4 "size" U64 GetSet 0;
    /// Whether there are hard links.
    LinkSupport = 5 "link_support" Bool Get 0;
    /// Whether there are symbolic links.
    SymlinkSupport = 6 "symlink_support" Bool Get 0;
    /// Whether the object has named attributes.
    NamedAttr = 7 "named_attr" Bool Get 0;
    /// Its file system.
    Fsid = 8 "fsid" Fsid Get 0;
    /// Whether two handles are always two objects.
    UniqueHandles = 9 "unique_handles" Bool Get 0;
    /// Seconds that a lease lasts.
    LeaseTime = 10 "lease_time" U32 Get 0;
    /// Why READDIR has no attributes of an entry.
    RdattrError = 11 "rdattr_error" Status Get 0;
    /// Access control list.
    Acl = 12 "acl" Acl GetSet 0;
    /// Which kinds of entries there are; bits of [`super::acl::support`].
    AclSupport = 13 "aclsupport" U32 Get 0;
    /// Whether the object was archived since its last change.
    Archive = 14 "archive" Bool GetSet 0;
    /// Whether times can be set.
    CanSetTime = 15 "cansettime" Bool Get 0;
    /// Whether names do not depend on case.
    CaseInsensitive = 16 "case_insensitive" Bool Get 0;
    /// Whether names keep their case.
    CasePreserving = 17 "case_preserving" Bool Get 0;
    /// Whether only privileged users give objects away.
    ChownRestricted = 18 "chown_restricted" Bool Get 0;
    /// The handle.
    FileHandle = 19 "filehandle" Handle Get 0;
    /// Identifies the object within its file system.
    FileId = 20 "fileid" U64 Get 0;
    /// Objects free to the caller.
    FilesAvail = 21 "files_avail" U64 Get 0;
    /// Objects free.
    FilesFree = 22 "files_free" U64 Get 0;
    /// Objects that the file system can have.
    FilesTotal = 23 "files_total" U64 Get 0;
    /// Where the file system is.
    FsLocations = 24 "fs_locations" Locations Get 0;
    /// Whether the object is hidden.
    Hidden = 25 "hidden" Bool GetSet 0;
    /// Whether attributes of the file system are the same for all objects.
    Homogeneous = 26 "homogeneous" Bool Get 0;
    /// Largest file.
    MaxFileSize = 27 "maxfilesize" U64 Get 0;
    /// Hard links of an object at most.
    MaxLink = 28 "maxlink" U32 Get 0;
    /// Longest name.
    MaxName = 29 "maxname" U32 Get 0;
    /// Largest READ.
    MaxRead = 30 "maxread" U64 Get 0;
    /// Largest WRITE.
    MaxWrite = 31 "maxwrite" U64 Get 0;
    /// Media type.
    MimeType = 32 "mimetype" Text GetSet 0;
    /// Permission bits.
    Mode = 33 "mode" U32 GetSet 0;
    /// Whether longer names are refused, not cut.
    NoTrunc = 34 "no_trunc" Bool Get 0;
    /// Hard links.
    NumLinks = 35 "numlinks" U32 Get 0;
    /// Owner.
    Owner = 36 "owner" Text GetSet 0;
    /// Group.
    OwnerGroup = 37 "owner_group" Text GetSet 0;
    /// Bytes left until the hard limit.
    QuotaAvailHard = 38 "quota_avail_hard" U64 Get 0;
    /// Bytes left until the soft limit.
    QuotaAvailSoft = 39 "quota_avail_soft" U64 Get 0;
    /// Bytes that count.
    QuotaUsed = 40 "quota_used" U64 Get 0;
    /// Number of a device.
    RawDev = 41 "rawdev" Device Get 0;
    /// Bytes free to the caller.
    SpaceAvail = 42 "space_avail" U64 Get 0;
    /// Bytes free.
    SpaceFree = 43 "space_free" U64 Get 0;
    /// Bytes of the file system.
    SpaceTotal = 44 "space_total" U64 Get 0;
    /// Bytes of storage in use.
    SpaceUsed = 45 "space_used" U64 Get 0;
    /// Whether it is a system file.
    System = 46 "system" Bool GetSet 0;
    /// Last access.
    TimeAccess = 47 "time_access" Time Get 0;
    /// Sets the last access.
    TimeAccessSet = 48 "time_access_set" SetTime Set 0;
    /// Last backup.
    TimeBackup = 49 "time_backup" Time GetSet 0;
    /// Birth.
    TimeCreate = 50 "time_create" Time GetSet 0;
    /// Granularity of times.
    TimeDelta = 51 "time_delta" Time Get 0;
    /// Last change of attributes.
    TimeMetadata = 52 "time_metadata" Time Get 0;
    /// Last change of data.
    TimeModify = 53 "time_modify" Time Get 0;
    /// Sets the last change of data.
    TimeModifySet = 54 "time_modify_set" SetTime Set 0;
    /// The fileid of the directory that a file system covers.
    MountedOnFileId = 55 "mounted_on_fileid" U64 Get 0;
    /// Delay of notifications about a directory's attributes.
    DirNotifDelay = 56 "dir_notif_delay" Time Get 1;
    /// Delay of notifications about entries' attributes.
    DirentNotifDelay = 57 "dirent_notif_delay" Time Get 1;
    /// Discretionary access control list.
    Dacl = 58 "dacl" AclWithFlags GetSet 1;
    /// System access control list.
    Sacl = 59 "sacl" AclWithFlags GetSet 1;
    /// Policy of the file system.
    ChangePolicy = 60 "change_policy" ChangePolicy Get 1;
    /// State of the file system.
    FsStatus = 61 "fs_status" FsStatus Get 1;
    /// Layout types of the file system.
    FsLayoutTypes = 62 "fs_layout_type" LayoutTypes Get 1;
    /// A hint for layouts.
    LayoutHint = 63 "layout_hint" LayoutHint Set 1;
    /// Layout types of the file.
    LayoutTypes = 64 "layout_type" LayoutTypes Get 1;
    /// Block size of layouts.
    LayoutBlockSize = 65 "layout_blksize" U32 Get 1;
    /// Alignment of layouts.
    LayoutAlignment = 66 "layout_alignment" U32 Get 1;
    /// Where the file system is, in detail.
    FsLocationsInfo = 67 "fs_locations_info" LocationsInfo Get 1;
    /// When to use layouts.
    MdsThreshold = 68 "mdsthreshold" Thresholds Get 1;
    /// Retention.
    RetentionGet = 69 "retention_get" RetentionGet Get 1;
    /// Sets retention.
    RetentionSet = 70 "retention_set" RetentionSet Set 1;
    /// Retention by event.
    RetentEventGet = 71 "retentevt_get" RetentionGet Get 1;
    /// Sets retention by event.
    RetentEventSet = 72 "retentevt_set" RetentionSet Set 1;
    /// Administrative holds.
    RetentionHold = 73 "retention_hold" U64 GetSet 1;
    /// Sets some bits of the mode.
    ModeSetMasked = 74 "mode_set_masked" ModeMasked Set 1;
    /// Which attributes an exclusive create sets.
    SuppattrExclcreat = 75 "suppattr_exclcreat" Set Get 1;
    /// What the file system does with character sets.
    FsCharsetCap = 76 "fs_charset_cap" U32 Get 1;
    /// Alignment of CLONE.
    CloneBlockSize = 77 "clone_blksize" U32 Get 2;
    /// Bytes that removing the object would free.
    SpaceFreed = 78 "space_freed" U64 Get 2;
    /// How the change attribute behaves.
    ChangeAttrType = 79 "change_attr_type" ChangeAttributeType Get 2;
    /// Security label.
    SecLabel = 80 "sec_label" SecurityLabel GetSet 2;
    /// Mode and umask of a new object (RFC 8275).
    ModeUmask = 81 "mode_umask" ModeUmask Set 2;
    /// Whether there are extended attributes (RFC 8276).
    XattrSupport = 82 "xattr_support" Bool Get 2;
}

/// A set of attributes (bitmap4), shown by their names.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct AttributeSet<'a>(pub Bitmap<'a>);

impl<'a> Decode<'a> for AttributeSet<'a> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        reader.value().map(AttributeSet)
    }
}

impl Encode for AttributeSet<'_> {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.value(&self.0)
    }
}

impl core::fmt::Debug for AttributeSet<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut set = f.debug_set();
        for number in self.0.iter() {
            match Attribute::from_number(number) {
                Some(attribute) => set.entry(&format_args!("{}", attribute.name())),
                None => set.entry(&number),
            };
        }
        set.finish()
    }
}

impl Attribute {
    /// Makes the set of those for which `belongs` says so.
    #[must_use]
    pub fn set_of(belongs: impl Fn(Attribute) -> bool) -> Bitmap<'static> {
        let mut words = [0_u32; 3];
        for attribute in Attribute::ALL.iter().filter(|attribute| belongs(**attribute)) {
            words[(attribute.number() / 32) as usize] |= 1 << (attribute.number() % 32);
        }
        Bitmap::from_words(words)
    }

    /// Returns the set of all that a minor version names.
    #[must_use]
    pub fn known_in(minor_version: u32) -> Bitmap<'static> {
        Attribute::set_of(|attribute| attribute.since() <= minor_version)
    }

    /// Tells whether it can be set.
    #[must_use]
    pub const fn is_settable(self) -> bool {
        !matches!(self.access(), AttributeAccess::Get)
    }

    /// Tells whether it can be asked for. GETATTR of one that cannot is NFS4ERR_INVAL (8881-5.5).
    #[must_use]
    pub const fn is_readable(self) -> bool {
        !matches!(self.access(), AttributeAccess::Set)
    }
}

/// Attributes and their values (fattr4): the values are still in XDR.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct AttributeList<'a> {
    /// Which ones.
    pub mask: Bitmap<'a>,
    /// Their values, in the order of their numbers.
    pub values: &'a [u8],
}

/// Why the values of an [`AttributeList`] end early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeError {
    /// An attribute has no name here, so its length is not known: NFS4ERR_ATTRNOTSUPP.
    Unknown(u32),
    /// A value is malformed, or octets are left after the last one: NFS4ERR_BADXDR.
    Malformed(XdrError),
}

impl AttributeError {
    /// Returns what an operation answers.
    #[must_use]
    pub const fn status(&self) -> Status4 {
        match self {
            AttributeError::Unknown(_) => Status4::AttrNotSupp,
            AttributeError::Malformed(_) => Status4::BadXdr,
        }
    }
}

impl core::fmt::Display for AttributeError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            AttributeError::Unknown(number) => write!(f, "attribute {number} is not known"),
            AttributeError::Malformed(error) => write!(f, "attributes: {error}"),
        }
    }
}

impl core::error::Error for AttributeError {}

impl<'a> AttributeList<'a> {
    /// Returns the attributes with their values, in order. An error is the last item.
    pub fn values(
        &self,
    ) -> impl Iterator<Item = Result<(Attribute, AttributeValue<'a>), AttributeError>> + use<'a> {
        let mut numbers = self.mask.iter();
        let mut reader = Some(Reader::new(self.values));
        core::iter::from_fn(move || {
            let mut rest = reader.take()?;
            let Some(number) = numbers.next() else {
                return rest.finish().err().map(|error| Err(AttributeError::Malformed(error)));
            };
            let Some(attribute) = Attribute::from_number(number) else {
                return Some(Err(AttributeError::Unknown(number)));
            };
            let value = AttributeValue::decode(attribute.attribute_type(), &mut rest);
            if value.is_ok() {
                reader = Some(rest);
            }
            Some(value.map(|value| (attribute, value)).map_err(AttributeError::Malformed))
        })
    }

    /// Writes a list from its values: `value` is asked for those of `mask`, in the order of their numbers.
    ///
    /// All of `mask` must have names: it is the intersection of what was asked for and what is supported. A value must be of
    /// its attribute's type.
    pub fn encode_with<'v>(
        writer: &mut Writer<'_>,
        mask: &Bitmap<'_>,
        mut value: impl FnMut(Attribute) -> AttributeValue<'v>,
    ) -> Result<(), Overflow> {
        writer.value(mask)?;
        let len = writer.reserve_u32()?;
        let start = writer.position();
        for attribute in mask.iter().filter_map(Attribute::from_number) {
            let value = value(attribute);
            debug_assert!(value.attribute_type() == attribute.attribute_type(), "{attribute:?}: {value:?}");
            writer.value(&value)?;
        }
        let end = writer.position();
        writer.patch_u32(len, u32::try_from(end - start).map_err(|_| Overflow)?);
        Ok(())
    }
}

impl<'a> Decode<'a> for AttributeList<'a> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        Ok(AttributeList { mask: reader.value()?, values: reader.opaque(ATTRIBUTES_LEN_CAP)? })
    }
}

impl Encode for AttributeList<'_> {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.value(&self.mask)?;
        writer.opaque(self.values)
    }
}

/// Each attribute by its name, as far as they are known.
impl core::fmt::Debug for AttributeList<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut map = f.debug_map();
        for value in self.values() {
            match value {
                Ok((attribute, value)) => map.entry(&format_args!("{}", attribute.name()), &value),
                Err(error) => map.entry(&format_args!("error"), &format_args!("{error}")),
            };
        }
        map.finish()
    }
}
