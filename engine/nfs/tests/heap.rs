//! What a store in memory says that it takes of the heap is what it takes, whatever it holds; and no more than it may.
//!
//! A program of its own, because it replaces the allocator.

use stag_memory::{Arena, ArenaConfig, Budget, PageChoice, PageSize, Pool};
use stag_state::{FileKey, HostId, HostNumber, HostSite, LockConfig, LockRequest, LockTable, Range};
use stag_stores::memory::{HEAP_PER_OBJECT, MemoryConfig, MemoryStore, RootAttributes};
use stag_testing::CountingAllocator;
use stag_vfs::{
    Acl, AclEntry, CreateMode, FsError, ObjectId, SetLists, Stability, Timestamp, Update, UserIdentity,
    WriteData, kind,
};

#[path = "../../stores/tests/store/procedures.rs"]
mod procedures;

use procedures::Procedures;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const ROOT: UserIdentity = UserIdentity::ROOT;
const NOW: Timestamp = Timestamp { seconds: 1, nanoseconds: 0 };
const PAGE: usize = 4096;

/// Objects beside the root.
const COUNT: u32 = 4095;

/// Makes the object of this number.
type Make = fn(&mut Lab, u32) -> Result<(), FsError>;

struct Lab {
    store: Procedures,
    root: ObjectId,
    /// What the heap had before there was a store.
    before: i64,
}

impl Lab {
    fn new(objects_max: u32) -> Lab {
        let budget = Budget::new(128 << 20);
        let arena = ArenaConfig {
            name: "heap",
            len: 64 << 20,
            page: PageChoice::Size(PageSize::Base),
            node: None,
            budget: &budget,
        };
        let arena = Arena::new(&arena).unwrap();
        let pool = Pool::runs(&arena, "payload", PAGE, 15_000).unwrap();
        let config = MemoryConfig {
            fsid: 1,
            data_len_max: 1 << 40,
            objects_max,
            names_max: 4 * objects_max,
            root: RootAttributes { mode: 0o777, uid: 0, gid: 0 },
        };
        let before = CountingAllocator::taken();
        let store = Procedures::from(MemoryStore::new(&config, pool, NOW).unwrap());
        let root = store.root();
        Lab { store, root, before }
    }

    /// What it really takes.
    fn taken(&self) -> i64 {
        CountingAllocator::taken() - self.before
    }

    fn file(&mut self, directory: ObjectId, name: &str) -> Result<ObjectId, FsError> {
        let how = CreateMode::Guarded(Update::default());
        self.store.create(&ROOT, directory, name.as_bytes(), &how, NOW)
    }

    fn directory(&mut self, directory: ObjectId, name: &str) -> Result<ObjectId, FsError> {
        self.store.make_directory(&ROOT, directory, name.as_bytes(), &Update::default(), NOW)
    }

    fn link(&mut self, name: &str, target: &[u8]) -> Result<ObjectId, FsError> {
        self.store.make_symlink(&ROOT, self.root, name.as_bytes(), target, &Update::default(), NOW)
    }

    fn write(&mut self, file: ObjectId, offset: u64, len: usize) -> Result<(), FsError> {
        let data = vec![7; len];
        self.store.write(&ROOT, file, offset, WriteData::Inline(&data), Stability::Unstable, NOW).map(drop)
    }
}

/// Fills a store, and compares.
fn check(what: &str, objects_max: u32, fill: impl FnOnce(&mut Lab)) {
    let mut lab = Lab::new(objects_max);
    fill(&mut lab);
    let (said, taken) = (lab.store.of(MemoryStore::heap_used) as f64, lab.taken() as f64);
    println!("{what}: {said} said, {taken} taken, {:.3}", said / taken);
    assert!((0.95..=1.05).contains(&(said / taken)), "{what}: it says {said}, and takes {taken}");
}

