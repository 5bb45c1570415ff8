//! Who may do what, and what an object becomes: the rules of a local file system, as functions of what was seen.
//!
//! Nothing here asks a store: [`Volume`](crate::Volume) does, and acts on the answers.

use crate::acl::Acl;
use crate::error::FsError;
use crate::identity::{Guarded, INVALID_ID, UserIdentity, permission};
use crate::store::{NewAttributes, ReadStep};
use crate::types::{NANOSECONDS, ObjectKind, ObjectStat, TimeUpdate, Update};
pub use crate::verifier::{has_verifier_times, verifier_times};

/// Bits of a mode that can be set.
const MODE_MASK: u32 = 0o7777;
const PERMISSIONS: u32 = 0o777;
const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const STICKY: u32 = 0o1000;
const GROUP: u32 = 0o0070;
const GROUP_EXECUTE: u32 = 0o0010;

/// Whether an object's access control list, if it has one, matters to `user`. The superuser and the owner do not need it: the
/// mode has the owner's entry. A mode without bits for the group has an empty mask, and Linux ignores the list then.
#[inline]
#[must_use]
pub fn acl_matters(user: &UserIdentity, object: &Guarded) -> bool {
    !user.is_root() && user.uid != object.uid && object.mode & GROUP != 0
}

/// Whether `user` has all of `wanted` ([`permission`]) on an object with this mode, and with this list if there is one.
#[inline]
#[must_use]
pub fn allows(user: &UserIdentity, object: &Guarded, acl: Option<&Acl>, wanted: u32) -> bool {
    match acl {
        Some(acl) if acl_matters(user, object) => acl.permits(user, object.uid, object.gid, wanted),
        _ => user.may(object, wanted),
    }
}

/// Fails unless `user` may read the data of a file. An owner reads what it opened before it took the permission from
/// itself, and a program is read to be executed: a server cannot see an open file (RFC 1813 section 4.4).
///
/// The file's access control list is asked for if it matters.
#[inline]
pub fn admit_read<'a>(
    user: &UserIdentity,
    file: &Guarded,
    acl: impl FnOnce() -> Option<&'a Acl>,
) -> Result<(), FsError> {
    if user.uid == file.uid {
        return Ok(());
    }
    let acl = acl();
    let permitted = allows(user, file, acl, permission::READ) || allows(user, file, acl, permission::EXECUTE);
    if permitted { Ok(()) } else { Err(FsError::AccessDenied) }
}

/// Fails unless `user` may write the data of a file. An owner may, as in [`admit_read`].
#[inline]
pub fn admit_write<'a>(
    user: &UserIdentity,
    file: &Guarded,
    acl: impl FnOnce() -> Option<&'a Acl>,
) -> Result<(), FsError> {
    let permitted = user.uid == file.uid || allows(user, file, acl(), permission::WRITE);
    if permitted { Ok(()) } else { Err(FsError::AccessDenied) }
}

/// The mode of a file that `user` writes to: as it no longer runs as its owner, unless the superuser wrote. `None`: the same.
#[inline]
#[must_use]
pub fn mode_after_write(user: &UserIdentity, mode: u32) -> Option<u32> {
    if user.is_root() { None } else { without_privileges(mode) }
}

/// The mode without what lets a program run as its owner or group. (Set-gid without group execute means something else and
/// stays.) `None`: the same.
#[inline]
fn without_privileges(mode: u32) -> Option<u32> {
    let mut without = mode & !SET_UID;
    if mode & GROUP_EXECUTE != 0 {
        without &= !SET_GID;
    }
    (without != mode).then_some(without)
}

/// Fails unless it is a directory.
pub fn check_is_directory(seen: &ObjectStat) -> Result<(), FsError> {
    if seen.kind == ObjectKind::Directory { Ok(()) } else { Err(FsError::NotDirectory) }
}

/// Fails unless an object of this kind has data.
#[inline]
pub fn check_is_file(kind: ObjectKind) -> Result<(), FsError> {
    match kind {
        ObjectKind::Regular => Ok(()),
        ObjectKind::Directory => Err(FsError::IsDirectory),
        _ => Err(FsError::Invalid),
    }
}

