//! Sockets of queue pairs that have ended: they send the rest, then wait a little for the peer to close.
//!
//! Closing a socket with unread octets resets the connection, and the peer might lose what we sent last: a Terminate, or the
//! reason of a refusal. So incoming octets are received and thrown away, for a bounded time.

use std::time::Duration;

use super::socket::{Moved, Socket};

/// How long a peer has to close.
const PATIENCE: Duration = Duration::from_secs(2);
/// Sockets that may wait at once; beyond it the oldest is closed.
const LINGERING_MAX: usize = 256;
/// Sockets looked at in one pass, and system calls for each.
const LOOKS: usize = 16;
const CALLS: usize = 4;

struct Lingering {
    socket: Socket,
    words: Vec<u8>,
    said: usize,
    deadline: Duration,
}

/// Sockets that wait for the peer to close.
#[derive(Default)]
pub(super) struct Lingerers {
    all: Vec<Lingering>,
    turn: usize,
}

impl Lingerers {
    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Sends `words`, and closes when the peer does.
    pub(super) fn add(&mut self, socket: Socket, words: Vec<u8>, now: Duration) {
        let mut lingering = Lingering { socket, words, said: 0, deadline: now + PATIENCE };
        // Nearly always the socket takes them at once.
        if !lingering.say() {
            return;
        }
        if self.all.len() == LINGERING_MAX {
            self.all.remove(0);
        }
        self.all.push(lingering);
    }

    /// Polls some of them.
    pub(super) fn poll(&mut self, now: Duration, scratch: &mut [u8]) {
        for _ in 0..LOOKS.min(self.all.len()) {
            if self.turn >= self.all.len() {
                self.turn = 0;
            }
            let Some(lingering) = self.all.get_mut(self.turn) else { return };
            if now < lingering.deadline && lingering.go_on(scratch) {
                self.turn += 1;
            } else {
                self.all.swap_remove(self.turn);
            }
        }
    }
}

impl Lingering {
    /// Says what is left to say. `false`: the connection is lost.
    fn say(&mut self) -> bool {
        while self.said < self.words.len() {
            match self.socket.send(&self.words[self.said..], false) {
                Moved::Octets(count) => self.said += count,
                Moved::Nothing => return true,
                Moved::End | Moved::Lost => return false,
            }
        }
        // More than once is harmless.
        self.socket.finish();
        true
    }

    /// `false`: it is over.
    fn go_on(&mut self, scratch: &mut [u8]) -> bool {
        if self.said < self.words.len() && !self.say() {
            return false;
        }
        for _ in 0..CALLS {
            match self.socket.receive(scratch) {
                Moved::Octets(_) => {}
                Moved::Nothing => return true,
                Moved::End | Moved::Lost => return false,
            }
        }
        true
    }
}
