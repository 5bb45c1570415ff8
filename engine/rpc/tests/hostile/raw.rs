//! A peer that sends what a test says: the bare provider.

use std::collections::VecDeque;
use std::time::Duration;

use stag_fabric::sim::{Sim, World};
use stag_fabric::{
    Completed, Completion, DisconnectReason, Event, Exposed, Handle, Provider, QueuePairCapacity,
    QueuePairId, ReadPart, ReadRequest, RemoteSegment, SendRequest,
};
use stag_proto::parameters::{InlineSize, PrivateData};
use stag_rpc::Memory;
use stag_wire::reliable_reply::{ReliableReply, announcing_version_2};

use crate::support::{IS_VERSION_2, small};

const CAPACITY: QueuePairCapacity = QueuePairCapacity {
    receives: 64,
    sends: 64,
    exposures: 64,
    send_len_max: 4096,
    receive_len_max: 4096,
    receive_targets: 0,
};

pub(crate) struct Raw {
    sim: Sim,
    pub(crate) memory: Memory,
    pub(crate) pair: Option<QueuePairId>,
    pub(crate) established: bool,
    /// Messages that came in and were not looked at yet.
    pub(crate) messages: Vec<Vec<u8>>,
    pub(crate) closed: Option<DisconnectReason>,
    completions: VecDeque<Completion>,
    /// What it says of itself behind the block of RFC 8797.
    pub(crate) block: Vec<u8>,
    /// What the other end says.
    pub(crate) peer_private_data: Vec<u8>,
    /// Reads that it posted, as they were done.
    pub(crate) read: Vec<Vec<u8>>,
    /// Octets and memory of its Receives, if they are not as long as it says of itself.
    receives: Option<(u32, Memory)>,
}

impl Raw {
    pub(crate) fn new(world: &World) -> Raw {
        let config = stag_rpc::EngineConfig { inline_threshold: 4096, ..small() };
        let memory = Memory::on_demand(&config, 1 << 20).expect("a few megabytes");
        let mut sim = world.provider("raw");
        sim.register(&memory.arena).expect("an arena");
        Raw {
            sim,
            memory,
            pair: None,
            established: false,
            messages: Vec::new(),
            closed: None,
            completions: VecDeque::with_capacity(64),
            block: Vec::new(),
            peer_private_data: Vec::new(),
            read: Vec::new(),
            receives: None,
        }
    }

    /// Whose process it is, from the next connection on.
    pub(crate) fn set_user(&mut self, user: u32) {
        self.sim.set_user(user);
    }

    /// What it says of itself: messages of 4096 octets, and remote invalidation; version 2 where that is tested.
    fn private_data(&self) -> Vec<u8> {
        let size = InlineSize::round_down(4096);
        let told = PrivateData { remote_invalidation: true, send_size: size, receive_size: size }.to_wire();
        let own = announcing_version_2(ReliableReply::default().to_wire());
        [&told[..], &self.block, if IS_VERSION_2 { &own } else { &[] }].concat()
    }

    pub(crate) fn connect(&mut self, address: &str) {
        let receive_len_max = self.receives.as_ref().map_or(CAPACITY.receive_len_max, |receives| receives.0);
        let capacity = QueuePairCapacity { receive_len_max, ..CAPACITY };
        let pair = self.sim.connect(address, &self.private_data(), capacity).expect("the address is fine");
        self.pair = Some(pair);
        self.post_receives(32);
    }

    pub(crate) fn listen(&mut self, address: &str) {
        self.sim.listen(address).expect("the address is free");
    }

    /// From the next connection on its Receives are of `len` octets, a multiple of 1024, whatever it says.
    pub(crate) fn resize_receives(&mut self, len: u32) {
        let config = stag_rpc::EngineConfig { inline_threshold: len, ..small() };
        let memory = Memory::on_demand(&config, 1 << 20).expect("a few megabytes");
        self.sim.register(&memory.arena).expect("an arena");
        self.receives = Some((len, memory));
    }