#[test]
fn every_kind_of_object_takes_what_is_said() {
    // Enough for each of these to be as large as it likes.
    let many = 8 * (COUNT + 1);
    check("short names", many, |lab| {
        for n in 0..COUNT {
            lab.file(lab.root, &format!("{n}")).unwrap();
        }
    });
    check("long names", many, |lab| {
        for n in 0..COUNT {
            lab.file(lab.root, &format!("{n:0250}")).unwrap();
        }
    });
    check("short links", many, |lab| {
        for n in 0..COUNT {
            lab.link(&format!("{n}"), b"../a").unwrap();
        }
    });
    check("long links", many, |lab| {
        for n in 0..COUNT {
            lab.link(&format!("{n:0200}"), &[b'x'; 1023]).unwrap();
        }
    });
    check("files of a page", many, |lab| {
        for n in 0..COUNT {
            let file = lab.file(lab.root, &format!("file-{n}")).unwrap();
            lab.write(file, 0, 100).unwrap();
        }
    });
    check("a file of many pages", many, |lab| {
        let file = lab.file(lab.root, "large").unwrap();
        (0..10_000).for_each(|page| lab.write(file, page * PAGE as u64, PAGE).unwrap());
    });
    check("a page of each chunk, the last", many, |lab| {
        let file = lab.file(lab.root, "sparse").unwrap();
        (0..5000).for_each(|chunk| lab.write(file, (chunk * 64 + 63) * PAGE as u64, 1).unwrap());
    });
    check("empty directories", many, |lab| {
        for n in 0..COUNT {
            lab.directory(lab.root, &format!("{n}")).unwrap();
        }
    });
    check("directories with a file", many, |lab| {
        for n in 0..COUNT / 2 {
            let directory = lab.directory(lab.root, &format!("{n}")).unwrap();
            lab.file(directory, "file").unwrap();
        }
        lab.file(lab.root, "odd").unwrap();
    });
    check("hard links", many, |lab| {
        let file = lab.file(lab.root, "file").unwrap();
        let root = lab.root;
        (0..10_000).for_each(|n| lab.store.link(&ROOT, file, root, format!("{n}").as_bytes(), NOW).unwrap());
    });
    check("access control lists", many, |lab| {
        let entry = |kind, id, permissions| AclEntry { kind, id, permissions };
        let entries = [
            entry(kind::OWNER, 0, 7),
            entry(kind::USER, 5, 7),
            entry(kind::USER, 6, 5),
            entry(kind::OWNING_GROUP, 0, 5),
            entry(kind::GROUP, 7, 5),
            entry(kind::MASK, 0, 7),
            entry(kind::OTHER, 0, 0),
        ];
        let acl = Acl::from_entries(entries.into_iter()).unwrap();
        for n in 0..COUNT {
            let file = lab.file(lab.root, &format!("{n}")).unwrap();
            let set = SetLists { access: Some(Some(acl.clone())), default: None };
            lab.store.set_lists(&ROOT, file, &set, NOW).unwrap();
        }
    });
}

/// What is removed is given back: also by directories that once were large, and files that are cut.
#[test]
fn what_ends_takes_nothing() {
    let mut lab = Lab::new(1 << 15);
    let empty = lab.store.of(MemoryStore::heap_used);
    let root = lab.root;
    let mut directories = Vec::new();
    for number in 0..8 {
        let directory = lab.directory(root, &format!("d{number}")).unwrap();
        for n in 0..4000 {
            lab.file(directory, &format!("{n}")).unwrap();
        }
        (0..4000).for_each(|n| lab.store.remove(&ROOT, directory, format!("{n}").as_bytes(), NOW).unwrap());
        directories.push(directory);
    }
    // The list of free places in the table stays: four octets for each object there was.
    let allowed = (1 << 15) * 8 + 4096 * 256;
    assert!(lab.taken() < allowed, "{} of eight empty directories", lab.taken());
    let file = lab.file(root, "file").unwrap();
    (0..4000).for_each(|chunk| lab.write(file, chunk * 64 * PAGE as u64, 1).unwrap());
    let set = Update { size: Some(PAGE as u64 * 63), ..Update::default() };
    lab.store.set_attributes(&ROOT, file, &set, NOW).unwrap();
    lab.store.remove(&ROOT, root, b"file", NOW).unwrap();
    for number in 0..8 {
        lab.store.remove_directory(&ROOT, root, format!("d{number}").as_bytes(), NOW).unwrap();
    }
    let rest = lab.store.of(MemoryStore::heap_used) - empty;
    // What the root keeps for names.
    assert!(rest < 2048, "{rest} octets of nothing");
    assert_eq!(lab.store.usage().files_free, (1 << 15) - 1);
}

