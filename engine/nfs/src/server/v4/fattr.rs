//! Attributes of an object (fattr4), as GETATTR and READDIR tell them, and as VERIFY compares them. What can be set is in
//! `settable`.
//!
//! ```text
//! asked for ∩ supported ──┬── a set that Linux asks for often: written at once, by its layout
//!                         └── any other: attribute by attribute
//! ```

use stag_vfs::{DeviceId, ObjectKind, ObjectStat, StoreLimits, Timestamp, Usage};
use stag_wire::nfs4::attributes::{
    Attribute, AttributeError, AttributeList, AttributeSet, AttributeValue, ChangeAttributeType, Fsid, expire,
};
use stag_wire::nfs4::{Bitmap, DeviceNumber, FileType4, Opaque, Status4, Time4};
use stag_wire::xdr::{Overflow, Writer, padding};

use super::attribute_sets::*;
use super::settable::{EXCLUSIVE, parse_id};
use crate::server::TRANSFER_LEN_MAX;

/// What a file system is, as far as attributes tell it. The same for all its objects.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileSystemFacts {
    /// Identifies it.
    pub(super) fsid: u64,
    /// Its limits.
    pub(super) limits: StoreLimits,
    /// How the change attribute behaves.
    pub(super) changes: ChangeAttributeType,
    /// Seconds that a lease lasts.
    pub(super) lease_time: u32,
}

/// An object, as its attributes are told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Described<'a> {
    /// What it is.
    pub(super) seen: &'a ObjectStat,
    /// Its handle.
    pub(super) handle: &'a [u8],
    /// The number of the directory that it covers, if it is the root of a file system.
    pub(super) covers: Option<u64>,
    /// Its file system.
    pub(super) of: &'a FileSystemFacts,
    /// Needed if [`needs_usage`] says so.
    pub(super) usage: Option<&'a Usage>,
    /// The minor version.
    pub(super) minor: u32,
}

/// What an entry of a listing is of which only the number is known.
pub(super) fn numbered(fileid: u64) -> ObjectStat {
    let object = stag_vfs::ObjectId { fileid, generation: 0 };
    ObjectStat { nlink: 0, ..ObjectStat::new(object, ObjectKind::Regular, 0) }
}

/// Fails if `request` has attributes that cannot be asked for (8881-5.5-a).
#[inline]
pub(super) fn check_request(request: &AttributeSet<'_>, minor: u32) -> Result<(), Status4> {
    let set_only = if minor < 2 { without(SET_ONLY, SINCE_2) } else { SET_ONLY };
    if is_empty(both(request.0.words(), set_only)) { Ok(()) } else { Err(Status4::Inval) }
}

/// Whether `request` asks for space or objects of the file system.
#[inline]
pub(super) fn needs_usage(request: &Bitmap<'_>) -> bool {
    !is_empty(both(request.words(), OF_USAGE))
}

/// Whether a listing must tell more of its entries than their numbers.
pub(super) fn needs_stat(request: &AttributeSet<'_>, minor: u32) -> bool {
    !is_empty(without(both(request.0.words(), supported_by(minor)), OF_NUMBER))
}

/// Writes the attributes of an object that `request` asks for and that are supported (fattr4).
#[inline]
pub(super) fn encode(
    writer: &mut Writer<'_>,
    request: &AttributeSet<'_>,
    object: &Described<'_>,
) -> Result<(), Overflow> {
    match request.0.words() {
        WHOLE => encode_whole(writer, object),
        words @ (CHANGES | CHANGES_AND_SPACE | CHANGES_AND_ACCESS) => {
            encode_changes(writer, words, object.seen)
        }
        words => encode_any(
            writer,
            both(words, supported(object.minor, object.seen.born.is_some())),
            object,
            Status4::Ok,
        ),
    }
}

/// Writes what is known of an entry whose attributes there are not, because of `error`, to a client that asked for
/// rdattr_error (8881-18.23.3).
pub(super) fn encode_error(
    writer: &mut Writer<'_>,
    request: &AttributeSet<'_>,
    object: &Described<'_>,
    error: Status4,
) -> Result<(), Overflow> {
    encode_any(writer, both(request.0.words(), OF_NUMBER), object, error)
}

