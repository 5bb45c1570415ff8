//! Parts of one file in flight, and the memory that all files share.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use super::halt::Halt;
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
            self.go_on(cx);
            let limit = if self.failed.is_some() { 1 } else { max };
            if self.parts.len() < limit { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Waits for something that parts in flight may hold, of this file or of others. Those of this file go on meanwhile: if each file
    /// waited for the others alone, all could wait for ever.
    pub(super) async fn wait_for<T>(&mut self, wanted: impl Future<Output = T>) -> T {
        let mut wanted = pin!(wanted);
        poll_fn(|cx| {
            self.go_on(cx);
            wanted.as_mut().poll(cx)
        })
        .await
    }

    fn go_on(&mut self, cx: &mut Context<'_>) {
        let failed = &mut self.failed;
        self.parts.retain_mut(|part| match part.as_mut().poll(cx) {
            Poll::Pending => true,
            Poll::Ready(Ok(())) => false,
            Poll::Ready(Err(halt)) => {
                failed.get_or_insert(halt);
                false
            }
        });
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

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    const PART: usize = 1 << 20;

    /// Two files hold all that may be on its way, and each waits for more: their own parts, which are done, make room.
    #[test]
    fn files_that_wait_for_each_others_octets_go_on() {
        let allowance = Allowance::new(Rc::default());
        let (wants_more, is_done) = (Cell::new(false), Cell::new(false));
        let until = async |flag: &Cell<bool>| {
            poll_fn(|_| if flag.get() { Poll::Ready(()) } else { Poll::Pending }).await;
        };
        let file = async |parts: usize| {
            let mut flight = Flight::new();
            for part in 0..=parts {
                if part == parts {
                    until(&wants_more).await;
                }
                let permit = flight.wait_for(allowance.take(PART)).await;
                flight.push(async {
                    until(&is_done).await;
                    drop(permit);
                    Ok(())
                });
            }
            flight.below(1).await.is_ok()
        };
        let mut cx = Context::from_waker(Waker::noop());
        let (mut one, mut other) = (pin!(file(3)), pin!(file(2)));
        for _ in 0..2 {
            assert!(one.as_mut().poll(&mut cx).is_pending());
            assert!(other.as_mut().poll(&mut cx).is_pending());
            assert_eq!(allowance.used.get(), OCTETS_MAX, "all is on its way");
            wants_more.set(true);
        }
        is_done.set(true);
        let mut results = [None, None];
        for _ in 0..20 {
            for (result, file) in results.iter_mut().zip([one.as_mut(), other.as_mut()]) {
                if result.is_none()
                    && let Poll::Ready(is_good) = file.poll(&mut cx)
                {
                    *result = Some(is_good);
                }
            }
        }
        assert_eq!(results, [Some(true); 2]);
        assert_eq!(allowance.used.get(), 0);
    }
}
