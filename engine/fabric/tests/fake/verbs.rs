//! The device of the world: the functions of libibverbs.

use std::collections::VecDeque;
use std::ptr;

use stag_rdma_core_sys as sys;

use super::{Queue, Region, Request, Srq, Window, clear, eventfd, set_errno, with};

pub(super) extern "C" fn get_device_list(_count: *mut libc::c_int) -> *mut *mut sys::ibv_device {
    set_errno(libc::ENOSYS);
    ptr::null_mut()
}

pub(super) extern "C" fn free_device_list(_list: *mut *mut sys::ibv_device) {}

pub(super) extern "C" fn get_device_name(device: *mut sys::ibv_device) -> *const libc::c_char {
    // SAFETY: the world's device.
    unsafe { (&raw const (*device).name).cast() }
}

pub(super) extern "C" fn get_async_event(
    context: *mut sys::ibv_context,
    event: *mut sys::ibv_async_event,
) -> libc::c_int {
    with(|world| {
        if world.called("ibv_get_async_event").is_some() {
            return -1;
        }
        let Some(next) = world.async_events.pop_front() else {
            // SAFETY: the world's context.
            clear(unsafe { (*context).async_fd });
            set_errno(libc::EAGAIN);
            return -1;
        };
        world.born("unacknowledged device event");
        // SAFETY: the caller's event.
        unsafe { *event = next };
        0
    })
}

pub(super) extern "C" fn ack_async_event(_event: *mut sys::ibv_async_event) {
    with(|world| world.died("unacknowledged device event"));
}

pub(super) extern "C" fn query_device(
    _context: *mut sys::ibv_context,
    attributes: *mut sys::ibv_device_attr,
) -> libc::c_int {
    with(|world| {
        if let Some(error) = world.called("ibv_query_device") {
            return error;
        }
        // SAFETY: the caller's structure, of numbers.
        let attributes = unsafe { &mut *attributes };
        attributes.max_qp_wr = 1 << 20;
        attributes.max_sge = 6;
        attributes.max_cqe = 1 << 20;
        (attributes.max_srq, attributes.max_srq_wr) = if world.has_srq { (4, 1 << 10) } else { (0, 0) };
        attributes.max_qp_rd_atom = 4;
        attributes.max_qp_init_rd_atom = 4;
        if world.is_iwarp {
            // As siw does.
            attributes.vendor_id = 0x0062_6d74;
        }
        if world.has_windows {
            attributes.device_cap_flags = sys::IBV_DEVICE_MEM_WINDOW_TYPE_2B;
        }
        0
    })
}

pub(super) extern "C" fn query_device_ex(
    context: *mut sys::ibv_context,
    _input: *const sys::ibv_query_device_ex_input,
    attributes: *mut sys::ibv_device_attr_ex,
    len: usize,
) -> libc::c_int {
    let (error, (general, reliable)) = with(|world| (world.called("query_device_ex"), world.paging));
    if let Some(error) = error {
        return error;
    }
    assert_eq!(len, size_of::<sys::ibv_device_attr_ex>());
    // SAFETY: the caller's structure, of numbers.
    let attributes = unsafe { &mut *attributes };
    attributes.odp_caps.general_caps = u64::from(general);
    attributes.odp_caps.per_transport_caps.rc_odp_caps = reliable;
    query_device(context, &mut attributes.orig_attr)
}

pub(super) extern "C" fn query_port(
    _context: *mut sys::ibv_context,
    _port: u8,
    attributes: *mut sys::_compat_ibv_port_attr,
) -> libc::c_int {
    with(|world| {
        if let Some(error) = world.called("ibv_query_port") {
            return error;
        }
        // SAFETY: the provider passes a whole `ibv_port_attr`.
        let attributes = unsafe { &mut *attributes.cast::<sys::ibv_port_attr>() };
        attributes.state = sys::IBV_PORT_ACTIVE;
        attributes.max_msg_sz = 1 << 23;
        0
    })
}

pub(super) extern "C" fn query_gid(
    _context: *mut sys::ibv_context,
    _port: u8,
    _index: libc::c_int,
    _gid: *mut sys::ibv_gid,
) -> libc::c_int {
    libc::EOPNOTSUPP
}

pub(super) extern "C" fn alloc_pd(context: *mut sys::ibv_context) -> *mut sys::ibv_pd {
    with(|world| {
        if world.called("ibv_alloc_pd").is_some() {
            return ptr::null_mut();
        }
        world.born("protection domain");
        Box::into_raw(Box::new(sys::ibv_pd { context, handle: 0 }))
    })
}

