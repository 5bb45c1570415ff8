//! Connections that have no queue pair yet: those whose request is not complete, those that wait for the user, and strangers.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use super::handshake::{Incomplete, Offer};
use super::socket::Socket;
use crate::epoll::Token;
use crate::{ConnectRequestId, ListenerId, Stranger};

/// What a connection waits for.
pub(super) enum Waits {
    /// For its first octet.
    Silent,
    /// For the rest of its request.
    Request(Incomplete),
    /// For the user's answer to it.
    User(Offer),
}

/// A connection that has no queue pair yet.
pub(super) struct Incoming {
    pub(super) generation: u32,
    pub(super) listener: ListenerId,
    pub(super) socket: Socket,
    pub(super) peer: SocketAddr,
    pub(super) deadline: Duration,
    pub(super) waits: Waits,
}

/// The name of a request: where it waits.
pub(super) fn request_id(index: u32, generation: u32) -> ConnectRequestId {
    ConnectRequestId(u64::from(generation) << 32 | u64::from(index))
}

/// All that wait.
pub(super) struct Waiting {
    pub(super) slots: Vec<Option<Incoming>>,
    /// Free slots.
    vacant: Vec<u32>,
    pub(super) generation: u32,
    /// Those that have not sent their whole request.
    pub(super) silent: usize,
    pub(super) requests: usize,
    pub(super) strangers: VecDeque<(Stranger, Duration)>,
}

impl Waiting {
    pub(super) fn new() -> Waiting {
        Waiting {
            slots: Vec::new(),
            vacant: Vec::new(),
            generation: 0,
            silent: 0,
            requests: 0,
            strangers: VecDeque::new(),
        }
    }

    /// Names a newcomer: a free slot, and its generation there. [`Waiting::insert`] takes it.
    pub(super) fn next_name(&mut self) -> (u32, u32) {
        self.generation = self.generation.wrapping_add(1) & Token::GENERATION_MASK;
        (self.vacant.last().copied().unwrap_or(self.slots.len() as u32), self.generation)
    }

    /// Puts a newcomer into the slot that it is named by.
    pub(super) fn insert(&mut self, index: u32, incoming: Incoming) {
        match incoming.waits {
            Waits::User(_) => self.requests += 1,
            _ => self.silent += 1,
        }
        match self.vacant.pop() {
            Some(vacant) => {
                debug_assert_eq!(vacant, index, "one newcomer is named at a time");
                self.slots[index as usize] = Some(incoming);
            }
            None => self.slots.push(Some(incoming)),
        }
    }

    pub(super) fn find(&mut self, index: u32, generation: u32) -> Option<&mut Incoming> {
        let incoming = self.slots.get_mut(index as usize)?.as_mut()?;
        (incoming.generation == generation).then_some(incoming)
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<Incoming> {
        let incoming = self.slots.get_mut(index as usize)?.take()?;
        self.vacant.push(index);
        match incoming.waits {
            Waits::User(_) => self.requests -= 1,
            _ => self.silent -= 1,
        }
        Some(incoming)
    }

    /// The connection whose request the user answers.
    pub(super) fn take_request(&mut self, request: ConnectRequestId) -> Option<(Incoming, Offer)> {
        let (index, generation) = (request.0 as u32, (request.0 >> 32) as u32);
        let Waits::User(offer) = self.find(index, generation)?.waits else { return None };
        self.remove(index).map(|incoming| (incoming, offer))
    }

    /// When the first of them, or of the strangers, is out of time.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let silent = self.slots.iter().flatten().filter(|i| !matches!(i.waits, Waits::User(_)));
        silent.map(|incoming| incoming.deadline).chain(self.strangers.front().map(|(_, at)| *at)).min()
    }

    /// The one that has been silent for longest.
    pub(super) fn oldest_silent(&self) -> Option<u32> {
        let silent = |slot: &Option<Incoming>| match slot {
            Some(Incoming { waits: Waits::Silent | Waits::Request(_), deadline, .. }) => Some(*deadline),
            _ => None,
        };
        let each = self.slots.iter().enumerate().filter_map(|(index, slot)| Some((silent(slot)?, index)));
        each.min().map(|(_, index)| index as u32)
    }
}
