//! A store in memory that answers no question at once, and finishes nothing at once: it does a pass later. Every other one
//! answers at random.

use std::any::Any;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stag_memory::Shared;
use stag_stores::memory::MemoryStore;
use stag_vfs::{
    Acl, Blocked, Capabilities, ChangeStep, EntryName, ExtentKind, Finished, FsError, LINK_SPACE, ListStart,
    Listed, NewAttributes, NewObject, ObjectId, ObjectStat, OctetLock, Progress, ReadDone, ReadStep,
    RenameSeen, SetLists, SpaceChange, Stability, Store, StoreProfile, StoreVerifier, Ticket, Timestamp,
    Update, Usage, UserIdentity, WriteData, WriteDone,
};

/// Questions whose answers are remembered.
const ANSWERED_MAX: usize = 512;

pub(crate) struct SlowStore {
    memory: MemoryStore,
    /// Whether a question is answered at once, if that is left to chance.
    random: Option<Cell<u64>>,
    late: RefCell<Late>,
    waits: Cell<u64>,
    /// Who else has the files.
    cluster: Rc<RefCell<Cluster>>,
    /// Whether it takes locks on its files.
    locks_below: bool,
}

/// Octets of a file that are told apart in [`Cluster`]; the last stands for all from there on.
const OCTETS: usize = 256;

/// How each octet of a file is locked: exclusively or not, or not at all.
type OctetKinds = [Option<bool>; OCTETS];

/// Locks below: of a server, and of another node.
#[derive(Default)]
pub(crate) struct Cluster {
    own: HashMap<ObjectId, OctetKinds>,
    /// Of whichever file.
    others: Option<OctetLock>,
    /// What was in the way of requests that were made.
    found: Vec<(Question, OctetLock)>,
    /// The store is done with nothing any more.
    stands_still: bool,
}

fn octets(lock: &OctetLock) -> std::ops::RangeInclusive<usize> {
    let place = |octet: u64| octet.min(OCTETS as u64 - 1) as usize;
    place(lock.first)..=place(lock.last)
}

impl Cluster {
    fn conflict(&self, wanted: &OctetLock) -> Option<OctetLock> {
        let overlaps = |other: &OctetLock| other.first <= wanted.last && wanted.first <= other.last;
        self.others.filter(|other| overlaps(other) && (other.exclusive || wanted.exclusive))
    }

    fn own(&mut self, object: ObjectId) -> &mut OctetKinds {
        self.own.entry(object).or_insert([None; OCTETS])
    }

    /// The first octets that the server has locked of a range, of any file: as far as they are locked alike.
    #[allow(dead_code, reason = "for servers")]
    pub(crate) fn seen(&self, first: u64, last: u64) -> Option<(u64, u64, bool)> {
        let range = octets(&OctetLock { first, last, exclusive: true });
        self.own.values().find_map(|own| {
            let start = range.clone().find(|at| own[*at].is_some())?;
            let start = (0..=start).rev().take_while(|at| own[*at] == own[start]).last()?;
            let end = (start..OCTETS).take_while(|at| own[*at] == own[start]).last()?;
            let end = if end == OCTETS - 1 { u64::MAX } else { end as u64 };
            Some((start as u64, end, own[start] == Some(true)))
        })
    }

    /// Lets the store stand still, or go on.
    #[allow(dead_code, reason = "for servers")]
    pub(crate) fn stand_still(&mut self, stands_still: bool) {
        self.stands_still = stands_still;
    }

    /// Another node has this lock from now on, or none; `false`: the server is in its way.
    #[allow(dead_code, reason = "for servers")]
    pub(crate) fn set(&mut self, lock: Option<OctetLock>) -> bool {
        let is_free = lock.is_none_or(|lock| {
            self.own.values().all(|own| {
                octets(&lock).all(|at| own[at].is_none_or(|exclusive| !exclusive && !lock.exclusive))
            })
        });
        if is_free {
            self.others = lock;
        }
        is_free
    }
}

/// Who else has the files of a slow store.
#[allow(dead_code, reason = "for servers")]
pub(crate) fn cluster(store: &dyn Any) -> Rc<RefCell<Cluster>> {
    let slow: &SlowStore = store.downcast_ref().expect("a slow store");
    slow.cluster.clone()
}

#[derive(Default)]
struct Late {
    slots: Vec<Option<Matter>>,
    /// Tickets of this pass.
    fresh: VecDeque<u32>,
    ready: VecDeque<u32>,
    answered: VecDeque<Question>,
    /// Whether the last poll found nothing: the next begins a pass.
    is_over: bool,
}

