//! What the stores' tests share.

use std::time::Duration;

use crate::procedures::Procedures;
use crate::procedures::Start;
use crate::slow::{self, SlowStore};
use stag_disk::{Disk, DiskConfig};
use stag_memory::{Arena, ArenaConfig, Budget, PageChoice, PageSize, Pool, Shared};
use stag_stores::directory::{DirectoryConfig, DirectoryStore, MayWait};
use stag_stores::memory::{MemoryConfig, MemoryStore, MemoryStoreStatistics, RootAttributes};
use stag_testing::Scratch;
use stag_vfs::{
    CreateMode, Finished, FsError, ObjectId, Progress, ReadDone, Stability, StoreVerifier, Timestamp, Update,
    UserIdentity, WriteData, WriteDone,
};

pub(crate) const PAGE: usize = 4096;
pub(crate) const NONE: Update = Update {
    mode: None,
    uid: None,
    gid: None,
    size: None,
    atime: stag_vfs::TimeUpdate::Keep,
    mtime: stag_vfs::TimeUpdate::Keep,
};

/// A store, its pool, and a clock that goes on by a second with each use.
pub(crate) struct Lab {
    pub(crate) pool: Pool,
    pub(crate) store: Procedures,
    pub(crate) seconds: i64,
    /// Units in use without any file: the zeros of holes.
    pub(crate) baseline: usize,
    /// Where a directory store's files are; goes with the lab.
    pub(crate) scratch: Option<Scratch>,
}

