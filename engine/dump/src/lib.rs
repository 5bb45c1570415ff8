//! Analyzes captures: RPC-over-RDMA over iWARP and RoCEv2, message by message, with the rules that it breaks.
//!
//! ```text
//!  capture   a file: pcap, pcapng                        ┌ stream ── iwarp ┐
//!  packet    a frame: link, IP, TCP or UDP  ── Analyzer ─┤                 ├─ conversation ── Event
//!                                                        └──────── roce ───┘   call  check  program  compound
//! ```
//!
//! [`recording`] goes the other way: it writes messages that no network carried as a capture.
//!
//! The protocols are [`stag_wire`]'s; this crate has the parts that need memory: TCP streams, messages of several segments,
//! Calls that wait for their Replies. All of it is bounded ([`HELD_MAX`]), whatever the file holds and however long it is.
//!
//! ```
//! let file = [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0];
//! let mut capture = stag_dump::capture::CaptureReader::new(&file[..])?;
//! let mut analyzer = stag_dump::Analyzer::new(stag_dump::Options::default());
//! while let Some(frame) = capture.next_frame()? {
//!     analyzer.frame(&frame, &mut |event| println!("{event:?}"));
//! }
//! let totals = analyzer.finish(&mut |event| println!("{event:?}"));
//! assert_eq!(totals.messages, 0);
//! # Ok::<(), stag_dump::capture::CaptureError>(())
//! ```
#![forbid(unsafe_code)]

pub mod capture;
pub mod packet;
pub mod recording;

mod answerable;
mod call;
mod check;
mod compound;
mod conversation;
mod cut;
mod event;
mod iwarp;
mod party;
mod procedure;
mod program;
mod pulled;
mod reading;
mod report;
mod roce;
mod speaker;
pub mod status;
mod stream;
mod transmission;
mod version2;
mod violations;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use stag_wire::roce::PORT as ROCE_PORT;

pub use event::{
    Answered, CapturedCompound, CapturedEvent, CapturedFabric, CapturedOperation, ChunkKind, ChunkUse,
    ConnectionEnd, Endpoints, EventKind, Extension, IpProtocol, Message, Moved, RuleViolation, Setup,
    Termination, Totals,
};
pub use procedure::{CalledProcedure, Rpc, Status};

use capture::CapturedFrame;
use event::Context;
use iwarp::Flow;
use packet::{CapturedPacket, Skipped, TcpSegment};
use roce::Roce;

/// Octets that an [`Analyzer`] holds at most, roughly. Beyond, it gives up the connections that were quiet for the longest
/// time, and counts them ([`Totals::given_up`]).
pub const HELD_MAX: usize = 256 << 20;

/// TCP connections that are followed at once.
const FLOWS_MAX: usize = 16_384;

/// What an [`Analyzer`] does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Keeps each Call, and the data of all its chunks, for the report of its Reply ([`Answered`]); otherwise only
    /// what is needed to read Payload streams.
    pub keep_data: bool,
}

/// Both ends of a TCP connection, the smaller first.
type Ends = (SocketAddr, SocketAddr);

/// Reads frames in the order of the capture, and reports what is in them.
#[derive(Debug)]
pub struct Analyzer {
    options: Options,
    flows: HashMap<Ends, Flow>,
    roce: Roce,
    held: usize,
    totals: Totals,
    last_frame: u64,
    last_time: Duration,
}

impl Analyzer {
    /// Starts with nothing.
    #[must_use]
    pub fn new(options: Options) -> Analyzer {
        Analyzer {
            options,
            flows: HashMap::new(),
            roce: Roce::new(options.keep_data),
            held: 0,
            totals: Totals::default(),
            last_frame: 0,
            last_time: Duration::ZERO,
        }
    }

