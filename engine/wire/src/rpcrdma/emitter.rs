//! Writes headers. The chunk lists come one entry at a time, in the order of the wire.

use super::chunk::{ReadSegment, Segment, WriteChunk};
use super::header::Fixed;
use super::{
    ERR_CHUNK_LEN, ERR_VERS_LEN, FIXED_LEN, HEADER_LEN_MIN, READ_SEGMENT_LEN, SEGMENT_LEN, VERSION, errcode,
    procedure,
};
use crate::xdr::Overflow;

const WORD: usize = size_of::<u32>();

/// The kinds of message that an [`Emitter`] starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// RDMA_MSG: the Payload stream follows the header.
    Msg,
    /// RDMA_NOMSG: the Payload stream is in a chunk.
    Nomsg,
}

impl MessageKind {
    #[inline]
    const fn procedure(self) -> u32 {
        match self {
            MessageKind::Msg => procedure::MSG,
            MessageKind::Nomsg => procedure::NOMSG,
        }
    }
}

/// Returns the octets of a header (8166-4.1.2-d): `read_segments` entries in the Read list, one Write chunk
/// for each of `write_segments` with as many segments, and a Reply chunk of `reply_segments` segments.
#[inline]
#[must_use]
pub fn header_len(
    read_segments: usize,
    write_segments: impl IntoIterator<Item = usize>,
    reply_segments: Option<usize>,
) -> usize {
    let writes: usize = write_segments.into_iter().map(|count| 2 * WORD + SEGMENT_LEN * count).sum();
    let reply = reply_segments.map_or(0, |count| WORD + SEGMENT_LEN * count);
    HEADER_LEN_MIN + READ_SEGMENT_LEN * read_segments + writes + reply
}

/// Writes the 28 octets of an RDMA_MSG header without chunks, and returns the rest of `buf`, where the
/// Payload stream goes.
#[inline]
pub fn emit_plain(buf: &mut [u8], xid: u32, credits: u32) -> Result<&mut [u8], Overflow> {
    let (head, rest) = buf.split_first_chunk_mut::<HEADER_LEN_MIN>().ok_or(Overflow)?;
    let fixed = Fixed { xid, version: VERSION, credits, procedure: procedure::MSG };
    let (words, lists) = head.split_first_chunk_mut().expect("28 is above 16");
    *words = fixed.to_wire();
    lists.fill(0);
    Ok(rest)
}

/// Writes an RDMA_ERROR with ERR_VERS, 28 octets, and returns its length. `xid` and `version` are copied from
/// the message it answers (8166-4.5-b), `low` and `high` are the versions that are supported.
#[inline]
pub fn emit_err_vers(
    buf: &mut [u8],
    xid: u32,
    version: u32,
    credits: u32,
    (low, high): (u32, u32),
) -> Result<usize, Overflow> {
    let mut out = Output { buf, len: 0 };
    out.put(Fixed { xid, version, credits, procedure: procedure::ERROR }.to_wire())?;
    for word in [errcode::VERS, low, high] {
        out.put(word.to_be_bytes())?;
    }
    debug_assert_eq!(out.len, ERR_VERS_LEN);
    Ok(out.len)
}

/// Writes an RDMA_ERROR with ERR_CHUNK, 20 octets, and returns its length. `xid` and `version` are copied
/// from the message it answers (8166-4.5-b); `credits` is the present grant (8166-X-6).
#[inline]
pub fn emit_err_chunk(buf: &mut [u8], xid: u32, version: u32, credits: u32) -> Result<usize, Overflow> {
    let mut out = Output { buf, len: 0 };
    out.put(Fixed { xid, version, credits, procedure: procedure::ERROR }.to_wire())?;
    out.put(errcode::CHUNK.to_be_bytes())?;
    debug_assert_eq!(out.len, ERR_CHUNK_LEN);
    Ok(out.len)
}

/// Puts `segments` in place of the first ones of the Read list in `message`, which has at least as many. For a header that is
/// written before its memory is exposed.
///
/// # Errors
///
/// [`Overflow`] when `message` is shorter than that.
pub fn replace_read_segments(message: &mut [u8], segments: &[ReadSegment]) -> Result<(), Overflow> {
    let mut out = Output { buf: message, len: FIXED_LEN };
    segments.iter().try_for_each(|entry| {
        out.word(1)?;
        out.word(entry.position)?;
        out.put(entry.segment.to_wire())
    })
}

/// A buffer that fills from its start.
#[derive(Debug)]
struct Output<'b> {
    buf: &'b mut [u8],
    len: usize,
}

impl Output<'_> {
    #[inline]
    fn put<const N: usize>(&mut self, octets: [u8; N]) -> Result<(), Overflow> {
        let place = self.buf.get_mut(self.len..).and_then(<[u8]>::first_chunk_mut).ok_or(Overflow)?;
        *place = octets;
        self.len += N;
        Ok(())
    }

    #[inline]
    fn word(&mut self, word: u32) -> Result<(), Overflow> {
        self.put(word.to_be_bytes())
    }
}

/// What an [`Emitter`] may write next. Entries of a list can be added until something later was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    ReadList,
    WriteList,
    ReplyChunk,
    Done,
}

