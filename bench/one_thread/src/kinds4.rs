//! NFS of version 4.2: a SEQUENCE, a PUTFH, and GETATTR, READ or WRITE by the state id of an open.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use stag_fabric::Provider;
use stag_memory::{Buf, Shared};
use stag_nfs::callout::NoCallOut;
use stag_nfs::client::{FinishedCall, Operation};
use stag_nfs::export::Export;
use stag_nfs::server::{
    Config4, ExportTable, Locking, LockingConfig, ServicesWithLocks, SharedSessions, TimeOfDay,
    services_with_locks,
};
use stag_nfs::state::Recovered;
use stag_rpc::{Chunks, CompletedCall, ConnectionId, Credentials, Engine, Memory, Services};
use stag_runtime::{Clock, WallClock};
use stag_stores::memory::{MemoryConfig, MemoryStore, RootAttributes};
use stag_wire::nfs4::attributes::{Attribute, AttributeList, AttributeSet};
use stag_wire::nfs4::compound::{CompoundReply, OperationsWriter};
use stag_wire::nfs4::files::{GetattrArguments4, ReadArguments4, WriteArguments4, WriteHead};
use stag_wire::nfs4::open::{CreateHow4, OpenArguments4, OpenClaim, OpenHow, StateOwner};
use stag_wire::nfs4::operation::{Argument4, Outcome4};
use stag_wire::nfs4::session::{
    CallbackSecurity, ChannelAttributes, ClientOwner, CreateSessionArguments, ExchangeIdArguments,
    SequenceArguments, StateProtection,
};
use stag_wire::nfs4::value::{FixedOpaque, List};
use stag_wire::nfs4::{self, Bitmap, Data, Opaque, SessionId, Stable, StateId, Status4};
use stag_wire::rpc::{AuthSys, Gids};
use stag_wire::xdr::{Decode, Encode, Item, Overflow, Reader, Writer, XdrError};

use crate::ends::{Ends, Kind, Place, target};
use crate::kinds::{DATA_LEN, NfsCall, take_len};

/// Octets of results, at most.
const RESULTS_MAX: u32 = 800;

/// A COMPOUND.
struct Compound<'a>(&'a [Argument4<'a>]);

impl Encode for Compound<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        let mut operations = OperationsWriter::begin_call(writer, &Opaque(b""), 2)?;
        self.0.iter().try_for_each(|operation| operations.push(operation))?;
        operations.finish();
        Ok(())
    }
}

/// Its last results.
struct Last<'r>(Status4, Option<Outcome4<'r>>);

impl<'r> Decode<'r> for Last<'r> {
    fn decode(reader: &mut Reader<'r>) -> Result<Self, XdrError> {
        let CompoundReply { status, mut operations, .. } = CompoundReply::parse(reader.clone())?;
        let mut last = None;
        while let Some(Ok(outcome)) = operations.next_item() {
            last = Some(outcome);
        }
        *reader = operations.reader().clone();
        Ok(Last(status, last))
    }
}

impl Operation for Compound<'_> {
    const PROGRAM: u32 = nfs4::PROGRAM;
    const VERSION: u32 = nfs4::VERSION;
    type Reply<'r> = Last<'r>;

    fn procedure(&self) -> u32 {
        nfs4::COMPOUND
    }

    fn results_len_max(&self, _: bool) -> u32 {
        RESULTS_MAX
    }
}

/// One file of a memory store.
pub(crate) struct File4 {
    call: NfsCall,
    credential: Vec<u8>,
    handle: Vec<u8>,
    open: StateId,
    session: SessionId,
    /// Sequence ids that were used last.
    sequence_ids: Vec<u32>,
    /// Slots that no Call has at present.
    slots: Vec<u32>,
    /// Calls under way, with their slots.
    busy: Vec<(u64, u32)>,
    /// Octets of a READ or WRITE.
    data_len: usize,
    data: Option<Shared>,
    spare: Vec<Buf>,
}

impl File4 {
    /// READ and WRITE are of `data_len` octets, or of as many as those of version 3.
    pub(crate) fn new(call: NfsCall, data_len: Option<usize>) -> File4 {
        File4 {
            call,
            data_len: data_len.unwrap_or(DATA_LEN),
            credential: Vec::new(),
            handle: Vec::new(),
            open: StateId::ANONYMOUS,
            session: SessionId::default(),
            sequence_ids: Vec::new(),
            slots: Vec::new(),
            busy: Vec::new(),
            data: None,
            spare: Vec::new(),
        }
    }

