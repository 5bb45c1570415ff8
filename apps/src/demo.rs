//! `stag demo`: a real server, a real tree, every byte checked.

use std::path::PathBuf;

use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use stag_runtime::{CoreId, Topology, affinity};
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::stagd::MEMORY_PER_OBJECT;
use stag_server::url::{FabricName, Url};
use stag_server::values::{Poll, Size};

use report::Connection;
use server::{Server, ServerConfig};
use steps::Run;
use tree::{Kind, Tree};

mod progress;
mod report;
pub(crate) mod server;
mod steps;
mod tree;

/// Copies a tree through a server of its own and checks every byte
#[derive(Debug, Args)]
#[command(after_help = "Starts a server on one or more cores. From another core it copies a tree to it\n\
        over shared memory, reads it back, lists, renames and removes it, checks every\n\
        byte, and prints how long each procedure took.\n\n\
        Examples: stag demo\n          stag demo --path /usr/include --size-limit 256M\n          stag demo --cores 2")]
pub struct Demo {
    /// Folder to copy [default: the enclosing project]
    #[arg(long, value_name = "DIR")]
    pub path: Option<PathBuf>,
    /// Copy at most this many bytes
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    pub size_limit: Size,
    /// Cores of the server; the client talks to the first, the last holds the files
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub cores: u8,
    /// Keep server and files until Ctrl-C, and print how to reach them
    #[arg(long)]
    pub keep: bool,
}

/// The least memory that the demo's server gets.
const MEMORY_MIN: u64 = 256 << 20;

/// The name of the export.
const EXPORT: &str = "demo";

impl Demo {
    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let tree = Tree::find(self.path.as_deref(), self.size_limit.0)?;
        announce(&tree, self.size_limit, out)?;
        // Room for the files, half as much again for messages and what is on its way, and all the names.
        let names = tree.objects.len() as u64 * MEMORY_PER_OBJECT;
        let memory = (tree.pages_bytes + tree.pages_bytes / 2 + names).max(MEMORY_MIN);
        let cores = Cores::choose(self.cores.into())?;
        let url = Url {
            is_root: false,
            fabric: FabricName::Shm,
            // Of its own, so that demos do not meet.
            address: format!("demo-{}", std::process::id()),
            path: Vec::new(),
            mount_port: None,
        };
        let server = Server::start(&ServerConfig {
            url: url.to_string(),
            export: format!("mem:/{EXPORT},root_squash=no{}", cores.pin_files()),
            memory,
            cores: cores.server.clone(),
            poll: cores.poll,
            state_dir: None,
        })?;
        cores.say(&server, out)?;
        cores.pin_client()?;

        let mut run = Run::new(&tree, url.join(EXPORT.as_ref()))?;
        let free = run.free()?;
        if free < tree.pages_bytes {
            let (wanted, free) = (Size(tree.pages_bytes), Size(free));
            return Err(CommandFailure::run(format_args!(
                "{}: the tree takes {wanted}, the server has {free}; lower --size-limit",
                tree.root.display()
            )));
        }
        run.copy_in(out)?;
        run.list(out)?;
        run.read_back(out)?;
        if self.keep {
            let connection = Connection::of(&run);
            drop(run);
            return keep(&tree, connection, server, &url.join(EXPORT.as_ref()), out);
        }
        run.rename(out)?;
        run.list(out)?;
        run.remove(out)?;
        run.expect_free(free)?;
        let connection = Connection::of(&run);
        drop(run);
        let stopped = server.stop()?;
        report::print(&tree, connection, &stopped, out)
    }
}

/// Leaves server and files there until a signal comes.
fn keep(
    tree: &Tree,
    connection: Connection,
    server: Server,
    url: &Url,
    out: &mut Output,
) -> Result<(), CommandFailure> {
    let mut signals = Signals::new([SIGINT, SIGTERM])
        .map_err(|error| CommandFailure::run(format_args!("signal handlers: {error}")))?;
    out.line(format_args!("kept       {url} (server: process {}); Ctrl-C ends it. Try:", server.id()))?;
    out.line(format_args!("           stag ls -l {url}"))?;
    out.flush()?;
    let _ = signals.forever().next();
    let stopped = server.stop()?;
    report::print(tree, connection, &stopped, out)
}

fn announce(tree: &Tree, limit: Size, out: &mut Output) -> Result<(), CommandFailure> {
    let Tree { root, files, bytes, over_limit, skipped, objects, .. } = tree;
    let folders = objects.iter().filter(|object| object.kind == Kind::Folder).count();
    let (root, bytes) = (root.display(), Size(*bytes));
    out.line(format_args!("tree       {root}: {files} files in {folders} folders, {bytes}"))?;
    if *over_limit > 0 {
        out.line(format_args!(
            "           {over_limit} files more would be over {limit}: left out (--size-limit takes more)"
        ))?;
    }
    if *skipped > 0 {
        out.line(format_args!("           {skipped} left out: not readable, or no files"))?;
    }
    out.flush()
}

/// Who runs where.
struct Cores {
    /// None: the client runs on any.
    client: Option<usize>,
    /// None: the server has one, and any.
    server: Vec<usize>,
    poll: Poll,
}

impl Cores {
    /// Cores that are near each other, as many for the server, and one for the client. Where there are too few, the client shares
    /// them, and a server of one core, too; then both sleep instead of polling.
    fn choose(servers: usize) -> Result<Cores, CommandFailure> {
        let topology = Topology::read().map_err(CommandFailure::run)?;
        let chosen = topology.choose(&affinity::allowed(), servers + 1);
        let mut chosen: Vec<usize> = chosen.into_iter().map(|core| core.0).collect();
        if chosen.len() > servers {
            return Ok(Cores { client: chosen.pop(), server: chosen, poll: Poll::Busy });
        }
        if chosen.len() < servers {
            return Err(CommandFailure::usage(format_args!(
                "--cores {servers}: this process may use {}; give at most that",
                chosen.len()
            )));
        }
        if servers == 1 {
            chosen.clear();
        }
        Ok(Cores { client: None, server: chosen, poll: Poll::Adaptive })
    }

    /// What an export says so that its files belong to the last core of several.
    fn pin_files(&self) -> String {
        match &self.server[..] {
            [_, .., last] => format!(",core={last}"),
            _ => String::new(),
        }
    }

    fn say(&self, server: &Server, out: &mut Output) -> Result<(), CommandFailure> {
        let name = |cores: &[usize]| match cores {
            [] => "any core".to_owned(),
            [core] => format!("core {core}"),
            cores => format!("cores {}", cores.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
        };
        let pages = server.started["pages"].as_str().unwrap_or("unknown pages");
        let (id, theirs, ours) = (server.id(), name(&self.server), name(self.client.as_slice()));
        out.line(format_args!("server     stagd, process {id} on {theirs}, memory on {pages}"))?;
        out.line(format_args!("client     this process, {} on {ours}", std::process::id()))?;
        if self.client.is_none() {
            out.line("warning: client and server share their cores: Calls wait for the scheduler")?;
        }
        out.flush()
    }

    fn pin_client(&self) -> Result<(), CommandFailure> {
        let Some(core) = self.client else { return Ok(()) };
        affinity::pin(CoreId(core)).map_err(CommandFailure::run)
    }
}
