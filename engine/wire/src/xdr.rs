//! XDR (RFC 4506): [`Reader`] over one slice, [`Writer`] into one.
//!
//! The same codec of a program serves inline, Chunked and Long Messages: both sides know *reduced* items,
//! whose octets left the Payload stream for a chunk (8166-3.4). The caller tells the reader which chunks
//! there are, and the reader says for each eligible item where it is; the writer accounts for the octets that
//! it leaves out.
//!
//! Every length is checked against its limit and against the octets that are there before it is used
//! (XDR-f). Padding is written as zero and ignored when read (XDR-e).

/// Octets of one XDR unit: everything is a multiple of it.
pub const UNIT: usize = 4;

/// Returns the padding that follows `len` octets of opaque data: 0 to 3 octets.
#[inline]
#[must_use]
pub const fn padding(len: usize) -> usize {
    len.wrapping_neg() & (UNIT - 1)
}

/// Returns `len` with its roundup padding.
#[inline]
#[must_use]
pub const fn padded(len: u32) -> u64 {
    (len as u64 + 3) & !3
}

/// Why octets are not the XDR that was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum XdrError {
    /// The stream ends before the item does.
    Truncated,
    /// A counted item is longer than its declared maximum.
    TooLong {
        /// The declared maximum.
        limit: u32,
        /// The length or count on the wire.
        found: u32,
    },
    /// A bool, or the word that says whether optional data follows, is neither 0 nor 1.
    BadBool(u32),
    /// An enum or the discriminant of a union has a value that is not declared.
    BadDiscriminant(u32),
    /// A chunk does not hold as many octets as its item's length word says (8166-3.4.5.2-a,
    /// 8166-3.4.6.2-a), or an eligible result stayed inline beside its Write chunk (8166-6.1-d).
    ChunkLength {
        /// Octets in the chunk.
        chunk: u32,
        /// The item's length word.
        item: u32,
    },
    /// A chunk takes the place of an item that is not DDP-eligible (8166-6.1-c).
    IneligibleChunk,
    /// A chunk belongs to no item of the stream.
    UnusedChunk,
    /// Octets are left after the last item.
    TrailingOctets,
}

impl core::fmt::Display for XdrError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            XdrError::Truncated => f.write_str("the XDR stream ends inside an item"),
            XdrError::TooLong { limit, found } => write!(f, "length {found} is above the limit {limit}"),
            XdrError::BadBool(found) => write!(f, "{found} is neither 0 nor 1"),
            XdrError::BadDiscriminant(found) => write!(f, "{found} is not a declared value"),
            XdrError::ChunkLength { chunk, item } => {
                write!(f, "a chunk of {chunk} octets for an item of {item}")
            }
            XdrError::IneligibleChunk => f.write_str("a chunk for an item that is not DDP-eligible"),
            XdrError::UnusedChunk => f.write_str("a chunk that belongs to no item"),
            XdrError::TrailingOctets => f.write_str("octets left after the last item"),
        }
    }
}

impl core::error::Error for XdrError {}

/// The buffer is too small for the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow;

impl core::fmt::Display for Overflow {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the buffer is too small for the message")
    }
}

impl core::error::Error for Overflow {}

/// A value that can be read from an XDR stream.
pub trait Decode<'a>: Sized {
    /// Reads the value and leaves `reader` behind it. After an error the reader's place is unspecified.
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError>;
}

/// A value that can be written to an XDR stream.
pub trait Encode {
    /// Writes the value. After an error the writer's place is unspecified.
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow>;

    /// Writes the value as optional data that is there: a 1, and the value.
    #[inline]
    fn encode_some(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.u32(1)?;
        self.encode(writer)
    }
}

/// One item that was moved into a chunk.
///
/// A Read chunk says by its Position which item it holds ([`Reduced::read_chunk`]). Write chunks have
/// no Position: the first belongs to the first eligible result, and so on ([`Reduced::write_chunk`],
/// [`Reduced::empty_write_chunk`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduced {
    /// Offset in the unreduced stream where the data belongs, counted from the RPC message's xid. For
    /// Write chunks one of two marks that cannot be Positions, as they are no multiples of 4.
    pub position: u32,
    /// Octets in the chunk. For a Read chunk it may include roundup padding (8166-3.4.5.2-a).
    pub len: u32,
    /// The caller's name for the chunk; comes back in [`Item::Reduced`].
    pub index: u32,
}

