//! Writes messages that were recorded above the fabric as a capture (pcapng): Wireshark reads it, and so does
//! [`Analyzer`](crate::Analyzer).
//!
//! Whatever fabric carried a message, it is written as one packet of RoCEv2, a Send Only. Both tools read that without a handshake
//! of TCP, and each packet by itself, so a recording may begin and end anywhere.
//!
//! ```text
//!  SHB comment | IDB raw IP, nanoseconds | for each connection: EPB CM REQ, EPB CM REP | EPB Send, EPB Send, ..
//!  EPB         IPv4 or IPv6 | UDP port 4791 | BTH | [IETH] | message or its start | padding | ICRC
//! ```
//!
//! The set-up messages name the queue pairs and carry both sides' private data. The first message of a connection has not the
//! packet number that they announce: readers see that something came before, and do not check what depends on it. RDMA Reads and Writes
//! are not written. Of a message that is longer than what was recorded, the packet has the start; the frame's original length
//! in the file counts the rest.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use stag_wire::roce::{self, BTH_LEN, ConnectionSetup, ICRC_LEN, PORT, QP_GENERAL_SERVICES};

use crate::event::ConnectionEnd;

/// LINKTYPE_RAW: an IP packet without a header of a link.
const LINK_RAW: u32 = 101;

/// Octets of a comment at most.
const COMMENT_LEN_MAX: usize = 4096;

/// Queue pairs of the connections are numbered from here on.
const QUEUE_PAIR_FIRST: u32 = 16;

mod block {
    pub(super) const SECTION: u32 = 0x0a0d_0d0a;
    pub(super) const INTERFACE: u32 = 1;
    pub(super) const ENHANCED_PACKET: u32 = 6;
}

mod option {
    pub(super) const COMMENT: u16 = 1;
    pub(super) const RESOLUTION: u16 = 9;
}

mod opcode {
    pub(super) const SEND_ONLY: u8 = 4;
    pub(super) const SEND_ONLY_WITH_INVALIDATE: u8 = 23;
    pub(super) const DATAGRAM_SEND_ONLY: u8 = 0x64;
}

/// A connection of a recording.
#[derive(Clone, Copy, Debug)]
pub struct RecordedConnection<'a> {
    /// The end that asked for it.
    pub client: SocketAddr,
    /// The end that was asked.
    pub server: SocketAddr,
    /// What the client's set-up message carried; at most [`roce::REQUEST_PRIVATE_DATA_LEN`] octets of it are written.
    pub client_private_data: &'a [u8],
    /// What the server's carried; at most [`roce::REPLY_PRIVATE_DATA_LEN`].
    pub server_private_data: &'a [u8],
    /// Shown with the first frame: for example, the fabric.
    pub comment: &'a str,
}

/// A message of a recording.
#[derive(Clone, Copy, Debug)]
pub struct RecordedMessage<'a> {
    /// When, since 1970.
    pub time: Duration,
    /// Who sent it.
    pub from: ConnectionEnd,
    /// Its first octets.
    pub octets: &'a [u8],
    /// Octets of all of it.
    pub len: u32,
    /// The handle that it invalidates.
    pub invalidated: Option<u32>,
}

/// Names a connection that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenConnection(usize);

#[derive(Debug)]
struct Written {
    ends: [SocketAddr; 2],
    /// The number of each side's next packet, once it has sent one.
    next: [Option<u32>; 2],
}

/// Writes a recording.
#[derive(Debug)]
pub struct RecordingWriter<W> {
    output: W,
    connections: Vec<Written>,
    /// The frame in work.
    frame: Vec<u8>,
    /// The block in work.
    block: Vec<u8>,
}

impl<W: Write> RecordingWriter<W> {
    /// Begins a file; `comment` is about all of it.
    ///
    /// # Errors
    ///
    /// Those of the output, here and below.
    pub fn new(output: W, comment: &str) -> io::Result<RecordingWriter<W>> {
        let mut writer =
            RecordingWriter { output, connections: Vec::new(), frame: Vec::new(), block: Vec::new() };
        // Byte order, version 1.0, a section of unknown length.
        writer.block.extend(0x1a2b_3c4d_u32.to_le_bytes());
        writer.block.extend([1, 0, 0, 0]);
        writer.block.extend(u64::MAX.to_le_bytes());
        writer.comment(comment);
        writer.end_block(block::SECTION)?;
        // Frames of any length.
        writer.words(&[LINK_RAW, 0]);
        writer.option(option::RESOLUTION, &[9]);
        writer.words(&[0]);
        writer.end_block(block::INTERFACE)?;
        Ok(writer)
    }

