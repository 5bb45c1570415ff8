//! Steps that change something, as far as they are system calls: made by the reactor, or by a helper as one job.
//!
//! The objects are open already. [`Outcome`] says what the store has to note afterwards.

use std::ops::Range;
use std::os::fd::AsFd;

use arrayvec::ArrayVec;
use rustix::fs::{
    AtFlags, FallocateFlags, RenameFlags, fallocate, ftruncate, renameat, renameat_with, unlinkat,
};
use rustix::io::Errno;
use stag_disk::ClosingBin;
use stag_disk::system::{self};
use stag_vfs::{Acl, FsError, ObjectId, ObjectKind, ObjectStat, SetLists, SpaceChange, Update, UserIdentity};

use super::acl::{AclKind, acl_status, read_acl, write_acl};
use super::actor::{Actor, MadeObject, SyncTarget};
use super::making::{Make, change_owner, set_times};
use super::object::{self, Stat, link_open, name_status, status};
use super::opened::File;

/// A change to make.
pub(super) enum Change {
    Make(Make),
    Remove(Remove),
    Rename(Rename),
    Link(Link),
    Update(Set),
    Space(ChangeSpace),
    Lists(ChangeLists),
}

/// What came of a change.
pub(super) struct Outcome {
    pub(super) result: Result<Option<MadeObject>, FsError>,
    /// What has to be on stable storage now.
    pub(super) targets: ArrayVec<(ObjectId, File), 2>,
    /// What objects are after it, as far as that was asked for.
    pub(super) after: Vec<(ObjectId, Option<Stat>)>,
}

/// To remove a name.
pub(super) struct Remove {
    pub(super) user: UserIdentity,
    pub(super) above: File,
    pub(super) name: Box<[u8]>,
    pub(super) is_directory: bool,
    pub(super) target: SyncTarget,
}

/// To rename.
pub(super) struct Rename {
    pub(super) user: UserIdentity,
    pub(super) from: (File, Box<[u8]>),
    pub(super) to: (File, Box<[u8]>),
    /// Whether the new name must be free.
    pub(super) is_free: bool,
    pub(super) targets: [SyncTarget; 2],
}

/// To give an object one more name.
pub(super) struct Link {
    pub(super) object: File,
    pub(super) above: File,
    pub(super) name: Box<[u8]>,
    pub(super) targets: [SyncTarget; 2],
}

/// To set attributes.
pub(super) struct Set {
    pub(super) seen: ObjectStat,
    pub(super) set: Update,
    pub(super) look: File,
    /// To cut it, if the size is set.
    pub(super) file: Option<File>,
    pub(super) target: SyncTarget,
}

/// To reserve or give up space of a file.
pub(super) struct ChangeSpace {
    pub(super) user: UserIdentity,
    pub(super) file: File,
    pub(super) octets: Range<u64>,
    pub(super) change: SpaceChange,
    pub(super) target: SyncTarget,
}

/// To set access control lists.
pub(super) struct ChangeLists {
    pub(super) user: UserIdentity,
    pub(super) set: SetLists,
    pub(super) file: File,
    pub(super) target: SyncTarget,
}

type Targets = ArrayVec<(ObjectId, File), 2>;

impl Change {
    /// Makes it. `looks`: what of it to look at afterwards, by whom that cannot be done at once.
    pub(super) fn run(self, actor: &Actor, bin: Option<&ClosingBin>, looks: &[(ObjectId, File)]) -> Outcome {
        let mut targets = Targets::new();
        let result = match self {
            Change::Make(make) => make.run(actor, bin, &mut targets).map(Some),
            Change::Remove(remove) => remove.run(actor, &mut targets).map(|()| None),
            Change::Rename(rename) => rename.run(actor, &mut targets).map(|()| None),
            Change::Link(link) => link.run(&mut targets).map(|()| None),
            Change::Update(set) => set.run(&mut targets).map(|()| None),
            Change::Space(space) => space.run(actor, &mut targets).map(|()| None),
            Change::Lists(lists) => lists.run(actor, &mut targets).map(|()| None),
        };
        let after = looks.iter().map(|(id, file)| (*id, object::stat(&**file).ok())).collect();
        Outcome { result, targets, after }
    }
}

/// The status of an error when a directory is removed or replaced.
fn directory_status(error: Errno) -> FsError {
    match error {
        // What some file systems say of a directory that is not empty.
        Errno::EXIST => FsError::NotEmpty,
        error => name_status(error),
    }
}

