//! Translates statuses of work completions, and events of the connection manager.

use std::io;

use stag_rdma_core_sys as sys;

use crate::{DisconnectReason, FabricError, WorkError};

/// This machine cannot, and here is why.
pub(super) fn unavailable(problem: String) -> FabricError {
    let problem = format!("{problem}. Without, iwarp:// goes to any machine, and shm:// within this one");
    FabricError::Unavailable { fabric: "verbs", problem }
}

/// What the kernel most likely means, where its words say little.
pub(super) fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        // Queues are memory that is locked, as arenas are.
        Some(libc::ENOMEM) => {
            " (ulimit -l shows the limit of locked memory, `stag doctor --for verbs` how to raise it)"
        }
        Some(libc::EAGAIN) => " (see rdma.max of the control group)",
        _ => "",
    }
}

/// What to look at where the connection manager does not take the address of a peer.
pub(super) fn address_hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EINVAL | libc::ENODEV | libc::EADDRNOTAVAIL | libc::ENETUNREACH | libc::EHOSTUNREACH) => {
            " (does a device lead there? `stag fabrics` lists them with their addresses)"
        }
        _ => "",
    }
}

/// Which side of a queue pair a completion is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    /// Sends, Writes, Reads, binds and invalidations.
    Send,
    /// Receives.
    Receive,
}

/// The error that a status is; `None` for success.
pub(super) fn work_error(queue: Queue, status: sys::ibv_wc_status) -> Option<WorkError> {
    Some(match (queue, status) {
        (_, sys::IBV_WC_SUCCESS) => return None,
        (_, sys::IBV_WC_WR_FLUSH_ERR) => WorkError::Flushed,
        // The Receive was too short for the message. rxe calls that a malformed Receive, which ours never are.
        (Queue::Receive, sys::IBV_WC_LOC_LEN_ERR | sys::IBV_WC_LOC_QP_OP_ERR) => WorkError::Length,
        // The peer's Receive does not go with our message; the second is rxe again.
        (Queue::Send, sys::IBV_WC_REM_INV_REQ_ERR | sys::IBV_WC_REM_OP_ERR) => WorkError::Length,
        (Queue::Send, sys::IBV_WC_REM_ACCESS_ERR | sys::IBV_WC_REM_INV_RD_REQ_ERR) => WorkError::RemoteAccess,
        (_, sys::IBV_WC_LOC_PROT_ERR) => WorkError::LocalProtection,
        (Queue::Send, sys::IBV_WC_LOC_ACCESS_ERR | sys::IBV_WC_MW_BIND_ERR) => WorkError::LocalProtection,
        (Queue::Send, sys::IBV_WC_RETRY_EXC_ERR | sys::IBV_WC_RESP_TIMEOUT_ERR) => WorkError::Unreachable,
        (Queue::Send, sys::IBV_WC_RNR_RETRY_EXC_ERR) => WorkError::ReceiverNotReady,
        (Queue::Send, sys::IBV_WC_REM_ABORT_ERR | sys::IBV_WC_BAD_RESP_ERR) => WorkError::PeerViolation,
        // A Receive fails in these ways because of what the peer sent or tried.
        (
            Queue::Receive,
            sys::IBV_WC_LOC_ACCESS_ERR
            | sys::IBV_WC_REM_INV_REQ_ERR
            | sys::IBV_WC_REM_ACCESS_ERR
            | sys::IBV_WC_REM_OP_ERR
            | sys::IBV_WC_REM_ABORT_ERR
            | sys::IBV_WC_REM_INV_RD_REQ_ERR
            | sys::IBV_WC_BAD_RESP_ERR,
        ) => WorkError::PeerViolation,
        // What is left is of the device or its driver, of fabrics that we do not use, or of the future.
        _ => WorkError::Device,
    })
}

/// Why the connection ends on such an error.
pub(super) fn disconnect_reason(error: WorkError) -> DisconnectReason {
    match error {
        WorkError::Unreachable => DisconnectReason::PeerDied,
        error => DisconnectReason::Work(error),
    }
}

/// InfiniBand's reason of a rejection: no listener on that port (`IB_CM_REJ_INVALID_SERVICE_ID`).
const REJECTED_INVALID_SERVICE_ID: libc::c_int = 8;
/// The other side gave up waiting (`IB_CM_REJ_TIMEOUT`).
const REJECTED_TIMEOUT: libc::c_int = 4;
/// The consumer said no (`IB_CM_REJ_CONSUMER_DEFINED`).
const REJECTED_CONSUMER_DEFINED: libc::c_int = 28;

