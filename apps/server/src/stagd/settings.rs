//! Options with every gap filled and every value checked.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::exports::ExportSpec;
use stag_fabric::ExposureKind;
use stag_fabric::shm::Admit;
use stag_hugepages::{Inventory, MemoryLimit};
use stag_rpc::{PlacementChoice, ProtocolChoice};

use crate::failure::CommandFailure;
use crate::flags::{self, Flag};
use crate::logging::LogFormat;
use crate::url::FabricName;
use crate::values::{CongestionControlName, Pages, Poll, Size, Switch};

use super::StagdOptions;
use super::core_list::CoreList;
use super::listen::{self, Listen};
use super::versions::NfsVersions;
use super::weights::ClientWeight;

/// What the server does. See [`StagdOptions`] for what each is.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The exports, and how each was written.
    pub exports: Vec<(String, ExportSpec)>,
    /// Where it listens.
    pub listen: Vec<Listen>,
    /// The fabric among these, if there is one.
    pub fabric: Option<FabricName>,
    /// The memory budget, in bytes.
    pub memory: u64,
    /// Octets.
    pub inline_threshold: u32,
    /// Of one connection.
    pub credits: u32,
    /// Of clients that have not the usual one.
    pub weights: Vec<ClientWeight>,
    /// Versions of RPC-over-RDMA that are spoken; those that suit the fabric and the memory, if none was said.
    pub protocol: Option<ProtocolChoice>,
    /// Where version 2 puts data.
    pub placement: PlacementChoice,
    /// At once: of RDMA, and as many of TCP.
    pub connections_max: u32,
    /// Who is admitted over shm besides processes of the same user.
    pub shm_allow: Vec<Admit>,
    /// Whether iWARP asks for CRCs.
    pub crc: bool,
    /// Of all TCP sockets; the system's, if there is none.
    pub congestion_control: Option<CongestionControlName>,
    /// The RDMA device of verbs; the one that the address leads to, if none is named.
    pub device: Option<String>,
    /// How verbs exposes memory; by the device's best means, if that is not said.
    pub exposure: Option<ExposureKind>,
    /// Whether connections over verbs share their Receives.
    pub shared_receives: bool,
    /// Whether Replies are exposed to clients that pull them.
    pub reliable_reply: bool,
    /// Versions of NFS that are served.
    pub nfs: NfsVersions,
    /// Whether the programs are registered with this machine's rpcbind.
    pub rpcbind: bool,
    /// The cores that were asked for, one reactor each; one that suits, if none was.
    pub cores: Option<CoreList>,
    /// What to do when idle.
    pub poll: Poll,
    /// Where to begin.
    pub pages: Pages,
    /// Where what must survive a restart is kept.
    pub state_dir: Option<PathBuf>,
    /// After a restart, the time to claim them.
    pub grace: Duration,
    /// Where the control socket is; the first usual place that allows it, if none was said.
    pub control: Option<PathBuf>,
    /// Where metrics are served.
    pub metrics: Option<String>,
    /// Messages that each core records; 0: none.
    pub record: u32,
    /// Calls whose answer takes at least this long are logged.
    pub slow: Option<Duration>,
    /// How lines of the log are written.
    pub log_format: LogFormat,
}

/// Most memory that is taken without being told to.
pub const MEMORY_DEFAULT_MAX: u64 = 1 << 30;

/// The least that a server can do something with.
const MEMORY_MIN: u64 = 16 << 20;

/// RFC 8797 carries thresholds of 1 KiB to 256 KiB.
const INLINE_THRESHOLD: std::ops::RangeInclusive<u64> = 1 << 10..=256 << 10;

/// More than any client uses, and few enough that the Receives of a few connections fit.
const CREDITS: std::ops::RangeInclusive<u32> = 1..=1024;

/// Above, copying what is recorded would hold a core up for some milliseconds.
const RECORD_MAX: u32 = 16_384;

/// What one reactor can poll.
const CONNECTIONS: std::ops::RangeInclusive<u32> = 1..=65_536;

impl Settings {
    /// Cores that the server runs on.
    #[must_use]
    pub fn core_count(&self) -> usize {
        self.cores.as_ref().map_or(1, CoreList::len)
    }