/// Whether a client wants to hear of an entry without attributes.
pub(super) fn takes_errors(request: &AttributeSet<'_>) -> bool {
    request.0.contains(Attribute::RdattrError.number())
}

/// Fails unless the attributes of an object are these: VERIFY, and NVERIFY the other way round. `Ok`: whether they are.
pub(super) fn compare(wanted: &AttributeList<'_>, object: &Described<'_>) -> Result<bool, Status4> {
    check_comparable(wanted, object)?;
    let owners = Owners::of(object.seen);
    let mut is_same = true;
    // All of them are decoded, also behind one that differs.
    for value in wanted.values() {
        let (attribute, wanted) = value.map_err(|error: AttributeError| error.status())?;
        let found = object.value(attribute, &owners, Status4::Ok);
        is_same &= match (attribute, wanted) {
            (Attribute::Owner, AttributeValue::Text(Opaque(name))) => parse_id(name) == Ok(object.seen.uid),
            (Attribute::OwnerGroup, AttributeValue::Text(Opaque(name))) => {
                parse_id(name) == Ok(object.seen.gid)
            }
            (Attribute::Mode, AttributeValue::U32(mode)) if mode & !super::settable::MODE_BITS != 0 => {
                return Err(Status4::Inval);
            }
            (_, wanted) => wanted == found,
        };
    }
    Ok(is_same)
}

/// Fails if VERIFY cannot compare these attributes (8881-18.31.4).
fn check_comparable(wanted: &AttributeList<'_>, object: &Described<'_>) -> Result<(), Status4> {
    let supported = supported(object.minor, object.seen.born.is_some());
    let words = wanted.mask.words();
    if !is_empty(both(words, either(SET_ONLY, set_of(&[Attribute::RdattrError])))) {
        return Err(Status4::Inval);
    }
    if wanted.mask.is_within(&Bitmap::from_words(supported)) { Ok(()) } else { Err(Status4::AttrNotSupp) }
}

/// Writes attributes one after the other. All of `words` must be supported.
#[inline(never)]
fn encode_any(
    writer: &mut Writer<'_>,
    words: Words,
    object: &Described<'_>,
    error: Status4,
) -> Result<(), Overflow> {
    let owners = Owners::of(object.seen);
    let mask = Bitmap::from_words(without(words, SET_ONLY));
    AttributeList::encode_with(writer, &mask, |attribute| object.value(attribute, &owners, error))
}

/// The octets of a time.
#[inline(always)]
fn time_octets(time: Timestamp) -> [u8; 12] {
    let mut octets = [0; 12];
    octets[..8].copy_from_slice(&time.seconds.to_be_bytes());
    octets[8..].copy_from_slice(&time.nanoseconds.to_be_bytes());
    octets
}

/// Puts octets into a place that is known when this is compiled.
macro_rules! put {
    ($place:ident, $at:ident, $octets:expr) => {
        let octets = $octets;
        $place[$at..$at + octets.len()].copy_from_slice(&octets);
        $at += octets.len();
    };
}

/// Writes what [`CHANGES`] and the like ask for.
#[inline(always)]
fn encode_changes(writer: &mut Writer<'_>, words: Words, seen: &ObjectStat) -> Result<(), Overflow> {
    const LEN: usize = 8 + 8 + 12 + 12;
    let extra = match words {
        CHANGES_AND_SPACE => 8,
        CHANGES_AND_ACCESS => 12,
        _ => 0,
    };
    let head = writer.array::<32>()?;
    let mut at = 0;
    put!(head, at, 2_u32.to_be_bytes());
    put!(head, at, words[0].to_be_bytes());
    put!(head, at, words[1].to_be_bytes());
    put!(head, at, ((LEN + extra) as u32).to_be_bytes());
    put!(head, at, seen.change.to_be_bytes());
    put!(head, at, seen.size.to_be_bytes());
    debug_assert_eq!(at, head.len());
    match extra {
        8 => *writer.array()? = seen.used.to_be_bytes(),
        12 => *writer.array()? = time_octets(seen.atime),
        _ => {}
    }
    let times = writer.array::<24>()?;
    times[..12].copy_from_slice(&time_octets(seen.ctime));
    times[12..].copy_from_slice(&time_octets(seen.mtime));
    Ok(())
}