pub(super) extern "C" fn dealloc_pd(pd: *mut sys::ibv_pd) -> libc::c_int {
    with(|world| {
        assert!(
            world.regions.values().all(|region| region.object.pd != pd),
            "regions go before their domain"
        );
        assert!(
            world.windows.values().all(|window| window.object.pd != pd),
            "windows go before their domain"
        );
        assert!(world.pairs.values().all(|pair| pair.object.pd != pd), "queue pairs go before their domain");
        world.died("protection domain");
    });
    // SAFETY: what `alloc_pd` gave out, once.
    drop(unsafe { Box::from_raw(pd) });
    0
}

pub(super) extern "C" fn reg_mr(
    pd: *mut sys::ibv_pd,
    addr: *mut libc::c_void,
    length: usize,
    access: libc::c_int,
) -> *mut sys::ibv_mr {
    with(|world| {
        if world.called("ibv_reg_mr").is_some() {
            return ptr::null_mut();
        }
        let key = world.key();
        // SAFETY: a C structure of numbers and pointers.
        let mut object: Box<sys::ibv_mr> = Box::new(unsafe { std::mem::zeroed() });
        (object.pd, object.addr, object.length, object.lkey, object.rkey) = (pd, addr, length, key, key);
        let raw = &raw mut *object;
        world.regions.insert(key, Region { object, access: access as sys::ibv_access_flags });
        world.born("memory region");
        raw
    })
}

pub(super) extern "C" fn dereg_mr(mr: *mut sys::ibv_mr) -> libc::c_int {
    with(|world| {
        if let Some(error) = world.called("ibv_dereg_mr") {
            return error;
        }
        // SAFETY: a region that is alive.
        let key = unsafe { (*mr).lkey };
        assert!(world.regions.remove(&key).is_some(), "a region is deregistered once");
        world.died("memory region");
        0
    })
}

pub(super) extern "C" fn alloc_mw(pd: *mut sys::ibv_pd, type_: sys::ibv_mw_type) -> *mut sys::ibv_mw {
    with(|world| {
        if world.called("ibv_alloc_mw").is_some() {
            return ptr::null_mut();
        }
        let rkey = world.key();
        // SAFETY: a domain that is alive.
        let context = unsafe { (*pd).context };
        let mut object = Box::new(sys::ibv_mw { context, pd, rkey, handle: 0, type_ });
        let raw = &raw mut *object;
        world.windows.insert(rkey >> 8, Window { object, rkey, bound: None });
        world.born("memory window");
        raw
    })
}

pub(super) extern "C" fn dealloc_mw(mw: *mut sys::ibv_mw) -> libc::c_int {
    with(|world| {
        // SAFETY: a window that is alive.
        let rkey = unsafe { (*mw).rkey };
        assert!(world.windows.remove(&(rkey >> 8)).is_some(), "a window is freed once");
        world.died("memory window");
        0
    })
}

pub(super) extern "C" fn create_comp_channel(context: *mut sys::ibv_context) -> *mut sys::ibv_comp_channel {
    with(|world| {
        if world.called("ibv_create_comp_channel").is_some() {
            return ptr::null_mut();
        }
        world.born("completion channel");
        Box::into_raw(Box::new(sys::ibv_comp_channel { context, fd: eventfd(), refcnt: 0 }))
    })
}

pub(super) extern "C" fn destroy_comp_channel(channel: *mut sys::ibv_comp_channel) -> libc::c_int {
    with(|world| world.died("completion channel"));
    // SAFETY: what `create_comp_channel` gave out, once.
    let channel = unsafe { Box::from_raw(channel) };
    // SAFETY: the channel's own descriptor.
    unsafe { libc::close(channel.fd) };
    0
}

pub(super) extern "C" fn create_cq(
    context: *mut sys::ibv_context,
    cqe: libc::c_int,
    _user: *mut libc::c_void,
    channel: *mut sys::ibv_comp_channel,
    vector: libc::c_int,
) -> *mut sys::ibv_cq {
    with(|world| {
        if world.called("ibv_create_cq").is_some() {
            return ptr::null_mut();
        }
        // SAFETY: an opened device.
        assert!((0..unsafe { (*context).num_comp_vectors }).contains(&vector), "vector {vector}");
        world.seen.vectors.insert(vector);
        // SAFETY: a C structure of numbers and pointers.
        let mut object: Box<sys::ibv_cq> = Box::new(unsafe { std::mem::zeroed() });
        (object.context, object.channel, object.cqe) = (context, channel, cqe);
        let raw = &raw mut *object;
        let queue = Queue { object, done: VecDeque::new(), is_armed: false, events: 0 };
        world.queues.insert(raw as usize, queue);
        world.last_queue = raw;
        world.born("completion queue");
        raw
    })
}

