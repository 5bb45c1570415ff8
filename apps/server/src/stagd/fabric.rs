//! The fabric that a server serves: opening it, and the report on it.

use std::io;
use std::path::Path;

use serde::Serialize;
use stag_fabric::shm::Admit;
use stag_fabric::verbs::{SharedReceives, VerbsCounters};
use stag_fabric::{FabricError, Iwarp, IwarpConfig, Provider, Shm, ShmConfig, Verbs, VerbsConfig, resolve};

use super::Settings;
use super::listen::Listen;
use super::plan::Plan;
use crate::failure::CommandFailure;
use crate::machine::Machine;
use crate::url::{FabricName, Url};
use crate::values::{Poll, Size};

/// A fabric that can be served.
pub(super) trait Served: Provider + Sized {
    /// Opens it for a server.
    fn serving(settings: &Settings, plan: &Plan) -> Result<Self, FabricError>;

    /// The device that it stands on, where it needs one.
    fn device(&self) -> Option<Device> {
        None
    }

    /// What the device did so far.
    fn device_work(&self) -> Option<DeviceWork> {
        None
    }
}

impl Served for Shm {
    fn serving(settings: &Settings, plan: &Plan) -> Result<Shm, FabricError> {
        Shm::open(ShmConfig {
            may_sleep: settings.poll == Poll::Adaptive,
            queue_pairs: plan.engine.connections_max,
            completions: plan.engine.serving_completions_max(),
            fence_timeout: plan.engine.peer_timeout,
            admit: settings.shm_allow.clone(),
            ..ShmConfig::default()
        })
    }
}

impl Served for Iwarp {
    fn serving(settings: &Settings, plan: &Plan) -> Result<Iwarp, FabricError> {
        Iwarp::open(IwarpConfig {
            may_sleep: settings.poll == Poll::Adaptive,
            queue_pairs: plan.engine.connections_max,
            completions: plan.engine.serving_completions_max(),
            crc: settings.crc,
            congestion_control: plan.engine.stream_congestion_control,
            ..IwarpConfig::default()
        })
    }
}

impl Served for Verbs {
    fn serving(settings: &Settings, plan: &Plan) -> Result<Verbs, FabricError> {
        let own = plan.engine.capacity().receives;
        let shared = SharedReceives {
            count: plan.engine.receives_max.min(own * plan.engine.connections_max),
            len: plan.engine.message_len() as u32,
        };
        Verbs::open(VerbsConfig {
            device: settings.device.clone(),
            exposure: settings.exposure,
            shared_receives: settings.shared_receives.then_some(shared),
            may_sleep: settings.poll == Poll::Adaptive,
            queue_pairs: plan.engine.connections_max,
            completions: plan.device_completions,
            ..VerbsConfig::default()
        })
    }

    fn device(&self) -> Option<Device> {
        let name = Verbs::device(self)?.to_owned();
        Some(Device { name, notes: self.notes().to_vec() })
    }

    fn device_work(&self) -> Option<DeviceWork> {
        let VerbsCounters {
            binds, registrations, standing, fences, invalidations, probes, doorbells, ..
        } = self.counters();
        Some(DeviceWork { binds, registrations, standing, fences, invalidations, probes, doorbells })
    }
}

/// Looks up where the server would listen, opens the fabric as it would, and closes it again. Nothing is listened at: a
/// server may be running there.
pub(super) fn check(settings: &Settings, plan: &Plan) -> Result<(), CommandFailure> {
    for place in &settings.listen {
        let address = match place {
            Listen::Fabric(url) if !url.fabric.is_network() => continue,
            Listen::Fabric(Url { address, .. }) | Listen::Tcp(address) => address,
        };
        resolve(address).map_err(|error| CommandFailure::run(format_args!("--listen {place}: {error}")))?;
    }
    let opened = match settings.fabric {
        None | Some(FabricName::Shm) => Shm::serving(settings, plan).map(drop),
        Some(FabricName::Iwarp) => Iwarp::serving(settings, plan).map(drop),
        Some(FabricName::Verbs) => Verbs::serving(settings, plan).map(drop),
    };
    opened.map_err(CommandFailure::run)?;
    match settings.fabric {
        Some(FabricName::Verbs) => {
            check_pinned(settings.memory, plan.reactors.len(), Machine::new(Path::new("/"), true).lockable())
        }
        _ => Ok(()),
    }
}

/// Refuses memory that a device could not have pinned, which counts once for each core.
fn check_pinned(memory: u64, cores: usize, lockable: Option<u64>) -> Result<(), CommandFailure> {
    let pinned = memory.saturating_mul(cores as u64);
    match lockable.filter(|limit| *limit < pinned) {
        Some(limit) => Err(CommandFailure::run(format_args!(
            "--memory {}: verbs pins it{}, and {} may be locked; `stag doctor --for verbs` says how to raise that",
            Size(memory),
            if cores > 1 { format!(" for each of {cores} cores") } else { String::new() },
            Size(limit),
        ))),
        None => Ok(()),
    }
}

