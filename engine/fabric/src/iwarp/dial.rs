//! The connecting side: TCP first, then MPA's request and its reply.

use std::os::fd::AsFd;

use stag_wire::mpa::{self, Frame};
use stag_wire::rdmap::{Cause, layer};

use super::Iwarp;
use super::config::Revision;
use super::connection::Phase;
use super::counters::complain;
use super::handshake::{self, Answer, Incomplete, Progress};
use super::reactor::Ending;
use super::socket::Socket;
use crate::epoll::{EventFlags, Token};
use crate::{DisconnectReason, Event, Peer};

impl Iwarp {
    /// Starts to connect, or to connect once more. The next `poll` reports an error.
    pub(super) fn start_dialing(&mut self, index: u32) {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        let Some(dial) = &mut pair.dial else { return };
        let token = Token::queue_pair(pair.id);
        let socket = Socket::connect(dial.address, &self.config).and_then(|socket| {
            self.epoll.add(socket.as_fd(), token, EventFlags::IN | EventFlags::OUT)?;
            Ok(socket)
        });
        match socket {
            Ok(socket) => {
                pair.socket = Some(socket);
                pair.is_watched = true;
            }
            Err(error) => dial.failed = Some(reason_of(&error)),
        }
    }

    /// A queue pair that is being connected has news.
    pub(super) fn dial(&mut self, index: u32) {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        let (Some(dial), Some(socket)) = (&mut pair.dial, &pair.socket) else { return };
        if let Some(error) = socket.error() {
            return self.close(index, reason_of(&error), Ending::default());
        }
        if !dial.has_asked {
            let request = handshake::request(&self.config, dial.revision, &dial.private_data);
            if !handshake::send(socket, &request) {
                // Not connected yet, or not any more: the error will tell.
                return;
            }
            dial.has_asked = true;
            let token = Token::queue_pair(pair.id);
            // It fails only without memory; then we are woken up for nothing.
            let _ = self.epoll.change(socket.as_fd(), token, EventFlags::IN);
        }
        match dial.reply.receive(socket) {
            Progress::Waiting => {}
            Progress::Whole => self.hear_reply(index),
            Progress::Gone if dial.revision == Revision::Two && dial.reply.octets().is_empty() => {
                // So does a peer that knows revision 1 only (6581-9-f).
                dial.revision = Revision::One;
                dial.has_asked = false;
                dial.reply = Incomplete::default();
                pair.socket = None;
                self.start_dialing(index);
            }
            Progress::Gone => self.close(index, DisconnectReason::PeerDied, Ending::default()),
            Progress::Bad(_) => {
                self.counters.bad_frames += 1;
                let reason = DisconnectReason::PeerViolation("the reply is no MPA reply");
                self.close(index, reason, Ending::default());
            }
        }
    }

    /// The whole reply came.
    fn hear_reply(&mut self, index: u32) {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        let (Some(dial), Some(socket)) = (pair.dial.take(), &pair.socket) else { return };
        let Ok((reply, _)) = Frame::parse(dial.reply.octets()) else { return };
        match handshake::answer(&self.config, &reply, socket.segment_len()) {
            Answer::Accepted(terms, ready) => {
                pair.agree(&terms);
                if let Some(ready) = ready {
                    pair.tx.make_ready(ready);
                }
                self.dialing.retain(|&other| other != index);
                self.counters.established += 1;
                let (queue_pair, peer) = (pair.id, Peer::Address(pair.peer));
                let private_data = reply.private_data.to_vec();
                self.events.push_back(Event::Established { queue_pair, private_data, peer });
                self.flush(index);
            }
            Answer::Rejected(reason) => {
                self.close(index, DisconnectReason::Rejected(reason), Ending::default());
            }
            Answer::Violation(problem) => {
                self.counters.bad_frames += 1;
                self.close(index, DisconnectReason::PeerViolation(problem), Ending::default());
            }
            Answer::TooManyReads => {
                self.counters.bad_frames += 1;
                let cause = Cause { layer: layer::LLP, error_type: 0, code: mpa::code::IRD };
                let reason =
                    DisconnectReason::PeerViolation("the peer wants to read more at once than we allow");
                self.close(index, reason, Ending { terminate: Some(cause), ..Ending::default() });
            }
        }
    }

    /// Ends what takes too long, or could not even begin.
    pub(super) fn expire_dialing(&mut self) {
        let mut at = 0;
        while let Some(&index) = self.dialing.get(at) {
            at += 1;
            let Some(Some(pair)) = self.slots.get_mut(index as usize) else { continue };
            let Some(dial) = &mut pair.dial else { continue };
            let deadline = *dial.deadline.get_or_insert(self.now + self.config.connect_timeout);
            let reason = match dial.failed.take() {
                Some(reason) => reason,
                None if deadline <= self.now => {
                    self.counters.handshakes_timed_out += 1;
                    DisconnectReason::TimedOut
                }
                None => continue,
            };
            // It leaves the list.
            at -= 1;
            self.close(index, reason, Ending::default());
        }
    }

    /// The peer of a prepared queue pair went away, or sends before the reply (5044-7.1-g).
    pub(super) fn hear_prepared(&mut self, index: u32) {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        if pair.phase != Phase::Prepared {
            return;
        }
        let Some(socket) = &pair.socket else { return };
        let reason = match socket.peek(&mut [0]) {
            super::socket::Moved::Nothing => return,
            super::socket::Moved::Octets(_) => {
                self.counters.early_fpdus += 1;
                complain(&mut self.complaints, self.now, Some(pair.peer), &"closed: octets before the reply");
                DisconnectReason::PeerViolation("octets before the reply")
            }
            super::socket::Moved::End => DisconnectReason::Peer,
            super::socket::Moved::Lost => DisconnectReason::PeerDied,
        };
        self.close(index, reason, Ending::default());
    }
}

fn reason_of(error: &std::io::Error) -> DisconnectReason {
    match error.kind() {
        std::io::ErrorKind::TimedOut => DisconnectReason::TimedOut,
        std::io::ErrorKind::ConnectionReset => DisconnectReason::PeerDied,
        _ => DisconnectReason::NoListener,
    }
}