pub(super) extern "C" fn destroy_cq(cq: *mut sys::ibv_cq) -> libc::c_int {
    with(|world| {
        assert!(
            world.pairs.values().all(|pair| pair.object.send_cq != cq),
            "queue pairs go before their queue"
        );
        assert!(world.queues.remove(&(cq as usize)).is_some(), "a completion queue is destroyed once");
        world.died("completion queue");
        0
    })
}

pub(super) extern "C" fn get_cq_event(
    channel: *mut sys::ibv_comp_channel,
    cq: *mut *mut sys::ibv_cq,
    _user: *mut *mut libc::c_void,
) -> libc::c_int {
    with(|world| {
        let queue = world.queues.values_mut().find(|queue| queue.object.channel == channel);
        let Some(queue) = queue.filter(|queue| queue.events > 0) else {
            // SAFETY: a channel that is alive.
            clear(unsafe { (*channel).fd });
            set_errno(libc::EAGAIN);
            return -1;
        };
        queue.events -= 1;
        // SAFETY: the caller's pointer.
        unsafe { *cq = &raw mut *queue.object };
        world.born("unacknowledged completion event");
        0
    })
}

pub(super) extern "C" fn ack_cq_events(_cq: *mut sys::ibv_cq, count: libc::c_uint) {
    with(|world| (0..count).for_each(|_| world.died("unacknowledged completion event")));
}

pub(super) extern "C" fn create_srq(
    pd: *mut sys::ibv_pd,
    attributes: *mut sys::ibv_srq_init_attr,
) -> *mut sys::ibv_srq {
    with(|world| {
        if world.called("ibv_create_srq").is_some() {
            return ptr::null_mut();
        }
        // SAFETY: a C structure of numbers and pointers; the caller's attributes.
        let (mut object, depth): (Box<sys::ibv_srq>, u32) =
            unsafe { (Box::new(std::mem::zeroed()), (*attributes).attr.max_wr) };
        // SAFETY: a domain that is alive.
        (object.context, object.pd) = (unsafe { (*pd).context }, pd);
        let raw = &raw mut *object;
        world.srqs.insert(raw as usize, Srq { object, receives: VecDeque::new(), depth });
        world.born("shared receive queue");
        raw
    })
}

pub(super) extern "C" fn destroy_srq(srq: *mut sys::ibv_srq) -> libc::c_int {
    with(|world| {
        assert!(
            world.pairs.values().all(|pair| pair.object.srq != srq),
            "queue pairs go before what they share"
        );
        assert!(world.srqs.remove(&(srq as usize)).is_some(), "a shared receive queue is destroyed once");
        world.died("shared receive queue");
        0
    })
}

pub(super) extern "C" fn create_qp(
    pd: *mut sys::ibv_pd,
    attributes: *mut sys::ibv_qp_init_attr,
) -> *mut sys::ibv_qp {
    with(|world| {
        if world.called("ibv_create_qp").is_some() {
            return ptr::null_mut();
        }
        // SAFETY: the caller's attributes.
        let attributes = unsafe { &mut *attributes };
        // Some drivers refuse what is too much inline.
        if attributes.cap.max_inline_data > 100 {
            set_errno(libc::EINVAL);
            return ptr::null_mut();
        }
        world.new_pair(0, pd, attributes)
    })
}

pub(super) extern "C" fn modify_qp(
    qp: *mut sys::ibv_qp,
    attributes: *mut sys::ibv_qp_attr,
    _mask: libc::c_int,
) -> libc::c_int {
    with(|world| {
        if let Some(error) = world.called("ibv_modify_qp") {
            return error;
        }
        // SAFETY: the caller's attributes.
        if unsafe { (*attributes).qp_state } == sys::IBV_QPS_ERR {
            world.break_pair(qp);
        }
        0
    })
}

