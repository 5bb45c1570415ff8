//! What the server chose, as it says it at the start and with `--check`.

use serde::Serialize;
use stag_memory::PriceList;
use stag_rpc::ProtocolChoice;

use super::cores::{Place, Seat};
use super::exports::Medium;
use super::fabric::{Device, mount_advice, shm_admits};
use super::plan::{Plan, ReactorMemory};
use super::{Settings, directories, state};
use crate::failure::CommandFailure;
use crate::logging::now;
use crate::output::Output;
use crate::values::Size;
use crate::version;
use crate::wrapped::{columns, wrapped, wrapped_options};

/// What was chosen: the object of `--check --json`, and the first one of `--json`.
#[derive(Serialize)]
struct Chosen<'a> {
    /// `checked` or `started`.
    event: &'static str,
    /// The time of day.
    time: String,
    version: &'static str,
    /// The first core, which listens.
    core: usize,
    node: u32,
    /// All cores.
    cores: Vec<ChosenCore<'a>>,
    poll: String,
    /// The pages that the memory stands on; what was asked for, if it is only checked.
    pages: String,
    /// What it stepped down from, and why.
    notes: &'a [&'a String],
    /// The RDMA device, over verbs.
    device: Option<&'a Device>,
    /// How Linux mounts it, over verbs.
    mount: Option<&'a str>,
    /// Whom it admits, over shm.
    shm: Option<&'a str>,
    warnings: &'a [String],
    protocol: &'static str,
    inline_threshold: u32,
    credits: u32,
    connections_max: u32,
    exports: Vec<String>,
    /// Where what survives a restart is kept, if there is such a place.
    state_dir: Option<String>,
    memory: u64,
    prices: Vec<Price<'a>>,
}

/// What a core is for.
#[derive(Serialize)]
struct ChosenCore<'a> {
    core: usize,
    node: u32,
    /// Exports in memory whose files are there.
    exports: Vec<&'a str>,
    /// Octets of memory of these files, and of Calls on their way.
    files: u64,
    transit: u64,
}

/// A line of the price list.
#[derive(Serialize)]
struct Price<'a> {
    what: &'a str,
    each: u64,
    count: u64,
    bytes: u64,
}

/// What it got from the machine.
pub(super) struct Got {
    /// The pages of its memory.
    pub(super) pages: String,
    /// What it stepped down from, and why.
    pub(super) notes: Vec<String>,
    pub(super) device: Option<Device>,
    /// How Linux mounts it, where that is not plain.
    pub(super) mount: Option<String>,
}

/// Says what would be done.
pub(super) fn checked(
    settings: &Settings,
    plan: &Plan,
    place: &Place,
    out: &mut Output,
) -> Result<(), CommandFailure> {
    let pages = format!("{} (asked for)", settings.pages.0);
    let got = Got {
        pages,
        notes: place.notes.clone(),
        device: None,
        mount: mount_advice(settings, &settings.listen),
    };
    chosen("checked", settings, plan, place, &got, out)
}

/// Says what is done.
pub(super) fn started(
    settings: &Settings,
    plan: &Plan,
    place: &Place,
    got: &Got,
    out: &mut Output,
) -> Result<(), CommandFailure> {
    chosen("started", settings, plan, place, got, out)
}

fn chosen(
    event: &'static str,
    settings: &Settings,
    plan: &Plan,
    place: &Place,
    got: &Got,
    out: &mut Output,
) -> Result<(), CommandFailure> {
    let version = version::get();
    let engine = &plan.engine;
    let cores = chosen_cores(settings, plan, place);
    let (core, node) = cores.first().map_or((0, 0), |first| (first.core, first.node));
    let exports: Vec<String> = settings.exports.iter().map(|(spec, _)| spec.clone()).collect();
    out.line(wrapped("stagd ", version, columns()))?;
    if let [_] = cores[..] {
        tell("core", &format!("{core}, NUMA node {node}, polls: {}", settings.poll), out)?;
    } else {
        tell("cores", &format!("{}, polls: {}", cores.len(), settings.poll), out)?;
        for (number, chosen) in cores.iter().enumerate() {
            tell("", &seat_line(number, chosen), out)?;
        }
    }
    tell("pages", &got.pages, out)?;
    for note in &got.notes {
        tell("", note, out)?;
    }
    if let Some(device) = &got.device {
        tell("device", &device.name, out)?;
        for note in &device.notes {
            tell("", note, out)?;
        }
    }
    let shm = shm_admits(settings);
    if let Some(shm) = &shm {
        tell("shm", shm, out)?;
    }
    let threshold = Size(engine.inline_threshold.into());
    let (credits, connections) = (engine.credits_max, settings.connections_max);
    let messages = format!("{threshold} inline, {credits} credits, {connections} connections at most");
    tell("messages", &messages, out)?;
    let protocol = versions(engine.protocol);
    tell("protocol", &format!("RPC-over-RDMA {protocol}"), out)?;
    if let Some(note) = &plan.note {
        tell("", note, out)?;
    }
    for export in &exports {
        out.line(wrapped_options("export     ", export, columns()))?;
    }
    let squashed = directories::squashed(settings);
    for line in &squashed {
        tell("", line, out)?;
    }
    let state = state::path(settings.state_dir.as_deref());
    match &state {
        Ok(folder) => tell("state", &format!("{} (--state-dir)", folder.display()), out)?,
        Err(problem) => tell("state", &format!("nowhere: {problem}"), out)?,
    }
    let memory = Size(settings.memory);
    if event == "checked" {
        tell("memory", &format!("{memory}, of which"), out)?;
        price_lines(&plan.prices, columns()).into_iter().try_for_each(|line| out.line(line))?;
    } else {
        let files = Size(plan.exports.iter().map(|share| share.data_len_max).sum());
        let what_for = format!("{memory}, {files} for files of mem: (stagd --check says what for)");
        tell("memory", &what_for, out)?;
    }
    if let Some(mount) = &got.mount {
        tell("mount", mount, out)?;
    }
    for warning in &place.warnings {
        out.line(wrapped("warning: ", warning, columns()))?;
    }
    out.object(&Chosen {
        event,
        time: now(),
        version,
        core,
        node,
        cores,
        poll: settings.poll.to_string(),
        pages: got.pages.clone(),
        notes: &got.notes.iter().chain(&plan.note).chain(&squashed).collect::<Vec<_>>(),
        device: got.device.as_ref(),
        mount: got.mount.as_deref(),
        shm: shm.as_deref(),
        warnings: &place.warnings,
        protocol,
        inline_threshold: engine.inline_threshold,
        credits: engine.credits_max,
        connections_max: settings.connections_max,
        exports,
        state_dir: state.ok().map(|folder| folder.display().to_string()),
        memory: settings.memory,
        prices: prices(&plan.prices),
    })?;
    out.flush()
}

