//! An RDMA device made of nothing: the functions of libibverbs and librdmacm, as one table, over a small world in
//! which both ends of every connection live. Each thread has a world of its own.
//!
//! It does what the manual pages say, one work request of each queue pair at each poll, unless a test asks for
//! something else: fail the next call of a function ([`fail`]), complete with a status ([`spoil`]), send an
//! event ([`cm_event`], [`async_event`]). It counts live objects, so that a test sees leaks.

#![allow(dead_code, reason = "two test programs share it, and each uses its part")]

mod cm;
mod verbs;
mod work;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::offset_of;
use std::ptr;

use stag_rdma_core_sys as sys;
use stag_rdma_core_sys::{Cm, RdmaCore, Verbs};

/// The table.
pub(crate) static FAKE: RdmaCore = RdmaCore {
    verbs: Verbs {
        ibv_get_device_list: verbs::get_device_list,
        ibv_free_device_list: verbs::free_device_list,
        ibv_get_device_name: verbs::get_device_name,
        ibv_get_async_event: verbs::get_async_event,
        ibv_ack_async_event: verbs::ack_async_event,
        ibv_query_device: verbs::query_device,
        ibv_query_port: verbs::query_port,
        ibv_query_gid: verbs::query_gid,
        ibv_alloc_pd: verbs::alloc_pd,
        ibv_dealloc_pd: verbs::dealloc_pd,
        ibv_reg_mr: verbs::reg_mr,
        ibv_dereg_mr: verbs::dereg_mr,
        ibv_create_comp_channel: verbs::create_comp_channel,
        ibv_destroy_comp_channel: verbs::destroy_comp_channel,
        ibv_create_cq: verbs::create_cq,
        ibv_destroy_cq: verbs::destroy_cq,
        ibv_get_cq_event: verbs::get_cq_event,
        ibv_ack_cq_events: verbs::ack_cq_events,
        ibv_create_srq: verbs::create_srq,
        ibv_destroy_srq: verbs::destroy_srq,
        ibv_create_qp: verbs::create_qp,
        ibv_modify_qp: verbs::modify_qp,
        ibv_destroy_qp: verbs::destroy_qp,
    },
    cm: Cm {
        rdma_create_event_channel: cm::create_event_channel,
        rdma_destroy_event_channel: cm::destroy_event_channel,
        rdma_create_id: cm::create_id,
        rdma_destroy_id: cm::destroy_id,
        rdma_migrate_id: cm::migrate_id,
        rdma_bind_addr: cm::bind_addr,
        rdma_listen: cm::listen,
        rdma_resolve_addr: cm::resolve_addr,
        rdma_resolve_route: cm::resolve_route,
        rdma_create_qp: cm::create_qp,
        rdma_destroy_qp: cm::destroy_qp,
        rdma_connect: cm::connect,
        rdma_accept: cm::accept,
        rdma_reject: cm::reject,
        rdma_notify: cm::notify,
        rdma_disconnect: cm::disconnect,
        rdma_get_cm_event: cm::get_cm_event,
        rdma_ack_cm_event: cm::ack_cm_event,
        rdma_get_devices: cm::get_devices,
        rdma_free_devices: cm::free_devices,
        rdma_set_option: cm::set_option,
    },
};

thread_local! {
    /// Whether this thread is in its world: what is allocated there, a real device does not.
    pub(crate) static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    static WORLD: RefCell<World> = RefCell::new(World::new());
}

