//! A store of one directory with many names, which counts what is asked of it.

use std::cell::Cell;
use std::rc::Rc;

use stag_fabric::sim::FaultPlan;
use stag_memory::Shared;
use stag_nfs::server::LockingConfig;
use stag_nfs::state::Recovered;
use stag_vfs::{
    ChangeStep, EntryName, FsError, ListStart, Listed, ObjectId, ObjectKind, ObjectStat, ReadDone, ReadStep,
    Store, StoreProfile, Timestamp, UserIdentity,
};

use super::pair::Pair;

/// Names in the directory.
pub(crate) const NAMES: u64 = 400;

const ROOT: ObjectId = ObjectId { fileid: 1, generation: 1 };

/// What the store was asked for.
#[derive(Default)]
pub(crate) struct Asked {
    entries: Cell<u64>,
    /// Of entries, and of objects by themselves.
    attributes: Cell<u64>,
}

impl Asked {
    /// Counts from 0 again.
    pub(crate) fn forget(&self) {
        self.entries.set(0);
        self.attributes.set(0);
    }

    /// Asserts that each entry was read once for this number of Replies, and its attributes were looked at once or, if they were not
    /// wanted, never. Beside that a Reply takes a look at the directory, and the entry that does not fit any more.
    #[track_caller]
    pub(crate) fn assert_once(&self, attributes: bool, replies: u64) {
        let (entries, looked) = (self.entries.get(), self.attributes.get());
        let looked_max = if attributes { NAMES + 2 * replies } else { replies };
        let is_once = (NAMES..=NAMES + replies).contains(&entries) && looked <= looked_max;
        assert!(
            is_once,
            "{NAMES} names in {replies} Replies: {entries} entries read, {looked} attributes looked at"
        );
    }
}

fn add_one(count: &Cell<u64>) {
    count.set(count.get() + 1);
}

struct CountedNames(Rc<Asked>);

/// A server of such a store, and its counts.
pub(crate) fn pair() -> (Pair, Rc<Asked>) {
    let asked = Rc::new(Asked::default());
    let locking = (LockingConfig::default(), Recovered::nothing());
    let pair = Pair::of(&["/data,root_squash=no"], 1, FaultPlan::default(), locking, |_, _| {
        Box::new(CountedNames(asked.clone()))
    });
    (pair, asked)
}

pub(crate) fn name(number: u64) -> String {
    format!("a name of some length {number:03}")
}

/// The file with this number.
fn file(number: u64) -> ObjectStat {
    let object = ObjectId { fileid: 2 + number, generation: 1 };
    ObjectStat::new(object, ObjectKind::Regular, 0o644)
}

impl Store for CountedNames {
    fn profile(&self) -> StoreProfile {
        StoreProfile::new(1, ROOT)
    }

    fn stat(&self, object: ObjectId) -> ReadStep<ObjectStat> {
        add_one(&self.0.attributes);
        match object.fileid {
            1 => Ok(ObjectStat::new(ROOT, ObjectKind::Directory, 0o755)),
            number => Ok(file(number - 2)),
        }
    }

    fn entry(&self, _: EntryName<'_>) -> ReadStep<ObjectStat> {
        Err(FsError::NotFound.into())
    }

    fn list(
        &self,
        _: ObjectId,
        start: ListStart,
        _: Timestamp,
        visit: &mut dyn FnMut(Listed<'_>) -> bool,
    ) -> ReadStep<bool> {
        for number in start.cookie..NAMES {
            add_one(&self.0.entries);
            let seen = file(number);
            let attributes = start.attributes.then(|| {
                add_one(&self.0.attributes);
                seen
            });
            let name = name(number);
            let entry = Listed { object: seen.object, name: name.as_bytes(), cookie: number + 1, attributes };
            if !visit(entry) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn read(
        &mut self,
        _: &UserIdentity,
        _: ObjectId,
        _: u64,
        _: u32,
        _: &mut Vec<Shared>,
        _: Timestamp,
    ) -> ChangeStep<ReadDone> {
        Err(FsError::Io.into())
    }
}
