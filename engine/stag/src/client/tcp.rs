//! The thread of a client over TCP: the same Calls, with their data in the message.
//!
//! ```text
//! Down ─▶ Connecting ─▶ Up ─▶ Down       a Call makes the connection anew
//!  ▲          │
//!  └──────────┘ after a while (Backoff)
//! ```

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::mpsc;
use std::time::Duration;

use stag_fabric::DisconnectReason;
use stag_rpc::{
    Backoff, CallError, CallSource, CloseReason, LONG_REPLY_LEN_MAX, Memory, StreamCall, StreamCallError,
    StreamClient, StreamLimits,
};
use stag_runtime::{Poller, Receiver};
use stag_wire::rpc::{OpaqueAuth, flavor};
use stag_wire::xdr::{Encode, Overflow, Writer};

use super::answer::Answer;
use super::driver::{Drive, ENDS_MAX, Settings};
use super::error::{ClientError, system};
use super::job::{CallJob, Job};
use super::pending::Promise;
use super::queue::{Queue, Waiting};

/// Calls that wait for their Replies at once. Others wait for their turn.
const CALLS_MAX: usize = 64;

/// How long one address may take to accept the connection.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// How long after its Call has timed out a Reply may come. Then the connection is given up.
const LATE_MAX: Duration = Duration::from_secs(30);

/// A socket that becomes writable does not wake the thread, which looks at it this often.
const LOOK: Duration = Duration::from_millis(1);

/// A Call that was sent, or that is sent again as soon as there is a connection.
struct Sent {
    job: Box<CallJob>,
    promise: Promise<Answer>,
    deadline: Duration,
    /// Whether it was sent over the connection that there is.
    is_under_way: bool,
    /// How often its connection ended.
    ends: u32,
}

/// The connection.
enum Link {
    /// There is none. The next attempt is not before `next`.
    Down { next: Duration },
    /// One address is tried, until then at most, and after it the others.
    Connecting { stream: StreamClient, until: Duration, others: VecDeque<SocketAddr> },
    /// Calls can be made.
    Up(StreamClient),
}

/// A connection that is lost.
struct Lost {
    since: Duration,
    attempts: u32,
}

/// The poller of a client's thread.
pub(super) struct TcpDriver {
    address: String,
    limits: StreamLimits,
    reconnect: Option<Backoff>,
    link: Link,
    /// Since the connection ended, until there is another.
    lost: Option<Lost>,
    queue: Queue,
    /// By their xids.
    sent: HashMap<u32, Sent>,
    xid: u32,
    /// Until the first connection is made, or not.
    ready: Option<mpsc::Sender<Result<(), ClientError>>>,
    now: Duration,
    is_stopping: bool,
}

/// The arguments of a Call, with its data.
struct Whole<'a>(&'a CallJob);

impl Encode for Whole<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        self.0.encode(None, writer)
    }
}

impl Drive for TcpDriver {
    fn new(
        settings: Settings,
        jobs: Receiver<Job>,
        ready: mpsc::Sender<Result<(), ClientError>>,
    ) -> Result<(Memory, TcpDriver), ClientError> {
        let Settings { address, memory: len, reconnect, config, .. } = settings;
        // Buffers that the program asks for; what is sent and received has memory of its own.
        let memory = Memory::new(&config, len)?;
        let len_max = u32::try_from(len.saturating_add(LONG_REPLY_LEN_MAX)).unwrap_or(u32::MAX);
        // A record's mark has 31 bits for its length.
        let len_max = len_max.min(i32::MAX as u32);
        let mut driver = TcpDriver {
            address,
            limits: StreamLimits { calls_max: 2 * CALLS_MAX, call_len_max: len_max, reply_len_max: len_max },
            reconnect,
            link: Link::Down { next: Duration::ZERO },
            lost: None,
            queue: Queue::new(jobs, memory.pools.payload.clone()),
            sent: HashMap::new(),
            xid: RandomState::new().hash_one(0) as u32,
            ready: Some(ready),
            now: Duration::ZERO,
            is_stopping: false,
        };
        driver.connect()?;
        Ok((memory, driver))
    }
}

