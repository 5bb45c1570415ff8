//! The kinds of Calls: a program with only NULL, one whose data goes by chunk, and NFS.

use anyhow::{Context, Result, bail};
use stag_fabric::Provider;
use stag_memory::{Buf, Shared};
use stag_nfs::client::{FinishedCall, Mnt, Null as NfsNull};
use stag_nfs::export::Export;
use stag_nfs::server::{Elsewhere, ExportTable, Mount, Nfs, Nfsacl, TimeOfDay, services};
use stag_rpc::{
    Call, Chunks, CompletedCall, ConnectionId, Credentials, Engine, Home, Memory, Observed, Outcome,
    Placement, Pools, Procedure, Reply, ReplyMode, Request, Service, Services,
};
use stag_runtime::{Clock, WallClock};
use stag_stores::memory::{MemoryConfig, MemoryStore, RootAttributes};
use stag_wire::mount3::PathArguments;
use stag_wire::nfs3::{
    CreateArguments, CreateHow, Data, DirectoryName, GetattrArguments, Handle, Name, ReadArguments,
    SetAttributes, Stable, WriteArguments,
};
use stag_wire::rpc::{AuthSys, Gids};
use stag_wire::xdr::{Item, Writer};

use crate::ends::{Ends, Kind, Place, target};

#[path = "../../examples/shared/nothing.rs"]
pub(crate) mod nothing;

use nothing::{Nothing, PROGRAM};

/// Octets of a chunk.
pub(crate) const DATA_LEN: usize = 4096;

/// NULL, of a program that has no other procedure.
#[derive(Clone, Copy)]
pub(crate) struct Null;

/// Calls whose services are observed, as those of `stagd` are.
pub(crate) struct Watched<K>(pub(crate) K);

impl<K: Kind> Kind for Watched<K> {
    type Services = Observed<K::Services>;

    fn services(&self, memory: &Memory, place: Place) -> Result<Self::Services> {
        self.0.services(memory, place).map(Observed::new)
    }

    fn prepare<P: Provider, S: Services>(&mut self, ends: &mut Ends<P, S>) -> Result<()> {
        self.0.prepare(ends)
    }

    fn begin<P: Provider>(
        &mut self,
        client: &mut Engine<P, ()>,
        connection: ConnectionId,
        user: u64,
    ) -> Result<()> {
        self.0.begin(client, connection, user)
    }

    fn end(&mut self, done: CompletedCall) -> Result<()> {
        self.0.end(done)
    }
}

impl Kind for Null {
    type Services = (Nothing,);

    fn services(&self, _: &Memory, _: Place) -> Result<(Nothing,)> {
        Ok((Nothing,))
    }

    fn begin<P: Provider>(
        &mut self,
        client: &mut Engine<P, ()>,
        connection: ConnectionId,
        user: u64,
    ) -> Result<()> {
        target(connection, Credentials::None).begin(client, &NfsNull, &mut Chunks::default(), user)?;
        Ok(())
    }
}

/// Calls with a chunk: `opaque get()` and `void put(opaque)`.
pub(crate) struct Chunked {
    is_get: bool,
    /// What `put` sends.
    data: Option<Shared>,
}

impl Chunked {
    pub(crate) fn get() -> Chunked {
        Chunked { is_get: true, data: None }
    }

    pub(crate) fn put() -> Chunked {
        Chunked { is_get: false, data: None }
    }
}

impl Kind for Chunked {
    type Services = (Object,);

    fn services(&self, memory: &Memory, place: Place) -> Result<(Object,)> {
        let home = if place == Place::Alone { Home::Here } else { Home::At(Place::home()) };
        Ok((Object { data: take(&memory.pools)?.share(), home },))
    }

    fn prepare<P: Provider, S: Services>(&mut self, ends: &mut Ends<P, S>) -> Result<()> {
        self.data = Some(take(ends.client.pools())?.share());
        Ok(())
    }

