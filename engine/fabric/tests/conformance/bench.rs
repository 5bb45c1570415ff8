//! What a case runs on: two sides of one fabric, and ways to wait for what they are to harvest.
//!
//! On every turn the books of each side are checked for what holds in every case: completions come once,
//! belong to something that was posted, come in order, and not after `Disconnected`.

use std::cell::Cell;
use std::ops::{Index, IndexMut};
use std::time::Duration;

use stag_fabric::{
    Completed, Completion, ConnectRequestId, DisconnectReason, Event, Exposed, ExposureKind, Fence, Handle,
    ListenerId, PostError, Provider, QueuePairCapacity, QueuePairId, RemoteSegment, SendRequest, WorkError,
};
use stag_memory::{Buf, Pool};

pub(crate) use crate::side::*;

/// A fabric to test.
pub(crate) trait Harness {
    /// Its provider.
    type Provider: Provider;

    /// Opens one more provider.
    fn open(&mut self, label: &str) -> Self::Provider;

    /// An address where no provider listens yet.
    fn address(&mut self) -> String;

    /// The time to poll with.
    fn now(&self) -> Duration;

    /// Lets time pass, because both sides are idle. `false`: nothing will happen, however long we wait.
    fn pass_time(&mut self) -> bool;

    /// Turns with nothing to do after which nothing more is expected.
    fn idle_turns_max(&self) -> u32;

    /// Whether a Write completes when its source may be reused, before the peer has looked at it.
    fn completes_early(&self) -> bool {
        false
    }

    /// Whether the side whose request is refused by the peer learns that, and not only that the connection
    /// ended.
    fn tells_refusals(&self) -> bool {
        true
    }

    /// Whether private data may arrive with zeros behind it, as over InfiniBand.
    fn pads_private_data(&self) -> bool {
        false
    }

    /// Whether a window may be invalidated that is not bound any more.
    fn survives_late_invalidations(&self) -> bool {
        true
    }

    /// Whether an exposure ends where it was said to end.
    fn guards_bounds(&self) -> bool {
        true
    }

    /// Whether memory that is exposed to be written cannot be read by the peer.
    fn guards_against_reads(&self) -> bool {
        true
    }

    /// Whether the case also runs on other kinds of this fabric, which may be able to do what this one is not.
    fn is_one_of_several(&self) -> bool {
        false
    }

    /// Checks of its own, at the end of a case.
    fn finish(&mut self);
}

/// The connecting side.
pub(crate) const A: usize = 0;
/// The listening side.
pub(crate) const B: usize = 1;

/// Turns that any wait may take. A bound against hanging, not a time that a case relies on.
const TURNS_MAX: u64 = 5_000_000;

/// A request on its way from one provider to another.
pub(crate) type Handover<H> = <<H as Harness>::Provider as Provider>::Handover;

/// Two sides of one fabric.
pub(crate) struct Bench<H: Harness> {
    sides: [Side<H::Provider>; 2],
    /// The fabric.
    pub(crate) harness: H,
    /// Where side B listens.
    pub(crate) address: String,
    /// The listener of side B.
    pub(crate) listener: ListenerId,
    /// Takes the requests of A, and hands them over to B.
    doorkeeper: Option<Side<H::Provider>>,
    /// Whether it does so by itself.
    pub(crate) hands_over: bool,
    /// Why this kind of the fabric left a part of the case out.
    pub(crate) left_out: Cell<Option<&'static str>>,
}

impl<H: Harness> Index<usize> for Bench<H> {
    type Output = Side<H::Provider>;

    fn index(&self, side: usize) -> &Side<H::Provider> {
        &self.sides[side]
    }
}

impl<H: Harness> IndexMut<usize> for Bench<H> {
    fn index_mut(&mut self, side: usize) -> &mut Side<H::Provider> {
        &mut self.sides[side]
    }
}

