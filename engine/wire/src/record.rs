//! Record marking (RFC 5531 section 11): RPC messages on a stream of octets.
//!
//! ```text
//!  record    fragment … fragment         the last one is marked
//!  fragment  mark, octets                mark: 1 bit "last", 31 bits length
//! ```
//!
//! [`Splitter`] finds the records in whatever pieces the stream arrives. It keeps no octets itself: the
//! caller joins those of a record, or takes a record that arrived in one piece as it is.

/// Octets of a mark.
pub const MARK_LEN: usize = 4;

/// Fragments of one record at most. Some peers cut records into pieces of a few thousand octets; none needs more.
pub const FRAGMENTS_MAX: u32 = 1024;

/// What stands in front of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Octets that follow: less than 2³¹.
    pub len: u32,
    /// Whether the record ends with them.
    pub is_last: bool,
}

impl Mark {
    const LAST: u32 = 1 << 31;

    /// The mark of a record in one fragment. The highest bit of `len` is ignored.
    #[inline]
    #[must_use]
    pub const fn whole(len: u32) -> Mark {
        Mark { len: len & !Mark::LAST, is_last: true }
    }

    /// Reads a mark. Every value is one.
    #[inline]
    #[must_use]
    pub const fn from_bytes(bytes: [u8; MARK_LEN]) -> Mark {
        let word = u32::from_be_bytes(bytes);
        Mark { len: word & !Mark::LAST, is_last: word & Mark::LAST != 0 }
    }

    /// Writes it.
    #[inline]
    #[must_use]
    pub const fn to_bytes(self) -> [u8; MARK_LEN] {
        let last = if self.is_last { Mark::LAST } else { 0 };
        (self.len & !Mark::LAST | last).to_be_bytes()
    }
}

/// Why the stream is of no more use: its sender does not speak record marking, or means harm (5531-11-b).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// A record is longer than the limit.
    TooLong {
        /// The limit.
        limit: u32,
        /// Octets it would have at least.
        found: u64,
    },
    /// A record is in more than [`FRAGMENTS_MAX`] fragments.
    TooManyFragments,
}

impl core::fmt::Display for RecordError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            RecordError::TooLong { limit, found } => {
                write!(f, "a record of {found} octets or more, the limit is {limit}")?;
                // A mark of text is the beginning of another protocol.
                let octets = u32::try_from(*found).unwrap_or_default().to_be_bytes();
                match core::str::from_utf8(&octets) {
                    Ok("MPA ") => f.write_str("; its peer speaks iWARP, and this port RPC over TCP"),
                    Ok(text) if octets.iter().all(|octet| (b' '..=b'~').contains(octet)) => {
                        write!(f, "; {text:?} begins no RPC")
                    }
                    _ => Ok(()),
                }
            }
            RecordError::TooManyFragments => write!(f, "a record in more than {FRAGMENTS_MAX} fragments"),
        }
    }
}

impl core::error::Error for RecordError {}

/// The next step of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// The next octets of the record: at least one.
    Octets(&'a [u8]),
    /// The record is complete.
    End,
    /// All input is used, and the record is not complete.
    Pause,
}

/// Finds records in a stream. After an [`RecordError`] its state is unspecified: end the connection.
#[derive(Clone, Debug)]
pub struct Splitter {
    len_max: u32,
    /// The part of a mark that is here.
    mark: [u8; MARK_LEN],
    mark_len: u8,
    /// Whether `left` and `is_last` are of a fragment that has begun and not ended.
    in_fragment: bool,
    is_last: bool,
    /// Octets of the fragment that are still to come.
    left: u32,
    /// Octets of the record so far.
    len: u32,
    /// Fragments of the record so far.
    fragments: u32,
}

impl Splitter {
    /// Expects a mark. Records are of at most `len_max` octets.
    #[must_use]
    pub const fn new(len_max: u32) -> Splitter {
        Splitter {
            len_max,
            mark: [0; MARK_LEN],
            mark_len: 0,
            in_fragment: false,
            is_last: false,
            left: 0,
            len: 0,
            fragments: 0,
        }
    }

