//! The client's half of a sealed flavor: it seals Calls, and opens their Replies.
//!
//! A sealed Call is made once, in a buffer, and is not sent again over another connection: a server that keeps its rules takes a
//! repeated verifier for an attack.

use std::fmt;

use stag_fabric::Provider;
use stag_wire::rpc::{Accepted, CallHeader, OpaqueAuth, ReplyBody};
use stag_wire::xdr::{Overflow, Writer};

use super::AuthBody;
use crate::client::calling::Calling;
use crate::client::making::{Encoder, LONG_CALL_LEN_MAX, Making};
use crate::client::slot::{CallKind, Stage};
use crate::client::{CallError, CallRefused, Chunks, Request, Results};
use crate::pools::Pools;
use crate::state::Core;

/// Octets of arguments that most Calls have at most.
const ARGUMENTS_USUAL: usize = 1024;

/// A Call before it is sealed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CallToSeal {
    /// Transaction id.
    pub xid: u32,
    /// Program number.
    pub program: u32,
    /// Version.
    pub version: u32,
    /// Procedure number.
    pub procedure: u32,
}

impl CallToSeal {
    /// The Call with this xid.
    #[must_use]
    pub const fn new(xid: u32, program: u32, version: u32, procedure: u32) -> CallToSeal {
        CallToSeal { xid, program, version, procedure }
    }

    /// The octets of the header from the xid to the end of this credential: what a verifier signs. Empty if the credential is longer
    /// than 400 octets, with which no Call can be made.
    #[must_use]
    pub fn signed(&self, credential: OpaqueAuth<'_>) -> Vec<u8> {
        let CallToSeal { xid, program, version, procedure } = *self;
        let verifier = OpaqueAuth::NONE;
        let header = CallHeader { xid, program, version, procedure, credential, verifier };
        let mut octets = vec![0; header.emitted_len()];
        match header.emit(&mut Writer::new(&mut octets)) {
            // Without the empty verifier.
            Ok(()) => octets.truncate(octets.len() - 8),
            Err(Overflow) => octets.clear(),
        }
        octets
    }
}

/// The header of a sealed Call, and what opens its Reply.
#[derive(Debug)]
pub struct SealedHeader {
    /// Who calls.
    pub credential: AuthBody,
    /// Proof of who calls.
    pub verifier: AuthBody,
    /// What opens the Reply.
    pub opener: Box<dyn ReplyOpener>,
}

/// Seals the Calls of a client: its half of a [`Flavor`](crate::Flavor).
pub trait CallSealer: fmt::Debug {
    /// Whether arguments and results are signed or encrypted. Such a Call has no chunks for data.
    fn protects_body(&self) -> bool;

    /// Octets that a sealed Reply is longer than a plain one at most.
    fn reply_growth_max(&self) -> u32;

    /// Makes the credential and the verifier of a Call, and protects its encoded `arguments` in place. They are empty unless
    /// [`CallSealer::protects_body`].
    fn seal(&self, call: CallToSeal, arguments: &mut Vec<u8>) -> SealedHeader;
}

/// A Reply's verifier is not the server's, or its results were changed on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealBroken;

/// What the results of a sealed Reply are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenedResults {
    /// They are plain as they came.
    AsTheyCame,
    /// These are the plain ones.
    Plain(Vec<u8>),
}

/// Opens the Reply of one Call.
pub trait ReplyOpener: fmt::Debug {
    /// Checks the verifier of a Reply, and opens its `results`, which are empty unless the Call succeeded.
    ///
    /// # Errors
    ///
    /// When the Reply is not the server's: the Call ends with [`CallError::Unverified`].
    fn open(
        &mut self,
        outcome: Accepted,
        verifier: OpaqueAuth<'_>,
        results: &[u8],
    ) -> Result<OpenedResults, SealBroken>;
}

/// The seal that the Reply of a Call has to have.
#[derive(Debug)]
pub(crate) struct AwaitedSeal {
    opener: Box<dyn ReplyOpener>,
    /// What opening the Reply gave.
    opened: Option<OpenedResults>,
}

