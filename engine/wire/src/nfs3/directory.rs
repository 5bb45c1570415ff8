//! Results of READDIR and READDIRPLUS: lists of entries, read by [`Entries`], written by [`Listing`].
//!
//! ```text
//! 1 - entry - 1 - entry - ... - 1 - entry - 0 - eof
//! ```
//!
//! A list is checked whole when it is decoded; the iterator over it cannot fail. A server appends entries
//! one by one until [`Listing::push`] says that the client's limits, or the buffer, hold no more.

use core::fmt;
use core::marker::PhantomData;

use super::value::records;
use super::{Handle, Name, POST_OP_ATTRIBUTES_LEN_MAX, PostOpAttributes, ProcedureResults, Verifier};
use crate::xdr::{Decode, Encode, Overflow, Reader, Writer, XdrError, padding};

records! {
    /// An entry of READDIR (entry3).
    Entry<'a> {
        /// Identifies the object.
        fileid: u64,
        /// Its name.
        name: Name<'a>,
        /// Where a listing goes on after this entry.
        cookie: u64,
    }

    /// An entry of READDIRPLUS (entryplus3).
    EntryPlus<'a> {
        /// Identifies the object.
        fileid: u64,
        /// Its name.
        name: Name<'a>,
        /// Where a listing goes on after this entry.
        cookie: u64,
        /// Its attributes.
        attributes: PostOpAttributes,
        /// Its handle.
        handle: Option<Handle<'a>>,
    }
}

/// The results of READDIR (READDIR3resok) or of READDIRPLUS (READDIRPLUS3resok).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ListOk<'a, E> {
    /// The directory's attributes.
    pub attributes: PostOpAttributes,
    /// To be sent back with a cookie.
    pub verifier: Verifier,
    /// The entries.
    pub entries: Entries<'a, E>,
    /// Whether the last entry of the directory is among them.
    pub eof: bool,
}

impl<'a, E: Decode<'a> + fmt::Debug> fmt::Debug for ListOk<'a, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ListOk { attributes, verifier, entries, eof } = self;
        f.debug_struct("ListOk")
            .field("attributes", attributes)
            .field("verifier", verifier)
            .field("entries", entries)
            .field("eof", eof)
            .finish()
    }
}

/// READDIR3res.
pub type ReaddirReply<'a> = ProcedureResults<ListOk<'a, Entry<'a>>, PostOpAttributes>;
/// READDIRPLUS3res.
pub type ReaddirplusReply<'a> = ProcedureResults<ListOk<'a, EntryPlus<'a>>, PostOpAttributes>;

impl<'a, E: Decode<'a>> Decode<'a> for ListOk<'a, E> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        Ok(ListOk {
            attributes: reader.value()?,
            verifier: reader.value()?,
            entries: reader.value()?,
            eof: reader.bool()?,
        })
    }
}

impl<E> Encode for ListOk<'_, E> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.value(&self.attributes)?;
        writer.value(&self.verifier)?;
        writer.value(&self.entries)?;
        writer.bool(self.eof)
    }
}

/// A checked list of entries, still in XDR.
#[derive(PartialEq, Eq)]
pub struct Entries<'a, E> {
    /// The whole list with its final 0, checked by `decode`.
    octets: &'a [u8],
    entry: PhantomData<E>,
}

/// Entries that [`Entries`] shows at most.
const SHOWN_ENTRIES_MAX: usize = 4;

impl<'a, E: Decode<'a> + fmt::Debug> fmt::Debug for Entries<'a, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.into_iter().take(SHOWN_ENTRIES_MAX)).finish()?;
        match self.into_iter().count() {
            count if count > SHOWN_ENTRIES_MAX => write!(f, "...({count} of them)"),
            _ => Ok(()),
        }
    }
}

impl<E> Clone for Entries<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for Entries<'_, E> {}

impl<'a, E: Decode<'a>> Decode<'a> for Entries<'a, E> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        let (list, start) = (reader.rest(), reader.position());
        // Ends: each turn takes octets of the message.
        while reader.optional::<E>()?.is_some() {}
        Ok(Entries { octets: &list[..reader.position() - start], entry: PhantomData })
    }
}

/// Writes a decoded list again, as it came.
impl<E> Encode for Entries<'_, E> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.opaque_fixed(self.octets)
    }
}

impl<'a, E: Decode<'a>> IntoIterator for Entries<'a, E> {
    type Item = E;
    type IntoIter = EntriesIter<'a, E>;

    fn into_iter(self) -> EntriesIter<'a, E> {
        EntriesIter { reader: Reader::new(self.octets), entry: PhantomData }
    }
}

