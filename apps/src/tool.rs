//! `stag`: the list of its commands.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use stag_fabric::shm::Admit;
use stag_server::arguments;
use stag_server::failure::CommandFailure;
use stag_server::flags::{self, Flag};
use stag_server::options::{self, ConnectionOptions};
use stag_server::output::Output;
use stag_server::url::{FabricName, Place};
use stag_server::values::{CongestionControlName, DataPlacement, Exposure, Protocol, Switch};
use stag_server::{limits, stagd, version};

use crate::commands::{
    admin, bench, cat, cp, df, doctor, dump, explain, fabrics, generate, get, hugepages, ls, mkdir, mv, perf,
    ping, put, rm, stat, top, translate,
};
use crate::version::VERSION;
use crate::{conform, demo};

/// RPC over RDMA, with and without RDMA hardware: try it, use it, measure it
#[derive(Debug, Parser)]
#[command(
    name = "stag",
    version = VERSION,
    disable_help_subcommand = true,
    help_template = "{about}\n\nUsage: {usage}\n\n{subcommands}\n\n\
        Options: --json --no-reconnect --mountport --protocol --placement --crc\n         \
        --congestion-control --device --exposure --shm-allow (see stag(1))\n\
        Examples: stag demo\n          stag ls -l shm://NAME/data\n"
)]
struct Stag {
    /// Print one JSON object a line instead of text
    #[arg(long, global = true)]
    json: bool,
    /// TCP port of the server's MOUNT, instead of asking its rpcbind
    // Few need it: it would push examples off the screen of every command.
    #[arg(long, global = true, value_name = "PORT", hide = true, value_parser = clap::value_parser!(u16).range(1..))]
    mountport: Option<u16>,
    /// End the command when a connection ends, instead of connecting again
    #[arg(long, global = true, hide = true)]
    no_reconnect: bool,
    /// Pull replies of any size, if the server exposes them
    #[arg(long, global = true, hide = true)]
    reliable_reply: bool,
    /// Whether to ask for CRCs over iWARP [default: on]
    #[arg(long, global = true, hide = true, value_enum)]
    crc: Option<Switch>,
    /// Congestion control of TCP below iWARP: reno, cubic, bbr
    #[arg(long, alias = "congestion", global = true, hide = true, value_name = "NAME")]
    congestion_control: Option<CongestionControlName>,
    /// RDMA device of verbs [default: the one that the address leads to]
    #[arg(long, global = true, hide = true, value_name = "NAME")]
    device: Option<String>,
    /// How verbs exposes memory: window, registration, or standing (unprotected) [default: the device's better one of the first two]
    #[arg(long, global = true, hide = true, value_enum, value_name = "KIND")]
    exposure: Option<Exposure>,
    /// Over shm, also trust a server of this user or group: uid:N, gid:N or any [default: the same user only]
    #[arg(long, global = true, hide = true, value_name = "WHO")]
    shm_allow: Vec<Admit>,
    /// Versions of RPC-over-RDMA: 1, 2, or auto (2 if the server announces it) [default: auto when sending files, else 1]
    #[arg(long, global = true, hide = true, value_enum, value_name = "VERSION")]
    protocol: Option<Protocol>,
    /// Where version 2 puts data: send (into messages), rdma, or auto (whichever costs less) [default: auto]
    #[arg(long, global = true, hide = true, value_enum, value_name = "WHERE")]
    placement: Option<DataPlacement>,
    #[command(subcommand)]
    command: Command,
}

/// What `stag -h` shows: the commands by what they are for.
const SHORT_HELP: &str = "\
{about}

Usage: {usage}

Try it     demo doctor fabrics explain
Files      ls cat get put cp mv rm mkdir stat df
Measure    ping perf bench
Servers    admin top translate hugepages
The wire   dump conform

`stag --help` says what each is for, `stag COMMAND -h` how to use it
Examples: stag demo
          stag ls -l shm://NAME/data
";

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Demo),
    Ping(ping::Ping),
    Perf(perf::Perf),
    Bench(bench::Bench),
    Ls(ls::Ls),
    Cat(cat::Cat),
    Get(get::Get),
    Put(put::Put),
    Cp(cp::Cp),
    Mv(mv::Mv),
    Rm(rm::Rm),
    Mkdir(mkdir::Mkdir),
    Stat(stat::Stat),
    Df(df::Df),
    Dump(dump::Dump),
    Hugepages(hugepages::Hugepages),
    Fabrics(fabrics::Fabrics),
    Conform(conform::Conform),
    Doctor(doctor::Doctor),
    Explain(explain::Explain),
    Admin(admin::Admin),
    Top(top::Top),
    Translate(translate::Translate),
    #[command(hide = true)]
    Generate(generate::Generate),
    /// The server, for `stag demo` where only `stag` was built
    #[command(hide = true)]
    Stagd(stagd::StagdOptions),
}