impl AwaitedSeal {
    /// Opens a Reply. One that denies the Call has no verifier.
    #[cold]
    pub(crate) fn open(&mut self, body: &ReplyBody<'_>, results: &[u8]) -> Result<(), CallError> {
        let ReplyBody::Accepted { verifier, outcome } = *body else { return Ok(()) };
        let results = if outcome == Accepted::Success { results } else { &[] };
        let opened = self.opener.open(outcome, verifier, results);
        self.opened = Some(opened.map_err(|SealBroken| CallError::Unverified)?);
        Ok(())
    }

    /// The plain results of a Reply.
    pub(crate) fn results(
        self,
        pools: &Pools,
        result: Result<Results, CallError>,
    ) -> Result<Results, CallError> {
        let results = result?;
        match self.opened {
            // It has the empty verifier that a plain Reply has.
            None => Err(CallError::Unverified),
            Some(OpenedResults::AsTheyCame) => Ok(results),
            Some(OpenedResults::Plain(octets)) if octets.is_empty() => Ok(Results::short(None, 0)),
            Some(OpenedResults::Plain(octets)) => {
                let is_short = octets.len() <= pools.messages.unit_len();
                let pool = if is_short { &pools.messages } else { &pools.payload };
                let buf = pool.take_len(octets.len()).map(|mut buf| {
                    buf.set_len(octets.len());
                    buf.copy_from_slice(&octets);
                    buf
                });
                let buf = buf.ok_or(CallError::NoMemory { len: octets.len() as u32 })?;
                Ok(Results::short(Some(buf), 0))
            }
        }
    }
}

/// Seals a Call that was begun, and makes it in a buffer. An error: nothing was exposed or sent.
#[cold]
pub(crate) fn make_sealed<P: Provider>(
    calling: &mut Calling,
    core: &mut Core<P>,
    making: &Making<'_>,
    chunks: &mut Chunks,
    (sealer, encode): (&dyn CallSealer, &Encoder<'_>),
) -> Result<(), CallRefused> {
    let is_protected = sealer.protects_body();
    if is_protected && !chunks.is_empty() {
        return Err(CallRefused::Protected);
    }
    let mut arguments = if is_protected { encoded(encode)? } else { Vec::new() };
    let Request { program, version, procedure, .. } = *making.request;
    let (call, xid) = (making.call, making.call.xid());
    let to_seal = CallToSeal { xid, program, version, procedure };
    let SealedHeader { credential, verifier, opener } = sealer.seal(to_seal, &mut arguments);
    let (credential, verifier) = (credential.as_opaque(), verifier.as_opaque());
    let header = CallHeader { xid, program, version, procedure, credential, verifier };
    let write = |writer: &mut Writer<'_>| {
        header.emit(writer)?;
        if is_protected { writer.opaque_fixed(&arguments) } else { encode(writer) }
    };
    let growth = sealer.reply_growth_max();
    let request = Request {
        results_len_max: making.request.results_len_max.saturating_add(growth),
        retransmit: false,
        ..*making.request
    };
    let making = Making { request: &request, ..*making };
    calling.slots[call.index()].sealed = Some(Box::new(AwaitedSeal { opener, opened: None }));
    let made = calling.make_in_buffer(core, &making, chunks, &write);
    let slot = &mut calling.slots[call.index()];
    // It may be over already: the fabric took nothing.
    if made.is_ok() && !matches!(slot.stage(), Stage::Free) {
        slot.kind = CallKind::Sealed;
    } else {
        slot.sealed = None;
    }
    made
}

/// Arguments, encoded.
fn encoded(encode: &Encoder<'_>) -> Result<Vec<u8>, CallRefused> {
    let mut room = ARGUMENTS_USUAL;
    loop {
        let mut octets = vec![0; room];
        let mut writer = Writer::new(&mut octets);
        if encode(&mut writer).is_ok() {
            let (len, reduced) = (writer.position(), writer.reduced_positions().len() as u32);
            if reduced > 0 {
                return Err(CallRefused::NotReduced { items: 0, reduced });
            }
            octets.truncate(len);
            return Ok(octets);
        }
        if room >= LONG_CALL_LEN_MAX {
            return Err(CallRefused::TooLong);
        }
        room *= 4;
    }
}
