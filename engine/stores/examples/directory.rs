//! What a directory store costs beside plain `pread` and `pwrite` of the same file: octets a second, and the system calls
//! of the transfers themselves.
//!
//! ```sh
//! cargo run --release -p stag-nfs --example directory -- /dev/shm/folder
//! ```

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stag_disk::{Disk, DiskConfig};
use stag_memory::{Arena, ArenaConfig, Budget, PageChoice, PageSize, Pool, Shared};
use stag_runtime::Clock;
use stag_stores::directory::{DirectoryConfig, DirectoryStore};
use stag_vfs::{
    EntryName, FsError, ObjectId, Progress, Stability, Store, Timestamp, UserIdentity, WriteData,
};

/// Octets of the file.
const FILE_LEN: u64 = 64 << 20;
/// Transfers at once, where there are several.
const DEPTH: usize = 32;
/// How long each is measured.
const SPAN: Duration = Duration::from_millis(400);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    fs::create_dir_all(&folder)?;
    let path = folder.join("stag-directory-example");
    fs::write(&path, vec![7; FILE_LEN as usize])?;
    let result = measure(&folder, &path);
    fs::remove_file(&path)?;
    result
}

fn measure(folder: &Path, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let budget = Budget::new(1 << 30);
    let page = PageChoice::Size(PageSize::Base);
    let arena =
        Arena::new(&ArenaConfig { name: "example", len: 128 << 20, page, node: None, budget: &budget })?;
    let pool = Pool::runs(&arena, "pages", 4096, (128 << 20) / 4096)?;
    let disk = Disk::new(&DiskConfig::default(), &[&arena]);
    let counts = disk.another();
    println!("{}", disk.method());
    let config = DirectoryConfig { reading_max: 64 << 20, ..DirectoryConfig::new(folder, 1) };
    let mut store = DirectoryStore::new(&config, disk, pool.clone())?;
    let name = path.file_name().ok_or("a name")?.as_encoded_bytes();
    let root = store.profile().root;
    let directory = &store.stat(root).map_err(FsError::from)?;
    let object = store.entry(EntryName { directory, name }).map_err(FsError::from)?.object;
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let clock = Clock::start();

    println!("transfer             plain        store, one at a time        store, {DEPTH} at once");
    for len in [4 << 10, 1 << 20] {
        for write in [false, true] {
            let plain = plain(&clock, &file, len, write)?;
            print!("{} {:>7}   {plain:>8.0}/s", if write { "WRITE" } else { "READ " }, len);
            for depth in [1, DEPTH] {
                let before = counts.statistics().system_calls;
                let (rate, count) = through(&clock, &mut store, object, &pool, (len, write, depth));
                let calls = (counts.statistics().system_calls - before) as f64 / count as f64;
                print!("   {rate:>8.0}/s = {:.2}, {calls:.2} calls", rate / plain);
            }
            println!();
        }
    }
    Ok(())
}

/// Transfers a second by plain system calls.
fn plain(clock: &Clock, file: &File, len: usize, write: bool) -> std::io::Result<f64> {
    let mut space = vec![1; len];
    let begin = clock.now();
    let mut count = 0u64;
    while clock.now() - begin < SPAN {
        for _ in 0..16 {
            let offset = count * len as u64 % FILE_LEN;
            if write {
                file.write_at(&space, offset)?
            } else {
                file.read_at(&mut space, offset)?
            };
            count += 1;
        }
    }
    Ok(count as f64 / (clock.now() - begin).as_secs_f64())
}

/// Transfers a second through the store, and how many.
fn through(
    clock: &Clock,
    store: &mut DirectoryStore,
    object: ObjectId,
    pool: &Pool,
    (len, write, depth): (usize, bool, usize),
) -> (f64, u64) {
    let mut data: Vec<Shared> = pool.take_len(len).map(|buf| buf.share()).into_iter().collect();
    let mut pieces = Vec::with_capacity(257);
    let (mut begun, mut done, mut flying) = (0u64, 0u64, 0);
    let begin = clock.now();
    loop {
        let now = clock.now();
        if now - begin > SPAN && flying == 0 {
            return (done as f64 / (now - begin).as_secs_f64(), done);
        }
        while flying < depth && now - begin <= SPAN {
            let offset = begun * len as u64 % FILE_LEN;
            let progress = if write {
                let data = WriteData::Placed(&mut data);
                let begun = store.write(
                    &UserIdentity::ROOT,
                    object,
                    offset,
                    data,
                    Stability::Unstable,
                    Timestamp::default(),
                );
                begun.map(|begun| matches!(begun, Progress::Later(_)))
            } else {
                let begun = store.read(
                    &UserIdentity::ROOT,
                    object,
                    offset,
                    len as u32,
                    &mut pieces,
                    Timestamp::default(),
                );
                begun.map(|begun| matches!(begun, Progress::Later(_)))
            };
            assert_eq!(progress, Ok(true));
            (begun, flying) = (begun + 1, flying + 1);
        }
        while let Some(ticket) = store.poll_later(now) {
            assert!(store.finish(ticket, &mut pieces).is_ok());
            pieces.clear();
            (done, flying) = (done + 1, flying - 1);
        }
    }
}
