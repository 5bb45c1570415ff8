//! The tables of entries, one for each kind, read from files that are part of the program.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The kind whose numbers are layer, error type and code.
pub(super) const TERMINATE: &str = "terminate";

const FILES: [&str; 23] = [
    include_str!("tables/wc.toml"),
    include_str!("tables/cm-event.toml"),
    include_str!("tables/cm-reject.toml"),
    include_str!("tables/cm-status.toml"),
    include_str!("tables/device-event.toml"),
    include_str!("tables/terminate.toml"),
    include_str!("tables/rpcrdma-error.toml"),
    include_str!("tables/rpcrdma-header.toml"),
    include_str!("tables/rpcrdma-v2-error.toml"),
    include_str!("tables/rpcrdma-rtrext.toml"),
    include_str!("tables/rpc.toml"),
    include_str!("tables/rpc-auth.toml"),
    include_str!("tables/nfs3.toml"),
    include_str!("tables/nfs4.toml"),
    include_str!("tables/mount3.toml"),
    include_str!("tables/stag-disconnect.toml"),
    include_str!("tables/stag-work.toml"),
    include_str!("tables/stag-post.toml"),
    include_str!("tables/stag-fabric.toml"),
    include_str!("tables/stag-call.toml"),
    include_str!("tables/stag-close.toml"),
    include_str!("tables/kernel.toml"),
    include_str!("tables/mount-nfs.toml"),
];

/// Names of one kind.
#[derive(Debug)]
pub struct Table {
    /// What narrows a search: `wc`, `cm-event`.
    pub kind: String,
    /// What its names are.
    pub title: String,
    /// What may stand before its names, or be left out.
    pub prefixes: Vec<String>,
    /// By number, those without one by name.
    pub entries: Vec<Entry>,
}

/// One name.
#[derive(Debug)]
pub struct Entry {
    /// As it is in the header file, the RFC or the source.
    pub name: String,
    /// Its number, if it has one; for a Terminate `0xLTCC`: layer, error type, code.
    pub number: Option<i64>,
    /// Of a Terminate: whether any code has this meaning.
    pub any_code: bool,
    /// How programs print it, with `*` where it varies.
    pub says: Vec<String>,
    /// The plain cause.
    pub means: String,
    /// What usually makes it.
    pub usually: String,
    /// What to look at next.
    pub next: Vec<String>,
}

impl Table {
    /// An entry's number as it is shown.
    #[must_use]
    pub fn number(&self, entry: &Entry) -> Option<String> {
        let number = entry.number?;
        Some(if self.kind == TERMINATE { format!("{number:#06x}") } else { number.to_string() })
    }
}

/// A file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    kind: String,
    title: String,
    prefixes: Vec<String>,
    entry: BTreeMap<String, Fields>,
}

/// An entry in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    number: Option<i64>,
    #[serde(default)]
    any_code: bool,
    /// Several are separated by `|`.
    #[serde(default)]
    says: String,
    means: String,
    usually: String,
    next: Vec<String>,
}

/// All tables.
///
/// # Panics
///
/// If a file cannot be read: they are part of the program, and every test of it reads them all.
#[must_use]
pub fn tables() -> Vec<Table> {
    FILES.iter().map(|text| table(toml::from_str(text).expect("a table of stag explain"))).collect()
}

fn table(file: File) -> Table {
    let File { kind, title, prefixes, entry } = file;
    let mut entries: Vec<Entry> = entry.into_iter().map(|(name, fields)| entry_of(name, fields)).collect();
    entries.sort_by_key(|entry| entry.number.map(i64::abs));
    Table { kind, title, prefixes, entries }
}

fn entry_of(name: String, fields: Fields) -> Entry {
    let Fields { number, any_code, says, means, usually, next } = fields;
    let says = says.split('|').filter(|says| !says.is_empty()).map(str::to_owned).collect();
    Entry { name, number, any_code, says, means, usually, next }
}
