//! Ways to send and to receive over TCP that the iWARP provider does not use, beside those that it does: `send` and `recv` of a
//! polled socket. A stream between two cores over the loopback, in messages of 1 MiB, and of 88 KiB, the length of 21 Replies to
//! a READ of 4 KiB that leave together.
//!
//! `cargo run --profile dist -p stag-bench --example tcp_ways [ROUNDS [ALGORITHM]]`: medians of 9 rounds in which the ways take
//! turns, with reno. `copied` says how many of the messages sent with MSG_ZEROCOPY the kernel copied all the same: on the
//! loopback all. A ring's multishot receive does not choose where the octets go, so they are copied once more, to the place of a
//! READ's data.

use std::hint::black_box;
use std::io::{Error, ErrorKind, Result};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;
use std::{mem, ptr, thread};

use io_uring::types::{BufRingEntry, Fd};
use io_uring::{IoUring, cqueue, opcode, squeue};
use memmap2::MmapMut;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_tcp_congestion};
use stag::prelude::CoreId;
use stag::runtime::{Clock, affinity};

/// Cores of the sender and of the receiver.
const CORES: [usize; 2] = [0, 1];
/// Messages that may be on their way from one sender: each has a buffer of its own.
const BUFFERS: usize = 4;
/// How long a round of one way takes.
const TIME: Duration = Duration::from_millis(200);
/// Buffers that the kernel chooses from for a multishot receive, and octets of each. A power of two.
const CHOSEN: u16 = 64;
const CHOSEN_LEN: usize = 64 << 10;
/// The number of their group.
const GROUP: u16 = 1;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sending {
    /// `send`.
    Plain,
    /// `send` with MSG_ZEROCOPY; a buffer is used again when the kernel says that it is done with it.
    ZeroCopy,
    /// io_uring, one send at a time.
    Ring,
    /// io_uring without a copy, from registered buffers.
    RingZeroCopy,
    /// io_uring, one bundle for a message: it is in pieces, of which the kernel takes all that are there.
    RingBundle,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Receiving {
    /// `recv` to where the octets belong.
    Plain,
    /// The same with a window that is as large as all messages that may be on their way, and is not adapted.
    Window,
    /// One multishot receive of io_uring into buffers that the kernel chooses, and a copy to where the octets belong.
    Multishot,
}

const WAYS: [(&str, Sending, Receiving); 7] = [
    ("send, recv", Sending::Plain, Receiving::Plain),
    ("send, recv with a window for all messages", Sending::Plain, Receiving::Window),
    ("MSG_ZEROCOPY, recv", Sending::ZeroCopy, Receiving::Plain),
    ("ring's send, recv", Sending::Ring, Receiving::Plain),
    ("ring's send without a copy, registered, recv", Sending::RingZeroCopy, Receiving::Plain),
    ("ring's send of a bundle, recv", Sending::RingBundle, Receiving::Plain),
    ("send, ring's multishot receive and a copy", Sending::Plain, Receiving::Multishot),
];

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let rounds = arguments.next().map_or(9, |text| text.parse().expect("ROUNDS is a number"));
    let algorithm = arguments.next().unwrap_or_else(|| "reno".into());
    for len in [1 << 20, 88 << 10] {
        let mut rates = WAYS.map(|_| Vec::new());
        let mut copied = String::new();
        for _ in 0..rounds {
            for ((_, sending, receiving), rates) in WAYS.into_iter().zip(&mut rates) {
                let (rate, counts) = round(sending, receiving, len, &algorithm)?;
                rates.push(rate);
                if sending == Sending::ZeroCopy {
                    copied = format!("{} of {}", counts.copied, counts.done);
                }
            }
        }
        let plain = median(&mut rates[0].clone());
        println!("messages of {} KiB", len >> 10);
        for ((name, sending, _), mut rates) in WAYS.into_iter().zip(rates) {
            let found = median(&mut rates);
            let note =
                if sending == Sending::ZeroCopy { format!(", copied: {copied}") } else { String::new() };
            println!(
                "  {name:<46} {:>5.2} GB/s ({:.2} to {:.2}), {:.2} of plain{note}",
                found / 1e9,
                rates[0] / 1e9,
                rates[rates.len() - 1] / 1e9,
                found / plain
            );
        }
    }
    Ok(())
}

/// The median; sorts.
fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// What the kernel said of messages sent without a copy.
#[derive(Clone, Copy, Default)]
struct Counts {
    done: u32,
    copied: u32,
}

