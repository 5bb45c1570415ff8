//! READDIR: lists of entries, read by [`Entries`], written by [`DirectoryWriter`].

use super::attributes::{AttributeList, AttributeSet};
use super::{Entries, Name4, Status4, Verifier4};
use crate::nfs3::value::records;
use crate::xdr::{Decode, Encode, Overflow, Reader, Writer, XdrError, padding};

records! {
    /// READDIR4args.
    ReaddirArguments4<'a> {
        /// Where to go on: 0, or the cookie of the last entry seen.
        cookie: u64,
        /// Zero with cookie 0, else as the server gave it.
        verifier: Verifier4,
        /// Bytes of names and cookies that are wanted: a hint.
        dircount: u32,
        /// Bytes of READDIR4resok at most.
        maxcount: u32,
        /// The attributes asked for.
        request: AttributeSet<'a>,
    }

    /// An entry (entry4).
    DirectoryEntry4<'a> {
        /// Where a listing goes on after this entry.
        cookie: u64,
        /// Its name.
        name: Name4<'a>,
        /// Its attributes.
        attributes: AttributeList<'a>,
    }
}

/// READDIR4resok.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaddirOk4<'a> {
    /// To be sent back with a cookie.
    pub verifier: Verifier4,
    /// The entries.
    pub entries: Entries<'a, DirectoryEntry4<'a>>,
    /// Whether the last entry of the directory is among them.
    pub eof: bool,
}

impl<'a> Decode<'a> for ReaddirOk4<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        Ok(ReaddirOk4 { verifier: reader.value()?, entries: reader.value()?, eof: reader.bool()? })
    }
}

impl Encode for ReaddirOk4<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.value(&self.verifier)?;
        writer.value(&self.entries)?;
        writer.bool(self.eof)
    }
}

/// Why an entry was not appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryRefused {
    /// The client's limits hold no more: the list ends here, or the answer is NFS4ERR_TOOSMALL if it has no entry.
    Limit,
    /// The buffer has no room: the client's limits would have allowed it.
    Buffer,
}

/// Writes the results of READDIR, entry by entry.
#[derive(Debug)]
pub struct DirectoryWriter<'w, 'b> {
    writer: &'w mut Writer<'b>,
    /// Where the results must end at the latest.
    end: usize,
    /// Bytes of names and cookies that `dircount` still allows.
    directory_left: usize,
    is_empty: bool,
}

/// The final 0 of the list, and eof.
const LIST_END_LEN: usize = 4 + 4;

impl<'w, 'b> DirectoryWriter<'w, 'b> {
    /// Starts successful results, status included; else as [`DirectoryWriter::begin_fields`].
    pub fn begin(
        writer: &'w mut Writer<'b>,
        verifier: Verifier4,
        dircount: u32,
        maxcount: u32,
    ) -> Result<DirectoryWriter<'w, 'b>, Overflow> {
        writer.value(&Status4::Ok)?;
        DirectoryWriter::begin_fields(writer, verifier, dircount, maxcount)
    }

    /// Starts READDIR4resok. `maxcount` bounds its length; `dircount` that of names and cookies in it, 0 means no bound
    /// (8881-18.23.3).
    pub fn begin_fields(
        writer: &'w mut Writer<'b>,
        verifier: Verifier4,
        dircount: u32,
        maxcount: u32,
    ) -> Result<DirectoryWriter<'w, 'b>, Overflow> {
        let end = writer.position().saturating_add(maxcount as usize);
        writer.value(&verifier)?;
        if writer.remaining() < LIST_END_LEN {
            return Err(Overflow);
        }
        let directory_left = if dircount == 0 { usize::MAX } else { dircount as usize };
        Ok(DirectoryWriter { writer, end, directory_left, is_empty: true })
    }

