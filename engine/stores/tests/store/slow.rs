//! A store that answers no question at once, and finishes nothing at once: it does a pass later. Others answer at random. What
//! they answer is what a store below them does: one in memory, or a directory that waits for nothing.

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

pub(crate) struct SlowStore<S = MemoryStore> {
    below: S,
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
    /// Changes whose tickets are not finished yet.
    changes: Vec<LateChange>,
    /// What others changed as well during the change that was finished last.
    shared: Vec<ObjectId>,
}

/// A change of these objects.
struct LateChange {
    ticket: Ticket,
    touched: Vec<ObjectId>,
    /// Whether another change of one of them began before this one was finished, or was not finished when this one began.
    is_disturbed: bool,
}

enum Matter {
    Question(Question),
    Ends(Result<Finished, FsError>, Vec<Shared>),
    /// The store below is not done with it at once either.
    Below(Ticket),
}

/// What is asked: the name of the step, of which object, and of which name.
type Question = (&'static str, ObjectId, Vec<u8>);

const NONE: ObjectId = ObjectId { fileid: 0, generation: 0 };

/// When a store answers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lateness {
    APassLater,
    /// At once or a pass later: a sequence of chances that begins with this number.
    AtRandom(u64),
}

/// The next number of a linear congruential generator. Its highest bits are its best.
fn next_number(number: u64) -> u64 {
    number.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f)
}

/// The store below, or one that answers later or at random: as a seed says. Runs take other things from the remainders of their
/// seeds, so this is none.
#[allow(dead_code, reason = "for servers")]
pub(crate) fn drawn<S: Store>(below: S, seed: u64) -> Box<dyn Store> {
    match (next_number(seed) >> 32) % 3 {
        0 => Box::new(below),
        1 => Box::new(over(below, Lateness::APassLater)),
        _ => Box::new(over(below, Lateness::AtRandom(seed))),
    }
}

/// A slow store that takes no locks on its files.
#[allow(dead_code, reason = "for servers")]
pub(crate) fn over<S: Store>(below: S, answers: Lateness) -> SlowStore<S> {
    let random = match answers {
        Lateness::APassLater => None,
        Lateness::AtRandom(first) => Some(Cell::new(first)),
    };
    let (late, waits, cluster) = (RefCell::default(), Cell::new(0), Rc::default());
    SlowStore { below, random, late, waits, cluster, locks_below: false }
}

