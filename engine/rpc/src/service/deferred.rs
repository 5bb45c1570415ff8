//! Answers that other threads make: [`Deferred`], and the engine's side of it.
//!
//! ```text
//!  handler: reply.defer(call) ─▶ Deferred ─▶ another thread ─▶ finish(..) ─▶ mailbox ─▶ the engine's next pass
//! ```
//!
//! The mailbox is made when the first Call is deferred; it wakes the reactor when that sleeps. Each Deferred sends
//! exactly one message, and there are never more of them than the mailbox has room for, so nothing waits and nothing is
//! lost.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::os::fd::RawFd;

use stag_memory::{Buf, SendBuf, SendHome};
use stag_runtime::{Receiver, Sender, mailbox};

use crate::service::Token;
use crate::service::panic_guard::caught;
use crate::service::reply::Reply;

/// Fills in a Reply, on the reactor.
pub(crate) type Fill = Box<dyn FnOnce(&mut Reply<'_>) + Send>;

/// An answer on its way to the reactor; without a `Fill` there will be none.
struct Answer {
    token: Token,
    fill: Option<Fill>,
}

/// The right, and the duty, to answer one Call from any thread. Made by [`Reply::defer`].
///
/// A Deferred that is dropped without [`Deferred::finish`] (its thread panicked, say) answers with SYSTEM_ERR.
#[must_use = "the Call is answered with SYSTEM_ERR when this is dropped"]
pub struct Deferred {
    token: Token,
    /// Whether the handler is one of a [`PanicGuard`](crate::PanicGuard).
    is_guarded: bool,
    /// Taken when the answer is sent.
    sender: Option<Sender<Answer>>,
}

impl Deferred {
    /// What the handler returns in [`Outcome::Later`](crate::Outcome::Later).
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// Answers the Call: the reactor runs `fill` in its next pass, and is woken up for that if it sleeps. It runs on the
    /// reactor's thread: do the work before, and only fill in the Reply there. It never runs when the Call's connection
    /// is gone.
    pub fn finish(mut self, fill: impl FnOnce(&mut Reply<'_>) + Send + 'static) {
        let fill: Fill = match self.is_guarded {
            false => Box::new(fill),
            true => Box::new(|reply| {
                if caught(|| fill(reply)).is_none() {
                    reply.panicked();
                }
            }),
        };
        self.send(Some(fill));
    }

    fn send(&mut self, fill: Option<Fill>) {
        if let Some(sender) = self.sender.take() {
            // There is room for each. It fails when the engine is gone, and its connections with it.
            let _ = sender.send(Answer { token: self.token, fill });
        }
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        self.send(None);
    }
}

impl fmt::Debug for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deferred").field("token", &self.token).finish_non_exhaustive()
    }
}

/// The engine's side.
#[derive(Debug)]
pub(crate) struct Deferrals {
    /// Deferred Calls at once.
    limit: usize,
    /// The Call that was deferred last, if that was since the last [`Deferrals::yield_core`].
    fresh: Cell<Option<Token>>,
    /// Whether a handler runs whose panics are caught.
    pub(crate) is_guarded: Cell<bool>,
    /// Behind a cell, because a Reply borrows it beside the rest of the engine.
    mailbox: RefCell<Option<Mailbox>>,
    /// Where buffers come back to that other threads drop. Made when the first goes to one.
    home: RefCell<Option<SendHome>>,
}

struct Mailbox {
    sender: Sender<Answer>,
    receiver: Receiver<Answer>,
    /// Those whose message has not come yet.
    outstanding: usize,
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("outstanding", &self.outstanding).finish_non_exhaustive()
    }
}

impl Deferrals {
    pub(crate) fn new(limit: usize) -> Deferrals {
        Deferrals {
            limit,
            fresh: Cell::new(None),
            is_guarded: Cell::new(false),
            mailbox: RefCell::new(None),
            home: RefCell::new(None),
        }
    }

    /// Makes `buf` fit for the thread that a Call is deferred to.
    pub(crate) fn send(&self, buf: Buf) -> SendBuf {
        self.home.borrow_mut().get_or_insert_default().send(buf)
    }