/// Whatever clients make most of, the store refuses before it takes more than was promised, and goes on with what it has.
#[test]
fn a_store_takes_no_more_than_it_may() {
    let limit = i64::from(COUNT + 1) * HEAP_PER_OBJECT as i64;
    let kinds: [(&str, Make); 4] = [
        ("long links", |lab, n| lab.link(&format!("{n:0255}"), &[b'x'; 1024]).map(drop)),
        ("directories", |lab, n| {
            let directory = lab.directory(lab.root, &format!("{n:0255}"))?;
            lab.file(directory, &"n".repeat(255)).map(drop)
        }),
        ("scattered pages", |lab, n| {
            let root = lab.root;
            let file = match lab.store.lookup(&ROOT, root, b"sparse") {
                Ok(file) => file,
                Err(_) => lab.file(root, "sparse")?,
            };
            lab.write(file, (u64::from(n) * 64 + 63) * PAGE as u64, 1)
        }),
        ("hard links", |lab, n| {
            let root = lab.root;
            let file = match lab.store.lookup(&ROOT, root, b"file") {
                Ok(file) => file,
                Err(_) => lab.file(root, "file")?,
            };
            lab.store.link(&ROOT, file, root, format!("{n:0255}").as_bytes(), NOW)
        }),
    ];
    for (what, make) in kinds {
        let mut lab = Lab::new(COUNT + 1);
        let mut made = 0;
        let refused = loop {
            match make(&mut lab, made) {
                Ok(()) => made += 1,
                Err(status) => break status,
            }
        };
        assert_eq!(refused, FsError::NoSpace, "{what}");
        assert!(made > 500, "{what}: only {made}");
        assert!(
            lab.store.of(MemoryStore::heap_used) as i64 <= limit,
            "{what}: {} of {limit}",
            lab.store.of(MemoryStore::heap_used)
        );
        assert!(lab.taken() < limit * 105 / 100, "{what}: {} taken of {limit} after {made}", lab.taken());
        // It still answers, and what is removed makes room.
        assert!(lab.store.usage().files_free < 1000, "{what}");
        if what == "long links" {
            lab.store.remove(&ROOT, lab.root, format!("{:0255}", 0).as_bytes(), NOW).unwrap();
            make(&mut lab, made).unwrap();
        }
    }
}

/// The value of a lock that was waited for takes about as much as in the server: where to call, and the file's handle.
type Waiter = ([u64; 5], Box<[u8]>);

/// Locks and requests that wait, each of a process of its own on a file of its own, as many as there may be.
#[test]
fn locks_take_what_is_said() {
    let config = LockConfig { waiting_max: 8192, handle_octets_max: 8 << 20, ..LockConfig::default() };
    let before = CountingAllocator::taken();
    let mut table: LockTable<Waiter> = LockTable::new(config);
    let mut each = |waits: bool| {
        let start = (CountingAllocator::taken(), table.counts());
        let mut svid = 0;
        // No site gets more than it leaves free: several get nearly all.
        for site in 1..20 {
            for number in 0..64 {
                loop {
                    svid += 1;
                    let request = LockRequest {
                        file: FileKey { volume: 1, object: ObjectId { fileid: svid.into(), generation: 1 } },
                        host: HostId {
                            number: HostNumber::Nlm(site * 64 + number),
                            site: HostSite(u128::from(site) + if waits { 100 } else { 0 }),
                        },
                        svid,
                        handle: &[7; 64],
                        range: Range::new(0, 1).unwrap(),
                        exclusive: true,
                    };
                    let waiter = || ([0; 5], vec![7; 64].into());
                    let is_made = if waits {
                        table.wait(&request, waiter()).is_ok()
                    } else {
                        table.lock(&request).is_ok()
                    };
                    if !is_made || svid % 256 == 0 {
                        break;
                    }
                }
            }
        }
        let counts = table.counts();
        let count = if waits { counts.waiting - start.1.waiting } else { counts.locks - start.1.locks };
        ((CountingAllocator::taken() - start.0) as f64 / f64::from(count), count)
    };
    let (lock, locks) = each(false);
    let (waiting, waits) = each(true);
    println!("{locks} locks, {lock} octets each; {waits} wait, {waiting} octets each");
    let filled = LockConfig {
        locks_max: locks,
        waiting_max: waits,
        handle_octets_max: (locks + waits) * 64,
        ..config
    };
    let (said, taken) = (filled.memory_max() as f64, (CountingAllocator::taken() - before) as f64);
    println!("locks: {said} said, {taken} taken, {:.3}", said / taken);
    assert!((0.95..=1.05).contains(&(said / taken)), "locks: it says {said}, and they take {taken}");
}