/// Octets a second of a stream.
fn round(sending: Sending, receiving: Receiving, len: usize, algorithm: &str) -> Result<(f64, Counts)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    if receiving == Receiving::Window {
        // Before the connection, which takes it over from here.
        set_socket_recv_buffer_size(&listener, BUFFERS * len)?;
    }
    let from = TcpStream::connect(listener.local_addr()?)?;
    let (to, _) = listener.accept()?;
    for end in [&from, &to] {
        set_tcp_congestion(end, algorithm)?;
        end.set_nodelay(true)?;
    }
    let sender = thread::spawn(move || {
        affinity::pin(CoreId(CORES[0])).ok();
        match sending {
            Sending::Plain => send_plainly(&from, len),
            Sending::ZeroCopy => send_without_copy(&from, len),
            Sending::Ring => send_by_ring(&from, len, false),
            Sending::RingZeroCopy => send_by_ring(&from, len, true),
            Sending::RingBundle => send_bundles(&from, len),
        }
    });
    let receiver = thread::spawn(move || {
        affinity::pin(CoreId(CORES[1])).ok();
        match receiving {
            Receiving::Plain | Receiving::Window => receive_plainly(to, len),
            Receiving::Multishot => receive_by_ring(to, len),
        }
    });
    let rate = receiver.join().expect("the receiver does not panic")?;
    Ok((rate, sender.join().expect("the sender does not panic")?))
}

/// Counts what arrived, after a time in which the connection finds its pace.
struct Gauge {
    clock: Clock,
    start: Duration,
    octets: usize,
    is_warm: bool,
}

impl Gauge {
    fn start() -> Gauge {
        let clock = Clock::start();
        Gauge { clock, start: clock.now(), octets: 0, is_warm: false }
    }

    /// The rate, when the time is over.
    fn add(&mut self, octets: usize) -> Option<f64> {
        self.octets += octets;
        let took = self.clock.now() - self.start;
        if !self.is_warm && took >= TIME / 5 {
            *self = Gauge { is_warm: true, ..Gauge::start() };
            return None;
        }
        (self.is_warm && took >= TIME).then(|| self.octets as f64 / took.as_secs_f64())
    }
}

/// How a sender's error ends it: the receiver has seen enough and is gone.
fn ended(error: Error, counts: Counts) -> Result<Counts> {
    match error.kind() {
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted => Ok(counts),
        _ => Err(error),
    }
}

/// Buffers with octets in them, so that each page is there.
fn buffers(len: usize) -> Result<Vec<MmapMut>> {
    let buffer = |_| {
        let mut buffer = MmapMut::map_anon(len)?;
        buffer.fill(0x5a);
        Ok(buffer)
    };
    (0..BUFFERS).map(buffer).collect()
}

/// Sends octets of `message`, as many as there is room for; `None`, if there is none.
fn send(socket: &TcpStream, message: &[u8], flags: libc::c_int) -> Result<Option<usize>> {
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the octets are there until the call returns. With MSG_ZEROCOPY the kernel reads them later, too: the caller
    // keeps them until the kernel says that it is done.
    let sent = unsafe { libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), flags) };
    if sent >= 0 {
        return Ok(Some(sent as usize));
    }
    let error = Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOBUFS) => Ok(None),
        _ => Err(error),
    }
}

fn send_plainly(socket: &TcpStream, len: usize) -> Result<Counts> {
    let buffers = buffers(len)?;
    for buffer in buffers.iter().cycle() {
        let mut at = 0;
        while at < len {
            match send(socket, &buffer[at..], 0) {
                Ok(Some(sent)) => at += sent,
                Ok(None) => std::hint::spin_loop(),
                Err(error) => return ended(error, Counts::default()),
            }
        }
    }
    unreachable!("a cycle does not end")
}

