//! `stag conform`: whether any peer keeps the rules of RPC-over-RDMA: of version 1, of reliable reply, and of version 2 with
//! rtrext.
//!
//! | module | subject |
//! |---|---|
//! | `raw`, `open` | one end of a connection over any fabric, below every protocol |
//! | `message` | messages as drafts, right or wrong, and as they came |
//! | `check`, `probe` | the definition of a check, and the building blocks of checks |
//! | `header_checks`, `chunk_checks`, `private_data_checks`, `file_checks` | the checks of a server |
//! | `block`, `exposed_checks`, `exposed_client_checks` | private data of Stag's own; Replies that the server exposes |
//! | `operation`, `version2` | operations of version 2, word by word; a connection that speaks it |
//! | `version2_checks`, `group_checks`, `version2_client_checks` | version 2 and its groups of transmissions: servers, and clients |
//! | `files` | the files that some of them need |
//! | `served`, `client_checks` | the building blocks of checks of a client, and these |
//! | `scratch`, `answering` | the service that answers Calls with content, and how the Replies go out |
//! | `sent_group`, `placed_client_checks` | a client's groups of transmissions put together, and the checks of data in messages |
//! | `requester`, `responder` | a run against a server, and one against clients |
//! | `report`, `rules` | lines and totals; which rule is checked where, and which cannot be |

pub mod answering;
pub mod block;
pub mod check;
pub mod chunk_checks;
pub mod client_checks;
pub mod exposed_checks;
pub mod exposed_client_checks;
pub mod file_checks;
pub mod files;
pub mod group_checks;
pub mod header_checks;
pub mod message;
pub mod open;
pub mod operation;
pub mod placed_client_checks;
pub mod private_data_checks;
pub mod probe;
pub mod raw;
pub mod report;
pub mod requester;
pub mod responder;
pub mod rules;
pub mod scratch;
pub mod sent_group;
pub mod served;
pub mod version2;
pub mod version2_checks;
pub mod version2_client_checks;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::failure::CommandFailure;
use crate::output::Output;
use crate::url::Url;
use report::{CheckText, ConformReport, Deviations};
use requester::RequesterRun;
use responder::ResponderRun;
use rules::RuleCoverage;

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
        let selects = |check: CheckText| self.only.is_empty() || selects(&self.only, check);
        let wait = Duration::from_secs(self.wait);
        match self.role {
            ConformRole::Requester => {
                let run = RequesterRun {
                    url,
                    export: export.as_ref(),
                    wait,
                    is_dangerous: self.dangerous,
                    selects: &selects,
                };
                requester::run(&run, &mut report)?;
            }
            ConformRole::Responder => {
                responder::run(&ResponderRun { url, wait, selects: &selects }, &mut report)?;
            }
        }
        report.finish()
    }
}

fn selects(only: &[String], check: CheckText) -> bool {
    only.iter().any(|name| name == check.name || check.rules.contains(&name.as_str()))
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
