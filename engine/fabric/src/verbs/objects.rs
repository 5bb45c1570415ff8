//! Owners of libibverbs' objects. Each frees its object when dropped, and keeps alive the objects it depends on: a region
//! its domain, a completion queue its channel, everything its device. Queue pairs are in `identifiers`.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use stag_rdma_core_sys as sys;
use stag_rdma_core_sys::RdmaCore;

/// Turns "0 or an error number", and "0 or -1 and errno", into a result.
pub(super) fn check(returned: libc::c_int) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        number if number > 0 => Err(io::Error::from_raw_os_error(number)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// An object, or errno.
pub(super) fn check_pointer<T>(pointer: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(io::Error::last_os_error)
}

/// Says what could not be freed. Nothing more can be done: the device is most likely gone, and its objects with it.
pub(super) fn freed(what: &'static str, returned: libc::c_int) {
    if let Err(error) = check(returned) {
        tracing::warn!("free {what}: {error}");
    }
}

/// Makes reads of a descriptor return at once.
pub(super) fn set_nonblocking(fd: libc::c_int) -> io::Result<()> {
    // SAFETY: flags of a descriptor touch no memory.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) })
}

/// The list of devices that librdmacm opened. They stay open while the list lives.
pub(super) struct DeviceList {
    core: &'static RdmaCore,
    // Invariant: `count` contexts, valid until `rdma_free_devices`.
    list: NonNull<*mut sys::ibv_context>,
    count: usize,
}

impl DeviceList {
    pub(super) fn new(core: &'static RdmaCore) -> io::Result<DeviceList> {
        let mut count = 0;
        // SAFETY: it writes one number.
        let list = check_pointer(unsafe { (core.cm.rdma_get_devices)(&mut count) })?;
        Ok(DeviceList { core, list, count: usize::try_from(count).unwrap_or(0) })
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Opens nothing: the device as one of the list.
    pub(super) fn device(self: &Rc<DeviceList>, at: usize) -> Device {
        assert!(at < self.count, "device {at} of {}", self.count);
        // SAFETY: within the list, as just checked (invariant of the field).
        let raw = unsafe { *self.list.as_ptr().add(at) };
        Device { raw: NonNull::new(raw).expect("rdma_get_devices lists no null"), list: Rc::clone(self) }
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: what `rdma_get_devices` returned; every `Device` holds the list, so no device of it is in use
        // any more.
        unsafe { (self.core.cm.rdma_free_devices)(self.list.as_ptr()) };
    }
}

/// An opened device.
#[derive(Clone)]
pub(super) struct Device {
    // Invariant: an open context, for as long as `list` lives.
    raw: NonNull<sys::ibv_context>,
    list: Rc<DeviceList>,
}

impl Device {
    fn verbs(&self) -> &'static sys::Verbs {
        &self.list.core.verbs
    }

    /// The completion vector for one more queue. Each is an interrupt of its own: reactors that sleep are not all woken by
    /// the same core.
    fn next_vector(&self) -> libc::c_int {
        // Only counts: no partner.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // SAFETY: an open context (invariant).
        let count = u32::try_from(unsafe { self.raw.as_ref().num_comp_vectors }).unwrap_or(0).max(1);
        (NEXT.fetch_add(1, Ordering::Relaxed) % count) as libc::c_int
    }

    /// For comparing with the context of a connection.
    pub(super) fn as_ptr(&self) -> *mut sys::ibv_context {
        self.raw.as_ptr()
    }

    pub(super) fn name(&self) -> String {
        // SAFETY: an open context (invariant) has a device; the name is a C string in it.
        let name = unsafe { CStr::from_ptr((self.verbs().ibv_get_device_name)(self.raw.as_ref().device)) };
        name.to_string_lossy().into_owned()
    }

    /// Where sysfs has it; empty where sysfs does not.
    pub(super) fn path(&self) -> Option<PathBuf> {
        // SAFETY: as in `name`; libibverbs wrote a C string into the array.
        let path = unsafe { CStr::from_ptr((&raw const (*self.raw.as_ref().device).dev_path).cast()) };
        path.to_str().ok().map(PathBuf::from)
    }

    /// Puts another file in the place of those of a device that is gone, so that the kernel sees it closed. No object
    /// of it may be in use.
    pub(super) fn replace_descriptors(&self, with: libc::c_int) {
        // SAFETY: an open context (invariant); its descriptors are numbers, open until it is closed.
        let (commands, events) = unsafe { (self.raw.as_ref().cmd_fd, self.raw.as_ref().async_fd) };
        for descriptor in [events, commands] {
            // SAFETY: the number stays open and stays librdmacm's, which will close it; commands to it fail.
            unsafe { libc::dup2(with, descriptor) };
        }
    }

    pub(super) fn transport(&self) -> sys::ibv_transport_type {
        // SAFETY: as in `name`.
        unsafe { (*self.raw.as_ref().device).transport_type }
    }

    pub(super) fn attributes(&self) -> io::Result<sys::ibv_device_attr> {
        // SAFETY: numbers, for which all zeros is a value.
        let mut attributes: sys::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: an open context; the structure is as large as rdma-core 44's, which later ones keep.
        check(unsafe { (self.verbs().ibv_query_device)(self.raw.as_ptr(), &mut attributes) })?;
        Ok(attributes)
    }

    /// As [`Device::attributes`], with those that not every driver knows: zeros, if this one does not.
    pub(super) fn extended_attributes(&self) -> io::Result<sys::ibv_device_attr_ex> {
        // SAFETY: numbers, for which all zeros is a value.
        let mut attributes: sys::ibv_device_attr_ex = unsafe { std::mem::zeroed() };
        // SAFETY: an open context; the driver is told how long the structure is.
        check(unsafe { sys::ibv_query_device_ex(self.verbs(), self.raw.as_ptr(), &mut attributes) })?;
        Ok(attributes)
    }

    pub(super) fn port(&self, number: u8) -> io::Result<sys::ibv_port_attr> {
        // SAFETY: numbers, for which all zeros is a value.
        let mut port: sys::ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the function fills the front part, which the two structures share; what it leaves is zero.
        check(unsafe { (self.verbs().ibv_query_port)(self.raw.as_ptr(), number, (&raw mut port).cast()) })?;
        Ok(port)
    }

    /// The next asynchronous event, if there is one. It is acknowledged. An error: the driver has parted from the device.
    pub(super) fn next_async_event(&self) -> io::Result<Option<AsyncEvent>> {
        // SAFETY: a union of pointers and a number, for which all zeros is a value.
        let mut event: sys::ibv_async_event = unsafe { std::mem::zeroed() };
        // SAFETY: an open context; its descriptor was made non-blocking in `prepare_async_events`.
        if unsafe { (self.verbs().ibv_get_async_event)(self.raw.as_ptr(), &mut event) } != 0 {
            let error = io::Error::last_os_error();
            let is_gone = matches!(error.raw_os_error(), Some(libc::EIO | libc::ENODEV));
            return if is_gone { Err(error) } else { Ok(None) };
        }
        // SAFETY: the type says which field of the union it is. A queue pair is not destroyed before its event is
        // acknowledged: until then its number can be read.
        let about = unsafe {
            match event.event_type {
                sys::IBV_EVENT_CQ_ERR => About::CompletionQueue(event.element.cq as usize),
                sys::IBV_EVENT_SRQ_ERR => About::SharedReceives(event.element.srq as usize),
                sys::IBV_EVENT_QP_FATAL
                | sys::IBV_EVENT_QP_REQ_ERR
                | sys::IBV_EVENT_QP_ACCESS_ERR
                | sys::IBV_EVENT_COMM_EST
                | sys::IBV_EVENT_QP_LAST_WQE_REACHED => {
                    About::QueuePair(event.element.qp.as_ref().map_or(0, |queue_pair| queue_pair.qp_num))
                }
                _ => About::Device,
            }
        };
        // SAFETY: just got, and acknowledged once.
        unsafe { (self.verbs().ibv_ack_async_event)(&mut event) };
        Ok(Some(AsyncEvent { kind: event.event_type, about }))
    }

    /// The descriptor of asynchronous events, made non-blocking.
    pub(super) fn prepare_async_events(&self) -> io::Result<BorrowedFd<'_>> {
        // SAFETY: an open context has an open descriptor.
        let fd = unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().async_fd) };
        set_nonblocking(fd.as_raw_fd())?;
        Ok(fd)
    }
}

