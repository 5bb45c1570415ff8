//! Several engines as one server: connections are spread over the reactors of a group, and Calls find their homes.
//!
//! ```text
//!             reactor 0                         reactor 1
//!  clients ─▶ listens, places ── newcomers ──▶ serves
//!             serves        ◀── who ended ───
//!                   └──────── Calls, Replies, loans ────────┘   (carried/)
//! ```
//!
//! Reactor 0 has the listeners. For each connection [`ConnectionPlacement`] says which reactor serves it, and the connection
//! goes there by mailbox before it has a queue pair. With it goes the client's home, which its reactor must know.

use std::cell::RefCell;
use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use stag_fabric::{FabricError, Peer, Provider};
use stag_runtime::{
    GroupMember, HeadCounts, ReactorId, ReactorStatistics as Times, Receiver, Sender, mailbox,
};
use stag_shares::placement::{BUSY_MAX, ConnectionPlacement};

use crate::carried::exchange;
use crate::carried::exchange::carrier;
use crate::carried::{CallMesh, Homes};
use crate::engine::Engine;
use crate::newcomers::{Newcomer, ServedAt, adopt, take_released};
use crate::server::owner::{address, owner};
use crate::service::Services;
use crate::state::Core;

/// News that a reactor takes in in one pass at most.
const NEWS_BURST: usize = 64;

/// News that wait for a reactor at most, beside those of its connections.
const NEWS_SPARE: usize = 64;

/// How often it is looked how busy the reactors are.
const BUSY_INTERVAL: Duration = Duration::from_secs(1);

/// What the engines of a group share until each has joined. Made before the group runs, and shared with its threads by
/// reference.
pub struct EngineGroup<P: Provider> {
    calls: CallMesh,
    senders: Vec<Sender<News<P>>>,
    receivers: Mutex<Vec<Option<Receiver<News<P>>>>>,
    connections_max: u32,
    /// RDMA connections of each client.
    head_counts: HeadCounts,
}

/// What one engine of a group tells another.
enum News<P: Provider> {
    /// The engine of this reactor takes connections.
    Joined(ReactorId, P::Destination),
    /// A connection to serve, and the home of its client.
    Newcomer(Newcomer<P::Handover>, ReactorId),
    /// A connection of this client that this reactor served, or was to serve, is gone.
    Ended(ReactorId, Peer),
}

impl<P: Provider> EngineGroup<P> {
    /// For `count` engines, of which each serves at most `connections_max` connections, by RDMA and TCP together. `calls_max` Calls
    /// may be under way from each to each other one ([`CARRIED_CALLS_MAX`](crate::CARRIED_CALLS_MAX)).
    ///
    /// # Errors
    ///
    /// When the process has no descriptor left.
    ///
    /// # Panics
    ///
    /// If `count` is more than [`ReactorId::COUNT_MAX`].
    pub fn new(count: usize, calls_max: usize, connections_max: u32) -> io::Result<EngineGroup<P>> {
        let rooms = (0..count).map(|reactor| news_max(reactor, count, connections_max));
        let mailboxes: io::Result<Vec<_>> = rooms.map(mailbox).collect();
        let (senders, receivers) =
            mailboxes?.into_iter().map(|(sender, receiver)| (sender, Some(receiver))).unzip();
        let receivers = Mutex::new(receivers);
        let head_counts = HeadCounts::new(count * connections_max as usize);
        Ok(EngineGroup {
            calls: CallMesh::new(count, calls_max),
            senders,
            receivers,
            connections_max,
            head_counts,
        })
    }

    /// Octets of memory of what `count` engines share.
    #[must_use]
    pub fn footprint(count: usize, calls_max: usize, connections_max: u32) -> usize {
        let news: usize = (0..count).map(|reactor| news_max(reactor, count, connections_max)).sum();
        // The queue has a stamp for each place.
        CallMesh::footprint(count, calls_max)
            + news * (size_of::<News<P>>() + size_of::<usize>())
            + HeadCounts::footprint(count * connections_max as usize)
    }

