//! Operations on real files: by io_uring (where it is permitted), by helper threads, and by plain system calls.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use stag_disk::{
    AtOnce, Data, Disk, DiskCompletion, DiskConfig, DiskFile, Errno, Method, PIECES_USUAL, Pieces, Sync,
    system,
};
use stag_memory::{Arena, ArenaConfig, Budget, Buf, PageChoice, PageSize, Pool, Shared};
use stag_testing::Scratch;

const PAGE: usize = 4096;
/// Buffers of one operation, more than usual.
const PIECES: usize = PIECES_USUAL + 1;
const UNITS: usize = 1024;

fn file_of(opened: impl Into<OwnedFd>) -> Arc<DiskFile> {
    Arc::new(opened.into().into())
}

fn open(scratch: &Scratch) -> Arc<DiskFile> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&scratch.0);
    file_of(file.unwrap())
}

fn arena() -> Arena {
    let budget = Budget::new(1 << 32);
    let page = PageChoice::Size(PageSize::Base);
    Arena::new(&ArenaConfig { name: "test", len: UNITS * PAGE, page, node: None, budget: &budget }).unwrap()
}

fn pool(arena: &Arena) -> Pool {
    Pool::runs(arena, "pages", PAGE, UNITS).unwrap()
}

/// All ways to work, and io_uring with and without registered buffers. An owner that is alone may begin eight operations.
fn each_way(test: impl Fn(Disk, Pool)) {
    for (uring, helpers, registers) in
        [(true, true, true), (true, true, false), (false, true, false), (false, false, false)]
    {
        let arena = arena();
        let arenas: &[&Arena] = if registers { &[&arena] } else { &[] };
        let disk = Disk::new(&DiskConfig { depth: 16, uring, helpers }, arenas);
        println!("{}", disk.method());
        assert!(uring || disk.method() == if helpers { Method::Helpers(None) } else { Method::Blocking });
        test(disk, pool(&arena));
    }
}

#[expect(clippy::disallowed_methods, reason = "there is no reactor whose clock it could be")]
fn wait(disk: &Disk) -> DiskCompletion {
    let (begin, limit) = (Instant::now(), stag_testing::patience(Duration::from_secs(60)));
    loop {
        if let Some(completion) = disk.poll() {
            return completion;
        }
        // Kernels have lost operations of io_uring: rather a failure than no end.
        assert!(
            begin.elapsed() < limit,
            "TIMED OUT after {limit:?}: the kernel has not completed an operation"
        );
        std::thread::yield_now();
    }
}

fn filled(pool: &Pool, octets: &[u8]) -> Shared {
    let mut buf = pool.take_len(octets.len()).unwrap();
    buf.copy_from_slice(octets);
    buf.share()
}

fn one<T>(piece: T) -> Pieces<T> {
    Pieces::from_iter([piece])
}

fn octets(completion: DiskCompletion) -> Vec<u8> {
    let Data::Read(pieces) = completion.data else { panic!("{completion:?}") };
    let octets: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
    assert_eq!(completion.result, Ok(octets.len() as u32));
    octets
}

#[test]
fn what_is_written_is_read() {
    each_way(|disk, pool| {
        let scratch = Scratch::vacant();
        let file = open(&scratch);
        let text = b"a stag swims across the fjord";
        for (tag, sync) in [(1, Sync::None), (2, Sync::Data), (3, Sync::All)] {
            disk.write(tag, &file, 100 * tag, one(filled(&pool, text)), sync).unwrap();
            let completion = wait(&disk);
            assert_eq!((completion.tag, completion.result), (tag, Ok(text.len() as u32)));
        }
        disk.sync(4, &file, Sync::Data).unwrap();
        assert_eq!(wait(&disk).result, Ok(0));
        disk.sync(5, &file, Sync::All).unwrap();
        assert_eq!(wait(&disk).result, Ok(0));
        assert_eq!(&fs::read(&scratch.0).unwrap()[200..][..text.len()], text);

        // Longer than the file: cut to what there is, and the rest of the memory is free again.
        disk.read(6, &file, 300, one(pool.take_len(8 * PAGE).unwrap())).unwrap();
        let completion = wait(&disk);
        assert_eq!(pool.outstanding(), 1);
        assert_eq!(octets(completion), text);
        // Behind the end.
        disk.read(7, &file, 1 << 40, one(pool.take().unwrap())).unwrap();
        assert_eq!(octets(wait(&disk)), b"");
        assert_eq!(pool.outstanding(), 0);
        let statistics = disk.statistics();
        assert_eq!((statistics.reads, statistics.writes, statistics.syncs), (2, 3, 2));
        assert_eq!(statistics.failures, 0);
    });
}

