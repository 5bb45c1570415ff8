//! The RDMA devices of this machine, how we would use each, and what is missing if none can be used.
//!
//! Nothing is kept open: a survey is for people and for `stag fabrics`, not for traffic.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use stag_rdma_core_sys as sys;
use stag_rdma_core_sys::{LoadError, RdmaCore};

use super::device::Opened;
use super::identifiers::EventChannel;
use super::objects::{Device, DeviceList};
use super::sysfs::{self, Kernel, KernelDevice};
use super::{InterfaceAddress, VerbsConfig, addresses};
use crate::ExposureKind;

/// What was found.
#[derive(Clone, Debug)]
pub struct Survey {
    /// Why rdma-core cannot be called, if it cannot.
    pub rdma_core: Option<LoadError>,
    /// What the kernel has.
    pub kernel: Kernel,
    /// Devices that the kernel or rdma-core knows, by name.
    pub devices: Vec<SurveyedDevice>,
    /// The one that [`Verbs::open`](super::Verbs::open) would take.
    pub chosen: Option<String>,
}

/// A device.
#[derive(Clone, Debug)]
pub struct SurveyedDevice {
    /// What the kernel says.
    pub kernel: KernelDevice,
    /// This machine's addresses that lead there.
    pub addresses: Vec<InterfaceAddress>,
    /// What it has room for, if rdma-core could be asked.
    pub limits: Option<DeviceLimits>,
    /// What we would make of it, or why we cannot.
    pub choice: Result<Choice, String>,
}

/// What a device has room for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Work requests of one queue.
    pub requests: u32,
    /// Pieces of memory that one work request may name.
    pub pieces: u32,
    /// Completion queues.
    pub completion_queues: u32,
    /// Entries of one.
    pub completions: u32,
    /// Memory regions.
    pub regions: u32,
    /// Octets of one.
    pub region_len: u64,
    /// Memory windows of any type.
    pub windows: u32,
    /// Whether it has those of type 2.
    pub windows_type_2: bool,
    /// Shared receive queues.
    pub shared_receive_queues: u32,
    /// Receives of one.
    pub shared_receives: u32,
    /// RDMA Reads that a peer may have under way on one queue pair.
    pub reads_in: u32,
    /// RDMA Reads that we may have under way on one.
    pub reads_out: u32,
    /// On-demand paging; `None` if the device did not answer.
    pub paging: Option<OnDemandPaging>,
}

/// What a device may do, on reliable connections, in memory that is registered and not pinned. We pin all of ours: a page that
/// is fetched meanwhile is a Call that waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnDemandPaging {
    /// In words; none, if it cannot page.
    pub operations: Vec<&'static str>,
    /// Whether one registration may be of all memory.
    pub implicit: bool,
}

/// What we would make of a device, with the configuration that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// How memory would be exposed.
    pub exposure: ExposureKind,
    /// Octets that would go inline: probed.
    pub inline_len: u32,
    /// RDMA Reads under way, of a peer and of ours.
    pub read_depth: (u8, u8),
    /// What was chosen and why: sentences for people.
    pub notes: Vec<String>,
}

/// Looks at this machine's devices; `config` is what they would be opened with.
#[must_use]
pub fn survey(config: &VerbsConfig) -> Survey {
    survey_of(RdmaCore::load(), Path::new(sysfs::ROOT), config)
}

/// As [`survey`], with other functions than those of the machine's libraries, or none, and another sysfs: for tests.
///
/// # Safety
///
/// The functions do as the manual pages of their names say.
#[must_use]
pub unsafe fn survey_with(
    core: Result<&'static RdmaCore, LoadError>,
    sysfs: &Path,
    config: &VerbsConfig,
) -> Survey {
    survey_of(core, sysfs, config)
}

fn survey_of(core: Result<&'static RdmaCore, LoadError>, sysfs: &Path, config: &VerbsConfig) -> Survey {
    let kernel = Kernel::read(sysfs);
    let mut devices: Vec<SurveyedDevice> = sysfs::devices(sysfs)
        .into_iter()
        .map(|kernel| SurveyedDevice {
            kernel,
            addresses: Vec::new(),
            limits: None,
            choice: Err("rdma-core does not list it".to_owned()),
        })
        .collect();
    let rdma_core = match core {
        Ok(core) => {
            ask(core, config, &mut devices);
            None
        }
        Err(error) => Some(error),
    };
    let chosen = devices
        .iter()
        .filter(|device| config.device.as_ref().is_none_or(|name| *name == device.kernel.name))
        .filter(|device| device.choice.is_ok())
        // The first of those that are best.
        .min_by_key(|device| !device.is_active())
        .map(|device| device.kernel.name.clone());
    Survey { rdma_core, kernel, devices, chosen }
}

