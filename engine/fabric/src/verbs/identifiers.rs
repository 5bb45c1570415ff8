//! Owners of librdmacm's objects: the channel of its events, and identifiers, which own their queue pairs. Each frees its
//! object when dropped, and keeps alive the objects it depends on: an identifier its channel, a queue pair its domain and
//! completion queue.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::Arc;

use socket2::SockAddr;
use stag_rdma_core_sys as sys;
use stag_rdma_core_sys::RdmaCore;

use super::objects::{
    CompletionQueue, ProtectionDomain, check, check_pointer, freed, init_attributes, set_nonblocking,
};
use super::receives::SharedReceivePool;
use crate::epoll::Token;

/// The channel of connection manager events, non-blocking.
pub(super) struct EventChannel {
    core: &'static RdmaCore,
    raw: NonNull<sys::rdma_event_channel>,
}

impl EventChannel {
    pub(super) fn new(core: &'static RdmaCore) -> io::Result<EventChannel> {
        // SAFETY: nothing is passed.
        let raw = check_pointer(unsafe { (core.cm.rdma_create_event_channel)() })?;
        let channel = EventChannel { core, raw };
        set_nonblocking(channel.descriptor().as_raw_fd())?;
        Ok(channel)
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: open while the channel is, which is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }

    /// The next event, if there is one. It is acknowledged: all of it is copied.
    pub(super) fn next(self: &Arc<EventChannel>) -> Option<CmEvent> {
        let mut raw = ptr::null_mut();
        // SAFETY: alive and non-blocking.
        if unsafe { (self.core.cm.rdma_get_cm_event)(self.raw.as_ptr(), &mut raw) } != 0 {
            return None;
        }
        // SAFETY: an event was got; it and what it points to stay until it is acknowledged below. Reliable
        // connections, which are all that we make, use the `conn` part.
        let (event, conn) = unsafe { (&*raw, &(*raw).param.conn) };
        let private_data = if conn.private_data.is_null() {
            Vec::new()
        } else {
            // SAFETY: as above; the event says how long it is.
            unsafe {
                std::slice::from_raw_parts(conn.private_data.cast::<u8>(), conn.private_data_len.into())
            }
            .to_vec()
        };
        let is_request = event.event == sys::RDMA_CM_EVENT_CONNECT_REQUEST;
        // SAFETY: an event names an identifier that exists.
        let token = Token::decode(unsafe { (*event.id).context } as usize as u64);
        let copy = CmEvent {
            kind: event.event,
            status: event.status,
            token,
            private_data,
            responder_resources: conn.responder_resources,
            initiator_depth: conn.initiator_depth,
            // The identifier of a new connection is ours from here on.
            incoming: is_request.then(|| NonNull::new(event.id)).flatten().map(|raw| CmId {
                raw,
                queue_pair: None,
                channel: Arc::clone(self),
            }),
        };
        // SAFETY: just got, acknowledged once, not used afterwards.
        unsafe { (self.core.cm.rdma_ack_cm_event)(raw) };
        Some(copy)
    }
}

// SAFETY: librdmacm may be called from several threads; what is here besides is the address of its channel, which does not change.
unsafe impl Send for EventChannel {}
// SAFETY: as above. Only the provider that made it takes events from it; others let identifiers go to it.
unsafe impl Sync for EventChannel {}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: identifiers hold an `Arc` of it, so they are gone; every event was acknowledged when it was got.
        unsafe { (self.core.cm.rdma_destroy_event_channel)(self.raw.as_ptr()) };
    }
}

/// A connection manager event.
pub(super) struct CmEvent {
    pub(super) kind: sys::rdma_cm_event_type,
    pub(super) status: libc::c_int,
    /// Of the identifier that it is about; of the listener's for a request.
    pub(super) token: Token,
    pub(super) private_data: Vec<u8>,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    /// The new identifier of a request.
    pub(super) incoming: Option<CmId>,
}

/// What a connection's set-up says to the other side.
#[derive(Clone, Copy)]
pub(super) struct Parameters<'a> {
    pub(super) private_data: &'a [u8],
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) rnr_retry_count: u8,
}

impl Parameters<'_> {
    fn raw(&self) -> sys::rdma_conn_param {
        sys::rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: u8::try_from(self.private_data.len()).expect("checked against the limit"),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            // As often as there is: a lost packet must not end a connection.
            retry_count: 7,
            rnr_retry_count: self.rnr_retry_count,
            srq: 0,
            qp_num: 0,
        }
    }
}

/// A token as the number that an identifier has instead of a pointer.
fn context(token: Token) -> *mut libc::c_void {
    token.encode() as usize as *mut libc::c_void
}

/// What a queue pair stands on.
struct Foundation {
    _domain: Rc<ProtectionDomain>,
    _queue: Rc<CompletionQueue>,
    _shared: Option<Rc<SharedReceivePool>>,
}

