//! Copies a tree as jobs that several workers take. Only the folders on the way to the current jobs are in memory
//! at once. The same walk serves local folders and a server's, which no crate for local trees does.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, ReadDir};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use stag_wire::nfs3::Status;

use super::flight::Allowance;
use super::found::{Found, Kind, MODE_MASK, SPECIAL_MASK};
use super::halt::{Halt, local, remains};
use super::keep;
use super::options::CopyOptions;
use super::report::{Copied, Progress};
use crate::failure::CommandFailure;
use crate::remote::listing::Listing;
use crate::remote::session::{Session, Tasks};
use crate::remote::{RemoteEntry, RemoteError, RemoteHandle, RemoteNode};
use crate::url::Place;

/// Names of a folder of this machine that are looked at together.
const NAMES_AT_ONCE: usize = 256;

/// Where one end of the copy lies.
pub(super) enum End {
    Local,
    Remote(Session),
}

impl End {
    /// The connection of a place that is a server's.
    pub(super) fn session(&self) -> Option<&Session> {
        match self {
            End::Local => None,
            End::Remote(session) => Some(session),
        }
    }
}

/// What is copied.
pub(super) struct Source {
    pub(super) place: Place,
    /// Of a server's file.
    pub(super) handle: Option<RemoteHandle>,
    pub(super) found: Found,
}

/// A folder of the target. When nothing is left to be put into it, its end becomes a job.
pub(super) struct Folder {
    pub(super) place: Place,
    /// Of a server's folder.
    pub(super) handle: Option<RemoteHandle>,
    parent: Option<Rc<Folder>>,
    end: Option<FolderEnd>,
    jobs: Rc<Jobs>,
}

/// What happens to a folder when it is full.
pub(super) enum FolderEnd {
    /// Without permissions that it only had so that it could be filled.
    Mode(u32),
    /// As its source, with the owner and group that it was made with.
    Like(Found, (u32, u32)),
}

impl Folder {
    /// The one that the copy goes into.
    pub(super) fn top(place: Place, handle: Option<RemoteHandle>, jobs: Rc<Jobs>) -> Rc<Folder> {
        Rc::new(Folder { place, handle, parent: None, end: None, jobs })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let mut parent = self.parent.take();
        let Some(end) = self.end.take() else {
            // A loop, for a tree may be as deep as it likes.
            while let Some(mut folder) = parent.and_then(Rc::into_inner) {
                parent = if folder.end.is_none() { folder.parent.take() } else { None };
            }
            return;
        };
        let (place, handle) = (self.place.clone(), self.handle.take());
        // Its own folder is not full before.
        self.jobs.push(Job::End { place, handle, end, _parent: parent });
    }
}

/// Something to do.
pub(super) enum Job {
    /// Copies an object; of a folder, begins it.
    Object { place: Place, node: Option<RemoteNode>, into: Rc<Folder>, name: OsString, is_top: bool },
    /// Goes on with the names of a folder.
    Names { source: Place, names: Names, into: Rc<Folder> },
    /// Gives a folder that is full its attributes.
    End { place: Place, handle: Option<RemoteHandle>, end: FolderEnd, _parent: Option<Rc<Folder>> },
}

/// Names of a folder that were not looked at yet.
pub(super) enum Names {
    Local(ReadDir),
    Remote(RemoteHandle, Listing),
}

impl Names {
    /// Of a server's folder.
    fn handle(&self) -> Option<&RemoteHandle> {
        match self {
            Names::Local(_) => None,
            Names::Remote(handle, _) => Some(handle),
        }
    }
}

/// The jobs left to do, the newest first: so a tree is gone through in depth.
pub(super) struct Jobs {
    list: RefCell<Vec<Job>>,
    busy: Cell<usize>,
    tasks: Rc<Tasks>,
}

impl Jobs {
    pub(super) fn new(tasks: Rc<Tasks>) -> Rc<Jobs> {
        Rc::new(Jobs { list: RefCell::default(), busy: Cell::new(0), tasks })
    }

    pub(super) fn push(&self, job: Job) {
        self.list.borrow_mut().push(job);
        self.tasks.note();
    }

    /// Forgets all but the ends of folders.
    fn give_up(&self) {
        let list = std::mem::take(&mut *self.list.borrow_mut());
        // Dropped outside of the borrow: that makes jobs.
        let (ends, given_up): (Vec<Job>, Vec<Job>) =
            list.into_iter().partition(|job| matches!(job, Job::End { .. }));
        self.list.borrow_mut().extend(ends);
        drop(given_up);
    }

