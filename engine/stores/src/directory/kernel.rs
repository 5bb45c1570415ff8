//! System calls that may wait, and who makes them.
//!
//! The reactor makes those that cannot wait. All others are questions to a helper thread: the step that asks is not over
//! (`Blocked::Waits`), and is run again when the answer is there. Its answers are kept until then, so it gets further each time.
//! What cannot wait depends on the file system:
//!
//! | | made at once |
//! |---|---|
//! | memory without swap | everything |
//! | on a device of this machine | attributes of what is open, and its access control list once it was read; names that the kernel has in memory (`RESOLVE_CACHED`, or the name of what is open); to open again what is open; locks of it |
//! | any other: it may ask another machine, or a process | nothing |
//!
//! Steps that change something are one job of a helper each (`changes.rs`).

use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{OFlags, SeekFrom, fstatvfs, readlinkat_raw};
use rustix::io::Errno;
use stag_disk::{ClosingBin, DiskFile, HelperLimits, Helpers, system};
use stag_vfs::{Acl, ExtentKind, FsError, LINK_SPACE, ObjectId, OctetLock, Usage};

use super::acl::{AclKind, read_acl};
use super::chunk::{Chunk, read_chunk};
use super::locate::{self, Located};
use super::locks;
use super::object::{self, Stat, open_again, open_cached, open_with};
use super::opened::{File, Identified, Marks, MayWait, Reopen, identified, identify};
use super::owned::open_as_owner;

/// Threads of one store that wait at once.
const THREADS_MAX: usize = 64;

/// What is under way at once: beyond that, clients are told to try again.
const JOBS_MAX: usize = 2048;

/// Answers that one operation may need. More need not be kept: a file system that changes as fast as it is read.
const ANSWERS_MAX: usize = 512;

/// Something that is asked of the kernel.
#[derive(Clone)]
pub(super) struct Question {
    what: What,
    at: File,
    name: Box<[u8]>,
    number: u64,
    /// Another way to `at`: a name in a directory.
    aside: Option<(File, Box<[u8]>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Stat,
    StatAt,
    Identify,
    Reopen(Reopen),
    List {
        attributes: bool,
    },
    Link,
    Acl(AclKind),
    Usage,
    /// Where data or a hole is.
    Seek(ExtentKind),
    Place,
    SetMode,
    Locate,
    /// A part of the search for objects (`search.rs`), which is not the question's alone.
    Search,
    /// To lock octets, in the turn of the file (`locks.rs`).
    Lock(OctetLock),
    /// Which lock is in the way of such a lock.
    FindLock(OctetLock),
}

impl PartialEq for Question {
    fn eq(&self, other: &Question) -> bool {
        (self.what, self.number, &self.name) == (other.what, other.number, &other.name)
            && Arc::ptr_eq(&self.at, &other.at)
    }
}

#[derive(Clone)]
pub(super) enum Answer {
    Stat(Stat),
    Identified(Identified),
    File(File),
    Chunk(Arc<Chunk>),
    Link(Arc<[u8]>),
    Acl(Option<Arc<Acl>>),
    Usage(Usage),
    Offset(Option<u64>),
    Located(Arc<Located>),
    Lock(Option<OctetLock>),
    Done,
}

/// The answers that an operation has.
#[derive(Default)]
pub(super) struct Answers(Vec<(Question, Result<Answer, Errno>)>);

impl Answers {
    pub(super) fn add(&mut self, question: Question, answer: Result<Answer, Errno>) {
        self.0.push((question, answer));
    }
}

/// What is asked of the kernel, for one store.
pub(super) struct Kernel {
    may_wait: Cell<MayWait>,
    marks: Marks,
    bin: ClosingBin,
    /// Of the operation that is run again.
    answers: RefCell<Answers>,
    /// The first question that the step in hand has no answer to.
    missing: RefCell<Option<Question>>,
}

impl Kernel {
    pub(super) fn new(may_wait: MayWait, marks: Marks) -> Kernel {
        Kernel {
            may_wait: Cell::new(may_wait),
            marks,
            bin: ClosingBin::default(),
            answers: RefCell::default(),
            missing: RefCell::default(),
        }
    }

