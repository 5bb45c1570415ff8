//! Writes what must survive a restart into a file, on a thread of its own: no reactor waits for the disk.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use crate::sync::{AtomicU64, Builder, Condvar, JoinHandle, Mutex, MutexGuard, Ordering};

/// The thread, and what it has to write. It ends when this is dropped, with everything written.
pub(crate) struct JournalWriter<E> {
    desk: Arc<JournalDesk<E>>,
    thread: Option<JoinHandle<()>>,
}

impl<E> fmt::Debug for JournalWriter<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JournalWriter").finish_non_exhaustive()
    }
}

/// Between the reactors and the thread.
struct JournalDesk<E> {
    next: Mutex<NextEntries<E>>,
    has_news: Condvar,
    /// The number of the last entry that is on disk.
    written: AtomicU64,
}

struct NextEntries<E> {
    entries: VecDeque<E>,
    /// The number of the last of them. The first that was ever given is 1.
    last: u64,
    is_closed: bool,
}

impl<E: Send + 'static> JournalWriter<E> {
    /// Starts the thread. `write` gets the entries that were given meanwhile, the oldest first, and warns if it fails.
    pub(crate) fn start(
        name: &str,
        mut write: impl FnMut(VecDeque<E>) + Send + 'static,
    ) -> io::Result<JournalWriter<E>> {
        let next = NextEntries { entries: VecDeque::new(), last: 0, is_closed: false };
        let desk =
            JournalDesk { next: Mutex::new(next), has_news: Condvar::new(), written: AtomicU64::new(0) };
        let desk = Arc::new(desk);
        let theirs = Arc::clone(&desk);
        let thread = Builder::new().name(name.to_owned()).spawn(move || {
            while let Some((entries, last)) = theirs.take() {
                write(entries);
                theirs.written.store(last, Ordering::Release);
            }
        })?;
        Ok(JournalWriter { desk, thread: Some(thread) })
    }

    /// Gives an entry to the thread, and takes back those that wait and that it replaces. Returns its number.
    pub(crate) fn push(&self, entry: E, replaces: impl Fn(&E) -> bool) -> u64 {
        let mut next = self.desk.next();
        next.entries.retain(|earlier| !replaces(earlier));
        next.entries.push_back(entry);
        next.last += 1;
        let number = next.last;
        drop(next);
        self.desk.has_news.notify_one();
        number
    }

    /// The number of the last entry that is on disk.
    pub(crate) fn written(&self) -> u64 {
        self.desk.written.load(Ordering::Acquire)
    }
}

impl<E> JournalDesk<E> {
    /// Held for a moment only, by either side.
    fn next(&self) -> MutexGuard<'_, NextEntries<E>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entries to write, and the number of the last one; waits for them. `None`: nothing more will come.
    fn take(&self) -> Option<(VecDeque<E>, u64)> {
        let mut next = self.next();
        while next.entries.is_empty() && !next.is_closed {
            next = self.has_news.wait(next).unwrap_or_else(PoisonError::into_inner);
        }
        let entries = std::mem::take(&mut next.entries);
        (!entries.is_empty()).then_some((entries, next.last))
    }
}

impl<E> Drop for JournalWriter<E> {
    fn drop(&mut self) {
        self.desk.next().is_closed = true;
        self.desk.has_news.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Puts a file with this text in the place of the one at `path`, on disk. Returns it, to append to.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<File> {
    let new = path.with_extension("new");
    // Whatever umask is.
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o644).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    // The name is on disk when the directory is.
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())?;
    Ok(file)
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    /// Who sees that an entry is written sees what was done to write it.
    #[test]
    fn loom_an_entry_that_counts_as_written_is_on_disk() {
        loom::model(|| {
            let disk = Arc::new(AtomicU64::new(0));
            let theirs = Arc::clone(&disk);
            let journal = JournalWriter::start("journal", move |entries: VecDeque<u64>| {
                for entry in entries {
                    // Relaxed: what makes it seen is the number of the last entry.
                    theirs.fetch_or(entry, Ordering::Relaxed);
                }
            });
            let journal = journal.unwrap();
            for entry in [1, 2] {
                let number = journal.push(entry, |_| false);
                if journal.written() >= number {
                    assert_eq!(disk.load(Ordering::Relaxed) & entry, entry);
                }
            }
            drop(journal);
            assert_eq!(disk.load(Ordering::Relaxed), 3, "all is written when it ends");
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn entries_are_written_in_order_and_replaced_while_they_wait() {
        let (gate, opens) = channel::<()>();
        let (tell, told) = channel();
        let journal = JournalWriter::start("journal-test", move |entries| {
            opens.recv().unwrap();
            tell.send(Vec::from(entries)).unwrap();
        });
        let journal = journal.unwrap();
        assert_eq!((journal.push(1, |_| false), journal.written()), (1, 0));
        gate.send(()).unwrap();
        assert_eq!(told.recv(), Ok(vec![1]));
        // The thread is at the first of these, or waits for it; the others wait.
        assert_eq!(journal.push(2, |_| false), 2);
        gate.send(()).unwrap();
        assert_eq!(told.recv(), Ok(vec![2]));
        let numbers = [3, 4, 5].map(|entry| journal.push(entry, |earlier| *earlier == 4));
        assert_eq!(numbers, [3, 4, 5]);
        gate.send(()).unwrap();
        gate.send(()).unwrap();
        drop(journal);
        let rest: Vec<i32> = told.iter().flatten().collect();
        assert!(rest == [3, 5] || rest == [3, 4, 5], "{rest:?}: what is being written is not taken back");
    }
}