/// Everything that exists. Objects are boxed, so that their addresses are their names.
pub(crate) struct World {
    /// Whether memory windows are on offer, and whether it is iWARP.
    pub(crate) has_windows: bool,
    pub(crate) is_iwarp: bool,
    /// Whether it has shared receive queues.
    pub(crate) has_srq: bool,
    /// Work requests of each queue pair that one poll of a completion queue lets run.
    pub(crate) requests_per_poll: usize,
    pub(crate) seen: Seen,
    /// Whether there is a device at all.
    pub(crate) has_device: bool,
    device: Box<sys::ibv_device>,
    /// The opened device: an `ibv_context` in what later libraries put around it.
    context: Box<sys::verbs_context>,
    /// What it may page on demand: at all, and on reliable connections.
    pub(crate) paging: (sys::ibv_odp_general_caps, sys::ibv_odp_transport_cap_bits),
    /// A second device, which 127.0.0.2 leads to.
    other: Option<(Box<sys::ibv_device>, Box<sys::verbs_context>)>,
    /// Functions whose call fails: the name, calls that pass before, and the error number.
    failures: Vec<(&'static str, u32, i32)>,
    /// The status that the next work requests complete with instead.
    pub(crate) spoiled: VecDeque<(bool, sys::ibv_wc_status)>,
    calls: BTreeMap<&'static str, u64>,
    live: BTreeMap<&'static str, i64>,
    next_key: u32,
    /// Of queue pairs.
    next_number: u32,
    channels: BTreeMap<usize, Channel>,
    ids: BTreeMap<usize, Id>,
    queues: BTreeMap<usize, Queue>,
    last_queue: *mut sys::ibv_cq,
    srqs: BTreeMap<usize, Srq>,
    pairs: BTreeMap<usize, Pair>,
    regions: BTreeMap<u32, Region>,
    windows: BTreeMap<u32, Window>,
    async_events: VecDeque<sys::ibv_async_event>,
}

struct Channel {
    object: Box<sys::rdma_event_channel>,
    events: VecDeque<Box<Event>>,
}

#[repr(C)]
struct Event {
    raw: sys::rdma_cm_event,
    private_data: Vec<u8>,
}

struct Id {
    object: Box<sys::rdma_cm_id>,
    port: Option<u16>,
    target: Option<std::net::SocketAddr>,
    /// The other end: before it accepted, only the connecting side's.
    peer: Option<usize>,
    is_connected: bool,
    is_request: bool,
}

struct Queue {
    object: Box<sys::ibv_cq>,
    done: VecDeque<sys::ibv_wc>,
    is_armed: bool,
    events: u32,
}

/// A shared receive queue.
struct Srq {
    object: Box<sys::ibv_srq>,
    receives: VecDeque<(u64, Vec<sys::ibv_sge>)>,
    depth: u32,
}

struct Pair {
    object: Box<sys::ibv_qp>,
    id: usize,
    /// The shared receive queue that it takes from, if it has none of its own.
    srq: Option<usize>,
    sends: VecDeque<Request>,
    receives: VecDeque<(u64, Vec<sys::ibv_sge>)>,
    /// Reads whose answer is on its way, where they are overtaken: on iWARP.
    reads: VecDeque<Request>,
    is_broken: bool,
    depth: (u32, u32),
    inline_len: u32,
}

/// A work request of a send queue.
struct Request {
    send: sys::ibv_send_wr,
    pieces: Vec<sys::ibv_sge>,
    /// What an inline one carries, copied when it is posted; then its pieces are here.
    octets: Vec<u8>,
}

impl Request {
    /// # Safety
    ///
    /// Its pieces exist, and if it is inline, so does their memory.
    unsafe fn new(send: &sys::ibv_send_wr) -> Request {
        let mut pieces = if send.num_sge == 0 {
            Vec::new()
        } else {
            // SAFETY: the caller's word.
            unsafe { std::slice::from_raw_parts(send.sg_list, send.num_sge as usize) }.to_vec()
        };
        let mut octets = Vec::new();
        if send.send_flags & sys::IBV_SEND_INLINE != 0
            && let Some(piece) = pieces.first_mut()
        {
            // SAFETY: the caller's word.
            octets = unsafe { std::slice::from_raw_parts(piece.addr as *const u8, piece.length as usize) }
                .to_vec();
            piece.addr = octets.as_ptr() as u64;
        }
        Request { send: *send, pieces, octets }
    }
}

/// What the world saw of its user.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Work requests of send queues, those of them that ask for a completion, and those that are inline.
    pub(crate) requests: u64,
    pub(crate) signaled: u64,
    pub(crate) inline: u64,
    /// Binds and invalidations of memory windows.
    pub(crate) window_requests: u64,
    /// RDMA Reads of one queue pair under way at once, at most.
    pub(crate) reads_max: usize,
    /// How connections were asked for and accepted.
    pub(crate) parameters: Vec<sys::rdma_conn_param>,
    pub(crate) backlog: i32,
    /// Completion vectors of completion queues.
    pub(crate) vectors: BTreeSet<i32>,
}

impl Seen {
    fn note(&mut self, send: &sys::ibv_send_wr) {
        self.requests += 1;
        self.signaled += u64::from(send.send_flags & sys::IBV_SEND_SIGNALED != 0);
        self.inline += u64::from(send.send_flags & sys::IBV_SEND_INLINE != 0);
        self.window_requests += u64::from(matches!(send.opcode, sys::IBV_WR_BIND_MW | sys::IBV_WR_LOCAL_INV));
    }
}

