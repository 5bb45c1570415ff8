//! POSIX access control lists (POSIX 1003.1e draft 17): who may do what, beyond the nine bits of a mode.
//!
//! ```text
//! mode   rwx r-x r--        owner: rwx    owning group: r-x                  other: r--
//! list   rwx rw- r--        owner: rwx    owning group: r-x    mask: rw-     other: r--    user 7: rw-    group 9: r-x
//!         │   └── the mask: the most that anybody but the owner and others gets
//! ```
//!
//! A list and the mode of its object say the same where both speak: [`Acl::mode_bits`] and [`Acl::set_mode_bits`]
//! keep them in step. A list without named entries and without a mask is *minimal*: the mode says it all.

use crate::identity::{INVALID_ID, UserIdentity};

/// The most entries of a list.
pub const ENTRIES_MAX: usize = 1024;

/// What an entry is about, as in Linux's and NFSACL's numbers.
pub mod kind {
    /// The owner.
    pub const OWNER: u32 = 0x01;
    /// A user who is named.
    pub const USER: u32 = 0x02;
    /// The owning group.
    pub const OWNING_GROUP: u32 = 0x04;
    /// A group that is named.
    pub const GROUP: u32 = 0x08;
    /// The most that named users and all groups get.
    pub const MASK: u32 = 0x10;
    /// All others.
    pub const OTHER: u32 = 0x20;
    /// Flag: of the list that new objects in a directory inherit.
    pub const DEFAULT: u32 = 0x1000;
}

/// An entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// What it is about ([`kind`]).
    pub kind: u32,
    /// The user or group, if it names one.
    pub id: u32,
    /// Read 4, write 2, execute 1.
    pub permissions: u32,
}

/// A user or group that a list names, and what it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Named {
    /// The user or group.
    pub id: u32,
    /// Read 4, write 2, execute 1.
    pub permissions: u32,
}

/// An access control list that makes sense: every entry that must be there is, and none is there twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    owner: u32,
    owning_group: u32,
    mask: Option<u32>,
    other: u32,
    /// In the order of their ids.
    users: Box<[Named]>,
    /// In the order of their ids.
    groups: Box<[Named]>,
}

/// Entries do not make a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the entries do not make an access control list")]
pub struct InvalidAcl;

const ALL: u32 = 7;

impl Acl {
    /// The minimal list of a mode.
    #[must_use]
    pub fn from_mode(mode: u32) -> Acl {
        Acl {
            owner: mode >> 6 & ALL,
            owning_group: mode >> 3 & ALL,
            mask: None,
            other: mode & ALL,
            users: Box::default(),
            groups: Box::default(),
        }
    }

    /// Makes a list of entries in any order. [`kind::DEFAULT`] is ignored.
    ///
    /// A list of four entries whose mask says what the owning group's entry says is minimal: on the wire no list
    /// is shorter than that.
    pub fn from_entries(entries: impl ExactSizeIterator<Item = AclEntry>) -> Result<Acl, InvalidAcl> {
        let count = entries.len();
        if count > ENTRIES_MAX {
            return Err(InvalidAcl);
        }
        let (mut owner, mut owning_group, mut mask, mut other) = (None, None, None, None);
        let (mut users, mut groups) = (Vec::new(), Vec::new());
        for AclEntry { kind, id, permissions } in entries {
            if permissions > ALL {
                return Err(InvalidAcl);
            }
            let single = match kind & !kind::DEFAULT {
                kind::OWNER => &mut owner,
                kind::OWNING_GROUP => &mut owning_group,
                kind::MASK => &mut mask,
                kind::OTHER => &mut other,
                // A name of no user or group.
                kind::USER | kind::GROUP if id == INVALID_ID => return Err(InvalidAcl),
                kind::USER => {
                    users.push(Named { id, permissions });
                    continue;
                }
                kind::GROUP => {
                    groups.push(Named { id, permissions });
                    continue;
                }
                _ => return Err(InvalidAcl),
            };
            if single.replace(permissions).is_some() {
                return Err(InvalidAcl);
            }
        }
        let (Some(owner), Some(owning_group), Some(other)) = (owner, owning_group, other) else {
            return Err(InvalidAcl);
        };
        for named in [&mut users, &mut groups] {
            named.sort_unstable();
            if named.windows(2).any(|pair| pair[0].id == pair[1].id) {
                return Err(InvalidAcl);
            }
        }
        let names_nobody = users.is_empty() && groups.is_empty();
        if !names_nobody && mask.is_none() {
            return Err(InvalidAcl);
        }
        if names_nobody && mask == Some(owning_group) {
            mask = None;
        }
        Ok(Acl { owner, owning_group, mask, other, users: users.into(), groups: groups.into() })
    }

