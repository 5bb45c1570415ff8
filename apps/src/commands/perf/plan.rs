//! The measurements to make, and the cores: the flags checked, and every gap filled.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use stag_bench::{MeasuredOperation, Scenario};
use stag_fabric::VerbsConfig;
use stag_fabric::iwarp::CongestionControl;
use stag_fabric::verbs::{SurveyedDevice, survey};
use stag_rpc::{EngineConfig, ProtocolChoice};
use stag_runtime::environment::{self, Finding};
use stag_runtime::{CoreId, CoreSet, Topology, affinity};
use stag_server::failure::CommandFailure;
use stag_server::locality;
use stag_server::options;
use stag_server::remote::Remote;
use stag_server::url::{FabricName, Url};
use stag_server::values::{Poll, Size};

use super::curve::Along;
use super::flags::Perf;
use super::room;
use crate::repair;

/// The largest READ and WRITE that our own server takes, as `stagd` does: its Replies and pulls are planned for 1 MiB.
const SIZE_MAX: u64 = 1 << 20;

/// The largest of other servers, whose own limit (FSINFO) counts.
const OTHERS_SIZE_MAX: u64 = 16 << 20;

/// The largest echo: it is a Long Call with its headers, which may be no longer than that.
const ECHO_SIZE_MAX: u64 = SIZE_MAX - 4096;

/// One Call has four exposures, a queue pair of shm 4096, and two Calls' worth is to spare.
const DEPTH_MAX: usize = 1022;

/// More find no room in the descriptors and mappings that a machine usually allows a process.
const CONNECTIONS_MAX: usize = 10_000;

/// RFC 8797 carries thresholds of 1 KiB to 256 KiB.
const INLINE_THRESHOLD: std::ops::RangeInclusive<u64> = 1 << 10..=256 << 10;

/// Shorter ones would tell more than they measure.
const INTERVAL_MIN: Duration = Duration::from_millis(1);

/// With `--count` alone, the time that a round may take.
const COUNT_TIME_MAX: Duration = Duration::from_secs(3600);

/// The measurements to make.
pub(super) struct Plan {
    /// One for each point of the table.
    pub(super) scenarios: Vec<Scenario>,
    /// What differs between them.
    pub(super) along: Along,
    /// The server that runs already, if it is not our own.
    pub(super) url: Option<Url>,
    /// Where to make files on disk, with `--paired`.
    pub(super) directory: Option<PathBuf>,
    /// Cores of the clients, the server's last.
    pub(super) cores: Vec<usize>,
    /// Their NUMA nodes.
    pub(super) nodes: Vec<u32>,
    /// What both ends do when idle.
    pub(super) poll: Poll,
    /// What spoils the measurement.
    pub(super) findings: Vec<Finding>,
    /// And what else there is to know about the figures.
    pub(super) notes: Vec<String>,
}

/// Cargo's profile that built this program (build.rs).
pub(super) const BUILD_PROFILE: &str = env!("STAG_BUILD_PROFILE");

impl Plan {
    /// Checks the flags, and chooses what they leave open.
    pub(super) fn new(perf: &Perf) -> Result<Plan, CommandFailure> {
        let operation = perf.operation;
        check(perf, operation)?;
        let topology = Topology::read().map_err(CommandFailure::run)?;
        let near = locality::near(&topology, perf.fabric(), options::get().device.as_deref());
        let cores = choose_cores(perf, &topology, near)?;
        let is_shared = has_twice(&cores);
        let poll = perf.poll.unwrap_or(if is_shared { Poll::Adaptive } else { Poll::Busy });

        let fabric = match perf.fabric() {
            FabricName::Shm => stag_bench::MeasuredFabric::Shm,
            FabricName::Iwarp => stag_bench::MeasuredFabric::Iwarp,
            FabricName::Verbs => stag_bench::MeasuredFabric::Verbs,
        };
        let options = options::get();
        let mut notes: Vec<String> = build_note(BUILD_PROFILE, cfg!(debug_assertions)).into_iter().collect();
        if is_shared {
            notes.push("client and server share a core: each Call waits for the scheduler".to_owned());
            if poll == Poll::Busy {
                notes.push("--poll busy on a shared core: each end keeps the other from running".to_owned());
            }
        }
        let is_verbs = fabric == stag_bench::MeasuredFabric::Verbs;
        if is_verbs && poll == Poll::Busy && is_software(&options) {
            notes.push(
                "the RDMA device is software: it works on these cores too, and a busy poll keeps it from them; \
                 --poll adaptive leaves it time"
                    .to_owned(),
            );
        }
        if perf.url.is_some() && !is_verbs {
            notes.push(
                "the other server goes on polling while the limits are measured: they are too low, and the ratios too \
                 good, if it polls (--poll busy) on one of these cores"
                    .to_owned(),
            );
        }

        let duration = match (perf.duration, perf.count) {
            (Some(duration), _) => duration.0,
            (None, Some(_)) => COUNT_TIME_MAX,
            (None, None) => Duration::from_millis(500),
        };
        if fabric == stag_bench::MeasuredFabric::Iwarp {
            notes.extend(congestion_note(options.congestion_control));
        }
        let root = match &perf.url {
            Some(url) if needs_export(operation) => Some(find_root(url)?),
            _ => None,
        };
        let scenario = perf.load.of(Scenario {
            operation,
            size: perf.size.map_or(4096, |size| size.0 as usize),
            interval: perf.interval.map(|interval| interval.0),
            depth: perf.depth(),
            connections: perf.connections,
            cores: cores.clone(),
            duration,
            count: perf.count.map(|count| count.0),
            warm_up: perf.warm_up.0,
            repeat: perf.repeat as usize,
            inline_threshold: perf.inline_threshold.0 as u32,
            touch: perf.touch,
            may_sleep: poll == Poll::Adaptive,
            server: perf.url.as_ref().map(|url| (url.address.clone(), export(url))),
            root: root.clone(),
            fabric,
            crc: options.crc,
            congestion_control: options.congestion_control,
            device: options.device.clone(),
            exposure: options.exposure,
            protocol: match perf.is_version_2() && options.protocol == ProtocolChoice::One {
                // Asked for: also over a fabric where `auto` would not speak it.
                true => ProtocolChoice::Two,
                false => options.protocol,
            },
            placement: perf.placement.unwrap_or_default().into(),
            reply_mode: perf.reply_mode.unwrap_or_default().into(),
            continuation: perf.continuation.unwrap_or(EngineConfig::default().continuation),
            ..Scenario::default()
        });
        let along = Along::of(perf.all, perf.curve, &scenario);
        let scenarios = along.points(&scenario, size_max(operation));
        scenarios.iter().try_for_each(room::check)?;

        let set: CoreSet = cores.iter().copied().map(CoreId).collect();
        let mut nodes: Vec<u32> = set.iter().filter_map(|core| topology.node_of(core)).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let mut findings = environment::inspect(&set);
        for finding in &mut findings {
            finding.repair = repair::typed(&finding.repair).into_owned();
        }
        let (url, directory) = (perf.url.clone(), perf.directory.clone());
        Ok(Plan { scenarios, along, url, directory, cores, nodes, poll, findings, notes })
    }

