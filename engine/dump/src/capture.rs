//! Capture files: pcap and pcapng, of either byte order, frame by frame.
//!
//! One frame is held at a time, at most [`FRAME_LEN_MAX`] octets of it, whatever lengths the file claims. Captures may be
//! hostile, so `dump` has no dependency but `wire`: this bound and the fuzz target cover all code that reads them.

use std::fmt;
use std::io::{self, Read};
use std::time::Duration;

/// Octets that a captured frame may have: above what any link carries, GSO included.
pub const FRAME_LEN_MAX: usize = 1 << 20;

/// Interfaces that a section of a pcapng file may have.
const INTERFACES_MAX: usize = 1 << 16;

/// Octets of options of an interface that are looked at.
const OPTIONS_LEN_MAX: usize = 1 << 16;

/// A captured frame, borrowed from its [`CaptureReader`].
#[derive(Clone, Copy, Debug)]
pub struct CapturedFrame<'a> {
    /// Its number, from 1, as other tools count too.
    pub number: u64,
    /// When it was captured, since 1970; zero if the file does not say.
    pub time: Duration,
    /// The link type: a number of the LINKTYPE registry.
    pub link: u16,
    /// What was captured. May be less than was sent.
    pub octets: &'a [u8],
    /// Octets that were sent behind these and are not in the file, as it says.
    pub missing: u32,
}

/// Why a capture cannot be read, or not any further.
#[derive(Debug)]
#[non_exhaustive]
pub enum CaptureError {
    /// Reading failed.
    Io(io::Error),
    /// The file holds nothing.
    Empty,
    /// It starts like no capture; the first octets.
    Format([u8; 4]),
    /// The file ends inside frame `after` + 1, or inside a block behind frame `after`.
    Truncated {
        /// Frames that were read before.
        after: u64,
    },
    /// A block or frame claims an impossible length.
    Length {
        /// Frames that were read before.
        after: u64,
        /// The length claimed.
        found: u64,
    },
    /// A frame names an interface that the file does not describe.
    Interface {
        /// Frames that were read before.
        after: u64,
        /// The interface.
        found: u32,
    },
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CaptureError::Io(error) => error.fmt(f),
            CaptureError::Empty => {
                f.write_str("the file is empty; a capture has at least a header of 24 octets")
            }
            CaptureError::Format([a, b, c, d]) => {
                write!(f, "it starts with {a:02x} {b:02x} {c:02x} {d:02x}: neither pcap nor pcapng")
            }
            CaptureError::Truncated { after: 0 } => f.write_str("the file ends before its first frame does"),
            CaptureError::Truncated { after } => {
                write!(f, "the file is cut short: it ends behind frame {after}")
            }
            CaptureError::Length { after, found } => {
                write!(f, "behind frame {after} the file is damaged: a length of {found} octets")
            }
            CaptureError::Interface { after, found } => {
                write!(f, "behind frame {after} the file is damaged: interface {found} is not described")
            }
        }
    }
}

impl std::error::Error for CaptureError {}

/// Byte order of a file or section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn u16(self, octets: [u8; 2]) -> u16 {
        match self {
            Order::Little => u16::from_le_bytes(octets),
            Order::Big => u16::from_be_bytes(octets),
        }
    }

    fn u32(self, octets: [u8; 4]) -> u32 {
        match self {
            Order::Little => u32::from_le_bytes(octets),
            Order::Big => u32::from_be_bytes(octets),
        }
    }

    /// Reads the word at `at`, which must be inside.
    fn word(self, octets: &[u8], at: usize) -> u32 {
        octets.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| self.u32(*word))
    }
}

/// An interface of a pcapng section.
#[derive(Clone, Copy, Debug)]
struct Interface {
    link: u16,
    /// Ticks of a second; 0 if they cannot be counted in 64 bits.
    resolution: u64,
    /// Seconds to add.
    offset: u64,
    snap_len: u32,
}

enum Format {
    Pcap { order: Order, nanoseconds: bool, link: u16 },
    Pcapng { order: Order, interfaces: Vec<Interface> },
}

