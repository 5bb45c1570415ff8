//! A provider by itself: two ends, messages, Writes and Reads, and no RPC. It bounds the speed of RPC over that fabric.
//!
//! One end listens and serves: it answers the first message with the memory that it exposes, and each other with one as
//! long. The other connects and measures.

use std::collections::VecDeque;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Error, Result, bail};
use stag_fabric::{
    Completed, Completion, DisconnectReason, Event, Exposed, Handle, Provider, QueuePairCapacity,
    QueuePairId, ReadPart, ReadRequest, RemoteSegment, SendRequest, WorkError, WriteRequest,
};
use stag_memory::{Arena, ArenaConfig, Budget, Buf, PageChoice, Pool};
use stag_runtime::Clock;

/// Octets of the longest message.
const MESSAGE_LEN: usize = 1024;

/// How long nothing may happen before the other end is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// What two ends are made for.
#[derive(Clone, Copy, Debug)]
pub struct BareShape {
    /// Messages under way at most.
    pub depth: u32,
    /// Octets of the longest Write or Read.
    pub transfer_len: usize,
    /// Writes or Reads of that length under way at most.
    pub transfers: usize,
    /// Whether an end with nothing to do lets others run.
    pub yields: bool,
}

impl BareShape {
    /// The capacity of its queue pairs.
    #[must_use]
    pub fn capacity(&self) -> QueuePairCapacity {
        QueuePairCapacity {
            receives: 2 * self.depth,
            sends: 2 * self.depth.max(self.transfers as u32),
            exposures: 64,
            send_len_max: MESSAGE_LEN as u32,
            receive_len_max: MESSAGE_LEN as u32,
            receive_targets: 0,
        }
    }
}

/// In how many windows a figure is taken, and how long each is.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// How many.
    pub count: usize,
    /// How long.
    pub each: Duration,
}

/// One end.
pub struct BareEnd<P> {
    /// The fabric.
    pub provider: P,
    /// Memory for Writes and Reads.
    pub payload: Pool,
    /// What the last passes harvested; the caller that reads them takes them out.
    pub completions: VecDeque<Completion>,
    /// The connection, once there is one.
    pub established: Option<QueuePairId>,
    shape: BareShape,
    clock: Clock,
    ended: Option<DisconnectReason>,
    messages: Pool,
    /// What the server lets us write, and read.
    segments: Option<[RemoteSegment; 2]>,
    /// When something was harvested last.
    last: Duration,
}

impl<P: Provider> BareEnd<P> {
    /// An end over `provider`, with memory of its own.
    ///
    /// # Errors
    ///
    /// When there is not enough memory, or it cannot be registered.
    pub fn new(mut provider: P, shape: BareShape) -> Result<BareEnd<P>> {
        const PAGE: usize = 4096;
        let capacity = shape.capacity();
        // Whatever is posted, and as many again in the hands of the loop.
        let messages = 2 * (capacity.receives + capacity.sends) as usize;
        // The two that are exposed, or the source and the targets.
        let pages = (shape.transfers + 2) * shape.transfer_len.div_ceil(PAGE).max(1);
        let len = (messages * MESSAGE_LEN + pages * PAGE).next_multiple_of(2 << 20) + (2 << 20);
        let budget = Budget::new(4 * len as u64);
        let config = ArenaConfig { name: "bare", len, page: PageChoice::Auto, node: None, budget: &budget };
        let arena = Arena::new(&config)?;
        let messages = Pool::fixed(&arena, "messages", MESSAGE_LEN, messages)?;
        let payload = Pool::runs(&arena, "payload", PAGE, pages)?;
        provider.register(&arena)?;
        Ok(BareEnd {
            provider,
            payload,
            completions: VecDeque::with_capacity(256),
            established: None,
            shape,
            clock: Clock::start(),
            ended: None,
            messages,
            segments: None,
            last: Duration::ZERO,
        })
    }

    /// One pass; the clock is read as a reactor would, once. Returns how many completions it harvested.
    ///
    /// # Errors
    ///
    /// When a queue pair cannot be made.
    pub fn poll(&mut self) -> Result<usize> {
        let now = self.clock.now();
        let count = self.provider.poll(now, &mut self.completions, 64);
        if count > 0 {
            self.last = now;
            return Ok(count);
        }
        match self.provider.poll_event() {
            Some(Event::ConnectRequest { request, .. }) => {
                let pair = self.provider.prepare(request, self.shape.capacity())?;
                self.post_receives(pair)?;
                self.provider.accept(pair, b"")?;
            }
            Some(Event::Established { queue_pair, .. }) => self.established = Some(queue_pair),
            Some(Event::Disconnected { reason, .. }) => self.ended = Some(reason),
            _ if self.shape.yields => thread::yield_now(),
            _ => {}
        }
        Ok(0)
    }

