//! The caller of a Call: the user and groups of AUTH_SYS, after the export's squashing, and their
//! permissions.

/// Supplementary groups of a user, at most: what AUTH_SYS can name.
pub const GROUPS_MAX: usize = 16;

/// The user or group that is none: to the kernel it means "leave it as it is", so nothing may ever belong to it.
pub const INVALID_ID: u32 = u32::MAX;

/// A permission to test; the bits of one octal digit of a mode.
pub mod permission {
    /// Read.
    pub const READ: u32 = 4;
    /// Write.
    pub const WRITE: u32 = 2;
    /// Execute a file, search a directory.
    pub const EXECUTE: u32 = 1;
}

/// Accesses to ask for, each a bit: the numbers of NFS versions 3 and 4.
pub mod access {
    /// Read data, list a directory.
    pub const READ: u32 = 0x01;
    /// Look names up in a directory.
    pub const LOOKUP: u32 = 0x02;
    /// Change existing data or entries.
    pub const MODIFY: u32 = 0x04;
    /// Write beyond the end, add entries.
    pub const EXTEND: u32 = 0x08;
    /// Remove an entry.
    pub const DELETE: u32 = 0x10;
    /// Execute a file.
    pub const EXECUTE: u32 = 0x20;
}

/// The user and the groups that a procedure runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserIdentity {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    groups: [u32; GROUPS_MAX],
    group_count: usize,
}

impl UserIdentity {
    /// The superuser, whom no permission stops.
    pub const ROOT: UserIdentity = UserIdentity { uid: 0, gid: 0, groups: [0; GROUPS_MAX], group_count: 0 };

    /// A user with one group and supplementary ones, of which the first [`GROUPS_MAX`] count.
    #[must_use]
    pub fn new(uid: u32, gid: u32, supplementary: impl IntoIterator<Item = u32>) -> UserIdentity {
        let mut caller = UserIdentity { uid, gid, ..UserIdentity::ROOT };
        for (place, group) in caller.groups.iter_mut().zip(supplementary) {
            *place = group;
            caller.group_count += 1;
        }
        caller
    }

    /// A user with one group, and the supplementary ones that `fill` puts into the space; it returns how many.
    #[inline]
    #[must_use]
    pub fn with_groups(
        uid: u32,
        gid: u32,
        fill: impl FnOnce(&mut [u32; GROUPS_MAX]) -> usize,
    ) -> UserIdentity {
        let mut caller = UserIdentity { uid, gid, ..UserIdentity::ROOT };
        caller.group_count = fill(&mut caller.groups).min(GROUPS_MAX);
        caller
    }

    /// Replaces the user and the groups `id`, wherever they stand.
    #[inline]
    pub fn replace(&mut self, id: u32, uid: u32, gid: u32) {
        if self.uid == id {
            self.uid = uid;
        }
        if self.gid == id {
            self.gid = gid;
        }
        for group in &mut self.groups[..self.group_count] {
            if *group == id {
                *group = gid;
            }
        }
    }

    /// Whether it is the superuser.
    #[inline]
    #[must_use]
    pub const fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether it belongs to `gid`.
    #[inline]
    #[must_use]
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups[..self.group_count].contains(&gid)
    }

    /// Supplementary groups.
    #[inline]
    #[must_use]
    pub fn groups(&self) -> &[u32] {
        &self.groups[..self.group_count]
    }

    /// The same caller with the user and group 0 replaced, wherever they stand.
    #[must_use]
    pub fn squashed(mut self, anonymous_uid: u32, anonymous_gid: u32) -> UserIdentity {
        self.replace(0, anonymous_uid, anonymous_gid);
        self
    }

    /// Whether it has all of `wanted` ([`permission`]) on an object. The superuser may execute a file only if
    /// somebody may.
    #[inline]
    #[must_use]
    pub fn may(&self, object: &Guarded, wanted: u32) -> bool {
        if self.is_root() {
            let executable = object.is_directory || object.mode & 0o111 != 0;
            return executable || wanted & permission::EXECUTE == 0;
        }
        let digit = if self.uid == object.uid {
            object.mode >> 6
        } else if self.in_group(object.gid) {
            object.mode >> 3
        } else {
            object.mode
        };
        digit & wanted == wanted
    }

    /// Which of the accesses `wanted` ([`access`]) it has on an object.
    #[must_use]
    pub fn accesses(&self, object: &Guarded, wanted: u32) -> u32 {
        accesses(object.is_directory, wanted, |needed| self.may(object, needed))
    }
}

