//! `stag`: the list of its commands.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use stag::fabric::iwarp::CongestionControl;

use crate::commands::{
    cat, cp, df, doctor, dump, explain, fabrics, get, hugepages, ls, mkdir, mv, perf, ping, put, rm, stat,
};
use crate::failure::Failure;
use crate::options::{self, Options};
use crate::output::Output;
use crate::values::{Exposure, Switch};
use crate::{arguments, demo, stagd};

/// RPC over RDMA, with and without RDMA hardware: try it, use it, measure it
#[derive(Debug, Parser)]
#[command(
    name = "stag",
    version,
    disable_help_subcommand = true,
    help_template = "{about}\n\nUsage: {usage}\n\n{subcommands}\n\n\
        Options: --json --no-reconnect --mountport PORT; iwarp: --crc on|off\n         \
        --congestion NAME; verbs: --device NAME --exposure KIND\n\
        Examples: stag demo\n          stag ls -l shm://NAME/data\n"
)]
struct Stag {
    /// Print one JSON object a line instead of text
    #[arg(long, global = true)]
    json: bool,
    /// TCP port of the server's MOUNT, where its rpcbind is not to be asked
    // Few need it: it would push examples off the screen of every command.
    #[arg(long, global = true, value_name = "PORT", hide = true, value_parser = clap::value_parser!(u16).range(1..))]
    mountport: Option<u16>,
    /// Give up when a connection ends, rather than connect again
    #[arg(long, global = true, hide = true)]
    no_reconnect: bool,
    /// Whether to ask for CRCs over iWARP
    #[arg(long, global = true, hide = true, value_enum, default_value = "on")]
    crc: Switch,
    /// Congestion control of TCP below iWARP: reno, cubic, bbr
    #[arg(long, global = true, hide = true, value_name = "NAME")]
    congestion: Option<CongestionControl>,
    /// RDMA device of verbs [default: the one that the address leads to]
    #[arg(long, global = true, hide = true, value_name = "NAME")]
    device: Option<String>,
    /// How verbs exposes memory: window, registration or, unprotected, standing [default: the device's best]
    #[arg(long, global = true, hide = true, value_enum, value_name = "KIND")]
    exposure: Option<Exposure>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Demo),
    Ping(ping::Ping),
    Perf(perf::Perf),
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
    Doctor(doctor::Doctor),
    Explain(explain::Explain),
    /// The server, for `stag demo` where only `stag` was built
    #[command(hide = true)]
    Stagd(stagd::Options),
}

impl Command {
    fn run(&self, out: &mut Output) -> Result<(), Failure> {
        match self {
            Command::Demo(command) => command.run(out),
            Command::Ping(command) => command.run(out),
            Command::Perf(command) => command.run(out),
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
            Command::Doctor(command) => command.run(out),
            Command::Explain(command) => command.run(out),
            Command::Stagd(options) => stagd::run(options, out),
        }
    }
}

/// The whole of `stag`.
#[must_use]
pub fn main() -> ExitCode {
    let stag: Stag = match arguments::parse(std::env::args_os()) {
        Ok(stag) => stag,
        Err(status) => return status,
    };
    options::set(Options {
        mount_port: stag.mountport,
        no_reconnect: stag.no_reconnect,
        crc: stag.crc == Switch::On,
        congestion_control: stag.congestion,
        device: stag.device,
        exposure: stag.exposure.map(Into::into),
    });
    let mut out = Output::new(stag.json);
    match stag.command.run(&mut out).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // What was printed so far belongs before the complaint; why it failed is in `failure`.
            let _ = out.flush();
            failure.report("stag")
        }
    }
}