/// One in memory, which takes locks on its files. Every other one answers at random.
pub(crate) fn make(memory: MemoryStore) -> SlowStore {
    // Relaxed: only the number must differ.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    make_by(memory, NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The same; whether it answers at random, and how, is in the number.
fn make_by(memory: MemoryStore, number: u64) -> SlowStore {
    let answers = if number % 2 == 1 { Lateness::AtRandom(number) } else { Lateness::APassLater };
    SlowStore { locks_below: true, ..over(memory, answers) }
}

/// For a test that has a seed: a run of the same seed has the same store.
#[allow(dead_code, reason = "for servers")]
pub(crate) fn wrap(memory: MemoryStore, seed: Option<u64>) -> Box<dyn Store> {
    Box::new(match seed {
        Some(seed) => make_by(memory, seed),
        None => make(memory),
    })
}

/// As [`wrap`], of a store that takes no locks on its files.
#[allow(dead_code, reason = "for servers")]
pub(crate) fn wrap_without_locks(memory: MemoryStore, _: Option<u64>) -> Box<dyn Store> {
    Box::new(SlowStore { locks_below: false, ..make(memory) })
}

#[allow(dead_code, reason = "for servers")]
pub(crate) fn unwrap(store: &dyn Any) -> &MemoryStore {
    let slow: &SlowStore = store.downcast_ref().expect("a slow store");
    assert!(slow.waits.get() > 0, "nothing was waited for");
    &slow.below
}

impl Late {
    fn ticket(&mut self, matter: Matter) -> Ticket {
        let place = self.keep(matter);
        self.fresh.push_back(place);
        Ticket(place)
    }

    /// A ticket for what the store below has given one for: that says when it is over.
    fn wait_below(&mut self, below: Ticket) -> Ticket {
        Ticket(self.keep(Matter::Below(below)))
    }

    fn keep(&mut self, matter: Matter) -> u32 {
        let place = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if place == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[place] = Some(matter);
        place as u32
    }

    /// The ticket that was given for one of the store below.
    fn of_below(&self, below: Ticket) -> Ticket {
        let is_it = |slot: &Option<Matter>| matches!(slot, Some(Matter::Below(waits)) if *waits == below);
        Ticket(self.slots.iter().position(is_it).expect("what it was given for is waited for") as u32)
    }

    /// Something else changes these objects.
    fn disturb(&mut self, touched: &[ObjectId]) -> bool {
        let mut is_any = false;
        for other in &mut self.changes {
            let is_shared = touched.iter().any(|object| other.touched.contains(object));
            other.is_disturbed |= is_shared;
            is_any |= is_shared;
        }
        is_any
    }

    fn remember(&mut self, question: Question) {
        self.answered.push_back(question);
        if self.answered.len() > ANSWERED_MAX {
            self.answered.pop_front();
        }
    }
}

impl<S: Store> SlowStore<S> {
    /// Whether chance says that there is an answer at once. To the first question there is none, so that something waits.
    fn is_lucky(&self) -> bool {
        let Some(random) = self.random.as_ref().filter(|_| self.waits.get() > 0) else { return false };
        random.set(next_number(random.get()));
        random.get() >> 63 == 0
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

    /// Ends a step that changes these objects.
    fn change<T, U>(
        &mut self,
        done: ChangeStep<T>,
        touched: &[ObjectId],
        told: impl Fn(T) -> Finished,
    ) -> ChangeStep<U> {
        let ended = self.end(done, Vec::new(), told);
        if let Ok(Progress::Later(ticket)) = ended {
            let late = self.late.get_mut();
            let is_disturbed = late.disturb(touched);
            late.changes.push(LateChange { ticket, touched: touched.to_vec(), is_disturbed });
        }
        ended
    }

    /// Ends a step that changes something, a pass later; what was known may be wrong by now.
    fn end<T, U>(
        &mut self,
        done: ChangeStep<T>,
        pieces: Vec<Shared>,
        told: impl Fn(T) -> Finished,
    ) -> ChangeStep<U> {
        let mut late = self.late.borrow_mut();
        late.answered.clear();
        let done = match done {
            Ok(Progress::Done(done)) => Ok(told(done)),
            Ok(Progress::Later(below)) => return Ok(Progress::Later(late.wait_below(below))),
            Err(Blocked::Fails(error)) => Err(error),
            Err(Blocked::Waits(_)) => unreachable!("the store below has every answer"),
        };
        Ok(Progress::Later(late.ticket(Matter::Ends(done, pieces))))
    }
}

impl<S: Store> Store for SlowStore<S> {
    fn profile(&self) -> StoreProfile {
        let StoreProfile { can, .. } = self.below.profile();
        let can = Capabilities {
            admits_transfers: false,
            finishes_transfers_later: true,
            locks_below: self.locks_below,
            ..can
        };
        StoreProfile { can, ..self.below.profile() }
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn give_up_files(&mut self) {
        self.below.give_up_files();
    }

    fn check_place(&self) -> ReadStep<()> {
        self.ask("check_place", NONE, b"")?;
        self.below.check_place()
    }

    fn write_verifier(&self) -> StoreVerifier {
        self.below.write_verifier()
    }

    fn usage(&self) -> ReadStep<Usage> {
        self.ask("usage", NONE, b"")?;
        self.below.usage()
    }

    fn stat(&self, object: ObjectId) -> ReadStep<ObjectStat> {
        self.ask("stat", object, b"")?;
        self.below.stat(object)
    }

    fn stat_after(&self, object: ObjectId) -> Option<ObjectStat> {
        let is_shared = self.late.borrow().shared.contains(&object);
        if is_shared { None } else { self.below.stat_after(object) }
    }

    fn is_changing(&self, object: ObjectId) -> bool {
        let late = self.late.borrow();
        late.changes.iter().any(|change| change.touched.contains(&object)) || self.below.is_changing(object)
    }

    fn entry(&self, at: EntryName<'_>) -> ReadStep<ObjectStat> {
        self.ask("entry", at.directory.object, at.name)?;
        self.below.entry(at)
    }

    fn lies_within(&self, directory: ObjectId, other: ObjectId) -> ReadStep<bool> {
        self.ask("lies_within", directory, &other.fileid.to_le_bytes())?;
        self.below.lies_within(directory, other)
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
        let listed = self.below.list(directory, start, now, &mut |entry| {
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
        self.below.link_target(object, space, now)
    }

    fn access_acl(&self, seen: &ObjectStat) -> ReadStep<Option<Cow<'_, Acl>>> {
        self.ask("access_acl", seen.object, b"")?;
        self.below.access_acl(seen)
    }

    fn default_acl(&self, directory: ObjectId) -> ReadStep<Option<Cow<'_, Acl>>> {
        self.ask("default_acl", directory, b"")?;
        self.below.default_acl(directory)
    }

    fn is_made_by(&self, seen: &ObjectStat, verifier: StoreVerifier) -> ReadStep<bool> {
        self.ask("is_made_by", seen.object, &verifier)?;
        self.below.is_made_by(seen, verifier)
    }

    fn update(
        &mut self,
        user: &UserIdentity,
        seen: &ObjectStat,
        set: &Update,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let done = self.below.update(user, seen, set, now);
        self.change(done, &[seen.object], |()| Finished::Changed)
    }

    fn make(
        &mut self,
        user: &UserIdentity,
        at: EntryName<'_>,
        what: NewObject<'_>,
        attributes: &NewAttributes,
        now: Timestamp,
    ) -> ChangeStep<ObjectStat> {
        let done = self.below.make(user, at, what, attributes, now);
        self.change(done, &[at.directory.object], Finished::Made)
    }

    fn link(
        &mut self,
        user: &UserIdentity,
        seen: &ObjectStat,
        at: EntryName<'_>,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let done = self.below.link(user, seen, at, now);
        self.change(done, &[at.directory.object, seen.object], |()| Finished::Changed)
    }

    fn remove(
        &mut self,
        user: &UserIdentity,
        at: EntryName<'_>,
        seen: &ObjectStat,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let done = self.below.remove(user, at, seen, now);
        self.change(done, &[at.directory.object, seen.object], |()| Finished::Changed)
    }

    fn rename(
        &mut self,
        user: &UserIdentity,
        from: EntryName<'_>,
        to: EntryName<'_>,
        seen: RenameSeen<'_>,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let done = self.below.rename(user, from, to, seen, now);
        let mut touched = vec![from.directory.object, to.directory.object, seen.moved.object];
        touched.extend(seen.replaced.map(|replaced| replaced.object));
        self.change(done, &touched, |()| Finished::Changed)
    }

    fn set_lists(
        &mut self,
        user: &UserIdentity,
        seen: &ObjectStat,
        set: &SetLists,
        mode: Option<u32>,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let done = self.below.set_lists(user, seen, set, mode, now);
        self.change(done, &[seen.object], |()| Finished::Changed)
    }

    fn seek(&self, seen: &ObjectStat, offset: u64, kind: ExtentKind) -> ReadStep<Option<u64>> {
        self.ask("seek", seen.object, &offset.to_le_bytes())?;
        self.below.seek(seen, offset, kind)
    }

    fn change_space(
        &mut self,
        user: &UserIdentity,
        seen: &ObjectStat,
        octets: Range<u64>,
        change: SpaceChange,
        now: Timestamp,
    ) -> ChangeStep<()> {
        let done = self.below.change_space(user, seen, octets, change, now);
        self.change(done, &[seen.object], |()| Finished::Changed)
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
        let done = self.below.read(user, object, offset, count, pieces, now);
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
        let done = self.below.write(user, object, offset, data, stability, now);
        self.late.get_mut().disturb(&[object]);
        self.end(done, Vec::new(), Finished::Write)
    }

    fn commit(&mut self, object: ObjectId, offset: u64, count: u32) -> ChangeStep<()> {
        self.ask("commit", object, b"")?;
        let done = self.below.commit(object, offset, count);
        self.end(done, Vec::new(), |()| Finished::Commit)
    }

    fn note_changed(&mut self, objects: &[&ObjectStat]) {
        self.below.note_changed(objects);
    }

    fn sync_changes(&mut self) -> Progress<()> {
        let late = self.late.get_mut();
        Progress::Later(match self.below.sync_changes() {
            Progress::Done(()) => late.ticket(Matter::Ends(Ok(Finished::Commit), Vec::new())),
            Progress::Later(below) => late.wait_below(below),
        })
    }

    fn poll_later(&mut self, now: Duration) -> Option<Ticket> {
        if self.cluster.borrow().stands_still {
            return None;
        }
        let late = self.late.get_mut();
        late.shared.clear();
        if let Some(below) = self.below.poll_later(now) {
            return Some(late.of_below(below));
        }
        if std::mem::take(&mut late.is_over) {
            let fresh = std::mem::take(&mut late.fresh);
            late.ready.extend(fresh);
        }
        let ready = late.ready.pop_front();
        late.is_over = ready.is_none();
        ready.map(Ticket)
    }

    fn finish(&mut self, ticket: Ticket, pieces: &mut Vec<Shared>) -> Result<Finished, FsError> {
        let late = self.late.get_mut();
        if let Some(place) = late.changes.iter().position(|change| change.ticket == ticket) {
            let change = late.changes.swap_remove(place);
            late.shared = if change.is_disturbed { change.touched } else { Vec::new() };
        }
        match late.slots[ticket.0 as usize].take().expect("a ticket is finished once") {
            Matter::Question(question) => {
                late.remember(question);
                Ok(Finished::Ready)
            }
            Matter::Ends(done, held) => {
                pieces.extend(held);
                done
            }
            Matter::Below(below) => self.below.finish(below, pieces),
        }
    }

    fn is_busy(&self) -> bool {
        if self.cluster.borrow().stands_still {
            return false;
        }
        let late = self.late.borrow();
        late.slots.iter().any(Option::is_some) || self.below.is_busy()
    }
}
