//! [`Pending`]: what another thread is going to say, for those who block and for those who poll.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::error::ClientError;

/// What is awaited, and who awaits it.
struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    result: Option<Result<T, ClientError>>,
    waker: Option<Waker>,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Nothing panics while it is locked, but a waker's clone may: the state is whole then, too.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The duty to say something once. Dropped, it says [`ClientError::Ended`].
pub(super) struct Promise<T>(Option<Arc<Shared<T>>>);

/// A result that comes later: a future that needs no runtime, and [`Pending::wait`] for those who block. Dropped, it changes
/// nothing: a Call goes on, and its answer is dropped.
#[must_use = "the result of a Call comes by wait or await"]
pub struct Pending<T>(Arc<Shared<T>>);

pub(super) fn promise<T>() -> (Promise<T>, Pending<T>) {
    let state = Mutex::new(State { result: None, waker: None });
    let shared = Arc::new(Shared { state, changed: Condvar::new() });
    (Promise(Some(shared.clone())), Pending(shared))
}

impl<T> Promise<T> {
    /// Says it, and wakes who waits.
    pub(super) fn keep(mut self, result: Result<T, ClientError>) {
        self.say(result);
    }

    fn say(&mut self, result: Result<T, ClientError>) {
        let Some(shared) = self.0.take() else { return };
        let mut state = shared.lock();
        state.result = Some(result);
        let waker = state.waker.take();
        drop(state);
        shared.changed.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.say(Err(ClientError::Ended));
    }
}

impl<T> Pending<T> {
    /// Blocks until the result is there.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub fn wait(self) -> Result<T, ClientError> {
        let mut state = self.0.lock();
        loop {
            match state.result.take() {
                Some(result) => return result,
                None => {
                    state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Whether the result is there, so that [`Pending::wait`] does not block.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.0.lock().result.is_some()
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T, ClientError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, ClientError>> {
        let mut state = self.0.lock();
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("is_ready", &self.is_ready()).finish()
    }
}