    /// The next job; `None` when there is and will be none.
    async fn take(&self) -> Option<Job> {
        self.tasks
            .until(|| {
                let job = self.list.borrow_mut().pop();
                if job.is_some() {
                    self.busy.set(self.busy.get() + 1);
                }
                (job.is_some() || self.busy.get() == 0).then_some(job)
            })
            .await
    }

    fn done(&self) {
        self.busy.set(self.busy.get() - 1);
        self.tasks.note();
    }
}

/// The first name of a file that has several.
enum FirstName {
    /// It is being copied.
    Busy,
    /// Where its copy is, and how many of its names are still to come.
    Copied { place: Place, handle: Option<RemoteHandle>, left: u64 },
}

/// A copy under way.
pub(super) struct Copier {
    pub(super) options: CopyOptions,
    pub(super) source: End,
    pub(super) target: End,
    pub(super) tasks: Rc<Tasks>,
    pub(super) jobs: Rc<Jobs>,
    pub(super) allowance: Allowance,
    pub(super) copied: RefCell<Copied>,
    pub(super) progress: Progress,
    /// Files that are written to at the moment.
    pub(super) partial: RefCell<Vec<Place>>,
    /// Partial files that could not be removed, and why.
    pub(super) remains: RefCell<Vec<(Place, &'static str)>>,
    /// Why it was given up: a failure of one file alone is reported at once.
    pub(super) failure: RefCell<Option<CommandFailure>>,
    pub(super) is_halted: Cell<bool>,
    first_names: RefCell<HashMap<(u64, u64), FirstName>>,
}

impl Copier {
    pub(super) fn new(
        options: CopyOptions,
        source: End,
        target: End,
        tasks: Rc<Tasks>,
        progress: Progress,
    ) -> Copier {
        Copier {
            options,
            source,
            target,
            jobs: Jobs::new(Rc::clone(&tasks)),
            allowance: Allowance::new(Rc::clone(&tasks)),
            tasks,
            copied: RefCell::default(),
            progress,
            partial: RefCell::default(),
            remains: RefCell::default(),
            failure: RefCell::default(),
            is_halted: Cell::new(false),
            first_names: RefCell::default(),
        }
    }

    /// Takes jobs until there are none.
    pub(super) async fn work(&self) {
        while let Some(job) = self.jobs.take().await {
            let is_top = matches!(job, Job::Object { is_top: true, .. });
            if let Err(Halt::Failed(failure)) = self.run(job).await {
                self.fail(failure, is_top);
            }
            self.jobs.done();
        }
    }

    /// A part of the tree was not copied. The rest goes on, unless it would fail in the same way.
    fn fail(&self, failure: CommandFailure, is_top: bool) {
        let mut sessions = self.source.session().into_iter().chain(self.target.session());
        if is_top || self.is_halted.get() || sessions.any(Session::is_useless) {
            self.failure.borrow_mut().get_or_insert(failure);
            return self.halt();
        }
        let remains = remains(self.remains.take());
        if self.copied.borrow_mut().note_failure(&failure, &remains) {
            self.progress.complain(&failure, &remains);
        }
    }

    /// Begins nothing new; what is incomplete is removed.
    pub(super) fn halt(&self) {
        self.is_halted.set(true);
        self.jobs.give_up();
        self.tasks.note();
    }

    /// Fails, if the copy was given up.
    pub(super) fn check(&self) -> Result<(), Halt> {
        if self.is_halted.get() { Err(Halt::Stopped) } else { Ok(()) }
    }

    async fn run(&self, job: Job) -> Result<(), Halt> {
        match job {
            Job::Object { place, node, into, name, is_top } => {
                self.check()?;
                let (handle, found) = match (node, &place) {
                    (Some(node), _) => (Some(node.handle), Found::of_attributes(&node.attributes)),
                    (None, Place::Local(path)) => {
                        let follow = is_top && !self.options.recursive;
                        let found = Found::local(path, follow).map_err(|error| local(path, &error))?;
                        // It was there when the folder was listed: somebody was faster.
                        let Some(found) = found else { return Ok(()) };
                        (None, found)
                    }
                    (None, Place::Remote(_)) => unreachable!("a listing has a server's node"),
                };
                let source = Source { place, handle, found };
                let copied = self.object(&source, &into, &name, is_top).await;
                let has_failed = matches!(copied, Err(Halt::Failed(_))) && !is_top;
                if has_failed && self.is_gone(&source.place, source.handle.as_ref()).await {
                    return Ok(());
                }
                copied
            }
            Job::Names { source, names, into } => {
                self.check()?;
                let (place, handle) = (source.clone(), names.handle().cloned());
                let listed = self.names(source, names, into).await;
                let has_failed = matches!(listed, Err(Halt::Failed(_)));
                if has_failed && self.is_gone(&place, handle.as_ref()).await {
                    return Ok(());
                }
                listed
            }
            Job::End { place, handle, end, .. } => {
                let ended = self.end_folder(&place, handle.as_ref(), &end).await;
                // After a failure this is a courtesy.
                if self.is_halted.get() { Ok(()) } else { ended }
            }
        }
    }

