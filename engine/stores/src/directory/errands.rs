//! What helpers do for a store: questions of steps, and changes.

use std::collections::VecDeque;
use std::os::fd::RawFd;

use arrayvec::ArrayVec;
use rustix::io::Errno;
use stag_disk::Helpers;
use stag_vfs::{Finished, FsError, ObjectId, ObjectKind, ObjectStat};

use super::changes::{Change, Outcome};
use super::kernel::{Answer, Answers, Kernel, Question};
use super::locks::{LockOutcome, LockWork};
use super::search::Walk;
use super::transfer::Asked;

/// A name in a directory, of a change that is under way.
pub(super) type OwnedName = (ObjectId, Box<[u8]>);

/// What to note when a change is made.
pub(super) enum Note {
    Made(OwnedName),
    Removed(OwnedName, Gone),
    Renamed { from: OwnedName, to: OwnedName, moved: (ObjectId, ObjectKind), replaced: Option<Gone> },
    Linked(OwnedName, (ObjectId, ObjectKind)),
    Set,
}

/// An object that lost a name.
pub(super) struct Gone {
    pub(super) fileid: u64,
    pub(super) was_last: bool,
}

impl Gone {
    pub(super) fn of(seen: &ObjectStat) -> Gone {
        let was_last = seen.kind == ObjectKind::Directory || seen.nlink <= 1;
        Gone { fileid: seen.object.fileid, was_last }
    }
}

/// Objects that a change touches: at most two directories, what is moved there, and what that replaces.
pub(super) type Touched = ArrayVec<ObjectId, 4>;

/// What a job ends with.
pub(super) enum Done {
    Answered(Result<Answer, Errno>),
    Changed(Box<Outcome>),
    Walked(Walk),
    ReadOnly(bool),
    Locked(LockOutcome),
    Closed,
}

/// What a job is for.
pub(super) enum Errand {
    /// A step that is run again.
    Step(Asking),
    /// A transfer that is examined again.
    Transfer(Asked, Asking),
    /// A change, and what to note when it is made.
    Change(Box<Changing>),
    /// Locks of a file are given back.
    Relax(ObjectId),
    /// A part of a search.
    Walk,
    /// Whether the files are read-only by now.
    Mount,
    /// Descriptors are closed.
    Closing,
}

/// A question that a helper has.
pub(super) struct Asking {
    pub(super) question: Question,
    /// Those of the operation before it, and when it is over, its own.
    pub(super) answers: Answers,
    /// Changes and WRITEs that were over when the first of them was asked for.
    pub(super) since: u64,
}

/// A change under way.
pub(super) struct Changing {
    /// Until it is over.
    pub(super) note: Option<Note>,
    pub(super) touched: Touched,
    /// Whether something else changed one of these objects since the operation looked at them.
    pub(super) is_disturbed: bool,
    /// Once it is over.
    pub(super) ended: Option<Ended>,
}

/// How a change ended.
pub(super) struct Ended {
    pub(super) result: Result<Finished, FsError>,
    pub(super) targets: ArrayVec<super::syncs::Target, 2>,
    pub(super) after: Vec<(ObjectId, Option<super::object::Stat>)>,
}

pub(super) struct Errands {
    /// Before the first job there need be none.
    helpers: Option<Helpers<Done>>,
    slots: Vec<Option<Errand>>,
    free: Vec<u32>,
    /// Steps and changes that are over.
    ready: VecDeque<u32>,
    /// Steps that wait for the search.
    walkers: Vec<u32>,
    /// Changes and WRITEs that are over.
    changes: u64,
    /// Changes whose tickets are not taken yet.
    changing: usize,
}

impl Errands {
    pub(super) fn new() -> Errands {
        Errands {
            helpers: None,
            slots: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            walkers: Vec::new(),
            changes: 0,
            changing: 0,
        }
    }

    /// Starts helpers if there are none yet. `false`: the system allows no thread.
    pub(super) fn start_helpers(&mut self) -> bool {
        if self.helpers.is_none() {
            self.helpers = Kernel::helpers().ok();
        }
        self.helpers.is_some()
    }

    /// Whether clients should try again.
    pub(super) fn is_full(&self) -> bool {
        self.helpers.as_ref().is_none_or(Helpers::is_full)
    }

    pub(super) fn descriptor(&self) -> Option<RawFd> {
        self.helpers.as_ref().map(Helpers::descriptor)
    }

    /// Changes and WRITEs that are over.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// A WRITE is over. A step that has looked at its file and waits will change another file than it saw.
    pub(super) fn note_written(&mut self) {
        self.changes += 1;
    }

