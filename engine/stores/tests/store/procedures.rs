//! The operations of a volume, one call each: objects by their ids, and whatever waits is waited for.
#![allow(dead_code, reason = "several test programs have this file, and none needs all of it")]

use std::any::Any;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::time::Duration;

use stag_memory::Shared;
use stag_vfs::{
    Acl, Blocked, ChangeStep, CreateMode, EntryName, ExtentKind, Finished, FsError, LINK_SPACE, ListStart,
    Listed, ObjectId, ObjectStat, Progress, ReadDone, ReadStep, SetLists, SpaceChange, Special, Stability,
    Store, StoreLimits, StoreVerifier, Ticket, Timestamp, Update, Usage, UserIdentity, Volume, WriteData,
    WriteDone,
};

pub(crate) struct Procedures {
    volume: RefCell<Volume<dyn Store>>,
    /// Tickets that were over while something else was waited for.
    ready: RefCell<VecDeque<Ticket>>,
}

/// Where a listing starts, with the verifier that came with the cookie.
#[derive(Clone, Copy)]
pub(crate) struct Start {
    pub(crate) cookie: u64,
    pub(crate) verifier: StoreVerifier,
    pub(crate) attributes: bool,
}

impl<S: Store> From<S> for Procedures {
    fn from(store: S) -> Procedures {
        let store: Box<dyn Store> = Box::new(store);
        Procedures { volume: RefCell::new(Volume::new(store)), ready: RefCell::default() }
    }
}

impl Procedures {
    /// What `ask` gets from the store of this kind.
    pub(crate) fn of<S: Store, T>(&self, ask: impl FnOnce(&S) -> T) -> T {
        let volume = self.volume.borrow();
        let store: &dyn Any = volume.store();
        ask(store.downcast_ref().expect("the store is of another kind"))
    }

    /// Whether the store is of this kind.
    pub(crate) fn is<S: Store>(&self) -> bool {
        let volume = self.volume.borrow();
        let store: &dyn Any = volume.store();
        store.is::<S>()
    }

    fn wait(&self, wanted: Ticket) -> Result<Finished, FsError> {
        let earlier = self.ready.borrow().iter().position(|ticket| *ticket == wanted);
        if let Some(at) = earlier {
            self.ready.borrow_mut().remove(at);
            return self.volume.borrow_mut().store_mut().finish(wanted, &mut Vec::new());
        }
        loop {
            let ready = self.volume.borrow_mut().store_mut().poll_later(Duration::ZERO);
            match ready {
                Some(ticket) if ticket == wanted => {
                    return self.volume.borrow_mut().store_mut().finish(ticket, &mut Vec::new());
                }
                Some(other) => self.ready.borrow_mut().push_back(other),
                None => std::thread::yield_now(),
            }
        }
    }

    /// Runs an operation that reads until it has an answer.
    fn read_step<T>(
        &self,
        mut step: impl FnMut(&mut Volume<dyn Store>) -> ReadStep<T>,
    ) -> Result<T, FsError> {
        let mut has_waited = false;
        let found = loop {
            let found = step(&mut self.volume.borrow_mut());
            match found {
                Ok(found) => break Ok(found),
                Err(Blocked::Fails(error)) => break Err(error),
                Err(Blocked::Waits(ticket)) => {
                    self.wait(ticket)?;
                    has_waited = true;
                }
            }
        };
        if has_waited {
            // The answers were for this operation: the next begins in another pass.
            let ready = self.volume.borrow_mut().store_mut().poll_later(Duration::ZERO);
            self.ready.borrow_mut().extend(ready);
        }
        found
    }

    fn change(&self, step: impl FnMut(&mut Volume<dyn Store>) -> ChangeStep<()>) -> Result<(), FsError> {
        match self.read_step(step)? {
            Progress::Done(()) => Ok(()),
            Progress::Later(ticket) => self.wait(ticket).map(drop),
        }
    }