impl Remove {
    /// Removes a name as the user: if it was exchanged since, for what the user may not remove, the kernel refuses.
    fn run(self, actor: &Actor, targets: &mut Targets) -> Result<(), FsError> {
        let (above, name) = (self.above.as_fd(), &*self.name);
        if self.is_directory {
            let removed = actor.act_as(&self.user, None, || unlinkat(above, name, AtFlags::REMOVEDIR));
            removed.map_err(directory_status)?;
        } else {
            actor
                .act_as(&self.user, None, || unlinkat(above, name, AtFlags::empty()))
                .map_err(name_status)?;
        }
        targets.extend(self.target);
        Ok(())
    }
}

impl Rename {
    fn run(self, actor: &Actor, targets: &mut Targets) -> Result<(), FsError> {
        let ((source, from), (target, to)) = (&self.from, &self.to);
        let (source, target) = (source.as_fd(), target.as_fd());
        let renamed = actor.act_as(&self.user, None, || {
            if self.is_free {
                renameat_with(source, &**from, target, &**to, RenameFlags::NOREPLACE)
            } else {
                renameat(source, &**from, target, &**to)
            }
        });
        let status = if self.is_free { name_status } else { directory_status };
        renamed.map_err(status)?;
        targets.extend(self.targets.into_iter().flatten());
        Ok(())
    }
}

impl Link {
    fn run(self, targets: &mut Targets) -> Result<(), FsError> {
        // By its descriptor, not by a name that may be another's by now.
        link_open(self.object.as_fd(), self.above.as_fd(), &self.name).map_err(status)?;
        targets.extend(self.targets.into_iter().flatten());
        Ok(())
    }
}

impl ChangeLists {
    /// Sets lists as the user. The default list comes first: it can be taken back without a trace in the mode.
    fn run(self, actor: &Actor, targets: &mut Targets) -> Result<(), FsError> {
        let ChangeLists { user, set, file, target } = self;
        // Even if only a part of it is done.
        targets.extend(target);
        let file = file.as_fd();
        let write = |kind, acl: Option<&Acl>| {
            actor.act_as(&user, None, || write_acl(file, kind, acl)).map_err(acl_status)
        };
        let mut before = None;
        if let Some(default) = &set.default {
            if set.access.is_some() {
                before = Some(read_acl(file, AclKind::Default).map_err(acl_status)?);
            }
            write(AclKind::Default, default.as_ref())?;
        }
        let Some(access) = &set.access else { return Ok(()) };
        write(AclKind::Access, access.as_ref()).inspect_err(|_| {
            if let Some(before) = before {
                // If that fails too, it cannot be reported.
                let _ = write(AclKind::Default, before.as_deref());
            }
        })
    }
}

impl Set {
    /// Sets attributes. What can be taken back is done first, so that what may fail with good reason (no space, too large) leaves
    /// nothing behind.
    fn run(self, targets: &mut Targets) -> Result<(), FsError> {
        let Set { seen, set, look, file, target } = self;
        // Even if only a part of it is done.
        targets.extend(target);
        let file = file.zip(set.size);

        let changes = |wanted: Option<u32>, is: u32| wanted.filter(|wanted| *wanted != is);
        let (uid, gid) = (changes(set.uid, seen.uid), changes(set.gid, seen.gid));
        let (changes_owner, mode) = (uid.is_some() || gid.is_some(), set.mode);
        if changes_owner {
            change_owner(look.as_fd(), uid, gid)?;
        }
        let rest = || {
            // After the owner, whose change ends privileges: a mode that was asked for counts.
            if let Some(mode) = mode {
                system::change_mode(look.as_fd(), mode).map_err(status)?;
            }
            if let Some((file, size)) = &file {
                ftruncate(&**file, *size).map_err(status)?;
            }
            // After the size, whose change sets a time.
            set_times(look.as_fd(), set.atime, set.mtime).map(drop)
        };
        rest().inspect_err(|_| {
            // If that fails too, it cannot be reported: the Reply shows the attributes as they are.
            if changes_owner {
                let _ = change_owner(look.as_fd(), uid.map(|_| seen.uid), gid.map(|_| seen.gid));
            }
            if (changes_owner || mode.is_some()) && seen.kind != ObjectKind::Symlink {
                let _ = system::change_mode(look.as_fd(), seen.mode);
            }
        })
    }
}

impl ChangeSpace {
    /// Changes the space as the user, whose limits count.
    fn run(self, actor: &Actor, targets: &mut Targets) -> Result<(), FsError> {
        // A failure may leave a part of it.
        targets.extend(self.target);
        let flags = match self.change {
            SpaceChange::Reserve => FallocateFlags::empty(),
            SpaceChange::Release => FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE),
        };
        let (file, Range { start, end }) = (&self.file, self.octets);
        actor.act_as(&self.user, None, || fallocate(&**file, flags, start, end - start)).map_err(status)
    }
}
