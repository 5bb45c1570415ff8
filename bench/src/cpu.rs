//! Processor time of threads, as another thread reads it while they run.

use std::time::Duration;

use stag_runtime::StatisticsReader;

/// The clock of the processor time of one thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadClock(libc::clockid_t);

impl ThreadClock {
    /// That of the calling thread; `None` if the kernel has none.
    pub(crate) fn of_this_thread() -> Option<ThreadClock> {
        let mut id = 0;
        // SAFETY: the thread is the calling one, and `id` is a place of its own to write to.
        let result = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut id) };
        (result == 0).then_some(ThreadClock(id))
    }

    /// What the thread has used so far; `None` if it has ended.
    pub(crate) fn read(self) -> Option<Duration> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is a place of its own to write to. The clock of a thread that has ended is an error.
        let result = unsafe { libc::clock_gettime(self.0, &raw mut time) };
        (result == 0).then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }
}

/// What tells the time that a server in this process has used.
#[derive(Clone, Debug)]
pub struct ServerMeter {
    pub(crate) thread: Option<ThreadClock>,
    pub(crate) reactor: StatisticsReader,
}

/// Processor time of one end in the measured time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsedTime {
    /// Time on a core: a thread that polls uses all of it.
    pub cpu: Duration,
    /// Time in passes that found something to do.
    pub busy: Duration,
}

impl UsedTime {
    /// Since `before`.
    pub(crate) fn since(self, before: UsedTime) -> UsedTime {
        UsedTime { cpu: self.cpu.saturating_sub(before.cpu), busy: self.busy.saturating_sub(before.busy) }
    }
}

impl ServerMeter {
    /// What the server has used so far; `None` if it has ended.
    pub(crate) fn read(&self) -> Option<UsedTime> {
        Some(UsedTime { cpu: self.thread?.read()?, busy: self.reactor.read().busy })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_thread_reads_the_clock_of_one_that_works() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let worker = std::thread::spawn(move || {
            let _ = sender.send(ThreadClock::of_this_thread());
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                std::hint::spin_loop();
            }
        });
        let clock = receiver.recv().unwrap().expect("Linux has one");
        let first = clock.read().expect("it works");
        while clock.read().expect("it works") == first {
            std::thread::yield_now();
        }
        drop(stop);
        worker.join().unwrap();
    }
}
