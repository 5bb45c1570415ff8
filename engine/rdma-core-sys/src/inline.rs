//! What `infiniband/verbs.h` defines as inline functions: calls through the operations of the device's driver.

#![allow(clippy::missing_safety_doc, reason = "as their manual pages say, which each has")]

use libc::c_int;

use crate::types::*;

/// Posts a list of send work requests. Returns 0 or an error number; then `bad_wr` is the first that was not posted.
#[inline]
pub unsafe fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the caller's word: `qp` is a queue pair, whose context outlives it.
    match unsafe { (*(*qp).context).ops.post_send } {
        // SAFETY: the driver's own function, with arguments that the caller vouches for.
        Some(post_send) => unsafe { post_send(qp, wr, bad_wr) },
        None => libc::EOPNOTSUPP,
    }
}

/// Posts a list of receive work requests. Returns 0 or an error number; then `bad_wr` is the first that was not posted.
#[inline]
pub unsafe fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: as in `ibv_post_send`.
    match unsafe { (*(*qp).context).ops.post_recv } {
        // SAFETY: as there.
        Some(post_recv) => unsafe { post_recv(qp, wr, bad_wr) },
        None => libc::EOPNOTSUPP,
    }
}

/// As `ibv_post_recv`, for a shared receive queue.
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's word: `srq` is a shared receive queue, whose context outlives it.
    match unsafe { (*(*srq).context).ops.post_srq_recv } {
        // SAFETY: the driver's own function, with arguments that the caller vouches for.
        Some(post_srq_recv) => unsafe { post_srq_recv(srq, wr, bad_wr) },
        None => libc::EOPNOTSUPP,
    }
}

/// Takes at most `num_entries` completions. Returns how many, or a negative number on failure.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's word: `cq` is a completion queue, whose context outlives it.
    match unsafe { (*(*cq).context).ops.poll_cq } {
        // SAFETY: the driver's own function, with arguments that the caller vouches for.
        Some(poll_cq) => unsafe { poll_cq(cq, num_entries, wc) },
        None => -1,
    }
}

/// Asks for an event on the completion queue's channel when the next completion comes. Returns 0 or an error number.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: as in `ibv_poll_cq`.
    match unsafe { (*(*cq).context).ops.req_notify_cq } {
        // SAFETY: as there.
        Some(req_notify_cq) => unsafe { req_notify_cq(cq, solicited_only) },
        None => libc::EOPNOTSUPP,
    }
}

/// Makes a memory window; null when there is none to be had.
#[inline]
pub unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, type_: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: the caller's word: `pd` is a protection domain, whose context outlives it.
    match unsafe { (*(*pd).context).ops.alloc_mw } {
        // SAFETY: the driver's own function, with arguments that the caller vouches for.
        Some(alloc_mw) => unsafe { alloc_mw(pd, type_) },
        None => std::ptr::null_mut(),
    }
}

/// Frees a memory window. Returns 0 or an error number.
#[inline]
pub unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the caller's word: `mw` is a memory window, whose context outlives it.
    match unsafe { (*(*mw).context).ops.dealloc_mw } {
        // SAFETY: the driver's own function, with arguments that the caller vouches for.
        Some(dealloc_mw) => unsafe { dealloc_mw(mw) },
        None => libc::EOPNOTSUPP,
    }
}

/// The next key of a memory window or region: only the last octet changes, and it wraps.
#[inline]
#[must_use]
pub const fn ibv_inc_rkey(rkey: u32) -> u32 {
    (rkey & 0xffff_ff00) | (rkey.wrapping_add(1) & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_octet_of_a_key_changes() {
        assert_eq!(ibv_inc_rkey(0x1234_5600), 0x1234_5601);
        assert_eq!(ibv_inc_rkey(0x1234_56ff), 0x1234_5600);
        assert_eq!(ibv_inc_rkey(u32::MAX), 0xffff_ff00);
    }
}
