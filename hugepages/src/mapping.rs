//! Sealed shared memory, mapped and pre-faulted.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use crate::page::{PageChoice, PageSize};

/// What to map.
#[derive(Clone, Copy, Debug)]
pub struct MapConfig<'a> {
    /// Shown in `/proc/PID/maps` as `/memfd:NAME`.
    pub name: &'a str,
    /// Bytes wanted; rounded up to whole pages.
    pub len: usize,
    /// Where to begin.
    pub page: PageChoice,
    /// The NUMA node to bind to.
    pub node: Option<u32>,
}

/// Why nothing could be mapped.
#[derive(Debug, thiserror::Error)]
#[error("memory {name:?} of {len} bytes: {doing}: {source}")]
pub struct MapError {
    /// Whose.
    pub name: String,
    /// Bytes wanted.
    pub len: usize,
    /// The step that failed.
    pub doing: &'static str,
    /// The system's answer.
    pub source: io::Error,
}

/// A sealed memfd (it can neither grow nor shrink), mapped for reading and writing, zeroed and
/// pre-faulted. Unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    // Invariant: `base..base + len` is one live mapping of `fd`, made by `mmap`, ours to unmap.
    base: NonNull<u8>,
    len: usize,
    page: PageSize,
    fd: OwnedFd,
    notes: Vec<String>,
}

// SAFETY: the mapping is plain memory, valid from any thread; `Mapping` itself never reads or writes it
// after `new`, it only hands out its address.
unsafe impl Send for Mapping {}
// SAFETY: as above; there is no interior mutability.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `config.len` bytes.
    pub fn new(config: &MapConfig<'_>) -> Result<Mapping, MapError> {
        let fail = |doing, source| MapError { name: config.name.into(), len: config.len, doing, source };
        let len = config.len.max(1).next_multiple_of(PageSize::Base.bytes());
        let name = CString::new(config.name).map_err(|e| fail("name", io::Error::other(e)))?;
        // SAFETY: `name` is a C string that outlives the call.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if fd < 0 {
            return Err(fail("memfd_create", io::Error::last_os_error()));
        }
        // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: plain system call on a descriptor we own.
        if unsafe { libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) } != 0 {
            return Err(fail("ftruncate", io::Error::last_os_error()));
        }
        let seals = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
        // SAFETY: plain system call on a descriptor we own.
        if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(fail("sealing", io::Error::last_os_error()));
        }
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(fail("mmap", io::Error::last_os_error()));
        }
        let base = NonNull::new(base.cast()).expect("mmap without MAP_FIXED never returns address 0");
        Ok(Mapping { base, len, page: PageSize::Base, fd, notes: Vec::new() })
    }

    /// The first byte. Valid for reads and writes of [`Mapping::len`] bytes while `self` lives.
    #[inline]
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes mapped: what was asked for, rounded up to whole pages.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// What it stands on.
    #[must_use]
    pub fn page_size(&self) -> PageSize {
        self.page
    }

    /// What it stepped down from and why, and what else is less than asked for.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

impl AsFd for Mapping {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the field invariant; whoever was given `base` was told that it ends with `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
