//! A small client that builds COMPOUNDs.

use stag_nfs::client::{FinishedCall, Operation};
use stag_rpc::Chunks;
use stag_wire::nfs4::compound::{CompoundReply, OperationsWriter};
use stag_wire::nfs4::operation::{Argument4, Outcome4};
use stag_wire::nfs4::session::{
    CallbackSecurity, ChannelAttributes, ClientOwner, CreateSessionArguments, CreateSessionOk,
    ExchangeIdArguments, SequenceArguments, StateProtection,
};
use stag_wire::nfs4::value::{FixedOpaque, List};
use stag_wire::nfs4::{Opaque, SessionId, Status4};
use stag_wire::xdr::{Decode, Encode, Overflow, Reader, Writer, XdrError};

use super::pair::Pair;

/// A COMPOUND.
pub(crate) struct Compound<'a> {
    pub(crate) minor: u32,
    pub(crate) tag: &'a [u8],
    pub(crate) operations: &'a [Argument4<'a>],
    /// Octets of results that it is ready for.
    pub(crate) results_max: u32,
}

impl Encode for Compound<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        let mut operations = OperationsWriter::begin_call(writer, &Opaque(self.tag), self.minor)?;
        self.operations.iter().try_for_each(|operation| operations.push(operation))?;
        operations.finish();
        Ok(())
    }
}

/// What it came to.
#[derive(Debug)]
pub(crate) struct Answer<'r> {
    pub(crate) status: Status4,
    pub(crate) tag: &'r [u8],
    pub(crate) outcomes: Vec<Outcome4<'r>>,
}

impl<'r> Decode<'r> for Answer<'r> {
    fn decode(reader: &mut Reader<'r>) -> Result<Self, XdrError> {
        let CompoundReply { status, tag, mut operations } = CompoundReply::parse(reader.clone())?;
        let mut outcomes = Vec::new();
        while let Some(outcome) = operations.next_item() {
            let outcome: Outcome4<'_> = outcome.unwrap_or_else(|error| panic!("{error}, after {outcomes:?}"));
            // 8881-15.2: whatever a test asks for, an operation fails only as it may.
            let (operation, status) = (outcome.operation(), outcome.status());
            assert!(status == Status4::Ok || operation.may_fail_with(status), "{operation:?}: {status:?}");
            outcomes.push(outcome);
        }
        *reader = operations.reader().clone();
        Ok(Answer { status, tag: tag.0, outcomes })
    }
}

impl Operation for Compound<'_> {
    const PROGRAM: u32 = stag_wire::nfs4::PROGRAM;
    const VERSION: u32 = 4;
    type Reply<'r> = Answer<'r>;

    fn procedure(&self) -> u32 {
        1
    }

    fn results_len_max(&self, _: bool) -> u32 {
        self.results_max
    }
}

/// Octets of results that most COMPOUNDs of tests have at most: more than is inline.
pub(crate) const RESULTS_MAX: u32 = 8192;

/// A client with a session.
pub(crate) struct Client {
    pub(crate) pair: Pair,
    pub(crate) minor: u32,
    pub(crate) clientid: u64,
    pub(crate) session: CreateSessionOk,
    /// Sequence ids that were used last, by slot.
    pub(crate) sequence_ids: Vec<u32>,
    /// Whether replies are kept.
    pub(crate) keeps: bool,
}

/// The limits that Linux asks for over RDMA.
pub(crate) const FORE: ChannelAttributes = ChannelAttributes {
    header_pad: 0,
    request_max: 1_049_620,
    response_max: 1_049_480,
    response_cached_max: 7_584,
    operations_max: 8,
    requests_max: 64,
    rdma_ird: None,
};

pub(crate) const BACK: ChannelAttributes = ChannelAttributes {
    header_pad: 0,
    request_max: 4068,
    response_max: 4068,
    response_cached_max: 0,
    operations_max: 2,
    requests_max: 16,
    rdma_ird: None,
};

pub(crate) fn exchange_id(owner: &[u8], verifier: u8) -> Argument4<'_> {
    Argument4::ExchangeId(ExchangeIdArguments {
        owner: ClientOwner { verifier: FixedOpaque([verifier; 8]), id: Opaque(owner) },
        flags: 0,
        protection: StateProtection::None,
        implementation: None,
    })
}

pub(crate) fn create_session(clientid: u64, sequence_id: u32, fore: ChannelAttributes) -> Argument4<'static> {
    Argument4::CreateSession(CreateSessionArguments {
        clientid,
        sequence_id,
        flags: 3,
        fore,
        back: BACK,
        callback_program: 0x4000_0000,
        callback_securities: List::new(&[CallbackSecurity::None]),
    })
}

