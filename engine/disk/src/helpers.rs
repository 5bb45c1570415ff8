//! Threads that make system calls which may wait, so that the reactor does not.
//!
//! They belong to one owner. Threads are started as they are needed, up to a number, and stay. A thread whose system call never
//! returns is lost to that owner only. Dropping [`Helpers`] waits for no thread.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::process::getpid;
use rustix::thread::{sched_getaffinity, sched_setaffinity};

/// Bytes of a thread's stack: room for a chunk of a directory, and what a system call or two need.
const STACK_LEN: usize = 256 << 10;

type Job<T> = Box<dyn FnOnce() -> T + Send>;

/// Helper threads of one owner, whose jobs end with a `T`.
#[derive(Debug)]
pub struct Helpers<T> {
    shared: Arc<Common<T>>,
    results: Receiver<(u32, Option<T>)>,
    /// For the threads.
    ended: Sender<(u32, Option<T>)>,
    limits: HelperLimits,
    /// Jobs whose end [`Helpers::poll`] has not told of.
    outstanding: usize,
}

/// How much helpers do at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelperLimits {
    /// Threads.
    pub threads: usize,
    /// Jobs that are done or wait.
    pub jobs: usize,
}

struct Common<T> {
    state: Mutex<State<T>>,
    work: Condvar,
    /// Readable while there are results.
    event: OwnedFd,
}

impl<T> std::fmt::Debug for Common<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Common").finish_non_exhaustive()
    }
}

struct State<T> {
    queue: VecDeque<(u32, Job<T>)>,
    threads: usize,
    idle: usize,
    /// The owner is gone: a thread ends when the queue is empty.
    is_closed: bool,
    /// Whether the owner has been told that there are results.
    has_told: bool,
}

impl<T> Common<T> {
    // Nothing panics while it is locked.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + 'static> Helpers<T> {
    /// Starts the first thread. Fails if there can be none.
    pub fn new(limits: HelperLimits) -> Result<Helpers<T>, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let state = State { queue: VecDeque::new(), threads: 0, idle: 0, is_closed: false, has_told: false };
        let shared = Arc::new(Common { state: Mutex::new(state), work: Condvar::new(), event });
        let (ended, results) = channel();
        let helpers = Helpers { shared, results, ended, limits, outstanding: 0 };
        helpers.start_thread()?;
        Ok(helpers)
    }

    fn start_thread(&self) -> Result<(), Errno> {
        let (shared, ended) = (self.shared.clone(), self.ended.clone());
        self.shared.lock().threads += 1;
        let builder = thread::Builder::new().name("stag-file-helper".into()).stack_size(STACK_LEN);
        let started = builder.spawn(move || work(&shared, &ended));
        started.map(drop).map_err(|error| {
            self.shared.lock().threads -= 1;
            Errno::from_io_error(&error).unwrap_or(Errno::AGAIN)
        })
    }

    /// Jobs whose end [`Helpers::poll`] has not told of.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Whether no more jobs are taken for now.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.outstanding >= self.limits.jobs
    }

    /// Gives a job to a helper; [`Helpers::poll`] tells `tag` when it is over. It is taken even if [`Helpers::is_full`]:
    /// the owner keeps the limit, and may exceed it for what cannot be refused.
    pub fn start(&mut self, tag: u32, job: impl FnOnce() -> T + Send + 'static) {
        self.outstanding += 1;
        let mut state = self.shared.lock();
        state.queue.push_back((tag, Box::new(job)));
        let is_short = state.idle < state.queue.len() && state.threads < self.limits.threads;
        drop(state);
        self.shared.work.notify_one();
        if is_short {
            // If there can be no more of them, those that are there do it.
            let _ = self.start_thread();
        }
    }

    /// The next job that is over, and what it ended with; `None` inside: it panicked.
    pub fn poll(&mut self) -> Option<(u32, Option<T>)> {
        if self.outstanding == 0 {
            return None;
        }
        let ended = self.results.try_recv().or_else(|_| {
            self.hush();
            self.results.try_recv()
        });
        let ended = ended.ok()?;
        self.outstanding -= 1;
        if self.outstanding == 0 {
            self.hush();
        }
        Some(ended)
    }

    /// Makes the descriptor unreadable, until the next result.
    fn hush(&mut self) {
        let mut state = self.shared.lock();
        if std::mem::take(&mut state.has_told) {
            let _ = rustix::io::read(&self.shared.event, &mut [0; 8]);
        }
    }

    /// What becomes readable when a job is over.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.shared.event.as_fd().as_raw_fd()
    }
}

impl<T> Drop for Helpers<T> {
    fn drop(&mut self) {
        // The threads still do what is in the queue, which may close descriptors.
        self.shared.lock().is_closed = true;
        self.shared.work.notify_all();
    }
}

