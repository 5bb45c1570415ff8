//! Steps of the store that may have to wait: what they ask and change, and what is noted when that is over.

use std::ops::Range;
use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::io::Errno;
use stag_vfs::{
    Blocked, ChangeStep, EntryName, Finished, FsError, NewAttributes, NewObject, ObjectId, ObjectKind,
    ObjectStat, Progress, ReadStep, RenameSeen, SetLists, SpaceChange, Ticket, Update, UserIdentity,
};

use super::DirectoryStore;
use super::actor::{MadeObject, SyncTarget};
use super::changes::{Change, ChangeLists, ChangeSpace, Link, Outcome, Remove, Rename, Set};
use super::errands::{Asking, Changing, Done, Ended, Errand, Gone, Note, OwnedName, Touched, change_job};
use super::index::Index;
use super::kernel::{Answer, Answers, Question, REFUSED};
use super::locks::LockJob;
use super::making::{Make, NewKind};
use super::object::{is_read_only, status};
use super::ticket::Work;
use super::transfer::Asked;
use super::tree::Tree;

/// How long it is believed whether the files are read-only.
const MOUNT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

fn owned(EntryName { directory, name }: EntryName<'_>) -> OwnedName {
    (directory.object, name.into())
}

impl DirectoryStore {
    /// What a step answers that found this, unless it has a question to which there is no answer yet.
    #[inline]
    pub(super) fn settle<T>(&self, found: Result<T, FsError>) -> ReadStep<T> {
        if self.kernel.is_missing() { Err(self.put_missing()) } else { Ok(found?) }
    }

    /// Gives the question of the step in hand to a helper.
    #[cold]
    fn put_missing(&self) -> Blocked {
        let Some(question) = self.kernel.take_missing() else { return Blocked::Fails(FsError::Fault) };
        let errands = &mut *self.errands.borrow_mut();
        let asking = self.asking(question.clone(), errands.changes());
        if errands.is_full() {
            return Blocked::Fails(REFUSED);
        }
        let place = if question.is_search() {
            errands.await_walk(Errand::Step(asking))
        } else if let Some((object, wanted)) = question.lock() {
            let place = errands.await_turn(Errand::Step(asking));
            let first = self.locks.borrow_mut().push(object, place, LockJob::Lock(wanted));
            if let Some(work) = first {
                errands.set_locks(place, work);
            }
            place
        } else {
            errands.begin(Errand::Step(asking), self.job_of(question))
        };
        Blocked::Waits(Work::Errand(place).ticket())
    }

    /// A question of the operation in hand, with the answers that this had.
    fn asking(&self, question: Question, changes: u64) -> Asking {
        let since = if self.kernel.has_answers() { self.answered_since.get() } else { changes };
        Asking { question, answers: self.kernel.take_answers(), since }
    }

