//! What other threads want of a client's thread.

use std::sync::Arc;
use std::time::Duration;

use stag_memory::SendBuf;
use stag_rpc::CallSealer;
use stag_wire::xdr::{Overflow, Writer};

use super::answer::Answer;
use super::pending::Promise;

/// Data of a Call: octets, which are copied to the client's memory, or a buffer of that memory ([`Client::buffer`](super::Client::buffer)), which is sent as
/// it is.
#[derive(Debug)]
pub enum CallData {
    /// Octets of anywhere.
    Octets(Vec<u8>),
    /// Memory of this client.
    Buffer(SendBuf),
}

impl CallData {
    /// Octets.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            CallData::Octets(octets) => octets.len(),
            CallData::Buffer(buf) => buf.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Vec<u8>> for CallData {
    fn from(octets: Vec<u8>) -> CallData {
        CallData::Octets(octets)
    }
}

impl From<&[u8]> for CallData {
    fn from(octets: &[u8]) -> CallData {
        CallData::Octets(octets.to_vec())
    }
}

impl From<SendBuf> for CallData {
    fn from(buf: SendBuf) -> CallData {
        CallData::Buffer(buf)
    }
}

/// What other threads want.
pub(super) enum Job {
    /// Make this Call.
    Call(Box<CallJob>, Promise<Answer>),
    /// Hand out memory of this length.
    Buffer(usize, Promise<SendBuf>),
}

/// A Call to make.
#[derive(Debug)]
pub(super) struct CallJob {
    program: u32,
    version: u32,
    procedure: u32,
    pub(super) timeout: Duration,
    pub(super) results_max: u32,
    pub(super) retransmit: bool,
    /// The body of AUTH_SYS.
    pub(super) user: Option<Vec<u8>>,
    /// What seals the Call instead.
    pub(super) sealer: Option<Arc<dyn CallSealer + Send + Sync>>,
    /// Without data and its length word.
    pub(super) arguments: Vec<u8>,
    /// Where in them these belong.
    pub(super) position: Option<usize>,
    pub(super) data: Option<CallData>,
    /// Octets of memory for the eligible result.
    pub(super) room: Option<usize>,
}

impl CallJob {
    pub(super) fn new(
        program: u32,
        version: u32,
        procedure: u32,
        timeout: Duration,
        results_max: u32,
    ) -> CallJob {
        CallJob {
            program,
            version,
            procedure,
            timeout,
            results_max,
            retransmit: true,
            user: None,
            sealer: None,
            arguments: Vec::new(),
            position: None,
            data: None,
            room: None,
        }
    }

    /// Program, version and procedure.
    pub(super) fn target(&self) -> (u32, u32, u32) {
        (self.program, self.version, self.procedure)
    }

    /// Writes the arguments. Data that goes in the message is in `self.data`; else it has `data_len` octets elsewhere.
    pub(super) fn encode(&self, data_len: Option<u32>, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        let Some(position) = self.position else { return writer.opaque_fixed(&self.arguments) };
        writer.opaque_fixed(&self.arguments[..position])?;
        match (&self.data, data_len) {
            (_, Some(len)) => writer.eligible_opaque_reduced(len).map(drop)?,
            (Some(CallData::Octets(octets)), None) => writer.eligible_opaque_inline(octets)?,
            (Some(CallData::Buffer(buf)), None) => writer.eligible_opaque_inline(buf)?,
            (None, None) => writer.u32(0)?,
        }
        writer.opaque_fixed(&self.arguments[position..])
    }
}
