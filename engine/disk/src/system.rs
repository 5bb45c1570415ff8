//! System calls about files that `rustix` lacks.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

/// The most octets of a kernel's file handle.
const HANDLE_LEN_MAX: usize = 128;

/// What the kernel itself calls a file, whatever its names are: a number, and what tells the files that had
/// that number apart. It is the same after a restart, of a program or of the machine.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct FileHandle {
    // The kernel's `struct file_handle`.
    len: u32,
    kind: i32,
    octets: [u8; HANDLE_LEN_MAX],
}

impl FileHandle {
    /// A handle of these octets, which are at most 128, and of this kind.
    #[must_use]
    pub fn new(kind: i32, octets: &[u8]) -> FileHandle {
        let mut handle = FileHandle { len: octets.len() as u32, kind, octets: [0; HANDLE_LEN_MAX] };
        handle.octets[..octets.len()].copy_from_slice(octets);
        handle
    }

    /// The layout of [`FileHandle::octets`]; each file system has its own.
    #[must_use]
    pub fn kind(&self) -> i32 {
        self.kind
    }

    /// The handle.
    #[must_use]
    pub fn octets(&self) -> &[u8] {
        &self.octets[..(self.len as usize).min(HANDLE_LEN_MAX)]
    }
}

/// The handle of `name` in `directory`, or of `directory` itself (which may be any object) if `name` is empty.
/// Needs no privilege.
pub fn file_handle(directory: BorrowedFd<'_>, name: &CStr) -> Result<FileHandle, Errno> {
    let mut handle = FileHandle::new(0, &[]);
    handle.len = HANDLE_LEN_MAX as u32;
    let mut mount_id: libc::c_int = 0;
    // SAFETY: `handle` has the kernel's layout and as many octets as its `len` says, `name` ends in a zero byte,
    // and `mount_id` is writable; the descriptor is open.
    let status = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            directory.as_raw_fd(),
            name.as_ptr(),
            &raw mut handle,
            &raw mut mount_id,
            libc::AT_EMPTY_PATH,
        )
    };
    if status < 0 { Err(last()) } else { Ok(handle) }
}

/// Opens what `handle` names in the file system that `mount` is in, to be looked at only (`O_PATH`). `mount` itself has
/// to be open for more than that ([`Errno::BADF`]).
///
/// Needs the capability `CAP_DAC_READ_SEARCH`. The object may lie anywhere in the file system.
pub fn open_by_handle(mount: BorrowedFd<'_>, handle: &FileHandle) -> Result<OwnedFd, Errno> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let mut handle = *handle;
    // SAFETY: as in `file_handle`.
    let fd = unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw mut handle, flags) };
    if fd < 0 {
        return Err(last());
    }
    // SAFETY: a descriptor that the kernel has just made for us; it fits an `int`.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

/// Sets the permission bits of what `file` is, which may be opened to be looked at only.
pub fn change_mode(file: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    // SAFETY: the empty path ends in a zero byte, and the descriptor is open.
    let status = unsafe {
        libc::syscall(libc::SYS_fchmodat2, file.as_raw_fd(), c"".as_ptr(), mode, libc::AT_EMPTY_PATH)
    };
    if status == 0 {
        return Ok(());
    }
    match last() {
        // Before Linux 6.6, or a container's filter: by the name that /proc has for the descriptor.
        Errno::NOSYS | Errno::PERM => {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::chmod(path, rustix::fs::Mode::from_raw_mode(mode))
        }
        error => Err(error),
    }
}

/// Hard links that an object can have in the file system of `file`, if the C library knows.
#[must_use]
pub fn links_max(file: BorrowedFd<'_>) -> Option<u32> {
    // SAFETY: a plain question about an open descriptor.
    let count = unsafe { libc::fpathconf(file.as_raw_fd(), libc::_PC_LINK_MAX) };
    if count < 0 { None } else { Some(u32::try_from(count).unwrap_or(u32::MAX)) }
}

/// The time that the kernel stamps files with, since 1970: some milliseconds behind the time of day.
#[must_use]
pub fn file_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable, and the call does nothing else.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &raw mut time) };
    if status != 0 {
        return Duration::ZERO;
    }
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// Whom the kernel takes a thread for when it works on files.
#[derive(Clone, Copy, Debug)]
pub struct FileUser<'a> {
    /// User; not 4294967295, which stands for nobody.
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
/// Each is done by a thread of its own, which sets its user and groups for files alone (`setfsuid`) and ends. The calling
/// thread keeps its credentials: the kernel refuses work on RDMA connections to a thread that has changed them since it opened the
/// device, even if they are as before. The kernel makes no core dumps of such a process unless `fs.suid_dumpable` says so.
#[derive(Debug)]
pub struct FileUsers {
    capabilities: Capabilities,
}

/// Bytes of a file user's stack: it makes a system call or two.
const STACK_LEN: usize = 128 << 10;

impl FileUsers {
    /// Sees that it can be done: the calling process is root. [`Errno::PERM`]: it is not, or lacks the
    /// capabilities `CAP_SETUID` and `CAP_SETGID`.
    pub fn new() -> Result<FileUsers, Errno> {
        if !rustix::process::geteuid().is_root() {
            return Err(Errno::PERM);
        }
        let users = FileUsers { capabilities: capabilities()? };
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
        let begin = || {
            set_groups(user.groups)?;
            set_file_gid(user.gid)?;
            // Takes the capabilities that are about files from the effective ones, unless it is root.
            set_file_uid(user.uid)?;
            if user.privileged && user.uid != 0 {
                set_capabilities(&self.capabilities)?;
            }
            act()
        };
        thread::scope(|scope| {
            let builder = thread::Builder::new().name("stag-file-user".into()).stack_size(STACK_LEN);
            let started = builder.spawn_scoped(scope, begin);
            let started = started.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
            started.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }
}

fn set_file_uid(uid: u32) -> Result<(), Errno> {
    // SAFETY: changes nothing but whom the kernel takes this thread for. It says only what was before, so it is asked
    // again, for what cannot be.
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

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
