//! Locks on octets that others of the file system see: `F_OFD_SETLK` on one descriptor for each file, for all clients together.
//!
//! ```text
//! lock_octets ─▶ what is missing of it ─▶ F_OFD_SETLK each ─▶ held      another's is in the way: what was set goes back, F_OFD_GETLK
//! relax_locks ─▶ what is too much ─▶ F_OFD_SETLK each: shared, or unlocked
//! ```
//!
//! The kernel keeps such locks of a local file system in memory, so the reactor sets them. Other file systems may ask another
//! machine: there helpers do it, for each file one job after the other, in the order in which they were asked for. A descriptor
//! whose file has no lock any more is closed a moment later, so that a lock that is tried again and again does not open the file each
//! time. If the last locks of a file cannot be given back, it is closed at once, which ends them.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io::Errno;
use stag_disk::system::{DescriptionLock, find_lock, set_lock};
use stag_vfs::{FsError, ObjectId, OctetLock};

use super::index::NumberMap;
use super::object::status;
use super::opened::File;
use super::segments::{LockKind, LockPiece, Segments};

/// The most files that are locked at once.
const FILES_MAX: usize = 4096;

/// One part in this number of the descriptors that a store may keep is for locked files.
const DESCRIPTORS_SHARE: usize = 4;

/// How long the descriptor of a file without locks stays open.
const IDLE_LIFE: Duration = Duration::from_secs(3);

/// How often a lock is tried whose hindrance is gone when it is looked for.
const TRIES_MAX: u32 = 3;

/// The files that have locks.
pub(super) struct LockedFiles {
    files: NumberMap<ObjectId, LockedFile>,
    files_max: usize,
}

struct LockedFile {
    file: File,
    /// What is locked, as far as jobs are over.
    held: Segments,
    /// A helper is at the first of them.
    jobs: VecDeque<(u32, LockJob)>,
    /// Since when there is neither lock nor job.
    idle_since: Option<Duration>,
}

/// A change of what is locked.
#[derive(Clone, Debug)]
pub(super) enum LockJob {
    Lock(OctetLock),
    Relax { first: u64, last: u64, kept: Vec<OctetLock> },
}

impl LockJob {
    /// Whether it may give back something of a lock.
    fn may_relax(&self, lock: &OctetLock) -> bool {
        matches!(self, LockJob::Relax { first, last, .. } if *first <= lock.last && lock.first <= *last)
    }

    /// Whether it gives back all that a file has.
    fn ends(&self, held: &Segments) -> bool {
        match self {
            LockJob::Lock(_) => false,
            LockJob::Relax { first, last, kept } => kept.is_empty() && held.lies_within(*first, *last),
        }
    }
}

/// The system calls of a job.
pub(super) struct LockWork {
    file: File,
    steps: Vec<LockStep>,
    /// Whether all of it or nothing is done.
    is_whole: bool,
}

#[derive(Clone, Copy)]
struct LockStep {
    before: LockPiece,
    after: LockKind,
}

/// What came of a job.
#[derive(Debug)]
pub(super) struct LockOutcome {
    /// The lock that is in the way, or why it failed.
    pub(super) result: Result<Option<OctetLock>, Errno>,
    /// What is locked otherwise than before.
    changed: Vec<LockPiece>,
}

/// The status of an error of a lock.
pub(super) fn lock_status(error: Errno) -> FsError {
    match error {
        // It is not open for writing, because it could not be opened so.
        Errno::BADF => FsError::AccessDenied,
        Errno::NOLCK | Errno::NOSYS | Errno::INVAL => FsError::NotSupported,
        error => status(error),
    }
}

/// The lock that is in the way of a wanted one, as the kernel says.
pub(super) fn conflict(file: &File, wanted: &OctetLock) -> Result<Option<OctetLock>, Errno> {
    let OctetLock { first, last, exclusive } = *wanted;
    let found = find_lock(file.as_fd(), &DescriptionLock { first, last, exclusive })?;
    Ok(found.map(|DescriptionLock { first, last, exclusive }| OctetLock { first, last, exclusive }))
}

impl LockWork {
    /// Makes the system calls.
    pub(super) fn run(&self) -> LockOutcome {
        let mut changed = Vec::with_capacity(self.steps.len());
        let mut failure = None;
        for step in &self.steps {
            match self.set(step) {
                Ok(None) => changed.push(LockPiece { kind: step.after, ..step.before }),
                stopped if self.is_whole => {
                    for done in &self.steps[..changed.len()] {
                        // If that fails, the octets stay locked until the descriptor is closed.
                        let LockPiece { first, last, kind } = done.before;
                        let _ = set_lock(self.file.as_fd(), first, last, kind);
                    }
                    return LockOutcome { result: stopped, changed: Vec::new() };
                }
                Ok(Some(_)) => {}
                Err(error) => failure = Some(error),
            }
        }
        LockOutcome { result: failure.map_or(Ok(None), Err), changed }
    }