/// Writes what [`WHOLE`] asks for.
fn encode_whole(writer: &mut Writer<'_>, object: &Described<'_>) -> Result<(), Overflow> {
    const HEAD: usize = 4 + 8 + 8 + 16 + 8 + 4 + 4;
    const TAIL: usize = 8 + 8 + 3 * 12 + 8;
    let seen = object.seen;
    let owners = Owners::of(seen);
    let (owner, group) = (owners.owner.text(), owners.group.text());
    let text_len = |text: &[u8]| 4 + text.len() + padding(text.len());
    let len = HEAD + text_len(owner) + text_len(group) + TAIL;
    let head = writer.array::<{ 16 + HEAD }>()?;
    let mut at = 0;
    put!(head, at, 2_u32.to_be_bytes());
    put!(head, at, WHOLE[0].to_be_bytes());
    put!(head, at, WHOLE[1].to_be_bytes());
    put!(head, at, (len as u32).to_be_bytes());
    put!(head, at, file_type(seen.kind).number().to_be_bytes());
    put!(head, at, seen.change.to_be_bytes());
    put!(head, at, seen.size.to_be_bytes());
    put!(head, at, object.of.fsid.to_be_bytes());
    put!(head, at, 0_u64.to_be_bytes());
    put!(head, at, seen.object.fileid.to_be_bytes());
    put!(head, at, seen.mode.to_be_bytes());
    put!(head, at, seen.nlink.to_be_bytes());
    debug_assert_eq!(at, head.len());
    writer.opaque(owner)?;
    writer.opaque(group)?;
    let tail = writer.array::<TAIL>()?;
    let mut at = 0;
    put!(tail, at, seen.device.major.to_be_bytes());
    put!(tail, at, seen.device.minor.to_be_bytes());
    put!(tail, at, seen.used.to_be_bytes());
    put!(tail, at, time_octets(seen.atime));
    put!(tail, at, time_octets(seen.ctime));
    put!(tail, at, time_octets(seen.mtime));
    put!(tail, at, object.mounted_on().to_be_bytes());
    debug_assert_eq!(at, tail.len());
    Ok(())
}

const fn file_type(kind: ObjectKind) -> FileType4 {
    match kind {
        ObjectKind::Regular => FileType4::Regular,
        ObjectKind::Directory => FileType4::Directory,
        ObjectKind::Block => FileType4::Block,
        ObjectKind::Character => FileType4::Character,
        ObjectKind::Symlink => FileType4::Symlink,
        ObjectKind::Socket => FileType4::Socket,
        ObjectKind::Fifo => FileType4::Fifo,
    }
}

const fn time(time: Timestamp) -> Time4 {
    Time4 { seconds: time.seconds, nanoseconds: time.nanoseconds }
}

/// A number in decimal: users and groups are told so, as RFC 8881 section 5.9 allows for AUTH_SYS.
struct Decimal {
    digits: [u8; 10],
    start: usize,
}

impl Decimal {
    fn new(mut number: u32) -> Decimal {
        let mut decimal = Decimal { digits: [b'0'; 10], start: 10 };
        loop {
            decimal.start -= 1;
            decimal.digits[decimal.start] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return decimal;
            }
        }
    }

    fn text(&self) -> &[u8] {
        &self.digits[self.start..]
    }
}

struct Owners {
    owner: Decimal,
    group: Decimal,
}

impl Owners {
    fn of(seen: &ObjectStat) -> Owners {
        Owners { owner: Decimal::new(seen.uid), group: Decimal::new(seen.gid) }
    }
}

impl<'a> Described<'a> {
    /// The number of what one sees in the directory above, before anything is mounted there.
    const fn mounted_on(&self) -> u64 {
        match self.covers {
            Some(covered) => covered,
            None => self.seen.object.fileid,
        }
    }

