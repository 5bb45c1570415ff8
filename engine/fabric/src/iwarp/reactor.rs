//! The work of `poll`: reads and writes sockets, checks timers, removes ended queue pairs.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::time::Duration;

use stag_wire::rdmap::{self, Cause, Opcode, queue};
use stag_wire::{ddp, mpa};

use super::connection::{Nudging, Phase, QueuePair, Sink};
use super::counters::complain;
use super::crc::crc32c;
use super::fault::{self, Fault};
use super::handshake;
use super::receive::Stop;
use super::send::{Flushed, Scratch};
use super::socket::Moved;
use super::{Iwarp, IwarpCounters};
use crate::epoll::{EventFlags, Token};
use crate::slots::Numbered;
use crate::{Completion, DisconnectReason, Event, ShownMessage, TakeShown, Taken, WorkError};

/// Queue pairs in use that are read in each pass, at most. The others are read when the epoll says so.
const HOT_MAX: usize = 4;
/// As many looks in a row that found octets of a queue pair make it one that is in use.
const HEAT_AFTER: u8 = 3;
/// As many looks in a row without any leave its place to another.
const COOL_AFTER: u8 = 8;
/// System calls that read from one queue pair before the next one gets its turn.
const RECEIVE_BURST: usize = 16;
/// How often the other sockets are looked at: seldom enough that the system call for it costs a busy reactor less than a
/// percent.
const LOOK_INTERVAL: Duration = Duration::from_micros(100);
/// The same, while queue pairs are open that are not read in each pass: the first octets of one wait so long at most.
const LOOK_INTERVAL_CROWD: Duration = Duration::from_micros(15);
/// How often the timers are looked at.
const TIMERS_INTERVAL: Duration = Duration::from_millis(1);
/// The first time that a peer which has not sent anything is nudged; then after twice as long each time.
const NUDGE_FIRST: Duration = Duration::from_millis(5);
/// How often it is.
const NUDGES: u32 = 8;
/// Octets received behind a large payload: its CRC and the next header, so that the next payload goes straight to its place, too.
const TAIL_BULK: usize = mpa::TRAILER_LEN_MAX + mpa::LENGTH_LEN + ddp::UNTAGGED_LEN;
/// The same, behind the last segment of a message: small messages follow.
const TAIL: usize = 4096;

/// What there is to say about an end, beyond its reason.
#[derive(Default)]
pub(super) struct Ending {
    /// What the peer did.
    pub(super) fault: Option<Fault>,
    /// Which request of ours the peer refused, and as what it completes.
    pub(super) refused: Option<(u64, WorkError)>,
    /// The Terminate that the peer gets.
    pub(super) terminate: Option<Cause>,
}

impl Iwarp {
    /// Whether there are too many queue pairs to read them all.
    #[inline(always)]
    fn is_crowded(&self) -> bool {
        self.open.len() > self.hot.len()
    }

    /// Reads the queue pairs that are in use.
    #[inline]
    pub(super) fn harvest(
        &mut self,
        completions: &mut VecDeque<Completion>,
        end: usize,
        show: &mut impl TakeShown,
    ) {
        self.turn = self.turn.wrapping_add(1);
        for step in 0..self.hot.len() {
            // One that closed meanwhile has left the list; who is skipped for it comes next time.
            let count = self.hot.len();
            if count == 0 {
                return;
            }
            let index = self.hot[(self.turn + step) % count];
            self.receive(index, completions, end, show);
        }
    }

    /// Takes what a queue pair's socket has.
    #[inline]
    fn receive(
        &mut self,
        index: u32,
        completions: &mut VecDeque<Completion>,
        end: usize,
        show: &mut impl TakeShown,
    ) {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        if pair.phase != Phase::Open {
            return;
        }
        let mut sink = Sink::user(completions, end, self.taken, &mut self.local);
        let pulled = pull(pair, &mut self.staging, &mut self.scratch, &mut sink, &mut self.counters, show);
        self.taken = sink.taken;
        match pulled {
            Pulled::All => {
                // Read Responses, and requests that had to wait for the peer's.
                if pair.tx.has_work() && !pair.is_blocked {
                    pair.mark_dirty(&mut self.dirty);
                }
            }
            Pulled::End => {
                self.counters.truncated += u64::from(!pair.rx.is_between());
                self.close(index, DisconnectReason::Peer, Ending::default());
            }
            Pulled::Lost => self.close(index, DisconnectReason::PeerDied, Ending::default()),
            Pulled::Stopped(stop) => self.stop(index, &stop),
        }
    }