/// Lets this thread run wherever the first thread of the process may. The thread that started it is often a reactor with a core
/// of its own, which it keeps busy.
fn leave_core() {
    if let Ok(cores) = sched_getaffinity(Some(getpid())) {
        // It works where it is, too, more slowly.
        let _ = sched_setaffinity(None, &cores);
    }
}

/// What a thread does.
fn work<T>(shared: &Common<T>, ended: &Sender<(u32, Option<T>)>) {
    leave_core();
    loop {
        let mut state = shared.lock();
        let (tag, job) = loop {
            if let Some(job) = state.queue.pop_front() {
                break job;
            }
            if state.is_closed {
                state.threads -= 1;
                return;
            }
            state.idle += 1;
            state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        };
        drop(state);
        let result = catch_unwind(AssertUnwindSafe(job)).ok();
        // Both while it is locked: who has taken the result can take back that it was told of. The owner may be gone.
        let mut state = shared.lock();
        if ended.send((tag, result)).is_ok() && !std::mem::replace(&mut state.has_told, true) {
            let _ = rustix::io::write(&shared.event, &1_u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use rustix::thread::CpuSet;

    use super::*;

    fn next<T: Send + 'static>(helpers: &mut Helpers<T>) -> (u32, Option<T>) {
        loop {
            match helpers.poll() {
                Some(ended) => return ended,
                None => thread::yield_now(),
            }
        }
    }

    #[test]
    fn jobs_that_wait_hold_up_no_others() {
        let mut helpers = Helpers::new(HelperLimits { threads: 3, jobs: 8 }).unwrap();
        let barrier = Arc::new(Barrier::new(3));
        for tag in [1, 2] {
            let barrier = barrier.clone();
            helpers.start(tag, move || {
                barrier.wait();
                tag
            });
        }
        helpers.start(3, || 3);
        assert_eq!(next(&mut helpers), (3, Some(3)));
        assert_eq!((helpers.outstanding(), helpers.poll()), (2, None));
        barrier.wait();
        let mut ended = [next(&mut helpers), next(&mut helpers)];
        ended.sort();
        assert_eq!(ended, [(1, Some(1)), (2, Some(2))]);
        assert_eq!((helpers.outstanding(), helpers.poll()), (0, None));
    }

    #[test]
    fn a_helper_does_not_stay_on_the_core_of_a_reactor() {
        let all = sched_getaffinity(Some(getpid())).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|&core| all.is_set(core)).unwrap();
        let mut one = CpuSet::new();
        one.set(first);
        sched_setaffinity(None, &one).unwrap();
        let mut helpers = Helpers::new(HelperLimits { threads: 1, jobs: 1 }).unwrap();
        helpers.start(0, || sched_getaffinity(None).unwrap());
        assert_eq!(next(&mut helpers), (0, Some(all)));
        assert_eq!(sched_getaffinity(None).unwrap(), one);
    }

    #[test]
    fn a_panic_ends_one_job_and_no_thread() {
        let mut helpers = Helpers::new(HelperLimits { threads: 1, jobs: 2 }).unwrap();
        helpers.start(7, || panic!("of a job"));
        assert_eq!(next(&mut helpers), (7, None::<u32>));
        helpers.start(8, || 9);
        assert!(!helpers.is_full());
        assert_eq!(next(&mut helpers), (8, Some(9)));
    }

    #[test]
    fn its_descriptor_is_readable_while_there_is_a_result() {
        let is_readable = |helpers: &Helpers<()>| {
            let mut polled =
                [rustix::event::PollFd::new(&helpers.shared.event, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut polled, Some(&rustix::event::Timespec::default())).unwrap() == 1
        };
        let mut helpers = Helpers::new(HelperLimits { threads: 1, jobs: 2 }).unwrap();
        for _ in 0..2 {
            assert!(!is_readable(&helpers));
            helpers.start(0, || ());
            while !is_readable(&helpers) {
                thread::yield_now();
            }
            assert_eq!(next(&mut helpers), (0, Some(())));
        }
        assert!(!is_readable(&helpers));
    }

    #[test]
    fn dropping_waits_for_no_job() {
        let barrier = Arc::new(Barrier::new(2));
        let (held, done) = (barrier.clone(), Arc::new(Barrier::new(2)));
        let after = done.clone();
        let mut helpers = Helpers::new(HelperLimits { threads: 1, jobs: 2 }).unwrap();
        helpers.start(0, move || {
            held.wait();
        });
        helpers.start(1, move || {
            after.wait();
        });
        drop(helpers);
        // What waited is done still.
        barrier.wait();
        done.wait();
    }
}
