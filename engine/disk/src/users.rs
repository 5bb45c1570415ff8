//! Work on files as other users.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use rustix::io::Errno;

use crate::system::last;

/// Whom the kernel takes a thread for when it works on files.
#[derive(Clone, Copy, Debug)]
pub struct FileUser<'a> {
    /// User; not 4294967295, which stands for no user.
    pub uid: u32,
    /// Group; not 4294967295.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: &'a [u32],
    /// Whether the thread keeps the capabilities that it has: then only what it makes is the user's. Without, it may do
    /// what the user may.
    pub privileged: bool,
}

/// The kernel's `struct __user_cap_data_struct`, twice.
type Capabilities = [[u32; 3]; 2];

/// Lets a process that runs as root work on files as other users, one system call at a time.
///
/// A thread of its own does it, which sets its user and groups for files alone (`setfsuid`). The calling thread
/// waits, and keeps its credentials: the kernel compares those that an RDMA device was opened with by their address, and
/// refuses work on connections to a thread that has changed them since, even if they are as before. The kernel makes no
/// core dumps of such a process unless `fs.suid_dumpable` says so.
#[derive(Debug)]
pub struct FileUsers {
    capabilities: Capabilities,
    /// `None` before the first use, and after the thread ended.
    helper: Mutex<Option<Helper>>,
}

/// The thread, and the ways to it and back. It sleeps until there is an errand, and ends when this is dropped.
#[derive(Debug)]
struct Helper {
    errands: SyncSender<Errand>,
    done: Receiver<()>,
}

/// What the thread is to do.
struct Errand(*mut (dyn FnMut() + Send));

// SAFETY: the function may be called on another thread, and the maker of the errand leaves it alone until the thread says
// that it is done, or has ended.
unsafe impl Send for Errand {}

/// Bytes of the thread's stack: it makes a system call or two.
const STACK_LEN: usize = 128 << 10;

impl Helper {
    fn start() -> Result<Helper, Errno> {
        let (errands, receiver) = sync_channel::<Errand>(1);
        let (sender, done) = sync_channel(1);
        let work = move || {
            for Errand(errand) in receiver {
                // SAFETY: the pointer is to a function that `Helper::run` borrows for itself alone until it hears from us.
                unsafe { (*errand)() };
                if sender.send(()).is_err() {
                    break;
                }
            }
        };
        let builder = thread::Builder::new().name("stag-file-user".into()).stack_size(STACK_LEN);
        let started = builder.spawn(work);
        started.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        Ok(Helper { errands, done })
    }

