//! `stag hugepages`: shows, reserves and gives back hugepages. Changes nothing without `--apply`.

use std::path::Path;

use clap::{Args, Subcommand};
use serde::Serialize;
use stag_hugepages::{Inventory, Plan};
use stag_memory::{PageChoice, PageSize};
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::values::Pages;

/// Shows, reserves and frees huge pages
#[derive(Debug, Args)]
#[command(
    disable_help_subcommand = true,
    after_help = "setup and clear change nothing without --apply.\n\n\
        Examples: stag hugepages show\n          stag hugepages setup --size 2m --count 512 --apply"
)]
pub struct Hugepages {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Shows reserved and free pages, and what limits their use
    Show,
    /// Reserves pages
    #[command(after_help = "Examples: stag hugepages setup --count 512\n          \
        stag hugepages setup --size 1g --count 2 --node 0 --apply")]
    Setup(Setup),
    /// Frees reserved pages
    #[command(
        after_help = "Examples: stag hugepages clear\n          stag hugepages clear --size 2m --apply"
    )]
    Clear(Clear),
}

#[derive(Debug, Args)]
struct Setup {
    /// Pages for each node
    #[arg(long, value_name = "N")]
    count: u64,
    /// Page size: 2m or 1g
    #[arg(long, value_name = "SIZE", default_value = "2m", value_parser = reserved)]
    size: PageSize,
    /// On this NUMA node only
    #[arg(long, value_name = "N")]
    node: Option<u32>,
    /// Make the change; needs root
    #[arg(long)]
    apply: bool,
}

#[derive(Debug, Args)]
struct Clear {
    /// Only this size: 2m or 1g
    #[arg(long, value_name = "SIZE", value_parser = reserved)]
    size: Option<PageSize>,
    /// On this NUMA node only
    #[arg(long, value_name = "N")]
    node: Option<u32>,
    /// Make the change; needs root
    #[arg(long)]
    apply: bool,
}

/// A size of pages that can be reserved.
fn reserved(text: &str) -> Result<PageSize, String> {
    match text.parse::<Pages>()?.0 {
        PageChoice::Size(size) if size.is_reserved() => Ok(size),
        _ => Err(format!("{text:?} cannot be reserved; use one of: 2m, 1g")),
    }
}

/// Pages of one size, on one node or (`node` is null) on the whole machine: a line of `show --json`.
#[derive(Serialize)]
struct Shown {
    node: Option<u32>,
    page_bytes: u64,
    total: u64,
    free: u64,
    surplus: u64,
}

/// One number that is or would be written: a line of `setup --json` and `clear --json`.
#[derive(Serialize)]
struct Step {
    file: String,
    before: u64,
    wanted: u64,
    /// Pages there are now; null when nothing was written.
    now: Option<u64>,
    applied: bool,
    error: Option<String>,
}

impl Hugepages {
    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let inventory = Inventory::read(Path::new("/"));
        match &self.action {
            Action::Show => show(&inventory, out),
            Action::Setup(Setup { count, size, node, apply }) => {
                let plan = Plan::setup(&inventory, *size, *count, *node).map_err(CommandFailure::usage)?;
                carry_out(&plan, *apply, out)
            }
            Action::Clear(Clear { size, node, apply }) => {
                let plan = Plan::clear(&inventory, *size, *node).map_err(CommandFailure::usage)?;
                carry_out(&plan, *apply, out)
            }
        }
    }
}

fn show(inventory: &Inventory, out: &mut Output) -> Result<(), CommandFailure> {
    out.line(inventory.to_string().trim_end())?;
    for pages in &inventory.pages {
        let &stag_hugepages::PageCounts { page_len, total, free, surplus, .. } = pages;
        out.object(&Shown { node: None, page_bytes: page_len, total, free, surplus })?;
    }
    for node in &inventory.nodes {
        for &stag_hugepages::NodePages { page_len, total, free, surplus } in &node.pages {
            out.object(&Shown { node: Some(node.id), page_bytes: page_len, total, free, surplus })?;
        }
    }
    Ok(())
}

fn carry_out(plan: &Plan, apply: bool, out: &mut Output) -> Result<(), CommandFailure> {
    if !apply {
        out.line(plan.to_string().trim_end())?;
        if !plan.writes.is_empty() {
            out.line("# nothing was changed; --apply does it")?;
        }
        return plan.writes.iter().try_for_each(|write| {
            out.object(&Step {
                file: write.path.display().to_string(),
                before: write.before,
                wanted: write.value,
                now: None,
                applied: false,
                error: None,
            })
        });
    }
    let outcomes = plan.apply(Path::new("/"));
    if outcomes.is_empty() {
        out.line("nothing to do")?;
    }
    for outcome in &outcomes {
        out.line(outcome)?;
        out.object(&Step {
            file: outcome.write.path.display().to_string(),
            before: outcome.write.before,
            wanted: outcome.write.value,
            now: outcome.result.as_ref().ok().copied(),
            applied: outcome.is_complete(),
            error: outcome.result.as_ref().err().map(ToString::to_string),
        })?;
    }
    match outcomes.iter().find(|outcome| !outcome.is_complete()) {
        Some(outcome) => Err(CommandFailure::run(outcome)),
        None => Ok(()),
    }
}
