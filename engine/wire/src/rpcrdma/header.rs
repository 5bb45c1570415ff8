//! The header as a view of the Receive buffer it arrived in.

use super::chunk::{ReadList, WriteChunk, WriteList};
use super::lists::{HeaderLists, take_word};
use super::{
    ERR_CHUNK_LEN, ERR_VERS_LEN, FIXED_LEN, HEADER_LEN_MIN, HeaderError, READ_SEGMENT_LEN, SEGMENT_LEN,
    SEGMENTS_MAX, SINGLE_LEN, VERSION, errcode, procedure,
};

/// The words that start a message of any version (8166-4.1-a).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// Equals the xid of the RPC message.
    pub xid: u32,
    /// Protocol version.
    pub version: u32,
    /// Credits requested by a Call, granted by a Reply.
    pub credits: u32,
    /// One of the values in [`procedure`], or any other.
    pub procedure: u32,
}

impl Fixed {
    /// Splits the fixed words off a message of any version, so that the caller can choose by version who
    /// parses the rest.
    #[inline]
    pub fn parse(message: &[u8]) -> Result<(Fixed, &[u8]), HeaderError> {
        let Some((fixed, rest)) = message.split_first_chunk::<FIXED_LEN>() else {
            return Err(HeaderError::Short);
        };
        Ok((Fixed::from_wire(fixed), rest))
    }

    #[inline]
    fn from_wire(wire: &[u8; FIXED_LEN]) -> Fixed {
        let [x0, x1, x2, x3, v0, v1, v2, v3, c0, c1, c2, c3, p0, p1, p2, p3] = *wire;
        Fixed {
            xid: u32::from_be_bytes([x0, x1, x2, x3]),
            version: u32::from_be_bytes([v0, v1, v2, v3]),
            credits: u32::from_be_bytes([c0, c1, c2, c3]),
            procedure: u32::from_be_bytes([p0, p1, p2, p3]),
        }
    }

    /// Returns the words as they go over the wire.
    #[inline]
    #[must_use]
    pub fn to_wire(self) -> [u8; FIXED_LEN] {
        let [x0, x1, x2, x3] = self.xid.to_be_bytes();
        let [v0, v1, v2, v3] = self.version.to_be_bytes();
        let [c0, c1, c2, c3] = self.credits.to_be_bytes();
        let [p0, p1, p2, p3] = self.procedure.to_be_bytes();
        [x0, x1, x2, x3, v0, v1, v2, v3, c0, c1, c2, c3, p0, p1, p2, p3]
    }
}

/// What an RDMA_ERROR says. It is permanent for the transaction of its xid (8166-4.5-d).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorBody {
    /// The Responder does not speak the Call's version.
    Vers {
        /// Lowest version that it speaks.
        low: u32,
        /// Highest version that it speaks.
        high: u32,
    },
    /// The Responder could not process the Call's header or chunks.
    Chunk,
}

/// What kind of message the header starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageProcedure {
    /// RDMA_MSG: the Payload stream follows the header.
    Msg,
    /// RDMA_NOMSG: the Payload stream is in the Position Zero Read chunk or in the Reply chunk.
    Nomsg,
    /// RDMA_ERROR: there is no Payload stream and there are no lists.
    Error(ErrorBody),
}

/// Which way an RPC goes, seen from its receiver (8167 section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// A Call from the peer: for our Responder.
    Call,
    /// A Reply of the peer: for our Requester.
    Reply,
    /// An RDMA_ERROR: it answers a Call that our Requester sent (8167-D-1).
    Error,
}

/// Where the lists of a checked header are: what it takes to view it again without checking it again.
///
/// A Responder keeps the Receive buffer and this, and copies the chunk lists into its Reply later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Entries of the Read list.
    read_segments: u32,
    /// Entries of the Write list.
    write_chunks: u32,
    /// Octets of the Write list, without the word that ends it.
    write_len: u32,
    /// Octets of the header.
    header_len: u32,
    procedure: MessageProcedure,
}

impl Layout {
    /// Of [`super::emit_plain`]'s headers, which are the most frequent.
    #[inline]
    const fn plain(procedure: MessageProcedure) -> Layout {
        Layout {
            read_segments: 0,
            write_chunks: 0,
            write_len: 0,
            header_len: HEADER_LEN_MIN as u32,
            procedure,
        }
    }

    /// Of [`super::Single`] with a Write chunk.
    pub(super) const SINGLE_WRITE: Layout = Layout {
        write_chunks: 1,
        write_len: (SINGLE_LEN - HEADER_LEN_MIN) as u32,
        header_len: SINGLE_LEN as u32,
        ..Layout::plain(MessageProcedure::Msg)
    };

