//! The device of the world: registrations, queue pairs, and the work requests that run on them.

use std::collections::VecDeque;
use std::ptr;

use stag_rdma_core_sys as sys;

use super::{Pair, Queue, Region, Srq, Window, World, clear, eventfd, set_errno, signal, with};

/// Refusals of the responder, as the requester and the responder see them.
const ACCESS: (sys::ibv_wc_status, sys::ibv_wc_status) =
    (sys::IBV_WC_REM_ACCESS_ERR, sys::IBV_WC_REM_ACCESS_ERR);
const LENGTH: (sys::ibv_wc_status, sys::ibv_wc_status) =
    (sys::IBV_WC_REM_INV_REQ_ERR, sys::IBV_WC_LOC_LEN_ERR);

/// How a work request ended.
enum Ran {
    /// Well, with so many octets.
    Well(u32),
    /// Not yet.
    Waits,
    /// The requester's own fault.
    Badly(sys::ibv_wc_status),
    /// Refused by the peer: both statuses.
    Refused((sys::ibv_wc_status, sys::ibv_wc_status)),
}

impl World {
    pub(super) fn new_pair(
        &mut self,
        id: usize,
        pd: *mut sys::ibv_pd,
        attributes: &sys::ibv_qp_init_attr,
    ) -> *mut sys::ibv_qp {
        // SAFETY: a C structure of numbers and pointers.
        let mut object: Box<sys::ibv_qp> = Box::new(unsafe { std::mem::zeroed() });
        object.context = &raw mut *self.context;
        (object.pd, object.send_cq, object.recv_cq) = (pd, attributes.send_cq, attributes.recv_cq);
        self.next_number += 1;
        (object.qp_num, object.srq) = (self.next_number, attributes.srq);
        let raw = &raw mut *object;
        let depth = (attributes.cap.max_send_wr, attributes.cap.max_recv_wr);
        let (sends, receives, reads) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        let srq = (!attributes.srq.is_null()).then_some(attributes.srq as usize);
        let pair = Pair { object, id, srq, sends, receives, reads, is_broken: false, depth };
        self.pairs.insert(raw as usize, pair);
        self.born("queue pair");
        raw
    }

    pub(super) fn drop_pair(&mut self, raw: *mut sys::ibv_qp) {
        assert!(self.pairs.remove(&(raw as usize)).is_some(), "a queue pair is destroyed once");
        for window in self.windows.values_mut() {
            window.bound.take_if(|bound| bound.0 == raw as usize);
        }
        self.died("queue pair");
    }

    fn complete(&mut self, raw: usize, id: u64, status: sys::ibv_wc_status, len: u32, inv: Option<u32>) {
        // SAFETY: a C structure of numbers.
        let mut wc: sys::ibv_wc = unsafe { std::mem::zeroed() };
        (wc.wr_id, wc.status, wc.byte_len) = (id, status, len);
        wc.qp_num = self.pairs[&raw].object.qp_num;
        if let Some(rkey) = inv {
            wc.wc_flags = sys::IBV_WC_WITH_INV;
            wc.__bindgen_anon_1.invalidated_rkey = rkey;
        }
        let queue = self.pairs[&raw].object.send_cq as usize;
        let queue = self.queues.get_mut(&queue).expect("a queue pair's completion queue outlives it");
        queue.done.push_back(wc);
        assert!(queue.done.len() <= queue.object.cqe as usize, "the completion queue overran");
        if std::mem::take(&mut queue.is_armed) && !queue.object.channel.is_null() {
            queue.events += 1;
            // SAFETY: the channel outlives its queue.
            signal(unsafe { (*queue.object.channel).fd });
        }
    }

    /// Moves a queue pair to the error state: everything posted comes back.
    pub(super) fn break_pair(&mut self, raw: *mut sys::ibv_qp) {
        let name = raw as usize;
        let Some(pair) = self.pairs.get_mut(&name) else { return };
        let was_broken = std::mem::replace(&mut pair.is_broken, true);
        let sends: Vec<u64> =
            pair.reads.drain(..).chain(pair.sends.drain(..)).map(|(s, _)| s.wr_id).collect();
        let receives: Vec<u64> = pair.receives.drain(..).map(|(id, _)| id).collect();
        // What is in a shared queue stays there; it says when it has taken the last.
        if pair.srq.is_some() && !was_broken {
            let element = sys::ibv_async_event__bindgen_ty_1 { qp: raw };
            let event_type = sys::IBV_EVENT_QP_LAST_WQE_REACHED;
            self.async_events.push_back(sys::ibv_async_event { element, event_type });
            signal(self.context.async_fd);
        }
        for id in sends.into_iter().chain(receives) {
            self.complete(name, id, sys::IBV_WC_WR_FLUSH_ERR, 0, None);
        }
    }