    /// How one measures, as on a command line: `read`, `null`, …
    pub(super) fn operation(&self) -> &'static str {
        self.scenarios[0].operation.name()
    }
}

/// Refuses what makes no sense, whatever the machine is like.
fn check(perf: &Perf, operation: MeasuredOperation) -> Result<(), CommandFailure> {
    let refuse = |text: std::fmt::Arguments<'_>| Err(CommandFailure::usage(text));
    let depth = perf.depth();
    if !operation.has_size() && (perf.all || perf.size.is_some()) {
        let flag = if perf.all { "--all" } else { "--size" };
        return refuse(format_args!(
            "{flag}: it goes with read, write, echo, reply and mix; the others move no data"
        ));
    }
    if perf.paired && (perf.fabric != FabricName::Shm || !operation.has_file()) {
        return refuse(format_args!(
            "--paired: it goes with read, write, getattr and mix over shm, whose files have a core of their own"
        ));
    }
    let is_others = perf.url.is_some() && operation.has_file();
    let size_max = if is_others { OTHERS_SIZE_MAX } else { size_max(operation) };
    if let Some(size) = perf.size.filter(|size| !(1..=size_max).contains(&size.0)) {
        return refuse(format_args!("--size {size}: it must be 1 B to {}", Size(size_max)));
    }
    if !(1..=DEPTH_MAX).contains(&depth) {
        return refuse(format_args!("--depth {depth}: it must be 1 to {DEPTH_MAX}"));
    }
    if !(1..=CONNECTIONS_MAX).contains(&perf.connections) {
        return refuse(format_args!("--connections {}: it must be 1 to {CONNECTIONS_MAX}", perf.connections));
    }
    if !INLINE_THRESHOLD.contains(&perf.inline_threshold.0) {
        let (low, high) = (Size(*INLINE_THRESHOLD.start()), Size(*INLINE_THRESHOLD.end()));
        let found = perf.inline_threshold;
        return refuse(format_args!("--inline-threshold {found}: it must be {low} to {high}"));
    }
    if perf.duration.is_some_and(|duration| duration.0.is_zero()) {
        return refuse(format_args!("--duration 0: it must be more, for example 50ms"));
    }
    if perf.interval.is_some_and(|interval| interval.0 < INTERVAL_MIN) {
        return refuse(format_args!("--interval: it must be 1ms or more, for example 1s"));
    }
    if perf.curve && perf.load.rate.is_none() && depth == 1 {
        return refuse(format_args!("--curve: say how far: the largest depth (-q 64) or rate (--rate 1M)"));
    }
    perf.load.check(operation, perf.size.map_or(4096, |size| size.0), perf.connections)?;
    if perf.touch && !matches!(operation, MeasuredOperation::Read | MeasuredOperation::Mix) {
        return refuse(format_args!("--touch: it goes with read, whose data the client gets"));
    }
    if perf.reply_mode.is_some() && operation != MeasuredOperation::Reply {
        return refuse(format_args!("--reply-mode: it goes with reply, whose results have no Write chunk"));
    }
    if operation == MeasuredOperation::Reply
        && (perf.is_version_2() || options::get().protocol != ProtocolChoice::One)
    {
        return refuse(format_args!(
            "reply: it measures version 1, where Replies are exposed; leave out --protocol, --placement and --continuation"
        ));
    }
    if let Some(url) = &perf.url {
        if matches!(operation, MeasuredOperation::Echo | MeasuredOperation::Reply) {
            return refuse(format_args!(
                "{url}: {} is a program of stag perf's own server; leave the URL out, or measure null",
                operation.name()
            ));
        }
        if needs_export(operation) && url.path.is_empty() {
            return refuse(format_args!(
                "{url}: {} works on files; name an export, as in {url}/data",
                operation.name()
            ));
        }
    }
    match perf.require.iter().find_map(|wanted| wanted.misfit(operation)) {
        Some(misfit) => refuse(format_args!("{misfit}")),
        None => Ok(()),
    }
}