    /// Reads the configuration file, if there is one, and checks everything.
    pub fn new(options: &StagdOptions) -> Result<Settings, CommandFailure> {
        let options = options.with_file()?;
        if options.export.is_empty() {
            return Err(CommandFailure::usage(
                "nothing to serve; give an --export, for example --export mem:/data",
            ));
        }
        if options.listen.is_empty() {
            return Err(CommandFailure::usage(
                "nowhere to listen; give a --listen, for example --listen shm://demo or tcp://0.0.0.0:2049",
            ));
        }
        let fabric = listen::fabric(&options.listen)?;
        check_flags(&options)?;
        if options.core.is_some() && options.cores.is_some() {
            return Err(CommandFailure::usage("core and cores: both are set; set one of the two"));
        }
        let cores = options.cores.or_else(|| options.core.map(CoreList::one));
        let exports = parse_exports(options.export)?;
        check_pins(&exports, cores.as_ref())?;
        let root = Path::new("/");
        let ram = ram(root);
        let memory = options.memory.map_or_else(|| memory_unasked(root), |size| size.0);
        if memory < MEMORY_MIN || ram.is_some_and(|ram| memory > ram) {
            return Err(CommandFailure::usage(format_args!(
                "--memory {}: it must be {} to {}",
                Size(memory),
                Size(MEMORY_MIN),
                ram.map_or_else(
                    || "what this machine has".into(),
                    |ram| format!("{}, this machine's RAM", Size(ram))
                ),
            )));
        }
        let inline_threshold = options.inline_threshold.map_or(4096, |size| size.0);
        if !INLINE_THRESHOLD.contains(&inline_threshold) {
            return Err(CommandFailure::usage(format_args!(
                "--inline-threshold {}: it must be {} to {}",
                Size(inline_threshold),
                Size(*INLINE_THRESHOLD.start()),
                Size(*INLINE_THRESHOLD.end()),
            )));
        }
        let record = options.record.unwrap_or(0);
        if record > RECORD_MAX {
            return Err(CommandFailure::usage(format_args!(
                "--record {record}: it must be 0 to {RECORD_MAX}; 1024 is usual"
            )));
        }
        let credits = within("--credits", options.credits, CREDITS)?;
        let connections_max = within("--connections-max", options.connections_max, CONNECTIONS)?;
        Ok(Settings {
            exports,
            listen: options.listen,
            fabric,
            memory,
            inline_threshold: inline_threshold as u32,
            credits,
            weights: options.weight,
            protocol: options.protocol.map(Into::into),
            placement: options.placement.unwrap_or_default().into(),
            connections_max,
            shm_allow: options.shm_allow.iter().map(|allow| allow.0).collect(),
            crc: options.crc != Some(Switch::Off),
            congestion_control: options.congestion_control,
            device: options.device,
            exposure: options.exposure.map(Into::into),
            shared_receives: options.shared_receives,
            reliable_reply: options.reliable_reply,
            nfs: options.nfs.unwrap_or_default(),
            rpcbind: options.rpcbind,
            cores,
            poll: options.poll.unwrap_or_default(),
            pages: options.pages.unwrap_or_default(),
            state_dir: options.state_dir,
            // As long as that of Linux's lock manager.
            grace: Duration::from_secs(options.grace.unwrap_or(50).into()),
            control: options.control,
            metrics: options.metrics,
            record,
            slow: options.slow.map(|slow| slow.0),
            log_format: options.log_format.unwrap_or_default(),
        })
    }
}

/// What was asked for, if it is in its range; 64 of whatever it is unless that was said.
fn within(
    flag: &str,
    asked: Option<u32>,
    range: std::ops::RangeInclusive<u32>,
) -> Result<u32, CommandFailure> {
    let found = asked.unwrap_or(64);
    if range.contains(&found) {
        return Ok(found);
    }
    let (low, high) = range.into_inner();
    Err(CommandFailure::usage(format_args!("{flag} {found}: it must be {low} to {high}")))
}