impl<H: Harness> Bench<H> {
    /// Opens both sides; B listens.
    pub(crate) fn new(mut harness: H) -> Bench<H> {
        let a = Side::new(harness.open("a"), "a");
        let mut b = Side::new(harness.open("b"), "b");
        let address = harness.address();
        let listener = b.provider().listen(&address).expect("the address is free");
        Bench {
            sides: [a, b],
            harness,
            address,
            listener,
            doorkeeper: None,
            hands_over: true,
            left_out: Cell::new(None),
        }
    }

    /// From now on somebody else listens, and hands each request over to B.
    pub(crate) fn keep_the_door(&mut self) {
        let mut doorkeeper = Side::new(self.harness.open("doorkeeper"), "doorkeeper");
        self.address = self.harness.address();
        self.listener = doorkeeper.provider().listen(&self.address).expect("the address is free");
        self.doorkeeper = Some(doorkeeper);
    }

    /// Waits for a request at the door.
    pub(crate) fn request_at_the_door(&mut self) -> ConnectRequestId {
        let is = |event: &Event| matches!(event, Event::ConnectRequest { .. });
        let event = self.until("a request comes to the door", |bench| bench.door().take_event(is));
        let Event::ConnectRequest { request, .. } = event else { unreachable!() };
        request
    }

    /// The provider that listens in B's place.
    pub(crate) fn door(&mut self) -> &mut Side<H::Provider> {
        self.doorkeeper.as_mut().expect("the door is kept")
    }

    /// Lets a request at the door go, to B.
    pub(crate) fn release(&mut self, request: ConnectRequestId) -> Option<Handover<H>> {
        let to = self[B].provider().destination();
        self.door().provider().release(request, &to)
    }

    /// Hands over what came to the door, as far as it is still there.
    fn hand_over(&mut self) {
        let is = |event: &Event| matches!(event, Event::ConnectRequest { .. });
        while self.hands_over
            && let Some(Event::ConnectRequest { listener, request, peer, private_data }) =
                self.doorkeeper.as_mut().and_then(|door| door.take_event(is))
        {
            if let Some(handover) = self.release(request)
                && let Ok(request) = self[B].provider().adopt(handover)
            {
                self[B].events.push_back(Event::ConnectRequest { listener, request, peer, private_data });
            }
        }
    }

    /// Passes on `able`: whether the fabric can do what the rest of the case shows. If not, says that the case was skipped;
    /// if it also runs on other kinds of the fabric, keeps the reason in [`left_out`](Bench::left_out) instead.
    pub(crate) fn can(&self, able: bool, why_not: &'static str) -> bool {
        if able {
            return true;
        }
        if self.harness.is_one_of_several() {
            self.left_out.set(Some(why_not));
        } else {
            stag_testing::skipped(why_not);
        }
        false
    }

    /// A posted Receive comes back without a message, if it does not stay for other queue pairs.
    pub(crate) fn flushed_receive(&mut self, side: usize, queue_pair: QueuePairId, id: u64) {
        if !self[side].shares_receives() {
            let completion = self.completion(side, queue_pair, Kind::Receive, id);
            assert_eq!(completion.result, Err(WorkError::Flushed));
        }
    }

    /// Whether a peer is kept to the handle that it was given, and to the time for which it was.
    pub(crate) fn guards(&mut self) -> bool {
        let exposure = self[B].provider().limits().exposure;
        self.can(exposure != ExposureKind::Standing, "standing exposures guard nothing")
    }

    /// One pass of both sides, doorbells included, as reactors do it; time passes when both are idle.
    /// `false`: nothing will happen any more.
    pub(crate) fn turn(&mut self) -> bool {
        for side in &mut self.sides {
            if let Some(provider) = side.provider.as_mut() {
                provider.ring_doorbells();
            }
        }
        self.turn_without_doorbells()
    }

    /// As [`Bench::turn`], without ringing doorbells.
    pub(crate) fn turn_without_doorbells(&mut self) -> bool {
        self.poll() > 0 || self.harness.pass_time()
    }

    /// Everybody looks what there is.
    fn poll(&mut self) -> usize {
        let now = self.harness.now();
        let handled = self.sides.iter_mut().chain(&mut self.doorkeeper).map(|side| side.poll(now)).sum();
        self.hand_over();
        handled
    }

