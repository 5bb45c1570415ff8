//! READ, WRITE and COMMIT of a file on a disk allocate nothing in the steady state: counted.
//!
//! A program of its own, because it replaces the allocator.

use std::fs;
use std::time::Duration;

use stag_disk::{Disk, DiskConfig};
use stag_memory::{Arena, ArenaConfig, Budget, PageChoice, PageSize, Pool, Shared};
use stag_stores::directory::{DirectoryConfig, DirectoryStore, MayWait};
use stag_testing::CountingAllocator;
use stag_vfs::{
    CreateMode, FsError, ObjectId, Progress, Stability, Ticket, TimeUpdate, Timestamp, Update, UserIdentity,
    WriteData,
};

#[path = "store/procedures.rs"]
mod procedures;

use procedures::Procedures;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Transfers at once.
const DEPTH: u64 = 8;
/// Rounds that are counted, after as many to warm up.
const ROUNDS: u64 = 25;
/// Batches of rounds, of which one has to allocate nothing.
const BATCHES_MAX: usize = 8;
const ROOT: UserIdentity = UserIdentity::ROOT;
const NOW: Timestamp = Timestamp { seconds: 1, nanoseconds: 0 };

struct Lab {
    store: Procedures,
    file: ObjectId,
    data: [Shared; 1],
    pieces: Vec<Shared>,
}

impl Lab {
    /// Begins `DEPTH` of something, and waits for all.
    fn round(&mut self, begin: impl Fn(&mut Lab, u64) -> Result<Option<Ticket>, FsError>) {
        let mut left = 0;
        for number in 0..DEPTH {
            left += u64::from(begin(self, number).expect("it begins").is_some());
            self.pieces.clear();
        }
        while left > 0 {
            if let Some(ticket) = self.store.poll_later(Duration::ZERO) {
                assert!(self.store.finish(ticket, &mut self.pieces).is_ok());
                self.pieces.clear();
                left -= 1;
            }
        }
    }

    fn check(&mut self, what: &str, begin: impl Fn(&mut Lab, u64) -> Result<Option<Ticket>, FsError>) {
        for _ in 0..ROUNDS {
            self.round(&begin);
        }
        // Lists grow to what they need once. On a busy machine more may be under way at once than during the warm-up.
        let mut allocations = u64::MAX;
        for _ in 0..BATCHES_MAX {
            let before = CountingAllocator::allocations();
            for _ in 0..ROUNDS {
                self.round(&begin);
            }
            allocations = CountingAllocator::allocations() - before;
            if allocations == 0 {
                break;
            }
        }
        println!("{what}: {allocations} allocations in {}", ROUNDS * DEPTH);
        assert_eq!(allocations, 0, "{what}");
    }

    fn write(&mut self, number: u64, stable: Stability) -> Result<Option<Ticket>, FsError> {
        let data = WriteData::Placed(&mut self.data);
        self.store.write(&ROOT, self.file, 4096 * number, data, stable, NOW).map(later)
    }
}

fn later<T>(progress: Progress<T>) -> Option<Ticket> {
    match progress {
        Progress::Done(_) => None,
        Progress::Later(ticket) => Some(ticket),
    }
}

#[test]
fn the_steady_state_of_a_directory_allocates_nothing() {
    for uring in [true, false] {
        let path = std::env::temp_dir().join(format!("stag-allocation-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        let budget = Budget::new(16 << 20);
        let page = PageChoice::Size(PageSize::Base);
        let config = ArenaConfig { name: "allocation", len: 4 << 20, page, node: None, budget: &budget };
        let arena = Arena::new(&config).unwrap();
        let pool = Pool::runs(&arena, "pages", 4096, 1000).unwrap();
        let disk = Disk::new(&DiskConfig { depth: 128, uring, helpers: false }, &[&arena]);
        println!("{}", disk.method());
        // What a helper does costs a few boxes, which is nothing beside the thread.
        let config = DirectoryConfig { may_wait: Some(MayWait::Nothing), ..DirectoryConfig::new(&path, 1) };
        let store = DirectoryStore::new(&config, disk, pool.clone()).unwrap();
        let mut store = Procedures::from(store);
        let root = store.root();
        let how = CreateMode::Guarded(Update::default());
        let file = store.create(&ROOT, root, b"f", &how, NOW).unwrap();
        let mut buf = pool.take_len(4096).unwrap();
        buf.fill(7);
        let mut lab = Lab { store, file, data: [buf.share()], pieces: Vec::with_capacity(16) };
        lab.round(|lab, _| Ok(later(lab.store.commit_changes())));

        lab.check("WRITE unstable", |lab, number| lab.write(number, Stability::Unstable));
        lab.check("WRITE stable", |lab, number| lab.write(number, Stability::DataSync));
        lab.check("READ", |lab, number| {
            let Lab { store, file, pieces, .. } = lab;
            store.read(&ROOT, *file, 4096 * number, 4096, pieces, NOW).map(later)
        });
        lab.check("COMMIT", |lab, _| lab.store.commit(lab.file).map(later));
        lab.check("SETATTR, synced", |lab, _| {
            let set = Update { mtime: TimeUpdate::Now, ..Update::default() };
            lab.store.set_attributes(&ROOT, lab.file, &set, NOW)?;
            Ok(later(lab.store.commit_changes()))
        });
        drop(lab);
        fs::remove_dir_all(&path).unwrap();
    }
}
