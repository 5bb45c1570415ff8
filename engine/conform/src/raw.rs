//! One end of a connection below every protocol: sends the octets it is given, and shows those that arrive.
//!
//! No engine is involved, so both roles can send what no correct peer sends.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use stag_fabric::{
    Completed, Completion, ConnectRequestId, DisconnectReason, Event, Exposed, Fence, Handle, ListenerId,
    Provider, QueuePairCapacity, QueuePairId, ReadPart, ReadRequest, RemoteSegment, SendRequest,
    WriteRequest,
};
use stag_memory::{Arena, ArenaConfig, Budget, Buf, PageChoice, Pool};
use stag_runtime::{Clock, Poller, sleep};
use stag_wire::rpcrdma::Segment;

/// Octets of each posted Receive: more than is ever agreed on, so that a message beyond a threshold is seen.
pub const RECEIVE_LEN: usize = 16 << 10;

/// Receives that stay posted.
const RECEIVES: u32 = 64;

/// Sends, Writes, Reads and fences at once.
const SENDS: u32 = 128;

/// Memory regions that can be exposed at once.
const EXPOSURES: u32 = 64;

/// Buffers for messages: the Receives, the Sends, and some over.
const MESSAGES: usize = (RECEIVES + SENDS) as usize + 16;

/// Octets of memory to expose.
const PAYLOAD_LEN: usize = 4 << 20;

/// Octets of a unit of that memory.
const PAGE_LEN: usize = 4096;

/// Value of every octet of exposed memory that was not written.
pub const UNWRITTEN: u8 = 0xe5;

/// How long the end of a connection may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to poll before each sleep.
const SPIN: Duration = Duration::from_micros(50);

/// What a connection did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// A message arrived.
    Message {
        /// All of it.
        octets: Vec<u8>,
        /// The handle of ours that it invalidated.
        invalidated: Option<u32>,
    },
    /// The connection ended, and why.
    Ended(DisconnectReason),
    /// The time is over.
    Nothing,
}

/// A [`RawEnd`] over whichever fabric.
///
/// Has one connection at a time. A call that waits says how long.
pub trait RawPeer {
    /// Connects to `address`, in place of the connection that may be there, and returns the peer's private data.
    fn connect(&mut self, address: &str, private_data: &[u8], wait: Duration) -> Result<Vec<u8>, String>;

    /// Listens at `address`, and returns the address of a network that it got.
    fn listen(&mut self, address: &str) -> Result<Option<SocketAddr>, String>;

    /// Waits for somebody to connect, and returns the private data of the request. [`RawPeer::accept`] follows.
    fn next_request(&mut self, wait: Duration) -> Option<Vec<u8>>;

    /// Accepts the last request, with this private data.
    fn accept(&mut self, private_data: &[u8], wait: Duration) -> Result<(), String>;

    /// Sends a message, and invalidates a handle of the peer with it if one is named.
    fn send(&mut self, octets: &[u8], invalidate: Option<u32>) -> Result<(), String>;

    /// The next message, or the end of the connection.
    fn next(&mut self, wait: Duration) -> PeerEvent;

    /// Exposes memory that holds `octets`, for the peer to read.
    fn offer_source(&mut self, octets: &[u8]) -> Segment;

    /// Exposes `len` octets, each [`UNWRITTEN`], for the peer to write.
    fn offer_target(&mut self, len: usize) -> Segment;

    /// Ends an exposure, and returns what the memory holds. `None`: this handle is not exposed.
    fn take_back(&mut self, handle: u32) -> Option<Vec<u8>>;

    /// Reads the peer's memory.
    fn read(&mut self, from: Segment, wait: Duration) -> Result<Vec<u8>, String>;

    /// Writes the peer's memory, and returns when the Write is done at this side.
    fn write(&mut self, to: Segment, octets: &[u8], wait: Duration) -> Result<(), String>;

    /// Ends the connection.
    fn disconnect(&mut self);
}

/// A [`RawPeer`] over one fabric's provider.
pub struct RawEnd<P: Provider> {
    provider: P,
    clock: Clock,
    messages: Pool,
    payload: Pool,
    completions: VecDeque<Completion>,
    queue_pair: Option<QueuePairId>,
    request: Option<(ConnectRequestId, Vec<u8>)>,
    established: Option<Vec<u8>>,
    received: VecDeque<(Vec<u8>, Option<u32>)>,
    ended: Option<DisconnectReason>,
    /// Contents of memory whose exposure is over, by handle.
    returned: HashMap<u32, Vec<u8>>,
    /// Ends of Reads and Writes, by id.
    done: HashMap<u64, Result<Vec<u8>, String>>,
    next_id: u64,
}

