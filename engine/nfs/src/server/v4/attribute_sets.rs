//! Sets of attributes: which are supported, and which are asked for together.

use stag_wire::nfs4::attributes::Attribute;

/// A set of attributes, in words.
pub(super) type Words = [u32; 3];

/// Makes a set of attributes.
pub(super) const fn set_of(attributes: &[Attribute]) -> Words {
    let mut words = [0; 3];
    let mut index = 0;
    while index < attributes.len() {
        let number = attributes[index].number();
        words[(number / 32) as usize] |= 1 << (number % 32);
        index += 1;
    }
    words
}

/// What both have.
pub(super) const fn both([a, b, c]: Words, [d, e, f]: Words) -> Words {
    [a & d, b & e, c & f]
}

/// What one of them has.
pub(super) const fn either([a, b, c]: Words, [d, e, f]: Words) -> Words {
    [a | d, b | e, c | f]
}

/// What the first has and the second does not.
pub(super) const fn without([a, b, c]: Words, [d, e, f]: Words) -> Words {
    [a & !d, b & !e, c & !f]
}

pub(super) const fn is_empty(words: Words) -> bool {
    matches!(words, [0, 0, 0])
}

/// Attributes of every object, in each minor version.
pub(super) const COMMON: Words = set_of(&[
    Attribute::SupportedAttrs,
    Attribute::Type,
    Attribute::FhExpireType,
    Attribute::Change,
    Attribute::Size,
    Attribute::LinkSupport,
    Attribute::SymlinkSupport,
    Attribute::NamedAttr,
    Attribute::Fsid,
    Attribute::UniqueHandles,
    Attribute::LeaseTime,
    Attribute::RdattrError,
    Attribute::AclSupport,
    Attribute::CanSetTime,
    Attribute::CaseInsensitive,
    Attribute::CasePreserving,
    Attribute::ChownRestricted,
    Attribute::FileHandle,
    Attribute::FileId,
    Attribute::FilesAvail,
    Attribute::FilesFree,
    Attribute::FilesTotal,
    Attribute::Homogeneous,
    Attribute::MaxFileSize,
    Attribute::MaxLink,
    Attribute::MaxName,
    Attribute::MaxRead,
    Attribute::MaxWrite,
    Attribute::Mode,
    Attribute::NoTrunc,
    Attribute::NumLinks,
    Attribute::Owner,
    Attribute::OwnerGroup,
    Attribute::RawDev,
    Attribute::SpaceAvail,
    Attribute::SpaceFree,
    Attribute::SpaceTotal,
    Attribute::SpaceUsed,
    Attribute::TimeAccess,
    Attribute::TimeAccessSet,
    Attribute::TimeDelta,
    Attribute::TimeMetadata,
    Attribute::TimeModify,
    Attribute::TimeModifySet,
    Attribute::MountedOnFileId,
]);

/// Those that 4.1 adds.
pub(super) const SINCE_1: Words = set_of(&[Attribute::SuppattrExclcreat]);

/// Those that 4.2 adds.
pub(super) const SINCE_2: Words =
    set_of(&[Attribute::ChangeAttrType, Attribute::ModeUmask, Attribute::XattrSupport]);

/// The attribute of an object whose birth is known.
pub(super) const BIRTH: Words = set_of(&[Attribute::TimeCreate]);

/// All that can be set and not asked for, whether or not it is supported.
pub(super) const SET_ONLY: Words = set_of(&[
    Attribute::TimeAccessSet,
    Attribute::TimeModifySet,
    Attribute::LayoutHint,
    Attribute::RetentionSet,
    Attribute::RetentEventSet,
    Attribute::ModeSetMasked,
    Attribute::ModeUmask,
]);

/// What [`stag_vfs::Store::usage`] knows.
pub(super) const OF_USAGE: Words = set_of(&[
    Attribute::FilesAvail,
    Attribute::FilesFree,
    Attribute::FilesTotal,
    Attribute::SpaceAvail,
    Attribute::SpaceFree,
    Attribute::SpaceTotal,
]);

/// What is known of an entry by its number alone.
pub(super) const OF_NUMBER: Words =
    set_of(&[Attribute::RdattrError, Attribute::FileId, Attribute::MountedOnFileId]);

/// What Linux asks for of an object that it meets.
pub(super) const WHOLE: Words = set_of(&[
    Attribute::Type,
    Attribute::Change,
    Attribute::Size,
    Attribute::Fsid,
    Attribute::FileId,
    Attribute::Mode,
    Attribute::NumLinks,
    Attribute::Owner,
    Attribute::OwnerGroup,
    Attribute::RawDev,
    Attribute::SpaceUsed,
    Attribute::TimeAccess,
    Attribute::TimeMetadata,
    Attribute::TimeModify,
    Attribute::MountedOnFileId,
]);

/// What Linux asks for after a change, and when it opens a file again.
pub(super) const CHANGES: Words =
    set_of(&[Attribute::Change, Attribute::Size, Attribute::TimeMetadata, Attribute::TimeModify]);

/// The same, after a WRITE.
pub(super) const CHANGES_AND_SPACE: Words = either(CHANGES, set_of(&[Attribute::SpaceUsed]));

/// The same, after a READ.
pub(super) const CHANGES_AND_ACCESS: Words = either(CHANGES, set_of(&[Attribute::TimeAccess]));

/// Attributes of each object whose birth is not known.
pub(super) const fn supported_by(minor: u32) -> Words {
    match minor {
        0 => COMMON,
        1 => either(COMMON, SINCE_1),
        _ => either(COMMON, either(SINCE_1, SINCE_2)),
    }
}

/// Attributes that an object of this birth has.
pub(super) const fn supported(minor: u32, is_birth_known: bool) -> Words {
    let words = supported_by(minor);
    if is_birth_known { either(words, BIRTH) } else { words }
}
