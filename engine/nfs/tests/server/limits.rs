//! Limits of exports in octets per second, in virtual time.

use std::time::Duration;

use stag_nfs::client::FinishedCall;
use stag_rpc::{Chunks, ConnectionEvent, ConnectionId};
use stag_runtime::Poller;
use stag_wire::nfs3::{Data, GetattrArguments, Handle, ReadArguments, Stable, Status, WriteArguments};
use stag_wire::xdr::Item;

use super::pair::Pair;
use super::transfers::write;

const MIB: u64 = 1 << 20;

/// Octets of each transfer.
const LEN: u32 = 64 << 10;

/// What a bucket has at first: the largest transfer, at the rates of these tests.
const BURST: u64 = MIB;

/// Transfers that each load has under way.
const WINDOW: u64 = 4;

/// What a client does all the time.
#[derive(Clone)]
struct Load {
    connection: ConnectionId,
    file: Vec<u8>,
    writes: bool,
}

impl Load {
    fn begin(&self, pair: &mut Pair, number: u64) {
        pair.connection = self.connection;
        let mut buf = pair.client.pools().payload.take_len(LEN as usize).unwrap();
        if self.writes {
            buf.fill(7);
            let data = Data(Item::Reduced { index: 0, len: LEN });
            let file = Handle(&self.file[..]);
            let arguments = WriteArguments { file, offset: 0, count: LEN, stable: Stable::Unstable, data };
            pair.begin(&arguments, Chunks::read(buf.share()), number);
        } else {
            let arguments = ReadArguments { file: Handle(&self.file), offset: 0, count: LEN };
            pair.begin(&arguments, Chunks::write(buf), number);
        }
    }
}

/// A file with data for one READ.
fn make_file(pair: &mut Pair, path: &[u8], name: &[u8]) -> Vec<u8> {
    let root = pair.mnt(path).unwrap();
    let file = pair.create(&root, name);
    write(pair, &file, 0, &vec![1; LEN as usize], true).unwrap();
    // What that took is paid.
    wait(pair, Duration::from_secs(1));
    file
}

fn wait(pair: &mut Pair, time: Duration) {
    let end = pair.world.now() + time;
    pair.until(|pair| {
        if pair.world.next_event().is_none_or(|next| next > end) {
            pair.world.advance_to(end);
        }
        (pair.world.now() >= end).then_some(())
    });
}

/// Another connection, of a user, who is a client of its own.
pub(crate) fn connect(pair: &mut Pair, user: u32) -> ConnectionId {
    pair.client.provider_mut().set_user(user);
    let connection = pair.client.connect("here").unwrap();
    let event = pair.until(|pair| pair.client.connection_event());
    assert_eq!(event, ConnectionEvent::Established { connection });
    connection
}

/// Keeps these loads going for a time. Returns the octets of each that were answered in it.
fn drive(pair: &mut Pair, loads: &[Load], time: Duration) -> Vec<u64> {
    let end = pair.world.now() + time;
    let (mut done, mut left) = (vec![0; loads.len()], 0);
    for (number, load) in loads.iter().enumerate() {
        for _ in 0..WINDOW {
            load.begin(pair, number as u64);
            left += 1;
        }
    }
    while left > 0 {
        let completed = pair.until(|pair| pair.client.completed());
        assert!(completed.result.is_ok(), "{:?}", completed.result);
        left -= 1;
        if pair.world.now() <= end {
            let number = completed.user as usize;
            done[number] += u64::from(LEN);
            loads[number].begin(pair, completed.user);
            left += 1;
        }
    }
    done
}

/// Whether octets are what the rate gives in a time, within 5 %, and the burst.
fn check_rate(octets: u64, rate: u64, time: Duration) {
    let expected = rate * time.as_millis() as u64 / 1000 + BURST;
    assert!(octets.abs_diff(expected) * 20 <= expected, "{octets} octets, and not {expected}");
}

const TIME: Duration = Duration::from_secs(4);

#[test]
fn reads_and_writes_keep_the_limit_of_their_export() {
    let mut pair = Pair::new(&["/data,root_squash=no,rate=8388608"]);
    let file = make_file(&mut pair, b"/data", b"file");
    let connection = pair.connection;
    let load = |writes| Load { connection, file: file.clone(), writes };
    for loads in [vec![load(false)], vec![load(true)], vec![load(false), load(true)]] {
        let done = drive(&mut pair, &loads, TIME);
        check_rate(done.iter().sum(), 8 * MIB, TIME);
        wait(&mut pair, Duration::from_secs(1));
    }
}