/// Columns of what stands before each choice.
const NAME_COLUMNS: usize = 11;

/// Says a choice, or more about the one before if it has no name.
fn tell(name: &str, text: &str, out: &mut Output) -> Result<(), CommandFailure> {
    out.line(wrapped(&format!("{name:<NAME_COLUMNS$}"), text, columns()))
}

/// The price list on lines of up to `width` columns.
fn price_lines(list: &PriceList, width: usize) -> Vec<String> {
    // `          4 KiB x     1024 =      4 MiB`, behind two spaces.
    const FIGURES_COLUMNS: usize = 36;
    const WHAT_COLUMNS_MIN: usize = 24;
    let widest = list.prices().iter().map(|price| price.what.chars().count()).max().unwrap_or(0);
    let room = width.saturating_sub(NAME_COLUMNS + FIGURES_COLUMNS).max(WHAT_COLUMNS_MIN);
    let columns = widest.min(room);
    let line = |what: &str, figures: String| {
        let what = wrapped("", what, room);
        let (above, last) = what.rsplit_once('\n').map_or((None, what.as_str()), |(a, b)| (Some(a), b));
        let mut lines: Vec<String> = above.into_iter().flat_map(str::lines).map(str::to_owned).collect();
        lines.push(format!("{last:columns$}  {figures}"));
        lines
    };
    let mut lines: Vec<String> = Vec::new();
    for price in list.prices() {
        let (each, bytes) = (Size(price.each).to_string(), Size(price.bytes()).to_string());
        lines.extend(line(&price.what, format!("{each:>10} x {:>8} = {bytes:>10}", price.count)));
    }
    let total = Size(list.bytes()).to_string();
    lines.extend(line("total", format!("{:>10}   {:>8}   {total:>10}", "", "")));
    let indent = " ".repeat(NAME_COLUMNS);
    lines.into_iter().map(|line| format!("{indent}{line}")).collect()
}

/// The versions of RPC-over-RDMA that are spoken, in words.
fn versions(protocol: ProtocolChoice) -> &'static str {
    match protocol {
        ProtocolChoice::One => "version 1",
        ProtocolChoice::Two => "version 2, and 1 with clients that have no other",
        ProtocolChoice::Auto => "versions 1 and 2",
    }
}

/// The cores, and whose files are where.
fn chosen_cores<'a>(settings: &'a Settings, plan: &Plan, place: &Place) -> Vec<ChosenCore<'a>> {
    let core = |(number, (seat, memory)): (usize, (&Seat, &ReactorMemory))| {
        let there = settings.exports.iter().zip(&plan.exports);
        let there =
            there.filter(|((_, export), share)| export.medium == Medium::Memory && share.owner == number);
        let (exports, data): (Vec<&str>, Vec<u64>) =
            there.map(|((_, export), share)| (export.access.path.as_str(), share.data_len_max)).unzip();
        let files = data.iter().sum();
        ChosenCore { core: seat.core.0, node: seat.node, exports, files, transit: memory.transit_len as u64 }
    };
    place.seats.iter().zip(&plan.reactors).enumerate().map(core).collect()
}

/// What a core is for, in words.
fn seat_line(number: usize, chosen: &ChosenCore<'_>) -> String {
    let ChosenCore { core, node, exports, files, transit } = chosen;
    let mut line = format!("core {core}, NUMA node {node}: ");
    if number == 0 {
        line += "listens, ";
    }
    for export in exports {
        line += &format!("files of mem:{export}, ");
    }
    if *files > 0 {
        line += &format!("{} for files, ", Size(*files));
    }
    line + &format!("{} for Calls on their way", Size(*transit))
}

fn prices(list: &PriceList) -> Vec<Price<'_>> {
    let lines = list.prices().iter();
    lines
        .map(|line| Price { what: &line.what, each: line.each, count: line.count, bytes: line.bytes() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_fit_a_terminal_and_names_stay_whole() {
        let mut prices = PriceList::new();
        prices.add("Receives", 4096, 8192);
        prices.add("what is remembered of objects of exports that are added later", 96, 4096);
        let lines = price_lines(&prices, 80);
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
        assert_eq!(lines.len(), 4, "{lines:#?}");
        assert!(lines[0].trim_start().starts_with("Receives  "), "{lines:#?}");
        assert!(lines[2].ends_with("96 B x     4096 =    384 KiB"), "{lines:#?}");
        assert!(lines[3].trim_start().starts_with("total ") && lines[3].ends_with(" MiB"), "{lines:#?}");
        // A file has lines as long as they are.
        assert_eq!(price_lines(&prices, usize::MAX).len(), 3);
    }
}
