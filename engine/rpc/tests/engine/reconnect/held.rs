//! A server over shared memory that never lets go of a client's memory: its Calls end all the same.

use std::collections::VecDeque;
use std::time::Duration;

use stag_fabric::{
    Completed, Event, Handle, Provider, QueuePairId, RemoteSegment, Shm, ShmConfig, WriteRequest,
};
use stag_rpc::{CallError, Chunks, ClientPolicy, Engine, EngineConfig, Memory, ProtocolChoice, Request};
use stag_runtime::Poller;
use stag_wire::rpcrdma::Header;

use super::calls::POLICY;
use crate::support::program::GET;
use crate::support::{request_for, small};

/// A server by hand.
struct RawServer {
    shm: Shm,
    memory: Memory,
    config: EngineConfig,
    pair: Option<QueuePairId>,
}

impl RawServer {
    /// Where the first Call's Write chunk is, if it is there.
    fn poll(&mut self, now: Duration) -> Option<RemoteSegment> {
        let mut completions = VecDeque::with_capacity(8);
        self.shm.ring_doorbells();
        self.shm.poll(now, &mut completions, 8);
        while let Some(event) = self.shm.poll_event() {
            if let Event::ConnectRequest { request, .. } = event {
                let pair = self.shm.prepare(request, self.config.capacity()).expect("it fits");
                let buf = self.memory.pools.messages.take().expect("one is free");
                self.shm.post_receive(pair, 0, buf).expect("within the capacity");
                self.shm.accept(pair, &[]).expect("just prepared");
                self.pair = Some(pair);
            }
        }
        let Completed::Receive { buf, .. } = completions.pop_front()?.completed else { return None };
        let (header, _) = Header::parse(&buf).ok()?;
        let segment = header.write_list().next()?.segments().next()?;
        Some(RemoteSegment { handle: Handle(segment.handle), offset: segment.offset })
    }
}

#[test]
fn a_call_whose_memory_the_server_never_lets_go_of_ends() {
    for policy in [ClientPolicy::default(), POLICY] {
        let config = EngineConfig { protocol: ProtocolChoice::One, ..small() };
        let memory = || Memory::new(&config, 4 << 20).expect("a few megabytes");
        let open = |memory: &Memory| {
            let mut shm = Shm::open(ShmConfig::default()).expect("it needs nothing");
            shm.register(&memory.arena).expect("an arena is sealed");
            shm
        };
        let (near, far) = (memory(), memory());
        let name = format!("rpc-held-{}-{}", std::process::id(), policy.reconnect.is_some());
        let mut server = RawServer { shm: open(&far), memory: far, config, pair: None };
        server.shm.listen(&name).expect("the name is free");
        let mut client = Engine::new(open(&near), (), near.pools.clone(), config, 2).expect("it fits");
        let connection = client.connect_with(&name, policy).expect("the name is fine");
        let mut now = Duration::ZERO;
        let mut pass = |client: &mut Engine<Shm, ()>, server: Option<&mut RawServer>, step| {
            now += step;
            client.poll(now);
            server.and_then(|server| server.poll(now))
        };
        let short = Duration::from_micros(50);
        while client.connection_event().is_none() {
            pass(&mut client, Some(&mut server), short);
        }
        let space = || near.pools.payload.take_len(100).expect("memory is free");
        let mut chunks = Chunks::write(space());
        let request = Request { timeout: Duration::from_secs(1), ..request_for(GET, 8) };
        client.call(connection, &request, &mut chunks, |writer| writer.u32(1)).expect("a credit");
        let target = std::iter::repeat_with(|| pass(&mut client, Some(&mut server), short));
        let target = target.flatten().next().expect("it goes on until then");
        // A Write without a doorbell: for all that the client knows, it is under way for ever.
        let source = server.memory.pools.payload.take_len(1).expect("memory is free").share();
        let write = WriteRequest { id: 1, source, target, signaled: false };
        server.shm.post_write(server.pair.expect("it is there"), write).expect("within the capacity");
        let done = std::iter::repeat_with(|| {
            pass(&mut client, None, Duration::from_millis(10));
            client.completed()
        });
        let done = done.take(100_000).flatten().next().expect("1000 s are enough");
        assert!(
            matches!(done.result, Err(CallError::TimedOut | CallError::ConnectionLost)),
            "{:?}",
            done.result
        );
        assert!(done.written.is_empty(), "that memory is lost");
        assert_eq!(near.pools.payload.outstanding(), 1);
    }
}