impl Reduced {
    /// A Write chunk with room: the next eligible result must be in it.
    const NEXT: u32 = u32::MAX;
    /// An empty Write chunk: the next eligible result is inline (8166-4.3.2.3-b).
    const NEXT_INLINE: u32 = u32::MAX - 1;

    /// Describes a Read chunk of `len` octets, all its segments together.
    #[inline]
    #[must_use]
    pub const fn read_chunk(index: u32, position: u32, len: u32) -> Reduced {
        Reduced { position, len, index }
    }

    /// Describes a Write chunk that was offered with room and came back with `len` octets written.
    /// With 0 (*unused*) the item must be of length 0 or not appear at all.
    #[inline]
    #[must_use]
    pub const fn write_chunk(index: u32, len: u32) -> Reduced {
        Reduced { position: Self::NEXT, len, index }
    }

    /// Describes an *empty* Write chunk, offered so that its item comes inline (8166-4.3.2.3-a).
    #[inline]
    #[must_use]
    pub const fn empty_write_chunk(index: u32) -> Reduced {
        Reduced { position: Self::NEXT_INLINE, len: 0, index }
    }

    #[inline]
    const fn has_position(&self) -> bool {
        self.position < Self::NEXT_INLINE
    }
}

/// Octets, as they are shown to people: text if all of it is printable ASCII, else hexadecimal; of long ones the start.
pub(crate) struct Shown<'a>(pub(crate) &'a [u8]);

/// Octets that [`Shown`] shows at most; of longer ones the length is told.
const SHOWN_MAX: usize = 48;

impl core::fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let shown = &self.0[..self.0.len().min(SHOWN_MAX)];
        match core::str::from_utf8(shown) {
            Ok(text) if text.bytes().all(|octet| matches!(octet, b' '..=b'~')) => write!(f, "\"{text}\"")?,
            _ => hex(shown, f)?,
        }
        if shown.len() < self.0.len() {
            write!(f, "...({} octets)", self.0.len())?;
        }
        Ok(())
    }
}

/// Shows octets in hexadecimal.
pub(crate) fn hex(octets: &[u8], f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
    octets.iter().try_for_each(|octet| write!(f, "{octet:02x}"))
}

/// Where a DDP-eligible item is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    /// In the stream.
    Inline(&'a [u8]),
    /// In a chunk.
    Reduced {
        /// [`Reduced::index`] of the chunk.
        index: u32,
        /// Length of the item, from its length word, without padding.
        len: u32,
    },
}

impl core::fmt::Debug for Item<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Item::Inline(octets) => Shown(octets).fmt(f),
            Item::Reduced { index, len } => write!(f, "Reduced({len} octets in chunk {index})"),
        }
    }
}

impl Item<'_> {
    /// Returns the item's length in octets.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Item::Inline(octets) => octets.len(),
            Item::Reduced { len, .. } => *len as usize,
        }
    }

    /// Tells whether the item holds no octets.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Reads XDR items from a slice, one after the other.
///
/// What it returns borrows the slice, not the reader. After an error the reader's place is unspecified.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    /// Chunks whose items were not met yet.
    reduced: &'a [Reduced],
    /// Octets of `rest` at the start.
    len: usize,
    /// Octets, with padding, of the items taken from chunks, and of what came before the slice.
    skipped: u64,
}