    /// Makes one of them. `Some`: that lock is in the way.
    fn set(&self, step: &LockStep) -> Result<Option<OctetLock>, Errno> {
        let LockPiece { first, last, .. } = step.before;
        let wanted = OctetLock { first, last, exclusive: step.after == Some(true) };
        for _ in 0..TRIES_MAX {
            match set_lock(self.file.as_fd(), first, last, step.after) {
                Ok(()) => return Ok(None),
                Err(Errno::AGAIN | Errno::ACCESS) => {}
                Err(error) => return Err(error),
            }
            if let Some(found) = conflict(&self.file, &wanted)? {
                return Ok(Some(found));
            }
        }
        // Somebody locks and unlocks it all the time.
        Ok(Some(OctetLock { exclusive: true, ..wanted }))
    }
}

impl LockedFile {
    fn work(&self, job: &LockJob) -> LockWork {
        let (steps, is_whole) = match job {
            LockJob::Lock(wanted) => {
                let step = |before| LockStep { before, after: Some(wanted.exclusive) };
                (self.held.missing(wanted).into_iter().map(step).collect(), true)
            }
            LockJob::Relax { first, last, kept } => {
                let step = |after: LockPiece| LockStep { before: after, after: after.kind };
                (self.held.excess(*first, *last, kept).into_iter().map(step).collect(), false)
            }
        };
        LockWork { file: self.file.clone(), steps, is_whole }
    }

    fn note(&mut self, outcome: &LockOutcome) {
        for changed in &outcome.changed {
            self.held.set(*changed);
        }
    }
}

impl LockedFiles {
    /// Takes its share of the descriptors that a store may keep open, if it locks files at all.
    pub(super) fn new(descriptors: usize, locks_files: bool) -> LockedFiles {
        let files_max = if locks_files { (descriptors / DESCRIPTORS_SHARE).min(FILES_MAX) } else { 0 };
        LockedFiles { files: NumberMap::default(), files_max }
    }

    /// Descriptors that it may keep.
    pub(super) fn places(&self) -> usize {
        self.files_max
    }

    /// Closes all descriptors, for good; those of files with jobs under way when these are over.
    pub(super) fn close_all(&mut self) {
        self.files_max = 0;
        self.files.retain(|_, locked| !locked.jobs.is_empty());
    }

    /// Descriptors that it keeps.
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.files.len() >= self.files_max
    }

    /// The descriptor of a file, if there is one.
    pub(super) fn file(&self, object: ObjectId) -> Option<&File> {
        self.files.get(&object).map(|locked| &locked.file)
    }

    /// Keeps the descriptor that a file is locked with from now on.
    pub(super) fn add(&mut self, object: ObjectId, file: File) {
        let locked = LockedFile { file, held: Segments::default(), jobs: VecDeque::new(), idle_since: None };
        self.files.insert(object, locked);
    }

    /// Whether a lock is held, and nothing is under way that may give it back.
    pub(super) fn holds(&self, object: ObjectId, wanted: &OctetLock) -> bool {
        let Some(locked) = self.files.get(&object) else { return false };
        let relaxes = locked.jobs.iter().any(|(_, job)| job.may_relax(wanted));
        !relaxes && locked.held.missing(wanted).is_empty()
    }

    /// Whether a job that gives something back has nothing to do.
    pub(super) fn is_relaxed(&self, object: ObjectId, first: u64, last: u64, kept: &[OctetLock]) -> bool {
        let Some(locked) = self.files.get(&object) else { return true };
        locked.jobs.is_empty() && locked.held.excess(first, last, kept).is_empty()
    }

    /// Does a job at once, for a file that is open. No other one of the file is under way.
    pub(super) fn run(&mut self, object: ObjectId, job: &LockJob) -> Result<Option<OctetLock>, Errno> {
        let locked = self.files.get_mut(&object).ok_or(Errno::IO)?;
        let outcome = locked.work(job).run();
        locked.note(&outcome);
        if outcome.result.is_err() && job.ends(&locked.held) {
            self.files.remove(&object);
        }
        outcome.result
    }

    /// Puts a job behind the others of its file, which is open. `Some`: it is the first, for a helper to begin.
    pub(super) fn push(&mut self, object: ObjectId, place: u32, job: LockJob) -> Option<LockWork> {
        let locked = self.files.get_mut(&object)?;
        let work = locked.jobs.is_empty().then(|| locked.work(&job));
        locked.jobs.push_back((place, job));
        work
    }

    /// A helper has done the first job of a file, or failed badly. Returns the next.
    pub(super) fn end(&mut self, object: ObjectId, outcome: Option<&LockOutcome>) -> Option<(u32, LockWork)> {
        let locked = self.files.get_mut(&object)?;
        let ended = locked.jobs.pop_front();
        if let Some(outcome) = outcome {
            locked.note(outcome);
        }
        if let Some((place, job)) = locked.jobs.front() {
            return Some((*place, locked.work(job)));
        }
        let has_failed = outcome.is_none_or(|outcome| outcome.result.is_err());
        let is_closed = self.files_max == 0;
        if is_closed || has_failed && ended.is_some_and(|(_, job)| job.ends(&locked.held)) {
            self.files.remove(&object);
        }
        None
    }

    /// Closes descriptors whose files have had no lock for a while.
    pub(super) fn close_idle(&mut self, now: Duration) {
        self.files.retain(|_, locked| {
            if !locked.held.is_empty() || !locked.jobs.is_empty() {
                locked.idle_since = None;
                return true;
            }
            now < *locked.idle_since.get_or_insert(now) + IDLE_LIFE
        });
    }
}
