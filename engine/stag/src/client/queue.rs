//! [`Queue`]: what waits for a client's thread.

use std::collections::VecDeque;
use std::time::Duration;

use stag_memory::{Buf, Pool, SendBuf, SendHome};
use stag_rpc::{CallError, Chunks};
use stag_runtime::Receiver;

use super::answer::Answer;
use super::error::ClientError;
use super::job::{CallJob, Job};
use super::pending::Promise;

/// Jobs taken in in one pass.
const BURST: usize = 64;

/// A Call that waits for its turn.
pub(super) struct Waiting {
    pub(super) job: Box<CallJob>,
    pub(super) promise: Promise<Answer>,
    pub(super) deadline: Duration,
    /// Its memory, once that was found.
    pub(super) chunks: Option<Chunks>,
    /// Octets of data in `chunks`.
    pub(super) data_len: Option<u32>,
}

/// What other threads want of a client's thread: Calls, in their order, and memory, which they get at once.
pub(super) struct Queue {
    pub(super) jobs: Receiver<Job>,
    pub(super) waiting: VecDeque<Waiting>,
    /// The earliest of the deadlines of `waiting`, or an earlier time.
    next_deadline: Duration,
    payload: Pool,
    pub(super) home: SendHome,
}

impl Queue {
    /// An empty one. Buffers come from `payload`.
    pub(super) fn new(jobs: Receiver<Job>, payload: Pool) -> Queue {
        Queue { jobs, waiting: VecDeque::new(), next_deadline: Duration::MAX, payload, home: SendHome::new() }
    }

    /// Takes in what other threads want. Returns how much that was.
    pub(super) fn take_jobs(&mut self, now: Duration) -> usize {
        let mut count = 0;
        while count < BURST
            && let Some(job) = self.jobs.receive()
        {
            count += 1;
            match job {
                Job::Call(job, promise) => {
                    let deadline = now.saturating_add(job.timeout);
                    self.next_deadline = self.next_deadline.min(deadline);
                    self.waiting.push_back(Waiting { job, promise, deadline, chunks: None, data_len: None });
                }
                Job::Buffer(len, promise) => {
                    let buf: Result<SendBuf, ClientError> = self.take(len).map(|buf| self.home.send(buf));
                    promise.keep(buf);
                }
            }
        }
        count
    }

    /// Takes memory for `len` octets in one piece.
    pub(super) fn take(&self, len: usize) -> Result<Buf, ClientError> {
        self.home.collect();
        let mut buf = self.payload.take_len(len).ok_or(ClientError::NoMemory(len))?;
        buf.set_len(len);
        Ok(buf)
    }

    /// Ends Calls whose time is over before their turn has come.
    pub(super) fn expire(&mut self, now: Duration) {
        if now < self.next_deadline {
            return;
        }
        self.next_deadline = Duration::MAX;
        for waiting in std::mem::take(&mut self.waiting) {
            if now >= waiting.deadline {
                waiting.promise.keep(Err(CallError::TimedOut.into()));
            } else {
                self.next_deadline = self.next_deadline.min(waiting.deadline);
                self.waiting.push_back(waiting);
            }
        }
    }

    /// Ends all Calls that wait.
    pub(super) fn fail(&mut self, error: &ClientError) {
        for waiting in self.waiting.drain(..) {
            waiting.promise.keep(Err(error.clone()));
        }
    }

    /// When the next Call has waited for too long.
    pub(super) fn next_timeout(&self) -> Option<Duration> {
        Some(self.next_deadline).filter(|_| !self.waiting.is_empty())
    }
}