/// A client that has its part of the places is told to try again, and what waits already is answered (RFC 1813 section 2.6).
#[test]
fn a_full_queue_of_a_limit_says_try_again() {
    let mut pair = Pair::new(&["/data,root_squash=no,rate=8388608"]);
    let file = make_file(&mut pair, b"/data", b"file");
    pair.server.services_mut().0.exports().borrow_mut().set_limited_max(4);
    let load = Load { connection: pair.connection, file, writes: false };
    let passes = BURST / u64::from(LEN);
    let count = passes + 6;
    for number in 0..count {
        load.begin(&mut pair, number);
    }
    let mut refused = 0;
    for _ in 0..count {
        let reply = FinishedCall::new(pair.until(|pair| pair.client.completed()));
        if let Err(failure) = reply.reply::<ReadArguments<'_>>().unwrap() {
            assert_eq!(failure.status, Status::Jukebox);
            refused += 1;
        }
    }
    assert_eq!(refused, 4, "alone it has half of the places");
    load.begin(&mut pair, 0);
    let reply = FinishedCall::new(pair.until(|pair| pair.client.completed()));
    assert!(reply.reply::<ReadArguments<'_>>().unwrap().is_ok());
}

/// Inline data counts as well, and what is at the end of a file is what a READ takes.
#[test]
fn short_transfers_count_by_their_octets() {
    let mut pair = Pair::new(&["/data,root_squash=no,rate=65536"]);
    let root = pair.root.clone();
    let file = pair.create(&root, b"file");
    let begin = pair.world.now();
    let mut written = 0;
    while written < 3 * MIB / 2 {
        written += u64::from(write(&mut pair, &file, written, &[1; 65_536], true).unwrap());
    }
    let took = pair.world.now() - begin;
    // Half a MiB beyond the burst, at 64 KiB a second.
    assert!(took >= Duration::from_millis(7000) && took <= Duration::from_millis(8500), "{took:?}");
}

#[test]
fn an_export_without_a_limit_and_metadata_do_not_wait() {
    let mut pair = Pair::new(&["/data,root_squash=no,rate=1048576", "/free,root_squash=no"]);
    let file = make_file(&mut pair, b"/data", b"file");
    let free = make_file(&mut pair, b"/free", b"file");
    let connection = pair.connection;
    let limited = Load { connection, file: file.clone(), writes: false };
    for number in 0..32 {
        limited.begin(&mut pair, number);
    }
    // They wait for 16 of 64 KiB each, beyond the burst: a second. Meanwhile others are answered.
    let begin = pair.world.now();
    for _ in 0..20 {
        let load = Load { connection, file: free.clone(), writes: true };
        load.begin(&mut pair, 100);
        pair.begin(&GetattrArguments { object: Handle(&file) }, Chunks::default(), 101);
        let mut own = 0;
        while own < 2 {
            let completed = pair.until(|pair| pair.client.completed());
            own += u32::from(completed.user >= 100);
        }
    }
    let took = pair.world.now() - begin;
    assert!(took < Duration::from_millis(500), "{took:?}");
    wait(&mut pair, Duration::from_secs(2));
}

#[test]
fn clients_of_one_limit_have_equal_parts() {
    let mut pair = Pair::new(&["/data,root_squash=no,rate=8388608"]);
    let file = make_file(&mut pair, b"/data", b"file");
    let (one, two) = (pair.connection, connect(&mut pair, 7));
    let load = |connection, writes| Load { connection, file: file.clone(), writes };
    // The first has three times as many under way.
    let loads = [load(one, false), load(one, false), load(one, true), load(two, false)];
    let done = drive(&mut pair, &loads, TIME);
    check_rate(done.iter().sum(), 8 * MIB, TIME);
    let parts = [done[..3].iter().sum::<u64>(), done[3]];
    assert!(parts[0].abs_diff(parts[1]) <= 2 * MIB, "{parts:?}");
}

