//! COMPOUND and CB_COMPOUND: read one operation at a time, and written one at a time.
//!
//! ```text
//! client                                            server
//! OperationsWriter ── tag, minor version, operations ──▶ CompoundCall ── Operations: next, next, ...
//! CompoundReply    ◀── status, tag, results ──────────── OperationsWriter::begin_reply
//! ```
//!
//! Nothing is built: an operation is decoded when it is asked for, so those before a malformed one can be executed, as
//! RFC 7530 section 15.2.4 allows. The count of operations is not limited here, since it sizes nothing: the octets that
//! are there bound it, and a session's `ca_maxoperations` is the server's business (NFS4ERR_TOO_MANY_OPS).

use core::marker::PhantomData;

use super::files::WriteHead;
use super::operation::{Argument4, CbArgument, CbOutcome, Operation4, OperationItem, Outcome4};
use super::{Opaque, Status4};
use crate::xdr::{Encode, Overflow, Reader, Reserved, Writer, XdrError};

/// Octets of a tag that are parsed at most. No RFC sets a limit; Linux sends none.
pub const TAG_LEN_CAP: u32 = 4096;

/// A tag: for people who read captures. A reply repeats that of its call.
pub type Tag<'a> = Opaque<'a, TAG_LEN_CAP>;

/// Why an operation cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationError {
    /// Its number has no name, so where the next one starts is not known.
    Unknown(u32),
    /// Arguments or results are malformed.
    Malformed(XdrError),
}

impl core::fmt::Display for OperationError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            OperationError::Unknown(number) => write!(f, "operation {number} is not known"),
            OperationError::Malformed(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for OperationError {}

/// The operations of a COMPOUND or CB_COMPOUND that were not read yet, with arguments or with results.
#[derive(Clone, Debug)]
pub struct Operations<'a, I> {
    left: u32,
    reader: Reader<'a>,
    item: PhantomData<I>,
}

impl<'a, I: OperationItem<'a>> Operations<'a, I> {
    fn begin(mut reader: Reader<'a>) -> Result<Self, XdrError> {
        // Each has a number.
        let left = reader.count(u32::MAX, 4)?;
        Ok(Operations { left, reader, item: PhantomData })
    }

    /// Goes on where an earlier reader stopped: `left` operations are at `reader`.
    #[must_use]
    pub const fn resume(left: u32, reader: Reader<'a>) -> Self {
        Operations { left, reader, item: PhantomData }
    }

    /// Returns how many were not read yet.
    #[inline]
    #[must_use]
    pub const fn left(&self) -> u32 {
        self.left
    }

    /// Reads the number of the next operation; its arguments or results must be read next, from [`Operations::reader`].
    /// A server reads so the types that it expects; [`Operations::next_item`] reads any.
    #[inline]
    pub fn next_number(&mut self) -> Option<Result<u32, XdrError>> {
        self.left = self.left.checked_sub(1)?;
        Some(self.reader.u32())
    }

    /// Returns where the next octets are.
    #[inline]
    pub const fn reader(&mut self) -> &mut Reader<'a> {
        &mut self.reader
    }

    /// Reads the next operation. After an error nothing more should be read.
    pub fn next_item(&mut self) -> Option<Result<I, OperationError>> {
        let number = match self.next_number()? {
            Ok(number) => number,
            Err(error) => return Some(Err(OperationError::Malformed(error))),
        };
        Some(match I::decode_numbered(number, &mut self.reader) {
            Some(item) => item.map_err(OperationError::Malformed),
            None => Err(OperationError::Unknown(number)),
        })
    }

    /// Ends reading: all operations were read, and nothing is left, neither octets nor chunks.
    pub fn finish(self) -> Result<(), XdrError> {
        self.reader.finish()
    }
}

/// COMPOUND4args.
#[derive(Clone, Debug)]
pub struct CompoundCall<'a> {
    /// For people.
    pub tag: Tag<'a>,
    /// 0, 1 or 2; others are NFS4ERR_MINOR_VERS_MISMATCH, before anything else (8881-16.2.3).
    pub minor_version: u32,
    /// The operations.
    pub operations: Operations<'a, Argument4<'a>>,
}

impl<'a> CompoundCall<'a> {
    /// Reads what is before the first operation.
    pub fn parse(mut reader: Reader<'a>) -> Result<CompoundCall<'a>, XdrError> {
        Ok(CompoundCall {
            tag: reader.value()?,
            minor_version: reader.u32()?,
            operations: Operations::begin(reader)?,
        })
    }
}

/// CB_COMPOUND4args.
#[derive(Clone, Debug)]
pub struct CbCompoundCall<'a> {
    /// For people.
    pub tag: Tag<'a>,
    /// 0, 1 or 2.
    pub minor_version: u32,
    /// As the client said in SETCLIENTID (4.0).
    pub callback_ident: u32,
    /// The operations.
    pub operations: Operations<'a, CbArgument<'a>>,
}

impl<'a> CbCompoundCall<'a> {
    /// Reads what is before the first operation.
    pub fn parse(mut reader: Reader<'a>) -> Result<CbCompoundCall<'a>, XdrError> {
        Ok(CbCompoundCall {
            tag: reader.value()?,
            minor_version: reader.u32()?,
            callback_ident: reader.u32()?,
            operations: Operations::begin(reader)?,
        })
    }
}

/// COMPOUND4res.
pub type CompoundReply<'a> = CompoundResults<'a, Outcome4<'a>>;
/// CB_COMPOUND4res.
pub type CbCompoundReply<'a> = CompoundResults<'a, CbOutcome<'a>>;

/// Results of COMPOUND or CB_COMPOUND.
#[derive(Clone, Debug)]
pub struct CompoundResults<'a, I> {
    /// That of the last operation.
    pub status: Status4,
    /// That of the call.
    pub tag: Tag<'a>,
    /// The results.
    pub operations: Operations<'a, I>,
}