enum Matter {
    Question(Question),
    Ends(Result<Finished, FsError>, Vec<Shared>),
}

/// What is asked: the name of the step, of which object, and of which name.
type Question = (&'static str, ObjectId, Vec<u8>);

const NONE: ObjectId = ObjectId { fileid: 0, generation: 0 };

pub(crate) fn make(memory: MemoryStore) -> SlowStore {
    // Relaxed: only the number must differ.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let random = (number % 2 == 1).then(|| Cell::new(number));
    let (late, waits, cluster) = (RefCell::default(), Cell::new(0), Rc::default());
    SlowStore { memory, random, late, waits, cluster, locks_below: true }
}

#[allow(dead_code, reason = "for servers")]
pub(crate) fn wrap(memory: MemoryStore) -> Box<dyn Store> {
    Box::new(make(memory))
}

/// As [`wrap`], of a store that takes no locks on its files.
#[allow(dead_code, reason = "for servers")]
pub(crate) fn wrap_without_locks(memory: MemoryStore) -> Box<dyn Store> {
    Box::new(SlowStore { locks_below: false, ..make(memory) })
}

#[allow(dead_code, reason = "for servers")]
pub(crate) fn unwrap(store: &dyn Any) -> &MemoryStore {
    let slow: &SlowStore = store.downcast_ref().expect("a slow store");
    assert!(slow.waits.get() > 0, "nothing was waited for");
    &slow.memory
}

impl Late {
    fn ticket(&mut self, matter: Matter) -> Ticket {
        let place = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if place == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[place] = Some(matter);
        self.fresh.push_back(place as u32);
        Ticket(place as u32)
    }

    fn remember(&mut self, question: Question) {
        self.answered.push_back(question);
        if self.answered.len() > ANSWERED_MAX {
            self.answered.pop_front();
        }
    }
}

impl SlowStore {
    /// Whether chance says that there is an answer at once. To the first question there is none, so that something waits.
    fn is_lucky(&self) -> bool {
        let Some(random) = self.random.as_ref().filter(|_| self.waits.get() > 0) else { return false };
        // A linear congruential generator: its highest bit is its best.
        let next = random.get().wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        random.set(next);
        next >> 63 == 0
    }

    fn lock_question(step: &'static str, object: ObjectId, wanted: &OctetLock) -> Question {
        let OctetLock { first, last, exclusive } = *wanted;
        let words = [first, last, u64::from(exclusive)];
        (step, object, words.iter().flat_map(|word| word.to_le_bytes()).collect())
    }

    /// Fails as long as the answer to a question is not known.
    fn ask(&self, step: &'static str, object: ObjectId, name: &[u8]) -> ReadStep<()> {
        let mut late = self.late.borrow_mut();
        let question = (step, object, name.to_vec());
        if late.answered.contains(&question) {
            return Ok(());
        }
        if self.is_lucky() {
            late.remember(question);
            return Ok(());
        }
        self.waits.set(self.waits.get() + 1);
        Err(Blocked::Waits(late.ticket(Matter::Question(question))))
    }

    /// Ends a step that changes something, a pass later; what was known may be wrong by now.
    fn end<T, U>(
        &mut self,
        done: ChangeStep<T>,
        pieces: Vec<Shared>,
        told: impl Fn(T) -> Finished,
    ) -> ChangeStep<U> {
        let done = match done {
            Ok(Progress::Done(done)) => Ok(told(done)),
            Err(Blocked::Fails(error)) => Err(error),
            Ok(Progress::Later(_)) | Err(Blocked::Waits(_)) => unreachable!("memory does not wait"),
        };
        let mut late = self.late.borrow_mut();
        late.answered.clear();
        Ok(Progress::Later(late.ticket(Matter::Ends(done, pieces))))
    }
}

impl Store for SlowStore {
    fn profile(&self) -> StoreProfile {
        let StoreProfile { can, .. } = self.memory.profile();
        let can = Capabilities {
            admits_transfers: false,
            finishes_transfers_later: true,
            locks_below: self.locks_below,
            ..can
        };
        StoreProfile { can, ..self.memory.profile() }
    }

    fn give_up_files(&mut self) {
        self.memory.give_up_files();
    }

    fn write_verifier(&self) -> StoreVerifier {
        self.memory.write_verifier()
    }

    fn usage(&self) -> ReadStep<Usage> {
        self.ask("usage", NONE, b"")?;
        self.memory.usage()
    }

    fn stat(&self, object: ObjectId) -> ReadStep<ObjectStat> {
        self.ask("stat", object, b"")?;
        self.memory.stat(object)
    }

    fn stat_after(&self, object: ObjectId) -> Option<ObjectStat> {
        self.memory.stat_after(object)
    }

    fn entry(&self, at: EntryName<'_>) -> ReadStep<ObjectStat> {
        self.ask("entry", at.directory.object, at.name)?;
        self.memory.entry(at)
    }

    fn lies_within(&self, directory: ObjectId, other: ObjectId) -> ReadStep<bool> {
        self.ask("lies_within", directory, &other.fileid.to_le_bytes())?;
        self.memory.lies_within(directory, other)
    }

    fn list(
        &self,
        directory: ObjectId,
        start: ListStart,
        now: Timestamp,
        visit: &mut dyn FnMut(Listed<'_>) -> bool,
    ) -> ReadStep<bool> {
        // The answer to a part of it, and then to the next.
        let mut shown = 0_u64;
        let mut waits = None;
        let listed = self.memory.list(directory, start, now, &mut |entry| {
            if let Err(Blocked::Waits(ticket)) = self.ask("list", directory, &(shown / 3).to_le_bytes()) {
                waits = Some(ticket);
                return false;
            }
            shown += 1;
            visit(entry)
        });
        match waits {
            Some(ticket) => Err(Blocked::Waits(ticket)),
            None => listed,
        }
    }

    fn link_target<'a>(
        &'a self,
        object: ObjectId,
        space: &'a mut [u8; LINK_SPACE],
        now: Timestamp,
    ) -> ReadStep<&'a [u8]> {
        self.ask("link_target", object, b"")?;
        self.memory.link_target(object, space, now)
    }

    fn access_acl(&self, seen: &ObjectStat) -> ReadStep<Option<Cow<'_, Acl>>> {
        self.ask("access_acl", seen.object, b"")?;
        self.memory.access_acl(seen)
    }

    fn default_acl(&self, directory: ObjectId) -> ReadStep<Option<Cow<'_, Acl>>> {
        self.ask("default_acl", directory, b"")?;
        self.memory.default_acl(directory)
    }

    fn is_made_by(&self, seen: &ObjectStat, verifier: StoreVerifier) -> ReadStep<bool> {
        self.ask("is_made_by", seen.object, &verifier)?;
        self.memory.is_made_by(seen, verifier)
    }

    fn update(
        &mut self,
        user: &UserIdentity,
        seen: &ObjectStat,
        set: &Update,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let done = self.memory.update(user, seen, set, now);
        self.end(done, Vec::new(), |()| Finished::Changed)
    }

    fn make(
        &mut self,
        user: &UserIdentity,
        at: EntryName<'_>,
        what: NewObject<'_>,
        attributes: &NewAttributes,
        now: Timestamp,
    ) -> ChangeStep<ObjectStat> {
        let done = self.memory.make(user, at, what, attributes, now);
        self.end(done, Vec::new(), Finished::Made)
    }

    fn link(
        &mut self,
        user: &UserIdentity,
        seen: &ObjectStat,
        at: EntryName<'_>,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let done = self.memory.link(user, seen, at, now);
        self.end(done, Vec::new(), |()| Finished::Changed)
    }

    fn remove(
        &mut self,
        user: &UserIdentity,
        at: EntryName<'_>,
        seen: &ObjectStat,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let done = self.memory.remove(user, at, seen, now);
        self.end(done, Vec::new(), |()| Finished::Changed)
    }

    fn rename(
        &mut self,
        user: &UserIdentity,
        from: EntryName<'_>,
        to: EntryName<'_>,
        seen: RenameSeen<'_>,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let done = self.memory.rename(user, from, to, seen, now);
        self.end(done, Vec::new(), |()| Finished::Changed)
    }

    fn set_lists(
        &mut self,
        user: &UserIdentity,
        seen: &ObjectStat,
        set: &SetLists,
        mode: Option<u32>,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let done = self.memory.set_lists(user, seen, set, mode, now);
        self.end(done, Vec::new(), |()| Finished::Changed)
    }

    fn seek(&self, seen: &ObjectStat, offset: u64, kind: ExtentKind) -> ReadStep<Option<u64>> {
        self.ask("seek", seen.object, &offset.to_le_bytes())?;
        self.memory.seek(seen, offset, kind)
    }

    fn change_space(
        &mut self,
        user: &UserIdentity,
        seen: &ObjectStat,
        octets: Range<u64>,
        change: SpaceChange,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let done = self.memory.change_space(user, seen, octets, change, now);
        self.end(done, Vec::new(), |()| Finished::Changed)
    }

    fn lock_octets(&mut self, object: ObjectId, wanted: &OctetLock) -> ReadStep<Option<OctetLock>> {
        let question = Self::lock_question("lock_octets", object, wanted);
        let cluster = &mut *self.cluster.borrow_mut();
        if let Some(place) = cluster.found.iter().position(|(asked, _)| *asked == question) {
            return Ok(Some(cluster.found.swap_remove(place).1));
        }
        let kind = Some(wanted.exclusive);
        if octets(wanted).all(|at| cluster.own(object)[at] >= kind) {
            return Ok(None);
        }
        // What is asked for is done at once, and told later.
        let found = cluster.conflict(wanted);
        if found.is_none() {
            let own = cluster.own(object);
            octets(wanted).for_each(|at| own[at] = own[at].max(kind));
        }
        if self.is_lucky() {
            return Ok(found);
        }
        cluster.found.extend(found.map(|found| (question.clone(), found)));
        self.waits.set(self.waits.get() + 1);
        Err(Blocked::Waits(self.late.borrow_mut().ticket(Matter::Question(question))))
    }

    fn relax_locks(&mut self, object: ObjectId, first: u64, last: u64, kept: &[OctetLock]) -> Progress<()> {
        let mut keeps: OctetKinds = [None; OCTETS];
        for keep in kept {
            octets(keep).for_each(|at| keeps[at] = Some(keep.exclusive));
        }
        let cluster = &mut *self.cluster.borrow_mut();
        let own = cluster.own(object);
        let before = *own;
        let range = octets(&OctetLock { first, last, exclusive: false });
        range.for_each(|at| own[at] = own[at].min(keeps[at]));
        if before == *own || self.is_lucky() {
            return Progress::Done(());
        }
        Progress::Later(self.late.borrow_mut().ticket(Matter::Ends(Ok(Finished::Changed), Vec::new())))
    }

    fn find_lock(&mut self, object: ObjectId, wanted: &OctetLock) -> ReadStep<Option<OctetLock>> {
        let question = Self::lock_question("find_lock", object, wanted);
        self.ask(question.0, question.1, &question.2)?;
        self.late.get_mut().answered.retain(|answered| *answered != question);
        Ok(self.cluster.borrow().conflict(wanted))
    }

    fn read(
        &mut self,
        user: &UserIdentity,
        object: ObjectId,
        offset: u64,
        count: u32,
        pieces: &mut Vec<Shared>,
        now: Timestamp,
    ) -> ChangeStep<ReadDone> {
        let done = self.memory.read(user, object, offset, count, pieces, now);
        let mut held = Vec::with_capacity(pieces.len());
        held.append(pieces);
        self.end(done, held, Finished::Read)
    }

    fn write(
        &mut self,
        user: &UserIdentity,
        object: ObjectId,
        offset: u64,
        data: WriteData<'_>,
        stability: Stability,
        now: Timestamp,
    ) -> ChangeStep<WriteDone> {
        let done = self.memory.write(user, object, offset, data, stability, now);
        self.end(done, Vec::new(), Finished::Write)
    }

    fn commit(&mut self, object: ObjectId, offset: u64, count: u32) -> ChangeStep<()> {
        self.ask("commit", object, b"")?;
        let done = self.memory.commit(object, offset, count);
        self.end(done, Vec::new(), |()| Finished::Commit)
    }

    fn sync_changes(&mut self) -> Progress<()> {
        let matter = Matter::Ends(Ok(Finished::Commit), Vec::new());
        Progress::Later(self.late.borrow_mut().ticket(matter))
    }

    fn poll_later(&mut self, _: Duration) -> Option<Ticket> {
        if self.cluster.borrow().stands_still {
            return None;
        }
        let late = self.late.get_mut();
        if std::mem::take(&mut late.is_over) {
            let fresh = std::mem::take(&mut late.fresh);
            late.ready.extend(fresh);
        }
        let ready = late.ready.pop_front();
        late.is_over = ready.is_none();
        ready.map(Ticket)
    }

    fn finish(&mut self, Ticket(place): Ticket, pieces: &mut Vec<Shared>) -> Result<Finished, FsError> {
        let late = self.late.get_mut();
        match late.slots[place as usize].take().expect("a ticket is finished once") {
            Matter::Question(question) => {
                late.remember(question);
                Ok(Finished::Ready)
            }
            Matter::Ends(done, held) => {
                pieces.extend(held);
                done
            }
        }
    }

    fn is_busy(&self) -> bool {
        if self.cluster.borrow().stands_still {
            return false;
        }
        let late = self.late.borrow();
        late.slots.iter().any(Option::is_some)
    }
}
