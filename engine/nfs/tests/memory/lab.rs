//! What the store's tests share.

use stag_memory::{Arena, ArenaConfig, Budget, PageChoice, PageSize, Pool, Shared};
use stag_nfs::caller::Caller;
use stag_nfs::memory::{MemoryConfig, MemoryStore, RootAttributes};
use stag_nfs::store::{LINK_SPACE, ListStart, ObjectId, ReadDone, Store, WriteData, WriteDone};
use stag_wire::nfs3::{CreateHow, SetAttributes, Stable, Status, Time, Verifier};

pub(crate) const PAGE: usize = 4096;
pub(crate) const NONE: SetAttributes = SetAttributes {
    mode: None,
    uid: None,
    gid: None,
    size: None,
    atime: stag_wire::nfs3::SetTime::Keep,
    mtime: stag_wire::nfs3::SetTime::Keep,
};

/// A store, its pool, and a clock that goes on by a second with each use.
pub(crate) struct Lab {
    pub(crate) pool: Pool,
    pub(crate) store: MemoryStore,
    pub(crate) seconds: u32,
    /// Units in use without any file: the zeros of holes.
    pub(crate) baseline: usize,
}

pub(crate) const CONFIG: MemoryConfig = MemoryConfig {
    fsid: 77,
    data_len_max: 1 << 40,
    objects_max: 10_000,
    names_max: 20_000,
    root: RootAttributes { mode: 0o755, uid: 0, gid: 0 },
};

impl Lab {
    pub(crate) fn new(units: usize) -> Lab {
        Lab::with(units, CONFIG)
    }

    pub(crate) fn with(units: usize, config: MemoryConfig) -> Lab {
        let pool = Lab::pool(PAGE, units);
        let store = MemoryStore::new(&config, pool.clone(), Time::default()).unwrap();
        let baseline = pool.outstanding();
        Lab { pool, store, seconds: 0, baseline }
    }

    pub(crate) fn pool(unit_len: usize, units: usize) -> Pool {
        let page = PageChoice::Size(PageSize::Base);
        let budget = Budget::new(1 << 32);
        let len = Pool::footprint(unit_len, units);
        let arena =
            Arena::new(&ArenaConfig { name: "test", len, page, node: None, budget: &budget }).unwrap();
        Pool::runs(&arena, "pages", unit_len, units).unwrap()
    }

    pub(crate) fn now(&mut self) -> Time {
        self.seconds += 1;
        Time { seconds: self.seconds, nanoseconds: 5 }
    }

    pub(crate) fn root(&self) -> ObjectId {
        self.store.root()
    }

    pub(crate) fn file(&mut self, name: &str) -> ObjectId {
        let root = self.root();
        self.create(&Caller::ROOT, root, name, &CreateHow::Guarded(NONE)).unwrap()
    }

    pub(crate) fn create(
        &mut self,
        caller: &Caller,
        directory: ObjectId,
        name: &str,
        how: &CreateHow,
    ) -> Result<ObjectId, Status> {
        let now = self.now();
        self.store.create(caller, directory, name.as_bytes(), how, now)
    }

    pub(crate) fn mkdir(
        &mut self,
        caller: &Caller,
        directory: ObjectId,
        name: &str,
        mode: u32,
    ) -> Result<ObjectId, Status> {
        let now = self.now();
        let set = SetAttributes { mode: Some(mode), ..NONE };
        self.store.make_directory(caller, directory, name.as_bytes(), &set, now)
    }

    pub(crate) fn set(
        &mut self,
        caller: &Caller,
        object: ObjectId,
        set: SetAttributes,
    ) -> Result<(), Status> {
        let now = self.now();
        self.store.set_attributes(caller, object, &set, None, now)
    }

    pub(crate) fn write(
        &mut self,
        object: ObjectId,
        offset: u64,
        octets: &[u8],
    ) -> Result<WriteDone, Status> {
        let now = self.now();
        let data = WriteData::Inline(octets);
        let done = self.store.write(&Caller::ROOT, object, offset, data, Stable::Unstable, now)?;
        Ok(done.done().expect("memory needs no time"))
    }

    pub(crate) fn write_placed(
        &mut self,
        object: ObjectId,
        offset: u64,
        pieces: &[Shared],
    ) -> Result<WriteDone, Status> {
        let now = self.now();
        let data = WriteData::Placed(pieces);
        let done = self.store.write(&Caller::ROOT, object, offset, data, Stable::Unstable, now)?;
        Ok(done.done().expect("memory needs no time"))
    }

    /// A buffer of the pool that holds `octets`, as a transfer would have placed them.
    pub(crate) fn placed(&self, octets: &[u8]) -> Shared {
        let mut buf = self.pool.take_len(octets.len()).expect("the pool has room");
        buf.copy_from_slice(octets);
        buf.share()
    }

    pub(crate) fn pieces(&mut self, object: ObjectId, offset: u64, count: u32) -> (Vec<Shared>, ReadDone) {
        let now = self.now();
        let mut pieces = Vec::with_capacity(300);
        let done = self.store.read(&Caller::ROOT, object, offset, count, &mut pieces, now).unwrap();
        (pieces, done.done().expect("memory needs no time"))
    }

    pub(crate) fn read(&mut self, object: ObjectId, offset: u64, count: u32) -> (Vec<u8>, ReadDone) {
        let (pieces, done) = self.pieces(object, offset, count);
        let octets: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
        assert_eq!(octets.len(), done.count as usize);
        (octets, done)
    }

    pub(crate) fn remove(&mut self, directory: ObjectId, name: &str) -> Result<(), Status> {
        let now = self.now();
        self.store.remove(&Caller::ROOT, directory, name.as_bytes(), now)
    }

    pub(crate) fn rename(
        &mut self,
        caller: &Caller,
        from: (ObjectId, &str),
        to: (ObjectId, &str),
    ) -> Result<(), Status> {
        let now = self.now();
        self.store.rename(caller, (from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()), now)
    }

    /// Lists at most `count` entries after `cookie`, as names and cookies, and whether that was all.
    pub(crate) fn list(
        &mut self,
        directory: ObjectId,
        cookie: u64,
        count: usize,
    ) -> (Vec<(String, u64)>, bool) {
        let verifier: Verifier = self.store.list_verifier(directory).unwrap();
        let start = ListStart { cookie, verifier, attributes: false };
        let mut found = Vec::new();
        let now = self.now();
        let eof = self.store.list(&Caller::ROOT, directory, start, now, |entry| {
            if found.len() == count {
                return false;
            }
            found.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.cookie));
            true
        });
        (found, eof.unwrap())
    }

    pub(crate) fn read_link(&mut self, link: ObjectId) -> Result<Vec<u8>, Status> {
        let now = self.now();
        self.store.read_link(&Caller::ROOT, link, &mut [0; LINK_SPACE], now).map(<[u8]>::to_vec)
    }

    /// Data units that files and READs hold.
    pub(crate) fn units(&self) -> usize {
        self.pool.outstanding() - self.baseline
    }
}
