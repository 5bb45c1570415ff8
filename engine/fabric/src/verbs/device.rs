//! The opened device: which one, its abilities, and the state that all queue pairs of a provider share.

use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use stag_memory::Arena;
use stag_rdma_core_sys as sys;
use stag_rdma_core_sys::RdmaCore;

use super::config::{SharedReceives, VerbsConfig};
use super::domain::{Domain, STANDING};
use super::errors::{hint, unavailable};
use super::objects::{CompletionQueue, Device, DeviceList, MemoryWindow, ProtectionDomain};
use super::presence::Claim;
use super::receives::SharedReceivePool;
use super::sysfs;
use crate::scatter::RECEIVE_TARGETS_MAX;
use crate::{ExposureKind, FabricError};

/// Protection domains, with all arenas registered in them, that are kept for connections to come.
const SPARE_DOMAINS_MAX: usize = 16;

/// InfiniBand's connection request has room for 92 octets, of which the connection manager takes 36. iWARP has
/// more, which is not needed.
pub(super) const PRIVATE_DATA_LEN_MAX: usize = 56;

/// The vendor that siw names, and how long its connecting side keeps still. Its listening side answers before it reads
/// the socket for the first time: a message that arrives in between stays unread until the next one.
const SIW_VENDOR: u32 = 0x0062_6d74;
const SIW_SETTLE: Duration = Duration::from_millis(50);

/// siw does not copy what is at least a page long and asks for no completion (`SENDPAGE_THRESH`): TCP takes it out of the
/// user's memory, and that is done when the peer has it, not when siw says so. A page of the smallest kind there is.
const SIW_LENT_FROM: u32 = 4096;

/// A queue of siw that is mapped at 0x90000 of the opened device is one that its library takes for failed
/// (`SIW_INVAL_UOBJ_KEY`): the 26th queue pair or so cannot be made, and none after it. So the completion queue, which is mapped
/// first, is made to cover that place, with its entries of 32 octets.
const SIW_COMPLETIONS_MIN: u32 = 0x9_0000 / 32 + 1;

/// The vendor that rxe names. Its kernel part sets the kernel's flag for Send with Invalidate, which to a program means
/// that a checksum is good; on a reliable connection nothing else sets that one.
const RXE_VENDOR: u32 = 0x00ff_ffff;

/// What the device can do, and what we make of it.
pub(super) struct Profile {
    pub(super) name: String,
    pub(super) is_iwarp: bool,
    pub(super) exposure: ExposureKind,
    /// Octets that go into a work request itself: probed.
    pub(super) inline_len: u32,
    /// Octets from which on the memory of a Send or a Write is still in use after a completion behind it, unless it has
    /// asked for one itself.
    pub(super) lent_from: u32,
    /// Work requests of one queue at most.
    pub(super) requests_max: u32,
    /// Pieces of a Receive at most, but for the first.
    pub(super) receive_targets: u32,
    /// RDMA Reads that a peer may have under way on one of our queue pairs.
    pub(super) responder_resources: u8,
    /// RDMA Reads that we may have under way on one.
    pub(super) initiator_depth: u8,
    /// Largest message, Write or Read.
    pub(super) len_max: u32,
    /// How long the connecting side keeps still at first.
    pub(super) settle: Duration,
    /// Whether the device says when a queue pair that failed holds none of the shared Receives any more.
    pub(super) tells_last_receive: bool,
    /// Whether a connection that is lost may look like a failure of the device, or like a forbidden request: only the
    /// connection manager knows.
    pub(super) loss_looks_fatal: bool,
    /// Any of these flags says that a Receive's message invalidated a handle.
    pub(super) with_invalidate: sys::ibv_wc_flags,
}

impl Profile {
    /// Whether the target of a Read has to be registered for the peer to write: on iWARP, where the arena is not.
    pub(super) fn registers_targets(&self) -> bool {
        self.is_iwarp && self.exposure != ExposureKind::Standing
    }

    /// Whether memory is registered for one peer, so that others must not have a queue pair in the same domain.
    fn registers_for_peers(&self) -> bool {
        self.exposure == ExposureKind::Registration || self.registers_targets()
    }
}

/// An opened device with what all queue pairs share. Declared in the order in which it goes.
pub(super) struct Opened {
    pub(super) queue: Rc<CompletionQueue>,
    /// What queue pairs share, if they do.
    pub(super) receives: Option<Rc<SharedReceivePool>>,
    /// The domain of all queue pairs where only windows guard memory; otherwise only a model of what connections
    /// get.
    shared: Rc<Domain>,
    /// Where regions guard memory, or the targets of Reads: a region is good for every queue pair of its domain, so each
    /// has its own.
    spare: Vec<Rc<Domain>>,
    pub(super) device: Device,
    /// The device, beyond what is opened on it.
    pub(super) claim: Claim,
    pub(super) profile: Profile,
    /// What was chosen and why: sentences for the log.
    pub(super) notes: Vec<String>,
}