impl TcpDriver {
    /// Begins to connect. The first connection finds out whether the address can be resolved.
    fn connect(&mut self) -> Result<(), ClientError> {
        let addresses = self.address.to_socket_addrs().map_err(system("resolve the server's address"))?;
        self.try_next(
            addresses.collect(),
            CloseReason::Fabric(DisconnectReason::Unreachable("its name has no address")),
        );
        Ok(())
    }

    /// Tries the next of these addresses. `reason`: why the one before it was none.
    fn try_next(&mut self, mut addresses: VecDeque<SocketAddr>, mut reason: CloseReason) {
        while let Some(address) = addresses.pop_front() {
            match StreamClient::connect(address, CallSource::Any, self.limits) {
                Ok(stream) => {
                    let until = self.now.saturating_add(CONNECT_TIME);
                    self.link = Link::Connecting { stream, until, others: addresses };
                    return;
                }
                Err(error) => reason = end_of_connection(error),
            }
        }
        self.end(reason);
    }

    /// There is no connection any more, or still none.
    fn end(&mut self, reason: CloseReason) {
        let first = self.lost.is_none();
        let lost = self.lost.get_or_insert(Lost { since: self.now, attempts: 0 });
        let waited = self.now.saturating_sub(lost.since);
        let is_given_up = match &self.reconnect {
            Some(backoff) if self.ready.is_none() && waited < backoff.give_up_after => {
                let delay = backoff.first.saturating_mul(1 << lost.attempts.min(20)).min(backoff.max);
                lost.attempts += 1;
                self.link = Link::Down { next: self.now + delay };
                false
            }
            _ => true,
        };
        if first {
            self.end_sent(&reason);
        }
        if is_given_up {
            self.give_up(reason);
        }
    }

    /// The connection ended under the Calls that were sent: they are sent again over the next, if they may.
    fn end_sent(&mut self, reason: &CloseReason) {
        let may_send_again = self.reconnect.is_some();
        for (xid, mut sent) in std::mem::take(&mut self.sent) {
            sent.ends += u32::from(sent.is_under_way);
            sent.is_under_way = false;
            if !may_send_again || !sent.job.retransmit {
                sent.promise.keep(Err(CallError::ConnectionLost.into()));
            } else if sent.ends >= ENDS_MAX {
                let ended = ClientError::EndedEachTime { times: sent.ends, reason: reason.clone() };
                sent.promise.keep(Err(ended));
            } else {
                self.sent.insert(xid, sent);
            }
        }
    }

    /// No connection is made for the Calls that there are. A later one tries anew.
    fn give_up(&mut self, reason: CloseReason) {
        self.link = Link::Down { next: Duration::ZERO };
        self.lost = None;
        for (_, sent) in self.sent.drain() {
            sent.promise.keep(Err(CallError::ConnectionLost.into()));
        }
        let error = ClientError::NotConnected(reason);
        if let Some(ready) = self.ready.take() {
            let _ = ready.send(Err(error.clone()));
        }
        self.queue.fail(&error);
    }

    /// Makes a connection if Calls want one, and looks after one that is being made. Returns what happened.
    fn look_after_link(&mut self) -> usize {
        match &self.link {
            Link::Down { next } => {
                let is_wanted = !self.sent.is_empty() || !self.queue.waiting.is_empty();
                if is_wanted && self.now >= *next {
                    if let Err(error) = self.connect() {
                        self.queue.fail(&error);
                        self.give_up(CloseReason::Fabric(DisconnectReason::Unreachable(
                            "its name is not resolved",
                        )));
                    }
                    return 1;
                }
                0
            }
            Link::Connecting { stream, until, .. } => match stream.is_connected() {
                Ok(true) => {
                    self.take_up();
                    1
                }
                Ok(false) if self.now < *until => 0,
                Ok(false) => self.try_others(CloseReason::Fabric(DisconnectReason::TimedOut)),
                Err(error) => self.try_others(end_of_connection(error)),
            },
            Link::Up(_) => 0,
        }
    }