    /// Helpers for questions and changes.
    pub(super) fn helpers<T: Send + 'static>() -> Result<Helpers<T>, Errno> {
        Helpers::new(HelperLimits { threads: THREADS_MAX, jobs: JOBS_MAX })
    }

    pub(super) fn may_wait(&self) -> MayWait {
        self.may_wait.get()
    }

    pub(super) fn set_may_wait(&self, may_wait: MayWait) {
        self.may_wait.set(may_wait);
    }

    /// Whether the reactor makes all system calls.
    pub(super) fn is_immediate(&self) -> bool {
        self.may_wait.get() == MayWait::Nothing
    }

    /// Whether what is open answers at once.
    pub(super) fn knows_what_is_open(&self) -> bool {
        self.may_wait.get() != MayWait::Everything
    }

    pub(super) fn marks(&self) -> Marks {
        self.marks
    }

    /// Where descriptors go that are closed: `None` if that cannot wait.
    pub(super) fn bin(&self) -> Option<ClosingBin> {
        (!self.is_immediate()).then(|| self.bin.clone())
    }

    /// Descriptors to close.
    pub(super) fn to_close(&self) -> Vec<OwnedFd> {
        if self.bin.is_empty() { Vec::new() } else { self.bin.take() }
    }

    /// A file, as the store keeps it.
    pub(super) fn file(&self, opened: OwnedFd) -> File {
        Arc::new(DiskFile::new(opened, self.bin()))
    }

    /// The answers of the operation that is run next.
    pub(super) fn resume(&self, answers: Answers) {
        *self.answers.borrow_mut() = answers;
        *self.missing.borrow_mut() = None;
    }

    /// The answers that the operation in hand had.
    pub(super) fn take_answers(&self) -> Answers {
        std::mem::take(&mut *self.answers.borrow_mut())
    }

    /// Whether the operation in hand had answers, which may be of a while ago.
    pub(super) fn has_answers(&self) -> bool {
        !self.answers.borrow().0.is_empty()
    }

    /// Whether the step in hand has a question without an answer. Then nothing that it finds counts.
    pub(super) fn is_missing(&self) -> bool {
        self.missing.borrow().is_some()
    }

    /// The question that the step in hand has no answer to.
    pub(super) fn take_missing(&self) -> Option<Question> {
        self.missing.take()
    }

    /// The answer, if the operation in hand has it.
    fn ask(&self, question: Question) -> Result<Answer, Errno> {
        let answers = self.answers.borrow();
        if let Some((_, answer)) = answers.0.iter().find(|(asked, _)| *asked == question) {
            return answer.clone();
        }
        if answers.0.len() < ANSWERS_MAX {
            self.missing.borrow_mut().get_or_insert(question);
        }
        // To the step it is a trouble that will be over, about which nothing is noted.
        Err(Errno::AGAIN)
    }

    fn question(what: What, at: &File, name: &[u8], number: u64) -> Question {
        Question { what, at: at.clone(), name: name.into(), number, aside: None }
    }

    /// What `file` is, which may be opened to be looked at only.
    pub(super) fn stat(&self, file: &File) -> Result<Stat, Errno> {
        if self.knows_what_is_open() {
            return object::stat(&**file);
        }
        match self.ask(Kernel::question(What::Stat, file, b"", 0))? {
            Answer::Stat(found) => Ok(found),
            _ => Err(Errno::IO),
        }
    }

    /// What `name` in `directory` is. `is_open`: an object with this name is open, so the kernel has the name in memory.
    pub(super) fn stat_at(&self, directory: &File, name: &[u8], is_open: bool) -> Result<Stat, Errno> {
        match self.may_wait.get() {
            MayWait::Nothing => return object::stat_at(directory.as_fd(), name),
            MayWait::Device if is_open => return object::stat_at(directory.as_fd(), name),
            MayWait::Device => match open_cached(directory.as_fd(), name) {
                Ok(opened) => return object::stat(self.file(opened)),
                Err(Errno::AGAIN) => {}
                Err(error) => return Err(error),
            },
            MayWait::Everything => {}
        }
        match self.ask(Kernel::question(What::StatAt, directory, name, 0))? {
            Answer::Stat(found) => Ok(found),
            _ => Err(Errno::IO),
        }
    }