    /// The value of an attribute that is supported.
    fn value<'v>(&self, attribute: Attribute, owners: &'v Owners, error: Status4) -> AttributeValue<'v>
    where
        'a: 'v,
    {
        let Described { seen, of, .. } = self;
        let limits = &of.limits;
        let usage = self.usage.copied().unwrap_or(NO_USAGE);
        let set = |words| AttributeValue::Set(AttributeSet(Bitmap::from_words(words)));
        match attribute {
            Attribute::SupportedAttrs => set(supported(self.minor, seen.born.is_some())),
            Attribute::Type => AttributeValue::FileType(file_type(seen.kind)),
            Attribute::FhExpireType => AttributeValue::U32(expire::PERSISTENT),
            Attribute::Change => AttributeValue::U64(seen.change),
            Attribute::Size => AttributeValue::U64(seen.size),
            Attribute::LinkSupport
            | Attribute::SymlinkSupport
            | Attribute::UniqueHandles
            | Attribute::CanSetTime
            | Attribute::CasePreserving
            | Attribute::ChownRestricted
            | Attribute::Homogeneous
            | Attribute::NoTrunc => AttributeValue::Bool(true),
            Attribute::NamedAttr | Attribute::CaseInsensitive | Attribute::XattrSupport => {
                AttributeValue::Bool(false)
            }
            Attribute::Fsid => AttributeValue::Fsid(Fsid { major: of.fsid, minor: 0 }),
            Attribute::LeaseTime => AttributeValue::U32(of.lease_time),
            Attribute::RdattrError => AttributeValue::Status(error),
            // No kind of entry: there are no lists.
            Attribute::AclSupport => AttributeValue::U32(0),
            Attribute::FileHandle => AttributeValue::Handle(Opaque(self.handle)),
            Attribute::FileId => AttributeValue::U64(seen.object.fileid),
            Attribute::FilesAvail | Attribute::FilesFree => AttributeValue::U64(usage.files_free),
            Attribute::FilesTotal => AttributeValue::U64(usage.files_total),
            Attribute::MaxFileSize => AttributeValue::U64(limits.file_len_max),
            Attribute::MaxLink => AttributeValue::U32(limits.links_max),
            Attribute::MaxName => AttributeValue::U32(limits.name_len_max),
            Attribute::MaxRead | Attribute::MaxWrite => AttributeValue::U64(TRANSFER_LEN_MAX.into()),
            Attribute::Mode => AttributeValue::U32(seen.mode),
            Attribute::NumLinks => AttributeValue::U32(seen.nlink),
            Attribute::Owner => AttributeValue::Text(Opaque(owners.owner.text())),
            Attribute::OwnerGroup => AttributeValue::Text(Opaque(owners.group.text())),
            Attribute::RawDev => {
                let DeviceId { major, minor } = seen.device;
                AttributeValue::Device(DeviceNumber { major, minor })
            }
            Attribute::SpaceAvail | Attribute::SpaceFree => AttributeValue::U64(usage.bytes_free),
            Attribute::SpaceTotal => AttributeValue::U64(usage.bytes_total),
            Attribute::SpaceUsed => AttributeValue::U64(seen.used),
            Attribute::TimeAccess => AttributeValue::Time(time(seen.atime)),
            Attribute::TimeCreate => AttributeValue::Time(time(seen.born.unwrap_or_default())),
            Attribute::TimeDelta => AttributeValue::Time(Time4 { seconds: 0, nanoseconds: 1 }),
            Attribute::TimeMetadata => AttributeValue::Time(time(seen.ctime)),
            Attribute::TimeModify => AttributeValue::Time(time(seen.mtime)),
            Attribute::MountedOnFileId => AttributeValue::U64(self.mounted_on()),
            Attribute::SuppattrExclcreat => set(both(EXCLUSIVE, supported(self.minor, seen.born.is_some()))),
            Attribute::ChangeAttrType => AttributeValue::ChangeAttributeType(of.changes),
            // Not supported, or set only: no mask has them.
            _ => AttributeValue::U32(0),
        }
    }
}