impl<'a, I: OperationItem<'a>> CompoundResults<'a, I> {
    /// Reads what is before the first operation.
    pub fn parse(mut reader: Reader<'a>) -> Result<Self, XdrError> {
        Ok(CompoundResults {
            status: reader.value()?,
            tag: reader.value()?,
            operations: Operations::begin(reader)?,
        })
    }
}

/// Where the data of a COMPOUND's first WRITE is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WritePlace {
    /// Offset in the unreduced stream where the data starts: the Position of its Read chunk.
    pub position: u64,
    /// Octets of data, without padding.
    pub len: u32,
}

/// Finds the data of the first WRITE in the arguments of a COMPOUND, of which the octets up to the data are enough.
///
/// `None` if there is no WRITE, or if something before it cannot be read or is not there yet.
#[must_use]
pub fn locate_write(reader: Reader<'_>) -> Option<WritePlace> {
    let mut operations = CompoundCall::parse(reader).ok()?.operations;
    loop {
        let number = operations.next_number()?.ok()?;
        let reader = operations.reader();
        if number == Operation4::Write.number() {
            reader.value::<WriteHead>().ok()?;
            let len = reader.u32().ok()?;
            return Some(WritePlace { position: reader.unreduced_position(), len });
        }
        Argument4::decode_numbered(number, reader)?.ok()?;
    }
}

/// Writes a COMPOUND or CB_COMPOUND, call or reply, operation by operation.
#[derive(Debug)]
#[must_use = "the count stays 0 until it is finished"]
pub struct OperationsWriter<'w, 'b> {
    writer: &'w mut Writer<'b>,
    /// Of a reply, and the status so far.
    status: Option<(Reserved, Status4)>,
    count_place: Reserved,
    count: u32,
}

impl<'w, 'b> OperationsWriter<'w, 'b> {
    /// Begins a COMPOUND.
    pub fn begin_call(
        writer: &'w mut Writer<'b>,
        tag: &Tag<'_>,
        minor_version: u32,
    ) -> Result<Self, Overflow> {
        writer.value(tag)?;
        writer.u32(minor_version)?;
        OperationsWriter::begin(writer, None)
    }

    /// Begins a CB_COMPOUND.
    pub fn begin_callback(
        writer: &'w mut Writer<'b>,
        tag: &Tag<'_>,
        minor_version: u32,
        callback_ident: u32,
    ) -> Result<Self, Overflow> {
        writer.value(tag)?;
        writer.u32(minor_version)?;
        writer.u32(callback_ident)?;
        OperationsWriter::begin(writer, None)
    }

    /// Begins a reply, to either. Its status is that of the last results pushed; [`Status4::Ok`] without any.
    pub fn begin_reply(writer: &'w mut Writer<'b>, tag: &Tag<'_>) -> Result<Self, Overflow> {
        let status = writer.reserve_u32()?;
        writer.value(tag)?;
        OperationsWriter::begin(writer, Some((status, Status4::Ok)))
    }

    fn begin(writer: &'w mut Writer<'b>, status: Option<(Reserved, Status4)>) -> Result<Self, Overflow> {
        let count_place = writer.reserve_u32()?;
        Ok(OperationsWriter { writer, status, count_place, count: 0 })
    }

    /// Appends an operation with its arguments. If it does not fit, nothing of it is written.
    pub fn push(&mut self, item: &impl Encode) -> Result<(), Overflow> {
        self.push_with(Status4::Ok, |writer| writer.value(item))
    }

    /// Appends what `write` writes: an operation's number, and its arguments or results, whose status this is. If it does not
    /// fit, nothing of it is written.
    pub fn push_with(
        &mut self,
        status: Status4,
        write: impl FnOnce(&mut Writer<'_>) -> Result<(), Overflow>,
    ) -> Result<(), Overflow> {
        let mark = self.writer.mark();
        if let Err(overflow) = write(self.writer) {
            self.writer.rewind(mark);
            return Err(overflow);
        }
        if let Some((_, last)) = &mut self.status {
            *last = status;
        }
        self.count += 1;
        Ok(())
    }

    /// Sets the status of a reply that has no results: NFS4ERR_MINOR_VERS_MISMATCH.
    pub const fn set_status(&mut self, status: Status4) {
        if let Some((_, last)) = &mut self.status {
            *last = status;
        }
    }

    /// Returns how many operations were appended.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Returns the octets that still fit.
    #[must_use]
    pub const fn remaining(&self) -> usize {
        self.writer.remaining()
    }

    /// Ends the array.
    pub fn finish(self) {
        if let Some((place, status)) = self.status {
            self.writer.patch_u32(place, status.number());
        }
        self.writer.patch_u32(self.count_place, self.count);
    }
}

impl OperationsWriter<'_, '_> {
    /// Appends an operation with its results, whose status becomes the reply's. If it does not fit, nothing of it is written.
    pub fn push_result(&mut self, outcome: &Outcome4<'_>) -> Result<(), Overflow> {
        self.push_with(outcome.status(), |writer| writer.value(outcome))
    }

    /// As [`OperationsWriter::push_result`], for a callback.
    pub fn push_callback_result(&mut self, outcome: &CbOutcome<'_>) -> Result<(), Overflow> {
        self.push_with(outcome.status(), |writer| writer.value(outcome))
    }
}