/// An event of the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct AsyncEvent {
    pub(super) kind: sys::ibv_event_type,
    pub(super) about: About,
}

/// What an event is about. The queues are named by their addresses, which are only compared.
#[derive(Clone, Copy, Debug)]
pub(super) enum About {
    /// The queue pair of that number.
    QueuePair(u32),
    CompletionQueue(usize),
    SharedReceives(usize),
    /// The device, a port, or what we do not mind.
    Device,
}

/// A protection domain.
pub(super) struct ProtectionDomain {
    raw: NonNull<sys::ibv_pd>,
    device: Device,
}

impl ProtectionDomain {
    pub(super) fn new(device: &Device) -> io::Result<ProtectionDomain> {
        // SAFETY: an open context.
        let raw = check_pointer(unsafe { (device.verbs().ibv_alloc_pd)(device.raw.as_ptr()) })?;
        Ok(ProtectionDomain { raw, device: device.clone() })
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }

    /// Tries whether a reliable connected queue pair with such a capacity can be made, and says what it would get.
    pub(super) fn try_queue_pair(
        &self,
        queue: &CompletionQueue,
        cap: sys::ibv_qp_cap,
    ) -> io::Result<sys::ibv_qp_cap> {
        let mut attributes = init_attributes(queue, cap);
        let verbs = self.device.verbs();
        // SAFETY: a domain and a completion queue that are alive; the attributes live through the call.
        let trial = check_pointer(unsafe { (verbs.ibv_create_qp)(self.raw.as_ptr(), &mut attributes) })?;
        // SAFETY: just made, and not used yet.
        freed("a queue pair", unsafe { (verbs.ibv_destroy_qp)(trial.as_ptr()) });
        Ok(attributes.cap)
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: regions, windows and queue pairs hold an `Rc` of the domain, so they are gone.
        freed("a protection domain", unsafe { (self.device.verbs().ibv_dealloc_pd)(self.raw.as_ptr()) });
    }
}

