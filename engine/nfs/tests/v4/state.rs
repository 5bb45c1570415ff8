//! What tests of opens, data and locks share: operations in short, and a second client of the same server.

use stag_memory::Buf;
use stag_nfs::client::FinishedCall;
use stag_rpc::Chunks;
use stag_wire::nfs4::files::{ReadArguments4, WriteArguments4, WriteHead};
use stag_wire::nfs4::lock::{
    ExistingLocker, LockArguments4, LockKind, Locker, LocktArguments, LockuArguments, NewLocker,
};
use stag_wire::nfs4::open::{
    CloseArguments4, CreateHow4, OpenArguments4, OpenClaim, OpenDowngradeArguments, OpenHow, StateOwner,
};
use stag_wire::nfs4::operation::{Argument4, Outcome4};
use stag_wire::nfs4::session::CreateSessionOk;
use stag_wire::nfs4::value::Refusal;
use stag_wire::nfs4::{Data, Opaque, Stable, StateId, Status4};
use stag_wire::xdr::Item;

use super::Lab;
use super::client::{Answer, Compound, FORE, RESULTS_MAX, create_session, exchange_id};
use super::files::put;

pub(crate) const READ: u32 = 1;
pub(crate) const WRITE: u32 = 2;
pub(crate) const BOTH: u32 = 3;

fn owner(name: &[u8]) -> StateOwner<'_> {
    StateOwner { clientid: 0, owner: Opaque(name) }
}

/// OPEN by an owner, which is `alice` where it does not matter.
pub(crate) fn open_as<'a>(
    name: &'a [u8],
    (access, deny): (u32, u32),
    how: OpenHow<'a>,
    claim: OpenClaim<'a>,
) -> Argument4<'a> {
    Argument4::Open(OpenArguments4 {
        seqid: 0,
        share_access: access,
        share_deny: deny,
        owner: owner(name),
        how,
        claim,
    })
}

pub(crate) fn open<'a>(name: &'a [u8], access: u32) -> Argument4<'a> {
    open_as(b"alice", (access, 0), OpenHow::NoCreate, OpenClaim::Null(Opaque(name)))
}

pub(crate) fn open_create<'a>(name: &'a [u8], how: CreateHow4<'a>) -> Argument4<'a> {
    open_as(b"alice", (BOTH, 0), OpenHow::Create(how), OpenClaim::Null(Opaque(name)))
}

pub(crate) fn open_handle(access: u32) -> Argument4<'static> {
    open_as(b"alice", (access, 0), OpenHow::NoCreate, OpenClaim::Handle)
}

pub(crate) fn close(stateid: StateId) -> Argument4<'static> {
    Argument4::Close(CloseArguments4 { seqid: 0, stateid })
}

pub(crate) fn downgrade(stateid: StateId, access: u32, deny: u32) -> Argument4<'static> {
    let (share_access, share_deny) = (access, deny);
    Argument4::OpenDowngrade(OpenDowngradeArguments { stateid, seqid: 0, share_access, share_deny })
}

pub(crate) fn read(stateid: StateId, offset: u64, count: u32) -> Argument4<'static> {
    Argument4::Read(ReadArguments4 { stateid, offset, count })
}

pub(crate) fn write(stateid: StateId, offset: u64, octets: &[u8]) -> Argument4<'_> {
    let head = WriteHead { stateid, offset, stable: Stable::Unstable };
    Argument4::Write(WriteArguments4 { head, data: Data(Item::Inline(octets)) })
}

/// LOCK by an owner's first request through an open.
pub(crate) fn lock_new<'a>(
    open: StateId,
    name: &'a [u8],
    kind: LockKind,
    (offset, length): (u64, u64),
) -> Argument4<'a> {
    let new = NewLocker { open_seqid: 0, open_stateid: open, lock_seqid: 0, owner: owner(name) };
    let locker = Locker::New(new);
    Argument4::Lock(LockArguments4 { kind, is_reclaim: false, offset, length, locker })
}

pub(crate) fn lock_more(
    stateid: StateId,
    kind: LockKind,
    (offset, length): (u64, u64),
) -> Argument4<'static> {
    let locker = Locker::Existing(ExistingLocker { stateid, lock_seqid: 0 });
    Argument4::Lock(LockArguments4 { kind, is_reclaim: false, offset, length, locker })
}

pub(crate) fn lockt<'a>(name: &'a [u8], kind: LockKind, (offset, length): (u64, u64)) -> Argument4<'a> {
    Argument4::Lockt(LocktArguments { kind, offset, length, owner: owner(name) })
}

pub(crate) fn locku(stateid: StateId, (offset, length): (u64, u64)) -> Argument4<'static> {
    Argument4::Locku(LockuArguments { kind: LockKind::Write, seqid: 0, stateid, offset, length })
}

/// What a client has beside its connection.
pub(crate) struct Other {
    clientid: u64,
    session: CreateSessionOk,
    sequence_ids: Vec<u32>,
}

impl Lab {
    /// One more client of the server, which may need a RECLAIM_COMPLETE.
    pub(crate) fn another(&mut self, name: &[u8]) -> Other {
        let (clientid, sequence_id) = self.pair.compound(2, &[exchange_id(name, 1)], |answer| {
            let [Outcome4::ExchangeId(Ok(exchanged))] = answer.outcomes[..] else { panic!("{answer:?}") };
            (exchanged.clientid, exchanged.sequence_id)
        });
        let session = self.pair.compound(2, &[create_session(clientid, sequence_id, FORE)], |answer| {
            let [Outcome4::CreateSession(Ok(session))] = answer.outcomes[..] else { panic!("{answer:?}") };
            session
        });
        Other { clientid, session, sequence_ids: vec![0; session.fore.requests_max as usize] }
    }