    /// Lets the thread call `errand`, and waits until it has. `false`: there is no thread any more.
    fn run<'a>(&self, errand: &'a mut (dyn FnMut() + Send + 'a)) -> bool {
        let errand: *mut (dyn FnMut() + Send + 'a) = errand;
        // SAFETY: only the lifetime differs, and it is not called when that is over. The thread calls it before it says
        // that it is done, for which we wait. If the thread ends instead, the other ends of both channels are gone, and
        // with them every caller.
        let errand: *mut (dyn FnMut() + Send + 'static) = unsafe { std::mem::transmute(errand) };
        self.errands.send(Errand(errand)).is_ok() && self.done.recv().is_ok()
    }
}

impl FileUsers {
    /// Sees that it can be done: the calling process is root. [`Errno::PERM`]: it is not, or lacks the
    /// capabilities `CAP_SETUID` and `CAP_SETGID`.
    pub fn new() -> Result<FileUsers, Errno> {
        if !rustix::process::geteuid().is_root() {
            return Err(Errno::PERM);
        }
        let users = FileUsers { capabilities: capabilities()?, helper: Mutex::default() };
        // The highest that is valid, so that it is another than ours.
        let probe = FileUser { uid: u32::MAX - 1, gid: u32::MAX - 1, groups: &[], privileged: true };
        users.run(&probe, || Ok(()))?;
        Ok(users)
    }

    /// Does `act` as `user`, on another thread, and waits for it. `act` makes system calls on files, and returns.
    ///
    /// [`Errno::INVAL`]: there can be no such user. [`Errno::PERM`]: the kernel refuses to act as it. [`Errno::AGAIN`]: there
    /// can be no more threads. `act` was not done then.
    pub fn run<T: Send>(
        &self,
        user: &FileUser<'_>,
        act: impl FnOnce() -> Result<T, Errno> + Send,
    ) -> Result<T, Errno> {
        if user.uid == u32::MAX || user.gid == u32::MAX || user.groups.contains(&u32::MAX) {
            return Err(Errno::INVAL);
        }
        let (mut act, mut result) = (Some(act), None);
        let mut errand = || {
            let Some(act) = act.take() else { return };
            // A panic is the caller's; the thread goes on.
            result = Some(catch_unwind(AssertUnwindSafe(|| {
                self.become_user(user)?;
                act()
            })));
        };
        // Nothing panics while it is locked; if it did, there would be a helper or none all the same.
        let mut helper = self.helper.lock().unwrap_or_else(PoisonError::into_inner);
        let running = match helper.take() {
            Some(running) => running,
            None => Helper::start()?,
        };
        if running.run(&mut errand) {
            *helper = Some(running);
        }
        drop(helper);
        result.map_or(Err(Errno::AGAIN), |result| result.unwrap_or_else(|panic| resume_unwind(panic)))
    }

    /// Does `act` as `user`, on the calling thread, which is root again afterwards. Not for a thread that works on RDMA devices: see
    /// [`FileUsers`]. Errors as [`FileUsers::run`].
    pub fn run_here<T>(
        &self,
        user: &FileUser<'_>,
        act: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        if user.uid == u32::MAX || user.gid == u32::MAX || user.groups.contains(&u32::MAX) {
            return Err(Errno::INVAL);
        }
        let _back = BackToRoot(self);
        self.become_user(user)?;
        act()
    }

    /// Makes the kernel take this thread for `user`, whatever user it was before.
    fn become_user(&self, user: &FileUser<'_>) -> Result<(), Errno> {
        // As a new thread: what the last user left, capabilities above all, must not help the next.
        set_file_uid(0)?;
        set_capabilities(&self.capabilities)?;
        set_groups(user.groups)?;
        set_file_gid(user.gid)?;
        // Takes the capabilities that are about files from the effective ones, unless it is root.
        set_file_uid(user.uid)?;
        if user.privileged && user.uid != 0 {
            set_capabilities(&self.capabilities)?;
        }
        Ok(())
    }
}

/// Makes the thread root again, also after a panic.
struct BackToRoot<'a>(&'a FileUsers);

impl Drop for BackToRoot<'_> {
    fn drop(&mut self) {
        let root = FileUser { uid: 0, gid: 0, groups: &[], privileged: true };
        // Only the user for files was another: the kernel never refuses it. If it did, the next is refused what it asks for.
        let _ = self.0.become_user(&root);
    }
}

fn set_file_uid(uid: u32) -> Result<(), Errno> {
    // SAFETY: changes nothing but the user that the kernel takes this thread for. The call returns only the previous
    // user, so an impossible user is set to read the current one.
    let now = unsafe {
        libc::setfsuid(uid);
        libc::setfsuid(u32::MAX)
    };
    if now as u32 == uid { Ok(()) } else { Err(Errno::PERM) }
}

fn set_file_gid(gid: u32) -> Result<(), Errno> {
    // SAFETY: as in `set_file_uid`.
    let now = unsafe {
        libc::setfsgid(gid);
        libc::setfsgid(u32::MAX)
    };
    if now as u32 == gid { Ok(()) } else { Err(Errno::PERM) }
}

/// Of this thread alone: the C library's function is for all.
fn set_groups(groups: &[u32]) -> Result<(), Errno> {
    // SAFETY: the kernel reads as many groups as there are.
    let status = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    if status < 0 { Err(last()) } else { Ok(()) }
}

/// Gives up all capabilities of the calling thread, and of the threads that it starts from now on, but those whose bits
/// (`1 << CAP_…`) are set in `kept`. No program that it executes gets others.
pub fn keep_capabilities(kept: u64) -> Result<(), Errno> {
    // SAFETY: a flag of this thread, with the arguments that the kernel wants.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } < 0 {
        return Err(last());
    }
    let mut sets = capabilities()?;
    // The lower half of each set comes first.
    for (set, kept) in sets.iter_mut().zip([kept as u32, (kept >> 32) as u32]) {
        let permitted = set[1] & kept;
        *set = [permitted, permitted, 0];
    }
    set_capabilities(&sets)
}

/// `_LINUX_CAPABILITY_VERSION_3`, and the calling thread.
const CAPABILITY_HEADER: [u32; 2] = [0x2008_0522, 0];

fn capabilities() -> Result<Capabilities, Errno> {
    let mut header = CAPABILITY_HEADER;
    let mut sets = Capabilities::default();
    // SAFETY: both have the kernel's layout for this version, and are writable.
    let status = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) };
    if status < 0 { Err(last()) } else { Ok(sets) }
}

fn set_capabilities(sets: &Capabilities) -> Result<(), Errno> {
    let mut header = CAPABILITY_HEADER;
    // SAFETY: as in `capabilities`; the kernel reads `sets`, and writes `header` at most.
    let status = unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_ptr()) };
    if status < 0 { Err(last()) } else { Ok(()) }
}