impl<'a> Reader<'a> {
    /// Reads a stream that is all there.
    #[inline]
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes, reduced: &[], len: bytes.len(), skipped: 0 }
    }

    /// Reads a stream from which items were moved into the chunks `reduced`.
    ///
    /// `bytes` starts at the RPC message's xid: Positions count from there. Read chunks must be in
    /// ascending order of Position, and Write chunks in list order; a chunk out of order is reported as
    /// [`XdrError::UnusedChunk`] or worse, never taken for another item's.
    #[inline]
    #[must_use]
    pub const fn with_reduced(bytes: &'a [u8], reduced: &'a [Reduced]) -> Reader<'a> {
        Reader::with_reduced_at(bytes, 0, reduced)
    }

    /// Like [`Reader::with_reduced`], for `bytes` that start at `position` of the unreduced stream: the
    /// arguments after an RPC header that was read before.
    #[inline]
    #[must_use]
    pub const fn with_reduced_at(bytes: &'a [u8], position: u32, reduced: &'a [Reduced]) -> Reader<'a> {
        Reader { rest: bytes, reduced, len: bytes.len(), skipped: position as u64 }
    }

    /// Returns the octets read so far from the slice.
    #[inline]
    #[must_use]
    pub const fn position(&self) -> usize {
        self.len - self.rest.len()
    }

    /// Returns the place in the unreduced stream: octets read, and octets that chunks took out.
    #[inline]
    #[must_use]
    pub const fn unreduced_position(&self) -> u64 {
        self.position() as u64 + self.skipped
    }

    /// Returns the octets of the slice that were not read yet.
    #[inline]
    #[must_use]
    pub const fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Returns what was not read yet, without reading it.
    #[inline]
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns the chunks whose items were not met yet.
    #[inline]
    #[must_use]
    pub const fn reduced(&self) -> &'a [Reduced] {
        self.reduced
    }

    /// Reads `N` octets as they are. `N` must be a multiple of 4: there is no padding.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], XdrError> {
        const { assert!(N.is_multiple_of(UNIT), "not a whole number of XDR units") };
        // `let else`, not `ok_or(...)?`: that makes a slice and an error share a place on the stack, word
        // by word, and reading a Call's header takes 65 ns instead of 3.
        let Some((array, rest)) = self.rest.split_first_chunk::<N>() else { return Err(XdrError::Truncated) };
        self.rest = rest;
        Ok(array)
    }

    /// Reads an unsigned int.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, XdrError> {
        Ok(u32::from_be_bytes(*self.array()?))
    }

    /// Reads an int.
    #[inline]
    pub fn i32(&mut self) -> Result<i32, XdrError> {
        Ok(i32::from_be_bytes(*self.array()?))
    }

    /// Reads an unsigned hyper.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, XdrError> {
        Ok(u64::from_be_bytes(*self.array()?))
    }

    /// Reads a hyper.
    #[inline]
    pub fn i64(&mut self) -> Result<i64, XdrError> {
        Ok(i64::from_be_bytes(*self.array()?))
    }

    /// Reads a bool: 0 or 1, and nothing else (XDR-a). Optional data starts with one too (XDR-d).
    #[inline]
    pub fn bool(&mut self) -> Result<bool, XdrError> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(XdrError::BadBool(found)),
        }
    }

    /// Reads an enum or a discriminant; `declared` returns `None` for a value that has no name.
    #[inline]
    pub fn enumeration<T>(&mut self, declared: impl FnOnce(u32) -> Option<T>) -> Result<T, XdrError> {
        let found = self.u32()?;
        declared(found).ok_or(XdrError::BadDiscriminant(found))
    }

    /// Reads `T`.
    #[inline]
    pub fn value<T: Decode<'a>>(&mut self) -> Result<T, XdrError> {
        T::decode(self)
    }

    /// Reads optional data: `None` after a 0, a `T` after a 1.
    #[inline]
    pub fn optional<T: Decode<'a>>(&mut self) -> Result<Option<T>, XdrError> {
        if self.bool()? { T::decode(self).map(Some) } else { Ok(None) }
    }

    /// Reads opaque data of a fixed length, and its padding.
    #[inline]
    pub fn opaque_fixed(&mut self, len: usize) -> Result<&'a [u8], XdrError> {
        let Some((octets, rest)) = self.rest.split_at_checked(len) else { return Err(XdrError::Truncated) };
        let Some(rest) = rest.get(padding(len)..) else { return Err(XdrError::Truncated) };
        self.rest = rest;
        Ok(octets)
    }

    /// Reads opaque data of a variable length, at most `max`, and its padding. The item is not
    /// DDP-eligible: a chunk in its place is [`XdrError::IneligibleChunk`].
    #[inline]
    pub fn opaque(&mut self, max: u32) -> Result<&'a [u8], XdrError> {
        let len = self.length(max)?;
        if let Some(next) = self.reduced.first()
            && next.has_position()
            && u64::from(next.position) == self.unreduced_position()
        {
            return Err(XdrError::IneligibleChunk);
        }
        self.opaque_fixed(len as usize)
    }

    /// Reads a string of at most `max` octets. XDR gives no character set; neither does this.
    #[inline]
    pub fn string(&mut self, max: u32) -> Result<&'a [u8], XdrError> {
        self.opaque(max)
    }

    /// Reads a length word and checks it against `max` only.
    #[inline]
    fn length(&mut self, max: u32) -> Result<u32, XdrError> {
        let found = self.u32()?;
        if found > max { Err(XdrError::TooLong { limit: max, found }) } else { Ok(found) }
    }

    /// Reads the count of an array of at most `max` elements, each of at least `element_len` octets.
    ///
    /// The caller reads the elements. A count that the rest of the stream cannot hold is refused here, so
    /// that it may size something by it.
    #[inline]
    pub fn count(&mut self, max: u32, element_len: usize) -> Result<u32, XdrError> {
        let count = self.length(max)?;
        match (count as usize).checked_mul(element_len) {
            Some(len) if len <= self.rest.len() => Ok(count),
            _ => Err(XdrError::Truncated),
        }
    }

    /// Reads a DDP-eligible item: opaque data of at most `max` octets, inline or in a chunk.
    ///
    /// Of a Read chunk the length must be that of the item, with or without padding (8166-3.4.5.2-a); of a
    /// Write chunk exactly that of the item (8166-3.4.6.2-a). An item of length 0 is in a chunk only if
    /// a Read chunk of length 0 stands at its Position; beside a Write chunk it is inline (8267-X-3).
    #[inline(always)]
    pub fn eligible_opaque(&mut self, max: u32) -> Result<Item<'a>, XdrError> {
        let len = self.length(max)?;
        if let Some((next, later)) = self.reduced.split_first()
            && next.has_position()
            && u64::from(next.position) == self.unreduced_position()
            && next.len == len
        {
            // As below: of nearly every Call with data.
            self.reduced = later;
            self.skipped += padded(len);
            return Ok(Item::Reduced { index: next.index, len });
        }
        self.eligible_opaque_else(len)
    }

    /// The rest of [`Reader::eligible_opaque`], behind the length word.
    #[inline(never)]
    fn eligible_opaque_else(&mut self, len: u32) -> Result<Item<'a>, XdrError> {
        if let Some((next, later)) = self.reduced.split_first()
            && let Some(item) = self.take_reduced(next, later, len)?
        {
            return Ok(item);
        }
        self.opaque_fixed(len as usize).map(Item::Inline)
    }

    /// Takes the item from the chunk `next` if that is where it is.
    #[inline]
    fn take_reduced(
        &mut self,
        next: &Reduced,
        later: &'a [Reduced],
        len: u32,
    ) -> Result<Option<Item<'a>>, XdrError> {
        let mismatch = XdrError::ChunkLength { chunk: next.len, item: len };
        if next.has_position() {
            if u64::from(next.position) != self.unreduced_position() {
                return Ok(None);
            }
            if next.len != len && u64::from(next.len) != padded(len) {
                return Err(mismatch);
            }
        } else {
            if next.position == Reduced::NEXT && next.len != len {
                return Err(mismatch);
            }
            if next.position == Reduced::NEXT_INLINE || len == 0 {
                self.reduced = later;
                return Ok(None);
            }
        }
        self.reduced = later;
        // 8166-3.4.4.4-b: the padding left the stream with the item.
        self.skipped += padded(len);
        Ok(Some(Item::Reduced { index: next.index, len }))
    }

    /// Ends reading: there must be nothing left, neither octets nor chunks.
    ///
    /// Write chunks that came back without data may be left: they are unused (8166-4.3.2.2-b).
    #[inline]
    pub fn finish(self) -> Result<(), XdrError> {
        if !self.rest.is_empty() {
            return Err(XdrError::TrailingOctets);
        }
        self.finish_lenient()
    }

    /// Ends reading like [`Reader::finish`], but forgives octets after the last item.
    #[inline]
    pub fn finish_lenient(self) -> Result<(), XdrError> {
        if self.reduced.iter().any(|chunk| chunk.has_position() || chunk.len != 0) {
            return Err(XdrError::UnusedChunk);
        }
        Ok(())
    }
}