    /// Where a queue pair's messages go.
    fn receives(&mut self, pair: usize) -> &mut VecDeque<(u64, Vec<sys::ibv_sge>)> {
        let pair = self.pairs.get_mut(&pair).expect("it is alive");
        match pair.srq {
            Some(srq) => &mut self.srqs.get_mut(&srq).expect("it outlives its queue pairs").receives,
            None => &mut pair.receives,
        }
    }

    /// The queue pair at the other end, if the connection is there.
    fn other(&self, name: usize) -> Option<usize> {
        let id = self.ids.get(&self.pairs[&name].id)?;
        let peer = self.ids.get(&id.peer.filter(|_| id.is_connected)?)?;
        let other = peer.object.qp as usize;
        self.pairs.get(&other).filter(|pair| !pair.is_broken).map(|_| other)
    }

    /// Runs one work request of each queue pair, and on iWARP the answer to one Read.
    fn progress(&mut self) {
        let names: Vec<usize> = self.pairs.keys().copied().collect();
        for name in names {
            let answered = self.pairs.get_mut(&name).and_then(|pair| pair.reads.pop_front());
            if let Some((read, pieces)) = answered
                && let Ran::Waits = self.step(name, &read, &pieces)
            {
                self.pairs.get_mut(&name).expect("it is alive").reads.push_front((read, pieces));
            }
            let next = self.pairs.get_mut(&name).and_then(|pair| pair.sends.pop_front());
            let Some((send, pieces)) = next else { continue };
            let pair = self.pairs.get_mut(&name).expect("it has a Send");
            if self.is_iwarp && send.opcode == sys::IBV_WR_RDMA_READ {
                pair.reads.push_back((send, pieces));
            } else if let Ran::Waits = self.step(name, &send, &pieces) {
                self.pairs.get_mut(&name).expect("it is alive").sends.push_front((send, pieces));
            }
        }
    }

    /// Runs one work request to its end, if it does not have to wait.
    fn step(&mut self, name: usize, send: &sys::ibv_send_wr, pieces: &[sys::ibv_sge]) -> Ran {
        let spoiled = self.spoiled.front().copied().filter(|(is_receive, _)| !is_receive);
        let ran = match spoiled {
            Some((_, status)) => {
                self.spoiled.pop_front();
                Ran::Badly(status)
            }
            None => self.run(name, send, pieces),
        };
        let (status, len) = match ran {
            Ran::Waits => return ran,
            Ran::Well(len) => (sys::IBV_WC_SUCCESS, len),
            Ran::Badly(status) | Ran::Refused((status, _)) => (status, 0),
        };
        if status != sys::IBV_WC_SUCCESS || send.send_flags & sys::IBV_SEND_SIGNALED != 0 {
            self.complete(name, send.wr_id, status, len, None);
        }
        if status == sys::IBV_WC_SUCCESS {
            return ran;
        }
        if let (Ran::Refused((_, theirs)), Some(other)) = (&ran, self.other(name)) {
            // A Send fails its Receive; of a Read or a Write that is refused only the device tells.
            let is_send = matches!(send.opcode, sys::IBV_WR_SEND | sys::IBV_WR_SEND_WITH_INV);
            if let Some((id, _)) = is_send.then(|| self.receives(other).pop_front()).flatten() {
                self.complete(other, id, *theirs, 0, None);
            } else {
                let pair = self.pairs.get_mut(&other).expect("it is the other one");
                let element = sys::ibv_async_event__bindgen_ty_1 { qp: &raw mut *pair.object };
                let event_type = sys::IBV_EVENT_QP_ACCESS_ERR;
                self.async_events.push_back(sys::ibv_async_event { element, event_type });
                signal(self.context.async_fd);
            }
            self.break_pair(other as *mut sys::ibv_qp);
        }
        self.break_pair(name as *mut sys::ibv_qp);
        ran
    }

