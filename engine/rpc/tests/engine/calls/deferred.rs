//! Answers that other threads make.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stag_rpc::{CallError, CallId, Chunks, Deferred};
use stag_runtime::Poller;

use crate::support::program::{DEFER, DEFER_ONCE, LATER, NEVER};
use crate::support::{Bench, bytes, error, request};

/// A Call that waits for its Deferred.
fn deferred(bench: &mut Bench, procedure: u32) -> (CallId, Deferred) {
    let call = bench.begin(0, request(procedure), Chunks::default(), |_| Ok(())).expect("a credit");
    bench.run(|bench| !bench.server.engine.services_mut().0.deferred.is_empty());
    (call, bench.server.engine.services_mut().0.deferred.pop().expect("just seen"))
}

/// Whether the engine's descriptors become readable in a time that is long on any machine.
fn wakes(bench: &Bench) -> bool {
    let mut descriptors = Vec::new();
    bench.server.engine.descriptors(&mut descriptors);
    // SAFETY: the engine has them open as long as it lives, and it is borrowed here.
    let borrow = |fd: &RawFd| unsafe { BorrowedFd::borrow_raw(*fd) };
    let borrowed: Vec<_> = descriptors.iter().map(borrow).collect();
    let mut entries: Vec<_> = borrowed.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    poll(&mut entries, Some(&Timespec { tv_sec: 20, tv_nsec: 0 })).expect("they are open") > 0
}

#[test]
fn an_answer_of_another_thread_wakes_the_reactor() {
    let mut bench = Bench::new();
    let (call, deferred) = deferred(&mut bench, DEFER);
    while bench.pass() > 0 {}
    assert!(bench.server.engine.arm(), "there is nothing to do");
    let thread = thread::spawn(move || deferred.finish(|reply| reply.success(|writer| writer.u32(7))));
    assert!(wakes(&bench));
    bench.server.engine.disarm();
    thread.join().expect("it does not panic");
    assert_eq!(bytes(&bench.finish(0, call)), 7u32.to_be_bytes());

    // One that came before it sleeps keeps it awake.
    let (call, deferred) = self::deferred(&mut bench, DEFER);
    while bench.pass() > 0 {}
    deferred.finish(|reply| reply.success(|_| Ok(())));
    assert!(!bench.server.engine.arm());
    bench.server.engine.disarm();
    bench.finish(0, call);
    bench.close();
}

#[test]
fn a_service_is_told_of_sleep() {
    // So that it can arm a mailbox of its own, or object.
    let mut bench = Bench::new();
    while bench.pass() > 0 {}
    assert!(bench.server.engine.arm());
    assert!(bench.server.engine.services_mut().0.is_armed);
    bench.server.engine.disarm();
    assert!(!bench.server.engine.services_mut().0.is_armed);
    bench
        .begin(0, request(LATER), Chunks::default(), |writer| {
            writer.u64(NEVER)?;
            writer.opaque(b"")
        })
        .expect("a credit");
    bench.run(|bench| bench.server.engine.services_mut().0.kept() == 1);
    while bench.pass() > 0 {}
    assert!(!bench.server.engine.arm(), "the service objects");
    bench.server.engine.disarm();
    bench.server.engine.services_mut().0.release();
    bench.close();
}

#[test]
fn many_answers_in_any_order() {
    let mut bench = Bench::new();
    bench.check_alive(0);
    for _ in 0..20 {
        let calls: Vec<_> = (0..4)
            .map(|_| bench.begin(0, request(DEFER), Chunks::default(), |_| Ok(())).expect("a credit"))
            .collect();
        bench.run(|bench| bench.server.engine.services_mut().0.deferred.len() == 4);
        let mut all = std::mem::take(&mut bench.server.engine.services_mut().0.deferred);
        all.rotate_left(1);
        let threads: Vec<_> = (0..4u32)
            .zip(all)
            .map(|(number, deferred)| {
                thread::spawn(move || deferred.finish(move |reply| reply.success(|w| w.u32(number))))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
        for (at, call) in (0..4u32).zip(calls) {
            assert_eq!(bytes(&bench.finish(0, call)), ((at + 3) % 4).to_be_bytes());
        }
    }
    bench.close();
}

#[test]
fn a_thread_that_gives_up_is_a_system_error() {
    let mut bench = Bench::new();
    let (call, deferred) = deferred(&mut bench, DEFER);
    assert!(
        thread::spawn(move || {
            let _kept = deferred;
            panic!("on purpose");
        })
        .join()
        .is_err()
    );
    assert_eq!(error(&bench.finish(0, call)), CallError::SystemError);
    bench.close();
}

#[test]
fn an_answer_to_nobody() {
    // It does not even run, unless its Reply is kept for retransmissions (5531-e).
    let mut bench = Bench::new();
    bench.check_alive(0);
    let ran = Arc::new(AtomicU32::new(0));
    let waiting: Vec<_> = [DEFER, DEFER_ONCE]
        .map(|procedure| {
            let (_, deferred) = deferred(&mut bench, procedure);
            (deferred, ran.clone())
        })
        .into();
    bench.clients[0].engine.disconnect(bench.connections[0]);
    bench.run(|bench| bench.server.engine.connection_count() == 0);
    for (deferred, ran) in waiting {
        deferred.finish(move |reply| {
            ran.fetch_add(1, Ordering::Relaxed);
            reply.success(|_| Ok(()));
        });
    }
    while bench.pass() > 0 {}
    assert_eq!(ran.load(Ordering::Relaxed), 1);
    bench.check_left();
}
