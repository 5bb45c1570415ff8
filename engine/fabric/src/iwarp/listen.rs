//! The accepting side: listeners, connections whose request is not complete, and connections of another
//! protocol.
//!
//! Until its request is complete, a connection costs a slot, a descriptor and at most one frame's octets, for a bounded
//! time. Their number is bounded, and a new one evicts the oldest silent one. So thousands of silent connections keep no
//! honest peer out, which needs only a round trip. There is a waiting place for each free queue pair, so that clients that
//! all come back at once, after a restart, do not evict each other.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use stag_wire::mpa::{Frame, FrameError, FrameKind};

use super::Iwarp;
use super::counters::complain;
use super::handshake::{self, Incomplete, Offer, Progress};
use super::socket::{ListenSocket, Moved, Socket};
use super::waiting::{Incoming, Waits, request_id};
use crate::epoll::{EventFlags, Token};
use crate::setup::{ACCEPT_PAUSE, check_limit, is_exhausted};
use crate::{ConnectRequestId, Event, FabricError, ListenerId, Peer, Stranger};

/// Connections taken from a listener in one look.
const ACCEPT_BURST: usize = 16;
/// Requests that wait for the user at once: more are refused.
const REQUESTS_MAX: usize = 1024;
/// Strangers that wait to be taken: more are closed.
const STRANGERS_MAX: usize = 64;

/// A connection request that goes from one provider to another: its socket, and what the peer asked for.
pub struct IwarpHandover {
    socket: Socket,
    peer: SocketAddr,
    listener: ListenerId,
    offer: Offer,
}

impl std::fmt::Debug for IwarpHandover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IwarpHandover({})", self.peer)
    }
}

impl Iwarp {
    /// Takes connections from a listener's backlog.
    pub(super) fn take_connections(&mut self, index: u32) {
        for _ in 0..ACCEPT_BURST {
            let Some(listener) = self.listeners.get(index as usize) else { return };
            let (socket, peer) = match listener.accept(&self.config) {
                Ok(Some(accepted)) => accepted,
                Ok(None) => return,
                Err(error) => {
                    // Of a connection that is gone again: the next look tries again.
                    complain(&mut self.complaints, self.now, None, &format_args!("accept: {error}"));
                    if is_exhausted(&error) {
                        self.counters.accepts_failed += 1;
                        self.pause_accepting();
                    }
                    return;
                }
            };
            self.counters.accepted += 1;
            while self.waiting.silent >= self.silent_max()
                && let Some(oldest) = self.waiting.oldest_silent()
            {
                self.counters.handshakes_evicted += 1;
                let evicted = self.waiting.remove(oldest).map(|incoming| incoming.peer);
                complain(
                    &mut self.complaints,
                    self.now,
                    evicted,
                    &"closed: too many connections have sent no request",
                );
            }
            self.admit_incoming(ListenerId(index), socket, peer);
        }
    }

    /// Connections at once whose request has not come.
    fn silent_max(&self) -> usize {
        let vacant = self.config.queue_pairs.saturating_sub(self.pairs);
        self.config.handshakes.max(1) as usize + vacant as usize
    }

    /// Descriptors ran out: closes the oldest silent connection, and ignores the listeners for a while. They would be ready all the
    /// time.
    #[cold]
    fn pause_accepting(&mut self) {
        if let Some(oldest) = self.waiting.oldest_silent() {
            self.counters.handshakes_evicted += 1;
            self.turn_away(oldest, &"no descriptor is left, and it has sent no request");
        }
        self.set_listening(EventFlags::empty());
        self.paused_until = Some(self.now + ACCEPT_PAUSE);
    }

    /// Accepts again, when it is time.
    pub(super) fn resume_accepting(&mut self) {
        if self.paused_until.is_some_and(|until| self.now >= until) {
            self.paused_until = None;
            self.set_listening(EventFlags::IN);
        }
    }

    fn set_listening(&self, flags: EventFlags) {
        for (index, listener) in (0..).zip(&self.listeners) {
            // It fails only without memory. Then the listener is as it was, which costs time, or is not heard until the next
            // pause.
            let _ = self.epoll.change(listener.as_fd(), Token::Listener(index), flags);
        }
    }

