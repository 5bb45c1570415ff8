//! Makes captures: from a kept one, in another format, over another link, or damaged.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::time::Duration;

use stag_dump::capture::{CaptureReader, CapturedFrame};
use stag_dump::{Analyzer, CapturedEvent, EventKind, Options, Totals};
use stag_wire::rpcrdma::Fixed;

/// A frame of Ethernet.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) time: Duration,
    pub(crate) octets: Vec<u8>,
}

/// Link types.
pub(crate) mod link {
    pub(crate) const NULL: u16 = 0;
    pub(crate) const ETHERNET: u16 = 1;
    pub(crate) const RAW: u16 = 101;
    pub(crate) const COOKED: u16 = 113;
    pub(crate) const COOKED_2: u16 = 276;
}

/// Octets of a header of Ethernet.
pub(crate) const ETHERNET_LEN: usize = 14;

/// Reads a kept capture.
pub(crate) fn frames(path: &Path) -> Vec<Kept> {
    let mut capture =
        CaptureReader::new(BufReader::new(File::open(path).expect("a capture"))).expect("a capture");
    let mut frames = Vec::new();
    while let Some(CapturedFrame { time, link: link::ETHERNET, octets, .. }) =
        capture.next_frame().expect("whole")
    {
        frames.push(Kept { time, octets: octets.to_vec() });
    }
    frames
}

/// What a capture says, in a form that can be compared: a line for each message and each broken rule.
pub(crate) fn told(event: &CapturedEvent<'_>) -> Option<String> {
    let connection = event.connection;
    match &event.kind {
        EventKind::Message(message) => {
            let rules: Vec<&str> = message.violations.iter().map(|broken| broken.rule).collect();
            let xid = message.header.map(|(header, _)| header.xid()).ok();
            let xid = xid.or_else(|| Fixed::parse(message.octets).ok().map(|(fixed, _)| fixed.xid));
            let call = message
                .answered
                .map(|answered| answered.chunks.iter().map(|chunk| chunk.moved).collect::<Vec<_>>());
            Some(format!("{connection} {:?} {xid:?} {:?} {call:?} {rules:?}", message.from, message.rpc))
        }
        EventKind::Violation(from, broken) => Some(format!("{connection} {from:?} {}", broken.rule)),
        _ => None,
    }
}

/// Runs frames through the analyzer; returns what they say, and the totals.
pub(crate) fn analyze(frames: &[Kept]) -> (Vec<String>, Totals) {
    let mut analyzer = Analyzer::new(Options::default());
    let mut lines = Vec::new();
    let mut sink = |event: &CapturedEvent<'_>| lines.extend(told(event));
    for (index, Kept { time, octets }) in frames.iter().enumerate() {
        let frame =
            CapturedFrame { number: index as u64 + 1, time: *time, link: link::ETHERNET, octets, missing: 0 };
        analyzer.frame(&frame, &mut sink);
    }
    let totals = analyzer.finish(&mut sink);
    (lines, totals)
}

/// The rules that are broken, each as often as it is.
pub(crate) fn rules(totals: &Totals) -> Vec<(&'static str, u64)> {
    totals.violations.iter().map(|(rule, count)| (*rule, *count)).collect()
}

/// Runs a file that is made of octets.
pub(crate) fn analyze_file(file: &[u8]) -> (Vec<String>, Totals) {
    let mut capture = CaptureReader::new(file).expect("a capture");
    let mut analyzer = Analyzer::new(Options::default());
    let mut lines = Vec::new();
    let mut sink = |event: &CapturedEvent<'_>| lines.extend(told(event));
    while let Some(frame) = capture.next_frame().expect("whole") {
        analyzer.frame(&frame, &mut sink);
    }
    let totals = analyzer.finish(&mut sink);
    (lines, totals)
}

/// Byte orders of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Little,
    Big,
}

impl Order {
    fn u16(self, value: u16) -> [u8; 2] {
        if self == Order::Little { value.to_le_bytes() } else { value.to_be_bytes() }
    }

    fn u32(self, value: u32) -> [u8; 4] {
        if self == Order::Little { value.to_le_bytes() } else { value.to_be_bytes() }
    }
}

