//! The program that a client of version 4 has for callbacks.

use stag_rpc::{Call, Caller, Outcome, Procedure, Reply, Service};
use stag_wire::nfs4::callback::CbSequenceOk;
use stag_wire::nfs4::compound::{CbCompoundCall, OperationsWriter};
use stag_wire::nfs4::operation::{CbArgument, CbOutcome};
use stag_wire::nfs4::session::SequenceArguments;
use stag_wire::nfs4::{CALLBACK_VERSION, COMPOUND, Opaque, Status4};
use stag_wire::xdr::Writer;

/// The program number that clients of tests give it.
pub(crate) const CALLBACK_PROGRAM: u32 = 0x4000_0000;

/// What it answers to CB_SEQUENCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CalleeAnswer {
    Right,
    /// As right, of another slot.
    OfAnotherSlot,
    Status(Status4),
    /// Results of no CB_COMPOUND.
    Nonsense,
    Never,
}

/// The program. The engine answers CB_NULL.
#[derive(Debug)]
pub(crate) struct Callee {
    pub(crate) answer: CalleeAnswer,
    /// Each CB_SEQUENCE that came, with its minor version and the user that calls.
    pub(crate) asked: Vec<(SequenceArguments, u32, Option<u32>)>,
}

static CB_COMPOUND: Procedure = Procedure::plain("CB_COMPOUND");

impl Callee {
    pub(crate) const fn new() -> Callee {
        Callee { answer: CalleeAnswer::Right, asked: Vec::new() }
    }
}

/// Encodes what it answers. `None`: nothing.
pub(crate) fn results(answer: CalleeAnswer, sequence: &SequenceArguments) -> Option<Vec<u8>> {
    let ok = CbSequenceOk {
        session: sequence.session,
        sequence_id: sequence.sequence_id,
        slot: u32::from(answer == CalleeAnswer::OfAnotherSlot),
        highest_slot: 0,
        target_highest_slot: 0,
    };
    let outcome = match answer {
        CalleeAnswer::Right | CalleeAnswer::OfAnotherSlot => Ok(ok),
        CalleeAnswer::Status(status) => Err(status),
        CalleeAnswer::Nonsense => return Some(vec![0xff; 12]),
        CalleeAnswer::Never => return None,
    };
    let mut octets = vec![0; 256];
    let mut writer = Writer::new(&mut octets);
    let mut operations = OperationsWriter::begin_reply(&mut writer, &Opaque(b"back")).unwrap();
    operations.push_callback_result(&CbOutcome::Sequence(outcome)).unwrap();
    operations.finish();
    let len = writer.position();
    octets.truncate(len);
    Some(octets)
}

/// Reads a CB_COMPOUND of CB_SEQUENCE alone: it, and its minor version.
pub(crate) fn sequence_of(arguments: stag_wire::xdr::Reader<'_>) -> (SequenceArguments, u32) {
    let CbCompoundCall { minor_version, mut operations, .. } = CbCompoundCall::parse(arguments).unwrap();
    let Some(Ok(CbArgument::Sequence(asked))) = operations.next_item() else { panic!("no CB_SEQUENCE") };
    assert!(operations.next_item().is_none());
    assert_eq!(asked.referring.iter().count(), 0);
    (asked.sequence, minor_version)
}

impl Service for Callee {
    fn program(&self) -> u32 {
        CALLBACK_PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        (CALLBACK_VERSION, CALLBACK_VERSION)
    }

    fn procedure(&self, _: u32, procedure: u32) -> Option<&'static Procedure> {
        (procedure == COMPOUND).then_some(&CB_COMPOUND)
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        let (sequence, minor) = sequence_of(call.arguments());
        let user = match &call.caller {
            Caller::None => None,
            Caller::Sys(user) => Some(user.uid),
            other => panic!("a server calls as {other:?}"),
        };
        self.asked.push((sequence, minor, user));
        match results(self.answer, &sequence) {
            Some(results) => reply.success(|writer| writer.opaque_fixed(&results)),
            None => return Outcome::Later(call.token()),
        }
        Outcome::Done
    }
}
