//! Attributes that clients set: what SETATTR, CREATE and OPEN may ask for, in the words of `vfs`.

use stag_vfs::{INVALID_ID, NANOSECONDS, ObjectKind, ObjectStat, TimeUpdate, Timestamp, Update};
use stag_wire::nfs4::attributes::{Attribute, AttributeList, AttributeSet, AttributeValue, SetTime4};
use stag_wire::nfs4::{Bitmap, Opaque, Status4};

use super::attribute_sets::{both, either, set_of, supported, without};

/// Bits of a mode that there are (8881-6.2.4).
pub(super) const MODE_BITS: u32 = 0o7777;

/// Bits of a umask that there are (RFC 8275 section 5).
const UMASK_BITS: u32 = 0o777;

/// Attributes that can be set on what exists.
const SETTABLE: [u32; 3] = set_of(&[
    Attribute::Size,
    Attribute::Mode,
    Attribute::Owner,
    Attribute::OwnerGroup,
    Attribute::TimeAccessSet,
    Attribute::TimeModifySet,
]);

/// Attributes that can be set only on what is made.
const NEW_ONLY: [u32; 3] = set_of(&[Attribute::ModeUmask]);

/// Attributes that an exclusive create can set (suppattr_exclcreat). The times may keep its verifier, and a file that has a
/// size is no longer as it was made.
pub(super) const EXCLUSIVE: [u32; 3] =
    set_of(&[Attribute::Mode, Attribute::Owner, Attribute::OwnerGroup, Attribute::ModeUmask]);

/// What attributes are set on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetOn {
    /// An object that exists: SETATTR.
    Existing,
    /// An object that is made: CREATE, and OPEN.
    New,
    /// A file that is made exclusively: OPEN with EXCLUSIVE4_1.
    Exclusive,
}

/// Attributes to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WantedAttributes {
    /// What to set; the umask is not applied to the mode.
    update: Update,
    umask: u32,
    mask: [u32; 3],
}

/// Reads attributes to set.
///
/// # Errors
///
/// NFS4ERR_ATTRNOTSUPP for what is not supported, NFS4ERR_INVAL for what cannot be set there or to that value,
/// NFS4ERR_BADOWNER for names without a number, NFS4ERR_BADXDR.
pub(super) fn decode(list: &AttributeList<'_>, minor: u32, on: SetOn) -> Result<WantedAttributes, Status4> {
    check_mask(list, minor, on)?;
    let mut wanted = WantedAttributes { update: Update::default(), umask: 0, mask: list.mask.words() };
    let update = &mut wanted.update;
    for value in list.values() {
        match value.map_err(|error| error.status())? {
            (Attribute::Size, AttributeValue::U64(size)) => update.size = Some(size),
            (Attribute::Mode, AttributeValue::U32(mode)) => update.mode = Some(checked(mode, MODE_BITS)?),
            (Attribute::ModeUmask, AttributeValue::ModeUmask(both)) => {
                update.mode = Some(checked(both.mode, MODE_BITS)?);
                wanted.umask = checked(both.umask, UMASK_BITS)?;
            }
            (Attribute::Owner, AttributeValue::Text(Opaque(name))) => update.uid = Some(parse_id(name)?),
            (Attribute::OwnerGroup, AttributeValue::Text(Opaque(name))) => {
                update.gid = Some(parse_id(name)?);
            }
            (Attribute::TimeAccessSet, AttributeValue::SetTime(time)) => update.atime = time_update(time)?,
            (Attribute::TimeModifySet, AttributeValue::SetTime(time)) => update.mtime = time_update(time)?,
            // `check_mask` lets no other pass.
            _ => return Err(Status4::AttrNotSupp),
        }
    }
    Ok(wanted)
}

/// Fails unless all of these attributes can be set there.
fn check_mask(list: &AttributeList<'_>, minor: u32, on: SetOn) -> Result<(), Status4> {
    // A birth that is told cannot be set, which is not said of any object: it counts as not supported.
    let known = Bitmap::from_words(supported(minor, false));
    if !list.mask.is_within(&known) {
        return Err(Status4::AttrNotSupp);
    }
    let allowed = match on {
        SetOn::Existing => SETTABLE,
        SetOn::New => either(SETTABLE, NEW_ONLY),
        SetOn::Exclusive => EXCLUSIVE,
    };
    let words = list.mask.words();
    let modes = both(words, set_of(&[Attribute::Mode, Attribute::ModeUmask]));
    let has_two_modes = modes[1] != 0 && modes[2] != 0;
    if without(words, allowed) != [0; 3] || has_two_modes { Err(Status4::Inval) } else { Ok(()) }
}