/// The capacity of each connection.
const CAPACITY: QueuePairCapacity = QueuePairCapacity {
    receives: RECEIVES,
    sends: SENDS,
    exposures: EXPOSURES,
    send_len_max: RECEIVE_LEN as u32,
    receive_len_max: RECEIVE_LEN as u32,
    receive_targets: 0,
};

impl<P: Provider> RawEnd<P> {
    /// Makes it over an opened provider, with its memory on `page`s.
    ///
    /// # Errors
    ///
    /// There is no memory, or the provider refuses it.
    pub fn new(mut provider: P, page: PageChoice) -> Result<RawEnd<P>, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let len = Pool::footprint(RECEIVE_LEN, MESSAGES) + PAYLOAD_LEN;
        let budget = Budget::new(2 * len as u64 + (4 << 20));
        let config = ArenaConfig { name: "conform", len, page, node: None, budget: &budget };
        let arena = Arena::new(&config).map_err(|error| text(&error))?;
        let messages =
            Pool::fixed(&arena, "messages", RECEIVE_LEN, MESSAGES).map_err(|error| text(&error))?;
        let payload =
            Pool::runs(&arena, "payload", PAGE_LEN, PAYLOAD_LEN / PAGE_LEN).map_err(|error| text(&error))?;
        provider.register(&arena).map_err(|error| text(&error))?;
        Ok(RawEnd {
            provider,
            clock: Clock::start_system(),
            messages,
            payload,
            completions: VecDeque::with_capacity(1024),
            queue_pair: None,
            request: None,
            established: None,
            received: VecDeque::new(),
            ended: None,
            returned: HashMap::new(),
            done: HashMap::new(),
            next_id: 1,
        })
    }

    /// Lets the provider work once. Returns how much happened.
    fn pump(&mut self) -> usize {
        self.provider.ring_doorbells();
        let now = self.clock.now();
        let mut count = self.provider.poll(now, &mut self.completions, 256);
        while let Some(event) = self.provider.poll_event() {
            count += 1;
            self.note(event);
        }
        while let Some(completion) = self.completions.pop_front() {
            self.complete(completion);
        }
        self.provider.ring_doorbells();
        count
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::ConnectRequest { request, private_data, .. } => {
                // One at a time: other clients are refused meanwhile, with that reason.
                match self.request {
                    None => self.request = Some((request, private_data)),
                    Some(_) => {
                        self.provider.reject(request, "a conformance run has one connection at a time")
                    }
                }
            }
            Event::Established { queue_pair, private_data, .. } if self.queue_pair == Some(queue_pair) => {
                self.established = Some(private_data);
            }
            Event::Disconnected { queue_pair, reason } if self.queue_pair == Some(queue_pair) => {
                self.ended = Some(reason);
            }
            _ => {}
        }
    }

    fn complete(&mut self, completion: Completion) {
        let Completion { queue_pair, id, completed, result } = completion;
        // What an earlier connection left over goes back to its pool.
        if self.queue_pair != Some(queue_pair) {
            return;
        }
        match completed {
            Completed::Receive { buf, invalidated, exposed } => {
                if let (Some(handle), Some(exposed)) = (invalidated, exposed) {
                    self.returned.insert(handle.0, contents(&exposed));
                }
                if result.is_ok() {
                    self.received.push_back((buf.to_vec(), invalidated.map(|handle| handle.0)));
                    drop(buf);
                    self.post_receive(queue_pair);
                }
            }
            Completed::Send(_) => {}
            Completed::Read(buf) => {
                self.done.insert(id, result.map(|()| buf.to_vec()).map_err(|error| error.to_string()));
            }
            Completed::Write(_) => {
                self.done.insert(id, result.map(|()| Vec::new()).map_err(|error| error.to_string()));
            }
            Completed::Fence { handle, exposed } => {
                self.returned.insert(handle.0, contents(&exposed));
            }
        }
    }

    fn post_receive(&mut self, queue_pair: QueuePairId) {
        if let Some(buf) = self.messages.take() {
            // Refused once the connection is ending: then nothing more arrives.
            let _ = self.provider.post_receive(queue_pair, 0, buf);
        }
    }

    /// Polls until `poll` has something or the time is over.
    fn wait<T>(&mut self, wait: Duration, mut poll: impl FnMut(&mut Self) -> Option<T>) -> Option<T> {
        let begun = self.clock.now();
        let mut active = begun;
        loop {
            let count = self.pump();
            if let Some(found) = poll(self) {
                return Some(found);
            }
            let now = self.clock.now();
            if count > 0 {
                active = now;
            }
            if now.saturating_sub(begun) >= wait {
                return None;
            }
            if now.saturating_sub(active) < SPIN {
                std::hint::spin_loop();
                continue;
            }
            let latest = begun.saturating_add(wait);
            sleep(&mut [self], now, latest);
        }
    }

    /// Forgets the connection that was.
    fn begin(&mut self, queue_pair: QueuePairId) {
        self.queue_pair = Some(queue_pair);
        self.established = None;
        self.received.clear();
        self.ended = None;
        self.returned.clear();
        self.done.clear();
        for _ in 0..RECEIVES {
            self.post_receive(queue_pair);
        }
    }

    fn established(&mut self, wait: Duration) -> Result<Vec<u8>, String> {
        let found = self.wait(wait, |end| match end.established.take() {
            Some(private_data) => Some(Ok(private_data)),
            None => end.ended.take().map(Err),
        });
        match found {
            Some(Ok(private_data)) => Ok(private_data),
            Some(Err(reason)) => {
                self.queue_pair = None;
                Err(reason.describe("the peer"))
            }
            None => {
                self.disconnect();
                Err(format!("no connection within {} s", wait.as_secs()))
            }
        }
    }

    fn expose(&mut self, exposed: Exposed, len: usize) -> Segment {
        let length = u32::try_from(len).unwrap_or(u32::MAX);
        let Some(queue_pair) = self.queue_pair else { return Segment::default() };
        match self.provider.expose(queue_pair, exposed) {
            Ok(RemoteSegment { handle, offset }) => Segment { handle: handle.0, length, offset },
            // The connection is ending, which the next Send finds as well.
            Err(_) => Segment { handle: 0, length, offset: 0 },
        }
    }

    fn buffer(&self, len: usize) -> Buf {
        // All checks together expose less than the pool has, and the end of a connection gives everything back.
        self.payload.take_len(len).unwrap_or_else(|| panic!("{len} octets of payload memory are free"))
    }

    fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn finish(&mut self, id: u64, wait: Duration) -> Result<Vec<u8>, String> {
        let done = self.wait(wait, |end| {
            end.done.remove(&id).or_else(|| {
                end.ended
                    .as_ref()
                    .map(|reason| Err(format!("the connection ended: {}", reason.describe("the peer"))))
            })
        });
        done.unwrap_or_else(|| Err(format!("not done within {} s", wait.as_secs())))
    }
}

