//! A stand-in for the disk in tests: operations complete one by one when the test says so, and any of them can fail. So
//! a test sees which operation waits for which.

use std::cell::RefCell;
use std::rc::Rc;

use rustix::fs::fstat;
use rustix::io::Errno;

use crate::blocking;
use crate::completion::{Data, DiskCompletion};
use crate::operations::{Means, Operations};
use crate::work::Work;

/// An operation, for who looks on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskStep {
    /// A read of the file with this number.
    Read(u64),
    /// A write.
    Write(u64),
    /// A sync.
    Sync(u64),
}

/// Does what was begun on a [`crate::Disk::stepped`], the oldest first.
pub struct Steps(Rc<RefCell<Operations>>);

impl Steps {
    pub(crate) fn of(shared: Rc<RefCell<Operations>>) -> Steps {
        Steps(shared)
    }

    /// What was begun and not done, the oldest first.
    #[must_use]
    pub fn waiting(&self) -> Vec<DiskStep> {
        let Means::Stepped(waiting) = &self.0.borrow().means else { return Vec::new() };
        waiting
            .iter()
            .map(|(_, work, file)| {
                let number = fstat(file).map_or(0, |found| found.st_ino);
                match work.data {
                    Data::None => DiskStep::Sync(number),
                    Data::Read(_) => DiskStep::Read(number),
                    Data::Write(_) => DiskStep::Write(number),
                }
            })
            .collect()
    }

    /// Does the oldest; or not, and it fails with `error`. `false`: there is none.
    pub fn step(&self, error: Option<Errno>) -> bool {
        let operations = &mut *self.0.borrow_mut();
        let Means::Stepped(waiting) = &mut operations.means else { return false };
        let Some((owner, work, file)) = waiting.pop_front() else { return false };
        let completion = match error {
            None => blocking::run(work, &file),
            Some(error) => {
                let Work { tag, mut data, .. } = work;
                data.cut(0);
                DiskCompletion { tag, result: Err(error), data }
            }
        };
        operations.complete(owner, completion);
        true
    }
}