/// An RDMA device.
#[derive(Serialize)]
pub(super) struct Device {
    pub(super) name: String,
    /// What was chosen on it, and why.
    pub(super) notes: Vec<String>,
}

/// What exposing memory cost, and silent peers: see [`VerbsCounters`].
#[derive(Clone, Copy, Default, Serialize)]
pub(super) struct DeviceWork {
    pub(super) binds: u64,
    pub(super) registrations: u64,
    pub(super) standing: u64,
    pub(super) fences: u64,
    pub(super) invalidations: u64,
    pub(super) probes: u64,
    pub(super) doorbells: u64,
}

impl std::ops::AddAssign for DeviceWork {
    fn add_assign(&mut self, other: DeviceWork) {
        self.binds += other.binds;
        self.registrations += other.registrations;
        self.standing += other.standing;
        self.fences += other.fences;
        self.invalidations += other.invalidations;
        self.probes += other.probes;
        self.doorbells += other.doorbells;
    }
}

/// Whom it admits over shm, if it listens there.
pub(super) fn shm_admits(settings: &Settings) -> Option<String> {
    if settings.fabric != Some(FabricName::Shm) {
        return None;
    }
    let own = rustix::process::geteuid().as_raw();
    if settings.shm_allow.is_empty() {
        return Some(format!("admits processes of user {own} only; --shm-allow admits others"));
    }
    if settings.shm_allow.contains(&Admit::Anybody) {
        return Some(
            "admits every process of this machine: each may read and change all that is served".to_owned(),
        );
    }
    let others: Vec<String> = settings.shm_allow.iter().map(Admit::to_string).collect();
    Some(format!(
        "admits processes of user {own} and of {}: each may read and change all that is served",
        others.join(", ")
    ))
}

/// How Linux mounts what is served over verbs: MOUNT and locks go over TCP, for which an RDMA device has no port.
pub(super) fn mount_advice(settings: &Settings, places: &[Listen]) -> Option<String> {
    let port = |place: &Listen| match place {
        Listen::Fabric(url) if url.fabric == FabricName::Verbs => Some(url.host_and_port().ok()?.1),
        _ => None,
    };
    let rdma_port = places.iter().find_map(port)?;
    let tcp_port = places.iter().find_map(|place| match place {
        Listen::Tcp(address) => address.rsplit_once(':')?.1.parse::<u16>().ok(),
        Listen::Fabric(_) => None,
    });
    Some(match tcp_port {
        Some(tcp_port) => {
            let path = &settings.exports.first()?.1.access.path;
            format!(
                "mount -t nfs -o rdma,port={rdma_port},vers=3,nolock,mountproto=tcp,mountport={tcp_port} HOST:{path} /mnt"
            )
        }
        None => format!(
            "stag finds MOUNT on the RDMA connection, but mount(8) asks for it by TCP: for that, add --listen tcp://HOST:{}",
            rdma_port.checked_add(1).unwrap_or(2049)
        ),
    })
}

