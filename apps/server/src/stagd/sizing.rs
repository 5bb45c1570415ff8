//! `--plan`: the flags of a server that is large enough for a load. It turns the price list of [`Plan`] round.

use serde::Serialize;

use super::exports::Medium;
use super::load_part::LoadPart;
use super::plan::Plan;
use super::{Settings, StagdOptions};
use crate::failure::CommandFailure;
use crate::output::Output;

/// What is served if the flags do not say.
const EXPORT: &str = "mem:/data";

/// Where it listens if the flags do not say: RDMA and TCP.
const LISTEN: &str = "iwarp://0.0.0.0";

/// Memory is planned in units of this.
const STEP: u64 = 1 << 20;

/// More memory than any machine has.
const MEMORY_MAX: u64 = 1 << 50;

/// The flags: an object of `--json`.
#[derive(Debug, Serialize)]
struct Planned {
    flags: Vec<String>,
    memory: u64,
    /// Octets for files in memory.
    files: u64,
    /// Clients of each kind.
    clients: u32,
}

/// Prints the flags that a server of these options needs beside them.
pub(super) fn print(options: &StagdOptions, out: &mut Output) -> Result<(), CommandFailure> {
    let planned = plan(options)?;
    out.line(planned.flags.join(" "))?;
    out.object(&planned)?;
    out.flush()
}

fn plan(options: &StagdOptions) -> Result<Planned, CommandFailure> {
    let mut flags = Vec::new();
    let mut options = StagdOptions { memory: None, ..options.with_file()? };
    if options.export.is_empty() {
        options.export.push(EXPORT.to_owned());
        flags.extend(["--export", EXPORT].map(str::to_owned));
    }
    if options.listen.is_empty() {
        options.listen.push(LISTEN.parse().map_err(CommandFailure::usage)?);
        flags.extend(["--listen", LISTEN].map(str::to_owned));
    }
    let mut wanted = 0;
    for part in &options.plan {
        match part {
            LoadPart::Clients(clients) => options.connections_max = Some(*clients),
            LoadPart::Files(size) => wanted = size.0,
        }
    }
    let settings = Settings::new(&options)?;
    let has_memory = settings.exports.iter().any(|(_, export)| export.medium == Medium::Memory);
    if wanted > 0 && !has_memory {
        return Err(CommandFailure::usage(
            "--plan files=: no export is in memory (mem:), and files of directories take none; leave it out",
        ));
    }
    // Another machine is planned for: this one's RAM is no limit.
    let with = |memory: u64| Plan::new(&Settings { memory, ..settings.clone() });
    let room = |plan: &Plan| plan.exports.iter().map(|share| share.data_len_max).sum::<u64>();
    // A plan with a note steps down from something.
    let fits = |memory: u64| with(memory).is_ok_and(|plan| plan.note.is_none() && room(&plan) >= wanted);
    let mut enough = STEP;
    while !fits(enough) {
        enough *= 2;
        if enough > MEMORY_MAX {
            let why = with(MEMORY_MAX).err().map_or_else(String::new, |failure| format!(": {failure}"));
            return Err(CommandFailure::usage(format_args!("--plan: no memory is enough{why}")));
        }
    }
    let mut too_little = enough / 2;
    while enough - too_little > STEP {
        let middle = (too_little + (enough - too_little) / 2) / STEP * STEP;
        if fits(middle) { enough = middle } else { too_little = middle }
    }
    flags.extend(["--memory".to_owned(), format!("{}M", enough / STEP)]);
    flags.extend(["--connections-max".to_owned(), settings.connections_max.to_string()]);
    let files = room(&with(enough)?);
    Ok(Planned { flags, memory: enough, files, clients: settings.connections_max })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(load: &[&str], exports: &[&str]) -> Result<Planned, CommandFailure> {
        plan(&StagdOptions {
            plan: load.iter().map(|part| part.parse().unwrap()).collect(),
            export: exports.iter().map(|export| (*export).to_owned()).collect(),
            ..StagdOptions::default()
        })
    }

    /// One step less is too little for it.
    #[test]
    fn the_memory_is_the_least_that_has_the_room() {
        for (clients, files) in [(1, 1_u64 << 20), (64, 1 << 30), (200, 500 << 30), (4000, 1 << 40)] {
            let load = [format!("clients={clients}"), format!("files={files}")];
            let found = planned(&[&load[0], &load[1]], &[]).unwrap();
            assert!(found.files >= files && found.memory > files, "{found:?}");
            assert!(found.memory < 2 * files + (32 << 30), "{found:?}");
            assert_eq!(found.clients, clients);
            let settings = Settings::new(&StagdOptions {
                export: vec![EXPORT.to_owned()],
                listen: vec![LISTEN.parse().unwrap()],
                connections_max: Some(clients),
                ..StagdOptions::default()
            });
            let less = Plan::new(&Settings { memory: found.memory - STEP, ..settings.unwrap() });
            let has_room = |plan: Plan| {
                plan.note.is_none()
                    && plan.exports.iter().map(|share| share.data_len_max).sum::<u64>() >= files
            };
            assert!(!less.is_ok_and(has_room), "{found:?}");
        }
    }

    #[test]
    fn a_load_that_makes_no_sense_is_refused() {
        assert!("clients=many".parse::<LoadPart>().is_err());
        assert!("users=7".parse::<LoadPart>().unwrap_err().contains("clients=200 or files=500G"));
        let refused = planned(&["files=1G"], &["dir:/srv"]).unwrap_err();
        assert!(refused.to_string().contains("no export is in memory"), "{refused}");
        assert!(planned(&["clients=1000000"], &[]).is_err());
    }
}
