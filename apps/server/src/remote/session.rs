//! A server's files as tasks of one thread use them: Calls of many tasks in flight over one connection.
//!
//! The futures of a [`Session`] need no waker: [`run`] polls all of them whenever a Call has ended, and sleeps when
//! all of them wait.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::future::{Future, poll_fn};
use std::os::unix::ffi::OsStrExt;
use std::pin::Pin;
use std::rc::Rc;
use std::slice;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use stag_memory::Buf;
use stag_nfs::client::{AnyOperation, ClientError, FinishedCall, Operation};
use stag_rpc::Chunks;
use stag_runtime::{Poller, sleep};
use stag_wire::nfs3::{
    self, Attributes, CommitArguments, CreateArguments, CreateHow, CreateReply, Data, DirectoryName,
    FsinfoArguments, FsinfoOk, FsstatArguments, FsstatOk, GetattrArguments, Handle as WireHandle,
    LinkArguments, LookupArguments, MkdirArguments, Name, Path, PostOpAttributes, ReadArguments,
    ReadlinkArguments, RemoveArguments, RenameArguments, RmdirArguments, SetAttributes, SetattrArguments,
    Stable, Status, SymlinkArguments, Verifier, WriteArguments,
};
use stag_wire::xdr::Item;

use super::error::{RemoteError, answer};
use super::link::{Link, SLEEP_MAX, SPIN, clock, connect};
use super::mount::Mount;
use super::node::{RemoteHandle, RemoteNode, with_mode};
use super::transfer_limits::Limits;
use crate::failure::CommandFailure;
use crate::url::Url;

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
    let mut pollers: Vec<&mut dyn Poller> = inner.iter_mut().map(|inner| inner.link.poller()).collect();
    sleep(&mut pollers, now, latest);
}

/// A connection that tasks share. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Session {
    pub(super) inner: Rc<RefCell<Inner>>,
    tasks: Rc<Tasks>,
}

pub(super) struct Inner {
    pub(super) link: Box<dyn Link>,
    /// Where it is.
    pub(super) server: Url,
    /// Where MOUNT is served, when that is known.
    pub(super) mount: Option<Mount>,
    /// The exports that were mounted: the names of each, and its handle; the longest first.
    pub(super) mounted: Vec<(Vec<OsString>, RemoteHandle)>,
    /// How much the server takes and gives at once.
    pub(super) limits: Limits,
    /// The server has no READDIRPLUS.
    pub(super) lists_names_only: bool,
    next: u64,
    /// Calls that ended, and whose task was not polled since.
    ended: HashMap<u64, Result<FinishedCall, RemoteError>>,
}

impl Session {
    /// Connects to the server of `url`; whether to do so again when the connection ends is said.
    pub(crate) fn connect(url: &Url, reconnects: bool, tasks: Rc<Tasks>) -> Result<Session, CommandFailure> {
        let server = url.server();
        let link = connect(&server, reconnects).map_err(|error| error.at(&server))?;
        let inner = Inner {
            link,
            server,
            mount: None,
            mounted: Vec::new(),
            limits: Limits::default(),
            lists_names_only: false,
            next: 0,
            ended: HashMap::new(),
        };
        Ok(Session { inner: Rc::new(RefCell::new(inner)), tasks })
    }

    /// Whether both are the same connection.
    pub(crate) fn is(&self, other: &Session) -> bool {
        Rc::ptr_eq(&self.inner, &other.inner)
    }

    /// Runs tasks of this connection alone to their ends.
    pub(super) fn run_alone(&self, tasks: Vec<Task<'_>>) {
        let has_ended = run(&self.tasks, tasks, slice::from_ref(self), || true);
        assert!(has_ended, "nothing abandons them");
    }

    /// Waits for the end of some work while no task runs.
    pub(super) fn wait_for<T>(&self, work: impl Future<Output = T>) -> T {
        let mut found = None;
        self.run_alone(vec![Box::pin(async { found = Some(work.await) })]);
        let Some(found) = found else { unreachable!("the task ended") };
        found
    }