/// An identifier of the connection manager, and its queue pair if it has one.
pub(super) struct CmId {
    raw: NonNull<sys::rdma_cm_id>,
    queue_pair: Option<Foundation>,
    channel: Arc<EventChannel>,
}

impl CmId {
    pub(super) fn new(channel: &Arc<EventChannel>, token: Token) -> io::Result<CmId> {
        let mut raw = ptr::null_mut();
        let (create, context) = (channel.core.cm.rdma_create_id, context(token));
        // SAFETY: a channel that is alive; the context is a number that is never followed.
        check(unsafe { create(channel.raw.as_ptr(), &mut raw, context, sys::RDMA_PS_TCP) })?;
        Ok(CmId { raw: check_pointer(raw)?, queue_pair: None, channel: Arc::clone(channel) })
    }

    fn cm(&self) -> &'static sys::Cm {
        &self.channel.core.cm
    }

    /// Sets what its events carry.
    pub(super) fn set_token(&mut self, token: Token) {
        // SAFETY: alive; librdmacm only passes the context on.
        unsafe { self.raw.as_mut().context = context(token) };
    }

    /// Lets its events go to another channel from now on, with those that are still queued. Blocks until every event that was
    /// taken is acknowledged; `next` acknowledges at once, so it does not block here.
    pub(super) fn migrate(&mut self, to: &Arc<EventChannel>) -> io::Result<()> {
        // SAFETY: both are alive. No event is taken from the old channel meanwhile: it is that of the caller.
        check(unsafe { (self.cm().rdma_migrate_id)(self.raw.as_ptr(), to.raw.as_ptr()) })?;
        self.channel = Arc::clone(to);
        Ok(())
    }

    /// Whether its queue pair was made.
    pub(super) fn has_queue_pair(&self) -> bool {
        self.queue_pair.is_some()
    }

    /// Says how long the device waits for an acknowledgement. A kernel or a device that does not know of this keeps
    /// its own time.
    pub(super) fn set_ack_timeout(&self, timeout: u8) {
        let mut value = timeout;
        let (level, name) =
            (sys::RDMA_OPTION_ID as libc::c_int, sys::RDMA_OPTION_ID_ACK_TIMEOUT as libc::c_int);
        let set = self.cm().rdma_set_option;
        // SAFETY: alive; one octet is read during the call.
        let returned = unsafe { set(self.raw.as_ptr(), level, name, (&raw mut value).cast(), 1) };
        if let Err(error) = check(returned) {
            tracing::debug!("set the acknowledgement timeout: {error}");
        }
    }

    /// The device that it was bound to; null before that.
    pub(super) fn context(&self) -> *mut sys::ibv_context {
        // SAFETY: alive.
        unsafe { self.raw.as_ref().verbs }
    }

    /// The queue pair; null if it has none.
    #[inline]
    pub(super) fn queue_pair(&self) -> *mut sys::ibv_qp {
        // SAFETY: alive.
        unsafe { self.raw.as_ref().qp }
    }

    /// The device's number of the queue pair, which its completions carry; 0 if it has none.
    pub(super) fn queue_pair_number(&self) -> u32 {
        // SAFETY: alive, and so is its queue pair.
        unsafe { self.queue_pair().as_ref() }.map_or(0, |queue_pair| queue_pair.qp_num)
    }

    /// The other end's address.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: alive; a socket address of any family fits into the union.
        unsafe { socket_address((&raw const (*self.raw.as_ptr()).route.addr.__bindgen_anon_2).cast()) }
    }

    /// This end's address.
    pub(super) fn local(&self) -> Option<SocketAddr> {
        // SAFETY: as in `peer`.
        unsafe { socket_address((&raw const (*self.raw.as_ptr()).route.addr.__bindgen_anon_1).cast()) }
    }

    /// Takes an address of this machine; with it comes the device that it belongs to, if it is of one.
    pub(super) fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let address = SockAddr::from(address);
        let to = address.as_ptr().cast_mut().cast();
        // SAFETY: alive; the address is read during the call.
        check(unsafe { (self.cm().rdma_bind_addr)(self.raw.as_ptr(), to) })
    }

    /// Listens at the address that it is bound to.
    pub(super) fn listen(&self, backlog: u32) -> io::Result<()> {
        let backlog = backlog.min(i32::MAX as u32) as libc::c_int;
        // SAFETY: alive.
        check(unsafe { (self.cm().rdma_listen)(self.raw.as_ptr(), backlog) })
    }

    pub(super) fn resolve_address(&self, address: SocketAddr, timeout_ms: i32) -> io::Result<()> {
        let address = SockAddr::from(address);
        let to = address.as_ptr().cast_mut().cast();
        let resolve = self.cm().rdma_resolve_addr;
        // SAFETY: alive; the address is read during the call.
        check(unsafe { resolve(self.raw.as_ptr(), ptr::null_mut(), to, timeout_ms) })
    }

    pub(super) fn resolve_route(&self, timeout_ms: i32) -> io::Result<()> {
        // SAFETY: alive.
        check(unsafe { (self.cm().rdma_resolve_route)(self.raw.as_ptr(), timeout_ms) })
    }

    /// Makes its queue pair, in the state in which Receives can be posted, and says what it can.
    pub(super) fn create_queue_pair(
        &mut self,
        domain: &Rc<ProtectionDomain>,
        queue: &Rc<CompletionQueue>,
        shared: Option<&Rc<SharedReceivePool>>,
        cap: sys::ibv_qp_cap,
    ) -> io::Result<sys::ibv_qp_cap> {
        let mut attributes = init_attributes(queue, cap);
        attributes.srq = shared.map_or(ptr::null_mut(), |shared| shared.queue().as_ptr());
        let create = self.cm().rdma_create_qp;
        // SAFETY: all of it is alive, and kept so below; the attributes live through the call.
        check(unsafe { create(self.raw.as_ptr(), domain.as_ptr(), &mut attributes) })?;
        let (_domain, _queue, _shared) = (Rc::clone(domain), Rc::clone(queue), shared.cloned());
        self.queue_pair = Some(Foundation { _domain, _queue, _shared });
        Ok(attributes.cap)
    }

    pub(super) fn connect(&self, parameters: Parameters<'_>) -> io::Result<()> {
        let mut raw = parameters.raw();
        // SAFETY: alive; the parameters and the private data are read during the call.
        check(unsafe { (self.cm().rdma_connect)(self.raw.as_ptr(), &mut raw) })
    }

    pub(super) fn accept(&self, parameters: Parameters<'_>) -> io::Result<()> {
        let mut raw = parameters.raw();
        // SAFETY: as in `connect`.
        check(unsafe { (self.cm().rdma_accept)(self.raw.as_ptr(), &mut raw) })
    }

    pub(super) fn reject(&self, reason: &[u8]) {
        let len = reason.len().min(u8::MAX.into());
        // SAFETY: alive; the reason is read during the call. If it fails the peer is gone already.
        unsafe { (self.cm().rdma_reject)(self.raw.as_ptr(), reason.as_ptr().cast(), len as u8) };
    }

    /// Tells the connection manager that a message came before it heard that the connection is there.
    pub(super) fn notify_established(&self) {
        // SAFETY: alive. If it fails, the connection manager knows already.
        unsafe { (self.cm().rdma_notify)(self.raw.as_ptr(), sys::IBV_EVENT_COMM_EST) };
    }

    /// Ends the connection, and everything posted on its queue pair.
    pub(super) fn disconnect(&self) {
        // SAFETY: alive. If it fails there is no connection; what is posted ends below in any case.
        unsafe { (self.cm().rdma_disconnect)(self.raw.as_ptr()) };
        self.flush();
    }

    /// Makes the queue pair give everything posted back.
    pub(super) fn flush(&self) {
        if self.queue_pair.is_none() {
            return;
        }
        // SAFETY: numbers and pointers, of which the mask says that only the state is read.
        let mut attributes: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
        attributes.qp_state = sys::IBV_QPS_ERR;
        let modify = self.channel.core.verbs.ibv_modify_qp;
        // SAFETY: it has a queue pair. If it fails, destroying it ends what is posted.
        unsafe { modify(self.queue_pair(), &mut attributes, sys::IBV_QP_STATE as libc::c_int) };
    }
}

/// The address that is there, if it is one of IP.
///
/// # Safety
///
/// It is a socket address of any family, or zeros, in room for one of IPv6.
pub(super) unsafe fn socket_address(address: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: whatever its family, an address begins with it; zeros say that there is none.
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says what it is.
            let address = unsafe { &*address.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
            Some(SocketAddr::from((ip, u16::from_be(address.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says what it is.
            let address = unsafe { &*address.cast::<libc::sockaddr_in6>() };
            let (ip, port) = (Ipv6Addr::from(address.sin6_addr.s6_addr), u16::from_be(address.sin6_port));
            // The scope belongs to it: without, a link-local address is ambiguous.
            Some(SocketAddrV6::new(ip, port, address.sin6_flowinfo, address.sin6_scope_id).into())
        }
        _ => None,
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        if self.queue_pair.is_some() {
            // SAFETY: it has one, which is no longer used: it is only reached through `self`.
            unsafe { (self.cm().rdma_destroy_qp)(self.raw.as_ptr()) };
        }
        // SAFETY: the last use; its events were acknowledged when they were got.
        freed("a connection identifier", unsafe { (self.cm().rdma_destroy_id)(self.raw.as_ptr()) });
    }
}