    fn begin<P: Provider>(
        &mut self,
        client: &mut Engine<P, ()>,
        connection: ConnectionId,
        user: u64,
    ) -> Result<()> {
        let (procedure, mut chunks) = if self.is_get {
            (1, Chunks::write(take(client.pools())?))
        } else {
            (2, Chunks::read(self.data.clone().context("prepared")?))
        };
        let target = target(connection, Credentials::None);
        let request = Request {
            program: PROGRAM,
            version: 3,
            procedure,
            credentials: target.credentials,
            user,
            timeout: target.timeout,
            results_len_max: 4,
            retransmit: true,
            reply_mode: ReplyMode::Auto,
        };
        client.call(connection, &request, &mut chunks, |writer| match procedure {
            1 => Ok(()),
            _ => writer.eligible_opaque_reduced(DATA_LEN as u32).map(drop),
        })?;
        Ok(())
    }
}

/// What is got, and put in its place.
pub(crate) struct Object {
    data: Shared,
    home: Home,
}

static GET: Procedure = Procedure { eligible_results: 1, ..Procedure::plain("GET") };
static PUT: Procedure = Procedure { eligible_arguments: 1, ..Procedure::plain("PUT") };

impl Service for Object {
    fn program(&self) -> u32 {
        PROGRAM
    }
    fn versions(&self) -> (u32, u32) {
        (3, 3)
    }
    fn procedure(&self, _: u32, procedure: u32) -> Option<&'static Procedure> {
        [&GET, &PUT].get(procedure.wrapping_sub(1) as usize).copied()
    }
    fn home(&self, _: &Call<'_>) -> Home {
        self.home
    }
    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        const LEN: u32 = DATA_LEN as u32;
        if call.procedure == 1 && reply.item(LEN) == Placement::Reduced {
            reply.piece(self.data.clone());
            reply.success(|writer| writer.eligible_opaque_reduced(LEN).map(drop));
        } else if let Ok(Item::Reduced { index, .. }) = call.arguments().eligible_opaque(LEN)
            && let Some(data) = call.placed(index).pieces.pop()
        {
            self.data = data.share();
            reply.success(|_| Ok(()));
        } else {
            reply.system_error();
        }
        Outcome::Done
    }
}

/// Which Call of NFS.
#[derive(Clone, Copy)]
pub(crate) enum NfsCall {
    Getattr,
    Read,
    Write,
}

/// NFS on one file of a memory store, as AUTH_SYS: the Calls that `stag perf` makes.
pub(crate) struct File {
    call: NfsCall,
    credential: Vec<u8>,
    handle: Vec<u8>,
    /// Octets of a READ or WRITE.
    data_len: usize,
    /// What WRITE sends.
    data: Option<Shared>,
    /// Buffers for READ that no Call has at present.
    spare: Vec<Buf>,
}

impl File {
    /// READ and WRITE are of `data_len` octets, or of as many as Calls with chunks.
    pub(crate) fn new(call: NfsCall, data_len: Option<usize>) -> File {
        let data_len = data_len.unwrap_or(DATA_LEN);
        File { call, data_len, credential: Vec::new(), handle: Vec::new(), data: None, spare: Vec::new() }
    }

    fn write_arguments(handle: &[u8], len: usize) -> WriteArguments<'_> {
        let item = Item::Reduced { index: 0, len: len as u32 };
        WriteArguments {
            file: Handle(handle),
            offset: 0,
            count: len as u32,
            stable: Stable::Unstable,
            data: Data(item),
        }
    }
}

impl Kind for File {
    type Services = (Nfs<MemoryStore>, Mount<MemoryStore>, Nfsacl<MemoryStore>);

    fn services(&self, memory: &Memory, place: Place) -> Result<Self::Services> {
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
        if place == Place::Entry {
            let elsewhere = Elsewhere { export, fsid: config.fsid, reactor: Place::home() };
            let exports =
                ExportTable::new(Vec::new(), pool.clone())?.in_group(vec![elsewhere], Place::home())?;
            return Ok(services(exports, time));
        }
        let store = MemoryStore::new(&config, pool.clone(), time.at(now))?;
        let exports = ExportTable::new(vec![(export, Box::new(store))], pool.clone())?;
        Ok(services(exports, time))
    }

