//! A client of NFS version 4.2 over TCP, for COMPOUNDs that `stag` does not make.

use std::net::Ipv4Addr;

use stag_wire::nfs4::attributes::AttributeList;
use stag_wire::nfs4::compound::{CompoundReply, OperationsWriter};
use stag_wire::nfs4::open::{
    CloseArguments4, CreateHow4, OpenArguments4, OpenClaim, OpenHow, StateOwner, share,
};
use stag_wire::nfs4::operation::{Argument4, Outcome4};
use stag_wire::nfs4::session::{
    CallbackSecurity, ChannelAttributes, ClientOwner, CreateSessionArguments, CreateSessionOk,
    ExchangeIdArguments, SequenceArguments, StateProtection,
};
use stag_wire::nfs4::value::{FixedOpaque, List};
use stag_wire::nfs4::{self, Bitmap, Opaque, StateId, Status4};
use stag_wire::xdr::{Reader, Writer};

use super::Server;
use super::tcp_client::{Arguments, Client};

/// A client with a session.
pub(crate) struct Client4 {
    connection: Client,
    clientid: u64,
    /// The sequence id of its next CREATE_SESSION.
    next_session: u32,
    pub(crate) session: CreateSessionOk,
    /// Sequence ids that were used last, by slot.
    sequence_ids: Vec<u32>,
    /// Whether slots keep replies.
    pub(crate) keeps: bool,
}

/// What Linux asks for over TCP, with longer replies that are kept.
const FORE: ChannelAttributes = ChannelAttributes {
    header_pad: 0,
    request_max: 1 << 20,
    response_max: 1 << 20,
    response_cached_max: 7584,
    operations_max: 16,
    requests_max: 64,
    rdma_ird: None,
};

const BACK: ChannelAttributes =
    ChannelAttributes { response_cached_max: 0, operations_max: 2, requests_max: 1, ..FORE };

