//! `stagd`: the server.

use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use exports::{Medium, OPTIONS};

use crate::failure::CommandFailure;
use crate::logging::FLUSH_MAX;
use crate::output::{Output, within};
use crate::{arguments, limits, logging, version};

mod asking;
mod choices;
mod claims;
mod client_name;
mod control;
mod core_list;
mod cores;
mod credits;
mod descriptors;
mod directories;
mod draining;
mod ended;
mod ends;
mod exports;
mod fabric;
mod filling;
mod holdings;
mod listen;
mod listeners;
mod live;
mod load_part;
mod locks;
mod metrics;
mod mounts;
mod options;
mod plan;
mod printer;
mod privileges;
mod progress;
mod reactor;
mod recordings;
mod registration;
mod report;
mod request;
mod serve;
mod services;
mod settings;
mod signals;
mod sizing;
mod snapshot;
mod state;
mod supervisor;
mod versions;
mod weights;

pub use core_list::CoreList;
use cores::Place;
pub use listen::Listen;
pub use options::StagdOptions;
pub use plan::MEMORY_PER_OBJECT;
use plan::Plan;
pub use settings::{MEMORY_DEFAULT_MAX, Settings, memory_unasked};
pub use weights::ClientWeight;

/// The NFS server of Stag: memory and directories, over RDMA fabrics and TCP
#[derive(Debug, Parser)]
#[command(
    name = "stagd",
    version = version::get(),
    after_help = "Examples: stagd --export mem:/data --listen shm://demo\n          \
        stagd --cores 2-5 --export dir:/srv/data --listen verbs://0.0.0.0"
)]
struct Stagd {
    #[command(flatten)]
    options: StagdOptions,
    /// Print one JSON object a line instead of text
    #[arg(long)]
    json: bool,
}

/// The command line, for what is made from it.
#[must_use]
pub fn command() -> clap::Command {
    Stagd::command()
}

/// The whole of `stagd`.
#[must_use]
pub fn main() -> ExitCode {
    limits::run_with_enough_stack(parse_and_run)
}

fn parse_and_run() -> ExitCode {
    let stagd: Stagd = match arguments::parse(std::env::args_os(), None) {
        Ok(stagd) => stagd,
        Err(status) => return status,
    };
    let mut out = Output::new(stagd.json);
    let json = out.json();
    let result = run(&stagd.options, &mut out);
    // What was printed so far belongs before a complaint.
    let flushed = within(FLUSH_MAX, move || out.flush()).unwrap_or(Ok(()));
    logging::flush();
    match result.and(flushed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => with_repair(failure).report("stagd", json),
    }
}

/// The same failure; if the system refused a call as such (EPERM, ENOSYS) and nothing says what to do about it, with that.
fn with_repair(failure: CommandFailure) -> CommandFailure {
    const REPAIR: &str = "; if it is a container's seccomp profile that refuses the call, use a newer container runtime or permit it there";
    let is_refused = |text: &str| text.ends_with("(os error 1)") || text.ends_with("(os error 38)");
    match failure {
        CommandFailure::Run(text) if is_refused(&text) => CommandFailure::Run(text + REPAIR),
        CommandFailure::Usage(text) if is_refused(&text) => CommandFailure::Usage(text + REPAIR),
        other => other,
    }
}

/// What `--export help` prints before and after the options.
const EXPORT_HELP: [&str; 2] = [
    "\
--export mem:/PATH[,OPTION...]   files in memory, which end with the server
--export dir:/PATH[,OPTION...]   a directory of this machine",
    "
Examples: stagd --export mem:/data,size=1G,client=10.0.0.0/8 ...
          stagd --export dir:/srv/data,name=/data,ro ...",
];

/// Where state is kept unless `--state-dir` says another place. `Err`: nowhere, and what that means.
pub fn state_directory() -> Result<std::path::PathBuf, String> {
    state::path(None)
}

/// The options of `--export`: how each is written, what it means, and what holds without it.
pub fn export_options() -> impl Iterator<Item = (&'static str, String, &'static str)> {
    OPTIONS.iter().map(|option| {
        let medium = match option.medium {
            None => "",
            Some(Medium::Memory) => "mem: ",
            Some(Medium::Directory) => "dir: ",
        };
        (option.syntax, format!("{medium}{}", option.meaning), option.default)
    })
}

/// Says what can be written behind `--export`.
fn export_help(out: &mut Output) -> Result<(), CommandFailure> {
    let [before, after] = EXPORT_HELP;
    before.lines().try_for_each(|line| out.text(line))?;
    let row = |option: &str, meaning: &str, default: &str| format!("{option:<21}{meaning:<51}{default}");
    out.text("")?;
    out.text(row("option", "meaning", "default"))?;
    for (syntax, meaning, default) in export_options() {
        out.text(row(syntax, &meaning, default))?;
    }
    after.lines().try_for_each(|line| out.text(line))?;
    out.flush()
}

/// Serves until told to stop.
pub fn run(options: &StagdOptions, out: &mut Output) -> Result<(), CommandFailure> {
    if options.export.iter().any(|export| export == "help") {
        return export_help(out);
    }
    if !options.plan.is_empty() {
        return sizing::print(options, out);
    }
    let settings = Settings::new(options)?;
    logging::start(settings.log_format)?;
    tracing::info!("stagd {}", version::get());
    limits::survive_file_size_limit()?;
    // Clients say the modes of their files; what is ours alone is made with a mode of its own.
    rustix::process::umask(rustix::fs::Mode::empty());
    let plan = Plan::new(&settings)?;
    state::check(&settings, options.check)?;
    let mut place = Place::choose(&settings, options.check)?;
    descriptors::check(&settings, &plan, &mut place.warnings)?;
    place.warnings.extend(settings::memory_warning(Path::new("/"), settings.memory));
    directories::check(&settings, &mut place.warnings)?;
    if options.check {
        place.warnings.extend(listeners::taken(&settings.listen));
        choices::checked(&settings, &plan, &place, out)?;
        out.flush()?;
        return fabric::check(&settings, &plan);
    }
    serve::serve((options, &settings), &plan, &place, out)
}