    fn sequence(&mut self, slot: u32) -> Argument4<'static> {
        let sequence_id = &mut self.sequence_ids[slot as usize];
        *sequence_id += 1;
        let (session, sequence_id) = (self.session, *sequence_id);
        let highest_slot = self.sequence_ids.len() as u32 - 1;
        Argument4::Sequence(SequenceArguments { session, sequence_id, slot, highest_slot, keep_reply: false })
    }

    fn write(&self) -> Argument4<'static> {
        let head = WriteHead { stateid: self.open, offset: 0, stable: Stable::Unstable };
        let data = Data(Item::Reduced { index: 0, len: self.data_len as u32 });
        Argument4::Write(WriteArguments4 { head, data })
    }
}

/// The attributes that Linux asks for of a file: about those that version 3 tells.
fn getattr() -> Argument4<'static> {
    let asked = [
        Attribute::Type,
        Attribute::Change,
        Attribute::Size,
        Attribute::Fsid,
        Attribute::FileId,
        Attribute::Mode,
        Attribute::NumLinks,
        Attribute::Owner,
        Attribute::OwnerGroup,
        Attribute::RawDev,
        Attribute::SpaceUsed,
        Attribute::TimeAccess,
        Attribute::TimeMetadata,
        Attribute::TimeModify,
        Attribute::MountedOnFileId,
    ];
    let request = AttributeSet(Attribute::set_of(|attribute| asked.contains(&attribute)));
    Argument4::Getattr(GetattrArguments4 { request })
}

impl Kind for File4 {
    type Services = ServicesWithLocks<MemoryStore>;

    fn services(&self, memory: &Memory, _: Place) -> Result<Self::Services> {
        let pool = &memory.pools.payload;
        let now = Clock::start().now();
        let mut time = TimeOfDay::System(WallClock::new(now));
        let config = MemoryConfig {
            fsid: 1,
            data_len_max: 8 << 20,
            objects_max: 64,
            names_max: 64,
            root: RootAttributes { mode: 0o777, uid: 0, gid: 0 },
        };
        let export = Export { root_squash: false, ..Export::new("/data") };
        let store = MemoryStore::new(&config, pool.clone(), time.at(now))?;
        let exports = ExportTable::new(vec![(export, Box::new(store))], pool.clone())?;
        let locking =
            Locking::new(LockingConfig::default(), Recovered::nothing(), Box::new(NoCallOut::default()));
        let version4 = (Config4::new(1), SharedSessions::default());
        Ok(services_with_locks(exports, time, Rc::new(RefCell::new(locking)), Rc::default(), version4))
    }