/// Stands for a usage that no attribute needs.
const NO_USAGE: Usage = Usage { bytes_total: 0, bytes_free: 0, files_total: 0, files_free: 0 };

#[cfg(test)]
mod tests {
    use super::*;
    use stag_vfs::ObjectId;
    use stag_wire::xdr::{Decode, Reader};

    const LIMITS: StoreLimits =
        StoreLimits { file_len_max: 1 << 40, links_max: 65_000, name_len_max: 255, path_len_max: 4095 };
    const FACTS: FileSystemFacts = FileSystemFacts {
        fsid: 77,
        limits: LIMITS,
        changes: ChangeAttributeType::TimeMetadata,
        lease_time: 90,
    };
    const USAGE: Usage = Usage { bytes_total: 1000, bytes_free: 600, files_total: 100, files_free: 40 };

    fn seen() -> ObjectStat {
        let at = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
        ObjectStat {
            object: ObjectId { fileid: 5, generation: 9 },
            kind: ObjectKind::Regular,
            mode: 0o4755,
            nlink: 2,
            uid: 1000,
            gid: u32::MAX - 1,
            size: 1 << 33,
            used: 4096,
            device: DeviceId { major: 3, minor: 4 },
            atime: at(-1, 1),
            mtime: at(20, 2),
            ctime: at(30, 999_999_999),
            may_have_acl: false,
            born: Some(at(10, 4)),
            change: 0x1234_5678_9abc,
        }
    }

