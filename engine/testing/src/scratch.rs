//! Places for the files of a test.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A path in the system's folder for temporary files that no other test has. Dropping it removes the file or folder at it.
#[derive(Debug)]
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// A path with nothing there yet: for a file.
    #[must_use]
    pub fn vacant() -> Scratch {
        // Relaxed: only the number must differ.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Scratch(std::env::temp_dir().join(format!("stag-test-{}-{number}", std::process::id())))
    }

    /// An empty folder, which every user may search and only its owner may change.
    ///
    /// # Panics
    ///
    /// If it cannot be made.
    #[must_use]
    pub fn folder() -> Scratch {
        let scratch = Scratch::vacant();
        let made = fs::create_dir(&scratch.0)
            .and_then(|()| fs::set_permissions(&scratch.0, Permissions::from_mode(0o755)));
        made.unwrap_or_else(|error| panic!("a folder for this test: {}: {error}", scratch.0.display()));
        scratch
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = if self.0.is_dir() { fs::remove_dir_all(&self.0) } else { fs::remove_file(&self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_test_leaves_goes_with_its_place() {
        let (file, folder) = (Scratch::vacant(), Scratch::folder());
        let paths = [file.0.clone(), folder.0.clone()];
        fs::write(&file.0, "a").unwrap();
        fs::write(folder.0.join("b"), "b").unwrap();
        assert!(paths.iter().all(|path| path.exists()));
        drop((file, folder));
        assert!(!paths.iter().any(|path| path.exists()));
    }
}