#[test]
fn failures_say_why_and_give_the_buffers_back() {
    each_way(|disk, pool| {
        let scratch = Scratch::vacant();
        open(&scratch);
        let unwritable: Arc<DiskFile> = file_of(fs::File::open(&scratch.0).unwrap());
        disk.write(1, &unwritable, 0, one(filled(&pool, b"no")), Sync::None).unwrap();
        let completion = wait(&disk);
        assert_eq!(completion.result, Err(Errno::BADF));
        assert_eq!(completion.data.len(), 2);
        drop(completion);
        let directory: Arc<DiskFile> = file_of(fs::File::open(std::env::temp_dir()).unwrap());
        disk.read(2, &directory, 0, one(pool.take().unwrap())).unwrap();
        assert_eq!(wait(&disk).result, Err(Errno::ISDIR));
        assert_eq!(disk.statistics().failures, 2);
        assert_eq!(pool.outstanding(), 0);
    });
}

#[test]
fn more_than_the_depth_is_refused_and_nothing_is_lost() {
    each_way(|disk, pool| {
        let scratch = Scratch::vacant();
        let file = open(&scratch);
        let depth = disk.left();
        assert_eq!(depth, 8);
        for tag in 0..u64::from(depth) {
            disk.write(tag, &file, tag * 10, one(filled(&pool, &[tag as u8; 10])), Sync::None).unwrap();
        }
        let refused = disk.read(99, &file, 0, one(pool.take().unwrap())).unwrap_err();
        assert_eq!(refused.0.len(), PAGE);
        drop(refused);
        let mut seen: Vec<u64> = (0..depth).map(|_| wait(&disk).tag).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..u64::from(depth)).collect::<Vec<_>>());
        assert_eq!(disk.left(), depth);
        assert_eq!(fs::read(&scratch.0).unwrap().len(), 80);
        assert_eq!(pool.outstanding(), 0);
    });
}

#[test]
fn each_owner_sees_its_own() {
    each_way(|disk, pool| {
        let scratch = Scratch::vacant();
        let file = open(&scratch);
        let other = disk.another();
        disk.write(1, &file, 0, one(filled(&pool, b"one")), Sync::None).unwrap();
        other.write(2, &file, 3, one(filled(&pool, b"two")), Sync::None).unwrap();
        assert_eq!(wait(&other).tag, 2);
        assert_eq!(wait(&disk).tag, 1);
        assert!(other.poll().is_none() && disk.poll().is_none());

        // A disk that is dropped leaves its operations behind, and takes no room from the others.
        other.write(3, &file, 0, one(filled(&pool, b"ONE")), Sync::None).unwrap();
        drop(other);
        disk.sync(4, &file, Sync::All).unwrap();
        assert_eq!(wait(&disk).tag, 4);
        while pool.outstanding() > 0 {
            assert!(disk.poll().is_none());
        }
        assert_eq!(disk.left(), 8);
        assert_eq!(fs::read(&scratch.0).unwrap(), b"ONEtwo");
    });
}

/// Files that stand still, of one owner, leave room for another's.
#[test]
fn an_owner_has_as_many_operations_as_it_leaves() {
    each_way(|disk, pool| {
        let scratch = Scratch::vacant();
        let file = open(&scratch);
        let other = disk.another();
        // None of them is given out.
        let begin = |disk: &Disk| disk.sync(0, &file, Sync::Data).is_ok();
        assert_eq!((0..99).take_while(|_| begin(&disk)).count(), 8);
        assert_eq!((disk.left(), other.left()), (0, 4));
        assert_eq!((0..99).take_while(|_| begin(&other)).count(), 4);
        wait(&disk);
        assert_eq!((disk.left(), other.left()), (0, 1));
        assert_eq!(pool.outstanding(), 0, "a sync moves nothing");
    });
}

