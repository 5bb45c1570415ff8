//! The limits of TCP alone on the two cores: the reference of iWARP's figures. `batched` has that of small Calls at
//! depth. Both ends poll their sockets, as
//! the provider does, with the same congestion control; nothing is between them and the kernel.

use std::hint::black_box;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;

use anyhow::{Context, Result};
use serde::Serialize;
use stag_fabric::iwarp::CongestionControl;
use stag_runtime::Clock;

use super::on_core;
use super::tcp_ends::{TIME, connect, crc32c, fpdu_len};
use crate::pin::pin;
use crate::scenario::{MeasuredOperation, Scenario};
use crate::spread::Spread;

/// The limits of TCP between one pair of cores.
#[derive(Clone, Debug, Serialize)]
pub struct TcpLimits {
    /// Round trip of as many octets as a NULL Call and its Reply are on the wire, in nanoseconds.
    pub round_trip_ns: Spread,
    /// Calls a second of as many octets as those of the load, as many outstanding, where all that is due leaves by one send; with the
    /// CRC32C of all of it computed by either end, if the load has CRCs. `None` of large ones: a stream is their limit.
    pub calls_per_second: Option<Spread>,
    /// A stream of messages of 1 MiB, in octets a second.
    pub stream: Spread,
    /// The same, with the CRC32C of all of it computed by either end.
    pub stream_crc: Spread,
}

/// Octets of a message of the streams.
const MESSAGE_LEN: usize = 1 << 20;

/// Octets whose CRC is computed at once: few enough that they are still in the cache when they are sent.
const PIECE_LEN: usize = 128 << 10;

/// Octets of a NULL Call and of its Reply as FPDUs: RPC and RPC-over-RDMA headers, and MPA's and DDP's around them.
const CALL_LEN: usize = fpdu_len(40 + 28);
const REPLY_LEN: usize = fpdu_len(24 + 28);

/// Measures the limits of `cores` (client, server). Streams go the way that the operation's data goes.
///
/// # Errors
///
/// When the loopback fails.
pub fn measure(cores: [usize; 2], scenario: &Scenario) -> Result<TcpLimits> {
    let congestion = scenario.congestion_control;
    let way = if scenario.operation == MeasuredOperation::Write { cores } else { [cores[1], cores[0]] };
    Ok(TcpLimits {
        round_trip_ns: Spread::of(vec![ping_pong(cores, congestion)?]),
        calls_per_second: super::batched::measure(cores, scenario)?.map(|rate| Spread::of(vec![rate])),
        stream: Spread::of(vec![stream(way, congestion, false)?]),
        stream_crc: Spread::of(vec![stream(way, congestion, true)?]),
    })
}

/// Nanoseconds of a round trip.
fn ping_pong(cores: [usize; 2], congestion: Option<CongestionControl>) -> Result<f64> {
    let (mut one, mut other) = connect(congestion)?;
    let echo = thread::spawn(move || {
        pin(cores[1]);
        let mut message = [0; CALL_LEN];
        // Until the other end is closed.
        while read(&mut other, &mut message).is_ok() && write(&mut other, &[0; REPLY_LEN]).is_ok() {}
    });
    let measured = on_core(cores[0], move |clock| {
        let mut message = [0; REPLY_LEN];
        let (mut start, mut count) = (clock.now(), 0u32);
        let mut warm = false;
        loop {
            write(&mut one, &[0; CALL_LEN])?;
            read(&mut one, &mut message)?;
            count += 1;
            if count.is_multiple_of(64) {
                let took = clock.now() - start;
                if warm && took >= TIME {
                    return Ok::<f64, io::Error>(took.as_nanos() as f64 / f64::from(count));
                }
                // The first tenth is for the connection to find its pace.
                if !warm && took >= TIME / 10 {
                    (warm, start, count) = (true, clock.now(), 0);
                }
            }
        }
    });
    super::join(echo);
    measured.context("a TCP ping-pong")
}

/// Octets a second from the first core to the second.
fn stream(cores: [usize; 2], congestion: Option<CongestionControl>, crc: bool) -> Result<f64> {
    let (mut from, mut to) = connect(congestion)?;
    let sender = thread::spawn(move || {
        pin(cores[0]);
        let message = vec![0x5a; MESSAGE_LEN];
        let piece_len = if crc { PIECE_LEN } else { MESSAGE_LEN };
        // Until the other end is closed.
        loop {
            for piece in message.chunks(piece_len) {
                if crc {
                    black_box(crc32c(piece));
                }
                if write(&mut from, piece).is_err() {
                    return;
                }
            }
        }
    });
    let measured = on_core(cores[1], move |clock: &Clock| {
        let mut message = vec![0; MESSAGE_LEN];
        let piece_len = if crc { PIECE_LEN } else { MESSAGE_LEN };
        let (mut start, mut count) = (clock.now(), 0usize);
        let mut warm = false;
        loop {
            let mut at = 0;
            while at < MESSAGE_LEN {
                let end = MESSAGE_LEN.min(at + piece_len);
                let len = match to.read(&mut message[at..end]) {
                    Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof)),
                    Ok(len) => len,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                    Err(error) => return Err(error),
                };
                if crc {
                    black_box(crc32c(&message[at..at + len]));
                }
                at += len;
            }
            black_box(&message);
            count += MESSAGE_LEN;
            let took = clock.now() - start;
            if warm && took >= TIME {
                return Ok(count as f64 / took.as_secs_f64());
            }
            if !warm && took >= TIME / 5 {
                (warm, start, count) = (true, clock.now(), 0);
            }
        }
    });
    super::join(sender);
    measured.context("a TCP stream")
}

/// Reads all of `message`, spinning while there is none.
fn read(from: &mut TcpStream, message: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    while at < message.len() {
        match from.read(&mut message[at..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => at += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes all of `message`, spinning while there is no room.
fn write(to: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let mut at = 0;
    while at < message.len() {
        match to.write(&message[at..]) {
            Ok(len) => at += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
