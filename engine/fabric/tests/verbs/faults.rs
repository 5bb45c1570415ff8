//! Each function of the libraries fails, each work-completion status, each event of the connection manager and of the
//! device. Whatever fails, all buffers come back, every connection ends with a reason, and nothing of the libraries is left
//! over.

use std::time::Duration;

use stag_fabric::verbs::VerbsConfig;
use stag_fabric::{DisconnectReason, FabricError, Provider, SendRequest, WorkError};
use stag_rdma_core_sys as sys;

use crate::fake;
use crate::side::*;

#[test]
fn nothing_fails() {
    for kind in KINDS {
        kind.begin();
        let outcome = run(kind, |_| {});
        assert!(outcome.connected, "{kind:?}: {outcome:?}");
        assert_eq!(outcome.reasons.len(), 2);
        assert_eq!(fake::leaks(), [], "{kind:?}");
    }
}

#[test]
fn every_function_fails_at_every_call() {
    let functions = [
        "rdma_create_event_channel",
        "rdma_get_devices",
        "ibv_query_device",
        "ibv_query_port",
        "ibv_create_cq",
        "ibv_alloc_pd",
        "ibv_alloc_mw",
        "ibv_create_qp",
        "ibv_create_srq",
        "ibv_post_srq_recv",
        "ibv_reg_mr",
        "ibv_get_async_event",
        "ibv_modify_qp",
        "ibv_post_send",
        "ibv_post_recv",
        "ibv_poll_cq",
        "rdma_create_id",
        "rdma_bind_addr",
        "rdma_listen",
        "rdma_resolve_addr",
        "rdma_resolve_route",
        "rdma_create_qp",
        "rdma_connect",
        "rdma_accept",
        "rdma_disconnect",
        "rdma_get_cm_event",
        "rdma_set_option",
        "rdma_notify",
        "rdma_reject",
    ];
    for kind in KINDS {
        for function in functions {
            // A poll fails now and then, not each of thousands.
            let stride = if matches!(function, "ibv_poll_cq" | "rdma_get_cm_event") { 17 } else { 1 };
            for after in (0..).step_by(stride).take(40) {
                kind.begin();
                fake::fail(function, after, libc::ENOMEM);
                run(kind, |_| {});
                let was_met = fake::calls(function) > u64::from(after);
                fake::forgive();
                assert_eq!(fake::leaks(), [], "{kind:?}: call {after} of {function} failed");
                if !was_met {
                    break;
                }
            }
        }
    }
}

#[test]
fn every_status_of_a_send_and_of_a_receive() {
    for kind in KINDS {
        for is_receive in [false, true] {
            for status in 1..=24 {
                kind.begin();
                let outcome = run(kind, |when| {
                    if when == 1 {
                        fake::spoil(is_receive, status);
                    }
                });
                assert!(outcome.connected, "{outcome:?}");
                assert_eq!(outcome.reasons.len(), 2, "both sides are told");
                assert!(!outcome.errors.is_empty(), "{status} is an error");
                // The iWARP device is siw, of which more below.
                let may_be_loss = kind.is_iwarp && outcome.errors.contains("Device");
                if status != sys::IBV_WC_WR_FLUSH_ERR && !may_be_loss {
                    let is_why = |reason: &DisconnectReason| {
                        matches!(
                            reason,
                            DisconnectReason::Work(_)
                                | DisconnectReason::PeerDied
                                | DisconnectReason::PeerViolation(_)
                        )
                    };
                    assert!(outcome.reasons.iter().any(is_why), "{kind:?} {status}: {outcome:?}");
                }
                fake::forgive();
                assert_eq!(fake::leaks(), [], "{kind:?} {is_receive} {status}");
            }
        }
    }
}

