//! Mailboxes: how other threads reach a reactor.
//!
//! A mailbox is a bounded lock-free queue with many senders and one receiver. A send to a receiver that
//! is awake touches only the queue; a send to one that sleeps also signals an eventfd.

use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_queue::ArrayQueue;

use crate::event::Event;
use crate::handshake::Handshake;

/// Makes a mailbox for `capacity` messages. Fails when the process has no descriptor left.
///
/// # Panics
///
/// If `capacity` is 0.
pub fn mailbox<T: Send>(capacity: usize) -> io::Result<(Sender<T>, Receiver<T>)> {
    let shared = Arc::new(Shared {
        queue: ArrayQueue::new(capacity),
        handshake: Handshake::new(),
        event: Event::new()?,
        is_closed: AtomicBool::new(false),
    });
    Ok((Sender { shared: shared.clone() }, Receiver { shared }))
}

struct Shared<T> {
    queue: ArrayQueue<T>,
    handshake: Handshake,
    event: Event,
    /// Set once, when the receiver goes. Relaxed: it is advice; nothing is read because of it.
    is_closed: AtomicBool,
}

/// The end that messages go into. Clone it for each thread that sends.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

/// The end that messages come out of. Belongs to one poller.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
}

/// Why a message was not sent. It is handed back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SendError<T> {
    /// The mailbox is full: the receiver is behind. Try again later, or shed the work.
    Full(T),
    /// The receiver is gone. A message sent just before it went is dropped with it.
    Closed(T),
}

impl<T: Send> Sender<T> {
    /// Sends a message, and wakes the receiver if it sleeps. Never blocks.
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        if self.shared.is_closed.load(Ordering::Relaxed) {
            return Err(SendError::Closed(message));
        }
        self.shared.queue.push(message).map_err(SendError::Full)?;
        if self.shared.handshake.must_wake() {
            self.shared.event.signal();
        }
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        Sender { shared: self.shared.clone() }
    }
}

impl<T: Send> Receiver<T> {
    /// The oldest message, or `None`.
    ///
    /// Take a bounded number in one pass: senders may be faster than the receiver.
    #[inline]
    pub fn receive(&mut self) -> Option<T> {
        self.shared.queue.pop()
    }

    /// Whether there is no message.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.queue.is_empty()
    }

    /// Prepares for sleep; see [`Poller::arm`](crate::Poller::arm). `false`: there is a message.
    pub fn arm(&mut self) -> bool {
        self.shared.handshake.arm();
        self.is_empty()
    }

    /// Ends what `arm` began.
    pub fn disarm(&mut self) {
        // A sender may be between its decision and its signal. Then the signal comes after this, and
        // costs one sleep that ends at once.
        if self.shared.handshake.disarm() {
            self.shared.event.clear();
        }
    }

    /// Becomes readable when there is a message, between `arm` and `disarm`.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.shared.event.descriptor()
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Ordering::Relaxed);
        // At most a mailbox full: a sender that has not seen the end yet is not waited for.
        for _ in 0..self.shared.queue.capacity() {
            drop(self.shared.queue.pop());
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("queue", &self.shared.queue).finish()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("queue", &self.shared.queue).finish()
    }
}

impl<T> SendError<T> {
    /// The message.
    pub fn into_message(self) -> T {
        match self {
            SendError::Full(message) | SendError::Closed(message) => message,
        }
    }
}

impl<T> fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendError::Full(_) => "Full(..)",
            SendError::Closed(_) => "Closed(..)",
        })
    }
}

impl<T> fmt::Display for SendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SendError::Full(_) => "the mailbox is full: its receiver is behind",
            SendError::Closed(_) => "the mailbox is closed: its receiver is gone",
        })
    }
}

impl<T> std::error::Error for SendError<T> {}

// Not under loom: its atomics work only inside a model, and the handshake has one of its own.
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn is_readable(descriptor: RawFd) -> bool {
        let mut entry = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, readable and writable, and the count says so.
        unsafe { libc::poll(&raw mut entry, 1, 0) == 1 }
    }

    #[test]
    fn messages_come_in_order_and_a_full_mailbox_hands_back() {
        let (sender, mut receiver) = mailbox(2).unwrap();
        sender.send(1).unwrap();
        sender.send(2).unwrap();
        assert_eq!(sender.send(3), Err(SendError::Full(3)));
        assert_eq!(receiver.receive(), Some(1));
        sender.send(4).unwrap();
        assert_eq!(receiver.receive(), Some(2));
        assert_eq!(receiver.receive(), Some(4));
        assert_eq!(receiver.receive(), None);
    }

    #[test]
    fn a_mailbox_without_receiver_is_closed_and_drops_what_is_in_it() {
        let witness = Arc::new(());
        let (sender, receiver) = mailbox(4).unwrap();
        sender.send(witness.clone()).unwrap();
        drop(receiver);
        assert_eq!(Arc::strong_count(&witness), 1);
        let error = sender.send(witness.clone()).unwrap_err();
        assert!(matches!(error, SendError::Closed(_)));
        assert!(error.to_string().contains("gone"));
    }

    #[test]
    fn only_a_sleeping_receiver_is_signalled_and_only_once() {
        let (sender, mut receiver) = mailbox(8).unwrap();
        sender.send(1).unwrap();
        assert!(!is_readable(receiver.descriptor()), "awake: no signal");
        assert!(!receiver.arm(), "there is a message: no sleep");
        receiver.disarm();
        assert_eq!(receiver.receive(), Some(1));

        assert!(receiver.arm());
        assert!(!is_readable(receiver.descriptor()));
        sender.send(2).unwrap();
        sender.send(3).unwrap();
        assert!(is_readable(receiver.descriptor()));
        receiver.disarm();
        assert!(!is_readable(receiver.descriptor()), "one signal, and it is cleared");
        assert_eq!((receiver.receive(), receiver.receive()), (Some(2), Some(3)));
    }

    #[test]
    fn many_senders_lose_nothing_to_a_receiver_that_sleeps_between() {
        const SENDERS: usize = 4;
        const MESSAGES: usize = 2000;
        let (sender, mut receiver) = mailbox(16).unwrap();
        let threads: Vec<_> = (0..SENDERS)
            .map(|id| {
                let sender = sender.clone();
                std::thread::spawn(move || {
                    for message in 0..MESSAGES {
                        while sender.send((id, message)).is_err() {
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();

        let mut next = [0; SENDERS];
        while next.iter().sum::<usize>() < SENDERS * MESSAGES {
            while let Some((id, message)) = receiver.receive() {
                assert_eq!(message, next[id], "in the order of each sender");
                next[id] += 1;
            }
            if next.iter().sum::<usize>() < SENDERS * MESSAGES && receiver.arm() {
                let mut entry = libc::pollfd { fd: receiver.descriptor(), events: libc::POLLIN, revents: 0 };
                // SAFETY: one entry, readable and writable, and the count says so.
                let ready = unsafe { libc::poll(&raw mut entry, 1, 10_000) };
                assert_eq!(ready, 1, "a wake-up was lost");
            }
            receiver.disarm();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