fn send_without_copy(socket: &TcpStream, len: usize) -> Result<Counts> {
    let on: libc::c_int = 1;
    // SAFETY: the option's value is an int that lives until the call returns.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ZEROCOPY,
            ptr::from_ref(&on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    if status != 0 {
        return Err(Error::last_os_error());
    }
    let buffers = buffers(len)?;
    // Calls of `send` so far, and after the last one with each buffer.
    let (mut calls, mut last) = (0, [0; BUFFERS]);
    let mut counts = Counts::default();
    for (number, buffer) in buffers.iter().enumerate().cycle() {
        while counts.done < last[number] {
            reap(socket.as_raw_fd(), &mut counts)?;
        }
        let mut at = 0;
        while at < len {
            match send(socket, &buffer[at..], libc::MSG_ZEROCOPY) {
                Ok(Some(sent)) => {
                    at += sent;
                    calls += 1;
                }
                Ok(None) => reap(socket.as_raw_fd(), &mut counts)?,
                // The kernel is done with the buffers when the socket is closed, which it is before them.
                Err(error) => return ended(error, counts),
            }
        }
        last[number] = calls;
    }
    unreachable!("a cycle does not end")
}

/// Takes what the kernel says of messages that it is done with.
fn reap(socket: RawFd, counts: &mut Counts) -> Result<()> {
    let mut control = [0u64; 16];
    // SAFETY: a msghdr without name and data is all zeros but for its control buffer.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    // SAFETY: the header and the control buffer live until the call returns.
    let status = unsafe { libc::recvmsg(socket, &mut header, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) };
    if status < 0 {
        let error = Error::last_os_error();
        return if error.kind() == ErrorKind::WouldBlock { Ok(()) } else { Err(error) };
    }
    // SAFETY: the kernel has filled the header.
    let message = unsafe { libc::CMSG_FIRSTHDR(&header) };
    if !message.is_null() {
        // SAFETY: the only control message of an error queue is a sock_extended_err, which may stand at any address.
        let error: libc::sock_extended_err = unsafe { ptr::read_unaligned(libc::CMSG_DATA(message).cast()) };
        let count = error.ee_data - error.ee_info + 1;
        counts.done += count;
        // SO_EE_CODE_ZEROCOPY_COPIED.
        counts.copied += if error.ee_code == 1 { count } else { 0 };
    }
    Ok(())
}

/// Submits an entry and waits for completions.
fn submit(ring: &mut IoUring, entry: &squeue::Entry) -> Result<()> {
    // SAFETY: what the entry points to is kept by the caller until the kernel is done with it.
    unsafe { ring.submission().push(entry) }.map_err(Error::other)?;
    ring.submit_and_wait(1).map(drop)
}

fn send_by_ring(socket: &TcpStream, len: usize, without_copy: bool) -> Result<Counts> {
    let buffers = buffers(len)?;
    let mut ring = IoUring::builder().setup_single_issuer().build(16)?;
    if without_copy {
        let list: Vec<_> = buffers
            .iter()
            .map(|buffer| libc::iovec { iov_base: buffer.as_ptr().cast_mut().cast(), iov_len: len })
            .collect();
        // SAFETY: the buffers are mapped longer than the ring, which is dropped first.
        unsafe { ring.submitter().register_buffers(&list) }?;
    }
    let file = Fd(socket.as_raw_fd());
    let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
    // Which the kernel still reads.
    let mut is_read = [false; BUFFERS];
    for (number, buffer) in buffers.iter().enumerate().cycle() {
        while is_read[number] {
            ring.submit_and_wait(1)?;
            if let Err(error) = harvest(&mut ring, &mut is_read) {
                return ended(error, Counts::default());
            }
        }
        let entry = if without_copy {
            is_read[number] = true;
            opcode::SendZc::new(file, buffer.as_ptr(), len as u32)
                .buf_index(Some(number as u16))
                .flags(flags)
                .build()
        } else {
            opcode::Send::new(file, buffer.as_ptr(), len as u32).flags(flags).build()
        };
        submit(&mut ring, &entry.user_data(number as u64))?;
        // One at a time, so that the octets of two do not mix.
        loop {
            match harvest(&mut ring, &mut is_read) {
                Ok(0) => ring.submit_and_wait(1).map(drop)?,
                Ok(_) => break,
                Err(error) => return ended(error, Counts::default()),
            }
        }
    }
    unreachable!("a cycle does not end")
}

/// Takes completions; says how many sends are over.
fn harvest(ring: &mut IoUring, is_read: &mut [bool; BUFFERS]) -> Result<usize> {
    let mut over = 0;
    for completion in ring.completion() {
        if cqueue::notif(completion.flags()) {
            is_read[completion.user_data() as usize] = false;
        } else if completion.result() < 0 {
            return Err(Error::from_raw_os_error(-completion.result()));
        } else {
            over += 1;
        }
    }
    Ok(over)
}

fn receive_plainly(socket: TcpStream, len: usize) -> Result<f64> {
    socket.set_nonblocking(true)?;
    let mut targets = buffers(len)?;
    let mut gauge = Gauge::start();
    loop {
        for target in &mut targets {
            let mut at = 0;
            while at < len {
                match std::io::Read::read(&mut &socket, &mut target[at..]) {
                    Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                    Ok(received) => at += received,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                    Err(error) => return Err(error),
                }
            }
            black_box(&target);
            if let Some(rate) = gauge.add(len) {
                return Ok(rate);
            }
        }
    }
}

/// Each message is in pieces, which the kernel takes from a ring of them and sends as one.
fn send_bundles(socket: &TcpStream, len: usize) -> Result<Counts> {
    let buffers = buffers(len)?;
    let mut ring = IoUring::builder().setup_single_issuer().build(16)?;
    let mut pieces = BufferRing::new(&ring)?;
    // As many as a READ's Replies take, or a message of 1 MiB has FPDUs.
    let piece_len = len.div_ceil(22).next_multiple_of(4096);
    let entry = opcode::SendBundle::new(Fd(socket.as_raw_fd()), GROUP)
        .flags(libc::MSG_NOSIGNAL | libc::MSG_WAITALL)
        .build();
    for buffer in buffers.iter().cycle() {
        for (id, piece) in (0..).zip(buffer.chunks(piece_len)) {
            pieces.give(id, piece);
        }
        let mut sent = 0;
        while sent < len {
            submit(&mut ring, &entry)?;
            for completion in ring.completion() {
                match -completion.result() {
                    // The last bundle was cut short, as the receiver is gone; the next message fails with
                    // that.
                    libc::ENOBUFS => sent = len,
                    error if error > 0 => return ended(Error::from_raw_os_error(error), Counts::default()),
                    octets => sent += octets.unsigned_abs() as usize,
                }
            }
        }
    }
    unreachable!("a cycle does not end")
}

/// A ring that tells the kernel of the buffers in its group.
struct BufferRing {
    entries: MmapMut,
    tail: u16,
}

impl BufferRing {
    fn new(ring: &IoUring) -> Result<BufferRing> {
        let entries = MmapMut::map_anon(usize::from(CHOSEN) * size_of::<BufRingEntry>())?;
        let address = entries.as_ptr() as u64;
        // SAFETY: it is mapped, page-aligned, until the socket's ring is dropped, which its owner drops first.
        unsafe { ring.submitter().register_buf_ring_with_flags(address, CHOSEN, GROUP, 0) }?;
        Ok(BufferRing { entries, tail: 0 })
    }

    /// Gives the kernel a buffer, which its owner keeps until the kernel is done with it.
    fn give(&mut self, id: u16, octets: &[u8]) {
        let first: *mut BufRingEntry = self.entries.as_mut_ptr().cast();
        // SAFETY: the place is one of the ring's, which the kernel does not read before the tail says so; the tail lies in the first entry
        // and is an aligned u16 that the kernel reads atomically.
        unsafe {
            let entry = &mut *first.add(usize::from(self.tail % CHOSEN));
            entry.set_addr(octets.as_ptr() as u64);
            entry.set_len(octets.len() as u32);
            entry.set_bid(id);
            self.tail = self.tail.wrapping_add(1);
            let tail = BufRingEntry::tail(first).cast_mut().cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
    }
}

/// The buffers that the kernel chooses from, and the ring that tells it of them.
struct Chosen {
    ring: BufferRing,
    memory: MmapMut,
}

impl Chosen {
    fn new(ring: &IoUring) -> Result<Chosen> {
        let memory = MmapMut::map_anon(usize::from(CHOSEN) * CHOSEN_LEN)?;
        let mut chosen = Chosen { ring: BufferRing::new(ring)?, memory };
        (0..CHOSEN).for_each(|id| chosen.give(id));
        Ok(chosen)
    }

    /// The octets of a buffer.
    fn octets(&self, id: u16) -> &[u8] {
        &self.memory[usize::from(id) * CHOSEN_LEN..][..CHOSEN_LEN]
    }

    /// Gives the kernel a buffer.
    fn give(&mut self, id: u16) {
        self.ring.give(id, &self.memory[usize::from(id) * CHOSEN_LEN..][..CHOSEN_LEN]);
    }
}

fn receive_by_ring(socket: TcpStream, len: usize) -> Result<f64> {
    let mut targets = buffers(len)?;
    let mut ring = IoUring::builder().setup_single_issuer().build(16)?;
    let mut chosen = Chosen::new(&ring)?;
    let mut gauge = Gauge::start();
    let (mut target, mut at) = (0, 0);
    let entry = opcode::RecvMulti::new(Fd(socket.as_raw_fd()), GROUP).build();
    submit(&mut ring, &entry)?;
    let found = loop {
        let mut is_over = false;
        let mut rate = None;
        while let Some(completion) = ring.completion().next() {
            is_over |= !cqueue::more(completion.flags());
            // All buffers were taken.
            if completion.result() == -libc::ENOBUFS {
                continue;
            }
            let Some(id) = cqueue::buffer_select(completion.flags()) else {
                return Err(Error::from_raw_os_error(-completion.result()));
            };
            let mut octets = &chosen.octets(id)[..completion.result() as usize];
            let received = octets.len();
            while !octets.is_empty() {
                let part = octets.len().min(len - at);
                targets[target][at..at + part].copy_from_slice(&octets[..part]);
                (octets, at) = (&octets[part..], at + part);
                if at == len {
                    (target, at) = ((target + 1) % BUFFERS, 0);
                }
            }
            chosen.give(id);
            rate = rate.or(gauge.add(received));
        }
        if rate.is_some() {
            break rate;
        }
        if is_over {
            submit(&mut ring, &entry)?;
        } else {
            ring.submit_and_wait(1)?;
        }
    };
    // The receive under way must not outlive its buffers.
    drop(socket);
    drop(ring);
    drop(chosen);
    Ok(found.unwrap_or_default())
}
