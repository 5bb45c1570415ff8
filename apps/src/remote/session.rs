//! A server's files as tasks of one thread use them: Calls of many tasks in flight over one connection.
//!
//! A [`Session`] is a [`Remote`] that tasks share. Their futures need no waker: [`run`] polls all of them
//! whenever a Call has ended, and sleeps when all of them wait.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use stag::memory::Buf;
use stag::nfs::client::{ClientError, FinishedCall, Operation};
use stag::rpc::Chunks;
use stag::runtime::{Poller, sleep};
use stag::wire::nfs3::{
    Attributes, CommitArguments, CreateArguments, CreateHow, CreateReply, Data, GetattrArguments,
    Handle as WireHandle, LinkArguments, LookupArguments, MkdirArguments, Path, PostOpAttributes,
    ReadArguments, ReaddirplusArguments, ReadlinkArguments, RemoveArguments, SetAttributes, SetattrArguments,
    Stable, Status, SymlinkArguments, VERIFIER_LEN, Verifier, WriteArguments,
};
use stag::wire::xdr::Item;

use super::data::INLINE_LEN_MAX;
use super::link::{SLEEP_MAX, SPIN, clock};
use super::{
    LISTING_LEN, Remote, RemoteEntry, RemoteError, RemoteHandle, RemoteNode, answer, file_name, place,
};

/// How long a server may say that it wants to be asked again later.
const LATER_MAX: Duration = Duration::from_secs(60);

/// Time before the first repetition of a Call that the server wants to be asked later; it doubles up to a second.
const LATER_FIRST: Duration = Duration::from_millis(10);

/// What the tasks of one [`run`] share: whether one of them went on, and when the next wants to.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    has_moved: Cell<bool>,
    due: Cell<Option<Duration>>,
}

impl Tasks {
    /// Waits until `poll` has something.
    pub(crate) async fn until<T>(&self, mut poll: impl FnMut() -> Option<T>) -> T {
        poll_fn(|_| match poll() {
            Some(found) => {
                self.note();
                Poll::Ready(found)
            }
            None => Poll::Pending,
        })
        .await
    }

    /// Something changed that another task may wait for.
    pub(crate) fn note(&self) {
        self.has_moved.set(true);
    }

    /// Waits for a time.
    async fn delay(&self, time: Duration) {
        let due = clock().now().saturating_add(time);
        self.until(|| {
            if clock().now() >= due {
                return Some(());
            }
            self.due.set(Some(self.due.get().map_or(due, |other| other.min(due))));
            None
        })
        .await;
    }
}

/// A task: a future that lives on this thread alone.
pub(crate) type Task<'t> = Pin<Box<dyn Future<Output = ()> + 't>>;

/// Polls `futures` and takes away those that are done. Returns whether one was.
fn poll_each(futures: &mut Vec<Task<'_>>) -> bool {
    let mut cx = Context::from_waker(Waker::noop());
    let before = futures.len();
    futures.retain_mut(|task| task.as_mut().poll(&mut cx).is_pending());
    futures.len() < before
}

/// Runs all tasks to their ends. `look` is called between passes; `false` from it abandons the tasks that are left.
///
/// Returns whether all of them ended.
pub(crate) fn run(
    tasks: &Tasks,
    mut futures: Vec<Task<'_>>,
    sessions: &[Session],
    mut look: impl FnMut() -> bool,
) -> bool {
    let mut active = clock().now();
    loop {
        tasks.has_moved.set(false);
        tasks.due.set(None);
        let one_ended = poll_each(&mut futures);
        if futures.is_empty() {
            return true;
        }
        if !look() {
            return false;
        }
        let has_moved = one_ended || tasks.has_moved.get();
        // Tasks change nothing without an event: only the connections are polled until there is one.
        loop {
            let events: usize = sessions.iter().map(Session::pass).sum();
            let now = clock().now();
            if events > 0 || has_moved {
                active = now;
                break;
            }
            let due = tasks.due.get().unwrap_or(Duration::MAX);
            if now >= due {
                break;
            }
            if now.saturating_sub(active) < SPIN {
                std::hint::spin_loop();
                continue;
            }
            rest(sessions, now, due.min(now.saturating_add(SLEEP_MAX)));
            break;
        }
    }
}