/// A container may permit a ring to be made, and not to be used.
#[test]
fn without_io_uring_enter_helpers_work() {
    let test = || {
        // An error that nothing else fails with.
        stag_testing::refuse_system_calls(&[libc::SYS_io_uring_enter], libc::EXFULL);
        let arena = arena();
        let pool = pool(&arena);
        let disk = Disk::new(&DiskConfig::default(), &[&arena]);
        let Method::Helpers(Some(refused)) = disk.method() else { panic!("{}", disk.method()) };
        let scratch = Scratch::vacant();
        let file = open(&scratch);
        disk.write(1, &file, 0, one(filled(&pool, b"text")), Sync::All).unwrap();
        assert_eq!(wait(&disk).result, Ok(4));
        disk.read(2, &file, 0, one(pool.take_len(4).unwrap())).unwrap();
        assert!(is_readable(disk.descriptor().unwrap(), 10_000));
        assert_eq!(octets(wait(&disk)), b"text");
        refused
    };
    // The filter is of a thread.
    let refused = std::thread::spawn(test).join().unwrap();
    // Others are told where io_uring is refused altogether.
    assert!(matches!(refused, Errno::XFULL | Errno::PERM | Errno::NOSYS | Errno::ACCESS), "{refused}");
}

/// A container may refuse rings altogether. Where threads are refused as well, operations are done as they are begun.
#[test]
fn without_io_uring_and_threads_operations_are_done_at_once() {
    let test = || {
        let refused = [libc::SYS_io_uring_setup, libc::SYS_clone, libc::SYS_clone3];
        stag_testing::refuse_system_calls(&refused, libc::EAGAIN);
        let arena = arena();
        let pool = pool(&arena);
        let disk = Disk::new(&DiskConfig::default(), &[&arena]);
        assert!(matches!(disk.method(), Method::Helpers(Some(_))), "{}", disk.method());
        let scratch = Scratch::vacant();
        let file = open(&scratch);
        for round in 0..3 {
            disk.write(1, &file, 0, one(filled(&pool, b"text")), Sync::All).unwrap();
            assert_eq!(disk.poll().map(|completion| completion.result), Some(Ok(4)), "round {round}");
            disk.read(2, &file, 0, one(pool.take_len(4).unwrap())).unwrap();
            assert_eq!(octets(disk.poll().unwrap()), b"text");
            disk.sync(3, &file, Sync::Data).unwrap();
            assert_eq!(disk.poll().map(|completion| completion.tag), Some(3));
        }
        drop(disk);
        assert_eq!(pool.outstanding(), 0);
    };
    std::thread::spawn(test).join().unwrap();
}

/// An operation that does not end does not hold up the end of its disk. Its memory is given up.
#[test]
fn dropped_with_work_that_does_not_end_it_strands_its_memory() {
    let arena = arena();
    let pool = pool(&arena);
    let disk = Disk::new(&DiskConfig::default(), &[&arena]);
    if !matches!(disk.method(), Method::Uring { .. }) {
        return stag_testing::skipped(disk.method());
    }
    let (reader, mut writer) = std::io::pipe().unwrap();
    let reader = file_of(reader);
    let pieces = Pieces::from_iter([pool.take().unwrap(), pool.take().unwrap()]);
    disk.read(1, &reader, 0, pieces).unwrap();
    assert!(disk.poll().is_none(), "nothing to read yet");
    let file = open(&Scratch::vacant());
    disk.write(2, &file, 0, one(filled(&pool, b"text")), Sync::None).unwrap();
    drop(disk);
    assert_eq!((pool.outstanding(), pool.stranded()), (2, 2), "the WRITE has ended");
    // The kernel may use the memory still.
    writer.write_all(b"late").unwrap();
    assert_eq!(pool.free_units(), pool.units() - 2);
}

/// The completions are never polled: dropping waits, and every buffer comes back.
#[test]
fn dropped_with_work_in_flight_it_waits() {
    each_way(|disk, pool| {
        let scratch = Scratch::vacant();
        let file = open(&scratch);
        for tag in 0..8 {
            let pieces = Pieces::from_iter((0..PIECES).map(|_| filled(&pool, &[tag as u8; PAGE])));
            disk.write(tag, &file, tag * (PIECES * PAGE) as u64, pieces, Sync::Data).unwrap();
        }
        assert!(pool.outstanding() > 0);
        drop(disk);
        assert_eq!(pool.outstanding(), 0);
        assert_eq!(Arc::strong_count(&file), 1, "no descriptor is kept");
        if fs::metadata(&scratch.0).unwrap().len() > 0 {
            let found = fs::read(&scratch.0).unwrap();
            assert_eq!(found.len(), 8 * PIECES * PAGE);
            assert!(
                found
                    .chunks(PIECES * PAGE)
                    .enumerate()
                    .all(|(tag, part)| part == vec![tag as u8; part.len()])
            );
        }
    });
}

