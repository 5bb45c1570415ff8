//! Limits of exports in octets per second, in virtual time; and what is counted of them.

use std::time::Duration;

use stag_nfs::server::Traffic;
use stag_wire::nfs4::Status4;

use super::Lab;
use super::files::{getattr, put};
use super::state::{BOTH, read, write};

const MIB: u64 = 1 << 20;

/// Octets of each transfer.
const LEN: u32 = 64 << 10;

/// The time of what `act` does.
fn timed(lab: &mut Lab, mut act: impl FnMut(&mut Lab)) -> Duration {
    // What was taken before is paid.
    lab.wait(Duration::from_secs(2));
    let begin = lab.pair.world.now();
    act(lab);
    lab.pair.world.now() - begin
}

/// Whether a time is what octets take at 4 MiB a second beyond the burst, within 5 %.
fn check_time(took: Duration, octets: u64) {
    let expected = Duration::from_micros((octets - MIB) * 1_000_000 / (4 * MIB));
    assert!(took.abs_diff(expected) * 20 <= expected, "{took:?}, and not {expected:?}");
}

#[test]
fn reads_and_writes_keep_the_limit_of_their_export() {
    let mut lab = Lab::new(&["/data,root_squash=no,rate=4194304"]);
    let file = lab.make_file(b"file");
    let state = lab.open_at(&file, BOTH);
    let data: Vec<u8> = (0..LEN).map(|at| (at / 3) as u8).collect();
    let took = timed(&mut lab, |lab| {
        for _ in 0..80 {
            assert_eq!(lab.write_by_chunk(&file, state, 0, &data), Ok(LEN));
        }
    });
    check_time(took, 80 * u64::from(LEN));
    let took = timed(&mut lab, |lab| {
        for _ in 0..80 {
            let (octets, _) = lab.octets(&file, read(state, 0, LEN), Some(LEN as usize)).unwrap();
            assert!(octets == data);
        }
    });
    check_time(took, 80 * u64::from(LEN));
}

/// Each operation of a COMPOUND waits for itself, whatever comes before and after it, and runs once.
#[test]
fn operations_of_a_compound_wait_each() {
    let mut lab = Lab::new(&["/data,root_squash=no,client_rate=65536"]);
    let file = lab.make_file(b"file");
    let state = lab.open_at(&file, BOTH);
    let data = [7; 1024];
    for _ in 0..MIB / u64::from(LEN) {
        lab.write_by_chunk(&file, state, 0, &vec![7; LEN as usize]).unwrap();
    }
    let begin = lab.pair.world.now();
    let attributes = getattr(&[]);
    let all = [
        put(&file),
        write(state, 0, &data),
        attributes,
        read(state, 0, 512),
        read(state, 512, 512),
        write(state, 1024, &data),
        attributes,
    ];
    lab.compound(&all, |status, outcomes| {
        assert_eq!((status, outcomes.len()), (Status4::Ok, all.len()));
    });
    let took = lab.pair.world.now() - begin;
    // The burst is used up, and 3 KiB take 47 ms.
    assert!(took >= Duration::from_millis(44) && took <= Duration::from_millis(50), "{took:?}");
}

/// Without a place to wait for its limit, a READ is told to try again (8881-15.1.1.3).
#[test]
fn a_full_queue_of_a_limit_says_try_again() {
    let mut lab = Lab::new(&["/data,root_squash=no,client_rate=65536"]);
    let file = lab.make_file(b"file");
    let state = lab.open_at(&file, BOTH);
    for _ in 0..MIB / u64::from(LEN) {
        lab.write_by_chunk(&file, state, 0, &vec![7; LEN as usize]).unwrap();
    }
    let set_max = |lab: &mut Lab, most| {
        lab.pair.server.services_mut().0.exports().borrow_mut().set_limited_max(most);
    };
    set_max(&mut lab, 0);
    let all = [put(&file), read(state, 0, 512)];
    lab.compound(&all, |status, outcomes| assert_eq!((status, outcomes.len()), (Status4::Delay, 2)));
    set_max(&mut lab, 1);
    lab.compound(&all, |status, _| assert_eq!(status, Status4::Ok));
}

/// READ and WRITE of version 4 count for their export and for their client, at once or later.
#[test]
fn octets_are_counted_by_export_and_by_client() {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let file = lab.make_file(b"file");
    let state = lab.open_at(&file, BOTH);
    let counted = |lab: &mut Lab| {
        let exports = lab.pair.server.services_mut().0.exports().borrow();
        let mut clients = Traffic::default();
        exports.clients_traffic().into_values().for_each(|moved| clients += moved);
        (exports.shares()[0].traffic(), clients)
    };
    let (before, _) = counted(&mut lab);
    assert_eq!(lab.write_by_chunk(&file, state, 0, &[7; 3000]), Ok(3000));
    lab.compound(&[put(&file), write(state, 0, &[7; 100])], |status, _| assert_eq!(status, Status4::Ok));
    for by_chunk in [None, Some(1000)] {
        let (octets, _) = lab.octets(&file, read(state, 2500, 1000), by_chunk).unwrap();
        assert_eq!(octets.len(), 500);
    }
    let (export, clients) = counted(&mut lab);
    assert_eq!((export.read - before.read, export.written - before.written), (1000, 3100));
    assert_eq!(export, clients);
}
