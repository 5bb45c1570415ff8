//! One byte stream: its Calls in, its Replies out; and Calls to its client out, and their Replies in.

mod answering;
mod calling;
mod deadlines;
mod pressure;
mod resuming;

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read};
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::event::epoll::EventFlags;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use stag_fabric::Peer;
use stag_memory::Buf;
use stag_wire::record::{RecordError, Step};
use stag_wire::rpc::leading_xid;
use stag_wire::xdr::Reduced;

use self::answering::Record;
use super::incoming::{Incoming, Short, Targets};
use super::outbox::{Outbox, SLICES_MAX};
use super::outstanding::{Outstanding, OutstandingCalls};
use super::quota::{Means, Quota};
use crate::ConnectionId;
use crate::call_back::CALLS_BACK_MAX;
use crate::server::client_log::{ClientHost, ClientName, Service};
use crate::server::eviction::ConnectionUse;
use crate::server::pulling::in_one_piece;
use crate::server::transit::{self, TransitAccounts, TransitShare};
use crate::service::dispatch::ReplyPolicy;
use crate::service::reply::Reply;
use crate::service::steps::answer;
use crate::service::{Services, Token};
use crate::state::{Core, EngineState, Pass};

/// Calls of one connection that services answer later, at most: beyond that no more are taken on.
pub(super) const LATER_MAX: usize = 64;

/// Octets of Replies that wait to be sent, from which on no more Calls are taken on.
const QUEUED_MAX: usize = 1 << 20;

/// Parts of Replies that wait to be sent, from which on no more Calls are taken on: about as many as one system call sends.
const PARTS_MAX: usize = 240;

/// Octets of heap of one connection, with as many parts of Replies and Calls for later as there may be, and a record of
/// `chunk_len_max` octets in single pages.
pub(super) const fn footprint(chunk_len_max: u32) -> usize {
    let pages = (chunk_len_max as usize).div_ceil(crate::PAGE_LEN);
    size_of::<Connection>()
        + Outbox::footprint(PARTS_MAX + pages)
        + LATER_MAX * size_of::<Option<Later>>()
        + size_of::<OutstandingCalls<u64>>()
        + CALLS_BACK_MAX * size_of::<Outstanding<u64>>()
        + 2 * pages * size_of::<Buf>()
}

/// Free pages below which no more Calls are taken on: one for what is left of a record, one for a Reply. Bulk data
/// leaves more.
const PAGES_MIN: usize = 2;

/// How long a peer may be silent within a record while others wait for memory.
const SILENCE_MAX: Duration = Duration::from_millis(250);

/// Octets a second that a record has to come with while others wait for memory, after a second.
const PRESSED_RATE: u64 = 256 << 10;

/// How long a peer may be silent within a record before memory that nothing came for is taken back, while others wait.
const VACATE_AFTER: Duration = Duration::from_millis(20);

/// Of the shared buffer, what is offered behind an item that is received where it belongs: the beginning of the next
/// record, which would have to be copied.
const BEHIND_ITEM: usize = 4096;

/// System calls that one pass sends with at most.
const SENDS_MAX: usize = 4;

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The peer closed it, or it failed.
    Peer,
    /// What came is no record of ours.
    Record(RecordError),
    /// It took too long.
    TimedOut(&'static str),
    /// It was not used for so long.
    Idle,
    /// A Reply could not be made.
    CannotReply,
    /// We are stopping.
    Stopped,
    /// The user of the engine disconnected it.
    Disconnected,
}

/// A Call that a service answers later.
#[derive(Clone, Copy, Debug)]
pub(super) struct Later {
    xid: u32,
    terms: ReplyPolicy,
}

/// Octets that were received and not looked at yet.
#[derive(Debug)]
struct Backlog {
    buf: Buf,
    at: usize,
    end: usize,
}

/// What connections share, beside the engine's core.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) quota: Quota,
    /// Where octets are received; `None` while there is no memory for another.
    pub(super) staging: Option<Buf>,
    /// Streams there may be.
    pub(super) streams_max: u32,
}

/// One byte stream.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    pub(super) socket: TcpStream,
    pub(super) peer: Peer,
    /// The address of this machine that the peer connected to.
    local: Option<IpAddr>,
    incoming: Incoming,
    outbox: Outbox,
    /// What it has of the memory for transit.
    share: TransitShare,
    /// Of that, pages that are counted for `outbox`.
    counted: usize,
    backlog: Option<Backlog>,
    /// Something that was received waits until Replies have left, or for memory.
    stalled: bool,
    /// It waits for memory.
    is_short: bool,
    /// Since when, and for whose, it waits for the few pages that any Call takes, though it leaves no Replies untaken itself.
    barred: Option<(Duration, Short)>,
    later: Vec<Option<Later>>,
    later_count: usize,
    /// Calls to the client, by their keys, once there was one.
    calls_back: Option<Box<OutstandingCalls<u64>>>,
    /// The events to poll for.
    pub(super) interest: EventFlags,
    /// The socket takes no more for now.
    blocked: bool,
    /// The peer sends no more.
    ended: bool,
    /// Calls taken on.
    calls: u64,
    /// Whose machine it is.
    host: ClientHost,
    /// When a service last answered something that was no refusal.
    served: Option<Duration>,
    opened: Duration,
    /// When an octet last came or went.
    active: Duration,
    /// When the peer last took an octet of what waits to be sent, or nothing waited.
    progress: Duration,
    /// Whether it is among those to go on with in the next pass.
    pub(super) is_active: bool,
}