/// Fails if the sticky directory `above` keeps `user` from removing or renaming `object` in it.
pub fn check_sticky(user: &UserIdentity, above: &ObjectStat, object: &ObjectStat) -> Result<(), FsError> {
    let owns = user.is_root() || user.uid == object.uid || user.uid == above.uid;
    if above.mode & STICKY != 0 && !owns { Err(FsError::AccessDenied) } else { Ok(()) }
}

/// What of `set` an object of this kind has: the mode of a symbolic link means nothing and is never set, as on other
/// servers. Clients that copy links set mode, owner and times together.
fn settable(kind: ObjectKind, set: &Update) -> Update {
    Update { mode: set.mode.filter(|_| kind != ObjectKind::Symlink), ..*set }
}

/// What an object becomes if `user` sets `set`; fails unless it may set all of that. `may_write` tells whether the user may
/// write the object, if it does not own it. What the user may not do is judged before what nothing can be set to.
///
/// The result has the mode that the object will have, set-id bits included, if that changes.
pub fn update(
    user: &UserIdentity,
    seen: &ObjectStat,
    set: &Update,
    file_len_max: u64,
    may_write: impl FnOnce() -> ReadStep<bool>,
) -> ReadStep<Update> {
    let set = settable(seen.kind, set);
    check_set(user, seen, &set, may_write)?;
    check_values(&set, file_len_max)?;
    let changes_data = set.size.is_some() && !user.is_root();
    let changes_owner = (set.uid.is_some() || set.gid.is_some()) && seen.kind != ObjectKind::Directory;
    let mode = match set.mode {
        // After what ends privileges: a mode that was asked for counts.
        Some(mode) => Some(mode_of(user, set.gid.unwrap_or(seen.gid), mode)),
        None if changes_data || changes_owner => without_privileges(seen.mode),
        None => None,
    };
    Ok(Update { mode, ..set })
}

/// A mode that `user` asks for, for an object of the group `gid`: no outsider makes programs that run as the group.
fn mode_of(user: &UserIdentity, gid: u32, mode: u32) -> u32 {
    let is_outsider = !user.is_root() && !user.in_group(gid);
    mode & MODE_MASK & if is_outsider { !SET_GID } else { !0 }
}

fn check_set(
    user: &UserIdentity,
    seen: &ObjectStat,
    set: &Update,
    may_write: impl FnOnce() -> ReadStep<bool>,
) -> ReadStep<()> {
    check_ids(set)?;
    let is_root = user.is_root();
    let owns = is_root || user.uid == seen.uid;
    let times = [set.atime, set.mtime];
    // Only the superuser gives objects away (`chown_restricted`).
    let takes_owner = !set.uid.is_none_or(|new| is_root || owns && new == seen.uid);
    let takes_group = !set.gid.is_none_or(|new| is_root || owns && (new == seen.gid || user.in_group(new)));
    if set.mode.is_some() && !owns || takes_owner || takes_group {
        return Err(FsError::NotPermitted.into());
    }
    if set.size.is_some() {
        check_is_file(seen.kind)?;
    }
    let needs_write = set.size.is_some() || times.contains(&TimeUpdate::Now);
    if needs_write && !owns && !may_write()? {
        return Err(FsError::AccessDenied.into());
    }
    if !owns && times.iter().any(|time| matches!(time, TimeUpdate::To(_))) {
        return Err(FsError::NotPermitted.into());
    }
    Ok(())
}

/// Fails if `set` says what nothing can be set to, in a store whose largest file has `file_len_max` octets.
fn check_values(set: &Update, file_len_max: u64) -> Result<(), FsError> {
    if set.size.is_some_and(|size| size > file_len_max) {
        return Err(FsError::TooLarge);
    }
    for time in [set.atime, set.mtime] {
        if matches!(time, TimeUpdate::To(time) if time.nanoseconds >= NANOSECONDS) {
            return Err(FsError::Invalid);
        }
    }
    Ok(())
}