/// siw calls a lost connection a failure of its own, in either of two ways, and if it was answering a Read, a fault of
/// the peer's request; the connection manager knows better.
#[test]
fn what_siw_calls_a_fault_may_be_a_lost_connection() {
    let events = [None, Some(sys::IBV_EVENT_QP_FATAL), Some(sys::IBV_EVENT_QP_REQ_ERR)];
    for kind in KINDS.into_iter().filter(|kind| !kind.shares) {
        for event in events {
            kind.begin();
            let outcome = run(kind, |when| match (when, event) {
                (1, Some(event)) => fake::async_event(event),
                (1, None) => fake::spoil(false, sys::IBV_WC_LOC_QP_OP_ERR),
                (2, _) => fake::cm_event(sys::RDMA_CM_EVENT_DISCONNECTED, 0),
                _ => {}
            });
            let is_fault = outcome.reasons.iter().any(|reason| {
                matches!(
                    reason,
                    DisconnectReason::Work(WorkError::Device) | DisconnectReason::PeerViolation(_)
                )
            });
            assert!(!is_fault || !kind.is_iwarp, "{kind:?}, by event {event:?}: {outcome:?}");
            // The test may be over before the event is looked at.
            assert!(is_fault || kind.is_iwarp || event.is_some(), "{kind:?}: {outcome:?}");
            fake::forgive();
            assert_eq!(fake::leaks(), [], "{kind:?}, by event {event:?}");
        }
    }
}

#[test]
fn every_event_of_the_connection_manager_at_any_time() {
    let kinds = (0..=17).filter(|&kind| kind != sys::RDMA_CM_EVENT_CONNECT_REQUEST);
    for event in kinds {
        for status in [0, 8, 28, -libc::ETIMEDOUT, -libc::ENODEV] {
            for then in [0, 1] {
                let kind = WINDOWS;
                kind.begin();
                let outcome = run(kind, |when| {
                    if when == then {
                        fake::cm_event(event, status);
                    }
                });
                assert!(outcome.opened);
                assert_eq!(fake::leaks(), [], "event {event}, status {status}, at {then}");
            }
        }
    }
}

#[test]
fn every_event_of_the_device() {
    for kind in KINDS {
        for event in 0..=20 {
            kind.begin();
            let outcome = run(kind, |when| {
                if when == 1 {
                    fake::async_event(event);
                }
            });
            assert!(outcome.connected, "{outcome:?}");
            assert_eq!(fake::leaks(), [], "{kind:?}: event {event}");
        }
    }
}