    fn add(&mut self, errand: Errand) -> u32 {
        match self.free.pop() {
            Some(place) => {
                self.slots[place as usize] = Some(errand);
                place
            }
            None => {
                self.slots.push(Some(errand));
                (self.slots.len() - 1) as u32
            }
        }
    }

    /// Gives a job to a helper. There are helpers.
    pub(super) fn begin(&mut self, errand: Errand, job: impl FnOnce() -> Done + Send + 'static) -> u32 {
        let place = self.add(errand);
        if let Some(helpers) = &mut self.helpers {
            helpers.start(place, job);
        }
        place
    }

    /// A job that begins in its turn.
    pub(super) fn await_turn(&mut self, errand: Errand) -> u32 {
        self.add(errand)
    }

    /// The turn of a job has come: a helper sets locks.
    pub(super) fn set_locks(&mut self, place: u32, work: LockWork) {
        if let Some(helpers) = &mut self.helpers {
            helpers.start(place, move || Done::Locked(work.run()));
        }
    }

    /// A step or a transfer waits until a part of the search is over.
    pub(super) fn await_walk(&mut self, errand: Errand) -> u32 {
        let place = self.add(errand);
        self.walkers.push(place);
        place
    }

    /// A part of the search is over: the steps that waited for it go on. Returns the transfers.
    pub(super) fn end_walk(&mut self) -> Vec<(Asked, Asking)> {
        let mut transfers = Vec::new();
        for place in std::mem::take(&mut self.walkers) {
            let Some(slot) = self.slots.get_mut(place as usize) else { continue };
            match slot.take() {
                Some(Errand::Transfer(asked, asking)) => {
                    self.free.push(place);
                    transfers.push((asked, asking));
                }
                Some(Errand::Step(mut asking)) => {
                    asking.answers.add(asking.question.clone(), Ok(Answer::Done));
                    *slot = Some(Errand::Step(asking));
                    self.ready.push_back(place);
                }
                other => *slot = other,
            }
        }
        transfers
    }

    /// Begins a change of these objects. Each that is under way and changes one of them disturbs it, and is disturbed.
    pub(super) fn begin_change(
        &mut self,
        mut changing: Changing,
        job: impl FnOnce() -> Done + Send + 'static,
    ) -> u32 {
        changing.is_disturbed |= self.disturb(&changing.touched);
        self.changing += 1;
        self.begin(Errand::Change(Box::new(changing)), job)
    }

    /// Something else begins to change these objects. Returns whether that disturbs a change that is under way.
    pub(super) fn disturb(&mut self, touched: &[ObjectId]) -> bool {
        if self.changing == 0 {
            return false;
        }
        let mut is_any = false;
        for other in self.slots.iter_mut().flatten() {
            let Errand::Change(other) = other else { continue };
            if touched.iter().any(|object| other.touched.contains(object)) {
                other.is_disturbed = true;
                is_any = true;
            }
        }
        is_any
    }

    /// Whether a change of the object is under way.
    pub(super) fn is_changing(&self, object: ObjectId) -> bool {
        let mut changes = self.slots.iter().flatten();
        changes.any(|errand| matches!(errand, Errand::Change(changing) if changing.touched.contains(&object)))
    }

    /// The next job that is over, and what it was for; `None` inside: it failed badly.
    pub(super) fn poll(&mut self) -> Option<(u32, Errand, Option<Done>)> {
        let (place, done) = self.helpers.as_mut()?.poll()?;
        let errand = self.slots[place as usize].take()?;
        if let Errand::Step(_) | Errand::Change(_) | Errand::Relax(_) = &errand {
            return Some((place, errand, done));
        }
        self.free.push(place);
        Some((place, errand, done))
    }

    /// A step or a change is over: its ticket is told.
    pub(super) fn end(&mut self, place: u32, errand: Errand) {
        self.changes += u64::from(matches!(errand, Errand::Change(_)));
        self.slots[place as usize] = Some(errand);
        self.ready.push_back(place);
    }

    /// The next step or change that is over.
    pub(super) fn next_ready(&mut self) -> Option<u32> {
        self.ready.pop_front()
    }

    /// Takes what [`Errands::next_ready`] told.
    pub(super) fn take(&mut self, place: u32) -> Option<Errand> {
        let errand = self.slots.get_mut(place as usize)?.take()?;
        self.free.push(place);
        self.changing -= usize::from(matches!(errand, Errand::Change(_)));
        Some(errand)
    }
}

/// The job of a change.
pub(super) fn change_job(
    change: Change,
    actor: super::actor::Actor,
    kernel: &Kernel,
    looks: Vec<(ObjectId, super::opened::File)>,
) -> impl FnOnce() -> Done + Send + 'static {
    let bin = kernel.bin();
    move || Done::Changed(Box::new(change.run(&actor, bin.as_ref(), &looks)))
}
