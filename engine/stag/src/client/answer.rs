//! [`Answer`]: the results of a Call.

use stag_memory::SendBuf;
use stag_rpc::Results;
use stag_wire::xdr::{Item, Reader, Reduced, XdrError};

/// The results of a Call.
#[derive(Debug)]
pub struct Answer {
    /// The encoded results, without those in `data`.
    octets: Vec<u8>,
    /// The eligible result that is in `data`, if memory was offered for it.
    reduced: Option<Reduced>,
    data: Option<SendBuf>,
}

impl Answer {
    /// `data` is what the server wrote into the memory that the Call offered.
    pub(super) fn new(results: &Results, data: Option<SendBuf>) -> Answer {
        let reduced = data.is_some().then(|| results.reduced());
        Answer { octets: results.bytes().to_vec(), reduced, data }
    }

    /// All results came in the message.
    #[cfg(feature = "tcp")]
    pub(super) fn inline(octets: Vec<u8>) -> Answer {
        Answer { octets, reduced: None, data: None }
    }

    /// A reader at the start of the results. Data that did not come with them shows as a reduced item: [`Answer::item`] reads it
    /// either way.
    #[must_use]
    pub fn reader(&self) -> Reader<'_> {
        match &self.reduced {
            Some(reduced) => Reader::with_reduced(&self.octets, std::slice::from_ref(reduced)),
            None => Reader::new(&self.octets),
        }
    }

    /// Reads the next result of `reader` as data of at most `max` octets, wherever that is.
    ///
    /// # Errors
    ///
    /// When the results have no such data there.
    pub fn item<'a>(&'a self, reader: &mut Reader<'a>, max: u32) -> Result<&'a [u8], XdrError> {
        match reader.eligible_opaque(max)? {
            Item::Inline(octets) => Ok(octets),
            Item::Reduced { len, .. } => self.data().get(..len as usize).ok_or(XdrError::Truncated),
        }
    }

    /// The data that came into the memory which [`CallBuilder::room`](crate::CallBuilder::room) offered; empty if none did.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        self.data.as_deref().unwrap_or_default()
    }

    /// The same in the memory that it came into, to keep it without a copy, or to send it on. It is the client's memory: others wait
    /// for it until it is dropped.
    #[must_use]
    pub fn into_data(self) -> Option<SendBuf> {
        self.data
    }
}