/// Iterates over [`Entries`].
#[derive(Clone, Debug)]
pub struct EntriesIter<'a, E> {
    reader: Reader<'a>,
    entry: PhantomData<E>,
}

impl<'a, E: Decode<'a>> Iterator for EntriesIter<'a, E> {
    type Item = E;

    fn next(&mut self) -> Option<E> {
        // Errors cannot happen in a checked list; after its final 0 the reader is empty, which ends it.
        self.reader.optional().ok().flatten()
    }
}

/// An entry of a list that a server writes.
pub trait ListEntry: Encode {
    /// XDR length of its id, name and cookie: what the `dircount` of READDIRPLUS bounds.
    fn directory_len(&self) -> usize;

    /// XDR length of all of it.
    fn encoded_len(&self) -> usize;
}

const fn directory_len(name: &Name<'_>) -> usize {
    8 + 4 + name.0.len() + padding(name.0.len()) + 8
}

impl ListEntry for Entry<'_> {
    #[inline]
    fn directory_len(&self) -> usize {
        directory_len(&self.name)
    }

    #[inline]
    fn encoded_len(&self) -> usize {
        directory_len(&self.name)
    }
}

impl ListEntry for EntryPlus<'_> {
    #[inline]
    fn directory_len(&self) -> usize {
        directory_len(&self.name)
    }

    #[inline]
    fn encoded_len(&self) -> usize {
        let attributes = if self.attributes.is_some() { POST_OP_ATTRIBUTES_LEN_MAX } else { 4 };
        let handle = self.handle.map_or(4, |handle| 8 + handle.0.len() + padding(handle.0.len()));
        directory_len(&self.name) + attributes + handle
    }
}

/// Writes the results of READDIR or READDIRPLUS, entry by entry.
#[derive(Debug)]
pub struct Listing<'w, 'b> {
    writer: &'w mut Writer<'b>,
    /// Where the results must end at the latest.
    end: usize,
    /// Bytes of directory information that `dircount` still allows.
    directory_left: usize,
    is_empty: bool,
}

/// The final 0 of the list, and eof.
const LIST_END_LEN: usize = 4 + 4;

impl<'w, 'b> Listing<'w, 'b> {
    /// Starts successful results, status included. `len_max` bounds the length of the `resok` fields in bytes:
    /// READDIR's `count`, READDIRPLUS's `maxcount`. `dircount` bounds the directory information in it;
    /// READDIR has no such bound: `u32::MAX`.
    pub fn begin(
        writer: &'w mut Writer<'b>,
        attributes: &PostOpAttributes,
        verifier: Verifier,
        len_max: u32,
        dircount: u32,
    ) -> Result<Listing<'w, 'b>, Overflow> {
        writer.u32(0)?;
        let end = writer.position().saturating_add(len_max as usize);
        writer.value(attributes)?;
        writer.value(&verifier)?;
        if writer.remaining() < LIST_END_LEN {
            return Err(Overflow);
        }
        Ok(Listing { writer, end, directory_left: dircount as usize, is_empty: true })
    }

    /// Appends an entry. `false`: it does not fit, nothing was written, and nothing more should be pushed.
    ///
    /// A `dircount` that is too small for any entry does not stop the first one: only `len_max` is hard.
    #[must_use]
    pub fn push<E: ListEntry>(&mut self, entry: &E) -> bool {
        let directory_len = entry.directory_len();
        if directory_len > self.directory_left && !self.is_empty {
            return false;
        }
        let len = 4 + entry.encoded_len() + LIST_END_LEN;
        if self.writer.position() + len > self.end || len > self.writer.remaining() {
            return false;
        }
        let written = self.writer.optional(Some(entry));
        debug_assert!(written.is_ok(), "its length was checked");
        self.directory_left = self.directory_left.saturating_sub(directory_len);
        self.is_empty = false;
        true
    }