/// Fails if an object would be given to a user or a group that is none.
fn check_ids(set: &Update) -> Result<(), FsError> {
    if set.uid == Some(INVALID_ID) || set.gid == Some(INVALID_ID) { Err(FsError::Invalid) } else { Ok(()) }
}

/// What a new object of `user` in the directory `above` is. Like most servers: of the owner and group asked for, what the user
/// could not set is left out. `gives_away`: the store can make objects of other users and groups than its own.
pub fn new_attributes(
    user: &UserIdentity,
    above: &ObjectStat,
    kind: ObjectKind,
    set: &Update,
    file_len_max: u64,
    gives_away: bool,
) -> Result<NewAttributes, FsError> {
    let is_directory = kind == ObjectKind::Directory;
    let set = Update { size: set.size.filter(|_| kind == ObjectKind::Regular), ..settable(kind, set) };
    check_values(&set, file_len_max)?;
    if user.is_root() {
        check_ids(&set)?;
    }
    let inherits = above.mode & SET_GID != 0;
    let uid = set.uid.filter(|_| user.is_root()).unwrap_or(user.uid);
    let may_belong = |gid: &u32| gives_away && (user.is_root() || user.in_group(*gid));
    let asked_gid = set.gid.filter(may_belong);
    let gid = asked_gid.unwrap_or(if inherits { above.gid } else { user.gid });
    let default_mode = match kind {
        ObjectKind::Directory => 0o755,
        ObjectKind::Symlink => 0o777,
        _ => 0o644,
    };
    let mut mode = mode_of(user, gid, set.mode.unwrap_or(default_mode));
    if is_directory && inherits {
        mode |= SET_GID;
    }
    let Update { size, atime, mtime, .. } = set;
    Ok(NewAttributes { uid, gid, has_asked_gid: set.gid.is_some(), mode, size, atime, mtime })
}

/// Fails unless `user` may set access control lists of an object; `has_default`: one that new objects inherit.
pub fn check_lists(user: &UserIdentity, seen: &ObjectStat, has_default: bool) -> Result<(), FsError> {
    if seen.kind == ObjectKind::Symlink {
        return Err(FsError::NotSupported);
    }
    if !user.is_root() && user.uid != seen.uid {
        return Err(FsError::NotPermitted);
    }
    if has_default && seen.kind != ObjectKind::Directory {
        return Err(FsError::AccessDenied);
    }
    Ok(())
}