/// A pipe's read end: it stays in flight until somebody writes.
#[test]
fn a_completion_makes_the_descriptor_readable() {
    let arena = arena();
    let pool = pool(&arena);
    let disk = Disk::new(&DiskConfig::default(), &[&arena]);
    let Some(descriptor) = disk.descriptor() else {
        stag_testing::skipped(disk.method());
        return;
    };
    let (reader, mut writer) = std::io::pipe().unwrap();
    disk.read(1, &file_of(reader), 0, one(pool.take().unwrap())).unwrap();
    assert!(disk.poll().is_none(), "nothing to read yet");
    assert!(!is_readable(descriptor, 0));
    writer.write_all(b"now").unwrap();
    assert!(is_readable(descriptor, 10_000));
    assert_eq!(octets(wait(&disk)), b"now");
    assert!(!is_readable(descriptor, 0));
}

fn is_readable(descriptor: i32, timeout_ms: i32) -> bool {
    let mut entry = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, readable and writable.
    unsafe { libc::poll(&raw mut entry, 1, timeout_ms) > 0 }
}

/// What the kernel calls a file stays when it is renamed, and differs from that of any other.
#[test]
fn file_handles_name_files() {
    let scratch = Scratch::vacant();
    let file = open(&scratch);
    let before = match system::file_handle(file.as_fd(), c"") {
        Ok(handle) => handle,
        Err(error) => {
            stag_testing::skipped(format_args!(
                "the file system of {} has no file handles: {error}",
                scratch.0.display()
            ));
            return;
        }
    };
    let other = Scratch::vacant();
    let other_handle = system::file_handle(open(&other).as_fd(), c"").unwrap();
    assert_ne!(before.octets(), other_handle.octets());
    let moved = Scratch::vacant();
    fs::rename(&scratch.0, &moved.0).unwrap();
    let after = system::file_handle(file.as_fd(), c"").unwrap();
    assert_eq!((before.kind(), before.octets()), (after.kind(), after.octets()));
    let rebuilt = system::FileHandle::new(after.kind(), after.octets());
    match system::open_by_handle(file.as_fd(), &rebuilt) {
        Ok(opened) => {
            let again = system::file_handle(opened.as_fd(), c"").unwrap();
            assert_eq!(again.octets(), before.octets());
        }
        Err(error) => println!("without the capability: {error}"),
    }
}