/// Whether somebody else listens there.
pub(super) fn is_in_use(error: &FabricError) -> bool {
    matches!(error, FabricError::System { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
}

/// What to do when it cannot listen there, where the error does not say it.
pub(super) fn listen_advice(error: &FabricError, place: &Listen, all: &[Listen]) -> &'static str {
    let FabricError::System { source, .. } = error else { return "" };
    match source.kind() {
        // siw says the first of a port that is taken.
        io::ErrorKind::AddrNotAvailable | io::ErrorKind::AddrInUse if place.scheme() == "verbs" => {
            "; `rdma resource show cm_id` shows who listens at which port, `ip address` the addresses of this machine"
        }
        io::ErrorKind::AddrNotAvailable => {
            "; `ip address` shows the addresses of this machine, and 0.0.0.0 stands for all of them"
        }
        // Another refusal than EACCES is not about ports.
        io::ErrorKind::PermissionDenied if source.raw_os_error() == Some(libc::EACCES) => {
            "; ports below 1024 are for root: run it as root, or choose another"
        }
        io::ErrorKind::AddrInUse if is_taken_by_device(place, all) => {
            "; an iWARP device has the TCP port of verbs:// itself: choose another one for tcp://"
        }
        io::ErrorKind::AddrInUse if place.scheme() == "shm" => {
            "; a server has this name: stop it, or choose another one"
        }
        io::ErrorKind::AddrInUse => "; `ss -ltnp` shows who listens where: stop it, or choose another port",
        _ => "",
    }
}

/// Whether a TCP port may be taken although no program has it.
fn is_taken_by_device(place: &Listen, all: &[Listen]) -> bool {
    let Listen::Tcp(address) = place else { return false };
    all.iter().any(|other| match other {
        Listen::Fabric(url) if url.fabric == FabricName::Verbs => {
            url.host_and_port().is_ok_and(|(_, port)| address.ends_with(&format!(":{port}")))
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stagd::StagdOptions;

    fn settings(listen: &[&str]) -> Settings {
        let options = StagdOptions {
            export: vec!["mem:/data".into()],
            listen: listen.iter().map(|url| url.parse().unwrap()).collect(),
            ..StagdOptions::default()
        };
        Settings::new(&options).unwrap()
    }

    #[test]
    fn the_mount_line_names_both_ports() {
        for (listen, part) in [
            (
                &["verbs://0.0.0.0", "tcp://0.0.0.0:20050"][..],
                "rdma,port=20049,vers=3,nolock,mountproto=tcp,mountport=20050 HOST:/data",
            ),
            (&["verbs://[::]:7", "shm://x"][..1], "--listen tcp://HOST:8"),
            (&["verbs://h:65535"], "--listen tcp://HOST:2049"),
        ] {
            let settings = settings(listen);
            let advice = mount_advice(&settings, &settings.listen).unwrap();
            assert!(advice.contains(part), "{advice}");
        }
        let settings = settings(&["iwarp://0.0.0.0", "tcp://0.0.0.0:1"]);
        assert_eq!(mount_advice(&settings, &settings.listen), None);
    }

    #[test]
    fn over_shm_it_says_whom_it_admits() {
        let own = rustix::process::geteuid().as_raw();
        let mut settings = settings(&["shm://x"]);
        let only = format!("admits processes of user {own} only; --shm-allow admits others");
        assert_eq!(shm_admits(&settings), Some(only));
        settings.shm_allow = vec![Admit::User(7), Admit::Group(8)];
        let text = shm_admits(&settings).unwrap();
        assert!(
            text.starts_with(&format!("admits processes of user {own} and of uid:7, gid:8: each may")),
            "{text}"
        );
        settings.shm_allow.push(Admit::Anybody);
        assert!(shm_admits(&settings).unwrap().starts_with("admits every process"));
        assert_eq!(shm_admits(&self::settings(&["iwarp://0.0.0.0"])), None);
    }

    #[test]
    fn memory_that_may_not_be_locked_is_refused() {
        check_pinned(64 << 20, 1, None).unwrap();
        check_pinned(64 << 20, 1, Some(64 << 20)).unwrap();
        assert!(
            check_pinned(64 << 20, 2, Some(64 << 20)).unwrap_err().to_string().contains("each of 2 cores")
        );
        let refused = check_pinned(64 << 20, 1, Some(8 << 20)).unwrap_err().to_string();
        assert!(refused.starts_with("--memory 64 MiB: verbs pins it, and 8 MiB may be locked"), "{refused}");
    }

    #[test]
    fn where_it_cannot_listen_it_says_what_to_do() {
        let places = settings(&["verbs://0.0.0.0", "tcp://0.0.0.0:20049", "tcp://0.0.0.0:2049"]).listen;
        let shm = &settings(&["shm://x"]).listen[0];
        let in_use =
            FabricError::System { doing: "listen".to_owned(), source: io::ErrorKind::AddrInUse.into() };
        assert!(listen_advice(&in_use, shm, &[]).contains("has this name"));
        let advice = |kind: io::ErrorKind, place: usize| {
            let error = FabricError::System { doing: "listen".to_owned(), source: kind.into() };
            listen_advice(&error, &places[place], &places)
        };
        assert!(advice(io::ErrorKind::AddrInUse, 1).contains("iWARP device has the TCP port"));
        assert!(advice(io::ErrorKind::AddrInUse, 2).contains("`ss -ltnp`"));
        assert!(advice(io::ErrorKind::AddrInUse, 0).contains("`rdma resource show cm_id`"));
        assert!(advice(io::ErrorKind::AddrNotAvailable, 0).contains("`rdma resource show cm_id`"));
        assert!(advice(io::ErrorKind::AddrNotAvailable, 2).contains("`ip address`"));
        let refused = |errno: i32| {
            let source = io::Error::from_raw_os_error(errno);
            listen_advice(&FabricError::System { doing: "listen".to_owned(), source }, &places[2], &places)
        };
        assert!(refused(libc::EACCES).contains("below 1024"));
        assert_eq!(refused(libc::EPERM), "", "a filter of system calls, not the port");
        assert_eq!(listen_advice(&FabricError::Gone("it"), &places[1], &places), "");
    }
}