/// Whether it works on files or names.
fn needs_export(operation: MeasuredOperation) -> bool {
    operation.has_file() || operation.has_names()
}

fn size_max(operation: MeasuredOperation) -> u64 {
    if matches!(operation, MeasuredOperation::Echo | MeasuredOperation::Reply) {
        ECHO_SIZE_MAX
    } else {
        SIZE_MAX
    }
}

/// A warning about bbr, if it is what TCP uses: it paces even the loopback.
fn congestion_note(chosen: Option<CongestionControl>) -> Option<String> {
    let name = match chosen {
        Some(chosen) => chosen.to_string(),
        None => fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default(),
    };
    (name.trim() == "bbr").then(|| {
        "TCP's congestion control is bbr, which paces even the loopback; --congestion-control reno measures Stag"
            .to_owned()
    })
}

/// Whether the RDMA device that would be used is the kernel's work, as rxe and siw are.
fn is_software(options: &options::ConnectionOptions) -> bool {
    let config = VerbsConfig { device: options.device.clone(), ..VerbsConfig::default() };
    let survey = survey(&config);
    let used = |device: &&SurveyedDevice| survey.chosen.as_ref() == Some(&device.kernel.name);
    survey.devices.iter().find(used).is_some_and(|device| device.kernel.is_software)
}

/// The handle of an export's root, as its server's MOUNT tells it, wherever that is served.
fn find_root(url: &Url) -> Result<Vec<u8>, CommandFailure> {
    let mut remote = Remote::connect_with(url, false)?;
    remote.find(&url.path).map(|node| node.handle).map_err(|error| error.at(url))
}

/// What to say of a build that is not the fastest.
fn build_note(profile: &str, is_debug: bool) -> Option<String> {
    let best = "the fastest one: cargo build --profile dist";
    if is_debug {
        return Some(format!("this is a debug build: its figures say nothing about speed; {best}"));
    }
    (profile != "dist").then(|| format!("this build is of cargo's profile {profile}, quick to build; {best}"))
}

/// The cores that were asked for, or two that suit: the server's is the one that `stagd` would choose.
fn choose_cores(
    perf: &Perf,
    topology: &Topology,
    near: Option<CoreSet>,
) -> Result<Vec<usize>, CommandFailure> {
    let allowed = affinity::allowed();
    if perf.cores.is_empty() {
        return match topology.choose_near(&allowed, 2, near)[..] {
            [server, client] => Ok(vec![client.0, server.0]),
            [only] => Ok(vec![only.0, only.0]),
            _ => Err(CommandFailure::run("no core of this machine is allowed to this process")),
        };
    }
    let of = |core: usize| {
        CommandFailure::usage(format_args!("--cores {core}: name two at least, the server's last"))
    };
    if let [only] = perf.cores[..] {
        return Err(of(only));
    }
    if perf.paired && has_twice(&perf.cores) {
        return Err(CommandFailure::usage("--cores: with --paired each core is named once"));
    }
    for core in &perf.cores {
        affinity::check(CoreId(*core))
            .map_err(|error| CommandFailure::usage(format_args!("--cores: {error}")))?;
    }
    Ok(perf.cores.clone())
}

fn has_twice(cores: &[usize]) -> bool {
    cores.iter().enumerate().any(|(index, core)| cores[..index].contains(core))
}

/// The path of the export, as MOUNT takes it.
fn export(url: &Url) -> String {
    url.path.iter().map(|name| format!("/{}", name.display())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_that_is_not_the_fastest_says_how_to_get_that() {
        assert_eq!(build_note("dist", false), None);
        let release = build_note("release", false).unwrap();
        assert!(
            release.contains("profile release") && release.contains("cargo build --profile dist"),
            "{release}"
        );
        let debug = build_note("debug", true).unwrap();
        assert!(
            debug.contains("nothing about speed") && debug.contains("cargo build --profile dist"),
            "{debug}"
        );
    }

    #[test]
    fn this_build_has_a_profile() {
        assert!(!BUILD_PROFILE.is_empty() && !BUILD_PROFILE.contains('/'), "{BUILD_PROFILE}");
    }
}