    fn prepare<P: Provider, S: Services>(&mut self, ends: &mut Ends<P, S>) -> Result<()> {
        let user = AuthSys { stamp: 0, machine_name: b"one_thread", uid: 0, gid: 0, gids: Gids::NONE };
        let mut credential = vec![0; AuthSys::BODY_LEN_MAX];
        let mut writer = Writer::new(&mut credential);
        writer.value(&user)?;
        let len = writer.position();
        credential.truncate(len);
        self.credential.clone_from(&credential);
        let credentials = Credentials::Sys(&credential);
        let data = take_len(ends.client.pools(), self.data_len)?.share();
        self.data = Some(data.clone());

        let exchange = [Argument4::ExchangeId(ExchangeIdArguments {
            owner: ClientOwner { verifier: FixedOpaque([1; 8]), id: Opaque(b"one_thread") },
            flags: 0,
            protection: StateProtection::None,
            implementation: None,
        })];
        let finished = ends.ask(credentials, &Compound(&exchange), Chunks::default())?;
        let (clientid, sequence_id) = match finished.reply::<Compound<'_>>()?.1 {
            Some(Outcome4::ExchangeId(Ok(ok))) => (ok.clientid, ok.sequence_id),
            other => bail!("EXCHANGE_ID: {other:?}"),
        };
        let limits = |operations_max, requests_max| ChannelAttributes {
            header_pad: 0,
            // A megabyte with what is around it.
            request_max: (1 << 20) + (64 << 10),
            response_max: (1 << 20) + (64 << 10),
            response_cached_max: 2048,
            operations_max,
            requests_max,
            rdma_ird: None,
        };
        let create = [Argument4::CreateSession(CreateSessionArguments {
            clientid,
            sequence_id,
            flags: 0,
            fore: limits(8, 64),
            back: limits(2, 1),
            callback_program: 0,
            callback_securities: List::new(&[CallbackSecurity::None]),
        })];
        let finished = ends.ask(credentials, &Compound(&create), Chunks::default())?;
        let slots = match finished.reply::<Compound<'_>>()?.1 {
            Some(Outcome4::CreateSession(Ok(ok))) => {
                self.session = ok.session;
                ok.fore.requests_max
            }
            other => bail!("CREATE_SESSION: {other:?}"),
        };
        self.sequence_ids = vec![0; slots as usize];
        self.slots = (0..slots).rev().collect();
        let complete = [self.sequence(0), Argument4::ReclaimComplete(false)];
        ends.ask(credentials, &Compound(&complete), Chunks::default())?;

        let attributes = AttributeList { mask: Bitmap::EMPTY, values: &[] };
        let open = Argument4::Open(OpenArguments4 {
            seqid: 0,
            share_access: 3,
            share_deny: 0,
            owner: StateOwner { clientid: 0, owner: Opaque(b"owner") },
            how: OpenHow::Create(CreateHow4::Unchecked(attributes)),
            claim: OpenClaim::Null(Opaque(b"file")),
        });
        let down = [self.sequence(0), Argument4::Putrootfh(()), Argument4::Lookup(Opaque(b"data")), open];
        let finished = ends.ask(credentials, &Compound(&down), Chunks::default())?;
        self.open = match finished.reply::<Compound<'_>>()?.1 {
            Some(Outcome4::Open(Ok(ok))) => ok.stateid,
            other => bail!("OPEN: {other:?}"),
        };
        let find = [
            self.sequence(0),
            Argument4::Putrootfh(()),
            Argument4::Lookup(Opaque(b"data")),
            Argument4::Lookup(Opaque(b"file")),
            Argument4::Getfh(()),
        ];
        let finished = ends.ask(credentials, &Compound(&find), Chunks::default())?;
        self.handle = match finished.reply::<Compound<'_>>()?.1 {
            Some(Outcome4::Getfh(Ok(handle))) => handle.0.to_vec(),
            other => bail!("GETFH: {other:?}"),
        };
        let handle = self.handle.clone();
        let write = [self.sequence(0), Argument4::Putfh(Opaque(&handle)), self.write()];
        let finished = ends.ask(credentials, &Compound(&write), Chunks::read(data))?;
        match finished.reply::<Compound<'_>>()? {
            Last(Status4::Ok, _) => Ok(()),
            Last(status, _) => bail!("WRITE: {status:?}"),
        }
    }

    fn begin<P: Provider>(
        &mut self,
        client: &mut Engine<P, ()>,
        connection: ConnectionId,
        user: u64,
    ) -> Result<()> {
        let slot = self.slots.pop().context("a free slot")?;
        self.busy.push((user, slot));
        let sequence = self.sequence(slot);
        let target = target(connection, Credentials::Sys(&self.credential));
        let (last, mut chunks) = match self.call {
            NfsCall::Getattr => (getattr(), Chunks::default()),
            NfsCall::Read => {
                let buf = match self.spare.pop() {
                    Some(buf) => buf,
                    None => take_len(client.pools(), self.data_len)?,
                };
                let read = ReadArguments4 { stateid: self.open, offset: 0, count: self.data_len as u32 };
                (Argument4::Read(read), Chunks::write(buf))
            }
            NfsCall::Write => (self.write(), Chunks::read(self.data.clone().context("prepared")?)),
        };
        let operations = [sequence, Argument4::Putfh(Opaque(&self.handle)), last];
        target.begin(client, &Compound(&operations), &mut chunks, user)?;
        Ok(())
    }

    fn end(&mut self, done: CompletedCall) -> Result<()> {
        let place = self.busy.iter().position(|(user, _)| *user == done.user).context("a Call under way")?;
        self.slots.push(self.busy.swap_remove(place).1);
        let finished = FinishedCall::new(done);
        let Last(status, last) = finished.reply::<Compound<'_>>()?;
        match last {
            Some(Outcome4::Getattr(Ok(_))) => {}
            Some(Outcome4::Read(Ok(ok))) if ok.data.0.len() == self.data_len => {}
            Some(Outcome4::Write(Ok(ok))) if ok.count as usize == self.data_len => {}
            other => bail!("{status:?}: {other:?}"),
        }
        self.spare.extend(finished.into_buffers().into_iter().map(|(_, mut buf)| {
            buf.set_len(self.data_len);
            buf
        }));
        Ok(())
    }
}