fn checked(mode: u32, bits: u32) -> Result<u32, Status4> {
    if mode & !bits == 0 { Ok(mode) } else { Err(Status4::Inval) }
}

fn time_update(time: SetTime4) -> Result<TimeUpdate, Status4> {
    match time {
        SetTime4::ServerTime => Ok(TimeUpdate::Now),
        SetTime4::ClientTime(time) if time.nanoseconds < NANOSECONDS => {
            let (seconds, nanoseconds) = (time.seconds, time.nanoseconds);
            Ok(TimeUpdate::To(Timestamp { seconds, nanoseconds }))
        }
        SetTime4::ClientTime(_) => Err(Status4::Inval),
    }
}

/// The number of a user or group: `1000`, or `1000@` and any domain (8881-5.9). Names have none: there is no idmapper.
///
/// # Errors
///
/// NFS4ERR_INVAL for an empty name, NFS4ERR_BADOWNER for any other without a number.
pub(super) fn parse_id(name: &[u8]) -> Result<u32, Status4> {
    if name.is_empty() {
        return Err(Status4::Inval);
    }
    let user = name.split(|octet| *octet == b'@').next().unwrap_or_default();
    // The conversion would take a sign.
    let is_number = user.iter().all(u8::is_ascii_digit);
    let number = str::from_utf8(user).ok().filter(|_| is_number).and_then(|digits| digits.parse().ok());
    number.filter(|id| *id != INVALID_ID).ok_or(Status4::BadOwner)
}

impl WantedAttributes {
    /// What to set on an object that exists.
    pub(super) const fn update(&self) -> &Update {
        &self.update
    }

    /// What to set on an object that is made; `inherits_list`: it gets an access control list from its directory, which
    /// replaces the umask (RFC 8275 section 5).
    pub(super) fn for_new(&self, inherits_list: bool) -> Update {
        let umask = if inherits_list { 0 } else { self.umask };
        Update { mode: self.update.mode.map(|mode| mode & !umask), ..self.update }
    }

    /// Whether a umask has to be applied, so that it matters what the object inherits.
    pub(super) const fn has_umask(&self) -> bool {
        self.umask != 0
    }

