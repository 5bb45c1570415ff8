//! What the device of the world does: work requests run on queue pairs.

use std::collections::VecDeque;
use std::ptr;

use stag_rdma_core_sys as sys;

use super::{Pair, Request, Window, World, signal};

/// Refusals of the responder, as the requester and the responder see them.
const ACCESS: (sys::ibv_wc_status, sys::ibv_wc_status) =
    (sys::IBV_WC_REM_ACCESS_ERR, sys::IBV_WC_REM_ACCESS_ERR);
const LENGTH: (sys::ibv_wc_status, sys::ibv_wc_status) =
    (sys::IBV_WC_REM_INV_REQ_ERR, sys::IBV_WC_LOC_LEN_ERR);

/// How a work request ended.
enum Ran {
    /// Well, with this number of octets.
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
        // SAFETY: a domain that is alive.
        object.context = unsafe { (*pd).context };
        if let Some(id) = self.ids.get(&id) {
            assert_eq!(id.object.verbs, object.context, "of the device that the connection goes through");
        }
        (object.pd, object.send_cq, object.recv_cq) = (pd, attributes.send_cq, attributes.recv_cq);
        self.next_number += 1;
        (object.qp_num, object.srq) = (self.next_number, attributes.srq);
        let raw = &raw mut *object;
        let depth = (attributes.cap.max_send_wr, attributes.cap.max_recv_wr);
        let inline_len = attributes.cap.max_inline_data;
        let (sends, receives, reads) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        let srq = (!attributes.srq.is_null()).then_some(attributes.srq as usize);
        let pair = Pair { object, id, srq, sends, receives, reads, is_broken: false, depth, inline_len };
        self.pairs.insert(raw as usize, pair);
        self.born("queue pair");
        raw
    }

    pub(super) fn drop_pair(&mut self, raw: *mut sys::ibv_qp) {
        assert!(self.pairs.remove(&(raw as usize)).is_some(), "a queue pair is destroyed once");
        // As the kernel does: events of it that were not taken are lost.
        // SAFETY: as wide as any field of the union.
        self.async_events.retain(|event| unsafe { event.element.qp } != raw);
        let is_bound = |window: &Window| window.bound.is_some_and(|bound| bound.0 == raw as usize);
        assert!(
            !self.windows.values().any(is_bound),
            "no window is bound to it: rxe would wait for that one"
        );
        self.died("queue pair");
    }

    pub(super) fn complete(
        &mut self,
        raw: usize,
        id: u64,
        status: sys::ibv_wc_status,
        len: u32,
        inv: Option<u32>,
    ) {
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
            pair.reads.drain(..).chain(pair.sends.drain(..)).map(|request| request.send.wr_id).collect();
        let receives: Vec<u64> = pair.receives.drain(..).map(|(id, _)| id).collect();
        // What is in a shared queue stays there; it says when it has taken the last.
        if pair.srq.is_some() && !was_broken {
            let element = sys::ibv_async_event__bindgen_ty_1 { qp: raw };
            let event_type = sys::IBV_EVENT_QP_LAST_WQE_REACHED;
            self.async_events.push_back(sys::ibv_async_event { element, event_type });
            signal(self.context.context.async_fd);
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

    /// Runs one work request of each queue pair, and on iWARP the answer to one Read. `false`: nothing can run.
    pub(super) fn progress(&mut self) -> bool {
        let mut any = false;
        let names: Vec<usize> = self.pairs.keys().copied().collect();
        for name in names {
            let answered = self.pairs.get_mut(&name).and_then(|pair| pair.reads.pop_front());
            if let Some(read) = answered {
                match self.step(name, &read) {
                    Ran::Waits => self.pairs.get_mut(&name).expect("it is alive").reads.push_front(read),
                    _ => any = true,
                }
            }
            let next = self.pairs.get_mut(&name).and_then(|pair| pair.sends.pop_front());
            let Some(request) = next else { continue };
            let pair = self.pairs.get_mut(&name).expect("it has a Send");
            if self.is_iwarp && request.send.opcode == sys::IBV_WR_RDMA_READ {
                pair.reads.push_back(request);
                any = true;
            } else if let Ran::Waits = self.step(name, &request) {
                self.pairs.get_mut(&name).expect("it is alive").sends.push_front(request);
            } else {
                any = true;
            }
        }
        any
    }

    /// Runs one work request to its end, if it does not have to wait.
    fn step(&mut self, name: usize, request: &Request) -> Ran {
        let send = &request.send;
        let spoiled = self.spoiled.front().copied().filter(|(is_receive, _)| !is_receive);
        let ran = match spoiled {
            Some((_, status)) => {
                self.spoiled.pop_front();
                Ran::Badly(status)
            }
            None => self.run(name, request),
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
                signal(self.context.context.async_fd);
            }
            self.break_pair(other as *mut sys::ibv_qp);
        }
        self.break_pair(name as *mut sys::ibv_qp);
        ran
    }

    fn run(&mut self, name: usize, Request { send, pieces, .. }: &Request) -> Ran {
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
        let is_inline = send.send_flags & sys::IBV_SEND_INLINE != 0;
        if !is_inline && !pieces.iter().all(|piece| local(piece, needs)) {
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
        let mut done = 0;
        for to in &room {
            let here = to.length.min(len - done);
            if let Some(from) = pieces.first().filter(|_| here > 0) {
                let from = from.addr as *const u8;
                // SAFETY: as in `run`; the room was just measured.
                unsafe { ptr::copy(from.add(done as usize), to.addr as *mut u8, here as usize) };
            }
            done += here;
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
