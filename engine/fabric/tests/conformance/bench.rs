//! What a case runs on: two sides of one fabric, each with its pools and with a ledger of everything that it
//! posted. The bench checks on every turn what holds for every case: completions come once, belong to something
//! that was posted, come in order, and not after `Disconnected`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Index, IndexMut};
use std::time::Duration;

use stag_fabric::{
    Completed, Completion, DisconnectReason, Event, Exposed, Fence, Handle, ListenerId, PostError, Provider,
    QueuePairCapacity, QueuePairId, ReadPart, ReadRequest, Refused, RemoteSegment, SendRequest, WorkError,
    WriteRequest,
};
use stag_memory::{Arena, ArenaConfig, Budget, Buf, PageChoice, Pool};

/// A fabric to test.
pub(crate) trait Harness {
    /// Its provider.
    type Provider: Provider;

    /// Opens one more provider.
    fn open(&mut self, label: &str) -> Self::Provider;

    /// An address where nobody listens yet.
    fn address(&mut self) -> String;

    /// The time to poll with.
    fn now(&self) -> Duration;

    /// Lets time pass, because both sides are idle. `false`: nothing will happen, however long we wait.
    fn pass_time(&mut self) -> bool;

    /// Turns with nothing to do after which nothing more is expected.
    fn idle_turns_max(&self) -> u32;

    /// Checks of its own, at the end of a case.
    fn finish(&mut self);
}

/// The connecting side.
pub(crate) const A: usize = 0;
/// The listening side.
pub(crate) const B: usize = 1;

/// Bytes of a posted Receive.
pub(crate) const MESSAGE: usize = 1024;

/// The usual capacity.
pub(crate) const CAPACITY: QueuePairCapacity = QueuePairCapacity {
    receives: 8,
    sends: 8,
    exposures: 4,
    send_len_max: MESSAGE as u32,
    receive_len_max: MESSAGE as u32,
};

/// Turns that any wait may take. A bound against hanging, not a time that a case relies on.
const TURNS_MAX: u64 = 5_000_000;

/// `len` bytes that differ from place to place and from `seed` to `seed`.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed.wrapping_mul(0x9d)) as u8).collect()
}

/// Which kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Receive,
    Send,
    Write,
    Read,
}

/// What the bench knows of a queue pair of one side.
#[derive(Default)]
struct Account {
    established: bool,
    gone: bool,
    failed: bool,
    /// Posted and not back, with whether a completion was asked for.
    posted: BTreeMap<(Kind, u64), bool>,
    /// Signaled requests of the send queue, and Receives, in posting order.
    sends: VecDeque<(Kind, u64)>,
    receives: VecDeque<u64>,
    exposed: BTreeSet<u32>,
}

/// One side: a provider, its memory and its accounts.
pub(crate) struct Side<P> {
    provider: Option<P>,
    now: Duration,
    /// Messages: units of [`MESSAGE`] bytes.
    pub(crate) messages: Pool,
    /// Payload: runs of pages.
    pub(crate) pages: Pool,
    scratch: Vec<Completion>,
    accounts: BTreeMap<(u32, u32), Account>,
    /// Completions that no case has looked at yet.
    pub(crate) completions: VecDeque<Completion>,
    /// Events that no case has looked at yet.
    pub(crate) events: VecDeque<Event>,
}

fn key(queue_pair: QueuePairId) -> (u32, u32) {
    (queue_pair.index, queue_pair.generation)
}

/// An arena with pools, which is registered with nobody.
pub(crate) fn memory(name: &'static str) -> (Arena, Pool, Pool) {
    let budget = Budget::new(1 << 30);
    let config = ArenaConfig {
        name,
        len: 2 << 20,
        page: PageChoice::Size(stag_memory::PageSize::Base),
        node: None,
        budget: &budget,
    };
    let arena = Arena::new(&config).expect("2 MiB of base pages");
    let messages = Pool::fixed(&arena, "messages", MESSAGE, 512).expect("half a megabyte");
    let pages = Pool::runs(&arena, "pages", 4096, 256).expect("a megabyte");
    (arena, messages, pages)
}