/// A place in a [`Writer`], to go back to ([`Writer::rewind`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bookmark {
    position: usize,
    skipped: u64,
    reduced_count: u8,
}

/// A word that was left open ([`Writer::reserve_u32`]).
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the word stays 0 until it is patched"]
pub struct Reserved(usize);

/// Items that a [`Writer`] can leave to chunks.
pub const REDUCED_MAX: usize = 8;

/// Writes XDR items into a slice, one after the other.
///
/// After an [`Overflow`] the writer's place is unspecified; [`Writer::rewind`] makes it usable again.
#[derive(Debug)]
pub struct Writer<'a> {
    buf: &'a mut [u8],
    position: usize,
    /// Octets, with padding, of the items left out.
    skipped: u64,
    /// Positions of the items left out.
    reduced: [u32; REDUCED_MAX],
    reduced_count: u8,
    /// Octets announced, and those given instead.
    bad_sum: Option<(u32, u64)>,
}

impl<'a> Writer<'a> {
    /// Writes at the start of `buf`. For Positions to be right, that is where the RPC message starts.
    #[inline]
    #[must_use]
    pub const fn new(buf: &'a mut [u8]) -> Writer<'a> {
        Writer { buf, position: 0, skipped: 0, reduced: [0; REDUCED_MAX], reduced_count: 0, bad_sum: None }
    }

    /// Returns the octets written so far.
    #[inline]
    #[must_use]
    pub const fn position(&self) -> usize {
        self.position
    }

    /// Returns the place in the unreduced stream: octets written, and octets left out.
    #[inline]
    #[must_use]
    pub const fn unreduced_position(&self) -> u64 {
        self.position as u64 + self.skipped
    }

    /// Returns the octets that still fit.
    #[inline]
    #[must_use]
    pub const fn remaining(&self) -> usize {
        self.buf.len() - self.position
    }

    /// Returns what was written.
    #[inline]
    #[must_use]
    pub fn written(&self) -> &[u8] {
        &self.buf[..self.position]
    }

    /// Returns the present place, for [`Writer::rewind`].
    #[inline]
    #[must_use]
    pub const fn mark(&self) -> Bookmark {
        Bookmark { position: self.position, skipped: self.skipped, reduced_count: self.reduced_count }
    }

    /// Forgets all that was written after `mark` was taken.
    ///
    /// # Panics
    ///
    /// If `mark` is ahead of what was written.
    #[inline]
    pub fn rewind(&mut self, mark: Bookmark) {
        assert!(mark.position <= self.position, "a mark of another writer");
        self.position = mark.position;
        self.skipped = mark.skipped;
        self.reduced_count = mark.reduced_count;
    }

    /// Opens the next `N` octets for the caller to fill. `N` must be a multiple of 4.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<&mut [u8; N], Overflow> {
        const { assert!(N.is_multiple_of(UNIT), "not a whole number of XDR units") };
        let array = self.buf.get_mut(self.position..).and_then(<[u8]>::first_chunk_mut).ok_or(Overflow)?;
        self.position += N;
        Ok(array)
    }

