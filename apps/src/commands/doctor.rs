//! `stag doctor`: problems of this machine that keep a fabric from working, or from being fast, and the commands that
//! repair them.
//!
//! It changes nothing, connects to nothing, and reads files only: below `/`, or below the root of a test's tree. Only of a container it
//! also asks the kernel for an io_uring, which no file tells.

use std::path::Path;

use clap::{Args, ValueEnum};
use serde::Serialize;
use stag_server::failure::CommandFailure;
use stag_server::machine::Machine;
use stag_server::output::{Colour, Output};
use stag_server::stagd::CoreList;
use stag_server::url::FabricName;
use stag_server::wrapped::{columns, wrapped};

use crate::repair;
use crate::version::VERSION;

mod container;
mod cores;
mod devices;
mod finding;
mod memory;
mod network;
mod rdma;
mod system;

pub use finding::{Diagnosis, State};

/// Checks this machine, and says how to repair what it finds
#[derive(Debug, Args)]
#[command(after_help = "\
Exit status: 0: all well, perhaps with notes; 1: warnings (it works, but slowly
or not under load); 2: wrong command line; 3: errors (it does not work). A
missing RDMA device is a note, with --for verbs an error.

Examples: stag doctor
          stag doctor --for container
          stag doctor --cores 2-9")]
pub struct Doctor {
    /// What is needed for shm, iwarp, verbs or container [default: fabrics]
    #[arg(long = "for", value_name = "WHAT", value_enum, hide_possible_values = true)]
    purpose: Option<Purpose>,
    /// Also check these cores for stagd --cores
    #[arg(long, value_name = "LIST")]
    cores: Option<CoreList>,
}

/// What has to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Purpose {
    Shm,
    Iwarp,
    Verbs,
    /// A stagd in this container.
    Container,
}

impl Purpose {
    fn fabric(self) -> Option<FabricName> {
        match self {
            Purpose::Shm => Some(Shm),
            Purpose::Iwarp => Some(Iwarp),
            Purpose::Verbs => Some(Verbs),
            Purpose::Container => None,
        }
    }
}

use FabricName::{Iwarp, Shm, Verbs};

/// What a check does.
type Examine = fn(&Machine) -> Vec<Diagnosis>;

/// A check: its name, the fabrics that need it, and what it does.
type Check = (&'static str, &'static [FabricName], Examine);

const ALL: &[FabricName] = &[Shm, Iwarp, Verbs];

/// In the order of the output: what is missing altogether first.
const CHECKS: &[Check] = &[
    ("kernel modules", &[Verbs], rdma::modules),
    ("rdma-core", &[Verbs], rdma::libraries),
    ("device files", &[Verbs], rdma::device_files),
    ("RDMA devices", &[Verbs], devices::present),
    ("RDMA ports", &[Verbs], devices::ports),
    ("MTU", &[Verbs], devices::mtu),
    ("GID", &[Verbs], devices::gids),
    ("NIC and cores", &[Verbs], devices::nodes),
    ("memlock", &[Verbs], memory::memlock),
    ("memory", ALL, memory::control_group),
    ("hugepages", ALL, memory::hugepages),
    ("cores", ALL, cores::allowed),
    ("machine", ALL, cores::environment),
    ("TCP ports", &[Iwarp, Verbs], network::ports),
    ("congestion control", &[Iwarp], network::congestion_control),
    ("backlog", &[Iwarp], network::backlog),
    ("socket buffers", &[Iwarp], network::buffers),
    ("open files", ALL, system::open_files),
    ("io_uring", ALL, system::io_uring),
];

/// What a stagd in a container needs.
const CONTAINER_CHECKS: &[(&str, Examine)] = &[
    ("state directory", container::state_directory),
    ("capabilities", container::capabilities),
    ("io_uring", container::io_uring),
    ("memory", memory::control_group),
    ("memlock", memory::memlock),
    ("hugepages", memory::hugepages),
    ("cores", cores::allowed),
    ("open files", system::open_files),
    ("RDMA devices", container::devices),
];