    /// Lets a request go. Nothing was received behind it (5044-7.1-g), so the socket is all that there is.
    pub(super) fn release_request(&mut self, request: ConnectRequestId) -> Option<IwarpHandover> {
        let (incoming, offer) = self.waiting.take_request(request)?;
        self.epoll.remove(incoming.socket.as_fd());
        Some(IwarpHandover {
            socket: incoming.socket,
            peer: incoming.peer,
            listener: incoming.listener,
            offer,
        })
    }

    /// Takes on a request that another provider released.
    pub(super) fn adopt_request(&mut self, handover: IwarpHandover) -> Result<ConnectRequestId, FabricError> {
        let IwarpHandover { socket, peer, listener, offer } = handover;
        let (wanted, limit) = (self.waiting.requests as u64 + 1, REQUESTS_MAX as u64);
        if let Err(error) = check_limit("connection requests that wait", wanted, limit, "answer them sooner")
        {
            self.counters.requests_refused += 1;
            self.refuse(socket, &offer, &error.to_string());
            return Err(error);
        }
        let (index, generation) = self.waiting.next_name();
        let token = Token::Incoming { index, generation };
        if let Err(source) = self.epoll.add(socket.as_fd(), token, EventFlags::IN) {
            let doing = "watch the socket of a connection request".to_owned();
            let error = FabricError::System { doing, source };
            self.refuse(socket, &offer, &error.to_string());
            return Err(error);
        }
        // The user takes the time it needs.
        let (deadline, waits) = (Duration::MAX, Waits::User(offer));
        self.waiting.insert(index, Incoming { generation, listener, socket, peer, deadline, waits });
        self.counters.requests += 1;
        Ok(request_id(index, generation))
    }

    fn admit_incoming(&mut self, listener: ListenerId, socket: Socket, peer: SocketAddr) {
        let (index, generation) = self.waiting.next_name();
        let token = Token::Incoming { index, generation };
        if self.epoll.add(socket.as_fd(), token, EventFlags::IN).is_err() {
            return;
        }
        let deadline = self.now + self.config.request_timeout;
        let incoming = Incoming { generation, listener, socket, peer, deadline, waits: Waits::Silent };
        self.waiting.insert(index, incoming);
        // The request is often there already.
        self.hear_incoming(index, generation);
    }

    /// A connection without a queue pair has news.
    pub(super) fn hear_incoming(&mut self, index: u32, generation: u32) {
        let Some(incoming) = self.waiting.find(index, generation) else { return };
        if let Waits::Silent = incoming.waits {
            let mut first = [0];
            match incoming.socket.peek(&mut first) {
                Moved::Nothing => return,
                Moved::End | Moved::Lost => return drop(self.waiting.remove(index)),
                Moved::Octets(_) => {}
            }
            match first[0] {
                // An MPA key.
                b'M' => incoming.waits = Waits::Request(Incomplete::default()),
                // A record mark of RPC over TCP: a fragment, the last of its record or not, of less than 16 MiB.
                0x00 | 0x80 => return self.hand_out(index),
                _ => {
                    self.counters.bad_keys += 1;
                    return self.turn_away(index, &"neither an MPA request nor an RPC record");
                }
            }
        }
        match &mut incoming.waits {
            Waits::Silent => {}
            Waits::Request(incomplete) => match incomplete.receive(&incoming.socket) {
                Progress::Waiting => {}
                Progress::Gone => drop(self.waiting.remove(index)),
                Progress::Bad(error) => {
                    let counter = match error {
                        FrameError::Key => &mut self.counters.bad_keys,
                        _ => &mut self.counters.bad_frames,
                    };
                    *counter += 1;
                    self.turn_away(index, &error);
                }
                Progress::Whole => self.hear_request(index),
            },
            // The user has not answered yet. If the peer is gone, or sends before the reply (5044-7.1-g), the user will find
            // the request gone.
            Waits::User(_) => {
                if let Moved::Octets(_) = incoming.socket.peek(&mut [0]) {
                    self.counters.early_fpdus += 1;
                    self.turn_away(index, &"octets before the reply");
                } else {
                    self.waiting.remove(index);
                }
            }
        }
    }