/// Which of the accesses `wanted` ([`access`]) somebody has on an object, when `may` tells the permissions.
#[must_use]
pub fn accesses(is_directory: bool, wanted: u32, may: impl Fn(u32) -> bool) -> u32 {
    use permission::{EXECUTE, READ, WRITE};
    const OF_DIRECTORY: &[(u32, u32)] = &[
        (access::READ, READ),
        (access::LOOKUP, EXECUTE),
        (access::MODIFY, WRITE | EXECUTE),
        (access::EXTEND, WRITE | EXECUTE),
        (access::DELETE, WRITE | EXECUTE),
    ];
    const OF_OTHERS: &[(u32, u32)] =
        &[(access::READ, READ), (access::MODIFY, WRITE), (access::EXTEND, WRITE), (access::EXECUTE, EXECUTE)];
    let known = if is_directory { OF_DIRECTORY } else { OF_OTHERS };
    let granted = known.iter().filter(|(_, needed)| may(*needed));
    granted.fold(0, |bits, (bit, _)| bits | bit) & wanted
}

/// What permissions depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guarded {
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Whether it is a directory.
    pub is_directory: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(mode: u32) -> Guarded {
        Guarded { mode, uid: 10, gid: 20, is_directory: false }
    }

    /// Each class has its own digit, and only its own: an owner without a bit is not helped by others'.
    #[test]
    fn the_class_decides_which_digit_counts() {
        let owner = UserIdentity::new(10, 99, []);
        let member = UserIdentity::new(11, 99, [7, 20]);
        let other = UserIdentity::new(11, 99, [7]);
        for (mode, expected) in [
            (0o400, [true, false, false]),
            (0o040, [false, true, false]),
            (0o004, [false, false, true]),
            (0o444, [true, true, true]),
        ] {
            let found = [owner, member, other].map(|caller| caller.may(&file(mode), permission::READ));
            assert_eq!(found, expected, "{mode:o}");
        }
        let member_by_gid = UserIdentity::new(11, 20, []);
        assert!(member_by_gid.may(&file(0o020), permission::WRITE));
    }

    #[test]
    fn root_may_all_but_execute_what_nobody_may() {
        let (read_write, execute) = (permission::READ | permission::WRITE, permission::EXECUTE);
        assert!(UserIdentity::ROOT.may(&file(0), read_write));
        assert!(!UserIdentity::ROOT.may(&file(0o666), execute));
        assert!(UserIdentity::ROOT.may(&file(0o001), execute));
        assert!(UserIdentity::ROOT.may(&Guarded { is_directory: true, ..file(0) }, execute));
    }

    #[test]
    fn squashing_replaces_every_zero() {
        let squashed = UserIdentity::new(0, 0, [0, 5]).squashed(65534, 65533);
        assert_eq!(squashed, UserIdentity::new(65534, 65533, [65533, 5]));
        assert_eq!(UserIdentity::new(1, 2, [3]).squashed(65534, 65533), UserIdentity::new(1, 2, [3]));
    }

    #[test]
    fn supplementary_groups_are_capped() {
        let caller = UserIdentity::new(1, 2, 100..200);
        assert!(caller.in_group(115) && !caller.in_group(116));
    }

    #[test]
    fn access_bits_follow_the_mode() {
        let all = 0x3f;
        let caller = UserIdentity::new(10, 0, []);
        assert_eq!(caller.accesses(&file(0o500), all), access::READ | access::EXECUTE);
        assert_eq!(caller.accesses(&file(0o200), all), access::MODIFY | access::EXTEND);
        let directory = |mode| Guarded { is_directory: true, ..file(mode) };
        assert_eq!(caller.accesses(&directory(0o500), all), access::READ | access::LOOKUP);
        assert_eq!(caller.accesses(&directory(0o200), all), 0);
        assert_eq!(
            caller.accesses(&directory(0o300), all),
            access::LOOKUP | access::MODIFY | access::EXTEND | access::DELETE
        );
        assert_eq!(caller.accesses(&directory(0o700), access::DELETE), access::DELETE);
    }
}