/// A registered piece of memory.
pub(super) struct MemoryRegion {
    raw: NonNull<sys::ibv_mr>,
    domain: Rc<ProtectionDomain>,
}

impl MemoryRegion {
    /// Registers `len` bytes.
    ///
    /// # Safety
    ///
    /// They are mapped for as long as the region lives; and where `access` lets the device write, no
    /// references exist to what it may write while it may.
    pub(super) unsafe fn new(
        domain: &Rc<ProtectionDomain>,
        base: *mut u8,
        len: usize,
        access: sys::ibv_access_flags,
    ) -> io::Result<MemoryRegion> {
        let register = domain.device.verbs().ibv_reg_mr;
        // SAFETY: a domain that is alive; the memory is the caller's word.
        let raw = unsafe { register(domain.raw.as_ptr(), base.cast(), len, access as libc::c_int) };
        Ok(MemoryRegion { raw: check_pointer(raw)?, domain: Rc::clone(domain) })
    }

    #[inline]
    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: alive while `self` is; the key never changes.
        unsafe { self.raw.as_ref().lkey }
    }

    #[inline]
    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: as in `lkey`.
        unsafe { self.raw.as_ref().rkey }
    }

    #[inline]
    pub(super) fn as_ptr(&self) -> *mut sys::ibv_mr {
        self.raw.as_ptr()
    }

    /// Ends the registration; after `Ok` no device touches the memory through it. On an error it is as it was.
    pub(super) fn deregister(self) -> Result<(), (MemoryRegion, io::Error)> {
        // SAFETY: alive; on success it is not used again, because `self` is forgotten.
        let returned = unsafe { (self.domain.device.verbs().ibv_dereg_mr)(self.raw.as_ptr()) };
        match check(returned) {
            Ok(()) => {
                let this = std::mem::ManuallyDrop::new(self);
                // SAFETY: read once, and `this` is not dropped: the domain's count goes down once.
                drop(unsafe { ptr::read(&this.domain) });
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: alive, and the last use.
        freed("a memory region", unsafe { (self.domain.device.verbs().ibv_dereg_mr)(self.raw.as_ptr()) });
    }
}

/// A type 2 memory window.
pub(super) struct MemoryWindow {
    raw: NonNull<sys::ibv_mw>,
    // Windows go before their domain.
    _domain: Rc<ProtectionDomain>,
}

impl MemoryWindow {
    pub(super) fn new(domain: &Rc<ProtectionDomain>) -> io::Result<MemoryWindow> {
        // SAFETY: a domain that is alive.
        let raw = check_pointer(unsafe { sys::ibv_alloc_mw(domain.raw.as_ptr(), sys::IBV_MW_TYPE_2) })?;
        Ok(MemoryWindow { raw, _domain: Rc::clone(domain) })
    }

    #[inline]
    pub(super) fn as_ptr(&self) -> *mut sys::ibv_mw {
        self.raw.as_ptr()
    }

    #[inline]
    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: alive while `self` is.
        unsafe { self.raw.as_ref().rkey }
    }

    /// Notes the key that a bind gives it: for type 2 that is left to the caller of `ibv_post_send`.
    #[inline]
    pub(super) fn set_rkey(&mut self, rkey: u32) {
        // SAFETY: alive, and only `self` and the driver's posting, which runs in our calls, reach it.
        unsafe { self.raw.as_mut().rkey = rkey };
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        // SAFETY: alive, and the last use. If it is bound, this ends it.
        freed("a memory window", unsafe { sys::ibv_dealloc_mw(self.raw.as_ptr()) });
    }
}

