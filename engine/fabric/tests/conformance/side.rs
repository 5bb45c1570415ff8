//! One side of a fabric: a provider, its memory, and its books. Everything that a case posts goes through here, so
//! that each completion can be checked against what was posted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use stag_fabric::{
    Completed, Completion, Event, Exposed, Fence, Handle, PostError, Provider, QueuePairCapacity,
    QueuePairId, ReadPart, ReadRequest, ReceiveTargets, Refused, RemoteSegment, ScatteredReceive,
    SendRequest, WriteRequest,
};
use stag_memory::{Arena, ArenaConfig, Budget, Buf, PageChoice, Pool};

/// Bytes of a posted Receive.
pub(crate) const MESSAGE: usize = 1024;

/// The usual capacity.
pub(crate) const CAPACITY: QueuePairCapacity = QueuePairCapacity {
    receives: 8,
    sends: 8,
    exposures: 4,
    send_len_max: MESSAGE as u32,
    receive_len_max: MESSAGE as u32,
    receive_targets: 0,
};

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
pub(crate) struct Account {
    established: bool,
    pub(crate) gone: bool,
    failed: bool,
    /// Posted and not back, with whether a completion was asked for.
    posted: BTreeMap<(Kind, u64), bool>,
    /// Signaled requests of the send queue, and Receives, in posting order.
    sends: VecDeque<(Kind, u64)>,
    receives: VecDeque<u64>,
    /// Receives whose messages were taken in place change places with others.
    receives_swap: bool,
    exposed: BTreeSet<u32>,
}

/// One side: a provider, its memory and its accounts.
pub(crate) struct Side<P> {
    pub(crate) provider: Option<P>,
    now: Duration,
    /// Messages: units of [`MESSAGE`] bytes.
    pub(crate) messages: Pool,
    /// Payload: runs of pages.
    pub(crate) pages: Pool,
    scratch: VecDeque<Completion>,
    pub(crate) accounts: BTreeMap<(u32, u32), Account>,
    /// Completions that no case has looked at yet.
    pub(crate) completions: VecDeque<Completion>,
    /// Events that no case has looked at yet.
    pub(crate) events: VecDeque<Event>,
}

fn key(queue_pair: QueuePairId) -> (u32, u32) {
    (queue_pair.index, queue_pair.generation)
}

/// An arena with pools, which is registered with no provider.
pub(crate) fn memory(name: &'static str) -> (Arena, Pool, Pool) {
    let budget = Budget::new(1 << 30);
    let config = ArenaConfig {
        name,
        len: 2 << 20,
        page: PageChoice::Size(stag_memory::PageSize::Base),
        node: None,
        budget: &budget,
    };
    let arena = Arena::on_demand(&config).expect("2 MiB of base pages");
    let messages = Pool::fixed(&arena, "messages", MESSAGE, 512).expect("half a megabyte");
    let pages = Pool::runs(&arena, "pages", 4096, 256).expect("a megabyte");
    (arena, messages, pages)
}