#[test]
fn each_client_has_its_own_limit() {
    let mut pair = Pair::new(&["/data,root_squash=no,client_rate=4194304"]);
    let file = make_file(&mut pair, b"/data", b"file");
    let (one, two) = (pair.connection, connect(&mut pair, 7));
    let load = |connection, writes| Load { connection, file: file.clone(), writes };
    let done = drive(&mut pair, &[load(one, false), load(two, false), load(two, true)], TIME);
    check_rate(done[0], 4 * MIB, TIME);
    check_rate(done[1] + done[2], 4 * MIB, TIME);
}

/// A limit that changes holds at once, also for what waits; one that is lifted lets all go.
#[test]
fn a_limit_changes_while_calls_wait() {
    let mut pair = Pair::new(&["/data,root_squash=no,rate=65536"]);
    let file = make_file(&mut pair, b"/data", b"file");
    wait(&mut pair, Duration::from_secs(20));
    let load = Load { connection: pair.connection, file, writes: false };
    for number in 0..40 {
        load.begin(&mut pair, number);
    }
    wait(&mut pair, Duration::from_millis(10));
    assert!(pair.change_export("/data,root_squash=no,rate=67108864"));
    let begin = pair.world.now();
    (0..40).for_each(|_| _ = pair.until(|pair| pair.client.completed()));
    assert!(pair.world.now() - begin < Duration::from_millis(200));
    assert!(pair.change_export("/data,root_squash=no"));
    let done = drive(&mut pair, &[load], Duration::from_millis(20));
    assert!(done[0] > 2 * MIB, "{done:?}");
}

/// What a client has waiting ends with its connection, and takes nothing from others.
#[test]
fn a_client_that_disappears_leaves_nothing() {
    let mut pair = Pair::new(&["/data,root_squash=no,rate=1048576"]);
    let file = make_file(&mut pair, b"/data", b"file");
    wait(&mut pair, Duration::from_secs(2));
    let (one, two) = (pair.connection, connect(&mut pair, 7));
    for number in 0..40 {
        Load { connection: two, file: file.clone(), writes: false }.begin(&mut pair, number);
    }
    wait(&mut pair, Duration::from_millis(1));
    assert!(pair.waiting() >= 20, "{}", pair.waiting());
    pair.client.disconnect(two);
    pair.until(|pair| {
        matches!(pair.client.connection_event()?, ConnectionEvent::Closed { .. }).then_some(())
    });
    wait(&mut pair, Duration::from_millis(10));
    while pair.client.completed().is_some() {}
    // Those that were carried to another engine run when their turn comes.
    let left = pair.waiting();
    assert!(super::IS_CARRIED || left == 0, "{left}");
    let load = Load { connection: one, file, writes: false };
    let done = drive(&mut pair, &[load], TIME);
    // Of the burst there is nothing left.
    assert!(done[0] + left * u64::from(LEN) >= 4 * MIB - MIB / 2, "{done:?}");
    assert_eq!(pair.waiting(), 0);
}

/// A server that stops answers what waits first.
#[test]
fn a_stop_waits_for_those_that_wait() {
    let mut pair = Pair::new(&["/data,root_squash=no,rate=1048576"]);
    let file = make_file(&mut pair, b"/data", b"file");
    let connection = pair.connection;
    for number in 0..24 {
        Load { connection, file: file.clone(), writes: number % 2 == 0 }.begin(&mut pair, number);
    }
    wait(&mut pair, Duration::from_millis(1));
    assert!(pair.waiting() > 0);
    let now = pair.world.now();
    pair.stop_server(now);
    for _ in 0..24 {
        let completed = pair.until(|pair| pair.client.completed());
        assert!(completed.result.is_ok(), "{:?}", completed.result);
    }
    pair.client.disconnect(connection);
    pair.until(|pair| pair.server.is_drained().then_some(()));
}

/// An export that is removed holds nothing back: its files are stale.
#[test]
fn what_waits_for_an_export_that_is_removed_ends() {
    let mut pair = Pair::new(&["/data,root_squash=no,rate=65536", "/other"]);
    let file = make_file(&mut pair, b"/data", b"file");
    wait(&mut pair, Duration::from_secs(20));
    for number in 0..24 {
        Load { connection: pair.connection, file: file.clone(), writes: false }.begin(&mut pair, number);
    }
    wait(&mut pair, Duration::from_millis(1));
    let _ = pair.remove_export("/data");
    let begin = pair.world.now();
    (0..24).for_each(|_| _ = pair.until(|pair| pair.client.completed()));
    assert!(pair.world.now() - begin < Duration::from_millis(50));
    assert_eq!(pair.waiting(), 0);
}