    /// The same, which has said RECLAIM_COMPLETE.
    pub(crate) fn another_ready(&mut self, name: &[u8]) -> Other {
        let mut other = self.another(name);
        let status = self.by(&mut other, |lab| lab.status(&[Argument4::ReclaimComplete(false)]));
        assert_eq!(status, Status4::Ok);
        other
    }

    /// Acts as another client.
    pub(crate) fn by<R>(&mut self, other: &mut Other, act: impl FnOnce(&mut Lab) -> R) -> R {
        self.exchange(other);
        let done = act(self);
        self.exchange(other);
        done
    }

    fn exchange(&mut self, other: &mut Other) {
        std::mem::swap(&mut self.clientid, &mut other.clientid);
        std::mem::swap(&mut self.session, &mut other.session);
        std::mem::swap(&mut self.sequence_ids, &mut other.sequence_ids);
    }

    /// The state id that the last of these operations answers.
    pub(crate) fn state(&mut self, operations: &[Argument4<'_>]) -> Result<StateId, Status4> {
        self.compound(operations, |status, outcomes| match outcomes.last() {
            Some(Outcome4::Open(Ok(ok))) => Ok(ok.stateid),
            Some(Outcome4::Close(Ok(state)) | Outcome4::OpenDowngrade(Ok(state)))
            | Some(Outcome4::Lock(Ok(state)) | Outcome4::Locku(Ok(state))) => Ok(*state),
            _ => Err(status),
        })
    }

    /// Opens the file of a handle.
    pub(crate) fn open_at(&mut self, file: &[u8], access: u32) -> StateId {
        self.state(&[put(file), open_handle(access)]).unwrap()
    }

    /// The lock that is in the way of the last of these operations: client, owner, offset, length, kind.
    pub(crate) fn denied(&mut self, operations: &[Argument4<'_>]) -> (u64, Vec<u8>, u64, u64, LockKind) {
        self.compound(operations, |status, outcomes| {
            assert_eq!(status, Status4::Denied);
            let denied = match outcomes.last() {
                Some(Outcome4::Lock(Err(Refusal::Detailed(denied)))) => denied,
                Some(Outcome4::Lockt(Err(Refusal::Detailed(denied)))) => denied,
                other => panic!("{other:?}"),
            };
            let StateOwner { clientid, owner } = denied.owner;
            (clientid, owner.0.to_vec(), denied.offset, denied.length, denied.kind)
        })
    }

    /// What a READ gives: inline, or in a chunk.
    pub(crate) fn octets(
        &mut self,
        file: &[u8],
        operation: Argument4<'_>,
        by_chunk: Option<usize>,
    ) -> Result<(Vec<u8>, bool), Status4> {
        let chunks = by_chunk.map_or_else(Chunks::default, |len| Chunks::write(self.buffer(len)));
        let finished = self.finished(&[put(file), operation], chunks, RESULTS_MAX);
        let answer = finished.reply::<Compound<'_>>().unwrap();
        read_octets(&finished, &answer)
    }

    pub(crate) fn buffer(&self, len: usize) -> Buf {
        self.pair.client.pools().payload.take_len(len).unwrap()
    }

    /// Writes octets that go by chunk.
    pub(crate) fn write_by_chunk(
        &mut self,
        file: &[u8],
        stateid: StateId,
        offset: u64,
        octets: &[u8],
    ) -> Result<u32, Status4> {
        let mut buf = self.buffer(octets.len());
        buf.copy_from_slice(octets);
        let head = WriteHead { stateid, offset, stable: Stable::FileSync };
        let data = Data(Item::Reduced { index: 0, len: octets.len() as u32 });
        let write = Argument4::Write(WriteArguments4 { head, data });
        let finished = self.finished(&[put(file), write], Chunks::read(buf.share()), RESULTS_MAX);
        let answer = finished.reply::<Compound<'_>>().unwrap();
        match answer.outcomes.last() {
            Some(Outcome4::Write(Ok(ok))) => Ok(ok.count),
            _ => Err(answer.status),
        }
    }
}

/// The data of the last READ of an answer.
pub(crate) fn read_octets(finished: &FinishedCall, answer: &Answer<'_>) -> Result<(Vec<u8>, bool), Status4> {
    match answer.outcomes.last() {
        Some(Outcome4::Read(Ok(ok))) => {
            Ok((finished.octets(&ok.data.0).flatten().copied().collect(), ok.eof))
        }
        _ => Err(answer.status),
    }
}

impl Lab {
    /// Lets time go by.
    pub(crate) fn wait(&mut self, time: std::time::Duration) {
        let end = self.pair.world.now() + time;
        while self.pair.world.now() < end {
            let now = self.pair.world.now();
            self.pair.world.advance_before(Some((now + std::time::Duration::from_secs(1)).min(end)));
            let now = self.pair.world.now();
            self.pair.poll_server(now);
            stag_runtime::Poller::poll(&mut self.pair.client, now);
        }
    }
}