    fn make(
        &self,
        directory: ObjectId,
        name: &[u8],
        mut step: impl FnMut(&mut Volume<dyn Store>, EntryName<'_>) -> ChangeStep<ObjectStat>,
    ) -> Result<ObjectId, FsError> {
        let made = self.read_step(|volume| {
            let directory = volume.stat(directory)?;
            step(volume, EntryName { directory: &directory, name })
        })?;
        match made {
            Progress::Done(made) => Ok(made.object),
            Progress::Later(ticket) => match self.wait(ticket)? {
                Finished::Made(made) => Ok(made.object),
                _ => self.lookup(&UserIdentity::ROOT, directory, name),
            },
        }
    }

    pub(crate) fn fsid(&self) -> u64 {
        self.volume.borrow().profile().fsid
    }

    pub(crate) fn volume(&self) -> u64 {
        self.volume.borrow().profile().volume
    }

    pub(crate) fn root(&self) -> ObjectId {
        self.volume.borrow().profile().root
    }

    pub(crate) fn limits(&self) -> StoreLimits {
        self.volume.borrow().profile().limits
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.volume.borrow().store().is_read_only()
    }

    pub(crate) fn check_place(&self) -> Result<(), FsError> {
        self.read_step(|volume| volume.store().check_place())
    }

    pub(crate) fn usage(&self) -> Usage {
        self.read_step(|volume| volume.store().usage()).unwrap()
    }

    pub(crate) fn write_verifier(&self) -> StoreVerifier {
        self.volume.borrow().store().write_verifier()
    }

    pub(crate) fn attributes(&self, object: ObjectId) -> Result<ObjectStat, FsError> {
        self.read_step(|volume| volume.stat(object))
    }

    pub(crate) fn before(&self, object: ObjectId) -> Option<ObjectStat> {
        if self.volume.borrow().store().is_changing(object) { None } else { self.attributes(object).ok() }
    }

    pub(crate) fn attributes_after(&self, object: ObjectId) -> Result<ObjectStat, FsError> {
        self.volume.borrow().store().stat_after(object).ok_or(FsError::Stale)
    }

    pub(crate) fn lookup(
        &self,
        user: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
    ) -> Result<ObjectId, FsError> {
        self.read_step(|volume| {
            let directory = volume.stat(directory)?;
            volume.lookup(user, &directory, name).map(|found| found.object)
        })
    }

    pub(crate) fn access(&self, user: &UserIdentity, object: ObjectId, wanted: u32) -> Result<u32, FsError> {
        self.read_step(|volume| {
            let seen = volume.stat(object)?;
            volume.access(user, &seen, wanted)
        })
    }

    /// The access list and the default list.
    pub(crate) fn lists(&self, object: ObjectId) -> Result<(Option<Acl>, Option<Acl>), FsError> {
        self.read_step(|volume| {
            let access = volume.access_acl(&volume.stat(object)?)?.map(Cow::into_owned);
            Ok((access, volume.default_acl(object)?.map(Cow::into_owned)))
        })
    }

    pub(crate) fn set_lists(
        &mut self,
        user: &UserIdentity,
        object: ObjectId,
        set: &SetLists,
        now: Timestamp,
    ) -> Result<(), FsError> {
        self.change(|volume| {
            let seen = volume.stat(object)?;
            volume.set_lists(user, &seen, set, now)
        })
    }

    pub(crate) fn set_attributes(
        &mut self,
        user: &UserIdentity,
        object: ObjectId,
        set: &Update,
        now: Timestamp,
    ) -> Result<(), FsError> {
        self.change(|volume| {
            let seen = volume.stat(object)?;
            volume.set_attributes(user, &seen, set, now)
        })
    }

    /// Sets attributes if the last change was then.
    pub(crate) fn set_guarded(
        &mut self,
        user: &UserIdentity,
        object: ObjectId,
        set: &Update,
        ctime: Timestamp,
        now: Timestamp,
    ) -> Result<(), FsError> {
        if self.attributes(object)?.ctime != ctime {
            return Err(FsError::NotSame);
        }
        self.set_attributes(user, object, set, now)
    }

    pub(crate) fn read_link(&self, object: ObjectId, now: Timestamp) -> Result<Vec<u8>, FsError> {
        self.read_step(|volume| {
            let seen = volume.stat(object)?;
            volume.read_link(&seen, &mut [0; LINK_SPACE], now).map(<[u8]>::to_vec)
        })
    }

    pub(crate) fn create(
        &mut self,
        user: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        how: &CreateMode,
        now: Timestamp,
    ) -> Result<ObjectId, FsError> {
        self.make(directory, name, |volume, at| volume.create(user, at.directory, name, how, now))
    }

    pub(crate) fn make_directory(
        &mut self,
        user: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        set: &Update,
        now: Timestamp,
    ) -> Result<ObjectId, FsError> {
        self.make(directory, name, |volume, at| volume.make_directory(user, at, set, now))
    }

    pub(crate) fn make_symlink(
        &mut self,
        user: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        path: &[u8],
        set: &Update,
        now: Timestamp,
    ) -> Result<ObjectId, FsError> {
        self.make(directory, name, |volume, at| volume.make_symlink(user, at, path, set, now))
    }

    pub(crate) fn make_special(
        &mut self,
        user: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        special: Special,
        set: &Update,
        now: Timestamp,
    ) -> Result<ObjectId, FsError> {
        self.make(directory, name, |volume, at| volume.make_special(user, at, special, set, now))
    }

    pub(crate) fn remove(
        &mut self,
        user: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        now: Timestamp,
    ) -> Result<(), FsError> {
        self.change(|volume| {
            let directory = &volume.stat(directory)?;
            volume.remove(user, EntryName { directory, name }, now)
        })
    }

    pub(crate) fn remove_directory(
        &mut self,
        user: &UserIdentity,
        directory: ObjectId,
        name: &[u8],
        now: Timestamp,
    ) -> Result<(), FsError> {
        self.change(|volume| {
            let directory = &volume.stat(directory)?;
            volume.remove_directory(user, EntryName { directory, name }, now)
        })
    }

    pub(crate) fn rename(
        &mut self,
        user: &UserIdentity,
        from: (ObjectId, &[u8]),
        to: (ObjectId, &[u8]),
        now: Timestamp,
    ) -> Result<(), FsError> {
        self.change(|volume| {
            let (source, target) = (&volume.stat(from.0)?, &volume.stat(to.0)?);
            let from = EntryName { directory: source, name: from.1 };
            volume.rename(user, from, EntryName { directory: target, name: to.1 }, now)
        })
    }

    pub(crate) fn link(
        &mut self,
        user: &UserIdentity,
        object: ObjectId,
        directory: ObjectId,
        name: &[u8],
        now: Timestamp,
    ) -> Result<(), FsError> {
        self.change(|volume| {
            let (seen, directory) = (volume.stat(object)?, &volume.stat(directory)?);
            volume.link(user, &seen, EntryName { directory, name }, now)
        })
    }

    pub(crate) fn list_verifier(&self, directory: ObjectId) -> Result<StoreVerifier, FsError> {
        self.read_step(|volume| Ok(volume.list_verifier(&volume.stat(directory)?)?))
    }

    pub(crate) fn list(
        &self,
        user: &UserIdentity,
        directory: ObjectId,
        Start { cookie, verifier, attributes }: Start,
        now: Timestamp,
        mut visit: impl FnMut(Listed<'_>) -> bool,
    ) -> Result<bool, FsError> {
        // What was shown before it had to wait is not shown again.
        let mut shown = 0;
        self.read_step(|volume| {
            let directory = volume.stat(directory)?;
            let mut passed = 0;
            let start = ListStart { cookie, attributes };
            volume.list(user, &directory, start, verifier, now, &mut |entry| {
                passed += 1;
                if passed <= shown {
                    return true;
                }
                shown = passed;
                visit(entry)
            })
        })
    }

    pub(crate) fn read(
        &mut self,
        user: &UserIdentity,
        object: ObjectId,
        offset: u64,
        count: u32,
        pieces: &mut Vec<Shared>,
        now: Timestamp,
    ) -> Result<Progress<ReadDone>, FsError> {
        self.read_step(|volume| volume.read(user, object, (offset, count), pieces, now))
    }

    pub(crate) fn write(
        &mut self,
        user: &UserIdentity,
        object: ObjectId,
        offset: u64,
        mut data: WriteData<'_>,
        stability: Stability,
        now: Timestamp,
    ) -> Result<Progress<WriteDone>, FsError> {
        self.read_step(|volume| {
            let data = match &mut data {
                WriteData::Inline(octets) => WriteData::Inline(octets),
                WriteData::Placed(pieces) => WriteData::Placed(pieces),
            };
            volume.write(user, object, offset, data, stability, now)
        })
    }

    /// Where data or a hole is.
    pub(crate) fn seek(
        &self,
        user: &UserIdentity,
        object: ObjectId,
        offset: u64,
        kind: ExtentKind,
    ) -> Result<Option<u64>, FsError> {
        self.read_step(|volume| {
            let seen = volume.stat(object)?;
            volume.seek(user, &seen, offset, kind)
        })
    }

    pub(crate) fn change_space(
        &mut self,
        user: &UserIdentity,
        object: ObjectId,
        octets: (u64, u64),
        change: SpaceChange,
        now: Timestamp,
    ) -> Result<(), FsError> {
        self.change(|volume| {
            let seen = volume.stat(object)?;
            volume.change_space(user, &seen, octets, change, now)
        })
    }

    pub(crate) fn commit(&mut self, object: ObjectId) -> Result<Progress<()>, FsError> {
        self.read_step(|volume| volume.commit(object, 0, 0))
    }

    pub(crate) fn commit_changes(&mut self) -> Progress<()> {
        self.volume.borrow_mut().store_mut().sync_changes()
    }

    pub(crate) fn give_up_files(&mut self) {
        self.volume.borrow_mut().store_mut().give_up_files();
    }

    pub(crate) fn poll_later(&mut self, now: Duration) -> Option<Ticket> {
        let ready = self.ready.borrow_mut().pop_front();
        ready.or_else(|| self.volume.borrow_mut().store_mut().poll_later(now))
    }

    pub(crate) fn finish(&mut self, ticket: Ticket, pieces: &mut Vec<Shared>) -> Result<Finished, FsError> {
        self.volume.borrow_mut().store_mut().finish(ticket, pieces)
    }

    pub(crate) fn descriptor(&self) -> Option<RawFd> {
        self.volume.borrow().store().descriptor()
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.volume.borrow().store().is_busy()
    }
}