    fn try_others(&mut self, reason: CloseReason) -> usize {
        let link = std::mem::replace(&mut self.link, Link::Down { next: Duration::ZERO });
        if let Link::Connecting { others, .. } = link {
            self.try_next(others, reason);
        }
        1
    }

    /// The connection is made. Calls that the last one did not answer go first.
    fn take_up(&mut self) {
        let link = std::mem::replace(&mut self.link, Link::Down { next: Duration::ZERO });
        let Link::Connecting { mut stream, .. } = link else { unreachable!("it was being made") };
        self.lost = None;
        if let Some(ready) = self.ready.take() {
            let _ = ready.send(Ok(()));
        }
        for (xid, sent) in &mut self.sent {
            // A failure shows when the Replies are taken.
            let _ = begin(&mut stream, *xid, &sent.job, sent.deadline);
            sent.is_under_way = true;
        }
        self.link = Link::Up(stream);
    }

    /// Begins Calls that wait. Returns how many.
    fn begin_waiting(&mut self) -> usize {
        let mut count = 0;
        if let Link::Up(stream) = &self.link
            && self.sent.is_empty()
            && !self.queue.waiting.is_empty()
            && stream.has_ended()
        {
            // Servers end connections that are idle. Nothing is lost.
            self.link = Link::Down { next: self.now };
            return self.look_after_link();
        }
        while let Link::Up(stream) = &mut self.link
            && self.sent.len() < CALLS_MAX
            && let Some(waiting) = self.queue.waiting.pop_front()
        {
            count += 1;
            if waiting.job.sealer.is_some() {
                waiting.promise.keep(Err(ClientError::SealedOverTcp));
                continue;
            }
            let xid = self.xid;
            match begin(stream, xid, &waiting.job, waiting.deadline) {
                Ok(()) => {
                    self.xid = xid.wrapping_add(1);
                    let Waiting { job, promise, deadline, .. } = waiting;
                    self.sent.insert(xid, Sent { job, promise, deadline, is_under_way: true, ends: 0 });
                }
                Err(StreamCallError::TooLong) => {
                    let len_max = self.limits.call_len_max as usize;
                    waiting.promise.keep(Err(ClientError::ArgumentsTooLong(len_max)));
                }
                Err(StreamCallError::TooMany) => {
                    // Calls that have timed out are not answered yet.
                    self.queue.waiting.push_front(waiting);
                    return count - 1;
                }
                Err(error) => {
                    self.queue.waiting.push_front(waiting);
                    self.end(end_of_connection(error));
                }
            }
        }
        count
    }

    /// Sends and receives, and hands over what is complete.
    fn hand_over(&mut self) -> usize {
        let mut count = 0;
        while let Link::Up(stream) = &mut self.link
            && let Some((xid, end)) = stream.poll(self.now)
        {
            count += 1;
            let refusal = end.as_ref().err().and_then(StreamCallError::refusal);
            let result = match (end, refusal) {
                (Ok(results), _) => Ok(results),
                (Err(_), Some(refusal)) => Err(refusal),
                (Err(error), None) => {
                    self.end(end_of_connection(error));
                    continue;
                }
            };
            // A Call that is not there has timed out.
            if let Some(Sent { job, promise, .. }) = self.sent.remove(&xid) {
                let answer = result.and_then(|results| bounded(&job, results));
                promise.keep(answer.map(Answer::inline).map_err(ClientError::from));
            }
        }
        count
    }

    /// Ends Calls whose Replies did not come in time.
    fn expire(&mut self) {
        let now = self.now;
        for (_, sent) in self.sent.extract_if(|_, sent| now >= sent.deadline) {
            sent.promise.keep(Err(CallError::TimedOut.into()));
        }
    }
}