    /// Gives buffers back that other threads dropped.
    // Not inline: it would be part of every pass.
    #[inline(never)]
    pub(crate) fn collect(&self) {
        if let Some(home) = &*self.home.borrow() {
            home.collect();
        }
    }

    /// The number of engines that have Calls here. Before the first is deferred.
    pub(crate) fn multiply_limit(&mut self, engines: usize) {
        debug_assert!(self.mailbox.get_mut().is_none(), "a Call is deferred already");
        self.limit *= engines;
    }

    pub(crate) fn defer(&self, token: Token) -> io::Result<Deferred> {
        let mut place = self.mailbox.borrow_mut();
        let mailbox = match &mut *place {
            Some(mailbox) => mailbox,
            empty => {
                let (sender, receiver) = mailbox(self.limit)?;
                empty.insert(Mailbox { sender, receiver, outstanding: 0 })
            }
        };
        if mailbox.outstanding == self.limit {
            let problem = format!("{} Calls are deferred, the limit is as many", self.limit);
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, problem));
        }
        mailbox.outstanding += 1;
        self.fresh.set(Some(token));
        let is_guarded = self.is_guarded.get();
        Ok(Deferred { token, is_guarded, sender: Some(mailbox.sender.clone()) })
    }

    /// Whether the Call of this token was deferred last, in this pass.
    #[inline]
    pub(crate) fn has_just_deferred(&self, token: Token) -> bool {
        self.fresh.get() == Some(token)
    }

    /// Whether a Call was ever deferred.
    #[inline(always)]
    pub(crate) fn is_in_use(&mut self) -> bool {
        self.mailbox.get_mut().is_some()
    }

    /// The next answer that came.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<(Token, Fill)> {
        let mailbox = self.mailbox.get_mut().as_mut()?;
        let Some(Answer { token, fill }) = mailbox.receiver.receive() else {
            // Looked for once in each pass of an engine that defers Calls.
            self.collect();
            return None;
        };
        mailbox.outstanding -= 1;
        Some((token, fill.unwrap_or_else(|| Box::new(|reply| reply.system_error()))))
    }

    /// Ends a pass. Lets another thread have the core if a Call was just deferred: who is to answer it may wait for this very core,
    /// and would wait until the reactor sleeps.
    #[inline(always)]
    pub(crate) fn yield_core(&mut self) {
        if self.fresh.take().is_some() {
            std::thread::yield_now();
        }
    }

    /// See [`Receiver::arm`].
    pub(crate) fn arm(&mut self) -> bool {
        self.mailbox.get_mut().as_mut().is_none_or(|mailbox| mailbox.receiver.arm())
    }

    pub(crate) fn disarm(&mut self) {
        if let Some(mailbox) = self.mailbox.get_mut() {
            mailbox.receiver.disarm();
        }
    }

    pub(crate) fn descriptor(&self) -> Option<RawFd> {
        self.mailbox.borrow().as_ref().map(|mailbox| mailbox.receiver.descriptor())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_are_deferred_than_there_is_room_for() {
        let connection = crate::ConnectionId { index: 0, generation: 0 };
        let token = |xid| Token { connection, slot: 0, xid };
        let mut deferrals = Deferrals::new(2);
        assert!(
            deferrals.take().is_none() && deferrals.descriptor().is_none(),
            "nothing is made before it is used"
        );
        let (first, second) = (deferrals.defer(token(1)).unwrap(), deferrals.defer(token(2)).unwrap());
        let error = deferrals.defer(token(3)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
        first.finish(|_| {});
        assert!(deferrals.defer(token(3)).is_err(), "it has not come yet");
        assert_eq!(deferrals.take().map(|(token, _)| token), Some(token(1)));
        let third = deferrals.defer(token(3)).unwrap();
        drop(second);
        drop(third);
        assert_eq!([2, 3].map(|_| deferrals.take().unwrap().0.xid), [2, 3]);
        drop(deferrals.defer(token(4)).unwrap());
        let late = deferrals.defer(token(5)).unwrap();
        drop(deferrals);
        late.finish(|_| unreachable!("the engine is gone"));
    }
}