    /// Of [`super::Single`] with a Read chunk.
    pub(super) const SINGLE_READ: Layout =
        Layout { read_segments: 1, header_len: SINGLE_LEN as u32, ..Layout::plain(MessageProcedure::Msg) };

    /// Returns the octets of the header; the Payload stream follows.
    #[inline]
    #[must_use]
    pub const fn header_len(&self) -> usize {
        self.header_len as usize
    }

    /// Returns where the Read list ends, with the word that ends it.
    #[inline]
    const fn reads_end(&self) -> usize {
        FIXED_LEN + READ_SEGMENT_LEN * self.read_segments as usize + size_of::<u32>()
    }

    /// Returns where the Write list ends, with the word that ends it.
    #[inline]
    const fn writes_end(&self) -> usize {
        self.reads_end() + self.write_len as usize + size_of::<u32>()
    }
}

/// A checked header, borrowed from the Receive buffer it arrived in.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    head: &'a [u8; FIXED_LEN],
    layout: Layout,
    reads: &'a [[u8; READ_SEGMENT_LEN]],
    writes: &'a [u8],
    reply: Option<WriteChunk<'a>>,
}

impl<'a> Header<'a> {
    /// Splits a received message into its header and the Payload stream that follows.
    ///
    /// Accepts at most [`SEGMENTS_MAX`] segments; see [`Header::parse_limited`] for the checks.
    #[inline]
    pub fn parse(message: &'a [u8]) -> Result<(Header<'a>, &'a [u8]), HeaderError> {
        Header::parse_limited(message, SEGMENTS_MAX)
    }

    /// Splits a received message into its header and the Payload stream that follows.
    ///
    /// Does steps 1 to 4 of section 12 of the rules, and of the later steps what needs neither the Payload
    /// stream nor the direction. [`Header::check_call`] and [`Header::check_reply`] do the rest.
    ///
    /// A message of a foreign version is [`HeaderError::Version`], whatever its length. One exception: an
    /// ERR_VERS is laid out alike in all versions (8166-7-a) and carries the version that it refuses, so it
    /// is returned, and [`Header::version`] tells.
    ///
    /// Behind the header of RDMA_NOMSG and RDMA_ERROR there is no Payload; octets there are returned all the
    /// same, and must be ignored (8166-X-5).
    #[inline]
    pub fn parse_limited(
        message: &'a [u8],
        segments_max: u32,
    ) -> Result<(Header<'a>, &'a [u8]), HeaderError> {
        // Most messages are RDMA_MSG of version 1 without chunks: one length check, five compares.
        if let Some((head, payload)) = message.split_first_chunk::<HEADER_LEN_MIN>() {
            let [head @ .., r0, r1, r2, r3, w0, w1, w2, w3, c0, c1, c2, c3] = head;
            let fixed = Fixed::from_wire(head);
            let lists = u32::from_ne_bytes([*r0, *r1, *r2, *r3])
                | u32::from_ne_bytes([*w0, *w1, *w2, *w3])
                | u32::from_ne_bytes([*c0, *c1, *c2, *c3]);
            if fixed.version == VERSION && fixed.procedure == procedure::MSG && lists == 0 {
                let layout = Layout::plain(MessageProcedure::Msg);
                return Ok((Header { head, layout, reads: &[], writes: &[], reply: None }, payload));
            }
        }
        Header::parse_any(message, segments_max)
    }

    /// Parses everything but the plain RDMA_MSG.
    fn parse_any(message: &'a [u8], segments_max: u32) -> Result<(Header<'a>, &'a [u8]), HeaderError> {
        let Some((head, body)) = message.split_first_chunk() else { return Err(HeaderError::Short) };
        let fixed = Fixed::from_wire(head);
        if fixed.procedure == procedure::ERROR {
            return Header::parse_error(head, body);
        }
        if fixed.version != VERSION {
            return Err(HeaderError::Version(fixed.version));
        }
        if fixed.procedure == procedure::DONE {
            return Err(HeaderError::Done);
        }
        if message.len() < HEADER_LEN_MIN {
            return Err(HeaderError::Short);
        }
        let kind = match fixed.procedure {
            procedure::MSG => MessageProcedure::Msg,
            procedure::NOMSG => MessageProcedure::Nomsg,
            procedure::MSGP => return Err(HeaderError::Padded),
            other => return Err(HeaderError::Procedure(other)),
        };
        Header::parse_lists(head, kind, message, body, segments_max)
    }