    /// The mailbox of a reactor. `None`: it was taken already, or there is no such reactor.
    fn take(&self, reactor: ReactorId) -> Option<Receiver<News<P>>> {
        // A panic elsewhere cannot leave the list half changed.
        let mut receivers = self.receivers.lock().unwrap_or_else(PoisonError::into_inner);
        receivers.get_mut(reactor.index())?.take()
    }
}

/// Messages that may wait for a reactor: one for each of its connections, and for reactor 0 one for the end of each connection of
/// the group.
const fn news_max(reactor: usize, count: usize, connections_max: u32) -> usize {
    let connections = connections_max as usize;
    NEWS_SPARE + if reactor == 0 { count * connections } else { connections }
}

/// What an engine has of its group.
pub(crate) struct Membership<P: Provider> {
    own: ReactorId,
    senders: Vec<Sender<News<P>>>,
    receiver: Receiver<News<P>>,
    /// At reactor 0.
    door: Option<Door<P>>,
}

/// What the reactor that listens has.
struct Door<P: Provider> {
    placement: Rc<RefCell<TimedPlacement>>,
    /// Of each reactor, when it has joined. Empty, once all have.
    destinations: Vec<Option<P::Destination>>,
    member: Option<GroupMember>,
    /// What the reactors had done when it was last looked how busy they are.
    times: Vec<Times>,
    next_look: Duration,
}

/// Placement, and the instant of this pass.
pub(crate) struct TimedPlacement {
    pub(crate) placement: ConnectionPlacement,
    now: Duration,
}

impl<P: Provider> Membership<P> {
    /// See [`Receiver::arm`].
    pub(crate) fn arm(&mut self) -> bool {
        self.receiver.arm()
    }

    pub(crate) fn disarm(&mut self) {
        self.receiver.disarm();
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.receiver.descriptor()
    }

    /// Sends a connection to the reactor that serves it.
    fn send_newcomer(&self, number: usize, newcomer: Newcomer<P::Handover>) {
        let Some(door) = &self.door else { unreachable!("only reactor 0 places connections") };
        let peer = newcomer.peer().clone();
        let home = door.placement.borrow().placement.home(address(&peer)).unwrap_or(number);
        let (Some(reactor), Some(home)) = (ReactorId::new(number), ReactorId::new(home)) else {
            unreachable!("placement knows the reactors of the group")
        };
        if self.senders[number].send(News::Newcomer(newcomer, home)).is_err() {
            // It is stopping, or hopelessly behind: the connection has ended.
            self.note_end(reactor, peer);
        }
    }

    /// A connection that `reactor` served, or was to serve, is gone.
    fn note_end(&self, reactor: ReactorId, peer: Peer) {
        match &self.door {
            Some(door) => {
                let mut placed = door.placement.borrow_mut();
                let now = placed.now;
                placed.placement.ended(address(&peer), reactor.index(), now);
            }
            // There is room for the end of each connection. When reactor 0 is gone, no connection is placed
            // any more.
            None => _ = self.senders[0].send(News::Ended(reactor, peer)),
        }
    }
}

impl<P: Provider> Door<P> {
    /// Sees how busy the reactors were since the last look.
    fn observe_load(&mut self, now: Duration) {
        let Some(member) = self.member.as_ref().filter(|_| now >= self.next_look) else { return };
        self.next_look = now + BUSY_INTERVAL;
        let mut placed = self.placement.borrow_mut();
        for (reactor, before) in member.ids().zip(&mut self.times) {
            let Some(reader) = member.statistics(reactor) else { continue };
            let times = reader.read();
            let busy = times.busy.saturating_sub(before.busy);
            let rest = (times.idle + times.asleep).saturating_sub(before.idle + before.asleep);
            if let Some(all) = (busy + rest).as_nanos().checked_sub(1) {
                let share = busy.as_nanos() * u128::from(BUSY_MAX) / (all + 1);
                placed.placement.set_busy(reactor.index(), share as u16);
            }
            *before = times;
        }
    }
}

