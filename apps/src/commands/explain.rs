//! `stag explain`: the meaning of a status, an event or a message, its usual cause, and where to look next.
//!
//! The knowledge is data: one file for each kind in `explain/tables`. This machine is not examined.

use std::fmt;

use clap::Args;
use serde::Serialize;
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::wrapped::{columns, wrapped};

mod search;
mod table;

use search::{Answer, Found};
pub use table::{Entry, Table, tables};

/// Columns of a line of text at most: longer ones are hard to read.
const COLUMNS_MAX: usize = 100;

/// Explains a status, an event or a message, and what to do
#[derive(Debug, Args)]
#[command(after_help = "\
It knows completions of verbs (wc), connection set-up (cm), iWARP Terminates
(terminate), RPC-over-RDMA, RPC, NFS and MOUNT, Stag's own errors (stag), and
messages of the kernel and of mount. A number with several meanings shows them
all; a kind before it narrows them. A kind alone, or --list, lists.

Examples: stag explain WC_RNR_RETRY_EXC
          stag explain wc 13
          stag explain cm 28
          stag explain 'siw: got TERMINATE. layer 1, type 1, code 0'")]
pub struct Explain {
    /// A name, a number or a message; optionally a kind before it
    #[arg(value_name = "NAME_OR_NUMBER", allow_negative_numbers = true)]
    words: Vec<String>,
    /// List everything that is known
    #[arg(long)]
    list: bool,
}

/// An entry, as a line of `--json`.
#[derive(Serialize)]
struct Explained<'a> {
    kind: &'a str,
    name: &'a str,
    number: Option<i64>,
    means: &'a str,
    usually: &'a str,
    next: &'a [String],
    note: Option<&'a str>,
}

impl<'a> From<&Found<'a>> for Explained<'a> {
    fn from(found: &Found<'a>) -> Explained<'a> {
        let Entry { name, number, means, usually, next, .. } = found.entry;
        Explained { kind: &found.table.kind, name, number: *number, means, usually, next, note: found.note }
    }
}

impl Explain {
    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let tables = tables();
        match search::search(&tables, &self.words) {
            Answer::Kinds(kinds) => list(&kinds, out),
            Answer::Found(_) if self.list => {
                Err(CommandFailure::usage("--list goes with a kind alone, or with nothing"))
            }
            Answer::Found(found) => explain(&found, out),
            Answer::Nothing { near } => Err(unknown(&self.words.join(" "), &near)),
        }
    }
}

fn list(kinds: &[&Table], out: &mut Output) -> Result<(), CommandFailure> {
    for (index, table) in kinds.iter().enumerate() {
        let gap = if index == 0 { "" } else { "\n" };
        out.line(format_args!("{gap}{}: {}", table.kind, table.title))?;
        for entry in &table.entries {
            out.object(&Explained::from(&Found { table, entry, note: None }))?;
            let number = table.number(entry).unwrap_or_default();
            out.line(wrapped(&format!("  {number:>6}  {:<36} ", entry.name), &entry.means, columns()))?;
        }
    }
    Ok(())
}

fn explain(found: &[Found<'_>], out: &mut Output) -> Result<(), CommandFailure> {
    for (index, found) in found.iter().enumerate() {
        out.object(&Explained::from(found))?;
        if index > 0 {
            out.line("")?;
        }
        out.line(Text(found))?;
    }
    Ok(())
}

fn unknown(text: &str, near: &[&str]) -> CommandFailure {
    let hint = match near {
        [] => String::new(),
        near => format!("did you mean {}? ", near.join(", ")),
    };
    CommandFailure::usage(format_args!("explain: no entry for {text:?}; {hint}stag explain --list shows all"))
}

/// An entry for people.
struct Text<'a>(&'a Found<'a>);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Found { table, entry, note } = self.0;
        write!(f, "{}", entry.name)?;
        if let Some(number) = table.number(entry) {
            write!(f, " ({number})")?;
        }
        write!(f, ", {}", table.title)?;
        paragraph(f, "", &entry.means)?;
        paragraph(f, "Usually: ", &entry.usually)?;
        for (index, next) in entry.next.iter().enumerate() {
            paragraph(f, if index == 0 { "Next:    " } else { "         " }, next)?;
        }
        note.map_or(Ok(()), |note| paragraph(f, "Note:    ", note))
    }
}

/// Writes `text` behind `label`, on as many lines as it needs.
fn paragraph(f: &mut fmt::Formatter<'_>, label: &str, text: &str) -> fmt::Result {
    write!(f, "\n{}", wrapped(&format!("  {label}"), text, columns().min(COLUMNS_MAX)))
}