    /// Octets of one READ at most.
    pub(crate) fn read_len_max(&self) -> usize {
        self.inner.borrow().limits.read
    }

    /// Octets of one WRITE at most.
    pub(crate) fn write_len_max(&self) -> usize {
        self.inner.borrow().limits.write
    }

    /// Whether the connection is being made anew.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.inner.borrow().link.is_interrupted()
    }

    /// Whether a Call failed in a way in which all others will.
    pub(crate) fn is_useless(&self) -> bool {
        self.inner.borrow().link.is_useless()
    }

    fn pass(&self) -> usize {
        let inner = &mut *self.inner.borrow_mut();
        let mut events = inner.link.pass();
        while let Some((user, result)) = inner.link.take_finished() {
            inner.ended.insert(user, result);
            events += 1;
        }
        events
    }

    /// A buffer of the connection's, once there is one.
    pub(crate) async fn buffer(&self, len: usize) -> Buf {
        self.tasks.until(|| self.inner.borrow().link.buffer(len)).await
    }

    /// Makes a Call without chunks, and waits for its end.
    pub(super) async fn call<O: Operation>(&self, operation: &O) -> Result<FinishedCall, RemoteError> {
        self.call_with(operation, async || Chunks::default()).await
    }

    /// Makes a Call, and waits for its end: once more after a pause, with a new xid, for as long as the server wants to
    /// be asked again later (RFC 1813 section 2.6). `chunks` makes the chunks of each.
    async fn call_with<O: Operation>(
        &self,
        operation: &O,
        chunks: impl AsyncFn() -> Chunks,
    ) -> Result<FinishedCall, RemoteError> {
        let (begun, mut pause) = (clock().now(), LATER_FIRST);
        loop {
            let finished = self.call_once(operation, chunks().await).await?;
            if !wants_to_be_asked_later(operation, &finished)
                || clock().now().saturating_sub(begun) >= LATER_MAX
            {
                return Ok(finished);
            }
            // Its buffers are free meanwhile.
            drop(finished);
            self.tasks.delay(pause).await;
            pause = (2 * pause).min(Duration::from_secs(1));
        }
    }

    async fn call_once<O: Operation>(
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
                    None => {
                        match inner.link.try_begin(&AnyOperation::new(operation), &mut chunks, inner.next) {
                            Ok(true) => {
                                call = Some(inner.next);
                                // Below the bit that the connection uses itself.
                                inner.next = (inner.next + 1) & (u64::MAX >> 1);
                                None
                            }
                            Ok(false) => None,
                            Err(error) => Some(Err(error)),
                        }
                    }
                }
            })
            .await
    }

    /// What the server can do, for the export of this handle.
    pub(super) async fn fsinfo(&self, root: &RemoteHandle) -> Result<FsinfoOk, RemoteError> {
        let finished = self.call(&FsinfoArguments { root: WireHandle(root) }).await?;
        answer(finished.reply::<FsinfoArguments<'_>>())
    }

    /// Space and objects of the export that holds the file.
    pub(super) async fn space(&self, file: &RemoteHandle) -> Result<FsstatOk, RemoteError> {
        let finished = self.call(&FsstatArguments { root: WireHandle(file) }).await?;
        answer(finished.reply::<FsstatArguments<'_>>())
    }

    /// The attributes of a file.
    pub(crate) async fn attributes(&self, file: &RemoteHandle) -> Result<Attributes, RemoteError> {
        let finished = self.call(&GetattrArguments { object: WireHandle(file) }).await?;
        Ok(answer(finished.reply::<GetattrArguments<'_>>())?.attributes)
    }

    /// Sets attributes of a file. Returns what it has then, if the server tells.
    pub(crate) async fn set(
        &self,
        file: &RemoteHandle,
        attributes: SetAttributes,
    ) -> Result<PostOpAttributes, RemoteError> {
        let arguments = SetattrArguments { object: WireHandle(file), attributes, guard: None };
        let finished = self.call(&arguments).await?;
        Ok(answer(finished.reply::<SetattrArguments<'_>>())?.object.after)
    }

    /// The file of that name in a folder.
    pub(crate) async fn child(&self, folder: &RemoteHandle, name: &OsStr) -> Result<RemoteNode, RemoteError> {
        let finished = self.call(&LookupArguments { what: place(folder, name) }).await?;
        let ok = answer(finished.reply::<LookupArguments<'_>>())?;
        self.node(ok.object.0.to_vec(), ok.attributes).await
    }

    /// The file of a handle, whose attributes the server may have told.
    pub(super) async fn node(
        &self,
        handle: RemoteHandle,
        attributes: PostOpAttributes,
    ) -> Result<RemoteNode, RemoteError> {
        let attributes = match attributes {
            Some(attributes) => attributes,
            None => self.attributes(&handle).await?,
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
        match ok.object {
            Some(handle) => self.node(handle.0.to_vec(), ok.attributes).await,
            None => self.child(folder, name).await,
        }
    }

    /// Makes a file, as `how` says.
    pub(crate) async fn create(
        &self,
        folder: &RemoteHandle,
        name: &OsStr,
        how: CreateHow,
    ) -> Result<RemoteNode, RemoteError> {
        let finished = self.call(&CreateArguments { place: place(folder, name), how }).await?;
        self.made(finished.reply::<CreateArguments<'_>>(), folder, name).await
    }

    /// Makes a folder. One that is there already is an error.
    pub(crate) async fn make_folder(
        &self,
        folder: &RemoteHandle,
        name: &OsStr,
        mode: u32,
    ) -> Result<RemoteNode, RemoteError> {
        let arguments = MkdirArguments { place: place(folder, name), attributes: with_mode(mode) };
        let finished = self.call(&arguments).await?;
        self.made(finished.reply::<MkdirArguments<'_>>(), folder, name).await
    }

    /// Makes a symbolic link that holds `target`.
    pub(crate) async fn make_link(
        &self,
        folder: &RemoteHandle,
        name: &OsStr,
        target: &[u8],
    ) -> Result<RemoteNode, RemoteError> {
        let (place, attributes) = (place(folder, name), with_mode(0o777));
        let path = Path(Item::Inline(target));
        let finished = self.call(&SymlinkArguments { place, attributes, path }).await?;
        self.made(finished.reply::<SymlinkArguments<'_>>(), folder, name).await
    }

    /// Gives a file one more name.
    pub(crate) async fn add_name(
        &self,
        file: &RemoteHandle,
        folder: &RemoteHandle,
        name: &OsStr,
    ) -> Result<(), RemoteError> {
        let arguments = LinkArguments { file: WireHandle(file), link: place(folder, name) };
        let finished = self.call(&arguments).await?;
        answer(finished.reply::<LinkArguments<'_>>()).map(drop).map_err(apart)
    }

    /// Removes a name of anything but a folder.
    pub(crate) async fn remove(&self, folder: &RemoteHandle, name: &OsStr) -> Result<(), RemoteError> {
        let finished = self.call(&RemoveArguments { object: place(folder, name) }).await?;
        answer(finished.reply::<RemoveArguments<'_>>()).map(drop)
    }

    /// Removes an empty folder.
    pub(super) async fn remove_folder(&self, folder: &RemoteHandle, name: &OsStr) -> Result<(), RemoteError> {
        let finished = self.call(&RmdirArguments { object: place(folder, name) }).await?;
        answer(finished.reply::<RmdirArguments<'_>>()).map(drop)
    }

    /// Gives a file another name or folder.
    pub(super) async fn rename(
        &self,
        from: (&RemoteHandle, &OsStr),
        to: (&RemoteHandle, &OsStr),
    ) -> Result<(), RemoteError> {
        let arguments = RenameArguments { from: place(from.0, from.1), to: place(to.0, to.1) };
        let finished = self.call(&arguments).await?;
        answer(finished.reply::<RenameArguments<'_>>()).map(drop).map_err(apart)
    }

    /// What a symbolic link holds.
    pub(crate) async fn read_link(&self, link: &RemoteHandle) -> Result<Vec<u8>, RemoteError> {
        let finished = self.call(&ReadlinkArguments { symlink: WireHandle(link) }).await?;
        let ok = answer(finished.reply::<ReadlinkArguments<'_>>())?;
        match ok.path.0 {
            Item::Inline(path) => Ok(path.to_vec()),
            Item::Reduced { .. } => Err(RemoteError::senseless("READLINK")),
        }
    }

    /// Reads up to `len` octets at `offset`.
    pub(crate) async fn read(
        &self,
        file: &RemoteHandle,
        offset: u64,
        len: usize,
    ) -> Result<ReadPart, RemoteError> {
        let arguments = ReadArguments { file: WireHandle(file), offset, count: len as u32 };
        let finished = self.call_with(&arguments, async || Chunks::write(self.buffer(len).await)).await?;
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
    }

    /// Writes all of `data` at `offset`. Returns the verifier, if some of it needs a COMMIT.
    pub(crate) async fn write(
        &self,
        file: &RemoteHandle,
        offset: u64,
        data: Buf,
        stable: Stable,
    ) -> Result<WriteState, RemoteError> {
        let inline_len_max = self.inner.borrow().link.inline_write_len_max(file.len());
        let data = data.share();
        let mut state = WriteState::default();
        let mut at = 0;
        while at < data.len() {
            let rest = data.slice(at..);
            let count = rest.len() as u32;
            let is_inline = rest.len() <= inline_len_max;
            let item =
                if is_inline { Item::Inline(&rest[..]) } else { Item::Reduced { index: 0, len: count } };
            let arguments = WriteArguments {
                file: WireHandle(file),
                offset: offset + at as u64,
                count,
                stable,
                data: Data(item),
            };
            let chunks = async || if is_inline { Chunks::default() } else { Chunks::read(rest.clone()) };
            let finished = self.call_with(&arguments, chunks).await?;
            let ok = answer(finished.reply::<WriteArguments<'_>>())?;
            if ok.count == 0 || ok.count > count {
                return Err(RemoteError::senseless("WRITE"));
            }
            at += ok.count as usize;
            if ok.committed == Stable::Unstable {
                state.note(ok.verifier);
            }
        }
        Ok(state)
    }

    /// Makes what was written safe. Returns the verifier.
    pub(crate) async fn commit(&self, file: &RemoteHandle) -> Result<Verifier, RemoteError> {
        let finished = self.call(&CommitArguments { file: WireHandle(file), offset: 0, count: 0 }).await?;
        Ok(answer(finished.reply::<CommitArguments<'_>>())?.verifier)
    }
}

/// Whether results of NFS say so. Those of each procedure but NULL begin with a status.
fn wants_to_be_asked_later<O: Operation>(operation: &O, finished: &FinishedCall) -> bool {
    let results = finished.completed().result.as_ref();
    O::PROGRAM == nfs3::PROGRAM
        && operation.procedure() != nfs3::Procedure::Null.number()
        && results.is_ok_and(|results| results.bytes().starts_with(&Status::Jukebox.number().to_be_bytes()))
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

fn place<'a>(folder: &'a RemoteHandle, name: &'a OsStr) -> DirectoryName<'a> {
    DirectoryName { directory: WireHandle(folder), name: Name(name.as_bytes()) }
}

/// The error of a procedure that gives a file a name: it fails between two exports, and at a file system mounted below one.
fn apart(error: RemoteError) -> RemoteError {
    match error {
        RemoteError::Status(Status::XDev) => RemoteError::Apart,
        error => error,
    }
}
