//! Clients that make WRITE Calls and never let their chunks be read, against a real `stagd`: all other clients go on. And the
//! printed credits of each.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use stag_fabric::Provider;
use stag_fabric::iwarp::{Iwarp, IwarpConfig};
use stag_memory::{Arena, ArenaConfig, Budget, PageChoice, PageSize, Pool, Shared};
use stag_nfs::client::{Null, Operation, Target};
use stag_rpc::{Chunks, ConnectionEvent, ConnectionId, Credentials, Engine, EngineConfig, Pools};
use stag_runtime::{Clock, Poller};
use stag_wire::nfs3::{Data, Handle, Stable, WriteArguments};
use stag_wire::xdr::Item;

use crate::common::{ANY_IWARP_PORT, Folder, Server, content, stag_ok};

const LEN: usize = 1 << 20;

/// Many connections of one process that can stop to answer.
struct Greedy {
    engine: Engine<Iwarp, ()>,
    connections: Vec<ConnectionId>,
    data: Shared,
    clock: Clock,
}

impl Greedy {
    fn connect(address: &str, count: usize) -> Greedy {
        let config =
            EngineConfig { credits_max: 16, connections_max: 1, receives_max: 32, ..EngineConfig::default() };
        let messages = Pools::messages_needed(&config) * count.min(64);
        let pages = 2 * LEN / 4096;
        let len = Pool::footprint(config.message_len(), messages) + Pool::footprint(4096, pages);
        let budget = Budget::new(1 << 30);
        let page = PageChoice::Size(PageSize::Base);
        let arena =
            Arena::new(&ArenaConfig { name: "greedy", len, page, node: None, budget: &budget }).unwrap();
        let mut provider = Iwarp::open(IwarpConfig::default()).unwrap();
        provider.register(&arena).unwrap();
        let pools = Pools {
            messages: Pool::fixed(&arena, "messages", config.message_len(), messages).unwrap(),
            payload: Pool::runs(&arena, "payload", 4096, pages).unwrap(),
        };
        let data = pools.payload.take_len(LEN).unwrap().share();
        let mut engine = Engine::new(provider, (), pools, config, 1).unwrap();
        let clock = Clock::start();
        engine.poll(clock.now());
        let connections = (0..count).map(|_| engine.connect(address).unwrap()).collect();
        let mut greedy = Greedy { engine, connections, data, clock };
        for _ in 0..count {
            let event = greedy.until(Engine::connection_event);
            assert!(matches!(event, ConnectionEvent::Established { .. }), "{event:?}");
        }
        greedy
    }

    fn until<T>(&mut self, mut found: impl FnMut(&mut Engine<Iwarp, ()>) -> Option<T>) -> T {
        loop {
            self.engine.poll(self.clock.now());
            if let Some(found) = found(&mut self.engine) {
                return found;
            }
            std::thread::yield_now();
        }
    }

    fn begin<O: Operation>(&mut self, connection: ConnectionId, operation: &O, mut chunks: Chunks) -> bool {
        let timeout = Duration::from_secs(600);
        let target = Target { connection, credentials: Credentials::None, timeout };
        target.begin(&mut self.engine, operation, &mut chunks, 1).is_ok()
    }

    /// A WRITE of a file that there is not: its data is pulled before anybody looks.
    fn write(&mut self, connection: ConnectionId) -> bool {
        let count = LEN as u32;
        let data = Data(Item::Reduced { index: 0, len: count });
        let (file, stable) = (Handle(&[7; 32]), Stable::Unstable);
        let chunks = Chunks::read(self.data.clone());
        self.begin(connection, &WriteArguments { file, offset: 0, count, stable, data }, chunks)
    }

    /// Makes as many WRITE Calls as there are credits, after some that are answered, and answers nothing from then on.
    fn fall_silent(&mut self, is_trusted: bool) -> usize {
        for connection in self.connections.clone() {
            for _ in 0..6 {
                assert!(self.begin(connection, &Null, Chunks::default()));
                drop(self.until(Engine::completed));
            }
            if is_trusted {
                assert!(self.write(connection));
                drop(self.until(Engine::completed));
            }
        }
        let mut count = 0;
        for connection in self.connections.clone() {
            while self.write(connection) {
                count += 1;
            }
        }
        self.engine.ring_doorbells();
        count
    }
}

/// NULL of NFS by TCP.
fn check_tcp(address: &str) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let words: [u32; 11] = [1 << 31 | 40, 5, 0, 2, 100_003, 3, 0, 0, 0, 0, 0];
    let octets: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    stream.write_all(&octets).unwrap();
    let mut reply = [0; 28];
    stream.read_exact(&mut reply).expect("an answer by TCP");
    assert_eq!(reply[4..8], 5u32.to_be_bytes());
}

#[test]
fn write_calls_whose_chunks_are_never_read() {
    let folder = Folder::new("greedy");
    let path = folder.join("file");
    fs::write(&path, content(3 << 20, 3)).unwrap();
    for (connections, is_trusted) in [(24, false), (24, true), (240, true)] {
        let export = ["--export", "mem:/data,root_squash=no"];
        let size = ["--memory", "128M", "--connections-max", "256"];
        let server = Server::start_at(ANY_IWARP_PORT, &[&export[..], &size[..]].concat());
        let address = server.url.strip_prefix("iwarp://").unwrap().to_owned();
        let mut greedy = Greedy::connect(&address, connections);
        let count = greedy.fall_silent(is_trusted);
        assert!(count >= connections, "only {count} Calls");
        for name in ["one", "two"] {
            check_tcp(&address);
            let there = server.at(&format!("data/{name}"));
            stag_ok(&["put", path.to_str().unwrap(), &there]);
            let back = folder.join(name);
            stag_ok(&["get", &there, back.to_str().unwrap()]);
            assert!(fs::read(&back).unwrap() == fs::read(&path).unwrap());
            fs::remove_file(&back).unwrap();
        }
        drop(greedy);
        let (stopped, status) = server.stop();
        assert!(status.success(), "{stopped}");
    }
}

/// SIGUSR1 says what each client has of credits, and each connection.
#[test]
fn credits_are_told_by_client_and_connection() {
    let options = ["--export", "mem:/data", "--weight", "127.0.0.0/8=300", "--weight", "::1=300"];
    let mut server = Server::start_at(ANY_IWARP_PORT, &options);
    let address = server.url.strip_prefix("iwarp://").unwrap().to_owned();
    let mut client = Greedy::connect(&address, 3);
    for connection in client.connections.clone() {
        assert!(client.begin(connection, &Null, Chunks::default()));
        drop(client.until(Engine::completed));
    }
    server.signal(libc::SIGUSR1);
    let credits = &server.next_event("counters")["credits"];
    let told = &credits["clients"][0];
    assert_eq!((told["weight"].as_u64(), told["connections"].as_u64()), (Some(300), Some(3)), "{credits}");
    let connections = credits["connections"].as_array().unwrap();
    let sum = |key: &str| connections.iter().map(|each| each[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!((connections.len(), sum("requested"), sum("waiting")), (3, 3 * 16, 0), "{credits}");
    assert!(sum("granted") >= 3 && sum("granted") + 3 <= sum("receives"), "{credits}");
    assert_eq!(Some(sum("receives")), credits["receives_held"].as_u64(), "{credits}");
    assert!(credits["receives_held"].as_u64() <= credits["receives_max"].as_u64(), "{credits}");
    drop(client);
    let (stopped, status) = server.stop();
    assert!(status.success(), "{stopped}");
}