struct Region {
    object: Box<sys::ibv_mr>,
    access: sys::ibv_access_flags,
}

struct Window {
    object: Box<sys::ibv_mw>,
    /// The kernel's idea of its key.
    rkey: u32,
    /// Bound to: queue pair, place, length, access.
    bound: Option<(usize, u64, u64, sys::ibv_access_flags)>,
}

/// Runs with the world of this thread.
pub(crate) fn with<T>(run: impl FnOnce(&mut World) -> T) -> T {
    IS_INSIDE.set(true);
    let result = WORLD.with_borrow_mut(run);
    IS_INSIDE.set(false);
    result
}

/// A fresh world, with or without memory windows.
pub(crate) fn reset(has_windows: bool) {
    with(|world| *world = World { has_windows, ..World::new() });
}

/// Lets a call of `function` fail with `error`, after `after` calls that do not.
pub(crate) fn fail(function: &'static str, after: u32, error: i32) {
    with(|world| world.failures.push((function, after, error)));
}

/// Forgets failures that did not happen.
pub(crate) fn forgive() {
    with(|world| {
        world.failures.clear();
        world.spoiled.clear();
    });
}

/// The next work request of a Send queue (or Receive queue) completes with this status.
pub(crate) fn spoil(is_receive: bool, status: sys::ibv_wc_status) {
    with(|world| world.spoiled.push_back((is_receive, status)));
}

/// What is alive and should not be, when every provider is gone.
pub(crate) fn leaks() -> Vec<(&'static str, i64)> {
    with(|world| world.live.iter().filter(|(_, count)| **count != 0).map(|(k, v)| (*k, *v)).collect())
}

/// How often a function was called.
pub(crate) fn calls(function: &'static str) -> u64 {
    with(|world| world.calls.get(function).copied().unwrap_or(0))
}

/// An event of this kind for every connection identifier that has a queue pair, or is being set up.
pub(crate) fn cm_event(kind: sys::rdma_cm_event_type, status: i32) {
    with(|world| {
        let ids: Vec<usize> = world.ids.keys().copied().collect();
        for id in ids {
            if world.ids[&id].port.is_none() {
                world.event(id, kind, status, Vec::new(), (0, 0));
            }
        }
    });
}

/// An event of this kind for every listener.
pub(crate) fn listener_event(kind: sys::rdma_cm_event_type) {
    with(|world| {
        let is_listener = |(_, id): &(&usize, &Id)| id.port.is_some();
        let ids: Vec<usize> = world.ids.iter().filter(is_listener).map(|(name, _)| *name).collect();
        for id in ids {
            world.event(id, kind, 0, Vec::new(), (0, 0));
        }
    });
}

/// An asynchronous event of this kind, about the first queue pair that there is.
pub(crate) fn async_event(kind: sys::ibv_event_type) {
    with(|world| {
        let qp = world.pairs.values_mut().next().map_or(ptr::null_mut(), |pair| &raw mut *pair.object);
        let element = sys::ibv_async_event__bindgen_ty_1 { qp };
        world.async_events.push_back(sys::ibv_async_event { element, event_type: kind });
        signal(world.context.context.async_fd);
    });
}

/// An asynchronous event of this kind, about the completion queue that was made last.
pub(crate) fn last_queue_event(kind: sys::ibv_event_type) {
    with(|world| {
        let element = sys::ibv_async_event__bindgen_ty_1 { cq: world.last_queue };
        world.async_events.push_back(sys::ibv_async_event { element, event_type: kind });
        signal(world.context.context.async_fd);
    });
}

impl World {
    /// Puts the device into sysfs, so to speak: at this path.
    pub(crate) fn set_path(&mut self, path: &str) {
        for (to, from) in self.device.dev_path.iter_mut().zip(path.bytes().chain([0])) {
            *to = from as libc::c_char;
        }
    }

    /// Makes it an older library's, or driver's.
    pub(crate) fn age(&mut self, age: impl FnOnce(&mut sys::verbs_context)) {
        age(&mut self.context);
    }

    /// What the opened device's two descriptors are of.
    pub(crate) fn descriptors(&self) -> [String; 2] {
        [self.context.context.cmd_fd, self.context.context.async_fd].map(|fd| {
            let link = std::fs::read_link(format!("/proc/self/fd/{fd}"));
            link.map(|link| link.to_string_lossy().into_owned()).unwrap_or_default()
        })
    }

