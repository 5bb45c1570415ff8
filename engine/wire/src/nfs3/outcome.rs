//! How a procedure ended: its results, or why there are none.

use super::status::Status;
use crate::xdr::{Decode, Encode, Overflow, Reader, Writer, XdrError};

/// The results of a procedure: its `resok` fields, or why there are none.
pub type ProcedureResults<T, F> = Result<T, Failure<F>>;

/// A failed procedure: the status, and the fields of its `resfail`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure<F> {
    /// Why.
    pub status: Status,
    /// The attributes that come with the failure.
    pub attributes: F,
}

const NFS3_OK: u32 = 0;

impl<'a, T: Decode<'a>, F: Decode<'a>> Decode<'a> for ProcedureResults<T, F> {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        match reader.u32()? {
            NFS3_OK => reader.value().map(Ok),
            number => {
                let status = Status::from_number(number).ok_or(XdrError::BadDiscriminant(number))?;
                Ok(Err(Failure { status, attributes: reader.value()? }))
            }
        }
    }
}

impl<T: Encode, F: Encode> Encode for ProcedureResults<T, F> {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        match self {
            Ok(fields) => {
                writer.u32(NFS3_OK)?;
                writer.value(fields)
            }
            Err(failure) => {
                writer.value(&failure.status)?;
                writer.value(&failure.attributes)
            }
        }
    }
}