/// Refuses what no place where it listens has a use for.
fn check_flags(options: &StagdOptions) -> Result<(), CommandFailure> {
    let flags: [Flag; 12] = [
        ("--weight", !options.weight.is_empty(), &["shm", "iwarp", "verbs"]),
        ("--shm-allow", !options.shm_allow.is_empty(), &["shm"]),
        ("--crc", options.crc.is_some(), &["iwarp"]),
        ("--congestion-control", options.congestion_control.is_some(), &["iwarp", "tcp"]),
        ("--device", options.device.is_some(), &["verbs"]),
        ("--exposure", options.exposure.is_some(), &["verbs"]),
        ("--shared-receives", options.shared_receives, &["verbs"]),
        ("--protocol", options.protocol.is_some(), &["shm", "iwarp", "verbs"]),
        ("--placement", options.placement.is_some(), &["shm", "iwarp", "verbs"]),
        ("--reliable-reply", options.reliable_reply, &["shm", "iwarp", "verbs"]),
        ("--record", options.record.is_some_and(|record| record > 0), &["shm", "iwarp", "verbs"]),
        ("--rpcbind", options.rpcbind, &["iwarp", "verbs", "tcp"]),
    ];
    let used: Vec<&str> = options.listen.iter().map(Listen::scheme).collect();
    flags::check(&flags, &used, Some("--listen"))
}

/// Refuses an export that belongs to a core which is none of the server's.
fn check_pins(exports: &[(String, ExportSpec)], cores: Option<&CoreList>) -> Result<(), CommandFailure> {
    for (spec, export) in exports {
        let Some(core) = export.core else { continue };
        match cores {
            None => {
                return Err(CommandFailure::usage(format_args!(
                    "export {spec:?}: core={core}, but the server's cores are not named; name them by --cores"
                )));
            }
            Some(cores) if !cores.contains(core as usize) => {
                return Err(CommandFailure::usage(format_args!(
                    "export {spec:?}: core {core} is not among the server's cores ({cores}); name one of those"
                )));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn parse_exports(specs: Vec<String>) -> Result<Vec<(String, ExportSpec)>, CommandFailure> {
    let mut exports: Vec<(String, ExportSpec)> = Vec::new();
    for spec in specs {
        let export: ExportSpec = spec.parse().map_err(CommandFailure::usage)?;
        if exports.iter().any(|(_, other)| other.access.path == export.access.path) {
            return Err(CommandFailure::usage(format_args!(
                "export {spec:?}: {} is exported already",
                export.access.path
            )));
        }
        exports.push((spec, export));
    }
    Ok(exports)
}

/// The default of `--memory` on the machine below `root`: a quarter of its RAM or of the least limit of this process' control
/// groups, at most `MEMORY_DEFAULT_MAX`, in whole MiB.
#[must_use]
pub fn memory_unasked(root: &Path) -> u64 {
    let limit = Inventory::read(root).memory_limit.map(|found| found.limit);
    let quarter = ram(root).into_iter().chain(limit).min().map_or(MEMORY_DEFAULT_MAX, |least| least / 4);
    quarter.clamp(MEMORY_MIN, MEMORY_DEFAULT_MAX) >> 20 << 20
}

/// The warning for a server that may take more memory than its control group allows. It is not refused, because the group's limit
/// does not count huge pages.
pub(super) fn memory_warning(root: &Path, memory: u64) -> Option<String> {
    let MemoryLimit { limit, path } =
        Inventory::read(root).memory_limit.filter(|found| found.limit < memory)?;
    Some(format!(
        "memory {}: the control group has {} ({}); the kernel ends this server when its files fill that, unless they \
         lie on hugepages; --memory {}, or raise the limit",
        Size(memory),
        Size(limit),
        path.display(),
        // As the flag takes it.
        format_args!("{}M", memory_unasked(root) >> 20),
    ))
}

/// The machine's RAM in bytes, if it says.
fn ram(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of 8 GiB whose control group may have that many bytes.
    fn machine(name: &str, limit: &str) -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!("stag-settings-{name}-{}", std::process::id()));
        for (path, text) in [
            ("proc/meminfo", "MemTotal:        8388608 kB\n"),
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", limit),
        ] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_control_group_bounds_what_is_taken_unasked() {
        for (name, limit, expected) in [
            ("none", "max", 1 << 30),
            ("some", "536870912\n", 128 << 20),
            ("little", "1048576\n", MEMORY_MIN),
        ] {
            let root = machine(name, limit);
            assert_eq!(memory_unasked(&root), expected, "{limit}");
            let warning = memory_warning(&root, 1 << 30);
            fs::remove_dir_all(&root).unwrap();
            assert_eq!(warning.is_some(), name != "none");
            let Some(warning) = warning.filter(|_| name == "some") else { continue };
            for part in ["memory 1 GiB", "512 MiB", "sys/fs/cgroup/memory.max", "--memory 128M"] {
                assert!(warning.contains(part), "{part}: {warning}");
            }
        }
    }
}