    /// The peer broke the rules, or says that we did.
    #[cold]
    fn stop(&mut self, index: u32, stop: &Stop) {
        let Some(Some(pair)) = self.slots.get(index as usize) else { return };
        match *stop {
            Stop::Fault(fault) => {
                fault.count(&mut self.counters);
                complain(
                    &mut self.complaints,
                    self.now,
                    Some(pair.peer),
                    &format_args!("terminated: {}", fault.text()),
                );
                let ending = Ending { fault: Some(fault), terminate: Some(fault.cause()), refused: None };
                self.close(index, fault.reason(), ending);
            }
            Stop::Terminated(cause, header) => {
                let reason = fault::reason_of(cause);
                complain(
                    &mut self.complaints,
                    self.now,
                    Some(pair.peer),
                    &format_args!("the peer terminated: {cause}"),
                );
                let refused = match reason {
                    DisconnectReason::Work(error) => pair.tx.refused(header).map(|which| (which, error)),
                    _ => None,
                };
                self.close(index, reason, Ending { refused, ..Ending::default() });
            }
        }
    }

    /// Sends what a queue pair has, as far as its socket takes it.
    #[inline]
    pub(super) fn flush(&mut self, index: u32) {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        pair.is_dirty = false;
        let Some(socket) = &pair.socket else { return };
        if !matches!(pair.phase, Phase::Open | Phase::Announced) {
            return;
        }
        let flushed = pair.tx.flush(socket, &mut self.scratch, &mut self.counters);
        pair.complete(&mut Sink::waiting(&mut self.local));
        match flushed {
            Flushed::All => {
                if pair.is_blocked {
                    self.unblock(index);
                }
            }
            Flushed::Blocked | Flushed::More => {
                if !pair.is_blocked {
                    pair.is_blocked = true;
                    self.blocked.push(index);
                }
            }
            Flushed::Lost => self.lost(index),
        }
    }

    /// Sends what a queue pair has before the end of the pass. A failure is left to the doorbell at the end of the pass.
    pub(super) fn flush_early(&mut self, index: u32) {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        if pair.flush_early(&mut self.scratch, &mut self.counters) {
            pair.complete(&mut Sink::waiting(&mut self.local));
        }
    }

    /// A send found the connection lost. What the peer said last may still be there to be received, a Terminate above all.
    #[cold]
    fn lost(&mut self, index: u32) {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        let mut sink = Sink::waiting(&mut self.local);
        if pair.phase == Phase::Open {
            let never = &mut |_: ShownMessage<'_>| Taken::No;
            let (staging, scratch) = (&mut self.staging, &mut self.scratch);
            if let Pulled::Stopped(stop) = pull(pair, staging, scratch, &mut sink, &mut self.counters, never)
            {
                return self.stop(index, &stop);
            }
        }
        self.close(index, DisconnectReason::PeerDied, Ending::default());
    }

    fn unblock(&mut self, index: u32) {
        self.blocked.retain(|&other| other != index);
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        pair.is_blocked = false;
        if pair.is_watched_to_send
            && let Some(socket) = &pair.socket
        {
            pair.is_watched_to_send = false;
            let token = Token::queue_pair(pair.id);
            // It fails only without memory; then we are woken up for nothing.
            let _ = self.epoll.change(socket.as_fd(), token, EventFlags::IN);
        }
    }

    /// Tries the sockets that were full again; those of a crowd when the epoll says so.
    #[inline]
    pub(super) fn retry_blocked(&mut self) {
        for at in (0..self.blocked.len()).rev() {
            let Some(&index) = self.blocked.get(at) else { continue };
            let Some(Some(pair)) = self.slots.get(index as usize) else { continue };
            if !pair.is_watched_to_send {
                self.flush(index);
            }
        }
        if self.blocked.len() > HOT_MAX {
            self.watch_blocked();
        }
    }

    /// Lets the epoll tell when full sockets have room.
    #[cold]
    pub(super) fn watch_blocked(&mut self) {
        for at in 0..self.blocked.len() {
            let index = self.blocked[at];
            self.watch(index);
            let Some(Some(pair)) = self.slots.get_mut(index as usize) else { continue };
            let token = Token::queue_pair(pair.id);
            if !pair.is_watched_to_send
                && let Some(socket) = &pair.socket
            {
                pair.is_watched_to_send =
                    self.epoll.change(socket.as_fd(), token, EventFlags::IN | EventFlags::OUT).is_ok();
            }
        }
    }

