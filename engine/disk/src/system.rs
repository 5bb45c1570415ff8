//! System calls about files that `rustix` lacks.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

pub use crate::locks::{DescriptionLock, find_lock, set_lock};
pub use crate::users::{FileUser, FileUsers, keep_capabilities};

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
    name_to_handle(directory, name, 0)
}

/// As [`file_handle`], but the kernel need not be able to open it: some file systems that have no file handles
/// still tell their files apart that way. [`Errno::INVAL`]: the kernel is older than Linux 6.5.
pub fn file_identifier(directory: BorrowedFd<'_>, name: &CStr) -> Result<FileHandle, Errno> {
    name_to_handle(directory, name, libc::AT_HANDLE_FID)
}

fn name_to_handle(directory: BorrowedFd<'_>, name: &CStr, flags: libc::c_int) -> Result<FileHandle, Errno> {
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
            libc::AT_EMPTY_PATH | flags,
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

/// What the kernel answers to statx(2). `rustix` says [`Errno::NOSYS`] whatever the refusal is.
#[must_use]
pub fn statx_refusal() -> Errno {
    let mut found = std::mem::MaybeUninit::<libc::statx>::uninit();
    let (path, wanted) = (c"/".as_ptr(), libc::STATX_BASIC_STATS);
    // SAFETY: the path ends in a zero byte, and the kernel writes a `struct statx` there, or nothing.
    let status =
        unsafe { libc::syscall(libc::SYS_statx, libc::AT_FDCWD, path, 0, wanted, found.as_mut_ptr()) };
    if status < 0 { last() } else { Errno::NOSYS }
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

/// Whether a file's data is in memory and stays there: it is of a tmpfs or a ramfs, and this machine has no swap. Then
/// reads and writes never wait for a device.
#[must_use]
pub fn is_in_memory(file: BorrowedFd<'_>) -> bool {
    const KINDS: [i64; 2] = [libc::TMPFS_MAGIC, 0x8584_58f6];
    rustix::fs::fstatfs(file).is_ok_and(|found| KINDS.contains(&found.f_type)) && !has_swap()
}

fn has_swap() -> bool {
    rustix::system::sysinfo().totalswap > 0
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
    let time = clock_gettime(ClockId::RealtimeCoarse);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// A descriptor that is readable while one of these is, which stay open as long.
pub fn any_of(descriptors: &[RawFd]) -> Result<OwnedFd, Errno> {
    let any = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for number in descriptors {
        // SAFETY: it is borrowed for this call only; the kernel forgets it when it is closed.
        let descriptor = unsafe { BorrowedFd::borrow_raw(*number) };
        epoll::add(&any, descriptor, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
    Ok(any)
}

pub(crate) fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