    /// Appends an entry; `attributes` writes its [`AttributeList`]. Of a refused entry nothing is written, and nothing more
    /// should be pushed.
    ///
    /// A `dircount` that is too small for any entry does not stop the first one: it is a hint.
    pub fn push(
        &mut self,
        cookie: u64,
        name: &[u8],
        attributes: impl FnOnce(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Result<(), EntryRefused> {
        let directory_len = 8 + 4 + name.len() + padding(name.len());
        if directory_len > self.directory_left && !self.is_empty {
            return Err(EntryRefused::Limit);
        }
        let mark = self.writer.mark();
        let written = entry(self.writer, cookie, name, attributes);
        let refused = match written {
            Ok(()) if self.writer.position() + LIST_END_LEN > self.end => Some(EntryRefused::Limit),
            Ok(()) if self.writer.remaining() < LIST_END_LEN => Some(EntryRefused::Buffer),
            Ok(()) => None,
            Err(Overflow) => Some(EntryRefused::Buffer),
        };
        if let Some(refused) = refused {
            self.writer.rewind(mark);
            return Err(refused);
        }
        self.directory_left = self.directory_left.saturating_sub(directory_len);
        self.is_empty = false;
        Ok(())
    }

    /// Tells whether no entry was appended yet. If there are entries but none fits, the answer is
    /// [`Status4::TooSmall`], written over this.
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

fn entry(
    writer: &mut Writer<'_>,
    cookie: u64,
    name: &[u8],
    attributes: impl FnOnce(&mut Writer<'_>) -> Result<(), Overflow>,
) -> Result<(), Overflow> {
    writer.bool(true)?;
    writer.u64(cookie)?;
    writer.opaque(name)?;
    attributes(writer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nfs4::attributes::{Attribute, AttributeValue};

    /// XDR length of an entry `hello` with a size, and of the 1 before it.
    const ENTRY_LEN: u32 = 4 + 8 + 4 + 8 + (4 + 4) + 4 + 8;
    /// XDR length of a list without entries.
    const EMPTY_LEN: u32 = 8 + 8;

    /// Pushes entries until one is refused; returns how many fit, why the next was refused, and the length of the fields.
    fn fill(room: usize, dircount: u32, maxcount: u32) -> Result<(usize, EntryRefused, usize), Overflow> {
        let mut buf = [0xaa; 512];
        let mut writer = Writer::new(&mut buf[..room]);
        let mut list = DirectoryWriter::begin(&mut writer, Verifier4::default(), dircount, maxcount)?;
        let mask = Attribute::set_of(|attribute| attribute == Attribute::Size);
        let mut count = 0;
        let why = loop {
            let size = |writer: &mut Writer<'_>| {
                AttributeList::encode_with(writer, &mask, |_| AttributeValue::U64(count as u64))
            };
            if let Err(why) = list.push(count as u64 + 1, b"hello", size) {
                break why;
            }
            count += 1;
        };
        assert_eq!(list.is_empty(), count == 0);
        list.finish(false)?;
        let mut reader = Reader::new(writer.written());
        let list = reader.value::<Result<ReaddirOk4<'_>, Status4>>().unwrap().unwrap();
        assert_eq!(reader.finish(), Ok(()));
        assert_eq!(list.entries.into_iter().count(), count);
        assert!(list.entries.into_iter().all(|entry| entry.name.0 == b"hello"));
        Ok((count, why, writer.position() - 4))
    }

    #[test]
    fn maxcount_bounds_the_whole_structure() {
        let two = EMPTY_LEN + 2 * ENTRY_LEN;
        assert_eq!(fill(512, 0, two), Ok((2, EntryRefused::Limit, two as usize)));
        assert_eq!(fill(512, 0, two - 1), Ok((1, EntryRefused::Limit, (EMPTY_LEN + ENTRY_LEN) as usize)));
        // Too small for any: the server answers NFS4ERR_TOOSMALL.
        assert_eq!(fill(512, 0, EMPTY_LEN + ENTRY_LEN - 1), Ok((0, EntryRefused::Limit, EMPTY_LEN as usize)));
    }

    #[test]
    fn dircount_bounds_names_and_cookies_but_lets_one_through() {
        let one = 8 + 4 + 8;
        assert_eq!(fill(512, 3 * one, u32::MAX).unwrap().0, 3);
        assert_eq!(fill(512, 3 * one - 1, u32::MAX).unwrap().0, 2);
        assert_eq!(fill(512, 1, u32::MAX).unwrap().0, 1);
    }

    #[test]
    fn the_buffer_bounds_the_list_and_always_has_room_for_its_end() {
        let two = 4 + (EMPTY_LEN + 2 * ENTRY_LEN) as usize;
        assert_eq!(fill(two, 0, u32::MAX), Ok((2, EntryRefused::Buffer, two - 4)));
        assert_eq!(fill(two - 1, 0, u32::MAX).unwrap().0, 1);
        assert_eq!(fill(4 + EMPTY_LEN as usize, 0, u32::MAX).unwrap().0, 0);
        assert_eq!(fill(4 + EMPTY_LEN as usize - 1, 0, u32::MAX), Err(Overflow));
    }
}