    /// Whether the last record is complete, and nothing of the next is here, not even of its mark.
    #[inline]
    #[must_use]
    pub const fn is_between(&self) -> bool {
        !self.in_fragment && self.mark_len == 0 && self.fragments == 0
    }

    /// Takes the next record out of `input` if that has all of it, in one fragment: the usual case. Only
    /// between records; `None` leaves everything as it was, for [`Splitter::step`].
    #[inline]
    pub fn whole<'a>(&self, input: &mut &'a [u8]) -> Option<&'a [u8]> {
        let (mark, rest) = input.split_first_chunk()?;
        let mark = Mark::from_bytes(*mark);
        if !self.is_between() || !mark.is_last || mark.len > self.len_max {
            return None;
        }
        let (record, rest) = rest.split_at_checked(mark.len as usize)?;
        *input = rest;
        Some(record)
    }

    /// Takes the next octets out of `input`.
    ///
    /// # Errors
    ///
    /// See [`RecordError`].
    pub fn step<'a>(&mut self, input: &mut &'a [u8]) -> Result<Step<'a>, RecordError> {
        // At most one turn for each fragment.
        loop {
            if self.in_fragment {
                if self.left > 0 {
                    let take = input.len().min(self.left as usize);
                    if take == 0 {
                        return Ok(Step::Pause);
                    }
                    let (octets, rest) = input.split_at(take);
                    *input = rest;
                    self.advance(take as u32);
                    return Ok(Step::Octets(octets));
                }
                self.in_fragment = false;
                if self.is_last {
                    (self.len, self.fragments) = (0, 0);
                    return Ok(Step::End);
                }
            }
            let have = usize::from(self.mark_len);
            let take = input.len().min(MARK_LEN - have);
            let (octets, rest) = input.split_at(take);
            *input = rest;
            self.mark[have..have + take].copy_from_slice(octets);
            if have + take < MARK_LEN {
                self.mark_len = (have + take) as u8;
                return Ok(Step::Pause);
            }
            self.mark_len = 0;
            self.begin(Mark::from_bytes(self.mark))?;
        }
    }

    fn begin(&mut self, mark: Mark) -> Result<(), RecordError> {
        let found = u64::from(self.len) + u64::from(mark.len);
        if found > u64::from(self.len_max) {
            return Err(RecordError::TooLong { limit: self.len_max, found });
        }
        if self.fragments == FRAGMENTS_MAX {
            return Err(RecordError::TooManyFragments);
        }
        self.fragments += 1;
        (self.in_fragment, self.is_last, self.left) = (true, mark.is_last, mark.len);
        Ok(())
    }

    /// Octets that are sure to come before the next mark, all of this record: the caller may receive up to that
    /// number elsewhere, and say so with [`Splitter::advance`].
    #[inline]
    #[must_use]
    pub const fn expected(&self) -> u32 {
        if self.in_fragment { self.left } else { 0 }
    }

    /// Counts octets of the record that did not go through [`Splitter::step`].
    ///
    /// # Panics
    ///
    /// If they are more than [`Splitter::expected`].
    #[inline]
    pub fn advance(&mut self, octets: u32) {
        assert!(octets <= self.expected(), "octets beyond the fragment");
        self.left -= octets;
        self.len += octets;
    }

    /// The last `octets` that [`Splitter::step`] gave out were not taken: it will give them out again.
    ///
    /// # Panics
    ///
    /// If the record has fewer.
    #[inline]
    pub fn take_back(&mut self, octets: u32) {
        assert!(self.in_fragment && octets <= self.len, "octets of another record");
        self.left += octets;
        self.len -= octets;
    }

    /// Octets of the whole record, as soon as the mark of its last fragment is here.
    #[inline]
    #[must_use]
    pub const fn record_len(&self) -> Option<u32> {
        if self.in_fragment && self.is_last { Some(self.len + self.left) } else { None }
    }
}