impl Opened {
    /// Opens the device that the configuration names, or the first with an active port.
    pub(super) fn new(
        core: &'static RdmaCore,
        config: &VerbsConfig,
        arenas: &[Arena],
    ) -> Result<Opened, FabricError> {
        Opened::on(choose(core, config.device.as_deref())?, config, arenas)
    }

    /// Opens this device.
    pub(super) fn on(device: Device, config: &VerbsConfig, arenas: &[Arena]) -> Result<Opened, FabricError> {
        let name = device.name();
        let failed = |what: &str| {
            let doing = format!("{what} on the RDMA device {name}");
            move |source| FabricError::System { doing: doing + hint(&source), source }
        };
        let attributes = device.attributes().map_err(failed("query the attributes"))?;
        let port = device.port(1).map_err(failed("query port 1"))?;

        let least = if attributes.vendor_id == SIW_VENDOR { SIW_COMPLETIONS_MIN } else { 1 };
        let entries = config.completions.max(least).min(u32::try_from(attributes.max_cqe).unwrap_or(1));
        let queue = CompletionQueue::new(&device, entries, config.may_sleep);
        let queue = queue.map_err(failed("make a completion queue"))?;

        let mut notes = Vec::new();
        if port.state != sys::IBV_PORT_ACTIVE {
            notes.push(sysfs::not_active(&name));
        }
        let trial = Rc::new(ProtectionDomain::new(&device).map_err(failed("make a protection domain"))?);
        let exposure = choose_exposure(&trial, &attributes, config.exposure, &mut notes);
        let inline_len = probe_inline(&trial, &queue, config.inline_len);
        let inline_len = inline_len.map_err(failed("make a queue pair"))?;
        notes.push(format!("Sends of up to {inline_len} octets go inline"));

        let reads = |device: libc::c_int| u8::try_from(device.max(1)).unwrap_or(u8::MAX);
        let profile = Profile {
            is_iwarp: device.transport() == sys::IBV_TRANSPORT_IWARP,
            exposure,
            inline_len,
            lent_from: if attributes.vendor_id == SIW_VENDOR { SIW_LENT_FROM } else { u32::MAX },
            requests_max: u32::try_from(attributes.max_qp_wr).unwrap_or(0),
            receive_targets: u32::try_from(attributes.max_sge - 1)
                .unwrap_or(0)
                .min(RECEIVE_TARGETS_MAX as u32),
            responder_resources: config.read_depth.min(reads(attributes.max_qp_rd_atom)),
            initiator_depth: config.read_depth.min(reads(attributes.max_qp_init_rd_atom)),
            len_max: if port.max_msg_sz == 0 { 1 << 30 } else { port.max_msg_sz },
            settle: if attributes.vendor_id == SIW_VENDOR { SIW_SETTLE } else { Duration::ZERO },
            // Linux's software devices do not, but give back what they hold.
            tells_last_receive: !matches!(attributes.vendor_id, SIW_VENDOR | RXE_VENDOR),
            // It could not send any more: it ends the Send with a local error, the queue pair with a fatal one, or, if it
            // was answering a Read, with that of a forbidden request.
            loss_looks_fatal: attributes.vendor_id == SIW_VENDOR,
            with_invalidate: match attributes.vendor_id {
                RXE_VENDOR => sys::IBV_WC_WITH_INV | sys::IBV_WC_IP_CSUM_OK,
                _ => sys::IBV_WC_WITH_INV,
            },
            name: name.clone(),
        };
        notes.push(format!(
            "RDMA Reads at once: {} of a peer, {} of ours; the device has {} and {}, and no more than {} are asked for",
            profile.responder_resources,
            profile.initiator_depth,
            attributes.max_qp_rd_atom,
            attributes.max_qp_init_rd_atom,
            config.read_depth,
        ));
        notes.push(match config.may_sleep {
            true => "an idle end sleeps on the completion channel, and is woken by the device".to_owned(),
            false => "completions are polled for without a pause: no end ever sleeps".to_owned(),
        });
        let access = arena_access(&profile);
        let shared = Domain::new(&device, arenas, access).map_err(failed("register the arenas"))?;
        let shared = Rc::new(shared);
        let receives = share_receives(&shared, &attributes, exposure, config.shared_receives, &mut notes);
        let (queue, claim) = (Rc::new(queue), Claim::new(device.clone()));
        Ok(Opened { queue, receives, shared, spare: Vec::new(), device, claim, profile, notes })
    }