    /// What was counted so far.
    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Octets that are held, roughly.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held + self.roce.held()
    }

    /// Takes the next frame.
    pub fn frame(&mut self, frame: &CapturedFrame<'_>, sink: &mut dyn FnMut(&CapturedEvent<'_>)) {
        self.totals.frames += 1;
        (self.last_frame, self.last_time) = (frame.number, frame.time);
        match packet::parse(frame.link, frame.octets) {
            Ok(CapturedPacket::Tcp(segment)) => {
                self.totals.count_other(IpProtocol::Tcp, segment.destination.port(), segment.payload);
                self.segment(&segment, sink);
            }
            Ok(CapturedPacket::Udp(datagram)) if datagram.destination.port() == ROCE_PORT => {
                let cut = if packet::is_bare(frame.link) { frame.missing as usize } else { 0 };
                let (mut cx, roce) = self.context(sink);
                roce.datagram(&mut cx, &datagram, cut);
            }
            Ok(CapturedPacket::Udp(datagram)) => {
                self.totals.count_other(IpProtocol::Udp, datagram.destination.port(), datagram.payload);
            }
            Err(Skipped::Other) => {}
            Err(Skipped::Link(link)) => {
                self.totals.frames_of_other_links += 1;
                self.totals.other_link.get_or_insert(link);
            }
            Err(Skipped::Fragment) => self.totals.fragments += 1,
            Err(Skipped::Malformed) => self.totals.malformed += 1,
        }
        self.keep_within_memory(sink);
    }

    /// Ends the capture: reports what waited, and the ends of all connections.
    pub fn finish(mut self, sink: &mut dyn FnMut(&CapturedEvent<'_>)) -> Totals {
        let mut ends: Vec<(u64, Ends)> =
            self.flows.iter().map(|(ends, flow)| (flow.last_frame, *ends)).collect();
        ends.sort_unstable();
        for (_, ends) in ends {
            self.close(ends, sink);
        }
        let (mut cx, roce) = self.context(sink);
        roce.finish(&mut cx);
        self.totals
    }

    fn context<'c>(&'c mut self, sink: &'c mut dyn FnMut(&CapturedEvent<'_>)) -> (Context<'c>, &'c mut Roce) {
        let cx = Context {
            frame: self.last_frame,
            time: self.last_time,
            connection: 0,
            missing: 0,
            sink,
            totals: &mut self.totals,
        };
        (cx, &mut self.roce)
    }

    fn segment(&mut self, segment: &TcpSegment<'_>, sink: &mut dyn FnMut(&CapturedEvent<'_>)) {
        let (source, destination) = (segment.source, segment.destination);
        let ends = (source.min(destination), source.max(destination));
        if self.flows.get(&ends).is_some_and(|flow| flow.is_replaced_by(segment)) {
            self.close(ends, sink);
        }
        if !self.flows.contains_key(&ends) {
            let Some(flow) = Flow::new(segment, self.options.keep_data) else { return };
            self.held += FLOW_HELD;
            self.flows.insert(ends, flow);
        }
        let Some(flow) = self.flows.get_mut(&ends) else { return };
        let before = flow.held();
        flow.last_frame = self.last_frame;
        let mut cx = Context {
            frame: self.last_frame,
            time: self.last_time,
            connection: 0,
            missing: 0,
            sink,
            totals: &mut self.totals,
        };
        let has_ended = flow.segment(&mut cx, segment);
        self.held = (self.held + flow.held()).saturating_sub(before);
        if has_ended {
            self.close(ends, sink);
        }
    }

    fn close(&mut self, ends: Ends, sink: &mut dyn FnMut(&CapturedEvent<'_>)) {
        let Some(mut flow) = self.flows.remove(&ends) else { return };
        self.held = self.held.saturating_sub(flow.held() + FLOW_HELD);
        let (mut cx, _) = self.context(sink);
        flow.close(&mut cx);
    }

    fn keep_within_memory(&mut self, sink: &mut dyn FnMut(&CapturedEvent<'_>)) {
        while self.held() > HELD_MAX && self.roce.held() > self.held {
            let (mut cx, roce) = self.context(sink);
            if !roce.give_up(&mut cx) {
                break;
            }
        }
        if self.flows.len() <= FLOWS_MAX && self.held() <= HELD_MAX {
            return;
        }
        // An eighth at once, so that a capture of a million connections does not sort a million times.
        let mut quiet: Vec<(u64, Ends)> =
            self.flows.iter().map(|(ends, flow)| (flow.last_frame, *ends)).collect();
        quiet.sort_unstable();
        quiet.truncate(quiet.len().div_ceil(8));
        for (_, ends) in quiet {
            self.totals.given_up += 1;
            self.close(ends, sink);
        }
    }
}

/// What a connection takes by itself.
const FLOW_HELD: usize = 2048;