    /// Whether a source was removed since it was listed: then it is no failure that it was not copied.
    async fn is_gone(&self, place: &Place, handle: Option<&RemoteHandle>) -> bool {
        match (place, self.source.session(), handle) {
            (Place::Local(path), ..) => matches!(Found::local(path, false), Ok(None)),
            (_, Some(session), Some(handle)) => {
                session.attributes(handle).await.is_err_and(|error| error.is_gone())
            }
            _ => false,
        }
    }

    async fn object(
        &self,
        source: &Source,
        into: &Rc<Folder>,
        name: &OsStr,
        is_top: bool,
    ) -> Result<(), Halt> {
        let found = &source.found;
        match found.kind {
            Kind::Other(kind) => self.copied.borrow_mut().leave_out(&source.place, kind),
            Kind::Folder => return self.folder(source, into, name, is_top).await,
            Kind::Link => {
                self.link(source, into, name).await?;
                self.copied.borrow_mut().links += 1;
            }
            Kind::File if self.options.preserve && found.names > 1 => {
                return self.one_of_several_names(source, into, name, is_top).await;
            }
            Kind::File => {
                if found.names > 1 {
                    self.copied.borrow_mut().not_kept.hard_links += 1;
                }
                self.file(source, into, name, is_top).await?;
            }
        }
        self.note_special_bits(found);
        Ok(())
    }

    fn note_special_bits(&self, found: &Found) {
        let is_dropped = !self.options.preserve
            && found.mode & SPECIAL_MASK != 0
            && matches!(found.kind, Kind::File | Kind::Folder);
        self.copied.borrow_mut().not_kept.special_bits += u64::from(is_dropped);
    }

    /// Copies a file the first time that it is met, and gives the copy one more name each further time.
    async fn one_of_several_names(
        &self,
        source: &Source,
        into: &Rc<Folder>,
        name: &OsStr,
        is_top: bool,
    ) -> Result<(), Halt> {
        let id = source.found.id;
        let (first, handle) = loop {
            if !self.first_names.borrow().contains_key(&id) {
                self.first_names.borrow_mut().insert(id, FirstName::Busy);
                let copied = self.file(source, into, name, is_top).await;
                self.tasks.note();
                let handle = copied.inspect_err(|_| {
                    // The next name is the first one then.
                    self.first_names.borrow_mut().remove(&id);
                })?;
                let (place, left) = (into.place.join(name), source.found.names - 1);
                self.first_names.borrow_mut().insert(id, FirstName::Copied { place, handle, left });
                return Ok(());
            }
            match self.first_name(id).await {
                Some(first) => break first,
                None => self.check()?,
            }
        };
        let place = into.place.join(name);
        match (&first, &place, &self.target) {
            (Place::Local(first), Place::Local(path), _) => {
                let made = replacing(path, || fs::hard_link(first, path));
                made.map_err(|error| local(path, &error))?;
            }
            (_, _, End::Remote(session)) => {
                let (Some(first), Some(folder)) = (&handle, &into.handle) else {
                    unreachable!("a server's files have handles");
                };
                let made = match session.add_name(first, folder, name).await {
                    Err(RemoteError::Status(Status::Exist)) => {
                        match self.make_room(session, folder, name, Some(first)).await {
                            Ok(true) => session.add_name(first, folder, name).await,
                            Ok(false) => Ok(()),
                            Err(error) => Err(error),
                        }
                    }
                    made => made,
                };
                made.map_err(|error| error.at(&place))?;
            }
            _ => unreachable!("the target is at one end"),
        }
        self.copied.borrow_mut().hard_links += 1;
        Ok(())
    }