    /// Writes the set-up of a connection.
    ///
    /// # Errors
    ///
    /// Those of the output.
    pub fn connection(
        &mut self,
        time: Duration,
        connection: &RecordedConnection<'_>,
    ) -> io::Result<WrittenConnection> {
        let number = self.connections.len();
        let ends = same_family([connection.client, connection.server]);
        self.connections.push(Written { ends, next: [None; 2] });
        // Names and queue pairs differ even where both ends are of one machine.
        let client_id = 2 * number as u32 + 1;
        let (client, server) = (ConnectionEnd::Client, ConnectionEnd::Server);
        for (from, server_id, private_data, comment) in [
            (client, None, connection.client_private_data, connection.comment),
            (server, Some(client_id + 1), connection.server_private_data, ""),
        ] {
            let local_qp = queue_pair(number, from);
            let setup =
                ConnectionSetup { client_id, server_id, local_qp, starting_psn: 0, ends, private_data };
            self.begin_frame(number, from);
            self.base_header(opcode::DATAGRAM_SEND_ONLY, 0, QP_GENERAL_SERVICES, 0);
            // The queue key of queue pair 1, and the queue pair of the sender.
            self.frame.extend(0x8001_0000_u32.to_be_bytes());
            self.frame.extend(QP_GENERAL_SERVICES.to_be_bytes());
            self.frame.extend(setup.to_wire());
            self.end_frame(number, time, 0, comment)?;
        }
        Ok(WrittenConnection(number))
    }

    /// Writes a message.
    ///
    /// # Errors
    ///
    /// Those of the output.
    pub fn message(
        &mut self,
        WrittenConnection(number): WrittenConnection,
        message: &RecordedMessage<'_>,
    ) -> io::Result<()> {
        let (octets, from) = (message.octets, message.from);
        let written = &mut self.connections[number];
        // Of the first one, not the number that the set-up announced.
        let first = u32::from(written.next == [None; 2]);
        let psn = written.next[from.index()].unwrap_or(first);
        written.next[from.index()] = Some(psn + 1);
        let padding = octets.len().next_multiple_of(4) - octets.len();
        let opcode = match message.invalidated {
            None => opcode::SEND_ONLY,
            Some(_) => opcode::SEND_ONLY_WITH_INVALIDATE,
        };
        self.begin_frame(number, from);
        self.base_header(opcode, padding as u8, queue_pair(number, from.other()), psn);
        self.frame.extend(message.invalidated.into_iter().flat_map(u32::to_be_bytes));
        self.frame.extend(octets);
        self.frame.extend(&[0; 3][..padding]);
        let missing = message.len.saturating_sub(octets.len() as u32);
        self.end_frame(number, message.time, missing, "")
    }

    /// Ends the file.
    ///
    /// # Errors
    ///
    /// Those of the output.
    pub fn finish(mut self) -> io::Result<W> {
        self.output.flush()?;
        Ok(self.output)
    }