    /// Lets the epoll tell when a queue pair's socket has something.
    pub(super) fn watch(&mut self, index: u32) {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        if !pair.is_watched
            && let Some(socket) = &pair.socket
        {
            let token = Token::queue_pair(pair.id);
            pair.is_watched = self.epoll.add(socket.as_fd(), token, EventFlags::IN).is_ok();
        }
    }

    /// The user knows that a queue pair is connected: it takes part.
    pub(super) fn activate(&mut self, index: u32) {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        if pair.phase != Phase::Announced {
            return;
        }
        pair.phase = Phase::Open;
        let generation = pair.id.generation;
        let is_initiator = pair.offer.is_none();
        self.open.push(index);
        if is_initiator {
            self.nudging.push(Nudging { index, generation, at: self.now + NUDGE_FIRST, count: 0 });
        }
        self.watch(index);
        if self.hot.len() < HOT_MAX {
            self.heat(index);
        }
    }

    /// Reads a queue pair in every pass from now on.
    fn heat(&mut self, index: u32) {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        (pair.is_hot, pair.looks) = (true, 0);
        self.hot.push(index);
        // No need to be told, but to be woken.
        if !self.config.may_sleep
            && pair.is_watched
            && !pair.is_watched_to_send
            && let Some(socket) = &pair.socket
        {
            self.epoll.remove(socket.as_fd());
            pair.is_watched = false;
        }
    }

    /// Frees the places of queue pairs that are no longer in use.
    fn cool(&mut self) {
        for at in (0..self.hot.len()).rev() {
            let index = self.hot[at];
            let Some(Some(pair)) = self.slots.get_mut(index as usize) else { continue };
            if std::mem::take(&mut pair.is_heard) {
                pair.looks = 0;
                continue;
            }
            pair.looks += 1;
            if pair.looks >= COOL_AFTER {
                (pair.is_hot, pair.looks) = (false, 0);
                self.hot.swap_remove(at);
                // It is level-triggered: events of the meantime are reported.
                self.watch(index);
            }
        }
    }

    /// The epoll found octets for a queue pair that is not read in every pass.
    fn warm(&mut self, index: u32) {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        pair.looks = pair.looks.saturating_add(1);
        if pair.looks >= HEAT_AFTER && self.hot.len() < HOT_MAX && pair.phase == Phase::Open {
            self.heat(index);
        }
    }

    /// Polls the sockets that are not read in every pass, and the timers.
    #[cold]
    pub(super) fn poll_sockets(
        &mut self,
        completions: &mut VecDeque<Completion>,
        end: usize,
        show: &mut impl TakeShown,
    ) {
        self.look_passes = 0;
        self.counters.looks += 1;
        if self.is_crowded() {
            self.cool();
        }
        let mut found = 0;
        for at in 0..self.epoll.poll() {
            let token = self.epoll.ready(at).token;
            match token {
                // It has no descriptor but its sockets.
                Token::Own => {}
                Token::Listener(index) => self.take_connections(index),
                Token::Incoming { index, generation } => self.hear_incoming(index, generation),
                Token::QueuePair { index, .. } => {
                    let Some(Some(pair)) = self.slots.get(index as usize) else { continue };
                    if Token::queue_pair(pair.id) != token {
                        continue;
                    }
                    match pair.phase {
                        Phase::Dialing => self.dial(index),
                        Phase::Prepared => self.hear_prepared(index),
                        Phase::Open => {
                            if pair.is_watched_to_send {
                                self.flush(index);
                            }
                            let slot = self.slots.get(index as usize).and_then(Option::as_ref);
                            if slot.is_some_and(|pair| !pair.is_hot) {
                                found += 1;
                                self.receive(index, completions, end, show);
                                self.warm(index);
                            }
                        }
                        Phase::Announced | Phase::Closing(_) => {}
                    }
                }
            }
        }
        // More often while something comes: as in every pass where many queue pairs are in use.
        self.look_interval = match (found, self.is_crowded()) {
            (_, false) => LOOK_INTERVAL,
            (0, true) => (self.look_interval * 2 + Duration::from_micros(1)).min(LOOK_INTERVAL_CROWD),
            (_, true) => Duration::ZERO,
        };
        self.look_at = self.now + self.look_interval;
        if self.now >= self.timers_at {
            self.timers_at = self.now + TIMERS_INTERVAL;
            self.expire_incoming();
            self.resume_accepting();
            self.nudge();
        }
        self.expire_dialing();
        self.lingerers.poll(self.now, &mut self.staging);
    }

