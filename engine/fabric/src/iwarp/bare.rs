//! A queue pair without a socket: a test moves its octets. For fuzzing, and for tests of streams.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::net::{Ipv4Addr, SocketAddr};

use stag_memory::Buf;
use stag_wire::mpa;
use stag_wire::rdmap::Cause;

use super::IwarpCounters;
use super::connection::{Phase, QueuePair, Sink};
use super::receive::Stop;
use super::send::Scratch;
use super::stags::Stags;
use super::terms::Terms;
use crate::{
    Completion, Exposed, Handle, QueuePairCapacity, QueuePairId, ReadPart, ReadRequest, SendRequest,
    ShownMessage, TakeShown, Taken, WriteRequest,
};

/// The CRC of an FPDU, as fast as the provider finds it.
#[must_use]
pub fn crc32c(octets: &[u8]) -> u32 {
    super::crc::crc32c(octets)
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The peer broke a rule: this is what its Terminate would say.
    Fault(Cause),
    /// The peer said so.
    Terminated,
}

/// A queue pair without a socket.
pub struct Bare {
    pair: QueuePair,
    local: VecDeque<Completion>,
    counters: IwarpCounters,
    scratch: Scratch,
}

impl Bare {
    /// One that is connected, with this IRD, and an ORD of 4. Two with the same keys choose the same handles.
    #[must_use]
    pub fn new(capacity: QueuePairCapacity, crc: bool, ird: u16, keys: RandomState) -> Bare {
        let id = QueuePairId { index: 0, generation: 1 };
        let mut pair =
            QueuePair::new(id, Phase::Prepared, capacity, SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
        pair.stags = Stags::new(capacity.exposures, keys);
        pair.agree(&Terms {
            crc,
            ird: ird.into(),
            ord: 4,
            segment_len: 0,
            ulpdu_len_max: mpa::ULPDU_LEN_MAX,
            swallows_send: false,
            waits: false,
        });
        pair.phase = Phase::Open;
        let local = VecDeque::with_capacity(QueuePair::completions(&capacity) as usize);
        Bare { pair, local, counters: IwarpCounters::default(), scratch: Scratch::new() }
    }

    /// Posts a Receive; `false`: there is no room for it.
    pub fn post_receive(&mut self, id: u64, buf: Buf) -> bool {
        self.pair.post_receive(id, buf).is_ok()
    }

    /// Exposes memory, if there is room for it.
    pub fn expose(&mut self, exposed: Exposed) -> Option<Handle> {
        self.pair.expose(exposed).ok().map(|segment| segment.handle)
    }

    /// Ends an exposure.
    pub fn fence(&mut self, handle: Handle) -> Option<Exposed> {
        self.pair.fence(handle)
    }

    /// Posts a Send; `false`: there is no room for it.
    pub fn post_send(&mut self, request: SendRequest) -> bool {
        self.pair.post_send(request).is_ok()
    }

    /// Posts a Write; `false`: there is no room for it.
    pub fn post_write(&mut self, request: WriteRequest) -> bool {
        self.pair.post_write(request).is_ok()
    }

    /// Posts a Read; `false`: there is no room for it.
    pub fn post_read(&mut self, request: ReadRequest, parts: &[ReadPart]) -> bool {
        self.pair.post_read(request, parts).is_ok()
    }

    /// Takes octets of the stream, as they would come from one system call: the rest of a large payload goes to its place first.
    pub fn take(&mut self, octets: &[u8]) -> Result<(), End> {
        self.take_in_place(octets, &mut |_: ShownMessage<'_>| Taken::No)
    }

    /// As [`Bare::take`], and shows messages as [`Provider::poll_in_place`](crate::Provider::poll_in_place) does.
    pub fn take_in_place(&mut self, octets: &[u8], show: &mut impl TakeShown) -> Result<(), End> {
        self.take_all(octets, show).map_err(|stop| match stop {
            Stop::Fault(fault) => End::Fault(fault.cause()),
            Stop::Terminated(..) => End::Terminated,
        })
    }

    fn take_all(&mut self, mut octets: &[u8], show: &mut impl TakeShown) -> Result<(), Stop> {
        if let Some((place, len)) = self.pair.direct()? {
            let (now, rest) = octets.split_at(len.min(octets.len()));
            // SAFETY: `direct` says that `place` is valid for writes of `len` octets, in a buffer that the queue pair holds.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), place, now.len()) };
            self.pair.landed(now.len())?;
            octets = rest;
        }
        let mut sink = Sink::waiting(&mut self.local);
        sink.shows = true;
        while !octets.is_empty() {
            octets = self.pair.take(octets, &mut sink, &mut self.counters, show)?;
        }
        Ok(())
    }

    /// What it has to send.
    pub fn sent(&mut self) -> Vec<u8> {
        let octets = self.pair.tx.drain(&mut self.scratch, &mut self.counters);
        self.pair.complete(&mut Sink::waiting(&mut self.local));
        octets
    }

    /// The next completion.
    pub fn completion(&mut self) -> Option<Completion> {
        let completion = self.local.pop_front()?;
        self.pair.harvested();
        Some(completion)
    }

    /// Ends it: all that is posted and exposed completes.
    pub fn close(&mut self) {
        self.pair.flush(&mut Sink::waiting(&mut self.local), None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Completed, RemoteSegment};
    use proptest::prelude::*;
    use stag_memory::{Arena, ArenaConfig, Budget, PageChoice, PageSize, Pool};

    const CAPACITY: QueuePairCapacity = QueuePairCapacity {
        receives: 32,
        sends: 32,
        exposures: 8,
        send_len_max: 100_000,
        receive_len_max: 100_000,
        receive_targets: 0,
    };

    fn pool() -> Pool {
        let budget = Budget::new(64 << 20);
        let page = PageChoice::Size(PageSize::Base);
        let config = ArenaConfig { name: "bare", len: 16 << 20, page, node: None, budget: &budget };
        Pool::runs(&Arena::new(&config).expect("16 MiB"), "all", 4096, 4096).expect("it fits")
    }

    fn filled(pool: &Pool, len: usize, seed: u8) -> Buf {
        let mut buf = pool.take_len(len).expect("the pool is large enough");
        for (at, octet) in buf.iter_mut().enumerate() {
            *octet = (at * 7 + at / 251) as u8 ^ seed;
        }
        buf
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Two of them joined by a stream that is cut anywhere: all arrives, in its place, in order (5041-g, 5040-b, 5040-d).
        #[test]
        fn joined(crc in any::<bool>(), lens in proptest::collection::vec(0usize..90_000, 1..6), cuts in proptest::collection::vec(1usize..70_000, 1..20)) {
            let pool = pool();
            let mut ends = [(), ()].map(|()| Bare::new(CAPACITY, crc, 4, RandomState::new()));
            let mut expected = Vec::new();
            for (round, &len) in lens.iter().enumerate() {
                let seed = round as u8;
                ends[1].post_receive(round as u64, pool.take_len(100_000).expect("free"));
                let to = ends[1].expose(Exposed::Write(filled(&pool, len, 0xff))).expect("room");
                let from = ends[1].expose(Exposed::Read(filled(&pool, len, seed ^ 1).share())).expect("room");
                let target = RemoteSegment { handle: to, offset: 0 };
                ends[0].post_write(WriteRequest { id: 1, source: filled(&pool, len, seed).share(), target, signaled: true });
                let source = RemoteSegment { handle: from, offset: 0 };
                let part = ReadPart { at: 0, len: len as u32, source };
                let mut target = pool.take_len(len).expect("free");
                target.set_len(len);
                ends[0].post_read(ReadRequest { id: 2, target }, &[part]);
                let invalidate = Some(to);
                ends[0].post_send(SendRequest { id: 3, buf: filled(&pool, len, seed ^ 2), invalidate, signaled: true });
                expected.push((from, len));
                let mut cuts = cuts.iter().cycle();
                let mut done = 0;
                while done < 4 {
                    for side in [0, 1] {
                        let stream = ends[side].sent();
                        let mut rest = &stream[..];
                        while !rest.is_empty() {
                            let (now, behind) = rest.split_at((*cuts.next().expect("endless")).min(rest.len()));
                            prop_assert_eq!(ends[1 - side].take(now), Ok(()));
                            rest = behind;
                        }
                    }
                    let mut completions: VecDeque<Completion> = VecDeque::new();
                    for end in &mut ends {
                        while let Some(completion) = end.completion() {
                            completions.push_back(completion);
                        }
                    }
                    done += completions.len();
                    for completion in completions {
                        prop_assert_eq!(completion.result, Ok(()));
                        match completion.completed {
                            Completed::Read(buf) => prop_assert!(buf[..] == filled(&pool, len, seed ^ 1)[..]),
                            Completed::Receive { buf, exposed: Some(Exposed::Write(memory)), .. } => {
                                prop_assert!(buf[..] == filled(&pool, len, seed ^ 2)[..]);
                                prop_assert!(memory[..] == filled(&pool, len, seed)[..]);
                            }
                            Completed::Receive { .. } => prop_assert!(false, "the memory comes with the message"),
                            _ => {}
                        }
                    }
                }
                prop_assert!(ends[1].fence(from).is_some());
            }
            drop(ends);
            prop_assert_eq!(pool.outstanding(), 0);
        }
    }
}
