//! The connection manager of the world: everything happens at once, and is reported by events.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::net::{SocketAddr, SocketAddrV6};
use std::ptr;

use stag_rdma_core_sys as sys;

use super::{Channel, Event, Id, World, clear, eventfd, inner, set_errno, signal, with};

impl World {
    /// Queues an event of an identifier. `depths` as its receiver is to see them: responder resources, initiator depth.
    pub(super) fn event(
        &mut self,
        id: usize,
        kind: sys::rdma_cm_event_type,
        status: i32,
        private_data: Vec<u8>,
        depths: (u8, u8),
    ) {
        let Some(entry) = self.ids.get_mut(&id) else { return };
        let channel = entry.object.channel as usize;
        // SAFETY: a C structure of numbers and pointers.
        let mut raw: sys::rdma_cm_event = unsafe { std::mem::zeroed() };
        raw.id = &raw mut *entry.object;
        raw.event = kind;
        raw.status = status;
        let mut event = Box::new(Event { raw, private_data });
        // SAFETY: the part of the union that connections use.
        let conn = unsafe { &mut event.raw.param.conn };
        (conn.responder_resources, conn.initiator_depth) = depths;
        if !event.private_data.is_empty() {
            // SAFETY: as above.
            let conn = unsafe { &mut event.raw.param.conn };
            conn.private_data = event.private_data.as_ptr().cast();
            conn.private_data_len = event.private_data.len() as u8;
        }
        let channel = self.channels.get_mut(&channel).expect("an identifier's channel outlives it");
        channel.events.push_back(event);
        signal(channel.object.fd);
    }

    fn new_id(&mut self, channel: *mut sys::rdma_event_channel, context: *mut libc::c_void) -> usize {
        // SAFETY: a C structure of numbers and pointers.
        let mut object: Box<sys::rdma_cm_id> = Box::new(unsafe { std::mem::zeroed() });
        (object.channel, object.context) = (channel, context);
        let name = &raw mut *object as usize;
        let id = Id { object, port: None, target: None, peer: None, is_connected: false, is_request: false };
        self.ids.insert(name, id);
        self.born("id");
        name
    }

    /// Ends a connection, for both sides.
    fn hang_up(&mut self, id: usize) {
        let Some(entry) = self.ids.get_mut(&id) else { return };
        if !std::mem::take(&mut entry.is_connected) {
            return;
        }
        let peer = entry.peer;
        self.event(id, sys::RDMA_CM_EVENT_DISCONNECTED, 0, Vec::new(), (0, 0));
        if let Some(peer) = peer
            && let Some(entry) = self.ids.get_mut(&peer)
            && std::mem::take(&mut entry.is_connected)
        {
            self.event(peer, sys::RDMA_CM_EVENT_DISCONNECTED, 0, Vec::new(), (0, 0));
        }
    }
}

/// An address of the caller's, of either family.
fn address(address: *const libc::sockaddr) -> SocketAddr {
    // SAFETY: the caller's address; its family says how it is laid out.
    unsafe {
        if i32::from((*address).sa_family) == libc::AF_INET6 {
            let v6 = &*address.cast::<libc::sockaddr_in6>();
            let (ip, port) = (v6.sin6_addr.s6_addr.into(), u16::from_be(v6.sin6_port));
            SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into()
        } else {
            let v4 = &*address.cast::<libc::sockaddr_in>();
            (u32::from_be(v4.sin_addr.s_addr).to_be_bytes(), u16::from_be(v4.sin_port)).into()
        }
    }
}

/// The same, the other way round.
fn storage(address: SocketAddr) -> ManuallyDrop<libc::sockaddr_storage> {
    let address = socket2::SockAddr::from(address);
    // SAFETY: what it points to is as large as any address may be.
    ManuallyDrop::new(unsafe { *address.as_ptr().cast() })
}

fn failed(error: i32) -> libc::c_int {
    set_errno(error);
    -1
}

pub(super) extern "C" fn get_devices(count: *mut libc::c_int) -> *mut *mut sys::ibv_context {
    with(|world| {
        if world.called("rdma_get_devices").is_some() {
            return ptr::null_mut();
        }
        let mut devices = if world.has_device { vec![inner(&mut world.context)] } else { Vec::new() };
        devices.extend(world.other.as_mut().map(|(_, context)| inner(context)));
        world.device.transport_type =
            if world.is_iwarp { sys::IBV_TRANSPORT_IWARP } else { sys::IBV_TRANSPORT_IB };
        // SAFETY: the caller's number.
        unsafe { *count = devices.len() as libc::c_int };
        world.born("device list");
        // Room for one more, as in C, where a null ends it.
        let list = [&devices[..], &[ptr::null_mut()]].concat();
        Box::into_raw(list.into_boxed_slice()).cast()
    })
}