    /// Opens a name to be looked at, and says what it is.
    pub(super) fn identify(&self, directory: &File, name: &[u8]) -> Result<Identified, Errno> {
        match self.may_wait.get() {
            MayWait::Nothing => return identify(directory, name, &self.marks, None),
            MayWait::Device => match open_cached(directory.as_fd(), name) {
                Ok(opened) => return identified(opened, &self.marks, self.bin()),
                Err(Errno::AGAIN) => {}
                Err(error) => return Err(error),
            },
            MayWait::Everything => {}
        }
        match self.ask(Kernel::question(What::Identify, directory, name, 0))? {
            Answer::Identified(found) => Ok(found),
            _ => Err(Errno::IO),
        }
    }

    /// Opens again what is open to be looked at. `aside` is a name of it, and the directory that it is in.
    pub(super) fn reopen(
        &self,
        looked: &File,
        how: Reopen,
        aside: Option<(File, Box<[u8]>)>,
    ) -> Result<File, Errno> {
        if self.knows_what_is_open() {
            return reopen(looked, how, aside.as_ref(), &self.marks).map(|opened| self.file(opened));
        }
        let question = Question { aside, ..Kernel::question(What::Reopen(how), looked, b"", 0) };
        match self.ask(question)? {
            Answer::File(file) => Ok(file),
            _ => Err(Errno::IO),
        }
    }

    /// The entries of a directory after a cookie: not to be called if [`Kernel::is_immediate`].
    pub(super) fn chunk(&self, looked: &File, cookie: u64, attributes: bool) -> Result<Arc<Chunk>, Errno> {
        match self.ask(Kernel::question(What::List { attributes }, looked, b"", cookie))? {
            Answer::Chunk(chunk) => Ok(chunk),
            _ => Err(Errno::IO),
        }
    }

    /// Reads what a symbolic link holds. Returns its length.
    pub(super) fn link_target(&self, looked: &File, space: &mut [u8; LINK_SPACE]) -> Result<usize, Errno> {
        if self.is_immediate() {
            return read_link(looked, space);
        }
        match self.ask(Kernel::question(What::Link, looked, b"", 0))? {
            Answer::Link(target) => {
                space[..target.len()].copy_from_slice(&target);
                Ok(target.len())
            }
            _ => Err(Errno::IO),
        }
    }

    /// An access control list of an object that is open. `is_in_memory`: its access list was asked for since it was opened, so the
    /// kernel keeps that.
    pub(super) fn acl(
        &self,
        file: &File,
        kind: AclKind,
        is_in_memory: bool,
    ) -> Result<Option<Arc<Acl>>, Errno> {
        let is_known = is_in_memory && kind == AclKind::Access && self.knows_what_is_open();
        if self.is_immediate() || is_known {
            return read_acl(file.as_fd(), kind);
        }
        match self.ask(Kernel::question(What::Acl(kind), file, b"", 0))? {
            Answer::Acl(acl) => Ok(acl),
            _ => Err(Errno::IO),
        }
    }

    /// Space and objects of the file system.
    pub(super) fn usage(&self, root: &File) -> Result<Usage, Errno> {
        if self.is_immediate() {
            return Ok(usage(root));
        }
        match self.ask(Kernel::question(What::Usage, root, b"", 0))? {
            Answer::Usage(usage) => Ok(usage),
            _ => Err(Errno::IO),
        }
    }

    /// Where in a file that is open to be read the next data or hole is; `None`: there is no data up to the end.
    pub(super) fn seek(&self, file: &File, offset: u64, kind: ExtentKind) -> Result<Option<u64>, Errno> {
        if self.is_immediate() {
            return seek(file, offset, kind);
        }
        match self.ask(Kernel::question(What::Seek(kind), file, b"", offset))? {
            Answer::Offset(found) => Ok(found),
            _ => Err(Errno::IO),
        }
    }

    /// What is at `path` now.
    pub(super) fn stat_path(&self, root: &File, path: &Path) -> Result<Stat, Errno> {
        if self.is_immediate() {
            return object::stat_path(path);
        }
        let path = path.as_os_str().as_bytes();
        match self.ask(Kernel::question(What::Place, root, path, 0))? {
            Answer::Stat(found) => Ok(found),
            _ => Err(Errno::IO),
        }
    }