    fn prepare<P: Provider, S: Services>(&mut self, ends: &mut Ends<P, S>) -> Result<()> {
        let user = AuthSys { stamp: 0, machine_name: b"one_thread", uid: 0, gid: 0, gids: Gids::NONE };
        self.credential = vec![0; AuthSys::BODY_LEN_MAX];
        let mut writer = Writer::new(&mut self.credential);
        writer.value(&user)?;
        let len = writer.position();
        self.credential.truncate(len);
        let data = take_len(ends.client.pools(), self.data_len)?.share();
        self.data = Some(data.clone());
        let credentials = Credentials::Sys(&self.credential);

        let mount = Mnt(PathArguments { path: Name(b"/data") });
        let finished = ends.ask(credentials, &mount, Chunks::default())?;
        let root = match finished.reply::<Mnt<'_>>()? {
            Ok(ok) => ok.handle.0.to_vec(),
            Err(status) => bail!("MNT: {status:?}"),
        };
        let place = DirectoryName { directory: Handle(&root), name: Name(b"file") };
        let how = CreateHow::Unchecked(SetAttributes { mode: Some(0o600), ..SetAttributes::default() });
        let finished = ends.ask(credentials, &CreateArguments { place, how }, Chunks::default())?;
        self.handle = match finished.reply::<CreateArguments<'_>>()? {
            Ok(ok) => ok.object.context("CREATE: no handle")?.0.to_vec(),
            Err(failure) => bail!("CREATE: {:?}", failure.status),
        };
        let arguments = File::write_arguments(&self.handle, self.data_len);
        let finished = ends.ask(credentials, &arguments, Chunks::read(data))?;
        if let Err(failure) = finished.reply::<WriteArguments<'_>>()? {
            bail!("WRITE: {:?}", failure.status);
        }
        Ok(())
    }

    fn begin<P: Provider>(
        &mut self,
        client: &mut Engine<P, ()>,
        connection: ConnectionId,
        user: u64,
    ) -> Result<()> {
        let target = target(connection, Credentials::Sys(&self.credential));
        let file = Handle(&self.handle);
        match self.call {
            NfsCall::Getattr => {
                target.begin(client, &GetattrArguments { object: file }, &mut Chunks::default(), user)?;
            }
            NfsCall::Read => {
                let buf = match self.spare.pop() {
                    Some(buf) => buf,
                    None => take_len(client.pools(), self.data_len)?,
                };
                let arguments = ReadArguments { file, offset: 0, count: self.data_len as u32 };
                target.begin(client, &arguments, &mut Chunks::write(buf), user)?;
            }
            NfsCall::Write => {
                let data = self.data.clone().context("prepared")?;
                let arguments = File::write_arguments(&self.handle, self.data_len);
                target.begin(client, &arguments, &mut Chunks::read(data), user)?;
            }
        }
        Ok(())
    }

    fn end(&mut self, done: CompletedCall) -> Result<()> {
        let finished = FinishedCall::new(done);
        match self.call {
            NfsCall::Getattr => {
                if let Err(failure) = finished.reply::<GetattrArguments<'_>>()? {
                    bail!("GETATTR: {:?}", failure.status);
                }
            }
            NfsCall::Read => {
                match finished.reply::<ReadArguments<'_>>()? {
                    Ok(ok) if ok.count as usize == self.data_len => {}
                    Ok(ok) => bail!("READ of {} octets returned {}", self.data_len, ok.count),
                    Err(failure) => bail!("READ: {:?}", failure.status),
                }
                self.spare.extend(finished.into_buffers().into_iter().map(|(_, mut buf)| {
                    buf.set_len(self.data_len);
                    buf
                }));
            }
            NfsCall::Write => match finished.reply::<WriteArguments<'_>>()? {
                Ok(ok) if ok.count as usize == self.data_len => {}
                Ok(ok) => bail!("WRITE of {} octets wrote {}", self.data_len, ok.count),
                Err(failure) => bail!("WRITE: {:?}", failure.status),
            },
        }
        Ok(())
    }
}

/// A buffer of the payload pool as long as a chunk.
fn take(pools: &Pools) -> Result<Buf> {
    take_len(pools, DATA_LEN)
}

/// A buffer of the payload pool of `len` octets.
pub(crate) fn take_len(pools: &Pools, len: usize) -> Result<Buf> {
    pools.payload.take_len(len).context("no memory for a chunk")
}
