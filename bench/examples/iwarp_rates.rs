//! Measures the iWARP provider alone, between two pinned processes over the loopback: the cost of messages and transfers
//! without RPC.
//!
//! `cargo run --release -p stag-bench --example iwarp_rates [PART OF A NAME] [ALGORITHM]`
//!
//! For scale, the box's own limits come first: TCP by itself, polled as the provider polls it, with as many octets. All sockets
//! use the same congestion control algorithm, `reno` unless another one is named: some algorithms pace even the loopback.

use std::env;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use rates::{DEPTH_MAX, LARGE, SHAPE, WINDOWS, copies, echo, now, pin, report, spawn, transfers};
use stag::fabric::Provider;
use stag::fabric::iwarp::{CongestionControl, Iwarp, IwarpConfig};
use stag_bench::bare::BareEnd;

mod rates;

/// Octets of a message of 64 octets on the wire.
const FPDU_64: usize = 88;

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().collect();
    let argument = |at: usize| arguments.get(at).map(String::as_str);
    match argument(1) {
        Some("serve") => return serve(argument(2) == Some("crc"), argument(3).context("no algorithm")?),
        Some("raw-serve") => return raw_serve(argument(2).context("no algorithm")?),
        _ => {}
    }
    pin(0);
    let only = argument(1).unwrap_or_default();
    let algorithm = argument(2).unwrap_or("reno");
    let wanted = |what: &str| what.contains(only);
    println!("{:<44} {:>12} {:>12}   ({algorithm})", "", "best", "median");
    if wanted("raw") {
        raw(algorithm)?;
    }
    for crc in [false, true] {
        println!("-- CRC {}", if crc { "on" } else { "off" });
        let mut side = side(crc, algorithm)?;
        let mode = if crc { "crc" } else { "plain" };
        let (mut child, address) = spawn(&["serve", mode, algorithm])?;
        let pair = side.connect(&address)?;
        println!("   {}", side.provider.congestion_control(pair).unwrap_or_default());
        for (depth, len) in [(1, 64), (DEPTH_MAX, 64), (DEPTH_MAX, 256)] {
            if wanted(&format!("echo {len} B, depth {depth}")) {
                echo(&mut side, pair, depth, len)?;
            }
        }
        for (len, depth) in [(4096, 32), (LARGE, 4)] {
            for write in [true, false] {
                if wanted(&transfers(write, len, depth)) {
                    copies(&mut side, pair, write, len, depth)?;
                }
            }
        }
        println!("   {:?}", counted(&side));
        side.disconnect(pair)?;
        child.0.wait()?;
    }
    Ok(())
}

fn side(crc: bool, algorithm: &str) -> Result<BareEnd<Iwarp>> {
    let congestion_control = Some(algorithm.parse::<CongestionControl>()?);
    BareEnd::new(Iwarp::open(IwarpConfig { crc, congestion_control, ..IwarpConfig::default() })?, SHAPE)
}

/// What the provider counted.
fn counted(side: &BareEnd<Iwarp>) -> Vec<(&'static str, u64)> {
    side.provider.counters().each().filter(|(_, value)| *value > 0).collect()
}

fn serve(crc: bool, algorithm: &str) -> Result<()> {
    pin(1);
    let mut side = side(crc, algorithm)?;
    let listener = side.provider.listen("127.0.0.1:0")?;
    println!("{}", side.provider.listener_address(listener).context("no address")?);
    side.serve(|| false)?;
    eprintln!("   server: {:?}", counted(&side));
    Ok(())
}

fn raw_socket(socket: &TcpStream, algorithm: &str) -> Result<()> {
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)?;
    // SAFETY: the name is readable for its length.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            algorithm.as_ptr().cast(),
            algorithm.len() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error().into()) }
}

/// Moves octets, or nothing; `None` at the end.
fn some(result: io::Result<usize>) -> Option<usize> {
    match result {
        Ok(0) => None,
        Ok(count) => Some(count),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(0),
        Err(_) => None,
    }
}

/// The first octet of a connection says what it is for: an echo, or a stream that is thrown away.
fn raw_serve(algorithm: &str) -> Result<()> {
    pin(1);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    let mut octets = vec![0; LARGE];
    for _ in 0..3 {
        let (mut socket, _) = listener.accept()?;
        let mut kind = [0];
        socket.read_exact(&mut kind)?;
        raw_socket(&socket, algorithm)?;
        if kind == *b"e" {
            while let Some(count) = some(socket.read(&mut octets)) {
                if count > 0 {
                    socket.write_all(&octets[..count])?;
                }
            }
        } else {
            while let Some(count) = some(socket.read(&mut octets)) {
                if kind == *b"c" && count > 0 {
                    std::hint::black_box(crc_fast::checksum(
                        crc_fast::CrcAlgorithm::Crc32Iscsi,
                        &octets[..count],
                    ));
                }
            }
        }
    }
    Ok(())
}

fn raw(algorithm: &str) -> Result<()> {
    let (mut child, address) = spawn(&["raw-serve", algorithm])?;
    let open = |kind: &[u8]| -> Result<TcpStream> {
        let mut socket = TcpStream::connect(&address)?;
        socket.write_all(kind)?;
        raw_socket(&socket, algorithm)?;
        Ok(socket)
    };
    let mut socket = open(b"e")?;
    let (mut octets, mut times) = ([7; FPDU_64], Vec::new());
    for _ in 0..WINDOWS.count {
        let (begin, mut done) = (now(), 0u64);
        while begin.elapsed() < WINDOWS.each {
            socket.write_all(&octets)?;
            let mut at = 0;
            while at < octets.len() {
                at += some(socket.read(&mut octets[at..])).context("closed")?;
            }
            done += 1;
        }
        times.push(begin.elapsed().as_secs_f64() * 1e9 / done as f64);
    }
    drop(socket);
    report("raw TCP echo 88 B, round trip [ns]", times.into_iter(), true);
    for (kind, what) in [(b"s", "raw TCP stream [GB/s]"), (b"c", "raw TCP stream with CRC32C [GB/s]")] {
        let mut socket = open(kind)?;
        let (octets, mut rates) = (vec![7; LARGE], Vec::new());
        for _ in 0..WINDOWS.count {
            let (begin, mut done) = (now(), 0u64);
            while begin.elapsed() < WINDOWS.each {
                if kind == b"c" {
                    std::hint::black_box(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &octets));
                }
                let mut at = 0;
                while at < octets.len() {
                    at += some(socket.write(&octets[at..])).context("closed")?;
                }
                done += octets.len() as u64;
            }
            rates.push(done as f64 / begin.elapsed().as_secs_f64() / 1e9);
        }
        report(what, rates.into_iter(), false);
    }
    child.0.wait()?;
    Ok(())
}
