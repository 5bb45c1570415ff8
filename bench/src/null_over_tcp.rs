//! NULL Calls over TCP to any NFS server, the same for ours and for another one's.
//!
//! The client polls one connection: Calls that may begin leave by one write, and all that has come is taken by one read.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use stag_runtime::Clock;

use crate::pin::pin;

/// The program and the version whose NULL is called: NFS version 4, which needs no rpcbind.
const PROGRAM: [u32; 2] = [100_003, 4];

/// Octets of a Call with its record mark, and of its Reply without.
const CALL_LEN: usize = 4 + 40;
const REPLY_LEN: usize = 24;

/// How long a server may be silent.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What was measured.
#[derive(Clone, Debug)]
pub struct NullOverTcp {
    /// Calls a second.
    pub calls_per_second: f64,
    /// Latencies in nanoseconds.
    pub latency: Histogram<u64>,
}

/// The record of a NULL Call.
fn call(xid: u32) -> [u8; CALL_LEN] {
    let [program, version] = PROGRAM;
    // The last fragment, of 40 octets; a Call of RPC version 2; procedure 0; no credential and no verifier.
    let words = [0x8000_0028, xid, 0, 2, program, version, 0, 0, 0, 0, 0];
    let mut octets = [0; CALL_LEN];
    for (place, word) in octets.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&u32::to_be_bytes(word));
    }
    octets
}

/// The xid of a Reply to NULL.
fn reply(octets: &[u8]) -> Result<u32> {
    let word = |index: usize| {
        let place = octets.get(4 * index..4 * index + 4)?;
        Some(u32::from_be_bytes(place.try_into().ok()?))
    };
    // A Reply that is accepted, an empty verifier, success.
    match [0, 1, 2, 4, 5].map(word) {
        [Some(xid), Some(1), Some(0), Some(0), Some(0)] if octets.len() == REPLY_LEN => Ok(xid),
        words => bail!("the server refuses NULL of NFS version 4: {words:?}"),
    }
}

/// Measures NULL Calls from `core`, with `depth` outstanding, after a fifth of `duration`.
///
/// # Errors
///
/// When there is no server at `address`, it refuses the Calls, or it is silent for five seconds.
pub fn measure(address: &str, core: usize, depth: usize, duration: Duration) -> Result<NullOverTcp> {
    let address = address.to_owned();
    let thread = std::thread::spawn(move || {
        pin(core);
        run(&address, depth, duration)
    });
    thread.join().unwrap_or_else(|_| bail!("the client panicked"))
}

fn run(address: &str, depth: usize, duration: Duration) -> Result<NullOverTcp> {
    let mut stream = TcpStream::connect(address).with_context(|| address.to_owned())?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let clock = Clock::start();
    let mut latency = Histogram::new_with_bounds(1, 60_000_000_000, 3)?;
    let mut started = vec![Duration::ZERO; depth];
    let mut idle: Vec<usize> = (0..depth).collect();
    let (mut out, mut sent) = (Vec::new(), 0);
    let mut input: Vec<u8> = Vec::new();
    let mut octets = vec![0; 64 << 10];
    let (from, to) = (clock.now() + duration / 5, clock.now() + duration / 5 + duration);
    let (mut calls, mut last) = (0_u64, clock.now());
    let ended;
    loop {
        let now = clock.now();
        // On a busy machine the first Call may end after the time.
        let is_over = now >= to && calls > 0;
        if is_over && idle.len() == depth {
            ended = now;
            break;
        }
        if !is_over {
            while let Some(slot) = idle.pop() {
                started[slot] = now;
                out.extend_from_slice(&call(slot as u32));
            }
        }
        if sent < out.len() {
            match stream.write(&out[sent..]) {
                Ok(len) => sent += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            if sent == out.len() {
                (out, sent) = (Vec::new(), 0);
            }
        }
        match stream.read(&mut octets) {
            Ok(0) => bail!("{address}: the server closed the connection"),
            Ok(len) => input.extend_from_slice(&octets[..len]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if now > last + TIMEOUT {
                    bail!("{address}: no Reply within {TIMEOUT:?}");
                }
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        last = clock.now();
        let mut at = 0;
        while let Some(mark) = input.get(at..at + 4) {
            let len = (u32::from_be_bytes([mark[0], mark[1], mark[2], mark[3]]) & 0x7fff_ffff) as usize;
            let Some(record) = input.get(at + 4..at + 4 + len) else {
                if len > REPLY_LEN {
                    bail!("{address}: a Reply of {len} octets to NULL");
                }
                break;
            };
            let slot = reply(record)? as usize;
            let began = *started.get(slot).context("a Reply to no Call")?;
            if last >= from {
                calls += 1;
                latency.saturating_record((last - began).as_nanos() as u64);
            }
            idle.push(slot);
            at += 4 + len;
        }
        input.drain(..at);
    }
    let took = ended.saturating_sub(from).as_secs_f64();
    Ok(NullOverTcp { calls_per_second: calls as f64 / took.max(1e-9), latency })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A server that answers each Call with this many words behind the xid.
    fn server(words: [u32; 5]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut octets = [0; CALL_LEN];
            while stream.read_exact(&mut octets).is_ok() {
                let xid = [octets[4], octets[5], octets[6], octets[7]];
                let mut answer = 0x8000_0018_u32.to_be_bytes().to_vec();
                answer.extend(xid);
                words.iter().for_each(|word| answer.extend(word.to_be_bytes()));
                if stream.write_all(&answer).is_err() {
                    break;
                }
            }
        });
        address
    }

    #[test]
    fn calls_are_counted_and_refusals_are_said() {
        let found = measure(&server([1, 0, 0, 0, 0]), 0, 4, Duration::from_millis(50)).unwrap();
        assert!(found.calls_per_second > 0.0 && !found.latency.is_empty());
        // PROG_MISMATCH.
        let error = measure(&server([1, 0, 0, 0, 2]), 0, 1, Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("refuses NULL"), "{error}");
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        assert!(measure(&nobody, 0, 1, Duration::from_millis(50)).is_err());
    }
}