/// Sleeps until a connection has work.
fn rest(sessions: &[Session], now: Duration, latest: Duration) {
    let mut inner: Vec<_> = sessions.iter().map(|session| session.inner.borrow_mut()).collect();
    let mut pollers: Vec<&mut dyn Poller> =
        inner.iter_mut().map(|inner| inner.remote.link.poller()).collect();
    sleep(&mut pollers, now, latest);
}

/// A connection that tasks share. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Session {
    inner: Rc<RefCell<Inner>>,
    tasks: Rc<Tasks>,
}

struct Inner {
    remote: Remote,
    next: u64,
    /// Calls that ended, and whose task was not polled since.
    ended: HashMap<u64, Result<FinishedCall, RemoteError>>,
}

impl Session {
    /// Shares a connection.
    pub(crate) fn new(remote: Remote, tasks: Rc<Tasks>) -> Session {
        Session { inner: Rc::new(RefCell::new(Inner { remote, next: 0, ended: HashMap::new() })), tasks }
    }

    /// Whether both are the same connection.
    pub(crate) fn is(&self, other: &Session) -> bool {
        Rc::ptr_eq(&self.inner, &other.inner)
    }

    /// Uses the connection while no task runs.
    pub(crate) fn alone<T>(&self, with: impl FnOnce(&mut Remote) -> T) -> T {
        with(&mut self.inner.borrow_mut().remote)
    }

    /// Octets of one READ at most.
    pub(crate) fn read_len_max(&self) -> usize {
        self.inner.borrow().remote.limits.read
    }

    /// Octets of one WRITE at most.
    pub(crate) fn write_len_max(&self) -> usize {
        self.inner.borrow().remote.limits.write
    }