/// Makes a COMPOUND of these operations as they are; `look` sees its status and outcomes.
fn compound<R>(
    connection: &mut Client,
    operations: &[Argument4<'_>],
    look: impl FnOnce(Status4, &[Outcome4<'_>]) -> R,
) -> R {
    let mut octets = vec![0; 16 << 10];
    let mut writer = Writer::new(&mut octets);
    let mut call = OperationsWriter::begin_call(&mut writer, &Opaque(b""), 2).unwrap();
    operations.iter().for_each(|operation| call.push(operation).unwrap());
    call.finish();
    let arguments = Arguments::default().octets(writer.written());
    let results = connection.call_of((nfs4::PROGRAM, nfs4::VERSION), nfs4::COMPOUND, arguments);
    let CompoundReply { status, mut operations, .. } = CompoundReply::parse(Reader::new(&results)).unwrap();
    let mut outcomes = Vec::new();
    while let Some(outcome) = operations.next_item() {
        outcomes.push(outcome.unwrap());
    }
    look(status, &outcomes)
}

/// EXCHANGE_ID: the client id, and the sequence id of its first session.
fn exchange(connection: &mut Client, owner: &[u8]) -> Result<(u64, u32), Status4> {
    let exchange = Argument4::ExchangeId(ExchangeIdArguments {
        owner: ClientOwner { verifier: FixedOpaque([1; 8]), id: Opaque(owner) },
        flags: 0,
        protection: StateProtection::None,
        implementation: None,
    });
    compound(connection, &[exchange], |status, outcomes| match outcomes {
        [Outcome4::ExchangeId(Ok(ok))] => Ok((ok.clientid, ok.sequence_id)),
        _ => Err(status),
    })
}

fn create(connection: &mut Client, clientid: u64, sequence_id: u32) -> Result<CreateSessionOk, Status4> {
    let create = Argument4::CreateSession(CreateSessionArguments {
        clientid,
        sequence_id,
        flags: 0,
        fore: FORE,
        back: BACK,
        callback_program: 0,
        callback_securities: List::new(&[CallbackSecurity::None]),
    });
    compound(connection, &[create], |status, outcomes| match outcomes {
        [Outcome4::CreateSession(Ok(ok))] => Ok(*ok),
        _ => Err(status),
    })
}

impl Client4 {
    /// A client that calls itself so, at this address, and has reclaimed; or the status that it got.
    pub(crate) fn new(server: &Server, own: Ipv4Addr, owner: &[u8]) -> Result<Client4, Status4> {
        let mut connection = Client::of(server, own);
        let (clientid, sequence_id) = exchange(&mut connection, owner)?;
        let session = create(&mut connection, clientid, sequence_id)?;
        let sequence_ids = vec![0; session.fore.requests_max as usize];
        let next_session = sequence_id + 1;
        let mut client = Client4 { connection, clientid, next_session, session, sequence_ids, keeps: false };
        assert_eq!(client.status(&[Argument4::ReclaimComplete(false)]), Status4::Ok);
        Ok(client)
    }

    /// Goes on in one more session.
    pub(crate) fn next_session(&mut self) -> Result<(), Status4> {
        self.session = create(&mut self.connection, self.clientid, self.next_session)?;
        self.next_session += 1;
        self.sequence_ids = vec![0; self.session.fore.requests_max as usize];
        Ok(())
    }

    /// Makes a COMPOUND of a SEQUENCE in this slot and these operations; `look` sees the results of these.
    pub(crate) fn compound<R>(
        &mut self,
        slot: u32,
        operations: &[Argument4<'_>],
        look: impl FnOnce(Status4, &[Outcome4<'_>]) -> R,
    ) -> R {
        self.sequence_ids[slot as usize] += 1;
        let mut all = vec![Argument4::Sequence(SequenceArguments {
            session: self.session.session,
            sequence_id: self.sequence_ids[slot as usize],
            slot,
            highest_slot: self.sequence_ids.len() as u32 - 1,
            keep_reply: self.keeps,
        })];
        all.extend_from_slice(operations);
        compound(&mut self.connection, &all, |status, outcomes| {
            assert!(matches!(outcomes[0], Outcome4::Sequence(Ok(_))), "{status:?}: {outcomes:?}");
            look(status, &outcomes[1..])
        })
    }

    /// The status of a COMPOUND in slot 0.
    pub(crate) fn status(&mut self, operations: &[Argument4<'_>]) -> Status4 {
        self.compound(0, operations, |status, _| status)
    }

    /// The state id that the last operation gives, or its status.
    pub(crate) fn state(&mut self, operations: &[Argument4<'_>]) -> Result<StateId, Status4> {
        self.compound(0, operations, |status, outcomes| match outcomes.last() {
            Some(Outcome4::Open(Ok(ok))) => Ok(ok.stateid),
            Some(Outcome4::Lock(Ok(state))) => Ok(*state),
            _ => Err(status),
        })
    }
}

pub(crate) fn put(handle: &[u8]) -> Argument4<'_> {
    Argument4::Putfh(Opaque(handle))
}

/// OPEN of the current file, to read and write.
pub(crate) fn open_handle(owner: &[u8]) -> Argument4<'_> {
    open(owner, OpenHow::NoCreate, OpenClaim::Handle)
}

/// OPEN of a name in the current directory, which is made if it is not there.
pub(crate) fn open_name<'a>(owner: &'a [u8], name: &'a [u8]) -> Argument4<'a> {
    let attributes = AttributeList { mask: Bitmap::EMPTY, values: &[] };
    open(owner, OpenHow::Create(CreateHow4::Unchecked(attributes)), OpenClaim::Null(Opaque(name)))
}

fn open<'a>(owner: &'a [u8], how: OpenHow<'a>, claim: OpenClaim<'a>) -> Argument4<'a> {
    Argument4::Open(OpenArguments4 {
        seqid: 0,
        share_access: share::BOTH,
        share_deny: 0,
        owner: StateOwner { clientid: 0, owner: Opaque(owner) },
        how,
        claim,
    })
}

pub(crate) fn close(stateid: StateId) -> Argument4<'static> {
    Argument4::Close(CloseArguments4 { seqid: 0, stateid })
}