pub(super) extern "C" fn free_devices(_list: *mut *mut sys::ibv_context) {
    // The few octets of the list itself are left: its length is not known here.
    with(|world| world.died("device list"));
}

pub(super) extern "C" fn create_event_channel() -> *mut sys::rdma_event_channel {
    with(|world| {
        if world.called("rdma_create_event_channel").is_some() {
            return ptr::null_mut();
        }
        let mut object = Box::new(sys::rdma_event_channel { fd: eventfd() });
        let raw = &raw mut *object;
        world.channels.insert(raw as usize, Channel { object, events: VecDeque::new() });
        world.born("event channel");
        raw
    })
}

pub(super) extern "C" fn destroy_event_channel(channel: *mut sys::rdma_event_channel) {
    with(|world| {
        let channel = world.channels.remove(&(channel as usize)).expect("destroyed once");
        // Requests that were not taken go with it.
        for event in &channel.events {
            if event.raw.event == sys::RDMA_CM_EVENT_CONNECT_REQUEST {
                world.ids.remove(&(event.raw.id as usize));
                world.died("id");
            }
        }
        // SAFETY: the channel's own descriptor.
        unsafe { libc::close(channel.object.fd) };
        world.died("event channel");
    });
}

pub(super) extern "C" fn create_id(
    channel: *mut sys::rdma_event_channel,
    id: *mut *mut sys::rdma_cm_id,
    context: *mut libc::c_void,
    _space: sys::rdma_port_space,
) -> libc::c_int {
    with(|world| {
        if world.called("rdma_create_id").is_some() {
            return -1;
        }
        // SAFETY: the caller's pointer.
        unsafe { *id = world.new_id(channel, context) as *mut sys::rdma_cm_id };
        0
    })
}

pub(super) extern "C" fn destroy_id(id: *mut sys::rdma_cm_id) -> libc::c_int {
    with(|world| {
        let name = id as usize;
        world.hang_up(name);
        let entry = world.ids.remove(&name).expect("destroyed once");
        assert!(entry.object.qp.is_null(), "its queue pair goes first");
        if let Some(channel) = world.channels.get_mut(&(entry.object.channel as usize)) {
            channel.events.retain(|event| event.raw.id as usize != name);
        }
        if let Some(peer) = entry.peer
            && world.ids.get(&peer).is_some_and(|peer| !peer.is_connected)
        {
            let status = if entry.is_request { 28 } else { 4 };
            let waits = world.ids.get(&peer).is_some_and(|other| other.peer == Some(name));
            if waits {
                world.event(peer, sys::RDMA_CM_EVENT_REJECTED, status, Vec::new(), (0, 0));
                world.ids.get_mut(&peer).expect("just found").peer = None;
            }
        }
        world.died("id");
        0
    })
}

pub(super) extern "C" fn migrate_id(
    id: *mut sys::rdma_cm_id,
    channel: *mut sys::rdma_event_channel,
) -> libc::c_int {
    with(|world| {
        if world.called("rdma_migrate_id").is_some() {
            return -1;
        }
        let name = id as usize;
        let entry = world.ids.get_mut(&name).expect("alive");
        let old = std::mem::replace(&mut entry.object.channel, channel);
        // Events that were not taken go along.
        let old = world.channels.get_mut(&(old as usize)).expect("an identifier's channel outlives it");
        let (moved, kept) = old.events.drain(..).partition(|event| event.raw.id as usize == name);
        old.events = kept;
        let moved: VecDeque<_> = moved;
        let new = world.channels.get_mut(&(channel as usize)).expect("alive");
        if !moved.is_empty() {
            signal(new.object.fd);
        }
        new.events.extend(moved);
        0
    })
}

pub(super) extern "C" fn bind_addr(id: *mut sys::rdma_cm_id, at: *mut libc::sockaddr) -> libc::c_int {
    with(|world| {
        if world.called("rdma_bind_addr").is_some() {
            return -1;
        }
        let is_taken = |port: u16| world.ids.values().any(|other| other.port == Some(port));
        let mut local = address(at);
        match local.port() {
            0 => local.set_port((40_000..).find(|&port| !is_taken(port)).expect("few are taken")),
            port if is_taken(port) => return failed(libc::EADDRINUSE),
            _ => {}
        }
        // As everywhere: all addresses together are no device's.
        let context = world.device_at(local.ip());
        let entry = world.ids.get_mut(&(id as usize)).expect("alive");
        entry.port = Some(local.port());
        entry.object.verbs = context;
        entry.object.route.addr.__bindgen_anon_1.src_storage = storage(local);
        0
    })
}