impl Connection {
    pub(super) fn new(
        id: ConnectionId,
        socket: TcpStream,
        peer: Peer,
        record_len_max: u32,
        share: TransitShare,
        now: Duration,
    ) -> Connection {
        let local = socket.local_addr().ok().map(|address| address.ip().to_canonical());
        Connection {
            id,
            socket,
            peer,
            local,
            incoming: Incoming::new(record_len_max),
            outbox: Outbox::default(),
            share,
            counted: 0,
            backlog: None,
            stalled: false,
            is_short: false,
            barred: None,
            later: Vec::new(),
            later_count: 0,
            calls_back: None,
            interest: EventFlags::empty(),
            blocked: false,
            ended: false,
            calls: 0,
            host: ClientHost::default(),
            served: None,
            opened: now,
            active: now,
            progress: now,
            is_active: false,
        }
    }

    /// What the poller should be asked for now.
    pub(super) fn wanted(&self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, !self.stalled && !self.ended);
        flags.set(EventFlags::OUT, self.blocked);
        flags
    }

    /// Whether it can go on by itself in the next pass.
    pub(super) fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// Whether it waits for memory: no socket will tell when it can go on.
    pub(super) fn is_short(&self) -> bool {
        self.stalled && self.is_short
    }

    /// Whether it has some of the memory of `owner`; with `None`, of any owner.
    pub(super) fn is_of(&self, owner: Option<u32>) -> bool {
        owner.is_none_or(|owner| self.share.is_of(owner))
    }

    /// Takes memory back that nothing came for yet, if the peer is silent within a record.
    pub(super) fn vacate<P>(&mut self, core: &mut Core<P>, shared: &mut Shared) {
        let is_silent = core.now.saturating_sub(self.active) >= VACATE_AFTER;
        if self.incoming.started.is_some() && !self.stalled && is_silent {
            self.incoming.vacate(&mut means(core, &mut self.share, shared));
        }
    }

    /// Counts what the outbox holds now.
    #[inline]
    fn count_replies(&mut self, accounts: &mut TransitAccounts) {
        let now = self.outbox.held();
        if now > self.counted {
            accounts.take_reply(&mut self.share, now - self.counted);
        } else if now < self.counted {
            accounts.give_reply(&mut self.share, self.counted - now);
        }
        self.counted = now;
    }

    /// Looks whether its peer is silent within a record: then it is trusted no more.
    pub(super) fn observe(&mut self, now: Duration) {
        if self.incoming.started.is_some() && !self.stalled && now.saturating_sub(self.active) >= SILENCE_MAX
        {
            self.incoming.is_trusted = false;
        }
    }

    /// Whether there is something to send that the socket might take.
    pub(super) fn has_output(&self) -> bool {
        !self.blocked && self.outbox.queued() > 0
    }

    /// Whether every Call is answered and every answer sent.
    pub(super) fn is_idle(&self) -> bool {
        self.later_count == 0 && self.outbox.queued() == 0
    }

    /// Whether the peer sends no more.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether its socket or a service will say when it can go on, if it cannot now.
    pub(super) fn will_be_told(&self) -> bool {
        self.blocked || self.later_count > 0
    }

    /// How the log names its client.
    pub(super) fn client(&self) -> ClientName<'_> {
        ClientName { peer: Some(&self.peer), host: Some(&self.host) }
    }

    /// What it was good for.
    pub(super) fn service(&self, now: Duration) -> Service {
        Service { time: now.saturating_sub(self.opened), calls: self.calls }
    }

    /// Calls taken on.
    pub(super) fn calls(&self) -> u64 {
        self.calls
    }

    /// How it is used.
    pub(super) fn usage(&self) -> ConnectionUse {
        let is_busy = !self.is_idle() || self.stalled || self.incoming.started.is_some();
        ConnectionUse { opened: self.opened, served: self.served, is_set_up: true, is_busy }
    }

    /// The socket takes octets again.
    pub(super) fn writable(&mut self) {
        self.blocked = false;
    }

    /// Receives once, and runs the Calls that are there.
    pub(super) fn receive<P, S: Services>(
        &mut self,
        pass: &mut Pass<'_, Core<P>, S>,
        shared: &mut Shared,
    ) -> Result<(), Ending> {
        if self.stalled || self.ended {
            return Ok(());
        }
        if !self.try_begin(pass.core, shared) {
            return Ok(());
        }
        if shared.staging.is_none() && pass.core.pools.payload.transit_free() > 0 {
            shared.staging = pass.core.pools.payload.take_up_to(super::STAGING_LEN);
        }
        let Some(mut staging) = shared.staging.take() else { return Ok(()) };
        let direct = self.incoming.direct() as usize;
        // What its record has no memory for has to be kept: little of it, where that is likely.
        let is_narrow = direct > 0 || pass.core.transit.is_narrow(&self.share, &pass.core.pools.payload);
        let offered = if is_narrow { BEHIND_ITEM.min(staging.capacity()) } else { staging.capacity() };
        staging.set_len(offered);
        let received = {
            let mut slices = Targets::new();
            self.incoming.targets(&mut slices);
            slices.push(IoSliceMut::new(&mut staging));
            (&self.socket).read_vectored(&mut slices)
        };
        let count = match received {
            Ok(0) => {
                // Half closed: what it asked before is still answered.
                self.ended = true;
                self.end_calls_back(&mut pass.core.state);
                shared.staging = Some(staging);
                return if self.is_idle() { Err(Ending::Peer) } else { Ok(()) };
            }
            Ok(count) => count,
            Err(error) => {
                shared.staging = Some(staging);
                return match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(()),
                    _ => Err(Ending::Peer),
                };
            }
        };
        self.active = pass.core.now;
        pass.core.statistics.stream_bytes_received += count as u64;
        let placed = count.min(direct);
        self.incoming.received(placed as u32);
        let end = count - placed;
        let result = self.process(pass, shared, &staging[..end]);
        self.settle(pass.core, shared, staging, end, result)
    }

    /// Keeps what was received and not used, in as little memory as it takes.
    fn settle<P>(
        &mut self,
        core: &mut Core<P>,
        shared: &mut Shared,
        buf: Buf,
        end: usize,
        (at, result): (usize, Result<(), Ending>),
    ) -> Result<(), Ending> {
        let pool = &core.state.pools.payload;
        if at < end && result.is_ok() {
            let rest = &buf[at..end];
            let pages = transit::pages(pool, rest.len());
            if pages < transit::pages(pool, buf.capacity())
                && pages <= pool.transit_free()
                && let Some(mut copy) = pool.take_len(rest.len())
            {
                copy.copy_from_slice(rest);
                core.transit.take(&mut self.share, pages);
                self.backlog = Some(Backlog { buf: copy, at: 0, end: end - at });
                shared.staging.get_or_insert(buf);
                return Ok(());
            }
            if pages > 1 && transit::free(pool) == 0 {
                return Err(Ending::TimedOut(
                    "it sends more than it takes, and there is no memory to keep it",
                ));
            }
            core.state.transit.take(&mut self.share, transit::pages(pool, buf.capacity()));
            self.backlog = Some(Backlog { buf, at, end });
        } else {
            shared.staging.get_or_insert(buf);
        }
        result
    }

    /// Whether another Call may be taken on. Of Replies that are not taken it may have as much as its part of the memory.
    fn may_call<P>(&self, core: &Core<P>) -> bool {
        let pool = &core.pools.payload;
        self.later_count < LATER_MAX
            && self.outbox.queued() < QUEUED_MAX
            && !core.transit.is_over_limit(&self.share, pool)
            && self.outbox.parts() < PARTS_MAX
            && self.missing_pages(core).is_none()
            && !core.stopping
    }

    /// Takes octets in and runs the Calls that are complete. Returns how many octets it used: fewer than there are
    /// when it has to wait.
    fn process<P, S: Services>(
        &mut self,
        pass: &mut Pass<'_, Core<P>, S>,
        shared: &mut Shared,
        input: &[u8],
    ) -> (usize, Result<(), Ending>) {
        let mut rest = input;
        self.stalled = false;
        self.is_short = false;
        let result = loop {
            if !self.may_call(pass.core) {
                self.stalled = true;
                self.is_short = self.lacks_pages(pass.core);
                break Ok(());
            }
            self.barred = None;
            if let Some(record) = self.incoming.splitter.whole(&mut rest) {
                if let Err(ending) = self.run(pass, record, None) {
                    break Err(ending);
                }
                continue;
            }
            if self.incoming.is_waiting() && self.take(pass, shared, &[]).1.is_err() {
                break Ok(());
            }
            let before = rest;
            match self.incoming.splitter.step(&mut rest) {
                Ok(Step::Octets(octets)) => {
                    self.incoming.started.get_or_insert(pass.core.now);
                    if let (used, Err(_)) = self.take(pass, shared, octets) {
                        // Octets that were not taken will be given out again.
                        self.incoming.splitter.take_back((octets.len() - used) as u32);
                        rest = &before[before.len() - rest.len() - (octets.len() - used)..];
                        break Ok(());
                    }
                }
                Ok(Step::End) => {
                    if let Err(ending) = self.run_assembled(pass, shared) {
                        break Err(ending);
                    }
                }
                Ok(Step::Pause) => break Ok(()),
                Err(error) => break Err(Ending::Record(error)),
            }
        };
        (input.len() - rest.len(), result)
    }

    /// Takes octets of the record that arrives, as far as there is memory; else the connection waits for some.
    fn take<P, S: Services>(
        &mut self,
        pass: &mut Pass<'_, Core<P>, S>,
        shared: &mut Shared,
        octets: &[u8],
    ) -> (usize, Result<(), Short>) {
        let taken = self.incoming.take(&mut means(pass.core, &mut self.share, shared), pass.services, octets);
        self.is_short = taken.1.is_err();
        self.stalled |= self.is_short;
        taken
    }

    /// Runs the Call that was put together.
    fn run_assembled<P, S: Services>(
        &mut self,
        pass: &mut Pass<'_, Core<P>, S>,
        shared: &mut Shared,
    ) -> Result<(), Ending> {
        let head = std::mem::take(&mut self.incoming.head);
        let mut item = self.incoming.item.take();
        let mut gathered = std::mem::take(&mut pass.core.gathered);
        let octets = in_one_piece(&head, &mut gathered);
        let result = match &mut item {
            Some(item) if !item.is_complete() => {
                // The record ends within its item.
                let xid = leading_xid(octets);
                let refuse = &mut |reply: &mut Reply<'_>| reply.garbage_arguments();
                let mut record = Record::new(self, xid, 0);
                answer(&mut pass.core.state, &mut record, ReplyPolicy::ENGINE, refuse)
            }
            Some(item) => {
                pass.core.statistics.stream_items += 1;
                let reduced = [Reduced::read_chunk(0, item.position, item.len)];
                self.run(pass, octets, Some((&mut item.placed, &reduced)))
            }
            None => self.run(pass, octets, None),
        };
        pass.core.gathered = gathered;
        (self.incoming.head, self.incoming.item) = (head, item);
        self.incoming.clear(&mut means(pass.core, &mut self.share, shared));
        result
    }

    /// Sends what there is, as far as the socket takes it. Returns the octets sent.
    pub(super) fn send(&mut self, now: Duration, accounts: &mut TransitAccounts) -> Result<usize, Ending> {
        let mut sum = 0;
        for _ in 0..SENDS_MAX {
            if self.outbox.queued() == 0 {
                break;
            }
            let mut slices: ArrayVec<IoSlice<'_>, SLICES_MAX> = ArrayVec::new();
            self.outbox.slices(&mut slices);
            let offered: usize = slices.iter().map(|slice| slice.len()).sum();
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let sent = sendmsg(&self.socket, &slices, &mut SendAncillaryBuffer::default(), flags);
            let count = match sent {
                Ok(count) => count,
                Err(error) if error == rustix::io::Errno::AGAIN => {
                    self.blocked = true;
                    break;
                }
                Err(error) if error == rustix::io::Errno::INTR => continue,
                Err(_) => return Err(Ending::Peer),
            };
            drop(slices);
            self.outbox.sent(count);
            (self.active, self.progress) = (now, now);
            sum += count;
            if count < offered {
                self.blocked = true;
                break;
            }
        }
        if sum > 0 {
            self.count_replies(accounts);
        }
        // It wants nothing more, and has all.
        if self.ended && self.is_idle() && !self.stalled { Err(Ending::Peer) } else { Ok(sum) }
    }

    /// Lets go of everything.
    pub(super) fn close<P>(mut self, core: &mut Core<P>, shared: &mut Shared) {
        self.end_calls_back(&mut core.state);
        self.incoming.clear(&mut means(core, &mut self.share, shared));
        core.transit.close(&mut self.share);
        core.duplicates.close(self.id);
        core.seals.close(self.id);
        for (slot, later) in (0..).zip(&self.later) {
            if let Some(Later { xid, terms: ReplyPolicy { kept: Some(entry), .. } }) = later {
                core.duplicates.orphan(Token { connection: self.id, slot, xid: *xid }, *entry);
            }
        }
    }
}

/// What a record of the connection with this share takes its memory from.
fn means<'a, P>(core: &'a mut Core<P>, share: &'a mut TransitShare, shared: &'a mut Shared) -> Means<'a> {
    let EngineState { pools, transit, now, .. } = &mut core.state;
    let Shared { quota, streams_max, .. } = shared;
    Means { pool: &pools.payload, quota, accounts: transit, share, streams_max: *streams_max, now: *now }
}