impl Command {
    fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        match self {
            Command::Demo(command) => command.run(out),
            Command::Ping(command) => command.run(out),
            Command::Perf(command) => command.run(out),
            Command::Bench(command) => command.run(out),
            Command::Ls(command) => command.run(out),
            Command::Cat(command) => command.run(out),
            Command::Get(command) => command.run(out),
            Command::Put(command) => command.run(out),
            Command::Cp(command) => command.run(out),
            Command::Mv(command) => command.run(out),
            Command::Rm(command) => command.run(out),
            Command::Mkdir(command) => command.run(out),
            Command::Stat(command) => command.run(out),
            Command::Df(command) => command.run(out),
            Command::Dump(command) => command.run(out),
            Command::Hugepages(command) => command.run(out),
            Command::Fabrics(command) => command.run(out),
            Command::Conform(command) => command.run(out),
            Command::Doctor(command) => command.run(out),
            Command::Explain(command) => command.run(out),
            Command::Admin(command) => command.run(out),
            Command::Top(command) => command.run(out),
            Command::Translate(command) => command.run(out),
            Command::Generate(command) => command.run(Stag::command(), out),
            Command::Stagd(options) => stagd::run(options, out),
        }
    }
}

impl Command {
    /// The versions of RPC-over-RDMA that it speaks by default. Version 2 writes a short file in one round trip less, and takes a
    /// little longer for everything else: bench/docs/figures.md has both costs.
    fn usual_protocol(&self) -> Protocol {
        match self {
            Command::Put(_) | Command::Cp(cp::Cp { target: Place::Remote(_), .. }) => Protocol::Auto,
            _ => Protocol::One,
        }
    }

    /// The fabrics that it uses the options of; none, if it connects to nothing.
    fn fabrics(&self) -> Vec<FabricName> {
        match self {
            Command::Ping(ping::Ping { url, .. })
            | Command::Ls(ls::Ls { url, .. })
            | Command::Get(get::Get { url, .. })
            | Command::Put(put::Put { url, .. })
            | Command::Mkdir(mkdir::Mkdir { url, .. })
            | Command::Stat(stat::Stat { url })
            | Command::Df(df::Df { url }) => vec![url.fabric],
            Command::Cat(cat::Cat { urls }) | Command::Rm(rm::Rm { urls, .. }) => {
                urls.iter().map(|url| url.fabric).collect()
            }
            // A file goes nowhere but to its own server.
            Command::Mv(mv::Mv { from, .. }) => vec![from.fabric],
            Command::Cp(cp::Cp { source, target, .. }) => {
                [source, target].into_iter().filter_map(Place::fabric).collect()
            }
            Command::Perf(perf) => vec![perf.fabric()],
            Command::Conform(conform::Conform { url, .. }) => url.iter().map(|url| url.fabric).collect(),
            // It shows devices as the options would have them opened.
            Command::Fabrics(_) => vec![FabricName::Verbs],
            Command::Demo(_) => vec![FabricName::Shm],
            Command::Bench(_)
            | Command::Dump(_)
            | Command::Hugepages(_)
            | Command::Doctor(_)
            | Command::Explain(_)
            | Command::Admin(_)
            | Command::Top(_)
            | Command::Translate(_)
            | Command::Generate(_)
            | Command::Stagd(_) => Vec::new(),
        }
    }
}

impl Stag {
    /// Refuses options that the command does not use.
    fn check(&self) -> Result<(), CommandFailure> {
        let flags: [Flag; 8] = [
            ("--mountport", self.mountport.is_some(), &["iwarp", "verbs"]),
            ("--crc", self.crc.is_some(), &["iwarp"]),
            ("--congestion-control", self.congestion_control.is_some(), &["iwarp"]),
            ("--device", self.device.is_some(), &["verbs"]),
            ("--exposure", self.exposure.is_some(), &["verbs"]),
            ("--shm-allow", !self.shm_allow.is_empty(), &["shm"]),
            ("--protocol", self.protocol.is_some(), &["shm", "iwarp", "verbs"]),
            ("--placement", self.placement.is_some(), &["shm", "iwarp", "verbs"]),
        ];
        let used: Vec<&str> = self.command.fabrics().into_iter().map(FabricName::name).collect();
        match &self.command {
            // It has them itself, by the same names.
            Command::Stagd(_) => Ok(()),
            Command::Perf(_) => flags::check(&flags, &used, Some("--fabric or the URL")),
            Command::Demo(_) | Command::Fabrics(_) => flags::check(&flags, &used, None),
            _ => flags::check(&flags, &used, Some("the URL").filter(|_| !used.is_empty())),
        }
    }
}

/// The whole of `stag`.
#[must_use]
pub fn main() -> ExitCode {
    version::set(VERSION);
    let stag: Stag = match arguments::parse(std::env::args_os(), Some(SHORT_HELP)) {
        Ok(stag) => stag,
        Err(status) => return status,
    };
    if let Err(failure) = limits::survive_file_size_limit().and_then(|()| stag.check()) {
        return failure.report("stag", stag.json);
    }
    options::set(ConnectionOptions {
        mount_port: stag.mountport,
        no_reconnect: stag.no_reconnect,
        reliable_reply: stag.reliable_reply,
        crc: stag.crc != Some(Switch::Off),
        congestion_control: stag.congestion_control.map(|name| name.0),
        device: stag.device,
        exposure: stag.exposure.map(Into::into),
        shm_allow: stag.shm_allow,
        protocol: stag.protocol.unwrap_or_else(|| stag.command.usual_protocol()).into(),
        placement: stag.placement.unwrap_or_default().into(),
    });
    let mut out = Output::new(stag.json);
    match stag.command.run(&mut out).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // What was printed so far belongs before the complaint; why it failed is in `failure`.
            let _ = out.flush();
            failure.report("stag", out.json())
        }
    }
}