pub(super) extern "C" fn listen(_id: *mut sys::rdma_cm_id, backlog: libc::c_int) -> libc::c_int {
    with(|world| {
        world.seen.backlog = backlog;
        if world.called("rdma_listen").is_some() { -1 } else { 0 }
    })
}

pub(super) extern "C" fn resolve_addr(
    id: *mut sys::rdma_cm_id,
    _from: *mut libc::sockaddr,
    to: *mut libc::sockaddr,
    _timeout_ms: libc::c_int,
) -> libc::c_int {
    with(|world| {
        if world.called("rdma_resolve_addr").is_some() {
            return -1;
        }
        let context = world.device_at(address(to).ip());
        let entry = world.ids.get_mut(&(id as usize)).expect("alive");
        entry.target = Some(address(to));
        entry.object.verbs = context;
        entry.object.route.addr.__bindgen_anon_2.dst_storage = storage(address(to));
        world.event(id as usize, sys::RDMA_CM_EVENT_ADDR_RESOLVED, 0, Vec::new(), (0, 0));
        0
    })
}

pub(super) extern "C" fn resolve_route(id: *mut sys::rdma_cm_id, _timeout_ms: libc::c_int) -> libc::c_int {
    with(|world| {
        if world.called("rdma_resolve_route").is_some() {
            return -1;
        }
        world.event(id as usize, sys::RDMA_CM_EVENT_ROUTE_RESOLVED, 0, Vec::new(), (0, 0));
        0
    })
}

pub(super) extern "C" fn create_qp(
    id: *mut sys::rdma_cm_id,
    pd: *mut sys::ibv_pd,
    attributes: *mut sys::ibv_qp_init_attr,
) -> libc::c_int {
    with(|world| {
        if world.called("rdma_create_qp").is_some() {
            return -1;
        }
        // SAFETY: the caller's attributes.
        let attributes = unsafe { &mut *attributes };
        // Room for inline is in the queue itself: a deep one has less.
        if attributes.cap.max_send_wr > 150 {
            attributes.cap.max_inline_data = attributes.cap.max_inline_data.min(16);
        }
        let raw = world.new_pair(id as usize, pd, attributes);
        world.ids.get_mut(&(id as usize)).expect("alive").object.qp = raw;
        0
    })
}

pub(super) extern "C" fn destroy_qp(id: *mut sys::rdma_cm_id) {
    with(|world| {
        let entry = world.ids.get_mut(&(id as usize)).expect("alive");
        let raw = std::mem::replace(&mut entry.object.qp, ptr::null_mut());
        world.drop_pair(raw);
    });
}

/// The private data of connection parameters, as it arrives: InfiniBand pads it.
fn private_data(world: &World, parameters: &sys::rdma_conn_param, padded: usize) -> Vec<u8> {
    let len = usize::from(parameters.private_data_len);
    let mut data = if len == 0 {
        Vec::new()
    } else {
        // SAFETY: the caller's, and so long.
        unsafe { std::slice::from_raw_parts(parameters.private_data.cast::<u8>(), len) }.to_vec()
    };
    if !world.is_iwarp {
        data.resize(padded, 0);
    }
    data
}

pub(super) extern "C" fn connect(
    id: *mut sys::rdma_cm_id,
    parameters: *mut sys::rdma_conn_param,
) -> libc::c_int {
    with(|world| {
        if world.called("rdma_connect").is_some() {
            return -1;
        }
        let name = id as usize;
        let mut target = world.ids[&name].target.expect("its address was resolved");
        let listener = world.ids.iter().find(|(_, other)| other.port == Some(target.port()));
        let Some((channel, context)) = listener.map(|(_, l)| (l.object.channel, l.object.context)) else {
            world.event(name, sys::RDMA_CM_EVENT_REJECTED, 8, Vec::new(), (0, 0));
            return 0;
        };
        // SAFETY: the caller's parameters.
        let parameters = unsafe { &*parameters };
        world.seen.parameters.push(*parameters);
        let data = private_data(world, parameters, 56);
        let child = world.new_id(channel, context);
        let device = world.device_at(target.ip());
        let entry = world.ids.get_mut(&child).expect("just made");
        (entry.peer, entry.is_request, entry.object.verbs) = (Some(name), true, device);
        entry.object.route.addr.__bindgen_anon_1.src_storage = storage(target);
        // Of the same machine, from another port.
        target.set_port(4711);
        entry.object.route.addr.__bindgen_anon_2.dst_storage = storage(target);
        world.ids.get_mut(&name).expect("alive").peer = Some(child);
        // As the receiver sees them: what it answers, what it may ask.
        let depths = (parameters.initiator_depth, parameters.responder_resources);
        world.event(child, sys::RDMA_CM_EVENT_CONNECT_REQUEST, 0, data, depths);
        0
    })
}