/// Asks rdma-core about devices, and adds those that sysfs does not have.
fn ask(core: &'static RdmaCore, config: &VerbsConfig, devices: &mut Vec<SurveyedDevice>) {
    // Without either there is nothing to ask; `Survey::problem` finds out why.
    let Ok(list) = DeviceList::new(core).map(Rc::new) else { return };
    let Ok(channel) = EventChannel::new(core).map(Arc::new) else { return };
    let all = addresses::of_this_machine().unwrap_or_default();
    for device in (0..list.len()).map(|at| list.device(at)) {
        let name = device.name();
        let at = devices.iter().position(|found| found.kernel.name == name).unwrap_or_else(|| {
            devices.push(unknown_to_sysfs(&device));
            devices.len() - 1
        });
        let found = &mut devices[at];
        for port in &mut found.kernel.ports {
            port.mtu = device.port(port.number).ok().and_then(|port| octets(port.active_mtu));
        }
        found.addresses = addresses::leading_to(&channel, device.as_ptr(), all.clone());
        found.limits = device.attributes().ok().map(|attributes| DeviceLimits {
            paging: device.extended_attributes().ok().map(|extended| paging(&extended.odp_caps)),
            ..limits(&attributes)
        });
        let config = VerbsConfig { device: Some(name), ..config.clone() };
        found.choice = Opened::new(core, &config, &[])
            .map(|opened| Choice {
                exposure: opened.profile.exposure,
                inline_len: opened.profile.inline_len,
                read_depth: (opened.profile.responder_resources, opened.profile.initiator_depth),
                notes: opened.notes,
            })
            .map_err(|error| error.to_string());
    }
}

/// In a container sysfs may hide what the device file shows.
fn unknown_to_sysfs(device: &Device) -> SurveyedDevice {
    let transport = match device.transport() {
        sys::IBV_TRANSPORT_IWARP => "iWARP",
        sys::IBV_TRANSPORT_IB => "InfiniBand or RoCE",
        _ => "unknown",
    };
    let port = |port: sys::ibv_port_attr| sysfs::Port {
        number: 1,
        state: if port.state == sys::IBV_PORT_ACTIVE { "ACTIVE" } else { "DOWN" }.to_owned(),
        physical_state: String::new(),
        link_layer: String::new(),
        rate: String::new(),
        mtu: None,
        gids: Vec::new(),
    };
    let kernel = KernelDevice {
        name: device.name(),
        transport: transport.to_owned(),
        firmware: None,
        board: None,
        is_software: false,
        numa_node: None,
        ports: device.port(1).map(port).into_iter().collect(),
    };
    SurveyedDevice { kernel, addresses: Vec::new(), limits: None, choice: Err(String::new()) }
}

/// Octets of an MTU, which verbs tell as a number from 1 to 5.
fn octets(mtu: sys::ibv_mtu) -> Option<u32> {
    (1..=5).contains(&mtu).then(|| 128 << mtu)
}

fn limits(attributes: &sys::ibv_device_attr) -> DeviceLimits {
    let count = |number: libc::c_int| u32::try_from(number).unwrap_or(0);
    DeviceLimits {
        queue_pairs: count(attributes.max_qp),
        requests: count(attributes.max_qp_wr),
        pieces: count(attributes.max_sge),
        completion_queues: count(attributes.max_cq),
        completions: count(attributes.max_cqe),
        regions: count(attributes.max_mr),
        region_len: attributes.max_mr_size,
        windows: count(attributes.max_mw),
        windows_type_2: super::device::has_windows(attributes),
        shared_receive_queues: count(attributes.max_srq),
        shared_receives: count(attributes.max_srq_wr),
        reads_in: count(attributes.max_qp_rd_atom),
        reads_out: count(attributes.max_qp_init_rd_atom),
        paging: None,
    }
}

fn paging(found: &sys::ibv_odp_caps) -> OnDemandPaging {
    const OPERATIONS: [(sys::ibv_odp_transport_cap_bits, &str); 6] = [
        (sys::IBV_ODP_SUPPORT_SEND, "Send"),
        (sys::IBV_ODP_SUPPORT_RECV, "Receive"),
        (sys::IBV_ODP_SUPPORT_SRQ_RECV, "shared Receive"),
        (sys::IBV_ODP_SUPPORT_READ, "RDMA Read"),
        (sys::IBV_ODP_SUPPORT_WRITE, "RDMA Write"),
        (sys::IBV_ODP_SUPPORT_ATOMIC, "atomics"),
    ];
    let has = |bit| found.general_caps & u64::from(bit) != 0;
    if !has(sys::IBV_ODP_SUPPORT) {
        return OnDemandPaging::default();
    }
    let reliable = found.per_transport_caps.rc_odp_caps;
    let operations = OPERATIONS.into_iter().filter(|(bit, _)| reliable & bit != 0).map(|(_, name)| name);
    OnDemandPaging { operations: operations.collect(), implicit: has(sys::IBV_ODP_SUPPORT_IMPLICIT) }
}

impl SurveyedDevice {
    /// Whether its first port, which is the one that we use, is up.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.kernel.ports.first().is_some_and(sysfs::Port::is_active)
    }
}

impl Survey {
    /// What keeps verbs from working here, and the command that repairs it; `None` if nothing does.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        if let Some(error) = &self.rdma_core {
            return Some(error.to_string());
        }
        if let Some(problem) = sysfs::lacks(self.kernel, !self.devices.is_empty()) {
            return Some(problem);
        }
        let Some(name) = &self.chosen else {
            let why = self.devices.iter().filter_map(|device| device.choice.as_ref().err()).next();
            return Some(
                why.cloned().unwrap_or_else(|| "no device is the one that was asked for".to_owned()),
            );
        };
        let chosen = self.devices.iter().find(|device| device.kernel.name == *name)?;
        if !chosen.is_active() {
            return Some(sysfs::not_active(name));
        }
        None
    }
}
