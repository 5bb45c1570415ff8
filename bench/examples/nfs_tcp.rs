//! NFSv3 over TCP: READs and WRITEs of 1 MiB by one socket without an engine, beside a TCP stream between the same two cores in
//! the same direction. The stream is measured twice: with one buffer of 1 MiB at each end, which stays in the cache, and with
//! sixteen, as a server uses that keeps files.
//!
//! `cargo run --profile dist -p stag-bench --example nfs_tcp [ROUNDS [DEPTH [ALGORITHM]]]`: medians of 7 rounds, of 4 Calls outstanding, with
//! reno.
//!
//! The server is a reactor with NFS on a file in memory, on core 1; the client, on core 0, polls its socket. It reads each octet
//! of a Reply into one buffer and checks only its status and count.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::net::sockopt::set_tcp_congestion;
use stag::fabric::iwarp::CongestionControl;
use stag::nfs::export::Export;
use stag::nfs::memory::{MemoryConfig, MemoryStore, RootAttributes};
use stag::nfs::server::{ExportTable, TimeOfDay, services};
use stag::prelude::*;
use stag::runtime::{WallClock, affinity};
use stag::wire::mount3::{self, MntReply, PathArguments};
use stag::wire::nfs3::{
    self, CreateArguments, CreateHow, CreateReply, Data, DirectoryName, Handle, Name, ReadArguments,
    SetAttributes, Stable, WriteArguments,
};
use stag::wire::record::{MARK_LEN, Mark};
use stag::wire::rpc::{AuthSys, CallHeader, Gids, OpaqueAuth, flavor};
use stag::wire::xdr::{Encode, Item};
use stag_bench::MeasuredOperation;

/// Octets of a READ or a WRITE.
const DATA_LEN: usize = 1 << 20;
/// The file consists of this number of parts.
const PARTS: usize = 8;
/// How long a round of either takes.
const TIME: Duration = Duration::from_millis(300);
/// Cores of client and server.
const CORES: [usize; 2] = [0, 1];
/// Octets of a Reply's header, which stand before its results: XID, REPLY, accepted, no verifier, SUCCESS.
const REPLY_HEADER_LEN: usize = 24;
/// Where the count of a READ's results is, and of a WRITE's: behind the status and attributes, or wcc_data, in full.
const READ_COUNT_AT: usize = 4 + 88;
const WRITE_COUNT_AT: usize = 4 + 28 + 88;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default| words.get(at).map_or(Ok(default), |word| word.parse::<usize>());
    let (rounds, depth) = (number(0, 7)?, number(1, 4)?);
    let congestion = words.get(2).map_or("reno", String::as_str).parse::<CongestionControl>()?;
    // By operation: the rate, and its share of either stream.
    let mut figures = [const { Vec::new() }; 2];
    for _ in 0..rounds {
        for (operation, figures) in
            [MeasuredOperation::Read, MeasuredOperation::Write].into_iter().zip(&mut figures)
        {
            let cores = if operation == MeasuredOperation::Write { CORES } else { [CORES[1], CORES[0]] };
            let (one, many) = (stream(cores, 1, congestion)?, stream(cores, 2 * PARTS, congestion)?);
            let rate = round(operation, depth, congestion)?;
            figures.push([rate / 1e9, rate / one, rate / many]);
        }
    }
    println!(
        "{:32} {:>6}   {:>22}   {:>22}",
        format!("1 MiB, depth {depth}"),
        "GB/s",
        "share of a stream",
        "that uses 16 MiB"
    );
    for (name, figures) in ["READ", "WRITE"].into_iter().zip(&figures) {
        let spread = |which: usize| {
            let mut values: Vec<f64> = figures.iter().map(|each| each[which]).collect();
            values.sort_by(f64::total_cmp);
            (values[values.len() / 2], values[0], values[values.len() - 1])
        };
        let share = |which| {
            let (median, least, most) = spread(which);
            format!("{median:.2} ({least:.2} to {most:.2})")
        };
        println!("{name:32} {:>6.2}   {:>22}   {:>22}", spread(0).0, share(1), share(2));
    }
    Ok(())
}

/// Octets a second of a stream from the first core to the second: messages of 1 MiB that rotate through `buffers` buffers at each
/// end.
fn stream(cores: [usize; 2], buffers: usize, congestion: CongestionControl) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    set_tcp_congestion(&listener, congestion.as_str())?;
    let mut from = open(listener.local_addr()?, congestion)?;
    let (mut to, _) = listener.accept()?;
    to.set_nonblocking(true)?;
    let sender = thread::spawn(move || {
        affinity::pin(CoreId(cores[0])).ok();
        let data = vec![0x5a; buffers * DATA_LEN];
        // Until the other end is closed.
        while data.chunks(DATA_LEN).all(|message| write_all(&mut from, message).is_ok()) {}
    });
    let receiver = thread::spawn(move || {
        affinity::pin(CoreId(cores[1])).ok();
        let mut data = vec![0; buffers * DATA_LEN];
        let clock = Clock::start();
        let (mut start, mut count, mut is_warm) = (clock.now(), 0, false);
        loop {
            for message in data.chunks_mut(DATA_LEN) {
                read_all(&mut to, message)?;
                count += DATA_LEN;
            }
            let took = clock.now() - start;
            if is_warm && took >= TIME {
                return Ok::<f64, anyhow::Error>(count as f64 / took.as_secs_f64());
            }
            if !is_warm && took >= TIME / 5 {
                (is_warm, start, count) = (true, clock.now(), 0);
            }
        }
    });
    let rate = receiver.join().map_err(|_| anyhow!("a receiver panicked"))?;
    sender.join().map_err(|_| anyhow!("a sender panicked"))?;
    rate
}