    /// Completions that fit.
    pub(super) fn completions(&self, config: &VerbsConfig) -> u32 {
        self.queue.len().min(config.completions)
    }

    /// The domain for a new queue pair.
    pub(super) fn domain(&mut self, arenas: &[Arena]) -> io::Result<Rc<Domain>> {
        if !self.profile.registers_for_peers() {
            return Ok(Rc::clone(&self.shared));
        }
        match self.spare.pop() {
            Some(domain) => Ok(domain),
            None => Domain::new(&self.device, arenas, arena_access(&self.profile)).map(Rc::new),
        }
    }

    /// Takes a queue pair's domain back, when the queue pair and all its regions are gone.
    pub(super) fn recycle(&mut self, domain: Rc<Domain>) {
        if self.profile.registers_for_peers() && self.spare.len() < SPARE_DOMAINS_MAX {
            self.spare.push(domain);
        }
    }

    /// Registers an arena in all domains: those of `others`, which are in use, and ours.
    pub(super) fn register<'a>(
        &'a self,
        arena: &Arena,
        others: impl Iterator<Item = &'a Rc<Domain>>,
    ) -> io::Result<()> {
        let access = arena_access(&self.profile);
        let others = others.filter(|domain| !Rc::ptr_eq(domain, &self.shared));
        for domain in std::iter::once(&self.shared).chain(&self.spare).chain(others) {
            domain.register(arena, access)?;
        }
        Ok(())
    }
}

/// What arenas are registered for: our own work, and windows. For a peer only where that was asked for.
fn arena_access(profile: &Profile) -> sys::ibv_access_flags {
    match profile.exposure {
        ExposureKind::Standing => STANDING,
        ExposureKind::MemoryWindow => sys::IBV_ACCESS_LOCAL_WRITE | sys::IBV_ACCESS_MW_BIND,
        _ => sys::IBV_ACCESS_LOCAL_WRITE,
    }
}

/// The device of that name, or the first with an active port.
fn choose(core: &'static RdmaCore, name: Option<&str>) -> Result<Device, FabricError> {
    let list = DeviceList::new(core).map_err(|error| no_device(&error))?;
    let list = Rc::new(list);
    let devices: Vec<Device> = (0..list.len()).map(|at| list.device(at)).collect();
    let names = devices.iter().map(Device::name).collect::<Vec<_>>().join(", ");
    let active = |device: &&Device| device.port(1).is_ok_and(|port| port.state == sys::IBV_PORT_ACTIVE);
    let (chosen, missing) = match name {
        Some(name) => (
            devices.iter().find(|device| device.name() == name),
            format!("there is no RDMA device {name}; this machine has: {names}"),
        ),
        None => {
            let known = sysfs::devices(Path::new(sysfs::ROOT));
            (devices.iter().find(active).or(devices.first()), sysfs::none_opened(&known))
        }
    };
    chosen.cloned().ok_or_else(|| unavailable(missing))
}

/// The device whose context the connection manager gave an identifier.
pub(super) fn of_context(
    core: &'static RdmaCore,
    context: *mut sys::ibv_context,
) -> Result<Device, FabricError> {
    let list = DeviceList::new(core).map(Rc::new).map_err(|error| no_device(&error))?;
    let device = (0..list.len()).map(|at| list.device(at)).find(|device| device.as_ptr() == context);
    device.ok_or_else(|| unavailable("the RDMA device that the address leads to is gone".to_owned()))
}

/// Says why there is no list of devices.
pub(super) fn no_device(error: &io::Error) -> FabricError {
    let problem = match error.raw_os_error() {
        Some(libc::ENODEV | libc::ENOSYS | libc::ENOENT) => {
            let sysfs = Path::new(sysfs::ROOT);
            let has_device = !sysfs::devices(sysfs).is_empty();
            // The connection manager may say so although all is loaded: what it names is missing then.
            sysfs::lacks(sysfs::Kernel::read(sysfs), has_device).unwrap_or_else(|| {
                format!("the RDMA connection manager does not work: {error}; modprobe rdma_ucm")
            })
        }
        Some(libc::EACCES | libc::EPERM) => format!("the RDMA connection manager: {error}: {}", sysfs::FILES),
        _ => format!("the RDMA devices cannot be listed: {error}"),
    };
    unavailable(problem)
}