    /// Parses the body of an RDMA_ERROR.
    fn parse_error(head: &'a [u8; FIXED_LEN], body: &'a [u8]) -> Result<(Header<'a>, &'a [u8]), HeaderError> {
        let mut rest = body;
        let code = take_word(&mut rest).map_err(|_| HeaderError::Short)?;
        let (kind, len) = match code {
            errcode::VERS => {
                let low = take_word(&mut rest).map_err(|_| HeaderError::Short)?;
                let high = take_word(&mut rest).map_err(|_| HeaderError::Short)?;
                (MessageProcedure::Error(ErrorBody::Vers { low, high }), ERR_VERS_LEN)
            }
            // Nothing else of a foreign version can be understood.
            errcode::CHUNK if Fixed::from_wire(head).version == VERSION => {
                (MessageProcedure::Error(ErrorBody::Chunk), ERR_CHUNK_LEN)
            }
            _ => return Err(HeaderError::ErrorBody),
        };
        let layout = Layout { header_len: len as u32, ..Layout::plain(kind) };
        Ok((Header { head, layout, reads: &[], writes: &[], reply: None }, rest))
    }

    /// Walks the three lists. `body` is what follows the fixed words of `message`.
    fn parse_lists(
        head: &'a [u8; FIXED_LEN],
        kind: MessageProcedure,
        message: &'a [u8],
        body: &'a [u8],
        segments_max: u32,
    ) -> Result<(Header<'a>, &'a [u8]), HeaderError> {
        let (lists, rest) = HeaderLists::parse(body, segments_max)?;
        let HeaderLists { reads, writes, write_chunks, reply, has_position_zero } = lists;
        match kind {
            MessageProcedure::Msg if has_position_zero => return Err(HeaderError::PositionZero),
            MessageProcedure::Nomsg if lists.is_empty() => return Err(HeaderError::NoPayload),
            _ => {}
        }
        let layout = Layout {
            // None of these can be above 2^32: `room` bounds all counts.
            read_segments: reads.len() as u32,
            write_chunks,
            write_len: writes.len() as u32,
            header_len: (message.len() - rest.len()) as u32,
            procedure: kind,
        };
        Ok((Header { head, layout, reads, writes, reply }, rest))
    }

    /// Views a header that was checked before, at the start of `message`.
    ///
    /// `None` if `message` is too short for `layout`. If it is not the message that `layout` was taken
    /// from, the accessors return nonsense, but stay within it.
    #[inline]
    #[must_use]
    pub fn with_layout(message: &'a [u8], layout: Layout) -> Option<Header<'a>> {
        let bytes = message.get(..layout.header_len())?;
        let head = bytes.first_chunk()?;
        let header = Header { head, layout, reads: &[], writes: &[], reply: None };
        // A plain header, and an error's body, have nothing else to find.
        if layout.header_len() <= HEADER_LEN_MIN {
            return Some(header);
        }
        let reads = bytes.get(FIXED_LEN..layout.reads_end() - size_of::<u32>())?;
        let writes = bytes.get(layout.reads_end()..layout.writes_end() - size_of::<u32>())?;
        // The word that says whether there is a Reply chunk, and the chunk.
        let reply = bytes.get(layout.writes_end() + size_of::<u32>()..)?;
        let reply = WriteChunk::split(reply).map(|(chunk, _)| chunk);
        Some(Header { reads: reads.as_chunks().0, writes, reply, ..header })
    }

    /// Returns where the lists are, for [`Header::with_layout`].
    #[inline]
    #[must_use]
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the fixed words.
    #[inline]
    #[must_use]
    pub fn fixed(&self) -> Fixed {
        Fixed::from_wire(self.head)
    }

    /// Returns the xid.
    #[inline]
    #[must_use]
    pub fn xid(&self) -> u32 {
        self.fixed().xid
    }

    /// Returns the version: 1, except in an ERR_VERS that refuses another one.
    #[inline]
    #[must_use]
    pub fn version(&self) -> u32 {
        self.fixed().version
    }

    /// Returns the credits, as they stand there: requested by a Call, granted by a Reply. A value of 0 counts
    /// as 1 (8166-X-7, 8166-X-8), that of an RDMA_ERROR is ignored (8166-X-6).
    #[inline]
    #[must_use]
    pub fn credits(&self) -> u32 {
        self.fixed().credits
    }

    /// Returns what kind of message this is.
    #[inline]
    #[must_use]
    pub const fn procedure(&self) -> MessageProcedure {
        self.layout.procedure
    }

    /// Iterates over the Read list.
    #[inline]
    #[must_use]
    pub fn read_list(&self) -> ReadList<'a> {
        ReadList::new(self.reads)
    }