    fn post_receives(&mut self, count: usize) {
        let Some(pair) = self.pair else { return };
        for _ in 0..count {
            let memory = self.receives.as_ref().map_or(&self.memory, |receives| &receives.1);
            let Some(buf) = memory.pools.messages.take() else { return };
            if self.sim.post_receive(pair, 0, buf).is_err() {
                return;
            }
        }
    }

    pub(crate) fn poll(&mut self, now: Duration) -> usize {
        let mut count = self.sim.poll(now, &mut self.completions, 64);
        while let Some(event) = self.sim.poll_event() {
            count += 1;
            match event {
                Event::ConnectRequest { request, private_data, .. } => {
                    self.peer_private_data = private_data;
                    let pair = self.sim.prepare(request, CAPACITY).expect("it fits");
                    self.pair = Some(pair);
                    self.post_receives(32);
                    self.sim.accept(pair, &self.private_data()).expect("just prepared");
                }
                Event::Established { private_data, .. } => {
                    self.established = true;
                    if !private_data.is_empty() {
                        self.peer_private_data = private_data;
                    }
                }
                Event::Disconnected { reason, .. } => {
                    self.closed = Some(reason);
                    self.pair = None;
                }
                event => panic!("unexpected: {event:?}"),
            }
        }
        for completion in std::mem::take(&mut self.completions) {
            match completion.completed {
                Completed::Receive { buf, .. } if completion.result.is_ok() => {
                    self.messages.push(buf.to_vec());
                    drop(buf);
                    self.post_receives(1);
                }
                Completed::Read(buf) if completion.result.is_ok() => self.read.push(buf.to_vec()),
                _ => {}
            }
        }
        self.completions.reserve(64);
        self.sim.ring_doorbells();
        count
    }

    /// Sends these octets. `false`: the connection takes nothing.
    pub(crate) fn send(&mut self, octets: &[u8], invalidate: Option<Handle>) -> bool {
        let Some(pair) = self.pair else { return false };
        let mut buf = self.memory.pools.messages.take().expect("a message buffer");
        buf.set_len(octets.len());
        buf.copy_from_slice(octets);
        self.sim.post_send(pair, SendRequest { id: 0, buf, invalidate, signaled: false }).is_ok()
    }

    /// Lets the peer read and write some memory; returns two segments.
    pub(crate) fn expose(&mut self, len: usize) -> Option<[RemoteSegment; 2]> {
        let pair = self.pair?;
        let space = || {
            let mut buf = self.memory.pools.payload.take_len(len)?;
            buf.set_len(len);
            buf.fill(0);
            Some(buf)
        };
        let (readable, writable) = (space()?.share(), space()?);
        let readable = self.sim.expose(pair, Exposed::Read(readable)).ok()?;
        let writable = self.sim.expose(pair, Exposed::Write(writable)).ok()?;
        Some([readable, writable])
    }

    /// Lets the peer read `len` octets, all of which are `fill`.
    pub(crate) fn expose_filled(&mut self, len: usize, fill: u8) -> Option<RemoteSegment> {
        let mut buf = self.memory.pools.payload.take_len(len)?;
        buf.set_len(len);
        buf.fill(fill);
        self.sim.expose(self.pair?, Exposed::Read(buf.share())).ok()
    }

    /// Reads `len` octets of the peer's memory.
    pub(crate) fn post_read(&mut self, source: RemoteSegment, len: u32) {
        let Some(pair) = self.pair else { return };
        let mut target = self.memory.pools.payload.take_len(len as usize).expect("memory");
        target.set_len(len as usize);
        let parts = [ReadPart { at: 0, len, source }];
        let posted = self.sim.post_read(pair, ReadRequest { id: 0, target }, &parts);
        assert!(posted.is_ok(), "there is room for a Read");
    }

    pub(crate) fn disconnect(&mut self) {
        if let Some(pair) = self.pair {
            self.sim.disconnect(pair);
        }
    }
}

/// Words in network order.
pub(crate) fn octets(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

pub(crate) fn word(message: &[u8], index: usize) -> u32 {
    let octets = message[index * 4..][..4].try_into().expect("four octets");
    u32::from_be_bytes(octets)
}