/// Windows where the device has those of type 2 and gives us one; else a registration for each exposure. A standing
/// one only for who asks for it.
fn choose_exposure(
    domain: &Rc<ProtectionDomain>,
    attributes: &sys::ibv_device_attr,
    wanted: Option<ExposureKind>,
    notes: &mut Vec<String>,
) -> ExposureKind {
    if wanted == Some(ExposureKind::Standing) {
        let note = "memory is exposed by STANDING registrations, as was asked for: no cost for an exposure, and no \
                    protection. Every peer that was ever given a handle can read and write all memory of this process \
                    that RDMA uses, for as long as it runs";
        tracing::warn!("{note}");
        notes.push(note.to_owned());
        return ExposureKind::Standing;
    }
    let why = if wanted == Some(ExposureKind::Registration) {
        "it was asked for".to_owned()
    } else if attributes.vendor_id == RXE_VENDOR && wanted != Some(ExposureKind::MemoryWindow) {
        // In Linux 6.1 and 6.12: `check_rkey` looks for the bounds of the region, and `rxe_do_invalidate_mw` does not
        // ask whether the window is bound.
        "a window of rxe opens all of the region that it is in, and a peer that invalidates it twice makes the kernel \
         panic"
            .to_owned()
    } else if !has_windows(attributes) {
        "the device has no memory windows of type 2".to_owned()
    } else {
        match MemoryWindow::new(domain) {
            Ok(_) => {
                notes.push(
                    "memory is exposed by memory windows of type 2: one work request each way".to_owned(),
                );
                return ExposureKind::MemoryWindow;
            }
            Err(error) => format!("the device gives no memory window: {error}"),
        }
    };
    notes.push(format!(
        "memory is exposed by a registration for each exposure, two system calls, because {why}"
    ));
    ExposureKind::Registration
}

/// Whether it has memory windows of type 2.
pub(super) fn has_windows(attributes: &sys::ibv_device_attr) -> bool {
    let type_2 = sys::IBV_DEVICE_MEM_WINDOW_TYPE_2A | sys::IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    attributes.device_cap_flags & type_2 != 0
}

/// The Receives that queue pairs share, if that is wanted and can be; or why not.
fn share_receives(
    domain: &Rc<Domain>,
    attributes: &sys::ibv_device_attr,
    exposure: ExposureKind,
    wanted: Option<SharedReceives>,
    notes: &mut Vec<String>,
) -> Option<Rc<SharedReceivePool>> {
    let Some(SharedReceives { count, len }) = wanted else {
        notes.push("each queue pair has its own Receives: sharing them was not asked for".to_owned());
        return None;
    };
    let most = u32::try_from(attributes.max_srq_wr).unwrap_or(0);
    let why_not = if attributes.max_srq <= 0 {
        "the device has no shared receive queues".to_owned()
    } else if attributes.vendor_id == RXE_VENDOR && exposure == ExposureKind::Registration {
        // `send_data_in` looks its keys up in the queue pair's domain.
        "rxe cannot share between protection domains, and exposes memory by registrations".to_owned()
    } else if count > most {
        format!("{count} are wanted, and the device shares at most {most}")
    } else {
        match SharedReceivePool::new(domain, count, len) {
            Ok(shared) => {
                notes.push(format!("queue pairs share {count} Receives of {len} octets"));
                return Some(Rc::new(shared));
            }
            Err(error) => format!("the device gives no shared receive queue: {error}"),
        }
    };
    notes.push(format!("each queue pair has its own Receives: {why_not}"));
    None
}

/// The most octets, up to `wanted`, that a queue pair takes inline. Drivers differ in whether they refuse what is too
/// much or give less, so it is tried.
fn probe_inline(domain: &ProtectionDomain, queue: &CompletionQueue, wanted: u32) -> io::Result<u32> {
    let mut inline = wanted;
    loop {
        match domain.try_queue_pair(queue, capacities(1, 1, 1, inline)) {
            Ok(cap) => return Ok(cap.max_inline_data.min(inline)),
            Err(error) if inline == 0 => return Err(error),
            Err(_) => inline /= 2,
        }
    }
}

/// The capacities to request for a queue pair: `sends` Sends, and `receives` Receives of `pieces` pieces
/// each.
pub(super) fn capacities(sends: u32, receives: u32, pieces: u32, inline: u32) -> sys::ibv_qp_cap {
    sys::ibv_qp_cap {
        max_send_wr: sends,
        max_recv_wr: receives,
        max_send_sge: 1,
        max_recv_sge: pieces,
        max_inline_data: inline,
    }
}