/// A completion queue, with a channel for its events if somebody may sleep on it.
pub(super) struct CompletionQueue {
    raw: NonNull<sys::ibv_cq>,
    channel: Option<CompletionChannel>,
    device: Device,
}

impl CompletionQueue {
    pub(super) fn new(device: &Device, entries: u32, with_channel: bool) -> io::Result<CompletionQueue> {
        let channel = with_channel.then(|| CompletionChannel::new(device)).transpose()?;
        let channel_raw = channel.as_ref().map_or(ptr::null_mut(), |channel| channel.raw.as_ptr());
        let entries = entries.min(i32::MAX as u32) as libc::c_int;
        let create = device.verbs().ibv_create_cq;
        // SAFETY: an open context, and a channel of it or none.
        let raw = unsafe {
            create(device.raw.as_ptr(), entries, ptr::null_mut(), channel_raw, device.next_vector())
        };
        Ok(CompletionQueue { raw: check_pointer(raw)?, channel, device: device.clone() })
    }

    /// Entries that it holds: at least what was asked for.
    pub(super) fn len(&self) -> u32 {
        // SAFETY: alive while `self` is.
        u32::try_from(unsafe { self.raw.as_ref().cqe }).unwrap_or(0)
    }

    /// For comparing with what an event is about.
    pub(super) fn address(&self) -> usize {
        self.raw.as_ptr() as usize
    }

    /// Takes completions into `into`, and returns how many, or `None` when the queue is broken.
    #[inline]
    pub(super) fn poll(&self, into: &mut [sys::ibv_wc]) -> Option<usize> {
        let room = into.len() as libc::c_int;
        // SAFETY: alive; `into` has room for `room` completions.
        let count = unsafe { sys::ibv_poll_cq(self.raw.as_ptr(), room, into.as_mut_ptr()) };
        usize::try_from(count).ok().filter(|&count| count <= into.len())
    }