    /// As [`BareEnd::poll`], for who waits for the other end: it must be there, and do something now and then.
    fn wait(&mut self) -> Result<usize> {
        let count = self.poll()?;
        if let Some(reason) = &self.ended {
            bail!("the connection ended: {reason:?}");
        }
        if count == 0 && self.clock.now() > self.last + PATIENCE {
            bail!("nothing happened for {PATIENCE:?}");
        }
        Ok(count)
    }

    /// What a work request failed of: if the connection ended, also why it did.
    fn failed(&mut self, error: WorkError) -> Error {
        let since = self.clock.now();
        while self.ended.is_none() && self.clock.now() < since + PATIENCE && self.poll().is_ok() {
            self.completions.clear();
        }
        let failed = Error::from(error);
        match &self.ended {
            Some(reason) => failed.context(format!("the connection ended: {reason:?}")),
            None => failed,
        }
    }

    fn message(&self, len: usize) -> Result<Buf> {
        let mut buf = self.messages.take().context("the pool of messages is too small")?;
        buf.set_len(len);
        Ok(buf)
    }

    /// Posts as many Receives as fit.
    ///
    /// # Errors
    ///
    /// When they do not.
    pub fn post_receives(&mut self, pair: QueuePairId) -> Result<()> {
        for _ in 0..self.shape.capacity().receives {
            let buf = self.message(MESSAGE_LEN)?;
            self.provider.post_receive(pair, 0, buf).map_err(|refused| refused.error)?;
        }
        Ok(())
    }

    /// Connects to an end that serves, sends a first message, and takes the answer, which is what that end exposes. Over iWARP
    /// the end that connects has to speak first (RFC 5044, 7.1): siw fails a set-up whose answer is followed by more.
    ///
    /// # Errors
    ///
    /// When it is not there.
    pub fn connect(&mut self, address: &str) -> Result<QueuePairId> {
        self.last = self.clock.now();
        let pair = self.provider.connect(address, b"", self.shape.capacity())?;
        self.post_receives(pair)?;
        while self.established.is_none() {
            self.wait()?;
        }
        self.send(pair, 1)?;
        self.provider.ring_doorbells();
        while self.segments.is_none() {
            self.wait()?;
            while let Some(completion) = self.completions.pop_front() {
                completion.result.map_err(|error| self.failed(error))?;
                if let Completed::Receive { buf, .. } = completion.completed {
                    self.segments = Some(parse_segments(&buf).context("the first message is too short")?);
                    self.provider.post_receive(pair, 0, buf).map_err(|refused| refused.error)?;
                }
            }
        }
        Ok(pair)
    }

    /// Ends the connection, and waits until it is gone.
    ///
    /// # Errors
    ///
    /// When it does not go.
    pub fn disconnect(&mut self, pair: QueuePairId) -> Result<()> {
        let since = self.clock.now();
        self.provider.disconnect(pair);
        while self.ended.is_none() {
            self.poll()?;
            self.completions.clear();
            if self.clock.now() > since + PATIENCE {
                bail!("the connection does not end");
            }
        }
        Ok(())
    }

    /// Lets the peer write one piece of memory and read another, and answers its messages until it goes, or until `stop`
    /// says so.
    ///
    /// # Errors
    ///
    /// When the connection ends otherwise.
    pub fn serve(&mut self, stop: impl Fn() -> bool) -> Result<()> {
        let mut exposed = false;
        while self.ended.is_none() && !stop() {
            self.poll()?;
            // Completions are delivered before the news that there is a connection.
            let Some(pair) = self.established.filter(|_| !self.completions.is_empty()) else { continue };
            match exposed {
                true => drop(self.answer(pair)?),
                false => exposed = self.greet(pair)?,
            }
        }
        match self.ended.take() {
            None | Some(DisconnectReason::Local | DisconnectReason::Peer) => Ok(()),
            Some(reason) => bail!("the connection ended: {reason:?}"),
        }
    }