    fn run(&mut self, name: usize, send: &sys::ibv_send_wr, pieces: &[sys::ibv_sge]) -> Ran {
        let own = &self.pairs[&name];
        let pd = own.object.pd;
        let local = |piece: &sys::ibv_sge, needs: sys::ibv_access_flags| {
            let region = self.regions.get(&piece.lkey);
            region.is_some_and(|region| {
                let base = region.object.addr as u64;
                let inside = piece.addr >= base
                    && piece.addr + u64::from(piece.length) <= base + region.object.length as u64;
                region.object.pd == pd && inside && region.access & needs == needs
            })
        };
        let is_read = send.opcode == sys::IBV_WR_RDMA_READ;
        let needs = if is_read { sys::IBV_ACCESS_LOCAL_WRITE } else { 0 };
        if !pieces.iter().all(|piece| local(piece, needs)) {
            return Ran::Badly(sys::IBV_WC_LOC_PROT_ERR);
        }
        let len: u32 = pieces.iter().map(|piece| piece.length).sum();
        match send.opcode {
            sys::IBV_WR_BIND_MW => return self.bind(name, send),
            sys::IBV_WR_LOCAL_INV => {
                // SAFETY: the opcode says which field it is.
                let rkey = unsafe { send.__bindgen_anon_1.invalidate_rkey };
                let ended = self.invalidate(name, rkey);
                return if ended { Ran::Well(0) } else { Ran::Badly(sys::IBV_WC_LOC_QP_OP_ERR) };
            }
            _ => {}
        }
        let Some(other) = self.other(name) else { return Ran::Waits };
        match send.opcode {
            sys::IBV_WR_SEND | sys::IBV_WR_SEND_WITH_INV => self.deliver(other, send, pieces, len),
            _ if len == 0 => Ran::Well(0),
            _ => {
                // SAFETY: the opcode says which field it is.
                let (offset, rkey) = unsafe { (send.wr.rdma.remote_addr, send.wr.rdma.rkey) };
                let needs = if is_read { sys::IBV_ACCESS_REMOTE_READ } else { sys::IBV_ACCESS_REMOTE_WRITE };
                if !self.may_touch(other, rkey, offset, len.into(), needs) {
                    return Ran::Refused(ACCESS);
                }
                let (near, far) = (pieces[0].addr as *mut u8, offset as *mut u8);
                let (from, to) = if is_read { (far, near) } else { (near, far) };
                // SAFETY: both were checked against registrations, which their owners keep mapped.
                unsafe { ptr::copy(from, to, len as usize) };
                Ran::Well(len)
            }
        }
    }

    /// A Send arrives in the oldest Receive.
    fn deliver(&mut self, other: usize, send: &sys::ibv_send_wr, pieces: &[sys::ibv_sge], len: u32) -> Ran {
        let Some((id, room)) = self.receives(other).front().cloned() else { return Ran::Waits };
        if len > room.iter().map(|piece| piece.length).sum() {
            return Ran::Refused(LENGTH);
        }
        let mut inv = None;
        if send.opcode == sys::IBV_WR_SEND_WITH_INV {
            // SAFETY: the opcode says which field it is.
            let rkey = unsafe { send.__bindgen_anon_1.invalidate_rkey };
            if !self.invalidate(other, rkey) {
                return Ran::Refused(ACCESS);
            }
            inv = Some(rkey);
        }
        if let (Some(from), Some(to)) = (pieces.first(), room.first()) {
            // SAFETY: as in `run`; the room was just measured.
            unsafe { ptr::copy(from.addr as *const u8, to.addr as *mut u8, len as usize) };
        }
        self.receives(other).pop_front();
        let spoiled = self.spoiled.front().copied().filter(|(is_receive, _)| *is_receive);
        match spoiled {
            Some((_, status)) => {
                self.spoiled.pop_front();
                self.complete(other, id, status, 0, None);
                self.break_pair(other as *mut sys::ibv_qp);
            }
            None => self.complete(other, id, sys::IBV_WC_SUCCESS, len, inv),
        }
        Ran::Well(len)
    }

