//! Counted arrays of XDR values, as they stand in a message or as a slice of values.

use core::fmt;

use crate::xdr::{Decode, Encode, Overflow, Reader, UNIT, Writer, XdrError};

/// A counted array: checked octets of a message, or a slice of values to be written.
///
/// Both read the same, so that a received array and one about to be sent have the same type.
#[derive(Clone, Copy)]
pub struct Elements<'a, T> {
    source: Source<'a, T>,
}

#[derive(Clone, Copy)]
enum Source<'a, T> {
    /// Elements of a message, checked when they were read: their number and their octets.
    Wire(u32, &'a [u8]),
    Values(&'a [T]),
}

impl<'a, T> Elements<'a, T> {
    /// An array without elements.
    pub const EMPTY: Elements<'a, T> = Elements { source: Source::Values(&[]) };

    /// An array of these values.
    #[inline]
    #[must_use]
    pub const fn new(values: &'a [T]) -> Elements<'a, T> {
        Elements { source: Source::Values(values) }
    }

    /// Returns the number of elements.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        match self.source {
            Source::Wire(count, _) => count as usize,
            Source::Values(values) => values.len(),
        }
    }

    /// Tells whether there are no elements.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a, T: Decode<'a> + Copy> Elements<'a, T> {
    /// Iterates over the elements.
    #[inline]
    #[must_use]
    pub fn iter(&self) -> ElementIter<'a, T> {
        ElementIter { left: *self }
    }
}

/// Iterates over [`Elements`].
#[derive(Clone)]
pub struct ElementIter<'a, T> {
    left: Elements<'a, T>,
}

impl<'a, T: Decode<'a> + Copy> Iterator for ElementIter<'a, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        let (element, source) = match self.left.source {
            Source::Values(values) => {
                let (first, rest) = values.split_first()?;
                (*first, Source::Values(rest))
            }
            Source::Wire(count, octets) => {
                let left = count.checked_sub(1)?;
                let mut reader = Reader::new(octets);
                // They were decoded before, so this ends nothing early.
                let element = T::decode(&mut reader).ok()?;
                (element, Source::Wire(left, reader.rest()))
            }
        };
        self.left = Elements { source };
        Some(element)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left.len(), Some(self.left.len()))
    }
}

impl<'a, T: Decode<'a> + Copy> ExactSizeIterator for ElementIter<'a, T> {}
impl<'a, T: Decode<'a> + Copy> core::iter::FusedIterator for ElementIter<'a, T> {}

impl<'a, T: Decode<'a> + Copy> Decode<'a> for Elements<'a, T> {
    /// Checks all elements. A count that the rest of the message cannot hold is refused at once.
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        let count = reader.count(u32::MAX, UNIT)?;
        let octets = reader.rest();
        for _ in 0..count {
            T::decode(reader)?;
        }
        let octets = &octets[..octets.len() - reader.remaining()];
        Ok(Elements { source: Source::Wire(count, octets) })
    }
}

impl<'a, T: Decode<'a> + Encode + Copy> Encode for Elements<'a, T> {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.u32(u32::try_from(self.len()).map_err(|_| Overflow)?)?;
        self.iter().try_for_each(|element| element.encode(writer))
    }
}

impl<'a, T: Decode<'a> + Copy + PartialEq> PartialEq for Elements<'a, T> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<'a, T: Decode<'a> + Copy + Eq> Eq for Elements<'a, T> {}

impl<'a, T: Decode<'a> + Copy + fmt::Debug> fmt::Debug for Elements<'a, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a, T: Decode<'a> + Copy + fmt::Debug> fmt::Debug for ElementIter<'a, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.left.fmt(f)
    }
}