/// Reads a capture from its start to its end.
pub struct CaptureReader<R> {
    input: R,
    format: Format,
    frame: Vec<u8>,
    /// Octets of the frame that the file lacks.
    missing: u32,
    number: u64,
}

mod magic {
    pub(super) const PCAP_MICROSECONDS: u32 = 0xa1b2_c3d4;
    pub(super) const PCAP_NANOSECONDS: u32 = 0xa1b2_3c4d;
    /// Reads the same in both orders.
    pub(super) const SECTION: u32 = 0x0a0d_0d0a;
    pub(super) const ORDER: u32 = 0x1a2b_3c4d;
}

mod block {
    pub(super) const INTERFACE: u32 = 1;
    pub(super) const PACKET: u32 = 2;
    pub(super) const SIMPLE_PACKET: u32 = 3;
    pub(super) const ENHANCED_PACKET: u32 = 6;
}

mod option {
    pub(super) const END: u16 = 0;
    pub(super) const RESOLUTION: u16 = 9;
    pub(super) const OFFSET: u16 = 14;
}

impl<R: Read> CaptureReader<R> {
    /// Reads the file's header. `input` should be buffered.
    pub fn new(mut input: R) -> Result<CaptureReader<R>, CaptureError> {
        let mut first = [0; 4];
        match fill(&mut input, &mut first)? {
            0 => return Err(CaptureError::Empty),
            4 => {}
            _ => return Err(CaptureError::Format(first)),
        }
        let reader =
            |input, format| CaptureReader { input, format, frame: Vec::new(), missing: 0, number: 0 };
        for order in [Order::Little, Order::Big] {
            let word = order.u32(first);
            if word == magic::PCAP_MICROSECONDS || word == magic::PCAP_NANOSECONDS {
                let mut rest = [0; 20];
                exact(&mut input, &mut rest, 0)?;
                // The upper bits say how long a frame check sequence is, where there is one.
                let link = (order.word(&rest, 16) & 0xffff) as u16;
                let nanoseconds = word == magic::PCAP_NANOSECONDS;
                return Ok(reader(input, Format::Pcap { order, nanoseconds, link }));
            }
        }
        if Order::Little.u32(first) != magic::SECTION {
            return Err(CaptureError::Format(first));
        }
        let mut reader = reader(input, Format::Pcapng { order: Order::Little, interfaces: Vec::new() });
        let mut length = [0; 4];
        exact(&mut reader.input, &mut length, 0)?;
        reader.section(length)?;
        Ok(reader)
    }