    /// A whole request came.
    fn hear_request(&mut self, index: u32) {
        let Some(Some(incoming)) = self.waiting.slots.get_mut(index as usize) else { return };
        let Waits::Request(incomplete) = &incoming.waits else { return };
        let Ok((frame, _)) = Frame::parse(incomplete.octets()) else { return };
        if frame.kind != FrameKind::Request {
            self.counters.bad_frames += 1;
            return self.turn_away(index, &"a reply without a request");
        }
        let offer = Offer::new(&frame);
        let private_data = frame.private_data.to_vec();
        let refusal = if frame.markers {
            self.counters.markers_refused += 1;
            Some("markers are not supported")
        } else if self.waiting.requests >= REQUESTS_MAX {
            self.counters.requests_refused += 1;
            Some("too many connection requests wait")
        } else {
            None
        };
        if let Some(reason) = refusal {
            if let Some(incoming) = self.waiting.remove(index) {
                complain(&mut self.complaints, self.now, Some(incoming.peer), &reason);
                self.refuse(incoming.socket, &offer, reason);
            }
            return;
        }
        incoming.waits = Waits::User(offer);
        self.waiting.silent -= 1;
        self.waiting.requests += 1;
        self.counters.requests += 1;
        let request = request_id(index, incoming.generation);
        let (listener, peer) = (incoming.listener, Peer::Address(incoming.peer));
        self.events.push_back(Event::ConnectRequest { listener, request, peer, private_data });
    }

    /// Says no, and closes when the peer has heard it.
    pub(super) fn refuse(&mut self, socket: Socket, offer: &Offer, reason: &str) {
        self.epoll.remove(socket.as_fd());
        if handshake::send(&socket, &offer.refusal(&self.config, reason)) {
            self.lingerers.add(socket, Vec::new(), self.now);
        }
    }

    /// Closes a connection that does not deserve a word.
    #[cold]
    fn turn_away(&mut self, index: u32, why: &dyn std::fmt::Display) {
        let peer = self.waiting.remove(index).map(|incoming| incoming.peer);
        complain(&mut self.complaints, self.now, peer, &format_args!("closed: {why}"));
    }

    /// Somebody who speaks another protocol. Nothing was taken from the socket but a look.
    fn hand_out(&mut self, index: u32) {
        let Some(incoming) = self.waiting.remove(index) else { return };
        if self.waiting.strangers.len() >= STRANGERS_MAX {
            self.counters.strangers_dropped += 1;
            return;
        }
        self.counters.strangers += 1;
        let Incoming { listener, socket, peer, .. } = incoming;
        self.epoll.remove(socket.as_fd());
        let deadline = self.now + self.config.request_timeout;
        self.waiting.strangers.push_back((Stranger { listener, socket: socket.into_fd(), peer }, deadline));
    }

    /// Closes connections whose time is over.
    pub(super) fn expire_incoming(&mut self) {
        for index in 0..self.waiting.slots.len() {
            let late = match &self.waiting.slots[index] {
                Some(incoming) => incoming.deadline <= self.now && !matches!(incoming.waits, Waits::User(_)),
                None => false,
            };
            if late {
                self.counters.handshakes_timed_out += 1;
                self.turn_away(index as u32, &"no request in time");
            }
        }
        while self.waiting.strangers.front().is_some_and(|(_, deadline)| *deadline <= self.now) {
            self.counters.strangers_dropped += 1;
            self.waiting.strangers.pop_front();
        }
    }

    pub(super) fn bind(&mut self, at: SocketAddr) -> std::io::Result<ListenerId> {
        let index = self.listeners.len() as u32;
        let listener = ListenSocket::bind(at, &self.config)?;
        self.epoll.add(listener.as_fd(), Token::Listener(index), EventFlags::IN)?;
        self.listeners.push(listener);
        Ok(ListenerId(index))
    }
}
