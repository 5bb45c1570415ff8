//! Parts of one file in flight, and the memory that all files share.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use super::Halt;
use crate::remote::session::Tasks;

/// A part of a file on its way.
type FilePart<'f> = Pin<Box<dyn Future<Output = Result<(), Halt>> + 'f>>;

/// Several futures of one task, of which some number is in flight.
pub(super) struct Flight<'f> {
    parts: Vec<FilePart<'f>>,
    failed: Option<Halt>,
}

impl<'f> Flight<'f> {
    /// None yet.
    pub(super) fn new() -> Flight<'f> {
        Flight { parts: Vec::new(), failed: None }
    }

    /// Begins one more.
    pub(super) fn push(&mut self, part: impl Future<Output = Result<(), Halt>> + 'f) {
        self.parts.push(Box::pin(part));
    }

    /// Waits until fewer than `max` are in flight. After a failure, until none is: what is given up must not
    /// write any more.
    pub(super) async fn below(&mut self, max: usize) -> Result<(), Halt> {
        poll_fn(|cx| {
            let failed = &mut self.failed;
            self.parts.retain_mut(|part| match part.as_mut().poll(cx) {
                Poll::Pending => true,
                Poll::Ready(Ok(())) => false,
                Poll::Ready(Err(halt)) => {
                    failed.get_or_insert(halt);
                    false
                }
            });
            let limit = if self.failed.is_some() { 1 } else { max };
            if self.parts.len() < limit { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        self.failed.take().map_or(Ok(()), Err)
    }
}

/// Octets of data on their way, of all files together.
///
/// On one connection a part takes twice its length, where it is read and where it is written from. Two of these
/// limits and the longest part fit in the payload memory of a connection, however it is fragmented.
const OCTETS_MAX: usize = 5 << 20;

/// Counts the octets on their way.
#[derive(Debug)]
pub(super) struct Allowance {
    used: Cell<usize>,
    tasks: Rc<Tasks>,
}

impl Allowance {
    /// Nothing is on its way.
    pub(super) fn new(tasks: Rc<Tasks>) -> Allowance {
        Allowance { used: Cell::new(0), tasks }
    }

    /// Waits until `len` octets more may be on their way. They are until the permit is dropped.
    pub(super) async fn take(&self, len: usize) -> Permit<'_> {
        self.tasks
            .until(|| {
                let used = self.used.get();
                (used == 0 || used + len <= OCTETS_MAX).then(|| self.used.set(used + len))
            })
            .await;
        Permit { allowance: self, len }
    }
}

/// Octets that may be on their way.
#[derive(Debug)]
pub(super) struct Permit<'a> {
    allowance: &'a Allowance,
    len: usize,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.allowance.used.set(self.allowance.used.get() - self.len);
        self.allowance.tasks.note();
    }
}