pub(super) extern "C" fn destroy_qp(qp: *mut sys::ibv_qp) -> libc::c_int {
    with(|world| world.drop_pair(qp));
    0
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut sys::ibv_qp,
    first: *mut sys::ibv_send_wr,
    bad: *mut *mut sys::ibv_send_wr,
) -> libc::c_int {
    with(|world| {
        if let Some(error) = world.called("ibv_post_send") {
            // SAFETY: the caller's pointer.
            unsafe { *bad = first };
            return error;
        }
        let mut at = first;
        while !at.is_null() {
            // SAFETY: the caller's list.
            let request = unsafe { Request::new(&*at) };
            let send = request.send;
            world.seen.note(&send);
            let pair = world.pairs.get_mut(&(qp as usize)).expect("alive");
            assert!((pair.sends.len() as u32) < pair.depth.0, "the send queue overran");
            if send.send_flags & sys::IBV_SEND_INLINE != 0 {
                assert!(request.octets.len() <= pair.inline_len as usize, "more inline than was agreed on");
            }
            if pair.is_broken {
                world.complete(qp as usize, send.wr_id, sys::IBV_WC_WR_FLUSH_ERR, 0, None);
            } else {
                if send.opcode == sys::IBV_WR_BIND_MW {
                    // SAFETY: the opcode says which field it is; the window is alive. The driver tells the device
                    // the key that it had.
                    let then = unsafe { (*send.__bindgen_anon_2.bind_mw.mw).rkey };
                    let window = world.windows.get(&(then >> 8)).expect("a window of the world");
                    assert_eq!(window.rkey, then, "a bind names the key that the window has");
                }
                pair.sends.push_back(request);
                let is_read = |request: &&Request| request.send.opcode == sys::IBV_WR_RDMA_READ;
                let reads = pair.sends.iter().chain(&pair.reads).filter(is_read).count();
                world.seen.reads_max = world.seen.reads_max.max(reads);
            }
            at = send.next;
        }
        0
    })
}

/// The list of Receives that is posted, each with its pieces.
///
/// # Safety
///
/// It is one.
unsafe fn receives_of(first: *mut sys::ibv_recv_wr) -> Vec<(u64, Vec<sys::ibv_sge>)> {
    let mut list = Vec::new();
    let mut at = first;
    while !at.is_null() {
        // SAFETY: the caller's list.
        let receive = unsafe { *at };
        let pieces = match receive.num_sge as usize {
            0 => Vec::new(),
            // SAFETY: as above.
            count => unsafe { std::slice::from_raw_parts(receive.sg_list, count) }.to_vec(),
        };
        list.push((receive.wr_id, pieces));
        at = receive.next;
    }
    list
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut sys::ibv_qp,
    first: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> libc::c_int {
    with(|world| {
        if let Some(error) = world.called("ibv_post_recv") {
            // SAFETY: the caller's pointer.
            unsafe { *bad = first };
            return error;
        }
        // SAFETY: the caller's list.
        for (id, pieces) in unsafe { receives_of(first) } {
            let pair = world.pairs.get_mut(&(qp as usize)).expect("alive");
            assert!(pair.srq.is_none(), "its Receives are shared");
            assert!((pair.receives.len() as u32) < pair.depth.1, "the receive queue overran");
            if pair.is_broken {
                world.complete(qp as usize, id, sys::IBV_WC_WR_FLUSH_ERR, 0, None);
            } else {
                pair.receives.push_back((id, pieces));
            }
        }
        0
    })
}

pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut sys::ibv_srq,
    first: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> libc::c_int {
    with(|world| {
        if let Some(error) = world.called("ibv_post_srq_recv") {
            // SAFETY: the caller's pointer.
            unsafe { *bad = first };
            return error;
        }
        let pd = world.srqs[&(srq as usize)].object.pd;
        // SAFETY: the caller's list.
        for (id, pieces) in unsafe { receives_of(first) } {
            let is_known =
                |piece: &sys::ibv_sge| world.regions.get(&piece.lkey).is_some_and(|r| r.object.pd == pd);
            assert!(pieces.iter().all(is_known), "the key is of the shared queue's own domain");
            let srq = world.srqs.get_mut(&(srq as usize)).expect("alive");
            assert!((srq.receives.len() as u32) < srq.depth, "the shared receive queue overran");
            srq.receives.push_back((id, pieces));
        }
        0
    })
}

pub(super) unsafe extern "C" fn poll_cq(
    cq: *mut sys::ibv_cq,
    count: libc::c_int,
    into: *mut sys::ibv_wc,
) -> libc::c_int {
    with(|world| {
        if world.called("ibv_poll_cq").is_some() {
            return -1;
        }
        for _ in 0..world.requests_per_poll {
            if !world.progress() {
                break;
            }
        }
        let queue = world.queues.get_mut(&(cq as usize)).expect("alive");
        let count = queue.done.len().min(count as usize);
        for (at, wc) in queue.done.drain(..count).enumerate() {
            // SAFETY: the caller has room for `count` of them.
            unsafe { *into.add(at) = wc };
        }
        count as libc::c_int
    })
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut sys::ibv_cq, _solicited: libc::c_int) -> libc::c_int {
    with(|world| {
        if let Some(error) = world.called("ibv_req_notify_cq") {
            return error;
        }
        world.queues.get_mut(&(cq as usize)).expect("alive").is_armed = true;
        0
    })
}