    /// Reads the next frame; `None` behind the last one.
    pub fn next_frame(&mut self) -> Result<Option<CapturedFrame<'_>>, CaptureError> {
        let found = match self.format {
            Format::Pcap { order, nanoseconds, link } => self.next_record(order, nanoseconds, link)?,
            Format::Pcapng { .. } => self.next_packet()?,
        };
        let Some((time, link)) = found else { return Ok(None) };
        self.number += 1;
        let (number, missing) = (self.number, self.missing);
        Ok(Some(CapturedFrame { number, time, link, octets: &self.frame, missing }))
    }

    /// Reads a record of pcap into `frame`.
    fn next_record(
        &mut self,
        order: Order,
        nanoseconds: bool,
        link: u16,
    ) -> Result<Option<(Duration, u16)>, CaptureError> {
        let mut header = [0; 16];
        match fill(&mut self.input, &mut header)? {
            0 => return Ok(None),
            16 => {}
            _ => return Err(CaptureError::Truncated { after: self.number }),
        }
        let (seconds, fraction) = (order.word(&header, 0), u64::from(order.word(&header, 4)));
        let fraction = Duration::from_nanos(if nanoseconds { fraction } else { fraction * 1000 });
        self.take_frame(order.word(&header, 8), order.word(&header, 12))?;
        Ok(Some((Duration::from_secs(u64::from(seconds)) + fraction, link)))
    }

    /// Reads blocks of pcapng up to the next one with a packet, and that into `frame`.
    fn next_packet(&mut self) -> Result<Option<(Duration, u16)>, CaptureError> {
        loop {
            let mut header = [0; 8];
            match fill(&mut self.input, &mut header)? {
                0 => return Ok(None),
                8 => {}
                _ => return Err(CaptureError::Truncated { after: self.number }),
            }
            let [t0, t1, t2, t3, length @ ..] = header;
            let Format::Pcapng { order, .. } = self.format else { return Ok(None) };
            let kind = order.u32([t0, t1, t2, t3]);
            if kind == magic::SECTION {
                self.section(length)?;
                continue;
            }
            let total = order.u32(length);
            // Type, length, and the length again.
            let Some(body) = u64::from(total).checked_sub(12).filter(|body| body % 4 == 0) else {
                return Err(CaptureError::Length { after: self.number, found: total.into() });
            };
            let found = match kind {
                block::INTERFACE => self.interface(order, body).map(|()| None)?,
                block::ENHANCED_PACKET | block::PACKET => Some(self.enhanced(order, kind, body)?),
                block::SIMPLE_PACKET => Some(self.simple(order, body)?),
                _ => self.skip(body).map(|()| None)?,
            };
            self.skip(4)?;
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    /// Reads a section header behind its length, which is in the order that follows it.
    fn section(&mut self, length: [u8; 4]) -> Result<(), CaptureError> {
        let mut mark = [0; 4];
        exact(&mut self.input, &mut mark, self.number)?;
        let order = if Order::Little.u32(mark) == magic::ORDER {
            Order::Little
        } else if Order::Big.u32(mark) == magic::ORDER {
            Order::Big
        } else {
            return Err(CaptureError::Format(mark));
        };
        let total = order.u32(length);
        let Some(rest) = u64::from(total).checked_sub(12).filter(|rest| *rest >= 16) else {
            return Err(CaptureError::Length { after: self.number, found: total.into() });
        };
        self.format = Format::Pcapng { order, interfaces: Vec::new() };
        self.skip(rest)
    }

    /// Reads the body of an interface description.
    fn interface(&mut self, order: Order, body: u64) -> Result<(), CaptureError> {
        let mut head = [0; 8];
        let Some(options_len) = body.checked_sub(8) else {
            return Err(CaptureError::Length { after: self.number, found: body });
        };
        exact(&mut self.input, &mut head, self.number)?;
        let looked_at = options_len.min(OPTIONS_LEN_MAX as u64);
        let mut options = vec![0; looked_at as usize];
        exact(&mut self.input, &mut options, self.number)?;
        self.skip(options_len - looked_at)?;
        let mut interface = Interface {
            link: order.u16([head[0], head[1]]),
            resolution: 1_000_000,
            offset: 0,
            snap_len: order.word(&head, 4),
        };
        let mut rest = &options[..];
        while let Some(([c0, c1, l0, l1], after)) = rest.split_first_chunk() {
            let code = order.u16([*c0, *c1]);
            let len = usize::from(order.u16([*l0, *l1]));
            let Some(value) = after.get(..len) else { break };
            match (code, value) {
                (option::END, _) => break,
                (option::RESOLUTION, [power, ..]) => {
                    let base = if power & 0x80 == 0 { 10u64 } else { 2 };
                    interface.resolution = base.checked_pow(u32::from(power & 0x7f)).unwrap_or(0);
                }
                (option::OFFSET, [o0, o1, o2, o3, o4, o5, o6, o7]) => {
                    let (first, second) = (order.u32([*o0, *o1, *o2, *o3]), order.u32([*o4, *o5, *o6, *o7]));
                    let (high, low) = if order == Order::Big { (first, second) } else { (second, first) };
                    interface.offset = u64::from(high) << 32 | u64::from(low);
                }
                _ => {}
            }
            rest = after.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        if let Format::Pcapng { interfaces, .. } = &mut self.format {
            if interfaces.len() == INTERFACES_MAX {
                return Err(CaptureError::Length { after: self.number, found: INTERFACES_MAX as u64 + 1 });
            }
            interfaces.push(interface);
        }
        Ok(())
    }

    fn find_interface(&self, index: u32) -> Result<Interface, CaptureError> {
        let found = match &self.format {
            Format::Pcapng { interfaces, .. } => interfaces.get(index as usize).copied(),
            Format::Pcap { .. } => None,
        };
        found.ok_or(CaptureError::Interface { after: self.number, found: index })
    }

    /// Reads the body of an enhanced packet, or of its obsolete form.
    fn enhanced(&mut self, order: Order, kind: u32, body: u64) -> Result<(Duration, u16), CaptureError> {
        let mut head = [0; 20];
        let Some(rest) = body.checked_sub(20) else {
            return Err(CaptureError::Length { after: self.number, found: body });
        };
        exact(&mut self.input, &mut head, self.number)?;
        let index = match kind {
            block::PACKET => u32::from(order.u16([head[0], head[1]])),
            _ => order.word(&head, 0),
        };
        let interface = self.find_interface(index)?;
        let ticks = u64::from(order.word(&head, 4)) << 32 | u64::from(order.word(&head, 8));
        let captured = order.word(&head, 12);
        let Some(left) = rest.checked_sub(captured.into()) else {
            return Err(CaptureError::Length { after: self.number, found: captured.into() });
        };
        self.take_frame(captured, order.word(&head, 16))?;
        self.skip(left)?;
        Ok((interface.time(ticks), interface.link))
    }

    /// Reads the body of a simple packet: of the first interface, without a time.
    fn simple(&mut self, order: Order, body: u64) -> Result<(Duration, u16), CaptureError> {
        let mut head = [0; 4];
        let Some(rest) = body.checked_sub(4) else {
            return Err(CaptureError::Length { after: self.number, found: body });
        };
        exact(&mut self.input, &mut head, self.number)?;
        let interface = self.find_interface(0)?;
        let limit = if interface.snap_len == 0 { u32::MAX } else { interface.snap_len };
        let sent = order.u32(head);
        let captured = sent.min(limit).min(u32::try_from(rest).unwrap_or(u32::MAX));
        self.take_frame(captured, sent)?;
        self.skip(rest - u64::from(captured))?;
        Ok((Duration::ZERO, interface.link))
    }

    /// Reads `len` octets into `frame`, of which `sent` were sent.
    fn take_frame(&mut self, len: u32, sent: u32) -> Result<(), CaptureError> {
        self.missing = sent.saturating_sub(len);
        let Some(len) = usize::try_from(len).ok().filter(|len| *len <= FRAME_LEN_MAX) else {
            return Err(CaptureError::Length { after: self.number, found: len.into() });
        };
        self.frame.resize(len, 0);
        exact(&mut self.input, &mut self.frame, self.number)
    }

    /// Reads `len` octets, and forgets them.
    fn skip(&mut self, mut len: u64) -> Result<(), CaptureError> {
        let mut scratch = [0; 4096];
        while len > 0 {
            let step = len.min(scratch.len() as u64) as usize;
            exact(&mut self.input, &mut scratch[..step], self.number)?;
            len -= step as u64;
        }
        Ok(())
    }
}

impl Interface {
    fn time(&self, ticks: u64) -> Duration {
        let (Some(seconds), Some(fraction)) =
            (ticks.checked_div(self.resolution), ticks.checked_rem(self.resolution))
        else {
            return Duration::ZERO;
        };
        let nanoseconds = u128::from(fraction) * 1_000_000_000 / u128::from(self.resolution);
        Duration::from_secs(seconds.wrapping_add(self.offset))
            .saturating_add(Duration::from_nanos(nanoseconds as u64))
    }
}

/// Reads until `buf` is full or the input ends; returns how much there was.
fn fill(input: &mut impl Read, buf: &mut [u8]) -> Result<usize, CaptureError> {
    let mut len = 0;
    while len < buf.len() {
        match input.read(&mut buf[len..]) {
            Ok(0) => break,
            Ok(count) => len += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(CaptureError::Io(error)),
        }
    }
    Ok(len)
}

fn exact(input: &mut impl Read, buf: &mut [u8], after: u64) -> Result<(), CaptureError> {
    if fill(input, buf)? == buf.len() { Ok(()) } else { Err(CaptureError::Truncated { after }) }
}