impl<P: Provider> Side<P> {
    pub(crate) fn new(mut provider: P, name: &'static str) -> Side<P> {
        let (arena, messages, pages) = memory(name);
        provider.register(&arena).expect("an arena can be registered");
        Side {
            provider: Some(provider),
            now: Duration::ZERO,
            messages,
            pages,
            scratch: VecDeque::with_capacity(32),
            accounts: BTreeMap::new(),
            completions: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// The provider.
    pub(crate) fn provider(&mut self) -> &mut P {
        self.provider.as_mut().expect("the provider was not dropped")
    }

    /// Whether Receives that a queue pair did not use stay for others.
    pub(crate) fn shares_receives(&self) -> bool {
        self.provider.as_ref().is_some_and(|provider| provider.limits().shared_receives)
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

    pub(crate) fn account(&mut self, queue_pair: QueuePairId) -> &mut Account {
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

    /// From now on Receives need not complete in posting order.
    pub(crate) fn lets_receives_swap(&mut self, queue_pair: QueuePairId) {
        self.account(queue_pair).receives_swap = true;
    }

    /// Posts a Receive of [`MESSAGE`] bytes.
    pub(crate) fn post_receive(&mut self, queue_pair: QueuePairId, id: u64) {
        self.try_receive(queue_pair, id).expect("a Receive within capacity is posted");
    }

    /// As [`Side::post_receive`], with the refusal.
    pub(crate) fn try_receive(&mut self, queue_pair: QueuePairId, id: u64) -> Result<(), Refused<Buf>> {
        let buf = self.messages.take().expect("the pool is large enough for every case");
        self.provider().post_receive(queue_pair, id, buf)?;
        // The other side may send at once, and knows by other means than a message that it may.
        self.provider().ring_doorbells();
        self.record(queue_pair, Kind::Receive, id, true);
        Ok(())
    }

    /// Posts a Receive in a head and `targets` pages.
    pub(crate) fn post_scattered(&mut self, queue_pair: QueuePairId, id: u64, targets: usize) {
        self.try_scattered(queue_pair, id, targets).expect("within the capacity");
    }

    /// As [`Side::post_scattered`], with a head that is `head_len` octets of its buffer.
    pub(crate) fn post_behind(&mut self, queue_pair: QueuePairId, id: u64, head_len: usize, targets: usize) {
        self.try_behind(queue_pair, id, Some(head_len), targets).expect("within the capacity");
    }

    /// As [`Side::post_scattered`], with the refusal.
    pub(crate) fn try_scattered(
        &mut self,
        queue_pair: QueuePairId,
        id: u64,
        targets: usize,
    ) -> Result<(), Refused<ScatteredReceive>> {
        self.try_behind(queue_pair, id, None, targets)
    }

    fn try_behind(
        &mut self,
        queue_pair: QueuePairId,
        id: u64,
        head_len: Option<usize>,
        targets: usize,
    ) -> Result<(), Refused<ScatteredReceive>> {
        let mut head = self.messages.take().expect("the pool is large enough for every case");
        if let Some(len) = head_len {
            head.set_len(len);
        }
        let bufs = (0..targets).map(|_| self.pages.take_len(4096).expect("the pool is large enough"));
        let targets = Box::new(ReceiveTargets::new(bufs.collect()));
        self.provider().post_scattered(queue_pair, ScatteredReceive { id, head, targets })?;
        self.provider().ring_doorbells();
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

    /// Exposes memory and sends a message that names it, in one step.
    pub(crate) fn build_exposing(
        &mut self,
        queue_pair: QueuePairId,
        exposed: &mut Option<Exposed>,
        build: impl FnOnce(&mut [u8], RemoteSegment) -> Option<usize>,
    ) -> bool {
        let mut handle = 0;
        let is_sent = self.provider().build_exposing(queue_pair, exposed, |space, segment| {
            handle = segment.handle.0;
            build(space, segment)
        });
        if is_sent {
            assert!(self.account(queue_pair).exposed.insert(handle), "handle {handle:#x} is live already");
        }
        is_sent
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
    pub(crate) fn poll(&mut self, now: Duration) -> usize {
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
        if kind == Kind::Receive && account.receives_swap {
            account.receives.retain(|posted| posted != id);
        } else if kind == Kind::Receive {
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
                let shares = self.shares_receives();
                let account = self.account(*queue_pair);
                account.posted.retain(|(kind, _), _| !(shares && *kind == Kind::Receive));
                assert!(!account.gone, "disconnected once");
                account.gone = true;
                account.posted.retain(|_, signaled| *signaled);
                assert!(account.posted.is_empty(), "not given back at Disconnected: {:?}", account.posted);
                assert!(account.exposed.is_empty(), "still exposed at Disconnected: {:x?}", account.exposed);
            }
            _ => {}
        }
    }

    pub(crate) fn is_gone(&self, queue_pair: QueuePairId) -> bool {
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