/// Makes an engine that of `reactor` in a group: see [`Engine::join_group`].
pub(crate) fn join<P: Provider, S: Services>(
    engine: &mut Engine<P, S>,
    group: &EngineGroup<P>,
    reactor: ReactorId,
    member: Option<GroupMember>,
) {
    let (Some(lanes), Some(receiver)) = (group.calls.take(reactor), group.take(reactor)) else {
        panic!("reactor {reactor} is not in this group, or its engine has joined already");
    };
    exchange::join(&mut engine.core, lanes, member.clone());
    let destination = engine.destination();
    let count = group.senders.len();
    let door = (reactor.index() == 0).then(|| {
        let placement = ConnectionPlacement::new(count, group.connections_max);
        let placed = TimedPlacement { placement, now: Duration::ZERO };
        let mut destinations: Vec<_> = (0..count).map(|_| None).collect();
        destinations[0] = Some(destination.clone());
        Door {
            placement: Rc::new(RefCell::new(placed)),
            destinations,
            member,
            times: vec![Times::default(); count],
            next_look: Duration::ZERO,
        }
    });
    match &door {
        Some(door) => carrier(&mut engine.core).set_homes(Homes::Placed(door.placement.clone())),
        // There is room for one of each.
        None => _ = group.senders[0].send(News::Joined(reactor, destination)),
    }
    engine.core.departures = Some(Vec::new());
    engine.core.credits.join(group.head_counts.clone());
    let senders = group.senders.clone();
    engine.membership = Some(Box::new(Membership { own: reactor, senders, receiver, door }));
}

/// Registers the memory of the group's other engines. When a connection begins, all have joined.
pub(crate) fn register_group<P: Provider>(core: &mut Core<P>) -> Result<(), FabricError> {
    let Core { provider, state } = core;
    state.carrier.as_ref().map_or(Ok(()), |carrier| carrier.arenas.register_with(provider))
}

/// Takes in the news of the other reactors, and sends them theirs. Returns how many there were.
pub(crate) fn attend<P: Provider, S: Services>(engine: &mut Engine<P, S>) -> usize {
    let Some(mut membership) = engine.membership.take() else { return 0 };
    let now = engine.core.now;
    if let Some(door) = &mut membership.door {
        door.placement.borrow_mut().now = now;
        door.observe_load(now);
    }
    let mut count = 0;
    while count < NEWS_BURST
        && let Some(news) = membership.receiver.receive()
    {
        count += 1;
        match news {
            News::Joined(reactor, destination) => {
                if let Some(door) = &mut membership.door {
                    door.destinations[reactor.index()] = Some(destination);
                }
            }
            News::Newcomer(newcomer, home) => {
                carrier(&mut engine.core).note_home(newcomer.peer(), home);
                adopt(engine, newcomer);
            }
            News::Ended(reactor, peer) => membership.note_end(reactor, peer),
        }
    }
    if let Some(door) = &mut membership.door
        && !door.destinations.is_empty()
        && door.destinations.iter().all(Option::is_some)
    {
        let destinations = std::mem::take(&mut door.destinations).into_iter().flatten().collect();
        let placed = door.placement.clone();
        engine.set_placement(destinations, move |peer| {
            let mut placed = placed.borrow_mut();
            let now = placed.now;
            // When all are full, this one makes room or refuses.
            match placed.placement.place(address(peer), owner(Some(peer)), now) {
                Some(reactor @ 1..) => ServedAt::Engine(reactor),
                Some(0) | None => ServedAt::Here,
            }
        });
    }
    while let Some((number, newcomer)) = take_released(engine) {
        count += 1;
        membership.send_newcomer(number, newcomer);
    }
    let departures = engine.core.departures.get_or_insert_default();
    for (reactor, peer) in std::mem::take(departures) {
        count += 1;
        let reactor = reactor.and_then(ReactorId::new).unwrap_or(membership.own);
        if reactor == membership.own {
            carrier(&mut engine.core).forget_home(&peer);
        }
        membership.note_end(reactor, peer);
    }
    engine.membership = Some(membership);
    count
}