    fn job_of(&self, question: Question) -> impl FnOnce() -> Done + Send + 'static {
        let (marks, bin) = (self.kernel.marks(), self.kernel.bin());
        move || Done::Answered(question.put(&marks, bin.as_ref()))
    }

    /// What has to be on stable storage when an object has changed.
    pub(super) fn target(&self, tree: &mut Tree, index: Index) -> Result<SyncTarget, FsError> {
        if !self.sync {
            return Ok(None);
        }
        match tree.reopen(index, false) {
            Ok(file) => Ok(Some((tree.id(index), file))),
            // No file or directory; or not for us to open. See the module.
            Err(Errno::INVAL | Errno::ACCESS | Errno::PERM) => Ok(None),
            Err(error) => Err(status(error)),
        }
    }

    /// Makes a change, or lets a helper do it. What it touches was seen before.
    fn change(
        &mut self,
        change: Change,
        note: Note,
        touched: Touched,
    ) -> Result<Progress<Option<ObjectStat>>, Blocked> {
        if self.kernel.is_immediate() {
            let outcome = change.run(&self.actor, None, &[]);
            self.finished.get_mut().clear();
            self.verifier.note_change();
            let ended = self.note(note, outcome);
            self.changed.extend(ended.targets);
            return Ok(Progress::Done(match ended.result? {
                Finished::Made(made) => Some(made),
                _ => None,
            }));
        }
        let errands = self.errands.get_mut();
        if errands.is_full() {
            return Err(REFUSED.into());
        }
        let mut looks = Vec::new();
        if !self.kernel.knows_what_is_open() {
            let tree = self.tree.get_mut();
            let files = touched.iter().filter_map(|id| Some((*id, tree.path_fd(tree.known_as(*id)?).ok()?)));
            looks.extend(files);
        }
        let is_disturbed = self.kernel.has_answers() && self.answered_since.get() != errands.changes();
        drop(self.kernel.take_answers());
        let changing = Changing { note: Some(note), touched, is_disturbed, ended: None };
        let place =
            errands.begin_change(changing, change_job(change, self.actor.helper(), &self.kernel, looks));
        Ok(Progress::Later(Work::Errand(place).ticket()))
    }

    fn change_quietly(&mut self, change: Change, note: Note, touched: Touched) -> ChangeStep<()> {
        Ok(match self.change(change, note, touched)? {
            Progress::Done(_) => Progress::Done(()),
            Progress::Later(ticket) => Progress::Later(ticket),
        })
    }

    /// Notes what a change did.
    fn note(&mut self, note: Note, outcome: Outcome) -> Ended {
        let Outcome { result, targets, after } = outcome;
        let result = result.map(|made| self.note_made(note, made));
        let targets = targets.into_iter().map(|(id, file)| (id.fileid, file)).collect();
        Ended { result, targets, after }
    }

    fn note_made(&mut self, note: Note, made: Option<MadeObject>) -> Finished {
        let tree = self.tree.get_mut();
        match (note, made) {
            (Note::Made((above, name)), Some(MadeObject { identified, opened })) => {
                let (id, found) = (identified.id, identified.found);
                // What was forgotten meanwhile is found again when it is asked for.
                if let Some(parent) = tree.known_as(above) {
                    if found.kind == ObjectKind::Regular {
                        tree.note_made(parent, &name, identified);
                    } else {
                        let index = tree.note_identified(parent, &name, identified);
                        if let Some(opened) = opened {
                            tree.keep_opened(index, opened, false);
                        }
                    }
                }
                return Finished::Made(found.attributes(id));
            }
            (Note::Removed(from, gone), _) => self.forget(&from, &gone),
            (Note::Renamed { from, to, moved: (moved, kind), replaced }, _) => {
                if let Some(replaced) = replaced {
                    self.forget(&to, &replaced);
                }
                let tree = self.tree.get_mut();
                let id = tree.known(moved.fileid).map(|index| tree.id(index));
                if let Some(source) = tree.known_as(from.0) {
                    tree.forget_name(source, &from.1, moved.fileid, false);
                }
                if let (Some(id), Some(target)) = (id, tree.known_as(to.0)) {
                    tree.note(target, &to.1, id, kind);
                }
            }
            (Note::Linked((above, name), (object, kind)), _) => {
                if let Some(parent) = tree.known_as(above) {
                    tree.note(parent, &name, object, kind);
                }
            }
            (Note::Set | Note::Made(_), _) => {}
        }
        Finished::Changed
    }

    fn forget(&mut self, (above, name): &OwnedName, Gone { fileid, was_last }: &Gone) {
        let tree = self.tree.get_mut();
        if let Some(index) = tree.known_as(*above) {
            tree.forget_name(index, name, *fileid, *was_last);
        } else if let Some(index) = tree.known(*fileid).filter(|_| *was_last) {
            tree.remove(index);
        }
        self.unsynced.forget_deleted(*fileid, (!self.kernel.knows_what_is_open()).then_some(*was_last));
    }

    /// Makes an object.
    pub(super) fn make_object(
        &mut self,
        user: &UserIdentity,
        at: EntryName<'_>,
        what: NewObject<'_>,
        wanted: &NewAttributes,
    ) -> ChangeStep<ObjectStat> {
        let prepared = {
            let tree = &mut *self.tree.borrow_mut();
            (|| {
                let parent = tree.find(at.directory.object)?;
                tree.check_depth(parent)?;
                Ok((tree.path_fd(parent)?, self.target(tree, parent)?))
            })()
        };
        let (look, target) = self.settle(prepared)?;
        let make = Make {
            user: *user,
            look,
            above: *at.directory,
            name: at.name.into(),
            what: NewKind::new(what),
            wanted: *wanted,
            target,
            syncs: self.sync,
            marks: self.kernel.marks(),
        };
        let touched = [at.directory.object].into_iter().collect();
        match self.change(Change::Make(make), Note::Made(owned(at)), touched)? {
            Progress::Done(made) => Ok(Progress::Done(made.ok_or(FsError::Fault)?)),
            Progress::Later(ticket) => Ok(Progress::Later(ticket)),
        }
    }

    /// Removes a name.
    pub(super) fn remove_name(
        &mut self,
        user: &UserIdentity,
        at: EntryName<'_>,
        seen: &ObjectStat,
    ) -> ChangeStep<()> {
        let prepared = {
            let tree = &mut *self.tree.borrow_mut();
            (|| {
                let index = tree.find(at.directory.object)?;
                Ok((tree.path_fd(index)?, self.target(tree, index)?))
            })()
        };
        let (above, target) = self.settle(prepared)?;
        let is_directory = seen.kind == ObjectKind::Directory;
        let remove = Remove { user: *user, above, name: at.name.into(), is_directory, target };
        let touched = [at.directory.object, seen.object].into_iter().collect();
        self.change_quietly(Change::Remove(remove), Note::Removed(owned(at), Gone::of(seen)), touched)
    }

    /// Renames.
    pub(super) fn change_name(
        &mut self,
        user: &UserIdentity,
        from: EntryName<'_>,
        to: EntryName<'_>,
        RenameSeen { moved, replaced }: RenameSeen<'_>,
        is_free: bool,
    ) -> ChangeStep<()> {
        let prepared = {
            let tree = &mut *self.tree.borrow_mut();
            (|| {
                let source = tree.find(from.directory.object)?;
                let source_look = tree.path_fd(source)?;
                let target = tree.find(to.directory.object)?;
                let target_look = tree.path_fd(target)?;
                tree.check_depth(target)?;
                let targets = [self.target(tree, source)?, self.target(tree, target)?];
                Ok((source_look, target_look, targets))
            })()
        };
        let (source, target, targets) = self.settle(prepared)?;
        let (from_name, to_name) = ((source, from.name.into()), (target, to.name.into()));
        let rename = Rename { user: *user, from: from_name, to: to_name, is_free, targets };
        let note = Note::Renamed {
            from: owned(from),
            to: owned(to),
            moved: (moved.object, moved.kind),
            replaced: replaced.map(Gone::of),
        };
        let touched = [from.directory.object, to.directory.object, moved.object].into_iter();
        let touched = touched.chain(replaced.map(|replaced| replaced.object)).collect();
        self.change_quietly(Change::Rename(rename), note, touched)
    }

    /// Gives an object one more name.
    pub(super) fn add_name(&mut self, seen: &ObjectStat, at: EntryName<'_>) -> ChangeStep<()> {
        let prepared = {
            let tree = &mut *self.tree.borrow_mut();
            (|| {
                let parent = tree.find(at.directory.object)?;
                let look = tree.path_fd(parent)?;
                tree.check_depth(parent)?;
                let index = tree.find(seen.object)?;
                let targets = [self.target(tree, index)?, self.target(tree, parent)?];
                Ok((tree.path_fd(index)?, look, targets))
            })()
        };
        let (object, above, targets) = self.settle(prepared)?;
        let link = Link { object, above, name: at.name.into(), targets };
        let touched = [at.directory.object, seen.object].into_iter().collect();
        let note = Note::Linked(owned(at), (seen.object, seen.kind));
        self.change_quietly(Change::Link(link), note, touched)
    }

    /// Sets attributes of an object that was `seen` so.
    pub(super) fn set_attributes(&mut self, seen: &ObjectStat, set: &Update) -> ChangeStep<()> {
        let prepared = {
            let tree = &mut *self.tree.borrow_mut();
            (|| {
                let index = tree.find(seen.object)?;
                let look = tree.path_fd(index)?;
                let target = self.target(tree, index)?;
                // What cannot be opened cannot be cut.
                let file = set.size.map(|_| tree.reopen(index, true)).transpose().map_err(status)?;
                Ok((look, target, file))
            })()
        };
        let (look, target, file) = self.settle(prepared)?;
        let job = Set { seen: *seen, set: *set, look, file, target };
        let touched = [seen.object].into_iter().collect();
        self.change_quietly(Change::Update(job), Note::Set, touched)
    }

    /// Reserves or gives up space of a file that was `seen` so.
    pub(super) fn change_file_space(
        &mut self,
        user: &UserIdentity,
        seen: &ObjectStat,
        octets: Range<u64>,
        change: SpaceChange,
    ) -> ChangeStep<()> {
        let prepared = {
            let tree = &mut *self.tree.borrow_mut();
            (|| {
                let index = tree.find(seen.object)?;
                let target = self.target(tree, index)?;
                Ok((target, tree.reopen(index, true).map_err(status)?))
            })()
        };
        let (target, file) = self.settle(prepared)?;
        let job = ChangeSpace { user: *user, file, octets, change, target };
        let touched = [seen.object].into_iter().collect();
        self.change_quietly(Change::Space(job), Note::Set, touched)
    }

    /// Sets access control lists.
    pub(super) fn change_lists(
        &mut self,
        user: &UserIdentity,
        seen: &ObjectStat,
        set: &SetLists,
    ) -> ChangeStep<()> {
        let prepared = {
            let tree = &mut *self.tree.borrow_mut();
            (|| {
                let index = tree.find(seen.object)?;
                let target = self.target(tree, index)?;
                Ok((tree.file_for_acl(index)?, target))
            })()
        };
        let (file, target) = self.settle(prepared)?;
        let lists = ChangeLists { user: *user, set: set.clone(), file, target };
        let touched = [seen.object].into_iter().collect();
        self.change_quietly(Change::Lists(lists), Note::Set, touched)
    }

    /// Whether the files are read-only, as far as that is known at once.
    pub(super) fn is_mounted_read_only(&self) -> bool {
        let (now, trust) = {
            let tree = self.tree.borrow();
            (tree.now, tree.trust())
        };
        let is_cheap = self.kernel.is_immediate();
        let believed = if is_cheap { MOUNT_CHECK_INTERVAL.min(trust) } else { MOUNT_CHECK_INTERVAL };
        if self.mount_checked.get().is_none_or(|checked| now >= checked + believed) {
            if is_cheap {
                self.mount_checked.set(Some(now));
                let is_read_only = self.tree.borrow().path_fd(super::ROOT).map(|root| is_read_only(&*root));
                self.read_only.set(is_read_only.unwrap_or(false));
                return self.read_only.get();
            }
            let errands = &mut *self.errands.borrow_mut();
            if let Ok(root) = self.tree.borrow().path_fd(super::ROOT)
                && !errands.is_full()
            {
                self.mount_checked.set(Some(now));
                errands.begin(Errand::Mount, move || Done::ReadOnly(is_read_only(&*root)));
            }
        }
        self.read_only.get()
    }

    /// Goes on with what helpers have done.
    pub(super) fn poll_helpers(&mut self) {
        self.kernel.resume(Answers::default());
        self.told.get_mut().clear();
        while let Some((place, errand, done)) = self.errands.get_mut().poll() {
            let answer = |done| match done {
                Some(Done::Answered(answer)) => answer,
                _ => Err(Errno::IO),
            };
            match errand {
                Errand::Step(mut asking) => {
                    let answer = match (asking.question.lock(), done) {
                        (Some((object, _)), Some(Done::Locked(outcome))) => {
                            self.end_lock_job(object, Some(&outcome));
                            outcome.result.map(Answer::Lock)
                        }
                        (Some((object, _)), _) => {
                            self.end_lock_job(object, None);
                            Err(Errno::IO)
                        }
                        (None, done) => answer(done),
                    };
                    asking.answers.add(asking.question.clone(), answer);
                    self.errands.get_mut().end(place, Errand::Step(asking));
                }
                Errand::Relax(object) => {
                    let outcome = match &done {
                        Some(Done::Locked(outcome)) => Some(outcome),
                        _ => None,
                    };
                    self.end_lock_job(object, outcome);
                    self.note_relaxed(object, outcome.map_or(Err(Errno::IO), |outcome| outcome.result));
                    self.errands.get_mut().end(place, Errand::Relax(object));
                }
                Errand::Transfer(asked, asking) => self.admit_again(asked, asking, answer(done)),
                Errand::Change(mut changing) => {
                    changing.ended = Some(match (changing.note.take(), done) {
                        (Some(note), Some(Done::Changed(outcome))) => self.note(note, *outcome),
                        _ => {
                            Ended { result: Err(FsError::Fault), targets: ArrayVec::new(), after: Vec::new() }
                        }
                    });
                    self.finished.get_mut().clear();
                    self.verifier.note_change();
                    self.errands.get_mut().end(place, Errand::Change(changing));
                }
                Errand::Walk => {
                    let walk = match done {
                        Some(Done::Walked(walk)) => Some(walk),
                        _ => None,
                    };
                    self.tree.get_mut().take_back(walk);
                    for (asked, asking) in self.errands.get_mut().end_walk() {
                        self.admit_again(asked, asking, Ok(Answer::Done));
                    }
                }
                Errand::Mount => {
                    if let Some(Done::ReadOnly(is_read_only)) = done {
                        self.read_only.set(is_read_only);
                    }
                }
                Errand::Closing => self.is_closing = false,
            }
        }
        if !self.is_closing {
            let closed = self.kernel.to_close();
            if !closed.is_empty() {
                self.is_closing = true;
                self.errands.get_mut().begin(Errand::Closing, move || {
                    drop(closed);
                    Done::Closed
                });
            }
        }
        if let Some(mut walk) = self.tree.get_mut().search.lend() {
            self.errands.get_mut().begin(Errand::Walk, move || {
                walk.go_far();
                Done::Walked(walk)
            });
        }
    }

    /// Examines a transfer again, whose question has an answer.
    fn admit_again(&mut self, asked: Asked, asking: Asking, answer: Result<Answer, Errno>) {
        let Asking { question, mut answers, since } = asking;
        answers.add(question, answer);
        self.kernel.resume(answers);
        self.answered_since.set(since);
        self.asked.clear();
        self.admit_one(asked);
        self.asked.clear();
        self.kernel.resume(Answers::default());
    }

    /// Admits or refuses a transfer, or asks for what that decision needs.
    pub(super) fn admit_one(&mut self, asked: Asked) {
        let admitted = match asked.write {
            None => self.admit_read(&asked),
            Some(stable) => self.admit_write(&asked, stable),
        };
        if let Some(question) = self.kernel.take_missing() {
            let changes = self.errands.get_mut().changes();
            let asking = self.asking(question.clone(), changes);
            let job = self.job_of(question.clone());
            let errands = self.errands.get_mut();
            if errands.is_full() {
                return self.transfers.refuse(asked.index, REFUSED);
            }
            let errand = Errand::Transfer(asked, asking);
            if question.is_search() {
                errands.await_walk(errand);
            } else {
                errands.begin(errand, job);
            }
            return;
        }
        if let Err(status) = admitted {
            self.transfers.refuse(asked.index, status);
        }
    }

    /// What came of a step or a change that a helper was at.
    pub(super) fn finish_errand(&mut self, place: u32) -> Result<Finished, FsError> {
        match self.errands.get_mut().take(place) {
            Some(Errand::Step(Asking { question, answers, since })) => {
                self.kernel.resume(answers);
                self.answered_since.set(since);
                if let Some(sought) = question.sought() {
                    // The answer is kept even if no step asks for it in this pass.
                    let _ = self.tree.get_mut().find(sought);
                    self.kernel.take_missing();
                }
                Ok(Finished::Ready)
            }
            Some(Errand::Change(changing)) => {
                let Changing { touched, is_disturbed, ended, .. } = *changing;
                let Some(Ended { result, targets, after }) = ended else { return Err(FsError::Fault) };
                self.changed.extend(targets);
                let told = self.told.get_mut();
                told.clear();
                if is_disturbed {
                    // What it is now would not tell what this change did.
                    told.extend(touched.iter().map(|object| (*object, None)));
                } else {
                    told.extend(after);
                }
                result
            }
            // What could not be given back is told to the administrator. The client has given it back.
            Some(Errand::Relax(_)) => Ok(Finished::Changed),
            _ => Err(FsError::Fault),
        }
    }

    /// The ticket of the next step or change that is over.
    pub(super) fn next_errand(&mut self) -> Option<Ticket> {
        self.errands.get_mut().next_ready().map(|place| Work::Errand(place).ticket())
    }

    /// What is known of an object that was just changed by a helper. `None`: nothing that is told.
    pub(super) fn told_of(&self, object: ObjectId) -> Option<Option<ObjectStat>> {
        let told = self.told.borrow();
        let (_, found) = told.iter().find(|(id, _)| *id == object)?;
        Some(found.map(|found| found.attributes(object)))
    }
}