    /// The entries in the order of the wire, for an object of this owner and group. There are always at least
    /// four: a minimal list shows a mask.
    #[must_use]
    pub fn entries(&self, uid: u32, gid: u32, flag: u32) -> Vec<AclEntry> {
        let entry = |kind, id, permissions| AclEntry { kind: kind | flag, id, permissions };
        let mut entries = Vec::with_capacity(4 + self.len());
        entries.push(entry(kind::OWNER, uid, self.owner));
        entries.extend(self.users.iter().map(|user| entry(kind::USER, user.id, user.permissions)));
        entries.push(entry(kind::OWNING_GROUP, gid, self.owning_group));
        entries.extend(self.groups.iter().map(|group| entry(kind::GROUP, group.id, group.permissions)));
        entries.push(entry(kind::MASK, 0, self.mask.unwrap_or(self.owning_group)));
        entries.push(entry(kind::OTHER, 0, self.other));
        entries
    }

    /// How many users and groups it names: what it takes to keep it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.users.len() + self.groups.len()
    }

    /// Whether it has no named entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a mode says all that it says.
    #[must_use]
    pub fn is_minimal(&self) -> bool {
        self.is_empty() && self.mask.is_none()
    }

    /// The nine bits of a mode that say what it says, as far as they can: the middle ones are the mask's.
    #[must_use]
    pub fn mode_bits(&self) -> u32 {
        self.owner << 6 | self.mask.unwrap_or(self.owning_group) << 3 | self.other
    }

    /// Takes over the nine bits of a mode.
    pub fn set_mode_bits(&mut self, mode: u32) {
        self.owner = mode >> 6 & ALL;
        *self.mask.as_mut().unwrap_or(&mut self.owning_group) = mode >> 3 & ALL;
        self.other = mode & ALL;
    }

    /// The access list of a new object in a directory with this default list, made with `mode`: an entry permits
    /// only what both permit.
    #[must_use]
    pub fn inherited(&self, mode: u32) -> Acl {
        let mut acl = self.clone();
        acl.set_mode_bits(self.mode_bits() & mode);
        acl
    }

    /// Whether `caller`, who is not the superuser, may do all of `wanted` to an object of this owner and group.
    #[must_use]
    pub fn permits(&self, caller: &UserIdentity, uid: u32, gid: u32, wanted: u32) -> bool {
        if caller.uid == uid {
            return self.owner & wanted == wanted;
        }
        let mask = self.mask.unwrap_or(ALL);
        if let Ok(at) = self.users.binary_search_by_key(&caller.uid, |user| user.id) {
            return self.users[at].permissions & mask & wanted == wanted;
        }
        // Any one of the groups that the caller is in may say yes; if all say no, others' permissions do not help.
        let mut is_member = false;
        let own = caller.in_group(gid).then_some(self.owning_group);
        let named =
            self.groups.iter().filter(|group| caller.in_group(group.id)).map(|group| group.permissions);
        for permissions in own.into_iter().chain(named) {
            is_member = true;
            if permissions & mask & wanted == wanted {
                return true;
            }
        }
        !is_member && self.other & wanted == wanted
    }
}