    /// Tells whether no entry was appended yet. If there are entries but none fits, the answer is
    /// [`super::Status::TooSmall`], written over this.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Ends the results.
    pub fn finish(self, eof: bool) -> Result<(), Overflow> {
        self.writer.bool(false)?;
        self.writer.bool(eof)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: Entry<'_> = Entry { fileid: 7, name: Name(b"hello"), cookie: 3 };
    /// XDR length of `ENTRY` with the 1 in front of it.
    const ENTRY_LEN: u32 = 4 + 8 + 4 + 8 + 8;
    /// XDR length of a list without attributes and entries.
    const EMPTY_LEN: u32 = 4 + 8 + 8;

    #[test]
    fn lengths_are_those_of_the_encoding() {
        let attributes = Some(super::super::Attributes {
            file_type: super::super::FileType::Fifo,
            mode: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            size: 0,
            used: 0,
            rdev: Default::default(),
            fsid: 0,
            fileid: 0,
            atime: Default::default(),
            mtime: Default::default(),
            ctime: Default::default(),
        });
        let encoded = |entry: &dyn Fn(&mut Writer<'_>)| {
            let mut buf = [0; 256];
            let mut writer = Writer::new(&mut buf);
            entry(&mut writer);
            writer.position()
        };
        for name in [&b""[..], b"a", b"four", b"hello"] {
            let (fileid, name, cookie) = (1, Name(name), 2);
            let entry = Entry { fileid, name, cookie };
            assert_eq!(entry.encoded_len(), encoded(&|writer| writer.value(&entry).unwrap()));
            for attributes in [None, attributes] {
                for handle in [None, Some(Handle(&[])), Some(Handle(&[7; 5]))] {
                    let entry = EntryPlus { fileid, name, cookie, attributes, handle };
                    assert_eq!(entry.encoded_len(), encoded(&|writer| writer.value(&entry).unwrap()));
                    assert_eq!(entry.directory_len(), Entry { fileid, name, cookie }.encoded_len());
                }
            }
        }
    }

    /// Pushes `ENTRY` until it is refused; returns how many there are, and the length of the `resok` fields.
    fn fill(room: usize, len_max: u32, dircount: u32) -> Result<(usize, usize), Overflow> {
        let mut buf = [0xaa; 256];
        let mut writer = Writer::new(&mut buf[..room]);
        let mut list = Listing::begin(&mut writer, &None, [1; 8], len_max, dircount)?;
        let mut count = 0;
        while list.push(&ENTRY) {
            count += 1;
        }
        assert_eq!(list.is_empty(), count == 0);
        list.finish(false)?;
        let mut reader = Reader::new(writer.written());
        let reply: ReaddirReply<'_> = reader.value().unwrap();
        assert_eq!(reader.finish(), Ok(()));
        let list = reply.unwrap();
        assert!(list.entries.into_iter().all(|entry| entry == ENTRY));
        assert_eq!(list.entries.into_iter().count(), count);
        Ok((count, writer.position() - 4))
    }

    #[test]
    fn count_bounds_the_whole_structure() {
        let two = EMPTY_LEN + 2 * ENTRY_LEN;
        assert_eq!(fill(256, two, u32::MAX), Ok((2, two as usize)));
        assert_eq!(fill(256, two - 1, u32::MAX), Ok((1, (EMPTY_LEN + ENTRY_LEN) as usize)));
        // Too small for any: the server answers NFS3ERR_TOOSMALL.
        assert_eq!(fill(256, EMPTY_LEN + ENTRY_LEN - 1, u32::MAX), Ok((0, EMPTY_LEN as usize)));
    }

    #[test]
    fn dircount_bounds_ids_names_and_cookies_but_lets_one_through() {
        let one = ENTRY.directory_len() as u32;
        assert_eq!(one, ENTRY_LEN - 4);
        assert_eq!(fill(256, u32::MAX, 3 * one).unwrap().0, 3);
        assert_eq!(fill(256, u32::MAX, 3 * one - 1).unwrap().0, 2);
        assert_eq!(fill(256, u32::MAX, 0).unwrap().0, 1);
    }

    #[test]
    fn the_buffer_bounds_the_list_and_always_has_room_for_its_end() {
        let two = 4 + (EMPTY_LEN + 2 * ENTRY_LEN) as usize;
        assert_eq!(fill(two, u32::MAX, u32::MAX).unwrap().0, 2);
        assert_eq!(fill(two - 1, u32::MAX, u32::MAX).unwrap().0, 1);
        assert_eq!(fill(4 + EMPTY_LEN as usize, u32::MAX, u32::MAX).unwrap().0, 0);
        assert_eq!(fill(4 + EMPTY_LEN as usize - 1, u32::MAX, u32::MAX), Err(Overflow));
    }

    #[test]
    fn a_list_without_end_is_refused() {
        let mut buf = [0; 64];
        let mut writer = Writer::new(&mut buf);
        for _ in 0..2 {
            writer.optional(Some(&ENTRY)).unwrap();
        }
        let mut reader = Reader::new(writer.written());
        assert_eq!(reader.value::<Entries<'_, Entry<'_>>>(), Err(XdrError::Truncated));
    }
}