    /// Takes turns until `done` gives something.
    pub(crate) fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Bench<H>) -> Option<T>) -> T {
        for _ in 0..TURNS_MAX {
            if let Some(value) = done(self) {
                return value;
            }
            if !self.turn() {
                break;
            }
        }
        match done(self) {
            Some(value) => value,
            None => panic!(
                "never happened: {what}; A has {:?} {:?}, B has {:?} {:?}",
                self.sides[A].completions,
                self.sides[A].events,
                self.sides[B].completions,
                self.sides[B].events
            ),
        }
    }

    /// Takes turns until nothing happens any more.
    pub(crate) fn settle(&mut self) {
        let mut idle = 0;
        while idle < self.harness.idle_turns_max() {
            for side in &mut self.sides {
                if let Some(provider) = side.provider.as_mut() {
                    provider.ring_doorbells();
                }
            }
            let handled = self.poll();
            idle = if handled > 0 { 0 } else { idle + 1 };
            if handled == 0 && !self.harness.pass_time() {
                return;
            }
        }
    }

    /// Posts a Send as soon as it is taken: unsignaled ones before it may still hold their place.
    pub(crate) fn send_when_there_is_room(
        &mut self,
        side: usize,
        queue_pair: QueuePairId,
        request: SendRequest,
    ) {
        let mut request = Some(request);
        self.until("a Send finds room", |bench| {
            let refused = bench[side].try_send(queue_pair, request.take()?).err();
            request = refused.map(|refused| {
                assert_eq!(refused.error, PostError::Full);
                refused.request
            });
            request.is_none().then_some(())
        });
    }

    /// Whether this private data arrived as it was sent.
    pub(crate) fn assert_private_data(&self, arrived: &[u8], sent: &[u8]) {
        if self.harness.pads_private_data() {
            let padding = arrived.strip_prefix(sent).unwrap_or_else(|| panic!("{arrived:?} is not {sent:?}"));
            assert!(padding.iter().all(|&octet| octet == 0), "{arrived:?} is {sent:?} and zeros");
        } else {
            assert_eq!(arrived, sent);
        }
    }

    /// Waits for a side's completion of a request.
    pub(crate) fn completion(
        &mut self,
        side: usize,
        queue_pair: QueuePairId,
        kind: Kind,
        id: u64,
    ) -> Completion {
        let is = |c: &Completion| c.queue_pair == queue_pair && c.id == id && kind_of(c) == Some(kind);
        self.until(&format!("{kind:?} {id} completes"), |bench| bench[side].take_completion(is))
    }

    /// Waits for a message, which arrives well, and returns it.
    pub(crate) fn message(&mut self, side: usize, queue_pair: QueuePairId, id: u64) -> Buf {
        let completion = self.completion(side, queue_pair, Kind::Receive, id);
        assert_eq!(completion.result, Ok(()), "Receive {id}");
        match completion.completed {
            Completed::Receive { buf, .. } => buf,
            other => panic!("a Receive completes as a Receive, not as {other:?}"),
        }
    }

    /// Waits for a Read, which succeeds, and returns what was read.
    pub(crate) fn read(&mut self, side: usize, queue_pair: QueuePairId, id: u64) -> Buf {
        let completion = self.completion(side, queue_pair, Kind::Read, id);
        assert_eq!(completion.result, Ok(()), "Read {id}");
        match completion.completed {
            Completed::Read(buf) => buf,
            other => panic!("a Read completes as a Read, not as {other:?}"),
        }
    }

    /// Fences a handle, and waits for its memory.
    pub(crate) fn fenced(
        &mut self,
        side: usize,
        queue_pair: QueuePairId,
        handle: Handle,
        id: u64,
    ) -> Exposed {
        match self[side].fence(queue_pair, handle, id).expect("the handle is exposed") {
            Fence::Done(exposed) => exposed,
            Fence::Pending => {
                let is = |c: &Completion| match c.completed {
                    Completed::Fence { handle: dead, .. } => c.queue_pair == queue_pair && dead == handle,
                    _ => false,
                };
                let completion = self.until("the fence completes", |bench| bench[side].take_completion(is));
                assert_eq!((completion.id, completion.result), (id, Ok(())), "a fence keeps its id");
                match completion.completed {
                    Completed::Fence { exposed, .. } => exposed,
                    other => panic!("a fence completes as a fence, not as {other:?}"),
                }
            }
        }
    }

    /// Exposes a copy of `bytes` to be read, and tells the peer of it: only a message that was posted after the
    /// exposure makes its handle good at the peer.
    pub(crate) fn offer_read(
        &mut self,
        side: usize,
        queue_pairs: [QueuePairId; 2],
        bytes: &[u8],
    ) -> RemoteSegment {
        let segment = self[side].expose_read(queue_pairs[side], bytes);
        self.tell(side, queue_pairs);
        segment
    }

    /// As [`Bench::offer_read`], of memory to be written.
    pub(crate) fn offer_write(
        &mut self,
        side: usize,
        queue_pairs: [QueuePairId; 2],
        len: usize,
    ) -> RemoteSegment {
        let segment = self[side].expose_write(queue_pairs[side], len);
        self.tell(side, queue_pairs);
        segment
    }

    /// Passes a message from `side` to the other, which has no Receive posted.
    pub(crate) fn tell(&mut self, side: usize, queue_pairs: [QueuePairId; 2]) {
        let (from, to) = (queue_pairs[side], queue_pairs[1 - side]);
        self[1 - side].post_receive(to, u64::MAX);
        self[side].post_send(from, u64::MAX, b"something is exposed");
        self.message(1 - side, to, u64::MAX);
        assert_eq!(self.completion(side, from, Kind::Send, u64::MAX).result, Ok(()));
    }

    /// As [`Bench::fenced`], for memory that was exposed to be written.
    pub(crate) fn fenced_buf(
        &mut self,
        side: usize,
        queue_pair: QueuePairId,
        handle: Handle,
        id: u64,
    ) -> Buf {
        match self.fenced(side, queue_pair, handle, id) {
            Exposed::Write(buf) => buf,
            Exposed::Read(_) => panic!("exposed to be written, and back as something to be read"),
        }
    }

    /// A connection with the usual capacity: A's queue pair, then B's.
    pub(crate) fn connect(&mut self) -> [QueuePairId; 2] {
        self.connect_with(CAPACITY, CAPACITY)
    }

    /// A connection.
    pub(crate) fn connect_with(&mut self, a: QueuePairCapacity, b: QueuePairCapacity) -> [QueuePairId; 2] {
        let qa = self.dial(b"", a);
        let request = self.request().0;
        let qb = self.prepare(request, b);
        self[B].provider().accept(qb, b"").expect("a prepared connection is accepted");
        self.established(A, qa);
        self.established(B, qb);
        [qa, qb]
    }

    /// Starts to connect, from A to B.
    pub(crate) fn dial(&mut self, private_data: &[u8], capacity: QueuePairCapacity) -> QueuePairId {
        let address = self.address.clone();
        let qa = self[A].provider().connect(&address, private_data, capacity).expect("connecting starts");
        self[A].account(qa);
        qa
    }

    /// Waits for the request to connect, with its private data.
    pub(crate) fn request(&mut self) -> (ConnectRequestId, Vec<u8>) {
        let listener = self.listener;
        self.until("a request to connect comes in", |bench| {
            match bench[B].take_event(|event| matches!(event, Event::ConnectRequest { .. }))? {
                Event::ConnectRequest { request, private_data, listener: at, .. } => {
                    assert_eq!(at, listener, "it comes in at the listener that was dialed");
                    Some((request, private_data))
                }
                _ => None,
            }
        })
    }

    /// Makes B's queue pair.
    pub(crate) fn prepare(&mut self, request: ConnectRequestId, capacity: QueuePairCapacity) -> QueuePairId {
        let qb = self[B].provider().prepare(request, capacity).expect("the request can be answered");
        self[B].account(qb);
        qb
    }

    /// Waits for a queue pair to be established, and returns the private data that came with it.
    pub(crate) fn established(&mut self, side: usize, queue_pair: QueuePairId) -> Vec<u8> {
        let is = |e: &Event| matches!(e, Event::Established { queue_pair: q, .. } if *q == queue_pair);
        self.until("the queue pair is established", |bench| match bench[side].take_event(is)? {
            Event::Established { private_data, .. } => Some(private_data),
            _ => None,
        })
    }

    /// Waits for the end of a queue pair. All its completions are there by then.
    pub(crate) fn end(&mut self, side: usize, queue_pair: QueuePairId) -> DisconnectReason {
        let is = |e: &Event| matches!(e, Event::Disconnected { queue_pair: q, .. } if *q == queue_pair);
        self.until("the queue pair is disconnected", |bench| match bench[side].take_event(is)? {
            Event::Disconnected { reason, .. } => Some(reason),
            _ => None,
        })
    }

    /// Waits for the end of a connection because the request `kind` `id` of `side` was refused by the peer with
    /// `error`. A provider whose requests complete before the peer looks at them tells only the reason.
    pub(crate) fn refused(
        &mut self,
        side: usize,
        queue_pairs: [QueuePairId; 2],
        kind: Kind,
        id: u64,
        error: WorkError,
    ) {
        let reason = self.end(side, queue_pairs[side]);
        let tells = self.harness.tells_refusals();
        if tells {
            assert_eq!(reason, DisconnectReason::Work(error), "the reason of the side that was refused");
        } else {
            assert_ne!(reason, DisconnectReason::Local, "no side asked for the end");
        }
        let own = self[side]
            .take_completion(|c| c.queue_pair == queue_pairs[side] && c.id == id && kind_of(c) == Some(kind));
        let own = own.expect("it completed");
        let early = kind == Kind::Send || kind == Kind::Write && self.harness.completes_early();
        let error = if tells { error } else { WorkError::Flushed };
        let held = match &own.completed {
            Completed::Read(buf) => format!(", which holds {:02x?}", &buf[..buf.len().min(8)]),
            _ => String::new(),
        };
        assert!(own.result == Err(error) || early && own.result.is_ok(), "{own:?}{held}");
        let other = self.end(1 - side, queue_pairs[1 - side]);
        assert_ne!(other, DisconnectReason::Local, "the other side did not ask for the end");
    }

    /// Ends the connection in order, whichever side is still there.
    pub(crate) fn close(&mut self, queue_pairs: [QueuePairId; 2]) {
        for (side, queue_pair) in queue_pairs.into_iter().enumerate() {
            self[side].provider().disconnect(queue_pair);
        }
        for (side, queue_pair) in queue_pairs.into_iter().enumerate() {
            self.until("the queue pair is gone", |bench| bench[side].is_gone(queue_pair).then_some(()));
        }
    }

    /// The end of a case: disconnects all that is left, and checks that all memory is back.
    pub(crate) fn finish(mut self) {
        for side in [A, B] {
            if self[side].provider.is_none() {
                continue;
            }
            let open: Vec<(u32, u32)> = self[side]
                .accounts
                .iter()
                .filter(|(_, account)| !account.gone)
                .map(|(key, _)| *key)
                .collect();
            for (index, generation) in open {
                let queue_pair = QueuePairId { index, generation };
                self[side].provider().disconnect(queue_pair);
            }
        }
        for side in [A, B] {
            self.until("all queue pairs are gone", |bench| {
                let side = &bench[side];
                (side.provider.is_none() || side.accounts.values().all(|account| account.gone)).then_some(())
            });
        }
        let pools: Vec<Pool> =
            self.sides.iter().flat_map(|side| [side.messages.clone(), side.pages.clone()]).collect();
        for side in &mut self.sides {
            side.completions.clear();
            if side.shares_receives() {
                side.drop_provider();
            }
        }
        for pool in &pools {
            assert_eq!(pool.outstanding(), 0, "all buffers of pool {} came back", pool.name());
        }
        self.harness.finish();
    }
}
