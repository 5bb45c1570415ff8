//! READ, WRITE, READLINK and SYMLINK, with and without chunks.

use stag_fabric::Peer;
use stag_memory::Buf;
use stag_nfs::server::{Traffic, TrafficClient};
use stag_rpc::Chunks;
use stag_stores::memory::MemoryStoreStatistics;
use stag_wire::nfs3::{
    Data, DirectoryName, Handle, Name, Path, ReadArguments, ReadlinkArguments, SetAttributes, Stable, Status,
    SymlinkArguments, WriteArguments,
};
use stag_wire::xdr::Item;

use super::pair::{PAGE, Pair};

pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 3) as u8 ^ (at >> 9) as u8).collect()
}

fn buffer(pair: &Pair, len: usize) -> Buf {
    pair.client.pools().payload.take_len(len).unwrap()
}

pub(crate) fn write(
    pair: &mut Pair,
    file: &[u8],
    offset: u64,
    octets: &[u8],
    by_chunk: bool,
) -> Result<u32, Status> {
    let count = octets.len() as u32;
    let (chunks, item) = if by_chunk {
        let mut buf = buffer(pair, octets.len());
        buf.copy_from_slice(octets);
        (Chunks::read(buf.share()), Item::Reduced { index: 0, len: count })
    } else {
        (Chunks::default(), Item::Inline(octets))
    };
    let stable = Stable::Unstable;
    let arguments = WriteArguments { file: Handle(file), offset, count, stable, data: Data(item) };
    let finished = pair.call(&arguments, chunks);
    let reply = finished.reply::<WriteArguments<'_>>().unwrap();
    reply.map(|ok| ok.count).map_err(|failure| failure.status)
}

pub(crate) fn read(pair: &mut Pair, file: &[u8], offset: u64, count: u32, by_chunk: bool) -> (Vec<u8>, bool) {
    let chunks =
        if by_chunk { Chunks::write(buffer(pair, count.max(1) as usize)) } else { Chunks::default() };
    let finished = pair.call(&ReadArguments { file: Handle(file), offset, count }, chunks);
    let ok = finished.reply::<ReadArguments<'_>>().unwrap().unwrap();
    let octets: Vec<u8> = finished.octets(&ok.data.0).flatten().copied().collect();
    assert_eq!(octets.len(), ok.count as usize);
    (octets, ok.eof)
}

/// The longest WRITE that is said to fit its message does, and one that is a word longer does not.
#[test]
fn a_write_that_fits_its_message_needs_no_chunk() {
    let mut pair = Pair::new(&["/data,root_squash=no"]);
    let root = pair.root.clone();
    let file = pair.create(&root, b"file");
    let fits = pair.inline_write_len_max(&file);
    assert!(fits > 1024, "{fits} of the default threshold of 4096");
    // Version 2 has other ways for a long Call.
    let long = u64::from(super::PROTOCOL == stag_rpc::ProtocolChoice::One);
    for (len, long_calls) in [(fits, 0), (fits + 4, long)] {
        let before = pair.client.statistics().position_zero_chunks;
        assert_eq!(write(&mut pair, &file, 0, &pattern(len), false), Ok(len as u32));
        assert_eq!(pair.client.statistics().position_zero_chunks - before, long_calls, "{len} octets");
    }
}

/// As [`read`], and READs what is left where a Long Reply was shorter, because the last one still holds its pages.
fn read_whole(pair: &mut Pair, file: &[u8], offset: u64, count: u32, by_chunk: bool) -> (Vec<u8>, bool) {
    let (mut octets, mut eof) = read(pair, file, offset, count, by_chunk);
    while !eof && octets.len() < count as usize {
        let (rest, end) =
            read(pair, file, offset + octets.len() as u64, count - octets.len() as u32, by_chunk);
        assert!(!rest.is_empty() && !by_chunk);
        octets.extend(rest);
        eof = end;
    }
    (octets, eof)
}