/// What exposed memory holds.
fn contents(exposed: &Exposed) -> Vec<u8> {
    match exposed {
        Exposed::Read(shared) => shared.to_vec(),
        Exposed::Write(buf) => buf.to_vec(),
    }
}

fn remote(segment: Segment) -> RemoteSegment {
    RemoteSegment { handle: Handle(segment.handle), offset: segment.offset }
}

impl<P: Provider> RawPeer for RawEnd<P> {
    fn connect(&mut self, address: &str, private_data: &[u8], wait: Duration) -> Result<Vec<u8>, String> {
        self.disconnect();
        let queue_pair =
            self.provider.connect(address, private_data, CAPACITY).map_err(|error| error.to_string())?;
        self.begin(queue_pair);
        self.established(wait)
    }

    fn listen(&mut self, address: &str) -> Result<Option<SocketAddr>, String> {
        let listener: ListenerId = self.provider.listen(address).map_err(|error| error.to_string())?;
        Ok(self.provider.listener_address(listener))
    }

    fn next_request(&mut self, wait: Duration) -> Option<Vec<u8>> {
        self.wait(wait, |end| end.request.as_ref().map(|(_, private_data)| private_data.clone()))
    }

    fn accept(&mut self, private_data: &[u8], wait: Duration) -> Result<(), String> {
        self.disconnect();
        let Some((request, _)) = self.request.take() else {
            return Err("no client has asked for a connection".to_owned());
        };
        let queue_pair = self.provider.prepare(request, CAPACITY).map_err(|error| error.to_string())?;
        self.begin(queue_pair);
        self.provider.accept(queue_pair, private_data).map_err(|error| error.to_string())?;
        self.established(wait).map(drop)
    }