/// Which lists of an object to set, and to what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetLists {
    /// The access list; `Some(None)` takes it away, and the mode remains.
    pub access: Option<Option<Acl>>,
    /// The default list, which only directories have; `Some(None)` takes it away.
    pub default: Option<Option<Acl>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u32, u32, u32)]) -> Result<Acl, InvalidAcl> {
        Acl::from_entries(entries.iter().map(|&(kind, id, permissions)| AclEntry { kind, id, permissions }))
    }

    const BASE: [(u32, u32, u32); 3] = [(kind::OWNER, 0, 6), (kind::OWNING_GROUP, 0, 4), (kind::OTHER, 0, 4)];

    fn with(more: &[(u32, u32, u32)]) -> Result<Acl, InvalidAcl> {
        acl(&[&BASE[..], more].concat())
    }

    #[test]
    fn entries_make_a_list_or_not() {
        assert_eq!(acl(&BASE), Ok(Acl::from_mode(0o644)));
        // What Linux shows for a mode.
        let shown = Acl::from_mode(0o644).entries(1, 2, 0);
        assert_eq!(shown.len(), 4);
        assert_eq!(Acl::from_entries(shown.into_iter()), Ok(Acl::from_mode(0o644)));

        let named = with(&[(kind::USER, 9, 7), (kind::USER, 7, 6), (kind::MASK, 0, 6)]).unwrap();
        assert_eq!((named.len(), named.is_minimal(), named.mode_bits()), (2, false, 0o664));
        let kinds: Vec<_> =
            named.entries(5, 6, kind::DEFAULT).iter().map(|e| (e.kind & 0xff, e.id)).collect();
        assert_eq!(kinds, [(1, 5), (2, 7), (2, 9), (4, 6), (16, 0), (32, 0)]);
        assert_eq!(Acl::from_entries(named.entries(5, 6, kind::DEFAULT).into_iter()), Ok(named));

        for (what, list) in [
            ("no owner", acl(&BASE[1..])),
            ("no other", acl(&BASE[..2])),
            ("nothing", acl(&[])),
            ("two owners", with(&[(kind::OWNER, 0, 6)])),
            ("a name without a mask", with(&[(kind::USER, 7, 6)])),
            ("a name twice", with(&[(kind::GROUP, 7, 6), (kind::GROUP, 7, 4), (kind::MASK, 0, 7)])),
            ("two masks", with(&[(kind::MASK, 0, 7), (kind::MASK, 0, 6)])),
            ("a permission that there is not", with(&[(kind::MASK, 0, 8)])),
            ("a kind that there is not", with(&[(0x40, 0, 4)])),
            ("a user that is none", with(&[(kind::USER, u32::MAX, 6), (kind::MASK, 0, 6)])),
            ("a group that is none", with(&[(kind::GROUP, u32::MAX, 6), (kind::MASK, 0, 6)])),
            (
                "a default for a user that is none",
                with(&[(kind::DEFAULT | kind::USER, u32::MAX, 6), (kind::MASK, 0, 6)]),
            ),
        ] {
            assert_eq!(list, Err(InvalidAcl), "{what}");
        }
        let many: Vec<_> = (0..ENTRIES_MAX as u32).map(|id| (kind::USER, id, 4)).collect();
        assert_eq!(acl(&many), Err(InvalidAcl));
    }

    #[test]
    fn the_first_class_that_fits_decides() {
        let list =
            with(&[(kind::USER, 7, 6), (kind::GROUP, 30, 2), (kind::GROUP, 31, 1), (kind::MASK, 0, 6)])
                .unwrap();
        let may = |uid, gids: &[u32], wanted| {
            list.permits(&UserIdentity::new(uid, 99, gids.iter().copied()), 1, 20, wanted)
        };
        // The owner has its own entry, which no mask limits.
        assert!(may(1, &[], 6) && !may(1, &[30], 1));
        // A user that is named.
        assert!(may(7, &[20, 31], 6) && !may(7, &[], 1));
        // A member of one or more groups: one of them has to allow all that is wanted.
        assert!(may(8, &[20], 4) && !may(8, &[20], 2));
        assert!(may(8, &[30], 2) && may(8, &[20, 30], 2) && !may(8, &[20, 30], 6));
        assert!(!may(8, &[31], 1), "the mask");
        assert!(!may(8, &[31], 4), "others' permissions are not for members");
        assert!(may(8, &[], 4) && !may(8, &[], 2));
    }

    #[test]
    fn list_and_mode_keep_in_step() {
        let mut list = with(&[(kind::USER, 7, 7), (kind::MASK, 0, 7)]).unwrap();
        assert_eq!(list.mode_bits(), 0o674);
        list.set_mode_bits(0o640);
        assert_eq!(list.mode_bits(), 0o640);
        assert!(!list.permits(&UserIdentity::new(7, 99, []), 1, 20, 2), "chmod lowered the mask");
        assert!(list.permits(&UserIdentity::new(8, 20, []), 1, 20, 4), "the owning group's entry stays");
        let mut minimal = Acl::from_mode(0o777);
        minimal.set_mode_bits(0o124);
        assert_eq!(minimal, Acl::from_mode(0o124));
    }

    #[test]
    fn new_objects_get_no_more_than_the_list_and_their_mode_say() {
        let default = with(&[(kind::USER, 7, 7), (kind::MASK, 0, 7)]).unwrap();
        assert_eq!(default.inherited(0o600).mode_bits(), 0o600);
        assert_eq!(default.inherited(0o777).mode_bits(), 0o674);
        assert_eq!(default.inherited(0o666).entries(0, 0, 0).len(), 5);
    }
}