/// Data of every size, both ways, by chunk and without: inline, Long Call, Long Reply.
#[test]
fn what_is_written_is_read() {
    let mut pair = Pair::new(&["/data,root_squash=no"]);
    let root = pair.root.clone();
    for (index, len) in [1, 3, 4, 500, 4095, 4096, 4097, 20_000, 131_072, 1 << 20].into_iter().enumerate() {
        for by_chunk in [true, false] {
            let file = pair.create(&root, format!("f{index}{by_chunk}").as_bytes());
            let octets = pattern(len);
            if len < 1 << 20 || by_chunk {
                assert_eq!(write(&mut pair, &file, 0, &octets, by_chunk), Ok(len as u32));
            } else {
                // Longer than a Long Call may be.
                assert_eq!(write(&mut pair, &file, 0, &octets[..len / 2], false), Ok(len as u32 / 2));
                assert_eq!(
                    write(&mut pair, &file, len as u64 / 2, &octets[len / 2..], false),
                    Ok(len as u32 / 2)
                );
            }
            for by_chunk in [true, false] {
                let (found, eof) = read_whole(&mut pair, &file, 0, len as u32, by_chunk);
                assert!(found == octets && eof, "{len} octets, by chunk: {by_chunk}");
                if len > 1 {
                    let (found, eof) = read_whole(&mut pair, &file, 1, len as u32 - 2, by_chunk);
                    assert!(found == octets[1..len - 1] && !eof);
                }
                // 8267-X-3: nothing at the end of the file.
                assert_eq!(read(&mut pair, &file, len as u64, 100, by_chunk), (vec![], true));
            }
        }
    }
}

/// The pages that the data was placed in are the file's, and go out again as they are.
#[test]
fn chunks_are_not_copied() {
    let mut pair = Pair::new(&["/data,root_squash=no"]);
    let root = pair.root.clone();
    let file = pair.create(&root, b"f");
    let octets = pattern(64 * PAGE);
    write(&mut pair, &file, 0, &octets, true).unwrap();
    let (found, _) = read(&mut pair, &file, 0, octets.len() as u32, true);
    assert!(found == octets);
    let statistics = pair.memory_statistics();
    // What another engine placed is copied.
    let (octets_copied, pages_placed) = if super::IS_CARRIED { (64 * PAGE as u64, 0) } else { (0, 64) };
    assert_eq!(statistics, MemoryStoreStatistics { octets_copied, pages_placed, pages_read: 64 });
}

#[test]
fn symbolic_links_go_both_ways() {
    let mut pair = Pair::new(&["/data,root_squash=no"]);
    let root = pair.root.clone();
    for (index, len) in [1, 8, 255, 1000, 1024, 3000, 4095].into_iter().enumerate() {
        // What does not fit inline goes by chunk.
        for by_chunk in [true, false].into_iter().take(if len > 2000 { 1 } else { 2 }) {
            let target = vec![b'l'; len];
            let name = format!("l{index}{by_chunk}");
            let place = DirectoryName { directory: Handle(&root), name: Name(name.as_bytes()) };
            let (chunks, item) = if by_chunk {
                let mut buf = buffer(&pair, len);
                buf.copy_from_slice(&target);
                (Chunks::read(buf.share()), Item::Reduced { index: 0, len: len as u32 })
            } else {
                (Chunks::default(), Item::Inline(&target[..]))
            };
            let attributes = SetAttributes::default();
            let finished = pair.call(&SymlinkArguments { place, attributes, path: Path(item) }, chunks);
            let made = finished.reply::<SymlinkArguments<'_>>().unwrap().unwrap();
            let symlink = made.object.unwrap().0.to_vec();
            for by_chunk in [true, false] {
                let chunks = if by_chunk { Chunks::write(buffer(&pair, 4096)) } else { Chunks::default() };
                let finished = pair.call(&ReadlinkArguments { symlink: Handle(&symlink) }, chunks);
                let ok = finished.reply::<ReadlinkArguments<'_>>().unwrap().unwrap();
                let found: Vec<u8> = finished.octets(&ok.path.0).flatten().copied().collect();
                assert_eq!(found, target);
            }
        }
    }
    // Too long for the store.
    let place = DirectoryName { directory: Handle(&root), name: Name(b"long") };
    let mut buf = buffer(&pair, 4096);
    buf.fill(b'x');
    let path = Path(Item::Reduced { index: 0, len: 4096 });
    let arguments = SymlinkArguments { place, attributes: SetAttributes::default(), path };
    let finished = pair.call(&arguments, Chunks::read(buf.share()));
    let failure = finished.reply::<SymlinkArguments<'_>>().unwrap().unwrap_err();
    assert_eq!(failure.status, Status::NameTooLong);
}