/// The names of the checks, in their order.
pub fn checks() -> impl Iterator<Item = &'static str> {
    CHECKS.iter().map(|(name, _, _)| *name)
}

/// Checks the machine whose `sys`, `proc`, `dev` and so on are below `root`: for one fabric, which then has to
/// work, or for all.
#[must_use]
pub fn inspect(root: &Path, fabric: Option<FabricName>) -> Vec<(&'static str, Diagnosis)> {
    let machine = Machine::new(root, fabric == Some(Verbs));
    let wanted =
        CHECKS.iter().filter(|(_, fabrics, _)| fabric.is_none_or(|fabric| fabrics.contains(&fabric)));
    wanted
        .flat_map(|(name, _, check)| check(&machine).into_iter().map(move |finding| (*name, finding)))
        .collect()
}

/// Checks what a stagd needs that runs in the container whose `sys`, `proc`, `dev` and so on are below `root`.
#[must_use]
pub fn inspect_container(root: &Path) -> Vec<(&'static str, Diagnosis)> {
    let machine = Machine::new(root, false);
    let findings = CONTAINER_CHECKS.iter().map(|(name, check)| (*name, check(&machine)));
    findings.flat_map(|(name, found)| found.into_iter().map(move |finding| (name, finding))).collect()
}

/// Checks whether one server can run on these cores of the machine below `root`, and what that would cost: whether they are there, may be
/// used, and are near to each other and to the RDMA devices.
#[must_use]
pub fn inspect_cores(
    root: &Path,
    fabric: Option<FabricName>,
    cores: &CoreList,
) -> Vec<(&'static str, Diagnosis)> {
    let machine = Machine::new(root, fabric == Some(Verbs));
    let has_device = fabric.is_none_or(|fabric| fabric == Verbs);
    let findings = cores::together(&machine, cores, has_device);
    findings.into_iter().map(|finding| ("stagd --cores", finding)).collect()
}

/// A finding, as a line of `--json`.
#[derive(Serialize)]
struct Told<'a> {
    check: &'a str,
    state: State,
    found: &'a str,
    repair: Option<&'a str>,
}

impl Doctor {
    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        out.line(wrapped("stag ", VERSION, columns()))?;
        let root = Path::new("/");
        let fabric = self.purpose.and_then(Purpose::fabric);
        let mut findings = match self.purpose {
            Some(Purpose::Container) => inspect_container(root),
            _ => inspect(root, fabric),
        };
        if let Some(cores) = &self.cores {
            findings.extend(inspect_cores(root, fabric, cores));
        }
        for (check, Diagnosis { state, found, repair }) in &findings {
            let repair = repair.as_deref().map(repair::typed);
            out.object(&Told { check, state: *state, found, repair: repair.as_deref() })?;
            let line = wrapped(&format!("{:<8} {check:<19} ", state.name()), found, columns());
            let colour = match state {
                State::Ok => Some(Colour::Green),
                State::Note => None,
                State::Warning => Some(Colour::Yellow),
                State::Error => Some(Colour::Red),
            };
            let name = colour.map_or(state.name().to_owned(), |colour| colour.of(state.name()));
            out.line(line.replacen(state.name(), &name, 1))?;
            if let Some(repair) = repair {
                out.line(wrapped(&format!("{:<28} repair: ", ""), &repair, columns()))?;
            }
        }
        let count = |state| findings.iter().filter(|(_, finding)| finding.state == state).count();
        let [errors, warnings, notes] = [State::Error, State::Warning, State::Note].map(count);
        out.line(format_args!("errors: {errors}, warnings: {warnings}, notes: {notes}"))?;
        match (errors, warnings) {
            (0, 0) => Ok(()),
            (0, _) => Err(CommandFailure::Told),
            _ => Err(CommandFailure::ToldErrors),
        }
    }
}