    /// Writes an unsigned int.
    #[inline]
    pub fn u32(&mut self, value: u32) -> Result<(), Overflow> {
        *self.array()? = value.to_be_bytes();
        Ok(())
    }

    /// Writes an int.
    #[inline]
    pub fn i32(&mut self, value: i32) -> Result<(), Overflow> {
        *self.array()? = value.to_be_bytes();
        Ok(())
    }

    /// Writes an unsigned hyper.
    #[inline]
    pub fn u64(&mut self, value: u64) -> Result<(), Overflow> {
        *self.array()? = value.to_be_bytes();
        Ok(())
    }

    /// Writes a hyper.
    #[inline]
    pub fn i64(&mut self, value: i64) -> Result<(), Overflow> {
        *self.array()? = value.to_be_bytes();
        Ok(())
    }

    /// Writes a bool, or the word that says whether optional data follows.
    #[inline]
    pub fn bool(&mut self, value: bool) -> Result<(), Overflow> {
        self.u32(u32::from(value))
    }

    /// Writes `value`.
    #[inline]
    pub fn value<T: Encode + ?Sized>(&mut self, value: &T) -> Result<(), Overflow> {
        value.encode(self)
    }

    /// Writes optional data.
    #[inline]
    pub fn optional<T: Encode>(&mut self, value: Option<&T>) -> Result<(), Overflow> {
        match value {
            Some(value) => value.encode_some(self),
            None => self.bool(false),
        }
    }