/// The last pages are for data that comes: a path that goes to a Write chunk takes none of them, and its client asks again.
#[test]
fn a_link_that_is_read_leaves_the_last_pages_to_writes() {
    let mut pair = Pair::new(&["/data,root_squash=no"]);
    let root = pair.root.clone();
    let place = DirectoryName { directory: Handle(&root), name: Name(b"link") };
    let path = Path(Item::Inline(b"target"));
    let arguments = SymlinkArguments { place, attributes: SetAttributes::default(), path };
    let symlink = pair.ask(arguments, |reply| reply.unwrap().object.unwrap().0.to_vec());
    let read = |pair: &mut Pair| {
        let chunks = Chunks::write(buffer(pair, 4096));
        let finished = pair.call(&ReadlinkArguments { symlink: Handle(&symlink) }, chunks);
        let reply = finished.reply::<ReadlinkArguments<'_>>().unwrap();
        reply.map(drop).map_err(|failed| failed.status)
    };
    let pool = pair.server.pools().payload.clone();
    let reserve = (pool.transit() / 16).min(128);
    let mut hoard: Vec<Buf> = Vec::new();
    while pool.transit_free() > reserve + 1 {
        hoard.extend(pool.take());
    }
    assert_eq!(read(&mut pair), Ok(()));
    hoard.extend(pool.take());
    assert_eq!((read(&mut pair), pool.transit_free()), (Err(Status::Jukebox), reserve));
    drop(hoard);
    assert_eq!(read(&mut pair), Ok(()));
}

/// RFC 1813 3.3.7: the count is that of the data.
#[test]
fn a_write_whose_count_is_not_its_data_is_invalid() {
    let mut pair = Pair::new(&["/data,root_squash=no"]);
    let root = pair.root.clone();
    let file = pair.create(&root, b"f");
    for count in [0, 2, 4] {
        let data = Data(Item::Inline(b"abc"));
        let arguments =
            WriteArguments { file: Handle(&file), offset: 0, count, stable: Stable::FileSync, data };
        let failure = pair.ask(arguments, |reply| reply.unwrap_err());
        assert_eq!((failure.status, failure.attributes.after.unwrap().size), (Status::Inval, 0));
    }
}

/// The server's memory is spent by files: NOSPC, nothing lost, and the server goes on.
#[test]
fn a_full_server_says_so() {
    let mut pair = Pair::new(&["/data,root_squash=no"]);
    let root = pair.root.clone();
    let file = pair.create(&root, b"f");
    let octets = pattern(1 << 18);
    let mut len = 0u64;
    let status = loop {
        match write(&mut pair, &file, len, &octets, true) {
            Ok(count) => len += u64::from(count),
            Err(status) => break status,
        }
        assert!(len < 1 << 30);
    };
    assert_eq!(status, Status::NoSpc);
    assert!(len >= 4 << 20, "{len}");
    for start in (0..len).step_by(octets.len()) {
        let count = (len - start).min(octets.len() as u64);
        let (found, _) = read(&mut pair, &file, start, count as u32, true);
        assert!(found == octets[..count as usize]);
    }
    assert_eq!(pair.memory_usage().bytes_free, 0);
}