    /// Waits for the copy of the first name of a file. `None`: there is none, since it failed, or since somebody
    /// gave the file more names meanwhile; or the copy was given up.
    async fn first_name(&self, id: (u64, u64)) -> Option<(Place, Option<RemoteHandle>)> {
        let look = || {
            if self.is_halted.get() {
                return Some(None);
            }
            let mut first_names = self.first_names.borrow_mut();
            match first_names.get_mut(&id) {
                Some(FirstName::Busy) => None,
                Some(FirstName::Copied { place, handle, left }) => {
                    let first = (place.clone(), handle.clone());
                    *left -= 1;
                    if *left == 0 {
                        first_names.remove(&id);
                    }
                    Some(Some(first))
                }
                None => Some(None),
            }
        };
        self.tasks.until(look).await
    }

    /// Removes what has a name that is needed, unless it is `wanted` already (then `false`). Never a folder.
    async fn make_room(
        &self,
        session: &Session,
        folder: &RemoteHandle,
        name: &OsStr,
        wanted: Option<&RemoteHandle>,
    ) -> Result<bool, RemoteError> {
        let there = session.child(folder, name).await?;
        if there.is_folder() {
            return Err(RemoteError::Status(Status::IsDir));
        }
        if let Some(wanted) = wanted
            && session.attributes(wanted).await?.fileid == there.attributes.fileid
        {
            return Ok(false);
        }
        session.remove(folder, name).await?;
        Ok(true)
    }

    async fn link(&self, source: &Source, into: &Rc<Folder>, name: &OsStr) -> Result<(), Halt> {
        let held = match (&source.place, &self.source, &source.handle) {
            (Place::Local(path), ..) => {
                fs::read_link(path).map_err(|error| local(path, &error))?.into_os_string()
            }
            (place, End::Remote(session), Some(handle)) => {
                OsString::from_vec(session.read_link(handle).await.map_err(|error| error.at(place))?)
            }
            _ => unreachable!("a server's files have handles"),
        };
        let place = into.place.join(name);
        match (&place, &self.target, &into.handle) {
            (Place::Local(path), ..) => {
                let made = replacing(path, || symlink(&held, path));
                made.map_err(|error| local(path, &error))?;
                if self.options.preserve {
                    keep::local_link(&self.copied, path, &source.found)
                        .map_err(|error| local(path, &error))?;
                }
            }
            (place, End::Remote(session), Some(folder)) => {
                let made = match session.make_link(folder, name, held.as_bytes()).await {
                    Err(RemoteError::Status(Status::Exist)) => {
                        match self.make_room(session, folder, name, None).await {
                            Ok(_) => session.make_link(folder, name, held.as_bytes()).await,
                            Err(error) => Err(error),
                        }
                    }
                    made => made,
                };
                let node = made.map_err(|error| error.at(place))?;
                if self.options.preserve {
                    let owner = (node.attributes.uid, node.attributes.gid);
                    let kept = keep::remote(&self.copied, session, &node.handle, owner, &source.found).await;
                    kept.map_err(|error| error.at(place))?;
                }
            }
            _ => unreachable!("a server's folders have handles"),
        }
        Ok(())
    }

    /// Makes a folder, or takes the one that is there, and begins with its names.
    async fn folder(
        &self,
        source: &Source,
        into: &Rc<Folder>,
        name: &OsStr,
        is_top: bool,
    ) -> Result<(), Halt> {
        let place = into.place.join(name);
        let wanted = source.found.mode & MODE_MASK;
        // The owner can always go on to fill it; what others may waits for the right owner.
        let mode = if self.options.preserve { 0o700 } else { wanted | 0o700 };
        let (handle, there, is_new) = match (&place, &self.target, &into.handle) {
            (Place::Local(path), ..) => {
                let is_new = match fs::DirBuilder::new().mode(mode).create(path) {
                    Ok(()) => true,
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_folder(path, is_top) => {
                        false
                    }
                    Err(error) => return Err(local(path, &error).into()),
                };
                let there = Found::local(path, is_top).map_err(|error| local(path, &error))?;
                let gone = || CommandFailure::run(format_args!("{place}: was removed by somebody else"));
                (None, there.ok_or_else(gone)?, is_new)
            }
            (place, End::Remote(session), Some(folder)) => {
                let (node, is_new) = match session.make_folder(folder, name, mode).await {
                    Ok(node) => (node, true),
                    Err(error @ RemoteError::Status(Status::Exist | Status::Acces | Status::Perm)) => {
                        // It may be there, in a folder where nothing can be made.
                        match session.child(folder, name).await {
                            Ok(node) if node.is_folder() => (node, false),
                            _ => return Err(error.at(place).into()),
                        }
                    }
                    Err(error) => return Err(error.at(place).into()),
                };
                let there = Found::of_attributes(&node.attributes);
                (Some(node.handle), there, is_new)
            }
            _ => unreachable!("a server's folders have handles"),
        };
        let lent = 0o700 & !wanted;
        let end = match is_new {
            _ if self.options.preserve => Some(FolderEnd::Like(source.found, (there.uid, there.gid))),
            true if lent != 0 => Some(FolderEnd::Mode(there.mode & !lent)),
            _ => None,
        };
        let names = match (&source.place, &source.handle) {
            (Place::Local(path), _) => Names::Local(fs::read_dir(path).map_err(|error| local(path, &error))?),
            (Place::Remote(_), Some(handle)) => Names::Remote(handle.clone(), Listing::default()),
            _ => unreachable!("a server's folders have handles"),
        };
        let parent = Some(Rc::clone(into));
        let folder = Folder { place, handle, parent, end, jobs: Rc::clone(&self.jobs) };
        self.jobs.push(Job::Names { source: source.place.clone(), names, into: Rc::new(folder) });
        self.note_special_bits(&source.found);
        self.copied.borrow_mut().folders += 1;
        Ok(())
    }