    fn send(&mut self, octets: &[u8], invalidate: Option<u32>) -> Result<(), String> {
        self.pump();
        let ended = "the connection has ended";
        let queue_pair = self.queue_pair.filter(|_| self.ended.is_none()).ok_or(ended)?;
        let mut buf = self.messages.take().ok_or("no message buffer is free")?;
        if octets.len() > buf.capacity() {
            return Err(format!("{} octets do not fit into a message of {}", octets.len(), buf.capacity()));
        }
        buf.set_len(octets.len());
        buf.copy_from_slice(octets);
        let id = self.next_id();
        let request = SendRequest { id, buf, invalidate: invalidate.map(Handle), signaled: true };
        self.provider.post_send(queue_pair, request).map_err(|refused| refused.error.to_string())?;
        self.pump();
        Ok(())
    }

    fn next(&mut self, wait: Duration) -> PeerEvent {
        let found = self.wait(wait, |end| match end.received.pop_front() {
            Some((octets, invalidated)) => Some(PeerEvent::Message { octets, invalidated }),
            None => end.ended.clone().map(PeerEvent::Ended),
        });
        found.unwrap_or(PeerEvent::Nothing)
    }

    fn offer_source(&mut self, octets: &[u8]) -> Segment {
        let mut buf = self.buffer(octets.len());
        buf.copy_from_slice(octets);
        self.expose(Exposed::Read(buf.share()), octets.len())
    }

    fn offer_target(&mut self, len: usize) -> Segment {
        let mut buf = self.buffer(len);
        buf.fill(UNWRITTEN);
        self.expose(Exposed::Write(buf), len)
    }

    fn take_back(&mut self, handle: u32) -> Option<Vec<u8>> {
        if let Some(found) = self.returned.remove(&handle) {
            return Some(found);
        }
        let id = self.next_id();
        match self.provider.fence(self.queue_pair?, Handle(handle), id)? {
            Fence::Done(exposed) => Some(contents(&exposed)),
            Fence::Pending => self.wait(CLOSE_TIMEOUT, |end| end.returned.remove(&handle)),
        }
    }

    fn read(&mut self, from: Segment, wait: Duration) -> Result<Vec<u8>, String> {
        let queue_pair = self.queue_pair.ok_or("there is no connection")?;
        let target =
            self.payload.take_len(from.length as usize).ok_or("the segment is too long to be read")?;
        let id = self.next_id();
        let part = ReadPart { at: 0, len: from.length, source: remote(from) };
        self.provider
            .post_read(queue_pair, ReadRequest { id, target }, &[part])
            .map_err(|refused| refused.error.to_string())?;
        self.finish(id, wait)
    }

    fn write(&mut self, to: Segment, octets: &[u8], wait: Duration) -> Result<(), String> {
        let queue_pair = self.queue_pair.ok_or("there is no connection")?;
        let mut buf = self.payload.take_len(octets.len()).ok_or("too many octets to be written")?;
        buf.copy_from_slice(octets);
        let id = self.next_id();
        let request = WriteRequest { id, source: buf.share(), target: remote(to), signaled: true };
        self.provider.post_write(queue_pair, request).map_err(|refused| refused.error.to_string())?;
        self.finish(id, wait).map(drop)
    }

    fn disconnect(&mut self) {
        let Some(queue_pair) = self.queue_pair else { return };
        if self.ended.is_none() {
            self.provider.disconnect(queue_pair);
            let _ = self.wait(CLOSE_TIMEOUT, |end| end.ended.clone());
        }
        self.queue_pair = None;
    }
}

impl<P: Provider> Poller for RawEnd<P> {
    fn poll(&mut self, _now: Duration) -> usize {
        self.pump()
    }

    fn next_timeout(&self) -> Option<Duration> {
        self.provider.poll_timeout()
    }

    fn arm(&mut self) -> bool {
        self.provider.arm()
    }

    fn disarm(&mut self) {
        self.provider.disarm();
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.extend(self.provider.descriptor().map(|descriptor| descriptor.as_raw_fd()));
    }

    fn stop(&mut self, _now: Duration) {
        self.disconnect();
    }

    fn is_drained(&self) -> bool {
        self.queue_pair.is_none()
    }
}