    /// Iterates over the Write list.
    #[inline]
    #[must_use]
    pub fn write_list(&self) -> WriteList<'a> {
        WriteList::new(self.writes, self.layout.write_chunks as usize)
    }

    /// Returns the number of Write chunks, empty ones included.
    #[inline]
    #[must_use]
    pub const fn write_chunk_count(&self) -> usize {
        self.layout.write_chunks as usize
    }

    /// Returns the Reply chunk.
    #[inline]
    #[must_use]
    pub const fn reply_chunk(&self) -> Option<WriteChunk<'a>> {
        self.reply
    }

    /// Tells whether the header has no chunk at all.
    #[inline]
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        self.reads.is_empty() && self.layout.write_chunks == 0 && self.reply.is_none()
    }

    /// Returns all lists together.
    #[inline]
    #[must_use]
    pub fn lists(&self) -> HeaderLists<'a> {
        HeaderLists {
            reads: self.reads,
            writes: self.writes,
            write_chunks: self.layout.write_chunks,
            reply: self.reply,
            has_position_zero: self.has_position_zero(),
        }
    }

    /// Tells whether the Read list has a Position Zero Read chunk.
    #[inline]
    #[must_use]
    pub fn has_position_zero(&self) -> bool {
        self.read_list().any(|entry| entry.position == 0)
    }

    /// Says whether the message is a Call or a Reply, from the header and the `payload` behind it
    /// (8167 section 2). `None` if neither can be told: the message is in error.
    #[inline]
    #[must_use]
    pub fn direction(&self, payload: &[u8]) -> Option<Direction> {
        match self.procedure() {
            MessageProcedure::Msg => match payload.first_chunk() {
                Some([_, _, _, _, 0, 0, 0, 0]) => Some(Direction::Call),
                Some([_, _, _, _, 0, 0, 0, 1]) => Some(Direction::Reply),
                _ => None,
            },
            // A Reply has no Read list (8166-4.3.1-a), so even one without Position Zero is a Call's.
            MessageProcedure::Nomsg if !self.reads.is_empty() => Some(Direction::Call),
            MessageProcedure::Nomsg => self.reply.map(|_| Direction::Reply),
            MessageProcedure::Error(_) => Some(Direction::Error),
        }
    }

    /// Checks what a Responder has to know before it looks at the Call: steps 5 and 6 of section 12.
    ///
    /// What is left: the msg_type, and the Positions against the length of the Payload stream.
    #[inline]
    pub fn check_call(&self, payload: &[u8]) -> Result<(), HeaderError> {
        match self.procedure() {
            MessageProcedure::Msg => self.check_payload(payload),
            MessageProcedure::Nomsg if self.has_position_zero() => Ok(()),
            MessageProcedure::Nomsg => Err(HeaderError::NoPayload),
            MessageProcedure::Error(_) => Err(HeaderError::UnexpectedError),
        }
    }

    /// Checks what a Requester has to know before it looks at the Reply (section 12, LX-5).
    ///
    /// What is left: the msg_type, and whether the chunks are those that were offered (8166-X-11).
    #[inline]
    pub fn check_reply(&self, payload: &[u8]) -> Result<(), HeaderError> {
        if !self.reads.is_empty() {
            return Err(HeaderError::ReadListInReply);
        }
        let reply_len = self.reply.map_or(0, |chunk| chunk.total_len());
        match self.procedure() {
            MessageProcedure::Msg if reply_len != 0 => Err(HeaderError::ReplyChunkWithMessage),
            MessageProcedure::Msg => self.check_payload(payload),
            MessageProcedure::Nomsg if reply_len != 0 => Ok(()),
            MessageProcedure::Nomsg => Err(HeaderError::NoPayload),
            MessageProcedure::Error(_) => Err(HeaderError::UnexpectedError),
        }
    }

    #[inline]
    fn check_payload(&self, payload: &[u8]) -> Result<(), HeaderError> {
        let [x0, x1, x2, x3, _, _, _, _] = payload.first_chunk().ok_or(HeaderError::PayloadShort)?;
        let xid = u32::from_be_bytes([*x0, *x1, *x2, *x3]);
        if xid == self.xid() { Ok(()) } else { Err(HeaderError::Xid { payload: xid }) }
    }
}

// The layouts of section 4.1, proved when this compiles.
const _: () = assert!(FIXED_LEN + 3 * size_of::<u32>() == HEADER_LEN_MIN);
const _: () = assert!(READ_SEGMENT_LEN == SEGMENT_LEN + 2 * size_of::<u32>());
const _: () = assert!(HEADER_LEN_MIN + READ_SEGMENT_LEN == SINGLE_LEN);
const _: () = assert!(HEADER_LEN_MIN + SEGMENT_LEN + 2 * size_of::<u32>() == SINGLE_LEN);