    /// Sends something to peers that may have missed the first segment behind their reply, as siw does.
    fn nudge(&mut self) {
        let mut at = 0;
        while let Some(nudging) = self.nudging.get_mut(at) {
            let &mut Nudging { index, generation, .. } = nudging;
            let pair = match self.slots.get_mut(index as usize) {
                Some(Some(pair)) if pair.id.generation == generation && pair.phase == Phase::Open => pair,
                _ => {
                    self.nudging.swap_remove(at);
                    continue;
                }
            };
            if pair.rx.has_heard || nudging.count == NUDGES {
                self.nudging.swap_remove(at);
                continue;
            }
            at += 1;
            if self.now < nudging.at {
                continue;
            }
            nudging.count += 1;
            nudging.at = self.now + NUDGE_FIRST * (1 << nudging.count);
            if pair.tx.is_between() {
                pair.tx.nudge();
                self.counters.nudges += 1;
                self.flush(index);
            }
        }
    }

    /// When `poll` has to come by even if no socket has news.
    pub(super) fn timeout(&self) -> Option<Duration> {
        let dialing = self.dialing.iter().filter_map(|&index| {
            let dial = self.slots.get(index as usize)?.as_ref()?.dial.as_ref()?;
            let at_once = dial.failed.is_some() || dial.deadline.is_none();
            Some(if at_once { self.now } else { dial.deadline.unwrap_or(self.now) })
        });
        let nudging = self.nudging.iter().map(|nudging| nudging.at);
        let lingering = (!self.lingerers.is_empty()).then_some(self.now + TIMERS_INTERVAL);
        let waiting = self.waiting.deadline().into_iter().chain(self.paused_until);
        dialing.chain(nudging).chain(lingering).chain(waiting).min()
    }

    /// Ends a queue pair, for whatever reason: all that is posted and exposed comes back. Harmless when it is ending already.
    #[cold]
    pub(super) fn close(&mut self, index: u32, reason: DisconnectReason, ending: Ending) {
        let Some(Some(pair)) = self.slots.get_mut(index as usize) else { return };
        if matches!(pair.phase, Phase::Closing(_)) {
            return;
        }
        let was = std::mem::replace(&mut pair.phase, Phase::Closing(reason.clone()));
        pair.dial = None;
        if let Some(socket) = pair.socket.take() {
            self.epoll.remove(socket.as_fd());
            match was {
                Phase::Prepared => {
                    if let (Some(offer), DisconnectReason::Local) = (&pair.offer, &reason) {
                        // A peer that just sees the end might try again with revision 1.
                        let refusal = offer.refusal(&self.config, "the server has changed its mind");
                        handshake::send(&socket, &refusal);
                        self.lingerers.add(socket, Vec::new(), self.now);
                    }
                }
                Phase::Announced | Phase::Open if is_alive(&reason) => {
                    if reason == DisconnectReason::Local {
                        // What was posted before still goes out, as far as the socket takes it now.
                        pair.tx.flush(&socket, &mut self.scratch, &mut self.counters);
                    }
                    let mut words = pair.tx.unfinished();
                    if let Some(cause) = ending.terminate {
                        self.counters.terminates_sent += 1;
                        words.extend_from_slice(&terminate(pair, cause, ending.fault));
                    }
                    self.lingerers.add(socket, words, self.now);
                }
                Phase::Dialing if ending.terminate.is_some() => {
                    self.counters.terminates_sent += 1;
                    let words = ending.terminate.map(|cause| terminate(pair, cause, None));
                    self.lingerers.add(socket, words.unwrap_or_default(), self.now);
                }
                _ => {}
            }
        }
        pair.complete(&mut Sink::waiting(&mut self.local));
        pair.flush(&mut Sink::waiting(&mut self.local), ending.fault, ending.refused);
        (pair.is_dirty, pair.is_blocked) = (false, false);
        for list in [&mut self.open, &mut self.hot, &mut self.dirty, &mut self.blocked, &mut self.dialing] {
            list.retain(|&other| other != index);
        }
        self.closing.push(index);
    }

