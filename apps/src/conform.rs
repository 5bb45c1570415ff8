//! `stag conform`: whether any peer keeps the rules of RPC-over-RDMA. The checks are in [`stag_conform`]; here are its flags, its
//! output, and what a run needs of a server of files.
//!
//! | module | subject |
//! |---|---|
//! | `files` | the files that some checks need |
//! | `scratch` | the service that answers Calls with content |
//! | `report` | lines and totals, and deviations that are expected |

mod files;
mod report;
mod scratch;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use stag_conform::check::CheckText;
use stag_conform::open::{RawFabric, open};
use stag_conform::raw::RawPeer;
use stag_conform::requester::{CheckedServer, RequesterRun};
use stag_conform::responder::{CheckedClients, ResponderRun};
use stag_conform::rules::{self, RuleCoverage};

use files::ScratchFolder;
use report::{ConformReport, Deviations};
use stag_server::failure::CommandFailure;
use stag_server::options;
use stag_server::output::Output;
use stag_server::seed::random_seed;
use stag_server::url::{FabricName, Url};

/// The role of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ConformRole {
    /// It calls: the peer is a server.
    Requester,
    /// It answers: the peer is a client.
    Responder,
}

/// Checks whether a peer keeps the rules of RPC-over-RDMA
#[derive(Debug, Args)]
#[command(after_help = "It sends NULL Calls; with --export, also Calls on files that it makes.\n\
    As responder it serves a folder in memory: stag put FILE URL/scratch/file.\n\
    Status: 0 all rules kept, 1 a rule broken, 2 could not begin.\n\
    Examples: stag conform shm://NAME --export /data\n          \
    stag conform iwarp://0.0.0.0:20049 --as responder")]
pub struct Conform {
    /// URL of the peer; as responder, where to listen
    #[arg(required_unless_present = "rules")]
    pub(crate) url: Option<Url>,
    /// Role of this side: requester or responder
    #[arg(
        long = "as",
        value_enum,
        default_value = "requester",
        value_name = "ROLE",
        hide_possible_values = true
    )]
    role: ConformRole,
    /// Export, or folder on one, to make files in
    #[arg(long, value_name = "/PATH")]
    export: Option<String>,
    /// Seconds to wait for each answer
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=600))]
    wait: u64,
    /// File of expected failures: NAME: REASON a line
    #[arg(long, value_name = "FILE")]
    expect: Option<PathBuf>,
    /// Run only this check, or the checks of this rule
    #[arg(long, value_name = "CHECK|RULE")]
    only: Vec<String>,
    /// Also send what is known to crash servers
    #[arg(long)]
    dangerous: bool,
    /// List every rule, with its checks or why there is none
    #[arg(long)]
    rules: bool,
}

/// The object of `--json` for a rule.
#[derive(Serialize)]
struct RuleObject {
    rule: &'static str,
    checks: Vec<&'static str>,
    /// Why there is no check.
    unobserved: Option<&'static str>,
}