    /// Puts the headers of IP and UDP into `frame`, without what is known at its end.
    fn begin_frame(&mut self, number: usize, from: ConnectionEnd) {
        let ends = &self.connections[number].ends;
        let (source, destination) = (ends[from.index()].ip(), ends[from.other().index()].ip());
        self.frame.clear();
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                // Version and length; not to be fragmented; 64 hops; UDP.
                self.frame.extend([0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0]);
                self.frame.extend(source.octets());
                self.frame.extend(destination.octets());
            }
            (source, destination) => {
                self.frame.extend([0x60, 0, 0, 0, 0, 0, 17, 64]);
                self.frame.extend(in_six(source));
                self.frame.extend(in_six(destination));
            }
        }
        // A port that differs between connections, as adapters do.
        let port = 0xc000 | (number as u16 & 0x3fff);
        self.frame.extend(port.to_be_bytes());
        self.frame.extend(PORT.to_be_bytes());
        self.frame.extend([0; 4]);
    }

    fn base_header(&mut self, opcode: u8, padding: u8, queue_pair: u32, psn: u32) {
        let mut header = [0; BTH_LEN];
        header[0] = opcode;
        // "Migrated", as all packets are; the pad count; the default partition.
        header[1] = 0x40 | padding << 4;
        header[2..4].fill(0xff);
        header[4..8].copy_from_slice(&(queue_pair & 0x00ff_ffff).to_be_bytes());
        header[8..].copy_from_slice(&(psn & 0x00ff_ffff).to_be_bytes());
        self.frame.extend(header);
    }

    /// Completes the frame and writes it; `missing` octets of it are not there.
    fn end_frame(&mut self, number: usize, time: Duration, missing: u32, comment: &str) -> io::Result<()> {
        self.frame.extend([0; ICRC_LEN]);
        let is_four = self.connections[number].ends[0].is_ipv4();
        let header_len = if is_four { 20 } else { 40 };
        let (ip, udp) = self.frame.split_at_mut(header_len);
        let len = udp.len() as u16;
        udp[4..6].copy_from_slice(&len.to_be_bytes());
        if is_four {
            ip[2..4].copy_from_slice(&(len + 20).to_be_bytes());
            let checksum = checksum(ip);
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        } else {
            ip[4..6].copy_from_slice(&len.to_be_bytes());
        }
        if let Some((udp, datagram)) = udp.split_first_chunk_mut::<8>()
            && let Some(crc) = roce::icrc(ip, udp, datagram)
            && let Some(place) = datagram.last_chunk_mut()
        {
            *place = crc;
        }
        let ticks = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let len = self.frame.len() as u32;
        self.words(&[0, (ticks >> 32) as u32, ticks as u32, len, len.saturating_add(missing)]);
        self.block.extend(&self.frame);
        self.pad();
        self.comment(comment);
        self.end_block(block::ENHANCED_PACKET)
    }

    fn words(&mut self, words: &[u32]) {
        self.block.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }

    fn pad(&mut self) {
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        self.block.extend(code.to_le_bytes());
        self.block.extend((value.len() as u16).to_le_bytes());
        self.block.extend(value);
        self.pad();
    }

    /// The only option of a block, and the end of options.
    fn comment(&mut self, comment: &str) {
        if comment.is_empty() {
            return;
        }
        let ends = comment.char_indices().map(|(at, found)| at + found.len_utf8());
        let len = ends.take_while(|end| *end <= COMMENT_LEN_MAX).last().unwrap_or(0);
        self.option(option::COMMENT, &comment.as_bytes()[..len]);
        self.words(&[0]);
    }

    /// Writes the block in work: type, length, body, and the length again.
    fn end_block(&mut self, kind: u32) -> io::Result<()> {
        let len = (self.block.len() as u32 + 12).to_le_bytes();
        self.output.write_all(&kind.to_le_bytes())?;
        self.output.write_all(&len)?;
        self.output.write_all(&self.block)?;
        self.output.write_all(&len)?;
        self.block.clear();
        Ok(())
    }
}

/// The queue pair of one end.
fn queue_pair(connection: usize, end: ConnectionEnd) -> u32 {
    QUEUE_PAIR_FIRST.wrapping_add(2 * connection as u32 + end.index() as u32) & 0x00ff_ffff
}

/// Both ends, both of version 6 if one is.
fn same_family(ends: [SocketAddr; 2]) -> [SocketAddr; 2] {
    match ends.iter().all(SocketAddr::is_ipv4) {
        true => ends,
        false => ends.map(|end| SocketAddr::new(IpAddr::from(in_six(end.ip())), end.port())),
    }
}

fn in_six(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(four) => four.to_ipv6_mapped().octets(),
        IpAddr::V6(six) => six.octets(),
    }
}

/// The checksum of a header of IPv4 whose own field is zero.
fn checksum(header: &[u8]) -> u16 {
    let words = header.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
    let sum: u32 = words.sum();
    let folded = (sum >> 16) + (sum & 0xffff);
    !((folded >> 16) + folded) as u16
}