    /// Asks for an event at the next completion. Completions that are there already make none: poll once more.
    pub(super) fn request_event(&self) -> bool {
        // SAFETY: alive.
        unsafe { sys::ibv_req_notify_cq(self.raw.as_ptr(), 0) == 0 }
    }

    /// Takes the events that came.
    pub(super) fn clear_events(&self) {
        let Some(channel) = &self.channel else { return };
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        let verbs = self.device.verbs();
        let mut count = 0;
        // SAFETY: a channel that is alive and non-blocking; only our one queue is on it.
        while unsafe { (verbs.ibv_get_cq_event)(channel.raw.as_ptr(), &mut queue, &mut context) } == 0 {
            count += 1;
        }
        if count > 0 {
            // SAFETY: `count` events of this queue were got.
            unsafe { (verbs.ibv_ack_cq_events)(self.raw.as_ptr(), count) };
        }
    }

    /// What becomes readable at an event.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: open while the channel is, which is borrowed.
        self.channel.as_ref().map(|channel| unsafe { BorrowedFd::borrow_raw(channel.raw.as_ref().fd) })
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.clear_events();
        // SAFETY: queue pairs hold an `Rc` of it, so they are gone; its events are acknowledged.
        freed("a completion queue", unsafe { (self.device.verbs().ibv_destroy_cq)(self.raw.as_ptr()) });
    }
}

struct CompletionChannel {
    raw: NonNull<sys::ibv_comp_channel>,
    device: Device,
}

impl CompletionChannel {
    fn new(device: &Device) -> io::Result<CompletionChannel> {
        // SAFETY: an open context.
        let raw = check_pointer(unsafe { (device.verbs().ibv_create_comp_channel)(device.raw.as_ptr()) })?;
        let channel = CompletionChannel { raw, device: device.clone() };
        // SAFETY: just made.
        set_nonblocking(unsafe { channel.raw.as_ref().fd })?;
        Ok(channel)
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: its queue is gone: it is dropped by it, after its own `drop`.
        freed("a completion channel", unsafe {
            (self.device.verbs().ibv_destroy_comp_channel)(self.raw.as_ptr())
        });
    }
}

/// A receive queue that queue pairs share.
pub(super) struct SharedReceiveQueue {
    raw: NonNull<sys::ibv_srq>,
    domain: Rc<ProtectionDomain>,
}

impl SharedReceiveQueue {
    pub(super) fn new(domain: &Rc<ProtectionDomain>, count: u32) -> io::Result<SharedReceiveQueue> {
        let attr = sys::ibv_srq_attr { max_wr: count, max_sge: 1, srq_limit: 0 };
        let mut attributes = sys::ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
        let create = domain.device.verbs().ibv_create_srq;
        // SAFETY: a domain that is alive; the attributes live through the call.
        let raw = check_pointer(unsafe { create(domain.raw.as_ptr(), &mut attributes) })?;
        Ok(SharedReceiveQueue { raw, domain: Rc::clone(domain) })
    }

    #[inline]
    pub(super) fn as_ptr(&self) -> *mut sys::ibv_srq {
        self.raw.as_ptr()
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold an `Rc` of what owns it, so they are gone.
        let returned = unsafe { (self.domain.device.verbs().ibv_destroy_srq)(self.raw.as_ptr()) };
        freed("a shared receive queue", returned);
    }
}

/// What a queue pair is made with.
pub(super) fn init_attributes(queue: &CompletionQueue, cap: sys::ibv_qp_cap) -> sys::ibv_qp_init_attr {
    sys::ibv_qp_init_attr {
        qp_context: ptr::null_mut(),
        send_cq: queue.raw.as_ptr(),
        recv_cq: queue.raw.as_ptr(),
        srq: ptr::null_mut(),
        cap,
        qp_type: sys::IBV_QPT_RC,
        sq_sig_all: 0,
    }
}