impl<P: Provider> Side<P> {
    fn new(mut provider: P, name: &'static str) -> Side<P> {
        let (arena, messages, pages) = memory(name);
        provider.register(&arena).expect("an arena can be registered");
        Side {
            provider: Some(provider),
            now: Duration::ZERO,
            messages,
            pages,
            scratch: Vec::with_capacity(32),
            accounts: BTreeMap::new(),
            completions: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// The provider.
    pub(crate) fn provider(&mut self) -> &mut P {
        self.provider.as_mut().expect("the provider was not dropped")
    }

    /// Drops the provider with everything in it, as the death of its process would.
    pub(crate) fn drop_provider(&mut self) {
        self.provider = None;
        self.accounts.clear();
        self.completions.clear();
        self.events.clear();
    }

    /// A buffer with these bytes.
    pub(crate) fn buf(&self, bytes: &[u8]) -> Buf {
        let pool = if bytes.len() <= MESSAGE { &self.messages } else { &self.pages };
        let mut buf = pool.take_len(bytes.len()).expect("the pools are large enough for every case");
        buf.copy_from_slice(bytes);
        buf
    }

    /// Opens the books of a queue pair that a case made itself.
    pub(crate) fn adopt(&mut self, queue_pair: QueuePairId) -> QueuePairId {
        self.account(queue_pair);
        queue_pair
    }

    fn account(&mut self, queue_pair: QueuePairId) -> &mut Account {
        self.accounts.entry(key(queue_pair)).or_default()
    }

    fn record(&mut self, queue_pair: QueuePairId, kind: Kind, id: u64, signaled: bool) {
        let account = self.account(queue_pair);
        let before = account.posted.insert((kind, id), signaled);
        assert!(
            before.is_none_or(|signaled| !signaled),
            "a case uses {kind:?} {id} for one request at a time"
        );
        if kind == Kind::Receive {
            account.receives.push_back(id);
        } else if signaled {
            account.sends.push_back((kind, id));
        }
    }

    /// Posts a Receive of [`MESSAGE`] bytes.
    pub(crate) fn post_receive(&mut self, queue_pair: QueuePairId, id: u64) {
        self.try_receive(queue_pair, id).expect("a Receive within capacity is posted");
    }

    /// As [`Side::post_receive`], with the refusal.
    pub(crate) fn try_receive(&mut self, queue_pair: QueuePairId, id: u64) -> Result<(), Refused<Buf>> {
        let buf = self.messages.take().expect("the pool is large enough for every case");
        self.provider().post_receive(queue_pair, id, buf)?;
        self.record(queue_pair, Kind::Receive, id, true);
        Ok(())
    }

    /// Posts a signaled Send.
    pub(crate) fn post_send(&mut self, queue_pair: QueuePairId, id: u64, message: &[u8]) {
        let buf = self.buf(message);
        let request = SendRequest { id, buf, invalidate: None, signaled: true };
        self.try_send(queue_pair, request).expect("a Send within capacity is posted");
    }

    /// Posts a Send that kills a handle of the peer.
    pub(crate) fn post_send_with_invalidate(&mut self, queue_pair: QueuePairId, id: u64, handle: Handle) {
        let buf = self.buf(b"and one handle less");
        let request = SendRequest { id, buf, invalidate: Some(handle), signaled: true };
        self.try_send(queue_pair, request).expect("a Send within capacity is posted");
    }

    /// Posts any Send.
    pub(crate) fn try_send(
        &mut self,
        queue_pair: QueuePairId,
        request: SendRequest,
    ) -> Result<(), Refused<SendRequest>> {
        let (id, signaled) = (request.id, request.signaled);
        self.provider().post_send(queue_pair, request)?;
        self.record(queue_pair, Kind::Send, id, signaled);
        Ok(())
    }

    /// Posts a signaled Write.
    pub(crate) fn post_write(
        &mut self,
        queue_pair: QueuePairId,
        id: u64,
        bytes: &[u8],
        target: RemoteSegment,
    ) {
        let source = self.buf(bytes).share();
        let request = WriteRequest { id, source, target, signaled: true };
        self.try_write(queue_pair, request).expect("a Write within capacity is posted");
    }

    /// Posts any Write.
    pub(crate) fn try_write(
        &mut self,
        queue_pair: QueuePairId,
        request: WriteRequest,
    ) -> Result<(), Refused<WriteRequest>> {
        let (id, signaled) = (request.id, request.signaled);
        self.provider().post_write(queue_pair, request)?;
        self.record(queue_pair, Kind::Write, id, signaled);
        Ok(())
    }

    /// Posts a Read of one part into a buffer of its own.
    pub(crate) fn post_read(&mut self, queue_pair: QueuePairId, id: u64, len: u32, source: RemoteSegment) {
        let target = self.buf(&vec![0xee; len as usize]);
        let part = ReadPart { at: 0, len, source };
        self.try_read(queue_pair, ReadRequest { id, target }, &[part])
            .expect("a Read within capacity is posted");
    }

    /// Posts any Read.
    pub(crate) fn try_read(
        &mut self,
        queue_pair: QueuePairId,
        request: ReadRequest,
        parts: &[ReadPart],
    ) -> Result<(), Refused<ReadRequest>> {
        let id = request.id;
        self.provider().post_read(queue_pair, request, parts)?;
        self.record(queue_pair, Kind::Read, id, true);
        Ok(())
    }

    /// Exposes a copy of `bytes` to be read.
    pub(crate) fn expose_read(&mut self, queue_pair: QueuePairId, bytes: &[u8]) -> RemoteSegment {
        let memory = self.buf(bytes).share();
        self.try_expose(queue_pair, Exposed::Read(memory)).expect("an exposure within capacity is made")
    }

    /// Exposes `len` bytes, all 0x77, to be written.
    pub(crate) fn expose_write(&mut self, queue_pair: QueuePairId, len: usize) -> RemoteSegment {
        let memory = self.buf(&vec![0x77; len]);
        self.try_expose(queue_pair, Exposed::Write(memory)).expect("an exposure within capacity is made")
    }

    /// Exposes any memory.
    pub(crate) fn try_expose(
        &mut self,
        queue_pair: QueuePairId,
        exposed: Exposed,
    ) -> Result<RemoteSegment, Refused<Exposed>> {
        let segment = self.provider().expose(queue_pair, exposed)?;
        let is_new = self.account(queue_pair).exposed.insert(segment.handle.0);
        assert!(is_new, "handle {:#x} is live already", segment.handle.0);
        Ok(segment)
    }

    /// Fences a handle.
    pub(crate) fn fence(&mut self, queue_pair: QueuePairId, handle: Handle, id: u64) -> Option<Fence> {
        let fence = self.provider().fence(queue_pair, handle, id);
        if let Some(Fence::Done(_)) = fence {
            assert!(self.account(queue_pair).exposed.remove(&handle.0), "a fence ends what was exposed");
        }
        fence
    }

    /// Polls once: completions, then events.
    fn poll(&mut self, now: Duration) -> usize {
        self.now = now;
        let Some(provider) = self.provider.as_mut() else { return 0 };
        let mut scratch = std::mem::take(&mut self.scratch);
        let count = provider.poll(now, &mut scratch, 32);
        assert_eq!(count, scratch.len(), "poll says how many it harvested");
        let mut handled = count;
        for completion in scratch.drain(..) {
            self.check(&completion);
            self.completions.push_back(completion);
        }
        self.scratch = scratch;
        while let Some(event) = self.provider().poll_event() {
            self.check_event(&event);
            self.events.push_back(event);
            handled += 1;
        }
        handled
    }

    /// Keeps the books of a completion that a case harvested itself.
    pub(crate) fn note_harvested(&mut self, completion: &Completion) {
        self.check(completion);
    }

    fn check(&mut self, completion: &Completion) {
        let Completion { queue_pair, id, completed, result } = completion;
        let account =
            self.accounts.get_mut(&key(*queue_pair)).expect("a completion is of a queue pair of ours");
        assert!(!account.gone, "no completion after Disconnected: {completion:?}");
        if result.is_ok() {
            assert!(account.established, "nothing succeeds before Established: {completion:?}");
            assert!(
                !account.failed || !matches!(completed, Completed::Send(_) | Completed::Write(_)),
                "nothing sent succeeds after a failure: {completion:?}"
            );
        }
        let kind = match completed {
            Completed::Receive { invalidated, exposed, .. } => {
                assert_eq!(invalidated.is_some(), exposed.is_some(), "a dead handle returns its memory");
                if let Some(handle) = invalidated {
                    assert!(account.exposed.remove(&handle.0), "only what is exposed is invalidated");
                }
                Kind::Receive
            }
            Completed::Send(_) => Kind::Send,
            Completed::Write(_) => Kind::Write,
            Completed::Read(_) => Kind::Read,
            Completed::Fence { handle, .. } => {
                assert!(account.exposed.remove(&handle.0), "memory comes back once: {completion:?}");
                return;
            }
        };
        let signaled = account.posted.remove(&(kind, *id));
        let signaled =
            signaled.unwrap_or_else(|| panic!("posted, and back for the first time: {completion:?}"));
        assert!(signaled || result.is_err(), "what is unsignaled completes only on errors: {completion:?}");
        if kind == Kind::Receive {
            assert_eq!(account.receives.pop_front(), Some(*id), "Receives complete in posting order");
        } else {
            account.failed |= result.is_err();
            if signaled {
                assert_eq!(account.sends.pop_front(), Some((kind, *id)), "completions come in posting order");
            }
        }
    }

    fn check_event(&mut self, event: &Event) {
        match event {
            Event::Established { queue_pair, .. } => {
                let account = self.account(*queue_pair);
                assert!(!account.established && !account.gone, "established once");
                account.established = true;
            }
            Event::Disconnected { queue_pair, .. } => {
                let account = self.account(*queue_pair);
                assert!(!account.gone, "disconnected once");
                account.gone = true;
                account.posted.retain(|_, signaled| *signaled);
                assert!(account.posted.is_empty(), "not given back at Disconnected: {:?}", account.posted);
                assert!(account.exposed.is_empty(), "still exposed at Disconnected: {:x?}", account.exposed);
            }
            _ => {}
        }
    }

    fn is_gone(&self, queue_pair: QueuePairId) -> bool {
        self.accounts.get(&key(queue_pair)).is_some_and(|account| account.gone)
    }

    /// Takes the completion that `is` picks, if it is there.
    pub(crate) fn take_completion(&mut self, is: impl Fn(&Completion) -> bool) -> Option<Completion> {
        let at = self.completions.iter().position(is)?;
        self.completions.remove(at)
    }

    /// Takes the event that `is` picks, if it is there.
    pub(crate) fn take_event(&mut self, is: impl Fn(&Event) -> bool) -> Option<Event> {
        let at = self.events.iter().position(is)?;
        self.events.remove(at)
    }
}

/// Two sides of one fabric.
pub(crate) struct Bench<H: Harness> {
    sides: [Side<H::Provider>; 2],
    /// The fabric.
    pub(crate) harness: H,
    /// Where side B listens.
    pub(crate) address: String,
    /// The listener of side B.
    pub(crate) listener: ListenerId,
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
        let listener = b.provider().listen(&address).expect("nobody listens there");
        Bench { sides: [a, b], harness, address, listener }
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

    /// As [`Bench::turn`], and nobody rings.
    pub(crate) fn turn_without_doorbells(&mut self) -> bool {
        let now = self.harness.now();
        let handled: usize = self.sides.iter_mut().map(|side| side.poll(now)).sum();
        handled > 0 || self.harness.pass_time()
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
            let now = self.harness.now();
            for side in &mut self.sides {
                if let Some(provider) = side.provider.as_mut() {
                    provider.ring_doorbells();
                }
            }
            let handled: usize = self.sides.iter_mut().map(|side| side.poll(now)).sum();
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
    pub(crate) fn request(&mut self) -> (stag_fabric::ConnectRequestId, Vec<u8>) {
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
    pub(crate) fn prepare(
        &mut self,
        request: stag_fabric::ConnectRequestId,
        capacity: QueuePairCapacity,
    ) -> QueuePairId {
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
        assert_eq!(reason, DisconnectReason::Work(error), "the reason of the side that was refused");
        let own = self[side]
            .take_completion(|c| c.queue_pair == queue_pairs[side] && c.id == id && kind_of(c) == Some(kind));
        let own = own.expect("it completed");
        assert!(own.result == Err(error) || kind == Kind::Send && own.result.is_ok(), "{own:?}");
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
        }
        for pool in &pools {
            assert_eq!(pool.outstanding(), 0, "all buffers of pool {} came back", pool.name());
        }
        self.harness.finish();
    }
}

/// The kind of a completed request; `None` for a fence.
pub(crate) fn kind_of(completion: &Completion) -> Option<Kind> {
    match completion.completed {
        Completed::Receive { .. } => Some(Kind::Receive),
        Completed::Send(_) => Some(Kind::Send),
        Completed::Write(_) => Some(Kind::Write),
        Completed::Read(_) => Some(Kind::Read),
        Completed::Fence { .. } => None,
    }
}

/// The refusal's reason, after a look at the request that came back.
pub(crate) fn refusal<T>(result: Result<(), Refused<T>>, is_untouched: impl FnOnce(&T) -> bool) -> PostError {
    let refused = result.expect_err("it is refused");
    assert!(is_untouched(&refused.request), "a refused request comes back untouched");
    refused.error
}