    /// Writes opaque data of a fixed length, and its padding.
    #[inline]
    pub fn opaque_fixed(&mut self, octets: &[u8]) -> Result<(), Overflow> {
        if octets.is_empty() {
            // Every empty verifier: not worth two copies of a length that only the run knows.
            return Ok(());
        }
        let end = self.position + octets.len();
        let place = self.buf.get_mut(self.position..end + padding(octets.len())).ok_or(Overflow)?;
        let (data, pad) = place.split_at_mut(octets.len());
        data.copy_from_slice(octets);
        pad.fill(0);
        self.position = end + pad.len();
        Ok(())
    }

    /// Writes opaque data of a variable length: length word, octets, padding.
    #[inline]
    pub fn opaque(&mut self, octets: &[u8]) -> Result<(), Overflow> {
        self.u32(u32::try_from(octets.len()).map_err(|_| Overflow)?)?;
        self.opaque_fixed(octets)
    }

    /// Writes opaque data of a variable length that lies in pieces of `len` octets in all.
    ///
    /// [`Overflow`] also when the pieces add up to another length; [`Writer::bad_sum`] tells the two apart.
    pub fn opaque_pieces<'p>(
        &mut self,
        len: u32,
        pieces: impl IntoIterator<Item = &'p [u8]>,
    ) -> Result<(), Overflow> {
        self.u32(len)?;
        let end = self.position + len as usize;
        let place = self.buf.get_mut(self.position..end + padding(len as usize)).ok_or(Overflow)?;
        let (mut data, pad) = place.split_at_mut(len as usize);
        let mut given = 0;
        for piece in pieces {
            given += piece.len() as u64;
            // What is too much is counted, but has no place.
            let taken = piece.len().min(data.len());
            let (now, later) = core::mem::take(&mut data).split_at_mut(taken);
            now.copy_from_slice(&piece[..taken]);
            data = later;
        }
        if given != u64::from(len) {
            self.bad_sum = Some((len, given));
            return Err(Overflow);
        }
        pad.fill(0);
        self.position = end + pad.len();
        Ok(())
    }

    /// Returns the octets announced to [`Writer::opaque_pieces`] and those given, if they differed.
    #[inline]
    #[must_use]
    pub const fn bad_sum(&self) -> Option<(u32, u64)> {
        self.bad_sum
    }

    /// Writes a string.
    #[inline]
    pub fn string(&mut self, octets: &[u8]) -> Result<(), Overflow> {
        self.opaque(octets)
    }

    /// Leaves a word open for a value that is known later: a count or a length.
    #[inline]
    pub fn reserve_u32(&mut self) -> Result<Reserved, Overflow> {
        let place = Reserved(self.position);
        self.u32(0)?;
        Ok(place)
    }

    /// Fills a word that was left open.
    ///
    /// # Panics
    ///
    /// If the word is not in what was written: it is another writer's, or was rewound.
    #[inline]
    pub fn patch_u32(&mut self, place: Reserved, value: u32) {
        assert!(place.0 + UNIT <= self.position, "a word of another writer");
        *self.buf[place.0..].first_chunk_mut().expect("it was written") = value.to_be_bytes();
    }

    /// Writes a DDP-eligible item inline.
    #[inline]
    pub fn eligible_opaque_inline(&mut self, octets: &[u8]) -> Result<(), Overflow> {
        self.opaque(octets)
    }

    /// Returns the Positions of the items left out so far, in order.
    #[inline]
    #[must_use]
    pub fn reduced_positions(&self) -> &[u32] {
        &self.reduced[..usize::from(self.reduced_count)]
    }

    /// Writes the length word of a DDP-eligible item of `len` octets and leaves the rest to a chunk.
    /// Returns the Position of the item, for the Read list (8166-3.4.5-a). [`Overflow`] also when
    /// [`REDUCED_MAX`] items were left out already.
    #[inline]
    pub fn eligible_opaque_reduced(&mut self, len: u32) -> Result<u32, Overflow> {
        self.u32(len)?;
        let position = u32::try_from(self.unreduced_position()).map_err(|_| Overflow)?;
        *self.reduced.get_mut(usize::from(self.reduced_count)).ok_or(Overflow)? = position;
        self.reduced_count += 1;
        self.skipped += padded(len);
        Ok(position)
    }
}