/// Writes the header of an RDMA_MSG or RDMA_NOMSG, entry by entry, in the order of the wire: Read list, Write
/// list, Reply chunk. Lists that get no entry are written as absent.
///
/// After an [`Overflow`] the buffer holds no header; start again.
///
/// # Panics
///
/// All methods: if an entry comes after one that belongs behind it.
#[derive(Debug)]
pub struct Emitter<'b> {
    out: Output<'b>,
    stage: Stage,
}

impl<'b> Emitter<'b> {
    /// Writes the fixed words at the start of `buf`.
    #[inline]
    pub fn new(
        buf: &'b mut [u8],
        kind: MessageKind,
        xid: u32,
        credits: u32,
    ) -> Result<Emitter<'b>, Overflow> {
        let mut out = Output { buf, len: 0 };
        out.put(Fixed { xid, version: VERSION, credits, procedure: kind.procedure() }.to_wire())?;
        debug_assert_eq!(out.len, FIXED_LEN);
        Ok(Emitter { out, stage: Stage::ReadList })
    }

    /// Writes the fixed words of version 2, and the direction that it puts in front of the lists.
    #[inline]
    pub(crate) fn of_version_2(
        buf: &'b mut [u8],
        kind: MessageKind,
        direction: u32,
        xid: u32,
        credits: u32,
    ) -> Result<Emitter<'b>, Overflow> {
        let mut out = Output { buf, len: 0 };
        out.put(Fixed { xid, version: 2, credits, procedure: kind.procedure() }.to_wire())?;
        out.word(direction)?;
        Ok(Emitter { out, stage: Stage::ReadList })
    }

    /// Ends the lists before `stage`.
    #[inline]
    fn advance(&mut self, stage: Stage) -> Result<(), Overflow> {
        assert!(self.stage <= stage, "chunks are written in the order of the wire");
        while self.stage < stage {
            self.out.word(0)?;
            self.stage = match self.stage {
                Stage::ReadList => Stage::WriteList,
                Stage::WriteList => Stage::ReplyChunk,
                Stage::ReplyChunk | Stage::Done => Stage::Done,
            };
        }
        Ok(())
    }

    /// Adds an entry to the Read list. Entries of one chunk stand together, chunks ascend by Position
    /// (8166-X-9).
    #[inline]
    pub fn read_segment(&mut self, entry: ReadSegment) -> Result<(), Overflow> {
        self.advance(Stage::ReadList)?;
        self.out.word(1)?;
        self.out.word(entry.position)?;
        self.out.put(entry.segment.to_wire())
    }

    /// Adds a Write chunk; without segments it is *empty* (8166-4.3.2.3-a).
    #[inline]
    pub fn write_chunk(&mut self, segments: &[Segment]) -> Result<(), Overflow> {
        self.advance(Stage::WriteList)?;
        self.chunk(segments.len(), segments.iter().copied())
    }

    /// Adds a Write chunk as a Reply returns it: `offered` by the Call, filled with `written` octets in the
    /// order of its segments (8166-3.4.6-c). With 0 octets it is *unused* (8166-4.3.2.2-b).
    ///
    /// [`Overflow`] also if `written` is more than the chunk has room for.
    #[inline]
    pub fn echo_write_chunk(&mut self, offered: WriteChunk<'_>, written: u64) -> Result<(), Overflow> {
        self.advance(Stage::WriteList)?;
        self.echo(offered, written)
    }

    /// Writes the Reply chunk.
    #[inline]
    pub fn reply_chunk(&mut self, segments: &[Segment]) -> Result<(), Overflow> {
        self.advance(Stage::ReplyChunk)?;
        self.chunk(segments.len(), segments.iter().copied())?;
        self.stage = Stage::Done;
        Ok(())
    }

    /// Writes the Reply chunk as a Reply returns it: like [`Emitter::echo_write_chunk`] (8166-4.3.3-c).
    #[inline]
    pub fn echo_reply_chunk(&mut self, offered: WriteChunk<'_>, written: u64) -> Result<(), Overflow> {
        self.advance(Stage::ReplyChunk)?;
        self.echo(offered, written)?;
        self.stage = Stage::Done;
        Ok(())
    }

    /// Ends the header. Returns its length, and the rest of the buffer for the Payload stream.
    #[inline]
    pub fn finish(mut self) -> Result<(usize, &'b mut [u8]), Overflow> {
        self.advance(Stage::Done)?;
        let Output { buf, len } = self.out;
        Ok((len, &mut buf[len..]))
    }

    #[inline]
    fn chunk(&mut self, count: usize, segments: impl Iterator<Item = Segment>) -> Result<(), Overflow> {
        self.out.word(1)?;
        self.out.word(u32::try_from(count).map_err(|_| Overflow)?)?;
        for segment in segments {
            self.out.put(segment.to_wire())?;
        }
        Ok(())
    }

    #[inline]
    fn echo(&mut self, offered: WriteChunk<'_>, written: u64) -> Result<(), Overflow> {
        let mut left = written;
        let segments = offered.segments().map(|segment| {
            // Saturated, not truncated: more than fits in any segment is all of this one.
            let length = u32::try_from(left).unwrap_or(u32::MAX).min(segment.length);
            left -= u64::from(length);
            Segment { length, ..segment }
        });
        self.chunk(offered.segment_count(), segments)?;
        if left == 0 { Ok(()) } else { Err(Overflow) }
    }
}