impl Pair {
    /// Makes a COMPOUND as it is.
    pub(crate) fn compound<R>(
        &mut self,
        minor: u32,
        operations: &[Argument4<'_>],
        look: impl FnOnce(&Answer<'_>) -> R,
    ) -> R {
        let compound = Compound { minor, tag: b"", operations, results_max: RESULTS_MAX };
        self.ask(compound, |answer| look(&answer))
    }

    /// The status of a COMPOUND.
    pub(crate) fn status(&mut self, minor: u32, operations: &[Argument4<'_>]) -> Status4 {
        self.compound(minor, operations, |answer| {
            let last = answer.outcomes.last().map(Outcome4::status);
            assert!(last.is_none_or(|last| last == answer.status), "{answer:?}");
            answer.status
        })
    }
}

impl Client {
    /// A client of a server with these exports, by minor version 2.
    pub(crate) fn new(exports: &[&str]) -> Client {
        Client::of(Pair::new(exports), b"client", FORE)
    }

    /// The same, that asks for these limits.
    pub(crate) fn of(mut pair: Pair, owner: &[u8], fore: ChannelAttributes) -> Client {
        let (clientid, sequence_id) = pair.compound(2, &[exchange_id(owner, 1)], |answer| {
            let [Outcome4::ExchangeId(Ok(exchanged))] = answer.outcomes[..] else { panic!("{answer:?}") };
            (exchanged.clientid, exchanged.sequence_id)
        });
        let session = pair.compound(2, &[create_session(clientid, sequence_id, fore)], |answer| {
            let [Outcome4::CreateSession(Ok(session))] = answer.outcomes[..] else { panic!("{answer:?}") };
            session
        });
        let sequence_ids = vec![0; session.fore.requests_max as usize];
        let mut client = Client { pair, minor: 2, clientid, session, sequence_ids, keeps: false };
        assert_eq!(client.status(&[Argument4::ReclaimComplete(false)]), Status4::Ok);
        client
    }

    pub(crate) fn session_id(&self) -> SessionId {
        self.session.session
    }

    /// SEQUENCE of the next request of a slot.
    pub(crate) fn sequence(&mut self, slot: u32) -> Argument4<'static> {
        let sequence_id = &mut self.sequence_ids[slot as usize];
        *sequence_id += 1;
        Argument4::Sequence(SequenceArguments {
            session: self.session.session,
            sequence_id: *sequence_id,
            slot,
            highest_slot: slot,
            keep_reply: self.keeps,
        })
    }

    /// Makes a COMPOUND of a SEQUENCE in slot 0 and these operations; `look` sees the results of all of them.
    pub(crate) fn compound<R>(
        &mut self,
        operations: &[Argument4<'_>],
        look: impl FnOnce(Status4, &[Outcome4<'_>]) -> R,
    ) -> R {
        let finished = self.finished(operations, Chunks::default(), RESULTS_MAX);
        let answer = finished.reply::<Compound<'_>>().unwrap();
        assert!(matches!(answer.outcomes[0], Outcome4::Sequence(Ok(_))), "{answer:?}");
        assert_eq!(answer.outcomes.last().unwrap().status(), answer.status);
        look(answer.status, &answer.outcomes[1..])
    }

    /// The same, with chunks, for results of this length.
    pub(crate) fn finished(
        &mut self,
        operations: &[Argument4<'_>],
        chunks: Chunks,
        results_max: u32,
    ) -> FinishedCall {
        let mut all = vec![self.sequence(0)];
        all.extend_from_slice(operations);
        let compound = Compound { minor: self.minor, tag: b"", operations: &all, results_max };
        self.pair.call(&compound, chunks)
    }

    /// The status of a COMPOUND of a SEQUENCE and these operations.
    pub(crate) fn status(&mut self, operations: &[Argument4<'_>]) -> Status4 {
        self.compound(operations, |status, _| status)
    }

    /// The handle that a COMPOUND of these operations ends at.
    pub(crate) fn handle(&mut self, operations: &[Argument4<'_>]) -> Result<Vec<u8>, Status4> {
        let mut all = operations.to_vec();
        all.push(Argument4::Getfh(()));
        self.compound(&all, |status, outcomes| match outcomes.last() {
            Some(Outcome4::Getfh(Ok(handle))) => Ok(handle.0.to_vec()),
            _ => Err(status),
        })
    }
}
