//! `stag translate`: a configuration of `stagd` from the file of knfsd.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use stag_server::failure::CommandFailure;
use stag_server::output::Output;

use crate::exports_file::{Loss, Translation, translate};

/// Turns an exports file of knfsd into a configuration of stagd
#[derive(Debug, Args)]
#[command(after_help = "Examples: stag translate /etc/exports >stagd.toml\n          \
    stagd --config stagd.toml --check")]
pub struct Translate {
    /// The file, in the form of exports(5)
    #[arg(default_value = "/etc/exports")]
    file: PathBuf,
}

/// The translation: an object of `--json`.
#[derive(serde::Serialize)]
struct Translated<'a> {
    exports: &'a [String],
    losses: Vec<TranslatedLoss<'a>>,
}

#[derive(serde::Serialize)]
struct TranslatedLoss<'a> {
    line: usize,
    path: &'a str,
    what: &'a str,
}

impl Translate {
    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let file = self.file.display();
        let text =
            fs::read(&self.file).map_err(|error| CommandFailure::usage(format_args!("{file}: {error}")))?;
        let Translation { exports, losses } = translate(&String::from_utf8_lossy(&text));
        if exports.is_empty() {
            let why =
                losses.last().map_or_else(String::new, |loss| format!("; line {}: {}", loss.line, loss.what));
            return Err(CommandFailure::run(format_args!(
                "{file}: it has no export that stagd can serve{why}"
            )));
        }
        out.line(format_args!("# From {file}, by stag translate. stagd --config FILE --check tries it."))?;
        out.line("export = [")?;
        for export in &exports {
            out.line(format_args!("  {},", toml::Value::from(export.as_str())))?;
        }
        out.line("]")?;
        out.line("# As knfsd: NFS over TCP at its usual port. Add \"iwarp://\" or \"verbs://\" for RDMA.")?;
        out.line("listen = [\"tcp://0.0.0.0:2049\"]")?;
        out.line("rpcbind = true")?;
        out.line("# knfsd takes Calls from ports below 1024 only, unless it says insecure. Here that is the option")?;
        out.line("# secure of an export. It refuses clients over RDMA, which use no such ports.")?;
        if !losses.is_empty() {
            out.line("#\n# Without a counterpart:")?;
        }
        for Loss { line, path, what } in &losses {
            out.line(format_args!("# line {line}, {}: {what}", path.escape_default()))?;
        }
        let losses = losses.iter();
        let losses =
            losses.map(|Loss { line, path, what }| TranslatedLoss { line: *line, path, what }).collect();
        out.object(&Translated { exports: &exports, losses })
    }
}