/// The mode of an object whose access list becomes `acl`.
#[must_use]
pub fn mode_with_list(user: &UserIdentity, seen: &ObjectStat, acl: &Acl) -> u32 {
    mode_of(user, seen.gid, seen.mode & !PERMISSIONS | acl.mode_bits())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::{AclEntry, kind};
    use crate::store::Blocked;
    use crate::types::{ObjectId, Timestamp};

    const OWNER: u32 = 10;
    const OWNING_GROUP: u32 = 20;

    fn seen(kind: ObjectKind, mode: u32) -> ObjectStat {
        let object = ObjectId { fileid: 1, generation: 1 };
        ObjectStat { uid: OWNER, gid: OWNING_GROUP, size: 100, ..ObjectStat::new(object, kind, mode) }
    }

    /// The superuser, the owner, a member of the group, and another.
    fn users() -> [UserIdentity; 4] {
        [
            UserIdentity::ROOT,
            UserIdentity::new(OWNER, 99, []),
            UserIdentity::new(11, 99, [7, OWNING_GROUP]),
            UserIdentity::new(11, 99, [7]),
        ]
    }

    const NONE: Update = Update {
        mode: None,
        uid: None,
        gid: None,
        size: None,
        atime: TimeUpdate::Keep,
        mtime: TimeUpdate::Keep,
    };
    const YES: Option<FsError> = None;
    const PERMIT: Option<FsError> = Some(FsError::NotPermitted);
    const DENY: Option<FsError> = Some(FsError::AccessDenied);
    const INVALID: Option<FsError> = Some(FsError::Invalid);

    fn set(user: &UserIdentity, object: &ObjectStat, set: &Update) -> Result<Update, FsError> {
        let may_write = || Ok(user.may(&object.guarded(), permission::WRITE));
        update(user, object, set, 1 << 40, may_write).map_err(|blocked| match blocked {
            Blocked::Fails(error) => error,
            Blocked::Waits(_) => panic!("nothing waits here"),
        })
    }

    /// Who may set what on a file of mode 664: root, its owner, a member of its group, another.
    #[test]
    fn who_may_set_what() {
        let time = TimeUpdate::To(Timestamp { seconds: 5, nanoseconds: 0 });
        let bad_time = TimeUpdate::To(Timestamp { seconds: 5, nanoseconds: NANOSECONDS });
        let too_large = Some(FsError::TooLarge);
        for (what, wanted, expected) in [
            ("nothing", NONE, [YES; 4]),
            ("mode", Update { mode: Some(0o600), ..NONE }, [YES, YES, PERMIT, PERMIT]),
            ("the same owner", Update { uid: Some(OWNER), ..NONE }, [YES, YES, PERMIT, PERMIT]),
            ("another owner", Update { uid: Some(11), ..NONE }, [YES, PERMIT, PERMIT, PERMIT]),
            ("the same group", Update { gid: Some(OWNING_GROUP), ..NONE }, [YES, YES, PERMIT, PERMIT]),
            ("the owner's group", Update { gid: Some(99), ..NONE }, [YES, YES, PERMIT, PERMIT]),
            ("a foreign group", Update { gid: Some(21), ..NONE }, [YES, PERMIT, PERMIT, PERMIT]),
            ("no user", Update { uid: Some(INVALID_ID), ..NONE }, [INVALID; 4]),
            ("no group", Update { gid: Some(INVALID_ID), ..NONE }, [INVALID; 4]),
            ("size", Update { size: Some(0), ..NONE }, [YES, YES, YES, DENY]),
            (
                "a size too large",
                Update { size: Some(1 << 41), ..NONE },
                [too_large, too_large, too_large, DENY],
            ),
            ("now", Update { mtime: TimeUpdate::Now, ..NONE }, [YES, YES, YES, DENY]),
            ("a time", Update { atime: time, ..NONE }, [YES, YES, PERMIT, PERMIT]),
            ("an impossible time", Update { atime: bad_time, ..NONE }, [INVALID, INVALID, PERMIT, PERMIT]),
            // What the user may not do is judged before what nothing can be set to.
            (
                "a size too large, and an impossible time",
                Update { size: Some(1 << 41), mtime: bad_time, ..NONE },
                [too_large, too_large, PERMIT, DENY],
            ),
        ] {
            let file = seen(ObjectKind::Regular, 0o664);
            let found = users().map(|user| set(&user, &file, &wanted).err());
            assert_eq!(found, expected, "{what}");
        }
        // Its owner may cut a file that it may not write, as it may go on writing what it has open.
        let closed = seen(ObjectKind::Regular, 0);
        assert!(set(&users()[1], &closed, &Update { size: Some(0), ..NONE }).is_ok());
    }

    #[test]
    fn only_files_have_a_size_and_links_no_mode() {
        let size = Update { size: Some(0), ..NONE };
        for (kind, expected) in [
            (ObjectKind::Regular, None),
            (ObjectKind::Directory, Some(FsError::IsDirectory)),
            (ObjectKind::Symlink, INVALID),
            (ObjectKind::Fifo, INVALID),
        ] {
            assert_eq!(set(&UserIdentity::ROOT, &seen(kind, 0o777), &size).err(), expected, "{kind:?}");
        }
        let mode = Update { mode: Some(0), ..NONE };
        assert_eq!(set(&users()[3], &seen(ObjectKind::Symlink, 0o777), &mode), Ok(NONE));
    }

    /// What is left of mode 6775 and of 6765 (set-gid without group execute means something else).
    #[test]
    fn what_ends_set_id_bits() {
        let [root, owner, ..] = users();
        let member = UserIdentity::new(OWNER, OWNING_GROUP, []);
        let all = Update { mode: Some(0o7777), ..NONE };
        for (what, user, wanted, expected) in [
            ("a new size", owner, Update { size: Some(0), ..NONE }, [Some(0o775), Some(0o2765)]),
            ("a new size by root", root, Update { size: Some(0), ..NONE }, [None, None]),
            ("the same owner", owner, Update { uid: Some(OWNER), ..NONE }, [Some(0o775), Some(0o2765)]),
            ("a time", owner, Update { mtime: TimeUpdate::Now, ..NONE }, [None, None]),
            ("a mode, of an outsider to the group", owner, all, [Some(0o5777); 2]),
            ("a mode, of a member", member, all, [Some(0o7777); 2]),
            (
                "an owner and a mode",
                root,
                Update { uid: Some(11), mode: Some(0o6755), ..NONE },
                [Some(0o6755); 2],
            ),
        ] {
            let found = [0o6775, 0o6765].map(|mode| {
                set(&user, &seen(ObjectKind::Regular, mode), &wanted).expect("it is permitted").mode
            });
            assert_eq!(found, expected, "{what}");
        }
        let directory = seen(ObjectKind::Directory, 0o6775);
        assert_eq!(set(&root, &directory, &Update { uid: Some(11), ..NONE }).unwrap().mode, None);
        assert_eq!(mode_after_write(&root, 0o6775), None);
        assert_eq!(mode_after_write(&owner, 0o6775), Some(0o775));
        assert_eq!(mode_after_write(&owner, 0o755), None);
    }

    #[test]
    fn what_a_new_object_is() {
        let [root, owner, member, _] = users();
        let plain = seen(ObjectKind::Directory, 0o755);
        let inheriting = seen(ObjectKind::Directory, 0o2755);
        let asked = |uid, gid, mode| Update { uid, gid, mode, ..NONE };
        let (file, directory, link) = (ObjectKind::Regular, ObjectKind::Directory, ObjectKind::Symlink);
        for (what, user, above, kind, wanted, expected) in [
            ("a file", owner, plain, file, NONE, (OWNER, 99, 0o644)),
            ("a directory", owner, plain, directory, NONE, (OWNER, 99, 0o755)),
            ("a link", owner, plain, link, asked(None, None, Some(0)), (OWNER, 99, 0o777)),
            ("a file that inherits", owner, inheriting, file, NONE, (OWNER, OWNING_GROUP, 0o644)),
            ("a directory that inherits", owner, inheriting, directory, NONE, (OWNER, OWNING_GROUP, 0o2755)),
            ("root gives away", root, plain, file, asked(Some(3), Some(4), None), (3, 4, 0o644)),
            ("others do not", member, plain, file, asked(Some(3), Some(4), None), (11, 99, 0o644)),
            (
                "a group of one's own",
                member,
                plain,
                file,
                asked(None, Some(OWNING_GROUP), None),
                (11, OWNING_GROUP, 0o644),
            ),
            ("set-gid, of a member", member, plain, file, asked(None, None, Some(0o2755)), (11, 99, 0o2755)),
            (
                "set-gid, of an outsider",
                owner,
                inheriting,
                file,
                asked(None, None, Some(0o2755)),
                (OWNER, OWNING_GROUP, 0o755),
            ),
        ] {
            let made = new_attributes(&user, &above, kind, &wanted, 1 << 40, true).unwrap();
            assert_eq!((made.uid, made.gid, made.mode), expected, "{what}");
        }
        // A store that can give nothing away.
        let made =
            new_attributes(&member, &plain, file, &asked(None, Some(OWNING_GROUP), None), 1 << 40, false)
                .unwrap();
        assert_eq!((made.gid, made.has_asked_gid), (99, true));
        let of_none = asked(None, Some(INVALID_ID), None);
        assert_eq!(new_attributes(&root, &plain, file, &of_none, 9, true).err(), INVALID);
        let large = Update { size: Some(10), ..NONE };
        assert_eq!(new_attributes(&root, &plain, file, &large, 9, true).err(), Some(FsError::TooLarge));
        assert_eq!(new_attributes(&root, &plain, directory, &large, 9, true).unwrap().size, None);
    }

    #[test]
    fn a_sticky_directory_keeps_what_is_others() {
        let mut object = seen(ObjectKind::Regular, 0o666);
        object.uid = 5;
        let of_object = UserIdentity::new(5, 5, []);
        let [root, of_directory, member, other] = users();
        for (mode, expected) in [(0o1777, [YES, YES, YES, DENY, DENY]), (0o777, [YES; 5])] {
            let above = seen(ObjectKind::Directory, mode);
            let found = [root, of_directory, of_object, member, other]
                .map(|user| check_sticky(&user, &above, &object).err());
            assert_eq!(found, expected, "{mode:o}");
        }
    }

    /// Root, the owner, a member, another: who reads and who writes a file of each mode.
    #[test]
    fn who_reads_and_writes() {
        for (mode, reads, writes) in [
            (0o000, [true, true, false, false], [true, true, false, false]),
            (0o040, [true, true, true, false], [true, true, false, false]),
            (0o010, [true, true, true, false], [true, true, false, false]),
            (0o022, [true, true, false, false], [true, true, true, true]),
            (0o004, [true, true, false, true], [true, true, false, false]),
        ] {
            let file = seen(ObjectKind::Regular, mode).guarded();
            let found = users().map(|user| admit_read(&user, &file, || None).is_ok());
            assert_eq!(found, reads, "{mode:o} read");
            let found = users().map(|user| admit_write(&user, &file, || None).is_ok());
            assert_eq!(found, writes, "{mode:o} written");
        }
    }

    #[test]
    fn times_keep_the_verifier_of_an_exclusive_create() {
        let verifier = *b"\xff23456\xfe8";
        let [atime, mtime] = verifier_times(verifier);
        let mut file = seen(ObjectKind::Regular, 0o644);
        (file.size, file.atime, file.mtime) = (0, atime, mtime);
        assert!(has_verifier_times(&file, verifier));
        assert!(!has_verifier_times(&file, *b"12345678"));
        assert!(!has_verifier_times(&ObjectStat { size: 1, ..file }, verifier), "it was written");
        assert!(!has_verifier_times(&ObjectStat { mtime: Timestamp::default(), ..file }, verifier));
    }

    /// The kernel's rules (`acl_permission_check`): a list counts for users other than the owner and the superuser, and only
    /// while its mask, which the mode shows, permits something.
    #[test]
    fn a_list_counts_where_the_kernel_reads_it() {
        let named = |mask| {
            let entry = |kind, id, permissions| AclEntry { kind, id, permissions };
            let entries = [
                entry(kind::OWNER, 0, 6),
                entry(kind::USER, 11, 0),
                entry(kind::USER, 12, 7),
                entry(kind::OWNING_GROUP, 0, 4),
                entry(kind::MASK, 0, mask),
                entry(kind::OTHER, 0, 4),
            ];
            Acl::from_entries(entries.into_iter()).unwrap()
        };
        let [root, owner, member, _] = users();
        let (granted, other) = (UserIdentity::new(12, 99, []), UserIdentity::new(13, 99, []));
        for (mask, expected) in [
            // User 11 is named, with nothing; as a member of the group it could read.
            (6, [true, true, false, true, true]),
            // An empty mask: by the mode alone, whose middle is the group's.
            (0, [true, true, false, true, true]),
        ] {
            let acl = named(mask);
            let file = seen(ObjectKind::Regular, 0o600 | acl.mode_bits() & 0o077).guarded();
            let found = [root, owner, member, granted, other]
                .map(|user| allows(&user, &file, Some(&acl), permission::READ));
            assert_eq!(found, expected, "{mask}");
        }
        let file = seen(ObjectKind::Regular, 0o604).guarded();
        assert!(!allows(&granted, &file, Some(&named(0)), permission::WRITE));
        assert!(allows(
            &granted,
            &seen(ObjectKind::Regular, 0o664).guarded(),
            Some(&named(6)),
            permission::WRITE
        ));
    }
}