    /// All of them, after a success (attrsset).
    pub(super) fn set(&self) -> AttributeSet<'static> {
        AttributeSet(Bitmap::from_words(self.mask))
    }

    /// Those that an object has which was made with them. The policy leaves out what its maker may not set.
    pub(super) fn set_on(&self, made: &ObjectStat) -> AttributeSet<'static> {
        let mut left_out = [0; 3];
        let mut leave_out = |attribute| left_out = either(left_out, set_of(&[attribute]));
        if self.update.uid.is_some_and(|uid| uid != made.uid) {
            leave_out(Attribute::Owner);
        }
        if self.update.gid.is_some_and(|gid| gid != made.gid) {
            leave_out(Attribute::OwnerGroup);
        }
        if made.kind != ObjectKind::Regular {
            leave_out(Attribute::Size);
        }
        if made.kind == ObjectKind::Symlink {
            leave_out(Attribute::Mode);
            leave_out(Attribute::ModeUmask);
        }
        AttributeSet(Bitmap::from_words(without(self.mask, left_out)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::v4::fattr::numbered;
    use stag_wire::nfs4::Time4;
    use stag_wire::nfs4::attributes::{AttributeAccess, ModeUmask};
    use stag_wire::xdr::{Overflow, Writer};

    fn encoded(write: impl FnOnce(&mut Writer<'_>) -> Result<(), Overflow>) -> Vec<u8> {
        let mut buf = vec![0xaa; 1024];
        let mut writer = Writer::new(&mut buf);
        write(&mut writer).unwrap();
        writer.written().to_vec()
    }

    fn values(values: &[AttributeValue<'_>]) -> Vec<u8> {
        encoded(|writer| values.iter().try_for_each(|value| writer.value(value)))
    }

    fn read(
        attributes: &[Attribute],
        octets: &[u8],
        minor: u32,
        on: SetOn,
    ) -> Result<WantedAttributes, Status4> {
        let mask = Bitmap::from_words(set_of(attributes));
        decode(&AttributeList { mask, values: octets }, minor, on)
    }

    fn one(attribute: Attribute, value: AttributeValue<'_>) -> Result<Update, Status4> {
        read(&[attribute], &values(&[value]), 2, SetOn::New).map(|wanted| wanted.for_new(false))
    }

    #[test]
    fn all_that_can_be_set() {
        let time = Time4 { seconds: -5, nanoseconds: 999_999_999 };
        let octets = values(&[
            AttributeValue::U64(1 << 40),
            AttributeValue::U32(0o6755),
            AttributeValue::Text(Opaque(b"1000")),
            AttributeValue::Text(Opaque(b"100@example.org")),
            AttributeValue::SetTime(SetTime4::ServerTime),
            AttributeValue::SetTime(SetTime4::ClientTime(time)),
        ]);
        let attributes = [
            Attribute::Size,
            Attribute::Mode,
            Attribute::Owner,
            Attribute::OwnerGroup,
            Attribute::TimeAccessSet,
            Attribute::TimeModifySet,
        ];
        for minor in 0..=2 {
            for on in [SetOn::Existing, SetOn::New] {
                let wanted = read(&attributes, &octets, minor, on).unwrap();
                let expected = Update {
                    mode: Some(0o6755),
                    uid: Some(1000),
                    gid: Some(100),
                    size: Some(1 << 40),
                    atime: TimeUpdate::Now,
                    mtime: TimeUpdate::To(Timestamp { seconds: -5, nanoseconds: 999_999_999 }),
                };
                assert_eq!(*wanted.update(), expected);
                assert_eq!(wanted.for_new(false), expected);
                assert_eq!(wanted.set(), AttributeSet(Bitmap::from_words(set_of(&attributes))));
            }
        }
        assert_eq!(read(&[], &[], 1, SetOn::Existing).map(|wanted| *wanted.update()), Ok(Update::default()));
    }

    /// 8881-5.5-a, 8881-18.30.3-a.
    #[test]
    fn what_cannot_be_set_is_told_apart_from_what_is_not_supported() {
        for minor in 0..=2 {
            for attribute in Attribute::ALL {
                let found = read(&[*attribute], &[], minor, SetOn::Existing).err();
                let is_supported = Bitmap::from_words(supported(minor, false)).contains(attribute.number());
                let expected = match attribute {
                    _ if !is_supported => Status4::AttrNotSupp,
                    Attribute::ModeUmask => Status4::Inval,
                    _ if attribute.access() == AttributeAccess::Get => Status4::Inval,
                    // It can be set, but its value is missing.
                    _ => Status4::BadXdr,
                };
                assert_eq!(found, Some(expected), "{attribute:?} in 4.{minor}");
            }
        }
        let unknown = AttributeList { mask: Bitmap::from_words([0, 0, 1 << 31]), values: &[] };
        assert_eq!(decode(&unknown, 2, SetOn::New), Err(Status4::AttrNotSupp));
        // What is not supported comes first.
        let both = [Attribute::Type, Attribute::Acl];
        assert_eq!(read(&both, &[], 2, SetOn::New), Err(Status4::AttrNotSupp));
    }

    #[test]
    fn values_that_are_malformed_or_make_no_sense() {
        assert_eq!(read(&[Attribute::Size], &[0; 12], 2, SetOn::New), Err(Status4::BadXdr));
        assert_eq!(
            read(&[Attribute::TimeModifySet], &7_u32.to_be_bytes(), 2, SetOn::New),
            Err(Status4::BadXdr)
        );
        assert_eq!(one(Attribute::Mode, AttributeValue::U32(0o10_000)), Err(Status4::Inval));
        let late = SetTime4::ClientTime(Time4 { seconds: 0, nanoseconds: NANOSECONDS });
        assert_eq!(one(Attribute::TimeModifySet, AttributeValue::SetTime(late)), Err(Status4::Inval));
    }

    #[test]
    fn owners_are_numbers() {
        for (name, expected) in [
            ("0", Ok(0)),
            ("1000", Ok(1000)),
            ("1000@localdomain", Ok(1000)),
            ("4294967294", Ok(u32::MAX - 1)),
            ("4294967295", Err(Status4::BadOwner)),
            ("4294967296", Err(Status4::BadOwner)),
            ("", Err(Status4::Inval)),
            ("@localdomain", Err(Status4::BadOwner)),
            ("+5", Err(Status4::BadOwner)),
            ("-1", Err(Status4::BadOwner)),
            (" 5", Err(Status4::BadOwner)),
            ("root", Err(Status4::BadOwner)),
            ("root@localdomain", Err(Status4::BadOwner)),
        ] {
            assert_eq!(parse_id(name.as_bytes()), expected, "{name:?}");
        }
        assert_eq!(parse_id(b"\xff"), Err(Status4::BadOwner));
    }

    /// RFC 8275 section 5.
    #[test]
    fn a_umask_is_for_new_objects_that_inherit_no_list() {
        let masked = |mode, umask| {
            let value = AttributeValue::ModeUmask(ModeUmask { mode, umask });
            read(&[Attribute::ModeUmask], &values(&[value]), 2, SetOn::New)
        };
        let wanted = masked(0o2777, 0o022).unwrap();
        assert_eq!(wanted.for_new(false).mode, Some(0o2755));
        assert_eq!(wanted.for_new(true).mode, Some(0o2777));
        assert!(wanted.has_umask());
        assert_eq!(masked(0o777, 0o1000), Err(Status4::Inval));
        assert_eq!(masked(0o10_777, 0), Err(Status4::Inval));
        let octets = values(&[
            AttributeValue::U32(0o644),
            AttributeValue::ModeUmask(ModeUmask { mode: 0o644, umask: 0 }),
        ]);
        let both = [Attribute::Mode, Attribute::ModeUmask];
        assert_eq!(read(&both, &octets, 2, SetOn::New), Err(Status4::Inval));
        assert_eq!(read(&[Attribute::ModeUmask], &octets[4..], 1, SetOn::New), Err(Status4::AttrNotSupp));
        assert_eq!(read(&[Attribute::ModeUmask], &octets[4..], 2, SetOn::Existing), Err(Status4::Inval));
    }

    #[test]
    fn an_exclusive_create_sets_neither_times_nor_size() {
        for attribute in [Attribute::Size, Attribute::TimeAccessSet, Attribute::TimeModifySet] {
            assert_eq!(read(&[attribute], &[], 2, SetOn::Exclusive), Err(Status4::Inval), "{attribute:?}");
        }
        let mode = values(&[AttributeValue::U32(0o600)]);
        assert!(read(&[Attribute::Mode], &mode, 1, SetOn::Exclusive).is_ok());
    }

    #[test]
    fn attributes_that_the_maker_may_not_set_are_left_out_of_the_answer() {
        let octets = values(&[
            AttributeValue::U64(5),
            AttributeValue::U32(0o600),
            AttributeValue::Text(Opaque(b"1")),
            AttributeValue::Text(Opaque(b"2")),
        ]);
        let asked = [Attribute::Size, Attribute::Mode, Attribute::Owner, Attribute::OwnerGroup];
        let wanted = read(&asked, &octets, 2, SetOn::New).unwrap();
        let made = ObjectStat { uid: 1, gid: 2, size: 5, mode: 0o600, ..numbered(1) };
        for (made, expected) in [
            (made, &asked[..]),
            (ObjectStat { uid: 3, ..made }, &[Attribute::Size, Attribute::Mode, Attribute::OwnerGroup]),
            (ObjectStat { gid: 3, ..made }, &asked[..3]),
            (ObjectStat { kind: ObjectKind::Fifo, ..made }, &asked[1..]),
            (ObjectStat { kind: ObjectKind::Symlink, ..made }, &asked[2..]),
        ] {
            assert_eq!(wanted.set_on(&made).0.words(), set_of(expected), "{made:?}");
        }
    }
}