#[test]
fn a_mode_is_changed_without_opening_the_file() {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let scratch = Scratch::vacant();
    open(&scratch);
    let looked_at = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&scratch.0).unwrap();
    system::change_mode(looked_at.as_fd(), 0o640).unwrap();
    assert_eq!(fs::metadata(&scratch.0).unwrap().permissions().mode() & 0o7777, 0o640);
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, Vec<usize>, u8),
    Read(u64, Vec<usize>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let lengths = || prop::collection::vec(1usize..3 * PAGE, 1..6);
    let offset = || 0u64..20 * PAGE as u64;
    let step = prop_oneof![
        (offset(), lengths(), any::<u8>())
            .prop_map(|(offset, lengths, fill)| Step::Write(offset, lengths, fill)),
        (offset(), lengths()).prop_map(|(offset, lengths)| Step::Read(offset, lengths)),
    ];
    prop::collection::vec(step, 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Any mix of pieces against a vector.
    #[test]
    fn like_a_vector(steps in steps()) {
        each_way(|disk, pool| {
            let scratch = Scratch::vacant();
            let file = open(&scratch);
            let mut model: Vec<u8> = Vec::new();
            for step in &steps {
                match step {
                    Step::Write(offset, lengths, fill) => {
                        let data: Vec<Vec<u8>> = lengths.iter().map(|len| vec![*fill; *len]).collect();
                        let pieces = data.iter().map(|octets| filled(&pool, octets)).collect();
                        disk.write(0, &file, *offset, pieces, Sync::None).unwrap();
                        let data = data.concat();
                        assert_eq!(wait(&disk).result, Ok(data.len() as u32));
                        let end = *offset as usize + data.len();
                        model.resize(model.len().max(end), 0);
                        model[*offset as usize..end].copy_from_slice(&data);
                    }
                    Step::Read(offset, lengths) => {
                        let pieces: Pieces<Buf> = lengths.iter().map(|len| pool.take_len(*len).unwrap()).collect();
                        disk.read(0, &file, *offset, pieces).unwrap();
                        let from = model.len().min(*offset as usize);
                        let end = model.len().min(from + lengths.iter().sum::<usize>());
                        assert_eq!(octets(wait(&disk)), &model[from..end]);
                    }
                }
                assert_eq!(pool.outstanding(), 0);
            }
        });
    }
}

/// What is done to a file in memory is over when it was begun, and needs no ring.
#[test]
fn what_is_immediate_is_done_as_it_is_begun() {
    each_way(|disk, pool| {
        let (scratch, other) = (Scratch::vacant(), disk.another());
        let file = open(&scratch);
        disk.set_at_once(AtOnce::All);
        disk.write(1, &file, 0, one(filled(&pool, b"now")), Sync::Data).unwrap();
        assert_eq!(fs::read(&scratch.0).unwrap(), b"now");
        let calls = disk.statistics().system_calls;
        assert_eq!(calls, 1);
        disk.sync(2, &file, Sync::All).unwrap();
        assert_eq!((disk.statistics().system_calls, disk.left()), (2, 6));
        for tag in [1, 2] {
            let completion = disk.poll().expect("it is over");
            assert_eq!((completion.tag, completion.result), (tag, Ok(if tag == 1 { 3 } else { 0 })));
        }
        assert_eq!((disk.left(), other.poll().is_none()), (8, true));
        disk.read(3, &file, 0, one(pool.take_len(3).unwrap())).unwrap();
        assert_eq!(disk.statistics().system_calls, 3);
        assert_eq!(octets(disk.poll().expect("it is over")), b"now");
        let mut pieces = one(pool.take_len(9).unwrap());
        assert_eq!(disk.read_at_once(&file, 1, &mut pieces), Some(Ok(2)));
        assert_eq!((&pieces[0][..], disk.statistics().system_calls), (&b"ow"[..], 4));
        // Each owner for itself, and only for as long as it is so.
        other.write(4, &file, 3, one(filled(&pool, b" or")), Sync::None).unwrap();
        assert_eq!(octets_of(wait(&other)), 3);
        disk.set_at_once(AtOnce::None);
        disk.write(5, &file, 6, one(filled(&pool, b" later")), Sync::None).unwrap();
        assert_eq!(octets_of(wait(&disk)), 6);
        assert_eq!(fs::read(&scratch.0).unwrap(), b"now or later");
    });
}

/// A read of what is in memory is done at once, where the file system tells; what is not in memory is read all the same.
#[test]
fn reads_of_what_is_in_memory_do_not_wait() {
    each_way(|disk, pool| {
        let scratch = Scratch::vacant();
        let file = open(&scratch);
        disk.set_at_once(AtOnce::CachedReads);
        disk.write(1, &file, 0, one(filled(&pool, b"text")), Sync::All).unwrap();
        assert_eq!(octets_of(wait(&disk)), 4);
        for tag in [2, 3] {
            let mut pieces = one(pool.take_len(4).unwrap());
            match disk.read_at_once(&file, 0, &mut pieces) {
                Some(read) => assert_eq!((read, &pieces[0][..]), (Ok(4), &b"text"[..])),
                None => {
                    disk.read(tag, &file, 0, pieces).unwrap();
                    let completion = wait(&disk);
                    assert_eq!((completion.tag, &*octets(completion)), (tag, &b"text"[..]));
                }
            }
            // The next one finds nothing in memory, if the file system lets go of it.
            rustix::fs::fadvise(&*file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
        // Behind its end: not all that is asked for is there.
        let is_blocking = disk.method() == Method::Blocking;
        let read = disk.read_at_once(&file, 2, &mut one(pool.take_len(4).unwrap()));
        assert_eq!(read, is_blocking.then_some(Ok(2)));
        disk.set_at_once(AtOnce::None);
        let read = disk.read_at_once(&file, 0, &mut one(pool.take_len(4).unwrap()));
        assert_eq!(read.is_some(), is_blocking);
        disk.read(4, &file, 2, one(pool.take_len(4).unwrap())).unwrap();
        assert_eq!(octets(wait(&disk)), b"xt");
    });
}

fn octets_of(completion: DiskCompletion) -> u32 {
    completion.result.unwrap()
}

#[test]
fn files_are_in_memory_only_where_there_is_no_swap() {
    let is = |path: &str| system::is_in_memory(fs::File::open(path).unwrap().as_fd());
    assert!(!is("/proc/self/status"));
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    if !mounts.lines().any(|line| line.starts_with("tmpfs /dev/shm tmpfs")) {
        return stag_testing::skipped("no tmpfs at /dev/shm");
    }
    assert_eq!(is("/dev/shm"), swaps.lines().count() <= 1, "{swaps}");
}
