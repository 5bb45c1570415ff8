//! [`RunningServer`]: a server that runs on threads of its own.

use std::process;
use std::thread::{self, JoinHandle};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use stag_runtime::StopFlag;

use super::error::{ServerError, system};
use super::statistics::{ServerStatistics, StatisticsHandle};

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerEnd {
    /// Whether all Calls were answered before the stop's time was over.
    pub drained: bool,
    /// Buffers that did not come back to their pools: 0, unless a service leaks them or was not drained.
    pub buffers_lost: usize,
}

/// A server that runs. Dropped, it stops, and the drop waits for that.
#[derive(Debug)]
pub struct RunningServer {
    urls: Vec<String>,
    stop: StopFlag,
    statistics: StatisticsHandle,
    /// Until it is joined.
    thread: Option<JoinHandle<Result<ServerEnd, ServerError>>>,
}

/// Waits for a server's end.
pub(super) fn join(thread: JoinHandle<Result<ServerEnd, ServerError>>) -> Result<ServerEnd, ServerError> {
    thread.join().unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(ServerError::Panic(text.unwrap_or_default()))
    })
}

impl RunningServer {
    pub(super) fn new(
        urls: Vec<String>,
        stop: StopFlag,
        statistics: StatisticsHandle,
        thread: JoinHandle<Result<ServerEnd, ServerError>>,
    ) -> RunningServer {
        RunningServer { urls, stop, statistics, thread: Some(thread) }
    }

    /// Where it listens, in the order of [`Server::listen`](crate::Server::listen), with the ports that the system chose.
    #[must_use]
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// What stops it from anywhere: `request` may be called by any thread, and by a signal handler.
    #[must_use]
    pub fn stop_flag(&self) -> StopFlag {
        self.stop.clone()
    }

    /// What it has counted so far: see [`StatisticsHandle::read`].
    #[must_use]
    pub fn statistics(&self) -> Option<ServerStatistics> {
        self.statistics.read()
    }

    /// What reads its statistics in any thread, and after its end: for a thread that serves metrics.
    #[must_use]
    pub fn statistics_handle(&self) -> StatisticsHandle {
        self.statistics.clone()
    }

    /// Stops it: Calls under way are answered, new ones are refused. Waits for the end.
    ///
    /// # Errors
    ///
    /// A panic of its threads.
    pub fn stop(self) -> Result<ServerEnd, ServerError> {
        self.stop.request();
        self.wait()
    }

    /// Waits until something stops it.
    ///
    /// # Errors
    ///
    /// A panic of its threads.
    pub fn wait(mut self) -> Result<ServerEnd, ServerError> {
        match self.thread.take() {
            Some(thread) => join(thread),
            None => unreachable!("it is joined once"),
        }
    }

    /// Waits until it is stopped, by SIGINT or SIGTERM too: the first stops it in order, a second ends the process. The process
    /// does not end by these signals afterwards, either: they are ignored.
    ///
    /// # Errors
    ///
    /// The system refused a signal handler, or the threads panicked.
    pub fn until_signal(self) -> Result<ServerEnd, ServerError> {
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(system("handle signals"))?;
        let (handle, stop) = (signals.handle(), self.stop.clone());
        let thread = thread::Builder::new().name("stag-signals".to_owned());
        let thread = thread.spawn(move || {
            for _ in signals.forever() {
                if stop.is_requested() {
                    process::exit(1);
                }
                stop.request();
            }
        });
        let thread = thread.map_err(system("start a thread for signals"))?;
        let end = self.wait();
        handle.close();
        // It does not panic.
        let _ = thread.join();
        end
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.stop.request();
            // A panic has printed its message.
            let _ = join(thread);
        }
    }
}