/// Why set-up was refused. iWARP says the number of an error, InfiniBand a reason.
pub(super) fn rejection(status: libc::c_int, private_data: &[u8]) -> DisconnectReason {
    // InfiniBand pads with zeros.
    let end = private_data.iter().rposition(|&octet| octet != 0).map_or(0, |last| last + 1);
    let words = String::from_utf8_lossy(&private_data[..end]).into_owned();
    match status {
        REJECTED_INVALID_SERVICE_ID => DisconnectReason::NoListener,
        REJECTED_TIMEOUT => DisconnectReason::TimedOut,
        // siw says ECONNRESET for a rejection; a port without a listener has no words either.
        status if status == -libc::ECONNREFUSED && words.is_empty() => DisconnectReason::NoListener,
        status if status < 0 || status == REJECTED_CONSUMER_DEFINED => DisconnectReason::Rejected(words),
        status => DisconnectReason::Rejected(format!("the fabric refused the connection, reason {status}")),
    }
}

/// Why a connection that was being set up failed; `kind` is the event.
pub(super) fn setup_failure(kind: sys::rdma_cm_event_type, status: libc::c_int) -> DisconnectReason {
    match (kind, -status) {
        (_, libc::ECONNREFUSED) => DisconnectReason::NoListener,
        (_, libc::ETIMEDOUT) => DisconnectReason::TimedOut,
        (sys::RDMA_CM_EVENT_ADDR_ERROR, libc::ENODEV) => {
            DisconnectReason::Unreachable("no RDMA device leads to that address")
        }
        (sys::RDMA_CM_EVENT_ADDR_ERROR, _) => DisconnectReason::Unreachable("the address cannot be resolved"),
        (sys::RDMA_CM_EVENT_ROUTE_ERROR, _) => {
            DisconnectReason::Unreachable("there is no route to the address")
        }
        (sys::RDMA_CM_EVENT_UNREACHABLE, _) => DisconnectReason::TimedOut,
        _ => DisconnectReason::Unreachable("the connection manager could not set the connection up"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_a_meaning_and_only_success_is_none() {
        for queue in [Queue::Send, Queue::Receive] {
            for status in 0..64 {
                let error = work_error(queue, status);
                assert_eq!(error.is_none(), status == sys::IBV_WC_SUCCESS, "{queue:?} {status}");
                assert_eq!(error == Some(WorkError::Flushed), status == sys::IBV_WC_WR_FLUSH_ERR);
            }
        }
    }

    /// The reason decides the user's next step: a peer that is gone is dialled again, one that lies is not.
    #[test]
    fn statuses_say_whose_fault_it_is() {
        use WorkError::{
            Device, Length, LocalProtection, PeerViolation, ReceiverNotReady, RemoteAccess, Unreachable,
        };
        for (status, sent, received) in [
            (sys::IBV_WC_LOC_LEN_ERR, Device, Length),
            (sys::IBV_WC_LOC_PROT_ERR, LocalProtection, LocalProtection),
            (sys::IBV_WC_MW_BIND_ERR, LocalProtection, Device),
            (sys::IBV_WC_REM_INV_REQ_ERR, Length, PeerViolation),
            (sys::IBV_WC_REM_ACCESS_ERR, RemoteAccess, PeerViolation),
            (sys::IBV_WC_REM_OP_ERR, Length, PeerViolation),
            (sys::IBV_WC_RETRY_EXC_ERR, Unreachable, Device),
            (sys::IBV_WC_RNR_RETRY_EXC_ERR, ReceiverNotReady, Device),
            (sys::IBV_WC_REM_ABORT_ERR, PeerViolation, PeerViolation),
            (sys::IBV_WC_RESP_TIMEOUT_ERR, Unreachable, Device),
            (sys::IBV_WC_FATAL_ERR, Device, Device),
            (sys::IBV_WC_GENERAL_ERR, Device, Device),
        ] {
            assert_eq!(work_error(Queue::Send, status), Some(sent), "{status} of a Send");
            assert_eq!(work_error(Queue::Receive, status), Some(received), "{status} of a Receive");
        }
        assert_eq!(disconnect_reason(Unreachable), DisconnectReason::PeerDied);
        assert_eq!(disconnect_reason(ReceiverNotReady), DisconnectReason::Work(ReceiverNotReady));
    }

    #[test]
    fn rejections_are_told_apart() {
        use DisconnectReason::{NoListener, Rejected, TimedOut};
        assert_eq!(rejection(8, b""), NoListener);
        assert_eq!(rejection(-libc::ECONNREFUSED, b""), NoListener);
        assert_eq!(rejection(4, b"\0\0"), TimedOut);
        assert_eq!(rejection(28, b"no credits left\0\0\0"), Rejected("no credits left".to_owned()));
        assert_eq!(rejection(28, &[0; 148]), Rejected(String::new()));
        assert_eq!(rejection(-libc::ECONNRESET, b"full"), Rejected("full".to_owned()));
        assert!(matches!(rejection(28, &[0xff, 0xfe]), Rejected(_)), "not text, and no harm");
        assert!(matches!(rejection(10, b""), Rejected(why) if why.contains("10")));
    }
}