    /// Whether the connection is being made anew.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.inner.borrow().remote.link.is_interrupted()
    }

    /// Whether a Call failed in a way in which all others will.
    pub(crate) fn is_useless(&self) -> bool {
        self.inner.borrow().remote.link.is_useless()
    }

    fn pass(&self) -> usize {
        let inner = &mut *self.inner.borrow_mut();
        let mut events = inner.remote.link.pass();
        while let Some((user, result)) = inner.remote.link.take_finished() {
            inner.ended.insert(user, result);
            events += 1;
        }
        events
    }

    /// A buffer of the connection's, once there is one.
    pub(crate) async fn buffer(&self, len: usize) -> Buf {
        self.tasks.until(|| self.inner.borrow().remote.link.buffer(len)).await
    }

    /// Makes a Call, and waits for its end.
    async fn call<O: Operation>(
        &self,
        operation: &O,
        mut chunks: Chunks,
    ) -> Result<FinishedCall, RemoteError> {
        let mut call = None;
        self.tasks
            .until(|| {
                let inner = &mut *self.inner.borrow_mut();
                match call {
                    Some(user) => inner.ended.remove(&user),
                    None => match inner.remote.link.try_begin(operation, &mut chunks, inner.next) {
                        Ok(true) => {
                            call = Some(inner.next);
                            // Below the bit that the connection uses itself.
                            inner.next = (inner.next + 1) & (u64::MAX >> 1);
                            None
                        }
                        Ok(false) => None,
                        Err(error) => Some(Err(error)),
                    },
                }
            })
            .await
    }

    /// Repeats an operation for as long as the server wants to be asked again later.
    async fn patiently<T>(
        &self,
        operation: impl AsyncFn() -> Result<T, RemoteError>,
    ) -> Result<T, RemoteError> {
        let (begun, mut pause) = (clock().now(), LATER_FIRST);
        loop {
            match operation().await {
                Err(RemoteError::Status(Status::Jukebox))
                    if clock().now().saturating_sub(begun) < LATER_MAX =>
                {
                    self.tasks.delay(pause).await;
                    pause = (2 * pause).min(Duration::from_secs(1));
                }
                result => return result,
            }
        }
    }

    /// The attributes of a file.
    pub(crate) async fn attributes(&self, file: &RemoteHandle) -> Result<Attributes, RemoteError> {
        self.patiently(async || {
            let finished =
                self.call(&GetattrArguments { object: WireHandle(file) }, Chunks::default()).await?;
            Ok(answer(finished.reply::<GetattrArguments<'_>>())?.attributes)
        })
        .await
    }

    /// Sets attributes of a file. Returns what it has then, if the server tells.
    pub(crate) async fn set(
        &self,
        file: &RemoteHandle,
        attributes: SetAttributes,
    ) -> Result<PostOpAttributes, RemoteError> {
        self.patiently(async || {
            let arguments = SetattrArguments { object: WireHandle(file), attributes, guard: None };
            let finished = self.call(&arguments, Chunks::default()).await?;
            Ok(answer(finished.reply::<SetattrArguments<'_>>())?.object.after)
        })
        .await
    }

    /// The file of that name in a folder.
    pub(crate) async fn child(&self, folder: &RemoteHandle, name: &OsStr) -> Result<RemoteNode, RemoteError> {
        self.patiently(async || {
            let finished =
                self.call(&LookupArguments { what: place(folder, name) }, Chunks::default()).await?;
            let ok = answer(finished.reply::<LookupArguments<'_>>())?;
            let (handle, attributes) = (ok.object.0.to_vec(), ok.attributes);
            self.node(handle, attributes).await
        })
        .await
    }

    async fn node(
        &self,
        handle: RemoteHandle,
        attributes: PostOpAttributes,
    ) -> Result<RemoteNode, RemoteError> {
        let attributes = match attributes {
            Some(attributes) => attributes,
            None => {
                let arguments = GetattrArguments { object: WireHandle(&handle) };
                let finished = self.call(&arguments, Chunks::default()).await?;
                answer(finished.reply::<GetattrArguments<'_>>())?.attributes
            }
        };
        Ok(RemoteNode { handle, attributes })
    }

    /// The object that a CREATE, MKDIR or SYMLINK made: a server need not tell its handle.
    async fn made(
        &self,
        reply: Result<CreateReply<'_>, ClientError>,
        folder: &RemoteHandle,
        name: &OsStr,
    ) -> Result<RemoteNode, RemoteError> {
        let ok = answer(reply)?;
        let Some(handle) = ok.object else { return Box::pin(self.child(folder, name)).await };
        let (handle, attributes) = (handle.0.to_vec(), ok.attributes);
        self.node(handle, attributes).await
    }

    /// Makes an empty file. One that is there already is an error.
    pub(crate) async fn create(
        &self,
        folder: &RemoteHandle,
        name: &OsStr,
        mode: u32,
    ) -> Result<RemoteNode, RemoteError> {
        self.patiently(async || {
            let how = CreateHow::Guarded(SetAttributes { mode: Some(mode), ..SetAttributes::default() });
            let arguments = CreateArguments { place: place(folder, name), how };
            let finished = self.call(&arguments, Chunks::default()).await?;
            self.made(finished.reply::<CreateArguments<'_>>(), folder, name).await
        })
        .await
    }

    /// Makes a folder. One that is there already is an error.
    pub(crate) async fn make_folder(
        &self,
        folder: &RemoteHandle,
        name: &OsStr,
        mode: u32,
    ) -> Result<RemoteNode, RemoteError> {
        self.patiently(async || {
            let attributes = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
            let arguments = MkdirArguments { place: place(folder, name), attributes };
            let finished = self.call(&arguments, Chunks::default()).await?;
            self.made(finished.reply::<MkdirArguments<'_>>(), folder, name).await
        })
        .await
    }

    /// Makes a symbolic link that holds `target`.
    pub(crate) async fn make_link(
        &self,
        folder: &RemoteHandle,
        name: &OsStr,
        target: &[u8],
    ) -> Result<RemoteNode, RemoteError> {
        self.patiently(async || {
            let attributes = SetAttributes { mode: Some(0o777), ..SetAttributes::default() };
            let (place, path) = (place(folder, name), Path(Item::Inline(target)));
            let finished =
                self.call(&SymlinkArguments { place, attributes, path }, Chunks::default()).await?;
            self.made(finished.reply::<SymlinkArguments<'_>>(), folder, name).await
        })
        .await
    }

    /// Gives a file one more name.
    pub(crate) async fn add_name(
        &self,
        file: &RemoteHandle,
        folder: &RemoteHandle,
        name: &OsStr,
    ) -> Result<(), RemoteError> {
        self.patiently(async || {
            let arguments = LinkArguments { file: WireHandle(file), link: place(folder, name) };
            let finished = self.call(&arguments, Chunks::default()).await?;
            answer(finished.reply::<LinkArguments<'_>>()).map(drop)
        })
        .await
    }

    /// Removes a name of anything but a folder.
    pub(crate) async fn remove(&self, folder: &RemoteHandle, name: &OsStr) -> Result<(), RemoteError> {
        self.patiently(async || {
            let arguments = RemoveArguments { object: place(folder, name) };
            let finished = self.call(&arguments, Chunks::default()).await?;
            answer(finished.reply::<RemoveArguments<'_>>()).map(drop)
        })
        .await
    }

    /// What a symbolic link holds.
    pub(crate) async fn read_link(&self, link: &RemoteHandle) -> Result<Vec<u8>, RemoteError> {
        self.patiently(async || {
            let arguments = ReadlinkArguments { symlink: WireHandle(link) };
            let finished = self.call(&arguments, Chunks::default()).await?;
            let ok = answer(finished.reply::<ReadlinkArguments<'_>>())?;
            match ok.path.0 {
                Item::Inline(path) => Ok(path.to_vec()),
                Item::Reduced { .. } => Err(RemoteError::senseless("READLINK")),
            }
        })
        .await
    }

    /// The next part of a listing, without `.` and `..`, in the server's order.
    pub(crate) async fn list(
        &self,
        folder: &RemoteHandle,
        from: &mut Listing,
    ) -> Result<Vec<RemoteEntry>, RemoteError> {
        let begin = *from;
        let (entries, next) = self.patiently(async || self.list_once(folder, begin).await).await?;
        *from = next;
        Ok(entries)
    }

    async fn list_once(
        &self,
        folder: &RemoteHandle,
        from: Listing,
    ) -> Result<(Vec<RemoteEntry>, Listing), RemoteError> {
        let arguments = ReaddirplusArguments {
            directory: WireHandle(folder),
            cookie: from.cookie,
            verifier: from.verifier,
            dircount: LISTING_LEN,
            maxcount: LISTING_LEN,
        };
        let finished = self.call(&arguments, Chunks::default()).await?;
        let ok = answer(finished.reply::<ReaddirplusArguments<'_>>())?;
        let (mut listed, mut cookie) = (Vec::new(), from.cookie);
        for entry in ok.entries {
            cookie = entry.cookie;
            let Some(name) = file_name(entry.name.0)? else { continue };
            let node = match entry.handle {
                Some(handle) => self.node(handle.0.to_vec(), entry.attributes).await?,
                None => Box::pin(self.child(folder, name)).await?,
            };
            listed.push(RemoteEntry { name: name.to_owned(), node });
        }
        if !ok.eof && cookie == from.cookie {
            return Err(RemoteError::senseless("READDIRPLUS"));
        }
        Ok((listed, Listing { cookie, verifier: ok.verifier, is_over: ok.eof }))
    }

    /// Reads up to `len` octets at `offset`; they are handed to `take` in pieces. Returns how many there were, and
    /// whether the file ends behind them.
    pub(crate) async fn read(
        &self,
        file: &RemoteHandle,
        offset: u64,
        len: usize,
    ) -> Result<ReadPart, RemoteError> {
        self.patiently(async || {
            let chunk = self.buffer(len).await;
            let arguments = ReadArguments { file: WireHandle(file), offset, count: len as u32 };
            let finished = self.call(&arguments, Chunks::write(chunk)).await?;
            let ok = answer(finished.reply::<ReadArguments<'_>>())?;
            let found: usize = finished.octets(&ok.data.0).map(<[u8]>::len).sum();
            if found > len {
                return Err(RemoteError::senseless("READ"));
            }
            if found == 0 && !ok.eof {
                return Err(RemoteError::Broken(
                    "the server gives no data where the file has not ended".to_owned(),
                ));
            }
            let eof = ok.eof;
            Ok(ReadPart { finished, len: found, eof })
        })
        .await
    }

    /// Writes all of `data` at `offset`. Returns the verifier, if some of it needs a COMMIT.
    pub(crate) async fn write(
        &self,
        file: &RemoteHandle,
        offset: u64,
        data: Buf,
        stable: Stable,
    ) -> Result<WriteState, RemoteError> {
        let data = data.share();
        let mut state = WriteState::default();
        let mut at = 0;
        while at < data.len() {
            let rest = data.slice(at..);
            let ok = self
                .patiently(async || {
                    let (chunks, item) = if rest.len() <= INLINE_LEN_MAX {
                        (Chunks::default(), Item::Inline(&rest[..]))
                    } else {
                        (Chunks::read(rest.clone()), Item::Reduced { index: 0, len: rest.len() as u32 })
                    };
                    let arguments = WriteArguments {
                        file: WireHandle(file),
                        offset: offset + at as u64,
                        count: rest.len() as u32,
                        stable,
                        data: Data(item),
                    };
                    let finished = self.call(&arguments, chunks).await?;
                    answer(finished.reply::<WriteArguments<'_>>())
                        .map(|ok| (ok.count, ok.committed, ok.verifier))
                })
                .await;
            let (count, committed, verifier) = ok?;
            let count = count as usize;
            if count == 0 || count > rest.len() {
                return Err(RemoteError::senseless("WRITE"));
            }
            at += count;
            if committed == Stable::Unstable {
                state.note(verifier);
            }
        }
        Ok(state)
    }

    /// Makes what was written safe. Returns the verifier.
    pub(crate) async fn commit(&self, file: &RemoteHandle) -> Result<Verifier, RemoteError> {
        self.patiently(async || {
            let arguments = CommitArguments { file: WireHandle(file), offset: 0, count: 0 };
            let finished = self.call(&arguments, Chunks::default()).await?;
            Ok(answer(finished.reply::<CommitArguments<'_>>())?.verifier)
        })
        .await
    }
}

/// How far a folder was listed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Listing {
    cookie: u64,
    verifier: [u8; VERIFIER_LEN],
    /// Nothing is left.
    pub(crate) is_over: bool,
}

/// What a READ found.
pub(crate) struct ReadPart {
    finished: FinishedCall,
    /// Octets.
    pub(crate) len: usize,
    /// The file ends behind them.
    pub(crate) eof: bool,
}

impl ReadPart {
    /// The octets. A READ's data comes in one piece: in its buffer, or inline.
    pub(crate) fn octets(&self) -> Result<&[u8], RemoteError> {
        let ok = answer(self.finished.reply::<ReadArguments<'_>>())?;
        let data = ok.data.0;
        match data {
            Item::Inline(octets) => Ok(octets),
            Item::Reduced { .. } => {
                let written = self.finished.completed().written.iter().next();
                let octets = written.and_then(|(_, buf)| buf.get(..self.len));
                octets.ok_or(RemoteError::senseless("READ"))
            }
        }
    }
}

/// What is known of WRITEs that need a COMMIT.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WriteState {
    verifier: Option<Verifier>,
    has_changed: bool,
}

impl WriteState {
    /// One more verifier: one that differs says that the server has forgotten what was not committed.
    fn note(&mut self, found: Verifier) {
        self.has_changed |= *self.verifier.get_or_insert(found) != found;
    }

    /// Takes in what is known of other WRITEs.
    pub(crate) fn merge(&mut self, other: WriteState) {
        self.has_changed |= other.has_changed;
        if let Some(verifier) = other.verifier {
            self.note(verifier);
        }
    }

    /// Whether something needs a COMMIT.
    pub(crate) fn is_unsafe(&self) -> bool {
        self.verifier.is_some()
    }

    /// Whether a COMMIT that gave `verifier` made all of it safe.
    pub(crate) fn is_kept_by(&self, verifier: Verifier) -> bool {
        !self.has_changed && self.verifier == Some(verifier)
    }
}
