//! Open files that are not closed where they are dropped.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

/// Descriptors that a bin holds. A file that finds it full is closed where it is dropped: so a process that opens and closes faster
/// than the bin is emptied does not run out of descriptors.
const BIN_LEN: usize = 256;

/// An open file. Several share it as `Arc<DiskFile>`.
///
/// Closing may wait for a device or for another machine: the last reference to a deleted file frees its blocks, and some file
/// systems send what was written. A file with a [`ClosingBin`] goes there when it is dropped. The owner of the bin closes it.
#[derive(Debug)]
pub struct DiskFile {
    // `None` only while it is dropped.
    descriptor: Option<OwnedFd>,
    bin: Option<ClosingBin>,
}

/// Descriptors to close. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct ClosingBin(Arc<Mutex<Vec<OwnedFd>>>);

impl ClosingBin {
    /// Takes all out.
    #[must_use]
    pub fn take(&self) -> Vec<OwnedFd> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Descriptors in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl DiskFile {
    /// A file that goes to `bin` when it is dropped; without, it is closed then.
    #[must_use]
    pub fn new(descriptor: OwnedFd, bin: Option<ClosingBin>) -> DiskFile {
        DiskFile { descriptor: Some(descriptor), bin }
    }

    fn descriptor(&self) -> &OwnedFd {
        self.descriptor.as_ref().expect("it is open until it is dropped")
    }
}

impl From<OwnedFd> for DiskFile {
    fn from(descriptor: OwnedFd) -> DiskFile {
        DiskFile::new(descriptor, None)
    }
}

impl AsFd for DiskFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor().as_fd()
    }
}

impl AsRawFd for DiskFile {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor().as_raw_fd()
    }
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        if let (Some(ClosingBin(bin)), Some(descriptor)) = (&self.bin, self.descriptor.take()) {
            let mut bin = bin.lock().unwrap_or_else(PoisonError::into_inner);
            if bin.len() < BIN_LEN {
                return bin.push(descriptor);
            }
            drop(bin);
            drop(descriptor);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_dropped_file_goes_to_its_bin() {
        let bin = ClosingBin::default();
        let file = DiskFile::new(File::open("/").unwrap().into(), Some(bin.clone()));
        let number = file.as_raw_fd();
        drop(file);
        let taken = bin.take();
        assert_eq!(taken.iter().map(AsRawFd::as_raw_fd).collect::<Vec<_>>(), [number]);
        assert!(bin.is_empty());
        drop(DiskFile::from(OwnedFd::from(File::open("/").unwrap())));
        assert!(bin.is_empty());
    }
}