/// Writes a pcap file.
pub(crate) fn pcap(frames: &[Kept], order: Order, nanoseconds: bool, link: u16) -> Vec<u8> {
    let magic = if nanoseconds { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
    let mut file = order.u32(magic).to_vec();
    file.extend([order.u16(2), order.u16(4)].concat());
    for word in [0, 0, 1 << 18, u32::from(link)] {
        file.extend(order.u32(word));
    }
    for Kept { time, octets } in frames {
        let fraction = if nanoseconds { time.subsec_nanos() } else { time.subsec_micros() };
        let len = octets.len() as u32;
        for word in [time.as_secs() as u32, fraction, len, len] {
            file.extend(order.u32(word));
        }
        file.extend(octets);
    }
    file
}

/// Writes a block of pcapng.
fn block(file: &mut Vec<u8>, order: Order, kind: u32, body: &[u8]) {
    let len = 12 + body.len().next_multiple_of(4);
    file.extend(order.u32(kind));
    file.extend(order.u32(len as u32));
    file.extend(body);
    file.resize(file.len().next_multiple_of(4), 0);
    file.extend(order.u32(len as u32));
}

/// Writes a pcapng file; times in ticks of 10^-`digits` seconds.
pub(crate) fn pcapng(frames: &[Kept], order: Order, digits: u8, link: u16) -> Vec<u8> {
    let mut file = Vec::new();
    let section = [&order.u32(0x1a2b_3c4d)[..], &order.u16(1), &order.u16(0), &[0xff; 8]].concat();
    block(&mut file, order, 0x0a0d_0d0a, &section);
    let resolution = [&order.u16(9)[..], &order.u16(1), &[digits, 0, 0, 0]].concat();
    let interface = [&order.u16(link)[..], &[0; 2], &order.u32(0), &resolution, &[0; 4]].concat();
    block(&mut file, order, 1, &interface);
    // A block of an unknown type, which readers skip.
    block(&mut file, order, 0x0bad, &[1, 2, 3, 4, 5]);
    for Kept { time, octets } in frames {
        let ticks = (time.as_nanos() / 10u128.pow(9 - u32::from(digits))) as u64;
        let len = octets.len() as u32;
        let words = [0, (ticks >> 32) as u32, ticks as u32, len, len];
        let body: Vec<u8> =
            words.into_iter().flat_map(|word| order.u32(word)).chain(octets.clone()).collect();
        block(&mut file, order, 6, &body);
    }
    file
}

/// Replaces the link header of each frame of IP; others are dropped.
pub(crate) fn relink(frames: &[Kept], header: &[u8]) -> Vec<Kept> {
    let is_ip = |kept: &&Kept| kept.octets[12..14] == [8, 0];
    let replace =
        |kept: &Kept| Kept { time: kept.time, octets: [header, &kept.octets[ETHERNET_LEN..]].concat() };
    frames.iter().filter(is_ip).map(replace).collect()
}

/// Puts each packet of IPv4 into one of IPv6, behind `extensions` whose last one names its successor in octet 0.
pub(crate) fn ipv6(frames: &[Kept], first: Option<u8>, extensions: &[u8]) -> Vec<Kept> {
    let is_ip = |kept: &&Kept| kept.octets[12..14] == [8, 0];
    let replace = |kept: &Kept| {
        let packet = &kept.octets[ETHERNET_LEN..];
        let (head, rest) = packet.split_at(4 * usize::from(packet[0] & 0x0f));
        let len = usize::from(u16::from_be_bytes([head[2], head[3]])) - head.len();
        let rest = &rest[..len];
        let mut octets = kept.octets[..12].to_vec();
        octets.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        octets.extend(((extensions.len() + len) as u16).to_be_bytes());
        octets.extend([first.unwrap_or(head[9]), 64]);
        for address in [&head[12..16], &head[16..20]] {
            octets.extend([0xfd; 12]);
            octets.extend(address);
        }
        let extension_at = octets.len();
        octets.extend(extensions);
        if first.is_some() {
            // The only, or last, of them names what follows.
            octets[extension_at] = head[9];
        }
        octets.extend(rest);
        Kept { time: kept.time, octets }
    };
    frames.iter().filter(is_ip).map(replace).collect()
}

/// The TCP payload of a frame of IPv4, and where it starts; `None` if there is none.
pub(crate) fn tcp_payload(octets: &[u8]) -> Option<usize> {
    if octets.get(12..14)? != [8, 0] || *octets.get(ETHERNET_LEN + 9)? != 6 {
        return None;
    }
    let ip_len = 4 * usize::from(octets[ETHERNET_LEN] & 0x0f);
    let tcp = ETHERNET_LEN + ip_len;
    let payload = tcp + 4 * usize::from(octets.get(tcp + 12)? >> 4);
    (payload < octets.len()).then_some(payload)
}

/// Cuts each TCP segment into pieces of at most `size` octets.
pub(crate) fn resegment(frames: &[Kept], size: usize) -> Vec<Kept> {
    let mut cut = Vec::new();
    for kept in frames {
        let Some(at) = tcp_payload(&kept.octets) else {
            cut.push(kept.clone());
            continue;
        };
        let (head, payload) = kept.octets.split_at(at);
        let tcp = ETHERNET_LEN + 4 * usize::from(head[ETHERNET_LEN] & 0x0f);
        let sequence = u32::from_be_bytes(head[tcp + 4..tcp + 8].try_into().expect("4"));
        for (index, piece) in payload.chunks(size).enumerate() {
            let mut octets = [head, piece].concat();
            let total = (octets.len() - ETHERNET_LEN) as u16;
            octets[ETHERNET_LEN + 2..ETHERNET_LEN + 4].copy_from_slice(&total.to_be_bytes());
            let place = sequence.wrapping_add((index * size) as u32);
            octets[tcp + 4..tcp + 8].copy_from_slice(&place.to_be_bytes());
            cut.push(Kept { time: kept.time, octets });
        }
    }
    cut
}

/// Random numbers that a seed repeats (xorshift).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}