    /// Sets a mode, of a file that is about to be written. It may be set twice.
    pub(super) fn set_mode(&self, looked: &File, mode: u32) -> Result<(), Errno> {
        if self.is_immediate() {
            return system::change_mode(looked.as_fd(), mode);
        }
        self.ask(Kernel::question(What::SetMode, looked, b"", mode.into())).map(drop)
    }

    /// Whether a part of this walk has been made for the operation in hand. Not to be called if [`Kernel::is_immediate`].
    pub(super) fn has_searched(&self, root: &File, walk: u64) -> bool {
        self.ask(Kernel::question(What::Search, root, b"", walk)).is_ok()
    }

    /// The lock that was in the way of locking octets, if the operation in hand has asked for that and they are not locked. Not to be called if [`Kernel::knows_what_is_open`].
    pub(super) fn lock(
        &self,
        file: &File,
        object: ObjectId,
        wanted: &OctetLock,
    ) -> Result<Option<OctetLock>, Errno> {
        let generation = object.generation.to_le_bytes();
        let question = Kernel::question(What::Lock(*wanted), file, &generation, object.fileid);
        let answer = self.ask(question.clone())?;
        // It is good for one time: others lock and unlock meanwhile.
        self.answers.borrow_mut().0.retain(|(asked, _)| *asked != question);
        match answer {
            Answer::Lock(Some(found)) => Ok(Some(found)),
            // It was locked, and given back since.
            Answer::Lock(None) => self.ask(question).and(Err(Errno::AGAIN)),
            _ => Err(Errno::IO),
        }
    }

    /// The lock that is in the way of a wanted one.
    pub(super) fn find_lock(&self, file: &File, wanted: &OctetLock) -> Result<Option<OctetLock>, Errno> {
        if self.knows_what_is_open() {
            return locks::conflict(file, wanted);
        }
        match self.ask(Kernel::question(What::FindLock(*wanted), file, b"", 0))? {
            Answer::Lock(found) => Ok(found),
            _ => Err(Errno::IO),
        }
    }

    /// Lets the kernel open an object by file handle, and finds the way to it.
    pub(super) fn locate(&self, mount: &File, root: &File, id: ObjectId) -> Result<Arc<Located>, Errno> {
        if self.is_immediate() {
            return Ok(Arc::new(locate::locate(mount, root, id, &self.marks, None)));
        }
        let question = Kernel::question(What::Locate, mount, &id.generation.to_le_bytes(), id.fileid);
        match self.ask(Question { aside: Some((root.clone(), Box::default())), ..question })? {
            Answer::Located(located) => Ok(located),
            _ => Err(Errno::IO),
        }
    }
}

impl Question {
    /// Asks the kernel. Waits.
    pub(super) fn put(&self, marks: &Marks, bin: Option<&ClosingBin>) -> Result<Answer, Errno> {
        let at = &self.at;
        match self.what {
            What::Stat => object::stat(&**at).map(Answer::Stat),
            What::StatAt => object::stat_at(at.as_fd(), &*self.name).map(Answer::Stat),
            What::Identify => identify(at, &self.name, marks, bin.cloned()).map(Answer::Identified),
            What::Reopen(how) => reopen(at, how, self.aside.as_ref(), marks)
                .map(|opened| Answer::File(Arc::new(DiskFile::new(opened, bin.cloned())))),
            What::List { attributes } => {
                read_chunk(at, self.number, attributes, marks).map(|chunk| Answer::Chunk(Arc::new(chunk)))
            }
            What::Link => {
                let mut space = [0; LINK_SPACE];
                read_link(at, &mut space).map(|len| Answer::Link(space[..len].into()))
            }
            What::Acl(kind) => read_acl(at.as_fd(), kind).map(Answer::Acl),
            What::Usage => Ok(Answer::Usage(usage(at))),
            What::Seek(kind) => seek(at, self.number, kind).map(Answer::Offset),
            What::Place => object::stat_path(Path::new(OsStr::from_bytes(&self.name))).map(Answer::Stat),
            What::SetMode => system::change_mode(at.as_fd(), self.number as u32).map(|()| Answer::Done),
            // These are not put here.
            What::Search | What::Lock(_) => Ok(Answer::Done),
            What::FindLock(wanted) => locks::conflict(at, &wanted).map(Answer::Lock),
            What::Locate => {
                let generation = self.name.first_chunk().map_or(0, |octets| u64::from_le_bytes(*octets));
                let id = ObjectId { fileid: self.number, generation };
                let root = self.aside.as_ref().map_or(at, |(root, _)| root);
                Ok(Answer::Located(Arc::new(locate::locate(at, root, id, marks, bin))))
            }
        }
    }