    /// Adds a second device, `fake1`.
    pub(crate) fn add_device(&mut self) {
        self.other = Some(device(b"fake1"));
    }

    /// The device that an address leads to; none, if it is all addresses.
    fn device_at(&mut self, ip: std::net::IpAddr) -> *mut sys::ibv_context {
        match &mut self.other {
            _ if ip.is_unspecified() => ptr::null_mut(),
            Some((_, context)) if ip == std::net::IpAddr::from([127, 0, 0, 2]) => inner(context),
            _ => inner(&mut self.context),
        }
    }

    fn new() -> World {
        let (device, context) = device(b"fake0");
        World {
            has_windows: true,
            is_iwarp: false,
            has_srq: true,
            requests_per_poll: 1,
            seen: Seen::default(),
            has_device: true,
            device,
            context,
            paging: (0, 0),
            other: None,
            failures: Vec::new(),
            spoiled: VecDeque::new(),
            calls: BTreeMap::new(),
            live: BTreeMap::new(),
            next_key: 0x0100,
            next_number: 0,
            channels: BTreeMap::new(),
            ids: BTreeMap::new(),
            queues: BTreeMap::new(),
            last_queue: ptr::null_mut(),
            srqs: BTreeMap::new(),
            pairs: BTreeMap::new(),
            regions: BTreeMap::new(),
            windows: BTreeMap::new(),
            async_events: VecDeque::new(),
        }
    }

    /// Counts a call. `Some`: it is to fail with that error, which is in errno too.
    fn called(&mut self, function: &'static str) -> Option<i32> {
        *self.calls.entry(function).or_default() += 1;
        let at = self.failures.iter().position(|(name, _, _)| *name == function)?;
        if self.failures[at].1 > 0 {
            self.failures[at].1 -= 1;
            return None;
        }
        let (_, _, error) = self.failures.remove(at);
        set_errno(error);
        Some(error)
    }

    fn born(&mut self, what: &'static str) {
        *self.live.entry(what).or_default() += 1;
    }

    fn died(&mut self, what: &'static str) {
        *self.live.entry(what).or_default() -= 1;
    }

    /// The next key: its last octet is for windows to count in.
    fn key(&mut self) -> u32 {
        self.next_key += 0x0100;
        self.next_key
    }
}

/// A device, and what it is when it is open.
fn device(name: &[u8]) -> (Box<sys::ibv_device>, Box<sys::verbs_context>) {
    // SAFETY: C structures of numbers and pointers, for which all zeros is a value.
    let (mut device, mut opened): (Box<sys::ibv_device>, Box<sys::verbs_context>) =
        unsafe { (Box::new(std::mem::zeroed()), Box::new(std::mem::zeroed())) };
    device.transport_type = sys::IBV_TRANSPORT_IB;
    for (to, from) in device.name.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    opened.sz = size_of::<sys::verbs_context>();
    opened.query_device_ex = Some(verbs::query_device_ex);
    let context = &mut opened.context;
    context.abi_compat = sys::VERBS_ABI_IS_EXTENDED;
    context.device = &raw mut *device;
    context.num_comp_vectors = 3;
    context.async_fd = eventfd();
    context.cmd_fd = eventfd();
    context.ops.post_send = Some(verbs::post_send);
    context.ops.post_recv = Some(verbs::post_recv);
    context.ops.post_srq_recv = Some(verbs::post_srq_recv);
    context.ops.poll_cq = Some(verbs::poll_cq);
    context.ops.req_notify_cq = Some(verbs::req_notify_cq);
    context.ops.alloc_mw = Some(verbs::alloc_mw);
    context.ops.dealloc_mw = Some(verbs::dealloc_mw);
    (device, opened)
}

/// As the library gives it out: in the middle of more.
fn inner(opened: &mut Box<sys::verbs_context>) -> *mut sys::ibv_context {
    (&raw mut **opened).wrapping_byte_add(offset_of!(sys::verbs_context, context)).cast()
}

fn eventfd() -> libc::c_int {
    // SAFETY: no memory is passed.
    unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) }
}

fn signal(fd: libc::c_int) {
    // SAFETY: eight octets are read.
    unsafe { libc::write(fd, (&raw const ONE).cast(), 8) };
}

static ONE: u64 = 1;

fn clear(fd: libc::c_int) {
    let mut count = 0u64;
    // SAFETY: eight octets are written.
    unsafe { libc::read(fd, (&raw mut count).cast(), 8) };
}

fn set_errno(error: i32) {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = error };
}