    /// Forgets the queue pairs that have ended, once the user has all their completions and targets.
    #[cold]
    pub(super) fn clear_away(&mut self) {
        for index in std::mem::take(&mut self.closing) {
            let Some(Some(pair)) = self.slots.get_mut(index as usize) else { continue };
            let Phase::Closing(reason) = &pair.phase else { continue };
            if pair.has_targets() {
                self.closing.push(index);
                continue;
            }
            let (queue_pair, reason, capacity) = (pair.id, reason.clone(), pair.capacity);
            self.slots[index as usize] = None;
            self.pairs -= 1;
            self.completions_taken -= QueuePair::completions(&capacity);
            self.counters.disconnected += 1;
            self.events.push_back(Event::Disconnected { queue_pair, reason });
        }
    }
}

/// Whether the peer may still listen.
fn is_alive(reason: &DisconnectReason) -> bool {
    !matches!(reason, DisconnectReason::PeerDied | DisconnectReason::Peer)
}

/// What became of reading.
enum Pulled {
    /// All that is there, or enough for now.
    All,
    End,
    Lost,
    Stopped(Stop),
}

/// Takes what the socket has, a bounded number of times.
#[inline]
fn pull(
    pair: &mut QueuePair,
    staging: &mut [u8],
    scratch: &mut Scratch,
    sink: &mut Sink<'_>,
    counters: &mut IwarpCounters,
    show: &mut impl TakeShown,
) -> Pulled {
    for call in 0..RECEIVE_BURST {
        let direct = match pair.direct() {
            Ok(direct) => direct,
            Err(stop) => return Pulled::Stopped(stop),
        };
        let is_bulk = pair.rx.is_bulk();
        let Some(socket) = &pair.socket else { return Pulled::All };
        let (moved, straight, asked) = match direct {
            Some((place, len)) => {
                let tail = if is_bulk { TAIL_BULK } else { TAIL };
                // SAFETY: `direct` says that `place` is valid for writes of `len` octets, in a buffer that the queue
                // pair holds by value, so no reference to it exists.
                let moved = unsafe { socket.receive_at(place, len, &mut staging[..tail]) };
                (moved, len, len + tail)
            }
            None => {
                let behind = &mut staging[pair.rx.held.len()..];
                (socket.receive(behind), 0, behind.len())
            }
        };
        let count = match moved {
            Moved::Octets(count) => count,
            Moved::Nothing => {
                if call == 0 {
                    pair.pace.note_nothing();
                }
                return Pulled::All;
            }
            Moved::End => return Pulled::End,
            Moved::Lost => return Pulled::Lost,
        };
        if call == 0 {
            pair.is_heard = true;
            pair.pace.note_something();
        }
        counters.receive_calls += 1;
        let landed = count.min(straight);
        if landed > 0
            && let Err(stop) = pair.landed(landed)
        {
            return Pulled::Stopped(stop);
        }
        let held = pair.rx.held.len();
        if held > 0 {
            staging[..held].copy_from_slice(&pair.rx.held);
            pair.rx.held.clear();
        }
        let mut rest = &staging[..held + count - landed];
        while !rest.is_empty() {
            rest = match pair.take(rest, sink, counters, show) {
                Ok(rest) => rest,
                Err(stop) => return Pulled::Stopped(stop),
            };
            if (pair.pace.is_half_way(rest.len(), count) && pair.tx.has_work() || pair.tx.is_built_full())
                && pair.flush_early(scratch, counters)
            {
                pair.complete(sink);
            }
        }
        if count < asked {
            return Pulled::All;
        }
    }
    Pulled::All
}

/// The FPDU of a Terminate (5040-g): with what it is about, unless that cannot be trusted.
fn terminate(pair: &QueuePair, cause: Cause, fault: Option<Fault>) -> Vec<u8> {
    let mut payload = [0; rdmap::TERMINATE_LEN_MAX];
    let len = match fault.filter(|fault| fault.names_segment()) {
        Some(fault) => {
            let (header, segment_len, request) = pair.rx.about(fault);
            rdmap::emit_terminate(cause, Some((header, segment_len)), request, &mut payload)
        }
        None => rdmap::emit_terminate(cause, None, None, &mut payload),
    };
    let control = Opcode::Terminate.to_control();
    let queue = queue::TERMINATE;
    let header = ddp::Untagged { last: true, control, ulp: 0, queue, msn: 1, offset: 0 }.to_wire();
    let ulpdu = [&header[..], &payload[..len]].concat();
    let mut fpdu = vec![0; mpa::fpdu_len(ulpdu.len())];
    let crc: fn(&[u8]) -> u32 = crc32c;
    mpa::emit_fpdu(&ulpdu, pair.tx.uses_crc().then_some(crc), &mut fpdu);
    fpdu
}