    /// Makes jobs of the next names of a folder.
    async fn names(&self, source: Place, mut names: Names, into: Rc<Folder>) -> Result<(), Halt> {
        let mut found = Vec::new();
        let is_over = match (&mut names, &source) {
            (Names::Local(names), Place::Local(path)) => {
                for entry in names.by_ref().take(NAMES_AT_ONCE) {
                    found.push((entry.map_err(|error| local(path, &error))?.file_name(), None));
                }
                found.len() < NAMES_AT_ONCE
            }
            (Names::Remote(handle, listing), _) => {
                let session = self.source.session().expect("a server's source has a connection");
                let listed = session.list(handle, listing).await.map_err(|error| error.at(&source))?;
                for RemoteEntry { name, node } in listed {
                    match node {
                        Ok(node) => found.push((name, Some(node))),
                        Err(error) => self.fail(error.at(source.join(&name)), false),
                    }
                }
                listing.is_over
            }
            (Names::Local(_), Place::Remote(_)) => unreachable!("names are where their folder is"),
        };
        let objects: Vec<Job> = found
            .into_iter()
            .map(|(name, node)| {
                let (place, into) = (source.join(&name), Rc::clone(&into));
                Job::Object { place, node, into, name, is_top: false }
            })
            .collect();
        // Below the names that were found: these come first.
        if !is_over {
            self.jobs.push(Job::Names { source, names, into });
        }
        objects.into_iter().rev().for_each(|job| self.jobs.push(job));
        Ok(())
    }

    async fn end_folder(
        &self,
        place: &Place,
        handle: Option<&RemoteHandle>,
        end: &FolderEnd,
    ) -> Result<(), Halt> {
        match (place, handle, &self.target) {
            (Place::Local(path), ..) => {
                let ended = match end {
                    FolderEnd::Mode(mode) => {
                        keep::open_folder(path).and_then(|folder| keep::set_mode(&folder, *mode))
                    }
                    FolderEnd::Like(found, owner) => keep::open_folder(path)
                        .and_then(|folder| keep::local(&self.copied, &folder, *owner, found)),
                };
                ended.map_err(|error| local(path, &error).into())
            }
            (place, Some(handle), End::Remote(session)) => {
                let ended = match end {
                    FolderEnd::Mode(mode) => keep::set_remote_mode(session, handle, *mode).await,
                    FolderEnd::Like(found, owner) => {
                        keep::remote(&self.copied, session, handle, *owner, found).await
                    }
                };
                ended.map_err(|error| error.at(place).into())
            }
            _ => unreachable!("a server's folders have handles"),
        }
    }
}

/// Makes something at a path; once more, if a file or a link is in its place, which is removed.
fn replacing(path: &PathBuf, make: impl Fn() -> io::Result<()>) -> io::Result<()> {
    match make() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !is_folder(path, false) => {
            fs::remove_file(path)?;
            make()
        }
        made => made,
    }
}

/// Whether it is a folder; whether a link to one counts is said.
fn is_folder(path: &Path, follow: bool) -> bool {
    matches!(Found::local(path, follow), Ok(Some(Found { kind: Kind::Folder, .. })))
}