/// Whether this process may act as any user. Where it may not, less is tested.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
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
        let store = MemoryStore::new(&config, pool.clone(), Timestamp::default()).unwrap().into();
        let baseline = pool.outstanding();
        Lab { pool, store, seconds: 0, baseline, scratch: None }
    }

    /// A store in memory that answers later; every other one by chance.
    pub(crate) fn slow(units: usize) -> Lab {
        let pool = Lab::pool(PAGE, units);
        let store = slow::make(MemoryStore::new(&CONFIG, pool.clone(), Timestamp::default()).unwrap()).into();
        let baseline = pool.outstanding();
        Lab { pool, store, seconds: 0, baseline, scratch: None }
    }

    /// A directory store, with names that are never believed: what happens in the directory is seen at once.
    pub(crate) fn directory(units: usize, change: impl FnOnce(&mut DirectoryConfig)) -> Lab {
        let scratch = Scratch::folder();
        let pool = Lab::pool(PAGE, units);
        let store = Lab::open(&scratch, &pool, change);
        Lab { pool, store, seconds: 0, baseline: 0, scratch: Some(scratch) }
    }

    /// The same, of a store that waits for nothing: it does each READ and WRITE as it comes.
    pub(crate) fn at_once(units: usize, change: impl FnOnce(&mut DirectoryConfig)) -> Lab {
        let scratch = Scratch::folder();
        let pool = Lab::pool(PAGE, units);
        let disk = Disk::new(&DiskConfig { uring: false, helpers: false, ..DiskConfig::default() }, &[]);
        let store = Lab::open_by(disk, &scratch, &pool, |config| {
            config.may_wait = Some(MayWait::Nothing);
            change(config);
        });
        Lab { pool, store, seconds: 0, baseline: 0, scratch: Some(scratch) }
    }

    /// A store of a directory, by io_uring where it is permitted.
    pub(crate) fn open(
        scratch: &Scratch,
        pool: &Pool,
        change: impl FnOnce(&mut DirectoryConfig),
    ) -> Procedures {
        let disk = Disk::new(&DiskConfig::default(), &[pool.arena()]);
        Lab::open_by(disk, scratch, pool, change)
    }

    /// A store of a directory, by this disk.
    pub(crate) fn open_by(
        disk: Disk,
        scratch: &Scratch,
        pool: &Pool,
        change: impl FnOnce(&mut DirectoryConfig),
    ) -> Procedures {
        let mut config = DirectoryConfig::new(&scratch.0, 78);
        config.trust = Duration::ZERO;
        change(&mut config);
        DirectoryStore::new(&config, disk, pool.clone()).unwrap().into()
    }

    /// Runs a test over each kind of store: what is true of a file system, whatever keeps it.
    pub(crate) fn each(units: usize, test: impl Fn(&mut Lab)) {
        println!("in memory");
        test(&mut Lab::new(units));
        println!("in memory, a pass later");
        for _ in 0..2 {
            test(&mut Lab::slow(units));
        }
        println!("a directory");
        test(&mut Lab::directory(units, |_| {}));
        println!("a directory, where nothing waits");
        test(&mut Lab::at_once(units, |_| {}));
        println!("a directory, without io_uring");
        let (scratch, pool) = (Scratch::folder(), Lab::pool(PAGE, units));
        let disk = Disk::new(&DiskConfig { uring: false, ..DiskConfig::default() }, &[]);
        let store = Lab::open_by(disk, &scratch, &pool, |_| {});
        test(&mut Lab { pool, store, seconds: 0, baseline: 0, scratch: Some(scratch) });
    }

    pub(crate) fn is_memory(&self) -> bool {
        self.store.is::<MemoryStore>() || self.store.is::<SlowStore>()
    }

    /// Of a store in memory.
    pub(crate) fn statistics(&self) -> MemoryStoreStatistics {
        self.store.of(MemoryStore::statistics)
    }

    /// Waits for what the store finishes later.
    pub(crate) fn wait<T: Copy>(
        &mut self,
        progress: Progress<T>,
        pieces: &mut Vec<Shared>,
        of: impl Fn(Finished) -> Option<T>,
    ) -> Result<T, FsError> {
        let ticket = match progress {
            Progress::Done(done) => return Ok(done),
            Progress::Later(ticket) => ticket,
        };
        loop {
            if let Some(ready) = self.store.poll_later(Duration::ZERO) {
                assert_eq!(ready, ticket);
                let finished = self.store.finish(ticket, pieces)?;
                return Ok(of(finished).expect("what was begun is what ends"));
            }
            std::thread::yield_now();
        }
    }

    pub(crate) fn commit(&mut self, object: ObjectId) -> Result<(), FsError> {
        let begun = self.store.commit(object)?;
        self.wait(begun, &mut Vec::new(), |finished| matches!(finished, Finished::Commit).then_some(()))
    }

    /// Waits until what was changed is on stable storage, as a server does before it answers.
    pub(crate) fn settle(&mut self) -> Result<(), FsError> {
        let begun = self.store.commit_changes();
        self.wait(begun, &mut Vec::new(), |finished| matches!(finished, Finished::Commit).then_some(()))
    }

    /// The same, if something was changed.
    fn settled<T>(&mut self, done: Result<T, FsError>) -> Result<T, FsError> {
        self.settle()?;
        done
    }

    fn write_as(&mut self, object: ObjectId, offset: u64, data: WriteData<'_>) -> Result<WriteDone, FsError> {
        self.write_of(&UserIdentity::ROOT, object, offset, data, Stability::Unstable)
    }

    pub(crate) fn write_of(
        &mut self,
        caller: &UserIdentity,
        object: ObjectId,
        offset: u64,
        data: WriteData<'_>,
        stable: Stability,
    ) -> Result<WriteDone, FsError> {
        let now = self.now();
        let begun = self.store.write(caller, object, offset, data, stable, now)?;
        self.wait(begun, &mut Vec::new(), |finished| match finished {
            Finished::Write(done) => Some(done),
            _ => None,
        })
    }

    pub(crate) fn pool(unit_len: usize, units: usize) -> Pool {
        let page = PageChoice::Size(PageSize::Base);
        let budget = Budget::new(1 << 32);
        let len = Pool::footprint(unit_len, units);
        let arena =
            Arena::on_demand(&ArenaConfig { name: "test", len, page, node: None, budget: &budget }).unwrap();
        Pool::runs(&arena, "pages", unit_len, units).unwrap()
    }

    pub(crate) fn now(&mut self) -> Timestamp {
        self.seconds += 1;
        Timestamp { seconds: self.seconds, nanoseconds: 5 }
    }

    pub(crate) fn root(&self) -> ObjectId {
        self.store.root()
    }

    pub(crate) fn file(&mut self, name: &str) -> ObjectId {
        let root = self.root();
        self.create(&UserIdentity::ROOT, root, name, &CreateMode::Guarded(NONE)).unwrap()
    }

    pub(crate) fn create(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &str,
        how: &CreateMode,
    ) -> Result<ObjectId, FsError> {
        let now = self.now();
        let done = self.store.create(caller, directory, name.as_bytes(), how, now);
        self.settled(done)
    }

    pub(crate) fn mkdir(
        &mut self,
        caller: &UserIdentity,
        directory: ObjectId,
        name: &str,
        mode: u32,
    ) -> Result<ObjectId, FsError> {
        let now = self.now();
        let set = Update { mode: Some(mode), ..NONE };
        let done = self.store.make_directory(caller, directory, name.as_bytes(), &set, now);
        self.settled(done)
    }

    pub(crate) fn set(
        &mut self,
        caller: &UserIdentity,
        object: ObjectId,
        set: Update,
    ) -> Result<(), FsError> {
        let now = self.now();
        let done = self.store.set_attributes(caller, object, &set, now);
        self.settled(done)
    }

    pub(crate) fn write(
        &mut self,
        object: ObjectId,
        offset: u64,
        octets: &[u8],
    ) -> Result<WriteDone, FsError> {
        self.write_as(object, offset, WriteData::Inline(octets))
    }

    pub(crate) fn write_placed(
        &mut self,
        object: ObjectId,
        offset: u64,
        pieces: &[Shared],
    ) -> Result<WriteDone, FsError> {
        self.write_as(object, offset, WriteData::Placed(&mut pieces.to_vec()))
    }

    /// A buffer of the pool that holds `octets`, as a transfer would have placed them.
    pub(crate) fn placed(&self, octets: &[u8]) -> Shared {
        let mut buf = self.pool.take_len(octets.len()).expect("the pool has room");
        buf.copy_from_slice(octets);
        buf.share()
    }

    /// What a READ of `caller` comes to, without its octets.
    pub(crate) fn read_of(
        &mut self,
        caller: &UserIdentity,
        object: ObjectId,
        offset: u64,
        count: u32,
    ) -> Result<ReadDone, FsError> {
        let now = self.now();
        let mut pieces = Vec::with_capacity(300);
        let begun = self.store.read(caller, object, offset, count, &mut pieces, now)?;
        self.wait(begun, &mut pieces, |finished| match finished {
            Finished::Read(done) => Some(done),
            _ => None,
        })
    }

    pub(crate) fn pieces(&mut self, object: ObjectId, offset: u64, count: u32) -> (Vec<Shared>, ReadDone) {
        let now = self.now();
        let mut pieces = Vec::with_capacity(300);
        let begun = self.store.read(&UserIdentity::ROOT, object, offset, count, &mut pieces, now).unwrap();
        let done = self.wait(begun, &mut pieces, |finished| match finished {
            Finished::Read(done) => Some(done),
            _ => None,
        });
        (pieces, done.unwrap())
    }

    pub(crate) fn read(&mut self, object: ObjectId, offset: u64, count: u32) -> (Vec<u8>, ReadDone) {
        let (pieces, done) = self.pieces(object, offset, count);
        let octets: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
        assert_eq!(octets.len(), done.count as usize);
        (octets, done)
    }

    pub(crate) fn remove(&mut self, directory: ObjectId, name: &str) -> Result<(), FsError> {
        let now = self.now();
        let done = self.store.remove(&UserIdentity::ROOT, directory, name.as_bytes(), now);
        self.settled(done)
    }

    pub(crate) fn rename(
        &mut self,
        caller: &UserIdentity,
        from: (ObjectId, &str),
        to: (ObjectId, &str),
    ) -> Result<(), FsError> {
        let now = self.now();
        let done = self.store.rename(caller, (from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()), now);
        self.settled(done)
    }

    /// Lists at most `count` entries after `cookie`, as names and cookies, and whether that was all.
    pub(crate) fn list(
        &mut self,
        directory: ObjectId,
        cookie: u64,
        count: usize,
    ) -> (Vec<(String, u64)>, bool) {
        let verifier: StoreVerifier = self.store.list_verifier(directory).unwrap();
        let start = Start { cookie, verifier, attributes: false };
        let mut found = Vec::new();
        let now = self.now();
        let eof = self.store.list(&UserIdentity::ROOT, directory, start, now, |entry| {
            if found.len() == count {
                return false;
            }
            found.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.cookie));
            true
        });
        (found, eof.unwrap())
    }

    pub(crate) fn read_link(&mut self, link: ObjectId) -> Result<Vec<u8>, FsError> {
        let now = self.now();
        self.store.read_link(link, now)
    }

    /// Data units that files and READs hold.
    pub(crate) fn units(&self) -> usize {
        self.pool.outstanding() - self.baseline
    }
}