    /// Whether the peer of `pair` may do that.
    fn may_touch(&self, pair: usize, rkey: u32, offset: u64, len: u64, needs: sys::ibv_access_flags) -> bool {
        let inside = |base: u64, size: u64| {
            offset >= base && offset.checked_add(len).is_some_and(|end| end <= base + size)
        };
        if let Some(window) = self.windows.get(&(rkey >> 8)) {
            return window.rkey == rkey
                && window.bound.is_some_and(|(qp, base, size, access)| {
                    qp == pair && inside(base, size) && access & needs == needs
                });
        }
        self.regions.get(&rkey).is_some_and(|region| {
            region.object.pd == self.pairs[&pair].object.pd
                && region.access & needs == needs
                && inside(region.object.addr as u64, region.object.length as u64)
        })
    }

    fn bind(&mut self, name: usize, send: &sys::ibv_send_wr) -> Ran {
        // SAFETY: the opcode says which field it is.
        let bind = unsafe { send.__bindgen_anon_2.bind_mw };
        let info = bind.bind_info;
        // SAFETY: a window that the caller keeps while it is in use.
        let key_then = self.windows.values().find(|window| ptr::eq(&*window.object, bind.mw)).map(|w| w.rkey);
        let Some(key_then) = key_then else { return Ran::Badly(sys::IBV_WC_MW_BIND_ERR) };
        let Some(region) = self.regions.values().find(|region| ptr::eq(&*region.object, info.mr)) else {
            return Ran::Badly(sys::IBV_WC_MW_BIND_ERR);
        };
        let inside = info.addr >= region.object.addr as u64
            && info.addr + info.length <= region.object.addr as u64 + region.object.length as u64;
        let may = region.access & sys::IBV_ACCESS_MW_BIND != 0;
        let window = self.windows.get_mut(&(key_then >> 8)).expect("just found");
        let is_next = bind.rkey >> 8 == key_then >> 8 && bind.rkey != key_then;
        if !inside || !may || !is_next || window.bound.is_some() {
            return Ran::Badly(sys::IBV_WC_MW_BIND_ERR);
        }
        window.rkey = bind.rkey;
        window.bound = Some((name, info.addr, info.length, info.mw_access_flags));
        Ran::Well(0)
    }

    /// Ends the bind of a window, by its queue pair or that one's peer. One that ended before is no error.
    fn invalidate(&mut self, pair: usize, rkey: u32) -> bool {
        let pd = self.pairs[&pair].object.pd;
        let Some(window) = self.windows.get_mut(&(rkey >> 8)) else { return false };
        let is_its = window.bound.is_none_or(|bound| bound.0 == pair) && window.object.pd == pd;
        if window.rkey != rkey || !is_its {
            return false;
        }
        window.bound = None;
        true
    }
}

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
        attributes.max_cqe = 1 << 20;
        (attributes.max_srq, attributes.max_srq_wr) = (4, 1 << 10);
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
        let context = &raw mut *world.context;
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
    _vector: libc::c_int,
) -> *mut sys::ibv_cq {
    with(|world| {
        if world.called("ibv_create_cq").is_some() {
            return ptr::null_mut();
        }
        // SAFETY: a C structure of numbers and pointers.
        let mut object: Box<sys::ibv_cq> = Box::new(unsafe { std::mem::zeroed() });
        (object.context, object.channel, object.cqe) = (context, channel, cqe);
        let raw = &raw mut *object;
        let queue = Queue { object, done: VecDeque::new(), is_armed: false, events: 0 };
        world.queues.insert(raw as usize, queue);
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
        (object.context, object.pd) = (&raw mut *world.context, pd);
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
            let (send, pieces) = unsafe {
                let send = *at;
                let pieces = if send.num_sge == 0 {
                    Vec::new()
                } else {
                    std::slice::from_raw_parts(send.sg_list, send.num_sge as usize).to_vec()
                };
                (send, pieces)
            };
            let pair = world.pairs.get_mut(&(qp as usize)).expect("alive");
            assert!((pair.sends.len() as u32) < pair.depth.0, "the send queue overran");
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
                pair.sends.push_back((send, pieces));
            }
            at = send.next;
        }
        0
    })
}

/// The list of Receives that is posted; one piece each.
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
        // SAFETY: as above.
        let pieces = if receive.num_sge == 0 { Vec::new() } else { vec![unsafe { *receive.sg_list }] };
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
        world.progress();
        let queue = world.queues.get_mut(&(cq as usize)).expect("alive");
        let count = queue.done.len().min(count as usize);
        for (at, wc) in queue.done.drain(..count).enumerate() {
            // SAFETY: the caller has room for so many.
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