pub(super) extern "C" fn accept(
    id: *mut sys::rdma_cm_id,
    parameters: *mut sys::rdma_conn_param,
) -> libc::c_int {
    with(|world| {
        if world.called("rdma_accept").is_some() {
            return -1;
        }
        let name = id as usize;
        let Some(peer) = world.ids[&name].peer.filter(|peer| world.ids.contains_key(peer)) else {
            return failed(libc::ENOTCONN);
        };
        // SAFETY: the caller's parameters.
        let parameters = unsafe { &*parameters };
        world.seen.parameters.push(*parameters);
        let data = private_data(world, parameters, 196);
        for side in [name, peer] {
            world.ids.get_mut(&side).expect("both are alive").is_connected = true;
        }
        let depths = (parameters.initiator_depth, parameters.responder_resources);
        world.event(peer, sys::RDMA_CM_EVENT_ESTABLISHED, 0, data, depths);
        world.event(name, sys::RDMA_CM_EVENT_ESTABLISHED, 0, Vec::new(), (0, 0));
        0
    })
}

pub(super) extern "C" fn reject(id: *mut sys::rdma_cm_id, data: *const libc::c_void, len: u8) -> libc::c_int {
    with(|world| {
        if world.called("rdma_reject").is_some() {
            return -1;
        }
        let mut why = if len == 0 {
            Vec::new()
        } else {
            // SAFETY: the caller's, and so long.
            unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len.into()) }.to_vec()
        };
        why.resize(148, 0);
        let entry = world.ids.get_mut(&(id as usize)).expect("alive");
        if let Some(peer) = entry.peer.take() {
            world.event(peer, sys::RDMA_CM_EVENT_REJECTED, 28, why, (0, 0));
            if let Some(peer) = world.ids.get_mut(&peer) {
                peer.peer = None;
            }
        }
        0
    })
}

pub(super) extern "C" fn notify(_id: *mut sys::rdma_cm_id, _event: sys::ibv_event_type) -> libc::c_int {
    with(|world| world.called("rdma_notify").map_or(0, |_| -1))
}

pub(super) extern "C" fn disconnect(id: *mut sys::rdma_cm_id) -> libc::c_int {
    with(|world| {
        if world.called("rdma_disconnect").is_some() {
            return -1;
        }
        world.hang_up(id as usize);
        let raw = world.ids[&(id as usize)].object.qp;
        world.break_pair(raw);
        0
    })
}

pub(super) extern "C" fn get_cm_event(
    channel: *mut sys::rdma_event_channel,
    event: *mut *mut sys::rdma_cm_event,
) -> libc::c_int {
    with(|world| {
        if world.called("rdma_get_cm_event").is_some() {
            return -1;
        }
        let channel = world.channels.get_mut(&(channel as usize)).expect("alive");
        let Some(next) = channel.events.pop_front() else {
            clear(channel.object.fd);
            return failed(libc::EAGAIN);
        };
        world.born("unacknowledged event");
        // The raw event is the first field.
        // SAFETY: the caller's pointer.
        unsafe { *event = Box::into_raw(next).cast() };
        0
    })
}

pub(super) extern "C" fn ack_cm_event(event: *mut sys::rdma_cm_event) -> libc::c_int {
    // SAFETY: what `get_cm_event` gave out, once.
    drop(unsafe { Box::from_raw(event.cast::<Event>()) });
    with(|world| world.died("unacknowledged event"));
    0
}

pub(super) extern "C" fn set_option(
    _id: *mut sys::rdma_cm_id,
    _level: libc::c_int,
    _name: libc::c_int,
    _value: *mut libc::c_void,
    _len: usize,
) -> libc::c_int {
    with(|world| world.called("rdma_set_option").map_or(0, |_| -1))
}