/// A socket that is polled.
fn open(address: SocketAddr, congestion: CongestionControl) -> Result<TcpStream> {
    let socket = TcpStream::connect(address)?;
    set_tcp_congestion(&socket, congestion.as_str())?;
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Octets a second that a new server reads or writes.
fn round(operation: MeasuredOperation, depth: usize, congestion: CongestionControl) -> Result<f64> {
    let stop = StopFlag::new()?;
    let (ready, started) = mpsc::channel();
    let server = {
        let stop = stop.clone();
        thread::spawn(move || serve(&stop, congestion, &ready))
    };
    let address = match started.recv() {
        Ok(address) => address,
        // It ended before it was ready: its result says why.
        Err(_) => return server.join().map_err(|_| anyhow!("the server panicked"))?.map(|()| 0.0),
    };
    let client = thread::spawn(move || {
        affinity::pin(CoreId(CORES[0])).ok();
        let mut client = Client::connect(address, congestion)?;
        client.measure(operation, depth)
    });
    let rate = client.join().map_err(|_| anyhow!("the client panicked"))?;
    stop.request();
    server.join().map_err(|_| anyhow!("the server panicked"))??;
    rate
}

fn serve(stop: &StopFlag, congestion: CongestionControl, ready: &mpsc::Sender<SocketAddr>) -> Result<()> {
    let (clock, core) = (Clock::start(), Some(CoreId(CORES[1])));
    let config = ReactorConfig { core, mode: PollMode::Busy, drain_max: Duration::from_secs(2) };
    let mut reactor = Reactor::new(config, clock)?;
    let config = EngineConfig { stream_congestion_control: Some(congestion), ..EngineConfig::default() };
    let memory = Memory::new(&config, 8 * PARTS * DATA_LEN)?;
    let mut provider = Shm::open(ShmConfig::default())?;
    provider.register(&memory.arena)?;
    let pool = &memory.pools.payload;
    let mut time = TimeOfDay::System(WallClock::new(clock.now()));
    let store = MemoryConfig {
        fsid: 1,
        data_len_max: (2 * PARTS * DATA_LEN) as u64,
        objects_max: 16,
        names_max: 16,
        root: RootAttributes { mode: 0o777, uid: 0, gid: 0 },
    };
    let store = MemoryStore::new(&store, pool.clone(), time.at(clock.now()))?;
    let exports =
        ExportTable::new(vec![("mem:/data,root_squash=no".parse::<Export>()?, store)], pool.clone())?;
    let (nfs, mount, _) = services(exports, time);
    let mut engine = Engine::new(provider, (nfs, mount), memory.pools.clone(), config, 1)?;
    ready.send(engine.listen_tcp("127.0.0.1:0")?)?;
    let _ = reactor.run(&mut engine, stop)?;
    Ok(())
}

/// A socket, and a file that it may read and write.
struct Client {
    socket: TcpStream,
    file: Vec<u8>,
    credential: Vec<u8>,
    xid: u32,
}

impl Client {
    fn connect(address: SocketAddr, congestion: CongestionControl) -> Result<Client> {
        let socket = open(address, congestion)?;
        let mut credential = vec![0; AuthSys::BODY_LEN_MAX];
        let mut writer = Writer::new(&mut credential);
        writer.value(&AuthSys { stamp: 0, machine_name: b"nfs_tcp", uid: 0, gid: 0, gids: Gids::NONE })?;
        let len = writer.position();
        credential.truncate(len);
        let mut client = Client { socket, file: Vec::new(), credential, xid: 0 };

        let path = PathArguments { path: Name(b"/data") };
        let reply = client.ask((mount3::PROGRAM, 1), &path)?;
        let root = match Reader::new(&reply).value::<MntReply<'_>>()? {
            Ok(ok) => ok.handle.0.to_vec(),
            Err(status) => bail!("MNT: {status:?}"),
        };
        let place = DirectoryName { directory: Handle(&root), name: Name(b"file") };
        let how = CreateHow::Unchecked(SetAttributes { mode: Some(0o600), ..SetAttributes::default() });
        let reply = client.ask((nfs3::PROGRAM, 8), &CreateArguments { place, how })?;
        client.file = match Reader::new(&reply).value::<CreateReply<'_>>()? {
            Ok(ok) => ok.object.context("CREATE: no handle")?.0.to_vec(),
            Err(failure) => bail!("CREATE: {:?}", failure.status),
        };
        Ok(client)
    }

    /// A record with a Call of `procedure` (a program and a number).
    fn record(&mut self, (program, procedure): (u32, u32), arguments: &impl Encode) -> Result<Vec<u8>> {
        self.xid += 1;
        let mut record = vec![0; DATA_LEN + 4096];
        let mut writer = Writer::new(&mut record[MARK_LEN..]);
        let credential = OpaqueAuth { flavor: flavor::AUTH_SYS, body: &self.credential };
        CallHeader { xid: self.xid, program, version: 3, procedure, credential, verifier: OpaqueAuth::NONE }
            .emit(&mut writer)?;
        writer.value(arguments)?;
        let len = writer.position();
        record[..MARK_LEN].copy_from_slice(&Mark::whole(len as u32).to_bytes());
        record.truncate(MARK_LEN + len);
        Ok(record)
    }

    /// Makes a Call, and returns its results.
    fn ask(&mut self, procedure: (u32, u32), arguments: &impl Encode) -> Result<Vec<u8>> {
        let record = self.record(procedure, arguments)?;
        write_all(&mut self.socket, &record)?;
        let mut reply = vec![0; DATA_LEN + 4096];
        let len = self.reply(&mut reply)?;
        reply.truncate(len);
        Ok(reply.split_off(REPLY_HEADER_LEN))
    }

    /// Reads one Reply into `space`, whole, and returns its length. It was accepted, with SUCCESS.
    fn reply(&mut self, space: &mut [u8]) -> Result<usize> {
        let mut mark = [0; MARK_LEN];
        read_all(&mut self.socket, &mut mark)?;
        let mark = Mark::from_bytes(mark);
        let len = mark.len as usize;
        ensure!(mark.is_last && (REPLY_HEADER_LEN..=space.len()).contains(&len), "a record of {len} octets");
        read_all(&mut self.socket, &mut space[..len])?;
        ensure!(space[8..REPLY_HEADER_LEN] == [0; REPLY_HEADER_LEN - 8], "a Call was refused");
        Ok(len)
    }

    fn measure(&mut self, operation: MeasuredOperation, depth: usize) -> Result<f64> {
        let data = vec![0x5a; DATA_LEN];
        let file = self.file.clone();
        let write = |at: usize| WriteArguments {
            file: Handle(&file),
            offset: (at * DATA_LEN) as u64,
            count: DATA_LEN as u32,
            stable: Stable::Unstable,
            data: Data(Item::Inline(&data)),
        };
        let mut calls = Vec::new();
        for at in 0..PARTS {
            let record = self.record((nfs3::PROGRAM, 7), &write(at))?;
            if operation == MeasuredOperation::Write {
                calls.push(record);
                continue;
            }
            write_all(&mut self.socket, &record)?;
            let mut reply = [0; 4096];
            self.reply(&mut reply)?;
            let arguments =
                ReadArguments { file: Handle(&file), offset: (at * DATA_LEN) as u64, count: DATA_LEN as u32 };
            calls.push(self.record((nfs3::PROGRAM, 6), &arguments)?);
        }
        let count_at = REPLY_HEADER_LEN
            + if operation == MeasuredOperation::Write { WRITE_COUNT_AT } else { READ_COUNT_AT };
        let mut reply = vec![0; DATA_LEN + 4096];
        let clock = Clock::start();
        let (mut begun, mut ended, mut counted_from) = (0, 0, None);
        let mut start = clock.now();
        loop {
            while begun - ended < depth {
                // No two Calls that the server may remember have the same XID.
                self.xid += 1;
                let call = &mut calls[begun % PARTS];
                call[MARK_LEN..MARK_LEN + 4].copy_from_slice(&self.xid.to_be_bytes());
                write_all(&mut self.socket, call)?;
                begun += 1;
            }
            self.reply(&mut reply)?;
            let status = &reply[REPLY_HEADER_LEN..REPLY_HEADER_LEN + 4];
            let count = &reply[count_at..count_at + 4];
            ensure!(
                status == [0; 4] && count == (DATA_LEN as u32).to_be_bytes(),
                "not all was read or written"
            );
            ended += 1;
            let took = clock.now() - start;
            match counted_from {
                None if took >= TIME / 5 => (counted_from, start) = (Some(ended), clock.now()),
                Some(first) if took >= TIME => {
                    return Ok(((ended - first) * DATA_LEN) as f64 / took.as_secs_f64());
                }
                _ => {}
            }
        }
    }
}

/// Reads all of `space`, polling while there is nothing.
fn read_all(socket: &mut TcpStream, space: &mut [u8]) -> Result<()> {
    let mut at = 0;
    while at < space.len() {
        match socket.read(&mut space[at..]) {
            Ok(0) => bail!("the other end closed the connection"),
            Ok(count) => at += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Writes all of `octets`, polling while there is no room.
fn write_all(socket: &mut TcpStream, octets: &[u8]) -> Result<()> {
    let mut at = 0;
    while at < octets.len() {
        match socket.write(&octets[at..]) {
            Ok(count) => at += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