impl Conform {
    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        if self.rules {
            return list_rules(out);
        }
        let Some(url) = &self.url else { return Err(CommandFailure::usage("a URL is missing")) };
        if !url.path.is_empty() {
            return Err(CommandFailure::usage(format_args!(
                "{url}: a conformance run is of a server; write {} and --export /PATH",
                url.server()
            )));
        }
        if self.role == ConformRole::Responder && self.export.is_some() {
            return Err(CommandFailure::usage("--export goes with --as requester: a client has no export"));
        }
        let export = self.export.as_ref().map(|path| parse_export(url, path)).transpose()?;
        for name in &self.only {
            if !rules::checks().any(|check| selects(std::slice::from_ref(name), check)) {
                return Err(CommandFailure::usage(format_args!(
                    "--only {name}: there is no such check; `stag conform --rules` lists them"
                )));
            }
        }
        let deviations = match &self.expect {
            Some(path) => Deviations::read(path, rules::is_check)?,
            None => Deviations::default(),
        };
        let mut report = ConformReport::new(out, deviations);
        report.say(&format!("{url}: each answer has {} s", self.wait))?;
        match self.role {
            ConformRole::Requester => self.check_server(url, export.as_ref(), &mut report)?,
            ConformRole::Responder => self.check_clients(url, &mut report)?,
        }
        report.finish()
    }

    fn wait(&self) -> Duration {
        Duration::from_secs(self.wait)
    }

    fn check_server(
        &self,
        url: &Url,
        export: Option<&Url>,
        report: &mut ConformReport<'_>,
    ) -> Result<(), CommandFailure> {
        let peer = open_raw(url, self.wait())?;
        let made = export.map(ScratchFolder::make).transpose().map_err(CommandFailure::before_begin)?;
        // The folder is removed at the end, with no connection of the run left.
        let (_folder, files) = made.unzip();
        let server = CheckedServer {
            address: &url.address,
            files,
            wait: self.wait(),
            is_dangerous: self.dangerous,
            selects: &|check| selects(&self.only, check),
            seed: random_seed(),
        };
        let run = RequesterRun::begin(peer, server).map_err(|why| not_begun(url, &why))?;
        for checked in run {
            let (check, outcome) =
                checked.map_err(|why| CommandFailure::run(format_args!("{url}: {why}")))?;
            report.note(check, &outcome)?;
        }
        Ok(())
    }

    fn check_clients(&self, url: &Url, report: &mut ConformReport<'_>) -> Result<(), CommandFailure> {
        let clients = CheckedClients {
            address: &url.address,
            wait: self.wait(),
            selects: &|check| selects(&self.only, check),
            start: scratch::start(),
        };
        let run =
            ResponderRun::begin(open_raw(url, self.wait())?, clients).map_err(|why| not_begun(url, &why))?;
        let mut url = url.clone();
        if let Some(address) = run.address() {
            url.address = address.to_string();
        }
        report.say(&format!(
            "ready      {url}; have the client make many Calls, as in: stag ping -c 1000000 {url}"
        ))?;
        for checked in run {
            let (check, outcome) = checked.map_err(|why| not_begun(&url, &why))?;
            report.note(check, &outcome)?;
        }
        Ok(())
    }
}

fn not_begun(url: &Url, why: &str) -> CommandFailure {
    CommandFailure::not_begun(format_args!("{url}: {why}"))
}

/// Opens the fabric of `url`, with the options of every connection.
fn open_raw(url: &Url, wait: Duration) -> Result<Box<dyn RawPeer>, CommandFailure> {
    let options = options::get();
    let page = options.pages();
    let fabric = match url.fabric {
        FabricName::Shm => RawFabric::Shm { admit: options.shm_allow },
        FabricName::Iwarp => {
            RawFabric::Iwarp { crc: options.crc, congestion_control: options.congestion_control }
        }
        FabricName::Verbs => RawFabric::Verbs { device: options.device, exposure: options.exposure },
    };
    open(fabric, page, wait).map_err(|why| not_begun(url, &why))
}

/// Whether `--only` names the check, or a rule of it. Without `--only`, every check is selected.
fn selects(only: &[String], check: CheckText) -> bool {
    only.is_empty() || only.iter().any(|name| name == check.name || check.rules.contains(&name.as_str()))
}

/// The URL of the scratch export.
fn parse_export(server: &Url, path: &str) -> Result<Url, CommandFailure> {
    let wrong = |problem: String| CommandFailure::usage(format_args!("--export {path}: {problem}"));
    if !path.starts_with('/') {
        return Err(wrong("a path begins with /".to_owned()));
    }
    let mut url: Url =
        format!("{}://{}{path}", server.fabric.name(), server.address).parse().map_err(wrong)?;
    url.mount_port = server.mount_port;
    Ok(url)
}

fn list_rules(out: &mut Output) -> Result<(), CommandFailure> {
    for (rule, coverage) in rules::coverage() {
        let (checks, unobserved) = match coverage {
            RuleCoverage::Checked(checks) => (checks, None),
            RuleCoverage::Unobserved(why) => (Vec::new(), Some(why)),
        };
        match unobserved {
            Some(why) => out.line(format_args!("{rule:<16} not checked: {why}"))?,
            None => out.line(format_args!("{rule:<16} {}", checks.join(" ")))?,
        }
        out.object(&RuleObject { rule, checks, unobserved })?;
    }
    Ok(())
}
