//! What `infiniband/verbs.h` defines as inline functions: calls through the operations of the device's driver.

#![allow(clippy::missing_safety_doc, reason = "as their manual pages say, which each has")]

use std::mem::offset_of;

use libc::c_int;

use crate::Verbs;
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

/// Asks for a device's attributes, those that came after `ibv_query_device` too; of a driver that knows only that one, the rest
/// are zero. Returns 0 or an error number.
#[inline]
pub unsafe fn ibv_query_device_ex(
    verbs: &Verbs,
    context: *mut ibv_context,
    attributes: *mut ibv_device_attr_ex,
) -> c_int {
    // SAFETY: the caller's word: `context` is an open device.
    if let Some(context_around) = unsafe { extended(context) }
        // SAFETY: it reaches up to this field, as `extended` saw.
        && let Some(query) = unsafe { (*context_around).query_device_ex }
    {
        // SAFETY: the driver's own function, with arguments that the caller vouches for; no input is one that asks for
        // nothing special.
        let returned =
            unsafe { query(context, std::ptr::null(), attributes, size_of::<ibv_device_attr_ex>()) };
        if !matches!(returned, libc::EOPNOTSUPP | libc::ENOSYS) {
            return returned;
        }
    }
    // SAFETY: the structure is the caller's, and numbers, for which all zeros is a value.
    unsafe { attributes.write_bytes(0, 1) };
    // SAFETY: as above; the old structure is in the new one.
    unsafe { (verbs.ibv_query_device)(context, &raw mut (*attributes).orig_attr) }
}

/// What `abi_compat` of a device says whose `ibv_context` is the end of a `verbs_context`.
pub const VERBS_ABI_IS_EXTENDED: *mut libc::c_void = std::ptr::without_provenance_mut(usize::MAX);

/// The structure around a device's context, if there is one, and if it reaches up to `query_device_ex`: it grows at its
/// front, so an older library's begins further down.
unsafe fn extended(context: *mut ibv_context) -> Option<*mut verbs_context> {
    // SAFETY: the caller's word: an open device.
    if unsafe { (*context).abi_compat } != VERBS_ABI_IS_EXTENDED {
        return None;
    }
    // What it has behind the start of that field, at least.
    const REACH: usize = size_of::<verbs_context>() - offset_of!(verbs_context, query_device_ex);
    // Of an older library it begins before what there is: only fields that `sz` says are there may be read.
    let extended = context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
    // SAFETY: the mark says that `context` is the end of one, and `sz` stands right before it, whatever the library's age.
    (unsafe { (*extended).sz } >= REACH).then_some(extended)
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