    fn described(seen: &ObjectStat) -> Described<'_> {
        Described { seen, handle: b"handle", covers: None, of: &FACTS, usage: Some(&USAGE), minor: 2 }
    }

    fn encoded(write: impl FnOnce(&mut Writer<'_>) -> Result<(), Overflow>) -> Vec<u8> {
        let mut buf = vec![0xaa; 1024];
        let mut writer = Writer::new(&mut buf);
        write(&mut writer).unwrap();
        writer.written().to_vec()
    }

    fn ask(words: Words) -> AttributeSet<'static> {
        AttributeSet(Bitmap::from_words(words))
    }

    fn told(octets: &[u8]) -> AttributeList<'_> {
        let mut reader = Reader::new(octets);
        let list = AttributeList::decode(&mut reader).unwrap();
        reader.finish().unwrap();
        list
    }

    /// The sets that Linux 6.1 and 6.12 ask for, as captures have them.
    const ASKED_BY_LINUX: [Words; 12] = [
        WHOLE,
        CHANGES,
        CHANGES_AND_SPACE,
        CHANGES_AND_ACCESS,
        set_of(&[
            Attribute::SupportedAttrs,
            Attribute::FhExpireType,
            Attribute::LinkSupport,
            Attribute::SymlinkSupport,
            Attribute::AclSupport,
            Attribute::CaseInsensitive,
            Attribute::CasePreserving,
            Attribute::SuppattrExclcreat,
        ]),
        set_of(&[Attribute::MaxLink, Attribute::MaxName]),
        set_of(&[
            Attribute::LeaseTime,
            Attribute::MaxFileSize,
            Attribute::MaxRead,
            Attribute::MaxWrite,
            Attribute::TimeDelta,
            Attribute::FsLayoutTypes,
            Attribute::LayoutBlockSize,
            Attribute::CloneBlockSize,
            Attribute::XattrSupport,
        ]),
        either(WHOLE, set_of(&[Attribute::RdattrError, Attribute::FileHandle])),
        set_of(&[Attribute::Type, Attribute::RdattrError, Attribute::MountedOnFileId]),
        set_of(&[Attribute::Type, Attribute::FileId]),
        OF_USAGE,
        set_of(&[
            Attribute::Change,
            Attribute::Size,
            Attribute::Mode,
            Attribute::NumLinks,
            Attribute::Owner,
            Attribute::OwnerGroup,
            Attribute::TimeMetadata,
            Attribute::TimeModify,
        ]),
    ];

    #[test]
    fn sets_that_linux_asks_for_are_told_and_nothing_else() {
        let seen = seen();
        for minor in 1..=2 {
            let object = Described { minor, ..described(&seen) };
            for words in ASKED_BY_LINUX {
                let octets = encoded(|writer| encode(writer, &ask(words), &object));
                let list = told(&octets);
                let expected = both(words, supported(minor, true));
                assert_eq!(list.mask, Bitmap::from_words(expected), "{:?}", ask(words));
                assert!(list.values().all(|value| value.is_ok()), "{list:?}");
            }
        }
    }

    #[test]
    fn what_is_written_by_layout_is_what_is_written_one_by_one() {
        let mut seen = seen();
        for (uid, gid) in [(0, 0), (9, 10), (1000, 65_534), (u32::MAX, 12_345)] {
            (seen.uid, seen.gid) = (uid, gid);
            for covers in [None, Some(99)] {
                let object = Described { covers, ..described(&seen) };
                for words in [WHOLE, CHANGES, CHANGES_AND_SPACE, CHANGES_AND_ACCESS] {
                    let fast = encoded(|writer| encode(writer, &ask(words), &object));
                    let slow = encoded(|writer| encode_any(writer, words, &object, Status4::Ok));
                    assert_eq!(fast, slow, "{:?}", told(&slow));
                }
            }
        }
    }

    #[test]
    fn a_buffer_that_is_too_small_is_an_overflow() {
        let seen = seen();
        for words in ASKED_BY_LINUX {
            let object = described(&seen);
            let len = encoded(|writer| encode(writer, &ask(words), &object)).len();
            for room in 0..len {
                let mut buf = vec![0; room];
                let mut writer = Writer::new(&mut buf);
                assert_eq!(encode(&mut writer, &ask(words), &object), Err(Overflow), "{room} of {len}");
            }
        }
    }

    #[test]
    fn every_supported_attribute_has_a_value_of_its_type() {
        let seen = seen();
        for minor in 0..=2 {
            let object = Described { minor, ..described(&seen) };
            let all = supported(minor, true);
            let octets = encoded(|writer| encode(writer, &ask([u32::MAX; 3]), &object));
            let list = told(&octets);
            assert_eq!(list.mask.words(), without(all, SET_ONLY));
            for value in list.values() {
                let (attribute, value) = value.unwrap();
                assert_eq!(value.attribute_type(), attribute.attribute_type());
                assert!(attribute.since() <= minor, "{attribute:?}");
                assert!(attribute.is_readable());
            }
        }
        // What is set only is supported all the same.
        let words = supported(2, false);
        for attribute in Attribute::ALL.iter().filter(|attribute| !attribute.is_readable()) {
            let is_supported = Bitmap::from_words(words).contains(attribute.number());
            let expected = [Attribute::TimeAccessSet, Attribute::TimeModifySet, Attribute::ModeUmask];
            assert_eq!(is_supported, expected.contains(attribute), "{attribute:?}");
            assert!(Bitmap::from_words(SET_ONLY).contains(attribute.number()), "{attribute:?}");
        }
    }

    #[test]
    fn a_birth_is_told_only_where_it_is_known() {
        let mut seen = seen();
        let asked = ask(either(BIRTH, set_of(&[Attribute::SupportedAttrs])));
        for born in [None, Some(Timestamp { seconds: 10, nanoseconds: 4 })] {
            seen.born = born;
            let octets = encoded(|writer| encode(writer, &asked, &described(&seen)));
            let number = Attribute::TimeCreate.number();
            assert_eq!(told(&octets).mask.contains(number), born.is_some());
            let first = told(&octets).values().next().unwrap().unwrap().1;
            let AttributeValue::Set(all) = first else { panic!("{first:?}") };
            assert_eq!(all.0.contains(number), born.is_some());
        }
    }

    /// 8881-5.5-a.
    #[test]
    fn what_is_set_only_cannot_be_asked_for() {
        for attribute in Attribute::ALL {
            let asked = ask(set_of(&[Attribute::Size, *attribute]));
            let expected = if attribute.is_readable() { Ok(()) } else { Err(Status4::Inval) };
            assert_eq!(check_request(&asked, 2), expected, "{attribute:?}");
            // What a minor version does not know is left out.
            let expected = if attribute.since() > 1 { Ok(()) } else { expected };
            assert_eq!(check_request(&asked, 1), expected, "{attribute:?}");
        }
    }

    #[test]
    fn an_entry_without_attributes_tells_its_number_and_why() {
        let entry = numbered(5);
        let object = Described { handle: &[], usage: None, ..described(&entry) };
        let asked = ask(either(WHOLE, set_of(&[Attribute::RdattrError])));
        assert!(takes_errors(&asked) && !takes_errors(&ask(WHOLE)));
        let octets = encoded(|writer| encode_error(writer, &asked, &object, Status4::Access));
        let values: Vec<_> = told(&octets).values().map(Result::unwrap).collect();
        assert_eq!(
            values,
            [
                (Attribute::RdattrError, AttributeValue::Status(Status4::Access)),
                (Attribute::FileId, AttributeValue::U64(5)),
                (Attribute::MountedOnFileId, AttributeValue::U64(5)),
            ]
        );
    }

    #[test]
    fn a_listing_of_numbers_needs_no_attributes() {
        let of_number = set_of(&[Attribute::RdattrError, Attribute::FileId, Attribute::MountedOnFileId]);
        assert!(!needs_stat(&ask(of_number), 2));
        assert!(!needs_stat(&ask([0; 3]), 2));
        // What is not supported costs nothing.
        assert!(!needs_stat(&ask(either(of_number, set_of(&[Attribute::Acl]))), 2));
        assert!(needs_stat(&ask(set_of(&[Attribute::Type])), 2));
        assert!(needs_stat(&ask(set_of(&[Attribute::FileHandle])), 2));
    }

    fn verified(words: Words, values: &[u8]) -> Result<bool, Status4> {
        let seen = seen();
        compare(&AttributeList { mask: Bitmap::from_words(words), values }, &described(&seen))
    }

    #[test]
    fn attributes_are_the_same_as_themselves() {
        let seen = seen();
        let words = without(supported(2, true), either(SET_ONLY, set_of(&[Attribute::RdattrError])));
        let octets = encoded(|writer| encode(writer, &ask(words), &described(&seen)));
        assert_eq!(compare(&told(&octets), &described(&seen)), Ok(true));
        let other = ObjectStat { size: 0, ..seen };
        assert_eq!(compare(&told(&octets), &described(&other)), Ok(false));
        assert_eq!(verified([0; 3], &[]), Ok(true));
    }

    #[test]
    fn owners_are_compared_by_their_number() {
        let owner = |name: &[u8]| encoded(|writer| writer.opaque(name));
        let mask = set_of(&[Attribute::Owner]);
        assert_eq!(verified(mask, &owner(b"1000")), Ok(true));
        assert_eq!(verified(mask, &owner(b"1000@example.org")), Ok(true));
        assert_eq!(verified(mask, &owner(b"1001")), Ok(false));
        assert_eq!(verified(mask, &owner(b"somebody")), Ok(false));
    }

    /// RFC 8881 sections 18.31.4 and 6.2.4.
    #[test]
    fn what_cannot_be_compared_is_told_apart() {
        for attribute in [Attribute::RdattrError, Attribute::TimeModifySet, Attribute::ModeUmask] {
            assert_eq!(verified(set_of(&[attribute]), &[]), Err(Status4::Inval), "{attribute:?}");
        }
        assert_eq!(verified(set_of(&[Attribute::Acl]), &[0; 4]), Err(Status4::AttrNotSupp));
        assert_eq!(verified([0, 0, 1 << 31], &[]), Err(Status4::AttrNotSupp));
        let size = set_of(&[Attribute::Size]);
        assert_eq!(verified(size, &[0; 4]), Err(Status4::BadXdr));
        assert_eq!(verified(size, &[0; 12]), Err(Status4::BadXdr));
        let mode = set_of(&[Attribute::Mode]);
        assert_eq!(verified(mode, &0o4755_u32.to_be_bytes()), Ok(true));
        assert_eq!(verified(mode, &0o104_755_u32.to_be_bytes()), Err(Status4::Inval));
    }
}