impl Poller for TcpDriver {
    fn poll(&mut self, now: Duration) -> usize {
        self.now = now;
        if self.is_stopping {
            return 0;
        }
        let events = self.look_after_link() + self.hand_over();
        let taken = self.queue.take_jobs(now);
        self.queue.expire(now);
        self.expire();
        let begun = self.begin_waiting();
        // What was begun is sent.
        events + taken + begun + if begun > 0 { self.hand_over() } else { 0 }
    }

    fn next_timeout(&self) -> Option<Duration> {
        let link = match &self.link {
            Link::Down { next } => {
                Some(*next).filter(|_| !self.sent.is_empty() || !self.queue.waiting.is_empty())
            }
            Link::Connecting { .. } => Some(self.now + LOOK),
            Link::Up(stream) if stream.is_sending() => Some(self.now + LOOK),
            Link::Up(stream) => stream.next_timeout(),
        };
        let deadlines = self.sent.values().map(|sent| sent.deadline);
        deadlines.chain(link).chain(self.queue.next_timeout()).min()
    }

    fn arm(&mut self) -> bool {
        self.queue.jobs.arm()
    }

    fn disarm(&mut self) {
        self.queue.jobs.disarm();
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.push(self.queue.jobs.descriptor());
        // Without Calls, its end is found before the next one.
        if let Link::Up(stream) = &self.link
            && !self.sent.is_empty()
        {
            out.push(stream.as_fd().as_raw_fd());
        }
    }

    fn stop(&mut self, _: Duration) {
        self.is_stopping = true;
        // Their promises say that the client has ended.
        self.queue.waiting.clear();
        self.sent.clear();
        self.link = Link::Down { next: Duration::ZERO };
    }

    fn is_drained(&self) -> bool {
        self.is_stopping
    }
}

/// Begins a Call. Its Reply may come later than the Call may take: until then nothing else is wrong with the connection.
fn begin(
    stream: &mut StreamClient,
    xid: u32,
    job: &CallJob,
    deadline: Duration,
) -> Result<(), StreamCallError> {
    let credential = match &job.user {
        Some(body) => OpaqueAuth { flavor: flavor::AUTH_SYS, body },
        None => OpaqueAuth::NONE,
    };
    let (program, version, procedure) = job.target();
    let call = StreamCall { program, version, procedure, credential, arguments: &Whole(job) };
    stream.begin_with_xid(xid, &call, deadline.saturating_add(LATE_MAX))
}

/// Results that are no longer than the Call allows.
fn bounded(job: &CallJob, results: Vec<u8>) -> Result<Vec<u8>, CallError> {
    let limit = (job.results_max as usize).saturating_add(job.room.unwrap_or(0));
    // With the length word and the padding of what `room` is for.
    if results.len() > limit.saturating_add(8) {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        return Err(CallError::ReplyTooLong { len: results.len() as u64, limit });
    }
    Ok(results)
}

/// Why the connection ended.
fn end_of_connection(error: StreamCallError) -> CloseReason {
    match error {
        StreamCallError::Connection(kind) => match kind {
            ErrorKind::ConnectionRefused => CloseReason::Fabric(DisconnectReason::NoListener),
            ErrorKind::UnexpectedEof => CloseReason::Fabric(DisconnectReason::Peer),
            ErrorKind::TimedOut => CloseReason::Fabric(DisconnectReason::TimedOut),
            ErrorKind::HostUnreachable => {
                CloseReason::Fabric(DisconnectReason::Unreachable("the host is unreachable"))
            }
            ErrorKind::NetworkUnreachable => {
                CloseReason::Fabric(DisconnectReason::Unreachable("the network is unreachable"))
            }
            _ => CloseReason::Fabric(DisconnectReason::PeerDied),
        },
        StreamCallError::TimedOut => CloseReason::Unanswered,
        _ => CloseReason::Violation("its answer is malformed"),
    }
}