    /// Whether it is for a part of the search.
    pub(super) fn is_search(&self) -> bool {
        self.what == What::Search
    }

    /// The object, if the question is where that is.
    pub(super) fn sought(&self) -> Option<ObjectId> {
        self.object().filter(|_| self.what == What::Locate)
    }

    /// The file to lock, and how, if that is the question.
    pub(super) fn lock(&self) -> Option<(ObjectId, OctetLock)> {
        match self.what {
            What::Lock(wanted) => Some((self.object()?, wanted)),
            _ => None,
        }
    }

    fn object(&self) -> Option<ObjectId> {
        let generation = self.name.first_chunk().map(|octets| u64::from_le_bytes(*octets))?;
        Some(ObjectId { fileid: self.number, generation })
    }
}

/// Opens again what is open to be looked at.
fn reopen(
    looked: &File,
    how: Reopen,
    aside: Option<&(File, Box<[u8]>)>,
    marks: &Marks,
) -> Result<OwnedFd, Errno> {
    let flags = match how {
        Reopen::Directory => {
            return open_with(looked.as_fd(), b".", OFlags::RDONLY.union(OFlags::DIRECTORY));
        }
        Reopen::Read => OFlags::RDONLY,
        Reopen::Write => OFlags::RDWR,
    };
    let open = || match open_again(looked.as_fd(), flags) {
        Err(Errno::NOENT) => open_by_name(looked, aside, flags, marks),
        opened => opened,
    };
    match open() {
        Err(Errno::ACCESS) => open_as_owner(looked, open),
        opened => opened,
    }
}

/// Opens a file by its name.
fn open_by_name(
    looked: &File,
    aside: Option<&(File, Box<[u8]>)>,
    flags: OFlags,
    marks: &Marks,
) -> Result<OwnedFd, Errno> {
    let (directory, name) = aside.ok_or(Errno::STALE)?;
    let file = open_with(directory.as_fd(), name, flags)?;
    let (found, is) = (object::stat(&file)?, object::stat(&**looked)?);
    // Somebody may have moved another file there since the name was checked.
    if found.fileid != is.fileid || found.place() != marks.place {
        return Err(Errno::AGAIN);
    }
    Ok(file)
}

/// What the symbolic link holds that is open.
fn read_link(looked: &File, space: &mut [u8; LINK_SPACE]) -> Result<usize, Errno> {
    // The empty path: of the link itself that is open.
    readlinkat_raw(&**looked, c"", &mut space[..])
}

/// The position of the descriptor changes, which nothing else uses.
fn seek(file: &File, offset: u64, kind: ExtentKind) -> Result<Option<u64>, Errno> {
    let from = match kind {
        ExtentKind::Data => SeekFrom::Data(offset),
        ExtentKind::Hole => SeekFrom::Hole(offset),
    };
    match rustix::fs::seek(&**file, from) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error),
    }
}

fn usage(root: &File) -> Usage {
    let none = Usage { bytes_total: 0, bytes_free: 0, files_total: 0, files_free: 0 };
    // Statistics need a descriptor that is more than a look; the kernel takes one of a directory.
    fstatvfs(&**root).map_or(none, |found| Usage {
        bytes_total: found.f_blocks.saturating_mul(found.f_frsize),
        bytes_free: found.f_bavail.saturating_mul(found.f_frsize),
        files_total: found.f_files,
        files_free: found.f_favail,
    })
}

/// What a step tells if a question of it cannot be put to a helper.
pub(super) const REFUSED: FsError = FsError::Busy;