/// A READ without a Write chunk copies its data into a Long Reply, which is as long as there is memory for.
#[test]
fn a_read_into_a_reply_chunk_takes_what_memory_there_is() {
    let mut pair = Pair::new(&["/data,root_squash=no"]);
    let root = pair.root.clone();
    let file = pair.create(&root, b"f");
    let octets = pattern(1 << 20);
    write(&mut pair, &file, 0, &octets, true).unwrap();
    let pool = pair.server.pools().payload.clone();
    let mut hoard: Vec<Buf> = Vec::new();
    while pool.transit_free() > pool.transit() / 4 {
        hoard.extend(pool.take());
    }
    let (mut at, mut calls) = (0, 0);
    while at < octets.len() {
        let (found, eof) = read(&mut pair, &file, at as u64, octets.len() as u32, false);
        assert!(!found.is_empty() && found == octets[at..at + found.len()]);
        at += found.len();
        assert_eq!(eof, at == octets.len());
        calls += 1;
    }
    assert!(calls > 1, "{calls}");
    // The memory of the last Reply is back when another Call was answered.
    read(&mut pair, &file, 0, 1, false);
    read(&mut pair, &file, 0, 1, false);
    // None at all: it waits as data does, and is told to come again.
    while pool.transit_free() > 0 {
        hoard.extend(pool.take());
    }
    let before = pair.world.now();
    let arguments = ReadArguments { file: Handle(&file), offset: 0, count: 1 << 20 };
    let finished = pair.call(&arguments, Chunks::default());
    let reply = finished.reply::<ReadArguments<'_>>().unwrap();
    assert_eq!(reply.map(drop).map_err(|failed| failed.status), Err(Status::Jukebox));
    assert!((2..4).contains(&(pair.world.now() - before).as_secs()));
    drop(hoard);
    let (found, eof) = read(&mut pair, &file, 0, octets.len() as u32, false);
    assert!(found == octets && eof);
}

/// What a client reads and writes counts for its export and for it, at once or later, at whichever engine the files are.
#[test]
fn octets_are_counted_by_export_and_by_client() {
    let mut pair = Pair::new(&["/data,root_squash=no", "/two,root_squash=no"]);
    let (first, user) = (pair.connection, 7);
    pair.client.provider_mut().set_user(user);
    let second = pair.client.connect("here").unwrap();
    let _established = pair.until(|pair| pair.client.connection_event());
    let roots = [pair.mnt(b"/data").unwrap(), pair.mnt(b"/two").unwrap()];
    let files = roots.map(|root| pair.create(&root, b"file"));
    for (connection, by_chunk, times) in [(first, true, 3), (second, false, 2)] {
        pair.connection = connection;
        for _ in 0..times {
            assert_eq!(write(&mut pair, &files[0], 0, &[1; 1000], by_chunk), Ok(1000));
            // What lies behind the end does not count.
            assert_eq!(read(&mut pair, &files[0], 900, 1000, by_chunk).0.len(), 100);
        }
        assert_eq!(write(&mut pair, &files[1], 0, &[1; 8], by_chunk), Ok(8));
    }
    let exports = pair.server.services_mut().0.exports().borrow();
    let of_export = |path: &str| {
        let share = exports.shares().iter().find(|share| share.export().path == path).unwrap();
        share.traffic()
    };
    assert_eq!(of_export("/data"), Traffic { read: 500, written: 5000 });
    assert_eq!(of_export("/two"), Traffic { read: 0, written: 16 });
    let clients = exports.clients_traffic();
    let of_user = |uid| clients.get(&TrafficClient::of(Some(&Peer::Process { pid: 0, uid, gid: 0 })));
    assert_eq!(of_user(user), Some(&Traffic { read: 200, written: 2008 }));
    assert_eq!(of_user(0), Some(&Traffic { read: 300, written: 3008 }));
    assert_eq!(clients.len(), 2, "{clients:?}");
}