#[test]
fn a_device_goes_and_comes_back() {
    for kind in [WINDOWS, STANDING, SHARED] {
        kind.begin();
        let mut a = Side::new(kind.config(), CAPACITY).expect("a device");
        let mut b = Side::new(kind.config(), CAPACITY).expect("a device");
        b.verbs.listen("127.0.0.1:20049").expect("the address is free");
        let mut now = Duration::ZERO;
        for round in 0..3 {
            a.pair = a.verbs.connect("127.0.0.1:20049", b"", CAPACITY).ok();
            a.receive();
            for _ in 0..60 {
                now += TICK;
                a.poll(now);
                b.poll(now);
            }
            assert!(a.is_up && b.is_up, "{kind:?}, round {round}");
            fake::with(|world| world.has_device = false);
            fake::cm_event(sys::RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
            while a.pair.is_some() || b.pair.is_some() {
                now += TICK;
                a.poll(now);
                b.poll(now);
            }
            assert_eq!(a.ended.pop(), Some(DisconnectReason::DeviceRemoved));
            assert_eq!(a.verbs.device(), None);
            let refused = a.verbs.connect("127.0.0.1:20049", b"", CAPACITY).expect_err("there is no device");
            assert!(matches!(refused, FabricError::Gone(_)), "{refused}");
            assert_eq!(a.pool.outstanding() + b.pool.outstanding(), 0);
            fake::with(|world| world.has_device = true);
            while a.verbs.device().is_none() || b.verbs.device().is_none() {
                now += Duration::from_millis(1);
                a.poll(now);
                b.poll(now);
            }
        }
        drop((a, b));
        assert_eq!(fake::leaks(), []);
    }
}

/// A provider without connections gets no event. And a driver may wait until every provider closed the
/// device.
#[test]
fn a_device_that_left_sysfs_is_let_go_by_the_last_who_had_it() {
    REGIONS.begin();
    let path = std::env::temp_dir().join(format!("stag-verbs-{}", std::process::id()));
    std::fs::create_dir(&path).expect("a folder");
    fake::with(|world| world.set_path(path.to_str().expect("UTF-8")));
    {
        let mut a = Side::new(REGIONS.config(), CAPACITY).expect("a device");
        let mut b = Side::new(REGIONS.config(), CAPACITY).expect("a device");
        let mut now = Duration::ZERO;
        a.poll(now);
        b.poll(now);
        assert!(a.verbs.poll_timeout().is_some(), "who sleeps wakes up to look");
        std::fs::remove_dir(&path).expect("it is there");
        fake::with(|world| world.has_device = false);
        let held = fake::with(|world| world.descriptors());
        for side in [&mut a, &mut b] {
            assert_eq!(fake::with(|world| world.descriptors()), held, "the other still has it");
            for _ in 0..2000 {
                now += Duration::from_millis(1);
                side.poll(now);
            }
            assert_eq!(side.verbs.device(), None);
        }
        assert_eq!(fake::with(|world| world.descriptors()), ["/dev/null", "/dev/null"]);
    }
    assert_eq!(fake::leaks(), []);
}

/// The end of a registration fails: then the memory is not given back before the queue pair is gone.
#[test]
fn a_fence_that_fails_ends_the_connection() {
    let kind = REGIONS;
    kind.begin();
    let mut was_pending = false;
    let outcome = run(kind, |when| {
        if when == 1 {
            fake::fail("ibv_dereg_mr", 0, libc::EBUSY);
            was_pending = true;
        }
    });
    assert!(outcome.connected && was_pending);
    assert!(outcome.reasons.contains(&DisconnectReason::Work(WorkError::Device)), "{outcome:?}");
    assert_eq!(fake::leaks(), []);
}

/// A completion queue that broke is of no use to connections to come either: the device is opened anew.
#[test]
fn a_broken_completion_queue_is_replaced() {
    for may_sleep in [false, true] {
        WINDOWS.begin();
        let (mut a, mut b) = connected(&VerbsConfig { may_sleep, ..WINDOWS.config() }, CAPACITY);
        let queues = fake::calls("ibv_create_cq");
        fake::fail("ibv_poll_cq", 0, libc::EIO);
        if may_sleep {
            assert!(!a.verbs.arm(), "there is something to do");
        }
        pass(&mut a, &mut b, 20);
        assert_eq!(a.ended.pop(), Some(DisconnectReason::Work(WorkError::Device)));
        while a.verbs.device().is_none() {
            pass(&mut a, &mut b, 20);
        }
        assert_eq!(fake::calls("ibv_create_cq"), queues + 1);
        connect(&mut a, &mut b);
        drop((a, b));
        assert_eq!(fake::leaks(), []);
    }
}

/// Of several providers in a process one gets the event that the device failed. The others find the driver gone.
#[test]
fn a_driver_that_parted_from_the_device_is_noticed() {
    WINDOWS.begin();
    let (mut a, mut b) = connected(&WINDOWS.config(), CAPACITY);
    fake::fail("ibv_get_async_event", 0, libc::EIO);
    fake::async_event(sys::IBV_EVENT_CLIENT_REREGISTER);
    pass(&mut a, &mut b, 5);
    assert_eq!(a.verbs.device(), None);
    assert_eq!(a.ended.pop(), Some(DisconnectReason::DeviceRemoved));
    assert!(b.verbs.device().is_some());
    drop((a, b));
    assert_eq!(fake::leaks(), []);
}

/// libibverbs knows devices by netlink, and says where sysfs would have them; in a container it may have nothing.
#[test]
fn a_device_that_never_was_in_sysfs_did_not_leave_it() {
    WINDOWS.begin();
    fake::with(|world| world.set_path("/nowhere/sys/class/infiniband_verbs/uverbs0"));
    let (mut a, mut b) = connected(&WINDOWS.config(), CAPACITY);
    pass(&mut a, &mut b, 25_000);
    assert!(a.is_up && b.is_up, "for more than a second: {:?}", a.ended);
}

/// A machine that lost its power says nothing, and asks for nothing: only who asks it finds out. One that is only silent
/// answers, which costs its program nothing.
#[test]
fn a_silent_peer_is_asked_whether_it_is_there() {
    for kind in KINDS {
        for keep_alive in [Some(Duration::from_millis(20)), None] {
            kind.begin();
            let (mut a, mut b) = connected(&VerbsConfig { keep_alive, ..kind.config() }, CAPACITY);
            // Two look every 20 ms, and may see a message of before at first.
            pass(&mut a, &mut b, 4000);
            assert!(a.is_up && b.is_up);
            assert_eq!(
                (a.completions.len(), b.completions.len()),
                (0, 0),
                "no message, nothing for the user"
            );
            let asked = [a.verbs.counters().probes, b.verbs.counters().probes];
            let expected = if keep_alive.is_some() { 7..=10 } else { 0..=0 };
            assert!(asked.iter().all(|count| expected.contains(count)), "{kind:?}: {asked:?}");
            fake::spoil(false, sys::IBV_WC_RETRY_EXC_ERR);
            pass(&mut a, &mut b, 2000);
            let is_noticed = [&a, &b].iter().any(|side| side.ended == [DisconnectReason::PeerDied]);
            assert_eq!(is_noticed, keep_alive.is_some(), "{kind:?}: {:?} {:?}", a.ended, b.ended);
            fake::forgive();
            drop((a, b));
            assert_eq!(fake::leaks(), []);
        }
    }
}

/// Who talks is not asked.
#[test]
fn a_peer_that_talks_is_not_asked() {
    WINDOWS.begin();
    let keep_alive = Some(Duration::from_millis(20));
    let (mut a, mut b) = connected(&VerbsConfig { keep_alive, ..WINDOWS.config() }, CAPACITY);
    for _ in 0..20 {
        let buf = a.buf(b"I am here");
        let request = SendRequest { id: 1, buf, invalidate: None, signaled: true };
        a.verbs.post_send(a.pair.expect("connected"), request).expect("within capacity");
        pass(&mut a, &mut b, 200);
        b.receive();
    }
    assert_eq!(b.verbs.counters().probes, 0);
    assert!(a.verbs.counters().probes > 0, "B says nothing");
}

/// Of several providers in a process the first that looks gets an event, whose ever it is.
#[test]
fn events_of_the_device_reach_whom_they_are_about() {
    WINDOWS.begin();
    let (mut a, mut b) = connected(&WINDOWS.config(), CAPACITY);
    // A looks first; the queue is B's.
    fake::last_queue_event(sys::IBV_EVENT_CQ_ERR);
    pass(&mut a, &mut b, 2);
    assert!(a.verbs.device().is_some() && b.verbs.device().is_none());
    assert_eq!(b.ended.pop(), Some(DisconnectReason::DeviceRemoved));
    pass(&mut a, &mut b, 11_000);
    assert_eq!(a.ended.pop(), Some(DisconnectReason::Peer));
    connect(&mut a, &mut b);
    // An event without an owner goes to every provider.
    fake::async_event(sys::IBV_EVENT_DEVICE_FATAL);
    pass(&mut a, &mut b, 2);
    assert!(a.verbs.device().is_none() && b.verbs.device().is_none());
    drop((a, b));
    assert_eq!(fake::leaks(), []);
}