    /// Answers the first message with what is exposed. `false`: it has not come.
    fn greet(&mut self, pair: QueuePairId) -> Result<bool> {
        while let Some(completion) = self.completions.pop_front() {
            if let (Completed::Receive { buf, .. }, Ok(())) = (completion.completed, completion.result) {
                self.provider.post_receive(pair, 0, buf).map_err(|refused| refused.error)?;
                self.expose(pair)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn expose(&mut self, pair: QueuePairId) -> Result<()> {
        let mut message = self.message(32)?;
        for (i, at) in [0, 16].into_iter().enumerate() {
            let buf =
                self.payload.take_len(self.shape.transfer_len).context("the payload pool is too small")?;
            let exposed = if i == 0 { Exposed::Write(buf) } else { Exposed::Read(buf.share()) };
            let segment = self.provider.expose(pair, exposed).map_err(|refused| refused.error)?;
            message[at..at + 8].copy_from_slice(&u64::from(segment.handle.0).to_ne_bytes());
            message[at + 8..at + 16].copy_from_slice(&segment.offset.to_ne_bytes());
        }
        let request = SendRequest { id: 0, buf: message, invalidate: None, signaled: false };
        self.provider.post_send(pair, request).map_err(|refused| refused.error)?;
        self.provider.ring_doorbells();
        Ok(())
    }

    /// Posts a message of `len` octets.
    ///
    /// # Errors
    ///
    /// When it is not taken.
    pub fn send(&mut self, pair: QueuePairId, len: usize) -> Result<()> {
        let buf = self.message(len)?;
        let request = SendRequest { id: 0, buf, invalidate: None, signaled: false };
        Ok(self.provider.post_send(pair, request).map_err(|refused| refused.error)?)
    }

    /// Answers each message with one as long; returns how many there were. Stops when the client is gone.
    fn answer(&mut self, pair: QueuePairId) -> Result<u64> {
        let mut received = 0;
        let mut completions = std::mem::take(&mut self.completions);
        for completion in completions.drain(..) {
            if let (Completed::Receive { buf, .. }, Ok(())) = (completion.completed, completion.result) {
                let len = buf.len();
                if self.provider.post_receive(pair, 0, buf).is_ok() {
                    self.send(pair, len)?;
                    received += 1;
                }
            }
        }
        self.completions = completions;
        self.provider.ring_doorbells();
        Ok(received)
    }

    /// Messages of `len` octets there and back, `depth` under way: how many a second, in each window.
    ///
    /// # Errors
    ///
    /// When the connection ends.
    pub fn echo(&mut self, pair: QueuePairId, depth: u32, len: usize, windows: Windows) -> Result<Vec<f64>> {
        let mut rates = Vec::new();
        self.last = self.clock.now();
        for _ in 0..windows.count {
            for _ in 0..depth {
                self.send(pair, len)?;
            }
            self.provider.ring_doorbells();
            let begin = self.clock.now();
            let (mut done, mut passes) = (0u64, 0u64);
            let took = loop {
                passes += 1;
                if passes.is_multiple_of(64) && self.clock.now() > begin + windows.each && done > 0 {
                    break self.clock.now() - begin;
                }
                if self.wait()? > 0 {
                    done += self.answer(pair)?;
                }
            };
            rates.push(done as f64 / took.as_secs_f64());
            let mut left = depth;
            while left > 0 {
                self.wait()?;
                while let Some(completion) = self.completions.pop_front() {
                    if let (Completed::Receive { buf, .. }, Ok(())) =
                        (completion.completed, completion.result)
                    {
                        self.provider.post_receive(pair, 0, buf).map_err(|refused| refused.error)?;
                        left -= 1;
                    }
                }
            }
        }
        Ok(rates)
    }

    /// Writes or Reads of `len` octets, `depth` under way: how many a second, in each window.
    ///
    /// # Errors
    ///
    /// When one fails, or the connection ends.
    pub fn copies(
        &mut self,
        pair: QueuePairId,
        write: bool,
        len: usize,
        depth: usize,
        windows: Windows,
    ) -> Result<Vec<f64>> {
        let [written, read] = self.segments.context("the other end has exposed nothing")?;
        let source = self.payload.take_len(len).context("the payload pool is too small")?.share();
        let part = ReadPart { at: 0, len: len as u32, source: read };
        let mut targets: Vec<Buf> = (0..depth).filter_map(|_| self.payload.take_len(len)).collect();
        let depth = targets.len();
        let mut rates = Vec::new();
        let mut under_way = 0;
        self.last = self.clock.now();
        for _ in 0..windows.count {
            let begin = self.clock.now();
            let mut done = 0u64;
            while self.clock.now() < begin + windows.each || under_way > 0 {
                while self.clock.now() < begin + windows.each && under_way < depth {
                    if write {
                        let source = source.clone();
                        let request = WriteRequest { id: 0, source, target: written, signaled: true };
                        self.provider.post_write(pair, request).map_err(|refused| refused.error)?;
                    } else {
                        let Some(target) = targets.pop() else { break };
                        let request = ReadRequest { id: 0, target };
                        self.provider.post_read(pair, request, &[part]).map_err(|refused| refused.error)?;
                    }
                    under_way += 1;
                }
                self.provider.ring_doorbells();
                self.wait()?;
                while let Some(completion) = self.completions.pop_front() {
                    completion.result.map_err(|error| self.failed(error))?;
                    under_way -= 1;
                    done += 1;
                    if let Completed::Read(buf) = completion.completed {
                        targets.push(buf);
                    }
                }
            }
            rates.push(done as f64 / (self.clock.now() - begin).as_secs_f64());
        }
        Ok(rates)
    }
}

/// What a first message says: where may be written, and where read.
fn parse_segments(message: &[u8]) -> Option<[RemoteSegment; 2]> {
    let word = |at: usize| Some(u64::from_ne_bytes(message.get(at..at + 8)?.try_into().ok()?));
    let segment =
        |at| Some(RemoteSegment { handle: Handle(u32::try_from(word(at)?).ok()?), offset: word(at + 8)? });
    Some([segment(0)?, segment(16)?])
}
